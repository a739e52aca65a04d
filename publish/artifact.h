/* publish/artifact.h - what is published of a model: its files, a card, provenance, sums.
 *
 * provenance.json says all that the card says, for programs: recipe, calibration, measurements,
 * sizes. README.md is made from it and from publish/handover.h. Neither holds a time or a place, so
 * the same model and options give the same bytes; what was pulled and is published again takes
 * from its provenance.json what options do not say; recipe and measurements only while the weights
 * are those that it was written for ("weights_xxh3": src_fingerprint's). */
#ifndef LLMQ_PUBLISH_ARTIFACT_H
#define LLMQ_PUBLISH_ARTIFACT_H

#include "formats/source/source.h"
#include "publish/files.h"

typedef struct {
    const char *name;         /* of the model; NULL: the file's or folder's */
    const char *base_model;   /* where it was made from, as "org/model"; NULL: not said */
    const char *license;      /* hub's identifier; NULL: as the model's own card says */
    const char *license_file; /* NULL: the model's own, if any */
    const char *made_from;    /* a .llmq whose recipe and provenance count; NULL: src's own */
    const char *const *evals; /* files of `llmq eval --json` */
    int n_evals;
    void (*note)(const char *text); /* may be NULL: what was not taken over, and why */
    bool in_place; /* the result replaces the folder: none of its files may be left out */
} artifact_opts;

/* Files of `src`, found at `path`, and those made of it, with digests, in the order of names; an
 * empty list before. `left_out` (may be NULL) hears of files in a folder that no artifact holds.
 * Errors: LQ_EIO, LQ_ENOMEM, LQ_EINTR; LQ_EUSAGE - an option, in_place; LQ_EFORMAT - a file of
 * `llmq eval` that is none, a name that no artifact may have. */
lq_status artifact_make(pub_files *fs, const src_source *src, const char *path,
                        const artifact_opts *o, void (*left_out)(const char *name),
                        const lq_job *job, lq_err *err);

#endif
