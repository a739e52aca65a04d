/* runtime/model/rank.c - see rank.h. */
#include "runtime/model/rank.h"

#include <string.h>

/* Outputs of gate and up of any layer that has no experts; 0: all have. */
static int64_t dense_width(const arch_config *c)
{
    for (int64_t i = 0; i < c->layers; i++)
        if (!c->layer[i].moe) return c->ffn;
    return 0;
}

/* What has no division yet; NULL: nothing. */
static const char *not_yet(const arch_config *c)
{
    bool lends = false;
    for (int64_t i = 0; i < c->layers; i++)
        lends |= c->layer[i].kv_back > 0;
    const arch_mixer m = c->row->mixer;
    const bool states = m == MIX_DELTA || m == MIX_KDA || m == MIX_MAMBA || m == MIX_BOTH;
    return c->w.qk_norm == QK_NORM_ALL && c->w.norm == NORM_LAYER
               ? "a layer norm of all heads together"
           : arch_has_state(c) && !states
               ? "states of other layers than the delta rule's and Mamba-2's"
           : arch_has_state(c) && c->w.mix_tiled ? "a state whose values' heads are in tiles"
           : arch_name_of(c, R_O_NORM) || arch_name_of(c, R_DOWN_NORM)
               ? "norms of what the last products read"
           : c->index_block      ? "attention to chosen blocks"
           : c->w.dense_beside   ? "experts beside an MLP"
           : c->hyper            ? "several residual streams"
           : lends || c->ple_dim ? "layers that read more than the one before gives"
                                 : NULL;
}

static lq_status check_multiple(const char *name, int64_t n, int ranks, lq_err *err)
{
    if (n % ranks == 0) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected a multiple of %d devices, found %lld", name,
                   ranks, (long long)n);
}

/* May several devices have the same KV head, each with a part of its queries? */
static bool may_share(const arch_config *c, int ranks)
{
    const bool apart = c->w.qk_norm == QK_NORM_NONE || c->w.qk_norm == QK_NORM_HEAD;
    return apart && !c->w.qkv_grouped && !c->w.qkv_quarters && !c->w.mla && c->kv_heads &&
           ranks % c->kv_heads == 0;
}

/* What may differ from layer to layer. */
static lq_status check_sizes(const arch_config *c, int64_t ffn, int ranks, lq_err *err)
{
    lq_status s = check_multiple("heads", c->heads, ranks, err);
    if (!s && !may_share(c, ranks)) s = check_multiple("KV heads", c->kv_heads, ranks, err);
    return s ? s : check_multiple("outputs of gate and up", ffn, ranks, err);
}

lq_status rank_check(const arch_config *c, int ranks, lq_err *err)
{
    const char *what = not_yet(c);
    if (what)
        return lq_fail(err, LQ_EUNSUPPORTED, "not over several devices yet: %s (%s)", what,
                       c->row->arch);
    lq_status s = c->n_sizes ? LQ_OK : check_sizes(c, dense_width(c), ranks, err);
    for (int64_t i = 0; i < c->layers && c->n_sizes && !s; i++) {
        const arch_config *own = arch_at(c, i);
        s = check_sizes(own, c->layer[i].moe ? 0 : own->ffn, ranks, err);
    }
    if (!s && c->w.qkv_quarters) s = check_multiple("quarters of the heads", 4, ranks, err);
    if (!s) s = check_multiple("outputs of an expert's gate and up", c->expert_ffn, ranks, err);
    if (!s) s = check_multiple("outputs of the shared gate and up", c->shared_ffn, ranks, err);
    if (!s && arch_has_state(c)) s = check_multiple("heads of a state", c->mix_heads, ranks, err);
    if (!s && arch_has_state(c))
        s = check_multiple("key heads of a state", c->mix_groups, ranks, err);
    if (!s && c->vocab < ranks)
        s = lq_fail(err, LQ_EUNSUPPORTED, "vocabulary: expected one for each of %d devices", ranks);
    return s;
}

static void divide(arch_config *c, int ranks)
{
    c->heads /= ranks;
    c->kv_heads = rank_kv_heads(c, ranks);
    c->ffn /= ranks;
    c->expert_ffn /= ranks;
    c->shared_ffn /= ranks;
    if (!arch_has_state(c)) return;
    c->mix_heads /= ranks;
    c->mix_groups /= ranks;
}

lq_status rank_config(arch_config *own, const arch_config *c, int ranks, lq_arena *a, lq_err *err)
{
    *own = *c;
    divide(own, ranks);
    if (!c->n_sizes) return LQ_OK;
    const size_t layers = (size_t)c->layers, sizes = (size_t)c->n_sizes;
    arch_layer *layer = lq_push(a, layers * sizeof *layer);
    arch_config *size = lq_push(a, sizes * sizeof *size),
                **list = lq_push(a, sizes * sizeof(arch_config *));
    if (!layer || !size || !list)
        return lq_fail(err, LQ_ENOMEM, "no memory for the sizes of layers");
    memcpy(layer, c->layer, layers * sizeof *layer);
    for (int64_t k = 0; k < c->n_sizes; k++) {
        size[k] = *c->sizes[k];
        divide(&size[k], ranks);
        size[k].layer = layer;
        list[k] = &size[k];
        for (int64_t i = 0; i < c->layers; i++)
            if (c->layer[i].own == c->sizes[k]) layer[i].own = &size[k];
    }
    own->layer = layer;
    own->sizes = list;
    return LQ_OK;
}

/* Things of a matrix that lie one behind the other, each divided by itself; of KV heads, of which several devices may
 * have the same one, their number, else 0. */
typedef struct {
    int64_t width, kv_heads;
} segment;

/* How many a role's matrix has. */
static int segments_of(segment of[RANK_RANGES], const arch_config *c, arch_role r, int64_t N)
{
    const int64_t keys = c->mix_groups * c->mix_key, values = c->mix_heads * c->mix_value;
    const bool mamba = c->row->mixer == MIX_MAMBA || c->row->mixer == MIX_BOTH;
    int n = 0;
    switch (r) {
    case R_QKV: /* of all heads, or KV head by KV head, or quarter by quarter of the heads */
        if (c->w.qkv_grouped || c->w.qkv_quarters) break;
        of[n++] = (segment){ c->heads * c->head_dim, 0 };
        of[n++] = (segment){ c->kv_heads * c->head_dim, c->kv_heads };
        of[n++] = (segment){ c->kv_heads * c->v_dim, c->kv_heads };
        return n;
    case R_K:
    case R_V:
        of[n++] = (segment){ N, c->kv_heads };
        return n;
    case R_EXPERT_GATE_UP:
        if (c->w.gate_up_mixed) break;
        of[n++] = (segment){ c->expert_ffn, 0 };
        of[n++] = (segment){ c->expert_ffn, 0 };
        return n;
    case R_GATE_UP:
    case R_SHARED_GATE_UP:
        of[n++] = (segment){ N / 2, 0 };
        of[n++] = (segment){ N / 2, 0 };
        return n;
    case R_MIX_IN:
    case R_MIX_CONV: /* of R_MIX_IN those that the convolution reads */
        if (mamba) {
            if (r == R_MIX_IN) of[n++] = (segment){ values, 0 };
            of[n++] = (segment){ values, 0 };
            of[n++] = (segment){ keys, 0 };
            of[n++] = (segment){ keys, 0 };
            if (r == R_MIX_IN) of[n++] = (segment){ c->mix_heads, 0 };
            return n;
        }
        if (r == R_MIX_IN && c->w.mix_mixed) break; /* key head by key head */
        of[n++] = (segment){ keys, 0 };
        of[n++] = (segment){ keys, 0 };
        of[n++] = (segment){ values, 0 };
        if (r == R_MIX_IN && N > 2 * keys + values) of[n++] = (segment){ values, 0 }; /* the gate */
        return n;
    default:
        break;
    }
    of[0] = (segment){ N, 0 };
    return 1;
}

static tile_rows range_of(const segment *s, int rank, int ranks)
{
    if (!s->kv_heads || s->kv_heads % ranks == 0)
        return (tile_rows){ rank_begin(s->width, rank, ranks),
                            rank_begin(s->width, rank + 1, ranks) };
    const int64_t each = s->width / s->kv_heads, head = rank_begin(s->kv_heads, rank, ranks);
    return (tile_rows){ head * each, (head + 1) * each };
}

static void cut_rows(rank_part *p, const segment *of, int n, int rank, int ranks)
{
    int64_t before = 0;
    for (p->n = 0; p->n < n; before += of[p->n++].width) {
        const tile_rows own = range_of(&of[p->n], rank, ranks);
        p->rows[p->n] = (tile_rows){ before + own.n0, before + own.n1 };
    }
}

bool rank_vector_part(rank_part *p, const arch_config *c, arch_role r, int rank, int ranks)
{
    segment of[RANK_RANGES];
    *p = (rank_part){ .n = 0 };
    if (r != R_MIX_CONV) return false;
    cut_rows(p, of, segments_of(of, c, r, 0), rank, ranks);
    return true;
}

bool rank_part_of(rank_part *p, const arch_config *c, arch_role r, int rank, int ranks)
{
    int64_t N, K;
    segment of[RANK_RANGES];
    arch_role_shape(c, r, &N, &K);
    *p = (rank_part){ .rows = { { 0, N } }, .n = 1, .k1 = K, .bias = true };
    switch (r) {
    case R_Q:
    case R_K:
    case R_V:
    case R_QKV:
    case R_ATTN_GATE:
    case R_HEAD_GATE:
    case R_Q_B:
    case R_KV_B:
    case R_GATE:
    case R_UP:
    case R_GATE_UP:
    case R_EXPERT_GATE:
    case R_EXPERT_UP:
    case R_EXPERT_GATE_UP:
    case R_SHARED_GATE:
    case R_SHARED_UP:
    case R_SHARED_GATE_UP:
    case R_MIX_IN:
    case R_MIX_Q:
    case R_MIX_K:
    case R_MIX_V:
    case R_MIX_GATE:
    case R_MIX_GATE_UP:
    case R_MIX_BA:
    case R_MIX_B:
    case R_MIX_A:
    case R_MIX_A_UP:
    case R_HEAD:
        cut_rows(p, of, segments_of(of, c, r, N), rank, ranks);
        return true;
    case R_O:
    case R_DOWN:
    case R_EXPERT_DOWN:
    case R_SHARED_DOWN:
    case R_MIX_OUT:
        p->k0 = rank_begin(K, rank, ranks);
        p->k1 = rank_begin(K, rank + 1, ranks);
        p->bias = rank == 0;
        return true;
    default:
        return false;
    }
}
