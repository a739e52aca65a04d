/* formats/source/source_gguf.c - a GGUF file as a model: metadata becomes a config, tensors get their
 * Hugging Face names, blocks our schemes (formats/gguf/gguf_blocks.h). */
#include "formats/source/source_impl.h"

#include "base/json.h"
#include "formats/arch/generation_config.h"
#include "formats/gguf/gguf_blocks.h"
#include "formats/gguf/gguf_config.h"
#include "formats/gguf/gguf_tok.h"
#include "formats/source/history.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- blobs ---- */
static lq_status add_blob(src_source *s, const char *name, const lq_buf *b, lq_err *err)
{
    char *copy = b->oom ? NULL : lq_push(&s->arena, b->n + 1);
    if (!copy) return lq_fail(err, LQ_ENOMEM, "out of memory");
    memcpy(copy, b->p, b->n);
    s->blobs[s->n_blobs++] = (src_blob){ name, (const uint8_t *)copy, b->n };
    return LQ_OK;
}

static lq_status read_text(src_source *s, lq_err *err)
{
    lq_buf b = { 0 };
    gguf_reason why = { "" };
    const bool pieces = gguf_is_sentencepiece(&s->gguf);
    lq_status st = pieces ? gguf_sentencepiece(&b, &s->gguf, &why, err)
                          : gguf_tokenizer(&b, &s->gguf, &why, err);
    if (!st && b.n) st = add_blob(s, pieces ? "tokenizer.model" : "tokenizer.json", &b, err);
    if (!st && !b.n)
        st = src_no_tokenizer(s, err, "the tokenizer of this GGUF file is not used: %s", why.text);
    else if (!st && *why.text)
        st = src_note(s, err, "%s", why.text);
    b.n = 0;
    if (!st) st = gguf_tokenizer_config(&b, &s->gguf, err);
    if (!st) st = add_blob(s, "tokenizer_config.json", &b, err);
    free(b.p);
    return st;
}

static lq_status read_config(src_source *s, const gguf_arch *row, bool need, lq_err *err)
{
    cJSON *j;
    lq_buf text = { 0 };
    lq_status st = gguf_config(&j, &s->gguf, row, err);
    if (!st) st = arch_config_parse(&s->config, j, NULL, err);
    s->has_config = !st;
    if (!st) st = js_canonical(&text, j, err);
    if (!st) st = add_blob(s, "config.json", &text, err);
    free(text.p);
    cJSON_Delete(j);
    if (!st || need || st == LQ_ENOMEM) return st;
    lq_wrap(err, st, "%s", s->path);
    return src_set_unfit(s, st, err, err);
}

/* The makers' sampling, as generation_config.json says it. Numbers are f32 there. */
static lq_status read_sampling(src_source *s, lq_err *err)
{
    lq_buf b = { 0 };
    gen_defaults g;
    lq_err why;
    for (const gguf_sampling_key *k = gguf_sampling; k->hf; k++) {
        char text[64], key[64];
        double v;
        int64_t n;
        snprintf(key, sizeof key, GGUF_SAMPLING "%s", k->gguf);
        if (k->whole && gguf_int(&s->gguf, key, &n))
            snprintf(text, sizeof text, "%s\"%s\":%lld", b.n ? "," : "{", k->hf, (long long)n);
        else if (!k->whole && gguf_float(&s->gguf, key, &v) && isfinite(v))
            snprintf(text, sizeof text, "%s\"%s\":%.7g", b.n ? "," : "{", k->hf, v);
        else
            continue;
        lq_buf_puts(&b, text);
    }
    if (b.n) lq_buf_puts(&b, "}");
    lq_status st = LQ_OK;
    if (!b.oom && gen_read(&g, (const uint8_t *)b.p, b.n, &why))
        st = src_note(s, err, "the sampling that this GGUF file asks for is not used: %.300s",
                      why.msg);
    else if (b.n || b.oom)
        st = add_blob(s, "generation_config.json", &b, err);
    free(b.p);
    return st;
}

/* Keys of llmq: the recipe of what this file was converted from, if the tensors are still those. */
static lq_status read_history(src_source *s, lq_err *err)
{
    static const char *const parts[] = { HISTORY_RECIPE, HISTORY_PROVENANCE, HISTORY_CONVERTED };
    char hex[33];
    const char *was = NULL, *text;
    if (!gguf_str(&s->gguf, HISTORY_TENSORS, &was)) return LQ_OK;
    const lq_hash h = gguf_tensors_hash(s->gguf.tensors, s->gguf.n);
    lq_hash_hex(hex, &h);
    if (strcmp(hex, was) != 0)
        return src_note(s, err,
                        HISTORY_TENSORS " is of other tensors than these: the recipe that stands "
                                        "beside it is not used");
    cJSON *j = cJSON_CreateObject();
    lq_status st = LQ_OK;
    for (size_t i = 0; i < LQ_COUNT(parts) && !st; i++) {
        char key[64];
        cJSON *part = NULL;
        snprintf(key, sizeof key, HISTORY_GGUF "%s", parts[i]);
        if (!gguf_str(&s->gguf, key, &text)) continue;
        st = js_parse(&part, text, strlen(text), (size_t)16 << 20, JS_UNIQUE, err);
        if (st) lq_wrap(err, st, "%s", key);
        if (part && !cJSON_AddItemToObject(j, parts[i], part))
            st = lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    src_set_history(s, j);
    return st;
}

static lq_status read_about(src_source *s, lq_err *err)
{
    gguf_str(&s->gguf, "general.license", &s->license);
    lq_status st = read_sampling(s, err);
    return st ? st : read_history(s, err);
}

/* ---- tensors ---- */
typedef struct {
    ggml_type type;
    const uint8_t *data;
    int64_t heads;            /* rows are turned within each of them; 0: as they are */
    const arch_config *apart; /* rows are q, k and v apart; NULL: as they are */
    float offset;             /* was added to each element, of f32 */
} stored;

static size_t row_of(const stored *p, int64_t n, int64_t N)
{
    return (size_t)(p->apart ? gguf_apart_row(n, p->apart) : gguf_stored_row(n, N, p->heads));
}

static void fill_vector(uint8_t *w, const qt_tensor *t, const stored *p)
{
    const size_t e = gguf_row_bytes(p->type, 1);
    for (int64_t k = 0; k < t->K; k++)
        memcpy(w + (size_t)k * e, p->data + row_of(p, k, t->K) * e, e);
    for (int64_t k = 0; k < t->K && p->offset > 0; k++) {
        float f;
        memcpy(&f, w + 4 * k, 4);
        f -= p->offset;
        memcpy(w + 4 * k, &f, 4);
    }
}

static void source_gguf_fill(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const stored *p = from;
    if (t->N == 1 && t->scheme.kind == QT_DENSE) {
        fill_vector(w[QT_CODES], t, p);
        return;
    }
    const size_t row = gguf_row_bytes(p->type, t->K);
    for (int64_t n = 0; n < t->N; n++)
        gguf_unpack_row(w, t, n, p->type, p->data + row_of(p, n, t->N) * row);
}

/* A tensor of the model: its row, slot and name as Hugging Face has it; row NULL: none that we
 * know, its name stays. */
typedef struct {
    const gguf_name *row;
    arch_slot slot;
} place;

/* "blk.3.attn_q.weight" */
static place place_of(const src_source *s, const char *gguf)
{
    place w = { .slot = { .layer = -1, .expert = -1 } };
    const char *p = gguf, *ending;
    long layer = -1;
    if (!s->has_config) return w;
    if (strncmp(p, "blk.", 4) == 0) {
        char *end;
        layer = strtol(p + 4, &end, 10);
        if (end == p + 4 || *end != '.' || layer < 0 || layer >= s->config.layers) return w;
        p = end + 1;
    }
    ending = strrchr(p, '.');
    if (!ending || (strcmp(ending, ".weight") != 0 && strcmp(ending, ".bias") != 0)) return w;
    w.row = gguf_name_find(&s->config, p, (size_t)(ending - p), layer >= 0);
    if (!w.row) return w;
    const bool bias = strcmp(ending, ".bias") == 0 && w.row->role != R_ROUTER_CORR;
    w.slot = (arch_slot){ w.row->role, layer, -1, bias };
    return w;
}

static const char *hf_name(src_source *s, const gguf_tensor *g, const place *w)
{
    char out[512];
    if (!w->row || !arch_tensor_name(&s->config, w->slot.role, w->slot.layer, w->slot.expert,
                                     w->slot.bias, out, sizeof out))
        return g->name;
    return lq_push_str(&s->arena, out, strlen(out));
}

static lq_status make_tensor(src_source *s, src_tensor *t, const gguf_tensor *g,
                             const gguf_arch *row, const place *w, lq_err *err)
{
    int64_t heads = 0;
    float offset = 0;
    const arch_config *apart = NULL;
    const char *name = hf_name(s, g, w);
    if (!name) return lq_fail(err, LQ_ENOMEM, "out of memory");
    const int64_t K = g->shape[g->n_dims - 1], N = (int64_t)(g->bytes / gguf_row_bytes(g->type, K));
    if (w->row) {
        heads = gguf_turned_heads(row, &s->config, w->slot.role);
        offset = gguf_norm_offset(&s->config, &w->slot);
        if (w->slot.role == R_QKV && row->qkv == QKV_APART && s->config.w.qkv_grouped)
            apart = &s->config;
    }
    const int64_t rows = g->n_dims == 1 ? K : N;
    if (heads && (rows % heads || rows / heads % 2))
        return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected rows of %lld heads", g->name,
                       (long long)heads);
    if (apart && rows != (apart->heads + 2 * apart->kv_heads) * apart->head_dim)
        return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected rows of %lld heads", g->name,
                       (long long)(apart->heads + 2 * apart->kv_heads));
    if (offset > 0 && (g->type != GGML_F32 || g->n_dims != 1))
        return lq_fail(err, LQ_EUNSUPPORTED, "tensor '%.100s': expected a vector of F32", g->name);
    qt_tensor q = { .scheme = gguf_scheme(g->type), .N = N, .K = K };
    if (q.scheme.kind == QT_DENSE && !heads && !apart && !(offset > 0))
        return src_fill_plain(t, name, q.scheme.dtype, g->n_dims, g->shape, g->data, g->bytes, err);
    *t = (src_tensor){ .name = name, .n_dims = g->n_dims, .raw_dtype = LQ_U8, .t = q };
    if (q.scheme.kind == QT_DENSE) t->raw_dtype = q.scheme.dtype;
    memcpy(t->shape, g->shape, sizeof t->shape);
    stored *from = lq_push(&s->arena, sizeof *from);
    if (!from) return lq_fail(err, LQ_ENOMEM, "out of memory");
    *from = (stored){ g->type, g->data, heads, apart, offset };
    const qt_span span = { g->data, g->bytes };
    if (q.scheme.kind == QT_BLOCKS && !heads && !apart) t->t.plane[QT_CODES] = span;
    lq_status st = src_make(s, t, source_gguf_fill, from, err);
    return st ? st : src_made_from(s, t, &span, 1, err);
}

/* One tensor of the file, or as many as it has experts. */
static lq_status make_all_of(src_source *s, const gguf_tensor *g, const gguf_arch *row, lq_err *err)
{
    place w = place_of(s, g->name);
    gguf_tensor one = *g;
    if (w.row && w.row->stacked && g->n_dims != 3)
        w.row = NULL; /* whatever it is, it is not that */
    const bool stacked = w.row && w.row->stacked;
    const int64_t count = stacked ? g->shape[0] : 1;
    lq_status st = LQ_OK;
    if (stacked) {
        one.n_dims = 2;
        one.bytes = g->bytes / (size_t)count;
        memmove(one.shape, g->shape + 1, 2 * sizeof *one.shape);
    }
    if (w.row && w.slot.role == R_SHARED_ROUTER && g->n_dims == 1) { /* its one row */
        one.n_dims = 2;
        one.shape[1] = one.shape[0];
        one.shape[0] = 1;
    }
    for (int64_t e = 0; e < count && !st; e++) {
        one.data = g->data + (size_t)e * one.bytes;
        w.slot.expert = e;
        st = make_tensor(s, &s->tensors[s->n_tensors], &one, row, &w, err);
        if (!st) s->n_tensors++;
    }
    return st;
}

/* How many there will be. */
static lq_status make_place(src_source *s, lq_err *err)
{
    enum { MAX_EXPERTS = 65536 };
    const gguf_file *f = &s->gguf;
    size_t n = 1;
    for (size_t i = 0; i < f->n; i++) {
        const gguf_tensor *g = &f->tensors[i];
        if (g->n_dims == 3 && g->shape[0] > MAX_EXPERTS)
            return lq_fail(err, LQ_EUNSUPPORTED, "tensor '%.100s': expected at most %d experts",
                           g->name, MAX_EXPERTS);
        n += g->n_dims == 3 ? (size_t)g->shape[0] : 1;
    }
    s->tensors = lq_push(&s->arena, n * sizeof *s->tensors);
    return s->tensors ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
}

static lq_status read_tensors(src_source *s, const gguf_arch *row, lq_err *err)
{
    const gguf_file *f = &s->gguf;
    lq_status st = make_place(s, err);
    for (size_t i = 0; i < f->n && !st; i++) {
        if (s->has_config && gguf_is_rope(f->tensors[i].name)) continue;
        st = make_all_of(s, &f->tensors[i], row, err);
    }
    if (st) return st;
    if (s->n_tensors) qsort(s->tensors, s->n_tensors, sizeof *s->tensors, src_by_name);
    for (size_t i = 1; i < s->n_tensors; i++)
        if (strcmp(s->tensors[i - 1].name, s->tensors[i].name) == 0)
            return lq_fail(err, LQ_EFORMAT, "tensor '%.100s' is given twice", s->tensors[i].name);
    return src_make_room(s, err);
}

/* ---- the file, or files ---- */
static lq_status unknown_arch(const char *arch, lq_err *err)
{
    char names[400] = "";
    size_t at = 0;
    for (const gguf_arch *a = gguf_archs; a->gguf && at < sizeof names; a++) {
        if (a > gguf_archs && strcmp(a->gguf, a[-1].gguf) == 0) continue;
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", at ? ", " : "", a->gguf);
    }
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "general.architecture: found \"%.40s\", expected one of %s", arch, names);
}

lq_status src_gguf_read(src_source *s, const src_opts *o, lq_err *err)
{
    enum { MAX_BLOBS = 4 };
    const char *arch = "";
    int64_t parts = 1;
    s->format = "gguf";
    s->blobs = lq_push(&s->arena, MAX_BLOBS * sizeof *s->blobs);
    if (!s->blobs) return lq_fail(err, LQ_ENOMEM, "out of memory");
    gguf_str(&s->gguf, "general.architecture", &arch);
    gguf_int(&s->gguf, "split.count", &parts);
    if (parts > 1 && parts != (int64_t)s->n_splits + 1)
        return lq_fail(err, LQ_EUNSUPPORTED, "split.count: expected one file, found one of %lld",
                       (long long)parts);
    const gguf_arch *row = gguf_arch_find(&s->gguf);
    lq_status st = LQ_OK;
    if (row)
        st = read_config(s, row, o->need_config, err);
    else
        st = unknown_arch(arch, err);
    if (st == LQ_EUNSUPPORTED && !row && !o->need_config) {
        lq_wrap(err, st, "%s", s->path);
        st = src_set_unfit(s, st, err, err);
    }
    if (!st) st = read_text(s, err);
    if (!st) st = read_about(s, err);
    if (!st && !o->no_tensors) st = read_tensors(s, row, err);
    return st;
}

/* "...-00001-of-00003.gguf": the name of another part of it. */
static lq_status split_path(char *out, size_t n, const char *first, int64_t i, int64_t parts,
                            lq_err *err)
{
    char begin[40], ending[40];
    snprintf(begin, sizeof begin, "-00001-of-%05lld.gguf", (long long)parts);
    snprintf(ending, sizeof ending, "-%05lld-of-%05lld.gguf", (long long)i + 1, (long long)parts);
    const size_t len = strlen(first), k = strlen(begin);
    if (len < k || strcmp(first + len - k, begin) != 0 || len >= n)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "split.count: expected the first of %lld files, named ...%s",
                       (long long)parts, begin);
    snprintf(out, n, "%.*s%s", (int)(len - k), first, ending);
    return LQ_OK;
}

static lq_status open_split(src_source *s, int64_t i, int64_t parts, lq_err *err)
{
    char path[4200];
    int64_t no = -1, count = -1;
    gguf_file *f = &s->splits[s->n_splits];
    lq_status st = split_path(path, sizeof path, s->path, i, parts, err);
    if (!st) st = gguf_open(f, path, err);
    if (st) return st;
    s->n_splits++;
    gguf_int(f, "split.no", &no);
    gguf_int(f, "split.count", &count);
    if (no != i || count != parts)
        return lq_fail(err, LQ_EFORMAT, "%s: expected part %lld of %lld, found %lld of %lld", path,
                       (long long)i, (long long)parts, (long long)no, (long long)count);
    return src_stamp_file(s, path, err);
}

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp(((const gguf_tensor *)a)->name, ((const gguf_tensor *)b)->name);
}

/* The tensors of all parts as if they were in the first. */
static lq_status join(src_source *s, lq_err *err)
{
    size_t n = s->gguf.n;
    int64_t want = -1;
    for (size_t i = 0; i < s->n_splits; i++)
        n += s->splits[i].n;
    if (gguf_int(&s->gguf, "split.tensors.count", &want) && want != (int64_t)n)
        return lq_fail(err, LQ_EFORMAT, "split.tensors.count: expected %lld tensors, found %zu",
                       (long long)want, n);
    gguf_tensor *all = lq_push(&s->arena, (n + 1) * sizeof *all);
    if (!all) return lq_fail(err, LQ_ENOMEM, "out of memory");
    memcpy(all, s->gguf.tensors, s->gguf.n * sizeof *all);
    size_t at = s->gguf.n;
    for (size_t i = 0; i < s->n_splits; i++) {
        if (s->splits[i].n) memcpy(all + at, s->splits[i].tensors, s->splits[i].n * sizeof *all);
        at += s->splits[i].n;
    }
    qsort(all, n, sizeof *all, by_tensor_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(all[i - 1].name, all[i].name) == 0)
            return lq_fail(err, LQ_EFORMAT, "tensor '%.100s' is in two parts", all[i].name);
    s->gguf.tensors = all;
    s->gguf.n = n;
    return LQ_OK;
}

static lq_status open_splits(src_source *s, lq_err *err)
{
    enum { MAX_PARTS = 9999 };
    int64_t parts = 1, no = 0;
    gguf_int(&s->gguf, "split.count", &parts);
    gguf_int(&s->gguf, "split.no", &no);
    if (parts <= 1) return LQ_OK;
    if (no != 0 || parts > MAX_PARTS)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "split.no: expected the first of at most %d files, found no. %lld of %lld",
                       MAX_PARTS, (long long)no + 1, (long long)parts);
    s->splits = lq_push(&s->arena, (size_t)parts * sizeof *s->splits);
    if (!s->splits) return lq_fail(err, LQ_ENOMEM, "out of memory");
    lq_status st = LQ_OK;
    for (int64_t i = 1; i < parts && !st; i++)
        st = open_split(s, i, parts, err);
    return st ? st : join(s, err);
}

lq_status src_gguf_open(src_source *s, const src_opts *o, lq_err *err)
{
    lq_status st = gguf_open(&s->gguf, s->path, err);
    if (!st) st = src_stamp_file(s, s->path, err);
    if (st) return st;
    st = open_splits(s, err);
    if (!st) st = src_gguf_read(s, o, err);
    return st ? lq_wrap(err, st, "%s", s->path) : LQ_OK;
}

lq_status src_check_cover(const src_source *s,
                          void (*bad)(void *user, const char *name, const char *what), void *user,
                          lq_err *err)
{
    const gguf_file *f = &s->gguf;
    lq_status st = f->map.size ? gguf_check_cover(f, f->tensors, f->n, bad, user, err) : LQ_OK;
    for (size_t i = 0; i < s->n_splits && !st; i++)
        st = gguf_check_cover(&s->splits[i], f->tensors, f->n, bad, user, err);
    return st;
}
