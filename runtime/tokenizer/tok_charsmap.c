/* runtime/tokenizer/tok_charsmap.c - SentencePiece's precompiled_charsmap: a normal form as data.
 *
 *     u32 trie_bytes | trie: a double array of u32 units | texts, each ended by NUL
 *
 * The trie (Darts-clone) takes a prefix of the input to the offset of what replaces it.
 * `Precompiled` is what Hugging Face does with it: the shortest prefix of a grapheme of less than
 * six bytes replaces the whole grapheme, or else each character goes by itself. `SentencePiece` is
 * what SentencePiece does: the longest prefix at each place; and its treatment of white space.
 * Source: sentencepiece src/normalizer.cc and darts-clone's unit layout; the library's behaviour.
 */
#include "base/base64.h"
#include "runtime/tokenizer/tok_int.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <utf8proc.h>

enum { MAX_CHARSMAP = 1 << 26 };

typedef struct {
    const uint8_t *units, *texts;
    size_t n_units, n_texts;
} charsmap;

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* The map of a step: arg[0], arg[1] offset and length in the blob's data. */
static charsmap map_of(const tok_tokenizer *t, const tok_op *op)
{
    charsmap m = { 0 };
    if (op->arg[1] == 0) return m;
    const uint8_t *p = t->data + op->arg[0];
    const size_t n_trie = get32(p);
    m.units = p + 4;
    m.n_units = n_trie / 4;
    m.texts = p + 4 + n_trie;
    m.n_texts = op->arg[1] - 4 - n_trie;
    return m;
}

static lq_status check_map(const uint8_t *p, size_t n, lq_err *err)
{
    if (n < 4 || get32(p) % 4 || get32(p) > n - 4)
        return lq_fail(err, LQ_EFORMAT,
                       "tokenizer: precompiled_charsmap: a trie of %u bytes in %zu",
                       n < 4 ? 0 : get32(p), n);
    const size_t skip = 4 + get32(p);
    if (skip < n && p[n - 1] != 0)
        return lq_fail(err, LQ_EFORMAT, "tokenizer: precompiled_charsmap: an unended text");
    if (!lq_utf8_valid(p + skip, n - skip, NULL))
        return lq_fail(err, LQ_EFORMAT, "tokenizer: precompiled_charsmap: text is no UTF-8");
    return LQ_OK;
}

static size_t children(uint32_t unit) /* where they begin, to be combined by exclusive or */
{
    return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
}

/* What replaces the shortest or longest prefix of s[n]; its length, 0: nothing does. */
static size_t look_up(const charsmap *m, const uint8_t *s, size_t n, bool longest,
                      const uint8_t **text, size_t *n_text)
{
    size_t at = 0, found = 0;
    if (m->n_units == 0) return 0;
    uint32_t unit = get32(m->units);
    for (size_t i = 0; i < n && (longest || !found); i++) {
        at ^= children(unit) ^ s[i];
        if (at >= m->n_units) break;
        unit = get32(m->units + 4 * at);
        if ((unit & (1u << 31 | 0xFF)) != s[i]) break;
        if (!(unit >> 8 & 1)) continue;
        size_t leaf = at ^ children(unit);
        size_t value = leaf < m->n_units ? get32(m->units + 4 * leaf) & 0x7FFFFFFF : SIZE_MAX;
        if (value >= m->n_texts || (m->texts[value] & 0xC0) == 0x80) break;
        found = i + 1;
        *text = m->texts + value;
    }
    if (found) *n_text = strlen((const char *)*text);
    return found;
}

lq_status tok_open_charsmap(tok_tokenizer *t, tok_step *s, lq_err *err)
{
    const uint32_t off = s->op->arg[0], n = s->op->arg[1];
    if (off > t->head->data.n || n > t->head->data.n - off)
        return lq_fail(err, LQ_EFORMAT, "tokenizer blob: a charsmap outside its data");
    return n ? check_map(t->data + off, n, err) : LQ_OK;
}

lq_status tok_put_charsmap(tok_builder *b, tok_op *op, const uint8_t *map, size_t n, lq_err *err)
{
    if (n > MAX_CHARSMAP)
        return lq_fail(err, LQ_EVALUE,
                       "tokenizer: precompiled_charsmap: expected at most %d bytes, found %zu",
                       MAX_CHARSMAP, n);
    lq_status s = n ? check_map(map, n, err) : LQ_OK;
    op->arg[0] = (uint32_t)b->data.n;
    op->arg[1] = (uint32_t)n;
    lq_buf_add(&b->data, map, n);
    return s;
}

/* ---- Precompiled ---- */
lq_status tok_compile_charsmap(tok_builder *b, const cJSON *j, tok_op *op, lq_err *err)
{
    const char *text = tok_json_str(j, "precompiled_charsmap");
    lq_buf map = { 0 };
    lq_status s = LQ_OK;
    if (!text) return tok_put_charsmap(b, op, NULL, 0, err); /* null: changes nothing */
    if (!lq_base64(&map, text, strlen(text)))
        s = lq_fail(err, LQ_EFORMAT, "tokenizer.json: precompiled_charsmap: expected base64");
    if (!s && map.oom) s = tok_oom(err);
    if (!s) s = tok_put_charsmap(b, op, map.u, map.n, err);
    lq_buf_free(&map);
    return s;
}

static size_t grapheme(const uint8_t *s, size_t n)
{
    size_t at = 0, len;
    utf8proc_int32_t state = 0, a = (utf8proc_int32_t)lq_utf8_get(s, &len);
    for (at = len; at < n; at += len) {
        utf8proc_int32_t c = (utf8proc_int32_t)lq_utf8_get(s + at, &len);
        if (utf8proc_grapheme_break_stateful(a, c, &state)) break;
        a = c;
    }
    return at;
}

lq_status tok_run_precompiled(tok_run *r, const tok_step *st, const uint8_t *s, size_t n,
                              lq_buf *out)
{
    enum { MAX_GRAPHEME = 6 };
    const charsmap m = map_of(r->t, st->op);
    const uint8_t *text;
    size_t n_text, len;
    for (size_t i = 0, g; i < n; i += g) {
        g = grapheme(s + i, n - i);
        if (g < MAX_GRAPHEME && look_up(&m, s + i, g, false, &text, &n_text)) {
            lq_buf_add(out, text, n_text);
            continue;
        }
        for (size_t k = i; k < i + g; k += len) {
            (void)lq_utf8_get(s + k, &len);
            if (look_up(&m, s + k, len, false, &text, &n_text))
                lq_buf_add(out, text, n_text);
            else
                lq_buf_add(out, s + k, len);
        }
    }
    return LQ_OK;
}

/* ---- SentencePiece: arg[2] flags ---- */
static const uint8_t SPACE[] = { 0xE2, 0x96, 0x81 };

/* What the input at s[n] begins with, normalized; its length. User-defined tokens stay. */
static size_t normal_prefix(const tok_run *r, const charsmap *m, const uint8_t *s, size_t n,
                            const uint8_t **text, size_t *n_text)
{
    size_t len;
    if (tok_trie_longest(r->t->normalized, s, n, &len) != TOK_NONE) return *text = s, *n_text = len;
    size_t found = look_up(m, s, n, true, text, n_text);
    if (found) return found;
    (void)lq_utf8_get(s, &len);
    return *text = s, *n_text = len;
}

static void put_escaped(lq_buf *out, const uint8_t *s, size_t n, bool escape)
{
    for (size_t i = 0; i < n; i++) {
        if (escape && s[i] == ' ')
            lq_buf_add(out, SPACE, sizeof SPACE);
        else
            lq_buf_add(out, s + i, 1);
    }
}

lq_status tok_run_sentencepiece(tok_run *r, const tok_step *st, const uint8_t *s, size_t n,
                                lq_buf *out)
{
    const charsmap m = map_of(r->t, st->op);
    const uint32_t f = st->op->arg[2];
    const bool squeeze = (f & TOK_SP_SQUEEZE) != 0, escape = (f & TOK_SP_ESCAPE) != 0;
    const bool dummy = (f & TOK_SP_PREFIX) && (r->first || !(f & TOK_SP_FIRST_ONLY));
    const uint8_t *space = escape ? SPACE : (const uint8_t *)" ";
    const size_t n_space = escape ? sizeof SPACE : 1;
    const uint8_t *text;
    size_t n_text, i = 0, len;
    for (; squeeze && i < n; i += len) {
        len = normal_prefix(r, &m, s + i, n - i, &text, &n_text);
        if (n_text != 1 || text[0] != ' ') break;
    }
    if (i == n) return LQ_OK;
    if (dummy && !(f & TOK_SP_SUFFIX)) lq_buf_add(out, space, n_space);
    bool after_space = squeeze;
    for (; i < n; i += len) {
        len = normal_prefix(r, &m, s + i, n - i, &text, &n_text);
        for (; after_space && n_text && *text == ' '; n_text--)
            text++;
        if (n_text) {
            put_escaped(out, text, n_text, escape);
            after_space = squeeze && text[n_text - 1] == ' ';
        }
    }
    while (squeeze && out->n >= n_space && memcmp(out->u + out->n - n_space, space, n_space) == 0)
        out->n -= n_space;
    if (dummy && (f & TOK_SP_SUFFIX)) lq_buf_add(out, space, n_space);
    return LQ_OK;
}
