/* kernels/simd/k_tmpl.h - what a complete family has from the templates, besides its products of int8:
 * attention, scans, the peaks, and K_TMPL_OPS, the fields of its k_ops. Include after mm_tmpl.h (and
 * mm_i8_avx2.h), with attn_tmpl.h's shapes defined.
 *
 * Included once per instruction set; no include guard on purpose. */
#include "kernels/simd/attn_tmpl.h"
#include "kernels/simd/peak_tmpl.h"
#include "kernels/simd/scan_tmpl.h"

#define K_TMPL_OPS                                                                                \
    .mm_f32 = tmpl_mm_f32, .mm_quant = tmpl_mm_quant, .to_bf16 = tmpl_to_bf16,                    \
    .round_bf16 = tmpl_round_bf16, .attn_k = tmpl_attn_k, .attn_v = tmpl_attn_v,                  \
    .attn_scores = tmpl_attn_scores, .attn_softmax = tmpl_attn_softmax, .attn_pv = tmpl_attn_pv,  \
    .rmsnorm = tmpl_rmsnorm, .layernorm = tmpl_layernorm, .act = tmpl_act, .mul = tmpl_mul,       \
    .swiglu_clamped = tmpl_swiglu_clamped, .softcap = tmpl_softcap, .exp_minus = tmpl_exp_minus,  \
    .softplus = tmpl_softplus, .logsumexp = tmpl_logsumexp, .conv = tmpl_conv, .scan = tmpl_scan, \
    .select = tmpl_select, .peak_f32 = tmpl_peak_f32, .peak_i8 = tmpl_peak_i8,                    \
    .read_all = tmpl_read_all
