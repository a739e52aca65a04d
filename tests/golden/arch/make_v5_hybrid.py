"""Tiny checkpoints of models whose layers carry a state, with logits of transformers 5.23.0 (float32, eager
attention, its own torch code for the recurrences), laid out as the other folders here.

usage: make_v5_hybrid.py OUT [NAME...]

OUT/NAME/: config.json, model.safetensors, expected.safetensors (input_ids int32 [2, T]; logits
float32 [2, T, V]; greedy int32 [2, T + 16], the ids and 16 more; margin float32 [2, 16] between the best
logit and the next). Weights are random, scaled so that the logits spread over a few units, and have
the values that BF16 holds. Tensors are named as in repositories of today.
"""
import json
import math
import os
import re
import sys

import torch
import transformers as tf
from safetensors.torch import load_file, save_file

V, H = 64, 32
SIZES = dict(vocab_size=V, hidden_size=H, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
             max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0, num_key_value_heads=1)
DELTA = dict(SIZES, head_dim=16, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8,
             linear_value_head_dim=12, tie_word_embeddings=True)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=8)

QWEN4 = dict({k: v for k, v in DELTA.items() if k != "intermediate_size"}, **EXPERTS, hidden_size=16, hc_count=3,
             hc_lowrank=6, indexer_n_heads=3, indexer_kv_heads=1, indexer_head_dim=6, indexer_budget=8,
             indexer_compress_ratio=4, output_gate_type="sigmoid", tie_word_embeddings=False,
             rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25))

GRANITE_H = dict(SIZES, mamba_n_heads=4, mamba_n_groups=1, mamba_d_state=8, mamba_d_head=16, mamba_expand=2,
                 shared_intermediate_size=32, embedding_multiplier=2.0, attention_multiplier=0.3,
                 residual_multiplier=0.5, logits_scaling=3.0, layer_types=["linear_attention", "full_attention"])

FALCON_H1 = dict(SIZES, num_hidden_layers=1, mamba_d_ssm=48, mamba_n_heads=4, mamba_n_groups=2, mamba_d_state=8,
                 mamba_d_head=12, embedding_multiplier=3.0, lm_head_multiplier=0.5, key_multiplier=0.4,
                 attention_in_multiplier=1.5, attention_out_multiplier=0.7, mlp_multipliers=[0.9, 0.6],
                 ssm_multipliers=[0.5, 0.8, 0.7, 1.2, 0.6], ssm_in_multiplier=1.3, ssm_out_multiplier=0.8)
KDA = dict(SIZES, num_key_value_heads=2, moe_intermediate_size=8, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8,
           v_head_dim=8)
MINIMAX = dict(SIZES, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=8,
               num_local_experts=4, num_experts_per_tok=2, block_size=7, full_attn_alpha_factor=1.7,
               linear_attn_alpha_factor=1.4, mlp_alpha_factor=1.3)
NEMOTRON = dict({k: v for k, v in SIZES.items() if k != "num_hidden_layers"}, head_dim=16, mamba_num_heads=4,
                mamba_head_dim=12, n_groups=2, ssm_state_size=8)

INKLING = dict(vocab_size=V, unpadded_vocab_size=60, hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=1,
               head_dim=4, swa_num_attention_heads=4, swa_num_key_value_heads=2, swa_head_dim=4, sliding_window_size=5, d_rel=3,
               rel_extent=9, log_scaling_n_floor=6, log_scaling_alpha=0.4, conv_kernel_size=4, moe_intermediate_size=8,
               n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=2, route_scale=2.0, logits_mup_width_multiplier=1.5,
               max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0)

ZAMBA2 = dict(vocab_size=V, num_attention_heads=2, mamba_d_state=4, n_mamba_heads=4, mamba_ngroups=2, adapter_rank=2,
              max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0, rms_norm_eps=1e-4)

MODELS = {
    "qwen3-next": ("Qwen3Next", dict(DELTA, **EXPERTS, mlp_only_layers=[1], num_hidden_layers=3, layer_types=[
        "linear_attention", "full_attention", "linear_attention"])),
    "qwen3.5": ("Qwen3_5ForCausalLM:Qwen3_5TextConfig", dict(DELTA, layer_types=[
        "linear_attention", "full_attention"])),
    "qwen3.5-moe": ("Qwen3_5MoeForCausalLM:Qwen3_5MoeTextConfig", dict(
        {k: v for k, v in DELTA.items() if k != "intermediate_size"}, **EXPERTS,
        layer_types=["full_attention", "linear_attention"])),
    "qwen4-exp": ("Qwen4ExpForCausalLM:Qwen4ExpTextConfig", dict(QWEN4, layer_types=[
        "linear_attention", "indexed_attention"])),
    "qwen4-exp-ngrams": ("Qwen4ExpForCausalLM:Qwen4ExpTextConfig", dict(
        QWEN4, num_hidden_layers=3, layer_types=["linear_attention", "indexed_attention", "linear_attention"],
        num_experts=3, hc_count=2, ple_layer_ids=[1, 3], ple_embed_dim=12, heads_per_ngram=2, ngram_vocab_size_base=11,
        make_ngram_vocab_size_divisible_by=4, ple_conv_kernel_size=3, split_ngram_parts=3, seed=7)),
    "lfm2": ("Lfm2", dict(SIZES, num_hidden_layers=3, block_multiple_of=8, intermediate_size=48, layer_types=[
        "conv", "full_attention", "conv"], conv_bias=True)),
    "lfm2-moe": ("Lfm2Moe", dict(SIZES, num_dense_layers=1, num_experts=4, num_experts_per_tok=2,
                                 moe_intermediate_size=8, layer_types=["full_attention", "conv"])),
    "lfm3": ("Lfm3", dict(SIZES, num_hidden_layers=3, num_attention_heads=4, head_dim=8, intermediate_size=24,
                          sliding_window=5, layer_types=["conv", "sliding_attention", "full_attention"])),
    "mamba2": ("Mamba2", dict(vocab_size=V, hidden_size=H, num_hidden_layers=2, num_heads=4, head_dim=16, n_groups=2,
                              state_size=8, bos_token_id=1, eos_token_id=2, pad_token_id=0, expand=2,
                              tie_word_embeddings=True)),
    "nemotron-h": ("NemotronH", dict(NEMOTRON, layers_block_type=["linear_attention", "mlp", "full_attention", "mlp"])),
    "nemotron-h-moe": ("NemotronH", dict(NEMOTRON, mamba_num_heads=2, moe_latent_size=24, n_routed_experts=4, n_group=2,
                                         moe_intermediate_size=8, moe_shared_expert_intermediate_size=12,
                                         routed_scaling_factor=1.5, layers_block_type=[
        "linear_attention", "moe", "full_attention", "moe"])),
    "olmo-hybrid": ("OlmoHybrid", dict(SIZES, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8,
                                       linear_value_head_dim=12, rope_parameters=dict(rope_type="default", rope_theta=10000.0),
                                       layer_types=["linear_attention", "full_attention"])),
    "falcon-h1": ("FalconH1", FALCON_H1),
    "falcon-h1-norm": ("FalconH1", dict(FALCON_H1, mamba_rms_norm=True, mamba_n_groups=1, mamba_norm_before_gate=False,
                                        tie_word_embeddings=True)),
    "recurrent-gemma": ("RecurrentGemma", dict(SIZES, num_hidden_layers=3, lru_width=40, attention_window_size=6,
                                               logits_soft_cap=3.0)),
    "kimi-linear": ("KimiLinear", dict(KDA, linear_num_heads=2, linear_head_dim=12, num_local_experts=4,
                                       num_experts_per_tok=2, layer_types=["linear_attention", "full_attention"])),
    "ling3": ("BailingHybrid", dict(KDA, head_dim=12, num_local_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
                                    first_k_dense_replace=1, layer_group_size=2, num_mtp_layers=0)),
    "minimax": ("MiniMax", dict(MINIMAX, layer_types=["linear_attention", "full_attention", "linear_attention"],
                                full_attn_beta_factor=0.8, linear_attn_beta_factor=1.2, mlp_beta_factor=0.9)),
    # As MiniMax has Text-01 and M1: minimax_words
    "minimax-m1": ("MiniMax", dict(MINIMAX, layer_types=["linear_attention", "linear_attention", "full_attention"])),
    "zaya": ("Zaya", dict(SIZES, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=3, moe_intermediate_size=8,
                          router_hidden_size=6, cca_time0=3, cca_time1=2, sliding_window=5, tie_word_embeddings=True,
                          layer_types=["hybrid", "hybrid_sliding"])),
    "zamba": ("Zamba", dict(vocab_size=V, hidden_size=24, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32,
                            mamba_d_state=4, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0,
                            rms_norm_eps=1e-4, num_hidden_layers=3, layers_block_type=["linear_attention", "hybrid", "hybrid"])),
    "zamba2": ("Zamba2", dict(ZAMBA2, hidden_size=H, intermediate_size=32, mamba_expand=1, use_mem_rope=True, use_shared_attention_adapter=True,
                              num_hidden_layers=2, layers_block_type=["hybrid", "hybrid"])),
    "zamba2-blocks": ("Zamba2", dict(ZAMBA2, hidden_size=16, intermediate_size=32, num_key_value_heads=1, num_mem_blocks=2,
                                     num_hidden_layers=5, layers_block_type=[
        "linear_attention", "hybrid", "hybrid", "linear_attention", "hybrid"])),
    # A window and heads of their own in the first and last layer; distances that have no addend, and queries that grow
    "inkling": ("InklingForConditionalGeneration:InklingConfig", dict(text_config=dict(INKLING, num_hidden_layers=3, layer_types=[
        "hybrid_sliding", "hybrid", "hybrid_sliding"], mlp_layer_types=["dense", "sparse", "sparse"]),
        vision_config=dict(text_hidden_size=16, hidden_size=8, num_attention_heads=1, num_hidden_layers=2, patch_size=4),
        audio_config=dict(text_hidden_size=16, n_mel_bins=2, mel_vocab_size=4), tie_word_embeddings=False)),
    "granite-h": ("GraniteMoeHybrid", dict(GRANITE_H, num_local_experts=0)),
    "granite-h-moe": ("GraniteMoeHybrid", dict(GRANITE_H, num_local_experts=4, num_experts_per_tok=2,
                                               intermediate_size=8, shared_intermediate_size=16)),
}
# Some draws leave heads whose output is next to nothing before it is normed, which costs digits of f32.
SEEDS = {"ling3": 1, "qwen3-next": 1, "qwen3.5": 5, "qwen3.5-moe": 4}
LENGTHS = {"olmo-hybrid": 16, "recurrent-gemma": 16, "nemotron-h-moe": 24, "falcon-h1": 24, "falcon-h1-norm": 16, "qwen4-exp-ngrams": 24, "kimi-linear": 24, "ling3": 24,
           "minimax": 24, "minimax-m1": 24, "zaya": 24, "zamba": 24, "zamba2": 16, "zamba2-blocks": 24}  # others: 32
# What an aside of Zamba and Zamba2 puts out is normed with no residual beside it, so that rounding grows: branches are kept small.
QUIETER = {"embed": 4, "out_proj": 0.3, "linear.": 0.3, "q_proj": 0.5, "adapter_list": 0.5}
ZERO_CENTRED = ("Qwen3Next", "Qwen3_5", "Qwen4Exp", "RecurrentGemma")


def fill(model, g):
    centre = 0.0 if type(model).__name__.startswith(ZERO_CENTRED) else 1.0
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=g)
        if name.endswith("A_log"):
            p.data = torch.log(torch.rand(p.shape, generator=g) * 4 + 0.1)
        elif name.endswith("conv1d.weight") or name.endswith("conv.conv.weight"):
            p.data = r * (1.3 / math.sqrt(p.shape[-1]))
        elif name.endswith("dt_bias"):
            p.data = r - 1
        elif name.endswith("recurrent_param"):
            p.data = r - 3
        elif p.dim() >= 2 and "norm" not in name:
            p.data = r * (0.15 if "embed" in name else 1.3 / math.sqrt(p.shape[-1]))
        elif "bias" in name:
            p.data = r * 0.1
        else:
            p.data = (1.0 if "_attn.norm" in name else centre) + r * 0.1
        if type(model).__name__.startswith("Zamba"):
            p.data = p.data * math.prod(f for part, f in QUIETER.items() if part in name)
        p.data = p.data.bfloat16().float()  # as the file holds them
    for name, b in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            b.copy_((torch.randn(b.shape, generator=g) * 0.8).bfloat16().float())
        if name.endswith("balancing_biases"):  # so that some rows choose no expert
            b.copy_((torch.randn(b.shape, generator=g) * 0.1).bfloat16().float())


def published_names(path):
    """save_pretrained calls the MLP of a layer without experts as it does experts, and Olmo's norm behind attention as
    the one before an MLP, and cuts its convolution in three equal parts."""
    tensors = {re.sub(r"block_sparse_moe\.(gate|up|down)_proj", r"mlp.\1_proj", k): v for k, v in load_file(path).items()}
    tensors = {k.replace("1.feedforward_layer_norm", "1.post_attention_layernorm"): v for k, v in tensors.items()}
    for k in [k for k in tensors if k.endswith("linear_attn.q_conv1d.weight")]:
        parts = [k.replace("q_conv1d", f"{p}_conv1d") for p in "qkv"]
        sizes = [tensors[p.replace("conv1d", "proj")].shape[0] for p in parts]
        tensors |= zip(parts, [x.contiguous() for x in torch.cat([tensors[p] for p in parts]).split(sizes)])
    save_file(tensors, path, metadata={"format": "pt"})


PART = 4  # of a head of 8 dims so many rotate in minimax-m1: transformers has none such, so the others turn by 0


def turn_part(model):
    """Pairs are i and i + 4 of a head; as published i and i + 2 of its first 4 dims."""
    rotary = model.model.rotary_emb
    rotary.inv_freq = torch.cat([1e6 ** (-torch.arange(0, PART, 2) / PART), torch.zeros(2)])


def minimax_words(folder):
    """Rows of a head as the published rotation has them, and the publisher's keys."""
    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    place = [0, 1, 4, 5, 2, 3, 6, 7]
    for k, v in tensors.items():
        if re.search(r"self_attn\.[qk]_proj", k):
            tensors[k] = v.view(-1, 8, H)[:, place].reshape(-1, H).contiguous()
    save_file(tensors, path, metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        c = json.load(f)
    c["attn_type_list"] = [int(t == "full_attention") for t in c.pop("layer_types")]
    for kind, word in (("full_attn", "full_attention"), ("linear_attn", "linear_attention"), ("mlp", "mlp")):
        for f in ("alpha", "beta"):
            c[f"layernorm_{word}_{f}"] = float(c.pop(f"{kind}_{f}_factor"))
    c |= dict(architectures=["MiniMaxM1ForCausalLM"], model_type="minimax_m1", postnorm=True, rotary_dim=PART,
              rope_theta=c.pop("rope_parameters")["rope_theta"], shared_intermediate_size=0, shared_moe_mode="sigmoid",
              torch_dtype=c.pop("dtype"))
    del c["block_size"]
    with open(path, "w") as f:
        json.dump(c, f, indent=2)


def without_decays(path):
    """save_pretrained writes MiniMax's decays, which published files do not have: they follow from the layer's number."""
    save_file({k: v for k, v in load_file(path).items() if not k.endswith(("_decay", "slope_rate"))}, path,
              metadata={"format": "pt"})


def make(out, name, kind, sizes):
    model_class, config_class = (kind.split(":") if ":" in kind else (kind + "ForCausalLM", kind + "Config"))
    config = getattr(tf, config_class)(**sizes)
    config._attn_implementation = "eager"
    model = getattr(tf, model_class)(config).float().eval()
    g = torch.Generator().manual_seed(SEEDS.get(name, 0))
    fill(model, g)
    if name == "minimax-m1":
        turn_part(model)
    model.tie_weights()
    ids = torch.randint(3, sizes.get("text_config", {}).get("unpadded_vocab_size", V), (2, LENGTHS.get(name, 32)), generator=g)
    if name == "qwen4-exp-ngrams":  # n-grams end at eos
        ids[0, 9] = ids[1, 20] = ids[1, 22] = config.eos_token_id
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits.float()
        greedy, margin = ids, []
        for _ in range(16):
            best = model(greedy, use_cache=False).logits[:, -1].float().topk(2, -1)
            margin.append(best.values[:, 0] - best.values[:, 1])
            greedy = torch.cat([greedy, best.indices[:, :1]], 1)
    folder = os.path.join(out, name)
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.save_pretrained(folder)
    extra = os.path.join(folder, "generation_config.json")
    if os.path.exists(extra):
        os.remove(extra)
    if name in ("kimi-linear", "olmo-hybrid"):
        published_names(os.path.join(folder, "model.safetensors"))
    if kind == "MiniMax":
        without_decays(os.path.join(folder, "model.safetensors"))
    if name == "minimax-m1":
        minimax_words(folder)
    save_file(dict(input_ids=ids.int(), logits=logits.contiguous(), greedy=greedy.int().contiguous(),
                   margin=torch.stack(margin, 1).contiguous()),
              os.path.join(folder, "expected.safetensors"))
    print(f"{name:22s} spread {logits.std():.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, (kind, sizes) in MODELS.items():
        if len(sys.argv) <= 2 or name in sys.argv[2:]:
            make(sys.argv[1], name, kind, sizes)
