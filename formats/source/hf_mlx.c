/* formats/source/hf_mlx.c - mlx-lm's folders, quantized or not (mlx.core.quantize's docstring; mlx_lm/models have the
 * names). Per linear, [N,K] or a stack of experts [E,N,K], with the words of a row in the order of its inputs, lowest
 * bits first:
 *
 *   affine  weight U32 [N,K*bits/32], 1 to 6 and 8 bits; scales and biases in one float type [N,K/group]:
 *           w = scale * code + bias
 *   mxfp4   weight U32 [N,K/8], scales U8 [N,K/32]: E2M1 and E8M0
 *   nvfp4   weight U32 [N,K/8], scales U8 [N,K/16]: E2M1 and E4M3; global_scale, if any, F32 [E]: an expert's largest
 *           absolute value, of which the scales are 1/2688 (6 times 448)
 *   mxfp8   weight U32 [N,K/4], scales U8 [N,K/32]: E4M3 and E8M0
 *
 * Codes of 2, 3, 4 and 8 bits are used in place; of 1 they become ones of 2 bits, of 5 and 6 ones of 8. The config's
 * `quantization` names modules that differ; of one that it does not name the shapes tell bits, group and mode
 * (mlx_lm.utils.infer_quant_config), and where they do not, it has what holds for all.
 *
 * Experts are stacks of one projection each, whatever the architecture's own files have; a latent's two matrices (MLA)
 * are apart, as stacks of heads; convolutions are [channels, taps, 1], and where they are, norms of 1 + w hold the sum. */
#include "base/path.h"
#include "formats/source/hf_quant.h"

#include <stdio.h>

typedef enum { MLX_AFFINE, MLX_MXFP4, MLX_NVFP4, MLX_MXFP8, MLX_N_MODES, MLX_PLAIN } mlx_mode;

/* What mlx takes where the config says nothing or null. */
static const struct {
    const char *name;
    int64_t group, bits;
} modes[MLX_N_MODES] = {
    { "affine", 64, 4 },
    { "mxfp4", 32, 4 },
    { "nvfp4", 16, 4 },
    { "mxfp8", 32, 8 },
};

typedef struct {
    mlx_mode mode;
    int64_t group, bits;
    bool second; /* is said to be there */
} mlx_config;

/* The stored parts of one weight or stack. */
typedef struct {
    const src_tensor *weight, *scales, *biases; /* MLX_PLAIN: the first alone; biases: affine */
    const src_tensor *second;                   /* nvfp4; NULL: none */
    mlx_config c;
    int64_t E, N, K; /* E: 1 where it is no stack */
} mlx_stored;

typedef struct {
    const uint8_t *codes, *scales, *biases, *second;
} mlx_planes;

/* What planes are filled from: one stack, or two whose rows make the experts' rows together. */
typedef struct {
    mlx_planes half[2];
    int halves;
    bool mixed;         /* rows alternate */
    int64_t bits, rows; /* as stored; of one expert in each half */
    int64_t inputs;     /* of a row: where the stack is turned */
} mlx_parts;

/* ---- planes ---- */
/* Row n of a weight: which half, and which of its rows. */
static const mlx_planes *row_at(int64_t *row, const mlx_parts *p, int64_t n)
{
    const int64_t both = 2 * p->rows, e = n / both, r = n % both;
    *row = n;
    if (p->halves == 1) return &p->half[0];
    *row = e * p->rows + (p->mixed ? r / 2 : r % p->rows);
    return &p->half[p->mixed ? r % 2 : r / p->rows];
}

static size_t bytes_of_row(const qt_tensor *t, qt_plane p)
{
    return qt_plane_bytes(&t->scheme, QT_PORTABLE, t->N, t->K, p) / (size_t)t->N;
}

/* Codes of other bits than those that are stored. */
static void put_codes(uint8_t *dst, const uint8_t *row, const qt_tensor *t, int64_t bits)
{
    for (int64_t k = 0; k < t->K; k++) {
        const uint32_t code = qt_get(row, k, (int)bits);
        if (t->scheme.bits == 8)
            dst[k] = (uint8_t)code;
        else
            dst[k / 4] = (uint8_t)(dst[k / 4] | code << k % 4 * 2);
    }
}

static void put_row(void *const w[QT_N_PLANES], const qt_tensor *t, const mlx_parts *p, int64_t n)
{
    int64_t row;
    const mlx_planes *from = row_at(&row, p, n);
    const size_t stored = qt_row_bytes(t->K, (int)p->bits), codes = bytes_of_row(t, QT_CODES);
    const size_t scales = bytes_of_row(t, QT_SCALES);
    uint8_t *to = w[QT_CODES];
    if (to && stored == codes)
        memcpy(to + (size_t)n * codes, from->codes + (size_t)row * codes, codes);
    else if (to)
        put_codes(to + (size_t)n * codes, from->codes + (size_t)row * stored, t, p->bits);
    to = w[QT_ZEROS];
    if (to) memcpy(to + (size_t)n * scales, from->biases + (size_t)row * scales, scales);
    to = w[QT_SCALES];
    if (to && t->scheme.kind != QT_E4M3)
        memcpy(to + (size_t)n * scales, from->scales + (size_t)row * scales, scales);
    else if (to)
        for (size_t g = 0; g < scales / 4; g++)
            ((float *)w[QT_SCALES])[(size_t)n * scales / 4 + g] =
                lq_e8m0_to_f32(from->scales[(size_t)row * scales / 4 + g]);
}

/* A scale for each half of each expert. */
static void put_second(float *out, const qt_tensor *t, const mlx_parts *p)
{
    const int64_t blocks = t->scheme.rows ? lq_ceil_div(t->N, t->scheme.rows) : 1;
    for (int64_t b = 0; b < blocks; b++) {
        const uint8_t *second = p->half[b % p->halves].second;
        out[b] = 1;
        if (!second) continue;
        memcpy(&out[b], second + 4 * (b / p->halves), sizeof out[b]);
        out[b] /= 2688;
    }
}

static void hf_mlx_fill(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    if (w[QT_SCALES2]) put_second(w[QT_SCALES2], t, from);
    for (int64_t n = 0; n < t->N; n++)
        put_row(w, t, from, n);
}

/* A stack [E, K, N]: what the architecture's own files have of matrices that are not quantized. */
static void hf_mlx_fill_turned(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const mlx_parts *p = from;
    const int64_t N = t->K, K = p->inputs;
    const size_t size = lq_dtype_bytes(t->scheme.dtype);
    for (int64_t n = 0; n < t->N / K * N; n++) {
        int64_t row;
        const uint8_t *codes = row_at(&row, p, n)->codes + (size_t)(row * K) * size;
        uint8_t *to = (uint8_t *)w[QT_CODES] + (size_t)(n / N * K * N + n % N) * size;
        for (int64_t k = 0; k < K; k++)
            memcpy(to + (size_t)(k * N) * size, codes + (size_t)k * size, size);
    }
}

/* ---- the config ---- */
/* A number, or where it is null what the mode has. */
static lq_status mlx_number(const cJSON *q, const char *key, int64_t most, int64_t *v, lq_err *err)
{
    return cJSON_IsNull(js_get(q, key)) ? LQ_OK : js_i64(q, key, false, 1, most, v, err);
}

static lq_status mlx_config_of(mlx_config *c, const cJSON *q, lq_err *err)
{
    const char *mode = modes[MLX_AFFINE].name;
    int m = 0;
    lq_status st = js_str(q, "mode", false, &mode, err);
    while (!st && m < MLX_N_MODES && strcmp(modes[m].name, mode) != 0)
        m++;
    if (!st && m == MLX_N_MODES)
        st = lq_fail(err, LQ_EUNSUPPORTED,
                     "mode: expected affine, mxfp4, nvfp4 or mxfp8, found \"%.40s\"", mode);
    if (st) return st;
    *c = (mlx_config){ .mode = (mlx_mode)m, .group = modes[m].group, .bits = modes[m].bits };
    st = mlx_number(q, "group_size", INT32_MAX, &c->group, err);
    if (!st) st = mlx_number(q, "bits", 8, &c->bits, err);
    if (!st && c->bits == 7) st = lq_fail(err, LQ_EVALUE, "bits: expected 1 to 6 or 8, found 7");
    if (!st && m != MLX_AFFINE && (c->group != modes[m].group || c->bits != modes[m].bits))
        st = lq_fail(err, LQ_EVALUE,
                     "%s: expected group_size %lld and bits %lld, found %lld and %lld",
                     modes[m].name, (long long)modes[m].group, (long long)modes[m].bits,
                     (long long)c->group, (long long)c->bits);
    c->second = m == MLX_NVFP4 && cJSON_IsTrue(js_get(q, "global_scale"));
    return st;
}

/* What the shapes tell of a weight of K inputs; false: nothing that mlx has. */
static bool mlx_config_told(mlx_config *c, const hf_quant *h, const char *module,
                            const src_tensor *weight, int64_t K)
{
    const src_tensor *scales = hf_stored(h, module, ".scales");
    if (!scales || !scales->n_dims || K < 1) return false;
    const int64_t words = weight->shape[weight->n_dims - 1];
    const int64_t groups = scales->shape[scales->n_dims - 1];
    if (groups < 1 || K % groups || words * 32 % K) return false;
    *c = (mlx_config){ .mode = MLX_AFFINE, .group = K / groups, .bits = words * 32 / K };
    if (lq_dtype_is_float(scales->raw_dtype)) return c->bits > 0 && c->bits <= 8 && c->bits != 7;
    for (int m = MLX_AFFINE + 1; m < MLX_N_MODES && scales->raw_dtype == LQ_U8; m++)
        if (modes[m].group == c->group && modes[m].bits == c->bits) c->mode = (mlx_mode)m;
    c->second = c->mode == MLX_NVFP4 && hf_stored(h, module, ".global_scale");
    return c->mode != MLX_AFFINE;
}

/* Of one module of K inputs (0: not known). */
static lq_status mlx_config_at(mlx_config *c, const hf_quant *h, const char *module,
                               const src_tensor *weight, int64_t K, lq_err *err)
{
    const cJSON *own = js_get(h->q, module);
    if (!cJSON_IsObject(own) && mlx_config_told(c, h, module, weight, K)) return LQ_OK;
    const lq_status st = mlx_config_of(c, cJSON_IsObject(own) ? own : h->q, err);
    return st ? lq_wrap(err, st, "quantization: %.80s", cJSON_IsObject(own) ? module : "all") : st;
}

/* ---- stored tensors ---- */
/* Its shape but for the last dim must be the weight's. */
static lq_status expect_groups(const src_tensor *t, const mlx_stored *s, lq_err *err)
{
    src_tensor want = *s->weight;
    want.shape[want.n_dims - 1] = s->K / s->c.group;
    bool fits = t->n_dims == want.n_dims;
    for (int i = 0; i < want.n_dims; i++)
        fits = fits && t->shape[i] == want.shape[i];
    char a[96], b[96];
    return fits ? LQ_OK
                : lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected shape %s, found %s", t->name,
                          src_shape_text(a, &want), src_shape_text(b, t));
}

/* One number for each expert. */
static lq_status take_second(mlx_stored *s, hf_quant *h, const char *module, lq_err *err)
{
    static const int types[] = { LQ_F32, -1 };
    if (s->c.mode != MLX_NVFP4) return LQ_OK;
    const lq_status st =
        hf_take(h, module, ".global_scale", s->c.second, types, -1, &s->second, err);
    return st || !s->second || s->second->raw.bytes == 4 * (size_t)s->E
               ? st
               : lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected %lld elements, found %zu",
                         s->second->name, (long long)s->E, s->second->raw.bytes / 4);
}

static lq_status take_groups(mlx_stored *s, hf_quant *h, const char *module, lq_err *err)
{
    static const int bytes[] = { LQ_U8, -1 };
    const bool affine = s->c.mode == MLX_AFFINE;
    lq_status st =
        hf_take(h, module, ".scales", true, affine ? HF_FLOATS : bytes, -1, &s->scales, err);
    if (!st && affine) st = hf_take(h, module, ".biases", true, HF_FLOATS, -1, &s->biases, err);
    if (!st && (s->K * s->c.bits % 32 || s->K % s->c.group))
        st = lq_fail(err, LQ_ESHAPE,
                     "tensor '%.100s': expected rows of whole groups of %lld codes of %lld bits",
                     s->weight->name, (long long)s->c.group, (long long)s->c.bits);
    if (!st) st = expect_groups(s->scales, s, err);
    if (!st && affine) st = expect_groups(s->biases, s, err);
    if (!st) st = take_second(s, h, module, err);
    if (!st && affine && s->biases->raw_dtype != s->scales->raw_dtype)
        st = lq_fail(err, LQ_EFORMAT, "tensor '%.100s': expected %s, as its scales, found %s",
                     s->biases->name, lq_dtype_text(s->scales->raw_dtype),
                     lq_dtype_text(s->biases->raw_dtype));
    return st;
}

/* MODULE.weight, of K inputs (0: not known), and what belongs to it. */
static lq_status take_weight(mlx_stored *s, hf_quant *h, const char *module, int64_t K, lq_err *err)
{
    static const int types[] = { LQ_U32, LQ_F32, LQ_F16, LQ_BF16, -1 };
    *s = (mlx_stored){ .c.mode = MLX_PLAIN };
    lq_status st = hf_take(h, module, ".weight", true, types, -1, &s->weight, err);
    if (st) return st;
    const src_tensor *w = s->weight;
    const bool words = w->raw_dtype == LQ_U32;
    if (w->n_dims != 2 && w->n_dims != 3)
        return lq_fail(err, LQ_ESHAPE,
                       "tensor '%.100s': expected 2 dims, or 3 of a stack, found %d", w->name,
                       w->n_dims);
    if (words)
        st = mlx_config_at(&s->c, h, module, w, K, err);
    else
        s->c.bits = 8 * (int64_t)lq_dtype_bytes(w->raw_dtype);
    if (st) return st;
    s->E = w->n_dims == 3 ? w->shape[0] : 1;
    s->N = w->shape[w->n_dims - 2];
    s->K = words ? w->shape[w->n_dims - 1] * 32 / s->c.bits : w->shape[w->n_dims - 1];
    return words ? take_groups(s, h, module, err) : LQ_OK;
}

static qt_scheme mlx_scheme(const mlx_stored *s)
{
    const int64_t b = s->c.bits;
    switch (s->c.mode) {
    case MLX_PLAIN:
        return (qt_scheme){ .kind = QT_DENSE, .dtype = s->weight->raw_dtype };
    case MLX_MXFP4:
        return (qt_scheme){ .kind = QT_E2M1, .group = s->c.group, .scale_dtype = LQ_F8_E8M0 };
    case MLX_NVFP4:
        return (qt_scheme){ .kind = QT_E2M1, .group = s->c.group, .scale_dtype = LQ_F8_E4M3 };
    case MLX_MXFP8:
        return (qt_scheme){ .kind = QT_E4M3, .group = s->c.group, .rows = 1 };
    default:
        return (qt_scheme){ .kind = QT_UINT,
                            .bits = b == 1             ? 2
                                    : b == 5 || b == 6 ? 8
                                                       : (int)b,
                            .group = s->c.group,
                            .zero = QT_ZERO_BIAS,
                            .scale_dtype = s->scales->raw_dtype };
    }
}

/* Part e of n equal ones; of no tensor nothing. */
static qt_span part_of(const src_tensor *t, int64_t e, int64_t n)
{
    if (!t) return (qt_span){ 0 };
    const size_t one = t->raw.bytes / (size_t)n;
    return (qt_span){ (const uint8_t *)t->raw.data + (size_t)e * one, one };
}

/* ---- weights ---- */
/* Of a stack, or (halves 2) of two whose rows make one: expert e as a matrix, all of them as a stack (-1). */
static lq_status make_weight(hf_quant *h, const mlx_stored *s, int halves, bool mixed,
                             const char *name, int64_t e, lq_err *err)
{
    const int64_t n = e < 0 ? 1 : s->E, at = e < 0 ? 0 : e, stacked = e < 0 ? s->E : 1;
    const int64_t shape[3] = { s->E, halves * s->N, s->K };
    qt_tensor q = { .scheme = mlx_scheme(s), .N = stacked * shape[1], .K = s->K };
    mlx_parts p = { .halves = halves, .mixed = mixed, .bits = s->c.bits, .rows = s->N };
    const bool second = s[0].second || s[halves - 1].second;
    if (second && mixed && halves > 1)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "tensor '%.100s': expected none where rows of gate and up alternate",
                       (s[0].second ? s[0].second : s[1].second)->name);
    if (second && q.N > s->N) q.scheme.rows = (int)s->N;
    h->n_taken = 0;
    for (int i = 0; i < halves; i++) {
        const qt_span codes = part_of(s[i].weight, at, n), scales = part_of(s[i].scales, at, n);
        const qt_span biases = part_of(s[i].biases, at, n);
        const qt_span of_all = part_of(s[i].second, at, n);
        p.half[i] = (mlx_planes){ codes.data, scales.data, biases.data, of_all.data };
        h->taken[h->n_taken++] = codes;
        if (of_all.data) h->taken[h->n_taken++] = of_all;
        if (scales.data) h->taken[h->n_taken++] = scales;
        if (biases.data) h->taken[h->n_taken++] = biases;
        if (halves > 1) continue;
        if (q.scheme.kind != QT_UINT || q.scheme.bits == p.bits) q.plane[QT_CODES] = codes;
        if (q.scheme.kind != QT_E4M3) q.plane[QT_SCALES] = scales;
        q.plane[QT_ZEROS] = biases;
    }
    lq_status st = hf_make(h, name, "", &q, hf_mlx_fill, &p, sizeof p, err);
    if (st || e >= 0 || s->weight->n_dims == 2) return st;
    src_tensor *t = &h->made[h->n_made - 1];
    t->n_dims = 3;
    memcpy(t->shape, shape, sizeof shape);
    return LQ_OK;
}

/* The same as [E, K, N], not quantized. */
static lq_status make_turned(hf_quant *h, const mlx_stored *s, int halves, bool mixed,
                             const char *name, lq_err *err)
{
    const int64_t shape[3] = { s->E, s->K, halves * s->N };
    const qt_tensor q = { .scheme = mlx_scheme(s), .N = s->E * s->K, .K = shape[2] };
    mlx_parts p = { .halves = halves, .mixed = mixed, .rows = s->N, .inputs = s->K };
    for (int i = 0; i < halves; i++)
        p.half[i].codes = s[i].weight->raw.data;
    const lq_status st = hf_make(h, name, "", &q, hf_mlx_fill_turned, &p, sizeof p, err);
    if (st) return st;
    h->made[h->n_made - 1].n_dims = 3;
    memcpy(h->made[h->n_made - 1].shape, shape, sizeof shape);
    return LQ_OK;
}

static lq_status no_place(const src_tensor *t, lq_err *err)
{
    return lq_fail(
        err, LQ_EUNSUPPORTED,
        "tensor '%.100s': expected parts of this architecture, found a stack that is none",
        t->name);
}

/* ---- experts ---- */
static const struct {
    const char *ending;
    arch_role role;
} projections[] = {
    { ".gate_proj", R_EXPERT_GATE },
    { ".up_proj", R_EXPERT_UP },
    { ".down_proj", R_EXPERT_DOWN },
    { ".switch_mlp.fc1", R_EXPERT_UP }, /* where experts have no gate */
    { ".switch_mlp.fc2", R_EXPERT_DOWN },
};

/* The role and layer of a stack of experts; false: the tensor is none. */
static bool is_experts(arch_role *role, int64_t *layer, const hf_quant *h, const src_tensor *t)
{
    char module[256];
    long long l;
    size_t i = 0;
    const char *at = strstr(t->name, "layers.");
    const int n = (int)strlen(t->name) - (int)strlen(".weight");
    if (t->n_dims != 3 || !h->s->has_config || t->shape[0] != h->s->config.experts || !at ||
        sscanf(at, "layers.%lld.", &l) != 1 || l < 0 || l >= h->s->config.layers ||
        n >= (int)sizeof module || !lq_has_ending(t->name, ".weight"))
        return false;
    snprintf(module, sizeof module, "%.*s", n, t->name);
    while (i < LQ_COUNT(projections) && !lq_has_ending(module, projections[i].ending))
        i++;
    if (i == LQ_COUNT(projections)) return false;
    *role = projections[i].role;
    *layer = l;
    return true;
}

/* The stack of rows of up beside those of gate. */
static bool name_of_up(char out[256], const char *gate)
{
    const size_t n = strlen(gate) - strlen("gate_proj");
    return snprintf(out, 256, "%.*sup_proj", (int)n, gate) < 256;
}

/* Biases [E, 2 N] of two [E, N]: each number is a row of one input. */
static void hf_mlx_fill_bias(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    qt_tensor rows = *t;
    rows.N = t->N * t->K;
    rows.K = 1;
    hf_mlx_fill(w, &rows, from);
}

/* Biases of the stacks s, under the name of the role's. */
static lq_status make_expert_bias(hf_quant *h, const mlx_stored *s, int halves, bool mixed,
                                  const char *const modules[2], arch_role r, int64_t layer,
                                  lq_err *err)
{
    char name[256];
    mlx_parts p = { .halves = halves, .mixed = mixed, .rows = s->N };
    const src_tensor *bias = NULL;
    lq_status st = LQ_OK;
    for (int i = 0; i < halves && !st; i++) {
        st = hf_take(h, modules[i], ".bias", i, HF_FLOATS, 2, &bias, err);
        if (!st && !bias) return LQ_OK;
        if (!st) st = hf_expect(bias, s->E, s->N, err);
        if (!st && i && 8 * (int64_t)lq_dtype_bytes(bias->raw_dtype) != p.bits)
            st =
                lq_fail(err, LQ_EUNSUPPORTED, "tensor '%.100s': expected the type of '%.100s.bias'",
                        bias->name, modules[0]);
        if (st) return st;
        p.half[i].codes = bias->raw.data;
        p.bits = 8 * (int64_t)lq_dtype_bytes(bias->raw_dtype);
    }
    qt_tensor q = { .scheme = { .kind = QT_DENSE, .dtype = bias->raw_dtype },
                    .N = s->E,
                    .K = halves * s->N };
    if (halves == 1) q.plane[QT_CODES] = bias->raw;
    if (!arch_tensor_name(&h->s->config, r, layer, -1, true, name, sizeof name))
        return no_place(bias, err);
    return hf_make(h, name, "", &q, hf_mlx_fill_bias, &p, sizeof p, err);
}

/* Under the architecture's own names: a matrix for each expert, or a stack, in which gate and up may be one. */
static lq_status make_experts(hf_quant *h, const char *module, arch_role role, int64_t layer,
                              lq_err *err)
{
    const arch_config *c = &h->s->config;
    const arch_name *own = arch_name_of(c, role);
    const bool joined = !own && role != R_EXPERT_DOWN && arch_name_of(c, R_EXPERT_GATE_UP);
    char name[256], up[256] = "";
    const char *const modules[2] = { module, up };
    mlx_stored s[2];
    if (joined && role == R_EXPERT_UP) return LQ_OK; /* with its gate */
    int64_t N, K;
    arch_role_shape(arch_at(c, layer), role, &N, &K); /* gate and up have the same */
    lq_status st = take_weight(&s[0], h, module, K, err);
    if (st) return st;
    if (!own && !joined) return no_place(s[0].weight, err);
    if (own && !(own->flags & NAME_STACKED)) {
        for (int64_t e = 0; e < s[0].E && !st; e++)
            st = arch_tensor_name(c, role, layer, e, false, name, sizeof name)
                     ? make_weight(h, s, 1, false, name, e, err)
                     : no_place(s[0].weight, err);
        return st;
    }
    if (joined && !name_of_up(up, module)) return no_place(s[0].weight, err);
    if (joined) st = take_weight(&s[1], h, up, K, err);
    if (!st && joined &&
        (s[1].E != s[0].E || s[1].N != s[0].N || s[1].K != s[0].K || s[1].c.mode != s[0].c.mode ||
         s[1].c.bits != s[0].c.bits || s[1].c.group != s[0].c.group ||
         mlx_scheme(&s[1]).scale_dtype != mlx_scheme(s).scale_dtype ||
         mlx_scheme(&s[1]).dtype != mlx_scheme(s).dtype))
        st = lq_fail(err, LQ_EUNSUPPORTED,
                     "tensor '%.100s': expected the shape and layout of '%.100s'",
                     s[1].weight->name, s[0].weight->name);
    if (st) return st;
    const arch_role r = joined ? R_EXPERT_GATE_UP : role;
    arch_tensor_name(c, r, layer, -1, false, name, sizeof name);
    const bool turned = s->c.mode == MLX_PLAIN && arch_name_of(c, r)->flags & NAME_TRANSPOSED;
    st = turned ? make_turned(h, s, 1 + joined, c->w.gate_up_mixed, name, err)
                : make_weight(h, s, 1 + joined, c->w.gate_up_mixed, name, -1, err);
    return st ? st : make_expert_bias(h, s, 1 + joined, c->w.gate_up_mixed, modules, r, layer, err);
}

/* ---- latents ---- */
enum { MLX_ROW = 4096 }; /* inputs of a head's rows, at most */

/* kv_b_proj, by head: rows of K from embed_q [heads, latent, nope], rows of V from unembed_out [heads, v, latent]. */
typedef struct {
    qt_tensor k, v; /* all rows; planes as stored */
    mlx_parts k_from, v_from;
    int64_t heads;
} mlx_latents;

/* Row n in f32. */
static void latent_row(float *out, const qt_tensor *t, const mlx_parts *p, int64_t n)
{
    uint8_t codes[MLX_ROW * 4], zeros[MLX_ROW * 4];
    float scales[MLX_ROW], scales2[1];
    void *const w[QT_N_PLANES] = {
        [QT_CODES] = codes, [QT_SCALES] = scales, [QT_ZEROS] = zeros, [QT_SCALES2] = scales2
    };
    mlx_parts at = *p;
    qt_tensor row = *t;
    row.N = 1;
    at.half[0].codes += (size_t)n * qt_row_bytes(t->K, (int)p->bits);
    for (int i = 0; i < QT_N_PLANES; i++)
        row.plane[i] = (qt_span){ w[i], qt_plane_bytes(&t->scheme, QT_PORTABLE, 1, t->K, i) };
    const size_t s = row.plane[QT_SCALES].bytes / (t->scheme.kind == QT_E4M3 ? 4 : 1);
    if (at.half[0].scales) at.half[0].scales += (size_t)n * s;
    if (at.half[0].biases) at.half[0].biases += (size_t)n * s;
    memset(codes, 0, row.plane[QT_CODES].bytes);
    void *wanted[QT_N_PLANES];
    for (int i = 0; i < QT_N_PLANES; i++)
        wanted[i] = row.plane[i].bytes ? w[i] : NULL;
    hf_mlx_fill(wanted, &row, &at);
    qt_dequant(out, &row, 0, 1);
}

static void put_value(void *dst, lq_dtype d, int64_t i, float v)
{
    lq_from_f32((uint8_t *)dst + (size_t)i * lq_dtype_bytes(d), &v, d, 1);
}

static void hf_mlx_fill_latents(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const mlx_latents *p = from;
    const int64_t latent = t->K, nope = p->k.K, v = p->v.N / p->heads;
    const lq_dtype d = t->scheme.dtype;
    float row[MLX_ROW];
    for (int64_t h = 0; h < p->heads; h++) {
        const int64_t first = h * (nope + v);
        for (int64_t r = 0; r < latent; r++) {
            latent_row(row, &p->k, &p->k_from, h * latent + r);
            for (int64_t k = 0; k < nope; k++)
                put_value(w[QT_CODES], d, (first + k) * latent + r, row[k]);
        }
        for (int64_t r = 0; r < v; r++) {
            latent_row(row, &p->v, &p->v_from, h * v + r);
            for (int64_t k = 0; k < latent; k++)
                put_value(w[QT_CODES], d, (first + nope + r) * latent + k, row[k]);
        }
    }
}

static void latent_part(qt_tensor *t, mlx_parts *p, const mlx_stored *s)
{
    *t = (qt_tensor){ .scheme = mlx_scheme(s), .N = s->E * s->N, .K = s->K };
    *p = (mlx_parts){ .halves = 1, .bits = s->c.bits, .rows = s->N };
    p->half[0] = (mlx_planes){ part_of(s->weight, 0, 1).data, part_of(s->scales, 0, 1).data,
                               part_of(s->biases, 0, 1).data, NULL };
}

static lq_status make_latents(hf_quant *h, const char *attention, lq_err *err)
{
    char name[512];
    mlx_stored k, v;
    snprintf(name, sizeof name, "%s.embed_q", attention);
    const arch_config *c = h->s->has_config ? &h->s->config : NULL;
    lq_status st = take_weight(&k, h, name, c ? c->nope_dims : 0, err);
    snprintf(name, sizeof name, "%s.unembed_out", attention);
    if (!st) st = take_weight(&v, h, name, c ? c->kv_lora : 0, err);
    if (st) return st;
    if (k.second || v.second)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "tensor '%.100s': expected none of a latent's matrices",
                       (k.second ? k.second : v.second)->name);
    if (k.E != v.E || k.N != v.K || k.weight->n_dims != 3 || v.weight->n_dims != 3 ||
        k.K > MLX_ROW || v.K > MLX_ROW)
        return lq_fail(
            err, LQ_ESHAPE,
            "tensor '%.100s': expected heads and latents of '%.100s', in rows of at most "
            "%d",
            v.weight->name, k.weight->name, (int)MLX_ROW);
    mlx_latents p = { .heads = k.E };
    latent_part(&p.k, &p.k_from, &k);
    latent_part(&p.v, &p.v_from, &v);
    const bool plain = k.c.mode == MLX_PLAIN && v.c.mode == MLX_PLAIN &&
                       k.weight->raw_dtype == v.weight->raw_dtype;
    const qt_tensor q = { .scheme = { .kind = QT_DENSE,
                                      .dtype = plain ? k.weight->raw_dtype : LQ_F32 },
                          .N = k.E * (k.K + v.N),
                          .K = k.N };
    snprintf(name, sizeof name, "%s.kv_b_proj.weight", attention);
    return hf_make(h, name, "", &q, hf_mlx_fill_latents, &p, sizeof p, err);
}

/* ---- what other names and forms have ---- */
static const struct {
    const char *arch, *theirs, *own; /* parts of names */
} renamed[] = {
    { "BailingMoeForCausalLM", ".mlp.gate.gate_proj.", ".mlp.gate." },
    { "BailingMoeV2ForCausalLM", ".mlp.gate.gate_proj.", ".mlp.gate." },
    { "LagunaForCausalLM", ".mlp.gate.proj.", ".mlp.gate." },
    { "LagunaForCausalLM", ".mlp.gate.e_score", ".mlp.experts.e_score" },
    { "Lfm2MoeForCausalLM", ".feed_forward.gate_proj.", ".feed_forward.w1." },
    { "Lfm2MoeForCausalLM", ".feed_forward.up_proj.", ".feed_forward.w3." },
    { "Lfm2MoeForCausalLM", ".feed_forward.down_proj.", ".feed_forward.w2." },
};

/* The architecture's own name, in the arena; NULL: no memory. */
static const char *own_name(hf_quant *h, const char *name)
{
    char own[512];
    for (size_t i = 0; h->s->has_config && i < LQ_COUNT(renamed); i++) {
        const char *at = strstr(name, renamed[i].theirs);
        if (!at || strcmp(renamed[i].arch, h->s->config.row->arch) != 0) continue;
        snprintf(own, sizeof own, "%.*s%s%s", (int)(at - name), name, renamed[i].own,
                 at + strlen(renamed[i].theirs));
        return lq_push_str(&h->s->arena, own, strlen(own));
    }
    return name;
}

/* A convolution [channels, taps, 1]. */
static bool has_taps_last(const src_source *s, const src_tensor *t)
{
    arch_slot at;
    return s->has_config && t->n_dims == 3 && t->shape[1] > 1 && t->shape[2] == 1 &&
           arch_slot_of(&s->config, t->name, &at) && !at.bias &&
           arch_name_of(&s->config, at.role)->flags & NAME_TAPS;
}

typedef struct {
    const uint8_t *values;
    lq_dtype dtype;
    float offset;
} mlx_norm;

static void hf_mlx_fill_norm(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const mlx_norm *p = from;
    float *out = w[QT_CODES];
    lq_to_f32(out, p->values, p->dtype, (size_t)t->K);
    for (int64_t k = 0; k < t->K; k++)
        out[k] -= p->offset;
}

/* Weights of a norm of 1 + w that hold the sum. */
static lq_status make_norm(hf_quant *h, size_t i, float offset, lq_err *err)
{
    const src_tensor *t = &h->s->tensors[i];
    const mlx_norm p = { t->raw.data, t->raw_dtype, offset };
    const qt_tensor q = { .scheme = { .kind = QT_DENSE, .dtype = LQ_F32 },
                          .N = 1,
                          .K = t->shape[0] };
    h->used[i] = true;
    h->taken[h->n_taken++] = t->raw;
    const lq_status st = hf_make(h, t->name, "", &q, hf_mlx_fill_norm, &p, sizeof p, err);
    if (!st) {
        src_tensor *made = &h->made[h->n_made - 1];
        made->n_dims = 1;
        made->shape[0] = q.K;
    }
    return st;
}

/* ---- what mlx-lm leaves out ---- */
static void hf_mlx_fill_zeros(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    (void)from;
    memset(w[QT_CODES], 0, (size_t)(t->N * t->K) * sizeof(float));
}

/* The correction of ERNIE 4.5's router: without it is with zeros. */
static lq_status make_corrections(hf_quant *h, lq_err *err)
{
    src_source *s = h->s;
    const arch_config *c = &s->config;
    char name[256];
    lq_status st = LQ_OK;
    size_t n = 0;
    if (!s->has_config || strcmp(c->row->arch, "Ernie4_5_MoeForCausalLM") != 0) return LQ_OK;
    for (int64_t l = 0; l < c->layers && !st; l++) {
        if (!c->layer[l].moe ||
            !arch_tensor_name(c, R_ROUTER_CORR, l, -1, false, name, sizeof name) ||
            hf_stored(h, name, ""))
            continue;
        const qt_tensor q = { .scheme = { .kind = QT_DENSE, .dtype = LQ_F32 },
                              .N = 1,
                              .K = c->experts };
        h->n_taken = 0;
        st = hf_make(h, name, "", &q, hf_mlx_fill_zeros, NULL, 0, err);
        n++;
    }
    return st || !n
               ? st
               : src_note(s, err,
                          "mlx-lm leaves out the correction of this model's router: it answers as "
                          "there, not as the original");
}

static float offset_of(const src_source *s, const src_tensor *t)
{
    arch_slot at;
    return s->has_config && t->n_dims == 1 && lq_dtype_is_float(t->raw_dtype) &&
                   arch_slot_of(&s->config, t->name, &at)
               ? arch_slot_offset(&s->config, &at)
               : 0;
}

/* What is no weight of a linear. */
static lq_status fit_rest(hf_quant *h, lq_err *err)
{
    src_source *s = h->s;
    bool turned = false;
    lq_status st = LQ_OK;
    for (size_t i = 0; i < s->n_tensors && !st; i++) {
        src_tensor *t = &s->tensors[i];
        if (h->used[i] || !has_taps_last(s, t)) continue;
        const int64_t shape[3] = { t->shape[0], 1, t->shape[1] };
        turned = true;
        st = src_fill_plain(t, t->name, t->raw_dtype, 3, shape, t->raw.data, t->raw.bytes, err);
    }
    if (!st && turned && strcmp(s->config.row->arch, "FalconH1ForCausalLM") == 0)
        st = lq_fail(err, LQ_EUNSUPPORTED,
                     "FalconH1ForCausalLM: expected weights without its multipliers, which mlx-lm "
                     "has multiplied in");
    for (size_t i = 0; i < s->n_tensors && !st; i++) {
        const float offset = turned && !h->used[i] ? offset_of(s, &s->tensors[i]) : 0;
        if (offset > 0) st = make_norm(h, i, offset, err);
    }
    for (size_t i = 0; i < s->n_tensors && !st; i++) {
        if (h->used[i]) continue;
        s->tensors[i].name = own_name(h, s->tensors[i].name);
        h->no_memory = h->no_memory || !s->tensors[i].name;
    }
    return st;
}

/* Of a matrix by the architecture's own name; 0: it is none. */
static int64_t inputs_of(const hf_quant *h, const char *name)
{
    arch_slot at;
    int64_t N, K;
    if (!h->s->has_config || !arch_slot_of(&h->s->config, name, &at)) return 0;
    arch_role_shape(arch_at(&h->s->config, at.layer), at.role, &N, &K);
    return K;
}

static lq_status read_one(hf_quant *h, size_t i, lq_err *err)
{
    arch_role role;
    int64_t layer;
    mlx_stored s;
    const src_tensor *t = &h->s->tensors[i];
    const char *module = hf_module(h, i, ".weight");
    if (!module) return LQ_OK;
    if (is_experts(&role, &layer, h, t)) return make_experts(h, module, role, layer, err);
    const char *attention = hf_module(h, i, ".embed_q.weight");
    if (attention) return make_latents(h, attention, err);
    if (t->raw_dtype != LQ_U32 || lq_has_ending(module, ".unembed_out")) return LQ_OK;
    const char *name = own_name(h, t->name);
    if (!name) return lq_fail(err, LQ_ENOMEM, "out of memory");
    lq_status st = take_weight(&s, h, module, inputs_of(h, name), err);
    if (st) return st;
    return make_weight(h, &s, 1, false, name, -1, err);
}

/* A stack of one projection under the architecture's own name (Step). */
static bool is_own_stack(const src_source *s, const src_tensor *t)
{
    arch_slot at;
    return arch_slot_of(&s->config, t->name, &at) &&
           arch_name_of(&s->config, at.role)->flags & NAME_STACKED;
}

bool hf_is_mlx(src_source *s)
{
    hf_quant h = { .s = s };
    arch_role role;
    int64_t layer;
    for (size_t i = 0; i < s->n_tensors; i++) {
        const src_tensor *t = &s->tensors[i];
        if ((is_experts(&role, &layer, &h, t) && !is_own_stack(s, t)) || has_taps_last(s, t) ||
            (t->n_dims == 3 && lq_has_ending(t->name, ".embed_q.weight")))
            return true;
    }
    return false;
}

lq_status hf_mlx_read(hf_quant *h, lq_err *err)
{
    mlx_config all;
    lq_status st = mlx_config_of(&all, h->q, err);
    if (st) lq_wrap(err, st, "quantization: all");
    for (size_t i = 0; i < h->s->n_tensors && !st; i++)
        st = read_one(h, i, err);
    if (!st) st = make_corrections(h, err);
    return st ? st : fit_rest(h, err);
}
