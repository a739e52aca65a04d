/* kernels/ref/ref.h - the parts of the reference table that live in mm_ref.c, attn_ref.c and scan_ref.c. */
#ifndef LLMQ_KERNELS_REF_REF_H
#define LLMQ_KERNELS_REF_REF_H

#include "kernels/core/k_ops.h"

void ref_mm_f32(const mm_task *t);
void ref_mm_i8(const mm_task *t);
void ref_mm_blocks(const mm_task *t);
void ref_mm_quant(int8_t *q, float *s, float *qs, const float *x, int64_t n, int64_t A);
void ref_to_bf16(uint16_t *dst, const float *x, int64_t n);
void ref_round_bf16(float *dst, const float *x, int64_t n);
void ref_attn_k(float *kt, const uint8_t *src, int n, int64_t D, kv_dtype d);
void ref_attn_v(float *v, const uint8_t *src, int n, int64_t D, kv_dtype d);
void ref_attn_scores(float *s, const float *const *q, const float *kt, int64_t R, int64_t D,
                     float scale);
void ref_attn_softmax(float *s, const int *lo, const int *hi, int64_t R, float *m, float *l,
                      float *a);
void ref_attn_pv(float *acc, const float *s, const float *v, const float *a, const int *lo,
                 const int *hi, int64_t R, int64_t D);
void ref_conv(const k_conv_args *a);
void ref_scan(const k_scan_args *a);
void ref_select(const k_select_args *a);

#endif
