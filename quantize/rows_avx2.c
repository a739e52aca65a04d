/* quantize/rows_avx2.c - the loops in 256-bit registers. */
#if defined(__x86_64__)
#include "quantize/rows_tmpl.h"

const qz_rows_ops qz_rows_avx2 = QZ_ROWS_TABLE("avx2");
#endif
