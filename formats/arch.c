/* formats/arch.c - config.json to numbers and back, names and shapes of tensors. Positions:
 * formats/arch_rope.c; the table of architectures: formats/arch_rows.c. */
#include "formats/arch.h"

#include "formats/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- roles ---- */
static const struct {
    const char *text;
    bool linear;
} roles[] = {
#define X(name, text, linear) { text, linear },
    ARCH_ROLES(X)
#undef X
};

const char *arch_role_text(arch_role r) { return (unsigned)r < ARCH_N_ROLES ? roles[r].text : "?"; }
bool arch_role_linear(arch_role r) { return (unsigned)r < ARCH_N_ROLES && roles[r].linear; }
bool arch_role_per_layer(arch_role r) { return r >= R_ATTN_NORM && r < ARCH_N_ROLES; }

/* ---- rows ---- */
const arch_row *arch_find(const char *arch)
{
    for (const arch_row *r = arch_rows; r->arch; r++)
        if (strcmp(r->arch, arch) == 0) return r;
    return NULL;
}

void arch_list(char *out, size_t n)
{
    size_t at = 0;
    if (n) out[0] = 0;
    for (const arch_row *r = arch_rows; r->arch && at < n; r++) {
        int w = snprintf(out + at, n - at, "%s%s", at ? ", " : "", r->arch);
        at += w > 0 ? (size_t)w : 0;
    }
}

static lq_status unknown_arch(const char *what, const char *name, lq_err *err)
{
    char known[320];
    arch_list(known, sizeof known);
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected one of %s; found \"%.80s\"", what, known,
                   name);
}

static lq_status find_row(arch_config *c, const cJSON *config, lq_err *err)
{
    const cJSON *a = js_get(config, "architectures");
    const char *type = NULL;
    if (cJSON_IsArray(a) && cJSON_IsString(a->child)) {
        c->row = arch_find(a->child->valuestring);
        return c->row ? LQ_OK : unknown_arch("architectures", a->child->valuestring, err);
    }
    if (a && !(cJSON_IsArray(a) && !a->child))
        return lq_fail(err, LQ_EVALUE, "architectures: expected an array of strings");
    lq_status s = js_str(config, "model_type", true, &type, err);
    if (s) return s;
    for (const arch_row *r = arch_rows; r->arch; r++)
        if (strcmp(r->model_type, type) == 0) {
            c->row = r;
            return LQ_OK;
        }
    return unknown_arch("model_type", type, err);
}

/* ---- numbers ---- */
static const int64_t MAX_WIDTH = 1 << 22; /* of any one dimension but the vocabulary's */

static lq_status read_heads(arch_config *c, const cJSON *j, lq_err *err)
{
    const arch_row *row = c->row;
    const cJSON *kv = cJSON_GetObjectItemCaseSensitive(j, row->keys->kv_heads);
    c->kv_heads = kv || !row->def_kv_heads ? c->heads : row->def_kv_heads; /* null: as many */
    lq_status s = js_i64(j, row->keys->kv_heads, false, 1, MAX_WIDTH, &c->kv_heads, err);
    if (s) return s;
    const cJSON *dim = cJSON_GetObjectItemCaseSensitive(j, row->keys->head_dim);
    if (js_get(j, row->keys->head_dim))
        return js_i64(j, row->keys->head_dim, true, 1, MAX_WIDTH, &c->head_dim, err);
    if (!dim && row->def_head_dim) {
        c->head_dim = row->def_head_dim;
        return LQ_OK;
    }
    if (c->hidden % c->heads)
        return lq_fail(err, LQ_EVALUE,
                       "%s: expected a divisor of %s %" PRId64 " (there is no %s), found %" PRId64,
                       row->keys->heads, row->keys->hidden, c->hidden, row->keys->head_dim,
                       c->heads);
    c->head_dim = c->hidden / c->heads;
    return LQ_OK;
}

static lq_status read_sizes(arch_config *c, const cJSON *j, lq_err *err)
{
    const arch_keys *k = c->row->keys;
    c->max_pos = 2048;
    c->norm_eps = 1e-6;
    lq_status s = js_i64(j, k->vocab, true, 1, INT32_MAX, &c->vocab, err);
    if (!s) s = js_i64(j, k->hidden, true, 1, MAX_WIDTH, &c->hidden, err);
    if (!s) s = js_i64(j, k->layers, true, 1, 65536, &c->layers, err);
    if (!s) s = js_i64(j, k->heads, true, 1, MAX_WIDTH, &c->heads, err);
    if (!s) s = js_i64(j, k->ffn, true, 1, MAX_WIDTH, &c->ffn, err);
    if (!s) s = js_i64(j, k->max_pos, false, 1, INT32_MAX, &c->max_pos, err);
    if (!s) s = js_f64(j, k->norm_eps, false, 0, 1, &c->norm_eps, err);
    if (!s) s = read_heads(c, j, err);
    if (!s) c->attn_scale = 1 / sqrt((double)c->head_dim);
    return s;
}

static const struct {
    const char *text;
    arch_act act;
} acts[] = {
    { "silu", ARCH_SILU },          { "swish", ARCH_SILU },
    { "gelu", ARCH_GELU },          { "gelu_tanh", ARCH_GELU_TANH },
    { "gelu_new", ARCH_GELU_TANH }, { "gelu_pytorch_tanh", ARCH_GELU_TANH },
    { "relu", ARCH_RELU },
};

static lq_status read_act(arch_act *a, const cJSON *j, const char *key, bool required, lq_err *err)
{
    const char *text = "silu";
    lq_status s = js_str(j, key, required, &text, err);
    if (s) return s;
    for (size_t i = 0; i < LQ_COUNT(acts); i++)
        if (strcmp(acts[i].text, text) == 0) return *a = acts[i].act, LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "%s: expected silu, gelu, gelu_new, gelu_pytorch_tanh or relu, found \"%.40s\"",
                   key, text);
}

static const char *act_text(arch_act a)
{
    size_t i = 0;
    while (acts[i].act != a)
        i++;
    return acts[i].text;
}

static lq_status read_dtype(arch_config *c, const cJSON *j, lq_err *err)
{
    static const struct {
        const char *text;
        lq_dtype d;
    } names[] = { { "float32", LQ_F32 }, { "float16", LQ_F16 }, { "bfloat16", LQ_BF16 } };
    const char *text = "float32";
    lq_status s = js_str(j, "torch_dtype", false, &text, err);
    if (!s) s = js_str(j, "dtype", false, &text, err);
    if (s) return s;
    if (strncmp(text, "torch.", 6) == 0) text += 6;
    for (size_t i = 0; i < LQ_COUNT(names); i++)
        if (strcmp(names[i].text, text) == 0) return c->dtype = names[i].d, LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "dtype: expected float32, float16 or bfloat16, found \"%.40s\"", text);
}

static lq_status read_bias(int *out, const cJSON *j, const char *key, lq_err *err)
{
    bool b = false;
    *out = -1;
    lq_status s = js_bool(j, key, false, &b, err);
    if (!s && js_get(j, key)) *out = b;
    return s;
}

/* ---- sliding windows ---- */
static lq_status read_layer_types(arch_config *c, const cJSON *types, lq_err *err)
{
    int64_t n = cJSON_IsArray(types) ? cJSON_GetArraySize(types) : -1, i = 0;
    if (n != c->layers)
        return lq_fail(err, LQ_EVALUE, "layer_types: expected an array of %" PRId64 " strings",
                       c->layers);
    for (const cJSON *t = types->child; t; t = t->next, i++) {
        const char *text = cJSON_IsString(t) ? t->valuestring : "";
        bool window = strcmp(text, "sliding_attention") == 0;
        if (!window && strcmp(text, "full_attention") != 0)
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "layer_types: expected full_attention or sliding_attention, found "
                           "\"%.40s\"",
                           text);
        c->layer_window[i] = window && c->window;
    }
    return LQ_OK;
}

static lq_status read_windows(arch_config *c, const cJSON *j, lq_err *err)
{
    const arch_row *row = c->row;
    c->layer_window = calloc((size_t)c->layers, sizeof *c->layer_window);
    if (!c->layer_window)
        return lq_fail(err, LQ_ENOMEM, "no memory for %" PRId64 " layers", c->layers);
    if (row->window == WINDOW_NONE) return LQ_OK;
    bool null = cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(j, "sliding_window"));
    int64_t from = 0;
    c->window = null ? 0 : row->def_window;
    lq_status s = js_i64(j, "sliding_window", false, 1, INT32_MAX, &c->window, err);
    if (!s && row->window == WINDOW_IF_USED) {
        bool use = false;
        from = 28; /* what transformers assumes for the two that have this key */
        s = js_bool(j, "use_sliding_window", false, &use, err);
        if (!s) s = js_i64(j, "max_window_layers", false, 0, INT32_MAX, &from, err);
        if (!use) c->window = 0;
    }
    if (s) return s;
    const cJSON *types = js_get(j, "layer_types");
    if (types) s = read_layer_types(c, types, err);
    for (int64_t i = 0; i < c->layers && !types; i++)
        c->layer_window[i] = c->window && i >= from;
    bool any = false;
    for (int64_t i = 0; i < c->layers; i++)
        any |= c->layer_window[i];
    if (!any) c->window = 0;
    return s;
}

/* ---- special tokens ---- */
static lq_status add_eos(arch_config *c, const cJSON *v, lq_err *err)
{
    int64_t id;
    if (!js_whole(v, -1, INT32_MAX, &id)) {
        char found[64];
        return lq_fail(err, LQ_EVALUE, "eos_token_id: expected a token id, found %s",
                       js_describe(found, v));
    }
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id) return LQ_OK;
    if (id < 0) return LQ_OK;
    if (c->n_eos == (int)LQ_COUNT(c->eos))
        return lq_fail(err, LQ_EUNSUPPORTED, "eos_token_id: expected at most %zu ids, found more",
                       LQ_COUNT(c->eos));
    c->eos[c->n_eos++] = (int32_t)id;
    return LQ_OK;
}

static lq_status read_eos(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *v = js_get(j, "eos_token_id");
    lq_status s = LQ_OK;
    if (!cJSON_IsArray(v)) return v ? add_eos(c, v, err) : LQ_OK;
    for (const cJSON *e = v->child; e && !s; e = e->next)
        s = add_eos(c, e, err);
    return s;
}

static lq_status read_special(arch_config *c, const cJSON *config, const cJSON *generation,
                              lq_err *err)
{
    int64_t bos = -1;
    for (size_t i = 0; i < LQ_COUNT(c->eos); i++)
        c->eos[i] = -1;
    lq_status s = js_i64(config, "bos_token_id", false, -1, INT32_MAX, &bos, err);
    c->bos = (int32_t)bos;
    if (!s) s = read_eos(c, config, err);
    if (!s && generation) {
        s = read_eos(c, generation, err);
        if (s) lq_wrap(err, s, "generation_config.json");
    }
    return s;
}

/* ---- the whole ---- */

/* What must hold between the numbers, wherever they came from. */
static lq_status check_config(const arch_config *c, lq_err *err)
{
    if (c->heads % c->kv_heads)
        return lq_fail(err, LQ_EVALUE,
                       "%s: expected a divisor of %" PRId64 " heads, found %" PRId64,
                       c->row->keys->kv_heads, c->heads, c->kv_heads);
    if (c->heads * c->head_dim > MAX_WIDTH)
        return lq_fail(err, LQ_EVALUE,
                       "%s: expected %" PRId64 " heads of at most %" PRId64 ", found %" PRId64,
                       c->row->keys->head_dim, c->heads, MAX_WIDTH / c->heads, c->head_dim);
    return c->row->pos == POS_ROPE ? arch_rope_check(c, err) : LQ_OK;
}

lq_status arch_config_parse(arch_config *c, const cJSON *config, const cJSON *generation,
                            lq_err *err)
{
    memset(c, 0, sizeof *c);
    if (!cJSON_IsObject(config)) return lq_fail(err, LQ_EVALUE, "expected a JSON object");
    lq_status s = find_row(c, config, err);
    if (s) return s;
    c->tied = c->row->def_tied;
    s = read_sizes(c, config, err);
    if (!s) s = read_act(&c->act, config, c->row->keys->act, false, err);
    if (!s) s = read_dtype(c, config, err);
    if (!s) s = js_bool(config, "tie_word_embeddings", false, &c->tied, err);
    if (!s) s = read_bias(&c->attn_bias, config, "attention_bias", err);
    if (!s) s = read_bias(&c->mlp_bias, config, "mlp_bias", err);
    if (!s) s = read_special(c, config, generation, err);
    if (!s && c->row->pos == POS_ROPE) s = arch_rope_parse(c, config, err);
    if (!s) s = read_windows(c, config, err);
    if (!s) s = check_config(c, err);
    if (s) arch_config_free(c);
    return s;
}

void arch_config_free(arch_config *c)
{
    free(c->layer_window);
    memset(c, 0, sizeof *c);
}

/* ---- our own spelling: X(key, field, lowest, highest) ---- */
#define OWN_INTS(X)                                         \
    X("vocab", vocab, 1, INT32_MAX)                         \
    X("hidden", hidden, 1, MAX_WIDTH)                       \
    X("layers", layers, 1, 65536)                           \
    X("heads", heads, 1, MAX_WIDTH)                         \
    X("kv_heads", kv_heads, 1, MAX_WIDTH)                   \
    X("head_dim", head_dim, 1, MAX_WIDTH)                   \
    X("ffn", ffn, 1, MAX_WIDTH)                             \
    X("max_pos", max_pos, 1, INT32_MAX)                     \
    X("rope_dims", rope_dims, 0, MAX_WIDTH)                 \
    X("rope_original_max", rope.original_max, 0, INT32_MAX) \
    X("window", window, 0, INT32_MAX)
#define OWN_REALS(X)                            \
    X("norm_eps", norm_eps, 0, 1)               \
    X("attn_scale", attn_scale, 0, 1e6)         \
    X("rope_theta", rope_theta, 0, 1e15)        \
    X("rope_factor", rope.factor, 0, 1e6)       \
    X("rope_low_freq", rope.low_freq, 0, 1e6)   \
    X("rope_high_freq", rope.high_freq, 0, 1e6) \
    X("rope_beta_fast", rope.beta_fast, 0, 1e9) \
    X("rope_beta_slow", rope.beta_slow, 0, 1e9) \
    X("rope_attention_factor", rope.attention_factor, 0, 1e6)

cJSON *arch_config_json(const arch_config *c)
{
    cJSON *j = cJSON_CreateObject();
    bool ok = j && cJSON_AddStringToObject(j, "arch", c->row->arch);
#define X(key, field, lo, hi) ok = ok && cJSON_AddNumberToObject(j, key, (double)c->field);
    OWN_INTS(X)
    OWN_REALS(X)
#undef X
    ok = ok && cJSON_AddStringToObject(j, "act", act_text(c->act));
    ok = ok && cJSON_AddStringToObject(j, "rope", arch_rope_text(c->rope.kind));
    ok = ok && cJSON_AddBoolToObject(j, "rope_truncate", c->rope.truncate);
    ok = ok && cJSON_AddStringToObject(j, "dtype", lq_dtype_text(c->dtype));
    ok = ok && cJSON_AddBoolToObject(j, "tied", c->tied);
    ok = ok && cJSON_AddNumberToObject(j, "attn_bias", c->attn_bias);
    ok = ok && cJSON_AddNumberToObject(j, "mlp_bias", c->mlp_bias);
    ok = ok && cJSON_AddNumberToObject(j, "bos", c->bos);
    cJSON *eos = ok ? cJSON_AddArrayToObject(j, "eos") : NULL;
    ok = eos != NULL;
    for (int i = 0; i < c->n_eos && ok; i++)
        ok = cJSON_AddItemToArray(eos, cJSON_CreateNumber(c->eos[i]));
    cJSON *win = ok ? cJSON_AddArrayToObject(j, "window_layers") : NULL;
    ok = win != NULL;
    for (int64_t i = 0; i < c->layers && ok; i++)
        if (c->layer_window[i]) ok = cJSON_AddItemToArray(win, cJSON_CreateNumber((double)i));
    if (ok) return j;
    cJSON_Delete(j);
    return NULL;
}

static lq_status own_lists(arch_config *c, const cJSON *j, lq_err *err)
{
    lq_status s = LQ_OK;
    const cJSON *eos = js_get(j, "eos"), *win = js_get(j, "window_layers");
    if (!cJSON_IsArray(eos)) return lq_fail(err, LQ_EVALUE, "eos: expected an array");
    if (!cJSON_IsArray(win)) return lq_fail(err, LQ_EVALUE, "window_layers: expected an array");
    for (const cJSON *e = eos->child; e && !s; e = e->next)
        s = add_eos(c, e, err);
    for (const cJSON *w = win->child; w && !s; w = w->next) {
        int64_t i;
        if (js_whole(w, 0, c->layers - 1, &i) && c->window)
            c->layer_window[i] = true;
        else
            s = lq_fail(err, LQ_EVALUE,
                        "window_layers: expected layers 0..%" PRId64 " of a model with a window",
                        c->layers - 1);
    }
    return s;
}

static lq_status own_words(arch_config *c, const cJSON *j, lq_err *err)
{
    const char *rope = NULL, *dtype = NULL;
    int64_t attn_bias = 0, mlp_bias = 0, bos = 0;
    lq_status s = read_act(&c->act, j, "act", true, err);
    if (!s) s = js_str(j, "rope", true, &rope, err);
    if (!s && !arch_rope_from_text(&c->rope.kind, rope))
        s = lq_fail(err, LQ_EUNSUPPORTED, "rope: unknown kind \"%.40s\"", rope);
    if (!s) s = js_bool(j, "rope_truncate", true, &c->rope.truncate, err);
    if (!s) s = js_str(j, "dtype", true, &dtype, err);
    if (!s && (!lq_dtype_from_text(&c->dtype, dtype) || !lq_dtype_is_float(c->dtype)))
        s = lq_fail(err, LQ_EUNSUPPORTED, "dtype: expected f32, f16 or bf16, found \"%.40s\"",
                    dtype);
    if (!s) s = js_bool(j, "tied", true, &c->tied, err);
    if (!s) s = js_i64(j, "attn_bias", true, -1, 1, &attn_bias, err);
    if (!s) s = js_i64(j, "mlp_bias", true, -1, 1, &mlp_bias, err);
    if (!s) s = js_i64(j, "bos", true, -1, INT32_MAX, &bos, err);
    c->attn_bias = (int)attn_bias;
    c->mlp_bias = (int)mlp_bias;
    c->bos = (int32_t)bos;
    return s;
}

lq_status arch_config_from_json(arch_config *c, const cJSON *j, lq_err *err)
{
    const char *arch = NULL;
    memset(c, 0, sizeof *c);
    for (size_t i = 0; i < LQ_COUNT(c->eos); i++)
        c->eos[i] = -1;
    lq_status s = js_str(j, "arch", true, &arch, err);
    if (s) return s;
    c->row = arch_find(arch);
    if (!c->row) return unknown_arch("arch", arch, err);
#define X(key, field, lo, hi) \
    if (!s) s = js_i64(j, key, true, lo, hi, &c->field, err);
    OWN_INTS(X)
#undef X
#define X(key, field, lo, hi) \
    if (!s) s = js_f64(j, key, true, lo, hi, &c->field, err);
    OWN_REALS(X)
#undef X
    if (!s) s = own_words(c, j, err);
    if (!s) {
        c->layer_window = calloc((size_t)c->layers, sizeof *c->layer_window);
        s = c->layer_window ? own_lists(c, j, err)
                            : lq_fail(err, LQ_ENOMEM, "no memory for layers");
    }
    if (!s) s = check_config(c, err);
    if (s) arch_config_free(c);
    return s;
}

/* ---- tensors ---- */
static const arch_name *name_of(const arch_row *row, arch_role r)
{
    for (const arch_name *n = row->names; n->role != ARCH_N_ROLES; n++)
        if (n->role == r) return n;
    return NULL;
}

bool arch_tensor_name(const arch_config *c, arch_role r, int64_t layer, const char *suffix,
                      char *out, size_t n)
{
    const arch_name *a = name_of(c->row, r);
    if (!a) return false;
    const char *at = strstr(a->name, "%d");
    int w = at ? snprintf(out, n, "%.*s%" PRId64 "%s.%s", (int)(at - a->name), a->name, layer,
                          at + 2, suffix)
               : snprintf(out, n, "%s.%s", a->name, suffix);
    return w > 0 && (size_t)w < n;
}

/* Does `name` begin with the pattern? Returns what follows it, NULL when not. */
static const char *match(const char *pattern, const char *name, int64_t *layer)
{
    const char *at = strstr(pattern, "%d");
    size_t head = at ? (size_t)(at - pattern) : strlen(pattern);
    if (strncmp(name, pattern, head) != 0) return NULL;
    name += head;
    if (!at) return name;
    const char *digits = name;
    int64_t v = 0;
    while (*name >= '0' && *name <= '9' && v < INT32_MAX)
        v = v * 10 + (*name++ - '0');
    if (name == digits || (*digits == '0' && name - digits > 1)) return NULL;
    *layer = v;
    size_t tail = strlen(at + 2);
    return strncmp(name, at + 2, tail) == 0 ? name + tail : NULL;
}

bool arch_role_of(const arch_config *c, const char *name, arch_role *r, int64_t *layer,
                  bool *is_bias)
{
    for (const arch_name *a = c->row->names; a->role != ARCH_N_ROLES; a++) {
        int64_t l = -1;
        const char *rest = match(a->name, name, &l);
        if (!rest || l >= c->layers) continue;
        bool bias = strcmp(rest, ".bias") == 0;
        if (!bias && strcmp(rest, ".weight") != 0) continue;
        *r = a->role;
        *layer = l;
        *is_bias = bias;
        return true;
    }
    return false;
}

int arch_wants_bias(const arch_config *c, arch_role r)
{
    const arch_name *a = name_of(c->row, r);
    if (!a || a->bias == BIAS_NO) return 0;
    return a->bias == BIAS_YES ? 1 : a->bias == BIAS_ATTN ? c->attn_bias : c->mlp_bias;
}

bool arch_role_optional(const arch_config *c, arch_role r)
{
    const arch_name *a = name_of(c->row, r);
    return !a || a->optional;
}

void arch_role_shape(const arch_config *c, arch_role r, int64_t *N, int64_t *K)
{
    const int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const struct {
        int64_t N, K;
    } shape[ARCH_N_ROLES] = {
        [R_EMBED] = { c->vocab, c->hidden },
        [R_FINAL_NORM] = { 1, c->hidden },
        [R_HEAD] = { c->vocab, c->hidden },
        [R_ATTN_NORM] = { 1, c->hidden },
        [R_Q] = { q, c->hidden },
        [R_K] = { kv, c->hidden },
        [R_V] = { kv, c->hidden },
        [R_O] = { c->hidden, q },
        [R_Q_NORM] = { 1, c->head_dim },
        [R_K_NORM] = { 1, c->head_dim },
        [R_MLP_NORM] = { 1, c->hidden },
        [R_GATE] = { c->ffn, c->hidden },
        [R_UP] = { c->ffn, c->hidden },
        [R_DOWN] = { c->hidden, c->ffn },
    };
    *N = shape[r].N;
    *K = shape[r].K;
}
