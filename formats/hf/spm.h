/* formats/hf/spm.h - tokenizer.model: SentencePiece's protobuf, its pieces and what surrounds them.
 *
 * ModelProto { pieces = 1 { piece = 1, score = 2, type = 3 }, trainer_spec = 2 { model_type = 3,
 * treat_whitespace_as_suffix = 24, byte_fallback = 35 }, normalizer_spec = 3 { precompiled_charsmap
 * = 2, add_dummy_prefix = 3, remove_extra_whitespaces = 4, escape_whitespaces = 5 } }.
 * Source: sentencepiece's src/sentencepiece_model.proto. */
#ifndef LLMQ_FORMATS_HF_SPM_H
#define LLMQ_FORMATS_HF_SPM_H

#include "base/base.h"

enum { SPM_MAX_PIECES = 1 << 24 };
enum { SPM_NORMAL = 1, SPM_UNKNOWN, SPM_CONTROL, SPM_USER_DEFINED, SPM_UNUSED, SPM_BYTE };
enum { SPM_UNIGRAM = 1, SPM_BPE = 2 };

typedef struct {
    const uint8_t *p;
    size_t n;
} spm_bytes;
typedef struct {
    spm_bytes text; /* UTF-8 without NUL, not empty */
    float score;
    uint32_t type;
} spm_piece;
typedef struct {
    spm_piece *pieces; /* by id; text points into the file */
    size_t n, cap;
    uint64_t type; /* SPM_UNIGRAM, SPM_BPE */
    bool suffix, byte_fallback;
    spm_bytes charsmap;
    bool dummy_prefix, squeeze, escape;
} spm_model;

/* Of n bytes that outlive m. Errors: LQ_EFORMAT, LQ_EUNSUPPORTED (another kind of model),
 * LQ_ENOMEM; m is then empty. */
lq_status spm_read(spm_model *m, const uint8_t *data, size_t n, lq_err *err);
void spm_free(spm_model *m);

#endif
