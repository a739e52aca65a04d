/* publish/hub/skeleton.h - a model's files with nothing of the weights but their headers.
 *
 * Settings are whole; of safetensors, GGUF and .llmq files the header is there, by range
 * requests, and the rest is a hole: the file has its size and takes no room. Of quantized
 * layouts zero points, orders of inputs and tensors of a few bytes are there too: what is looked
 * at when they are opened. Whoever opens it sees names, shapes and types. */
#ifndef LLMQ_PUBLISH_HUB_SKELETON_H
#define LLMQ_PUBLISH_HUB_SKELETON_H

#include "publish/hub/api.h"

/* The tree's wanted files into a new folder, whose name goes to dir[n]; skeleton_drop it, also
 * after an error (dir may be ""). LQ_EFORMAT - a header that is none, or is too long; LQ_EIO;
 * LQ_ENOMEM; LQ_EINTR. */
lq_status skeleton_make(char *dir, size_t n, hub_conn *c, const char *commit, const hub_tree *t,
                        lq_err *err);
void skeleton_drop(const char *dir);

#endif
