/* convert/layouts.c - the table of published quantized layouts. */
#include "convert/layout.h"

static const conv_layout *const layouts[] = { &conv_gptq, &conv_gptq_v2, &conv_awq, &conv_ct,
                                              &conv_bnb };

const conv_layout *conv_layout_find(const char *name)
{
    for (size_t i = 0; i < LQ_COUNT(layouts); i++)
        if (strcmp(layouts[i]->name, name) == 0) return layouts[i];
    return NULL;
}

const char *conv_layout_at(size_t i) { return i < LQ_COUNT(layouts) ? layouts[i]->name : NULL; }
