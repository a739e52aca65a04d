/* runtime/model/lora.h - an adapter (formats/source/adapter.h) ready to run beside a model's weights,
 * whatever scheme they have:
 *
 *     y += scale B (A x)                         LoRA
 *     y += (g - 1) (W x) + g scale B (A x)       DoRA: g = magnitude / length of each row of W + scale B A
 *
 * A and B have the file's type (f32, f16, bf16). g is made of W as the model has it, dequantized. Of
 * layers that are on devices they are there, of several devices each has the part that goes with its
 * weights (rank.h). Of a model that several processes share each has B's rows and gains for the outputs
 * that it has (part.h), and rank 0 the whole adapter too, for the others. */
#ifndef LLMQ_RUNTIME_MODEL_LORA_H
#define LLMQ_RUNTIME_MODEL_LORA_H

#include "formats/source/adapter.h"
#include "runtime/model/model.h"

typedef struct {
    mm_weight a, b; /* [rank, K], [N, rank] */
    int64_t rank;
    float scale;
    const float *gain; /* g [N] of DoRA; NULL: LoRA */
} lora_part;

/* What an adapter has on one device (lora_dev.c). */
typedef struct {
    const dev_lora_part *parts; /* there: [layers * LORA_SLOTS], lora_slot */
    void *mem;
} lora_on;

typedef struct {
    const lora_part *
        *at;   /* [layers * ARCH_N_ROLES], NULL where a linear stays as it is, or is on a device:
                     lora_find */
    bool dora; /* a part has a gain */
    lora_on on[DEV_RANKS];
    const dev_ops *ops; /* of those; NULL: there are none */
    int index, ranks;   /* the first device, and how many from it on */
    uint64_t id;        /* of its contents (adp_adapter.id), for the KV cache; not 0 */
    int64_t rank;       /* the largest */
    size_t bytes;       /* of memory, the host's and the devices' */
    uint8_t *wire;      /* [n_wire] lora_wire.h, on rank 0 of several; else NULL */
    size_t n_wire;
    lq_arena arena;
    atomic_int users; /* lora_ref */
} lora_adapter;

/* Reads `path` for m, whose source is open; *out has one user. Any thread, also while others work with m.
 * max_rank: of those that m's passes have room for (fwd_opts.lora_rank); 0: any. Errors: those of
 * adp_open; LQ_EUNSUPPORTED names a linear that is changed in merged weights alone (experts, MLA's and
 * those of a state, the head); LQ_EVALUE: a larger rank; LQ_ENOMEM; LQ_EDEVICE. */
lq_status lora_open(lora_adapter **out, const model *m, const char *path, int64_t max_rank, pool *p,
                    lq_err *err);
/* The same of one that is open, which may be closed afterwards. */
lq_status lora_make(lora_adapter **out, const model *m, const adp_adapter *a, int64_t max_rank,
                    pool *p, lq_err *err);
/* Any thread. The last unref frees it: no step that uses it is under way. NULL allowed. */
lora_adapter *lora_ref(lora_adapter *l);
void lora_unref(lora_adapter *l);
static inline const lora_part *lora_find(const lora_adapter *l, int64_t layer, arch_role r)
{
    return l->at[layer * ARCH_N_ROLES + r];
}

/* Roles that an adapter may change, as a device counts them; LORA_SLOTS: none of them. */
enum { LORA_SLOTS = 10 };
int lora_slot(arch_role r);

/* For lora.c: puts the parts of the devices' layers there, gains [a->n] being NULL where there is none;
 * and takes them away. */
lq_status lora_put(lora_adapter *l, const model *m, const adp_adapter *a, const float *const *gains,
                   lq_err *err);
void lora_take_back(lora_adapter *l);

#endif
