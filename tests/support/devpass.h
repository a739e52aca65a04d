/* tests/support/devpass.h - logits of golden checkpoints' prompts, cut into steps, on the CPU or on
 * devices; and their weights in other schemes. */
#ifndef LLMQ_TESTS_SUPPORT_DEVPASS_H
#define LLMQ_TESTS_SUPPORT_DEVPASS_H

#include "tests/support/emucounts.h"
#include "tests/support/fill.h"
#include "tests/support/passes.h"

/* Each sum of either side is within 3 K u of the exact one (kernels/mm.h), in orders of their own.
 * Between the CPU and transformers, which has the same arithmetic in other orders too, these
 * checkpoints stay within 5e-6 of the largest logit (test_forward.c). */
static const double ROUNDING = 5e-6;

/* Largest difference over largest |want|. */
static inline double apart(const float *got, const float *want, int64_t n)
{
    double diff = 0, top = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(got[i])) return HUGE_VAL;
        diff = fmax(diff, fabs((double)got[i] - (double)want[i]));
        top = fmax(top, fabs((double)want[i]));
    }
    return diff / top;
}

/* How the first ids of the two prompts are cut into steps. The emulation is slow: few rows. */
typedef struct {
    const char *why;
    int64_t first[2], then; /* rows of the first step, and of each later one */
    int block_size;
} steps;
enum { IDS = 9, INDEX_IDS = 16 /* three times what indexers choose */, WINDOW_IDS = 21 };
static const steps prefill_then_decode = { "a prefill of both, then decode", { 8, 5 }, 1, 16 };

/* Logits of ids 0..n-1 of both prompts, [2, n, V]; NULL: a check has failed. */
static inline float *run_steps(rig *r, const golden *g, const steps *c, int64_t n)
{
    kv_seq s[2];
    int64_t at[2] = { 0, 0 };
    float *out = calloc((size_t)(2 * n * g->V), sizeof *out);
    kv_seq_init(&s[0]);
    kv_seq_init(&s[1]);
    while (out && (at[0] < n || at[1] < n)) {
        fwd_item items[2];
        int which[2], k = 0;
        for (int b = 0; b < 2; b++) {
            int64_t rows = at[b] ? c->then : c->first[b];
            if (rows > n - at[b]) rows = n - at[b];
            if (rows == 0) continue;
            CHECK(!kv_reserve(r->kv, &s[b], at[b] + rows, NULL), "reserve");
            which[k] = b;
            items[k++] = (fwd_item){
                .seq = &s[b], .ids = g->ids[b] + at[b], .n = rows, .pos0 = at[b], .seq_len = n
            };
        }
        const float *logits;
        lq_err err = { "" };
        lq_status st = fwd_step(r->f, items, k, &logits, &err);
        CHECK(!st, "%s: %s", c->why, err.msg);
        if (st) break;
        for (int i = 0; i < k; i++, logits += items[i - 1].n * g->V) {
            memcpy(out + (which[i] * n + at[which[i]]) * g->V, logits,
                   (size_t)(items[i].n * g->V) * sizeof *out);
            at[which[i]] += items[i].n;
        }
    }
    kv_seq_free(r->kv, &s[0]);
    kv_seq_free(r->kv, &s[1]);
    return out;
}

/* The same from nothing; *n: how many floats. */
static inline float *cut_of(const char *name, rig_opts o, const steps *c, int64_t ids, int64_t *n)
{
    golden g;
    rig r;
    float *out = NULL;
    o.block_size = c->block_size;
    const bool ok = open_arch(&r, name, o);
    if (golden_open(&g, name)) {
        *n = 2 * ids * g.V;
        if (ok) out = run_steps(&r, &g, c, ids);
        st_close(&g.file);
    }
    rig_close(&r);
    return out;
}
/* A number of a role's own, whatever others there are. */
static inline uint64_t role_seed(arch_role r)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (const char *t = arch_role_text(r); *t; t++)
        h = (h ^ (uint8_t)*t) * 1099511628211u;
    return h;
}

/* Every linear of every layer, and the head, with codes of a scheme in place of its weights. */
static inline void fill_linears(model *m, void *user)
{
    const char *name = user;
    lq_err err = { "" };
    for (int64_t i = -1; i < m->cfg->layers; i++)
        for (arch_role r = R_HEAD; r < ARCH_N_ROLES; r++) {
            model_linear *l = i < 0 ? &m->head : &m->layers[i].lin[r];
            qt_scheme s = fill_scheme(name);
            if ((i < 0 && r != R_HEAD) || !l->present || fill_misfit(&s, l->w.K)) continue;
            if (s.kind == QT_I8_OUTLIER) s.n_out = l->w.K / 9 + 1;
            const qt_tensor t =
                fill_tensor(s, l->w.N, l->w.K, &m->arena, role_seed(r) + (uint64_t)i);
            CHECK(!mm_pack(&l->w, &t, &m->arena, NULL, &err), "%s", err.msg);
        }
}

/* n ids from position `at` of both prompts in one step, without the logits of all but the last. */
static inline emu_counts count_step(rig *r, const golden *g, kv_seq *s, int64_t at, int64_t n)
{
    fwd_item items[2];
    const float *logits;
    lq_err err = { "" };
    for (int b = 0; b < 2; b++) {
        CHECK(!kv_reserve(r->kv, &s[b], at + n, NULL), "reserve");
        items[b] = (fwd_item){
            .seq = &s[b], .ids = g->ids[b] + at, .n = n, .pos0 = at, .logits_from = n - 1
        };
    }
    const emu_counts before = emu_counted;
    CHECK(!fwd_step(r->f, items, 2, &logits, &err), "%s", err.msg);
    CHECK(isfinite(logits[0]) && isfinite(logits[2 * g->V - 1]), "no number");
    return counted_since(&before);
}

/* How far the device is from the CPU with the same options. */
static inline double device_apart(const char *name, rig_opts o, int64_t ids)
{
    int64_t n = 0, m;
    float *want = cut_of(name, o, &prefill_then_decode, ids, &n);
    o.device = true;
    float *got = cut_of(name, o, &prefill_then_decode, ids, &m);
    double d = want && got ? apart(got, want, n) : HUGE_VAL;
    free(want);
    free(got);
    return d;
}

#endif
