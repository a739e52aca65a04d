/* convert/to_gguf.c - any source as one GGUF file (formats/gguf/gguf.h has the picture).
 *
 * A weight keeps its codes in the blocks of the type that stands for the same values
 * (formats/gguf/gguf_blocks.h). Which one, the weight's numbers decide, so types and offsets are written
 * into the header when the tensor is. Vectors are f32, as llama.cpp wants them. */
#include "base/out_file.h"
#include "convert/gguf_meta.h"
#include "convert/layouts/layout.h"
#include "convert/load.h"
#include "convert/parts.h"
#include "convert/report.h"
#include "convert/requant.h"
#include "formats/gguf/gguf_blocks.h"
#include "formats/gguf/gguf_config.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { ALIGN = 32, PIECE = 1 << 20, ROWS = 16 };

/* A tensor of the file: one of the source or a half of one, or as many as a layer has experts. */
typedef struct {
    char name[64];
    arch_slot slot;
    const src_tensor *t;       /* of the first expert */
    const arch_config *config; /* of the model, or of its MTP head */
    bool stacked, turned;      /* t has all experts; its floats are [inputs, outputs] */
    gguf_order order;
    bool second; /* half of t's rows (GGUF_GATE_UP) */
    int n_dims;
    int64_t shape[3], experts; /* 1 where it has none */
    size_t info;               /* where its type and offset stand in the header */
    ggml_type type;            /* when it is written */
    bool scale;                /* of the tensor before it, of NVFP4 */
} entry;

typedef struct {
    const src_source *src;
    const arch_config *config;
    arch_config mtp; /* of what guesses further tokens, where the file has it */
    bool has_mtp;
    src_tensor dense[2];  /* of sentence-transformers' modules */
    src_tensor positions; /* R_POS_EMBED without the rows before the first position */
    const conv_gguf_opts *o;
    const gguf_arch *arch;
    const lq_job *job;
    pool *pool;
    conv_report *r;
    lq_out *out;
    lq_buf head; /* everything before the data */
    entry *e;
    size_t n;
    size_t file_type, data; /* where general.file_type stands; where the data begin */
    gguf_history history;
    conv_parts *parts; /* what shares have made, or NULL */
    size_t first; /* entry that they begin with: those before it are no tensors of the source */
    int64_t of_type[64]; /* elements of each type */
    int64_t left_out;    /* tensors beside the language model */
    int64_t further;     /* those of heads for further tokens */
} conv;

/* ---- which tensors ---- */
/* Buffers of older checkpoints, which say what the config does. */
static bool is_derived(const char *name)
{
    static const char *const endings[] = { ".rotary_emb.inv_freq", "embeddings.position_ids",
                                           ".ple_embedding.layer_multipliers",
                                           ".ple_embedding.ngram_heads_vocab_sizes",
                                           ".ple_embedding.ngram_heads_offsets" };
    const size_t n = strlen(name);
    for (size_t i = 0; i < LQ_COUNT(endings); i++) {
        const size_t k = strlen(endings[i]);
        if (n >= k && strcmp(name + n - k, endings[i]) == 0) return true;
    }
    return false;
}

/* Is this the text of a model that has other parts? Of a .llmq the names of its tensors tell. */
static bool has_parts(const arch_config *c)
{
    static const char *const bodies[] = { "language_model.", "text_model.", "thinker." };
    bool any = c->wrapper != NULL;
    for (size_t i = 0; i < LQ_COUNT(bodies); i++)
        any = any || strstr(c->prefix, bodies[i]);
    return any;
}

/* Is it of what sees images? llama.cpp has that in a file of its own. Of an encoder: is it of what guesses masked
 * words, or pools for that? */
static bool is_beside(const arch_config *c, const char *name)
{
    arch_slot slot;
    if (c->row->w.both_ways && c->head == HEAD_NONE) return !arch_slot_of(c, name, &slot);
    return has_parts(c) && strncmp(name, c->prefix, strlen(c->prefix)) != 0 &&
           !arch_slot_of(c, name, &slot);
}

/* Is it of a head that guesses further tokens? What goes along of it is listed apart. */
static bool is_further(const arch_config *c, const char *name)
{
    static const char layers[] = "layers.";
    const size_t n = strlen(c->prefix);
    const char *body = strncmp(name, c->prefix, n) == 0 ? name + n : name;
    if (strncmp(name, "mtp.", 4) == 0 || strncmp(body, "mtp.", 4) == 0) return true;
    if (body == name && n) return false;
    return strncmp(body, layers, sizeof layers - 1) == 0 &&
           strtoll(body + sizeof layers - 1, NULL, 10) >= c->layers;
}

static lq_status no_place(const conv *c, const src_tensor *t, lq_err *err)
{
    return lq_fail(err, LQ_EUNSUPPORTED, "'%.100s' has no place in GGUF's %s", t->name,
                   c->arch->gguf);
}

/* Of attn_k_b, whose heads' rows and columns change places. */
static bool is_keys(const entry *e) { return e->order.kind == GGUF_KEY_VALUE && !e->second; }

/* Shapes of matrices [experts, outputs, inputs] and of vectors [experts, n], experts where it has them. */
static void to_gguf_shape(entry *e, const gguf_name *g, const arch_config *c)
{
    const src_tensor *t = e->t;
    memcpy(e->shape, t->shape, 3 * sizeof *e->shape);
    const int dims = gguf_vector_dims(e->shape, c, &e->slot);
    if (dims) {
        e->n_dims = dims;
        return;
    }
    if (e->order.kind == GGUF_KEY_VALUE) {
        e->n_dims = 3;
        e->shape[0] = c->heads;
        e->shape[1] = e->second ? c->v_dim : c->kv_lora;
        e->shape[2] = e->second ? c->kv_lora : c->nope_dims;
        return;
    }
    if (g->stacked && !e->stacked) {
        e->shape[0] = arch_n_tensors(c, e->slot.role);
        memcpy(e->shape + 1, t->shape, 2 * sizeof *e->shape);
        e->n_dims++;
    }
    if (e->n_dims == 3 || e->stacked) e->experts = e->shape[0];
    int64_t *last = e->shape + e->n_dims - 1;
    if (e->turned) {
        const int64_t in = last[-1];
        last[-1] = last[0];
        last[0] = in;
    }
    if (e->order.kind == GGUF_GATE_UP) last[e->slot.bias ? 0 : -1] /= 2;
    if (e->order.kind == GGUF_ROWS) last[-1] = e->second ? last[-1] - e->order.ffn : e->order.ffn;
    if (g->once) { /* all parts of a table, one after the other */
        e->shape[0] = c->ngram_rows;
        e->experts = arch_n_tensors(c, e->slot.role);
    }
    if (e->slot.role == R_PLE_EMBED) e->shape[0] = c->vocab; /* llama.cpp has a row for each word */
}

/* t of this slot of the model, or of its head. */
static lq_status add_slot(conv *c, const arch_config *config, const src_tensor *t, arch_slot slot,
                          lq_err *err)
{
    const gguf_name *g[2];
    const int flags = arch_name_of(config, slot.role)->flags;
    if (t->n_dims > 3 && !(flags & NAME_4D)) return no_place(c, t, err);
    const bool dense = t->t.scheme.kind == QT_DENSE;
    const int parts = gguf_names_of(g, c->arch, config, slot.role);
    const bool stacked = flags & NAME_STACKED, taps = flags & NAME_TAPS;
    const bool whole = parts && gguf_name_is_whole(g[0]); /* has no place for a bias */
    if (!parts || (t->n_dims == 3 && !stacked && !taps) || (slot.bias && whole) ||
        (g[0]->join == JOIN_NONE && !g[0]->once && g[0]->stacked != (stacked || slot.expert >= 0)))
        return no_place(c, t, err);
    if (slot.expert > 0) return LQ_OK; /* comes with the first */
    for (int i = 0; i < parts; i++) {
        entry *e = &c->e[c->n++];
        *e = (entry){ .slot = slot, .t = t, .n_dims = t->n_dims, .experts = 1, .stacked = stacked };
        e->config = config;
        e->turned = flags & NAME_TRANSPOSED && dense && !slot.bias;
        e->order = gguf_order_of(c->arch, config, &slot);
        if (parts == 2 && slot.role == R_KV_B)
            e->order = (gguf_order){ .kind = GGUF_KEY_VALUE, .c = config };
        e->second = i == 1;
        to_gguf_shape(e, g[i], config);
        gguf_tensor_name(e->name, g[i], &slot);
    }
    ggml_type type;
    if (c->o->keep_dtype && gguf_type_for(&type, &t->t, 0) && type == GGML_NVFP4) {
        entry *e = &c->e[c->n++];
        *e = e[-1];
        e->scale = true;
        e->n_dims = 1;
        e->shape[0] = e->experts;
        memcpy(strrchr(e->name, '.'), ".scale", sizeof ".scale");
    }
    return LQ_OK;
}

/* RoBERTa's table of positions begins with rows that no position has, which llama.cpp's lacks. */
static lq_status skip_rows(conv *c, const src_tensor **t, lq_err *err)
{
    const int64_t skip = c->config->pos_offset;
    src_tensor *out = &c->positions;
    if (!skip || !c->config->w.both_ways) return LQ_OK;
    *out = **t;
    if (out->t.scheme.kind != QT_DENSE || out->t.layout != QT_PORTABLE || out->n_dims != 2)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "'%s': expected floats, found a quantized table of positions", out->name);
    const size_t bytes = (size_t)(skip * out->t.K) * lq_dtype_bytes(out->t.scheme.dtype);
    out->shape[0] -= skip;
    out->t.N -= skip;
    const qt_span all = out->t.plane[QT_CODES];
    out->t.plane[QT_CODES] = (qt_span){ (const uint8_t *)all.data + bytes, all.bytes - bytes };
    *t = out;
    return LQ_OK;
}

/* Whole numbers (NAME_IDS)? */
static bool has_ids(const arch_config *c, const arch_slot *slot)
{
    const arch_name *name = arch_name_of(c, slot->role);
    return name && name->flags & NAME_IDS;
}

static lq_status to_gguf_add_entry(conv *c, const src_tensor *t, lq_err *err)
{
    arch_slot slot;
    if (is_derived(t->name)) return LQ_OK;
    if (is_further(c->config, t->name)) return c->further++, LQ_OK;
    if (is_beside(c->config, t->name)) return c->left_out++, LQ_OK;
    if (!arch_slot_of(c->config, t->name, &slot)) return no_place(c, t, err);
    if (!t->plain && !has_ids(c->config, &slot)) return no_place(c, t, err);
    if (gguf_list_of(slot.role)) return LQ_OK; /* among the model's numbers */
    lq_status s = slot.role == R_POS_EMBED ? skip_rows(c, &t, err) : LQ_OK;
    return s ? s : add_slot(c, c->config, t, slot, err);
}

/* The head's tensors of a role, which are no longer left out. */
static lq_status add_head_role(conv *c, arch_role r, bool bias, lq_err *err)
{
    const bool layer = arch_role_per_layer(r);
    const int64_t n = arch_n_tensors(&c->mtp, r);
    const arch_slot slot = { r, c->config->layers, n > 1 ? 0 : -1, bias };
    char name[256];
    if (!arch_has(&c->mtp, r, layer ? 0 : -1) ||
        !arch_tensor_name(&c->mtp, r, 0, 0, bias, name, sizeof name))
        return LQ_OK;
    const src_tensor *t = src_find(c->src, name);
    if (!t) return LQ_OK; /* optional, or a bias that it has not */
    c->further -= n;
    return t->plain ? add_slot(c, &c->mtp, t, slot, err) : no_place(c, t, err);
}

static lq_status list_head(conv *c, lq_err *err)
{
    lq_status s =
        gguf_has_head(c->src, c->arch) ? arch_config_mtp(&c->mtp, c->config, err) : LQ_ENOENT;
    c->has_mtp = !s;
    for (int r = 0; r < ARCH_N_ROLES && !s; r++)
        for (int bias = 0; bias < 2 && !s; bias++)
            s = add_head_role(c, (arch_role)r, bias, err);
    return s == LQ_ENOENT ? LQ_OK : s;
}

static void list_dense(conv *c)
{
    const int n = gguf_dense(c->dense, c->src, c->arch);
    for (int i = 0; i < n; i++) {
        entry *e = &c->e[c->n++];
        *e = (entry){ .t = &c->dense[i], .config = c->config, .n_dims = 2, .experts = 1 };
        e->slot = (arch_slot){ R_PROJ_OUT, -1, -1, false }; /* a matrix after the last layer */
        memcpy(e->shape, c->dense[i].shape, 2 * sizeof *e->shape);
        snprintf(e->name, sizeof e->name, "dense_%d.weight", i + 2);
    }
}

static lq_status list_tensors(conv *c, lq_err *err)
{
    const arch_config *a = c->config;
    const int64_t pairs = gguf_rope_pairs(a), n = src_n_tensors(c->src);
    const arch_rope_kind kind = a->rope[ROPE_MAIN].kind;
    const int64_t factors = c->arch->q_factor ? 2 * a->layers : 0;
    c->e = calloc(2 * (size_t)n + 2 + (size_t)factors + LQ_COUNT(c->dense), sizeof *c->e);
    if (!c->e) return lq_fail(err, LQ_ENOMEM, "no memory for the header");
    const entry vector = { .n_dims = 1, .shape = { pairs }, .experts = 1 };
    for (int i = 0; i < gguf_rope_lists(kind); i++) {
        c->e[c->n] = vector;
        snprintf(c->e[c->n++].name, sizeof vector.name, "%s", gguf_rope_name(kind, i));
    }
    for (int64_t i = 0; i < factors; i++) {
        c->e[c->n] = (entry){ .n_dims = 1, .shape = { a->head_dim }, .experts = 1 };
        gguf_q_factor(c->e[c->n++].name, a, i);
    }
    lq_status s = LQ_OK;
    for (int64_t i = 0; i < n && !s; i++)
        s = to_gguf_add_entry(c, src_tensor_at(c->src, i), err);
    if (!s) s = list_head(c, err);
    if (!s) list_dense(c);
    c->r->weights = n - c->left_out - c->further;
    if (c->further)
        conv_note(c->r, "%lld tensors of a head that guesses further tokens (MTP) are left out",
                  (long long)c->further);
    if (c->arch->compress && !gguf_runs_compressed(c->config))
        conv_note(c->r, "llama.cpp runs 4 streams, and compression by 4 and 128: not this file");
    if (c->arch->ngrams && !gguf_runs_ngrams(c->config))
        conv_note(c->r, "llama.cpp runs heads of as many values as keys, and n-grams of as many "
                        "numbers as the residual: not this file");
    if (c->config->row->w.both_ways && c->config->types > 1 && c->config->head == HEAD_LABELS)
        conv_note(c->r, "llama.cpp gives both texts of a pair the first one's type: its scores "
                        "are others than the model's");
    if (c->left_out && c->config->row->w.both_ways)
        conv_note(c->r, "%lld tensors of heads that vectors do not need are left out",
                  (long long)c->left_out);
    else if (c->left_out)
        conv_note(c->r,
                  "%lld tensors beside the language model are left out: llama.cpp takes them in a "
                  "file of their own (mmproj)",
                  (long long)c->left_out);
    return s;
}

/* Expert e of an entry. */
static lq_status expert_of(const src_tensor **t, const conv *c, const entry *x, int64_t e,
                           lq_err *err)
{
    char name[256];
    *t = x->t;
    if (e == 0 || x->stacked) return LQ_OK;
    *t =
        arch_tensor_name(x->config, x->slot.role, x->slot.layer, e, x->slot.bias, name, sizeof name)
            ? src_find(c->src, name)
            : NULL;
    const bool part = x->slot.role == R_NGRAM_TABLE; /* of as many rows as it has */
    if (*t && (*t)->plain && (*t)->n_dims == 2 && (part || (*t)->shape[0] == x->t->shape[0]) &&
        (*t)->shape[1] == x->t->shape[1])
        return LQ_OK;
    return lq_fail(err, LQ_ESHAPE, "%s: expected a matrix like the other experts'", name);
}

/* ---- the header ---- */
static void put_info(conv *c, entry *e)
{
    gguf_put_str(&c->head, e->name, strlen(e->name));
    gguf_put_le(&c->head, (uint64_t)e->n_dims, 4);
    for (int d = e->n_dims - 1; d >= 0; d--)
        gguf_put_le(&c->head, (uint64_t)e->shape[d], 8);
    e->info = c->head.n;
    gguf_put_le(&c->head, 0, 4); /* type and offset, when they are known */
    gguf_put_le(&c->head, 0, 8);
}

/* ---- where it came from ---- */
static lq_status put_history(conv *c, gguf_pairs *p, lq_err *err)
{
    return gguf_put_history(&c->history, p, c->src, c->o->requantize || !c->o->keep_dtype, err);
}

/* All weights are written. */
static lq_status end_history(conv *c, lq_err *err)
{
    gguf_tensor *t = calloc(c->n + 1, sizeof *t);
    if (!t) return lq_fail(err, LQ_ENOMEM, "no memory for the history");
    for (size_t i = 0; i < c->n; i++) {
        t[i] = (gguf_tensor){ .name = c->e[i].name, .type = c->e[i].type };
        t[i].n_dims = c->e[i].n_dims;
        memcpy(t[i].shape, c->e[i].shape, sizeof c->e[i].shape);
    }
    const lq_status s = gguf_end_history(&c->history, c->head.p, t, c->n, c->src, c->r, err);
    free(t);
    return s;
}

static lq_status put_header(conv *c, gguf_pairs *p, lq_err *err)
{
    lq_status s = list_tensors(c, err);
    if (!s) s = gguf_put_tokenizer(p, c->src, c->r, err);
    if (!s) s = gguf_put_about(p, c->src, c->r, err);
    if (!s) gguf_put_modules(p, c->arch, c->src, c->r);
    if (!s && !c->o->share.n) s = put_history(c, p, err); /* a share writes no header */
    if (s) return s;
    gguf_pair_int(p, "general.quantization_version", 2);
    gguf_pair_int(p, "general.file_type", 0);
    lq_buf_puts(&c->head, "GGUF");
    gguf_put_le(&c->head, 3, 4);
    gguf_put_le(&c->head, c->n, 8);
    gguf_put_le(&c->head, p->n, 8);
    lq_buf_add(&c->head, p->b.p, p->b.n);
    c->file_type = c->head.n - 4;
    const size_t before = c->head.n - p->b.n;
    c->history.at += before;
    for (size_t i = 0; i < c->n; i++)
        put_info(c, &c->e[i]);
    while (c->head.n % ALIGN && !c->head.oom)
        lq_buf_add(&c->head, "", 1);
    c->data = c->head.n;
    return c->head.oom || p->b.oom ? lq_fail(err, LQ_ENOMEM, "no memory for the header") : LQ_OK;
}

/* ---- tensors ---- */
static int64_t elements_of(const entry *e)
{
    int64_t n = 1;
    for (int d = 0; d < e->n_dims; d++)
        n *= e->shape[d];
    return n;
}

/* From here on e's data are written, in type t. */
static void to_gguf_begin(conv *c, const entry *e, ggml_type t)
{
    c->e[e - c->e].type = t;
    const size_t off = lq_out_size(c->out) - c->data;
    for (int k = 0; k < 4; k++)
        c->head.p[e->info + (size_t)k] = (char)((unsigned)t >> 8 * k & 0xff);
    for (int k = 0; k < 8; k++)
        c->head.p[e->info + 4 + (size_t)k] = (char)(off >> 8 * k & 0xff);
}

/* ... and are all there. */
static lq_status end(conv *c, const entry *e, ggml_type t, lq_err *err)
{
    c->of_type[t] += elements_of(e);
    c->r->tensors++;
    return lq_out_pad(c->out, ALIGN, err);
}

static ggml_type type_of(lq_dtype d)
{
    return d == LQ_F32 ? GGML_F32 : d == LQ_F16 ? GGML_F16 : GGML_BF16;
}

/* Rows as they are; the pages of what was read go again. */
static lq_status put_stored(conv *c, const qt_tensor *q, lq_err *err)
{
    const qt_span all = q->plane[QT_CODES];
    const uint8_t *from = all.data;
    lq_status s = LQ_OK;
    for (size_t at = 0; at < all.bytes && !s; at += PIECE) {
        const size_t n = all.bytes - at < PIECE ? all.bytes - at : PIECE;
        s = lq_out_write(c->out, from + at, n, err);
        src_drop(c->src, (qt_span){ from + at, n });
    }
    return s;
}

/* Rows of the file that q, one expert's, gives: all, gate's or up's, or those of values. */
static int64_t rows_of(const entry *e, int64_t n)
{
    if (e->order.kind == GGUF_KEY_VALUE) return e->shape[0] * e->shape[1];
    if (e->order.kind == GGUF_ROWS) return e->shape[0];
    return e->order.kind == GGUF_GATE_UP ? n / 2 : n;
}

/* Inputs of the file's rows. */
static int64_t inputs_of(const entry *e) { return e->shape[e->n_dims - 1]; }

/* Row m of them as f32 [q->K]; of a vector its elements in the file's order. */
static void row_floats(float *y, const entry *e, const qt_tensor *q, int64_t m, float *scratch)
{
    if (q->N > 1) {
        const int64_t n = gguf_own_row(&e->order, m, rows_of(e, q->N), e->second);
        qt_dequant(y, q, n, n + 1);
        return;
    }
    const int64_t K = rows_of(e, q->K);
    qt_dequant(scratch, q, 0, 1);
    for (int64_t k = 0; k < K; k++)
        y[k] = scratch[gguf_own_row(&e->order, k, K, e->second)];
}

/* Floats of dtype d in the file's order, with what GGUF adds to each. */
static lq_status put_floats(conv *c, const entry *e, const qt_tensor *q, lq_dtype d, lq_err *err)
{
    const float offset = arch_slot_offset(e->config, &e->slot);
    const int decay = gguf_decay(e->config, &e->slot);
    if (q->scheme.kind == QT_DENSE && q->scheme.dtype == d && !(offset > 0) && !decay &&
        e->order.kind == GGUF_AS_STORED)
        return put_stored(c, q, err);
    const int64_t N = q->N > 1 ? rows_of(e, q->N) : 1, K = q->N > 1 ? q->K : rows_of(e, q->K);
    const size_t row = (size_t)K * lq_dtype_bytes(d);
    uint8_t *b = malloc((size_t)N * row);
    float *f = malloc(2 * (size_t)q->K * sizeof *f);
    lq_status s =
        b && f ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes", (size_t)N * row);
    for (int64_t m = 0; m < N && !s; m++) {
        float *back = f + q->K;
        uint8_t *to = b + (size_t)m * row;
        row_floats(f, e, q, m, back);
        for (int64_t k = 0; offset > 0 && k < K; k++) {
            const float sum = f[k] + offset;
            if (memcmp(&f[k], &(float){ sum - offset }, sizeof *f) != 0) c->r->bit_exact = false;
            f[k] = sum;
        }
        for (int64_t k = 0; decay && k < K; k++)
            f[k] = (float)decay * expf(f[k]);
        if (decay) c->r->bit_exact = false;
        lq_from_f32(to, f, d, (size_t)K);
        lq_to_f32(back, to, d, (size_t)K);
        if (memcmp(f, back, (size_t)K * sizeof *f) != 0) c->r->bit_exact = false;
    }
    if (!s) s = lq_out_write(c->out, b, (size_t)N * row, err);
    free(b);
    free(f);
    return s;
}

/* Blocks of type t, where *held tells that they hold q's values. write false: only to see. */
typedef struct {
    const entry *e;
    const qt_tensor *q;
    uint8_t *blocks;
    ggml_type type;
    int64_t rows;
    atomic_bool lost; /* a value has no place */
} packing;

static void pack_rows(void *ctx, int64_t item, int thread)
{
    packing *p = ctx;
    const qt_tensor *q = p->q;
    const size_t row = gguf_row_bytes(p->type, q->K);
    (void)thread;
    for (int64_t m = item * ROWS; m < p->rows && m < (item + 1) * ROWS; m++) {
        if (atomic_load_explicit(&p->lost, memory_order_relaxed)) return;
        const int64_t n = gguf_own_row(&p->e->order, m, p->rows, p->e->second);
        if (!gguf_pack_row(p->blocks + (size_t)m * row, q, n, p->type))
            atomic_store_explicit(&p->lost, true, memory_order_relaxed);
    }
}

static lq_status put_blocks(conv *c, const entry *e, const qt_tensor *q, ggml_type t, bool write,
                            bool *held, lq_err *err)
{
    const int64_t N = rows_of(e, q->N);
    const size_t row = gguf_row_bytes(t, q->K);
    uint8_t *b = calloc((size_t)N, row);
    if (!b) return lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes", (size_t)N * row);
    packing p = { .e = e, .q = q, .blocks = b, .type = t, .rows = N };
    pool_run(c->pool, lq_ceil_div(N, ROWS), pack_rows, &p);
    *held = !p.lost;
    const lq_status s = *held && write ? lq_out_write(c->out, b, (size_t)N * row, err) : LQ_OK;
    free(b);
    return s;
}

/* Rows that the file has and the model has not: zeros, whatever the type. */
static lq_status put_missing(conv *c, const entry *e, ggml_type t, lq_err *err)
{
    static const uint8_t zeros[4096] = { 0 };
    const int64_t rows = e->slot.role == R_PLE_EMBED ? e->shape[0] - e->t->shape[0] : 0;
    size_t left = rows > 0 ? (size_t)rows * gguf_row_bytes(t, e->shape[1]) : 0;
    lq_status s = LQ_OK;
    while (left && !s) {
        const size_t n = left < sizeof zeros ? left : sizeof zeros;
        s = lq_out_write(c->out, zeros, n, err);
        left -= n;
    }
    return s;
}

/* Of all experts, or of the one weight: with each loaded in turn. */
typedef struct {
    conv *c;
    const entry *e;
    enum { SEE, WRITE, ANEW, FLOATS, SCALES } what;
    ggml_type type;
    lq_dtype dtype;
    bool held; /* SEE: so far */
} pass;

static const qt_scheme q8_0 = {
    .kind = QT_UINT, .bits = 8, .zbits = 8, .group = 32, .scale_dtype = LQ_F16
};

/* One tensor of the file has one type of blocks. */
static lq_status same_scheme(const qt_tensor *q, const qt_tensor *first, lq_err *err)
{
    char a[40], b[40];
    qt_scheme_text(a, &q->scheme);
    qt_scheme_text(b, &first->scheme);
    if (strcmp(a, b) == 0) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "expected all of its parts as the first, %s, found %s", b,
                   a);
}

static lq_status one(pass *p, const qt_tensor *q, lq_arena *a, lq_err *err)
{
    conv *c = p->c;
    qt_tensor anew;
    bool held = true;
    lq_status s = LQ_OK;
    if (p->what == FLOATS) return put_floats(c, p->e, q, p->dtype, err);
    if (p->what == ANEW) {
        s = conv_requantize(&anew, q, &q8_0, c->pool, a, err);
        return s ? s : put_blocks(c, p->e, &anew, GGML_Q8_0, true, &held, err);
    }
    if (p->what == SCALES) { /* of a weight that became another type: 1 */
        float f = 1;
        if (p->e[-1].type == GGML_NVFP4) memcpy(&f, q->plane[QT_SCALES2].data, 4);
        return lq_out_write(c->out, &f, sizeof f, err);
    }
    s = same_scheme(q, &p->e->t->t, err);
    if (!s) s = put_blocks(c, p->e, q, p->type, p->what == WRITE, &held, err);
    p->held = p->held && held;
    return s;
}

/* The keys of attn_kv_b, [heads (nope + v), kv_lora]: of each head [kv_lora, nope], floats. */
static lq_status turn_keys(qt_tensor *q, const entry *e, const qt_tensor *t, lq_arena *a,
                           lq_err *err)
{
    const arch_config *c = e->config;
    const int64_t K = t->K, nope = c->nope_dims, of_head = nope + c->v_dim;
    const size_t bytes = (size_t)(c->heads * nope * K) * sizeof(float);
    float *out = lq_push(a, bytes), *row = lq_push(a, (size_t)K * sizeof *row);
    if (!out || !row) return lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes", bytes);
    for (int64_t n = 0; n < c->heads * nope; n++) {
        const int64_t from = n / nope * of_head + n % nope;
        qt_dequant(row, t, from, from + 1);
        for (int64_t k = 0; k < K; k++)
            out[(n / nope * K + k) * nope + n % nope] = row[k];
    }
    *q = (qt_tensor){ .scheme = { .kind = QT_DENSE, .dtype = LQ_F32 }, .N = c->heads * K };
    q->K = nope;
    q->plane[QT_CODES] = (qt_span){ out, bytes };
    return LQ_OK;
}

/* Expert i of a tensor that has all of them, or a matrix whose floats are [inputs, outputs]. */
static lq_status slice(qt_tensor *q, const pass *p, int64_t i, const qt_tensor *t, lq_arena *a,
                       lq_err *err)
{
    *q = *t;
    if (is_keys(p->e)) return turn_keys(q, p->e, t, a, err);
    if (p->e->slot.bias) return !p->e->stacked || qt_rows(q, t, i, i + 1) ? LQ_OK : LQ_EFORMAT;
    return p->e->stacked || p->e->turned ? src_slice(q, p->e->config, p->e->slot.role, i, t, a, err)
                                         : LQ_OK;
}

static lq_status each(pass *p, lq_err *err)
{
    conv *c = p->c;
    lq_status s = LQ_OK;
    if (p->what != SEE) to_gguf_begin(c, p->e, p->type);
    for (int64_t i = 0; i < p->e->experts && !s && p->held; i++) {
        const src_tensor *t;
        lq_arena a = { 0 };
        qt_tensor all, q;
        s = expert_of(&t, c, p->e, i, err);
        if (s) break;
        s = conv_load(&all, c->src, t, c->pool, &a, err);
        if (!s) s = slice(&q, p, i, &all, &a, err);
        if (!s) s = one(p, &q, &a, err);
        conv_unload(c->src, t, &a);
    }
    if (s || p->what == SEE || !p->held) return s;
    s = put_missing(c, p->e, p->type, err);
    return s ? s : end(c, p->e, p->type, err);
}

static lq_status no_codes_of_keys(lq_err *err)
{
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "attn_k_b has the inputs of keys where these codes have their outputs");
}

/* In the first type of blocks that holds every value of every expert; LQ_EUNSUPPORTED: none. A
 * single weight is written as soon as it is packed; experts, which share a type, are looked at
 * first. */
static lq_status put_exact(pass *p, const qt_tensor *q, lq_err *err)
{
    char text[40];
    lq_status s = LQ_OK;
    for (size_t k = 0; gguf_type_for(&p->type, q, k) && !s; k++) {
        p->held = true;
        p->what = SEE;
        if (p->e->experts > 1) s = each(p, err);
        p->what = WRITE;
        if (!s && p->held) s = each(p, err);
        if (!s && p->held) return LQ_OK;
    }
    qt_scheme_text(text, &q->scheme);
    return s ? s
             : lq_fail(err, LQ_EUNSUPPORTED,
                       "%s has no type of blocks in GGUF that holds its values", text);
}

/* To Q8_0, or floats where rows are no whole number of blocks. */
static lq_status put_anew(pass *p, lq_err *err)
{
    p->c->r->requantized += p->e->experts;
    p->held = true;
    p->what = inputs_of(p->e) % q8_0.group ? FLOATS : ANEW;
    if (p->what == FLOATS) p->c->r->floats += p->e->experts;
    p->dtype = LQ_F16;
    p->type = p->what == ANEW ? GGML_Q8_0 : GGML_F16;
    return each(p, err);
}

/* The same without --allow-requantize: whatever a weight's scheme, put_anew holds its values. */
static lq_status say_way_out(lq_status s, const entry *e, lq_err *err)
{
    return lq_append(err, s, " (--allow-requantize rounds it to %s)",
                     inputs_of(e) % q8_0.group ? "F16" : "Q8_0");
}

/* Vectors and routers are f32, as llama.cpp wants them, and a text's parts, of which it adds the first as a vector. */
static lq_dtype float_type(const conv *c, const entry *e, const qt_tensor *q)
{
    if (e->n_dims == 1 || e->slot.bias || arch_role_exact(e->slot.role) ||
        arch_role_kind(e->slot.role) == ARCH_VECTOR || e->slot.role == R_TYPE_EMBED)
        return LQ_F32;
    const lq_dtype stored = e->t->raw_dtype; /* of what a factor made f32 */
    if (!c->o->keep_dtype) return c->o->dtype;
    return lq_dtype_is_float(stored) ? stored : q->scheme.dtype;
}

/* Whole numbers as I32. */
static lq_status put_ids(conv *c, const entry *e, lq_err *err)
{
    const float *v;
    lq_arena a = { 0 };
    lq_status s = src_vector(c->src, e->slot.role, e->slot.layer, -1, false, &v, &a, err);
    to_gguf_begin(c, e, GGML_I32);
    for (int64_t i = 0, n = elements_of(e); i < n && !s; i++) {
        const int32_t id = v[i] >= 0 && v[i] < 1e9f ? (int32_t)v[i] : -1;
        if ((float)id < v[i] || (float)id > v[i])
            s = lq_fail(err, LQ_EVALUE, "expected whole numbers, found %g", (double)v[i]);
        if (!s) s = lq_out_write(c->out, &id, sizeof id, err);
    }
    lq_arena_free(&a);
    return s ? s : end(c, e, GGML_I32, err);
}

static lq_status to_gguf_put(conv *c, const entry *e, lq_err *err)
{
    const qt_tensor *q = &e->t->t; /* its scheme and shape alone */
    pass p = { .c = c, .e = e, .held = true };
    lq_status s;
    if (has_ids(e->config, &e->slot)) {
        s = put_ids(c, e, err);
    } else if (e->scale) {
        p.what = SCALES;
        p.type = GGML_F32;
        s = each(&p, err);
    } else if (q->scheme.kind == QT_DENSE || !c->o->keep_dtype) {
        if (q->scheme.kind != QT_DENSE) c->r->floats += e->experts;
        p.what = FLOATS;
        p.dtype = float_type(c, e, q);
        p.type = type_of(p.dtype);
        s = each(&p, err);
    } else {
        s = layout_no_act(&q->scheme, "gguf", err);
        if (!s) s = is_keys(e) ? no_codes_of_keys(err) : put_exact(&p, q, err);
        if (s == LQ_EUNSUPPORTED && c->o->requantize)
            s = put_anew(&p, err);
        else if (s == LQ_EUNSUPPORTED)
            s = say_way_out(s, e, err);
    }
    return s ? lq_wrap(err, s, "%s", e->t->name) : LQ_OK;
}

/* general.file_type: what most weights are. */
static void set_file_type(conv *c)
{
    static const struct {
        ggml_type type;
        int number;
    } t[] = { { GGML_F32, 0 },      { GGML_F16, 1 },     { GGML_Q4_0, 2 },     { GGML_Q4_1, 3 },
              { GGML_Q8_0, 7 },     { GGML_Q5_0, 8 },    { GGML_Q5_1, 9 },     { GGML_Q2_K, 10 },
              { GGML_Q3_K, 12 },    { GGML_Q4_K, 15 },   { GGML_Q5_K, 17 },    { GGML_Q6_K, 18 },
              { GGML_IQ2_XXS, 19 }, { GGML_IQ2_XS, 20 }, { GGML_IQ3_XXS, 23 }, { GGML_IQ1_S, 24 },
              { GGML_IQ4_NL, 25 },  { GGML_IQ3_S, 26 },  { GGML_IQ2_S, 28 },   { GGML_IQ4_XS, 30 },
              { GGML_IQ1_M, 31 },   { GGML_BF16, 32 },   { GGML_TQ1_0, 36 },   { GGML_TQ2_0, 37 },
              { GGML_MXFP4, 38 },   { GGML_NVFP4, 39 },  { GGML_Q1_0, 40 },    { GGML_Q2_0, 41 } };
    int64_t most = -1;
    for (size_t i = 0; i < LQ_COUNT(t); i++)
        if (c->of_type[t[i].type] > most) {
            most = c->of_type[t[i].type];
            c->head.p[c->file_type] = (char)t[i].number;
        }
}

static lq_status put_factors(conv *c, lq_err *err)
{
    const int64_t pairs = gguf_rope_pairs(c->config);
    lq_arena a = { 0 };
    float *factors;
    lq_status s = gguf_rope_factors(&factors, c->config, &a, err);
    const size_t lists = (size_t)gguf_rope_lists(c->config->rope[ROPE_MAIN].kind);
    for (size_t i = lists; !s && i < c->first; i++) { /* after those of frequencies */
        char name[64];
        const float f = gguf_q_factor(name, c->config, (int64_t)(i - lists));
        to_gguf_begin(c, &c->e[i], GGML_F32);
        for (int64_t k = 0; k < c->config->head_dim && !s; k++)
            s = lq_out_write(c->out, &f, sizeof f, err);
        if (!s) s = end(c, &c->e[i], GGML_F32, err);
    }
    for (size_t i = 0; !s && i < lists; i++) {
        to_gguf_begin(c, &c->e[i], GGML_F32);
        s = lq_out_write(c->out, factors + (int64_t)i * pairs, (size_t)pairs * 4, err);
        if (!s) s = end(c, &c->e[i], GGML_F32, err);
    }
    lq_arena_free(&a);
    return s;
}

/* ---- by shares: a piece is an entry ---- */
static size_t work_of(void *user, size_t i)
{
    const conv *c = user;
    const entry *e = &c->e[c->first + i];
    if (e->scale) return 0; /* it goes by what became of the one before it */
    return src_bytes(e->t) * (e->stacked ? 1 : (size_t)e->experts) + 1;
}

static lq_status make_piece(void *user, size_t i, lq_out *to, cJSON *about, lq_err *err)
{
    conv *c = user;
    const entry *e = &c->e[c->first + i];
    c->out = to;
    const lq_status s = to_gguf_put(c, e, err);
    c->out = NULL;
    cJSON_AddNumberToObject(about, "type", e->type);
    return s;
}

/* As a share has made it, with the zeros behind it. */
static lq_status put_made(conv *c, const entry *e, qt_span bytes, const cJSON *about, lq_err *err)
{
    int64_t type = 0;
    lq_status s = js_i64(about, "type", true, 0, (int64_t)LQ_COUNT(c->of_type) - 1, &type, err);
    if (s) return lq_wrap(err, s, "%s: its part", e->t->name);
    to_gguf_begin(c, e, (ggml_type)type);
    s = lq_out_write(c->out, bytes.data, bytes.bytes, err);
    return s ? s : end(c, e, (ggml_type)type, err);
}

static lq_status put_all(conv *c, lq_err *err)
{
    lq_status s = lq_out_write(c->out, c->head.p, c->head.n, err);
    if (!s) s = put_factors(c, err);
    for (size_t i = c->first; i < c->n && !s; i++) {
        qt_span made;
        const cJSON *about;
        lq_report(c->job, "writing", (double)i, (double)c->n);
        if (lq_stopped(c->job))
            s = lq_fail(err, LQ_EINTR, "interrupted");
        else if (conv_parts_get(c->parts, i - c->first, &made, &about))
            s = put_made(c, &c->e[i], made, about, err);
        else
            s = to_gguf_put(c, &c->e[i], err);
    }
    if (s) return s;
    set_file_type(c);
    c->r->bit_exact = c->r->bit_exact && !c->r->requantized;
    s = end_history(c, err);
    return s ? s : lq_out_pwrite(c->out, c->head.p, c->head.n, 0, err);
}

/* Of what keeps the whole model out, whatever its weights are. */
static lq_status say_no_way_out(lq_status s, const conv *c, lq_err *err)
{
    return c->o->requantize ? s : lq_append(err, s, " (--allow-requantize would not help)");
}

static lq_status to_gguf_holds(const src_source *src, lq_err *err)
{
    const conv_gguf_opts o = { .keep_dtype = true };
    conv_report r = { .bit_exact = true };
    conv c = { .src = src, .config = src_config(src), .o = &o, .r = &r };
    gguf_pairs pairs = { .n = 0 };
    ggml_type type;
    char text[40];
    lq_status s = gguf_put_model(&pairs, &c.arch, src, err);
    if (!s) s = list_tensors(&c, err);
    for (size_t i = 0; i < c.n && !s; i++) {
        const qt_tensor *q = c.e[i].t ? &c.e[i].t->t : NULL; /* NULL: factors of angles */
        if (!q || c.e[i].scale || q->scheme.kind == QT_DENSE) continue;
        s = layout_no_act(&q->scheme, "gguf", err);
        qt_scheme_text(text, &q->scheme);
        if (!s && is_keys(&c.e[i])) s = no_codes_of_keys(err);
        if (!s && !gguf_type_for(&type, q, 0))
            s = lq_fail(err, LQ_EUNSUPPORTED, "%s has no type of blocks in GGUF", text);
        if (s) lq_wrap(err, s, "%s", c.e[i].t->name);
    }
    cJSON_Delete(c.history.from);
    if (c.has_mtp) arch_config_free(&c.mtp);
    free(pairs.b.p);
    free(c.e);
    free(c.head.p);
    return s;
}

lq_status conv_gguf_holds(const src_source *src, lq_err *err)
{
    src_source *form;
    lq_status s = src_gguf_form(&form, src, err);
    if (!s) s = to_gguf_holds(form ? form : src, err);
    src_close(form);
    return s;
}

static lq_status to_gguf_write(conv_report *r, const src_source *src, const char *path,
                               const conv_gguf_opts *o, pool *p, const lq_job *job, lq_err *err)
{
    memset(r, 0, sizeof *r);
    r->bit_exact = true;
    conv c = { .src = src, .config = src_config(src), .o = o, .job = job, .pool = p, .r = r };
    gguf_pairs pairs = { .n = 0 };
    lq_status s = gguf_put_model(&pairs, &c.arch, src, err);
    if (!s && !o->keep_dtype) conv_note_inputs(r, src);
    if (!s && !o->share.n) s = lq_out_open(&c.out, path, err);
    if (!s) s = put_header(&c, &pairs, err);
    if (s == LQ_EUNSUPPORTED || s == LQ_ESHAPE) s = say_no_way_out(s, &c, err);
    while (c.first < c.n && !c.e[c.first].t)
        c.first++;
    const conv_pieces pieces = { &c, c.n - c.first, work_of, make_piece };
    if (!s) s = conv_parts_open(&c.parts, path, &o->share, &pieces, r, err);
    if (!s) s = o->share.n ? conv_parts_make(c.parts, job, err) : put_all(&c, err);
    if (!s && c.out) r->bytes = lq_out_size(c.out);
    if (s)
        lq_out_abort(c.out);
    else if (c.out)
        s = lq_out_commit(c.out, err);
    conv_parts_close(c.parts, !s && !o->share.n);
    cJSON_Delete(c.history.from);
    if (c.has_mtp) arch_config_free(&c.mtp);
    free(pairs.b.p);
    free(c.e);
    free(c.head.p);
    return s;
}

lq_status conv_to_gguf(conv_report *r, const src_source *src, const char *path,
                       const conv_gguf_opts *o, pool *p, const lq_job *job, lq_err *err)
{
    src_source *form;
    lq_status s = src_gguf_form(&form, src, err);
    if (!s) s = to_gguf_write(r, form ? form : src, path, o, p, job, err);
    if (!s && form) r->weights += src_n_tensors(src) - src_n_tensors(form);
    src_close(form);
    return s;
}
