/* formats/gguf/gguf_tok.c - the tokenizer in a GGUF file's metadata as a tokenizer.json. */
#include "formats/gguf/gguf_tok.h"

#include "base/json.h"
#include "base/json_write.h"
#include "base/utf8.h"
#include "formats/gguf/gguf_ends.h"
#include "formats/gguf/gguf_pre.h"
#include "formats/hf/spm.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    lq_buf *b;
    lq_status st;
    lq_err *err;
} out;

static void put_text(out *o, gguf_text t)
{
    char *copy = o->st ? NULL : malloc(t.n + 1);
    if (!copy) {
        if (!o->st) o->st = lq_fail(o->err, LQ_ENOMEM, "out of memory");
        return;
    }
    memcpy(copy, t.s, t.n);
    copy[t.n] = 0;
    if (memchr(copy, 0, t.n) || !lq_utf8_valid(copy, t.n, NULL))
        o->st = lq_fail(o->err, LQ_EFORMAT, "tokenizer: expected tokens in UTF-8 without NUL");
    else
        js_put_str(o->b, copy);
    free(copy);
}

static const gguf_kv *strings(const gguf_file *f, const char *key)
{
    const gguf_kv *kv = gguf_get(f, key);
    return kv && kv->array && kv->type == GGUF_STRING ? kv : NULL;
}

static void put_added(out *o, const gguf_file *f, const gguf_kv *tokens)
{
    const gguf_kv *types = gguf_integers(f, "tokenizer.ggml.token_type", tokens->n);
    const uint8_t *at = tokens->data;
    bool first = true;
    for (uint64_t i = 0; i < tokens->n && !o->st; i++) {
        const gguf_text t = gguf_next(&at);
        int64_t type = types ? gguf_int_at(types, i) : SPM_NORMAL;
        if (gguf_is_end_name(t.s, t.n)) type = SPM_CONTROL;
        if ((type != SPM_CONTROL && type != SPM_USER_DEFINED) || !t.n) continue;
        lq_buf_puts(o->b, first ? "" : ",");
        first = false;
        lq_buf_puts(o->b, "{\"id\":");
        js_put_i64(o->b, (int64_t)i);
        lq_buf_puts(o->b, ",\"content\":");
        put_text(o, t);
        lq_buf_puts(o->b,
                    ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                    "\"special\":");
        lq_buf_puts(o->b, type == SPM_CONTROL ? "true}" : "false}");
    }
}

static gguf_text token_at(const gguf_kv *tokens, int64_t id)
{
    const uint8_t *at = tokens->data;
    gguf_text t = { "", 0 };
    for (int64_t i = 0; i <= id; i++)
        t = gguf_next(&at);
    return t;
}

/* The id under `key` where it is a token; -1. */
static int64_t token_id(const gguf_file *f, const char *key, const gguf_kv *tokens)
{
    int64_t id;
    return gguf_int(f, key, &id) && id >= 0 && (uint64_t)id < tokens->n ? id : -1;
}

static void put_special(out *o, const gguf_kv *tokens, int64_t id, int type, bool *any)
{
    if (id < 0) return;
    lq_buf_puts(o->b, *any ? ",{\"SpecialToken\":{\"id\":" : "{\"SpecialToken\":{\"id\":");
    put_text(o, token_at(tokens, id));
    lq_buf_puts(o->b, type ? ",\"type_id\":1}}" : ",\"type_id\":0}}");
    *any = true;
}

static void put_sequence(out *o, const char *name, int type, bool *any)
{
    char text[64];
    snprintf(text, sizeof text, "%s{\"Sequence\":{\"id\":\"%s\",\"type_id\":%d}}", *any ? "," : "",
             name, type);
    lq_buf_puts(o->b, text);
    *any = true;
}

/* id: of what goes before a text, and after it; -1: nothing. seps: how many of the latter are between two texts that are
 * encoded as one (BERT 1, RoBERTa 2), which then have those ends; 0: nothing at all is around them. */
static void put_ends(out *o, const gguf_kv *tokens, const int64_t id[2], int seps)
{
    bool single = false, pair = false;
    if (id[0] < 0 && id[1] < 0) {
        lq_buf_puts(o->b, "null");
        return;
    }
    lq_buf_puts(o->b, "{\"type\":\"TemplateProcessing\",\"single\":[");
    put_special(o, tokens, id[0], 0, &single);
    put_sequence(o, "A", 0, &single);
    put_special(o, tokens, id[1], 0, &single);
    lq_buf_puts(o->b, "],\"pair\":[");
    const int second = seps < 2;
    if (seps) put_special(o, tokens, id[0], 0, &pair);
    put_sequence(o, "A", 0, &pair);
    for (int i = 0; i < seps; i++)
        put_special(o, tokens, id[1], 0, &pair);
    put_sequence(o, "B", second, &pair);
    if (seps) put_special(o, tokens, id[1], second, &pair);
    lq_buf_puts(o->b, "],\"special_tokens\":{");
    for (int i = 0, n = 0; i < 2; i++) {
        if (id[i] < 0 || (i && id[0] == id[1])) continue;
        if (n++) lq_buf_puts(o->b, ",");
        put_text(o, token_at(tokens, id[i]));
        lq_buf_puts(o->b, ":{\"id\":");
        put_text(o, token_at(tokens, id[i]));
        lq_buf_puts(o->b, ",\"ids\":[");
        js_put_i64(o->b, id[i]);
        lq_buf_puts(o->b, "],\"tokens\":[");
        put_text(o, token_at(tokens, id[i]));
        lq_buf_puts(o->b, "]}");
    }
    lq_buf_puts(o->b, "}}");
}

/* Of byte-level pieces: those of encoders, by the file, or else as their kind has them. */
static int seps_of(gguf_file *f)
{
    const char *arch = "";
    gguf_str(f, "general.architecture", &arch);
    bool two = strcmp(arch, "bert") == 0;
    if (!two && strcmp(arch, "modern-bert") != 0) return 0;
    gguf_bool(f, "tokenizer.ggml.add_sep_token", &two);
    return two ? 2 : 1;
}

static void put_post(out *o, gguf_file *f, const gguf_kv *tokens, bool bos)
{
    bool eos = false;
    gguf_bool(f, "tokenizer.ggml.add_bos_token", &bos);
    gguf_bool(f, "tokenizer.ggml.add_eos_token", &eos);
    const int64_t id[2] = { bos ? token_id(f, "tokenizer.ggml.bos_token_id", tokens) : -1,
                            eos ? token_id(f, "tokenizer.ggml.eos_token_id", tokens) : -1 };
    put_ends(o, tokens, id, seps_of(f));
}

static void put_model(out *o, const gguf_file *f, const gguf_kv *tokens, const gguf_kv *merges,
                      const gguf_pre *pre)
{
    const uint8_t *at = tokens->data;
    const bool text = gguf_pre_is_text(pre);
    const int64_t unk = text ? token_id(f, "tokenizer.ggml.unknown_token_id", tokens) : -1;
    lq_buf_puts(o->b, "{\"type\":\"BPE\",\"ignore_merges\":");
    lq_buf_puts(o->b, gguf_pre_ignores_merges(pre) ? "true" : "false");
    if (unk >= 0) {
        lq_buf_puts(o->b, ",\"fuse_unk\":true,\"unk_token\":");
        put_text(o, token_at(tokens, unk));
    }
    lq_buf_puts(o->b, text ? ",\"byte_fallback\":true" : ",\"byte_fallback\":false");
    lq_buf_puts(o->b, ",\"vocab\":{");
    for (uint64_t i = 0; i < tokens->n && !o->st; i++) {
        if (i) lq_buf_puts(o->b, ",");
        put_text(o, gguf_next(&at));
        lq_buf_puts(o->b, ":");
        js_put_i64(o->b, (int64_t)i);
    }
    lq_buf_puts(o->b, "},\"merges\":[");
    at = merges->data;
    for (uint64_t i = 0; i < merges->n && !o->st; i++) {
        if (i) lq_buf_puts(o->b, ",");
        put_text(o, gguf_next(&at));
    }
    lq_buf_puts(o->b, "]}");
}

/* The row of tokenizer.ggml.pre, or of the model's own name ("gemma4"); NULL: *why says why not. */
static const gguf_pre *find_pre(gguf_file *f, gguf_reason *why)
{
    const char *model = "", *name = NULL;
    gguf_str(f, "tokenizer.ggml.model", &model);
    gguf_str(f, "tokenizer.ggml.pre", &name);
    const bool bytes = strcmp(model, "gpt2") == 0;
    if (!*model || strcmp(model, "none") == 0) {
        snprintf(why->text, sizeof why->text, "there is none");
        return NULL;
    }
    if (!bytes && strcmp(model, "gemma4") != 0) {
        snprintf(why->text, sizeof why->text,
                 "tokenizer.ggml.model: expected gpt2, llama, t5, bert or gemma4, found \"%.40s\"",
                 model);
        return NULL;
    }
    const gguf_pre *p = gguf_pre_find(!bytes ? model : name ? name : "default");
    if (!p)
        snprintf(why->text, sizeof why->text, "tokenizer.ggml.pre: \"%.40s\" is not known", name);
    if (p && bytes && (!name || strcmp(name, "default") == 0))
        snprintf(
            why->text, sizeof why->text,
            "tokenizer.ggml.pre is %s: text is cut as for GPT-2, and ids may differ from those "
            "that the model was trained on",
            name ? "\"default\"" : "missing");
    return p;
}

/* ---- WordPiece ---- */

/* GGUF has the first piece of a word as U+2581 and the piece, and those that go on without their "##". */
static void put_piece(out *o, gguf_text t, bool whole)
{
    static const char first[] = "\xE2\x96\x81";
    const size_t n = sizeof first - 1;
    char *copy;
    if (whole || (t.n > n && memcmp(t.s, first, n) == 0)) {
        put_text(o, whole ? t : (gguf_text){ t.s + n, t.n - n });
        return;
    }
    copy = malloc(t.n + 2);
    if (!copy) {
        if (!o->st) o->st = lq_fail(o->err, LQ_ENOMEM, "out of memory");
        return;
    }
    memcpy(copy, "##", 2);
    memcpy(copy + 2, t.s, t.n);
    put_text(o, (gguf_text){ copy, t.n + 2 });
    free(copy);
}

/* A control token; in old files those in brackets, which no piece of a word is. */
static bool is_whole(const gguf_kv *types, uint64_t i, gguf_text t)
{
    if (types && gguf_int_at(types, i) == SPM_CONTROL) return true;
    return t.n > 2 && t.s[0] == '[' && t.s[t.n - 1] == ']';
}

/* The id under `key` or `other`, or llama.cpp's own. */
static int64_t id_or(const gguf_file *f, const gguf_kv *tokens, const char *key, const char *other,
                     int64_t own)
{
    int64_t id = token_id(f, key, tokens);
    if (id < 0 && other) id = token_id(f, other, tokens);
    return id >= 0 ? id : (uint64_t)own < tokens->n ? own : -1;
}

static void put_flag(out *o, const char *text, bool on)
{
    lq_buf_puts(o->b, text);
    lq_buf_puts(o->b, on ? "true" : "false");
}

/* BERT's own tokenizer (arXiv:1810.04805), with llama.cpp's defaults. */
static lq_status put_wordpiece(lq_buf *b, gguf_file *f, const gguf_kv *tokens, lq_err *err)
{
    enum { CLS = 101, SEP = 102, UNK = 100 };
    const gguf_kv *types = gguf_integers(f, "tokenizer.ggml.token_type", tokens->n);
    out o = { .b = b, .err = err };
    bool lower = true;
    gguf_bool(f, "tokenizer.ggml.normalizer.lowercase", &lower);
    bool strip = lower;
    gguf_bool(f, "tokenizer.ggml.normalizer.strip_accents", &strip);
    const int64_t ends[2] = { id_or(f, tokens, "tokenizer.ggml.cls_token_id",
                                    "tokenizer.ggml.bos_token_id", CLS),
                              id_or(f, tokens, "tokenizer.ggml.seperator_token_id", NULL, SEP) };
    const int64_t unk = id_or(f, tokens, "tokenizer.ggml.unknown_token_id", NULL, UNK);
    lq_buf_puts(b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    put_added(&o, f, tokens);
    put_flag(&o,
             "],\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,"
             "\"handle_chinese_chars\":true,\"lowercase\":",
             lower);
    put_flag(&o, ",\"strip_accents\":", strip);
    lq_buf_puts(b, "},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"post_processor\":");
    put_ends(&o, tokens, ends, 1);
    lq_buf_puts(b, ",\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true},"
                   "\"model\":{\"type\":\"WordPiece\",\"continuing_subword_prefix\":\"##\","
                   "\"max_input_chars_per_word\":100,\"unk_token\":");
    put_text(&o, token_at(tokens, unk < 0 ? 0 : unk));
    lq_buf_puts(b, ",\"vocab\":{");
    const uint8_t *at = tokens->data;
    for (uint64_t i = 0; i < tokens->n && !o.st; i++) {
        const gguf_text t = gguf_next(&at);
        if (i) lq_buf_puts(b, ",");
        put_piece(&o, t, is_whole(types, i, t));
        lq_buf_puts(b, ":");
        js_put_i64(b, (int64_t)i);
    }
    lq_buf_puts(b, "}}}");
    if (!o.st && b->oom) o.st = lq_fail(err, LQ_ENOMEM, "out of memory");
    return o.st;
}

static bool is_wordpiece(gguf_file *f)
{
    const char *model = "";
    gguf_str(f, "tokenizer.ggml.model", &model);
    return strcmp(model, "bert") == 0;
}

lq_status gguf_tokenizer(lq_buf *b, gguf_file *f, gguf_reason *why, lq_err *err)
{
    const gguf_kv *tokens = strings(f, "tokenizer.ggml.tokens");
    const gguf_kv *merges = strings(f, "tokenizer.ggml.merges");
    if (tokens && !gguf_types_fit(f, tokens->n, why)) return LQ_OK;
    if (is_wordpiece(f) && tokens && tokens->n) return put_wordpiece(b, f, tokens, err);
    const gguf_pre *pre = find_pre(f, why);
    if (pre && (!tokens || !merges))
        snprintf(why->text, sizeof why->text, "it has no %s", tokens ? "merges" : "tokens");
    if (!pre || !tokens || !merges) return LQ_OK;
    out o = { .b = b, .err = err };
    lq_buf_puts(b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    put_added(&o, f, tokens);
    lq_buf_puts(b, "],");
    gguf_pre_put(b, pre);
    lq_buf_puts(b, ",\"post_processor\":");
    put_post(&o, f, tokens, gguf_pre_adds_bos(pre));
    lq_buf_puts(b, ",");
    gguf_pre_put_decoder(b, pre);
    lq_buf_puts(b, ",\"model\":");
    put_model(&o, f, tokens, merges, pre);
    lq_buf_puts(b, "}");
    if (!o.st && b->oom) o.st = lq_fail(err, LQ_ENOMEM, "out of memory");
    return o.st;
}

/* The class whose conversion of a tokenizer.model is what GGUF's own fields say. */
static const char *class_of(gguf_file *f)
{
    const char *model = "", *arch = "";
    gguf_str(f, "tokenizer.ggml.model", &model);
    gguf_str(f, "general.architecture", &arch);
    if (!gguf_is_sentencepiece(f)) return "PreTrainedTokenizerFast";
    if (strcmp(model, "t5") == 0) return "T5Tokenizer";
    return strncmp(arch, "gemma", 5) == 0 ? "GemmaTokenizer" : "LlamaTokenizer";
}

/* One more of a list of templates; *any: it has some. */
static void put_named(out *o, gguf_text name, const char *text, bool *any)
{
    lq_buf_puts(o->b, *any ? ",{\"name\":" : "[{\"name\":");
    put_text(o, name);
    lq_buf_puts(o->b, ",\"template\":");
    put_text(o, (gguf_text){ text, strlen(text) });
    lq_buf_puts(o->b, "}");
    *any = true;
}

/* The template, or the list of it and those with names: tokenizer.chat_template.rerank, ... */
static void put_templates(out *o, gguf_file *f)
{
    static const char plain[] = "tokenizer.chat_template", named[] = "tokenizer.chat_template.";
    const char *text;
    const bool has_default = gguf_str(f, plain, &text);
    bool any = false;
    for (size_t i = 0; i < f->n_kv; i++) {
        const char *key = f->kv[i].key, *other;
        if (strncmp(key, named, sizeof named - 1) != 0 || !gguf_str(f, key, &other)) continue;
        if (!any) lq_buf_puts(o->b, ",\"chat_template\":");
        if (!any && has_default) put_named(o, (gguf_text){ "default", 7 }, text, &any);
        const char *name = key + sizeof named - 1;
        put_named(o, (gguf_text){ name, strlen(name) }, other, &any);
    }
    if (any) {
        lq_buf_puts(o->b, "]");
    } else if (has_default) {
        lq_buf_puts(o->b, ",\"chat_template\":");
        put_text(o, (gguf_text){ text, strlen(text) });
    }
}

/* Phi-3's special tokens take the spaces after them, but for these. */
static bool strips(gguf_file *f, gguf_text t, int64_t type)
{
    static const char *const not_these[] = { "<unk>", "<s>", "<|endoftext|>" };
    const char *arch = "";
    gguf_str(f, "general.architecture", &arch);
    if (strcmp(arch, "phi3") != 0 && strcmp(arch, "phimoe") != 0) return false;
    for (size_t i = 0; i < LQ_COUNT(not_these); i++)
        if (t.n == strlen(not_these[i]) && memcmp(t.s, not_these[i], t.n) == 0) return false;
    return type == SPM_CONTROL || type == SPM_USER_DEFINED;
}

/* What a tokenizer.model does not say of its pieces. */
static void put_flags(out *o, gguf_file *f, const gguf_kv *tokens)
{
    const gguf_kv *types = gguf_integers(f, "tokenizer.ggml.token_type", tokens->n);
    const uint8_t *at = tokens->data;
    bool any = false;
    if (!types) return;
    for (uint64_t i = 0; i < tokens->n && !o->st; i++) {
        const gguf_text t = gguf_next(&at);
        const int64_t type = gguf_int_at(types, i);
        const bool end = gguf_is_end_name(t.s, t.n); /* of any type */
        const bool apart = !end && gguf_is_apart(f, t, type), strip = strips(f, t, type);
        if (!t.n || (!apart && !strip)) continue;
        lq_buf_puts(o->b, any ? ",\"" : ",\"added_tokens_decoder\":{\"");
        any = true;
        js_put_i64(o->b, (int64_t)i);
        lq_buf_puts(o->b, "\":{\"content\":");
        put_text(o, t);
        lq_buf_puts(o->b, strip ? ",\"rstrip\":true" : "");
        lq_buf_puts(o->b, apart ? ",\"special\":false}" : ",\"special\":true}");
    }
    lq_buf_puts(o->b, any ? "}" : "");
}

lq_status gguf_tokenizer_config(lq_buf *b, gguf_file *f, lq_err *err)
{
    static const struct {
        const char *key, *id;
    } special[] = { { "bos_token", "tokenizer.ggml.bos_token_id" },
                    { "eos_token", "tokenizer.ggml.eos_token_id" },
                    { "unk_token", "tokenizer.ggml.unknown_token_id" },
                    { "pad_token", "tokenizer.ggml.padding_token_id" },
                    { "pair_sep_token", "tokenizer.ggml.seperator_token_id" } }; /* our own */
    const gguf_kv *tokens = strings(f, "tokenizer.ggml.tokens");
    out o = { .b = b, .err = err };
    lq_buf_puts(b, "{\"tokenizer_class\":");
    js_put_str(b, class_of(f));
    for (size_t i = 0; i < LQ_COUNT(special) && tokens; i++) {
        const int64_t id = token_id(f, special[i].id, tokens);
        if (id < 0) continue;
        lq_buf_puts(b, ",");
        js_put_str(b, special[i].key);
        lq_buf_puts(b, ":");
        put_text(&o, token_at(tokens, id));
    }
    if (gguf_is_sentencepiece(f)) { /* a tokenizer.model does not say */
        bool bos = true, eos = false, prefix = true;
        gguf_bool(f, "tokenizer.ggml.add_space_prefix", &prefix);
        if (!prefix) lq_buf_puts(b, ",\"add_prefix_space\":false");
        gguf_bool(f, "tokenizer.ggml.add_bos_token", &bos);
        gguf_bool(f, "tokenizer.ggml.add_eos_token", &eos);
        lq_buf_puts(b, bos ? ",\"add_bos_token\":true" : ",\"add_bos_token\":false");
        lq_buf_puts(b, eos ? ",\"add_eos_token\":true" : ",\"add_eos_token\":false");
        if (tokens) put_flags(&o, f, tokens);
    }
    put_templates(&o, f);
    lq_buf_puts(b, "}");
    if (!o.st && b->oom) o.st = lq_fail(err, LQ_ENOMEM, "out of memory");
    return o.st;
}
