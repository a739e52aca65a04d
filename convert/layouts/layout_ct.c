/* convert/layouts/layout_ct.c - compressed-tensors, as llm-compressor names them (formats/source/hf_ct.c has the
 * picture).
 *
 *   u2..u8, int8 by row     pack-quantized: one stream of codes per output, scales as they are
 *   int8 by row, inputs too int-quantized
 *   e4m3                    float-quantized, by tensor, output or block
 *   nvfp4, mxfp4            nvfp4-, mxfp4-pack-quantized */
#include "convert/layouts/layout.h"
#include "convert/load.h"

#include <stdio.h>

static const char NAME[] = "compressed-tensors";
#define VERSION "0.20.0" /* of the library that defines what is written here */

typedef enum { PACKED, BYTES_INT, BYTES_FLOAT, NVFP4, MXFP4 } ct_format;
static const char *const formats[] = { "pack-quantized", "int-quantized", "float-quantized",
                                       "nvfp4-pack-quantized", "mxfp4-pack-quantized" };

static ct_format format_of(const qt_scheme *s)
{
    if (s->kind == QT_E4M3) return BYTES_FLOAT;
    if (s->kind == QT_E2M1) return s->scale_dtype == LQ_F8_E8M0 ? MXFP4 : NVFP4;
    return s->kind == QT_I8 && s->act ? BYTES_INT : PACKED;
}

/* ---- what it holds ---- */
/* Scale i as the layout means it, and the type it has here. */
static float scale_at(const qt_tensor *q, size_t i, lq_dtype *d)
{
    float v;
    *d = q->scheme.kind == QT_UINT ? q->scheme.scale_dtype : LQ_F32;
    lq_to_f32(&v, (const uint8_t *)q->plane[QT_SCALES].data + i * lq_dtype_bytes(*d), *d, 1);
    if (q->scheme.kind == QT_I8 && q->scheme.div127) v /= 127.0f; /* as qt_dequant does */
    return v;
}

static bool fits(float v, lq_dtype d)
{
    uint8_t bytes[4];
    float back;
    lq_from_f32(bytes, &v, d, 1);
    lq_to_f32(&back, bytes, d, 1);
    return memcmp(&v, &back, sizeof v) == 0;
}

/* Scales that are f32 here take the model's type where each has a place in it, as libraries store
 * them; grids of codes keep the type they have. */
static lq_status scale_dtype(lq_dtype *d, const conv_weight *w, const conv_plan *p, lq_err *err)
{
    lq_arena a = { 0 };
    qt_tensor q;
    *d = w->scheme.scale_dtype;
    if (w->scheme.kind == QT_UINT) return LQ_OK;
    if (w->t->t.scheme.kind == QT_DENSE) { /* yet to be made */
        *d = w->scheme.kind == QT_E4M3 && w->t->t.scheme.dtype == LQ_BF16 ? LQ_BF16 : LQ_F32;
        return LQ_OK;
    }
    lq_status st = conv_load(&q, p->src, w->t, NULL, &a, err);
    *d = p->config->dtype;
    for (size_t i = 0; !st && *d != LQ_F32 && i < q.plane[QT_SCALES].bytes / 4; i++) {
        lq_dtype from;
        if (!fits(scale_at(&q, i, &from), *d)) *d = LQ_F32;
    }
    conv_unload(p->src, w->t, &a);
    return st;
}

static lq_status plan_packed(conv_weight *w, lq_dtype scales, lq_err *err)
{
    const qt_scheme *s = &w->scheme;
    const bool rows = s->kind == QT_I8; /* by row, codes of a byte */
    const int bits = rows ? 8 : s->bits;
    lq_status st = rows ? LQ_OK : layout_is_uint(s, NAME, err);
    if (!st) st = layout_no_act(s, NAME, err);
    if (!st && s->act_order)
        st = lq_fail(err, LQ_EUNSUPPORTED,
                     "compressed-tensors holds groups of adjoining inputs since its version 0.19, "
                     "found an order of its own (act-order of gptq)");
    if (st) return st;
    const int64_t ng = rows ? 1 : w->K / s->group;
    layout_part(w, ".weight_packed", LQ_I32, w->N, lq_ceil_div(w->K * bits, 32));
    layout_part(w, ".weight_scale", scales, w->N, ng);
    layout_part(w, ".weight_shape", LQ_I64, 2, -1);
    if (s->zero) layout_part(w, ".weight_zero_point", LQ_I32, lq_ceil_div(w->N * bits, 32), ng);
    return LQ_OK;
}

static lq_status plan_bytes(conv_weight *w, lq_dtype scales, lq_err *err)
{
    const qt_scheme *s = &w->scheme;
    const bool is_float = s->kind == QT_E4M3, block = is_float && s->group;
    if (block && s->rows < 1)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "compressed-tensors holds blocks of rows and inputs, "
                       "found groups that all rows share");
    if (is_float && !block && s->rows > 1)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "compressed-tensors holds a scale for each row or for "
                       "all, found one for %lld of them",
                       (long long)s->rows);
    if ((s->act == QT_ACT_F8) != is_float && s->act)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "compressed-tensors holds inputs of the weights' kind");
    layout_part(w, ".weight", is_float ? LQ_F8_E4M3 : LQ_I8, w->N, w->K);
    if (block)
        layout_part(w, ".weight_scale", scales, lq_ceil_div(w->N, s->rows),
                    lq_ceil_div(w->K, s->group));
    else if (is_float && !s->rows)
        layout_part(w, ".weight_scale", scales, 1, -1);
    else
        layout_part(w, ".weight_scale", scales, w->N, 1);
    if (s->zero) layout_part(w, ".weight_zero_point", LQ_I8, w->N, 1);
    if (s->act_scale > 0) layout_part(w, ".input_scale", LQ_F32, 1, -1);
    return LQ_OK;
}

static lq_status plan_fp4(conv_weight *w, lq_err *err)
{
    const qt_scheme *s = &w->scheme;
    const bool nv = s->scale_dtype == LQ_F8_E4M3;
    lq_status st = layout_no_act(s, NAME, err);
    if (!st && nv && (!s->recip || s->rows))
        st = lq_fail(err, LQ_EUNSUPPORTED,
                     "compressed-tensors holds one scale of a weight that others are divided by");
    if (st) return st;
    layout_part(w, ".weight_packed", LQ_U8, w->N, w->K / 2);
    layout_part(w, ".weight_scale", nv ? LQ_F8_E4M3 : LQ_U8, w->N, w->K / s->group);
    if (nv) layout_part(w, ".weight_global_scale", LQ_F32, 1, -1);
    return LQ_OK;
}

static lq_status layout_ct_plan(conv_weight *w, const conv_plan *p, lq_err *err)
{
    if (p->config && arch_name_of(p->config, w->slot.role)->flags & NAME_TRANSPOSED)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "compressed-tensors holds linears, found a Conv1D of GPT-2");
    if (w->scheme.kind == QT_E2M1) return plan_fp4(w, err);
    const ct_format f = format_of(&w->scheme);
    if (w->scheme.kind != QT_UINT && w->scheme.kind != QT_I8 && w->scheme.kind != QT_E4M3)
        return layout_is_uint(&w->scheme, NAME, err);
    lq_dtype scales;
    lq_status st = scale_dtype(&scales, w, p, err);
    if (st) return st;
    return f == PACKED ? plan_packed(w, scales, err) : plan_bytes(w, scales, err);
}

static qt_scheme instead(const qt_scheme *from, int64_t K)
{
    qt_scheme s = layout_round_uint(from, K);
    if (s.bits == 8) s.group = K; /* a scale for each output is enough, and has faster kernels */
    return s;
}

/* ---- quantization_config ---- */
static cJSON *args(const conv_weight *w)
{
    const qt_scheme *s = &w->scheme;
    const bool is_float = s->kind == QT_E4M3 || s->kind == QT_E2M1;
    const bool block = s->kind == QT_E4M3 && s->group;
    const bool group = s->kind == QT_UINT ? s->group != w->K : s->kind == QT_E2M1;
    const int bits = s->kind == QT_UINT ? s->bits : s->kind == QT_E2M1 ? 4 : 8;
    const char *by = s->kind == QT_E2M1 && s->recip      ? "tensor_group"
                     : group                             ? "group"
                     : block                             ? "block"
                     : s->kind == QT_E4M3 && s->rows < 1 ? "tensor"
                                                         : "channel";
    cJSON *a = cJSON_CreateObject();
    cJSON_AddNumberToObject(a, "num_bits", bits);
    cJSON_AddStringToObject(a, "type", is_float ? "float" : "int");
    cJSON_AddBoolToObject(a, "symmetric", s->zero == QT_ZERO_NONE);
    cJSON_AddStringToObject(a, "strategy", by);
    if (group) cJSON_AddNumberToObject(a, "group_size", (double)s->group);
    cJSON_AddBoolToObject(a, "dynamic", false);
    if (block) {
        const int both[2] = { (int)s->rows, (int)s->group };
        cJSON_AddItemToObject(a, "block_structure", cJSON_CreateIntArray(both, 2));
    }
    if (s->kind == QT_E2M1)
        cJSON_AddStringToObject(a, "scale_dtype", s->recip ? "torch.float8_e4m3fn" : "torch.uint8");
    return a;
}

static cJSON *input_args(const qt_scheme *s)
{
    if (!s->act) return cJSON_CreateNull();
    cJSON *a = cJSON_CreateObject();
    const bool fixed = s->act_scale > 0;
    cJSON_AddNumberToObject(a, "num_bits", 8);
    cJSON_AddStringToObject(a, "type", s->act == QT_ACT_F8 ? "float" : "int");
    cJSON_AddBoolToObject(a, "symmetric", true);
    cJSON_AddStringToObject(a, "strategy", fixed ? "tensor" : s->act_group ? "group" : "token");
    if (!fixed && s->act_group) cJSON_AddNumberToObject(a, "group_size", (double)s->act_group);
    cJSON_AddBoolToObject(a, "dynamic", !fixed);
    return a;
}

/* One config_group for all weights of a kind. A scale for each row is one, whatever the rows'
 * length: another weight may have groups as long. */
static bool same_group(const conv_weight *a, const conv_weight *b)
{
    qt_scheme x = a->scheme, y = b->scheme;
    const bool row_x = x.kind == QT_UINT && x.group == a->K;
    const bool row_y = y.kind == QT_UINT && y.group == b->K;
    if (row_x && row_y) x.group = y.group;
    return row_x == row_y && format_of(&x) == format_of(&y) && x.kind == y.kind &&
           x.bits == y.bits && x.group == y.group && x.rows == y.rows && x.zero == y.zero &&
           x.act == y.act && x.act_group == y.act_group && (x.act_scale > 0) == (y.act_scale > 0);
}

/* The part of a model that a module is in: "vision_tower", "layers". */
static int part_of(const char **part, const char *module)
{
    *part = strncmp(module, "model.", 6) == 0 ? module + 6 : module;
    const char *dot = strchr(*part, '.');
    return dot ? (int)(dot - *part) : 120;
}

/* Has it weights that are quantized? */
static bool has_codes(const conv_plan *p, const char *part, int n)
{
    for (size_t i = 0; i < p->n; i++) {
        const char *of;
        if (p->w[i].quantized && part_of(&of, p->w[i].module) == n &&
            strncmp(of, part, (size_t)n) == 0)
            return true;
    }
    return false;
}

/* "re:.*vision_tower\\..*", once for each part that is carried along: modules in memory have other prefixes
 * than stored names, in transformers as in vLLM. An MTP head's "layers" are the model's, too: its modules are
 * named one by one (layout_kept). */
static void ignore_parts(cJSON *list, const conv_plan *p)
{
    for (size_t i = 0; i < p->n; i++) {
        char text[160];
        const char *part;
        bool told = false;
        if (!p->w[i].foreign || !p->w[i].module) continue;
        const int n = part_of(&part, p->w[i].module);
        snprintf(text, sizeof text, "re:.*%.*s\\..*", n, part);
        for (const cJSON *e = list->child; e && !told; e = e->next)
            told = strcmp(e->valuestring, text) == 0;
        if (!told && !has_codes(p, part, n)) cJSON_AddItemToArray(list, cJSON_CreateString(text));
    }
}

/* The head by its name where it is not quantized: loaders skip nothing by themselves. */
static cJSON *ignored(const conv_plan *p)
{
    cJSON *list = layout_kept(p);
    char head[512];
    ignore_parts(list, p);
    if (layout_head_is_kept(p, head, sizeof head))
        cJSON_AddItemToArray(list, cJSON_CreateString("lm_head"));
    return list;
}

static lq_status layout_ct_config(cJSON *q, conv_plan *p, lq_err *err)
{
    const conv_weight *first[16];
    size_t n = 0;
    bool mixed = false;
    for (size_t i = 0; i < p->n; i++) {
        size_t g = 0;
        if (!p->w[i].quantized) continue;
        while (g < n && !same_group(&p->w[i], first[g]))
            g++;
        if (g == LQ_COUNT(first))
            return lq_fail(err, LQ_EUNSUPPORTED, "more than %zu schemes", LQ_COUNT(first));
        if (g == n) first[n++] = &p->w[i];
        mixed = mixed || format_of(&p->w[i].scheme) != format_of(&first[0]->scheme);
    }
    cJSON_AddStringToObject(q, "quant_method", NAME);
    cJSON_AddStringToObject(q, "format",
                            mixed ? "mixed-precision" : formats[format_of(&first[0]->scheme)]);
    cJSON_AddStringToObject(q, "quantization_status", "compressed");
    cJSON_AddNullToObject(q, "global_compression_ratio");
    cJSON_AddNullToObject(q, "kv_cache_scheme");
    cJSON_AddItemToObject(q, "ignore", ignored(p));
    cJSON_AddStringToObject(q, "version", VERSION);
    cJSON *groups = cJSON_AddObjectToObject(q, "config_groups");
    for (size_t g = 0; g < n; g++) {
        char name[32];
        snprintf(name, sizeof name, "group_%zu", g);
        cJSON *group = cJSON_AddObjectToObject(groups, name);
        cJSON *targets = cJSON_AddArrayToObject(group, "targets");
        if (n == 1) cJSON_AddItemToArray(targets, cJSON_CreateString("Linear"));
        for (size_t i = 0; i < p->n && n > 1; i++)
            if (p->w[i].quantized && same_group(&p->w[i], first[g]))
                cJSON_AddItemToArray(targets, cJSON_CreateString(p->w[i].module));
        cJSON_AddStringToObject(group, "format", formats[format_of(&first[g]->scheme)]);
        cJSON_AddItemToObject(group, "weights", args(first[g]));
        cJSON_AddItemToObject(group, "input_activations", input_args(&first[g]->scheme));
        cJSON_AddNullToObject(group, "output_activations");
    }
    return LQ_OK;
}

/* ---- bytes ---- */
static void pack_scales(uint8_t *dst, const conv_weight *w, const qt_tensor *q)
{
    lq_dtype from;
    const lq_dtype d = w->parts[1].dtype;
    const size_t e = lq_dtype_bytes(d);
    const size_t n =
        w->parts[1].n_dims == 1 ? 1 : (size_t)(w->parts[1].shape[0] * w->parts[1].shape[1]);
    for (size_t i = 0; i < n; i++) {
        const float v = scale_at(q, i, &from);
        lq_from_f32(dst + i * e, &v, d, 1);
    }
}

/* Zero points packed along the outputs: word (c, g) lies at c * ng + g. */
static lq_status pack_zeros(uint8_t *dst, const qt_tensor *q, int bits, int64_t ng, lq_err *err)
{
    const bool rows = q->scheme.kind == QT_I8;
    for (int64_t g = 0; g < ng; g++)
        for (int64_t n = 0; n < q->N; n++) {
            const unsigned z =
                rows ? ((const uint8_t *)q->plane[QT_ZEROS].data)[n] ^ 0x80u : layout_zero(q, n, g);
            if (z >> bits)
                return lq_fail(err, LQ_EUNSUPPORTED,
                               "compressed-tensors holds zero points 0..%d, found %u (output %lld, "
                               "group %lld)",
                               (1 << bits) - 1, z, (long long)n, (long long)g);
            for (int b = 0; b < bits; b++) { /* 3 bits run across words */
                const int64_t at = n * bits + b;
                dst[4 * (at / 32 * ng + g) + at % 32 / 8] |= (uint8_t)((z >> b & 1u) << at % 8);
            }
        }
    return LQ_OK;
}

static lq_status pack_packed(uint8_t *const dst[CONV_PARTS], const conv_weight *w,
                             const qt_tensor *q, lq_err *err)
{
    const bool rows = q->scheme.kind == QT_I8;
    const int bits = rows ? 8 : q->scheme.bits;
    const size_t row = qt_row_bytes(q->K, bits), words = (size_t)w->parts[0].shape[1] * 4;
    const uint8_t *codes = q->plane[QT_CODES].data;
    for (int64_t n = 0; n < q->N; n++) {
        uint8_t *to = dst[0] + (size_t)n * words;
        memcpy(to, codes + (size_t)n * row, row);
        for (size_t i = 0; i < row && rows; i++)
            to[i] ^= 0x80u;
    }
    pack_scales(dst[1], w, q);
    memcpy(dst[2], &q->N, 8);
    memcpy(dst[2] + 8, &q->K, 8);
    if (w->n_parts < 4) return LQ_OK;
    return pack_zeros(dst[3], q, bits, rows ? 1 : q->K / q->scheme.group, err);
}

static lq_status layout_ct_pack(uint8_t *const dst[CONV_PARTS], const conv_weight *w,
                                const qt_tensor *q, const conv_plan *p, lq_err *err)
{
    const ct_format f = format_of(&w->scheme);
    (void)p;
    if (f == PACKED) return pack_packed(dst, w, q, err);
    memcpy(dst[0], q->plane[QT_CODES].data, q->plane[QT_CODES].bytes);
    if (f == NVFP4 || f == MXFP4) {
        memcpy(dst[1], q->plane[QT_SCALES].data, q->plane[QT_SCALES].bytes);
        if (f == NVFP4) memcpy(dst[2], q->plane[QT_SCALES2].data, 4);
        return LQ_OK;
    }
    pack_scales(dst[1], w, q);
    int part = 2;
    if (w->scheme.zero) memcpy(dst[part++], q->plane[QT_ZEROS].data, q->plane[QT_ZEROS].bytes);
    if (w->scheme.act_scale > 0) memcpy(dst[part], &w->scheme.act_scale, 4);
    return LQ_OK;
}

const conv_layout conv_ct = {
    .name = "compressed-tensors",
    .rank = 1,
    .least_bits = 4, /* vLLM's compressed_tensors_wNa16.py */
    .plan = layout_ct_plan,
    .instead = instead,
    .config = layout_ct_config,
    .pack = layout_ct_pack,
};
