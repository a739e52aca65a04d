/* runtime/eval_shard.c - see eval_shard.h. */
#include "runtime/eval_shard.h"

#include "base/hash.h"
#include "base/json.h"
#include "formats/hf/safetensors.h"

#include <stdio.h>
#include <stdlib.h>

static const char format[] = "llmq-scores-1";
enum { MAX_ABOUT = 1 << 20, MAX_TOKENS = 1 << 30, NLL = 0, HASH = 4, N_PARTS };

static const char *const part_names[N_PARTS] = { "nll", "ref_nll", "kl", "agree", "xxh3" };
static const lq_dtype part_types[N_PARTS] = { LQ_F64, LQ_F64, LQ_F64, LQ_U8, LQ_U8 };

static lq_status no_room(lq_err *err) { return lq_fail(err, LQ_ENOMEM, "no memory for scores"); }

/* Where a result keeps them. */
static void *part_of(const eval_result *r, int part)
{
    void *const of[] = { r->token_nll, r->token_ref_nll, r->token_kl, r->token_agree };
    return of[part];
}

static size_t part_bytes(int part, int64_t tokens)
{
    return part == HASH ? sizeof(lq_hash) : (size_t)tokens * lq_dtype_bytes(part_types[part]);
}

/* ---- writing ---- */
static cJSON *about_of(const cJSON *record, bool between, const eval_row *rows, int64_t n_rows)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "format", format);
    cJSON_AddItemToObject(o, "record", cJSON_Duplicate(record, true));
    cJSON_AddBoolToObject(o, "between", between);
    cJSON *list = cJSON_AddArrayToObject(o, "rows");
    for (int64_t i = 0; i < n_rows; i++) {
        const eval_result *r = &rows[i].r;
        cJSON *x = cJSON_CreateObject();
        cJSON_AddNumberToObject(x, "ctx", (double)rows[i].ctx);
        cJSON_AddNumberToObject(x, "per_window", (double)r->per_window);
        cJSON_AddNumberToObject(x, "all_windows", (double)r->all_windows);
        cJSON_AddNumberToObject(x, "from", (double)r->from);
        cJSON_AddNumberToObject(x, "windows", (double)r->windows);
        cJSON_AddBoolToObject(x, "compares", r->token_kl != NULL);
        cJSON_AddItemToArray(list, x);
    }
    return o;
}

typedef struct {
    st_tensor *t;
    char (*name)[32];
    lq_hash *hash;
    size_t n;
} tensors;

static void add_tensor(tensors *w, lq_dtype type, const void *data, size_t bytes)
{
    w->t[w->n] = (st_tensor){ .name = w->name[w->n],
                              .dtype = type,
                              .n_dims = 1,
                              .shape = { (int64_t)(bytes / lq_dtype_bytes(type)) },
                              .data = data,
                              .bytes = bytes };
    w->n++;
}

static lq_status add_row(tensors *w, const eval_result *r, int64_t row, const lq_buf *about,
                         lq_err *err)
{
    lq_hasher *h = lq_hasher_new();
    if (!h) return no_room(err);
    lq_hasher_add(h, about->p, about->n);
    for (int part = NLL; part < HASH; part++) {
        const void *data = part_of(r, part);
        if (!data) continue;
        snprintf(w->name[w->n], sizeof w->name[0], "%lld.%s", (long long)row, part_names[part]);
        lq_hasher_add(h, data, part_bytes(part, r->tokens));
        add_tensor(w, part_types[part], data, part_bytes(part, r->tokens));
    }
    w->hash[row] = lq_hasher_end(h);
    snprintf(w->name[w->n], sizeof w->name[0], "%lld.%s", (long long)row, part_names[HASH]);
    add_tensor(w, LQ_U8, &w->hash[row], sizeof w->hash[row]);
    return LQ_OK;
}

lq_status eval_shard_write(const char *path, const cJSON *record, bool between,
                           const eval_row *rows, int64_t n_rows, lq_err *err)
{
    const size_t most = 1 + (size_t)n_rows * N_PARTS;
    tensors w = { .t = calloc(most, sizeof *w.t),
                  .name = calloc(most, sizeof *w.name),
                  .hash = calloc((size_t)n_rows, sizeof *w.hash) };
    lq_buf text = { 0 };
    cJSON *about = about_of(record, between, rows, n_rows);
    lq_status s = w.t && w.name && w.hash ? js_canonical(&text, about, err) : no_room(err);
    if (!s) {
        snprintf(w.name[0], sizeof w.name[0], "about");
        add_tensor(&w, LQ_U8, text.p, text.n);
    }
    for (int64_t i = 0; i < n_rows && !s; i++)
        s = add_row(&w, &rows[i].r, i, &text, err);
    if (!s) s = st_write(path, w.t, w.n, err);
    lq_buf_free(&text);
    cJSON_Delete(about);
    free(w.t);
    free(w.name);
    free(w.hash);
    return s;
}

/* ---- reading ---- */
typedef struct {
    st_file file;
    cJSON *about;
    const char *path;
} share;

typedef struct {
    int64_t ctx, per_window, all_windows, from, windows;
    bool compares;
} row_head;

static lq_status read_about(cJSON **out, const st_file *f, lq_err *err)
{
    const st_tensor *t = st_find(f, "about");
    const char *is = NULL;
    if (t && !js_parse(out, (const char *)t->data, t->bytes, MAX_ABOUT, JS_UNIQUE, NULL) &&
        !js_str(*out, "format", true, &is, NULL) && strcmp(is, format) == 0 &&
        cJSON_IsObject(js_get(*out, "record")) && cJSON_GetArraySize(js_get(*out, "rows")) > 0)
        return LQ_OK;
    return lq_fail(err, LQ_EFORMAT, "expected scores of `llmq eval --shard`, found none");
}

static lq_status open_share(share *s, const char *path, const share *first, lq_err *err)
{
    s->path = path;
    lq_status e = st_open(&s->file, path, err);
    if (e) return e; /* which names it */
    e = read_about(&s->about, &s->file, err);
    if (!e && first != s &&
        (!cJSON_Compare(js_get(first->about, "record"), js_get(s->about, "record"), true) ||
         cJSON_GetArraySize(js_get(first->about, "rows")) !=
             cJSON_GetArraySize(js_get(s->about, "rows"))))
        e = lq_fail(err, LQ_EVALUE, "expected a share of the same evaluation, found another");
    return e ? lq_wrap(err, e, "%s", path) : LQ_OK;
}

static lq_status read_head(row_head *h, const share *s, int64_t row, lq_err *err)
{
    const cJSON *x = js_get(s->about, "rows")->child;
    for (int64_t i = 0; i < row; i++)
        x = x->next;
    const double most = MAX_TOKENS;
    lq_status e = js_i64(x, "ctx", true, 2, MAX_TOKENS, &h->ctx, err);
    if (!e) e = js_i64(x, "per_window", true, 1, MAX_TOKENS, &h->per_window, err);
    if (!e) e = js_i64(x, "all_windows", true, 1, MAX_TOKENS, &h->all_windows, err);
    if (!e) e = js_i64(x, "from", true, 0, h->all_windows - 1, &h->from, err);
    if (!e) e = js_i64(x, "windows", true, 1, h->all_windows - h->from, &h->windows, err);
    h->compares = cJSON_IsTrue(js_get(x, "compares"));
    if (!e && (double)h->all_windows * (double)h->per_window > most)
        e = lq_fail(err, LQ_EFORMAT, "expected at most %d tokens, found more", MAX_TOKENS);
    return e ? lq_wrap(err, e, "%s: rows", s->path) : LQ_OK;
}

static lq_status room_for_all(eval_row *to, const row_head *h, lq_err *err)
{
    const size_t n = (size_t)(h->all_windows * h->per_window);
    eval_result *r = &to->r;
    to->ctx = h->ctx;
    r->windows = r->all_windows = h->all_windows;
    r->per_window = h->per_window;
    r->tokens = (int64_t)n;
    r->token_nll = calloc(n, sizeof *r->token_nll);
    if (!r->token_nll) return no_room(err);
    if (!h->compares) return LQ_OK;
    r->token_kl = calloc(n, sizeof *r->token_kl);
    r->token_ref_nll = calloc(n, sizeof *r->token_ref_nll);
    r->token_agree = calloc(n, sizeof *r->token_agree);
    return r->token_kl && r->token_ref_nll && r->token_agree ? LQ_OK : no_room(err);
}

static lq_status take_row(eval_row *to, const share *s, int64_t row, const row_head *h, lq_err *err)
{
    const int64_t tokens = h->windows * h->per_window, at = h->from * h->per_window;
    lq_hasher *hash = lq_hasher_new();
    lq_status e = hash ? LQ_OK : no_room(err);
    lq_hash want = { { 0 } };
    const st_tensor *about = st_find(&s->file, "about");
    if (hash) lq_hasher_add(hash, about->data, about->bytes);
    for (int part = NLL; part < N_PARTS && !e; part++) {
        char name[32];
        if (part != NLL && part != HASH && !h->compares) continue;
        snprintf(name, sizeof name, "%lld.%s", (long long)row, part_names[part]);
        const st_tensor *t = st_find(&s->file, name);
        if (!t || t->dtype != part_types[part] || t->bytes != part_bytes(part, tokens)) {
            e = lq_fail(err, LQ_EFORMAT, "%s: expected %s of %lld tokens, found none", s->path,
                        name, (long long)tokens);
        } else if (part == HASH) {
            memcpy(&want, t->data, sizeof want);
        } else {
            lq_hasher_add(hash, t->data, t->bytes);
            memcpy((uint8_t *)part_of(&to->r, part) + part_bytes(part, at), t->data, t->bytes);
        }
    }
    if (!hash) return e;
    const lq_hash found = lq_hasher_end(hash);
    if (!e && memcmp(&found, &want, sizeof want) != 0)
        e = lq_fail(err, LQ_EFORMAT,
                    "%s: expected what was written, found other bytes: the file is damaged",
                    s->path);
    return e;
}

static bool same_row(const row_head *a, const row_head *b)
{
    return a->ctx == b->ctx && a->per_window == b->per_window && a->all_windows == b->all_windows &&
           a->compares == b->compares;
}

/* All shares' part of one length of windows, each window once. */
static lq_status read_row(eval_row *to, const share *s, int n, int64_t row, lq_err *err)
{
    row_head first;
    lq_status e = read_head(&first, &s[0], row, err);
    if (!e) e = room_for_all(to, &first, err);
    uint8_t *had = e ? NULL : calloc((size_t)first.all_windows, 1);
    if (!e && !had) e = no_room(err);
    for (int i = 0; i < n && !e; i++) {
        row_head h;
        e = read_head(&h, &s[i], row, err);
        if (!e && !same_row(&h, &first))
            e = lq_fail(err, LQ_EVALUE, "%s: expected a share of the same windows, found others",
                        s[i].path);
        for (int64_t w = 0; !e && w < h.windows; w++)
            if (had[h.from + w]++)
                e = lq_fail(err, LQ_EVALUE,
                            "%s: expected each window once, found window %lld again", s[i].path,
                            (long long)(h.from + w));
        if (!e) e = take_row(to, &s[i], row, &h, err);
    }
    for (int64_t w = 0; !e && w < first.all_windows; w++)
        if (!had[w])
            e = lq_fail(err, LQ_EVALUE,
                        "scores: expected all %lld windows, window %lld is in none of the files",
                        (long long)first.all_windows, (long long)w);
    free(had);
    return e ? e : eval_summarize(&to->r, cJSON_IsTrue(js_get(s->about, "between")) != 0, err);
}

lq_status eval_shards_read(eval_row **rows, int64_t *n_rows, cJSON **record,
                           const char *const *paths, int n, lq_err *err)
{
    share *s = calloc((size_t)n, sizeof *s);
    lq_status e = s ? LQ_OK : no_room(err);
    *rows = NULL;
    *n_rows = 0;
    *record = NULL;
    int opened = 0;
    while (opened < n && !e) {
        e = open_share(&s[opened], paths[opened], s, err);
        opened++;
    }
    const int64_t most = e ? 0 : cJSON_GetArraySize(js_get(s->about, "rows"));
    if (!e) *rows = calloc((size_t)most + 1, sizeof **rows);
    if (!e && !*rows) e = no_room(err);
    for (int64_t i = 0; i < most && !e; i++) {
        *n_rows = i + 1;
        e = read_row(&(*rows)[i], s, n, i, err);
    }
    if (!e) *record = cJSON_Duplicate(js_get(s->about, "record"), true);
    if (!e && !*record) e = no_room(err);
    for (int i = 0; i < opened; i++) {
        cJSON_Delete(s[i].about);
        st_close(&s[i].file);
    }
    free(s);
    return e;
}
