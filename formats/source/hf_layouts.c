/* formats/source/hf_layouts.c - the table of published quantized layouts, and the tensors of a folder
 * replaced by the weights that one of them makes. */
#include "base/path.h"
#include "formats/source/hf_quant.h"

#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *method;
    hf_reader *read;
} readers[] = {
    { "gptq", hf_gptq_read },
    { "awq", hf_awq_read },
    { "bitsandbytes", hf_bnb_read },
    { "compressed-tensors", hf_ct_read },
    { "fp8", hf_fp8_read },
    { "fbgemm_fp8", hf_fbgemm_read },
    { "mxfp4", hf_mxfp4_read },
    { "auto-round", hf_autoround_read },
    { "auto_round", hf_autoround_read },
    { "intel/auto-round", hf_autoround_read },
    { "modelopt", hf_modelopt_read },
    { "modelopt_fp4", hf_modelopt_read },
    { "modelopt_mixed", hf_modelopt_read },
    { "modelopt_mxfp8", hf_modelopt_read },
    { "quark", hf_quark_read },
    { "bitnet", hf_bitnet_read },
    { "mlx", hf_mlx_read },
    { "torchao", hf_torchao_read },
};

/* A layout that is not read, with the way out. */
static lq_status refuse(lq_status st, lq_err *err)
{
    return lq_append(err, st, "; `llmq quantize` packs the original checkpoint");
}

static lq_status refuse_method(const char *method, lq_err *err)
{
    char all[256] = "";
    for (size_t i = 0; i < LQ_COUNT(readers); i++) {
        const size_t at = strlen(all);
        if (i && readers[i].read == readers[i - 1].read) continue; /* another word */
        snprintf(all + at, sizeof all - at, "%s%s", at ? ", " : "", readers[i].method);
    }
    return refuse(lq_fail(err, LQ_EUNSUPPORTED,
                          "quantization_config: quant_method: expected one of %s, found \"%.40s\", "
                          "a layout that is not read",
                          all, method),
                  err);
}

/* ---- files of several kinds ---- */
static bool is_left(hf_quant *h, const char *suffix, lq_dtype d)
{
    for (size_t i = 0; i < h->s->n_tensors; i++) {
        if (h->s->tensors[i].raw_dtype != d) continue;
        const char *module = hf_module(h, i, suffix);
        if (module && (d != LQ_F8_E4M3 || hf_fp8_scaled(h, module))) return true;
    }
    return false;
}

/* What the method's reader left and other layouts know: int4 and fp8 in one file. */
static lq_status read_others(hf_quant *h, lq_err *err)
{
    static const struct {
        const char *suffix;
        lq_dtype dtype;
        hf_reader *read;
        const char *note;
    } others[] = {
        { ".weight", LQ_F8_E4M3, hf_fp8_all,
          "some weights are fp8, which the config does not mention: read by what is stored, inputs "
          "are not rounded" },
        { ".qweight", LQ_I32, hf_gptq_read,
          "some weights are integers in GPTQ's words, which the config does not mention: read by "
          "what is stored" },
    };
    const hf_quant said = *h;
    cJSON *none = cJSON_CreateObject();
    lq_status st = none ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
    for (size_t i = 0; i < LQ_COUNT(others) && !st; i++) {
        if (!is_left(h, others[i].suffix, others[i].dtype)) continue;
        h->q = none;
        h->fp8 = (hf_fp8){ .rows = said.fp8.rows, .cols = said.fp8.cols };
        st = others[i].read(h, err);
        if (!st) st = src_note(h->s, err, "%s", others[i].note);
    }
    cJSON_Delete(none);
    h->q = said.q;
    return st;
}

/* What was not taken stays, what was made is added, in order of names. */
static lq_status merge(hf_quant *h, lq_err *err)
{
    src_source *s = h->s;
    size_t n = 0;
    for (size_t i = 0; i < s->n_tensors; i++)
        if (!h->used[i]) n++;
    src_tensor *all = lq_push(&s->arena, (n + h->n_made + 1) * sizeof *all);
    if (!all) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", s->path);
    n = 0;
    for (size_t i = 0; i < s->n_tensors; i++)
        if (!h->used[i]) all[n++] = s->tensors[i];
    if (h->n_made) memcpy(all + n, h->made, h->n_made * sizeof *all);
    n += h->n_made;
    if (n) qsort(all, n, sizeof *all, src_by_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(all[i - 1].name, all[i].name) == 0)
            return lq_fail(err, LQ_EFORMAT, "tensor '%.100s': stored both plain and quantized",
                           all[i].name);
    s->tensors = all;
    s->n_tensors = n;
    return src_make_room(s, err);
}

/* The method, and which kind of it where that is another word: "awq, gemm". */
static void name_layout(src_source *s, const char *method)
{
    static const char *const keys[] = { "version", "format", "checkpoint_format", "mode" };
    const char *kind = method;
    for (size_t i = 0; i < LQ_COUNT(keys); i++)
        js_str(s->quant, keys[i], false, &kind, NULL);
    const bool one = strcmp(kind, method) == 0;
    snprintf(s->layout, sizeof s->layout, "%.24s%s%.30s", method, one ? "" : ", ", one ? "" : kind);
    lq_printable(s->layout);
}

/* Lists of modules that are not quantized: what is stored tells which, so only their kind matters.
 */
static lq_status check_lists(const cJSON *q, lq_err *err)
{
    static const char *const keys[] = { "ignore", "ignored_layers", "llm_int8_skip_modules",
                                        "modules_to_not_convert" };
    char found[64];
    for (size_t i = 0; i < LQ_COUNT(keys); i++) {
        const cJSON *list = js_get(q, keys[i]);
        if (list && !cJSON_IsArray(list))
            return lq_fail(err, LQ_EVALUE, "%s: expected an array, found %s", keys[i],
                           js_describe(found, list));
        for (const cJSON *m = list ? list->child : NULL; m; m = m->next)
            if (!cJSON_IsString(m))
                return lq_fail(err, LQ_EVALUE, "%s: expected names, found %s", keys[i],
                               js_describe(found, m));
    }
    return LQ_OK;
}

/* The method of a config that names none. */
static const char *unsaid(const cJSON *q)
{
    static const struct {
        const char *key, *method;
    } told[] = { { "load_in_4bit", "bitsandbytes" },
                 { "load_in_8bit", "bitsandbytes" },
                 { "config_groups", "compressed-tensors" },
                 { "quant_algo", "modelopt" },
                 { "quantization", "modelopt" },
                 { "autoround_version", "auto-round" },
                 { "weight_block_size", "fp8" },
                 { "mode", "mlx" } };
    for (size_t i = 0; i < LQ_COUNT(told); i++)
        if (js_get(q, told[i].key)) return told[i].method;
    return "gptq"; /* what older tools left unsaid */
}

/* mlx-lm stacks and turns what it does not quantize too, and says so nowhere; of codes it does. */
static lq_status find_mlx(src_source *s, lq_err *err)
{
    hf_quant h = { .s = s };
    for (size_t i = 0; i < s->n_tensors; i++) {
        const src_tensor *t = &s->tensors[i];
        const size_t n = strlen(t->name);
        char module[512];
        if (t->raw_dtype != LQ_U32 || !lq_has_ending(t->name, ".weight") || n >= sizeof module)
            continue;
        snprintf(module, sizeof module, "%.*s", (int)(n - strlen(".weight")), t->name);
        if (hf_stored(&h, module, ".scales"))
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "tensor '%.100s': expected \"quantization\" in config.json beside words "
                           "of codes (mlx-lm writes it), found none",
                           t->name);
    }
    if (!hf_is_mlx(s)) return LQ_OK;
    s->quant = cJSON_CreateObject();
    return cJSON_AddStringToObject(s->quant, "quant_method", "mlx")
               ? LQ_OK
               : lq_fail(err, LQ_ENOMEM, "out of memory");
}

lq_status hf_quant_read(src_source *s, lq_err *err)
{
    const bool said = s->quant;
    lq_status st = said ? LQ_OK : find_mlx(s, err);
    if (st || !s->quant) return st;
    const char *method = unsaid(s->quant);
    st = js_str(s->quant, "quant_method", false, &method, err);
    if (!st) st = check_lists(s->quant, err);
    if (st) return lq_wrap(err, st, "quantization_config");
    size_t r = 0;
    while (r < LQ_COUNT(readers) && strcmp(readers[r].method, method) != 0)
        r++;
    if (r == LQ_COUNT(readers)) return refuse_method(method, err);
    hf_quant h = {
        .s = s,
        .q = s->quant,
    };
    h.used = calloc(s->n_tensors + 1, sizeof *h.used);
    if (h.used)
        st = readers[r].read(&h, err);
    else
        h.no_memory = true;
    if (!st && !h.no_memory) st = read_others(&h, err);
    if (!st && h.no_memory) st = lq_fail(err, LQ_ENOMEM, "%s: out of memory", s->path);
    if (!st && h.n_made) name_layout(s, method);
    if (!st && !h.n_made && said)
        st = src_note(s, err, "quantization_config names %s, but no weight is stored so", method);
    if (!st) st = merge(&h, err);
    free(h.used);
    free(h.made);
    if (st) lq_wrap(err, st, "%s", method);
    return st == LQ_EUNSUPPORTED ? refuse(st, err) : st;
}
