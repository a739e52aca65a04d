/* calib/dataset.c - a list of calibration files to one set of windows. */
#include "calib/dataset.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/random.h"
#include "calib/builtin.h"
#include "calib/jsonl.h"
#include "runtime/chat/chat.h"
#include "runtime/tokenizer/tok_text.h"

enum { MAX_PARTS = 64, CHAT_SHARE = 8 /* of the built-in windows one in this many */ };
static const size_t max_file = (size_t)1 << 30;

/* One file, or one kind of what is built in. */
typedef struct {
    char *path;    /* owned */
    bool optional; /* unfit, or too short for a window: none of it is taken */
    cal_part part;
    cal_stream stream;
    cal_samples chosen;
} piece;

typedef struct {
    piece p[MAX_PARTS];
    int n;
} mix;

static void mix_free(mix *m)
{
    for (int i = 0; i < m->n; i++) {
        free(m->p[i].path);
        free(m->p[i].stream.ids);
        cal_samples_free(&m->p[i].chosen);
    }
}

/* ---- the list ---- */
static lq_status bad_list(const char *list, const char *what, lq_err *err)
{
    return lq_fail(err, LQ_EUSAGE,
                   "--calib '%s': %s; expected FILE[:WEIGHT], ...; a backslash before ',' or ':' "
                   "makes it part of the name",
                   list, what);
}

static bool ends_in(const char *name, const char *ext)
{
    const size_t n = strlen(name), e = strlen(ext);
    return n > e && strcmp(name + n - e, ext) == 0;
}

static lq_status add_piece(mix *m, const char *path, const char *kind, double weight, lq_err *err)
{
    if (m->n == MAX_PARTS)
        return lq_fail(err, LQ_EUSAGE, "--calib: expected at most %d files", MAX_PARTS);
    piece *p = &m->p[m->n++];
    *p = (piece){ .path = strdup(path), .part = { .kind = kind, .weight = weight } };
    if (!p->path) return lq_fail(err, LQ_ENOMEM, "no memory for a file's name");
    const char *slash = strrchr(path, '/');
    snprintf(p->part.name, sizeof p->part.name, "%s", slash ? slash + 1 : path);
    return LQ_OK;
}

static lq_status add_named(mix *m, const char *path, double weight, bool chat, lq_err *err)
{
    if (strcmp(path, "builtin") != 0)
        return add_piece(m, path,
                         ends_in(path, ".jsonl") ? "jsonl"
                         : ends_in(path, ".ids") ? "ids"
                                                 : "text",
                         weight, err);
    const double talk = chat ? weight / CHAT_SHARE : 0;
    lq_status s = add_piece(m, path, "builtin", weight - talk, err);
    if (!s && chat) {
        s = add_piece(m, path, "builtin-chat", talk, err);
        m->p[m->n - 1].optional = true;
    }
    return s;
}

/* The next item of the list at *at: its name unescaped, and its weight. */
static lq_status next_item(const char *list, size_t *at, char *name, size_t cap, double *weight,
                           lq_err *err)
{
    size_t n = 0, i = *at;
    for (; list[i] && list[i] != ',' && list[i] != ':'; i++) {
        if (list[i] == '\\' && list[i + 1]) i++;
        if (n + 1 == cap) return bad_list(list, "a name is too long", err);
        name[n++] = list[i];
    }
    name[n] = 0;
    *weight = 1;
    if (!n) return bad_list(list, "an empty name", err);
    if (list[i] == ':') {
        char *end;
        *weight = strtod(list + i + 1, &end);
        if (end == list + i + 1 || (*end && *end != ','))
            return bad_list(list, "a ':' without a number after it", err);
        if (!(*weight >= 1e-6 && *weight <= 1e6))
            return bad_list(list, "a weight that is not within 1e-6..1e6", err);
        i = (size_t)(end - list);
    }
    *at = list[i] ? i + 1 : i;
    if (list[i] && !list[i + 1]) return bad_list(list, "an empty name", err);
    return LQ_OK;
}

static lq_status parse_list(mix *m, const char *list, bool chat, lq_err *err)
{
    char name[4096];
    double weight = 1;
    lq_status s = *list ? LQ_OK : bad_list(list, "an empty name", err);
    for (size_t at = 0; list[at] && !s;) {
        s = next_item(list, &at, name, sizeof name, &weight, err);
        if (!s) s = add_named(m, name, weight, chat, err);
    }
    return s;
}

/* ---- a file to ids ---- */
static lq_status read_ids(cal_stream *s, const char *text, size_t bytes, lq_err *err)
{
    int64_t id = -1;
    size_t line = 1;
    s->given = true;
    lq_status st = LQ_OK;
    for (size_t i = 0; i <= bytes && !st; i++) {
        const char c = i < bytes ? text[i] : '\n';
        if (c >= '0' && c <= '9') {
            id = (id < 0 ? 0 : id * 10) + (c - '0');
            if (id > INT32_MAX) st = lq_fail(err, LQ_EFORMAT, "line %zu: an id above 2^31", line);
            continue;
        }
        const int32_t one = (int32_t)id;
        if (id >= 0) st = cal_stream_add(s, &one, 1, err);
        id = -1;
        if (!st && c != ' ' && c != ',' && c != '\n' && c != '\r' && c != '\t')
            st = lq_fail(err, LQ_EFORMAT,
                         "line %zu: expected token ids separated by spaces, commas or lines, found "
                         "byte 0x%02x",
                         line, (unsigned)(unsigned char)c);
        line += c == '\n';
    }
    return st;
}

static lq_status read_text(cal_stream *s, const char *text, size_t bytes, const tok_tokenizer *tok,
                           lq_err *err)
{
    size_t bad = 0, n = 0;
    const char *nul = memchr(text, 0, bytes);
    int32_t *ids = NULL;
    if (!tok)
        return lq_fail(err, LQ_ENOENT,
                       "a text needs tokenizer.json, which the model lacks; a file NAME.ids or "
                       "NAME.jsonl can hold token ids");
    if (!lq_utf8_valid((const uint8_t *)text, bytes, &bad) || nul)
        return lq_fail(err, LQ_EFORMAT, "expected UTF-8 text, found byte 0x%02x at %zu",
                       nul ? 0u : (unsigned)(unsigned char)text[bad],
                       nul ? (size_t)(nul - text) : bad);
    lq_status st = tok_encode(tok, text, bytes, 0, &ids, &n, err);
    if (!st) st = cal_stream_add(s, ids, n, err);
    free(ids);
    return st;
}

/* What the tokenizer puts before a text, as far as the model has an embedding for it. */
static lq_status find_begin(cal_part *p, const dataset_opts *o, lq_err *err)
{
    const int most = o->len > TOK_BEGIN ? TOK_BEGIN : (int)o->len - 1;
    if (!o->tok) return LQ_OK;
    const lq_status s =
        tok_begin(o->tok, src_config(o->src)->vocab, most, p->begin, &p->n_begin, err);
    return s == LQ_EUNSUPPORTED ? LQ_OK : s;
}

/* Ids of a window that are of the text. */
static int64_t text_of(const cal_part *p, int64_t len) { return len - p->n_begin; }

static lq_status fill_piece(piece *p, const dataset_opts *o, lq_err *err)
{
    const char *kind = p->part.kind;
    const bool file = strncmp(kind, "builtin", 7) != 0, talk = strcmp(kind, "builtin-chat") == 0;
    const char *text = talk ? calib_builtin_chat : calib_builtin_text;
    size_t bytes = talk ? calib_builtin_chat_bytes() : calib_builtin_text_bytes();
    char *own = NULL;
    lq_status s = file ? lq_read_file(&own, &bytes, p->path, max_file, err) : LQ_OK;
    if (s) return lq_wrap(err, s, "--calib");
    if (file) text = own;
    p->part.hash = lq_hash_bytes(text, bytes);
    if (talk || strcmp(kind, "jsonl") == 0)
        s = cal_read_jsonl(&p->stream, text, bytes, o->tok, o->src, err);
    else if (strcmp(kind, "ids") == 0)
        s = read_ids(&p->stream, text, bytes, err);
    else
        s = read_text(&p->stream, text, bytes, o->tok, err);
    free(own);
    if (s && p->optional) { /* a template that refuses plain conversations */
        p->stream.n = 0;
        s = LQ_OK;
    }
    if (!s && !p->stream.given) s = find_begin(&p->part, o, err);
    const int64_t vocab = src_config(o->src)->vocab, n = (int64_t)p->stream.n;
    p->part.available = n / text_of(&p->part, o->len);
    if (!s && !p->optional)
        s = cal_check_ids(p->stream.ids, n, text_of(&p->part, o->len), vocab, err);
    return s ? lq_wrap(err, s, "--calib %s", p->path) : LQ_OK;
}

/* ---- shares ---- */

/* Windows for each piece: of those still to give, by weight among the pieces that have some left,
 * the largest remainders first; until all are given or all is taken. */
static void share_windows(mix *m, int64_t n)
{
    int64_t left = n;
    while (left > 0) {
        double weights = 0;
        int64_t given = 0;
        for (int i = 0; i < m->n; i++)
            if (m->p[i].part.windows < m->p[i].part.available) weights += m->p[i].part.weight;
        if (!(weights > 0)) return;
        for (int i = 0; i < m->n; i++) {
            cal_part *p = &m->p[i].part;
            int64_t room = p->available - p->windows;
            const double share = (double)left * (p->weight / weights);
            const int64_t part = share < (double)room ? (int64_t)share : room;
            p->windows += part;
            given += part;
        }
        left -= given;
        if (given) continue;
        cal_part *best = NULL; /* less than one each: to the one that is furthest behind */
        for (int i = 0; i < m->n; i++) {
            cal_part *p = &m->p[i].part;
            if (p->windows == p->available) continue;
            if (!best ||
                (double)(p->windows + 1) / p->weight < (double)(best->windows + 1) / best->weight)
                best = p;
        }
        best->windows++;
        left--;
    }
}

static lq_status choose_windows(mix *m, const dataset_opts *o, lq_err *err)
{
    lq_status s = LQ_OK;
    for (int i = 0; i < m->n && !s; i++) {
        piece *p = &m->p[i];
        const uint64_t seed = i ? lq_random_of(o->seed ^ lq_random_of((uint64_t)i)) : o->seed;
        if (p->part.windows)
            s = cal_samples_from_ids(&p->chosen, p->stream.ids, (int64_t)p->stream.n,
                                     p->part.windows, text_of(&p->part, o->len), seed,
                                     src_config(o->src)->vocab, err);
        if (s) lq_wrap(err, s, "--calib %s", p->path);
    }
    return s;
}

/* The pieces' windows in turns: window j of n stands at (j + 1/2) / n. */
static lq_status merge(cal_samples *s, const mix *m, int64_t len, lq_err *err)
{
    int64_t taken[MAX_PARTS] = { 0 };
    for (int i = 0; i < m->n; i++) {
        s->n += m->p[i].chosen.n;
        s->available += m->p[i].part.available;
        if (m->p[i].part.n_begin > s->begun) s->begun = m->p[i].part.n_begin;
    }
    s->len = len;
    s->ids = malloc((size_t)(s->n * len) * sizeof *s->ids);
    s->parts = calloc((size_t)m->n, sizeof *s->parts);
    if (!s->ids || !s->parts) return lq_fail(err, LQ_ENOMEM, "no memory for calibration samples");
    for (int i = 0; i < m->n; i++)
        s->parts[s->n_parts++] = m->p[i].part;
    for (int64_t k = 0; k < s->n; k++) {
        int next = -1;
        for (int i = 0; i < m->n; i++) {
            const int64_t n = m->p[i].chosen.n;
            if (taken[i] == n) continue;
            if (next < 0 || (2 * taken[i] + 1) * m->p[next].chosen.n < (2 * taken[next] + 1) * n)
                next = i;
        }
        const cal_part *p = &m->p[next].part;
        const int64_t text = text_of(p, len);
        memcpy(s->ids + k * len, p->begin, (size_t)p->n_begin * sizeof *s->ids);
        memcpy(s->ids + (k + 1) * len - text, m->p[next].chosen.ids + taken[next]++ * text,
               (size_t)text * sizeof *s->ids);
    }
    return cal_samples_hash(s, err);
}

static bool has_chat(const dataset_opts *o)
{
    chat_format *c = NULL;
    const bool has = o->tok && !chat_open(&c, o->src, o->tok, NULL, NULL);
    chat_close(c);
    return has;
}

lq_status dataset_read(cal_samples *out, const char *list, const dataset_opts *o, lq_err *err)
{
    memset(out, 0, sizeof *out);
    mix *m = calloc(1, sizeof *m);
    if (!m) return lq_fail(err, LQ_ENOMEM, "no memory for calibration");
    lq_status s = parse_list(m, list, has_chat(o), err);
    for (int i = 0; i < m->n && !s; i++)
        s = fill_piece(&m->p[i], o, err);
    if (!s) share_windows(m, o->n);
    if (!s) s = choose_windows(m, o, err);
    if (!s) s = merge(out, m, o->len, err);
    if (s) cal_samples_free(out);
    mix_free(m);
    free(m);
    return s;
}
