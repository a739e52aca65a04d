/* tests/unit/test_attn.c - attention against the plain formula in double, and the same bytes whatever
 * the chunk, block size, batch, threads and family. */
#include "kernels/attn.h"
#include "kernels/bench/attn_naive.h"
#include "kernels/dispatch.h"
#include "kernels/hadamard.h"
#include "tests/support/check.h"
#include "tests/support/families.h"
#include "tests/support/fill.h"

#include <stdlib.h>

typedef struct {
    const char *why;
    int64_t H, Hkv, D, Dv, T;
    float softcap;
    int64_t window;
    bool alibi, sinks, falcon; /* falcon: alibi_scaled and alibi_bf16 */
    bool both;                 /* whole sequences then, whatever the chunk */
} shape;

static const shape shapes[] = {
    { "one head, one token", 1, 1, 16, 16, 1, 0, 0, false, false, false, false },
    { "heads of their own", 3, 3, 32, 32, 45, 0, 0, false, false, false, false },
    { "grouped", 8, 2, 64, 64, 100, 0, 0, false, false, false, false },
    { "one kv head, odd size", 6, 1, 20, 20, 70, 0, 0, false, false, false, false },
    { "window", 4, 2, 32, 32, 130, 0, 37, false, false, false, false },
    { "window of one", 2, 2, 16, 16, 40, 0, 1, false, false, false, false },
    { "soft-cap", 4, 2, 80, 80, 50, 2.0f, 0, false, false, false, false },
    { "alibi", 4, 4, 32, 32, 90, 0, 0, true, false, false, false },
    { "alibi in bf16, scaled", 4, 4, 32, 32, 300, 0, 0, true, false, true, false },
    { "sinks and window", 4, 1, 48, 48, 90, 0, 64, false, true, false, false },
    { "values narrower than keys", 4, 4, 40, 24, 66, 0, 0, false, false, false, false },
    { "three splits", 2, 1, 16, 16, 1100, 0, 0, false, false, false, false },
    { "a window over splits, sinks", 2, 1, 16, 16, 1100, 0, 600, false, true, false, false },
    { "both ways", 4, 2, 32, 32, 75, 0, 0, false, false, false, true },
    { "both ways, a window", 6, 1, 48, 48, 130, 0, 37, false, false, false, true },
    { "both ways, over splits", 2, 1, 16, 16, 1100, 0, 600, false, false, false, true },
};

static const float slopes[8] = { 0.5f, 0.25f, 0.125f, 0.0625f, 0.03f, 0.02f, 0.01f, 0.005f };
static const float sink_logits[8] = { 0.5f, -1, 2, 0, 1, 1, 1, 1 };

/* Inputs of one sequence of T tokens. */
typedef struct {
    float *q, *k, *v;
} input;

static input input_make(const shape *s, lq_arena *a, uint64_t seed)
{
    input in = { lq_push(a, (size_t)(s->T * s->H * s->D) * 4),
                 lq_push(a, (size_t)(s->T * s->Hkv * s->D) * 4),
                 lq_push(a, (size_t)(s->T * s->Hkv * s->Dv) * 4) };
    fill_row(in.q, s->T * s->H * s->D, &seed);
    fill_row(in.k, s->T * s->Hkv * s->D, &seed);
    fill_row(in.v, s->T * s->Hkv * s->Dv, &seed);
    for (int64_t i = 0; i < s->T * s->H * s->D; i++)
        in.q[i] *= 3;
    return in;
}

static bool naive; /* which attention runs */
static bool in_bf16;
static bool paired; /* where it may be */

static void write_kv(uint8_t *block, int slot, int block_size, const float *x, int64_t Hkv,
                     int64_t D, kv_dtype d, bool pairs, bool key)
{
    if (pairs)
        attn_kv_write_paired(block, slot, block_size, x, Hkv, D, key);
    else
        attn_kv_write(block, slot, block_size, x, Hkv, D, d);
}

/* Run T tokens of `n_seqs` copies in chunks of `chunk` rows; out [n_seqs][T, H*Dv], of which rows
 * before `from` only reach the cache. Cached blocks lie in scattered order between blocks full of
 * NaN. */
static float *run_from(int64_t from, const shape *s, const input *in, int n_seqs, int block_size,
                       int64_t chunk, kv_dtype d, pool *p, lq_arena *a)
{
    int64_t per_seq = lq_ceil_div(s->T, block_size), n_blocks = 2 * per_seq * n_seqs + 1;
    if (s->both) chunk = s->T;
    size_t kb = attn_kv_row_bytes(d, s->D) * (size_t)(s->Hkv * block_size);
    size_t vb = attn_kv_row_bytes(d, s->Dv) * (size_t)(s->Hkv * block_size);
    size_t stride = kb + vb;
    const bool pairs = paired && attn_paired(d, block_size, s->D, s->Dv, in_bf16);
    uint8_t *pool_mem = lq_push(a, stride * (size_t)n_blocks);
    memset(pool_mem, 0xff, stride * (size_t)n_blocks); /* NaN in every float type */
    attn_seq *seqs = lq_push(a, (size_t)n_seqs * sizeof *seqs);
    int32_t *tables = lq_push(a, (size_t)(per_seq * n_seqs) * 4);
    for (int64_t i = 0; i < per_seq * n_seqs; i++)
        tables[i] = (int32_t)(n_blocks - 2 - 2 * i); /* from the end, every second */
    int64_t qw = s->H * s->D, ow = s->H * s->Dv;
    float *out = lq_push(a, (size_t)(n_seqs * s->T * ow) * 4);
    float *q = lq_push(a, (size_t)(n_seqs * chunk * qw) * 4),
          *o = lq_push(a, (size_t)(n_seqs * chunk * ow) * 4);
    lq_arena scratch;
    int64_t width = s->D > s->Dv ? s->D : s->Dv;
    lq_arena_init(&scratch, attn_scratch_bytes(s->H, width, pool_threads(p)), NULL);
    for (int64_t pos = 0; pos < s->T; pos += chunk) {
        int64_t n = s->T - pos < chunk ? s->T - pos : chunk;
        for (int i = 0; i < n_seqs; i++) {
            const int32_t *table = tables + i * per_seq;
            for (int64_t t = pos; t < pos + n; t++) {
                uint8_t *block = pool_mem + (size_t)table[t / block_size] * stride;
                write_kv(block, (int)(t % block_size), block_size, in->k + t * s->Hkv * s->D,
                         s->Hkv, s->D, d, pairs, true);
                write_kv(block + kb, (int)(t % block_size), block_size, in->v + t * s->Hkv * s->Dv,
                         s->Hkv, s->Dv, d, pairs, false);
            }
            seqs[i] = (attn_seq){ .row0 = i * n, .n_rows = n, .pos0 = pos, .table = table };
            memcpy(q + i * n * qw, in->q + pos * qw, (size_t)(n * qw) * 4);
        }
        if (pos + n <= from) continue;
        attn_args args = { .q = q,
                           .ldq = qw,
                           .out = o,
                           .ldo = ow,
                           .k = pool_mem,
                           .v = pool_mem + kb,
                           .block_stride = stride,
                           .block_size = block_size,
                           .dtype = d,
                           .bf16 = in_bf16,
                           .paired = pairs,
                           .H = s->H,
                           .Hkv = s->Hkv,
                           .D = s->D,
                           .Dv = s->Dv,
                           .scale = 0.3f,
                           .softcap = s->softcap,
                           .window = s->window,
                           .both = s->both,
                           .alibi = s->alibi ? slopes : NULL,
                           .alibi_scaled = s->falcon,
                           .alibi_bf16 = s->falcon,
                           .sinks = s->sinks ? sink_logits : NULL,
                           .seqs = seqs,
                           .n_seqs = n_seqs };
        if (naive) {
            lq_arena whole;
            CHECK(!lq_arena_init(&whole, attn_naive_scratch_bytes(&args), NULL), "scratch");
            attn_naive_run(&args, &whole, p);
            lq_arena_free(&whole);
        } else {
            attn_run(&args, &scratch, p);
        }
        CHECK(lq_arena_mark(&scratch) == 0, "scratch not left as found");
        for (int i = 0; i < n_seqs; i++)
            memcpy(out + (i * s->T + pos) * ow, o + i * n * ow, (size_t)(n * ow) * 4);
    }
    lq_arena_free(&scratch);
    return out;
}

static float *run(const shape *s, const input *in, int n_seqs, int block_size, int64_t chunk,
                  kv_dtype d, pool *p, lq_arena *a)
{
    return run_from(0, s, in, n_seqs, block_size, chunk, d, p, a);
}

/* Four bits by the definition: of the two scales that hold the block's largest number and hardly not, the one
 * that loses less, the errors counted in 64ths of a step. */
static void through_int4(float *dst, const float *src, int64_t D, float max)
{
    const int64_t P = (D + 63) / 64 * 16;
    const float base = lq_bf16_to_f32(lq_f32_to_bf16(max / 8));
    for (int64_t at = 0; at < D; at += P) {
        const int64_t n = D - at < P ? D - at : P;
        float m = 0;
        for (int64_t i = at; i < at + n; i++)
            m = fabsf(src[i]) > fabsf(m) ? src[i] : m;
        const float need = ceilf(2 * fabsf(m) / base);
        double least = 1e300;
        for (float k = fminf(fmaxf(need, 9), 16), j = 0; j < 2 && k >= 9; k--, j++) {
            const float s = (m > 0 ? -k : k) * (base / 16), inv = 1 / s;
            double loss = 0;
            float got[1024];
            for (int64_t i = 0; i < n; i++) {
                const float u = src[at + i] * inv, q = fminf(fmaxf(rintf(u), -8), 7);
                got[i] = s * q;
                loss += pow((double)k * rint((double)((u - q) * 64)), 2);
            }
            if (loss >= least) continue;
            least = loss;
            memcpy(dst + at, got, (size_t)n * sizeof *got);
        }
    }
}

/* What the cache gives back for one row of D. */
static void through_cache(float *dst, const float *src, int64_t D, kv_dtype d)
{
    float max = 0;
    for (int64_t i = 0; i < D; i++) {
        max = fmaxf(max, fabsf(src[i]));
        dst[i] = d == KV_F16    ? lq_f16_to_f32(lq_f32_to_f16(src[i]))
                 : d == KV_BF16 ? lq_bf16_to_f32(lq_f32_to_bf16(src[i]))
                                : src[i];
    }
    for (int64_t i = 0; i < D && d == KV_I8; i++)
        dst[i] = (max / 127.0f) * rintf(src[i] * (127.0f / max));
    if (d == KV_I4) through_int4(dst, src, D, max);
    for (int64_t i = 0; i < D && d == KV_F8; i++)
        dst[i] = (max / 448.0f) * lq_e4m3_to_f32(lq_f32_to_e4m3(src[i] * (448.0f / max)));
}

static float bf16(double x) { return lq_bf16_to_f32(lq_f32_to_bf16((float)x)); }

static double bias(const shape *s, int64_t h, int64_t key, int64_t query)
{
    if (!s->falcon) return (double)slopes[h] * (double)(key - query);
    return (double)0.3f * (double)bf16((double)bf16((double)slopes[h]) * (double)bf16((double)key));
}

static int64_t last_seen(const shape *s, int64_t query)
{
    if (!s->both) return query;
    return s->window && query + s->window < s->T ? query + s->window - 1 : s->T - 1;
}

/* Rows of D as the cache gives them back, malloc'd. */
static float *cached(const float *src, int64_t rows, int64_t D, kv_dtype d)
{
    float *out = malloc((size_t)(rows * D) * sizeof *out);
    for (int64_t r = 0; r < rows; r++)
        through_cache(out + r * D, src + r * D, D, d);
    return out;
}

/* Largest error as a share of its bound. */
static double worst(const shape *s, const input *in, const float *out, kv_dtype d)
{
    float *const keys = cached(in->k, s->T * s->Hkv, s->D, d);
    float *const values = cached(in->v, s->T * s->Hkv, s->Dv, d);
    double *w = malloc((size_t)s->T * sizeof *w), *sum = malloc((size_t)s->Dv * sizeof *sum),
           share = 0;
    for (int64_t t = 0; t < s->T; t++)
        for (int64_t h = 0; h < s->H; h++) {
            int64_t kvh = h / (s->H / s->Hkv),
                    first = s->window && t >= s->window ? t - s->window + 1 : 0;
            const int64_t last = last_seen(s, t);
            double max = s->sinks ? (double)sink_logits[h] : -1e300, total = 0, size = 0, vmax = 0;
            for (int64_t j = first; j <= last; j++) {
                double dot = 0, abs = 0;
                const float *k = keys + (j * s->Hkv + kvh) * s->D;
                for (int64_t i = 0; i < s->D; i++) {
                    double x = (double)in->q[(t * s->H + h) * s->D + i] * (double)k[i];
                    dot += x, abs += fabs(x);
                }
                w[j] = dot * (double)0.3f;
                if (s->softcap > 0) w[j] = (double)s->softcap * tanh(w[j] / (double)s->softcap);
                if (s->alibi) w[j] += bias(s, h, j, t), abs += (double)t;
                max = w[j] > max ? w[j] : max;
                size = abs > size ? abs : size;
            }
            memset(sum, 0, (size_t)s->Dv * sizeof *sum);
            if (s->sinks) total = exp((double)sink_logits[h] - max);
            for (int64_t j = first; j <= last; j++) {
                double p = exp(w[j] - max);
                total += p;
                const float *v = values + (j * s->Hkv + kvh) * s->Dv;
                for (int64_t i = 0; i < s->Dv; i++) {
                    sum[i] += p * (double)v[i];
                    vmax = fabs((double)v[i]) > vmax ? fabs((double)v[i]) : vmax;
                }
            }
            /* A score is off by (D+3) u sum|q k|; so is each weight, relatively; then t + tiles
             * roundings of sums, twice (numerator and denominator). */
            double bound =
                0x1p-24 * vmax * (2 * (double)(s->D + 6) * size + 3 * (double)(last + 20));
            /* Both sides of each product are rounded by up to 2^-9. */
            if (in_bf16) bound += 0x1p-8 * vmax * (2 * 0.3 * size + 1.01);
            for (int64_t i = 0; i < s->Dv; i++) {
                double diff = fabs((double)out[(t * s->H + h) * s->Dv + i] - sum[i] / total);
                if (!(diff <= share * bound)) share = diff / bound;
            }
        }
    free(sum), free(w), free(values), free(keys);
    return share;
}

TEST(the_reference_agrees_with_the_formula)
{
    char family[16];
    family_use(0, family);
    for (size_t i = 0; i < LQ_COUNT(shapes); i++)
        for (int d = 0; d < KV_N_DTYPES; d++) {
            lq_arena a;
            lq_arena_init(&a, 0, NULL);
            input in = input_make(&shapes[i], &a, i);
            float *out = run(&shapes[i], &in, 1, 16, 7, (kv_dtype)d, NULL, &a);
            double share = worst(&shapes[i], &in, out, (kv_dtype)d);
            CHECK(share <= 1, "%s, %s: %g of the bound", shapes[i].why, kv_types_text((kv_dtype)d),
                  share);
            lq_arena_free(&a);
        }
}

TEST(the_naive_one_agrees_with_the_formula)
{
    char family[16];
    pool *p;
    CHECK(!pool_open(&p, 2, NULL), "pool");
    for (int f = 0; family_use(f, family); f++)
        for (size_t i = 0; i < LQ_COUNT(shapes); i++) {
            kv_dtype d = (kv_dtype)(i % KV_N_DTYPES);
            if (f == 0 && shapes[i].T > 1000) continue; /* the reference is slow */
            lq_arena a;
            lq_arena_init(&a, 0, NULL);
            input in = input_make(&shapes[i], &a, i);
            naive = true;
            float *out = run(&shapes[i], &in, 2, 16, i % 2 ? shapes[i].T : 7, d, p, &a);
            naive = false;
            double share =
                worst(&shapes[i], &in, out + shapes[i].T * shapes[i].H * shapes[i].Dv, d);
            CHECK(share <= 1, "%s, %s, %s: %g of the bound", family, shapes[i].why,
                  kv_types_text(d), share);
            lq_arena_free(&a);
        }
    pool_close(p);
}

TEST(the_same_bytes_in_any_chunk_block_batch_and_family)
{
    static const struct {
        int n_seqs, block_size;
        int64_t chunk;
        bool threads;
    } ways[] = {
        { 1, 16, 1, false }, { 1, 8, 1000, true }, { 1, 32, 33, false }, { 3, 16, 5, true }
    };
    char family[16];
    pool *p;
    CHECK(!pool_open(&p, 3, NULL), "pool");
    for (size_t i = 0; i < LQ_COUNT(shapes); i++)
        for (int d = 0; d < KV_N_DTYPES; d++) {
            const shape *s = &shapes[i];
            size_t bytes = (size_t)(s->T * s->H * s->Dv) * 4;
            lq_arena a;
            lq_arena_init(&a, 0, NULL);
            input in = input_make(s, &a, i);
            family_use(0, family);
            float *want = run(s, &in, 1, 16, 7, (kv_dtype)d, NULL, &a);
            for (int f = 0; family_use(f, family); f++)
                for (size_t k = 0; k < LQ_COUNT(ways); k++) {
                    if (f == 0 && k > 1) continue; /* the reference is slow */
                    if ((i + k + (size_t)(f + d)) % 2 && !check_hard()) continue;
                    int64_t chunk = ways[k].chunk < s->T ? ways[k].chunk : s->T;
                    float *got = run(s, &in, ways[k].n_seqs, ways[k].block_size, chunk, (kv_dtype)d,
                                     ways[k].threads ? p : NULL, &a);
                    for (int q = 0; q < ways[k].n_seqs; q++)
                        CHECK(memcmp(got + q * s->T * s->H * s->Dv, want, bytes) == 0,
                              "%s, %s, %s: chunk %lld, blocks of %d, sequence %d", family, s->why,
                              kv_types_text((kv_dtype)d), (long long)chunk, ways[k].block_size, q);
                }
            lq_arena_free(&a);
        }
    pool_close(p);
}

/* The bytes differ from f32's, and are the family's own. */
TEST(in_bf16_it_agrees_with_the_formula_in_the_same_bytes)
{
    static const struct {
        int n_seqs, block_size;
        int64_t chunk;
        bool threads, paired;
    } ways[] = { { 1, 8, 1, false, false },   { 1, 8, 1000, true, true },
                 { 1, 32, 33, false, false }, { 3, 16, 5, true, false },
                 { 1, 32, 1, false, true },   { 2, 16, 7, true, true },
                 { 1, 32, 1000, true, true } };
    const int64_t most = getenv("LLMQ_TEST_SMALL") ? 90 : INT64_MAX; /* tokens, in an emulator */
    char family[16];
    int n_done = 0;
    pool *p;
    CHECK(!pool_open(&p, 3, NULL), "pool");
    for (int f = 0; family_use(f, family); f++)
        for (size_t i = 0; i < LQ_COUNT(shapes) && k_get()->attn_k16; i++)
            for (int d = 0; d < KV_N_DTYPES; d++) {
                const shape *s = &shapes[i];
                if (s->D % 16 || s->Dv % 16 || s->T > most) continue;
                const size_t bytes = (size_t)(s->T * s->H * s->Dv) * 4;
                lq_arena a;
                lq_arena_init(&a, 0, NULL);
                input in = input_make(s, &a, i);
                float *f32 = run(s, &in, 1, 16, 7, (kv_dtype)d, NULL, &a);
                in_bf16 = true;
                float *want = run(s, &in, 1, 16, 7, (kv_dtype)d, NULL, &a);
                double share = worst(s, &in, want, (kv_dtype)d);
                CHECK(share <= 1, "%s, %s: %g of the bound", s->why, kv_types_text((kv_dtype)d),
                      share);
                CHECK(s->T == 1 || s->window == 1 || memcmp(f32, want, bytes) != 0, "%s: in f32",
                      s->why);
                for (size_t k = 0; k < LQ_COUNT(ways); k++, n_done++) {
                    if ((i + k + (size_t)(f + d)) % 2 && !check_hard()) continue;
                    int64_t chunk = ways[k].chunk < s->T ? ways[k].chunk : s->T;
                    paired = ways[k].paired;
                    float *got = run(s, &in, ways[k].n_seqs, ways[k].block_size, chunk, (kv_dtype)d,
                                     ways[k].threads ? p : NULL, &a);
                    for (int q = 0; q < ways[k].n_seqs; q++)
                        CHECK(memcmp(got + q * s->T * s->H * s->Dv, want, bytes) == 0,
                              "%s, %s, %s: chunk %lld, blocks of %d%s, sequence %d", family, s->why,
                              kv_types_text((kv_dtype)d), (long long)chunk, ways[k].block_size,
                              paired ? " in pairs" : "", q);
                }
                in_bf16 = paired = false;
                lq_arena_free(&a);
            }
    if (!n_done) puts("  in bf16: not run here (neither VDPBF16PS nor BFDOT)");
    pool_close(p);
}

/* Few items: their splits are shared out, in several rounds where results take much room. */
TEST(a_long_context_has_the_same_bytes_on_any_number_of_threads)
{
    static const shape s[] = {
        { "one kv head, few results at a time", 64, 1, 8, 8, 3000, 0, 0, false, false, false,
          false },
        { "two kv heads, sinks", 8, 2, 32, 24, 3000, 0, 0, false, true, false, false },
        { "a window", 8, 2, 32, 32, 3000, 0, 1500, true, false, false, false },
    };
    static const int threads[] = { 1, 2, 3, 7 };
    enum { SEQS = 3, ROWS = 3 }; /* of the last tokens */
    char family[16];
    for (size_t i = 0; i < LQ_COUNT(s); i++) {
        const size_t from = (size_t)((s[i].T - ROWS) * s[i].H * s[i].Dv);
        const size_t bytes = (size_t)(ROWS * s[i].H * s[i].Dv) * 4;
        lq_arena a;
        lq_arena_init(&a, 0, NULL);
        input in = input_make(&s[i], &a, i);
        family_use(0, family);
        float *want = run_from(s[i].T - ROWS, &s[i], &in, 1, 16, 1, KV_F16, NULL, &a);
        for (int f = 0; family_use(f, family); f++)
            for (size_t k = 0; k < LQ_COUNT(threads); k++) {
                pool *p;
                CHECK(!pool_open(&p, threads[k], NULL), "pool");
                for (int n = 1; n <= SEQS; n += 2) {
                    float *got = run_from(s[i].T - ROWS, &s[i], &in, n, 16, n, KV_F16, p, &a);
                    for (int q = 0; q < n; q++)
                        CHECK(memcmp(got + (int64_t)q * s[i].T * s[i].H * s[i].Dv + from,
                                     want + from, bytes) == 0,
                              "%s, %s, %d threads, sequence %d of %d", family, s[i].why, threads[k],
                              q, n);
                }
                pool_close(p);
            }
        lq_arena_free(&a);
    }
}

/* The steps of k.h on one tile, from cached rows to sums of values. */
enum { STEP_ROWS = 6, STEP_MAX_D = 80 };
typedef struct {
    float kt[STEP_MAX_D * ATTN_TILE], v[ATTN_TILE * STEP_MAX_D], scores[STEP_ROWS * ATTN_TILE];
    float s[STEP_ROWS * ATTN_TILE], m[STEP_ROWS], l[STEP_ROWS], a[STEP_ROWS];
    float acc[STEP_ROWS * STEP_MAX_D];
} steps;

static void run_steps(steps *o, const k_ops *k, const uint8_t *rows, int n, int64_t D, kv_dtype d)
{
    float queries[STEP_ROWS * STEP_MAX_D];
    const float *q[STEP_ROWS];
    int lo[STEP_ROWS] = { 0 },
        hi[STEP_ROWS]; /* four rows alike, one later, one that sees nothing */
    uint64_t seed = (uint64_t)D;
    fill_row(queries, STEP_ROWS * D, &seed);
    memset(o, 0, sizeof *o);
    fill_row(o->acc, STEP_ROWS * D, &seed);
    k->attn_k(o->kt, rows, n, D, d);
    k->attn_v(o->v, rows, n, D, d);
    for (int r = 0; r < STEP_ROWS; r++) {
        q[r] = queries + r * D;
        hi[r] = r < STEP_ROWS - 1 ? n : 0;
        o->m[r] = r ? 0.25f : -INFINITY;
    }
    lo[STEP_ROWS - 2] = n / 2;
    k->attn_scores(o->scores, q, o->kt, STEP_ROWS, D, 3.0f);
    memcpy(o->s, o->scores, sizeof o->s);
    k->attn_softmax(o->s, lo, hi, STEP_ROWS - 1, o->m, o->l, o->a);
    k->attn_pv(o->acc, o->s, o->v, o->a, lo, hi, STEP_ROWS, D);
}

TEST(each_step_gives_the_same_bits_in_every_family)
{
    static const int64_t sizes[] = { 1, 7, 8, 16, 20, 33, 64, STEP_MAX_D };
    static const int counts[] = { 1, 7, 8, 31, ATTN_TILE };
    static steps want, got;
    static uint8_t rows[ATTN_TILE * (4 * STEP_MAX_D + 4)];
    float x[STEP_MAX_D];
    char family[16];
    for (int i = 0; i < (int)(LQ_COUNT(sizes) * LQ_COUNT(counts) * KV_N_DTYPES); i++) {
        const kv_dtype d = (kv_dtype)(i % KV_N_DTYPES);
        const int64_t D = sizes[i / KV_N_DTYPES % (int)LQ_COUNT(sizes)];
        const int n = counts[i / KV_N_DTYPES / (int)LQ_COUNT(sizes)];
        uint64_t seed = (uint64_t)i;
        for (int j = 0; j < n; j++) {
            fill_row(x, D, &seed);
            attn_kv_write(rows + (size_t)j * attn_kv_row_bytes(d, D), 0, 1, x, 1, D, d);
        }
        run_steps(&want, &k_ref, rows, n, D, d);
        for (int f = 0; family_use(f, family); f++) {
            run_steps(&got, k_get(), rows, n, D, d);
#define SAME(field)                                                                          \
    CHECK(memcmp(got.field, want.field, sizeof got.field) == 0, "%s, %s, %d keys of %d: %s", \
          family, kv_types_text(d), n, (int)D, #field)
            SAME(kt);
            SAME(v);
            SAME(scores);
            SAME(s);
            SAME(m);
            SAME(l);
            SAME(a);
            SAME(acc);
#undef SAME
        }
    }
}

TEST(a_cached_row_is_what_its_type_can_hold)
{
    static const float x[8] = { 1, -2, 0.5f, 127, -127, 0, 1e-3f, 63.4f };
    uint8_t row[64];
    float scale;
    attn_kv_write(row, 0, 1, x, 1, 8, KV_I8);
    memcpy(&scale, row, 4);
    CHECK(scale == 1.0f, "scale %g", (double)scale);
    static const int8_t want[8] = { 1, -2, 0, 127, -127, 0, 0, 63 };
    CHECK(memcmp(row + 4, want, 8) == 0, "int8 codes");
    CHECK(attn_kv_row_bytes(KV_I8, 8) == 12 && attn_kv_row_bytes(KV_F16, 8) == 16, "bytes");
    CHECK(attn_kv_row_bytes(KV_I4, 7) == 8 && attn_kv_row_bytes(KV_F8, 8) == 12, "bytes");
    static const float y[7] = { -8, 7, -1, 3.4f, 0, 8, -6.6f }; /* the first of the largest */
    static const uint8_t nibbles[4] = { 0xf0, 0xb7, 0xf8, 0x01 };
    uint32_t head;
    attn_kv_write(row, 0, 1, y, 1, 7, KV_I4);
    memcpy(&head, row, 4);
    CHECK(head == 0x3f800007 && memcmp(row + 4, nibbles, 4) == 0, "int4 codes of head %x", head);
    static const float z[4] = { 448, -1, 0.0625f, 17 }; /* 17 lies between 16 and 18: to even */
    static const uint8_t e4m3[4] = { 0x7e, 0xb8, 0x18, 0x58 };
    attn_kv_write(row, 0, 1, z, 1, 4, KV_F8);
    memcpy(&scale, row, 4);
    CHECK(scale == 1.0f && memcmp(row + 4, e4m3, 4) == 0, "fp8 codes of scale %g", (double)scale);
    static const float zero[8] = { 0 }, bad[8] = { 1, INFINITY };
    for (int d = KV_I8; d < KV_N_DTYPES; d++) {
        float back[8];
        attn_kv_write(row, 0, 1, zero, 1, 8, (kv_dtype)d);
        k_ref.attn_v(back, row, 1, 8, (kv_dtype)d);
        memcpy(&scale, row, 4);
        CHECK(scale == 0.0f && memcmp(back, zero, sizeof zero) == 0, "%s: a row of zeros",
              kv_types_text((kv_dtype)d));
        attn_kv_write(row, 0, 1, bad, 1, 8, (kv_dtype)d);
        k_ref.attn_v(back, row, 1, 8, (kv_dtype)d);
        CHECK(isnan(back[0]), "%s: a row without a scale is %g", kv_types_text((kv_dtype)d),
              (double)back[0]);
    }
}

/* Of pieces of the largest power of two in D; twice it is what was there. */
TEST(heads_times_hadamard)
{
    static const struct {
        int64_t D, order;
    } sizes[] = { { 1, 1 },   { 15, 1 },  { 2, 2 },   { 20, 4 },
                  { 64, 64 }, { 80, 16 }, { 96, 32 }, { 576, 64 } };
    enum { H = 3, MOST = 576 };
    float x[H * MOST], y[H * MOST];
    uint64_t seed = 7;
    for (size_t i = 0; i < LQ_COUNT(sizes); i++) {
        const int64_t D = sizes[i].D, n = sizes[i].order;
        CHECK(k_hadamard_order(D) == n, "%d: order %d", (int)D, (int)k_hadamard_order(D));
        fill_row(x, H * D, &seed);
        memcpy(y, x, sizeof y);
        k_hadamard(y, H, D);
        double off = 0, back = 0;
        for (int64_t j = 0; j < H * D; j++) {
            double want = 0; /* the sign of element (a, b) is the parity of a & b */
            for (int64_t k = 0; k < n; k++)
                want += (double)x[j / n * n + k] *
                        (__builtin_popcountll((unsigned long long)(j % n & k)) % 2 ? -1 : 1);
            off = fmax(off, fabs(want / sqrt((double)n) - (double)y[j]));
        }
        k_hadamard(y, H, D);
        for (int64_t j = 0; j < H * D; j++)
            back = fmax(back, fabs((double)x[j] - (double)y[j]));
        /* log2(n) sums, each off by 2^-24 of at most n numbers below 4, over sqrt(n) */
        const double bound = 0x1p-24 * 8 * 4 * sqrt((double)n) * 8;
        CHECK(off <= bound && back <= 2 * bound, "%d: off by %g, back by %g", (int)D, off, back);
    }
}

/* One number that stands out coarsens its row; turned, it is shared by all. */
TEST(turned_rows_of_four_bits_lose_less_where_one_number_stands_out)
{
    enum { D = 64 };
    float x[D], t[D], back[D];
    uint8_t row[4 + D / 2];
    double plain = 0, turned = 0;
    uint64_t seed = 3;
    fill_row(x, D, &seed);
    x[5] = 30;
    attn_kv_write(row, 0, 1, x, 1, D, KV_I4);
    k_ref.attn_v(back, row, 1, D, KV_I4);
    for (int i = 0; i < D; i++)
        plain += (double)((back[i] - x[i]) * (back[i] - x[i]));
    memcpy(t, x, sizeof t);
    k_hadamard(t, 1, D);
    attn_kv_write(row, 0, 1, t, 1, D, KV_I4);
    k_ref.attn_v(back, row, 1, D, KV_I4);
    k_hadamard(back, 1, D);
    for (int i = 0; i < D; i++)
        turned += (double)((back[i] - x[i]) * (back[i] - x[i]));
    CHECK(turned < plain / 3, "%g, as it is %g", turned, plain);
}

TEST(types_of_keys_and_of_values)
{
    for (int k = 0; k < KV_N_DTYPES; k++)
        for (int v = 0; v < KV_N_DTYPES; v++) {
            const kv_types t = kv_apart((kv_dtype)k, (kv_dtype)v);
            char want[32];
            snprintf(want, sizeof want, "k=%s,v=%s", kv_types_text((kv_dtype)k),
                     kv_types_text((kv_dtype)v));
            CHECK(kv_of(t, true) == (kv_dtype)k && kv_of(t, false) == (kv_dtype)v, "%d %d", k, v);
            CHECK(kv_alike(t) == (k == v) && (k != v || t == (kv_types)k), "%d %d alike", k, v);
            CHECK(strcmp(kv_types_text(t), k == v ? kv_types_text((kv_dtype)k) : want) == 0,
                  "%s is %s", want, kv_types_text(t));
        }
}

/* In a key or a value, whatever the type that the cache holds it in: who sees it gets no number,
 * and who does not the same bytes as ever. */
TEST(a_nan_is_lost_in_no_type)
{
    enum { BAD = 40 }; /* the token that has it */
    const shape *const s = &shapes[2];
    const int64_t ow = s->H * s->Dv, group = s->H / s->Hkv;
    char family[16];
    for (int f = 0; family_use(f, family); f++)
        for (int d = 0; d < KV_N_DTYPES; d++)
            for (int in_v = 0; in_v < 2; in_v++)
                for (int n = 0; n < 3; n++) {
                    lq_arena a;
                    lq_arena_init(&a, 0, NULL);
                    input in = input_make(s, &a, 1);
                    naive = n == 1;
                    in_bf16 = n == 2;
                    const float *want = run(s, &in, 1, 16, 7, (kv_dtype)d, NULL, &a);
                    float *bad = in_v ? in.v + (BAD * s->Hkv + 1) * s->Dv + s->Dv - 1
                                      : in.k + (BAD * s->Hkv + 1) * s->D + 3; /* of kv head 1 */
                    *bad = NAN;
                    const float *got = run(s, &in, 1, 16, 7, (kv_dtype)d, NULL, &a);
                    naive = in_bf16 = false;
                    int64_t wrong = 0;
                    for (int64_t t = 0; t < s->T; t++)
                        for (int64_t h = 0; h < s->H; h++) {
                            const size_t at = (size_t)(t * ow + h * s->Dv);
                            const bool sees = t >= BAD && h / group == 1;
                            if (sees) /* a value's last element at least */
                                wrong += !isnan(got[at + (size_t)s->Dv - 1]);
                            else
                                wrong += memcmp(got + at, want + at, (size_t)s->Dv * 4) != 0;
                        }
                    CHECK(wrong == 0, "%s, %s%s, in a %s: %lld heads of tokens", family,
                          kv_types_text((kv_dtype)d),
                          n == 2 ? ", bf16"
                          : n    ? ", naive"
                                 : "",
                          in_v ? "value" : "key", (long long)wrong);
                    lq_arena_free(&a);
                }
}

int main(int argc, char **argv)
{
    RUN(the_reference_agrees_with_the_formula);
    RUN(the_naive_one_agrees_with_the_formula);
    RUN(the_same_bytes_in_any_chunk_block_batch_and_family);
    RUN(in_bf16_it_agrees_with_the_formula_in_the_same_bytes);
    RUN(a_long_context_has_the_same_bytes_on_any_number_of_threads);
    RUN(each_step_gives_the_same_bits_in_every_family);
    RUN(a_cached_row_is_what_its_type_can_hold);
    RUN(heads_times_hadamard);
    RUN(turned_rows_of_four_bits_lose_less_where_one_number_stands_out);
    RUN(types_of_keys_and_of_values);
    RUN(a_nan_is_lost_in_no_type);
    return check_end();
}
