/* runtime/tokenizer/tok_norm.c - normalizers: text to text before it is split. */
#include "runtime/tokenizer/tok_int.h"

#include "base/utf8.h"

enum { BERT_CLEAN = 1, BERT_CHINESE = 2, BERT_STRIP = 4, BERT_LOWER = 8 };

/* Whether what is left still starts where the text does: Metaspace asks for that. */
static void lost_start(tok_run *r, bool lost)
{
    if (lost) r->first = false;
}

static lq_status run_nfd(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, lq_buf *out)
{
    return (void)st, tok_normal_form(out, s, n, TOK_NFD, r->err);
}

static lq_status run_nfc(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, lq_buf *out)
{
    return (void)st, tok_normal_form(out, s, n, TOK_NFC, r->err);
}

static lq_status run_nfkd(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, lq_buf *out)
{
    return (void)st, tok_normal_form(out, s, n, TOK_NFKD, r->err);
}

static lq_status run_nfkc(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, lq_buf *out)
{
    return (void)st, tok_normal_form(out, s, n, TOK_NFKC, r->err);
}

static lq_status run_lowercase(tok_run *r, const tok_step *st, const uint8_t *s, size_t n,
                               lq_buf *out)
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
                             lq_buf *out)
{
    (void)r;
    if (n) lq_buf_add(out, st->s[0], st->n[0]);
    lq_buf_add(out, s, n);
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
                             lq_buf *out)
{
    tok_scan f = tok_scan_all(st->pattern, s, n);
    size_t from = 0, start, end;
    for (bool found;;) {
        lq_status e = tok_scan_next(&f, r->matcher, &found, &start, &end, r->err);
        if (e) return e;
        if (!found) break;
        lost_start(r, start == 0 && end > 0 && st->n[1] == 0);
        lq_buf_add(out, s + from, start - from);
        lq_buf_add(out, st->s[1], st->n[1]);
        from = end;
    }
    lq_buf_add(out, s + from, n - from);
    return LQ_OK;
}

static lq_status compile_strip(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    (void)b, (void)err;
    op->arg[0] = tok_json_bool(j, "strip_left", true);
    op->arg[1] = tok_json_bool(j, "strip_right", true);
    return LQ_OK;
}

static lq_status run_strip(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, lq_buf *out)
{
    size_t from = 0, to = n, len;
    while (st->op->arg[0] && from < to && tok_is_space(lq_utf8_get(s + from, &len)))
        from += len;
    while (st->op->arg[1] && to > from) {
        size_t at = to - 1;
        while (at > from && (s[at] & 0xC0) == 0x80)
            at--;
        if (!tok_is_space(lq_utf8_get(s + at, &len))) break;
        to = at;
    }
    lost_start(r, from > 0);
    lq_buf_add(out, s + from, to - from);
    return LQ_OK;
}

static lq_status run_strip_accents(tok_run *r, const tok_step *st, const uint8_t *s, size_t n,
                                   lq_buf *out)
{
    (void)st;
    for (size_t i = 0, len; i < n; i += len) {
        const bool mark = tok_is_mark(lq_utf8_get(s + i, &len));
        if (!mark) lq_buf_add(out, s + i, len);
        lost_start(r, mark && i == 0);
    }
    return LQ_OK;
}

static lq_status run_byte_level(tok_run *r, const tok_step *st, const uint8_t *s, size_t n,
                                lq_buf *out)
{
    (void)r, (void)st;
    for (size_t i = 0; i < n; i++)
        lq_buf_cp(out, tok_byte_char(s[i]));
    return LQ_OK;
}

/* ---- BERT ---- */
static lq_status compile_bert(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    (void)b, (void)err;
    const bool lower = tok_json_bool(j, "lowercase", true);
    if (tok_json_bool(j, "clean_text", true)) op->arg[0] |= BERT_CLEAN;
    if (tok_json_bool(j, "handle_chinese_chars", true)) op->arg[0] |= BERT_CHINESE;
    if (tok_json_bool(j, "strip_accents", lower)) op->arg[0] |= BERT_STRIP;
    if (lower) op->arg[0] |= BERT_LOWER;
    return LQ_OK;
}

/* The blocks of ideographs that BERT's own code names. */
static bool is_chinese(uint32_t cp)
{
    return (cp >= 0x4E00 && cp <= 0x9FFF) || (cp >= 0x3400 && cp <= 0x4DBF) ||
           (cp >= 0x20000 && cp <= 0x2A6DF) || (cp >= 0x2A700 && cp <= 0x2B73F) ||
           (cp >= 0x2B740 && cp <= 0x2B81F) || (cp >= 0x2B920 && cp <= 0x2CEAF) ||
           (cp >= 0xF900 && cp <= 0xFAFF) || (cp >= 0x2F800 && cp <= 0x2FA1F);
}

static void bert_char(lq_buf *out, uint32_t cp, uint32_t how)
{
    const bool line = cp == '\t' || cp == '\n' || cp == '\r';
    if (how & BERT_CLEAN) {
        if (cp == 0 || cp == 0xFFFD || (!line && tok_is_other(cp))) return;
        if (tok_is_space(cp)) cp = ' ';
    }
    const bool apart = (how & BERT_CHINESE) && is_chinese(cp);
    if (apart) lq_buf_add(out, " ", 1);
    lq_buf_cp(out, cp);
    if (apart) lq_buf_add(out, " ", 1);
}

static lq_status run_bert(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, lq_buf *out)
{
    const uint32_t how = st->op->arg[0];
    lq_buf a = { 0 }, b = { 0 };
    lq_status e = LQ_OK;
    for (size_t i = 0, len; i < n; i += len) {
        bert_char(&a, lq_utf8_get(s + i, &len), how);
        lost_start(r, i == 0 && a.n == 0);
    }
    if (how & BERT_STRIP) {
        e = tok_normal_form(&b, a.u, a.n, TOK_NFD, r->err);
        a.n = 0;
        for (size_t i = 0, len; i < b.n; i += len)
            if (!tok_is_nonspacing(lq_utf8_get(b.u + i, &len))) lq_buf_add(&a, b.u + i, len);
    }
    if (how & BERT_LOWER)
        tok_lowercase(out, a.u, a.n);
    else
        lq_buf_add(out, a.u, a.n);
    if (a.oom || b.oom) e = tok_oom(r->err);
    lq_buf_free(&a);
    lq_buf_free(&b);
    return e;
}

/* ---- Nmt: controls go, other white space becomes a space ---- */
static lq_status run_nmt(tok_run *r, const tok_step *st, const uint8_t *s, size_t n, lq_buf *out)
{
    (void)st;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c = lq_utf8_get(s + i, &len);
        lost_start(r, i > 0 && out->n == 0);
        if ((c >= 1 && c <= 8) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F ||
            c == 0x9F)
            continue;
        if (c == 9 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
            (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
            c == 0xFEFF || c == 0xFFFD)
            lq_buf_add(out, " ", 1);
        else
            lq_buf_add(out, s + i, len);
    }
    return LQ_OK;
}

/* No tokenizer.json has it: it comes from a tokenizer.model (tok_put_sentencepiece). */
static lq_status refuse_sentencepiece(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    (void)b, (void)j, (void)op;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "tokenizer.json: normalizer 'SentencePiece' is not supported");
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
    { .name = "BertNormalizer", .compile = compile_bert, .run.norm = run_bert },
    { .name = "Nmt", .run.norm = run_nmt },
    { .name = "Precompiled",
      .compile = tok_compile_charsmap,
      .open = tok_open_charsmap,
      .run.norm = tok_run_precompiled },
    { .name = "SentencePiece",
      .compile = refuse_sentencepiece,
      .open = tok_open_charsmap,
      .run.norm = tok_run_sentencepiece },
};

lq_status tok_put_sentencepiece(tok_builder *b, const uint8_t *map, size_t n, uint32_t flags,
                                lq_err *err)
{
    tok_op op = { .kind = LQ_COUNT(kinds) - 1, .s = { { TOK_NONE, 0 }, { TOK_NONE, 0 } } };
    op.arg[2] = flags;
    lq_status s = tok_put_charsmap(b, &op, map, n, err);
    lq_buf_add(&b->ops[TOK_NORM], &op, sizeof op);
    return s;
}

const tok_stage_table tok_norm_table = { "normalizer", "normalizers", kinds, LQ_COUNT(kinds) };

lq_status tok_normalize(tok_run *r, const uint8_t *s, size_t n, const uint8_t **out, size_t *n_out)
{
    lq_buf *to = &r->a, *spare = &r->b;
    for (size_t i = 0; i < r->t->n_steps[TOK_NORM]; i++) {
        const tok_step *st = &r->t->steps[TOK_NORM][i];
        to->n = 0;
        lq_status e = kinds[st->op->kind].run.norm(r, st, s, n, to);
        if (e) return e;
        if (to->oom) return tok_oom(r->err);
        s = to->u;
        n = to->n;
        lq_buf *swap = to;
        to = spare;
        spare = swap;
    }
    *out = s;
    *n_out = n;
    return LQ_OK;
}
