/* runtime/api/api_prompt.c - the text of a prompt to token ids. */
#include "runtime/api/api_int.h"

/* The end of a text, of at least n bytes: from where a word begins, if there is one near, so that
 * what follows has the tokens that it has in the whole text. */
static const char *end_of(const char *text, size_t len, size_t n)
{
    enum { NEAR = 4096 };
    const char *from = text + len - n, *p = from;
    while (p > text && from - p < NEAR && *p != ' ' && *p != '\n')
        p--;
    if (*p != ' ' && *p != '\n')
        for (p = from; p > text && ((uint8_t)*p & 0xc0) == 0x80;) /* inside a character */
            p--;
    return p;
}

/* The beginning of a text: at most n bytes, whole characters. */
static size_t begin_of(const char *text, size_t n)
{
    while (n > 0 && ((uint8_t)text[n] & 0xc0) == 0x80)
        n--;
    return n;
}

size_t api_most_bytes(const api *a)
{
    size_t most;
    return lq_mul((size_t)a->m.max_len, tok_max_token_bytes(a->m.tok), &most) ? most : SIZE_MAX;
}

lq_status api_encode(const api *a, api_prompt *p, const char *text, bool special, api_keep keep,
                     const char *param, api_error *e)
{
    const tok_tokenizer *tok = a->m.tok;
    size_t len = strlen(text);
    if (!tok)
        return api_fail(e, param, "unsupported_value",
                        "%s: the model has no tokenizer, send token ids", param);
    const size_t most = api_most_bytes(a);
    p->text = text;
    const size_t enough = len / 2 > most ? 2 * most : len;
    if (len > most && keep == API_KEEP_BEGINNING) {
        len = enough < len ? begin_of(text, enough) : len;
    } else if (len > most && keep == API_KEEP_END) {
        const char *end = end_of(text, len, enough);
        len -= (size_t)(end - text);
        text = end;
    } else if (len > most) {
        return api_fail(
            e, param, "context_length_exceeded",
            "this model's maximum context length is %lld tokens: %s has %zu bytes, more "
            "than they can hold",
            (long long)a->m.max_len, param, len);
    }
    lq_err err;
    lq_status s = tok_encode(tok, text, len, special ? TOK_ADD_SPECIAL : 0, &p->ids, &p->n, &err);
    if (!s && special && p->n > 1 && p->ids[0] == p->ids[1] && tok_is_special(tok, p->ids[0]))
        met_add(a->met, MET_TWO_BOS, 1);
    if (!s) return LQ_OK;
    api_fail(e, param, NULL, "%s: the text cannot be tokenized", param);
    if (s == LQ_ENOMEM) e->status = 503;
    return s;
}
