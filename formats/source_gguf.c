/* formats/source_gguf.c - a GGUF file as a model: metadata becomes a config, tensors get their
 * Hugging Face names, blocks our schemes (formats/gguf_blocks.h). */
#include "formats/source_impl.h"

#include "formats/gguf_blocks.h"
#include "formats/gguf_names.h"
#include "formats/gguf_tok.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- the config ---- */
typedef struct {
    gguf_file *f;
    const char *arch;
    cJSON *j;
    bool ok; /* memory sufficed */
} config;

static const char *meta_key(char out[128], const config *c, const char *key)
{
    snprintf(out, 128, "%.40s.%s", c->arch, key);
    return out;
}
static void put_int(config *c, const char *key, const char *from)
{
    char k[128];
    int64_t v;
    if (gguf_int(c->f, meta_key(k, c, from), &v))
        c->ok = c->ok && cJSON_AddNumberToObject(c->j, key, (double)v);
}
static void put_float(config *c, const char *key, const char *from)
{
    char k[128], text[32];
    double v;
    if (!gguf_float(c->f, meta_key(k, c, from), &v)) return;
    snprintf(text, sizeof text, "%.7g", v); /* an f32: 1e-05, not 9.99999975e-06 */
    c->ok = c->ok && cJSON_AddNumberToObject(c->j, key, strtod(text, NULL));
}
static void put_token(config *c, const char *key, const char *from)
{
    int64_t v;
    if (gguf_int(c->f, from, &v)) c->ok = c->ok && cJSON_AddNumberToObject(c->j, key, (double)v);
}

/* Frequencies stored one by one are those of Llama 3's formula, or unknown to us. */
static lq_status put_freqs(config *c, const gguf_tensor *t, lq_err *err)
{
    enum { LOW = 1, HIGH = 4 };
    int64_t original = 8192; /* of Llama 3 itself, where the file is silent */
    double theta = 10000, factor = 1;
    char k[128];
    gguf_float(c->f, meta_key(k, c, "rope.freq_base"), &theta);
    gguf_int(c->f, meta_key(k, c, "rope.scaling.original_context_length"), &original);
    const int64_t n = t->shape[t->n_dims - 1];
    bool same = t->type == GGML_F32 && t->bytes == (size_t)n * 4;
    for (int64_t i = 0; i < n && same; i++) {
        float v;
        memcpy(&v, t->data + 4 * i, 4);
        factor = (double)v > factor ? (double)v : factor;
    }
    for (int64_t i = 0; i < n && same; i++) {
        float v;
        memcpy(&v, t->data + 4 * i, 4);
        const double wave = 2 * 3.14159265358979323846 * pow(theta, (double)i / (double)n);
        const double smooth = ((double)original / wave - LOW) / (HIGH - LOW);
        double want = 1 / ((1 - smooth) / factor + smooth);
        if (wave < (double)original / HIGH) want = 1;
        if (wave > (double)original / LOW) want = factor;
        same = fabs((double)v - want) <= 1e-3 * want;
    }
    if (!same)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "rope_freqs.weight: expected Llama 3's factors of the frequencies");
    cJSON *r = cJSON_AddObjectToObject(c->j, "rope_scaling");
    c->ok = c->ok && cJSON_AddStringToObject(r, "rope_type", "llama3") &&
            cJSON_AddNumberToObject(r, "factor", factor) &&
            cJSON_AddNumberToObject(r, "low_freq_factor", LOW) &&
            cJSON_AddNumberToObject(r, "high_freq_factor", HIGH) &&
            cJSON_AddNumberToObject(r, "original_max_position_embeddings", (double)original);
    return LQ_OK;
}

static lq_status put_scaling(config *c, lq_err *err)
{
    char k[128];
    const char *type = "none";
    double factor = 1;
    int64_t original = 0;
    const gguf_tensor *freqs = gguf_find(c->f, "rope_freqs.weight");
    gguf_str(c->f, meta_key(k, c, "rope.scaling.type"), &type);
    if (strcmp(type, "none") == 0) return freqs ? put_freqs(c, freqs, err) : LQ_OK;
    gguf_float(c->f, meta_key(k, c, "rope.scaling.factor"), &factor);
    gguf_int(c->f, meta_key(k, c, "rope.scaling.original_context_length"), &original);
    if (freqs || (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "rope.scaling.type: expected none, linear or yarn, "
                       "found \"%.40s\"%s",
                       type, freqs ? " and rope_freqs.weight" : "");
    cJSON *r = cJSON_AddObjectToObject(c->j, "rope_scaling");
    c->ok = c->ok && cJSON_AddStringToObject(r, "rope_type", type) &&
            cJSON_AddNumberToObject(r, "factor", factor) &&
            (!original ||
             cJSON_AddNumberToObject(r, "original_max_position_embeddings", (double)original));
    return LQ_OK;
}

static lq_status make_config(config *c, size_t arch, lq_err *err)
{
    static const struct {
        const char *key, *from;
    } ints[] = { { "hidden_size", "embedding_length" },
                 { "num_hidden_layers", "block_count" },
                 { "intermediate_size", "feed_forward_length" },
                 { "num_attention_heads", "attention.head_count" },
                 { "num_key_value_heads", "attention.head_count_kv" },
                 { "head_dim", "attention.key_length" },
                 { "max_position_embeddings", "context_length" } };
    char k[128];
    int64_t experts = 0;
    const gguf_tensor *embed = gguf_find(c->f, "token_embd.weight");
    if (!embed || embed->n_dims != 2)
        return lq_fail(err, LQ_EFORMAT, "token_embd.weight: expected a matrix, found none");
    gguf_int(c->f, meta_key(k, c, "expert_count"), &experts);
    if (experts)
        return lq_fail(err, LQ_EUNSUPPORTED, "expert_count: experts are not read from GGUF");
    cJSON *list = cJSON_AddArrayToObject(c->j, "architectures");
    c->ok = cJSON_AddItemToArray(list, cJSON_CreateString(gguf_archs[arch].hf)) &&
            cJSON_AddStringToObject(c->j, "model_type", gguf_archs[arch].type) &&
            cJSON_AddStringToObject(c->j, "hidden_act", "silu") &&
            cJSON_AddNumberToObject(c->j, "vocab_size", (double)embed->shape[0]) &&
            cJSON_AddBoolToObject(c->j, "tie_word_embeddings", !gguf_find(c->f, "output.weight")) &&
            cJSON_AddStringToObject(c->j, "torch_dtype", "float32");
    if (strcmp(gguf_archs[arch].gguf, "qwen2") != 0)
        c->ok = c->ok && cJSON_AddBoolToObject(c->j, "attention_bias",
                                               gguf_find(c->f, "blk.0.attn_q.bias") != NULL);
    for (size_t i = 0; i < LQ_COUNT(ints); i++)
        put_int(c, ints[i].key, ints[i].from);
    put_float(c, "rms_norm_eps", "attention.layer_norm_rms_epsilon");
    put_float(c, "rope_theta", "rope.freq_base");
    put_token(c, "bos_token_id", "tokenizer.ggml.bos_token_id");
    put_token(c, "eos_token_id", "tokenizer.ggml.eos_token_id");
    return put_scaling(c, err);
}

/* ---- blobs ---- */
static lq_status add_blob(src_source *s, const char *name, const js_buf *b, lq_err *err)
{
    char *copy = b->failed ? NULL : lq_push(&s->arena, b->n + 1);
    if (!copy) return lq_fail(err, LQ_ENOMEM, "out of memory");
    memcpy(copy, b->data, b->n);
    s->blobs[s->n_blobs++] = (src_blob){ name, (const uint8_t *)copy, b->n };
    return LQ_OK;
}

static lq_status read_text(src_source *s, lq_err *err)
{
    js_buf b = { 0 };
    const char *why = NULL;
    lq_status st = gguf_tokenizer(&b, &s->gguf, &why, err);
    if (!st && why) st = src_note(s, err, "the tokenizer of this GGUF file is not used: %s", why);
    if (!st && !why) st = add_blob(s, "tokenizer.json", &b, err);
    b.n = 0;
    if (!st) st = gguf_tokenizer_config(&b, &s->gguf, err);
    if (!st) st = add_blob(s, "tokenizer_config.json", &b, err);
    free(b.data);
    return st;
}

static lq_status read_config(src_source *s, size_t arch, bool need, lq_err *err)
{
    config c = { .f = &s->gguf, .arch = gguf_archs[arch].gguf, .j = cJSON_CreateObject() };
    js_buf text = { 0 };
    lq_status st = make_config(&c, arch, err);
    if (!st && !c.ok) st = lq_fail(err, LQ_ENOMEM, "out of memory");
    if (!st) st = arch_config_parse(&s->config, c.j, NULL, err);
    s->has_config = !st;
    if (!st) st = js_canonical(&text, c.j, err);
    if (!st) st = add_blob(s, "config.json", &text, err);
    free(text.data);
    cJSON_Delete(c.j);
    if (!st || need || st == LQ_ENOMEM) return st;
    return src_note(s, err, "%.200s", err ? err->msg : "the model is not understood");
}

/* ---- tensors ---- */
typedef struct {
    ggml_type type;
    const uint8_t *data;
    int64_t heads; /* rows are turned within each of them; 0: as they are */
} stored;

static void fill(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const stored *p = from;
    if (t->N == 1 && p->heads) { /* a bias */
        const size_t e = gguf_row_bytes(p->type, 1);
        for (int64_t k = 0; k < t->K; k++)
            memcpy((uint8_t *)w[QT_CODES] + (size_t)k * e,
                   p->data + (size_t)gguf_stored_row(k, t->K, p->heads) * e, e);
        return;
    }
    const size_t row = gguf_row_bytes(p->type, t->K);
    for (int64_t n = 0; n < t->N; n++)
        gguf_unpack_row(w, t, n, p->type,
                        p->data + (size_t)gguf_stored_row(n, t->N, p->heads) * row);
}

/* "blk.3.attn_q.weight" as "model.layers.3.self_attn.q_proj.weight"; unknown names stay. */
static const char *hf_name(src_source *s, const char *gguf, int *heads)
{
    char out[512];
    long layer = -1;
    const char *p = gguf;
    *heads = 0;
    if (strncmp(p, "blk.", 4) == 0) {
        char *end;
        layer = strtol(p + 4, &end, 10);
        if (end == p + 4 || *end != '.' || layer < 0) return gguf;
        p = end + 1;
    }
    const char *dot = strrchr(p, '.');
    for (size_t i = 0; dot && i < GGUF_N_NAMES; i++) {
        const size_t n = strlen(gguf_names[i].gguf);
        const bool top =
            strncmp(gguf_names[i].hf, "model.", 6) == 0 || strcmp(gguf_names[i].hf, "lm_head") == 0;
        if ((size_t)(dot - p) != n || strncmp(p, gguf_names[i].gguf, n) != 0 || top != (layer < 0))
            continue;
        *heads = gguf_names[i].heads;
        if (top)
            snprintf(out, sizeof out, "%s%s", gguf_names[i].hf, dot);
        else
            snprintf(out, sizeof out, "model.layers.%ld.%s%s", layer, gguf_names[i].hf, dot);
        return lq_push_str(&s->arena, out, strlen(out));
    }
    return gguf;
}

static lq_status make_tensor(src_source *s, src_tensor *t, const gguf_tensor *g, bool turned,
                             lq_err *err)
{
    int which;
    bool grows;
    int64_t heads = 0;
    const char *name = hf_name(s, g->name, &which);
    if (!name) return lq_fail(err, LQ_ENOMEM, "out of memory");
    const int64_t K = g->shape[g->n_dims - 1], N = (int64_t)(g->bytes / gguf_row_bytes(g->type, K));
    if (turned && which && s->has_config) {
        heads = which == 1 ? s->config.heads : s->config.kv_heads;
        const int64_t rows = g->n_dims == 1 ? K : N;
        if (rows % heads || rows / heads % 2)
            return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected rows of %lld heads", g->name,
                           (long long)heads);
    }
    qt_tensor q = { .scheme = gguf_scheme(g->type, &grows), .N = N, .K = K };
    if (q.scheme.kind == QT_DENSE && !heads)
        return src_fill_plain(t, name, q.scheme.dtype, g->n_dims, g->shape, g->data, g->bytes, err);
    *t = (src_tensor){ .name = name, .n_dims = g->n_dims, .raw_dtype = LQ_U8, .t = q };
    if (q.scheme.kind == QT_DENSE) t->raw_dtype = q.scheme.dtype;
    memcpy(t->shape, g->shape, sizeof t->shape);
    stored *from = lq_push(&s->arena, sizeof *from);
    if (!from) return lq_fail(err, LQ_ENOMEM, "out of memory");
    *from = (stored){ g->type, g->data, heads };
    lq_status st = src_make(s, t, fill, from, err);
    if (!st && grows)
        st = src_note(s, err,
                      "%s blocks are expanded, without loss, to %d-bit codes with a scale "
                      "for %d inputs",
                      gguf_type_text(g->type), q.scheme.bits, (int)q.scheme.group);
    return st;
}

static lq_status read_tensors(src_source *s, bool turned, lq_err *err)
{
    const gguf_file *f = &s->gguf;
    s->tensors = lq_push(&s->arena, (f->n + 1) * sizeof *s->tensors);
    if (!s->tensors) return lq_fail(err, LQ_ENOMEM, "out of memory");
    lq_status st = LQ_OK;
    for (size_t i = 0; i < f->n && !st; i++) {
        if (s->has_config && strcmp(f->tensors[i].name, "rope_freqs.weight") == 0) continue;
        st = make_tensor(s, &s->tensors[s->n_tensors], &f->tensors[i], turned, err);
        if (!st) s->n_tensors++;
    }
    if (st) return st;
    if (s->n_tensors) qsort(s->tensors, s->n_tensors, sizeof *s->tensors, src_by_name);
    for (size_t i = 1; i < s->n_tensors; i++)
        if (strcmp(s->tensors[i - 1].name, s->tensors[i].name) == 0)
            return lq_fail(err, LQ_EFORMAT, "tensor '%.100s' stands twice", s->tensors[i].name);
    return src_make_room(s, err);
}

lq_status src_gguf_read(src_source *s, const src_opts *o, lq_err *err)
{
    enum { MAX_BLOBS = 3 };
    const char *arch = "";
    int64_t parts = 1;
    size_t i = 0;
    s->format = "gguf";
    s->blobs = lq_push(&s->arena, MAX_BLOBS * sizeof *s->blobs);
    if (!s->blobs) return lq_fail(err, LQ_ENOMEM, "out of memory");
    gguf_str(&s->gguf, "general.architecture", &arch);
    gguf_int(&s->gguf, "split.count", &parts);
    if (parts > 1)
        return lq_fail(err, LQ_EUNSUPPORTED, "split.count: expected one file, found one of %lld",
                       (long long)parts);
    while (i < GGUF_N_ARCHS && strcmp(gguf_archs[i].gguf, arch) != 0)
        i++;
    lq_status st = LQ_OK;
    if (i < GGUF_N_ARCHS)
        st = read_config(s, i, o->need_config, err);
    else if (o->need_config)
        st = lq_fail(err, LQ_EUNSUPPORTED,
                     "general.architecture: expected llama, qwen2 or qwen3, found \"%.40s\"", arch);
    if (!st) st = read_text(s, err);
    if (!st && !o->no_tensors) st = read_tensors(s, i < GGUF_N_ARCHS && gguf_archs[i].turned, err);
    return st;
}

lq_status src_gguf_open(src_source *s, const src_opts *o, lq_err *err)
{
    lq_status st = gguf_open(&s->gguf, s->path, err);
    if (!st) st = src_stamp_file(s, s->path, err);
    if (st) return st;
    st = src_gguf_read(s, o, err);
    return st ? lq_wrap(err, st, "%s", s->path) : LQ_OK;
}
