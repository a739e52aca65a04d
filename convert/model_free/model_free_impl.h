/* convert/model_free/model_free_impl.h - a run of convert/model_free/model_free.h, shared by its files. */
#ifndef LLMQ_CONVERT_MODEL_FREE_MODEL_FREE_IMPL_H
#define LLMQ_CONVERT_MODEL_FREE_MODEL_FREE_IMPL_H

#include "convert/folder.h"
#include "convert/layouts/layout.h"
#include "convert/model_free/model_free.h"
#include "convert/model_free/model_free_names.h"

/* What of its tensor a weight of the plan is: rows row0 .. row0 + N of the expert's matrix. */
typedef struct {
    size_t item;    /* mf_item */
    int64_t expert; /* -1: the tensor is one matrix */
    bool turned;    /* the tensor has [inputs, outputs] */
    int64_t row0;
} mf_piece;

struct mf_run {
    src_source *src;
    const mf_opts *o;
    const conv_layout *layout;
    mf_item *items;
    size_t n_items;
    conv_plan plan;   /* of the result; plan.n pieces */
    mf_piece *pieces; /* [plan.n] */
    cJSON *quant;     /* quantization_config */
    cJSON *recipe, *provenance;
    int n_shards;
    lq_arena arena;
    /* while it writes */
    conv_folder folder;
    mf_report *report;
    pool *pool;
    const lq_job *job;
};

/* model_free_plan.c: items, pieces, quant. And once weights were read, the types of scales, sizes, shards. */
lq_status mf_plan(mf_run *m, lq_err *err);
lq_status mf_settle(mf_run *m, lq_err *err);

/* model_free_files.c: config.json with quantization_config, and what else is in the source's folder. */
lq_status mf_write_files(const mf_run *m, lq_err *err);
/* llmq.json; `whole`: with what tells of the files. */
lq_status mf_write_history(const mf_run *m, bool whole, lq_err *err);
/* Is llmq.json in `dir` of a run that does the same? *other: there is one, of another. */
bool mf_same_run(bool *other, const mf_run *m, const char *dir);

#endif
