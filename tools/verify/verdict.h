/* tools/verify/verdict.h - what `llmq verify` has found so far. */
#ifndef LLMQ_TOOLS_VERIFY_VERDICT_H
#define LLMQ_TOOLS_VERIFY_VERDICT_H

#include "tools/cli/opt.h"

#include <cjson/cJSON.h>

typedef struct {
    const cmd_ctx *c;
    cJSON *bad; /* array of {"name","what"} */
    int64_t checked, n_bad;
    bool no_memory;
    char unfit[600]; /* why llmq cannot run it, or "" */
    bool unopened;   /* unfit is a finding too: what keeps it from being opened */
    bool tokenizer;  /* there is one that llmq loads */
    cJSON *beside;   /* array of names: what is in the folder and was not looked at */
    bool codes;      /* a weight that was compared with its source is quantized */
    int64_t beyond;  /* weights beyond what their recipe alone allows, since they were converted */
    char first_beyond[200];
} verdict;

/* One finding, to stderr and into the list; user: the verdict. */
void verdict_add(void *user, const char *name, const char *what);

#endif
