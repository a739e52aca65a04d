/* runtime/forward/forward_ngram.c - embeddings of n-grams (Qwen4-Exp) on the CPU: what a layer adds to all residual streams s_j
 * before its branches.
 *
 *     e = rows of the table, those of all heads side by side (formats/arch/ngrams.h)
 *     g_j = norm(R_NGRAM_KEY e)_j . norm(s_j) / sqrt(hidden);  a_j = sigmoid(sign(g_j) sqrt(max(|g_j|, 1e-6)))
 *     v_j = a_j R_NGRAM_VALUE e;  s_j += v_j + silu(conv(norm(v)_j))
 *
 * Norms are of each stream for itself. The convolution is along the positions, each channel by itself, its taps `ngram` positions
 * apart; before position 0 all is 0. A sequence's state keeps what the convolution read of the last arch_ngram_back positions,
 * oldest first, and after these the last ngram - 1 ids, each + 1: 0 is before the sequence. Channels go from position to position
 * by themselves, so that neither threads nor chunks show in the result. */
#include "runtime/forward/forward_impl.h"
#include "runtime/model/kv_state.h"
#include "runtime/model/ngrams.h"

enum { CHANNELS = 64 }; /* of a piece */

typedef struct {
    const fwd_rows *r;
    const model_layer *l;
    int64_t state; /* where the layer's begins in a sequence's */
    const fwd_seq_state *states;
    int64_t pieces; /* of each */
} along;

/* ---- rows of the table ---- */

/* r->ngram_rows of a row; ids: its own, then those before it, or -1 where there is none. */
static void choose_rows(const fwd_rows *r, const arch_ngrams *z, int64_t t, const int64_t *ids)
{
    const arch_config *c = r->c;
    const uint64_t pad = (uint64_t)c->ngram_pad;
    int32_t *to = r->ngram_rows + t * z->heads;
    uint64_t mixed = (uint64_t)ids[0] * z->by[0];
    bool ended = false;
    for (int64_t n = 1, h = 0; n < c->ngram; n++) {
        ended |= ids[n] < 0 || ids[n] == c->ngram_pad;
        mixed ^= (ended ? pad : (uint64_t)ids[n]) * z->by[n];
        for (; h < n * c->ngram_heads; h++)
            to[h] = (int32_t)(z->at[h] + (int64_t)(mixed % (uint64_t)z->size[h]));
    }
}

/* Of a sequence's rows, and the ids that its state keeps. */
static void choose_along(const along *a, const fwd_seq_state *s)
{
    const arch_config *c = a->r->c;
    const int64_t n = c->ngram - 1;
    float *kept = s->run.state + a->state + arch_ngram_back(c) * fwd_streams_width(c);
    int64_t ids[ARCH_MAX_NGRAM];
    int mark = 0;
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int64_t)kept[n - 1 - i] - 1;
    for (int64_t at = 0, to; at < s->n_rows; at = to) {
        to = fwd_next_mark(s, &mark, at, s->n_rows);
        for (int64_t t = s->row0 + at; t < s->row0 + to; t++) {
            memmove(ids + 1, ids, (size_t)n * sizeof *ids);
            ids[0] = a->r->ids[t];
            choose_rows(a->r, &a->l->ngrams->of, t, ids);
        }
        for (int64_t i = 0; i < n; i++)
            kept[n - 1 - i] = (float)(ids[i] + 1);
        fwd_copy_marked(s, mark, to, kept, 1, n, n);
    }
}

static void look_up(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const model_ngrams *t = arg;
    const int64_t W = arch_ngram_width(r->c), heads = t->of.heads;
    for (int64_t i = row * heads; i < (row + n) * heads; i++)
        model_ngram_row(t, r->ngram_rows[i], r->ngram_e + i * W);
}

/* ---- gates ---- */

static float gate_of(const float *key, const float *query, int64_t H)
{
    double sum = 0;
    for (int64_t i = 0; i < H; i++)
        sum += (double)key[i] * (double)query[i];
    const float g = (float)(sum / sqrt((double)H)), root = sqrtf(fmaxf(fabsf(g), 1e-6f));
    return 1 / (1 + k_exp(g > 0 ? -root : g < 0 ? root : 0));
}

/* v to r->hyper_gate, and normed, for the convolution, in the place of the keys. */
static void gate_values(const fwd_rows *r, int64_t row, int64_t rows, const void *arg)
{
    const model_layer *l = arg;
    const model_vector *nk = &l->vec[R_NGRAM_KEY_NORM], *nq = &l->vec[R_NGRAM_QUERY_NORM],
                       *nc = &l->vec[R_NGRAM_CONV_NORM];
    const int64_t H = r->c->hidden, S = fwd_streams_width(r->c);
    for (int64_t at = row * S; at < (row + rows) * S; at += H) {
        float *key = r->ngram_key + at, *query = r->hyper_normed + at, *v = r->hyper_gate + at;
        const int64_t j = at % S;
        k_rmsnorm(key, H, key, H, nk->w + j, nk->offset, 1, H, nk->eps);
        k_rmsnorm(query, H, r->streams + at, H, nq->w + j, nq->offset, 1, H, nq->eps);
        memcpy(v, r->ngram_value + at / S * H, (size_t)H * sizeof *v);
        k_scale(v, gate_of(key, query, H), H);
        k_rmsnorm(key, H, v, H, nc->w + j, nc->offset, 1, H, nc->eps);
    }
}

/* ---- the convolution ---- */

/* n channels from c0 of a row's streams: past [arch_ngram_back] is what was read before row `at` of the buffers. */
static void conv_row(const along *a, const float *past, int64_t at, int64_t t, int64_t c0,
                     int64_t n)
{
    const fwd_rows *r = a->r;
    const arch_config *c = r->c;
    const int64_t S = fwd_streams_width(c), back = arch_ngram_back(c);
    const float *w = a->l->vec[R_NGRAM_CONV].w + c0, *v = r->hyper_gate + t * S + c0;
    float y[CHANNELS] = { 0 }, *s = r->streams + t * S + c0;
    for (int64_t j = 0; j < c->ngram_taps; j++) {
        const int64_t from = t - back + j * c->ngram;
        const float *x = from < at ? past + (back + from - at) * S : r->ngram_key + from * S + c0;
        for (int64_t i = 0; i < n; i++)
            y[i] += w[j * S + i] * x[i];
    }
    k_act(y, n, ACT_SILU);
    for (int64_t i = 0; i < n; i++)
        s[i] += v[i] + y[i];
}

/* The last that was read, rows [from, to) being the latest. */
static void keep_last(const along *a, float *past, int64_t from, int64_t to, int64_t c0, int64_t n)
{
    const int64_t S = fwd_streams_width(a->r->c), back = arch_ngram_back(a->r->c), m = to - from;
    for (int64_t i = 0; i < back; i++)
        memcpy(past + i * S,
               i + m < back ? past + (i + m) * S : a->r->ngram_key + (to - back + i) * S + c0,
               (size_t)n * sizeof *past);
}

static void conv_piece(void *ctx, int64_t item, int thread)
{
    const along *a = ctx;
    const fwd_seq_state *s = &a->states[item / a->pieces];
    const int64_t S = fwd_streams_width(a->r->c), c0 = item % a->pieces * CHANNELS,
                  n = S - c0 < CHANNELS ? S - c0 : CHANNELS;
    float *past = s->run.state + a->state + c0;
    int mark = 0;
    (void)thread;
    for (int64_t at = 0, to; at < s->n_rows; at = to) {
        to = fwd_next_mark(s, &mark, at, s->n_rows);
        for (int64_t t = at; t < to; t++)
            conv_row(a, past, s->row0 + at, s->row0 + t, c0, n);
        keep_last(a, past, s->row0 + at, s->row0 + to, c0, n);
        fwd_copy_marked(s, mark, to, past, arch_ngram_back(a->r->c), n, S);
    }
}

/* ---- all of it ---- */

void fwd_ngrams(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv)
{
    const arch_config *c = r->c;
    const int64_t S = fwd_streams_width(c), own = kv_state_ngrams_at(c, layer),
                  pieces = lq_ceil_div(S, CHANNELS);
    const size_t bytes = (size_t)(kv_state_floats(c, layer) - own) * sizeof(float);
    along a = { r, l, own + (r->in_turn ? 0 : kv->state), r->states, pieces };
    const mm_out outs[] = { fwd_out(&l->lin[R_NGRAM_KEY], r->ngram_key, S, false),
                            fwd_out(&l->lin[R_NGRAM_VALUE], r->ngram_value, c->hidden, false) };
    for (int i = 0; i < r->n_states; i++) {
        if (r->in_turn) memset(r->states[i].run.state + own, 0, bytes);
        choose_along(&a, &r->states[i]);
    }
    fwd_each(r, r->R, look_up, l->ngrams);
    r->ops->products(r, outs, LQ_COUNT(outs), r->ngram_e, c->ngram_dim, r->R);
    pool_stage(r->p, STAGE_NORM);
    fwd_each(r, r->R, gate_values, l);
    if (!r->in_turn) pool_run(r->p, r->n_states * pieces, conv_piece, &a);
    for (int i = 0; r->in_turn && i < r->n_states; i++) {
        a.states = &r->states[i];
        memset(r->states[i].run.state + own, 0, bytes);
        pool_run(r->p, pieces, conv_piece, &a);
    }
}
