/* formats/gguf/gguf_spm.c - SentencePiece's tokens in a GGUF file's metadata as a tokenizer.model.
 *
 * GGUF keeps the pieces with their scores and SentencePiece's own types, so the protobuf is written
 * back: ModelProto { pieces = 1 { piece = 1, score = 2, type = 3 }, trainer_spec = 2 { model_type =
 * 3, byte_fallback = 35 }, normalizer_spec = 3 { add_dummy_prefix = 3, remove_extra_whitespaces =
 * 4, escape_whitespaces = 5 } }. Source: sentencepiece's src/sentencepiece_model.proto. */
#include "formats/gguf/gguf_tok.h"

#include "base/json.h"

#include <stdlib.h>

enum { VARINT = 0, LENGTH = 2, FIXED32 = 5 }; /* wire types */
enum { BPE = 2, BYTE = 6 };

static void put_varint(lq_buf *b, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        lq_buf_add(b, &(char){ (char)((v & 0x7f) | 0x80) }, 1);
    lq_buf_add(b, &(char){ (char)v }, 1);
}

static void put_key(lq_buf *b, unsigned field, unsigned wire) { put_varint(b, field << 3 | wire); }

static void put_number(lq_buf *b, unsigned field, uint64_t v)
{
    put_key(b, field, VARINT);
    put_varint(b, v);
}

static void put_message(lq_buf *b, unsigned field, const lq_buf *m)
{
    put_key(b, field, LENGTH);
    put_varint(b, m->n);
    lq_buf_add(b, m->p ? m->p : "", m->n);
    b->oom = b->oom || m->oom;
}

/* An array of one number of this type for each token; NULL: there is none. */
static const gguf_kv *array_of(const gguf_file *f, const char *key, gguf_type type, uint64_t n)
{
    const gguf_kv *kv = gguf_get(f, key);
    return kv && kv->array && kv->type == type && kv->n == n ? kv : NULL;
}

bool gguf_is_sentencepiece(gguf_file *f)
{
    const char *model = "";
    return gguf_str(f, "tokenizer.ggml.model", &model) && strcmp(model, "llama") == 0;
}

lq_status gguf_sentencepiece(lq_buf *b, gguf_file *f, const char **why, lq_err *err)
{
    const gguf_kv *tokens = gguf_get(f, "tokenizer.ggml.tokens");
    if (tokens && (!tokens->array || tokens->type != GGUF_STRING)) tokens = NULL;
    const uint64_t n = tokens ? tokens->n : 0;
    const gguf_kv *scores = array_of(f, "tokenizer.ggml.scores", GGUF_F32, n);
    const gguf_kv *types = array_of(f, "tokenizer.ggml.token_type", GGUF_I32, n);
    *why = !n        ? "it has no tokens"
           : !scores ? "it has no score for each token"
           : !types  ? "it has no type for each token"
                     : NULL;
    if (*why) return LQ_OK;
    bool bytes = false, prefix = true;
    lq_buf m = { 0 };
    const uint8_t *at = tokens->data;
    for (uint64_t i = 0; i < n; i++) {
        const gguf_text t = gguf_next(&at);
        const int64_t type = gguf_int_at(types, i);
        bytes = bytes || type == BYTE;
        m.n = 0;
        put_key(&m, 1, LENGTH);
        put_varint(&m, t.n);
        lq_buf_add(&m, t.s, t.n);
        put_key(&m, 2, FIXED32);
        lq_buf_add(&m, (const char *)scores->data + 4 * i, 4);
        put_number(&m, 3, (uint64_t)type);
        put_message(b, 1, &m);
    }
    m.n = 0;
    put_number(&m, 3, BPE);
    put_number(&m, 35, bytes);
    put_message(b, 2, &m);
    gguf_bool(f, "tokenizer.ggml.add_space_prefix", &prefix);
    m.n = 0;
    put_number(&m, 3, prefix);
    put_number(&m, 4, 0);
    put_number(&m, 5, 1);
    put_message(b, 3, &m);
    free(m.p);
    return b->oom ? lq_fail(err, LQ_ENOMEM, "out of memory") : LQ_OK;
}
