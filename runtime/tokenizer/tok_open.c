/* runtime/tokenizer/tok_open.c - a blob checked whole, then used in place. */
#include "runtime/tokenizer/tok_int.h"

#include "base/file.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>

static lq_status bad(lq_err *err, const char *what)
{
    return lq_fail(err, LQ_EFORMAT, "tokenizer blob: %s", what);
}

/* ---- sections ---- */
static lq_status check_sections(const tok_head *h, size_t bytes, lq_err *err)
{
    const struct {
        const char *name;
        const tok_section *s;
        size_t element;
    } all[] = { { "heap", &h->heap, 1 },
                { "tokens", &h->tokens, sizeof(tok_str) },
                { "vocab", &h->vocab, sizeof(uint32_t) },
                { "merges", &h->merges, sizeof(tok_merge) },
                { "scores", &h->scores, sizeof(double) },
                { "added", &h->added, sizeof(tok_added) },
                { "post", &h->post, sizeof(int32_t) },
                { "trie", &h->trie, sizeof(tok_edge) },
                { "data", &h->data, 1 },
                { "normalizer", &h->ops[0], sizeof(tok_op) },
                { "pre_tokenizer", &h->ops[1], sizeof(tok_op) },
                { "post_processor", &h->ops[2], sizeof(tok_op) },
                { "decoder", &h->ops[3], sizeof(tok_op) } };
    for (size_t i = 0; i < LQ_COUNT(all); i++) {
        const tok_section *s = all[i].s;
        if (s->off % 8 || s->off < sizeof *h || s->off > bytes ||
            s->n > (bytes - (size_t)s->off) / all[i].element)
            return lq_fail(
                err, LQ_EFORMAT,
                "tokenizer blob: section %s: %llu elements of %zu bytes at %llu in %zu bytes",
                all[i].name, (unsigned long long)s->n, all[i].element, (unsigned long long)s->off,
                bytes);
    }
    return LQ_OK;
}

static bool has_trie(const tok_head *h)
{
    return h->model == TOK_UNIGRAM || h->model == TOK_WORDPIECE;
}

static lq_status check_head(const tok_head *h, size_t bytes, lq_err *err)
{
    lq_status s = check_sections(h, bytes, err);
    if (s) return s;
    if (h->model >= TOK_N_MODELS) return bad(err, "unknown model");
    if (h->tokens.n > TOK_MAX_IDS || h->heap.n > UINT32_MAX / 2) return bad(err, "too large");
    if (h->unk != TOK_NONE && h->unk >= h->tokens.n) return bad(err, "unk is no token");
    if (h->model == TOK_UNIGRAM && h->scores.n != h->tokens.n)
        return bad(err, "scores: expected one per token");
    size_t vocab = (size_t)h->vocab.n, merges = (size_t)h->merges.n;
    if (vocab == 0 || vocab & (vocab - 1)) return bad(err, "vocab: expected a power of two slots");
    if (h->model == TOK_BPE && (merges == 0 || merges & (merges - 1)))
        return bad(err, "merges: expected a power of two slots");
    if (has_trie(h) && (h->trie.n == 0 || h->trie.n & (h->trie.n - 1)))
        return bad(err, "trie: expected a power of two slots");
    if (h->model == TOK_WORDPIECE && (h->unk == TOK_NONE || h->prefix.off == TOK_NONE))
        return bad(err, "WordPiece without its unk or prefix");
    for (int i = 0; i < TOK_N_STAGES; i++)
        if (h->ops[i].n > TOK_MAX_OPS) return bad(err, "too many steps in a stage");
    return LQ_OK;
}

/* Whether s lies within the heap on borders of characters (the heap as a whole is valid). */
static bool text_ok(const tok_tokenizer *t, tok_str s)
{
    uint64_t n = t->head->heap.n, end = (uint64_t)s.off + s.len;
    if (end > n) return false;
    return (s.off == n || (t->heap[s.off] & 0xC0) != 0x80) &&
           (end == n || (t->heap[end] & 0xC0) != 0x80);
}

static bool optional_ok(const tok_tokenizer *t, tok_str s)
{
    return s.off == TOK_NONE || text_ok(t, s);
}

static bool used(const tok_tokenizer *t, uint32_t id)
{
    return id < t->n_tokens && t->tokens[id].off != TOK_NONE;
}

static lq_status check_tables(const tok_tokenizer *t, lq_err *err)
{
    const tok_head *h = t->head;
    size_t empty = 0;
    if (!lq_utf8_valid(t->heap, (size_t)h->heap.n, NULL)) return bad(err, "text is no UTF-8");
    for (size_t i = 0; i < t->n_tokens; i++)
        if (!optional_ok(t, t->tokens[i])) return bad(err, "a token outside the text");
    for (size_t i = 0; i <= t->vocab_mask; i++) {
        if (t->vocab[i] == 0)
            empty++;
        else if (!used(t, t->vocab[i] - 1))
            return bad(err, "vocab: a slot without its token");
    }
    if (!empty) return bad(err, "vocab: no empty slot");
    if (!optional_ok(t, h->prefix) || !optional_ok(t, h->suffix))
        return bad(err, "prefix or suffix");
    if (h->unk != TOK_NONE && !used(t, h->unk)) return bad(err, "unk is no token");
    empty = h->merges.n == 0;
    for (size_t i = 0; i < h->merges.n; i++) {
        const tok_merge *m = &t->merges[i];
        if (m->rank == TOK_NONE)
            empty++;
        else if (!used(t, m->left) || !used(t, m->right) || !used(t, m->id))
            return bad(err, "merges: a pair without its tokens");
    }
    if (!empty) return bad(err, "merges: no empty slot");
    const tok_edge *edges = (const tok_edge *)(const void *)((const uint8_t *)h + h->trie.off);
    empty = h->trie.n == 0;
    for (size_t i = 0; i < h->trie.n; i++) {
        if (edges[i].byte == 0)
            empty++;
        else if (edges[i].to <= edges[i].from || /* no way back: a walk ends */
                 (edges[i].value != TOK_NONE && !used(t, edges[i].value)))
            return bad(err, "trie: an edge to nowhere");
    }
    if (!empty) return bad(err, "trie: no empty slot");
    for (size_t i = 0; i < h->scores.n; i++)
        if (!isfinite(t->scores[i])) return bad(err, "scores: expected finite numbers");
    return LQ_OK;
}

/* ---- what is made at open: ids of added tokens, steps, tries ---- */
static lq_status index_ids(tok_tokenizer *t, lq_err *err)
{
    size_t total = 0;
    t->n_ids = t->n_tokens;
    for (size_t i = 0; i < t->n_added; i++) {
        const tok_added *a = &t->added[i];
        if (a->id >= TOK_MAX_IDS || !text_ok(t, a->text) || a->text.len == 0)
            return bad(err, "an added token's id or text");
        total += a->text.len;
        if (total > TOK_MAX_ADDED_BYTES) return bad(err, "too much text of added tokens");
        if (a->id >= t->n_ids) t->n_ids = a->id + 1;
    }
    t->added_of = malloc((t->n_ids + 1) * sizeof *t->added_of);
    t->special = calloc(t->n_ids + 1, 1);
    if (!t->added_of || !t->special) return tok_oom(err);
    memset(t->added_of, 0xFF, (t->n_ids + 1) * sizeof *t->added_of);
    for (uint32_t i = 0; i < t->n_added; i++) {
        t->added_of[t->added[i].id] = i;
        t->special[t->added[i].id] = (t->added[i].flags & TOK_SPECIAL) != 0;
    }
    for (size_t id = 0; id < t->n_ids; id++) {
        size_t n = 0;
        if (tok_token(t, (int32_t)id, &n) && n > t->longest) t->longest = n;
    }
    return LQ_OK;
}

static lq_status open_steps(tok_tokenizer *t, tok_stage stage, lq_err *err)
{
    const tok_stage_table *table = tok_stage_of(stage);
    const tok_section *sec = &t->head->ops[stage];
    const tok_op *ops = (const tok_op *)(const void *)((const uint8_t *)t->head + sec->off);
    t->steps[stage] = calloc((size_t)sec->n + 1, sizeof(tok_step));
    if (!t->steps[stage]) return tok_oom(err);
    for (size_t i = 0; i < sec->n; i++) {
        tok_step *s = &t->steps[stage][t->n_steps[stage]++];
        s->op = &ops[i];
        if (s->op->kind >= table->n_kinds)
            return lq_fail(err, LQ_EFORMAT, "tokenizer blob: %s: unknown kind %u", table->name,
                           s->op->kind);
        for (int k = 0; k < 2; k++) {
            if (s->op->s[k].off == TOK_NONE) continue;
            if (!text_ok(t, s->op->s[k])) return bad(err, "a step's text");
            s->s[k] = tok_text(t, s->op->s[k]);
            s->n[k] = s->op->s[k].len;
        }
        const tok_kind *kind = &table->kinds[s->op->kind];
        lq_status e = kind->open ? kind->open(t, s, err) : LQ_OK;
        if (e) return lq_wrap(err, e, "%s %s", table->name, kind->name);
    }
    return LQ_OK;
}

static lq_status build_added(tok_tokenizer *t, lq_err *err)
{
    static const char word[] = "[\\w\\x{200c}\\x{200d}]"; /* the library's \w has Join_Control */
    tok_run r = { .t = t, .matcher = tok_matcher_new(), .err = err };
    lq_status s = r.matcher ? LQ_OK : tok_oom(err);
    bool words = false, ok = (t->raw = tok_trie_new()) && (t->normalized = tok_trie_new());
    for (uint32_t i = 0; i < t->n_added && ok && !s; i++) {
        const tok_added *a = &t->added[i];
        const uint8_t *p = tok_text(t, a->text);
        size_t n = a->text.len;
        words = words || a->flags & TOK_SINGLE_WORD;
        if (a->flags & TOK_NORMALIZED) {
            if (!(a->flags & TOK_VERBATIM)) s = tok_normalize(&r, p, n, &p, &n);
            ok = s || n == 0 || tok_trie_add(t->normalized, p, n, i);
        } else {
            ok = tok_trie_add(t->raw, p, n, i);
        }
    }
    lq_buf_free(&r.a);
    lq_buf_free(&r.b);
    tok_matcher_free(r.matcher);
    if (!s && !ok) s = tok_oom(err);
    if (!s && words) s = tok_pattern_new(&t->word, word, sizeof word - 1, true, err);
    return s;
}

static lq_status open_trie(tok_tokenizer *t, lq_err *err)
{
    const tok_head *h = t->head;
    double lowest = 0;
    if (!has_trie(h)) return LQ_OK;
    t->all = tok_trie_view((const tok_edge *)(const void *)((const uint8_t *)h + h->trie.off),
                           (size_t)h->trie.n);
    if (!t->all) return tok_oom(err);
    for (size_t id = 0; id < h->scores.n; id++)
        if (id == 0 || t->scores[id] < lowest) lowest = t->scores[id];
    t->unk_score = lowest - 10.0; /* the library's penalty */
    return LQ_OK;
}

/* Tokens may share text with nothing: a blob of overlapping tokens would take quadratic time. */
static lq_status check_longest(const tok_tokenizer *t, lq_err *err)
{
    return t->longest > TOK_MAX_ADDED_BYTES ? bad(err, "a token above 16 MiB") : LQ_OK;
}

bool tok_blob_current(const uint8_t *blob, size_t blob_bytes)
{
    return blob_bytes >= 8 && memcmp(blob, TOK_MAGIC, 8) == 0;
}

lq_status tok_open(tok_tokenizer **out, const uint8_t *blob, size_t blob_bytes, lq_err *err)
{
    *out = NULL;
    if (blob_bytes < sizeof(tok_head) || memcmp(blob, TOK_MAGIC, 8) != 0 || (uintptr_t)blob % 8)
        return bad(err, "expected its head, aligned to 8 bytes");
    const tok_head *h = (const tok_head *)(const void *)blob;
    if (h->bytes != blob_bytes)
        return lq_fail(err, LQ_EFORMAT, "tokenizer blob: expected %llu bytes, found %zu",
                       (unsigned long long)h->bytes, blob_bytes);
    lq_status s = check_head(h, blob_bytes, err);
    if (s) return s;
    tok_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return tok_oom(err);
    t->head = h;
    t->heap = blob + h->heap.off;
    t->tokens = (const tok_str *)(const void *)(blob + h->tokens.off);
    t->n_tokens = (size_t)h->tokens.n;
    t->vocab = (const uint32_t *)(const void *)(blob + h->vocab.off);
    t->vocab_mask = (size_t)h->vocab.n - 1;
    t->merges = (const tok_merge *)(const void *)(blob + h->merges.off);
    t->merge_mask = (size_t)h->merges.n - 1;
    t->scores = (const double *)(const void *)(blob + h->scores.off);
    t->added = (const tok_added *)(const void *)(blob + h->added.off);
    t->n_added = (size_t)h->added.n;
    t->post = (const int32_t *)(const void *)(blob + h->post.off);
    t->data = blob + h->data.off;
    s = check_tables(t, err);
    for (uint32_t cp = 0; cp < TOK_SHORT_CHARS && !s; cp++) {
        const uint8_t two[] = { (uint8_t)(0xC0 | cp >> 6), (uint8_t)(0x80 | (cp & 63)) };
        const uint8_t one = (uint8_t)cp;
        t->short_ids[cp] = cp < 0x80 ? tok_lookup(t, &one, 1) : tok_lookup(t, two, 2);
    }
    for (unsigned byte = 0; byte < LQ_COUNT(t->byte_ids) && !s; byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        t->byte_ids[byte] = tok_lookup(t, (const uint8_t *)name, 6);
    }
    if (!s) s = index_ids(t, err);
    if (!s) s = check_longest(t, err);
    for (int i = 0; i < TOK_N_STAGES && !s; i++)
        s = open_steps(t, (tok_stage)i, err);
    if (!s) s = build_added(t, err);
    if (!s) s = open_trie(t, err);
    if (s)
        tok_close(t);
    else
        *out = t;
    return s;
}

lq_status tok_open_file(tok_tokenizer **t, const char *path, lq_err *err)
{
    enum { MAX_FILE = 1 << 30 };
    char *json = NULL;
    uint8_t *blob = NULL;
    size_t n = 0, n_blob = 0;
    *t = NULL;
    lq_status s = lq_read_file(&json, &n, path, MAX_FILE, err);
    if (s) return s;
    s = tok_compile(&blob, &n_blob, json, n, err);
    free(json);
    if (!s) s = tok_open(t, blob, n_blob, err);
    if (s) {
        free(blob);
        return lq_wrap(err, s, "%s", path);
    }
    (*t)->owned = blob;
    return LQ_OK;
}

void tok_close(tok_tokenizer *t)
{
    if (!t) return;
    for (int i = 0; i < TOK_N_STAGES; i++) {
        for (size_t k = 0; k < t->n_steps[i]; k++)
            tok_pattern_free(t->steps[i][k].pattern);
        free(t->steps[i]);
    }
    tok_pattern_free(t->word);
    tok_trie_free(t->raw);
    tok_trie_free(t->normalized);
    tok_trie_free(t->all);
    free(t->added_of);
    free(t->special);
    free(t->owned);
    free(t);
}
