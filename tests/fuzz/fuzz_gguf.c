/* tests/fuzz/fuzz_gguf.c - any bytes as a GGUF file. What is taken can be read to the last weight,
 * and its tokenizer is JSON, or SentencePiece's, which compiles or says why not. */
#include "base/json.h"
#include "formats/source/source_impl.h"
#include "runtime/tokenizer/tok.h"
#include "runtime/tokenizer/tok_files.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_all(const src_source *s)
{
    for (size_t i = 0; i < s->n_tensors; i++) {
        const src_tensor *t = &s->tensors[i];
        qt_tensor q;
        if (!t->plain) continue;
        src_load(&q, s, t);
        if (t->made && qt_check_view(&q, NULL)) abort();
        float *row = malloc((size_t)q.K * sizeof *row);
        for (int64_t k = 0; row && k < q.N; k++)
            qt_dequant(row, &q, k, k + 1);
        free(row);
        src_unload(s, t);
    }
    for (size_t i = 0; i < s->n_blobs; i++) {
        cJSON *j = NULL;
        if (strcmp(s->blobs[i].name, "tokenizer.model") == 0) {
            uint8_t *blob = NULL;
            size_t bytes;
            tok_compile_source(&blob, &bytes, s, NULL);
            free(blob);
            continue;
        }
        if (js_parse(&j, (const char *)s->blobs[i].data, s->blobs[i].bytes, 1 << 26, 0, NULL))
            abort();
        cJSON_Delete(j);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1); /* exact, so that reading past the end is seen */
    src_source *s = calloc(1, sizeof *s);
    lq_err err;
    if (!copy || !s) abort();
    memcpy(copy, data, n);
    s->path = strdup("m");
    const src_opts o = { .need_config = n % 2 };
    if (!gguf_open_bytes(&s->gguf, copy, n, NULL) && !src_gguf_read(s, &o, &err)) read_all(s);
    src_close(s);
    free(copy);
    return 0;
}
