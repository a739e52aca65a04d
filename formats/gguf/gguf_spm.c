/* formats/gguf/gguf_spm.c - SentencePiece's tokens in a GGUF file's metadata as a tokenizer.model.
 *
 * GGUF keeps the pieces with their scores and SentencePiece's own types, so the protobuf is written
 * back: ModelProto { pieces = 1 { piece = 1, score = 2, type = 3 }, trainer_spec = 2 { model_type =
 * 3, byte_fallback = 35 }, normalizer_spec = 3 { precompiled_charsmap = 2, add_dummy_prefix = 3,
 * remove_extra_whitespaces = 4, escape_whitespaces = 5 } }. Source: sentencepiece's src/sentencepiece_model.proto. */
#include "formats/gguf/gguf_tok.h"

#include "base/json.h"
#include "formats/gguf/gguf_ends.h"
#include "formats/hf/spm.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { VARINT = 0, LENGTH = 2, FIXED32 = 5 }; /* wire types */

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

/* The kind of model in SentencePiece's terms; 0: another tokenizer. */
static int model_type(gguf_file *f)
{
    const char *model = "";
    gguf_str(f, "tokenizer.ggml.model", &model);
    return strcmp(model, "llama") == 0 ? SPM_BPE : strcmp(model, "t5") == 0 ? SPM_UNIGRAM : 0;
}

bool gguf_is_sentencepiece(gguf_file *f) { return model_type(f) != 0; }

typedef struct {
    const gguf_kv *tokens, *scores, *types; /* types NULL: none */
    uint64_t unk;                           /* NONE: no piece is the unknown one */
    bool bytes;                             /* there are pieces of single bytes */
    bool apart;                             /* see gguf_is_apart */
} vocab;
#define NONE UINT64_MAX

static bool is_byte(gguf_text t) { return t.n == 6 && memcmp(t.s, "<0x", 3) == 0 && t.s[5] == '>'; }

static int64_t stored_type(const vocab *v, uint64_t i, gguf_text t)
{
    return v->types ? gguf_int_at(v->types, i) : is_byte(t) ? SPM_BYTE : SPM_NORMAL;
}

/* llama.cpp's converter calls <unk> CONTROL where tokenizer_config.json lists it as special, and
 * some files call padding UNKNOWN: the metadata's id decides, then the type, then the name. */
static void find_unk(vocab *v, const gguf_file *f)
{
    const uint8_t *at = v->tokens->data;
    uint64_t typed = NONE, named = NONE;
    int64_t id;
    v->unk = NONE;
    for (uint64_t i = 0; i < v->tokens->n; i++) {
        const gguf_text t = gguf_next(&at);
        const int64_t type = stored_type(v, i, t);
        v->bytes = v->bytes || type == SPM_BYTE;
        if (type == SPM_UNKNOWN && typed == NONE) typed = i;
        if (t.n == 5 && memcmp(t.s, "<unk>", 5) == 0 && named == NONE) named = i;
    }
    if (gguf_int(f, "tokenizer.ggml.unknown_token_id", &id) && id >= 0 &&
        (uint64_t)id < v->tokens->n)
        v->unk = (uint64_t)id;
    else
        v->unk = typed != NONE ? typed : named;
}

static const char space_sign[] = "\xE2\x96\x81"; /* U+2581 */

/* A user-defined piece with the sign for a space is found in no text that is not yet normalized:
 * llama.cpp makes it by merging, as transformers does of an added token that is spelled so. */
static bool has_sign(gguf_text t)
{
    for (size_t i = 0; i + sizeof space_sign - 1 <= t.n; i++)
        if (memcmp(t.s + i, space_sign, sizeof space_sign - 1) == 0) return true;
    return false;
}

static bool has_space(gguf_text t) { return memchr(t.s, ' ', t.n) != NULL || has_sign(t); }

/* Where a text begins with a space that it does not have. */
static bool parts_have_prefix(gguf_file *f)
{
    bool prefix = true;
    gguf_bool(f, "tokenizer.ggml.add_space_prefix", &prefix);
    return prefix && model_type(f) == SPM_BPE;
}

bool gguf_is_apart(gguf_file *f, gguf_text t, int64_t type)
{
    return type == SPM_USER_DEFINED && !has_space(t) && parts_have_prefix(f);
}

/* The type in a tokenizer.model, which has one unknown piece at most. */
static int64_t type_of(const vocab *v, uint64_t i, gguf_text t)
{
    const int64_t type = stored_type(v, i, t);
    if (i == v->unk) return SPM_UNKNOWN;
    if (gguf_is_end_name(t.s, t.n)) return SPM_CONTROL;
    if (type == SPM_USER_DEFINED && has_sign(t)) return SPM_NORMAL;
    if (type == SPM_USER_DEFINED && v->apart && !has_space(t)) return SPM_CONTROL;
    return type == SPM_UNKNOWN || type < SPM_NORMAL || type > SPM_BYTE ? SPM_UNUSED : type;
}

/* A user-defined piece has spaces in GGUF, where it is matched before text is normalized; in a
 * tokenizer.model it has U+2581. */
static void put_piece_text(lq_buf *b, gguf_text t, bool user_defined)
{
    size_t n = t.n;
    for (size_t i = 0; i < t.n && user_defined; i++)
        n += t.s[i] == ' ' ? sizeof space_sign - 2 : 0;
    put_varint(b, n);
    for (size_t i = 0; i < t.n; i++)
        if (user_defined && t.s[i] == ' ')
            lq_buf_add(b, space_sign, sizeof space_sign - 1);
        else
            lq_buf_add(b, t.s + i, 1);
}

static void put_pieces(lq_buf *b, lq_buf *m, const vocab *v)
{
    static const uint8_t zero[4]; /* what has no score in a tokenizer.model; -1000 or so in GGUF */
    const uint8_t *at = v->tokens->data;
    for (uint64_t i = 0; i < v->tokens->n; i++) {
        const gguf_text t = gguf_next(&at);
        const int64_t type = type_of(v, i, t);
        m->n = 0;
        put_key(m, 1, LENGTH);
        put_piece_text(m, t, type == SPM_USER_DEFINED);
        put_key(m, 2, FIXED32);
        lq_buf_add(m, type == SPM_NORMAL ? v->scores->data + 4 * i : zero, 4);
        put_number(m, 3, (uint64_t)type);
        put_message(b, 1, m);
    }
}

static void put_specs(lq_buf *b, lq_buf *m, gguf_file *f, const vocab *v)
{
    const gguf_kv *map = gguf_get(f, "tokenizer.ggml.precompiled_charsmap");
    bool prefix = true, squeeze = false;
    gguf_bool(f, "tokenizer.ggml.add_space_prefix", &prefix);
    gguf_bool(f, "tokenizer.ggml.remove_extra_whitespaces", &squeeze);
    m->n = 0;
    put_number(m, 3, (uint64_t)model_type(f));
    put_number(m, 35, v->bytes);
    put_message(b, 2, m);
    m->n = 0;
    if (map && map->array && (map->type == GGUF_U8 || map->type == GGUF_I8)) {
        put_key(m, 2, LENGTH);
        put_varint(m, map->n);
        lq_buf_add(m, (const char *)map->data, map->n);
    }
    put_number(m, 3, prefix);
    put_number(m, 4, squeeze);
    put_number(m, 5, 1);
    put_message(b, 3, m);
}

bool gguf_types_fit(const gguf_file *f, uint64_t tokens, gguf_reason *why)
{
    const char *key = "tokenizer.ggml.token_type";
    const gguf_kv *kv = gguf_get(f, key);
    if (!kv || gguf_integers(f, key, tokens)) return true;
    if (kv->array)
        snprintf(why->text, sizeof why->text,
                 "%s: expected an integer for each of %" PRIu64 " tokens, found %" PRIu64 " %s",
                 key, tokens, kv->n, kv->n == tokens ? "others" : "entries");
    else
        snprintf(why->text, sizeof why->text, "%s: expected a list, found one value", key);
    return false;
}

lq_status gguf_sentencepiece(lq_buf *b, gguf_file *f, gguf_reason *why, lq_err *err)
{
    vocab v = { .tokens = gguf_get(f, "tokenizer.ggml.tokens") };
    if (v.tokens && (!v.tokens->array || v.tokens->type != GGUF_STRING)) v.tokens = NULL;
    const uint64_t n = v.tokens ? v.tokens->n : 0;
    v.scores = array_of(f, "tokenizer.ggml.scores", GGUF_F32, n);
    if (n && !gguf_types_fit(f, n, why)) return LQ_OK;
    v.types = gguf_integers(f, "tokenizer.ggml.token_type", n);
    if (!n || !v.scores) {
        snprintf(why->text, sizeof why->text,
                 n ? "it has no score for each token" : "it has no tokens");
        return LQ_OK;
    }
    lq_buf m = { 0 };
    v.apart = parts_have_prefix(f);
    find_unk(&v, f);
    put_pieces(b, &m, &v);
    put_specs(b, &m, f, &v);
    free(m.p);
    return b->oom ? lq_fail(err, LQ_ENOMEM, "out of memory") : LQ_OK;
}
