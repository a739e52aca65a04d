/* convert/to_hf.c - any source as a Hugging Face folder, of plain floats or in a published layout.
 */
#include "base/file.h"
#include "base/hash.h"
#include "base/path.h"
#include "convert/folder.h"
#include "convert/layouts/layout.h"
#include "convert/load.h"
#include "convert/parts.h"
#include "convert/report.h"
#include "convert/requant.h"
#include "convert/shards.h"
#include "formats/hf/safetensors.h"
#include "formats/source/history.h"
#include "formats/tensor/blocks_uint.h"
#include "formats/tensor/finite.h"

#include <stdio.h>
#include <stdlib.h>

enum { NO_SHARD = -1, ROWS = 64, MAX_CONFIG = 1 << 20, PIECE = 1 << 20 };

typedef struct {
    const conv_hf_opts *o;
    const conv_layout *layout; /* NULL: plain floats */
    const lq_job *job;
    pool *pool;
    conv_report *r;
    conv_folder folder;
    conv_plan plan;
    cJSON *quant;      /* quantization_config, or NULL */
    conv_parts *parts; /* what shares have made, or NULL */
    int n_shards;
    int64_t done;
    lq_arena arena;
} conv;

/* ---- what becomes of each tensor ---- */
static lq_dtype dtype_of(const conv *c, const src_tensor *t)
{
    if (!t->plain) return t->raw_dtype;
    if (!c->o->keep_dtype) return c->o->dtype;
    return t->t.scheme.kind == QT_DENSE ? t->t.scheme.dtype : c->plan.config->dtype;
}

/* Codes are [outputs, inputs]; does the checkpoint have this tensor's matrices the other way round?
 */
static bool turns_back(const conv *c, const conv_weight *w)
{
    const src_tensor *t = w->t;
    if (!t->plain || t->t.scheme.kind == QT_DENSE || t->n_dims < 2 || !w->linear) return false;
    return arch_name_of(c->plan.config, w->slot.role)->flags & NAME_TRANSPOSED;
}

/* Floats [inputs, outputs]? Codes never are. */
static bool stands_turned(const conv *c, const conv_weight *w)
{
    return w->t->t.scheme.kind == QT_DENSE && w->linear &&
           arch_name_of(c->plan.config, w->slot.role)->flags & NAME_TRANSPOSED;
}

/* Whole, under its own name or as part of a stack. */
static void plan_whole(const conv *c, conv_weight *w)
{
    w->dtype = dtype_of(c, w->t);
    w->bytes =
        w->t->plain ? (size_t)src_elements(w->t) * lq_dtype_bytes(w->dtype) : w->t->raw.bytes;
    w->n_parts = 0;
    if (!w->stack) return;
    const int64_t n = src_elements(w->t);
    const int64_t K = stands_turned(c, w) ? w->t->shape[w->t->n_dims - 2] : w->K;
    layout_part(w, w->slot.bias ? ".bias" : ".weight", w->dtype, w->slot.bias ? n : n / K,
                w->slot.bias ? -1 : K);
}

/* A weight that the layout cannot hold: the reason stays in err. */
static lq_status plan_parts(const conv *c, conv_weight *w, lq_err *err)
{
    if (!(w->linear || (w->matrix && c->layout->matrices)) || (w->t->n_dims != 2 && !w->stack))
        return lq_fail(err, LQ_EUNSUPPORTED, "%s holds the matrices of linear layers, one by one",
                       c->layout->name);
    if (w->slot.bias || !w->module)
        return lq_fail(err, LQ_EUNSUPPORTED, "%s holds weights named ....weight", c->layout->name);
    return conv_plan_parts(w, c->layout, &c->plan, err);
}

/* The embedding and the head, which these layouts keep as floats: every GGUF file by llama-quantize
 * has codes there; and an MTP head's matrices. They are written in 16 bits, as the layouts' own tools do. */
static bool plan_as_floats(conv *c, conv_weight *w)
{
    arch_slot slot;
    const lq_dtype own = c->plan.config->dtype;
    const bool vocabulary = arch_slot_of(c->plan.config, w->t->name, &slot) && !slot.bias &&
                            (slot.role == R_EMBED || slot.role == R_HEAD);
    if (!vocabulary && !w->mtp) return false;
    w->quantized = false;
    plan_whole(c, w);
    if (lq_dtype_bytes(w->dtype) > 2) w->dtype = lq_dtype_bytes(own) == 2 ? own : LQ_F16;
    w->bytes = (size_t)src_elements(w->t) * lq_dtype_bytes(w->dtype);
    char text[40];
    qt_scheme_text(text, &w->t->t.scheme);
    conv_note(c->r, "'%s' (%s) is written as %s: %s holds %s", w->t->name, text,
              lq_dtype_text(w->dtype), c->layout->name,
              vocabulary && !c->layout->matrices ? "linear layers alone" : "no such weight");
    return true;
}

/* Can its groups be cut into some of `group`, which changes no value? */
static bool splits(const qt_scheme *s, int64_t group)
{
    return s->kind == QT_UINT && !s->act_order && group > 0 && s->group % group == 0 &&
           (s->zero == QT_ZERO_NONE || s->zero == QT_ZERO_INT);
}

/* What layouts know of a scheme: GGUF's blocks are codes with scales there. */
static qt_scheme known_scheme(const qt_scheme *s)
{
    return s->kind == QT_BLOCKS ? blk_uint(blk_find(s->blocks)) : *s;
}

/* 4 or 8: what the layouts would round it to. */
static int width_of(const src_tensor *t) { return layout_round_uint(&t->t.scheme, t->t.K).bits; }

/* The scheme that w is rounded to. */
static qt_scheme scheme_instead(const conv *c, const conv_weight *w)
{
    const qt_scheme wide = { .kind = QT_UINT, .bits = c->plan.bits };
    qt_scheme s = c->layout->instead(c->plan.bits ? &wide : &w->t->t.scheme, w->K);
    if (c->plan.group) s.group = c->plan.group;
    return s;
}

static lq_status plan_quantized(conv *c, conv_weight *w, lq_err *err)
{
    const bool dense = w->t->t.scheme.kind == QT_DENSE;
    lq_status s = LQ_OK;
    w->quantized = true;
    w->scheme = known_scheme(&w->t->t.scheme);
    if (splits(&w->scheme, c->plan.group)) w->scheme.group = c->plan.group;
    if (!dense && (!c->plan.bits || width_of(w->t) == c->plan.bits)) {
        s = plan_parts(c, w, err);
        if (!s || (s != LQ_EUNSUPPORTED && s != LQ_ESHAPE)) return s;
        if (!c->o->requantize)
            return plan_as_floats(c, w)
                       ? LQ_OK
                       : lq_wrap(err, s, "'%s' has no place in this layout", w->t->name);
    }
    w->requantized = true;
    if (w->linear && w->module && (w->t->n_dims == 2 || (w->stack && !stands_turned(c, w)))) {
        if (dense && stands_turned(c, w)) {
            w->N = w->t->t.K;
            w->K = w->t->t.N;
        }
        w->scheme = scheme_instead(c, w);
        s = plan_parts(c, w, err);
        if (!s || (s != LQ_EUNSUPPORTED && s != LQ_ESHAPE)) return s;
    }
    w->quantized = false; /* an embedding, stacked experts, an odd shape: floats again */
    w->requantized = !dense;
    plan_whole(c, w);
    return LQ_OK;
}

/* What the tensor is, before it is known what becomes of it. mtp: the MTP head's config; row NULL: none. */
static lq_status describe(conv *c, conv_weight *w, const src_tensor *t, const arch_config *mtp,
                          lq_err *err)
{
    const size_t len = strlen(t->name);
    const bool model = arch_slot_of(c->plan.config, t->name, &w->slot);
    w->model = model && t->plain;
    w->mtp = !model && mtp->row && arch_slot_of(mtp, t->name, &w->slot);
    w->t = t;
    w->N = t->t.N;
    w->K = t->t.K;
    w->linear = t->plain && (model || w->mtp) && !w->slot.bias && arch_role_linear(w->slot.role) &&
                !(w->slot.role == R_HEAD && c->plan.config->tied);
    w->foreign = t->plain && t->n_dims == 2 && !model && !w->linear;
    w->matrix = t->plain && model && arch_role_kind(w->slot.role) == ARCH_MATRIX && !w->slot.bias;
    if ((w->linear || w->foreign || w->matrix) && len > 7 &&
        strcmp(t->name + len - 7, ".weight") == 0) {
        w->module = lq_push_str(&c->arena, t->name, len - 7);
        if (!w->module) return lq_fail(err, LQ_ENOMEM, "no memory for the plan");
    }
    return c->layout && c->layout->place ? c->layout->place(w, &c->plan, &c->arena, err) : LQ_OK;
}

/* Linears of layers are rounded where nothing is quantized yet; heads and others stay floats. */
static bool becomes_codes(const conv *c, const conv_weight *w, bool round_dense)
{
    const src_tensor *t = w->t;
    return c->layout && t->plain &&
           (t->t.scheme.kind != QT_DENSE ||
            (round_dense && w->linear && w->slot.role != R_HEAD && !w->mtp));
}

static lq_status plan_one(conv *c, conv_weight *w, bool round_dense, lq_err *err)
{
    if (becomes_codes(c, w, round_dense)) return plan_quantized(c, w, err);
    plan_whole(c, w);
    return LQ_OK;
}

/* The first weight of the stack that weight i is of; i: it is that, or of none. */
static size_t first_of_stack(const conv_plan *p, size_t i)
{
    const conv_weight *w = &p->w[i];
    for (size_t k = i; w->stack && w->expert >= 0 && k-- > 0;) {
        const conv_weight *o = &p->w[k];
        if (o->stack && o->slot.bias == w->slot.bias && strcmp(o->module, w->module) == 0)
            return o->of;
    }
    return i;
}

/* All of a stack have the same parts. */
static lq_status join_stack(conv *c, size_t i, lq_err *err)
{
    conv_weight *w = &c->plan.w[i];
    w->of = first_of_stack(&c->plan, i);
    const conv_weight *first = &c->plan.w[w->of];
    bool same = w->n_parts == first->n_parts;
    for (int k = 0; k < w->n_parts && same; k++)
        same = w->parts[k].dtype == first->parts[k].dtype &&
               w->parts[k].shape[0] == first->parts[k].shape[0] &&
               w->parts[k].shape[1] == first->parts[k].shape[1];
    char text[40], want[40];
    qt_scheme_text(text, &w->t->t.scheme);
    qt_scheme_text(want, &first->t->t.scheme);
    return same ? LQ_OK
                : lq_fail(err, LQ_EUNSUPPORTED,
                          "'%s' has no place in this layout: %s holds the experts of a layer as "
                          "one stack, "
                          "expected %s as of '%s', found %s",
                          w->t->name, c->layout->name, want, first->t->name, text);
}

static void choose_shard(conv *c, size_t i, size_t *in_shard)
{
    conv_weight *w = &c->plan.w[i];
    w->shard = NO_SHARD;
    if (w->left_out) return;
    const size_t all = w->stack && w->expert >= 0 ? w->bytes * (size_t)w->stack : w->bytes;
    w->shard = w->of < i ? c->plan.w[w->of].shard
                         : conv_next_shard(&c->n_shards, in_shard, all, c->o->shard_size);
}

static int64_t inputs_of(const conv *c, const conv_weight *w)
{
    return stands_turned(c, w) ? w->t->t.N : w->K;
}

/* Is it one of those that share a size or width? A head of 8 bits or of further tokens is not: where the
 * layout cannot hold it, it is written as floats. */
static bool shares(const conv *c, const conv_weight *w, bool round_dense)
{
    const qt_scheme s = known_scheme(&w->t->t.scheme);
    return w->linear && !w->mtp && becomes_codes(c, w, round_dense) &&
           !(w->slot.role == R_HEAD && s.kind == QT_UINT && s.bits == 8);
}

/* Does a group of g divide the inputs of all that becomes codes? */
static bool divides_all(const conv *c, int64_t g, bool round_dense)
{
    for (size_t i = 0; i < c->plan.n; i++) {
        const conv_weight *w = &c->plan.w[i];
        if (shares(c, w, round_dense) && inputs_of(c, w) % g) return false;
    }
    return true;
}

/* The smallest group of weights of 4 bits, where all can be split into such; 0: they cannot. */
static int64_t fine_group(const conv *c, bool round_dense)
{
    int64_t least = INT64_MAX;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < c->plan.n; i++) {
            const conv_weight *w = &c->plan.w[i];
            const qt_scheme s = known_scheme(&w->t->t.scheme);
            if (!shares(c, w, round_dense)) continue;
            if (s.kind != QT_UINT || s.bits != 4) return 0;
            if (pass && !splits(&s, least)) return 0;
            least = s.group < least ? s.group : least;
        }
    return least < INT64_MAX ? least : 0;
}

/* The one size of groups for all weights of a layout that has one: the smallest, where all can be
 * split into such; of those that most weights have,
 * else the largest usual one; 0: each keeps its own, which are whole rows, or nothing fits. */
static int64_t common_group(const conv *c, bool round_dense)
{
    struct {
        int64_t group, n;
    } all[8] = { { 128, 0 }, { 64, 0 }, { 32, 0 } };
    size_t n = 3, best = LQ_COUNT(all);
    bool by_row = true;
    for (size_t i = 0; i < c->plan.n; i++) {
        const conv_weight *w = &c->plan.w[i];
        const qt_scheme s = known_scheme(&w->t->t.scheme);
        size_t k = 0;
        if (!shares(c, w, round_dense)) continue;
        by_row = by_row && s.kind == QT_UINT && s.group == w->K;
        if (s.kind != QT_UINT || s.bits != 4) continue;
        while (k < n && all[k].group != s.group)
            k++;
        if (k == n && n < LQ_COUNT(all)) all[n++].group = s.group;
        if (k < n) all[k].n++;
    }
    if (!by_row && fine_group(c, round_dense)) return fine_group(c, round_dense);
    for (size_t k = 0; k < n && !by_row; k++)
        if ((best == LQ_COUNT(all) || all[k].n > all[best].n) &&
            divides_all(c, all[k].group, round_dense))
            best = k;
    return best < LQ_COUNT(all) ? all[best].group : 0;
}

/* The width that most elements have, where there are both; 0: there are not. */
static int common_width(const conv *c, bool round_dense)
{
    int64_t of[2] = { 0 };
    for (size_t i = 0; i < c->plan.n; i++) {
        const conv_weight *w = &c->plan.w[i];
        if (shares(c, w, round_dense)) of[width_of(w->t) == 8] += src_elements(w->t);
    }
    return !of[0] || !of[1] ? 0 : of[0] >= of[1] ? 4 : 8;
}

static bool any_quantized(const src_source *src)
{
    for (int64_t i = 0; i < src_n_tensors(src); i++) {
        const src_tensor *t = src_tensor_at(src, i);
        if (t->plain && t->t.scheme.kind != QT_DENSE) return true;
    }
    return false;
}

/* The layout's quantization_config, which may refuse some weights beside each other. */
static lq_status plan_layout(conv *c, lq_err *err)
{
    bool some = false;
    for (size_t i = 0; i < c->plan.n; i++) {
        some = some || c->plan.w[i].quantized;
        c->r->requantized += c->plan.w[i].requantized;
    }
    c->quant = cJSON_CreateObject();
    if (!c->quant) return lq_fail(err, LQ_ENOMEM, "no memory for the config");
    if (!some)
        return lq_fail(err, LQ_EUNSUPPORTED, "--to %s: no weight of this model has a place in it",
                       c->layout->name);
    lq_status s = c->layout->config(c->quant, &c->plan, err);
    if (c->plan.note[0]) conv_note(c->r, "%s", c->plan.note);
    return s;
}

/* Heads in GGUF's order, or matrices that are cut otherwise there. */
static lq_status no_ggufs_order(const arch_config *c, lq_err *err)
{
    const bool apart = c && c->row && c->row->variant && strcmp(c->row->variant, ARCH_APART) == 0;
    if (!apart && !(c && c->w.mix_tiled)) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "expected tensors in config.json's order, found a %s in GGUF's, which .llmq and "
                   "GGUF keep",
                   c->row->arch);
}

static lq_status describe_all(conv *c, lq_err *err)
{
    conv_plan *p = &c->plan;
    arch_config mtp = { 0 };
    lq_err none; /* no head of such a model is known: arch_config_mtp leaves it empty */
    lq_status s = arch_config_mtp(&mtp, p->config, &none) == LQ_ENOMEM
                      ? lq_fail(err, LQ_ENOMEM, "no memory for the plan")
                      : LQ_OK;
    for (size_t i = 0; i < p->n && !s; i++)
        s = describe(c, &p->w[i], src_tensor_at(p->src, (int64_t)i), &mtp, err);
    arch_config_free(&mtp);
    return s;
}

static lq_status to_hf_plan(conv *c, const src_source *src, lq_err *err)
{
    conv_plan *p = &c->plan;
    const bool round_dense = c->layout && !any_quantized(src);
    size_t in_shard = 0;
    bool left_out = false;
    lq_status s = no_ggufs_order(src_config(src), err);
    if (s) return s;
    p->src = src;
    p->config = src_config(src);
    p->n = (size_t)src_n_tensors(src);
    p->variant = c->layout ? c->layout->variant : 0;
    p->w = lq_push(&c->arena, (p->n + 1) * sizeof *p->w);
    if (!p->w) return lq_fail(err, LQ_ENOMEM, "no memory for the plan");
    if (round_dense && !c->o->requantize)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "--to %s: this model is not quantized: llmq quantize rounds it well",
                       c->layout->name);
    s = describe_all(c, err);
    if (s) return s;
    if (c->layout && c->layout->one_group) p->group = common_group(c, round_dense);
    if (c->o->requantize && c->layout && c->layout->one_width)
        p->bits = common_width(c, round_dense);
    for (size_t i = 0; i < p->n && !s; i++) {
        conv_weight *w = &p->w[i];
        s = plan_one(c, w, round_dense, err);
        if (!s) s = join_stack(c, i, err);
        if (!s) choose_shard(c, i, &in_shard);
        if (!w->left_out) c->r->bytes += w->bytes;
        left_out = left_out || w->left_out;
    }
    if (left_out)
        conv_note(c->r, "%s has no MTP head of this model: it is left out", c->layout->name);
    c->n_shards++;
    c->r->weights = (int64_t)p->n;
    for (size_t i = 0; i < p->n; i++)
        c->r->floats +=
            p->w[i].t->plain && p->w[i].t->t.scheme.kind != QT_DENSE && !p->w[i].quantized;
    if (!c->layout) conv_note_inputs(c->r, c->plan.src);
    return s || !c->layout ? s : plan_layout(c, err);
}

/* ---- tensors ---- */
/* The tensor of a shard that is being written, and how much of it there is; or a share's part, or memory. */
typedef struct {
    st_writer *out;
    size_t i, at;
    lq_out *part;
    uint8_t *memory;
} sink;

static lq_status sink_put(sink *k, const void *data, size_t n, lq_err *err)
{
    lq_status s = LQ_OK;
    if (k->memory)
        memcpy(k->memory + k->at, data, n);
    else
        s = k->part ? lq_out_write(k->part, data, n, err)
                    : st_put(k->out, k->i, k->at, data, n, err);
    k->at += n;
    return s;
}

/* Bytes as they are, in pieces whose pages go again. */
static lq_status put_bytes(conv *c, qt_span b, sink *k, lq_err *err)
{
    lq_status s = LQ_OK;
    for (size_t i = 0; i < b.bytes && !s; i += PIECE) {
        const size_t n = b.bytes - i < PIECE ? b.bytes - i : PIECE;
        s = sink_put(k, (const uint8_t *)b.data + i, n, err);
        src_drop(c->plan.src, (qt_span){ (const uint8_t *)b.data + i, n });
    }
    return s;
}

/* One matrix [N,K] of the tensor as f32 [K,N] after the other. */
static lq_status put_turned(conv *c, const qt_tensor *q, int64_t N, lq_dtype d, sink *k,
                            lq_err *err)
{
    const size_t n = (size_t)N * (size_t)q->K, elem = lq_dtype_bytes(d);
    float *f = malloc(2 * n * sizeof *f), *turned = f ? f + n : NULL;
    uint8_t *b = malloc(n * elem);
    lq_status s = f && b ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for %zu weights", n);
    for (int64_t at = 0; at < q->N && !s; at += N) {
        qt_dequant(f, q, at, at + N);
        src_transpose(turned, f, q->K, N, sizeof *f);
        lq_from_f32(b, turned, d, n);
        lq_to_f32(f, b, d, n);
        if (memcmp(f, turned, n * sizeof *f) != 0) c->r->bit_exact = false;
        s = sink_put(k, b, n * elem, err);
    }
    free(f);
    free(b);
    return s;
}

static void add_to(float *out, const float *f, size_t n, float x)
{
    for (size_t i = 0; i < n; i++)
        out[i] = f[i] + x;
}

/* Rows, and `add`, as f32 -> dtype -> file; notes whether any value changed on the way. */
static lq_status put_rows(conv *c, const qt_tensor *q, lq_dtype d, float add, sink *k, lq_err *err)
{
    size_t row = (size_t)q->K, elem = lq_dtype_bytes(d);
    float *f = malloc(2 * ROWS * row * sizeof *f);
    uint8_t *b = malloc(ROWS * row * elem);
    lq_status s = f && b ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for rows of %zu", row);
    for (int64_t n = 0; n < q->N && !s; n += ROWS) {
        int64_t end = n + ROWS < q->N ? n + ROWS : q->N;
        size_t len = (size_t)(end - n) * row;
        float *back = f + ROWS * row;
        qt_dequant(f, q, n, end);
        if (add > 0) add_to(back, f, len, add);
        lq_from_f32(b, add > 0 ? back : f, d, len);
        lq_to_f32(back, b, d, len);
        if (add > 0) add_to(back, back, len, -add);
        if (memcmp(f, back, len * sizeof *f) != 0) c->r->bit_exact = false;
        if (!isfinite(val_largest(back, LQ_F32, len)))
            s = lq_fail(err, LQ_EVALUE, "a value beyond the largest %s", lq_dtype_text(d));
        if (!s) s = sink_put(k, b, len * elem, err);
    }
    free(f);
    free(b);
    return s;
}

static lq_status put_whole(conv *c, const conv_weight *w, const qt_tensor *q, sink *k, lq_err *err)
{
    const bool turn = w->stack ? stands_turned(c, w) : turns_back(c, w);
    if (q->scheme.kind == QT_DENSE && q->scheme.dtype == w->dtype && !turn && !(w->add > 0))
        return put_bytes(c, q->plane[QT_CODES], k, err);
    return turn ? put_turned(c, q, w->t->shape[w->t->n_dims - 2], w->dtype, k, err)
                : put_rows(c, q, w->dtype, w->add, k, err);
}

/* A value that has no place (a zero point of 0 in gptq's version 1): a symmetric grid has one. */
static lq_status pack_anew(conv *c, const conv_weight *w, const qt_tensor *q, uint8_t *bytes,
                           lq_arena *a, lq_err *err)
{
    qt_scheme s = w->scheme;
    qt_tensor again;
    s.zero = QT_ZERO_NONE;
    s.act_order = false;
    lq_status st = conv_requantize(&again, q, &s, c->pool, a, err);
    if (st) return st;
    memset(bytes, 0, w->bytes);
    c->r->requantized++;
    return conv_pack(bytes, c->layout, w, &again, &c->plan, err);
}

static lq_status put_parts(conv *c, const conv_weight *w, const qt_tensor *q, sink *k, lq_arena *a,
                           lq_err *err)
{
    qt_tensor turned = *q, anew, codes;
    lq_status s = LQ_OK;
    uint8_t *bytes = calloc(1, w->bytes);
    if (!bytes) return lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes", w->bytes);
    if (q->scheme.kind == QT_BLOCKS && !w->requantized) {
        s = blk_to_uint(&codes, q, a, err);
        q = &codes;
    }
    if (!s && w->requantized) {
        if (stands_turned(c, w))
            s = src_slice(&turned, c->plan.config, w->slot.role, -1, q, a, err);
        if (!s) s = conv_requantize(&anew, &turned, &w->scheme, c->pool, a, err);
        if (!s) q = &anew;
    } else if (!s && q->scheme.kind == QT_UINT && q->scheme.group != w->scheme.group) {
        s = layout_split(&anew, q, w->scheme.group, a, err);
        if (!s) q = &anew;
    }
    if (!s) {
        s = conv_pack(bytes, c->layout, w, q, &c->plan, err);
        if (s == LQ_EUNSUPPORTED && c->o->requantize && q->scheme.kind == QT_UINT)
            s = pack_anew(c, w, q, bytes, a, err);
    }
    if (!s)
        s = k->part ? sink_put(k, bytes, w->bytes, err)
                    : conv_put_parts(k->out, k->i, w, bytes, err);
    free(bytes);
    return s;
}

/* A stack's weight that stays floats. */
static lq_status put_floats(conv *c, const conv_weight *w, const qt_tensor *q, sink *k, lq_err *err)
{
    if (!w->up || k->part) {
        if (w->expert > 0 && !k->part) k->at = (size_t)w->expert * w->bytes;
        return put_whole(c, w, q, k, err);
    }
    sink to = { .memory = malloc(w->bytes) };
    lq_status s = to.memory ? put_whole(c, w, q, &to, err)
                            : lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes", w->bytes);
    if (!s) s = conv_put_parts(k->out, k->i, w, to.memory, err);
    free(to.memory);
    return s;
}

/* All of a weight: tensors k->i, k->i + 1, ... of the shard are its. */
static lq_status to_hf_put(conv *c, const conv_weight *w, sink *k, lq_err *err)
{
    if (!w->t->plain) return put_bytes(c, w->t->raw, k, err);
    lq_arena a = { 0 };
    qt_tensor q;
    lq_status s = conv_load(&q, c->plan.src, w->t, c->pool, &a, err);
    if (!s)
        s = w->quantized ? put_parts(c, w, &q, k, &a, err)
            : w->stack   ? put_floats(c, w, &q, k, err)
                         : put_whole(c, w, &q, k, err);
    conv_unload(c->plan.src, w->t, &a);
    return s ? lq_wrap(err, s, "%s", w->t->name) : LQ_OK;
}

/* ---- by shares: a piece is a weight ---- */
static size_t work_of(void *user, size_t i)
{
    const conv *c = user;
    return src_bytes(c->plan.w[i].t) + 1; /* each by itself */
}

static lq_status make_piece(void *user, size_t i, lq_out *to, cJSON *about, lq_err *err)
{
    conv *c = user;
    (void)about;
    return to_hf_put(c, &c->plan.w[i], &(sink){ .part = to }, err);
}

/* As a share has made it. */
static lq_status put_made(const conv_weight *w, qt_span bytes, sink *k, lq_err *err)
{
    if (bytes.bytes != w->bytes)
        return lq_fail(err, LQ_EFORMAT, "%s: its part does not fit the model", w->t->name);
    return w->n_parts ? conv_put_parts(k->out, k->i, w, bytes.data, err)
                      : sink_put(k, bytes.data, bytes.bytes, err);
}

/* Weight i made, or taken from its part. */
static lq_status put_weight(conv *c, size_t i, st_writer *out, size_t first, lq_err *err)
{
    sink k = { .out = out, .i = first };
    qt_span made;
    const cJSON *about;
    lq_report(c->job, "writing", (double)c->done++, (double)c->plan.n);
    if (lq_stopped(c->job)) return lq_fail(err, LQ_EINTR, "interrupted");
    return conv_parts_get(c->parts, i, &made, &about) ? put_made(&c->plan.w[i], made, &k, err)
                                                      : to_hf_put(c, &c->plan.w[i], &k, err);
}

/* ---- shards ---- */
/* A stack of experts whose rows the checkpoint has one after the other? */
static bool is_flat(const conv *c, const conv_weight *w)
{
    return w->linear && w->t->n_dims == 3 &&
           arch_name_of(c->plan.config, w->slot.role)->flags & NAME_FLAT;
}

/* The tensors of a weight as they stand in the file; names of parts in `a`. Returns how many. */
static int list_tensors(st_tensor *out, const conv *c, const conv_weight *w, lq_arena *a)
{
    const src_tensor *t = w->t;
    out[0] =
        (st_tensor){ .name = t->name, .dtype = w->dtype, .n_dims = t->n_dims, .bytes = w->bytes };
    memcpy(out[0].shape, t->shape, sizeof t->shape);
    if (turns_back(c, w)) {
        out[0].shape[t->n_dims - 2] = t->shape[t->n_dims - 1];
        out[0].shape[t->n_dims - 1] = t->shape[t->n_dims - 2];
    }
    if (w->taps_first) {
        out[0].shape[1] = t->shape[2];
        out[0].shape[2] = t->shape[1];
    }
    if (is_flat(c, w)) {
        int64_t *shape = out[0].shape;
        out[0].n_dims = 2;
        shape[0] *= shape[1];
        shape[1] = shape[2];
        shape[2] = 0;
    }
    return w->n_parts ? conv_list_parts(out, w, a) : 1;
}

static lq_status write_shard(void *user, int shard, cJSON *map, lq_err *err)
{
    conv *c = user;
    char name[64], path[4200];
    size_t n = 0;
    lq_arena a = { 0 };
    st_writer *out = NULL;
    conv_shard_name(name, sizeof name, shard, c->n_shards);
    st_tensor *list = calloc(c->plan.n * CONV_PARTS + 1, sizeof *list);
    lq_status s = list ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for the tensors of %s", name);
    for (size_t i = 0; i < c->plan.n && !s; i++) {
        if (c->plan.w[i].shard != shard || c->plan.w[i].of != i) continue;
        const size_t first = n;
        c->plan.w[i].at = n;
        n += (size_t)list_tensors(list + n, c, &c->plan.w[i], &a);
        for (size_t k = first; k < n && !s; k++)
            if (!list[k].name || !cJSON_AddStringToObject(map, list[k].name, name))
                s = lq_fail(err, LQ_ENOMEM, "no memory for names");
    }
    c->r->tensors += (int64_t)n;
    if (!s) s = folder_path(path, sizeof path, &c->folder, name, err);
    if (!s) s = st_create(&out, path, list, n, err);
    for (size_t i = 0; i < c->plan.n && !s; i++)
        if (c->plan.w[i].shard == shard)
            s = put_weight(c, i, out, c->plan.w[c->plan.w[i].of].at, err);
    if (s)
        st_abort(out);
    else
        s = st_commit(out, err);
    free(list);
    lq_arena_free(&a);
    return s;
}

/* ---- JSON files ---- */
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

/* Where config.json speaks of the language model: itself, and what it holds as a part of it. */
enum { CONFIGS = 3 };
static void configs(cJSON *in[CONFIGS], cJSON *j)
{
    in[0] = j;
    in[1] = cJSON_GetObjectItemCaseSensitive(j, "thinker_config");
    in[2] = cJSON_GetObjectItemCaseSensitive(in[1] ? in[1] : j, "text_config");
}

/* The innermost has the last word on it. */
static void set_tied(cJSON *const in[CONFIGS], bool tied)
{
    static const char key[] = "tie_word_embeddings";
    for (int i = 1; i < CONFIGS; i++)
        if (cJSON_GetObjectItemCaseSensitive(in[i], key)) set(in[i], key, cJSON_CreateBool(tied));
    set(in[0], key, cJSON_CreateBool(tied));
}

/* Does one of them say that the head is the embedding? Where none speaks of it, it is. */
static bool says_tied(cJSON *const in[CONFIGS])
{
    bool said = false, tied = false;
    for (int i = 0; i < CONFIGS; i++) {
        bool one = false;
        if (!cJSON_GetObjectItemCaseSensitive(in[i], "tie_word_embeddings")) continue;
        js_bool(in[i], "tie_word_embeddings", false, &one, NULL);
        said = true;
        tied = tied || one;
    }
    return tied || !said;
}

/* The source's config.json with what this conversion changes: element type, a head that was split
 * from the embedding, how weights are quantized. Byte for byte where nothing changes. */
static lq_status write_config(const conv *c, const src_blob *b, lq_err *err)
{
    static const char *const quant[] = { "quantization_config", "compression_config",
                                         "quantization" };
    cJSON *j = NULL;
    char twice[64];
    const arch_config *cfg = c->plan.config;
    lq_status s = js_parse_python(&j, twice, (const char *)b->data, b->bytes, MAX_CONFIG, err);
    if (s) return lq_wrap(err, s, "config.json");
    cJSON *in[CONFIGS];
    configs(in, j);
    const bool tied = says_tied(in);
    bool change = tied != cfg->tied || c->quant;
    lq_dtype d = c->o->keep_dtype ? cfg->dtype : c->o->dtype;
    if (d != cfg->dtype) {
        const char *key = cJSON_GetObjectItemCaseSensitive(j, "dtype") ? "dtype" : "torch_dtype";
        set(j, key, cJSON_CreateString(torch_name(d)));
        change = true;
    }
    for (size_t i = 0; i < LQ_COUNT(quant) * LQ_COUNT(in); i++) {
        cJSON *o = in[i / LQ_COUNT(quant)];
        const char *key = quant[i % LQ_COUNT(quant)];
        change = change || cJSON_GetObjectItemCaseSensitive(o, key);
        cJSON_DeleteItemFromObjectCaseSensitive(o, key);
    }
    if (c->quant) cJSON_AddItemReferenceToObject(j, "quantization_config", c->quant);
    if (c->quant && c->layout->key) cJSON_AddItemReferenceToObject(j, c->layout->key, c->quant);
    if (tied != cfg->tied) set_tied(in, cfg->tied);
    js_keep_spelling(j); /* transformers 5 refuses 1 where a field is a float */
    s = change ? folder_write_json(&c->folder, "config.json", j, err)
               : folder_write(&c->folder, "config.json", b->data, b->bytes, err);
    cJSON_Delete(j);
    return s;
}

static lq_status write_blobs(const conv *c, lq_err *err)
{
    lq_status s = LQ_OK;
    const src_source *src = c->plan.src;
    for (size_t i = 0; i < src_n_blobs(src) && !s; i++) {
        const src_blob *b = src_blob_at(src, i);
        char path[600];
        if (strcmp(b->name, "tokenizer.blob") == 0) continue; /* ours; made from tokenizer.json */
        if (strcmp(b->name, "config.json") == 0) {
            s = write_config(c, b, err);
            continue;
        }
        s = src_blob_file(path, sizeof path, ".", b->name, err);
        if (!s) s = folder_write(&c->folder, path + 2, b->data, b->bytes, err);
    }
    if (!s && c->quant && c->layout->file)
        s = folder_write_json(&c->folder, c->layout->file, c->quant, err);
    return s;
}

static lq_status write_history(const conv *c, lq_err *err)
{
    const src_source *src = c->plan.src;
    const bool anew = c->r->requantized > 0;
    if (!conv_has_history(src, anew || c->r->floats)) return LQ_OK;
    cJSON *j = cJSON_CreateObject(), *from = conv_from(src, anew);
    cJSON *converted = from ? conv_converted(src, c->r, from) : NULL;
    if (src_recipe(src))
        cJSON_AddItemToObject(j, HISTORY_RECIPE, cJSON_Duplicate(src_recipe(src), true));
    if (src_provenance(src))
        cJSON_AddItemToObject(j, HISTORY_PROVENANCE, cJSON_Duplicate(src_provenance(src), true));
    cJSON_AddItemToObject(j, HISTORY_CONVERTED, converted);
    lq_status s =
        conv_list_files(cJSON_AddObjectToObject(j, HISTORY_FILES), &c->folder, c->n_shards, err);
    if (!s && !converted) s = lq_fail(err, LQ_ENOMEM, "no memory for " HISTORY_FILE);
    if (!s) s = folder_write_json(&c->folder, HISTORY_FILE, j, err);
    cJSON_Delete(from);
    cJSON_Delete(j);
    return s;
}

static lq_status plan_alone(const src_source *src, const char *to, bool requantize, lq_err *err)
{
    conv_report r = { .bit_exact = true };
    const conv_hf_opts o = { .to = to, .keep_dtype = true, .requantize = requantize };
    conv c = { .o = &o, .layout = conv_layout_find(to), .r = &r };
    lq_status s = to_hf_plan(&c, src, err);
    cJSON_Delete(c.quant);
    lq_arena_free(&c.arena);
    return s;
}

lq_status conv_holds(const src_source *src, const char *to, lq_err *err)
{
    return plan_alone(src, to, false, err);
}

/* The way out of a refusal, where it is one. */
static lq_status say_way_out(lq_status s, const src_source *src, const conv_hf_opts *o, lq_err *err)
{
    lq_err why = { "" };
    if ((s != LQ_EUNSUPPORTED && s != LQ_ESHAPE) || o->requantize || !conv_layout_find(o->to))
        return s;
    if (!plan_alone(src, o->to, true, &why))
        return lq_append(err, s, " (--allow-requantize rounds it again)");
    return lq_append(err, s, " (nor would it with --allow-requantize: %.180s)", why.msg);
}

lq_status conv_to_hf(conv_report *r, const src_source *src, const char *dir, const conv_hf_opts *o,
                     pool *p, const lq_job *job, lq_err *err)
{
    memset(r, 0, sizeof *r);
    r->bit_exact = true;
    conv c = { .o = o, .layout = conv_layout_find(o->to), .job = job, .pool = p, .r = r };
    const bool whole = !o->share.n;
    lq_status s = whole ? folder_create(&c.folder, dir, false, err) : folder_check(dir, err);
    if (s) return s;
    s = to_hf_plan(&c, src, err);
    if (s) say_way_out(s, src, o, err);
    const conv_pieces pieces = { &c, c.plan.n, work_of, make_piece };
    if (!s) s = conv_parts_open(&c.parts, dir, &o->share, &pieces, r, err);
    if (!whole) {
        if (!s) s = conv_parts_make(c.parts, job, err);
        goto done;
    }
    if (!s) s = conv_write_shards(&c.folder, c.n_shards, c.r->bytes, write_shard, &c, err);
    if (!s) s = write_blobs(&c, err);
    r->bit_exact = r->bit_exact && !r->requantized;
    if (!s) s = write_history(&c, err);
    if (s)
        folder_drop(&c.folder);
    else
        s = folder_publish(&c.folder, err);
done:
    conv_parts_close(c.parts, !s && whole);
    cJSON_Delete(c.quant);
    lq_arena_free(&c.arena);
    return s;
}
