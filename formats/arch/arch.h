/* formats/arch/arch.h - architectures as data: one row each, and the numbers of one model.
 *
 * A row says how the one transformer (runtime/forward/forward.h) is wired and how the checkpoint names its
 * tensors; a config holds the numbers, read from config.json once and checked there. Adding a model
 * is a row in formats/arch/rows/, a golden fixture and a test (docs/first-change.md).
 *
 * One layer; a norm that the row has no tensor for is left out:
 *   h = attn_norm(x); q,k,v = h Wq, h Wk, h Wv (+ biases); q,k = qk-norm; rotate; a = attention Wo
 *   x += attn_post_norm(a) * residual_scale
 *   h = mlp_norm(x); x += mlp_post_norm(mlp(h)) * residual_scale
 * parallel: the MLP reads the x that attention read. norm_after_add: x = attn_norm(x + a), then
 * x = mlp_norm(x + mlp(x)). norm_stays: x = h, before x = join_x x + join_y a, and likewise around the MLP. */
#ifndef LLMQ_FORMATS_ARCH_ARCH_H
#define LLMQ_FORMATS_ARCH_ARCH_H

#include "base/base.h"
#include "formats/arch/roles.h"

typedef struct cJSON cJSON;

enum { ARCH_MAX_STREAMS = 8 }; /* residual streams of a model */
typedef enum { NORM_RMS, NORM_LAYER } arch_norm;
typedef enum { POS_NONE, POS_ROPE, POS_ALIBI, POS_LEARNED, POS_SINUSOIDAL } arch_pos;
typedef enum {
    ROPE_PLAIN,
    ROPE_LINEAR,
    ROPE_DYNAMIC,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_LONG, /* arXiv:2402.13753: a factor for each pair, one set up to original_max, one beyond
                */
    ROPE_PROPORTIONAL /* the frequencies of the whole head, of which `partial` turn: the first */
} arch_rope_kind;
typedef enum { MLP_GATED, MLP_PLAIN } arch_mlp;
typedef enum {
    ARCH_SILU,
    ARCH_GELU,
    ARCH_GELU_TANH,
    ARCH_RELU,
    ARCH_RELU2,          /* max(x, 0)^2 */
    ARCH_SWIGLU_CLAMPED, /* (min(up, L) + 1) * g sigmoid(1.702 g), g = min(gate, L), up >= -L */
    ARCH_SILU_LIMITED,   /* silu(min(gate, L)) * up, -L <= up <= L */
    ARCH_SILU_CAPPED,    /* min(silu(gate), L) * up of the same, by arch_layer's limits */
    /* arXiv:2411.13010: p x^2 + b x above 0, n (e^min(x, eps) - 1 - x) + b x below, with p =
     * softplus(R_XIELU_P), n = b + softplus(R_XIELU_N), b = R_XIELU_BETA, eps = R_XIELU_EPS of the
     * layer */
    ARCH_XIELU
} arch_act; /* same order as k_act_fn, which has no ARCH_XIELU */
/* What a layer adds to x. */
typedef enum { BRANCH_ATTENTION, BRANCH_STATE, BRANCH_MLP, ARCH_N_BRANCHES } arch_branch;
/* Norm of q and k before the rotation (or after it: qk_norm_late), of the model's kind: of each
 * head (one weight [head_dim] for all), of all heads together (weight [heads * head_dim]), of each
 * head with a weight of its own (NAME_HEAD_ROWS or NAME_HEAD_EACH). */
typedef enum { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_ALL, QK_NORM_HEADS } arch_qk_norm;
/* Scores of the experts from the router's logits. */
typedef enum {
    ROUTER_SOFTMAX,
    ROUTER_SIGMOID,
    ROUTER_SPARSEMIXER, /* two experts, each by a softmax over those near the best (arXiv:2409.12136) */
    ROUTER_SQRT_SOFTPLUS
} arch_router;

/* Does a role's tensor come with a bias? ATTN and MLP: as attention_bias and mlp_bias say, OWN and CONV
 * as the row's keys for own_bias and conv_bias, and where the config is silent, when the checkpoint has
 * one; ANY: when the checkpoint has one. */
typedef enum { BIAS_NO, BIAS_YES, BIAS_ATTN, BIAS_MLP, BIAS_OWN, BIAS_CONV, BIAS_ANY } arch_bias;

/* Which layers see a sliding window of `sliding_window` positions: none; all; and, if
 * use_sliding_window: those that max_window_layers names; all; those that do not rotate; all but
 * every sliding_window_pattern-th; those that GPT-Neo's attention_types calls local. layer_types
 * says otherwise where it is given (but to WINDOW_NONE). */
typedef enum {
    WINDOW_NONE,
    WINDOW_ALL,
    WINDOW_IF_USED,
    WINDOW_ALL_IF_USED,
    WINDOW_NOPE_IF_USED,
    WINDOW_PATTERN,
    WINDOW_LOCAL,
    WINDOW_FROM, /* those from max_window_layers on, without use_sliding_window */
    WINDOW_OWN,  /* the row's `layers` has them: no layer is flagged */
    WINDOW_CHUNKS /* a query sees what its chunk of attention_chunk_size positions has: those that rotate */
} arch_window;

/* How a tensor is stored. */
typedef enum {
    NAME_OPTIONAL = 1,   /* may be absent */
    NAME_BARE = 2,       /* the name is whole: no ".weight"; its bias is the name + "_bias" */
    NAME_TRANSPOSED = 4, /* dense data is [inputs, outputs] (codes never are) */
    NAME_STACKED = 8,    /* one tensor for all experts, the expert its first dim */
    NAME_ONES = 16,      /* with NAME_OPTIONAL: a norm without weights where there is no tensor */
    NAME_HEAD_ROWS =
        32, /* a vector for each head, [heads, head_dim]; or a matrix read as vectors */
    NAME_HEAD_EACH = 64, /* ... each a tensor of its own, "%e" the head */
    NAME_MOE = 128, /* only in layers with experts; in others the role's next name counts, if any */
    NAME_ROW = 256, /* a vector as a matrix of one row */
    NAME_TAPS = 512,     /* a convolution's, [channels, 1, taps]; its bias [channels] */
    NAME_4D = 1024,      /* a vector of n as [1, 1, n, 1] */
    NAME_STATE = 2048,   /* only in layers with a state */
    NAME_ATTENDS = 4096, /* only in layers that attend */
    NAME_FLAT =
        8192, /* with NAME_STACKED: in a folder the experts' rows one after the other, two dims */
    NAME_WHOLE = 16384,      /* a norm's weights without norm_offset */
    NAME_IDS = 32768,        /* whole numbers */
    NAME_BLOCKS = 65536,     /* square matrices, [blocks, n, n], read as vectors */
    NAME_BEFORE = 131072,    /* a norm's weights multiply what it reads, not what it gives */
    NAME_HEAD_TAPS = 262144, /* a convolution within heads, [channels, head_dim, head_taps] */
    NAME_BIAS_BARE = 524288, /* its bias is the name + "_bias" */
    NAME_ANY_ROWS = 1048576, /* how many rows a part of a table has is the file's */
    NAME_SHARED = 2097152,   /* one tensor for all shared experts, the expert its first dim */
    NAME_HEADS = 4194304     /* one for all heads of a state, [mix_heads, rows of each, inputs] */
} arch_name_flag;

/* The tensor of a role: "@layers.%d.self_attn.q_proj" + ".weight", and ".bias" when there is one.
 * "@" is the prefix of the body ("model."; files with another or none are understood), "^" that of
 * the head ("language_model." where the body's is "language_model.model."), "%d" the layer, "%p"
 * which of a pair with that number, "%e" the expert (or head). Of a model with asides "%d" counts the others,
 * "%b" is the number of the first aside with these tensors, "%u" the aside's among the asides, and "%m" stands for
 * "mamba_decoder." in the layer after one. "%s" is ".shard_" and which part of a table, or nothing where that is one. */
typedef struct {
    arch_role role;
    const char *name;
    int flags; /* arch_name_flag */
    arch_bias bias;
} arch_name;

/* A head that predicts the token after the next (multi-token prediction, arXiv:2412.19437): one more
 * layer, like the model's last that attends, of
 *     x_p = proj [norm(embedding of token p + 1), norm(the model's hidden state p, normed)]
 * with a final norm of its own; the embedding and the output head are the model's. */
typedef struct {
    const char *layer;      /* "@layers.%d.": what names of a layer begin with there */
    bool counted;           /* %d goes on behind the model's layers; else it is 0 */
    bool hidden_first;      /* proj reads the hidden state first, not the embedding */
    const arch_name *names; /* of its final norm and R_MTP_*; ends with role ARCH_N_ROLES */
    /* An EAGLE-3 draft (arXiv:2503.01840), a checkpoint of its own:
     *     x_p = proj [the model's states p before three of its layers], or its own last state
     * R_Q, R_K and R_V read [norm(embedding of token p + 1), norm(x_p)]; embedding and head are its own.
     * EAGLE-3.1 (arXiv:2605.09992) norms what proj reads, and its own state by the final norm. */
    bool eagle;
} arch_mtp;

/* How an encoder makes scores of labels of one of its rows, the first, or of their mean (arch_config.label_mean):
 * R_SCORE norm(act(R_POOLER row)). */
typedef struct {
    const arch_name *names; /* of those roles; ends with role ARCH_N_ROLES */
    enum { POOLER_TANH, POOLER_RELU, POOLER_GELU } act;
} arch_scorer;

/* How the transformer is wired. */
typedef struct {
    arch_norm norm;
    float norm_offset; /* 1 for Gemma's (1 + w) */
    arch_pos pos;
    bool rope_half;      /* rotate pairs (i, i + R/2); else neighbours */
    bool rope_back;      /* by the negative of the angle */
    bool alibi_scaled;   /* ALiBi is added before the scale on q k^T, not after */
    bool alibi_bf16;     /* ... and slope * key position is rounded to bf16 */
    bool alibi_twice;    /* ... and added twice, as transformers' eager attention does for Falcon
                            (with the mask once more); its other implementations add it once */
    bool parallel;       /* MLP and attention read the same x; without R_MLP_NORM, the same norm */
    bool one_norm;       /* ... there is no R_MLP_NORM, whatever the names */
    bool norm_after_add; /* x = norm(x + f(x)) instead of x + f(norm(x)); no final norm then */
    bool norm_stays;     /* what a norm before a branch gives is x from there on; see join_x */
    arch_qk_norm qk_norm;
    bool qk_unit; /* of these nothing is added to the mean square, but what a length of 0 needs */
    bool qk_norm_late;    /* after the rotation */
    bool o_norm_heads;    /* R_O_NORM is of each head, before the output is gated */
    bool qk_norm_rotated; /* only in layers that rotate */
    bool qkv_grouped; /* rows of R_QKV: for each kv head its q heads, k, v; else all q, all k, all v
                       */
    bool qkv_quarters; /* rows of R_QKV: for each quarter of the heads q, v, k */
    bool q_grow_nope;  /* arch_config.q_grow: only in layers that do not rotate, with p + 1 for p */
    bool
        q_grow_full; /* only in layers without a window, 1 + q_grow log(max(1, (p + 1) / q_grow_every)) */
    bool q_grow_power; /* ... by the power q_grow of 1 + (p + 1) / q_grow_every */
    /* After its i-th branch (from 1) x is sum / sqrt(i + 1) of the embedding and what branches gave: the stream is
     * kept as that sum, and what norms add to its mean square is i + 1 times as much */
    bool depth_norms;
    bool mla;
    bool
        kv_one; /* mla without R_KV_B: R_KV_A's normed output, a head wide, is the key of every head
                    and its value, whose rotation is undone on the output; q's heads are normed
                    without weights */
    bool mla_shared; /* layers may read the latents of another (kv_back); those that do not rotate
                           have no rope_dims */
    bool diff;    /* differential attention, v_dim twice head_dim: runtime/forward/forward_diff.c */
    bool v_apart; /* without MLA too, v_dim may differ from head_dim */
    bool index_half;     /* rope_half of an indexer's heads */
    bool index_last;     /* their last dims rotate, and the norm's epsilon is the model's */
    bool latent_eps;     /* the norms of latents have the model's epsilon */
    bool latent_rescale; /* what these give is times sqrt(hidden / rank), of each layer's ranks */
    bool hyper_mean;     /* hyper-connections end as the streams' mean */
    bool hyper_apart;    /* hyper-connections without mixing: s_k += (post_k + eps) y */
    bool limit_experts;  /* act_limit is of the routed experts' SiLU alone, as ARCH_SILU_LIMITED */
    /* Rows of R_Q: of each head q, then what its output is gated by (sigmoid). MLA: rows of R_Q_B, which reads
     * [norm(a_q h), a_q h] */
    bool q_gated;
    bool gate_softplus; /* of R_ATTN_GATE's rows; else sigmoid */
    bool gate_heads;    /* one row of it for each head, not for each of its dims */
    bool
        mix_mixed; /* rows of R_MIX_IN: of each key head q, k, its values', its gates'; else all of each
                        in turn. Rows of R_MIX_BA: of each key head its values' b, a */
    bool mix_turns;    /* MIX_SELECT: rows of R_MIX_IN alternate: x, gate, x, gate */
    bool mix_norm_1st; /* R_MIX_NORM comes before the gate, not after it */
    float mix_eps;     /* of that norm; 0: as of the others */
    bool mix_sigmoid;  /* MIX_DELTA: the gate is a sigmoid, as MIX_KDA's */
    bool mix_beta_2;   /* MIX_DELTA: beta is twice a sigmoid */
    bool
        mix_tiled; /* head h of a state has key h % groups (GGUF's order); else h / (heads / groups) */
    arch_mlp mlp;
    bool up_first;      /* rows of R_GATE_UP: up, then gate */
    bool gate_up_mixed; /* rows of R_EXPERT_GATE_UP alternate: gate, up, gate, up */
    bool mlp_mixed;     /* ... and those of R_GATE_UP and R_SHARED_GATE_UP */
    arch_router router;
    bool corr_logits;  /* R_ROUTER_CORR is added to the logits, not to the scores made of them */
    bool corr_more;    /* ... has a second row, of experts that are not run */
    bool share_in;     /* an expert's share multiplies what it reads, not what it puts out */
    bool skips;        /* a router's choice beyond the last expert: none */
    bool norm_topk;    /* the chosen experts' scores are made to sum to 1 */
    float topk_eps;    /* ... after this is added to their sum; 0: 1e-20 */
    bool group_zero;   /* the scores of other groups' experts are 0; else these are not chosen */
    bool group_top2;   /* a group's score is the sum of its two best; else its best */
    bool dense_beside; /* layers with experts have an MLP too: their outputs are added */
    bool shortcut;     /* ... after the next layer, which has none; both have one number in names */
    bool head_rows_1;  /* R_HEAD is used with rows of length 1 */
    bool
        proj_late; /* R_PROJ_IN reads what positions and types were added to, normed: embed_dim wide */
    bool both_ways; /* a position sees those after it too; of a window as many on either side */
} arch_wiring;

/* A key of config.json that changes the wiring or a number: what its value does to the field at
 * offset `at` of the config. A missing key counts as `def` (NAN: leaves the field alone); null
 * leaves the field alone. "a.b" is the key b of the object a. */
typedef enum {
    KEY_REAL,
    KEY_INVERSE,  /* 1 / value */
    KEY_RSQRT,    /* value^-0.5 */
    KEY_BY_DEPTH, /* value / sqrt(layers) */
    KEY_BY_WIDTH, /* value / hidden */
    KEY_INT,
    KEY_BOOL,
    KEY_NOT,
    KEY_FLAG,  /* int: 1 or 0 (attn_bias, mlp_bias) */
    KEY_UNIT,  /* false: the real is 1 */
    KEY_MUST,  /* anything but `def` is refused by name */
    KEY_KNOWN, /* has its effect elsewhere, or none */
    KEY_FN
} arch_key_kind;
struct arch_config;
typedef struct {
    const char *key;
    arch_key_kind kind;
    size_t at;
    double def;
    lq_status (*fn)(struct arch_config *c, const char *key, const cJSON *value, lq_err *err);
    /* KEY_FN: value may be NULL (missing or null) */
} arch_key;

typedef struct arch_row {
    const char *arch;       /* "LlamaForCausalLM" */
    const char *model_type; /* "llama" */
    const char *variant; /* NULL, or which of the rows of this arch: the first whose `when` fits */
    const char *when;    /* "key=true,other=1": config.json's values; NULL fits always, "-" never */
    arch_wiring w;
    const char *prefix;        /* "model." */
    const arch_name *names;    /* ends with role ARCH_N_ROLES */
    const arch_key *keys;      /* ends with key NULL; NULL: none */
    const arch_mtp *mtp;       /* its MTP head, where the file has one; NULL: none is known */
    const arch_scorer *scorer; /* NULL: scores of labels are R_SCORE of the last row */
    arch_window window;
    arch_mixer mixer; /* of the layers that are not attention's; MIX_ATTENTION: there are none */
    bool one_branch;  /* a layer is a mixer or an MLP, not both */
    int64_t def_full_every; /* of so many layers the last attends where no list says it; 0: none */
    bool nope_full;         /* layers without the window do not rotate (where there is a window) */
    /* What differs from layer to layer in a way of its own, or NULL: windows, rotations and experts
     * of c->layer are there. */
    lq_status (*layers)(struct arch_config *c, const cJSON *config, lq_err *err);
    /* Changes a copy of config.json, of the model's publisher, into transformers' words; or NULL. */
    lq_status (*respell)(cJSON *config, lq_err *err);
    /* The key of config.json that max_pos is made of, where what is beyond is computed otherwise; or NULL. */
    const char *ends_at;
    float post_offset
        [2]; /* norm_offset of R_ATTN_POST_NORM and R_MLP_POST_NORM, where another; 0: as the others */
    /* What reads x as it was before the layer's attention: the router, without a norm; or, of dense_beside, router and
     * experts, by R_EXPERT_NORM. */
    enum { EARLY_NONE, EARLY_ROUTER, EARLY_EXPERTS } early;
    bool embed_sqrt; /* embeddings are multiplied by sqrt(hidden) */
    bool fixed_act;  /* def_act whatever config.json says */
    bool
        gelu_tanh; /* hidden_act counts, whatever hidden_activation says, and its "gelu" is the approximation by tanh */
    bool in_text;  /* config.json has other parts beside: the numbers are in text_config where
                        there is one */
    bool
        full_first; /* WINDOW_PATTERN: of each pattern the first layer has no window, not the last */
    int64_t pos_offset;
    /* What transformers assumes where config.json is silent. */
    int64_t def_kv_heads;    /* 0: as many as heads */
    int64_t def_head_dim;    /* 0: hidden / heads */
    int64_t def_window;      /* 0: none */
    int64_t def_window_from; /* WINDOW_IF_USED, WINDOW_FROM: max_window_layers; 0: 28 */
    int64_t def_pattern;     /* WINDOW_PATTERN: of these many layers the last has no window */
    int64_t def_nope_every;  /* no_rope_layer_interval; 0: all rotate */
    int64_t def_max_pos;     /* 0: 2048 */
    int64_t def_ffn;         /* times hidden; 0: must be said */
    int64_t def_dense;       /* first_k_dense_replace: layers before those with experts */
    int64_t def_shared;      /* n_shared_experts */
    double def_eps;          /* 0: 1e-6 */
    double def_theta;        /* 0: 10000 */
    double def_local_theta;  /* of layers with a window, which are not scaled; 0: as the
                               others; < 0: rope_theta */
    double def_partial;      /* rotated part of a head; 0: all, and no other is read */
    const char *def_rope;    /* rope_parameters, as JSON; NULL: none */
    const char *def_sizes;   /* the sizes of a text_config, as JSON; NULL: they must be said */
    arch_act def_act;
    bool def_tied;
} arch_row;

typedef struct {
    arch_rope_kind kind;
    double theta;
    double factor;               /* all but plain */
    double low_freq, high_freq;  /* llama3 */
    double beta_fast, beta_slow; /* yarn */
    double attention_factor; /* multiplies cos and sin (1 but for yarn, computed when the file has
                                none) */
    int64_t original_max;    /* llama3, yarn, dynamic, long */
    bool truncate;           /* yarn: whole correction dims (default) */
    double long_factor;      /* long: attention_factor beyond original_max; 0: the same */
    double *factors;         /* long: [2][rope_dims / 2], short then long; owned by the config. Else
                                NULL, or [rope_dims / 2] on the frequencies (arch_rope_turn) */
    double partial;          /* proportional */
} arch_rope;

/* Which of a config's two tables a layer rotates by. */
typedef enum { ROPE_MAIN, ROPE_LOCAL, ROPE_OFF } arch_rope_use;

/* What differs from layer to layer. */
typedef struct {
    bool window;       /* sees `window` positions only */
    bool moe;          /* experts instead of an MLP, or beside it */
    bool v_is_k;       /* there is no R_V: v is k before its norm */
    bool index_shared; /* without an indexer: it attends to what the layer before it does */
    bool index_off;    /* without an indexer: it attends to all positions */
    uint8_t rope;      /* arch_rope_use; ROPE_OFF: no rotation (NoPE), or no POS_ROPE */
    int64_t kv_back;   /* it has no K and V of its own: it reads those of the layer so many before
                        it, which has; 0: its own */
    double sparse; /* MLP: the share of gates that is cut off, of a normal distribution; 0: none */
    double expert_limit, mlp_limit; /* ARCH_SILU_CAPPED: of routed experts, of others; 0: none */
    const struct arch_config *own;  /* the config with this layer's sizes; NULL: the model's */
    uint8_t mixer;                  /* arch_mixer */
    bool no_mlp;                    /* ends with its mixer */
    bool hashed;                    /* R_EXPERTS_OF says which experts */
    int64_t
        ngrams; /* its place, from 1, among the layers with embeddings of n-grams; 0: it has none */
} arch_layer;

/* The sizes that may differ from layer to layer. */
typedef struct {
    int64_t kv_heads, head_dim, rope_dims, ffn, heads, rel_extent;
    int64_t q_lora, kv_lora, v_dim; /* of MLA alone */
} arch_sizes;

/* What follows the last hidden state, normed: words; nothing ("Qwen3Model"), where hidden states are
 * the answer; or a score for each of `labels` ("Qwen3ForSequenceClassification"). Without words of
 * its own a model counts as tied. */
typedef enum { HEAD_WORDS, HEAD_NONE, HEAD_LABELS } arch_head;

typedef struct arch_config {
    const arch_row *row;
    arch_wiring w;   /* the row's, as config.json changes it */
    char prefix[40]; /* of the body's tensors in this checkpoint: the row's, another or "" */
    int64_t vocab, hidden, layers, heads, kv_heads, head_dim, ffn;
    int64_t v_dim;      /* of a head's v and output: head_dim but for MLA */
    int64_t key_pad;    /* the last dims of head_dim, which no product makes: R_KEY_STEP's */
    int64_t embed_dim;  /* of the embedding: hidden but for R_PROJ_IN */
    int64_t embed_more; /* its rows beyond the vocabulary's, which no text has */
    int64_t head_more;  /* R_HEAD's, of which no logits are made */
    int64_t max_pos, pos_offset; /* learned, sinusoidal: row pos + offset of the table */
    int64_t dist_buckets;        /* of distances, half of them of keys ahead; 0: none */
    /* R_DIST_EMBED: distances from there on share a row; 0: there is none. dist_buckets rows on either side, near
     * ones one by one and others by the logarithm, or without buckets dist_far. What scores have of it: q by its
     * keys, k by its queries, which are made by R_K and R_Q where shared; its rows are normed */
    int64_t dist_far, dist_keys, dist_queries, dist_shared, dist_normed;
    int64_t rel_dims, rel_extent; /* R_REL: numbers of a head; distances from there on have none */
    int64_t types; /* of a text's parts, each with a vector in R_TYPE_EMBED; 0: none */
    double norm_eps;
    double post_eps; /* of R_ATTN_POST_NORM and R_MLP_POST_NORM; 0: norm_eps */
    arch_act act;
    const char *wrapper; /* architecture of which this is the text part (static); NULL: none */
    const arch_mtp *mtp; /* this is an MTP head, of one layer; NULL: a model */
    int64_t mtp_number;  /* of that layer in names */
    /* Of an EAGLE-3 draft: ids that it guesses among; a model's hidden size, and the three layers whose
     * inputs it reads (-1: 2, L / 2 and L - 3 of L); x is normed before it is a residual; norms of what proj
     * reads; its own state is normed */
    int64_t draft_vocab, target_hidden, target_layers[3];
    bool norm_first, norm_all, norm_each, norm_own;
    int64_t rope_dims; /* rotated dims of a head: its first, for MLA its last */
    arch_rope rope[2]; /* ROPE_MAIN, ROPE_LOCAL */
    int64_t window;    /* sliding window: a query sees this many positions, its own included; 0:
                            none */
    arch_layer *layer; /* [layers], never NULL; owned by the config */
    /* So many layers have tensors of their own, each with as many after it that have the same; 0: all have */
    int64_t layer_groups;
    /* Layers that attend are transformers beside the residual (runtime/forward/forward_aside.c), which the next layer reads
     * too: the first `asides` have tensors of their own, the others these in turn; what each adds to them is a product of
     * rank aside_rank, of q, k and v if aside_heads. 0: there are none */
    int64_t asides, aside_rank, aside_heads;
    /* The configs that layers have for their own, owned; here then stand the largest sizes of any
     * layer. Their pointers are the config's. */
    struct arch_config **sizes;
    int64_t n_sizes;
    double attn_scale; /* on q k^T */
    /* q at position p is multiplied by 1 + q_grow * log(1 + floor(p / q_grow_every)); 0: by 1 */
    double q_grow;
    int64_t q_grow_every;
    double alibi_max; /* ALiBi: the slopes are 2^(-alibi_max i / n) */
    double embed_scale, residual_scale, logit_scale;         /* 1: none */
    double join_x[ARCH_N_BRANCHES], join_y[ARCH_N_BRANCHES]; /* w.norm_stays: else 1 */
    /* 1: none. On a gate before its activation, on what R_DOWN, R_O and R_MIX_OUT read, and on the
     * parts of R_MIX_IN's output: gate, x, B, C, dt */
    double gate_scale, down_scale, o_scale, mix_out_scale, mix_scale[5];
    double attn_softcap, final_softcap; /* cap * tanh(x / cap); 0: none */
    double qkv_clip;                    /* q, k, v clamped to +-; 0: none */
    double act_limit;                   /* ARCH_SWIGLU_CLAMPED, ARCH_SILU_LIMITED: L */
    int64_t ple_dim, ple_vocab;         /* a layer's part of R_PLE_EMBED, and its rows; 0: none */
    int64_t streams, laurel;            /* AltUp: residual streams; Laurel's rank; 0: none */
    /* Hyper-connections (arXiv:2512.24880): residual streams, 0: none; steps that make their mixing doubly
     * stochastic, and what is added to what these divide by */
    int64_t hyper, hyper_steps;
    int64_t hyper_rank; /* of R_HYPER_ATTN_DOWN and so on; 0: there are none */
    /* Embeddings of n-grams (formats/arch/ngrams.h): the longest n, 0: there are none; heads of each n; numbers of all
     * heads together; taps of the convolution, `ngram` positions apart; what rows are made of; tensors that a table is
     * stored in, 0: one that is the whole. ngram_rows is made of these: of the largest table */
    int64_t ngram, ngram_heads, ngram_dim, ngram_taps, ngram_base, ngram_even, ngram_seed,
        ngram_pad;
    int64_t ngram_parts, ngram_rows;
    double join_heat;             /* of R_ATTN_JOIN and R_MLP_JOIN */
    double hyper_eps, hyper_post; /* hyper_post: the largest factor on a branch's output */
    /* MIX_SPARSE, MIX_HEAVY: positions for each compressed one, powers of two; groups of R_O_A, 0: none */
    int64_t sparse_every, heavy_every, o_groups, o_lora;
    /* MLA */
    int64_t q_lora, kv_lora, nope_dims; /* q_lora 0: R_Q; head_dim = nope_dims + rope_dims */
    double latent_scale;                /* on what R_KV_A_NORM gives; 1: none */
    int64_t norm_rank;                  /* of R_ATTN_NORM_DOWN and so on; 0: there are none */
    /* Its indexers' heads and their size, of which the first rope_dims rotate; a query attends to the
     * index_topk positions that score best. 0: it attends to all */
    int64_t index_heads, index_dim, index_topk;
    /* Not 0: they are chosen in blocks of so many, by each kv head for itself, and the last index_local of these
     * are always among them (kernels/topk_blocks.h) */
    int64_t index_block, index_local;
    /* Not 0, a power of two: those of a group of so many are chosen together, by one key made of theirs with weights
     * by dim, softmax(index_gate h + bias of the place), or that is their mean, which is normed and then rotates as the
     * group's first; the last group, until it is whole, is always attended to */
    int64_t index_every;
    /* Layers with a state: heads of mix_value values, in groups that share a key (and query) of
     * mix_key dims; the state of a head is [mix_key, mix_value]. conv_taps: of the convolution, over
     * all keys, queries and values, or (MIX_CONV) over hidden. */
    int64_t mix_heads, mix_groups, mix_key, mix_value, conv_taps;
    int64_t head_taps; /* MIX_CCA: of the second convolution, within heads */
    int64_t
        mix_rank; /* MIX_SELECT, whose heads (one, but for NAME_HEADS) share nothing: of what makes the time step */
    double dt_min, dt_max; /* MIX_MAMBA: dt is kept between; 0: no bound */
    /* MIX_KDA: a decay is exp(-decay_span sigmoid(exp(a_log) (a + dt))); 0: as MIX_DELTA's */
    double decay_span;
    /* experts; 0 of them: none */
    int64_t experts, experts_used, expert_ffn, shared_ffn;
    /* Not 0: shared_ffn is of so many experts, whose scores are R_ROUTER's last, and their shares parts of one sum with
     * those of the chosen */
    int64_t shared_experts;
    int64_t zero_experts; /* further ones, without tensors, that put out what they read */
    int64_t latent;       /* width of what experts read and put out; 0: hidden */
    int64_t expert_groups, groups_used; /* 1, 1: free choice; else only the best groups' experts */
    double expert_scale, shared_scale;  /* on the routed experts' sum, on the shared ones' */
    int64_t route;                      /* numbers of what R_ROUTER reads; 0: h */
    double router_scale;                /* on the router's logits */
    double router_softcap;              /* cap * tanh(x / cap) of these; 0: none */
    double router_jitter; /* ROUTER_SPARSEMIXER: half of how far from the best counts as near */
    arch_head head;
    int64_t labels;          /* HEAD_LABELS; else 0 */
    int64_t label_mean;      /* 1: of the mean of the rows (arch_scorer) */
    int64_t label_raw;       /* 1: a score is taken as it is, not its sigmoid */
    bool tied;               /* head = embedding */
    int attn_bias, mlp_bias; /* 1, 0; -1: not said, see arch_bias */
    int own_bias, conv_bias; /* likewise; of a checkpoint's folder alone: -1 in arch_config_json */
    bool
        no_corr; /* there is no R_ROUTER_CORR, though the row has a name for one; likewise, false there */
    int32_t bos, eos[16]; /* -1: none */
    int n_eos;
    lq_dtype dtype; /* torch_dtype / dtype of the checkpoint */
} arch_config;

/* Of kv_one heads no more dims rotate. */
enum { ARCH_ONE_ROPE = 1024 };
/* The variant of a row with NAME_TRANSPOSED experts whose stacks are [experts, outputs, inputs]: the
 * checkpoint tells. */
#define ARCH_STACKED_ROWS "stacked-rows"
/* The variant of a row whose tensors are those of GGUF, where config.json's architecture has others. */
#define ARCH_APART "apart"
/* The variant of an EAGLE-3 draft's row with its layer's other name, "midlayer" or "layers.0". */
#define ARCH_DRAFT_OTHER "draft-other"

/* All rows, one after another: the first for NULL, NULL after the last. */
const arch_row *arch_next(const arch_row *row);
const arch_row *arch_find(const char *arch, const char *variant); /* NULL */
/* config.json -> config, everything range-checked (sizes, divisibility, heads). generation may be
 * NULL (generation_config.json: eos ids are joined). Unknown architecture: LQ_EUNSUPPORTED names
 * it. A key that changes the computation in a way that the row does not know: LQ_EUNSUPPORTED names
 * the key. prefix is the row's: see arch_fit_prefix. */
/* What every config begins with: nothing, and factors that are 1. */
void arch_config_init(arch_config *c, const arch_row *row);
lq_status arch_config_parse(arch_config *c, const cJSON *config, const cJSON *generation,
                            lq_err *err);
void arch_config_free(arch_config *c);
/* LQ_EUNSUPPORTED: a config that arch_is_eagle, where a model is expected. */
lq_status arch_refuse_draft(lq_err *err);
/* The config of a model's MTP head, to be freed; it has no R_EMBED and no R_HEAD. LQ_EUNSUPPORTED: none is
 * known of such a model. */
lq_status arch_config_mtp(arch_config *out, const arch_config *c, lq_err *err);
/* Set c->prefix from a checkpoint's tensor names: the one under which its embedding is found; left
 * alone when there is none. has(user, name): is there such a tensor? */
void arch_fit_prefix(arch_config *c, bool (*has)(void *user, const char *name), void *user);
/* "Qwen3ForSequenceClassification": what this architecture is called with its head; of words the
 * row's name. */
void arch_full_name(char out[80], const arch_config *c);
/* Our own spelling of a config, for .llmq: every field, canonical; and back (checked again). */
cJSON *arch_config_json(const arch_config *c);
lq_status arch_config_from_json(arch_config *c, const cJSON *j, lq_err *err);
/* A config whose sizes are those of this layer (-1: of none). */
static inline const arch_config *arch_at(const arch_config *c, int64_t layer)
{
    return layer >= 0 && c->layer[layer].own ? c->layer[layer].own : c;
}
/* z of a normal distribution that a share p is below (arch_layer.sparse). */
double arch_normal_quantile(double p);
/* Do layers attend to what indexers choose? Has this layer one? Is there a layer without? */
static inline bool arch_indexed(const arch_config *c) { return c->index_topk > 0; }
/* Lists of chosen positions of a row. */
static inline int64_t arch_index_lists(const arch_config *c)
{
    return c->index_block ? c->kv_heads : 1;
}
bool arch_has_indexer(const arch_config *c, int64_t layer);
bool arch_shares_index(const arch_config *c);
/* Is a group's key the mean of those of its positions? R_INDEX_Q's rows are then the heads' q and the key. */
bool arch_index_mean(const arch_config *c);
/* Numbers of a position's key in the cache: with groups' weights beside it. */
static inline int64_t arch_index_width(const arch_config *c)
{
    return c->index_every && !arch_index_mean(c) ? 2 * c->index_dim : c->index_dim;
}
/* Numbers of what hyper-connections make of all streams. */
static inline int64_t arch_hyper_width(const arch_config *c)
{
    return c->w.hyper_apart ? 2 * c->hyper : (2 + c->hyper) * c->hyper;
}
/* What a router chooses among. */
static inline int64_t arch_choices(const arch_config *c)
{
    return c->experts ? c->experts + c->zero_experts + c->w.skips : 0;
}
/* Scores that a router makes. */
static inline int64_t arch_router_rows(const arch_config *c)
{
    return arch_choices(c) + c->shared_experts;
}
/* Numbers of layers in names. */
int64_t arch_numbered_layers(const arch_config *c);
/* Is the layer a transformer beside the residual (arch_config.asides)? -1: no. */
static inline bool arch_is_aside(const arch_config *c, int64_t layer)
{
    return c->asides && layer >= 0 && c->layer[layer].mixer == MIX_ATTENTION;
}
/* The first layer that has the same tensor as this one. */
int64_t arch_first_with(const arch_config *c, arch_role r, int64_t layer);
/* Of how many positions this layer makes one; 0: of none. */
int64_t arch_compresses(const arch_config *c, int64_t layer);
/* Channels of MIX_CCA's convolutions, and positions that they look back. */
static inline int64_t arch_cca_channels(const arch_config *c)
{
    return (c->heads + c->kv_heads) * c->head_dim;
}
static inline int64_t arch_cca_back(const arch_config *c)
{
    return c->conv_taps + c->head_taps - 2;
}
/* Taps of a role's convolution. */
static inline int64_t arch_taps(const arch_config *c, arch_role r)
{
    return r == R_NGRAM_CONV ? c->ngram_taps : c->conv_taps;
}
/* Numbers of what R_Q_B reads. */
static inline int64_t arch_q_width(const arch_config *c)
{
    return c->w.q_gated ? 2 * c->q_lora : c->q_lora;
}
/* Numbers of what R_O reads. */
static inline int64_t arch_o_width(const arch_config *c)
{
    return c->o_groups ? c->o_groups * c->o_lora
           : c->w.diff ? c->heads * c->head_dim
                       : c->heads * c->v_dim;
}
/* Rows of R_DIST_EMBED; 0: none. */
static inline int64_t arch_dist_rows(const arch_config *c)
{
    return !c->dist_far ? 0 : 2 * (c->dist_buckets ? c->dist_buckets : c->dist_far);
}
static inline bool arch_is_eagle(const arch_config *c) { return c->mtp && c->mtp->eagle; }
/* Logits of a row. */
static inline int64_t arch_words(const arch_config *c)
{
    return arch_is_eagle(c) ? c->draft_vocab : c->vocab;
}
/* May this layer (-1: none) have tensors of this role? Of a tied model R_HEAD is not there. */
bool arch_has(const arch_config *c, arch_role r, int64_t layer);
/* Those that make scores of labels; ends with role ARCH_N_ROLES. NULL: the model has none. */
const arch_name *arch_label_names(const arch_config *c);
/* The row's entry; NULL: none. */
const arch_name *arch_name_of(const arch_config *c, arch_role r);
/* Name of a role's tensor ("model.layers.3.self_attn.q_proj.weight"). layer, expert: ignored where
 * the role has none. False when the row has no such role. */
bool arch_tensor_name(const arch_config *c, arch_role r, int64_t layer, int64_t expert, bool bias,
                      char *out, size_t n);
/* The role, layer and expert of a tensor name, the inverse; false: none of this row's, or one that
 * its layer does not use (K and V of a layer that reads another's). -1 outside
 * layers; expert -1: none, or all (NAME_STACKED). */
typedef struct {
    arch_role role;
    int64_t layer, expert;
    bool bias;
} arch_slot;
bool arch_slot_of(const arch_config *c, const char *name, arch_slot *slot);
/* What is added to a norm's weights, and to its mean square or variance. */
float arch_norm_offset(const arch_config *c, arch_role r);
/* Of a tensor: 0 where it is no weights of such a norm. llama.cpp and mlx-lm store them with it added. */
float arch_slot_offset(const arch_config *c, const arch_slot *slot);
#define ARCH_LATENT_EPS 1e-6 /* of MLA's norms, whatever the config says (but w.latent_eps) */
double arch_norm_eps(const arch_config *c, arch_role r);
double arch_norm_eps_at(const arch_config *c, arch_role r, int64_t layer); /* with w.depth_norms */
/* Must (1), may (-1) or must not (0) this role's tensor have a bias? */
int arch_wants_bias(const arch_config *c, arch_role r);
/* How many tensors a layer has of this role where they have numbers ("%e": experts, heads); else 1.
 */
int64_t arch_n_tensors(const arch_config *c, arch_role r);
/* Shape [N,K] of a role's matrix, of one expert (outputs, inputs; embed: [vocab, embed_dim];
 * vectors: N = 1, K = length; NAME_HEAD_ROWS: N heads). Of a layer: c from arch_at. */
void arch_role_shape(const arch_config *c, arch_role r, int64_t *N, int64_t *K);
/* Of the layers from..to-1: those that have K and V. */
int64_t arch_count_attending(const arch_config *c, int64_t from, int64_t to);
bool arch_has_state(const arch_config *c); /* any layer */
/* Channels of a layer's convolution, and values that its heads put out. */
int64_t arch_conv_channels(const arch_config *c, arch_mixer m);
int64_t arch_mix_width(const arch_config *c, arch_mixer m);
/* MIX_LIGHTNING: the decay of a head of this layer. */
float arch_lightning_decay(const arch_config *c, int64_t layer, int64_t head);
/* Decays of a layer with a state at one position. */
int64_t arch_mix_decays(const arch_config *c);
/* What an expert reads and puts out. */
static inline int64_t arch_expert_width(const arch_config *c)
{
    return c->latent ? c->latent : c->hidden;
}
/* Weights of the experts that a token does not use, in all layers; 0 without experts. */
double arch_idle_params(const arch_config *c);
/* ALiBi slopes of all heads [heads] (arXiv:2108.12409). */
void arch_alibi_slopes(const arch_config *c, float *slopes);
/* "rope_scaling" or "rope_parameters" with rope_theta and partial_rotary_factor; sets rope and
 * rope_dims. head_dim and max_pos are known. (arch_rope.c) */
lq_status arch_rope_parse(arch_config *c, const cJSON *config, lq_err *err);
lq_status arch_rope_check(const arch_config *c, lq_err *err);
/* Another scaling than the file's: "yarn,F" or "linear,F" makes the context F times as long, as rope_scaling of that
 * rope_type and factor does; layers with a rotation of their own (ROPE_LOCAL) stay as they are. Of a model that
 * is not scaled, or by the same kind (F is then of its original context). LQ_EUSAGE: the text;
 * LQ_EUNSUPPORTED: a model that rotates nothing, is scaled otherwise, or attends by MLA. */
lq_status arch_rope_rescale(arch_config *c, const char *text, lq_err *err);
/* Of R_ROPE_LOG's values [rope_dims / 2], which a file has as a tensor. LQ_EVALUE: one that is no factor. */
lq_status arch_rope_turn(arch_config *c, const float *log, lq_err *err);
const char *arch_rope_text(arch_rope_kind k); /* "llama3" */
bool arch_rope_from_text(arch_rope_kind *k, const char *text);
/* Does the table depend on seq_len (dynamic NTK, long)? */
bool arch_rope_by_length(const arch_rope *r);
/* cos and sin for positions pos0..pos0+T-1: [T, rope_dims/2] each. seq_len: see above.
 * Float arithmetic in the order of the reference implementation, so that angles agree to the bit
 * but for the last place of pow; cos and sin are rounded from double. */
void arch_rope_table(const arch_config *c, arch_rope_use which, int64_t pos0, int64_t T,
                     int64_t seq_len, float *cos, float *sin);
/* The factor on q of a layer at a position, see q_grow. */
float arch_q_factor(const arch_config *c, int64_t layer, int64_t pos);

#endif
