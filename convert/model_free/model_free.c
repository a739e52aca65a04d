/* convert/model_free/model_free.c - see model_free.h: opening a run, and the weights of its files. */
#include "convert/model_free/model_free.h"

#include "base/mapped.h"
#include "base/path.h"
#include "base/version.h"
#include "convert/model_free/model_free_impl.h"
#include "convert/shards.h"
#include "quantize/methods/kinds.h"

#include <stdlib.h>

enum { PIECE = 1 << 20, MAX_CONFIG = 16 << 20 };

/* Weights of floats alone: what a quantization_config says of them would be lost. */
static lq_status check_config(const mf_run *m, lq_err *err)
{
    static const char *const keys[] = { "quantization_config", "compression_config" };
    const src_blob *b = src_find_blob(m->src, "config.json");
    cJSON *j = NULL;
    char twice[64];
    if (!b)
        return lq_fail(err, LQ_ENOENT, "%s: expected a config.json, found none", src_path(m->src));
    lq_status s = js_parse_python(&j, twice, (const char *)b->data, b->bytes, MAX_CONFIG, err);
    if (!s && !cJSON_IsObject(j)) s = lq_fail(err, LQ_EFORMAT, "expected an object");
    for (size_t i = 0; i < LQ_COUNT(keys) && !s; i++)
        if (js_get(j, keys[i]) || js_get(js_get(j, "text_config"), keys[i]))
            s = lq_fail(err, LQ_EUNSUPPORTED, "expected unquantized weights, found a %s", keys[i]);
    cJSON_Delete(j);
    return s ? lq_wrap(err, s, "%s/config.json", src_path(m->src)) : LQ_OK;
}

lq_status mf_open(mf_run **out, src_source *src, const mf_opts *o, lq_err *err)
{
    mf_run *m = *out = calloc(1, sizeof *m);
    if (!m) return lq_fail(err, LQ_ENOMEM, "no memory for the plan");
    m->src = src;
    m->o = o;
    m->layout = conv_layout_find(o->to);
    const bool folder = strcmp(src_format(src), "safetensors") == 0;
    lq_status s = LQ_OK;
    if (!m->layout || (m->layout != &conv_ct && m->layout != &conv_fp8))
        s = lq_fail(err, LQ_EUSAGE, "--to: expected compressed-tensors or fp8, found '%s'", o->to);
    else if (!folder)
        s = lq_fail(err, LQ_EUNSUPPORTED, "%s: expected a Hugging Face folder, found %s",
                    src_path(src), src_format(src));
    else
        s = check_config(m, err);
    if (!s) s = mf_plan(m, err);
    if (!s) return LQ_OK;
    mf_close(m);
    *out = NULL;
    return s;
}

void mf_close(mf_run *m)
{
    if (!m) return;
    cJSON_Delete(m->quant);
    cJSON_Delete(m->recipe);
    cJSON_Delete(m->provenance);
    lq_arena_free(&m->arena);
    free(m);
}

size_t mf_n_items(const mf_run *m) { return m->n_items; }
const mf_item *mf_item_at(const mf_run *m, size_t i) { return &m->items[i]; }

/* ---- before: every weight once ---- */
static void scan_item(void *ctx, int64_t item, int thread)
{
    const mf_run *m = ctx;
    (void)thread;
    if (!lq_stopped(m->job)) src_scan(m->src, item);
}

static lq_status scan(mf_run *m, lq_err *err)
{
    lq_status s = src_scan_room(m->src, err);
    lq_report(m->job, "reading", 0, 1);
    if (!s) pool_run(m->pool, src_n_tensors(m->src), scan_item, m);
    if (lq_stopped(m->job)) return lq_fail(err, LQ_EINTR, "interrupted");
    for (size_t i = 0; i < m->n_items && !s; i++)
        if (m->items[i].rounded) s = src_check_finite(m->items[i].t, err);
    return s;
}

static cJSON *recipe_of(const mf_opts *o)
{
    cJSON *r = qz_recipe(o->q);
    cJSON_AddBoolToObject(r, "model_free", true);
    cJSON_AddStringToObject(r, "to", o->to);
    cJSON_AddNumberToObject(r, "shard_size", (double)o->shard_size);
    cJSON *list = o->n_includes ? cJSON_AddArrayToObject(r, "include") : NULL;
    for (int i = 0; i < o->n_includes; i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(o->includes[i]));
    return r;
}

static lq_status describe(mf_run *m, lq_err *err)
{
    lq_hash h;
    char hex[33];
    lq_status s = src_fingerprint(&h, m->src, err);
    if (s) return s;
    lq_hash_hex(hex, &h);
    m->recipe = recipe_of(m->o);
    m->provenance = cJSON_CreateObject();
    cJSON *src = cJSON_AddObjectToObject(m->provenance, "source");
    cJSON_AddStringToObject(m->provenance, "llmq", LLMQ_VERSION);
    cJSON_AddStringToObject(src, "format", src_format(m->src));
    cJSON_AddStringToObject(src, "xxh3", hex);
    return js_ran_out() || !m->recipe || !src ? lq_fail(err, LQ_ENOMEM, "no memory for the recipe")
                                              : LQ_OK;
}

/* ---- one weight ---- */
/* Bytes as they are, in pieces whose pages go again. */
static lq_status put_whole(const mf_run *m, const conv_weight *w, st_writer *out, size_t at,
                           lq_err *err)
{
    lq_status s = LQ_OK;
    const qt_span b = w->t->raw;
    for (size_t i = 0; i < b.bytes && !s; i += PIECE) {
        const size_t n = b.bytes - i < PIECE ? b.bytes - i : PIECE;
        const uint8_t *from = (const uint8_t *)b.data + i;
        s = st_put(out, at, i, from, n, err);
        src_drop(m->src, (qt_span){ from, n });
    }
    return s;
}

/* The piece's rows [N,K] in the tensor's type: a view, or turned in `a`. NULL: no memory. */
static const void *rows_of(const conv_weight *w, const mf_piece *p, lq_arena *a)
{
    const src_tensor *t = w->t;
    const size_t size = lq_dtype_bytes(t->t.scheme.dtype);
    const uint8_t *data = t->raw.data;
    if (p->expert < 0) return data;
    const int64_t rows = t->shape[1], cols = t->shape[2];
    data += (size_t)(p->expert * rows * cols) * size;
    if (!p->turned) return data + (size_t)(p->row0 * w->K) * size;
    uint8_t *turned = lq_push(a, (size_t)(rows * cols) * size);
    if (!turned) return NULL;
    src_transpose(turned, data, cols, rows, size);
    return turned + (size_t)(p->row0 * w->K) * size;
}

static lq_status put_rounded(const mf_run *m, size_t i, st_writer *out, size_t at, lq_err *err)
{
    const conv_weight *w = &m->plan.w[i];
    lq_arena a = { 0 };
    qz_out made;
    uint8_t *bytes = calloc(1, w->bytes);
    const void *W = rows_of(w, &m->pieces[i], &a);
    lq_status s = bytes && W ? qz_out_alloc(&made, &w->scheme, w->N, w->K, &a, err)
                             : lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes", w->bytes);
    if (!s) s = qz_round_weights(&made, m->o->q, W, w->t->t.scheme.dtype, m->pool, err);
    if (!s) s = conv_pack(bytes, m->layout, w, &made.t, &m->plan, err);
    if (!s) s = conv_put_parts(out, at, w, bytes, err);
    src_release(m->src, w->t);
    free(bytes);
    lq_arena_free(&a);
    return s ? lq_wrap(err, s, "%s", w->t->name) : LQ_OK;
}

/* ---- files ---- */
static int list_tensors(st_tensor *out, const conv_weight *w, lq_arena *a)
{
    const src_tensor *t = w->t;
    if (w->quantized) return conv_list_parts(out, w, a);
    *out =
        (st_tensor){ .name = t->name, .dtype = w->dtype, .n_dims = t->n_dims, .bytes = w->bytes };
    memcpy(out->shape, t->shape, sizeof t->shape);
    return 1;
}

/* The tensors of a file, for its header and the index; first[i]: where those of weight i begin. */
static lq_status list_shard(st_tensor *list, size_t *n, const mf_run *m, int shard,
                            const char *name, cJSON *map, lq_arena *a, lq_err *err)
{
    *n = 0;
    for (size_t i = 0; i < m->plan.n; i++)
        if (m->plan.w[i].shard == shard) *n += (size_t)list_tensors(list + *n, &m->plan.w[i], a);
    for (size_t k = 0; k < *n; k++)
        if (!list[k].name || !cJSON_AddStringToObject(map, list[k].name, name))
            return lq_fail(err, LQ_ENOMEM, "no memory for names");
    return LQ_OK;
}

static lq_status fill_shard(const mf_run *m, int shard, st_writer *out, lq_err *err)
{
    lq_status s = LQ_OK;
    for (size_t i = 0, at = 0; i < m->plan.n && !s; i++) {
        const conv_weight *w = &m->plan.w[i];
        if (w->shard != shard) continue;
        lq_report(m->job, "rounding", (double)i, (double)m->plan.n);
        if (lq_stopped(m->job)) return lq_fail(err, LQ_EINTR, "interrupted");
        s = w->quantized ? put_rounded(m, i, out, at, err) : put_whole(m, w, out, at, err);
        at += w->quantized ? (size_t)w->n_parts : 1;
    }
    return s;
}

static lq_status write_shard(void *user, int shard, cJSON *map, lq_err *err)
{
    const mf_run *m = user;
    char name[64], path[4200];
    size_t n = 0;
    lq_arena a = { 0 };
    st_writer *out = NULL;
    conv_shard_name(name, sizeof name, shard, m->n_shards);
    st_tensor *list = calloc(m->plan.n * CONV_PARTS + 1, sizeof *list);
    lq_status s = list ? list_shard(list, &n, m, shard, name, map, &a, err)
                       : lq_fail(err, LQ_ENOMEM, "no memory for the tensors of %s", name);
    m->report->tensors += (int64_t)n;
    if (!s) s = lq_path_join(path, sizeof path, m->folder.dir, name, err);
    const bool there = !s && lq_exists(path);
    m->report->n_shards++;
    m->report->resumed += there;
    if (!s && !there) {
        s = folder_path(path, sizeof path, &m->folder, name, err);
        if (!s) s = st_create(&out, path, list, n, err);
        if (!s) s = fill_shard(m, shard, out, err);
        if (s)
            st_abort(out);
        else
            s = st_commit(out, err);
    }
    free(list);
    lq_arena_free(&a);
    return s;
}

/* ---- the folder ---- */
static bool is_shard(void *user, const char *name)
{
    const mf_run *m = user;
    for (int i = 0; i < m->n_shards; i++) {
        char shard[64];
        conv_shard_name(shard, sizeof shard, i, m->n_shards);
        if (strcmp(name, shard) == 0) return true;
    }
    return false;
}

static bool nothing(void *user, const char *name)
{
    (void)user;
    (void)name;
    return false;
}

/* Files of an earlier run that does the same stay, whole ones alone. */
static lq_status take_earlier(mf_run *m, lq_err *err)
{
    bool other;
    const bool same = mf_same_run(&other, m, m->folder.dir);
    if (other && !m->o->restart)
        return lq_fail(err, LQ_EUSAGE,
                       "%s: holds files of another run (source or options differ): --no-resume "
                       "throws them away",
                       m->folder.dir);
    folder_keep(&m->folder, same && !m->o->restart ? is_shard : nothing, m);
    return mf_write_history(m, false, err);
}

static lq_status fill_folder(mf_run *m, lq_err *err)
{
    lq_status s = take_earlier(m, err);
    if (!s)
        s = conv_write_shards(&m->folder, m->n_shards, m->report->bytes_out, write_shard, m, err);
    if (!s) s = mf_write_files(m, err);
    if (!s) s = mf_write_history(m, true, err);
    if (!s) s = src_unchanged(m->src, err);
    if (!s) return folder_publish(&m->folder, err);
    if (s == LQ_EINTR || s == LQ_EIO || s == LQ_EUSAGE)
        folder_leave(&m->folder);
    else
        folder_drop(&m->folder);
    return s;
}

static void count(mf_run *m)
{
    for (size_t i = 0; i < m->n_items; i++) {
        m->report->bytes_in += src_bytes(m->items[i].t);
        m->report->bytes_out += m->items[i].bytes;
    }
    for (size_t i = 0; i < m->plan.n; i++)
        m->report->rounded += m->plan.w[i].quantized;
}

lq_status mf_write(mf_report *r, mf_run *m, const char *dir, pool *p, const lq_job *job,
                   lq_err *err)
{
    bool other;
    *r = (mf_report){ 0 };
    m->report = r;
    m->pool = p;
    m->job = job;
    lq_map_guard(true);
    lq_status s = folder_check(dir, err);
    if (!s) s = scan(m, err);
    if (!s) s = mf_settle(m, err);
    if (!s) s = describe(m, err);
    if (!s) count(m);
    if (!s && m->o->resume && mf_same_run(&other, m, dir))
        r->resumed = -1;
    else {
        if (!s) s = folder_create(&m->folder, dir, true, err);
        if (!s) s = fill_folder(m, err);
    }
    lq_map_guard(false);
    return s;
}
