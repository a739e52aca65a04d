/* runtime/engine/engine.c - see engine.h.
 *
 * Two threads of thought: `lock` guards what any thread touches (the inbox, the list of live
 * requests with their cancel marks, the published figures); the scheduler, the sequences and the KV
 * cache belong to the engine thread alone. Sinks are called without the lock. */
#include "runtime/engine/engine.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/locale.h"
#include "base/machine.h"
#include "base/os.h"
#include "runtime/engine/beam.h"
#include "runtime/engine/disk.h"
#include "runtime/engine/draft.h"
#include "runtime/engine/mtp.h"
#include "runtime/engine/sched.h"
#include "runtime/engine/sizing.h"

enum { ALIVE_SECONDS = 1 };

typedef struct {
    seq *s;
    eng_event ev;
} late_event;

struct engine {
    const model *m;
    const tok_tokenizer *tok;
    pool *p;
    eng_opts o;
    kv_cache *kv;
    fwd_ctx *fwd;
    draft *draft; /* NULL: none */
    mtp *mtp;     /* NULL: none */
    disk *disk;   /* NULL: none */
    spec_gain gain;
    smp_ctx **smp; /* [threads] */
    int n_smp;
    sched sched;
    fwd_item *items;      /* [max_seqs] */
    const float **logits; /* [max_seqs] first logits row of each planned sequence */
    dev_draw *draws;      /* [max_logits] of this step, where the pass draws; n_draws of them */
    int64_t n_draws;
    dev_edit *edits; /* [max_edits] of those, where the pass draws; n_edits of them */
    int64_t n_edits, max_edits;
    const dev_drawn *drawn; /* what came of them */
    late_event *late;       /* [max_seqs] of the last step: send_late; NULL: none is put off */
    int n_late;

    pthread_t thread;
    bool has_thread, has_lock;
    pthread_mutex_t lock;
    pthread_cond_t wake, done; /* wake: work for the thread; done: a request has left */
    seq *inbox, **inbox_end, *live;
    int64_t n_live, n_ending; /* ending: out of the scheduler, last event under way */
    uint64_t next_id;
    bool cancels, closing, draining;
    bool disk_news; /* blocks were read */
    struct {
        double alone, each,
            of_burst; /* seconds of a step of decodes; of a token of a prompt besides */
    } pace;
    bool disk_alone;  /* engine thread's: nothing can be done but to wait for them */
    double due;       /* engine thread's: a batch waits to fill until then; 0: none */
    double last_step; /* end of the last step, or start of the busy period; 0: idle */
    eng_stats stats;
};

const char *eng_finish_text(eng_finish f)
{
    static const char *const text[ENG_N_FINISH] = { "running", "stop", "length", "abort", "error" };
    return text[f];
}

const eng_opts *eng_options(const engine *e) { return &e->o; }

/* ---- any thread ---- */

static void live_add(engine *e, seq *s)
{
    s->live_next = e->live;
    if (e->live) e->live->live_prev = s;
    e->live = s;
    e->n_live++;
}

static void live_remove(engine *e, seq *s)
{
    if (s->live_prev)
        s->live_prev->live_next = s->live_next;
    else
        e->live = s->live_next;
    if (s->live_next) s->live_next->live_prev = s->live_prev;
    e->n_live--;
}

lq_status eng_submit(engine *e, const eng_request *r, eng_sink sink, void *user, uint64_t *id,
                     lq_err *err)
{
    seq *s = NULL;
    lq_status st = seq_new(&s, r, e->m->cfg, e->o.max_len, e->tok != NULL, err);
    if (!st) st = beam_fits(s, e->o.max_seqs, kv_options(e->kv), err);
    if (st) {
        seq_free(s);
        return st;
    }
    s->sink = sink;
    s->user = user;
    pthread_mutex_lock(&e->lock);
    if (e->stats.lost) {
        *err = e->stats.why;
        st = LQ_EDEVICE;
    } else if (e->draining || e->closing) {
        st = lq_fail(err, LQ_EBUSY, "the engine is shutting down");
    } else if (e->n_live >= e->o.max_seqs + e->o.queue) {
        st = lq_fail(err, LQ_EBUSY, "the queue is full: %lld requests", (long long)e->n_live);
    } else {
        s->id = e->next_id++;
        s->arrived = lq_now();
        if (id) *id = s->id;
        live_add(e, s);
        *e->inbox_end = s;
        e->inbox_end = &s->inbox_next;
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->lock);
    if (st) seq_free(s);
    return st;
}

void eng_cancel(engine *e, uint64_t id)
{
    pthread_mutex_lock(&e->lock);
    for (seq *s = e->live; s; s = s->live_next)
        if (s->id == id) {
            s->cancel = e->cancels = true;
            pthread_cond_signal(&e->wake);
            break;
        }
    pthread_mutex_unlock(&e->lock);
}

void eng_stats_get(engine *e, eng_stats *s)
{
    pthread_mutex_lock(&e->lock);
    *s = e->stats;
    s->waiting = e->n_live - e->n_ending - s->running;
    s->last_step_age = e->last_step > 0 ? lq_now() - e->last_step : 0;
    pthread_mutex_unlock(&e->lock);
    if (e->disk) disk_files(e->disk, &s->disk.files);
}

bool eng_drain(engine *e, double timeout)
{
    double until = lq_now() + (timeout > 0 ? timeout : 0);
    pthread_mutex_lock(&e->lock);
    e->draining = true;
    int rc = 0;
    while (e->n_live > 0 && rc != ETIMEDOUT)
        rc = os_cond_until(&e->done, &e->lock, until);
    bool empty = e->n_live == 0;
    pthread_mutex_unlock(&e->lock);
    return empty;
}

/* ---- engine thread: events ---- */

/* Only the last block of a sequence, or of a line of a search, is not full. */
static int64_t unused_places(const engine *e)
{
    const int64_t size = kv_options(e->kv)->block_size;
    int64_t n = 0;
    for (int64_t i = 0; i < e->sched.n_running; i++) {
        const seq *s = e->sched.running[i];
        const kv_seq *kv = s->beams && s->beams->n_lines ? &s->beams->lines[0].kv : &s->kv;
        if (kv->n_blocks * size > s->n_done) n += (kv->n_blocks * size - s->n_done) * beam_rows(s);
    }
    return n;
}

/* Under the lock. */
static void publish(engine *e)
{
    int64_t free_blocks = kv_free_blocks(e->kv), n = kv_options(e->kv)->n_blocks;
    e->stats.running = e->sched.n_running;
    e->stats.kv_blocks = n;
    e->stats.kv_blocks_used = n - free_blocks;
    e->stats.kv_blocks_cached = kv_cached_blocks(e->kv);
    e->stats.kv_unused = unused_places(e);
    e->stats.sent = fwd_sent(e->fwd);
    e->stats.preemptions = e->sched.preemptions;
    if (!e->disk) return;
    e->stats.disk.tokens = disk_tokens(e->disk);
    e->stats.disk.computing = disk_pace(e->disk);
}

static eng_event event_of(const seq *s)
{
    return (eng_event){ .id = s->id,
                        .text = "",
                        .n_prompt = s->n_prompt,
                        .n_cached = s->n_cached,
                        .n_output = seq_output(s),
                        .stop_id = -1 };
}

/* One more id, its text, and perhaps the end. */
static eng_event token_event(seq *s, const smp_result *sample)
{
    eng_event ev = event_of(s);
    ev.ids = s->ids + s->n_ids - 1;
    ev.n_ids = 1;
    if (s->r.params.logprobs >= 0) ev.logprobs = sample;
    if (s->stop) stop_take(s->stop, &ev.text, &ev.n_text);
    return ev;
}

/* The end of an answer. */
static void send_end(seq *s, eng_event ev, eng_finish how)
{
    ev.finish = how;
    if (how == ENG_STOP) {
        ev.stop_id = s->stop_id;
        if (s->stop_matched >= 0) ev.stop_string = s->r.stop[s->stop_matched];
    }
    if (how == ENG_ERROR) {
        ev.error = s->err.msg;
        ev.status = s->status ? s->status : LQ_EVALUE;
    }
    s->sink(s->user, &ev);
}

/* What the events of a step cost (JSON, streams, waking others) is done while the device works on the
 * next step: their ids, text and logprobs stay until that is taken. The first of an answer and the last
 * do not wait; nor do any on the CPU, which has nothing to do meanwhile. */
static void send_late(engine *e)
{
    for (int i = 0; i < e->n_late; i++)
        e->late[i].s->sink(e->late[i].s->user, &e->late[i].ev);
    e->n_late = 0;
}

static void send_soon(engine *e, seq *s, const eng_event *ev)
{
    if (e->late && ev->n_output > 1)
        e->late[e->n_late++] = (late_event){ s, *ev };
    else
        s->sink(s->user, ev);
}

/* The last event of s, which ceases to exist. Its blocks and the figures come first, so that who
 * sees the event sees them too. */
static void engine_finish(engine *e, seq *s, eng_event ev, eng_finish how)
{
    for (int i = 0; i < e->n_late; i++)
        if (e->late[i].s == s) send_late(e);
    sched_remove(&e->sched, s);
    disk_forget(e->disk, s);
    pthread_mutex_lock(&e->lock);
    e->stats.finished[how]++;
    e->n_ending++;
    publish(e);
    pthread_mutex_unlock(&e->lock);
    ev.last = true;
    send_end(s, ev, how);
    draft_forget(e->draft, s);
    mtp_forget(e->mtp, s);
    pthread_mutex_lock(&e->lock);
    live_remove(e, s);
    e->n_ending--;
    pthread_cond_broadcast(&e->done);
    pthread_mutex_unlock(&e->lock);
    seq_free(s);
}

/* ---- engine thread: a step ---- */

static void admit(engine *e)
{
    for (seq *s; (s = sched_admit(&e->sched, lq_now()));) {
        pthread_mutex_lock(&e->lock);
        if (!s->admitted) {
            s->admitted = true;
            e->stats.prompt_tokens += (uint64_t)s->n_prompt;
            e->stats.cached_tokens += (uint64_t)s->n_cached;
            e->stats.prefix_queries += (uint64_t)s->n_prompt;
            e->stats.prefix_hits += (uint64_t)s->n_cached;
        }
        publish(e);
        pthread_mutex_unlock(&e->lock);
        if (!s->status && !s->prepared)
            s->status = seq_prepare(s, e->m->cfg, e->tok, e->o.guesses, &s->err);
        if (s->status)
            engine_finish(e, s, event_of(s), ENG_ERROR);
        else if (e->draft && !s->draft.kv.table)
            draft_begin(e->draft, s);
        else if (e->mtp && !s->draft.kv.table)
            mtp_begin(e->mtp, s);
    }
}

/* One more element, of the row at `pos`, in what it has so far. */
static double pool_one(eng_pool how, double sum, double x, int64_t pos)
{
    switch (how) {
    case ENG_POOL_FIRST:
        return pos ? sum : x;
    case ENG_POOL_MAX:
        return pos && sum > x ? sum : x;
    case ENG_POOL_MEAN:
    case ENG_POOL_ROOT:
        return sum + x;
    case ENG_POOL_WEIGHTED:
        return sum + (double)(pos + 1) * x;
    default:
        return x;
    }
}

static double pool_weight(eng_pool how, int64_t n)
{
    if (how == ENG_POOL_MEAN) return (double)n;
    if (how == ENG_POOL_ROOT) return sqrt((double)n);
    return how == ENG_POOL_WEIGHTED ? (double)n * (double)(n + 1) / 2 : 1;
}

/* The rows of this step into the embedding: in the order of their positions, whatever the chunks.
 */
static lq_status pool_rows(const engine *e, seq *s)
{
    int64_t H = e->m->cfg->hidden;
    const float *h = fwd_hidden(e->fwd) + s->row0 * H;
    for (int64_t k = s->plan_from; k < s->plan_n; k++, h += H)
        for (int64_t i = 0; i < H; i++) {
            if (!isfinite(h[i])) return lq_fail(&s->err, LQ_EVALUE, "an activation is no number");
            s->pooled[i] = pool_one(s->r.pool, s->pooled[i], (double)h[i], s->n_done + k);
        }
    return LQ_OK;
}

typedef struct {
    const engine *e;
    const seq *s;
    const float *row; /* of the next id */
    int thread;
} draw_rows;

/* The row `down` behind the first, to draw output i from. */
static const float *scripted(const draw_rows *d, int64_t i, int64_t down)
{
    const eng_script *script = d->e->o.script;
    const float *row = d->row + down * d->e->m->cfg->vocab;
    return script ? script->logits(script->self, d->thread, d->s->ids, d->s->n_prompt, i, row)
                  : row;
}

static const float *draw_row(void *user, int64_t i)
{
    const draw_rows *d = user;
    return scripted(d, i, i - seq_output(d->s));
}

static const float *line_row(void *user, int64_t line)
{
    const draw_rows *d = user;
    return scripted(d, seq_output(d->s), line);
}

/* Score and sample one planned sequence; any thread. */
static void sample_one(void *ctx, int64_t i, int thread)
{
    engine *e = ctx;
    seq *s = e->sched.planned[i];
    smp_ctx *smp = e->smp[thread];
    const float *row = e->logits[i];
    s->status = s->r.pool ? pool_rows(e, s) : LQ_OK;
    if (s->r.pool) return;
    for (int64_t k = s->plan_from; k < s->plan_n && !s->status; k++, row += e->m->cfg->vocab) {
        int64_t pos = s->n_done + k;
        if (pos == s->n_ids - 1 && s->max_new > 0) {
            draw_rows d = { e, s, row, thread };
            s->status = s->beams ? beam_draw(s, smp, line_row, &d, &s->err)
                                 : seq_draw(s, smp, s->draw0 < 0 ? NULL : e->drawn + s->draw0,
                                            draw_row, &d, e->tok, &s->err);
        } else if (pos + 1 < s->n_prompt)
            s->status = smp_score(smp, &s->scores[pos + 1], row, s->ids[pos + 1],
                                  s->r.prompt_logprobs, &s->err);
    }
}

/* The ids that were drawn, one event each; at the end of the answer s ceases to exist. */
static void take_samples(engine *e, seq *s)
{
    for (int64_t k = 0; k < s->n_samples; k++) {
        s->status = seq_append(s, s->samples[k].id, e->m->cfg, e->tok, &s->err);
        pthread_mutex_lock(&e->lock);
        e->stats.generation_tokens++;
        pthread_mutex_unlock(&e->lock);
        eng_event ev = token_event(s, &s->samples[k]);
        if (s->status || s->finish) {
            engine_finish(e, s, ev, s->status ? ENG_ERROR : s->finish);
            return;
        }
        if (k + 1 < s->n_samples)
            s->sink(s->user, &ev); /* the next one takes its text */
        else
            send_soon(e, s, &ev);
    }
}

/* Answer a of a search that is over, from its first id to its end. False: s has ceased to exist. */
static bool send_answer(engine *e, seq *s, int64_t a)
{
    const beam_set *b = s->beams;
    beam_path(b, a, s->ids + s->n_prompt);
    s->status = seq_rewind(s, e->tok, &s->err);
    for (int64_t i = 0; !s->status; i++) {
        s->status = seq_append(s, s->ids[s->n_ids], e->m->cfg, e->tok, &s->err);
        if (s->status) break;
        eng_event ev = token_event(s, b->results + i);
        ev.answer = (int)a;
        if (s->finish && a == b->o.n - 1) {
            engine_finish(e, s, ev, s->finish);
            return false;
        }
        if (s->finish) {
            send_end(s, ev, s->finish);
            return true;
        }
        s->sink(s->user, &ev);
    }
    engine_finish(e, s, event_of(s), ENG_ERROR);
    return false;
}

/* The lines' next ids, or all the answers; at the end s ceases to exist. */
static void take_beams(engine *e, seq *s)
{
    pthread_mutex_lock(&e->lock);
    e->stats.generation_tokens += (uint64_t)beam_rows(s);
    pthread_mutex_unlock(&e->lock);
    s->status = beam_take(s, e->kv, e->m->cfg, e->tok, &s->err);
    if (s->status) {
        engine_finish(e, s, event_of(s), ENG_ERROR);
        return;
    }
    for (int64_t a = 0; s->beams->over && send_answer(e, s, a); a++)
        continue;
}

/* What became of the guesses: the cache keeps the rows of the right ones. */
static void take_guesses(engine *e, seq *s)
{
    int64_t right = s->n_samples - 1;
    s->n_done += right;
    spec_learn(&s->spec, s->plan_draft, right);
    kv_truncate(e->kv, &s->kv, s->n_done);
    pthread_mutex_lock(&e->lock);
    e->stats.drafts++;
    e->stats.guesses += (uint64_t)s->plan_draft;
    e->stats.right += (uint64_t)right;
    for (int64_t i = 0; i < right; i++)
        e->stats.right_at[i]++;
    pthread_mutex_unlock(&e->lock);
}

/* What the step means for one sequence. */
static void take_result(engine *e, seq *s)
{
    if (s->status) {
        engine_finish(e, s, event_of(s), ENG_ERROR);
        return;
    }
    s->n_done += s->plan_n;
    if (s->plan_draft) take_guesses(e, s);
    kv_register(e->kv, &s->kv, s->ids, s->n_done, s->r.salt);
    if ((s->scores || s->pooled) && s->n_done > s->n_scored) s->n_scored = s->n_done;
    if (s->scores && !s->scores_sent) {
        if (!seq_scoring(s)) {
            eng_event ev = event_of(s);
            ev.prompt_logprobs = s->scores;
            s->scores_sent = true;
            s->sink(s->user, &ev);
        }
    }
    if (s->r.progress && s->read < s->n_prompt && s->n_done > s->read) {
        eng_event ev = event_of(s);
        ev.n_read = s->read = s->n_done < s->n_prompt ? s->n_done : s->n_prompt;
        s->sink(s->user, &ev);
    }
    if (s->n_done < s->n_ids) return;
    if (s->max_new == 0) {
        eng_event ev = event_of(s);
        ev.pooled = s->pooled;
        const double weight = pool_weight(s->r.pool, s->n_prompt);
        for (int64_t i = 0; s->pooled && i < e->m->cfg->hidden; i++)
            s->pooled[i] /= weight;
        engine_finish(e, s, ev, ENG_LENGTH);
        return;
    }
    if (s->beams)
        take_beams(e, s);
    else
        take_samples(e, s);
}

/* Where it has not paid, the head does not even read. */
static bool guess_by_head(engine *e, seq *const *run, int64_t n, int64_t max, int64_t decodes)
{
    if (max > 0 || spec_paid(&e->gain, decodes > 0 ? decodes : 1))
        return mtp_guess(e->mtp, run, n, max, fwd_all_hidden(e->fwd), e->smp[0]);
    for (int64_t i = 0; i < n; i++) {
        run[i]->n_draft = 0;
        run[i]->draft.hidden.n = 0;
    }
    return true;
}

/* Guesses for all that run. A step whose seconds tell how guesses pay has `*decodes` rows of
 * decodes and nothing else: 0 where this one does not. */
static void guess(engine *e, int64_t *decodes)
{
    seq **run = e->sched.running;
    int64_t n = e->sched.n_running;
    *decodes = 0;
    if (!e->draft && !e->mtp) {
        for (int64_t i = 0; i < n; i++)
            seq_guess(run[i], e->o.guesses);
        return;
    }
    bool beams = false; /* whose steps tell nothing: they have rows that no guess can replace */
    for (int64_t i = 0; i < n; i++) {
        if (run[i]->n_ids - run[i]->n_done == 1) *decodes += beam_rows(run[i]);
        beams |= run[i]->beams != NULL;
    }
    bool pays = *decodes > 0 && spec_pays(&e->gain, *decodes);
    const int64_t max = pays ? e->o.guesses : 0;
    bool only = e->draft ? draft_guess(e->draft, run, n, max, e->smp[0])
                         : guess_by_head(e, run, n, max, *decodes);
    if (!only || beams || *decodes < n) *decodes = 0;
}

/* After a step of so many decodes that began at `start`. */
static void learn_gain(engine *e, int n, int64_t decodes, double start)
{
    int64_t ids = 0, guesses = 0;
    if (n != decodes) return;
    for (int i = 0; i < n; i++) {
        ids += e->sched.planned[i]->n_samples;
        guesses += e->sched.planned[i]->plan_draft;
    }
    spec_timed(&e->gain, decodes, guesses > 0, lq_now() - start, ids);
}

/* Whether a planned sequence draws where the pass does. A grammar's next mask needs the draw before
 * it, so guesses under one stay here. */
static bool draws_there(const engine *e, const seq *s)
{
    const bool draws = s->max_new > 0 && s->n_done + s->plan_n == s->n_ids;
    return draws && fwd_draws(e->fwd) && !e->o.script && !s->beams && !(s->mask && s->plan_draft);
}

/* The mask of a draw there; any thread. What fails here is said by the draw, on the host. */
static void mask_one(void *ctx, int64_t i, int thread)
{
    engine *e = ctx;
    seq *s = e->sched.planned[i];
    (void)thread;
    s->draws_there = draws_there(e, s) && !seq_mask(s, seq_output(s), &s->err);
}

static void make_masks(engine *e, int n)
{
    bool any = false;
    for (int i = 0; i < n; i++)
        any |= e->sched.planned[i]->mask && draws_there(e, e->sched.planned[i]);
    if (any)
        pool_run(e->p, n, mask_one, e);
    else
        for (int i = 0; i < n; i++)
            e->sched.planned[i]->draws_there = draws_there(e, e->sched.planned[i]);
}

/* Where a planned sequence's logits will be, and whether the device draws from them. Returns how
 * many rows they are. */
static int64_t plan_logits(engine *e, seq *s, int64_t row0)
{
    const int64_t n = seq_output(s), last = row0 + s->plan_n - 1 - s->plan_from;
    const int64_t rows = (s->plan_n - s->plan_from) * beam_rows(s) + s->plan_draft;
    int64_t edits = e->n_edits;
    bool there = s->draws_there;
    for (int64_t k = 0; k <= s->plan_draft && there; k++) {
        dev_draw *d = &e->draws[e->n_draws + k];
        there = smp_on_device(e->smp[0], d, e->edits + edits, e->max_edits - edits,
                              seq_params(s, n + k), s->ids, s->n_prompt, s->ids + s->n_prompt,
                              n + k, (uint64_t)(n + k), last + k);
        edits += there ? d->n_edits : 0;
    }
    s->row0 = row0;
    s->draw0 = there ? e->n_draws : -1;
    if (there) {
        e->n_draws += 1 + s->plan_draft;
        e->n_edits = edits;
    }
    return rows;
}

/* Blocks that were read meanwhile. True: there are more. */
static bool take_news(engine *e)
{
    if (!disk_looks(e->disk)) return false;
    pthread_mutex_lock(&e->lock);
    e->disk_news = false;
    pthread_mutex_unlock(&e->lock);
    return disk_step(e->disk);
}

enum { SLOWER = 3 };
static const double BURST_SECONDS = 0.25;

/* A burst and the steps until the next one take SLOWER times as long as those steps, but a burst not
 * longer than BURST_SECONDS, or an eighth of them where they are slow. */
static void learn_burst(engine *e)
{
    const double steps = SCHED_BURST_STEPS * e->pace.alone;
    const double most = fmin((SLOWER - 1) * steps, fmax(BURST_SECONDS, steps / 8));
    e->sched.burst = most / e->pace.of_burst;
}

/* How many tokens of a prompt make a step of decodes SLOWER times as long, by what steps with and without
 * them took. Answers do not depend on it: on the CPU they are the same in any steps. */
static void learn_beside(engine *e, int64_t decodes, double tokens, double seconds)
{
    enum { LEAST = 4, MOST = 128 };
    double *alone = &e->pace.alone, *each = e->sched.bursts ? &e->pace.of_burst : &e->pace.each;
    if (!e->sched.beside || !decodes) return;
    if (!(tokens > 0)) {
        const double share = seconds < *alone ? 0.3 : 0.05; /* others on the machine only delay */
        *alone = *alone > 0 ? *alone + share * (seconds - *alone) : seconds;
        return;
    }
    if (!(*alone > 0)) return;
    const double now = fmax(seconds - *alone, 1e-6) / tokens;
    *each = *each > 0 ? *each + (now < *each ? 0.3 : 0.05) * (now - *each) : now;
    if (e->sched.bursts) {
        learn_burst(e);
        return;
    }
    const double most = (SLOWER - 1) * *alone / *each;
    e->sched.beside = most < LEAST ? LEAST : most > MOST ? MOST : (int64_t)most;
}

/* How long a prompt's tokens take: of steps that have little else, for the disk; beside decodes, at the cost of
 * its first ones. */
static void learn_pace(engine *e, int n, int64_t rows, double seconds)
{
    int64_t prompts = 0, decodes = 0;
    double tokens = 0;
    for (int i = 0; i < n; i++) {
        const seq *s = e->sched.planned[i];
        decodes += s->plan_n == 1;
        if (s->plan_n < 2) continue;
        prompts += s->plan_n;
        tokens += (double)s->plan_n * sched_cost(&e->sched, s);
    }
    if (e->disk && 2 * prompts > rows) disk_computed(e->disk, rows, seconds);
    learn_beside(e, decodes, tokens, seconds);
}

static void engine_step(engine *e)
{
    int64_t decodes;
    const bool more = take_news(e);
    admit(e);
    const double start = lq_now();
    guess(e, &decodes);
    int n = sched_plan(&e->sched, e->items);
    e->due = sched_due(&e->sched);
    e->disk_alone = n == 0 && !more && disk_looks(e->disk) > 0;
    if (n == 0) {
        send_late(e);
        return;
    }
    const float *logits = NULL;
    int64_t rows = 0, computed = 0;
    lq_err err;
    const double planned = lq_now();
    e->n_draws = e->n_edits = 0;
    make_masks(e, n);
    for (int i = 0; i < n; i++) {
        seq *s = e->sched.planned[i];
        s->draft.hidden.row = computed;
        s->draft.hidden.pos = s->n_done;
        s->draft.hidden.n = s->beams ? 0 : s->plan_n + s->plan_draft;
        computed += s->plan_n * beam_rows(s) + s->plan_draft;
        rows += plan_logits(e, s, rows);
    }
    lq_status st = fwd_begin(e->fwd, e->items, e->sched.n_items, e->draws, e->n_draws, &err);
    send_late(e);
    if (!st) st = fwd_end(e->fwd, &logits, &e->drawn, &err);
    if (e->disk) disk_settled(e->disk, !st);
    for (int i = 0; i < n; i++) {
        seq *s = e->sched.planned[i];
        e->logits[i] = st || s->r.pool ? NULL : logits + s->row0 * e->m->cfg->vocab;
        s->status = st;
        if (st) s->err = err;
    }
    /* what the device has drawn is taken sooner than threads wake */
    const bool all_drawn = e->n_draws > 0 && e->n_draws == rows;
    if (!st) pool_run(all_drawn ? NULL : e->p, n, sample_one, e);
    const double drawn = lq_now();
    if (!st) learn_pace(e, n, computed, drawn - planned);
    if (!st && decodes) learn_gain(e, n, decodes, start);
    for (int i = 0; i < n; i++) /* finish() changes running, not planned */
        take_result(e, e->sched.planned[i]);
    pthread_mutex_lock(&e->lock);
    publish(e);
    if (st == LQ_EDEVICE && !e->stats.lost) {
        e->stats.lost = true;
        e->stats.why = err;
    }
    e->stats.steps++;
    e->stats.rows += (uint64_t)computed;
    e->stats.logit_rows += (uint64_t)rows;
    e->last_step = lq_now();
    e->stats.step_seconds += e->last_step - start;
    e->stats.model_seconds += drawn - planned;
    pthread_mutex_unlock(&e->lock);
}

/* ---- engine thread: its loop ---- */

/* With nothing to do: are the others still there that share the model? */
static void look_alive(engine *e)
{
    lq_err err;
    const lq_status s = fwd_alive(e->fwd, &err);
    pthread_mutex_lock(&e->lock);
    if (s && !e->stats.lost) {
        e->stats.lost = true;
        e->stats.why = err;
    }
    e->last_step = 0;
    pthread_mutex_unlock(&e->lock);
}

/* Under the lock, which it lets go: one turn of sleep. */
static void sleep_beside_others(engine *e)
{
    const double alive = lq_now() + ALIVE_SECONDS;
    const bool soon = e->live && !e->disk_alone && e->due < alive;
    if (os_cond_until(&e->wake, &e->lock, soon ? e->due : alive) == 0 || soon) return;
    e->last_step = lq_now(); /* one that never answers is a stall */
    pthread_mutex_unlock(&e->lock);
    look_alive(e);
    pthread_mutex_lock(&e->lock);
}

/* Under the lock: new requests to the scheduler; returns the cancelled ones as a list. */
static seq *collect(engine *e)
{
    for (seq *s = e->inbox, *next; s; s = next) {
        next = s->inbox_next;
        sched_wait(&e->sched, s);
    }
    e->inbox = NULL;
    e->inbox_end = &e->inbox;
    seq *doomed = NULL;
    if (e->cancels || e->closing)
        for (seq *s = e->live; s; s = s->live_next)
            if (s->cancel || e->closing) {
                s->doom_next = doomed;
                doomed = s;
            }
    e->cancels = false;
    return doomed;
}

/* Under the lock: nothing to do, or only a batch that may yet fill. */
static bool sleeps(const engine *e)
{
    if (e->closing || e->cancels || e->inbox) return false;
    if (e->disk_alone && e->live) return !e->disk_news;
    return !e->live || e->due > lq_now();
}

static void *engine_run(void *arg)
{
    lq_locale_c();
    engine *e = arg;
    bool busy = false;
    machine_hurry();
    for (;;) {
        pthread_mutex_lock(&e->lock);
        while (sleeps(e)) {
            if (busy) pool_leave(e->p);
            busy = false;
            e->last_step = 0;
            if (e->m->part && !e->stats.lost)
                sleep_beside_others(e);
            else if (!e->live || e->disk_alone)
                pthread_cond_wait(&e->wake, &e->lock);
            else
                os_cond_until(&e->wake, &e->lock, e->due);
        }
        seq *doomed = collect(e);
        bool closing = e->closing;
        if (!busy) e->last_step = lq_now();
        pthread_mutex_unlock(&e->lock);
        if (!busy && fwd_on_cpu(e->fwd)) pool_enter(e->p);
        busy = true;
        for (seq *s = doomed, *next; s; s = next) {
            next = s->doom_next;
            engine_finish(e, s, event_of(s), ENG_CANCELLED);
        }
        if (closing) break;
        engine_step(e);
    }
    pool_leave(e->p);
    return NULL;
}

/* ---- opening and closing ---- */

static void on_disk_news(void *user)
{
    engine *e = user;
    pthread_mutex_lock(&e->lock);
    e->disk_news = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

static lq_status open_disk(engine *e, lq_err *err)
{
    if (!e->o.disk.dir) return LQ_OK;
    const lq_status s = disk_open(&e->disk, &e->o, e->kv, on_disk_news, e, err);
    if (s) return s;
    e->sched.look = disk_look;
    e->sched.look_user = e->disk;
    return LQ_OK;
}

static lq_status open_lock(engine *e, lq_err *err)
{
    if (pthread_mutex_init(&e->lock, NULL)) return lq_fail(err, LQ_ENOMEM, "engine: no mutex");
    os_cond_init(&e->wake);
    os_cond_init(&e->done);
    e->has_lock = true;
    return LQ_OK;
}

/* Positions whose attention costs a token as much as the weights do; 0: none, it attends to a window. */
static int64_t deep_from(const model *m)
{
    const arch_config *c = m->cfg;
    double each = 0;
    for (int64_t i = 0; i < c->layers; i++)
        if (!c->layer[i].window) each += 4.0 * (double)c->heads * (double)c->head_dim;
    return each > 0 ? (int64_t)(model_row_flops(m) / each) + 1 : 0;
}

static lq_status open_step(engine *e, lq_err *err)
{
    size_t n = (size_t)e->o.max_seqs;
    e->n_smp = pool_threads(e->p);
    e->smp = calloc((size_t)e->n_smp, sizeof *e->smp);
    e->items = calloc(n, sizeof *e->items);
    e->logits = calloc(n, sizeof *e->logits);
    if (!e->smp || !e->items || !e->logits) return lq_fail(err, LQ_ENOMEM, "engine: out of memory");
    lq_status s = LQ_OK;
    for (int i = 0; i < e->n_smp && !s; i++)
        s = smp_open(&e->smp[i], e->m->cfg->vocab, err);
    if (!s)
        s = sched_open(&e->sched, e->kv, &e->o.policy, e->o.max_seqs, e->o.max_batch_tokens, err);
    if (s) return s;
    e->sched.draft_rows = e->o.guesses ? SPEC_ROWS : 0;
    if (!model_dev(e->m)) {
        e->sched.beside = SCHED_BESIDE;
        e->sched.burst = SCHED_BURST;
        e->sched.deep = deep_from(e->m);
    }
    if (model_dev(e->m) && model_first_on(e->m) == 0 && !e->o.draft) {
        e->late = calloc(n, sizeof *e->late);
        if (!e->late) return lq_fail(err, LQ_ENOMEM, "engine: out of memory");
    }
    e->sched.whole = e->m->cfg->w.both_ways;
    if (fwd_wordless(e->m)) e->sched.score_rows = e->o.max_batch_tokens;
    fwd_opts f = eng_step(&e->o);
    if (f.n_inputs) s = model_eagle_layers(f.inputs, e->o.draft->cfg, e->m->cfg, err);
    if (s) return s;
    e->draws = calloc((size_t)f.max_logits, sizeof *e->draws);
    if (!e->draws) return lq_fail(err, LQ_ENOMEM, "engine: out of memory");
    s = fwd_open(&e->fwd, e->m, e->kv, e->p, &f, err);
    if (!s && fwd_draws(e->fwd)) {
        e->max_edits = fwd_draw_edits(&f, e->m->cfg->vocab);
        e->edits = calloc((size_t)e->max_edits, sizeof *e->edits);
        if (!e->edits) s = lq_fail(err, LQ_ENOMEM, "engine: out of memory");
    }
    if (!s && e->o.draft && e->o.draft->cfg->mtp)
        s = mtp_open(&e->mtp, e->o.draft, kv_options(e->kv), &f, e->p, err);
    else if (!s && e->o.draft)
        s = draft_open(
            &e->draft, e->o.draft, e->m->cfg->vocab, kv_options(e->kv),
            &(fwd_opts){ .acts = f.acts, .max_rows = e->o.max_batch_tokens, .max_len = f.max_len },
            e->p, err);
    return s;
}

lq_status eng_open(engine **out, const model *m, const tok_tokenizer *tok, pool *p,
                   const eng_opts *o, lq_err *err)
{
    *out = NULL;
    engine *e = calloc(1, sizeof *e);
    if (!e) return lq_fail(err, LQ_ENOMEM, "engine: out of memory");
    e->m = m;
    e->tok = tok;
    e->p = p;
    e->inbox_end = &e->inbox;
    e->next_id = 1;
    kv_opts k;
    lq_status s = eng_size(&e->o, &k, m->cfg, o, model_dev(m), model_first_on(m), err);
    if (!s) s = open_lock(e, err);
    if (!s && o->disk.dir) {
        k.hash = disk_hash;
        s = disk_identity(k.of, &e->o, m, err);
    }
    if (!s) s = kv_open(&e->kv, m->cfg, &k, err);
    if (!s) s = open_step(e, err);
    if (!s) s = open_disk(e, err);
    if (!s) {
        publish(e);
        e->has_thread = pthread_create(&e->thread, NULL, engine_run, e) == 0;
        if (!e->has_thread) s = lq_fail(err, LQ_ENOMEM, "engine: cannot start its thread");
    }
    if (s)
        eng_close(e);
    else
        *out = e;
    return s;
}

void eng_save_until(engine *e, double until) { disk_until(e->disk, until); }

void eng_close(engine *e)
{
    if (!e) return;
    if (e->has_thread) {
        pthread_mutex_lock(&e->lock);
        e->closing = true;
        pthread_cond_signal(&e->wake);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    disk_close(e->disk);
    if (e->fwd) fwd_close(e->fwd);
    draft_close(e->draft);
    mtp_close(e->mtp);
    sched_close(&e->sched);
    for (int i = 0; e->smp && i < e->n_smp; i++)
        smp_close(e->smp[i]);
    free(e->smp);
    free(e->items);
    free(e->logits);
    free(e->draws);
    free(e->late);
    free(e->edits);
    kv_close(e->kv);
    if (e->has_lock) {
        pthread_cond_destroy(&e->wake);
        pthread_cond_destroy(&e->done);
        pthread_mutex_destroy(&e->lock);
    }
    free(e);
}
