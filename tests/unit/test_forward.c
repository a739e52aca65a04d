/* tests/unit/test_forward.c - the forward pass against the logits of transformers, and against itself:
 * batch, chunks, blocks, threads and shared prefixes change no byte. */
#include "calib/sites.h"
#include "runtime/forward/forward.h"
#include "tests/support/archs.h"
#include "tests/support/check.h"
#include "tests/support/passes.h"

#include <stdio.h>
#include <stdlib.h>

/* Counts allocations, where the C library lets us and no sanitizer has its own allocator there. */
#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTED 0
#elif defined(__has_feature)
#define COUNTED !(__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define COUNTED 1
#endif
static atomic_int allocations;
#if COUNTED
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void *malloc(size_t n)
{
    allocations++;
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    allocations++;
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    allocations++;
    return __libc_realloc(p, n);
}
void *aligned_alloc(size_t align, size_t n)
{
    allocations++;
    return __libc_memalign(align, n);
}
#endif

static arch_list archs;

static float golden_logit(const golden *g, int64_t i)
{
    float x;
    memcpy(&x, g->logits + (size_t)i * 4, 4);
    return x;
}

/* Largest difference over largest |reference| of one prompt's logits. */
static double distance(const golden *g, int64_t b, const float *got)
{
    double diff = 0, top = 0;
    for (int64_t i = 0; i < g->T * g->V; i++) {
        double want = (double)golden_logit(g, b * g->T * g->V + i);
        diff = fmax(diff, fabs((double)got[i] - want));
        top = fmax(top, fabs(want));
    }
    return diff / top;
}

static int32_t argmax(const float *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return (int32_t)best;
}

TEST(logits_agree_with_transformers)
{
    for (int i = 0; i < archs.n; i++) {
        golden g;
        rig r;
        float *got = open_both(&r, &g, archs.name[i], (rig_opts){ .threads = 2 });
        for (int64_t b = 0; got && b < g.B; b++) {
            double d = distance(&g, b, got + b * g.T * g.V);
            CHECK(d <= 5e-6, "%s: prompt %d differs by %.2g of the largest logit", archs.name[i],
                  (int)b, d);
            if (getenv("SHOW")) printf("%-20s %d %.2g\n", archs.name[i], (int)b, d);
        }
        close_both(&r, &g, got);
    }
}

TEST(greedy_tokens_are_those_of_transformers)
{
    for (int i = 0; i < archs.n; i++) {
        golden g;
        rig r;
        float *got = open_both(&r, &g, archs.name[i], (rig_opts){ .threads = 1 });
        /* The reference computed every length anew, which matters where angles depend on it. */
        bool anew =
            got && r.m.cfg->w.pos == POS_ROPE && arch_rope_by_length(&r.m.cfg->rope[ROPE_MAIN]);
        for (int64_t b = 0; got && g.has_greedy && b < g.B; b++) {
            kv_seq s;
            const float *logits;
            kv_seq_init(&s);
            for (int t = 0; t < GREEDY; t++) {
                int64_t len = g.T + t, pos = t && !anew ? len - 1 : 0;
                if (anew) kv_seq_free(r.kv, &s);
                fwd_item it = { .seq = &s,
                                .ids = g.greedy[b] + pos,
                                .n = len - pos,
                                .pos0 = pos,
                                .logits_from = len - pos - 1 };
                CHECK(!kv_reserve(r.kv, &s, len, NULL), "reserve");
                CHECK(!fwd_step(r.f, &it, 1, &logits, NULL), "step");
                int32_t id = argmax(logits, g.V);
                if (g.margin[b][t] > 0.02f)
                    CHECK(id == g.greedy[b][len], "%s: prompt %d token %d: %d", archs.name[i],
                          (int)b, t, id);
            }
            kv_seq_free(r.kv, &s);
        }
        close_both(&r, &g, got);
    }
}

static const cut cuts[] = {
    { "token by token", 1, 1, 1, 16, false },
    { "alone, token by token", 1, 1, 1, 16, true },
    { "chunks of 3", 3, 3, 1, 16, false },
    { "chunks of 7, two threads", 7, 7, 2, 16, false },
    { "whole prompts, three threads", 0, 0, 3, 16, false },
    { "alone, chunks of 32", 32, 32, 2, 16, true },
    { "a prefill beside a decode", 1, 19, 2, 16, false },
    { "blocks of 8", 5, 11, 2, 8, false },
    { "blocks of 32", 13, 2, 1, 32, false },
};

/* One pass against every cut. */
static void check_cuts(const char *name, mm_acts acts, kv_types kv)
{
    golden g;
    rig r;
    float *want = open_both(&r, &g, name, (rig_opts){ .acts = acts, .kv = kv });
    size_t bytes = (size_t)(g.B * g.T * g.V) * 4;
    float *got = malloc(bytes);
    for (size_t k = 0; k < LQ_COUNT(cuts) && want && got; k++) {
        rig other;
        rig_opts o = {
            .threads = cuts[k].threads, .block_size = cuts[k].block_size, .acts = acts, .kv = kv
        };
        if (open_arch(&other, name, o)) run_cut(&other, &g, &cuts[k], got);
        CHECK(memcmp(want, got, bytes) == 0, "%s, activations %d, KV %s: %s", name, (int)acts,
              kv_types_text(kv), cuts[k].why);
        rig_close(&other);
    }
    /* Where there are experts, a rounding may choose others. */
    double d = want ? distance(&g, 0, want) : 1;
    /* Half a step of 4 bits, or of a fraction of 3, is 1/16: 16 times that of 8 bits. */
    const bool few = kv_of(kv, false) == KV_I4 || kv_of(kv, false) == KV_F8;
    double most = few ? 16 * 0.05 : 0.05;
    CHECK(d < most || r.m.cfg->experts, "%s: narrow arithmetic strays by %.2g", name, d);
    free(got);
    close_both(&r, &g, want);
}

TEST(batch_chunks_blocks_and_threads_change_no_byte)
{
    for (int i = 0; i < archs.n; i++)
        check_cuts(archs.name[i], MM_F32, KV_F32);
    check_cuts("llama-128", MM_I8, KV_F16);
    check_cuts("qwen3", MM_BF16, KV_BF16);
    check_cuts("mistral-swa", MM_F32, KV_I8);
    check_cuts("llama2-mha", MM_I8, KV_F32);
    check_cuts("qwen2-moe-shared", MM_I8, KV_F16);
    check_cuts("deepseek-v3", MM_I8, KV_I8);
    check_cuts("qwen3", MM_I8, KV_I4);
    check_cuts("mistral-swa", MM_F32, KV_F8);
    check_cuts("qwen3", MM_I8, kv_apart(KV_I8, KV_I4));
    check_cuts("mistral-swa", MM_BF16, kv_apart(KV_BF16, KV_I8));
    check_cuts("llama-128", MM_F32, kv_apart(KV_I8, KV_F32));
}

/* Steps that want the logits of some rows, or of none, against one that wants them all. */
TEST(rows_without_logits_change_no_byte)
{
    for (int i = 0; i < archs.n; i++) {
        golden g;
        rig r;
        float *want = open_both(&r, &g, archs.name[i], (rig_opts){ .threads = 2 });
        /* logits of the last row of the 2nd and 3rd step */
        const int64_t ends[] = { 9, 10, g.T - 1 };
        kv_seq s[MAX_B];
        for (int64_t b = 0; want && b < g.B; b++)
            kv_seq_init(&s[b]);
        for (size_t k = 0; want && k < LQ_COUNT(ends); k++) {
            int64_t from = k ? ends[k - 1] : 0;
            fwd_item items[MAX_B];
            for (int64_t b = 0; b < g.B; b++) {
                items[b] = (fwd_item){ .seq = &s[b],
                                       .ids = g.ids[b] + from,
                                       .n = ends[k] - from,
                                       .pos0 = from,
                                       .logits_from = ends[k] - from - (k > 0),
                                       .seq_len = g.T };
                CHECK(!kv_reserve(r.kv, &s[b], ends[k], NULL), "reserve");
            }
            const float *logits;
            CHECK(!fwd_step(r.f, items, (int)g.B, &logits, NULL), "step");
            for (int64_t b = 0; b < g.B && k; b++)
                CHECK(memcmp(logits + b * g.V, want + (b * g.T + ends[k] - 1) * g.V,
                             (size_t)g.V * 4) == 0,
                      "%s: prompt %d after %d ids", archs.name[i], (int)b, (int)ends[k]);
        }
        for (int64_t b = 0; want && b < g.B; b++)
            kv_seq_free(r.kv, &s[b]);
        close_both(&r, &g, want);
    }
}

TEST(learned_positions_end_with_their_table)
{
    static const struct {
        const char *arch;
        bool ends;
    } t[] = { { "gpt2", true },          { "opt", true },
              { "gpt-neo-local", true }, { "xglm-sinusoidal", false },
              { "llama2-mha", false },   { "mpt-alibi", false } };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        rig r;
        int32_t id = 5;
        kv_seq s;
        kv_seq_init(&s);
        if (open_arch(&r, t[i].arch, (rig_opts){ .threads = 1 }) &&
            !kv_reserve(r.kv, &s, 130, NULL)) {
            for (int64_t pos = 127; pos < 129; pos++) {
                fwd_item it = { .seq = &s, .ids = &id, .n = 1, .pos0 = pos };
                const float *logits;
                lq_err err = { "" };
                lq_status want = t[i].ends && pos == 128 ? LQ_EVALUE : LQ_OK;
                lq_status st = fwd_step(r.f, &it, 1, &logits, &err);
                CHECK(st == want && !!strstr(err.msg, "learned positions") == (want != LQ_OK),
                      "%s at %d: %s", t[i].arch, (int)pos, err.msg);
            }
            kv_seq_free(r.kv, &s);
        }
        rig_close(&r);
    }
}

static void step_and_count(const char *name)
{
    golden g;
    rig r;
    if (open_arch(&r, name, (rig_opts){ .threads = 2, .acts = MM_I8, .kv = KV_F16 }) &&
        golden_open(&g, name)) {
        kv_seq s;
        const float *logits;
        kv_seq_init(&s);
        CHECK(!kv_reserve(r.kv, &s, 1, NULL), "reserve"); /* takes the table */
        int before = atomic_load(&allocations);
        for (int64_t at = 0, n = 20; at < g.T; at += n, n = 1) {
            fwd_item it = {
                .seq = &s, .ids = g.ids[0] + at, .n = n, .pos0 = at, .logits_from = n - 1
            };
            CHECK(!kv_reserve(r.kv, &s, at + n, NULL) && !fwd_step(r.f, &it, 1, &logits, NULL),
                  "step at %d", (int)at);
            kv_register(r.kv, &s, g.ids[0], at + n, NULL);
        }
        int after = atomic_load(&allocations);
        CHECK(before == after, "%s: %d allocations", name, after - before);
        CHECK(before > 0 || !COUNTED, "none was counted at all");
        kv_seq_free(r.kv, &s);
        st_close(&g.file);
    }
    rig_close(&r);
}

TEST(a_step_allocates_nothing)
{
    step_and_count("llama-128");
    step_and_count("qwen2-moe-shared");
    step_and_count("deepseek-v2-mla");
}

/* taken: tokens of the first prompt that the second turn finds. */
static void share_prefix(const char *name, int64_t taken_again)
{
    golden g;
    rig r;
    bool ok =
        open_arch(&r, name, (rig_opts){ .block_size = 8, .kv = KV_F16, .prefix_cache = true });
    if (ok && golden_open(&g, name)) {
        float want[MAX_V];
        for (int turn = 0; turn < 2; turn++) {
            kv_seq s;
            const float *logits = NULL;
            kv_seq_init(&s);
            int64_t taken = kv_match_prefix(r.kv, &s, g.ids[0], g.T, NULL);
            CHECK(taken == (turn ? taken_again : 0), "%s: turn %d took %d", name, turn, (int)taken);
            fwd_item it = { .seq = &s,
                            .ids = g.ids[0] + taken,
                            .n = g.T - taken,
                            .pos0 = taken,
                            .logits_from = g.T - taken - 1 };
            CHECK(!kv_reserve(r.kv, &s, g.T, NULL) && !fwd_step(r.f, &it, 1, &logits, NULL),
                  "step");
            kv_register(r.kv, &s, g.ids[0], g.T, NULL);
            if (turn) CHECK(memcmp(want, logits, (size_t)g.V * 4) == 0, "%s: from the cache", name);
            memcpy(want, logits, (size_t)g.V * 4);
            kv_seq_free(r.kv, &s);
        }
        st_close(&g.file);
    }
    rig_close(&r);
}

TEST(a_shared_prefix_changes_no_byte)
{
    share_prefix("llama-128", 24);
    share_prefix("qwen3-next", 24);
    share_prefix("lfm2", 24);
    share_prefix("mamba2", 24);
    share_prefix("mamba", 16);
    share_prefix("jamba", 16);
    share_prefix("nemotron-h", 24);
    share_prefix("falcon-h1", 16);
    share_prefix("kimi-linear", 16);
}

typedef struct {
    int n;
    arch_role roles[32];
    int64_t K[32];
    double sums[32], sum; /* of magnitudes: of each, of all */
} tap_log;

static void log_tap(void *user, arch_role role, int64_t expert, const float *x, int64_t ldx,
                    int64_t n, int64_t K)
{
    tap_log *l = user;
    if (l->n == 32 || expert >= 0) return; /* experts: test_moe.c */
    double sum = 0;
    for (int64_t t = 0; t < n; t++)
        for (int64_t k = 0; k < K; k++)
            sum += fabs((double)x[t * ldx + k]);
    l->roles[l->n] = role;
    l->sums[l->n] = sum;
    l->K[l->n++] = K;
    l->sum += sum;
}

static int64_t widest(const arch_config *c)
{
    int64_t most = c->hidden > c->ffn ? c->hidden : c->ffn;
    for (int64_t i = 0; i < c->layers; i++)
        for (fwd_point at = FWD_AT_QKV; at < FWD_AT_END && fwd_has_points(c, i); at++) {
            const int64_t n = fwd_point_width(c, i, at);
            most = n > most ? n : most;
        }
    return most;
}

/* The roles whose inputs a layer shows, in order. */
static int expected_taps(const arch_config *c, const model_layer *l, arch_role *out)
{
    static const arch_role order[] = { R_QKV,         R_Q,         R_K,
                                       R_V,           R_V_LATE,    R_ATTN_GATE,
                                       R_REL,         R_Q_A,       R_KV_A,
                                       R_HEAD_GATE,   R_KV_B,      R_Q_B,
                                       R_MIX_IN,      R_MIX_Q,     R_MIX_K,
                                       R_MIX_V,       R_MIX_GATE,  R_MIX_GATE_DOWN,
                                       R_MIX_BA,      R_MIX_B,     R_MIX_A,
                                       R_MIX_A_DOWN,  R_O_A,       R_O,
                                       R_MIX_OUT,     R_GATE,      R_UP,
                                       R_GATE_UP,     R_DOWN,      R_ROUTER,
                                       R_SHARED_GATE, R_SHARED_UP, R_SHARED_GATE_UP,
                                       R_SHARED_DOWN };
    int n = 0;
    for (size_t i = 0; i < LQ_COUNT(order); i++)
        if (l->lin[order[i]].present) out[n++] = order[i];
    for (int64_t i = 1; i < c->shared_experts && l->lin[R_SHARED_DOWN].present; i++)
        out[n++] = R_SHARED_DOWN; /* each expert's */
    return n;
}

static void check_taps(const char *name, const arch_config *c, const model_layer *l, int64_t layer,
                       const tap_log *log)
{
    arch_role want[16];
    int n = expected_taps(c, l, want);
    CHECK(log->n == n && (log->sum > 0 || !n), "%s: %d taps, expected %d", name, log->n, n);
    for (int k = 0; k < n && k < log->n; k++) {
        int64_t N, K;
        arch_role_shape(arch_at(c, layer), want[k], &N, &K);
        if (want[k] == R_ROUTER) K = arch_expert_width(c); /* what is sent to experts */
        CHECK(log->roles[k] == want[k] && log->K[k] == K, "%s: tap %d", name, k);
    }
}

/* The layer in stages, x [T, hidden] to the end: each shows what the tap of a whole pass sees. The last of every other
 * layer begins where the MLP does. */
static void run_stages(const rig *r, const golden *g, const model_layer *w, int64_t layer, float *x,
                       const tap_log *one, lq_arena *a)
{
    const arch_config *c = r->m.cfg;
    const int64_t n = g->B * g->T;
    const size_t mark = lq_arena_mark(a);
    float *u = lq_push(a, (size_t)(n * widest(c)) * sizeof *u);
    lq_err err = { "" };
    fwd_point at = fwd_first_point(c, layer);
    for (fwd_point before = at;; before = at, at = fwd_next_point(c, layer, at)) {
        if (at == FWD_AT_END && !fwd_points_to_end(c, layer)) break;
        const bool skip = at == FWD_AT_END && layer % 2 == 0 && fwd_has_point(c, layer, FWD_AT_MLP);
        fwd_point from = skip ? FWD_AT_MLP : before;
        if (from == FWD_AT_Q_B || from == FWD_AT_KV_B) from = FWD_AT_QKV;
        CHECK(!fwd_layer_to(c, w, layer, from, at, x, u, g->B, g->T, MM_F32, NULL, a, r->p, &err),
              "%s", err.msg);
        if (at == FWD_AT_END) break;
        double sum = 0, want = NAN;
        for (int64_t i = 0; i < n * fwd_point_width(c, layer, at); i++)
            sum += fabs((double)u[i]);
        for (int i = 0; i < one->n; i++)
            if (cal_point_of(c, layer, one->roles[i]) == at) want = one->sums[i];
        CHECK(sum == want, "layer %lld, point %d: inputs of size %g, in one pass %g",
              (long long)layer, (int)at, sum, want);
    }
    lq_arena_reset(a, mark);
}

static void norm_rows(const arch_config *c, const model_vector *v, float *x, int64_t n, int64_t W)
{
    if (v->w && c->w.norm == NORM_RMS)
        k_rmsnorm(x, W, x, W, v->w, v->offset, n, W, v->eps);
    else if (v->w)
        k_layernorm(x, W, x, W, v->w, v->bias, v->offset, n, W, v->eps);
}

/* The head over x [T, hidden], which it overwrites; scratch has room for both matmuls. */
static void head(const rig *r, float *logits, float *x, int64_t n, lq_arena *a)
{
    const model *m = &r->m;
    const arch_config *c = m->cfg;
    const int64_t H = c->hidden;
    norm_rows(c, &m->final_norm, x, n, H);
    size_t mark = lq_arena_mark(a);
    float *e = x;
    if (m->proj_out.present) {
        e = lq_push(a, (size_t)(n * c->embed_dim) * sizeof *e);
        mm_out out = { .w = &m->proj_out.w, .y = e, .ldy = c->embed_dim };
        mm_run(&out, 1, x, H, n, MM_F32, a, r->p);
    }
    if (m->head_norm.w) k_act(e, n * c->embed_dim, ACT_GELU);
    norm_rows(c, &m->head_norm, e, n, c->embed_dim);
    mm_out out = { .w = &m->head.w, .y = logits, .ldy = c->vocab, .bias = m->head.bias };
    mm_run(&out, 1, e, c->embed_dim, n, MM_F32, a, r->p);
    for (int64_t i = 0; m->head_factors && i < n * c->vocab; i++)
        logits[i] *= m->head_factors[i % c->vocab];
    if (c->logit_scale != 1) k_scale(logits, (float)c->logit_scale, n * c->vocab);
    if (c->final_softcap > 0) k_softcap(logits, (float)c->final_softcap, n * c->vocab);
    lq_arena_reset(a, mark);
}

TEST(layers_over_windows_and_in_stages_give_the_bytes_of_a_step)
{
    int staged[ARCH_N_MIXERS] = { 0 };
    for (int i = 0; i < archs.n; i++) {
        golden g;
        rig r;
        float *want = open_both(&r, &g, archs.name[i], (rig_opts){ .threads = 2 });
        if (!want) continue;
        const arch_config *c = r.m.cfg;
        const int64_t n = g.B * g.T;
        const size_t row = (size_t)n * sizeof(float);
        int32_t ids[MAX_B * MAX_T];
        for (int64_t b = 0; b < g.B; b++)
            memcpy(ids + b * g.T, g.ids[b], (size_t)g.T * sizeof *ids);
        lq_arena a;
        lq_err err = { "" };
        const int64_t state = fwd_state(c), floats = 2 * state + c->vocab + widest(c);
        CHECK(!lq_arena_init(&a, row * (size_t)floats + fwd_layer_scratch(c, n, 2) + 256, &err),
              "%s", err.msg);
        float *x = lq_push(&a, row * (size_t)state);
        float *again = lq_push(&a, row * (size_t)state);
        float *got = lq_push(&a, row * (size_t)c->vocab);
        CHECK(!fwd_embed(&r.m, x, ids, g.B, g.T, MM_F32, &a, r.p, &err), "%s", err.msg);
        for (int64_t l = 0; l < c->layers; l++) {
            lq_arena layer = { 0 };
            model_layer w;
            tap_log log = { 0 };
            fwd_tap tap = { .tap = log_tap, .user = &log };
            CHECK(!model_load_layer(&w, &r.m, l, &layer, r.p, &err), "%s", err.msg);
            memcpy(again, x, row * (size_t)state);
            lq_status s = fwd_layer(c, &w, l, x, g.B, g.T, MM_F32, &tap, NULL, &a, r.p, &err);
            CHECK(!s, "%s: %s", archs.name[i], err.msg);
            check_taps(archs.name[i], c, &w, l, &log);
            if (fwd_has_points(c, l)) {
                run_stages(&r, &g, &w, l, again, &log, &a);
                CHECK(!fwd_points_to_end(c, l) || memcmp(again, x, row * (size_t)state) == 0,
                      "%s: in stages", archs.name[i]);
                staged[c->layer[l].mixer]++;
            }
            lq_arena_free(&layer);
        }
        head(&r, got, x, n, &a);
        CHECK(memcmp(want, got, row * (size_t)c->vocab) == 0, "%s", archs.name[i]);
        lq_arena_free(&a);
        close_both(&r, &g, want);
    }
    static const arch_mixer kinds[] = { MIX_ATTENTION, MIX_DELTA, MIX_KDA,  MIX_MAMBA,
                                        MIX_SELECT,    MIX_LRU,   MIX_CONV, MIX_NONE };
    for (size_t i = 0; i < LQ_COUNT(kinds); i++)
        CHECK(staged[kinds[i]] > 0, "no layer of %s has points", arch_mixer_text(kinds[i]));
}

TEST(a_wrong_batch_is_refused)
{
    static int32_t ids[RIG_ROWS + 1], high[] = { 320 }, low[] = { -1 };
    static const struct {
        const char *why;
        const int32_t *ids;
        int64_t n, pos0, logits_from;
    } t[] = {
        { "no id", ids, 0, 0, 0 },
        { "more rows than the buffers", ids, RIG_ROWS + 1, 0, 0 },
        { "id at the vocabulary's end", high, 1, 0, 0 },
        { "negative id", low, 1, 0, 0 },
        { "negative position", ids, 1, -1, 0 },
        { "beyond what was reserved", ids, 40, 9, 40 },
        { "logits from a negative row", ids, 4, 0, -1 },
        { "logits from behind the end", ids, 4, 0, 5 },
    };
    rig r;
    bool ok = open_arch(&r, "llama2-mha", (rig_opts){ .threads = 1 });
    kv_seq s;
    kv_seq_init(&s);
    if (ok) CHECK(!kv_reserve(r.kv, &s, 48, NULL), "reserve");
    for (size_t i = 0; i < LQ_COUNT(t) && ok; i++) {
        const float *logits;
        lq_err err = { "" };
        fwd_item it = { .seq = &s,
                        .ids = t[i].ids,
                        .n = t[i].n,
                        .pos0 = t[i].pos0,
                        .logits_from = t[i].logits_from };
        lq_status st = fwd_step(r.f, &it, 1, &logits, &err);
        CHECK(st == LQ_EVALUE && err.msg[0], "%s: %s", t[i].why, lq_status_text(st));
    }
    fwd_ctx *f;
    fwd_opts o = { .max_rows = 4, .max_logits = 5, .max_seqs = 1 };
    CHECK(ok && fwd_open(&f, &r.m, r.kv, r.p, &o, NULL) == LQ_EVALUE, "more logits than rows");
    if (ok) kv_seq_free(r.kv, &s);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    archs_find(&archs, "expected.safetensors");
    RUN(logits_agree_with_transformers);
    RUN(greedy_tokens_are_those_of_transformers);
    RUN(batch_chunks_blocks_and_threads_change_no_byte);
    RUN(rows_without_logits_change_no_byte);
    RUN(learned_positions_end_with_their_table);
    RUN(a_step_allocates_nothing);
    RUN(a_shared_prefix_changes_no_byte);
    RUN(layers_over_windows_and_in_stages_give_the_bytes_of_a_step);
    RUN(a_wrong_batch_is_refused);
    return check_end();
}
