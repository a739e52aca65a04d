/* quantize/tune/tune.c - a training loop that holds one layer's f32 weights at a time.
 *
 * A step on a batch of windows:
 *
 *     layers 0..L-1:  expand the layer's weights; keep its input; x := layer(x)
 *     KL of the head's distributions against the teacher's; its gradient d
 *     layers L-1..0:  expand again; d := backward(d), with dW; step the layer's parameters
 *
 * A layer's parameters are no more needed once its backward pass is done, so they are stepped at
 * once and no gradient outlives its layer, or its expert (quantize/tune/params.h). */
#include "quantize/tune/tune.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mapped.h"
#include "base/random.h"
#include "calib/forward_pass.h"
#include "calib/spill.h"
#include "quantize/methods/effort.h"
#include "quantize/tune/checkpoint.h"
#include "quantize/tune/params.h"

enum { HELD_BACK = 16 };

typedef struct {
    src_source *src;
    const qz_plan *plan;
    const qz_state *state;
    const int32_t *all; /* [n][len] */
    int64_t n;
    tune_opts o;
    pool *p;
    const lq_job *job;
    const arch_config *c;
    model frame;     /* the source's */
    model quantized; /* the same with the result's embedding */
    grad_ctx *g;
    gemm_dev *on;
    int64_t chunk, len, n_train; /* windows per chunk; tokens; windows trained on */
    tune_params params;          /* of the layers */
    tune_vector final;           /* n = 0: it has no weights */
    const float *final_bias;
    const plan_entry *final_e;
    kl_head teacher_head, head;
    float *x;       /* [L + 1][batch * len, hidden]: inputs of the layers, the output */
    float *d, *y;   /* [batch * len, hidden] */
    float *teacher; /* [n * len, hidden] after the final norm; a chunk of them where fd has all */
    int fd;         /* -1: none */
    float *logits;
    int32_t *ids; /* [batch * len] */
    struct {
        int64_t step, at; /* the next one; how many windows of `order` are used up */
        uint64_t seed;
        double kl_before;
    } point;
    int64_t *order;      /* [n_train] */
    int64_t saved_step;  /* -1: nothing is kept */
    double saved, spent; /* when that was, and how long it took */
    bool answers_saved;
    lq_arena arena;
} tuner;

/* All of its weights, since all are counted fast: not by a limit of memory, which the result does
 * not depend on. */
static int64_t weights(const src_source *src)
{
    int64_t n = 0;
    for (int64_t i = 0; i < src_n_tensors(src); i++)
        n += src_elements(src_tensor_at(src, i));
    return n;
}

bool tune_small(const src_source *src) { return weights(src) <= TUNE_SMALL_WEIGHTS; }

int tune_default_steps(const qz_method *m, const src_source *src)
{
    const int64_t budget = (int64_t)1 << 33 /* steps times weights */, least = 100, most = 800;
    if (!(m->on & QZ_OPT_TUNE) || !grad_covers(src_config(src))) return 0;
    const int64_t n = weights(src);
    int64_t steps = n > 0 ? budget / n : most;
    steps = steps < least ? least : steps > most ? most : steps;
    return (int)(2 * steps < QZ_STEPS_MANY ? steps : 2 * steps); /* many are on half the windows */
}

double tune_rate_at(int step, int steps)
{
    enum { WARM_UP = 10 };
    const double up = step < WARM_UP ? (step + 1.0) / WARM_UP : 1;
    return up * (0.5 + 0.5 * cos(3.14159265358979323846 * step / steps));
}

bool tune_moves_codes(int steps, double rate)
{
    double reach = 0;
    for (int i = 0; i < steps; i++)
        reach += rate * tune_rate_at(i, steps) * tune_code_reach(i + 1);
    return reach > 0.5 - (double)TUNE_EDGE;
}

int64_t tune_chunk(const arch_config *c, int64_t batch, int64_t len, int64_t windows)
{
    const int64_t chunk = cal_chunk(windows, len) / len, all = batch < windows ? batch : windows;
    if (c->experts || grad_reads_beside(c)) return all > chunk ? all : chunk;
    return all < chunk && grad_can_keep(c, all, len) ? all : chunk;
}

bool tune_can_keep(const arch_config *c, int64_t batch, int64_t len, int64_t windows)
{
    const int64_t chunk = tune_chunk(c, batch, len, windows);
    return batch <= chunk && grad_can_keep(c, chunk, len);
}

static void *tune_push(tuner *t, int64_t n, size_t size, lq_status *s, lq_err *err)
{
    void *v = *s ? NULL : lq_push(&t->arena, (size_t)n * size);
    if (!v && !*s) *s = lq_fail(err, LQ_ENOMEM, "no memory for tuning");
    return v;
}

/* ---- what is to be tuned ---- */

/* Embedding, final norm and head: the original's and the result's. */
static lq_status load_frame(tuner *t, lq_err *err)
{
    const int64_t rest = t->c->layers;
    const qt_tensor *embed = NULL, *head = NULL, *positions = NULL, *ple = NULL;
    const qz_item *items = t->params.items;
    const float *norm;
    int64_t n;
    size_t n_items = 0;
    lq_status s = model_load_frame(&t->frame, t->src, t->p, err);
    if (!s && t->state->layers[rest].header)
        s = qz_state_items(t->state, t->plan, rest, t->params.items, &n_items, err);
    for (size_t i = 0; i < n_items; i++) {
        if (items[i].e->role == R_EMBED) embed = &items[i].t;
        if (items[i].e->role == R_POS_EMBED) positions = &items[i].t;
        if (items[i].e->role == R_PLE_EMBED) ple = &items[i].t;
        if (items[i].e->role == R_HEAD && !items[i].e->is_bias) head = &items[i].t;
    }
    if (!head && t->plan->cfg.tied) head = embed;
    if (!s) s = dense_head(&t->teacher_head, t->src, NULL, &t->arena, t->p, err);
    t->head = t->teacher_head;
    if (!s && head) s = dense_head(&t->head, t->src, head, &t->arena, t->p, err);
    t->quantized = t->frame;
    if (embed) t->quantized.embed = *embed;
    if (positions) t->quantized.pos_embed = *positions;
    if (ple) t->quantized.ple_embed = *ple;
    t->final_e = qz_plan_find(t->plan, R_FINAL_NORM, rest, -1, false);
    if (!s) s = tune_params_vector(&t->params, &norm, &n, R_FINAL_NORM, -1, false, n_items, err);
    if (!s)
        s = tune_params_vector(&t->params, &t->final_bias, &n, R_FINAL_NORM, -1, true, n_items,
                               err);
    return s || !norm ? s : tune_vector_init(&t->final, norm, t->c->hidden, &t->arena, err);
}

static void use_device(tuner *t)
{
    const kl_head *a = &t->teacher_head, *b = &t->head;
    grad_use(t->g, t->on);
    t->teacher_head.on = t->head.on = t->on;
    gemm_dev_keep(t->on, a->W, a->V * a->K);
    if (b->W != a->W) gemm_dev_keep(t->on, b->W, b->V * b->K);
}

static lq_status load(tuner *t, lq_err *err)
{
    const arch_config *c = t->c;
    const int64_t D = c->hidden, rows = t->o.batch * t->len;
    lq_status s = LQ_OK;
    t->x = tune_push(t, (c->layers + 1) * rows * D, sizeof *t->x, &s, err);
    t->d = tune_push(t, rows * D, sizeof *t->d, &s, err);
    t->y = tune_push(t, rows * D, sizeof *t->y, &s, err);
    t->ids = tune_push(t, rows, sizeof *t->ids, &s, err);
    if (!s && t->o.spill_dir && t->n > t->chunk) s = spill_open(&t->fd, t->o.spill_dir, err);
    if (!s) s = tune_params_open(&t->params, t->o.states_dir, err);
    t->teacher =
        tune_push(t, (t->fd < 0 ? t->n : t->chunk) * t->len * D, sizeof *t->teacher, &s, err);
    t->logits = tune_push(t, (int64_t)kl_scratch(c->vocab), sizeof *t->logits, &s, err);
    const bool keep = t->o.keep && tune_can_keep(c, t->o.batch, t->len, t->n);
    if (!s) s = grad_open(&t->g, c, t->chunk, t->len, keep, t->p, err);
    if (!s && t->o.on) s = gemm_dev_open(&t->on, t->o.on, err);
    if (!s) s = load_frame(t, err);
    if (!s) use_device(t);
    for (int64_t i = 0; i < c->layers && !s; i++)
        s = tune_params_load(&t->params, i, err);
    return s;
}

/* ---- passes ---- */
static lq_status interrupted(lq_err *err) { return lq_fail(err, LQ_EINTR, "interrupted"); }

static int64_t chunk_of(const tuner *t, int64_t w, int64_t n)
{
    return n - w < t->chunk ? n - w : t->chunk;
}

/* n windows through a layer, in place. */
static lq_status forward(const tuner *t, const grad_layer *l, int64_t layer, float *x, int64_t n,
                         lq_err *err)
{
    lq_status s = LQ_OK;
    for (int64_t w = 0; w < n && !s; w += t->chunk)
        s = grad_forward(t->g, l, layer, x + w * t->len * t->c->hidden, chunk_of(t, w, n), err);
    return s;
}

/* Windows w .. w + n of the original's states, n <= chunk, and back to where they are kept. */
static float *teacher_at(const tuner *t, int64_t w)
{
    return t->fd < 0 ? t->teacher + w * t->len * t->c->hidden : t->teacher;
}

static lq_status get_teacher(const tuner *t, int64_t w, int64_t n, lq_err *err)
{
    const size_t per = (size_t)(t->len * t->c->hidden) * sizeof(float);
    return t->fd < 0 ? LQ_OK : spill_get(t->fd, t->teacher, (size_t)n * per, (size_t)w * per, err);
}

static lq_status put_teacher(const tuner *t, int64_t w, int64_t n, lq_err *err)
{
    const size_t per = (size_t)(t->len * t->c->hidden) * sizeof(float);
    return t->fd < 0 ? LQ_OK : spill_put(t->fd, t->teacher, (size_t)n * per, (size_t)w * per, err);
}

/* Who takes the windows from w on through the original: chunks are dealt out one by one. */
static int teacher_owner(const tuner *t, int64_t w)
{
    return (int)(w / t->chunk % comm_size(t->o.ranks));
}

/* Windows from .. end. */
static lq_status embed_teacher(tuner *t, int64_t from, int64_t end, lq_err *err)
{
    lq_status s = LQ_OK;
    for (int64_t w = from; w < end && !s; w += t->chunk) {
        const int64_t n = chunk_of(t, w, end);
        if (teacher_owner(t, w) != comm_rank(t->o.ranks)) continue;
        s = grad_embed(t->g, &t->frame, teacher_at(t, w), t->all + w * t->len, n, err);
        if (!s) s = put_teacher(t, w, n, err);
    }
    model_drop_embed(&t->frame);
    return s;
}

/* Through a layer; behind the last one also through the final norm. */
static lq_status advance_teacher(tuner *t, const grad_layer *l, int64_t layer, int64_t from,
                                 int64_t end, lq_err *err)
{
    const int64_t per = t->len * t->c->hidden;
    lq_status s = LQ_OK;
    for (int64_t w = from; w < end && !s; w += t->chunk) {
        const int64_t n = chunk_of(t, w, end);
        float *x = teacher_at(t, w);
        if (teacher_owner(t, w) != comm_rank(t->o.ranks)) continue;
        s = get_teacher(t, w, n, err);
        if (!s) s = grad_forward(t->g, l, layer, x, n, err);
        if (s) break;
        for (int64_t i = 0; i < n && layer + 1 == t->c->layers; i++)
            grad_norm_forward(t->g, x + i * per, x + i * per, t->frame.final_norm.w,
                              t->frame.final_norm.bias, t->len);
        s = put_teacher(t, w, n, err);
    }
    return s;
}

/* What it says to each rank's windows, to all. */
static lq_status share_teacher(tuner *t, lq_err *err)
{
    const size_t per = (size_t)(t->len * t->c->hidden) * sizeof(float);
    lq_status s = LQ_OK;
    for (int64_t w = 0; w < t->n && t->o.ranks && !s; w += t->chunk) {
        const int64_t n = chunk_of(t, w, t->n);
        const int owner = teacher_owner(t, w);
        const bool ours = owner == comm_rank(t->o.ranks);
        if (ours) s = get_teacher(t, w, n, err);
        if (!s) s = comm_broadcast(t->o.ranks, owner, teacher_at(t, w), (size_t)n * per, err);
        if (!s && !ours) s = put_teacher(t, w, n, err);
    }
    return s;
}

static lq_status run_teacher_on(tuner *t, int64_t from, int64_t end, lq_err *err)
{
    lq_status s = embed_teacher(t, from, end, err);
    for (int64_t i = 0; i < t->c->layers && !s; i++) {
        lq_arena a = { 0 };
        grad_layer l;
        lq_report(t->job, "the original's answers",
                  (double)i + (double)t->c->layers * (double)from / (double)(end - from),
                  (double)t->c->layers * (double)t->n / (double)(end - from));
        if (lq_stopped(t->job)) s = interrupted(err);
        if (!s) s = dense_layer(&l, t->params.W, t->src, i, t->len, &a, t->p, err);
        if (!s) s = advance_teacher(t, &l, i, from, end, err);
        src_release_all(t->src);
        lq_arena_free(&a);
    }
    return s;
}

/* All windows go through a layer before the next, whose weights are then expanded once; but where layers read more than
 * x only those of a chunk. */
static lq_status run_teacher(tuner *t, lq_err *err)
{
    const int64_t span = grad_reads_beside(t->c) ? t->chunk : t->n;
    lq_status s = LQ_OK;
    for (int64_t w = 0; w < t->n && !s; w += span) {
        if (span < t->n && teacher_owner(t, w) != comm_rank(t->o.ranks)) continue;
        s = run_teacher_on(t, w, w + span < t->n ? w + span : t->n, err);
    }
    return s ? s : share_teacher(t, err);
}

/* The KL of windows which[0..n), whose final hidden states are t->y, is added to *kl. */
static lq_status add_kl(double *kl, tuner *t, const int64_t *which, int64_t n, lq_err *err)
{
    const int64_t per = t->len * t->c->hidden;
    lq_status s = LQ_OK;
    for (int64_t i = 0; i < n && !s; i++) {
        s = get_teacher(t, which[i], 1, err);
        if (!s)
            *kl += kl_run(NULL, t->y + i * per, &t->head, teacher_at(t, which[i]), &t->teacher_head,
                          t->len, 0, t->logits, t->p);
    }
    return s ? s : gemm_dev_check(t->on, err);
}

/* Of block b, of n windows that have so many each: where it begins in t->d, in floats. */
static int64_t block_at(const tuner *t, int64_t b, int64_t blocks)
{
    return (b / blocks * t->len + b % blocks * KL_ROWS) * t->c->hidden;
}

/* Each rank's blocks of t->d, to all. */
static lq_status share_gradient(tuner *t, int64_t n, int64_t blocks, lq_err *err)
{
    const int size = comm_size(t->o.ranks);
    if (size < 2) return LQ_OK;
    size_t *at = calloc((size_t)size + 1, sizeof *at);
    if (!at) return lq_fail(err, LQ_ENOMEM, "no memory for %d ranks", size);
    for (int i = 0; i < size; i++) {
        int64_t first, end;
        grad_own_rows(&first, &end, i, size, n * blocks, 1);
        at[i + 1] = (size_t)block_at(t, end, blocks) * sizeof(float);
    }
    const lq_status s = comm_allgather(t->o.ranks, t->d, at, err);
    free(at);
    return s;
}

/* t->d := the gradient of its mean, each rank of some blocks of KL_ROWS. */
static lq_status kl_gradient(tuner *t, const int64_t *which, int64_t n, lq_err *err)
{
    const int64_t D = t->c->hidden, blocks = lq_ceil_div(t->len, KL_ROWS), rows = n * t->len;
    int64_t first, end;
    lq_status s = LQ_OK;
    grad_own_rows(&first, &end, comm_rank(t->o.ranks), comm_size(t->o.ranks), n * blocks, 1);
    for (int64_t b = first; b < end && !s; b++) {
        const int64_t w = b / blocks, row = b % blocks * KL_ROWS, at = block_at(t, b, blocks);
        const int64_t R = t->len - row < KL_ROWS ? t->len - row : KL_ROWS;
        s = get_teacher(t, which[w], 1, err);
        if (!s)
            kl_run(t->d + at, t->y + at, &t->head, teacher_at(t, which[w]) + row * D,
                   &t->teacher_head, R, 1 / (float)rows, t->logits, t->p);
    }
    if (!s) s = gemm_dev_check(t->on, err);
    return s ? s : share_gradient(t, n, blocks, err);
}

/* The quantized model on windows which[0..n): inputs of all layers in t->x. Its KL is added to *kl; NULL: its mean's
 * gradient goes to t->d. */
static lq_status run_student(double *kl, tuner *t, const int64_t *which, int64_t n, lq_err *err)
{
    const int64_t D = t->c->hidden, rows = n * t->len, L = t->c->layers;
    for (int64_t i = 0; i < n; i++)
        memcpy(t->ids + i * t->len, t->all + which[i] * t->len, (size_t)t->len * sizeof *t->ids);
    lq_status s = grad_embed(t->g, &t->quantized, t->x, t->ids, n, err);
    model_drop_embed(&t->quantized);
    qz_state_drop(t->state, L); /* where it lies if it was quantized */
    for (int64_t i = 0; i < L && !s; i++) {
        float *x = t->x + i * rows * D, *next = x + rows * D;
        grad_layer l;
        if (lq_stopped(t->job)) return interrupted(err);
        s = tune_params_expand(&l, NULL, &t->params, i, NULL, err);
        memcpy(next, x, (size_t)(rows * D) * sizeof *x);
        if (!s) s = forward(t, &l, i, next, n, err);
        qz_state_drop(t->state, i);
    }
    const float *last = t->x + L * rows * D;
    for (int64_t i = 0; i < n && !s; i++) {
        float *y = t->y + i * t->len * D;
        grad_norm_forward(t->g, y, last + i * t->len * D, t->final.w, t->final_bias, t->len);
    }
    if (s) return s;
    return kl ? add_kl(kl, t, which, n, err) : kl_gradient(t, which, n, err);
}

static lq_status backward(tuner *t, int64_t n, const tune_step *step, lq_err *err)
{
    const int64_t D = t->c->hidden, per = t->len * D, rows = n * t->len, L = t->c->layers;
    lq_status s = LQ_OK;
    for (int64_t i = 0; i < n; i++)
        grad_norm_backward(t->g, t->d + i * per, t->final.grad, t->x + L * rows * D + i * per,
                           t->final.w, t->len);
    tune_vector_step(&t->final, step);
    for (int64_t i = L; i-- > 0 && !s;) {
        grad_layer l;
        grad_out out = { .W = { 0 } };
        s = tune_params_expand(&l, &out, &t->params, i, step, err);
        for (int64_t w = 0; w < n && !s; w += t->chunk)
            s = grad_backward(t->g, &l, i, t->x + i * rows * D + w * per, t->d + w * per,
                              chunk_of(t, w, n), &out, err);
        if (!s) s = tune_params_step(&t->params, i, step, err);
        qz_state_drop(t->state, i);
    }
    return s;
}

/* ---- kept on the way ---- */
/* Of all windows. */
static lq_status answer_pieces(void *user, checkpoint *c, bool *fits, lq_err *err)
{
    tuner *t = user;
    int64_t shape[] = { t->n, t->len, t->c->hidden };
    const int64_t per = t->len * t->c->hidden, *now = (int64_t[]){ t->n, t->len, t->c->hidden };
    lq_status s = checkpoint_piece(c, shape, sizeof shape, err);
    *fits = !s && memcmp(shape, now, sizeof shape) == 0;
    for (int64_t w = 0; w < t->n && !s && *fits; w += t->chunk) {
        const int64_t n = chunk_of(t, w, t->n);
        if (!checkpoint_loads(c)) s = get_teacher(t, w, n, err);
        if (!s) s = checkpoint_piece(c, teacher_at(t, w), (size_t)(n * per) * sizeof(float), err);
        if (!s && checkpoint_loads(c)) s = put_teacher(t, w, n, err);
    }
    return s;
}

static lq_status state_pieces(void *user, checkpoint *c, bool *fits, lq_err *err)
{
    tuner *t = user;
    const int64_t now[] = { t->n, t->n_train, t->o.steps, t->o.batch,
                            (int64_t)t->params.states.end };
    int64_t was[LQ_COUNT(now)];
    memcpy(was, now, sizeof now);
    lq_status s = checkpoint_piece(c, was, sizeof was, err);
    *fits = !s && memcmp(was, now, sizeof now) == 0;
    if (s || !*fits) return s;
    s = checkpoint_piece(c, &t->point, sizeof t->point, err);
    if (!s) s = checkpoint_piece(c, t->order, (size_t)t->n_train * sizeof *t->order, err);
    if (!s) s = tune_vector_pieces(&t->final, c, err);
    return s ? s : tune_params_pieces(&t->params, c, err);
}

/* How far training is: a disk that has no room for it does not end training. */
static void save(tuner *t)
{
    const double began = lq_now();
    lq_status s = LQ_OK;
    lq_err why = { "" };
    if (!t->o.resume_dir || t->saved_step == t->point.step) return;
    lq_report(t->job, "keeping what is trained", 0, 1);
    if (!t->answers_saved)
        s = checkpoint_save(t->o.resume_dir, CHECKPOINT_ANSWERS, answer_pieces, t, &why);
    t->answers_saved = !s;
    if (!s) s = checkpoint_save(t->o.resume_dir, CHECKPOINT_STATE, state_pieces, t, &why);
    if (!s) t->saved_step = t->point.step;
    if (t->o.unkept) *t->o.unkept = why;
    t->saved = lq_now();
    t->spent = t->saved - began;
}

/* ---- the loop ---- */
/* Each rank takes some windows through the model by itself; all have the same sum. */
static lq_status held_back_kl(double *mean, tuner *t, lq_err *err)
{
    const int64_t n = t->n - t->n_train;
    double kl = 0, *each = calloc((size_t)n, sizeof *each);
    int64_t first, end;
    lq_status s = each ? grad_share(t->g, NULL, err) : lq_fail(err, LQ_ENOMEM, "no memory to tune");
    grad_own_rows(&first, &end, comm_rank(t->o.ranks), comm_size(t->o.ranks), n, 1);
    for (int64_t i = first; i < end && !s; i++) {
        const int64_t w = t->n_train + i;
        s = run_student(&each[i], t, &w, 1, err);
    }
    if (!s) s = grad_gather_rows(t->o.ranks, each, sizeof *each, n, 1, err);
    for (int64_t i = 0; i < n && !s; i++)
        kl += each[i];
    free(each);
    *mean = kl / (double)(n * t->len);
    return s;
}

static void shuffle(int64_t *order, int64_t n, uint64_t *seed)
{
    for (int64_t i = n; i-- > 1;) {
        int64_t j = (int64_t)(lq_random(seed) % (uint64_t)(i + 1)), k = order[i];
        order[i] = order[j];
        order[j] = k;
    }
}

static lq_status do_step(tuner *t, lq_err *err)
{
    if (t->point.at + t->o.batch > t->n_train) {
        shuffle(t->order, t->n_train, &t->point.seed);
        t->point.at = 0;
    }
    const int i = (int)t->point.step;
    const double part = tune_rate_at(i, t->o.steps);
    const tune_step step = { (float)(t->o.rate_scale * part), (float)(t->o.rate_norm * part),
                             (float)(t->o.rate_code * part), i + 1 };
    lq_status s = run_student(NULL, t, t->order + t->point.at, t->o.batch, err);
    if (!s) s = backward(t, t->o.batch, &step, err);
    if (s) return s;
    t->point.at += t->o.batch;
    t->point.step++;
    return LQ_OK;
}

static lq_status train(tuner *t, lq_err *err)
{
    const int64_t began = t->point.step;
    lq_status s = grad_share(t->g, t->o.ranks, err);
    t->saved = lq_now();
    while (t->point.step < t->o.steps && !s) {
        lq_report(t->job, "tuning", (double)(t->point.step - began), (double)(t->o.steps - began));
        s = lq_stopped(t->job) ? interrupted(err) : do_step(t, err);
        const double pause = t->o.save_secs > 20 * t->spent ? t->o.save_secs : 20 * t->spent;
        if (s == LQ_EINTR || (!s && lq_now() - t->saved >= pause)) save(t);
    }
    return s;
}

/* ---- the way there ---- */
static lq_status start(tuner *t, lq_err *err)
{
    lq_status s = LQ_OK;
    t->order = tune_push(t, t->n_train, sizeof *t->order, &s, err);
    t->point.at = t->n_train;
    t->saved_step = -1;
    for (int64_t i = 0; i < t->n_train && !s; i++)
        t->order[i] = i;
    return s;
}

/* Where an earlier run of the same was interrupted, or the beginning. */
static lq_status go_on(tuner *t, lq_err *err)
{
    bool found = false, answers = false;
    lq_status s = start(t, err);
    if (!s && t->o.resume_dir)
        s = checkpoint_load(&found, t->o.resume_dir, CHECKPOINT_STATE, state_pieces, t, err);
    if (!s && t->o.resume_dir)
        s = checkpoint_load(&answers, t->o.resume_dir, CHECKPOINT_ANSWERS, answer_pieces, t, err);
    t->answers_saved = answers;
    if (!s && !answers) s = run_teacher(t, err);
    if (found) t->saved_step = t->point.step;
    return s || found ? s : held_back_kl(&t->point.kl_before, t, err);
}

/* ---- the result ---- */
lq_status tune_run(tune_result *r, src_source *src, const qz_plan *plan, const qz_state *state,
                   const tune_text *text, const tune_opts *o, pool *p, const lq_job *job,
                   lq_err *err)
{
    *r = (tune_result){ .kl_before = (double)NAN, .kl_after = (double)NAN };
    tuner t = {
        .src = src, .plan = plan, .state = state, .all = text->ids, .fd = -1, .p = p, .job = job
    };
    lq_status s = LQ_OK;
    t.c = src_config(src);
    t.params = (tune_params){ .src = src,
                              .plan = plan,
                              .state = state,
                              .ranks = o->ranks,
                              .p = p,
                              .c = t.c,
                              .len = text->len,
                              .states.fd = -1 };
    t.len = text->len;
    t.n = text->own + text->text;
    t.chunk = tune_chunk(t.c, o->batch, t.len, t.n);
    const int64_t held = text->text / HELD_BACK > 0 ? text->text / HELD_BACK : 1;
    t.n_train = t.n - held;
    r->t = lq_push(&r->arena, plan->n * sizeof *r->t);
    if (!r->t) s = lq_fail(err, LQ_ENOMEM, "no memory for tuning");
    if (t.n_train < 1 || s) return s;
    t.o = *o;
    if (t.o.batch > t.n_train) t.o.batch = (int)t.n_train;
    s = load(&t, err);
    if (!s) s = go_on(&t, err);
    r->began = (int)t.point.step;
    r->kl_before = t.point.kl_before;
    if (!s) s = train(&t, err);
    if (!s) {
        s = held_back_kl(&r->kl_after, &t, err);
        if (s == LQ_EINTR) save(&t);
    }
    r->kept = !s && r->kl_after < r->kl_before;
    if (r->kept && t.final.n) s = tune_params_store_vector(r, &t.params, t.final_e, &t.final, err);
    if (r->kept && !s) s = tune_params_store(r, &t.params, err);
    if (t.fd >= 0) close(t.fd);
    tune_params_close(&t.params);
    grad_close(t.g);
    gemm_dev_close(t.on);
    model_free(&t.frame);
    lq_arena_free(&t.arena);
    if (s) tune_free(r);
    return s;
}

void tune_drop(const tune_result *r)
{
    if (r->file.data) lq_map_drop(&r->file, r->file.data, r->file.size);
}

void tune_free(tune_result *r)
{
    lq_map_close(&r->file);
    lq_arena_free(&r->arena);
    memset(r, 0, sizeof *r);
}
