/* formats/arch/rows/outside.c - models whose code is their publishers' own, and llama.cpp's: Qwen 1, OpenELM, SmallThinker,
 * Arctic, PLaMo 3, Grok 1 and 2. */
#include "formats/arch/arch_impl.h"
#include "formats/arch/rows/rows.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- Qwen 1 ---- */

/* Both halves of an MLP's width. */
static lq_status two_halves(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    if (!v) c->ffn = 22016;
    if (c->ffn % 2)
        return lq_fail(err, LQ_EVALUE, "%s: expected an even number, found %" PRId64, key, c->ffn);
    c->ffn /= 2;
    return LQ_OK;
}

static lq_status whole_heads(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    int64_t n = c->head_dim;
    if (!v || (js_whole(v, 1, ARCH_MAX_WIDTH, &n) && n == c->head_dim)) return LQ_OK;
    char found[64];
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "%s: expected hidden_size / num_attention_heads, %" PRId64 ", found %s", key,
                   c->head_dim, js_describe(found, v));
}

/* From seq_length on, rotations are by another base and q by a logarithm of the position, unless both are off. */
static lq_status qwen_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    int64_t trained = 8192;
    bool ntk = true, logn = true;
    lq_status s = js_i64(j, "seq_length", false, 1, INT32_MAX, &trained, err);
    if (!s) s = js_bool(j, "use_dynamic_ntk", false, &ntk, err);
    if (!s) s = js_bool(j, "use_logn_attn", false, &logn, err);
    if ((ntk || logn) && trained < c->max_pos) c->max_pos = trained;
    return s;
}

/* ---- OpenELM ---- */

/* Multiples of `by` near `wide`, and not much below it. */
static int64_t near_multiple(double wide, int64_t by)
{
    int64_t n = (int64_t)(wide + (double)by / 2) / by * by;
    if (n < by) n = by;
    return (double)n < 0.9 * wide ? n + by : n;
}

/* ffn_multipliers of the width, in multiples of ffn_dim_divisor. */
static lq_status name_widths(cJSON *j, lq_err *err)
{
    static const char key[] = "ffn_multipliers";
    const cJSON *list = js_get(j, key);
    int64_t by = 256, hidden = 0;
    if (!list) return LQ_OK;
    lq_status s = js_i64(j, "ffn_dim_divisor", false, 1, ARCH_MAX_WIDTH, &by, err);
    if (!s) s = js_i64(j, "hidden_size", true, 1, ARCH_MAX_WIDTH, &hidden, err);
    if (s) return s;
    js_drop(j, "intermediate_size");
    cJSON *widths = cJSON_AddArrayToObject(j, "intermediate_size");
    for (const cJSON *e = cJSON_IsArray(list) ? list->child : NULL; e; e = e->next) {
        if (!cJSON_IsNumber(e) || !(e->valuedouble > 0 && e->valuedouble <= 1024)) break;
        const int64_t n = near_multiple(e->valuedouble * (double)hidden, by);
        cJSON_AddItemToArray(widths, cJSON_CreateNumber((double)n));
    }
    if (cJSON_GetArraySize(widths) == cJSON_GetArraySize(list)) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected a number for each layer", key);
}

/* The most heads of any layer. */
static void put_most(cJSON *j, const char *list, const char *key)
{
    double most = 0;
    const cJSON *all = js_get(j, list);
    for (const cJSON *e = cJSON_IsArray(all) ? all->child : NULL; e; e = e->next)
        if (cJSON_IsNumber(e) && e->valuedouble > most) most = e->valuedouble;
    if (!all) return;
    js_drop(j, key);
    cJSON_AddNumberToObject(j, key, most);
}

static lq_status openelm_words(cJSON *j, lq_err *err)
{
    static const char *const names[][2] = { { "model_dim", "hidden_size" },
                                            { "num_transformer_layers", "num_hidden_layers" },
                                            { "max_context_length", "max_position_embeddings" },
                                            { "rope_freq_constant", "rope_theta" },
                                            { "activation_fn_name", "hidden_act" },
                                            { "share_input_output_layers",
                                              "tie_word_embeddings" } };
    /* Its code reads that key alone. */
    if (js_get(j, "share_input_output_layers")) js_drop(j, "tie_word_embeddings");
    for (size_t i = 0; i < LQ_COUNT(names); i++)
        js_rename(j, names[i][0], names[i][1]);
    put_most(j, "num_query_heads", "num_attention_heads");
    put_most(j, "num_kv_heads", "num_key_value_heads");
    return name_widths(j, err);
}

/* Number i of a list of one for each layer. */
static lq_status number_at(int64_t *out, const cJSON *j, const char *key, int64_t i, int64_t layers,
                           lq_err *err)
{
    const cJSON *list = js_get(j, key);
    if (cJSON_IsArray(list) && cJSON_GetArraySize(list) == layers &&
        js_whole(cJSON_GetArrayItem(list, (int)i), 1, ARCH_MAX_WIDTH, out))
        return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected a positive integer for each of %" PRId64 " layers",
                   key, layers);
}

static lq_status openelm_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    arch_sizes *z = calloc((size_t)c->layers, sizeof *z);
    lq_status s =
        z ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for %" PRId64 " layers", c->layers);
    for (int64_t i = 0; i < c->layers && !s; i++) {
        z[i] = arch_sizes_of(c, i);
        s = number_at(&z[i].heads, j, "num_query_heads", i, c->layers, err);
        if (!s) s = number_at(&z[i].kv_heads, j, "num_kv_heads", i, c->layers, err);
        if (!s) s = number_at(&z[i].ffn, j, "intermediate_size", i, c->layers, err);
    }
    if (!s) s = arch_set_sizes(c, z, err);
    free(z);
    return s;
}

static lq_status norms_by_rms(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return arch_key_must(key, v, "rms_norm", err);
}

/* ---- SmallThinker ---- */

/* A list of ones and zeros for each layer as words. */
static lq_status name_windows(cJSON *j, lq_err *err)
{
    static const char key[] = "sliding_window_layout";
    const cJSON *list = js_get(j, key);
    bool any = false;
    int64_t on;
    if (!list || js_get(j, "layer_types")) return LQ_OK;
    js_drop(j, "layer_types");
    cJSON *types = cJSON_AddArrayToObject(j, "layer_types");
    for (const cJSON *e = cJSON_IsArray(list) ? list->child : NULL; e; e = e->next) {
        if (!js_whole(e, 0, 1, &on)) break;
        any |= on;
        cJSON_AddItemToArray(types,
                             cJSON_CreateString(on ? "sliding_attention" : "full_attention"));
    }
    if (!any) js_drop(j, "sliding_window_size");
    if (cJSON_GetArraySize(types) == cJSON_GetArraySize(list)) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected a one or a zero for each layer", key);
}

static lq_status smallthinker_words(cJSON *j, lq_err *err)
{
    static const char *const names[][2] = {
        { "rope_layout", "no_rope_layers" },
        { "sliding_window_size", "sliding_window" },
        { "moe_num_primary_experts", "num_experts" },
        { "moe_num_active_primary_experts", "num_experts_per_tok" },
        { "moe_ffn_hidden_size", "moe_intermediate_size" },
    };
    const lq_status s = name_windows(j, err);
    for (size_t i = 0; i < LQ_COUNT(names) && !s; i++)
        js_rename(j, names[i][0], names[i][1]);
    return s;
}

static lq_status smallthinker_router(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    if (v && !cJSON_IsBool(v)) return lq_fail(err, LQ_EVALUE, "%s: expected true or false", key);
    c->w.router = cJSON_IsTrue(v) ? ROUTER_SOFTMAX : ROUTER_SIGMOID;
    return LQ_OK;
}

static lq_status experts_everywhere(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    int64_t i = 0, on = 0;
    (void)c;
    for (const cJSON *e = cJSON_IsArray(v) ? v->child : NULL; e && js_whole(e, 1, 1, &on);
         e = e->next)
        i++;
    if (!v || (cJSON_IsArray(v) && cJSON_GetArraySize(v) == i)) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "%s: expected a one, for experts, of each layer, found another in %" PRId64, key,
                   i);
}

/* ---- Arctic ---- */

/* It is the experts'; the MLP beside them is as wide as what it reads. */
static lq_status expert_width(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)key, (void)v, (void)err;
    c->expert_ffn = c->ffn;
    c->ffn = c->hidden;
    return LQ_OK;
}

/* ---- PLaMo 3 ---- */

/* A window, or null, for each layer. */
static lq_status name_each_window(cJSON *j, lq_err *err)
{
    static const char key[] = "interleaved_sliding_window";
    const cJSON *list = js_get(j, key), *window = js_get(j, "sliding_window");
    if (!list || js_get(j, "layer_types")) return LQ_OK;
    js_drop(j, "layer_types");
    cJSON *types = cJSON_AddArrayToObject(j, "layer_types");
    for (const cJSON *e = cJSON_IsArray(list) ? list->child : NULL; e; e = e->next) {
        if (!cJSON_IsNull(e) && !cJSON_Compare(e, window, true)) break;
        cJSON_AddItemToArray(
            types, cJSON_CreateString(cJSON_IsNull(e) ? "full_attention" : "sliding_attention"));
    }
    if (cJSON_GetArraySize(types) == cJSON_GetArraySize(list)) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected null or window_size for each layer", key);
}

static lq_status plamo3_words(cJSON *j, lq_err *err)
{
    double factor = 1;
    int64_t original = 0;
    js_rename(j, "window_size", "sliding_window");
    js_rename(j, "rope_local_theta", "rope_local_base_freq");
    lq_status s = name_each_window(j, err);
    if (!s) s = js_f64(j, "rope_scaling_factor", false, 1, 1e6, &factor, err);
    if (!s && factor > 1)
        s = js_i64(j, "initial_context_length", true, 1, INT32_MAX, &original, err);
    if (s || !(factor > 1)) return s;
    js_drop(j, "rope_scaling");
    cJSON *rope = cJSON_AddObjectToObject(j, "rope_scaling");
    cJSON_AddStringToObject(rope, "rope_type", "yarn");
    cJSON_AddNumberToObject(rope, "factor", factor);
    cJSON_AddNumberToObject(rope, "original_max_position_embeddings", (double)original);
    cJSON_AddFalseToObject(rope, "truncate");
    return LQ_OK;
}

static lq_status swiglu(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    if (v && cJSON_IsString(v) && strcmp(v->valuestring, "silu") == 0) return LQ_OK;
    return arch_key_must(key, v, "swiglu", err);
}

/* ---- Grok ---- */

/* The MLP beside the experts is their shared one: the sum of both is times sqrt(1/2). */
static lq_status grok_residual(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    if (v && !cJSON_IsBool(v)) return lq_fail(err, LQ_EVALUE, "%s: expected true or false", key);
    if (!cJSON_IsTrue(v)) return LQ_OK;
    c->shared_ffn = c->ffn;
    c->expert_scale = c->shared_scale = 0.70710678118654752;
    return LQ_OK;
}

/* "original" leaves the frequencies as they are, whatever the numbers beside it. */
static lq_status grok_words(cJSON *j, lq_err *err)
{
    static const char *const unread[] = { "scaling_factor", "extrapolation_factor", "attn_factor" };
    static const char *const of_rope[] = { "rope_type", "original_max_position_embeddings",
                                           "beta_fast", "beta_slow" };
    cJSON *rope = cJSON_GetObjectItemCaseSensitive(j, "rope_parameters");
    const char *kind = "";
    const lq_status s = rope ? js_str(rope, "rope_type", false, &kind, err) : LQ_OK;
    if (s || strcmp(kind, "original") != 0) return s;
    for (size_t i = 0; i < LQ_COUNT(unread); i++)
        js_drop(j, unread[i]);
    for (size_t i = 0; i < LQ_COUNT(of_rope); i++)
        js_drop(rope, of_rope[i]);
    return LQ_OK;
}

/* From attn_temperature_len on q is times a logarithm of its position. */
static lq_status grok_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    int64_t n = 0;
    lq_status s = js_i64(j, "attn_temperature_len", false, -1, INT32_MAX, &n, err);
    if (n > 0 && n < c->max_pos) c->max_pos = n;
    return s;
}

/* A table of names reads by line. */
/* clang-format off */
#define KNOWN(key) { key, KEY_KNOWN, 0, NONE, NULL }
static const arch_name qwen_names[] = {
    { R_EMBED, "@wte", 0, BIAS_NO },
    { R_FINAL_NORM, "@ln_f", 0, BIAS_NO },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    { R_ATTN_NORM, "@h.%d.ln_1", 0, BIAS_NO },
    { R_QKV, "@h.%d.attn.c_attn", 0, BIAS_YES },
    { R_O, "@h.%d.attn.c_proj", 0, BIAS_NO },
    { R_MLP_NORM, "@h.%d.ln_2", 0, BIAS_NO },
    { R_UP, "@h.%d.mlp.w1", 0, BIAS_NO },
    { R_GATE, "@h.%d.mlp.w2", 0, BIAS_NO },
    { R_DOWN, "@h.%d.mlp.c_proj", 0, BIAS_NO },
    END,
};
static const arch_key qwen_keys[] = {
    { "intermediate_size", KEY_FN, 0, NONE, two_halves },
    { "kv_channels", KEY_FN, 0, NONE, whole_heads },
    MUST("no_bias", 1),
    MUST("scale_attn_weights", 1),
    KNOWN("use_logn_attn"), KNOWN("use_dynamic_ntk"), KNOWN("seq_length"), /* qwen_layers */
    NO_KEY,
};
static const arch_name openelm_names[] = {
    { R_EMBED, "@token_embeddings", 0, BIAS_NO },
    { R_FINAL_NORM, "@norm", 0, BIAS_NO },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    { R_ATTN_NORM, LAYER "attn_norm", 0, BIAS_NO },
    { R_QKV, LAYER "attn.qkv_proj", 0, BIAS_NO },
    { R_Q_NORM, LAYER "attn.q_norm", 0, BIAS_NO },
    { R_K_NORM, LAYER "attn.k_norm", 0, BIAS_NO },
    { R_O, LAYER "attn.out_proj", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "ffn_norm", 0, BIAS_NO },
    { R_GATE_UP, LAYER "ffn.proj_1", 0, BIAS_NO },
    { R_DOWN, LAYER "ffn.proj_2", 0, BIAS_NO },
    END,
};
static const arch_key openelm_keys[] = {
    { "normalize_qk_projections", KEY_FN, 0, NONE, arch_key_head_qk_norm },
    { "normalization_layer_name", KEY_FN, 0, NONE, norms_by_rms },
    MUST("ffn_with_glu", 1),
    KNOWN("num_query_heads"), KNOWN("num_kv_heads"), KNOWN("ffn_multipliers"), /* openelm_layers */
    KNOWN("qkv_multipliers"), KNOWN("rope_max_length"), /* what the lists were made of; of a cache */
    NO_KEY,
};
static const arch_name smallthinker_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    SELF_ATTN(BIAS_NO, BIAS_NO),
    { R_ROUTER, LAYER "block_sparse_moe.primary_router", 0, BIAS_NO },
    EXPERTS("block_sparse_moe", "gate", "up", "down"),
    END,
};
static const arch_key smallthinker_keys[] = {
    EXPERT_COUNTS("num_experts", 32, 4),
    EXPERT_FFN(768),
    { "moe_primary_router_apply_softmax", KEY_FN, 0, NONE, smallthinker_router },
    { "moe_layer_layout", KEY_FN, 0, NONE, experts_everywhere },
    MUST("moe_enable_early_router", 1),
    MUST("moe_enable_secondary_experts", 0),
    MUST("moe_shared_primary_experts", 0),
    MUST("use_qk_norm", 0),
    KNOWN("moe_num_secondary_experts"), KNOWN("moe_secondary_expert_size"), /* of those */
    KNOWN("dense_ffn_hidden_size"), /* of layers without experts, which are refused */
    KNOWN("sliding_window_layout"), /* smallthinker_words */
    NO_KEY,
};
static const arch_name arctic_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO },
    SELF_ATTN(BIAS_NO, BIAS_NO),
    { R_MLP_NORM, LAYER "residual_layernorm", 0, BIAS_NO },
    { R_GATE, LAYER "residual_mlp.w1", 0, BIAS_NO },
    { R_UP, LAYER "residual_mlp.w3", 0, BIAS_NO },
    { R_DOWN, LAYER "residual_mlp.w2", 0, BIAS_NO },
    { R_EXPERT_NORM, LAYER "post_attention_layernorm", 0, BIAS_NO },
    { R_ROUTER, LAYER "block_sparse_moe.gate", 0, BIAS_NO },
    EXPERTS("block_sparse_moe", "w1", "w3", "w2"),
    END,
};
static const arch_key arctic_keys[] = {
    EXPERT_COUNTS("num_local_experts", 8, 1),
    { "intermediate_size", KEY_FN, 0, NONE, expert_width },
    MUST("moe_layer_frequency", 1),
    MUST("use_residual", 1),
    MUST("parallel_attn_mlp_res", 1),
    MUST("moe_token_dropping", 0),
    MUST("enable_expert_tensor_parallelism", 0),
    KNOWN("moe_train_capacity_factor"), KNOWN("moe_eval_capacity_factor"), /* of token dropping */
    KNOWN("moe_min_capacity"),
    NO_KEY,
};
#define PLAMO "@layers.layers.%d."
static const arch_name plamo3_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, PLAMO "pre_mixer_norm", 0, BIAS_NO },
    { R_QKV, PLAMO "mixer.qkv_proj", 0, BIAS_NO },
    { R_Q_NORM, PLAMO "mixer.q_norm", 0, BIAS_NO },
    { R_K_NORM, PLAMO "mixer.k_norm", 0, BIAS_NO },
    { R_O, PLAMO "mixer.o_proj", 0, BIAS_NO },
    { R_ATTN_POST_NORM, PLAMO "post_mixer_norm", 0, BIAS_NO },
    { R_MLP_NORM, PLAMO "pre_mlp_norm", 0, BIAS_NO },
    { R_GATE_UP, PLAMO "mlp.gate_up_proj", 0, BIAS_NO },
    { R_DOWN, PLAMO "mlp.down_proj", 0, BIAS_NO },
    { R_MLP_POST_NORM, PLAMO "post_mlp_norm", 0, BIAS_NO },
    END,
};
static const arch_key plamo3_keys[] = {
    { "hidden_activation", KEY_FN, 0, NONE, swiglu },
    { "hidden_act", KEY_FN, 0, NONE, swiglu },
    MUST("attention_bias", 0),
    MUST("scale_embedding", 0),
    KNOWN("interleaved_sliding_window"), KNOWN("rope_scaling_factor"), /* plamo3_words */
    NO_KEY,
};
static const arch_name grok_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, LAYER "pre_attn_norm", 0, BIAS_NO },
    { R_ATTN_POST_NORM, LAYER "post_attn_norm", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "pre_moe_norm", 0, BIAS_NO },
    { R_MLP_POST_NORM, LAYER "post_moe_norm", 0, BIAS_NO },
    SELF_ATTN(BIAS_NO, BIAS_NO),
    { R_ROUTER, LAYER "block_sparse_moe.gate", 0, BIAS_NO },
    EXPERTS("block_sparse_moe", "w1", "w3", "w2"),
    SHARED("mlp"),
    END,
};
static const arch_key grok_keys[] = {
    EXPERT_COUNTS("num_local_experts", 8, 2),
    { "residual_moe", KEY_FN, 0, NONE, grok_residual },
    { "embedding_multiplier_scale", KEY_REAL, AT(embed_scale), 78.38367176906169, NULL },
    { "output_multiplier_scale", KEY_REAL, AT(logit_scale), 0.5773502691896257, NULL },
    { "attn_output_multiplier", KEY_REAL, AT(attn_scale), NONE, NULL },
    { "attn_logit_softcapping", KEY_REAL, AT(attn_softcap), 30, NULL },
    { "router_logit_softcapping", KEY_REAL, AT(router_softcap), 30, NULL },
    { "final_logit_softcapping", KEY_REAL, AT(final_softcap), 0, NULL },
    KNOWN("attn_temperature_len"), /* grok_layers */
    MUST("sliding_window_size", -1),
    MUST("global_attn_every_n", 1),
    MUST("rope_rotate_half_dims", 0),
    KNOWN("merge_gate_up"), /* how SGLang loads it */
    NO_KEY,
};

const arch_row arch_rows_outside[] = {
    { "QWenLMHeadModel", "qwen", .def_partial = 1, .w = { RMS_ROPE }, .prefix = "transformer.", .names = qwen_names,
      .keys = qwen_keys, .layers = qwen_layers, .ends_at = "seq_length", .def_max_pos = 32768 },
    { "OpenELMForCausalLM", "openelm", .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD },
      .prefix = "transformer.", .names = openelm_names, .keys = openelm_keys,
      .respell = openelm_words, .layers = openelm_layers, .def_head_dim = 128 },
    { "SmallThinkerForCausalLM", "smallthinker",
      .w = { RMS_ROPE, .router = ROUTER_SIGMOID, .norm_topk = true }, MODEL,
      .names = smallthinker_names, .keys = smallthinker_keys, .respell = smallthinker_words,
      .early = EARLY_ROUTER, .window = WINDOW_ALL,
      .def_nope_every = ARCH_MAX_LAYERS + 1, .def_act = ARCH_RELU, .fixed_act = true, .def_ffn = 1,
      .def_head_dim = 128, .def_theta = 1e6, .def_max_pos = 131072, .def_tied = true },
    { "ArcticForCausalLM", "arctic", .w = { RMS_ROPE, .norm_topk = true, .dense_beside = true },
      MODEL, .names = arctic_names, .keys = arctic_keys, .early = EARLY_EXPERTS, .def_eps = 1e-5,
      .def_max_pos = 4096 },
    { "Plamo3ForCausalLM", "plamo3",
      .w = { RMS_ROPE, .norm_offset = 1, .qk_norm = QK_NORM_HEAD }, MODEL, .names = plamo3_names,
      .keys = plamo3_keys, .respell = plamo3_words, .post_offset = { 0.2f, 0.08944271909999159f },
      .window = WINDOW_PATTERN, .def_pattern = 8, .def_window = 2048, .fixed_act = true,
      .def_kv_heads = 4, .def_head_dim = 128, .def_theta = 1e6, .def_local_theta = 1e4,
      .def_tied = true },
    { "Grok1ForCausalLM", "grok", .w = { RMS_ROPE }, MODEL, .names = grok_names, .keys = grok_keys,
      .respell = grok_words, .layers = grok_layers, .ends_at = "attn_temperature_len", GELU_TANH,
      .gelu_tanh = true, .def_eps = 1e-5, .def_max_pos = 8192 },
    { .arch = NULL },
};
/* clang-format on */
