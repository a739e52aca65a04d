/* runtime/load_guess.c - see load_guess.h. */
#include "runtime/load_guess.h"

#include "base/json.h"

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

/* Where the model shares a GPU with the CPU, or may be there or not, the draft has what is left, or
 * nothing. */
static lq_status load_draft(load_model *l, const load_model *beside, const load_guess *o,
                            lq_err *err)
{
    char text[sizeof err->msg + 64];
    load_opts how = *o->load;
    const bool shared = how.gpu_layers != MODEL_ALL_LAYERS;
    const bool spare = shared || (how.device && strcmp(how.device, "auto") == 0);
    if (spare) how.beside.also = load_left(&beside->m, &how);
    if (shared) how.gpu_layers = MODEL_AUTO_LAYERS;
    how.ranks = 0; /* the first of several GPUs has all of it */
    lq_status s = load_weights(l, o->path, &how, o->p, o->job, err);
    if (s != LQ_ENOMEM || !shared) return s; /* names the file */
    snprintf(text, sizeof text, "the draft runs on the CPU: %s", err->msg);
    if (how.note) how.note(o->path, text);
    how.device = "cpu";
    return load_weights(l, o->path, &how, o->p, o->job, err);
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

/* Its rows are read where the model's states are. */
static lq_status check_place(const model *m, const char *what, lq_err *err)
{
    if (model_ranks(m) == 1 && !model_first_on(m)) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "not on %s yet: an %s of a model that is not all on one device", model_device(m),
                   what);
}

static lq_status load_eagle(load_model *l, const load_model *beside, const load_guess *o,
                            lq_err *err)
{
    const src_opts how = { .need_config = true, .verify = o->load->verify, .draft = true };
    lq_status s = check_place(&beside->m, "EAGLE-3 draft", err);
    if (s) return lq_wrap(err, s, "--speculative-model: %s", o->path);
    if (src_recipe(beside->src) && js_get(src_recipe(beside->src), "rotate_seed"))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "--speculative-model: %s: expected hidden states as the EAGLE-3 draft has "
                       "learned them, found a model that was quantized with --rotate",
                       o->path);
    s = src_open(&l->src, o->path, &how, err);
    if (s) return s;
    s = model_load_eagle(&l->m, &beside->m, l->src, o->p, err);
    if (!s && model_dev(&beside->m)) s = model_join_device(&l->m, &beside->m, err);
    return s ? lq_wrap(err, s, "--speculative-model") : LQ_OK;
}

static lq_status open_draft(load_model *l, const load_model *beside, const tok_tokenizer *t,
                            const load_guess *o, lq_err *err)
{
    load_tok tok = { 0 };
    lq_status s = is_eagle(o->path) ? load_eagle(l, beside, o, err) : load_draft(l, beside, o, err);
    if (s) return s;
    if (t) s = load_tok_open(&tok, l->src, o->path, err);
    if (s == LQ_ENOENT) s = LQ_OK; /* the number of ids alone can be compared */
    if (!s && tok.t) s = check_tokens(t, tok.t, err);
    load_tok_close(&tok);
    return s ? lq_wrap(err, s, "--speculative-model: %s", o->path) : LQ_OK;
}

static lq_status load_head(load_model *l, const load_model *beside, const load_guess *o,
                           lq_err *err)
{
    const model *m = &beside->m;
    lq_status s = check_place(m, "MTP head", err);
    if (!s) s = src_mtp(&l->src, beside->src, err);
    if (!s) s = model_load_mtp(&l->m, m, l->src, o->p, err);
    return s || !model_dev(m) ? s : model_join_device(&l->m, m, err);
}

lq_status load_guess_open(load_model *l, const load_model *beside, const tok_tokenizer *t,
                          const load_guess *o, lq_err *err)
{
    if (o->path) return open_draft(l, beside, t, o, err);
    const lq_status s = load_head(l, beside, o, err);
    return s ? lq_wrap(err, s, "--speculative-mtp") : LQ_OK;
}
