/* runtime/load_guess.c - see load_guess.h. */
#include "runtime/load_guess.h"

#include "base/json.h"
#include "runtime/engine/mtp.h"

#include <stdio.h>

/* Ids must mean the same to both. */
static lq_status check_tokens(const tok_tokenizer *ours, const tok_tokenizer *theirs, lq_err *err)
{
    int32_t n = tok_vocab(ours);
    if (tok_vocab(theirs) != n)
        return lq_fail(err, LQ_EVALUE, "expected the model's %d tokens, found %d", n,
                       tok_vocab(theirs));
    for (int32_t i = 0; i < n; i++) {
        size_t a = 0, b = 0;
        const char *x = tok_token(ours, i, &a), *y = tok_token(theirs, i, &b);
        if (!x != !y || a != b || (x && memcmp(x, y, a) != 0))
            return lq_fail(err, LQ_EVALUE, "token %d: expected the model's '%.*s', found '%.*s'", i,
                           x ? (int)a : 0, x ? x : "", y ? (int)b : 0, y ? y : "");
    }
    return LQ_OK;
}

/* Where the model is. Where that shares a GPU with the CPU, or may be there or not, the draft has what is left, or
 * is on the CPU. */
static lq_status load_draft(load_model *l, const load_model *beside, const load_guess *o,
                            lq_err *err)
{
    char text[sizeof err->msg + 64];
    load_opts how = *o->load;
    const bool shared = how.gpu_layers != MODEL_ALL_LAYERS;
    const bool any = how.device && strcmp(how.device, "auto") == 0;
    const bool there = model_dev(&beside->m) != NULL;
    if (shared || any) how.beside.also = load_left(&beside->m, &how);
    if (shared) how.gpu_layers = MODEL_AUTO_LAYERS;
    if (any) how.device = there ? "cuda" : "cpu";
    how.beside.whole |= any; /* no engine finds later that it has no room there */
    how.ranks = 0;           /* the first of several GPUs has all of it */
    lq_status s = load_weights(l, o->path, &how, o->p, o->job, err);
    if (!there || !load_guess_elsewhere(s, o->load)) return s; /* names the file */
    snprintf(text, sizeof text, "the draft runs on the CPU: %s", err->msg);
    if (how.note) how.note(o->path, text);
    how.device = "cpu";
    return load_weights(l, o->path, &how, o->p, o->job, err);
}

bool load_guess_elsewhere(lq_status s, const load_opts *o)
{
    const bool any = o->device && strcmp(o->device, "auto") == 0;
    return s == LQ_ENOMEM ? any || o->gpu_layers != MODEL_ALL_LAYERS : s == LQ_EUNSUPPORTED && any;
}

static bool is_eagle(const char *path)
{
    src_source *src;
    lq_err ignored; /* said by who loads it */
    if (src_open(&src, path, &(src_opts){ .no_tensors = true, .draft = true }, &ignored))
        return false;
    const arch_config *c = src_config(src);
    const bool yes = c && arch_is_eagle(c);
    src_close(src);
    return yes;
}

size_t load_guess_left(const arch_config *c, int64_t layers, const arch_config *draft,
                       const load_opts *o)
{
    load_opts how = *o;
    how.beside.step.all_hidden = true;
    how.beside.step.n_inputs = arch_is_eagle(draft) ? 3 : 0;
    const model_share its_model = load_share(c, &how);
    how.beside.step = mtp_step(&how.beside.step);
    how.beside.also = 0;
    const model_share own = load_share(draft, &how);
    return its_model.more + (size_t)layers * its_model.more_layer + own.more +
           (size_t)draft->layers * own.more_layer;
}

const char *load_guess_what(const arch_config *draft)
{
    return arch_is_eagle(draft) ? "EAGLE-3 draft" : "MTP head";
}

bool load_guess_spared(lq_status s, const arch_config *draft, const load_opts *o, const lq_err *err)
{
    char text[sizeof err->msg + 64];
    if (strcmp(o->device, "auto") != 0 || (s != LQ_ENOMEM && s != LQ_EUNSUPPORTED)) return false;
    snprintf(text, sizeof text, "the %s does not guess (%s)", load_guess_what(draft), err->msg);
    if (o->note) o->note("device", text);
    return true;
}

/* Its rows are read where the model's states are. */
static lq_status check_place(const model *m, const arch_config *draft, lq_err *err)
{
    if (model_ranks(m) == 1 && !model_first_on(m)) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "not on %s yet: an %s of a model that is not all on one device", model_device(m),
                   load_guess_what(draft));
}

/* To where the model is. */
static lq_status join_model(load_model *l, const load_model *beside, const load_opts *how,
                            lq_err *err)
{
    const model *m = &beside->m;
    lq_status s = model_join_device(&l->m, m, err);
    if (s || strcmp(how->device, "auto") != 0) return s;
    const size_t left = load_guess_left(m->cfg, m->cfg->layers, l->m.cfg, how),
                 room = dev_room(model_dev(m));
    if (room >= left) return LQ_OK;
    return lq_fail(err, LQ_ENOMEM, "%s: caches and steps need %zu bytes, found %zu free",
                   model_device(m), left, room);
}

/* What reads the model's states, whose source is open. */
static lq_status load_reader(load_model *l, const load_model *beside, const load_guess *o,
                             lq_err *err)
{
    const model *m = &beside->m;
    const arch_config *c = src_config(l->src);
    const bool there = model_dev(m) != NULL;
    lq_status placed = there ? check_place(m, c, err) : LQ_OK, s = LQ_OK;
    if (!placed)
        s = arch_is_eagle(c) ? model_load_eagle(&l->m, m, l->src, o->p, err)
                             : model_load_mtp(&l->m, m, l->src, o->p, err);
    if (s) return s;
    if (!placed && there) placed = join_model(l, beside, o->load, err);
    if (!placed || !load_guess_spared(placed, c, o->load, err)) return placed;
    load_model_close(l);
    return LQ_OK;
}

const model *load_guess_opened(const load_model *l) { return l->m.cfg ? &l->m : NULL; }

static lq_status load_eagle(load_model *l, const load_model *beside, const load_guess *o,
                            lq_err *err)
{
    const src_opts how = { .need_config = true, .verify = o->load->verify, .draft = true };
    if (src_recipe(beside->src) && js_get(src_recipe(beside->src), "rotate_seed"))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "--speculative-model: %s: expected hidden states as the EAGLE-3 draft has "
                       "learned them, found a model that was quantized with --rotate",
                       o->path);
    lq_status s = src_open(&l->src, o->path, &how, err);
    if (s) return s;
    s = load_reader(l, beside, o, err);
    return s ? lq_wrap(err, s, "--speculative-model") : LQ_OK;
}

static lq_status open_draft(load_model *l, const load_model *beside, const tok_tokenizer *t,
                            const load_guess *o, lq_err *err)
{
    load_tok tok = { 0 };
    lq_status s = is_eagle(o->path) ? load_eagle(l, beside, o, err) : load_draft(l, beside, o, err);
    if (s || !load_guess_opened(l)) return s;
    if (t) s = load_tok_open(&tok, l->src, o->path, err);
    if (s == LQ_ENOENT) s = LQ_OK; /* the number of ids alone can be compared */
    if (!s && tok.t) s = check_tokens(t, tok.t, err);
    load_tok_close(&tok);
    return s ? lq_wrap(err, s, "--speculative-model: %s", o->path) : LQ_OK;
}

lq_status load_guess_open(load_model *l, const load_model *beside, const tok_tokenizer *t,
                          const load_guess *o, lq_err *err)
{
    if (o->path) return open_draft(l, beside, t, o, err);
    lq_status s = src_mtp(&l->src, beside->src, err);
    if (!s) s = load_reader(l, beside, o, err);
    return s ? lq_wrap(err, s, "--speculative-mtp") : LQ_OK;
}
