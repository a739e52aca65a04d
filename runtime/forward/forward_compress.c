/* runtime/forward/forward_compress.c - attention to a window and to compressed positions behind it, with one row
 * for keys and values (DeepSeek V4).
 *
 *   q = norm(b_q norm(a_q h)) of each head, without weights; kv = norm(a_kv h)
 *   the last rope_dims of both rotate; kv is cached, the key of every head and its value
 *   a = attention(q, kv), its last rope_dims rotated back; R_O reads [R_O_A's groups of heads]
 *
 * Each `every` positions have one compressed row besides, which those from the last of them on see:
 *
 *   c = norm(sum_j softmax_j(z_j + bias_j) * v_j), of each dim; rotated as the first of them
 *
 * over z = gate h, v = kv h of these positions. In MIX_SPARSE layers v and z are two wide: the second half goes
 * into their own row, the first into the next one, which so is made of twice as many positions; and an indexer,
 * whose keys are made likewise, chooses which index_topk rows are seen. In MIX_HEAVY layers all are.
 *
 * The softmax is a running one, position by position, in the sequence's state (kv_state.h): the same bytes however
 * the positions are cut into steps. A row goes into the block of its last position, behind the tokens' rows. */
#include "runtime/forward/forward_impl.h"

#include "kernels/hadamard.h"
#include "kernels/scan.h"
#include "runtime/model/kv_state.h"

enum { CHANNELS = 64, GROUPS_AT_ONCE = 16 };

size_t fwd_one_scratch(const arch_config *c, int64_t R, int threads)
{
    if (!c->w.kv_one) return 0;
    const int64_t group = c->heads * c->head_dim / c->o_groups;
    const size_t in = mm_scratch_bytes(R, c->hidden, 7, threads),
                 q = mm_scratch_bytes(R, c->q_lora, 2, threads),
                 heads = mm_scratch_bytes(GROUPS_AT_ONCE * R, group, GROUPS_AT_ONCE, threads),
                 o = mm_scratch_bytes(R, arch_o_width(c), 1, threads);
    const size_t a = in > q ? in : q, b = heads > o ? heads : o;
    return a > b ? a : b;
}

/* ---- q and the row of keys and values ---- */

static int64_t half_dims(const fwd_rows *r) { return r->c->rope_dims / 2; }

static void rotate_last(const fwd_rows *r, float *x, int64_t heads, int64_t D, const float *cs,
                        const float *sn)
{
    const int64_t rope = r->c->rope_dims;
    k_rope(x + D - rope, heads, D, rope, cs, sn, r->c->w.rope_half);
}

static arch_rope_use rope_of(const model_layer *l)
{
    return l->lin[R_SPARSE_KV].present || l->lin[R_HEAVY_KV].present ? ROPE_LOCAL : ROPE_MAIN;
}

static void norm_q_a(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const model_layer *l = arg;
    const model_vector *v = &l->vec[R_Q_A_NORM];
    const int64_t K = r->c->q_lora;
    float *q = r->q_a + row * K;
    k_rmsnorm(q, K, q, K, v->w, v->offset, n, K, v->eps);
}

static void finish_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const arch_config *c = r->c;
    const model_layer *l = arg;
    const model_vector *v = &l->vec[R_KV_A_NORM];
    const arch_rope_use use = rope_of(l);
    const int64_t H = c->heads, D = c->head_dim, half = half_dims(r);
    for (int64_t t = row; t < row + n; t++) {
        const float *cs = r->cos[use] + t * half, *sn = r->sin[use] + t * half;
        float *q = r->latent + t * H * D, *kv = r->kv_a + t * D;
        k_rmsnorm(q, D, q, D, NULL, 0, H, D, (float)c->norm_eps);
        k_rmsnorm(kv, D, kv, D, v->w, v->offset, 1, D, v->eps);
        rotate_last(r, q, H, D, cs, sn);
        rotate_last(r, kv, 1, D, cs, sn);
        if (!l->lin[R_INDEX_Q].present) continue;
        rotate_last(r, r->index_q + t * c->index_heads * c->index_dim, c->index_heads, c->index_dim,
                    cs, sn);
        k_scale(r->index_w + t * c->index_heads, (float)(1 / sqrt((double)c->index_heads)),
                c->index_heads);
    }
}

/* What a compressor reads, and an indexer's weights of heads in f32 as routers. */
static void compressor_products(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    const bool sparse = l->lin[R_SPARSE_KV].present;
    const arch_role kv = sparse ? R_SPARSE_KV : R_HEAVY_KV;
    const int64_t width = sparse ? 2 * c->head_dim : c->head_dim, index = 2 * c->index_dim;
    const mm_out out[] = { fwd_out(&l->lin[kv], r->gives, width, false),
                           fwd_out(&l->lin[kv + 1], r->weighs, width, false),
                           fwd_out(&l->lin[R_INDEX_K], r->index_k, index, false),
                           fwd_out(&l->lin[R_INDEX_GATE], r->index_weighs, index, false) },
                 w = fwd_out(&l->lin[R_INDEX_W], r->index_w, c->index_heads, false),
                 q = fwd_out(&l->lin[R_INDEX_Q], r->index_q, c->index_heads * c->index_dim, false);
    mm_run(out, sparse ? 4 : 2, r->h, c->hidden, r->R, r->acts, r->scratch, r->p);
    if (!sparse) return;
    mm_run(&w, 1, r->h, c->hidden, r->R, MM_F32, r->scratch, r->p);
    mm_run(&q, 1, r->q_a, c->q_lora, r->R, r->acts, r->scratch, r->p);
}

void fwd_one_rows(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    const int64_t H = c->heads, D = c->head_dim;
    const mm_out a[] = { fwd_out(&l->lin[R_Q_A], r->q_a, c->q_lora, false),
                         fwd_out(&l->lin[R_KV_A], r->kv_a, D, false) },
                 b = fwd_out(&l->lin[R_Q_B], r->latent, H * D, false);
    fwd_tap_rows(r, R_Q_A, r->h, c->hidden, c->hidden);
    fwd_tap_rows(r, R_KV_A, r->h, c->hidden, c->hidden);
    pool_stage(r->p, STAGE_QKV);
    mm_run(a, 2, r->h, c->hidden, r->R, r->acts, r->scratch, r->p);
    fwd_each(r, r->R, norm_q_a, l);
    fwd_tap_rows(r, R_Q_B, r->q_a, c->q_lora, c->q_lora);
    mm_run(&b, 1, r->q_a, c->q_lora, r->R, r->acts, r->scratch, r->p);
    if (rope_of(l) == ROPE_LOCAL) compressor_products(r, l);
    fwd_each(r, r->R, finish_rows, l);
}

/* ---- compressed rows ---- */

/* One compressor of a layer: D dims; beside them, in `twice`, what goes into the next row. */
typedef struct {
    const fwd_rows *r;
    const fwd_seq_state *states;
    int64_t pieces; /* of each sequence */
    float *gives, *weighs;
    const model_vector *bias, *norm;
    int64_t D, ld, every, state; /* state: where it begins in a sequence's */
    bool twice;
    uint8_t *to; /* of the cache */
    const fwd_kv *kv;
    int64_t first_row, row0; /* of a block: of compressed rows the first; of the group */
    bool key;
} compressor;

static int64_t padded(int64_t n) { return lq_ceil_div(n, SCAN_LANES) * SCAN_LANES; }

/* A running softmax of n dims: [maximum, sum, weighted sum], ld apart. */
static void fold_one(float *s, int64_t ld, int64_t n, const float *z, const float *bias,
                     const float *v)
{
    float *max = s, *sum = s + ld, *acc = sum + ld;
    for (int64_t i = 0; i < n; i++) {
        const float x = z[i] + bias[i];
        if (sum[i] > 0 && x <= max[i]) {
            const float e = k_exp(x - max[i]);
            sum[i] += e;
            acc[i] += e * v[i];
        } else {
            const float e = sum[i] > 0 ? k_exp(max[i] - x) : 0;
            sum[i] = sum[i] * e + 1;
            acc[i] = acc[i] * e + v[i];
            max[i] = x;
        }
    }
}

/* Some channels along a sequence's rows: where a compressed row ends, it is left in that row of `gives`. */
static void compress_piece(void *ctx, int64_t item, int thread)
{
    const compressor *a = ctx;
    const fwd_seq_state *s = &a->states[item / a->pieces];
    const int64_t c0 = item % a->pieces * CHANNELS, left = a->D - c0,
                  n = left < CHANNELS ? left : CHANNELS, ld = padded(a->D), all = 3 * ld,
                  second = a->twice ? a->D : 0;
    float *own = s->run.state + a->state + c0, *next = own + all;
    (void)thread;
    int mark = 0;
    for (int64_t at = 0, to; at < s->n_rows; at = to) {
        to = fwd_next_mark(s, &mark, at, s->n_rows);
        for (int64_t i = at; i < to; i++) {
            const int64_t t = s->row0 + i, pos = a->r->row_pos[t], place = pos % a->every;
            const float *bias = a->bias->w + place * a->ld + c0, *z = a->weighs + t * a->ld + c0;
            float *v = a->gives + t * a->ld + c0;
            fold_one(own, ld, n, z + second, bias + second, v + second);
            if (a->twice) fold_one(next, ld, n, z, bias, v);
            if (place < a->every - 1) continue;
            for (int64_t k = 0; k < n; k++)
                v[k] = own[2 * ld + k] / own[ld + k];
            for (int k = 0; k < 3; k++) {
                float *to_own = own + k * ld, *of_next = next + k * ld;
                if (a->twice) memcpy(to_own, of_next, (size_t)n * sizeof *own);
                memset(a->twice ? of_next : to_own, 0, (size_t)n * sizeof *own);
            }
        }
        fwd_copy_marked(s, mark, to, own, a->twice ? 6 : 3, n, ld);
    }
}

static void write_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const compressor *a = arg;
    float cs[ARCH_ONE_ROPE / 2], sn[ARCH_ONE_ROPE / 2];
    for (int64_t t = a->row0 + row; t < a->row0 + row + n; t++) {
        const int64_t pos = r->row_pos[t];
        if ((pos + 1) % a->every) continue;
        float *x = a->gives + t * a->ld;
        const kv_dtype d = kv_of(a->kv->dtype, a->key);
        const int place = (int)(a->first_row + r->row_slot[t] / a->every);
        arch_rope_table(r->c, ROPE_LOCAL, pos + 1 - a->every, 1, pos + 1, cs, sn);
        k_rmsnorm(x, a->D, x, a->D, a->norm->w, a->norm->offset, 1, a->D, a->norm->eps);
        rotate_last(r, x, 1, a->D, cs, sn);
        if (a->key && kv_turned(d)) k_hadamard(x, 1, a->D);
        attn_kv_write(a->to + (size_t)r->row_block[t] * a->kv->block_stride, place, 1, x, 1, a->D,
                      d);
    }
}

static void run_compressor(compressor *a, const fwd_group *g, int n)
{
    a->pieces = lq_ceil_div(a->D, CHANNELS);
    a->row0 = g->row0;
    pool_run(a->r->p, n * a->pieces, compress_piece, a);
    fwd_each(a->r, g->n_rows, write_rows, a);
}

void fwd_compress(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                  const fwd_group *g, int first, int n)
{
    const arch_config *c = r->c;
    const bool sparse = c->layer[layer].mixer == MIX_SPARSE;
    const arch_role bias = sparse ? R_SPARSE_BIAS : R_HEAVY_BIAS;
    const int64_t state = r->in_turn ? 0 : kv->state;
    compressor a = { .r = r,
                     .states = r->states + first,
                     .gives = r->gives,
                     .weighs = r->weighs,
                     .bias = &l->vec[bias],
                     .norm = &l->vec[bias + 1],
                     .D = c->head_dim,
                     .ld = sparse ? 2 * c->head_dim : c->head_dim,
                     .every = arch_compresses(c, layer),
                     .state = state,
                     .twice = sparse,
                     .to = kv->k,
                     .kv = kv,
                     .first_row = kv->block_size,
                     .key = true };
    const size_t bytes = (size_t)kv_state_floats(c, layer) * sizeof(float);
    if (r->in_turn) memset(r->states[first].run.state, 0, bytes);
    pool_stage(r->p, STAGE_ATTENTION);
    run_compressor(&a, g, n);
    if (!sparse) return;
    a.gives = r->index_k;
    a.weighs = r->index_weighs;
    a.bias = &l->vec[R_INDEX_BIAS];
    a.norm = &l->vec[R_INDEX_K_NORM];
    a.D = c->index_dim;
    a.ld = 2 * c->index_dim;
    a.state += 6 * padded(c->head_dim);
    a.to = kv->v;
    a.first_row = 0;
    a.key = false;
    run_compressor(&a, g, n);
}

/* ---- what is seen ---- */

typedef struct {
    const fwd_kv *kv;
    int64_t row0, every, rows; /* rows: of a block, all */
    bool sparse;
} seen_arg;

/* Where compressed position i is. */
static int32_t place_of(const seen_arg *a, int64_t i)
{
    const int64_t size = a->kv->block_size, last = (i + 1) * a->every - 1;
    return (int32_t)(last / size * a->rows + size + last % size / a->every);
}

static void see_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const seen_arg *a = arg;
    const arch_config *c = r->c;
    const int64_t size = a->kv->block_size, most = fwd_seen_most(c);
    for (int64_t t = a->row0 + row; t < a->row0 + row + n; t++) {
        const int64_t pos = r->row_pos[t], from = pos < c->window ? 0 : pos - c->window + 1,
                      there = (pos + 1) / a->every,
                      k = a->sparse && there > c->index_topk ? c->index_topk : there;
        const int32_t *chosen = r->index_keys + t * c->index_topk;
        int32_t *to = r->seen + t * most;
        for (int64_t p = from; p <= pos; p++)
            *to++ = (int32_t)(p / size * a->rows + p % size);
        for (int64_t i = 0; i < k; i++)
            *to++ = place_of(a, a->sparse ? chosen[i] : i);
        r->n_seen[t] = (int32_t)(to - (r->seen + t * most));
    }
}

void fwd_compress_seen(const fwd_rows *r, int64_t layer, const fwd_kv *kv, const fwd_group *g)
{
    const seen_arg a = { .kv = kv,
                         .row0 = g->row0,
                         .every = arch_compresses(r->c, layer),
                         .rows = kv->block_size + kv_compressed_rows(r->c, layer, kv->block_size),
                         .sparse = r->c->layer[layer].mixer == MIX_SPARSE };
    fwd_each(r, g->n_rows, see_rows, &a);
}

/* ---- the output ---- */
static void turn_back(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const arch_config *c = r->c;
    const int64_t H = c->heads, D = c->head_dim, rope = c->rope_dims, half = half_dims(r);
    const arch_rope_use use = *(const arch_rope_use *)arg;
    for (int64_t t = row; t < row + n; t++) {
        float *sn = r->sin[use] + t * half; /* used no more in this layer: turned round, and back */
        k_scale(sn, -1, half);
        k_rope(r->latent + t * H * D + D - rope, H, D, rope, r->cos[use] + t * half, sn,
               c->w.rope_half);
        k_scale(sn, -1, half);
    }
}

void fwd_one_values(const fwd_rows *r)
{
    const arch_config *c = r->c;
    const model_linear *w = &r->layer->lin[R_O_A];
    const int64_t G = c->o_groups, N = c->o_lora, K = c->heads * c->head_dim / G;
    const arch_rope_use use = rope_of(r->layer);
    fwd_each(r, r->R, turn_back, &use);
    if (r->tap) r->tap->tap(r->tap->user, R_O_A, -1, r->latent, K, r->R * G, K);
    pool_stage(r->p, STAGE_O);
    for (int64_t g = 0; g < G; g += GROUPS_AT_ONCE) {
        mm_weight part[GROUPS_AT_ONCE];
        mm_out outs[GROUPS_AT_ONCE];
        mm_job jobs[GROUPS_AT_ONCE];
        int n = 0;
        for (; n < GROUPS_AT_ONCE && g + n < G; n++) {
            part[n] = w->w;
            part[n].N = N;
            tiles_rows(&part[n].t, &w->w.t, (g + n) * N, (g + n + 1) * N); /* whole tiles: arch.c */
            outs[n] = (mm_out){ .w = &part[n], .y = r->a + (g + n) * N, .ldy = G * N };
            jobs[n] = (mm_job){ r->latent + (g + n) * K, G * K, r->R, NULL, &outs[n], 1 };
        }
        mm_run_jobs(jobs, n, r->acts, r->scratch, r->p);
    }
}
