/* formats/source/source_roles.c - tensors by their role in the model: checked, sliced, as matrices and vectors. */
#include "formats/source/source_impl.h"

#include "formats/arch/ngrams.h"
#include "formats/tensor/blocks_uint.h"
#include "formats/tensor/finite.h"
#include "formats/tensor/tiles.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- roles ---- */
static void shape_text(char out[96], int n_dims, const int64_t *shape)
{
    int at = 0;
    out[0] = 0;
    for (int i = 0; i < n_dims && at < 96; i++)
        at += snprintf(out + at, (size_t)(96 - at), "%s%" PRId64, i ? "," : "", shape[i]);
}

/* Parts of a weight that its reader would have made one: the first that is stored, or NULL. */
static const char *part_of(const src_source *s, const char *name, char part[300])
{
    static const char *const parts[] = {
        ".qweight", ".weight_packed", ".weight.absmax", ".SCB",        ".weight_q",
        ".W_q",     "_blocks",        ".codes",         ".compressed", ".weight.compressed"
    };
    const size_t n = strlen(name), weight = strlen(".weight");
    const bool ends = n > weight && strcmp(name + n - weight, ".weight") == 0;
    for (size_t i = 0; i < LQ_COUNT(parts); i++) {
        snprintf(part, 300, "%.*s%s", (int)(n - (ends ? weight : 0)), name, parts[i]);
        if (src_find(s, part)) return part;
    }
    return NULL;
}

/* Types that quantized weights have. */
static bool of_codes(lq_dtype d)
{
    static const lq_dtype codes[] = { LQ_U8,          LQ_I8,         LQ_F4,      LQ_F6_E2M3,
                                      LQ_F6_E3M2,     LQ_F8_E4M3,    LQ_F8_E5M2, LQ_F8_E8M0,
                                      LQ_F8_E4M3FNUZ, LQ_F8_E5M2FNUZ };
    for (size_t i = 0; i < LQ_COUNT(codes); i++)
        if (codes[i] == d) return true;
    return false;
}

/* A weight that is stored quantized, and was not read. */
static lq_status unexplained(const src_source *s, const char *name, const char *as, lq_err *err)
{
    return s->layout[0]
               ? lq_fail(err, LQ_EUNSUPPORTED,
                         "%s: tensor '%s': stored as %s, which the quantization_config (%s) does "
                         "not explain",
                         s->path, name, as, s->layout)
               : lq_fail(err, LQ_EUNSUPPORTED,
                         "%s: tensor '%s': stored as %s, which no quantization_config explains",
                         s->path, name, as);
}

/* ids: whole numbers will do. */
static lq_status find_checked(const src_source *s, const char *name, int n_dims,
                              const int64_t *want, bool ids, const src_tensor **out, lq_err *err)
{
    const src_tensor *t = src_find(s, name);
    char part[300];
    if (!t && part_of(s, name, part)) return unexplained(s, name, part, err);
    if (!t) return lq_fail(err, LQ_ENOENT, "%s: tensor '%s' is missing", s->path, name);
    if (!t->plain && of_codes(t->raw_dtype))
        return unexplained(s, name, lq_dtype_text(t->raw_dtype), err);
    const bool scalar = t->n_dims == 0 && n_dims == 1 && want[0] == 1;
    if (!scalar &&
        (t->n_dims != n_dims || memcmp(t->shape, want, (size_t)n_dims * sizeof *want) != 0)) {
        char expected[96], found[96];
        shape_text(expected, n_dims, want);
        shape_text(found, t->n_dims, t->shape);
        return lq_fail(err, LQ_ESHAPE, "%s: tensor '%s': expected shape [%s], found [%s]", s->path,
                       name, expected, found);
    }
    if (!t->plain && !(ids && (t->raw_dtype == LQ_I64 || t->raw_dtype == LQ_I32) && t->raw.data))
        return lq_fail(err, LQ_EVALUE, "%s: tensor '%s': expected a float type, found %s", s->path,
                       name, lq_dtype_text(t->raw_dtype));
    *out = t;
    return LQ_OK;
}

/* Stored [inputs, outputs]? Codes never are. */
static bool transposed(const arch_name *a, const src_tensor *t)
{
    return (a->flags & NAME_TRANSPOSED) && t && t->plain && t->t.scheme.kind == QT_DENSE;
}

/* A matrix or vector of a role, or its bias: [experts, outputs, inputs] less the dims it lacks. */
static lq_status find_role(const src_source *s, const arch_name *a, int64_t layer, int64_t expert,
                           bool bias, const src_tensor **out, lq_err *err)
{
    char name[256];
    int64_t N, K, want[4];
    int n = 0;
    const arch_config *c = arch_at(&s->config, layer);
    const bool vector = bias || arch_role_kind(a->role) == ARCH_VECTOR;
    if (!arch_tensor_name(&s->config, a->role, layer, expert, bias, name, sizeof name))
        return lq_fail(err, LQ_EFORMAT, "tensor names are too long");
    if (a->role == R_HEAD && !bias && !src_find(s, name))
        return lq_fail(
            err, LQ_ENOENT,
            "%s: tensor '%s' is missing, and tie_word_embeddings is false: a head of its "
            "own is expected",
            s->path, name);
    const bool turned = !vector && transposed(a, src_find(s, name));
    arch_role_shape(c, a->role, &N, &K);
    if (a->flags & NAME_ANY_ROWS) {
        const src_tensor *t = src_find(s, name);
        N = t && t->n_dims == 2 ? t->shape[0] : N;
    }
    if (a->flags & NAME_STACKED) want[n++] = c->experts;
    if (a->flags & NAME_TAPS) {
        K /= arch_taps(c, a->role); /* channels */
        want[n++] = K;
        if (!bias) want[n++] = 1, want[n++] = arch_taps(c, a->role);
        return find_checked(s, name, n, want, false, out, err);
    }
    if (a->flags & NAME_HEADS)
        return find_checked(s, name, 3, (const int64_t[]){ c->mix_heads, N / c->mix_heads, K },
                            false, out, err);
    if (a->flags & NAME_SHARED)
        return find_checked(s, name, 3,
                            (const int64_t[]){ c->shared_experts, N / c->shared_experts, K }, false,
                            out, err);
    if ((a->flags & NAME_HEAD_TAPS) && bias) return find_checked(s, name, 1, &N, false, out, err);
    if (a->flags & NAME_HEAD_TAPS)
        return find_checked(s, name, 3, (const int64_t[]){ N, K / c->head_taps, c->head_taps },
                            false, out, err);
    if (a->flags & NAME_BLOCKS)
        return find_checked(s, name, 3, (const int64_t[]){ N / K, K, K }, false, out, err);
    if (a->flags & NAME_4D)
        return find_checked(s, name, 4, (const int64_t[]){ 1, 1, K, 1 }, false, out, err);
    if (!vector || (a->flags & (NAME_HEAD_ROWS | NAME_ROW))) want[n++] = turned ? K : N;
    want[n++] = turned || (bias && arch_role_kind(a->role) != ARCH_VECTOR) ? N : K;
    lq_status st = find_checked(s, name, n, want, a->flags & NAME_IDS, out, err);
    if (!st && vector && (*out)->plain && (*out)->t.scheme.kind != QT_DENSE)
        return lq_fail(err, LQ_EVALUE, "%s: tensor '%s': expected a dense vector", s->path, name);
    return st;
}

static bool has_tensor(const src_source *s, arch_role r, int64_t layer, int64_t expert, bool bias)
{
    char name[256];
    return arch_tensor_name(&s->config, r, layer, expert, bias, name, sizeof name) &&
           src_find(s, name);
}

lq_status src_role(const src_source *s, arch_role r, int64_t layer, int64_t expert,
                   const src_tensor **t, const src_tensor **bias, lq_err *err)
{
    const arch_config *c = &s->config;
    *t = NULL;
    if (bias) *bias = NULL;
    if (r == R_HEAD && c->tied) r = R_EMBED;
    const arch_name *a = arch_name_of(c, r);
    if (!a || !arch_has(c, r, layer)) return LQ_OK;
    if ((a->flags & NAME_OPTIONAL) && !has_tensor(s, r, layer, expert, false)) return LQ_OK;
    lq_status st = find_role(s, a, layer, expert, false, t, err);
    int wants = arch_wants_bias(c, r);
    if (st || !bias || !wants) return st;
    if (wants < 0 && !has_tensor(s, r, layer, expert, true)) return LQ_OK;
    return find_role(s, a, layer, expert, true, bias, err);
}

lq_status src_check_ngrams(const src_source *s, int64_t layer, lq_err *err)
{
    const arch_config *c = &s->config;
    arch_ngrams z;
    int64_t rows = 0;
    lq_status st = LQ_OK;
    for (int64_t i = 0; i < arch_n_tensors(c, R_NGRAM_TABLE) && !st; i++) {
        const src_tensor *t;
        st = src_role(s, R_NGRAM_TABLE, layer, i, &t, NULL, err);
        if (!st) rows += t->shape[0];
    }
    if (st) return st;
    arch_ngrams_of(&z, c, layer);
    if (rows == z.rows) return LQ_OK;
    return lq_fail(err, LQ_ESHAPE,
                   "%s: layer %lld: expected a table of n-grams of %lld rows, found %lld", s->path,
                   (long long)layer, (long long)z.rows, (long long)rows);
}

lq_status src_check_roles(const src_source *s, lq_err *err)
{
    lq_status st = LQ_OK;
    for (int64_t l = -1; l < s->config.layers && !st; l++) /* -1: what belongs to no layer */
        for (int r = 0; r < ARCH_N_ROLES && !st; r++) {
            const int64_t n = arch_n_tensors(&s->config, (arch_role)r);
            const src_tensor *t, *bias;
            if (arch_role_per_layer((arch_role)r) != (l >= 0)) continue;
            for (int64_t e = 0; e < n && !st; e++)
                st = src_role(s, (arch_role)r, l, e, &t, &bias, err);
            if (r == R_NGRAM_TABLE && l >= 0 && s->config.layer[l].ngrams && !st)
                st = src_check_ngrams(s, l, err);
        }
    return st;
}

/* ---- matrices and vectors ---- */

void src_transpose(void *dst, const void *src, int64_t N, int64_t K, size_t size)
{
    enum { BLOCK = 32 };
    uint8_t *to = dst;
    const uint8_t *from = src;
    for (int64_t n0 = 0; n0 < N; n0 += BLOCK)
        for (int64_t k0 = 0; k0 < K; k0 += BLOCK)
            for (int64_t n = n0; n < N && n < n0 + BLOCK; n++)
                for (int64_t k = k0; k < K && k < k0 + BLOCK; k++)
                    memcpy(to + (size_t)(n * K + k) * size, from + (size_t)(k * N + n) * size,
                           size);
}

static lq_status no_room(const char *what, lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, "%s: out of memory", what);
}

/* In place, or as f32 where a block runs from one expert into the next. */
static lq_status rows_of_expert(qt_tensor *w, const qt_tensor *t, int64_t n0, int64_t n1,
                                lq_arena *a, lq_err *err)
{
    if (qt_rows(w, t, n0, n1) || tiles_rows(w, t, n0, n1)) return LQ_OK;
    if (t->layout != QT_PORTABLE)
        return lq_fail(err, LQ_EUNSUPPORTED, "expected experts of whole tiles, or layout portable");
    const size_t bytes = (size_t)(n1 - n0) * (size_t)t->K * sizeof(float);
    float *copy = lq_push(a, bytes);
    if (!copy) return no_room("experts", err);
    qt_dequant(copy, t, n0, n1);
    *w = (qt_tensor){ .scheme = { .kind = QT_DENSE, .dtype = LQ_F32 }, .N = n1 - n0, .K = t->K };
    w->plane[QT_CODES] = (qt_span){ copy, bytes };
    return LQ_OK;
}

lq_status src_slice(qt_tensor *w, const arch_config *c, arch_role r, int64_t expert,
                    const qt_tensor *stored, lq_arena *a, lq_err *err)
{
    const arch_name *name = arch_name_of(c, r);
    const bool dense = stored->scheme.kind == QT_DENSE;
    const bool stacked = name && (name->flags & NAME_STACKED);
    const bool turned = name && (name->flags & NAME_TRANSPOSED) && dense;
    int64_t N, K;
    arch_role_shape(c, r, &N, &K);
    *w = *stored;
    if (!stacked && !turned) return LQ_OK;
    if (!turned) return rows_of_expert(w, stored, expert * N, (expert + 1) * N, a, err);
    const size_t size = lq_dtype_bytes(stored->scheme.dtype);
    const size_t bytes = (size_t)(N * K) * size;
    const uint8_t *from = stored->plane[QT_CODES].data;
    void *copy = lq_push(a, bytes);
    if (!copy) return no_room(arch_role_text(r), err);
    src_transpose(copy, from + (stacked ? (size_t)expert * bytes : 0), N, K, size);
    *w = (qt_tensor){ .scheme = stored->scheme, .N = N, .K = K };
    w->plane[QT_CODES] = (qt_span){ copy, bytes };
    return LQ_OK;
}

lq_status src_first_rows(qt_tensor *plain, const qt_tensor *t, lq_arena *a, lq_err *err)
{
    qt_tensor tile = *t;
    void *w[QT_N_PLANES];
    *plain = *t;
    if (t->layout == QT_PORTABLE) return LQ_OK;
    if (t->N > TILE_N) tiles_rows(&tile, t, 0, TILE_N);
    const lq_status st = qt_alloc(plain, w, &tile.scheme, tile.N, tile.K, a, err);
    return st ? st : tiles_unpack(w, &tile, err);
}

/* Codes as they are stored are looked at where they are to be packed anyway; a file that is mapped
 * and used as it lies is not read for it. */
static lq_status check_slice(const qt_tensor *w, const qt_tensor *stored, lq_err *err)
{
    if (stored->scheme.kind == QT_DENSE) return LQ_OK;
    if (w->scheme.kind != QT_DENSE) return val_check(w, w->layout == QT_PORTABLE, err);
    const float most = val_largest(w->plane[QT_CODES].data, LQ_F32, (size_t)(w->N * w->K));
    return isfinite(most) ? LQ_OK
                          : lq_fail(err, LQ_EVALUE, "expected finite weights, found others");
}

lq_status src_matrix(const src_source *s, arch_role r, int64_t layer, int64_t expert, qt_tensor *w,
                     lq_arena *a, lq_err *err)
{
    return src_matrix_rows(s, r, layer, expert, 0, INT64_MAX, w, a, err);
}

lq_status src_matrix_rows(const src_source *s, arch_role r, int64_t layer, int64_t expert,
                          int64_t n0, int64_t n1, qt_tensor *w, lq_arena *a, lq_err *err)
{
    const src_tensor *t = NULL;
    memset(w, 0, sizeof *w);
    lq_status st = src_role(s, r, layer, expert, &t, NULL, err);
    if (st || !t) return st;
    qt_tensor all;
    src_load(&all, s, t);
    st = src_slice(w, arch_at(&s->config, layer), r, expert, &all, a, err);
    if (!st && n1 <= w->N) {
        const qt_tensor whole = *w;
        if (!qt_rows(w, &whole, n0, n1) && !tiles_rows(w, &whole, n0, n1)) *w = whole;
    }
    if (!st) st = check_slice(w, &all, err);
    if (!st && s->uint_blocks && w->scheme.kind == QT_BLOCKS) {
        const qt_tensor blocks = *w;
        st = blk_to_uint(w, &blocks, a, err);
    }
    return st ? lq_wrap(err, st, "%s", t->name) : LQ_OK;
}

void src_matrix_done(const src_source *s, arch_role r, int64_t layer, int64_t expert)
{
    const src_tensor *t = NULL;
    if (!src_role(s, r, layer, expert, &t, NULL, NULL) && t) src_unload(s, t);
}

/* The stored tensor of a vector; NULL: there is none. */
static lq_status stored_vector(const src_source *s, arch_role r, int64_t layer, int64_t expert,
                               bool bias, const src_tensor **t, lq_err *err)
{
    const src_tensor *weight, *b;
    lq_status st = src_role(s, r, layer, expert, &weight, &b, err);
    *t = bias ? b : weight;
    if (st || !*t) return st;
    st = src_check_values(s, *t, err);
    return st ? lq_wrap(err, st, "%s", s->path) : LQ_OK;
}

/* Whole numbers as floats, which hold them up to 2^24. */
static lq_status ids_of(const float **v, const src_tensor *t, lq_arena *a, lq_err *err)
{
    const size_t size = lq_dtype_bytes(t->raw_dtype), n = t->raw.bytes / size;
    const uint8_t *from = t->raw.data;
    float *out = lq_push(a, n * sizeof *out);
    if (!out) return no_room(t->name, err);
    for (size_t i = 0; i < n; i++) {
        int64_t wide = 0;
        int32_t narrow = 0;
        memcpy(size == sizeof wide ? (void *)&wide : &narrow, from + i * size, size);
        out[i] = (float)(wide + narrow);
    }
    *v = out;
    return LQ_OK;
}

lq_status src_vector(const src_source *s, arch_role r, int64_t layer, int64_t expert, bool bias,
                     const float **v, lq_arena *a, lq_err *err)
{
    const arch_name *name = arch_name_of(&s->config, r);
    const int flags = name ? name->flags : 0;
    const int64_t parts = flags & NAME_HEAD_EACH ? arch_n_tensors(&s->config, r) : 1;
    float *out = NULL;
    *v = NULL;
    for (int64_t i = 0; i < parts; i++) {
        const src_tensor *t;
        lq_status st =
            stored_vector(s, r, layer, flags & NAME_HEAD_EACH ? i : expert, bias, &t, err);
        if (st || !t) return st;
        if (!t->plain) return ids_of(v, t, a, err);
        const int64_t row = flags & NAME_STACKED ? expert : 0,
                      n = flags & NAME_STACKED ? 1 : t->t.N;
        if (!out) out = lq_push(a, (size_t)(parts * n * t->t.K) * sizeof *out);
        if (!out) return no_room(t->name, err);
        qt_tensor q;
        src_load(&q, s, t);
        qt_dequant(out + i * n * q.K, &q, row, row + n);
        if (t->made) src_unload(s, t);
    }
    *v = out;
    return LQ_OK;
}
