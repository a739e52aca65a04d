/* formats/gguf_names.c */
#include "formats/gguf_names.h"

#include <string.h>

const gguf_arch gguf_archs[GGUF_N_ARCHS] = {
    { "llama", "LlamaForCausalLM", "llama", .turned = true, .written = true },
    { "llama", "MistralForCausalLM", "mistral", .turned = true, .written = true },
    { "llama", "MixtralForCausalLM", "mixtral", .turned = true, .experts = true },
    { "qwen2", "Qwen2ForCausalLM", "qwen2", .written = true },
    { "qwen3", "Qwen3ForCausalLM", "qwen3", .written = true },
    { "qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe", .experts = true },
    { "phi3", "Phi3ForCausalLM", "phi3", .turned = false },
};

#define MIXTRAL .only = "mixtral"
#define PHI3 .only = "phi3"
const gguf_name gguf_names[GGUF_N_NAMES] = {
    { "token_embd", "model.embed_tokens", .heads = 0 },
    { "output_norm", "model.norm", .heads = 0 },
    { "output", "lm_head", .heads = 0 },
    { "attn_norm", "input_layernorm", .heads = 0 },
    { "attn_q", "self_attn.q_proj", .heads = 1 },
    { "attn_k", "self_attn.k_proj", .heads = 2 },
    { "attn_v", "self_attn.v_proj", .heads = 0 },
    { "attn_qkv", "self_attn.qkv_proj", PHI3 },
    { "attn_output", "self_attn.o_proj", .heads = 0 },
    { "attn_q_norm", "self_attn.q_norm", .heads = 0 },
    { "attn_k_norm", "self_attn.k_norm", .heads = 0 },
    { "ffn_norm", "post_attention_layernorm", .heads = 0 },
    { "ffn_up", "mlp.gate_up_proj", PHI3 },
    { "ffn_gate_inp", "block_sparse_moe.gate", MIXTRAL },
    { "ffn_gate_exps", "block_sparse_moe.experts.%d.w1", MIXTRAL, .stacked = true },
    { "ffn_up_exps", "block_sparse_moe.experts.%d.w3", MIXTRAL, .stacked = true },
    { "ffn_down_exps", "block_sparse_moe.experts.%d.w2", MIXTRAL, .stacked = true },
    { "ffn_gate", "mlp.gate_proj", .heads = 0 },
    { "ffn_up", "mlp.up_proj", .heads = 0 },
    { "ffn_down", "mlp.down_proj", .heads = 0 },
    { "ffn_gate_inp", "mlp.gate", .heads = 0 },
    { "ffn_gate_exps", "mlp.experts.%d.gate_proj", .stacked = true },
    { "ffn_up_exps", "mlp.experts.%d.up_proj", .stacked = true },
    { "ffn_down_exps", "mlp.experts.%d.down_proj", .stacked = true },
};

const gguf_name *gguf_name_find(const char *type, const char *name, size_t n, bool in_layer)
{
    for (size_t i = 0; i < GGUF_N_NAMES; i++) { /* rows of one model_type stand first */
        const gguf_name *g = &gguf_names[i];
        const bool top = strncmp(g->hf, "model.", 6) == 0 || strcmp(g->hf, "lm_head") == 0;
        if (top != in_layer && strlen(g->gguf) == n && memcmp(g->gguf, name, n) == 0 &&
            (!g->only || strcmp(g->only, type) == 0))
            return g;
    }
    return NULL;
}

int64_t gguf_stored_row(int64_t n, int64_t N, int64_t heads)
{
    if (!heads) return n;
    const int64_t D = N / heads, r = n % D;
    return n - r + 2 * (r % (D / 2)) + r / (D / 2);
}
