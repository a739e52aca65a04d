/* formats/arch/rows/gemma.c - the Gemma family. */
#include "formats/arch/arch_impl.h"
#include "formats/arch/rows/rows.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* A table of names reads by line. */
/* clang-format off */
static const arch_name gemma_names[] = { LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_MLP), END };
/* Norms before and after attention and MLP. */
#define SANDWICH \
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO }, \
    { R_ATTN_POST_NORM, LAYER "post_attention_layernorm", 0, BIAS_NO }, \
    { R_MLP_NORM, LAYER "pre_feedforward_layernorm", 0, BIAS_NO }, \
    { R_MLP_POST_NORM, LAYER "post_feedforward_layernorm", 0, BIAS_NO }
static const arch_name gemma2_names[] = {
    EMBED_NORM_HEAD(BIAS_NO), SANDWICH, SELF_ATTN(BIAS_ATTN, BIAS_ATTN), GATED(BIAS_NO), END,
};
static const arch_name gemma3_names[] = {
    EMBED_NORM_HEAD(BIAS_NO), SANDWICH, SELF_ATTN(BIAS_ATTN, BIAS_ATTN), QK_NORMS,
    GATED(BIAS_NO),           END,
};
static const arch_name vaultgemma_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "pre_feedforward_layernorm", 0, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    GATED(BIAS_NO),
    END,
};
#define GEMMA4_NAMES \
    EMBED_NORM_HEAD(BIAS_NO), SANDWICH, SELF_ATTN(BIAS_ATTN, BIAS_ATTN), QK_NORMS, \
    { R_V_NORM, LAYER "self_attn.v_norm", NAME_OPTIONAL | NAME_ONES, BIAS_NO }, \
    GATED(BIAS_NO), \
    { R_PLE_EMBED, "@embed_tokens_per_layer", 0, BIAS_NO }, \
    { R_PLE_PROJ, "@per_layer_model_projection", 0, BIAS_NO }, \
    { R_PLE_NORM, "@per_layer_projection_norm", 0, BIAS_NO }, \
    { R_PLE_GATE, LAYER "per_layer_input_gate", 0, BIAS_NO }, \
    { R_PLE_OUT, LAYER "per_layer_projection", 0, BIAS_NO }, \
    { R_PLE_POST_NORM, LAYER "post_per_layer_input_norm", 0, BIAS_NO }
#define LAYER_SCALE { R_LAYER_SCALE, LAYER "layer_scalar", NAME_BARE | NAME_OPTIONAL, BIAS_NO }
static const arch_name gemma4_names[] = { GEMMA4_NAMES, LAYER_SCALE, END };
static const arch_name gemma4_moe_names[] = {
    GEMMA4_NAMES,
    LAYER_SCALE,
    { R_ROUTER, LAYER "router.proj", 0, BIAS_NO },
    { R_ROUTER_NORM, LAYER "router.scale", NAME_BARE, BIAS_NO },
    { R_EXPERT_SCALE, LAYER "router.per_expert_scale", NAME_BARE, BIAS_NO },
    { R_EXPERT_NORM, LAYER "pre_feedforward_layernorm_2", 0, BIAS_NO },
    { R_DENSE_POST_NORM, LAYER "post_feedforward_layernorm_1", 0, BIAS_NO },
    { R_EXPERT_POST_NORM, LAYER "post_feedforward_layernorm_2", 0, BIAS_NO },
    { R_EXPERT_GATE_UP, LAYER "experts.gate_up_proj", NAME_BARE | NAME_STACKED, BIAS_NO },
    { R_EXPERT_DOWN, LAYER "experts.down_proj", NAME_BARE | NAME_STACKED, BIAS_NO },
    END,
};
static const arch_name gemma3n_names[] = {
    GEMMA4_NAMES,
    { R_STREAM_IN, "@altup_projections.%e", 0, BIAS_NO },
    { R_STREAM_OUT, "@altup_unembed_projections.%e", 0, BIAS_NO },
    { R_STREAM_NORM, LAYER "altup.router_norm", 0, BIAS_NO },
    { R_STREAM_ROUTER, LAYER "altup.modality_router", NAME_HEAD_ROWS, BIAS_NO },
    { R_STREAM_PREDICT, LAYER "altup.prediction_coefs", NAME_HEAD_ROWS, BIAS_NO },
    { R_STREAM_CORRECT, LAYER "altup.correction_coefs", NAME_HEAD_ROWS, BIAS_NO },
    { R_STREAM_SCALE, LAYER "altup.correct_output_scale", NAME_BARE, BIAS_NO },
    { R_LAUREL_LEFT, LAYER "laurel.linear_left", 0, BIAS_NO },
    { R_LAUREL_RIGHT, LAYER "laurel.linear_right", 0, BIAS_NO },
    { R_LAUREL_NORM, LAYER "laurel.post_laurel_norm", 0, BIAS_NO },
    END,
};
/* Images and audio see both ways, text does not. */
static lq_status both_ways(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    (void)c;
    if (!v || cJSON_IsFalse(v) || (cJSON_IsString(v) && strcmp(v->valuestring, "vision") == 0))
        return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected null, false or vision, found %s", key,
                   js_describe(found, v));
}
static const arch_key gemma2_keys[] = {
    { "query_pre_attn_scalar", KEY_RSQRT, AT(attn_scale), 256, NULL },
    { "attn_logit_softcapping", KEY_REAL, AT(attn_softcap), 50, NULL },
    { "final_logit_softcapping", KEY_REAL, AT(final_softcap), 30, NULL },
    NO_KEY,
};
/* transformers reads it and caps nothing. */
static lq_status no_softcap(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return arch_key_must(key, v, "null", err);
}
static const arch_key gemma3_keys[] = {
    { "query_pre_attn_scalar", KEY_RSQRT, AT(attn_scale), 256, NULL },
    { "attn_logit_softcapping", KEY_FN, 0, NONE, no_softcap },
    { "final_logit_softcapping", KEY_REAL, AT(final_softcap), 0, NULL },
    { "use_bidirectional_attention", KEY_BOOL, AT(w.both_ways), 0, NULL },
    NO_KEY,
};
#define GEMMA4_KEYS \
    { "final_logit_softcapping", KEY_REAL, AT(final_softcap), 0, NULL }, \
    { "use_bidirectional_attention", KEY_FN, 0, NONE, both_ways }, \
    /* read by gemma4_layers: */ \
    { "attention_k_eq_v", KEY_KNOWN, 0, NONE, NULL }, \
    { "num_kv_shared_layers", KEY_KNOWN, 0, NONE, NULL }, \
    { "num_global_key_value_heads", KEY_KNOWN, 0, NONE, NULL }, \
    { "global_head_dim", KEY_KNOWN, 0, NONE, NULL }, \
    { "per_layer_config", KEY_KNOWN, 0, NONE, NULL }, \
    { "use_double_wide_mlp", KEY_KNOWN, 0, NONE, NULL }
#define PLE_KEYS \
    { "hidden_size_per_layer_input", KEY_INT, AT(ple_dim), 256, NULL }, \
    { "vocab_size_per_layer_input", KEY_INT, AT(ple_vocab), 262144, NULL }
static const arch_key gemma4_unified_keys[] = { GEMMA4_KEYS, NO_KEY };
static const arch_key gemma4_keys[] = {
    GEMMA4_KEYS,
    PLE_KEYS,
    MUST("enable_moe_block", 0),
    { "num_experts", KEY_KNOWN, 0, NONE, NULL }, /* without that block not read, like these: */
    { "top_k_experts", KEY_KNOWN, 0, NONE, NULL },
    { "moe_intermediate_size", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
};
static const arch_key gemma3n_keys[] = {
    PLE_KEYS,
    { "final_logit_softcapping", KEY_REAL, AT(final_softcap), 30, NULL },
    { "altup_num_inputs", KEY_INT, AT(streams), 4, NULL },
    { "laurel_rank", KEY_INT, AT(laurel), 64, NULL },
    MUST("altup_active_idx", 0),
    MUST("altup_correct_scale", 1),
    { "query_pre_attn_scalar", KEY_KNOWN, 0, NONE, NULL }, /* not read by the modelling code */
    { "altup_lr_multiplier", KEY_KNOWN, 0, NONE, NULL },   /* of training, as this: */
    { "altup_coef_clip", KEY_KNOWN, 0, NONE, NULL },       /* and these by gemma3n_layers: */
    { "activation_sparsity_pattern", KEY_KNOWN, 0, NONE, NULL },
    { "num_kv_shared_layers", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
};
static const arch_key gemma4_moe_keys[] = {
    GEMMA4_KEYS,
    PLE_KEYS,
    MUST("enable_moe_block", 1),
    { "top_k_experts", KEY_INT, AT(experts_used), NONE, NULL },
    NO_KEY,
};
/* clang-format on */

/* ---- layers that differ ---- */

/* Of a window that looks both ways config.json says the whole width. */
static lq_status gemma3_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    (void)j, (void)err;
    if (c->w.both_ways && c->window) c->window = c->window / 2 + 1;
    return LQ_OK;
}

/* The last `shared` layers read the K and V of the last layer before them that sees as far. */
static lq_status share_kv(arch_config *c, const cJSON *j, int64_t def, lq_err *err)
{
    int64_t shared = def;
    lq_status s = js_i64(j, "num_kv_shared_layers", false, 0, c->layers - 1, &shared, err);
    for (int64_t i = c->layers - shared; i < c->layers && !s; i++) {
        int64_t from = c->layers - shared - 1;
        while (from >= 0 && c->layer[from].window != c->layer[i].window)
            from--;
        if (from < 0)
            s = lq_fail(err, LQ_EVALUE,
                        "num_kv_shared_layers: expected a layer of each kind before the last "
                        "%" PRId64,
                        shared);
        c->layer[i].kv_back = i - from;
    }
    return s;
}

/* "per_layer_config": { "5": { "head_dim": 512 } } */
static lq_status read_overrides(arch_sizes *z, const arch_config *c, const cJSON *list, lq_err *err)
{
    lq_status s = LQ_OK;
    if (!cJSON_IsObject(list))
        return lq_fail(err, LQ_EVALUE, "per_layer_config: expected an object");
    for (const cJSON *o = list->child; o && !s; o = o->next) {
        char *end;
        const long i = strtol(o->string, &end, 10);
        if (*end || end == o->string || i < 0 || i >= c->layers || !cJSON_IsObject(o))
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "per_layer_config: expected objects by layers 0..%" PRId64
                           ", found \"%.40s\"",
                           c->layers - 1, o->string);
        s = js_i64(o, "head_dim", false, 1, ARCH_MAX_WIDTH, &z[i].head_dim, err);
        if (!s) s = js_i64(o, "num_key_value_heads", false, 1, ARCH_MAX_WIDTH, &z[i].kv_heads, err);
        for (const cJSON *v = o->child; v && !s; v = v->next)
            if (strcmp(v->string, "head_dim") != 0 && strcmp(v->string, "num_key_value_heads") != 0)
                s = lq_fail(err, LQ_EUNSUPPORTED,
                            "per_layer_config: expected head_dim and num_key_value_heads, found "
                            "\"%.40s\"",
                            v->string);
    }
    return s;
}

/* Layers that see everything have heads of a size of their own, and of a number of their own where
 * V is K. */
static lq_status read_global(arch_sizes *z, arch_config *c, const cJSON *j, bool v_is_k,
                             lq_err *err)
{
    const cJSON *list = js_get(j, "per_layer_config");
    int64_t dim = 512, heads = c->kv_heads;
    lq_status s = js_i64(j, "global_head_dim", false, 1, ARCH_MAX_WIDTH, &dim, err);
    if (!s && v_is_k)
        s = js_i64(j, "num_global_key_value_heads", false, 1, ARCH_MAX_WIDTH, &heads, err);
    for (int64_t i = 0; i < c->layers; i++) {
        const bool all = !list && !c->layer[i].window;
        z[i].kv_heads = all ? heads : c->kv_heads;
        z[i].head_dim = all ? dim : c->head_dim;
    }
    return s || !list ? s : read_overrides(z, c, list, err);
}

static lq_status gemma4_sizes(arch_config *c, const cJSON *j, arch_sizes *z, lq_err *err)
{
    bool v_is_k = false, wide = false;
    lq_status s = js_bool(j, "attention_k_eq_v", false, &v_is_k, err);
    if (!s) s = js_bool(j, "use_double_wide_mlp", false, &wide, err);
    if (!s) s = read_global(z, c, j, v_is_k, err);
    if (!s) s = share_kv(c, j, 0, err);
    for (int64_t i = 0; i < c->layers; i++) {
        c->layer[i].v_is_k = v_is_k && !c->layer[i].window;
        z[i].rope_dims = z[i].head_dim;
        z[i].heads = c->heads;
        z[i].ffn = wide && c->layer[i].kv_back ? 2 * c->ffn : c->ffn;
    }
    return s ? s : arch_set_sizes(c, z, err);
}

static lq_status gemma4_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    arch_sizes *z = calloc((size_t)c->layers, sizeof *z);
    if (!z) return lq_fail(err, LQ_ENOMEM, "no memory for %" PRId64 " layers", c->layers);
    c->attn_scale = 1;
    if (!c->ple_dim) c->ple_vocab = 0;
    c->layer[c->layers - 1].window = false; /* whatever layer_types says */
    c->layer[c->layers - 1].rope = ROPE_MAIN;
    lq_status s = gemma4_sizes(c, j, z, err);
    free(z);
    return s;
}

/* A number for each layer, or one for all. */
static lq_status read_each(double *out, const arch_config *c, const cJSON *v, const char *key,
                           double lo, double hi, lq_err *err)
{
    const cJSON *e = cJSON_IsArray(v) ? v->child : v;
    int64_t i = 0;
    for (; e && i < c->layers; i++) {
        if (!cJSON_IsNumber(e) || !(e->valuedouble >= lo && e->valuedouble <= hi)) break;
        out[i] = e->valuedouble;
        if (cJSON_IsArray(v)) e = e->next;
    }
    if (i == c->layers && (!cJSON_IsArray(v) || !e)) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected %g..%g, or that for each of %" PRId64 " layers",
                   key, lo, hi, c->layers);
}

static lq_status gemma3n_sizes(arch_config *c, const cJSON *j, arch_sizes *z, double *v,
                               lq_err *err)
{
    const cJSON *ffn = js_get(j, "intermediate_size"),
                *sparse = js_get(j, "activation_sparsity_pattern");
    lq_status s = read_each(v, c, ffn, "intermediate_size", 1, ARCH_MAX_WIDTH, err);
    for (int64_t i = 0; i < c->layers && !s; i++) {
        z[i] = arch_sizes_of(c, i);
        z[i].ffn = (int64_t)v[i];
    }
    for (int64_t i = 0; i < c->layers && !s; i++)
        v[i] = c->layers > 10 && i < 10 ? 0.95 : 0; /* where config.json is silent */
    if (!s && sparse) s = read_each(v, c, sparse, "activation_sparsity_pattern", 0, 0.999999, err);
    for (int64_t i = 0; i < c->layers && !s; i++)
        c->layer[i].sparse = v[i];
    if (!s) s = share_kv(c, j, c->layers > 15 ? 15 : 0, err);
    return s ? s : arch_set_sizes(c, z, err);
}

static lq_status gemma3n_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    arch_sizes *z = calloc((size_t)c->layers, sizeof *z);
    double *v = calloc((size_t)c->layers, sizeof *v);
    c->attn_scale = 1;
    lq_status s = z && v ? gemma3n_sizes(c, j, z, v, err)
                         : lq_fail(err, LQ_ENOMEM, "no memory for %" PRId64 " layers", c->layers);
    free(z);
    free(v);
    return s;
}

/* A row reads by line. */
/* clang-format off */
#define GEMMA4 \
    MODEL, .layers = gemma4_layers, .embed_sqrt = true, GELU_TANH, .window = WINDOW_PATTERN, \
    .def_pattern = 6, .def_kv_heads = 4, .def_head_dim = 256, .def_theta = 1e6, \
    .def_local_theta = 1e4, .def_tied = true, \
    .def_rope = "{\"full_attention\":{\"rope_type\":\"proportional\",\"rope_theta\":1000000," \
                "\"partial_rotary_factor\":0.25}," \
                "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000}}"
#define GEMMA4_ROPE RMS_ROPE, .qk_norm = QK_NORM_HEAD
/* clang-format on */
const arch_row arch_rows_gemma[] = {
    { "GemmaForCausalLM", "gemma", .w = { RMS_ROPE, .norm_offset = 1 }, MODEL, .names = gemma_names,
      .gelu_tanh = true, .embed_sqrt = true, GELU_TANH, .def_kv_heads = 16, .def_head_dim = 256,
      .def_max_pos = 8192, .def_tied = true },
    { "Gemma2ForCausalLM", "gemma2", .w = { RMS_ROPE, .norm_offset = 1 }, MODEL,
      .names = gemma2_names, .keys = gemma2_keys, .embed_sqrt = true, GELU_TANH,
      .window = WINDOW_PATTERN, .def_pattern = 2, .def_window = 4096, .def_kv_heads = 4,
      .def_head_dim = 256, .def_max_pos = 8192, .def_tied = true },
    { "Gemma3ForCausalLM", "gemma3_text",
      .w = { RMS_ROPE, .norm_offset = 1, .qk_norm = QK_NORM_HEAD }, MODEL, .names = gemma3_names,
      .keys = gemma3_keys, .layers = gemma3_layers, .embed_sqrt = true, GELU_TANH,
      .window = WINDOW_PATTERN, .def_pattern = 6, .def_window = 4096, .def_kv_heads = 4,
      .def_head_dim = 256, .def_max_pos = 131072, .def_theta = 1e6, .def_local_theta = 1e4,
      .def_tied = true, .def_sizes = SIZES("262208", "2304", "9216", "26", "8") },
    { "VaultGemmaForCausalLM", "vaultgemma", .w = { RMS_ROPE, .norm_offset = 1 }, MODEL,
      .names = vaultgemma_names, .keys = gemma2_keys, .embed_sqrt = true, GELU_TANH,
      .window = WINDOW_PATTERN, .def_pattern = 2, .def_window = 4096, .def_kv_heads = 4,
      .def_head_dim = 256, .def_max_pos = 8192, .def_tied = true },
    { "Gemma4ForCausalLM", "gemma4_text", "moe", "enable_moe_block=true",
      .w = { GEMMA4_ROPE, .norm_topk = true, .dense_beside = true }, GEMMA4,
      .names = gemma4_moe_names, .keys = gemma4_moe_keys, .def_window = 512,
      .def_max_pos = 131072 },
    { "Gemma4ForCausalLM", "gemma4_text", .w = { GEMMA4_ROPE }, GEMMA4, .names = gemma4_names,
      .keys = gemma4_keys, .def_window = 512, .def_max_pos = 131072 },
    { "Gemma4UnifiedForCausalLM", "gemma4_unified_text", .w = { GEMMA4_ROPE }, GEMMA4,
      .names = gemma4_names, .keys = gemma4_unified_keys, .def_window = 1024,
      .def_max_pos = 262144 },
    { "Gemma3nForCausalLM", "gemma3n_text", .w = { GEMMA4_ROPE }, MODEL, .names = gemma3n_names,
      .keys = gemma3n_keys, .layers = gemma3n_layers, .embed_sqrt = true, GELU_TANH,
      .window = WINDOW_PATTERN, .def_pattern = 5, .def_window = 512, .def_kv_heads = 2,
      .def_head_dim = 256, .def_max_pos = 32768, .def_theta = 1e6, .def_local_theta = 1e4,
      .def_tied = true },
    { .arch = NULL },
};
