/* kernels/cuda/emu/cublas.cc - what kernels/cuda/blas.cu takes of cuBLAS and cuBLASLt, on emulated devices. */
#include "kernels/cuda/cu.cuh"
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

/* ---- cuBLASLt ---- */

struct layout {
    int type;
    uint64_t rows, cols;
    int64_t ld;
};
struct descriptor {
    int sums, scale_type, a_op, b_op;
};
int lt_desc(void **out, int sums, int scale_type)
{
    descriptor *d = (descriptor *)malloc(sizeof *d);
    if (d) *d = { sums, scale_type, CUBLAS_N, CUBLAS_N };
    return (*out = d) ? 0 : 3;
}
int lt_drop(void *p)
{
    free(p);
    return 0;
}
int lt_desc_set(void *of, int attribute, const void *value, size_t bytes)
{
    descriptor *d = (descriptor *)of;
    if (bytes != sizeof(int) || (attribute != CUBLASLT_A_OP && attribute != CUBLASLT_B_OP))
        return 7;
    memcpy(attribute == CUBLASLT_A_OP ? &d->a_op : &d->b_op, value, bytes);
    return 0;
}
int lt_layout(void **out, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
    layout *l = (layout *)malloc(sizeof *l);
    if (l) *l = { type, rows, cols, ld };
    return (*out = l) ? 0 : 3;
}

/* C [n, M] = A^T B, of codes. */
struct code_product {
    int64_t n, M, K;
    const uint8_t *A, *B;
    void *C;
    bool f8;
};
void multiply_codes(void *ctx)
{
    const code_product *p = (const code_product *)ctx;
    for (int64_t m = 0; m < p->M; m++)
        for (int64_t i = 0; i < p->n; i++) {
            const uint8_t *a = p->A + i * p->K, *b = p->B + m * p->K;
            int32_t sum = 0;
            float sum_f = 0;
            for (int64_t k = p->K; k-- > 0 && !p->f8;)
                sum += (int8_t)a[k] * (int8_t)b[k];
            for (int64_t k = p->K; k-- > 0 && p->f8;)
                sum_f = fmaf(cu_e4m3_f32(a[k]), cu_e4m3_f32(b[k]), sum_f);
            memcpy((uint8_t *)p->C + (m * p->n + i) * 4, p->f8 ? (const void *)&sum_f : &sum, 4);
        }
}
bool is(const void *p, int32_t want, bool f8)
{
    const float f = (float)want;
    return memcmp(p, f8 ? (const void *)&f : &want, 4) == 0;
}
int lt_matmul(void *of, void *desc, const void *alpha, const void *A, void *of_A, const void *B,
              void *of_B, const void *beta, const void *C, void *of_C, void *D, void *of_D,
              const void *algorithm, void *workspace, size_t, void *stream)
{
    const handle *h = (const handle *)of;
    const descriptor *d = (const descriptor *)desc;
    const layout *a = (const layout *)of_A, *b = (const layout *)of_B, *c = (const layout *)of_C;
    const bool f8 = a->type == CUBLAS_E4M3;
    const code_product p = { (int64_t)c->rows,
                             (int64_t)c->cols,
                             (int64_t)a->rows,
                             (const uint8_t *)A,
                             (const uint8_t *)B,
                             D,
                             f8 };
    if (emu_cublaslt_refuses) return 15;
    /* As the library has it: e4m3 from 8.9 on, A transposed alone, all sizes multiples of 16. */
    if ((f8 && emu_cc < 89) || d->a_op != CUBLAS_T || d->b_op != CUBLAS_N || c->rows % 16 ||
        c->cols % 16 || a->rows % 16)
        return 15;
    if (!h->room || workspace != h->room || stream != h->stream || algorithm || C != D ||
        of_C != of_D || b->type != a->type || (!f8 && a->type != CUBLAS_I8) ||
        c->type != (f8 ? CUBLAS_F32 : CUBLAS_I32) || d->scale_type != c->type ||
        d->sums != (f8 ? CUBLAS_IN_F32 : CUBLAS_IN_I32) || !is(alpha, 1, f8) || !is(beta, 0, f8) ||
        a->ld != p.K || b->ld != p.K || c->ld != p.n || (int64_t)a->cols != p.n ||
        (int64_t)b->cols != p.M || b->rows != a->rows || (uintptr_t)A % 16 || (uintptr_t)B % 16 ||
        (uintptr_t)D % 16 || !lies_there(A, (int)p.K, (int)p.n, (int)p.K, stream, 1) ||
        !lies_there(B, (int)p.K, (int)p.M, (int)p.K, stream, 1) ||
        !lies_there(D, (int)p.n, (int)p.M, (int)p.n, stream))
        return 7;
    const emu::work w = { 1,          1,        0,    (const void *)multiply_codes, multiply_codes,
                          (void *)&p, sizeof p, false };
    return emu::launch(stream, &w) == cudaSuccess ? 0 : 13;
}

const char *text(int result) { return result == 3 ? "out of memory" : "an invalid value"; }

} // namespace

bool emu_cublas_here = true, emu_cublaslt_refuses;
const cublas_api emu_cublas = { create, destroy, set_stream, set_workspace, gemm_ex, text };
const cublaslt_api emu_cublaslt = { lt_desc, lt_drop, lt_desc_set, lt_layout, lt_drop, lt_matmul };
