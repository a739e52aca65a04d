/* formats/arch/rows/encoder.c - encoders, whose positions see both ways: BERT (arXiv:1810.04805) and its
 * relatives. They give hidden states, never words. */
#include "formats/arch/rows/rows.h"

#include "base/json.h"

/* The table of positions counts its offset in max_position_embeddings (RoBERTa's first two rows are for
 * padding). */
static lq_status less_offset(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    c->max_pos -= c->pos_offset;
    if (c->max_pos >= 1) return LQ_OK;
    char found[64];
    return lq_fail(err, LQ_EVALUE, "%s: expected more than %d, found %s", key, (int)c->pos_offset,
                   js_describe(found, v));
}

static lq_status swiglu(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return arch_key_must(key, v, "swiglu", err);
}

/* What is made of one score: torch's name of a function. */
static lq_status label_act(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    const char *text = v ? cJSON_GetStringValue(v) : "Sigmoid",
               *dot = text ? strrchr(text, '.') : NULL;
    if (dot) text = dot + 1;
    if (!v || c->head != HEAD_LABELS || (text && strcmp(text, "Sigmoid") == 0)) return LQ_OK;
    c->label_raw = text && strcmp(text, "Identity") == 0;
    if (c->label_raw) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected Sigmoid or Identity, found %s", key,
                   js_describe(found, v));
}

static lq_status label_pooling(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    const char *text = v ? cJSON_GetStringValue(v) : "cls";
    if (c->head != HEAD_LABELS || (text && strcmp(text, "cls") == 0)) return LQ_OK;
    c->label_mean = text && strcmp(text, "mean") == 0;
    if (c->label_mean) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected cls or mean, found %s", key,
                   js_describe(found, v));
}

static lq_status label_gelu(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    return c->head == HEAD_LABELS ? arch_key_must(key, v, "gelu", err) : LQ_OK;
}

/* Keys of models with code of their own, each with the one value that is known; a silent file has another. */
#define MUST_SAY(name, text)                                                            \
    static lq_status name(arch_config *c, const char *key, const cJSON *v, lq_err *err) \
    {                                                                                   \
        (void)c;                                                                        \
        if (v) return arch_key_must(key, v, text, err);                                 \
        return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected " text ", found none", key); \
    }
MUST_SAY(must_rope, "rope")
MUST_SAY(must_alibi, "alibi")
MUST_SAY(must_geglu, "geglu")

static lq_status must_layer_norm(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return arch_key_must(key, v, "layer_norm", err);
}

/* ELECTRA's embeddings, 128 wide where the file is silent, are normed and then widened. */
static lq_status no_projection(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    const double width = v ? v->valuedouble : 128;
    if ((!v || cJSON_IsNumber(v)) && !(width < (double)c->hidden || width > (double)c->hidden))
        return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "%s: expected %lld, as hidden_size (no embeddings_project), found %s", key,
                   (long long)c->hidden, v ? js_describe(found, v) : "none, which is 128");
}

static lq_status must_null(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return v ? lq_fail(err, LQ_EUNSUPPORTED, "%s: expected null, found a number", key) : LQ_OK;
}

/* Of a window config.json says the whole width. */
static lq_status modernbert_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    int64_t width = c->window;
    lq_status s = js_i64(j, "local_attention", false, 1, INT32_MAX, &width, err);
    c->window = width / 2 + 1;
    return s;
}

/* A table of names reads by line. */
/* clang-format off */
#define BERT_LAYER "@encoder.layer.%d."
static const arch_name bert_names[] = {
    { R_EMBED, "@embeddings.word_embeddings", 0, BIAS_NO },
    { R_POS_EMBED, "@embeddings.position_embeddings", 0, BIAS_NO },
    { R_TYPE_EMBED, "@embeddings.token_type_embeddings", 0, BIAS_NO },
    { R_EMBED_NORM, "@embeddings.LayerNorm", 0, BIAS_YES },
    { R_Q, BERT_LAYER "attention.self.query", 0, BIAS_YES },
    { R_K, BERT_LAYER "attention.self.key", 0, BIAS_YES },
    { R_V, BERT_LAYER "attention.self.value", 0, BIAS_YES },
    { R_O, BERT_LAYER "attention.output.dense", 0, BIAS_YES },
    { R_ATTN_NORM, BERT_LAYER "attention.output.LayerNorm", 0, BIAS_YES },
    { R_UP, BERT_LAYER "intermediate.dense", 0, BIAS_YES },
    { R_DOWN, BERT_LAYER "output.dense", 0, BIAS_YES },
    { R_MLP_NORM, BERT_LAYER "output.LayerNorm", 0, BIAS_YES },
    END,
};
static const arch_name mpnet_names[] = {
    { R_EMBED, "@embeddings.word_embeddings", 0, BIAS_NO },
    { R_POS_EMBED, "@embeddings.position_embeddings", 0, BIAS_NO },
    { R_DIST_BIAS, "@encoder.relative_attention_bias", 0, BIAS_NO },
    { R_EMBED_NORM, "@embeddings.LayerNorm", 0, BIAS_YES },
    { R_Q, BERT_LAYER "attention.attn.q", 0, BIAS_YES },
    { R_K, BERT_LAYER "attention.attn.k", 0, BIAS_YES },
    { R_V, BERT_LAYER "attention.attn.v", 0, BIAS_YES },
    { R_O, BERT_LAYER "attention.attn.o", 0, BIAS_YES },
    { R_ATTN_NORM, BERT_LAYER "attention.LayerNorm", 0, BIAS_YES },
    { R_UP, BERT_LAYER "intermediate.dense", 0, BIAS_YES },
    { R_DOWN, BERT_LAYER "output.dense", 0, BIAS_YES },
    { R_MLP_NORM, BERT_LAYER "output.LayerNorm", 0, BIAS_YES },
    END,
};
/* As the files of gte-multilingual-base have it, whose code is their own. */
static const arch_name gte_names[] = {
    { R_EMBED, "@embeddings.word_embeddings", 0, BIAS_NO },
    { R_TYPE_EMBED, "@embeddings.token_type_embeddings", NAME_OPTIONAL, BIAS_NO },
    { R_EMBED_NORM, "@embeddings.LayerNorm", 0, BIAS_YES },
    { R_QKV, BERT_LAYER "attention.qkv_proj", 0, BIAS_YES },
    { R_O, BERT_LAYER "attention.o_proj", 0, BIAS_YES },
    { R_ATTN_NORM, BERT_LAYER "attn_ln", 0, BIAS_YES },
    { R_GATE_UP, BERT_LAYER "mlp.up_gate_proj", 0, BIAS_NO },
    { R_DOWN, BERT_LAYER "mlp.down_proj", 0, BIAS_YES },
    { R_MLP_NORM, BERT_LAYER "mlp_ln", 0, BIAS_YES },
    END,
};
/* As the files of jina-embeddings-v2 have it, whose code is their own. */
static const arch_name jina_names[] = {
    { R_EMBED, "@embeddings.word_embeddings", 0, BIAS_NO },
    { R_TYPE_EMBED, "@embeddings.token_type_embeddings", 0, BIAS_NO },
    { R_EMBED_NORM, "@embeddings.LayerNorm", 0, BIAS_YES },
    { R_Q, BERT_LAYER "attention.self.query", 0, BIAS_YES },
    { R_K, BERT_LAYER "attention.self.key", 0, BIAS_YES },
    { R_V, BERT_LAYER "attention.self.value", 0, BIAS_YES },
    { R_O, BERT_LAYER "attention.output.dense", 0, BIAS_YES },
    { R_ATTN_NORM, BERT_LAYER "attention.output.LayerNorm", 0, BIAS_YES },
    { R_GATE_UP, BERT_LAYER "mlp.gated_layers", 0, BIAS_NO },
    { R_DOWN, BERT_LAYER "mlp.wo", 0, BIAS_YES },
    { R_MLP_NORM, BERT_LAYER "mlp.layernorm", 0, BIAS_YES },
    END,
};
static const arch_scorer bert_scorer = { .names = (const arch_name[]){
    { R_POOLER, "@pooler.dense", 0, BIAS_YES },
    { R_SCORE, "^classifier", 0, BIAS_YES },
    END,
} };
static const arch_scorer roberta_scorer = { .names = (const arch_name[]){
    { R_POOLER, "^classifier.dense", 0, BIAS_YES },
    { R_SCORE, "^classifier.out_proj", 0, BIAS_YES },
    END,
} };
static const arch_scorer electra_scorer = { .act = POOLER_GELU, .names = (const arch_name[]){
    { R_POOLER, "^classifier.dense", 0, BIAS_YES },
    { R_SCORE, "^classifier.out_proj", 0, BIAS_YES },
    END,
} };
static const arch_scorer distilbert_scorer = { .act = POOLER_RELU, .names = (const arch_name[]){
    { R_POOLER, "^pre_classifier", 0, BIAS_YES },
    { R_SCORE, "^classifier", 0, BIAS_YES },
    END,
} };
static const arch_scorer modernbert_scorer = { .act = POOLER_GELU, .names = (const arch_name[]){
    { R_POOLER, "^head.dense", 0, BIAS_ANY },
    { R_POOL_NORM, "^head.norm", 0, BIAS_OWN },
    { R_SCORE, "^classifier", 0, BIAS_YES },
    END,
} };
#define DISTIL_LAYER "@transformer.layer.%d."
static const arch_name distilbert_names[] = {
    { R_EMBED, "@embeddings.word_embeddings", 0, BIAS_NO },
    { R_POS_EMBED, "@embeddings.position_embeddings", 0, BIAS_NO },
    { R_EMBED_NORM, "@embeddings.LayerNorm", 0, BIAS_YES },
    { R_Q, DISTIL_LAYER "attention.q_lin", 0, BIAS_YES },
    { R_K, DISTIL_LAYER "attention.k_lin", 0, BIAS_YES },
    { R_V, DISTIL_LAYER "attention.v_lin", 0, BIAS_YES },
    { R_O, DISTIL_LAYER "attention.out_lin", 0, BIAS_YES },
    { R_ATTN_NORM, DISTIL_LAYER "sa_layer_norm", 0, BIAS_YES },
    { R_UP, DISTIL_LAYER "ffn.lin1", 0, BIAS_YES },
    { R_DOWN, DISTIL_LAYER "ffn.lin2", 0, BIAS_YES },
    { R_MLP_NORM, DISTIL_LAYER "output_layer_norm", 0, BIAS_YES },
    END,
};
/* As the files of nomic-embed-text have it, whose code was their own first. */
#define NOMIC_LAYER "@encoder.layers.%d."
static const arch_name nomic_names[] = {
    { R_EMBED, "@embeddings.word_embeddings", 0, BIAS_NO },
    { R_TYPE_EMBED, "@embeddings.token_type_embeddings", 0, BIAS_NO },
    { R_EMBED_NORM, "@emb_ln", 0, BIAS_YES },
    { R_QKV, NOMIC_LAYER "attn.Wqkv", 0, BIAS_ATTN },
    { R_O, NOMIC_LAYER "attn.out_proj", 0, BIAS_ATTN },
    { R_ATTN_NORM, NOMIC_LAYER "norm1", 0, BIAS_YES },
    { R_GATE, NOMIC_LAYER "mlp.fc12", 0, BIAS_MLP },
    { R_UP, NOMIC_LAYER "mlp.fc11", 0, BIAS_MLP },
    { R_DOWN, NOMIC_LAYER "mlp.fc2", 0, BIAS_OWN },
    { R_MLP_NORM, NOMIC_LAYER "norm2", 0, BIAS_YES },
    END,
};
static const arch_name modernbert_names[] = {
    { R_EMBED, "@embeddings.tok_embeddings", 0, BIAS_NO },
    { R_EMBED_NORM, "@embeddings.norm", 0, BIAS_OWN },
    { R_FINAL_NORM, "@final_norm", 0, BIAS_OWN },
    { R_ATTN_NORM, LAYER "attn_norm", NAME_OPTIONAL, BIAS_OWN }, /* the first layer has none */
    { R_QKV, LAYER "attn.Wqkv", 0, BIAS_ATTN },
    { R_O, LAYER "attn.Wo", 0, BIAS_ATTN },
    { R_MLP_NORM, LAYER "mlp_norm", 0, BIAS_OWN },
    { R_GATE_UP, LAYER "mlp.Wi", 0, BIAS_MLP },
    { R_DOWN, LAYER "mlp.Wo", 0, BIAS_MLP },
    END,
};
static const arch_name eurobert_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_MLP),
    END,
};
#define NO_LABELS { "id2label", KEY_FN, 0, NONE, arch_key_no_labels }
/* Of sentence-transformers' CrossEncoder, old and new. */
#define LABELS \
    { "sbert_ce_default_activation_function", KEY_FN, 0, NONE, label_act }, \
    { "sentence_transformers.activation_fn", KEY_FN, 0, NONE, label_act }
#define TYPES { "type_vocab_size", KEY_INT, AT(types), 2, NULL }
#define BERT_KEYS \
    MUST("is_decoder", 0), \
    TYPES, \
    LABELS
static const arch_key bert_keys[] = {
    BERT_KEYS,
    NO_KEY,
};
static const arch_key electra_keys[] = {
    BERT_KEYS,
    { "embedding_size", KEY_FN, 0, NONE, no_projection },
    NO_KEY,
};
static const arch_key roberta_keys[] = {
    BERT_KEYS,
    { "max_position_embeddings", KEY_FN, 0, NONE, less_offset },
    NO_KEY,
};
static const arch_key mpnet_keys[] = {
    LABELS,
    { "max_position_embeddings", KEY_FN, 0, NONE, less_offset },
    { "relative_attention_num_buckets", KEY_INT, AT(dist_buckets), 32, NULL },
    NO_KEY,
};
static const arch_key gte_keys[] = {
    LABELS,
    MUST("pack_qkv", 1),
    MUST("logn_attention_scale", 0),
    { "logn_attention_clip1", KEY_KNOWN, 0, NONE, NULL },           /* of that scale */
    { "use_memory_efficient_attention", KEY_KNOWN, 0, NONE, NULL }, /* the same numbers */
    { "position_embedding_type", KEY_FN, 0, NONE, must_rope },
    { "layer_norm_type", KEY_FN, 0, NONE, must_layer_norm },
    { "rope_scaling.mixed_b", KEY_FN, 0, NONE, must_null },
    { "type_vocab_size", KEY_INT, AT(types), 1, NULL },
    NO_KEY,
};
static const arch_key jina_keys[] = {
    NO_LABELS,
    TYPES,
    MUST("is_decoder", 0),
    { "position_embedding_type", KEY_FN, 0, NONE, must_alibi },
    { "feed_forward_type", KEY_FN, 0, NONE, must_geglu },
    NO_KEY,
};
static const arch_key distilbert_keys[] = {
    LABELS,
    { "seq_classif_dropout", KEY_KNOWN, 0, NONE, NULL },
    MUST("sinusoidal_pos_embds", 0),
    NO_KEY,
};
static const arch_key nomic_keys[] = {
    NO_LABELS,
    MUST("causal", 0),
    MUST("prenorm", 0),
    MUST("use_rms_norm", 0),
    MUST("parallel_block", 0),
    MUST("rotary_emb_interleaved", 0),
    MUST("rotary_emb_fraction", 1),
    MUST("rotary_scaling_factor", 1),
    { "activation_function", KEY_FN, 0, NONE, swiglu },
    { "qkv_proj_bias", KEY_FLAG, AT(attn_bias), 0, NULL },
    { "mlp_fc1_bias", KEY_FLAG, AT(mlp_bias), 0, NULL },
    { "mlp_fc2_bias", KEY_FLAG, AT(own_bias), 0, NULL },
    TYPES,
    NO_KEY,
};
static const arch_key modernbert_keys[] = {
    LABELS,
    { "classifier_pooling", KEY_FN, 0, NONE, label_pooling },
    { "classifier_activation", KEY_FN, 0, NONE, label_gelu },
    { "attention_bias", KEY_FLAG, AT(attn_bias), 0, NULL },
    { "mlp_bias", KEY_FLAG, AT(mlp_bias), 0, NULL },
    { "norm_bias", KEY_FLAG, AT(own_bias), 0, NULL },
    { "local_attention", KEY_KNOWN, 0, NONE, NULL }, /* modernbert_layers */
    { "position_embedding_type", KEY_KNOWN, 0, NONE, NULL }, /* rotary, whatever it says */
    { "classifier_bias", KEY_KNOWN, 0, NONE, NULL },         /* as the checkpoint has it */
    { "decoder_bias", KEY_KNOWN, 0, NONE, NULL },            /* of the head that guesses masked words */
    NO_KEY,
};
static const arch_key eurobert_keys[] = {
    NO_LABELS,
    BIASES("attention_bias", 0),
    { "mlp_bias", KEY_FLAG, AT(mlp_bias), 0, NULL },
    NO_KEY,
};
#define BERT_WIRING \
    .w = { .norm = NORM_LAYER, .mlp = MLP_PLAIN, .pos = POS_LEARNED, .both_ways = true, .norm_after_add = true }
#define ROBERTA(arch, type) \
    { arch "ForCausalLM", type, BERT_WIRING, .prefix = "roberta.", .names = bert_names, \
      .keys = roberta_keys, .scorer = &roberta_scorer, GELU, .pos_offset = 2, .def_eps = 1e-12, .def_max_pos = 512, .def_tied = true }
/* clang-format on */

/* clang-format off */
#define GTE(arch, type, own) \
    { arch "ForCausalLM", type, .w = { LN_ROPE, .mlp = MLP_GATED, .up_first = true, .both_ways = true, .norm_after_add = true }, \
      .prefix = own, .names = gte_names, .keys = gte_keys, .scorer = &bert_scorer, GELU, .def_eps = 1e-12, .def_tied = true }
/* clang-format on */

const arch_row arch_rows_encoder[] = {
    GTE("New", "new", "new."),
    GTE("Gte", "gte", "gte."),
    { "JinaBertForCausalLM", "jina_bert",
      .w = { .norm = NORM_LAYER,
             .mlp = MLP_GATED,
             .pos = POS_ALIBI,
             .both_ways = true,
             .norm_after_add = true },
      .prefix = "bert.", .names = jina_names, .keys = jina_keys, GELU, .def_eps = 1e-12,
      .def_max_pos = 512, .def_tied = true },
    { "BertLMHeadModel", "bert", BERT_WIRING, .prefix = "bert.", .names = bert_names,
      .keys = bert_keys, .scorer = &bert_scorer, GELU, .def_eps = 1e-12, .def_max_pos = 512,
      .def_tied = true },
    { "ElectraForCausalLM", "electra", BERT_WIRING, .prefix = "electra.", .names = bert_names,
      .keys = electra_keys, .scorer = &electra_scorer, GELU, .def_eps = 1e-12, .def_max_pos = 512,
      .def_tied = true },
    ROBERTA("Roberta", "roberta"),
    ROBERTA("XLMRoberta", "xlm-roberta"),
    ROBERTA("Camembert", "camembert"),
    { "MPNetForCausalLM", "mpnet", BERT_WIRING, .prefix = "mpnet.", .names = mpnet_names,
      .keys = mpnet_keys, .scorer = &roberta_scorer, GELU, .pos_offset = 2, .def_eps = 1e-12,
      .def_max_pos = 512, .def_tied = true },
    { "DistilBertForCausalLM", "distilbert", BERT_WIRING, .prefix = "distilbert.",
      .names = distilbert_names, .keys = distilbert_keys, .scorer = &distilbert_scorer, GELU,
      .def_eps = 1e-12, .def_max_pos = 512, .def_tied = true },
    { "NomicBertForCausalLM", "nomic_bert",
      .w = { LN_ROPE, .mlp = MLP_GATED, .both_ways = true, .norm_after_add = true }, .prefix = "",
      .names = nomic_names, .keys = nomic_keys, .def_act = ARCH_SILU, .fixed_act = true,
      .def_eps = 1e-12, .def_theta = 1000, .def_tied = true },
    { "ModernBertForCausalLM", "modernbert", .w = { LN_ROPE, .mlp = MLP_GATED, .both_ways = true },
      MODEL, .names = modernbert_names, .keys = modernbert_keys, .scorer = &modernbert_scorer, GELU,
      .window = WINDOW_PATTERN, .layers = modernbert_layers, .full_first = true, .def_window = 128,
      .def_pattern = 3, .def_max_pos = 8192, .def_eps = 1e-5, .def_theta = 160000,
      .def_local_theta = 10000, .def_tied = true },
    { "EuroBertForCausalLM", "eurobert", .w = { RMS_ROPE, .both_ways = true }, MODEL,
      .names = eurobert_names, .keys = eurobert_keys, .def_eps = 1e-5, .def_max_pos = 8192 },
    { .arch = NULL },
};
