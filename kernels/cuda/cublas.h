/* kernels/cuda/cublas.h - what kernels/cuda/blas.cu takes of cuBLAS (cublas_v2.h, 12 and later), and mm_lt.cu
 * of cuBLASLt (cublasLt.h): loaded at run time, or emulated (kernels/cuda/emu/cublas.cc). Matrices are
 * column-major. Results: 0, or what `text` puts into words. */
#ifndef LLMQ_KERNELS_CUDA_CUBLAS_H
#define LLMQ_KERNELS_CUDA_CUBLAS_H

#include <stddef.h>
#include <stdint.h>

enum { CUBLAS_N = 0, CUBLAS_T = 1 };
enum {
    CUBLAS_F32 = 0,
    CUBLAS_I8 = 3,
    CUBLAS_I32 = 10,
    CUBLAS_BF16 = 14,
    CUBLAS_E4M3 = 28
};                                               /* types */
enum { CUBLAS_IN_F32 = 68, CUBLAS_IN_I32 = 72 }; /* what sums are made in */
enum { CUBLASLT_A_OP = 3, CUBLASLT_B_OP = 4 };   /* attributes of a product: CUBLAS_N, CUBLAS_T */
enum { CUBLAS_ANY = -1 };                        /* an algorithm: its choice, by the shape */
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

/* Of cuBLASLt; a handle of cuBLAS is one of it too. algorithm NULL: its choice, by the shape. */
#define CUBLASLT_CALLS(X)                                                                     \
    X(desc, "cublasLtMatmulDescCreate", (void **desc, int sums, int scale_type))              \
    X(desc_drop, "cublasLtMatmulDescDestroy", (void *desc))                                   \
    X(desc_set, "cublasLtMatmulDescSetAttribute",                                             \
      (void *desc, int attribute, const void *value, size_t bytes))                           \
    X(layout, "cublasLtMatrixLayoutCreate",                                                   \
      (void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld))                    \
    X(layout_drop, "cublasLtMatrixLayoutDestroy", (void *layout))                             \
    X(matmul, "cublasLtMatmul",                                                               \
      (void *handle, void *desc, const void *alpha, const void *A, void *of_A, const void *B, \
       void *of_B, const void *beta, const void *C, void *of_C, void *D, void *of_D,          \
       const void *algorithm, void *workspace, size_t bytes, void *stream))

typedef struct {
#define X(field, name, args) int(*field) args;
    CUBLASLT_CALLS(X)
#undef X
} cublaslt_api;

typedef struct {
#define X(field, name, args) int(*field) args;
    CUBLAS_CALLS(X)
#undef X
    const char *(*text)(int result); /* "cublasGetStatusString" */
} cublas_api;

#endif
