/* tests/unit/test_rotate.c - rotation: Hadamard matrices of every order, and models that answer alike.
 */
#include "base/hash.h"
#include "kernels/ops.h"
#include "quantize/transform/hadamard.h"
#include "quantize/transform/rotate.h"
#include "runtime/forward/forward.h"
#include "tests/support/archs.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- the matrices ---- */
static const struct {
    int64_t n, block, paley;
} orders[] = {
    { 1, 1, 1 },       { 2, 2, 1 },      { 3, 1, 1 },      { 4, 4, 1 },         { 6, 2, 1 },
    { 12, 12, 12 },    { 20, 20, 20 },   { 24, 24, 12 },   { 28, 28, 28 },      { 36, 36, 36 },
    { 40, 40, 20 },    { 44, 44, 44 },   { 48, 48, 12 },   { 52, 4, 1 },        { 60, 60, 60 },
    { 64, 64, 1 },     { 80, 80, 20 },   { 96, 96, 12 },   { 100, 20, 20 },     { 104, 104, 104 },
    { 180, 180, 180 }, { 576, 576, 36 }, { 896, 896, 28 }, { 2880, 2880, 180 },
};

TEST(rotations_are_orthogonal_and_spread_evenly)
{
    for (size_t k = 0; k < LQ_COUNT(orders); k++)
        for (int ones = 0; ones < 2; ones++) {
            const int64_t n = orders[k].n;
            lq_arena a = { 0 };
            lq_err err = { "" };
            had_rotation r;
            CHECK(!had_init(&r, n, 7, ones, &a, &err), "%s", err.msg);
            CHECK(r.block == orders[k].block && r.paley == orders[k].paley,
                  "%lld: blocks of %lld, Paley %lld", (long long)n, (long long)r.block,
                  (long long)r.paley);
            float *R = calloc((size_t)(n * n), sizeof *R); /* row i: unit vector i, times R */
            double worst = 0, sum = 0;
            for (int64_t i = 0; i < n; i++) {
                R[i * n + i] = 1;
                had_apply(&r, R + i * n, 1, 1);
            }
            const int64_t step = n > 200 ? 37 : 1; /* of the rows compared with all */
            for (int64_t i = 0; i < n; i += step)
                for (int64_t j = 0; j < n; j++) {
                    double dot = 0;
                    for (int64_t c = 0; c < n; c++)
                        dot += (double)R[i * n + c] * (double)R[j * n + c];
                    worst = fmax(worst, fabs(dot - (i == j)));
                }
            CHECK(worst < 1e-5, "%lld: rows are %.2g from orthonormal", (long long)n, worst);
            const double even = 1 / sqrt((double)r.block);
            for (int64_t i = 0; i < n * n && !ones; i++) {
                const double m = fabs((double)R[i]);
                CHECK(m < 1e-6 || fabs(m - even) < 1e-6, "%lld: an entry of %g", (long long)n, m);
            }
            for (int64_t j = 0; j < n && ones; j++) {
                sum = 0;
                for (int64_t i = 0; i < n; i++)
                    sum += (double)R[i * n + j];
                CHECK(fabs(sum - 1) < 1e-5, "%lld: ones do not stay", (long long)n);
            }
            free(R);
            lq_arena_free(&a);
        }
}

TEST(lanes_turn_as_vectors_do)
{
    enum { N = 48, LD = 5, LANES = 3 };
    for (int ones = 0; ones < 2; ones++) {
        lq_arena a = { 0 };
        had_rotation r;
        float x[N * LD], v[LANES][N];
        CHECK(!had_init(&r, N, 3, ones, &a, NULL), "init");
        for (int i = 0; i < N * LD; i++)
            x[i] = (float)((i * 7919) % 101) - 50;
        for (int l = 0; l < LANES; l++) {
            for (int i = 0; i < N; i++)
                v[l][i] = x[i * LD + l];
            had_apply(&r, v[l], 1, 1);
        }
        had_apply(&r, x, LD, LANES);
        for (int l = 0; l < LANES; l++)
            for (int i = 0; i < N; i++)
                CHECK(x[i * LD + l] == v[l][i], "lane %d, component %d", l, i);
        lq_arena_free(&a);
    }
}

/* ---- models ---- */
enum { IDS = 24 };

/* Logits of some ids [IDS, vocab]; NULL after a failed check. */
static float *logits_of(src_source *src, pool *p)
{
    lq_err err = { "" };
    model m;
    kv_cache *kv = NULL;
    fwd_ctx *f = NULL;
    lq_status s = model_load(&m, src, p, NULL, &err);
    kv_opts k = { .n_blocks = 8, .block_size = 16, .dtype = KV_F32 };
    fwd_opts o = { .acts = MM_F32, .max_rows = IDS, .max_logits = IDS, .max_seqs = 1 };
    if (!s) s = kv_open(&kv, m.cfg, &k, &err);
    if (!s) s = fwd_open(&f, &m, kv, p, &o, &err);
    kv_seq seq;
    kv_seq_init(&seq);
    int32_t ids[IDS];
    for (int i = 0; !s && i < IDS; i++)
        ids[i] = (int32_t)((i * 29 + 5) % m.cfg->vocab);
    fwd_item item = { .seq = &seq, .ids = ids, .n = IDS, .seq_len = IDS };
    const float *got;
    if (!s) s = kv_reserve(kv, &seq, IDS, &err);
    if (!s) s = fwd_step(f, &item, 1, &got, &err);
    CHECK(!s, "%s: %s", src_path(src), err.msg);
    const size_t n = s ? 0 : (size_t)(IDS * m.cfg->vocab);
    float *out = malloc(n * sizeof *out + 1);
    if (!s && out) memcpy(out, got, n * sizeof *out);
    if (kv) kv_seq_free(kv, &seq);
    fwd_close(f);
    kv_close(kv);
    model_free(&m);
    return out;
}

/* What stands on the residual stream of these does not commute with a rotation. */
static bool expect_refusal(const arch_config *c)
{
    return c->w.norm_after_add || arch_name_of(c, R_ATTN_POST_NORM) ||
           arch_name_of(c, R_MLP_POST_NORM) || arch_name_of(c, R_EMBED_NORM) ||
           c->w.pos == POS_SINUSOIDAL || arch_has_state(c) || c->w.q_gated ||
           arch_name_of(c, R_ATTN_GATE) || arch_name_of(c, R_O_NORM) || c->w.head_rows_1 ||
           arch_name_of(c, R_INDEX_IN_NORM) || c->norm_rank || c->w.diff ||
           arch_name_of(c, R_ATTN_JOIN) || arch_name_of(c, R_ATTN_JOIN_X_BY) || c->zero_experts ||
           (c->w.mla && c->n_sizes) || c->row->early == EARLY_EXPERTS;
}

static src_source *open_arch(const char *name)
{
    char path[160];
    lq_err err = { "" };
    src_source *src = NULL;
    snprintf(path, sizeof path, "tests/golden/arch/%s", name);
    CHECK(!src_open(&src, path, &(src_opts){ .need_config = true }, &err), "%s", err.msg);
    return src;
}

/* Largest difference of the logits over the largest of them; negative after a failed check. */
static double distance(const float *want, const float *got, int64_t n)
{
    double diff = 0, top = 0;
    for (int64_t k = 0; want && got && k < n; k++) {
        diff = fmax(diff, fabs((double)got[k] - (double)want[k]));
        top = fmax(top, fabs((double)want[k]));
    }
    return top > 0 ? diff / top : -1;
}

/* f32 throughout, or embedding and head in f16: those two roundings of 2^-12 alone, which fewer
 * numbers of a row even out less. */
static void check_rotated(const src_source *src, const float *want, const char *name, bool wide,
                          pool *p)
{
    rot_model *r = NULL;
    lq_err err = { "" };
    const rot_opts o = { .seed = 11, .wide = wide };
    CHECK(!rot_open(&r, src, &o, p, NULL, &err), "%s: %s", name, err.msg);
    if (!r) return;
    float *got = logits_of(rot_source(r), p);
    const double d = distance(want, got, IDS * src_config(src)->vocab);
    const double most = wide ? 1e-5 : src_config(src)->hidden < 32 ? 8e-3 : 4e-3;
    CHECK(d >= 0 && d <= most, "%s: logits move by %.2g", name, d);
    if (getenv("SHOW")) printf("%-24s %d %.2g\n", name, wide, d);
    free(got);
    rot_close(r);
}

TEST(a_rotated_model_gives_the_same_logits)
{
    pool *p = NULL;
    int refused = 0;
    CHECK(!pool_open(&p, 2, NULL), "pool");
    arch_list archs;
    archs_find(&archs, "config.json");
    for (int i = 0; i < archs.n; i++) {
        const char *name = archs.name[i];
        src_source *src = open_arch(name);
        if (!src) continue;
        const arch_config *c = src_config(src);
        if (expect_refusal(c)) {
            lq_err err = { "" };
            rot_model *r = NULL;
            const lq_status s = rot_open(&r, src, &(rot_opts){ .seed = 11 }, p, NULL, &err);
            CHECK(s == LQ_EUNSUPPORTED && strstr(err.msg, c->row->arch), "%s: %s", name, err.msg);
            rot_close(r);
            refused++;
        } else {
            float *want = logits_of(src, p);
            check_rotated(src, want, name, true, p);
            check_rotated(src, want, name, false, p);
            free(want);
        }
        src_close(src);
    }
    CHECK(refused > 0 && refused < archs.n / 2, "%d refused", refused);
    pool_close(p);
}

TEST(a_rotated_weight_differs_and_threads_change_no_byte)
{
    static const int threads[] = { 1, 2, 3, 8 };
    static const char *const names[] = { "llama3-gqa", "gpt2", "gpt-oss-sinks" };
    for (size_t i = 0; i < LQ_COUNT(names); i++) {
        src_source *src = open_arch(names[i]);
        lq_hash first = { { 0 } };
        for (size_t k = 0; src && k < LQ_COUNT(threads); k++) {
            pool *p = NULL;
            rot_model *r = NULL;
            lq_err err = { "" };
            CHECK(!pool_open(&p, threads[k], &err), "%s", err.msg);
            CHECK(!rot_open(&r, src, &(rot_opts){ .seed = 1 }, p, NULL, &err), "%s", err.msg);
            lq_hasher *h = lq_hasher_new();
            int64_t changed = 0;
            for (int64_t j = 0; r && j < src_n_tensors(rot_source(r)); j++) {
                const src_tensor *t = src_tensor_at(rot_source(r), j);
                const src_tensor *old = src_find(src, t->name);
                const lq_hash now = src_tensor_hash(rot_source(r), j);
                lq_hasher_add(h, now.b, sizeof now.b);
                if (!old) continue;
                const lq_hash was = src_tensor_hash(src, old - src_tensor_at(src, 0));
                changed += memcmp(now.b, was.b, sizeof now.b) != 0;
            }
            const lq_hash all = lq_hasher_end(h);
            CHECK(changed > 4, "%s: %lld tensors changed", names[i], (long long)changed);
            if (k == 0) first = all;
            CHECK(memcmp(all.b, first.b, sizeof all.b) == 0, "%s: %d threads", names[i],
                  threads[k]);
            rot_close(r);
            pool_close(p);
        }
        src_close(src);
    }
}

int main(int argc, char **argv)
{
    CHECK(!k_init(NULL, NULL), "kernels");
    RUN(rotations_are_orthogonal_and_spread_evenly);
    RUN(lanes_turn_as_vectors_do);
    RUN(a_rotated_model_gives_the_same_logits);
    RUN(a_rotated_weight_differs_and_threads_change_no_byte);
    return check_end();
}
