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

/* Does a role's tensor come with a bias? ATTN and MLP: as attention_bias and mlp_bias say, and
 * where the config is silent, when the checkpoint has one. */
typedef enum { BIAS_NO, BIAS_YES, BIAS_ATTN, BIAS_MLP } arch_bias;

/* Which layers see a sliding window of `sliding_window` positions: none; all (unless layer_types
 * says); those that layer_types or max_window_layers names, if use_sliding_window. */
typedef enum { WINDOW_NONE, WINDOW_ALL, WINDOW_IF_USED } arch_window;

/* The tensor of a role: "model.layers.%d.self_attn.q_proj" + ".weight", and ".bias" when there is
 * one. */
typedef struct {
    arch_role role;
    const char *name; /* without ".weight"; "%d" is the layer */
    bool optional;    /* may be absent (R_HEAD of tied models) */
    arch_bias bias;
} arch_name;

/* How config.json spells the numbers. */
typedef struct {
    const char *vocab, *hidden, *layers, *heads, *kv_heads, *head_dim, *ffn, *max_pos, *norm_eps,
        *act;
} arch_keys;

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
    const arch_keys *keys;
    arch_window window;
    /* What transformers assumes where config.json is silent. */
    int64_t def_kv_heads; /* 0: as many as heads */
    int64_t def_head_dim; /* 0: hidden / heads */
    int64_t def_window;   /* 0: none */
    bool def_tied;
} arch_row;

typedef struct {
    arch_rope_kind kind;
    double factor;               /* all but plain */
    double low_freq, high_freq;  /* llama3 */
    double beta_fast, beta_slow; /* yarn */
    double attention_factor; /* multiplies cos and sin (1 but for yarn, computed when the file has
                                none) */
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
    int64_t window;     /* sliding window: a query sees this many positions, its own included; 0:
                           none */
    bool *layer_window; /* [layers] which layers use it, never NULL; owned by the config */
    double attn_scale;  /* on q k^T */
    bool tied;          /* head = embedding */
    int attn_bias, mlp_bias; /* 1, 0; -1: not said, see arch_bias */
    int32_t bos, eos[8];     /* -1: none */
    int n_eos;
    lq_dtype dtype; /* torch_dtype / dtype of the checkpoint */
} arch_config;

extern const arch_row arch_rows[];           /* ends with arch == NULL */
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
/* Must, may (-1) or must not (0) this role's tensor have a bias? */
int arch_wants_bias(const arch_config *c, arch_role r);
bool arch_role_optional(const arch_config *c, arch_role r);
/* Shape [N,K] that a linear role must have (embed: [vocab, hidden]; norms: N = 1, K = length). */
void arch_role_shape(const arch_config *c, arch_role r, int64_t *N, int64_t *K);
/* "rope_scaling" or "rope_parameters" with rope_theta and partial_rotary_factor; sets rope,
 * rope_theta and rope_dims. head_dim and max_pos are known. (arch_rope.c) */
lq_status arch_rope_parse(arch_config *c, const cJSON *config, lq_err *err);
lq_status arch_rope_check(const arch_config *c, lq_err *err);
const char *arch_rope_text(arch_rope_kind k); /* "llama3" */
bool arch_rope_from_text(arch_rope_kind *k, const char *text);
/* cos and sin for positions pos0..pos0+T-1: [T, rope_dims/2] each. seq_len: for dynamic NTK, else
 * ignored.
 * Float arithmetic in the order of the reference implementation, so that angles agree to the bit
 * but for the last place of pow; cos and sin are rounded from double. */
void arch_rope_table(const arch_config *c, int64_t pos0, int64_t T, int64_t seq_len, float *cos,
                     float *sin);

#endif
