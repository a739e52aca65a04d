/* publish/hub/env.h - what the environment says of the hub, by huggingface_hub's variables. */
#ifndef LLMQ_PUBLISH_HUB_ENV_H
#define LLMQ_PUBLISH_HUB_ENV_H

#include "base/base.h"

typedef struct {
    char endpoint[512];   /* HF_ENDPOINT, without a '/' at its end; "https://huggingface.co" */
    char cache[4096];     /* HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME,
                             ~/.cache/huggingface/hub */
    char token[1024];     /* HF_TOKEN, HUGGING_FACE_HUB_TOKEN, or the file HF_TOKEN_PATH,
                             HF_HOME/token; "": none, or HF_HUB_DISABLE_IMPLICIT_TOKEN */
    const char *token_of; /* where it is from, for messages */
    bool offline;         /* HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE */
} hub_env;

/* LQ_EUSAGE: HF_ENDPOINT is no address, a token that no header can carry, a place that is not
 * known. */
lq_status hub_env_read(hub_env *e, lq_err *err);

#endif
