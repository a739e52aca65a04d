/* runtime/forward/forward_rows.c - the rows of a step: their buffers, their places and angles; see
 * forward_impl.h. */
#include "formats/arch/ngrams.h"
#include "runtime/forward/forward_impl.h"

/* ---- buffers ---- */

int64_t fwd_last_maker(const arch_config *c)
{
    int64_t i = c->layers - 1;
    if (c->row->mixer == MIX_TAPPED) return c->layers;
    while (i > 0 && c->layer[i].kv_back && !arch_has_indexer(c, i))
        i--;
    return i;
}

/* With the sizes of the layers that rotate by this table; NULL: there are none. */
static const arch_config *turned_by(const arch_config *c, arch_rope_use which)
{
    for (int64_t i = 0; i < c->layers && c->w.pos == POS_ROPE; i++)
        if (c->layer[i].rope == which) return arch_at(c, i);
    return NULL;
}

int64_t fwd_angles(const arch_config *c, arch_rope_use which)
{
    const arch_config *own = turned_by(c, which);
    return own ? own->rope_dims / 2 : 0;
}

bool fwd_grows_in(const arch_config *c, int64_t layer)
{
    return c->q_grow > 0 && !(c->w.q_grow_nope && c->layer[layer].rope != ROPE_OFF);
}

int64_t fwd_grows(const arch_config *c) { return c->q_grow > 0 ? c->head_dim / 2 : 0; }

int64_t fwd_turns(const arch_config *c) { return arch_name_of(c, R_Q_SLOPE) ? 1 : 0; }

int64_t fwd_lists_beyond(const arch_config *c)
{
    const bool some = arch_indexed(c) && arch_shares_index(c) && fwd_last_maker(c) < c->layers - 1;
    return some ? arch_index_lists(c) * c->index_topk : 0;
}

static int64_t lists_row(const arch_config *c, fwd_which which)
{
    return which == FWD_ALL ? 0 : fwd_lists_beyond(c);
}

int64_t fwd_gate_width(const arch_config *c)
{
    if (c->w.q_gated) return c->heads * (c->head_dim + (c->w.mla ? c->v_dim : c->head_dim));
    if (!arch_name_of(c, R_ATTN_GATE)) return 0;
    return c->w.gate_heads ? c->heads : c->heads * c->v_dim;
}

int64_t fwd_qkv_width(const arch_config *c)
{
    return c->heads * c->head_dim + c->kv_heads * (c->head_dim + c->v_dim);
}

int64_t fwd_mlp_width(const arch_config *c) { return c->w.mlp == MLP_GATED ? 2 * c->ffn : c->ffn; }

/* Where of a row of fwd_rows.mix what each role makes begins, and the row's width. */
static int64_t mix_places(const arch_config *c, int64_t at[R_MIX_X - R_MIX_IN + 2])
{
    int64_t width = 0, N, K;
    for (arch_role i = R_MIX_IN; i <= R_MIX_X; i++) {
        at[i - R_MIX_IN] = width;
        arch_role_shape(c, i, &N, &K);
        if (arch_name_of(c, i)) width += N;
    }
    return at[R_MIX_X + 1 - R_MIX_IN] = width;
}

static int64_t mix_width(const arch_config *c)
{
    int64_t at[R_MIX_X - R_MIX_IN + 2];
    return mix_places(c, at);
}

/* Of a row of index_k. */
static int64_t index_width(const arch_config *c)
{
    return c->sparse_every ? 2 * c->index_dim : arch_index_width(c);
}

static int64_t index_qk_width(const arch_config *c)
{
    return arch_index_mean(c) ? (c->index_heads + 1) * c->index_dim : 0;
}

int64_t fwd_index_normed(const arch_config *c)
{
    return arch_name_of(c, R_INDEX_IN_NORM) ? c->hidden : 0;
}

int64_t fwd_seen_most(const arch_config *c)
{
    if (c->index_every) return c->index_topk + c->index_every;
    if (!c->sparse_every) return 0;
    const int64_t heavy = c->max_pos / c->heavy_every + 1, sparse = c->index_topk;
    return c->window + (heavy > sparse ? heavy : sparse);
}

bool fwd_by_token(const arch_config *c)
{
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].hashed || c->layer[i].ngrams) return true;
    return false;
}

int64_t fwd_mix_channels(const arch_config *c)
{
    return c->w.mix_mixed ? arch_conv_channels(c, c->row->mixer) : 0;
}

int64_t fwd_given_width(const arch_config *c)
{
    if (!c->mtp) return 0;
    const int64_t three = arch_is_eagle(c) ? 3 * c->target_hidden : 0;
    return three > c->hidden ? three : c->hidden;
}

int64_t fwd_kept_width(const arch_config *c, const fwd_opts *o)
{
    return !o->all_hidden ? 0 : o->n_inputs ? o->n_inputs * c->hidden : c->hidden;
}

/* Of what a row has of all distances. */
static int64_t dist_width(const arch_config *c, int64_t has)
{
    if (c->rel_dims) return has ? c->heads * (c->rel_extent + 1) : 0;
    return has ? c->heads * arch_dist_rows(c) : 0;
}

/* Are the embedding's rows, or those that the head reads, others than the layers'? */
static bool reads_apart(const arch_config *c)
{
    return c->embed_dim != c->hidden || arch_has(c, R_PROJ_OUT, -1);
}

static int64_t shared_shares(const arch_config *c)
{
    return c->shared_experts ? c->shared_experts : c->shared_ffn ? 1 : 0;
}

static int64_t beside_width(const arch_config *c)
{
    return (c->w.dense_beside && !c->w.shortcut) || c->row->early ? c->hidden : 0;
}

/* Of the streams that a device has. */
static int64_t picked_width(const arch_config *c)
{
    return c->streams || c->hyper ? fwd_streams_width(c) : 0;
}

/* X(field, floats per row) for each buffer: what fwd_place fills, and what the steps do. */
#define PLACED(X)                                 \
    X(cos[ROPE_MAIN], fwd_angles(c, ROPE_MAIN))   \
    X(sin[ROPE_MAIN], fwd_angles(c, ROPE_MAIN))   \
    X(cos[ROPE_LOCAL], fwd_angles(c, ROPE_LOCAL)) \
    X(sin[ROPE_LOCAL], fwd_angles(c, ROPE_LOCAL)) \
    X(grow[0], fwd_grows(c))                      \
    X(grow[1], fwd_grows(c))                      \
    X(turns, fwd_turns(c))                        \
    X(row_pos, 1)                                 \
    X(row_type, c->types ? 1 : 0)                 \
    X(row_block, 1)                               \
    X(row_slot, 1)                                \
    X(row_group, c->index_every ? 1 : 0)
#define HELD(X)                                                 \
    X(h, c->hidden)                                             \
    X(y, c->hidden)                                             \
    X(e, reads_apart(c) ? c->embed_dim : 0)                     \
    X(given, fwd_given_width(c))                                \
    X(mtp_in, c->mtp || c->asides ? 2 * c->hidden : 0)          \
    X(aside_low, c->aside_rank)                                 \
    X(cca, fwd_cca_width(c) * c->head_taps)                     \
    X(cca_out, fwd_cca_width(c))                                \
    X(q, c->w.kv_one ? 0 : c->heads * c->head_dim)              \
    X(a, arch_o_width(c))                                       \
    X(pairs, c->w.diff ? c->heads * c->v_dim : 0)               \
    X(k, c->w.mla ? 0 : c->kv_heads * c->head_dim)              \
    X(v, c->w.mla ? 0 : c->kv_heads * c->v_dim)                 \
    X(key_add, c->key_pad ? c->kv_heads : 0)                    \
    X(squares, c->w.qk_norm == QK_NORM_ALL ? 2 : 0)             \
    X(qkv, arch_name_of(c, R_QKV) ? fwd_qkv_width(c) : 0)       \
    X(mlp, fwd_mlp_width(c))                                    \
    X(ple, fwd_ple_width(c))                                    \
    X(ple_row, fwd_ple_width(c))                                \
    X(ple_in, c->ple_dim)                                       \
    X(streams, fwd_streams_width(c))                            \
    X(first, c->streams ? c->hidden : 0)                        \
    X(streams_row, which != FWD_ALL ? picked_width(c) : 0)      \
    X(laurel, c->laurel)                                        \
    X(norm_gate, c->norm_rank)                                  \
    X(hyper, arch_hyper_width(c))                               \
    X(hyper_row, which != FWD_ALL ? arch_hyper_width(c) : 0)    \
    X(hyper_normed, c->hyper_rank ? fwd_streams_width(c) : 0)   \
    X(hyper_gate, c->hyper_rank ? fwd_streams_width(c) : 0)     \
    X(hyper_low, c->hyper_rank)                                 \
    X(ngram_rows, arch_ngram_heads(c))                          \
    X(ngram_e, c->ngram_dim)                                    \
    X(ngram_key, c->ngram ? fwd_streams_width(c) : 0)           \
    X(ngram_value, c->ngram ? c->hidden : 0)                    \
    X(rel, c->heads * c->rel_dims)                              \
    X(dist_q, dist_width(c, c->dist_keys || c->rel_dims))       \
    X(dist_k, dist_width(c, c->dist_queries))                   \
    X(ids, fwd_by_token(c) ? 1 : 0)                             \
    X(beside, beside_width(c))                                  \
    X(scores, arch_router_rows(c))                              \
    X(choice, arch_choices(c))                                  \
    X(route, c->route)                                          \
    X(route_mid, 2 * c->route)                                  \
    X(group_score, c->experts ? c->expert_groups : 0)           \
    X(group_best, c->experts ? c->groups_used : 0)              \
    X(chosen, c->experts_used)                                  \
    X(place, c->experts_used)                                   \
    X(sent, c->experts_used)                                    \
    X(share, c->experts_used)                                   \
    X(expert_in, c->experts_used * 2 * c->expert_ffn)           \
    X(expert_out, c->experts_used *arch_expert_width(c))        \
    X(latent_in, c->latent)                                     \
    X(latent_sum, c->latent)                                    \
    X(shared_in, 2 * c->shared_ffn)                             \
    X(shared_share, shared_shares(c))                           \
    X(q_a, c->w.mla ? arch_q_width(c) : 0)                      \
    X(index_in, fwd_index_normed(c))                            \
    X(kv_a, c->w.mla ? c->kv_lora + c->rope_dims : 0)           \
    X(latent, c->w.mla ? c->heads *kv_latent_width(c) : 0)      \
    X(by_head, c->w.mla &&which != FWD_ALL ? head_width(c) : 0) \
    X(index_q, c->index_heads * c->index_dim)                   \
    X(index_k, index_width(c))                                  \
    X(index_weighs, c->sparse_every ? index_width(c) : 0)       \
    X(gives, c->sparse_every ? 2 * c->head_dim : 0)             \
    X(weighs, c->sparse_every ? 2 * c->head_dim : 0)            \
    X(seen, fwd_seen_most(c))                                   \
    X(n_seen, c->sparse_every || c->index_every ? 1 : 0)        \
    X(index_group, c->index_every *arch_index_width(c))         \
    X(index_qk, index_qk_width(c))                              \
    X(index_w, c->index_heads)                                  \
    X(index_keys, arch_index_lists(c) * c->index_topk)          \
    X(index_keys_row, lists_row(c, which))                      \
    X(index_seen, c->index_block ? c->kv_heads : 0)             \
    X(q_gate, fwd_gate_width(c))                                \
    X(head_gate, fwd_head_gates(c))                             \
    X(mix, mix_width(c))                                        \
    X(mix_conv, fwd_mix_channels(c))                            \
    X(mix_out, arch_mix_width(c, c->row->mixer))                \
    X(mix_beta, c->mix_heads)                                   \
    X(decay, arch_mix_decays(c))

/* Of a device's by_head, a row of all heads. */
static int64_t head_width(const arch_config *c)
{
    const int64_t nope = c->n_sizes ? c->head_dim : c->nope_dims; /* the most of any layer */
    return c->heads * (nope > c->v_dim ? nope : c->v_dim);
}

static size_t buffer_bytes(int64_t R, int64_t per_row) { return (size_t)R * (size_t)per_row * 4; }

size_t fwd_rows_bytes(const arch_config *c, int64_t R, fwd_which which)
{
    size_t n = 0;
#define ADD(field, per_row) n += lq_round_up(buffer_bytes(R, per_row) + 1, 64);
    if (which & FWD_PLACED) {
        PLACED(ADD)
    }
    if (which & FWD_HELD) {
        HELD(ADD)
        n += lq_round_up(fwd_slopes_bytes(c) + 1, 64);
    }
#undef ADD
    return n;
}

bool fwd_rows_cut(fwd_rows *r, const arch_config *c, int64_t R, fwd_which which, fwd_take *take,
                  void *from)
{
    bool ok = true;
    r->c = r->whole = c;
    mix_places(c, r->mix_at);
#define TAKE(field, per_row) ok = (r->field = take(from, buffer_bytes(R, per_row))) && ok;
    if (which & FWD_PLACED) {
        PLACED(TAKE)
    }
    if (which & FWD_HELD) {
        HELD(TAKE)
        ok = (r->slopes = take(from, fwd_slopes_bytes(c))) && ok;
    }
#undef TAKE
    return ok;
}

size_t fwd_slopes_bytes(const arch_config *c)
{
    return c->w.pos == POS_ALIBI ? (size_t)c->heads * sizeof(float) : 0;
}

void fwd_slopes(const arch_config *c, float *slopes)
{
    arch_alibi_slopes(c, slopes);
    if (c->w.alibi_twice) k_scale(slopes, 2, c->heads);
}

static void *take_zeroed(void *from, size_t bytes) { return lq_push(from, bytes); }
static void *take_raw(void *from, size_t bytes) { return lq_push_raw(from, bytes); }

bool fwd_rows_push(fwd_rows *r, const arch_config *c, int64_t R, bool zeroed, lq_arena *a)
{
    bool ok = fwd_rows_cut(r, c, R, FWD_ALL, zeroed ? take_zeroed : take_raw, a);
    if (ok && fwd_slopes_bytes(c)) fwd_slopes(c, r->slopes);
    return ok;
}

/* ---- places ---- */

/* Angles of rows row0.. at positions pos0..: rows up to seq_len take that length's, each later row
 * that of its own (dynamic NTK). */
static void place_angles(fwd_rows *r, arch_rope_use which, const attn_seq *s, int64_t seq_len)
{
    const arch_config *c = turned_by(r->whole, which);
    const int64_t half = fwd_angles(r->whole, which);
    const bool by_length = arch_rope_by_length(&r->whole->rope[which]);
    for (int64_t i = 0, n; i < s->n_rows && half; i += n) {
        int64_t pos = s->pos0 + i, at = (s->row0 + i) * half;
        n = by_length && pos >= seq_len ? 1 : s->n_rows - i;
        if (by_length && pos < seq_len && n > seq_len - pos) n = seq_len - pos;
        arch_rope_table(c, which, pos, n, pos < seq_len ? seq_len : pos + 1, r->cos[which] + at,
                        r->sin[which] + at);
    }
}

static float turns_at(int64_t pos) { return logf((float)(pos + 1)); }

void fwd_grow_heads(float *q, int64_t H, int64_t D, int64_t pos, const model_vector *slope,
                    const model_vector *base)
{
    const float turns = turns_at(pos);
    for (int64_t h = 0; h < H; h++)
        k_scale(q + h * D, slope->w[h] * turns + base->w[h], D);
}

static void place_growth(fwd_rows *r, const attn_seq *s)
{
    const int64_t n = fwd_grows(r->c);
    int64_t layer = 0;
    while (n && layer < r->c->layers - 1 && !fwd_grows_in(r->c, layer))
        layer++;
    for (int64_t t = s->row0; t < s->row0 + s->n_rows && n; t++) {
        const float f = arch_q_factor(r->c, layer, s->pos0 + t - s->row0);
        for (int64_t i = t * n; i < (t + 1) * n; i++) {
            r->grow[0][i] = f;
            r->grow[1][i] = 0;
        }
    }
}

static void place_rows(fwd_rows *r, const attn_seq *s, int block_size)
{
    const int64_t every = r->c->index_every;
    for (int64_t i = 0; i < s->n_rows; i++) {
        int64_t pos = s->pos0 + i;
        r->row_pos[s->row0 + i] = (int32_t)pos;
        r->row_block[s->row0 + i] = s->table[pos / block_size];
        r->row_slot[s->row0 + i] = (int32_t)(pos % block_size);
        if (every)
            r->row_group[s->row0 + i] =
                (pos + 1) % every ? -1 : (int32_t)(pos % block_size / every);
    }
    for (int64_t i = 0; i < s->n_rows && fwd_turns(r->c); i++)
        r->turns[s->row0 + i] = turns_at(s->pos0 + i);
    if (r->c->types) memset(r->row_type + s->row0, 0, (size_t)s->n_rows * sizeof *r->row_type);
    place_growth(r, s);
}

void fwd_place(fwd_rows *r, const attn_seq *s, int block_size, int64_t seq_len)
{
    place_rows(r, s, block_size);
    place_angles(r, ROPE_MAIN, s, seq_len);
    place_angles(r, ROPE_LOCAL, s, seq_len);
}

void fwd_place_like(fwd_rows *r, const attn_seq *s, const attn_seq *like, int block_size)
{
    place_rows(r, s, block_size);
    for (int which = 0; which < 2; which++) {
        const int64_t half = fwd_angles(r->whole, which), to = s->row0 * half,
                      from = like->row0 * half;
        const size_t bytes = (size_t)(s->n_rows * half) * sizeof(float);
        memcpy(r->cos[which] + to, r->cos[which] + from, bytes);
        memcpy(r->sin[which] + to, r->sin[which] + from, bytes);
    }
}

/* ---- what of a step is drawn from ---- */

int64_t fwd_draw_edits(const fwd_opts *o, int64_t vocab)
{
    enum { EDITS = 1 << 16 }; /* 768 KiB: 64 sequences of 1,000 different ids each */
    return o->max_logits < EDITS / vocab + 1 ? o->max_logits * vocab : EDITS;
}

bool fwd_next_run(fwd_run *run, const fwd_batch *b)
{
    run->row += run->n;
    for (; run->draw < b->n_draws && b->draws[run->draw].row == run->row; run->draw++)
        run->row++;
    run->n = (run->draw < b->n_draws ? b->draws[run->draw].row : b->n_picked) - run->row;
    return run->n > 0;
}

/* ---- parts of a step on several devices ---- */

int64_t fwd_ranks_width(const arch_config *c, int ranks) { return lq_ceil_div(c->vocab, ranks); }

int64_t fwd_ranks_stages(const arch_config *c) { return c->layers * FWD_N_PARTS + 2; }

bool fwd_ranks_ends_piece(const arch_config *c, int64_t stage)
{
    if (stage == 0) return false;
    if (stage == fwd_ranks_stages(c) - 1) return true;
    const fwd_part part = (fwd_part)((stage - 1) % FWD_N_PARTS);
    return part == FWD_TO_HEADS ? c->w.qk_norm == QK_NORM_ALL : part != FWD_TO_END;
}

int64_t fwd_ranks_pieces(const arch_config *c)
{
    int64_t n = 0;
    for (int64_t i = 0; i < fwd_ranks_stages(c); i++)
        n += fwd_ranks_ends_piece(c, i);
    return n;
}
