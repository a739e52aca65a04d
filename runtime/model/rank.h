/* runtime/model/rank.h - what each of several devices has of a model (tensor parallelism).
 *
 *              outputs (rows)               inputs       the whole output
 *   q, k, v    its heads, its KV heads      all
 *   o          all                          its heads    the sum over all ranks
 *   gate, up   its part of the width        all
 *   down       all                          its part     the sum over all ranks
 *   of a state what its heads have          all
 *   mix_out    all                          its heads    the sum over all ranks
 *   head       its part of the vocabulary   all          the parts side by side
 *
 * gate, up and down are the MLP's, the shared MLP's and each expert's. Each rank's keys, values and states
 * are of its own heads, whose gates it has. Norms, the embedding, routers, the small projections of latent attention
 * and what comes before the head are whole on every rank, and so is x: after each sum all ranks
 * hold the same bytes, so that all choose the same experts. Inputs are cut between groups of the
 * weights' scales alone (formats/tensor/tiles.h): no code is changed. */
#ifndef LLMQ_RUNTIME_MODEL_RANK_H
#define LLMQ_RUNTIME_MODEL_RANK_H

#include "formats/arch/arch.h"
#include "formats/tensor/tiles.h"

/* LQ_EUNSUPPORTED: heads, KV heads, those of a state or a width are no multiple of `ranks`; or what is not divided
 * yet (a layer norm of all heads together), by name. */
lq_status rank_check(const arch_config *c, int ranks, lq_err *err);
/* KV heads of each of several devices; of more devices than KV heads, several have the same one. */
static inline int64_t rank_kv_heads(const arch_config *c, int ranks)
{
    return c->kv_heads % ranks ? 1 : c->kv_heads / ranks;
}
/* The config of each rank: its heads, KV heads, widths and those of a state, of each size that layers have. Borrows
 * from c and a. LQ_ENOMEM. */
lq_status rank_config(arch_config *own, const arch_config *c, int ranks, lq_arena *a, lq_err *err);

enum { RANK_RANGES = 5 };
typedef struct {
    tile_rows rows[RANK_RANGES];
    int n;
    int64_t k0, k1; /* inputs */
    bool bias;      /* of a sum's parts the first rank's has it */
} rank_part;
/* Of a role's matrix the part of one rank; false: it has all of it. c: that of the layer. */
bool rank_part_of(rank_part *p, const arch_config *c, arch_role r, int rank, int ranks);
/* Of a vector whose numbers are no single run of the whole's their ranges (of R_MIX_CONV channels, which all taps have);
 * false: they are. */
bool rank_vector_part(rank_part *p, const arch_config *c, arch_role r, int rank, int ranks);
/* Part `rank` of n things in order, the first of it. */
static inline int64_t rank_begin(int64_t n, int rank, int ranks) { return n * rank / ranks; }

#endif
