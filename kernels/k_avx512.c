/* kernels/k_avx512.c - the templates in 512-bit registers. */
#include "kernels/mm_shape512.h"

#include "kernels/mm_tmpl.h"

#define SCORE_ROWS 4 /* rows of the scores' sums, of two vectors each */
#define PV_ROWS 4    /* rows and vectors of the values' sums */
#define PV_VECS 4
#include "kernels/attn_tmpl.h"
#include "kernels/peak_tmpl.h"

#include "kernels/cpu.h"

const k_ops k_avx512 = {
    .name = "avx512",
    .usable = cpu_has_avx512,
    .mm_f32 = tmpl_mm_f32,
    .mm_i8 = tmpl_mm_i8,
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
