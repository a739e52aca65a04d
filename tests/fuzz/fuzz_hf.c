/* tests/fuzz/fuzz_hf.c - any bytes as a published quantized checkpoint: u16 length of the
 * quantization_config, that JSON, a safetensors file. What is taken can be read to the last weight.
 */
#include "formats/source/hf_quant.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static lq_status list(src_source *s)
{
    const st_file *f = &s->shards[0];
    s->tensors = lq_push(&s->arena, f->n * sizeof *s->tensors);
    lq_status st = s->tensors ? LQ_OK : LQ_ENOMEM;
    for (size_t i = 0; i < f->n && !st; i++) {
        const st_tensor *t = &f->tensors[i];
        st = src_fill_plain(&s->tensors[s->n_tensors++], t->name, t->dtype, t->n_dims, t->shape,
                            t->data, t->bytes, NULL);
    }
    return st;
}

static void read_all(const src_source *s)
{
    for (size_t i = 0; i < s->n_tensors; i++) {
        const src_tensor *t = &s->tensors[i];
        qt_tensor q;
        if (!t->plain) continue;
        src_load(&q, s, t);
        if (q.scheme.kind != QT_DENSE && qt_check_view(&q, NULL)) abort();
        float *row = malloc((size_t)q.K * sizeof *row);
        for (int64_t k = 0; row && k < q.N; k++)
            qt_dequant(row, &q, k, k + 1);
        free(row);
        src_unload(s, t);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2) return 0;
    const size_t config = data[0] | (size_t)data[1] << 8;
    if (config > n - 2) return 0;
    const size_t rest = n - 2 - config;
    uint8_t *copy = malloc(rest ? rest : 1); /* exact, so that reading past the end is seen */
    src_source *s = calloc(1, sizeof *s);
    if (!copy || !s) abort();
    memcpy(copy, data + 2 + config, rest);
    s->path = strdup("m");
    if (!js_parse(&s->quant, (const char *)data + 2, config, 1 << 16, JS_UNIQUE, NULL)) {
        s->shards = lq_push(&s->arena, sizeof *s->shards);
        if (s->shards && !st_open_bytes(&s->shards[0], copy, rest, NULL)) {
            s->n_shards = 1;
            if (!list(s) && cJSON_IsObject(s->quant) && !hf_quant_read(s, NULL)) read_all(s);
        }
    }
    src_close(s);
    free(copy);
    return 0;
}
