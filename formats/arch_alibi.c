/* formats/arch_alibi.c - slopes of ALiBi (arXiv:2108.12409). */
#include "formats/arch.h"

/* The first n heads, n a power of two, take 2^(-max i / n); those beyond every second one of the
 * row of 2n. */
void arch_alibi_slopes(const arch_config *c, float *slopes)
{
    int64_t n = 1;
    while (2 * n <= c->heads)
        n *= 2;
    for (int64_t i = 0; i < c->heads; i++) {
        double step =
            i < n ? (double)(i + 1) / (double)n : (double)(2 * (i - n) + 1) / (double)(2 * n);
        slopes[i] = (float)exp2(-c->alibi_max * step);
    }
}
