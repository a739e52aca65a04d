/* convert/to_gguf.c - any source as one GGUF file (formats/gguf.h has the picture).
 *
 * A weight keeps its codes in the blocks of the type that stands for the same values
 * (formats/gguf_blocks.h). Which one, the weight's numbers decide, so types and offsets are written
 * into the header when the tensor is. Vectors are f32, as llama.cpp wants them. */
#include "convert/gguf_meta.h"
#include "convert/layout.h"
#include "convert/requant.h"
#include "formats/gguf_blocks.h"

#include <stdio.h>
#include <stdlib.h>

enum { ALIGN = 32 };

typedef struct {
    const src_source *src;
    const conv_gguf_opts *o;
    const gguf_arch *arch;
    const lq_job *job;
    pool *pool;
    conv_report *r;
    lq_out *out;
    js_buf head;            /* everything before the data */
    size_t *info;           /* [n] where the type and offset of each tensor stand in it */
    size_t file_type, data; /* where general.file_type stands; where the data begin */
    int64_t of_type[64];    /* elements of each type */
} conv;

/* ---- names ---- */
/* "model.layers.3.self_attn.q_proj.weight" as "blk.3.attn_q.weight"; false: it has no name there.
 */
static bool name_of(char out[64], const conv *c, const char *name, int *which)
{
    const char *prefix = src_config(c->src)->prefix;
    char body[200];
    long layer = -1;
    const char *p = name;
    if (strncmp(p, prefix, strlen(prefix)) == 0) p += strlen(prefix);
    if (strncmp(p, "layers.", 7) == 0) {
        char *end;
        layer = strtol(p + 7, &end, 10);
        if (end == p + 7 || *end != '.') return false;
        p = end + 1;
    } else if (strncmp(p, "lm_head", 7) != 0) {
        if (snprintf(body, sizeof body, "model.%s", p) >= (int)sizeof body) return false;
        p = body;
    }
    const char *dot = strrchr(p, '.');
    for (size_t i = 0; dot && i < GGUF_N_NAMES; i++) {
        const gguf_name *g = &gguf_names[i];
        const size_t n = strlen(g->hf);
        if (g->only) continue; /* of architectures that are not written */
        if ((size_t)(dot - p) != n || strncmp(p, g->hf, n) != 0) continue;
        *which = g->heads;
        const int len = layer < 0 ? snprintf(out, 64, "%s%s", g->gguf, dot)
                                  : snprintf(out, 64, "blk.%ld.%s%s", layer, g->gguf, dot);
        return len < 64;
    }
    return false;
}

/* Heads within which the rows of tensor t are turned; 0: as they are. */
static int64_t heads_of(const conv *c, int which)
{
    const arch_config *a = src_config(c->src);
    return !c->arch->turned || !which ? 0 : which == 1 ? a->heads : a->kv_heads;
}

/* Buffers of older checkpoints, which say what the config does. */
static bool is_derived(const char *name)
{
    const char *end = strstr(name, ".rotary_emb.inv_freq");
    return end && strcmp(end, ".rotary_emb.inv_freq") == 0;
}

/* ---- the header ---- */
static void put_info(conv *c, const char *name, int n_dims, const int64_t *shape, size_t i)
{
    gguf_put_str(&c->head, name, strlen(name));
    gguf_put_le(&c->head, (uint64_t)n_dims, 4);
    for (int d = n_dims - 1; d >= 0; d--)
        gguf_put_le(&c->head, (uint64_t)shape[d], 8);
    c->info[i] = c->head.n;
    gguf_put_le(&c->head, 0, 4); /* type and offset, when they are known */
    gguf_put_le(&c->head, 0, 8);
}

static lq_status put_infos(conv *c, const float *freqs, lq_err *err)
{
    const int64_t pairs = src_config(c->src)->rope_dims / 2;
    size_t n = 0;
    if (freqs) put_info(c, "rope_freqs.weight", 1, &pairs, n++);
    for (int64_t i = 0; i < src_n_tensors(c->src); i++) {
        const src_tensor *t = src_tensor_at(c->src, i);
        char name[64];
        int which;
        if (is_derived(t->name)) continue;
        if (!t->plain || t->n_dims > 2 || !name_of(name, c, t->name, &which))
            return lq_fail(err, LQ_EUNSUPPORTED, "'%.100s' has no place in GGUF's %s", t->name,
                           c->arch->gguf);
        put_info(c, name, t->n_dims, t->shape, n++);
    }
    return LQ_OK;
}

static lq_status put_header(conv *c, const float *freqs, lq_err *err)
{
    gguf_pairs p = { .n = 0 };
    uint64_t n = (uint64_t)src_n_tensors(c->src) + (freqs != NULL);
    for (int64_t i = 0; i < src_n_tensors(c->src); i++)
        n -= is_derived(src_tensor_at(c->src, i)->name);
    c->info = calloc((size_t)n + 1, sizeof *c->info);
    lq_status s = c->info ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for the header");
    if (!s) s = gguf_put_config(&p, c->arch, src_config(c->src), err);
    if (!s) s = gguf_put_tokenizer(&p, c->src, c->r->note, sizeof c->r->note, err);
    gguf_pair_int(&p, "general.quantization_version", 2);
    gguf_pair_int(&p, "general.file_type", 0);
    js_puts(&c->head, "GGUF");
    gguf_put_le(&c->head, 3, 4);
    gguf_put_le(&c->head, n, 8);
    gguf_put_le(&c->head, p.n, 8);
    js_put(&c->head, p.b.data, p.b.n);
    c->file_type = c->head.n - 4;
    if (!s) s = put_infos(c, freqs, err);
    while (c->head.n % ALIGN && !c->head.failed)
        js_put(&c->head, "", 1);
    c->data = c->head.n;
    if (!s && (c->head.failed || p.b.failed))
        s = lq_fail(err, LQ_ENOMEM, "no memory for the header");
    if (!s) s = lq_out_write(c->out, c->head.data, c->head.n, err);
    free(p.b.data);
    return s;
}

/* ---- tensors ---- */
static lq_status put_data(conv *c, size_t i, ggml_type t, const void *data, size_t bytes,
                          int64_t elements, lq_err *err)
{
    const size_t off = lq_out_size(c->out) - c->data;
    for (int k = 0; k < 4; k++)
        c->head.data[c->info[i] + (size_t)k] = (char)((unsigned)t >> 8 * k & 0xff);
    for (int k = 0; k < 8; k++)
        c->head.data[c->info[i] + 4 + (size_t)k] = (char)(off >> 8 * k & 0xff);
    c->of_type[t] += elements;
    c->r->tensors++;
    lq_status s = lq_out_write(c->out, data, bytes, err);
    return s ? s : lq_out_pad(c->out, ALIGN, err);
}

/* Rows as floats of dtype d, each where it is stored. */
static lq_status put_floats(conv *c, size_t i, const qt_tensor *q, lq_dtype d, int64_t heads,
                            lq_err *err)
{
    const bool vector = q->N == 1;
    const size_t e = (size_t)lq_dtype_bits(d) / 8, row = (size_t)q->K * e;
    uint8_t *b = malloc((size_t)q->N * row);
    float *f = malloc(2 * (size_t)q->K * sizeof *f);
    lq_status s =
        b && f ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes", (size_t)q->N * row);
    for (int64_t n = 0; n < q->N && !s; n++) {
        float *back = f + q->K;
        uint8_t *to = b + (size_t)gguf_stored_row(n, q->N, vector ? 0 : heads) * row;
        qt_dequant(f, q, n, n + 1);
        for (int64_t k = 0; vector && heads && k < q->K; k++)
            back[gguf_stored_row(k, q->K, heads)] = f[k];
        if (vector && heads) memcpy(f, back, row / e * sizeof *f);
        lq_from_f32(to, f, d, (size_t)q->K);
        lq_to_f32(back, to, d, (size_t)q->K);
        if (memcmp(f, back, (size_t)q->K * sizeof *f) != 0) c->r->bit_exact = false;
    }
    const ggml_type t = d == LQ_F32 ? GGML_F32 : d == LQ_F16 ? GGML_F16 : GGML_BF16;
    if (!s) s = put_data(c, i, t, b, (size_t)q->N * row, q->N * q->K, err);
    free(b);
    free(f);
    return s;
}

/* In the first type that holds every block; LQ_EUNSUPPORTED: none does. */
static lq_status put_blocks(conv *c, size_t i, const qt_tensor *q, int64_t heads, lq_err *err)
{
    ggml_type t;
    char text[40];
    for (size_t k = 0; gguf_type_for(&t, q, k); k++) {
        const size_t row = gguf_row_bytes(t, q->K);
        uint8_t *b = calloc((size_t)q->N, row);
        if (!b) return lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes", (size_t)q->N * row);
        int64_t n = 0;
        while (n < q->N &&
               gguf_pack_row(b + (size_t)gguf_stored_row(n, q->N, heads) * row, q, n, t))
            n++;
        const lq_status s =
            n < q->N ? LQ_OK : put_data(c, i, t, b, (size_t)q->N * row, q->N * q->K, err);
        free(b);
        if (n == q->N) return s;
    }
    qt_scheme_text(text, &q->scheme);
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "%s has no type of blocks in GGUF that holds its values (--allow-requantize "
                   "rounds them to Q8_0)",
                   text);
}

/* To Q8_0, or floats where rows are no whole number of blocks. */
static lq_status put_anew(conv *c, size_t i, const qt_tensor *q, int64_t heads, lq_arena *a,
                          lq_err *err)
{
    const qt_scheme s = {
        .kind = QT_UINT, .bits = 8, .zbits = 8, .group = 32, .scale_dtype = LQ_F16
    };
    qt_tensor anew;
    c->r->requantized++;
    if (q->K % s.group) return put_floats(c, i, q, LQ_F16, heads, err);
    lq_status st = conv_requantize(&anew, q, &s, c->pool, a, err);
    return st ? st : put_blocks(c, i, &anew, heads, err);
}

static lq_status put(conv *c, const src_tensor *t, size_t i, lq_err *err)
{
    char name[64];
    int which = 0;
    lq_arena a = { 0 };
    qt_tensor q;
    lq_status s = conv_load(&q, c->src, t, &a, err);
    name_of(name, c, t->name, &which);
    const int64_t heads = heads_of(c, which);
    if (!s && q.scheme.kind == QT_DENSE) {
        const lq_dtype d = t->n_dims == 1     ? LQ_F32
                           : c->o->keep_dtype ? q.scheme.dtype
                                              : c->o->dtype;
        s = put_floats(c, i, &q, d, heads, err);
    } else if (!s) {
        s = layout_no_act(&q.scheme, "gguf", err);
        if (!s) s = put_blocks(c, i, &q, heads, err);
        if (s == LQ_EUNSUPPORTED && c->o->requantize) s = put_anew(c, i, &q, heads, &a, err);
    }
    conv_unload(c->src, t, &a);
    return s ? lq_wrap(err, s, "%s", t->name) : LQ_OK;
}

/* general.file_type: what most weights are. */
static void set_file_type(conv *c)
{
    static const struct {
        ggml_type type;
        int number;
    } t[] = { { GGML_F32, 0 },   { GGML_F16, 1 },   { GGML_Q4_0, 2 },  { GGML_Q4_1, 3 },
              { GGML_Q8_0, 7 },  { GGML_Q5_0, 8 },  { GGML_Q5_1, 9 },  { GGML_Q2_K, 10 },
              { GGML_Q3_K, 12 }, { GGML_Q4_K, 15 }, { GGML_Q5_K, 17 }, { GGML_Q6_K, 18 },
              { GGML_BF16, 32 } };
    int64_t most = -1;
    for (size_t i = 0; i < LQ_COUNT(t); i++)
        if (c->of_type[t[i].type] > most) {
            most = c->of_type[t[i].type];
            c->head.data[c->file_type] = (char)t[i].number;
        }
}

static lq_status put_all(conv *c, lq_err *err)
{
    lq_arena a = { 0 };
    float *freqs;
    size_t n = 0;
    lq_status s = gguf_rope_factors(&freqs, src_config(c->src), &a, err);
    if (!s) s = put_header(c, freqs, err);
    if (!s && freqs) {
        const int64_t pairs = src_config(c->src)->rope_dims / 2;
        s = put_data(c, n++, GGML_F32, freqs, (size_t)pairs * 4, 0, err);
    }
    for (int64_t i = 0; i < src_n_tensors(c->src) && !s; i++) {
        const src_tensor *t = src_tensor_at(c->src, i);
        lq_report(c->job, "writing", (double)i, (double)src_n_tensors(c->src));
        if (is_derived(t->name)) continue;
        s = lq_stopped(c->job) ? lq_fail(err, LQ_EINTR, "interrupted") : put(c, t, n++, err);
    }
    if (!s) {
        set_file_type(c);
        s = lq_out_pwrite(c->out, c->head.data, c->head.n, 0, err);
    }
    lq_arena_free(&a);
    return s;
}

lq_status conv_to_gguf(conv_report *r, const src_source *src, const char *path,
                       const conv_gguf_opts *o, pool *p, const lq_job *job, lq_err *err)
{
    memset(r, 0, sizeof *r);
    r->bit_exact = true;
    conv c = { .src = src, .o = o, .job = job, .pool = p, .r = r };
    lq_status s = gguf_arch_of(&c.arch, src_config(src), err);
    if (s) return s;
    s = lq_out_open(&c.out, path, err);
    if (!s) s = put_all(&c, err);
    if (!s) r->bytes = lq_out_size(c.out);
    if (s)
        lq_out_abort(c.out);
    else
        s = lq_out_commit(c.out, err);
    r->bit_exact = r->bit_exact && !r->requantized;
    free(c.info);
    free(c.head.data);
    return s;
}
