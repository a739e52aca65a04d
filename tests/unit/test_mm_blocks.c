/* tests/unit/test_mm_blocks.c - products with GGUF's blocks: the reference against the dequantized
 * matrix, every family against the reference, a row alone and among others. */
#include "formats/tensor/blocks.h"
#include "formats/tensor/tiles.h"
#include "kernels/mm.h"
#include "tests/support/check.h"
#include "tests/support/families.h"

#include <stdlib.h>

enum { M = 101, FEW = 21, N = 37 }; /* rows: more than a panel; a few */

static const blk_id types[] = {
#define X(name, id, elements, bytes) BLK_##name,
    BLK_TYPES(X)
#undef X
};

typedef struct {
    const blk_type *type;
    int64_t K;
    qt_tensor q; /* portable */
    mm_weight w;
    float *x, *dense, *y;
    lq_arena a;
} blocks_problem;

static uint64_t seed = 1;
static unsigned random_byte(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 40) & 255u;
}

/* Random blocks whose f16 are a sign and 2^-8 .. 2^8. */
static void fill_blocks(uint8_t *p, const blk_type *t, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)random_byte();
    for (size_t i = 0; i < bytes; i += (size_t)t->bytes) {
        const int at[] = { t->d_at, t->dmin_at };
        for (int j = 0; j < 2; j++)
            if (at[j] >= 0)
                p[i + (size_t)at[j] + 1] =
                    (uint8_t)((p[i + (size_t)at[j] + 1] & 0x83u) | (7 + random_byte() / 16) << 2);
        if (t->d_at < 0) p[i + 55] = (uint8_t)((p[i + 55] & 15u) | 0x30u); /* IQ1_M */
    }
}

static void make(blocks_problem *b, blk_id id, int64_t K)
{
    lq_err err = { "" };
    memset(b, 0, sizeof *b);
    b->type = blk_find((int64_t)id);
    b->K = K;
    const size_t bytes = (size_t)N * blk_row_bytes(b->type, K);
    uint8_t *p = lq_push(&b->a, bytes);
    b->x = lq_push(&b->a, (size_t)(M * K) * sizeof *b->x);
    b->dense = lq_push(&b->a, (size_t)(N * K) * sizeof *b->dense);
    b->y = lq_push(&b->a, (size_t)(M * N) * sizeof *b->y);
    CHECK(p && b->x && b->dense && b->y, "memory");
    fill_blocks(p, b->type, bytes);
    for (int64_t i = 0; i < M * K; i++)
        b->x[i] = ((float)random_byte() - 127.5f) / 32.0f;
    b->q = (qt_tensor){ .scheme = { .kind = QT_BLOCKS, .blocks = (int)id }, .N = N, .K = K };
    b->q.plane[QT_CODES] = (qt_span){ p, bytes };
    CHECK(!qt_check_view(&b->q, &err), "%s", err.msg);
    qt_dequant(b->dense, &b->q, 0, N);
    CHECK(!mm_pack(&b->w, &b->q, &b->a, NULL, &err), "%s", err.msg);
}

/* y of rows m0 .. m0 + n. */
static const float *product(blocks_problem *b, mm_acts acts, int64_t m0, int64_t n, pool *p)
{
    lq_arena scratch;
    CHECK(!lq_arena_init(&scratch, mm_scratch_bytes(n, b->K, 1, pool_threads(p)), NULL), "memory");
    const mm_out o = { .w = &b->w, .y = b->y + m0 * N, .ldy = N };
    mm_run(&o, 1, b->x + m0 * b->K, b->K, n, acts, &scratch, p);
    lq_arena_free(&scratch);
    return b->y;
}

static const int64_t sizes[] = { 512, 768, 576, 96 }; /* blocks of inputs of 128, 128, 64 and 32 */
#define EACH_PROBLEM(b, i, j)                        \
    for (size_t i = 0; i < LQ_COUNT(types); i++)     \
        for (size_t j = 0; j < LQ_COUNT(sizes); j++) \
            if (sizes[j] % blk_find((int64_t)types[i])->elements == 0)

TEST(f32_is_the_product_with_the_dequantized_matrix_to_the_bit)
{
    char name[16];
    EACH_PROBLEM(b, i, j)
    {
        blocks_problem b;
        make(&b, types[i], sizes[j]);
        for (int f = 0; family_use(f, name); f++) {
            const float *y = product(&b, MM_F32, 0, FEW, NULL);
            for (int64_t m = 0; m < FEW; m++)
                for (int64_t n = 0; n < N; n++) {
                    float sum = 0;
                    for (int64_t k = 0; k < b.K; k++)
                        sum = fmaf(b.x[m * b.K + k], b.dense[n * b.K + k], sum);
                    CHECK(memcmp(&sum, &y[m * N + n], 4) == 0, "%s, %s: [%d,%d] %g, expected %g",
                          b.type->name, name, (int)m, (int)n, (double)y[m * N + n], (double)sum);
                    if (check_bad) return;
                }
        }
        lq_arena_free(&b.a);
    }
}

/* Each input is rounded by half a step of its block at most, absmax/127; sums add K roundings. */
TEST(int8_is_within_the_rounding_of_its_inputs)
{
    char name[16];
    family_use(0, name);
    EACH_PROBLEM(b, i, j)
    {
        blocks_problem b;
        make(&b, types[i], sizes[j]);
        const int64_t A = b.K % 128 == 0 ? 128 : b.K % 64 == 0 ? 64 : 32;
        const float *y = product(&b, MM_I8, 0, FEW, NULL);
        for (int64_t m = 0; m < FEW; m++)
            for (int64_t n = 0; n < N; n++) {
                double want = 0, bound = 0;
                for (int64_t p = 0; p < b.K; p += A) {
                    double top = 0, size = 0;
                    for (int64_t k = p; k < p + A; k++) {
                        const double x = (double)b.x[m * b.K + k], w = (double)b.dense[n * b.K + k];
                        top = fmax(top, fabs(x));
                        size += fabs(w);
                        want += x * w;
                    }
                    bound += size * top * (0.5 / 127 + 6 * (double)b.K * 0x1p-24);
                }
                if (b.type->bias) /* code * scale and the bias may cancel */
                    bound += 1e-4 * fabs(want) + bound * 8 * (double)b.K * 0x1p-24;
                CHECK(fabs((double)y[m * N + n] - want) <= bound, "%s: [%d,%d] %g, expected %g+-%g",
                      b.type->name, (int)m, (int)n, (double)y[m * N + n], want, bound);
                if (check_bad) return;
            }
        lq_arena_free(&b.a);
    }
}

/* All families, the rows in companies of the given numbers. */
static void same_in_every_family(blocks_problem *b, pool *p)
{
    static const int64_t companies[] = { 1, 2, 3, 4, 5, 6, 8, 16, 19, 37, M };
    static float want[M * N];
    char name[16];
    family_use(0, name);
    memcpy(want, product(b, MM_I8, 0, M, NULL), sizeof want);
    for (int f = 1; family_use(f, name); f++)
        for (size_t i = 0; i < LQ_COUNT(companies); i++) {
            const int64_t n = companies[i], m = n == M ? 0 : M - n - (int64_t)i;
            const float *y = product(b, MM_I8, m, n, n & 1 ? p : NULL);
            CHECK(memcmp(y + m * N, want + m * N, (size_t)(n * N) * 4) == 0,
                  "%s, %s, K %d: rows %d..+%d", b->type->name, name, (int)b->K, (int)m, (int)n);
        }
}

TEST(every_family_and_every_company_gives_the_same_bytes)
{
    pool *p;
    CHECK(!pool_open(&p, 3, NULL), "pool");
    EACH_PROBLEM(b, i, j)
    {
        blocks_problem b;
        make(&b, types[i], sizes[j]);
        same_in_every_family(&b, p);
        lq_arena_free(&b.a);
        if (check_bad) break;
    }
    pool_close(p);
}

/* The largest sums: codes with all bits or none, inputs at both ends. */
TEST(codes_and_inputs_at_their_ends_fit_the_sums)
{
    EACH_PROBLEM(b, i, j)
    {
        blocks_problem b;
        make(&b, types[i], sizes[j]);
        uint8_t *p = lq_push(&b.a, b.q.plane[QT_CODES].bytes);
        memcpy(p, b.q.plane[QT_CODES].data, b.q.plane[QT_CODES].bytes);
        for (size_t k = 0; k < b.q.plane[QT_CODES].bytes; k++) {
            const int at = (int)(k % (size_t)b.type->bytes) & ~1;
            const bool half =
                b.type->d_at < 0 ? at >= 48 : at == b.type->d_at || at == b.type->dmin_at;
            if (!half) p[k] = k / (size_t)b.type->bytes % 2 ? 0 : 255;
        }
        b.q.plane[QT_CODES].data = p;
        lq_err err = { "" };
        CHECK(!mm_pack(&b.w, &b.q, &b.a, NULL, &err), "%s", err.msg);
        for (int64_t k = 0; k < M * b.K; k++) /* all at one end; pairs at both; in turns */
            b.x[k] = (k / b.K % 4 ? k / (1 << k / b.K % 4) : k / b.K) % 2 ? 1.0f : -1.0f;
        same_in_every_family(&b, NULL);
        lq_arena_free(&b.a);
    }
}

int main(int argc, char **argv)
{
    RUN(f32_is_the_product_with_the_dequantized_matrix_to_the_bit);
    RUN(int8_is_within_the_rounding_of_its_inputs);
    RUN(every_family_and_every_company_gives_the_same_bytes);
    RUN(codes_and_inputs_at_their_ends_fit_the_sums);
    return check_end();
}
