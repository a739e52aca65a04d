/* runtime/tokenizer/tok_post.c - post-processors: which special tokens surround a text.
 *
 * Each is compiled into a template of ids, where A stands for the text's own, and behind it one for two texts, A and B,
 * in which SECOND is where the second type begins; of no ids where the tokenizer has none, or has other types. */
#include "runtime/tokenizer/tok_int.h"

enum { A = -1, B = -2, SECOND = -3, MAX_TEMPLATE = 1024, MAX_TEXTS = 4 };
enum { SINGLE = 1, PAIR = 2 }; /* of tok_op.arg: how long each is; arg[0]: where they begin */

static void tok_post_push(tok_builder *b, tok_op *op, int which, int32_t id)
{
    if (!op->arg[SINGLE] && !op->arg[PAIR]) op->arg[0] = (uint32_t)(b->post.n / sizeof id);
    op->arg[which]++;
    lq_buf_add(&b->post, &id, sizeof id);
}

/* No pair after all. */
static void drop_pair(tok_builder *b, tok_op *op)
{
    b->post.n -= op->arg[PAIR] * sizeof(int32_t);
    op->arg[PAIR] = 0;
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

/* The ids of a part of a template, {"SpecialToken": {"id": name}} or {"Sequence": {"id": "A"}}. */
static lq_status push_part(tok_builder *b, const cJSON *part, const cJSON *specials, tok_op *op,
                           int which, lq_err *err)
{
    const char *seq = tok_json_str(cJSON_GetObjectItemCaseSensitive(part, "Sequence"), "id"), *name;
    const cJSON *k;
    if (seq && (strcmp(seq, "A") == 0 || (which == PAIR && strcmp(seq, "B") == 0))) {
        tok_post_push(b, op, which, *seq == 'A' ? A : B);
        return LQ_OK;
    }
    name = tok_json_str(cJSON_GetObjectItemCaseSensitive(part, "SpecialToken"), "id");
    if (!name) return bad(err, "expected SpecialToken or Sequence A, of a pair also B");
    const cJSON *ids =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(specials, name), "ids");
    if (!cJSON_IsArray(ids)) return bad(err, "a special token without its ids");
    cJSON_ArrayForEach(k, ids)
    {
        int32_t id;
        if (!token_id(k, &id)) return bad(err, "expected ids 0..16777215");
        tok_post_push(b, op, which, id);
    }
    return LQ_OK;
}

static int type_of(const cJSON *part)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(part->child, "type_id");
    return cJSON_IsNumber(v) ? (int)v->valuedouble : 0;
}

/* *fits: each text once, and no part of the first type behind one of the second. */
static lq_status compile_pair(tok_builder *b, const cJSON *pair, const cJSON *specials, tok_op *op,
                              bool *fits, lq_err *err)
{
    const cJSON *e;
    int type = 0, texts[2] = { 0, 0 };
    *fits = cJSON_IsArray(pair);
    if (!*fits) return LQ_OK;
    cJSON_ArrayForEach(e, pair)
    {
        const int its = type_of(e);
        const char *seq = tok_json_str(cJSON_GetObjectItemCaseSensitive(e, "Sequence"), "id");
        if (seq) texts[*seq != 'A']++;
        if (its == 1 && type == 0) tok_post_push(b, op, PAIR, SECOND);
        if (its < type || its > 1) *fits = false;
        type = its;
        lq_status s = push_part(b, e, specials, op, PAIR, err);
        if (s) return s;
    }
    *fits = *fits && texts[0] == 1 && texts[1] == 1;
    return LQ_OK;
}

static lq_status compile_template(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    const cJSON *single = cJSON_GetObjectItemCaseSensitive(j, "single"), *e;
    const cJSON *specials = cJSON_GetObjectItemCaseSensitive(j, "special_tokens");
    bool fits;
    if (!cJSON_IsArray(single)) return bad(err, "expected an array single");
    cJSON_ArrayForEach(e, single)
    {
        lq_status s = push_part(b, e, specials, op, SINGLE, err);
        if (s) return s;
    }
    lq_status s =
        compile_pair(b, cJSON_GetObjectItemCaseSensitive(j, "pair"), specials, op, &fits, err);
    if (!s && !fits) drop_pair(b, op);
    return s;
}

/* {"cls": ["[CLS]", 101], "sep": ["[SEP]", 102]}: cls A sep, of a pair cls A sep B sep, or with `twice` cls A sep sep B
 * sep, all of the first type. */
static lq_status compile_ends(tok_builder *b, const cJSON *j, tok_op *op, bool twice, lq_err *err)
{
    int32_t cls, sep;
    if (!token_id(cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(j, "cls"), 1), &cls) ||
        !token_id(cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(j, "sep"), 1), &sep))
        return bad(err, "expected cls and sep as [text, id]");
    const int32_t single[] = { cls, A, sep },
                  pair[] = { cls, A, sep, twice ? sep : SECOND, B, sep };
    for (size_t i = 0; i < LQ_COUNT(single); i++)
        tok_post_push(b, op, SINGLE, single[i]);
    for (size_t i = 0; i < LQ_COUNT(pair); i++)
        tok_post_push(b, op, PAIR, pair[i]);
    return LQ_OK;
}

static lq_status compile_bert(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    return compile_ends(b, j, op, false, err);
}

static lq_status compile_roberta(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    return compile_ends(b, j, op, true, err);
}

/* ByteLevel only moves offsets. */
static lq_status compile_same(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    (void)j, (void)err;
    tok_post_push(b, op, SINGLE, A);
    return LQ_OK;
}

static lq_status check_ids(const tok_tokenizer *t, const int32_t *ids, uint32_t n, int32_t least,
                           lq_err *err)
{
    int texts = 0;
    for (uint32_t i = 0; i < n; i++) {
        texts += ids[i] == A || ids[i] == B;
        if (ids[i] < least || ids[i] >= (int64_t)t->n_ids || texts > MAX_TEXTS)
            return lq_fail(err, LQ_EFORMAT, "tokenizer: a template with id %d of %zu", ids[i],
                           t->n_ids);
    }
    return LQ_OK;
}

static lq_status open_template(tok_tokenizer *t, tok_step *s, lq_err *err)
{
    const uint32_t off = s->op->arg[0], n = s->op->arg[SINGLE], pair = s->op->arg[PAIR];
    if (n > MAX_TEMPLATE || pair > MAX_TEMPLATE || off > t->head->post.n ||
        n + pair > t->head->post.n - off)
        return lq_fail(err, LQ_EFORMAT,
                       "tokenizer: a template of %u ids at %u: expected at most %d", n, off,
                       MAX_TEMPLATE);
    lq_status st = check_ids(t, t->post + off, n, A, err);
    return st ? st : check_ids(t, t->post + off + n, pair, SECOND, err);
}

static lq_status run_template(tok_run *r, const tok_step *st, lq_buf *out)
{
    for (uint32_t i = 0; i < st->op->arg[SINGLE]; i++) {
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
    { "RobertaProcessing", compile_roberta, open_template, { .post = run_template } },
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

/* Does it leave a text as it is? */
static bool is_same(const tok_tokenizer *t, const tok_op *op)
{
    return op->arg[SINGLE] == 1 && t->post[op->arg[0]] == A && !op->arg[PAIR];
}

lq_status tok_post_pair(tok_run *r, size_t *n_first)
{
    static const int32_t bare[] = { A, SECOND, B };
    const int32_t *ids = bare;
    uint32_t n = LQ_COUNT(bare);
    int steps = 0;
    for (size_t i = 0; i < r->t->n_steps[TOK_POST]; i++) {
        const tok_op *op = r->t->steps[TOK_POST][i].op;
        if (is_same(r->t, op)) continue;
        ids = r->t->post + op->arg[0] + op->arg[SINGLE];
        n = op->arg[PAIR];
        if (steps++ || !n)
            return lq_fail(r->err, LQ_EUNSUPPORTED,
                           "the tokenizer's post-processor has nothing for a pair of texts");
    }
    r->a.n = 0;
    *n_first = SIZE_MAX;
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] == SECOND)
            *n_first = r->a.n / sizeof *ids;
        else if (ids[i] == A)
            lq_buf_add(&r->a, r->ids.u, r->ids.n);
        else if (ids[i] == B)
            lq_buf_add(&r->a, r->b.u, r->b.n);
        else
            lq_buf_add(&r->a, &ids[i], sizeof *ids);
    }
    if (*n_first == SIZE_MAX) *n_first = r->a.n / sizeof *ids;
    lq_buf swap = r->ids;
    r->ids = r->a;
    r->a = swap;
    return LQ_OK;
}
