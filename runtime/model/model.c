/* runtime/model/model.c - see model.h. The built-in shape: runtime/model/model_builtin.c. */
#include "runtime/model/model.h"

#include "formats/tensor/tiles.h"
#include "kernels/ops.h"
#include "kernels/scan.h"
#include "runtime/model/distance.h"
#include "runtime/model/ngrams.h"
#include "runtime/model/part.h"
#include "runtime/model/tables.h"

static lq_status model_no_memory(lq_err *err, const char *what)
{
    return lq_fail(err, LQ_ENOMEM, "%s: out of memory while loading", what);
}

/* The weights of a norm without weights. */
static lq_status make_ones(const float **v, const model *m, arch_role r, int64_t layer, lq_arena *a,
                           lq_err *err)
{
    int64_t N, K;
    arch_role_shape(arch_at(m->cfg, layer), r, &N, &K);
    float *ones = lq_push(a, (size_t)K * sizeof *ones);
    if (!ones) return model_no_memory(err, arch_role_text(r));
    for (int64_t i = 0; i < K; i++)
        ones[i] = 1;
    *v = ones;
    return LQ_OK;
}

/* A convolution's taps side by side: [channels, taps] to [taps, channels]. What it reads is added to some. */
static lq_status turn_taps(const float **v, const model *m, arch_role r, int64_t layer, lq_arena *a,
                           lq_err *err)
{
    int64_t N, K;
    arch_role_shape(arch_at(m->cfg, layer), r, &N, &K);
    const int64_t taps = arch_taps(m->cfg, r), channels = K / taps;
    float *turned = lq_push(a, (size_t)K * sizeof *turned);
    if (!turned) return model_no_memory(err, arch_role_text(r));
    src_transpose(turned, *v, taps, channels, sizeof *turned);
    for (int64_t i = K - channels; i < K && m->cfg->row->mixer == MIX_TAPPED; i++)
        turned[i] += 1;
    *v = turned;
    return LQ_OK;
}

/* The rates of decays, of their logarithms: -exp of each; MIX_SELECT's [channels, state] to [state, channels]. */
static lq_status make_rates(const float **v, const model *m, lq_arena *a, lq_err *err)
{
    int64_t N, K;
    arch_role_shape(m->cfg, R_MIX_A_LOG, &N, &K);
    float *rates = lq_push(a, (size_t)(N * K) * sizeof *rates);
    if (!rates) return model_no_memory(err, arch_role_text(R_MIX_A_LOG));
    src_transpose(rates, *v, K, N, sizeof *rates);
    for (int64_t i = 0; i < N * K; i++)
        rates[i] = -k_exp(rates[i]);
    *v = rates;
    return LQ_OK;
}

/* What log a is of R_MIX_KEEP's gate: -8 softplus of each. */
static lq_status make_spans(const float **v, const model *m, lq_arena *a, lq_err *err)
{
    const int64_t n = m->cfg->mix_value;
    float *spans = lq_push(a, (size_t)n * sizeof *spans);
    if (!spans) return model_no_memory(err, arch_role_text(R_MIX_SPAN));
    memset(spans, 0, (size_t)n * sizeof *spans);
    k_softplus(spans, *v, n);
    k_scale(spans, -8, n);
    *v = spans;
    return LQ_OK;
}

/* The weights multiply what the norm reads. */
static lq_status weigh_before(model_vector *v, const model *m, arch_role r, int64_t layer,
                              lq_arena *a, lq_err *err)
{
    int64_t N, K;
    arch_role_shape(arch_at(m->cfg, layer), r, &N, &K);
    float *before = lq_push(a, (size_t)K * sizeof *before);
    if (!before) return model_no_memory(err, arch_role_text(r));
    for (int64_t k = 0; k < K; k++)
        before[k] = v->w[k] + v->offset;
    v->before = before;
    v->offset = 0;
    return make_ones(&v->w, m, r, layer, a, err);
}

/* What x and y are times where a branch joins. */
static lq_status make_join(model_vector *v, const model *m, lq_arena *a, lq_err *err)
{
    const int64_t n = m->cfg->hidden;
    const float heat = (float)m->cfg->join_heat;
    float *of = lq_push(a, 2 * (size_t)n * sizeof *of);
    if (!of) return model_no_memory(err, arch_role_text(R_ATTN_JOIN));
    for (int64_t k = 0; k < n; k++) {
        const float y = 1 / (1 + expf(-v->w[k] / heat)), rest = 1 / (1 + expf(v->w[k] / heat));
        of[k] = y;
        of[n + k] = sqrtf(fmaxf(rest * (1 + y), 1e-3f));
    }
    v->w = of;
    v->bias = of + n;
    return LQ_OK;
}

/* A convolution within heads, [outputs, inputs, taps] of each, as a product of the positions' inputs side by side. */
static lq_status load_head_taps(model_layer *l, const model *m, int64_t layer, lq_arena *a, pool *p,
                                lq_err *err)
{
    const arch_config *c = m->cfg;
    const int64_t D = c->head_dim, T = c->head_taps, H = c->heads + c->kv_heads;
    const float *w;
    lq_arena tmp = { 0 };
    lq_status s = src_vector(m->src, R_CCA_HEADS, layer, -1, false, &w, &tmp, err);
    if (!s) s = src_vector(m->src, R_CCA_HEADS, layer, -1, true, &l->vec[R_CCA_HEADS].bias, a, err);
    float *part = s ? NULL : lq_push(&tmp, (size_t)(D * T * D) * sizeof *part);
    l->cca = s ? NULL : lq_push(a, (size_t)H * sizeof *l->cca);
    if (!s && (!part || !l->cca)) s = model_no_memory(err, arch_role_text(R_CCA_HEADS));
    for (int64_t h = 0; h < H && !s; h++, w += D * D * T) {
        for (int64_t o = 0; o < D; o++)
            src_transpose(part + o * T * D, w + o * D * T, T, D, sizeof *part);
        qt_tensor t = { .scheme = { .kind = QT_DENSE, .dtype = LQ_F32 }, .N = D, .K = T * D };
        t.plane[QT_CODES] = (qt_span){ (uint8_t *)part, (size_t)(D * T * D) * sizeof *part };
        s = mm_pack(&l->cca[h], &t, a, p, err);
    }
    lq_arena_free(&tmp);
    return s;
}

/* A matrix of each head's own. */
static lq_status load_heads(mm_weight **out, const model *m, arch_role r, int64_t layer,
                            lq_arena *a, pool *p, lq_err *err)
{
    const int64_t H = m->cfg->mix_heads;
    qt_tensor all;
    lq_arena tmp = { 0 };
    lq_status s = src_matrix(m->src, r, layer, -1, &all, &tmp, err);
    const int64_t N = s ? 0 : all.N / H, n = s ? 0 : N * all.K;
    float *part = s ? NULL : lq_push(&tmp, (size_t)n * sizeof *part);
    *out = s ? NULL : lq_push(a, (size_t)H * sizeof **out);
    if (!s && (!part || !*out)) s = model_no_memory(err, arch_role_text(r));
    for (int64_t h = 0; h < H && !s; h++) {
        qt_dequant(part, &all, h * N, (h + 1) * N);
        qt_tensor t = { .scheme = { .kind = QT_DENSE, .dtype = LQ_F32 }, .N = N, .K = all.K };
        t.plane[QT_CODES] = (qt_span){ (uint8_t *)part, (size_t)n * sizeof *part };
        s = mm_pack(&(*out)[h], &t, a, p, err);
    }
    if (!s) src_matrix_done(m->src, r, layer, -1);
    lq_arena_free(&tmp);
    return s;
}

static lq_status check_experts_of(const model *m, int64_t layer, const float *of, lq_err *err)
{
    const arch_config *c = m->cfg;
    for (int64_t i = 0; i < c->vocab * c->experts_used; i++)
        if (!(of[i] >= 0 && of[i] < (float)c->experts && of[i] <= floorf(of[i])))
            return lq_fail(
                err, LQ_EVALUE,
                "%s: layer %lld: experts of token %lld: expected numbers below %lld, found %g",
                src_path(m->src), (long long)layer, (long long)(i / c->experts_used),
                (long long)c->experts, (double)of[i]);
    return LQ_OK;
}

/* A vector role of a model or layer. */
static lq_status load_vector(model_vector *v, const model *m, arch_role r, int64_t layer,
                             lq_arena *a, lq_err *err)
{
    lq_status s = src_vector(m->src, r, layer, -1, false, &v->w, a, err);
    if (!s) s = src_vector(m->src, r, layer, -1, true, &v->bias, a, err);
    v->offset = arch_norm_offset(m->cfg, r);
    v->eps = (float)arch_norm_eps_at(m->cfg, r, layer);
    if (!s && !v->w && arch_has(m->cfg, r, layer) && (arch_name_of(m->cfg, r)->flags & NAME_ONES))
        s = make_ones(&v->w, m, r, layer, a, err);
    if (!s && v->w && arch_name_of(m->cfg, r)->flags & NAME_TAPS)
        s = turn_taps(&v->w, m, r, layer, a, err);
    if (!s && v->w && r == R_MIX_A_LOG) s = make_rates(&v->w, m, a, err);
    if (!s && v->w && arch_name_of(m->cfg, r)->flags & NAME_BEFORE)
        s = weigh_before(v, m, r, layer, a, err);
    if (!s && v->w && (r == R_ATTN_JOIN || r == R_MLP_JOIN) &&
        !arch_name_of(m->cfg, R_ATTN_JOIN_X_BY))
        s = make_join(v, m, a, err);
    if (!s && v->w && r == R_MIX_SPAN) s = make_spans(&v->w, m, a, err);
    if (!s && v->w && r == R_EXPERTS_OF) s = check_experts_of(m, layer, v->w, err);
    if (!s && m->part) part_vector(v, part_at(m->part, layer), r);
    return s;
}

/* by (x + add) as w x + bias. */
static lq_status join_affine(model_vector *v, const float *by, const float *add, const model *m,
                             lq_arena *a, lq_err *err)
{
    const int64_t n = m->cfg->hidden;
    float *bias = lq_push(a, (size_t)n * sizeof *bias);
    if (!bias) return model_no_memory(err, arch_role_text(R_ATTN_JOIN));
    for (int64_t k = 0; k < n; k++)
        bias[k] = by[k] * add[k];
    *v = (model_vector){ .w = by, .bias = bias };
    return LQ_OK;
}

/* x_by (x + x_add) + join (y + y_add), of r and the three roles behind it; join NULL: 1, sums NULL: 0. */
static lq_status join_sides(model_vector *v, arch_role r, const model *m, int64_t layer,
                            lq_arena *a, lq_err *err)
{
    const int64_t n = m->cfg->hidden;
    const float *y = v[r].w, *y_add = v[r + 1].w, *x = v[r + 2].w, *x_add = v[r + 3].w;
    lq_status s = y ? LQ_OK : make_ones(&y, m, r, layer, a, err);
    float *sum = y_add && x_add && !s ? lq_push(a, (size_t)n * sizeof *sum) : NULL;
    if (!s && y_add && !sum) s = model_no_memory(err, arch_role_text(r));
    for (int64_t k = 0; k < n && sum; k++)
        sum[k] = y[k] * y_add[k] + x[k] * x_add[k];
    v[r] = (model_vector){ .w = y, .bias = x, .before = sum };
    return s;
}

/* Those of q, k and v as one convolution: [taps, channels]. */
static lq_status join_taps(model_layer *l, const model *m, lq_arena *a, lq_err *err)
{
    const arch_config *c = m->cfg;
    const int64_t channels = arch_conv_channels(c, c->row->mixer);
    float *all = lq_push(a, (size_t)(c->conv_taps * channels) * sizeof *all), *to = all;
    if (!all) return model_no_memory(err, arch_role_text(R_MIX_CONV));
    for (int64_t j = 0; j < c->conv_taps; j++)
        for (arch_role r = R_MIX_CONV; r <= R_MIX_CONV_V; r++) {
            int64_t N, K;
            arch_role_shape(c, r, &N, &K);
            const int64_t n = K / c->conv_taps;
            memcpy(to, l->vec[r].w + j * n, (size_t)n * sizeof *to);
            to += n;
        }
    l->vec[R_MIX_CONV].w = all;
    return LQ_OK;
}

/* Of what all ranks have together. */
static size_t bytes_in_tiles(const model_part *p, arch_role r, const qt_tensor *w)
{
    int64_t N, K;
    size_t n = 0;
    arch_role_shape(p->whole, r, &N, &K);
    const qt_scheme s = w->layout == QT_TILE16 ? w->scheme : tiles_scheme(&w->scheme, N, K);
    for (int i = 0; i < QT_N_PLANES; i++)
        n += qt_plane_bytes(&s, QT_TILE16, N, K, (qt_plane)i);
    return n;
}

static lq_status read_matrix(qt_tensor *w, const model *m, arch_role r, int64_t layer,
                             int64_t expert, lq_arena *copy, lq_err *err)
{
    int64_t n0, n1;
    if (m->part && part_range(part_at(m->part, layer), r, &n0, &n1))
        return src_matrix_rows(m->src, r, layer, expert, n0, n1, w, copy, err);
    return src_matrix(m->src, r, layer, expert, w, copy, err);
}

static lq_status load_linear(model_linear *l, const model *m, arch_role r, int64_t layer,
                             int64_t expert, lq_arena *a, pool *p, lq_err *err)
{
    const model_part *part = m->part ? part_at(m->part, layer) : NULL;
    qt_tensor w;
    lq_arena copy = { 0 }; /* of a matrix that is stored transposed */
    memset(l, 0, sizeof *l);
    lq_status s = read_matrix(&w, m, r, layer, expert, &copy, err);
    if (!s && w.N) {
        s = part ? part_pack(&l->w, part, r, &w, a, p, err) : mm_pack(&l->w, &w, a, p, err);
        if (s) lq_wrap(err, s, "%s: %s", src_path(m->src), arch_role_text(r));
        l->present = !s;
        if (part) l->whole = bytes_in_tiles(part, r, &w);
    }
    if (!s && w.N) src_matrix_done(m->src, r, layer, expert);
    lq_arena_free(&copy);
    if (!s && l->present) s = src_vector(m->src, r, layer, expert, true, &l->bias, a, err);
    return s || !part ? s : part_bias(&l->bias, part, r, a, err);
}

static lq_status load_experts(model_layer *l, const model *m, arch_role r, int64_t layer,
                              lq_arena *a, pool *p, lq_err *err)
{
    const int64_t n = m->cfg->experts;
    model_linear *e = lq_push(a, (size_t)n * sizeof *e);
    if (!e) return model_no_memory(err, "experts");
    l->expert[r - R_EXPERT_GATE] = e;
    /* Stacked experts are one tensor: one that is translated is so once for all of them. */
    const src_tensor *stack = NULL;
    qt_tensor view;
    lq_status s = LQ_OK;
    if (arch_name_of(m->cfg, r)->flags & NAME_STACKED)
        s = src_role(m->src, r, layer, 0, &stack, NULL, err);
    if (stack) src_load(&view, m->src, stack);
    for (int64_t i = 0; i < n && !s; i++)
        s = load_linear(&e[i], m, r, layer, i, a, p, err);
    if (stack) src_unload(m->src, stack);
    return s;
}

/* exp(q1 k1) - exp(q2 k2) + where it started, which depends on the layer. */
static void make_diff(model_layer *l, int64_t layer, int64_t n)
{
    float sum[2] = { 0, 0 };
    for (int i = 0; i < 2; i++)
        for (int64_t k = 0; k < n; k++)
            sum[i] += l->vec[R_DIFF_Q1 + 2 * i].w[k] * l->vec[R_DIFF_K1 + 2 * i].w[k];
    l->diff_start = (float)(0.8 - 0.6 * exp(-0.3 * (double)layer));
    l->diff = k_exp(sum[0]) - k_exp(sum[1]) + l->diff_start;
}

/* One for each stream but the first; NULL where there are none. */
static lq_status load_streams(model_linear **out, const model *m, arch_role r, lq_arena *a, pool *p,
                              lq_err *err)
{
    const int64_t n = m->cfg->streams - 1;
    *out = NULL;
    if (!m->cfg->streams) return LQ_OK;
    *out = lq_push(a, (size_t)n * sizeof **out);
    if (!*out) return model_no_memory(err, arch_role_text(r));
    lq_status s = LQ_OK;
    for (int64_t i = 0; i < n && !s; i++)
        s = load_linear(&(*out)[i], m, r, -1, i, a, p, err);
    return s;
}

/* What comes behind the last layer is with it. */
static lq_status load_hyper_end(model_layer *l, const model *m, lq_arena *a, pool *p, lq_err *err)
{
    lq_status s = LQ_OK;
    for (arch_role r = R_HYPER_END_FN; r <= R_HYPER_END_UP && !s; r++) {
        if (!arch_has(m->cfg, r, -1)) continue;
        s = arch_role_kind(r) == ARCH_VECTOR ? load_vector(&l->vec[r], m, r, -1, a, err)
                                             : load_linear(&l->lin[r], m, r, -1, -1, a, p, err);
    }
    return s;
}

/* One that an earlier layer has. */
static void share_tensor(model_layer *l, const model_layer *first, arch_role r)
{
    l->lin[r] = first->lin[r];
    l->vec[r] = first->vec[r];
}

lq_status model_load_layer(model_layer *l, const model *m, int64_t layer, lq_arena *a, pool *p,
                           lq_err *err)
{
    lq_status s = LQ_OK;
    memset(l, 0, sizeof *l);
    l->dist_bias = m->dist_bias;
    l->dist_row = m->dist_row;
    if (m->cfg->rel_dims) l->dist_row += m->cfg->rel_extent - arch_at(m->cfg, layer)->rel_extent;
    for (arch_role r = 0; r < ARCH_N_ROLES && !s; r++) {
        if (!arch_has(m->cfg, r, layer)) continue;
        const int64_t first = arch_first_with(m->cfg, r, layer);
        if (m->layers && first < layer)
            share_tensor(l, &m->layers[first], r);
        else if (r == R_CCA_HEADS)
            s = load_head_taps(l, m, layer, a, p, err);
        else if (r == R_NGRAM_TABLE)
            s = model_load_ngrams(&l->ngrams, m, layer, a, err);
        else if (arch_role_kind(r) == ARCH_VECTOR)
            s = load_vector(&l->vec[r], m, r, layer, a, err);
        else if (arch_name_of(m->cfg, r)->flags & NAME_HEADS)
            s = load_heads(r == R_MIX_X ? &l->mix_x : &l->mix_step, m, r, layer, a, p, err);
        else if (arch_role_per_expert(r))
            s = load_experts(l, m, r, layer, a, p, err);
        else
            s = load_linear(&l->lin[r], m, r, layer, -1, a, p, err);
    }
    if (!s && l->vec[R_MIX_CONV_K].w) s = join_taps(l, m, a, err);
    if (!s && l->vec[R_ATTN_JOIN_X_BY].w) s = join_sides(l->vec, R_ATTN_JOIN, m, layer, a, err);
    if (!s && l->vec[R_MLP_JOIN_X_BY].w) s = join_sides(l->vec, R_MLP_JOIN, m, layer, a, err);
    if (!s && l->vec[R_DIFF_Q1].w) make_diff(l, layer, m->cfg->head_dim);
    if (!s && m->dist_embed) s = model_layer_distances(l, m, a, p, err);
    if (!s && layer == m->cfg->layers - 1) s = load_hyper_end(l, m, a, p, err);
    if (!s && layer == m->cfg->layers - 1)
        s = load_streams(&l->stream_out, m, R_STREAM_OUT, a, p, err);
    return s;
}

/* What makes scores of labels. */
static lq_status load_scorer(model *m, lq_err *err)
{
    const arch_config *c = m->cfg;
    lq_arena *a = &m->arena;
    lq_status s = model_load_floats(&m->score, m, R_SCORE, c->labels, err);
    if (!s) s = src_vector(m->src, R_SCORE, -1, -1, true, &m->score_bias, a, err);
    if (!s) s = model_load_floats(&m->pooler, m, R_POOLER, c->hidden, err);
    if (!s) s = src_vector(m->src, R_POOLER, -1, -1, true, &m->pooler_bias, a, err);
    if (!s && m->pooler && !(m->pooled = lq_push(a, (size_t)c->hidden * sizeof *m->pooled)))
        s = model_no_memory(err, arch_role_text(R_POOLER));
    return s ? s : load_vector(&m->pool_norm, m, R_POOL_NORM, -1, a, err);
}

/* 10000^(-i / (half - 1)), in the float steps of the reference implementation. */
static lq_status make_frequencies(model *m, lq_err *err)
{
    const int64_t half = m->cfg->hidden / 2;
    float *f = lq_push(&m->arena, (size_t)half * sizeof *f);
    if (!f) return model_no_memory(err, "positions");
    const float step = half > 1 ? (float)-(log(10000.0) / (double)(half - 1)) : 0;
    for (int64_t i = 0; i < half; i++)
        f[i] = (float)exp((double)((float)i * step));
    m->pos_freq = f;
    return LQ_OK;
}

lq_status model_load_frame(model *m, src_source *src, pool *p, lq_err *err)
{
    memset(m, 0, sizeof *m);
    m->src = src;
    m->cfg = src_config(src);
    if (!m->cfg) return lq_fail(err, LQ_ENOENT, "the model has no config.json");
    if (arch_name_of(m->cfg, R_ROPE_LOG) && !m->cfg->rope[ROPE_MAIN].factors)
        return lq_fail(err, LQ_EVALUE,
                       "rope: expected factors on the frequencies of a %s, found none",
                       m->cfg->row->arch);
    lq_arena *a = &m->arena;
    lq_status s = model_load_rows(&m->embed, m, R_EMBED, -1, -1, a, err);
    if (!s) s = model_load_rows(&m->pos_embed, m, R_POS_EMBED, -1, -1, a, err);
    if (!s) s = model_load_floats(&m->type_embed, m, R_TYPE_EMBED, m->cfg->types > 1 ? 2 : 1, err);
    if (!s) s = model_load_rows(&m->ple_embed, m, R_PLE_EMBED, -1, -1, a, err);
    if (!s) s = load_linear(&m->ple_proj, m, R_PLE_PROJ, -1, -1, a, p, err);
    if (!s) s = load_vector(&m->ple_norm, m, R_PLE_NORM, -1, a, err);
    if (!s) s = load_scorer(m, err);
    if (!s) s = model_load_distances(m, err);
    if (!s) s = load_streams(&m->stream_in, m, R_STREAM_IN, a, p, err);
    if (!s && m->cfg->w.pos == POS_SINUSOIDAL) s = make_frequencies(m, err);
    model_vector by = { 0 }, add = { 0 };
    if (!s) s = load_vector(&by, m, R_EMBED_BY, -1, a, err);
    if (!s) s = load_vector(&add, m, R_EMBED_ADD, -1, a, err);
    if (!s && by.w) s = join_affine(&m->embed_by, by.w, add.w, m, a, err);
    if (!s) s = load_vector(&m->embed_norm, m, R_EMBED_NORM, -1, a, err);
    if (!s) s = load_linear(&m->proj_in, m, R_PROJ_IN, -1, -1, a, p, err);
    if (!s) s = load_linear(&m->proj_out, m, R_PROJ_OUT, -1, -1, a, p, err);
    if (!s) s = load_vector(&m->final_norm, m, R_FINAL_NORM, -1, a, err);
    if (!s) s = load_vector(&m->head_norm, m, R_HEAD_NORM, -1, a, err);
    if (s) model_free(m);
    return s;
}

lq_status model_load_head(model *m, pool *p, lq_err *err)
{
    lq_arena *own = m->layer_arenas ? &m->layer_arenas[m->cfg->layers] : &m->arena;
    const lq_status s = load_linear(&m->head, m, R_HEAD, -1, -1, own, p, err);
    return s ? s : model_head_lengths(m, err);
}

static size_t linear_bytes(const model_linear *l)
{
    size_t n = 0;
    for (int i = 0; i < QT_N_PLANES; i++)
        n += l->w.t.plane[i].bytes;
    return l->whole ? l->whole : n;
}

static size_t layer_bytes(const model_layer *l, int64_t experts)
{
    size_t n = 0;
    for (int r = 0; r < ARCH_N_ROLES; r++)
        n += linear_bytes(&l->lin[r]);
    for (int r = 0; r < ARCH_N_EXPERT_ROLES; r++) /* all experts are of one size */
        if (l->expert[r]) n += (size_t)experts * linear_bytes(&l->expert[r][0]);
    return n;
}

size_t model_count_bytes(const model *m)
{
    size_t n = linear_bytes(&m->head) + linear_bytes(&m->proj_in) + linear_bytes(&m->proj_out) +
               linear_bytes(&m->ple_proj) + linear_bytes(&m->mtp_proj);
    for (int64_t i = 0; i < m->cfg->layers; i++)
        n += layer_bytes(&m->layers[i], m->cfg->experts_used);
    return n;
}

static double linear_flops(const model_linear *l) { return 2 * (double)l->w.N * (double)l->w.K; }

double model_row_flops(const model *m)
{
    double sum = 0;
    for (int64_t i = 0; i < m->cfg->layers; i++) {
        const model_layer *l = &m->layers[i];
        for (int r = 0; r < ARCH_N_ROLES; r++)
            sum += linear_flops(&l->lin[r]);
        for (int r = 0; r < ARCH_N_EXPERT_ROLES; r++)
            if (l->expert[r]) sum += (double)m->cfg->experts_used * linear_flops(&l->expert[r][0]);
    }
    return sum;
}

double model_logits_flops(const model *m) { return linear_flops(&m->head); }

lq_status model_cut_layers(model *m, lq_err *err)
{
    const size_t L = (size_t)m->cfg->layers;
    m->layers = lq_push(&m->arena, L * sizeof *m->layers);
    lq_arena *own = m->layers ? lq_push(&m->arena, (L + 1) * sizeof *own) : NULL;
    if (!own) return model_no_memory(err, "layers");
    m->layer_arenas = own;
    return LQ_OK;
}

static lq_status take_part(model *m, comm *c, lq_err *err)
{
    lq_status s = part_check(m->cfg, comm_size(c), err);
    if (s) return s;
    model_part *part = lq_push(&m->arena, sizeof *part);
    if (!part) return model_no_memory(err, "ranks");
    s = part_init(part, m->cfg, comm_rank(c), comm_size(c), &m->arena, err);
    if (s) return s;
    part->c = c;
    m->part = part;
    m->cfg = &part->own;
    return LQ_OK;
}

lq_status model_load(model *m, src_source *src, pool *p, const lq_job *job, lq_err *err)
{
    return model_load_part(m, src, NULL, p, job, err);
}

lq_status model_load_part(model *m, src_source *src, comm *c, pool *p, const lq_job *job,
                          lq_err *err)
{
    lq_status s = model_load_frame(m, src, p, err);
    if (s) return s;
    const int64_t L = m->cfg->layers;
    if (comm_size(c) > 1) s = take_part(m, c, err);
    if (!s) s = model_cut_layers(m, err);
    if (!s && m->part) model_drop_embed(m); /* looked at whole, and read by rows from now on */
    if (!s && m->cfg->head == HEAD_WORDS) s = model_load_head(m, p, err);
    for (int64_t i = 0; i < L && !s; i++) {
        s = lq_stopped(job) ? lq_fail(err, LQ_EINTR, "interrupted while loading")
                            : model_load_layer(&m->layers[i], m, i, &m->layer_arenas[i], p, err);
        if (!s) model_ngrams_ready(m->layers[i].ngrams, m);
        lq_report(job, "loading", (double)(i + 1), (double)L);
    }
    if (!s) m->weight_bytes = model_count_bytes(m);
    if (s) model_free(m);
    return s;
}

lq_status model_load_reader(model *head, pool *p, lq_err *err)
{
    lq_arena *a = &head->arena;
    lq_status s = load_vector(&head->mtp_embed_norm, head, R_MTP_EMBED_NORM, -1, a, err);
    if (!s) s = load_vector(&head->mtp_hidden_norm, head, R_MTP_HIDDEN_NORM, -1, a, err);
    const arch_role states = head->cfg->norm_each ? R_MTP_EACH_NORM : R_MTP_ALL_NORM;
    if (!s) s = load_vector(&head->mtp_states_norm, head, states, -1, a, err);
    if (!s) s = load_linear(&head->mtp_proj, head, R_MTP_PROJ, -1, -1, a, p, err);
    if (!s) s = model_cut_layers(head, err);
    return s ? s : model_load_layer(&head->layers[0], head, 0, &head->layer_arenas[0], p, err);
}

lq_status model_load_mtp(model *head, const model *m, src_source *src, pool *p, lq_err *err)
{
    lq_status s = model_load_frame(head, src, p, err);
    if (s) return s;
    head->embed = m->embed;
    head->head = m->head;
    s = model_load_reader(head, p, err);
    if (!s) head->weight_bytes = model_count_bytes(head);
    if (s) model_free(head);
    return s;
}

void model_free(model *m)
{
    model_leave_device(m);
    for (int64_t i = 0; m->layer_arenas && i <= m->cfg->layers; i++)
        lq_arena_free(&m->layer_arenas[i]);
    lq_arena_free(&m->arena);
    memset(m, 0, sizeof *m);
}

void model_embed(const model *m, float *x, const int32_t *ids, int64_t T)
{
    for (int64_t t = 0; t < T; t++)
        qt_dequant(x + t * m->cfg->embed_dim, &m->embed, ids[t], ids[t] + 1);
    if (m->cfg->embed_scale != 1) k_scale(x, (float)m->cfg->embed_scale, T * m->cfg->embed_dim);
}

void model_drop_embed(const model *m)
{
    for (int p = 0; p < QT_N_PLANES; p++) {
        src_drop(m->src, m->embed.plane[p]);
        src_drop(m->src, m->ple_embed.plane[p]);
    }
}

lq_status model_check_positions(const model *m, int64_t positions, lq_err *err)
{
    const int64_t most = m->pos_embed.N - m->cfg->pos_offset;
    const char *ends_at = m->cfg->row->ends_at;
    if (ends_at && positions > m->cfg->max_pos)
        return lq_fail(err, LQ_EVALUE,
                       "%lld positions: expected at most %s, %lld, beyond which the model computes "
                       "otherwise",
                       (long long)positions, ends_at, (long long)m->cfg->max_pos);
    if ((m->cfg->heavy_every || m->cfg->index_block) && positions > m->cfg->max_pos)
        return lq_fail(err, LQ_EVALUE,
                       "%lld positions: expected at most max_position_embeddings, %lld, for which "
                       "there are compressed ones",
                       (long long)positions, (long long)m->cfg->max_pos);
    if (m->pos_embed.N == 0 || positions <= most) return LQ_OK;
    return lq_fail(err, LQ_EVALUE,
                   "%lld positions: expected at most %lld, which is what the model's table of "
                   "learned positions holds",
                   (long long)positions, (long long)most);
}
