/* calib/self_text.c - see self_text.h. */
#include "calib/self_text.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/random.h"
#include "runtime/engine/engine.h"

const char cal_self_progress[] = "calibration text";

/* Windows on their way; the engine's thread fills rows in. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int64_t finished, tokens, len;
    char error[256]; /* of the first that failed */
} writing;

typedef struct {
    writing *all;
    int32_t *row; /* [len], starts with the prompt */
    int64_t at;
} window;

static void self_text_take(void *user, const eng_event *e)
{
    window *w = user;
    writing *all = w->all;
    const int64_t before = w->at;
    for (int i = 0; i < e->n_ids && w->at < all->len; i++)
        w->row[w->at++] = e->ids[i];
    pthread_mutex_lock(&all->lock);
    all->tokens += w->at - before;
    if (e->finish) {
        all->finished++;
        if (w->at < all->len && !all->error[0])
            snprintf(all->error, sizeof all->error, "%s",
                     e->error ? e->error : eng_finish_text(e->finish));
        pthread_cond_signal(&all->moved);
    }
    pthread_mutex_unlock(&all->lock);
}

/* Waits until all but `left` of the `sent` windows are finished. */
static lq_status wait_for(writing *all, int64_t sent, int64_t left, int64_t n, const lq_job *job,
                          lq_err *err)
{
    lq_status s = LQ_OK;
    pthread_mutex_lock(&all->lock);
    while (sent - all->finished > left && !all->error[0] && !s) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_nsec += 100000000;
        if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&all->moved, &all->lock, &t);
        lq_report(job, cal_self_progress, (double)all->tokens, (double)(n * (all->len - 1)));
        if (lq_stopped(job)) s = lq_fail(err, LQ_EINTR, "interrupted");
    }
    if (!s && all->error[0])
        s = lq_fail(err, LQ_EVALUE, "calibration text of the model's own: %s", all->error);
    pthread_mutex_unlock(&all->lock);
    return s;
}

/* A config may name tokens that its vocabulary does not have: of another model, or of a default. */
static int32_t first_id(const arch_config *c, uint64_t seed)
{
    if (c->bos >= 0 && c->bos < c->vocab) return c->bos;
    if (c->n_eos && c->eos[0] < c->vocab) return c->eos[0];
    return (int32_t)(lq_random_of(seed) % (uint64_t)c->vocab);
}

static lq_status write_windows(engine *e, const arch_config *c, window *w, int64_t first, int64_t n,
                               uint64_t seed, const lq_job *job, lq_err *err)
{
    writing *all = w[0].all;
    lq_status s = LQ_OK;
    for (int64_t i = 0; i < n && !s; i++) {
        const uint64_t own = lq_random_of(seed ^ lq_random_of((uint64_t)(first + i)));
        w[i].row[w[i].at++] = first_id(c, own);
        const eng_request r = { .prompt = w[i].row,
                                .n_prompt = 1,
                                .max_tokens = all->len - 1,
                                .params = { .temperature = 1, .seed = own, .logprobs = -1 },
                                .ignore_eos = true,
                                .prompt_logprobs = -1 };
        uint64_t id;
        s = wait_for(all, i, 2 * CAL_SELF_AT_ONCE, n, job, err);
        if (!s) s = eng_submit(e, &r, self_text_take, &w[i], &id, err);
        if (!s && i + 1 == n) s = wait_for(all, n, 0, n, job, err);
    }
    return s;
}

lq_status cal_self_write(int32_t *ids, int64_t first, int64_t n, int64_t len, src_source *src,
                         uint64_t seed, pool *p, const lq_job *job, lq_err *err)
{
    model m;
    engine *e = NULL;
    writing all = { .lock = PTHREAD_MUTEX_INITIALIZER,
                    .moved = PTHREAD_COND_INITIALIZER,
                    .len = len };
    window *w = calloc((size_t)n, sizeof *w);
    if (!w) return lq_fail(err, LQ_ENOMEM, "no memory for calibration text");
    for (int64_t i = 0; i < n; i++)
        w[i] = (window){ &all, ids + i * len, 0 };
    lq_status s = model_load(&m, src, p, job, err);
    if (!s) {
        s = eng_open(&e, &m, NULL, p,
                     &(eng_opts){ .acts = MM_F32, .max_len = len, .max_seqs = CAL_SELF_AT_ONCE },
                     err);
        if (!s) s = write_windows(e, src_config(src), w, first, n, seed, job, err);
        if (e) eng_close(e); /* cancels what a failure left running */
        model_free(&m);
    }
    free(w);
    return s;
}
