/* runtime/api/api_gen.c - a generation request from its checked parameters to its answer.
 *
 * best_of samples of each prompt, mostly n, are as many engine requests (choice = prompt * best_of
 * + sample); the n of the highest log-probability per token are the answer. A beam search is one
 * engine request a prompt, which answers its n choices. Three kinds of threads
 * meet: the one that submits, the engine's, which delivers events and writes chunks, and a watcher
 * that says the client has gone. `pending` counts the engine requests that have not ended and the
 * submitting thread itself: who brings it to 0 is alone and gives the answer. */
#include "runtime/api/api_body.h"
#include "runtime/api/api_follow.h"
#include "runtime/api/api_gen_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/machine.h"
#include "base/os.h"
#include "base/random.h"

static void link_gen(gen *g)
{
    pthread_mutex_lock(&g->a->mu);
    g->next = g->a->gens;
    if (g->next) g->next->prev = g;
    g->a->gens = g;
    pthread_mutex_unlock(&g->a->mu);
}

static void unlink_gen(gen *g)
{
    pthread_mutex_lock(&g->a->mu);
    if (g->prev) g->prev->next = g->next;
    if (g->next) g->next->prev = g->prev;
    if (g->a->gens == g) g->a->gens = g->next;
    pthread_mutex_unlock(&g->a->mu);
}

static void gen_free(void *user)
{
    gen *g = user;
    unlink_gen(g);
    for (int i = 0; g->choices.v && i < g->choices.n; i++) {
        gen_choice *c = &g->choices.v[i];
        jw *all[] = { &c->ids,        &c->lp.tokens,  &c->lp.values, &c->lp.tops,
                      &c->lp.offsets, &c->lp.content, &c->lp.prompt };
        for (size_t k = 0; k < LQ_COUNT(all); k++)
            jw_free(all[k]);
        lq_buf_free(&c->text);
        tok_stream_free(c->offset.stream);
        gen_free_parts(c);
        gen_free_items(c);
        free(c->pooled);
    }
    free(g->choices.v);
    for (size_t i = 0; i < g->prompts.n; i++)
        free(g->prompts.v[i].ids);
    free(g->prompts.v);
    jw_free(&g->answer.chunk);
    gr_unref(g->limits.grammar);
    lora_unref(g->lora);
    free(g->limits.bad);
    dry_breakers_free(&g->limits.dry);
    free(g->limits.wakes);
    free(g->limits.wake_text);
    api_params_free(&g->p);
    cJSON_Delete(g->doc);
    cJSON_Delete(g->past);
    cJSON_Delete(g->body);
    free(g);
}

static void cancel_all(gen *g)
{
    const api_backend *b = &g->a->m.backend;
    for (int i = 0; i < g->choices.n; i++)
        if (atomic_load(&g->choices.v[i].submitted)) b->cancel(b->self, g->choices.v[i].id);
}

static void on_gone(void *user)
{
    gen *g = user;
    atomic_store(&g->state.gone, true);
    cancel_all(g);
}

/* The first failure is the answer; the other choices are not worth finishing. */
static void api_gen_fail(gen *g, const api_error *e)
{
    if (atomic_exchange(&g->state.failed, true)) return;
    g->state.error = *e;
    if (g->shape->dialect) api_body_error(g->shape->dialect, &g->state.error);
    cancel_all(g);
}

static api_error shutting_down(void)
{
    api_error why = { 0 };
    api_fail(&why, NULL, "shutting_down", "the server is shutting down");
    why.status = 503;
    return why;
}

/* ---- events ---- */

static void observe_end(gen_choice *c, double now)
{
    metrics *m = c->g->a->met;
    static const met_counter counter[] = { [ENG_STOP] = MET_STOP,
                                           [ENG_LENGTH] = MET_LENGTH,
                                           [ENG_CANCELLED] = MET_ABORT,
                                           [ENG_ERROR] = MET_ERROR };
    met_add(m, counter[c->end.finish], 1);
    if (c->end.finish != ENG_STOP && c->end.finish != ENG_LENGTH) return;
    met_observe(m, MET_E2E, now);
    met_observe(m, MET_REQ_PROMPT, (double)c->g->prompts.v[c->prompt].n);
    met_observe(m, MET_REQ_GENERATION, (double)c->stats.n_output);
    if (c->stats.n_output < 2) return;
    met_observe(m, MET_DECODE, c->stats.t_last - c->stats.t_first);
    met_observe(m, MET_TPOT,
                (c->stats.t_last - c->stats.t_first) / (double)(c->stats.n_output - 1));
}

static void observe_tokens(gen_choice *c, int n, double now)
{
    metrics *m = c->g->a->met;
    met_add(m, MET_GENERATION_TOKENS, (uint64_t)n);
    if (c->stats.t_first > 0) {
        met_observe(m, MET_ITL, now - c->stats.t_last);
    } else {
        c->stats.t_first = now;
        met_observe(m, MET_TTFT, now);
        api_first_token(c->g->a, now);
    }
    c->stats.t_last = now;
}

static void api_gen_take(gen_choice *c, const eng_event *e)
{
    const gen *g = c->g;
    if (atomic_load(&c->limit.cut)) return;
    if (g->p.logprobs >= 0 && g->p.echo && e->prompt_logprobs)
        for (int64_t i = 0; i < e->n_prompt; i++) {
            smp_result r = e->prompt_logprobs[i];
            if (r.n_top > g->p.logprobs)
                r.n_top = (int)g->p.logprobs; /* prompt_logprobs has more */
            gen_write_logprob(c, &r, i > 0);
        }
    if (g->p.prompt_logprobs >= 0 && e->prompt_logprobs)
        gen_write_prompt_logprobs(c, e->prompt_logprobs, e->n_prompt);
    for (int i = 0; i < e->n_ids; i++) {
        if (e->logprobs) c->lp.sum += (double)e->logprobs[i].logprob;
        if (g->p.logprobs >= 0 && e->logprobs) gen_write_logprob(c, &e->logprobs[i], true);
        if (g->p.return_ids) jw_i64(&c->ids, e->ids[i]);
    }
    if ((g->shape->kind & API_JUDGES) && e->n_ids) gen_take_judgement(c, e->logprobs);
    if (e->pooled && (g->shape->kind & API_JUDGES))
        gen_take_score(c, e->pooled);
    else if (e->pooled && g->shape->kind == API_CLASSIFY)
        c->text.oom |= !gen_take_labels(c, e->pooled);
    else if (e->pooled && !gen_take_vector(c, e->pooled))
        c->text.oom = true;
    gen_take_text(c, e->text, e->n_text, e->finish != ENG_RUNNING);
    c->stats.n_output = e->n_output;
    c->stats.n_cached = e->n_cached;
}

/* What gave a beam search its width. */
static const char *width_param(const api_params *p) { return p->best_of > p->n ? "best_of" : "n"; }

static void take_finish(gen_choice *c, const eng_event *e)
{
    gen *g = c->g;
    api_error why = { 0 };
    /* A sequence that was cut ended there, also where it has come to an end of its own before it was cancelled. */
    const bool cancelled = e->finish == ENG_CANCELLED,
               cut = e->finish != ENG_ERROR && atomic_load(&c->limit.cut);
    c->end.finish = cut ? ENG_LENGTH : e->finish;
    c->end.stop_id = e->stop_id;
    for (int i = 0; e->stop_string && i < g->p.n_stop; i++)
        if (strcmp(g->p.stop[i], e->stop_string) == 0) c->end.stop_string = g->p.stop[i];
    if (e->finish == ENG_ERROR &&
        e->status == LQ_ENOENT) { /* what the request bans is its own affair */
        api_fail(&why, g->p.beams ? width_param(&g->p) : NULL, "no_answer", "%s", e->error);
        api_gen_fail(g, &why);
    } else if (e->finish == ENG_ERROR && e->status == LQ_ENOMEM) {
        api_fail(&why, NULL, NULL, "out of memory");
        why.status = 503;
        api_gen_fail(g, &why);
    } else if (e->finish == ENG_ERROR) {
        met_add(g->a->met, MET_CORRUPTED, 1);
        api_fail(&why, NULL, "generation_failed", "generation failed: %s",
                 e->error ? e->error : "internal error");
        why.status = 500;
        api_gen_fail(g, &why);
    } else if (cancelled && !cut && !atomic_load(&g->state.gone)) {
        why = shutting_down();
        api_gen_fail(g, &why); /* a choice cancelled by a failure finds that failure there */
    }
}

static double mean_logprob(const gen_choice *c)
{
    return c->stats.n_output > 0 ? c->lp.sum / (double)c->stats.n_output : 0;
}

/* best_of: of each prompt's samples the n best are in the answer, the best first. */
static void rank_choices(gen *g)
{
    if (g->choices.runs == g->p.n) return;
    for (int i = 0; i < g->choices.n; i++) {
        gen_choice *c = &g->choices.v[i], *all = c - c->sample;
        c->rank = 0;
        for (int k = 0; k < g->choices.runs; k++) {
            double a = mean_logprob(&all[k]), b = mean_logprob(c);
            c->rank += a > b || (!(a < b) && k < c->sample);
        }
        if (c->rank >= g->p.n) c->rank = -1;
        c->index = c->prompt * (int)g->p.n + c->rank;
    }
}

/* Alone: the answer. */
static void api_gen_finish(gen *g)
{
    bool failed = atomic_load(&g->state.failed);
    if (!atomic_load(&g->state.gone) && !failed) {
        met_add(g->a->met, MET_PROMPT_TOKENS, (uint64_t)g->prompts.n_ids);
        for (int i = 0; i < g->choices.n; i += g->choices.runs)
            met_add(g->a->met, MET_CACHED_TOKENS, (uint64_t)g->choices.v[i].stats.n_cached);
    }
    if (g->answer.begun) {
        if (failed)
            g->shape->error(g);
        else
            g->shape->end(g);
        http_stream_end(g->r);
    } else if (failed) {
        api_reply_error(g->a, g->r, &g->state.error);
    } else if (!atomic_load(&g->state.gone)) {
        jw w = { 0 };
        rank_choices(g);
        g->shape->answer(g, &w);
        api_reply(g->r, 200, &w);
    }
    http_release(g->r); /* g may be gone after it */
}

static void done(gen *g)
{
    if (atomic_fetch_sub(&g->state.pending, 1) == 1) api_gen_finish(g);
}

static api_error too_much_memory(void)
{
    api_error why = { 0 };
    api_fail(&why, NULL, "overloaded", "too many large requests at the same time");
    why.status = 503;
    return why;
}

/* What waits to be sent is counted with what the request takes: an answer in one piece is there
 * once more as JSON, and in two copies on its way. */
static void hold_answer(gen_choice *c)
{
    enum { STEP = 4096, COPIES = 4 };
    const lq_buf *const all[] = { &c->text,         &c->ids.b,       &c->lp.tokens.b,
                                  &c->lp.values.b,  &c->lp.tops.b,   &c->lp.offsets.b,
                                  &c->lp.content.b, &c->lp.prompt.b, &c->reasoning,
                                  &c->calls.list.b, &c->calls.args,  &c->calls.custom };
    size_t n = 0;
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        n += all[i]->cap;
    n += gen_items_bytes(c);
    if (n < c->held + STEP) return;
    const size_t more = n - c->held;
    c->held = n;
    if (http_hold(c->g->r, COPIES * more)) return;
    const api_error why = too_much_memory();
    api_gen_fail(c->g, &why);
}

/* The engine's thread. */
static void on_event(void *user, const eng_event *e)
{
    gen_choice *c = (gen_choice *)user + e->answer;
    gen *g = c->g;
    double now = http_age(g->r);
    if (e->n_read) {
        c->read = e->n_read;
        c->stats.n_cached = e->n_cached;
        if (!atomic_load(&g->state.failed) && !atomic_load(&g->state.gone) &&
            !g->shape->progress(c))
            on_gone(g);
        return;
    }
    api_gen_take(c, e);
    hold_answer(c);
    if (e->n_ids) observe_tokens(c, e->n_ids, now);
    if (e->finish) take_finish(c, e);
    bool due = c->text.n > 0 || c->reasoning.n > 0 || c->calls.list.b.n > 0 || c->items.news ||
               (e->finish && c->end.finish != ENG_CANCELLED);
    if (g->p.stream && due && !atomic_load(&g->state.failed) && !atomic_load(&g->state.gone) &&
        !g->shape->chunk(c))
        on_gone(g);
    if (!e->finish) return;
    observe_end(c, now);
    if (e->last) done(g);
}

/* ---- ends that come from outside ---- */

/* A share in `pending`, so that g cannot finish meanwhile; false: it is finishing. */
static bool hold(gen *g)
{
    int n = atomic_load(&g->state.pending);
    while (n > 0)
        if (atomic_compare_exchange_weak(&g->state.pending, &n, n + 1)) return true;
    return false;
}

/* Fails the generations that `pick` says yes to; returns how many. They are held in portions: a
 * generation may end, and free itself, as soon as it is failed, which takes the lock. */
static int fail_some(api *a, bool (*pick)(const gen *g, const void *arg), const void *arg,
                     const api_error *why)
{
    gen *some[32];
    int n, total = 0;
    do {
        n = 0;
        pthread_mutex_lock(&a->mu);
        for (gen *g = a->gens; g && n < (int)LQ_COUNT(some); g = g->next)
            if (!atomic_load(&g->state.failed) && pick(g, arg) && hold(g)) some[n++] = g;
        pthread_mutex_unlock(&a->mu);
        for (int i = 0; i < n; i++) {
            api_gen_fail(some[i], why);
            done(some[i]);
        }
        total += n;
    } while (n == (int)LQ_COUNT(some));
    return total;
}

static bool every(const gen *g, const void *arg)
{
    (void)g;
    (void)arg;
    return true;
}

void api_abort(api *a)
{
    api_error why = shutting_down();
    fail_some(a, every, NULL, &why);
}

static bool has_id(const gen *g, const void *id)
{
    return strcmp(g->answer.id, id) == 0 || strcmp(http_id(g->r), id) == 0;
}

int api_gen_abort(api *a, const char *id)
{
    api_error why = { 0 };
    api_fail(&why, NULL, "aborted", "an administrator has ended this request");
    why.status = 409;
    return fail_some(a, has_id, id, &why);
}

static bool too_old(const gen *g, const void *seconds)
{
    double limit;
    memcpy(&limit, seconds, sizeof limit);
    return http_age(g->r) > limit;
}

void api_tick(void *app)
{
    api *a = app;
    api_error why = { 0 };
    machine_settle();
    api_follow_news(a, NULL);
    if (!(a->o.request_seconds > 0)) return;
    api_fail(&why, NULL, "request_timeout", "the request took longer than %g seconds",
             a->o.request_seconds);
    why.status = 504;
    int n = fail_some(a, too_old, &a->o.request_seconds, &why);
    met_add(a->met, MET_TIMEOUTS, (uint64_t)n);
}

/* ---- submission ---- */

static uint64_t base_seed(const api_params *p)
{
    uint64_t s;
    if (p->has_seed) return (uint64_t)p->seed;
    if (!os_random(&s, sizeof s)) s = (uint64_t)time(NULL);
    return s;
}

static int64_t wanted_tokens(const gen *g, int64_t n_prompt)
{
    int64_t room = g->a->m.max_len - n_prompt;
    const gen_defaults *d = &g->a->m.defaults;
    int64_t want = g->p.max_tokens >= 0    ? g->p.max_tokens
                   : g->p.to_the_end       ? room
                   : d->has_max_new_tokens ? d->max_new_tokens
                   : g->shape->most_tokens ? g->shape->most_tokens
                                           : room;
    return (g->p.max_tokens < 0 || g->shape->fills) && want > room ? room : want;
}

static lq_status api_gen_submit(gen *g, gen_choice *c, uint64_t seed, api_error *e)
{
    const api_params *p = &g->p;
    const api_prompt *prompt = &g->prompts.v[c->prompt];
    const api_backend *b = &g->a->m.backend;
    int64_t max_tokens = wanted_tokens(g, (int64_t)prompt->n), scores = p->echo ? p->logprobs : -1;
    if (c->sample == 0 && p->prompt_logprobs > scores) scores = p->prompt_logprobs;
    eng_request r = {
        .prompt = prompt->ids,
        .n_prompt = (int64_t)prompt->n,
        .n_first = (int64_t)prompt->n_first,
        .max_tokens = max_tokens,
        .min_tokens = p->min_tokens < max_tokens ? p->min_tokens : max_tokens,
        .params = { .temperature = (float)p->temperature,
                    .top_k = (int32_t)p->top_k,
                    .top_p = p->top_p > 0 ? (float)p->top_p : 1e-9f, /* 0: the likeliest alone */
                    .min_p = (float)p->min_p,
                    .repetition_penalty = (float)p->repetition_penalty,
                    .presence_penalty = (float)p->presence_penalty,
                    .frequency_penalty = (float)p->frequency_penalty,
                    .seed =
                        c->sample ? lq_random_of(lq_random_of(seed) + (uint64_t)c->sample) : seed,
                    .bias = p->bias,
                    .n_bias = p->n_bias,
                    .allowed = p->allowed,
                    .n_allowed = p->n_allowed,
                    .logprobs = p->logprobs < 0 && g->choices.runs > p->n ? 0 : (int)p->logprobs },
        .stop = p->stop,
        .n_stop = p->n_stop,
        .stop_ids = p->stop_ids,
        .n_stop_ids = p->n_stop_ids,
        .include_stop = p->include_stop,
        .ignore_eos = p->ignore_eos,
        .infill = p->samplers.infill,
        .show_special = !p->skip_special,
        .prompt_logprobs = (int)scores,
        .grammar = g->limits.grammar,
        .wakes = g->limits.wakes,
        .n_wakes = g->limits.n_wakes,
        .wake_after = g->limits.wake_after,
        .wake_begin = g->limits.wake_begin,
        .thought = &g->limits.thought,
        .show_ids = c->out ? g->a->m.shown : NULL,
        .n_show_ids = c->out ? g->a->m.n_shown : 0,
        .bad = g->limits.bad,
        .n_bad = g->limits.n_bad,
        .beam = { .width = p->beams ? p->best_of : 0,
                  .n = p->n,
                  .length_penalty = p->length_penalty,
                  .early = p->early },
        .pool = gen_pool(g),
        .salt = p->cache_salt,
        .lora = g->lora,
        .progress = p->stream && p->progress && g->shape->progress && c->sample == 0,
        .priority = (int32_t)p->priority,
    };
    api_samplers_put(&r.params, &p->samplers, &g->limits.dry);
    if ((g->shape->kind & API_JUDGES) && g->a->m.labels) {
        r.params.logprobs = 0;
        r.params.asked = g->a->m.labels;
        r.params.n_asked = 2;
    }
    lq_err err = { "" };
    lq_status s = b->submit(b->self, &r, on_event, c, &c->id, &err);
    if (s == LQ_OK) {
        atomic_store(&c->submitted, true);
        if (atomic_load(&g->state.gone) || atomic_load(&g->state.failed) ||
            atomic_load(&c->limit.cut))
            b->cancel(b->self, c->id); /* cancel_all may have missed it */
        return s;
    }
    if (s == LQ_EVALUE && p->beams) { /* of the rest check_length has seen to */
        api_fail(e, width_param(p), "unsupported_value", "%s", err.msg);
    } else if (s == LQ_EVALUE) {
        api_fail(e, g->shape->prompt, "context_length_exceeded", "%s", err.msg);
    } else if (s == LQ_EUNSUPPORTED) { /* it has no words */
        api_fail(e, NULL, "unsupported_value", "%s", err.msg);
    } else if (s == LQ_EDEVICE) {
        api_fail(e, NULL, "device_lost", "%s", err.msg);
        e->status = 503;
    } else {
        api_fail(e, NULL, "overloaded", "too many requests are waiting; try again later");
        e->status = 503;
    }
    return s;
}

/* Of the engine's: one for each choice, or for each prompt's beams. */
static int requests(const gen *g) { return g->p.beams ? (int)g->prompts.n : g->choices.n; }

static void submit_all(gen *g)
{
    uint64_t seed = base_seed(&g->p);
    api_error e = { 0 };
    int n = 0, all = requests(g), step = g->choices.n / all;
    while (n < all && api_gen_submit(g, &g->choices.v[n * step], seed, &e) == LQ_OK)
        n++;
    if (n < all) {
        api_gen_fail(g, &e);
        atomic_fetch_sub(&g->state.pending, all - n);
    } else if (g->p.stream) {
        g->answer.begun = true;
        http_stream_begin(g->r);
    }
    done(g);
}

/* ---- before submission ---- */

/* The end of a prompt; of an input to be embedded the beginning, where its own prompt is, and the ids
 * that are to end a text. */
static void cut_prompt(const gen *g, api_prompt *p, size_t keep)
{
    const size_t ends = !g->p.embeds ? keep : p->n_ends < keep ? p->n_ends : keep;
    memmove(p->ids + keep - ends, p->ids + p->n - ends, ends * sizeof *p->ids);
    p->n = keep;
    p->text = NULL;
}

static lq_status check_length(gen *g, api_error *e)
{
    const char *param = g->shape->prompt;
    for (size_t i = 0; i < g->prompts.n; i++) {
        api_prompt *p = &g->prompts.v[i];
        int64_t limit = g->p.embeds ? api_max_input(g->a) : g->a->m.max_len, n = (int64_t)p->n;
        int64_t room = g->p.max_tokens >= 0 ? g->p.max_tokens : 1;
        int64_t asked = g->shape->fills ? 1 : room;
        if (g->shape->fills && room > limit / 2) room = limit / 2;
        int64_t keep = g->p.truncate > 0 ? g->p.truncate : limit - room;
        if (g->p.truncate && keep > 0 && n > keep) {
            cut_prompt(g, p, (size_t)keep);
            n = keep;
        }
        if (n == 0)
            return api_fail(e, param, "invalid_value", "%s: there is no token in it", param);
        if (n > limit || asked > limit - n)
            return api_fail(e, n >= limit ? param : "max_tokens", "context_length_exceeded",
                            "this model's maximum context length is %lld tokens: the prompt has "
                            "%lld and %lld are to be generated",
                            (long long)limit, (long long)n, (long long)asked);
        g->prompts.n_ids += n;
    }
    return LQ_OK;
}

/* Sequences that the engine would never hold at once. */
static lq_status check_choices(const gen *g, api_error *e)
{
    const api_model *m = &g->a->m;
    const char *param =
        g->prompts.n > 1 && g->p.best_of == 1 ? g->shape->prompt : width_param(&g->p);
    int64_t prompts = (int64_t)g->prompts.n, all = prompts * g->p.best_of;
    int64_t sequences = g->p.beams ? prompts : all;
    if (all > API_MAX_CHOICES)
        return api_fail(e, param, "invalid_value", "%s: at most %d choices per request, found %lld",
                        param, API_MAX_CHOICES, (long long)all);
    if (sequences > m->max_seqs + m->queue)
        return api_fail(e, param, "invalid_value",
                        "%s: this server takes at most %lld sequences at once (%lld that run and "
                        "%lld that wait), found %lld",
                        param, (long long)(m->max_seqs + m->queue), (long long)m->max_seqs,
                        (long long)m->queue, (long long)sequences);
    return LQ_OK;
}

/* The prompt's text at the head of the choice, and where its tokens begin in it. */
static lq_status prepare_echo(gen_choice *c, lq_err *err)
{
    const gen *g = c->g;
    const api_prompt *p = &g->prompts.v[c->prompt];
    const tok_tokenizer *tok = g->a->m.tok;
    lq_status s = LQ_OK;
    if (g->p.echo && p->text) {
        lq_buf_puts(&c->text, p->text);
    } else if (g->p.echo && tok) {
        char *text;
        size_t n;
        s = tok_decode(tok, p->ids, p->n, g->p.skip_special, &text, &n, err);
        if (s) return s;
        lq_buf_add(&c->text, text, n);
        free(text);
    }
    if (g->shape->kind == API_CHAT || g->p.logprobs < 0 || !tok) return s;
    s = tok_stream_new(&c->offset.stream, tok, g->p.skip_special, err);
    if (!s && !g->p.echo) s = tok_stream_prime(c->offset.stream, p->ids, p->n, err);
    return s;
}

/* One spelling of a bad word behind the others. *first, *n: of the spelling before, and of this. */
static bool add_bad_word(gen *g, const char *text, bool spaced, int32_t *first, size_t *n)
{
    int32_t *ids = NULL;
    size_t k = 0;
    bool ok = !tok_encode(g->a->m.tok, text, strlen(text), 0, &ids, &k, NULL);
    /* with a space only where that begins another token, not where it adds one */
    bool wanted = ok && k > 0 && (!spaced || (ids[0] != *first && k == *n));
    if (wanted) {
        int32_t *bad = realloc(g->limits.bad, ((size_t)g->limits.n_bad + 1 + k) * sizeof *bad);
        ok = bad != NULL;
        if (ok) {
            g->limits.bad = bad;
            bad[g->limits.n_bad++] = (int32_t)k;
            memcpy(bad + g->limits.n_bad, ids, k * sizeof *bad);
            g->limits.n_bad += (int)k;
        }
    }
    if (ok && k > 0) *first = ids[0];
    *n = k;
    free(ids);
    return ok;
}

/* As vLLM reads them: each word as it begins a text and as it follows a blank. */
static lq_status prepare_bad_words(gen *g, api_error *e)
{
    const cJSON *words = g->p.bad_words;
    if (words && !g->a->m.tok)
        return api_fail(e, "bad_words", "unsupported_value",
                        "bad_words: the model has no tokenizer");
    bool ok = true;
    for (const cJSON *c = words ? words->child : NULL; c && ok; c = c->next) {
        char spaced[API_MAX_STOP_BYTES + 2];
        int32_t first = -1;
        size_t n = 0;
        snprintf(spaced, sizeof spaced, " %s", c->valuestring + strspn(c->valuestring, " "));
        ok = add_bad_word(g, spaced + 1, false, &first, &n) &&
             add_bad_word(g, spaced, true, &first, &n);
    }
    return ok ? LQ_OK : api_no_memory(e);
}

/* Of the name that the request has for its model; it may have gone since that was looked at. */
static lq_status take_adapter(gen *g, api_error *e)
{
    const char *name = g->p.model;
    if (api_has_name(g->a, name)) return LQ_OK;
    g->lora = g->a->m.adapters ? adapters_take(g->a->m.adapters, name) : NULL;
    return g->lora ? LQ_OK : api_no_model(e, name);
}

static lq_status prepare(gen *g, api_error *e)
{
    lq_status s = take_adapter(g, e);
    if (!s) s = check_length(g, e);
    if (!s) s = check_choices(g, e);
    if (s) return s;
    if (g->p.stream && !http_can_stream(g->r))
        return api_fail(e, "stream", "unsupported_value", HTTP_WHOLE_ONLY);
    if (g->p.priority && !g->a->o.priorities)
        return api_fail(e, "priority", "unsupported_value",
                        "priority: this server answers in the order of arrival");
    if (g->p.dimensions > g->a->m.width)
        return api_fail(e, "dimensions", "invalid_value",
                        "dimensions: expected an integer 1..%lld, found %lld",
                        (long long)g->a->m.width, (long long)g->p.dimensions);
    if (!g->a->m.tok && g->p.n_stop)
        return api_fail(e, "stop", "unsupported_value", "stop: the model has no tokenizer");
    s = gen_plan_calls(g, e);
    if (!s && g->p.structured.param) s = api_grammar(g->a, &g->limits.grammar, &g->p.structured, e);
    if (!s) s = prepare_bad_words(g, e);
    if (!s) s = api_breakers(&g->limits.dry, &g->p.samplers, g->a->m.tok, g->a->m.vocab, e);
    if (s) return s;
    int runs = g->choices.runs = (int)(g->p.beams ? g->p.n : g->p.best_of),
        n = (int)g->prompts.n * runs;
    lq_err err;
    size_t ids = (size_t)g->limits.n_bad * sizeof *g->limits.bad;
    for (size_t i = 0; i < g->prompts.n; i++)
        ids += g->prompts.v[i].n * sizeof *g->prompts.v[i].ids;
    if (!http_hold(g->r, ids + (size_t)n * sizeof *g->choices.v)) {
        *e = too_much_memory();
        return LQ_EBUSY;
    }
    g->choices.v = calloc((size_t)n, sizeof *g->choices.v);
    if (g->choices.v) g->choices.n = n;
    s = g->choices.v ? LQ_OK : LQ_ENOMEM;
    for (int i = 0; i < n && !s; i++) {
        gen_choice *c = &g->choices.v[i];
        *c = (gen_choice){ .g = g,
                           .index = i,
                           .prompt = i / runs,
                           .sample = i % runs,
                           .rank = i % runs,
                           .end.stop_id = -1 };
        s = prepare_echo(c, &err);
        if (!s) s = gen_open_parts(c, &err);
    }
    return s ? api_no_memory(e) : LQ_OK;
}

void api_name_answer(api *a, const gen_shape *shape, char id[64])
{
    unsigned long long v[2] = { a->salt, atomic_fetch_add(&a->counter, 1) }, secret[2];
    if (shape->secret && os_random(secret, sizeof secret)) memcpy(v, secret, sizeof v);
    snprintf(id, 64, "%s%016llx%08llx", shape->prefix, v[0], v[1]);
}

void api_generate(api *a, http_req *r, const gen_shape *shape, api_request *q)
{
    api_error e = { 0 };
    gen *g = calloc(1, sizeof *g);
    if (!g) {
        http_error(r, 503, NULL, NULL, "out of memory");
        api_request_free(q);
        return;
    }
    *g = (gen){ .a = a,
                .r = r,
                .shape = shape,
                .p = q->p,
                .doc = q->doc,
                .body = q->body,
                .past = q->past,
                .prompts.v = q->prompts,
                .prompts.n = q->n,
                .answer.model = q->p.model ? q->p.model : a->names[0],
                .answer.created = (int64_t)time(NULL) };
    if (q->id[0])
        memcpy(g->answer.id, q->id, sizeof g->answer.id);
    else
        api_name_answer(a, shape, g->answer.id);
    if (prepare(g, &e)) {
        if (shape->dialect) api_body_error(shape->dialect, &e);
        api_reply_error(a, r, &e);
        gen_free(g);
        return;
    }
    met_observe(a->met, MET_REQ_N, (double)g->p.n);
    met_observe(a->met, MET_REQ_MAX_TOKENS, (double)wanted_tokens(g, (int64_t)g->prompts.v[0].n));
    atomic_init(&g->state.pending, requests(g) + 1);
    link_gen(g);
    http_keep(r, on_gone, gen_free, g);
    submit_all(g);
}
