"""Tiny checkpoints of architectures that transformers has no code for, with logits of llama.cpp 0.5.0 (f32 weights, K and V,
without flash attention), laid out as the other folders here.

usage: make_llama.py LLAMA OUT [NAME...]

LLAMA is llama.cpp's source, built in LLAMA/../b. Its converter makes the GGUF, without a vocabulary; in BF16 it is
left in OUT (tests/golden/gguf/arch). For Grok GGML_GELU_FP16 was taken out of ggml-cpu/vec.h: GELU by the formula, not of
a table of half floats. Weights are random and have the values that BF16 holds.
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import save_file

V, H, T = 64, 32, 16
WORDS = dict(vocab_size=V, bos_token_id=1, eos_token_id=2, pad_token_id=0, torch_dtype="bfloat16")


def qwen():
    config = dict(WORDS, architectures=["QWenLMHeadModel"], model_type="qwen", hidden_size=H, num_hidden_layers=2,
                  num_attention_heads=4, kv_channels=8, intermediate_size=48, seq_length=128,
                  max_position_embeddings=256, layer_norm_epsilon=1e-6, no_bias=True, rotary_pct=1.0,
                  rotary_emb_base=10000, scale_attn_weights=True, use_dynamic_ntk=True, use_logn_attn=True,
                  tie_word_embeddings=False, bf16=True, fp16=False, fp32=False, use_flash_attn="auto",
                  softmax_in_fp32=False, use_cache_quantization=False, use_cache_kernel=False, attn_dropout_prob=0.0,
                  emb_dropout_prob=0.0, onnx_safe=None)
    layer = {"ln_1": [H], "attn.c_attn": [3 * H, H], "attn.c_attn.bias": [3 * H], "attn.c_proj": [H, H], "ln_2": [H],
             "mlp.w1": [24, H], "mlp.w2": [24, H], "mlp.c_proj": [H, 24]}
    return config, {"transformer.wte": [V, H], "transformer.ln_f": [H], "lm_head": [V, H],
                    **layers("transformer.h.", 2, layer)}


def plm():
    config = dict(WORDS, architectures=["PLMForCausalLM"], model_type="plm", hidden_size=H, num_hidden_layers=2,
                  num_attention_heads=4, num_key_value_heads=4, intermediate_size=48, kv_lora_rank=16, q_lora_rank=None,
                  qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8, hidden_act="relu2", rms_norm_eps=1e-6,
                  rope_theta=100000.0, max_position_embeddings=128, attention_bias=False, tie_word_embeddings=True)
    layer = {"input_layernorm": [H], "self_attn.q_proj": [48, H], "self_attn.kv_a_proj_with_mqa": [20, H],
             "self_attn.kv_a_layernorm": [16], "self_attn.kv_b_proj": [64, 16], "self_attn.o_proj": [H, 32],
             "post_attention_layernorm": [H], "mlp.up_proj": [48, H], "mlp.down_proj": [H, 48]}
    return config, {"model.embed_tokens": [V, H], "model.norm": [H], **layers("model.layers.", 2, layer)}


def openelm():
    heads, kv, ffn = [2, 4, 4], [1, 1, 2], [16, 24, 40]
    config = dict(WORDS, architectures=["OpenELMForCausalLM"], model_type="openelm", model_dim=H,
                  num_transformer_layers=3, num_query_heads=heads, num_kv_heads=kv, num_gqa_groups=2, head_dim=8,
                  ffn_multipliers=[0.5, 0.7, 1.2], ffn_dim_divisor=8, qkv_multipliers=[0.5, 1.0], ffn_with_glu=True,
                  activation_fn_name="swish", normalization_layer_name="rms_norm", normalize_qk_projections=True,
                  share_input_output_layers=True, rope_freq_constant=10000, rope_max_length=256,
                  max_context_length=128)
    names = {"transformer.token_embeddings": [V, H], "transformer.norm": [H]}
    for i in range(3):
        layer = {"attn_norm": [H], "attn.qkv_proj": [(heads[i] + 2 * kv[i]) * 8, H], "attn.q_norm": [8],
                 "attn.k_norm": [8], "attn.out_proj": [H, heads[i] * 8], "ffn_norm": [H],
                 "ffn.proj_1": [2 * ffn[i], H], "ffn.proj_2": [H, ffn[i]]}
        names |= {f"transformer.layers.{i}.{k}": v for k, v in layer.items()}
    return config, names


def smallthinker(window=4096, softmax=False):
    n = 5 if window else 3
    layout = [int(bool(window) and i % 4 != 0) for i in range(n)]
    config = dict(WORDS, architectures=["SmallThinkerForCausalLM"], model_type="smallthinker", hidden_size=16,
                  num_hidden_layers=n, num_attention_heads=4, num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-6,
                  rope_theta=1500000.0, max_position_embeddings=8192, rope_layout=layout if window else [1] * n,
                  sliding_window_layout=layout, sliding_window_size=4096, moe_num_primary_experts=4,
                  moe_num_active_primary_experts=2, moe_ffn_hidden_size=16, moe_primary_router_apply_softmax=softmax,
                  moe_enable_early_router=True, moe_enable_secondary_experts=False, tie_word_embeddings=not softmax)
    layer = {"input_layernorm": [16], "self_attn.q_proj": [32, 16], "self_attn.k_proj": [16, 16],
             "self_attn.v_proj": [16, 16], "self_attn.o_proj": [16, 32], "post_attention_layernorm": [16],
             "block_sparse_moe.primary_router": [4, 16]}
    layer |= {f"block_sparse_moe.experts.{e}.{k}": [16, 16] for e in range(4) for k in ("gate", "up", "down")}
    names = {"model.embed_tokens": [V, 16], "model.norm": [16], **layers("model.layers.", n, layer)}
    return config, names | ({"lm_head": [V, 16]} if softmax else {})


def arctic():
    config = dict(WORDS, architectures=["ArcticForCausalLM"], model_type="arctic", hidden_size=16, num_hidden_layers=2,
                  num_attention_heads=2, num_key_value_heads=1, intermediate_size=24, num_local_experts=4,
                  num_experts_per_tok=2, moe_layer_frequency=1, parallel_attn_mlp_res=True, use_residual=True,
                  moe_token_dropping=False, moe_eval_capacity_factor=1, moe_train_capacity_factor=1, moe_min_capacity=0,
                  hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0, max_position_embeddings=128,
                  enable_expert_tensor_parallelism=False, tie_word_embeddings=False)
    layer = {"input_layernorm": [16], "self_attn.q_proj": [16, 16], "self_attn.k_proj": [8, 16],
             "self_attn.v_proj": [8, 16], "self_attn.o_proj": [16, 16], "residual_layernorm": [16],
             "post_attention_layernorm": [16], "block_sparse_moe.gate": [4, 16]}
    layer |= {f"residual_mlp.w{k}": [16, 16] for k in (1, 2, 3)}
    layer |= {f"block_sparse_moe.experts.{e}.w{k}": [16, 24] if k == 2 else [24, 16] for e in range(4)
              for k in (1, 2, 3)}
    return config, {"model.embed_tokens": [V, 16], "model.norm": [16], "lm_head": [V, 16],
                    **layers("model.layers.", 2, layer)}


def plamo3(scaled=False):
    n = 2 if scaled else 3
    config = dict(WORDS, architectures=["Plamo3ForCausalLM"], model_type="plamo3", hidden_size=H, num_hidden_layers=n,
                  num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=24, rms_norm_eps=1e-6,
                  window_size=6, sliding_window_pattern=n, rope_theta=150000, rope_local_theta=10000,
                  interleaved_sliding_window=[6] * (n - 1) + [None], rope_scaling_factor=4.0 if scaled else 1,
                  initial_context_length=8 if scaled else None, max_position_embeddings=128, attention_bias=False,
                  hidden_activation="swiglu", tie_word_embeddings=not scaled)
    layer = {"pre_mixer_norm": [H], "mixer.qkv_proj": [64, H], "mixer.q_norm": [8], "mixer.k_norm": [8],
             "mixer.o_proj": [H, 32], "post_mixer_norm": [H], "pre_mlp_norm": [H], "mlp.gate_up_proj": [48, H],
             "mlp.down_proj": [H, 24], "post_mlp_norm": [H]}
    names = {"model.embed_tokens": [V, H], "model.norm": [H], **layers("model.layers.layers.", n, layer)}
    return config, names | ({"lm_head": [V, H]} if scaled else {})


def grok(residual=False):
    """llama.cpp makes shares sum to 1 and caps no router's logits: of what is added to an MLP all experts are chosen."""
    config = dict(WORDS, architectures=["Grok1ForCausalLM"], model_type="grok", hidden_size=16, num_hidden_layers=2,
                  num_attention_heads=2, num_key_value_heads=1, head_dim=8, intermediate_size=24, num_local_experts=4,
                  num_experts_per_tok=4 if residual else 2, residual_moe=residual, rms_norm_eps=1e-10, rope_theta=10000,
                  max_position_embeddings=128, embedding_multiplier_scale=4.0, output_multiplier_scale=0.5,
                  attn_logit_softcapping=3.0, router_logit_softcapping=0, tie_word_embeddings=False)
    if residual:
        config |= dict(moe_intermediate_size=16, final_logit_softcapping=5.0, attn_output_multiplier=0.5)
    wide = 16 if residual else 24
    layer = {f"{k}_norm": [16] for k in ("pre_attn", "post_attn", "pre_moe", "post_moe")}
    layer |= {"self_attn.q_proj": [16, 16], "self_attn.k_proj": [8, 16], "self_attn.v_proj": [8, 16],
              "self_attn.o_proj": [16, 16], "block_sparse_moe.gate": [4, 16]}
    layer |= {f"block_sparse_moe.experts.{e}.w{k}": [16, wide] if k == 2 else [wide, 16] for e in range(4)
              for k in (1, 2, 3)}
    if residual:
        layer |= {"mlp.gate_proj": [24, 16], "mlp.up_proj": [24, 16], "mlp.down_proj": [16, 24]}
    return config, {"model.embed_tokens": [V, 16], "model.norm": [16], "lm_head": [V, 16],
                    **layers("model.layers.", 2, layer)}


MODELS = {"qwen": qwen, "plm": plm, "openelm": openelm, "smallthinker": smallthinker,
          "smallthinker-full": lambda: smallthinker(0, True), "arctic": arctic, "plamo3": plamo3,
          "plamo3-yarn": lambda: plamo3(True), "grok": grok, "grok-residual": lambda: grok(True)}


SALT = {"smallthinker": 2}  # of others one expert in 8 bits is another


def layers(prefix, n, names):
    return {f"{prefix}{i}.{k}": v for i in range(n) for k, v in names.items()}


def values(name, shape, g):
    r = torch.randn(shape, generator=g)
    if len(shape) > 1:
        r *= 0.15 if shape[0] == V and "head" not in name else 1.3 / math.sqrt(shape[-1])
    else:
        r = 0.1 * r + (0 if "bias" in name or ".layers.layers." in name else 1)
    return r.bfloat16()


def convert(llama, folder, out, kind="ALL_F32"):
    sys.path[:0] = [str(llama), str(llama / "gguf-py")]
    import conversion
    import gguf
    from conversion.base import ModelBase, ModelType
    arch = json.loads((folder / "config.json").read_text())["architectures"][0]
    conversion.get_model_class(arch)
    cls = ModelBase.from_model_architecture(arch, ModelType.TEXT)
    cls.set_vocab = lambda self: self._set_vocab_none()
    model = cls(folder, gguf.LlamaFileType[kind], out)
    if "vocab_size" not in str(cls.set_gguf_parameters.__code__.co_names):
        model.gguf_writer.add_vocab_size(V)
    if arch == "QWenLMHeadModel":
        model.gguf_writer.add_layer_norm_rms_eps(1e-6)  # by which name llama.cpp reads it; the converter has the other
    model.write()


def run(program, gguf, ids):
    out = subprocess.run([program, gguf, *map(str, ids)], stdout=subprocess.PIPE, check=True).stdout
    return np.frombuffer(out, np.float32).reshape(len(ids), V)


def make(llama, program, out, name):
    config, shapes = MODELS[name]()
    g = torch.Generator().manual_seed(sum(map(ord, name)) + SALT.get(name, 0))
    tensors = {k if k.endswith(("bias", "weight")) else k + ".weight": values(k, s, g) for k, s in shapes.items()}
    folder = out / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    ids = torch.randint(3, V, (2, T), generator=g).tolist()
    with tempfile.TemporaryDirectory() as tmp:
        gguf = pathlib.Path(tmp) / "m.gguf"
        convert(llama, folder, gguf)
        convert(llama, folder, out / f"{name}.gguf", "MOSTLY_BF16")
        logits = np.stack([run(program, gguf, row) for row in ids])
        greedy, margin = [list(row) for row in ids], [[], []]
        for row, margins in zip(greedy, margin):
            for _ in range(16):
                last = run(program, gguf, row)[-1]
                best = np.argsort(last)[::-1]
                margins.append(last[best[0]] - last[best[1]])
                row.append(int(best[0]))
    save_file(dict(input_ids=torch.tensor(ids).int(), logits=torch.from_numpy(logits.copy()),
                   greedy=torch.tensor(greedy).int(), margin=torch.tensor(np.array(margin))),
              folder / "expected.safetensors")
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name:22s} spread {logits.std():.2f}, margin {np.min(margin):.4f}, {size} bytes")


def main():
    llama, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as tmp:
        program, lib = os.path.join(tmp, "llama_logits"), llama.parent / "b/bin"
        source = pathlib.Path(__file__).with_name("llama_logits.c")
        subprocess.run(["cc", "-o", program, source, f"-I{llama}/include", f"-I{llama}/ggml/include", f"-L{lib}",
                        f"-Wl,-rpath,{lib}", "-lllama", "-lggml", "-lggml-base", "-lggml-cpu"], check=True)
        for name in sys.argv[3:] or MODELS:
            make(llama, program, out, name)


if __name__ == "__main__":
    main()
