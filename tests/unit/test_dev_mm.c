/* tests/unit/test_dev_mm.c - matrix products of a device table against the CPU's: every scheme, at small
 * and odd shapes; and those of experts. */
#include "tests/support/devtwins.h"
#include "tests/support/emucounts.h"

static const char *const schemes[] = { FILL_SCHEMES };

static const struct {
    const char *why;
    int64_t M, N, K;
} shapes[] = {
    { "one of each", 1, 1, 32 },
    { "one row, a tail of steps", 1, 40, 608 },
    { "an odd width", 3, 17, 31 },
    { "padded groups", 4, 16, 172 },
    { "eight rows", 8, 33, 384 },
    { "nine rows", 9, 80, 128 },
    { "a step and a half", 17, 65, 96 },
    { "a panel and one", 65, 20, 256 },
    { "a narrow panel", 33, 40, 160 },
    { "blocks and splits, some short", 34, 270, 1056 },
    { "a step", 64, 15, 32 },
    { "panels, the last short of eight", 95, 129, 224 },
    { "parts of many inputs, in rows of two panels", 9, 17, 4256 },
};

static void one_product(const char *name, size_t shape, mm_acts acts, int cc)
{
    twins o;
    if (!twins_open(&o, name, shapes[shape].M, shapes[shape].N, shapes[shape].K, shape + 3)) return;
    o.dw = put_weight(&o.r, &o.w.t);
    if (cc && o.r.d.cc >= cc) o.r.d.cc = cc;
    twins_check(&o, name, shapes[shape].why, acts);
    rig_close(&o.r);
}

/* Every scheme and every shape, but of the pairs only half where check_hard does not ask for all. */
static bool runs_pair(size_t scheme, size_t shape)
{
    return (scheme + scheme / 6 + shape) % 2 == 0 || check_hard();
}

TEST(products_agree_with_the_cpu_in_f32)
{
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < LQ_COUNT(shapes); j++)
            if (shapes[j].M < 17 && runs_pair(i, j)) one_product(schemes[i], j, MM_F32, 0);
}

TEST(products_agree_with_the_cpu_on_bf16_activations)
{
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < LQ_COUNT(shapes); j++)
            if (j != 1 && (shapes[j].N < 128 || i % 6 == 0) && runs_pair(i, j))
                one_product(schemes[i], j, MM_BF16, 0);
}

/* Inputs that have one 1 each show the codes one by one. A NaN is one of its output alone. */
TEST(every_code_of_eight_bit_floats_is_its_number)
{
    enum { N = 32, K = 32, NAN_ROW = 3 };
    static const int64_t rows[] = { 1, 8, 9, 40 };
    int nans = 0;
    for (size_t i = 0; i < LQ_COUNT(rows); i++)
        for (int64_t first = 0; first < K; first += rows[i]) {
            twins o;
            lq_err err = { "" };
            if (!twins_open(&o, "fp8-e4m3", rows[i], N, K, 5)) return;
            uint8_t *codes = (uint8_t *)(uintptr_t)o.t.plane[QT_CODES].data;
            for (int k = 0; k < N * K; k++) {
                codes[k] = (uint8_t)(k % 256);
                if ((k & 0x7f) == 0x7f) codes[k] = k == NAN_ROW * K + 31 ? 0xff : 0;
            }
            CHECK(!mm_pack(&o.w, &o.t, &o.r.a, NULL, &err), "%s", err.msg);
            o.dw = put_weight(&o.r, &o.w.t);
            memset(o.x, 0, (size_t)(o.M * o.ldx) * sizeof *o.x);
            for (int64_t m = 0; m < o.M; m++)
                o.x[m * o.ldx + (first + m) % K] = 1;
            if (twins_run(&o, "each code", MM_BF16, false))
                for (int64_t k = 0; k < o.M * N; k++) {
                    const bool nan = k % N == NAN_ROW;
                    CHECK(nan ? isnan(o.got[k]) : o.got[k] == o.want[k],
                          "%lld rows, input %lld, output %lld: %g, not %g", (long long)o.M,
                          (long long)((first + k / N) % K), (long long)(k % N), (double)o.got[k],
                          (double)o.want[k]);
                    nans += nan;
                }
            rig_close(&o.r);
        }
    CHECK(nans > 0, "none has a NaN");
}

/* The same weight in rows, through cuBLAS where rows are many. */
static void one_in_rows(size_t shape, mm_acts acts, bool invariant)
{
    twins o;
    const int64_t N = shapes[shape].N, K = shapes[shape].K;
    if (K % TILE_K || !twins_open(&o, "bf16", shapes[shape].M, N, K, shape + 3)) return;
    const size_t launches = emu_counted.launches;
    if (ops->blas(&o.r.d)) {
        CHECK(dev_in_rows(&o.t), "%s", shapes[shape].why);
        o.r.d.batch_invariant = invariant;
        o.dw = put_weight(&o.r, &o.t);
        twins_check(&o, "bf16 in rows", shapes[shape].why, acts);
        const bool many = acts == MM_BF16 && o.M > DEV_MM_SMALL && !invariant;
        if (many && !getenv("LLMQ_TEST_DEVICE")) /* x arranged, bias, product; of CU_ROWS rows */
            CHECK(emu_counted.launches - launches == 3, "%s: %zu launches", shapes[shape].why,
                  emu_counted.launches - launches);
    }
    rig_close(&o.r);
}

TEST(weights_in_rows_agree_with_the_cpu)
{
    for (size_t j = 0; j < LQ_COUNT(shapes); j++) {
        one_in_rows(j, MM_BF16, false);
        one_in_rows(j, MM_F32, false);
        if (shapes[j].M < 20) one_in_rows(j, MM_BF16, true);
    }
}

TEST(few_rows_of_a_weight_in_rows_have_the_bits_of_tiles)
{
    twins o;
    float got[8 * 65];
    if (!twins_open(&o, "bf16", 8, 65, 1184, 7)) return;
    if (ops->blas(&o.r.d)) {
        o.dw = put_weight(&o.r, &o.t);
        twins_run(&o, "in rows", MM_BF16, false);
        memcpy(got, o.got, sizeof got);
        o.dw = put_weight(&o.r, &o.w.t);
        twins_run(&o, "in tiles", MM_BF16, false);
        CHECK(memcmp(got, o.got, sizeof got) == 0, "other bytes");
    }
    rig_close(&o.r);
}

TEST(many_rows_agree_where_there_is_no_wgmma)
{
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < LQ_COUNT(shapes); j++)
            if (shapes[j].M > 32 && shapes[j].N < 128 && runs_pair(i, j))
                one_product(schemes[i], j, MM_BF16, 89);
}

static const struct {
    const char *why;
    int64_t M, N, K;
    int n_sm;
    bool all; /* schemes */
} cuts[] = {
    { "two parts, the second short, an odd width", 1, 17, 608, 5, false },
    { "as many parts as there are rounds", 3, 16, 1056, 132, true },
    { "eight rows, a last part of two steps", 8, 33, 1600, 16, false },
    { "parts of several rounds", 2, 16, 3104, 3, false },
};

/* A product whose K is cut has its parts joined by the last of their blocks, in the launches that it
 * has on one multiprocessor, where it is not cut. */
static void joined_by_last(twins *o, const char *name, const char *why, mm_acts acts)
{
    const int n_sm[] = { o->r.d.n_sm, 1 };
    emu_counts c[2] = { { 0 } };
    if (getenv("LLMQ_TEST_DEVICE")) return;
    for (int i = 0; i < 2; i++) {
        const emu_counts before = emu_counted;
        o->r.d.n_sm = n_sm[i];
        twins_run(o, name, acts, false);
        c[i] = counted_since(&before);
    }
    CHECK(c[0].adds > 0 && c[1].adds == 0 && c[0].launches == c[1].launches,
          "%s, %s: %zu adds, %zu launches, not cut %zu and %zu", name, why, c[0].adds,
          c[0].launches, c[1].adds, c[1].launches);
    o->r.d.n_sm = n_sm[0];
}

/* Where K is cut depends on no M: rows that share a product with many, which takes part after part,
 * get the bits of those whose parts are blocks of their own. */
TEST(few_tiles_are_cut_along_k_and_rows_keep_their_bits)
{
    enum { MANY = 11 };
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < LQ_COUNT(cuts); j++) {
            const int64_t M = cuts[j].M, N = cuts[j].N, K = cuts[j].K;
            twins few, many;
            if ((!cuts[j].all && i % 5 != j) || !twins_open(&few, schemes[i], M, N, K, j)) continue;
            CHECK(twins_open(&many, schemes[i], MANY, N, K, j), "%s", schemes[i]);
            few.dw = put_weight(&few.r, &few.w.t);
            many.dw = put_weight(&many.r, &many.w.t);
            few.r.d.n_sm = many.r.d.n_sm = cuts[j].n_sm;
            twins_check(&few, schemes[i], cuts[j].why, MM_F32);
            twins_check(&many, schemes[i], cuts[j].why, MM_F32);
            CHECK(memcmp(few.got, many.got, (size_t)(M * N) * 4) == 0,
                  "%s, %s: other bits among many rows", schemes[i], cuts[j].why);
            twins_check(&few, schemes[i], cuts[j].why, MM_BF16);
            joined_by_last(&few, schemes[i], cuts[j].why, MM_F32);
            joined_by_last(&few, schemes[i], cuts[j].why, MM_BF16);
            rig_close(&many.r);
            rig_close(&few.r);
        }
}

static const struct {
    const char *why;
    int64_t M, N, K;
    int n_sm;
    bool all, cut; /* schemes; K */
} some[] = {
    /* without wgmma */
    { "a panel of 16, two parts, the second short", 9, 40, 1056, 132, true, true },
    { "a panel of 32, several parts", 17, 33, 2624, 16, false, true },
    { "all rows of 32, a tile alone behind pairs", 32, 48, 768, 2, true, false },
    { "a panel of 64, several parts", 33, 96, 3104, 20, false, true },
    { "all rows of 64, blocks of all warps", 64, 272, 544, 1, false, false },
    { "two panels, few multiprocessors", 65, 40, 1056, 2, false, false },
    { "all rows of 64, many parts", 64, 64, 2592, 8, false, true },
};

/* Between 9 and 64 rows and more, K in parts and whole; and with dev.batch_invariant any number of them
 * gives a row the same bits. */
TEST(some_rows_are_cut_along_k_and_alone_have_their_bits_where_asked_for)
{
    enum { MOST = 65, LEAST = 1 };
    size_t by_kernel = 0, by_last = 0;
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < LQ_COUNT(some); j++) {
            const int64_t M = some[j].M, N = some[j].N, K = some[j].K;
            twins few, many;
            const bool runs = some[j].all    ? runs_pair(i, j / 2)
                              : check_hard() ? i % 4 == j % 4
                                             : i % 8 == j;
            if (!runs || !twins_open(&few, schemes[i], M, N, K, j)) continue;
            few.dw = put_weight(&few.r, &few.w.t);
            few.r.d.n_sm = some[j].n_sm;
            if (few.r.d.cc > 89) few.r.d.cc = 89;
            const emu_counts before = emu_counted;
            twins_check(&few, schemes[i], some[j].why, MM_BF16);
            const qt_scheme *of = &few.t.scheme;
            const emu_counts c = counted_since(&before);
            if (some[j].cut && of->kind == QT_UINT && !of->act && !getenv("LLMQ_TEST_DEVICE")) {
                by_last += c.adds > 0;
                by_kernel += c.adds == 0;
                CHECK(c.adds ? c.launches == 2 : c.launches == 3, "%s, %s: %zu launches, %zu adds",
                      schemes[i], some[j].why, c.launches, c.adds);
            }
            few.r.d.batch_invariant = true;
            twins_check(&few, schemes[i], some[j].why, MM_BF16);
            const int64_t other = j % 2 ? LEAST : MOST;
            CHECK(twins_open(&many, schemes[i], other, N, K, j), "%s", schemes[i]);
            many.dw = put_weight(&many.r, &many.w.t);
            many.r.d.n_sm = some[j].n_sm;
            many.r.d.batch_invariant = true;
            twins_run(&few, schemes[i], MM_BF16, false);
            twins_run(&many, schemes[i], MM_BF16, false);
            CHECK(memcmp(few.got, many.got, (size_t)((M < other ? M : other) * N) * 4) == 0,
                  "%s, %s: other bits among %lld rows", schemes[i], some[j].why, (long long)other);
            rig_close(&many.r);
            rig_close(&few.r);
        }
    CHECK(getenv("LLMQ_TEST_DEVICE") || (by_kernel && by_last),
          "parts were joined by a kernel %zu times, by the last block %zu times", by_kernel,
          by_last);
}

/* As many warps as a multiprocessor alone may have of each, and no more than there is shared memory for,
 * the kernel's own arrays counted. */
TEST(rows_of_every_number_take_no_more_shared_memory_than_a_part_has)
{
    enum { N = 272, K = 256 };
    static const char *const close[] = { "u4-g64", "u2-g128", "u4-g128-fzero", "f32s u4-g128" };
    static const int64_t rows[] = { 8, 9, 24, 40 };
    const int parts[] = { 80, 86 }, usual = emu_cc; /* of 163 and 99 KiB */
    if (check_real_gpu("its shared memory is what it is")) return;
    for (size_t c = 0; c < LQ_COUNT(parts); c++)
        for (size_t i = 0; i < LQ_COUNT(schemes) + LQ_COUNT(close); i++)
            for (size_t j = 0; j < LQ_COUNT(rows); j++) {
                const bool extra = i >= LQ_COUNT(schemes);
                const char *name = extra ? close[i - LQ_COUNT(schemes)] : schemes[i];
                twins o;
                emu_cc = parts[c];
                if ((c || extra || i % 8 == 2 * j || check_hard()) &&
                    twins_open(&o, name, rows[j], N, K, j)) {
                    o.dw = put_weight(&o.r, &o.w.t);
                    o.r.d.n_sm = 1;
                    twins_check(&o, name, "a part's shared memory", MM_BF16);
                    rig_close(&o.r);
                }
            }
    emu_cc = usual;
}

/* Of one kernel: a graph has a launch that needs much shared memory, then there is one that does not. */
TEST(a_graph_keeps_the_shared_memory_that_a_later_product_does_not_need)
{
    static const int64_t rows[] = { 8, 12, 64 };
    for (size_t i = 0; i < LQ_COUNT(rows); i++) {
        const bool thin = rows[i] <= DEV_MM_SMALL;
        lq_err err = { "" };
        twins large, small;
        if (!twins_open(&large, "u4-g32", rows[i], thin ? 16 : 272, thin ? 4096 : 64, i) ||
            !twins_open(&small, "u4-g32", thin ? 1 : rows[i], 16, 64, i))
            return;
        large.dw = put_weight(&large.r, &large.w.t);
        small.dw = put_weight(&small.r, &small.w.t);
        if (large.r.d.cc > 89) large.r.d.cc = small.r.d.cc = 89;
        large.r.d.n_sm = small.r.d.n_sm = 1;
        const dev_mm_args a = twins_args(&large, MM_BF16, false);
        CHECK(!ops->capture(&large.r.d, &err), "%s", err.msg);
        ops->matmul(&large.r.d, &a);
        dev_graph *g = ops->captured(&large.r.d, &err);
        CHECK(g, "%s", err.msg);
        twins_check(&small, "u4-g32", "few inputs", MM_BF16);
        ops->replay(&large.r.d, g);
        get(&large.r, large.got, a.y, (size_t)(large.M * large.N) * 4, "the graph");
        ops->drop(&large.r.d, g);
        rig_close(&small.r);
        rig_close(&large.r);
    }
}

static const struct {
    const char *why;
    int64_t M, N, K;
    int n_sm;
    dev_act_kind kind;
    k_act_fn f;
} fused[] = {
    { "a pair", 1, 96, 192, 1, DEV_ACT_PAIR, ACT_SILU },
    { "a pair of single tiles, the last unit short", 8, 32, 160, 1, DEV_ACT_PAIR, ACT_GELU_TANH },
    { "a pair whose parts are joined", 3, 64, 1056, 132, DEV_ACT_PAIR, ACT_SWIGLU_CLAMPED },
    { "alone, an odd width", 5, 37, 288, 1, DEV_ACT_ALONE, ACT_RELU2 },
    { "alone, two tiles a block", 2, 288, 128, 1, DEV_ACT_ALONE, ACT_GELU },
};

/* A product that ends with an activation has the bits of both, one after the other. */
static void one_fused(const char *name, size_t j, bool bf16)
{
    const int64_t M = fused[j].M, N = fused[j].N, pair = fused[j].kind == DEV_ACT_PAIR,
                  n = pair ? N / 2 : N;
    const size_t bytes = (size_t)(M * N) * 4;
    twins o;
    if (!twins_open(&o, name, M, N, fused[j].K, j + 11)) return;
    o.r.d.n_sm = fused[j].n_sm;
    o.dw = put_weight(&o.r, &o.w.t);
    const qt_scheme *s = &o.dw.t.scheme; /* f32: also of blocks that lie over rows */
    if (s->kind == QT_DENSE && s->dtype == LQ_F32) {
        CHECK(!dev_acts(&o.r.d, &o.dw, MM_BF16, M, fused[j].kind), "%s", name);
        rig_close(&o.r);
        return;
    }
    dev_mm_args a = { .y = put(&o.r, o.got, bytes),
                      .w = &o.dw,
                      .x = put(&o.r, o.x, (size_t)(M * o.ldx) * 4),
                      .bias = put(&o.r, o.bias, (size_t)N * 4),
                      .scratch = put(&o.r, NULL, ops->mm_scratch(&o.dw, M)),
                      .ldy = N,
                      .ldx = o.ldx,
                      .M = M,
                      .acts = MM_BF16 };
    const dev_act_args act = { .dst = a.y,
                               .gate = a.y,
                               .up = pair ? a.y + n : NULL,
                               .T = M,
                               .n = n,
                               .ldd = N,
                               .ld = N,
                               .f = fused[j].f,
                               .limit = 3,
                               .bf16 = bf16 };
    CHECK(dev_acts(&o.r.d, &o.dw, MM_BF16, M, fused[j].kind), "%s", name);
    emu_counts before = emu_counted;
    ops->matmul(&o.r.d, &a);
    const size_t of_product = counted_since(&before).launches;
    ops->act(&o.r.d, &act);
    bool ok = get(&o.r, o.want, a.y, bytes, name);
    a.act = (dev_mm_act){ fused[j].kind, fused[j].f, 3, bf16 };
    before = emu_counted;
    ops->matmul(&o.r.d, &a);
    const emu_counts c = counted_since(&before);
    ok = ok && get(&o.r, o.got, a.y, bytes, name);
    for (int64_t m = 0; m < M && ok; m++)
        CHECK(memcmp(o.want + m * N, o.got + m * N, (size_t)n * 4) == 0, "%s, %s, row %lld", name,
              fused[j].why, (long long)m);
    CHECK(getenv("LLMQ_TEST_DEVICE") || c.launches == of_product, "%s: %zu launches, %zu without",
          fused[j].why, c.launches, of_product);
    CHECK(getenv("LLMQ_TEST_DEVICE") || (c.adds > 0) == (fused[j].n_sm > 1), "%s: %zu adds",
          fused[j].why, c.adds);
    rig_close(&o.r);
}

TEST(a_product_that_ends_with_an_activation_has_the_bits_of_both)
{
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < LQ_COUNT(fused); j++) {
            if (fill_scheme(schemes[i]).act) continue;
            one_fused(schemes[i], j, j % 2);
        }
    rig r;
    rig_open(&r);
    const qt_scheme s = fill_scheme("u4-g32");
    dev_weight w = { .t = { .scheme = s, .N = 48, .K = 64 } };
    CHECK(!dev_acts(&r.d, &w, MM_BF16, 1, DEV_ACT_PAIR), "a tile of both");
    w.t.N = 64;
    CHECK(dev_acts(&r.d, &w, MM_BF16, DEV_MM_SMALL, DEV_ACT_PAIR) &&
              !dev_acts(&r.d, &w, MM_BF16, DEV_MM_SMALL + 1, DEV_ACT_PAIR) &&
              !dev_acts(&r.d, &w, MM_F32, 1, DEV_ACT_PAIR) &&
              !dev_acts(&r.d, &w, MM_I8, 1, DEV_ACT_PAIR),
          "where there is none");
    r.d.batch_invariant = true;
    CHECK(!dev_acts(&r.d, &w, MM_BF16, 1, DEV_ACT_PAIR), "in the order of many rows");
    rig_close(&r);
}

static const struct {
    const char *why;
    int64_t M, N, K;
    bool layer, w, b;
} normed[] = {
    { "one row", 1, 48, 192, false, true, false },
    { "eight rows, mean and bias", 8, 33, 1056, true, true, true },
    { "three rows in parts of K, which are blocks of their own", 3, 16, 12320, false, true, false },
    { "no weight", 2, 17, 4256, true, false, false },
};

/* A product that begins with a norm has the bits of both, one after the other. */
static void one_normed(const char *name, size_t j)
{
    const int64_t M = normed[j].M, N = normed[j].N, K = normed[j].K;
    const size_t bytes = (size_t)(M * N) * 4;
    twins o;
    if (!twins_open(&o, name, M, N, K, j + 17)) return;
    o.dw = put_weight(&o.r, &o.w.t);
    if (!dev_norms(&o.r.d, &o.dw, MM_BF16, M)) {
        const qt_scheme *s = &o.dw.t.scheme;
        CHECK((s->kind == QT_DENSE && s->dtype == LQ_F32) || s->act || s->act_order ||
                  s->kind == QT_I8_OUTLIER || o.dw.s.G != o.dw.s.Gp || o.dw.s.Kp != K,
              "%s begins with no norm", name);
        rig_close(&o.r);
        return;
    }
    float *x = floats(&o.r, M * K, 1), *w = floats(&o.r, K, 2), *b = floats(&o.r, K, 3);
    const dev_mm_norm norm = { normed[j].w ? put(&o.r, w, (size_t)K * 4) : NULL,
                               normed[j].b ? put(&o.r, b, (size_t)K * 4) : NULL, 1, 1e-5f,
                               normed[j].layer };
    const dev_norm_args first = { .x = put(&o.r, x, (size_t)(M * K) * 4),
                                  .h = put(&o.r, NULL, (size_t)(M * K) * 4),
                                  .w = norm.w,
                                  .b = norm.b,
                                  .offset = norm.offset,
                                  .eps = norm.eps,
                                  .layer = norm.layer,
                                  .bf16 = true,
                                  .T = M,
                                  .K = K };
    dev_mm_args a = { .y = put(&o.r, o.got, bytes),
                      .w = &o.dw,
                      .x = first.h,
                      .bias = put(&o.r, o.bias, (size_t)N * 4),
                      .scratch = put(&o.r, NULL, ops->mm_scratch(&o.dw, M)),
                      .ldy = N,
                      .ldx = K,
                      .M = M,
                      .acts = MM_BF16,
                      .rounded = true };
    ops->norm(&o.r.d, &first);
    ops->matmul(&o.r.d, &a);
    bool ok = get(&o.r, o.want, a.y, bytes, name);
    a.x = first.x;
    a.rounded = false;
    a.norm = &norm;
    ops->matmul(&o.r.d, &a);
    ok = ok && get(&o.r, o.got, a.y, bytes, name);
    CHECK(!ok || memcmp(o.want, o.got, bytes) == 0, "%s, %s: other bits", name, normed[j].why);
    rig_close(&o.r);
}

TEST(a_product_that_begins_with_a_norm_has_the_bits_of_both)
{
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < LQ_COUNT(normed); j++)
            if (j < 2 || i % 4 == 0) one_normed(schemes[i], j);
    rig r;
    rig_open(&r);
    dev_weight w = { .t = { .scheme = fill_scheme("u4-g32"), .N = 48, .K = 64 } };
    w.s = tiles_shape(&w.t.scheme, 48, 64);
    CHECK(dev_norms(&r.d, &w, MM_BF16, DEV_MM_SMALL) &&
              !dev_norms(&r.d, &w, MM_BF16, DEV_MM_SMALL + 1) && !dev_norms(&r.d, &w, MM_F32, 1) &&
              !dev_norms(&r.d, &w, MM_I8, 1),
          "where there is none");
    r.d.batch_invariant = true;
    CHECK(!dev_norms(&r.d, &w, MM_BF16, 1), "in the order of many rows");
    rig_close(&r);
}

static const struct {
    const char *why;
    int64_t N, K;
    int n_sm;
} orders[] = {
    { "a block goes over several tiles", 176, 160, 1 },
    { "more tiles than blocks by one, a unit and a step", 64, 288, 1 },
    { "two parts, blocks of their own for eight rows", 40, 4256, 1 },
    { "three parts, tiles cut besides", 16, 8320, 16 },
    { "three parts, of one row x of one at a time", 40, 8320, 1 },
};

/* The order of a row's sums depends on no other row, whether its parts of K are one block's or not.
 */
TEST(up_to_eight_rows_have_the_bits_of_one)
{
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < LQ_COUNT(orders); j++) {
            const int64_t N = orders[j].N, K = orders[j].K;
            twins one, all;
            if (i % LQ_COUNT(orders) != j || !twins_open(&all, schemes[i], 8, N, K, j)) continue;
            CHECK(twins_open(&one, schemes[i], 1, N, K, j), "%s", schemes[i]);
            one.dw = put_weight(&one.r, &one.w.t);
            all.dw = put_weight(&all.r, &all.w.t);
            one.r.d.n_sm = all.r.d.n_sm = orders[j].n_sm;
            if (j == 2) all.r.d.shared_per_block = 99 << 10; /* sm_86: not for eight rows at once */
            if (j == 4) one.r.d.shared_per_block = 88 << 10; /* nor this for one */
            twins_check(&all, schemes[i], orders[j].why, MM_BF16);
            twins_check(&one, schemes[i], orders[j].why, MM_BF16);
            CHECK(memcmp(one.got, all.got, (size_t)N * 4) == 0, "%s, %s: other bits among eight",
                  schemes[i], orders[j].why);
            rig_close(&all.r);
            rig_close(&one.r);
        }
}

static const struct {
    const char *why;
    int64_t M, N, K;
    int cc;
} real[] = {
    { "gate and up, one row", 1, 28672, 4096, 90 },
    { "down, eight rows", 8, 4096, 14336, 90 },
    { "down, some rows", 24, 4096, 14336, 89 },
    { "gate and up, a panel", 40, 28672, 512, 90 },
};

/* Of a model of 8 B, on as many multiprocessors as an H100 has. */
TEST(products_of_real_sizes_agree_with_the_cpu)
{
    for (size_t i = 0; i < LQ_COUNT(real); i++) {
        twins o;
        if (!twins_open(&o, "u4-g128", real[i].M, real[i].N, real[i].K, i)) continue;
        o.dw = put_weight(&o.r, &o.w.t);
        if (o.r.d.cc > real[i].cc) o.r.d.cc = real[i].cc;
        if (!getenv("LLMQ_TEST_DEVICE")) o.r.d.n_sm = 132;
        twins_check(&o, "u4-g128", real[i].why, MM_BF16);
        rig_close(&o.r);
    }
}

/* ---- integer products ---- */
static const struct {
    const char *why;
    int64_t M, N, K;
} int_shapes[] = {
    { "one of each", 1, 1, 32 },
    { "one row, an odd width", 1, 17, 96 },
    { "short of a tile, padded groups", 2, 15, 172 },
    { "a round of the block and a step", 3, 16, 1056 },
    { "eight rows", 8, 33, 384 },
    { "nine rows", 9, 80, 128 },
    { "sixteen rows, an odd width", 16, 17, 31 },
    { "a stage and a half", 17, 65, 96 },
    { "short of a panel, one tile of four", 63, 16, 160 },
    { "a panel and one", 65, 20, 256 },
    { "more than a launch has (CU_ROWS)", 100, 16, 64 },
    { "many inputs, one row", 1, 16, 8192 },
    { "many inputs, nine rows", 9, 16, 8192 },
};

/* Rows that are large, tiny, zero, of one number alone, or not finite. */
static void strain(float *x, int64_t M, int64_t ldx, int64_t K)
{
    for (int64_t m = 0; m < M; m++)
        for (int64_t k = 0; k < K; k++) {
            float *v = &x[m * ldx + k];
            switch (m % 7) {
            case 1:
                *v *= 1e30f;
                break;
            case 2:
                *v *= k % 64 < 32 ? 1e-33f : 1;
                break;
            case 3:
                *v = k % 2 ? -1 : 1;
                break;
            case 4:
                *v = 0;
                break;
            case 5:
                if (k == K / 2) *v = m % 2 ? NAN : INFINITY;
            }
        }
}

/* Same bits, or NaN both. */
static int64_t differ(const float *got, const float *want, int64_t n)
{
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad += memcmp(&got[i], &want[i], 4) != 0 && !(isnan(got[i]) && isnan(want[i]));
    return bad;
}

static void one_of_integers(const char *name, size_t shape, bool strained)
{
    const int64_t M = int_shapes[shape].M, N = int_shapes[shape].N, K = int_shapes[shape].K;
    twins o;
    if (!twins_open(&o, name, M, N, K, shape + 3)) return;
    if (strained) {
        const qt_span codes = o.w.t.plane[QT_CODES];
        strain(o.x, M, o.ldx, K);
        memset((void *)(uintptr_t)codes.data, 255, codes.bytes); /* the largest code of all */
    }
    o.dw = put_weight(&o.r, &o.w.t);
    if (dev_mm_ints(&o.dw, MM_I8) && twins_run(&o, name, MM_I8, shape % 2)) {
        const int64_t others = differ(o.got, o.want, M * N);
        CHECK(others == 0, "%s, %s%s: %lld of %lld are others", name, int_shapes[shape].why,
              strained ? ", strained" : "", (long long)others, (long long)(M * N));
    }
    rig_close(&o.r);
}

TEST(products_of_integers_are_the_cpus_to_the_bit)
{
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < LQ_COUNT(int_shapes); j++)
            if (int_shapes[j].K < 8192 || i % 3 == 0) {
                one_of_integers(schemes[i], j, false);
                if (int_shapes[j].K < 8192) one_of_integers(schemes[i], j, true);
            }
}

/* ---- scratch ---- */

/* It is taken once, for the most rows, and fewer must do with it. */
TEST(fewer_rows_take_no_more_scratch)
{
    static const struct {
        int64_t N, K;
    } of[] = { { 12800, 1024 }, { 1152, 4096 }, { 40, 8192 }, { 270, 1056 }, { 17, 32 } };
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < LQ_COUNT(of); j++) {
            qt_scheme s = fill_scheme(schemes[i]);
            if (fill_misfit(&s, of[j].K)) continue;
            if (s.kind == QT_UINT && !s.group) s.group = of[j].K;
            const dev_weight w = { { .scheme = s, .N = of[j].N, .K = of[j].K },
                                   tiles_shape(&s, of[j].N, of[j].K) };
            size_t before = 0;
            for (int64_t M = 1; M < 700; M++) {
                const size_t n = ops->mm_scratch(&w, M);
                CHECK(n >= before, "%s, %lld x %lld: %zu bytes for %lld rows, %zu for one less",
                      schemes[i], (long long)of[j].N, (long long)of[j].K, n, (long long)M, before);
                before = n;
            }
        }
}

/* ---- products of the same inputs ---- */

static dev_weight some_weight(rig *r, const char *name, int64_t N, int64_t K, uint64_t seed)
{
    qt_scheme s = fill_scheme(name);
    if (s.kind == QT_I8_OUTLIER) s.n_out = K / 9 + 1;
    qt_tensor t = fill_tensor(s, N, K, &r->a, seed);
    mm_weight w;
    lq_err err = { "" };
    CHECK(!mm_pack(&w, &t, &r->a, NULL, &err), "%s", err.msg);
    return put_weight(r, &w.t);
}

/* The second product with and without what the first has arranged. */
static void check_arranged(rig *r, const dev_weight *first, const dev_weight *then, int64_t M,
                           mm_acts acts, const char *why)
{
    const int64_t N = then->t.N, K = then->t.K, ldx = K + 3;
    const size_t one = ops->mm_scratch(first, M), other = ops->mm_scratch(then, M);
    float *x = floats(r, M * ldx, 1), *want = floats(r, M * N, 3), *got = floats(r, M * N, 4);
    dev_mm_args a = { .y = put(r, want, (size_t)(M * N) * 4),
                      .w = then,
                      .x = put(r, x, (size_t)(M * ldx) * 4),
                      .scratch = put(r, NULL, one > other ? one : other),
                      .ldy = N,
                      .ldx = ldx,
                      .M = M,
                      .acts = acts };
    ops->matmul(&r->d, &a);
    if (!get(r, want, a.y, (size_t)(M * N) * 4, why)) return;
    a.w = first;
    ops->matmul(&r->d, &a);
    a.w = then;
    a.arranged = true;
    const size_t before = emu_counted.launches;
    ops->matmul(&r->d, &a);
    const size_t launches = emu_counted.launches - before;
    if (!get(r, got, a.y, (size_t)(M * N) * 4, why)) return;
    CHECK(memcmp(want, got, (size_t)(M * N) * 4) == 0, "%s, %lld rows: other bytes", why,
          (long long)M);
    CHECK(getenv("LLMQ_TEST_DEVICE") || M > 96 || launches == 1, "%s, %lld rows: %zu launches", why,
          (long long)M, launches);
}

TEST(what_was_arranged_for_a_product_serves_those_of_the_same_inputs)
{
    enum { N = 16, K = 192 };
    int alike = 0;
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < LQ_COUNT(schemes); j++) {
            const qt_scheme s = fill_scheme(schemes[i]), t = fill_scheme(schemes[j]);
            char why[80];
            if (fill_misfit(&s, K) || fill_misfit(&t, K)) continue;
            rig r;
            rig_open(&r);
            const dev_weight a = some_weight(&r, schemes[i], N, K, 1),
                             b = some_weight(&r, schemes[j], N, K, 2);
            snprintf(why, sizeof why, "%.30s, then %.30s", schemes[i], schemes[j]);
            if (dev_same_input(&a, &b, MM_BF16)) {
                alike++;
                const size_t turn = (i + j) % (check_hard() ? 5 : 11);
                if (turn == 0) check_arranged(&r, &a, &b, 3, MM_BF16, why);
                if (turn == 1) check_arranged(&r, &a, &b, 9, MM_BF16, why);
                if (turn == 2) check_arranged(&r, &a, &b, 40, MM_BF16, why);
                if (i == j) check_arranged(&r, &a, &b, 2, MM_F32, why);
                if (i == j) check_arranged(&r, &a, &b, 9, MM_I8, why);
                if (i == j && alike < 20) /* of more rows than one launch takes (CU_ROWS) */
                    check_arranged(&r, &a, &b, 100, MM_BF16, why);
            }
            rig_close(&r);
        }
    CHECK(alike > (int)LQ_COUNT(schemes), "%d pairs of %d", alike, (int)LQ_COUNT(schemes));
}

TEST(inputs_are_the_same_only_where_all_of_their_arrangement_is)
{
    static const struct {
        const char *why, *a, *b;
        int64_t K, then; /* inputs of either */
        bool same;
        mm_acts acts;
    } cases[] = {
        { "int8, blocks of one size", "u4-g32", "u8-g32", 192, 192, true, MM_I8 },
        { "int8, blocks of another", "u4-g32", "u4-g64-asym", 192, 192, false, MM_I8 },
        { "int8, and what is bf16 there", "u4-g32", "bf16", 192, 192, false, MM_I8 },
        { "int8 that neither is", "nf4", "mxfp4", 192, 192, true, MM_I8 },
        { "codes that cuBLAS has from fewer rows on", "nf4", "u4-g64-asym", 192, 192, false,
          MM_BF16 },
        { "codes in groups of another size", "u4-g32", "u4-g64-asym", 192, 192, true, MM_BF16 },
        { "codes of other widths", "u4-g32", "u8-g32", 192, 192, true, MM_BF16 },
        { "u3 with biases, whose panels are taller", "u3-g64-bias", "u8-g64-bias", 192, 192, false,
          MM_BF16 },
        { "groups without padding", "u4-g32", "bf16", 192, 192, true, MM_BF16 },
        { "groups with it", "u4-g16-asym", "u4-g32", 192, 192, false, MM_BF16 },
        { "more inputs", "u4-g32", "u4-g32", 192, 224, false, MM_BF16 },
        { "f32, of which the units take none", "f32", "bf16", 192, 192, false, MM_BF16 },
        { "an order of its own", "gidx u4-g32-asym", "u4-g32", 192, 192, false, MM_BF16 },
        { "inputs apart", "i8-outlier", "i8-row", 192, 192, false, MM_BF16 },
    };
    rig r;
    rig_open(&r);
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const dev_weight a = some_weight(&r, cases[i].a, 16, cases[i].K, 1),
                         b = some_weight(&r, cases[i].b, 16, cases[i].then, 2);
        CHECK(dev_same_input(&a, &b, cases[i].acts) == cases[i].same &&
                  dev_same_input(&b, &a, cases[i].acts) == cases[i].same,
              "%s", cases[i].why);
    }
    dev_weight a = some_weight(&r, "u4-g32", 16, 192, 1), b;
    a.t.scheme.act = QT_ACT_I8;
    b = a;
    CHECK(dev_same_input(&a, &b, MM_BF16), "rounded alike");
    b.t.scheme.act_scale = 0.5f;
    CHECK(!dev_same_input(&a, &b, MM_BF16), "a scale of its own");
    b = a;
    b.t.scheme.act_group = 32;
    CHECK(!dev_same_input(&a, &b, MM_BF16), "other groups");
    b = a;
    b.t.scheme.act = QT_ACT_F8;
    CHECK(!dev_same_input(&a, &b, MM_BF16), "another rounding");
    rig_close(&r);
}

/* ---- products of experts ---- */
typedef struct {
    const char *why;
    int64_t T, k, E, N, K;
    mm_acts acts;
    bool all, absent; /* for all schemes; the last expert is of no group */
} group_case;
static const group_case groups[] = {
    { "one row", 1, 2, 5, 40, 96, MM_F32, false, false },
    { "three rows", 3, 2, 4, 17, 128, MM_F32, true, false },
    { "five rows of bf16, experts without any", 5, 1, 40, 16, 64, MM_BF16, false, false },
    { "nine rows in f32, an expert left out", 9, 3, 4, 33, 64, MM_F32, false, true },
    { "eight rows of many inputs, one part at a time", 8, 1, 2, 20, 4256, MM_BF16, false, false },
    { "through the units", 12, 2, 4, 20, 128, MM_BF16, true, false },
    { "through the units, more than a panel and than a launch (CU_ROWS)", 70, 2, 3, 80, 64, MM_BF16,
      false, true },
    { "through wgmma, nobody alone", 80, 1, 2, 40, 160, MM_BF16, true, false },
    { "through wgmma, one left out, more than a launch has (CU_ROWS)", 60, 2, 3, 20, 64, MM_BF16,
      false, true },
    { "through wgmma, seven experts, a step", 96, 3, 7, 17, 32, MM_BF16, false, true },
    { "integers, five rows", 5, 2, 4, 33, 128, MM_I8, true, true },
    { "integers, twelve rows", 12, 2, 3, 20, 192, MM_I8, true, false },
    { "integers, more than a panel and than a launch (CU_ROWS)", 70, 2, 3, 80, 64, MM_I8, false,
      true },
};
static const char *const few_schemes[] = { "u4-g32", "bf16", "i8-outlier" };

/* k of E for each row, rising; each row's own. */
static void choose(int32_t *chosen, const group_case *c)
{
    uint64_t seed = (uint64_t)c->T;
    for (int64_t t = 0; t < c->T; t++)
        for (int64_t e = 0, left = c->k; e < c->E && left; e++)
            if ((int64_t)fill_u32(&seed) % (c->E - e) < left)
                chosen[t * c->k + c->k - left--] = (int32_t)e;
}

/* n_sm: multiprocessors that are counted on; 0: those that there are. A group's weights are not cut along K, so alone each is
 * multiplied as on one multiprocessor. */
static void one_group(const char *name, const group_case *c, int n_sm)
{
    enum { MOST = 40 };
    const int64_t M = c->T * c->k, N = c->N, K = c->K, ldx = K + 3;
    const qt_scheme s = fill_scheme(name);
    if (fill_misfit(&s, K)) return;
    rig r;
    rig_open(&r);
    if (n_sm) r.d.n_sm = n_sm;
    lq_err err = { "" };
    qt_tensor t[MOST];
    mm_weight w[MOST];
    dev_weight dw[MOST], in[MOST], like;
    float *bias[MOST];
    const float *bias_on[MOST];
    for (int64_t e = 0; e < c->E; e++) {
        qt_scheme own = s;
        if (s.kind == QT_I8_OUTLIER) own.n_out = K / 9 + 1 - e % (K / 9);
        if (s.act && e % 2) own.act_scale = 0.01f * (float)(e + 1);
        t[e] = fill_tensor(own, N, K, &r.a, (uint64_t)e + 1);
        CHECK(!mm_pack(&w[e], &t[e], &r.a, NULL, &err), "%s", err.msg);
        in[e] = dw[e] = put_weight(&r, &w[e].t);
        bias[e] = floats(&r, N, (uint64_t)e + 50);
        bias_on[e] = put(&r, bias[e], (size_t)N * 4);
        CHECK(dev_same_group(&dw[e].t.scheme, &dw[0].t.scheme), "%s: not of one group", name);
    }
    like = dw[0]; /* with the most outliers */
    memset(like.t.plane, 0, sizeof like.t.plane);
    if (c->absent) in[c->E - 1] = (dev_weight){ 0 };
    int32_t *chosen = lq_push(&r.a, (size_t)M * 4), *first = lq_push(&r.a, (size_t)(c->E + 1) * 4),
            *busy = lq_push(&r.a, (size_t)c->E * 4);
    choose(chosen, c);
    dev_place_args p = { .first = put(&r, NULL, (size_t)(c->E + 1) * 4),
                         .busy = put(&r, NULL, (size_t)c->E * 4),
                         .place = put(&r, NULL, (size_t)M * 4),
                         .sent = put(&r, NULL, (size_t)M * 4),
                         .chosen = put(&r, chosen, (size_t)M * 4),
                         .T = c->T,
                         .E = c->E,
                         .k = c->k };
    ops->place(&r.d, &p);
    float *x = floats(&r, M * ldx, 1), *want = floats(&r, M * N, 3), *got = floats(&r, M * N, 4),
          *alone = floats(&r, M * N, 5), *dense = lq_push(&r.a, (size_t)(N * K) * 4);
    void *parts = put(&r, NULL, (size_t)c->E * DEV_GROUP_EACH);
    ops->mm_group(&r.d, parts, in, bias_on, c->E);
    const dev_group g = { parts, p.first, p.busy, c->E, c->T };
    dev_mm_args a = { .y = put(&r, want, (size_t)(M * N) * 4),
                      .w = &like,
                      .group = &g,
                      .x = put(&r, x, (size_t)(M * ldx) * 4),
                      .scratch = put(&r, NULL, ops->mm_scratch(&like, M)),
                      .ldy = N,
                      .ldx = ldx,
                      .M = M,
                      .acts = c->acts };
    ops->matmul(&r.d, &a);
    float *alone_on = put(&r, want, (size_t)(M * N) * 4);
    const bool ok = get(&r, got, a.y, (size_t)(M * N) * 4, name) &&
                    get(&r, first, p.first, (size_t)(c->E + 1) * 4, name) &&
                    get(&r, busy, p.busy, (size_t)c->E * 4, name);
    for (int64_t i = 0; ok && i < c->E && busy[i] >= 0; i++) {
        const int64_t e = busy[i], from = first[i], n = first[i + 1] - from, b = from * N;
        const bool ints = dev_mm_ints(&dw[e], c->acts),
                   units = c->acts != MM_F32 && !ints && c->T > DEV_MM_SMALL,
                   two = c->acts != MM_F32 && as_two(&t[e].scheme);
        if (c->absent && e == c->E - 1) {
            CHECK(memcmp(got + b, want + b, (size_t)(n * N) * 4) == 0, "%s, %s: written", name,
                  c->why);
            continue;
        }
        const mm_acts acts = ints ? MM_I8 : c->acts != MM_F32 ? MM_BF16 : MM_F32;
        on_cpu(want + b, &w[e], x + from * ldx, ldx, bias[e], n, acts, false);
        qt_dequant(dense, &t[e], 0, N);
        const double worst =
            ints ? (differ(got + b, want + b, n * N) ? HUGE_VAL : 0)
                 : of_bound(got + b, want + b, x + from * ldx, ldx, dense, n, N, K, two);
        CHECK(worst <= 1, "%s, %s, expert %lld: %g of the bound", name, c->why, (long long)e,
              worst);
        if (units && n <= DEV_MM_SMALL) continue; /* alone they are added in another order */
        a.y = alone_on + b;
        a.w = &dw[e];
        a.group = NULL;
        a.x += from * ldx;
        a.bias = bias_on[e];
        a.M = n;
        const int there = r.d.n_sm;
        r.d.n_sm = 1;
        ops->matmul(&r.d, &a);
        r.d.n_sm = there;
        a.x -= from * ldx;
        if (get(&r, alone + b, a.y, (size_t)(n * N) * 4, name))
            CHECK(memcmp(alone + b, got + b, (size_t)(n * N) * 4) == 0,
                  "%s, %s, expert %lld: not the bits that it gives alone", name, c->why,
                  (long long)e);
    }
    rig_close(&r);
}

TEST(experts_products_in_one_launch_are_each_ones_own)
{
    for (size_t i = 0; i < LQ_COUNT(groups); i++)
        for (size_t j = 0; j < (groups[i].all ? LQ_COUNT(schemes) : LQ_COUNT(few_schemes)); j++) {
            if (groups[i].all && !runs_pair(j, i / 2)) continue;
            for (int many = 0; many <= (groups[i].K > 1000); many++)
                one_group(groups[i].all ? schemes[j] : few_schemes[j], &groups[i], many ? 132 : 0);
        }
}

int main(int argc, char **argv)
{
    if (!rig_table()) return 0;
    RUN(products_agree_with_the_cpu_in_f32);
    RUN(products_agree_with_the_cpu_on_bf16_activations);
    RUN(every_code_of_eight_bit_floats_is_its_number);
    RUN(few_tiles_are_cut_along_k_and_rows_keep_their_bits);
    RUN(some_rows_are_cut_along_k_and_alone_have_their_bits_where_asked_for);
    RUN(rows_of_every_number_take_no_more_shared_memory_than_a_part_has);
    RUN(a_graph_keeps_the_shared_memory_that_a_later_product_does_not_need);
    RUN(a_product_that_ends_with_an_activation_has_the_bits_of_both);
    RUN(a_product_that_begins_with_a_norm_has_the_bits_of_both);
    RUN(up_to_eight_rows_have_the_bits_of_one);
    if (check_hard()) RUN(products_of_real_sizes_agree_with_the_cpu);
    RUN(weights_in_rows_agree_with_the_cpu);
    RUN(few_rows_of_a_weight_in_rows_have_the_bits_of_tiles);
    RUN(many_rows_agree_where_there_is_no_wgmma);
    RUN(products_of_integers_are_the_cpus_to_the_bit);
    RUN(fewer_rows_take_no_more_scratch);
    RUN(what_was_arranged_for_a_product_serves_those_of_the_same_inputs);
    RUN(inputs_are_the_same_only_where_all_of_their_arrangement_is);
    RUN(experts_products_in_one_launch_are_each_ones_own);
    return check_end();
}
