/* The two functions of LAPACKE that llmq calls, for the portable build: OpenBLAS has LAPACK's dpotrf and
 * dtrtri itself, and in column-major order LAPACKE adds nothing. */
#ifndef LLMQ_PACKAGING_LAPACKE_H
#define LLMQ_PACKAGING_LAPACKE_H

typedef int lapack_int;
#define LAPACK_COL_MAJOR 102

lapack_int LAPACKE_dpotrf_work(int layout, char uplo, lapack_int n, double *a, lapack_int lda);
lapack_int LAPACKE_dtrtri_work(int layout, char uplo, char diag, lapack_int n, double *a,
                               lapack_int lda);

#endif
