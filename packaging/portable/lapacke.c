/* See lapacke.h. Source of the two: LAPACK 3.11. */
#include "lapacke.h"

#include <assert.h>

void dpotrf_(const char *uplo, const lapack_int *n, double *a, const lapack_int *lda,
             lapack_int *info);
void dtrtri_(const char *uplo, const char *diag, const lapack_int *n, double *a,
             const lapack_int *lda, lapack_int *info);

lapack_int LAPACKE_dpotrf_work(int layout, char uplo, lapack_int n, double *a, lapack_int lda)
{
    lapack_int info = 0;
    assert(layout == LAPACK_COL_MAJOR);
    dpotrf_(&uplo, &n, a, &lda, &info);
    return info < 0 ? info - 1 : info;
}

lapack_int LAPACKE_dtrtri_work(int layout, char uplo, char diag, lapack_int n, double *a,
                               lapack_int lda)
{
    lapack_int info = 0;
    assert(layout == LAPACK_COL_MAJOR);
    dtrtri_(&uplo, &diag, &n, a, &lda, &info);
    return info < 0 ? info - 1 : info;
}
