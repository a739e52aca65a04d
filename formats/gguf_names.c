/* formats/gguf_names.c */
#include "formats/gguf_names.h"

const gguf_arch gguf_archs[GGUF_N_ARCHS] = {
    { "llama", "LlamaForCausalLM", "llama", true },
    { "llama", "MistralForCausalLM", "mistral", true },
    { "qwen2", "Qwen2ForCausalLM", "qwen2", false },
    { "qwen3", "Qwen3ForCausalLM", "qwen3", false },
};

const gguf_name gguf_names[GGUF_N_NAMES] = {
    { "token_embd", "model.embed_tokens", 0 },
    { "output_norm", "model.norm", 0 },
    { "output", "lm_head", 0 },
    { "attn_norm", "input_layernorm", 0 },
    { "attn_q", "self_attn.q_proj", 1 },
    { "attn_k", "self_attn.k_proj", 2 },
    { "attn_v", "self_attn.v_proj", 0 },
    { "attn_output", "self_attn.o_proj", 0 },
    { "attn_q_norm", "self_attn.q_norm", 0 },
    { "attn_k_norm", "self_attn.k_norm", 0 },
    { "ffn_norm", "post_attention_layernorm", 0 },
    { "ffn_gate", "mlp.gate_proj", 0 },
    { "ffn_up", "mlp.up_proj", 0 },
    { "ffn_down", "mlp.down_proj", 0 },
};

int64_t gguf_stored_row(int64_t n, int64_t N, int64_t heads)
{
    if (!heads) return n;
    const int64_t D = N / heads, r = n % D;
    return n - r + 2 * (r % (D / 2)) + r / (D / 2);
}
