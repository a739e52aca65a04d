/* formats/source/source_gguf_modules.c - how a GGUF file's model makes one vector of a text, as
 * sentence-transformers' files say it: pooling_type, and the two matrices of EmbeddingGemma after it. */
#include "formats/source/source_impl.h"

#include "base/json.h"
#include "formats/gguf/gguf_blocks.h"
#include "formats/source/source_gguf_tensors.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const dense[] = { "dense_2.weight", "dense_3.weight" };
enum { FIRST = 2 }; /* number of the first in modules.json */

bool src_gguf_is_module(const char *tensor)
{
    for (size_t i = 0; i < LQ_COUNT(dense); i++)
        if (strcmp(dense[i], tensor) == 0) return true;
    return false;
}

/* A blob of the buffer's bytes, which is empty then. */
static lq_status add(src_source *s, const char *name, lq_buf *b, lq_err *err)
{
    char *copy = b->oom ? NULL : lq_push(&s->arena, b->n + 1);
    const char *own = lq_push_str(&s->arena, name, strlen(name));
    if (!copy || !own) return lq_fail(err, LQ_ENOMEM, "out of memory");
    memcpy(copy, b->p, b->n);
    s->blobs[s->n_blobs++] = (src_blob){ own, (const uint8_t *)copy, b->n };
    b->n = 0;
    return LQ_OK;
}

/* A matrix of any type as f32. */
static lq_status put_floats(lq_buf *b, const gguf_tensor *t, lq_err *err)
{
    const int64_t N = t->shape[0], K = t->shape[1];
    const qt_scheme scheme = gguf_scheme(t->type);
    const size_t row = gguf_row_bytes(t->type, K);
    float *y = malloc((size_t)K * sizeof *y);
    lq_status st = y ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
    for (int64_t n = 0; n < N && !st; n++) {
        void *w[QT_N_PLANES];
        qt_tensor q;
        lq_arena a = { 0 };
        st = qt_alloc(&q, w, &scheme, 1, K, &a, err);
        if (!st && scheme.kind == QT_DENSE)
            lq_to_f32(y, t->data + (size_t)n * row, scheme.dtype, (size_t)K);
        else if (!st)
            gguf_unpack_row(w, &q, 0, t->type, t->data + (size_t)n * row), qt_dequant(y, &q, 0, 1);
        if (!st) lq_buf_add(b, y, (size_t)K * sizeof *y);
        lq_arena_free(&a);
    }
    free(y);
    return st;
}

/* Module `number`, a matrix without bias or function: its settings and weights. */
static lq_status add_dense(src_source *s, const gguf_tensor *t, int number, lq_err *err)
{
    char text[256], name[64];
    lq_buf b = { 0 };
    if (t->type == GGML_I32)
        return lq_fail(err, LQ_EUNSUPPORTED, "tensor '%s': expected weights, found I32", t->name);
    if (t->n_dims != 2) return lq_fail(err, LQ_ESHAPE, "tensor '%s': expected a matrix", t->name);
    const long long N = (long long)t->shape[0], K = (long long)t->shape[1];
    snprintf(text, sizeof text,
             "{\"in_features\":%lld,\"out_features\":%lld,\"bias\":false,"
             "\"activation_function\":\"torch.nn.modules.linear.Identity\"}",
             K, N);
    lq_buf_puts(&b, text);
    snprintf(name, sizeof name, "%d_Dense.config.json", number);
    lq_status st = add(s, name, &b, err);
    const int n = snprintf(text, sizeof text,
                           "{\"linear.weight\":{\"dtype\":\"F32\",\"shape\":[%lld,%lld],"
                           "\"data_offsets\":[0,%lld]}}",
                           N, K, N * K * 4);
    const uint64_t head = (uint64_t)lq_round_up((size_t)n, 8);
    for (int i = 0; i < 8; i++)
        lq_buf_add(&b, &(uint8_t){ (uint8_t)(head >> 8 * i) }, 1);
    lq_buf_puts(&b, text);
    while (b.n < 8 + head && !b.oom)
        lq_buf_puts(&b, " ");
    if (!st) st = put_floats(&b, t, err);
    snprintf(name, sizeof name, "%d_Dense.model.safetensors", number);
    if (!st) st = add(s, name, &b, err);
    free(b.p);
    return st;
}

static void put_module(lq_buf *b, int number, const char *type)
{
    char text[160], path[40] = "";
    if (number) snprintf(path, sizeof path, "%d_%s", number, type);
    snprintf(text, sizeof text,
             "%s{\"idx\":%d,\"name\":\"%d\",\"path\":\"%s\",\"type\":\"sentence_transformers."
             "models.%s\"}",
             number ? "," : "[", number, number, path, type);
    lq_buf_puts(b, text);
}

lq_status src_gguf_modules(src_source *s, const gguf_arch *row, lq_err *err)
{
    static const char *const flags[] = { NULL, "mean_tokens", "cls_token", "lasttoken" };
    char key[96], text[128];
    int64_t type = 0;
    int n = FIRST;
    lq_buf b = { 0 };
    snprintf(key, sizeof key, "%s.pooling_type", row->gguf);
    if (!s->has_config || !gguf_int(&s->gguf, key, &type) || type < 1 ||
        type >= (int64_t)LQ_COUNT(flags))
        return LQ_OK;
    snprintf(text, sizeof text, "{\"word_embedding_dimension\":%lld,\"pooling_mode_%s\":true}",
             (long long)s->config.hidden, flags[type]);
    lq_buf_puts(&b, text);
    lq_status st = add(s, "1_Pooling.config.json", &b, err);
    put_module(&b, 0, "Transformer");
    put_module(&b, 1, "Pooling");
    for (size_t i = 0; i < LQ_COUNT(dense) && !st; i++) {
        const gguf_tensor *t = gguf_find(&s->gguf, dense[i]);
        if (!t) continue;
        st = add_dense(s, t, n, err);
        put_module(&b, n++, "Dense");
    }
    put_module(&b, n, "Normalize");
    lq_buf_puts(&b, "]");
    if (!st) st = add(s, "modules.json", &b, err);
    free(b.p);
    return st;
}
