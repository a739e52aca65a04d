/* runtime/engine/answer.c - see answer.h. */
#include "runtime/engine/answer.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/os.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LOOK_MS = 100 }; /* how often the job's stop flag is looked at */

typedef struct {
    ans_answer *a;
    pthread_mutex_t lock;
    pthread_cond_t more;
    lq_buf text, ids, logprobs; /* what the answer's pointers show */
    size_t given;               /* bytes of the text that were handed on */
    bool finished, oom;
    lq_status status;
    char error[512];
} collector;

static bool answer_keep(collector *c, const eng_event *e)
{
    ans_answer *a = c->a;
    const size_t n = (size_t)e->n_ids;
    if (lq_buf_room(&c->text, e->n_text + 1)) {
        lq_buf_add(&c->text, e->text, e->n_text);
        c->text.p[c->text.n] = 0;
    }
    lq_buf_add(&c->ids, e->ids, n * sizeof *e->ids);
    if (e->logprobs) lq_buf_add(&c->logprobs, e->logprobs, n * sizeof *e->logprobs);
    a->text = c->text.p;
    a->ids = (int32_t *)(void *)c->ids.p;
    a->logprobs = (smp_result *)(void *)c->logprobs.p;
    if (c->text.oom || c->ids.oom || c->logprobs.oom) return false;
    a->n_text = c->text.n;
    a->n_ids += e->n_ids;
    return true;
}

/* On the engine's thread. */
static void answer_take(void *user, const eng_event *e)
{
    collector *c = user;
    ans_answer *a = c->a;
    pthread_mutex_lock(&c->lock);
    if (!c->oom && !answer_keep(c, e)) c->oom = true;
    if (e->n_ids) {
        a->t_last = lq_now();
        if (a->t_first <= 0) a->t_first = a->t_last;
    }
    a->n_prompt = e->n_prompt;
    a->n_cached = e->n_cached;
    if (e->finish) {
        a->finish = e->finish;
        c->status = e->status == LQ_EDEVICE ? LQ_EDEVICE : LQ_EVALUE;
        if (e->stop_string) snprintf(a->stop_string, sizeof a->stop_string, "%s", e->stop_string);
        if (e->error) snprintf(c->error, sizeof c->error, "%s", e->error);
    }
    c->finished = e->last;
    pthread_cond_signal(&c->more);
    pthread_mutex_unlock(&c->lock);
}

/* With the lock held: until something comes, or LOOK_MS have passed. */
static void wait_more(collector *c)
{
    os_cond_until(&c->more, &c->lock, lq_now() + 1e-3 * LOOK_MS);
}

/* The text that came since, as a copy: the engine may move the whole meanwhile. With the lock held,
 * which is given up for the call. */
static bool hand_on(collector *c, ans_text f, void *user)
{
    const size_t n = c->a->n_text - c->given;
    char *piece = malloc(n + 1);
    if (!piece) {
        c->oom = true;
        return false;
    }
    memcpy(piece, c->a->text + c->given, n + 1);
    c->given += n;
    pthread_mutex_unlock(&c->lock);
    const bool on = f(user, piece, n);
    free(piece);
    pthread_mutex_lock(&c->lock);
    return on;
}

/* Until the last event, and until all text is handed on; who has enough cancels and still waits for
 * the event. */
static bool wait_for(collector *c, engine *e, uint64_t id, ans_text f, void *user,
                     const lq_job *job)
{
    bool on = true, cancelled = false;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        if (on && f && c->a->n_text > c->given)
            on = hand_on(c, f, user);
        else if (c->finished)
            break;
        else
            wait_more(c);
        on = on && !lq_stopped(job) && !c->oom;
        if (on || cancelled || c->finished) continue;
        cancelled = true;
        pthread_mutex_unlock(&c->lock);
        eng_cancel(e, id);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return on;
}

lq_status ans_run(ans_answer *a, engine *e, const eng_request *r, ans_text f, void *user,
                  const lq_job *job, lq_err *err)
{
    *a = (ans_answer){ 0 };
    collector c = { .a = a, .lock = PTHREAD_MUTEX_INITIALIZER };
    os_cond_init(&c.more);
    uint64_t id = 0;
    bool on = true;
    a->t_begin = lq_now();
    lq_status s = eng_submit(e, r, answer_take, &c, &id, err);
    if (!s) on = wait_for(&c, e, id, f, user, job);
    a->t_end = lq_now();
    pthread_cond_destroy(&c.more);
    pthread_mutex_destroy(&c.lock);
    if (s) return s;
    if (a->finish == ENG_ERROR) return lq_fail(err, c.status, "%s", c.error);
    if (c.oom) return lq_fail(err, LQ_ENOMEM, "no memory for the answer");
    if (!on || a->finish == ENG_CANCELLED) return lq_fail(err, LQ_EINTR, "interrupted");
    return LQ_OK;
}

void ans_free(ans_answer *a)
{
    free(a->text);
    free(a->ids);
    free(a->logprobs);
    *a = (ans_answer){ 0 };
}
