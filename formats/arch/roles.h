/* formats/arch/roles.h - what a layer mixes positions with, and what its tensors are for. (arch_roles.c) */
#ifndef LLMQ_FORMATS_ARCH_ROLES_H
#define LLMQ_FORMATS_ARCH_ROLES_H

#include <stdbool.h>

/* What of a layer mixes positions: X(name, text, attends, state), state: what it carries from position
 * to position besides K and V. */
#define ARCH_MIXERS(X)                                                                             \
    X(MIX_ATTENTION, "attention", true, false)                                                     \
    X(MIX_NONE, "none", false, false)       /* the MLP is the whole layer */                       \
    X(MIX_DELTA, "delta", false, true)      /* gated delta rule, arXiv:2412.06464 */               \
    X(MIX_CONV, "conv", false, true)        /* short convolution between two gates */              \
    X(MIX_KDA, "kda", false, true)          /* with a decay per key dim, arXiv:2510.26692 */       \
    X(MIX_MAMBA, "mamba", false, true)      /* Mamba-2, arXiv:2405.21060 */                        \
    X(MIX_BOTH, "both", true, true)         /* attention and Mamba-2 side by side, of one input */ \
    X(MIX_SELECT, "selective", false, true) /* Mamba, arXiv:2312.00752 */                          \
    X(MIX_LRU, "lru", false, true) /* real-gated linear recurrent unit, arXiv:2402.19427 */        \
    X(MIX_LIGHTNING, "lightning", false, true) /* a fixed decay of each head, arXiv:2401.04658 */  \
    X(MIX_CCA, "cca", true, true)       /* attention of convolved q and k (arXiv:2510.04476) */    \
    X(MIX_TAPPED, "tapped", true, true) /* attention, R_K_CONV and so on before and after it */    \
    X(MIX_SPARSE, "sparse", true, true) /* attention to compressed positions that an indexer   \
                                               chooses, and to a window */   \
    X(MIX_HEAVY, "heavy", true, true)   /* the same to all of them, which stand for more */
typedef enum {
#define X(name, text, attends, state) name,
    ARCH_MIXERS(X)
#undef X
        ARCH_N_MIXERS
} arch_mixer;

/* What a tensor is for. VECTOR: norms, sinks; MATRIX: kept as it is by quantizers unless asked for
 * by name; LINEAR: what quantizers work on. Roles with EXPERT in their name exist once per expert.
 * X(name, text, kind) */
typedef enum { ARCH_VECTOR, ARCH_MATRIX, ARCH_LINEAR } arch_kind;
#define ARCH_ROLES(X)                                                                                                         \
    X(R_EMBED, "embed", ARCH_MATRIX)                                                                                          \
    X(R_POS_EMBED, "pos_embed", ARCH_MATRIX)   /* [positions + pos_offset, hidden] */                                         \
    X(R_TYPE_EMBED, "type_embed", ARCH_MATRIX) /* [types, hidden] */                                                          \
    X(R_DIST_BIAS, "dist_bias",                                                                                               \
      ARCH_MATRIX) /* [dist_buckets, heads] on scores (arXiv:1910.10683) */                                                   \
    /* Disentangled attention (arXiv:2006.03654): [arch_dist_rows, hidden], a vector of each distance */                      \
    X(R_DIST_EMBED, "dist_embed", ARCH_MATRIX)                                                                                \
    X(R_DIST_NORM, "dist_norm", ARCH_VECTOR)                                                                                  \
    X(R_EMBED_BY, "embed_by", ARCH_VECTOR) /* x = by (x + add) before the first layer */                                      \
    X(R_EMBED_ADD, "embed_add", ARCH_VECTOR)                                                                                  \
    X(R_EMBED_NORM, "embed_norm", ARCH_VECTOR)                                                                                \
    X(R_PROJ_IN, "proj_in", ARCH_MATRIX) /* embed_dim to hidden, and back before the head */                                  \
    X(R_PROJ_OUT, "proj_out", ARCH_MATRIX)                                                                                    \
    /* of a layer ple_dim of norm(proj x) + embed[id] */                                                                      \
    X(R_PLE_EMBED, "ple_embed", ARCH_MATRIX)                                                                                  \
    X(R_PLE_PROJ, "ple_proj", ARCH_MATRIX)                                                                                    \
    X(R_PLE_NORM, "ple_norm", ARCH_VECTOR)                                                                                    \
    /* AltUp (arXiv:2301.13310): from x to each further stream, and back */                                                   \
    X(R_STREAM_IN, "stream_in", ARCH_MATRIX)                                                                                  \
    X(R_STREAM_OUT, "stream_out", ARCH_MATRIX)                                                                                \
    /* Hyper-connections: from all streams to what the head reads */                                                          \
    X(R_HYPER_END_FN, "hyper_end_fn", ARCH_MATRIX)                                                                            \
    X(R_HYPER_END_BASE, "hyper_end_base", ARCH_VECTOR)                                                                        \
    X(R_HYPER_END_SCALE, "hyper_end_scale", ARCH_VECTOR)                                                                      \
    /* ... where gates of each dim make x: y sigmoid(up silu(down y)), y the streams, each normed */                          \
    X(R_HYPER_END_NORM, "hyper_end_norm", ARCH_VECTOR)                                                                        \
    X(R_HYPER_END_DOWN, "hyper_end_down", ARCH_MATRIX)                                                                        \
    X(R_HYPER_END_UP, "hyper_end_up", ARCH_MATRIX)                                                                            \
    X(R_FINAL_NORM, "final_norm", ARCH_VECTOR)                                                                                \
    X(R_ROPE_LOG, "rope_log",                                                                                                 \
      ARCH_VECTOR) /* [rope_dims / 2]: log of a factor on each frequency */                                                   \
    X(R_HEAD_NORM, "head_norm", ARCH_VECTOR) /* of gelu(R_PROJ_OUT x), which R_HEAD reads */                                  \
    X(R_HEAD, "lm_head", ARCH_LINEAR)                                                                                         \
    X(R_POOLER, "pooler", ARCH_MATRIX) /* [hidden, hidden] of arch_scorer, as are the next two */                             \
    X(R_POOL_NORM, "pool_norm", ARCH_VECTOR)                                                                                  \
    X(R_SCORE, "score", ARCH_MATRIX) /* [labels, hidden] of HEAD_LABELS */                                                    \
    /* of an MTP head alone (arch_mtp): proj reads both, normed */                                                            \
    X(R_MTP_EMBED_NORM, "mtp_embed_norm", ARCH_VECTOR)                                                                        \
    X(R_MTP_HIDDEN_NORM, "mtp_hidden_norm", ARCH_VECTOR)                                                                      \
    X(R_MTP_PROJ, "mtp_proj", ARCH_MATRIX)                                                                                    \
    /* of an EAGLE-3 draft: of the states that proj reads, of all as one or of each */                                        \
    X(R_MTP_ALL_NORM, "mtp_all_norm", ARCH_VECTOR)                                                                            \
    X(R_MTP_EACH_NORM, "mtp_each_norm", ARCH_VECTOR)                                                                          \
    /* of a layer, from here on */                                                                                            \
    X(R_ATTN_NORM, "attn_norm", ARCH_VECTOR)                                                                                  \
    X(R_Q, "q", ARCH_LINEAR)                                                                                                  \
    X(R_K, "k", ARCH_LINEAR)                                                                                                  \
    X(R_V, "v", ARCH_LINEAR)                                                                                                  \
    X(R_QKV, "qkv", ARCH_LINEAR)             /* rows: see qkv_grouped */                                                      \
    X(R_ATTN_GATE, "attn_gate", ARCH_LINEAR) /* on the output before R_O: see gate_softplus */                                \
    /* MIX_CCA (runtime/forward/forward_cca.c): v's second half, of the position before; taps of each \
     * channel of [q, k], and of heads [head_dim, head_dim, head_taps]; [kv_heads] on normed k */                       \
    X(R_V_LATE, "v_late", ARCH_LINEAR)                                                                                        \
    X(R_CCA_CONV, "cca_conv", ARCH_VECTOR)                                                                                    \
    X(R_CCA_HEADS, "cca_heads", ARCH_VECTOR)                                                                                  \
    X(R_K_SCALE, "k_scale", ARCH_VECTOR)                                                                                      \
    /* e^(rate softplus(step v)), [kv_heads, kv_heads * v_dim] and [kv_heads]: on the scores of v's key */                    \
    X(R_KEY_STEP, "key_step", ARCH_MATRIX)                                                                                    \
    X(R_KEY_RATE, "key_rate", ARCH_VECTOR)                                                                                    \
    X(R_O, "o", ARCH_LINEAR)                                                                                                  \
    X(R_DIST_K, "dist_k",                                                                                                     \
      ARCH_MATRIX) /* keys and queries of R_DIST_EMBED, where not by R_K and R_Q */                                           \
    X(R_DIST_Q, "dist_q", ARCH_MATRIX)                                                                                        \
    /* [heads * rel_dims, hidden], and [rel_extent, rel_dims]: what a query adds to the scores of each distance */            \
    X(R_REL, "rel", ARCH_MATRIX)                                                                                              \
    X(R_REL_BANK, "rel_bank", ARCH_MATRIX)                                                                                    \
    /* MIX_TAPPED: taps of each channel of k, of v and of what attention gives, whose sums are added to what they read */     \
    X(R_K_CONV, "k_conv", ARCH_VECTOR)                                                                                        \
    X(R_V_CONV, "v_conv", ARCH_VECTOR)                                                                                        \
    X(R_ATTN_CONV, "attn_conv", ARCH_VECTOR)                                                                                  \
    X(R_Q_NORM, "q_norm", ARCH_VECTOR)                                                                                        \
    X(R_K_NORM, "k_norm", ARCH_VECTOR)                                                                                        \
    X(R_O_NORM, "o_norm", ARCH_VECTOR) /* of what R_O reads */                                                                \
    X(R_V_NORM, "v_norm", ARCH_VECTOR) /* of each head */                                                                     \
    X(R_SINKS, "sinks", ARCH_VECTOR)   /* [heads] */                                                                          \
    /* [heads]: q of position p is times slope log(p + 1) + base */                                                           \
    X(R_Q_SLOPE, "q_slope", ARCH_VECTOR)                                                                                      \
    X(R_Q_BASE, "q_base", ARCH_VECTOR)                                                                                        \
    X(R_HEAD_GATE, "head_gate", ARCH_MATRIX) /* [heads, hidden]: sigmoid on each head's output */                             \
    X(R_GATE_BIAS, "gate_bias", ARCH_VECTOR) /* [heads] on R_ATTN_GATE's, one for each dim */                                 \
    /* [head_dim] each: what differential attention takes off by (model_layer.diff) */                                        \
    X(R_DIFF_Q1, "diff_q1", ARCH_VECTOR)                                                                                      \
    X(R_DIFF_K1, "diff_k1", ARCH_VECTOR)                                                                                      \
    X(R_DIFF_Q2, "diff_q2", ARCH_VECTOR)                                                                                      \
    X(R_DIFF_K2, "diff_k2", ARCH_VECTOR)                                                                                      \
    /* Of transformers beside the residual (runtime/forward/forward_aside.c): [2 * hidden] on [x, the embedding]; what this \
     * use adds to q, k and v of it, LOW first, and (with the MLP's) to gate and up; from the MLP to x */ \
    X(R_PAIR_NORM, "pair_norm", ARCH_VECTOR)                                                                                  \
    X(R_Q_LOW, "q_low", ARCH_MATRIX)                                                                                          \
    X(R_Q_HIGH, "q_high", ARCH_MATRIX)                                                                                        \
    X(R_K_LOW, "k_low", ARCH_MATRIX)                                                                                          \
    X(R_K_HIGH, "k_high", ARCH_MATRIX)                                                                                        \
    X(R_V_LOW, "v_low", ARCH_MATRIX)                                                                                          \
    X(R_V_HIGH, "v_high", ARCH_MATRIX)                                                                                        \
    /* MLA (arXiv:2405.04434): q = b_q norm(a_q h); [c, k_rope] = a_kv h;                         \
     * [k_nope, v] of each head = b_kv norm(c) */                           \
    X(R_Q_A, "q_a", ARCH_LINEAR)                                                                                              \
    X(R_Q_A_NORM, "q_a_norm", ARCH_VECTOR)                                                                                    \
    X(R_Q_B, "q_b", ARCH_LINEAR)                                                                                              \
    X(R_KV_A, "kv_a", ARCH_LINEAR)                                                                                            \
    X(R_KV_A_NORM, "kv_a_norm", ARCH_VECTOR)                                                                                  \
    X(R_K_ROPE_NORM, "k_rope_norm", ARCH_VECTOR) /* of k_rope, before it rotates */                                           \
    X(R_KV_B, "kv_b", ARCH_LINEAR)                                                                                            \
    /* The lightning indexer (arXiv:2512.02556): index_q norm(a_q h) of its heads, norm(index_k h) of   \
     * all, the heads' weights index_w h (runtime/forward/forward_index.c) */                     \
    X(R_INDEX_Q, "index_q", ARCH_MATRIX)                                                                                      \
    X(R_INDEX_K, "index_k", ARCH_MATRIX)                                                                                      \
    X(R_INDEX_K_NORM, "index_k_norm", ARCH_VECTOR)                                                                            \
    X(R_INDEX_Q_NORM, "index_q_norm", ARCH_VECTOR) /* of each head; index_q reads h then */                                   \
    X(R_INDEX_W, "index_w", ARCH_MATRIX)                                                                                      \
    /* of h, which index_q then reads; q_slope and q_base of its heads */                                                     \
    X(R_INDEX_IN_NORM, "index_in_norm", ARCH_VECTOR)                                                                          \
    X(R_INDEX_SLOPE, "index_slope", ARCH_VECTOR)                                                                              \
    X(R_INDEX_BASE, "index_base", ARCH_VECTOR)                                                                                \
    /* Layers that compress (runtime/forward/forward_compress.c): what a position gives to a \
     * compressed one, and its weight; a bias by its place there; the compressed one's norm. Keys of \
     * an indexer are made likewise, by R_INDEX_K and these */                                \
    X(R_INDEX_GATE, "index_gate", ARCH_MATRIX)                                                                                \
    X(R_INDEX_BIAS, "index_bias", ARCH_VECTOR)                                                                                \
    X(R_SPARSE_KV, "sparse_kv", ARCH_MATRIX)                                                                                  \
    X(R_SPARSE_GATE, "sparse_gate", ARCH_MATRIX)                                                                              \
    X(R_SPARSE_BIAS, "sparse_bias", ARCH_VECTOR)                                                                              \
    X(R_SPARSE_NORM, "sparse_norm", ARCH_VECTOR)                                                                              \
    X(R_HEAVY_KV, "heavy_kv", ARCH_MATRIX)                                                                                    \
    X(R_HEAVY_GATE, "heavy_gate", ARCH_MATRIX)                                                                                \
    X(R_HEAVY_BIAS, "heavy_bias", ARCH_VECTOR)                                                                                \
    X(R_HEAVY_NORM, "heavy_norm", ARCH_VECTOR)                                                                                \
    /* [o_groups * o_lora, outputs of a group of heads]: what R_O reads, of each group apart */                               \
    X(R_O_A, "o_a", ARCH_LINEAR)                                                                                              \
    /* Layers with a state (runtime/forward/forward_mixer.c): what the norm's output makes, or what  \
     * of it the convolution takes, in one or as q, k, v; the output's gate, where apart; beta and   \
     * decay of each head (MIX_KDA: of each key dim). DOWN, UP: a product of two small matrices */                        \
    X(R_MIX_IN, "mix_in", ARCH_LINEAR)                                                                                        \
    X(R_MIX_Q, "mix_q", ARCH_LINEAR)                                                                                          \
    X(R_MIX_K, "mix_k", ARCH_LINEAR)                                                                                          \
    X(R_MIX_V, "mix_v", ARCH_LINEAR)                                                                                          \
    X(R_MIX_GATE, "mix_gate", ARCH_LINEAR)                                                                                    \
    X(R_MIX_GATE_DOWN, "mix_gate_down", ARCH_MATRIX)                                                                          \
    X(R_MIX_GATE_UP, "mix_gate_up", ARCH_MATRIX)                                                                              \
    X(R_MIX_BA, "mix_ba", ARCH_MATRIX)                                                                                        \
    X(R_MIX_B, "mix_b", ARCH_MATRIX)                                                                                          \
    X(R_MIX_A, "mix_a", ARCH_MATRIX)                                                                                          \
    X(R_MIX_A_DOWN, "mix_a_down", ARCH_MATRIX)                                                                                \
    X(R_MIX_A_UP, "mix_a_up", ARCH_MATRIX)                                                                                    \
    /* MIX_SELECT: from what the convolution gives [rank of the time step, B, C], and from that the step */                   \
    X(R_MIX_X, "mix_x", ARCH_MATRIX)                                                                                          \
    X(R_MIX_STEP, "mix_step", ARCH_MATRIX)                                                                                    \
    X(R_MIX_STEP_NORM, "mix_step_norm", ARCH_VECTOR) /* of each of the three */                                               \
    X(R_MIX_B_NORM, "mix_b_norm", ARCH_VECTOR)                                                                                \
    X(R_MIX_C_NORM, "mix_c_norm", ARCH_VECTOR)                                                                                \
    /* taps of each channel: NAME_TAPS; or of those of q, k and v */                                                          \
    X(R_MIX_CONV, "mix_conv", ARCH_VECTOR)                                                                                    \
    X(R_MIX_CONV_K, "mix_conv_k", ARCH_VECTOR)                                                                                \
    X(R_MIX_CONV_V, "mix_conv_v", ARCH_VECTOR)                                                                                \
    X(R_MIX_DT, "mix_dt", ARCH_VECTOR)       /* [arch_mix_decays] added to the decay's input */                               \
    X(R_MIX_A_LOG, "mix_a_log", ARCH_VECTOR) /* [mix_heads]; MIX_SELECT: [mix_value, mix_key] */                              \
    X(R_MIX_SKIP, "mix_skip", ARCH_VECTOR) /* [mix_heads]: Mamba-2's D; MIX_SELECT: [mix_value] */                            \
    /* MIX_LRU (runtime/forward/forward_lru.c): gates of what comes in and of the state, each a matrix \
     * [inputs, outputs] for each head and [heads, outputs]; [mix_value] */                      \
    X(R_MIX_ADMIT, "mix_admit", ARCH_VECTOR)                                                                                  \
    X(R_MIX_ADMIT_BIAS, "mix_admit_bias", ARCH_VECTOR)                                                                        \
    X(R_MIX_KEEP, "mix_keep", ARCH_VECTOR)                                                                                    \
    X(R_MIX_KEEP_BIAS, "mix_keep_bias", ARCH_VECTOR)                                                                          \
    X(R_MIX_SPAN, "mix_span", ARCH_VECTOR)                                                                                    \
    X(R_MIX_NORM, "mix_norm", ARCH_VECTOR) /* of the output, before the last product */                                       \
    X(R_MIX_OUT, "mix_out", ARCH_LINEAR)                                                                                      \
    X(R_ATTN_POST_NORM, "attn_post_norm", ARCH_VECTOR) /* of attention's output */                                            \
    X(R_MLP_NORM, "mlp_norm", ARCH_VECTOR)                                                                                    \
    X(R_GATE, "gate", ARCH_LINEAR)                                                                                            \
    X(R_UP, "up", ARCH_LINEAR)                                                                                                \
    X(R_GATE_UP, "gate_up", ARCH_LINEAR) /* rows: gate, then up */                                                            \
    X(R_GATE_UP_LOW, "gate_up_low", ARCH_MATRIX)                                                                              \
    X(R_GATE_UP_HIGH, "gate_up_high", ARCH_MATRIX)                                                                            \
    X(R_ASIDE_OUT, "aside_out", ARCH_MATRIX)                                                                                  \
    X(R_XIELU_P, "xielu_p", ARCH_VECTOR) /* [1], as are the next three: ARCH_XIELU */                                         \
    X(R_XIELU_N, "xielu_n", ARCH_VECTOR)                                                                                      \
    X(R_XIELU_BETA, "xielu_beta", ARCH_VECTOR)                                                                                \
    X(R_XIELU_EPS, "xielu_eps", ARCH_VECTOR)                                                                                  \
    X(R_DOWN_NORM, "down_norm", ARCH_VECTOR)   /* of what R_DOWN reads */                                                     \
    X(R_DOWN_SCALE, "down_scale", ARCH_VECTOR) /* [1]: on the same */                                                         \
    X(R_DOWN, "down", ARCH_LINEAR)                                                                                            \
    X(R_ROUTER, "router", ARCH_MATRIX)                                                                                        \
    /* What R_ROUTER reads, where it is not h: gelu(2 gelu(1 norm(a))), a = in h + carry * the a \
     * of the layer before */                            \
    X(R_ROUTER_IN, "router_in", ARCH_MATRIX)                                                                                  \
    X(R_ROUTER_CARRY, "router_carry", ARCH_VECTOR)                                                                            \
    X(R_ROUTER_IN_NORM, "router_in_norm", ARCH_VECTOR)                                                                        \
    X(R_ROUTER_1, "router_1", ARCH_MATRIX)                                                                                    \
    X(R_ROUTER_2, "router_2", ARCH_MATRIX)                                                                                    \
    X(R_ROUTER_CORR, "router_corr", ARCH_VECTOR) /* added to the scores that choose experts */                                \
    X(R_SHARE_SCALE, "share_scale", ARCH_VECTOR) /* [1]: on all shares */                                                     \
    X(R_EXPERTS_OF, "experts_of", ARCH_VECTOR)   /* [vocab, experts_used]: those of each token */                             \
    X(R_LATENT_IN, "latent_in", ARCH_MATRIX)     /* h to what experts read, and back */                                       \
    X(R_LATENT_OUT, "latent_out", ARCH_MATRIX)                                                                                \
    X(R_LATENT_NORM, "latent_norm", ARCH_VECTOR) /* of what R_LATENT_IN gives */                                              \
    /* dense_beside: of what router and experts read, MLP and experts give; on shares */                                      \
    X(R_ROUTER_NORM, "router_norm", ARCH_VECTOR)                                                                              \
    X(R_EXPERT_NORM, "expert_norm", ARCH_VECTOR)                                                                              \
    X(R_DENSE_POST_NORM, "dense_post_norm", ARCH_VECTOR)                                                                      \
    X(R_EXPERT_POST_NORM, "expert_post_norm", ARCH_VECTOR)                                                                    \
    X(R_EXPERT_SCALE, "expert_scale", ARCH_VECTOR)                                                                            \
    X(R_EXPERTS_BIAS, "experts_bias", ARCH_VECTOR) /* [hidden] added once to what they all give */                            \
    X(R_EXPERT_OUT_NORM, "expert_out_norm",                                                                                   \
      ARCH_VECTOR) /* of what each expert gives, before its share */                                                          \
    X(R_EXPERT_GATE, "expert_gate", ARCH_LINEAR)                                                                              \
    X(R_EXPERT_UP, "expert_up", ARCH_LINEAR)                                                                                  \
    X(R_EXPERT_GATE_UP, "expert_gate_up", ARCH_LINEAR) /* rows: see gate_up_mixed */                                          \
    X(R_EXPERT_DOWN, "expert_down", ARCH_LINEAR)                                                                              \
    X(R_SHARED_ROUTER, "shared_router", ARCH_MATRIX) /* [1, hidden]: sigmoid on the shared MLP */                             \
    X(R_SHARED_GATE, "shared_gate", ARCH_LINEAR)                                                                              \
    X(R_SHARED_UP, "shared_up", ARCH_LINEAR)                                                                                  \
    X(R_SHARED_GATE_UP, "shared_gate_up", ARCH_LINEAR) /* rows: gate, then up */                                              \
    X(R_SHARED_DOWN, "shared_down",                                                                                           \
      ARCH_LINEAR) /* of several (shared_experts) the rows of each in turn */                                                 \
    X(R_MLP_CONV, "mlp_conv", ARCH_VECTOR)           /* MIX_TAPPED, of what MLP or experts give */                            \
    X(R_MLP_POST_NORM, "mlp_post_norm", ARCH_VECTOR) /* of the MLP's output */                                                \
    /* x += norm(out(act(gate x) * the layer's ple_dim)), after the MLP */                                                    \
    X(R_PLE_GATE, "ple_gate", ARCH_MATRIX)                                                                                    \
    X(R_PLE_OUT, "ple_out", ARCH_MATRIX)                                                                                      \
    X(R_PLE_POST_NORM, "ple_post_norm", ARCH_VECTOR)                                                                          \
    X(R_LAYER_SCALE, "layer_scale", ARCH_VECTOR) /* [1]: on x, at the end */                                                  \
    /* AltUp: small matrices by rows; the scale on what R_PLE_GATE reads */                                                   \
    X(R_STREAM_NORM, "stream_norm", ARCH_VECTOR)                                                                              \
    X(R_STREAM_ROUTER, "stream_router", ARCH_VECTOR)                                                                          \
    X(R_STREAM_PREDICT, "stream_predict", ARCH_VECTOR)                                                                        \
    X(R_STREAM_CORRECT, "stream_correct", ARCH_VECTOR)                                                                        \
    X(R_STREAM_SCALE, "stream_scale", ARCH_VECTOR)                                                                            \
    /* Hyper-connections, before attention and before the MLP (runtime/forward/forward_hyper.c) */                            \
    X(R_HYPER_ATTN_FN, "hyper_attn_fn", ARCH_MATRIX)                                                                          \
    X(R_HYPER_ATTN_BASE, "hyper_attn_base", ARCH_VECTOR)                                                                      \
    X(R_HYPER_ATTN_SCALE, "hyper_attn_scale", ARCH_VECTOR)                                                                    \
    X(R_HYPER_MLP_FN, "hyper_mlp_fn", ARCH_MATRIX)                                                                            \
    X(R_HYPER_MLP_BASE, "hyper_mlp_base", ARCH_VECTOR)                                                                        \
    X(R_HYPER_MLP_SCALE, "hyper_mlp_scale", ARCH_VECTOR)                                                                      \
    X(R_HYPER_ATTN_NORM, "hyper_attn_norm", ARCH_VECTOR)                                                                      \
    X(R_HYPER_ATTN_DOWN, "hyper_attn_down", ARCH_MATRIX)                                                                      \
    X(R_HYPER_ATTN_UP, "hyper_attn_up", ARCH_MATRIX)                                                                          \
    X(R_HYPER_ATTN_POST, "hyper_attn_post", ARCH_MATRIX)                                                                      \
    X(R_HYPER_MLP_NORM, "hyper_mlp_norm", ARCH_VECTOR)                                                                        \
    X(R_HYPER_MLP_DOWN, "hyper_mlp_down", ARCH_MATRIX)                                                                        \
    X(R_HYPER_MLP_UP, "hyper_mlp_up", ARCH_MATRIX)                                                                            \
    X(R_HYPER_MLP_POST, "hyper_mlp_post", ARCH_MATRIX)                                                                        \
    /* Laurel: x = (x + h + norm(right left h)) / sqrt(2), after attention */                                                 \
    X(R_LAUREL_LEFT, "laurel_left", ARCH_MATRIX)                                                                              \
    X(R_LAUREL_RIGHT, "laurel_right", ARCH_MATRIX)                                                                            \
    X(R_LAUREL_NORM, "laurel_norm", ARCH_VECTOR)                                                                              \
    /* On what R_ATTN_NORM and R_MLP_NORM make: y sigmoid(up silu(down y)) */                                                 \
    X(R_ATTN_NORM_DOWN, "attn_norm_down", ARCH_MATRIX)                                                                        \
    X(R_ATTN_NORM_UP, "attn_norm_up", ARCH_MATRIX)                                                                            \
    X(R_MLP_NORM_DOWN, "mlp_norm_down", ARCH_MATRIX)                                                                          \
    X(R_MLP_NORM_UP, "mlp_norm_up", ARCH_MATRIX)                                                                              \
    /* [hidden] each: x = a x + b y where a branch joins, b = sigmoid(gate / join_heat), a^2 = 1 - b^2 */                     \
    X(R_ATTN_JOIN, "attn_join", ARCH_VECTOR)                                                                                  \
    /* Of a row that has X_BY: x = x_by (x + x_add) + join (y + y_add), with what else it has of these */                     \
    X(R_ATTN_JOIN_Y_ADD, "attn_join_y_add", ARCH_VECTOR)                                                                      \
    X(R_ATTN_JOIN_X_BY, "attn_join_x_by", ARCH_VECTOR)                                                                        \
    X(R_ATTN_JOIN_X_ADD, "attn_join_x_add", ARCH_VECTOR)                                                                      \
    X(R_MLP_JOIN, "mlp_join", ARCH_VECTOR)                                                                                    \
    X(R_MLP_JOIN_Y_ADD, "mlp_join_y_add", ARCH_VECTOR)                                                                        \
    X(R_MLP_JOIN_X_BY, "mlp_join_x_by", ARCH_VECTOR)                                                                          \
    X(R_MLP_JOIN_X_ADD, "mlp_join_x_add", ARCH_VECTOR)                                                                        \
    /* Embeddings of n-grams (runtime/forward/forward_ngram.c): rows of heads, of one tensor or of several, one after the   \
     * other; what they make for each stream and for all; norms of streams; taps of their channels */ \
    X(R_NGRAM_TABLE, "ngram_table", ARCH_MATRIX)                                                                              \
    X(R_NGRAM_KEY, "ngram_key", ARCH_MATRIX)                                                                                  \
    X(R_NGRAM_VALUE, "ngram_value", ARCH_MATRIX)                                                                              \
    X(R_NGRAM_KEY_NORM, "ngram_key_norm", ARCH_VECTOR)                                                                        \
    X(R_NGRAM_QUERY_NORM, "ngram_query_norm", ARCH_VECTOR)                                                                    \
    X(R_NGRAM_CONV_NORM, "ngram_conv_norm", ARCH_VECTOR)                                                                      \
    X(R_NGRAM_CONV, "ngram_conv", ARCH_VECTOR)

typedef enum {
#define X(name, text, kind) name,
    ARCH_ROLES(X)
#undef X
        ARCH_N_ROLES
} arch_role;
enum { ARCH_N_EXPERT_ROLES = R_EXPERT_DOWN - R_EXPERT_GATE + 1 };

const char *arch_role_text(arch_role r);
arch_kind arch_role_kind(arch_role r);
bool arch_role_linear(arch_role r);
bool arch_role_per_layer(arch_role r);  /* from R_ATTN_NORM on */
bool arch_role_per_expert(arch_role r); /* R_EXPERT_GATE .. R_EXPERT_DOWN */
/* Small matrices of a layer that are never quantized: routers, what makes beta and decay, an indexer's
 * weights of heads. */
bool arch_role_exact(arch_role r);
const char *arch_mixer_text(arch_mixer m);
bool arch_mixer_from_text(arch_mixer *m, const char *text);
bool arch_mixer_attends(arch_mixer m);
bool arch_mixer_has_state(arch_mixer m);
static inline bool arch_mixer_compresses(arch_mixer m) { return m == MIX_SPARSE || m == MIX_HEAVY; }
/* Has it products of its own, R_MIX_..., that a scan or convolution goes along? */
static inline bool arch_mixer_scans(arch_mixer m)
{
    return arch_mixer_has_state(m) && !arch_mixer_compresses(m) && m != MIX_CCA && m != MIX_TAPPED;
}

#endif
