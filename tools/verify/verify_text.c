/* tools/verify/verify_text.c */
#include "tools/verify/verify_text.h"

#include "runtime/chat/chat_set.h"
#include "runtime/engine/sentence.h"
#include "runtime/load.h"
#include "tools/cli/progress.h"

#include <stdio.h>

/* What opening one of the files gave. */
static lq_status judge(verdict *v, const char *name, lq_status s, const lq_err *why, lq_err *err)
{
    if (s == LQ_ENOMEM) return lq_fail(err, s, "%s: out of memory", name);
    if (s == LQ_EUNSUPPORTED && !v->unfit[0]) snprintf(v->unfit, sizeof v->unfit, "%s", why->msg);
    if (s && s != LQ_EUNSUPPORTED && s != LQ_ENOENT) verdict_add(v, name, why->msg);
    return LQ_OK;
}

/* A file that means nothing without a tokenizer; NULL: none. */
static const char *speaks_of_one(const src_source *src)
{
    static const char *const names[] = { "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "vocab.json",
                                         "merges.txt",
                                         "chat_template.jinja" };
    for (size_t i = 0; i < LQ_COUNT(names); i++)
        if (src_find_blob(src, names[i])) return names[i];
    return NULL;
}

static void say_missing(verdict *v, const src_source *src)
{
    const char *other = speaks_of_one(src);
    if (other && !v->unfit[0])
        snprintf(v->unfit, sizeof v->unfit, "expected a tokenizer beside %s, found none", other);
    else if (!other)
        prog_say(LOG_WARN, "no tokenizer: the model takes and gives token ids alone");
}

static lq_status check_tokenizer(verdict *v, const src_source *src, lq_err *err)
{
    load_tok tok;
    lq_err why;
    const lq_status s = load_tok_open(&tok, src, src_path(src), &why);
    v->checked++;
    v->tokenizer = !s;
    if (!s) load_tok_close(&tok);
    if (s == LQ_ENOENT) say_missing(v, src);
    return judge(v, "tokenizer", s, &why, err);
}

static lq_status check_template(verdict *v, const src_source *src, lq_err *err)
{
    chat_set *set;
    lq_err why;
    const lq_status s = chat_set_open(&set, src, NULL, &why);
    if (!s) chat_set_close(set);
    return judge(v, "chat template", s, &why, err);
}

static lq_status check_generation(verdict *v, const src_source *src, lq_err *err)
{
    gen_defaults g;
    lq_err why;
    const src_blob *b = src_find_blob(src, "generation_config.json");
    const lq_status s = gen_read(&g, b ? b->data : NULL, b ? b->bytes : 0, &why);
    return judge(v, "generation_config.json", s, &why, err);
}

/* What sentence-transformers' files say of a text's vector. */
static lq_status check_modules(verdict *v, const src_source *src, lq_err *err)
{
    lq_err why;
    if (!src_config(src)) return LQ_OK;
    const lq_status s = sentence_check(src, src_config(src)->hidden, &why);
    return judge(v, "sentence-transformers", s == LQ_ENOENT ? LQ_EFORMAT : s, &why, err);
}

lq_status verify_text(verdict *v, const src_source *src, lq_err *err)
{
    lq_status s = check_tokenizer(v, src, err);
    if (!s) s = check_template(v, src, err);
    if (!s) s = check_modules(v, src, err);
    return s ? s : check_generation(v, src, err);
}
