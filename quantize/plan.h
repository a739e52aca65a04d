/* quantize/plan.h - what becomes of every tensor of a source, decided before any work.
 *
 * Parts 0..L-1 are the layers, part L the rest. Order: embedding, layers, the rest; by name inside
 * each. That is also the order in the file. */
#ifndef LLMQ_QUANTIZE_PLAN_H
#define LLMQ_QUANTIZE_PLAN_H

#include "formats/source.h"
#include "quantize/method.h"

typedef struct {
    const src_tensor *src;
    const char *name; /* as the source's, save the head that is split from a tied embedding */
    bool known;       /* has a role in this architecture */
    arch_role role;
    bool is_bias;
    int64_t part;
    bool quantize;    /* to `scheme` (which may be a dense one); else copied byte for byte */
    qt_scheme scheme; /* fitted to the shape; i8-outlier: n_out is not known yet */
} plan_entry;

/* Messages to the user, one line each. */
typedef struct {
    void (*say)(void *user, const char *line);
    void *user;
} plan_voice;

typedef struct {
    plan_entry *e;
    size_t n;
    arch_config cfg; /* of the result: the source's, untied when the head gets its own scheme;
                        shares its layers */
    lq_arena arena;
} qz_plan;

/* Errors: LQ_EUSAGE (a regex or scheme), LQ_EUNSUPPORTED (a weight that is quantized already, or
 * tiled), LQ_EVALUE (NaN or Inf in a weight, by name), LQ_ENOENT (a missing tensor), LQ_ESHAPE. */
lq_status qz_plan_make(qz_plan *p, const src_source *src, const qz_opts *o, const plan_voice *v,
                       lq_err *err);
void qz_plan_free(qz_plan *p);
const plan_entry *qz_plan_find(const qz_plan *p, arch_role r, int64_t layer, bool bias);

/* The largest divisor of K that is not above `group` and at least 16; else K itself. */
int64_t qz_fit_group(int64_t K, int64_t group);

#endif
