/* formats/arch/rows/inkling.c - Inkling's text part: short convolutions of keys, of values and of what each branch gives,
 * scores with addends by distance that queries make, shared experts within the router's sum. */
#include "formats/arch/arch_impl.h"
#include "formats/arch/rows/rows.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- other words ---- */

/* Are all layers below `dense` without experts? */
static void name_mlps(cJSON *j, int64_t layers, int64_t dense)
{
    cJSON *list = cJSON_AddArrayToObject(j, "mlp_layer_types");
    for (int64_t i = 0; i < layers; i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(i < dense ? "dense" : "sparse"));
}

/* Layers with a window: those of local_layer_ids, else all but each sixth. */
static lq_status name_layers(cJSON *j, int64_t layers, lq_err *err)
{
    const cJSON *ids = js_get(j, "local_layer_ids");
    bool *local = calloc((size_t)layers, sizeof *local), ok = !ids || cJSON_IsArray(ids);
    if (!local) return lq_fail(err, LQ_ENOMEM, "no memory for %" PRId64 " layers", layers);
    for (int64_t i = 0; i < layers && !ids; i++)
        local[i] = (i + 1) % 6 != 0;
    for (const cJSON *e = ids && ok ? ids->child : NULL; e && ok; e = e->next) {
        int64_t i;
        ok = js_whole(e, 0, ARCH_MAX_LAYERS, &i);
        if (ok && i < layers) local[i] = true;
    }
    cJSON *list = ok ? cJSON_AddArrayToObject(j, "layer_types") : NULL;
    for (int64_t i = 0; i < layers && list; i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(local[i] ? "hybrid_sliding" : "hybrid"));
    free(local);
    return ok ? LQ_OK : lq_fail(err, LQ_EVALUE, "local_layer_ids: expected an array of layers");
}

static lq_status inkling_words(cJSON *j, lq_err *err)
{
    static const char *const names[][2] = {
        { "sconv_kernel_size", "conv_kernel_size" },
        { "model_max_length", "max_position_embeddings" },
        { "sliding_window_size", "sliding_window" },
        { "embedding_multiplier", "logits_mup_width_multiplier" },
    };
    int64_t layers = 0, dense = 0;
    for (size_t i = 0; i < LQ_COUNT(names); i++) {
        const cJSON *said = js_get(j, names[i][0]), *again = js_get(j, names[i][1]);
        if (said && again && !cJSON_Compare(said, again, true))
            return lq_fail(err, LQ_EVALUE, "%s: expected what %s says, found another", names[i][0],
                           names[i][1]);
        js_rename(j, names[i][0], names[i][1]);
    }
    const cJSON *n = js_get(j, "log_scaling_n_floor");
    if (n && cJSON_IsNumber(n) && !(n->valuedouble > 0))
        return lq_fail(err, LQ_EVALUE, "log_scaling_n_floor: expected null or 1 and more, found %g",
                       n->valuedouble);
    if (js_get(j, "dense_intermediate_size")) { /* then the other width is of experts */
        js_drop(j, "moe_intermediate_size");
        js_rename(j, "intermediate_size", "moe_intermediate_size");
        js_rename(j, "dense_intermediate_size", "intermediate_size");
    }
    lq_status s = js_i64(j, "num_hidden_layers", true, 1, ARCH_MAX_LAYERS, &layers, err);
    if (!s) s = js_i64(j, "dense_mlp_idx", false, 0, ARCH_MAX_LAYERS, &dense, err);
    if (!s && !js_get(j, "mlp_layer_types")) name_mlps(j, layers, dense);
    if (!s && !js_get(j, "layer_types")) s = name_layers(j, layers, err);
    return s ? s : arch_hybrid_types(j, err);
}

/* ---- layers ---- */

static lq_status inkling_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    arch_sizes own = arch_sizes_of(c, -1), near = own, *z;
    int64_t head_dim = 128;
    near.heads = 64;
    near.kv_heads = 16;
    near.rel_extent = c->window;
    lq_status s = js_i64(j, "swa_num_attention_heads", false, 1, ARCH_MAX_WIDTH, &near.heads, err);
    if (!s) s = js_i64(j, "swa_num_key_value_heads", false, 1, ARCH_MAX_WIDTH, &near.kv_heads, err);
    if (!s) s = js_i64(j, "swa_head_dim", false, 1, ARCH_MAX_WIDTH, &head_dim, err);
    if (s) return s;
    if (head_dim != c->head_dim)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "swa_head_dim: expected head_dim, %" PRId64 ", found %" PRId64, c->head_dim,
                       head_dim);
    if (c->window > ARCH_MAX_WIDTH)
        return lq_fail(err, LQ_EVALUE, "sliding_window_size: expected 1..%d, found %" PRId64,
                       ARCH_MAX_WIDTH, c->window);
    z = calloc((size_t)c->layers, sizeof *z);
    if (!z) return lq_fail(err, LQ_ENOMEM, "no memory for %" PRId64 " layers", c->layers);
    c->attn_scale = 1 / (double)c->head_dim;
    for (int64_t i = 0; i < c->layers; i++) {
        c->layer[i].mixer = MIX_TAPPED;
        z[i] = c->layer[i].window ? near : own;
    }
    s = arch_set_sizes(c, z, err);
    free(z);
    return s;
}

/* The vocabulary that has logits; null: all of it. */
static lq_status some_words(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    enum { MOST = 1024 };
    int64_t n = c->vocab;
    if (v && !js_whole(v, c->vocab > MOST ? c->vocab - MOST : 1, INT32_MAX, &n))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "%s: expected at most %d less than vocab_size, %" PRId64, key, MOST,
                       c->vocab);
    if (n >= c->vocab) return LQ_OK;
    c->embed_more = c->head_more = c->vocab - n;
    c->vocab = n;
    return LQ_OK;
}

/* A table of names reads by line. */
/* clang-format off */
#define STACK NAME_BARE | NAME_STACKED
#define SHARES NAME_BARE | NAME_SHARED
static const arch_name inkling_names[] = {
    { R_EMBED, "@embed", 0, BIAS_NO },
    { R_EMBED_NORM, "@embed_norm", 0, BIAS_NO },
    { R_FINAL_NORM, "@norm", 0, BIAS_NO },
    { R_HEAD, "@unembed", 0, BIAS_NO },
    { R_ATTN_NORM, LAYER "attn_norm", 0, BIAS_NO },
    { R_Q, LAYER "attn.wq_du", 0, BIAS_NO },
    { R_K, LAYER "attn.wk_dv", 0, BIAS_NO },
    { R_V, LAYER "attn.wv_dv", 0, BIAS_NO },
    { R_REL, LAYER "attn.wr_du", 0, BIAS_NO },
    { R_O, LAYER "attn.wo_ud", 0, BIAS_NO },
    { R_REL_BANK, LAYER "attn.rel_logits_proj.proj", NAME_BARE | NAME_TRANSPOSED, BIAS_NO },
    { R_K_CONV, LAYER "attn.k_sconv", NAME_TAPS, BIAS_NO },
    { R_V_CONV, LAYER "attn.v_sconv", NAME_TAPS, BIAS_NO },
    { R_ATTN_CONV, LAYER "attn_sconv", NAME_TAPS, BIAS_NO },
    { R_Q_NORM, LAYER "attn.q_norm", 0, BIAS_NO },
    { R_K_NORM, LAYER "attn.k_norm", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "mlp_norm", 0, BIAS_NO },
    { R_GATE_UP, LAYER "mlp.w13_dn", 0, BIAS_NO },
    { R_DOWN, LAYER "mlp.w2_md", 0, BIAS_NO },
    { R_DOWN_SCALE, LAYER "mlp.global_scale", NAME_BARE, BIAS_NO },
    { R_ROUTER_CORR, LAYER "mlp.gate.bias", NAME_BARE, BIAS_NO },
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    { R_SHARE_SCALE, LAYER "mlp.gate.global_scale", NAME_BARE, BIAS_NO },
    { R_EXPERT_GATE_UP, LAYER "mlp.experts.w13_weight", STACK, BIAS_NO },
    { R_EXPERT_DOWN, LAYER "mlp.experts.w2_weight", STACK, BIAS_NO },
    { R_SHARED_GATE_UP, LAYER "mlp.shared_experts.shared_w13_weight", SHARES, BIAS_NO },
    { R_SHARED_DOWN, LAYER "mlp.shared_experts.shared_w2_weight", SHARES, BIAS_NO },
    { R_MLP_CONV, LAYER "mlp_sconv", NAME_TAPS, BIAS_NO },
    END,
};
static const arch_key inkling_keys[] = {
    EXPERT_COUNTS("n_routed_experts", 256, 6),
    EXPERT_FFN(3072),
    { "n_shared_experts", KEY_INT, AT(shared_experts), 2, NULL },
    { "route_scale", KEY_REAL, AT(expert_scale), 8, NULL },
    { "d_rel", KEY_INT, AT(rel_dims), 16, NULL },
    { "rel_extent", KEY_INT, AT(rel_extent), 1024, NULL },
    { "conv_kernel_size", KEY_INT, AT(conv_taps), 4, NULL },
    { "log_scaling_alpha", KEY_REAL, AT(q_grow), 0.1, NULL },
    { "log_scaling_n_floor", KEY_INT, AT(q_grow_every), NONE, NULL },
    { "logits_mup_width_multiplier", KEY_INVERSE, AT(logit_scale), 24, NULL },
    { "unpadded_vocab_size", KEY_FN, 0, NONE, some_words },
    MUST("shared_expert_sink", 1),
    { "dense_mlp_idx", KEY_KNOWN, 0, NONE, NULL }, /* inkling_words, inkling_layers: */
    { "local_layer_ids", KEY_KNOWN, 0, NONE, NULL },
    { "swa_num_attention_heads", KEY_KNOWN, 0, NONE, NULL },
    { "swa_num_key_value_heads", KEY_KNOWN, 0, NONE, NULL },
    { "swa_head_dim", KEY_KNOWN, 0, NONE, NULL },
    { "rms_norm_eps_moe_gate", KEY_KNOWN, 0, NONE, NULL }, /* of a norm that is not there */
    { "number_of_conv_states", KEY_KNOWN, 0, NONE, NULL },
    { "num_mtp_layers", KEY_KNOWN, 0, NONE, NULL }, /* heads that guess are not read */
    { "chain_hidden_post_norm", KEY_KNOWN, 0, NONE, NULL },
    { "mtp_hidden_states_first", KEY_KNOWN, 0, NONE, NULL },
    { "mtp_local_layer_ids", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
};
/* clang-format on */

const arch_row arch_rows_inkling[] = {
    { "InklingForConditionalGeneration", "inkling",
      .w = { .norm = NORM_RMS,
             .pos = POS_NONE,
             .qk_norm = QK_NORM_HEAD,
             .q_grow_full = true,
             .mlp = MLP_GATED,
             .mlp_mixed = true,
             .gate_up_mixed = true,
             .router = ROUTER_SIGMOID,
             .norm_topk = true },
      .prefix = "model.llm.", .names = inkling_names, .keys = inkling_keys,
      .respell = inkling_words, .layers = inkling_layers, .mixer = MIX_TAPPED, .window = WINDOW_ALL,
      .in_text = true, .def_window = 512, .def_kv_heads = 8, .def_head_dim = 128,
      .def_max_pos = 131072, .def_ffn = 4, .def_shared = 2,
      .def_sizes = SIZES("201024", "6144", "24576", "66", "64") },
    { .arch = NULL },
};
