/* calib/dense_layer.c - weights expanded to f32. */
#include "calib/dense_layer.h"

#include <math.h>

enum { ROWS = 16 };

typedef struct {
    float *W;
    const qt_tensor *t;
} work;

static void expand_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const work *w = ctx;
    int64_t n = item * ROWS, end = n + ROWS < w->t->N ? n + ROWS : w->t->N;
    qt_dequant(w->W + n * w->t->K, w->t, n, end);
}

void dense_expand(float *W, const qt_tensor *t, pool *p)
{
    work w = { W, t };
    pool_run(p, lq_ceil_div(t->N, ROWS), expand_item, &w);
}

static lq_status dense_layer_no_memory(lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, "no memory for weights in f32");
}

/* ---- buffers ---- */
arch_role dense_expert_role(const arch_config *c, int64_t e, int k)
{
    static const arch_role apart[2][3] = { { R_EXPERT_GATE, R_EXPERT_UP, R_EXPERT_DOWN },
                                           { R_SHARED_GATE, R_SHARED_UP, R_SHARED_DOWN } };
    static const arch_role fused[2] = { R_EXPERT_GATE_UP, R_SHARED_GATE_UP };
    const int shared = e == c->experts;
    if (k == GRAD_X_DOWN || !arch_name_of(c, fused[shared])) {
        const arch_role r = apart[shared][k - GRAD_X_GATE];
        return arch_name_of(c, r) ? r : ARCH_N_ROLES;
    }
    return k == GRAD_X_GATE ? fused[shared] : ARCH_N_ROLES;
}

static int64_t role_floats(const arch_config *c, arch_role r)
{
    int64_t N = 0, K = 0;
    if (r != ARCH_N_ROLES) arch_role_shape(c, r, &N, &K);
    return N * K;
}

/* The most that buffer k has to hold. */
static int64_t buffer_floats(const arch_config *c, int k)
{
    int64_t most = 0;
    for (int64_t i = 0; i < c->layers && k < GRAD_LINEARS; i++) {
        const bool there = arch_has(c, grad_linear_roles[k], i);
        const int64_t n = there ? role_floats(arch_at(c, i), grad_linear_roles[k]) : 0;
        most = n > most ? n : most;
    }
    for (int64_t e = 0; e <= c->experts && c->experts && k >= GRAD_LINEARS; e += c->experts) {
        if (e && !c->shared_ffn) break;
        const int64_t n = role_floats(c, dense_expert_role(c, e, k));
        most = n > most ? n : most;
    }
    return most;
}

size_t dense_bytes(const arch_config *c)
{
    int64_t sum = 0;
    for (int k = 0; k < GRAD_BUFFERS; k++)
        sum += buffer_floats(c, k);
    if (c->streams) sum += (c->streams - 1) * c->hidden * c->hidden; /* dense_streams */
    return (size_t)sum * sizeof(float);
}

lq_status dense_buffers(float *W[GRAD_BUFFERS], const arch_config *c, lq_arena *a, lq_err *err)
{
    for (int k = 0; k < GRAD_BUFFERS; k++) {
        const int64_t n = buffer_floats(c, k);
        W[k] = n ? lq_push(a, (size_t)n * sizeof(float)) : NULL;
        if (n && !W[k]) return dense_layer_no_memory(err);
    }
    return LQ_OK;
}

/* ---- experts ---- */
void dense_expert(grad_expert *x, const arch_config *c, int64_t e, float *const W[GRAD_BUFFERS],
                  const float *const bias[GRAD_BUFFERS], float *const dW[GRAD_BUFFERS])
{
    const int64_t D = e == c->experts ? c->hidden : arch_expert_width(c);
    const int64_t F = e == c->experts ? c->shared_ffn : c->expert_ffn;
    const float *b = bias[GRAD_X_GATE];
    *x = (grad_expert){ .gate = W[GRAD_X_GATE],
                        .up = W[GRAD_X_UP],
                        .down = W[GRAD_X_DOWN],
                        .gate_bias = b,
                        .up_bias = bias[GRAD_X_UP],
                        .down_bias = bias[GRAD_X_DOWN],
                        .dgate = dW[GRAD_X_GATE],
                        .dup = dW[GRAD_X_UP],
                        .ddown = dW[GRAD_X_DOWN],
                        .ffn = F,
                        .width = D,
                        .ld = D,
                        .step = 1 };
    if (dense_expert_role(c, e, GRAD_X_UP) != ARCH_N_ROLES) return;
    const bool mixed = c->w.gate_up_mixed && e < c->experts;
    const int64_t up = mixed ? 1 : F; /* first row */
    x->up = x->gate + up * D;
    x->dup = x->dgate ? x->dgate + up * D : NULL;
    x->up_bias = b ? b + up : NULL;
    x->fused = true;
    x->ld = mixed ? 2 * D : D;
    x->step = mixed ? 2 : 1;
}

/* Experts that are read when they are asked for. Their biases, which are small, are read before. */
typedef struct {
    grad_experts of;
    const src_source *src;
    float *const *W;
    const float *(*bias)[GRAD_BUFFERS]; /* [experts + 1] */
    int64_t layer;
    pool *p;
} source_experts;

static lq_status get_expert(void *user, int64_t e, grad_expert *x, lq_err *err)
{
    static float *const none[GRAD_BUFFERS];
    const source_experts *o = user;
    const arch_config *c = src_config(o->src);
    lq_status s = LQ_OK;
    for (int k = GRAD_X_GATE; k <= GRAD_X_DOWN && !s; k++) {
        const arch_role r = dense_expert_role(c, e, k);
        const int64_t expert = e < c->experts ? e : -1;
        lq_arena copy = { 0 };
        qt_tensor w;
        if (r == ARCH_N_ROLES) continue;
        s = src_matrix(o->src, r, o->layer, expert, &w, &copy, err);
        if (!s) dense_expand(o->W[k], &w, o->p);
        src_matrix_done(o->src, r, o->layer, expert);
        lq_arena_free(&copy);
    }
    if (!s) dense_expert(x, c, e, o->W, o->bias[e], none);
    return s;
}

static lq_status read_biases(const source_experts *o, lq_arena *a, lq_err *err)
{
    const arch_config *c = src_config(o->src);
    lq_status s = LQ_OK;
    for (int64_t e = 0; e <= c->experts; e++)
        for (int k = GRAD_X_GATE; k <= GRAD_X_DOWN && !s; k++) {
            const arch_role r = dense_expert_role(c, e, k);
            if (r != ARCH_N_ROLES)
                s = src_vector(o->src, r, o->layer, e < c->experts ? e : -1, true, &o->bias[e][k],
                               a, err);
        }
    return s;
}

/* ---- a layer ---- */
/* A small matrix of the layer that is not quantized; NULL: it has none. */
static lq_status small_matrix_of(const float **out, const src_source *src, arch_role r,
                                 int64_t layer, int64_t number, lq_arena *a, pool *p, lq_err *err)
{
    qt_tensor w;
    *out = NULL;
    lq_status s = src_matrix(src, r, layer, number, &w, a, err);
    if (s || !w.N) return s;
    float *W = lq_push(a, (size_t)(w.N * w.K) * sizeof *W);
    if (!W) return dense_layer_no_memory(err);
    dense_expand(W, &w, p);
    src_matrix_done(src, r, layer, number);
    *out = W;
    return LQ_OK;
}

static lq_status small_matrix(const float **out, const src_source *src, arch_role r, int64_t layer,
                              lq_arena *a, pool *p, lq_err *err)
{
    return small_matrix_of(out, src, r, layer, -1, a, p, err);
}

static lq_status experts_of(grad_layer *l, float *const W[GRAD_BUFFERS], const src_source *src,
                            int64_t layer, lq_arena *a, pool *p, lq_err *err)
{
    const size_t n = (size_t)src_config(src)->experts + 1;
    source_experts *o = lq_push(a, sizeof *o);
    if (!o) return dense_layer_no_memory(err);
    *o = (source_experts){ { get_expert, NULL, o }, src, W, NULL, layer, p };
    if (!(o->bias = lq_push(a, n * sizeof *o->bias))) return dense_layer_no_memory(err);
    l->experts = &o->of;
    lq_status s = read_biases(o, a, err);
    if (!s) s = small_matrix(&l->router, src, R_ROUTER, layer, a, p, err);
    if (!s) s = small_matrix(&l->shared_router, src, R_SHARED_ROUTER, layer, a, p, err);
    if (!s) s = small_matrix(&l->latent_in, src, R_LATENT_IN, layer, a, p, err);
    if (!s) s = small_matrix(&l->latent_out, src, R_LATENT_OUT, layer, a, p, err);
    if (!s) s = src_vector(src, R_ROUTER, layer, -1, true, &l->router_bias, a, err);
    if (!s) s = src_vector(src, R_ROUTER_CORR, layer, -1, false, &l->router_corr, a, err);
    return s ? s : src_vector(src, R_EXPERT_SCALE, layer, -1, false, &l->expert_scale, a, err);
}

lq_status dense_mix_vectors(grad_layer *l, const src_source *src, int64_t layer, lq_arena *a,
                            lq_err *err)
{
    static const arch_role convs[] = { R_MIX_CONV, R_MIX_CONV_K, R_MIX_CONV_V };
    const arch_config *c = src_config(src);
    const int64_t taps = arch_conv_channels(c, c->row->mixer) * c->conv_taps;
    const float *log = NULL;
    int64_t H, each;
    arch_role_shape(c, R_MIX_A_LOG, &H, &each);
    const int64_t rates = H * each;
    float *conv = lq_push(a, (size_t)taps * sizeof *conv), *at = conv;
    float *rate = lq_push(a, (size_t)rates * sizeof *rate);
    lq_status s = conv && rate ? LQ_OK : dense_layer_no_memory(err);
    for (size_t i = 0; i < LQ_COUNT(convs) && !s; i++) {
        const float *part;
        int64_t N, K;
        s = src_vector(src, convs[i], layer, -1, false, &part, a, err);
        if (s || !part) continue;
        arch_role_shape(c, convs[i], &N, &K);
        memcpy(at, part, (size_t)K * sizeof *at);
        at += K;
    }
    l->mix_conv = conv;
    l->mix_rate = rate;
    if (!s) s = src_vector(src, R_MIX_CONV, layer, -1, true, &l->mix_conv_bias, a, err);
    if (!s) s = src_vector(src, R_MIX_DT, layer, -1, false, &l->mix_dt, a, err);
    if (!s) s = src_vector(src, R_MIX_A_LOG, layer, -1, false, &log, a, err);
    if (!s) s = src_vector(src, R_MIX_SKIP, layer, -1, false, &l->mix_skip, a, err);
    if (!s) s = src_vector(src, R_MIX_NORM, layer, -1, false, &l->mix_norm, a, err);
    for (int k = 0; k < 3 && !s; k++)
        s = src_vector(src, R_MIX_STEP_NORM + (arch_role)k, layer, -1, false, &l->mix_parts[k], a,
                       err);
    for (int64_t i = 0; i < rates && log && !s; i++)
        rate[i] = -expf(log[i]);
    return s;
}

lq_status dense_streams(grad_layer *l, const src_source *src, int64_t layer, lq_arena *a, pool *p,
                        lq_err *err)
{
    const arch_config *c = src_config(src);
    const struct {
        arch_role role;
        const float **to;
    } vectors[] = {
        { R_STREAM_NORM, &l->stream_norm },       { R_STREAM_ROUTER, &l->stream_router },
        { R_STREAM_PREDICT, &l->stream_predict }, { R_STREAM_CORRECT, &l->stream_correct },
        { R_STREAM_SCALE, &l->stream_scale },     { R_LAUREL_NORM, &l->laurel_norm }
    };
    lq_status s = small_matrix(&l->laurel_left, src, R_LAUREL_LEFT, layer, a, p, err);
    if (!s) s = small_matrix(&l->laurel_right, src, R_LAUREL_RIGHT, layer, a, p, err);
    for (size_t i = 0; i < LQ_COUNT(vectors) && !s; i++)
        s = src_vector(src, vectors[i].role, layer, -1, false, vectors[i].to, a, err);
    for (int64_t i = 0; i + 1 < c->streams && layer == c->layers - 1 && !s; i++)
        s = small_matrix_of(&l->stream_out[i], src, R_STREAM_OUT, -1, i, a, p, err);
    return s;
}

lq_status dense_index_vectors(grad_layer *l, const src_source *src, int64_t layer, lq_arena *a,
                              lq_err *err)
{
    lq_status s = src_vector(src, R_INDEX_K_NORM, layer, -1, false, &l->index_k_norm, a, err);
    if (!s) s = src_vector(src, R_INDEX_K_NORM, layer, -1, true, &l->index_k_bias, a, err);
    return s ? s : src_vector(src, R_INDEX_Q_NORM, layer, -1, false, &l->index_q_norm, a, err);
}

static lq_status indexer_of(grad_layer *l, const src_source *src, int64_t layer, lq_arena *a,
                            pool *p, lq_err *err)
{
    lq_status s = small_matrix(&l->index_q, src, R_INDEX_Q, layer, a, p, err);
    if (!s) s = small_matrix(&l->index_k, src, R_INDEX_K, layer, a, p, err);
    if (!s) s = small_matrix(&l->index_w, src, R_INDEX_W, layer, a, p, err);
    return s ? s : dense_index_vectors(l, src, layer, a, err);
}

lq_status dense_layer(grad_layer *l, float *const W[GRAD_BUFFERS], const src_source *src,
                      int64_t layer, int64_t len, lq_arena *a, pool *p, lq_err *err)
{
    const bool moe = src_config(src)->layer[layer].moe;
    lq_status s = LQ_OK;
    memset(l, 0, sizeof *l);
    for (int k = 0; k < GRAD_LINEARS && !s; k++) {
        qt_tensor w;
        s = src_matrix(src, grad_linear_roles[k], layer, -1, &w, a, err);
        if (!s) s = src_vector(src, grad_linear_roles[k], layer, -1, true, &l->bias[k], a, err);
        if (!s) dense_expand(W[k], &w, p);
        src_matrix_done(src, grad_linear_roles[k], layer, -1);
        l->W[k] = w.N ? W[k] : NULL;
    }
    for (int k = 0; k < GRAD_NORMS && !s; k++) {
        s = src_vector(src, grad_norm_roles[k], layer, -1, false, &l->norm[k], a, err);
        if (!s) s = src_vector(src, grad_norm_roles[k], layer, -1, true, &l->norm_bias[k], a, err);
    }
    if (!s) s = src_vector(src, R_SINKS, layer, -1, false, &l->sinks, a, err);
    if (!s) s = src_vector(src, R_LAYER_SCALE, layer, -1, false, &l->scale, a, err);
    if (!s) s = small_matrix(&l->head_gate, src, R_HEAD_GATE, layer, a, p, err);
    if (!s) s = small_matrix(&l->ple_gate, src, R_PLE_GATE, layer, a, p, err);
    if (!s) s = small_matrix(&l->ple_out, src, R_PLE_OUT, layer, a, p, err);
    for (int k = 0; k < GRAD_XIELU && !s; k++)
        s = src_vector(src, R_XIELU_P + (arch_role)k, layer, -1, false, &l->xielu[k], a, err);
    if (!s) s = src_vector(src, R_GATE_BIAS, layer, -1, false, &l->gate_bias, a, err);
    if (!s && arch_mixer_has_state(src_config(src)->layer[layer].mixer)) {
        s = dense_mix_vectors(l, src, layer, a, err);
        if (!s) s = small_matrix(&l->mix_x, src, R_MIX_X, layer, a, p, err);
        if (!s) s = small_matrix(&l->mix_step, src, R_MIX_STEP, layer, a, p, err);
        if (!s) s = small_matrix(&l->mix_ba, src, R_MIX_BA, layer, a, p, err);
        if (!s) s = small_matrix(&l->mix_b, src, R_MIX_B, layer, a, p, err);
        if (!s) s = small_matrix(&l->mix_a, src, R_MIX_A, layer, a, p, err);
        if (!s) s = small_matrix(&l->mix_a_down, src, R_MIX_A_DOWN, layer, a, p, err);
        if (!s) s = small_matrix(&l->mix_a_up, src, R_MIX_A_UP, layer, a, p, err);
        if (!s) s = small_matrix(&l->mix_gate_down, src, R_MIX_GATE_DOWN, layer, a, p, err);
        if (!s) s = small_matrix(&l->mix_gate_up, src, R_MIX_GATE_UP, layer, a, p, err);
    }
    if (!s && src_config(src)->streams) s = dense_streams(l, src, layer, a, p, err);
    if (!s && grad_chooses(src_config(src), len)) s = indexer_of(l, src, layer, a, p, err);
    return s || !moe ? s : experts_of(l, W, src, layer, a, p, err);
}

/* Rows of the head to length 1, as model_head_lengths has them. */
static void head_row_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const work *w = ctx;
    const int64_t K = w->t->K, end = (item + 1) * ROWS < w->t->N ? (item + 1) * ROWS : w->t->N;
    for (float *row = w->W + item * ROWS * K; row < w->W + end * K; row += K) {
        double sum = 0;
        for (int64_t k = 0; k < K; k++)
            sum += (double)row[k] * (double)row[k];
        for (int64_t k = 0; k < K; k++)
            row[k] *= (float)(1 / fmax(sqrt(sum), 1e-12));
    }
}

lq_status dense_head(kl_head *h, const src_source *src, const qt_tensor *w, lq_arena *a, pool *p,
                     lq_err *err)
{
    qt_tensor own;
    lq_status s = w ? LQ_OK : src_matrix(src, R_HEAD, -1, -1, &own, a, err);
    if (s) return s;
    if (!w) w = &own;
    float *W = lq_push(a, (size_t)(w->N * w->K) * sizeof *W);
    if (!W) return dense_layer_no_memory(err);
    dense_expand(W, w, p);
    if (w == &own) src_matrix_done(src, R_HEAD, -1, -1);
    const arch_config *c = src_config(src);
    work rows = { W, w };
    if (c->w.head_rows_1) pool_run(p, lq_ceil_div(w->N, ROWS), head_row_item, &rows);
    *h = (kl_head){ .W = W,
                    .V = w->N,
                    .K = w->K,
                    .scale = c->logit_scale != 1 ? (float)c->logit_scale : 0,
                    .cap = (float)c->final_softcap };
    return src_vector(src, R_HEAD, -1, -1, true, &h->bias, a, err);
}
