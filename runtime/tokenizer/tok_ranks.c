/* runtime/tokenizer/tok_ranks.c - tiktoken's files: lines "base64 rank", merged by rank; and the byte-level
 * stages that they share with GPT-2's kind of folder.
 *
 * A file says neither its pattern nor its special tokens: both go by its name. A
 * tokenizer_config.json with added_tokens_decoder beside it has the last word on the latter.
 * Source: openai/tiktoken's table of encodings; the published files of Qwen and Llama 3. */
#include "base/base64.h"
#include "formats/hf/patterns.h"
#include "runtime/tokenizer/tok_int.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    const char *text;
    uint32_t id;
} special;

static const special end_50256[] = { { "<|endoftext|>", 50256 }, { NULL, 0 } };
static const special p50k_edit[] = { { "<|endoftext|>", 50256 },
                                     { "<|fim_prefix|>", 50281 },
                                     { "<|fim_middle|>", 50282 },
                                     { "<|fim_suffix|>", 50283 },
                                     { NULL, 0 } };
static const special cl100k[] = { { "<|endoftext|>", 100257 },   { "<|fim_prefix|>", 100258 },
                                  { "<|fim_middle|>", 100259 },  { "<|fim_suffix|>", 100260 },
                                  { "<|endofprompt|>", 100276 }, { NULL, 0 } };
static const special o200k[] = { { "<|endoftext|>", 199999 },
                                 { "<|endofprompt|>", 200018 },
                                 { NULL, 0 } };
static const special qwen[] = {
    { "<|endoftext|>", 151643 }, { "<|im_start|>", 151644 }, { "<|im_end|>", 151645 }, { NULL, 0 }
};
static const special llama3[] = { { "<|begin_of_text|>", 128000 },
                                  { "<|end_of_text|>", 128001 },
                                  { "<|reserved_special_token_0|>", 128002 },
                                  { "<|reserved_special_token_1|>", 128003 },
                                  { "<|reserved_special_token_2|>", 128004 },
                                  { "<|reserved_special_token_3|>", 128005 },
                                  { "<|start_header_id|>", 128006 },
                                  { "<|end_header_id|>", 128007 },
                                  { "<|reserved_special_token_4|>", 128008 },
                                  { "<|eot_id|>", 128009 },
                                  { NULL, 0 } };

/* `more` tokens follow the listed ones: `series`, a number from `from` on, "|>". */
static const struct {
    const char *name;
    size_t n_ranks;      /* tokenizer.model: told by its length; 0: by name alone */
    const char *pattern; /* NULL: GPT-2's */
    const special *specials;
    const char *series;
    int from, more;
    bool nfc, bos;
} encodings[] = {
    { "r50k_base", 0, NULL, end_50256, NULL, 0, 0, false, false },
    { "gpt2", 0, NULL, end_50256, NULL, 0, 0, false, false },
    { "p50k_base", 0, NULL, end_50256, NULL, 0, 0, false, false },
    { "p50k_edit", 0, NULL, p50k_edit, NULL, 0, 0, false, false },
    { "cl100k_base", 0, PAT_LLAMA3, cl100k, NULL, 0, 0, false, false },
    { "o200k_base", 0, PAT_O200K, o200k, NULL, 0, 0, false, false },
    { "qwen", 0, PAT_QWEN2, qwen, "<|extra_", 0, 205, true, false },
    { "llama3", 128000, PAT_LLAMA3, llama3, "<|reserved_special_token_", 5, 246, false, true },
};

bool tok_is_ranks(const uint8_t *s, size_t n)
{
    size_t i = 0;
    while (i < n && i < 1024 && s[i] > ' ' && s[i] < 0x7F)
        i++;
    return i > 0 && i + 1 < n && s[i] == ' ' && s[i + 1] >= '0' && s[i + 1] <= '9';
}

/* ---- lines ---- */
typedef struct {
    lq_buf bytes; /* of the token, in the byte alphabet */
    uint32_t rank;
} line;

static lq_status read_line(line *l, lq_buf *raw, const char *s, size_t n, size_t number,
                           const char *file, lq_err *err)
{
    const char *space = memchr(s, ' ', n);
    uint64_t rank = 0;
    size_t i = space ? (size_t)(space - s) + 1 : n;
    bool ok = space && i < n && n - i <= 8;
    raw->n = l->bytes.n = 0;
    for (; ok && i < n; i++) {
        ok = s[i] >= '0' && s[i] <= '9';
        rank = rank * 10 + (uint64_t)(s[i] - '0');
    }
    ok = ok && rank < TOK_MAX_IDS && lq_base64(raw, s, (size_t)(space - s)) && raw->n;
    if (raw->oom) return tok_oom(err);
    if (!ok) return lq_fail(err, LQ_EFORMAT, "%s: line %zu: expected 'base64 rank'", file, number);
    for (size_t k = 0; k < raw->n; k++)
        lq_buf_cp(&l->bytes, tok_byte_char(raw->u[k]));
    l->rank = (uint32_t)rank;
    return l->bytes.oom ? tok_oom(err) : LQ_OK;
}

typedef lq_status (*line_sink)(tok_builder *b, const line *l, size_t *n_ids, lq_err *err);

static lq_status each_line(tok_builder *b, const char *s, size_t n, line_sink sink, size_t *n_lines,
                           size_t *n_ids, lq_err *err)
{
    line l = { 0 };
    lq_buf raw = { 0 };
    lq_status st = LQ_OK;
    size_t number = 0;
    for (size_t at = 0; at < n && !st;) {
        const char *stop = memchr(s + at, '\n', n - at);
        size_t end = stop ? (size_t)(stop - s) : n, len = end - at;
        if (len && s[end - 1] == '\r') len--;
        number++;
        if (len) st = read_line(&l, &raw, s + at, len, number, b->file, err);
        if (len && !st) st = sink(b, &l, n_ids, err);
        at = end + 1;
    }
    lq_buf_free(&raw);
    lq_buf_free(&l.bytes);
    *n_lines = number;
    return st;
}

static lq_status count_ids(tok_builder *b, const line *l, size_t *n_ids, lq_err *err)
{
    (void)b, (void)err;
    if (l->rank + 1u > *n_ids) *n_ids = l->rank + 1u;
    return LQ_OK;
}

static lq_status put_line(tok_builder *b, const line *l, size_t *n_ids, lq_err *err)
{
    (void)n_ids;
    if (tok_find_text(b, l->bytes.u, l->bytes.n) != TOK_NONE)
        return lq_fail(err, LQ_EFORMAT, "%s: the token of rank %u is there twice", b->file,
                       l->rank);
    return tok_put_token(b, tok_put_bytes(b, l->bytes.u, l->bytes.n), l->rank, err);
}

static lq_status put_vocab(tok_builder *b, const char *s, size_t n, size_t *n_ids, lq_err *err)
{
    size_t n_lines;
    *n_ids = 0;
    lq_status st = each_line(b, s, n, count_ids, &n_lines, n_ids, err);
    if (!st && *n_ids > 2 * n_lines + 1024)
        st = lq_fail(err, LQ_EFORMAT, "%s: ranks up to %zu in %zu lines", b->file, *n_ids, n_lines);
    if (!st) st = tok_begin_vocab(b, *n_ids, n_lines, err);
    return st ? st : each_line(b, s, n, put_line, &n_lines, n_ids, err);
}

static lq_status put_merges(tok_builder *b, size_t n_ids, lq_err *err)
{
    uint32_t *rank = malloc((n_ids + 1) * sizeof *rank);
    if (!rank) return tok_oom(err);
    for (uint32_t i = 0; i < n_ids; i++)
        rank[i] = i;
    lq_status s = tok_put_splits(b, rank, err);
    free(rank);
    return s;
}

/* ---- stages ---- */
lq_status tok_put_byte_level(cJSON *root, const char *pattern, bool nfc, bool prefix, lq_err *err)
{
    static const char split[] = "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"invert\":false}";
    static const char level[] =
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}";
    cJSON *pre = cJSON_AddObjectToObject(root, "pre_tokenizer"), *e;
    bool ok = pre && cJSON_AddStringToObject(cJSON_AddObjectToObject(root, "decoder"), "type",
                                             "ByteLevel");
    if (nfc)
        ok = ok &&
             cJSON_AddStringToObject(cJSON_AddObjectToObject(root, "normalizer"), "type", "NFC");
    if (!pattern) {
        ok = ok && cJSON_AddStringToObject(pre, "type", "ByteLevel") &&
             cJSON_AddBoolToObject(pre, "add_prefix_space", prefix);
        return ok ? LQ_OK : tok_oom(err);
    }
    ok = ok && cJSON_AddStringToObject(pre, "type", "Sequence");
    cJSON *list = ok ? cJSON_AddArrayToObject(pre, "pretokenizers") : NULL;
    for (int i = 0; i < 2 && list; i++) {
        if (!(e = cJSON_Parse(i ? level : split)) || !cJSON_AddItemToArray(list, e))
            return cJSON_Delete(e), tok_oom(err);
        if (i == 0)
            ok = cJSON_AddStringToObject(cJSON_AddObjectToObject(e, "pattern"), "Regex", pattern);
        if (!ok) break;
    }
    return ok && list ? LQ_OK : tok_oom(err);
}

lq_status tok_put_special(cJSON *list, const char *text, uint32_t id, lq_err *err)
{
    cJSON *o = cJSON_CreateObject();
    bool ok = o && cJSON_AddStringToObject(o, "content", text) &&
              cJSON_AddNumberToObject(o, "id", id) && cJSON_AddTrueToObject(o, "special") &&
              cJSON_AddItemToArray(list, o);
    if (!ok) cJSON_Delete(o);
    return ok ? LQ_OK : tok_oom(err);
}

static lq_status put_specials(cJSON *list, size_t k, lq_err *err)
{
    uint32_t next = 0;
    lq_status s = LQ_OK;
    for (const special *x = encodings[k].specials; x->text && !s; x++) {
        s = tok_put_special(list, x->text, x->id, err);
        next = x->id + 1;
    }
    for (int i = 0; i < encodings[k].more && !s; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s%d|>", encodings[k].series, encodings[k].from + i);
        s = tok_put_special(list, text, next++, err);
    }
    return s;
}

static lq_status find_encoding(size_t *k, const char *file, size_t n_ids, lq_err *err)
{
    const size_t stem = strcspn(file, ".");
    for (*k = 0; *k < LQ_COUNT(encodings); ++*k)
        if ((strlen(encodings[*k].name) == stem && memcmp(encodings[*k].name, file, stem) == 0) ||
            (encodings[*k].n_ranks && encodings[*k].n_ranks == n_ids))
            return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "%s: %zu ranks without a pattern that is known by name: expected r50k_base, "
                   "p50k_base, p50k_edit, cl100k_base, o200k_base, qwen or Llama 3's 128000 ranks; "
                   "or a tokenizer.json",
                   file, n_ids);
}

lq_status tok_compile_ranks(uint8_t **blob, size_t *blob_bytes, const char *file,
                            const uint8_t *data, size_t n, tok_folder *f, lq_err *err)
{
    tok_builder b;
    size_t n_ids = 0, k = 0;
    cJSON *list = cJSON_GetObjectItemCaseSensitive(f->tree, "added_tokens");
    tok_build_init(&b, file);
    b.ids_given = true;
    b.head.model = TOK_BPE;
    b.head.flags = TOK_IGNORE_MERGES;
    lq_status s = put_vocab(&b, (const char *)data, n, &n_ids, err);
    if (!s) s = find_encoding(&k, file, n_ids, err);
    if (!s) s = put_merges(&b, n_ids, err);
    if (!s && cJSON_GetArraySize(list) == 0) s = put_specials(list, k, err);
    if (!s) {
        f->bos = tok_json_bool(f->config, "add_bos_token", encodings[k].bos);
        f->eos = tok_json_bool(f->config, "add_eos_token", false);
        if (!f->bos_text) f->bos_text = encodings[k].specials[0].text;
        s = tok_put_template(&b, f->tree, f, err);
    }
    if (!s) s = tok_put_byte_level(f->tree, encodings[k].pattern, encodings[k].nfc, false, err);
    if (!s) s = tok_compile_rest(&b, f->tree, err);
    if (!s) s = tok_build_finish(&b, blob, blob_bytes, err);
    tok_build_free(&b);
    return s;
}
