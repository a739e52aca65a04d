/* calib/stats_file.c - see stats_file.h. */
#include "calib/stats_file_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/json.h"
#include "formats/hf/safetensors.h"

static const char format[] = "llmq-stats-1";
enum { STATS_MAX_ABOUT = 1 << 20 };

static lq_status no_room(lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, "no memory for statistics");
}

static size_t triangle(int64_t K) { return (size_t)K * ((size_t)K + 1) / 2; }

static const char *const part_names[STATS_PARTS] = { "h", "sums", "max", "count", "xxh3" };
static const lq_dtype part_types[STATS_PARTS] = { LQ_F32, LQ_F64, LQ_F32, LQ_I64, LQ_U8 };

static size_t part_elements(int part, int64_t K)
{
    const size_t k = (size_t)K;
    switch (part) {
    case PART_H:
        return triangle(K);
    case PART_SUMS:
        return 2 * k;
    case PART_MAX:
        return k;
    case PART_COUNT:
        return k + 1;
    default:
        return sizeof(lq_hash);
    }
}

static size_t part_bytes(int part, int64_t K)
{
    return part_elements(part, K) * lq_dtype_bytes(part_types[part]);
}

static void slot_name(char name[64], int64_t leaf, int64_t layer, int site, int64_t expert,
                      int part)
{
    snprintf(name, 64, "%lld.%lld.%d.%lld.%s", (long long)leaf, (long long)layer, site,
             (long long)expert, part_names[part]);
}

/* ---- what a layer has ---- */
static int64_t width_at(const arch_config *c, int64_t layer, int site)
{
    cal_site s;
    for (arch_role r = 0; r < ARCH_N_ROLES; r++)
        if (arch_has(c, r, layer) && cal_site_of(&s, c, r) && (int)s == site)
            return cal_site_width(site < CAL_N_SHARED ? arch_at(c, layer) : c, s);
    return 0;
}

lq_status stats_find_slots(slots *o, const arch_config *c, lq_err *err)
{
    const size_t most =
        (size_t)c->layers * (CAL_N_SHARED + CAL_N_OF_EXPERT * (size_t)(c->experts + 1));
    *o = (slots){ .v = calloc(most, sizeof *o->v) };
    if (!o->v) return no_room(err);
    for (int64_t i = 0; i < c->layers; i++)
        for (int site = 0; site < CAL_N_SITES; site++) {
            const int64_t K = width_at(c, i, site), of = site < CAL_N_SHARED ? 1 : c->experts;
            for (int64_t e = 0; e < of && K; e++)
                o->v[o->n++] = (slot){ i, site < CAL_N_SHARED ? -1 : e, K, site };
        }
    return LQ_OK;
}

/* ---- writing ---- */
void stats_writer_free(stats_writer *w)
{
    free(w->t);
    free(w->name);
}

lq_status stats_begin_file(stats_writer *w, const char *path, const slots *o, int64_t first,
                           int64_t end, bool want_h, const cJSON *about, lq_err *err)
{
    const size_t most = 1 + o->n * (size_t)(end - first) * STATS_PARTS;
    lq_buf text = { 0 };
    *w = (stats_writer){ .t = calloc(most, sizeof *w->t), .name = calloc(most, sizeof *w->name) };
    if (!w->t || !w->name) return no_room(err);
    lq_status s = js_canonical(&text, about, err);
    if (s) return s;
    w->t[w->n++] = (st_tensor){
        .name = "about", .dtype = LQ_U8, .n_dims = 1, .shape = { (int64_t)text.n }, .bytes = text.n
    };
    for (int64_t leaf = first; leaf < end; leaf++)
        for (size_t i = 0; i < o->n; i++)
            for (int part = want_h ? PART_H : PART_SUMS; part < STATS_PARTS; part++) {
                const slot *at = &o->v[i];
                const size_t n = part_elements(part, at->K);
                slot_name(w->name[w->n], leaf, at->layer, at->site, at->expert, part);
                w->t[w->n] = (st_tensor){ .name = w->name[w->n],
                                          .dtype = part_types[part],
                                          .n_dims = 1,
                                          .shape = { (int64_t)n },
                                          .bytes = part_bytes(part, at->K) };
                w->n++;
            }
    s = st_create(&w->w, path, w->t, w->n, err);
    if (!s) s = st_put(w->w, 0, 0, text.p, text.n, err);
    free(text.p);
    return s;
}

/* Bytes of a part, which the slot's hash is of too. */
static lq_status put_part(stats_writer *w, lq_hasher *h, size_t at, size_t off, const void *p,
                          size_t n, lq_err *err)
{
    lq_hasher_add(h, p, n);
    return st_put(w->w, at, off, p, n, err);
}

lq_status stats_put_slot(stats_writer *w, size_t at, const cal_stats *st, bool want_h, lq_err *err)
{
    const size_t k = (size_t)st->K, counts = k * sizeof *st->reached;
    lq_hasher *h = lq_hasher_new();
    lq_status s = h ? LQ_OK : no_room(err);
    for (size_t i = 0, off = 0; i < k && want_h && !s; off += ++i * sizeof *st->H)
        s = put_part(w, h, at, off, st->H + i * k, (i + 1) * sizeof *st->H, err);
    at += want_h;
    if (!s) s = put_part(w, h, at, 0, st->sum_abs, 2 * k * sizeof *st->sum_abs, err);
    if (!s) s = put_part(w, h, at + 1, 0, st->max_abs, k * sizeof *st->max_abs, err);
    if (!s) s = put_part(w, h, at + 2, 0, st->reached, counts, err);
    if (!s) s = put_part(w, h, at + 2, counts, &st->tokens, sizeof st->tokens, err);
    if (!h) return s;
    const lq_hash of = lq_hasher_end(h);
    return s ? s : st_put(w->w, at + 3, 0, of.b, sizeof of.b, err);
}

cal_stats *stats_of_slot(cal_layer_stats *st, const slot *at)
{
    return at->expert < 0 ? &st->site[at->site]
                          : &st->expert[at->site - CAL_N_SHARED][at->expert - st->first];
}

cJSON *stats_about(int64_t leaves, int64_t first, int64_t end, const cJSON *record)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "format", format);
    cJSON_AddNumberToObject(o, "leaves", (double)leaves);
    cJSON *have = cJSON_AddArrayToObject(o, "have");
    for (int64_t i = first; i < end; i++)
        cJSON_AddItemToArray(have, cJSON_CreateNumber((double)i));
    cJSON_AddItemToObject(o, "record", cJSON_Duplicate(record, true));
    return o;
}

/* ---- reading ---- */
struct stats_set {
    st_file *file;            /* [n] */
    const char *const *paths; /* borrowed */
    int n;
    int64_t leaves;
    int of[STATS_MOST_LEAVES]; /* the file that has a part; -1: none */
    cJSON *about;              /* of the first */
    lq_buf record;             /* ... its record, spelled canonically */
};

static lq_status read_about(cJSON **out, const st_file *f, lq_err *err)
{
    const st_tensor *t = st_find(f, "about");
    const char *is = NULL;
    *out = NULL;
    if (t && !js_parse(out, (const char *)t->data, t->bytes, STATS_MAX_ABOUT, JS_UNIQUE, NULL) &&
        !js_str(*out, "format", true, &is, NULL) && strcmp(is, format) == 0)
        return LQ_OK;
    return lq_fail(err, LQ_EFORMAT,
                   "expected statistics of `llmq quantize --stats-only`, found none");
}

/* The first file's record is kept; others must have the same. */
static lq_status take_record(stats_set *s, const cJSON *about, int64_t leaves, lq_err *err)
{
    lq_buf text = { 0 };
    const cJSON *record = js_get(about, "record");
    if (!cJSON_IsObject(record))
        return lq_fail(err, LQ_EFORMAT, "expected a record of what it was made of, found none");
    lq_status st = js_canonical(&text, record, err);
    if (!st && !s->record.n) {
        s->record = text;
        s->leaves = leaves;
        return LQ_OK;
    }
    if (!st &&
        (leaves != s->leaves || text.n != s->record.n || memcmp(text.p, s->record.p, text.n) != 0))
        st = lq_fail(err, LQ_EVALUE,
                     "expected a shard of the same model, text and options, found another");
    free(text.p);
    return st;
}

static lq_status take_parts(stats_set *s, const cJSON *about, int file, lq_err *err)
{
    const cJSON *x, *have = js_get(about, "have");
    cJSON_ArrayForEach(x, have)
    {
        int64_t k;
        char found[64];
        if (!js_whole(x, 0, s->leaves - 1, &k))
            return lq_fail(err, LQ_EFORMAT, "have: expected parts below %lld, found %s",
                           (long long)s->leaves, js_describe(found, x));
        if (s->of[k] >= 0)
            return lq_fail(err, LQ_EVALUE, "expected each part once, found part %lld again",
                           (long long)k);
        s->of[k] = file;
    }
    return LQ_OK;
}

static lq_status add_file(stats_set *s, int i, lq_err *err)
{
    cJSON *about;
    int64_t leaves = 0;
    lq_status st = st_open(&s->file[i], s->paths[i], err);
    if (st) return st;
    s->n = i + 1;
    st = read_about(&about, &s->file[i], err);
    if (!st) st = js_i64(about, "leaves", true, 1, STATS_MOST_LEAVES, &leaves, err);
    if (!st) st = take_record(s, about, leaves, err);
    if (!st) st = take_parts(s, about, i, err);
    if (!s->about)
        s->about = about;
    else
        cJSON_Delete(about);
    return st ? lq_wrap(err, st, "%s", s->paths[i]) : LQ_OK;
}

lq_status stats_open(stats_set **out, const char *const *paths, int n, lq_err *err)
{
    stats_set *s = *out = calloc(1, sizeof *s);
    if (!s || !(s->file = calloc((size_t)n, sizeof *s->file))) {
        free(s);
        *out = NULL;
        return no_room(err);
    }
    s->paths = paths;
    for (int i = 0; i < STATS_MOST_LEAVES; i++)
        s->of[i] = -1;
    lq_status st = LQ_OK;
    for (int i = 0; i < n && !st; i++)
        st = add_file(s, i, err);
    for (int64_t k = 0; k < s->leaves && !st; k++)
        if (s->of[k] < 0)
            st = lq_fail(err, LQ_EVALUE,
                         "statistics: expected all %lld parts, part %lld is in none of the files",
                         (long long)s->leaves, (long long)k);
    if (!st) return LQ_OK;
    stats_close(s);
    *out = NULL;
    return st;
}

void stats_close(stats_set *s)
{
    for (int i = 0; s && i < s->n; i++)
        st_close(&s->file[i]);
    if (s) {
        free(s->file);
        cJSON_Delete(s->about);
        free(s->record.p);
    }
    free(s);
}

const cJSON *stats_record(const stats_set *s) { return js_get(s->about, "record"); }

/* What a part of the text has of a slot, as it was written. */
static lq_status find_parts(const uint8_t *part[STATS_PARTS], const stats_set *s, int64_t leaf,
                            const slot *at, bool want_h, lq_err *err)
{
    for (int i = want_h ? PART_H : PART_SUMS; i < STATS_PARTS; i++) {
        char name[64];
        slot_name(name, leaf, at->layer, at->site, at->expert, i);
        const st_tensor *t = st_find(&s->file[s->of[leaf]], name);
        if (!t || t->dtype != part_types[i] || t->bytes != part_bytes(i, at->K))
            return lq_fail(err, LQ_EVALUE, "%s: expected %s of %lld inputs, found none",
                           s->paths[s->of[leaf]], name, (long long)at->K);
        part[i] = t->data;
    }
    return LQ_OK;
}

static lq_status check_hash(const uint8_t *const part[STATS_PARTS], const stats_set *s,
                            int64_t leaf, const slot *at, bool want_h, lq_err *err)
{
    lq_hasher *h = lq_hasher_new();
    if (!h) return no_room(err);
    for (int i = want_h ? PART_H : PART_SUMS; i < PART_HASH; i++)
        lq_hasher_add(h, part[i], part_bytes(i, at->K));
    const lq_hash found = lq_hasher_end(h);
    if (memcmp(found.b, part[PART_HASH], sizeof found.b) == 0) return LQ_OK;
    return lq_fail(err, LQ_EFORMAT,
                   "%s: layer %lld, part %lld: expected what was written, found other bytes: the "
                   "file is damaged",
                   s->paths[s->of[leaf]], (long long)at->layer, (long long)leaf);
}

/* Adds one part of the text. False: what no text gives. */
static bool add_parts(cal_stats *to, const uint8_t *const part[STATS_PARTS], bool want_h)
{
    const size_t k = (size_t)to->K;
    int64_t tokens, count;
    bool good = true;
    memcpy(&tokens, part[PART_COUNT] + k * sizeof tokens, sizeof tokens);
    if (tokens < 0 || tokens > JS_MAX_INT) return false;
    for (size_t i = 0, off = 0; i < k && want_h; off += ++i)
        for (size_t j = 0; j <= i; j++) {
            float x;
            memcpy(&x, part[PART_H] + (off + j) * sizeof x, sizeof x);
            good &= isfinite(to->H[i * k + j] += x) != 0;
        }
    for (size_t i = 0; i < 2 * k; i++) {
        double x;
        memcpy(&x, part[PART_SUMS] + i * sizeof x, sizeof x);
        good &= x >= 0 && isfinite(to->sum_abs[i] += x);
    }
    for (size_t i = 0; i < k && good; i++) {
        float x;
        memcpy(&x, part[PART_MAX] + i * sizeof x, sizeof x);
        memcpy(&count, part[PART_COUNT] + i * sizeof count, sizeof count);
        good = x >= 0 && isfinite(x) && count >= 0 && count <= tokens;
        if (x > to->max_abs[i]) to->max_abs[i] = x;
        if (good) to->reached[i] += count;
    }
    to->tokens += tokens;
    return good;
}

/* Sums of all parts, in their order. */
static lq_status sum_slot(cal_stats *to, const stats_set *s, const slot *at, bool want_h,
                          lq_err *err)
{
    for (int64_t leaf = 0; leaf < s->leaves; leaf++) {
        const uint8_t *part[STATS_PARTS];
        lq_status e = find_parts(part, s, leaf, at, want_h, err);
        if (!e) e = check_hash(part, s, leaf, at, want_h, err);
        if (e) return e;
        if (!add_parts(to, part, want_h))
            return lq_fail(
                err, LQ_EVALUE,
                "%s: layer %lld, part %lld: expected sums of finite inputs, found others",
                s->paths[s->of[leaf]], (long long)at->layer, (long long)leaf);
    }
    return LQ_OK;
}

lq_status stats_read(const stats_set *s, cal_layer_stats *st, const arch_config *c, int64_t layer,
                     int64_t first, int64_t n, bool want_h, lq_err *err)
{
    slots all;
    lq_status e = stats_find_slots(&all, c, err);
    if (first == 0) cal_layer_stats_free(st);
    for (int i = 0; i < CAL_N_OF_EXPERT && !e; i++) {
        for (int64_t k = 0; st->expert[i] && k < st->n_experts; k++)
            cal_stats_free(&st->expert[i][k]);
        free(st->expert[i]);
        st->expert[i] = n ? calloc((size_t)n, sizeof *st->expert[i]) : NULL;
        if (n && !st->expert[i]) e = no_room(err);
    }
    st->first = first;
    st->n_experts = n;
    for (size_t i = 0; i < all.n && !e; i++) {
        const slot *at = &all.v[i];
        if (at->layer != layer ||
            (at->expert < 0 ? first != 0 : at->expert < first || at->expert >= first + n))
            continue;
        cal_stats *to = stats_of_slot(st, at);
        e = cal_stats_init(to, at->K, want_h, NULL, err);
        if (!e) e = sum_slot(to, s, at, want_h, err);
        if (!e) e = cal_stats_finish(to, err);
        if (!e && at->expert < 0 && to->tokens > st->tokens) st->tokens = to->tokens;
    }
    free(all.v);
    return e;
}

/* ---- one file of all parts ---- */
/* The slots that the files have, by the names of part 0; all parts of the text have them. */
static lq_status slots_of(slots *o, bool *want_h, const stats_set *s, lq_err *err)
{
    const st_file *f = &s->file[s->of[0]];
    const uint8_t *part[STATS_PARTS];
    lq_status e = LQ_OK;
    *o = (slots){ .v = calloc(f->n + 1, sizeof *o->v) };
    *want_h = false;
    if (!o->v) return no_room(err);
    for (size_t i = 0; i < f->n; i++) {
        long long layer, expert;
        int site, end = 0;
        const st_tensor *t = &f->tensors[i];
        if (sscanf(t->name, "0.%lld.%d.%lld.%n", &layer, &site, &expert, &end) != 3 || !end)
            continue;
        if (strcmp(t->name + end, part_names[PART_H]) == 0) *want_h = true;
        if (strcmp(t->name + end, part_names[PART_MAX]) == 0 && t->bytes >= sizeof(float))
            o->v[o->n++] = (slot){ layer, expert, (int64_t)(t->bytes / sizeof(float)), site };
    }
    for (size_t i = 0; i < o->n && !e; i++)
        for (int64_t leaf = 0; leaf < s->leaves && !e; leaf++)
            e = find_parts(part, s, leaf, &o->v[i], *want_h, err);
    if (e) return e;
    if (!o->n) return lq_fail(err, LQ_EVALUE, "statistics: expected some, found none");
    const size_t want =
        o->n * (size_t)s->leaves * (size_t)(*want_h ? STATS_PARTS : STATS_PARTS - 1);
    size_t found = 0;
    for (int i = 0; i < s->n; i++)
        found += s->file[i].n - 1; /* about */
    if (found == want) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "statistics: expected %zu tensors of sums, found %zu", want,
                   found);
}

lq_status stats_merge(const char *path, const stats_set *s, lq_err *err)
{
    slots all;
    bool want_h;
    stats_writer w = { 0 };
    lq_status e = slots_of(&all, &want_h, s, err);
    cJSON *about = e ? NULL : stats_about(1, 0, 1, stats_record(s));
    if (!e) e = stats_begin_file(&w, path, &all, 0, 1, want_h, about, err);
    for (size_t i = 0, at = 1; i < all.n && !e; i++, at += want_h ? STATS_PARTS : STATS_PARTS - 1) {
        cal_stats sum = { 0 };
        e = cal_stats_init(&sum, all.v[i].K, want_h, NULL, err);
        if (!e) e = sum_slot(&sum, s, &all.v[i], want_h, err);
        if (!e) e = stats_put_slot(&w, at, &sum, want_h, err);
        cal_stats_free(&sum);
    }
    if (e)
        st_abort(w.w);
    else
        e = st_commit(w.w, err);
    stats_writer_free(&w);
    free(all.v);
    cJSON_Delete(about);
    return e;
}
