/* formats/hf/awq_words.h - AutoAWQ's words of eight outputs, for its reader and its writer.
 *
 * words [rows][N/8] u32: nibble i of word c is output 8c + AWQ_ORDER[i]; the other side has N rows
 * of nibbles, `row_bytes` apart, one row for each output. */
#ifndef LLMQ_FORMATS_HF_AWQ_WORDS_H
#define LLMQ_FORMATS_HF_AWQ_WORDS_H

#include <stddef.h>
#include <stdint.h>

extern const int AWQ_ORDER[8];

void awq_unpack(uint8_t *nibbles, size_t row_bytes, const uint8_t *words, int64_t rows, int64_t N);
void awq_pack(uint8_t *words, const uint8_t *nibbles, size_t row_bytes, int64_t rows, int64_t N);

#endif
