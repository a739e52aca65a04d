/* runtime/engine/stages/dry_breakers.c - see dry_breakers.h. */
#include "runtime/engine/stages/dry_breakers.h"

#include <stdlib.h>

const char *const dry_usual[DRY_USUAL] = { "\n", ":", "\"", "*" };

/* Room for a token's bytes: longer ones are looked at to here. */
enum { TOKEN_ROOM = 4096 };

static void mark_tokens(dry_breakers *b, const tok_tokenizer *t, int32_t n_ids,
                        const char *const *texts, int n)
{
    uint8_t bytes[TOKEN_ROOM];
    for (int32_t id = 0; id < n_ids; id++) {
        size_t len = tok_token_bytes(t, id, bytes, sizeof bytes);
        len = len < sizeof bytes ? len : sizeof bytes;
        for (int i = 0; i < n; i++)
            if (texts[i][0] && memmem(bytes, len, texts[i], strlen(texts[i])))
                b->breaks[id >> 5] |= 1u << (id & 31);
    }
}

static lq_status add_run(dry_breakers *b, const tok_tokenizer *t, const char *text, lq_err *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    lq_status s = tok_encode(t, text, strlen(text), 0, &ids, &n, err);
    const size_t len = n < DRY_MAX_RUN ? n : DRY_MAX_RUN;
    if (!s && n > 1) {
        b->runs[b->n_runs] = (int32_t)len;
        memcpy(b->runs + b->n_runs + 1, ids + n - len, len * sizeof *ids);
        b->n_runs += 1 + (int)len;
    }
    free(ids);
    return s;
}

lq_status dry_breakers_make(dry_breakers *b, const tok_tokenizer *t, int64_t vocab,
                            const char *const *texts, int n, lq_err *err)
{
    const int32_t known = tok_vocab(t), n_ids = vocab < known ? (int32_t)vocab : known;
    *b = (dry_breakers){ 0 };
    b->breaks = calloc((size_t)(vocab + 31) / 32, sizeof *b->breaks);
    b->runs = calloc((size_t)(n + 1) * (DRY_MAX_RUN + 1), sizeof *b->runs);
    if (!b->breaks || !b->runs) return lq_fail(err, LQ_ENOMEM, "out of memory for breakers");
    mark_tokens(b, t, n_ids, texts, n);
    lq_status s = LQ_OK;
    for (int i = 0; i < n && !s; i++)
        if (texts[i][0]) s = add_run(b, t, texts[i], err);
    return s;
}

void dry_breakers_free(dry_breakers *b)
{
    free(b->breaks);
    free(b->runs);
    *b = (dry_breakers){ 0 };
}
