/* runtime/engine/sentence.c - see sentence.h. */
#include "runtime/engine/sentence.h"

#include "base/json.h"
#include "formats/hf/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

typedef double act_fn(double x);

/* A step behind the pooling: W NULL is a vector's length made 1. */
typedef struct {
    float *W, *bias; /* [N,K], [N] or NULL */
    int64_t N, K;
    act_fn *act; /* NULL: none */
} step;

enum { MAX_STEPS = 16, MAX_FILE = 1 << 20 };
struct sentence {
    eng_pool pool;
    int64_t hidden, width, widest, max_tokens;
    bool lowers;
    step steps[MAX_STEPS];
    int n;
    cJSON *config; /* config_sentence_transformers.json, or NULL */
    lq_arena arena;
};

/* ---- arithmetic ---- */
static double relu(double x) { return x > 0 ? x : 0; }
static double gelu(double x) { return 0.5 * x * (1 + erf(x * sqrt(0.5))); }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double silu(double x) { return x * sigmoid(x); }

static const struct {
    const char *name;
    act_fn *fn;
} acts[] = { { "Identity", NULL }, { "Tanh", tanh },       { "ReLU", relu },
             { "GELU", gelu },     { "Sigmoid", sigmoid }, { "SiLU", silu } };

static void run_dense(const step *t, double *y, const double *x)
{
    for (int64_t i = 0; i < t->N; i++) {
        double sum = t->bias ? (double)t->bias[i] : 0;
        for (int64_t k = 0; k < t->K; k++)
            sum += (double)t->W[i * t->K + k] * x[k];
        y[i] = t->act ? t->act(sum) : sum;
    }
}

static void normalize(double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int64_t i = 0; i < n && sum > 0; i++)
        x[i] /= sqrt(sum);
}

lq_status sentence_run(const sentence *s, float *out, const double *pooled, lq_err *err)
{
    double *x = malloc(2 * (size_t)s->widest * sizeof *x), *y = x ? x + s->widest : NULL;
    if (!x) return lq_fail(err, LQ_ENOMEM, "an embedding: out of memory");
    double *from = x;
    int64_t n = s->hidden;
    memcpy(from, pooled, (size_t)n * sizeof *from);
    for (const step *t = s->steps; t < s->steps + s->n; t++) {
        if (!t->W) {
            normalize(from, n);
            continue;
        }
        double *to = from == x ? y : x;
        run_dense(t, to, from);
        from = to;
        n = t->N;
    }
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)from[i];
    free(x);
    return LQ_OK;
}

/* ---- files ---- */

/* The last part of "sentence_transformers.models.Pooling". */
static const char *last_part(const char *type)
{
    const char *dot = strrchr(type, '.');
    return dot ? dot + 1 : type;
}

/* A file of the module in the folder `path`. */
static const src_blob *module_blob(char name[128], const src_source *src, const char *path,
                                   const char *file)
{
    const size_t n = strlen(path), slash = n && path[n - 1] == '/';
    snprintf(name, 128, "%.*s%s%s", n < 80 ? (int)(n - slash) : 80, path, n ? "." : "", file);
    return src_find_blob(src, name);
}

static lq_status read_json(cJSON **out, const src_source *src, const char *path, const char *file,
                           lq_err *err)
{
    char name[128];
    const src_blob *b = module_blob(name, src, path, file);
    if (!b) return lq_fail(err, LQ_ENOENT, "%s%s%s: not found", path, *path ? "/" : "", file);
    lq_status s = js_parse(out, (const char *)b->data, b->bytes, MAX_FILE, 0, err);
    return s ? lq_wrap(err, s, "%s%s%s", path, *path ? "/" : "", file) : LQ_OK;
}

static const struct {
    const char *flag, *word;
    eng_pool pool;
} modes[] = { { "pooling_mode_cls_token", "cls", ENG_POOL_FIRST },
              { "pooling_mode_lasttoken", "lasttoken", ENG_POOL_LAST },
              { "pooling_mode_max_tokens", "max", ENG_POOL_MAX },
              { "pooling_mode_mean_tokens", "mean", ENG_POOL_MEAN },
              { "pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", ENG_POOL_ROOT },
              { "pooling_mode_weightedmean_tokens", "weightedmean", ENG_POOL_WEIGHTED } };

/* A flag for each mode, or the mode's word. */
static lq_status read_mode(sentence *s, const cJSON *j, lq_err *err)
{
    const char *word = NULL;
    lq_status st = js_str(j, "pooling_mode", false, &word, err);
    int n = 0;
    for (size_t i = 0; i < LQ_COUNT(modes) && !st; i++) {
        bool on = word && strcmp(modes[i].word, word) == 0;
        if (!word) st = js_bool(j, modes[i].flag, false, &on, err);
        if (on) s->pool = modes[i].pool;
        n += on;
    }
    if (st || n == 1) return st;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "pooling_mode: expected one of cls, lasttoken, max, mean, "
                   "mean_sqrt_len_tokens and weightedmean, found %s%.40s",
                   word ? ""
                   : n  ? "several"
                        : "none",
                   word ? word : "");
}

static lq_status add_pooling(sentence *s, const cJSON *j, const src_source *src, const char *path,
                             lq_err *err)
{
    bool prompt = true;
    (void)src, (void)path;
    lq_status st = read_mode(s, j, err);
    if (!st) st = js_bool(j, "include_prompt", false, &prompt, err);
    if (!st && !prompt)
        st = lq_fail(err, LQ_EUNSUPPORTED,
                     "include_prompt: expected true (a prompt's rows count), found false");
    return st;
}

static lq_status read_act(act_fn **fn, const cJSON *j, lq_err *err)
{
    const char *text = "Tanh"; /* where the file is silent */
    lq_status s = js_str(j, "activation_function", false, &text, err);
    for (size_t i = 0; i < LQ_COUNT(acts) && !s; i++)
        if (strcmp(acts[i].name, last_part(text)) == 0) return *fn = acts[i].fn, LQ_OK;
    return s ? s
             : lq_fail(err, LQ_EUNSUPPORTED,
                       "activation_function: expected Identity, Tanh, ReLU, GELU, Sigmoid or SiLU, "
                       "found %.80s",
                       text);
}

/* A tensor [N,K] (K 0: [N]) as f32, in the arena. */
static lq_status read_floats(float **out, sentence *s, const st_file *f, const char *name,
                             int64_t N, int64_t K, lq_err *err)
{
    const st_tensor *t = st_find(f, name);
    const int64_t n = K ? N * K : N;
    if (!t) return lq_fail(err, LQ_ENOENT, "%s: not found", name);
    if (t->n_dims != (K ? 2 : 1) || t->shape[0] != N || (K && t->shape[1] != K) ||
        !lq_dtype_is_float(t->dtype))
        return lq_fail(err, LQ_ESHAPE, "%s: expected floats [%" PRId64 ",%" PRId64 "]", name, N,
                       K ? K : 1);
    *out = lq_push(&s->arena, (size_t)n * sizeof **out);
    if (!*out) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", name);
    lq_to_f32(*out, t->data, t->dtype, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite((*out)[i]))
            return lq_fail(err, LQ_EVALUE, "%s: element %" PRId64 " is no number", name, i);
    return LQ_OK;
}

static lq_status read_weights(step *t, sentence *s, const src_source *src, const char *path,
                              bool bias, lq_err *err)
{
    char name[128];
    st_file f;
    const src_blob *b = module_blob(name, src, path, "model.safetensors");
    if (!b) return lq_fail(err, LQ_ENOENT, "%s/model.safetensors: not found", path);
    lq_status st = st_open_bytes(&f, b->data, b->bytes, err);
    if (st) return lq_wrap(err, st, "%s/model.safetensors", path);
    st = read_floats(&t->W, s, &f, "linear.weight", t->N, t->K, err);
    if (!st && bias) st = read_floats(&t->bias, s, &f, "linear.bias", t->N, 0, err);
    st_close(&f);
    return st ? lq_wrap(err, st, "%s/model.safetensors", path) : LQ_OK;
}

static lq_status add_dense(sentence *s, const cJSON *j, const src_source *src, const char *path,
                           lq_err *err)
{
    enum { WIDE = 1 << 20 };
    step *t = &s->steps[s->n++];
    const char *in = NULL, *out = NULL;
    bool bias = true;
    lq_status st = js_i64(j, "in_features", true, 1, WIDE, &t->K, err);
    if (!st) st = js_i64(j, "out_features", true, 1, WIDE, &t->N, err);
    if (!st) st = js_bool(j, "bias", false, &bias, err);
    if (!st) st = read_act(&t->act, j, err);
    if (!st) st = js_str(j, "module_input_name", false, &in, err);
    if (!st) st = js_str(j, "module_output_name", false, &out, err);
    if (!st && ((in && strcmp(in, "sentence_embedding") != 0) ||
                (out && strcmp(out, "sentence_embedding") != 0)))
        st = lq_fail(err, LQ_EUNSUPPORTED,
                     "module_input_name: expected sentence_embedding in and out, found others");
    if (!st && t->K != s->width)
        st = lq_fail(err, LQ_ESHAPE, "in_features: expected %" PRId64 ", found %" PRId64, s->width,
                     t->K);
    if (st) return lq_wrap(err, st, "%s/config.json", path);
    s->width = t->N;
    if (s->widest < t->N) s->widest = t->N;
    return read_weights(t, s, src, path, bias, err);
}

/* ---- modules ---- */

static lq_status add_module(sentence *s, int i, const char *type, const char *path,
                            const src_source *src, lq_err *err)
{
    const char *what = last_part(type);
    const bool pooling = strcmp(what, "Pooling") == 0, dense = strcmp(what, "Dense") == 0;
    const bool fits = i == 0   ? strcmp(what, "Transformer") == 0
                      : i == 1 ? pooling
                               : dense || strcmp(what, "Normalize") == 0;
    if (!fits || s->n == MAX_STEPS)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "module %d: expected a Transformer, Pooling, then at most %d Dense and "
                       "Normalize, found %.80s",
                       i, MAX_STEPS, what);
    if (i == 0) return LQ_OK;
    if (!pooling && !dense) return s->n++, LQ_OK;
    cJSON *j = NULL;
    lq_status st = read_json(&j, src, path, "config.json", err);
    if (!st && pooling) {
        st = add_pooling(s, j, src, path, err);
        if (st) lq_wrap(err, st, "%s/config.json", path);
    } else if (!st) {
        st = add_dense(s, j, src, path, err);
    }
    cJSON_Delete(j);
    return st;
}

/* A reranker's modules end with the odds of a word, or with a classifier. */
static bool gives_vectors(const cJSON *modules)
{
    for (const cJSON *m = modules->child; m; m = m->next) {
        const char *type = cJSON_GetStringValue(js_get(m, "type"));
        if (type && (strcmp(last_part(type), "LogitScore") == 0 || strstr(type, "cross_encoder")))
            return false;
    }
    return true;
}

static lq_status add_modules(sentence *s, const cJSON *modules, const src_source *src, lq_err *err)
{
    lq_status st = LQ_OK;
    int i = 0;
    for (const cJSON *m = modules->child; m && !st; m = m->next, i++) {
        const char *type = NULL, *path = NULL;
        st = js_str(m, "type", true, &type, err);
        if (!st) st = js_str(m, "path", true, &path, err);
        if (!st) st = add_module(s, i, type, path, src, err);
    }
    if (!st && i < 2)
        st = lq_fail(err, LQ_EVALUE, "expected a Transformer and a Pooling, found %d modules", i);
    return st;
}

/* Of the settings those that change a text. */
static lq_status read_settings(sentence *s, const src_source *src, lq_err *err)
{
    static const char file[] = "sentence_bert_config.json";
    cJSON *j = NULL;
    if (!src_find_blob(src, file)) return LQ_OK;
    lq_status st = read_json(&j, src, "", file, err);
    if (st) return st;
    st = js_bool(j, "do_lower_case", false, &s->lowers, err);
    if (!st) st = js_i64(j, "max_seq_length", false, 1, INT32_MAX, &s->max_tokens, err);
    cJSON_Delete(j);
    return st ? lq_wrap(err, st, "%s", file) : LQ_OK;
}

static lq_status check_prompts(const cJSON *j, lq_err *err)
{
    const cJSON *prompts = js_get(j, "prompts");
    const char *def = NULL;
    lq_status st = js_str(j, "default_prompt_name", false, &def, err);
    if (!st && prompts && !cJSON_IsObject(prompts))
        st = lq_fail(err, LQ_EVALUE, "prompts: expected an object");
    for (const cJSON *p = prompts ? prompts->child : NULL; p && !st; p = p->next)
        if (!cJSON_IsString(p))
            st = lq_fail(err, LQ_EVALUE, "prompts: %.40s: expected a text", p->string);
    if (!st && def && !cJSON_IsString(js_get(prompts, def)))
        st = lq_fail(err, LQ_EVALUE, "default_prompt_name: expected one of prompts, found %.40s",
                     def);
    return st ? lq_wrap(err, st, "config_sentence_transformers.json") : LQ_OK;
}

lq_status sentence_open(sentence **out, const src_source *src, int64_t hidden, lq_err *err)
{
    cJSON *modules = NULL;
    *out = NULL;
    if (!src_find_blob(src, "modules.json")) return LQ_OK;
    lq_status st = read_json(&modules, src, "", "modules.json", err);
    if (!st && !cJSON_IsArray(modules))
        st = lq_fail(err, LQ_EVALUE, "modules.json: expected an array");
    if (st || !gives_vectors(modules)) return cJSON_Delete(modules), st;
    sentence *s = calloc(1, sizeof *s);
    if (!s) return cJSON_Delete(modules), lq_fail(err, LQ_ENOMEM, "modules.json: out of memory");
    s->hidden = s->width = s->widest = hidden;
    st = add_modules(s, modules, src, err);
    if (st) lq_wrap(err, st, "modules.json");
    if (!st) st = read_settings(s, src, err);
    if (!st && src_find_blob(src, "config_sentence_transformers.json"))
        st = read_json(&s->config, src, "", "config_sentence_transformers.json", err);
    if (!st) st = check_prompts(s->config, err);
    cJSON_Delete(modules);
    if (st)
        sentence_close(s);
    else
        *out = s;
    return st;
}

lq_status sentence_check(const src_source *src, int64_t hidden, lq_err *err)
{
    sentence *s;
    const lq_status st = sentence_open(&s, src, hidden, err);
    sentence_close(s);
    return st;
}

void sentence_close(sentence *s)
{
    if (!s) return;
    cJSON_Delete(s->config);
    lq_arena_free(&s->arena);
    free(s);
}

eng_pool sentence_pool(const sentence *s) { return s->pool; }
int64_t sentence_width(const sentence *s) { return s->width; }
int64_t sentence_max_tokens(const sentence *s) { return s->max_tokens; }
bool sentence_lowers(const sentence *s) { return s->lowers; }
bool sentence_normalizes(const sentence *s) { return s->n && !s->steps[s->n - 1].W; }

const char *sentence_prompt(const sentence *s, const char *name, char *names, size_t n)
{
    const cJSON *prompts = js_get(s->config, "prompts");
    size_t at = 0;
    if (!name) name = cJSON_GetStringValue(js_get(s->config, "default_prompt_name"));
    if (!name) return "";
    const char *text = cJSON_GetStringValue(js_get(prompts, name));
    if (text) return text;
    for (const cJSON *p = prompts ? prompts->child : NULL; p && at + 1 < n; p = p->next) {
        const int k = snprintf(names + at, n - at, "%s%.60s", at ? ", " : "", p->string);
        at += k > 0 ? (size_t)k : 0;
    }
    if (!at) snprintf(names, n, "none");
    return NULL;
}
