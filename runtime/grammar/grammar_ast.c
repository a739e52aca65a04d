/* runtime/grammar/grammar_ast.c - rules as trees, built by the front ends. See grammar_int.h. */
#include "runtime/grammar/grammar_int.h"

#include "base/machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void ga_open(ga_builder *b, lq_err *err)
{
    *b = (ga_builder){ .err = err };
    b->status = lq_arena_init(&b->arena, 0, err);
}

void ga_close(ga_builder *b)
{
    const size_t used = b->arena.used;
    lq_arena_free(&b->arena);
    machine_give_back(used);
    free(b->rules);
    b->rules = NULL;
}

void ga_fail(ga_builder *b, lq_status s, const char *fmt, ...)
{
    if (b->status) return;
    char msg[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    b->status = lq_fail(b->err, s, "%s", msg);
}

void *ga_push(ga_builder *b, size_t bytes)
{
    if (bytes > GR_MAX_TREE_BYTES || b->arena.used > GR_MAX_TREE_BYTES - bytes)
        ga_fail(b, LQ_EVALUE, "the grammar is too large: more than %d bytes", GR_MAX_TREE_BYTES);
    void *p = b->status ? NULL : lq_push(&b->arena, bytes);
    if (!p) ga_fail(b, LQ_ENOMEM, "grammar: out of memory");
    return p;
}

static ga_node *node(ga_builder *b, ga_kind kind)
{
    if (++b->n_nodes > GR_MAX_TREE)
        ga_fail(b, LQ_EVALUE, "the grammar is too large: more than %d parts", GR_MAX_TREE);
    ga_node *n = ga_push(b, sizeof *n);
    if (n) n->kind = kind;
    return n;
}

static uint32_t hash_name(const char *name)
{
    uint32_t h = 2166136261u; /* FNV-1a */
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 16777619u;
    return h;
}

uint32_t ga_find_rule(const ga_builder *b, uint32_t first, const char *name)
{
    uint32_t h = hash_name(name);
    for (uint32_t r = first; r < b->n_rules; r++)
        if (b->rules[r].hash == h && strcmp(b->rules[r].name, name) == 0) return r;
    return GR_NONE;
}

uint32_t ga_new_rule(ga_builder *b, const char *name)
{
    if (b->status) return 0;
    if (b->n_rules >= GR_MAX_RULES) {
        ga_fail(b, LQ_EVALUE, "the grammar is too large: more than %d rules", GR_MAX_RULES);
        return 0;
    }
    if (b->n_rules == b->cap_rules) {
        uint32_t cap = b->cap_rules ? 2 * b->cap_rules : 64;
        ga_rule *r = realloc(b->rules, cap * sizeof *r);
        if (!r) {
            ga_fail(b, LQ_ENOMEM, "grammar: out of memory");
            return 0;
        }
        b->rules = r;
        b->cap_rules = cap;
    }
    size_t n = strlen(name);
    char *copy = ga_push(b, n + 1);
    if (!copy) return 0;
    memcpy(copy, name, n);
    b->rules[b->n_rules] = (ga_rule){ .name = copy, .hash = hash_name(name) };
    return b->n_rules++;
}

ga_node *ga_ref(ga_builder *b, uint32_t rule)
{
    ga_node *n = node(b, GA_REF);
    if (n) n->rule = rule;
    return n;
}

ga_node *ga_seq(ga_builder *b) { return node(b, GA_SEQ); }
ga_node *ga_alt(ga_builder *b) { return node(b, GA_ALT); }

void ga_add(ga_node *parent, ga_node *child)
{
    if (!parent || !child) return;
    if (parent->last)
        parent->last->next = child;
    else
        parent->child = child;
    parent->last = child;
}

ga_node *ga_bytes(ga_builder *b, const char *s, size_t n)
{
    ga_node *t = node(b, GA_BYTES);
    char *copy = ga_push(b, n + 1);
    if (!t || !copy) return NULL;
    memcpy(copy, s, n);
    t->bytes = copy;
    t->n_bytes = n;
    return t;
}

ga_node *ga_text(ga_builder *b, const char *s) { return ga_bytes(b, s, strlen(s)); }

/* ---- sets of code points ---- */

static int by_lo(const void *a, const void *b)
{
    const ga_range *p = a, *q = b;
    return (p->lo > q->lo) - (p->lo < q->lo);
}

static int normalize(ga_range *r, int n)
{
    if (n > 1) qsort(r, (size_t)n, sizeof *r, by_lo);
    int k = 0;
    for (int i = 0; i < n; i++) {
        if (k && r[i].lo <= r[k - 1].hi + 1) {
            if (r[i].hi > r[k - 1].hi) r[k - 1].hi = r[i].hi;
        } else {
            r[k++] = r[i];
        }
    }
    return k;
}

/* Set operations on sorted disjoint ranges, into out[cap]; the number, or -1: no room. */
static int complement(ga_range *out, int cap, const ga_range *r, int n)
{
    uint32_t from = 0;
    int k = 0;
    for (int i = 0; i <= n; i++) {
        uint32_t to = i < n ? r[i].lo : 0x110000;
        if (to > from) {
            if (k == cap) return -1;
            out[k++] = (ga_range){ from, to - 1 };
        }
        if (i < n) from = r[i].hi + 1;
    }
    return k;
}

/* Takes the surrogates out, which UTF-8 cannot spell; at most one range more. */
static int without_surrogates(ga_range *r, int n)
{
    int k = 0;
    ga_range more = { 1, 0 };
    for (int i = 0; i < n; i++) {
        ga_range x = r[i];
        if (x.lo >= 0xd800 && x.lo <= 0xdfff) x.lo = 0xe000;
        if (x.lo < 0xd800 && x.hi > 0xdfff) more = (ga_range){ 0xe000, x.hi };
        if (x.lo < 0xd800 && x.hi >= 0xd800) x.hi = 0xd7ff;
        if (x.hi > 0x10ffff) x.hi = 0x10ffff;
        if (x.lo <= x.hi) r[k++] = x;
    }
    if (more.lo <= more.hi) r[k++] = more;
    return normalize(r, k);
}

ga_node *ga_chars(ga_builder *b, const ga_range *r, int n, bool negated)
{
    ga_node *t = node(b, GA_CHARS);
    ga_range *own = ga_push(b, ((size_t)n + 2) * sizeof *own),
             *other = ga_push(b, ((size_t)n + 2) * sizeof *own);
    if (!t || !own || !other) return NULL;
    if (n) memcpy(own, r, (size_t)n * sizeof *own);
    int k = normalize(own, n);
    if (negated) {
        k = complement(other, n + 1, own, k);
        own = other;
    }
    t->ranges = own;
    t->n_ranges = without_surrogates(own, k);
    return t;
}

/* ---- structure ---- */

/* Rules are cheap to repeat, other bodies are copied for each time. */
static ga_node *hoist(ga_builder *b, ga_node *child)
{
    if (!child || child->kind == GA_REF || (child->kind == GA_BYTES && child->n_bytes == 1) ||
        (child->kind == GA_CHARS && child->n_ranges && child->ranges[child->n_ranges - 1].hi < 128))
        return child;
    uint32_t rule = ga_new_rule(b, "");
    if (b->status) return NULL;
    b->rules[rule].body = child;
    return ga_ref(b, rule);
}

ga_node *ga_repeat(ga_builder *b, ga_node *child, int64_t min, int64_t max)
{
    if (min > GR_MAX_REPEAT || max > GR_MAX_REPEAT) {
        ga_fail(b, LQ_EVALUE, "a repetition of %lld is too long: expected at most %d",
                (long long)(max > min ? max : min), GR_MAX_REPEAT);
        return NULL;
    }
    if (min > 1 || max > 1) child = hoist(b, child);
    ga_node *t = node(b, GA_REPEAT);
    if (!t || !child) return NULL;
    t->min = min;
    t->max = max;
    ga_add(t, child);
    return t;
}

ga_node *ga_optional(ga_builder *b, ga_node *child) { return ga_repeat(b, child, 0, 1); }

ga_node *ga_chain(ga_builder *b, uint32_t sep)
{
    ga_node *t = node(b, GA_CHAIN);
    if (t) t->rule = sep;
    return t;
}
