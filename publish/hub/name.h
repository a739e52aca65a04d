/* publish/hub/name.h - the name of a model on a hub: "ORG/NAME[@REVISION][:FILE]", where
 * FILE may be a quantization. */
#ifndef LLMQ_PUBLISH_HUB_NAME_H
#define LLMQ_PUBLISH_HUB_NAME_H

#include "base/base.h"

enum { HUB_REPO = 200, HUB_REVISION = 200, HUB_PICK = 300 };

typedef struct {
    char repo[HUB_REPO];         /* "org/name"; "gpt2" of some old ones */
    char revision[HUB_REVISION]; /* a branch, a tag or a commit; "main" unless said */
    char pick[HUB_PICK];         /* a file's path, or a quantization as "Q4_K_M"; "": none */
} hub_name;

/* LQ_EUSAGE says what is expected. */
lq_status hub_name_parse(hub_name *n, const char *text, lq_err *err);
/* Can it be one, written without "hf:"? There is one '/', and the end is not that of a file. */
bool hub_name_is(const char *text);
/* Is a path of a repository one that a cache can hold: no part of it empty, hidden or "..", no
 * control characters? */
bool hub_path_ok(const char *path);
/* 40 hex digits. */
bool hub_is_commit(const char *text);

#endif
