/* runtime/forward/forward_ple.c - vectors of a token for each layer (per-layer embeddings), and a layer's last
 * steps.
 *
 *   v = (norm(proj x0 / sqrt(hidden)) + embed[id] sqrt(dim)) / sqrt(2), of each layer dim numbers
 *   x += norm(out(act(gate x) * v)); x *= the layer's factor
 *
 * The table has vocab * layers * dim numbers and is read row by row from the file. (Gemma 3n and 4.) */
#include "runtime/forward/forward_impl.h"

/* ---- before the first layer ---- */
typedef struct {
    const model *m;
    const int32_t *ids;
    float *rows; /* of the table */
} rows_arg;

static void look_up(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const rows_arg *a = arg;
    const int64_t W = fwd_ple_width(r->c);
    for (int64_t t = row; t < row + n; t++) {
        const int64_t id = a->ids[t] < a->m->ple_embed.N ? a->ids[t] : 0;
        qt_dequant(a->rows + t * W, &a->m->ple_embed, id, id + 1);
        k_scale(a->rows + t * W, (float)sqrt((double)r->c->ple_dim), W);
    }
}

void fwd_ple_lookup(const fwd_rows *r, const model *m, const int32_t *ids, float *rows)
{
    fwd_each(r, r->R, look_up, &(rows_arg){ m, ids, rows });
}

static void make_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const rows_arg *a = arg;
    const model *m = a->m;
    const arch_config *c = r->c;
    const int64_t W = fwd_ple_width(c), D = c->ple_dim;
    look_up(r, row, n, arg);
    for (int64_t t = row; t < row + n; t++) {
        float *v = r->ple + t * W;
        k_scale(v, (float)pow((double)c->hidden, -0.5), W);
        k_rmsnorm(v, D, v, D, m->ple_norm.w, m->ple_norm.offset, c->layers, D, m->ple_norm.eps);
        k_add(v, a->rows + t * W, W);
        k_scale(v, (float)pow(2, -0.5), W);
    }
}

void fwd_ple_rows(const fwd_rows *r, const model *m, const int32_t *ids)
{
    mm_out out = fwd_out(&m->ple_proj, r->ple, fwd_ple_width(r->c), false);
    mm_run(&out, 1, r->x, r->c->hidden, r->R, r->acts, r->scratch, r->p);
    fwd_each(r, r->R, make_rows, &(rows_arg){ m, ids, r->ple_row });
}

/* ---- after the MLP ---- */
typedef struct {
    const model_layer *l;
    int64_t layer;
} layer_arg;

static void gate_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const layer_arg *a = arg;
    const arch_config *c = r->c;
    const int64_t D = c->ple_dim;
    for (int64_t t = row; t < row + n; t++) {
        float *g = r->ple_in + t * D;
        const float *v = r->ple + t * fwd_ple_width(c) + a->layer * D;
        k_act_mul(g, g, v, D, (k_act_fn)c->act, (float)c->act_limit);
    }
}

static void join_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const layer_arg *a = arg;
    const arch_config *c = r->c;
    const int64_t H = c->hidden;
    float *x = r->x + row * H, *y = r->y + row * H;
    if (c->ple_dim) {
        const model_vector *v = &a->l->vec[R_PLE_POST_NORM];
        k_rmsnorm(y, H, y, H, v->w, v->offset, n, H, v->eps);
        if (!c->streams) k_add(x, y, n * H);
    }
    for (int64_t t = row; t < row + n && c->streams; t++) /* the others */
        for (int64_t i = 0; i + 1 < c->streams; i++)
            k_add(r->streams + t * fwd_streams_width(c) + i * H, r->y + t * H, H);
    if (a->l->vec[R_LAYER_SCALE].w) k_scale(x, a->l->vec[R_LAYER_SCALE].w[0], n * H);
}

void fwd_run_finish(const fwd_rows *r, const model_layer *l, int64_t layer)
{
    const arch_config *c = r->c;
    layer_arg a = { l, layer };
    if (c->streams) fwd_streams_correct(r, l);
    if (c->ple_dim) {
        mm_out gate = fwd_out(&l->lin[R_PLE_GATE], r->ple_in, c->ple_dim, false);
        mm_out out = fwd_out(&l->lin[R_PLE_OUT], r->y, c->hidden, false);
        pool_stage(r->p, STAGE_MLP_OUT);
        r->ops->products(r, &gate, 1, c->streams ? r->y : r->x, c->hidden, r->R);
        fwd_each(r, r->R, gate_rows, &a);
        r->ops->products(r, &out, 1, r->ple_in, c->ple_dim, r->R);
    }
    pool_stage(r->p, STAGE_NORM);
    fwd_each(r, r->R, join_rows, &a);
    if (l->stream_out) fwd_streams_end(r, l);
}
