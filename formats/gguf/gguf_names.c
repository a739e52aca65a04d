/* formats/gguf/gguf_names.c */
#include "formats/gguf/gguf_names.h"

#include <stdio.h>

/* clang-format off */
const gguf_arch gguf_archs[] = {
    { "llama", "MixtralForCausalLM", .turned = true, .when = "expert_count" },
    { "llama", "MistralForCausalLM", .turned = true, .when = "attention.sliding_window" },
    { "llama", "LlamaForCausalLM", .turned = true },
    { "qwen2", "Qwen2ForCausalLM", .turned = false },
    { "qwen3", "Qwen3ForCausalLM", .turned = false },
    { "qwen2moe", "Qwen2MoeForCausalLM", .turned = false },
    { "qwen3moe", "Qwen3MoeForCausalLM", .turned = false },
    { "phi3", "Phi3ForCausalLM", .turned = false },
    { "gemma", "GemmaForCausalLM", .turned = false },
    { "gemma2", "Gemma2ForCausalLM", .turned = false },
    { "gemma3", "Gemma3ForCausalLM", .turned = false },
    { "gemma-embedding", "Gemma3ForCausalLM", .both_ways = "Gemma3TextModel" },
    { "llama-embed", "LlamaBidirectionalForCausalLM", .turned = true, .both_ways = "LlamaBidirectionalModel" },
    { "bert", "BertLMHeadModel", .eps = "layer_norm_eps", .both_ways = "BertModel" },
    /* Read as the first, as which they compute but for the rows of positions before the first. */
    { "bert", "XLMRobertaForCausalLM", .eps = "layer_norm_eps", .both_ways = "XLMRobertaModel" },
    { "bert", "RobertaForCausalLM", .eps = "layer_norm_eps", .both_ways = "RobertaModel" },
    { "bert", "CamembertForCausalLM", .eps = "layer_norm_eps", .both_ways = "CamembertModel" },
    { "nomic-bert", "NomicBertForCausalLM", .eps = "layer_norm_epsilon", .both_ways = "NomicBertModel" },
    { "jina-bert-v2", "JinaBertForCausalLM", .eps = "layer_norm_eps", .both_ways = "JinaBertModel" },
    { "modern-bert", "ModernBertForCausalLM", .eps = "norm_eps", .both_ways = "ModernBertModel" },
    { "eurobert", "EuroBertForCausalLM", .both_ways = "EuroBertModel" },
    { "gemma4", "Gemma4UnifiedForCausalLM", .when = "-", .layered = true }, /* written alone */
    { "gemma4", "Gemma4ForCausalLM", .layered = true, .gate_up_one = true },
    { "gemma3n", "Gemma3nForCausalLM", .layered = true },
    { "olmo2", "Olmo3ForCausalLM", .when = "attention.sliding_window" },
    { "olmo2", "Olmo2ForCausalLM", .turned = false },
    { "granite", "GraniteForCausalLM", .turned = true },
    { "smollm3", "SmolLM3ForCausalLM", .turned = true },
    { "apertus", "ApertusForCausalLM", .turned = false },
    { "arcee", "ArceeForCausalLM", .turned = true },
    { "bloom", "BloomForCausalLM", .qkv = QKV_APART, .eps = "layer_norm_epsilon" },
    { "chatglm", "GlmForCausalLM", .turned = false },
    { "cohere2", "Cohere2ForCausalLM", .eps = "layer_norm_eps" },
    { "cohere2moe", "Cohere2MoeForCausalLM", .eps = "layer_norm_eps" },
    { "command-r", "CohereForCausalLM", .eps = "layer_norm_eps" },
    { "deepseek32", "DeepseekV32ForCausalLM", .kv_apart = true },
    { "glm-dsa", "GlmMoeDsaForCausalLM", .kv_apart = true },
    { "deepseek4", "DeepseekV4ForCausalLM", .compress = true },
    { "deepseek2", "DeepseekV3ForCausalLM", .when = "*.exp_probs_b.bias" },
    { "mistral4", "Mistral4ForCausalLM", .gate_up_one = true },
    { "deepseek2", "Mistral4ForCausalLM", .when = "attention.temperature_scale" }, /* Mistral Large 3; read alone */
    { "deepseek2", "DeepseekV2ForCausalLM", .when = "expert_count" },
    { "deepseek2", "YoutuForCausalLM", .turned = false },
    { "dots1", "Dots1ForCausalLM", .turned = false },
    { "ernie4_5", "Ernie4_5ForCausalLM", .turned = false },
    { "exaone4", "Exaone4ForCausalLM", .turned = false },
    { "falcon", "FalconForCausalLM", .qkv = QKV_APART, .eps = "layer_norm_epsilon" },
    { "glm4", "Glm4ForCausalLM", .turned = false },
    { "glm4moe", "Glm4MoeForCausalLM", .further = true, .mlp_norm_post = true },
    { "gpt-oss", "GptOssForCausalLM", .mlp_norm_post = true },
    { "gpt2", "GPT2LMHeadModel", .eps = "layer_norm_epsilon" },
    { "gptneox", "GPTNeoXForCausalLM", .qkv = QKV_APART, .eps = "layer_norm_eps" },
    { "granitemoe", "GraniteMoeSharedForCausalLM", .turned = true,
      .when = "expert_shared_feed_forward_length" },
    { "granitemoe", "GraniteMoeForCausalLM", .turned = true },
    { "lfm2", "Lfm2ForCausalLM", .state = true, .eps = "norm_eps" },
    { "lfm2moe", "Lfm2MoeForCausalLM", .state = true, .eps = "norm_eps" },
    { "mamba", "FalconMambaForCausalLM", .state = true, .eps = "layer_norm_epsilon", .when = "ssm.dt_b_c_rms" },
    { "mamba", "MambaForCausalLM", .state = true, .eps = "layer_norm_epsilon" },
    { "jamba", "JambaForCausalLM", .state = true },
    { "deci", "DeciLMForCausalLM", .turned = true, .lists = true },
    { "laguna", "LagunaForCausalLM", .lists = true },
    { "mimo2", "MiMoV2FlashForCausalLM", .lists = true, .values = true },
    { "step35", "Step3p5ForCausalLM", .lists = true, .half_turns = true },
    { "dbrx", "DbrxForCausalLM", .turned = false },
    { "mamba2", "Mamba2ForCausalLM", .state = true, .eps = "layer_norm_epsilon" },
    { "granite", "GraniteMoeHybridForCausalLM", .turned = true, .when = "-", .attends = true },
    { "granite_swa", "GraniteMoeSWAForCausalLM", .turned = true, .when = "expert_count", .gate_up_one = true },
    { "granite_swa", "GraniteSWAForCausalLM", .turned = true },
    { "granitehybrid", "BambaForCausalLM", .turned = true, .state = true, .when = "rope.scaling.finetuned" },
    { "granitehybrid", "GraniteMoeHybridForCausalLM", .turned = true, .state = true },
    { "nemotron_h_moe", "NemotronHForCausalLM", .turned = true, .state = true, .eps = "layer_norm_epsilon",
      .experts = true },
    { "nemotron_h", "NemotronHForCausalLM", .turned = true, .state = true, .eps = "layer_norm_epsilon" },
    { "falcon-h1", "FalconH1ForCausalLM", .state = true },
    { "kimi-linear", "KimiLinearForCausalLM", .state = true },
    { "bailingmoe3", "BailingHybridForCausalLM", .state = true, .kv_apart = true },
    { "qwen3next", "Qwen3NextForCausalLM", .further = true, .state = true, .mlp_norm_post = true },
    { "qwen35", "Qwen3_5ForCausalLM", .further = true, .state = true, .mlp_norm_post = true, .sections = true },
    { "qwen35moe", "Qwen3_5MoeForCausalLM", .further = true, .state = true, .mlp_norm_post = true, .sections = true },
    { "qwen4exp", "Qwen4ExpForCausalLM", .state = true, .sections = true, .ngrams = true },
    { "hunyuan-dense", "HunYuanDenseV1ForCausalLM", .turned = false },
    { "mpt", "MptForCausalLM", .eps = "layer_norm_epsilon" },
    { "nemotron", "NemotronForCausalLM", .eps = "norm_eps" },
    { "olmo", "OlmoForCausalLM", .turned = true, .eps = "layer_norm_eps" },
    { "olmoe", "OlmoeForCausalLM", .turned = false },
    { "phi2", "PhiForCausalLM", .eps = "layer_norm_eps" },
    { "seed_oss", "SeedOssForCausalLM", .mlp_norm_post = true },
    { "stablelm", "StableLmForCausalLM", .eps = "layer_norm_eps" },
    { "starcoder", "GPTBigCodeForCausalLM", .eps = "layer_norm_epsilon" },
    { "starcoder2", "Starcoder2ForCausalLM", .eps = "norm_epsilon" },
    { "ernie4_5-moe", "Ernie4_5_MoeForCausalLM", .turned = false },
    { "exaone-moe", "ExaoneMoeForCausalLM", .turned = false },
    { "hunyuan-moe", "HunYuanMoEV1ForCausalLM", .turned = false },
    { "hy_v3", "HYV3ForCausalLM", .turned = false },
    { "minimax-01", "MiniMaxM1ForCausalLM", .state = true },
    { "minimax-01", "MiniMaxText01ForCausalLM", .state = true },
    { "minimax-01", "MiniMaxForCausalLM", .state = true },
    { "muse-glimmer", "MuseGlimmerForConditionalGeneration", .turned = true, .q_factor = true },
    { "minimax-m2", "MiniMaxM2ForCausalLM", .turned = false },
    { "minimax-m3", "MiniMaxM3SparseForConditionalGeneration", .turned = false },
    { "minimax-m3", "MiniMaxM3VLForCausalLM", .turned = false },
    { "qwen3vlmoe", "Qwen3VLMoeForConditionalGeneration", .sections = true },
    { "llama4", "Llama4ForCausalLM", .turned = false },
    { "mistral3", "Ministral3ForCausalLM", .turned = true },
    { "exaone", "ExaoneForCausalLM", .eps = "layer_norm_epsilon" },
    { "jais2", "Jais2ForCausalLM", .eps = "layer_norm_eps" },
    { "qwen2vl", "Qwen2VLForConditionalGeneration", .sections = true },
    { "qwen3vl", "Qwen3VLForConditionalGeneration", .sections = true },
    { "paddleocr", "PaddleOCRVLForConditionalGeneration", .sections = true },
    { "hunyuan_vl", "HunYuanVLForConditionalGeneration", .sections = true },
    { "deepseek2-ocr", "DeepseekOcr2ForConditionalGeneration", .all_heads = true },
    { "phimoe", "PhimoeForCausalLM", .alone = "norms without their mean, and experts by another softmax" },
    { "bitnet", "BitNetForCausalLM", .tied = true },
    { "bitnet-b1.58", "BitNetForCausalLM", .tied = true }, /* BitNet.cpp's, of another activation; read alone */
    /* Read as the first of their name above, as which they compute. */
    { "qwen2vl", "Qwen2_5_VLForConditionalGeneration", .sections = true },
    { "qwen2vl", "Qwen2_5OmniThinkerForConditionalGeneration", .sections = true },
    { "llama", "IQuestCoderForCausalLM", .turned = true },
    { "llama", "InternLM3ForCausalLM", .turned = true },
    { "deepseek2", "Glm4MoeLiteForCausalLM", .further = true, .turned = false },
    { "glm4moe", "SolarOpenForCausalLM", .mlp_norm_post = true },
    { "glm4moe", "Glm4vMoeForConditionalGeneration", .mlp_norm_post = true },
    { "mellum", "MellumForCausalLM", .turned = false },
    { "afmoe", "AfmoeForCausalLM", .turned = false },
    { "minicpm3", "MiniCPM3ForCausalLM", .turned = false },
    { "minicpm", "GraniteForCausalLM", .turned = true }, /* as which it computes */
    { "minicpm", "MiniCPMForCausalLM", .turned = true },
    { "internlm2", "LlamaForCausalLM", .turned = true }, /* its q, k and v are apart there; read alone */
    { "baichuan", "BaichuanForCausalLM", .turned = true, .blocks = 40 }, /* ALiBi, by its layers */
    { "baichuan", "LlamaForCausalLM", .turned = true }, /* the same, of the 7 B */
    /* Read alone, as architectures that compute as they do. */
    { "xverse", "LlamaForCausalLM", .turned = true },
    { "pangu-embedded", "LlamaForCausalLM", .turned = false },
    { "orion", "StableLmForCausalLM", .eps = "layer_norm_eps" },
    { "codeshell", "Starcoder2ForCausalLM", .eps = "norm_epsilon" },
    { "refact", "BaichuanForCausalLM", .turned = false },
    { "deepseek", "DeepseekOcr2ForConditionalGeneration", .turned = true },
    { "bailingmoe", "BailingMoeForCausalLM", .turned = true, .all_experts = true },
    { "bailingmoe2", "BailingMoeV2ForCausalLM", .when = "*.exp_probs_b.bias", .whole_heads = true },
    { "bailingmoe2", "Dots1ForCausalLM", .turned = false }, /* without it; read alone */
    { "maincoder", "HunYuanDenseV1ForCausalLM", .turned = true },
    { "qwen", "QWenLMHeadModel", .eps = "layer_norm_epsilon", .whole_heads = true, .two_halves = true },
    { "plm", "PLMForCausalLM", .tied = true },
    { "openelm", "OpenELMForCausalLM", .lists = true, .tied = true, .gates_apart = true },
    { "plamo3", "Plamo3ForCausalLM", .turned = false },
    { "smallthinker", "SmallThinkerForCausalLM", .ffn_of_experts = true },
    { "grok", "Grok1ForCausalLM", .whole_heads = true },
    { "arctic", "ArcticForCausalLM", .turned = true, .whole_heads = true, .ffn_of_experts = true },
    { .gguf = NULL },
};
/* clang-format on */

const gguf_sampling_key gguf_sampling[] = {
    { "temperature", "temp", false },
    { "top_k", "top_k", true },
    { "top_p", "top_p", false },
    { "min_p", "min_p", false },
    { "repetition_penalty", "penalty_repeat", false },
    { .hf = NULL },
};

const gguf_list gguf_lists[] = {
    { R_XIELU_P, "xielu.alpha_p" },
    { R_XIELU_N, "xielu.alpha_n" },
    { R_XIELU_BETA, "xielu.beta" },
    { R_XIELU_EPS, "xielu.eps" },
    { .key = NULL },
};

const gguf_list *gguf_list_of(arch_role r)
{
    for (const gguf_list *l = gguf_lists; l->key; l++)
        if (l->role == r) return l;
    return NULL;
}

#define AT(field) offsetof(arch_config, field)
#define EXPERTS(hf, count)                                                        \
    { hf, count, "expert_count", OWN_INT, AT(experts) },                          \
    {                                                                             \
        hf, "num_experts_per_tok", "expert_used_count", OWN_INT, AT(experts_used) \
    }
#define EXPERT_FFN "moe_intermediate_size", "expert_feed_forward_length", OWN_INT, AT(expert_ffn)
#define SHARED_FFN(key) key, "expert_shared_feed_forward_length", OWN_INT, AT(shared_ffn)
#define WINDOW "sliding_window", "attention.sliding_window", OWN_INT, AT(window)
#define WINDOWS "sliding_window_pattern", "attention.sliding_window_pattern", OWN_WINDOWS, 0
#define PATTERN "sliding_window_pattern", "attention.sliding_window_pattern", OWN_PATTERN, 0
#define REAL(key, field) key, key, OWN_REAL, AT(field)
/* clang-format off */
#define GRANITE(hf) \
    { hf, "embedding_multiplier", "embedding_scale", OWN_REAL, AT(embed_scale) }, \
    { hf, "residual_multiplier", "residual_scale", OWN_REAL, AT(residual_scale) }, \
    { hf, "attention_multiplier", "attention.scale", OWN_REAL, AT(attn_scale) }, \
    { hf, "logits_scaling", "logit_scale", OWN_INVERSE, AT(logit_scale) }
/* clang-format on */
/* clang-format off */
#define MAMBA(hf, heads, groups, state, taps) \
    { hf, heads, "ssm.time_step_rank", OWN_INT, AT(mix_heads) }, \
    { hf, groups, "ssm.group_count", OWN_INT, AT(mix_groups) }, \
    { hf, state, "ssm.state_size", OWN_INT, AT(mix_key) }, \
    { hf, taps, "ssm.conv_kernel", OWN_INT, AT(conv_taps) }
#define SELECTIVE(hf) \
    { hf, "time_step_rank", "ssm.time_step_rank", OWN_INT, AT(mix_rank) }, \
    { hf, "state_size", "ssm.state_size", OWN_INT, AT(mix_key) }, \
    { hf, "conv_kernel", "ssm.conv_kernel", OWN_INT, AT(conv_taps) }
#define GRANITE_SWA(hf) \
    GRANITE(hf), \
    { hf, WINDOW }, \
    { hf, WINDOWS }, \
    { hf, "layer_rope_theta", "attention.rope_pattern", OWN_ROTATES, 0 }
#define QWEN_DELTA(hf) \
    MAMBA(hf, "linear_num_value_heads", "linear_num_key_heads", "linear_key_head_dim", \
          "linear_conv_kernel_dim")
#define QWEN_EXPERTS(hf) \
    EXPERTS(hf, "num_experts"), \
    { hf, EXPERT_FFN }, \
    { hf, SHARED_FFN("shared_expert_intermediate_size") }
/* clang-format on */
#define WHETHER(key, field) key, key, OWN_BOOL, AT(field)
#define HAS(key, tensor) key, tensor, OWN_HAS, 0
#define DEEPSEEK_EXPERTS(hf)                                                                 \
    EXPERTS(hf, "n_routed_experts"), { hf, EXPERT_FFN },                                     \
        { hf, "n_shared_experts", "expert_shared_count", OWN_SHARED, AT(shared_ffn) },       \
        { hf, "first_k_dense_replace", "leading_dense_block_count", OWN_DENSE, 0 },          \
        { hf, "routed_scaling_factor", "expert_weights_scale", OWN_REAL, AT(expert_scale) }, \
        { hf, "norm_topk_prob", "expert_weights_norm", OWN_BOOL, AT(w.norm_topk) },          \
        { hf, NULL, "expert_gating_func", OWN_GATING, AT(w.router) },                        \
        { hf, "n_group", "expert_group_count", OWN_INT, AT(expert_groups) },                 \
    {                                                                                        \
        hf, "topk_group", "expert_group_used_count", OWN_INT, AT(groups_used)                \
    }
#define INDEXER(hf)                                                                       \
    { hf, "index_n_heads", "attention.indexer.head_count", OWN_INT, AT(index_heads) },    \
        { hf, "index_head_dim", "attention.indexer.key_length", OWN_INT, AT(index_dim) }, \
    {                                                                                     \
        hf, "index_topk", "attention.indexer.top_k", OWN_INT, AT(index_topk)              \
    }
#define INDEX_BLOCKS(hf)                                                                      \
    { hf, "index_n_heads", "attention.indexer.head_count", OWN_INT, AT(index_heads) },        \
        { hf, "index_head_dim", "attention.indexer.key_length", OWN_INT, AT(index_dim) },     \
        { hf, "index_topk_blocks", "attention.indexer.top_k", OWN_BLOCKS, AT(index_topk) },   \
        { hf, "index_block_size", "attention.indexer.block_size", OWN_INT, AT(index_block) }, \
    {                                                                                         \
        hf, "index_local_blocks", "attention.indexer.local_blocks", OWN_INT, AT(index_local)  \
    }
#define MINIMAX_M3(hf)                                                                             \
    EXPERTS(hf, "num_local_experts"),                                                              \
        { hf, "intermediate_size", "expert_feed_forward_length", OWN_INT, AT(expert_ffn) },        \
        { hf, "dense_intermediate_size", "feed_forward_length", OWN_INT, 0 },                      \
        { hf, "shared_intermediate_size", "expert_shared_count", OWN_SHARED_FFN, AT(shared_ffn) }, \
        { hf, "first_k_dense_replace", "leading_dense_block_count", OWN_DENSE, 0 },                \
        { hf, "routed_scaling_factor", "expert_weights_scale", OWN_REAL, AT(expert_scale) },       \
        { hf, NULL, "expert_weights_norm", OWN_BOOL, AT(w.norm_topk) },                            \
        { hf, NULL, "expert_gating_func", OWN_GATING, AT(w.router) },                              \
        { hf, "layer_types", "indexer.q_proj.weight", OWN_TYPES, 0 }, INDEX_BLOCKS(hf)
#define MINIMAX_01(hf)                                                             \
    EXPERTS(hf, "num_local_experts"),                                              \
        { hf, "layernorm_full_attention_alpha", "residual_scale", OWN_REAL,        \
          AT(join_x[BRANCH_ATTENTION]) },                                          \
        { hf, "layernorm_linear_attention_alpha", "residual_scale", OWN_REAL, 0 }, \
    {                                                                              \
        hf, "layernorm_mlp_alpha", "residual_scale", OWN_REAL, 0                   \
    }
const gguf_own gguf_owns[] = {
    MINIMAX_01("MiniMaxM1ForCausalLM"),
    MINIMAX_01("MiniMaxText01ForCausalLM"),
    MINIMAX_01("MiniMaxForCausalLM"),
    MINIMAX_M3("MiniMaxM3SparseForConditionalGeneration"),
    MINIMAX_M3("MiniMaxM3VLForCausalLM"),
    DEEPSEEK_EXPERTS("DeepseekV32ForCausalLM"),
    INDEXER("DeepseekV32ForCausalLM"),
    EXPERTS("DeepseekV4ForCausalLM", "n_routed_experts"),
    { "DeepseekV4ForCausalLM", EXPERT_FFN },
    { "DeepseekV4ForCausalLM", "n_shared_experts", "expert_shared_count", OWN_SHARED,
      AT(shared_ffn) },
    { "DeepseekV4ForCausalLM", "routed_scaling_factor", "expert_weights_scale", OWN_REAL,
      AT(expert_scale) },
    { "DeepseekV4ForCausalLM", "norm_topk_prob", "expert_weights_norm", OWN_BOOL, AT(w.norm_topk) },
    { "DeepseekV4ForCausalLM", NULL, "expert_gating_func", OWN_GATING, AT(w.router) },
    { "DeepseekV4ForCausalLM", WINDOW },
    INDEXER("DeepseekV4ForCausalLM"),
    { "DeepseekV4ForCausalLM", "q_lora_rank", "attention.q_lora_rank", OWN_INT, 0 },
    { "DeepseekV4ForCausalLM", "qk_rope_head_dim", "rope.dimension_count", OWN_INT, 0 },
    { "DeepseekV4ForCausalLM", "o_groups", "attention.output_group_count", OWN_INT, AT(o_groups) },
    { "DeepseekV4ForCausalLM", "o_lora_rank", "attention.output_lora_rank", OWN_INT, AT(o_lora) },
    { "DeepseekV4ForCausalLM", "compress_rope_theta", "attention.compress_rope_freq_base", OWN_REAL,
      AT(rope[ROPE_LOCAL].theta) },
    { "DeepseekV4ForCausalLM", "hc_mult", "hyper_connection.count", OWN_INT, AT(hyper) },
    { "DeepseekV4ForCausalLM", "hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations", OWN_INT,
      AT(hyper_steps) },
    { "DeepseekV4ForCausalLM", "hc_eps", "hyper_connection.epsilon", OWN_REAL, AT(hyper_eps) },
    DEEPSEEK_EXPERTS("GlmMoeDsaForCausalLM"),
    INDEXER("GlmMoeDsaForCausalLM"),
    { "GlmMoeDsaForCausalLM", "indexer_types", "attention.indexer.types", OWN_INDEXERS, 0 },
    { "MistralForCausalLM", "sliding_window", "attention.sliding_window", OWN_INT, 0 },
    { "Ministral3ForCausalLM", "rope_scaling.llama_4_scaling_beta", "attention.temperature_scale",
      OWN_LIMIT, AT(q_grow) },
    { "Ministral3ForCausalLM", "sliding_window", "attention.sliding_window", OWN_INT, AT(window) },
    { "Olmo3ForCausalLM", WINDOW },
    { "Olmo3ForCausalLM", PATTERN },
    { "Exaone4ForCausalLM", WINDOW },
    { "Exaone4ForCausalLM", PATTERN },
    { "Cohere2ForCausalLM", WINDOW },
    { "Cohere2ForCausalLM", PATTERN },
    { "Cohere2ForCausalLM", REAL("logit_scale", logit_scale) },
    EXPERTS("Cohere2MoeForCausalLM", "num_experts"),
    { "Cohere2MoeForCausalLM", "intermediate_size", "expert_feed_forward_length", OWN_INT,
      AT(expert_ffn) },
    { "Cohere2MoeForCausalLM", "prefix_dense_intermediate_size", "feed_forward_length", OWN_INT,
      0 },
    { "Cohere2MoeForCausalLM", "num_shared_experts", "expert_shared_count", OWN_SHARED,
      AT(shared_ffn) },
    { "Cohere2MoeForCausalLM", NULL, "expert_shared_feed_forward_length", OWN_INT, AT(shared_ffn) },
    { "Cohere2MoeForCausalLM", "first_k_dense_replace", "leading_dense_block_count", OWN_DENSE, 0 },
    { "Cohere2MoeForCausalLM", "norm_topk_prob", "expert_weights_norm", OWN_BOOL, AT(w.norm_topk) },
    { "Cohere2MoeForCausalLM", NULL, "expert_gating_func", OWN_GATING, AT(w.router) },
    { "Cohere2MoeForCausalLM", WINDOW },
    { "Cohere2MoeForCausalLM", WINDOWS },
    { "Cohere2MoeForCausalLM", REAL("logit_scale", logit_scale) },
    { "CohereForCausalLM", REAL("logit_scale", logit_scale) },
    { "CohereForCausalLM", HAS("use_qk_norm", "blk.0.attn_q_norm.weight") },
    { "Starcoder2ForCausalLM", "sliding_window", "attention.sliding_window", OWN_INT, 0 },
    { "StableLmForCausalLM", WHETHER("use_parallel_residual", w.parallel) },
    { "StableLmForCausalLM", HAS("use_qkv_bias", "blk.0.attn_q.bias") },
    { "StableLmForCausalLM", HAS("qk_layernorm", "blk.0.attn_q_norm.weight") },
    { "GPTNeoXForCausalLM", WHETHER("use_parallel_residual", w.parallel) },
    { "GPTNeoXForCausalLM", HAS("attention_bias", "blk.0.attn_qkv.bias") },
    { "FalconForCausalLM", HAS("bias", "blk.0.attn_qkv.bias") },
    { "OlmoForCausalLM", "clip_qkv", "attention.clamp_kqv", OWN_LIMIT, AT(qkv_clip) },
    SELECTIVE("MambaForCausalLM"),
    SELECTIVE("FalconMambaForCausalLM"),
    { "DbrxForCausalLM", "attn_config.clip_qkv", "attention.clamp_kqv", OWN_LIMIT, AT(qkv_clip) },
    { "DbrxForCausalLM", "attn_config.kv_n_heads", "attention.head_count_kv", OWN_INT, 0 },
    { "DbrxForCausalLM", "ffn_config.ffn_hidden_size", "feed_forward_length", OWN_INT, 0 },
    { "DbrxForCausalLM", "ffn_config.moe_num_experts", "expert_count", OWN_INT, AT(experts) },
    { "DbrxForCausalLM", "ffn_config.moe_top_k", "expert_used_count", OWN_INT, AT(experts_used) },
    { "MptForCausalLM", HAS("attn_config.qk_ln", "blk.0.attn_q_norm.weight") },
    { "MptForCausalLM", "attn_config.clip_qkv", "attention.clamp_kqv", OWN_LIMIT, AT(qkv_clip) },
    { "MptForCausalLM", "attn_config.alibi_bias_max", "attention.max_alibi_bias", OWN_REAL,
      AT(alibi_max) },
    { "SeedOssForCausalLM", HAS("attention_bias", "blk.0.attn_q.bias") },
    { "Ernie4_5ForCausalLM", HAS("use_bias", "blk.0.attn_q.bias") },
    EXPERTS("OlmoeForCausalLM", "num_experts"),
    EXPERTS("GptOssForCausalLM", "num_local_experts"),
    { "GptOssForCausalLM", NULL, "expert_feed_forward_length", OWN_INT, AT(expert_ffn) },
    { "GptOssForCausalLM", WINDOW },
    { "GptOssForCausalLM", PATTERN },
    { "GptOssForCausalLM", HAS("attention_bias", "blk.0.attn_q.bias") },
    EXPERTS("GraniteMoeForCausalLM", "num_local_experts"),
    GRANITE("GraniteMoeForCausalLM"),
    { "Lfm2ForCausalLM", "conv_L_cache", "shortconv.l_cache", OWN_INT, AT(conv_taps) },
    { "Lfm2MoeForCausalLM", "conv_L_cache", "shortconv.l_cache", OWN_INT, AT(conv_taps) },
    EXPERTS("Lfm2MoeForCausalLM", "num_experts"),
    { "Lfm2MoeForCausalLM", EXPERT_FFN },
    { "Lfm2MoeForCausalLM", "num_dense_layers", "leading_dense_block_count", OWN_DENSE, 0 },
    { "Lfm2MoeForCausalLM", NULL, "expert_gating_func", OWN_GATING, AT(w.router) },
    { "Lfm2MoeForCausalLM", "routed_scaling_factor", "expert_weights_scale", OWN_REAL,
      AT(expert_scale) },
    MAMBA("Mamba2ForCausalLM", "num_heads", "n_groups", "state_size", "conv_kernel"),
    MAMBA("NemotronHForCausalLM", "mamba_num_heads", "n_groups", "ssm_state_size", "conv_kernel"),
    EXPERTS("NemotronHForCausalLM", "n_routed_experts"),
    { "NemotronHForCausalLM", EXPERT_FFN },
    { "NemotronHForCausalLM", SHARED_FFN("moe_shared_expert_intermediate_size") },
    { "NemotronHForCausalLM", "moe_latent_size", "moe_latent_size", OWN_INT, AT(latent) },
    { "NemotronHForCausalLM", "routed_scaling_factor", "expert_weights_scale", OWN_REAL,
      AT(expert_scale) },
    { "NemotronHForCausalLM", "norm_topk_prob", "expert_weights_norm", OWN_BOOL, AT(w.norm_topk) },
    { "NemotronHForCausalLM", "n_group", "expert_group_count", OWN_INT, AT(expert_groups) },
    { "NemotronHForCausalLM", "topk_group", "expert_group_used_count", OWN_INT, AT(groups_used) },
    MAMBA("GraniteMoeHybridForCausalLM", "mamba_n_heads", "mamba_n_groups", "mamba_d_state",
          "mamba_d_conv"),
    EXPERTS("GraniteMoeHybridForCausalLM", "num_local_experts"),
    { "GraniteMoeHybridForCausalLM", SHARED_FFN("shared_intermediate_size") },
    GRANITE("GraniteMoeHybridForCausalLM"),
    { "KimiLinearForCausalLM", "linear_conv_kernel_dim", "ssm.conv_kernel", OWN_INT,
      AT(conv_taps) },
    { "KimiLinearForCausalLM", "linear_head_dim", "kda.head_dim", OWN_INT, AT(mix_key) },
    EXPERTS("KimiLinearForCausalLM", "num_experts"),
    { "KimiLinearForCausalLM", EXPERT_FFN },
    { "KimiLinearForCausalLM", "num_shared_experts", "expert_shared_count", OWN_SHARED,
      AT(shared_ffn) },
    { "KimiLinearForCausalLM", "first_k_dense_replace", "leading_dense_block_count", OWN_DENSE, 0 },
    { "KimiLinearForCausalLM", "routed_scaling_factor", "expert_weights_scale", OWN_REAL,
      AT(expert_scale) },
    { "KimiLinearForCausalLM", NULL, "expert_gating_func", OWN_GATING, AT(w.router) },
    { "KimiLinearForCausalLM", "num_expert_group", "expert_group_count", OWN_INT,
      AT(expert_groups) },
    { "KimiLinearForCausalLM", "topk_group", "expert_group_used_count", OWN_INT, AT(groups_used) },
    { "BailingHybridForCausalLM", "short_conv_kernel_size", "ssm.conv_kernel", OWN_INT,
      AT(conv_taps) },
    { "BailingHybridForCausalLM", "linear_head_dim", "kda.head_dim", OWN_INT, AT(mix_key) },
    EXPERTS("BailingHybridForCausalLM", "num_experts"),
    { "BailingHybridForCausalLM", EXPERT_FFN },
    { "BailingHybridForCausalLM", NULL, "expert_shared_feed_forward_length", OWN_INT,
      AT(shared_ffn) },
    { "BailingHybridForCausalLM", "num_shared_experts", "expert_shared_count", OWN_SHARED,
      AT(shared_ffn) },
    { "BailingHybridForCausalLM", "first_k_dense_replace", "leading_dense_block_count", OWN_DENSE,
      0 },
    { "BailingHybridForCausalLM", "routed_scaling_factor", "expert_weights_scale", OWN_REAL,
      AT(expert_scale) },
    { "BailingHybridForCausalLM", "moe_renormalize", "expert_weights_norm", OWN_BOOL,
      AT(w.norm_topk) },
    { "BailingHybridForCausalLM", NULL, "expert_gating_func", OWN_GATING, AT(w.router) },
    { "BailingHybridForCausalLM", "num_expert_group", "expert_group_count", OWN_INT,
      AT(expert_groups) },
    { "BailingHybridForCausalLM", "topk_group", "expert_group_used_count", OWN_INT,
      AT(groups_used) },
    QWEN_DELTA("Qwen3NextForCausalLM"),
    QWEN_EXPERTS("Qwen3NextForCausalLM"),
    QWEN_DELTA("Qwen3_5ForCausalLM"),
    QWEN_DELTA("Qwen3_5MoeForCausalLM"),
    QWEN_EXPERTS("Qwen3_5MoeForCausalLM"),
    QWEN_DELTA("Qwen4ExpForCausalLM"),
    QWEN_EXPERTS("Qwen4ExpForCausalLM"),
    { "Qwen4ExpForCausalLM", "hc_count", "hyper_connection.count", OWN_INT, AT(hyper) },
    { "Qwen4ExpForCausalLM", "hc_lowrank", "hyper_connection.low_rank", OWN_INT, AT(hyper_rank) },
    { "Qwen4ExpForCausalLM", "indexer_n_heads", "attention.indexer.head_count", OWN_INT,
      AT(index_heads) },
    { "Qwen4ExpForCausalLM", "indexer_head_dim", "attention.indexer.key_length", OWN_INT,
      AT(index_dim) },
    { "Qwen4ExpForCausalLM", "indexer_budget", "attention.indexer.top_k", OWN_INT, AT(index_topk) },
    MAMBA("FalconH1ForCausalLM", "mamba_n_heads", "mamba_n_groups", "mamba_d_state",
          "mamba_d_conv"),
    EXPERTS("LagunaForCausalLM", "num_experts"),
    { "LagunaForCausalLM", EXPERT_FFN },
    { "LagunaForCausalLM", SHARED_FFN("shared_expert_intermediate_size") },
    { "LagunaForCausalLM", "moe_routed_scaling_factor", "expert_weights_scale", OWN_REAL,
      AT(expert_scale) },
    { "LagunaForCausalLM", NULL, "expert_weights_norm", OWN_BOOL, AT(w.norm_topk) },
    { "LagunaForCausalLM", NULL, "expert_gating_func", OWN_GATING, AT(w.router) },
    { "LagunaForCausalLM", NULL, "leading_dense_block_count", OWN_DENSE, 0 },
    { "LagunaForCausalLM", WINDOW },
    { "LagunaForCausalLM", WINDOWS },
    EXPERTS("MiMoV2FlashForCausalLM", "n_routed_experts"),
    { "MiMoV2FlashForCausalLM", EXPERT_FFN },
    { "MiMoV2FlashForCausalLM", "n_group", "expert_group_count", OWN_INT, AT(expert_groups) },
    { "MiMoV2FlashForCausalLM", "topk_group", "expert_group_used_count", OWN_INT, AT(groups_used) },
    { "MiMoV2FlashForCausalLM", "v_head_dim", "attention.value_length", OWN_INT, 0 },
    { "MiMoV2FlashForCausalLM", NULL, "attention.value_scale", OWN_REAL, AT(o_scale) },
    { "MiMoV2FlashForCausalLM", WINDOW },
    { "MiMoV2FlashForCausalLM", WINDOWS },
    { "MuseGlimmerForConditionalGeneration", WINDOW },
    { "MuseGlimmerForConditionalGeneration", WINDOWS },
    { "MuseGlimmerForConditionalGeneration", "output_multiplier", "logit_scale", OWN_REAL,
      AT(logit_scale) },
    { "MuseGlimmerForConditionalGeneration", REAL("final_logit_softcapping", final_softcap) },
    EXPERTS("Step3p5ForCausalLM", "n_routed_experts"),
    { "Step3p5ForCausalLM", EXPERT_FFN },
    { "Step3p5ForCausalLM", SHARED_FFN("share_expert_dim") },
    { "Step3p5ForCausalLM", "moe_router_scaling_factor", "expert_weights_scale", OWN_REAL,
      AT(expert_scale) },
    { "Step3p5ForCausalLM", "norm_expert_weight", "expert_weights_norm", OWN_BOOL,
      AT(w.norm_topk) },
    { "Step3p5ForCausalLM", NULL, "expert_gating_func", OWN_GATING, AT(w.router) },
    { "Step3p5ForCausalLM", NULL, "leading_dense_block_count", OWN_DENSE, 0 },
    { "Step3p5ForCausalLM", "num_nextn_predict_layers", "nextn_predict_layers", OWN_INT, 0 },
    { "Step3p5ForCausalLM", "swiglu_limits", "swiglu_clamp_exp", OWN_LIMITS,
      offsetof(arch_layer, expert_limit) },
    { "Step3p5ForCausalLM", "swiglu_limits_shared", "swiglu_clamp_shexp", OWN_LIMITS,
      offsetof(arch_layer, mlp_limit) },
    { "Step3p5ForCausalLM", WINDOW },
    { "Step3p5ForCausalLM", WINDOWS },
    GRANITE_SWA("GraniteSWAForCausalLM"),
    GRANITE_SWA("GraniteMoeSWAForCausalLM"),
    EXPERTS("GraniteMoeSWAForCausalLM", "num_local_experts"),
    { "GraniteMoeSWAForCausalLM", SHARED_FFN("shared_intermediate_size") },
    MAMBA("BambaForCausalLM", "mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"),
    { "JambaForCausalLM", "mamba_d_state", "ssm.state_size", OWN_INT, AT(mix_key) },
    { "JambaForCausalLM", "mamba_d_conv", "ssm.conv_kernel", OWN_INT, AT(conv_taps) },
    { "JambaForCausalLM", "mamba_dt_rank", "ssm.time_step_rank", OWN_INT, AT(mix_rank) },
    { "JambaForCausalLM", "mamba_expand", "ssm.inner_size", OWN_RATIO, 0 },
    EXPERTS("JambaForCausalLM", "num_experts"),
    DEEPSEEK_EXPERTS("DeepseekV3ForCausalLM"),
    DEEPSEEK_EXPERTS("DeepseekV2ForCausalLM"),
    DEEPSEEK_EXPERTS("Mistral4ForCausalLM"),
    { "Mistral4ForCausalLM", "rope_scaling.llama_4_scaling_beta", "attention.temperature_scale",
      OWN_LIMIT, AT(q_grow) },
    { "Mistral4ForCausalLM", NULL, "attention.temperature_length", OWN_INT, AT(q_grow_every) },
    DEEPSEEK_EXPERTS("DeepseekOcr2ForConditionalGeneration"),
    { "DeepseekOcr2ForConditionalGeneration", HAS("attention_bias", "blk.0.attn_q.bias") },
    { "PaddleOCRVLForConditionalGeneration", HAS("use_bias", "blk.0.attn_q.bias") },
    EXPERTS("PhimoeForCausalLM", "num_local_experts"),
    { "PhimoeForCausalLM", HAS("attention_bias", "blk.0.attn_q.bias") },
    { "PhimoeForCausalLM", HAS("lm_head_bias", "output.bias") },
    { "PhimoeForCausalLM", WINDOW },
    DEEPSEEK_EXPERTS("Dots1ForCausalLM"),
    DEEPSEEK_EXPERTS("Glm4MoeForCausalLM"),
    { "Glm4MoeForCausalLM", HAS("use_qk_norm", "blk.0.attn_q_norm.weight") },
    DEEPSEEK_EXPERTS("Glm4MoeLiteForCausalLM"),
    /* llama.cpp asks for them of a model without experts too. */
    { "YoutuForCausalLM", NULL, "leading_dense_block_count", OWN_DENSE, 0 },
    { "YoutuForCausalLM", NULL, "expert_feed_forward_length", OWN_INT, AT(ffn) },
    { "YoutuForCausalLM", NULL, "expert_shared_count", OWN_SHARED, AT(shared_ffn) },
    DEEPSEEK_EXPERTS("SolarOpenForCausalLM"),
    DEEPSEEK_EXPERTS("Glm4vMoeForConditionalGeneration"),
    { "GraniteMoeSharedForCausalLM", SHARED_FFN("shared_intermediate_size") },
    EXPERTS("GraniteMoeSharedForCausalLM", "num_local_experts"),
    GRANITE("GraniteMoeSharedForCausalLM"),
    EXPERTS("Ernie4_5_MoeForCausalLM", "moe_num_experts"),
    { "Ernie4_5_MoeForCausalLM", EXPERT_FFN },
    { "Ernie4_5_MoeForCausalLM", "moe_num_shared_experts", "expert_shared_count", OWN_SHARED,
      AT(shared_ffn) },
    { "Ernie4_5_MoeForCausalLM", "moe_layer_start_index", "leading_dense_block_count", OWN_DENSE,
      0 },
    EXPERTS("HunYuanMoEV1ForCausalLM", "num_experts"),
    { "HunYuanMoEV1ForCausalLM", EXPERT_FFN },
    { "HunYuanMoEV1ForCausalLM", SHARED_FFN("shared_expert_intermediate_size") },
    EXPERTS("HYV3ForCausalLM", "num_experts"),
    { "HYV3ForCausalLM", EXPERT_FFN },
    { "HYV3ForCausalLM", SHARED_FFN(NULL) }, /* one, or refused */
    { "HYV3ForCausalLM", "router_scaling_factor", "expert_weights_scale", OWN_REAL,
      AT(expert_scale) },
    { "HYV3ForCausalLM", "route_norm", "expert_weights_norm", OWN_BOOL, AT(w.norm_topk) },
    { "HYV3ForCausalLM", NULL, "expert_gating_func", OWN_GATING, AT(w.router) },
    EXPERTS("Llama4ForCausalLM", "num_local_experts"),
    { "Llama4ForCausalLM", "intermediate_size", "expert_feed_forward_length", OWN_INT,
      AT(expert_ffn) },
    { "Llama4ForCausalLM", "intermediate_size_mlp", "feed_forward_length", OWN_INT, 0 },
    { "Llama4ForCausalLM", "interleave_moe_layer_step", "interleave_moe_layer_step", OWN_STEP, 0 },
    EXPERTS("MiniMaxM2ForCausalLM", "num_local_experts"),
    { "MiniMaxM2ForCausalLM", EXPERT_FFN },
    { "MiniMaxM2ForCausalLM", NULL, "expert_gating_func", OWN_GATING, AT(w.router) },
    EXPERTS("BailingMoeForCausalLM", "num_experts"),
    { "BailingMoeForCausalLM", EXPERT_FFN },
    { "BailingMoeForCausalLM", "num_shared_experts", "expert_shared_count", OWN_SHARED,
      AT(shared_ffn) },
    { "BailingMoeForCausalLM", "first_k_dense_replace", "leading_dense_block_count", OWN_DENSE, 0 },
    { "BailingMoeForCausalLM", "norm_topk_prob", "expert_weights_norm", OWN_BOOL, AT(w.norm_topk) },
    { "BailingMoeForCausalLM", NULL, "expert_weights_scale", OWN_REAL, AT(expert_scale) },
    EXPERTS("BailingMoeV2ForCausalLM", "num_experts"),
    { "BailingMoeV2ForCausalLM", EXPERT_FFN },
    { "BailingMoeV2ForCausalLM", "num_shared_experts", "expert_shared_count", OWN_SHARED,
      AT(shared_ffn) },
    { "BailingMoeV2ForCausalLM", "first_k_dense_replace", "leading_dense_block_count", OWN_DENSE,
      0 },
    { "BailingMoeV2ForCausalLM", "routed_scaling_factor", "expert_weights_scale", OWN_REAL,
      AT(expert_scale) },
    { "BailingMoeV2ForCausalLM", "norm_topk_prob", "expert_weights_norm", OWN_BOOL,
      AT(w.norm_topk) },
    { "BailingMoeV2ForCausalLM", NULL, "expert_gating_func", OWN_GATING, AT(w.router) },
    { "BailingMoeV2ForCausalLM", "n_group", "expert_group_count", OWN_INT, AT(expert_groups) },
    { "BailingMoeV2ForCausalLM", "topk_group", "expert_group_used_count", OWN_INT,
      AT(groups_used) },
    DEEPSEEK_EXPERTS("ExaoneMoeForCausalLM"),
    { "ExaoneMoeForCausalLM", WINDOW },
    { "ExaoneMoeForCausalLM", PATTERN },
    EXPERTS("Qwen3VLMoeForConditionalGeneration", "num_experts"),
    { "Qwen3VLMoeForConditionalGeneration", EXPERT_FFN },
    EXPERTS("MellumForCausalLM", "num_local_experts"),
    { "MellumForCausalLM", EXPERT_FFN },
    { "MellumForCausalLM", WINDOW },
    { "MellumForCausalLM", PATTERN },
    { "MellumForCausalLM", "rope_local_base_freq", "rope.freq_base_swa", OWN_REAL,
      AT(rope[ROPE_LOCAL].theta) },
    EXPERTS("AfmoeForCausalLM", "num_experts"),
    { "AfmoeForCausalLM", EXPERT_FFN },
    { "AfmoeForCausalLM", "num_shared_experts", "expert_shared_count", OWN_SHARED, AT(shared_ffn) },
    { "AfmoeForCausalLM", "num_dense_layers", "leading_dense_block_count", OWN_DENSE, 0 },
    { "AfmoeForCausalLM", "route_scale", "expert_weights_scale", OWN_REAL, AT(expert_scale) },
    { "AfmoeForCausalLM", "route_norm", "expert_weights_norm", OWN_BOOL, AT(w.norm_topk) },
    { "AfmoeForCausalLM", NULL, "expert_gating_func", OWN_GATING, AT(w.router) },
    { "AfmoeForCausalLM", WINDOW },
    { "MiniCPMForCausalLM", NULL, "embedding_scale", OWN_REAL, AT(embed_scale) },
    { "MiniCPMForCausalLM", NULL, "residual_scale", OWN_REAL, AT(residual_scale) },
    { "MiniCPMForCausalLM", NULL, "logit_scale", OWN_INVERSE, AT(logit_scale) },
    { "Plamo3ForCausalLM", WINDOW },
    { "Plamo3ForCausalLM", PATTERN },
    { "Plamo3ForCausalLM", "rope_local_base_freq", "rope.freq_base_swa", OWN_REAL,
      AT(rope[ROPE_LOCAL].theta) },
    EXPERTS("SmallThinkerForCausalLM", "num_experts"),
    { "SmallThinkerForCausalLM", EXPERT_FFN },
    { "SmallThinkerForCausalLM", NULL, "expert_gating_func", OWN_GATING, AT(w.router) },
    { "SmallThinkerForCausalLM", WINDOW },
    EXPERTS("ArcticForCausalLM", "num_local_experts"),
    EXPERTS("Grok1ForCausalLM", "num_local_experts"),
    { "Grok1ForCausalLM", EXPERT_FFN },
    { "Grok1ForCausalLM", "embedding_multiplier_scale", "embedding_scale", OWN_REAL,
      AT(embed_scale) },
    { "Grok1ForCausalLM", "output_multiplier_scale", "logit_scale", OWN_REAL, AT(logit_scale) },
    { "Grok1ForCausalLM", "attn_output_multiplier", "attention.output_scale", OWN_REAL,
      AT(attn_scale) },
    { "Grok1ForCausalLM", REAL("attn_logit_softcapping", attn_softcap) },
    { "Grok1ForCausalLM", NULL, "router_logit_softcapping", OWN_REAL, AT(router_softcap) },
    { "Grok1ForCausalLM", "final_logit_softcapping", "final_logit_softcapping", OWN_LIMIT,
      AT(final_softcap) },
    { "Grok1ForCausalLM", "attn_temperature_len", "attention.temperature_length", OWN_INT, 0 },
    EXPERTS("MixtralForCausalLM", "num_local_experts"),
    EXPERTS("Qwen2MoeForCausalLM", "num_experts"),
    { "Qwen2MoeForCausalLM", HAS("qkv_bias", "blk.0.attn_q.bias") },
    { "Qwen2MoeForCausalLM", EXPERT_FFN },
    { "Qwen2MoeForCausalLM", SHARED_FFN("shared_expert_intermediate_size") },
    EXPERTS("Qwen3MoeForCausalLM", "num_experts"),
    { "Qwen3MoeForCausalLM", EXPERT_FFN },
    { "Phi3ForCausalLM", WINDOW },
    { "Gemma2ForCausalLM", WINDOW },
    { "Gemma2ForCausalLM", PATTERN },
    { "Gemma2ForCausalLM", REAL("attn_logit_softcapping", attn_softcap) },
    { "Gemma2ForCausalLM", REAL("final_logit_softcapping", final_softcap) },
    { "Gemma4ForCausalLM", WINDOW },
    { "Gemma4ForCausalLM", REAL("final_logit_softcapping", final_softcap) },
    { "Gemma3nForCausalLM", WINDOW },
    { "Gemma3nForCausalLM", REAL("final_logit_softcapping", final_softcap) },
    { "Gemma4UnifiedForCausalLM", WINDOW },
    { "Gemma4UnifiedForCausalLM", REAL("final_logit_softcapping", final_softcap) },
    { "ModernBertForCausalLM", HAS("norm_bias", "output_norm.bias") },
    { "ModernBertForCausalLM", HAS("attention_bias", "blk.0.attn_qkv.bias") },
    { "ModernBertForCausalLM", HAS("mlp_bias", "blk.0.ffn_up.bias") },
    { "ModernBertForCausalLM", "local_attention", "attention.sliding_window", OWN_INT, AT(window) },
    { "ModernBertForCausalLM", "global_attn_every_n_layers", "attention.sliding_window_pattern",
      OWN_PATTERN, 0 },
    { "ModernBertForCausalLM", "local_rope_theta", "rope.freq_base_swa", OWN_REAL,
      AT(rope[ROPE_LOCAL].theta) },
    { "Gemma3ForCausalLM", WINDOW },
    { "Gemma3ForCausalLM", PATTERN },
    { "Gemma3ForCausalLM", "rope_local_base_freq", "rope.freq_base_swa", OWN_REAL,
      AT(rope[ROPE_LOCAL].theta) },
    GRANITE("GraniteForCausalLM"),
    { .hf = NULL },
};

/* clang-format off */
#define M3_NAMES(row) \
    { R_INDEX_Q, "indexer.q_proj", .variant = row }, \
    { R_INDEX_K, "indexer.k_proj", .variant = row }
#define COMPRESSOR(kv, gate, bias, norm, at) \
    { kv, at "_kv", .variant = "deepseek_v4" }, \
    { gate, at "_gate", .variant = "deepseek_v4" }, \
    { bias, at "_ape", .variant = "deepseek_v4" }, \
    { norm, at "_norm", .variant = "deepseek_v4" }
#define HYPER(fn, base, scale, at) \
    { fn, at "_fn", .variant = "deepseek_v4" }, \
    { base, at "_base", .variant = "deepseek_v4" }, \
    { scale, at "_scale", .variant = "deepseek_v4" }
#define GATED_STREAMS(norm, at) \
    { norm, at "_norm", .join = JOIN_NONE }, \
    { (arch_role)((norm) + 1), at "_down", .join = JOIN_NONE }, \
    { (arch_role)((norm) + 2), at "_up", .join = JOIN_NONE }
/* clang-format on */
static const gguf_name names[] = {
    M3_NAMES("minimax_m3_vl"),
    M3_NAMES("minimax_m3_vl_text"),
    { R_KV_A, "attn_kv", .variant = "deepseek_v4" },
    { R_O_A, "attn_output_a", .variant = "deepseek_v4" },
    { R_O, "attn_output_b", .variant = "deepseek_v4" },
    COMPRESSOR(R_SPARSE_KV, R_SPARSE_GATE, R_SPARSE_BIAS, R_SPARSE_NORM, "attn_compressor"),
    COMPRESSOR(R_HEAVY_KV, R_HEAVY_GATE, R_HEAVY_BIAS, R_HEAVY_NORM, "attn_compressor"),
    COMPRESSOR(R_INDEX_K, R_INDEX_GATE, R_INDEX_BIAS, R_INDEX_K_NORM, "indexer_compressor"),
    HYPER(R_HYPER_END_FN, R_HYPER_END_BASE, R_HYPER_END_SCALE, "output_hc"),
    HYPER(R_HYPER_ATTN_FN, R_HYPER_ATTN_BASE, R_HYPER_ATTN_SCALE, "hc_attn"),
    HYPER(R_HYPER_MLP_FN, R_HYPER_MLP_BASE, R_HYPER_MLP_SCALE, "hc_ffn"),
    { R_EXPERTS_OF, "ffn_gate_tid2eid", .join = JOIN_NONE },
    GATED_STREAMS(R_HYPER_END_NORM, "output_hc"),
    GATED_STREAMS(R_HYPER_ATTN_NORM, "hc_attn"),
    { R_HYPER_ATTN_POST, "hc_attn_inject", .join = JOIN_NONE },
    GATED_STREAMS(R_HYPER_MLP_NORM, "hc_ffn"),
    { R_HYPER_MLP_POST, "hc_ffn_inject", .join = JOIN_NONE },
    { R_NGRAM_TABLE, "per_layer_token_embd", .once = true },
    { R_NGRAM_KEY, "ple_key", .join = JOIN_NONE },
    { R_NGRAM_VALUE, "ple_value", .join = JOIN_NONE },
    { R_NGRAM_KEY_NORM, "ple_norm_key", .join = JOIN_NONE },
    { R_NGRAM_QUERY_NORM, "ple_norm_query", .join = JOIN_NONE },
    { R_NGRAM_CONV_NORM, "ple_norm_conv", .join = JOIN_NONE },
    { R_NGRAM_CONV, "ple_conv1d", .join = JOIN_NONE },
    { R_INDEX_Q, "indexer.q_proj", .variant = "qwen4_exp_text", .join = JOIN_ROWS },
    { R_INDEX_Q, "indexer.k_proj", .variant = "qwen4_exp_text", .join = JOIN_SECOND },
    { R_INDEX_Q_NORM, "indexer.q_norm", .join = JOIN_NONE },
    { R_FINAL_NORM, "nextn.shared_head_norm.weight", .further = true },
    { R_MTP_EMBED_NORM, "nextn.enorm.weight", .further = true },
    { R_MTP_HIDDEN_NORM, "nextn.hnorm.weight", .further = true },
    { R_MTP_PROJ, "nextn.eh_proj.weight", .further = true },
    { R_FINAL_NORM, "token_embd_norm", .mixer = MIX_CONV },
    { R_MIX_IN, "shortconv.in_proj.weight", .mixer = MIX_CONV },
    { R_MIX_CONV, "shortconv.conv.weight", .mixer = MIX_CONV },
    { R_MIX_OUT, "shortconv.out_proj.weight", .mixer = MIX_CONV },
    { R_HEAD_GATE, "attn_gate", .variant = "bailing_hybrid" },
    { R_MIX_GATE, "ssm_g_a", .variant = "bailing_hybrid" },
    { R_MIX_A, "ssm_f_a", .variant = "bailing_hybrid" },
    { R_MIX_Q, "attn_q", .mixer = MIX_KDA },
    { R_MIX_K, "attn_k", .mixer = MIX_KDA },
    { R_MIX_V, "attn_v", .mixer = MIX_KDA },
    { R_MIX_CONV, "ssm_conv1d_q", .mixer = MIX_KDA },
    { R_MIX_CONV_K, "ssm_conv1d_k", .mixer = MIX_KDA },
    { R_MIX_CONV_V, "ssm_conv1d_v", .mixer = MIX_KDA },
    { R_MIX_GATE_DOWN, "ssm_g_a", .mixer = MIX_KDA },
    { R_MIX_GATE_UP, "ssm_g_b", .mixer = MIX_KDA },
    { R_MIX_A_DOWN, "ssm_f_a", .mixer = MIX_KDA },
    { R_MIX_A_UP, "ssm_f_b", .mixer = MIX_KDA },
    { R_MIX_OUT, "attn_output", .mixer = MIX_KDA },
    { R_MIX_IN, "attn_qkv", .mixer = MIX_DELTA },
    { R_MIX_GATE, "attn_gate", .mixer = MIX_DELTA },
    { R_MIX_BA, "ssm_ba", .join = JOIN_NONE },
    { R_MIX_B, "ssm_beta", .join = JOIN_NONE },
    { R_MIX_A, "ssm_alpha", .join = JOIN_NONE },
    { R_MIX_IN, "attn_qkv", .mixer = MIX_LIGHTNING },
    { R_MIX_GATE, "attn_gate", .mixer = MIX_LIGHTNING },
    { R_MIX_NORM, "attn_norm_2", .mixer = MIX_LIGHTNING },
    { R_MIX_OUT, "attn_output", .mixer = MIX_LIGHTNING },
    { R_MIX_IN, "ssm_in", .join = JOIN_NONE },
    { R_MIX_CONV, "ssm_conv1d", .join = JOIN_NONE },
    { R_MIX_DT, "ssm_dt.bias", .join = JOIN_NONE },
    { R_MIX_A_LOG, "ssm_a", .bare = true },
    { R_MIX_SKIP, "ssm_d", .bare = true },
    { R_MIX_X, "ssm_x", .join = JOIN_NONE },
    { R_MIX_STEP, "ssm_dt", .join = JOIN_NONE },
    { R_MIX_NORM, "ssm_norm", .join = JOIN_NONE },
    { R_MIX_OUT, "ssm_out", .join = JOIN_NONE },
    { R_MIX_STEP_NORM, "ssm_dt_norm", .join = JOIN_NONE },
    { R_MIX_B_NORM, "ssm_b_norm", .join = JOIN_NONE },
    { R_MIX_C_NORM, "ssm_c_norm", .join = JOIN_NONE },
    { R_MLP_NORM, "attn_output_norm", .variant = "dbrx" },
    { R_ATTN_NORM, "attn_output_norm", .variant = "bert" }, /* norms after the sums */
    { R_MLP_NORM, "layer_output_norm", .variant = "bert" },
    { R_ATTN_NORM, "attn_output_norm", .variant = "roberta" },
    { R_MLP_NORM, "layer_output_norm", .variant = "roberta" },
    { R_ATTN_NORM, "attn_output_norm", .variant = "xlm-roberta" },
    { R_MLP_NORM, "layer_output_norm", .variant = "xlm-roberta" },
    { R_ATTN_NORM, "attn_output_norm", .variant = "camembert" },
    { R_MLP_NORM, "layer_output_norm", .variant = "camembert" },
    { R_ATTN_NORM, "attn_output_norm", .variant = "nomic_bert" },
    { R_MLP_NORM, "layer_output_norm", .variant = "nomic_bert" },
    { R_ATTN_NORM, "attn_output_norm", .variant = "jina_bert" },
    { R_MLP_NORM, "layer_output_norm", .variant = "jina_bert" },
    { R_TYPE_EMBED, "token_types", .join = JOIN_NONE },
    { R_POOLER, "cls", .join = JOIN_NONE },
    { R_POOL_NORM, "cls.norm", .join = JOIN_NONE },
    { R_SCORE, "cls.output", .join = JOIN_NONE },
    { R_MLP_NORM, "ffn_norm", .mixer = MIX_BOTH, .bare = true }, /* Falcon-H1's */
    { R_GATE_UP, "ffn_gate", .join = JOIN_GATE, .mixer = MIX_MAMBA },
    { R_GATE_UP, "ffn_up", .join = JOIN_SECOND, .mixer = MIX_MAMBA },
    { R_LATENT_IN, "ffn_latent_down", .join = JOIN_NONE },
    { R_LATENT_OUT, "ffn_latent_up", .join = JOIN_NONE },
    { R_EXPERT_GATE_UP, "ffn_gate_up_exps", true, "moe", .join = JOIN_NONE }, /* Gemma 4's */
    { R_EXPERT_GATE_UP, "ffn_gate_up_exps", true, "granitemoe_swa", .join = JOIN_NONE },
    { R_EXPERT_GATE_UP, "ffn_gate_up_exps", true, "mistral4", .join = JOIN_NONE },
    { R_O_NORM, "attn_sub_norm", .join = JOIN_NONE },
    { R_DOWN_NORM, "ffn_sub_norm", .join = JOIN_NONE },
    { R_SHARED_GATE_UP, "ffn_up_shexp", .variant = "granitemoe_swa" },
    { R_ROUTER_NORM, "ffn_gate_inp.scale", false, NULL, .join = JOIN_NONE },
    { R_EXPERT_SCALE, "ffn_down_exps.scale", false, NULL, .join = JOIN_NONE },
    { R_EXPERT_NORM, "ffn_norm_exps", .variant = "arctic" },
    { R_EXPERT_NORM, "pre_ffw_norm_2", false, NULL, .join = JOIN_NONE },
    { R_DENSE_POST_NORM, "post_ffw_norm_1", false, NULL, .join = JOIN_NONE },
    { R_EXPERT_POST_NORM, "post_ffw_norm_2", false, NULL, .join = JOIN_NONE },
    { R_PLE_EMBED, "per_layer_token_embd", false, NULL, .join = JOIN_NONE },
    { R_PLE_PROJ, "per_layer_model_proj", false, NULL, .join = JOIN_NONE },
    { R_PLE_NORM, "per_layer_proj_norm", false, NULL, .join = JOIN_NONE },
    { R_PLE_GATE, "inp_gate", false, NULL, .join = JOIN_NONE },
    { R_PLE_OUT, "proj", false, NULL, .join = JOIN_NONE },
    { R_PLE_POST_NORM, "post_norm", false, NULL, .join = JOIN_NONE },
    { R_LAYER_SCALE, "layer_output_scale", false, NULL, .join = JOIN_NONE },
    { R_STREAM_IN, "altup_proj", true, NULL, .join = JOIN_NONE },
    { R_STREAM_OUT, "altup_unembd_proj", true, NULL, .join = JOIN_NONE },
    { R_STREAM_NORM, "altup_router_norm", false, NULL, .join = JOIN_NONE },
    { R_STREAM_ROUTER, "altup_router", false, NULL, .join = JOIN_NONE },
    { R_STREAM_PREDICT, "altup_predict_coef", false, NULL, .join = JOIN_NONE },
    { R_STREAM_CORRECT, "altup_correct_coef", false, NULL, .join = JOIN_NONE },
    { R_STREAM_SCALE, "altup_correct_scale", false, NULL, .join = JOIN_NONE },
    { R_LAUREL_LEFT, "laurel_l", false, NULL, .join = JOIN_NONE },
    { R_LAUREL_RIGHT, "laurel_r", false, NULL, .join = JOIN_NONE },
    { R_LAUREL_NORM, "laurel_post_norm", false, NULL, .join = JOIN_NONE },
    { R_MLP_NORM, "attn_norm", false, "new", .join = JOIN_NONE }, /* Falcon 40B's two */
    { R_ATTN_NORM, "attn_norm_2", false, "new", .join = JOIN_NONE },
    { R_EMBED, "token_embd", false, NULL, .join = JOIN_NONE },
    { R_EMBED_NORM, "token_embd_norm", false, NULL, .join = JOIN_NONE },
    { R_POS_EMBED, "position_embd", false, NULL, .join = JOIN_NONE },
    { R_FINAL_NORM, "output_norm", false, NULL, .join = JOIN_NONE },
    { R_HEAD, "output", false, NULL, .join = JOIN_NONE },
    { R_ATTN_NORM, "attn_norm", false, NULL, .join = JOIN_NONE },
    { R_Q, "attn_q", false, NULL, .join = JOIN_NONE },
    { R_K, "attn_k", false, NULL, .join = JOIN_NONE },
    { R_V, "attn_v", false, NULL, .join = JOIN_NONE },
    { R_QKV, "attn_qkv", false, NULL, .join = JOIN_NONE },
    { R_ATTN_GATE, "attn_gate", false, NULL, .join = JOIN_NONE },
    { R_O, "attn_output", false, NULL, .join = JOIN_NONE },
    { R_Q_NORM, "attn_q_norm", false, NULL, .join = JOIN_NONE },
    { R_K_NORM, "attn_k_norm", false, NULL, .join = JOIN_NONE },
    { R_ATTN_POST_NORM, "post_attention_norm", .variant = "plamo3", .bare = true },
    { R_MLP_POST_NORM, "post_ffw_norm", .variant = "plamo3", .bare = true },
    { R_ATTN_POST_NORM, "attn_output_norm", .variant = "grok" },
    { R_ATTN_POST_NORM, "post_attention_norm", false, NULL, .join = JOIN_NONE },
    { R_MLP_NORM, "ffn_norm", false, NULL, .join = JOIN_NONE },
    { R_MLP_NORM, "post_attention_norm", false, NULL,
      .join = JOIN_NONE }, /* where R_ATTN_POST_NORM is none */
    { R_SINKS, "attn_sinks", false, NULL, .join = JOIN_NONE },
    { R_GATE, "ffn_gate", false, NULL, .join = JOIN_NONE },
    { R_UP, "ffn_up", false, NULL, .join = JOIN_NONE },
    { R_GATE_UP, "ffn_gate", .variant = "openelm", .join = JOIN_GATE },
    { R_GATE_UP, "ffn_up", .variant = "openelm", .join = JOIN_SECOND },
    { R_GATE_UP, "ffn_gate", false, "granitemoehybrid", .join = JOIN_GATE },
    { R_GATE_UP, "ffn_up", false, "granitemoehybrid", .join = JOIN_SECOND },
    { R_GATE_UP, "ffn_up", false, NULL, .join = JOIN_NONE },
    { R_DOWN, "ffn_down", false, NULL, .join = JOIN_NONE },
    { R_ROUTER, "ffn_gate_inp", false, NULL, .join = JOIN_NONE },
    { R_ROUTER_CORR, "exp_probs_b", false, "hy_v3", .bare = true },
    { R_ROUTER_CORR, "exp_probs_b", false, NULL,
      .join = JOIN_NONE }, /* "exp_probs_b.bias" is the vector */
    { R_EXPERT_GATE, "ffn_gate_exps", true, NULL, .join = JOIN_NONE },
    { R_EXPERT_UP, "ffn_up_exps", true, NULL, .join = JOIN_NONE },
    { R_EXPERT_DOWN, "ffn_down_exps", true, NULL, .join = JOIN_NONE },
    { R_SHARED_ROUTER, "ffn_gate_inp_shexp", false, NULL, .join = JOIN_NONE },
    { R_SHARED_GATE, "ffn_gate_shexp", false, NULL, .join = JOIN_NONE },
    { R_SHARED_UP, "ffn_up_shexp", false, NULL, .join = JOIN_NONE },
    { R_SHARED_GATE_UP, "ffn_gate_shexp", false, NULL, .join = JOIN_GATE },
    { R_SHARED_GATE_UP, "ffn_up_shexp", false, NULL, .join = JOIN_SECOND },
    { R_SHARED_DOWN, "ffn_down_shexp", false, NULL, .join = JOIN_NONE },
    { R_MLP_POST_NORM, "post_ffw_norm", false, NULL, .join = JOIN_NONE },
    { R_MLP_POST_NORM, "layer_output_norm", .variant = "grok" }, /* read alone */
    { R_EXPERT_GATE_UP, "ffn_gate_exps", false, NULL, .join = JOIN_GATE },
    { R_EXPERT_GATE_UP, "ffn_up_exps", false, NULL, .join = JOIN_SECOND },
    { R_EXPERT_GATE_UP, "ffn_gate_up_exps", true, NULL, .join = JOIN_NONE }, /* read alone */
    { R_Q_A, "attn_q_a", false, NULL, .join = JOIN_NONE },
    { R_Q_A_NORM, "attn_q_a_norm", false, NULL, .join = JOIN_NONE },
    { R_Q_B, "attn_q_b", false, NULL, .join = JOIN_NONE },
    { R_KV_A, "attn_kv_a_mqa", false, NULL, .join = JOIN_NONE },
    { R_KV_A_NORM, "attn_kv_a_norm", false, NULL, .join = JOIN_NONE },
    { R_KV_B, "attn_kv_b", false, NULL, .join = JOIN_NONE },
    { R_INDEX_Q, "indexer.attn_q_b", .join = JOIN_NONE },
    { R_INDEX_K, "indexer.attn_k", .join = JOIN_NONE },
    { R_INDEX_K_NORM, "indexer.k_norm", .join = JOIN_NONE },
    { R_INDEX_W, "indexer.proj", .join = JOIN_NONE },
    { R_KV_B, "attn_k_b", false, NULL, .join = JOIN_KEY },
    { R_KV_B, "attn_v_b", false, NULL, .join = JOIN_SECOND },
};

/* Is it a name of tensors of this model, or head? */
static bool of_row(const gguf_name *n, const arch_config *c)
{
    const arch_row *row = c->row;
    if (n->further && !c->mtp) return false;
    if (n->mixer != MIX_ATTENTION && n->mixer != row->mixer) return false;
    return !n->variant || strcmp(n->variant, row->variant ? row->variant : row->model_type) == 0;
}

const gguf_name *gguf_name_find(const arch_config *c, const char *name, size_t n, int64_t layer)
{
    const gguf_name *first = NULL;
    for (size_t i = 0; i < LQ_COUNT(names); i++) {
        const arch_role r = names[i].role;
        if (((arch_role_per_layer(r) && !names[i].once) || names[i].further) != (layer >= 0) ||
            strlen(names[i].gguf) != n || memcmp(names[i].gguf, name, n) != 0 ||
            !arch_name_of(c, r) || !of_row(&names[i], c))
            continue;
        if (layer < 0 || layer >= c->layers || arch_has(c, r, layer)) return &names[i];
        if (!first) first = &names[i];
    }
    return first;
}

/* Where llama.cpp calls the norm before the MLP by the name of the one after attention. */
static bool is_other_name(const gguf_name *n, const gguf_arch *a)
{
    const bool post = n->role == R_MLP_NORM && strcmp(n->gguf, "post_attention_norm") == 0;
    return n->role == R_MLP_NORM && !n->variant && post != a->mlp_norm_post;
}

/* Are vectors, or scores of labels by arch_scorer, what the model is for? */
static bool is_encoder(const arch_config *c)
{
    return c->w.both_ways && (c->head == HEAD_NONE || (c->head == HEAD_LABELS && c->row->scorer));
}

const gguf_arch *gguf_arch_of(const arch_config *c)
{
    for (const gguf_arch *a = gguf_archs; a->gguf; a++)
        if (strcmp(a->hf, c->row->arch) == 0 && (!a->experts || c->experts) &&
            (!a->attends || c->row->mixer == MIX_ATTENTION) &&
            (a->both_ways != NULL) == is_encoder(c))
            return a;
    return NULL;
}

int gguf_names_of(const gguf_name *out[2], const gguf_arch *a, const arch_config *c, arch_role r)
{
    int k = 0;
    if (a->q_factor && (r == R_Q_NORM || r == R_K_NORM || r == R_EMBED_NORM)) return 0;
    if (r == R_MLP_NORM && c->row->one_branch) r = R_ATTN_NORM; /* each layer has one */
    for (size_t i = 0; i < LQ_COUNT(names) && k < 2; i++) {
        const gguf_name *n = &names[i];
        if (n->role != r || !of_row(n, c) || is_other_name(n, a)) continue;
        if (r == R_KV_B && (n->join != JOIN_NONE) != a->kv_apart) continue;
        out[k++] = n;
        if (n->join == JOIN_NONE) break;
    }
    return k;
}

bool gguf_is_q_factor(const gguf_arch *a, const char *tensor)
{
    const char *name = strncmp(tensor, "blk.", 4) == 0 ? strchr(tensor + 4, '.') : NULL;
    return a && a->q_factor && name &&
           (strcmp(name, ".attn_q_norm.weight") == 0 || strcmp(name, ".attn_k_norm.weight") == 0);
}

bool gguf_name_is_whole(const gguf_name *g)
{
    static const char *const endings[] = { ".weight", ".bias", ".scale" };
    const char *end = strrchr(g->gguf, '.');
    for (size_t i = 0; end && i < LQ_COUNT(endings); i++)
        if (strcmp(end, endings[i]) == 0) return true;
    return false;
}

void gguf_tensor_name(char out[64], const gguf_name *g, const arch_slot *slot)
{
    const char *end = slot->bias || slot->role == R_ROUTER_CORR ? ".bias" : ".weight";
    if (g->bare || gguf_name_is_whole(g)) end = "";
    if (slot->layer < 0 || g->once)
        snprintf(out, 64, "%s%s", g->gguf, end);
    else
        snprintf(out, 64, "blk.%lld.%s%s", (long long)slot->layer, g->gguf, end);
}
