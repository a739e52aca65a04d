/* formats/gguf/gguf_state.c */
#include "formats/gguf/gguf_state.h"

#include <inttypes.h>
#include <stdio.h>

enum { MAX_LAYERS = 65536 };

/* How config.json calls the values of a head with a state, the list of layers and its words. */
static const struct {
    const char *hf, *value, *types, *mixer, *attention;
} spelled[] = {
    { "Lfm2ForCausalLM", NULL, "layer_types", "conv", "full_attention" },
    { "Lfm2MoeForCausalLM", NULL, "layer_types", "conv", "full_attention" },
    { "MambaForCausalLM", NULL, NULL, NULL, NULL },
    { "FalconMambaForCausalLM", NULL, NULL, NULL, NULL },
    { "JambaForCausalLM", NULL, NULL, NULL, NULL },
    { "BambaForCausalLM", "mamba_d_head", "layer_types", "mamba", "attention" },
    { "Mamba2ForCausalLM", "head_dim", NULL, NULL, NULL },
    { "NemotronHForCausalLM", "mamba_head_dim", "layers_block_type", "mamba", "attention" },
    { "GraniteMoeHybridForCausalLM", "mamba_d_head", "layer_types", "mamba", "attention" },
    { "FalconH1ForCausalLM", "mamba_d_head", NULL, NULL, NULL },
    { "KimiLinearForCausalLM", NULL, "layer_types", "linear_attention", "full_attention" },
    { "MiniMaxM1ForCausalLM", NULL, "layer_types", "linear_attention", "full_attention" },
    { "BailingHybridForCausalLM", NULL, "layer_types", "linear_attention", "full_attention" },
    { "Qwen3NextForCausalLM", "linear_value_head_dim", "layer_types", "linear_attention",
      "full_attention" },
    { "Qwen3_5ForCausalLM", "linear_value_head_dim", "layer_types", "linear_attention",
      "full_attention" },
    { "Qwen3_5MoeForCausalLM", "linear_value_head_dim", "layer_types", "linear_attention",
      "full_attention" },
    { "Qwen4ExpForCausalLM", "linear_value_head_dim", "layer_types", "linear_attention",
      "full_attention" },
};

typedef struct {
    gguf_file *f;
    const gguf_arch *row;
    cJSON *j;
    size_t at; /* in spelled */
    int64_t layers;
    bool ok; /* memory sufficed */
} state;

/* A number, or the largest of those of all layers; 0: none. */
static int64_t largest(const state *c, const char *key)
{
    char k[128];
    int64_t v = 0;
    snprintf(k, sizeof k, "%.40s.%s", c->row->gguf, key);
    const gguf_kv *kv = gguf_get(c->f, k);
    if (!kv || !kv->array) return gguf_int(c->f, k, &v) ? v : 0;
    for (uint64_t i = 0; gguf_is_numbers(kv) && i < kv->n; i++)
        if (gguf_int_at(kv, i) > v) v = gguf_int_at(kv, i);
    return v;
}

static void put(state *c, const char *key, int64_t v)
{
    cJSON_DeleteItemFromObjectCaseSensitive(c->j, key);
    c->ok = c->ok && cJSON_AddNumberToObject(c->j, key, (double)v);
}

static const gguf_tensor *of_layer(const state *c, int64_t layer, const char *name)
{
    char full[96];
    snprintf(full, sizeof full, "blk.%" PRId64 ".%s", layer, name);
    return gguf_find(c->f, full);
}

static bool is_kda(const state *c)
{
    return strcmp(c->row->gguf, "kimi-linear") == 0 || strcmp(c->row->gguf, "bailingmoe3") == 0;
}

static const char *kind_of(const state *c, int64_t layer)
{
    if (strcmp(c->row->gguf, "minimax-01") == 0) /* whose q, k and v may be one in each layer */
        return of_layer(c, layer, "attn_norm_2.weight") ? spelled[c->at].mixer
                                                        : spelled[c->at].attention;
    const bool kda = is_kda(c); /* has q everywhere */
    if (of_layer(c, layer, kda ? "attn_kv_a_norm.weight" : "attn_q.weight"))
        return spelled[c->at].attention;
    if (strcmp(spelled[c->at].types, "layers_block_type") != 0) return spelled[c->at].mixer;
    if (of_layer(c, layer, "ffn_up_exps.weight")) return "moe";
    return of_layer(c, layer, "ffn_up.weight") ? "mlp" : spelled[c->at].mixer;
}

static void put_kinds(state *c)
{
    if (!spelled[c->at].types) return;
    cJSON *list = cJSON_AddArrayToObject(c->j, spelled[c->at].types);
    for (int64_t i = 0; i < c->layers; i++)
        c->ok = c->ok && cJSON_AddItemToArray(list, cJSON_CreateString(kind_of(c, i)));
    if (strcmp(spelled[c->at].types, "layers_block_type") == 0)
        cJSON_DeleteItemFromObjectCaseSensitive(c->j, "num_hidden_layers");
}

/* The converter counts a layer's heads of keys as 0 where it knows another word for attention. */
static int64_t kv_heads(const state *c, int64_t dim)
{
    const int64_t said = largest(c, "attention.head_count_kv");
    for (int64_t i = 0; i < c->layers && !said; i++) {
        const gguf_tensor *k = of_layer(c, i, "attn_k.weight");
        if (k && dim > 0) return k->shape[0] / dim;
    }
    return said;
}

static void put_attention(state *c)
{
    const int64_t heads = largest(c, "attention.head_count");
    int64_t dim = largest(c, "attention.key_length");
    if (is_kda(c)) {
        put(c, "linear_num_heads", heads); /* the rest is said as of other latent attention */
        return;
    }
    if (heads < 1) {
        cJSON_DeleteItemFromObjectCaseSensitive(c->j, "num_attention_heads");
        return;
    }
    if (!dim) dim = largest(c, "embedding_length") / heads;
    put(c, "head_dim", dim);
    put(c, "num_key_value_heads", kv_heads(c, dim));
}

static void put_mamba(state *c)
{
    const int64_t all = largest(c, "ssm.inner_size"), heads = largest(c, "ssm.time_step_rank");
    if (strcmp(c->row->gguf, "mamba") == 0) put(c, "intermediate_size", all);
    if (!spelled[c->at].value || heads < 1) return;
    put(c, spelled[c->at].value, all / heads);
    if (strcmp(c->row->hf, "FalconH1ForCausalLM") != 0) return;
    /* llama.cpp's norm, where there is one, comes after the gate. */
    put(c, "mamba_d_ssm", all);
    c->ok =
        c->ok && cJSON_AddFalseToObject(c->j, "mamba_norm_before_gate") &&
        cJSON_AddBoolToObject(c->j, "mamba_rms_norm", of_layer(c, 0, "ssm_norm.weight") != NULL);
}

/* llama.cpp has the value heads of Qwen3.5 by turns, one of each key head, and what Qwen3-Next makes of
 * one matrix apart. */
static void put_delta(state *c)
{
    const int64_t heads = largest(c, "ssm.time_step_rank"), groups = largest(c, "ssm.group_count");
    const bool next = strcmp(c->row->gguf, "qwen3next") == 0;
    if (!next && !c->row->ngrams && strncmp(c->row->gguf, "qwen35", 6) != 0) return;
    if (next) c->ok = c->ok && cJSON_AddTrueToObject(c->j, "linear_projections_apart");
    if (!next && heads != groups)
        c->ok = c->ok && cJSON_AddTrueToObject(c->j, "linear_value_heads_tiled");
}

/* The part of a head that rotates, where config.json's reader assumes one. */
static void put_partial(state *c)
{
    const int64_t turned = largest(c, "rope.dimension_count"),
                  heads = largest(c, "attention.head_count");
    int64_t dim = largest(c, "attention.key_length");
    if (!dim && heads > 0) dim = largest(c, "embedding_length") / heads;
    if ((arch_find(c->row->hf, NULL)->def_partial > 0 || c->row->ngrams) && turned > 0 && dim > 0)
        c->ok = c->ok && cJSON_AddNumberToObject(c->j, "partial_rotary_factor",
                                                 (double)turned / (double)dim);
}

/* Of so many layers the one with a tensor of this name, as Jamba's config.json says which attend and which have
 * experts. */
static void put_period(state *c, const char *period, const char *offset, const char *name)
{
    int64_t first = c->layers, second = 0;
    for (int64_t i = c->layers - 1; i >= 0; i--)
        if (of_layer(c, i, name)) second = first, first = i;
    put(c, period, second && second < c->layers ? second - first : c->layers + 1);
    put(c, offset, first);
}

/* Ling 3's decays have a least one; and where the file is silent, llama.cpp's numbers are not config.json's. */
static lq_status put_bound(state *c, lq_err *err)
{
    static const char key[] = "bailingmoe3.kda.gate_lower_bound";
    static const char *const limits[] = { "bailingmoe3.swiglu_clamp_exp",
                                          "bailingmoe3.swiglu_clamp_shexp" };
    static const char *const silent[] = { "routed_scaling_factor", "num_expert_group",
                                          "topk_group" };
    double v = 0;
    bool safe = true;
    if (strcmp(c->row->gguf, "bailingmoe3") != 0) return LQ_OK;
    if (!gguf_float(c->f, key, &v) || !(v < 0))
        return lq_fail(err, LQ_EFORMAT, "%s: expected a number below 0, found %s", key,
                       gguf_get(c->f, key) ? "another" : "none");
    if (gguf_bool(c->f, "bailingmoe3.kda.safe_gate", &safe) && !safe)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "bailingmoe3.kda.safe_gate: expected true, found false");
    for (size_t i = 0; i < LQ_COUNT(silent); i++)
        if (!js_get(c->j, silent[i])) put(c, silent[i], 1);
    if (!js_get(c->j, "moe_renormalize"))
        c->ok = c->ok && cJSON_AddFalseToObject(c->j, "moe_renormalize");
    for (size_t i = 0; i < LQ_COUNT(limits); i++) { /* of experts' gates */
        const gguf_kv *kv = gguf_get(c->f, limits[i]);
        bool none = !kv || gguf_is_numbers(kv);
        for (uint64_t l = 0; kv && none && l < kv->n; l++)
            none = !(gguf_real_at(kv, l) > 0 || gguf_real_at(kv, l) < 0);
        if (!none)
            return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected none, found limits", limits[i]);
    }
    c->ok = c->ok && cJSON_AddNumberToObject(c->j, "kda_lower_bound", v) &&
            cJSON_AddTrueToObject(c->j, "kda_safe_gate");
    return LQ_OK;
}

/* MiniMax-01's words, which its config.json must have. */
static lq_status put_minimax(state *c, lq_err *err)
{
    static const char key[] = "minimax-01.residual_scale";
    double v = 0;
    if (strcmp(c->row->gguf, "minimax-01") != 0) return LQ_OK;
    if (!gguf_float(c->f, key, &v) || !(v > 0))
        return lq_fail(err, LQ_EFORMAT, "%s: expected a number above 0, found %s", key,
                       gguf_get(c->f, key) ? "another" : "none");
    c->ok = c->ok && cJSON_AddTrueToObject(c->j, "postnorm");
    put(c, "rotary_dim", largest(c, "rope.dimension_count"));
    return LQ_OK;
}

static void put_jamba(state *c)
{
    if (strcmp(c->row->gguf, "jamba") != 0) return;
    put_period(c, "attn_layer_period", "attn_layer_offset", "attn_q.weight");
    put_period(c, "expert_layer_period", "expert_layer_offset", "ffn_gate_inp.weight");
    put(c, "num_experts", largest(c, "expert_count"));
}

static void put_mlp(state *c)
{
    int64_t ffn = largest(c, "feed_forward_length");
    for (int64_t i = 0; i < c->layers && !ffn; i++) {
        const gguf_tensor *up = of_layer(c, i, "ffn_up.weight");
        if (up) ffn = up->shape[0];
    }
    if (!ffn && strcmp(c->row->hf, "NemotronHForCausalLM") == 0)
        ffn = largest(c, "expert_feed_forward_length"); /* of no layer */
    if (ffn > 0) put(c, "intermediate_size", ffn);
    if (strcmp(c->row->hf, "Lfm2ForCausalLM") == 0)
        c->ok = c->ok && cJSON_AddFalseToObject(c->j, "block_auto_adjust_ff_dim");
    if (strcmp(c->row->hf, "GraniteMoeHybridForCausalLM") != 0) return;
    const int64_t shared = largest(c, "expert_shared_feed_forward_length");
    put(c, "num_local_experts", largest(c, "expert_count"));
    put(c, "shared_intermediate_size", shared ? shared : ffn);
}

lq_status gguf_state_config(cJSON *j, gguf_file *f, const gguf_arch *row, lq_err *err)
{
    state c = { .f = f, .row = row, .j = j, .ok = true };
    while (strcmp(spelled[c.at].hf, row->hf) != 0)
        c.at++;
    c.layers = largest(&c, "block_count") - largest(&c, "nextn_predict_layers");
    if (c.layers < 1 || c.layers > MAX_LAYERS)
        return lq_fail(err, LQ_EFORMAT,
                       "%s.block_count: expected a number of layers, found %" PRId64, row->gguf,
                       c.layers);
    put_kinds(&c);
    put_attention(&c);
    put_mamba(&c);
    put_delta(&c);
    put_partial(&c);
    put_mlp(&c);
    put_jamba(&c);
    lq_status s = put_minimax(&c, err);
    if (!s) s = put_bound(&c, err);
    if (s) return s;
    return c.ok ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
}
