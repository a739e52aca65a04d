/* formats/source/adapter_impl.h - what a container of adapters fills in; only adapter*.c include it. */
#ifndef LLMQ_FORMATS_SOURCE_ADAPTER_IMPL_H
#define LLMQ_FORMATS_SOURCE_ADAPTER_IMPL_H

#include "formats/gguf/gguf_names.h"
#include "formats/source/adapter.h"

/* A tensor of the file. data NULL: not there. */
typedef enum { ADP_A, ADP_B, ADP_MAGNITUDE, ADP_N_PIECES } adp_which;
typedef struct {
    const char *name;
    lq_dtype dtype;
    int n_dims;
    int64_t shape[LQ_MAX_DIMS];
    const void *data; /* may be unaligned */
} adp_piece;
typedef struct {
    arch_slot slot;
    const char *module; /* as the file names it */
    adp_piece piece[ADP_N_PIECES];
} adp_raw;

typedef struct adp_reading adp_reading;
struct adp_reading {
    const src_source *base;
    const gguf_arch *order; /* rows of B are as GGUF has them; NULL: as ours */
    adp_raw *raw;           /* [n], room for cap: tensors of the file */
    size_t n, cap;
    /* A part's scale; rank: of A. LQ_ESHAPE: another rank was expected. */
    lq_status (*scale)(float *scale, const void *user, const adp_raw *raw, int64_t rank,
                       lq_err *err);
    const void *user;
};

/* One more tensor. LQ_EFORMAT: it was there already. */
lq_status adp_put(adp_reading *r, const arch_slot *slot, const char *module, adp_which which,
                  const adp_piece *p, lq_err *err);
/* All tensors are put: checked and copied into a. */
lq_status adp_finish(adp_adapter *a, const adp_reading *r, lq_err *err);
/* LQ_EUNSUPPORTED: the model has no linear of this name. */
lq_status adp_no_target(const src_source *base, const char *tensor, lq_err *err);

lq_status adp_open_peft(adp_adapter *a, const char *folder, const src_source *base, lq_err *err);
lq_status adp_open_gguf(adp_adapter *a, const char *file, const src_source *base, lq_err *err);

#endif
