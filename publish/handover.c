/* publish/handover.c */
#include "publish/handover.h"

#include "base/path.h"
#include "convert/convert.h"
#include "convert/gguf_meta.h"
#include "formats/arch/generation_config.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

enum { LINE = 9000 };

typedef struct {
    const src_source *src;
    const arch_config *config;
    const char *model;
    gen_defaults gen;
    char method[32]; /* quant_method of a published folder, or "" */
    cJSON *doc, *prepare, *files, *differences;
    cJSON *limits;   /* of engines that read folders */
    char path[4200]; /* what the engine is given */
} plan;

__attribute__((format(printf, 2, 3))) static void add(cJSON *list, const char *fmt, ...)
{
    char text[LINE];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    cJSON_AddItemToArray(list, cJSON_CreateString(text));
}

/* A path for a shell: as it is where that is safe, else in quotes, and never as an option. */
static const char *quoted(char *out, size_t n, const char *s)
{
    size_t at = 0;
    if (*s && *s != '-' &&
        strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+=@/,") ==
            strlen(s))
        return s;
    out[at++] = '\'';
    if (*s == '-') at += (size_t)snprintf(out + at, n - at, "./");
    for (; *s && at + 6 < n; s++)
        if (*s == '\'')
            at += (size_t)snprintf(out + at, n - at, "'\\''");
        else
            out[at++] = *s;
    out[at++] = '\'';
    out[at] = 0;
    return out;
}

/* A difference for which the engine would not load the model as it is. */
static void refuse(plan *p, const char *why)
{
    add(p->differences, "%s", why);
    if (!js_get(p->limits, "refused")) cJSON_AddStringToObject(p->limits, "refused", why);
}

/* ---- the model ---- */
/* The model's name without its ending, and another behind it: here, not in the model's folder. */
static void sibling(char *out, size_t n, const char *path, const char *ending)
{
    const char *model = path;
    for (const char *c = path; *c; c++)
        if (*c == '/' && c[1] && c[1] != '/') model = c + 1;
    size_t len = strlen(model);
    while (len > 1 && model[len - 1] == '/')
        len--;
    static const char *const ends[] = { ".llmq", ".gguf", ".safetensors" };
    for (size_t i = 0; i < LQ_COUNT(ends); i++) {
        const size_t e = strlen(ends[i]);
        if (len > e && strncasecmp(model + len - e, ends[i], e) == 0) len -= e;
    }
    const size_t whole = (size_t)snprintf(out, n, "%.*s%s", (int)len, model, ending);
    if (whole < n && strncmp(out, model, whole) == 0 && (!model[whole] || model[whole] == '/'))
        snprintf(out + whole, n - whole, "%s", ending); /* not the model itself */
}

static const src_tensor *quantized_at(const plan *p, int64_t i)
{
    const src_tensor *t = src_tensor_at(p->src, i);
    return t->plain && t->t.scheme.kind != QT_DENSE ? t : NULL;
}

static bool any_quantized(const plan *p)
{
    bool any = false;
    for (int64_t i = 0; i < src_n_tensors(p->src); i++)
        any = any || quantized_at(p, i);
    return any;
}

static void read_method(plan *p)
{
    const src_blob *b = src_find_blob(p->src, "config.json");
    cJSON *doc = NULL;
    const char *method = NULL;
    if (b) js_parse(&doc, (const char *)b->data, b->bytes, (size_t)1 << 20, 0, NULL);
    js_str(js_get(doc, "quantization_config"), "quant_method", false, &method, NULL);
    if (method) snprintf(p->method, sizeof p->method, "%s", method);
    cJSON_Delete(doc);
}

/* Of a folder that goes as it is all of them; of one that is still to be made its name. */
static void add_files(plan *p)
{
    char sub[600];
    add(p->files, "%s", p->path);
    if (strcmp(src_format(p->src), "safetensors") != 0 || strcmp(p->path, p->model) != 0) return;
    for (size_t i = 0; i < src_n_files(p->src); i++) {
        const char *slash = strrchr(src_file_at(p->src, i), '/');
        const bool in_place = strcmp(src_file_at(p->src, i), p->path) == 0;
        if (!in_place && !lq_path_join(sub, sizeof sub, p->path, slash ? slash + 1 : "", NULL))
            add(p->files, "%s", sub);
    }
    for (size_t i = 0; i < src_n_blobs(p->src); i++)
        if (!src_blob_file(sub, sizeof sub, p->path, src_blob_at(p->src, i)->name, NULL))
            add(p->files, "%s", sub);
}

/* ---- differences that several engines share ---- */
static void note_rounding(plan *p, const char *engine)
{
    bool acts = false;
    for (int64_t i = 0; i < src_n_tensors(p->src); i++)
        acts = acts || (quantized_at(p, i) && quantized_at(p, i)->t.scheme.act);
    add(p->differences,
        "arithmetic: %s computes activations in 16 bits%s; llmq serve rounds them as "
        "`llmq version` says (--activations), so answers differ in the last digits",
        engine, acts ? ", rounded to 8 where the checkpoint declares it" : "");
}

static void note_sampling(plan *p, const char *engine)
{
    const gen_defaults *g = &p->gen;
    if (g->has_temperature && g->temperature == 0)
        add(p->differences,
            "sampling: generation_config.json says do_sample false, which llmq reads as "
            "temperature 0; %s ignores it: send \"temperature\": 0",
            engine);
    else if (g->has_temperature || g->has_top_p || g->has_top_k || g->has_min_p ||
             g->has_repetition_penalty)
        add(p->differences,
            "sampling: %s takes its defaults from generation_config.json, as llmq does", engine);
    else
        add(p->differences,
            "sampling: there are no defaults in generation_config.json; both sample at "
            "temperature 1 where a request is silent");
}

static bool cut_by_outputs(arch_role r)
{
    return r == R_Q || r == R_K || r == R_V || r == R_GATE || r == R_UP || r == R_EXPERT_GATE ||
           r == R_EXPERT_UP || r == R_SHARED_GATE || r == R_SHARED_UP;
}

/* Does each of n parts of a linear have whole groups? `why` else, where nothing is said yet. */
static bool parts_are_whole(const arch_config *c, const src_tensor *t, arch_role r, int n,
                            char why[200])
{
    const qt_scheme *s = &t->t.scheme;
    const bool by_inputs = r == R_O || r == R_DOWN || r == R_EXPERT_DOWN || r == R_SHARED_DOWN;
    const bool grouped = s->kind == QT_UINT || s->kind == QT_E2M1 || s->kind == QT_E4M3;
    const int64_t of = by_inputs ? t->t.K : t->t.N;
    int64_t group = by_inputs ? s->group : s->kind == QT_E4M3 ? s->rows : 0, parts = n;
    if (!by_inputs && !cut_by_outputs(r)) return true; /* whole on each */
    if (!grouped || group <= 0 || (by_inputs && group == t->t.K)) group = 1;
    if ((r == R_K || r == R_V) && n > c->kv_heads) parts = c->kv_heads;
    if (!(by_inputs && s->act_order) && of % (group * parts) == 0) return true;
    if (!*why)
        snprintf(why, 200, "%s: groups of %" PRId64 " in %" PRId64 " %s%s", t->name, group, of,
                 by_inputs ? "inputs" : "outputs", s->act_order ? ", in act-order" : "");
    return false;
}

/* Sizes of tensor parallelism at which every group lies in one part, and heads can be dealt out. */
static void note_parallel(plan *p)
{
    static const int sizes[] = { 2, 4, 8 };
    const arch_config *c = p->config;
    char fits[64] = "1", why[200] = "";
    cJSON *list = cJSON_AddArrayToObject(p->limits, "tensor_parallel");
    cJSON_AddItemToArray(list, cJSON_CreateNumber(1));
    if (strcmp(p->method, "bitsandbytes") == 0) {
        add(p->differences, "tensor parallel: 1 only, bitsandbytes layers are not split");
        return;
    }
    for (size_t i = 0; i < LQ_COUNT(sizes); i++) {
        const int n = sizes[i];
        bool ok = c->heads % n == 0 && (c->kv_heads % n == 0 || n % c->kv_heads == 0);
        if (!ok && !*why) snprintf(why, sizeof why, "%" PRId64 " heads", c->heads);
        for (int64_t k = 0; k < src_n_tensors(p->src) && ok; k++) {
            const src_tensor *t = quantized_at(p, k);
            arch_slot slot;
            if (t && arch_slot_of(c, t->name, &slot)) ok = parts_are_whole(c, t, slot.role, n, why);
        }
        const size_t at = strlen(fits);
        if (ok) snprintf(fits + at, sizeof fits - at, ", %d", n);
        if (ok) cJSON_AddItemToArray(list, cJSON_CreateNumber(n));
    }
    add(p->differences, "tensor parallel: %s (of 1, 2, 4, 8)%s%s", fits, *why ? "; " : "", why);
}

/* What it does not becomes symmetric, of 4 or 8 bits. */
static bool gptq_holds(const qt_scheme *s)
{
    return s->kind == QT_UINT && (s->zero == QT_ZERO_NONE || s->zero == QT_ZERO_INT);
}

/* What of GPTQ vLLM loads, and has fast kernels for. */
static void note_kernels(plan *p)
{
    int64_t slow = 0;
    bool zeros = false;
    if (strncmp(p->method, "gptq", 4) != 0) return;
    for (int64_t i = 0; i < src_n_tensors(p->src); i++) {
        const src_tensor *t = quantized_at(p, i);
        if (!t || !gptq_holds(&t->t.scheme)) continue;
        const qt_scheme *s = &t->t.scheme;
        const bool group =
            s->group == 32 || s->group == 64 || s->group == 128 || s->group == t->t.K;
        zeros = zeros || s->zero != QT_ZERO_NONE;
        slow += s->zero != QT_ZERO_NONE || !group || (s->bits != 4 && s->bits != 8);
    }
    if (zeros)
        refuse(p, "weights: vLLM 0.32 refuses GPTQ with zero points (\"bits=4, sym=False\"): `llmq "
                  "convert MODEL -o DST --to compressed-tensors` writes what it loads");
    if (slow)
        add(p->differences,
            "speed: %" PRId64 " weights are outside of gptq_marlin (4 or 8 bits, symmetric, groups "
            "of 32, 64, 128 or whole rows) and take vLLM's slow gptq kernel",
            slow);
}

/* Of inputs that are rounded in groups engines have kernels for whole ones alone. */
static void note_input_groups(plan *p)
{
    for (int64_t i = 0; i < src_n_tensors(p->src); i++) {
        const src_tensor *t = quantized_at(p, i);
        const int64_t g = t ? t->t.scheme.act_group : 0;
        char why[400];
        if (!g || t->t.K % g == 0) continue;
        snprintf(why, sizeof why,
                 "weights: %.200s: its %" PRId64 " inputs are rounded in groups of %" PRId64
                 ", and neither vLLM nor SGLang has a kernel for a shorter last one",
                 t->name, t->t.K, g);
        refuse(p, why);
        return;
    }
}

/* ---- engines that read Hugging Face folders ---- */
static bool has_below(const plan *p, int bits)
{
    bool any = false;
    for (int64_t i = 0; i < src_n_tensors(p->src); i++) {
        const src_tensor *t = quantized_at(p, i);
        any = any || (t && t->t.scheme.kind == QT_UINT && t->t.scheme.bits < bits);
    }
    return any;
}

/* The layout that holds the model as it is, or the one to round it to. */
static const char *layout_for(plan *p, bool *anew)
{
    const char *name;
    int least;
    lq_err why = { "" }, first = { "" };
    *anew = false;
    if (!any_quantized(p)) return "safetensors";
    for (size_t i = 0; (name = conv_layout_ranked(i, &least)); i++)
        if (!conv_holds(p->src, name, i ? &why : &first) && !has_below(p, least)) return name;
    *anew = true;
    add(p->differences,
        "weights: no published layout holds all of them (%s); they are rounded again. Without "
        "that: "
        "--to safetensors --dtype f32 keeps every value in 32 bits",
        first.msg[0] ? first.msg : why.msg);
    return has_below(p, 4) ? "gptq_v2" : "compressed-tensors";
}

/* mlx-lm's folders neither engine reads. */
static bool is_mlx(const src_source *s)
{
    const char *layout = src_layout(s);
    return layout && strncmp(layout, "mlx", 3) == 0;
}

static void prepare_folder(plan *p, const char *ending)
{
    char q1[LINE], q2[LINE];
    bool anew;
    if (strcmp(src_format(p->src), "safetensors") == 0 && !is_mlx(p->src)) {
        snprintf(p->path, sizeof p->path, "%s", p->model);
        if (strcmp(p->method, "compressed-tensors") == 0 && has_below(p, 4))
            refuse(
                p,
                "weights: of compressed-tensors neither vLLM nor SGLang reads 2 or 3 bits; `llmq "
                "convert MODEL -o DST --to gptq_v2` writes what they read");
        return;
    }
    const char *to = layout_for(p, &anew);
    sibling(p->path, sizeof p->path, p->model, ending);
    snprintf(p->method, sizeof p->method, "%s", strcmp(to, "bnb") == 0 ? "bitsandbytes" : to);
    add(p->prepare, "llmq convert %s -o %s --to %s%s", quoted(q1, sizeof q1, p->model),
        quoted(q2, sizeof q2, p->path), to, anew ? " --allow-requantize" : "");
}

static void begin_folder(plan *p, const char *ending)
{
    p->limits = cJSON_AddObjectToObject(p->doc, "limits");
    prepare_folder(p, ending);
    note_input_groups(p);
    cJSON_AddNumberToObject(p->limits, "max_model_len", (double)p->config->max_pos);
    cJSON_AddStringToObject(p->limits, "dtype", strcmp(p->method, "awq") == 0 ? "float16" : "auto");
}

static void for_vllm(plan *p)
{
    char q[LINE], line[LINE + 200];
    begin_folder(p, "-vllm");
    snprintf(line, sizeof line, "vllm serve %s --max-model-len %" PRId64 "%s",
             quoted(q, sizeof q, p->path), p->config->max_pos,
             strcmp(p->method, "awq") == 0 ? " --dtype float16" : "");
    cJSON_AddStringToObject(p->doc, "command", line);
    note_sampling(p, "vLLM");
    note_parallel(p);
    note_kernels(p);
    note_rounding(p, "vLLM");
    if (strcmp(p->method, "awq") == 0)
        add(p->differences, "dtype: vLLM's awq kernels want float16");
}

static void for_sglang(plan *p)
{
    char q[LINE], line[LINE + 200];
    begin_folder(p, "-sglang");
    snprintf(line, sizeof line,
             "python3 -m sglang.launch_server --model-path %s --context-length %" PRId64
             " --sampling-defaults model%s",
             quoted(q, sizeof q, p->path), p->config->max_pos,
             strcmp(p->method, "awq") == 0 ? " --dtype float16" : "");
    cJSON_AddStringToObject(p->doc, "command", line);
    note_sampling(p, "SGLang");
    note_parallel(p);
    note_rounding(p, "SGLang");
}

/* ---- llama.cpp ---- */
/* What a block of GGUF has in 16 bits, of a type that may hold more. */
static bool f16_holds(const qt_tensor *q, qt_plane plane)
{
    const lq_dtype d = q->scheme.scale_dtype;
    const size_t size = lq_dtype_bytes(d);
    const uint8_t *at = q->plane[plane].data, *end = at + q->plane[plane].bytes;
    float v, back;
    uint16_t h;
    for (; d != LQ_F16 && at < end; at += size) {
        lq_to_f32(&v, at, d, 1);
        lq_from_f32(&h, &v, LQ_F16, 1);
        lq_to_f32(&back, &h, LQ_F16, 1);
        if (v < back || v > back) return false;
    }
    return true;
}

/* Some type of blocks has these values. */
static bool in_blocks(const plan *p, const src_tensor *t)
{
    const qt_scheme *s = &t->t.scheme;
    qt_tensor q;
    if (s->kind != QT_UINT || s->act_order || s->act || s->group % 32 != 0 ||
        (s->zero != QT_ZERO_NONE && s->zero != QT_ZERO_BIAS))
        return false;
    src_load(&q, p->src, t);
    const bool holds =
        f16_holds(&q, QT_SCALES) && (s->zero == QT_ZERO_NONE || f16_holds(&q, QT_ZEROS));
    src_unload(p->src, t);
    return holds;
}

static bool prepare_gguf(plan *p)
{
    lq_err why = { "" };
    char q1[LINE], q2[LINE], scheme[40], key[44], schemes[600] = "";
    if (strcmp(src_format(p->src), "gguf") == 0) {
        snprintf(p->path, sizeof p->path, "%s", p->model);
        return true;
    }
    if (gguf_can_say(p->src, &why)) {
        add(p->differences, "%s", why.msg);
        return false;
    }
    int64_t anew = 0;
    for (int64_t i = 0; i < src_n_tensors(p->src); i++) {
        const src_tensor *t = quantized_at(p, i);
        if (!t || in_blocks(p, t)) continue;
        anew++;
        qt_scheme_text(scheme, &t->t.scheme);
        snprintf(key, sizeof key, " %s,", scheme);
        const size_t n = strlen(schemes);
        if (!strstr(schemes, key)) snprintf(schemes + n, sizeof schemes - n, "%s", key);
    }
    if (anew)
        add(p->differences,
            "weights: %" PRId64
            " of them (%.*s) have no type of GGUF blocks and are rounded again to "
            "Q8_0, at 8.5 bits each",
            anew, (int)strlen(schemes) - 2, schemes + 1);
    sibling(p->path, sizeof p->path, p->model, ".gguf");
    add(p->prepare, "llmq convert %s -o %s --to gguf%s", quoted(q1, sizeof q1, p->model),
        quoted(q2, sizeof q2, p->path), anew ? " --allow-requantize" : "");
    return true;
}

static void for_llama_cpp(plan *p)
{
    char q[LINE], line[LINE + 300];
    const gen_defaults *g = &p->gen;
    if (!prepare_gguf(p)) return;
    snprintf(line, sizeof line,
             "llama-server -m %s -c %" PRId64
             " --jinja --temp %g --top-k %lld --top-p %g --min-p %g --repeat-penalty %g",
             quoted(q, sizeof q, p->path), p->config->max_pos,
             g->has_temperature ? g->temperature : 1.0, (long long)(g->has_top_k ? g->top_k : 0),
             g->has_top_p ? g->top_p : 1.0, g->has_min_p ? g->min_p : 0.0,
             g->has_repetition_penalty ? g->repetition_penalty : 1.0);
    cJSON_AddStringToObject(p->doc, "command", line);
    add(p->differences,
        "sampling: llama.cpp's own defaults (temperature 0.8, top-k 40, top-p 0.95, min-p 0.05) "
        "stand in place of generation_config.json's; the command says the model's, or neutral "
        "ones");
    add(p->differences,
        "arithmetic: llama.cpp rounds activations to 8 bits in blocks of 32, llmq by tokens or not "
        "at all (--activations): answers differ in the last digits");
    add(p->differences, "splitting: between GPUs by layers or rows (--split-mode); group sizes do "
                        "not limit it");
    if (!src_find_blob(p->src, "tokenizer.json") && !src_find_blob(p->src, "tokenizer.model"))
        add(p->differences, "tokenizer: there is none in this model: only ids can be sent");
}

/* ---- the table ---- */
static const struct {
    const char *name;
    void (*fill)(plan *p);
} engines[] = { { "vllm", for_vllm }, { "sglang", for_sglang }, { "llama.cpp", for_llama_cpp } };

const char *handover_engine(size_t i) { return i < LQ_COUNT(engines) ? engines[i].name : NULL; }

lq_status handover_plan(cJSON **out, const src_source *src, const char *model, const char *engine,
                        lq_err *err)
{
    size_t e = 0;
    while (e < LQ_COUNT(engines) && strcmp(engines[e].name, engine) != 0)
        e++;
    if (e == LQ_COUNT(engines))
        return lq_fail(err, LQ_EUSAGE, "engine: expected vllm, sglang or llama.cpp, found '%.60s'",
                       engine);
    plan p = { .src = src, .config = src_config(src), .model = model, .doc = cJSON_CreateObject() };
    const src_blob *b = src_find_blob(src, "generation_config.json");
    lq_err why = { "" };
    const bool bad = gen_read(&p.gen, b ? b->data : NULL, b ? b->bytes : 0, &why);
    if (bad) p.gen = (gen_defaults){ 0 };
    read_method(&p);
    cJSON_AddStringToObject(p.doc, "engine", engine);
    cJSON_AddStringToObject(p.doc, "model", model);
    p.prepare = cJSON_AddArrayToObject(p.doc, "prepare");
    p.files = cJSON_AddArrayToObject(p.doc, "files");
    p.differences = cJSON_AddArrayToObject(p.doc, "differences");
    if (bad) add(p.differences, "generation_config.json: %s: it is taken for none", why.msg);
    engines[e].fill(&p);
    const bool runs = js_get(p.doc, "command") != NULL;
    if (runs)
        add_files(&p);
    else
        cJSON_AddNullToObject(p.doc, "command");
    if (!cJSON_AddBoolToObject(p.doc, "runs", runs)) {
        cJSON_Delete(p.doc);
        return lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    *out = p.doc;
    return LQ_OK;
}
