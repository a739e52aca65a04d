/* formats/arch/rows/zamba.c - Zamba (arXiv:2405.16712) and Zamba2 (arXiv:2411.15242): Mamba of several heads or Mamba-2, and
 * transformers beside some of its layers that read the residual and the embedding together, of which few have tensors of their own. A layer of theirs is two here: the
 * transformer, then Mamba-2. */
#include "formats/arch/arch_impl.h"
#include "formats/arch/rows/rows.h"

#include "base/json.h"

#include <inttypes.h>

static const char kinds[] = "layers_block_type";

/* Two words for each hybrid layer; NULL: no such list. */
static cJSON *split_kinds(const cJSON *said, lq_err *err)
{
    cJSON *all = cJSON_CreateArray();
    for (const cJSON *e = said->child; e && all; e = e->next) {
        const char *text = cJSON_IsString(e) ? e->valuestring : "";
        const bool hybrid = strcmp(text, "hybrid") == 0;
        if (!hybrid && strcmp(text, "mamba") != 0 && strcmp(text, "linear_attention") != 0) {
            lq_fail(err, LQ_EUNSUPPORTED,
                    "%s: expected mamba, linear_attention or hybrid, found \"%.40s\"", said->string,
                    text);
            cJSON_Delete(all);
            return NULL;
        }
        if (hybrid) cJSON_AddItemToArray(all, cJSON_CreateString("attention"));
        cJSON_AddItemToArray(all, cJSON_CreateString("mamba"));
    }
    return all;
}

/* hybrid_layer_ids, and num_hidden_layers, beside the list say the same. */
static lq_status check_ids(const cJSON *j, const cJSON *said, lq_err *err)
{
    const cJSON *ids = js_get(j, "hybrid_layer_ids"), *e = ids ? ids->child : NULL;
    int64_t n, i = 0;
    if (js_get(j, "num_hidden_layers") &&
        !(js_whole(js_get(j, "num_hidden_layers"), 1, ARCH_MAX_LAYERS, &n) &&
          n == cJSON_GetArraySize(said)))
        return lq_fail(err, LQ_EVALUE, "num_hidden_layers: expected the %d of %s",
                       cJSON_GetArraySize(said), said->string);
    for (const cJSON *k = said->child; k && ids; k = k->next, i++) {
        const bool named = e && js_whole(e, 0, ARCH_MAX_LAYERS, &n) && n == i;
        if (named) e = e->next;
        if (named != (strcmp(k->valuestring, "hybrid") == 0))
            return lq_fail(
                err, LQ_EVALUE,
                "hybrid_layer_ids: expected what %s says, found another kind for layer %" PRId64,
                said->string, i);
    }
    return e ? lq_fail(err, LQ_EVALUE, "hybrid_layer_ids: expected layers of %s", said->string)
             : LQ_OK;
}

static lq_status zamba_words(cJSON *j, lq_err *err)
{
    const cJSON *said = js_get(j, kinds);
    int64_t hidden = 0, heads = 0, dim;
    const cJSON *again = js_get(j, "layer_types");
    if (said && again && !cJSON_Compare(said, again, true))
        return lq_fail(err, LQ_EVALUE, "layer_types: expected what %s says", kinds);
    if (!said) said = again;
    if (!cJSON_IsArray(said) || !said->child)
        return lq_fail(err, LQ_EVALUE, "%s: expected what each layer is, found nothing", kinds);
    cJSON *all = split_kinds(said, err);
    if (!all) return LQ_EUNSUPPORTED;
    lq_status s = check_ids(j, said, err);
    if (!s) s = js_i64(j, "hidden_size", true, 1, ARCH_MAX_WIDTH / 2, &hidden, err);
    if (!s) s = js_i64(j, "num_attention_heads", true, 1, ARCH_MAX_WIDTH, &heads, err);
    if (!s && 2 * hidden % heads)
        s = lq_fail(err, LQ_EVALUE,
                    "num_attention_heads: expected a divisor of twice hidden_size %" PRId64
                    ", found %" PRId64,
                    hidden, heads);
    const cJSON *own = s ? NULL : js_get(j, "attention_head_dim");
    if (own && !(js_whole(own, 1, ARCH_MAX_WIDTH, &dim) && dim == 2 * hidden / heads))
        s = lq_fail(err, LQ_EVALUE,
                    "attention_head_dim: expected %" PRId64 ", as transformers has it",
                    2 * hidden / heads);
    if (s) {
        cJSON_Delete(all);
        return s;
    }
    cJSON_DeleteItemFromObjectCaseSensitive(j, "layer_types");
    js_put(j, "num_hidden_layers", cJSON_CreateNumber(cJSON_GetArraySize(all)));
    js_put(j, kinds, all);
    dim = 2 * hidden / heads;
    js_put(j, "head_dim", cJSON_CreateNumber((double)dim));
    return LQ_OK;
}

/* Zamba 1 counts its layers where it does not list them: the third, and of those after it one in each period. */
static lq_status zamba1_words(cJSON *j, lq_err *err)
{
    int64_t layers = 76, period = 6, offset = 4, hidden = 0, width;
    lq_status s = js_i64(j, "num_hidden_layers", false, 1, ARCH_MAX_LAYERS, &layers, err);
    if (!s) s = js_i64(j, "attn_layer_period", false, 1, ARCH_MAX_LAYERS, &period, err);
    if (!s) s = js_i64(j, "attn_layer_offset", false, 0, ARCH_MAX_LAYERS, &offset, err);
    if (!s) s = js_i64(j, "hidden_size", true, 1, ARCH_MAX_WIDTH / 2, &hidden, err);
    if (s) return s;
    width = 2 * hidden;
    const cJSON *own = js_get(j, "attention_hidden_size");
    if (own && !(js_whole(own, 1, ARCH_MAX_WIDTH, &width) && width == 2 * hidden))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "attention_hidden_size: expected twice hidden_size, %" PRId64, 2 * hidden);
    if (!js_get(j, kinds) && !js_get(j, "layer_types")) {
        cJSON *list = cJSON_CreateArray();
        for (int64_t i = 0; i < layers && list; i++) {
            const bool hybrid = i == 2 || (i > 2 && (i - 3) % period == offset);
            cJSON_AddItemToArray(list, cJSON_CreateString(hybrid ? "hybrid" : "mamba"));
        }
        js_put(j, kinds, list);
    }
    return zamba_words(j, err);
}

/* Nothing rotates where it is not said. */
static lq_status mem_rope(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    if (v && !cJSON_IsBool(v)) return lq_fail(err, LQ_EVALUE, "%s: expected true or false", key);
    if (cJSON_IsTrue(v)) c->w.pos = POS_ROPE;
    return LQ_OK;
}

static lq_status head_adapters(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    if (v && !cJSON_IsBool(v)) return lq_fail(err, LQ_EVALUE, "%s: expected true or false", key);
    c->aside_heads = cJSON_IsTrue(v);
    return LQ_OK;
}

/* Heads of Mamba-2 have all of it in equal parts. */
static lq_status mamba_width(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    int64_t factor = 2;
    if (v && !js_whole(v, 1, 1024, &factor))
        return lq_fail(err, LQ_EVALUE, "%s: expected an integer 1..1024", key);
    if (c->mix_heads < 1 || factor * c->hidden % c->mix_heads)
        return lq_fail(err, LQ_EVALUE,
                       "n_mamba_heads: expected a divisor of %" PRId64 ", found %" PRId64,
                       factor * c->hidden, c->mix_heads);
    c->mix_value = factor * c->hidden / c->mix_heads;
    return LQ_OK;
}

static lq_status zamba_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    (void)j, (void)err;
    c->attn_scale = sqrt(2 / (double)c->head_dim);
    for (int64_t i = 0; i < c->layers; i++)
        c->layer[i].no_mlp = c->layer[i].mixer != MIX_ATTENTION;
    return LQ_OK;
}

/* A table of names reads by line. */
/* clang-format off */
#define BESIDE "@layers.%b.shared_transformer."
#define ADAPTER(role, at) \
    { role##_LOW, BESIDE at "_adapter_list.%u.0", NAME_ATTENDS, BIAS_NO }, \
    { role##_HIGH, BESIDE at "_adapter_list.%u.1", NAME_ATTENDS, BIAS_NO }
static const arch_name zamba2_names[] = {
    { R_EMBED, "@embed_tokens", 0, BIAS_NO },
    { R_FINAL_NORM, "@final_layernorm", 0, BIAS_NO },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    { R_ATTN_NORM, LAYER "%minput_layernorm", NAME_STATE, BIAS_NO },
    { R_MIX_IN, LAYER "%mmamba.in_proj", 0, BIAS_NO },
    { R_MIX_CONV, LAYER "%mmamba.conv1d", NAME_TAPS, BIAS_YES },
    { R_MIX_DT, LAYER "%mmamba.dt_bias", NAME_BARE, BIAS_NO },
    { R_MIX_A_LOG, LAYER "%mmamba.A_log", NAME_BARE, BIAS_NO },
    { R_MIX_SKIP, LAYER "%mmamba.D", NAME_BARE, BIAS_NO },
    { R_MIX_NORM, LAYER "%mmamba.norm", 0, BIAS_NO },
    { R_MIX_OUT, LAYER "%mmamba.out_proj", 0, BIAS_NO },
    { R_PAIR_NORM, BESIDE "input_layernorm", NAME_ATTENDS, BIAS_NO },
    { R_Q, BESIDE "self_attn.q_proj", NAME_ATTENDS, BIAS_NO },
    { R_K, BESIDE "self_attn.k_proj", NAME_ATTENDS, BIAS_NO },
    { R_V, BESIDE "self_attn.v_proj", NAME_ATTENDS, BIAS_NO },
    { R_O, BESIDE "self_attn.o_proj", NAME_ATTENDS, BIAS_NO },
    ADAPTER(R_Q, "self_attn.linear_q"),
    ADAPTER(R_K, "self_attn.linear_k"),
    ADAPTER(R_V, "self_attn.linear_v"),
    { R_MLP_NORM, BESIDE "pre_ff_layernorm", NAME_ATTENDS, BIAS_NO },
    { R_GATE_UP, BESIDE "feed_forward.gate_up_proj", NAME_ATTENDS, BIAS_NO },
    { R_DOWN, BESIDE "feed_forward.down_proj", NAME_ATTENDS, BIAS_NO },
    ADAPTER(R_GATE_UP, "feed_forward.gate_up_proj"),
    { R_ASIDE_OUT, LAYER "linear", NAME_ATTENDS, BIAS_NO },
    END,
};
#define SHARED_BY "@layers.%b.shared_transf."
static const arch_name zamba1_names[] = {
    { R_EMBED, "@embed_tokens", 0, BIAS_NO },
    { R_FINAL_NORM, "@final_layernorm", 0, BIAS_NO },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    { R_ATTN_NORM, LAYER "%minput_layernorm", NAME_STATE, BIAS_NO },
    { R_MIX_IN, LAYER "%mmamba.in_proj", 0, BIAS_NO },
    { R_MIX_CONV, LAYER "%mmamba.conv1d", NAME_TAPS, BIAS_YES },
    { R_MIX_X, LAYER "%mmamba.x_proj_weight", NAME_BARE | NAME_HEADS, BIAS_NO },
    { R_MIX_STEP, LAYER "%mmamba.dt_proj_weight", NAME_BARE | NAME_HEADS, BIAS_NO },
    { R_MIX_DT, LAYER "%mmamba.dt_proj_bias", NAME_BARE | NAME_HEAD_ROWS, BIAS_NO },
    { R_MIX_A_LOG, LAYER "%mmamba.A_log", NAME_BARE | NAME_HEADS, BIAS_NO },
    { R_MIX_SKIP, LAYER "%mmamba.D", NAME_BARE | NAME_HEAD_ROWS, BIAS_NO },
    { R_MIX_OUT, LAYER "%mmamba.out_proj", 0, BIAS_NO },
    { R_PAIR_NORM, SHARED_BY "input_layernorm", NAME_ATTENDS, BIAS_NO },
    { R_Q, SHARED_BY "self_attn.q_proj", NAME_ATTENDS, BIAS_NO },
    { R_K, SHARED_BY "self_attn.k_proj", NAME_ATTENDS, BIAS_NO },
    { R_V, SHARED_BY "self_attn.v_proj", NAME_ATTENDS, BIAS_NO },
    { R_O, SHARED_BY "self_attn.o_proj", NAME_ATTENDS, BIAS_NO },
    { R_MLP_NORM, SHARED_BY "pre_ff_layernorm", NAME_ATTENDS, BIAS_NO },
    { R_GATE, SHARED_BY "feed_forward.gate_proj", NAME_ATTENDS, BIAS_NO },
    { R_UP, SHARED_BY "feed_forward.up_proj", NAME_ATTENDS, BIAS_NO },
    { R_DOWN, SHARED_BY "feed_forward.down_proj", NAME_ATTENDS, BIAS_NO },
    { R_ASIDE_OUT, LAYER "linear", NAME_ATTENDS, BIAS_NO },
    END,
};
#define KNOWN(key) { key, KEY_KNOWN, 0, NONE, NULL }
static const arch_key zamba2_keys[] = {
    { "n_mamba_heads", KEY_INT, AT(mix_heads), 8, NULL },
    { "mamba_ngroups", KEY_INT, AT(mix_groups), 1, NULL },
    { "mamba_d_state", KEY_INT, AT(mix_key), 64, NULL },
    { "mamba_d_conv", KEY_INT, AT(conv_taps), 4, NULL },
    { "mamba_expand", KEY_FN, 0, NONE, mamba_width },
    { "time_step_min", KEY_REAL, AT(dt_min), 0.001, NULL },
    { "num_mem_blocks", KEY_INT, AT(asides), 1, NULL },
    { "adapter_rank", KEY_INT, AT(aside_rank), 128, NULL },
    { "use_shared_attention_adapter", KEY_FN, 0, NONE, head_adapters },
    { "use_mem_rope", KEY_FN, 0, NONE, mem_rope },
    MUST("use_shared_mlp_adapter", 1),
    MUST("use_long_context", 0),
    MUST("add_bias_linear", 0),
    KNOWN("use_conv_bias"), /* transformers' convolution has one whatever it says */
    KNOWN("attention_head_dim"), KNOWN("attention_hidden_size"), KNOWN("num_logits_to_keep"),
    KNOWN("time_step_limit"),
    NO_KEY,
};

static const arch_key zamba1_keys[] = {
    { "n_mamba_heads", KEY_INT, AT(mix_heads), 2, NULL },
    { "mamba_d_state", KEY_INT, AT(mix_key), 16, NULL },
    { "mamba_d_conv", KEY_INT, AT(conv_taps), 4, NULL },
    { "mamba_expand", KEY_FN, 0, NONE, mamba_width },
    { "mamba_dt_rank", KEY_FN, 0, NONE, arch_key_step_rank },
    { "num_mem_blocks", KEY_INT, AT(asides), 1, NULL },
    { "hidden_mamba_act", KEY_FN, 0, NONE, arch_key_silu },
    MUST("num_mem_blocks", 1),
    MUST("mamba_conv_bias", 1),
    MUST("mamba_proj_bias", 0),
    KNOWN("attn_layer_period"), KNOWN("attn_layer_offset"), /* zamba1_words, as these: */
    KNOWN("attention_head_dim"), KNOWN("attention_hidden_size"), KNOWN("num_logits_to_keep"),
    KNOWN("time_step_min"), KNOWN("time_step_max"), KNOWN("time_step_floor"), /* of the first weights */
    KNOWN("use_mamba_kernels"), KNOWN("use_associative_scan"),
    NO_KEY,
};

const arch_row arch_rows_zamba[] = {
    { "ZambaForCausalLM", "zamba",
      .w = { .norm = NORM_RMS, .mlp = MLP_GATED, .mix_turns = true }, MODEL, .names = zamba1_names,
      .keys = zamba1_keys, .respell = zamba1_words, .layers = zamba_layers, .mixer = MIX_SELECT,
      .def_kv_heads = 16, .def_ffn = 4, .def_eps = 1e-5, .def_max_pos = 4096, .def_tied = true,
      GELU },
    { "Zamba2ForCausalLM", "zamba2",
      .w = { .norm = NORM_RMS, .rope_half = true, .mlp = MLP_GATED, .mix_eps = 1e-5f }, MODEL,
      .names = zamba2_names, .keys = zamba2_keys, .respell = zamba_words, .layers = zamba_layers,
      .mixer = MIX_MAMBA, .def_ffn = 4, .def_eps = 1e-5, .def_max_pos = 4096, .def_tied = true, GELU },
    { .arch = NULL },
};
/* clang-format on */
