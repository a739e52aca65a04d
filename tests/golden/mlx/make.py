"""Writes tests/golden/mlx/NAME: folders as mlx-lm saves them, of small random models, with mlx-lm's own logits.

    pip install 'mlx[cpu]==0.32.4' mlx-lm==0.32.2
    python tests/golden/mlx/make.py [NAME...]

Beside the weights: `input_ids` and `logits`, computed with all that is not quantized in f32."""
import json
import pathlib
import sys

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import _get_classes, quantize_model, save_model

IDS = [5, 9, 17, 3, 8, 21, 40, 2, 11]
BASE = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 64,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 256, "tie_word_embeddings": False,
        "num_hidden_layers": 2, "intermediate_size": 32, "hidden_act": "silu", "attention_bias": False,
        "bos_token_id": 1, "eos_token_id": 2}
DELTA = {"linear_num_value_heads": 2, "linear_num_key_heads": 1, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
         "linear_conv_kernel_dim": 4, "full_attention_interval": 2, "partial_rotary_factor": 0.25}


def config(arch, kind, **more):
    return {**BASE, "architectures": [arch], "model_type": kind, **more}


LLAMA = config("LlamaForCausalLM", "llama", tie_word_embeddings=True, hidden_size=64, intermediate_size=64)
NEXT = config("Qwen3NextForCausalLM", "qwen3_next", **DELTA, num_experts=3, num_experts_per_tok=2,
              decoder_sparse_step=1, shared_expert_intermediate_size=32, mlp_only_layers=[],
              moe_intermediate_size=32, norm_topk_prob=True, rope_scaling=None)
GPT_OSS = config("GptOssForCausalLM", "gpt_oss", num_local_experts=3, num_experts_per_tok=2, sliding_window=4,
                 layer_types=["sliding_attention", "full_attention"], attention_bias=True, rope_scaling={"rope_type": "default"},
                 swiglu_limit=7.0)
MLA = config("DeepseekV3ForCausalLM", "deepseek_v3", n_routed_experts=3, num_experts_per_tok=2, n_shared_experts=1,
             moe_intermediate_size=32, first_k_dense_replace=1, moe_layer_freq=1, n_group=1, topk_group=1,
             routed_scaling_factor=1.5, scoring_func="sigmoid", topk_method="noaux_tc", norm_topk_prob=True,
             kv_lora_rank=32, q_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32,
             num_key_value_heads=2, rope_scaling=None)
GRANITE = config("GraniteMoeHybridForCausalLM", "granitemoehybrid", layer_types=["mamba", "attention"],
                 num_local_experts=3, num_experts_per_tok=2, shared_intermediate_size=32,
                 mamba_n_heads=2, mamba_d_head=32, mamba_d_state=16, mamba_d_conv=4, mamba_n_groups=1, mamba_expand=2,
                 mamba_proj_bias=False, mamba_conv_bias=True, mamba_chunk_size=32, embedding_multiplier=2.0,
                 residual_multiplier=0.5, attention_multiplier=0.2, logits_scaling=3.0,
                 position_embedding_type="nope", mlp_bias=False, normalization_function="rmsnorm")
LLAMA4 = {"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "tie_word_embeddings": False,
          "text_config": config("", "llama4_text", num_local_experts=3, num_experts_per_tok=1,
                                interleave_moe_layer_step=2, intermediate_size_mlp=32,
                                attention_chunk_size=64, use_qk_norm=True, no_rope_layers=[1, 1, 1, 0],
                                num_hidden_layers=4,
                                attn_temperature_tuning=False, floor_scale=8192, attn_scale=0.1, rope_scaling=None,
                                moe_layers=[1, 3])}
QWEN35 = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "tie_word_embeddings": True,
          "text_config": {**config("", "qwen3_5_text", **DELTA), "tie_word_embeddings": True,
                          "layer_types": ["linear_attention", "full_attention"],
                          "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                              "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1],
                                              "mrope_interleaved": True}}}

LING2 = config("BailingMoeV2ForCausalLM", "bailing_moe", hidden_size=64, num_key_value_heads=2, num_experts=4, num_experts_per_tok=2,
               num_shared_experts=1, moe_intermediate_size=32, moe_shared_expert_intermediate_size=32, first_k_dense_replace=1,
               norm_topk_prob=True, n_group=2, topk_group=1, routed_scaling_factor=1.5, partial_rotary_factor=0.5,
               use_qk_norm=True, use_qkv_bias=False, use_bias=False, score_function="sigmoid", moe_router_enable_expert_bias=True,
               norm_head=False, rope_scaling=None)
ERNIE = config("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", hidden_size=64, moe_num_experts=4, moe_k=2, moe_intermediate_size=32,
               moe_num_shared_experts=1, moe_layer_start_index=1, moe_layer_end_index=1, moe_layer_interval=1, use_bias=False)
QWEN3_MOE = config("Qwen3MoeForCausalLM", "qwen3_moe", num_hidden_layers=1, hidden_size=64, num_experts=3,
                   num_experts_per_tok=2, moe_intermediate_size=32, decoder_sparse_step=1, mlp_only_layers=[],
                   norm_topk_prob=True)

of_mlx = mx.gather_qmm


def gather_qmm(x, w, scales, biases, *, rhs_indices, global_scale=None, **how):
    """With a scale for each expert MLX computes it on a GPU alone."""
    if global_scale is None:
        return of_mlx(x, w, scales, biases, rhs_indices=rhs_indices, **how)
    w = mx.stack([mx.dequantize(*each, None, 16, 4, mode="nvfp4", global_scale=g, dtype=mx.float32)
                  for *each, g in zip(w, scales, global_scale)])
    return mx.gather_mm(x, w.swapaxes(-1, -2), rhs_indices=rhs_indices, sorted_indices=how["sorted_indices"])


mx.gather_qmm = gather_qmm


def mixed(path, module):
    """Every number of bits; one linear as it is, one with null for the group, as mlx-lm's own recipes write it."""
    if "layers.1.mlp.up_proj" in path:
        return False
    for n, (part, bits) in enumerate((("q_proj", 2), ("k_proj", 3), ("v_proj", 5), ("o_proj", 6), ("gate_proj", 8))):
        if part in path:
            return {"group_size": 32 if n % 2 else None, "bits": bits, "mode": "affine"}
    return True


def experts_mxfp4(path, module):
    return {"group_size": 32, "bits": 4, "mode": "mxfp4"} if ".experts." in path else True


# name: the model, how it is quantized (nothing: not)
CASES = {
    "llama-4bit": (LLAMA, {"group_size": 64, "bits": 4}),
    "llama-1bit": (LLAMA, {"group_size": 32, "bits": 1}),
    "llama-mixed": (LLAMA, {"group_size": 64, "bits": 4, "quant_predicate": mixed}),
    "llama-nvfp4": (LLAMA, {"mode": "nvfp4"}),
    "llama-mxfp8": (LLAMA, {"mode": "mxfp8"}),
    "qwen3-next": (NEXT, None),
    "qwen3.5-4bit": (QWEN35, {"group_size": 32, "bits": 4}),
    "gpt-oss": (GPT_OSS, None),
    "gpt-oss-mxfp4-q8": (GPT_OSS, {"group_size": 32, "bits": 8, "quant_predicate": experts_mxfp4}),
    "deepseek-v3-6bit": ({**MLA, "hidden_size": 64}, {"group_size": 32, "bits": 6}),
    "granite-h-5bit": ({**GRANITE, "hidden_size": 64}, {"group_size": 32, "bits": 5}),
    "ernie45-moe-4bit": (ERNIE, {"group_size": 32, "bits": 4}),
    "ling2-4bit": (LING2, {"group_size": 32, "bits": 4}),
    "llama4-mxfp4": (LLAMA4, {"mode": "mxfp4"}),
    "llama4-nvfp4-scaled": (LLAMA4, {"mode": "nvfp4", "global_scale": True}),
    "qwen3-moe-nvfp4-scaled": (QWEN3_MOE, {"mode": "nvfp4", "global_scale": True}),
}


def weights(model):
    """Random, of a size at which all parts matter; norms about 1."""
    mx.random.seed(3)
    for name, v in tree_flatten(model.parameters()):
        if v.dtype not in (mx.float32, mx.bfloat16):
            yield name, v
            continue
        w = mx.random.normal(v.shape) * (0.3 if v.ndim > 1 else 0.1)
        yield name, (w + 1 if v.ndim == 1 and "norm" in name else w).astype(mx.bfloat16)


def write(name):
    what, how = CASES[name]
    out = pathlib.Path(__file__).parent / name
    out.mkdir(exist_ok=True)
    kind, args = _get_classes(what)
    model = kind(args.from_dict(what))
    model.load_weights(list(weights(model)))
    written = dict(what)
    if how:
        model, told = quantize_model(model, dict(what), how.get("group_size"), how.get("bits"),
                                     mode=how.get("mode", "affine"), global_scale=how.get("global_scale", False),
                                     quant_predicate=how.get("quant_predicate"))
        written["quantization"] = written["quantization_config"] = told["quantization"]
    save_model(out, model)
    (out / "model.safetensors.index.json").unlink()
    (out / "config.json").write_text(json.dumps(written, indent=1) + "\n")
    model.update(tree_map(lambda x: x.astype(mx.float32) if x.dtype == mx.bfloat16 else x, model.parameters()))
    file = out / "model.safetensors"
    stored = dict(mx.load(str(file)))
    stored["input_ids"] = mx.array(IDS)
    stored["logits"] = model(mx.array([IDS]))[0].astype(mx.float32)
    mx.eval(stored)
    mx.save_safetensors(str(file), stored, {"format": "mlx"})


for each in sys.argv[1:] or CASES:
    write(each)
