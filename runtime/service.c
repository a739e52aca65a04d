/* runtime/service.c - see service.h. */
#include "runtime/service.h"

#include "runtime/load_guess.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/os.h"
#include "base/version.h"
#include "runtime/chat/chat.h"
#include "runtime/engine/sizing.h"
#include "runtime/model/part.h"

typedef struct done done;
struct done {
    done *next;
    lm *l;
    lm_answer a;
};

struct lm {
    api *a;
    load_model model;
    load_tok tok;
    bool tok_lent;    /* not ours to close */
    load_model draft; /* zeroed: none; an MTP head's without a config */
    gen_defaults gen;
    chat_format *chat;  /* NULL: the model has no template */
    sentence *sentence; /* NULL: the model's files say nothing of vectors */
    cJSON *labels;      /* their names; NULL: none */
    src_label_kind label_kind;
    adapters *adapters;    /* NULL: there are none */
    rerank_format *rerank; /* NULL: it judges no documents, for this reason */
    lq_err no_judge;
    engine *e;
    api_model info;
    bool has_info;
    char scheme[40], fingerprint[256], loras[40]; /* loras: of the fingerprint */

    pthread_mutex_t mu; /* of the list */
    pthread_cond_t some;
    done *first, **last;
};

api *lm_api(lm *l) { return l->a; }
engine *lm_engine(lm *l) { return l->e; }
const model *lm_weights(const lm *l) { return &l->model.m; }
const api_model *lm_model(const lm *l) { return l->has_info ? &l->info : NULL; }

/* ---- what the API asks of the engine ---- */

static lq_status service_submit(void *self, const eng_request *r, eng_sink sink, void *user,
                                uint64_t *id, lq_err *err)
{
    return eng_submit(((lm *)self)->e, r, sink, user, id, err);
}

static void cancel(void *self, uint64_t id) { eng_cancel(((lm *)self)->e, id); }
static void stats(void *self, eng_stats *s) { eng_stats_get(((lm *)self)->e, s); }

static lq_status render(void *self, const chat_request *q, int32_t **ids, size_t *n, lq_err *err)
{
    return chat_encode(((lm *)self)->chat, q, ids, n, err);
}

static lq_status judge(void *self, const rerank_pair *p, rerank_prompt *out, lq_err *err)
{
    return rerank_encode(((lm *)self)->rerank, p, out, err);
}

static void score(void *self, const double *hidden, double *scores)
{
    model_score(&((lm *)self)->model.m, hidden, scores);
}

/* ---- loading ---- */

lq_status lm_open(lm **out, const api_opts *o, lq_err *err)
{
    lm *l = *out = calloc(1, sizeof *l);
    if (!l) return lq_fail(err, LQ_ENOMEM, "out of memory");
    pthread_mutex_init(&l->mu, NULL);
    os_cond_init(&l->some);
    l->last = &l->first;
    lq_status s = api_open(&l->a, o, err);
    if (s) {
        lm_close(l);
        *out = NULL;
    }
    return s;
}

static void service_say(const lm_source *o, const char *what, const lq_err *err)
{
    char text[sizeof err->msg + 64];
    snprintf(text, sizeof text, "%s: %s", what, err->msg);
    if (o->load.note) o->load.note(o->path, text);
}

/* The scheme of the first quantized layer, or NULL. */
static const char *scheme_of(lm *l)
{
    for (int64_t i = 0; i < src_n_tensors(l->model.src); i++) {
        const src_tensor *t = src_tensor_at(l->model.src, i);
        if (t->plain && t->n_dims == 2 && t->t.scheme.kind != QT_DENSE) {
            qt_scheme_text(l->scheme, &t->t.scheme);
            return l->scheme;
        }
    }
    return NULL;
}

/* How it judges documents, if it does. */
static lq_status open_rerank(lm *l, const lm_source *o, lq_err *err)
{
    const rerank_choice choice = { o->load.rerank_template, o->load.rerank_labels,
                                   l->model.m.cfg->labels, l->model.m.cfg->types > 1 };
    lq_status s =
        rerank_open(&l->rerank, l->chat ? chat_templates(l->chat) : NULL, l->tok.t, &choice, err);
    if (s != LQ_ENOMEM && !choice.template && !choice.labels) {
        l->no_judge = *err;
        s = LQ_OK;
    }
    return s;
}

static lq_status open_text(lm *l, const lm_source *o, lq_err *err)
{
    lq_status s = LQ_OK;
    lq_fail(&l->no_judge, LQ_ENOENT, "the model has no tokenizer");
    l->tok_lent = o->tok && o->tok->t;
    if (l->tok_lent)
        l->tok = *o->tok;
    else
        s = load_tok_open(&l->tok, l->model.src, o->path, err);
    if (s == LQ_ENOENT) service_say(o, "only token ids are served", err);
    if (s == LQ_ENOENT) return LQ_OK;
    if (s) return s;
    const chat_choice choice = { o->load.chat_template, o->load.tool_format };
    s = chat_open(&l->chat, l->model.src, l->tok.t, &choice, err);
    if (s == LQ_ENOMEM || (s && (choice.template || choice.tool_format))) return s;
    if (s) service_say(o, "no chat", err);
    const char *why = "";
    if (!s && chat_form_of(l->chat, true, &why)->args == FORM_NO_CALLS) {
        lq_fail(err, LQ_EUNSUPPORTED, "the chat template: %s", why);
        service_say(o, "no tools", err);
    }
    if (s) l->chat = NULL; /* completions do without */
    return open_rerank(l, o, err);
}

/* What scores are made of. */
static eng_pool score_pool(const arch_config *c)
{
    if (!c->row->scorer) return ENG_POOL_LAST;
    return c->label_mean ? ENG_POOL_MEAN : ENG_POOL_FIRST;
}

static void describe(lm *l)
{
    const eng_opts *eo = eng_options(l->e);
    eng_stats s;
    eng_stats_get(l->e, &s);
    l->info =
        (api_model){ .backend = { l, service_submit, cancel, stats, l->chat ? render : NULL,
                                  l->rerank ? judge : NULL,
                                  l->model.m.cfg->head == HEAD_LABELS ? score : NULL },
                     .labels = l->rerank ? rerank_labels(l->rerank) : NULL,
                     .no_judge = l->no_judge.msg,
                     .no_words = l->model.m.cfg->head != HEAD_WORDS,
                     .score_pool = score_pool(l->model.m.cfg),
                     .raw_scores = l->model.m.cfg->label_raw,
                     .label_names = l->labels,
                     .label_kind = l->label_kind,
                     .both_ways = l->model.m.cfg->w.both_ways,
                     .tok = l->tok.t,
                     .adapters = l->adapters,
                     .chat_text = l->chat ? chat_text(l->chat) : NULL,
                     .chat_tokens = l->chat ? chat_tokens(l->chat) : NULL,
                     .bos = (int32_t)l->model.m.cfg->bos,
                     .eos = l->model.m.cfg->n_eos ? (int32_t)l->model.m.cfg->eos[0] : -1,
                     .vocab = l->model.m.cfg->vocab,
                     .max_len = eo->max_len,
                     .hidden = l->model.m.cfg->hidden,
                     .width = l->sentence ? sentence_width(l->sentence) : l->model.m.cfg->hidden,
                     .sentence = l->sentence,
                     .max_seqs = eo->max_seqs,
                     .queue = eo->queue,
                     .block_size = eo->block_size,
                     .kv_blocks = s.kv_blocks,
                     .device = model_device(&l->model.m),
                     .quantization = scheme_of(l),
                     .fingerprint = l->fingerprint,
                     .defaults = l->gen,
                     .step_bytes = (double)l->model.m.weight_bytes / model_processes(&l->model.m),
                     .row_flops = model_row_flops(&l->model.m),
                     .logits_flops = model_logits_flops(&l->model.m) };
    const char *unused;
    if (l->chat) l->info.form = chat_form_of(l->chat, false, &unused);
    if (l->chat) l->info.tool_form = chat_form_of(l->chat, true, &l->info.no_calls);
    if (l->chat) l->info.reads = chat_reads(l->chat);
    if (l->chat) l->info.shown = chat_shown(l->chat, &l->info.n_shown);
    char where[48] = "";
    if (model_dev(&l->model.m))
        snprintf(where, sizeof where,
                 model_ranks(&l->model.m) > 1 ? " cuda %lld x %d" : " cuda %lld",
                 (long long)model_first_on(&l->model.m), model_ranks(&l->model.m));
    const arch_rope *rope = &l->model.m.cfg->rope[ROPE_MAIN];
    l->info.rope = rope->kind == ROPE_PLAIN ? NULL : arch_rope_text(rope->kind);
    l->info.rope_factor = rope->factor;
    l->info.rope_original = rope->original_max;
    char scaled[48] = ""; /* as --rope-scaling may have it; the file's own goes with its weights */
    if (rope->kind == ROPE_YARN || rope->kind == ROPE_LINEAR)
        snprintf(scaled, sizeof scaled, " %s %.9g", l->info.rope, rope->factor);
    snprintf(l->fingerprint, sizeof l->fingerprint, "%s %s %zu %d %s%s%s%s", LLMQ_VERSION,
             l->info.quantization ? l->info.quantization : "", l->model.m.weight_bytes,
             (int)eo->acts, kv_types_text(eo->kv), where, scaled, l->loras);
    l->has_info = true;
}

/* With what the engine will want beside the weights. */
static load_opts load_of(const lm_source *o)
{
    load_opts how = o->load;
    how.beside = eng_beside(&o->engine);
    return how;
}

typedef struct {
    lm *l;
    const lq_job *job; /* who else is told; NULL: nobody */
} watch;

static void on_progress(void *user, const char *what, double at, double total)
{
    const watch *w = user;
    if (total > 0) api_set_progress(w->l->a, at < total ? at / total : 1);
    lq_report(w->job, what, at, total);
}

/* Answers by their names change with them. */
static lq_status name_adapters(lm *l, lq_err *err)
{
    lq_hasher *h = lq_hasher_new();
    adapters_card *cards = malloc(ADAPTERS_MOST * sizeof *cards);
    const int n = h && cards ? adapters_list(l->adapters, cards) : 0;
    char hex[33];
    for (int i = 0; i < n; i++) {
        lq_hasher_add(h, cards[i].name, strlen(cards[i].name) + 1);
        lq_hasher_add(h, &cards[i].id, sizeof cards[i].id);
    }
    const bool ok = h && cards;
    if (h) {
        const lq_hash all = lq_hasher_end(h);
        lq_hash_hex(hex, &all);
        if (n) snprintf(l->loras, sizeof l->loras, " %s", hex);
    }
    free(cards);
    return ok ? LQ_OK : lq_fail(err, LQ_ENOMEM, "adapters: out of memory");
}

static lq_status open_adapters(lm *l, const lm_source *o, lq_err *err)
{
    for (int i = 0; i < o->adapters.n; i++) {
        char name[ADAPTERS_NAME + 1];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(o->adapters.named[i], "="),
                 o->adapters.named[i]);
        if (api_has_name(l->a, name))
            return lq_fail(err, LQ_EUSAGE, "--lora: '%s' is the model's own name", name);
    }
    lq_status s = adapters_open(&l->adapters, &l->model.m, &o->adapters, o->p, err);
    return s ? s : name_adapters(l, err);
}

lq_status lm_load(lm *l, const lm_source *o, lq_err *err)
{
    watch w = { l, o->job };
    const lq_job job = { .report = on_progress, .user = &w, .stop = o->job ? o->job->stop : NULL };
    const load_opts how = load_of(o);
    lq_status s = load_weights(&l->model, o->path, &how, o->p, &job, err);
    if (!s) api_set_progress(l->a, 1); /* the rest is quick */
    if (!s) s = load_gen(&l->gen, l->model.src, o->path, err);
    if (!s && l->model.m.cfg->head == HEAD_LABELS) {
        l->labels = src_labels(l->model.src, &l->label_kind);
        if (!l->labels) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    if (!s) s = sentence_open(&l->sentence, l->model.src, l->model.m.cfg->hidden, err);
    if (!s) s = open_text(l, o, err);
    if (!s) s = load_stops(&l->model, l->tok.t, err);
    eng_opts eo = o->engine;
    const load_guess guess = { .path = o->draft, .load = &how, .p = o->p, .job = o->job };
    if (!s && (o->draft || o->mtp))
        s = load_guess_open(&l->draft, &l->model, l->tok.t, &guess, err);
    eo.draft = load_guess_opened(&l->draft);
    if ((o->draft || o->mtp) && !eo.draft) eo.guesses = 0;
    if (!s && eo.disk.dir) s = src_fingerprint(&eo.disk.weights, l->model.src, err);
    if (!s && o->before_engine)
        s = o->before_engine(o->user, l->tok.t, l->model.m.cfg->vocab, &eo, err);
    if (!s && o->adapters.max_rank) s = open_adapters(l, o, err);
    if (!s) s = eng_open(&l->e, &l->model.m, l->tok.t, o->p, &eo, err);
    if (!s && o->before_ready) s = o->before_ready(o->user, err);
    if (s) return s;
    describe(l);
    api_set_model(l->a, &l->info);
    return LQ_OK;
}

void lm_close(lm *l)
{
    if (!l) return;
    if (l->a) api_drain(l->a);
    eng_close(l->e); /* what runs ends, and answers into the list */
    adapters_close(l->adapters);
    rerank_close(l->rerank);
    sentence_close(l->sentence);
    cJSON_Delete(l->labels);
    chat_close(l->chat);
    if (!l->tok_lent) load_tok_close(&l->tok);
    load_model_close(&l->draft);
    load_model_close(&l->model);
    api_close(l->a);
    for (lm_answer a; lm_poll(l, &a);)
        free(a.body);
    pthread_cond_destroy(&l->some);
    pthread_mutex_destroy(&l->mu);
    free(l);
}

/* ---- without HTTP ---- */

/* Any thread. */
static void service_keep(void *user, int status, const char *body, size_t n)
{
    done *d = user;
    lm *l = d->l;
    d->a.status = status;
    d->a.body = malloc(n + 1);
    if (d->a.body) {
        memcpy(d->a.body, body, n);
        d->a.body[n] = 0;
        d->a.n = n;
    }
    pthread_mutex_lock(&l->mu);
    *l->last = d;
    l->last = &d->next;
    pthread_cond_broadcast(&l->some);
    pthread_mutex_unlock(&l->mu);
}

lq_status lm_submit(lm *l, const char *route, const char *json, size_t n, uint64_t tag, lq_err *err)
{
    size_t n_routes;
    const http_route *routes = api_routes(false, &n_routes);
    done *d = calloc(1, sizeof *d);
    if (!d) return lq_fail(err, LQ_ENOMEM, "out of memory");
    d->l = l;
    d->a.tag = tag;
    lq_status s = http_local(routes, n_routes, l->a, NULL, route, json, n,
                             &(http_taker){ .done = service_keep, .user = d }, err);
    if (s) free(d);
    return s;
}

bool lm_step(lm *l, double seconds)
{
    const double until = lq_now() + seconds;
    int rc = 0;
    pthread_mutex_lock(&l->mu);
    while (!l->first && rc == 0)
        rc = os_cond_until(&l->some, &l->mu, until);
    bool any = l->first != NULL;
    pthread_mutex_unlock(&l->mu);
    return any;
}

/* With the lock held: out of the list; NULL: it is not there. */
static done *unlink_done(lm *l, uint64_t tag)
{
    for (done **at = &l->first; *at; at = &(*at)->next) {
        done *d = *at;
        if (tag != LM_ANY && d->a.tag != tag) continue;
        *at = d->next;
        if (l->last == &d->next) l->last = at;
        return d;
    }
    return NULL;
}

bool lm_take(lm *l, uint64_t tag, double seconds, lm_answer *a)
{
    const double until = lq_now() + seconds;
    done *d;
    int rc = 0;
    pthread_mutex_lock(&l->mu);
    while (!(d = unlink_done(l, tag)) && rc == 0 && seconds > 0)
        rc = os_cond_until(&l->some, &l->mu, until);
    pthread_mutex_unlock(&l->mu);
    const bool found = d != NULL;
    if (found) *a = d->a;
    free(d);
    machine_settle();
    return found;
}

bool lm_poll(lm *l, lm_answer *a) { return lm_take(l, LM_ANY, 0, a); }
