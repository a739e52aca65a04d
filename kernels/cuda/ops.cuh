/* kernels/cuda/ops.cuh - what the files of kernels/cuda/ give to the table in dev.cu. */
#ifndef LLMQ_KERNELS_CUDA_OPS_CUH
#define LLMQ_KERNELS_CUDA_OPS_CUH

#include "kernels/cuda/cu.cuh"

void CU_NAME(norm)(dev *d, const dev_norm_args *a);
void CU_NAME(squares)(dev *d, const dev_share_args *a);
void CU_NAME(scale)(dev *d, const dev_share_args *a);
void CU_NAME(rope)(dev *d, const dev_rope_args *a);
void CU_NAME(act)(dev *d, const dev_act_args *a);
void CU_NAME(post)(dev *d, const dev_post_args *a);
void CU_NAME(altup)(dev *d, const dev_altup_args *a);
void CU_NAME(gauge)(dev *d, const dev_gauge_args *a);
void CU_NAME(collapse)(dev *d, const dev_collapse_args *a);
void CU_NAME(spread)(dev *d, const dev_spread_args *a);
void CU_NAME(embed)(dev *d, const dev_embed_args *a);
void CU_NAME(swap)(dev *d, const dev_swap_args *a);
void CU_NAME(turn)(dev *d, const dev_turn_args *a);
void CU_NAME(route)(dev *d, const dev_route_args *a);
void CU_NAME(place)(dev *d, const dev_place_args *a);
void CU_NAME(join_experts)(dev *d, const dev_join_args *a);
size_t CU_NAME(mm_scratch)(const dev_weight *w, int64_t M);
int64_t CU_NAME(mm_order)(const dev *d, const dev_weight *w, mm_acts acts, int64_t M);
void CU_NAME(mm_group)(dev *d, void *parts, const dev_weight *w, const float *const *bias,
                       int64_t n);
void CU_NAME(matmul)(dev *d, const dev_mm_args *a);
void CU_NAME(lora)(dev *d, const dev_lora_args *a);
size_t CU_NAME(attn_scratch)(const dev_attn_args *a);
void CU_NAME(attn)(dev *d, const dev_attn_args *a);
void CU_NAME(topk)(dev *d, const dev_topk_args *a);
void CU_NAME(topk_blocks)(dev *d, const dev_topk_blocks_args *a);
void CU_NAME(group_keys)(dev *d, const dev_group_keys_args *a);
void CU_NAME(group_list)(dev *d, const dev_group_list_args *a);
void CU_NAME(widen)(dev *d, const dev_widen_args *a);
void CU_NAME(conv)(dev *d, const dev_conv_args *a);
void CU_NAME(rates)(dev *d, const dev_rates_args *a);
void CU_NAME(scan)(dev *d, const dev_scan_args *a);
void CU_NAME(gate)(dev *d, const dev_gate_args *a);
void CU_NAME(times)(dev *d, const dev_times_args *a);
void CU_NAME(xielu)(dev *d, const dev_xielu_args *a);
void CU_NAME(unmix)(dev *d, const dev_unmix_args *a);
void CU_NAME(draw)(dev *d, const dev_draw_args *a);
void CU_NAME(gemm)(dev *d, const dev_gemm_args *a);
void CU_NAME(minus)(dev *d, const dev_minus_args *a);
bool CU_NAME(blas)(dev *d);
void CU_NAME(blas_load)(void);
void CU_NAME(blas_close)(dev *d);
void CU_NAME(gptq_round)(dev *d, const dev_gptq_args *a);
void CU_NAME(gptq_errors)(dev *d, const dev_gptq_args *a);
void CU_NAME(gptq_sweep)(dev *d, const dev_gptq_args *a);
lq_status CU_NAME(link)(dev_link **l, dev *d, lq_err *err);
void CU_NAME(unlink)(dev_link *l);
void CU_NAME(libraries)(int devices);
/* Of a rank: waits for it, or until another has failed for which it would wait for ever. */
void CU_NAME(watch)(dev *d);
void CU_NAME(all_reduce)(dev_link *l, float *const *x, int64_t n);
void CU_NAME(gather)(dev_link *l, float *to, float *const *x, int64_t n);
extern "C" const dev_ops CU_NAME(table);

#endif
