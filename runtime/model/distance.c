/* runtime/model/distance.c */
#include "runtime/model/distance.h"

#include "kernels/ops.h"
#include "runtime/model/tables.h"

static lq_status no_room(arch_role r, lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, "%s: out of memory while loading", arch_role_text(r));
}

/* The bucket of a distance, key - query (arXiv:1910.10683): of each half the first half one by one, the others by the
 * logarithm up to MODEL_DIST; keys ahead have the second half. */
static int64_t bucket_of(int64_t distance, int64_t buckets)
{
    const int64_t half = buckets / 2, exact = half / 2 > 1 ? half / 2 : 1;
    const int64_t n = distance < 0 ? -distance : distance;
    const double most = log((double)MODEL_DIST / (double)exact);
    int64_t at = n;
    if (n >= exact) {
        const float part = logf((float)n / (float)exact) / (float)most;
        at = exact + (int64_t)(part * (float)(half - exact));
    }
    if (at > half - 1) at = half - 1;
    return at + (distance > 0 ? half : 0);
}

static lq_status load_biases(model *m, lq_err *err)
{
    const int64_t n = m->cfg->dist_buckets, H = m->cfg->heads, width = 2 * MODEL_DIST + 1;
    float *of = NULL, *all;
    lq_status s = model_load_floats(&of, m, R_DIST_BIAS, n, err);
    if (s || !of) return s;
    m->dist_bias = all = lq_push(&m->arena, (size_t)(H * width) * sizeof *all);
    if (!all) return no_room(R_DIST_BIAS, err);
    for (int64_t d = -MODEL_DIST; d <= MODEL_DIST; d++)
        for (int64_t h = 0; h < H; h++)
            all[h * width + MODEL_DIST + d] = of[bucket_of(d, n) * H + h];
    return LQ_OK;
}

/* The row of query - key: of those on each side the first half one by one, the others by the logarithm up to
 * dist_far, rounded up, in the float steps of the reference implementation. */
static int64_t row_of(const arch_config *c, int64_t distance)
{
    const int64_t side = arch_dist_rows(c) / 2, mid = side / 2;
    const int64_t n = distance < 0 ? -distance : distance;
    int64_t at = n;
    if (c->dist_buckets && n > mid) {
        const float most = logf((float)((double)(c->dist_far - 1) / (double)mid));
        const float part = logf((float)n / (float)mid) / most;
        at = (int64_t)ceilf(part * (float)(mid - 1)) + mid;
    }
    const int64_t row = side + (distance < 0 ? -at : at);
    return row < 0 ? 0 : row > 2 * side - 1 ? 2 * side - 1 : row;
}

static lq_status load_rows(model *m, lq_err *err)
{
    const arch_config *c = m->cfg;
    const int64_t far = c->dist_far, K = c->hidden;
    model_vector norm = { .eps = (float)arch_norm_eps(c, R_DIST_NORM) };
    if (!far) return LQ_OK;
    lq_status s = model_load_floats(&m->dist_embed, m, R_DIST_EMBED, arch_dist_rows(c), err);
    if (!s) s = src_vector(m->src, R_DIST_NORM, -1, -1, false, &norm.w, &m->arena, err);
    if (!s) s = src_vector(m->src, R_DIST_NORM, -1, -1, true, &norm.bias, &m->arena, err);
    if (s) return s;
    float *x = m->dist_embed;
    if (norm.w) k_layernorm(x, K, x, K, norm.w, norm.bias, 0, arch_dist_rows(c), K, norm.eps);
    int32_t *row = lq_push(&m->arena, (size_t)(2 * far + 1) * sizeof *row);
    if (!row) return no_room(R_DIST_EMBED, err);
    for (int64_t d = -far; d <= far; d++)
        row[far + d] = (int32_t)row_of(c, -d);
    m->dist_row = row;
    return LQ_OK;
}

/* Of R_REL: a column for each distance. */
static lq_status load_columns(model *m, lq_err *err)
{
    const int64_t far = m->cfg->rel_extent;
    if (!m->cfg->rel_dims) return LQ_OK;
    int32_t *row = lq_push(&m->arena, (size_t)(2 * far + 1) * sizeof *row);
    if (!row) return no_room(R_REL, err);
    for (int64_t d = -far; d <= far; d++)
        row[far + d] = (int32_t)(d < 0 ? -d : d);
    m->dist_row = row;
    return LQ_OK;
}

lq_status model_load_distances(model *m, lq_err *err)
{
    lq_status s = load_biases(m, err);
    if (!s) s = load_columns(m, err);
    return s ? s : load_rows(m, err);
}

/* out[h] = head h of y [n, heads * D], as a factor. */
static lq_status split(mm_weight *out, float *part, const float *y, int64_t n, const arch_config *c,
                       lq_arena *a, pool *p, lq_err *err)
{
    const int64_t D = c->head_dim;
    lq_status s = LQ_OK;
    for (int64_t h = 0; h < c->heads && !s; h++) {
        for (int64_t i = 0; i < n; i++)
            memcpy(part + i * D, y + (i * c->heads + h) * D, (size_t)D * sizeof *y);
        qt_tensor t = { .scheme = { .kind = QT_DENSE, .dtype = LQ_F32 }, .N = n, .K = D };
        t.plane[QT_CODES] = (qt_span){ part, (size_t)(n * D) * sizeof *part };
        s = mm_pack(&out[h], &t, a, p, err);
    }
    return s;
}

static lq_status project(mm_weight **out, const model_linear *by, const model *m, lq_arena *a,
                         lq_arena *tmp, pool *p, lq_err *err)
{
    const arch_config *c = m->cfg;
    const int64_t n = arch_dist_rows(c), K = c->hidden, N = by->w.N;
    float *y = lq_push(tmp, (size_t)(n * N) * sizeof *y);
    float *part = lq_push(tmp, (size_t)(n * c->head_dim) * sizeof *part);
    lq_arena work = { 0 };
    *out = lq_push(a, (size_t)c->heads * sizeof **out);
    if (!*out || !y || !part) return no_room(R_DIST_EMBED, err);
    const lq_status s = lq_arena_init(&work, mm_scratch_bytes(n, K, 1, pool_threads(p)), err);
    if (s) return s;
    const mm_out o = { .w = &by->w, .y = y, .ldy = N, .bias = by->bias };
    mm_run(&o, 1, m->dist_embed, K, n, MM_F32, &work, p);
    lq_arena_free(&work);
    return split(*out, part, y, n, c, a, p, err);
}

lq_status model_layer_distances(model_layer *l, const model *m, lq_arena *a, pool *p, lq_err *err)
{
    const arch_config *c = m->cfg;
    const model_linear *k = &l->lin[c->dist_shared ? R_K : R_DIST_K],
                       *q = &l->lin[c->dist_shared ? R_Q : R_DIST_Q];
    lq_arena tmp = { 0 };
    lq_status s = LQ_OK;
    if (c->dist_keys) s = project(&l->dist_k, k, m, a, &tmp, p, err);
    lq_arena_reset(&tmp, 0);
    if (!s && c->dist_queries) s = project(&l->dist_q, q, m, a, &tmp, p, err);
    lq_arena_free(&tmp);
    return s;
}
