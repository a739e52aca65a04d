/* kernels/simd/peak_tmpl.h - the machine's limits: multiply-adds that touch registers only, and reading.
 * The peaks return the operations done, 2 per multiply-add. KEEP makes the compiler believe that a
 * register was read and changed, so that nothing is dropped or folded. Include after mm_tmpl.h and
 * mm_i8_avx2.h.
 *
 * Included once per instruction set; no include guard on purpose. */
#include "kernels/simd/v16.h"

enum { PEAK_SUMS = 12 }; /* in flight: what latency times throughput asks for */

#if defined(__AVX512F__)
#define KEEP(v) __asm__ volatile("" : "+v"(v))
#elif defined(__ARM_NEON)
#define KEEP(v) __asm__ volatile("" : "+w"((v).a), "+w"((v).b), "+w"((v).c), "+w"((v).d))
#else
#define KEEP(v) __asm__ volatile("" : "+x"((v).a), "+x"((v).b))
#endif

/* `macs` multiply-adds for each sum[i] = step, in 16 lanes. */
#define PEAK(name, type, zero, step, macs)           \
    static inline double name(int64_t rounds)        \
    {                                                \
        type sum[PEAK_SUMS], x = zero, w = zero;     \
        KEEP(x);                                     \
        KEEP(w);                                     \
        UNROLL                                       \
        for (int i = 0; i < PEAK_N; i++)             \
            sum[i] = zero;                           \
        for (int64_t n = 0; n < rounds; n++)         \
            UNROLL                                   \
        for (int i = 0; i < PEAK_N; i++) {           \
            KEEP(w);                                 \
            sum[i] = step;                           \
            KEEP(sum[i]);                            \
        }                                            \
        return 2.0 * (macs)*PEAK_N * (double)rounds; \
    }
#if defined(__AVX512F__)
#define PEAK_N PEAK_SUMS
#else
#define PEAK_N 5 /* and operands, of two registers in 16 or four in 32 */
#endif

PEAK(tmpl_peak_f32, vf, vf_set1(0), vf_fma(x, w, sum[i]), 16)
#if defined(__ARM_FEATURE_MATMUL_INT8)
PEAK(tmpl_peak_i8, vi, vi_set1(0), vi_mmla(sum[i], w, x), 128)
#elif defined(__AVX512F__) || defined(__AVXVNNI__) || defined(__ARM_NEON)
PEAK(tmpl_peak_i8, vi, vi_set1(0), vi_dot(sum[i], w, x, W_U4), 64)
#else /* products summed in 16 bits: what mm_i8_avx2.h comes to between two folds */
PEAK(tmpl_peak_i8, vi, vi_set1(0), vi_add_products(sum[i], w, x), 64)
#endif

/* n: a multiple of 1024. The xor of everything read. */
static inline uint32_t tmpl_read_all(const uint8_t *p, size_t n)
{
    vi sum[4] = { vi_set1(0), vi_set1(0), vi_set1(0), vi_set1(0) };
    for (size_t i = 0; i < n; i += 256) {
        UNROLL
        for (size_t k = 0; k < 4; k++) {
            v16_prefetch(p + i + 64 * k + 4096);
            sum[k] = vi_xor(sum[k], vi_load(p + i + 64 * k));
        }
    }
    uint32_t lanes[16], all = 0;
    vi_store(lanes, vi_xor(vi_xor(sum[0], sum[1]), vi_xor(sum[2], sum[3])));
    for (int i = 0; i < 16; i++)
        all ^= lanes[i];
    return all;
}
