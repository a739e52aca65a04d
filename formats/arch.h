/* formats/arch.h - architectures as data: one row each, and the numbers of one model.
 *
 * A row says how the one transformer (runtime/forward.h) is wired and how the checkpoint names its
 * tensors; a config holds the numbers, read from config.json once and checked there. Adding a model
 * is a row in formats/arch_rows.c, a golden fixture and a test (docs/first-change.md).
 *
 * One layer, in the order of the fields below:
 *   h = norm1(x); q,k,v = h Wq, h Wk, h Wv (+ biases); q,k = qk-norm; rotate; a = attention Wo
 *   x += a * residual_scale; h = norm2(x); x += mlp(h) * residual_scale
 * ("parallel": both read norm1(x); "post norms": each branch's output is normed before it is
 * added). */
#ifndef LLMQ_FORMATS_ARCH_H
#define LLMQ_FORMATS_ARCH_H

#include "formats/base.h"

typedef struct cJSON cJSON;

typedef enum { NORM_RMS, NORM_LAYER } arch_norm;
typedef enum { POS_ROPE, POS_ALIBI, POS_LEARNED, POS_SINUSOIDAL, POS_NONE } arch_pos;
typedef enum { ROPE_PLAIN, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_LLAMA3, ROPE_YARN } arch_rope_kind;
typedef enum { MLP_GATED, MLP_PLAIN } arch_mlp;
typedef enum {
    ARCH_SILU,
    ARCH_GELU,
    ARCH_GELU_TANH,
    ARCH_RELU
} arch_act; /* same order as k_act_fn */

/* What a tensor is for. LINEAR roles are the ones that quantizers work on. X(name, text, linear) */
#define ARCH_ROLES(X)                \
    X(R_EMBED, "embed", 0)           \
    X(R_FINAL_NORM, "final_norm", 0) \
    X(R_HEAD, "lm_head", 1)          \
    X(R_ATTN_NORM, "attn_norm", 0)   \
    X(R_Q, "q", 1)                   \
    X(R_K, "k", 1)                   \
    X(R_V, "v", 1)                   \
    X(R_O, "o", 1)                   \
    X(R_Q_NORM, "q_norm", 0)         \
    X(R_K_NORM, "k_norm", 0)         \
    X(R_MLP_NORM, "mlp_norm", 0)     \
    X(R_GATE, "gate", 1)             \
    X(R_UP, "up", 1)                 \
    X(R_DOWN, "down", 1)

typedef enum {
#define X(name, text, linear) name,
    ARCH_ROLES(X)
#undef X
        ARCH_N_ROLES
} arch_role;

const char *arch_role_text(arch_role r);
bool arch_role_linear(arch_role r);
bool arch_role_per_layer(arch_role r); /* from R_ATTN_NORM on */

/* The tensor of a role: "model.layers.%d.self_attn.q_proj" + ".weight", and ".bias" when there is
 * one. */
typedef struct {
    arch_role role;
    const char *name; /* without ".weight"; "%d" is the layer */
    bool optional;    /* may be absent (R_HEAD of tied models) */
} arch_name;

typedef struct {
    const char *arch;       /* "LlamaForCausalLM" */
    const char *model_type; /* "llama" */
    arch_norm norm;
    float norm_offset; /* 1 for Gemma's (1 + w) */
    arch_pos pos;
    bool rope_half; /* rotate pairs (i, i + R/2); else neighbours */
    arch_mlp mlp;
    bool qk_norm;           /* RMS norm of each head of q and k before the rotation */
    const arch_name *names; /* ends with role ARCH_N_ROLES */
} arch_row;

typedef struct {
    arch_rope_kind kind;
    double factor, low_freq, high_freq; /* linear, llama3 */
    double beta_fast, beta_slow;        /* yarn */
    double attention_factor; /* yarn: multiplies cos and sin; computed when the file has none */
    int64_t original_max;    /* llama3, yarn, dynamic */
    bool truncate;           /* yarn: whole correction dims (default) */
} arch_rope;

typedef struct {
    const arch_row *row;
    int64_t vocab, hidden, layers, heads, kv_heads, head_dim, ffn;
    int64_t max_pos;
    double norm_eps;
    arch_act act;
    double rope_theta;
    int64_t rope_dims; /* rotated dims of a head */
    arch_rope rope;
    int64_t window;      /* sliding window; 0: none */
    bool *layer_window;  /* [layers] which layers use it; owned by the config */
    double attn_scale;   /* on q k^T */
    bool tied;           /* head = embedding */
    int32_t bos, eos[8]; /* -1: none */
    int n_eos;
    lq_dtype dtype; /* torch_dtype / dtype of the checkpoint */
} arch_config;

const arch_row *arch_find(const char *arch); /* by "architectures" entry; NULL */
void arch_list(char *out, size_t n);         /* "LlamaForCausalLM, ..." for messages */
/* config.json -> config, everything range-checked (sizes, divisibility, heads). generation may be
 * NULL (generation_config.json: eos ids are joined). Unknown architecture: LQ_EUNSUPPORTED names it
 * and lists the known. */
lq_status arch_config_parse(arch_config *c, const cJSON *config, const cJSON *generation,
                            lq_err *err);
void arch_config_free(arch_config *c);
/* Our own spelling of a config, for .llmq: every field, canonical; and back (checked again). */
cJSON *arch_config_json(const arch_config *c);
lq_status arch_config_from_json(arch_config *c, const cJSON *j, lq_err *err);
/* Name of a role's tensor ("model.layers.3.self_attn.q_proj.weight"); suffix "weight" or "bias".
 * False when the row has no such role. */
bool arch_tensor_name(const arch_config *c, arch_role r, int64_t layer, const char *suffix,
                      char *out, size_t n);
/* The role and layer of a tensor name, the inverse; false: none of this row's. layer = -1 outside
 * layers. */
bool arch_role_of(const arch_config *c, const char *name, arch_role *r, int64_t *layer,
                  bool *is_bias);
/* Shape [N,K] that a linear role must have (embed: [vocab, hidden]; norms: N = 1, K = length). */
void arch_role_shape(const arch_config *c, arch_role r, int64_t *N, int64_t *K);
/* cos and sin for positions pos0..pos0+T-1: [T, rope_dims/2] each. seq_len: for dynamic NTK, else
 * ignored. */
void arch_rope_table(const arch_config *c, int64_t pos0, int64_t T, int64_t seq_len, float *cos,
                     float *sin);

#endif
