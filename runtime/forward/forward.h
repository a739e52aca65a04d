/* runtime/forward/forward.h - one pass of the one transformer over a ragged batch.
 *
 * A batch is any mix of prefill chunks and decode tokens of several sequences; each weight is read
 * once for all of it. The result for a token depends on its sequence's ids alone: not on the batch,
 * the chunks, the block size or the number of threads (docs/design/0002-determinism.md). Of a model
 * whose rows see both ways (arch_wiring.both_ways) an item is a whole sequence. */
#ifndef LLMQ_RUNTIME_FORWARD_FORWARD_H
#define LLMQ_RUNTIME_FORWARD_FORWARD_H

#include "runtime/model/kv.h"
#include "runtime/model/lora.h"
#include "runtime/model/model.h"
#include "runtime/model/offload.h"

typedef struct {
    kv_seq *seq;        /* blocks reserved for pos0 + n positions */
    const int32_t *ids; /* n new ids */
    int64_t n;
    int64_t pos0; /* positions already in the cache */
    int64_t
        logits_from; /* logits for rows logits_from..n-1 of this item (n: none; n - 1: the last) */
    /* Of an MTP head: [n, hidden], the model's states that the ids follow; of an EAGLE-3 draft
     * [n, 3 * target_hidden], or with given_own its own [n, hidden] (fwd_residual), of all items alike */
    const float *given;
    bool given_own;
    int64_t n_first; /* positions from here on are of the second type (R_TYPE_EMBED); 0: none */
    int64_t seq_len; /* dynamic NTK: rows at positions below it take the angles of this length,
                        each later row those of its own position + 1; 0: pos0 + n */
    const lora_adapter *lora; /* of this sequence, which stays; NULL: none. On the CPU */
    const kv_run *run; /* of a process that follows: what kv_run_begin made on rank 0; else NULL */
} fwd_item;

typedef struct fwd_ctx
    fwd_ctx; /* scratch sized once for max_rows tokens and max_logits rows; no allocation after */
typedef struct {
    mm_acts acts; /* on a device MM_I8 is MM_BF16 unless model_share.int8 */
    int64_t max_rows, max_logits, max_seqs;
    int64_t max_len; /* positions of a sequence; 0: what the cache holds */
    int ranks;       /* for fwd_dev_bytes: devices that share the model; 0: one */
    bool all_hidden; /* hidden states of all rows are wanted (fwd_all_hidden); on the CPU */
    int64_t
        inputs[3]; /* with n_inputs: not those, but the states before these layers, side by side */
    int n_inputs;  /* 0 or 3 */
    int64_t lora_rank; /* the largest of any adapter; 0: there are none */
} fwd_opts;
/* m and kv are both on the CPU or on one device. */
lq_status fwd_open(fwd_ctx **f, const model *m, kv_cache *kv, pool *p, const fwd_opts *o,
                   lq_err *err);
void fwd_close(fwd_ctx *f);
size_t fwd_bytes(const arch_config *c, const fwd_opts *o, int threads);
/* What it takes besides where several processes share the model, of which c is all. */
size_t fwd_parts_bytes(const arch_config *c, const fwd_opts *o);
/* What a pass takes on a device at most; of k only dtype and block_size are looked at. o->max_len
 * is not 0. */
size_t fwd_dev_bytes(const arch_config *c, const kv_opts *k, const fwd_opts *o);

/* Runs the items; logits: the rows asked for, item after item, [rows, vocab], valid until the next
 * call. */
lq_status fwd_step(fwd_ctx *f, const fwd_item *items, int n_items, const float **logits,
                   lq_err *err);

/* Whether tokens can be drawn where the logits are: on a device. */
bool fwd_draws(const fwd_ctx *f);
/* Whether the CPU has layers: else a step does not wake its threads, which would take the caller's time and
 * spin while the device works. */
bool fwd_on_cpu(const fwd_ctx *f);
/* Edits that the draws of a step may have together. */
int64_t fwd_draw_edits(const fwd_opts *o, int64_t vocab);
/* The same, and n draws from rows of the logits (rising), whose results are `drawn`. Their masks
 * (at most one for each item) and edits (fwd_draw_edits) are the host's. Neither the logits of
 * those rows nor their hidden states come to the host. */
lq_status fwd_step_draw(fwd_ctx *f, const fwd_item *items, int n_items, const dev_draw *draws,
                        int64_t n, const float **logits, const dev_drawn **drawn, lq_err *err);

/* Its two halves: between them a device works on the step, and the caller may do something else; items and
 * draws stay until the end. On the CPU all is done in the first. After an error of the first there is
 * no second. */
lq_status fwd_begin(fwd_ctx *f, const fwd_item *items, int n_items, const dev_draw *draws,
                    int64_t n, lq_err *err);
lq_status fwd_end(fwd_ctx *f, const float **logits, const dev_drawn **drawn, lq_err *err);

/* Of a model that several processes share: the others are there (they have nothing to do now). LQ_EDEVICE: one is gone,
 * and no step will run. Else nothing. */
lq_status fwd_alive(fwd_ctx *f, lq_err *err);
/* Bytes that this process has sent to the others so far. */
uint64_t fwd_sent(const fwd_ctx *f);

/* The hidden states of those logits, after the final norm: [rows, hidden], valid as long. */
const float *fwd_hidden(const fwd_ctx *f);
/* The same before the final norm, on the CPU. */
const float *fwd_residual(const fwd_ctx *f);
/* Of all rows of the step, item after item, after the final norm: [rows, hidden], or [rows, n_inputs *
 * hidden], with fwd_opts.all_hidden; valid until the next step. */
const float *fwd_all_hidden(const fwd_ctx *f);
/* Are they all that comes of a step, of any of its rows? Of a model without words on the CPU;
 * `logits` says of which rows. */
bool fwd_wordless(const model *m);

/* Layer by layer, for calibration: T rows of one or more whole windows without a cache. fwd_embed
 * makes x from ids [T], in fwd_layer's scratch. x [T, fwd_state] goes in and out: [T, hidden], and
 * behind it what else later layers read. Window w covers rows
 * w*window_len.. . The tap sees the input of each linear before it runs; of an expert the rows that
 * were sent to it (expert -1: no expert). offload: who does the products, with MM_F32 (its caller
 * drops weights that have changed); NULL: the CPU. Errors: LQ_ENOMEM (scratch), those of offload.
 */
typedef struct {
    void (*tap)(void *user, arch_role role, int64_t expert, const float *x, int64_t ldx, int64_t T,
                int64_t K);
    void *user;
    bool inputs_only; /* x is not read afterwards: the last product of a dense MLP is left out */
} fwd_tap;
lq_status fwd_embed(const model *m, float *x, const int32_t *ids, int64_t n_windows,
                    int64_t window_len, mm_acts acts, lq_arena *scratch, pool *p, lq_err *err);
lq_status fwd_layer(const arch_config *c, const model_layer *l, int64_t layer, float *x,
                    int64_t n_windows, int64_t window_len, mm_acts acts, const fwd_tap *tap,
                    fwd_offload *offload, lq_arena *scratch, pool *p, lq_err *err);
int64_t fwd_state(const arch_config *c); /* floats of a row that go from layer to layer */
size_t fwd_layer_scratch(const arch_config *c, int64_t T, int threads);

/* The same layer in stages, for those who change its linears on the way: each ends where the next
 * linears read. What they read is all that is kept besides x. */
typedef enum {
    FWD_AT_QKV,  /* q, k, v, or the fused one, or what a state's rows are made by: [T, hidden] */
    FWD_AT_Q_B,  /* of MLA: [T, the latent's width]; likewise: */
    FWD_AT_KV_B, /* [T, kv_lora] */
    FWD_AT_O,    /* o: attention's output, [T, arch_o_width]; or the state's, [T, arch_mix_width] */
    FWD_AT_MLP,  /* gate and up: [T, hidden] */
    FWD_AT_DOWN, /* down: activated, [T, ffn] */
    FWD_AT_END,  /* nothing */
    FWD_N_POINTS
} fwd_point;
/* Does it begin as such a sequence? Not where x is several streams or an MLP's router has a state. */
bool fwd_has_points(const arch_config *c, int64_t layer);
/* Of a layer that does: can it go on to FWD_AT_END? Not with experts, nor where both branches read one x: no point comes after
 * FWD_AT_O then; and with a state beside attention none after FWD_AT_QKV. */
bool fwd_points_to_end(const arch_config *c, int64_t layer);
/* Likewise: has it linears that read there? A layer may have no attention or state, or no MLP. Of FWD_AT_END: yes. */
bool fwd_has_point(const arch_config *c, int64_t layer, fwd_point at);
fwd_point fwd_first_point(const arch_config *c, int64_t layer);
fwd_point fwd_next_point(const arch_config *c, int64_t layer, fwd_point at); /* not of FWD_AT_END */
int64_t fwd_point_width(const arch_config *c, int64_t layer, fwd_point at);
/* What the outputs of the linear at FWD_AT_O or FWD_AT_DOWN are multiplied with before they join x; 0: a norm or the like is
 * between them. */
float fwd_join_scale(const arch_config *c, const model_layer *l, int64_t layer, fwd_point at);
/* From the point `from` to `at`, which is not before it; the layer has both; never from FWD_AT_Q_B or FWD_AT_KV_B. At FWD_AT_QKV and FWD_AT_MLP what linears read
 * follows from x [T, fwd_state]; at the others u holds it, [T, the width there]. u becomes what is read at `at`.
 * x is changed on the way from FWD_AT_O to the next point, and to FWD_AT_END. All stages together make fwd_layer's bits. */
lq_status fwd_layer_to(const arch_config *c, const model_layer *l, int64_t layer, fwd_point from,
                       fwd_point at, float *x, float *u, int64_t n_windows, int64_t window_len,
                       mm_acts acts, fwd_offload *offload, lq_arena *scratch, pool *p, lq_err *err);
/* logits [T, vocab] of T rows after the last layer. */
lq_status fwd_logits(const model *m, float *logits, float *x, int64_t T, mm_acts acts,
                     lq_arena *scratch, pool *p, lq_err *err);
size_t fwd_logits_scratch(const arch_config *c, int64_t T, int threads);

#endif
