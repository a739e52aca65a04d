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
    const gguf_arch *row;
    const char *arch; /* row->gguf */
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

/* What experts need, and what only some say. */
static lq_status put_own(config *c, lq_err *err)
{
    static const struct {
        const char *type, *key, *from;
    } own[] = { { "mixtral", "num_local_experts", "expert_count" },
                { "mixtral", "num_experts_per_tok", "expert_used_count" },
                { "qwen3_moe", "num_experts", "expert_count" },
                { "qwen3_moe", "num_experts_per_tok", "expert_used_count" },
                { "qwen3_moe", "moe_intermediate_size", "expert_feed_forward_length" },
                { "phi3", "sliding_window", "attention.sliding_window" } };
    static const char *const biased[] = { "llama", "mistral", "qwen3", "qwen3_moe" };
    const char *type = c->row->type;
    char k[128];
    int64_t rotated = 0, heads = 0, hidden = 0;
    for (size_t i = 0; i < LQ_COUNT(own); i++)
        if (strcmp(own[i].type, type) == 0) put_int(c, own[i].key, own[i].from);
    for (size_t i = 0; i < LQ_COUNT(biased); i++)
        if (strcmp(biased[i], type) == 0)
            c->ok = c->ok && cJSON_AddBoolToObject(c->j, "attention_bias",
                                                   gguf_find(c->f, "blk.0.attn_q.bias") != NULL);
    if (strcmp(type, "qwen3_moe") == 0) /* as all of them are */
        c->ok = c->ok && cJSON_AddBoolToObject(c->j, "norm_topk_prob", true);
    if (strcmp(type, "phi3") != 0) return LQ_OK;
    gguf_int(c->f, meta_key(k, c, "rope.dimension_count"), &rotated);
    gguf_int(c->f, meta_key(k, c, "attention.head_count"), &heads);
    gguf_int(c->f, meta_key(k, c, "embedding_length"), &hidden);
    if (rotated > 0 && heads > 0 && hidden > 0 && hidden / heads != rotated)
        c->ok = c->ok && cJSON_AddNumberToObject(c->j, "partial_rotary_factor",
                                                 (double)rotated / (double)(hidden / heads));
    if (gguf_find(c->f, "rope_factors_long.weight"))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "rope_factors_long.weight: Phi-3's long context is not read from GGUF");
    return LQ_OK;
}

static lq_status make_config(config *c, lq_err *err)
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
    const gguf_tensor *embed = gguf_find(c->f, "token_embd.weight");
    if (!embed || embed->n_dims != 2)
        return lq_fail(err, LQ_EFORMAT, "token_embd.weight: expected a matrix, found none");
    cJSON *list = cJSON_AddArrayToObject(c->j, "architectures");
    c->ok = cJSON_AddItemToArray(list, cJSON_CreateString(c->row->hf)) &&
            cJSON_AddStringToObject(c->j, "model_type", c->row->type) &&
            cJSON_AddStringToObject(c->j, "hidden_act", "silu") &&
            cJSON_AddNumberToObject(c->j, "vocab_size", (double)embed->shape[0]) &&
            cJSON_AddBoolToObject(c->j, "tie_word_embeddings", !gguf_find(c->f, "output.weight")) &&
            cJSON_AddStringToObject(c->j, "torch_dtype", "float32");
    for (size_t i = 0; i < LQ_COUNT(ints); i++)
        put_int(c, ints[i].key, ints[i].from);
    put_float(c, "rms_norm_eps", "attention.layer_norm_rms_epsilon");
    put_float(c, "rope_theta", "rope.freq_base");
    put_token(c, "bos_token_id", "tokenizer.ggml.bos_token_id");
    put_token(c, "eos_token_id", "tokenizer.ggml.eos_token_id");
    lq_status st = put_own(c, err);
    return st ? st : put_scaling(c, err);
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
    const bool pieces = gguf_is_sentencepiece(&s->gguf);
    lq_status st = pieces ? gguf_sentencepiece(&b, &s->gguf, &why, err)
                          : gguf_tokenizer(&b, &s->gguf, &why, err);
    if (!st && why) st = src_note(s, err, "the tokenizer of this GGUF file is not used: %s", why);
    if (!st && !why) st = add_blob(s, pieces ? "tokenizer.model" : "tokenizer.json", &b, err);
    b.n = 0;
    if (!st) st = gguf_tokenizer_config(&b, &s->gguf, err);
    if (!st) st = add_blob(s, "tokenizer_config.json", &b, err);
    free(b.data);
    return st;
}

static lq_status read_config(src_source *s, const gguf_arch *row, bool need, lq_err *err)
{
    config c = { .f = &s->gguf, .row = row, .arch = row->gguf, .j = cJSON_CreateObject() };
    js_buf text = { 0 };
    lq_status st = make_config(&c, err);
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

/* "blk.3.attn_q.weight": its row, the layer (-1: none) and what stands behind the name; NULL:
 * unknown. */
static const gguf_name *find_name(const gguf_arch *row, const char *gguf, long *layer,
                                  const char **ending)
{
    const char *p = gguf;
    *layer = -1;
    if (strncmp(p, "blk.", 4) == 0) {
        char *end;
        *layer = strtol(p + 4, &end, 10);
        if (end == p + 4 || *end != '.' || *layer < 0) return NULL;
        p = end + 1;
    }
    *ending = strrchr(p, '.');
    return *ending ? gguf_name_find(row ? row->type : "", p, (size_t)(*ending - p), *layer >= 0)
                   : NULL;
}

/* "model.layers.3.self_attn.q_proj.weight"; unknown names stay. */
static const char *hf_name(src_source *s, const gguf_tensor *g, const gguf_name *n, long layer,
                           const char *ending, int64_t expert)
{
    char out[512], which[24] = "";
    if (!n) return g->name;
    const char *mark = n->stacked ? strchr(n->hf, '%') : NULL;
    const int head = mark ? (int)(mark - n->hf) : (int)strlen(n->hf);
    if (mark) snprintf(which, sizeof which, "%lld", (long long)expert);
    const char *tail = mark ? mark + 2 : "";
    if (layer < 0)
        snprintf(out, sizeof out, "%s%s", n->hf, ending);
    else
        snprintf(out, sizeof out, "model.layers.%ld.%.*s%s%s%s", layer, head, n->hf, which, tail,
                 ending);
    return lq_push_str(&s->arena, out, strlen(out));
}

static lq_status make_tensor(src_source *s, src_tensor *t, const gguf_tensor *g, const char *name,
                             int which, lq_err *err)
{
    bool grows;
    int64_t heads = 0;
    if (!name) return lq_fail(err, LQ_ENOMEM, "out of memory");
    const int64_t K = g->shape[g->n_dims - 1], N = (int64_t)(g->bytes / gguf_row_bytes(g->type, K));
    if (which && s->has_config) {
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

/* One tensor of the file, or as many as it has experts. */
static lq_status make_all_of(src_source *s, const gguf_tensor *g, const gguf_arch *row, lq_err *err)
{
    long layer;
    const char *ending;
    const gguf_name *n = find_name(row, g->name, &layer, &ending);
    const bool stacked = n && n->stacked && g->n_dims == 3;
    const int64_t count = stacked ? g->shape[0] : 1;
    gguf_tensor one = *g;
    lq_status st = LQ_OK;
    if (stacked) {
        one.n_dims = 2;
        one.bytes = g->bytes / (size_t)count;
        memmove(one.shape, g->shape + 1, 2 * sizeof *one.shape);
    }
    for (int64_t e = 0; e < count && !st; e++) {
        const char *name =
            n && n->stacked && !stacked ? g->name : hf_name(s, g, n, layer, ending, e);
        one.data = g->data + (size_t)e * one.bytes;
        st = make_tensor(s, &s->tensors[s->n_tensors], &one, name,
                         row && row->turned && n ? n->heads : 0, err);
        if (!st) s->n_tensors++;
    }
    return st;
}

/* How many there will be. */
static lq_status make_place(src_source *s, lq_err *err)
{
    enum { MAX_EXPERTS = 65536 };
    const gguf_file *f = &s->gguf;
    size_t n = 1;
    for (size_t i = 0; i < f->n; i++) {
        const gguf_tensor *g = &f->tensors[i];
        if (g->n_dims == 3 && g->shape[0] > MAX_EXPERTS)
            return lq_fail(err, LQ_EUNSUPPORTED, "tensor '%.100s': expected at most %d experts",
                           g->name, MAX_EXPERTS);
        n += g->n_dims == 3 ? (size_t)g->shape[0] : 1;
    }
    s->tensors = lq_push(&s->arena, n * sizeof *s->tensors);
    return s->tensors ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
}

static lq_status read_tensors(src_source *s, const gguf_arch *row, lq_err *err)
{
    const gguf_file *f = &s->gguf;
    lq_status st = make_place(s, err);
    for (size_t i = 0; i < f->n && !st; i++) {
        if (s->has_config && strcmp(f->tensors[i].name, "rope_freqs.weight") == 0) continue;
        st = make_all_of(s, &f->tensors[i], row, err);
    }
    if (st) return st;
    if (s->n_tensors) qsort(s->tensors, s->n_tensors, sizeof *s->tensors, src_by_name);
    for (size_t i = 1; i < s->n_tensors; i++)
        if (strcmp(s->tensors[i - 1].name, s->tensors[i].name) == 0)
            return lq_fail(err, LQ_EFORMAT, "tensor '%.100s' stands twice", s->tensors[i].name);
    return src_make_room(s, err);
}

/* ---- the file, or files ---- */
static const gguf_arch *find_arch(const src_source *s, const char *arch)
{
    char k[128];
    int64_t experts = 0;
    snprintf(k, sizeof k, "%.40s.expert_count", arch);
    gguf_int(&s->gguf, k, &experts);
    for (size_t i = 0; i < GGUF_N_ARCHS; i++)
        if (strcmp(gguf_archs[i].gguf, arch) == 0 && gguf_archs[i].experts == (experts > 0))
            return &gguf_archs[i];
    return NULL;
}

static lq_status unknown_arch(const char *arch, lq_err *err)
{
    char names[200] = "";
    for (size_t i = 0, at = 0; i < GGUF_N_ARCHS; i++) {
        const gguf_arch *a = &gguf_archs[i];
        if (i && strcmp(a->gguf, a[-1].gguf) == 0) continue;
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", at ? ", " : "", a->gguf);
    }
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "general.architecture: expected one of %s (experts: llama, qwen3moe), found "
                   "\"%.40s\"",
                   names, arch);
}

lq_status src_gguf_read(src_source *s, const src_opts *o, lq_err *err)
{
    enum { MAX_BLOBS = 3 };
    const char *arch = "";
    int64_t parts = 1;
    s->format = "gguf";
    s->blobs = lq_push(&s->arena, MAX_BLOBS * sizeof *s->blobs);
    if (!s->blobs) return lq_fail(err, LQ_ENOMEM, "out of memory");
    gguf_str(&s->gguf, "general.architecture", &arch);
    gguf_int(&s->gguf, "split.count", &parts);
    if (parts > 1 && parts != (int64_t)s->n_splits + 1)
        return lq_fail(err, LQ_EUNSUPPORTED, "split.count: expected one file, found one of %lld",
                       (long long)parts);
    const gguf_arch *row = find_arch(s, arch);
    lq_status st = LQ_OK;
    if (row)
        st = read_config(s, row, o->need_config, err);
    else if (o->need_config)
        st = unknown_arch(arch, err);
    if (!st) st = read_text(s, err);
    if (!st && !o->no_tensors) st = read_tensors(s, row, err);
    return st;
}

/* "...-00001-of-00003.gguf": the name of another part of it. */
static lq_status split_path(char *out, size_t n, const char *first, int64_t i, int64_t parts,
                            lq_err *err)
{
    char begin[40], ending[40];
    snprintf(begin, sizeof begin, "-00001-of-%05lld.gguf", (long long)parts);
    snprintf(ending, sizeof ending, "-%05lld-of-%05lld.gguf", (long long)i + 1, (long long)parts);
    const size_t len = strlen(first), k = strlen(begin);
    if (len < k || strcmp(first + len - k, begin) != 0 || len >= n)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "split.count: expected the first of %lld files, named ...%s",
                       (long long)parts, begin);
    snprintf(out, n, "%.*s%s", (int)(len - k), first, ending);
    return LQ_OK;
}

static lq_status open_split(src_source *s, int64_t i, int64_t parts, lq_err *err)
{
    char path[4200];
    int64_t no = -1, count = -1;
    gguf_file *f = &s->splits[s->n_splits];
    lq_status st = split_path(path, sizeof path, s->path, i, parts, err);
    if (!st) st = gguf_open(f, path, err);
    if (st) return st;
    s->n_splits++;
    gguf_int(f, "split.no", &no);
    gguf_int(f, "split.count", &count);
    if (no != i || count != parts)
        return lq_fail(err, LQ_EFORMAT, "%s: expected part %lld of %lld, found %lld of %lld", path,
                       (long long)i, (long long)parts, (long long)no, (long long)count);
    return src_stamp_file(s, path, err);
}

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp(((const gguf_tensor *)a)->name, ((const gguf_tensor *)b)->name);
}

/* The tensors of all parts as if they were in the first. */
static lq_status join(src_source *s, lq_err *err)
{
    size_t n = s->gguf.n;
    int64_t want = -1;
    for (size_t i = 0; i < s->n_splits; i++)
        n += s->splits[i].n;
    if (gguf_int(&s->gguf, "split.tensors.count", &want) && want != (int64_t)n)
        return lq_fail(err, LQ_EFORMAT, "split.tensors.count: expected %lld tensors, found %zu",
                       (long long)want, n);
    gguf_tensor *all = lq_push(&s->arena, (n + 1) * sizeof *all);
    if (!all) return lq_fail(err, LQ_ENOMEM, "out of memory");
    memcpy(all, s->gguf.tensors, s->gguf.n * sizeof *all);
    size_t at = s->gguf.n;
    for (size_t i = 0; i < s->n_splits; i++) {
        if (s->splits[i].n) memcpy(all + at, s->splits[i].tensors, s->splits[i].n * sizeof *all);
        at += s->splits[i].n;
    }
    qsort(all, n, sizeof *all, by_tensor_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(all[i - 1].name, all[i].name) == 0)
            return lq_fail(err, LQ_EFORMAT, "tensor '%.100s' stands in two parts", all[i].name);
    s->gguf.tensors = all;
    s->gguf.n = n;
    return LQ_OK;
}

static lq_status open_splits(src_source *s, lq_err *err)
{
    enum { MAX_PARTS = 9999 };
    int64_t parts = 1, no = 0;
    gguf_int(&s->gguf, "split.count", &parts);
    gguf_int(&s->gguf, "split.no", &no);
    if (parts <= 1) return LQ_OK;
    if (no != 0 || parts > MAX_PARTS)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "split.no: expected the first of at most %d files, found no. %lld of %lld",
                       MAX_PARTS, (long long)no + 1, (long long)parts);
    s->splits = lq_push(&s->arena, (size_t)parts * sizeof *s->splits);
    if (!s->splits) return lq_fail(err, LQ_ENOMEM, "out of memory");
    lq_status st = LQ_OK;
    for (int64_t i = 1; i < parts && !st; i++)
        st = open_split(s, i, parts, err);
    return st ? st : join(s, err);
}

lq_status src_gguf_open(src_source *s, const src_opts *o, lq_err *err)
{
    lq_status st = gguf_open(&s->gguf, s->path, err);
    if (!st) st = src_stamp_file(s, s->path, err);
    if (st) return st;
    st = open_splits(s, err);
    if (!st) st = src_gguf_read(s, o, err);
    return st ? lq_wrap(err, st, "%s", s->path) : LQ_OK;
}
