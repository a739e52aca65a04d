/* convert/layouts/layout_fp8.c - E4M3 codes with a scale for each block of rows and inputs, as DeepSeek-V3 and Qwen publish
 * them (quant_method "fp8"; formats/source/hf_fp8.c has the picture). Inputs are rounded to E4M3 by whoever reads
 * such a file, in groups as wide as the blocks. */
#include "convert/layouts/layout.h"

static const char NAME[] = "fp8";

static lq_status layout_fp8_plan(conv_weight *w, const conv_plan *p, lq_err *err)
{
    const qt_scheme *s = &w->scheme;
    char text[40];
    qt_scheme_text(text, s);
    if (p->config && arch_name_of(p->config, w->slot.role)->flags & NAME_TRANSPOSED)
        return lq_fail(err, LQ_EUNSUPPORTED, "fp8 holds linears, found a Conv1D of GPT-2");
    if (s->kind != QT_E4M3 || !s->rows || !s->group)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "fp8 holds 8-bit floats with a scale for each block of rows and inputs, "
                       "found %s",
                       text);
    if (s->act != QT_ACT_F8 || s->act_group != s->group || s->act_scale > 0)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "fp8 says that inputs are rounded to 8-bit floats in groups as wide as its "
                       "blocks, found %s",
                       text);
    layout_part(w, ".weight", LQ_F8_E4M3, w->N, w->K);
    layout_part(w, ".weight_scale_inv", LQ_F32, lq_ceil_div(w->N, s->rows),
                lq_ceil_div(w->K, s->group));
    return LQ_OK;
}

static qt_scheme instead(const qt_scheme *from, int64_t K)
{
    (void)from;
    (void)K;
    return (qt_scheme){
        .kind = QT_E4M3, .rows = 128, .group = 128, .act = QT_ACT_F8, .act_group = 128
    };
}

static lq_status layout_fp8_config(cJSON *q, conv_plan *p, lq_err *err)
{
    const conv_weight *first = NULL;
    char head[512];
    for (size_t i = 0; i < p->n; i++) {
        const conv_weight *w = &p->w[i];
        if (!w->quantized) continue;
        if (!first) first = w;
        if (w->scheme.rows != first->scheme.rows || w->scheme.group != first->scheme.group)
            return lq_fail(err, LQ_EUNSUPPORTED, "fp8 holds blocks of one size, found two");
    }
    const int block[2] = { (int)first->scheme.rows, (int)first->scheme.group };
    cJSON_AddStringToObject(q, "quant_method", NAME);
    cJSON_AddStringToObject(q, "fmt", "e4m3");
    cJSON_AddStringToObject(q, "activation_scheme", "dynamic");
    cJSON_AddItemToObject(q, "weight_block_size", cJSON_CreateIntArray(block, 2));
    cJSON *kept = layout_kept(p);
    if (layout_head_is_kept(p, head, sizeof head))
        cJSON_AddItemToArray(kept, cJSON_CreateString(head));
    cJSON_AddItemToObject(q, "modules_to_not_convert", kept);
    return LQ_OK;
}

static lq_status layout_fp8_pack(uint8_t *const dst[CONV_PARTS], const conv_weight *w,
                                 const qt_tensor *q, const conv_plan *p, lq_err *err)
{
    (void)w;
    (void)p;
    (void)err;
    memcpy(dst[0], q->plane[QT_CODES].data, q->plane[QT_CODES].bytes);
    memcpy(dst[1], q->plane[QT_SCALES].data, q->plane[QT_SCALES].bytes);
    return LQ_OK;
}

const conv_layout conv_fp8 = {
    .name = NAME,
    .plan = layout_fp8_plan,
    .instead = instead,
    .config = layout_fp8_config,
    .pack = layout_fp8_pack,
};
