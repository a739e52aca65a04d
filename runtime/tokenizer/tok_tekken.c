/* runtime/tokenizer/tok_tekken.c - Mistral's tekken.json: ranked bytes, a pattern, special tokens.
 *
 *     {"config": {"pattern", "default_vocab_size", "default_num_special_tokens", ...},
 *      "vocab": [{"rank", "token_bytes" (base64), "token_str"}, ...],
 *      "special_tokens": [{"rank", "token_str", "is_control"}, ...]}
 *
 * The special tokens have the first ids, named or not; the token of rank r has the id
 * default_num_special_tokens + r, and ranks from default_vocab_size on are left out. Files of 2024 do
 * not list their special tokens. Source: mistral-common 1.13.1, tokens/tokenizers/tekken.py. */
#include "base/base64.h"
#include "runtime/tokenizer/tok_int.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const of_2024[] = {
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
};

typedef struct {
    const char *pattern;
    int64_t special, ids; /* how many special tokens; how many ids in all */
} config;

static lq_status bad(lq_err *err, const char *what)
{
    return lq_fail(err, LQ_EFORMAT, "tekken.json: %s", what);
}

static lq_status read_config(config *c, const cJSON *root, lq_err *err)
{
    const cJSON *j = js_get(root, "config");
    *c = (config){ .special = 1000, .ids = 131072 };
    lq_status s = js_str(j, "pattern", true, &c->pattern, err);
    if (!s) s = js_i64(j, "default_num_special_tokens", false, 0, TOK_MAX_IDS, &c->special, err);
    if (!s) s = js_i64(j, "default_vocab_size", false, 1, TOK_MAX_IDS, &c->ids, err);
    if (s) return lq_wrap(err, s, "tekken.json: config");
    return c->ids > c->special ? LQ_OK : bad(err, "config: expected more ids than special tokens");
}

static lq_status put_token(tok_builder *b, const config *c, const cJSON *e, lq_buf *raw,
                           lq_buf *text, lq_err *err)
{
    const char *bytes = NULL;
    int64_t rank = 0;
    raw->n = text->n = 0;
    lq_status s = js_i64(e, "rank", true, 0, TOK_MAX_IDS - 1, &rank, err);
    if (!s) s = js_str(e, "token_bytes", true, &bytes, err);
    if (s) return lq_wrap(err, s, "tekken.json: vocab");
    if (rank >= c->ids - c->special) return LQ_OK;
    if (!lq_base64(raw, bytes, strlen(bytes)) || !raw->n)
        return raw->oom ? tok_oom(err) : bad(err, "vocab: expected token_bytes in base64");
    for (size_t k = 0; k < raw->n; k++)
        lq_buf_cp(text, tok_byte_char(raw->u[k]));
    if (text->oom) return tok_oom(err);
    if (tok_find_text(b, text->u, text->n) != TOK_NONE)
        return lq_fail(err, LQ_EFORMAT, "tekken.json: the token of rank %lld is there twice",
                       (long long)rank);
    return tok_put_token(b, tok_put_bytes(b, text->u, text->n), (uint32_t)(c->special + rank), err);
}

static lq_status put_vocab(tok_builder *b, const config *c, const cJSON *root, lq_err *err)
{
    const cJSON *vocab = js_get(root, "vocab");
    lq_buf raw = { 0 }, text = { 0 };
    if (!cJSON_IsArray(vocab)) return bad(err, "vocab: expected an array");
    lq_status s = tok_begin_vocab(b, (size_t)c->ids, (size_t)(c->ids - c->special), err);
    for (const cJSON *e = vocab->child; e && !s; e = e->next)
        s = put_token(b, c, e, &raw, &text, err);
    lq_buf_free(&raw);
    lq_buf_free(&text);
    return s;
}

static lq_status put_merges(tok_builder *b, const config *c, lq_err *err)
{
    uint32_t *rank = malloc((size_t)c->ids * sizeof *rank);
    if (!rank) return tok_oom(err);
    for (int64_t i = 0; i < c->ids; i++)
        rank[i] = i < c->special ? TOK_NONE : (uint32_t)(i - c->special);
    lq_status s = tok_put_splits(b, rank, err);
    free(rank);
    return s;
}

static lq_status put_specials(cJSON *list, const config *c, const cJSON *root, lq_err *err)
{
    const cJSON *own = js_get(root, "special_tokens");
    lq_status s = LQ_OK;
    for (uint32_t i = 0; i < LQ_COUNT(of_2024) && i < c->special && !own && !s; i++)
        s = tok_put_special(list, of_2024[i], i, err);
    for (const cJSON *e = cJSON_IsArray(own) ? own->child : NULL; e && !s; e = e->next) {
        const char *text = NULL;
        int64_t id = 0;
        s = js_str(e, "token_str", true, &text, err);
        if (!s) s = js_i64(e, "rank", true, 0, c->special - 1, &id, err);
        if (s) return lq_wrap(err, s, "tekken.json: special_tokens");
        s = tok_put_special(list, text, (uint32_t)id, err);
    }
    return s;
}

lq_status tok_compile_tekken(uint8_t **blob, size_t *blob_bytes, const cJSON *root, tok_folder *f,
                             lq_err *err)
{
    tok_builder b;
    config c;
    cJSON *list = cJSON_GetObjectItemCaseSensitive(f->tree, "added_tokens");
    tok_build_init(&b, "tekken.json");
    b.ids_given = true;
    b.head.model = TOK_BPE;
    b.head.flags = TOK_IGNORE_MERGES;
    lq_status s = read_config(&c, root, err);
    if (!s) s = put_vocab(&b, &c, root, err);
    if (!s) s = put_merges(&b, &c, err);
    if (!s && cJSON_GetArraySize(list) == 0) s = put_specials(list, &c, root, err);
    f->bos = tok_json_bool(f->config, "add_bos_token", true);
    f->eos = tok_json_bool(f->config, "add_eos_token", false);
    if (!f->bos_text) f->bos_text = "<s>";
    if (!f->eos_text) f->eos_text = "</s>";
    if (!s) s = tok_put_template(&b, f->tree, f, err);
    if (!s) s = tok_put_byte_level(f->tree, c.pattern, false, false, err);
    if (!s) s = tok_compile_rest(&b, f->tree, err);
    if (!s) s = tok_build_finish(&b, blob, blob_bytes, err);
    tok_build_free(&b);
    return s;
}
