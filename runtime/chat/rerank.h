/* runtime/chat/rerank.h - the prompts of a model that judges whether a document answers a query: how
 * likely one of two words ("yes", "no") is behind the prompt, or the score that it gives one.
 *
 * The prompt is a template of the model's own, called rerank or reranker; else its chat template,
 * where that knows messages of the roles query and document; or what a user names. It is Jinja, with
 * such messages (and one of the role system, the instruction, where there is one) as `messages`, or
 * a text with {query} and {document}. What a query or a document spells never becomes a control
 * token (runtime/chat/chat.h). */
#ifndef LLMQ_RUNTIME_CHAT_RERANK_H
#define LLMQ_RUNTIME_CHAT_RERANK_H

#include "runtime/chat/chat_set.h"
#include "runtime/tokenizer/tok.h"

typedef struct {
    const char *template; /* a file, or qwen3-reranker; NULL: the model's own */
    const char *labels;   /* "YES,NO": two texts of one token each; NULL: "yes,no" */
    int64_t scores;       /* that the model gives a text; 0: it has words. One is a judgement; then
                             query and document are encoded as a pair of texts where there is no template */
    bool paired;          /* a prompt is a pair of the tokenizer's, or none: texts of two types */
} rerank_choice;

typedef struct rerank_format rerank_format;

/* set: the model's templates, or NULL. LQ_ENOENT: it has none for this, and none was chosen; err says
 * so. LQ_EVALUE: a label is not one token. LQ_EUNSUPPORTED: several scores. tok is borrowed. Any number of threads may use it. */
lq_status rerank_open(rerank_format **f, const chat_set *set, const tok_tokenizer *tok,
                      const rerank_choice *choice, lq_err *err);
void rerank_close(rerank_format *f); /* NULL allowed */
/* The ids of yes and no; NULL: a score is taken. */
const int32_t *rerank_labels(const rerank_format *f);

typedef struct {
    const char *instruction; /* NULL: the template's own */
    const char *query, *document;
    const cJSON *kwargs; /* further variables of the template, or NULL */
    size_t max_bytes;    /* of the text that is made into ids; 0: any */
    size_t max_tokens;   /* of a pair of texts, of which the longer is cut at its end; 0: any */
} rerank_pair;
typedef struct {
    int32_t *ids;      /* malloc'd */
    size_t n, n_first; /* those of the first type (tok_add_special_pair); 0: all */
} rerank_prompt;
/* LQ_ESHAPE: the text has more than max_bytes. LQ_EVALUE: the template raised. LQ_EUSAGE: max_tokens with a
 * template, or of fewer than the special tokens. */
lq_status rerank_encode(const rerank_format *f, const rerank_pair *p, rerank_prompt *out,
                        lq_err *err);

#endif
