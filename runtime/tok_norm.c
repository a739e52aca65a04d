/* runtime/tok_norm.c - normalizers: text to text before it is split. */
#include "runtime/tok_int.h"

static lq_status run_nfd(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, tok_buf *out)
{
    return (void)st, tok_normal_form(out, s, n, TOK_NFD, r->err);
}

static lq_status run_nfc(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, tok_buf *out)
{
    return (void)st, tok_normal_form(out, s, n, TOK_NFC, r->err);
}

static lq_status run_nfkd(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, tok_buf *out)
{
    return (void)st, tok_normal_form(out, s, n, TOK_NFKD, r->err);
}

static lq_status run_nfkc(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, tok_buf *out)
{
    return (void)st, tok_normal_form(out, s, n, TOK_NFKC, r->err);
}

static lq_status run_lowercase(tok_run *r, const tok_step *st, const uint8_t *s, size_t n,
                               tok_buf *out)
{
    (void)r, (void)st;
    tok_lowercase(out, s, n);
    return LQ_OK;
}

static lq_status compile_prepend(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    const char *s = tok_json_str(j, "prepend");
    if (!s) return lq_fail(err, LQ_EFORMAT, "tokenizer.json: Prepend: expected a text prepend");
    op->s[0] = tok_put_text(b, s);
    return LQ_OK;
}

static lq_status run_prepend(tok_run *r, const tok_step *st, const uint8_t *s, size_t n,
                             tok_buf *out)
{
    (void)r;
    if (n) tok_buf_add(out, st->s[0], st->n[0]);
    tok_buf_add(out, s, n);
    return LQ_OK;
}

static lq_status compile_replace(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    const char *content = tok_json_str(j, "content");
    if (!content)
        return lq_fail(err, LQ_EFORMAT, "tokenizer.json: Replace: expected a text content");
    op->s[1] = tok_put_text(b, content);
    return tok_put_pattern(b, cJSON_GetObjectItemCaseSensitive(j, "pattern"), op, err);
}

static lq_status run_replace(tok_run *r, const tok_step *st, const uint8_t *s, size_t n,
                             tok_buf *out)
{
    tok_scan f = tok_scan_all(st->pattern, s, n);
    size_t from = 0, start, end;
    for (bool found;;) {
        lq_status e = tok_scan_next(&f, r->matcher, &found, &start, &end, r->err);
        if (e) return e;
        if (!found) break;
        tok_buf_add(out, s + from, start - from);
        tok_buf_add(out, st->s[1], st->n[1]);
        from = end;
    }
    tok_buf_add(out, s + from, n - from);
    return LQ_OK;
}

static lq_status compile_strip(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    (void)b, (void)err;
    op->arg[0] = tok_json_bool(j, "strip_left", true);
    op->arg[1] = tok_json_bool(j, "strip_right", true);
    return LQ_OK;
}

static lq_status run_strip(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, tok_buf *out)
{
    (void)r;
    size_t from = 0, to = n, len;
    while (st->op->arg[0] && from < to && tok_is_space(tok_utf8_get(s + from, &len)))
        from += len;
    while (st->op->arg[1] && to > from) {
        size_t at = to - 1;
        while (at > from && (s[at] & 0xC0) == 0x80)
            at--;
        if (!tok_is_space(tok_utf8_get(s + at, &len))) break;
        to = at;
    }
    tok_buf_add(out, s + from, to - from);
    return LQ_OK;
}

static lq_status run_strip_accents(tok_run *r, const tok_step *st, const uint8_t *s, size_t n,
                                   tok_buf *out)
{
    (void)r, (void)st;
    for (size_t i = 0, len; i < n; i += len)
        if (!tok_is_mark(tok_utf8_get(s + i, &len))) tok_buf_add(out, s + i, len);
    return LQ_OK;
}

static lq_status run_byte_level(tok_run *r, const tok_step *st, const uint8_t *s, size_t n,
                                tok_buf *out)
{
    (void)r, (void)st;
    for (size_t i = 0; i < n; i++)
        tok_buf_cp(out, tok_byte_char(s[i]));
    return LQ_OK;
}

static const tok_kind kinds[] = {
    { .name = "NFD", .run.norm = run_nfd },
    { .name = "NFC", .run.norm = run_nfc },
    { .name = "NFKD", .run.norm = run_nfkd },
    { .name = "NFKC", .run.norm = run_nfkc },
    { .name = "Lowercase", .run.norm = run_lowercase },
    { .name = "Prepend", .compile = compile_prepend, .run.norm = run_prepend },
    { .name = "Replace",
      .compile = compile_replace,
      .open = tok_open_pattern,
      .run.norm = run_replace },
    { .name = "Strip", .compile = compile_strip, .run.norm = run_strip },
    { .name = "StripAccents", .run.norm = run_strip_accents },
    { .name = "ByteLevel", .run.norm = run_byte_level },
};

const tok_stage_table tok_norm_table = { "normalizer", "normalizers", kinds, LQ_COUNT(kinds) };

lq_status tok_normalize(tok_run *r, const uint8_t *s, size_t n, const uint8_t **out, size_t *n_out)
{
    tok_buf *to = &r->a, *spare = &r->b;
    for (size_t i = 0; i < r->t->n_steps[TOK_NORM]; i++) {
        const tok_step *st = &r->t->steps[TOK_NORM][i];
        to->n = 0;
        lq_status e = kinds[st->op->kind].run.norm(r, st, s, n, to);
        if (e) return e;
        if (to->oom) return tok_oom(r->err);
        s = to->p;
        n = to->n;
        tok_buf *swap = to;
        to = spare;
        spare = swap;
    }
    *out = s;
    *n_out = n;
    return LQ_OK;
}
