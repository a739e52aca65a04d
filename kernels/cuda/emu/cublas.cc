/* kernels/cuda/emu/cublas.cc - what kernels/cuda/quant.cu takes of cuBLAS, on emulated devices. */
#include "kernels/cuda/emu/emu_int.h"

#include <math.h>
#include <stdlib.h>

namespace
{

struct handle {
    void *stream;
    int mode;
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
int set_mode(void *h, int mode)
{
    ((handle *)h)->mode = mode;
    return 0;
}

/* Columns ld numbers apart; rows of a matrix that is taken transposed are its columns. */
bool lies_there(const float *p, int rows, int cols, int ld, const void *stream)
{
    return rows <= ld && emu::on_device(p, ((size_t)(cols - 1) * (size_t)ld + (size_t)rows) * 4,
                                        emu::stream_device(stream));
}

int sgemm(void *of, int op_a, int op_b, int m, int n, int k, const float *alpha, const float *A,
          int lda, const float *B, int ldb, const float *beta, float *C, int ldc)
{
    const handle *h = (const handle *)of;
    if (h->mode != CUBLAS_PEDANTIC) return 7; /* llmq asks for no other */
    if (!lies_there(A, op_a ? k : m, op_a ? m : k, lda, h->stream) ||
        !lies_there(B, op_b ? n : k, op_b ? k : n, ldb, h->stream) ||
        !lies_there(C, m, n, ldc, h->stream))
        return 7;
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++) {
            float sum = 0;
            for (int x = k - 1; x >= 0; x--) /* an order of its own */
                sum = fmaf(A[op_a ? (size_t)i * (size_t)lda + (size_t)x
                                  : (size_t)x * (size_t)lda + (size_t)i],
                           B[op_b ? (size_t)x * (size_t)ldb + (size_t)j
                                  : (size_t)j * (size_t)ldb + (size_t)x],
                           sum);
            float *c = &C[(size_t)j * (size_t)ldc + (size_t)i];
            *c = *alpha * sum + (*beta == 0 ? 0 : *beta * *c);
        }
    return 0;
}

const char *text(int result) { return result == 3 ? "out of memory" : "an invalid value"; }

} // namespace

bool emu_cublas_here = true;
const cublas_api emu_cublas = { create, destroy, set_stream, set_mode, sgemm, text };
