/* convert/model_free/model_free_names.h - which matrices are rounded where nothing is known but names. For convert/ only. */
#ifndef LLMQ_CONVERT_MODEL_FREE_MODEL_FREE_NAMES_H
#define LLMQ_CONVERT_MODEL_FREE_MODEL_FREE_NAMES_H

#include "base/base.h"

#define MF_TOWER "a tower or projector" /* of what mf_names_leaves says */

typedef struct mf_names mf_names;

lq_status mf_names_open(mf_names **n, lq_err *err); /* LQ_ENOMEM */
void mf_names_close(mf_names *n);
/* Why a module of this name stays as it is unless asked for: "an embedding", ...; NULL: it does not. */
const char *mf_names_leaves(mf_names *n, const char *module);

/* The names of modules that loaders fuse with this one (q, k, v; gate, up), which share its scheme: the i-th,
 * into out; false: there are no more. */
bool mf_names_sibling(char *out, size_t n, const char *module, int i);

#endif
