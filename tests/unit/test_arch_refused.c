/* tests/unit/test_arch_refused.c - what of config.json is refused, and by which key. */
#include "formats/arch/arch.h"

#include "base/json.h"
#include "tests/support/arch_parse.h"
#include "tests/support/arch_texts.h"
#include "tests/support/check.h"

#define STEP "{\"model_type\":\"step3p5\"," BASE2
#define M3 "{\"model_type\":\"minimax_m3_vl\"," BASE2 ",\"index_n_heads\":2"
#define M3_SPARSE M3 ",\"sparse_attention_config\":{\"sparse_attention_freq\":[0,1,1,1],"

TEST(a_wrong_config_is_refused_by_key)
{
    static const struct {
        const char *why, *config, *says;
    } t[] = {
        { "no object", "[]", "object" },
        { "Hy4 with layers of another kind",
          "{\"model_type\":\"hy_v4\"," BASE ",\"layer_types\":[\"indexed_attention\","
          "\"full_attention\",\"indexed_attention\",\"indexed_attention\"]}",
          "layer_types: expected indexed_attention" },
        { "Hy4 whose first layer has no indexer",
          "{\"model_type\":\"hy_v4\"," BASE ",\"indexer_types\":[\"shared\",\"full\",\"full\","
          "\"full\"]}",
          "layer 0: expected an indexer" },
        { "Hy4 with a limit that is none",
          "{\"model_type\":\"hy_v4\"," BASE ",\"swiglu_limit\":\"10\"}",
          "swiglu_limit: expected a number" },
        { "Hy4 with another rotation",
          "{\"model_type\":\"hy_v4\"," BASE ",\"rope_interleave\":true}", "rope_interleave" },
        { "a head of Ling plus",
          "{\"architectures\":[\"BailingMoeV2ForCausalLM\"]," BASE ",\"norm_head\":true}",
          "norm_head" },
        { "Ling 2 with a router in another type",
          "{\"architectures\":[\"BailingMoeV2ForCausalLM\"]," BASE ",\"router_dtype\":\"bf16\"}",
          "router_dtype" },
        { "a function of the first GPT",
          "{\"model_type\":\"openai-gpt\",\"afn\":\"tanh\"," BASE "}",
          "afn: expected gelu, relu or silu" },
        { "a GTE that adds its positions",
          "{\"architectures\":[\"NewModel\"]," BASE ",\"position_embedding_type\":\"absolute\"}",
          "position_embedding_type: expected rope" },
        { "a GTE of another scaling",
          "{\"architectures\":[\"NewModel\"]," BASE ",\"position_embedding_type\":\"rope\","
          "\"rope_scaling\":{\"type\":\"ntk\",\"factor\":2,\"mixed_b\":0.5}}",
          "mixed_b: expected null" },
        { "a Jina whose layers are those of BERT",
          "{\"architectures\":[\"JinaBertModel\"]," BASE ",\"position_embedding_type\":\"alibi\","
          "\"feed_forward_type\":\"original\"}",
          "feed_forward_type: expected geglu" },
        { "that scaling elsewhere",
          "{\"architectures\":[\"LlamaForCausalLM\"]," BASE
          ",\"rope_scaling\":{\"type\":\"ntk\",\"factor\":2}}",
          "rope_type: expected default" },
        { "an ELECTRA whose embeddings are widened",
          "{\"architectures\":[\"ElectraModel\"]," BASE "}", "embedding_size: expected" },
        { "labels of an encoder by an unknown head",
          "{\"architectures\":[\"EuroBertForSequenceClassification\"]," BASE "}",
          "id2label: expected a model of hidden states" },
        { "a score by another function",
          "{\"architectures\":[\"BertForSequenceClassification\"]," BASE
          ",\"sentence_transformers\":{\"activation_fn\":\"torch.nn.modules.activation.Tanh\"}}",
          "sentence_transformers.activation_fn: expected Sigmoid or Identity" },
        { "labels of another row",
          "{\"architectures\":[\"ModernBertForSequenceClassification\"]," BASE
          ",\"classifier_pooling\":\"max\"}",
          "classifier_pooling: expected cls or mean" },
        { "a head by another function",
          "{\"architectures\":[\"ModernBertForSequenceClassification\"]," BASE
          ",\"classifier_activation\":\"relu\"}",
          "classifier_activation: expected gelu" },
        { "an encoder as a decoder", "{\"model_type\":\"bert\"," BASE ",\"is_decoder\":true}",
          "is_decoder: expected false, found true" },
        { "distances instead of positions",
          "{\"model_type\":\"bert\"," BASE ",\"position_embedding_type\":\"relative_key\"}",
          "position_embedding_type: expected absolute" },
        { "a NomicBERT whose norms come first",
          "{\"model_type\":\"nomic_bert\"," BASE ",\"prenorm\":true}",
          "prenorm: expected false, found true" },
        { "a RoBERTa of no positions",
          "{\"model_type\":\"roberta\"," BASE ",\"max_position_embeddings\":2}",
          "max_position_embeddings: expected more than 2, found 2" },
        { "one stream", GEMMA("3n") ",\"num_kv_shared_layers\":0,\"altup_num_inputs\":1}",
          "streams: expected 2 to 8" },
        { "no table by layer",
          GEMMA("3n") ",\"num_kv_shared_layers\":0,\"hidden_size_per_layer_input\":0}", "ple_dim" },
        { "nobody to share with",
          GEMMA("4") ",\"num_kv_shared_layers\":3,\"layer_types\":[\"sliding_attention\","
                     "\"sliding_attention\",\"sliding_attention\",\"full_attention\"]}",
          "num_kv_shared_layers: expected a layer of each kind" },
        { "sees both ways and gives words",
          "{\"model_type\":\"gemma3_text\"," BASE2 ",\"use_bidirectional_attention\":true}",
          "use_bidirectional_attention: expected false in a model that gives words" },
        { "a linear layer in attention's place",
          "{\"model_type\":\"nemotron-nas\"," BASE ",\"block_configs\":[{\"attention\":"
          "{\"replace_with_linear\":true},\"ffn\":{\"ffn_mult\":1}}]}",
          "block_configs: attention: replace_with_linear: expected false" },
        { "a window in a block",
          "{\"model_type\":\"nemotron-nas\"," BASE ",\"block_configs\":[{\"attention\":"
          "{\"n_heads_in_group\":2,\"window_length\":64},\"ffn\":{\"ffn_mult\":1}}]}",
          "block_configs: attention: window_length" },
        { "too few blocks",
          "{\"model_type\":\"nemotron-nas\"," BASE ",\"block_configs\":[{\"attention\":"
          "{\"n_heads_in_group\":2},\"ffn\":{\"ffn_mult\":1}}]}",
          "block_configs: attention: expected an object" },
        { "gates of another kind", "{\"model_type\":\"laguna\"," BASE2 ",\"gating\":\"per-token\"}",
          "gating" },
        { "heads of too few layers",
          "{\"model_type\":\"laguna\"," BASE2 ",\"num_attention_heads_per_layer\":[2]}",
          "num_attention_heads_per_layer" },
        { "heads of too many layers",
          "{\"model_type\":\"laguna\"," BASE2
          ",\"num_attention_heads_per_layer\":[2,2,2,2,2,2,2,2,2]}",
          "num_attention_heads_per_layer: expected the heads of" },
        { "no expert for a token", KIMI ",\"num_experts_per_token\":0}",
          "num_experts_per_token: expected 1 or more, found 0" },
        { "no group for a token", KIMI ",\"topk_group\":0}",
          "topk_group: expected 1 or more, found 0" },
        { "rotated dims that are null", KIMI ",\"qk_rope_head_dim\":null}",
          "qk_rope_head_dim: expected 1 or more, found null" },
        { "no kinds of layers",
          "{\"architectures\":[\"NemotronHForCausalLM\"],\"vocab_size\":320,\"hidden_size\":64,"
          "\"num_attention_heads\":4}",
          "layers_block_type: expected the kinds of the layers" },
        { "a number of layers without their kinds",
          "{\"architectures\":[\"NemotronHForCausalLM\"]," BASE "}",
          "layers_block_type: expected the kinds of 4 layers" },
        { "a window beside layers with a state",
          "{\"model_type\":\"jamba\"," BASE2
          ",\"layers_block_type\":[\"mamba\",\"sliding_attention\",\"mamba\","
          "\"attention\"]}",
          "sliding_attention" },
        { "time steps that end before they begin",
          "{\"model_type\":\"mamba2\"," BASE ",\"time_step_limit\":[0.5,0.1]}",
          "time_step_limit: expected a highest above 0.5, found 0.1" },
        { "one time step", "{\"model_type\":\"mamba2\"," BASE ",\"time_step_limit\":[0.5]}",
          "time_step_limit: expected [lowest, highest]" },
        { "three bases",
          "{\"model_type\":\"granite_swa\"," BASE2 ",\"layer_rope_theta\":[10000,500,0,70]}",
          "layer_rope_theta: expected at most two" },
        { "bases of too few layers",
          "{\"model_type\":\"granite_swa\"," BASE2 ",\"layer_rope_theta\":[10000]}",
          "layer_rope_theta: expected a base" },
        { "windows that a llama has not",
          LLAMA ",\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\","
                "\"full_attention\"]}",
          "layer_types: expected layers without a window in a LlamaForCausalLM, found "
          "sliding_attention" },
        { "sees both ways", GEMMA("4") ",\"use_bidirectional_attention\":\"all\"}",
          "use_bidirectional_attention" },
        { "odd wide heads", GEMMA("4") ",\"global_head_dim\":15}", "even" },
        { "a layer's norm", GEMMA("4") ",\"per_layer_config\":{\"1\":{\"rms_norm_eps\":1}}}",
          "per_layer_config: expected head_dim" },
        { "nothing in it", "{}", "model_type: expected" },
        { "unknown architecture", "{\"architectures\":[\"FooForCausalLM\"]}",
          "docs/support.md, \"Architectures\", found \"FooForCausalLM\"" },
        { "unknown type", "{\"model_type\":\"foo\"}", "found \"foo\"" },
        { "architectures a string", "{\"architectures\":\"LlamaForCausalLM\"}", "architectures" },
        { "no vocabulary",
          "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":4,"
          "\"num_attention_heads\":4,\"intermediate_size\":160}",
          "vocab_size: expected an integer" },
        { "half a layer", LLAMA ",\"num_key_value_heads\":1.5}", "num_key_value_heads" },
        { "no divisor of heads", LLAMA ",\"num_key_value_heads\":3}", "expected a divisor of 4" },
        { "no head", LLAMA ",\"num_key_value_heads\":0}", "num_key_value_heads" },
        { "hidden not divisible",
          "{\"model_type\":\"llama\",\"vocab_size\":320,\"hidden_size\":66,\"num_hidden_layers\":4,"
          "\"num_attention_heads\":4,\"intermediate_size\":160}",
          "num_attention_heads: expected a divisor" },
        { "odd head", LLAMA ",\"head_dim\":15}", "even" },
        { "heads too wide", LLAMA ",\"head_dim\":4194304}", "head_dim" },
        { "negative layers",
          "{\"model_type\":\"llama\",\"vocab_size\":320,\"hidden_size\":64,\"num_hidden_layers\":-"
          "4,"
          "\"num_attention_heads\":4,\"intermediate_size\":160}",
          "num_hidden_layers" },
        { "eps a string", LLAMA ",\"rms_norm_eps\":\"1e-5\"}", "rms_norm_eps" },
        { "unknown activation", LLAMA ",\"hidden_act\":\"relu6\"}", "relu6" },
        { "unknown dtype", LLAMA ",\"dtype\":\"float8_e4m3fn\"}", "float8_e4m3fn" },
        { "tied a number", LLAMA ",\"tie_word_embeddings\":1}", "tie_word_embeddings" },
        { "bias a number", LLAMA ",\"attention_bias\":1}", "attention_bias" },
        { "eos a string", LLAMA ",\"eos_token_id\":\"</s>\"}", "eos_token_id" },
        { "seventeen ends", LLAMA ",\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}",
          "at most 16" },
        { "rope a string", LLAMA ",\"rope_scaling\":\"linear\"}",
          "rope_scaling: expected an object" },
        { "rope without a kind", LLAMA ",\"rope_scaling\":{\"factor\":2}}", "rope_type" },
        { "unknown rope", LLAMA ",\"rope_scaling\":{\"rope_type\":\"xpos\",\"factor\":2}}",
          "xpos" },
        { "long without factors",
          LLAMA ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":2}}", "short_factor" },
        { "linear without factor", LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}}",
          "rope_scaling: factor: expected" },
        { "factor 0", LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", "factor" },
        { "llama3 without its length",
          LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
                "\"high_freq_factor\":4}}",
          "original_max_position_embeddings" },
        { "llama3 with crossed ends",
          LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":5,"
                "\"high_freq_factor\":4,\"original_max_position_embeddings\":32}}",
          "high_freq_factor of low_freq_factor 5 or above" },
        { "theta 1", LLAMA ",\"rope_theta\":1}", "rope_theta" },
        { "theta infinite", LLAMA ",\"rope_theta\":1e999}", "rope_theta" },
        { "nothing rotated", LLAMA ",\"partial_rotary_factor\":0.01}", "rope" },
        { "layer types too few",
          MISTRAL ",\"layer_types\":[\"full_attention\"],\"sliding_window\":4}", "layer_types" },
        { "layer type unknown",
          MISTRAL ",\"sliding_window\":4,\"layer_types\":[\"full_attention\",\"full_attention\","
                  "\"full_attention\",\"linear_attention\"]}",
          "linear_attention" },
        { "a multiplier that Llama has not", LLAMA ",\"attention_multiplier\":0.5}",
          "attention_multiplier: expected no such key in a LlamaForCausalLM" },
        { "scores capped in a Llama", LLAMA ",\"attn_logit_softcapping\":50.0}",
          "attn_logit_softcapping" },
        { "scores capped at 1", LLAMA ",\"attn_logit_softcapping\":1.0}",
          "attn_logit_softcapping" },
        { "values cut at 1", LLAMA ",\"clip_qkv\":1}", "clip_qkv" },
        { "another norm", LLAMA ",\"norm_type\":\"layernorm\"}", "norm_type: expected rms_norm" },
        { "RMS in an MPT", MPT "{\"alibi\":true},\"norm_type\":\"rmsnorm\"}",
          "norm_type: expected low_precision_layernorm" },
        { "not causal", LLAMA ",\"is_causal\":false}", "is_causal: expected true" },
        { "experts by sigmoid", MIXTRAL ",\"num_local_experts\":4,\"scoring_func\":\"sigmoid\"}",
          "scoring_func: expected softmax" },
        { "a scaling's key of another implementation",
          LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"attn_factor\":1.5}}",
          "rope_scaling: attn_factor: expected no such key" },
        { "an alpha that linear has not",
          LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"alpha\":1000}}",
          "rope_scaling: alpha: expected no such key" },
        { "norms of heads", QWEN2 ",\"use_qk_norm\":true}", "use_qk_norm" },
        { "chunks", LLAMA ",\"attention_chunk_size\":8192}", "attention_chunk_size" },
        { "looking both ways", LLAMA ",\"use_bidirectional_attention\":true}",
          "use_bidirectional_attention" },
        { "another kind of positions", LLAMA ",\"position_embedding_type\":\"relative_key\"}",
          "position_embedding_type: expected absolute" },
        { "cross attention", GPT2 ",\"add_cross_attention\":true}", "add_cross_attention" },
        { "scaled by layer", GPT2 ",\"scale_attn_by_inverse_layer_idx\":true}",
          "scale_attn_by_inverse_layer_idx: expected false" },
        { "residual after the norm",
          "{\"model_type\":\"bloom\",\"vocab_size\":320,\"hidden_size\":64,\"n_layer\":2,"
          "\"n_head\":4,\"apply_residual_connection_post_layernorm\":true}",
          "apply_residual_connection_post_layernorm" },
        { "MPT without ALiBi", MPT "{\"alibi\":false}}", "attn_config.alibi: expected true" },
        { "MPT with a prefix", MPT "{\"alibi\":true,\"prefix_lm\":true}}",
          "attn_config.prefix_lm" },
        { "MPT with norms of groups", MPT "{\"alibi\":true,\"qk_gn\":true}}", "attn_config.qk_gn" },
        { "MPT with norms that are a number", MPT "{\"alibi\":true,\"qk_ln\":1}}",
          "attn_config.qk_ln: expected true or false" },
        { "shares of another norm",
          DBRX "{\"kv_n_heads\":2},\"ffn_config\":{\"moe_normalize_expert_weights\":2}}",
          "ffn_config.moe_normalize_expert_weights: expected 1 or null, found 2" },
        { "another activation",
          DBRX "{\"kv_n_heads\":2},\"ffn_config\":{\"ffn_act_fn\":{\"name\":\"gelu\"}}}",
          "ffn_config.ffn_act_fn: expected silu, found gelu" },
        { "two bases", DBRX "{\"kv_n_heads\":2,\"rope_theta\":500},\"rope_theta\":700}",
          "attn_config: rope_theta: expected 700, as elsewhere, found 500" },
        { "a key of no DBRX", DBRX "{\"kv_n_heads\":2},\"ffn_config\":{\"moe_scale\":2}}",
          "moe_scale: expected no such key" },
        { "Step with a limit for some layers", STEP ",\"swiglu_limits\":[7,0]}",
          "swiglu_limits: expected a number or null for each of 4 layers" },
        { "Step with bases that differ within a kind", STEP ",\"rope_theta\":[1e4,1e4,1e4,1e6]}",
          "rope_theta: expected one number for all layers of full_attention" },
        { "Step with bases for some layers", STEP ",\"rope_theta\":[1e4,1e4]}",
          "rope_theta: expected a number for each layer" },
        { "Step whose other heads have another width",
          STEP ",\"head_dim\":16,\"attention_other_setting\":{\"num_attention_heads\":8,"
               "\"head_dim\":32}}",
          "attention_other_setting: head_dim: expected that of the other layers" },
        { "Step with experts in no layer", STEP ",\"moe_layers_enum\":\"1,x\"}",
          "moe_layers_enum: expected numbers of layers" },
        { "Step with layers of other sizes", STEP ",\"per_layer_config\":{\"1\":{\"head_dim\":8}}}",
          "per_layer_config: expected num_attention_heads alone" },
        { "Step without gates", STEP ",\"use_head_wise_attn_gate\":false}",
          "use_head_wise_attn_gate: expected true" },
        { "MiniMax M3 with an indexer's heads for pairs of kv heads",
          "{\"model_type\":\"minimax_m3_vl\"," BASE2 ",\"index_n_heads\":1}",
          "index_n_heads: expected one for each of 2 kv heads, found 1" },
        { "MiniMax M3 with more sure blocks than blocks",
          M3 ",\"index_topk_blocks\":2,\"index_local_blocks\":3}",
          "index_topk_blocks: expected 1 or more, and at least index_local_blocks 3" },
        { "MiniMax M3 whose indexer is smaller than what rotates",
          M3 ",\"head_dim\":16,\"index_head_dim\":8}", "index_head_dim: expected at least the 16" },
        { "MiniMax M3 with another rotation than it says", M3 ",\"head_dim\":16,\"rotary_dim\":8}",
          "rotary_dim: expected the 16 dims" },
        { "MiniMax M3 with another activation", M3 ",\"swiglu_alpha\":1}",
          "swiglu_alpha: expected 1.702" },
        { "A.X K2 with layers of another kind",
          "{\"model_type\":\"axk2\"," BASE ",\"layer_types\":[\"full_attention\"]}",
          "layer_types: expected indexed_attention" },
        { "A.X K2 with another rotation",
          "{\"model_type\":\"axk2\"," BASE ",\"rope_interleave\":false}",
          "rope_interleave: expected true" },
        { "MiniMax M3 with windows", M3 "," WINDOWS "}", "layer_types: expected layers without" },
        { "MiniMax M3 with kinds of some layers", M3 ",\"layer_types\":[\"full_attention\"]}",
          "layer_types: expected full_attention or minimax_m3_sparse for each of 4 layers" },
        { "MiniMax M3 with scores of another kind", M3_SPARSE "\"sparse_score_type\":\"lse\"}}",
          "sparse_score_type: expected max" },
        { "MiniMax M3 with first blocks", M3_SPARSE "\"sparse_init_block\":1}}",
          "sparse_attention_config: expected no sparse_init_block" },
        { "MiniMax M3 whose indexer has values",
          M3_SPARSE "\"sparse_disable_index_value\":[0,1,0,1]}}",
          "sparse_disable_index_value: expected 1 for each sparse layer" },
        { "MiniMax M3 with an unknown key", M3_SPARSE "\"sparse_new\":3}}",
          "sparse_attention_config: expected no sparse_new" },
        { "MiniMax M3 without norms of its heads", M3 ",\"use_qk_norm\":false}",
          "use_qk_norm: expected true" },
        { "a layer that is not there",
          "{\"model_type\":\"bamba\"," BASE2 ",\"mamba_n_heads\":4,\"attn_layer_indices\":[4]}",
          "attn_layer_indices: expected an array of layers 0..3" },
        { "no layer that attends",
          "{\"model_type\":\"jamba\"," BASE2 ",\"attn_layer_period\":2,\"attn_layer_offset\":2}",
          "attn_layer_offset: expected less than attn_layer_period 2, found 2" },
        { "half a channel", MAMBA ",\"intermediate_size\":0.5}",
          "intermediate_size: expected an integer 1..4194304, found 0.5" },
        { "a rank of no number", MAMBA ",\"time_step_rank\":\"all\"}",
          "time_step_rank: expected an integer 1..1048576 or auto" },
        { "a norm of another epsilon",
          "{\"model_type\":\"falcon_mamba\",\"vocab_size\":320,\"hidden_size\":64,"
          "\"num_hidden_layers\":4,\"mixer_rms_eps\":1e-5}",
          "mixer_rms_eps: expected 1e-06" },
        { "MPT with keys of its own", MPT "{\"alibi\":true,\"attn_bias_scale\":2}}",
          "attn_bias_scale" },
        { "experts scored otherwise", DEEPSEEK ",\"scoring_func\":\"sigmoid\"}",
          "scoring_func: expected softmax" },
        { "experts chosen otherwise", DEEPSEEK ",\"topk_method\":\"noaux_tc\"}",
          "topk_method: expected greedy" },
        { "more experts used than there are",
          MIXTRAL ",\"num_local_experts\":4,\"num_experts_per_tok\":5}",
          "experts_used: expected 1..4" },
        { "groups that do not divide",
          DEEPSEEK ",\"topk_method\":\"group_limited_greedy\",\"n_group\":3}", "expert_groups" },
        { "no experts", MIXTRAL ",\"num_local_experts\":0}", "num_local_experts: expected" },
        { "a list of NoPE layers too short",
          "{\"architectures\":[\"SmolLM3ForCausalLM\"]," BASE ",\"no_rope_layers\":[1,0]}",
          "no_rope_layers" },
        { "attention types of too few layers",
          "{\"model_type\":\"gpt_neo\",\"vocab_size\":320,\"hidden_size\":64,\"num_layers\":4,"
          "\"num_heads\":4,\"attention_types\":[[[\"global\"],3]]}",
          "attention_types" },
        { "a factor for each pair", LLAMA LONG("[1,2]") "}",
          "short_factor: expected an array of 8" },
        { "an interval of 0 beside the layers' kinds",
          QWEN35 ",\"full_attention_interval\":0," KINDS "}",
          "full_attention_interval: expected an integer 1..65536, found 0" },
        { "an interval that the layers' kinds have not",
          QWEN35 ",\"full_attention_interval\":4," KINDS "}",
          "full_attention_interval: expected what layer_types says, found 4, and attention for "
          "layer 1" },
        { "a pattern that the layers' kinds have not",
          GEMMA("3") ",\"sliding_window_pattern\":2," WINDOWS "}",
          "sliding_window_pattern: expected what layer_types says, found 2, and sliding_attention "
          "for layer 1" },
        { "letters that the layers' kinds have not",
          "{\"model_type\":\"exaone4\"," BASE ",\"sliding_window_pattern\":\"LLG\"," WINDOWS "}",
          "sliding_window_pattern: expected what layer_types says, found \"LLG\"" },
        { "a pattern of no kind",
          "{\"model_type\":\"exaone4\"," BASE ",\"sliding_window_pattern\":\"LX\"," WINDOWS "}",
          "sliding_window_pattern: expected an integer 1..65536, found \"LX\"" },
        { "a pattern of Cohere's that the layers' kinds have not",
          "{\"model_type\":\"cohere2_moe\"," BASE ",\"sliding_window_pattern\":3," WINDOWS "}",
          "sliding_window_pattern: expected what layer_types says, found 3" },
        { "a list of MiMo's that the layers' kinds have not",
          MIMO ",\"hybrid_layer_pattern\":[0,1,1,0]," WINDOWS "}",
          "hybrid_layer_pattern: expected what layer_types says, found another kind for layer 0" },
        { "kinds of MLPs that are no list", MIMO ",\"mlp_layer_types\":\"sparse\"}",
          "mlp_layer_types: expected dense or sparse for each of 4 layers" },
        { "kinds of MLPs in an object", MIMO ",\"mlp_layer_types\":{\"0\":\"dense\"}}",
          "mlp_layer_types: expected dense or sparse" },
        { "experts that are no list", MIMO ",\"is_moe_layer\":true}",
          "is_moe_layer: expected dense or sparse" },
        { "kinds of layers that are no list", LLAMA ",\"layer_types\":\"full_attention\"}",
          "layer_types: expected an array of strings, found \"full_attention\"" },
        { "kinds of GPT-Neo's that are no list", NEO ",\"attention_types\":\"global\"}",
          "attention_types: expected an array" },
        { "two rotations",
          LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000},"
                "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
          "rope_scaling: expected none beside rope_parameters, or one that says the same, found "
          "another (linear)" },
        { "two rotations of Cohere's",
          "{\"model_type\":\"cohere2_moe\"," BASE
          ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000},"
          "\"rope_scaling\":{\"rope_type\":\"default\",\"rope_theta\":50000}}",
          "rope_scaling: expected none beside rope_parameters" },
        { "two rotations of layers of two kinds",
          GEMMA("3") ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\","
                     "\"factor\":8},"
                     "\"sliding_attention\":{\"rope_type\":\"default\"}},"
                     "\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}",
          "rope_scaling: expected none beside rope_parameters" },
        { "window 0", MISTRAL ",\"sliding_window\":0}", "sliding_window" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        arch_config c;
        lq_err err = { "" };
        lq_status s = arch_parse(&c, t[i].config, NULL, &err);
        CHECK(s && lq_exit_code(s) == 3, "%s: accepted", t[i].why);
        CHECK(strstr(err.msg, t[i].says), "%s: '%s' does not say '%s'", t[i].why, err.msg,
              t[i].says);
        if (!s) arch_config_free(&c);
    }
}

TEST(what_the_row_has_no_tensors_for_is_refused_in_our_own_spelling)
{
    static const struct {
        const char *key, *value;
    } t[] = { { "streams", "4" },
              { "laurel", "8" },
              { "ple_dim", "8" },
              { "kv_back", "[0,1,1,1]" },
              { "v_is_k_layers", "[1]" } };
    arch_config c;
    lq_err err = { "" };
    CHECK(!arch_parse(&c, LLAMA "}", NULL, &err), "%s", err.msg);
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        arch_config back;
        cJSON *own = arch_config_json(&c);
        cJSON_AddItemToObject(own, t[i].key, cJSON_Parse(t[i].value));
        CHECK(arch_config_from_json(&back, own, &err), "%s: accepted", t[i].key);
        cJSON_Delete(own);
    }
    arch_config_free(&c);
}

int main(int argc, char **argv)
{
    RUN(a_wrong_config_is_refused_by_key);
    RUN(what_the_row_has_no_tensors_for_is_refused_in_our_own_spelling);
    return check_end();
}
