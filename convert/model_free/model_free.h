/* convert/model_free/model_free.h - a checkpoint of any architecture, rounded by its weights alone.
 *
 * Nothing is known of the model but names and shapes. Matrices [N,K] called "....weight" are rounded, and
 * experts stacked in one tensor ("....experts.gate_up_proj" [E,2I,H] or [E,H,2I], "....down_proj"), which are
 * written one by one as loaders of quantized files expect them; what convert/model_free/model_free_names.h leaves, every
 * other tensor and the files of the folder are copied byte for byte. The result is a Hugging Face folder in
 * the layout `to`, its quantization_config with the list of what was left.
 *
 * Memory: one matrix. The folder grows as DIR.resume, file by file; an interrupted run goes on with the
 * files that are whole. Bytes depend on source and options alone. */
#ifndef LLMQ_CONVERT_MODEL_FREE_MODEL_FREE_H
#define LLMQ_CONVERT_MODEL_FREE_MODEL_FREE_H

#include "convert/convert.h"
#include "quantize/methods/rules.h"

typedef struct {
    const qz_opts *q;            /* a method without statistics; overrides, skips, lm_head */
    const char *to;              /* "compressed-tensors" or "fp8" */
    const char *const *includes; /* regexes: round also those that are left unasked */
    int n_includes;
    size_t shard_size; /* bytes of tensors per file at most; 0: one file */
    bool resume;       /* a folder that is what this run would make is left alone */
    bool restart;      /* do not go on from what an earlier run finished */
    plan_voice voice;
} mf_opts;

/* A tensor of the source and what becomes of it. */
typedef struct {
    const src_tensor *t;
    const char *why;  /* it is left although it is a matrix; NULL: rounded, or no matrix */
    bool rounded;     /* to: */
    qt_scheme scheme; /* scales are settled when weights are read */
    size_t bytes;     /* of the result */
} mf_item;

typedef struct mf_run mf_run;

/* What would be done; weights are not looked at. src, o and what it points to stay until mf_close. Errors:
 * LQ_EUSAGE (a pattern, a scheme, a method with statistics), LQ_EUNSUPPORTED (weights that are quantized
 * already; a scheme that the layout has no place for; nothing to round), LQ_ENOENT (no config.json),
 * LQ_ENOMEM. */
lq_status mf_open(mf_run **m, src_source *src, const mf_opts *o, lq_err *err);
void mf_close(mf_run *m);
size_t mf_n_items(const mf_run *m); /* in the order of names */
const mf_item *mf_item_at(const mf_run *m, size_t i);

typedef struct {
    size_t bytes_in, bytes_out; /* of tensors */
    int64_t rounded, tensors;   /* matrices; tensors written */
    int n_shards, resumed; /* files; of them those of an earlier run; -1: the folder was there */
} mf_report;

/* Errors: LQ_EVALUE (NaN or infinity in a matrix, by name), LQ_EIO and LQ_EINTR (finished files stay for a
 * repeated run), LQ_EUSAGE (of folder_create; DIR.resume is of another run), LQ_EBUSY, LQ_ENOMEM. */
lq_status mf_write(mf_report *r, mf_run *m, const char *dir, pool *p, const lq_job *job,
                   lq_err *err);

#endif
