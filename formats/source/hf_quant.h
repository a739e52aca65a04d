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

/* How inputs of E4M3 weights are rounded: not; by token, or by block of inputs where scales are so;
 * by the stored scale; or as what is stored suggests (ModelOpt): a stored scale of inputs is used, beside
 * a scale for each output inputs are rounded by token. */
typedef enum { HF_INPUTS_PLAIN, HF_INPUTS_DYNAMIC, HF_INPUTS_STATIC, HF_INPUTS_STORED } hf_inputs;

/* What a config says of E4M3 weights; 0 rows: no blocks. */
typedef struct {
    int64_t rows, cols;
    hf_inputs inputs;
} hf_fp8;

typedef struct {
    src_source *s;
    const cJSON *q; /* quantization_config */
    hf_fp8 fp8;
    bool fp4_inputs;    /* inputs of E2M1 weights are rounded too, says the config */
    const char *format; /* "gptq_v2" where another key than checkpoint_format says so; or NULL */
    bool *used;         /* [s->n_tensors] taken by a weight */
    src_tensor *made;   /* weights made so far, of room for so many */
    size_t n_made, room;
    qt_span taken[8]; /* bytes of the parts of the next weight; more are not counted */
    size_t n_taken;
    bool no_memory; /* a name could not be made: whatever was read is incomplete */
} hf_quant;

typedef lq_status hf_reader(hf_quant *h, lq_err *err);
hf_reader hf_gptq_read, hf_awq_read, hf_bnb_read, hf_ct_read, hf_fp8_read, hf_fbgemm_read;
hf_reader hf_mxfp4_read, hf_autoround_read, hf_modelopt_read, hf_quark_read, hf_bitnet_read;
hf_reader hf_mlx_read, hf_torchao_read;

/* Replace the stored parts in s->tensors by the weights that they make, as s->quant says (NULL: nothing, or as
 * mlx-lm stores what is not quantized). LQ_EUNSUPPORTED: a layout that is not read; LQ_EFORMAT, LQ_ESHAPE, LQ_EVALUE: a tensor is
 * missing or not what the layout says. */
lq_status hf_quant_read(src_source *s, lq_err *err);
/* Has the folder what mlx-lm alone makes of its tensors, quantized or not? */
bool hf_is_mlx(src_source *s);

/* ---- weights by what is stored, in files of any method ---- */
bool hf_fp8_scaled(const hf_quant *h, const char *module);           /* has it a scale? */
lq_status hf_fp4_make(hf_quant *h, const char *module, lq_err *err); /* of E2M1 codes */
/* Every weight of these codes that is not taken yet; of E4M3 as h->fp8 says. */
hf_reader hf_fp8_all, hf_fp4_all;

/* ---- for readers ---- */
/* The name before `suffix`, cut from tensor i's, in the arena; NULL: another suffix, or taken. */
const char *hf_module(hf_quant *h, size_t i, const char *suffix);
/* Stored tensor MODULE + suffix, now used. *t = NULL: there is none (`required`: LQ_EFORMAT). Its
 * dtype must be one of `types` (ends with -1) and it has n_dims dims (-1: any). */
lq_status hf_take(hf_quant *h, const char *module, const char *suffix, bool required,
                  const int *types, int n_dims, const src_tensor **t, lq_err *err);
/* The same without taking it. NULL: there is none. */
const src_tensor *hf_stored(const hf_quant *h, const char *module, const char *suffix);
/* LQ_ESHAPE unless t is [rows, cols] (cols -1: a vector). */
lq_status hf_expect(const src_tensor *t, int64_t rows, int64_t cols, lq_err *err);
/* A weight MODULE + suffix of shape [N,K]: q has scheme, N, K, and the planes that are views. */
lq_status hf_make(hf_quant *h, const char *module, const char *suffix, const qt_tensor *q,
                  src_fill_fn *fill, const void *from, size_t from_bytes, lq_err *err);
/* Stored scale i of a float type, or of E8M0 (also as U8). */
float hf_scale(const uint8_t *scales, lq_dtype d, size_t i);
/* f32 scales [n] from f32, f16 or bf16: a view where they are f32, else q->plane is left alone. */
void hf_view_f32(qt_tensor *q, qt_plane p, const src_tensor *t);
/* Groups of `group` inputs, the last with those that are left: the largest size of which each is a
 * whole number. What a stored group has holds for each part of it. */
int64_t hf_even_group(int64_t K, int64_t group);
/* The stored group of part g. */
static inline int64_t hf_group_at(int64_t g, int64_t even, int64_t group)
{
    return g * even / group;
}
/* The group of each input, stored for groups of `group`: q->scheme.act_order unless it is k / group;
 * GIDX is then made, in parts of q->scheme.group. Negative groups count from the end. LQ_EVALUE,
 * LQ_EUNSUPPORTED: beyond the last; not `group` inputs in each but the last. */
lq_status hf_order(hf_quant *h, qt_tensor *q, const src_tensor *g_idx, int64_t group, lq_err *err);
/* -1 (all inputs) or above 0; as it was where q has no such key. LQ_EVALUE. */
lq_status hf_group_size(const cJSON *q, const char *key, int64_t *group, lq_err *err);
/* [R,C] or "RxC"; 0, 0 where q has no such key. LQ_EVALUE. */
lq_status hf_block_size(const cJSON *q, const char *key, int64_t *rows, int64_t *cols, lq_err *err);
/* AutoRound's rule for a module: the object of extra_config of that name, or of the first pattern
 * that is found in it; NULL: none. LQ_EVALUE. */
lq_status hf_extra(const cJSON **rule, const hf_quant *h, const char *module, lq_err *err);
/* A scheme of the cache, which is not applied. */
lq_status hf_note_cache(hf_quant *h, const char *key, lq_err *err);
/* Inputs that a file wants rounded, and are not. */
lq_status hf_note_weight_only(hf_quant *h, const char *what, lq_err *err);
/* The one number of a tensor of one float, above 0 and finite. */
lq_status hf_one_float(float *v, const src_tensor *t, lq_err *err);
/* Does Python's re.match(pattern, name) match; `anywhere`: re.search? LQ_EVALUE: no such pattern. */
lq_status hf_matches(bool *yes, const char *pattern, const char *name, bool anywhere, lq_err *err);

static const int HF_FLOATS[] = { LQ_F32, LQ_F16, LQ_BF16, -1 };

static inline uint32_t hf_word(const uint8_t *p, int64_t i)
{
    uint32_t w;
    memcpy(&w, p + 4 * i, sizeof w);
    return w;
}

#endif
