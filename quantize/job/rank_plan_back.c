/* quantize/job/rank_plan_back.c - what several ranks take of auto's curvature and training; see rank_plan.h. */
#include "calib/backward.h"
#include "calib/forward_pass.h"
#include "calib/gemm.h"
#include "quantize/job/rank_plan.h"
#include "quantize/tune/tune.h"

/* Multiply-adds of these passes that take as long as a step of one code (quantize/job/progress.c). */
static const double stepping = 333;
static const double scales = 4.0 / 128; /* bytes of them for a weight, as they are trained */
enum { HEAD_ROWS = 256 };               /* of the head's products, which are shared by them */

typedef struct {
    const arch_config *c;
    int ranks;
    double mine, all, received;
} counting;

/* Of n things that are dealt out the part that one rank has at most. */
static double part(double n, int ranks) { return ceil(n / ranks) / n; }

static double part_of_tiles(const counting *k, int64_t M, int64_t N)
{
    const gemm_tiles cut = gemm_cut(M, N);
    return cut.n < 2 ? 1 : part((double)cut.n, k->ranks);
}

static double part_of_rows(const counting *k, int64_t N, int64_t K)
{
    return part((double)lq_ceil_div(N, gemm_cut(N, K).side), k->ranks);
}

static void add(counting *k, double work, double share)
{
    k->all += work;
    k->mine += work * share;
}

/* What a pass does to a linear [N,K] that M rows are sent to, as often as `times` says. */
typedef struct {
    double forward; /* how often it goes forward */
    bool trains;    /* else it is the curvature's */
    bool codes;     /* ... codes, not scales alone */
    double times;
} pass;

static void add_linear(counting *k, const pass *p, double M, int64_t N, int64_t K, bool expert)
{
    const double n = (double)N * (double)K, away = 1 - 1 / (double)k->ranks;
    const int64_t rows = M < 1 ? 1 : (int64_t)M;
    add(k, p->times * p->forward * M * n, part_of_tiles(k, rows, N));
    add(k, p->times * M * n, part_of_tiles(k, rows, K));
    k->received += 4 * p->times * M * away * (p->forward * (double)N + (double)K);
    if (p->trains) {
        add(k, p->times * (M + (p->codes ? stepping : 0)) * n, part_of_rows(k, N, K));
        k->received += p->times * n * away * (scales + (p->codes ? 1 : 0));
    } else if (!expert) {
        add(k, p->times * M * (double)N * GRAD_BLOCK * gemm_lower_part(GRAD_BLOCK),
            part((double)lq_ceil_div(N, GRAD_BLOCK), k->ranks));
    }
}

/* Attention by heads: two products forward, five back; q, k and v to all. */
static void add_attention(counting *k, const pass *p, double M, int64_t len, int64_t layer)
{
    const arch_config *own = arch_at(k->c, layer);
    const double q = (double)(own->heads * own->head_dim),
                 kv = (double)(own->kv_heads * own->head_dim);
    const double windows = M / (double)len, away = 1 - 1 / (double)k->ranks;
    add(k, p->times * M * grad_seen(len) * q * (2 * p->forward + 3),
        part(windows * (double)own->kv_heads, k->ranks));
    k->received += 4 * p->times * M * away * (p->forward * q + q + 2 * kv);
}

/* Once all layers, of `tokens` that go through at a time. */
static void add_pass(counting *k, const pass *p, int64_t tokens, int64_t len)
{
    const arch_config *c = k->c;
    const double M = (double)tokens,
                 used = c->experts ? (double)c->experts_used / (double)c->experts : 0;
    for (int64_t i = 0; i < c->layers; i++) {
        add_attention(k, p, M, len, i);
        for (arch_role r = 0; r < ARCH_N_ROLES; r++) {
            int64_t N, K;
            if (!arch_has(c, r, i) || !arch_role_linear(r) || !arch_role_per_layer(r)) continue;
            arch_role_shape(arch_at(c, i), r, &N, &K);
            const bool expert = arch_role_per_expert(r);
            pass one = *p;
            if (expert) one.forward = 2; /* again always */
            if (expert) one.times *= (double)c->experts;
            add_linear(k, &one, expert ? M * used : M, N, K, expert);
        }
    }
    const double head = M * (double)c->vocab * (double)c->hidden;
    add(k, p->times * head * (p->trains ? 3 : 2),
        part((double)lq_ceil_div(tokens, HEAD_ROWS), k->ranks));
}

/* Weights of the linears that a token sees. */
static double seen(const arch_config *c)
{
    double n = (double)c->vocab * (double)c->hidden;
    for (int64_t i = 0; i < c->layers; i++)
        for (arch_role r = 0; r < ARCH_N_ROLES; r++) {
            int64_t N, K;
            if (!arch_has(c, r, i) || !arch_role_linear(r) || !arch_role_per_layer(r)) continue;
            arch_role_shape(arch_at(c, i), r, &N, &K);
            n += (double)N * (double)K * (arch_role_per_expert(r) ? (double)c->experts_used : 1);
        }
    return n;
}

bool rank_plan_back(rank_plan *p, const arch_config *c, int ranks, const qz_effort *e, int steps,
                    int64_t len)
{
    counting k = { .c = c, .ranks = ranks };
    *p = (rank_plan){ .ranks = ranks };
    if (!grad_covers(c)) return false;
    const int64_t chunk = fisher_chunk(c, e->curvature, len) * len, batch = e->batch * len;
    const pass look = { .forward = grad_can_keep(c, chunk / len, len) ? 1 : 2,
                        .times = (double)(e->curvature * len) / (double)chunk };
    const pass train = { .forward = grad_can_keep(c, e->batch, len) ? 1 : 2,
                         .trains = true,
                         .codes = steps > e->steps_still,
                         .times = steps };
    add_pass(&k, &look, chunk, len);
    if (steps) add_pass(&k, &train, batch, len);
    if (steps)
        add(&k, (double)(e->windows * len) * seen(c),
            part((double)e->windows, ranks)); /* the original's answers */
    p->work = k.mine;
    p->all = k.all;
    p->received = k.received;
    return true;
}
