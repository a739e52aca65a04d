/* runtime/engine/answer.h - submits one request to an engine, waits for it and collects its events;
 * text is passed on as it comes (prefix ans_). */
#ifndef LLMQ_RUNTIME_ENGINE_ANSWER_H
#define LLMQ_RUNTIME_ENGINE_ANSWER_H

#include "runtime/engine/engine.h"

typedef struct {
    char *text; /* all of it, NUL-terminated; NULL: none came */
    size_t n_text;
    int32_t *ids;         /* [n_ids] */
    smp_result *logprobs; /* [n_ids], or NULL: not asked for */
    int64_t n_ids, n_prompt, n_cached;
    eng_finish finish;
    char stop_string[256];  /* the one that matched, or "" */
    double t_first, t_last; /* seconds, monotonic: of the first and the last token; 0: none */
    double t_begin, t_end;  /* submitted; ended */
} ans_answer;

/* New text, NUL-terminated (it may hold NULs: n counts); on the thread that called ans_run, so it
 * may take its time: the engine goes on. false: that is enough. */
typedef bool (*ans_text)(void *user, const char *text, size_t n);

/* Submits r and returns after its last event. f may be NULL. Errors: those of eng_submit and of
 * the engine (ENG_ERROR); LQ_EINTR - f returned false, or the job was stopped; LQ_ENOMEM. After an
 * error *a has what came before it. Any thread but the engine's. Free with ans_free. */
lq_status ans_run(ans_answer *a, engine *e, const eng_request *r, ans_text f, void *user,
                  const lq_job *job, lq_err *err);
void ans_free(ans_answer *a);

#endif
