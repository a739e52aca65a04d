/* tools/cmd_tokenize.c - `llmq tokenize`: JSON lines of texts to ids and back. */
#include "tools/cmds.h"

#include "tools/lines.h"
#include "tools/load.h"

#include <stdlib.h>

typedef struct {
    bool detokenize;
} tokenize_opts;

#define F(field) offsetof(tokenize_opts, field)
static const opt_row rows[] = {
    { "detokenize", 0, OPT_FLAG, F(detokenize), .help = "read {\"ids\": [...]} instead of texts" },
};

static void put_ids(jw *out, const char *key, const int32_t *ids, size_t n)
{
    jw_key(out, key);
    jw_open(out, '[');
    for (size_t i = 0; i < n; i++)
        jw_i64(out, ids[i]);
    jw_close(out, ']');
}

static lq_status put_decoded(jw *out, const char *key, const tok_tokenizer *t, const int32_t *ids,
                             size_t n, bool skip, lq_err *err)
{
    char *text = NULL;
    size_t n_text = 0;
    lq_status s = tok_decode(t, ids, n, skip, &text, &n_text, err);
    if (s) return s;
    jw_key(out, key);
    jw_str(out, text, n_text);
    free(text);
    return LQ_OK;
}

/* What a stream emits at each id; what is left at the end comes with the last one. */
static lq_status put_deltas(jw *out, const tok_tokenizer *t, const int32_t *ids, size_t n,
                            lq_err *err)
{
    tok_stream *d = NULL;
    const char *delta = "";
    size_t n_delta = 0;
    jw last = { 0 };
    lq_status s = tok_stream_new(&d, t, false, err);
    jw_key(out, "deltas");
    jw_open(out, '[');
    for (size_t i = 0; i < n && !s; i++) {
        s = tok_stream_push(d, ids[i], &delta, &n_delta, err);
        if (s) break;
        if (i + 1 < n)
            jw_str(out, delta, n_delta);
        else
            jw_bytes(&last, delta, n_delta);
    }
    if (!s) s = tok_stream_flush(d, &delta, &n_delta, err);
    if (!s && n) {
        jw_bytes(&last, delta, n_delta);
        jw_str(out, last.p ? last.p : "", last.n);
    }
    jw_close(out, ']');
    tok_stream_free(d);
    if (!s && last.oom) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    jw_free(&last);
    return s;
}

static lq_status put_texts(jw *out, const tok_tokenizer *t, const int32_t *ids, size_t n,
                           lq_err *err)
{
    lq_status s = put_decoded(out, "decoded", t, ids, n, false, err);
    if (!s) s = put_decoded(out, "decoded_skip", t, ids, n, true, err);
    return s ? s : put_deltas(out, t, ids, n, err);
}

static lq_status tokenize_line(void *user, const cJSON *line, jw *out, lq_err *err)
{
    const tok_tokenizer *t = user;
    char *text = NULL;
    int32_t *ids = NULL, *plain = NULL;
    size_t n = 0, n_ids = 0, n_plain = 0;
    lq_status s = lines_text(line, "text", &text, &n, err);
    if (!s) s = tok_encode(t, text, n, TOK_ADD_SPECIAL, &ids, &n_ids, err);
    if (!s) s = tok_encode(t, text, n, 0, &plain, &n_plain, err);
    if (!s) {
        jw_open(out, '{');
        put_ids(out, "ids", ids, n_ids);
        put_ids(out, "ids_plain", plain, n_plain);
        s = put_texts(out, t, ids, n_ids, err);
        jw_close(out, '}');
    }
    free(plain);
    free(ids);
    free(text);
    return s;
}

static lq_status detokenize_line(void *user, const cJSON *line, jw *out, lq_err *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(line, "ids"), *e;
    if (!cJSON_IsArray(list)) return lq_fail(err, LQ_EVALUE, "expected an array \"ids\"");
    int32_t *ids = malloc(((size_t)cJSON_GetArraySize(list) + 1) * sizeof *ids);
    size_t n = 0;
    lq_status s = ids ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
    for (e = list->child; e && !s; e = e->next) {
        double v = cJSON_IsNumber(e) ? e->valuedouble : -1;
        if (v != floor(v) || !(v >= 0 && v <= INT32_MAX))
            s = lq_fail(err, LQ_EVALUE, "ids[%zu]: expected a token id", n);
        else
            ids[n++] = (int32_t)v;
    }
    if (!s) {
        jw_open(out, '{');
        s = put_texts(out, user, ids, n, err);
        jw_close(out, '}');
    }
    free(ids);
    return s;
}

/* MODEL, or a folder that holds nothing but a tokenizer's files, or a tokenizer.json itself. */
static lq_status open_tokenizer(load_tok *l, src_source **src, const char *path, lq_err *err)
{
    size_t n = strlen(path);
    const bool json = n > 5 && strcmp(path + n - 5, ".json") == 0 && !lq_is_dir(path);
    memset(l, 0, sizeof *l);
    if (json) return tok_open_file(&l->t, path, err);
    lq_status s = src_open(src, path, &(src_opts){ .no_tensors = true }, err);
    return s ? s : load_tok_open(l, *src, path, err);
}

static lq_status run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const tokenize_opts *o = opts;
    load_tok tok;
    src_source *src = NULL;
    lq_status s = open_tokenizer(&tok, &src, c->argv[0], err);
    if (!s) s = lines_run(o->detokenize ? detokenize_line : tokenize_line, tok.t, err);
    load_tok_close(&tok);
    src_close(src);
    return s;
}

const cmd_row cmd_tokenize = {
    .name = "tokenize",
    .summary = "texts to token ids and back",
    .details = "Reads JSON lines {\"text\"} and writes for each {\"ids\" (with special tokens), "
               "\"ids_plain\", \"decoded\", \"decoded_skip\" (without special tokens), \"deltas\" "
               "(what streaming sends at each id)}. With --detokenize, {\"ids\"} in and the last "
               "three out.",
    .args = { { "MODEL", 1, 1, "a model, or a folder with a tokenizer's files" } },
    .groups = { OPT_GROUP("Options", rows, 0) },
    .examples = "echo '{\"text\": \"Hello\"}' | llmq tokenize models/novels-6m\0"
                "echo '{\"ids\": [1, 2]}' | llmq tokenize model.llmq --detokenize\0",
    .opts_bytes = sizeof(tokenize_opts),
    .run = run,
};
