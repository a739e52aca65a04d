/* runtime/model/part.c - see part.h. */
#include "runtime/model/part.h"

#include "base/version.h"
#include "formats/tensor/tiles.h"
#include "kernels/ops.h"
#include "runtime/model/rank.h"

#include <stdio.h>

/* ---- what is divided ---- */
static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* Latent attention has a KV head for each head. */
static int64_t kv_heads(const arch_config *c) { return c->w.mla ? c->heads : c->kv_heads; }

/* Ranks that can have heads: all of their queries may be of one KV head. */
static lq_status check_heads(const arch_config *c, int ranks, lq_err *err)
{
    const int64_t G = kv_heads(c), most = G ? lq_ceil_div(ranks, G) : 0;
    const bool shares = c->w.qk_norm != QK_NORM_ALL; /* a KV head that several have */
    if (ranks <= G || (G && shares && most <= c->heads / G)) return LQ_OK;
    if (!shares)
        return lq_fail(
            err, LQ_EUNSUPPORTED,
            "KV heads: expected at most %lld ranks, since all are normed together, found "
            "%d",
            (long long)G, ranks);
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "heads: expected at most %lld ranks (%lld KV heads, of each %lld heads), found "
                   "%d",
                   (long long)c->heads, (long long)G, (long long)(G ? c->heads / G : 0), ranks);
}

static lq_status check_width(const char *what, int64_t n, int ranks, lq_err *err)
{
    const int64_t most = lq_ceil_div(n, TILE_N);
    if (n == 0 || most >= ranks) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "%s: expected at most %lld ranks, one for each %d of %lld, found %d", what,
                   (long long)most, TILE_N, (long long)n, ranks);
}

/* What may differ from layer to layer. */
static lq_status check_sizes(const arch_config *c, int ranks, lq_err *err)
{
    const lq_status s = check_heads(c, ranks, err);
    return s ? s : check_width("outputs of gate and up", c->ffn, ranks, err);
}

/* What has no division yet. */
static const char *not_yet(const arch_config *c)
{
    const bool norms =
        c->w.qk_norm == QK_NORM_ALL &&
        (c->w.norm == NORM_LAYER || c->w.qk_norm_late || c->qkv_clip > 0 || arch_name_of(c, R_QKV));
    bool sparse = false;
    for (int64_t i = 0; i < c->layers; i++)
        sparse |= c->layer[i].sparse > 0;
    return c->streams || c->hyper         ? "several residual streams"
           : sparse                       ? "gates that are cut off"
           : c->w.qkv_quarters            ? "q, v and k of each quarter of the heads in one matrix"
           : c->mtp                       ? "a head that guesses"
           : c->dist_far                  ? "keys and queries of distances"
           : c->dist_buckets              ? "biases by distance"
           : arch_name_of(c, R_GATE_BIAS) ? "biases of heads' gates"
           : c->norm_rank                 ? "gates on norms"
           : c->index_block               ? "attention to chosen blocks"
           : c->w.shortcut                ? "experts whose output joins a layer later"
           : c->row->early                ? "routers that read what attention reads"
           : c->w.norm_stays              ? "a residual that is what norms give"
           : c->key_pad                   ? "scores with an addend of each key"
           : c->asides                    ? "transformers beside the residual"
           : arch_name_of(c, R_ATTN_JOIN) ? "gates on the residual"
           : c->row->mixer == MIX_CCA     ? "attention of convolved queries and keys"
           : arch_name_of(c, R_K_CONV)    ? "convolutions of keys, values and branches"
           : arch_name_of(c, R_ROUTER_IN) ? "a router of several layers"
           : c->w.o_norm_heads            ? "norms of what each head gives"
           : arch_name_of(c, R_EXPERT_OUT_NORM) ? "norms of what each expert gives"
           : c->w.head_rows_1                   ? "an output head of rows of length 1"
           : c->w.diff                          ? "differential attention"
           : arch_name_of(c, R_HEAD_NORM)       ? "an output head of activations that are normed"
           : c->w.mla_shared                    ? "latents that several layers read"
           : arch_name_of(c, R_K_ROPE_NORM)     ? "norms of keys that rotate"
           : norms ? "a norm of all heads together that comes late or is a layer norm"
                   : NULL;
}

lq_status part_check(const arch_config *c, int ranks, lq_err *err)
{
    const char *what = not_yet(c);
    if (what)
        return lq_fail(err, LQ_EUNSUPPORTED, "not over several ranks yet: %s (%s)", what,
                       c->row->arch);
    if (ranks > PART_RANKS)
        return lq_fail(err, LQ_EUNSUPPORTED, "expected at most %d ranks, found %d", PART_RANKS,
                       ranks);
    lq_status s = check_sizes(c, ranks, err);
    for (int64_t i = 0; i < c->n_sizes && !s; i++)
        s = check_sizes(c->sizes[i], ranks, err);
    if (!s) s = check_width("outputs of o and down", c->hidden, ranks, err);
    if (!s) s = check_width("outputs of an expert's gate and up", c->expert_ffn, ranks, err);
    if (!s) s = check_width("outputs of an expert's down", c->latent, ranks, err);
    if (!s) s = check_width("outputs of the shared gate and up", c->shared_ffn, ranks, err);
    return s ? s : check_width("vocabulary", arch_words(c), ranks, err);
}

static part_cuts cut_tiles(int64_t N, int ranks)
{
    part_cuts x = { { 0 } };
    const int64_t tiles = lq_ceil_div(N, TILE_N);
    for (int r = 0; r <= ranks; r++)
        x.at[r] = min_of(N, rank_begin(tiles, r, ranks) * TILE_N);
    return x;
}

/* The ranks that share KV head g are from .. to - 1, and rank r is among them. */
static void sharing(int64_t G, int ranks, int r, int64_t *g, int *from, int *to)
{
    *g = (int64_t)r * G / ranks;
    *from = (int)lq_ceil_div(*g * ranks, G);
    *to = (int)lq_ceil_div((*g + 1) * ranks, G);
}

static part_cuts cut_heads(const arch_config *c, int ranks)
{
    part_cuts x = { { 0 } };
    const int64_t G = kv_heads(c), each = G ? c->heads / G : 0;
    for (int r = 0; r < ranks && G; r++) {
        int64_t g;
        int from, to;
        sharing(G, ranks, r, &g, &from, &to);
        x.at[r] = ranks <= G ? rank_begin(G, r, ranks) * each
                             : g * each + rank_begin(each, r - from, to - from);
    }
    x.at[ranks] = c->heads;
    return x;
}

/* Of layers of one size. */
static void divide(model_part *p, const arch_config *whole, int r, int n)
{
    const int64_t G = kv_heads(whole), each = G ? whole->heads / G : 1;
    *p = (model_part){ .rank = r, .ranks = n, .whole = whole, .own = *whole };
    p->heads = cut_heads(whole, n);
    for (int i = 0; i <= n; i++)
        p->kv_heads.at[i] = p->heads.at[i] / each; /* the first that each reads */
    p->hidden = cut_tiles(whole->hidden, n);
    p->latent = cut_tiles(whole->latent, n);
    p->ffn = cut_tiles(whole->ffn, n);
    p->expert_ffn = cut_tiles(whole->expert_ffn, n);
    p->shared_ffn = cut_tiles(whole->shared_ffn, n);
    p->words = cut_tiles(arch_words(whole), n);
    p->own.heads = p->heads.at[r + 1] - p->heads.at[r];
    p->own.kv_heads = lq_ceil_div(p->heads.at[r + 1], each) - p->kv_heads.at[r];
    p->own.ffn = p->ffn.at[r + 1] - p->ffn.at[r];
    p->own.expert_ffn = p->expert_ffn.at[r + 1] - p->expert_ffn.at[r];
    p->own.shared_ffn = p->shared_ffn.at[r + 1] - p->shared_ffn.at[r];
}

/* p's sizes become the largest of any layer, and its layers' those of `of`, which are for whole->sizes, then for whole. */
static void of_sizes(model_part *p, model_part *of, arch_layer *layers)
{
    const arch_config *whole = p->whole;
    memcpy(layers, whole->layer, (size_t)whole->layers * sizeof *layers);
    for (int64_t i = 0; i < whole->layers; i++) {
        int64_t k = 0;
        while (k < whole->n_sizes && whole->layer[i].own != whole->sizes[k])
            k++;
        p->of_layer[i] = &of[k];
        layers[i].own = &of[k].own;
    }
    p->own.layer = layers;
    for (int64_t k = 0; k <= whole->n_sizes; k++) {
        arch_config *own = &of[k].own;
        own->layer = layers;
        p->own.heads = max_of(p->own.heads, own->heads);
        p->own.kv_heads = max_of(p->own.kv_heads, own->kv_heads);
        p->own.ffn = max_of(p->own.ffn, own->ffn);
    }
}

lq_status part_init(model_part *p, const arch_config *whole, int rank, int ranks, lq_arena *a,
                    lq_err *err)
{
    const int64_t n = whole->n_sizes;
    divide(p, whole, rank, ranks);
    if (!n) return LQ_OK;
    model_part *of = lq_push(a, (size_t)(n + 1) * sizeof *of);
    arch_layer *layers = lq_push(a, (size_t)whole->layers * sizeof *layers);
    p->of_layer = lq_push(a, (size_t)whole->layers * sizeof(model_part *));
    if (!of || !layers || !p->of_layer)
        return lq_fail(err, LQ_ENOMEM, "no memory for the sizes of layers");
    for (int64_t k = 0; k <= n; k++)
        divide(&of[k], k < n ? whole->sizes[k] : whole, rank, ranks);
    of_sizes(p, of, layers);
    return LQ_OK;
}

/* ---- rows ---- */
enum { PART_RANGES = 3 };
typedef struct {
    tile_rows rows[PART_RANGES];
    int n;
} part_rows;

static tile_rows of_cuts(const part_cuts *x, int r, int64_t each, int64_t from)
{
    return (tile_rows){ from + x->at[r] * each, from + x->at[r + 1] * each };
}

static tile_rows of_kv(const model_part *p, int64_t each, int64_t from)
{
    const int64_t g0 = p->kv_heads.at[p->rank];
    return (tile_rows){ from + g0 * each, from + (g0 + p->own.kv_heads) * each };
}

/* Rows of q, k and v in one matrix, one behind the other, or KV head by KV head. */
static void of_qkv(part_rows *x, const model_part *p)
{
    const arch_config *c = p->whole;
    const int64_t D = c->head_dim, Dv = c->v_dim, q = c->heads * D, k = c->kv_heads * D;
    const int64_t group = c->heads / c->kv_heads, each = group * D + D + Dv,
                  g = p->kv_heads.at[p->rank];
    x->n = 3;
    if (!c->w.qkv_grouped) {
        x->rows[0] = of_cuts(&p->heads, p->rank, D, 0);
        x->rows[1] = of_kv(p, D, q);
        x->rows[2] = of_kv(p, Dv, q + k);
    } else if (p->ranks <= c->kv_heads) {
        x->n = 1;
        x->rows[0] = of_kv(p, each, 0);
    } else {
        const int64_t k0 = g * each + group * D;
        x->rows[0] = of_cuts(&p->heads, p->rank, D, g * (each - group * D));
        x->rows[1] = (tile_rows){ k0, k0 + D };
        x->rows[2] = (tile_rows){ k0 + D, k0 + D + Dv };
    }
}

/* Rows of gate, then of up. */
static void of_pair(part_rows *x, const model_part *p, const part_cuts *cuts)
{
    x->n = 2;
    x->rows[0] = of_cuts(cuts, p->rank, 1, 0);
    x->rows[1] = of_cuts(cuts, p->rank, 1, cuts->at[p->ranks]);
}

/* False: this rank has all of it. */
static bool rows_of(part_rows *x, const model_part *p, arch_role r)
{
    const arch_config *c = p->whole;
    int64_t N, K;
    arch_role_shape(c, r, &N, &K);
    *x = (part_rows){ .n = 1 };
    switch (r) {
    case R_QKV:
        of_qkv(x, p);
        return true;
    case R_K:
    case R_V:
        x->rows[0] = of_kv(p, N / c->kv_heads, 0);
        return true;
    case R_Q:
    case R_Q_B:
    case R_KV_B:
    case R_ATTN_GATE:
    case R_HEAD_GATE:
        x->rows[0] = of_cuts(&p->heads, p->rank, N / c->heads, 0);
        return true;
    case R_GATE_UP:
        of_pair(x, p, &p->ffn);
        return true;
    case R_SHARED_GATE_UP:
        of_pair(x, p, &p->shared_ffn);
        return true;
    case R_EXPERT_GATE_UP:
        if (c->w.gate_up_mixed)
            x->rows[0] = of_cuts(&p->expert_ffn, p->rank, 2, 0);
        else
            of_pair(x, p, &p->expert_ffn);
        return true;
    case R_GATE:
    case R_UP:
        x->rows[0] = of_cuts(&p->ffn, p->rank, 1, 0);
        return true;
    case R_EXPERT_GATE:
    case R_EXPERT_UP:
        x->rows[0] = of_cuts(&p->expert_ffn, p->rank, 1, 0);
        return true;
    case R_SHARED_GATE:
    case R_SHARED_UP:
        x->rows[0] = of_cuts(&p->shared_ffn, p->rank, 1, 0);
        return true;
    case R_EXPERT_DOWN:
        x->rows[0] = of_cuts(c->latent ? &p->latent : &p->hidden, p->rank, 1, 0);
        return true;
    case R_O:
    case R_DOWN:
    case R_SHARED_DOWN:
        x->rows[0] = of_cuts(&p->hidden, p->rank, 1, 0);
        return true;
    case R_HEAD:
        x->rows[0] = of_cuts(&p->words, p->rank, 1, 0);
        return true;
    default:
        return false;
    }
}

bool part_range(const model_part *p, arch_role r, int64_t *n0, int64_t *n1)
{
    part_rows x;
    if (!rows_of(&x, p, r) || x.n > 1) return false;
    *n0 = x.rows[0].n0;
    *n1 = x.rows[0].n1;
    return true;
}

int64_t part_outputs(const model_part *p, arch_role r, int64_t N)
{
    part_rows x;
    int64_t n = 0;
    if (!rows_of(&x, p, r)) return N;
    for (int i = 0; i < x.n; i++)
        n += x.rows[i].n1 - x.rows[i].n0;
    return n;
}

/* ---- weights ---- */
/* Rows that do not lie side by side, or begin within a tile: out of the whole matrix in tiles. */
static lq_status copy_rows(qt_tensor *part, const qt_tensor *w, const part_rows *x, lq_arena *a,
                           lq_err *err)
{
    void *to[QT_N_PLANES];
    qt_tensor shape;
    lq_status s = tiles_part(&shape, w, x->rows, x->n, 0, w->K, err);
    if (s) return s;
    *part = shape;
    for (int i = 0; i < QT_N_PLANES; i++) {
        const size_t n = shape.plane[i].bytes;
        to[i] = n ? lq_push(a, n) : NULL;
        if (n && !to[i]) return lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes of tiles", n);
        part->plane[i].data = to[i];
    }
    tiles_cut(to, &shape, w, x->rows, x->n, 0);
    return LQ_OK;
}

lq_status part_pack(mm_weight *out, const model_part *p, arch_role r, const qt_tensor *w,
                    lq_arena *a, pool *threads, lq_err *err)
{
    part_rows x;
    qt_tensor part;
    int64_t N, K;
    arch_role_shape(p->whole, r, &N, &K);
    if (!rows_of(&x, p, r) || w->N < N) return mm_pack(out, w, a, threads, err);
    lq_arena tmp = { 0 };
    mm_weight all;
    lq_status s = mm_pack(&all, w, &tmp, threads, err);
    if (!s) s = copy_rows(&part, &all.t, &x, a, err);
    if (!s) s = mm_pack(out, &part, a, threads, err);
    if (!s) out->expanded = all.expanded;
    lq_arena_free(&tmp);
    return s;
}

lq_status part_bias(const float **v, const model_part *p, arch_role r, lq_arena *a, lq_err *err)
{
    part_rows x;
    int64_t n = 0;
    if (!*v || !rows_of(&x, p, r)) return LQ_OK;
    if (x.n == 1) {
        *v += x.rows[0].n0;
        return LQ_OK;
    }
    for (int i = 0; i < x.n; i++)
        n += x.rows[i].n1 - x.rows[i].n0;
    float *own = lq_push(a, (size_t)n * sizeof *own), *to = own;
    if (!own) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", arch_role_text(r));
    for (int i = 0; i < x.n; i++) {
        const int64_t each = x.rows[i].n1 - x.rows[i].n0;
        memcpy(to, *v + x.rows[i].n0, (size_t)each * sizeof *to);
        to += each;
    }
    *v = own;
    return LQ_OK;
}

void part_vector(model_vector *v, const model_part *p, arch_role r)
{
    const arch_config *c = p->whole;
    const bool heads = c->w.qk_norm == QK_NORM_HEADS;
    const int64_t at = r == R_SINKS             ? p->heads.at[p->rank]
                       : r == R_Q_NORM && heads ? p->heads.at[p->rank] * c->head_dim
                       : r == R_K_NORM && heads ? p->kv_heads.at[p->rank] * c->head_dim
                                                : 0;
    if (v->w) v->w += at;
    if (v->bias) v->bias += at;
}

/* ---- together ---- */
typedef struct {
    char version[32], kernels[32], arch[64];
    int64_t layers, hidden, words, bytes;
} hello;

static const char *differs(const hello *a, const hello *b)
{
    if (strcmp(a->version, b->version) != 0) return "version of llmq";
    if (strcmp(a->kernels, b->kernels) != 0) return "kernels (--kernels NAME on all)";
    return memcmp(a, b, sizeof *a) != 0 ? "model" : NULL;
}

static lq_status compare(const hello *all, int n, lq_err *err)
{
    for (int i = 1; i < n; i++) {
        const char *what = differs(&all[0], &all[i]);
        if (what)
            return lq_fail(err, LQ_EVALUE,
                           "rank %d of %d: expected the %s of rank 0 (%s, %s, %s), found another "
                           "(%s, %s, %s)",
                           i, n, what, all[0].version, all[0].kernels, all[0].arch, all[i].version,
                           all[i].kernels, all[i].arch);
    }
    return LQ_OK;
}

static lq_status same_on_all(const model *m, lq_err *err)
{
    const model_part *p = m->part;
    const arch_config *c = p->whole;
    hello own = { .layers = c->layers,
                  .hidden = c->hidden,
                  .words = arch_words(c),
                  .bytes = (int64_t)m->weight_bytes },
          all[PART_RANKS];
    snprintf(own.version, sizeof own.version, "%s", LLMQ_VERSION);
    snprintf(own.kernels, sizeof own.kernels, "%s", k_name());
    snprintf(own.arch, sizeof own.arch, "%s", c->row->arch);
    lq_status s = comm_gather(p->c, 0, &own, sizeof own, all, err);
    return s || p->rank ? s : compare(all, p->ranks, err);
}

lq_status part_agree(const model *m, comm *c, lq_status s, lq_err *err)
{
    int who;
    lq_err of_all;
    lq_status all = comm_agree(c, s, &who, &of_all);
    if (all == LQ_OK) {
        s = same_on_all(m, err);
        all = comm_agree(c, s, &who, &of_all);
    }
    if (s || all == LQ_OK) return s;
    return lq_fail(err, all, "rank %d of %d could not load its part: %s", who, comm_size(c),
                   lq_status_text(all));
}
