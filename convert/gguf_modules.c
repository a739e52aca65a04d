/* convert/gguf_modules.c - what sentence-transformers' files say of a model's vectors, in a GGUF file: how a
 * text's rows become one, and for EmbeddingGemma the two matrices after that. */
#include "convert/gguf_meta.h"
#include "convert/report.h"
#include "formats/hf/safetensors.h"

#include <stdio.h>

/* As llama.cpp numbers them. */
static const struct {
    const char *flag, *word;
    int type;
} modes[] = { { "pooling_mode_mean_tokens", "mean", 1 },
              { "pooling_mode_cls_token", "cls", 2 },
              { "pooling_mode_lasttoken", "lasttoken", 3 } };

static const src_blob *find_blob(const src_source *src, const char *folder, const char *file)
{
    char name[128];
    snprintf(name, sizeof name, "%.80s%s%s", folder, *folder ? "." : "", file);
    return src_find_blob(src, name);
}

static cJSON *read_json(const src_source *src, const char *folder, const char *file)
{
    enum { MOST = 1 << 20 };
    cJSON *j = NULL;
    const src_blob *b = find_blob(src, folder, file);
    if (b && js_parse(&j, (const char *)b->data, b->bytes, MOST, 0, NULL)) return NULL;
    return j;
}

/* The last part of "sentence_transformers.models.Pooling". */
static const char *kind_of(const cJSON *module)
{
    const char *type = cJSON_GetStringValue(js_get(module, "type"));
    const char *dot = type ? strrchr(type, '.') : NULL;
    return dot ? dot + 1 : type ? type : "";
}

static const char *path_of(const cJSON *module)
{
    const char *path = cJSON_GetStringValue(js_get(module, "path"));
    return path ? path : "";
}

/* ---- pooling ---- */
static int type_of(const cJSON *pooling)
{
    const char *word = cJSON_GetStringValue(js_get(pooling, "pooling_mode"));
    for (size_t i = 0; i < LQ_COUNT(modes); i++)
        if (word ? strcmp(word, modes[i].word) == 0 : cJSON_IsTrue(js_get(pooling, modes[i].flag)))
            return modes[i].type;
    return 0;
}

static void put_pooling(gguf_pairs *p, const gguf_arch *a, const src_source *src,
                        const cJSON *module, conv_report *r)
{
    char k[96];
    cJSON *pooling = read_json(src, path_of(module), "config.json");
    const int mode = type_of(pooling);
    cJSON_Delete(pooling);
    snprintf(k, sizeof k, "%s.pooling_type", a->gguf);
    if (mode)
        gguf_pair_int(p, k, mode);
    else
        conv_note(r, "%.60s: GGUF has no place for its pooling_mode, only for %s, %s and %s",
                  path_of(module), modes[0].word, modes[1].word, modes[2].word);
}

/* ---- matrices ---- */
/* llama.cpp multiplies; a bias or a function has no place. */
static bool is_plain(const cJSON *dense)
{
    const char *act = cJSON_GetStringValue(js_get(dense, "activation_function"));
    const char *dot = act ? strrchr(act, '.') : NULL;
    return cJSON_IsFalse(js_get(dense, "bias")) && dot && strcmp(dot, ".Identity") == 0;
}

static bool read_dense(src_tensor *out, const src_source *src, const cJSON *module)
{
    lq_err err;
    st_file f;
    cJSON *j = read_json(src, path_of(module), "config.json");
    const src_blob *b = find_blob(src, path_of(module), "model.safetensors");
    bool ok = b && is_plain(j) && !st_open_bytes(&f, b->data, b->bytes, &err);
    cJSON_Delete(j);
    if (!ok) return false;
    const st_tensor *t = st_find(&f, "linear.weight");
    ok = t && t->n_dims == 2 && lq_dtype_is_float(t->dtype);
    if (ok) {
        *out = (src_tensor){ .name = path_of(module), .n_dims = 2, .plain = true };
        memcpy(out->shape, t->shape, 2 * sizeof *out->shape);
        out->raw_dtype = t->dtype;
        out->t = (qt_tensor){ .N = t->shape[0], .K = t->shape[1] };
        out->t.scheme = (qt_scheme){ .kind = QT_DENSE, .dtype = t->dtype };
        out->t.plane[QT_CODES] =
            (qt_span){ t->data, (size_t)(t->shape[0] * t->shape[1]) * lq_dtype_bytes(t->dtype) };
    }
    st_close(&f);
    return ok;
}

int gguf_dense(src_tensor out[2], const src_source *src, const gguf_arch *a)
{
    cJSON *modules = read_json(src, "", "modules.json");
    const int64_t hidden = src_config(src)->hidden;
    int n = 0;
    bool ok = a->both_ways;
    for (const cJSON *m = modules ? modules->child : NULL; m && ok; m = m->next) {
        if (strcmp(kind_of(m), "Dense") != 0) continue;
        ok = n < 2 && read_dense(&out[n], src, m);
        n++;
    }
    cJSON_Delete(modules);
    ok = ok && n == 2 && out[0].t.K == hidden && out[0].t.N == out[1].t.K && out[1].t.N == hidden;
    return ok ? 2 : 0;
}

void gguf_put_modules(gguf_pairs *p, const gguf_arch *a, const src_source *src, conv_report *r)
{
    char k[96];
    src_tensor dense[2];
    const int n = gguf_dense(dense, src, a);
    const bool scores = src_config(src)->head == HEAD_LABELS; /* of which no vector is made */
    cJSON *modules = scores ? NULL : read_json(src, "", "modules.json");
    for (const cJSON *m = modules ? modules->child : NULL; m; m = m->next) {
        if (strcmp(kind_of(m), "Pooling") == 0) put_pooling(p, a, src, m, r);
        if (strcmp(kind_of(m), "Dense") == 0 && !n)
            conv_note(r, "%.60s is left out: vectors of the file are those before it", path_of(m));
    }
    for (int i = 0; i < n; i++) {
        snprintf(k, sizeof k, "%s.dense_%d_feat_in", a->gguf, i + 2);
        gguf_pair_int(p, k, dense[i].t.K);
        snprintf(k, sizeof k, "%s.dense_%d_feat_out", a->gguf, i + 2);
        gguf_pair_int(p, k, dense[i].t.N);
    }
    cJSON_Delete(modules);
}
