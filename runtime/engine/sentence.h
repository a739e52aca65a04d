/* runtime/engine/sentence.h - how the rows of a text become one vector, as sentence-transformers' files say.
 *
 *     modules.json                        the steps: Transformer, Pooling, then any of Dense, Normalize
 *     1_Pooling/config.json               which rows (eng_pool)
 *     2_Dense/config.json                 y = activation(W x + b); W [out, in] and b are
 *     2_Dense/model.safetensors           linear.weight and linear.bias
 *     sentence_bert_config.json           max_seq_length, do_lower_case
 *     config_sentence_transformers.json   texts that go before an input, by name
 *
 * A model without modules.json, and one whose modules are no vector's (a reranker's), has none. All
 * sums are in double and in order. Any number of threads may use it.
 * Source: sentence-transformers 5.1. */
#ifndef LLMQ_RUNTIME_ENGINE_SENTENCE_H
#define LLMQ_RUNTIME_ENGINE_SENTENCE_H

#include "formats/source/source.h"
#include "runtime/engine/request.h"

typedef struct sentence sentence;

/* *out: NULL where there is none. hidden: numbers of a row. Borrows from src. Errors name the file:
 * LQ_EUNSUPPORTED (a module, a mode or an activation that is not here), LQ_EVALUE, LQ_ESHAPE,
 * LQ_ENOENT (a file of a module), LQ_ENOMEM. */
lq_status sentence_open(sentence **out, const src_source *src, int64_t hidden, lq_err *err);
/* Would sentence_open take the files? Its errors. */
lq_status sentence_check(const src_source *src, int64_t hidden, lq_err *err);
void sentence_close(sentence *s); /* NULL allowed */

eng_pool sentence_pool(const sentence *s);
int64_t sentence_width(const sentence *s); /* numbers of a vector */
int64_t
sentence_max_tokens(const sentence *s);      /* of a text with its special tokens; 0: any number */
bool sentence_lowers(const sentence *s);     /* are texts written in small letters first? */
bool sentence_normalizes(const sentence *s); /* is its length 1? */
/* What comes after the pooling: out [width] of pooled [hidden]. LQ_ENOMEM. */
lq_status sentence_run(const sentence *s, float *out, const double *pooled, lq_err *err);

/* The text before an input; name NULL: of the default one, which may be none (""). NULL: there is no
 * prompt of that name; names [n] then says which there are. */
const char *sentence_prompt(const sentence *s, const char *name, char *names, size_t n);

#endif
