/* tests/fuzz/fuzz_tokenizer.c - the input's first byte says which door: a tokenizer.json to compile,
 * a compiled blob to open, a tokenizer.model or rank file, or text for the demo model's tokenizer. Whatever opens must encode and
 * decode; text through the demo tokenizer must stream to the same bytes as it decodes to. */
#include "runtime/tokenizer/tok.h"
#include "runtime/tokenizer/tok_files.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void use(const tok_tokenizer *t, const char *text, size_t n)
{
    int32_t *ids = NULL;
    size_t n_ids = 0, n_text = 0, n_streamed = 0;
    char *out = NULL;
    if (tok_encode(t, text, n, TOK_ADD_SPECIAL, &ids, &n_ids, NULL)) return;
    tok_stream *s = NULL;
    if (!tok_decode(t, ids, n_ids, false, &out, &n_text, NULL) &&
        !tok_stream_new(&s, t, false, NULL)) {
        const char *delta;
        size_t len;
        for (size_t i = 0; i <= n_ids; i++) {
            lq_status st = i < n_ids ? tok_stream_push(s, ids[i], &delta, &len, NULL)
                                     : tok_stream_flush(s, &delta, &len, NULL);
            if (st) abort();
            if (n_streamed + len > n_text || memcmp(out + n_streamed, delta, len) != 0) abort();
            n_streamed += len;
        }
        if (n_streamed != n_text) abort();
    }
    tok_stream_free(s);
    free(out);
    free(ids);
}

static tok_tokenizer *demo(void)
{
    static tok_tokenizer *t;
    if (!t && tok_open_file(&t, "models/novels-6m/tokenizer.json", NULL)) abort();
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1 || n > 1 << 16) return 0;
    const char *body = (const char *)data + 1;
    static const char text[] = "Hello  world\n \xec\x95\x88\xeb\x85\x95 123 <s>\xff";
    uint8_t *blob = NULL;
    size_t blob_bytes = 0;
    tok_tokenizer *t = NULL;
    n--;
    const src_blob file = { data[0] & 4 ? "cl100k_base.tiktoken" : "tokenizer.model",
                            (const uint8_t *)body, n };
    switch (data[0] % 4) {
    case 0:
        if (tok_compile(&blob, &blob_bytes, body, n, NULL)) break;
        /* a pattern that PCRE2 does not take is refused here, not by tok_compile */
        if (!tok_open(&t, blob, blob_bytes, NULL)) use(t, text, sizeof text - 1);
        break;
    case 1:
        blob = aligned_alloc(64, lq_round_up(n ? n : 1, 64));
        if (!blob) break;
        memcpy(blob, body, n);
        if (!tok_open(&t, blob, n, NULL)) use(t, text, sizeof text - 1);
        break;
    case 2:
        if (tok_compile_files(&blob, &blob_bytes, &file, 1, NULL)) break;
        if (!tok_open(&t, blob, blob_bytes, NULL)) use(t, text, sizeof text - 1);
        break;
    default:
        use(demo(), body, n);
    }
    tok_close(t);
    free(blob);
    return 0;
}
