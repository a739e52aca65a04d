/* tests/unit/test_parts.c - whole models on several processes that share each layer (runtime/model/part.h) against one
 * process: the same bytes; what cannot be divided; a process that is killed. */
#include "runtime/forward/follow.h"
#include "runtime/model/part.h"
#include "tests/support/passes.h"
#include "tests/support/ranks.h"

#include <signal.h>

static const struct {
    const char *name, *why;
    int ranks;
    mm_acts acts;
    bool hard; /* check_hard */
} archs[] = {
    { "llama3-gqa", "a KV head each", 2, MM_F32, false },
    { "llama3-gqa", "unequal parts: a KV head, and two ranks that share one", 3, MM_F32, false },
    { "llama3-gqa", "two ranks to a KV head, int8", 4, MM_I8, false },
    { "falcon-7b-mqa", "one KV head for all, in one matrix with q", 4, MM_F32, false },
    { "falcon-40b-gqa", "q, k and v of each group in turn, and parts of a group", 4, MM_F32,
      false },
    { "phi3", "q, k and v in one matrix, gate and up too", 3, MM_I8, false },
    { "phi2", "biases on every product, plain MLP", 2, MM_BF16, false },
    { "gemma2", "norms behind the branches, soft-caps, windows", 4, MM_F32, true },
    { "cohere", "parallel branches, scaled logits", 4, MM_F32, true },
    { "bitnet", "norms before o and down", 2, MM_F32, false },
    { "opt-350m-postnorm", "norms after the sum, a narrow embedding", 2, MM_F32, true },
    { "stablelm-qk-norms", "a norm's weights for each head", 2, MM_F32, true },
    { "gemma4-dense", "layers of different sizes", 2, MM_F32, false },
    { "gemma4-ple", "... and K and V of other layers, int8", 2, MM_I8, false },
    { "mixtral-moe", "experts", 4, MM_I8, false },
    { "qwen2-moe-shared", "a shared MLP by a sigmoid of its own", 2, MM_F32, false },
    { "gpt-oss-sinks", "gates and ups in turn with biases, sinks", 2, MM_F32, false },
    { "deepseek-v2-mla", "latent attention, experts", 3, MM_F32, false },
    { "nemotron", "plain MLP", 2, MM_F32, true },
    { "olmo2", "a norm over all heads", 2, MM_F32, false },
    { "qwen3.5", "layers with a state between layers of attention", 2, MM_F32, false },
    { "falcon-h1", "a state beside attention in every layer", 2, MM_F32, true },
    { "bloom-alibi", "ALiBi, heads in unequal parts", 3, MM_F32, false },
    { "falcon-rw-alibi", "ALiBi that is rounded", 2, MM_F32, true },
};

static const char *name;
static rig_opts how;
static int of; /* ranks */

/* Both prompts in chunks that differ, and then one of them goes on as two from the same block. */
static const cut chunks = { "chunks", 5, 3, 1, 16, false };

static bool passes(rig *r, const golden *g, float *out)
{
    run_cut(r, g, &chunks, out);
    float *more = out + g->B * g->T * g->V;
    kv_seq s[2];
    lq_err err = { "" };
    kv_seq_init(&s[0]);
    kv_seq_init(&s[1]);
    const int64_t n = 10;
    const float *logits;
    lq_status st = kv_reserve(r->kv, &s[0], n, &err);
    fwd_item it = { .seq = &s[0], .ids = g->ids[0], .n = n, .logits_from = n - 1 };
    if (!st) st = fwd_step(r->f, &it, 1, &logits, &err);
    if (!st) st = kv_fork(r->kv, &s[1], &s[0], &err);
    for (int i = 0; i < 2 && !st; i++)
        st = kv_reserve(r->kv, &s[i], n + 1, &err);
    const fwd_item two[2] = {
        { .seq = &s[0], .ids = g->ids[0] + n, .n = 1, .pos0 = n },
        { .seq = &s[1], .ids = g->ids[0] + n + 1, .n = 1, .pos0 = n },
    };
    if (!st) st = fwd_step(r->f, two, 2, &logits, &err);
    if (!st) memcpy(more, logits, (size_t)(2 * g->V) * sizeof *more);
    kv_seq_free(r->kv, &s[0]);
    kv_seq_free(r->kv, &s[1]);
    if (st) fprintf(stderr, "%s: %s\n", name, err.msg);
    return !st;
}

/* All logits of the prompts and of two more ids; NULL: it failed. Of a process that follows what it had to do. */
static float *all_logits(comm *c, int64_t *n, uint64_t *sent)
{
    rig r;
    golden g = { .B = 0 };
    rig_opts o = how;
    lq_err err = { "" };
    float *out = NULL;
    o.processes = c;
    bool ok = open_arch(&r, name, o) && golden_open(&g, name);
    *n = (g.B * g.T + 2) * g.V;
    if (ok) out = malloc((size_t)*n * sizeof *out);
    ok = out && passes(&r, &g, out);
    if (ok) *sent = fwd_sent(r.f);
    if (!ok) {
        free(out);
        out = NULL;
        fprintf(stderr, "%s: failed: %s\n", name, err.msg);
    }
    fwd_close(r.f);
    r.f = NULL;
    if (c) fwd_dismiss(&r.m);
    rig_close(&r);
    if (g.B) st_close(&g.file);
    return out;
}

static int follower(comm *c)
{
    src_source *src = NULL;
    pool *p = NULL;
    model m = { 0 };
    lq_err err = { "" };
    char path[128];
    snprintf(path, sizeof path, "tests/golden/arch/%.100s", name);
    lq_status s = k_init(NULL, &err);
    if (!s) s = src_open(&src, path, &(src_opts){ .need_config = true }, &err);
    if (!s) s = pool_open(&p, 1, &err);
    if (!s) s = model_load_part(&m, src, c, p, NULL, &err);
    if (!s) s = fwd_follow(&m, p, &err);
    if (s) fprintf(stderr, "rank %d: %s\n", comm_rank(c), err.msg);
    model_free(&m);
    pool_close(p);
    src_close(src);
    return s ? 3 : 0;
}

static int compare(comm *c)
{
    int64_t n, m;
    uint64_t sent = 0, none = 0;
    if (comm_rank(c)) return follower(c);
    float *got = all_logits(c, &n, &sent), *want = all_logits(NULL, &m, &none);
    const bool same = got && want && n == m && memcmp(got, want, (size_t)n * sizeof *got) == 0;
    free(got);
    free(want);
    return same && sent > 0 && none == 0 ? 0 : 1;
}

TEST(several_processes_give_the_bytes_of_one)
{
    for (size_t i = 0; i < LQ_COUNT(archs); i++) {
        if (archs[i].hard && !check_hard()) continue;
        int codes[RANKS_MOST];
        name = archs[i].name;
        how = (rig_opts){ .acts = archs[i].acts, .kv = archs[i].acts == MM_F32 ? KV_F32 : KV_BF16 };
        as_ranks(archs[i].ranks, compare, codes);
        for (int k = 0; k < archs[i].ranks; k++)
            CHECK(codes[k] == 0, "%s on %d (%s): rank %d ended with %d", archs[i].name,
                  archs[i].ranks, archs[i].why, k, codes[k]);
    }
}

/* ---- what each has ---- */
static size_t bytes_of_weights(const model *m)
{
    size_t n = 0;
    for (int64_t i = 0; i <= m->cfg->layers; i++)
        n += m->layer_arenas[i].used;
    return n;
}

static int weigh(comm *c)
{
    src_source *src = NULL;
    model m = { 0 }, all = { 0 };
    lq_err err = { "" };
    char path[128];
    snprintf(path, sizeof path, "tests/golden/arch/%.100s", name);
    lq_status s = src_open(&src, path, &(src_opts){ .need_config = true }, &err);
    if (!s) s = model_load_part(&m, src, c, NULL, NULL, &err);
    if (!s) s = model_load(&all, src, NULL, NULL, &err);
    if (s) return 1;
    const size_t own = bytes_of_weights(&m), everything = bytes_of_weights(&all);
    const bool less = (double)own < 0.56 * (double)everything && m.weight_bytes == all.weight_bytes;
    if (!less) fprintf(stderr, "%s: %zu of %zu bytes\n", name, own, everything);
    model_free(&m);
    model_free(&all);
    src_close(src);
    return less ? 0 : 2;
}

TEST(each_process_has_its_part_and_no_more)
{
    static const char *const names[] = { "llama-128", "mixtral-moe" };
    for (size_t i = 0; i < LQ_COUNT(names); i++) {
        int codes[RANKS_MOST];
        name = names[i];
        as_ranks(2, weigh, codes);
        CHECK(codes[0] == 0 && codes[1] == 0, "%s: %d and %d", name, codes[0], codes[1]);
    }
}

/* ---- refusals ---- */
static const struct {
    const char *name, *said;
    int ranks;
} refused[] = {
    { "llama3-gqa", "heads: expected at most 4 ranks (2 KV heads, of each 2 heads), found 5", 5 },
    { "mpt-qk-norm", "not over several ranks yet: a norm of all heads together", 2 },
    { "olmo2", "KV heads: expected at most 2 ranks, since all are normed together, found 3", 3 },
    { "gemma3n", "several residual streams", 2 },
    { "dbrx", "gate and up: expected at most 1 ranks, one for each 16 of 8, found 2", 2 },
};

TEST(what_cannot_be_divided_is_refused_with_what_can)
{
    for (size_t i = 0; i < LQ_COUNT(refused); i++) {
        char path[128];
        lq_err err = { "" };
        src_source *src = NULL;
        snprintf(path, sizeof path, "tests/golden/arch/%.100s", refused[i].name);
        const src_opts o = { .need_config = true };
        CHECK(!src_open(&src, path, &o, &err), "%s", err.msg);
        const lq_status s = src ? part_check(src_config(src), refused[i].ranks, &err) : LQ_OK;
        CHECK(s == LQ_EUNSUPPORTED && strstr(err.msg, refused[i].said), "%s: %s", refused[i].name,
              err.msg);
        src_close(src);
    }
}

/* ---- a process that is gone ---- */
static int lead_to_an_end(comm *c)
{
    rig r;
    golden g;
    lq_err err = { "" };
    const float *logits;
    rig_opts o = how;
    if (comm_rank(c) == of - 1) {
        kill(getpid(), SIGKILL);
        pause();
    }
    if (comm_rank(c)) return follower(c);
    o.processes = c;
    memset(&r, 0, sizeof r);
    /* The pass opens with all, so the kill is seen there or in the first step. */
    bool ok = golden_open(&g, name);
    char path[128];
    snprintf(path, sizeof path, "tests/golden/arch/%.100s", name);
    lq_status s = k_init(NULL, &err);
    if (!s) s = src_open(&r.src, path, &(src_opts){ .need_config = true }, &err);
    if (!s) s = pool_open(&r.p, 1, &err);
    if (!s) s = model_load_part(&r.m, r.src, c, r.p, NULL, &err);
    const kv_opts k = { .n_blocks = 8, .block_size = 16 };
    if (!s) s = kv_open(&r.kv, r.m.cfg, &k, &err);
    if (!s && ok) s = rig_pass(&r, o, &err);
    fwd_item it = { .ids = g.ids[0], .n = 4 };
    kv_seq q;
    kv_seq_init(&q);
    it.seq = &q;
    if (!s) s = kv_reserve(r.kv, &q, 4, &err);
    if (!s) s = fwd_step(r.f, &it, 1, &logits, &err);
    ok = ok && (s == LQ_EDEVICE || s == LQ_EIO) && strstr(err.msg, "gone");
    if (!ok) fprintf(stderr, "%s: %s\n", lq_status_text(s), err.msg);
    st_close(&g.file);
    return ok ? 7 : 1;
}

TEST(a_process_that_is_killed_ends_the_step_of_the_others)
{
    int codes[RANKS_MOST];
    name = "llama3-gqa";
    how = (rig_opts){ 0 };
    of = 3;
    as_ranks(of, lead_to_an_end, codes);
    CHECK(codes[0] == 7 && codes[1] == 3 && codes[2] == 128 + SIGKILL, "codes %d %d %d", codes[0],
          codes[1], codes[2]);
}

int main(int argc, char **argv)
{
    RUN(several_processes_give_the_bytes_of_one);
    RUN(each_process_has_its_part_and_no_more);
    RUN(what_cannot_be_divided_is_refused_with_what_can);
    RUN(a_process_that_is_killed_ends_the_step_of_the_others);
    return check_end();
}
