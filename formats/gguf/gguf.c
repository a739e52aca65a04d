/* formats/gguf/gguf.c */
#include "formats/gguf/gguf.h"
#include "base/json.h"
#include "base/json_write.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_COUNT = 1 << 24, MAX_DEPTH = 4, MAX_ALIGN = 1 << 20 };

/* ---- a cursor that never passes the end ---- */
typedef struct {
    const uint8_t *p, *end;
    const uint8_t *start;
    lq_err *err;
    lq_status st;
} cursor;

static lq_status gguf_fail(cursor *c, const char *what)
{
    if (!c->st)
        c->st = lq_fail(c->err, LQ_EFORMAT, "byte %zu: %s", (size_t)(c->p - c->start), what);
    return c->st;
}

static const uint8_t *gguf_take(cursor *c, uint64_t n)
{
    if (c->st) return NULL;
    if (n > (uint64_t)(c->end - c->p)) {
        gguf_fail(c, "expected more, found the end of the file");
        return NULL;
    }
    const uint8_t *p = c->p;
    c->p += n;
    return p;
}

static uint64_t take_le(cursor *c, int bytes)
{
    const uint8_t *p = gguf_take(c, (uint64_t)bytes);
    uint64_t v = 0;
    for (int i = 0; p && i < bytes; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

static gguf_text take_text(cursor *c)
{
    const uint64_t n = take_le(c, 8);
    const uint8_t *p = gguf_take(c, n);
    return (gguf_text){ (const char *)p, p ? (size_t)n : 0 };
}

static const uint8_t type_bytes[GGUF_N_TYPES] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

static void skip_elements(cursor *c, gguf_type t, uint64_t n, int depth)
{
    if (t < GGUF_N_TYPES && type_bytes[t]) {
        uint64_t left = (uint64_t)(c->end - c->p) / type_bytes[t];
        if (n > left)
            gguf_fail(c, "an array ends after the file");
        else
            gguf_take(c, n * type_bytes[t]);
        return;
    }
    if (t != GGUF_STRING && t != GGUF_ARRAY) gguf_fail(c, "unknown type of value");
    for (uint64_t i = 0; i < n && !c->st; i++) {
        if (t == GGUF_STRING) {
            take_text(c);
            continue;
        }
        const gguf_type inner = (gguf_type)take_le(c, 4);
        const uint64_t m = take_le(c, 8);
        if (depth == MAX_DEPTH)
            gguf_fail(c, "arrays within arrays, too deep");
        else
            skip_elements(c, inner, m, depth + 1);
    }
}

/* ---- the parts ---- */
static void read_kv(gguf_kv *kv, cursor *c, lq_arena *a)
{
    const gguf_text key = take_text(c);
    if (c->st) return;
    kv->key = lq_push_str(a, key.s, key.n);
    if (!kv->key) c->st = lq_fail(c->err, LQ_ENOMEM, "out of memory");
    if (memchr(key.s, 0, key.n)) gguf_fail(c, "a key with a NUL in it");
    kv->type = (gguf_type)take_le(c, 4);
    kv->n = 1;
    kv->array = kv->type == GGUF_ARRAY;
    if (kv->array) {
        kv->type = (gguf_type)take_le(c, 4);
        kv->n = take_le(c, 8);
    }
    kv->data = c->p;
    skip_elements(c, kv->type, kv->n, 0);
    kv->bytes = (size_t)(c->p - kv->data);
}

static const struct {
    const char *name;
    ggml_type type;
    uint64_t elements, bytes;
} types[] = {
#define X(name, id, elements, bytes) { #name, GGML_##name, elements, bytes },
    GGUF_TENSOR_TYPES(X)
#undef X
};

/* Types that are not read, by their names in ggml. Some that had a number have gone. */
static const struct {
    uint64_t type;
    const char *name;
} unread[] = {
    { 4, "Q4_2" },        { 5, "Q4_3" },        { 9, "Q8_1" },      { 15, "Q8_K" },
    { 24, "I8" },         { 25, "I16" },        { 27, "I64" },      { 28, "F64" },
    { 31, "Q4_0_4_4" },   { 32, "Q4_0_4_8" },   { 33, "Q4_0_8_8" }, { 36, "I2_S" },
    { 37, "IQ4_NL_4_8" }, { 38, "IQ4_NL_8_8" },
};

static lq_status refuse_type(lq_err *err, const char *tensor, uint64_t type)
{
    size_t i = 0;
    while (i < LQ_COUNT(unread) && unread[i].type != type)
        i++;
    char name[32];
    if (i < LQ_COUNT(unread))
        snprintf(name, sizeof name, "%s", unread[i].name);
    else
        snprintf(name, sizeof name, "%llu", (unsigned long long)type);
    return lq_fail(
        err, LQ_EUNSUPPORTED,
        "tensor '%.100s': type %s is not read (F32, F16, BF16, Q4_0 to Q8_0, Q2_K to "
        "Q6_K, IQ1_S to IQ4_XS, MXFP4, NVFP4, TQ1_0, TQ2_0, Q1_0 and Q2_0 are); take the "
        "original checkpoint",
        tensor, name);
}

/* Bytes of a tensor; 0 and an error where type and shape do not fit. */
static size_t tensor_bytes(cursor *c, const gguf_tensor *t, uint64_t type)
{
    size_t i = 0, n = 1;
    while (i < LQ_COUNT(types) && (uint64_t)types[i].type != type)
        i++;
    if (i == LQ_COUNT(types)) {
        c->st = refuse_type(c->err, t->name, type);
        return 0;
    }
    for (int d = 0; d < t->n_dims; d++)
        if (t->shape[d] < 1 || !lq_mul(n, (size_t)t->shape[d], &n)) {
            c->st =
                lq_fail(c->err, LQ_EFORMAT, "tensor '%.100s': sizes of 0, or too large", t->name);
            return 0;
        }
    if ((uint64_t)t->shape[t->n_dims - 1] % types[i].elements) {
        c->st = lq_fail(c->err, LQ_ESHAPE, "tensor '%.100s': expected rows of whole blocks of %d",
                        t->name, (int)types[i].elements);
        return 0;
    }
    n /= types[i].elements;
    if (!lq_mul(n, types[i].bytes, &n)) gguf_fail(c, "a tensor that is too large");
    return n;
}

static void read_info(gguf_tensor *t, cursor *c, lq_arena *a, uint64_t *off)
{
    const gguf_text name = take_text(c);
    const uint64_t dims = take_le(c, 4);
    if (c->st) return;
    if (name.n == 0 || name.n > 255 || memchr(name.s, 0, name.n)) {
        gguf_fail(c, "a tensor's name: expected 1 to 255 bytes without NUL");
        return;
    }
    t->name = lq_push_str(a, name.s, name.n);
    if (!t->name) c->st = lq_fail(c->err, LQ_ENOMEM, "out of memory");
    if (dims < 1 || dims > 4) gguf_fail(c, "expected 1 to 4 dims");
    t->n_dims = c->st ? 0 : (int)dims;
    for (int d = t->n_dims - 1; d >= 0; d--) {
        const uint64_t v = take_le(c, 8);
        t->shape[d] = v > INT64_MAX ? -1 : (int64_t)v;
    }
    const uint64_t type = take_le(c, 4);
    *off = take_le(c, 8);
    if (c->st) return;
    t->type = (ggml_type)type;
    t->bytes = tensor_bytes(c, t, type);
}

static int by_key(const void *a, const void *b)
{
    const gguf_kv *x = a, *y = b;
    return strcmp(x->key, y->key);
}
static int by_name(const void *a, const void *b)
{
    const gguf_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static lq_status read_all(gguf_file *f, cursor *c)
{
    const uint8_t *magic = gguf_take(c, 4);
    if (!magic || memcmp(magic, "GGUF", 4) != 0) return gguf_fail(c, "expected GGUF");
    const uint64_t version = take_le(c, 4), n = take_le(c, 8), n_kv = take_le(c, 8);
    if (c->st) return c->st;
    if (version != 2 && version != 3)
        return lq_fail(c->err, LQ_EUNSUPPORTED,
                       version == 0x02000000 || version == 0x03000000
                           ? "expected little endian, found a big-endian file"
                           : "version: expected 2 or 3, found %llu",
                       (unsigned long long)version);
    /* 24 bytes are the least of an info, 13 of a pair. */
    if (n > MAX_COUNT || n_kv > MAX_COUNT || n * 24 + n_kv * 13 > (uint64_t)(c->end - c->p))
        return gguf_fail(c, "more tensors and pairs than the file can hold");
    f->kv = lq_push(&f->arena, ((size_t)n_kv + 1) * sizeof *f->kv);
    f->tensors = lq_push(&f->arena, ((size_t)n + 1) * sizeof *f->tensors);
    uint64_t *off = calloc((size_t)n + 1, sizeof *off);
    if (!f->kv || !f->tensors || !off) {
        free(off);
        return lq_fail(c->err, LQ_ENOMEM, "out of memory");
    }
    for (; f->n_kv < n_kv && !c->st; f->n_kv++)
        read_kv(&f->kv[f->n_kv], c, &f->arena);
    for (; f->n < n && !c->st; f->n++)
        read_info(&f->tensors[f->n], c, &f->arena, &off[f->n]);
    if (!c->st) qsort(f->kv, f->n_kv, sizeof *f->kv, by_key);
    int64_t align = 32;
    if (!c->st && gguf_get(f, "general.alignment") && !gguf_int(f, "general.alignment", &align))
        gguf_fail(c, "general.alignment: expected a number");
    if (!c->st && (align < 1 || align > MAX_ALIGN || (align & (align - 1))))
        gguf_fail(c, "general.alignment: expected a power of two");
    const size_t head = (size_t)(c->p - c->start), all = (size_t)(c->end - c->start);
    const size_t base = c->st ? 0 : lq_round_up(head, (size_t)align);
    f->head_bytes = head;
    f->data_off = base;
    f->align = (size_t)align;
    for (size_t i = 0; i < f->n && !c->st; i++) {
        gguf_tensor *t = &f->tensors[i];
        if (off[i] % (uint64_t)align || base > all || off[i] > all - base ||
            t->bytes > all - base - off[i])
            c->st =
                lq_fail(c->err, LQ_EFORMAT,
                        "tensor '%.100s': expected %zu bytes at a multiple of %lld, found offset "
                        "%llu in a file of %zu",
                        t->name, t->bytes, (long long)align, (unsigned long long)off[i], all);
        else
            t->data = c->start + base + off[i];
    }
    free(off);
    if (!c->st) qsort(f->tensors, f->n, sizeof *f->tensors, by_name);
    for (size_t i = 1; i < f->n_kv && !c->st; i++)
        if (strcmp(f->kv[i - 1].key, f->kv[i].key) == 0)
            c->st = lq_fail(c->err, LQ_EFORMAT, "'%.100s': the key is given twice", f->kv[i].key);
    for (size_t i = 1; i < f->n && !c->st; i++)
        if (strcmp(f->tensors[i - 1].name, f->tensors[i].name) == 0)
            c->st =
                lq_fail(c->err, LQ_EFORMAT, "tensor '%.100s' is given twice", f->tensors[i].name);
    return c->st;
}

lq_status gguf_open_bytes(gguf_file *f, const uint8_t *data, size_t n, lq_err *err)
{
    cursor c = { .p = data, .start = data, .end = data + n, .err = err };
    memset(f, 0, sizeof *f);
    lq_status st = read_all(f, &c);
    if (st) gguf_close(f);
    return st;
}

lq_status gguf_open(gguf_file *f, const char *path, lq_err *err)
{
    lq_map map;
    memset(f, 0, sizeof *f);
    lq_status st = lq_map_open(&map, path, err);
    if (st) return st;
    st = gguf_open_bytes(f, map.data, map.size, err);
    if (st) {
        lq_map_close(&map);
        return lq_wrap(err, st, "%s", path);
    }
    f->map = map;
    return LQ_OK;
}

void gguf_close(gguf_file *f)
{
    lq_arena_free(&f->arena);
    lq_map_close(&f->map);
    memset(f, 0, sizeof *f);
}

/* ---- between the tensors ---- */
typedef struct {
    size_t begin, end; /* in the file */
    const char *name;
} piece;

static int by_begin(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* The padding that ends at `to`. */
static void check_zeros(const lq_map *m, size_t from, size_t to, const char *name, gguf_bad *bad,
                        void *user)
{
    char what[80];
    while (from < to && !m->data[from])
        from++;
    if (from >= to) return;
    snprintf(what, sizeof what, "padding next to it: expected 0 at byte %zu, found %u", from,
             (unsigned)m->data[from]);
    bad(user, name, what);
}

static void check_pieces(const gguf_file *f, const piece *p, size_t n, gguf_bad *bad, void *user)
{
    char what[160];
    size_t at = f->head_bytes, next = f->data_off;
    const char *last = "tensors";
    for (size_t i = 0; i < n; i++) {
        if (p[i].begin == next) {
            check_zeros(&f->map, at, next, p[i].name, bad, user);
        } else {
            snprintf(what, sizeof what, "expected to begin at byte %zu, found %zu: %s", next,
                     p[i].begin, p[i].begin < next ? "an overlap" : "a hole");
            bad(user, p[i].name, what);
        }
        if (p[i].end < at) continue; /* within the one before */
        at = p[i].end;
        next = lq_round_up(at, f->align);
        last = p[i].name;
    }
    const size_t end = f->map.size;
    check_zeros(&f->map, at, end < next ? end : next, last, bad, user);
    if (end <= next) return;
    snprintf(what, sizeof what, "expected it at byte %zu, found %zu more bytes", next, end - next);
    bad(user, "the file's end", what);
}

lq_status gguf_check_cover(const gguf_file *f, const gguf_tensor *t, size_t n, gguf_bad *bad,
                           void *user, lq_err *err)
{
    piece *p = calloc(n + 1, sizeof *p);
    size_t k = 0;
    if (!p) return lq_fail(err, LQ_ENOMEM, "no memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        const uintptr_t from = (uintptr_t)f->map.data, at = (uintptr_t)t[i].data;
        if (at < from || at - from >= f->map.size) continue;
        p[k++] = (piece){ at - from, at - from + t[i].bytes, t[i].name };
    }
    qsort(p, k, sizeof *p, by_begin);
    check_pieces(f, p, k, bad, user);
    free(p);
    return LQ_OK;
}

/* ---- look-up ---- */
const gguf_kv *gguf_get(const gguf_file *f, const char *key)
{
    const gguf_kv k = { .key = key };
    return f->n_kv ? bsearch(&k, f->kv, f->n_kv, sizeof k, by_key) : NULL;
}

const gguf_tensor *gguf_find(const gguf_file *f, const char *name)
{
    const gguf_tensor k = { .name = name };
    return f->n ? bsearch(&k, f->tensors, f->n, sizeof k, by_name) : NULL;
}

static bool is_int(gguf_type t)
{
    return t <= GGUF_I32 || t == GGUF_BOOL || t == GGUF_U64 || t == GGUF_I64;
}

int64_t gguf_int_at(const gguf_kv *kv, uint64_t i)
{
    const int bytes = type_bytes[kv->type];
    const uint8_t *p = kv->data + i * (uint64_t)bytes;
    uint64_t v = 0;
    for (int b = 0; b < bytes; b++)
        v |= (uint64_t)p[b] << 8 * b;
    const bool sign = kv->type == GGUF_I8 || kv->type == GGUF_I16 || kv->type == GGUF_I32;
    if (sign && v >> (8 * bytes - 1)) v |= ~UINT64_C(0) << 8 * bytes;
    return (int64_t)v;
}

static const gguf_kv *scalar(const gguf_file *f, const char *key)
{
    const gguf_kv *kv = gguf_get(f, key);
    return kv && !kv->array ? kv : NULL;
}

bool gguf_is_numbers(const gguf_kv *kv)
{
    return is_int(kv->type) || kv->type == GGUF_F32 || kv->type == GGUF_F64;
}

const gguf_kv *gguf_integers(const gguf_file *f, const char *key, uint64_t n)
{
    const gguf_kv *kv = gguf_get(f, key);
    return kv && kv->array && is_int(kv->type) && kv->n == n ? kv : NULL;
}

double gguf_real_at(const gguf_kv *kv, uint64_t i)
{
    float x;
    double v;
    if (is_int(kv->type)) return (double)gguf_int_at(kv, i);
    if (kv->type == GGUF_F32) {
        memcpy(&x, kv->data + 4 * i, sizeof x);
        return (double)x;
    }
    memcpy(&v, kv->data + 8 * i, sizeof v);
    return v;
}

bool gguf_is_one(const gguf_kv *kv)
{
    if (!gguf_is_numbers(kv) || !kv->n) return false;
    const size_t bytes = (size_t)type_bytes[kv->type];
    for (uint64_t i = 1; i < kv->n; i++)
        if (memcmp(kv->data, kv->data + i * bytes, bytes) != 0) return false;
    return true;
}

bool gguf_float(const gguf_file *f, const char *key, double *v)
{
    const gguf_kv *kv = gguf_get(f, key);
    if (!kv || !gguf_is_one(kv)) return false;
    *v = gguf_real_at(kv, 0);
    return true;
}

bool gguf_int(const gguf_file *f, const char *key, int64_t *v)
{
    const gguf_kv *kv = gguf_get(f, key);
    if (!kv || !gguf_is_one(kv)) return false;
    const double d = gguf_real_at(kv, 0);
    if (!is_int(kv->type) && !(fabs(d) <= 9007199254740992.0 && d == floor(d))) return false;
    *v = is_int(kv->type) ? gguf_int_at(kv, 0) : (int64_t)d;
    return true;
}

bool gguf_bool(const gguf_file *f, const char *key, bool *v)
{
    int64_t n;
    if (!gguf_int(f, key, &n) || (n != 0 && n != 1)) return false;
    *v = n == 1;
    return true;
}

gguf_text gguf_next(const uint8_t **at)
{
    uint64_t n = 0;
    for (int i = 0; i < 8; i++)
        n |= (uint64_t)(*at)[i] << 8 * i;
    const gguf_text t = { (const char *)*at + 8, (size_t)n };
    *at += 8 + n;
    return t;
}

bool gguf_str(gguf_file *f, const char *key, const char **v)
{
    const gguf_kv *kv = scalar(f, key);
    if (!kv || kv->type != GGUF_STRING) return false;
    const uint8_t *at = kv->data;
    const gguf_text t = gguf_next(&at);
    const char *copy = lq_push_str(&f->arena, t.s, t.n);
    if (copy) *v = copy;
    return copy != NULL;
}

lq_hash gguf_tensors_hash(const gguf_tensor *t, size_t n)
{
    lq_buf b = { 0 };
    for (size_t i = 0; i < n; i++) {
        js_put_str(&b, t[i].name);
        js_put_i64(&b, t[i].type);
        for (int d = 0; d < t[i].n_dims; d++) {
            lq_buf_puts(&b, d ? "," : ":");
            js_put_i64(&b, t[i].shape[d]);
        }
        lq_buf_puts(&b, "\n");
    }
    const lq_hash h = lq_hash_bytes(b.p, b.oom ? 0 : b.n);
    free(b.p);
    return h;
}
