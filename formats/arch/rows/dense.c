/* formats/arch/rows/dense.c - dense models with norms and rotations: Llama and relatives. */
#include "formats/arch/arch_impl.h"
#include "formats/arch/rows/rows.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- Baichuan ---- */

/* The code of the 13 B has ALiBi and model_max_length, that of the 7 B rotations and this key. */
static lq_status baichuan_positions(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)key, (void)err;
    if (!v) c->w.pos = POS_ALIBI;
    return LQ_OK;
}

/* Baichuan 2 uses its output head with rows of length 1; its config.json alone has this key. */
static lq_status baichuan_head(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    enum { SECOND = 125696 };
    (void)key, (void)err;
    c->w.head_rows_1 = v || c->vocab == SECOND;
    return LQ_OK;
}

/* ---- an EAGLE-3 draft ---- */

/* Which layers' inputs: as vLLM has them at the top, in "eagle_config" (SpecForge, SGLang) by the layers
 * whose outputs they are. */
static lq_status eagle_targets(arch_config *c, const cJSON *ids, int64_t more, lq_err *err)
{
    const char *key = "eagle_aux_hidden_state_layer_ids";
    for (int i = 0; i < 3; i++)
        c->target_layers[i] = -1;
    if (!ids || cJSON_IsNull(ids)) return LQ_OK;
    if (cJSON_GetArraySize(ids) != 3)
        return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected three layers", key);
    for (int i = 0; i < 3; i++) {
        const cJSON *v = cJSON_GetArrayItem(ids, i);
        if (!cJSON_IsNumber(v) || v->valuedouble < 0 || v->valuedouble >= ARCH_MAX_LAYERS ||
            v->valuedouble != (double)v->valueint)
            return lq_fail(err, LQ_EVALUE, "%s: expected numbers of layers", key);
        c->target_layers[i] = v->valueint + more;
    }
    return LQ_OK;
}

/* What "eagle_config" says of the draft's parts, as Model-Optimizer writes it. */
static lq_status eagle_parts(const cJSON *own, lq_err *err)
{
    static const struct {
        const char *key;
        bool must;
    } parts[] = { { "use_aux_hidden_state", true }, { "use_input_layernorm_in_first_layer", true },
                  { "use_last_layernorm", true },   { "use_mtp_layernorm", false },
                  { "parallel_draft_step", false }, { "use_mla", false } };
    lq_status s = LQ_OK;
    for (size_t i = 0; i < LQ_COUNT(parts) && !s; i++) {
        bool v = parts[i].must;
        s = js_bool(own, parts[i].key, false, &v, err);
        if (!s && v != parts[i].must)
            s = lq_fail(err, LQ_EUNSUPPORTED, "eagle_config: %s: expected %s", parts[i].key,
                        parts[i].must ? "true" : "false");
    }
    return s;
}

static lq_status eagle_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    const char *key = "eagle_aux_hidden_state_layer_ids";
    const cJSON *own = js_get(j, "eagle_config"), *nested = js_get(own, key);
    lq_status s = eagle_parts(own, err);
    if (!s) s = js_bool(own, "norm_before_fc", false, &c->norm_all, err);
    if (!s && c->norm_all && c->norm_each)
        s = lq_fail(err, LQ_EVALUE, "fc_norm: expected false beside norm_before_fc, found true");
    if (!s && c->layers != 1)
        s = lq_fail(err, LQ_EUNSUPPORTED,
                    "num_hidden_layers: expected 1 in an EAGLE-3 draft, found %" PRId64, c->layers);
    c->tied = false; /* whatever is said: its head is of other ids */
    if (!c->draft_vocab) c->draft_vocab = c->vocab;
    if (!c->target_hidden) c->target_hidden = c->hidden;
    if (!s && (c->draft_vocab < 1 || c->draft_vocab > c->vocab))
        s = lq_fail(err, LQ_EVALUE, "draft_vocab_size: expected 1..%" PRId64 ", found %" PRId64,
                    c->vocab, c->draft_vocab);
    if (!s && (c->target_hidden < 1 || c->target_hidden > ARCH_MAX_WIDTH))
        s = lq_fail(err, LQ_EVALUE, "target_hidden_size: expected 1..%d, found %" PRId64,
                    ARCH_MAX_WIDTH, c->target_hidden);
    return s ? s : eagle_targets(c, nested ? nested : js_get(j, key), nested != NULL, err);
}

/* ---- layers that differ: DeciLM's block_configs ---- */

/* Is this part of a layer left out? What may stand in its place is not here. */
static lq_status deci_left_out(bool *out, const cJSON *part, const char *what, lq_err *err)
{
    bool linear = false;
    *out = false;
    if (!part) return lq_fail(err, LQ_EVALUE, "block_configs: %s: expected an object", what);
    lq_status s = js_bool(part, "no_op", false, out, err);
    if (!s) s = js_bool(part, "replace_with_linear", false, &linear, err);
    if (!s && linear)
        s = lq_fail(err, LQ_EUNSUPPORTED, "block_configs: %s: replace_with_linear: expected false",
                    what);
    for (const cJSON *v = part->child; v && !s && !*out; v = v->next)
        if (!cJSON_IsNull(v) && !cJSON_IsFalse(v) && strcmp(v->string, "n_heads_in_group") != 0 &&
            strcmp(v->string, "ffn_mult") != 0 && strcmp(v->string, "intermediate_size") != 0)
            s = lq_fail(err, LQ_EUNSUPPORTED, "block_configs: %s: %.40s: expected null or false",
                        what, v->string);
    return s;
}

static lq_status deci_attention(arch_config *c, int64_t i, const cJSON *part, arch_sizes *z,
                                lq_err *err)
{
    bool none;
    int64_t group = 1;
    lq_status s = deci_left_out(&none, part, "attention", err);
    if (s) return s;
    if (none) return c->layer[i].mixer = MIX_NONE, LQ_OK;
    s = js_i64(part, "n_heads_in_group", true, 1, c->heads, &group, err);
    z->kv_heads = c->heads / group;
    if (!s && c->heads % group)
        s = lq_fail(err, LQ_EVALUE,
                    "block_configs: n_heads_in_group: expected a divisor of %" PRId64, c->heads);
    return s;
}

/* The width, or what it is relative to two thirds of hidden, in multiples of 256. */
static lq_status deci_ffn(arch_config *c, int64_t i, const cJSON *part, arch_sizes *z, lq_err *err)
{
    enum { STEP = 256 };
    double mult = 1;
    lq_status s = deci_left_out(&c->layer[i].no_mlp, part, "ffn", err);
    if (s || c->layer[i].no_mlp) return s;
    if (js_get(part, "intermediate_size"))
        return js_i64(part, "intermediate_size", true, 1, ARCH_MAX_WIDTH, &z->ffn, err);
    s = js_f64(part, "ffn_mult", true, 1e-3, 64, &mult, err);
    z->ffn = lq_ceil_div((int64_t)(2 * mult * (double)c->hidden / 3), STEP) * STEP;
    return s;
}

static lq_status deci_sizes(arch_config *c, const cJSON *list, arch_sizes *z, lq_err *err)
{
    const cJSON *e = cJSON_IsArray(list) ? list->child : NULL;
    lq_status s = LQ_OK;
    for (int64_t i = 0; i < c->layers && !s; i++, e = e ? e->next : NULL) {
        z[i] = arch_sizes_of(c, i);
        s = deci_attention(c, i, js_get(e, "attention"), &z[i], err);
        if (!s) s = deci_ffn(c, i, js_get(e, "ffn"), &z[i], err);
    }
    /* What a layer lacks has the sizes of one that has it. */
    for (int64_t i = 0, with = 0; i < 2 * c->layers && !s; i++) {
        const int64_t at = i % c->layers;
        if (c->layer[at].no_mlp) z[at].ffn = z[with].ffn;
        if (c->layer[at].mixer == MIX_NONE) z[at].kv_heads = z[with].kv_heads;
        with = at;
    }
    return s ? s : arch_set_sizes(c, z, err);
}

static lq_status deci_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    arch_sizes *z = calloc((size_t)c->layers, sizeof *z);
    lq_status s = z ? deci_sizes(c, js_get(j, "block_configs"), z, err)
                    : lq_fail(err, LQ_ENOMEM, "no memory for %" PRId64 " layers", c->layers);
    free(z);
    return s;
}

/* ---- Mllama (Llama 3.2 Vision) ---- */

/* Its text alone: layers that attend to images are passed by, as transformers does where there is none. */
static lq_status mllama_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    static const char key[] = "cross_attention_layers";
    enum { FIRST = 3, EVERY = 5, OF_IMAGES = 8 };
    const cJSON *list = js_get(j, key);
    char found[64];
    if (list && !cJSON_IsArray(list))
        return lq_fail(err, LQ_EVALUE, "%s: expected an array of layers, found %s", key,
                       js_describe(found, list));
    c->embed_more = OF_IMAGES;
    for (int64_t i = 0; i < c->layers; i++)
        c->layer[i].no_mlp = !list && i % EVERY == FIRST;
    for (const cJSON *v = list ? list->child : NULL; v; v = v->next) {
        int64_t i;
        if (!js_whole(v, 0, c->layers - 1, &i))
            return lq_fail(err, LQ_EVALUE, "%s: expected layers 0..%" PRId64 ", found %s", key,
                           c->layers - 1, js_describe(found, v));
        c->layer[i].no_mlp = true;
    }
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].no_mlp) c->layer[i].mixer = MIX_NONE;
    return LQ_OK;
}

/* A table of names reads by line. */
/* clang-format off */
#define UP_DOWN \
    { R_UP, LAYER "mlp.up_proj", 0, BIAS_MLP }, \
    { R_DOWN, LAYER "mlp.down_proj", 0, BIAS_MLP }
static const arch_name llama_names[] = { LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_MLP), END };
static const arch_name mistral_names[] = { LLAMA_NAMES(BIAS_NO, BIAS_NO, BIAS_NO), END };
static const arch_name qwen2_names[] = { LLAMA_NAMES(BIAS_YES, BIAS_NO, BIAS_NO), END };
static const arch_name mimo_mtp_names[] = {
    { R_FINAL_NORM, "@mtp_layers.%d.final_layernorm", 0, BIAS_NO },
    { R_MTP_EMBED_NORM, "@mtp_layers.%d.token_layernorm", 0, BIAS_NO },
    { R_MTP_HIDDEN_NORM, "@mtp_layers.%d.hidden_layernorm", 0, BIAS_NO },
    { R_MTP_PROJ, "@mtp_layers.%d.input_proj", 0, BIAS_NO },
    END,
};
static const arch_mtp mimo_mtp = { "@mtp_layers.%d.", .hidden_first = true, .names = mimo_mtp_names };
static const arch_name bitnet_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    { R_O_NORM, LAYER "self_attn.attn_sub_norm", 0, BIAS_NO },
    { R_DOWN_NORM, LAYER "mlp.ffn_sub_norm", 0, BIAS_NO },
    END,
};
/* Drafts for Qwen3 may have its norms of q and k (vLLM, qwen3_eagle3.py). */
#define EAGLE_NAMES(layer) \
    { R_EMBED, "@embed_tokens", NAME_OPTIONAL, BIAS_NO }, \
    { R_FINAL_NORM, "@norm", 0, BIAS_NO }, \
    { R_HEAD, "lm_head", 0, BIAS_NO }, \
    { R_MTP_EMBED_NORM, layer "input_layernorm", 0, BIAS_NO }, \
    { R_MTP_HIDDEN_NORM, layer "hidden_norm", 0, BIAS_NO }, \
    { R_MTP_PROJ, "@fc", 0, BIAS_NO }, \
    { R_MTP_ALL_NORM, "@input_norm", 0, BIAS_NO }, \
    { R_MTP_EACH_NORM, "@fc_norm.%e", NAME_HEAD_EACH, BIAS_NO }, \
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN), \
    { R_Q_NORM, LAYER "self_attn.q_norm", NAME_OPTIONAL, BIAS_NO }, \
    { R_K_NORM, LAYER "self_attn.k_norm", NAME_OPTIONAL, BIAS_NO }, \
    { R_MLP_NORM, LAYER "post_attention_layernorm", 0, BIAS_NO }, \
    GATED(BIAS_MLP)
static const arch_name eagle_names[] = { EAGLE_NAMES("@midlayer."), END };
static const arch_name speculator_names[] = { EAGLE_NAMES("@layers.0."), END };
static const arch_mtp speculator_mtp = { "@layers.0.", .names = speculator_names, .eagle = true };
static const arch_mtp eagle_mtp = { "@midlayer.", .names = eagle_names, .eagle = true };
static const arch_name qwen3_names[] = { LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO), QK_NORMS,
                                         END };
static const arch_name phi3_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    { R_QKV, LAYER "self_attn.qkv_proj", 0, BIAS_NO },
    { R_O, LAYER "self_attn.o_proj", 0, BIAS_NO },
    { R_GATE_UP, LAYER "mlp.gate_up_proj", 0, BIAS_NO },
    { R_DOWN, LAYER "mlp.down_proj", 0, BIAS_NO },
    END,
};
#define GATE_UP \
    { R_GATE_UP, LAYER "mlp.gate_up_proj", 0, BIAS_NO }, \
    { R_DOWN, LAYER "mlp.down_proj", 0, BIAS_NO }
static const arch_name glm_names[] = {
    EMBED_NORM_HEAD(BIAS_NO), PRE_NORMS(BIAS_NO), SELF_ATTN(BIAS_ATTN, BIAS_NO), GATE_UP, END,
};
static const arch_name glm4_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO },
    { R_ATTN_POST_NORM, LAYER "post_self_attn_layernorm", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "post_attention_layernorm", 0, BIAS_NO },
    { R_MLP_POST_NORM, LAYER "post_mlp_layernorm", 0, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_NO),
    GATE_UP,
    END,
};
static const arch_name glm4v_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO },
    { R_ATTN_POST_NORM, LAYER "post_self_attn_layernorm", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "post_attention_layernorm", 0, BIAS_NO },
    { R_MLP_POST_NORM, LAYER "post_mlp_layernorm", 0, BIAS_NO },
    SELF_ATTN(BIAS_YES, BIAS_NO),
    GATE_UP,
    END,
};
static const arch_name glm_ocr_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO },
    { R_ATTN_POST_NORM, LAYER "post_self_attn_layernorm", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "post_attention_layernorm", 0, BIAS_NO },
    { R_MLP_POST_NORM, LAYER "post_mlp_layernorm", 0, BIAS_NO },
    SELF_ATTN(BIAS_NO, BIAS_NO),
    GATE_UP,
    END,
};
static const arch_name baichuan_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    { R_QKV, LAYER "self_attn.W_pack", 0, BIAS_NO },
    { R_O, LAYER "self_attn.o_proj", 0, BIAS_NO },
    GATED(BIAS_NO),
    END,
};
static const arch_name helium_names[] = { LLAMA_NAMES(BIAS_ATTN, BIAS_NO, BIAS_MLP), END };
static const arch_name seed_oss_names[] = { LLAMA_NAMES(BIAS_ATTN, BIAS_OWN, BIAS_MLP), END };
static const arch_name olmo2_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_POST_NORM, LAYER "post_attention_layernorm", 0, BIAS_NO },
    { R_MLP_POST_NORM, LAYER "post_feedforward_layernorm", 0, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    QK_NORMS,
    GATED(BIAS_NO),
    END,
};
static const arch_name cohere_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    { R_Q_NORM, LAYER "self_attn.q_norm", NAME_HEAD_ROWS, BIAS_NO },
    { R_K_NORM, LAYER "self_attn.k_norm", NAME_HEAD_ROWS, BIAS_NO },
    GATED(BIAS_NO),
    END,
};
static const arch_name stablelm_names[] = {
    EMBED_NORM_HEAD(BIAS_YES),
    PRE_NORMS(BIAS_YES),
    SELF_ATTN(BIAS_ATTN, BIAS_NO),
    { R_Q_NORM, LAYER "self_attn.q_layernorm.norms.%e", NAME_HEAD_EACH, BIAS_NO },
    { R_K_NORM, LAYER "self_attn.k_layernorm.norms.%e", NAME_HEAD_EACH, BIAS_NO },
    GATED(BIAS_NO),
    END,
};
static const arch_name starcoder2_names[] = {
    EMBED_NORM_HEAD(BIAS_YES),
    PRE_NORMS(BIAS_YES),
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    { R_UP, LAYER "mlp.c_fc", 0, BIAS_MLP },
    { R_DOWN, LAYER "mlp.c_proj", 0, BIAS_MLP },
    END,
};
#define QK_LAYERNORMS \
    { R_Q_NORM, LAYER "self_attn.q_layernorm", 0, BIAS_YES }, \
    { R_K_NORM, LAYER "self_attn.k_layernorm", 0, BIAS_YES }
static const arch_name phi_names[] = {
    { R_EMBED, "@embed_tokens", 0, BIAS_NO },
    { R_FINAL_NORM, "@final_layernorm", 0, BIAS_YES },
    { R_HEAD, "^lm_head", 0, BIAS_YES },
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_YES },
    { R_Q, LAYER "self_attn.q_proj", 0, BIAS_YES },
    { R_K, LAYER "self_attn.k_proj", 0, BIAS_YES },
    { R_V, LAYER "self_attn.v_proj", 0, BIAS_YES },
    QK_LAYERNORMS,
    { R_O, LAYER "self_attn.dense", 0, BIAS_YES },
    { R_UP, LAYER "mlp.fc1", 0, BIAS_YES },
    { R_DOWN, LAYER "mlp.fc2", 0, BIAS_YES },
    END,
};
static const arch_name nemotron_names[] = {
    EMBED_NORM_HEAD(BIAS_YES), PRE_NORMS(BIAS_YES), SELF_ATTN(BIAS_ATTN, BIAS_ATTN), UP_DOWN, END,
};
static const arch_name arcee_names[] = {
    EMBED_NORM_HEAD(BIAS_NO), PRE_NORMS(BIAS_NO), SELF_ATTN(BIAS_ATTN, BIAS_ATTN), UP_DOWN, END,
};
static const arch_name persimmon_names[] = {
    { R_EMBED, "@embed_tokens", 0, BIAS_NO },
    { R_FINAL_NORM, "@final_layernorm", 0, BIAS_YES },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    PRE_NORMS(BIAS_YES),
    { R_QKV, LAYER "self_attn.query_key_value", 0, BIAS_YES },
    QK_LAYERNORMS,
    { R_O, LAYER "self_attn.dense", 0, BIAS_YES },
    { R_UP, LAYER "mlp.dense_h_to_4h", 0, BIAS_YES },
    { R_DOWN, LAYER "mlp.dense_4h_to_h", 0, BIAS_YES },
    END,
};
/* Its norms have no weights. */
static const arch_name olmo_names[] = {
    { R_EMBED, "@embed_tokens", 0, BIAS_NO },
    { R_FINAL_NORM, "@norm", NAME_OPTIONAL | NAME_ONES, BIAS_NO },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    { R_ATTN_NORM, LAYER "input_layernorm", NAME_OPTIONAL | NAME_ONES, BIAS_NO },
    { R_MLP_NORM, LAYER "post_attention_layernorm", NAME_OPTIONAL | NAME_ONES, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    GATED(BIAS_NO),
    END,
};
static const arch_name hunyuan_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    { R_Q_NORM, LAYER "self_attn.query_layernorm", 0, BIAS_NO },
    { R_K_NORM, LAYER "self_attn.key_layernorm", 0, BIAS_NO },
    END,
};
static const arch_name exaone_names[] = {
    { R_EMBED, "@wte", 0, BIAS_NO },
    { R_FINAL_NORM, "@ln_f", 0, BIAS_NO },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    { R_ATTN_NORM, "@h.%d.ln_1", 0, BIAS_NO },
    { R_Q, "@h.%d.attn.attention.q_proj", 0, BIAS_NO },
    { R_K, "@h.%d.attn.attention.k_proj", 0, BIAS_NO },
    { R_V, "@h.%d.attn.attention.v_proj", 0, BIAS_NO },
    { R_O, "@h.%d.attn.attention.out_proj", 0, BIAS_NO },
    { R_MLP_NORM, "@h.%d.ln_2", 0, BIAS_NO },
    { R_GATE, "@h.%d.mlp.c_fc_0", 0, BIAS_NO },
    { R_UP, "@h.%d.mlp.c_fc_1", 0, BIAS_NO },
    { R_DOWN, "@h.%d.mlp.c_proj", 0, BIAS_NO },
    END,
};
static const arch_name internlm2_names[] = {
    { R_EMBED, "@tok_embeddings", 0, BIAS_NO },
    { R_FINAL_NORM, "@norm", 0, BIAS_NO },
    { R_HEAD, "^output", 0, BIAS_NO },
    { R_ATTN_NORM, LAYER "attention_norm", 0, BIAS_NO },
    { R_QKV, LAYER "attention.wqkv", 0, BIAS_ATTN },
    { R_O, LAYER "attention.wo", 0, BIAS_ATTN },
    { R_MLP_NORM, LAYER "ffn_norm", 0, BIAS_NO },
    { R_GATE, LAYER "feed_forward.w1", 0, BIAS_NO },
    { R_UP, LAYER "feed_forward.w3", 0, BIAS_NO },
    { R_DOWN, LAYER "feed_forward.w2", 0, BIAS_NO },
    END,
};
static const arch_name internlm3_names[] = { LLAMA_NAMES(BIAS_ATTN, BIAS_MLP, BIAS_MLP), END };
static const arch_name hyperclovax_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_MLP),
    { R_ATTN_POST_NORM, LAYER "post_norm1", 0, BIAS_NO },
    { R_MLP_POST_NORM, LAYER "post_norm2", 0, BIAS_NO },
    END,
};
static const arch_name jais2_names[] = {
    EMBED_NORM_HEAD(BIAS_YES), PRE_NORMS(BIAS_YES), SELF_ATTN(BIAS_ATTN, BIAS_ATTN), UP_DOWN, END,
};
static const arch_name apertus_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, LAYER "attention_layernorm", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "feedforward_layernorm", 0, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    QK_NORMS,
    { R_UP, LAYER "mlp.up_proj", 0, BIAS_NO },
    { R_DOWN, LAYER "mlp.down_proj", 0, BIAS_NO },
    { R_XIELU_P, LAYER "mlp.act_fn.alpha_p", NAME_BARE, BIAS_NO },
    { R_XIELU_N, LAYER "mlp.act_fn.alpha_n", NAME_BARE, BIAS_NO },
    { R_XIELU_BETA, LAYER "mlp.act_fn.beta", NAME_BARE, BIAS_NO },
    { R_XIELU_EPS, LAYER "mlp.act_fn.eps", NAME_BARE, BIAS_NO },
    END,
};
static const arch_name granite_dense_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    { R_GATE_UP, LAYER "shared_mlp.input_linear", 0, BIAS_NO },
    { R_DOWN, LAYER "shared_mlp.output_linear", 0, BIAS_NO },
    END,
};
static const arch_name granite_swa_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_MLP),
    { R_SINKS, LAYER "self_attn.sinks", NAME_BARE, BIAS_NO },
    END,
};
/* Its norms have no weights. */
#define NO_WEIGHT (NAME_OPTIONAL | NAME_ONES)
static const arch_name nanochat_names[] = {
    { R_EMBED, "@embed_tokens", 0, BIAS_NO },
    { R_EMBED_NORM, "@embed_norm", NO_WEIGHT, BIAS_NO },
    { R_FINAL_NORM, "@norm", NO_WEIGHT, BIAS_NO },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    { R_ATTN_NORM, LAYER "input_layernorm", NO_WEIGHT, BIAS_NO },
    { R_MLP_NORM, LAYER "post_attention_layernorm", NO_WEIGHT, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    { R_Q_NORM, LAYER "self_attn.q_norm", NO_WEIGHT, BIAS_NO },
    { R_K_NORM, LAYER "self_attn.k_norm", NO_WEIGHT, BIAS_NO },
    { R_UP, LAYER "mlp.fc1", 0, BIAS_NO },
    { R_DOWN, LAYER "mlp.fc2", 0, BIAS_NO },
    END,
};
/* As microsoft published it, with adapters of images and sound beside the layers. */
static const arch_name phi4_mm_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    { R_QKV, LAYER "self_attn.qkv_proj.base_layer", 0, BIAS_NO },
    { R_O, LAYER "self_attn.o_proj.base_layer", 0, BIAS_NO },
    { R_GATE_UP, LAYER "mlp.gate_up_proj.base_layer", 0, BIAS_NO },
    { R_DOWN, LAYER "mlp.down_proj.base_layer", 0, BIAS_NO },
    END,
};
static const arch_key baichuan_keys[] = {
    { "max_position_embeddings", KEY_FN, 0, NONE, baichuan_positions },
    { "z_loss_weight", KEY_FN, 0, NONE, baichuan_head },
    { "attention_projections_apart", KEY_KNOWN, 0, NONE, NULL }, /* of what is read from GGUF */
    NO_KEY,
};
static const arch_key granite_swa_keys[] = {
    GRANITE_KEYS,
    { "layer_rope_theta", KEY_KNOWN, 0, NONE, NULL }, /* arch_layer_thetas */
    NO_KEY,
};
static const arch_key nanochat_keys[] = {
    { "final_logit_softcapping", KEY_REAL, AT(final_softcap), 15, NULL },
    NO_KEY,
};
static const arch_key phi4_mm_keys[] = {
    MUST("lm_head_bias", 0),
    MUST("full_attn_mod", 1),
    NO_KEY,
};
static const arch_key cohere_keys[] = {
    { "logit_scale", KEY_REAL, AT(logit_scale), 0.0625, NULL },
    { "use_qk_norm", KEY_FN, 0, NONE, arch_key_heads_qk_norm },
    NO_KEY,
};
static const arch_key granite_keys[] = { GRANITE_KEYS, NO_KEY };
static const arch_key llama_both_keys[] = {
    MUST("use_bidirectional_attention", 1),
    MUST("is_causal", 0),
    { "pooling", KEY_FN, 0, NONE, arch_key_no_labels },
    NO_KEY,
};
static const arch_key granite_docling_keys[] = {
    { "embedding_multiplier", KEY_REAL, AT(embed_scale), 12, NULL },
    { "residual_multiplier", KEY_REAL, AT(residual_scale), 0.263, NULL },
    { "attention_multiplier", KEY_REAL, AT(attn_scale), 0.015625, NULL },
    { "logits_scaling", KEY_INVERSE, AT(logit_scale), 4, NULL },
    NO_KEY,
};
static const arch_key granite_dense_keys[] = {
    GRANITE_KEYS,
    MUST("num_local_experts", 0),
    { "position_embedding_type", KEY_KNOWN, 0, NONE, NULL }, /* the row was chosen by it */
    { "shared_intermediate_size", KEY_INT, AT(ffn), 1024, NULL },
    { "mamba_conv_bias", KEY_KNOWN, 0, NONE, NULL }, /* no layer of it is one of Mamba */
    NO_KEY,
};
static const arch_key hyperclovax_keys[] = {
    { "embedding_multiplier", KEY_REAL, AT(embed_scale), 1, NULL },
    { "residual_multiplier", KEY_REAL, AT(residual_scale), 1, NULL },
    { "attention_multiplier", KEY_REAL, AT(attn_scale), NONE, NULL },
    { "logits_scaling", KEY_REAL, AT(logit_scale), 1, NULL },
    { "use_post_norm", KEY_KNOWN, 0, NONE, NULL }, /* the row was chosen by it */
    NO_KEY,
};
static const arch_key ministral3_keys[] = { Q_GROW_KEYS, NO_KEY };
static const arch_key minicpm_keys[] = {
    MINICPM_SCALES(1, 1, 1),
    { "mup_denominator", KEY_KNOWN, 0, NONE, NULL }, /* not read by the modelling code */
    MUST("num_experts", 0),
    MUST("sparse_config", 0),
    NO_KEY,
};
static const arch_key apertus_keys[] = { MUST("post_norm", 0), MUST("qk_norm", 1), MUST("mlp_bias", 0), NO_KEY };
static const arch_key internlm_keys[] = {
    { "bias", KEY_FLAG, AT(attn_bias), 0, NULL },
    { "bias", KEY_FLAG, AT(mlp_bias), 0, NULL },
    { "qkv_bias", KEY_FLAG, AT(attn_bias), NONE, NULL },
    NO_KEY,
};
static const arch_key stablelm_keys[] = {
    { "use_qkv_bias", KEY_FLAG, AT(attn_bias), 0, NULL },
    { "use_parallel_residual", KEY_BOOL, AT(w.parallel), 0, NULL },
    { "use_parallel_residual", KEY_BOOL, AT(w.one_norm), 0, NULL },
    { "qk_layernorm", KEY_FN, 0, NONE, arch_key_heads_qk_norm },
    NO_KEY,
};
static const arch_key starcoder2_keys[] = { BIASES("use_bias", 1), NO_KEY };
/* Phi's and Persimmon's */
static const arch_key phi_keys[] = { { "qk_layernorm", KEY_FN, 0, NONE, arch_key_head_qk_norm }, NO_KEY };
static const arch_key olmo_keys[] = {
    { "clip_qkv", KEY_REAL, AT(qkv_clip), 0, NULL },
    NO_KEY,
};
static const arch_key hunyuan_keys[] = {
    MUST("use_qk_norm", 1),
    MUST("use_rotary_pos_emb", 1),
    MUST("mlp_bias", 0),
    MUST("use_cla", 0),
    { "norm_type", KEY_KNOWN, 0, NONE, NULL }, /* not read by the modelling code, like these: */
    { "attention_head_dim", KEY_KNOWN, 0, NONE, NULL },
    { "routed_scaling_factor", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
};
static const arch_key ernie_keys[] = { BIASES("use_bias", 0), NO_KEY };
static const arch_key seed_oss_keys[] = {
    { "attention_bias", KEY_FLAG, AT(attn_bias), 1, NULL },
    { "attention_out_bias", KEY_FLAG, AT(own_bias), NONE, NULL },
    NO_KEY,
};
static const arch_key cohere_compass_keys[] = {
    { "logit_scale", KEY_REAL, AT(logit_scale), 1, NULL },
    { "pooling", KEY_KNOWN, 0, NONE, NULL }, /* of embeddings */
    NO_KEY,
};
static const arch_key cohere2_keys[] = {
    { "logit_scale", KEY_REAL, AT(logit_scale), 0.0625, NULL },
    { "rotary_pct", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
};
/* clang-format on */

static const arch_key eagle_keys[] = {
    { "draft_vocab_size", KEY_INT, AT(draft_vocab), NONE, NULL },
    { "target_hidden_size", KEY_INT, AT(target_hidden), NONE, NULL },
    { "norm_before_residual", KEY_BOOL, AT(norm_first), NONE, NULL },
    { "eagle_config", KEY_KNOWN, 0, NONE, NULL },
    { "eagle_aux_hidden_state_layer_ids", KEY_KNOWN, 0, NONE, NULL },
    { "norm_before_fc", KEY_BOOL, AT(norm_all), NONE, NULL },
    { "fc_norm", KEY_BOOL, AT(norm_each), NONE, NULL },
    { "norm_output", KEY_BOOL, AT(norm_own), NONE, NULL },
    { "embed_requires_grad", KEY_KNOWN, 0, NONE, NULL },
    /* of the model that it was made for: its MLP is one */
    { "num_local_experts", KEY_KNOWN, 0, NONE, NULL },
    { "num_experts_per_tok", KEY_KNOWN, 0, NONE, NULL },
    { "experts_per_token", KEY_KNOWN, 0, NONE, NULL },
    { "attention_head_dim", KEY_KNOWN, 0, NONE, NULL }, /* head_dim again */
    { "use_qk_norm", KEY_KNOWN, 0, NONE, NULL },        /* they are there, or not */
    { "norm_type", KEY_KNOWN, 0, NONE, NULL },
    MUST("use_rotary_pos_emb", 1),
    NO_KEY,
};

static const arch_key mllama_keys[] = {
    { "cross_attention_layers", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
};

/* clang-format off */
#define EAGLE_ROW(arch, which, fits, names_of, mtp_of) \
    { arch, "llama", which, fits, .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD }, .prefix = "", \
      .names = names_of, .keys = eagle_keys, .mtp = &mtp_of, .window = WINDOW_IF_USED, \
      .layers = eagle_layers }
#define EAGLE_ROWS(arch) \
    EAGLE_ROW(arch, "draft", NULL, eagle_names, eagle_mtp), \
    EAGLE_ROW(arch, ARCH_DRAFT_OTHER, "-", speculator_names, speculator_mtp)
/* clang-format on */

const arch_row arch_rows_dense[] = {
    { "LlamaForCausalLM", "llama", .w = { RMS_ROPE }, MODEL, .names = llama_names,
      .def_sizes = SIZES("32000", "4096", "11008", "32", "32") },
    { "TeleChat3ForCausalLM", "telechat3", .w = { RMS_ROPE }, MODEL, .names = llama_names },
    { "Emu3ForCausalLM", "emu3_text_model", .w = { RMS_ROPE }, MODEL, .names = mistral_names,
      .def_kv_heads = 8, .def_eps = 1e-5, .def_theta = 1e6, .def_max_pos = 9216 },
    /* Nemotron's embedding models, whose code is their own: Llama that sees both ways. */
    { "LlamaBidirectionalForCausalLM", "llama_bidirec", .w = { RMS_ROPE, .both_ways = true }, MODEL,
      .names = llama_names, .keys = llama_both_keys },
    { "MistralForCausalLM", "mistral", .w = { RMS_ROPE }, MODEL, .names = mistral_names,
      .window = WINDOW_ALL, .def_kv_heads = 8, .def_window = 4096, .def_max_pos = 131072,
      .def_sizes = SIZES("32000", "4096", "14336", "32", "32") },
    { "Qwen2ForCausalLM", "qwen2", .w = { RMS_ROPE }, MODEL, .names = qwen2_names,
      .window = WINDOW_IF_USED, .def_kv_heads = 32, .def_window = 4096, .def_max_pos = 32768,
      .def_sizes = SIZES("151936", "4096", "22016", "32", "32") },
    /* Qwen2 with an MTP head; its published files bring code of their own. */
    { "MiMoForCausalLM", "mimo", .w = { RMS_ROPE }, MODEL, .names = qwen2_names, .mtp = &mimo_mtp,
      .window = WINDOW_IF_USED, .def_kv_heads = 32, .def_window = 4096, .def_max_pos = 32768 },
    { "Qwen3ForCausalLM", "qwen3", .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD }, MODEL,
      .names = qwen3_names, .window = WINDOW_IF_USED, .def_kv_heads = 32, .def_head_dim = 128,
      .def_window = 4096, .def_max_pos = 32768 },
    { "Phi3ForCausalLM", "phi3", .def_partial = 1, .w = { RMS_ROPE }, MODEL, .names = phi3_names,
      .window = WINDOW_ALL, .def_eps = 1e-5, .def_max_pos = 4096 },
    { "Olmo2ForCausalLM", "olmo2", .w = { RMS_ROPE, .qk_norm = QK_NORM_ALL }, MODEL,
      .names = olmo2_names, .def_eps = 1e-5 },
    { "GraniteForCausalLM", "granite", .w = { RMS_ROPE }, MODEL, .names = llama_names,
      .keys = granite_keys },
    { "SmolLM3ForCausalLM", "smollm3", .w = { RMS_ROPE }, MODEL, .names = llama_names,
      .window = WINDOW_NOPE_IF_USED, .def_nope_every = 4, .def_kv_heads = 4, .def_theta = 2e6,
      .def_max_pos = 32768, .def_tied = true },
    { "Olmo3ForCausalLM", "olmo3", .w = { RMS_ROPE, .qk_norm = QK_NORM_ALL }, MODEL,
      .names = olmo2_names, .window = WINDOW_PATTERN, .def_pattern = 4, .def_window = 4096,
      .def_eps = 1e-5, .def_theta = 5e5, .def_local_theta = -1 },
    { "Exaone4ForCausalLM", "exaone4", .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD }, MODEL,
      .names = olmo2_names, .window = WINDOW_PATTERN, .def_pattern = 4, .def_window = 4096,
      .def_kv_heads = 32, .def_eps = 1e-5, .nope_full = true },
    { "GlmForCausalLM", "glm", .w = { RMS_PAIRS }, MODEL, .names = glm_names, .def_kv_heads = 2,
      .def_head_dim = 128, .def_partial = 0.5, .def_eps = 1.5625e-07, .def_max_pos = 131072 },
    { "Glm4ForCausalLM", "glm4", .w = { RMS_PAIRS }, MODEL, .names = glm4_names, .def_kv_heads = 2,
      .def_head_dim = 128, .def_partial = 0.5, .def_eps = 1.5625e-07, .def_max_pos = 131072 },
    { "BaichuanForCausalLM", "baichuan", ARCH_APART, "attention_projections_apart=true",
      .w = { RMS_ROPE }, MODEL, .names = llama_names, .keys = baichuan_keys, .def_max_pos = 4096 },
    { "BaichuanForCausalLM", "baichuan", .w = { RMS_ROPE }, MODEL, .names = baichuan_names,
      .keys = baichuan_keys, .def_max_pos = 4096 },
    { "HeliumForCausalLM", "helium", .w = { RMS_PAIRS }, MODEL, .names = helium_names,
      .def_kv_heads = 20, .def_head_dim = 128, .def_eps = 1e-8, .def_theta = 1e5,
      .def_max_pos = 4096 },
    { "Ernie4_5ForCausalLM", "ernie4_5", .w = { RMS_PAIRS }, MODEL, .names = llama_names,
      .keys = ernie_keys, .def_kv_heads = 2, .def_head_dim = 128, .def_eps = 1e-5, .def_theta = 5e5,
      .def_max_pos = 131072, .def_tied = true },
    { "SeedOssForCausalLM", "seed_oss", .w = { RMS_ROPE }, MODEL, .names = seed_oss_names,
      .keys = seed_oss_keys, .def_kv_heads = 8, .def_head_dim = 128, .def_max_pos = 524288 },
    { "MinistralForCausalLM", "ministral", .w = { RMS_ROPE }, MODEL, .names = mistral_names,
      .window = WINDOW_ALL, .def_kv_heads = 8, .def_window = 4096, .def_max_pos = 131072 },
    { "Cohere2ForCausalLM", "cohere2",
      .w = { .norm = NORM_LAYER,
             .pos = POS_ROPE,
             .mlp = MLP_GATED,
             .parallel = true,
             .one_norm = true },
      MODEL, .names = cohere_names, .keys = cohere2_keys, .window = WINDOW_PATTERN,
      .def_pattern = 4, .def_window = 4096, .nope_full = true, .def_eps = 1e-5, .def_max_pos = 8192,
      .def_tied = true },
    { "CohereCompassForCausalLM", "cohere_compass",
      .w = { LN_ROPE, .mlp = MLP_GATED, .parallel = true, .one_norm = true }, MODEL,
      .names = cohere_names, .keys = cohere_compass_keys, .window = WINDOW_PATTERN,
      .def_pattern = 1, .def_window = 4096, .def_eps = 1e-5, .def_max_pos = 8192,
      .def_tied = true },
    { "CohereForCausalLM", "cohere",
      .w = { .norm = NORM_LAYER,
             .pos = POS_ROPE,
             .mlp = MLP_GATED,
             .parallel = true,
             .one_norm = true },
      MODEL, .names = cohere_names, .keys = cohere_keys, .def_eps = 1e-5, .def_theta = 5e5,
      .def_max_pos = 8192, .def_tied = true },
    { "StableLmForCausalLM", "stablelm", .w = { LN_ROPE, .mlp = MLP_GATED }, MODEL,
      .names = stablelm_names, .keys = stablelm_keys, .def_kv_heads = 32, .def_eps = 1e-5,
      .def_partial = 0.25, .def_max_pos = 4096 },
    { "Starcoder2ForCausalLM", "starcoder2", .w = { LN_ROPE, .mlp = MLP_PLAIN }, MODEL,
      .names = starcoder2_names, .keys = starcoder2_keys, GELU_TANH, .window = WINDOW_ALL,
      .def_kv_heads = 2, .def_eps = 1e-5, .def_max_pos = 4096, .def_tied = true },
    { "PhiForCausalLM", "phi",
      .w = { LN_ROPE, .mlp = MLP_PLAIN, .parallel = true, .one_norm = true }, MODEL,
      .names = phi_names, .keys = phi_keys, GELU_TANH, .def_eps = 1e-5, .def_partial = 0.5 },
    { "PersimmonForCausalLM", "persimmon",
      .w = { LN_ROPE, .mlp = MLP_PLAIN, .qkv_grouped = true, .qk_norm = QK_NORM_HEAD }, MODEL,
      .names = persimmon_names, .keys = phi_keys, .def_act = ARCH_RELU2, .def_eps = 1e-5,
      .def_theta = 25000, .def_partial = 0.5, .def_max_pos = 16384 },
    { "NemotronForCausalLM", "nemotron", .w = { LN_ROPE, .norm_offset = 1, .mlp = MLP_PLAIN },
      MODEL, .names = nemotron_names, .def_act = ARCH_RELU2, .def_eps = 1e-5, .def_partial = 0.5,
      .def_max_pos = 4096 },
    { "ArceeForCausalLM", "arcee",
      .w = { .norm = NORM_RMS, .pos = POS_ROPE, .rope_half = true, .mlp = MLP_PLAIN }, MODEL,
      .names = arcee_names, .def_act = ARCH_RELU2, .def_eps = 1e-5, .def_max_pos = 4096 },
    { "OlmoForCausalLM", "olmo", .w = { LN_ROPE, .mlp = MLP_GATED }, MODEL, .names = olmo_names,
      .keys = olmo_keys, .def_eps = 1e-5 },
    { "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense",
      .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, .qk_norm_late = true }, MODEL,
      .names = hunyuan_names, .keys = hunyuan_keys, .def_eps = 1e-5 },
    { "Qwen2VLForConditionalGeneration", "qwen2_vl", .w = { RMS_ROPE }, MODEL, .in_text = true,
      .names = qwen2_names, .window = WINDOW_IF_USED, .def_window_from = 80, .def_kv_heads = 8,
      .def_window = 4096, .def_eps = 1e-5, .def_theta = 1e6, .def_max_pos = 32768 },
    { "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", .w = { RMS_ROPE }, MODEL, .in_text = true,
      .names = qwen2_names, .window = WINDOW_IF_USED, .def_window_from = 80, .def_kv_heads = 8,
      .def_window = 4096, .def_eps = 1e-5, .def_theta = 1e6, .def_max_pos = 32768 },
    { "Qwen2_5OmniThinkerForConditionalGeneration", "qwen2_5_omni", .w = { RMS_ROPE },
      .prefix = "thinker.model.", .in_text = true, .names = qwen2_names, .window = WINDOW_IF_USED,
      .def_kv_heads = 4, .def_window = 32768, .def_theta = 1e6, .def_max_pos = 32768,
      .def_tied = true },
    { "Qwen3VLForConditionalGeneration", "qwen3_vl", .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD },
      .prefix = "model.language_model.", .in_text = true, .names = qwen3_names, .def_kv_heads = 32,
      .def_head_dim = 128, .def_theta = 5e5, .def_max_pos = 128000 },
    { "Glm4vForConditionalGeneration", "glm4v", .def_partial = 1, .w = { RMS_PAIRS },
      .prefix = "model.language_model.", .in_text = true, .names = glm4v_names, .def_kv_heads = 2,
      .def_eps = 1e-5, .def_max_pos = 32768 },
    { "GlmOcrForConditionalGeneration", "glm_ocr", .def_partial = 1, .w = { RMS_PAIRS },
      .prefix = "model.language_model.", .in_text = true, .names = glm_ocr_names, .def_kv_heads = 8,
      .def_eps = 1e-5, .def_max_pos = 131072,
      .def_sizes = SIZES("59392", "1024", "4096", "16", "16") },
    { "PaddleOCRVLForConditionalGeneration", "paddleocr_vl", .w = { RMS_ROPE }, MODEL,
      .in_text = true, .names = llama_names, .keys = ernie_keys, .def_kv_heads = 2,
      .def_head_dim = 128, .def_eps = 1e-5, .def_theta = 5e5, .def_max_pos = 131072,
      .def_tied = true, .def_sizes = SIZES("103424", "1024", "3072", "18", "16") },
    { "HunYuanVLForConditionalGeneration", "hunyuan_vl",
      .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, .qk_norm_late = true }, MODEL, .in_text = true,
      .names = hunyuan_names, .keys = hunyuan_keys, .def_eps = 1e-5, .def_tied = true },
    { "GraniteDoclingForConditionalGeneration", "granite_docling", .w = { RMS_ROPE },
      .prefix = "model.text_model.", .in_text = true, .names = llama_names,
      .keys = granite_docling_keys, .def_kv_heads = 4, .def_eps = 1e-5, .def_max_pos = 32768,
      .def_tied = true, .def_sizes = SIZES("133800", "1024", "2048", "28", "16") },
    { "Granite4VisionForConditionalGeneration", "granite4_vision", .w = { RMS_ROPE },
      .prefix = "model.language_model.", .in_text = true, .names = llama_names,
      .keys = granite_keys },
    { "Ministral3ForCausalLM", "ministral3", .w = { RMS_ROPE }, MODEL, .names = mistral_names,
      .keys = ministral3_keys, .window = WINDOW_ALL, .def_kv_heads = 8, .def_head_dim = 128,
      .def_eps = 1e-5, .def_max_pos = 262144,
      .def_rope = "{\"rope_type\":\"yarn\",\"rope_theta\":1000000,\"factor\":16,"
                  "\"original_max_position_embeddings\":16384,\"beta_fast\":32,\"beta_slow\":1,"
                  "\"mscale\":1,\"mscale_all_dim\":1,\"llama_4_scaling_beta\":0.1}" },
    { "ExaoneForCausalLM", "exaone", .w = { RMS_ROPE }, .prefix = "transformer.",
      .names = exaone_names, .def_eps = 1e-5, .def_ffn = 4 },
    { "HyperCLOVAXForCausalLM", "hyperclovax", .variant = "pre-norm", .when = "use_post_norm=false",
      .w = { RMS_ROPE }, MODEL, .names = llama_names, .keys = hyperclovax_keys },
    { "HyperCLOVAXForCausalLM", "hyperclovax", .w = { RMS_ROPE }, MODEL, .names = hyperclovax_names,
      .keys = hyperclovax_keys },
    { "Jais2ForCausalLM", "jais2", .w = { LN_ROPE, .mlp = MLP_PLAIN }, MODEL, .names = jais2_names,
      .def_act = ARCH_RELU2, .def_eps = 1e-5, .def_max_pos = 8192 },
    { "CwmForCausalLM", "cwm", .w = { RMS_ROPE }, MODEL, .names = mistral_names,
      .window = WINDOW_PATTERN, .def_pattern = 4, .full_first = true, .def_window = 8192,
      .def_kv_heads = 8, .def_head_dim = 128, .def_eps = 1e-5, .def_theta = 1e6,
      .def_max_pos = 131072,
      .def_rope = "{\"rope_type\":\"llama3\",\"rope_theta\":1000000,\"factor\":16,"
                  "\"low_freq_factor\":1,\"high_freq_factor\":4,"
                  "\"original_max_position_embeddings\":8192}" },
    { "IQuestCoderForCausalLM", "iquestcoder", .w = { RMS_ROPE }, MODEL, .names = llama_names,
      .def_kv_heads = 8, .def_head_dim = 128, .def_eps = 1e-5, .def_max_pos = 131072 },
    { "MiniCPMForCausalLM", "minicpm", .w = { RMS_ROPE }, MODEL, .names = llama_names,
      .keys = minicpm_keys },
    { "ApertusForCausalLM", "apertus",
      .w = { .norm = NORM_RMS,
             .pos = POS_ROPE,
             .rope_half = true,
             .mlp = MLP_PLAIN,
             .qk_norm = QK_NORM_HEAD },
      MODEL, .names = apertus_names, .keys = apertus_keys, .def_act = ARCH_XIELU, .def_eps = 1e-5,
      .def_theta = 12e6, .def_max_pos = 65536,
      .def_rope = "{\"rope_type\":\"llama3\",\"rope_theta\":12000000,\"factor\":8,"
                  "\"low_freq_factor\":1,\"high_freq_factor\":4,"
                  "\"original_max_position_embeddings\":8192}" },
    { "InternLM2ForCausalLM", "internlm2", .w = { RMS_ROPE, .qkv_grouped = true }, MODEL,
      .names = internlm2_names, .keys = internlm_keys },
    { "InternLM3ForCausalLM", "internlm3", .w = { RMS_ROPE }, MODEL, .names = internlm3_names,
      .keys = internlm_keys, .def_kv_heads = 2, .def_head_dim = 128, .def_eps = 1e-5,
      .def_max_pos = 32768 },
    { "GraniteMoeHybridForCausalLM", "granitemoehybrid", .when = "position_embedding_type=rope",
      .w = { RMS_ROPE }, MODEL, .names = granite_dense_names, .keys = granite_dense_keys,
      .def_ffn = 4 },
    { "GraniteSWAForCausalLM", "granite_swa", .w = { RMS_ROPE }, MODEL, .names = granite_swa_names,
      .keys = granite_swa_keys, .layers = arch_layer_thetas, .window = WINDOW_PATTERN,
      .def_pattern = 4, .full_first = true, .def_window = 128, .def_kv_heads = 4, .def_eps = 1e-5,
      .def_max_pos = 8192, .def_tied = true },
    { "NanoChatForCausalLM", "nanochat",
      .w = { .norm = NORM_RMS,
             .pos = POS_ROPE,
             .rope_half = true,
             .rope_back = true,
             .mlp = MLP_PLAIN,
             .qk_norm = QK_NORM_HEAD,
             .qk_norm_late = true },
      MODEL, .names = nanochat_names, .keys = nanochat_keys, .def_act = ARCH_RELU2 },
    { "Phi4MultimodalForCausalLM", "phi4_multimodal", .def_partial = 1, .w = { RMS_ROPE }, MODEL,
      .names = phi3_names, .window = WINDOW_ALL, .def_kv_heads = 8, .def_eps = 1e-5,
      .def_max_pos = 131072 },
    { "Phi4MMForCausalLM", "phi4mm", .def_partial = 1, .w = { RMS_ROPE }, MODEL,
      .names = phi4_mm_names, .keys = phi4_mm_keys, .window = WINDOW_ALL, .def_eps = 1e-5,
      .def_max_pos = 4096 },
    { "DeciLMForCausalLM", "nemotron-nas", .w = { RMS_ROPE }, MODEL, .names = llama_names,
      .layers = deci_layers, .def_ffn = 1, .def_max_pos = 131072 },
    { "BitNetForCausalLM", "bitnet", .w = { RMS_ROPE }, MODEL, .names = bitnet_names,
      .def_act = ARCH_RELU2, .def_kv_heads = 5, .def_eps = 1e-5, .def_theta = 500000,
      .def_sizes = SIZES("128256", "2560", "6912", "30", "20") },
    { "MllamaForCausalLM", "mllama_text_model", .w = { RMS_ROPE }, MODEL, .names = mistral_names,
      .keys = mllama_keys, .layers = mllama_layers, .def_kv_heads = 8, .def_eps = 1e-5,
      .def_theta = 500000, .def_max_pos = 131072,
      .def_sizes = SIZES("128256", "4096", "14336", "40", "32") },
    EAGLE_ROWS("LlamaForCausalLMEagle3"), /* EAGLE, SpecForge, SGLang */
    EAGLE_ROWS("Eagle3LlamaForCausalLM"), /* AngelSlim, vLLM */
    EAGLE_ROWS("Eagle3Qwen3ForCausalLM"),
    EAGLE_ROWS("Eagle3Speculator"),
    EAGLE_ROWS("Eagle3DraftModel"),
    { .arch = NULL },
};
