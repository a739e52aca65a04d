/* convert/layouts/layout_awq.c - AutoAWQ's "gemm" layout (formats/source/hf_awq.c has the picture): 4 bits,
 * regular groups of one size, zero points as they are. A symmetric grid has zero points of 8. */
#include "convert/layouts/layout.h"
#include "formats/hf/awq_words.h"

static const char NAME[] = "awq";

static lq_status layout_awq_plan(conv_weight *w, const conv_plan *p, lq_err *err)
{
    const qt_scheme *s = &w->scheme;
    const int flags = arch_name_of(p->config, w->slot.role)->flags;
    lq_status st = layout_is_uint(s, NAME, err);
    if (!st) st = layout_no_act(s, NAME, err);
    if (!st) st = layout_half_scales(s, NAME, err);
    if (st) return st;
    if (s->bits != 4) return lq_fail(err, LQ_EUNSUPPORTED, "awq holds 4 bits, found %d", s->bits);
    if (p->group && s->group != p->group)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "awq holds one group size, here %lld as most weights have it, found %lld",
                       (long long)p->group, (long long)s->group);
    if (s->act_order)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "awq holds groups of adjoining inputs, found an order of its own (act-order "
                       "of gptq)");
    if (flags & NAME_TRANSPOSED)
        return lq_fail(err, LQ_EUNSUPPORTED, "awq holds linears, found a Conv1D of GPT-2");
    st = layout_multiples(w, 8, 8, err);
    if (st) return st;
    const int64_t ng = w->K / s->group;
    layout_part(w, ".qweight", LQ_I32, w->K, w->N / 8);
    layout_part(w, ".qzeros", LQ_I32, ng, w->N / 8);
    layout_part(w, ".scales", s->scale_dtype, ng, w->N);
    return LQ_OK;
}

static qt_scheme instead(const qt_scheme *from, int64_t K)
{
    qt_scheme s = layout_round_uint(from, K);
    s.bits = s.zbits = 4;
    s.zero = QT_ZERO_INT;
    return s;
}

static lq_status layout_awq_config(cJSON *q, conv_plan *p, lq_err *err)
{
    const int64_t all = layout_by_row(p) ? -1 : 0;
    int64_t group = all;
    for (size_t i = 0; i < p->n && !all; i++) {
        const conv_weight *w = &p->w[i];
        if (!w->quantized) continue;
        if (group && w->scheme.group != group)
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "awq holds one group size, found %lld in '%.100s' and %lld",
                           (long long)w->scheme.group, w->module, (long long)group);
        group = w->scheme.group;
    }
    cJSON_AddStringToObject(q, "quant_method", "awq");
    cJSON_AddNumberToObject(q, "bits", 4);
    cJSON_AddNumberToObject(q, "group_size", (double)group);
    cJSON_AddBoolToObject(q, "zero_point", true);
    cJSON_AddStringToObject(q, "version", "gemm");
    if (layout_has_head(p)) cJSON_AddBoolToObject(q, "lm_head", true);
    cJSON *kept = layout_kept(p);
    if (kept && kept->child) {
        cJSON_AddItemToObject(q, "modules_to_not_convert", kept);
    } else {
        cJSON_Delete(kept);
        cJSON_AddNullToObject(q, "modules_to_not_convert");
    }
    return LQ_OK;
}

static lq_status layout_awq_pack(uint8_t *const dst[CONV_PARTS], const conv_weight *w,
                                 const qt_tensor *q, const conv_plan *p, lq_err *err)
{
    const int64_t ng = q->K / q->scheme.group;
    (void)p;
    awq_pack(dst[0], q->plane[QT_CODES].data, qt_row_bytes(q->K, 4), q->K, q->N);
    for (int64_t n = 0; n < q->N; n++)
        for (int64_t g = 0; g < ng; g++) {
            const unsigned z = layout_zero(q, n, g);
            int i = 0;
            if (z > 15)
                return lq_fail(err, LQ_EUNSUPPORTED,
                               "awq holds zero points 0..15, found %u (output %lld, group %lld)", z,
                               (long long)n, (long long)g);
            while (AWQ_ORDER[i] != n % 8)
                i++;
            dst[1][4 * (g * (q->N / 8) + n / 8) + i / 2] |= (uint8_t)(z << (i & 1 ? 4 : 0));
        }
    layout_transpose(dst[2], q->plane[QT_SCALES].data, w->N, ng, 2);
    return LQ_OK;
}

const conv_layout conv_awq = {
    .name = "awq",
    .rank = 2,
    .one_group = true,
    .plan = layout_awq_plan,
    .instead = instead,
    .config = layout_awq_config,
    .pack = layout_awq_pack,
    .file = "quant_config.json",
};
