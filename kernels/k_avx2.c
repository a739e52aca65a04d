/* kernels/k_avx2.c - the templates in 256-bit registers, two for 16 lanes. Sixteen registers hold
 * 4 rows of one tile and the weights between. */
#define MM_TILES 1
#define MM_TILES_1 2
#define MM_ROWS 4
#define MM_BODIES(X, body, SRC) \
    X(body, SRC, 2, MM_TILES) X(body, SRC, 3, MM_TILES) X(body, SRC, 4, MM_TILES)
#define ROWS_BODY(n) ((n) >= 4 ? 4 : (n) >= 3 ? 3 : 2)
#define WIDE_TILES 1
#define WIDE_ROWS 6 /* twelve registers of sums, two of weights, one of inputs */
#include "kernels/mm_tmpl.h"

#include "kernels/mm_i8_avx2.h"

#define SCORE_ROWS 2 /* rows of the scores' sums, of two vectors each */
#define PV_ROWS 2    /* rows and vectors of the values' sums */
#define PV_VECS 2
#include "kernels/attn_tmpl.h"
#include "kernels/peak_tmpl.h"

#include "kernels/cpu.h"

const k_ops k_avx2 = {
    .name = "avx2",
    .usable = cpu_has_avx2,
    .mm_f32 = tmpl_mm_f32,
    .mm_i8 = avx2_mm_i8,
    .mm_quant = tmpl_mm_quant,
    .to_bf16 = tmpl_to_bf16,
    .round_bf16 = tmpl_round_bf16,
    .attn_k = tmpl_attn_k,
    .attn_v = tmpl_attn_v,
    .attn_scores = tmpl_attn_scores,
    .attn_softmax = tmpl_attn_softmax,
    .attn_pv = tmpl_attn_pv,
    .rmsnorm = tmpl_rmsnorm,
    .layernorm = tmpl_layernorm,
    .act = tmpl_act,
    .mul = tmpl_mul,
    .swiglu_clamped = tmpl_swiglu_clamped,
    .softcap = tmpl_softcap,
    .exp_minus = tmpl_exp_minus,
    .logsumexp = tmpl_logsumexp,
    .peak_f32 = tmpl_peak_f32,
    .peak_i8 = tmpl_peak_i8,
    .read_all = tmpl_read_all,
};
