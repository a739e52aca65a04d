/* convert/gguf_vocab.c - a tokenizer as GGUF's metadata.
 *
 * llama.cpp has byte-level BPE ("gpt2": merges, and a name for how text is cut before),
 * SentencePiece's BPE ("llama": pieces with scores) and Unigram ("t5"), and BERT's WordPiece ("bert"). Where tokenizer.json has the latter as merges,
 * scores are made from their order. */
#include "base/base64.h"
#include "convert/gguf_meta.h"
#include "convert/report.h"
#include "formats/gguf/gguf_pre.h"
#include "formats/hf/spm.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_TOKENIZER = 1 << 28 };

/* ---- what a source has ---- */
typedef struct {
    cJSON *tokenizer, *config; /* tokenizer.json, tokenizer_config.json; NULL: none */
    spm_model spm;             /* tokenizer.model, where there is no tokenizer.json */
    bool has_model, more;      /* is there one; added_tokens.json */
} files;

/* ---- tokens ---- */
typedef struct {
    const char **text; /* by id; NULL: none */
    int32_t *type;     /* SentencePiece's, which GGUF has taken over */
    float *score;      /* where pieces are merged by score */
    int64_t n, unk;    /* unk -1: none */
} vocab;

static lq_status make_room(vocab *v, const src_source *src, lq_arena *a, lq_err *err)
{
    v->n = src_config(src)->vocab;
    v->unk = -1;
    v->text = lq_push(a, (size_t)v->n * sizeof *v->text);
    v->type = lq_push(a, (size_t)v->n * sizeof *v->type);
    v->score = lq_push(a, (size_t)v->n * sizeof *v->score);
    if (v->text && v->type && v->score) return LQ_OK;
    return lq_fail(err, LQ_ENOMEM, "no memory for the vocabulary");
}

static bool set_token(vocab *v, const char *text, const cJSON *id, int type)
{
    int64_t i;
    if (!js_whole(id, 0, v->n - 1, &i)) return false;
    v->text[i] = text;
    v->type[i] = type;
    return true;
}

static lq_status read_added(vocab *v, const cJSON *t, lq_err *err)
{
    const cJSON *added = js_get(t, "added_tokens");
    for (const cJSON *e = cJSON_IsArray(added) ? added->child : NULL; e; e = e->next) {
        const char *text = NULL;
        bool special = false;
        lq_status s = js_str(e, "content", true, &text, err);
        if (!s) s = js_bool(e, "special", false, &special, err);
        if (!s && !set_token(v, text, js_get(e, "id"), special ? SPM_CONTROL : SPM_USER_DEFINED))
            s = lq_fail(err, LQ_EFORMAT, "'%.60s': expected an id below %lld", text,
                        (long long)v->n);
        if (s) return lq_wrap(err, s, "tokenizer.json: added_tokens");
    }
    return LQ_OK;
}

static lq_status read_vocab(vocab *v, const cJSON *t, lq_err *err)
{
    for (const cJSON *e = js_get(js_get(t, "model"), "vocab")->child; e; e = e->next)
        if (!set_token(v, e->string, e, SPM_NORMAL))
            return lq_fail(err, LQ_EFORMAT, "tokenizer.json: '%.60s': expected an id below %lld",
                           e->string, (long long)v->n);
    return read_added(v, t, err);
}

static void put_tokens(gguf_pairs *p, const vocab *v)
{
    gguf_pair_array(p, "tokenizer.ggml.tokens", GGUF_STRING, (uint64_t)v->n);
    for (int64_t i = 0; i < v->n; i++) {
        char pad[32];
        const int len = snprintf(pad, sizeof pad, "[PAD%lld]", (long long)i);
        if (v->text[i])
            gguf_put_str(&p->b, v->text[i], strlen(v->text[i]));
        else
            gguf_put_str(&p->b, pad, (size_t)len);
    }
    gguf_pair_array(p, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)v->n);
    for (int64_t i = 0; i < v->n; i++)
        gguf_put_le(&p->b, (uint64_t)(v->text[i] ? v->type[i] : SPM_UNUSED), 4);
}

static void put_scores(gguf_pairs *p, const vocab *v)
{
    gguf_pair_array(p, "tokenizer.ggml.scores", GGUF_F32, (uint64_t)v->n);
    for (int64_t i = 0; i < v->n; i++) {
        uint32_t bits;
        memcpy(&bits, &v->score[i], 4);
        gguf_put_le(&p->b, bits, 4);
    }
}

/* The two parts of a merge: "a b" or ["a", "b"]. */
typedef struct {
    const char *a, *b;
    size_t n_a, n_b;
} merge;

static lq_status read_merge(merge *out, const cJSON *m, lq_err *err)
{
    const cJSON *a = cJSON_IsArray(m) ? m->child : NULL, *b = a ? a->next : NULL;
    if (cJSON_IsString(a) && cJSON_IsString(b) && !b->next) {
        *out = (merge){ a->valuestring, b->valuestring, strlen(a->valuestring),
                        strlen(b->valuestring) };
        return LQ_OK;
    }
    const char *text = cJSON_IsString(m) ? m->valuestring : "", *blank = strchr(text, ' ');
    if (!blank || strchr(blank + 1, ' '))
        return lq_fail(err, LQ_EFORMAT, "tokenizer.json: merges: expected pairs of strings");
    *out = (merge){ text, blank + 1, (size_t)(blank - text), strlen(blank + 1) };
    return LQ_OK;
}

static bool is_text(const cJSON *j, const char *key, const char *want)
{
    const char *text = "";
    return !js_str(j, key, false, &text, NULL) && strcmp(text, want) == 0;
}

/* ---- what surrounds them ---- */
/* Is a special token put before (or after) every text? */
static bool adds(const cJSON *t, bool after)
{
    const cJSON *post = js_get(t, "post_processor"), *list = js_get(post, "processors");
    for (const cJSON *e = cJSON_IsArray(list) ? list->child : NULL; e; e = e->next)
        if (js_get(e, "single")) post = e;
    const cJSON *e = js_get(post, "single");
    if (is_text(post, "type", "RobertaProcessing") || is_text(post, "type", "BertProcessing"))
        return true;
    for (e = cJSON_IsArray(e) ? e->child : NULL; after && e && e->next;)
        e = e->next;
    return e && js_get(e, "SpecialToken");
}

/* How many special tokens are put between the two texts of a pair. */
static int between(const cJSON *t)
{
    const cJSON *post = js_get(t, "post_processor"), *list = js_get(post, "processors");
    for (const cJSON *e = cJSON_IsArray(list) ? list->child : NULL; e; e = e->next)
        if (js_get(e, "pair")) post = e;
    if (is_text(post, "type", "RobertaProcessing")) return 2;
    if (is_text(post, "type", "BertProcessing")) return 1;
    const cJSON *e = js_get(post, "pair");
    int n = 0;
    e = cJSON_IsArray(e) ? e->child : NULL;
    while (e && !js_get(e, "Sequence"))
        e = e->next;
    for (e = e ? e->next : NULL; e && js_get(e, "SpecialToken"); e = e->next)
        n++;
    return e ? n : 0;
}

/* The text of RoBERTa's "cls" or "sep"; NULL: it has none. */
static const char *roberta_end(const cJSON *t, const char *name)
{
    const cJSON *e = js_get(js_get(t, "post_processor"), name);
    return cJSON_IsArray(e) ? cJSON_GetStringValue(e->child) : NULL;
}

/* The id of a token that tokenizer_config.json names, as text or as {"content"}; -1. */
static int64_t special(const cJSON *config, const char *name, const vocab *v)
{
    const cJSON *t = js_get(config, name);
    if (cJSON_IsObject(t)) t = js_get(t, "content");
    for (int64_t i = 0; cJSON_IsString(t) && i < v->n; i++)
        if (v->text[i] && strcmp(v->text[i], t->valuestring) == 0) return i;
    return -1;
}

/* The id that tokenizer_config.json has under `name`, or that of the usual text (NULL: none is usual). */
static int64_t special_or(const cJSON *config, const char *name, const char *usual, const vocab *v)
{
    const int64_t id = special(config, name, v);
    for (int64_t i = 0; id < 0 && usual && i < v->n; i++)
        if (v->text[i] && strcmp(v->text[i], usual) == 0) return i;
    return id;
}

typedef struct {
    const char *key, *name, *usual;
    int64_t other; /* where there is neither; -1: none */
} special_id;

static void put_ids(gguf_pairs *p, const cJSON *config, const vocab *v, const special_id *ids,
                    size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int64_t id = special_or(config, ids[i].name, ids[i].usual, v);
        id = id < 0 ? ids[i].other : id;
        if (id >= 0 && id < v->n) gguf_pair_int(p, ids[i].key, id);
    }
}

/* What the model says of itself, or else another token of the tokenizer's: an encoder's, whose ends are these. */
static int64_t other_id(int64_t own, const cJSON *config, const char *name, const char *usual,
                        const vocab *v)
{
    return own >= 0 && own < v->n ? own : special_or(config, name, usual, v);
}

/* words: BERT's, whose bos is in another place. */
static void put_special(gguf_pairs *p, const src_source *src, const cJSON *config, const vocab *v,
                        bool words)
{
    const arch_config *c = src_config(src);
    const int64_t eos =
        other_id(c->n_eos ? c->eos[0] : -1, config, "sep_token", words ? "[SEP]" : NULL, v);
    const int64_t bos = other_id(c->bos, config, "cls_token", NULL, v);
    const special_id ids[] = { { "tokenizer.ggml.eos_token_id", "eos_token", NULL, eos },
                               { "tokenizer.ggml.unknown_token_id", "unk_token", NULL, v->unk },
                               { "tokenizer.ggml.padding_token_id", "pad_token", NULL, -1 },
                               { "tokenizer.ggml.bos_token_id", "bos_token", NULL, bos } };
    put_ids(p, config, v, ids, LQ_COUNT(ids) - words);
}

/* Those of encoders. */
static void put_encoder_ids(gguf_pairs *p, const cJSON *config, const vocab *v,
                            const char *const usual[3])
{
    const special_id ids[] = { { "tokenizer.ggml.cls_token_id", "cls_token", usual[0], -1 },
                               { "tokenizer.ggml.seperator_token_id", "sep_token", usual[1],
                                 -1 }, /* spelled so there */
                               { "tokenizer.ggml.mask_token_id", "mask_token", usual[2], -1 } };
    put_ids(p, config, v, ids, LQ_COUNT(ids));
}

/* A template: tokenizer.chat_template of the default one, tokenizer.chat_template.NAME of another. */
static void put_template(gguf_pairs *p, const char *name, size_t n_name, const char *text, size_t n)
{
    char key[128];
    const bool plain = n_name == 7 && memcmp(name, "default", n_name) == 0;
    snprintf(key, sizeof key, "tokenizer.chat_template%s%.*s", plain ? "" : ".",
             plain ? 0 : (int)n_name, name);
    gguf_pair_key(p, key, GGUF_STRING);
    gguf_put_str(&p->b, text, n);
}

/* Those of files; false: there are none. */
static bool put_template_files(gguf_pairs *p, const src_source *src)
{
    static const char prefix[] = "chat_template.", ext[] = ".jinja";
    const size_t n_prefix = sizeof prefix - 1, n_ext = sizeof ext - 1;
    bool any = false;
    for (size_t i = 0; i < src_n_blobs(src); i++) {
        const src_blob *f = src_blob_at(src, i);
        const size_t n = strlen(f->name);
        const bool plain = strcmp(f->name, "chat_template.jinja") == 0;
        if (!plain && (n <= n_prefix + n_ext || strncmp(f->name, prefix, n_prefix) != 0 ||
                       strcmp(f->name + n - n_ext, ext) != 0))
            continue;
        const char *name = plain ? "default" : f->name + n_prefix;
        put_template(p, name, plain ? 7 : n - n_prefix - n_ext, (const char *)f->data, f->bytes);
        any = true;
    }
    return any;
}

static void put_templates(gguf_pairs *p, const src_source *src, const cJSON *config)
{
    const cJSON *t = js_get(config, "chat_template");
    const bool beside = put_template_files(p, src), many = cJSON_IsArray(t) || cJSON_IsObject(t);
    if (!beside && cJSON_IsString(t))
        put_template(p, "default", 7, t->valuestring, strlen(t->valuestring));
    for (const cJSON *e = many && !beside ? t->child : NULL; e; e = e->next) {
        const bool listed = cJSON_IsObject(e);
        const char *name = listed ? cJSON_GetStringValue(js_get(e, "name")) : e->string,
                   *text = cJSON_GetStringValue(listed ? js_get(e, "template") : e);
        if (name && text) put_template(p, name, strlen(name), text, strlen(text));
    }
}

static lq_status parse_blob(cJSON **j, const src_source *src, const char *name, lq_err *err)
{
    const src_blob *b = src_find_blob(src, name);
    *j = NULL;
    if (!b) return LQ_OK;
    lq_status s = js_parse(j, (const char *)b->data, b->bytes, MAX_TOKENIZER, 0, err);
    return s ? lq_wrap(err, s, "%s", name) : LQ_OK;
}

/* ---- byte-level BPE: merges by rank ---- */
static lq_status put_merges(gguf_pairs *p, const cJSON *merges, lq_err *err)
{
    gguf_pair_array(p, "tokenizer.ggml.merges", GGUF_STRING, (uint64_t)cJSON_GetArraySize(merges));
    for (const cJSON *e = merges->child; e; e = e->next) {
        merge m;
        lq_status s = read_merge(&m, e, err);
        if (s) return s;
        gguf_put_le(&p->b, m.n_a + 1 + m.n_b, 8);
        lq_buf_add(&p->b, m.a, m.n_a);
        lq_buf_add(&p->b, " ", 1);
        lq_buf_add(&p->b, m.b, m.n_b);
    }
    return LQ_OK;
}

static lq_status put_bytes(gguf_pairs *p, vocab *v, const files *f, lq_err *err)
{
    lq_status s = read_vocab(v, f->tokenizer, err);
    if (s) return s;
    gguf_pair_str(p, "tokenizer.ggml.model", "gpt2");
    gguf_pair_str(p, "tokenizer.ggml.pre", gguf_pre_of(f->tokenizer));
    put_tokens(p, v);
    return put_merges(p, js_get(js_get(f->tokenizer, "model"), "merges"), err);
}

/* ---- SentencePiece: merges by the score of what they make ---- */
static const char blank[] = "\xE2\x96\x81"; /* for a space */

/* Replace " " by the sign for it. */
static bool is_escape(const cJSON *n)
{
    return is_text(n, "type", "Replace") && is_text(n, "content", blank) &&
           is_text(js_get(n, "pattern"), "String", " ");
}

/* Spaces are written as the sign, and one may be put before a text. */
typedef struct {
    bool prefix;
    bool near; /* Metaspace puts none before a text that begins with a space; llama.cpp does */
} spaces;

static bool read_spaces(const cJSON *t, spaces *out)
{
    const cJSON *norm = js_get(t, "normalizer"), *pre = js_get(t, "pre_tokenizer");
    const cJSON *list = js_get(norm, "normalizers");
    *out = (spaces){ false, false };
    if (!norm && is_text(pre, "type", "Metaspace")) {
        bool split = true, old = true; /* before prepend_scheme there was add_prefix_space */
        js_bool(pre, "split", false, &split, NULL);
        js_bool(pre, "add_prefix_space", false, &old, NULL);
        out->prefix =
            js_get(pre, "prepend_scheme") ? !is_text(pre, "prepend_scheme", "never") : old;
        out->near = out->prefix;
        return !split && is_text(pre, "replacement", blank);
    }
    /* Gemma's cuts at spaces, of which none are left by then */
    if (pre && !is_text(js_get(pre, "pattern"), "String", " ")) return false;
    if (is_escape(norm)) return true;
    out->prefix = cJSON_IsArray(list) && cJSON_GetArraySize(list) == 2 &&
                  is_text(list->child, "type", "Prepend") && is_text(list->child, "prepend", blank);
    return out->prefix && is_escape(list->child->next);
}

typedef struct {
    const char *text;
    int64_t id;
} known;

static int by_text(const void *a, const void *b)
{
    return strcmp(((const known *)a)->text, ((const known *)b)->text);
}

/* A piece's score is how early the first merge that makes it stands: of two merges the one with the
 * higher score is done first, as by rank. */
static lq_status score_pieces(vocab *v, const cJSON *merges, lq_arena *a, lq_err *err)
{
    known *by = lq_push(a, (size_t)v->n * sizeof *by);
    lq_buf text = { 0 };
    size_t n = 0;
    float rank = 0;
    lq_status s = by ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for the vocabulary");
    for (int64_t i = 0; i < v->n && !s; i++) {
        v->score[i] = -1e9f;
        if (v->text[i]) by[n++] = (known){ v->text[i], i };
    }
    if (n) qsort(by, n, sizeof *by, by_text);
    for (const cJSON *e = merges->child; e && !s; e = e->next, rank -= 1) {
        merge m;
        s = read_merge(&m, e, err);
        if (s) break;
        text.n = 0;
        lq_buf_add(&text, m.a, m.n_a);
        lq_buf_add(&text, m.b, m.n_b + 1);
        if (text.oom) s = lq_fail(err, LQ_ENOMEM, "no memory for the vocabulary");
        const known key = { s ? "" : text.p, 0 };
        const known *k = n && !s ? bsearch(&key, by, n, sizeof *by, by_text) : NULL;
        if (k && v->score[k->id] < -5e8f) v->score[k->id] = rank;
    }
    free(text.p);
    return s;
}

static bool is_byte(const char *s)
{
    return strncmp(s, "<0x", 3) == 0 && strspn(s + 3, "0123456789ABCDEF") == 2 &&
           strcmp(s + 5, ">") == 0;
}

static void set_unknown(vocab *v, int64_t id)
{
    v->type[id] = SPM_UNKNOWN;
    v->unk = id;
}

static lq_status from_json(vocab *v, const cJSON *t, lq_arena *a, bool *prefix, lq_err *err)
{
    const cJSON *model = js_get(t, "model");
    const char *unk = NULL;
    js_str(model, "unk_token", false, &unk, NULL);
    spaces sp;
    read_spaces(t, &sp);
    *prefix = sp.prefix;
    lq_status s = read_vocab(v, t, err);
    if (!s) s = score_pieces(v, js_get(model, "merges"), a, err);
    for (int64_t i = 0; i < v->n && !s; i++) {
        if (!v->text[i]) continue;
        if (v->type[i] == SPM_NORMAL && is_byte(v->text[i])) v->type[i] = SPM_BYTE;
        if (unk && strcmp(v->text[i], unk) == 0) set_unknown(v, i);
    }
    return s;
}

/* GGUF matches user-defined pieces before it writes spaces as U+2581. */
static const char *with_spaces(const char *text, lq_arena *a)
{
    const size_t n = strlen(text);
    char *out = lq_push(a, n + 1), *to = out;
    for (const char *s = text; out && *s;) {
        const bool sign = strncmp(s, blank, sizeof blank - 1) == 0;
        *to++ = sign ? ' ' : *s;
        s += sign ? sizeof blank - 1 : 1;
    }
    if (out) *to = 0;
    return out;
}

static lq_status from_model(vocab *v, const files *f, lq_arena *a, bool *prefix, lq_err *err)
{
    const spm_model *m = &f->spm;
    if ((int64_t)m->n > v->n)
        return lq_fail(err, LQ_EFORMAT, "tokenizer.model: expected at most %lld pieces, found %zu",
                       (long long)v->n, m->n);
    *prefix = m->dummy_prefix;
    js_bool(f->config, "add_prefix_space", false, prefix, NULL);
    for (size_t i = 0; i < m->n; i++) {
        const spm_piece *p = &m->pieces[i];
        v->text[i] = lq_push_str(a, (const char *)p->text.p, p->text.n);
        if (!v->text[i]) return lq_fail(err, LQ_ENOMEM, "no memory for the vocabulary");
        v->type[i] = (int32_t)p->type;
        v->score[i] = p->score;
        if (p->type == SPM_UNKNOWN) set_unknown(v, (int64_t)i);
        if (p->type == SPM_USER_DEFINED) v->text[i] = with_spaces(v->text[i], a);
        if (!v->text[i]) return lq_fail(err, LQ_ENOMEM, "no memory for the vocabulary");
    }
    /* a tokenizer.json beside it may add some */
    const cJSON *added = js_get(f->tokenizer, "added_tokens");
    for (const cJSON *e = cJSON_IsArray(added) ? added->child : NULL; e; e = e->next) {
        int64_t id;
        const char *text = NULL;
        bool special = false;
        js_str(e, "content", false, &text, NULL);
        js_bool(e, "special", false, &special, NULL);
        if (!text || !js_whole(js_get(e, "id"), (int64_t)m->n, v->n - 1, &id)) continue;
        v->text[id] = text;
        v->type[id] = special ? SPM_CONTROL : SPM_USER_DEFINED;
        v->score[id] = -1000;
    }
    return LQ_OK;
}

static lq_status put_pieces(gguf_pairs *p, vocab *v, const files *f, bool json, lq_arena *a,
                            lq_err *err)
{
    bool prefix = true;
    lq_status s =
        json ? from_json(v, f->tokenizer, a, &prefix, err) : from_model(v, f, a, &prefix, err);
    if (s) return s;
    gguf_pair_str(p, "tokenizer.ggml.model", "llama");
    gguf_pair_str(p, "tokenizer.ggml.pre", "default");
    put_tokens(p, v);
    put_scores(p, v);
    gguf_pair_bool(p, "tokenizer.ggml.add_space_prefix", prefix);
    return LQ_OK;
}

/* ---- WordPiece ---- */

/* Is it BERT's, which llama.cpp knows? */
static bool is_wordpiece(const cJSON *t)
{
    const cJSON *norm = js_get(t, "normalizer"), *model = js_get(t, "model");
    const cJSON *clean = js_get(norm, "clean_text"), *han = js_get(norm, "handle_chinese_chars");
    return is_text(model, "type", "WordPiece") && cJSON_IsObject(js_get(model, "vocab")) &&
           is_text(model, "continuing_subword_prefix", "##") &&
           is_text(norm, "type", "BertNormalizer") && !cJSON_IsFalse(clean) &&
           !cJSON_IsFalse(han) && is_text(js_get(t, "pre_tokenizer"), "type", "BertPreTokenizer");
}

/* A piece that goes on loses its "##"; one that begins a word gets a sign for the space. */
static lq_status mark_pieces(vocab *v, lq_arena *a, lq_err *err)
{
    for (int64_t i = 0; i < v->n; i++) {
        const char *t = v->text[i];
        if (!t || v->type[i] == SPM_CONTROL) continue;
        if (strncmp(t, "##", 2) == 0 && t[2]) {
            v->text[i] = t + 2;
            continue;
        }
        const size_t n = strlen(t), k = sizeof blank - 1;
        char *own = lq_push(a, k + n + 1);
        if (!own) return lq_fail(err, LQ_ENOMEM, "no memory for the vocabulary");
        memcpy(own, blank, k);
        memcpy(own + k, t, n + 1);
        v->text[i] = own;
    }
    return LQ_OK;
}

static lq_status put_words(gguf_pairs *p, vocab *v, const files *f, lq_arena *a, lq_err *err)
{
    static const char *const usual[] = { "[CLS]", "[SEP]", "[MASK]" };
    static const special_id bos = { "tokenizer.ggml.bos_token_id", "cls_token", "[CLS]", -1 };
    const cJSON *norm = js_get(f->tokenizer, "normalizer"), *strip = js_get(norm, "strip_accents");
    const bool lower = !cJSON_IsFalse(js_get(norm, "lowercase"));
    lq_status s = read_vocab(v, f->tokenizer, err);
    if (s) return s;
    gguf_pair_str(p, "tokenizer.ggml.model", "bert");
    gguf_pair_str(p, "tokenizer.ggml.pre", "default");
    if (!lower) gguf_pair_bool(p, "tokenizer.ggml.normalizer.lowercase", false);
    if (cJSON_IsBool(strip) && cJSON_IsTrue(strip) != lower)
        gguf_pair_bool(p, "tokenizer.ggml.normalizer.strip_accents", cJSON_IsTrue(strip));
    put_ids(p, f->config, v, &bos, 1);
    put_encoder_ids(p, f->config, v, usual);
    const cJSON *unk = js_get(js_get(f->tokenizer, "model"), "unk_token");
    js_whole(js_get(js_get(js_get(f->tokenizer, "model"), "vocab"),
                    cJSON_IsString(unk) ? unk->valuestring : ""),
             0, v->n - 1, &v->unk);
    s = mark_pieces(v, a, err);
    if (!s) put_tokens(p, v);
    return s;
}

/* ---- Unigram ---- */

/* A Precompiled, alone or before a Replace of several spaces by one. */
static const cJSON *charsmap_of(const cJSON *t)
{
    const cJSON *norm = js_get(t, "normalizer"), *list = js_get(norm, "normalizers");
    const cJSON *first = cJSON_IsArray(list) ? list->child : norm,
                *next = list && first ? first->next : NULL;
    if (next &&
        (next->next || !is_text(next, "type", "Replace") || !is_text(next, "content", " ") ||
         !is_text(js_get(next, "pattern"), "Regex", " {2,}")))
        return NULL;
    return is_text(first, "type", "Precompiled") ? js_get(first, "precompiled_charsmap") : NULL;
}

/* Is it XLM-R's, which llama.cpp calls t5? *near: white space at the ends of a text stays, which is left out there. */
static bool is_unigram(const cJSON *t, bool *near)
{
    const cJSON *model = js_get(t, "model"), *pre = js_get(t, "pre_tokenizer");
    const cJSON *list = js_get(pre, "pretokenizers"),
                *first = cJSON_IsArray(list) ? list->child : NULL;
    bool bytes = false, old = true;
    const bool cut = first && first->next && is_text(first, "type", "WhitespaceSplit");
    const cJSON *space = cut ? first->next : pre;
    js_bool(model, "byte_fallback", false, &bytes, NULL);
    js_bool(space, "add_prefix_space", false, &old, NULL);
    *near = !cut;
    return is_text(model, "type", "Unigram") && cJSON_IsArray(js_get(model, "vocab")) && !bytes &&
           is_text(space, "type", "Metaspace") && !space->next &&
           is_text(space, "replacement", blank) &&
           (js_get(space, "prepend_scheme") ? is_text(space, "prepend_scheme", "always") : old) &&
           (!js_get(t, "normalizer") || cJSON_IsString(charsmap_of(t)));
}

static lq_status put_unigram(gguf_pairs *p, vocab *v, const files *f, lq_err *err)
{
    static const char *const usual[] = { NULL, NULL, "<mask>" };
    const cJSON *model = js_get(f->tokenizer, "model"), *list = js_get(model, "vocab");
    const char *map = cJSON_GetStringValue(charsmap_of(f->tokenizer));
    lq_buf bytes = { 0 };
    int64_t i = 0;
    for (const cJSON *e = list->child; e; e = e->next, i++) {
        const cJSON *score = cJSON_IsArray(e) && e->child ? e->child->next : NULL;
        if (i == v->n || !cJSON_IsString(e->child) || !cJSON_IsNumber(score))
            return lq_fail(err, LQ_EFORMAT,
                           "tokenizer.json: model.vocab: expected at most %lld of [text, score]",
                           (long long)v->n);
        v->text[i] = e->child->valuestring;
        v->type[i] = SPM_NORMAL;
        v->score[i] = (float)score->valuedouble;
    }
    lq_status s = read_added(v, f->tokenizer, err);
    if (s) return s;
    js_whole(js_get(model, "unk_id"), 0, v->n - 1, &v->unk);
    if (v->unk >= 0) set_unknown(v, v->unk);
    gguf_pair_str(p, "tokenizer.ggml.model", "t5");
    gguf_pair_str(p, "tokenizer.ggml.pre", "default");
    put_tokens(p, v);
    put_scores(p, v);
    gguf_pair_bool(p, "tokenizer.ggml.add_space_prefix", true);
    gguf_pair_bool(p, "tokenizer.ggml.remove_extra_whitespaces", true);
    if (!map) return put_encoder_ids(p, f->config, v, usual), LQ_OK;
    if (!lq_base64(&bytes, map, strlen(map)) || bytes.oom)
        s = lq_fail(err, LQ_EFORMAT, "tokenizer.json: precompiled_charsmap: expected base64");
    gguf_pair_array(p, "tokenizer.ggml.precompiled_charsmap", GGUF_U8, bytes.n);
    lq_buf_add(&p->b, bytes.u, bytes.n);
    lq_buf_free(&bytes);
    put_encoder_ids(p, f->config, v, usual);
    return s;
}

/* ---- which of them ---- */
typedef enum { AS_BYTES, AS_PIECES, AS_WORDS, AS_UNIGRAM } vocab_kind;

static const char *why_not_json(const cJSON *t, vocab_kind *kind, bool *near)
{
    const cJSON *model = js_get(t, "model");
    spaces sp = { false, false };
    bool bytes = false;
    *kind = AS_WORDS;
    if (is_wordpiece(t)) return NULL;
    if (is_unigram(t, near)) {
        *kind = AS_UNIGRAM;
        return NULL;
    }
    *near = false;
    if (!is_text(model, "type", "BPE") || !cJSON_IsObject(js_get(model, "vocab")) ||
        !cJSON_IsArray(js_get(model, "merges")))
        return "only BPE, BERT's WordPiece and XLM-R's Unigram are written";
    js_bool(model, "byte_fallback", false, &bytes, NULL);
    *kind = bytes ? AS_PIECES : AS_BYTES;
    const bool ok = bytes ? read_spaces(t, &sp) : gguf_pre_of(t) != NULL;
    *near = sp.near;
    return ok ? NULL : "GGUF has no name that we know for how it cuts text";
}

static const char *why_not_model(const files *f)
{
    if (f->spm.type != SPM_BPE) return "of tokenizer.model only BPE is written";
    if (!f->spm.escape || f->spm.squeeze || f->spm.suffix || f->spm.charsmap.n)
        return "GGUF has no name for how its tokenizer.model changes text";
    return f->more ? "tokenizer.model with added_tokens.json is not written" : NULL;
}

static lq_status read_files(files *f, const src_source *src, lq_err *err)
{
    const src_blob *model = src_find_blob(src, "tokenizer.model");
    lq_status s = parse_blob(&f->tokenizer, src, "tokenizer.json", err);
    if (!s) s = parse_blob(&f->config, src, "tokenizer_config.json", err);
    f->more = src_find_blob(src, "added_tokens.json") != NULL;
    if (s || !model) return s;
    s = spm_read(&f->spm, model->data, model->bytes, err);
    f->has_model = !s;
    return s == LQ_ENOMEM || !f->tokenizer ? s : LQ_OK;
}

/* What is written: tokenizer.json where GGUF can say it exactly, else tokenizer.model, else a
 * tokenizer.json but for texts that begin with a space. Returns why nothing is; *json: which. */
static const char *choose(const files *f, const src_source *src, bool *json, vocab_kind *kind,
                          conv_report *r)
{
    bool near = false;
    const char *why = f->tokenizer ? why_not_json(f->tokenizer, kind, &near)
                      : src_why_no_tokenizer(src)
                          ? src_why_no_tokenizer(src)
                          : "there is no tokenizer.json and no tokenizer.model";
    *json = f->tokenizer && !why;
    if ((why || near) && f->has_model) {
        const char *not_model = why_not_model(f);
        if (!not_model) {
            *json = false;
            *kind = AS_PIECES;
            return NULL;
        }
        if (!f->tokenizer) why = not_model;
    }
    if (!why && near && *kind == AS_UNIGRAM)
        conv_note(r, "white space at the end of a text makes a token by tokenizer.json, and none "
                     "by the file");
    else if (!why && near)
        conv_note(r, "llama.cpp gives other ids to a text that begins with a space or follows a "
                     "special token: it puts a space before it, and tokenizer.json does not");
    return why;
}

/* Is a special token put before (or after) a text? A tokenizer.model leaves it to the config. */
static bool adds_token(const files *f, bool after)
{
    bool yes = !after;
    if (f->tokenizer) return adds(f->tokenizer, after);
    js_bool(f->config, after ? "add_eos_token" : "add_bos_token", false, &yes, NULL);
    return yes;
}

lq_status gguf_put_tokenizer(gguf_pairs *p, const src_source *src, conv_report *r, lq_err *err)
{
    if (!src_has_other_tokenizer(src) && gguf_carry(p, src, "tokenizer.")) return LQ_OK;
    files f = { .tokenizer = NULL };
    vocab v;
    lq_arena a = { 0 };
    vocab_kind kind = AS_PIECES;
    bool json = false;
    lq_status s = read_files(&f, src, err);
    const char *why = s ? NULL : choose(&f, src, &json, &kind, r);
    if (why) {
        gguf_pair_str(p, "tokenizer.ggml.model", "none");
        conv_note(r, "the file has no tokenizer: %s", why);
    } else if (!s) {
        s = make_room(&v, src, &a, err);
        if (!s && kind == AS_WORDS) s = put_words(p, &v, &f, &a, err);
        if (!s && kind == AS_PIECES) s = put_pieces(p, &v, &f, json, &a, err);
        if (!s && kind == AS_UNIGRAM) s = put_unigram(p, &v, &f, err);
        if (!s && kind == AS_BYTES) s = put_bytes(p, &v, &f, err);
    }
    if (!s && !why) {
        put_special(p, src, f.config, &v, kind == AS_WORDS);
        gguf_pair_bool(p, "tokenizer.ggml.add_bos_token", adds_token(&f, false));
        gguf_pair_bool(p, "tokenizer.ggml.add_eos_token", adds_token(&f, true));
        const int n = f.tokenizer ? between(f.tokenizer) : 0;
        if (n && adds_token(&f, true)) {
            const char *const ends[3] = { roberta_end(f.tokenizer, "cls"),
                                          roberta_end(f.tokenizer, "sep"), NULL };
            if (kind == AS_BYTES) put_encoder_ids(p, f.config, &v, ends);
            gguf_pair_bool(p, "tokenizer.ggml.add_sep_token", n > 1);
        }
        put_templates(p, src, f.config);
    }
    spm_free(&f.spm);
    cJSON_Delete(f.tokenizer);
    cJSON_Delete(f.config);
    lq_arena_free(&a);
    return s;
}
