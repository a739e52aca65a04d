/* formats/source/hf_fp8.c - linears of E4M3 codes: quant_method "fp8" (DeepSeek, Qwen, transformers' fine-grained
 * FP8), "fbgemm_fp8", and the same weights in files of other methods. Per linear,
 *
 *   weight            F8_E4M3 [N,K]
 *   its scale         weight_scale_inv, weight_scale, or Quark's weight_quantizer.scale: f32, f16, bf16 or
 *                     E8M0 (also as U8); the weight is multiplied with it, whatever its name says
 *   input_scale       or activation_scale, input_quantizer.scale: one number where inputs are
 *                     rounded by a fixed scale
 *
 * The shape of the scale tells what shares one: [] or one number the tensor; [N], [N,1] an output;
 * [ceil(N/R), ceil(K/C)] a block, also as ModelOpt's [.,1,.,1]. R and C are those of the config where the
 * shape agrees, else 128, or the size that divides. */
#include "formats/source/hf_quant.h"

typedef struct {
    lq_dtype dtype;
    const uint8_t *scales;
} fp8_parts;

static void hf_fp8_fill(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const fp8_parts *p = from;
    float *scales = w[QT_SCALES];
    for (size_t i = 0; i < t->plane[QT_SCALES].bytes / sizeof *scales; i++)
        scales[i] = hf_scale(p->scales, p->dtype, i);
}

/* ---- what shares a scale ---- */
/* The size of each of `blocks` blocks of n; 0: none that is known. */
static int64_t block_size(int64_t n, int64_t blocks, int64_t said)
{
    const int64_t sizes[] = { said, 128, blocks ? lq_ceil_div(n, blocks) : 0 };
    for (size_t i = 0; i < LQ_COUNT(sizes); i++)
        if (sizes[i] > 0 && lq_ceil_div(n, sizes[i]) == blocks &&
            (i < 2 || n % sizes[i] == 0 || blocks == 1))
            return sizes[i];
    return 0;
}

/* The dims of a scale without those of 1 between and behind others: ModelOpt's [.,1,.,1]. */
static int scale_dims(int64_t d[2], const src_tensor *scale)
{
    if (scale->n_dims == 4 && scale->shape[1] == 1 && scale->shape[3] == 1) {
        d[0] = scale->shape[0];
        d[1] = scale->shape[2];
        return 2;
    }
    for (int i = 0; i < 2 && i < scale->n_dims; i++)
        d[i] = scale->shape[i];
    return scale->n_dims;
}

static lq_status settle_scale(qt_tensor *q, const hf_fp8 *how, const src_tensor *scale, lq_err *err)
{
    int64_t d[2] = { 0 };
    qt_scheme *s = &q->scheme;
    const int n_dims = scale_dims(d, scale);
    const bool blocks = how->rows && n_dims == 2;
    if (src_elements(scale) == 1 && !blocks) {
        s->rows = q->N == 1;
        return LQ_OK;
    }
    if (d[0] == q->N && (n_dims == 1 || (n_dims == 2 && d[1] == 1 && !blocks))) {
        s->rows = 1;
        return LQ_OK;
    }
    s->rows = n_dims == 2 ? block_size(q->N, d[0], how->rows) : 0;
    s->group = n_dims == 2 ? block_size(q->K, d[1], how->cols) : 0;
    if (s->rows && s->group) return LQ_OK;
    char found[96];
    return lq_fail(
        err, LQ_ESHAPE,
        "tensor '%.100s': expected a scale of all, of each of %lld outputs, or of blocks of "
        "[%lld,%lld], found shape %s",
        scale->name, (long long)q->N, (long long)(how->rows ? how->rows : 128),
        (long long)(how->cols ? how->cols : 128), src_shape_text(found, scale));
}

/* ---- one weight ---- */
static const char *const scale_names[] = { ".weight_scale_inv", ".weight_scale",
                                           ".weight_quantizer.scale", NULL };
static const char *const input_names[] = { ".input_scale", ".activation_scale",
                                           ".input_quantizer.scale", NULL };

/* The stored one of several names; NULL: none. */
static lq_status take_any(hf_quant *h, const char *module, const char *const *names,
                          const int *types, const src_tensor **t, lq_err *err)
{
    lq_status st = LQ_OK;
    *t = NULL;
    for (; *names && !*t && !st; names++)
        st = hf_take(h, module, *names, false, types, -1, t, err);
    return st;
}

/* Inputs in groups with a scale that is a power of two (MXFP8) are not rounded. */
static lq_status settle_inputs(qt_scheme *s, hf_quant *h, const hf_fp8 *how, bool mx,
                               const src_tensor *input, lq_err *err)
{
    const bool by_row = s->rows == 1 && !s->group;
    hf_inputs in = how->inputs;
    if (in == HF_INPUTS_STORED)
        in = input ? HF_INPUTS_STATIC : by_row ? HF_INPUTS_DYNAMIC : HF_INPUTS_PLAIN;
    if (in == HF_INPUTS_PLAIN) return LQ_OK;
    if (mx) return hf_note_weight_only(h, "MXFP8", err);
    s->act = QT_ACT_F8;
    if (in == HF_INPUTS_STATIC) return hf_one_float(&s->act_scale, input, err);
    s->act_group = s->group;
    return LQ_OK;
}

bool hf_fp8_scaled(const hf_quant *h, const char *module)
{
    size_t i = 0;
    while (scale_names[i] && !hf_stored(h, module, scale_names[i]))
        i++;
    return scale_names[i] != NULL;
}

static lq_status hf_fp8_make(hf_quant *h, const char *module, lq_err *err)
{
    static const int f8[] = { LQ_F8_E4M3, -1 };
    static const int types[] = { LQ_F32, LQ_F16, LQ_BF16, LQ_F8_E8M0, LQ_U8, -1 };
    const hf_fp8 *how = &h->fp8;
    const src_tensor *weight, *scale, *input;
    lq_status st = hf_take(h, module, ".weight", true, f8, 2, &weight, err);
    if (!st) st = take_any(h, module, scale_names, types, &scale, err);
    if (!st && !scale) /* none of the names: the first is missing */
        st = hf_take(h, module, scale_names[how->rows ? 0 : 1], true, types, -1, &scale, err);
    if (!st) st = take_any(h, module, input_names, HF_FLOATS, &input, err);
    if (!st && !input && how->inputs == HF_INPUTS_STATIC)
        st = hf_take(h, module, input_names[0], true, HF_FLOATS, -1, &input, err);
    if (st) return st;
    const bool powers = !lq_dtype_is_float(scale->raw_dtype);
    qt_tensor q = { .N = weight->shape[0], .K = weight->shape[1], .scheme = { .kind = QT_E4M3 } };
    st = settle_scale(&q, how, scale, err);
    if (!st) st = settle_inputs(&q.scheme, h, how, powers && q.scheme.group == 32, input, err);
    if (st) return st;
    q.plane[QT_CODES] = weight->raw;
    hf_view_f32(&q, QT_SCALES, scale);
    const fp8_parts p = { scale->raw_dtype, scale->raw.data };
    return hf_make(h, module, ".weight", &q, hf_fp8_fill, &p, sizeof p, err);
}

lq_status hf_fp8_all(hf_quant *h, lq_err *err)
{
    lq_status st = LQ_OK;
    for (size_t i = 0; i < h->s->n_tensors && !st; i++) {
        if (h->s->tensors[i].raw_dtype != LQ_F8_E4M3) continue;
        const char *module = hf_module(h, i, ".weight");
        if (module) st = hf_fp8_make(h, module, err);
    }
    return st;
}

/* ---- quant_method "fp8", "fbgemm_fp8" ---- */
static lq_status read_config(hf_quant *h, lq_err *err)
{
    const char *acts = "dynamic", *fmt = "e4m3", *powers = "";
    lq_status st = js_str(h->q, "activation_scheme", false, &acts, err);
    if (!st) st = js_str(h->q, "fmt", false, &fmt, err);
    if (!st) st = js_str(h->q, "scale_fmt", false, &powers, err);
    if (!st) st = hf_block_size(h->q, "weight_block_size", &h->fp8.rows, &h->fp8.cols, err);
    if (st) return lq_wrap(err, st, "quantization_config");
    if (strcmp(fmt, "e4m3") != 0 && strcmp(fmt, "float8_e4m3fn") != 0)
        return lq_fail(err, LQ_EUNSUPPORTED, "fmt: expected e4m3, found \"%.40s\"", fmt);
    const bool fixed = strcmp(acts, "static") == 0;
    if (!fixed && strcmp(acts, "dynamic") != 0)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "activation_scheme: expected dynamic or static, found \"%.40s\"", acts);
    h->fp8.inputs = fixed ? HF_INPUTS_STATIC : HF_INPUTS_DYNAMIC;
    if (strcmp(powers, "ue8m0") != 0) return LQ_OK;
    return src_note(h->s, err,
                    "scale_fmt ue8m0: the scales of weights are as stored, those of inputs are not "
                    "rounded to powers of two");
}

lq_status hf_fp8_read(hf_quant *h, lq_err *err)
{
    const lq_status st = read_config(h, err);
    return st ? st : hf_fp8_all(h, err);
}

lq_status hf_fbgemm_read(hf_quant *h, lq_err *err)
{
    double most = 0;
    lq_status st = js_f64(h->q, "activation_scale_ub", false, 0, 1e30, &most, err);
    if (st) return lq_wrap(err, st, "quantization_config");
    h->fp8.inputs = HF_INPUTS_DYNAMIC;
    st = hf_fp8_all(h, err);
    for (size_t i = 0; i < h->s->n_tensors; i++) /* the bound once more for each linear */
        if (hf_module(h, i, ".input_scale_ub")) h->used[i] = true;
    if (st || !(most > 0)) return st;
    return src_note(
        h->s, err,
        "activation_scale_ub: inputs above %g are rounded by their own scale, not capped", most);
}
