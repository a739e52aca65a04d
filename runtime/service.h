/* runtime/service.h - a loaded model that answers requests in OpenAI's JSON, with or without HTTP
 * (prefix lm_, for language model).
 *
 *     lm_open    creates the API; until lm_load every answer is status 503, "loading"
 *     lm_load    loads weights, tokenizer, chat template and draft, and starts the engine
 *     lm_submit  takes a request: a path and a JSON body, as the server would get them
 *     lm_step    waits until there is an answer
 *     lm_poll    takes the next answer, in the order in which they were finished
 *     lm_close
 *
 * The HTTP server serves the same object (lm_api). The engine runs on a thread of its own, so
 * lm_submit does not wait for the model. An answer does not depend on what else was submitted, nor
 * when (runtime/engine/engine.h). */
#ifndef LLMQ_RUNTIME_SERVICE_H
#define LLMQ_RUNTIME_SERVICE_H

#include "runtime/api/api.h"
#include "runtime/load.h"

typedef struct lm lm;

lq_status lm_open(lm **l, const api_opts *o, lq_err *err);

typedef struct {
    const char *path; /* whatever formats/source/source.h opens */
    load_opts load;   /* its `note` gets every warning */
    pool *p;          /* borrowed until lm_close */
    const load_tok
        *tok;          /* an open tokenizer, borrowed until lm_close; NULL: the model's is opened */
    const char *draft; /* the draft model, used if engine.guesses > 0; NULL: none */
    bool mtp;          /* likewise the model's MTP head */
    adapters_opts adapters; /* max_rank as engine.lora_rank */
    eng_opts engine;        /* lm_load sets .draft */
    const lq_job *job;      /* progress and stop; may be NULL */
    /* Called when the tokenizer is open, before the engine is; may change *e. May be NULL. */
    lq_status (*before_engine)(void *user, const tok_tokenizer *t, int64_t vocab, eng_opts *e,
                               lq_err *err);
    /* Called when all is loaded, before the first request is answered. May be NULL. */
    lq_status (*before_ready)(void *user, lq_err *err);
    void *user;
} lm_source;
/* Call it once. Errors: those of loading (they name the file), of eng_open, of the two functions.
 * Without a tokenizer only token ids are served, without a chat template no chat; notes say so. */
lq_status lm_load(lm *l, const lm_source *o, lq_err *err);
/* Cancels what runs and waits for the engine's thread. NULL allowed. */
void lm_close(lm *l);

api *lm_api(lm *l);
engine *lm_engine(lm *l);               /* NULL before lm_load */
const api_model *lm_model(const lm *l); /* likewise */
const model *lm_weights(const lm *l);   /* after lm_load */

/* ---- without HTTP ---- */
/* route: one of the server's POST routes: "/v1/completions", "/v1/chat/completions",
 * "/v1/embeddings", "/tokenize", ... json[n] is copied. A body that is wrong gives an answer with
 * status 400, as over HTTP, and so does "stream": true. Any thread. Errors: LQ_EVALUE - no such
 * route; LQ_ENOMEM. */
lq_status lm_submit(lm *l, const char *route, const char *json, size_t n, uint64_t tag,
                    lq_err *err);
/* Waits for an answer that lm_poll can take; false: `seconds` have passed without one. */
bool lm_step(lm *l, double seconds);

typedef struct {
    uint64_t tag; /* lm_submit's */
    int status;   /* HTTP status */
    char *body;   /* JSON, NUL-terminated; the caller frees it. NULL: out of memory */
    size_t n;
} lm_answer;
bool lm_poll(lm *l, lm_answer *a); /* does not wait; false: there is none yet */
/* Waits for the answer with this tag (LM_ANY: for any) and takes it; false: `seconds` have passed
 * without it. Several threads may wait. */
#define LM_ANY UINT64_MAX
bool lm_take(lm *l, uint64_t tag, double seconds, lm_answer *a);

#endif
