/* publish/handover.h - how to run a model in another engine: the commands, and what differs.
 *
 * An engine is a row of the table in handover.c. What it can load is asked of convert/, so the two
 * cannot disagree. */
#ifndef LLMQ_PUBLISH_HANDOVER_H
#define LLMQ_PUBLISH_HANDOVER_H

#include "base/json.h"
#include "formats/source/source.h"

/* { "engine", "model", "runs": does the engine load some form of it?, "prepare": [command lines to
 * run first], "command": the line that starts it or null, "files": [what it reads], "differences":
 * [sentences], "limits" (vLLM, SGLang): { "max_model_len", "dtype", "tensor_parallel": [sizes],
 * "refused": why the engine would not load it, where it would not } }. src: with a config. `model`: its path as the commands shall say it. Errors:
 * LQ_EUSAGE - an unknown engine, all named; LQ_ENOMEM. */
lq_status handover_plan(cJSON **out, const src_source *src, const char *model, const char *engine,
                        lq_err *err);
const char *handover_engine(size_t i); /* NULL beyond the last */

#endif
