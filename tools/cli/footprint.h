/* tools/cli/footprint.h - what a model takes in memory, from its config and its table of tensors: no
 * weight is read. */
#ifndef LLMQ_TOOLS_CLI_FOOTPRINT_H
#define LLMQ_TOOLS_CLI_FOOTPRINT_H

#include "formats/source/source.h"
#include "runtime/model/model.h"

typedef struct {
    src_source *src;        /* NULL: a config alone */
    bool weights;           /* src has tensors */
    const model_part *part; /* weights are those of one of several processes; NULL: all */
    arch_config own;        /* when src is NULL */
} foot_model;

/* path: a model (draft: or an EAGLE-3 draft), a folder whose weights are not there yet, or a config.json alone. */
/* rope: --rope-scaling, or NULL. */
lq_status foot_open(foot_model *m, const char *path, bool draft, bool verify, const char *rope,
                    lq_err *err);
/* The MTP head of m, which is closed later. Errors: as of src_mtp. */
lq_status foot_head(foot_model *head, const foot_model *m, lq_err *err);
void foot_close(foot_model *m);
const arch_config *foot_config(const foot_model *m);
const char *foot_format(const foot_model *m); /* "safetensors", "config alone" */

typedef struct {
    size_t weights_bytes; /* resident: linears, head, embedding, norms, biases */
    size_t rows_bytes;    /* of which rows are read from the file as they are needed: per-layer
                             embeddings */
    size_t step_bytes;    /* read in every step: linears and head */
    double step_weights;  /* numbers in those */
    double params;        /* all of the model */
} foot_weights;
/* scheme: as if the linear layers were in it; NULL: as they are stored. */
lq_status foot_weigh(foot_weights *w, const foot_model *m, const qt_scheme *scheme, lq_err *err);
/* The same of the last n layers and what goes with them to a device, or of the part that the first
 * of so many devices has of those; of no layer nothing. */
lq_status foot_weigh_last(foot_weights *w, const foot_model *m, const qt_scheme *scheme, int64_t n,
                          int ranks, lq_err *err);
/* What a device needs of it, or each of so many that share all layers: sizes->layer points into
 * room [layers + 1], which is filled; half: model_share's. An error where they cannot share it. */
lq_status foot_sizes(model_sizes *sizes, size_t *room, const foot_model *m, const qt_scheme *scheme,
                     int ranks, bool half, lq_err *err);

/* Whether layers have weights that cuBLAS multiplies on a device (dev_in_rows), or whose
 * codes cuBLASLt does (dev_mm_codes). */
lq_status foot_in_rows(bool *any, const foot_model *m, lq_err *err);

#endif
