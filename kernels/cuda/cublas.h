/* kernels/cuda/cublas.h - what kernels/cuda/blas.cu takes of cuBLAS (cublas_v2.h, 12 and later):
 * loaded at run time, or emulated (kernels/cuda/emu/cublas.cc). Matrices are column-major. Results:
 * 0, or what `text` puts into words. */
#ifndef LLMQ_KERNELS_CUDA_CUBLAS_H
#define LLMQ_KERNELS_CUDA_CUBLAS_H

#include <stddef.h>

enum { CUBLAS_N = 0, CUBLAS_T = 1 };
enum { CUBLAS_F32 = 0, CUBLAS_BF16 = 14 }; /* types of a matrix */
enum { CUBLAS_IN_F32 = 68 };               /* what sums are made in */
enum { CUBLAS_ANY = -1 };                  /* an algorithm: its choice, by the shape */
/* X(field, name in the library, arguments) */
#define CUBLAS_CALLS(X)                                                                         \
    X(create, "cublasCreate_v2", (void **handle))                                               \
    X(destroy, "cublasDestroy_v2", (void *handle))                                              \
    X(set_stream, "cublasSetStream_v2", (void *handle, void *stream))                           \
    X(set_workspace, "cublasSetWorkspace_v2", (void *handle, void *memory, size_t bytes))       \
    X(gemm_ex, "cublasGemmEx",                                                                  \
      (void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *A, \
       int type_a, int lda, const void *B, int type_b, int ldb, const void *beta, void *C,      \
       int type_c, int ldc, int sums, int algorithm))

typedef struct {
#define X(field, name, args) int(*field) args;
    CUBLAS_CALLS(X)
#undef X
    const char *(*text)(int result); /* "cublasGetStatusString" */
} cublas_api;

#endif
