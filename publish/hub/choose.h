/* publish/hub/choose.h - which files of a repository are the model that was asked for.
 *
 * Of a folder of safetensors: config, tokenizer, templates, texts, and the weights that its
 * index or its file names mean; no second copy of them (.bin, .pth, original/, consolidated,
 * onnx/, variants). Of a repository of GGUF files one quantization, all parts of a split one:
 * the named one, else the nearest to Q4_K_M by its bits per weight. Of one with a .llmq file
 * that file. */
#ifndef LLMQ_PUBLISH_HUB_CHOOSE_H
#define LLMQ_PUBLISH_HUB_CHOOSE_H

#include "publish/hub/tree.h"

typedef enum {
    HUB_MODEL,  /* all of it */
    HUB_TEXT,   /* tokenizer, templates and settings; weights only where these are in their file */
    HUB_HEADERS /* settings, and of weights names, shapes and types */
} hub_need;

/* Marks the wanted entries. main[n]: the path of the one file that is the model, or "": the
 * folder is. LQ_ENOENT - nothing is called as `pick` says, and what there is; LQ_EUNSUPPORTED -
 * no weights that llmq reads, and what there is in their place. */
lq_status hub_choose(hub_tree *t, char *main, size_t n, const char *pick, hub_need need,
                     lq_err *err);

#endif
