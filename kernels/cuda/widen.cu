/* kernels/cuda/widen.cu - blocks of a cache of codes as bf16, for attention that takes no codes
 * (attn_sm90.cu): a number times its row's scale, rounded once.
 *
 *   widen   a block of threads a block of one KV head's keys, or of its values; 8 numbers a thread
 *
 * It moves bytes: of int8 132 in and 256 out for a head of 128. No shared memory. */
#include "kernels/cuda/attn.cuh"

inline namespace CU_NAME(widen_cu)
{

    enum { THREADS = 256, PIECE = 8 };

    template <kv_dtype T>
    __global__ void __launch_bounds__(THREADS)
        widen_kernel(G<uint8_t> to, G<const uint8_t> k, G<const uint8_t> values,
                     G<const int32_t> blocks, dev_widen_args a, int row_k, int row_v)
    {
        const bool value = blockIdx.z;
        const int D = (int)(value ? a.Dv : a.D), pieces = D / PIECE, head = (int)blockIdx.y;
        const int row_bytes = value ? row_v : row_k;
        cu_follow();
        const int32_t block = blocks[blockIdx.x];
        if (block < 0) return; /* all threads of the block alike */
        const int64_t line = (int64_t)head * a.block_size;
        const G<const uint8_t> from =
            (value ? values : k) + ((int64_t)block * (int64_t)a.block_stride + line * row_bytes);
        const G<uint8_t> own = to + ((int64_t)blockIdx.x * (int64_t)a.to_stride +
                                     (value ? a.Hkv * a.block_size * a.D * 2 : 0) + line * D * 2);
        for (int i = threadIdx.x; i < a.block_size * pieces; i += THREADS) {
            const int row = i / pieces, d = i % pieces * PIECE;
            const G<const uint8_t> codes = from + row * row_bytes;
            const unsigned first = cu_ld<unsigned>(codes);
            const uint4 x = attn_numbers<T>(attn_bring<T>(codes, d), first,
                                            T == KV_I4 ? d / (int)attn_i4_block(D) : 0);
            const float scale = attn_scale<T>(first);
            const unsigned in[4] = { x.x, x.y, x.z, x.w };
            unsigned out[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                out[j] = cu_pair<false>(cu_bf16_f32(in[j] & 0xffffu) * scale,
                                        cu_bf16_f32(in[j] >> 16) * scale);
            cu_st(own + (row * D + d) * 2, uint4{ out[0], out[1], out[2], out[3] });
        }
    }

    template <kv_dtype T> void launch(dev * d, const dev_widen_args *a)
    {
        CU_FOLLOW(d, "widen", widen_kernel<T>, dim3((unsigned)a->n, (unsigned)a->Hkv, 2), THREADS,
                  0, a->to, a->k, a->v, a->blocks, *a, (int)attn_kv_row_bytes(T, a->D),
                  (int)attn_kv_row_bytes(T, a->Dv));
    }

}

void CU_NAME(widen)(dev *d, const dev_widen_args *a)
{
    if (a->n == 0) return;
    if (a->dtype == KV_I8)
        launch<KV_I8>(d, a);
    else if (a->dtype == KV_I4)
        launch<KV_I4>(d, a);
    else
        launch<KV_F8>(d, a);
}
