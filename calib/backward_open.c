/* calib/backward_open.c - which models the passes cover, and what they need (calib/backward_impl.h). */
#include <stdlib.h>
#include <string.h>

#include "calib/backward_impl.h"

const arch_role grad_linear_roles[GRAD_SUMS] = {
    R_Q,         R_K,    R_V,      R_QKV,   R_Q_A,         R_Q_B,         R_KV_A,      R_KV_B,
    R_ATTN_GATE, R_O,    R_MIX_IN, R_MIX_Q, R_MIX_K,       R_MIX_V,       R_MIX_GATE,  R_MIX_OUT,
    R_GATE_UP,   R_GATE, R_UP,     R_DOWN,  R_EXPERT_DOWN, R_SHARED_GATE, R_SHARED_UP, R_SHARED_DOWN
};

int grad_linear_of(arch_role r)
{
    int k = 0;
    while (k < GRAD_SUMS && grad_linear_roles[k] != r)
        k++;
    return k;
}

/* Does a layer mix by other than attention, a delta rule, Mamba, Mamba-2 alone or beside attention, or a short
 * convolution? */
static bool other_mixer(const arch_config *c)
{
    for (int64_t i = 0; i < c->layers; i++) {
        const arch_mixer m = c->layer[i].mixer;
        if ((m != MIX_ATTENTION && m != MIX_NONE && m != MIX_DELTA && m != MIX_MAMBA &&
             m != MIX_CONV && m != MIX_BOTH && m != MIX_KDA && m != MIX_SELECT) ||
            (c->layer[i].kv_back && c->w.mla) || (c->layer[i].sparse > 0 && !c->streams) ||
            (c->layer[i].no_mlp && c->w.parallel))
            return true;
    }
    return false;
}

/* Are positions chosen by indexers of other kinds, or rotated by another table? */
static bool other_indexer(const arch_config *c)
{
    for (int64_t i = 0; i < c->layers; i++)
        if (arch_has_indexer(c, i) && (c->layer[i].window || c->layer[i].rope != ROPE_MAIN))
            return true;
    return c->w.index_last;
}

/* Is what the branches give not added to x as it is? */
static bool apart(const arch_config *c)
{
    return c->residual_scale != 1 || arch_name_of(c, R_ATTN_POST_NORM) ||
           arch_name_of(c, R_MLP_POST_NORM);
}

/* Is it not experts by softmax or sigmoid scores or SparseMixer, or a dense MLP? */
static bool other_mlp(const arch_config *c)
{
    const arch_wiring *w = &c->w;
    return (c->act == ARCH_XIELU && c->experts) ||
           (c->experts && (c->gate_scale != 1 || c->down_scale != 1)) ||
           (w->dense_beside && w->parallel) || w->router > ROUTER_SPARSEMIXER || w->shortcut ||
           w->skips || c->router_scale != 1 || c->router_softcap > 0 || c->row->early ||
           (w->dense_beside && !arch_name_of(c, R_MLP_POST_NORM));
}

bool grad_covers(const arch_config *c)
{
    const arch_wiring *w = &c->w;
    if (w->norm_after_add || w->o_norm_heads || w->norm_stays || w->both_ways ||
        (w->qkv_quarters && c->v_dim != c->head_dim) || c->embed_dim != c->hidden || w->diff ||
        other_mixer(c) || other_mlp(c) || other_indexer(c) || c->hyper || (w->mla && w->q_gated) ||
        (c->qkv_clip != 0 && w->qk_norm_late) || c->latent_scale != 1 ||
        (w->parallel && (apart(c) || arch_has_state(c))))
        return false;
    static const arch_role other[] = { R_INDEX_GATE,    R_EXPERTS_BIAS,   R_O_A,
                                       R_HEAD_NORM,     R_ATTN_JOIN,      R_EXPERT_OUT_NORM,
                                       R_EMBED_BY,      R_ROUTER_IN,      R_LATENT_NORM,
                                       R_INDEX_IN_NORM, R_ATTN_NORM_DOWN, R_PAIR_NORM,
                                       R_KEY_STEP,      R_ATTN_JOIN_X_BY, R_K_ROPE_NORM,
                                       R_REL,           R_SHARE_SCALE };
    for (size_t i = 0; i < LQ_COUNT(other); i++)
        if (arch_name_of(c, other[i])) return false;
    return true;
}

/* ---- buffers ---- */
/* What a layer has; or any of them. */
typedef struct {
    bool attends, state, mlp, moe;
} layer_kind;

static layer_kind kind_of(const arch_config *c, int64_t layer)
{
    const arch_mixer m = c->layer[layer].mixer;
    return (layer_kind){ .attends = arch_mixer_attends(m),
                         .state = arch_mixer_has_state(m),
                         .mlp =
                             !c->layer[layer].no_mlp && (!c->layer[layer].moe || c->w.dense_beside),
                         .moe = c->layer[layer].moe };
}

static layer_kind any_kind(const arch_config *c)
{
    layer_kind all = { 0 };
    for (int64_t i = 0; i < c->layers; i++) {
        const layer_kind k = kind_of(c, i);
        all.attends |= k.attends, all.state |= k.state, all.mlp |= k.mlp, all.moe |= k.moe;
    }
    return all;
}

static bool gated_output(const arch_config *c)
{
    return c->w.q_gated || arch_name_of(c, R_ATTN_GATE) || arch_name_of(c, R_HEAD_GATE);
}

enum {
    DENSE_PARTS = 27,
    MADE_PARTS = DENSE_PARTS + GRAD_MLA_PARTS + GRAD_MIX_PARTS + GRAD_MADE_PARTS
};

/* What a layer makes of R rows on its way forward; of what it does not have nothing. */
static void made_parts(grad_part p[MADE_PARTS], grad_made *m, const arch_config *c, int64_t R,
                       layer_kind k)
{
    const int64_t D = c->hidden, F = k.mlp ? c->ffn : 0;
    const int64_t Q = k.attends ? c->heads * c->head_dim : 0, G = k.attends ? grad_kv_heads(c) : 0;
    const bool clip = c->qkv_clip > 0, gated = c->w.mlp == MLP_GATED;
    const bool qk = clip || c->w.qk_norm != QK_NORM_NONE, v = clip || arch_name_of(c, R_V_NORM);
    const int64_t A = k.attends ? R * c->heads * c->v_dim : 0;
    const int64_t more = apart(c) ? R * D : 0, gate = gated_output(c) ? A : 0;
    const grad_part parts[DENSE_PARTS] = {
        { &m->h, R * D },
        { &m->x2, R * D },
        { &m->h2, R * D },
        { &m->q, R * Q },
        { &m->a, A },
        { &m->k, R * G * c->head_dim },
        { &m->v, R * G * c->v_dim },
        { &m->gate, gated ? R * F : 0 },
        { &m->up, R * F },
        { &m->mid, R * F },
        { &m->q0, qk ? R * Q : 0 },
        { &m->k0, qk ? R * G * c->head_dim : 0 },
        { &m->v0, v ? R * G * c->v_dim : 0 },
        { &m->z, gate },
        { &m->g, gate },
        { &m->an, arch_name_of(c, R_O_NORM) ? A : 0 },
        { &m->midn, arch_name_of(c, R_DOWN_NORM) ? R * F : 0 },
        { &m->x1, c->streams ? R * D : 0 },
        { &m->x3, c->streams ? R * D : 0 },
        { &m->laurel, R * c->laurel },
        { &m->laurel_y, c->laurel ? R * D : 0 },
        { &m->cut, c->streams ? R * F : 0 },
        { &m->o, more },
        { &m->y, more },
        { &m->pg, R * c->ple_dim },
        { &m->pv, R * c->ple_dim },
        { &m->py, c->ple_dim ? R * D : 0 },
    };
    memcpy(p, parts, sizeof parts);
    grad_mla_parts(p + DENSE_PARTS, &m->mla, c, k.attends ? R : 0);
    grad_mix_parts(p + DENSE_PARTS + GRAD_MLA_PARTS, &m->mix, c, k.state ? R : 0);
    grad_made_parts(p + DENSE_PARTS + GRAD_MLA_PARTS + GRAD_MIX_PARTS, m, c, k.moe ? R : 0);
}

/* Tiles of the largest norm: of x, of each head or of all of them. */
static int64_t tile_floats(const arch_config *c, int64_t R)
{
    const int64_t width[] = { c->heads * c->head_dim, c->heads * c->v_dim, c->q_lora, c->kv_lora,
                              arch_name_of(c, R_DOWN_NORM) ? c->ffn : 0 };
    int64_t wide = c->hidden;
    for (size_t i = 0; i < LQ_COUNT(width); i++)
        wide = width[i] > wide ? width[i] : wide;
    const int64_t rows = lq_ceil_div(R, GRAD_ROWS) * wide;
    const int64_t heads = lq_ceil_div(R * c->heads, GRAD_ROWS) * c->head_dim;
    return rows > heads ? rows : heads;
}

enum {
    DENSE_BACK_PARTS = 16,
    BACK_PARTS = DENSE_BACK_PARTS + GRAD_MIX_BACK_PARTS + GRAD_MOE_PARTS
};

/* Of the passes that go back. */
static void back_parts(grad_part p[BACK_PARTS], grad_ctx *g, const arch_config *c, int64_t R,
                       int64_t len, int threads)
{
    const layer_kind k = any_kind(c);
    const int64_t D = c->hidden, F = grad_widest_ffn(c);
    const int64_t Q = c->heads * c->head_dim, G = grad_kv_heads(c);
    const grad_part parts[DENSE_BACK_PARTS] = {
        { &g->dx, R * D },
        { &g->dq, R * Q },
        { &g->da, R * c->heads * c->v_dim },
        { &g->dk, R * G * c->head_dim },
        { &g->dv, R * G * c->v_dim },
        { &g->dlora, R * c->q_lora },
        { &g->dc, R * c->kv_lora },
        { &g->dk_rope, c->w.mla ? R * c->rope_dims : 0 },
        { &g->dz, gated_output(c) ? R * c->heads * c->v_dim : 0 },
        { &g->dgate, R * F },
        { &g->dup, R * F },
        { &g->head, grad_head_floats(c, len) * threads },
        { &g->dy, apart(c) || c->w.parallel ? R * D : 0 },
        { &g->fused, R * grad_widest_fused(c) },
        { &g->tile_dw, tile_floats(c, R) },
        { &g->dple, 2 * R * c->ple_dim },
    };
    memcpy(p, parts, sizeof parts);
    grad_mix_back_parts(p + DENSE_BACK_PARTS, &g->mix, c, k.state ? R : 0, len,
                        k.state ? threads : 0);
    grad_moe_parts(p + DENSE_BACK_PARTS + GRAD_MIX_BACK_PARTS, &g->moe, c, k.moe ? R : 0);
}

static int64_t sum_parts(const grad_part *p, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += p[i].n;
    return sum;
}

/* Floats that a layer of R rows makes on its way forward. */
static int64_t made_floats(const arch_config *c, int64_t R, layer_kind k)
{
    grad_made m;
    grad_part p[MADE_PARTS];
    made_parts(p, &m, c, R, k);
    return sum_parts(p, MADE_PARTS);
}

/* That all of them make together. */
static int64_t kept_floats(const arch_config *c, int64_t R)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < c->layers; i++)
        sum += made_floats(arch_at(c, i), R, kind_of(c, i));
    return sum;
}

bool grad_can_keep(const arch_config *c, int64_t windows, int64_t len)
{
    return kept_floats(c, windows * len) <= GRAD_KEPT_MOST / (int64_t)sizeof(float);
}

int64_t grad_chunk(const arch_config *c, int64_t most, int64_t len)
{
    int64_t n = most;
    while (n > 1 && !grad_can_keep(c, n, len))
        n /= 2;
    return grad_can_keep(c, n, len) ? n : most;
}

static lq_status open_made(grad_ctx *g, int64_t R, lq_err *err)
{
    const arch_config *c = g->all;
    const int64_t n = g->kept ? g->kept : 1;
    lq_status s = LQ_OK;
    g->made = g->m = lq_push(&g->arena, (size_t)n * sizeof *g->made);
    if (!g->made) return lq_fail(err, LQ_ENOMEM, "no memory for a backward pass");
    for (int64_t l = 0; l < n && !s; l++) {
        grad_part p[MADE_PARTS];
        made_parts(p, &g->made[l], arch_at(c, g->kept ? l : -1), R,
                   g->kept ? kind_of(c, l) : any_kind(c));
        s = grad_push(g, p, MADE_PARTS, err);
    }
    return s;
}

lq_status grad_open(grad_ctx **out, const arch_config *c, int64_t windows, int64_t len, bool keep,
                    pool *p, lq_err *err)
{
    *out = NULL;
    grad_ctx *g = calloc(1, sizeof *g);
    if (!g) return lq_fail(err, LQ_ENOMEM, "no memory for a backward pass");
    g->all = g->c = c;
    g->p = p;
    g->len = len;
    g->kept = keep ? c->layers : 0;
    const int64_t R = g->rows = windows * len;
    grad_part back[BACK_PARTS];
    back_parts(back, g, c, R, len, pool_threads(p));
    lq_status s = open_made(g, R, err);
    if (!s) s = grad_push(g, back, BACK_PARTS, err);
    if (!s) s = grad_open_angles(g, err);
    if (!s) s = grad_open_beside(g, R, err);
    if (!s) s = grad_open_streams(g, R, err);
    if (!s) s = grad_open_index(g, windows, err);
    if (s)
        grad_close(g);
    else
        *out = g;
    return s;
}

size_t grad_bytes(const arch_config *c, int64_t windows, int64_t len, bool keep, int threads)
{
    const int64_t R = windows * len;
    grad_ctx none;
    grad_part back[BACK_PARTS];
    back_parts(back, &none, c, R, len, threads);
    return (size_t)((keep ? kept_floats(c, R) : made_floats(c, R, any_kind(c))) +
                    sum_parts(back, BACK_PARTS) + grad_angle_floats(c, len) +
                    grad_beside_floats(c, R) + grad_streams_floats(c, R)) *
               sizeof(float) +
           grad_embed_bytes(c, len, threads) + grad_index_bytes(c, R, len, keep, threads);
}

void grad_close(grad_ctx *g)
{
    if (!g) return;
    lq_arena_free(&g->index.scratch);
    lq_arena_free(&g->scratch);
    lq_arena_free(&g->arena);
    free(g);
}
