/* formats/arch/rows/encoder.c - encoders, whose positions see both ways: BERT (arXiv:1810.04805) and its
 * relatives. They give hidden states, never words. */
#include "formats/arch/rows/rows.h"

#include "base/json.h"
#include "formats/arch/arch_impl.h"

#include <strings.h>

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
MUST_SAY(must_gelu, "gelu")

static lq_status must_layer_norm(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return arch_key_must(key, v, "layer_norm", err);
}

/* The embeddings of ELECTRA and ALBERT, 128 wide where the file is silent, are normed and then widened. */
static lq_status narrow_embedding(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    c->embed_dim = 128;
    if ((!v || js_whole(v, 1, c->hidden, &c->embed_dim)) && c->embed_dim <= c->hidden) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected at most %lld, as hidden_size, found %s", key,
                   (long long)c->hidden, v ? js_describe(found, v) : "none, which is 128");
}

/* Layers that are one after the other share their tensors. */
static lq_status layer_groups(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    c->layer_groups = 1;
    if (!v || (js_whole(v, 1, c->layers, &c->layer_groups) && c->layers % c->layer_groups == 0))
        return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected a divisor of %lld layers, found %s", key,
                   (long long)c->layers, js_describe(found, v));
}

/* ---- DeBERTa ---- */
static lq_status must_attend_relative(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    (void)c;
    if (cJSON_IsTrue(v)) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected true, found %s", key,
                   v ? js_describe(found, v) : "none, which is false");
}

/* Less than 1: as many as positions. */
static lq_status far_distance(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    int64_t n = -1;
    if (v && !js_whole(v, -1, ARCH_MAX_WIDTH / 2, &n))
        return lq_fail(err, LQ_EVALUE, "%s: expected an integer -1..%d, found %s", key,
                       ARCH_MAX_WIDTH / 2, js_describe(found, v));
    c->dist_far = n < 1 ? c->max_pos : n;
    if (c->dist_far <= ARCH_MAX_WIDTH / 2) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "max_position_embeddings: expected at most %d, found %lld",
                   ARCH_MAX_WIDTH / 2, (long long)c->dist_far);
}

/* Less than 1: each distance has a row. Buckets are of two halves, and the last is farther than the first of them; of
 * an odd number the last would begin beyond dist_far. */
static lq_status distance_buckets(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    enum { MOST = 1024 };
    char found[64];
    int64_t n = -1;
    if (v && !js_whole(v, -1, MOST, &n))
        return lq_fail(err, LQ_EVALUE, "%s: expected an integer -1..%d, found %s", key, MOST,
                       js_describe(found, v));
    c->dist_buckets = n < 1 ? 0 : n;
    if (n < 1 || (n % 2 == 0 && n / 2 < c->dist_far - 1)) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "%s: expected an even number, half of it less than %lld distances, found %s",
                   key, (long long)c->dist_far - 1, js_describe(found, v));
}

static bool is_word(const char *text, size_t n, const char *want)
{
    while (n && *text == ' ')
        text++, n--;
    while (n && text[n - 1] == ' ')
        n--;
    return n == strlen(want) && strncasecmp(text, want, n) == 0;
}

/* One or several, with "|" between them. */
static bool add_pos_att(arch_config *c, const char *text)
{
    for (size_t n; text; text += n, text = *text ? text + 1 : NULL) {
        n = strcspn(text, "|");
        if (is_word(text, n, "c2p"))
            c->dist_keys = 1;
        else if (is_word(text, n, "p2c"))
            c->dist_queries = 1;
        else
            return false;
    }
    return true;
}

/* What scores are made of, by the root of whose number they are divided, too. */
static lq_status pos_att_type(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    bool ok = !v || cJSON_IsArray(v) || cJSON_IsString(v);
    if (cJSON_IsString(v)) ok = add_pos_att(c, v->valuestring);
    for (const cJSON *e = cJSON_IsArray(v) ? v->child : NULL; e && ok; e = e->next)
        ok = cJSON_IsString(e) && add_pos_att(c, e->valuestring);
    c->attn_scale = 1 / sqrt((double)(c->head_dim * (1 + c->dist_keys + c->dist_queries)));
    if (ok) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected c2p and p2c, found %s", key,
                   js_describe(found, v));
}

static lq_status norm_of_distances(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    const char *text = v ? cJSON_GetStringValue(v) : "none";
    c->dist_normed = text && is_word(text, strlen(text), "layer_norm");
    if (c->dist_normed || (text && is_word(text, strlen(text), "none"))) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected layer_norm or none, found %s", key,
                   js_describe(found, v));
}

static lq_status positions_in_input(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    if (v && !cJSON_IsBool(v))
        return lq_fail(err, LQ_EVALUE, "%s: expected true or false, found %s", key,
                       js_describe(found, v));
    c->w.pos = !v || cJSON_IsTrue(v) ? POS_LEARNED : POS_NONE;
    return LQ_OK;
}

static lq_status shared_distances(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    c->dist_shared = cJSON_IsTrue(v);
    if (!v || cJSON_IsBool(v)) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected true or false, found %s", key,
                   js_describe(found, v));
}

/* A width that may be said, and is the model's. */
static lq_status same_width(const char *key, const cJSON *v, int64_t want, lq_err *err)
{
    char found[64];
    int64_t n = want;
    if (!v || (js_whole(v, 1, ARCH_MAX_WIDTH, &n) && n == want)) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected %lld, found %s", key, (long long)want,
                   js_describe(found, v));
}
static lq_status as_hidden(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    return same_width(key, v, c->hidden, err);
}
static lq_status as_head(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    return same_width(key, v, c->head_dim, err);
}

static lq_status must_null(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return v ? lq_fail(err, LQ_EUNSUPPORTED, "%s: expected null, found a number", key) : LQ_OK;
}

/* Of each two layers the second has experts. */
static lq_status nomic_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    (void)j, (void)err;
    for (int64_t i = 0; i < c->layers; i++)
        c->layer[i].moe = i % 2;
    return LQ_OK;
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
#define BERT_NAMES \
    { R_EMBED, "@embeddings.word_embeddings", 0, BIAS_NO }, \
    { R_POS_EMBED, "@embeddings.position_embeddings", 0, BIAS_NO }, \
    { R_TYPE_EMBED, "@embeddings.token_type_embeddings", 0, BIAS_NO }, \
    { R_EMBED_NORM, "@embeddings.LayerNorm", 0, BIAS_YES }, \
    { R_Q, BERT_LAYER "attention.self.query", 0, BIAS_YES }, \
    { R_K, BERT_LAYER "attention.self.key", 0, BIAS_YES }, \
    { R_V, BERT_LAYER "attention.self.value", 0, BIAS_YES }, \
    { R_O, BERT_LAYER "attention.output.dense", 0, BIAS_YES }, \
    { R_ATTN_NORM, BERT_LAYER "attention.output.LayerNorm", 0, BIAS_YES }, \
    { R_UP, BERT_LAYER "intermediate.dense", 0, BIAS_YES }, \
    { R_DOWN, BERT_LAYER "output.dense", 0, BIAS_YES }, \
    { R_MLP_NORM, BERT_LAYER "output.LayerNorm", 0, BIAS_YES }
static const arch_name bert_names[] = {
    BERT_NAMES,
    END,
};
static const arch_name electra_names[] = {
    BERT_NAMES,
    { R_PROJ_IN, "@embeddings_project", 0, BIAS_YES },
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
static const arch_name deberta_v2_names[] = {
    { R_EMBED, "@embeddings.word_embeddings", 0, BIAS_NO },
    { R_POS_EMBED, "@embeddings.position_embeddings", 0, BIAS_NO },
    { R_TYPE_EMBED, "@embeddings.token_type_embeddings", 0, BIAS_NO },
    { R_EMBED_NORM, "@embeddings.LayerNorm", 0, BIAS_YES },
    { R_DIST_EMBED, "@encoder.rel_embeddings", 0, BIAS_NO },
    { R_DIST_NORM, "@encoder.LayerNorm", 0, BIAS_YES },
    { R_Q, BERT_LAYER "attention.self.query_proj", 0, BIAS_YES },
    { R_K, BERT_LAYER "attention.self.key_proj", 0, BIAS_YES },
    { R_V, BERT_LAYER "attention.self.value_proj", 0, BIAS_YES },
    { R_DIST_K, BERT_LAYER "attention.self.pos_key_proj", 0, BIAS_YES },
    { R_DIST_Q, BERT_LAYER "attention.self.pos_query_proj", 0, BIAS_YES },
    { R_O, BERT_LAYER "attention.output.dense", 0, BIAS_YES },
    { R_ATTN_NORM, BERT_LAYER "attention.output.LayerNorm", 0, BIAS_YES },
    { R_UP, BERT_LAYER "intermediate.dense", 0, BIAS_YES },
    { R_DOWN, BERT_LAYER "output.dense", 0, BIAS_YES },
    { R_MLP_NORM, BERT_LAYER "output.LayerNorm", 0, BIAS_YES },
    END,
};
#define ALBERT_LAYER "@encoder.albert_layer_groups.%d.albert_layers.0."
static const arch_name albert_names[] = {
    { R_EMBED, "@embeddings.word_embeddings", 0, BIAS_NO },
    { R_POS_EMBED, "@embeddings.position_embeddings", 0, BIAS_NO },
    { R_TYPE_EMBED, "@embeddings.token_type_embeddings", 0, BIAS_NO },
    { R_EMBED_NORM, "@embeddings.LayerNorm", 0, BIAS_YES },
    { R_PROJ_IN, "@encoder.embedding_hidden_mapping_in", 0, BIAS_YES },
    { R_Q, ALBERT_LAYER "attention.query", 0, BIAS_YES },
    { R_K, ALBERT_LAYER "attention.key", 0, BIAS_YES },
    { R_V, ALBERT_LAYER "attention.value", 0, BIAS_YES },
    { R_O, ALBERT_LAYER "attention.dense", 0, BIAS_YES },
    { R_ATTN_NORM, ALBERT_LAYER "attention.LayerNorm", 0, BIAS_YES },
    { R_UP, ALBERT_LAYER "ffn", 0, BIAS_YES },
    { R_DOWN, ALBERT_LAYER "ffn_output", 0, BIAS_YES },
    { R_MLP_NORM, ALBERT_LAYER "full_layer_layer_norm", 0, BIAS_YES },
    END,
};
static const arch_name xlm_roberta_xl_names[] = {
    { R_EMBED, "@embeddings.word_embeddings", 0, BIAS_NO },
    { R_POS_EMBED, "@embeddings.position_embeddings", 0, BIAS_NO },
    { R_TYPE_EMBED, "@embeddings.token_type_embeddings", 0, BIAS_NO },
    { R_FINAL_NORM, "@encoder.LayerNorm", 0, BIAS_YES },
    { R_ATTN_NORM, BERT_LAYER "attention.self_attn_layer_norm", 0, BIAS_YES },
    { R_Q, BERT_LAYER "attention.self.query", 0, BIAS_YES },
    { R_K, BERT_LAYER "attention.self.key", 0, BIAS_YES },
    { R_V, BERT_LAYER "attention.self.value", 0, BIAS_YES },
    { R_O, BERT_LAYER "attention.output.dense", 0, BIAS_YES },
    { R_MLP_NORM, BERT_LAYER "LayerNorm", 0, BIAS_YES },
    { R_UP, BERT_LAYER "intermediate.dense", 0, BIAS_YES },
    { R_DOWN, BERT_LAYER "output.dense", 0, BIAS_YES },
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
static const arch_scorer albert_scorer = { .names = (const arch_name[]){
    { R_POOLER, "@pooler", 0, BIAS_YES },
    { R_SCORE, "^classifier", 0, BIAS_YES },
    END,
} };
static const arch_scorer deberta_scorer = { .act = POOLER_GELU, .names = (const arch_name[]){
    { R_POOLER, "^pooler.dense", 0, BIAS_YES },
    { R_SCORE, "^classifier", 0, BIAS_YES },
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
/* As the files of nomic-embed-text-v2-moe have it. */
#define NOMIC_STACK NAME_BARE | NAME_STACKED | NAME_FLAT
static const arch_name nomic_moe_names[] = {
    { R_EMBED, "@embeddings.word_embeddings", 0, BIAS_NO },
    { R_TYPE_EMBED, "@embeddings.token_type_embeddings", 0, BIAS_NO },
    { R_EMBED_NORM, "@emb_ln", 0, BIAS_YES },
    { R_QKV, NOMIC_LAYER "attn.Wqkv", 0, BIAS_ATTN },
    { R_O, NOMIC_LAYER "attn.out_proj", 0, BIAS_ATTN },
    { R_ATTN_NORM, NOMIC_LAYER "norm1", 0, BIAS_YES },
    { R_UP, NOMIC_LAYER "mlp.fc1", 0, BIAS_MLP },
    { R_DOWN, NOMIC_LAYER "mlp.fc2", 0, BIAS_OWN },
    { R_ROUTER, NOMIC_LAYER "mlp.router.layer", 0, BIAS_NO },
    { R_EXPERT_UP, NOMIC_LAYER "mlp.experts.mlp.w1", NOMIC_STACK, BIAS_NO },
    { R_EXPERT_DOWN, NOMIC_LAYER "mlp.experts.mlp.w2", NOMIC_STACK | NAME_TRANSPOSED, BIAS_NO },
    { R_EXPERTS_BIAS, NOMIC_LAYER "mlp.experts.bias", NAME_BARE, BIAS_NO },
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
    { "embedding_size", KEY_FN, 0, NONE, narrow_embedding },
    NO_KEY,
};
static const arch_key albert_keys[] = {
    BERT_KEYS,
    { "embedding_size", KEY_FN, 0, NONE, narrow_embedding },
    { "num_hidden_groups", KEY_FN, 0, NONE, layer_groups },
    MUST("inner_group_num", 1),
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
static const arch_key deberta_v2_keys[] = {
    LABELS,
    { "type_vocab_size", KEY_INT, AT(types), 0, NULL },
    { "relative_attention", KEY_FN, 0, NONE, must_attend_relative },
    { "max_relative_positions", KEY_FN, 0, NONE, far_distance },
    { "position_buckets", KEY_FN, 0, NONE, distance_buckets },
    { "attention_head_size", KEY_FN, 0, NONE, as_head },
    { "pos_att_type", KEY_FN, 0, NONE, pos_att_type },
    { "norm_rel_ebd", KEY_FN, 0, NONE, norm_of_distances },
    { "share_att_key", KEY_FN, 0, NONE, shared_distances },
    { "position_biased_input", KEY_FN, 0, NONE, positions_in_input },
    { "embedding_size", KEY_FN, 0, NONE, as_hidden },
    { "pooler_hidden_size", KEY_FN, 0, NONE, as_hidden },
    { "pooler_hidden_act", KEY_FN, 0, NONE, label_gelu },
    MUST("conv_kernel_size", 0),
    { "conv_act", KEY_KNOWN, 0, NONE, NULL },
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
#define NOMIC_KEYS \
    NO_LABELS, \
    MUST("causal", 0), \
    MUST("prenorm", 0), \
    MUST("use_rms_norm", 0), \
    MUST("parallel_block", 0), \
    MUST("rotary_emb_interleaved", 0), \
    MUST("rotary_emb_fraction", 1), \
    MUST("rotary_scaling_factor", 1), \
    { "fused_bias_fc", KEY_KNOWN, 0, NONE, NULL }, /* the same numbers */ \
    { "qkv_proj_bias", KEY_FLAG, AT(attn_bias), 0, NULL }, \
    { "mlp_fc1_bias", KEY_FLAG, AT(mlp_bias), 0, NULL }, \
    { "mlp_fc2_bias", KEY_FLAG, AT(own_bias), 0, NULL }, \
    TYPES
static const arch_key nomic_keys[] = {
    NOMIC_KEYS,
    { "activation_function", KEY_FN, 0, NONE, swiglu },
    MUST("moe_every_n_layers", 0),
    NO_KEY,
};
static const arch_key nomic_moe_keys[] = {
    NOMIC_KEYS,
    { "activation_function", KEY_FN, 0, NONE, must_gelu },
    { "moe_every_n_layers", KEY_KNOWN, 0, NONE, NULL }, /* the row's `when` */
    { "moe_top_k", KEY_INT, AT(experts_used), NONE, NULL },
    { "moe_impl", KEY_KNOWN, 0, NONE, NULL }, /* the same numbers */
    MUST("moe_normalize_expert_weights", 0),
    MUST("num_shared_experts", 0),
    MUST("expert_choice_router", 0),
    MUST("ffn_div", 1),
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
#define BERT_PARTS .norm = NORM_LAYER, .mlp = MLP_PLAIN, .pos = POS_LEARNED, .both_ways = true
#define BERT_WIRING .w = { BERT_PARTS, .norm_after_add = true }
#define NARROW_WIRING .w = { BERT_PARTS, .norm_after_add = true, .proj_late = true }
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
    { "ElectraForCausalLM", "electra", NARROW_WIRING, .prefix = "electra.", .names = electra_names,
      .keys = electra_keys, .scorer = &electra_scorer, GELU, .def_eps = 1e-12, .def_max_pos = 512,
      .def_tied = true },
    { "AlbertForCausalLM", "albert", NARROW_WIRING, .prefix = "albert.", .names = albert_names,
      .keys = albert_keys, .scorer = &albert_scorer, GELU_TANH, .def_eps = 1e-12,
      .def_max_pos = 512, .def_tied = true },
    { "XLMRobertaXLForCausalLM", "xlm-roberta-xl", .w = { BERT_PARTS }, .prefix = "roberta.",
      .names = xlm_roberta_xl_names, .keys = roberta_keys, .scorer = &roberta_scorer, GELU,
      .pos_offset = 2, .def_eps = 1e-5, .def_max_pos = 514, .def_tied = true },
    ROBERTA("Roberta", "roberta"),
    ROBERTA("XLMRoberta", "xlm-roberta"),
    ROBERTA("Camembert", "camembert"),
    { "MPNetForCausalLM", "mpnet", BERT_WIRING, .prefix = "mpnet.", .names = mpnet_names,
      .keys = mpnet_keys, .scorer = &roberta_scorer, GELU, .pos_offset = 2, .def_eps = 1e-12,
      .def_max_pos = 512, .def_tied = true },
    { "DebertaV2ForCausalLM", "deberta-v2", BERT_WIRING, .prefix = "deberta.",
      .names = deberta_v2_names, .keys = deberta_v2_keys, .scorer = &deberta_scorer, GELU,
      .def_eps = 1e-7, .def_max_pos = 512, .def_tied = true },
    { "DistilBertForCausalLM", "distilbert", BERT_WIRING, .prefix = "distilbert.",
      .names = distilbert_names, .keys = distilbert_keys, .scorer = &distilbert_scorer, GELU,
      .def_eps = 1e-12, .def_max_pos = 512, .def_tied = true },
    { "NomicBertForCausalLM", "nomic_bert", "moe", "moe_every_n_layers=2",
      .w = { LN_ROPE, .mlp = MLP_PLAIN, .both_ways = true, .norm_after_add = true }, .prefix = "",
      .names = nomic_moe_names, .keys = nomic_moe_keys, .layers = nomic_layers, GELU,
      .fixed_act = true, .def_eps = 1e-12, .def_theta = 1000, .def_tied = true },
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
