/* kernels/bench/bench_chain.c - one layer of the 1.1 B Llama shape, step by step: as the forward pass
 * runs it, and with every step on its own.
 *
 *   plain  norm  q  k  v  rope  store  attention  o  add  norm  gate  up  silu  mul  down  add
 *   fused  norm  [q k v]  [rope store] attention  [o add] norm  [gate up silu mul]  [down add]
 *
 * A bracket is one region of the pool, whose input is prepared once and whose intermediate rows are
 * not written and read again. Weights of several layers take turns, so that decode reads them from
 * memory as a model does. */
#include "base/clock.h"
#include "kernels/attn.h"
#include "kernels/bench/bench_impl.h"
#include "kernels/dispatch.h"
#include "kernels/ops.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum { HID = 2048, FFN = 5632, H = 32, HKV = 4, D = 64, KV_DIM = HKV * D };
enum { DEPTH = 2048, BLOCK = 16, N_BLOCKS = DEPTH / BLOCK, LAYERS = 4, ROWS_AT_ONCE = 8 };
enum { W_Q, W_K, W_V, W_O, W_GATE, W_UP, W_DOWN, N_W };

static const struct {
    int64_t N, K;
} shapes[N_W] = {
    [W_Q] = { HID, HID },    [W_K] = { KV_DIM, HID }, [W_V] = { KV_DIM, HID }, [W_O] = { HID, HID },
    [W_GATE] = { FFN, HID }, [W_UP] = { FFN, HID },   [W_DOWN] = { HID, FFN }
};

typedef struct {
    mm_weight w[LAYERS][N_W];
    int layer;
    int64_t M;
    mm_acts acts;
    pool *p;
    lq_arena scratch;
    float *start, *x, *h, *q, *k, *v, *a, *y, *mlp; /* rows; mlp [M, 2 FFN]: gate, up */
    float cos[D / 2], sin[D / 2];
    uint8_t *kv;
    size_t half; /* bytes of a block's keys */
    int32_t table[N_BLOCKS];
} chain;

/* ---- work on rows ---- */
typedef void row_fn(chain *c, int64_t m);
typedef struct {
    chain *c;
    row_fn *fn;
} row_job;

static void row_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const row_job *j = ctx;
    const int64_t end = (item + 1) * ROWS_AT_ONCE < j->c->M ? (item + 1) * ROWS_AT_ONCE : j->c->M;
    for (int64_t m = item * ROWS_AT_ONCE; m < end; m++)
        j->fn(j->c, m);
}
static void each(chain *c, row_fn *fn)
{
    row_job j = { c, fn };
    pool_run(c->p, lq_ceil_div(c->M, ROWS_AT_ONCE), row_item, &j);
}

static void norm_row(chain *c, int64_t m)
{
    k_rmsnorm(c->h + m * HID, HID, c->x + m * HID, HID, NULL, 0, 1, HID, 1e-5f);
}
static void rope_row(chain *c, int64_t m)
{
    k_rope(c->q + m * HID, H, D, D, c->cos, c->sin, true);
    k_rope(c->k + m * KV_DIM, HKV, D, D, c->cos, c->sin, true);
}
static void store_row(chain *c, int64_t m)
{
    const int64_t pos = DEPTH - c->M + m;
    uint8_t *block = c->kv + (size_t)(pos / BLOCK) * 2 * c->half;
    attn_kv_write(block, (int)(pos % BLOCK), BLOCK, c->k + m * KV_DIM, HKV, D, KV_F16);
    attn_kv_write(block + c->half, (int)(pos % BLOCK), BLOCK, c->v + m * KV_DIM, HKV, D, KV_F16);
}
static void rope_store_row(chain *c, int64_t m)
{
    rope_row(c, m);
    store_row(c, m);
}
static void silu_row(chain *c, int64_t m) { k_act(c->mlp + m * 2 * FFN, FFN, ACT_SILU); }
static void mul_row(chain *c, int64_t m)
{
    float *gate = c->mlp + m * 2 * FFN;
    k_get()->mul(gate, gate + FFN, FFN);
}
static void add_row(chain *c, int64_t m) { k_add(c->x + m * HID, c->y + m * HID, HID); }

static void do_norm(chain *c) { each(c, norm_row); }
static void do_rope(chain *c) { each(c, rope_row); }
static void do_store(chain *c) { each(c, store_row); }
static void do_rope_store(chain *c) { each(c, rope_store_row); }
static void do_silu(chain *c) { each(c, silu_row); }
static void do_mul(chain *c) { each(c, mul_row); }
static void do_add(chain *c) { each(c, add_row); }

/* ---- products ---- */
static mm_out out_of(const chain *c, int w, float *y, int64_t ldy, bool add)
{
    return (mm_out){ .w = &c->w[c->layer][w], .y = y, .ldy = ldy, .add = add };
}
static void multiply(chain *c, const mm_out *outs, int n, const float *x, int64_t ldx)
{
    mm_run(outs, n, x, ldx, c->M, c->acts, &c->scratch, c->p);
}
static void do_qkv(chain *c)
{
    const mm_out o[] = { out_of(c, W_Q, c->q, HID, false), out_of(c, W_K, c->k, KV_DIM, false),
                         out_of(c, W_V, c->v, KV_DIM, false) };
    multiply(c, o, 3, c->h, HID);
}
static void do_q(chain *c)
{
    const mm_out o = out_of(c, W_Q, c->q, HID, false);
    multiply(c, &o, 1, c->h, HID);
}
static void do_k(chain *c)
{
    const mm_out o = out_of(c, W_K, c->k, KV_DIM, false);
    multiply(c, &o, 1, c->h, HID);
}
static void do_v(chain *c)
{
    const mm_out o = out_of(c, W_V, c->v, KV_DIM, false);
    multiply(c, &o, 1, c->h, HID);
}
static void do_o(chain *c)
{
    const mm_out o = out_of(c, W_O, c->y, HID, false);
    multiply(c, &o, 1, c->a, HID);
}
static void do_o_add(chain *c)
{
    const mm_out o = out_of(c, W_O, c->x, HID, true);
    multiply(c, &o, 1, c->a, HID);
}
static void do_gate_up(chain *c)
{
    mm_out o = out_of(c, W_GATE, c->mlp, 2 * FFN, false);
    o.up = &c->w[c->layer][W_UP];
    o.act = ACT_SILU;
    multiply(c, &o, 1, c->h, HID);
}
static void do_gate(chain *c)
{
    const mm_out o = out_of(c, W_GATE, c->mlp, 2 * FFN, false);
    multiply(c, &o, 1, c->h, HID);
}
static void do_up(chain *c)
{
    const mm_out o = out_of(c, W_UP, c->mlp + FFN, 2 * FFN, false);
    multiply(c, &o, 1, c->h, HID);
}
static void do_down(chain *c)
{
    const mm_out o = out_of(c, W_DOWN, c->y, HID, false);
    multiply(c, &o, 1, c->mlp, 2 * FFN);
}
static void do_down_add(chain *c)
{
    const mm_out o = out_of(c, W_DOWN, c->x, HID, true);
    multiply(c, &o, 1, c->mlp, 2 * FFN);
}
static void do_attention(chain *c)
{
    const attn_seq seq = { .n_rows = c->M, .pos0 = DEPTH - c->M, .table = c->table };
    const attn_args a = { .q = c->q,
                          .ldq = HID,
                          .out = c->a,
                          .ldo = HID,
                          .k = c->kv,
                          .v = c->kv + c->half,
                          .block_stride = 2 * c->half,
                          .block_size = BLOCK,
                          .dtype = KV_F16,
                          .bf16 = c->acts != MM_F32,
                          .H = H,
                          .Hkv = HKV,
                          .D = D,
                          .Dv = D,
                          .scale = 0.125f,
                          .seqs = &seq,
                          .n_seqs = 1 };
    attn_run(&a, &c->scratch, c->p);
}

/* ---- the steps ---- */
/* What a step moves: weights, once; floats of a row that it reads and writes; inputs of a row that
 * it prepares for a product (read as f32, written and read again as the products take them); halves
 * of a row's key and value that it stores; and the cache. */
typedef struct {
    const char *name;
    void (*run)(chain *c);
    int first_w, n_w; /* of the weights */
    int64_t floats, prepared, halves;
    bool cache;
} step;

static const step plain[] = {
    { "norm", do_norm, 0, 0, 2 * HID, 0, 0, false },
    { "q", do_q, W_Q, 1, HID, HID, 0, false },
    { "k", do_k, W_K, 1, KV_DIM, HID, 0, false },
    { "v", do_v, W_V, 1, KV_DIM, HID, 0, false },
    { "rope", do_rope, 0, 0, 2 * (HID + KV_DIM), 0, 0, false },
    { "store", do_store, 0, 0, 2 * KV_DIM, 0, 2 * KV_DIM, false },
    { "attention", do_attention, 0, 0, 2 * HID, 0, 0, true },
    { "o", do_o, W_O, 1, HID, HID, 0, false },
    { "add", do_add, 0, 0, 3 * HID, 0, 0, false },
    { "norm", do_norm, 0, 0, 2 * HID, 0, 0, false },
    { "gate", do_gate, W_GATE, 1, FFN, HID, 0, false },
    { "up", do_up, W_UP, 1, FFN, HID, 0, false },
    { "silu", do_silu, 0, 0, 2 * FFN, 0, 0, false },
    { "mul", do_mul, 0, 0, 3 * FFN, 0, 0, false },
    { "down", do_down, W_DOWN, 1, HID, FFN, 0, false },
    { "add", do_add, 0, 0, 3 * HID, 0, 0, false },
};
static const step fused[] = {
    { "norm", do_norm, 0, 0, 2 * HID, 0, 0, false },
    { "q k v", do_qkv, W_Q, 3, HID + 2 * KV_DIM, HID, 0, false },
    { "rope store", do_rope_store, 0, 0, 2 * (HID + KV_DIM) + KV_DIM, 0, 2 * KV_DIM, false },
    { "attention", do_attention, 0, 0, 2 * HID, 0, 0, true },
    { "o add", do_o_add, W_O, 1, 2 * HID, HID, 0, false },
    { "norm", do_norm, 0, 0, 2 * HID, 0, 0, false },
    { "gate up silu mul", do_gate_up, W_GATE, 2, FFN, HID, 0, false },
    { "down add", do_down_add, W_DOWN, 1, 2 * HID, FFN, 0, false },
};
static_assert(LQ_COUNT(plain) < BENCH_MAX_STEPS, "room for the sum of all");

static double step_bytes(const chain *c, const step *s)
{
    static const int acts_bytes[MM_N_ACTS] = { 4, 2, 1 };
    double bytes = s->cache ? 2.0 * (double)c->half * N_BLOCKS : 0;
    for (int i = s->first_w; i < s->first_w + s->n_w; i++)
        for (int q = 0; q < QT_N_PLANES; q++)
            bytes += (double)c->w[0][i].t.plane[q].bytes;
    const int prepared = acts_bytes[mm_effective(&c->w[0][0].t.scheme, c->acts)];
    return bytes + (double)c->M *
                       (double)(4 * s->floats + (4 + 2 * prepared) * s->prepared + 2 * s->halves);
}

static lq_status chain_make(chain *c, const char *scheme, lq_arena *a, lq_err *err)
{
    const size_t row = (size_t)c->M * HID * 4;
    c->half = attn_kv_row_bytes(KV_F16, D) * HKV * BLOCK;
    c->kv = lq_push(a, 2 * c->half * N_BLOCKS);
    float **const rows[] = { &c->start, &c->x, &c->h, &c->q, &c->k, &c->v, &c->a, &c->y };
    bool ok = c->kv;
    for (size_t i = 0; i < LQ_COUNT(rows); i++)
        ok = (*rows[i] = lq_push(a, row)) && ok;
    ok = (c->mlp = lq_push(a, (size_t)c->M * 2 * FFN * 4)) && ok;
    if (!ok) return lq_fail(err, LQ_ENOMEM, "no memory for the benchmark");
    for (int64_t i = 0; i < c->M * HID; i++)
        c->start[i] = (float)(i % 251) / 125.0f - 1.0f;
    for (int i = 0; i < D / 2; i++)
        c->cos[i] = 0.8f, c->sin[i] = 0.6f;
    for (int i = 0; i < N_BLOCKS; i++)
        c->table[i] = i;
    lq_status st = LQ_OK;
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < N_W && !st; i++)
            st = bench_make_weight(&c->w[l][i], scheme, shapes[i].N, shapes[i].K, a, err);
    const int threads = pool_threads(c->p);
    const size_t mm = mm_scratch_bytes(c->M, FFN, 3, threads),
                 at = attn_scratch_bytes(H, D, threads);
    return st ? st : lq_arena_init(&c->scratch, mm > at ? mm : at, err);
}

/* The best time of each step, and of all together, for about `budget` seconds. */
static void chain_time(chain *c, bench_step *out, const step *steps, int n, double budget)
{
    const double begun = lq_now();
    for (int i = 0; i <= n; i++)
        out[i].seconds = 1e300;
    for (int turn = 0; turn < 2 * LAYERS || lq_now() - begun < budget; turn++) {
        memcpy(c->x, c->start, (size_t)c->M * HID * sizeof *c->x);
        c->layer = turn % LAYERS;
        const double first = lq_now();
        double last = first;
        for (int i = 0; i < n; i++) {
            steps[i].run(c);
            const double t = lq_now();
            if (t - last < out[i].seconds) out[i].seconds = t - last;
            last = t;
        }
        if (last - first < out[n].seconds) out[n].seconds = last - first;
    }
}

lq_status bench_chain_run(bench_chain *out, bool fuse, int64_t M, const char *scheme, mm_acts acts,
                          const bench_opts *o, pool *p, lq_err *err)
{
    const step *steps = fuse ? fused : plain;
    const int n = fuse ? (int)LQ_COUNT(fused) : (int)LQ_COUNT(plain);
    assert(M > 0 && M <= DEPTH);
    lq_arena a = { 0 };
    chain *c = calloc(1, sizeof *c);
    lq_status st = c ? lq_arena_init(&a, 0, err) : lq_fail(err, LQ_ENOMEM, "out of memory");
    if (c) *c = (chain){ .M = M, .acts = acts, .p = p };
    if (!st) st = chain_make(c, scheme, &a, err);
    if (!st) {
        *out = (bench_chain){ .fused = fuse, .M = M, .depth = DEPTH, .n_steps = n + 1 };
        pool_enter(p);
        chain_time(c, out->step, steps, n, 10 * bench_row_seconds(o));
        pool_leave(p);
        snprintf(out->step[n].name, sizeof out->step[n].name, "all");
        for (int i = 0; i < n; i++) {
            snprintf(out->step[i].name, sizeof out->step[i].name, "%s", steps[i].name);
            out->step[i].bytes = step_bytes(c, &steps[i]);
            out->step[n].bytes += out->step[i].bytes;
        }
        lq_arena_free(&c->scratch);
    }
    lq_arena_free(&a);
    free(c);
    return st;
}
