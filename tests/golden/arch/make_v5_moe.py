"""Tiny checkpoints of mixtures of experts and latent attention that transformers 5 knows, with its logits
(5.23.0, float32, eager attention), laid out as the other folders here; as small as the wiring allows.

usage: make_v5_moe.py OUT [NAME...]

OUT/NAME/: config.json, model.safetensors as save_pretrained writes it (the names of published files),
expected.safetensors (input_ids int32 [2, 16]; logits float32 [2, 16, V]; greedy int32 [2, 32], the ids
and 16 more; of PROMPT as many ids as it says; margin float32 [2, 16] between the best logit and the next). Weights are random bfloat16,
scaled so that the logits spread over a few units.
"""
import itertools
import json
import math
import os
import re
import sys

import torch
import transformers as tf
from safetensors.torch import load_file, save_file

V, H, HEADS, KV, T = 64, 32, 4, 2, 16
SIZES = dict(vocab_size=V, hidden_size=H, num_hidden_layers=2, num_attention_heads=HEADS,
             num_key_value_heads=KV, intermediate_size=16, max_position_embeddings=128,
             bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False)
SMALL = dict(SIZES, head_dim=4)
NARROW = dict(SMALL, intermediate_size=8)  # where it is the width of an expert
MLA = dict(SIZES, num_key_value_heads=HEADS, q_lora_rank=12, kv_lora_rank=16, qk_nope_head_dim=4,
           qk_rope_head_dim=4, v_head_dim=6)
ROUTED = dict(n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
              moe_intermediate_size=8)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8)
DSA = dict(MLA, index_n_heads=8, index_head_dim=6, index_topk=5,
           **dict(ROUTED, first_k_dense_replace=1))
VISION = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, out_hidden_size=H, in_channels=1,
              patch_size=2, spatial_merge_size=1, temporal_patch_size=1)


def seen(kind, text, **vision):
    """A model that sees, of which the text part is run."""
    return (kind + "ForConditionalGeneration", kind + "Config",
            dict(text_config=text, vision_config=dict(VISION, **vision)))


def text(kind, sizes):
    return kind + "ForCausalLM", kind + ("TextConfig" if kind == "Llama4" else "Config"), sizes


# Tensors of what sees images.
SEES = ("vision_model.", "vit_", "vision_tower.", "multi_modal_projector.", "patch_merge_mlp.", "vision_encoder.", "patch_merger.",
        "pre_mm_projector_norm.", "vision_language_adapter.", "model.vision_adapter.", "model.vision_projection.",
        "model.vision_tower.", "model.audio_tower.", "audio_encoder.")

MODELS = {
    "glm4-moe-lite": text("Glm4MoeLite", dict(MLA, **ROUTED)),
    "deepseek-v32": text("DeepseekV32", dict(DSA, n_group=2, topk_group=1, rope_parameters=dict(
        rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16, beta_fast=32.0,
        beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0))),
    "glm-moe-dsa": text("GlmMoeDsa", dict(DSA, num_hidden_layers=3, first_k_dense_replace=2,
                                              index_topk_freq=2, index_skip_topk_offset=1)),
    "deepseek-v4": text("DeepseekV4", dict(
        {k: v for k, v in SIZES.items() if k != "intermediate_size"}, num_hidden_layers=3, num_key_value_heads=1,
        hidden_size=16, head_dim=16, qk_rope_head_dim=8, q_lora_rank=12, o_groups=2, o_lora_rank=16, hc_mult=3,
        hc_sinkhorn_iters=5, index_n_heads=2, index_head_dim=12, index_topk=2, sliding_window=5, num_hash_layers=1,
        compress_rates=dict(compressed_sparse_attention=4, heavily_compressed_attention=8), layer_types=[
            "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
        swiglu_limit=1.5, rope_parameters=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16,
                                               beta_fast=32.0, beta_slow=1.0), **ROUTED)),
    "hy-v4": text("HYV4", dict(DSA, hidden_size=16, num_hidden_layers=3, hc_mult=3, hc_magnitude=1.7, swiglu_limit=0.8,
                               indexer_types=["full", "full", "shared"],
                               mlp_layer_types=["dense", "sparse", "sparse"])),
    "mistral-large4": ("MistralLarge4ForConditionalGeneration", "MistralLarge4Config", dict(
        text_config={k: v for k, v in dict(
            DSA, hidden_size=16, num_hidden_layers=6, num_attention_heads=2, num_key_value_heads=2, kv_lora_rank=12,
            n_group=2, topk_group=1, index_n_heads=4, first_k_dense_replace=2, no_rope_layers=[1, 0, 1, 0, 1, 1],
            kv_source_layers=[0, 1, 0, 1, 4, 4], final_logit_softcapping=3.0, routed_scaling_factor=1.5, indexer_types=[
                "full", "full", "shared", "full", "full", "shared"], attention_bias=True, rope_parameters=dict(
                rope_type="yarn", rope_theta=1e4, factor=8.0, original_max_position_embeddings=8, beta_fast=32.0,
                beta_slow=1.0, attention_factor=1.0)).items() if k != "q_lora_rank"}, vision_config=dict(
            model_type="pixtral", hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
            patch_size=2, image_size=4, head_dim=4), tie_word_embeddings=False)),
    # Its text part as StepFun has Step 3.5: step_words
    "step3.5": seen("Step3p7", dict(
        SIZES, num_hidden_layers=3, head_dim=8, num_attention_heads=2, num_sliding_attention_heads=4, num_key_value_heads=1,
        hidden_size=16, intermediate_size=12, moe_intermediate_size=8, n_routed_experts=4, num_experts_per_tok=2,
        share_expert_dim=8, moe_router_scaling_factor=1.5, sliding_window=6, num_nextn_predict_layers=1,
        layer_types=["full_attention", "sliding_attention", "full_attention", "full_attention"], moe_layers_enum="1,2,3",
        swiglu_limits=[0.0, 0.0, 0.4, 0.0], swiglu_limits_shared=[0.5, 0.0, 0.6, 0.0], rope_theta=[5e6, 1e4, 5e6, 5e6],
        partial_rotary_factors=[0.5, 1.0, 0.5, 0.5], rope_scaling=dict(
            rope_type="llama3", factor=2.0, original_max_position_embeddings=16, low_freq_factor=1.0,
            high_freq_factor=32.0)), width=4, layers=1, heads=1, image_size=2),
    "beam": text("Beam", dict(
        SMALL, num_hidden_layers=3, n_group=2, topk_group=1, sliding_window=6, final_logit_softcapping=5.0,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        mlp_layer_types=["dense", "sparse", "sparse"], **EXPERTS)),
    "glm5-next": seen("Glm5Next", dict(
        SIZES, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=12,
        kv_lora_rank=16, qk_nope_head_dim=6, qk_rope_head_dim=0, v_head_dim=5, index_n_heads=8, index_head_dim=6, index_topk=8,
        index_kpool=4, linear_num_heads=2, linear_head_dim=6, hc_mult=3, hc_sinkhorn_iters=5, swiglu_limit=0.8,
        layer_types=["linear_attention", "indexed_attention", "indexed_attention"],
        mlp_layer_types=["dense", "sparse", "sparse"], **ROUTED), depth=1, hidden_size=8, intermediate_size=4, num_heads=1,
        out_hidden_size=8, projection_intermediate_size=4, image_size=4),
    # As its publisher has it: dots3_words
    "dots3-note": ("Dots3NoteForConditionalGeneration", "Dots3NoteConfig", dict(
        text_config=dict(
            SIZES, hidden_size=16, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=12,
            kv_lora_rank=16, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, index_n_heads=8, index_head_dim=6,
            index_topk=5, sliding_window=6, shared_experts_intermediate_size=10, routed_scaling_factor=1.5,
            layer_types=["indexed_attention", "indexed_attention", "sliding_attention", "sliding_attention"],
            swa_num_attention_heads=2, swa_num_key_value_heads=2, swa_q_lora_rank=12, swa_kv_lora_rank=20, swa_head_dim=12,
            swa_qk_nope_head_dim=8, swa_v_head_dim=7, first_k_dense_replace=1, **ROUTED),
        vision_config=dict(embed_dim=8, intermediate_size=4, num_hidden_layers=1, num_heads=1, patch_size=2,
                           pyramid_num_routed=[-1], adapter_in_dim=8, adapter_out_dim=16),
        audio_config=dict(hidden_size=8, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1, feature_size=8,
                          downsample_hidden_size=4, adapter_input_size=8, adapter_out_dim=16, num_key_value_heads=1))),
    # As MiniMax has it: m3_words
    "minimax-m3": ("MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3VLConfig", dict(text_config=dict(
        SMALL, head_dim=8, hidden_size=16, num_hidden_layers=3, intermediate_size=8, dense_intermediate_size=12,
        shared_intermediate_size=4, num_local_experts=4, num_experts_per_tok=2, rotary_dim=4, swiglu_limit=0.7,
        index_n_heads=2, index_head_dim=6, index_block_size=3, index_topk_blocks=2, index_local_blocks=1,
        layer_types=["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        mlp_layer_types=["dense", "sparse", "sparse"],
        rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5)),
        vision_config=dict(hidden_size=12, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1, image_size=4,
                           patch_size=2), projector_hidden_size=4)),
    "longcat-flash": text("LongcatFlash", dict(
        {k: v for k, v in MLA.items() if k not in ("num_hidden_layers", "intermediate_size")}, num_layers=2, head_dim=4,
        hidden_size=16, num_attention_heads=2, num_key_value_heads=2, ffn_hidden_size=16, expert_ffn_hidden_size=8, n_routed_experts=4, zero_expert_num=3, moe_topk=3,
        routed_scaling_factor=1.7, attention_bias=True)),
    "solar-open": text("SolarOpen", dict({k: v for k, v in SMALL.items() if k != "intermediate_size"},
                                         **ROUTED, rope_parameters=dict(
        rope_type="yarn", rope_theta=1e6, factor=2.0, original_max_position_embeddings=64))),
    "minimax-m2": text("MiniMaxM2", dict(NARROW, num_local_experts=4, num_experts_per_tok=2,
                                         rotary_dim=2)),
    "flint": text("Flint", dict(SMALL, **EXPERTS, shared_expert_intermediate_size=8, num_hidden_layers=3,
                                mlp_only_layers=[0], sliding_window=5, layer_types=[
        "full_attention", "sliding_attention", "sliding_attention"])),
    "kolibri1": text("Kolibri1", dict({k: v for k, v in SMALL.items() if k != "intermediate_size"}, **EXPERTS,
                                      shared_expert_intermediate_size=8, sliding_window=5, layer_types=[
        "sliding_attention", "full_attention"])),
    "exaone-moe": text("ExaoneMoe", dict(SMALL, num_shared_experts=1, sliding_window=8,
                                         sliding_window_pattern=2, **EXPERTS)),
    "axk1": text("AXK1", dict(MLA, n_group=2, topk_group=1, **ROUTED)),
    "axk2": text("AXK2", dict({k: v for k, v in DSA.items() if k != "first_k_dense_replace"}, gated_norm_rank=3,
                              mlp_layer_types=["dense", "sparse"], rope_parameters=dict(
        rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16, beta_fast=32.0,
        beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0))),
    "ernie45-moe": text("Ernie4_5_Moe", dict(SIZES, moe_num_experts=4, moe_k=2,
                                             moe_intermediate_size=8, moe_num_shared_experts=1)),
    "hunyuan-moe": text("HunYuanMoEV1", dict(NARROW, num_experts=4, moe_topk=2)),
    "mimo-v2-flash": text("MiMoV2Flash", dict(
        SIZES, num_key_value_heads=1, head_dim=12, v_head_dim=8, sliding_window=6, n_routed_experts=3,
        num_experts_per_tok=2, moe_intermediate_size=8, layer_types=["full_attention", "sliding_attention"],
        rope_parameters={kind: dict(rope_type="default", rope_theta=theta, partial_rotary_factor=0.334)
                         for kind, theta in (("full_attention", 5e6), ("sliding_attention", 1e4))})),
    "cohere2-moe": text("Cohere2Moe", dict(
        NARROW, num_hidden_layers=3, prefix_dense_intermediate_size=16, num_experts=3, tie_word_embeddings=True,
        num_experts_per_tok=2, num_shared_experts=1, expert_selection_fn="sigmoid", sliding_window=6, logit_scale=2.0,
        sliding_window_pattern=2, first_k_dense_replace=1)),
    "hy-v3": text("HYV3", dict(SMALL, num_shared_experts=1, **EXPERTS)),
    "granite-moe-shared": text("GraniteMoeShared", dict(
        NARROW, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=16,
        embedding_multiplier=2.0, attention_multiplier=0.3, residual_multiplier=0.5,
        logits_scaling=3.0)),
    "flex-olmo": text("FlexOlmo", dict(NARROW, num_experts=4, num_experts_per_tok=2)),
    "youtu": text("Youtu", dict(MLA, tie_word_embeddings=True)),
    "phimoe": text("Phimoe", dict(SIZES, intermediate_size=8, num_local_experts=4,
                                  num_experts_per_tok=2, attention_bias=True, lm_head_bias=True,
                                  router_jitter_noise=0.2, rope_parameters=dict(
        rope_type="longrope", rope_theta=1e4, short_factor=[1.0, 1.1, 1.5, 2.0],
        long_factor=[1.0, 2.0, 4.0, 8.0], short_mscale=1.2, long_mscale=1.3,
        original_max_position_embeddings=64))),
    "llama4": text("Llama4", dict(SMALL, intermediate_size=16, intermediate_size_mlp=24, num_local_experts=4,
                                  num_experts_per_tok=1, interleave_moe_layer_step=2, no_rope_layer_interval=2,
                                  attention_chunk_size=6, floor_scale=5, attn_scale=0.5)),
    # As llama.cpp has Llama 4: chunks of 8192, and each fourth layer without rotation
    "llama4-maverick": text("Llama4", dict(SMALL, hidden_size=16, num_attention_heads=2, num_key_value_heads=1,
                                           head_dim=8, num_hidden_layers=4, intermediate_size=8,
                                           intermediate_size_mlp=16, num_local_experts=4, num_experts_per_tok=1,
                                           interleave_moe_layer_step=2)),
    # Chunks of whole blocks of a cache, in prompts of more than one
    "llama4-chunks": text("Llama4", dict(SMALL, intermediate_size=16, intermediate_size_mlp=24, num_local_experts=4,
                                         num_experts_per_tok=1, interleave_moe_layer_step=2, no_rope_layer_interval=2,
                                         attention_chunk_size=16)),
    "mistral4": text("Mistral4", dict(MLA, **ROUTED, rope_parameters=dict(
        rope_type="yarn", rope_theta=1e4, factor=8.0, original_max_position_embeddings=8, beta_fast=32.0,
        beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1))),
    "afmoe": text("Afmoe", dict(SMALL, num_shared_experts=1, sliding_window=6, global_attn_every_n_layers=2,
                                num_dense_layers=1, route_scale=1.7, mup_enabled=True, **EXPERTS)),
    "laguna": text("Laguna", dict(SMALL, head_dim=8, shared_expert_intermediate_size=8, sliding_window=6,
                                  layer_types=["full_attention", "sliding_attention"],
                                  num_attention_heads_per_layer=[4, 2], moe_routed_scaling_factor=1.5,
                                  rope_parameters=dict(
        full_attention=dict(rope_type="yarn", rope_theta=5e5, partial_rotary_factor=0.5, factor=4.0,
                            original_max_position_embeddings=32),
        sliding_attention=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=1.0)), **EXPERTS)),
    "laguna-elements": text("Laguna", dict(SMALL, shared_expert_intermediate_size=8, gating="per-element",
                                           num_hidden_layers=1, mlp_layer_types=["sparse"], **EXPERTS)),
    "mellum": text("Mellum", dict(SMALL, sliding_window=6, layer_types=["full_attention", "sliding_attention"], **EXPERTS)),
    "granite-moe-swa": text("GraniteMoeSWA", dict(
        NARROW, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=16, sliding_window=6,
        layer_rope_theta=[0, 1e4], embedding_multiplier=2.0, attention_multiplier=0.3, residual_multiplier=0.5,
        logits_scaling=3.0)),
    "qwen3-vl-moe": seen("Qwen3VLMoe", dict(SMALL, norm_topk_prob=True, rope_parameters=dict(
        rope_type="default", rope_theta=5e6, mrope_section=[1, 1, 0], mrope_interleaved=True),
        **EXPERTS), num_position_embeddings=4, deepstack_visual_indexes=[0]),
    "muse-spark": ("MuseSparkForConditionalGeneration", "MuseSparkConfig", dict(
        text_config=dict(NARROW, head_dim=8, num_hidden_layers=3, intermediate_size=12, sliding_window=5, post_norm_eps=1e-3,
                         final_logit_softcapping=5.0, output_multiplier=0.7, residual_gate_temperature=0.5, qk_scale_factor=2.5,
                         mlp_layer_types=["dense", "sparse", "sparse"], moe_hidden_size=16, moe_intermediate_size=12,
                         num_local_experts=4, num_experts_per_tok=2, routed_scaling_factor=1.5,
                         layer_types=["sliding_attention", "sliding_attention", "full_attention"]),
        vision_config=dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, patch_size=2,
                           pos_emb_height=2, pos_emb_width=2),
        audio_config=dict(patch_sizes=[2], hidden_sizes=[8], depths=[1], num_hidden_layers=1, out_hidden_size=H),
        out_hidden_size=32, projector_hidden_size=8)),
    "ernie45-vl-moe": ("Ernie4_5_VLMoeForConditionalGeneration", "Ernie4_5_VLMoeConfig", dict(
        text_config=dict(SIZES, hidden_size=16, num_attention_heads=2, num_key_value_heads=1, moe_num_experts=4, moe_k=2,
                         moe_intermediate_size=[8, 4], moe_num_shared_experts=2, tie_word_embeddings=True,
                         rope_parameters=dict(rope_type="default", rope_theta=5e5, mrope_section=[1, 1, 2])),
        vision_config=dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, in_channels=1, patch_size=2,
                           spatial_merge_size=1, temporal_merge_size=2), tie_word_embeddings=True)),
    "glm4v-moe": seen("Glm4vMoe", dict(SMALL, rope_parameters=dict(
        rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5, mrope_section=[1, 0, 0]),
        **ROUTED), image_size=4),
}


def fill(model, g):
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=g)
        if p.dim() >= 2 and "norm" not in name and "bias" not in name:
            p.data = r * (0.15 if "embed" in name else 1.3 / math.sqrt(p.shape[-1]))
        elif "bias" in name:
            p.data = r * 0.1
        elif "residual_gate" in name:
            p.data = r * 0.5
        elif name.endswith("softmax_scaling.scale"):
            p.data = r * 0.4
        else:
            p.data = 1.0 + r * 0.1
    for name, b in model.named_buffers():
        if name.endswith("rotary_emb.alpha"):
            b.copy_(torch.randn(b.shape, generator=g).bfloat16())
        if "correction" in name:
            b.copy_(torch.randn(b.shape, generator=g) * (1 if model.config.model_type == "kolibri1" else 0.1))
            if hasattr(model.config, "index_topk") and hasattr(model.config, "n_group"):
                b.sub_(0.8)  # scores below 0, which an expert of another group must not beat


def experts_by_token(model, g):
    for name, b in model.named_buffers():
        if name.endswith("tid2eid"):
            b.copy_(torch.stack([torch.randperm(model.config.n_routed_experts, generator=g)[:b.shape[1]]
                                 for _ in b]))


class Gaps:
    """While it is entered: how close the last chosen and the first left out of an indexer's scores come."""

    def __init__(self, k):
        self.k, self.least = k, math.inf

    def __enter__(self):
        plain = self.plain = torch.Tensor.topk

        def topk(scores, k, dim=-1, **more):
            if k == self.k and scores.dim() > 2 and scores.shape[-1] > k:
                best = plain(scores, k + 1).values[..., -2:]
                gap = (best[..., 0] - best[..., 1])[best[..., 1] > -1e30]
                if gap.numel():
                    self.least = min(self.least, gap.min().item())
            return plain(scores, k, dim, **more)
        torch.Tensor.topk = topk
        return self

    def __exit__(self, *_):
        torch.Tensor.topk = self.plain


def round_to_bf16(model):
    for p in model.parameters():
        p.data = p.data.bfloat16().float()  # as the file holds them
    for name, b in model.named_buffers():
        if "correction" in name:
            b.copy_(b.bfloat16().float())


def published(name, model):
    """save_pretrained gives DeepSeek V4's and Hy4's tensors their published names but for some."""
    if model.config.model_type == "hy_v4":
        name = name if "self_attn" in name else name.replace(".linear_gate.", ".gate_proj.")
        return name.replace(".hc_pre.hc_", ".hc_")
    if model.config.model_type != "deepseek_v4":
        return name
    for own, theirs in ("model.", ""), ("embed_tokens.", "embed."), ("hc_head.hc_", "hc_head_"), (".attn.norm.", ".attn.kv_norm."):
        name = name.replace(own, theirs)
    return name


def is_zero_expert(name, config):
    """LongCat's have no weights in published files."""
    found = re.search(r"\.experts\.(\d+)\.", name)
    return config.model_type == "longcat_flash" and found and int(found[1]) >= config.n_routed_experts


def m3_words(config):
    """config.json of a MiniMax M3 in its publisher's words."""
    own = config["text_config"]
    own["sparse_attention_config"] = dict(
        use_sparse_attention=True, sparse_init_block=0, sparse_score_type="max", sparse_attention_freq=[
            int(kind != "full_attention") for kind in own["layer_types"]],
        sparse_disable_index_value=[int(kind != "full_attention") for kind in own.pop("layer_types")],
        **{theirs: own.pop(key) for theirs, key in (
            ("sparse_num_index_heads", "index_n_heads"), ("sparse_index_dim", "index_head_dim"),
            ("sparse_block_size", "index_block_size"), ("sparse_topk_blocks", "index_topk_blocks"),
            ("sparse_local_block", "index_local_blocks"))})
    own["moe_layer_freq"] = [int(kind == "sparse") for kind in own.pop("mlp_layer_types")]
    own.update(hidden_act="swigluoai", use_qk_norm=True, qk_norm_type="per_head", use_gemma_norm=True, n_shared_experts=1,
               scoring_func="sigmoid", use_routing_bias=True, attention_output_gate=False, num_mtp_modules=1)
    del config["vision_config"]
    return config


def dots3_words(config, sizes):
    """config.json in its publisher's words, whose text part is at the top."""
    own = dict(sizes, architectures=config["architectures"], model_type="dots3_note", dtype="bfloat16", hidden_act="silu",
               layer_types=[kind.replace("indexed", "full") for kind in sizes["layer_types"]], use_dsa=True,
               rope_theta=8e7, swa_rope_theta=5e4, rope_scaling=None, sliding_window_size=sizes["sliding_window"],
               moe_layer_freq=1, swa_qk_rope_head_dim=sizes["swa_head_dim"] - sizes["swa_qk_nope_head_dim"],
               moe_shared_expert_intermediate_size=sizes["shared_experts_intermediate_size"], rms_norm_eps=1e-5,
               attention_gate_type="headwise", swa_attention_gate_type="headwise", apply_mla_qkv_lora_rescale=True,
               k_rope_only_layernorm=True, topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=True,
               normalization="RMSNorm", final_norm="RMSNorm", use_dynamic_rsf=False, moe_gating_fp32=False,
               vision_config=dict(model_type="dots3_note_vision_encoder"), audio_config=dict(model_type="dots3_note_audio_encoder"))
    for key in "sliding_window", "shared_experts_intermediate_size":
        del own[key]
    return own


def step_words(config, sizes):
    """config.json of the text part in its publisher's words."""
    own = dict(sizes, architectures=["Step3p5ForCausalLM"], model_type="step3p5", dtype="bfloat16",
               moe_top_k=sizes["num_experts_per_tok"], moe_num_experts=sizes["n_routed_experts"],
               num_attention_groups=sizes["num_key_value_heads"], use_head_wise_attn_gate=True, use_moe_router_bias=True,
               moe_router_activation="sigmoid", need_fp32_gate=True, use_moe=True, zero_centered=True,
               yarn_only_types=["full_attention"], attention_other_setting=dict(
                   attention_type="sliding_attention", num_attention_heads=sizes["num_sliding_attention_heads"],
                   num_attention_groups=sizes["num_key_value_heads"], head_dim=sizes["head_dim"]))
    for key in "n_routed_experts", "num_experts_per_tok", "num_key_value_heads", "num_sliding_attention_heads":
        del own[key]
    return own


def save(model, folder, sizes):
    """As bfloat16, which holds the values exactly, and one line of config.json."""
    model.config.dtype = torch.bfloat16
    model.save_pretrained(folder)
    path = os.path.join(folder, "model.safetensors")
    save_file({published(k, model): v.bfloat16().contiguous() if v.is_floating_point() else v
               for k, v in load_file(path).items() if not k.startswith(SEES) and not is_zero_expert(k, model.config)}, path,
              metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    config = json.load(open(path))
    if config["model_type"] == "step3p7":
        config = step_words(config, sizes["text_config"])
    if config["model_type"] == "minimax_m3_vl":
        config = m3_words(config)
    if config["model_type"] == "dots3_note":
        config = dots3_words(config, sizes["text_config"])
    json.dump(config, open(path, "w"))
    extra = os.path.join(folder, "generation_config.json")
    if os.path.exists(extra):
        os.remove(extra)


SEEDS = {"mistral-large4": 7}  # whose choices weights of 8 bits do not change either


PROMPT = {"llama4-chunks": 24}


def make(out, name, model_class, config_class, sizes):
    # Another seed where an indexer's choice hangs on rounding.
    for seed in itertools.count(len(name) * 1000 + sum(map(ord, name)) + SEEDS.get(name, 0), 100000):
        own = sizes.get("text_config", sizes)
        chosen = own.get("index_topk", own.get("index_topk_blocks"))
        with Gaps(chosen and chosen // own.get("index_kpool", 1)) as gaps:
            write(out, name, model_class, config_class, sizes, torch.Generator().manual_seed(seed))
        if gaps.least > 2e-4:
            break


def write(out, name, model_class, config_class, sizes, g):
    config = getattr(tf, config_class)(**sizes)
    config._attn_implementation = "eager"
    model = getattr(tf, model_class)(config).float().eval()
    fill(model, g)
    experts_by_token(model, g)
    model.tie_weights()
    round_to_bf16(model)
    ids = torch.randint(3, V, (2, PROMPT.get(name, T)), generator=g)
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits.float()
        greedy, margin = ids, []
        for _ in range(16):
            best = model(input_ids=greedy, use_cache=False).logits[:, -1].float().topk(2, -1)
            margin.append(best.values[:, 0] - best.values[:, 1])
            greedy = torch.cat([greedy, best.indices[:, :1]], 1)
    folder = os.path.join(out, name)
    save(model, folder, sizes)
    save_file(dict(input_ids=ids.int(), logits=logits.contiguous(), greedy=greedy.int().contiguous(),
                   margin=torch.stack(margin, 1).contiguous()),
              os.path.join(folder, "expected.safetensors"))
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    print(f"{name:22s} spread {logits.std():.2f}, {size} bytes")


torch.set_num_threads(1)
for name, spec in MODELS.items():
    if len(sys.argv) <= 2 or name in sys.argv[2:]:
        make(sys.argv[1], name, *spec)
