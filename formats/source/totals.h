/* formats/source/totals.h - how many weights and bytes a model has, by scheme. */
#ifndef LLMQ_FORMATS_SOURCE_TOTALS_H
#define LLMQ_FORMATS_SOURCE_TOTALS_H

#include "formats/source/source.h"

typedef struct {
    char scheme[40];
    int64_t tensors;
    double elements, bytes;
} src_total;

typedef struct {
    src_total *per; /* in order of first appearance */
    size_t n;
    double params, bytes;               /* params: elements of float and quantized tensors */
    double linear_params, linear_bytes; /* of the linear layers; without a config of all matrices */
} src_totals;

/* LQ_ENOMEM. Free with src_totals_free, also after an error. */
lq_status src_count(src_totals *t, const src_source *s, lq_err *err);
void src_totals_free(src_totals *t);

/* "u4-g128", "i64 (raw)". */
void src_scheme_text(char out[40], const src_tensor *t);
static inline double src_bits_per(double bytes, double elements)
{
    return elements > 0 ? 8 * bytes / elements : 0;
}

#endif
