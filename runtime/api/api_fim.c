/* runtime/api/api_fim.c - filling in the middle: what goes between a text and its continuation, by the tokens
 * that models of code were trained with, as prefix, suffix, middle. */
#include "runtime/api/api_int.h"

#include <stdlib.h>

/* The tokens before the prefix, the suffix and the middle, as families of models spell them. Source:
 * llama.cpp, src/llama-vocab.cpp. */
static const char *const spellings[][3] = {
    { "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>" }, /* Qwen, OLMo */
    { "<fim_prefix>", "<fim_suffix>", "<fim_middle>" },       /* StarCoder, Granite */
    { "<fim-prefix>", "<fim-suffix>", "<fim-middle>" },
    { "<\xef\xbd\x9c"
      "fim\xe2\x96\x81"
      "begin\xef\xbd\x9c>",
      "<\xef\xbd\x9c"
      "fim\xe2\x96\x81"
      "hole\xef\xbd\x9c>",
      "<\xef\xbd\x9c"
      "fim\xe2\x96\x81"
      "end\xef\xbd\x9c>" },                                            /* DeepSeek */
    { "\xe2\x96\x81<PRE>", "\xe2\x96\x81<SUF>", "\xe2\x96\x81<MID>" }, /* CodeLlama */
    { "<PRE>", "<SUF>", "<MID>" },
    { "<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>" }, /* GLM */
};

static bool find_marks(const tok_tokenizer *tok, int32_t marks[3])
{
    for (size_t i = 0; i < LQ_COUNT(spellings); i++) {
        bool all = true;
        for (int k = 0; k < 3; k++) {
            marks[k] = tok_find(tok, spellings[i][k], strlen(spellings[i][k]));
            all &= marks[k] >= 0;
        }
        if (all) return true;
    }
    return false;
}

/* A text in which no token is a control token, behind the others. */
static lq_status add_text(const api *a, api_prompt *p, const char *text, api_error *e)
{
    const size_t n = strlen(text);
    uint8_t *own = calloc(n + 1, 1);
    int32_t *ids = NULL, *all = NULL;
    size_t k = 0;
    if (own && !tok_encode_own(a->m.tok, text, own, n, &ids, &k, NULL))
        all = realloc(p->ids, (p->n + k + 3) * sizeof *all);
    if (all) {
        p->ids = all;
        memcpy(all + p->n, ids, k * sizeof *ids);
        p->n += k;
    }
    free(own);
    free(ids);
    return all ? LQ_OK : api_no_memory(e);
}

/* A control token of one of these texts; -1: the tokenizer has none. */
static int32_t control(const tok_tokenizer *tok, const char *const names[2])
{
    for (int i = 0; i < 2; i++) {
        const int32_t id = tok_find(tok, names[i], strlen(names[i]));
        if (id >= 0 && tok_is_special(tok, id)) return id;
    }
    return -1;
}

static lq_status add_control(const api *a, api_prompt *p, int32_t id, api_error *e)
{
    lq_status s = add_text(a, p, "", e); /* room for it */
    if (!s && id >= 0) p->ids[p->n++] = id;
    return s;
}

/* Other files of the project, and the beginning of this one, as llama.cpp's server puts them before the
 * prefix: with the tokens for files where the tokenizer has them. Source: llama.cpp, format_prompt_infill. */
static lq_status add_extra(const api *a, api_prompt *p, const cJSON *extra, api_error *e)
{
    static const char *const repo[2] = { "<|repo_name|>", "<reponame>" };
    static const char *const file[2] = { "<|file_sep|>", "<file_sep>" };
    const int32_t of_repo = control(a->m.tok, repo), of_file = control(a->m.tok, file);
    lq_status s = LQ_OK;
    if (of_repo >= 0) {
        s = add_control(a, p, of_repo, e);
        if (!s) s = add_text(a, p, "myproject\n", e);
    }
    for (const cJSON *c = extra->child; c && !s; c = c->next) {
        const char *name = cJSON_GetStringValue(js_get(c, "filename"));
        if (of_file >= 0) {
            s = add_control(a, p, of_file, e);
            if (!s) s = add_text(a, p, name ? name : "tmp", e);
            if (!s) s = add_text(a, p, "\n", e);
        } else {
            s = add_text(a, p, "\n\n--- snippet ---\n\n", e);
        }
        if (!s) s = add_text(a, p, js_get(c, "text")->valuestring, e);
    }
    if (s || of_file < 0) return s;
    s = add_control(a, p, of_file, e);
    return s ? s : add_text(a, p, "filename\n", e);
}

bool api_can_fill(const api *a)
{
    int32_t marks[3];
    return a->m.tok && find_marks(a->m.tok, marks);
}

lq_status api_fim(const api *a, api_prompt *p, const char *text, const api_params *params,
                  api_error *e)
{
    int32_t marks[3], *special = NULL;
    size_t n = 0;
    if (!a->m.tok || !find_marks(a->m.tok, marks))
        return api_fail(e, "suffix", "unsupported_value",
                        "suffix: the model's tokenizer has no tokens for a text in the middle");
    if (params->echo) return api_fail(e, "echo", "unsupported_value", "echo: not with suffix");
    size_t bytes = strlen(text) + strlen(params->suffix);
    for (const cJSON *c = params->extra ? params->extra->child : NULL; c; c = c->next)
        bytes += strlen(js_get(c, "text")->valuestring);
    if (bytes > api_most_bytes(a))
        return api_fail(
            e, "prompt", "context_length_exceeded",
            "this model's maximum context length is %lld tokens: prompt and suffix have "
            "more bytes than they can hold",
            (long long)a->m.max_len);
    lq_status s = params->extra ? add_extra(a, p, params->extra, e) : LQ_OK;
    if (!s) s = add_text(a, p, "", e); /* room for the marks */
    if (!s) p->ids[p->n++] = marks[0];
    if (!s) s = add_text(a, p, text, e);
    if (!s) p->ids[p->n++] = marks[1];
    if (!s) s = add_text(a, p, params->suffix, e);
    if (!s) p->ids[p->n++] = marks[2];
    if (s || !params->add_special) return s;
    if (tok_add_special(a->m.tok, p->ids, p->n, &special, &n, NULL)) return api_no_memory(e);
    free(p->ids);
    p->ids = special;
    p->n = n;
    return LQ_OK;
}
