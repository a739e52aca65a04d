/* tests/unit/test_backward.c - the backward pass: its forward half against the runtime's, gradients against
 * differences, KL and its gradient, Fisher blocks. */
#include "calib/dense_layer.h"
#include "calib/fisher.h"
#include "calib/gemm.h"
#include "tests/support/covered.h"
#include "tests/support/noise.h"
#include "tests/support/rig.h"

#include <math.h>
#include <stdlib.h>

#define BASE "tests/golden/arch/llama3-gqa"
enum { WINDOWS = 2, LEN = 13, ROWS = WINDOWS * LEN };

/* Experts of a layer, all of them in memory; number [experts] is the shared MLP. */
typedef struct {
    grad_experts of;
    const arch_config *c;
    float *(*W)[GRAD_BUFFERS], *(*dW)[GRAD_BUFFERS]; /* [experts + 1] */
    const float *(*bias)[GRAD_BUFFERS];
    int64_t (*n)[GRAD_BUFFERS];
    int64_t asked, finished;
} all_experts;

typedef struct {
    rig r;
    arch_config cfg;
    lq_arena a;
    grad_ctx *g;
    grad_layer l;
    float *W[GRAD_BUFFERS], *x;
    int64_t D, at; /* at: the layer, the first with experts where there is one */
    all_experts experts;
} bench;

static lq_status expert_asked(void *user, int64_t e, grad_expert *x, lq_err *err)
{
    all_experts *all = user;
    (void)err;
    all->asked++;
    dense_expert(x, all->c, e, all->W[e], all->bias[e], all->dW[e]);
    return LQ_OK;
}

static lq_status expert_finished(void *user, int64_t e, lq_err *err)
{
    (void)e;
    (void)err;
    ((all_experts *)user)->finished++;
    return LQ_OK;
}

/* The layer's experts, read once, in the place of those that are read whenever they are asked for. */
static lq_status take_experts(bench *b, lq_err *err)
{
    const arch_config *c = &b->cfg;
    const size_t n = (size_t)c->experts + 1;
    all_experts *all = &b->experts;
    *all = (all_experts){ { expert_asked, expert_finished, all }, c, NULL, NULL, NULL, NULL, 0, 0 };
    all->W = lq_push(&b->a, n * sizeof *all->W);
    all->dW = lq_push(&b->a, n * sizeof *all->dW);
    all->bias = lq_push(&b->a, n * sizeof *all->bias);
    all->n = lq_push(&b->a, n * sizeof *all->n);
    lq_status s = LQ_OK;
    for (int64_t e = 0; e < c->experts + (c->shared_ffn > 0) && !s; e++) {
        grad_expert x;
        s = b->l.experts->get(b->l.experts->user, e, &x, err);
        for (int k = GRAD_X_GATE; k <= GRAD_X_DOWN && !s; k++) {
            const arch_role role = dense_expert_role(c, e, k);
            int64_t N, K;
            if (role == ARCH_N_ROLES) continue;
            arch_role_shape(c, role, &N, &K);
            all->n[e][k] = N * K;
            all->W[e][k] = lq_push(&b->a, (size_t)(N * K) * sizeof(float));
            all->dW[e][k] = lq_push(&b->a, (size_t)(N * K) * sizeof(float));
            memcpy(all->W[e][k], b->W[k], (size_t)(N * K) * sizeof(float));
        }
        all->bias[e][GRAD_X_GATE] = x.gate_bias;
        all->bias[e][GRAD_X_UP] = x.up_bias;
        all->bias[e][GRAD_X_DOWN] = x.down_bias;
    }
    b->l.experts = &all->of;
    return s;
}

static void (*change)(arch_config *c); /* what the model says; NULL: nothing */

/* Layer `at`; -1: the first with experts, where there is one. */
static bool bench_open_at(bench *b, const char *folder, int64_t at, int threads)
{
    lq_err err = { "" };
    memset(b, 0, sizeof *b);
    if (!rig_open(&b->r, folder, (rig_opts){ .threads = threads })) return false;
    const arch_config *c = &b->cfg;
    b->cfg = *b->r.m.cfg;
    if (c->attn_softcap > 0)
        b->cfg.attn_softcap = 0.5; /* 50 bends the scores of random weights by nothing */
    if (change) change(&b->cfg);
    b->D = c->hidden;
    while (at < 0 && b->at < c->layers && !c->layer[b->at].moe)
        b->at++;
    b->at = at >= 0 ? at : b->at < c->layers ? b->at : 0;
    lq_status s = grad_open(&b->g, c, WINDOWS, LEN, false, b->r.p, &err);
    if (!s) s = dense_buffers(b->W, c, &b->a, &err);
    if (!s) s = dense_layer(&b->l, b->W, b->r.src, b->at, LEN, &b->a, b->r.p, &err);
    if (!s && b->l.experts) s = take_experts(b, &err);
    b->x = lq_push(&b->a, (size_t)(ROWS * b->D) * sizeof(float));
    CHECK(!s && b->x, "%s: %s", folder, err.msg);
    if (s || !b->x) return false;
    fill(b->x, ROWS * b->D, 1, 7);
    return true;
}

static bool bench_open(bench *b, const char *folder, int threads)
{
    return bench_open_at(b, folder, -1, threads);
}

static void bench_close(bench *b)
{
    grad_close(b->g);
    lq_arena_free(&b->a);
    rig_close(&b->r);
}

enum { MAX_COVERED = 240 };
static struct {
    char path[160];
    int64_t at;
} covered[MAX_COVERED]; /* layers of each kind that golden checkpoints have which grad_covers */
static size_t n_covered;
static int n_checkpoints;

/* The passes, which cannot fail. */
static void go_forward(bench *b, grad_ctx *g, float *x)
{
    lq_err err = { "" };
    CHECK(!grad_forward(g, &b->l, b->at, x, WINDOWS, &err), "%s", err.msg);
}

static void go_back(bench *b, grad_ctx *g, float *d, const grad_out *out)
{
    lq_err err = { "" };
    CHECK(!grad_backward(g, &b->l, b->at, b->x, d, WINDOWS, out, &err), "%s", err.msg);
}

/* Has a layer before this one the same mixer and sizes, and experts where it has? */
static bool seen_before(const arch_config *c, int64_t layer)
{
    for (int64_t i = 0; i < layer; i++)
        if (c->layer[i].moe == c->layer[layer].moe && c->layer[i].mixer == c->layer[layer].mixer &&
            arch_at(c, i) == arch_at(c, layer) && c->layer[i].v_is_k == c->layer[layer].v_is_k)
            return true;
    return false;
}

/* Its layers, but for those of test_backward_whole. */
static void keep_covered(const char *folder, const arch_config *c)
{
    for (int64_t i = 0; i < c->layers && n_covered < MAX_COVERED; i++) {
        if (seen_before(c, i) || grad_reads_beside(c)) continue;
        snprintf(covered[n_covered].path, sizeof covered->path, "%s", folder);
        covered[n_covered++].at = i;
    }
}

static void check_forward(const char *path, int64_t at)
{
    bench b;
    lq_err err = { "" };
    lq_arena scratch = { 0 };
    if (!bench_open_at(&b, path, at, 2)) return;
    const arch_config *c = &b.cfg;
    size_t n = (size_t)(ROWS * b.D);
    float *want = lq_push(&b.a, n * sizeof *want);
    memcpy(want, b.x, n * sizeof *want);
    lq_status s = lq_arena_init(&scratch, fwd_layer_scratch(c, ROWS, pool_threads(b.r.p)), &err);
    if (!s)
        s = fwd_layer(c, &b.r.m.layers[b.at], b.at, want, WINDOWS, LEN, MM_F32, NULL, NULL,
                      &scratch, b.r.p, &err);
    CHECK(!s, "%s: %s", path, err.msg);
    go_forward(&b, b.g, b.x);
    double worst = 0, size = 0;
    for (size_t k = 0; k < n; k++) {
        worst = fmax(worst, fabs((double)want[k] - (double)b.x[k]));
        size = fmax(size, fabs((double)want[k]));
    }
    /* Two f32 programs that sum at most ffn products in other orders. */
    CHECK(worst <= (double)c->ffn * 0x1p-23 * size, "%s: off by %g of %g", path, worst, size);
    lq_arena_free(&scratch);
    bench_close(&b);
}

static void choose_all(arch_config *c) { c->index_topk = 15; } /* of 13, in blocks of 3 */

TEST(windows_of_no_more_positions_than_are_chosen_attend_to_all)
{
    static const char *const folders[] = { "tests/golden/arch/deepseek-v32",
                                           "tests/golden/arch/minimax-m3" };
    change = choose_all;
    for (size_t i = 0; i < LQ_COUNT(folders); i++)
        check_forward(folders[i], 1);
    change = NULL;
}

TEST(the_forward_half_is_the_runtimes_layer)
{
    CHECK(n_checkpoints >= 175 && n_covered < MAX_COVERED, "only %d golden checkpoints are covered",
          n_checkpoints);
    for (size_t i = 0; i < n_covered; i++)
        check_forward(covered[i].path, covered[i].at);
}

/* loss = sum r y, in double. */
static double loss_at(bench *b, const float *x, const float *r)
{
    size_t n = (size_t)(ROWS * b->D);
    float *y = malloc(n * sizeof *y);
    double sum = 0;
    memcpy(y, x, n * sizeof *y);
    go_forward(b, b->g, y);
    for (size_t i = 0; i < n; i++)
        sum += (double)y[i] * (double)r[i];
    free(y);
    return sum;
}

/* The slope of the loss along `dir` through p, by central differences of two widths (Richardson:
 * the error is of fourth order), the smaller of them h. */
static double slope_of(bench *b, float *p, const float *dir, int64_t n, float h, const float *x,
                       const float *r)
{
    float *keep = malloc((size_t)n * sizeof *keep);
    double want[2];
    memcpy(keep, p, (size_t)n * sizeof *keep);
    for (int w = 0; w < 2; w++) {
        const float wide = w ? 2 * h : h;
        double at[2];
        for (int side = 0; side < 2; side++) {
            for (int64_t i = 0; i < n; i++)
                p[i] = keep[i] + (side ? wide : -wide) * dir[i];
            at[side] = loss_at(b, x, r);
        }
        want[w] = (at[1] - at[0]) / (2 * (double)wide);
    }
    memcpy(p, keep, (size_t)n * sizeof *keep);
    free(keep);
    return (4 * want[0] - want[1]) / 3;
}

/* That slope beside the sum of grad * dir. Where the loss bends much the widths are too large, and smaller ones tell. */
static void compare(bench *b, const char *folder, const char *what, float *p, const float *grad,
                    int64_t n, float size, const float *x, const float *r)
{
    float *dir = malloc((size_t)n * sizeof *dir);
    double slope = 0, got = 0, norm = 0;
    bool same = false;
    fill(dir, n, size, 99);
    for (int64_t i = 0; i < n; i++) {
        got += (double)grad[i] * (double)dir[i];
        norm += fabs((double)grad[i] * (double)dir[i]);
    }
    /* A wrong term shows as a difference of the order of the slope itself; `norm` guards against a
     * direction along which the terms cancel. */
    for (float h = 0x1p-5f; h >= 0x1p-9f && !same; h /= 4) {
        slope = slope_of(b, p, dir, n, h, x, r);
        same = fabs(slope - got) <= 0.01 * fabs(slope) + 0.001 * norm;
    }
    CHECK(same, "%s: %s: slope %g, gradient %g", folder, what, slope, got);
    free(dir);
}

/* Which experts a row is sent to must not change on the way: the first are, whatever the scores. */
static void fix_choices(bench *b)
{
    const int64_t E = b->cfg.experts;
    float *corr = lq_push(&b->a, (size_t)E * sizeof *corr);
    for (int64_t e = 0; e < E; e++)
        corr[e] = (float)(10 * (E - e));
    b->l.router_corr = corr;
    if (b->cfg.w.router != ROUTER_SPARSEMIXER) return;
    /* Which has no correction: here the first two are by far the best, and yet all are near them. */
    b->cfg.router_jitter = 0.05;
    for (int64_t e = 0; e < E; e++)
        corr[e] = (float)(e < 2 ? 104 - 2 * e : 98 - e);
    b->l.router_bias = corr;
}

/* Weights of a norm; of one that heads have for themselves those of all. */
static int64_t norm_floats(const arch_config *c, int k)
{
    int64_t N, K;
    arch_role_shape(c, grad_norm_roles[k], &N, &K);
    return arch_n_tensors(c, grad_norm_roles[k]) * N * K;
}

/* Nor which positions are attended to: of scores that are all 0 the first are. */
static void fix_positions(bench *b)
{
    const struct {
        const float **W;
        arch_role r;
    } all[] = { { &b->l.index_q, R_INDEX_Q },
                { &b->l.index_k, R_INDEX_K },
                { &b->l.index_w, R_INDEX_W } };
    int64_t N, K;
    for (size_t i = 0; i < LQ_COUNT(all); i++) {
        arch_role_shape(&b->cfg, all[i].r, &N, &K);
        float *zero = lq_push(&b->a, (size_t)(N * K) * sizeof *zero);
        memset(zero, 0, (size_t)(N * K) * sizeof *zero);
        if (*all[i].W) *all[i].W = zero;
    }
}

/* Gradients, zero, of all that the layer has; norms and router as copies that may change. */
static void all_outputs(bench *b, grad_out *out, float *norm[GRAD_NORMS], float **router)
{
    const arch_config *c = arch_at(&b->cfg, b->at);
    int64_t N, K;
    for (int k = 0; k < GRAD_LINEARS; k++) {
        arch_role_shape(c, grad_linear_roles[k], &N, &K);
        if (b->l.W[k]) out->W[k] = lq_push(&b->a, (size_t)(N * K) * sizeof(float));
    }
    for (int k = 0; k < GRAD_NORMS; k++) {
        const size_t bytes = (size_t)norm_floats(c, k) * sizeof(float);
        norm[k] = NULL;
        if (!b->l.norm[k]) continue;
        out->norm[k] = lq_push(&b->a, bytes);
        norm[k] = lq_push(&b->a, bytes);
        memcpy(norm[k], b->l.norm[k], bytes);
        b->l.norm[k] = norm[k];
    }
    if (!b->l.experts) return;
    const size_t n = (size_t)(c->experts * c->hidden) * sizeof(float);
    out->router = lq_push(&b->a, n);
    *router = lq_push(&b->a, n);
    b->l.router = memcpy(*router, b->l.router, n);
}

static void compare_experts(bench *b, const char *folder, const float *r)
{
    const arch_config *c = &b->cfg;
    for (int64_t e = 0; e <= c->experts && b->l.experts; e++)
        for (int k = GRAD_X_GATE; k <= GRAD_X_DOWN; k++) {
            const int64_t n = b->experts.n[e][k];
            if (!n || (e >= c->experts_used && e < c->experts)) continue;
            int64_t N, K;
            arch_role_shape(c, dense_expert_role(c, e, k), &N, &K);
            compare(b, folder, arch_role_text(dense_expert_role(c, e, k)), b->experts.W[e][k],
                    b->experts.dW[e][k], n, 0.25f / sqrtf((float)K), b->x, r);
        }
}

static void check_gradients(const char *path, int64_t at)
{
    bench b;
    if (!bench_open_at(&b, path, at, 2)) return;
    const arch_config *c = arch_at(&b.cfg, b.at);
    size_t n = (size_t)(ROWS * b.D);
    float *r = lq_push(&b.a, n * sizeof *r), *d = lq_push(&b.a, n * sizeof *d);
    float *norm[GRAD_NORMS], *router = NULL;
    grad_out out = { .W = { 0 } };
    int64_t N, K;
    fill(r, (int64_t)n, 1, 3);
    memcpy(d, r, n * sizeof *d);
    if (b.l.experts) fix_choices(&b);
    if (b.l.index_k) fix_positions(&b);
    all_outputs(&b, &out, norm, &router);
    go_back(&b, b.g, d, &out);
    compare(&b, path, "input", b.x, d, (int64_t)n, 0.25f, b.x, r);
    for (int k = 0; k < GRAD_LINEARS; k++) {
        arch_role_shape(c, grad_linear_roles[k], &N, &K);
        if (out.W[k])
            compare(&b, path, arch_role_text(grad_linear_roles[k]), b.W[k], out.W[k], N * K,
                    0.25f / sqrtf((float)K), b.x, r);
    }
    for (int k = 0; k < GRAD_NORMS; k++)
        if (norm[k])
            compare(&b, path, arch_role_text(grad_norm_roles[k]), norm[k], out.norm[k],
                    norm_floats(c, k), 0.25f, b.x, r);
    if (router)
        compare(&b, path, "router", router, out.router, c->experts * b.D, 0.25f / sqrtf((float)b.D),
                b.x, r);
    compare_experts(&b, path, r);
    bench_close(&b);
}

TEST(gradients_are_the_slopes_of_the_loss)
{
    for (size_t i = 0; i < n_covered; i++)
        check_gradients(covered[i].path, covered[i].at);
}

static void limit_all(arch_config *c)
{
    c->act = ARCH_SILU_LIMITED;
    c->act_limit = 0.5;
}

static void limit_experts(arch_config *c)
{
    c->w.limit_experts = true;
    c->act_limit = 0.5;
}

TEST(what_a_limit_cuts_off_has_no_gradient)
{
    static const struct {
        const char *why, *folder;
        void (*change)(arch_config *c);
    } cases[] = { { "an MLP", BASE, limit_all },
                  { "experts and a shared MLP", "tests/golden/arch/qwen2-moe-shared", limit_all },
                  { "experts alone", "tests/golden/arch/qwen2-moe-shared", limit_experts } };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        change = cases[i].change;
        check_forward(cases[i].folder, 0);
        check_gradients(cases[i].folder, 0);
    }
    change = NULL;
}

/* ---- against torch ---- */
typedef struct {
    const char *name;
    const float *at; /* pairs: the sum, and of magnitudes */
    size_t n, used;
} sums;

/* The next sum is that of n values. An error of rounding is a part of the magnitudes: products of up to 160 terms, one
 * after the other, and exp() of two implementations. */
static void next_sum(sums *s, const char *what, const float *grad, int64_t n)
{
    float *dir = malloc((size_t)n * sizeof *dir);
    double got = 0;
    fill(dir, n, 1, 99);
    for (int64_t i = 0; i < n; i++)
        got += (double)grad[i] * (double)dir[i];
    free(dir);
    if (s->used >= s->n) {
        s->used++;
        return;
    }
    const double want = (double)s->at[2 * s->used], size = (double)s->at[2 * s->used + 1];
    CHECK(fabs(got - want) <= 160 * 0x1p-23 * size, "%s: %s (%zu): %.9g, torch has %.9g of %g",
          s->name, what, s->used, got, want, size);
    s->used++;
}

static void check_sums(bench *b, sums *s)
{
    static const int norms[] = { GRAD_ATTN_NORM, GRAD_MLP_NORM };
    const arch_config *c = &b->cfg;
    float *d = lq_push(&b->a, (size_t)(ROWS * b->D) * sizeof *d), *norm[GRAD_NORMS], *router;
    grad_out out = { .W = { 0 } };
    int64_t N, K;
    fill(d, ROWS * b->D, 1, 3);
    all_outputs(b, &out, norm, &router);
    go_back(b, b->g, d, &out);
    for (int64_t r = 0; r < ROWS; r++)
        next_sum(s, "a row of the input", d + r * b->D, b->D);
    for (int k = GRAD_Q; k <= GRAD_O; k++) {
        arch_role_shape(c, grad_linear_roles[k], &N, &K);
        if (out.W[k]) next_sum(s, arch_role_text(grad_linear_roles[k]), out.W[k], N * K);
    }
    for (size_t i = 0; i < LQ_COUNT(norms); i++)
        next_sum(s, arch_role_text(grad_norm_roles[norms[i]]), out.norm[norms[i]], b->D);
    next_sum(s, "router", out.router, c->experts * b->D);
    for (int64_t e = 0; e <= c->experts; e++)
        for (int k = GRAD_X_GATE; k <= GRAD_X_DOWN; k++)
            if (b->experts.n[e][k])
                next_sum(s, arch_role_text(dense_expert_role(c, e, k)), b->experts.dW[e][k],
                         b->experts.n[e][k]);
}

TEST(gradients_of_experts_are_those_of_torch)
{
    st_file f;
    lq_err err = { "" };
    const lq_status st = st_open(&f, "tests/golden/backward/gradients.safetensors", &err);
    CHECK(!st && f.n == 6, "%s", err.msg);
    for (size_t i = 0; !st && i < f.n; i++) {
        char folder[160];
        bench b;
        const st_tensor *t = &f.tensors[i];
        snprintf(folder, sizeof folder, "tests/golden/arch/%.100s", t->name);
        if (!bench_open(&b, folder, 2)) continue;
        float *copy = lq_push(&b.a, t->bytes);
        memcpy(copy, t->data, t->bytes);
        sums s = { t->name, copy, (size_t)t->shape[0], 0 };
        check_sums(&b, &s);
        CHECK(s.used == s.n, "%s: %zu sums, expected %zu", t->name, s.used, s.n);
        bench_close(&b);
    }
    if (!st) st_close(&f);
}

TEST(only_experts_that_rows_are_sent_to_are_asked_for)
{
    bench b;
    if (!bench_open(&b, "tests/golden/arch/qwen2-moe-shared", 2)) return;
    const arch_config *c = &b.cfg;
    float *d = lq_push(&b.a, (size_t)(ROWS * b.D) * sizeof *d);
    const int64_t want = c->experts_used + 1; /* and the shared MLP */
    fill(d, ROWS * b.D, 1, 3);
    fix_choices(&b);
    CHECK(c->experts > c->experts_used && c->shared_ffn, "another fixture");
    go_back(&b, b.g, d, &(grad_out){ .W = { 0 } });
    CHECK(b.experts.asked == want && b.experts.finished == want, "%lld asked for, %lld finished",
          (long long)b.experts.asked, (long long)b.experts.finished);
    bench_close(&b);
}

/* Every gradient of the layer on rows that went forward just before. NULL: no memory. */
static float *all_gradients(bench *b, bool keep, size_t *n)
{
    const arch_config *c = arch_at(&b->cfg, b->at);
    const size_t rows = (size_t)(ROWS * b->D);
    grad_ctx *g;
    grad_out out = { .W = { 0 } };
    lq_err err = { "" };
    int64_t N, K;
    *n = rows;
    for (int k = 0; k < GRAD_LINEARS; k++) {
        arch_role_shape(c, grad_linear_roles[k], &N, &K);
        *n += b->l.W[k] ? (size_t)(N * K) : 0;
    }
    for (int64_t e = 0; b->l.experts && e <= c->experts; e++)
        for (int k = GRAD_X_GATE; k <= GRAD_X_DOWN; k++)
            *n += (size_t)b->experts.n[e][k];
    float *got = calloc(*n + rows, sizeof *got), *at = got + rows;
    CHECK(!grad_open(&g, &b->cfg, WINDOWS, LEN, keep, b->r.p, &err), "%s", err.msg);
    if (!got || !g) return got;
    for (int k = 0; k < GRAD_LINEARS; k++) {
        arch_role_shape(c, grad_linear_roles[k], &N, &K);
        if (!b->l.W[k]) continue;
        out.W[k] = at;
        at += N * K;
    }
    for (int64_t e = 0; b->l.experts && e <= c->experts; e++)
        for (int k = GRAD_X_GATE; k <= GRAD_X_DOWN; k++) {
            if (b->experts.n[e][k]) b->experts.dW[e][k] = at;
            at += b->experts.n[e][k];
        }
    memcpy(at, b->x, rows * sizeof *at); /* rows more, that go forward */
    go_forward(b, g, at);
    fill(got, (int64_t)rows, 1, 3);
    go_back(b, g, got, &out);
    grad_close(g);
    return got;
}

TEST(gradients_are_the_same_bytes_for_any_number_of_threads)
{
    static const int threads[] = { 1, 2, 5 };
    static const char *const folders[] = { BASE,
                                           "tests/golden/arch/qwen2-moe-shared",
                                           "tests/golden/arch/gemma2",
                                           "tests/golden/arch/phi3",
                                           "tests/golden/arch/gpt-neox",
                                           "tests/golden/arch/qwen3.5",
                                           "tests/golden/arch/deepseek-v32",
                                           "tests/golden/arch/bamba",
                                           "tests/golden/arch/falcon-mamba" };
    for (size_t f = 0; f < LQ_COUNT(folders); f++) {
        float *first = NULL;
        for (size_t i = 0; i < LQ_COUNT(threads); i++) {
            bench b;
            size_t n;
            if (!bench_open(&b, folders[f], threads[i])) break;
            float *got = all_gradients(&b, false, &n);
            CHECK(!first || memcmp(first, got, n * sizeof *got) == 0, "%s: %d threads", folders[f],
                  threads[i]);
            if (first)
                free(got);
            else
                first = got;
            bench_close(&b);
        }
        free(first);
    }
}

TEST(what_is_kept_gives_the_gradients_of_running_forward_again)
{
    for (size_t i = 0; i < n_covered; i++) {
        bench b;
        size_t n;
        if (!bench_open_at(&b, covered[i].path, covered[i].at, 2)) continue;
        float *again = all_gradients(&b, false, &n), *kept = all_gradients(&b, true, &n);
        double size = 0;
        for (size_t k = 0; again && k < n; k++)
            size += fabs((double)again[k]);
        CHECK(again && kept && size > 0 && !memcmp(again, kept, n * sizeof *kept), "%s: other bits",
              covered[i].path);
        free(again);
        free(kept);
        bench_close(&b);
    }
}

TEST(what_is_kept_is_counted_and_has_a_limit)
{
    bench b;
    if (!bench_open(&b, BASE, 1)) return;
    const arch_config *c = &b.cfg;
    CHECK(grad_bytes(c, 2, LEN, true, 1) > grad_bytes(c, 2, LEN, false, 1), "nothing more");
    CHECK(grad_can_keep(c, 1, LEN) && !grad_can_keep(c, 1 << 24, LEN), "no limit");
    int64_t len = LEN; /* so that two windows are kept, and four are not */
    while (grad_can_keep(c, 4, len))
        len += LEN;
    CHECK(grad_can_keep(c, 2, len) && grad_chunk(c, 4, len) == 2, "%lld windows of four",
          (long long)grad_chunk(c, 4, len));
    CHECK(grad_chunk(c, 3, len / 2) == 3 && grad_chunk(c, 4, 4 * len) == 4, "cut for nothing");
    bench_close(&b);
}

/* The last linear's output gradient is that of the layer. */
TEST(squares_are_those_of_the_rows_gradients_at_an_output)
{
    bench b;
    if (!bench_open(&b, BASE, 2)) return;
    int64_t N, K;
    arch_role_shape(&b.cfg, R_DOWN, &N, &K);
    const size_t n = (size_t)(ROWS * b.D), f = sizeof(float);
    float *d = lq_push(&b.a, n * f), squares[ROWS];
    grad_out out = { .W = { 0 } };
    out.squares[GRAD_DOWN] = squares;
    out.G[GRAD_DOWN] =
        lq_push(&b.a, (size_t)(lq_ceil_div(N, GRAD_BLOCK) * GRAD_BLOCK * GRAD_BLOCK) * f);
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t k = 0; k < b.D; k++)
            d[i * b.D + k] = (float)(i % 5) * (k % 2 ? 1 : -0.5F);
    go_back(&b, b.g, d, &out);
    for (int64_t i = 0; i < ROWS; i++) {
        const double want = (double)(i % 5 * (i % 5)) * (double)b.D * (1 + 0.25) / 2;
        CHECK(fabs((double)squares[i] - want) <= 1e-6 * want, "row %lld: %g, expected %g",
              (long long)i, (double)squares[i], want);
    }
    bench_close(&b);
}

/* What a head makes of a logit, and the slope of that. */
static double headed(const kl_head *h, double l, double *slope)
{
    const double x = h->scale != 0 ? (double)h->scale * l : l, cap = (double)h->cap;
    const double t = cap > 0 ? tanh(x / cap) : 0;
    *slope = (h->scale != 0 ? (double)h->scale : 1) * (1 - t * t);
    return cap > 0 ? cap * t : x;
}

static const struct {
    float scale, cap;
} heads[] = { { 0, 0 }, { 0.25f, 0 }, { 0, 1.5f }, { 2, 3 } };

static void check_kl(float scale, float cap)
{
    enum { R = 300, V = 37, K = 11 }; /* R: a block and a tail */
    float *m = malloc((2 * R * K + 2 * V * K + V + R * K) * sizeof *m);
    float *s = m, *t = s + R * K, *Ws = t + R * K, *Wt = Ws + V * K, *bias = Wt + V * K;
    float *grad = bias + V, *scratch = malloc(kl_scratch(V) * sizeof *scratch);
    pool *p = NULL;
    lq_err err = { "" };
    CHECK(!pool_open(&p, 2, &err) && !k_init(NULL, &err), "%s", err.msg);
    fill(m, 2 * R * K + 2 * V * K + V, 1, 5);
    kl_head hs = { Ws, NULL, V, K, scale, cap, NULL }, ht = { Wt, bias, V, K, scale, cap, NULL };
    double got = kl_run(grad, s, &hs, t, &ht, R, 1, scratch, p), want = 0;
    for (int r = 0; r < R; r++) {
        double ls[V], lt[V], zs = 0, zt = 0, unused;
        for (int v = 0; v < V; v++) {
            ls[v] = 0, lt[v] = (double)bias[v];
            for (int k = 0; k < K; k++) {
                ls[v] += (double)s[r * K + k] * (double)Ws[v * K + k];
                lt[v] += (double)t[r * K + k] * (double)Wt[v * K + k];
            }
            ls[v] = headed(&hs, ls[v], &unused), lt[v] = headed(&ht, lt[v], &unused);
            zs += exp(ls[v]), zt += exp(lt[v]);
        }
        for (int v = 0; v < V; v++)
            want += exp(lt[v]) / zt * (lt[v] - log(zt) - ls[v] + log(zs));
    }
    CHECK(fabs(got - want) <= 1e-5 * want, "%.9g, expected %.9g", got, want);
    for (int i = 0; i < R * K; i += 211) {
        const float h = 0x1p-6f, keep = s[i];
        s[i] = keep + h;
        double up = kl_run(NULL, s, &hs, t, &ht, R, 1, scratch, p);
        s[i] = keep - h;
        double down = kl_run(NULL, s, &hs, t, &ht, R, 1, scratch, p);
        s[i] = keep;
        double slope = (up - down) / (2 * (double)h);
        /* Second-order differences: h^2; and the rounding of two sums of R terms. */
        CHECK(fabs(slope - (double)grad[i]) <= 1e-3 + 0.01 * fabs(slope), "%d: slope %g, grad %g",
              i, slope, (double)grad[i]);
    }
    pool_close(p);
    free(scratch);
    free(m);
}

TEST(kl_is_the_definition_and_its_gradient_is_its_slope)
{
    for (size_t i = 0; i < LQ_COUNT(heads); i++)
        check_kl(heads[i].scale, heads[i].cap);
}

/* The gradient for an answer y is E f'(W) W - f'(W_y) W_y. */
static void check_draw(float scale, float cap)
{
    enum { R = 2048, V = 5 };
    static const float W[V] = { 0, 1, 2, -1, 0.5f };
    float h[R], grad[R], *scratch = malloc(kl_scratch(V) * sizeof *scratch);
    pool *p = NULL;
    lq_err err = { "" };
    CHECK(!pool_open(&p, 1, &err) && !k_init(NULL, &err), "%s", err.msg);
    kl_head head = { W, NULL, V, 1, scale, cap, NULL };
    double z = 0, mean = 0, square = 0, sum = 0, largest = 0, least = 0;
    for (int r = 0; r < R; r++)
        h[r] = 1;
    for (int v = 0; v < V; v++) {
        double slope;
        const double e = exp(headed(&head, (double)W[v], &slope)), g = slope * (double)W[v];
        z += e;
        mean += e * g;
        square += e * g * g;
        largest = fmax(largest, g), least = fmin(least, g);
    }
    mean /= z, square /= z;
    kl_draw(grad, h, &head, R, 42, scratch, p);
    for (int r = 0; r < R; r++) {
        const double g = (double)grad[r];
        CHECK(g <= mean - least + 1e-6 && g >= mean - largest - 1e-6, "%d: %g", r, g);
        sum += g; /* mean 0 */
    }
    double deviation = sqrt((square - mean * mean) / R);
    CHECK(fabs(sum / R) < 4 * deviation, "mean %g, deviation %g", sum / R, deviation);
    CHECK(fabs(sum) > 0, "nothing was drawn");
    pool_close(p);
    free(scratch);
}

TEST(drawn_answers_follow_the_distribution)
{
    for (size_t i = 0; i < LQ_COUNT(heads); i++)
        check_draw(heads[i].scale, heads[i].cap);
}

/* C [M,M] is symmetric, as far as sums of 26 products in two orders are. */
static void check_symmetric(const float *C, int64_t ld, int64_t M)
{
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < i; j++) {
            const float a = C[i * ld + j], b = C[j * ld + i];
            const float size = sqrtf(C[i * ld + i] * C[j * ld + j]);
            CHECK(fabsf(a - b) <= 2 * LEN * 0x1p-23f * size, "%g %g of %g", (double)a, (double)b,
                  (double)size);
        }
}

/* KiB in memory of what is mapped from files of a folder; -1: the system does not say. */
static int64_t mapped_kib(const char *folder)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[512], rights[5];
    int64_t sum = f ? 0 : -1;
    bool ours = false;
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%*x-%*x %4s", rights) == 1) ours = strstr(line, folder) != NULL;
        if (ours && !strncmp(line, "Rss:", 4)) sum += strtoll(line + 4, NULL, 10);
    }
    if (f) fclose(f);
    return sum;
}

TEST(passes_leave_no_pages_of_the_source_in_memory)
{
    rig r;
    if (!rig_open(&r, BASE, (rig_opts){ .threads = 2 })) return;
    int32_t ids[LEN] = { 1, 2, 3 };
    cal_samples s;
    fisher f;
    lq_err err = { "" };
    CHECK(!cal_samples_from_ids(&s, ids, LEN, 1, LEN, 0, r.m.cfg->vocab, &err), "%s", err.msg);
    CHECK(mapped_kib(BASE), "nothing is mapped");
    CHECK(!fisher_run(&f, r.src, &s, 1, false, NULL, NULL, r.p, NULL, &err), "%s", err.msg);
    CHECK(mapped_kib(BASE) <= 0, "%lld KiB", (long long)mapped_kib(BASE));
    fisher_free(&f);
    cal_samples_free(&s);
    rig_close(&r);
}

/* Of three windows the first two were looked at. */
static void check_weights(const fisher *f, const arch_config *c, int64_t l)
{
    cal_site site;
    for (int k = 0; k < GRAD_LINEARS; k++) {
        if (!arch_has(c, grad_linear_roles[k], l) ||
            !cal_site_of(&site, arch_at(c, l), grad_linear_roles[k]))
            continue;
        const float *w = f->weight[l][site];
        double sum = 0, most = 0;
        CHECK(w, "layer %lld site %d: no weights", (long long)l, (int)site);
        for (int t = 0; w && t < 2 * LEN; t++) {
            CHECK(w[t] >= 0 && w[t] <= FISHER_WEIGHT_MOST, "token %d: %g", t, (double)w[t]);
            sum += (double)w[t];
            most = fmax(most, (double)w[t]);
        }
        for (int t = 2 * LEN; w && t < 3 * LEN; t++)
            CHECK(w[t] == CAL_TOKEN_UNKNOWN, "token %d: %g", t, (double)w[t]);
        CHECK(sum > 0 && sum <= 2 * LEN * (1 + 1e-5) && most > sum / (2 * LEN),
              "layer %lld site %d: %g in all, at most %g", (long long)l, (int)site, sum, most);
    }
}

static void check_fisher(const char *folder)
{
    rig r;
    if (!rig_open(&r, folder, (rig_opts){ .threads = 2 })) return;
    int32_t ids[3 * LEN];
    cal_samples s;
    fisher f;
    lq_err err = { "" };
    for (int i = 0; i < 3 * LEN; i++)
        ids[i] = (i * 37 + 11) % (int)r.m.cfg->vocab;
    CHECK(!cal_samples_from_ids(&s, ids, 3 * LEN, 3, LEN, 0, r.m.cfg->vocab, &err), "%s", err.msg);
    lq_status st = fisher_run(&f, r.src, &s, 2, false, NULL, NULL, r.p, NULL, &err);
    CHECK(!st, "%s", err.msg);
    for (int64_t l = 0; l < (st ? 0 : f.layers); l++) {
        check_weights(&f, r.m.cfg, l);
        for (int k = 0; k < GRAD_SUMS; k++) {
            int64_t N, K;
            const bool there = arch_has(r.m.cfg, grad_linear_roles[k], l);
            CHECK((f.G[l][k] != NULL) == there, "layer %lld %s: a G, and no such linear",
                  (long long)l, arch_role_text(grad_linear_roles[k]));
            if (!there) continue;
            arch_role_shape(arch_at(r.m.cfg, l), grad_linear_roles[k], &N, &K);
            double trace = 0;
            for (int64_t i = 0; i < N && i < FISHER_BLOCK; i++)
                trace += (double)f.G[l][k][i * FISHER_BLOCK + i];
            check_symmetric(f.G[l][k], FISHER_BLOCK, N < FISHER_BLOCK ? N : FISHER_BLOCK);
            CHECK(trace > 0, "layer %lld %s: trace %g", (long long)l,
                  arch_role_text(grad_linear_roles[k]), trace);
        }
    }
    if (!st) fisher_free(&f);
    cal_samples_free(&s);
    rig_close(&r);
}

TEST(fisher_blocks_are_symmetric_with_a_diagonal_above_zero)
{
    check_fisher(BASE);
    check_fisher("tests/golden/arch/qwen2-moe-shared");
    check_fisher("models/novels-1m"); /* of several tiles */
}

int main(int argc, char **argv)
{
    n_checkpoints = each_covered(keep_covered);
    RUN(the_forward_half_is_the_runtimes_layer);
    RUN(windows_of_no_more_positions_than_are_chosen_attend_to_all);
    RUN(gradients_are_the_slopes_of_the_loss);
    RUN(what_a_limit_cuts_off_has_no_gradient);
    RUN(gradients_of_experts_are_those_of_torch);
    RUN(only_experts_that_rows_are_sent_to_are_asked_for);
    RUN(gradients_are_the_same_bytes_for_any_number_of_threads);
    RUN(what_is_kept_gives_the_gradients_of_running_forward_again);
    RUN(what_is_kept_is_counted_and_has_a_limit);
    RUN(squares_are_those_of_the_rows_gradients_at_an_output);
    RUN(kl_is_the_definition_and_its_gradient_is_its_slope);
    RUN(drawn_answers_follow_the_distribution);
    RUN(passes_leave_no_pages_of_the_source_in_memory);
    RUN(fisher_blocks_are_symmetric_with_a_diagonal_above_zero);
    return check_end();
}
