/* formats/source/source_gguf_tensors.h - a GGUF file's tensors under their Hugging Face names. */
#ifndef LLMQ_FORMATS_SOURCE_SOURCE_GGUF_TENSORS_H
#define LLMQ_FORMATS_SOURCE_SOURCE_GGUF_TENSORS_H

#include "formats/gguf/gguf_names.h"
#include "formats/source/source_impl.h"

/* Fills s->tensors from s->gguf, by name. row NULL: the architecture is not known and names stay.
 * Errors: LQ_ESHAPE, LQ_EFORMAT, LQ_EUNSUPPORTED name the tensor; LQ_ENOMEM. */
lq_status src_gguf_tensors(src_source *s, const gguf_arch *row, lq_err *err);

/* ---- formats/source/source_gguf_modules.c ---- */
/* Blobs of sentence-transformers' files, at most 6, where the file says how one vector is made of a text. */
lq_status src_gguf_modules(src_source *s, const gguf_arch *row, lq_err *err);
bool src_gguf_is_module(const char *tensor); /* one of those matrices, not the model's */

#endif
