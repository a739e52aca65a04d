/* runtime/load.c - see load.h. */
#include "runtime/load.h"

#include "base/json.h"
#include "runtime/forward/follow.h"
#include "runtime/limits.h"
#include "runtime/model/kv_state.h"
#include "runtime/model/part.h"
#include "runtime/tokenizer/tok_files.h"

#include <stdio.h>
#include <stdlib.h>

/* Of so many bytes in all layers. */
static size_t cache_blocks(const load_beside *b, size_t block)
{
    const size_t one = (size_t)lq_ceil_div(b->tokens, b->block_size);
    if (!b->cache_bytes || !block) return one; /* no layer has K and V */
    const size_t most = one * (size_t)b->step.max_seqs, n = b->cache_bytes / block;
    return n < most ? n : most;
}

/* Of a layer, states for some of the sequences: an engine takes as many as there is room for. */
static size_t some_states(const arch_config *c, const load_beside *b)
{
    const int64_t n = b->step.max_seqs / 4;
    size_t most = 0;
    for (int64_t l = 0; l < c->layers; l++) {
        const size_t one = (size_t)kv_state_floats(c, l) * sizeof(float);
        most = one > most ? one : most;
    }
    return most * (size_t)(n > 2 ? n : 2);
}

model_share load_share(const arch_config *c, const load_opts *o)
{
    enum { ROWS = 512, SEQS = 64, TOKENS = 4096, BLOCK = 16 };
    load_beside b = o->beside;
    arch_config own = *c; /* of each device */
    if (o->size) o->size(&b, c, o->user);
    if (o->ranks) own.kv_heads /= o->ranks;
    const int64_t usual = c->max_pos > 0 && c->max_pos < TOKENS ? c->max_pos : TOKENS;
    if (!b.tokens || (!b.exact && b.tokens > usual)) b.tokens = usual;
    if (!b.block_size) b.block_size = BLOCK;
    if (!b.step.max_rows) b.step.max_rows = ROWS;
    if (!b.step.max_seqs) b.step.max_seqs = SEQS;
    if (!b.step.max_logits) b.step.max_logits = SEQS;
    if (!b.step.max_len) b.step.max_len = b.tokens + SPEC_MAX + 1;
    b.step.ranks = o->ranks;
    const kv_opts kv = { .dtype = b.kv, .block_size = b.block_size };
    const size_t block = kv_most_bytes(&own, b.block_size, b.kv);
    const size_t layer = cache_blocks(&b, block * (size_t)c->layers) * block + some_states(c, &b);
    return (model_share){ .layers = o->gpu_layers,
                          .more = fwd_dev_bytes(c, &kv, &b.step) + b.also,
                          .more_layer = b.exact ? layer : layer / 3 * 4,
                          .spare = b.whole,
                          .ranks = o->ranks,
                          .eager = o->eager,
                          .batch_invariant = o->batch_invariant,
                          .int8 = o->int8,
                          .half = b.step.acts != MM_F32,
                          .note = o->note };
}

size_t load_left(const model *m, const load_opts *o)
{
    if (!model_dev(m)) return 0;
    const model_share s = load_share(m->cfg, o);
    return s.more + (size_t)(m->cfg->layers - model_first_on(m)) * s.more_layer;
}

lq_status load_device(model *m, const load_opts *o, lq_err *err)
{
    lq_err why = { "" };
    char text[sizeof why.msg + 16];
    if (!o->device || strcmp(o->device, "cpu") == 0) return LQ_OK;
    model_share share = load_share(m->cfg, o);
    if (strcmp(o->device, "auto") != 0) {
        lq_status s = model_to_device(m, o->device, &share, err);
        if (s) return lq_wrap(err, s, "--device");
        if (o->note && (o->gpu_layers != MODEL_ALL_LAYERS || o->ranks > 1))
            o->note("device", model_device(m));
        return LQ_OK;
    }
    if (dev_count(&why) == 0) return LQ_OK; /* nothing to choose from */
    share.spare = true;                     /* no engine finds later that it has no room there */
    if (model_to_device(m, "cuda", &share, &why))
        snprintf(text, sizeof text, "cpu (%s)", why.msg);
    else
        snprintf(text, sizeof text, "%s", model_device(m));
    if (o->note) o->note("device", text);
    return LQ_OK;
}

static lq_status load_own(load_model *l, const char *path, const load_opts *o, pool *p,
                          const lq_job *job, lq_err *err)
{
    const src_opts open = { .need_config = true,
                            .verify = o->verify,
                            .tokenizer = o->tokenizer,
                            .rope = o->rope,
                            .uint_blocks =
                                o->device && strcmp(o->device, "cpu") != 0 && dev_count(NULL) > 0 };
    lq_status s = src_open(&l->src, path, &open, err);
    if (s) return s; /* names the file */
    for (size_t i = 0; o->note && i < src_n_notes(l->src); i++)
        o->note(path, src_note_at(l->src, i));
    s = model_load_part(&l->m, l->src, o->processes, p, job, err);
    return s ? s : load_device(&l->m, o, err);
}

lq_status load_weights(load_model *l, const char *path, const load_opts *o, pool *p,
                       const lq_job *job, lq_err *err)
{
    memset(l, 0, sizeof *l);
    lq_status s = load_own(l, path, o, p, job, err);
    if (comm_size(o->processes) > 1) {
        s = part_agree(&l->m, o->processes, s, err);
        l->leads = !s && comm_rank(o->processes) == 0;
    }
    if (s) load_model_close(l); /* the error names the file */
    return s;
}

void load_model_close(load_model *l)
{
    if (l->leads) fwd_dismiss(&l->m);
    model_free(&l->m);
    src_close(l->src);
    memset(l, 0, sizeof *l);
}

lq_status load_tok_open(load_tok *l, const src_source *src, const char *path, lq_err *err)
{
    memset(l, 0, sizeof *l);
    const src_blob *b = src_find_blob(src, "tokenizer.blob");
    if (b && tok_blob_current(b->data, b->bytes))
        return lq_wrap(err, tok_open(&l->t, b->data, b->bytes, err), "%s", path);
    size_t n;
    lq_status s = tok_compile_source(&l->blob, &n, src, err);
    if (!s) s = tok_open(&l->t, l->blob, n, err);
    if (!s) return LQ_OK;
    load_tok_close(l);
    return lq_wrap(err, s, "%s", path);
}

void load_tok_close(load_tok *l)
{
    tok_close(l->t);
    free(l->blob);
    memset(l, 0, sizeof *l);
}

lq_status load_stops(load_model *l, const tok_tokenizer *t, lq_err *err)
{
    enum { MAX_FILE = 64 << 20 };
    const src_blob *b = src_find_blob(l->src, "tokenizer_config.json");
    cJSON *doc = NULL;
    if (!b || !t) return LQ_OK;
    lq_status s = js_parse(&doc, (const char *)b->data, b->bytes, MAX_FILE, 0, err);
    if (s) return lq_wrap(err, s, "tokenizer_config.json");
    const cJSON *eos = js_get(doc, "eos_token"), *content = js_get(eos, "content");
    const char *text = cJSON_GetStringValue(content ? content : eos);
    int32_t id = text ? tok_find(t, text, strlen(text)) : -1;
    cJSON_Delete(doc);
    l->cfg = *l->m.cfg;
    bool known = id < 0 || id >= l->cfg.vocab;
    for (int i = 0; i < l->cfg.n_eos && !known; i++)
        known = l->cfg.eos[i] == id;
    if (known) return LQ_OK;
    if (l->cfg.n_eos == (int)LQ_COUNT(l->cfg.eos))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "eos_token: expected at most %zu ids that end an answer",
                       LQ_COUNT(l->cfg.eos));
    l->cfg.eos[l->cfg.n_eos++] = id;
    l->m.cfg = &l->cfg;
    return LQ_OK;
}

lq_status load_gen(gen_defaults *g, const src_source *src, const char *path, lq_err *err)
{
    const src_blob *b = src_find_blob(src, "generation_config.json");
    lq_status s = gen_read(g, b ? b->data : NULL, b ? b->bytes : 0, err);
    return s ? lq_wrap(err, s, "%s: generation_config.json", path) : LQ_OK;
}
