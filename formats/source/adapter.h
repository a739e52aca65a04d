/* formats/source/adapter.h - a LoRA or DoRA adapter: low-rank changes of a model's linears.
 *
 *     LoRA  W + scale B A                                     A [rank, K], B [N, rank]
 *     DoRA  the same, each row n scaled to the length magnitude[n]
 *
 * Two containers: PEFT's folder (adapter_config.json, adapter_model.safetensors) and llama.cpp's
 * GGUF file (general.type "adapter"). Both are read against the model that they are for: names
 * become its roles, rows of B its order. What an adapter has besides (changed biases, whole
 * modules, embeddings) is refused by name.
 *
 * Source: arXiv:2106.09685, arXiv:2402.09353 (DoRA), arXiv:2312.03732 (rsLoRA); peft 0.21,
 * llama.cpp's convert_lora_to_gguf.py of 2026-08. */
#ifndef LLMQ_FORMATS_SOURCE_ADAPTER_H
#define LLMQ_FORMATS_SOURCE_ADAPTER_H

#include "formats/source/source.h"

enum { ADP_MAX_RANK = 4096 };

/* The change of one linear. */
typedef struct {
    arch_slot slot;
    const char *name;       /* of the weight, as the model has it */
    int64_t rank, N, K;     /* N outputs, K inputs: of the model's role */
    lq_dtype dtype;         /* of a and b: f32, f16 or bf16, as in the file */
    const void *a, *b;      /* [rank, K], [N, rank] */
    float scale;            /* alpha / rank, of rsLoRA alpha / sqrt(rank) */
    const float *magnitude; /* [N] of DoRA; NULL: LoRA */
} adp_part;

typedef struct {
    adp_part *parts; /* by layer, role and expert */
    size_t n;
    int64_t rank; /* the largest */
    bool dora;    /* a part has a magnitude */
    uint64_t id;  /* hash of all that changes an answer; never 0 */
    lq_arena arena;
} adp_adapter;

/* Everything is copied: no file stays open. Errors name the path, and the tensor or the key of
 * adapter_config.json: LQ_ENOENT, LQ_EFORMAT, LQ_ESHAPE (wrong shape, a half that is missing), LQ_EVALUE
 * (NaN or infinity), LQ_EUNSUPPORTED, LQ_ENOMEM. After an error a is closed. */
lq_status adp_open(adp_adapter *a, const char *path, const src_source *base, lq_err *err);
void adp_close(adp_adapter *a); /* a zeroed one too */

/* `base` with the adapter's changes in its weights, each in the type that it has there, rounded once
 * from f32, or left so. base and a stay as they are until the source is closed. Errors: LQ_EUNSUPPORTED: a weight
 * that changes has codes, or is no tensor of its own; LQ_ENOMEM. */
lq_status src_merge(src_source **out, const src_source *base, const adp_adapter *a, bool f32,
                    lq_err *err);

#endif
