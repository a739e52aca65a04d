/* formats/source/hf_mxfp4.c - quant_method "mxfp4": GPT-OSS. A stack of experts E,
 *
 *   NAME_blocks  U8 [E, N, K/32, 16]   32 codes in 16 bytes, the even input in the low nibble
 *   NAME_scales  U8 [E, N, K/32]       E8M0
 *
 * appears as NAME [E, N, K]. Both lie in the file as QT_E2M1 has them. */
#include "formats/source/hf_quant.h"

static lq_status hf_mxfp4_make_one(hf_quant *h, const char *module, lq_err *err)
{
    static const int bytes[] = { LQ_U8, LQ_F8_E8M0, -1 };
    const src_tensor *blocks, *scales;
    lq_status st = hf_take(h, module, "_blocks", true, bytes, -1, &blocks, err);
    if (!st) st = hf_take(h, module, "_scales", true, bytes, -1, &scales, err);
    if (st) return st;
    const int d = scales->n_dims;
    bool fits = d >= 2 && d <= 3 && blocks->n_dims == d + 1 && blocks->shape[d] == 16;
    for (int i = 0; i < d && fits; i++)
        fits = blocks->shape[i] == scales->shape[i];
    if (!fits)
        return lq_fail(err, LQ_ESHAPE,
                       "tensor '%.100s': expected blocks of 16 bytes, one for each of '%.100s'",
                       blocks->name, scales->name);
    qt_tensor q = { .scheme = { .kind = QT_E2M1, .group = 32, .scale_dtype = LQ_F8_E8M0 } };
    q.K = scales->shape[d - 1] * 32;
    q.N = (int64_t)scales->raw.bytes / scales->shape[d - 1];
    q.plane[QT_CODES] = blocks->raw;
    q.plane[QT_SCALES] = scales->raw;
    st = hf_make(h, module, "", &q, NULL, NULL, 0, err);
    if (st || d == 2) return st;
    src_tensor *t = &h->made[h->n_made - 1];
    t->n_dims = 3;
    t->shape[0] = scales->shape[0];
    t->shape[1] = scales->shape[1];
    t->shape[2] = q.K;
    return LQ_OK;
}

lq_status hf_mxfp4_read(hf_quant *h, lq_err *err)
{
    lq_status st = LQ_OK;
    for (size_t i = 0; i < h->s->n_tensors && !st; i++) {
        const char *module = hf_module(h, i, "_blocks");
        if (module) st = hf_mxfp4_make_one(h, module, err);
    }
    return st;
}
