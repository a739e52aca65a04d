/* formats/source/history.h - where a converted model came from, stored with the result: llmq.json
 * in a Hugging Face folder, keys of the same names in a GGUF file (docs/converting.md).
 *
 *   { "recipe", "provenance": those of the .llmq, if it came from one,
 *     "converted": as src_conversion says (formats/source/source.h),
 *     "files": { "model.safetensors": { "header": XXH3-128 of all before the data }, ... } }
 *
 * GGUF has "llmq.tensors" instead of "files": XXH3-128 of names, types and shapes.
 * A .llmq that was made of something converted has "converted" in its provenance where values
 * changed on the way; of any source it is src_conversion alone that has it, not src_provenance.
 * Another tool may change the weights and leave this history in place; so it is used only where the
 * tables of tensors are those that it names. */
#ifndef LLMQ_FORMATS_SOURCE_HISTORY_H
#define LLMQ_FORMATS_SOURCE_HISTORY_H

#include "base/base.h"
#include "base/file.h"
#include "base/hash.h"

#define HISTORY_FILE "llmq.json"
#define HISTORY_RECIPE "recipe"
#define HISTORY_PROVENANCE "provenance"
#define HISTORY_CONVERTED "converted"
#define HISTORY_FILES "files"
#define HISTORY_HEADER "header"
#define HISTORY_GGUF "llmq." /* before each of these in GGUF */
#define HISTORY_TENSORS "llmq.tensors"

/* Of a safetensors file. */
lq_hash history_header(const lq_map *m);

#endif
