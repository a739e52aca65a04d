/* runtime/model.c - see model.h. The built-in shape: runtime/model_builtin.c. */
#include "runtime/model.h"

#include "formats/tiles.h"

static lq_status no_memory(lq_err *err, const char *what)
{
    return lq_fail(err, LQ_ENOMEM, "%s: out of memory while loading", what);
}

/* What runtime/forward_layer.c can compute. */
static lq_status check_row(const arch_config *c, lq_err *err)
{
    const arch_row *r = c->row;
    if (r->norm != NORM_RMS || r->pos != POS_ROPE || r->mlp != MLP_GATED)
        return lq_fail(
            err, LQ_EUNSUPPORTED,
            "%s: expected RMS norms, rotary positions and a gated MLP, which is all that "
            "the forward pass computes",
            r->arch);
    return LQ_OK;
}

/* A norm or bias as f32 in the arena. */
static lq_status load_vector(const float **out, const model *m, const src_tensor *t, lq_arena *a,
                             lq_err *err)
{
    lq_status s = src_check_finite(t, err);
    if (s) return lq_wrap(err, s, "%s", src_path(m->src));
    float *v = lq_push(a, (size_t)t->t.K * sizeof *v);
    if (!v) return no_memory(err, t->name);
    qt_dequant(v, &t->t, 0, 1);
    *out = v;
    return LQ_OK;
}

static lq_status load_norm(const float **out, const model *m, arch_role r, int64_t layer,
                           lq_arena *a, lq_err *err)
{
    const src_tensor *t = NULL, *bias = NULL;
    *out = NULL;
    lq_status s = src_role(m->src, r, layer, &t, &bias, err);
    return s || !t ? s : load_vector(out, m, t, a, err);
}

static lq_status load_linear(model_linear *l, const model *m, arch_role r, int64_t layer,
                             lq_arena *a, pool *p, lq_err *err)
{
    const src_tensor *t = NULL, *bias = NULL;
    memset(l, 0, sizeof *l);
    lq_status s = src_role(m->src, r, layer, &t, &bias, err);
    if (s || !t) return s;
    s = mm_pack(&l->w, &t->t, a, p, err);
    if (s) return lq_wrap(err, s, "%s: %s", src_path(m->src), t->name);
    l->present = true;
    return bias ? load_vector(&l->bias, m, bias, a, err) : LQ_OK;
}

lq_status model_load_layer(model_layer *l, const model *m, int64_t layer, lq_arena *a, pool *p,
                           lq_err *err)
{
    const struct {
        arch_role role;
        const float **norm;
    } norms[] = {
        { R_ATTN_NORM, &l->attn_norm },
        { R_MLP_NORM, &l->mlp_norm },
        { R_Q_NORM, &l->q_norm },
        { R_K_NORM, &l->k_norm },
    };
    const struct {
        arch_role role;
        model_linear *linear;
    } linears[] = {
        { R_Q, &l->q },       { R_K, &l->k },   { R_V, &l->v },       { R_O, &l->o },
        { R_GATE, &l->gate }, { R_UP, &l->up }, { R_DOWN, &l->down },
    };
    lq_status s = LQ_OK;
    for (size_t i = 0; i < LQ_COUNT(norms) && !s; i++)
        s = load_norm(norms[i].norm, m, norms[i].role, layer, a, err);
    for (size_t i = 0; i < LQ_COUNT(linears) && !s; i++)
        s = load_linear(linears[i].linear, m, linears[i].role, layer, a, p, err);
    return s;
}

/* Rows of the embedding are read one by one, so a tiled one is turned back. */
static lq_status load_embed(model *m, const src_tensor *t, lq_err *err)
{
    m->embed = t->t;
    if (t->t.layout == QT_PORTABLE) return LQ_OK;
    void *w[QT_N_PLANES];
    lq_status s = qt_alloc(&m->embed, w, &t->t.scheme, t->t.N, t->t.K, &m->arena, err);
    if (!s) s = tiles_unpack(w, &t->t, err);
    return s ? lq_wrap(err, s, "%s: %s", src_path(m->src), t->name) : LQ_OK;
}

lq_status model_load_frame(model *m, src_source *src, pool *p, lq_err *err)
{
    const src_tensor *embed = NULL, *bias = NULL;
    memset(m, 0, sizeof *m);
    m->src = src;
    m->cfg = src_config(src);
    if (!m->cfg) return lq_fail(err, LQ_ENOENT, "the model has no config.json");
    lq_status s = check_row(m->cfg, err);
    if (s) lq_wrap(err, s, "%s", src_path(src));
    if (!s) s = src_role(src, R_EMBED, -1, &embed, &bias, err);
    if (!s) s = load_embed(m, embed, err);
    if (!s) s = load_norm(&m->final_norm, m, R_FINAL_NORM, -1, &m->arena, err);
    if (!s) s = load_linear(&m->head, m, R_HEAD, -1, &m->arena, p, err);
    if (s) model_free(m);
    return s;
}

static size_t linear_bytes(const model_linear *l)
{
    size_t n = 0;
    for (int i = 0; i < QT_N_PLANES; i++)
        n += l->w.t.plane[i].bytes;
    return n;
}

size_t model_layer_bytes(const model_layer *l)
{
    return linear_bytes(&l->q) + linear_bytes(&l->k) + linear_bytes(&l->v) + linear_bytes(&l->o) +
           linear_bytes(&l->gate) + linear_bytes(&l->up) + linear_bytes(&l->down);
}

size_t model_count_bytes(const model *m)
{
    size_t n = linear_bytes(&m->head);
    for (int64_t i = 0; i < m->cfg->layers; i++)
        n += model_layer_bytes(&m->layers[i]);
    return n;
}

lq_status model_load(model *m, src_source *src, pool *p, const lq_job *job, lq_err *err)
{
    lq_status s = model_load_frame(m, src, p, err);
    if (s) return s;
    int64_t L = m->cfg->layers;
    m->layers = lq_push(&m->arena, (size_t)L * sizeof *m->layers);
    if (!m->layers) s = no_memory(err, "layers");
    for (int64_t i = 0; i < L && !s; i++) {
        s = lq_stopped(job) ? lq_fail(err, LQ_EINTR, "interrupted while loading")
                            : model_load_layer(&m->layers[i], m, i, &m->arena, p, err);
        lq_report(job, "loading", (double)(i + 1), (double)L);
    }
    if (!s) m->weight_bytes = model_count_bytes(m);
    if (s) model_free(m);
    return s;
}

void model_free(model *m)
{
    lq_arena_free(&m->arena);
    memset(m, 0, sizeof *m);
}

void model_embed(const model *m, float *x, const int32_t *ids, int64_t T)
{
    for (int64_t t = 0; t < T; t++)
        qt_dequant(x + t * m->cfg->hidden, &m->embed, ids[t], ids[t] + 1);
}
