/* runtime/tokenizer/tok_post.c - post-processors: which special tokens surround a text.
 *
 * Each is compiled into a template of ids, where A stands for the text's own. */
#include "runtime/tokenizer/tok_int.h"

enum { A = -1, MAX_TEMPLATE = 1024, MAX_TEXTS = 4 };

static void tok_post_push(tok_builder *b, tok_op *op, int32_t id)
{
    if (!op->arg[1]++) op->arg[0] = (uint32_t)(b->post.n / sizeof id);
    lq_buf_add(&b->post, &id, sizeof id);
}

static lq_status bad(lq_err *err, const char *what)
{
    return lq_fail(err, LQ_EFORMAT, "tokenizer.json: post_processor: %s", what);
}

static bool token_id(const cJSON *e, int32_t *id)
{
    if (!cJSON_IsNumber(e) || !(e->valuedouble >= 0 && e->valuedouble < TOK_MAX_IDS)) return false;
    *id = (int32_t)e->valuedouble;
    return true;
}

static lq_status compile_template(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    const cJSON *single = cJSON_GetObjectItemCaseSensitive(j, "single"), *e, *k;
    const cJSON *specials = cJSON_GetObjectItemCaseSensitive(j, "special_tokens");
    if (!cJSON_IsArray(single)) return bad(err, "expected an array single");
    cJSON_ArrayForEach(e, single)
    {
        const char *seq = tok_json_str(cJSON_GetObjectItemCaseSensitive(e, "Sequence"), "id");
        const char *name = tok_json_str(cJSON_GetObjectItemCaseSensitive(e, "SpecialToken"), "id");
        if (seq && strcmp(seq, "A") == 0) {
            tok_post_push(b, op, A);
            continue;
        }
        if (!name) return bad(err, "single: expected SpecialToken or Sequence A");
        const cJSON *ids = cJSON_GetObjectItemCaseSensitive(
            cJSON_GetObjectItemCaseSensitive(specials, name), "ids");
        if (!cJSON_IsArray(ids)) return bad(err, "a special token without its ids");
        cJSON_ArrayForEach(k, ids)
        {
            int32_t id;
            if (!token_id(k, &id)) return bad(err, "expected ids 0..16777215");
            tok_post_push(b, op, id);
        }
    }
    return LQ_OK;
}

/* {"cls": ["[CLS]", 101], "sep": ["[SEP]", 102]} */
static lq_status compile_bert(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    int32_t cls, sep;
    if (!token_id(cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(j, "cls"), 1), &cls) ||
        !token_id(cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(j, "sep"), 1), &sep))
        return bad(err, "expected cls and sep as [text, id]");
    tok_post_push(b, op, cls);
    tok_post_push(b, op, A);
    tok_post_push(b, op, sep);
    return LQ_OK;
}

/* ByteLevel only moves offsets. */
static lq_status compile_same(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    (void)j, (void)err;
    tok_post_push(b, op, A);
    return LQ_OK;
}

static lq_status open_template(tok_tokenizer *t, tok_step *s, lq_err *err)
{
    const uint32_t off = s->op->arg[0], n = s->op->arg[1];
    if (n > MAX_TEMPLATE || off > t->head->post.n || n > t->head->post.n - off)
        return lq_fail(err, LQ_EFORMAT,
                       "tokenizer: a template of %u ids at %u: expected at most %d", n, off,
                       MAX_TEMPLATE);
    int texts = 0;
    for (uint32_t i = off; i < off + n; i++) {
        texts += t->post[i] == A;
        if (t->post[i] < A || t->post[i] >= (int64_t)t->n_ids || texts > MAX_TEXTS)
            return lq_fail(err, LQ_EFORMAT, "tokenizer: a template with id %d of %zu", t->post[i],
                           t->n_ids);
    }
    return LQ_OK;
}

static lq_status run_template(tok_run *r, const tok_step *st, lq_buf *out)
{
    for (uint32_t i = 0; i < st->op->arg[1]; i++) {
        int32_t id = r->t->post[st->op->arg[0] + i];
        if (id == A)
            lq_buf_add(out, r->ids.u, r->ids.n);
        else
            lq_buf_add(out, &id, sizeof id);
    }
    return LQ_OK;
}

static const tok_kind kinds[] = {
    { "TemplateProcessing", compile_template, open_template, { .post = run_template } },
    { "BertProcessing", compile_bert, open_template, { .post = run_template } },
    { "RobertaProcessing", compile_bert, open_template, { .post = run_template } },
    { "ByteLevel", compile_same, open_template, { .post = run_template } },
};

const tok_stage_table tok_post_table = { "post_processor", "processors", kinds, LQ_COUNT(kinds) };

lq_status tok_post_process(tok_run *r)
{
    for (size_t i = 0; i < r->t->n_steps[TOK_POST]; i++) {
        const tok_step *st = &r->t->steps[TOK_POST][i];
        r->a.n = 0;
        lq_status s = kinds[st->op->kind].run.post(r, st, &r->a);
        if (s) return s;
        lq_buf swap = r->ids;
        r->ids = r->a;
        r->a = swap;
    }
    return LQ_OK;
}
