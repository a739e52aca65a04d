/* convert/parts.h - what several processes make of one result, each its share. For convert/ only.
 *
 * The work of a target is a list of pieces (what a tensor becomes), cut into at most 256 groups, whatever the number of shares.
 * Share i of N makes every N-th group, next to the result (base/resume.h):
 *
 *     OUT.resume/part-00007        the pieces' bytes one after another
 *     OUT.resume/part-00007.json   { "shard": "2/5", "xxh3": of those bytes, "pieces": [{ "bytes", ... }] }
 *
 * The process that writes the result copies the pieces that are there and makes the others. So the result has the bytes of one
 * process for any number of shares. */
#ifndef LLMQ_CONVERT_PARTS_H
#define LLMQ_CONVERT_PARTS_H

#include "base/json.h"
#include "base/out_file.h"
#include "convert/convert.h"

typedef struct {
    void *user;
    size_t n;
    /* Bytes that piece i is made of; 0: it is made with the one before it. */
    size_t (*work)(void *user, size_t i);
    /* Piece i to `to`, and what else its reader must know to `about`; what it adds to the report is noted here. */
    lq_status (*make)(void *user, size_t i, lq_out *to, cJSON *about, lq_err *err);
} conv_pieces;

typedef struct conv_parts conv_parts;

/* What there is of the result `out`, and the report that the pieces add to; *p NULL: no shares were asked for. Notes which
 * shares are missing. share, pieces and r are borrowed. Errors: those of resume_open, LQ_ENOMEM. */
lq_status conv_parts_open(conv_parts **p, const char *out, const conv_share *share,
                          const conv_pieces *pieces, conv_report *r, lq_err *err);
/* The groups of the share that are not there yet. */
lq_status conv_parts_make(conv_parts *p, const lq_job *job, lq_err *err);
/* Piece i, if a share has made it and its part is sound: valid until the next call. The report has it then. Best asked in
 * their order. */
bool conv_parts_get(conv_parts *p, size_t i, qt_span *bytes, const cJSON **about);
/* With `remove` (the result is there) the folder goes. NULL allowed. */
void conv_parts_close(conv_parts *p, bool remove);

#endif
