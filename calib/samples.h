/* calib/samples.h - windows of tokens that calibration runs through the model.
 *
 * A stream of ids is cut into whole windows; `n` of them are chosen by the seed, and kept in the
 * order of the stream. Files become streams in calib/dataset.h. */
#ifndef LLMQ_CALIB_SAMPLES_H
#define LLMQ_CALIB_SAMPLES_H

#include "base/base.h"
#include "base/hash.h"
#include "runtime/tokenizer/tok.h"

/* What one file gave. */
typedef struct {
    char name[256];   /* without its folders, cut where it is longer; "builtin" */
    const char *kind; /* "text", "jsonl", "ids", "builtin", "builtin-chat" (static) */
    double weight;
    int64_t windows, available; /* taken; whole windows in the file */
    lq_hash hash;               /* of its bytes */
    int32_t begin[TOK_BEGIN];   /* [n_begin] what each window begins with: the tokenizer's BOS */
    int n_begin;
} cal_part;

typedef struct {
    int32_t *ids; /* [n][len], owned */
    int64_t n, len;
    int64_t begun;     /* ids of text follow so many of the tokenizer's own (BOS), at most */
    int64_t available; /* whole windows in the text */
    lq_hash hash;      /* of n, len and the ids */
    cal_part *parts;   /* [n_parts], owned; none where they were made of ids */
    int n_parts;
} cal_samples;

/* Fewer windows in the stream than n: all of them (compare `available`). vocab: ids at or above it
 * are refused, since the model has no embedding for them. The ids are copied. Errors: LQ_EVALUE -
 * the stream does not fill one window, or an id is out of range; LQ_ENOMEM. */
lq_status cal_samples_from_ids(cal_samples *s, const int32_t *ids, int64_t n_ids, int64_t n,
                               int64_t len, uint64_t seed, int64_t vocab, lq_err *err);
/* Do they fill a window, and are they in the vocabulary? Errors: LQ_EVALUE. */
lq_status cal_check_ids(const int32_t *ids, int64_t n, int64_t len, int64_t vocab, lq_err *err);
/* s->hash := that of what s holds. Errors: LQ_ENOMEM. */
lq_status cal_samples_hash(cal_samples *s, lq_err *err);
/* For the record: hash, windows and their length, and of each file name, kind, weight, windows,
 * tokens and hash. NULL: out of memory. */
typedef struct cJSON cJSON;
cJSON *cal_samples_json(const cal_samples *s);
void cal_samples_free(cal_samples *s);

#endif
