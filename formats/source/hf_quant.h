/* formats/source/hf_quant.h - published quantized layouts in safetensors files: what their readers share.
 *
 * A layout stores one weight as several tensors ("....q_proj.qweight", ".scales", ...). Its reader
 * takes them from the list of stored tensors and makes "....q_proj.weight" of them. Planes that
 * the file holds as qtensor.h says are views; others are translated when asked for.
 *
 * A new layout is a file formats/source/hf_NAME.c and a row of the table in hf_layouts.c. For
 * formats/source/source_hf.c and hf_*.c. */
#ifndef LLMQ_FORMATS_SOURCE_HF_QUANT_H
#define LLMQ_FORMATS_SOURCE_HF_QUANT_H

#include "base/json.h"
#include "formats/source/source_impl.h"

typedef struct {
    src_source *s;
    const cJSON *q;   /* quantization_config */
    bool *used;       /* [s->n_tensors] taken by a weight */
    src_tensor *made; /* weights made so far */
    size_t n_made;    /* at most one per stored tensor */
    qt_span taken[8]; /* bytes of the parts of the next weight; more are not counted */
    size_t n_taken;
    bool no_memory; /* a name could not be made: whatever was read is incomplete */
} hf_quant;

typedef lq_status hf_reader(hf_quant *h, lq_err *err);
hf_reader hf_gptq_read, hf_awq_read, hf_bnb_read, hf_ct_read, hf_fp8_read, hf_mxfp4_read;

/* Replace the stored parts in s->tensors by the weights that they make, as s->quant (not NULL)
 * says. LQ_EUNSUPPORTED: a layout that is not read; LQ_EFORMAT, LQ_ESHAPE, LQ_EVALUE: a tensor is
 * missing or not what the layout says. */
lq_status hf_quant_read(src_source *s, lq_err *err);

/* ---- for readers ---- */
/* The name before `suffix`, cut from tensor i's, in the arena; NULL: another suffix, or taken. */
const char *hf_module(hf_quant *h, size_t i, const char *suffix);
/* Stored tensor MODULE + suffix, now used. *t = NULL: there is none (`required`: LQ_EFORMAT). Its
 * dtype must be one of `types` (ends with -1) and it has n_dims dims (-1: any). */
lq_status hf_take(hf_quant *h, const char *module, const char *suffix, bool required,
                  const int *types, int n_dims, const src_tensor **t, lq_err *err);
/* LQ_ESHAPE unless t is [rows, cols] (cols -1: a vector). */
lq_status hf_expect(const src_tensor *t, int64_t rows, int64_t cols, lq_err *err);
/* A weight MODULE + suffix of shape [N,K]: q has scheme, N, K, and the planes that are views. */
lq_status hf_make(hf_quant *h, const char *module, const char *suffix, const qt_tensor *q,
                  src_fill_fn *fill, const void *from, size_t from_bytes, lq_err *err);
/* f32 scales [n] from f32, f16 or bf16: a view where they are f32, else q->plane is left alone. */
void hf_view_f32(qt_tensor *q, qt_plane p, const src_tensor *t);
/* The group of each input: s->act_order unless it is k / s->group. Negative groups count from the
 * end. LQ_EVALUE, LQ_EUNSUPPORTED: beyond the last; not s->group inputs in each. */
lq_status hf_order(qt_scheme *s, const src_tensor *g_idx, int64_t K, lq_err *err);
void hf_fill_order(void *gidx, const qt_tensor *t, const uint8_t *stored);
/* -1 (all inputs) or above 0; as it was where q has no such key. LQ_EVALUE. */
lq_status hf_group_size(const cJSON *q, const char *key, int64_t *group, lq_err *err);
/* The one number of a tensor of one float, above 0 and finite. */
lq_status hf_one_float(float *v, const src_tensor *t, lq_err *err);
/* Does Python's re.match(pattern, name) match? LQ_EVALUE: no such pattern. */
lq_status hf_matches(bool *yes, const char *pattern, const char *name, lq_err *err);

static const int HF_FLOATS[] = { LQ_F32, LQ_F16, LQ_BF16, -1 };

static inline uint32_t hf_word(const uint8_t *p, int64_t i)
{
    uint32_t w;
    memcpy(&w, p + 4 * i, sizeof w);
    return w;
}

#endif
