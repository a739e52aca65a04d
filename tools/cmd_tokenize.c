/* tools/cmd_tokenize.c - `llmq tokenize`: JSON lines of texts to ids and back. */
#include "base/path.h"
#include "tools/cmds.h"

#include "tools/cli/lines.h"
#include "tools/cli/load.h"

#include <stdlib.h>

/* Members of an answer, in their order. */
enum { IDS = 1, IDS_PLAIN = 2, DECODED = 4, DECODED_SKIP = 8, DELTAS = 16, ALL_FIELDS = 31 };
static const char *const field_names[] = { "ids", "ids_plain", "decoded", "decoded_skip",
                                           "deltas" };

typedef struct {
    bool detokenize;
    const char *fields;
} tokenize_opts;

typedef struct {
    const tok_tokenizer *t;
    unsigned fields;
} answerer;

#define F(field) offsetof(tokenize_opts, field)
static const opt_row rows[] = {
    { "detokenize", 0, OPT_FLAG, F(detokenize), .help = "read {\"ids\": [...]} instead of texts" },
    { "fields", 0, OPT_STR, F(fields), .arg = "NAME[,NAME...]",
      .help = "answer with these members alone" },
};

static void put_ids(jw *out, const char *key, const int32_t *ids, size_t n)
{
    jw_key(out, key);
    jw_open(out, '[');
    for (size_t i = 0; i < n; i++)
        jw_i64(out, ids[i]);
    jw_close(out, ']');
}

/* What a stream emits at each id; what is left at the end comes with the last one. All of it
 * together, into `whole`, is the decoded text. */
static lq_status put_deltas(jw *deltas, lq_buf *whole, const tok_tokenizer *t, const int32_t *ids,
                            size_t n, lq_err *err)
{
    tok_stream *d = NULL;
    const char *delta = "";
    size_t n_delta = 0, from = 0;
    lq_status s = tok_stream_new(&d, t, false, err);
    jw_key(deltas, "deltas");
    jw_open(deltas, '[');
    for (size_t i = 0; i < n && !s; i++) {
        s = tok_stream_push(d, ids[i], &delta, &n_delta, err);
        if (s) break;
        from = whole->n;
        lq_buf_add(whole, delta, n_delta);
        if (i + 1 < n) jw_str(deltas, delta, n_delta);
    }
    if (!s) s = tok_stream_flush(d, &delta, &n_delta, err);
    if (!s) lq_buf_add(whole, delta, n_delta);
    if (!s && whole->oom) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    if (!s && n) jw_str(deltas, whole->n ? whole->p + from : "", whole->n - from);
    jw_close(deltas, ']');
    tok_stream_free(d);
    return s;
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

static bool any_special(const tok_tokenizer *t, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (tok_is_special(t, ids[i])) return true;
    return false;
}

/* The texts of ids. A stream gives the deltas and the text in one go; without special tokens the
 * text that leaves them out is the same. */
static lq_status put_texts(jw *out, const answerer *a, const int32_t *ids, size_t n, lq_err *err)
{
    jw deltas = { 0 };
    lq_buf text = { 0 };
    const bool skip_apart = (a->fields & DECODED_SKIP) && any_special(a->t, ids, n);
    const unsigned whole = skip_apart ? DECODED | DELTAS : DECODED | DELTAS | DECODED_SKIP;
    lq_status s = LQ_OK;
    if (a->fields & whole) s = put_deltas(&deltas, &text, a->t, ids, n, err);
    const char *p = text.p ? text.p : "";
    if (!s && (a->fields & DECODED)) {
        jw_key(out, "decoded");
        jw_str(out, p, text.n);
    }
    if (!s && skip_apart) s = put_decoded(out, "decoded_skip", a->t, ids, n, true, err);
    if (!s && (a->fields & DECODED_SKIP) && !skip_apart) {
        jw_key(out, "decoded_skip");
        jw_str(out, p, text.n);
    }
    if (!s && (a->fields & DELTAS)) jw_json(out, deltas.b.p, deltas.b.n);
    if (!s && deltas.b.oom) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    jw_free(&deltas);
    lq_buf_free(&text);
    return s;
}

static lq_status tokenize_line(void *user, const cJSON *line, jw *out, lq_err *err)
{
    const answerer *a = user;
    char *text = NULL;
    int32_t *ids = NULL, *plain = NULL;
    size_t n = 0, n_ids = 0, n_plain = 0;
    lq_status s = lines_text(line, "text", &text, &n, err);
    if (!s) s = tok_encode(a->t, text, n, 0, &plain, &n_plain, err);
    if (!s) s = tok_add_special(a->t, plain, n_plain, &ids, &n_ids, err);
    if (!s) {
        jw_open(out, '{');
        if (a->fields & IDS) put_ids(out, "ids", ids, n_ids);
        if (a->fields & IDS_PLAIN) put_ids(out, "ids_plain", plain, n_plain);
        s = put_texts(out, a, ids, n_ids, err);
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
    if (!s) load_say_notes(path, *src);
    return s ? s : load_tok_open(l, *src, path, err);
}

/* "ids,deltas"; NULL: all of them. */
static lq_status parse_fields(unsigned *fields, const char *list, lq_err *err)
{
    *fields = list ? 0 : ALL_FIELDS;
    for (size_t n; list && *list; list += n + (list[n] == ',')) {
        size_t i = 0;
        n = strcspn(list, ",");
        while (i < LQ_COUNT(field_names) &&
               (strlen(field_names[i]) != n || memcmp(field_names[i], list, n) != 0))
            i++;
        if (i == LQ_COUNT(field_names))
            return lq_fail(err, LQ_EUSAGE,
                           "--fields: expected ids, ids_plain, decoded, decoded_skip or deltas, "
                           "found '%.*s'",
                           (int)(n < 40 ? n : 40), list);
        *fields |= 1u << i;
    }
    return *fields ? LQ_OK : lq_fail(err, LQ_EUSAGE, "--fields: expected a name, found none");
}

static lq_status tokenize_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const tokenize_opts *o = opts;
    load_tok tok;
    src_source *src = NULL;
    answerer a = { 0 };
    lq_status s = parse_fields(&a.fields, o->fields, err);
    if (s) return s;
    s = open_tokenizer(&tok, &src, c->argv[0], err);
    a.t = tok.t;
    if (!s) s = lines_run(o->detokenize ? detokenize_line : tokenize_line, &a, err);
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
               "three out. --fields ids is the quick way to ids alone.",
    .args = { { "MODEL", 1, 1, "a model, or a folder with a tokenizer's files", FILES_TEXT } },
    .groups = { OPT_GROUP("Options", rows, 0) },
    .examples = "echo '{\"text\": \"Hello\"}' | llmq tokenize models/novels-6m\0"
                "echo '{\"ids\": [1, 2]}' | llmq tokenize model.llmq --detokenize\0",
    .opts_bytes = sizeof(tokenize_opts),
    .run = tokenize_run,
};
