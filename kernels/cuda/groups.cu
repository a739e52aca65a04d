/* kernels/cuda/groups.cu - keys of groups of positions of which an indexer chooses, and what positions those have
 * (runtime/forward/forward_index.c has the equations; topk.cu chooses).
 *
 *   group keys  a block of 128 threads a row: one that ends no group has nothing to do, another reads its group's keys
 *               and weights from the cache, a thread a dim
 *   group list  a block of 128 threads a row, a thread a position */
#include "kernels/cuda/attn.cuh"

#include <assert.h>

inline namespace CU_NAME(groups_cu)
{

    enum { THREADS = 128 };

    /* Number i of a row of W. */
    __device__ __forceinline__ float number_of(G<const uint8_t> row, int i, int W, kv_dtype d)
    {
        if (d == KV_F32) return cu_ld<float>(row + 4 * i);
        if (d == KV_F16) return cu_f16_f32(cu_ld<uint16_t>(row + 2 * i));
        if (d == KV_BF16) return cu_bf16_f32(cu_ld<uint16_t>(row + 2 * i));
        const float4 four = attn_four(row, i / 4, W, d);
        return i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
    }

    __global__ void __launch_bounds__(THREADS) keys_kernel(dev_group_keys_args a, int row_bytes)
    {
        const int64_t t = blockIdx.x;
        const int every = (int)a.every, D = (int)a.D;
        cu_follow();
        if (G<const int32_t>(a.group)[t] < 0) return;
        const int64_t first = G<const int32_t>(a.slot)[t] + 1 - every;
        const G<const uint8_t> rows =
            G<const uint8_t>(a.k) +
            ((int64_t)G<const int32_t>(a.block)[t] * (int64_t)a.block_stride + first * row_bytes);
        const G<const float> bias = G<const float>(a.bias);
        for (int d = (int)threadIdx.x; d < D; d += THREADS) {
            float max = -INFINITY, sum = 0, key = 0;
            for (int i = 0; i < every; i++) {
                const float w = number_of(rows + i * row_bytes, D + d, 2 * D, a.dtype) +
                                cu_ldg<float>(bias + (i * D + d));
                max = w > max ? w : max;
            }
            for (int i = 0; i < every; i++) {
                const float w = number_of(rows + i * row_bytes, D + d, 2 * D, a.dtype) +
                                cu_ldg<float>(bias + (i * D + d)),
                            e = km_exp(w - max);
                sum += e;
                key += e * number_of(rows + i * row_bytes, d, 2 * D, a.dtype);
            }
            cu_st(G<float>(a.keys) + (t * D + d), key / sum);
        }
    }

    __global__ void __launch_bounds__(THREADS) list_kernel(dev_group_list_args a)
    {
        cu_follow();
        const dev_key_row r = G<const dev_key_row>(a.rows)[blockIdx.x];
        const int every = (int)a.every, seen = r.pos + 1, there = seen / every, most = (int)a.most,
                  groups = there < most ? there : most;
        const G<const int32_t> chosen = G<const int32_t>(a.chosen) + r.row * a.most;
        const G<int32_t> list = G<int32_t>(a.list) + r.row * a.ld;
        const int n = groups * every + seen % every;
        for (int i = (int)threadIdx.x; i < n; i += THREADS)
            list[i] = i < groups * every ? chosen[i / every] * every + i % every
                                         : there * every + i - groups * every;
    }

}

void CU_NAME(group_keys)(dev *d, const dev_group_keys_args *a)
{
    assert(a->D % 2 == 0 || attn_kv_head(a->dtype) == 0);
    if (a->T == 0) return;
    CU_FOLLOW(d, "group keys", keys_kernel, dim3((unsigned)a->T), THREADS, 0, *a,
              (int)attn_kv_row_bytes(a->dtype, 2 * a->D));
}

void CU_NAME(group_list)(dev *d, const dev_group_list_args *a)
{
    if (a->n_rows == 0) return;
    CU_FOLLOW(d, "group list", list_kernel, dim3((unsigned)a->n_rows), THREADS, 0, *a);
}
