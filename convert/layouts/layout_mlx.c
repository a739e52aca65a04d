/* convert/layouts/layout_mlx.c - mlx-lm's layout (formats/source/hf_mlx.c has the picture): w = scale * code + bias, mxfp4 and
 * mxfp8. A symmetric grid's bias is -2^(bits-1) scales, which any float type has; other zero points' product with the
 * scale needs f32. Linears, the embedding, routers and stacks of experts (mlx_places.c); mlx-lm turns what else needs it when it loads
 * (sanitize). */
#include "convert/layouts/layout.h"

#include <stdio.h>

static const char NAME[] = "mlx";
enum { OF_ROW = 32 }; /* fp8: inputs of a scale */

static bool has_zeros(const qt_scheme *s)
{
    return s->zero == QT_ZERO_INT || s->zero == QT_ZERO_F16;
}

/* Has mlx-lm a latent's two matrices (embed_q, unembed_out) for kv_b_proj? */
static bool splits_kv(const arch_config *c)
{
    static const char *const whole[] = { "DeepseekV2ForCausalLM", "MiniCPM3ForCausalLM",
                                         "YoutuForCausalLM" };
    for (size_t i = 0; i < LQ_COUNT(whole); i++)
        if (strcmp(whole[i], c->row->arch) == 0) return false;
    return true;
}

static bool renames_router(const arch_config *c)
{
    static const char *const those[] = { "BailingMoeForCausalLM", "BailingMoeV2ForCausalLM",
                                         "LagunaForCausalLM" };
    for (size_t i = 0; i < LQ_COUNT(those); i++)
        if (strcmp(those[i], c->row->arch) == 0) return true;
    return false;
}

/* Architectures whose folders mlx-lm rewrites when it loads them, in ways that codes do not survive. */
static lq_status is_loaded(const conv_weight *w, const conv_plan *p, lq_err *err)
{
    const arch_config *c = p->config;
    if (!c) return LQ_OK;
    if (w->slot.role == R_KV_B && w->linear && splits_kv(c))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "mlx-lm cuts kv_b_proj in two when it loads it and rounds both again: "
                       "quantize --skip kv_b_proj keeps it in 16 bits");
    if (w->slot.role == R_ROUTER && renames_router(c))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "mlx-lm has another name for the router of %s when it loads it, and for its "
                       "codes none",
                       c->row->arch);
    if (strcmp(c->row->arch, "FalconH1ForCausalLM") == 0)
        return lq_fail(
            err, LQ_EUNSUPPORTED,
            "mlx-lm multiplies Falcon-H1's weights when it loads them, which codes do not "
            "survive");
    return LQ_OK;
}

static lq_status plan_affine(conv_weight *w, lq_err *err)
{
    const qt_scheme *s = &w->scheme;
    char text[40];
    lq_status st = s->zero == QT_ZERO_BIAS ? LQ_OK : layout_half_scales(s, NAME, err);
    if (st) return st; /* f32 ones times code and zero point are rounded apart */
    qt_scheme_text(text, s);
    if (s->act_order)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "mlx holds groups of adjoining inputs, found an order of its own (act-order "
                       "of gptq)");
    if (s->group != 32 && s->group != 64 && s->group != 128)
        return lq_fail(err, LQ_EUNSUPPORTED, "mlx holds groups of 32, 64 or 128, found %s", text);
    const lq_dtype d = has_zeros(s) ? LQ_F32 : s->scale_dtype;
    layout_part(w, ".weight", LQ_U32, w->N, w->K * s->bits / 32);
    layout_part(w, ".scales", d, w->N, w->K / s->group);
    layout_part(w, ".biases", d, w->N, w->K / s->group);
    return LQ_OK;
}

static lq_status layout_mlx_plan(conv_weight *w, const conv_plan *p, lq_err *err)
{
    const qt_scheme *s = &w->scheme;
    char text[40];
    qt_scheme_text(text, s);
    lq_status st = is_loaded(w, p, err);
    if (!st) st = layout_no_act(s, NAME, err);
    if (st) return st;
    if (p->config && !w->stack && arch_name_of(p->config, w->slot.role)->flags & NAME_TRANSPOSED)
        return lq_fail(err, LQ_EUNSUPPORTED, "mlx holds linears, found a Conv1D of GPT-2");
    if (s->kind == QT_UINT) return plan_affine(w, err);
    if (s->kind == QT_E2M1 && s->scale_dtype == LQ_F8_E8M0) {
        layout_part(w, ".weight", LQ_U32, w->N, w->K / 8);
        layout_part(w, ".scales", LQ_U8, w->N, w->K / s->group);
        return LQ_OK;
    }
    if (s->kind == QT_E4M3 && s->rows == 1 && s->group == OF_ROW) {
        layout_part(w, ".weight", LQ_U32, w->N, w->K / 4);
        layout_part(w, ".scales", LQ_U8, w->N, w->K / s->group);
        return LQ_OK;
    }
    if (s->kind == QT_E2M1)
        return lq_fail(
            err, LQ_EUNSUPPORTED,
            "mlx's linears hold no scale of the whole tensor beside those of groups (mxfp4 "
            "has none), found %s",
            text);
    return lq_fail(
        err, LQ_EUNSUPPORTED,
        "mlx holds codes with a scale and a bias for each group of inputs, mxfp4 and mxfp8, "
        "found %s",
        text);
}

static qt_scheme instead(const qt_scheme *from, int64_t K)
{
    qt_scheme s = layout_round_uint(from, K);
    for (s.group = s.group > 128 ? 128 : s.group; s.group > 32 && K % s.group; s.group /= 2)
        ;
    return s;
}

/* ---- config ---- */
static const char *mode_of(const qt_scheme *s)
{
    return s->kind == QT_UINT ? "affine" : s->kind == QT_E2M1 ? "mxfp4" : "mxfp8";
}

static int bits_of(const qt_scheme *s)
{
    return s->kind == QT_UINT ? s->bits : s->kind == QT_E2M1 ? 4 : 8;
}

static bool same_words(const qt_scheme *a, const qt_scheme *b)
{
    return a->kind == b->kind && a->group == b->group && bits_of(a) == bits_of(b);
}

static void put_words(cJSON *q, const qt_scheme *s)
{
    cJSON_AddNumberToObject(q, "group_size", (double)s->group);
    cJSON_AddNumberToObject(q, "bits", bits_of(s));
    cJSON_AddStringToObject(q, "mode", mode_of(s));
}

/* Are scales f16 beside tensors of bf16? */
static bool mixes_halves(const conv_plan *p)
{
    bool f16 = false, bf16 = false;
    for (size_t i = 0; i < p->n; i++) {
        const conv_weight *w = &p->w[i];
        f16 = f16 || (w->quantized && w->parts[1].dtype == LQ_F16);
        bf16 = bf16 || (!w->quantized && w->t->plain && w->dtype == LQ_BF16);
    }
    return f16 && bf16;
}

/* What most weights have is said once, what others have by their names. */
static lq_status layout_mlx_config(cJSON *q, conv_plan *p, lq_err *err)
{
    const qt_scheme *most = NULL;
    size_t best = 0;
    bool wide = false;
    (void)err;
    for (size_t i = 0; i < p->n; i++) {
        size_t n = 0;
        if (!p->w[i].quantized) continue;
        for (size_t k = 0; k < p->n; k++)
            n += p->w[k].quantized && same_words(&p->w[i].scheme, &p->w[k].scheme);
        if (n > best) most = &p->w[i].scheme;
        if (n > best) best = n;
        wide = wide || p->w[i].parts[1].dtype == LQ_F32;
    }
    put_words(q, most);
    for (size_t i = 0; i < p->n; i++) {
        const conv_weight *w = &p->w[i];
        if (!w->quantized || same_words(&w->scheme, most) || (w->stack && w->of != i)) continue;
        put_words(cJSON_AddObjectToObject(q, w->module), &w->scheme);
        if (w->up) put_words(cJSON_AddObjectToObject(q, w->up), &w->scheme);
    }
    if (wide)
        snprintf(
            p->note, sizeof p->note,
            "mlx: scales and biases are f32 where zero points are stored, as their product has "
            "no 16-bit type: MLX computes in f32 then; --sym keeps 16 bits");
    else if (mixes_halves(p))
        snprintf(
            p->note, sizeof p->note,
            "mlx: scales are f16 and other tensors bf16: MLX computes in f32 then; --dtype f16 "
            "writes all in f16");
    return LQ_OK;
}

/* ---- bytes ---- */
static lq_status put_biases(uint8_t *scales, uint8_t *biases, lq_dtype d, const qt_tensor *q,
                            lq_err *err)
{
    const qt_scheme *s = &q->scheme;
    const int64_t ng = q->K / s->group;
    const float top = (float)((1u << s->bits) - 1);
    const size_t from = lq_dtype_bytes(s->scale_dtype), to = lq_dtype_bytes(d);
    for (int64_t i = 0; i < q->N * ng; i++) {
        float scale, zero = 0, bias, again;
        lq_to_f32(&scale, (const uint8_t *)q->plane[QT_SCALES].data + (size_t)i * from,
                  s->scale_dtype, 1);
        if (s->zero == QT_ZERO_F16)
            lq_to_f32(&zero, (const uint8_t *)q->plane[QT_ZEROS].data + 2 * i, LQ_F16, 1);
        else
            zero = (float)layout_zero(q, i / ng, i % ng);
        if ((double)(top - zero) < (double)top - (double)zero ||
            (double)(top - zero) > (double)top - (double)zero)
            return lq_fail(
                err, LQ_EUNSUPPORTED,
                "mlx holds scale x zero point apart from scale x code, which zero point %g "
                "does not allow (output %lld, group %lld)",
                (double)zero, (long long)(i / ng), (long long)(i % ng));
        bias = -scale * zero;
        lq_from_f32(scales + (size_t)i * to, &scale, d, 1);
        lq_from_f32(biases + (size_t)i * to, &bias, d, 1);
        lq_to_f32(&again, biases + (size_t)i * to, d, 1);
        if (memcmp(&again, &bias, sizeof bias) != 0)
            return lq_fail(
                err, LQ_EUNSUPPORTED,
                "mlx holds biases in the type of the scales, %s, which has no %g (output "
                "%lld, group %lld)",
                lq_dtype_text(d), (double)bias, (long long)(i / ng), (long long)(i % ng));
    }
    return LQ_OK;
}

/* E8M0 of powers of two. */
static lq_status put_exponents(uint8_t *to, const qt_tensor *q, lq_err *err)
{
    const int64_t ng = q->K / OF_ROW;
    const float *scales = q->plane[QT_SCALES].data;
    for (int64_t i = 0; i < q->N * ng; i++) {
        const uint32_t bits = lq_f32_bits(scales[i]);
        to[i] = (uint8_t)(bits >> 23);
        if ((bits & 0x7fffff) || !to[i] || bits >> 23 > 254)
            return lq_fail(
                err, LQ_EUNSUPPORTED,
                "mlx's mxfp8 holds scales that are powers of two, found %g (output %lld, "
                "group %lld)",
                (double)scales[i], (long long)(i / ng), (long long)(i % ng));
    }
    return LQ_OK;
}

static lq_status layout_mlx_pack(uint8_t *const dst[CONV_PARTS], const conv_weight *w,
                                 const qt_tensor *q, const conv_plan *p, lq_err *err)
{
    const qt_span *scales = &q->plane[QT_SCALES], *zeros = &q->plane[QT_ZEROS];
    (void)p;
    memcpy(dst[0], q->plane[QT_CODES].data, q->plane[QT_CODES].bytes);
    if (q->scheme.kind == QT_E4M3) return put_exponents(dst[1], q, err);
    if (q->scheme.kind == QT_UINT && q->scheme.zero != QT_ZERO_BIAS)
        return put_biases(dst[1], dst[2], w->parts[1].dtype, q, err);
    memcpy(dst[1], scales->data, scales->bytes);
    if (zeros->bytes) memcpy(dst[2], zeros->data, zeros->bytes);
    return LQ_OK;
}

const conv_layout conv_mlx = {
    .name = NAME,
    .matrices = true,
    .plan = layout_mlx_plan,
    .place = mlx_place,
    .instead = instead,
    .config = layout_mlx_config,
    .pack = layout_mlx_pack,
    .key = "quantization",
};
