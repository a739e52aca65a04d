/* convert/parts.c - see parts.h. */
#include "convert/parts.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/path.h"
#include "base/resume.h"
#include "convert/report.h"

#include <stdio.h>
#include <stdlib.h>

enum { GROUPS = 256, PATH = 4200, MAX_ABOUT = 1 << 28 };

struct conv_parts {
    resume at;
    const conv_share *share;
    const conv_pieces *pieces;
    conv_report *r;
    size_t first[GROUPS + 1]; /* piece that a group begins with */
    size_t n;                 /* groups */
    bool have[GROUPS];        /* its JSON is there */
    size_t open;              /* a group that is read; n: none */
    cJSON *about;             /* of it */
    lq_map bytes;
    size_t i, offset;  /* where in it: piece i of all */
    const cJSON *next; /* what is known of piece i */
};

static const resume_kind kind = { .command = "llmq convert",
                                  .parts = "parts",
                                  .afresh = "remove this folder" };

/* ---- groups ---- */
static void cut(conv_parts *p)
{
    const conv_pieces *w = p->pieces;
    size_t all = 0, in = 0;
    for (size_t i = 0; i < w->n; i++)
        all += w->work(w->user, i);
    const size_t most = (size_t)lq_ceil_div((int64_t)all, GROUPS);
    for (size_t i = 0; i < w->n; i++) {
        const size_t own = w->work(w->user, i);
        if (!i || (in >= most && own)) {
            p->first[p->n++] = i;
            in = 0;
        }
        in += own;
    }
    p->first[p->n] = w->n;
}

static lq_status group_path(char path[PATH], const conv_parts *p, size_t g, const char *ending,
                            lq_err *err)
{
    char name[40];
    snprintf(name, sizeof name, "part-%05zu%s", g, ending);
    return lq_path_join(path, PATH, p->at.dir, name, err);
}

/* What is known of a group, with as many pieces as it has; NULL: it is not there. */
static cJSON *group_about(const conv_parts *p, size_t g)
{
    char path[PATH];
    cJSON *j = NULL;
    if (group_path(path, p, g, ".json", NULL) || js_parse_file(&j, path, MAX_ABOUT, 0, NULL))
        return NULL;
    const cJSON *pieces = js_get(j, "pieces");
    if (cJSON_IsArray(pieces) &&
        (size_t)cJSON_GetArraySize(pieces) == p->first[g + 1] - p->first[g])
        return j;
    cJSON_Delete(j);
    return NULL;
}

/* ---- making ---- */
/* Piece i, and what it added to the report: that is counted where the result is written. */
static lq_status make_piece(conv_parts *p, size_t i, lq_out *to, cJSON *pieces, lq_err *err)
{
    const conv_report before = *p->r;
    const size_t at = lq_out_size(to);
    cJSON *about = cJSON_CreateObject();
    if (!about || !cJSON_AddItemToArray(pieces, about)) {
        cJSON_Delete(about);
        return lq_fail(err, LQ_ENOMEM, "no memory for a part");
    }
    p->r->bit_exact = true;
    p->r->requantized = p->r->floats = 0;
    const lq_status s = p->pieces->make(p->pieces->user, i, to, about, err);
    cJSON_AddNumberToObject(about, "bytes", (double)(lq_out_size(to) - at));
    cJSON_AddNumberToObject(about, "requantized", (double)p->r->requantized);
    cJSON_AddNumberToObject(about, "floats", (double)p->r->floats);
    cJSON_AddBoolToObject(about, "bit_exact", p->r->bit_exact);
    *p->r = before;
    return s;
}

static lq_status add_hash(cJSON *j, const char *path, lq_err *err)
{
    char hex[33];
    lq_map m;
    const lq_status s = lq_map_open(&m, path, err);
    if (s) return s;
    const lq_hash h = lq_hash_bytes(m.data, m.size);
    lq_hash_hex(hex, &h);
    lq_map_close(&m);
    cJSON_AddStringToObject(j, "xxh3", hex);
    return LQ_OK;
}

/* The bytes, and when they are on the disk what says so. */
static lq_status make_group(conv_parts *p, size_t g, const lq_job *job, lq_err *err)
{
    char path[PATH], shard[32];
    lq_out *to = NULL;
    lq_buf text = { 0 };
    cJSON *j = cJSON_CreateObject();
    snprintf(shard, sizeof shard, "%d/%d", p->share->shard + 1, p->share->n);
    cJSON_AddStringToObject(j, "shard", shard);
    cJSON *pieces = cJSON_AddArrayToObject(j, "pieces");
    lq_status s =
        pieces ? group_path(path, p, g, "", err) : lq_fail(err, LQ_ENOMEM, "no memory for a part");
    if (!s) s = lq_out_open(&to, path, err);
    for (size_t i = p->first[g]; i < p->first[g + 1] && !s; i++) {
        lq_report(job, "writing", (double)i, (double)p->pieces->n);
        s = lq_stopped(job) ? lq_fail(err, LQ_EINTR, "interrupted")
                            : make_piece(p, i, to, pieces, err);
    }
    if (s)
        lq_out_abort(to);
    else
        s = lq_out_commit(to, err);
    if (!s) s = add_hash(j, path, err);
    if (!s) s = js_canonical(&text, j, err);
    if (!s) s = group_path(path, p, g, ".json", err);
    if (!s) s = lq_write_file(path, text.p, text.n, err);
    lq_buf_free(&text);
    cJSON_Delete(j);
    return s;
}

lq_status conv_parts_make(conv_parts *p, const lq_job *job, lq_err *err)
{
    lq_status s = LQ_OK;
    for (size_t g = (size_t)p->share->shard; g < p->n && !s; g += (size_t)p->share->n)
        if (!p->have[g]) s = make_group(p, g, job, err);
    return s;
}

/* ---- reading ---- */
static void shut(conv_parts *p)
{
    cJSON_Delete(p->about);
    lq_map_close(&p->bytes);
    p->about = NULL;
    p->open = p->n;
}

static void to_first(conv_parts *p)
{
    p->i = p->first[p->open];
    p->offset = 0;
    p->next = js_get(p->about, "pieces")->child;
}

static size_t piece_bytes(const cJSON *about)
{
    int64_t n = 0;
    js_i64(about, "bytes", true, 0, JS_MAX_INT, &n, NULL);
    return (size_t)n;
}

/* Do the bytes have the hash and the size that were written down? */
static bool is_sound(const conv_parts *p)
{
    char hex[33];
    size_t n = 0;
    const char *want = NULL;
    const cJSON *c;
    const lq_hash h = lq_hash_bytes(p->bytes.data, p->bytes.size);
    lq_hash_hex(hex, &h);
    js_str(p->about, "xxh3", true, &want, NULL);
    cJSON_ArrayForEach(c, js_get(p->about, "pieces")) n += piece_bytes(c);
    return want && strcmp(want, hex) == 0 && n == p->bytes.size;
}

/* A part that is damaged is as one that is not there. */
static bool open_group(conv_parts *p, size_t g)
{
    char path[PATH];
    shut(p);
    p->about = group_about(p, g);
    p->have[g] = p->about && !group_path(path, p, g, "", NULL) &&
                 !lq_map_open(&p->bytes, path, NULL) && is_sound(p);
    if (!p->have[g]) {
        shut(p);
        return false;
    }
    p->open = g;
    to_first(p);
    return true;
}

static size_t group_of(const conv_parts *p, size_t i)
{
    size_t g = p->open < p->n && p->first[p->open] <= i ? p->open : 0;
    while (p->first[g + 1] <= i)
        g++;
    return g;
}

static void add_to_report(conv_report *r, const cJSON *about)
{
    int64_t requantized = 0, floats = 0;
    bool exact = true;
    js_i64(about, "requantized", false, 0, JS_MAX_INT, &requantized, NULL);
    js_i64(about, "floats", false, 0, JS_MAX_INT, &floats, NULL);
    js_bool(about, "bit_exact", false, &exact, NULL);
    r->requantized += requantized;
    r->floats += floats;
    r->bit_exact = r->bit_exact && exact;
}

bool conv_parts_get(conv_parts *p, size_t i, qt_span *bytes, const cJSON **about)
{
    if (!p) return false;
    const size_t g = group_of(p, i);
    if (!p->have[g] || (g != p->open && !open_group(p, g))) return false;
    if (i < p->i) to_first(p);
    for (; p->i < i; p->i++, p->next = p->next->next)
        p->offset += piece_bytes(p->next);
    *bytes = (qt_span){ p->bytes.data + p->offset, piece_bytes(p->next) };
    *about = p->next;
    add_to_report(p->r, p->next);
    return true;
}

/* ---- which shares are missing ---- */
/* "2, 4" of N, whose groups are not there; how many. */
static int missing_shares(char *out, size_t n, const conv_parts *p, int of)
{
    int found = 0;
    size_t at = 0;
    for (int k = 0; k < of; k++) {
        bool all = true;
        for (size_t g = (size_t)k; g < p->n; g += (size_t)of)
            all = all && p->have[g];
        if (all) continue;
        if (at < n) at += (size_t)snprintf(out + at, n - at, "%s%d", found ? ", " : "", k + 1);
        found++;
    }
    return found;
}

/* of: shares that the parts are of; 0: of several numbers, or there is none. */
static void say_missing(const conv_parts *p, size_t left, int of)
{
    char shares[128];
    const int n = of ? missing_shares(shares, sizeof shares, p, of) : 0;
    if (!left) return;
    if (n)
        conv_note(p->r, "share%s %s of %d %s not finished: %zu of %zu parts are made here",
                  n > 1 ? "s" : "", shares, of, n > 1 ? "have" : "has", left, p->n);
    else
        conv_note(p->r, "%zu of %zu parts of the shares are missing, and are made here", left,
                  p->n);
}

static void look(conv_parts *p)
{
    size_t left = 0;
    int of = -1; /* none seen */
    for (size_t g = 0; g < p->n; g++) {
        cJSON *j = group_about(p, g);
        const char *text = "";
        int i, n;
        p->have[g] = j != NULL;
        left += !j;
        if (j && !js_str(j, "shard", true, &text, NULL) && sscanf(text, "%9d/%9d", &i, &n) == 2)
            of = of < 0 || of == n ? n : 0;
        cJSON_Delete(j);
    }
    if (!p->share->n) say_missing(p, left, of > 0 ? of : 0);
}

/* ---- */
bool conv_shares_there(const char *out)
{
    enum { MAX_STATE = 1 << 20 };
    char dir[PATH], file[PATH + 16];
    cJSON *j = NULL;
    if (resume_path(dir, sizeof dir, out, NULL) ||
        lq_path_join(file, sizeof file, dir, RESUME_STATE, NULL) || !lq_exists(file))
        return false;
    const bool ours = !js_parse_file(&j, file, MAX_STATE, 0, NULL) && js_get(j, CONV_WHAT);
    cJSON_Delete(j);
    return ours;
}

lq_status conv_parts_open(conv_parts **out, const char *path, const conv_share *share,
                          const conv_pieces *pieces, conv_report *r, lq_err *err)
{
    bool same;
    *out = NULL;
    if (!share->what) return LQ_OK;
    conv_parts *p = calloc(1, sizeof *p);
    if (!p) return lq_fail(err, LQ_ENOMEM, "no memory for parts");
    lq_status s = resume_open(&p->at, &same, path, &kind, share->what, false, share->n > 0, err);
    if (s) {
        free(p);
        return s;
    }
    p->share = share;
    p->pieces = pieces;
    p->r = r;
    cut(p);
    p->open = p->n;
    look(p);
    *out = p;
    return LQ_OK;
}

void conv_parts_close(conv_parts *p, bool remove)
{
    if (!p) return;
    shut(p);
    resume_close(&p->at, remove);
    free(p);
}
