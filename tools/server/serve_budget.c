/* tools/server/serve_budget.c - see serve_budget.h. */
#include "tools/server/serve_budget.h"

#include "runtime/limits.h"
#include "runtime/load_guess.h"
#include "runtime/model/kv_window.h"
#include "runtime/model/part.h"
#include "runtime/model/rank.h"
#include "tools/cli/follow.h"
#include "tools/cli/footprint.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/resource.h>

__attribute__((format(printf, 5, 6))) static void add(budget *b, const char *name, const char *key,
                                                      size_t bytes, const char *note, ...)
{
    assert(b->n < BUDGET_ROWS);
    budget_row *r = &b->rows[b->n++];
    va_list ap;
    va_start(ap, note);
    vsnprintf(r->note, sizeof r->note, note, ap);
    va_end(ap);
    r->name = name;
    r->key = key;
    r->bytes = bytes;
    b->total += bytes;
}

/* ---- GPUs ---- */
static size_t planned_room(dev *d) { return d->memory; }
static const dev_ops planned_ops = { .name = "planned", .room = planned_room };

/* The devices as the engine would find them; NULL: none. */
static dev *planned(dev on[DEV_RANKS], const budget_gpu *g)
{
    if (!g->layers) return NULL;
    for (int r = 0; r < g->ranks; r++) {
        on[r] = (dev){ .ops = &planned_ops,
                       .memory = g->room - g->weights - g->draft - g->adapters,
                       .peer = r + 1 < g->ranks ? &on[r + 1] : NULL };
        snprintf(on[r].name, sizeof on[r].name, "%s", g->name);
    }
    return on;
}

static size_t block_there(const budget_gpu *g, const arch_config *c, int block_size, kv_types d)
{
    size_t n = 0;
    for (int64_t l = c->layers - g->layers; l < c->layers; l++)
        n += kv_layer_bytes_on(c, l, block_size, d, g->ranks);
    return n;
}

/* Of one sequence, on each device; and with what the host has of it. */
static size_t state_there(const budget_gpu *g, const arch_config *c)
{
    return g->ranks ? kv_state_bytes_on(c, c->layers - g->layers, g->ranks) : 0;
}

static size_t state_each(const budget_gpu *g, const arch_config *c)
{
    const size_t all = g->ranks ? kv_state_bytes_on(c, c->layers - g->layers, 1) : 0;
    return kv_state_bytes(c) - all + state_there(g, c);
}

/* What the cache and a step take there, of the draft too; of the cache the rest is the host's: *need, of which it was
 * all. */
static void divide(budget *b, eng_need *need, const arch_config *c, const kv_opts *kv)
{
    budget_gpu *g = &b->gpu;
    fwd_opts step = eng_step(&b->engine);
    step.ranks = g->ranks;
    g->kv = (size_t)kv->n_blocks * block_there(g, c, kv->block_size, b->engine.kv) +
            (size_t)kv->n_states * state_there(g, c);
    g->step = fwd_dev_bytes(c, kv, &step);
    if (b->engine.draft && g->draft_layers) {
        const arch_config *d = b->engine.draft->cfg;
        const budget_gpu one = { .layers = g->draft_layers, .ranks = 1 };
        const fwd_opts its = eng_draft_step(&b->engine);
        g->kv += (size_t)kv->n_blocks * block_there(&one, d, kv->block_size, b->engine.kv) +
                 (size_t)kv->n_states * state_there(&one, d);
        g->step += fwd_dev_bytes(d, kv, &its);
    }
    need->kv -= g->kv;
}

/* What is there of a draft or head, on the first device, which is opened once more for it: that takes `opened`. */
static lq_status hold_draft(budget_model *both, const foot_model *d, const model_sizes *z,
                            int64_t n, size_t opened, lq_err *err)
{
    foot_weights there;
    budget_gpu *g = &both->gpu;
    const lq_status s = foot_weigh_last(&there, d, NULL, n, 1, err);
    if (s) return s;
    const size_t gone = there.weights_bytes + (n == z->L ? z->embed : 0);
    g->draft = model_size_on(z, n);
    g->draft_layers = n;
    g->room -= opened;
    both->draft_weights -= gone < both->draft_weights ? gone : both->draft_weights;
    return LQ_OK;
}

/* All of a head goes where its model is. LQ_ENOMEM: with "auto" it has no room there. */
static lq_status place_head(budget_model *both, const foot_model *d, const model_sizes *z,
                            size_t opened, const load_opts *how, lq_err *err)
{
    const budget_gpu *g = &both->gpu;
    const arch_config *c = foot_config(d);
    const bool choice = strcmp(how->device, "auto") == 0;
    const size_t left = choice ? load_guess_left(both->cfg, g->layers, c, how) : 0,
                 own = model_size_on(z, z->L), before = g->weights + opened,
                 free_there = g->room > before ? g->room - before : 0;
    if (own > free_there)
        return lq_fail(err, LQ_ENOMEM, "%s: the weights need %zu bytes, found %zu free", g->name,
                       own, free_there);
    if (choice && free_there - own < left)
        return lq_fail(err, LQ_ENOMEM, "%s: caches and steps need %zu bytes, found %zu free",
                       g->name, left, free_there - own);
    return hold_draft(both, d, z, z->L, opened, err);
}

/* A smaller model goes there as load_guess_open has it: all of it; beside a model that shares the GPU with the CPU as
 * many layers as there is room for, or none; with "auto" all or none. */
static lq_status place_draft(budget_model *both, const foot_model *d, const model_sizes *z,
                             size_t opened, const load_opts *on, const char *path, lq_err *err)
{
    const arch_config *c = foot_config(d);
    const budget_gpu *g = &both->gpu;
    const size_t before = g->weights + opened;
    load_opts how = *on;
    char text[sizeof err->msg + 64];
    lq_err why = { "" };
    int64_t n = 0;
    const bool any = strcmp(on->device, "auto") == 0, shared = on->gpu_layers != MODEL_ALL_LAYERS;
    if (any || shared) {
        const model_share left = load_share(both->cfg, on);
        how.beside.also = left.more + (size_t)g->layers * left.more_layer;
    }
    if (shared) how.gpu_layers = MODEL_AUTO_LAYERS;
    how.ranks = 0;
    model_share share = load_share(c, &how);
    share.spare |= any;
    lq_status s = model_check_device(c, &why);
    if (!s)
        s = model_choose_layers(&n, z, &share, g->name, 1, g->room > before ? g->room - before : 0,
                                &why);
    if (!s) return hold_draft(both, d, z, n, opened, err);
    if (!load_guess_elsewhere(s, on)) {
        *err = why;
        return s;
    }
    lq_wrap(&why, s, "--device");
    snprintf(text, sizeof text, "the draft runs on the CPU: %s", why.msg);
    if (on->note) on->note(path, text);
    return LQ_OK;
}

static lq_status place_guess(budget_model *both, const foot_model *d, size_t opened,
                             const load_opts *how, bool half, const char *path, lq_err *err)
{
    const arch_config *c = foot_config(d);
    const budget_gpu *g = &both->gpu;
    model_sizes z;
    if (c->mtp && (g->ranks > 1 || g->layers < both->cfg->layers))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "not on %s yet: an %s of a model that is not all on one device", g->name,
                       load_guess_what(c));
    size_t *layer = malloc((size_t)(c->layers + 1) * sizeof *layer);
    lq_status s = layer ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
    if (!s && c->mtp) s = model_check_device(c, err);
    if (!s) s = foot_sizes(&z, layer, d, NULL, 1, half, err);
    if (!s)
        s = c->mtp ? place_head(both, d, &z, opened, how, err)
                   : place_draft(both, d, &z, opened, how, path, err);
    free(layer);
    return s;
}

/* The layers that go to the devices, and what they leave to the host. opened: as of hold_draft; path: the draft's. */
static lq_status place(budget_model *both, const foot_model *m, const foot_model *draft,
                       size_t opened, const char *path, const eng_opts *asked, const load_opts *on,
                       lq_err *err)
{
    const arch_config *c = foot_config(m);
    budget_gpu *g = &both->gpu;
    load_opts how = *on;
    model_sizes z;
    foot_weights there;
    lq_status s = model_check_device(c, err);
    if (!s && g->ranks > 1) s = rank_check(c, g->ranks, err);
    if (s) return s;
    size_t *layer = malloc((size_t)(c->layers + 1) * sizeof *layer);
    if (!layer) return lq_fail(err, LQ_ENOMEM, "out of memory");
    how.beside = eng_beside(asked);
    model_share share = load_share(c, &how);
    share.spare = strcmp(on->device, "auto") == 0;
    s = foot_sizes(&z, layer, m, NULL, g->ranks, share.half, err);
    if (!s) s = model_choose_layers(&g->layers, &z, &share, g->name, g->ranks, g->room, err);
    if (!s) s = foot_weigh_last(&there, m, NULL, g->layers, 1, err);
    if (!s) {
        const size_t gone = there.weights_bytes + (g->layers == z.L ? z.embed : 0);
        g->weights = model_size_on(&z, g->layers);
        both->weights -= gone < both->weights ? gone : both->weights;
    }
    free(layer);
    if (s || !draft) return s;
    s = place_guess(both, draft, opened, &how, share.half, path, err);
    if (!s || !foot_config(draft)->mtp || !load_guess_spared(s, foot_config(draft), on, err))
        return s;
    both->draft = NULL;
    return LQ_OK;
}

/* cuBLAS has its part where it is used. rows: as foot_in_rows. */
static lq_status begin_blas(dev *d, bool rows, const load_opts *on, lq_err *err)
{
    const bool wanted = (rows || d->wide) && !on->batch_invariant;
    return wanted && !d->ops->blas(d) ? d->ops->sync(d, err) : LQ_OK;
}

/* A draft opens the first device once more. */
static lq_status look_beside(size_t *opened, dev *first, const foot_model *draft,
                             const load_opts *on, lq_err *err)
{
    dev d;
    bool rows;
    const size_t before = first->ops->room(first);
    lq_status s = foot_in_rows(&rows, draft, err);
    if (!s) s = first->ops->open(&d, first->index, err);
    if (s) return s;
    s = begin_blas(&d, rows, on, err);
    const size_t after = first->ops->room(first); /* others may have given some back */
    *opened = before > after ? before - after : 0;
    d.ops->close(&d);
    return s;
}

/* What each of them has free, once cuBLAS has its part where it is used, and exchanges theirs. draft: what guesses, or
 * NULL; *opened: as of hold_draft. */
static lq_status look(budget_gpu *g, size_t *opened, const foot_model *m, const foot_model *draft,
                      const load_opts *on, lq_err *err)
{
    dev d[DEV_RANKS];
    bool rows;
    const bool any = strcmp(on->device, "auto") == 0;
    const int ranks = on->ranks > 1 ? on->ranks : 1;
    lq_status s = foot_in_rows(&rows, m, err);
    for (g->ranks = 0; g->ranks < ranks && !s; g->ranks++) {
        dev *at = &d[g->ranks];
        s = g->ranks ? d->ops->open(at, d[g->ranks - 1].index + 1, err)
                     : dev_open(at, any ? "cuda" : on->device, err);
        if (s) break;
        s = begin_blas(at, rows, on, err);
        if (g->ranks) d[g->ranks - 1].peer = at;
    }
    dev_link *l = NULL;
    if (!s && g->ranks > 1) s = d->ops->link(&l, d, err);
    if (!s) g->room = dev_room(d);
    if (!s && draft) s = look_beside(opened, d, draft, on, err);
    if (l) d->ops->unlink(l);
    if (g->ranks) snprintf(g->name, sizeof g->name, "%s", d->name);
    for (int r = g->ranks; r-- > 0;)
        d[r].ops->close(&d[r]);
    return s;
}

/* ---- the sum ---- */
/* What processes that share the model exchange in a step. */
static size_t exchanged(const budget_model *m, const eng_opts *o)
{
    const fwd_opts step = eng_step(o);
    return m->part ? fwd_parts_bytes(m->part->whole, &step) : 0;
}

/* The engine's options, decided with the memory that weights and a step leave. */
static lq_status decide(budget *b, const budget_model *m, const eng_opts *want, int threads,
                        eng_need *need, lq_err *err)
{
    const arch_config *c = m->cfg;
    eng_opts o = *want;
    eng_defaults(&o);
    kv_opts kv = { .n_blocks = 1, .block_size = o.block_size };
    const size_t weights = b->total;        /* and adapters */
    eng_need_of(need, c, &o, &kv, threads); /* the step's alone counts yet */
    need->step += exchanged(m, &o);
    b->memory = m->memory;
    if (b->memory && b->memory <= weights + need->step)
        return lq_fail(err, LQ_EVALUE,
                       "the model does not fit: weights need %zu bytes and a step %zu, found %zu "
                       "free",
                       weights, need->step, b->memory);
    o.room = b->memory ? b->memory - weights - need->step : 0;
    dev on[DEV_RANKS], *gpu = planned(on, &b->gpu);
    lq_status s = eng_size(&b->engine, &kv, c, &o, gpu, c->layers - b->gpu.layers, err);
    if (s) return s;
    eng_need_of(need, c, &b->engine, &kv, threads);
    if (b->ranks > 1) need->disk *= (size_t)b->ranks; /* rank 0 has all parts of a block there */
    need->step += exchanged(m, &b->engine);
    if (gpu) divide(b, need, c, &kv);
    b->kv_blocks = kv.n_blocks;
    b->kv_token_bytes = kv_token_bytes(c, o.kv);
    if (o.draft) b->kv_token_bytes += kv_token_bytes(o.draft->cfg, o.kv);
    b->states = kv.n_states;
    b->windows = kv.n_windows;
    b->window_bytes = kv_window_bytes(c, kv.block_size, o.kv);
    const size_t beside =
        (size_t)b->states * state_each(&b->gpu, c) + (size_t)b->windows * b->window_bytes;
    const size_t block = (b->engine.kv_bytes - beside) / (size_t)kv.n_blocks;
    size_t whole = o.kv_bytes ? o.kv_bytes : o.room;
    whole -= whole < beside ? whole : beside;
    int64_t fits = (int64_t)(whole / block) * kv.block_size;
    const size_t there = gpu ? block_there(&b->gpu, c, kv.block_size, o.kv) : 0,
                 states = (size_t)kv.n_states * state_there(&b->gpu, c);
    if (there && !o.kv_bytes)
        fits = (int64_t)((on->memory - b->gpu.step - states) / there) * kv.block_size;
    b->model_len = c->max_pos > 0 ? c->max_pos : 0;
    b->longest = !whole || (b->model_len && b->model_len < fits) ? b->model_len : fits;
    return LQ_OK;
}

static void add_engine(budget *b, const eng_need *n)
{
    const eng_opts *o = &b->engine;
    const int64_t tokens = b->kv_blocks * o->block_size;
    char states[64] = "";
    if (b->states) snprintf(states, sizeof states, "; %lld states", (long long)b->states);
    if (b->windows)
        snprintf(states + strlen(states), sizeof states - strlen(states), "; %lld slots of windows",
                 (long long)b->windows);
    add(b, "KV cache", "kv_bytes", n->kv, "%lld blocks of %d tokens: %.1f sequences of %lld%s",
        (long long)b->kv_blocks, o->block_size, (double)tokens / (double)o->max_len,
        (long long)o->max_len, states);
    if (n->disk)
        add(b, "queues of the disk", "kv_disk_bytes", n->disk, "of --kv-cache-dir: read, written");
    add(b, "a step", "step_bytes", n->step, "of %lld tokens", (long long)o->max_batch_tokens);
    b->held = b->total;
    b->n_held = b->n;
    add(b, "sequences that run", "running_bytes", n->running, "%lld of them",
        (long long)o->max_seqs);
    add(b, "requests in the engine", "waiting_bytes", n->waiting, "%lld that run or wait",
        (long long)(o->max_seqs + o->queue));
}

/* What does not grow with requests, but is no option's: the program and the tables of its tokenizer
 * and of the model's tensors by allowance, stacks as the system bounds them. */
static void add_program(budget *b, int64_t vocab, int threads)
{
    enum { PROGRAM = 64 << 20, TOKEN = 1024, OTHER_THREADS = 8 };
    struct rlimit stack;
    const bool known = getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur != RLIM_INFINITY;
    const int all = threads + OTHER_THREADS;
    add(b, "stacks", "stacks_bytes", (size_t)all * (known ? stack.rlim_cur : 8u << 20),
        "of %d threads", all);
    add(b, "program, tokenizer", "program_bytes", PROGRAM + (size_t)vocab * TOKEN, "an allowance");
}

/* A template is rendered, or a grammar compiled, by each thread that serves connections. */
static void add_texts(budget *b, int64_t vocab, int http_threads)
{
    const size_t n = (size_t)http_threads, running = (size_t)b->engine.max_seqs;
    enum { PART = 1 << 20, OF_TOKEN = 128 }; /* not counted yet: of each that runs; the trie's */
    const size_t compiling = GR_MAX_TREE_BYTES + (size_t)2 * GR_MAX_CLOSURES * sizeof(uint32_t);
    add(b, "chat templates", "templates_bytes",
        n * ((size_t)TP_MAX_BYTES + TP_MAX_OUTPUT) + TP_MAX_TREE_BYTES, "%d rendered at once",
        http_threads);
    add(b, "grammars", "grammars_bytes",
        GR_MAX_ALL_BYTES + n * compiling + running * PART + (size_t)vocab * OF_TOKEN,
        "%d compiled at once", http_threads);
}

static void add_http(budget *b, const http_opts *o)
{
    http_need n;
    http_need_of(&n, o, b->engine.max_seqs + b->engine.queue);
    add(b, "connections", "connections_bytes", n.connections, "%d of them", o->max_connections);
    add(b, "bodies, JSON, answers", "bodies_bytes", n.bodies, "of all together");
    add(b, "streams not yet read", "streams_bytes", n.streams, "of %lld requests that run or wait",
        (long long)(b->engine.max_seqs + b->engine.queue));
}

void budget_add_stores(budget *b, int64_t responses, size_t files)
{
    enum { OF_BATCH = 32 << 10 }; /* its metadata, and what is wrong with its lines */
    add(b, "kept responses", "responses_bytes", responses > 0 ? API_STORE_BYTES : 0, "%lld of them",
        (long long)responses);
    add(b, "kept files", "files_bytes", files ? files + (size_t)API_MAX_BATCHES * OF_BATCH : 0,
        "and at most %d batches", API_MAX_BATCHES);
}

lq_status budget_sum(budget *b, const budget_model *m, const eng_opts *asked, const http_opts *http,
                     int threads, lq_err *err)
{
    model_on there = { .first = m->draft ? m->draft->layers - m->gpu.draft_layers : 0 };
    const model of_draft = { .on = m->gpu.draft_layers ? &there : NULL, .cfg = m->draft };
    eng_opts want = *asked;
    eng_need need;
    *b = (budget){ .gpu = m->gpu, .ranks = m->part ? m->part->ranks : 1 };
    if (m->draft) want.draft = &of_draft;
    char each[48] = "";
    if (b->ranks > 1) snprintf(each, sizeof each, ", the part of each of %d ranks", b->ranks);
    add(b, "weights", "weights_bytes", m->weights, "%s%s", m->format, each);
    if (m->draft)
        add(b, "weights of the draft", "draft_weights_bytes", m->draft_weights, "%s",
            m->draft_format);
    if (b->gpu.layers)
        b->gpu.adapters = asked->lora_bytes;
    else if (asked->lora_bytes) /* rank 0 has its part, and all for the others */
        add(b, "adapters", "adapters_bytes", asked->lora_bytes * (b->ranks > 1 ? 2 : 1),
            "of --lora, by their files");
    lq_status s = decide(b, m, &want, threads, &need, err);
    b->engine.draft = NULL;
    if (s) return s;
    add_engine(b, &need);
    add_http(b, http);
    add_texts(b, m->cfg->vocab, http->threads);
    add_program(b, m->cfg->vocab, threads);
    return LQ_OK;
}

lq_status budget_make(budget *b, const char *path, const char *draft, bool mtp,
                      const eng_opts *asked, const http_opts *http, const load_opts *on,
                      bool verify, const char *rope, int threads, lq_err *err)
{
    foot_model m, d = { 0 };
    foot_weights w = { 0 }, dw = { 0 };
    model_part part;
    lq_arena sizes = { 0 }; /* part's */
    const bool guesses = draft || mtp;
    const int ranks = on ? comm_size(on->processes) : 1;
    lq_status s = foot_open(&m, path, false, verify, rope, err);
    if (!s && ranks > 1) s = part_check(foot_config(&m), ranks, err);
    if (!s && ranks > 1) {
        s = part_init(&part, foot_config(&m), ranks - 1, ranks, &sizes, err);
        m.part = &part;
    }
    if (!s) s = foot_weigh(&w, &m, NULL, err);
    if (!s && draft) s = foot_open(&d, draft, true, verify, NULL, err);
    if (!s && mtp) s = foot_head(&d, &m, err);
    if (!s && guesses) s = foot_weigh(&dw, &d, NULL, err);
    if (!s) {
        budget_model both = { .cfg = m.part ? &part.own : foot_config(&m),
                              .part = m.part,
                              .draft = guesses ? foot_config(&d) : NULL,
                              .weights = w.weights_bytes,
                              .draft_weights = dw.weights_bytes,
                              .format = foot_format(&m),
                              .draft_format = foot_format(&d),
                              .memory = follow_memory() };
        const bool elsewhere = on && ranks == 1;
        const foot_model *guess = guesses ? &d : NULL;
        size_t opened = 0;
        if (elsewhere) s = look(&both.gpu, &opened, &m, guess, on, err);
        if (elsewhere && !s) s = place(&both, &m, guess, opened, draft, asked, on, err);
        if (s) lq_wrap(err, s, "--device");
        eng_opts wanted = *asked;
        if (guesses && !both.draft) wanted.guesses = 0;
        if (!s) s = budget_sum(b, &both, &wanted, http, threads, err);
    }
    foot_close(&d);
    foot_close(&m);
    lq_arena_free(&sizes);
    return s;
}

static void print_gpu(const budget_gpu *g)
{
    char size[16], note[160], each[32] = "", its[32];
    const struct {
        const char *name;
        size_t bytes;
    } rows[] = { { "GPU: weights", g->weights },
                 { "GPU: weights of a draft", g->draft },
                 { "GPU: adapters", g->adapters },
                 { "GPU: KV cache", g->kv },
                 { "GPU: a step", g->step },
                 { "GPU: in all", g->weights + g->draft + g->adapters + g->kv + g->step },
                 { "GPU: free", g->room } };
    if (g->ranks > 1) snprintf(each, sizeof each, ", a part on each of %d", g->ranks);
    snprintf(note, sizeof note, "%lld layers on %s%s", (long long)g->layers, g->name, each);
    snprintf(its, sizeof its, "%lld layers", (long long)g->draft_layers);
    for (size_t i = 0; i < LQ_COUNT(rows); i++)
        if (i != 1 || g->draft)
            printf("%-24s %12s  %s\n", rows[i].name,
                   opt_size_text(size, sizeof size, (double)rows[i].bytes),
                   i == 0   ? note
                   : i == 1 ? its
                            : "");
}

static void add_gpu(cJSON *o, const budget_gpu *g)
{
    cJSON_AddStringToObject(o, "gpu", g->name);
    cJSON_AddNumberToObject(o, "gpus", g->ranks);
    cJSON_AddNumberToObject(o, "gpu_layers", (double)g->layers);
    cJSON_AddNumberToObject(o, "gpu_weights_bytes", (double)g->weights);
    if (g->draft) cJSON_AddNumberToObject(o, "gpu_draft_bytes", (double)g->draft);
    if (g->draft) cJSON_AddNumberToObject(o, "gpu_draft_layers", (double)g->draft_layers);
    cJSON_AddNumberToObject(o, "gpu_adapters_bytes", (double)g->adapters);
    cJSON_AddNumberToObject(o, "gpu_kv_bytes", (double)g->kv);
    cJSON_AddNumberToObject(o, "gpu_step_bytes", (double)g->step);
    cJSON_AddNumberToObject(o, "gpu_memory_bytes", (double)g->room);
}

void budget_print(const budget *b)
{
    char size[16];
    for (int i = 0; i < b->n; i++)
        printf("%-24s %12s  %s\n", b->rows[i].name,
               opt_size_text(size, sizeof size, (double)b->rows[i].bytes), b->rows[i].note);
    printf("%-24s %12s\n", "at most in all", opt_size_text(size, sizeof size, (double)b->total));
    if (b->memory)
        printf("%-24s %12s\n", "free here", opt_size_text(size, sizeof size, (double)b->memory));
    if (b->gpu.layers) print_gpu(&b->gpu);
    printf("%-24s %12lld  tokens; the model's is %lld, the longest that fits %lld\n", "context",
           (long long)b->engine.max_len, (long long)b->model_len, (long long)b->longest);
}

cJSON *budget_json(const budget *b)
{
    cJSON *o = cJSON_CreateObject();
    for (int i = 0; i < b->n; i++)
        cJSON_AddNumberToObject(o, b->rows[i].key, (double)b->rows[i].bytes);
    cJSON_AddNumberToObject(o, "total_bytes", (double)b->total);
    cJSON_AddNumberToObject(o, "held_bytes", (double)b->held);
    cJSON_AddNumberToObject(o, "memory_bytes", (double)b->memory);
    cJSON_AddNumberToObject(o, "max_len", (double)b->engine.max_len);
    cJSON_AddNumberToObject(o, "model_max_len", (double)b->model_len);
    cJSON_AddNumberToObject(o, "longest_len", (double)b->longest);
    cJSON_AddNumberToObject(o, "kv_blocks", (double)b->kv_blocks);
    cJSON_AddNumberToObject(o, "block_size", b->engine.block_size);
    cJSON_AddNumberToObject(o, "kv_bytes_per_token", (double)b->kv_token_bytes);
    if (b->gpu.layers) add_gpu(o, &b->gpu);
    if (b->ranks > 1) cJSON_AddNumberToObject(o, "ranks", b->ranks);
    if (b->windows) {
        cJSON_AddNumberToObject(o, "window_slots", (double)b->windows);
        cJSON_AddNumberToObject(o, "window_slot_bytes", (double)b->window_bytes);
    }
    cJSON_AddNumberToObject(o, "sequences_at_max_len",
                            (double)(b->kv_blocks * b->engine.block_size) /
                                (double)b->engine.max_len);
    return o;
}
