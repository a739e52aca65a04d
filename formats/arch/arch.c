/* formats/arch/arch.c - config.json to a config, and what must hold between its numbers. Its row:
 * arch_find.c; the numbers: arch_config.c; keys of some rows only: arch_keys.c; positions:
 * arch_rope.c; roles: arch_roles.c; names and shapes: arch_names.c; our own spelling: arch_json.c;
 * the table of architectures: arch_rows.c and rows/. */
#include "formats/arch/arch_impl.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void arch_config_init(arch_config *c, const arch_row *row)
{
    memset(c, 0, sizeof *c);
    c->row = row;
    c->w = row->w;
    c->tied = row->def_tied;
    c->attn_bias = c->mlp_bias = c->own_bias = c->conv_bias = -1;
    c->embed_scale = c->residual_scale = c->logit_scale = c->expert_scale = c->shared_scale = 1;
    for (int i = 0; i < ARCH_N_BRANCHES; i++)
        c->join_x[i] = c->join_y[i] = 1;
    c->latent_scale = c->gate_scale = c->down_scale = c->o_scale = c->mix_out_scale = 1;
    for (size_t i = 0; i < LQ_COUNT(c->mix_scale); i++)
        c->mix_scale[i] = 1;
    if (row->mixer == MIX_SELECT || row->mixer == MIX_LRU) c->mix_heads = c->mix_groups = 1;
    if (row->mixer == MIX_LRU) c->mix_key = 1;
    c->alibi_max = 8;
    c->hyper_post = 2;
    c->router_scale = c->join_heat = 1;
    c->pos_offset = row->pos_offset;
    if (row->mtp && row->mtp->eagle) c->mtp = row->mtp;
    c->expert_groups = c->groups_used = 1;
    c->bos = -1;
    for (size_t i = 0; i < LQ_COUNT(c->eos); i++)
        c->eos[i] = -1;
    snprintf(c->prefix, sizeof c->prefix, "%s", row->prefix);
}

enum { ROWS_OF_TILE = 16 };

static lq_status check_experts(const arch_config *c, lq_err *err)
{
    if (!c->experts) return LQ_OK;
    if (!arch_name_of(c, R_ROUTER) || c->expert_ffn < 1)
        return lq_fail(err, LQ_EVALUE, "experts: expected none in a %s, or a width of each",
                       c->row->arch);
    if (c->w.router == ROUTER_SPARSEMIXER && c->experts_used != 2)
        return lq_fail(err, LQ_EUNSUPPORTED, "experts_used: expected 2 in a %s, found %" PRId64,
                       c->row->arch, c->experts_used);
    if (c->w.skips && c->experts_used != 1)
        return lq_fail(err, LQ_EUNSUPPORTED, "experts_used: expected 1 in a %s, found %" PRId64,
                       c->row->arch, c->experts_used);
    if (arch_name_of(c, R_ROUTER_IN) && c->route < 1)
        return lq_fail(err, LQ_EVALUE,
                       "route: expected numbers of what the router reads, found %" PRId64,
                       c->route);
    const arch_name *down = arch_name_of(c, R_SHARED_DOWN);
    const bool shared = down && (down->flags & NAME_SHARED);
    if (shared != (c->shared_experts > 0) ||
        (shared && (c->w.router != ROUTER_SIGMOID || !c->w.norm_topk || c->w.skips)) ||
        (shared &&
         (c->shared_ffn != c->shared_experts * c->expert_ffn || c->hidden % ROWS_OF_TILE)))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "shared_experts: expected %s in a %s, found %" PRId64 " for %" PRId64
                       " outputs",
                       shared ? "1 or more, as wide as the others, and outputs of whole tiles of 16"
                              : "none within the router's sum",
                       c->row->arch, c->shared_experts, c->hidden);
    if (c->experts_used < 1 || c->experts_used > arch_choices(c))
        return lq_fail(err, LQ_EVALUE,
                       "experts_used: expected 1..%" PRId64 " experts, found %" PRId64,
                       arch_choices(c), c->experts_used);
    if (c->zero_experts && (!c->w.shortcut || c->expert_groups != 1))
        return lq_fail(err, LQ_EVALUE, "zero_experts: expected none in a %s, found %" PRId64,
                       c->row->arch, c->zero_experts);
    if (c->expert_groups < 1 || c->experts % c->expert_groups || c->groups_used < 1 ||
        c->groups_used > c->expert_groups)
        return lq_fail(err, LQ_EVALUE,
                       "expert_groups: expected a divisor of %" PRId64
                       " experts and at least the %" PRId64 " used, found %" PRId64,
                       c->experts, c->groups_used, c->expert_groups);
    if (c->experts_used > arch_choices(c) / c->expert_groups * c->groups_used)
        return lq_fail(err, LQ_EVALUE,
                       "experts_used: expected at most the experts of %" PRId64
                       " groups, found %" PRId64,
                       c->groups_used, c->experts_used);
    return LQ_OK;
}

/* Norms of q and k have the tensors that their kind reads. */
static bool fits_qk_norm(const arch_config *c, arch_role r)
{
    const arch_name *a = arch_name_of(c, r);
    if (c->w.qk_norm == QK_NORM_NONE) return true;
    return a && !(a->flags & (NAME_HEAD_ROWS | NAME_HEAD_EACH)) == (c->w.qk_norm != QK_NORM_HEADS);
}

/* What the row has no tensors for cannot be wired. */
static lq_status check_wiring(const arch_config *c, lq_err *err)
{
    const bool bad = (c->w.pos == POS_LEARNED && !arch_name_of(c, R_POS_EMBED)) ||
                     !fits_qk_norm(c, R_Q_NORM) || !fits_qk_norm(c, R_K_NORM) ||
                     (c->w.mla && c->w.pos != POS_ROPE && c->w.pos != POS_NONE) ||
                     (c->embed_dim != c->hidden && !arch_name_of(c, R_PROJ_IN)) ||
                     (c->w.pos == POS_SINUSOIDAL && c->hidden < 4);
    if (c->w.qkv_quarters && (c->heads % 4 || c->kv_heads != c->heads))
        return lq_fail(
            err, LQ_EVALUE,
            "heads: expected a multiple of 4, as many of k and v, in a %s, found %" PRId64
            " and %" PRId64,
            c->row->arch, c->heads, c->kv_heads);
    if (!bad) return LQ_OK;
    return lq_fail(
        err, LQ_EVALUE,
        "expected the positions, norms and embedding of a %s, found others (embedding of "
        "%" PRId64 " for %" PRId64 ")",
        c->row->arch, c->embed_dim, c->hidden);
}

/* The sizes of layers with a state. */
static lq_status check_mixer(const arch_config *c, lq_err *err)
{
    const arch_mixer m = c->row->mixer;
    if (m == MIX_CCA && (c->conv_taps < 1 || c->conv_taps > ARCH_MAX_TAPS || c->head_taps < 1 ||
                         c->head_taps > ARCH_MAX_TAPS || c->kv_heads * c->head_dim % 2))
        return lq_fail(err, LQ_EVALUE,
                       "conv_taps, head_taps: expected convolutions of 1..%d, and values of two "
                       "halves, found %" PRId64 " and %" PRId64,
                       ARCH_MAX_TAPS, c->conv_taps, c->head_taps);
    if (!arch_has_state(c) || (!arch_mixer_scans(m) && m != MIX_TAPPED)) return LQ_OK;
    const bool heads = m != MIX_CONV && m != MIX_TAPPED;
    if (c->conv_taps < 1 || c->conv_taps > ARCH_MAX_TAPS)
        return lq_fail(err, LQ_EVALUE, "conv_taps: expected a convolution of 1..%d, found %" PRId64,
                       ARCH_MAX_TAPS, c->conv_taps);
    if (heads && (c->mix_groups < 1 || c->mix_heads < 1 || c->mix_heads % c->mix_groups))
        return lq_fail(err, LQ_EVALUE,
                       "mix_groups: expected a divisor of %" PRId64
                       " heads of layers with a state, "
                       "found %" PRId64,
                       c->mix_heads, c->mix_groups);
    if (heads && (c->mix_key < 1 || c->mix_value < 1 ||
                  arch_conv_channels(c, m) + arch_mix_width(c, m) > ARCH_MAX_WIDTH))
        return lq_fail(err, LQ_EVALUE,
                       "mix_key: expected heads of a state of dims, found %" PRId64 " by %" PRId64,
                       c->mix_key, c->mix_value);
    const arch_name *x = arch_name_of(c, R_MIX_X);
    if (m == MIX_SELECT && c->mix_heads > 1 && !(x->flags & NAME_HEADS))
        return lq_fail(err, LQ_EVALUE, "mix_heads: expected one in a %s, found %" PRId64,
                       c->row->arch, c->mix_heads);
    if (m == MIX_SELECT && (c->mix_rank < 1 || c->mix_rank > ARCH_MAX_WIDTH - 2 * c->mix_key))
        return lq_fail(err, LQ_EVALUE, "mix_rank: expected a rank of the time step, found %" PRId64,
                       c->mix_rank);
    return LQ_OK;
}

static bool is_power_of_2(int64_t n) { return n > 0 && !(n & (n - 1)); }

/* Compressed positions of a block of the cache are whole ones, of any size that it may have, where an
 * indexer chooses among them; a group of R_O_A is whole tiles. */
static lq_status check_compressed(const arch_config *c, lq_err *err)
{
    enum { LEAST_BLOCK = 8, TILE = 16 };
    if (c->row->mixer != MIX_SPARSE) return LQ_OK;
    if (!is_power_of_2(c->sparse_every) || c->sparse_every > LEAST_BLOCK ||
        !is_power_of_2(c->heavy_every))
        return lq_fail(
            err, LQ_EUNSUPPORTED,
            "sparse_every: expected 1, 2, 4 or 8 positions for each compressed one, and a "
            "power of two in heavy layers, found %" PRId64 " and %" PRId64,
            c->sparse_every, c->heavy_every);
    if (c->o_groups < 1 || c->heads % c->o_groups || c->o_lora < TILE || c->o_lora % TILE)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "o_groups: expected a divisor of %" PRId64
                       " heads, and a multiple of 16 outputs of each, found %" PRId64
                       " of %" PRId64,
                       c->heads, c->o_groups, c->o_lora);
    if (c->window < 1 || !c->q_lora || c->rope_dims > ARCH_ONE_ROPE)
        return lq_fail(
            err, LQ_EVALUE,
            "window: expected a window, queries of q_lora_rank and at most %d rotated dims, "
            "found %" PRId64 ", %" PRId64 " and %" PRId64,
            ARCH_ONE_ROPE, c->window, c->q_lora, c->rope_dims);
    return LQ_OK;
}

static lq_status check_hyper(const arch_config *c, lq_err *err)
{
    const bool gated = arch_name_of(c, R_HYPER_ATTN_UP),
               there = gated || arch_name_of(c, R_HYPER_ATTN_FN);
    if (gated != (c->hyper_rank > 0))
        return lq_fail(err, LQ_EUNSUPPORTED, "hyper_rank: expected %s of a %s, found %" PRId64,
                       gated ? "a rank of gates on streams" : "none", c->row->arch, c->hyper_rank);
    if (there == (c->hyper > 0) && c->hyper <= ARCH_MAX_STREAMS &&
        (there && !c->w.hyper_apart) == (c->hyper_steps > 0))
        return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "hyper: expected %s of a %s, found %" PRId64 ", mixed in %" PRId64 " steps",
                   there ? "1 to 8 residual streams" : "no residual streams", c->row->arch,
                   c->hyper, c->hyper_steps);
}

/* What goes beside the stream of x is there where the row has its tensors, and nowhere else. */
static lq_status check_beside(const arch_config *c, lq_err *err)
{
    const bool streams = arch_name_of(c, R_STREAM_NORM), ple = arch_name_of(c, R_PLE_EMBED);
    const int64_t widest = ARCH_MAX_WIDTH / c->layers;
    if (streams != (c->streams != 0) || c->streams == 1 || c->streams > ARCH_MAX_STREAMS ||
        streams != (c->laurel != 0))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "streams: expected %s, and a rank of Laurel's where there are some, found "
                       "%" PRId64 " and %" PRId64,
                       streams ? "2 to 8" : "none", c->streams, c->laurel);
    if ((!ple && c->ple_dim) || (streams && !c->ple_dim) || (c->ple_dim && c->ple_vocab < 1) ||
        c->ple_dim > widest)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "ple_dim: expected %s of at most %" PRId64 " numbers a layer, found %" PRId64
                       " of %" PRId64 " tokens",
                       ple ? "an embedding" : "none", ple ? widest : 0, c->ple_dim, c->ple_vocab);
    return LQ_OK;
}

/* An indexer that chooses blocks, a head for each kv head. */
static lq_status check_blocks(const arch_config *c, lq_err *err)
{
    const int64_t block = c->index_block;
    if (c->index_heads != c->kv_heads)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "index_n_heads: expected one for each of %" PRId64
                       " kv heads, found %" PRId64,
                       c->kv_heads, c->index_heads);
    if (c->index_dim < c->rope_dims || c->index_dim > ARCH_MAX_WIDTH / c->index_heads)
        return lq_fail(err, LQ_EVALUE,
                       "index_head_dim: expected at least the %" PRId64
                       " dims that rotate, found %" PRId64,
                       c->rope_dims, c->index_dim);
    if (c->index_topk < block || c->index_topk % block || c->index_local > c->index_topk / block)
        return lq_fail(
            err, LQ_EVALUE,
            "index_topk_blocks: expected 1 or more, and at least index_local_blocks %" PRId64
            ", found %" PRId64 " positions in blocks of %" PRId64,
            c->index_local, c->index_topk, block);
    return LQ_OK;
}

static lq_status refuse_indexer(const arch_config *c, int64_t rope_dims, lq_err *err)
{
    return lq_fail(err, LQ_EVALUE,
                   "index_topk: expected positions that an indexer chooses, of heads of at "
                   "least %" PRId64 " dims that read a query of q_lora_rank, found %" PRId64
                   " of %" PRId64 " heads of %" PRId64 ", q_lora_rank %" PRId64,
                   rope_dims, c->index_topk, c->index_heads, c->index_dim, c->q_lora);
}

enum { BLOCK = 16 }; /* of the cache, where nothing else is said */

static bool fits_groups(const arch_config *c)
{
    return is_power_of_2(c->index_every) && c->index_every <= BLOCK &&
           c->index_topk % c->index_every == 0;
}

static lq_status refuse_groups(const arch_config *c, const char *every, const char *topk,
                               lq_err *err)
{
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "%s: expected a power of two up to %d that divides %s %" PRId64
                   ", found %" PRId64,
                   every, BLOCK, topk, c->index_topk, c->index_every);
}

/* An indexer of groups whose key is a mean, which rotates. */
static lq_status check_means(const arch_config *c, lq_err *err)
{
    if (c->index_heads < 1 || c->index_heads >= ARCH_MAX_WIDTH)
        return lq_fail(err, LQ_EVALUE,
                       "indexer_n_heads: expected heads of an indexer, found %" PRId64,
                       c->index_heads);
    if (c->index_dim < c->rope_dims || c->rope_dims > ARCH_ONE_ROPE || c->index_dim < 1 ||
        c->index_dim > ARCH_MAX_WIDTH / (c->index_heads + 1))
        return lq_fail(err, LQ_EVALUE,
                       "indexer_head_dim: expected at least the %" PRId64
                       " dims that rotate, at most %d of these, found %" PRId64,
                       c->rope_dims, ARCH_ONE_ROPE, c->index_dim);
    if (!arch_indexed(c) || !fits_groups(c))
        return refuse_groups(c, "indexer_compress_ratio", "indexer_budget", err);
    if (arch_rope_by_length(&c->rope[ROPE_MAIN]))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "rope: expected angles that do not depend on the length, where groups of "
                       "positions have a key, found %s",
                       arch_rope_text(c->rope[ROPE_MAIN].kind));
    return LQ_OK;
}

/* A row with an indexer's tensors has one, in its first layer too. */
static lq_status check_indexer(const arch_config *c, lq_err *err)
{
    if (!arch_name_of(c, R_INDEX_Q)) {
        if (!arch_indexed(c)) return LQ_OK;
        return lq_fail(err, LQ_EVALUE, "index_topk: expected none in a %s, found %" PRId64,
                       c->row->arch, c->index_topk);
    }
    if (c->index_block) return check_blocks(c, err);
    if (!arch_name_of(c, R_INDEX_K)) return check_means(c, err);
    if (!arch_indexed(c) || c->index_heads < 1 || c->index_dim < 1 ||
        (!c->q_lora && !arch_name_of(c, R_INDEX_IN_NORM)) ||
        c->index_dim > ARCH_MAX_WIDTH / c->index_heads)
        return refuse_indexer(c, c->rope_dims, err);
    if (c->index_every && !fits_groups(c))
        return refuse_groups(c, "index_kpool", "index_topk", err);
    if (c->layer && c->layer[0].index_shared)
        return lq_fail(err, LQ_EVALUE, "layer 0: expected an indexer, found none to share");
    return LQ_OK;
}

static lq_status check_width(const char *what, int64_t heads, int64_t dim, lq_err *err)
{
    if (dim >= 1 && dim <= ARCH_MAX_WIDTH / heads) return LQ_OK;
    return lq_fail(err, LQ_EVALUE,
                   "%s: expected %" PRId64 " heads of 1..%" PRId64 ", found %" PRId64, what, heads,
                   ARCH_MAX_WIDTH / heads, dim);
}

/* Rows of distances, and what scores have of them. */
static lq_status check_distances(const arch_config *c, lq_err *err)
{
    const int64_t n = c->dist_buckets;
    const bool there = arch_name_of(c, R_DIST_EMBED), biases = arch_name_of(c, R_DIST_BIAS);
    const bool fits = c->kv_heads == c->heads && arch_dist_rows(c) <= ARCH_MAX_WIDTH / c->heads;
    if (there == (c->dist_far > 0) && (there || biases || !n) &&
        (!there || (fits && (!n || (n % 2 == 0 && n / 2 < c->dist_far - 1)))))
        return LQ_OK;
    return lq_fail(
        err, LQ_EVALUE, "dist_far: expected %s in a %s, found %" PRId64 " and %" PRId64 " buckets",
        there ? "a distance, and buckets of less" : "none", c->row->arch, c->dist_far, n);
}

/* What queries add to scores by distance. */
static lq_status check_relative(const arch_config *c, lq_err *err)
{
    const bool there = arch_name_of(c, R_REL);
    if (there == (c->rel_dims > 0) && there == (c->rel_extent > 0) &&
        (!there ||
         (c->attn_scale > 0 && !c->attn_softcap && c->rel_dims <= ARCH_MAX_WIDTH / c->heads)))
        return LQ_OK;
    return lq_fail(err, LQ_EVALUE,
                   "rel_extent: expected %s in a %s, found %" PRId64 " of %" PRId64 " numbers",
                   there ? "distances, and numbers of each head for them" : "none", c->row->arch,
                   c->rel_extent, c->rel_dims);
}

/* The next word would be seen by those before it. */
static lq_status check_both_ways(const arch_config *c, lq_err *err)
{
    if (!c->w.both_ways || (c->head != HEAD_WORDS && !arch_has_state(c))) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "use_bidirectional_attention: expected false in a model that %s, found true",
                   c->head == HEAD_WORDS ? "gives words" : "carries a state");
}

/* Transformers beside the residual, and what reads it after each. */
static lq_status check_asides(const arch_config *c, lq_err *err)
{
    const bool there = arch_name_of(c, R_PAIR_NORM), adapted = arch_name_of(c, R_GATE_UP_LOW);
    int64_t n = 0;
    bool bad =
        there != (c->asides > 0) || adapted != (c->aside_rank > 0) || (!adapted && c->aside_heads);
    for (int64_t i = 0; i < c->layers && c->layer && there; i++) {
        const bool aside = c->layer[i].mixer == MIX_ATTENTION;
        n += aside;
        bad |= c->layer[i].no_mlp == aside || (!aside && c->layer[i].mixer != c->row->mixer) ||
               (aside && (i + 1 == c->layers || c->layer[i + 1].mixer == MIX_ATTENTION));
    }
    bad |= c->layer && c->asides > n;
    bad |= c->aside_heads && c->kv_heads != c->heads; /* an adapter is as wide as q for all three */
    if (!bad) return LQ_OK;
    return lq_fail(
        err, LQ_EVALUE,
        "asides: expected %s in a %s, found %" PRId64 " of rank %" PRId64 " for %" PRId64 " uses",
        there ? "transformers beside layers with a state, as many K and V as heads where "
                "these have adapters"
              : "none",
        c->row->arch, c->asides, c->aside_rank, n);
}

/* Dims of a head beside those that products make, and that rotate. */
static lq_status check_key_pad(const arch_config *c, lq_err *err)
{
    const bool there = arch_name_of(c, R_KEY_STEP);
    if (there == (c->key_pad > 0) && c->key_pad != 1 && c->head_dim > c->key_pad &&
        (!there || c->attn_scale > 0) &&
        (!there ||
         (c->rope_dims <= c->head_dim - c->key_pad && c->v_dim == c->head_dim - c->key_pad)))
        return LQ_OK;
    return lq_fail(err, LQ_EVALUE,
                   "key_pad: expected %s in a %s, found %" PRId64 " of %" PRId64 " dims",
                   there ? "dims of a head for what a key adds to scores" : "none", c->row->arch,
                   c->key_pad, c->head_dim);
}

static lq_status check_numbers(const arch_config *c, lq_err *err)
{
    if (c->layer_groups && c->layers % c->layer_groups)
        return lq_fail(err, LQ_EVALUE,
                       "layer_groups: expected a divisor of %" PRId64 " layers, found %" PRId64,
                       c->layers, c->layer_groups);
    if (c->heads % c->kv_heads)
        return lq_fail(err, LQ_EVALUE,
                       "kv_heads: expected a divisor of %" PRId64 " heads, found %" PRId64,
                       c->heads, c->kv_heads);
    lq_status s = check_width("head_dim", c->heads, c->head_dim, err);
    if (!s) s = check_width("v_head_dim", c->heads, c->v_dim, err);
    if (!s && !c->w.mla && !c->w.v_apart && c->v_dim != c->head_dim)
        s = lq_fail(err, LQ_EVALUE, "v_head_dim: expected head_dim %" PRId64 ", found %" PRId64,
                    c->head_dim, c->v_dim);
    if (!s && c->w.mla && (c->kv_lora < 1 || c->nope_dims + c->rope_dims != c->head_dim))
        s = lq_fail(err, LQ_EVALUE,
                    "kv_lora: expected a rank and heads of %" PRId64 " + %" PRId64
                    " dims, found %" PRId64 " and %" PRId64,
                    c->nope_dims, c->rope_dims, c->kv_lora, c->head_dim);
    if (!s) s = check_wiring(c, err);
    if (!s) s = check_experts(c, err);
    if (!s) s = check_beside(c, err);
    if (!s) s = check_mixer(c, err);
    if (!s) s = check_indexer(c, err);
    if (!s) s = check_compressed(c, err);
    if (!s) s = check_hyper(c, err);
    if (!s) s = check_distances(c, err);
    if (!s) s = check_relative(c, err);
    if (!s) s = check_asides(c, err);
    if (!s) s = check_key_pad(c, err);
    if (!s) s = check_both_ways(c, err);
    return s || c->w.pos != POS_ROPE ? s : arch_rope_check(c, err);
}

/* ---- layers ---- */

/* A table of angles is of one width. */
static lq_status check_angles(const arch_config *c, int64_t i, lq_err *err)
{
    for (int64_t k = 0; k < i; k++) {
        if (c->layer[k].rope != c->layer[i].rope || c->layer[i].rope == ROPE_OFF) continue;
        if (arch_at(c, k)->rope_dims == arch_at(c, i)->rope_dims) return LQ_OK;
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "layer %" PRId64 ": expected %" PRId64 " rotated dims, as in layer %" PRId64
                       ", found %" PRId64,
                       i, arch_at(c, k)->rope_dims, k, arch_at(c, i)->rope_dims);
    }
    return LQ_OK;
}

/* What a layer reads of another's must be there and fit. */
static lq_status check_layer(const arch_config *c, int64_t i, lq_err *err)
{
    const int64_t back = c->layer[i].kv_back;
    const bool may =
        c->w.mla ? c->w.mla_shared && !c->layer[i].v_is_k : arch_name_of(c, R_V_NORM) != NULL;
    if ((back || c->layer[i].v_is_k) && !may)
        return lq_fail(err, LQ_EVALUE,
                       "layer %" PRId64
                       ": expected K and V of its own, as every %s has, found others",
                       i, c->row->arch);
    if (c->w.shortcut && (c->layers % 2 || !c->experts || c->layer[i].moe != (i % 2 == 0)))
        return lq_fail(err, LQ_EVALUE,
                       "layer %" PRId64 ": expected pairs of layers in a %s, of which the first "
                       "has experts, found others",
                       i, c->row->arch);
    if (arch_has_indexer(c, i) && c->index_dim < arch_at(c, i)->rope_dims)
        return refuse_indexer(c, arch_at(c, i)->rope_dims, err);
    if (c->n_sizes) {
        lq_status s = check_angles(c, i, err);
        if (s) return s;
    }
    if (!back) return LQ_OK;
    const bool there = back > 0 && back <= i && c->layer[i - back].kv_back == 0;
    const arch_config *own = arch_at(c, i), *from = arch_at(c, there ? i - back : i);
    if (there && own->kv_heads == from->kv_heads && own->head_dim == from->head_dim &&
        (!c->w.mla || own->rope_dims == from->rope_dims))
        return LQ_OK;
    return lq_fail(err, LQ_EVALUE,
                   "layer %" PRId64 ": expected K and V of its own or of a layer of the same heads "
                   "before it, found those of layer %" PRId64,
                   i, i - back);
}

lq_status arch_config_check(const arch_config *c, lq_err *err)
{
    lq_status s = check_numbers(c, err);
    for (int64_t i = 0; i < c->n_sizes && !s; i++)
        s = check_numbers(c->sizes[i], err);
    for (int64_t i = 0; i < c->layers && !s; i++)
        s = check_layer(c, i, err);
    return s;
}

/* One head of MLA is a part without and a part with a rotation; YaRN's length factor goes to the
 * scores where mscale_all_dim says so. */
static void size_mla(arch_config *c, const cJSON *j)
{
    if (!c->w.mla) return;
    double all = 0, factor = 1;
    const cJSON *scaling = js_get(j, "rope_scaling");
    if (!scaling) scaling = js_get(j, "rope_parameters");
    c->head_dim = c->nope_dims + c->rope_dims;
    c->attn_scale = 1 / sqrt((double)c->head_dim);
    js_f64(scaling, "mscale_all_dim", false, 0, 1e6, &all, NULL);
    js_f64(scaling, "factor", false, 1, 1e6, &factor, NULL);
    const double m = all > 0 && factor > 1 ? 0.1 * all * log(factor) + 1 : 1;
    c->attn_scale *= m * m;
}

/* Keys of `from` that `to` does not say. */
static void add_missing(cJSON *to, const char *from)
{
    cJSON *all = cJSON_Parse(from), *next;
    for (cJSON *v = all ? all->child : NULL; v; v = next) {
        next = v->next;
        if (js_get(to, v->string)) continue;
        cJSON_DeleteItemFromObjectCaseSensitive(to, v->string);
        cJSON_AddItemToObject(to, v->string, cJSON_DetachItemViaPointer(all, v));
    }
    cJSON_Delete(all);
}

/* AutoRound's files for mlx-lm have the keys of rope_parameters beside the others. */
static void gather_rope(cJSON *j)
{
    static const char *const keys[] = {
        "rope_type",
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "low_freq_factor",
        "mscale",
        "truncate",
        "high_freq_factor",
        "short_factor",
        "type",
        "mscale_all_dim",
        "mrope_section",
        "mrope_interleaved",
        "long_factor",
        "attention_factor",
    };
    cJSON *rope = cJSON_CreateObject();
    for (size_t i = 0; i < LQ_COUNT(keys); i++) {
        cJSON *v = cJSON_DetachItemFromObjectCaseSensitive(j, keys[i]);
        if (v) cJSON_AddItemToObject(rope, keys[i], v);
    }
    cJSON_DeleteItemFromObjectCaseSensitive(j, "rope_parameters");
    cJSON_AddItemToObject(j, "rope_parameters", rope);
}

/* j, and what the row assumes of it where it is silent, for the row's own words; NULL: j is whole. */
static cJSON *with_defaults(const arch_row *row, const cJSON *j, bool text)
{
    const bool silent = !js_get(j, "rope_parameters") && !js_get(j, "rope_scaling");
    const bool flat = silent && cJSON_IsString(js_get(j, "rope_type"));
    const bool rope = silent && !flat && row->def_rope;
    const bool sizes = row->def_sizes && text;
    cJSON *whole = rope || flat || sizes || row->respell ? cJSON_Duplicate(j, true) : NULL;
    if (whole && flat) gather_rope(whole);
    if (whole && rope) {
        cJSON_DeleteItemFromObjectCaseSensitive(whole, "rope_parameters");
        cJSON_AddItemToObject(whole, "rope_parameters", cJSON_Parse(row->def_rope));
    }
    if (whole && sizes) add_missing(whole, row->def_sizes);
    return whole;
}

/* Everything but the row: j is what config.json says of the language model, outer all of it. */
static lq_status read_config(arch_config *c, const cJSON *j, const cJSON *outer,
                             const cJSON *generation, lq_err *err)
{
    lq_status s = arch_read_sizes(c, j, err);
    if (!s) s = arch_apply_keys(c, j, err);
    if (!s) size_mla(c, j);
    if (!s) s = arch_read_words(c, j, outer, err);
    if (!s) s = arch_read_experts(c, j, err);
    if (!s && generation) {
        s = arch_read_eos(c, js_get(generation, "eos_token_id"), err);
        if (s) lq_wrap(err, s, "generation_config.json");
    }
    if (!s && c->w.pos == POS_ROPE) s = arch_rope_parse(c, j, err);
    if (!s) s = arch_read_layers(c, j, err);
    if (!s) s = arch_check_keys(c, j, err);
    if (!s) s = arch_ngrams_fit(c, err);
    return arch_name_key(c, j, s ? s : arch_config_check(c, err), err);
}

/* An EAGLE-3 draft as the library "speculators" writes it: its layer's config apart, all else at the top. NULL: it
 * is none. */
static cJSON *flat_speculator(const cJSON *config)
{
    static const char *const apart[] = { "transformer_layer_config", "speculators_config" };
    const cJSON *layer = js_get(config, apart[0]), *type = js_get(config, "speculators_model_type");
    if (!cJSON_IsObject(layer) || !cJSON_IsString(type) || strcmp(type->valuestring, "eagle3") != 0)
        return NULL;
    cJSON *flat = cJSON_Duplicate(layer, true);
    for (const cJSON *v = flat ? config->child : NULL; v; v = v->next) {
        if (strcmp(v->string, apart[0]) == 0 || strcmp(v->string, apart[1]) == 0) continue;
        cJSON_DeleteItemFromObjectCaseSensitive(flat, v->string);
        cJSON_AddItemToObject(flat, v->string, cJSON_Duplicate(v, true));
    }
    return flat;
}

lq_status arch_config_parse(arch_config *c, const cJSON *config, const cJSON *generation,
                            lq_err *err)
{
    cJSON *flat = flat_speculator(config);
    if (flat) {
        const lq_status flat_s = arch_config_parse(c, flat, generation, err);
        cJSON_Delete(flat);
        return flat_s;
    }
    arch_pick p;
    memset(c, 0, sizeof *c);
    if (!cJSON_IsObject(config)) return lq_fail(err, LQ_EVALUE, "expected a JSON object");
    lq_status s = arch_pick_row(&p, config, err);
    if (s) return s;
    arch_config_init(c, p.row);
    c->wrapper = p.wrapper;
    c->head = p.head;
    cJSON *whole = with_defaults(p.row, p.j, p.j != config);
    if (whole && p.row->respell) s = p.row->respell(whole, err);
    if (!s) s = read_config(c, whole ? whole : p.j, config, generation, err);
    cJSON_Delete(whole);
    if (s) arch_config_free(c);
    return s;
}

/* An array of the config's own; NULL stays so. */
static bool own_copy(double **v, int64_t n)
{
    if (!*v) return true;
    double *copy = malloc((size_t)n * sizeof *copy);
    if (copy) memcpy(copy, *v, (size_t)n * sizeof *copy);
    *v = copy;
    return copy != NULL;
}

lq_status arch_config_mtp(arch_config *out, const arch_config *c, lq_err *err)
{
    const arch_mtp *mtp = c->row->mtp;
    const int64_t factors = c->rope_dims / 2 * 2;
    int64_t like = c->layers - 1;
    while (like >= 0 && !arch_mixer_attends(c->layer[like].mixer))
        like--;
    if (!mtp || c->n_sizes || like < 0)
        return lq_fail(
            err, LQ_EUNSUPPORTED,
            "multi-token prediction: expected a model with a head for it, found a %s, of "
            "which none is known",
            c->row->arch);
    *out = *c;
    out->mtp = mtp;
    out->mtp_number = mtp->counted ? c->layers : 0;
    out->layers = 1;
    out->sizes = NULL;
    out->layer = calloc(1, sizeof *out->layer);
    bool ok = out->layer != NULL;
    for (int i = 0; i < 2; i++)
        ok = own_copy(&out->rope[i].factors, factors) && ok;
    if (!ok) {
        arch_config_free(out);
        return lq_fail(err, LQ_ENOMEM, "multi-token prediction: out of memory");
    }
    out->layer[0] = c->layer[like];
    out->layer[0].moe = c->layer[c->layers - 1].moe;
    out->layer[0].index_shared = false;
    return LQ_OK;
}

lq_status arch_refuse_draft(lq_err *err)
{
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "expected a model, found an EAGLE-3 draft, which runs beside one "
                   "(--speculative-model)");
}

void arch_config_free(arch_config *c)
{
    arch_free_sizes(c);
    free(c->layer);
    free(c->rope[ROPE_MAIN].factors);
    free(c->rope[ROPE_LOCAL].factors);
    memset(c, 0, sizeof *c);
}
