/* convert/layouts/layouts.c - the table of published quantized layouts. */
#include "convert/layouts/layout.h"

static const conv_layout *const layouts[] = { &conv_gptq, &conv_gptq_v2, &conv_awq, &conv_ct,
                                              &conv_fp8,  &conv_bnb,     &conv_mlx };

const conv_layout *conv_layout_find(const char *name)
{
    for (size_t i = 0; i < LQ_COUNT(layouts); i++)
        if (strcmp(layouts[i]->name, name) == 0) return layouts[i];
    return NULL;
}

const char *conv_layout_ranked(size_t i, int *least_bits)
{
    for (size_t k = 0; k < LQ_COUNT(layouts); k++)
        if ((size_t)layouts[k]->rank == i + 1) {
            *least_bits = layouts[k]->least_bits;
            return layouts[k]->name;
        }
    return NULL;
}

bool conv_zero_from_one(const char *to)
{
    const conv_layout *l = conv_layout_find(to);
    return l && l->zero_from_one;
}

const char *conv_layout_at(size_t i) { return i < LQ_COUNT(layouts) ? layouts[i]->name : NULL; }
