/* quantize/mixed/perturb.c - states of the base and its branches. */
#include "quantize/mixed/perturb.h"

#include <assert.h>
#include <stdlib.h>

#include "runtime/eval.h"
#include "runtime/forward/forward.h"

typedef struct {
    float *x;   /* [tokens, fwd_state] */
    bool fresh; /* is behind the layer that the base stands before */
} branch;

struct perturb {
    const model *m;
    pool *p;
    int64_t n, len, n_branches, room;
    int32_t *ids;
    float *x; /* the base's */
    branch *b;
    lq_arena scratch;
};

static lq_status perturb_no_memory(lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, "no memory for trying out rounded weights");
}

static size_t state_floats(const perturb *q)
{
    return (size_t)(q->n * q->len * fwd_state(q->m->cfg));
}

static lq_status embed(perturb *q, float *x, const model *m, lq_err *err)
{
    return fwd_embed(m, x, q->ids, q->n, q->len, MM_F32, &q->scratch, q->p, err);
}

/* Windows that are run, and the tokens of each. */
static void cut(int64_t *windows, int64_t *tokens, const arch_config *c, int64_t n, int64_t len,
                int64_t branches)
{
    int64_t all = PERTURB_STATE_BYTES / (int64_t)sizeof(float) / (fwd_state(c) * (branches + 1));
    all = all > PERTURB_TOKENS ? PERTURB_TOKENS : all < 32 ? 32 : all;
    *tokens = len < PERTURB_WINDOW ? len : PERTURB_WINDOW;
    if (*tokens > all) *tokens = all;
    *windows = all / *tokens < n ? all / *tokens : n;
}

size_t perturb_bytes(const arch_config *c, int64_t n, int64_t len, int64_t branches, int threads)
{
    int64_t windows, tokens;
    cut(&windows, &tokens, c, n, len, branches);
    return (size_t)(windows * tokens * fwd_state(c) * (branches + 1)) * sizeof(float) +
           fwd_layer_scratch(c, windows * tokens, threads);
}

lq_status perturb_open(perturb **out, const model *frame, const cal_samples *samples,
                       int64_t branches, pool *p, lq_err *err)
{
    perturb *q = calloc(1, sizeof *q);
    const arch_config *c = frame->cfg;
    *out = NULL;
    if (!q) return perturb_no_memory(err);
    q->m = frame;
    q->p = p;
    q->room = branches;
    cut(&q->n, &q->len, c, samples->n, samples->len, branches);
    q->ids = malloc((size_t)(q->n * q->len) * sizeof *q->ids);
    q->x = malloc(state_floats(q) * sizeof *q->x);
    q->b = calloc((size_t)branches + 1, sizeof *q->b);
    lq_status s = q->ids && q->x && q->b ? LQ_OK : perturb_no_memory(err);
    for (int64_t i = 0; i < q->n && !s; i++) /* evenly spaced windows, from their start */
        memcpy(q->ids + i * q->len, samples->ids + i * samples->n / q->n * samples->len,
               (size_t)q->len * sizeof *q->ids);
    if (!s)
        s = lq_arena_init(&q->scratch, fwd_layer_scratch(c, q->n * q->len, pool_threads(p)), err);
    if (!s) s = embed(q, q->x, q->m, err);
    if (s)
        perturb_close(q);
    else
        *out = q;
    return s;
}

void perturb_close(perturb *q)
{
    if (!q) return;
    for (int64_t i = 0; q->b && i < q->n_branches; i++)
        free(q->b[i].x);
    free(q->b);
    free(q->x);
    free(q->ids);
    lq_arena_free(&q->scratch);
    free(q);
}

/* A branch with a state of its own, not yet filled. */
static lq_status add_branch(perturb *q, int64_t *id, float **x, lq_err *err)
{
    assert(q->n_branches < q->room);
    branch *b = &q->b[q->n_branches];
    *b = (branch){ .x = malloc(state_floats(q) * sizeof *b->x) };
    if (!b->x) return perturb_no_memory(err);
    *x = b->x;
    *id = q->n_branches++;
    return LQ_OK;
}

lq_status perturb_embed(perturb *q, int64_t *id, const qt_tensor *table, lq_err *err)
{
    float *x;
    model m = *q->m;
    m.embed = *table;
    lq_status s = add_branch(q, id, &x, err);
    return s ? s : embed(q, x, &m, err);
}

static lq_status run_branch(perturb *q, float *x, int64_t layer, const model_layer *l, lq_err *err)
{
    return fwd_layer(q->m->cfg, l, layer, x, q->n, q->len, MM_F32, NULL, NULL, &q->scratch, q->p,
                     err);
}

lq_status perturb_layer(perturb *q, int64_t *id, int64_t layer, const model_layer *l, lq_err *err)
{
    float *x;
    lq_status s = add_branch(q, id, &x, err);
    if (s) return s;
    memcpy(x, q->x, state_floats(q) * sizeof *x);
    q->b[*id].fresh = true;
    return run_branch(q, x, layer, l, err);
}

lq_status perturb_advance(perturb *q, int64_t layer, const model_layer *l, const lq_job *job,
                          lq_err *err)
{
    lq_status s = run_branch(q, q->x, layer, l, err);
    for (int64_t i = 0; i < q->n_branches && !s; i++) {
        branch *b = &q->b[i];
        if (lq_stopped(job)) return lq_fail(err, LQ_EINTR, "interrupted");
        if (!b->fresh) s = run_branch(q, b->x, layer, l, err);
        b->fresh = false;
    }
    return s;
}

typedef struct {
    const float *base, *other; /* logits */
    int64_t V;
    double kl[PERTURB_ROWS];
} rows;

static void one_row(void *ctx, int64_t r, int thread)
{
    (void)thread;
    rows *w = ctx;
    w->kl[r] = eval_position(w->other + r * w->V, w->base + r * w->V, w->V, 0).kl;
}

lq_status perturb_kl(perturb *q, double *kl, int64_t id, const model_linear *head,
                     const lq_job *job, lq_err *err)
{
    const int64_t V = q->m->cfg->vocab, D = q->m->cfg->hidden, T = q->n * q->len;
    float *x = id < 0 ? q->x : q->b[id].x;
    float *logits = malloc(2 * (size_t)(PERTURB_ROWS * V) * sizeof *logits);
    float *other = logits + PERTURB_ROWS * V;
    rows w = { logits, other, V, { 0 } };
    lq_arena scratch = { 0 };
    model m = *q->m;
    if (head) m.head = *head;
    lq_status s = logits ? LQ_OK : perturb_no_memory(err);
    *kl = 0;
    if (!s)
        s = lq_arena_init(&scratch, fwd_logits_scratch(q->m->cfg, PERTURB_ROWS, pool_threads(q->p)),
                          err);
    for (int64_t r = 0; r < T && !s; r += PERTURB_ROWS) {
        const int64_t n = T - r < PERTURB_ROWS ? T - r : PERTURB_ROWS;
        if (lq_stopped(job)) s = lq_fail(err, LQ_EINTR, "interrupted");
        if (!s) s = fwd_logits(q->m, logits, q->x + r * D, n, MM_F32, &scratch, q->p, err);
        if (!s) s = fwd_logits(&m, other, x + r * D, n, MM_F32, &scratch, q->p, err);
        if (s) break;
        pool_run(q->p, n, one_row, &w);
        for (int64_t i = 0; i < n; i++)
            *kl += w.kl[i] / (double)T;
    }
    lq_arena_free(&scratch);
    free(logits);
    return s;
}
