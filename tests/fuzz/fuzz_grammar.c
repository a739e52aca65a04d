/* tests/fuzz/fuzz_grammar.c - any bytes as a grammar of any kind, and what follows a NUL as a text:
 * no crash, masks that agree with the matcher, and no place without a way on. The first byte is the
 * kind: '0' GBNF or Lark, '1' regular expression, '2' choices, '3' any JSON, '4' schema, '5' tree, '6' Lark. */
#include "runtime/grammar/grammar.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void follow(grammar *g, const uint8_t *s, size_t n)
{
    gr_matcher *m = NULL;
    uint32_t mask[8];
    bool ok = true;
    if (gr_matcher_new(&m, g, NULL)) return;
    for (size_t i = 0; i < n && i < 64 && ok; i++) {
        if (gr_mask(m, mask, NULL)) break;
        uint32_t any = 0;
        for (int w = 0; w < 8; w++)
            any |= mask[w];
        if (!any != gr_must_end(m)) abort();
        bool offered = mask[s[i] >> 5] >> (s[i] & 31) & 1;
        if (gr_accept(m, s + i, 1, &ok, NULL)) break;
        if (offered != ok) abort();
        if (ok && i % 3 == 0 && (!gr_rollback(m, 1) || gr_accept(m, s + i, 1, &ok, NULL) || !ok))
            abort();
    }
    gr_matcher_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static gr_vocab *v; /* of all bytes */
    if (!v) {
        uint8_t bytes[256];
        size_t off[257];
        for (size_t i = 0; i < 257; i++) {
            off[i] = i;
            if (i < 256) bytes[i] = (uint8_t)i;
        }
        if (gr_vocab_of(&v, bytes, off, 256, NULL)) abort();
    }
    if (n < 1) return 0;
    const uint8_t *text = data + 1, *end = memchr(text, 0, n - 1);
    size_t n_text = end ? (size_t)(end - text) : n - 1;
    char *copy = malloc(n_text + 1); /* as callers give it: NUL-terminated */
    if (!copy) return 0;
    memcpy(copy, text, n_text);
    copy[n_text] = 0;
    gr_spec spec = { .kind = (gr_kind)(data[0] % 8 % GR_N_KINDS),
                     .text = copy,
                     .n = n_text,
                     .compact = data[0] & 32,
                     .any_properties = data[0] & 64 };
    grammar *g = NULL;
    if (!gr_compile(&g, &spec, v, NULL)) {
        follow(g, end ? end + 1 : text, end ? n - n_text - 2 : n_text);
        gr_unref(g);
    }
    free(copy);
    return 0;
}
