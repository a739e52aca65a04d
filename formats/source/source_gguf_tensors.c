/* formats/source/source_gguf_tensors.c - a GGUF file's tensors under their Hugging Face names. Most are
 * the stored bytes; the others are made of one or two tensors whenever somebody loads them, their
 * rows in another order (gguf_order), or:
 *
 *     gate, up   two stacks of experts; ours is one (gguf_order)
 *     k_b, v_b   MLA's up projection: k_b is stored transposed (deepseek2)
 *     ssm_a      -exp(x), of a layer with a state
 *     .scale     NVFP4's scale of a tensor, or of each expert (1 where there is none)
 *     [K,N]      floats of a checkpoint that keeps matrices as [inputs, outputs] (gpt2)
 *
 * Or one of the file's is several of ours, rows of each after the other (llama.cpp's --fuse-qkv and
 * --fuse-gate-up-exps). */
#include "formats/source/source_gguf_tensors.h"

#include "formats/gguf/gguf_blocks.h"
#include "formats/gguf/gguf_config.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    ggml_type type, type2;
    const uint8_t *data, *data2; /* 2: up, or v_b */
    gguf_order order;
    bool kv_b;
    bool transposed; /* floats [N,K] of each of `count` matrices become [K,N] */
    int64_t count;
    float offset; /* was added to each element, of f32 */
    int decay;    /* exp of each element is stored, times this, in f32; 0: it is not */
    const uint8_t *second, *second2; /* NVFP4: f32 [count] of `data`, of `data2`; or NULL */
} stored;

/* ---- rows ---- */
/* Where our row n of N is stored. */
static const uint8_t *row_at(const stored *p, int64_t n, int64_t N, size_t row)
{
    bool second;
    n = gguf_stored_row(&p->order, n, N, &second);
    return (second ? p->data2 : p->data) + (size_t)n * row;
}

/* Elements of a vector, or of the experts' biases. */
static void fill_vector(uint8_t *w, const qt_tensor *t, const stored *p)
{
    const size_t e = gguf_row_bytes(p->type, 1);
    const int64_t n = t->N * t->K;
    for (int64_t k = 0; k < n; k++)
        memcpy(w + (size_t)k * e, row_at(p, k, n, e), e);
    for (int64_t k = 0; k < n && p->offset > 0; k++) {
        float f;
        memcpy(&f, w + 4 * k, 4);
        f -= p->offset;
        memcpy(w + 4 * k, &f, 4);
    }
    for (int64_t k = 0; k < n && p->decay; k++) {
        float f;
        memcpy(&f, w + 4 * k, 4);
        f = logf((float)p->decay * f);
        memcpy(w + 4 * k, &f, 4);
    }
}

/* Floats: rows of each matrix become columns. t is [count * K, N] of matrices [N,K] in the file. */
static void fill_transposed(uint8_t *w, const qt_tensor *t, const stored *p)
{
    const int64_t N = t->K, K = t->N / p->count;
    const size_t e = gguf_row_bytes(p->type, 1), row = (size_t)K * e;
    for (int64_t n = 0; n < p->count * N; n++) {
        const uint8_t *from = row_at(p, n, p->count * N, row);
        uint8_t *to = w + ((size_t)(n / N * K) * (size_t)N + (size_t)(n % N)) * e;
        for (int64_t k = 0; k < K; k++)
            memcpy(to + (size_t)(k * N) * e, from + (size_t)k * e, e);
    }
}

enum { MAX_MLA = 1024 }; /* of a row of k_b or v_b, in elements */

/* A row of blocks as f32 [K]. */
static void row_floats(float *y, ggml_type type, const uint8_t *row, int64_t K)
{
    uint64_t room[QT_N_PLANES][MAX_MLA / 2 + 8];
    void *w[QT_N_PLANES];
    qt_tensor q = { .scheme = gguf_scheme(type), .N = 1, .K = K };
    memset(room, 0, sizeof room);
    for (int i = 0; i < QT_N_PLANES; i++) {
        const size_t n = qt_plane_bytes(&q.scheme, QT_PORTABLE, 1, K, (qt_plane)i);
        w[i] = room[i];
        if (n) q.plane[i] = (qt_span){ room[i], n };
    }
    gguf_unpack_row(w, &q, 0, type, row);
    qt_dequant(y, &q, 0, 1);
}

/* Of each head: the rows of k, which are the columns of k_b [kv_lora, nope], then those of v. */
static void fill_kv_b(float *y, const qt_tensor *t, const stored *p)
{
    const int64_t L = t->K, nope = p->order.c->nope_dims, v = p->order.c->v_dim;
    const size_t k_row = gguf_row_bytes(p->type, nope), v_row = gguf_row_bytes(p->type2, L);
    float row[MAX_MLA];
    for (int64_t h = 0; h < p->order.c->heads; h++, y += (nope + v) * L) {
        for (int64_t i = 0; i < L; i++) {
            row_floats(row, p->type, p->data + (size_t)(h * L + i) * k_row, nope);
            for (int64_t j = 0; j < nope; j++)
                y[j * L + i] = row[j];
        }
        for (int64_t j = 0; j < v; j++)
            row_floats(y + (nope + j) * L, p->type2, p->data2 + (size_t)(h * v + j) * v_row, L);
    }
}

/* NVFP4: of each matrix, or of its gate and its up. */
static void fill_seconds(uint8_t *w, const stored *p)
{
    const float one = 1;
    for (int64_t i = 0; i < p->count; i++)
        for (int half = 0; half < (p->data2 ? 2 : 1); half++, w += 4) {
            const uint8_t *from = half ? p->second2 : p->second;
            memcpy(w, from ? from + 4 * i : (const uint8_t *)&one, 4);
        }
}

static void source_gguf_fill(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const stored *p = from;
    const bool dense = t->scheme.kind == QT_DENSE;
    if (w[QT_SCALES2] && !p->kv_b) fill_seconds(w[QT_SCALES2], p);
    if (p->kv_b) {
        fill_kv_b(w[QT_CODES], t, p);
    } else if (dense && p->transposed) {
        fill_transposed(w[QT_CODES], t, p);
    } else if (dense && (t->N == 1 || p->count == 0)) {
        fill_vector(w[QT_CODES], t, p);
    } else {
        const size_t row = gguf_row_bytes(p->type, t->K);
        for (int64_t n = 0; n < t->N; n++)
            gguf_unpack_row(w, t, n, p->type, row_at(p, n, t->N, row));
    }
}

/* ---- names ---- */
/* A tensor of the model: its row, slot and name as Hugging Face has it; row NULL: none that we
 * know, its name stays. */
typedef struct {
    const gguf_name *row;
    arch_slot slot;
    const arch_config *config; /* of the model, or of its MTP head */
    const uint8_t *second;     /* its scale, of NVFP4; or NULL */
} place;

/* "blk.3.attn_q.weight" */
static place place_of(const src_source *s, const char *gguf)
{
    place w = { .slot = { .layer = -1, .expert = -1 }, .config = &s->config };
    const char *p = gguf, *ending;
    long layer = -1;
    if (!s->has_config) return w;
    if (strncmp(p, "blk.", 4) == 0) {
        char *end;
        layer = strtol(p + 4, &end, 10);
        const bool further = s->has_head && layer == s->config.layers;
        if (end == p + 4 || *end != '.' || layer < 0 || (layer >= s->config.layers && !further))
            return w;
        if (further) w.config = &s->head;
        p = end + 1;
    }
    w.row = gguf_name_find(w.config, p, strlen(p), layer);
    if (w.row) { /* a name with an ending of its own */
        w.slot = (arch_slot){ w.row->role, layer, -1, false };
        return w;
    }
    ending = strrchr(p, '.');
    if (!ending || (strcmp(ending, ".weight") != 0 && strcmp(ending, ".bias") != 0)) return w;
    w.row = gguf_name_find(w.config, p, (size_t)(ending - p), layer);
    if (!w.row) return w;
    while (w.row->once && ++layer + 1 < w.config->layers)
        if (arch_has(w.config, w.row->role, layer)) break;
    const bool bias = strcmp(ending, ".bias") == 0 && w.row->role != R_ROUTER_CORR;
    w.slot = (arch_slot){ w.row->role, layer, -1, bias };
    return w;
}

static const char *hf_name(src_source *s, const gguf_tensor *g, const place *w)
{
    char out[512];
    if (!w->row || !arch_tensor_name(w->config, w->slot.role, w->slot.layer, w->slot.expert,
                                     w->slot.bias, out, sizeof out))
        return g->name;
    return lq_push_str(&s->arena, out, strlen(out));
}

/* ---- one tensor ---- */
static lq_status wrong_rows(const gguf_tensor *g, int64_t want, lq_err *err)
{
    return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected rows of %lld heads", g->name,
                   (long long)want);
}

/* "blk.3.attn_q.weight" -> "blk.3.attn_q.scale" */
static const gguf_tensor *beside(const src_source *s, const char *name, const char *ending)
{
    char other[256];
    const char *end = strrchr(name, '.');
    if (!end) return NULL;
    snprintf(other, sizeof other, "%.*s%s", (int)(end - name), name, ending);
    return gguf_find(&s->gguf, other);
}

/* Is it a scale beside a weight of NVFP4, or one of its inputs? LQ_EUNSUPPORTED: beside another. */
static lq_status is_scale(bool *scale, bool *inputs, const src_source *s, const gguf_tensor *g,
                          lq_err *err)
{
    const char *end = strrchr(g->name, '.');
    *inputs = end && strcmp(end, ".input_scale") == 0;
    *scale = *inputs || (end && strcmp(end, ".scale") == 0);
    const gguf_tensor *w = *scale ? beside(s, g->name, ".weight") : NULL;
    *scale = w && (w->type == GGML_NVFP4 || !place_of(s, g->name).row);
    if (!*scale || w->type == GGML_NVFP4) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "tensor '%.100s': a scale of weights of %s is not read",
                   g->name, gguf_type_text(w->type));
}

/* Finds the scales of g, `count` of them. */
static lq_status second_of(const uint8_t **out, const src_source *s, const gguf_tensor *g,
                           int64_t count, lq_err *err)
{
    const gguf_tensor *x = g->type == GGML_NVFP4 ? beside(s, g->name, ".scale") : NULL;
    *out = x ? x->data : NULL;
    if (!x || (x->type == GGML_F32 && x->bytes == (size_t)count * 4)) return LQ_OK;
    return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected %lld numbers of F32", x->name,
                   (long long)count);
}

/* How its rows are stored, and what was added; N rows (of a vector: elements). */
static lq_status order_of(stored *p, const gguf_tensor *g, const gguf_arch *row, const place *w,
                          int64_t N, lq_err *err)
{
    const arch_config *c = w->config;
    *p = (stored){ .type = g->type, .data = g->data, .order.c = c, .count = 1 };
    if (!w->row) return LQ_OK;
    p->order = gguf_order_of(row, c, &w->slot);
    p->offset = arch_slot_offset(c, &w->slot);
    p->decay = gguf_decay(c, &w->slot);
    if (p->decay) p->count = 0; /* a vector, whatever its dims */
    /* gate and up are one in the file too (--fuse-gate-up-exps) */
    if (p->order.kind == GGUF_GATE_UP && w->row->join == JOIN_NONE) {
        if (c->w.gate_up_mixed)
            return lq_fail(err, LQ_EUNSUPPORTED, "tensor '%.100s': expected gate and up apart",
                           g->name);
        p->order.kind = GGUF_AS_STORED;
    }
    const int64_t heads = p->order.heads;
    if (p->order.kind == GGUF_TURNED && (N % heads || N / heads % 2 || N / heads < p->order.dims))
        return wrong_rows(g, heads, err);
    if (p->order.kind == GGUF_APART && N != (c->heads + 2 * c->kv_heads) * c->head_dim)
        return wrong_rows(g, c->heads + 2 * c->kv_heads, err);
    if ((p->offset > 0 && g->n_dims != 1) || ((p->offset > 0 || p->decay) && g->type != GGML_F32))
        return lq_fail(err, LQ_EUNSUPPORTED, "tensor '%.100s': expected a vector of F32", g->name);
    p->transposed = !w->slot.bias && gguf_scheme(g->type).kind == QT_DENSE && g->n_dims >= 2 &&
                    arch_name_of(c, w->slot.role)->flags & NAME_TRANSPOSED;
    return LQ_OK;
}

/* t of shape[n_dims] and scheme, made of p whenever it is loaded. */
static lq_status make_of(src_source *s, src_tensor *t, const stored *p, qt_scheme scheme,
                         const qt_span *reads, size_t n, lq_err *err)
{
    int64_t N = 1;
    for (int i = 0; i + 1 < t->n_dims; i++)
        N *= t->shape[i];
    t->t = (qt_tensor){ .scheme = scheme, .N = N, .K = t->shape[t->n_dims - 1] };
    t->raw_dtype = scheme.kind == QT_DENSE ? scheme.dtype : LQ_U8;
    stored *from = lq_push(&s->arena, sizeof *from);
    if (!from) return lq_fail(err, LQ_ENOMEM, "out of memory");
    *from = *p;
    if (scheme.kind == QT_BLOCKS && p->order.kind == GGUF_AS_STORED && !p->kv_b)
        t->t.plane[QT_CODES] = reads[0];
    lq_status st = src_make(s, t, source_gguf_fill, from, err);
    return st ? st : src_made_from(s, t, reads, n, err);
}

static void swap_last(int64_t *shape, int n_dims)
{
    const int64_t K = shape[n_dims - 1];
    shape[n_dims - 1] = shape[n_dims - 2];
    shape[n_dims - 2] = K;
}

static lq_status make_tensor(src_source *s, src_tensor *t, const gguf_tensor *g,
                             const gguf_arch *row, const place *w, lq_err *err)
{
    stored p;
    const char *name = hf_name(s, g, w);
    if (!name) return lq_fail(err, LQ_ENOMEM, "out of memory");
    const int64_t K = g->shape[g->n_dims - 1], N = (int64_t)(g->bytes / gguf_row_bytes(g->type, K));
    qt_scheme scheme = gguf_scheme(g->type);
    lq_status st = order_of(&p, g, row, w, g->n_dims == 1 ? K : N, err);
    if (st) return st;
    p.second = w->second;
    if (g->type == GGML_NVFP4 && g->n_dims == 3) {
        p.count = g->shape[0];
        scheme.rows = g->shape[1];
    }
    if (scheme.kind == QT_DENSE && p.order.kind == GGUF_AS_STORED && !p.transposed &&
        !(p.offset > 0) && !p.decay)
        return src_fill_plain(t, name, scheme.dtype, g->n_dims, g->shape, g->data, g->bytes, err);
    *t = (src_tensor){ .name = name, .n_dims = g->n_dims };
    memcpy(t->shape, g->shape, sizeof g->shape);
    if (p.transposed) swap_last(t->shape, t->n_dims);
    for (int i = 0; p.transposed && i + 2 < g->n_dims; i++)
        p.count *= g->shape[i];
    return make_of(s, t, &p, scheme, &(qt_span){ g->data, g->bytes }, 1, err);
}

/* ---- two tensors of the file that are one of ours ---- */
/* "blk.3.ffn_gate_exps.weight" -> "blk.3.ffn_up_exps.weight"; NULL: there is none. */
static const gguf_tensor *partner(const src_source *s, const gguf_tensor *g, const char *from,
                                  const char *to)
{
    char name[256];
    const char *at = strstr(g->name, from);
    if (!at) return NULL;
    snprintf(name, sizeof name, "%.*s%s%s", (int)(at - g->name), g->name, to, at + strlen(from));
    return gguf_find(&s->gguf, name);
}

static lq_status no_partner(const gguf_tensor *g, const char *what, lq_err *err)
{
    return lq_fail(err, LQ_EFORMAT,
                   "tensor '%.100s': expected %s of the same type and shape beside it", g->name,
                   what);
}

static lq_status no_nvfp4(const gguf_tensor *g, lq_err *err)
{
    return lq_fail(err, LQ_EUNSUPPORTED, "tensor '%.100s': expected another type than NVFP4",
                   g->name);
}

/* Gate and up of all experts: [experts, 2 ffn, hidden], or their biases [experts, 2 ffn]; or of the
 * shared MLP: [2 ffn, hidden]. */
static lq_status make_gate_up(src_source *s, src_tensor *t, const gguf_tensor *g, const place *w,
                              lq_err *err)
{
    const bool bias = w->slot.bias, dense = w->slot.role == R_GATE_UP,
               shared = dense || w->slot.role == R_SHARED_GATE_UP;
    const char *names[] = { dense    ? "ffn_gate"
                            : shared ? "ffn_gate_shexp"
                                     : "ffn_gate_exps",
                            dense    ? "ffn_up"
                            : shared ? "ffn_up_shexp"
                                     : "ffn_up_exps" };
    const gguf_tensor *up = partner(s, g, names[0], names[1]);
    const int rows = shared ? 0 : 1; /* the dim that is doubled */
    if (!up || up->type != g->type || up->bytes != g->bytes || g->n_dims != rows + (bias ? 1 : 2))
        return no_partner(g, names[1], err);
    if (bias && gguf_scheme(g->type).kind != QT_DENSE)
        return lq_fail(err, LQ_EUNSUPPORTED, "tensor '%.100s': expected floats", g->name);
    stored p = { .type = g->type, .data = g->data, .data2 = up->data };
    qt_scheme scheme = gguf_scheme(g->type);
    p.order = (gguf_order){ GGUF_GATE_UP, w->config, .ffn = g->shape[rows] };
    if (g->type == GGML_NVFP4) {
        const int64_t matrices = shared ? 1 : g->shape[0];
        if (s->config.w.gate_up_mixed) return no_nvfp4(g, err);
        lq_status st = second_of(&p.second, s, g, matrices, err);
        if (!st) st = second_of(&p.second2, s, up, matrices, err);
        if (st) return st;
        scheme.rows = g->shape[rows];
    }
    *t = (src_tensor){ .name = hf_name(s, g, w), .n_dims = g->n_dims };
    if (!t->name) return lq_fail(err, LQ_ENOMEM, "out of memory");
    memcpy(t->shape, g->shape, sizeof g->shape);
    t->shape[rows] *= 2;
    p.transposed = !bias && scheme.kind == QT_DENSE &&
                   arch_name_of(w->config, w->slot.role)->flags & NAME_TRANSPOSED;
    p.count = bias ? 0 : shared ? 1 : g->shape[0];
    if (p.transposed) swap_last(t->shape, 3);
    const qt_span reads[2] = { { g->data, g->bytes }, { up->data, up->bytes } };
    return make_of(s, t, &p, scheme, reads, 2, err);
}

/* Rows, and those after them in another tensor. */
static lq_status make_rows(src_source *s, src_tensor *t, const gguf_tensor *g, const place *w,
                           lq_err *err)
{
    const gguf_tensor *k = partner(s, g, "indexer.q_proj", "indexer.k_proj");
    if (!k || k->type != g->type || g->n_dims != 2 || k->n_dims != 2 ||
        g->shape[1] != k->shape[1] || g->type == GGML_NVFP4)
        return lq_fail(
            err, LQ_EFORMAT,
            "tensor '%.100s': expected indexer.k_proj of the same type and inputs beside it",
            g->name);
    stored p = { .type = g->type, .data = g->data, .data2 = k->data, .count = 1 };
    p.order = (gguf_order){ GGUF_ROWS, w->config, .ffn = g->shape[0] };
    *t = (src_tensor){ .name = hf_name(s, g, w), .n_dims = 2 };
    t->shape[0] = g->shape[0] + k->shape[0];
    t->shape[1] = g->shape[1];
    const qt_span reads[2] = { { g->data, g->bytes }, { k->data, k->bytes } };
    return t->name ? make_of(s, t, &p, gguf_scheme(g->type), reads, 2, err)
                   : lq_fail(err, LQ_ENOMEM, "out of memory");
}

/* k_b [heads, kv_lora, nope] and v_b [heads, v, kv_lora] as one matrix, in f32: k_b's blocks run
 * the other way. */
static lq_status make_kv_b(src_source *s, src_tensor *t, const gguf_tensor *g, const place *w,
                           lq_err *err)
{
    const arch_config *c = &s->config;
    const gguf_tensor *v = partner(s, g, "attn_k_b", "attn_v_b");
    const int64_t rows = c->heads * (c->nope_dims + c->v_dim);
    if (!v || g->n_dims != 3 || v->n_dims != 3 || g->shape[0] != c->heads ||
        g->shape[1] != c->kv_lora || g->shape[2] != c->nope_dims || v->shape[0] != c->heads ||
        v->shape[1] != c->v_dim || v->shape[2] != c->kv_lora || c->nope_dims > MAX_MLA ||
        c->kv_lora > MAX_MLA)
        return lq_fail(
            err, LQ_ESHAPE, "tensor '%.100s': expected [%lld,%lld,%lld], and attn_v_b beside it",
            g->name, (long long)c->heads, (long long)c->kv_lora, (long long)c->nope_dims);
    if (g->type == GGML_NVFP4 || v->type == GGML_NVFP4) return no_nvfp4(g, err);
    stored p = { .type = g->type, .type2 = v->type, .data = g->data, .data2 = v->data };
    p.order.c = c;
    p.kv_b = true;
    *t = (src_tensor){ .name = hf_name(s, g, w), .n_dims = 2, .shape = { rows, c->kv_lora } };
    if (!t->name) return lq_fail(err, LQ_ENOMEM, "out of memory");
    const qt_span reads[2] = { { g->data, g->bytes }, { v->data, v->bytes } };
    const qt_scheme f32 = { .kind = QT_DENSE, .dtype = LQ_F32 };
    return make_of(s, t, &p, f32, reads, 2, err);
}

/* ---- all ---- */
/* Vectors of layers with a state have more dims in the file, or fewer, than ours. */
static void vector_shape(gguf_tensor *g, const src_source *s, const place *w)
{
    const int flags = arch_name_of(w->config, w->slot.role)->flags;
    const int64_t taps = arch_taps(&s->config, w->slot.role);
    int64_t n = 1;
    const bool state =
        (w->slot.role >= R_MIX_IN && w->slot.role <= R_MIX_OUT) || w->slot.role == R_NGRAM_CONV;
    if (w->slot.bias || !state || (flags & NAME_HEAD_ROWS) ||
        arch_role_kind(w->slot.role) != ARCH_VECTOR || g->n_dims < 2)
        return;
    for (int i = 0; i < g->n_dims; i++)
        n *= g->shape[i];
    g->n_dims = 1;
    g->shape[0] = n;
    if (flags & NAME_4D) {
        g->n_dims = 4;
        g->shape[0] = g->shape[1] = g->shape[3] = 1;
        g->shape[2] = n;
    }
    if (!(flags & NAME_TAPS) || taps < 1 || n % taps) return;
    g->n_dims = 3;
    g->shape[0] = n / taps;
    g->shape[1] = 1;
    g->shape[2] = taps;
}

/* One tensor of the file, or as many as it has experts. */
static lq_status make_experts(src_source *s, const gguf_tensor *g, const gguf_arch *row, place w,
                              lq_err *err)
{
    gguf_tensor one = *g;
    const bool ours = w.row && arch_name_of(w.config, w.slot.role)->flags & NAME_STACKED;
    if (w.row && w.row->stacked && g->n_dims != 3 && !(ours && w.slot.bias))
        w.row = NULL; /* whatever it is, it is not that */
    const bool stacked = w.row && w.row->stacked && !ours;
    const int64_t count = stacked ? g->shape[0] : 1;
    const uint8_t *second;
    lq_status st = second_of(&second, s, g, g->n_dims == 3 ? g->shape[0] : 1, err);
    if (stacked) {
        one.n_dims = 2;
        one.bytes = g->bytes / (size_t)count;
        memmove(one.shape, g->shape + 1, 2 * sizeof *one.shape);
    }
    if (w.row) vector_shape(&one, s, &w);
    if (w.row && w.slot.role == R_SHARED_ROUTER && g->n_dims == 1) { /* its one row */
        one.n_dims = 2;
        one.shape[1] = one.shape[0];
        one.shape[0] = 1;
    }
    for (int64_t e = 0; e < count && !st; e++) {
        one.data = g->data + (size_t)e * one.bytes;
        w.slot.expert = e;
        w.second = second ? second + 4 * e : NULL;
        st = make_tensor(s, &s->tensors[s->n_tensors], &one, row, &w, err);
        if (!st) s->n_tensors++;
    }
    return st;
}

/* ---- one tensor of the file that is several of ours ---- */
enum { MAX_PARTS = 3 };
typedef struct {
    const char *name; /* of the file's tensor, without "blk.N." */
    arch_role role;   /* that a model has where they are apart: of the first part */
    int n;
    const char *parts[MAX_PARTS];
} fused;
static const fused fusions[] = {
    { "attn_qkv.weight", R_Q, 3, { "attn_q.weight", "attn_k.weight", "attn_v.weight" } },
    { "attn_qkv.bias", R_Q, 3, { "attn_q.bias", "attn_k.bias", "attn_v.bias" } },
    { "ffn_gate_up_exps.weight",
      R_EXPERT_GATE,
      2,
      { "ffn_gate_exps.weight", "ffn_up_exps.weight" } },
};

/* NULL: it is none, or one tensor of ours too. */
static const fused *fusion_of(const src_source *s, const gguf_tensor *g)
{
    const char *p = strncmp(g->name, "blk.", 4) == 0 ? strchr(g->name + 4, '.') : NULL;
    if (!s->has_config || !p || place_of(s, g->name).row) return NULL;
    for (size_t i = 0; i < LQ_COUNT(fusions); i++)
        if (strcmp(p + 1, fusions[i].name) == 0 && arch_name_of(&s->config, fusions[i].role))
            return &fusions[i];
    return NULL;
}

/* Rows of part i of f, of a stack those of one expert. */
static int64_t part_rows(const fused *f, int i, const arch_config *c)
{
    int64_t N = c->expert_ffn, K;
    static const arch_role roles[] = { R_Q, R_K, R_V };
    if (f->role == R_Q) arch_role_shape(c, roles[i], &N, &K);
    return N;
}

static lq_status make_parts(src_source *s, const gguf_tensor *g, const fused *f,
                            const gguf_arch *row, lq_err *err)
{
    const bool stack = f->role == R_EXPERT_GATE, vector = g->n_dims == 1;
    const int64_t E = stack ? g->shape[0] : 1, all = g->shape[stack];
    const long layer = strtol(g->name + 4, NULL, 10);
    const size_t bytes = g->bytes / (size_t)(E * all); /* of a row */
    int64_t at = 0;
    lq_status st = LQ_OK;
    if (g->type == GGML_NVFP4 || (vector && gguf_scheme(g->type).kind != QT_DENSE))
        return lq_fail(err, LQ_EUNSUPPORTED, "tensor '%.100s': expected other than %s in one",
                       g->name, gguf_type_text(g->type));
    for (int i = 0; i < f->n && !st; i++) {
        char name[96];
        snprintf(name, sizeof name, "blk.%ld.%s", layer, f->parts[i]);
        place w = place_of(s, name);
        const int64_t n = w.row ? part_rows(f, i, arch_at(w.config, layer)) : 0;
        const char *own = lq_push_str(&s->arena, name, strlen(name));
        if (!own) return lq_fail(err, LQ_ENOMEM, "out of memory");
        if (!w.row || g->n_dims != (vector ? 1 : 2 + stack) || at + n > all ||
            (i + 1 == f->n && at + n != all) ||
            (stack && arch_name_of(w.config, w.slot.role)->flags & NAME_STACKED))
            return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected the rows of %s and %s",
                           g->name, f->parts[0], f->parts[f->n - 1]);
        for (int64_t e = 0; e < E && !st; e++) {
            gguf_tensor one = *g;
            one.name = own;
            one.n_dims = vector ? 1 : 2;
            one.shape[0] = n;
            one.shape[1] = g->shape[g->n_dims - 1];
            one.data = g->data + (size_t)(e * all + at) * bytes;
            one.bytes = (size_t)n * bytes;
            w.slot.expert = stack ? e : w.slot.expert;
            st = make_tensor(s, &s->tensors[s->n_tensors], &one, row, &w, err);
            if (!st) s->n_tensors++;
        }
        at += n;
    }
    return st;
}

/* Whole numbers, of a role that has them. */
static lq_status make_ids(src_source *s, const gguf_tensor *g, const place *w, lq_err *err)
{
    const char *name = hf_name(s, g, w);
    if (!name) return lq_fail(err, LQ_ENOMEM, "out of memory");
    if (!w->row || !(arch_name_of(w->config, w->slot.role)->flags & NAME_IDS))
        return lq_fail(err, LQ_EUNSUPPORTED, "tensor '%.100s': expected weights, found I32",
                       g->name);
    return src_fill_plain(&s->tensors[s->n_tensors++], name, LQ_I32, g->n_dims, g->shape, g->data,
                          g->bytes, err);
}

static lq_status make_all_of(src_source *s, const gguf_tensor *g, const gguf_arch *row, lq_err *err)
{
    const fused *f = fusion_of(s, g);
    const place w = place_of(s, g->name);
    src_tensor *t = &s->tensors[s->n_tensors];
    lq_status st = LQ_OK;
    if (g->type == GGML_I32) return make_ids(s, g, &w, err);
    if (f) return make_parts(s, g, f, row, err);
    if (!w.row || w.row->join == JOIN_NONE) return make_experts(s, g, row, w, err);
    if (w.row->join == JOIN_GATE) st = make_gate_up(s, t, g, &w, err);
    if (w.row->join == JOIN_KEY) st = make_kv_b(s, t, g, &w, err);
    if (w.row->join == JOIN_ROWS) st = make_rows(s, t, g, &w, err);
    if (!st && w.row->join != JOIN_SECOND) s->n_tensors++;
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
        n += g->n_dims == 3 ? 2 * (size_t)g->shape[0] : MAX_PARTS;
    }
    for (const gguf_list *l = gguf_lists; l->key && s->has_config; l++)
        n += arch_name_of(&s->config, l->role) ? (size_t)s->config.layers : 0;
    s->tensors = lq_push(&s->arena, n * sizeof *s->tensors);
    return s->tensors ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
}

/* Lists of a number for each layer, or one for all, as tensors of one number. */
static lq_status make_lists(src_source *s, lq_err *err)
{
    const arch_config *c = &s->config;
    lq_status st = LQ_OK;
    for (const gguf_list *l = gguf_lists; l->key && s->has_config; l++) {
        const gguf_kv *kv = gguf_get(&s->gguf, l->key);
        if (!arch_name_of(c, l->role)) continue;
        if (!kv || kv->type != GGUF_F32 || (kv->array && kv->n < (uint64_t)c->layers))
            return lq_fail(err, LQ_EFORMAT,
                           "%s: expected a float for each of %lld layers, found %s", l->key,
                           (long long)c->layers, kv ? "others" : "none");
        for (int64_t i = 0; i < c->layers && !st; i++) {
            char name[256];
            arch_tensor_name(c, l->role, i, -1, false, name, sizeof name);
            const char *copy = lq_push_str(&s->arena, name, strlen(name));
            if (!copy) return lq_fail(err, LQ_ENOMEM, "out of memory");
            st = src_fill_plain(&s->tensors[s->n_tensors++], copy, LQ_F32, 1, &(int64_t){ 1 },
                                (const uint8_t *)kv->data + (kv->array ? 4 * i : 0), 4, err);
        }
    }
    return st;
}

/* No blocks after those that the metadata counts. */
static lq_status check_blocks(const src_source *s, const gguf_arch *row, lq_err *err)
{
    const gguf_file *f = &s->gguf;
    char key[128];
    int64_t blocks;
    long long at;
    snprintf(key, sizeof key, "%s.block_count", row ? row->gguf : "");
    for (size_t i = 0; s->has_config && gguf_int(f, key, &blocks) && i < f->n; i++)
        if (sscanf(f->tensors[i].name, "blk.%lld.", &at) == 1 && at >= blocks)
            return lq_fail(err, LQ_EVALUE,
                           "%s: expected the %lld blocks or more that are stored, found %lld "
                           "(tensor '%.100s')",
                           key, at + 1, (long long)blocks, f->tensors[i].name);
    return LQ_OK;
}

/* Blocks after the model's are MTP heads, and no others are. */
static lq_status check_further(const src_source *s, const gguf_arch *row, lq_err *err)
{
    const gguf_file *f = &s->gguf;
    long long at;
    if (!s->has_config || !row || !row->further) return LQ_OK;
    for (size_t i = 0; i < f->n; i++) {
        const char *name = f->tensors[i].name;
        char proj[64];
        if (sscanf(name, "blk.%lld.", &at) != 1) continue;
        const bool after = at >= s->config.layers;
        snprintf(proj, sizeof proj, "blk.%lld.nextn.", at);
        const bool next = strncmp(name, proj, strlen(proj)) == 0;
        snprintf(proj, sizeof proj, "blk.%lld.nextn.eh_proj.weight", at);
        if (after ? !gguf_find(f, proj) : next)
            return lq_fail(err, LQ_EVALUE,
                           "%s.nextn_predict_layers: expected block %lld to be %s, found tensor "
                           "'%.100s'",
                           row->gguf, at, after ? "an MTP head" : "a layer of the model", name);
    }
    return LQ_OK;
}

lq_status src_gguf_tensors(src_source *s, const gguf_arch *row, lq_err *err)
{
    const gguf_file *f = &s->gguf;
    lq_status st = check_blocks(s, row, err);
    if (!st) st = check_further(s, row, err);
    if (!st) st = make_place(s, err);
    bool rounded = false;
    if (!st) st = make_lists(s, err);
    for (size_t i = 0; i < f->n && !st; i++) {
        if (s->has_config && gguf_is_rope(f->tensors[i].name)) continue;
        if (s->has_config && gguf_is_q_factor(row, f->tensors[i].name)) continue;
        if (s->has_config && src_gguf_is_module(f->tensors[i].name)) continue;
        bool scale = false, inputs = false;
        st = is_scale(&scale, &inputs, s, &f->tensors[i], err);
        rounded = rounded || inputs;
        if (!st && !scale) st = make_all_of(s, &f->tensors[i], row, err);
    }
    if (!st && rounded)
        st =
            src_note(s, err,
                     "NVFP4: weights are as stored; inputs, for which the file has scales too, are "
                     "not rounded");
    if (st) return st;
    if (s->n_tensors) qsort(s->tensors, s->n_tensors, sizeof *s->tensors, src_by_name);
    for (size_t i = 1; i < s->n_tensors; i++)
        if (strcmp(s->tensors[i - 1].name, s->tensors[i].name) == 0)
            return lq_fail(err, LQ_EFORMAT, "tensor '%.100s' is given twice", s->tensors[i].name);
    return src_make_room(s, err);
}
