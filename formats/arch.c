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
    arch_kind kind;
} roles[] = {
#define X(name, text, kind) { text, kind },
    ARCH_ROLES(X)
#undef X
};

const char *arch_role_text(arch_role r) { return (unsigned)r < ARCH_N_ROLES ? roles[r].text : "?"; }
arch_kind arch_role_kind(arch_role r) { return roles[r].kind; }
bool arch_role_linear(arch_role r)
{
    return (unsigned)r < ARCH_N_ROLES && roles[r].kind == ARCH_LINEAR;
}
bool arch_role_per_layer(arch_role r) { return r >= R_ATTN_NORM && r < ARCH_N_ROLES; }
bool arch_role_per_expert(arch_role r) { return r >= R_EXPERT_GATE && r <= R_EXPERT_DOWN; }

/* ---- rows ---- */
static bool same_variant(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

const arch_row *arch_find(const char *arch, const char *variant)
{
    for (const arch_row *r = arch_rows; r->arch; r++)
        if (strcmp(r->arch, arch) == 0 && same_variant(r->variant, variant)) return r;
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
        c->row = arch_find(a->child->valuestring, NULL);
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

/* Every spelling of a number; the first is the usual one. */
enum { MAX_SPELLINGS = 6 };
typedef const char *const spellings[MAX_SPELLINGS];
static spellings vocab_keys = { "vocab_size" },
                 hidden_keys = { "hidden_size", "n_embd", "d_model" },
                 layers_keys = { "num_hidden_layers", "n_layer", "num_layers", "n_layers" },
                 heads_keys = { "num_attention_heads", "n_head", "num_heads", "n_heads" },
                 kv_heads_keys = { "num_key_value_heads", "num_kv_heads", "n_head_kv" },
                 head_dim_keys = { "head_dim" },
                 ffn_keys = { "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size" },
                 max_pos_keys = { "max_position_embeddings", "n_positions", "max_seq_len" },
                 eps_keys = { "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon",
                              "norm_epsilon" },
                 act_keys = { "hidden_activation", "hidden_act", "activation_function",
                              "activation" };

/* The spelling that this config uses. */
static const char *spelled(const cJSON *j, spellings k)
{
    for (int i = 0; i < MAX_SPELLINGS && k[i]; i++)
        if (cJSON_GetObjectItemCaseSensitive(j, k[i])) return k[i];
    return k[0];
}

static lq_status read_heads(arch_config *c, const cJSON *j, lq_err *err)
{
    const arch_row *row = c->row;
    const char *key = spelled(j, kv_heads_keys), *dim_key = spelled(j, head_dim_keys);
    const cJSON *kv = cJSON_GetObjectItemCaseSensitive(j, key);
    c->kv_heads = kv || !row->def_kv_heads ? c->heads : row->def_kv_heads; /* null: as many */
    lq_status s = js_i64(j, key, false, 1, MAX_WIDTH, &c->kv_heads, err);
    if (s) return s;
    const cJSON *dim = cJSON_GetObjectItemCaseSensitive(j, dim_key);
    if (js_get(j, dim_key)) return js_i64(j, dim_key, true, 1, MAX_WIDTH, &c->head_dim, err);
    if (!dim && row->def_head_dim) {
        c->head_dim = row->def_head_dim;
        return LQ_OK;
    }
    if (c->hidden % c->heads)
        return lq_fail(err, LQ_EVALUE,
                       "%s: expected a divisor of %s %" PRId64 " (there is no %s), found %" PRId64,
                       spelled(j, heads_keys), spelled(j, hidden_keys), c->hidden, dim_key,
                       c->heads);
    c->head_dim = c->hidden / c->heads;
    return LQ_OK;
}

static lq_status read_sizes(arch_config *c, const cJSON *j, lq_err *err)
{
    c->max_pos = 2048;
    c->norm_eps = 1e-6;
    lq_status s = js_i64(j, spelled(j, vocab_keys), true, 1, INT32_MAX, &c->vocab, err);
    if (!s) s = js_i64(j, spelled(j, hidden_keys), true, 1, MAX_WIDTH, &c->hidden, err);
    if (!s) s = js_i64(j, spelled(j, layers_keys), true, 1, 65536, &c->layers, err);
    if (!s) s = js_i64(j, spelled(j, heads_keys), true, 1, MAX_WIDTH, &c->heads, err);
    if (!s) s = js_i64(j, spelled(j, ffn_keys), true, 1, MAX_WIDTH, &c->ffn, err);
    if (!s) s = js_i64(j, spelled(j, max_pos_keys), false, 1, INT32_MAX, &c->max_pos, err);
    if (!s) s = js_f64(j, spelled(j, eps_keys), false, 0, 1, &c->norm_eps, err);
    if (!s) s = read_heads(c, j, err);
    if (s) return s;
    c->attn_scale = 1 / sqrt((double)c->head_dim);
    c->v_dim = c->head_dim;
    c->embed_dim = c->hidden;
    return LQ_OK;
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
        c->layer[i].window = window && c->window;
    }
    return LQ_OK;
}

static lq_status read_windows(arch_config *c, const cJSON *j, lq_err *err)
{
    const arch_row *row = c->row;
    c->layer = calloc((size_t)c->layers, sizeof *c->layer);
    if (!c->layer) return lq_fail(err, LQ_ENOMEM, "no memory for %" PRId64 " layers", c->layers);
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
        c->layer[i].window = c->window && i >= from;
    bool any = false;
    for (int64_t i = 0; i < c->layers; i++)
        any |= c->layer[i].window;
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
                       "kv_heads: expected a divisor of %" PRId64 " heads, found %" PRId64,
                       c->heads, c->kv_heads);
    if (c->heads * c->head_dim > MAX_WIDTH)
        return lq_fail(err, LQ_EVALUE,
                       "%s: expected %" PRId64 " heads of at most %" PRId64 ", found %" PRId64,
                       "head_dim", c->heads, MAX_WIDTH / c->heads, c->head_dim);
    return c->w.pos == POS_ROPE ? arch_rope_check(c, err) : LQ_OK;
}

lq_status arch_config_parse(arch_config *c, const cJSON *config, const cJSON *generation,
                            lq_err *err)
{
    memset(c, 0, sizeof *c);
    if (!cJSON_IsObject(config)) return lq_fail(err, LQ_EVALUE, "expected a JSON object");
    lq_status s = find_row(c, config, err);
    if (s) return s;
    c->w = c->row->w;
    c->tied = c->row->def_tied;
    c->embed_scale = c->residual_scale = c->logit_scale = 1;
    snprintf(c->prefix, sizeof c->prefix, "%s", c->row->prefix);
    s = read_sizes(c, config, err);
    if (!s) s = read_act(&c->act, config, spelled(config, act_keys), false, err);
    if (!s) s = read_dtype(c, config, err);
    if (!s) s = js_bool(config, "tie_word_embeddings", false, &c->tied, err);
    if (!s) s = read_bias(&c->attn_bias, config, "attention_bias", err);
    if (!s) s = read_bias(&c->mlp_bias, config, "mlp_bias", err);
    if (!s) s = read_special(c, config, generation, err);
    if (!s && c->w.pos == POS_ROPE) s = arch_rope_parse(c, config, err);
    if (!s) s = read_windows(c, config, err);
    if (!s) s = check_config(c, err);
    if (s) arch_config_free(c);
    return s;
}

void arch_config_free(arch_config *c)
{
    free(c->layer);
    memset(c, 0, sizeof *c);
}

/* ---- our own spelling: X(key, field, lowest, highest) ---- */
#define OWN_INTS(X)                                                    \
    X("vocab", vocab, 1, INT32_MAX)                                    \
    X("hidden", hidden, 1, MAX_WIDTH)                                  \
    X("layers", layers, 1, 65536)                                      \
    X("heads", heads, 1, MAX_WIDTH)                                    \
    X("kv_heads", kv_heads, 1, MAX_WIDTH)                              \
    X("head_dim", head_dim, 1, MAX_WIDTH)                              \
    X("ffn", ffn, 1, MAX_WIDTH)                                        \
    X("max_pos", max_pos, 1, INT32_MAX)                                \
    X("rope_dims", rope_dims, 0, MAX_WIDTH)                            \
    X("rope_original_max", rope[ROPE_MAIN].original_max, 0, INT32_MAX) \
    X("window", window, 0, INT32_MAX)
#define OWN_REALS(X)                                       \
    X("norm_eps", norm_eps, 0, 1)                          \
    X("attn_scale", attn_scale, 0, 1e6)                    \
    X("rope_theta", rope[ROPE_MAIN].theta, 0, 1e15)        \
    X("rope_factor", rope[ROPE_MAIN].factor, 0, 1e6)       \
    X("rope_low_freq", rope[ROPE_MAIN].low_freq, 0, 1e6)   \
    X("rope_high_freq", rope[ROPE_MAIN].high_freq, 0, 1e6) \
    X("rope_beta_fast", rope[ROPE_MAIN].beta_fast, 0, 1e9) \
    X("rope_beta_slow", rope[ROPE_MAIN].beta_slow, 0, 1e9) \
    X("rope_attention_factor", rope[ROPE_MAIN].attention_factor, 0, 1e6)

cJSON *arch_config_json(const arch_config *c)
{
    cJSON *j = cJSON_CreateObject();
    bool ok = j && cJSON_AddStringToObject(j, "arch", c->row->arch);
#define X(key, field, lo, hi) ok = ok && cJSON_AddNumberToObject(j, key, (double)c->field);
    OWN_INTS(X)
    OWN_REALS(X)
#undef X
    ok = ok && cJSON_AddStringToObject(j, "act", act_text(c->act));
    ok = ok && cJSON_AddStringToObject(j, "rope", arch_rope_text(c->rope[ROPE_MAIN].kind));
    ok = ok && cJSON_AddBoolToObject(j, "rope_truncate", c->rope[ROPE_MAIN].truncate);
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
        if (c->layer[i].window) ok = cJSON_AddItemToArray(win, cJSON_CreateNumber((double)i));
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
            c->layer[i].window = true;
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
    if (!s && !arch_rope_from_text(&c->rope[ROPE_MAIN].kind, rope))
        s = lq_fail(err, LQ_EUNSUPPORTED, "rope: unknown kind \"%.40s\"", rope);
    if (!s) s = js_bool(j, "rope_truncate", true, &c->rope[ROPE_MAIN].truncate, err);
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
    c->row = arch_find(arch, NULL);
    if (!c->row) return unknown_arch("arch", arch, err);
    c->w = c->row->w;
    c->embed_scale = c->residual_scale = c->logit_scale = 1;
    snprintf(c->prefix, sizeof c->prefix, "%s", c->row->prefix);
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
        c->v_dim = c->head_dim;
        c->embed_dim = c->hidden;
    }
    if (!s) {
        c->layer = calloc((size_t)c->layers, sizeof *c->layer);
        s = c->layer ? own_lists(c, j, err) : lq_fail(err, LQ_ENOMEM, "no memory for layers");
    }
    if (!s) s = check_config(c, err);
    if (s) arch_config_free(c);
    return s;
}
