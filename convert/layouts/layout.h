/* convert/layouts/layout.h - published quantized layouts of a Hugging Face folder, as they are written.
 *
 * A layout stores one weight as several tensors ("....q_proj.qweight", ".scales", ...) and says in
 * quantization_config how to read them. It is a row of the table in layouts.c and a file
 * convert/layouts/layout_NAME.c; its reader is formats/source/hf_NAME.c, and what it writes is read back to the
 * same scheme, codes and scales. For convert/ only. */
#ifndef LLMQ_CONVERT_LAYOUT_H
#define LLMQ_CONVERT_LAYOUT_H

#include "base/json.h"
#include "convert/convert.h"

enum { CONV_PARTS = 6 };

/* A tensor of the result. */
typedef struct {
    const char *suffix; /* after the module's name */
    lq_dtype dtype;
    int n_dims;
    int64_t shape[2];
} conv_part;

typedef struct {
    const src_tensor *t; /* where it comes from */
    const char *module;  /* its name without ".weight"; quantized weights and dense linears */
    arch_slot slot;
    bool linear;      /* a matrix of a linear layer, or the head */
    bool matrix;      /* another of the model: the embedding, a router */
    bool model;       /* its slot is of the model's own */
    bool mtp;         /* it is the MTP head's */
    bool foreign;     /* a matrix of a part that is carried along: a tower, a projector */
    bool quantized;   /* stored in parts of the layout; else whole, as floats or raw bytes */
    bool requantized; /* its values are to be chosen again, in `scheme` */
    qt_scheme scheme; /* quantized: what is packed */
    int64_t N, K;
    lq_dtype dtype; /* not quantized: of the result */
    int n_parts;
    conv_part parts[CONV_PARTS];
    size_t bytes; /* of all parts */
    int shard;
    /* Where the layout has experts as stacks, one tensor [stack, rows, cols] for each part. */
    int64_t stack;  /* experts of it; 0: it is no part of one */
    int64_t expert; /* which of them this is; -1: all, one after another */
    const char *up; /* rows of each expert: gate's, then those of this module; NULL: of one alone */
    bool mixed;     /* ... and alternate: gate, up, gate, up */
    /* Of floats: added to each (norms of 1 + w); taps come before the dim of 1; not written at all */
    float add;
    bool taps_first, left_out;
    size_t of; /* the first weight of the stack, of which its tensors are listed; else itself */
    size_t at; /* its first tensor among those of its file */
} conv_weight;

typedef struct {
    const src_source *src;
    const arch_config
        *config; /* NULL: of no known architecture (convert/model_free/model_free.h) */
    conv_weight *w;
    size_t n;
    int variant;   /* of the layout: begins as its row says */
    int64_t group; /* one_group: of all weights; 0: as each has it */
    int bits;      /* one_width: what weights of other bits are rounded to; 0: none is */
    char note[256];
} conv_plan;

typedef struct {
    const char *name; /* --to */
    int variant;
    int rank; /* 1: what vLLM and SGLang are given first, where it holds the model; none twice */
    int least_bits;     /* of the uint weights that they read; 0: any */
    bool one_group;     /* all weights have groups of one size (or each its whole rows) */
    bool one_width;     /* all weights have 4 bits, or all 8 */
    bool zero_from_one; /* zero points are stored less one: the least is 1 */
    bool matrices;      /* those that are no linears have a place too: the embedding, routers */
    /* Fill w->parts from w->scheme, N, K. LQ_EUNSUPPORTED: the layout has no place for the scheme;
     * LQ_ESHAPE: nor for the shape; err says why. */
    lq_status (*plan)(conv_weight *w, const conv_plan *p, lq_err *err);
    /* What the layout has otherwise than the architecture: of an expert, or a stack of them (biases too) stack, expert,
     * module, up, mixed; of others module, add, taps_first, left_out; names in `a`. NULL: nothing. LQ_EUNSUPPORTED:
     * it has no place; LQ_ENOMEM. */
    lq_status (*place)(conv_weight *w, const conv_plan *p, lq_arena *a, lq_err *err);
    /* The scheme to round to where `from` has no place. */
    qt_scheme (*instead)(const qt_scheme *from, int64_t K);
    /* quantization_config into q. LQ_EUNSUPPORTED: these weights have no place next to each other.
     */
    lq_status (*config)(cJSON *q, conv_plan *p, lq_err *err);
    /* dst[i]: zeroed bytes of part i. LQ_EUNSUPPORTED: a value has no place. */
    lq_status (*pack)(uint8_t *const dst[CONV_PARTS], const conv_weight *w, const qt_tensor *q,
                      const conv_plan *p, lq_err *err);
    const char *file; /* quantization_config once more, as older loaders look for it; or NULL */
    const char *key;  /* of config.json: the same once more under this name; or NULL */
} conv_layout;

const conv_layout *conv_layout_find(const char *name); /* NULL */
extern const conv_layout conv_gptq, conv_gptq_v2, conv_awq, conv_ct, conv_fp8, conv_bnb, conv_mlx;

/* conv_layout.place of mlx (mlx_places.c). */
lq_status mlx_place(conv_weight *w, const conv_plan *p, lq_arena *a, lq_err *err);

/* ---- shared by layouts (layout.c) ---- */
/* One more part; dims of -1 are not there: 2 dims, 1, or none. */
void layout_part(conv_weight *w, const char *suffix, lq_dtype d, int64_t rows, int64_t cols);
/* Codes with a scale and a whole zero point per group: what gptq, awq and compressed-tensors store.
 * LQ_EUNSUPPORTED names what else the scheme has. */
lq_status layout_is_uint(const qt_scheme *s, const char *layout, lq_err *err);
/* Scales in 16 bits: what gptq and awq store. */
lq_status layout_half_scales(const qt_scheme *s, const char *layout, lq_err *err);
lq_status layout_no_act(const qt_scheme *s, const char *layout, lq_err *err);
lq_status layout_multiples(const conv_weight *w, int64_t N, int64_t K, lq_err *err);
/* u4 or u8 (as many bits as `from` has, dense: 4) with the largest common group that divides K. */
qt_scheme layout_round_uint(const qt_scheme *from, int64_t K);
/* q (QT_UINT without act-order) in groups of `group`, of which each of its own is a whole number: the
 * same codes, scales and zero points for each part. Planes in `a`. LQ_ENOMEM. */
lq_status layout_split(qt_tensor *out, const qt_tensor *q, int64_t group, lq_arena *a, lq_err *err);
/* Zero point of row n, group g: whole, 0..2^bits or so; 2^(bits-1) where none is stored. */
unsigned layout_zero(const qt_tensor *q, int64_t n, int64_t g);
/* dst [cols, rows] = src [rows, cols]^T, elements of `size` bytes (2 or 4), block by block. */
void layout_transpose(void *dst, const void *src, int64_t rows, int64_t cols, size_t size);
/* Does a module stay as it is although it is a linear (the head apart)? Their names, as an array.
 */
bool layout_is_kept(const conv_weight *w);
cJSON *layout_kept(const conv_plan *p);
/* Every group is all inputs of its weight, and weights differ in how many they have. */
bool layout_by_row(const conv_plan *p);
bool layout_has_head(const conv_plan *p); /* the head is quantized */
/* It is not, and has a name ("lm_head"), for lists of what stays. */
bool layout_head_is_kept(const conv_plan *p, char *module, size_t n);
/* "^model\.layers\.0\.mlp\.up_proj$" after `before`. */
void layout_pattern(char *out, size_t n, const char *before, const char *module);

#endif
