/* runtime/engine/stages/infill.c - for texts in the middle: a few sure ids, or the end.
 *
 *     ends   ids that end an answer: they alone stay where 3 n P(end) > P(others), of n ids
 *     merge  the text of one id begins that of another: the likelier has the probability of both
 *     keep   others stay from 0.2 on, then from 1 / (m + 1) of what stayed, m of them; none: an end
 *
 * Merging only says what stays; the draw has the logits as they were. Of more than MOST ids (a request without
 * top_k) the likeliest are looked at. Source: llama.cpp, src/llama-sampler.cpp, llama_sampler_infill_apply. */
#include "runtime/engine/stages/stages.h"
#include "runtime/tokenizer/tok.h"

enum { MOST = 256, BYTES = 64 };

typedef struct {
    int32_t id;
    double p; /* 0: merged into another */
    bool ends;
    uint8_t text[BYTES];
    size_t n; /* 0: a control token, or longer */
} candidate;

static bool is_end(const smp_params *p, int32_t id)
{
    for (int i = 0; i < p->infill.n_ends; i++)
        if (p->infill.ends[i] == id) return true;
    return false;
}

/* An end that the request does not ban; -1: none. */
static int32_t free_end(const smp_params *p)
{
    for (int i = 0; i < p->infill.n_ends; i++) {
        const int32_t id = p->infill.ends[i];
        bool free = id >= 0 && (!p->mask || p->mask[id >> 5] >> (id & 31) & 1),
             listed = !p->allowed;
        for (int k = 0; k < p->n_bias; k++)
            free = free && !(p->bias[k].id == id && p->bias[k].bias == -INFINITY);
        for (int k = 0; k < p->n_allowed; k++)
            listed |= p->allowed[k] == id;
        if (free && listed) return id;
    }
    return -1;
}

/* The likeliest ids that are there, in order; returns how many. *all: how many there are. */
static int gather(candidate *v, stage_ctx *c, const float *x, const smp_params *p, int64_t *all)
{
    const double sum = stage_weights(c, x);
    int64_t left = 0;
    int n = 0;
    for (int64_t i = 0; i < c->V; i++)
        if (x[i] != -INFINITY) c->ids[left++] = (int32_t)i;
    *all = left;
    heap_make(c->ids, left, x, true);
    while (left > 0 && n < MOST) {
        const int32_t id = c->ids[0];
        candidate *k = &v[n++];
        *k = (candidate){ .id = id, .p = (double)c->w[id] / sum, .ends = is_end(p, id) };
        if (!tok_is_special(p->infill.tok, id))
            k->n = tok_token_bytes(p->infill.tok, id, k->text, BYTES);
        if (k->n > BYTES) k->n = 0;
        heap_pop_to_end(c->ids, &left, x, true);
    }
    return n;
}

static bool begins(const candidate *a, const candidate *b)
{
    return a->n && a->n <= b->n && memcmp(a->text, b->text, a->n) == 0;
}

static void merge(candidate *v, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n && v[i].p > 0; k++) {
            if (k == i || !(v[k].p > 0) || !begins(&v[i], &v[k])) continue;
            candidate *to = v[k].p > v[i].p ? &v[k] : &v[i], *from = to == &v[k] ? &v[i] : &v[k];
            to->p += from->p;
            from->p = 0;
        }
}

/* Ends, and others of at least `least`, move to the front; returns how many. *sum: what they have; *others:
 * how many are no ends. */
static int keep(candidate *v, int n, double least, double *sum, int *others)
{
    int k = 0;
    *sum = 0;
    *others = 0;
    for (int i = 0; i < n; i++) {
        if (!v[i].ends && v[i].p < least) continue;
        *others += !v[i].ends;
        *sum += v[i].p;
        v[k++] = v[i];
    }
    return k;
}

void stage_infill(stage_ctx *c, float *x, const smp_params *p)
{
    candidate v[MOST];
    int64_t all;
    double ends = 0, sum;
    int others, n = gather(v, c, x, p, &all);
    for (int i = 0; i < n; i++)
        ends += v[i].ends ? v[i].p : 0;
    if (3 * ends * (double)all > 1 - ends) {
        n = keep(v, n, INFINITY, &sum, &others);
    } else {
        merge(v, n);
        n = keep(v, n, 0.2, &sum, &others);
        for (int i = 0; i < n; i++)
            v[i].p /= sum;
        if (others) n = keep(v, n, 1.0 / (others + 1), &sum, &others);
        if (!others && !n && free_end(p) >= 0) v[n++].id = free_end(p);
        if (!others && n > 1) n = 1;
    }
    if (!n) return; /* nothing may end the answer */
    for (int i = 0; i < n; i++)
        c->ids[i] = v[i].id;
    if (x[v[0].id] == -INFINITY) x[v[0].id] = 1;
    stage_keep(c, x, n);
}
