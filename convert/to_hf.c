/* convert/to_hf.c - any source as a Hugging Face folder of plain floats. */
#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "convert/convert.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "formats/tiles.h"

enum { ROWS = 64, MAX_CONFIG = 1 << 20 };

typedef struct {
    const src_source *src;
    const conv_hf_opts *o;
    const lq_job *job;
    conv_report *r;
    char dir[4096];       /* the folder while it is being written */
    const src_tensor **t; /* sources of `out`, the same index */
    st_tensor *out;
    int *shard; /* which file */
    size_t n;
    int n_shards;
    int64_t done;
    lq_arena arena;
} conv;

/* ---- tensors ---- */
static lq_dtype dtype_of(const conv *c, const src_tensor *t)
{
    if (!t->plain) return t->raw_dtype;
    if (!c->o->keep_dtype) return c->o->dtype;
    return t->t.scheme.kind == QT_DENSE ? t->t.scheme.dtype : src_config(c->src)->dtype;
}

/* Codes are [outputs, inputs]; does the checkpoint have this tensor's matrices the other way round?
 */
static bool turns_back(const conv *c, const src_tensor *t)
{
    arch_slot slot;
    if (!t->plain || t->t.scheme.kind == QT_DENSE || t->n_dims < 2) return false;
    if (!arch_slot_of(src_config(c->src), t->name, &slot) || slot.bias) return false;
    return arch_name_of(src_config(c->src), slot.role)->flags & NAME_TRANSPOSED;
}

/* The same, one matrix [N,K] of the tensor as f32 [K,N] after the other. */
static lq_status put_turned(conv *c, const qt_tensor *q, int64_t N, lq_dtype d, lq_out *o,
                            lq_err *err)
{
    const size_t n = (size_t)N * (size_t)q->K, elem = (size_t)lq_dtype_bits(d) / 8;
    float *f = malloc(2 * n * sizeof *f), *turned = f ? f + n : NULL;
    uint8_t *b = malloc(n * elem);
    lq_status s = f && b ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for %zu weights", n);
    for (int64_t at = 0; at < q->N && !s; at += N) {
        qt_dequant(f, q, at, at + N);
        src_transpose(turned, f, q->K, N, sizeof *f);
        lq_from_f32(b, turned, d, n);
        lq_to_f32(f, b, d, n);
        if (memcmp(f, turned, n * sizeof *f) != 0) c->r->bit_exact = false;
        s = lq_out_write(o, b, n * elem, err);
    }
    free(f);
    free(b);
    return s;
}

/* Rows as f32 -> dtype -> file; notes whether any value changed on the way. */
static lq_status put_rows(conv *c, const qt_tensor *q, lq_dtype d, lq_out *o, lq_err *err)
{
    size_t row = (size_t)q->K, elem = (size_t)lq_dtype_bits(d) / 8;
    float *f = malloc(2 * ROWS * row * sizeof *f);
    uint8_t *b = malloc(ROWS * row * elem);
    lq_status s = f && b ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for rows of %zu", row);
    for (int64_t n = 0; n < q->N && !s; n += ROWS) {
        int64_t end = n + ROWS < q->N ? n + ROWS : q->N;
        size_t len = (size_t)(end - n) * row;
        float *back = f + ROWS * row;
        qt_dequant(f, q, n, end);
        lq_from_f32(b, f, d, len);
        lq_to_f32(back, b, d, len);
        if (memcmp(f, back, len * sizeof *f) != 0) c->r->bit_exact = false;
        s = lq_out_write(o, b, len * elem, err);
    }
    free(f);
    free(b);
    return s;
}

static lq_status put(void *user, const st_tensor *t, lq_out *o, lq_err *err)
{
    conv *c = user;
    size_t i = 0;
    while (strcmp(c->out[i].name, t->name) != 0)
        i++;
    const src_tensor *src = c->t[i];
    lq_report(c->job, "writing", (double)c->done++, (double)c->n);
    if (lq_stopped(c->job)) return lq_fail(err, LQ_EINTR, "interrupted");
    if (!src->plain) return lq_out_write(o, src->raw.data, src->raw.bytes, err);
    lq_arena a = { 0 };
    qt_tensor q, stored;
    src_load(&stored, c->src, src);
    q = stored;
    lq_status s = LQ_OK;
    if (q.layout == QT_TILE16) {
        void *w[QT_N_PLANES];
        s = qt_alloc(&q, w, &stored.scheme, q.N, q.K, &a, err);
        if (!s) s = tiles_unpack(w, &stored, err);
    }
    if (!s)
        s = turns_back(c, src) ? put_turned(c, &q, src->shape[src->n_dims - 2], t->dtype, o, err)
                               : put_rows(c, &q, t->dtype, o, err);
    src_unload(c->src, src);
    lq_arena_free(&a);
    return s ? lq_wrap(err, s, "%s", t->name) : LQ_OK;
}

/* Names, shapes and types of the result, and the file that each goes to. */
static lq_status plan(conv *c, lq_err *err)
{
    c->n = (size_t)src_n_tensors(c->src);
    c->t = lq_push(&c->arena, c->n * sizeof *c->t);
    c->out = lq_push(&c->arena, c->n * sizeof *c->out);
    c->shard = lq_push(&c->arena, c->n * sizeof *c->shard);
    if (!c->t || !c->out || !c->shard) return lq_fail(err, LQ_ENOMEM, "no memory for the plan");
    size_t in_shard = 0;
    for (size_t i = 0; i < c->n; i++) {
        const src_tensor *t = src_tensor_at(c->src, (int64_t)i);
        st_tensor *o = &c->out[i];
        c->t[i] = t;
        *o = (st_tensor){ .name = t->name, .dtype = dtype_of(c, t), .n_dims = t->n_dims };
        memcpy(o->shape, t->shape, sizeof t->shape);
        if (turns_back(c, t)) {
            o->shape[t->n_dims - 2] = t->shape[t->n_dims - 1];
            o->shape[t->n_dims - 1] = t->shape[t->n_dims - 2];
        }
        o->bytes =
            t->plain ? (size_t)src_elements(t) * (size_t)lq_dtype_bits(o->dtype) / 8 : t->raw.bytes;
        if (c->o->shard_size && in_shard && in_shard + o->bytes > c->o->shard_size) {
            c->n_shards++;
            in_shard = 0;
        }
        in_shard += o->bytes;
        c->shard[i] = c->n_shards;
        c->r->bytes += o->bytes;
    }
    c->n_shards++;
    return LQ_OK;
}

static void shard_name(char *name, size_t n, const conv *c, int i)
{
    if (c->n_shards == 1)
        snprintf(name, n, "model.safetensors");
    else
        snprintf(name, n, "model-%05d-of-%05d.safetensors", i + 1, c->n_shards);
}

static lq_status write_shard(conv *c, int shard, lq_err *err)
{
    char name[64], path[4200];
    size_t n = 0;
    shard_name(name, sizeof name, c, shard);
    st_tensor *part = calloc(c->n + 1, sizeof *part);
    if (!part) return lq_fail(err, LQ_ENOMEM, "no memory for %zu tensors", c->n);
    for (size_t i = 0; i < c->n; i++)
        if (c->shard[i] == shard) part[n++] = c->out[i];
    lq_status s = lq_path_join(path, sizeof path, c->dir, name, err);
    if (!s) s = st_write_with(path, part, n, put, c, err);
    free(part);
    return s;
}

/* ---- JSON files ---- */
static lq_status write_json(const conv *c, const char *name, const cJSON *j, lq_err *err)
{
    char path[4200];
    char *text = cJSON_Print(j);
    lq_status s = lq_path_join(path, sizeof path, c->dir, name, err);
    if (!s && !text) s = lq_fail(err, LQ_ENOMEM, "%s: no memory", name);
    if (!s) s = lq_write_file(path, text, strlen(text), err);
    free(text);
    return s;
}

static lq_status write_index(const conv *c, lq_err *err)
{
    if (c->n_shards == 1) return LQ_OK;
    cJSON *j = cJSON_CreateObject(), *meta = cJSON_AddObjectToObject(j, "metadata");
    cJSON_AddNumberToObject(meta, "total_size", (double)c->r->bytes);
    cJSON *map = cJSON_AddObjectToObject(j, "weight_map");
    for (size_t i = 0; i < c->n; i++) {
        char name[64];
        shard_name(name, sizeof name, c, c->shard[i]);
        cJSON_AddStringToObject(map, c->out[i].name, name);
    }
    lq_status s = write_json(c, "model.safetensors.index.json", j, err);
    cJSON_Delete(j);
    return s;
}

/* "bfloat16": what transformers calls it. */
static const char *torch_name(lq_dtype d)
{
    return d == LQ_F32 ? "float32" : d == LQ_F16 ? "float16" : "bfloat16";
}

static void set(cJSON *o, const char *key, cJSON *v)
{
    if (cJSON_GetObjectItemCaseSensitive(o, key))
        cJSON_ReplaceItemInObjectCaseSensitive(o, key, v);
    else
        cJSON_AddItemToObject(o, key, v);
}

/* The source's config.json with what this conversion changes: element type, a head that was split
 * from the embedding, no quantization. Unchanged otherwise, so byte for byte where nothing changes.
 */
static lq_status write_config(const conv *c, const src_blob *b, lq_err *err)
{
    char path[4200];
    cJSON *j = NULL;
    const arch_config *cfg = src_config(c->src);
    lq_status s = js_parse(&j, (const char *)b->data, b->bytes, MAX_CONFIG, 0, err);
    if (s) return lq_wrap(err, s, "config.json");
    bool tied = true;
    js_bool(j, "tie_word_embeddings", false, &tied, NULL);
    bool change = tied != cfg->tied || cJSON_GetObjectItemCaseSensitive(j, "quantization_config");
    lq_dtype d = c->o->keep_dtype ? cfg->dtype : c->o->dtype;
    if (d != cfg->dtype) {
        const char *key = cJSON_GetObjectItemCaseSensitive(j, "dtype") ? "dtype" : "torch_dtype";
        set(j, key, cJSON_CreateString(torch_name(d)));
        change = true;
    }
    cJSON_DeleteItemFromObjectCaseSensitive(j, "quantization_config");
    if (tied != cfg->tied) set(j, "tie_word_embeddings", cJSON_CreateBool(cfg->tied));
    s = lq_path_join(path, sizeof path, c->dir, "config.json", err);
    if (!s)
        s = change ? write_json(c, "config.json", j, err)
                   : lq_write_file(path, b->data, b->bytes, err);
    cJSON_Delete(j);
    return s;
}

static lq_status write_blobs(const conv *c, lq_err *err)
{
    lq_status s = LQ_OK;
    for (size_t i = 0; i < src_n_blobs(c->src) && !s; i++) {
        const src_blob *b = src_blob_at(c->src, i);
        char path[4200];
        if (strcmp(b->name, "tokenizer.blob") == 0) continue; /* ours; made from tokenizer.json */
        if (strcmp(b->name, "config.json") == 0) {
            s = write_config(c, b, err);
            continue;
        }
        s = src_blob_file(path, sizeof path, c->dir, b->name, err);
        char *slash = strrchr(path, '/');
        if (!s && slash) { /* the folder of further chat templates is made for the first of them */
            *slash = 0;
            if (mkdir(path, 0777) && errno != EEXIST)
                s = lq_fail(err, LQ_EIO, "%s: %s", path, strerror(errno));
            *slash = '/';
        }
        if (!s) s = lq_write_file(path, b->data, b->bytes, err);
    }
    return s;
}

/* ---- the folder ---- */
/* What lies in a model's folder; replacing it must delete nothing else. */
static bool is_model_file(const char *name)
{
    static const char *const ends[] = { ".json",  ".safetensors", ".jinja",    ".md",
                                        ".model", "merges.txt",   "vocab.txt", ".tiktoken" };
    if (strncasecmp(name, "licen", 5) == 0 || strcmp(name, ".gitattributes") == 0) return true;
    for (size_t i = 0; i < LQ_COUNT(ends); i++) {
        size_t n = strlen(name), m = strlen(ends[i]);
        if (n >= m && strcmp(name + n - m, ends[i]) == 0) return true;
    }
    return false;
}

/* Only plain files of a model, and a config.json among them unless it is empty. */
static lq_status may_replace(const char *dir, lq_err *err)
{
    bool config = false, empty = true;
    DIR *d = opendir(dir);
    struct dirent *e;
    if (!d) return errno == ENOENT ? LQ_OK : lq_fail(err, LQ_EIO, "%s: %s", dir, strerror(errno));
    lq_status s = LQ_OK;
    while (!s && (e = readdir(d))) {
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        empty = false;
        config = config || strcmp(e->d_name, "config.json") == 0;
        if (!is_model_file(e->d_name) ||
            fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            s = lq_fail(err, LQ_EUSAGE, "%s: holds %s, which a model folder does not", dir,
                        e->d_name);
    }
    closedir(d);
    if (!s && !empty && !config)
        s = lq_fail(err, LQ_EUSAGE, "%s: exists and is not a model folder", dir);
    return s;
}

static void remove_folder(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    while (d && (e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlinkat(dirfd(d), e->d_name, 0);
    if (d) closedir(d);
    rmdir(dir);
}

/* The new folder takes the name; an old one changes places with it and goes. */
static lq_status publish(const conv *c, const char *dir, lq_err *err)
{
    if (rename(c->dir, dir) == 0) return LQ_OK; /* absent or empty */
    if (renameat2(AT_FDCWD, c->dir, AT_FDCWD, dir, RENAME_EXCHANGE) != 0)
        return lq_fail(err, LQ_EIO, "%s: %s", dir, strerror(errno));
    remove_folder(c->dir);
    return LQ_OK;
}

lq_status conv_to_hf(conv_report *r, const src_source *src, const char *dir, const conv_hf_opts *o,
                     const lq_job *job, lq_err *err)
{
    memset(r, 0, sizeof *r);
    r->bit_exact = true;
    conv c = { .src = src, .o = o, .job = job, .r = r };
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/')
        len--;
    int n = snprintf(c.dir, sizeof c.dir, "%.*s.tmp-XXXXXX", (int)len, dir);
    if (n < 0 || (size_t)n >= sizeof c.dir) return lq_fail(err, LQ_EUSAGE, "%s: too long", dir);
    lq_status s = may_replace(dir, err);
    if (s) return s;
    if (!mkdtemp(c.dir)) return lq_fail(err, LQ_EIO, "%s: %s", dir, strerror(errno));
    mode_t mask = umask(0);
    umask(mask);
    if (chmod(c.dir, 0777 & ~mask) != 0) { /* keep 0700: not worth failing for */
    }
    s = plan(&c, err);
    for (int i = 0; i < c.n_shards && !s; i++)
        s = write_shard(&c, i, err);
    if (!s) s = write_index(&c, err);
    if (!s) s = write_blobs(&c, err);
    if (!s) s = publish(&c, dir, err);
    if (s) remove_folder(c.dir);
    r->tensors = (int64_t)c.n;
    lq_arena_free(&c.arena);
    return s;
}
