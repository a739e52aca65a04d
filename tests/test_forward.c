/* tests/test_forward.c - the forward pass against the logits of transformers, and against itself:
 * batch, chunks, blocks, threads and shared prefixes change no byte. */
#include "runtime/forward.h"
#include "tests/check.h"
#include "tests/rig.h"

#include <stdio.h>
#include <stdlib.h>

enum { T = 32, GREEDY = 16, MAX_V = 512 };

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

static const char *const archs[] = {
    "llama2-mha",  "llama3-gqa", "llama-linear-rope", "llama-yarn", "llama-dynamic-ntk", "qwen2",
    "mistral-swa", "qwen3",      "llama-128",
};

static bool open_arch(rig *r, const char *name, rig_opts o)
{
    char path[128];
    snprintf(path, sizeof path, "tests/golden/arch/%s", name);
    return rig_open(r, path, o);
}

typedef struct {
    st_file file;
    int32_t ids[2][T], greedy[2][T + GREEDY];
    float margin[2][GREEDY];
    const uint8_t *logits; /* [2, T, V] float32, unaligned */
    int64_t V;
} golden;

static bool golden_open(golden *g, const char *name)
{
    char path[128];
    lq_err err = { "" };
    snprintf(path, sizeof path, "tests/golden/arch/%s/expected.safetensors", name);
    lq_status s = st_open(&g->file, path, &err);
    CHECK(!s, "%s", err.msg);
    if (s) return false;
    const st_tensor *l = st_find(&g->file, "logits");
    memcpy(g->ids, st_find(&g->file, "input_ids")->data, sizeof g->ids);
    memcpy(g->greedy, st_find(&g->file, "greedy")->data, sizeof g->greedy);
    memcpy(g->margin, st_find(&g->file, "margin")->data, sizeof g->margin);
    g->logits = l->data;
    g->V = l->shape[2];
    return true;
}

static float golden_logit(const golden *g, int64_t i)
{
    float x;
    memcpy(&x, g->logits + (size_t)i * 4, 4);
    return x;
}

/* Largest difference over largest |reference|, in units of 1e-9. */
static double distance(const golden *g, int row, const float *got)
{
    double diff = 0, top = 0;
    for (int64_t i = 0; i < T * g->V; i++) {
        double want = (double)golden_logit(g, row * T * g->V + i);
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
    for (size_t i = 0; i < LQ_COUNT(archs); i++) {
        golden g;
        rig r;
        bool ok = open_arch(&r, archs[i], (rig_opts){ .threads = 2 });
        if (ok && golden_open(&g, archs[i])) {
            kv_seq s[2];
            fwd_item items[2];
            const float *logits;
            lq_err err = { "" };
            for (int b = 0; b < 2; b++) {
                kv_seq_init(&s[b]);
                CHECK(!kv_reserve(r.kv, &s[b], T, &err), "%s", err.msg);
                items[b] = (fwd_item){ .seq = &s[b], .ids = g.ids[b], .n = T };
            }
            lq_status st = fwd_step(r.f, items, 2, &logits, &err);
            CHECK(!st, "%s: %s", archs[i], err.msg);
            for (int b = 0; b < 2 && !st; b++) {
                double d = distance(&g, b, logits + b * T * g.V);
                CHECK(d <= 5e-6, "%s: row %d differs by %.2g of the largest logit", archs[i], b, d);
                kv_seq_free(r.kv, &s[b]);
            }
            st_close(&g.file);
        }
        rig_close(&r);
    }
}

TEST(greedy_tokens_are_those_of_transformers)
{
    for (size_t i = 0; i < LQ_COUNT(archs); i++) {
        golden g;
        if (strcmp(archs[i], "llama-dynamic-ntk") == 0) continue; /* reference is one pass each */
        rig r;
        bool ok = open_arch(&r, archs[i], (rig_opts){ .threads = 1 });
        if (ok && golden_open(&g, archs[i])) {
            for (int b = 0; b < 2; b++) {
                kv_seq s;
                const float *logits;
                kv_seq_init(&s);
                for (int t = 0; t < GREEDY; t++) {
                    int64_t pos = t ? T + t - 1 : 0, n = t ? 1 : T;
                    fwd_item it = { .seq = &s,
                                    .ids = g.greedy[b] + pos,
                                    .n = n,
                                    .pos0 = pos,
                                    .logits_from = n - 1 };
                    CHECK(!kv_reserve(r.kv, &s, pos + n, NULL), "reserve");
                    CHECK(!fwd_step(r.f, &it, 1, &logits, NULL), "step");
                    int32_t got = argmax(logits, g.V);
                    if (g.margin[b][t] > 0.02f)
                        CHECK(got == g.greedy[b][T + t], "%s: row %d token %d: %d", archs[i], b, t,
                              got);
                }
                kv_seq_free(r.kv, &s);
            }
            st_close(&g.file);
        }
        rig_close(&r);
    }
}

/* Logits of both prompts, fed in chunks; with `mixed`, the second runs `lag` tokens behind the
 * first in the same batches, as a prefill beside a decode. */
typedef struct {
    const char *why;
    int64_t chunk, chunk2;
    int threads, block_size;
    bool alone; /* the second prompt after the first, in batches of its own */
} cut;

static void run_cut(rig *r, const golden *g, const cut *c, float *out)
{
    kv_seq s[2];
    int64_t at[2] = { 0, 0 }, chunk[2] = { c->chunk, c->chunk2 };
    kv_seq_init(&s[0]);
    kv_seq_init(&s[1]);
    while (at[0] < T || at[1] < T) {
        fwd_item items[2];
        int which[2], n = 0;
        for (int b = 0; b < 2; b++) {
            if (at[b] == T || (c->alone && b == 1 && at[0] < T)) continue;
            int64_t k = T - at[b] < chunk[b] ? T - at[b] : chunk[b];
            CHECK(!kv_reserve(r->kv, &s[b], at[b] + k, NULL), "reserve");
            which[n] = b;
            items[n++] = (fwd_item){
                .seq = &s[b], .ids = g->ids[b] + at[b], .n = k, .pos0 = at[b], .logits_from = 0
            };
        }
        const float *logits;
        lq_err err = { "" };
        lq_status st = fwd_step(r->f, items, n, &logits, &err);
        CHECK(!st, "%s: %s", c->why, err.msg);
        if (st) break;
        for (int i = 0; i < n; i++) {
            int64_t words = items[i].n * g->V;
            memcpy(out + (which[i] * T + at[which[i]]) * g->V, logits, (size_t)words * 4);
            logits += words;
            at[which[i]] += items[i].n;
        }
    }
    kv_seq_free(r->kv, &s[0]);
    kv_seq_free(r->kv, &s[1]);
}

TEST(batch_chunks_blocks_and_threads_change_no_byte)
{
    static const cut cuts[] = {
        { "whole prompts in one batch", T, T, 1, 16, false },
        { "token by token", 1, 1, 1, 16, false },
        { "alone, token by token", 1, 1, 1, 16, true },
        { "chunks of 3", 3, 3, 1, 16, false },
        { "chunks of 7, two threads", 7, 7, 2, 16, false },
        { "whole prompts, three threads", T, T, 3, 16, false },
        { "alone, chunks of 32", T, T, 2, 16, true },
        { "a prefill beside a decode", 1, 19, 2, 16, false },
        { "blocks of 8", 5, 11, 2, 8, false },
        { "blocks of 32", 13, 2, 1, 32, false },
    };
    static const struct {
        const char *arch;
        mm_acts acts;
        kv_dtype kv;
    } t[] = {
        { "llama-128", MM_F32, KV_F32 }, { "llama-128", MM_I8, KV_F16 },
        { "qwen3", MM_BF16, KV_BF16 },   { "mistral-swa", MM_F32, KV_I8 },
        { "llama2-mha", MM_I8, KV_F32 },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        golden g;
        if (!golden_open(&g, t[i].arch)) continue;
        size_t bytes = (size_t)(2 * T * g.V) * 4;
        float *want = malloc(bytes), *got = malloc(bytes);
        for (size_t k = 0; k < LQ_COUNT(cuts) && want && got; k++) {
            rig r;
            bool ok = open_arch(&r, t[i].arch,
                                (rig_opts){ .threads = cuts[k].threads,
                                            .block_size = cuts[k].block_size,
                                            .acts = t[i].acts,
                                            .kv = t[i].kv });
            if (ok) run_cut(&r, &g, &cuts[k], k ? got : want);
            CHECK(!k || memcmp(want, got, bytes) == 0, "%s, activations %d, KV %s: %s", t[i].arch,
                  (int)t[i].acts, kv_dtype_text(t[i].kv), cuts[k].why);
            rig_close(&r);
        }
        double d = want ? distance(&g, 0, want) : 1;
        CHECK(d < 0.05, "%s: narrow arithmetic strays by %.2g", t[i].arch, d);
        free(want);
        free(got);
        st_close(&g.file);
    }
}

TEST(a_step_allocates_nothing)
{
    golden g;
    rig r;
    if (open_arch(&r, "llama-128", (rig_opts){ .threads = 2, .acts = MM_I8, .kv = KV_F16 }) &&
        golden_open(&g, "llama-128")) {
        kv_seq s;
        const float *logits;
        kv_seq_init(&s);
        CHECK(!kv_reserve(r.kv, &s, 1, NULL), "reserve"); /* takes the table */
        int before = atomic_load(&allocations);
        for (int64_t at = 0, n = 20; at < T; at += n, n = 1) {
            fwd_item it = {
                .seq = &s, .ids = g.ids[0] + at, .n = n, .pos0 = at, .logits_from = n - 1
            };
            CHECK(!kv_reserve(r.kv, &s, at + n, NULL) && !fwd_step(r.f, &it, 1, &logits, NULL),
                  "step at %d", (int)at);
            kv_register(r.kv, &s, g.ids[0], at + n, NULL);
        }
        int after = atomic_load(&allocations);
        CHECK(before == after, "%d allocations", after - before);
        CHECK(before > 0 || !COUNTED, "none was counted at all");
        kv_seq_free(r.kv, &s);
        st_close(&g.file);
    }
    rig_close(&r);
}

TEST(a_shared_prefix_changes_no_byte)
{
    golden g;
    rig r;
    bool ok = open_arch(&r, "llama-128",
                        (rig_opts){ .block_size = 8, .kv = KV_F16, .prefix_cache = true });
    if (ok && golden_open(&g, "llama-128")) {
        float want[MAX_V];
        for (int turn = 0; turn < 2; turn++) {
            kv_seq s;
            const float *logits = NULL;
            kv_seq_init(&s);
            int64_t taken = kv_match_prefix(r.kv, &s, g.ids[0], T, NULL);
            CHECK(taken == (turn ? 24 : 0), "turn %d took %d", turn, (int)taken);
            fwd_item it = { .seq = &s,
                            .ids = g.ids[0] + taken,
                            .n = T - taken,
                            .pos0 = taken,
                            .logits_from = T - taken - 1 };
            CHECK(!kv_reserve(r.kv, &s, T, NULL) && !fwd_step(r.f, &it, 1, &logits, NULL), "step");
            kv_register(r.kv, &s, g.ids[0], T, NULL);
            if (turn) CHECK(memcmp(want, logits, (size_t)g.V * 4) == 0, "from the cache");
            memcpy(want, logits, (size_t)g.V * 4);
            kv_seq_free(r.kv, &s);
        }
        st_close(&g.file);
    }
    rig_close(&r);
}

typedef struct {
    int n;
    arch_role roles[32];
    int64_t K[32];
    double sum;
} tap_log;

static void log_tap(void *user, arch_role role, int64_t expert, const float *x, int64_t ldx,
                    int64_t n, int64_t K)
{
    (void)expert;
    tap_log *l = user;
    if (l->n == 32) return;
    l->roles[l->n] = role;
    l->K[l->n++] = K;
    for (int64_t t = 0; t < n; t++)
        for (int64_t k = 0; k < K; k++)
            l->sum += fabs((double)x[t * ldx + k]);
}

TEST(layers_over_windows_give_the_bytes_of_a_step)
{
    static const char *const some[] = { "llama-128", "mistral-swa", "qwen3", "llama-linear-rope" };
    for (size_t i = 0; i < LQ_COUNT(some); i++) {
        golden g;
        rig r;
        bool ok = open_arch(&r, some[i], (rig_opts){ .threads = 2 });
        if (!ok || !golden_open(&g, some[i])) continue;
        const arch_config *c = r.m.cfg;
        lq_arena a;
        lq_err err = { "" };
        size_t rows = 2 * T * sizeof(float), head = mm_scratch_bytes(2 * T, c->hidden, 1, 2);
        CHECK(!lq_arena_init(
                  &a, rows * (size_t)(c->hidden + c->vocab) + head + fwd_layer_scratch(c, 2 * T, 2),
                  &err),
              "%s", err.msg);
        float *x = lq_push(&a, rows * (size_t)c->hidden);
        float *got = lq_push(&a, rows * (size_t)c->vocab);
        float *want = malloc(rows * (size_t)c->vocab);
        CHECK(!fwd_embed(&r.m, x, g.ids[0], 2, T, MM_F32, &a, r.p, &err), "%s", err.msg);
        tap_log log = { 0 };
        fwd_tap tap = { log_tap, &log };
        for (int64_t l = 0; l < c->layers; l++) {
            lq_arena layer = { 0 };
            model_layer w;
            CHECK(!model_load_layer(&w, &r.m, l, &layer, r.p, &err), "%s", err.msg);
            lq_status s = fwd_layer(c, &w, l, x, 2, T, MM_F32, l ? NULL : &tap, &a, r.p, &err);
            CHECK(!s, "%s: %s", some[i], err.msg);
            lq_arena_free(&layer);
        }
        k_rmsnorm(x, c->hidden, x, c->hidden, r.m.final_norm.w, c->w.norm_offset, 2 * T, c->hidden,
                  (float)c->norm_eps);
        mm_out out = { .w = &r.m.head.w, .y = got, .ldy = c->vocab };
        mm_run(&out, 1, x, c->hidden, 2 * T, MM_F32, &a, r.p);
        run_cut(&r, &g, &(cut){ "step", T, T, 2, 16, false }, want);
        CHECK(memcmp(want, got, rows * (size_t)c->vocab) == 0, "%s", some[i]);
        static const arch_role order[] = { R_Q, R_K, R_V, R_O, R_GATE, R_UP, R_DOWN };
        CHECK(log.n == (int)LQ_COUNT(order) && log.sum > 0, "%s: %d taps", some[i], log.n);
        for (int k = 0; k < log.n; k++)
            CHECK(log.roles[k] == order[k] && log.K[k] == (order[k] == R_O ? c->heads * c->head_dim
                                                           : order[k] == R_DOWN ? c->ffn
                                                                                : c->hidden),
                  "%s: tap %d", some[i], k);
        free(want);
        lq_arena_free(&a);
        st_close(&g.file);
        rig_close(&r);
    }
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
    RUN(logits_agree_with_transformers);
    RUN(greedy_tokens_are_those_of_transformers);
    RUN(batch_chunks_blocks_and_threads_change_no_byte);
    RUN(a_step_allocates_nothing);
    RUN(a_shared_prefix_changes_no_byte);
    RUN(layers_over_windows_give_the_bytes_of_a_step);
    RUN(a_wrong_batch_is_refused);
    return check_end();
}
