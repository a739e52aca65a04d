/* tests/support/arch_texts.h - beginnings of config.json for the tests of formats/arch/, to be closed with "}". */
#ifndef LLMQ_TESTS_SUPPORT_ARCH_TEXTS_H
#define LLMQ_TESTS_SUPPORT_ARCH_TEXTS_H

#define BASE                                                                                   \
    "\"vocab_size\":320,\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":4," \
    "\"intermediate_size\":160"
#define NOMIC_MOE                                                                         \
    "{\"model_type\":\"nomic_bert\"," BASE ",\"moe_every_n_layers\":2,\"num_experts\":4," \
    "\"moe_top_k\":2,\"activation_function\":\"gelu\""
#define DEBERTA "{\"model_type\":\"deberta-v2\"," BASE ",\"relative_attention\":true"
#define BASE2 BASE ",\"num_key_value_heads\":2"
#define LLAMA "{\"architectures\":[\"LlamaForCausalLM\"]," BASE
#define MISTRAL "{\"architectures\":[\"MistralForCausalLM\"]," BASE ",\"num_key_value_heads\":2"
#define QWEN2 "{\"architectures\":[\"Qwen2ForCausalLM\"]," BASE ",\"num_key_value_heads\":2"
#define QWEN3_MOE                                        \
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"]," BASE \
    ",\"num_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":8"
#define SMOLLM3 "{\"architectures\":[\"SmolLM3ForCausalLM\"]," BASE ",\"no_rope_layer_interval\":2"
#define QWEN3 "{\"architectures\":[\"Qwen3ForCausalLM\"]," BASE ",\"num_key_value_heads\":2"

#define GPT2 "{\"model_type\":\"gpt2\",\"vocab_size\":320,\"n_embd\":64,\"n_layer\":2,\"n_head\":4"
#define MPT                                                                                   \
    "{\"model_type\":\"mpt\",\"vocab_size\":320,\"d_model\":64,\"n_layers\":2,\"n_heads\":4," \
    "\"attn_config\":"
#define DBRX                                                                                   \
    "{\"model_type\":\"dbrx\",\"vocab_size\":320,\"d_model\":64,\"n_layers\":2,\"n_heads\":4," \
    "\"attn_config\":"
#define MAMBA \
    "{\"model_type\":\"mamba\",\"vocab_size\":320,\"hidden_size\":64,\"num_hidden_layers\":4"
#define DEEPSEEK                                                                          \
    "{\"model_type\":\"deepseek_v2\"," BASE ",\"n_routed_experts\":8,\"moe_intermediate_" \
    "size\":16,\"num_experts_per_tok\":2"
#define NEO                                                                               \
    "{\"model_type\":\"gpt_neo\",\"vocab_size\":320,\"hidden_size\":64,\"num_layers\":4," \
    "\"num_heads\":4,\"window_size\":16"
#define KIMI "{\"model_type\":\"kimi_linear\"," BASE ",\"num_experts\":4,\"kv_lora_rank\":16"
#define MIXTRAL "{\"model_type\":\"mixtral\"," BASE ",\"num_key_value_heads\":2"
#define LONG(factors)                                                    \
    ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":" factors \
    ",\"long_factor\":" factors ",\"factor\":4}"
#define GEMMA(which)                                                                 \
    "{\"model_type\":\"gemma" which "_text\",\"vocab_size\":320,\"hidden_size\":64," \
    "\"num_hidden_layers\":4,\"num_attention_heads\":4,\"intermediate_size\":160"

#define QWEN35 "{\"model_type\":\"qwen3_5_text\"," BASE
#define KINDS                                                                        \
    "\"layer_types\":[\"linear_attention\",\"full_attention\",\"linear_attention\"," \
    "\"full_attention\"]"
#define WINDOWS                                                                           \
    "\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"sliding_attention\"," \
    "\"full_attention\"]"
#define MIMO                                                                                      \
    "{\"model_type\":\"mimo_v2_flash\"," BASE2 ",\"n_routed_experts\":4,\"num_experts_per_tok\":" \
    "2,\"moe_intermediate_size\":8,\"swa_num_key_value_heads\":2"

#endif
