/* quantize/rows_ref.c - the loops for any machine, and the choice among them. */
#include "quantize/rows_tmpl.h"

#include "kernels/ops.h"

const qz_rows_ops qz_rows_ref = QZ_ROWS_TABLE("ref");

const qz_rows_ops *qz_rows_get(void)
{
#if defined(__x86_64__)
    if (strcmp(k_name(), "ref") != 0) return &qz_rows_avx2;
#endif
    return &qz_rows_ref;
}
