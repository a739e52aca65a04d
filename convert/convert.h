/* convert/convert.h - a model from one container to another.
 *
 *   conv_to_llmq   any source -> one .llmq file; codes are carried over, only their order changes
 *   conv_to_hf     any source -> a Hugging Face folder: plain floats, or a published quantized
 *                  layout (convert/layouts/layout.h) that takes codes and scales over bit for bit
 *   conv_to_gguf   any source of an architecture that llama.cpp knows -> one GGUF file
 *
 * No new values are chosen, except where `requantize` allows it. All stream tensor by tensor, and
 * what they write appears whole or not at all. docs/converting.md says what goes where. */
#ifndef LLMQ_CONVERT_CONVERT_H
#define LLMQ_CONVERT_CONVERT_H

#include "formats/source/source.h"
#include "kernels/core/pool.h"

#include <cjson/cJSON.h>

enum { CONV_MAX_NOTES = 8 };
typedef struct {
    bool bit_exact;      /* every weight has the value that it has in the source */
    int64_t weights;     /* tensors of the source, as `inspect` lists them */
    int64_t tensors;     /* written: a quantized weight is several in some layouts */
    int64_t requantized; /* weights whose values were chosen again */
    int64_t floats;      /* weights that have codes in the source and none in the result */
    size_t bytes;        /* of all files */
    char note[CONV_MAX_NOTES][256]; /* notes to print */
    int n_notes;
} conv_report;

/* A conversion by several processes (convert/parts.h): each makes its share of the pieces into OUT.resume, and one without a
 * share puts them together there, with what is missing. */
#define CONV_WHAT "convert"
typedef struct {
    const cJSON *
        what; /* all that the result follows from, with a member CONV_WHAT; NULL: no shares are asked for */
    int shard, n; /* which (from 0) of how many; n 0: all that is missing, and the result */
} conv_share;
/* Have shares of this result made something? Then it is to be made with `what`. */
bool conv_shares_there(const char *out);

typedef struct {
    qt_layout layout;         /* of the layers' linears and an untied head */
    const uint8_t *tokenizer; /* tokenizer.blob to add where the source has none, or NULL */
    size_t tokenizer_bytes;
    conv_share share;
} conv_llmq_opts;

/* Each tensor is read and translated once: src is scanned on the way (src_scan). Errors: LQ_EIO,
 * LQ_ENOMEM, LQ_EINTR, LQ_EFORMAT (a layout that cannot be turned back). */
lq_status conv_to_llmq(conv_report *r, src_source *src, const char *path, const conv_llmq_opts *o,
                       pool *p, const lq_job *job, lq_err *err);

typedef struct {
    const char *to;    /* "safetensors", or a layout's name: conv_layout_at */
    bool keep_dtype;   /* floats keep their type, dequantized weights take the checkpoint's */
    lq_dtype dtype;    /* otherwise: of every float tensor */
    size_t shard_size; /* bytes of tensors per file at most (a larger tensor has its own); 0: one
                          file */
    bool requantize;   /* round again what the layout cannot hold, instead of refusing it */
    conv_share share;
} conv_hf_opts;

/* Names that `to` may have besides "safetensors"; NULL beyond the last. */
const char *conv_layout_at(size_t i);
/* Does such a layout hold zero points from 1 on alone? */
bool conv_zero_from_one(const char *to);
/* The same in the order in which vLLM and SGLang should be given them: the first that holds the
 * model. *least_bits: of the uint weights that they read; 0: any. */
const char *conv_layout_ranked(size_t i, int *least_bits);

/* `dir` may exist when it is empty or holds an earlier result (a config.json and only files of a
 * model), which is then replaced. The folder grows as `dir`.tmp; what a killed run leaves there
 * goes when the next one begins. Errors: LQ_EIO, LQ_ENOMEM, LQ_EINTR; LQ_EUSAGE - dir holds
 * something else; LQ_EBUSY - another run is writing it; LQ_EUNSUPPORTED - the layout cannot hold a
 * weight. */
lq_status conv_to_hf(conv_report *r, const src_source *src, const char *dir, const conv_hf_opts *o,
                     pool *p, const lq_job *job, lq_err *err);

/* Would `to` hold the model as it is, as far as schemes and shapes tell? (A zero point that has no
 * place shows when it is packed.) LQ_EUNSUPPORTED says why not. */
lq_status conv_holds(const src_source *src, const char *to, lq_err *err);

typedef struct {
    bool keep_dtype; /* matrices keep their codes, or the type of their floats (vectors are f32) */
    lq_dtype dtype;  /* otherwise: of every matrix, also of those with codes */
    bool requantize; /* to Q8_0 what no type of blocks holds, instead of refusing it */
    conv_share share;
} conv_gguf_opts;

/* As conv_holds: would GGUF? (A value that has no place shows when it is packed.) */
lq_status conv_gguf_holds(const src_source *src, lq_err *err);

/* Errors: LQ_EIO, LQ_ENOMEM, LQ_EINTR; LQ_EUNSUPPORTED - an architecture, a setting or a weight
 * that GGUF has no place for. */
lq_status conv_to_gguf(conv_report *r, const src_source *src, const char *path,
                       const conv_gguf_opts *o, pool *p, const lq_job *job, lq_err *err);

#endif
