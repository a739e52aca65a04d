/* formats/gguf/gguf_names.c */
#include "formats/gguf/gguf_names.h"

const gguf_arch gguf_archs[] = {
    { "llama", "LlamaForCausalLM", .turned = true },
    { "llama", "MistralForCausalLM", .turned = true },
    { "llama", "MixtralForCausalLM", .turned = true, .experts = true },
    { "qwen2", "Qwen2ForCausalLM", .turned = false },
    { "qwen3", "Qwen3ForCausalLM", .turned = false },
    { "qwen2moe", "Qwen2MoeForCausalLM", .experts = true },
    { "qwen3moe", "Qwen3MoeForCausalLM", .experts = true },
    { "phi3", "Phi3ForCausalLM", .turned = false },
    { "gemma", "GemmaForCausalLM", .turned = false },
    { "gemma2", "Gemma2ForCausalLM", .turned = false },
    { "gemma3", "Gemma3ForCausalLM", .turned = false },
    { "olmo2", "Olmo2ForCausalLM", .turned = false },
    { "granite", "GraniteForCausalLM", .turned = true },
    { "smollm3", "SmolLM3ForCausalLM", .turned = true },
    { .gguf = NULL },
};

const gguf_sampling_key gguf_sampling[] = {
    { "temperature", "temp", false },
    { "top_k", "top_k", true },
    { "top_p", "top_p", false },
    { "min_p", "min_p", false },
    { "repetition_penalty", "penalty_repeat", false },
    { .hf = NULL },
};

#define AT(field) offsetof(arch_config, field)
#define EXPERTS(hf, count)                                                        \
    { hf, count, "expert_count", OWN_INT, AT(experts) },                          \
    {                                                                             \
        hf, "num_experts_per_tok", "expert_used_count", OWN_INT, AT(experts_used) \
    }
#define EXPERT_FFN "moe_intermediate_size", "expert_feed_forward_length", OWN_INT, AT(expert_ffn)
#define WINDOW "sliding_window", "attention.sliding_window", OWN_INT, AT(window)
#define PATTERN "sliding_window_pattern", "attention.sliding_window_pattern", OWN_PATTERN, 0
#define REAL(key, field) key, key, OWN_REAL, AT(field)
const gguf_own gguf_owns[] = {
    EXPERTS("MixtralForCausalLM", "num_local_experts"),
    EXPERTS("Qwen2MoeForCausalLM", "num_experts"),
    { "Qwen2MoeForCausalLM", EXPERT_FFN },
    { "Qwen2MoeForCausalLM", "shared_expert_intermediate_size", "expert_shared_feed_forward_length",
      OWN_INT, AT(shared_ffn) },
    EXPERTS("Qwen3MoeForCausalLM", "num_experts"),
    { "Qwen3MoeForCausalLM", EXPERT_FFN },
    { "Phi3ForCausalLM", WINDOW },
    { "Gemma2ForCausalLM", WINDOW },
    { "Gemma2ForCausalLM", PATTERN },
    { "Gemma2ForCausalLM", REAL("attn_logit_softcapping", attn_softcap) },
    { "Gemma2ForCausalLM", REAL("final_logit_softcapping", final_softcap) },
    { "Gemma3ForCausalLM", WINDOW },
    { "Gemma3ForCausalLM", PATTERN },
    { "Gemma3ForCausalLM", "rope_local_base_freq", "rope.freq_base_swa", OWN_REAL,
      AT(rope[ROPE_LOCAL].theta) },
    { "GraniteForCausalLM", "embedding_multiplier", "embedding_scale", OWN_REAL, AT(embed_scale) },
    { "GraniteForCausalLM", "residual_multiplier", "residual_scale", OWN_REAL, AT(residual_scale) },
    { "GraniteForCausalLM", "attention_multiplier", "attention.scale", OWN_REAL, AT(attn_scale) },
    { "GraniteForCausalLM", "logits_scaling", "logit_scale", OWN_INVERSE, AT(logit_scale) },
    { .hf = NULL },
};

static const gguf_name names[] = {
    { R_EMBED, "token_embd", false },
    { R_FINAL_NORM, "output_norm", false },
    { R_HEAD, "output", false },
    { R_ATTN_NORM, "attn_norm", false },
    { R_Q, "attn_q", false },
    { R_K, "attn_k", false },
    { R_V, "attn_v", false },
    { R_QKV, "attn_qkv", false },
    { R_O, "attn_output", false },
    { R_Q_NORM, "attn_q_norm", false },
    { R_K_NORM, "attn_k_norm", false },
    { R_ATTN_POST_NORM, "post_attention_norm", false },
    { R_MLP_NORM, "ffn_norm", false },
    { R_GATE, "ffn_gate", false },
    { R_UP, "ffn_up", false },
    { R_GATE_UP, "ffn_up", false },
    { R_DOWN, "ffn_down", false },
    { R_ROUTER, "ffn_gate_inp", false },
    { R_EXPERT_GATE, "ffn_gate_exps", true },
    { R_EXPERT_UP, "ffn_up_exps", true },
    { R_EXPERT_DOWN, "ffn_down_exps", true },
    { R_SHARED_ROUTER, "ffn_gate_inp_shexp", false },
    { R_SHARED_GATE, "ffn_gate_shexp", false },
    { R_SHARED_UP, "ffn_up_shexp", false },
    { R_SHARED_DOWN, "ffn_down_shexp", false },
    { R_MLP_POST_NORM, "post_ffw_norm", false },
};

const gguf_name *gguf_name_find(const arch_config *c, const char *name, size_t n, bool in_layer)
{
    for (size_t i = 0; i < LQ_COUNT(names); i++)
        if (arch_role_per_layer(names[i].role) == in_layer && strlen(names[i].gguf) == n &&
            memcmp(names[i].gguf, name, n) == 0 && arch_name_of(c, names[i].role))
            return &names[i];
    return NULL;
}

const gguf_name *gguf_name_of(arch_role r)
{
    for (size_t i = 0; i < LQ_COUNT(names); i++)
        if (names[i].role == r) return &names[i];
    return NULL;
}

int64_t gguf_turned_heads(const gguf_arch *a, const arch_config *c, arch_role r)
{
    return !a->turned ? 0 : r == R_Q ? c->heads : r == R_K ? c->kv_heads : 0;
}

int64_t gguf_stored_row(int64_t n, int64_t N, int64_t heads)
{
    if (!heads) return n;
    const int64_t D = N / heads, r = n % D;
    return n - r + 2 * (r % (D / 2)) + r / (D / 2);
}

float gguf_norm_offset(const arch_config *c, const arch_slot *slot)
{
    return !slot->bias && arch_role_kind(slot->role) == ARCH_VECTOR ? c->w.norm_offset : 0;
}
