/* runtime/model/model_builtin.c - Llama shapes with pseudo-random weights, for `bench model`.
 *
 * The planes are filled directly in the kernels' layout. What they hold is arbitrary but tame:
 * weights of about 1/sqrt(K), so that activations neither vanish nor overflow, which would change
 * the time of some instructions. */
#include "runtime/model/model.h"

#include "base/random.h"
#include "formats/tensor/tiles.h"

typedef struct {
    const char *title;
    int64_t hidden, layers, heads, kv_heads, ffn, vocab, max_pos;
    double theta;
    bool dense_head; /* bf16, whatever the layers are */
} shape;

const char *const model_shape_names[] = { "1.1b", "llama-3.1-8b", "tiny", NULL };
static const shape shapes[] = {
    { "1.1 B Llama", 2048, 22, 32, 4, 5632, 32000, 2048, 1e4, false },
    { "Llama-3.1-8B's shape", 4096, 32, 32, 8, 14336, 128256, 131072, 5e5, true },
    { "a tiny Llama", 256, 2, 4, 2, 512, 1000, 4096, 1e4, true },
};

const char *model_shape_title(int which) { return shapes[which].title; }

enum { FILL_BYTES = 1 << 16 }; /* one item of the pool */

/* splitmix64 (Steele, Lea, Flood 2014): the i-th number of a stream needs no other. */
static uint64_t mix(uint64_t i) { return lq_mix((i + 1) * LQ_GOLDEN); }

typedef struct {
    uint8_t *data;
    size_t bytes;
    uint64_t seed;
    int byte;    /* not 0: all bytes are this one */
    bool floats; /* of `dtype`, uniform in lo..hi; else any bytes */
    lq_dtype dtype;
    float lo, hi;
} fill;

static void fill_bytes(const fill *f, size_t from, size_t to)
{
    for (size_t i = from; i < to; i += 8) {
        uint64_t r = mix(f->seed + i);
        memcpy(f->data + i, &r, to - i < 8 ? to - i : 8);
    }
}

static void fill_floats(const fill *f, size_t from, size_t to)
{
    size_t size = lq_dtype_bytes(f->dtype);
    for (size_t i = from; i < to; i += size) {
        float v = f->lo + (f->hi - f->lo) * (float)(mix(f->seed + i) >> 40) * 0x1p-24f;
        lq_from_f32(f->data + i, &v, f->dtype, 1);
    }
}

static void fill_item(void *ctx, int64_t item, int thread)
{
    const fill *f = ctx;
    (void)thread;
    size_t from = (size_t)item * FILL_BYTES, to = from + FILL_BYTES;
    if (to > f->bytes) to = f->bytes;
    if (f->byte)
        memset(f->data + from, f->byte, to - from);
    else if (f->floats)
        fill_floats(f, from, to);
    else
        fill_bytes(f, from, to);
}

static lq_status fill_plane(qt_tensor *t, qt_plane plane, fill f, lq_arena *a, pool *p, lq_err *err)
{
    f.bytes = qt_plane_bytes(&t->scheme, t->layout, t->N, t->K, plane);
    if (!f.bytes) return LQ_OK;
    f.data = lq_push(a, f.bytes);
    if (!f.data) return lq_fail(err, LQ_ENOMEM, "built-in model: no memory for %zu bytes", f.bytes);
    pool_run(p, lq_ceil_div((int64_t)f.bytes, FILL_BYTES), fill_item, &f);
    t->plane[plane] = (qt_span){ f.data, f.bytes };
    return LQ_OK;
}

/* Planes that are read as numbers need sensible ones; codes may be anything. */
static lq_status fill_tensor(qt_tensor *t, uint64_t seed, lq_arena *a, pool *p, lq_err *err)
{
    const qt_scheme *s = &t->scheme;
    /* Standard deviation of evenly spread codes, in units of the scale. */
    float code = s->kind == QT_LUT4 ? 0.58f : 0.29f * ldexpf(1, s->kind == QT_I8 ? 8 : s->bits);
    float w = 1.0f / sqrtf((float)t->K), scale = s->div127 ? 127 * w / code : w / code;
    int half = s->kind == QT_I8 ? 128 : 1 << (s->bits ? s->bits - 1 : 0);
    fill codes = { .seed = seed }, zeros = { .byte = half };
    fill scales = { .seed = seed + 1, .floats = true, .dtype = LQ_F32 };
    fill map = { .seed = seed + 2, .floats = true, .dtype = LQ_F32, .lo = -1, .hi = 1 };
    if (s->kind == QT_DENSE)
        codes = (fill){ .seed = seed, .floats = true, .dtype = s->dtype, .lo = -w, .hi = w };
    if (s->kind == QT_UINT) scales.dtype = s->scale_dtype;
    scales.lo = 0.5f * scale;
    scales.hi = 1.5f * scale;
    if (s->zero == QT_ZERO_F16) {
        zeros = (fill){ .seed = seed + 3, .floats = true, .dtype = LQ_F16 };
        zeros.lo = zeros.hi = (float)half;
    }
    lq_status e = fill_plane(t, QT_CODES, codes, a, p, err);
    if (!e) e = fill_plane(t, QT_SCALES, scales, a, p, err);
    if (!e) e = fill_plane(t, QT_ZEROS, zeros, a, p, err);
    if (!e) e = fill_plane(t, QT_MAP, map, a, p, err);
    return e;
}

static lq_status make_linear(model_linear *l, const qt_scheme *s, int64_t N, int64_t K,
                             uint64_t seed, lq_arena *a, pool *p, lq_err *err)
{
    qt_tensor t = { .scheme = tiles_scheme(s, N, K), .layout = QT_TILE16, .N = N, .K = K };
    lq_status e = fill_tensor(&t, seed << 32, a, p, err);
    l->present = true;
    return e ? e : mm_pack(&l->w, &t, a, p, err);
}

static lq_status make_layer(model_layer *l, const shape *z, const qt_scheme *s, model_vector norm,
                            uint64_t seed, lq_arena *a, pool *p, lq_err *err)
{
    const int64_t H = z->hidden, KV = H / z->heads * z->kv_heads;
    const struct {
        model_linear *linear;
        int64_t N, K;
    } t[] = {
        { &l->lin[R_Q], H, H },         { &l->lin[R_K], KV, H },
        { &l->lin[R_V], KV, H },        { &l->lin[R_O], H, H },
        { &l->lin[R_GATE], z->ffn, H }, { &l->lin[R_UP], z->ffn, H },
        { &l->lin[R_DOWN], H, z->ffn },
    };
    l->vec[R_ATTN_NORM] = l->vec[R_MLP_NORM] = norm;
    lq_status e = LQ_OK;
    for (size_t i = 0; i < LQ_COUNT(t) && !e; i++)
        e = make_linear(t[i].linear, s, t[i].N, t[i].K, seed + i, a, p, err);
    return e;
}

static lq_status make_config(model *m, const shape *z, lq_err *err)
{
    const int64_t D = z->hidden / z->heads;
    arch_config *c = lq_push(&m->arena, sizeof *c);
    arch_layer *layers = lq_push(&m->arena, (size_t)z->layers * sizeof *layers);
    if (!c || !layers) return lq_fail(err, LQ_ENOMEM, "built-in model: out of memory");
    arch_config_init(c, arch_find("LlamaForCausalLM", NULL));
    c->vocab = z->vocab;
    c->hidden = c->embed_dim = z->hidden;
    c->layers = z->layers;
    c->heads = z->heads;
    c->kv_heads = z->kv_heads;
    c->head_dim = c->v_dim = c->rope_dims = D;
    c->ffn = z->ffn;
    c->max_pos = z->max_pos;
    c->norm_eps = 1e-5;
    c->act = ARCH_SILU;
    c->rope[0] =
        (arch_rope){ .kind = ROPE_PLAIN, .theta = z->theta, .factor = 1, .attention_factor = 1 };
    c->layer = layers;
    c->attn_scale = 1 / sqrt((double)D);
    c->dtype = LQ_BF16;
    m->cfg = c;
    return LQ_OK;
}

/* What stands before and behind the layers. */
static lq_status make_frame(model *m, const shape *z, const qt_scheme *s, pool *p, lq_err *err)
{
    const qt_scheme bf16 = { .dtype = LQ_BF16 };
    float *ones = lq_push(&m->arena, (size_t)z->hidden * sizeof *ones);
    lq_status e =
        ones ? model_cut_layers(m, err) : lq_fail(err, LQ_ENOMEM, "built-in model: out of memory");
    if (e) return e;
    for (int64_t i = 0; i < z->hidden; i++)
        ones[i] = 1;
    m->final_norm = (model_vector){ .w = ones, .eps = (float)m->cfg->norm_eps };
    m->embed = (qt_tensor){ .scheme = bf16, .N = z->vocab, .K = z->hidden };
    e = fill_tensor(&m->embed, 1, &m->arena, p, err);
    return e ? e
             : make_linear(&m->head, z->dense_head ? &bf16 : s, z->vocab, z->hidden, 2,
                           &m->layer_arenas[z->layers], p, err);
}

lq_status model_builtin(model *m, int which, const qt_scheme *s, pool *p, lq_err *err)
{
    const shape *z = &shapes[which];
    memset(m, 0, sizeof *m);
    if (s->kind == QT_I8_OUTLIER || s->kind == QT_E4M3 || s->kind == QT_E2M1 || s->act_order ||
        s->dbl || s->zero == QT_ZERO_BIAS)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "built-in model: expected a scheme without small floats, biases, outliers, "
                       "order of inputs or double quantization");
    lq_status e = qt_check(s, z->hidden, z->hidden, err);
    if (!e) e = qt_check(s, z->hidden, z->ffn, err);
    if (!e) e = make_config(m, z, err);
    if (!e) e = make_frame(m, z, s, p, err);
    for (int64_t i = 0; i < z->layers && !e; i++)
        e = make_layer(&m->layers[i], z, s, m->final_norm, 16 + 8 * (uint64_t)i,
                       &m->layer_arenas[i], p, err);
    if (e)
        model_free(m);
    else
        m->weight_bytes = model_count_bytes(m);
    return e;
}
