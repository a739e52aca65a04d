/* runtime/tokenizer/tok_files.h - a tokenizer from the files of a model's folder: the first of
 *
 *     tokenizer.json
 *     tekken.json             Mistral's own
 *     tokenizer.model         SentencePiece's protobuf, or ranks as below (Llama 3's original)
 *     *.tiktoken              lines "base64 rank"; the pattern by the file's name
 *     vocab.json, merges.txt  as GPT-2 has them
 *
 * For all but the first, tokenizer_config.json says which tokens are added and which surround a
 * text, and tokenizer_class how the rest works; a class that is not known is LQ_EUNSUPPORTED.
 * Source: transformers' slow tokenizers; openai/tiktoken's table of encodings. */
#ifndef LLMQ_RUNTIME_TOKENIZER_TOK_FILES_H
#define LLMQ_RUNTIME_TOKENIZER_TOK_FILES_H

#include "formats/source/source.h"

/* Compile (tok.h); free(*blob). LQ_ENOENT: none of the files is there. */
lq_status tok_compile_files(uint8_t **blob, size_t *blob_bytes, const src_blob *files,
                            size_t n_files, lq_err *err);
lq_status tok_compile_source(uint8_t **blob, size_t *blob_bytes, const src_source *src,
                             lq_err *err);

#endif
