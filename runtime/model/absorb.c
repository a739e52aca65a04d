/* runtime/model/absorb.c - see absorb.h. */
#include "runtime/model/absorb.h"

#include "formats/source/source.h"
#include "formats/tensor/tiles.h"

/* Codes become f32; dense weights keep their type. */
static qt_tensor dense(const void *data, lq_dtype d, int64_t N, int64_t K)
{
    qt_tensor t = { .scheme = { .kind = QT_DENSE, .dtype = d }, .N = N, .K = K };
    t.plane[QT_CODES] = (qt_span){ data, (size_t)(N * K) * lq_dtype_bytes(d) };
    return t;
}

size_t model_absorb_bytes(const arch_config *c)
{
    if (!c->w.mla || c->w.kv_one) return 0;
    const qt_tensor k = dense(NULL, LQ_F32, c->kv_lora, c->nope_dims),
                    v = dense(NULL, LQ_F32, c->v_dim, c->kv_lora);
    const size_t packed = mm_pack_bytes(&k) + mm_pack_bytes(&v) + 2 * (sizeof(mm_weight) + 64);
    return (size_t)c->heads * packed + 256;
}

void model_absorb_head(size_t *k, size_t *v, const arch_config *c, const qt_scheme *kv_b, bool half)
{
    const lq_dtype d = kv_b->kind == QT_DENSE ? kv_b->dtype : half ? LQ_F16 : LQ_F32;
    const qt_tensor keys = dense(NULL, d, c->kv_lora, c->nope_dims),
                    values = dense(NULL, d, c->v_dim, c->kv_lora);
    *k = mm_pack_bytes(&keys);
    *v = mm_pack_bytes(&values);
}

size_t model_absorb_scratch(const arch_config *c)
{
    if (!c->w.mla || c->w.kv_one) return 0;
    const size_t one = (size_t)(c->heads * (c->nope_dims + c->v_dim) * c->kv_lora) * sizeof(float);
    return 4 * one + 4096; /* portable, as floats, as halves, and one head's turned */
}

/* All of R_KV_B, in rows, as it is or, of codes, as floats. */
static lq_status rows_of(qt_tensor *out, const qt_tensor *tiles, bool half, lq_arena *tmp,
                         lq_err *err)
{
    qt_tensor plain = *tiles;
    void *w[QT_N_PLANES];
    lq_status s = LQ_OK;
    if (tiles->layout != QT_PORTABLE) {
        s = qt_alloc(&plain, w, &tiles->scheme, tiles->N, tiles->K, tmp, err);
        if (!s) s = tiles_unpack(w, tiles, err);
    }
    if (s) return s;
    *out = plain;
    if (plain.scheme.kind == QT_DENSE) return LQ_OK;
    float *f = lq_push(tmp, (size_t)(plain.N * plain.K) * sizeof *f);
    if (!f) return lq_fail(err, LQ_ENOMEM, "absorbed attention: out of memory");
    qt_dequant(f, &plain, 0, plain.N);
    *out = dense(f, LQ_F32, plain.N, plain.K);
    if (!half) return LQ_OK;
    uint16_t *h = lq_push(tmp, (size_t)(plain.N * plain.K) * sizeof *h);
    if (!h) return lq_fail(err, LQ_ENOMEM, "absorbed attention: out of memory");
    lq_from_f32(h, f, LQ_F16, (size_t)(plain.N * plain.K));
    *out = dense(h, LQ_F16, plain.N, plain.K);
    return LQ_OK;
}

lq_status model_absorb(model_absorbed *out, const arch_config *c, const model_linear *kv_b,
                       bool half, lq_arena *a, lq_arena *tmp, pool *p, lq_err *err)
{
    const int64_t H = c->heads, nope = c->nope_dims, V = c->v_dim, K = c->kv_lora;
    qt_tensor all;
    out->k = lq_push(a, (size_t)H * sizeof *out->k);
    out->v = lq_push(a, (size_t)H * sizeof *out->v);
    const size_t mark = lq_arena_mark(tmp);
    lq_status s = out->k && out->v ? rows_of(&all, &kv_b->w.t, half, tmp, err) : LQ_ENOMEM;
    const size_t size = s ? 0 : lq_dtype_bytes(all.scheme.dtype);
    uint8_t *turned = s ? NULL : lq_push(tmp, (size_t)(nope * K) * size);
    if (!s && !turned) s = LQ_ENOMEM;
    for (int64_t h = 0; h < H && !s; h++) {
        const uint8_t *at =
            (const uint8_t *)all.plane[QT_CODES].data + (size_t)(h * (nope + V) * K) * size;
        src_transpose(turned, at, K, nope, size);
        const qt_tensor k = dense(turned, all.scheme.dtype, K, nope),
                        v = dense(at + (size_t)(nope * K) * size, all.scheme.dtype, V, K);
        s = mm_pack(&out->k[h], &k, a, p, err);
        if (!s) s = mm_pack(&out->v[h], &v, a, p, err);
    }
    if (tmp != a) lq_arena_reset(tmp, mark);
    return s == LQ_ENOMEM ? lq_fail(err, s, "absorbed attention: out of memory") : s;
}
