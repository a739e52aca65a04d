/* convert/layouts/layout_bnb.c - bitsandbytes as transformers saves it (formats/source/hf_bnb.c has the picture):
 * nf4 and fp4 in blocks, plain or double-quantized, and int8 by rows (LLM.int8). */
#include "convert/layouts/layout.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char NAME[] = "bnb";
static const char *const dtype_names[] = {
    [LQ_F32] = "float32", [LQ_F16] = "float16", [LQ_BF16] = "bfloat16"
};

/* The text of quant_state, in the spelling of Python's json. Returns its length. */
static int state_text(char out[512], const conv_weight *w, const conv_plan *p)
{
    const qt_scheme *s = &w->scheme;
    char nested[128] = "", offset[40] = "";
    for (int digits = 15; digits < 18; digits++) { /* the fewest that read back the same */
        snprintf(offset, sizeof offset, "%.*g", digits, (double)s->offset);
        if (strtod(offset, NULL) == (double)s->offset) break; // NOLINT: exact on purpose
    }
    if (!strpbrk(offset, ".e")) strcat(offset, ".0");
    if (s->dbl)
        snprintf(
            nested, sizeof nested,
            ", \"nested_blocksize\": 256, \"nested_dtype\": \"float32\", \"nested_offset\": %s",
            offset);
    return snprintf(out, 512,
                    "{\"quant_type\": \"%s\", \"blocksize\": %lld, \"dtype\": \"%s\", \"shape\": "
                    "[%lld, %lld]%s}",
                    s->fp4 ? "fp4" : "nf4", (long long)s->group, dtype_names[p->config->dtype],
                    (long long)w->N, (long long)w->K, nested);
}

static lq_status layout_bnb_plan(conv_weight *w, const conv_plan *p, lq_err *err)
{
    const qt_scheme *s = &w->scheme;
    char text[512];
    lq_status st = layout_no_act(s, NAME, err);
    if (st) return st;
    if (s->kind == QT_I8 && !s->zero) {
        layout_part(w, ".weight", LQ_I8, w->N, w->K);
        layout_part(w, ".SCB", LQ_F32, w->N, -1);
        layout_part(w, ".weight_format", LQ_U8, -1, -1);
        return LQ_OK;
    }
    qt_scheme_text(text, s);
    if (s->kind != QT_LUT4)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "bitsandbytes holds nf4, fp4 and symmetric int8 by rows, found %s", text);
    if (s->group < 32 || s->group > 4096 || (s->group & (s->group - 1)))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "bitsandbytes holds blocks of 32, 64, ... 4096, found %lld",
                       (long long)s->group);
    const int64_t blocks = lq_ceil_div(w->N * w->K, s->group);
    layout_part(w, ".weight", LQ_U8, (w->N * w->K + 1) / 2, 1);
    layout_part(w, ".weight.absmax", s->dbl ? LQ_U8 : LQ_F32, blocks, -1);
    layout_part(w, ".weight.quant_map", LQ_F32, 16, -1);
    layout_part(w,
                s->fp4 ? ".weight.quant_state.bitsandbytes__fp4"
                       : ".weight.quant_state.bitsandbytes__nf4",
                LQ_U8, state_text(text, w, p), -1);
    if (s->dbl) {
        layout_part(w, ".weight.nested_absmax", LQ_F32, lq_ceil_div(blocks, 256), -1);
        layout_part(w, ".weight.nested_quant_map", LQ_F32, 256, -1);
    }
    return LQ_OK;
}

static qt_scheme instead(const qt_scheme *from, int64_t K)
{
    if (layout_round_uint(from, K).bits == 8) return (qt_scheme){ .kind = QT_I8, .div127 = true };
    return (qt_scheme){ .kind = QT_LUT4, .group = 64 };
}

static lq_status layout_bnb_config(cJSON *q, conv_plan *p, lq_err *err)
{
    const qt_scheme *first = NULL;
    for (size_t i = 0; i < p->n; i++) {
        const qt_scheme *s = &p->w[i].scheme;
        char a[40], b[40];
        if (!p->w[i].quantized) continue;
        first = first ? first : s;
        if (s->kind == first->kind && s->fp4 == first->fp4) continue;
        qt_scheme_text(a, first);
        qt_scheme_text(b, s);
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "bitsandbytes holds one kind of weights in a model, found %s in '%.100s' "
                       "and %s",
                       b, p->w[i].module, a);
    }
    const bool four = first->kind == QT_LUT4;
    cJSON_AddStringToObject(q, "quant_method", "bitsandbytes");
    cJSON_AddBoolToObject(q, "load_in_4bit", four);
    cJSON_AddBoolToObject(q, "load_in_8bit", !four);
    cJSON_AddBoolToObject(q, "_load_in_4bit", four);
    cJSON_AddBoolToObject(q, "_load_in_8bit", !four);
    cJSON_AddStringToObject(q, "bnb_4bit_quant_type", !four ? "fp4" : first->fp4 ? "fp4" : "nf4");
    cJSON_AddBoolToObject(q, "bnb_4bit_use_double_quant", four && first->dbl);
    cJSON_AddStringToObject(q, "bnb_4bit_compute_dtype", dtype_names[p->config->dtype]);
    cJSON_AddStringToObject(q, "bnb_4bit_quant_storage", "uint8");
    cJSON_AddRawToObject(q, "llm_int8_threshold", "6.0"); /* Python: a float, not 6 */
    cJSON *kept = layout_kept(p);                         /* null: the head alone */
    const bool head = layout_has_head(p), list = head || (kept && kept->child);
    if (list && !head) cJSON_AddItemToArray(kept, cJSON_CreateString("lm_head"));
    if (!list) {
        cJSON_Delete(kept);
        kept = cJSON_CreateNull();
    }
    cJSON_AddItemToObject(q, "llm_int8_skip_modules", kept);
    cJSON_AddBoolToObject(q, "llm_int8_enable_fp32_cpu_offload", false);
    cJSON_AddBoolToObject(q, "llm_int8_has_fp16_weight", false);
    return LQ_OK;
}

/* The absmax whose 127th part is `scale`. */
static bool absmax_of(float *absmax, float scale)
{
    float a = scale * 127.0f;
    const float tries[] = { a, nextafterf(a, 0), nextafterf(a, INFINITY) };
    for (size_t i = 0; i < LQ_COUNT(tries); i++) {
        const float back = tries[i] / 127.0f;
        *absmax = tries[i];
        if (memcmp(&back, &scale, sizeof back) == 0) return true;
    }
    return false;
}

static lq_status pack_rows(uint8_t *const dst[CONV_PARTS], const qt_tensor *q, lq_err *err)
{
    memcpy(dst[0], q->plane[QT_CODES].data, q->plane[QT_CODES].bytes);
    for (int64_t n = 0; n < q->N; n++) {
        float v;
        memcpy(&v, (const uint8_t *)q->plane[QT_SCALES].data + 4 * n, 4);
        if (!q->scheme.div127 && !absmax_of(&v, v))
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "bitsandbytes holds 127 times a scale, which of output %lld is no f32",
                           (long long)n);
        memcpy(dst[1] + 4 * n, &v, 4);
    }
    return LQ_OK;
}

static lq_status layout_bnb_pack(uint8_t *const dst[CONV_PARTS], const conv_weight *w,
                                 const qt_tensor *q, const conv_plan *p, lq_err *err)
{
    static const qt_plane planes[CONV_PARTS] = { QT_CODES, QT_SCALES,  QT_MAP,
                                                 QT_CODES, QT_SCALES2, QT_MAP2 };
    char text[512];
    if (w->scheme.kind == QT_I8) return pack_rows(dst, q, err);
    for (int i = 0; i < w->n_parts; i++)
        if (i != 3) memcpy(dst[i], q->plane[planes[i]].data, q->plane[planes[i]].bytes);
    memcpy(dst[3], text, (size_t)state_text(text, w, p));
    return LQ_OK;
}

const conv_layout conv_bnb = {
    .name = "bnb",
    .rank = 5,
    .one_width = true,
    .plan = layout_bnb_plan,
    .instead = instead,
    .config = layout_bnb_config,
    .pack = layout_bnb_pack,
};
