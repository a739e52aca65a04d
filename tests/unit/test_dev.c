/* tests/unit/test_dev.c - rows, experts, rotation and copies of a device table against their twins on
 * the CPU, at small and odd shapes. */
#include "tests/support/devtwins.h"

/* ---- rows ---- */
static const int64_t widths[] = { 1,    31,   64,   257,
                                  1030, 2083, 5124, 8196 /* more than registers hold */ };

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

/* Where a row goes a number further on it is not written four at a time, and is read three times. */
TEST(a_row_that_registers_hold_has_the_bits_of_one_that_is_read_again)
{
    enum { T = 2, K = 5124, N = T * K };
    for (int layer = 0; layer < 2; layer++) {
        rig r;
        rig_open(&r);
        const float *x = floats(&r, N, 1), *add = floats(&r, N, 2), *w = floats(&r, K, 3);
        float *want = floats(&r, N + 4, 4), *got = floats(&r, N, 5), *sum = floats(&r, N, 6);
        dev_norm_args a = { .x = put(&r, x, N * 4),
                            .h = (float *)put(&r, NULL, (N + 4) * 4) + 1,
                            .add = put(&r, add, N * 4),
                            .w = put(&r, w, K * 4),
                            .factor = 0.3f,
                            .eps = 1e-5f,
                            .bf16 = layer,
                            .layer = layer,
                            .T = T,
                            .K = K };
        ops->norm(&r.d, &a);
        bool ok = get(&r, want, a.h - 1, (N + 4) * 4, "read again") &&
                  get(&r, sum, a.x, N * 4, "read again");
        a.x = put(&r, x, N * 4);
        a.h = put(&r, NULL, N * 4);
        ops->norm(&r.d, &a);
        ok = get(&r, got, a.h, N * 4, "held") && ok;
        CHECK(ok && memcmp(want + 1, got, N * 4) == 0, "layer %d: other bits", layer);
        ok = get(&r, got, a.x, N * 4, "held") && ok;
        CHECK(ok && memcmp(sum, got, N * 4) == 0, "layer %d: another sum", layer);
        rig_close(&r);
    }
}

/* Heads of rows that hold more than them, and rounded: the bits of heads alone. */
TEST(rows_side_by_side_are_normed_as_rows_apart_and_rounded_last)
{
    enum { T = 4, SIDE = 3, K = 40, LD = SIDE * K + 24, N = T * SIDE * K };
    rig r;
    rig_open(&r);
    const float *x = floats(&r, N, 1), *w = floats(&r, K, 2);
    float *wide = floats(&r, T * LD, 3), *plain = floats(&r, N, 4), *got = floats(&r, T * LD, 5);
    for (int64_t t = 0; t < T; t++)
        memcpy(wide + t * LD, x + t * SIDE * K, SIDE * K * sizeof *x);
    dev_norm_args a = { .x = put(&r, x, N * 4), .w = put(&r, w, K * 4), .eps = 1e-5f, .K = K };
    a.T = T * SIDE;
    a.h = a.x;
    ops->norm(&r.d, &a);
    bool ok = get(&r, plain, a.h, N * 4, "apart");
    a.x = a.h = put(&r, wide, (size_t)(T * LD) * 4);
    a.ld = LD;
    a.side = SIDE;
    a.bf16 = true;
    ops->norm(&r.d, &a);
    ok = get(&r, got, a.h, (size_t)(T * LD) * 4, "side by side") && ok;
    for (int64_t t = 0; t < T && ok; t++) {
        uint16_t b[SIDE * K];
        float want[LD];
        lq_from_f32(b, plain + t * SIDE * K, LQ_BF16, SIDE * K);
        lq_to_f32(want, b, LQ_BF16, SIDE * K);
        memcpy(want + SIDE * K, wide + t * LD + SIDE * K, (LD - SIDE * K) * sizeof *want);
        CHECK(memcmp(got + t * LD, want, sizeof want) == 0, "row %lld: other bytes", (long long)t);
    }
    rig_close(&r);
}

/* Through rows of floats, and as the product's own order has them: rows of bf16, and of more rows on
 * sm_90 columns. */
TEST(what_is_made_in_a_products_order_gives_it_the_same_bytes)
{
    enum { K = 64, N = 16, MOST = 40 };
    static const int64_t rows[] = { 9, MOST };
    for (size_t i = 0; i < 2 * LQ_COUNT(rows); i++) {
        const int64_t M = rows[i / 2];
        const bool act = i % 2;
        twins o;
        if (!twins_open(&o, "u4-g32", M, N, K, 7)) continue;
        rig *r = &o.r;
        o.dw = put_weight(r, &o.w.t);
        const float *x = floats(r, M * 2 * K, 5), *w = floats(r, K, 6);
        float *y[2] = { o.want, o.got };
        const int64_t how = ops->mm_order(&r->d, &o.dw, MM_BF16, M);
        CHECK(r->d.cc == 90 && M > 32 ? how >= M : how == 0, "%lld rows: %lld", (long long)M,
              (long long)how);
        bool ok = true;
        for (int ordered = 0; ordered < 2; ordered++) {
            dev_mm_args a = twins_args(&o, MM_BF16, false);
            float *in = put(r, x, (size_t)(M * 2 * K) * 4), *h = put(r, NULL, (size_t)(M * K) * 4);
            const dev_order to = { ordered ? a.scratch : NULL, how };
            a.x = act ? in : h;
            a.ldx = act ? 2 * K : K;
            a.bias = NULL;
            a.rounded = true;
            a.arranged = ordered;
            if (act)
                ops->act(&r->d, &(dev_act_args){ .dst = in,
                                                 .gate = in,
                                                 .up = in + K,
                                                 .T = M,
                                                 .n = K,
                                                 .ldd = 2 * K,
                                                 .ld = 2 * K,
                                                 .f = ACT_SILU,
                                                 .bf16 = true,
                                                 .order = to });
            else
                ops->norm(&r->d, &(dev_norm_args){ .x = in,
                                                   .h = h,
                                                   .w = put(r, w, K * 4),
                                                   .eps = 1e-5f,
                                                   .bf16 = true,
                                                   .T = M,
                                                   .K = K,
                                                   .order = to });
            ops->matmul(&r->d, &a);
            ok = get(r, y[ordered], a.y, (size_t)(M * N) * 4, "product") && ok;
        }
        CHECK(!ok || memcmp(y[0], y[1], (size_t)(M * N) * 4) == 0, "%s, %lld rows: other bytes",
              act ? "activation" : "norm", (long long)M);
        rig_close(r);
    }
}

/* The same device as both: each has its part of every row. */
TEST(a_row_in_two_parts_is_normed_as_one)
{
    for (size_t i = 0; i < LQ_COUNT(widths); i++) {
        const int64_t T = 3, K = widths[i];
        const size_t bytes = (size_t)(T * K) * 4;
        rig r;
        rig_open(&r);
        float *x = floats(&r, T * 2 * K, 1), *w = floats(&r, 2 * K, 2),
              *want = floats(&r, T * 2 * K, 3), *got = floats(&r, T * 2 * K, 4),
              *half = floats(&r, T * K, 5), sums[2][3];
        dev_share_args a[2];
        for (int p = 0; p < 2; p++) {
            for (int64_t t = 0; t < T; t++)
                memcpy(half + t * K, x + (2 * t + p) * K, (size_t)K * 4);
            a[p] = (dev_share_args){ .x = put(&r, half, bytes),
                                     .sums = put(&r, NULL, sizeof sums[p]),
                                     .w = put(&r, w + p * K, (size_t)K * 4),
                                     .offset = 0.5f,
                                     .eps = 1e-3f,
                                     .T = T,
                                     .K = K,
                                     .whole = 2 * K };
            ops->squares(&r.d, &a[p]);
            if (!get(&r, sums[p], a[p].sums, sizeof sums[p], "squares")) return;
        }
        for (int64_t t = 0; t < T; t++)
            sums[0][t] += sums[1][t];
        for (int p = 0; p < 2; p++) {
            ops->upload(&r.d, a[p].sums, sums[0], sizeof sums[0]);
            ops->scale(&r.d, &a[p]);
            if (!get(&r, half, a[p].x, bytes, "scale")) return;
            for (int64_t t = 0; t < T; t++)
                memcpy(got + (2 * t + p) * K, half + t * K, (size_t)K * 4);
        }
        k_rmsnorm(want, 2 * K, x, 2 * K, w, 0.5f, T, 2 * K, 1e-3f);
        /* Both sums are within 2 K u of the exact one, all squares being positive. */
        const double worst = share(got, want, T * 2 * K, ((double)(2 * K) + 8) * 0x1p-23);
        CHECK(worst <= 1, "2 x %lld: %g of the bound", (long long)K, worst);
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
            if (f >= ACT_SWIGLU_CLAMPED && !gated) continue;
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
        const size_t bytes = (size_t)(V * K) * lq_dtype_bytes(dtypes[i]);
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
            lq_to_f32(want + t * K, packed + (size_t)(ids[t] * K) * lq_dtype_bytes(dtypes[i]),
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
            *first = lq_push(&r.a, (size_t)(E + 1) * 4), *busy = lq_push(&r.a, (size_t)E * 4);
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
                         .busy = put(&r, NULL, (size_t)E * 4),
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
                    get(&r, busy, p.busy, (size_t)E * 4, c->why) &&
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
            int64_t b = 0;
            while (b < E - 1 && busy[b] != e)
                b++;
            CHECK(to >= first[b] && to < first[b + 1] && sent[to] == t, "%s: place %d", c->why, to);
            CHECK(to == first[b] || sent[to - 1] < t, "%s: rows of an expert rise", c->why);
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
    for (int64_t b = 0; b < E && ok; b++)
        CHECK(busy[b] < 0 ? first[b] == T * k
                          : first[b + 1] > first[b] && (b == 0 || busy[b] > busy[b - 1]),
              "%s: the %lldth that has rows", c->why, (long long)b);
    rig_close(&r);
}

TEST(experts_are_chosen_placed_and_joined)
{
    for (size_t i = 0; i < LQ_COUNT(routes); i++)
        one_route(&routes[i]);
}

/* Several rounds of a warp, and a last one that is not full; and the same where the last experts have no tensors. */
static void place_many(int idle)
{
    enum { T = 301, E = 37, K = 3, N = T * K };
    static int32_t chosen[N], place[N], sent[N], first[E + 1], busy[E], want_place[N], want_sent[N];
    int32_t begin[E + 1];
    uint64_t seed = 5;
    for (int i = 0; i < N; i++)
        chosen[i] =
            (int32_t)(fill_u32(&seed) % (E - 1) + (i % 7 == 0)); /* not distinct: no matter */
    for (int i = 0; i < N && idle; i++)
        chosen[i] += chosen[i] % 5 == 0; /* some have no rows */
    rig r;
    rig_open(&r);
    dev_place_args p = { .first = put(&r, NULL, (size_t)(E - idle + 1) * 4),
                         .busy = put(&r, NULL, (size_t)(E - idle) * 4),
                         .place = put(&r, NULL, sizeof place),
                         .sent = put(&r, NULL, sizeof sent),
                         .chosen = put(&r, chosen, sizeof chosen),
                         .T = T,
                         .E = E,
                         .k = K,
                         .idle = idle };
    ops->place(&r.d, &p);
    int at = 0;
    for (int e = 0; e < E; e++) {
        begin[e] = at;
        for (int i = 0; i < N; i++)
            if (chosen[i] == e) {
                want_place[i] = at;
                want_sent[at++] = i / K;
            }
    }
    begin[E] = at;
    if (get(&r, place, p.place, sizeof place, "place") &&
        get(&r, sent, p.sent, sizeof sent, "sent"))
        CHECK(memcmp(place, want_place, sizeof place) == 0 &&
                  memcmp(sent, want_sent, sizeof sent) == 0,
              "rows by expert, %d idle", idle);
    if (!get(&r, first, p.first, (size_t)(E - idle + 1) * 4, "first") ||
        !get(&r, busy, p.busy, (size_t)(E - idle) * 4, "busy"))
        return;
    int n = 0;
    for (int e = 0; e < E - idle; e++) {
        if (begin[e + 1] == begin[e]) continue;
        CHECK(busy[n] == e && first[n] == begin[e], "expert %d, %d idle", e, idle);
        n++;
    }
    for (; n <= E - idle; n++)
        CHECK(first[n] == begin[E - idle] && (n == E - idle || busy[n] == -1),
              "after the last, %d idle", idle);
    rig_close(&r);
}

TEST(many_rows_are_placed_in_order)
{
    place_many(0);
    place_many(9);
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
                      kv_types_text(dtypes[j]));
            rig_close(&r);
        }
}

/* Number d of a row of codes, as operands.h says what they are. */
static float number_of(const uint8_t *row, int d, int D, kv_dtype t)
{
    float scale;
    uint32_t head;
    memcpy(&scale, row, sizeof scale);
    memcpy(&head, row, sizeof head);
    if (t == KV_I8) return (float)(int8_t)row[4 + d] * scale;
    if (t == KV_F8) return lq_e4m3_to_f32(row[4 + d]) * scale;
    const int code = row[4 + d / 2] >> 4 * (d % 2) & 15;
    if (code == 8) return 0; /* of no sign */
    const unsigned four = head >> 4 * (d / attn_i4_block(D)) & 15;
    return (float)(code - 8) * attn_i4_scale(lq_bf16_to_f32((uint16_t)(head >> 16)), four);
}

TEST(blocks_of_codes_become_their_numbers_rounded_once)
{
    enum { BLOCKS = 3, BLOCK = 16, HKV = 2, D = 128, DV = 40, OUT = BLOCK * HKV * (D + DV) * 2 };
    static const kv_dtype dtypes[] = { KV_I8, KV_F8, KV_I4 };
    const int32_t list[BLOCKS] = { 2, -1, 0 };
    for (size_t i = 0; i < LQ_COUNT(dtypes); i++) {
        const kv_dtype t = dtypes[i];
        const size_t rk = attn_kv_row_bytes(t, D), rv = attn_kv_row_bytes(t, DV);
        const size_t keys = rk * HKV * BLOCK, stride = keys + rv * HKV * BLOCK;
        rig r;
        rig_open(&r);
        uint8_t *cache = lq_push(&r.a, stride * BLOCKS), *got = lq_push(&r.a, BLOCKS * OUT);
        uint16_t *want = lq_push(&r.a, BLOCKS * OUT);
        memset(want, 0x5a, BLOCKS * OUT);
        for (int n = 0; n < BLOCKS * BLOCK; n++) {
            uint8_t *at = cache + (size_t)(n / BLOCK) * stride;
            const float *x = floats(&r, HKV * (D + DV), 1 + (uint64_t)n);
            attn_kv_write(at, n % BLOCK, BLOCK, x, HKV, D, t);
            attn_kv_write(at + keys, n % BLOCK, BLOCK, x + HKV * D, HKV, DV, t);
        }
        for (int n = 0; n < BLOCKS; n++)
            for (int h = 0; h < HKV * BLOCK && list[n] >= 0; h++)
                for (int d = 0; d < D + DV; d++) {
                    const bool v = d >= D;
                    const uint8_t *at = cache + (size_t)list[n] * stride + (v ? keys : 0);
                    const float x =
                        number_of(at + (size_t)h * (v ? rv : rk), v ? d - D : d, v ? DV : D, t);
                    want[n * OUT / 2 + (v ? HKV * BLOCK * D + h * DV + d - D : h * D + d)] =
                        lq_f32_to_bf16(x);
                }
        uint8_t *on = put(&r, cache, stride * BLOCKS);
        dev_widen_args a = { .to = put(&r, NULL, BLOCKS * OUT),
                             .k = on,
                             .v = on + keys,
                             .blocks = put(&r, list, sizeof list),
                             .n = BLOCKS,
                             .block_stride = stride,
                             .to_stride = OUT,
                             .block_size = BLOCK,
                             .Hkv = HKV,
                             .D = D,
                             .Dv = DV,
                             .dtype = t };
        r.d.ops->upload(&r.d, a.to + OUT, want + OUT / 2, OUT); /* which nothing writes to */
        ops->widen(&r.d, &a);
        if (get(&r, got, a.to, BLOCKS * OUT, "widen"))
            CHECK(memcmp(got, want, BLOCKS * OUT) == 0, "%s: other numbers", kv_types_text(t));
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

TEST(launches_follow_where_the_code_waits_and_it_was_tried)
{
    static const struct {
        const char *why;
        int cc, ptx;
        bool want;
    } cases[] = { { "Ampere and Ada have none", 86, 80, false },
                  { "Hopper's own code", 90, 90, true },
                  { "older PTX waits for nothing", 90, 80, false },
                  { "a data centre's Blackwell", 100, 90, true },
                  { "not yet tried", 120, 120, false },
                  { "nor here", 121, 90, false } };
    for (size_t i = 0; i < LQ_COUNT(cases); i++)
        CHECK(dev_may_follow(cases[i].cc, cases[i].ptx) == cases[i].want, "%s", cases[i].why);
}

int main(int argc, char **argv)
{
    if (!rig_table()) return 0;
    RUN(launches_follow_where_the_code_waits_and_it_was_tried);
    RUN(norms_agree_with_the_cpu);
    RUN(a_row_that_registers_hold_has_the_bits_of_one_that_is_read_again);
    RUN(rows_side_by_side_are_normed_as_rows_apart_and_rounded_last);
    RUN(what_is_made_in_a_products_order_gives_it_the_same_bytes);
    RUN(a_row_in_two_parts_is_normed_as_one);
    RUN(activations_and_embeddings_are_the_cpus_bits);
    RUN(activations_of_experts_are_the_cpus_bits);
    RUN(experts_are_chosen_placed_and_joined);
    RUN(many_rows_are_placed_in_order);
    RUN(experts_of_no_numbers_are_distinct);
    RUN(rotation_and_the_cache_are_the_cpus_bits);
    RUN(blocks_of_codes_become_their_numbers_rounded_once);
    RUN(copies_take_rows_apart);
    return check_end();
}
