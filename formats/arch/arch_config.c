/* formats/arch/arch_config.c - config.json to numbers: sizes, words, experts, and what differs from
 * layer to layer, in every spelling of the field. */
#include "formats/arch/arch_impl.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdlib.h>

/* Every spelling of a number; the first is the usual one. */
enum { MAX_SPELLINGS = 6 };
typedef const char *const spellings[MAX_SPELLINGS];
static spellings
    vocab_keys = { "vocab_size" },
    hidden_keys = { "hidden_size", "n_embd", "d_model", "n_embed", "dim" },
    layers_keys = { "num_hidden_layers", "n_layer", "num_layers", "n_layers" },
    heads_keys = { "num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads" },
    kv_heads_keys = { "num_key_value_heads", "num_kv_heads", "n_head_kv" },
    head_dim_keys = { "head_dim" },
    ffn_keys = { "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "hidden_dim" },
    max_pos_keys = { "max_position_embeddings", "n_positions", "max_seq_len" },
    eps_keys = { "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon",
                 "norm_eps" },
    act_keys = { "hidden_activation", "hidden_act", "activation_function", "activation" },
    experts_keys = { "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts" },
    used_keys = { "num_experts_per_tok", "moe_k", "moe_topk" },
    expert_ffn_keys = { "moe_intermediate_size", "expert_hidden_dim" },
    shared_keys = { "n_shared_experts", "num_shared_experts", "num_shared_expert",
                    "moe_num_shared_experts" },
    shared_ffn_keys = { "shared_expert_intermediate_size", "shared_intermediate_size" },
    dense_keys = { "first_k_dense_replace", "num_dense_layers", "first_last_k_dense_replace",
                   "moe_layer_start_index" },
    step_keys = { "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval" },
    window_keys = { "sliding_window", "window_size" },
    pattern_keys = { "sliding_window_pattern", "_sliding_window_pattern",
                     "global_attn_every_n_layers" };
static const char *const other_keys[] = {
    "torch_dtype",
    "dtype",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "bos_token_id",
    "eos_token_id",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "attention_layers",
    "attention_types",
    "no_rope_layers",
    "no_rope_layer_interval",
    "moe_layer_freq",
    "moe_layer_end_index",
    "mlp_layer_types",
    "is_moe_layer",
    "mlp_only_layers",
    "moe_layers",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "rotary_pct",
    "rotary_emb_base",
    "rope_local_base_freq",
    "global_rope_theta",
    "local_rope_theta",
    "original_max_position_embeddings",
    "layers_block_type",
    "hybrid_override_pattern",
    "full_attn_idxs",
    "attn_layer_indices",
    "full_attention_interval",
};

bool arch_key_is_read(const char *key)
{
    static const spellings *const all[] = {
        &vocab_keys,    &hidden_keys, &layers_keys,     &heads_keys,   &kv_heads_keys,
        &head_dim_keys, &ffn_keys,    &max_pos_keys,    &eps_keys,     &act_keys,
        &experts_keys,  &used_keys,   &expert_ffn_keys, &shared_keys,  &shared_ffn_keys,
        &dense_keys,    &step_keys,   &window_keys,     &pattern_keys,
    };
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        for (int k = 0; k < MAX_SPELLINGS && (*all[i])[k]; k++)
            if (strcmp((*all[i])[k], key) == 0) return true;
    for (size_t i = 0; i < LQ_COUNT(other_keys); i++)
        if (strcmp(other_keys[i], key) == 0) return true;
    return false;
}

/* The spelling that this config uses; one that says something before one that is null. */
static const char *spelled(const cJSON *j, spellings k)
{
    for (int i = 0; i < MAX_SPELLINGS && k[i]; i++)
        if (js_get(j, k[i])) return k[i];
    for (int i = 0; i < MAX_SPELLINGS && k[i]; i++)
        if (cJSON_GetObjectItemCaseSensitive(j, k[i])) return k[i];
    return k[0];
}

const char *arch_key_spelled(const cJSON *j, size_t at)
{
    static const struct {
        size_t at;
        const spellings *keys;
    } all[] = {
        { offsetof(arch_config, hidden), &hidden_keys },
        { offsetof(arch_config, layers), &layers_keys },
        { offsetof(arch_config, heads), &heads_keys },
        { offsetof(arch_config, kv_heads), &kv_heads_keys },
        { offsetof(arch_config, head_dim), &head_dim_keys },
        { offsetof(arch_config, ffn), &ffn_keys },
        { offsetof(arch_config, window), &window_keys },
        { offsetof(arch_config, experts), &experts_keys },
        { offsetof(arch_config, experts_used), &used_keys },
        { offsetof(arch_config, expert_ffn), &expert_ffn_keys },
        { offsetof(arch_config, shared_ffn), &shared_ffn_keys },
    };
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        if (all[i].at == at) {
            const char *key = spelled(j, *all[i].keys);
            return cJSON_GetObjectItemCaseSensitive(j, key) ? key : NULL;
        }
    return NULL;
}

/* ---- sizes ---- */
static lq_status read_heads(arch_config *c, const cJSON *j, lq_err *err)
{
    const arch_row *row = c->row;
    const char *key = spelled(j, kv_heads_keys), *dim_key = spelled(j, head_dim_keys);
    const cJSON *kv = cJSON_GetObjectItemCaseSensitive(j, key);
    c->kv_heads = kv || !row->def_kv_heads ? c->heads : row->def_kv_heads; /* null: as many */
    lq_status s = js_i64(j, key, false, 1, ARCH_MAX_WIDTH, &c->kv_heads, err);
    if (s) return s;
    const cJSON *dim = cJSON_GetObjectItemCaseSensitive(j, dim_key);
    c->head_dim = row->def_head_dim;
    if (row->w.mla) return LQ_OK; /* its own keys: arch.c, size_mla */
    if (js_get(j, dim_key)) return js_i64(j, dim_key, true, 1, ARCH_MAX_WIDTH, &c->head_dim, err);
    if (!dim && row->def_head_dim) return LQ_OK;
    if (c->hidden % c->heads)
        return lq_fail(err, LQ_EVALUE,
                       "%s: expected a divisor of %s %" PRId64 " (there is no %s), found %" PRId64,
                       spelled(j, heads_keys), spelled(j, hidden_keys), c->hidden, dim_key,
                       c->heads);
    c->head_dim = c->hidden / c->heads;
    return LQ_OK;
}

/* Are there layers of several kinds, none of which is assumed (Nemotron-H)? */
static bool kinds_are_listed(const arch_config *c)
{
    return c->row->one_branch && arch_name_of(c, R_O);
}

/* How many layers: a list of their kinds says it, too. */
static lq_status read_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *blocks = js_get(j, "layers_block_type");
    const bool listed = cJSON_IsArray(blocks);
    if (listed) c->layers = cJSON_GetArraySize(blocks);
    if (listed && (c->layers < 1 || c->layers > ARCH_MAX_LAYERS))
        return lq_fail(err, LQ_EVALUE,
                       "layers_block_type: expected 1 to %d kinds of layers, found %" PRId64,
                       ARCH_MAX_LAYERS, c->layers);
    if (!listed && kinds_are_listed(c) && !js_get(j, spelled(j, layers_keys)))
        return lq_fail(err, LQ_EVALUE, "layers_block_type: expected the kinds of the layers");
    return js_i64(j, spelled(j, layers_keys), !listed, 1, ARCH_MAX_LAYERS, &c->layers, err);
}

lq_status arch_read_sizes(arch_config *c, const cJSON *j, lq_err *err)
{
    const arch_row *row = c->row;
    c->max_pos = row->def_max_pos ? row->def_max_pos : 2048;
    c->norm_eps = row->def_eps > 0 ? row->def_eps : 1e-6;
    const int64_t wide = ARCH_MAX_WIDTH;
    lq_status s = js_i64(j, spelled(j, vocab_keys), true, 1, INT32_MAX, &c->vocab, err);
    if (!s) s = js_i64(j, spelled(j, hidden_keys), true, 1, wide, &c->hidden, err);
    if (!s) s = read_layers(c, j, err);
    const bool attends = arch_name_of(c, R_O) || arch_name_of(c, R_QKV);
    c->heads = 1;
    if (!s) s = js_i64(j, spelled(j, heads_keys), attends, 1, wide, &c->heads, err);
    if (!s) s = js_i64(j, spelled(j, max_pos_keys), false, 1, INT32_MAX, &c->max_pos, err);
    if (!s) s = js_f64(j, spelled(j, eps_keys), false, 0, 1, &c->norm_eps, err);
    if (s) return s;
    c->ffn = row->def_ffn * c->hidden;
    const cJSON *ffn = js_get(j, spelled(j, ffn_keys));
    if (!(row->layers && cJSON_IsArray(ffn))) /* a number for each layer: the row's to read */
        s = js_i64(j, spelled(j, ffn_keys), !row->def_ffn, 1, wide, &c->ffn, err);
    if (!s) s = read_heads(c, j, err);
    if (s) return s;
    if (c->head_dim) c->attn_scale = 1 / sqrt((double)c->head_dim);
    c->v_dim = c->head_dim;
    c->embed_dim = c->hidden;
    if (row->embed_sqrt) c->embed_scale = sqrt((double)c->hidden);
    return LQ_OK;
}

/* ---- words ---- */
static const struct {
    const char *text;
    arch_act act;
} acts[] = {
    { "silu", ARCH_SILU },
    { "swish", ARCH_SILU },
    { "gelu", ARCH_GELU },
    { "gelu_tanh", ARCH_GELU_TANH },
    { "gelu_new", ARCH_GELU_TANH },
    { "gelu_pytorch_tanh", ARCH_GELU_TANH },
    { "relu", ARCH_RELU },
    { "swiglu_clamped", ARCH_SWIGLU_CLAMPED },
    { "gelu_fast", ARCH_GELU_TANH },
    { "relu2", ARCH_RELU2 },
    { "xielu", ARCH_XIELU },
    { "silu_limited", ARCH_SILU_LIMITED },
    { "silu_capped", ARCH_SILU_CAPPED },
};

bool arch_act_from_text(arch_act *a, const char *text)
{
    for (size_t i = 0; i < LQ_COUNT(acts); i++)
        if (strcmp(acts[i].text, text) == 0) return *a = acts[i].act, true;
    return false;
}

const char *arch_act_text(arch_act a)
{
    size_t i = 0;
    while (acts[i].act != a)
        i++;
    return acts[i].text;
}

static lq_status read_act(arch_config *c, const cJSON *j, lq_err *err)
{
    const char *key = c->row->gelu_tanh ? "hidden_act" : spelled(j, act_keys), *text = NULL;
    c->act = c->row->def_act;
    if (c->row->fixed_act) return LQ_OK;
    lq_status s = js_str(j, key, false, &text, err);
    const bool known = !s && text && arch_act_from_text(&c->act, text);
    if (c->row->gelu_tanh && c->act == ARCH_GELU) c->act = ARCH_GELU_TANH;
    if (s || !text || (known && (c->act != ARCH_XIELU || arch_name_of(c, R_XIELU_P)))) return s;
    return lq_fail(
        err, LQ_EUNSUPPORTED,
        "%s: expected silu, gelu, gelu_new, gelu_pytorch_tanh, relu or relu2, found \"%.40s\"", key,
        text);
}

static lq_status read_dtype(arch_config *c, const cJSON *j, lq_err *err)
{
    static const struct {
        const char *text;
        lq_dtype d;
    } names[] = { { "float32", LQ_F32 }, { "float16", LQ_F16 }, { "bfloat16", LQ_BF16 } };
    const char *text = NULL;
    lq_status s = js_str(j, "torch_dtype", false, &text, err);
    if (!s) s = js_str(j, "dtype", false, &text, err);
    if (s || !text) return s;
    if (strncmp(text, "torch.", 6) == 0) text += 6;
    for (size_t i = 0; i < LQ_COUNT(names); i++)
        if (strcmp(names[i].text, text) == 0) return c->dtype = names[i].d, LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "dtype: expected float32, float16 or bfloat16, found \"%.40s\"", text);
}

static lq_status read_bias(int *out, const cJSON *j, const char *key, lq_err *err)
{
    bool b = false;
    lq_status s = js_bool(j, key, false, &b, err);
    if (!s && js_get(j, key)) *out = b;
    return s;
}

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

lq_status arch_read_eos(arch_config *c, const cJSON *v, lq_err *err)
{
    lq_status s = LQ_OK;
    if (!cJSON_IsArray(v)) return v ? add_eos(c, v, err) : LQ_OK;
    for (const cJSON *e = v->child; e && !s; e = e->next)
        s = add_eos(c, e, err);
    return s;
}

/* A model without words of its own has no head to untie; labels are named, or counted, or two. */
static lq_status read_labels(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *names = js_get(j, "id2label");
    if (c->head != HEAD_WORDS) c->tied = true;
    if (c->head != HEAD_LABELS) return LQ_OK;
    c->labels = cJSON_IsObject(names) && names->child ? cJSON_GetArraySize(names) : 2;
    return js_i64(j, "num_labels", false, 1, ARCH_MAX_WIDTH, &c->labels, err);
}

/* What `j` says, and where it is the text part of `outer`, what that adds. */
lq_status arch_read_words(arch_config *c, const cJSON *j, const cJSON *outer, lq_err *err)
{
    int64_t bos = -1;
    c->dtype = LQ_F32;
    lq_status s = read_act(c, j, err);
    if (!s && j != outer) s = read_dtype(c, outer, err);
    if (!s) s = read_dtype(c, j, err);
    if (!s && j != outer) s = js_bool(outer, "tie_word_embeddings", false, &c->tied, err);
    if (!s) s = js_bool(j, "tie_word_embeddings", false, &c->tied, err);
    if (!s) s = read_bias(&c->attn_bias, j, "attention_bias", err);
    if (!s) s = read_bias(&c->mlp_bias, j, "mlp_bias", err);
    if (!s && j != outer) s = js_i64(outer, "bos_token_id", false, -1, INT32_MAX, &bos, err);
    if (!s) s = js_i64(j, "bos_token_id", false, -1, INT32_MAX, &bos, err);
    if (!s) s = read_labels(c, j, err);
    if (!s) s = arch_read_eos(c, js_get(j, "eos_token_id"), err);
    if (!s && j != outer) s = arch_read_eos(c, js_get(outer, "eos_token_id"), err);
    c->bos = (int32_t)bos;
    return s;
}

/* ---- experts ---- */

/* A number, or an array of equal ones: a number for each layer. */
static lq_status same_i64(const cJSON *j, const char *key, bool required, int64_t lo, int64_t hi,
                          int64_t *v, lq_err *err)
{
    const cJSON *list = js_get(j, key);
    if (!cJSON_IsArray(list) || !list->child) return js_i64(j, key, required, lo, hi, v, err);
    for (const cJSON *e = list->child; e; e = e->next) {
        const int64_t before = *v;
        if (!js_whole(e, lo, hi, v) || (e != list->child && *v != before))
            return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected one number for all layers", key);
    }
    return LQ_OK;
}

lq_status arch_read_experts(arch_config *c, const cJSON *j, lq_err *err)
{
    if (!arch_name_of(c, R_ROUTER)) return LQ_OK;
    const int64_t wide = ARCH_MAX_WIDTH;
    const bool has_shared = arch_name_of(c, R_SHARED_DOWN) != NULL;
    const char *shared_key = spelled(j, shared_keys);
    int64_t shared = cJSON_GetObjectItemCaseSensitive(j, shared_key) ? 0 : c->row->def_shared;
    /* The row's keys have put there what is assumed of a silent config.json. */
    const bool n = !c->experts, used = !c->experts_used;
    const int64_t least = arch_name_of(c, R_DOWN) ? 0 : 1; /* 0: MLPs in all layers */
    lq_status s = js_i64(j, spelled(j, experts_keys), n, least, ARCH_MAX_EXPERTS, &c->experts, err);
    if (!s)
        s = same_i64(j, spelled(j, used_keys), used, least, ARCH_MAX_EXPERTS, &c->experts_used,
                     err);
    if (!c->expert_ffn) c->expert_ffn = c->ffn;
    if (!s) s = same_i64(j, spelled(j, expert_ffn_keys), false, 1, wide, &c->expert_ffn, err);
    if (!s) s = same_i64(j, shared_key, false, 0, 1024, &shared, err);
    if (!c->shared_ffn && has_shared) c->shared_ffn = shared * c->expert_ffn;
    if (!s && has_shared)
        s = js_i64(j, spelled(j, shared_ffn_keys), false, 0, wide, &c->shared_ffn, err);
    if (!c->experts) c->experts_used = c->expert_ffn = c->shared_ffn = 0;
    return s;
}

/* A list with a word, a flag or a number for each layer: has it experts? */
static lq_status read_moe_flags(arch_config *c, const cJSON *list, lq_err *err)
{
    int64_t i = 0, on = 0;
    for (const cJSON *e = cJSON_IsArray(list) ? list->child : NULL; e && i < c->layers;
         e = e->next, i++) {
        const char *word = cJSON_IsString(e) ? e->valuestring : "";
        c->layer[i].hashed = strcmp(word, "hash_moe") == 0;
        const bool own = c->layer[i].hashed || strcmp(word, "moe") == 0;
        if (strcmp(word, "sparse") == 0 || cJSON_IsTrue(e) ||
            (own && arch_name_of(c, R_EXPERTS_OF)))
            c->layer[i].moe = true;
        else if (strcmp(word, "dense") == 0 || cJSON_IsFalse(e))
            c->layer[i].moe = false;
        else if (js_whole(e, 0, 1, &on))
            c->layer[i].moe = on;
        else
            break;
    }
    if (i == c->layers && cJSON_GetArraySize(list) == i) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected dense or sparse for each of %" PRId64 " layers",
                   list->string, c->layers);
}

/* The layers that a list names become such. */
static lq_status read_moe_names(arch_config *c, const cJSON *list, bool moe, lq_err *err)
{
    int64_t i;
    if (!list) return LQ_OK;
    for (i = 0; moe && i < c->layers; i++)
        c->layer[i].moe = false;
    for (const cJSON *e = list->child; e && cJSON_IsArray(list); e = e->next) {
        if (!js_whole(e, 0, ARCH_MAX_LAYERS, &i)) break;
        if (i < c->layers) c->layer[i].moe = moe;
        if (!e->next) return LQ_OK;
    }
    if (cJSON_IsArray(list) && !list->child) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected an array of layers", list->string);
}

static lq_status read_moe_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    static const char *const flags[] = { "moe_layer_freq", "is_moe_layer", "mlp_layer_types" };
    int64_t first = c->row->def_dense, last = -1, every = 1, step = 1;
    if (!c->experts || c->row->one_branch) return LQ_OK; /* a kind of layer of its own */
    lq_status s = js_i64(j, spelled(j, dense_keys), false, 0, ARCH_MAX_LAYERS, &first, err);
    if (!s) s = js_i64(j, "moe_layer_end_index", false, -1, ARCH_MAX_LAYERS, &last, err);
    if (!s && cJSON_IsNumber(js_get(j, flags[0])))
        s = js_i64(j, flags[0], false, 1, ARCH_MAX_LAYERS, &every, err);
    if (!s) s = js_i64(j, spelled(j, step_keys), false, 1, ARCH_MAX_LAYERS, &step, err);
    for (int64_t i = 0; i < c->layers && !s; i++)
        c->layer[i].moe =
            i >= first && (last < 0 || i <= last) && i % every == 0 && (i + 1) % step == 0;
    if (!s) s = read_moe_names(c, js_get(j, "mlp_only_layers"), false, err);
    if (!s) s = read_moe_names(c, js_get(j, "moe_layers"), true, err);
    for (size_t i = 0; i < LQ_COUNT(flags) && !s; i++)
        if (js_get(j, flags[i]) && !(i == 0 && cJSON_IsNumber(js_get(j, flags[i]))))
            s = read_moe_flags(c, js_get(j, flags[i]), err);
    return s;
}

/* ---- rotations ---- */
static lq_status read_nope(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *list = js_get(j, "no_rope_layers");
    if (cJSON_IsArray(list) && !list->child) list = NULL; /* as Llama 4 says nothing */
    int64_t every = c->row->def_nope_every, i = 0, rotates = 0;
    if (!every) return LQ_OK;
    lq_status s = js_i64(j, "no_rope_layer_interval", false, 1, ARCH_MAX_LAYERS, &every, err);
    for (i = 0; i < c->layers && !s && !list; i++)
        if ((i + 1) % every == 0) c->layer[i].rope = ROPE_OFF;
    if (s || !list) return s;
    i = 0;
    for (const cJSON *e = cJSON_IsArray(list) ? list->child : NULL; e; e = e->next, i++) {
        if (i >= c->layers || !js_whole(e, 0, 1, &rotates)) break;
        if (!rotates) c->layer[i].rope = ROPE_OFF;
    }
    if (i == c->layers && cJSON_GetArraySize(list) == i) return LQ_OK;
    return lq_fail(err, LQ_EVALUE,
                   "no_rope_layers: expected an array of %" PRId64 " ones and zeros", c->layers);
}

/* ---- windows ---- */
static lq_status read_layer_types(arch_config *c, const cJSON *types, lq_err *err)
{
    int64_t n = cJSON_IsArray(types) ? cJSON_GetArraySize(types) : -1, i = 0;
    if (n != c->layers)
        return lq_fail(err, LQ_EVALUE, "layer_types: expected an array of %" PRId64 " strings",
                       c->layers);
    for (const cJSON *t = types->child; t; t = t->next, i++) {
        const char *text = cJSON_IsString(t) ? t->valuestring : "";
        const char *own =
            c->row->window == WINDOW_CHUNKS ? "chunked_attention" : "sliding_attention";
        bool window = strcmp(text, own) == 0;
        if (!window && strcmp(text, "full_attention") != 0 && c->row->mixer == MIX_ATTENTION)
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "layer_types: expected full_attention or %s, found \"%.40s\"", own,
                           text);
        c->layer[i].window = window && c->window;
    }
    return LQ_OK;
}

static lq_status set_local(arch_config *c, int64_t i, const cJSON *kind, lq_err *err)
{
    const char *text = cJSON_IsString(kind) ? kind->valuestring : "";
    const bool local = strcmp(text, "local") == 0;
    if (!local && strcmp(text, "global") != 0)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "attention_types: expected global or local, found \"%.40s\"", text);
    c->layer[i].window = local && c->window;
    return LQ_OK;
}

/* attention_layers: a kind for each layer; attention_types: [[[kinds], times], ...]. Neither:
 * global and local in turn. */
static lq_status read_local(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *layers = js_get(j, "attention_layers"), *types = js_get(j, "attention_types");
    const cJSON *bad = layers && !cJSON_IsArray(layers) ? layers : types;
    lq_status s = LQ_OK;
    int64_t i = 0;
    if (bad && !cJSON_IsArray(bad))
        return lq_fail(err, LQ_EVALUE, "%s: expected an array", bad->string);
    if (cJSON_IsArray(layers)) {
        for (const cJSON *k = layers->child; k && i < c->layers && !s; k = k->next)
            s = set_local(c, i++, k, err);
    } else if (cJSON_IsArray(types)) {
        for (const cJSON *t = types->child; t && !s; t = t->next) {
            int64_t times = 0;
            const cJSON *kinds = cJSON_IsArray(t) ? t->child : NULL;
            if (!cJSON_IsArray(kinds) || !js_whole(kinds->next, 1, ARCH_MAX_LAYERS, &times))
                return lq_fail(err, LQ_EVALUE, "attention_types: expected [[kinds], times]");
            for (int64_t n = 0; n < times && i < c->layers && !s; n++)
                for (const cJSON *k = kinds->child; k && i < c->layers && !s; k = k->next)
                    s = set_local(c, i++, k, err);
        }
    } else {
        for (; i < c->layers; i++)
            c->layer[i].window = i % 2 && c->window;
    }
    if (!s && i != c->layers)
        s = lq_fail(err, LQ_EVALUE,
                    "attention_types: expected kinds of %" PRId64 " layers, found %" PRId64,
                    c->layers, i);
    return s;
}

/* What sliding_window_pattern says of a layer beside layer_types: a number, or a letter for each. */
static bool pattern_is_full(const cJSON *pattern, int64_t i, bool full_first)
{
    const char *letters = cJSON_GetStringValue(pattern);
    const int64_t n = letters ? (int64_t)strlen(letters) : (int64_t)pattern->valuedouble;
    if (letters) return letters[i % n] == 'G';
    return (i + (full_first ? 0 : 1)) % n == 0;
}

/* layer_types counts where both are there, so the pattern must say the same. transformers writes
 * "_sliding_window_pattern" whether it counts or not. */
static lq_status check_pattern(const arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *pattern = js_get(j, pattern_keys[0]);
    if (!pattern) pattern = js_get(j, pattern_keys[2]);
    if (!pattern || arch_row_knows(c, "", "prefix_dense_sliding_window_pattern")) return LQ_OK;
    char found[64];
    int64_t n, i = 0;
    const char *letters = cJSON_GetStringValue(pattern);
    if (letters ? !*letters || letters[strspn(letters, "LG")]
                : !js_whole(pattern, 1, ARCH_MAX_LAYERS, &n))
        return lq_fail(err, LQ_EVALUE, "%s: expected an integer 1..%d, found %s", pattern->string,
                       ARCH_MAX_LAYERS, js_describe(found, pattern));
    for (const cJSON *t = js_get(j, "layer_types")->child; t; t = t->next, i++)
        if ((strcmp(t->valuestring, "full_attention") == 0) !=
            pattern_is_full(pattern, i, c->row->full_first))
            return lq_fail(err, LQ_EVALUE,
                           "%s: expected what layer_types says, found %s, and %s for layer %" PRId64
                           " there",
                           pattern->string, js_describe(found, pattern), t->valuestring, i);
    return LQ_OK;
}

/* Windows that the row has not. */
static lq_status refuse_windows(const arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *types = js_get(j, "layer_types");
    char found[64];
    if (types && !cJSON_IsArray(types))
        return lq_fail(err, LQ_EVALUE, "layer_types: expected an array of strings, found %s",
                       js_describe(found, types));
    for (const cJSON *t = types ? types->child : NULL; t; t = t->next) {
        const char *text = cJSON_IsString(t) ? t->valuestring : "";
        if (strcmp(text, "sliding_attention") == 0 || strcmp(text, "chunked_attention") == 0)
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "layer_types: expected layers without a window in a %s, found %s",
                           c->row->arch, text);
    }
    return LQ_OK;
}

static lq_status read_windows(arch_config *c, const cJSON *j, lq_err *err)
{
    const arch_row *row = c->row;
    if (row->window == WINDOW_NONE) return refuse_windows(c, j, err);
    if (row->window == WINDOW_OWN) return LQ_OK;
    const char *key = row->window == WINDOW_LOCAL    ? "window_size"
                      : row->window == WINDOW_CHUNKS ? "attention_chunk_size"
                                                     : "sliding_window";
    bool null = cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(j, key)), use = true;
    const bool optional = row->window >= WINDOW_IF_USED && row->window <= WINDOW_NOPE_IF_USED;
    int64_t from = 0, pattern = row->def_pattern;
    c->window = null ? 0 : row->def_window;
    /* transformers 5 writes 0 where use_sliding_window is false */
    lq_status s = js_i64(j, key, false, optional ? 0 : 1, INT32_MAX, &c->window, err);
    if (optional) use = false;
    if (!s && optional) s = js_bool(j, "use_sliding_window", false, &use, err);
    const bool later = row->window == WINDOW_IF_USED || row->window == WINDOW_FROM;
    /* as transformers for those that have this key */
    if (later) from = row->def_window_from ? row->def_window_from : 28;
    if (!s && later) s = js_i64(j, "max_window_layers", false, 0, INT32_MAX, &from, err);
    const cJSON *types = js_get(j, "layer_types");
    if (!s && row->window == WINDOW_PATTERN && !types)
        s = js_i64(j, spelled(j, pattern_keys), false, 1, ARCH_MAX_LAYERS, &pattern, err);
    if (!use) c->window = 0;
    if (s) return s;
    if (types) {
        s = read_layer_types(c, types, err);
        return s || row->window != WINDOW_PATTERN ? s : check_pattern(c, j, err);
    }
    if (row->window == WINDOW_LOCAL) return read_local(c, j, err);
    const int64_t last = row->full_first ? 0 : 1;
    for (int64_t i = 0; i < c->layers; i++)
        c->layer[i].window = c->window && i >= from && (!pattern || (i + last) % pattern) &&
                             (row->window != WINDOW_NOPE_IF_USED || c->layer[i].rope == ROPE_OFF) &&
                             (row->window != WINDOW_CHUNKS || c->layer[i].rope != ROPE_OFF);
    return LQ_OK;
}

/* ---- mixers ---- */
#define SLIDING "sliding_attention"
/* A layer's kind in layer_types, and in one letter of hybrid_override_pattern. */
typedef enum { IS_FULL, IS_MIXER, IS_MLP, IS_MOE } layer_kind;
static const struct {
    const char *text;
    char letter;
    layer_kind kind;
} layer_kinds[] = {
    { "full_attention", '*', IS_FULL },
    { "attention", 0, IS_FULL },
    { SLIDING, 0, IS_FULL }, /* read_windows */
    { "linear_attention", 'M', IS_MIXER },
    { "mamba", 0, IS_MIXER },
    { "mamba2", 0, IS_MIXER },
    { "conv", 0, IS_MIXER },
    { "hybrid", 0, IS_MIXER },
    { "mlp", '-', IS_MLP },
    { "moe", 'E', IS_MOE },
};

static void set_mixer(arch_config *c, int64_t i, layer_kind kind)
{
    const arch_row *row = c->row;
    const bool mlp = kind == IS_MLP || kind == IS_MOE;
    c->layer[i].mixer = (uint8_t)(mlp ? MIX_NONE : kind == IS_MIXER ? row->mixer : MIX_ATTENTION);
    if (!row->one_branch) return;
    c->layer[i].no_mlp = !mlp;
    c->layer[i].moe = kind == IS_MOE;
}

/* Has the row layers of this kind? */
static bool may_be(const arch_config *c, layer_kind kind)
{
    if (kind == IS_MOE && !arch_name_of(c, R_ROUTER)) return false;
    return kind < IS_MLP || c->row->one_branch;
}

static lq_status mixers_by_name(arch_config *c, const cJSON *types, lq_err *err)
{
    int64_t i = 0;
    if (!cJSON_IsArray(types) || cJSON_GetArraySize(types) != c->layers)
        return lq_fail(err, LQ_EVALUE, "%s: expected an array of %" PRId64 " strings",
                       types->string, c->layers);
    for (const cJSON *t = types->child; t; t = t->next, i++) {
        const char *text = cJSON_IsString(t) ? t->valuestring : "";
        size_t k = 0;
        while (k < LQ_COUNT(layer_kinds) && strcmp(layer_kinds[k].text, text) != 0)
            k++;
        if (strcmp(text, SLIDING) == 0 &&
            (c->row->window == WINDOW_NONE || strcmp(types->string, "layer_types") != 0))
            k = LQ_COUNT(layer_kinds); /* of windows that nothing reads */
        if (k == LQ_COUNT(layer_kinds) || !may_be(c, layer_kinds[k].kind))
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "%s: expected full_attention, linear_attention or what a %s has "
                           "besides, found \"%.40s\"",
                           types->string, c->row->arch, text);
        set_mixer(c, i, layer_kinds[k].kind);
    }
    return LQ_OK;
}

static lq_status mixers_by_letter(arch_config *c, const cJSON *pattern, lq_err *err)
{
    const char *text = cJSON_IsString(pattern) ? pattern->valuestring : "";
    for (int64_t i = 0; i < c->layers; i++) {
        size_t k = 0;
        while (k < LQ_COUNT(layer_kinds) && (!text[i] || layer_kinds[k].letter != text[i]))
            k++;
        if (k == LQ_COUNT(layer_kinds) || !may_be(c, layer_kinds[k].kind))
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "%s: expected %" PRId64 " of M (Mamba-2), * (attention) and - (MLP), or "
                           "what a %s has besides, found %.80s",
                           pattern->string, c->layers, c->row->arch, text);
        set_mixer(c, i, layer_kinds[k].kind);
    }
    return LQ_OK;
}

/* The layers that attend; all others have the row's mixer. */
static lq_status mixers_by_index(arch_config *c, const cJSON *list, lq_err *err)
{
    for (int64_t i = 0; i < c->layers; i++)
        set_mixer(c, i, IS_MIXER);
    for (const cJSON *e = cJSON_IsArray(list) ? list->child : list; e; e = e->next) {
        int64_t i;
        if (!js_whole(e, 0, c->layers - 1, &i))
            return lq_fail(err, LQ_EVALUE, "%s: expected an array of layers 0..%" PRId64,
                           list->string, c->layers - 1);
        set_mixer(c, i, IS_FULL);
    }
    return LQ_OK;
}

/* Lists of the layers' kinds. */
static const struct {
    const char *key;
    lq_status (*read)(arch_config *c, const cJSON *list, lq_err *err);
} mixer_lists[] = { { "layer_types", mixers_by_name },
                    { "layers_block_type", mixers_by_name },
                    { "hybrid_override_pattern", mixers_by_letter },
                    { "full_attn_idxs", mixers_by_index },
                    { "attn_layer_indices", mixers_by_index } };

/* A further list must say what the first (*first: its key; NULL: none yet) said. */
static lq_status read_mixer_list(const char **first, arch_config *c, const cJSON *j, size_t i,
                                 arch_layer *said, lq_err *err)
{
    const char *key = mixer_lists[i].key;
    const cJSON *list = js_get(j, key);
    if (!list) return LQ_OK;
    memcpy(said, c->layer, (size_t)c->layers * sizeof *said);
    const lq_status s = mixer_lists[i].read(c, list, err);
    for (int64_t l = 0; l < c->layers && !s && *first; l++)
        if (c->layer[l].mixer != said[l].mixer || c->layer[l].no_mlp != said[l].no_mlp ||
            c->layer[l].moe != said[l].moe)
            return lq_fail(err, LQ_EVALUE,
                           "%s: expected what %s says, found another kind for layer %" PRId64, key,
                           *first, l);
    if (!*first) *first = key;
    return s;
}

/* *there: is any list? */
static lq_status mixers_by_list(bool *there, arch_config *c, const cJSON *j, lq_err *err)
{
    const char *first = NULL;
    arch_layer *said = calloc((size_t)c->layers, sizeof *said);
    lq_status s =
        said ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for %" PRId64 " layers", c->layers);
    for (size_t i = 0; i < LQ_COUNT(mixer_lists) && !s; i++)
        s = read_mixer_list(&first, c, j, i, said, err);
    *there = first != NULL;
    free(said);
    return s;
}

/* The list counts, so the interval beside it must say the same. */
static lq_status check_interval(const arch_config *c, int64_t every, lq_err *err)
{
    for (int64_t i = 0; i < c->layers; i++)
        if (arch_mixer_attends(c->layer[i].mixer) != ((i + 1) % every == 0))
            return lq_fail(err, LQ_EVALUE,
                           "full_attention_interval: expected what layer_types says, found %" PRId64
                           ", and %s for layer %" PRId64 " there",
                           every, arch_mixer_text(c->layer[i].mixer), i);
    return LQ_OK;
}

static lq_status read_mixers(arch_config *c, const cJSON *j, lq_err *err)
{
    static const char interval[] = "full_attention_interval";
    int64_t every = c->row->def_full_every;
    bool listed;
    if (c->row->mixer == MIX_ATTENTION || c->row->window == WINDOW_OWN) return LQ_OK;
    lq_status s = js_i64(j, interval, false, 1, ARCH_MAX_LAYERS, &every, err);
    if (!s) s = mixers_by_list(&listed, c, j, err);
    if (s) return s;
    if (listed) return js_get(j, interval) ? check_interval(c, every, err) : LQ_OK;
    if (kinds_are_listed(c))
        return lq_fail(err, LQ_EVALUE,
                       "layers_block_type: expected the kinds of %" PRId64 " layers", c->layers);
    for (int64_t i = 0; i < c->layers; i++)
        set_mixer(c, i, every && (i + 1) % every == 0 ? IS_FULL : IS_MIXER);
    return LQ_OK;
}

/* ---- layers ---- */
/* Is the rotation of this kind of layers null in rope_parameters? */
static bool kind_is_nope(const cJSON *j, bool window)
{
    return cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(
        js_get(j, "rope_parameters"), window ? "sliding_attention" : "full_attention"));
}

lq_status arch_read_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    bool any = false;
    const bool local = arch_rope_local(c, j);
    c->layer = calloc((size_t)c->layers, sizeof *c->layer);
    if (!c->layer) return lq_fail(err, LQ_ENOMEM, "no memory for %" PRId64 " layers", c->layers);
    lq_status s = read_nope(c, j, err);
    if (!s) s = read_windows(c, j, err);
    if (!s) s = read_mixers(c, j, err);
    for (int64_t i = 0; i < c->layers && !s; i++) {
        const bool window = c->layer[i].window;
        any |= window;
        if (c->w.pos != POS_ROPE || (c->row->nope_full && c->window && !window) ||
            kind_is_nope(j, window))
            c->layer[i].rope = ROPE_OFF;
        else if (window && local && c->layer[i].rope == ROPE_MAIN)
            c->layer[i].rope = ROPE_LOCAL;
    }
    if (!any && c->row->window != WINDOW_OWN) c->window = 0;
    if (!s) s = read_moe_layers(c, j, err);
    return s || !c->row->layers ? s : c->row->layers(c, j, err);
}
