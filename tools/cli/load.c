/* tools/cli/load.c - see load.h. */
#include "tools/cli/load.h"

#include "base/clock.h"
#include "publish/hub/cache.h"
#include "runtime/engine/sentence.h"
#include "runtime/forward/follow.h"
#include "tools/cli/follow.h"

#include <strings.h>

/* --pin. */
static lq_status pin(pool *p, const opt_model *o, lq_err *err)
{
    cpu_places where;
    places_here(&where, o->numa == NUMA_INTERLEAVE);
    lq_status s = pool_pin(p, &where, err);
    if (s) return lq_wrap(err, s, "--pin");
    prog_say(LOG_INFO, "--pin: threads %d, of CPUs %d, cores %d, nodes %d", pool_threads(p),
             where.n, where.cores, where.nodes);
    return LQ_OK;
}

lq_status load_start(pool **p, const cmd_ctx *c, const opt_model *o, lq_err *err)
{
    *p = NULL;
    lq_status s = opt_model_start(o, err);
    if (s) return s;
    opt_note_device(o);
    if (o->numa == NUMA_INTERLEAVE) s = places_interleave(err);
    if (s) return lq_wrap(err, s, "--numa");
    s = pool_open(p, follow_threads(c), err);
    return s || !o->pin ? s : pin(*p, o, err);
}

const char *load_named(const cmd_ctx *c, const char *path)
{
    return c->packed && strcmp(path, c->packed) == 0 ? c->named : path;
}

const char *load_name(char *buf, size_t n, const char *path)
{
    if (hub_cache_name(buf, n, path)) return buf;
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t from = end;
    while (from > 0 && path[from - 1] != '/')
        from--;
    if (end - from > 5 && strncasecmp(path + end - 5, ".llmq", 5) == 0) end -= 5;
    snprintf(buf, n, "%.*s", (int)(end - from), path + from);
    return buf;
}

static void note(const char *what, const char *text) { prog_say(LOG_INFO, "%s: %s", what, text); }

void load_say_notes(const char *path, const src_source *src)
{
    for (size_t i = 0; i < src_n_notes(src); i++)
        note(path, src_note_at(src, i));
    lq_err why;
    if (src_config(src) && sentence_check(src, src_config(src)->hidden, &why))
        prog_say(LOG_WARN, "%s: `serve` will refuse it: %s", path, why.msg);
}

load_opts load_opts_of(const cmd_ctx *c, const opt_model *o)
{
    return (load_opts){ .verify = opt_given(c, "verify"),
                        .device = opt_device(o),
                        .gpu_layers = opt_gpu_layers(o),
                        .ranks = (int)o->ranks,
                        .processes = follow_ranks(),
                        .eager = o->eager,
                        .batch_invariant = o->batch_invariant,
                        .int8 = opt_int8(o),
                        .beside = { .kv = opt_kv(o) },
                        .rope = o->rope,
                        .tokenizer = o->tokenizer,
                        .chat_template = o->chat_template,
                        .tool_format = o->tool_format,
                        .rerank_template = o->rerank_template,
                        .rerank_labels = o->rerank_labels,
                        .note = note };
}

lq_status load_model_open(load_model *l, const char *path, const load_opts *how, pool *p,
                          const cmd_ctx *c, lq_err *err)
{
    double start = lq_now();
    lq_status s = load_weights(l, path, how, p, c->job, err);
    if (s) return s;
    s = model_check_words(l->m.cfg, err);
    if (s) {
        load_model_close(l);
        return lq_wrap(err, s, "%s", path);
    }
    char size[16];
    prog_say(LOG_DEBUG, "%s: %s of weights in %.2f s", path,
             opt_size_text(size, sizeof size, (double)l->m.weight_bytes), lq_now() - start);
    return LQ_OK;
}

lq_status load_service(lm **l, pool **p, const cmd_ctx *c, const load_service_opts *o, lq_err *err)
{
    char name[128];
    const char *one[1] = { load_name(name, sizeof name, load_named(c, o->path)) };
    const opt_list *names = o->names;
    const bool named = names && names->n;
    const api_opts ao = { .names = named ? names->v : one,
                          .n_names = named ? names->n : 1,
                          .version = "",
                          .priorities = true };
    eng_opts eo;
    *l = NULL;
    *p = NULL;
    lq_status s = opt_engine_of(&eo, o->engine, o->model, err);
    if (s) return s;
    eo.queue = o->queue;
    if (follow_ranks()) eo.room = follow_memory();
    s = lm_open(l, &ao, err);
    if (!s) s = load_start(p, c, o->model, err);
    const lm_source src = { .path = o->path,
                            .load = load_opts_of(c, o->model),
                            .p = *p,
                            .draft = o->engine->draft,
                            .mtp = opt_engine_mtp(o->engine),
                            .adapters = opt_adapters(o->engine, NULL),
                            .engine = eo,
                            .job = c->job };
    if (!s) s = lm_load(*l, &src, err);
    prog_end();
    return s;
}

lq_status load_follow(const cmd_ctx *c, const opt_model *o, const char *path, lq_err *err)
{
    load_model l = { 0 };
    pool *p = NULL;
    lq_status s = load_start(&p, c, o, err);
    const load_opts how = load_opts_of(c, o);
    if (!s) s = load_weights(&l, path, &how, p, NULL, err);
    if (!s) s = fwd_follow(&l.m, p, err);
    load_model_close(&l);
    pool_close(p);
    return s;
}

lq_status load_ranks(bool *over, const cmd_ctx *c, const opt_model *o, const char *path,
                     lq_err *err)
{
    const lq_status s = follow_start(over, c, o, err);
    return *over ? load_follow(c, o, path, err) : s;
}
