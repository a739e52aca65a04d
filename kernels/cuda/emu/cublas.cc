/* kernels/cuda/emu/cublas.cc - what kernels/cuda/blas.cu takes of cuBLAS, on emulated devices. */
#include "kernels/cuda/emu/emu_int.h"

#include <math.h>
#include <stdlib.h>

namespace
{

struct handle {
    void *stream, *room;
};

int create(void **h) { return (*h = calloc(1, sizeof(handle))) ? 0 : 3; }
int destroy(void *h)
{
    free(h);
    return 0;
}
int set_stream(void *h, void *stream)
{
    ((handle *)h)->stream = stream;
    return 0;
}
int set_workspace(void *h, void *memory, size_t bytes)
{
    handle *of = (handle *)h;
    if (!emu::on_device(memory, bytes, emu::stream_device(of->stream))) return 7;
    of->room = memory;
    return 0;
}
/* Columns ld numbers apart; rows of a matrix that is taken transposed are its columns. */
bool lies_there(const void *p, int rows, int cols, int ld, const void *stream, size_t each = 4)
{
    return rows <= ld && emu::on_device(p, ((size_t)(cols - 1) * (size_t)ld + (size_t)rows) * each,
                                        emu::stream_device(stream));
}

/* C [m, n] = A^T B + beta C, queued as a launch is: it may be captured. */
struct product {
    int m, n, k, lda, ldb, ldc;
    const uint16_t *A, *B;
    float *C, beta;
};

void multiply(void *ctx)
{
    const product *p = (const product *)ctx;
    for (int j = 0; j < p->n; j++)
        for (int i = 0; i < p->m; i++) {
            float sum = 0;
            for (int x = p->k - 1; x >= 0; x--)
                sum = fmaf(emu::from_bf16(p->A[(size_t)i * (size_t)p->lda + (size_t)x]),
                           emu::from_bf16(p->B[(size_t)j * (size_t)p->ldb + (size_t)x]), sum);
            float *c = &p->C[(size_t)j * (size_t)p->ldc + (size_t)i];
            *c = sum + (p->beta == 0 ? 0 : p->beta * *c);
        }
}

int gemm_ex(void *of, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *A,
            int type_a, int lda, const void *B, int type_b, int ldb, const void *beta, void *C,
            int type_c, int ldc, int sums, int algorithm)
{
    const handle *h = (const handle *)of;
    float one;
    product p = { m, n, k, lda, ldb, ldc, (const uint16_t *)A, (const uint16_t *)B, (float *)C, 0 };
    memcpy(&one, alpha, sizeof one);
    memcpy(&p.beta, beta, sizeof p.beta);
    /* llmq asks for no other; the units want pieces of 16 bytes, a capture memory of its own */
    if (!h->room || one != 1 || op_a != CUBLAS_T || op_b != CUBLAS_N || type_a != CUBLAS_BF16 ||
        type_b != CUBLAS_BF16 || type_c != CUBLAS_F32 || sums != CUBLAS_IN_F32 ||
        algorithm != CUBLAS_ANY || lda % 8 || ldb % 8 || (uintptr_t)A % 16 || (uintptr_t)B % 16 ||
        !lies_there(A, k, m, lda, h->stream, 2) || !lies_there(B, k, n, ldb, h->stream, 2) ||
        !lies_there(C, m, n, ldc, h->stream))
        return 7;
    const emu::work w = { 1, 1, 0, (const void *)multiply, multiply, &p, sizeof p, false };
    return emu::launch(h->stream, &w) == cudaSuccess ? 0 : 13;
}

const char *text(int result) { return result == 3 ? "out of memory" : "an invalid value"; }

} // namespace

bool emu_cublas_here = true;
const cublas_api emu_cublas = { create, destroy, set_stream, set_workspace, gemm_ex, text };
