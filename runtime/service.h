/* runtime/service.h - a model that answers, in one object: from a path on disk to answers in OpenAI's
 * JSON, with or without HTTP (prefix lm_: formats/llmq/llmq.h has the file format).
 *
 *     lm_open    the API exists; requests are answered with "loading" (status 503)
 *     lm_load    weights, tokenizer, chat template, engine: it answers
 *     lm_submit  a request as the server would get it, by path and JSON body
 *     lm_step    waits until something has been answered
 *     lm_poll    takes one answer, in the order in which they were finished
 *     lm_close
 *
 * The server puts HTTP in front of the same object (lm_api). The engine runs on a thread of its
 * own, so submitting never waits for a model; what an answer says does not depend on what else was
 * submitted, nor when (runtime/engine/engine.h). */
#ifndef LLMQ_RUNTIME_SERVICE_H
#define LLMQ_RUNTIME_SERVICE_H

#include "runtime/api/api.h"
#include "runtime/load.h"

typedef struct lm lm;

lq_status lm_open(lm **l, const api_opts *o, lq_err *err);

typedef struct {
    const char *path; /* whatever formats/source/source.h opens */
    load_opts load;   /* its notes are all that there is to say */
    pool *p;          /* borrowed until lm_close */
    const load_tok
        *tok; /* its tokenizer where it is open already, borrowed until lm_close; or NULL */
    const char *draft; /* the model that guesses for it, if engine.guesses > 0; NULL: none */
    eng_opts engine;   /* .draft is set here */
    const lq_job *job; /* NULL: nobody watches */
    /* Between the tokenizer and the engine, which gets what it makes of *e; NULL: nothing. */
    lq_status (*before_engine)(void *user, const tok_tokenizer *t, int64_t vocab, eng_opts *e,
                               lq_err *err);
    /* When all is loaded, before the first request is answered; NULL: nothing. */
    lq_status (*before_ready)(void *user, lq_err *err);
    void *user;
} lm_source;
/* Once. Errors are those of loading (they name the file) and of eng_open. A model without a
 * tokenizer or without a chat template is served as far as it goes, and a note says so. */
lq_status lm_load(lm *l, const lm_source *o, lq_err *err);
/* Ends what runs, waits for the engine's thread. NULL allowed. */
void lm_close(lm *l);

api *lm_api(lm *l);
engine *lm_engine(lm *l);               /* NULL before lm_load */
const api_model *lm_model(const lm *l); /* likewise */

/* ---- without HTTP ---- */
/* route: "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize", ... (the
 * server's POST routes). Whatever is wrong with the body is an answer with its status, as over
 * HTTP;
 * `"stream": true` is. Any thread. LQ_EVALUE: no such route. */
lq_status lm_submit(lm *l, const char *route, const char *json, size_t n, uint64_t tag,
                    lq_err *err);
/* True: lm_poll has an answer. False: `seconds` have passed without one. */
bool lm_step(lm *l, double seconds);

typedef struct {
    uint64_t tag; /* of lm_submit */
    int status;   /* as HTTP's */
    char *body;   /* JSON, NUL-terminated; free it */
    size_t n;
} lm_answer;
bool lm_poll(lm *l, lm_answer *a); /* false: there is none yet */
/* The same for one request, or for LM_ANY, waited for: false - `seconds` have passed without it.
 * Several threads may wait. */
#define LM_ANY UINT64_MAX
bool lm_take(lm *l, uint64_t tag, double seconds, lm_answer *a);

#endif
