/* runtime/grammar/grammar_vocab.c - a vocabulary as a trie of its tokens' bytes. See grammar_int.h. */
#include "runtime/grammar/grammar_int.h"

#include "base/os.h"

#include <stdlib.h>

static lq_status grammar_vocab_no_memory(gr_vocab *v, lq_err *err)
{
    gr_vocab_close(v);
    return lq_fail(err, LQ_ENOMEM, "grammar: out of memory for the vocabulary");
}

void gr_vocab_close(gr_vocab *v)
{
    if (!v) return;
    free(v->bytes);
    free(v->special);
    free(v->off);
    free(v->byte);
    free(v->depth);
    free(v->end);
    free(v->token);
    free(v->same);
    free(v->held);
    free(v);
}

static int by_bytes(const void *a, const void *b, void *ctx)
{
    const gr_vocab *v = ctx;
    int32_t i, j;
    memcpy(&i, a, sizeof i);
    memcpy(&j, b, sizeof j);
    size_t n = v->off[i + 1] - v->off[i], m = v->off[j + 1] - v->off[j];
    int c = memcmp(v->bytes + v->off[i], v->bytes + v->off[j], n < m ? n : m);
    return c ? c : n != m ? (n > m) - (n < m) : (i > j) - (i < j);
}

/* From v->bytes and v->off. Each byte of a token makes a node at most. */
static bool make_trie(gr_vocab *v)
{
    size_t V = (size_t)v->V, most = v->off[V] + 1;
    int32_t *order = malloc((V + 1) * sizeof *order);
    v->byte = malloc(most);
    v->depth = malloc(most * sizeof *v->depth);
    v->end = malloc(most * sizeof *v->end);
    v->token = malloc(most * sizeof *v->token);
    v->same = malloc((V + 1) * sizeof *v->same);
    for (size_t i = 0; i < V; i++)
        if (v->off[i + 1] - v->off[i] > v->max_depth)
            v->max_depth = (uint32_t)(v->off[i + 1] - v->off[i]);
    uint32_t *path = malloc((v->max_depth + 1) * sizeof *path); /* nodes from the root on */
    bool ok = order && v->byte && v->depth && v->end && v->token && v->same && path;
    size_t n = 0, have = 0;
    for (size_t i = 0; ok && i < V; i++)
        if (v->off[i + 1] > v->off[i]) order[n++] = (int32_t)i;
    if (ok) os_sort(order, n, sizeof *order, by_bytes, v);
    for (size_t i = 0; ok && i < n; i++) {
        int32_t id = order[i];
        const uint8_t *s = v->bytes + v->off[id];
        size_t len = v->off[id + 1] - v->off[id], k = 0;
        while (k < have && k < len && v->byte[path[k]] == s[k])
            k++;
        while (have > k)
            v->end[path[--have]] = v->n_nodes;
        v->same[id] = -1;
        if (k == len) { /* the same bytes as the one before */
            v->same[order[i - 1]] = id;
            have = len;
            continue;
        }
        for (; have < len; have++) {
            uint32_t at = path[have] = v->n_nodes++;
            v->byte[at] = s[have];
            v->depth[at] = (uint32_t)have + 1;
            v->token[at] = have + 1 == len ? id : -1;
        }
    }
    while (ok && have > 0)
        v->end[path[--have]] = v->n_nodes;
    free(order);
    free(path);
    return ok;
}

lq_status gr_vocab_of(gr_vocab **out, const uint8_t *bytes, const size_t *off, int64_t V,
                      lq_err *err)
{
    *out = NULL;
    gr_vocab *v = calloc(1, sizeof *v);
    if (!v) return grammar_vocab_no_memory(v, err);
    v->V = V;
    v->bytes = malloc(off[V] + 1);
    v->off = malloc(((size_t)V + 1) * sizeof *v->off);
    v->held = calloc(1, sizeof *v->held);
    v->special = malloc(((size_t)V + 1) * sizeof *v->special);
    if (!v->special || !v->bytes || !v->off || !v->held) return grammar_vocab_no_memory(v, err);
    if (off[V]) memcpy(v->bytes, bytes, off[V]);
    memcpy(v->off, off, ((size_t)V + 1) * sizeof *off);
    for (int64_t i = 0; i < V; i++)
        if (off[i + 1] > off[i] && bytes[off[i]] == GR_SPECIAL && off[i + 1] - off[i] > 1)
            v->special[v->n_special++] = (int32_t)i;
    if (!make_trie(v)) return grammar_vocab_no_memory(v, err);
    *out = v;
    return LQ_OK;
}

lq_status gr_vocab_open(gr_vocab **out, const tok_tokenizer *t, int64_t V, lq_err *err)
{
    *out = NULL;
    size_t longest = tok_max_token_bytes(t), n = 0, cap = 0;
    size_t *off = calloc((size_t)V + 1, sizeof *off);
    uint8_t *bytes = NULL, *one = malloc(longest + 1);
    lq_status s = off && one ? LQ_OK : LQ_ENOMEM;
    for (int64_t i = 0; i < V && !s; i++) {
        off[i] = n;
        if (i >= tok_vocab(t)) continue;
        size_t len = tok_token_bytes(t, (int32_t)i, one, longest);
        if (len == 0 || len > longest) continue;
        if (one[0] == GR_SPECIAL && !tok_is_special(t, (int32_t)i)) continue; /* in no text */
        if (n + len + 1 > cap) {
            uint8_t *more = realloc(bytes, cap = 2 * (n + len) + 4096);
            if (!more) {
                s = LQ_ENOMEM;
                break;
            }
            bytes = more;
        }
        if (tok_is_special(t, (int32_t)i)) bytes[n++] = GR_SPECIAL;
        memcpy(bytes + n, one, len);
        n += len;
    }
    if (!s) {
        off[V] = n;
        s = gr_vocab_of(out, bytes, off, V, err);
    } else {
        lq_fail(err, s, "grammar: out of memory for the vocabulary");
    }
    free(bytes);
    free(off);
    free(one);
    return s;
}

const uint8_t *gr_special_at(const gr_vocab *v, const char *s, size_t *n)
{
    const uint8_t *found = NULL;
    *n = 0;
    for (int64_t i = 0; v && i < v->n_special; i++) {
        const uint8_t *t = v->bytes + v->off[v->special[i]];
        size_t len = v->off[v->special[i] + 1] - v->off[v->special[i]] - 1;
        if (len <= *n || t[1] != (uint8_t)s[0] || strncmp((const char *)t + 1, s, len) != 0)
            continue;
        found = t;
        *n = len;
    }
    return found;
}
