/* publish/hub/hub.h - models of a hub (huggingface.co, or HF_ENDPOINT) by name, in its cache.
 *
 * The cache is shared with huggingface_hub both ways (publish/hub/cache.h). A file is fetched
 * beside its place, resumes where it was interrupted, and gets its name when size and digest
 * fit. */
#ifndef LLMQ_PUBLISH_HUB_HUB_H
#define LLMQ_PUBLISH_HUB_HUB_H

#include "publish/hub/choose.h"
#include "publish/target.h"

typedef struct hub_found {
    char path[5200]; /* of the model: a folder, or one file in it */
    char commit[SHA1_HEX];
    pub_files files;    /* that it consists of; free with pub_files_free */
    uint64_t fetched;   /* bytes that were not there yet */
    char scratch[4200]; /* headers alone: a folder that goes with hub_found_free; "": none */
} hub_found;

/* The model `text` ("ORG/NAME[@REVISION][:FILE-OR-QUANTIZATION]"), after which it is in the cache.
 * newest: the hub is asked what the revision is now; else what the cache has is taken where it is
 * whole, and where the hub is not reached also what is a model there by its names alone.
 * HUB_HEADERS, and HUB_TEXT of a GGUF, of one that the cache does not have go to a folder of TMPDIR
 * (publish/hub/skeleton.h). Offline (HF_HUB_OFFLINE) the cache alone. Errors: LQ_EUSAGE - the name;
 * LQ_ENOENT - no such repository, revision or file, or offline and not there; LQ_EUNSUPPORTED - no
 * weights that llmq reads; LQ_EIO - gated, refused, not reached, no room; LQ_ECHECK - other bytes
 * than the hub says; LQ_EINTR. */
lq_status hub_find(hub_found *f, const char *text, hub_need need, bool newest, const pub_opts *o,
                   lq_err *err);
void hub_found_free(hub_found *f);

#endif
