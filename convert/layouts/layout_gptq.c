/* convert/layouts/layout_gptq.c - AutoGPTQ's layout, versions 1 and 2 (formats/source/hf_gptq.c has the picture).
 *
 * A zero point is stored less one by version 1, and as it is by version 2. So version 1 has no
 * place for 0 and version 2 none for 2^bits. Version 1 with 3 bits is not written: GPTQModel up to
 * 5 misreads its zero points where they are right. */
#include "base/version.h"
#include "convert/layouts/layout.h"

#include <stdio.h>
#include <stdlib.h>

enum { V1 = 1, V2 = 2 };
static const char NAME[] = "gptq";

static lq_status layout_gptq_plan(conv_weight *w, const conv_plan *p, lq_err *err)
{
    const qt_scheme *s = &w->scheme;
    lq_status st = layout_is_uint(s, NAME, err);
    if (!st) st = layout_no_act(s, NAME, err);
    if (!st) st = layout_half_scales(s, NAME, err);
    if (!st) st = layout_multiples(w, 32, 32, err);
    if (st) return st;
    (void)p;
    const int64_t ng = w->K / s->group;
    layout_part(w, ".qweight", LQ_I32, w->K * s->bits / 32, w->N);
    layout_part(w, ".qzeros", LQ_I32, ng, w->N * s->bits / 32);
    layout_part(w, ".scales", s->scale_dtype, ng, w->N);
    layout_part(w, ".g_idx", LQ_I32, w->K, -1);
    return LQ_OK;
}

/* ---- quantization_config ---- */
static bool same_rule(const qt_scheme *a, const qt_scheme *b)
{
    return a->bits == b->bits && a->group == b->group && !a->zero == !b->zero;
}

/* The scheme that most weights have. */
static const conv_weight *commonest(const conv_plan *p)
{
    const conv_weight *best = NULL;
    size_t most = 0;
    for (size_t i = 0; i < p->n; i++) {
        size_t count = 0;
        if (!p->w[i].quantized || (best && same_rule(&p->w[i].scheme, &best->scheme))) continue;
        for (size_t k = i; k < p->n; k++)
            count += p->w[k].quantized && same_rule(&p->w[k].scheme, &p->w[i].scheme);
        if (count > most) {
            most = count;
            best = &p->w[i];
        }
    }
    return best;
}

static void put_rule(cJSON *j, const qt_scheme *s, int64_t group)
{
    cJSON_AddNumberToObject(j, "bits", s->bits);
    cJSON_AddNumberToObject(j, "group_size", (double)group);
    cJSON_AddBoolToObject(j, "sym", s->zero == QT_ZERO_NONE);
}

/* Under -1 a group is all inputs, however many. */
static bool follows(const conv_weight *w, const qt_scheme *common, int64_t group)
{
    qt_scheme s = *common;
    if (group < 0) s.group = w->K;
    return same_rule(&w->scheme, &s);
}

static void put_exceptions(cJSON *q, const conv_plan *p, const qt_scheme *common, int64_t group)
{
    cJSON *dynamic = cJSON_CreateObject();
    if (!dynamic) return; /* js_ran_out() tells who writes q */
    for (size_t i = 0; i < p->n; i++) {
        const conv_weight *w = &p->w[i];
        char pattern[600];
        if (layout_is_kept(w)) {
            layout_pattern(pattern, sizeof pattern, "-:", w->module);
            cJSON_AddObjectToObject(dynamic, pattern);
        } else if (w->quantized && !follows(w, common, group)) {
            layout_pattern(pattern, sizeof pattern, "+:", w->module);
            put_rule(cJSON_AddObjectToObject(dynamic, pattern), &w->scheme,
                     w->scheme.group == w->K ? -1 : w->scheme.group);
        }
    }
    if (dynamic->child)
        cJSON_AddItemToObject(q, "dynamic", dynamic);
    else
        cJSON_Delete(dynamic);
}

static lq_status layout_gptq_config(cJSON *q, conv_plan *p, lq_err *err)
{
    const qt_scheme *common = &commonest(p)->scheme;
    const int64_t group = layout_by_row(p) ? -1 : common->group;
    bool act_order = false, three = false, zeros = false;
    (void)err;
    for (size_t i = 0; i < p->n; i++) {
        act_order = act_order || (p->w[i].quantized && p->w[i].scheme.act_order);
        three = three || (p->w[i].quantized && p->w[i].scheme.bits == 3);
        zeros = zeros || (p->w[i].quantized && p->w[i].scheme.zero != QT_ZERO_NONE);
    }
    if (zeros)
        snprintf(
            p->note, sizeof p->note,
            "vLLM 0.32 refuses GPTQ with zero points: --to compressed-tensors is what it loads%s",
            p->variant == V1 && !three ? ". GPTQModel loads zero points of version 1 from its "
                                         "own files alone; those of gptq_v2 it loads"
                                       : "");
    if (p->variant == V1 && three) {
        p->variant = V2;
        snprintf(p->note, sizeof p->note,
                 "written as gptq_v2: GPTQModel up to 5 misreads the 3-bit zero points of version "
                 "1");
    }
    const char *format = p->variant == V1 ? "gptq" : "gptq_v2";
    cJSON_AddStringToObject(q, "quant_method", "gptq");
    put_rule(q, common, group);
    cJSON_AddBoolToObject(q, "desc_act", act_order);
    cJSON_AddBoolToObject(q, "lm_head", layout_has_head(p));
    cJSON_AddStringToObject(q, "checkpoint_format", format);
    cJSON_AddStringToObject(q, "format", format);
    cJSON_AddStringToObject(q, "pack_dtype", "int32");
    put_exceptions(q, p, common, group);
    cJSON *meta = cJSON_AddObjectToObject(q, "meta");
    cJSON *by = cJSON_AddArrayToObject(meta, "quantizer");
    cJSON_AddItemToArray(by, cJSON_CreateString("llmq:" LLMQ_VERSION));
    return LQ_OK;
}

/* ---- bytes ---- */
static lq_status pack_zeros(uint8_t *dst, const qt_tensor *q, int less, lq_err *err)
{
    const int bits = q->scheme.bits;
    const int64_t ng = q->K / q->scheme.group;
    const size_t row = (size_t)(q->N * bits / 8);
    uint8_t *codes = malloc((size_t)q->N);
    lq_status st =
        codes ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for %lld zero points", (long long)q->N);
    for (int64_t g = 0; g < ng && !st; g++) {
        for (int64_t n = 0; n < q->N && !st; n++) {
            const int z = (int)layout_zero(q, n, g) - less;
            if (z < 0 || z >> bits)
                st = lq_fail(err, LQ_EUNSUPPORTED,
                             "version %d holds zero points %d..%d, found %d (output %lld, group "
                             "%lld); the other version has a place for it",
                             less ? V1 : V2, less, (1 << bits) - 1 + less, z + less, (long long)n,
                             (long long)g);
            codes[n] = (uint8_t)z;
        }
        if (!st) qt_pack_row(dst + (size_t)g * row, codes, q->N, bits);
    }
    free(codes);
    return st;
}

static lq_status layout_gptq_pack(uint8_t *const dst[CONV_PARTS], const conv_weight *w,
                                  const qt_tensor *q, const conv_plan *p, lq_err *err)
{
    const qt_scheme *s = &q->scheme;
    const int64_t ng = q->K / s->group;
    layout_transpose(dst[0], q->plane[QT_CODES].data, w->N, q->K * s->bits / 32, 4);
    lq_status st = pack_zeros(dst[1], q, p->variant == V1, err);
    layout_transpose(dst[2], q->plane[QT_SCALES].data, w->N, ng, 2);
    for (int64_t k = 0; k < q->K; k++) {
        int32_t g = (int32_t)(k / s->group);
        if (s->act_order) memcpy(&g, (const uint8_t *)q->plane[QT_GIDX].data + 4 * k, 4);
        memcpy(dst[3] + 4 * k, &g, 4);
    }
    return st;
}

#define VERSION(text, number, place)                                                           \
    {                                                                                          \
        .name = (text), .variant = (number), .rank = (place), .plan = layout_gptq_plan,        \
        .zero_from_one = (number) == V1, .instead = layout_round_uint,                         \
        .config = layout_gptq_config, .pack = layout_gptq_pack, .file = "quantize_config.json" \
    }
const conv_layout conv_gptq = VERSION("gptq", V1, 3);
const conv_layout conv_gptq_v2 = VERSION("gptq_v2", V2, 4);
