/* tests/test_dev.c - every operation of a device table against its twin on the CPU, at small and
 * odd shapes, on the device of tests/emulated.c. */
#include "kernels/dev.h"
#include "tests/check.h"
#include "tests/fill.h"

#include <stdlib.h>

/* ---- a device, and arrays on both sides ---- */
typedef struct {
    dev d;
    lq_arena a;    /* host */
    void *mem[64]; /* device */
    int n_mem;
} rig;

static const dev_ops *ops; /* tests/emulated.c chooses it */

static void rig_open(rig *r)
{
    lq_err err = { "" };
    memset(r, 0, sizeof *r);
    lq_arena_init(&r->a, 0, NULL);
    CHECK(!ops->open(&r->d, 0, &err), "%s", err.msg);
}
static void rig_close(rig *r)
{
    while (r->n_mem)
        ops->free(&r->d, r->mem[--r->n_mem]);
    ops->close(&r->d);
    lq_arena_free(&r->a);
}
/* n bytes on the device, with what `host` holds or, where NULL, as they come. */
static void *put(rig *r, const void *host, size_t n)
{
    void *p = ops->alloc(&r->d, n);
    r->mem[r->n_mem++] = p;
    if (host) ops->upload(&r->d, p, host, n);
    return p;
}
static void *floats(rig *r, int64_t n, uint64_t seed)
{
    float *x = lq_push(&r->a, (size_t)n * 4);
    fill_row(x, n, &seed);
    return x;
}
/* What device memory holds now; false, said by a failed check, where anything failed. */
static bool get(rig *r, void *host, const void *p, size_t n, const char *why)
{
    lq_err err = { "" };
    ops->download(&r->d, host, p, n);
    lq_status s = ops->sync(&r->d, &err);
    CHECK(!s, "%s: %s", why, err.msg);
    return !s;
}

/* The largest |got - want| / (u bound + tiny); bound NULL: of |want|. */
static double share(const float *got, const float *want, int64_t n, double relative)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double diff = fabs((double)got[i] - (double)want[i]);
        double bound = relative * fabs((double)want[i]) + 1e-30;
        if (!(diff <= worst * bound)) worst = diff / bound;
    }
    return worst;
}

/* ---- rows ---- */
static const int64_t widths[] = { 1, 31, 64, 257, 1030 };

TEST(norms_agree_with_the_cpu)
{
    for (size_t i = 0; i < LQ_COUNT(widths); i++)
        for (int layer = 0; layer < 2; layer++)
            for (int more = 0; more < 2; more++) {
                const int64_t T = 3, K = widths[i], n = T * K;
                rig r;
                rig_open(&r);
                float *x = floats(&r, n, 1), *add = floats(&r, n, 2), *w = floats(&r, K, 3),
                      *b = floats(&r, K, 4), *want = floats(&r, n, 5), *got = floats(&r, n, 6);
                dev_norm_args a = { .x = put(&r, x, (size_t)n * 4),
                                    .h = put(&r, NULL, (size_t)n * 4),
                                    .add = more ? put(&r, add, (size_t)n * 4) : NULL,
                                    .w = put(&r, w, (size_t)K * 4),
                                    .b = layer ? put(&r, b, (size_t)K * 4) : NULL,
                                    .factor = more ? 0.3f : 0.0f,
                                    .offset = more ? 1.0f : 0.0f,
                                    .eps = 1e-3f,
                                    .layer = layer,
                                    .T = T,
                                    .K = K };
                ops->norm(&r.d, &a);
                if (more) {
                    k_scale(add, a.factor, n);
                    k_add(x, add, n);
                }
                if (layer)
                    k_layernorm(want, K, x, K, w, b, a.offset, T, K, a.eps);
                else
                    k_rmsnorm(want, K, x, K, w, a.offset, T, K, a.eps);
                /* Both sums are within K u of the exact one; of the mean that is an absolute error,
                 * next to values up to 2 whose root mean square is eps^(1/2) at least. */
                double bound = layer ? 0 : ((double)K + 8) * 0x1p-23;
                if (get(&r, got, a.h, (size_t)n * 4, "norm")) {
                    double worst = 0;
                    for (int64_t j = 0; j < n; j++) {
                        double diff = fabs((double)got[j] - (double)want[j]);
                        double size = fabs((double)want[j]) * bound +
                                      (layer ? ((double)K + 8) * 0x1p-23 * 4 / 0.03 : 1e-30);
                        worst = fmax(worst, diff / size);
                        if (isnan(got[j])) worst = INFINITY;
                    }
                    CHECK(worst <= 1, "K %lld, layer %d, add %d: %g of the bound", (long long)K,
                          layer, more, worst);
                }
                if (get(&r, got, a.x, (size_t)n * 4, "norm"))
                    CHECK(memcmp(got, x, (size_t)n * 4) == 0, "K %lld: x is not the sum",
                          (long long)K);
                rig_close(&r);
            }
}

TEST(activations_and_embeddings_are_the_cpus_bits)
{
    const int64_t T = 3, K = 301, V = 7, n = T * K;
    const int32_t ids[] = { 6, 0, 3 };
    rig r;
    rig_open(&r);
    float *gate = floats(&r, n, 1), *up = floats(&r, n, 2), *want = floats(&r, n, 3),
          *got = floats(&r, n, 4), *table = floats(&r, V * K, 5);
    for (int64_t i = 0; i < n; i++)
        gate[i] *= 8;
    float *g = put(&r, gate, (size_t)n * 4), *u = put(&r, up, (size_t)n * 4),
          *dst = put(&r, NULL, (size_t)n * 4);
    for (int f = 0; f < ACT_N; f++)
        for (int gated = 0; gated < 2; gated++) {
            if (f == ACT_SWIGLU_CLAMPED && !gated) continue;
            dev_act_args a = { .dst = dst,
                               .gate = g,
                               .up = gated ? u : NULL,
                               .T = T,
                               .n = K,
                               .ldd = K,
                               .ld = K,
                               .f = (k_act_fn)f,
                               .limit = 5.0f };
            ops->act(&r.d, &a);
            memcpy(want, gate, (size_t)n * 4);
            if (gated)
                k_act_mul(want, gate, up, n, (k_act_fn)f, 5.0f);
            else
                k_act(want, n, (k_act_fn)f);
            if (get(&r, got, dst, (size_t)n * 4, "act"))
                CHECK(memcmp(got, want, (size_t)n * 4) == 0, "activation %d, gated %d: %g", f,
                      gated, share(got, want, n, 1));
        }
    static const lq_dtype dtypes[] = { LQ_F32, LQ_F16, LQ_BF16 };
    for (size_t i = 0; i < LQ_COUNT(dtypes); i++) {
        const size_t bytes = (size_t)(V * K * lq_dtype_bits(dtypes[i]) / 8);
        uint8_t *packed = lq_push(&r.a, bytes);
        lq_from_f32(packed, table, dtypes[i], (size_t)(V * K));
        dev_embed_args a = { .x = dst,
                             .table = put(&r, packed, bytes),
                             .dtype = dtypes[i],
                             .ids = put(&r, ids, sizeof ids),
                             .T = T,
                             .K = K,
                             .scale = 1.5f };
        ops->embed(&r.d, &a);
        for (int64_t t = 0; t < T; t++)
            lq_to_f32(want + t * K, packed + (size_t)(ids[t] * K * lq_dtype_bits(dtypes[i]) / 8),
                      dtypes[i], (size_t)K);
        k_scale(want, 1.5f, n);
        if (get(&r, got, dst, (size_t)n * 4, "embed"))
            CHECK(memcmp(got, want, (size_t)n * 4) == 0, "embedding of %s",
                  lq_dtype_text(dtypes[i]));
    }
    rig_close(&r);
}

/* Gates and ups in turn, in place, and rows times a factor each: more than a round of a block. */
TEST(activations_of_experts_are_the_cpus_bits)
{
    const int64_t T = 3, F = 601, n = T * 2 * F;
    for (int mixed = 0; mixed < 2; mixed++) {
        rig r;
        rig_open(&r);
        float *x = floats(&r, n, 1), *scale = floats(&r, T, 2), *gate = floats(&r, F, 3),
              *up = floats(&r, F, 4), *want = floats(&r, F, 5), *got = floats(&r, n, 6);
        float *on = put(&r, x, (size_t)n * 4);
        ops->act(&r.d, &(dev_act_args){ .dst = on,
                                        .gate = on,
                                        .up = on + F,
                                        .scale = put(&r, scale, (size_t)T * 4),
                                        .T = T,
                                        .n = F,
                                        .ldd = 2 * F,
                                        .ld = 2 * F,
                                        .f = ACT_SILU,
                                        .mixed = mixed });
        const bool ok = get(&r, got, on, (size_t)n * 4, "act");
        for (int64_t t = 0; t < T && ok; t++) {
            for (int64_t i = 0; i < F; i++) {
                gate[i] = x[t * 2 * F + (mixed ? 2 * i : i)];
                up[i] = x[t * 2 * F + (mixed ? 2 * i + 1 : F + i)];
            }
            k_act_mul(want, gate, up, F, ACT_SILU, 0);
            k_scale(want, scale[t], F);
            CHECK(memcmp(got + t * 2 * F, want, (size_t)F * 4) == 0, "mixed %d, row %lld", mixed,
                  (long long)t);
        }
        rig_close(&r);
    }
}

/* ---- experts ---- */
typedef struct {
    const char *why;
    int64_t E, k, groups, used;
    bool sigmoid, top2, normed, corrected;
    float whole; /* logits are whole multiples of it: equal ones are many; 0: as they come */
} route_case;
static const route_case routes[] = {
    { "a softmax, the best two", 8, 2, 1, 1, false, false, true, false, 0 },
    { "more experts than lanes", 75, 6, 1, 1, false, false, false, false, 0 },
    { "all of them", 5, 5, 1, 1, false, false, true, false, 0 },
    { "equal scores: the first", 40, 7, 1, 1, false, false, true, false, 2.0f },
    { "groups by their best", 64, 4, 8, 3, false, false, true, false, 0 },
    { "groups by their best two, corrected", 64, 8, 8, 4, true, true, true, true, 0 },
    { "groups of one", 6, 2, 6, 3, true, true, false, true, 0 },
};

/* Of v[n], apart from those below -1e30: the first of the largest. */
static int64_t best(const float *v, int64_t n)
{
    int64_t at = -1;
    for (int64_t i = 0; i < n; i++)
        if (v[i] > -1e30f && (at < 0 || v[i] > v[at])) at = i;
    return at;
}

/* The k best of a row's logits are taken out one by one, in f64; share and chosen by expert. */
static void route_by_hand(const route_case *c, const float *logit, const float *correction,
                          int32_t *chosen, double *share)
{
    double score[80], sum = 0, max = -INFINITY, all = 0;
    float choice[80], left[80];
    const int64_t size = c->E / c->groups;
    for (int64_t e = 0; e < c->E; e++)
        max = fmax(max, (double)logit[e]);
    for (int64_t e = 0; e < c->E; e++)
        sum += exp((double)logit[e] - max);
    for (int64_t e = 0; e < c->E; e++) {
        score[e] =
            c->sigmoid ? 1 / (1 + exp(-(double)logit[e])) : exp((double)logit[e] - max) / sum;
        choice[e] = (float)score[e] + (c->corrected ? correction[e] : 0.0f);
    }
    if (c->used < c->groups) {
        float group[80];
        bool kept[80] = { false };
        for (int64_t g = 0; g < c->groups; g++) {
            memcpy(left, choice + g * size, (size_t)size * 4);
            const int64_t first = best(left, size);
            group[g] = left[first];
            left[first] = -INFINITY;
            if (c->top2 && size > 1) group[g] += left[best(left, size)];
        }
        for (int64_t i = 0; i < c->used; i++) {
            const int64_t g = best(group, c->groups);
            kept[g] = true;
            group[g] = -INFINITY;
        }
        for (int64_t e = 0; e < c->E; e++)
            if (!kept[e / size]) choice[e] = 0;
    }
    bool taken[80] = { false };
    for (int64_t i = 0; i < c->k; i++) {
        const int64_t e = best(choice, c->E);
        taken[e] = true;
        choice[e] = -INFINITY;
        all += score[e];
    }
    for (int64_t e = 0, i = 0; e < c->E; e++)
        if (taken[e]) {
            chosen[i] = (int32_t)e;
            share[i++] = (c->normed ? score[e] / all : score[e]) * 1.5;
        }
}

static void one_route(const route_case *c)
{
    enum { T = 9 };
    const int64_t E = c->E, k = c->k;
    rig r;
    rig_open(&r);
    float *logits = floats(&r, T * E, 1), *correction = floats(&r, E, 2),
          *share = floats(&r, T * k, 3), *shared = floats(&r, T, 4), *y = floats(&r, T * k * 5, 5),
          *out = floats(&r, T * 5, 6);
    for (int64_t i = 0; i < T * E; i++)
        logits[i] = c->whole ? roundf(logits[i] * 3) * c->whole : logits[i] * 4;
    int32_t *chosen = lq_push(&r.a, (size_t)(T * k) * 4),
            *place = lq_push(&r.a, (size_t)(T * k) * 4), *sent = lq_push(&r.a, (size_t)(T * k) * 4),
            *first = lq_push(&r.a, (size_t)(E + 1) * 4);
    dev_route_args a = { .scores = put(&r, logits, (size_t)(T * E) * 4),
                         .choice = put(&r, NULL, (size_t)(T * E) * 4),
                         .group_score = put(&r, NULL, (size_t)(T * c->groups) * 4),
                         .group_best = put(&r, NULL, (size_t)(T * c->used) * 4),
                         .correction = c->corrected ? put(&r, correction, (size_t)E * 4) : NULL,
                         .shared = put(&r, shared, T * 4),
                         .chosen = put(&r, NULL, (size_t)(T * k) * 4),
                         .share = put(&r, NULL, (size_t)(T * k) * 4),
                         .T = T,
                         .E = E,
                         .k = k,
                         .groups = c->groups,
                         .groups_used = c->used,
                         .sigmoid = c->sigmoid,
                         .top2 = c->top2,
                         .normed = c->normed,
                         .scale = 1.5f };
    dev_place_args p = { .first = put(&r, NULL, (size_t)(E + 1) * 4),
                         .place = put(&r, NULL, (size_t)(T * k) * 4),
                         .sent = put(&r, NULL, (size_t)(T * k) * 4),
                         .chosen = a.chosen,
                         .T = T,
                         .E = E,
                         .k = k };
    dev_join_args j = { .out = put(&r, out, T * 5 * 4),
                        .y = put(&r, y, (size_t)(T * k * 5) * 4),
                        .share = a.share,
                        .place = p.place,
                        .T = T,
                        .H = 5,
                        .k = k };
    float *got = floats(&r, T * 5, 7), opened[T];
    ops->route(&r.d, &a);
    ops->place(&r.d, &p);
    ops->join_experts(&r.d, &j);
    const bool ok = get(&r, chosen, a.chosen, (size_t)(T * k) * 4, c->why) &&
                    get(&r, share, a.share, (size_t)(T * k) * 4, c->why) &&
                    get(&r, opened, a.shared, sizeof opened, c->why) &&
                    get(&r, first, p.first, (size_t)(E + 1) * 4, c->why) &&
                    get(&r, place, p.place, (size_t)(T * k) * 4, c->why) &&
                    get(&r, sent, p.sent, (size_t)(T * k) * 4, c->why) &&
                    get(&r, got, j.out, T * 5 * 4, c->why);
    for (int64_t t = 0, at = 0; t < T && ok; t++) {
        int32_t want[16];
        double part[16];
        route_by_hand(c, logits + t * E, correction, want, part);
        CHECK(memcmp(chosen + t * k, want, (size_t)k * 4) == 0, "%s: row %lld", c->why,
              (long long)t);
        CHECK(fabs((double)opened[t] - 1 / (1 + exp(-(double)shared[t]))) < 1e-6, "%s: shared",
              c->why);
        for (int64_t i = 0; i < k; i++, at++) {
            CHECK(fabs((double)share[at] - part[i]) < 1e-6 * part[i], "%s: %g, expected %g", c->why,
                  (double)share[at], part[i]);
            const int32_t e = chosen[at], to = place[at];
            CHECK(to >= first[e] && to < first[e + 1] && sent[to] == t, "%s: place %d", c->why, to);
            CHECK(to == first[e] || sent[to - 1] < t, "%s: rows of an expert rise", c->why);
        }
        for (int64_t h = 0; h < 5; h++) {
            float sum = 0;
            for (int64_t i = 0; i < k; i++)
                sum += share[t * k + i] * y[place[t * k + i] * 5 + h];
            CHECK(got[t * 5 + h] == out[t * 5 + h] + sum, "%s: the sum of row %lld", c->why,
                  (long long)t);
        }
    }
    CHECK(!ok || (first[0] == 0 && first[E] == T * k), "%s: all places", c->why);
    rig_close(&r);
}

TEST(experts_are_chosen_placed_and_joined)
{
    for (size_t i = 0; i < LQ_COUNT(routes); i++)
        one_route(&routes[i]);
}

/* Whatever the logits are, places stay within their arrays. */
TEST(experts_of_no_numbers_are_distinct)
{
    enum { T = 2, E = 37, K = 5 };
    float logits[T * E];
    int32_t chosen[T * K];
    for (int i = 0; i < T * E; i++)
        logits[i] = i % 3 ? NAN : i < E ? 1.0f : INFINITY;
    rig r;
    rig_open(&r);
    dev_route_args a = { .scores = put(&r, logits, sizeof logits),
                         .choice = put(&r, NULL, sizeof logits),
                         .chosen = put(&r, NULL, sizeof chosen),
                         .share = put(&r, NULL, sizeof chosen),
                         .T = T,
                         .E = E,
                         .k = K,
                         .groups = 1,
                         .groups_used = 1 };
    ops->route(&r.d, &a);
    if (get(&r, chosen, a.chosen, sizeof chosen, "NaN"))
        for (int i = 0; i < T * K; i++)
            CHECK(chosen[i] >= 0 && chosen[i] < E && (i % K == 0 || chosen[i] > chosen[i - 1]),
                  "choice %d: %d", i, chosen[i]);
    rig_close(&r);
}

TEST(rotation_and_the_cache_are_the_cpus_bits)
{
    static const kv_dtype dtypes[] = { KV_F32, KV_F16, KV_BF16, KV_I8, KV_I4, KV_F8 };
    static const struct {
        const char *why;
        int64_t H, Hkv, D, Dv, R;
        bool half;
    } shapes[] = { { "all of the head, halves", 4, 2, 64, 64, 64, true },
                   { "a part of it, pairs", 3, 1, 40, 24, 8, false },
                   { "no rotation", 2, 2, 16, 16, 0, true } };
    enum { T = 3, BLOCK = 8, BLOCKS = 4 };
    const int32_t block[T] = { 2, 0, 2 }, slot[T] = { 7, 0, 1 };
    for (size_t i = 0; i < LQ_COUNT(shapes); i++)
        for (size_t j = 0; j < LQ_COUNT(dtypes); j++) {
            const int64_t H = shapes[i].H, Hkv = shapes[i].Hkv, D = shapes[i].D, Dv = shapes[i].Dv,
                          R = shapes[i].R;
            const size_t kb = attn_kv_row_bytes(dtypes[j], D) * (size_t)(Hkv * BLOCK);
            const size_t stride = kb + attn_kv_row_bytes(dtypes[j], Dv) * (size_t)(Hkv * BLOCK);
            rig r;
            rig_open(&r);
            float *q = floats(&r, T * H * D, 1), *k = floats(&r, T * Hkv * D, 2),
                  *v = floats(&r, T * Hkv * Dv, 3), *cos = floats(&r, T * R / 2 + 1, 4),
                  *sin = floats(&r, T * R / 2 + 1, 5), *got = floats(&r, T * H * D, 6);
            if (attn_kv_head(dtypes[j])) k[3] = v[2] = NAN; /* which the row's scale keeps */
            uint8_t *want = lq_push(&r.a, stride * BLOCKS), *cache = lq_push(&r.a, stride * BLOCKS);
            memset(want, 0x5a, stride * BLOCKS);
            uint8_t *on = put(&r, want, stride * BLOCKS);
            dev_rope_args a = { .q = put(&r, q, (size_t)(T * H * D) * 4),
                                .k = put(&r, k, (size_t)(T * Hkv * D) * 4),
                                .v = put(&r, v, (size_t)(T * Hkv * Dv) * 4),
                                .cos = put(&r, cos, (size_t)(T * R / 2 + 1) * 4),
                                .sin = put(&r, sin, (size_t)(T * R / 2 + 1) * 4),
                                .block = put(&r, block, sizeof block),
                                .slot = put(&r, slot, sizeof slot),
                                .cache_k = on,
                                .cache_v = on + kb,
                                .block_stride = stride,
                                .block_size = BLOCK,
                                .dtype = dtypes[j],
                                .half = shapes[i].half,
                                .T = T,
                                .H = H,
                                .Hkv = Hkv,
                                .D = D,
                                .Dv = Dv,
                                .R = R };
            ops->rope(&r.d, &a);
            for (int t = 0; t < T; t++) {
                uint8_t *to = want + (size_t)block[t] * stride;
                k_rope(q + t * H * D, H, D, R, cos + t * R / 2, sin + t * R / 2, a.half);
                k_rope(k + t * Hkv * D, Hkv, D, R, cos + t * R / 2, sin + t * R / 2, a.half);
                attn_kv_write(to, slot[t], BLOCK, k + t * Hkv * D, Hkv, D, dtypes[j]);
                attn_kv_write(to + kb, slot[t], BLOCK, v + t * Hkv * Dv, Hkv, Dv, dtypes[j]);
            }
            if (get(&r, got, a.q, (size_t)(T * H * D) * 4, shapes[i].why))
                CHECK(memcmp(got, q, (size_t)(T * H * D) * 4) == 0, "%s: q", shapes[i].why);
            if (get(&r, cache, on, stride * BLOCKS, shapes[i].why))
                CHECK(memcmp(cache, want, stride * BLOCKS) == 0, "%s, %s: the cache", shapes[i].why,
                      kv_dtype_text(dtypes[j]));
            rig_close(&r);
        }
}

TEST(copies_take_rows_apart)
{
    const float src[3][4] = { { 0, 1, 2, 3 }, { 4, 5, 6, 7 }, { 8, 9, 10, 11 } };
    const float want[] = { 1, 2, -1, 5, 6, -1, 9, 10, -1 };
    float got[9] = { -1, -1, -1, -1, -1, -1, -1, -1, -1 };
    rig r;
    rig_open(&r);
    float *from = put(&r, src, sizeof src), *to = put(&r, got, sizeof got);
    ops->copy(&r.d, &(dev_copy_args){ to, from + 1, 8, 12, 16, 3 });
    if (get(&r, got, to, sizeof got, "copy"))
        CHECK(memcmp(got, want, sizeof want) == 0, "rows of a copy");
    CHECK(ops->room(&r.d) > 0, "no room");
    rig_close(&r);
}

/* ---- matrix products ---- */
static const char *const schemes[] = { FILL_SCHEMES };

static dev_weight put_weight(rig *r, const qt_tensor *t)
{
    dev_weight w = { *t, tiles_shape(&t->scheme, t->N, t->K) };
    for (int p = 0; p < QT_N_PLANES; p++)
        if (t->plane[p].bytes) w.t.plane[p].data = put(r, t->plane[p].data, t->plane[p].bytes);
    return w;
}

/* sum |x w| for each output, x as the product takes it. */
static double size_of(const float *x, const float *w, int64_t K)
{
    double sum = 0;
    for (int64_t k = 0; k < K; k++)
        sum += fabs((double)x[k] * (double)w[k]);
    return sum;
}

static const struct {
    const char *why;
    int64_t M, N, K;
} shapes[] = {
    { "one of each", 1, 1, 32 },         { "one row, a tail of steps", 1, 40, 608 },
    { "an odd width", 3, 17, 31 },       { "padded groups", 4, 16, 172 },
    { "eight rows", 8, 33, 384 },        { "nine rows", 9, 80, 128 },
    { "a step and a half", 17, 65, 96 }, { "a panel and one", 65, 20, 256 },
};

static void one_product(const char *name, size_t shape, mm_acts acts)
{
    const int64_t M = shapes[shape].M, N = shapes[shape].N, K = shapes[shape].K, ldx = K + 3;
    qt_scheme s = fill_scheme(name);
    if (fill_misfit(&s, K)) return;
    if (s.kind == QT_I8_OUTLIER) s.n_out = K / 9 + 1;
    rig r;
    rig_open(&r);
    lq_err err = { "" };
    qt_tensor t = fill_tensor(s, N, K, &r.a, shape + 3);
    mm_weight w;
    CHECK(!mm_pack(&w, &t, &r.a, NULL, &err), "%s", err.msg);
    float *x = floats(&r, M * ldx, 1), *bias = floats(&r, N, 2), *want = floats(&r, M * N, 3),
          *got = floats(&r, M * N, 4), *dense = lq_push(&r.a, (size_t)(N * K) * 4);
    dev_weight dw = put_weight(&r, &w.t);
    dev_mm_args a = { .y = put(&r, want, (size_t)(M * N) * 4),
                      .w = &dw,
                      .x = put(&r, x, (size_t)(M * ldx) * 4),
                      .bias = put(&r, bias, (size_t)N * 4),
                      .scratch = put(&r, NULL, ops->mm_scratch(&dw, M)),
                      .ldy = N,
                      .ldx = ldx,
                      .M = M,
                      .acts = acts,
                      .add = true };
    ops->matmul(&r.d, &a);
    /* The twin: plain C, f32, on activations that are bf16 already where the device rounds them. */
    CHECK(!k_init("ref", &err), "%s", err.msg);
    lq_arena scratch;
    lq_arena_init(&scratch, mm_scratch_bytes(M, K, 1, 1), NULL);
    mm_out o = { .w = &w, .y = want, .ldy = N, .bias = bias, .add = true };
    mm_run(&o, 1, x, ldx, M, acts, &scratch, NULL);
    lq_arena_free(&scratch);
    qt_dequant(dense, &t, 0, N);
    double worst = 0;
    if (get(&r, got, a.y, (size_t)(M * N) * 4, name))
        for (int64_t m = 0; m < M; m++)
            for (int64_t n = 0; n < N; n++) {
                /* Each side is within 3 K u of the sum of sizes (mm.h), and of the last additions;
                 * two bf16 of a weight leave 2^-16 of it, with float zeros of what is subtracted
                 * as well, at most 2^bits scales. */
                double size = size_of(x + m * ldx, dense + n * K, K), two = 0;
                if (acts == MM_BF16 && M > DEV_MM_SMALL) two = 0x1p-16;
                double bound = size * (6 * (double)K * 0x1p-24 + two) +
                               0x1p-22 * (2 + fabs((double)want[m * N + n]));
                double diff = fabs((double)got[m * N + n] - (double)want[m * N + n]);
                if (!(diff <= worst * bound)) worst = diff / bound;
            }
    CHECK(worst <= 1, "%s, %s, %s: %g of the bound", name, shapes[shape].why,
          acts == MM_F32 ? "f32" : "bf16", worst);
    rig_close(&r);
}

TEST(products_agree_with_the_cpu_in_f32)
{
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < LQ_COUNT(shapes); j++)
            if (shapes[j].M < 17) one_product(schemes[i], j, MM_F32);
}

TEST(products_agree_with_the_cpu_on_bf16_activations)
{
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < LQ_COUNT(shapes); j++)
            if (j != 1) one_product(schemes[i], j, MM_BF16);
}

/* ---- attention ---- */
typedef struct {
    const char *why;
    int64_t H, Hkv, D, Dv;
    kv_dtype dtype;
    float softcap;
    int64_t window;
    bool alibi, falcon, sinks;
    struct {
        int64_t pos0, n;
    } seq[2];
} attn_case;

static const attn_case attn_cases[] = {
    { "decode, one head", 1, 1, 16, 16, KV_F32, 0, 0, 0, 0, 0, { { 0, 1 }, { 40, 1 } } },
    { "decode, groups, a long context",
      8,
      2,
      64,
      64,
      KV_F16,
      0,
      0,
      0,
      0,
      0,
      { { 1090, 1 }, { 511, 1 } } },
    { "prefill beside decode", 4, 2, 32, 32, KV_BF16, 0, 0, 0, 0, 0, { { 0, 19 }, { 70, 1 } } },
    { "a chunk over a split", 6, 1, 20, 20, KV_F32, 0, 0, 0, 0, 0, { { 509, 6 }, { 0, 3 } } },
    { "more heads than a pass", 20, 1, 8, 8, KV_F16, 0, 0, 0, 0, 0, { { 5, 3 }, { 33, 2 } } },
    { "int8, soft-cap", 4, 2, 40, 24, KV_I8, 2.0f, 0, 0, 0, 0, { { 30, 5 }, { 64, 1 } } },
    { "int4", 4, 2, 64, 64, KV_I4, 0, 0, 0, 0, 0, { { 37, 2 }, { 0, 5 } } },
    { "fp8", 4, 2, 32, 32, KV_F8, 0, 0, 0, 0, 0, { { 37, 2 }, { 0, 5 } } },
    { "alibi", 4, 4, 32, 32, KV_F32, 0, 0, true, 0, 0, { { 62, 4 }, { 0, 1 } } },
    { "alibi in bf16, scaled",
      4,
      4,
      16,
      16,
      KV_F16,
      0,
      0,
      true,
      true,
      0,
      { { 300, 2 }, { 0, 1 } } },
    { "window and sinks over splits",
      2,
      1,
      16,
      16,
      KV_F16,
      0,
      600,
      0,
      0,
      true,
      { { 1096, 4 }, { 9, 9 } } },
    { "a window of one, wide heads",
      2,
      2,
      256,
      256,
      KV_BF16,
      0,
      1,
      0,
      0,
      0,
      { { 33, 2 }, { 7, 1 } } },
};
static const float slopes[] = { 0.5f, 0.25f, 0.125f, 0.0625f };
static const float sink_logits[] = { 0.5f, -1 };

static void one_attention(const attn_case *c)
{
    enum { BLOCK = 16, SEQS = 2 };
    const size_t kb = attn_kv_row_bytes(c->dtype, c->D) * (size_t)(c->Hkv * BLOCK);
    const size_t stride = kb + attn_kv_row_bytes(c->dtype, c->Dv) * (size_t)(c->Hkv * BLOCK);
    const int64_t per_seq = 80, n_blocks = 2 * SEQS * per_seq;
    int64_t rows = 0, n_chunks = 0, n_slots = 0, qw = c->H * c->D, ow = c->H * c->Dv;
    rig r;
    rig_open(&r);
    uint8_t *cache = lq_push(&r.a, stride * (size_t)n_blocks);
    memset(cache, 0xff, stride * (size_t)n_blocks); /* NaN where nothing is cached */
    int32_t *tables = lq_push(&r.a, (size_t)(SEQS * per_seq) * 4);
    attn_seq seqs[SEQS];
    for (int i = 0; i < SEQS; i++) {
        int32_t *table = tables + i * per_seq;
        seqs[i] = (attn_seq){ rows, c->seq[i].n, c->seq[i].pos0, table };
        rows += c->seq[i].n;
        for (int64_t b = 0; b < per_seq; b++)
            table[b] = (int32_t)(n_blocks - 1 - 2 * (i * per_seq + b));
        for (int64_t p = 0; p < c->seq[i].pos0 + c->seq[i].n; p++) {
            uint8_t *block = cache + (size_t)table[p / BLOCK] * stride;
            float *k = floats(&r, c->Hkv * c->D, (uint64_t)p),
                  *v = floats(&r, c->Hkv * c->Dv, (uint64_t)p + 7);
            attn_kv_write(block, (int)(p % BLOCK), BLOCK, k, c->Hkv, c->D, c->dtype);
            attn_kv_write(block + kb, (int)(p % BLOCK), BLOCK, v, c->Hkv, c->Dv, c->dtype);
        }
        dev_attn_plan(NULL, &n_chunks, NULL, &n_slots, &seqs[i], 0, c->H, c->Hkv, c->window);
    }
    dev_attn_chunk *chunks = lq_push(&r.a, (size_t)n_chunks * sizeof *chunks);
    int32_t *chunk_of = lq_push(&r.a, (size_t)n_slots * 4);
    n_chunks = n_slots = 0;
    for (int i = 0; i < SEQS; i++)
        dev_attn_plan(chunks, &n_chunks, chunk_of, &n_slots, &seqs[i], (int32_t)(i * per_seq), c->H,
                      c->Hkv, c->window);
    float *q = floats(&r, rows * qw, 1), *want = floats(&r, rows * ow, 2),
          *got = floats(&r, rows * ow, 3);
    for (int64_t i = 0; i < rows * qw; i++)
        q[i] *= 3;
    attn_args twin = { .q = q,
                       .ldq = qw,
                       .out = want,
                       .ldo = ow,
                       .k = cache,
                       .v = cache + kb,
                       .block_stride = stride,
                       .block_size = BLOCK,
                       .dtype = c->dtype,
                       .H = c->H,
                       .Hkv = c->Hkv,
                       .D = c->D,
                       .Dv = c->Dv,
                       .scale = 0.3f,
                       .softcap = c->softcap,
                       .window = c->window,
                       .alibi = c->alibi ? slopes : NULL,
                       .alibi_scaled = c->falcon,
                       .alibi_bf16 = c->falcon,
                       .sinks = c->sinks ? sink_logits : NULL,
                       .seqs = seqs,
                       .n_seqs = SEQS };
    lq_arena scratch;
    lq_arena_init(&scratch, attn_scratch_bytes(c->H, c->D > c->Dv ? c->D : c->Dv, 1), NULL);
    attn_run(&twin, &scratch, NULL);
    lq_arena_free(&scratch);
    uint8_t *on = put(&r, cache, stride * (size_t)n_blocks);
    dev_attn_args a = { .q = put(&r, q, (size_t)(rows * qw) * 4),
                        .out = put(&r, NULL, (size_t)(rows * ow) * 4),
                        .k = on,
                        .v = on + kb,
                        .alibi = c->alibi ? put(&r, slopes, sizeof slopes) : NULL,
                        .sinks = c->sinks ? put(&r, sink_logits, sizeof sink_logits) : NULL,
                        .chunks = put(&r, chunks, (size_t)n_chunks * sizeof *chunks),
                        .chunk_of = put(&r, chunk_of, (size_t)n_slots * 4),
                        .tables = put(&r, tables, (size_t)(SEQS * per_seq) * 4),
                        .ldq = qw,
                        .ldo = ow,
                        .n_chunks = n_chunks,
                        .n_slots = n_slots,
                        .H = c->H,
                        .Hkv = c->Hkv,
                        .D = c->D,
                        .Dv = c->Dv,
                        .window = c->window,
                        .block_stride = stride,
                        .block_size = BLOCK,
                        .dtype = c->dtype,
                        .scale = 0.3f,
                        .softcap = c->softcap,
                        .alibi_scaled = c->falcon,
                        .alibi_bf16 = c->falcon };
    a.scratch = put(&r, NULL, ops->attn_scratch(&a));
    ops->attn(&r.d, &a);
    if (get(&r, got, a.out, (size_t)(rows * ow) * 4, c->why))
        CHECK(memcmp(got, want, (size_t)(rows * ow) * 4) == 0, "%s: off by %g of a value", c->why,
              share(got, want, rows * ow, 1));
    rig_close(&r);
}

TEST(attention_is_the_cpus_bits)
{
    for (size_t i = 0; i < LQ_COUNT(attn_cases); i++)
        one_attention(&attn_cases[i]);
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    if (dev_count(&err) == 0) {
        printf("skipped: %s\n0 passed, 0 failed\n", err.msg);
        return 0;
    }
    ops = dev_cuda();
    RUN(norms_agree_with_the_cpu);
    RUN(activations_and_embeddings_are_the_cpus_bits);
    RUN(activations_of_experts_are_the_cpus_bits);
    RUN(experts_are_chosen_placed_and_joined);
    RUN(experts_of_no_numbers_are_distinct);
    RUN(rotation_and_the_cache_are_the_cpus_bits);
    RUN(copies_take_rows_apart);
    RUN(products_agree_with_the_cpu_in_f32);
    RUN(products_agree_with_the_cpu_on_bf16_activations);
    RUN(attention_is_the_cpus_bits);
    return check_end();
}
