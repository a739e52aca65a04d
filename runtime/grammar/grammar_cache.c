/* runtime/grammar/grammar_cache.c - compiled grammars by the hash of their text. See grammar.h. */
#include "base/hash.h"
#include "runtime/grammar/grammar_int.h"

#include <stdlib.h>

typedef struct {
    lq_hash key;
    grammar *g; /* NULL: free */
    uint64_t used;
} entry;

struct gr_cache {
    pthread_mutex_t lock;
    const tok_tokenizer *tok;
    int64_t V;
    gr_vocab *v; /* made when first needed */
    entry *entries;
    int n;
    uint64_t clock;
};

lq_status gr_cache_open(gr_cache **out, const tok_tokenizer *tok, int64_t V, int n, lq_err *err)
{
    gr_cache *c = *out = calloc(1, sizeof *c);
    entry *e = calloc((size_t)n, sizeof *e);
    if (!c || !e) {
        free(c);
        free(e);
        *out = NULL;
        return lq_fail(err, LQ_ENOMEM, "grammar: out of memory");
    }
    pthread_mutex_init(&c->lock, NULL);
    c->tok = tok;
    c->V = V;
    c->entries = e;
    c->n = n;
    return LQ_OK;
}

void gr_cache_close(gr_cache *c)
{
    if (!c) return;
    for (int i = 0; i < c->n; i++)
        gr_unref(c->entries[i].g);
    gr_vocab_close(c->v);
    pthread_mutex_destroy(&c->lock);
    free(c->entries);
    free(c);
}

static bool hash_spec(lq_hash *out, const gr_spec *s)
{
    lq_hasher *h = lq_hasher_new();
    if (!h) return false;
    size_t n_blanks = s->blanks ? strlen(s->blanks) + 1 : 0;
    uint8_t flags[4] = { (uint8_t)s->kind, s->compact, s->any_properties, s->strict };
    lq_hasher_add(h, flags, sizeof flags);
    lq_hasher_add(h, &n_blanks, sizeof n_blanks);
    lq_hasher_add(h, s->blanks, n_blanks);
    lq_hasher_add(h, s->text, s->n);
    *out = lq_hasher_end(h);
    return true;
}

/* Under the lock: the grammar of a key, referenced and marked as used, or NULL. */
static grammar *find(gr_cache *c, const lq_hash *key)
{
    for (int i = 0; i < c->n; i++) {
        entry *e = &c->entries[i];
        if (!e->g || memcmp(e->key.b, key->b, sizeof key->b) != 0) continue;
        e->used = ++c->clock;
        return gr_ref(e->g);
    }
    return NULL;
}

static void grammar_cache_keep(gr_cache *c, const lq_hash *key, grammar *g)
{
    entry *old = &c->entries[0];
    for (int i = 1; i < c->n; i++)
        if (c->entries[i].used < old->used) old = &c->entries[i];
    gr_unref(old->g);
    *old = (entry){ *key, gr_ref(g), ++c->clock };
}

/* What nobody uses is not worth refusing others for. */
static void forget(gr_cache *c)
{
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < c->n; i++) {
        gr_unref(c->entries[i].g);
        c->entries[i] = (entry){ 0 };
    }
    pthread_mutex_unlock(&c->lock);
}

lq_status gr_cache_get(gr_cache *c, grammar **out, const gr_spec *spec, lq_err *err)
{
    lq_hash key;
    lq_status s = LQ_OK;
    *out = NULL;
    if (!hash_spec(&key, spec)) return lq_fail(err, LQ_ENOMEM, "grammar: out of memory");
    pthread_mutex_lock(&c->lock);
    if (!c->v) s = gr_vocab_open(&c->v, c->tok, c->V, err);
    if (!s) *out = find(c, &key);
    pthread_mutex_unlock(&c->lock);
    if (s || *out) return s;
    s = gr_compile(out, spec, c->v, err); /* outside the lock: it may take long */
    if (s == LQ_ENOMEM) {
        forget(c);
        s = gr_compile(out, spec, c->v, err);
    }
    if (s) return s;
    pthread_mutex_lock(&c->lock);
    grammar *other = find(c, &key);
    if (other)
        gr_unref(other); /* another thread was faster: this one lives as long as its request */
    else
        grammar_cache_keep(c, &key, *out);
    pthread_mutex_unlock(&c->lock);
    return LQ_OK;
}
