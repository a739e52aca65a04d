"""Tiny checkpoints of further architectures and variants, with logits of transformers 4.57.6
(float32, eager attention), laid out as the other folders here.

usage: make_more.py OUT [NAME...]

OUT/NAME/: config.json, model.safetensors, expected.safetensors (input_ids int32 [2, 32]; logits
float32 [2, 32, V]; greedy int32 [2, 48], the ids and 16 more; margin float32 [2, 16] between the best
logit and the next). Weights are random, scaled so that the logits spread over a few units.
"""
import math
import os
import sys

import torch
import transformers as tf
from safetensors.torch import save_file

V, H, LAYERS, HEADS, KV, FFN, T = 96, 32, 2, 4, 2, 48, 32
SIZES = dict(vocab_size=V, hidden_size=H, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
             intermediate_size=FFN, max_position_embeddings=128, bos_token_id=1, eos_token_id=2,
             pad_token_id=0, num_key_value_heads=KV)
MLA = dict(SIZES, num_key_value_heads=HEADS, kv_lora_rank=16, qk_nope_head_dim=8,
           qk_rope_head_dim=4, v_head_dim=6, moe_intermediate_size=24, num_experts_per_tok=2,
           first_k_dense_replace=1)
GROUPS = dict(n_routed_experts=8, n_shared_experts=1, n_group=4, topk_group=2)
NEOX = {k: v for k, v in SIZES.items() if k != "num_key_value_heads"}
FALCON = {k: v for k, v in SIZES.items() if k not in ("intermediate_size", "num_key_value_heads")}

MODELS = {
    "glm": ("Glm", dict(SIZES, head_dim=8)),
    "glm4": ("Glm4", dict(SIZES, head_dim=8)),
    "glm4-moe": ("Glm4Moe", dict(SIZES, head_dim=8, moe_intermediate_size=24, use_qk_norm=True,
                                 num_experts_per_tok=2, attention_bias=True,
                                 routed_scaling_factor=1.5, **GROUPS)),
    "olmo3": ("Olmo3", dict(SIZES, num_hidden_layers=4, sliding_window=16, rope_scaling=dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=32))),
    "olmoe": ("Olmoe", dict(SIZES, num_experts=4, num_experts_per_tok=2)),
    "cohere2": ("Cohere2", dict(SIZES, num_hidden_layers=4, head_dim=8, sliding_window=16)),
    "granite-moe": ("GraniteMoe", dict(SIZES, num_local_experts=4, num_experts_per_tok=2,
                                       embedding_multiplier=2.0, attention_multiplier=0.3,
                                       residual_multiplier=0.5, logits_scaling=3.0)),
    "exaone4": ("Exaone4", dict(SIZES, num_hidden_layers=4, sliding_window=16)),
    "seed-oss": ("SeedOss", dict(SIZES, head_dim=8)),
    "ernie45": ("Ernie4_5", dict(SIZES, head_dim=8)),
    "ministral": ("Ministral", dict(SIZES, head_dim=8, sliding_window=16, layer_types=[
        "sliding_attention", "full_attention"])),
    "helium": ("Helium", dict(SIZES, head_dim=8)),
    "vaultgemma": ("VaultGemma", dict(SIZES, head_dim=16, sliding_window=16,
                                      query_pre_attn_scalar=16)),
    "dots1": ("Dots1", dict(SIZES, num_key_value_heads=KV, moe_intermediate_size=24,
                            num_experts_per_tok=2, first_k_dense_replace=1, norm_topk_prob=True,
                            routed_scaling_factor=1.5, **GROUPS)),
    "deepseek-v3": ("DeepseekV3", dict(MLA, q_lora_rank=12, norm_topk_prob=True,
                                       routed_scaling_factor=2.5, rope_scaling=dict(
                                           rope_type="yarn", factor=4.0, mscale=1.0,
                                           mscale_all_dim=1.0, beta_fast=32, beta_slow=1,
                                           original_max_position_embeddings=32), **GROUPS)),
    "deepseek-v2-groups": ("DeepseekV2", dict(MLA, q_lora_rank=None,
                                              topk_method="group_limited_greedy",
                                              routed_scaling_factor=1.5, **GROUPS)),
    "phi3-longrope": ("Phi3", dict(SIZES, original_max_position_embeddings=16, rope_scaling=dict(
        type="longrope", short_factor=[1.0, 1.1, 1.5, 2.0], long_factor=[1.0, 2.0, 4.0, 8.0]))),
    "falcon2-one-norm": ("Falcon", dict(FALCON, num_kv_heads=KV, new_decoder_architecture=True,
                                        num_ln_in_parallel_attn=1)),
    "falcon-mha-parallel": ("Falcon", dict(FALCON, multi_query=False, parallel_attn=True)),
    "stablelm-parallel": ("StableLm", dict(SIZES, use_parallel_residual=True,
                                           partial_rotary_factor=0.5)),
    "gpt-neox-serial": ("GPTNeoX", dict(NEOX, rotary_pct=0.5, use_parallel_residual=False)),
    "gpt-bigcode-mha": ("GPTBigCode", dict(vocab_size=V, n_embd=H, n_layer=LAYERS, n_head=HEADS,
                                           n_positions=64, multi_query=False)),
    "bloom-5-heads": ("Bloom", dict(vocab_size=V, hidden_size=40, n_layer=LAYERS, n_head=5)),
    "mpt-6-heads-clipped": ("Mpt", dict(vocab_size=V, d_model=48, n_heads=6, n_layers=LAYERS,
                                        max_seq_len=64, attn_config=dict(clip_qkv=1.0))),
    "cohere-qk-norm": ("Cohere", dict(SIZES, use_qk_norm=True, logit_scale=1.0)),
    "stablelm-qk-norms": ("StableLm", dict(SIZES, qk_layernorm=True, partial_rotary_factor=0.5)),
    "phi-qk-layernorm": ("Phi", dict(SIZES, qk_layernorm=True)),
    "persimmon": ("Persimmon", dict(NEOX)),
    "nemotron": ("Nemotron", dict(SIZES)),
    "arcee": ("Arcee", dict(SIZES)),
    "olmo-clipped": ("Olmo", dict(SIZES, clip_qkv=1.0)),
    "hunyuan-dense": ("HunYuanDenseV1", dict(SIZES, head_dim=8, rope_scaling=dict(
        type="dynamic", alpha=8.0, factor=1.0, mscale=1.0, mscale_all_dim=1.0, beta_fast=32,
        beta_slow=1))),
    "smollm3-window": ("SmolLM3", dict(SIZES, num_hidden_layers=4, no_rope_layer_interval=2,
                                       use_sliding_window=True, sliding_window=16)),
    "qwen2-moe-window": ("Qwen2Moe", dict(
        SIZES, use_sliding_window=True, sliding_window=16, max_window_layers=1, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=24)),
    "qwen3-moe-window": ("Qwen3Moe", dict(
        SIZES, use_sliding_window=True, sliding_window=16, max_window_layers=1, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=24, head_dim=8)),
    "gemma3-rope-scaled": ("Gemma3ForCausalLM:Gemma3TextConfig", dict(
        SIZES, num_hidden_layers=3, head_dim=16, sliding_window=16, sliding_window_pattern=3,
        query_pre_attn_scalar=16, rope_scaling=dict(rope_type="linear", factor=8.0))),
}


def fill(model, g):
    kind = type(model).__name__.lower()
    centre = 0.0 if "gemma" in kind or "nemotron" in kind else 1.0
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=g)
        if p.dim() >= 2 and "norm" not in name:
            flat = any(s in name for s in ("embed", "wte", "wpe"))
            p.data = r * (0.15 if flat else 1.3 / math.sqrt(p.shape[-1]))
        elif "bias" in name:
            p.data = r * 0.1
        else:
            p.data = centre + r * 0.1
    for name, b in model.named_buffers():
        if "correction" in name:
            b.copy_(torch.randn(b.shape, generator=g) * 0.1)


def make(out, name, kind, sizes):
    model_class, config_class = (kind.split(":") if ":" in kind else
                                 (kind + "ForCausalLM", kind + "Config"))
    config = getattr(tf, config_class)(**sizes)
    config._attn_implementation = "eager"
    with tf.modeling_utils.no_init_weights():  # fill() sets them all
        model = getattr(tf, model_class)(config).float().eval()
    g = torch.Generator().manual_seed(len(name) * 1000 + sum(map(ord, name)))
    fill(model, g)
    model.tie_weights()
    for p in model.parameters():
        p.data = p.data.bfloat16().float()  # as the file holds them
    for n, b in model.named_buffers():
        if "correction" in n:
            b.copy_(b.bfloat16().float())
    ids = torch.randint(3, V, (2, T), generator=g)
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits.float()
        greedy, margin = ids, []
        for _ in range(16):
            best = model(greedy, use_cache=False).logits[:, -1].float().topk(2, -1)
            margin.append(best.values[:, 0] - best.values[:, 1])
            greedy = torch.cat([greedy, best.indices[:, :1]], 1)
    folder = os.path.join(out, name)
    model = model.to(torch.bfloat16)
    model.config.torch_dtype = torch.bfloat16
    model.save_pretrained(folder, safe_serialization=True)
    os.path.exists(os.path.join(folder, "generation_config.json")) and \
        os.remove(os.path.join(folder, "generation_config.json"))
    save_file(dict(input_ids=ids.int(), logits=logits.contiguous(), greedy=greedy.int().contiguous(),
                   margin=torch.stack(margin, 1).contiguous()),
              os.path.join(folder, "expected.safetensors"))
    print(f"{name:22s} spread {logits.std():.2f}")


torch.set_num_threads(1)
for name, (kind, sizes) in MODELS.items():
    if len(sys.argv) <= 2 or name in sys.argv[2:]:
        make(sys.argv[1], name, kind, sizes)
