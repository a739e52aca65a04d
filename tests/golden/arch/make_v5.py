"""Tiny checkpoints of architectures that transformers 5.23.0 brought, with its logits (float32, eager
attention), laid out as the other folders here.

usage: make_v5.py OUT [NAME...]; make_v5.py --heads OUT

OUT/NAME/: config.json, model.safetensors, expected.safetensors (input_ids int32 [2, 16]; logits
float32 [2, 16, V]; greedy int32 [2, 32], the ids and 16 more; margin float32 [2, 16] between the best
logit and the next). Weights are random, scaled so that the logits spread over a few units, and have
the values that BF16 holds. Files are named as repositories of today name them: FILES below says where
that is not what save_pretrained writes.
"""
import json
import math
import os
import sys

import torch
import transformers as tf
from safetensors.torch import load_file, save_file

V, H, T = 64, 32, 16
SIZES = dict(vocab_size=V, hidden_size=H, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
             max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0, num_key_value_heads=2)
ONE = dict(SIZES, num_hidden_layers=1)  # where another here differs in names only
MROPE = dict(rope_type="default", rope_theta=1000000.0, mrope_section=[1, 1, 2])
QWEN_EYE = dict(depth=1, hidden_size=8, num_heads=2, in_channels=1, patch_size=2, temporal_patch_size=1,
                spatial_merge_size=2)
CLIP = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=4, patch_size=2,
            num_channels=1)
YARN = dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
            mscale_all_dim=1.0, rope_theta=10000.0)

HEADS = {  # of tests/golden/heads: scores float32 [2, labels] of the last id, or hidden float32 [2, 16, H]
    "qwen3-labels": ("Qwen3ForSequenceClassification:Qwen3Config", dict(
        SIZES, head_dim=8, num_labels=3, tie_word_embeddings=True)),
    "llama-one-label": ("LlamaForSequenceClassification:LlamaConfig", dict(ONE, num_labels=1)),
    "qwen3-model": ("Qwen3Model:Qwen3Config", dict(ONE, head_dim=8)),
    "llama-both-ways": ("LlamaModel:LlamaConfig", dict(ONE, is_causal=False)),
    "embeddinggemma": ("Gemma3TextModel:Gemma3TextConfig", dict(
        SIZES, head_dim=8, query_pre_attn_scalar=8, use_bidirectional_attention=True, sliding_window=8,
        layer_types=["sliding_attention", "full_attention"])),
}
# sentence-transformers' modules behind them: (outputs, bias, activation) of each Dense. Its arithmetic, written out,
# makes vector [2, outputs] of the mean of the hidden states.
DENSE = {"embeddinggemma": [(48, False, "torch.nn.modules.linear.Identity"), (24, True, "torch.nn.modules.activation.Tanh")]}
MODELS = {
    "qwen2-vl": ("Qwen2VLForConditionalGeneration:Qwen2VLConfig", dict(
        text_config=dict(ONE, rope_parameters=MROPE),
        vision_config=dict(depth=1, embed_dim=8, num_heads=2, in_channels=1, patch_size=2, temporal_patch_size=1,
                           mlp_ratio=1, hidden_size=H))),
    "qwen2.5-vl": ("Qwen2_5_VLForConditionalGeneration:Qwen2_5_VLConfig", dict(
        text_config=dict(ONE, rope_parameters=MROPE),
        vision_config=dict(QWEN_EYE, intermediate_size=8, out_hidden_size=H, fullatt_block_indexes=[0]))),
    "qwen3-vl": ("Qwen3VLForConditionalGeneration:Qwen3VLConfig", dict(
        tie_word_embeddings=True,
        text_config=dict(SIZES, head_dim=8, rope_parameters=dict(MROPE, mrope_interleaved=True)),
        vision_config=dict(QWEN_EYE, intermediate_size=8, out_hidden_size=H, deepstack_visual_indexes=[0],
                           num_position_embeddings=4))),
    "codegen": ("CodeGen", dict(vocab_size=V, n_embd=H, n_layer=2, n_head=8, n_positions=128, n_ctx=128, n_inner=48, rotary_dim=2,
                                bos_token_id=1, eos_token_id=2)),
    "doge": ("Doge", dict(SIZES, sliding_window=12, attention_bias=True, mlp_bias=True, keep_window_size=128)),
    "openai-gpt": ("OpenAIGPTLMHeadModel:OpenAIGPTConfig", dict(vocab_size=V, n_embd=24, n_layer=2, n_head=4, n_positions=64)),
    "biogpt": ("BioGpt", dict(ONE, num_key_value_heads=4, max_position_embeddings=64)),
    "emu3": ("Emu3ForCausalLM:Emu3TextConfig", dict(ONE, rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
    "aria": ("AriaText", dict(ONE, intermediate_size=16, moe_num_experts=4, moe_topk=3, moe_num_shared_experts=2)),
    "ling": ("AriaText", dict(ONE, head_dim=8, intermediate_size=16, moe_num_experts=4, moe_topk=3, moe_num_shared_experts=2)),
    "ling2": ("Glm4Moe", dict(
        SIZES, head_dim=8, moe_intermediate_size=8, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2, n_group=4,
        topk_group=2, routed_scaling_factor=1.5, first_k_dense_replace=1, use_qk_norm=True, attention_bias=False,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))),
    "cohere-compass": ("CohereCompassForConditionalGeneration:CohereCompassConfig", dict(
        tie_word_embeddings=True,
        text_config=dict(SIZES, sliding_window=5, logit_scale=0.5, layer_types=["sliding_attention", "full_attention"],
                         rope_parameters=dict(sliding_attention=MROPE, full_attention=None)),
        vision_config=dict(QWEN_EYE, intermediate_size=8, out_hidden_size=H, deepstack_visual_indexes=[0],
                           num_position_embeddings=4))),
    "muse-glimmer": ("MuseGlimmerForConditionalGeneration:MuseGlimmerConfig", dict(
        text_config=dict(SIZES, head_dim=8, intermediate_size=24, sliding_window=5, post_norm_eps=1e-3,
                         final_logit_softcapping=5.0, output_multiplier=0.7,
                         layer_types=["sliding_attention", "full_attention"]),
        vision_config=dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, patch_size=2,
                           pos_emb_height=2, pos_emb_width=2),
        out_hidden_size=32, projector_hidden_size=8)),
    "glm4v": ("Glm4vForConditionalGeneration:Glm4vConfig", dict(
        text_config=dict(ONE, rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                                   partial_rotary_factor=0.5, mrope_section=[1, 1])),
        vision_config=dict(depth=1, hidden_size=8, num_heads=2, in_channels=1, patch_size=2, temporal_patch_size=1,
                           image_size=4, out_hidden_size=H, intermediate_size=8))),
    "glm-ocr": ("GlmOcrForConditionalGeneration:GlmOcrConfig", dict(
        text_config=dict(ONE, rope_parameters=dict(MROPE, rope_theta=10000.0)),
        vision_config=dict(depth=1, hidden_size=8, num_heads=2, in_channels=1, patch_size=2, temporal_patch_size=1,
                           image_size=4, out_hidden_size=H, intermediate_size=8))),
    "paddleocr-vl": ("PaddleOCRVLForConditionalGeneration:PaddleOCRVLConfig", dict(
        text_config=dict(ONE, head_dim=8, rope_parameters=MROPE),
        vision_config=CLIP)),
    "hunyuan-vl": ("HunYuanVLForConditionalGeneration:HunYuanVLConfig", dict(
        text_config=dict(ONE, head_dim=8, rope_parameters=dict(MROPE, rope_theta=10000.0)),
        vision_config=dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, patch_size=2,
                           num_channels=1, out_hidden_size=H, spatial_merge_size=1, max_image_size=8,
                           min_image_size=4))),
    "granite-docling": ("GraniteDoclingForConditionalGeneration:GraniteDoclingConfig", dict(
        text_config=dict(ONE),
        vision_config=dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=4,
                           patch_size=2, num_channels=1, out_hidden_size=H))),
    "deepseek-ocr2": ("DeepseekOcr2ForConditionalGeneration:DeepseekOcr2Config", dict(
        text_config=dict(SIZES, moe_intermediate_size=16, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2,
                         routed_scaling_factor=1.5, mlp_layer_types=["dense", "sparse"]),
        vision_config=dict(sam_config=dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=32,
                                           patch_size=8, mlp_dim=8, output_channels=8, global_attn_indexes=[0],
                                           downsample_channels=[8, 8], window_size=2),
                           encoder_config=dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                               num_attention_heads=2, num_key_value_heads=2)))),
    "ministral3": ("Mistral3ForConditionalGeneration:Mistral3Config", dict(
        text_config=dict(SIZES, model_type="ministral3", head_dim=8, rope_parameters=dict(
            YARN, llama_4_scaling_beta=0.1, original_max_position_embeddings=8)),
        vision_config=dict(model_type="pixtral", hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                           num_attention_heads=2, image_size=4, patch_size=2, num_channels=1, head_dim=4))),
    "smolvlm": ("SmolVLMForConditionalGeneration:SmolVLMConfig", dict(
        text_config=dict(ONE, model_type="llama"), image_token_id=5,
        vision_config=CLIP, scale_factor=1)),
    "hyperclovax": ("HyperCLOVAX", dict(SIZES, embedding_multiplier=4.0, residual_multiplier=0.5, attention_multiplier=0.3,
                                        logits_scaling=0.5)),
    "exaone": ("Llama", dict(ONE, tie_word_embeddings=True, rope_parameters=dict(
        rope_type="llama3", rope_theta=10000.0, factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0,
        original_max_position_embeddings=32))),
    "jais2": ("Jais2", dict(SIZES, num_key_value_heads=4, head_dim=8)),
    "cwm": ("Cwm", dict(SIZES, head_dim=8, sliding_window=8, rope_parameters=dict(
        rope_type="llama3", rope_theta=10000.0, factor=4.0, high_freq_factor=4.0, low_freq_factor=1.0,
        original_max_position_embeddings=32))),
    "internlm2": ("Llama", dict(ONE)),
    "internlm3": ("Llama", dict(ONE, head_dim=8)),
    "granite4-dense": ("GraniteMoeHybrid", dict(
        SIZES, num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=32, layer_types=["full_attention"] * 2,
        position_embedding_type="rope", embedding_multiplier=4.0, attention_multiplier=0.3, residual_multiplier=0.5,
        logits_scaling=2.0, mamba_n_heads=8, mamba_expand=2, tie_word_embeddings=True)),
    "minicpm": ("Granite", dict(SIZES, tie_word_embeddings=True, embedding_multiplier=12.0, logits_scaling=H / 16,
                                residual_multiplier=1.4 / math.sqrt(2), attention_multiplier=8**-0.5)),
    "minicpm3": ("MiniCPM3", dict(ONE, num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=16, qk_nope_head_dim=8,
                                  qk_rope_head_dim=4, v_head_dim=8, dim_model_base=16)),
    "granite-swa": ("GraniteSWA", dict(SIZES, num_hidden_layers=3, intermediate_size=16, sliding_window=6,
                                       layer_rope_theta=[0, 1e4, 500.0],
                                       embedding_multiplier=4.0, attention_multiplier=0.3, residual_multiplier=0.5,
                                       logits_scaling=2.0)),
    "granite-swa-yarn": ("GraniteSWA", dict(
        SIZES, intermediate_size=16, sliding_window=6, layer_rope_theta=[1e4, 500.0], rope_parameters=YARN,
        layer_types=["full_attention", "sliding_attention"])),
    "nanochat": ("NanoChat", dict(SIZES, head_dim=8)),
    "qwen2.5-omni": ("Qwen2_5OmniThinkerForConditionalGeneration:Qwen2_5OmniThinkerConfig", dict(
        tie_word_embeddings=False,
        text_config=dict(ONE, rope_parameters=MROPE, tie_word_embeddings=False),
        vision_config=dict(QWEN_EYE, intermediate_size=8, out_hidden_size=H, fullatt_block_indexes=[0]),
        audio_config=dict(num_mel_bins=4, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=8, d_model=8,
                          output_dim=H, max_source_positions=8, n_window=2))),
    "phi4-mm": ("Phi3", dict(ONE, rope_parameters=dict(
        rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.1, 1.5], long_factor=[1.0, 2.0, 4.0],
        original_max_position_embeddings=16, partial_rotary_factor=0.75))),
    "bitnet": ("BitNet", dict(SIZES)),
    "apertus": ("Apertus", dict(SIZES, rope_parameters=dict(
        rope_type="llama3", rope_theta=10000.0, factor=4.0, high_freq_factor=4.0, low_freq_factor=1.0,
        original_max_position_embeddings=32))),
}


def fill(model, g):
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=g)
        if p.dim() >= 2 and "norm" not in name:
            p.data = r * (0.15 if "embed" in name or "wte" in name else 1.3 / math.sqrt(p.shape[-1]))
        elif "bias" in name or "sinks" in name or "act_fn" in name:
            p.data = r * 0.1
        elif name.endswith("self_attn.A"):
            p.data = r * 0.4
        else:
            p.data = 1.0 + r * 0.1
        p.data = p.data.bfloat16().float()  # as the file holds them


def make(out, name, kind, sizes):
    model_class, config_class = (kind.split(":") if ":" in kind else (kind + "ForCausalLM", kind + "Config"))
    config = getattr(tf, config_class)(**sizes)
    config._attn_implementation = "eager"
    model = getattr(tf, model_class)(config).float().eval()
    g = torch.Generator().manual_seed(len(name) * 1000 + sum(map(ord, name)))
    fill(model, g)
    model.tie_weights()
    ids = torch.randint(3, V, (2, T), generator=g)
    folder = os.path.join(out, name)
    if not any(words in model_class for words in ("ForCausalLM", "Conditional", "LMHead")):
        with torch.no_grad():
            answer = model(ids, use_cache=False)
        got = dict(scores=answer.logits) if "Sequence" in model_class else dict(hidden=answer.last_hidden_state)
        if name in DENSE:
            got["vector"] = sentence(folder, got["hidden"].mean(1), DENSE[name], g)
        save(model, folder, dict(input_ids=ids.int(), **got))
        return
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits.float()
        greedy, margin = ids, []
        for _ in range(16):
            best = model(greedy, use_cache=False).logits[:, -1].float().topk(2, -1)
            margin.append(best.values[:, 0] - best.values[:, 1])
            greedy = torch.cat([greedy, best.indices[:, :1]], 1)
    save(model, folder, dict(input_ids=ids.int(), logits=logits.contiguous(), greedy=greedy.int().contiguous(),
                             margin=torch.stack(margin, 1).contiguous()))
    print(f"{name:22s} spread {logits.std():.2f}")


def write_json(folder, name, value):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "w") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def sentence(folder, x, dense, g):
    kinds = ["Transformer", "Pooling"] + ["Dense"] * len(dense) + ["Normalize"]
    paths = ["" if i == 0 else f"{i}_{k}" for i, k in enumerate(kinds)]
    write_json(folder, "modules.json", [dict(idx=i, name=str(i), path=p, type=f"sentence_transformers.models.{k}")
                                        for i, (p, k) in enumerate(zip(paths, kinds))])
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    write_json(os.path.join(folder, paths[1]), "config.json", dict(
        word_embedding_dimension=x.shape[1], **{f"pooling_mode_{m}": m == "mean_tokens" for m in modes}, include_prompt=True))
    write_json(folder, "config_sentence_transformers.json", dict(
        prompts=dict(query="task: search result | query: ", document="title: none | text: "), default_prompt_name=None,
        similarity_fn_name="cosine"))
    write_json(folder, "sentence_bert_config.json", dict(max_seq_length=128, do_lower_case=False))
    for path, (n, bias, act) in zip(paths[2:], dense):
        w = {"linear.weight": torch.randn(n, x.shape[1], generator=g) / math.sqrt(x.shape[1])}
        if bias:
            w["linear.bias"] = torch.randn(n, generator=g) * 0.1
        w = {k: v.bfloat16() for k, v in w.items()}
        x = torch.nn.functional.linear(x, *[v.float() for v in w.values()])
        x = torch.tanh(x) if act.endswith("Tanh") else x
        write_json(os.path.join(folder, path), "config.json", dict(
            in_features=w["linear.weight"].shape[1], out_features=n, bias=bias, activation_function=act))
        save_file(w, os.path.join(folder, path, "model.safetensors"), metadata={"format": "pt"})
    return torch.nn.functional.normalize(x, dim=1)


def save(model, folder, expected):
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.save_pretrained(folder)
    extra = os.path.join(folder, "generation_config.json")
    if os.path.exists(extra):
        os.remove(extra)
    name = os.path.basename(folder)
    if name in FILES:
        rename(folder, *FILES[name])
    save_file(expected, os.path.join(folder, "expected.safetensors"))


def rename(folder, tensors, config):
    """A Llama under the names of an architecture whose code is not in transformers: tensors maps a file's
    dict, config its config.json."""
    path = os.path.join(folder, "model.safetensors")
    save_file({k: v.contiguous() for k, v in tensors(load_file(path)).items()}, path, metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        j = json.load(f)
    with open(path, "w") as f:
        json.dump(config(j), f, indent=2)
        f.write("\n")


def replaced(*pairs):
    def names(tensors):
        out = {}
        for k, v in tensors.items():
            for a, b in pairs:
                k = k.replace(a, b)
            out[k] = v
        return out
    return names


def exaone_config(j):
    keep = {k: j[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id", "hidden_size", "intermediate_size",
                              "max_position_embeddings", "num_attention_heads", "num_key_value_heads", "head_dim",
                              "tie_word_embeddings", "vocab_size", "initializer_range", "attention_dropout")}
    rope = dict(j["rope_parameters"])
    return dict(keep, architectures=["ExaoneForCausalLM"], model_type="exaone", activation_function="silu",
                embed_dropout=0.0, layer_norm_epsilon=j["rms_norm_eps"], num_layers=j["num_hidden_layers"],
                rope_theta=rope.pop("rope_theta"), rope_scaling=rope, torch_dtype="bfloat16")


def internlm2_tensors(tensors):
    """wqkv: for each kv head its q heads, then k, then v."""
    out, heads, kv = {}, 4, 2
    for k, v in replaced(("embed_tokens", "tok_embeddings"), ("self_attn", "attention"), ("o_proj", "wo"),
                         ("mlp.gate_proj", "feed_forward.w1"), ("mlp.up_proj", "feed_forward.w3"),
                         ("mlp.down_proj", "feed_forward.w2"), ("input_layernorm", "attention_norm"),
                         ("post_attention_layernorm", "ffn_norm"), ("lm_head", "output"))(tensors).items():
        if "q_proj" in k:
            q = v.view(kv, heads // kv, -1, H)
            rest = [tensors[k.replace("attention", "self_attn").replace("q_proj", n)].view(kv, 1, -1, H)
                    for n in ("k_proj", "v_proj")]
            out[k.replace("q_proj", "wqkv")] = torch.cat([q] + rest, 1).reshape(-1, H)
        elif "k_proj" not in k and "v_proj" not in k:
            out[k] = v
    return out


def internlm2_config(j):
    return dict({k: v for k, v in j.items() if k not in ("attention_bias", "mlp_bias", "rope_parameters", "head_dim")},
                architectures=["InternLM2ForCausalLM"], model_type="internlm2", bias=False, attn_implementation="eager",
                rope_theta=10000.0, rope_scaling=None)


def internlm3_config(j):
    return dict({k: v for k, v in j.items() if k not in ("attention_bias", "mlp_bias", "rope_parameters")},
                architectures=["InternLM3ForCausalLM"], model_type="internlm3", bias=False, qkv_bias=False,
                rope_theta=10000.0, rope_scaling=dict(factor=1.0, rope_type="default"))


def ling2_tensors(tensors):
    """q, k and v of all heads are one matrix; experts are apart."""
    out = {}
    for k, v in tensors.items():
        if "experts.fc" in k:
            parts = zip(("gate_proj", "up_proj"), v.chunk(2, -1)) if "fc1" in k else [("down_proj", v)]
            for name, stack in parts:
                out.update({f"{k.split('.fc')[0]}.{e}.{name}.weight": w.T for e, w in enumerate(stack)})
        elif ".q_proj" in k:
            out[k.replace("self_attn.q_proj", "attention.query_key_value")] = torch.cat(
                [v] + [tensors[k.replace("q_proj", n)] for n in ("k_proj", "v_proj")])
        elif ".k_proj" not in k and ".v_proj" not in k:
            out[k] = v
    return replaced(("embed_tokens", "word_embeddings"), ("self_attn", "attention"), ("o_proj", "dense"),
                    ("mlp.router", "mlp.gate"), ("q_norm", "query_layernorm"), ("k_norm", "key_layernorm"), ("e_score_correction_bias", "expert_bias"))(out)


def ling_config(j):
    """As inclusionAI/Ling-lite-1.5 is published."""
    keep = ("bos_token_id", "eos_token_id", "pad_token_id", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act",
            "tie_word_embeddings", "initializer_range", "dtype")
    return dict({k: j[k] for k in keep}, architectures=["BailingMoeForCausalLM"], model_type="bailing_moe",
                num_experts=j["moe_num_experts"], num_shared_experts=j["moe_num_shared_experts"], num_experts_per_tok=j["moe_topk"],
                moe_intermediate_size=j["intermediate_size"], norm_topk_prob=True, first_k_dense_replace=0, rope_theta=10000.0,
                rope_scaling=None, use_qkv_bias=False, use_bias=False, norm_head=False, norm_softmax=False, embedding_dropout=0.0,
                output_dropout=0.0, use_sliding_window=False, sliding_window=4096, max_window_layers=28)


def ling2_config(j):
    """As inclusionAI/Ling-mini-2.0 is published."""
    keep = ("bos_token_id", "eos_token_id", "pad_token_id", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act",
            "moe_intermediate_size", "num_experts_per_tok", "n_group", "topk_group", "routed_scaling_factor",
            "first_k_dense_replace", "norm_topk_prob", "tie_word_embeddings", "initializer_range", "dtype")
    return dict({k: j[k] for k in keep}, architectures=["BailingMoeV2ForCausalLM"], model_type="bailing_moe",
                num_experts=j["n_routed_experts"], num_shared_experts=j["n_shared_experts"], partial_rotary_factor=0.5,
                rope_theta=10000.0, rope_scaling=None, use_qk_norm=True, use_qkv_bias=False, use_bias=False, use_rmsnorm=True,
                score_function="sigmoid", moe_router_enable_expert_bias=True, moe_shared_expert_intermediate_size=8,
                router_dtype="fp32", embedding_dropout=0.0, output_dropout=0.0, num_nextn_predict_layers=0,
                mtp_loss_scaling_factor=0)


def minicpm_config(j):
    out = ("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier", "rope_parameters")
    return dict({k: v for k, v in j.items() if k not in out}, architectures=["MiniCPMForCausalLM"], model_type="minicpm",
                scale_emb=12, scale_depth=1.4, dim_model_base=16, rope_scaling=None)


def phi4_mm_config(j):
    rope = dict(j["rope_parameters"])
    return dict({k: v for k, v in j.items() if k != "rope_parameters"}, architectures=["Phi4MMForCausalLM"],
                model_type="phi4mm", rope_theta=rope.pop("rope_theta"), original_max_position_embeddings=rope.pop(
                    "original_max_position_embeddings"), partial_rotary_factor=rope.pop("partial_rotary_factor"),
                rope_scaling=dict(type="longrope", short_factor=rope["short_factor"], long_factor=rope["long_factor"]),
                full_attn_mod=1, lm_head_bias=False, vision_lora=dict(r=2), speech_lora=dict(r=2))


def both_ways_config(j):
    """As Nemotron's embedding models are published, whose code makes the mask."""
    return dict({k: v for k, v in j.items() if k not in ("is_causal", "rope_parameters")}, rope_theta=10000.0, rope_scaling=None,
                architectures=["LlamaBidirectionalModel"], model_type="llama_bidirec", pooling="avg")


def omni_config(j):
    """As published: the thinker beside a talker."""
    return dict(architectures=["Qwen2_5OmniModel"], model_type="qwen2_5_omni", enable_audio_output=True,
                torch_dtype="bfloat16", talker_config=dict(model_type="qwen2_5_omni_talker"),
                thinker_config={k: v for k, v in j.items() if k not in ("dtype", "transformers_version")})


def text_alone(tensors):
    """Without what sees images, whose names begin as the text's do."""
    return {k: v for k, v in tensors.items() if k.startswith(("model.embed_tokens", "model.layers", "model.norm", "lm_head"))}


FILES = {
    "ling": (ling2_tensors, ling_config),
    "ling2": (ling2_tensors, ling2_config),
    "deepseek-ocr2": (text_alone, dict),
    "phi4-mm": (replaced(*[(f"{n}.weight", f"{n}.base_layer.weight") for n in (
        "qkv_proj", "o_proj", "gate_up_proj", "down_proj")]), phi4_mm_config),
    "qwen2.5-omni": (lambda tensors: {"thinker." + k: v for k, v in tensors.items()}, omni_config),
    "llama-both-ways": (replaced(), both_ways_config),
    "minicpm": (replaced(), minicpm_config),
    "exaone": (replaced(("model.embed_tokens", "transformer.wte"), ("model.norm", "transformer.ln_f"),
                        ("model.layers", "transformer.h"), ("self_attn.o_proj", "self_attn.out_proj"),
                        ("self_attn", "attn.attention"), ("input_layernorm", "ln_1"), ("post_attention_layernorm", "ln_2"),
                        ("gate_proj", "c_fc_0"), ("up_proj", "c_fc_1"), ("down_proj", "c_proj")), exaone_config),
    "internlm2": (internlm2_tensors, internlm2_config),
    "internlm3": (replaced(), internlm3_config),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    heads = sys.argv[1] == "--heads"
    out, names = sys.argv[1 + heads], sys.argv[2 + heads:]
    for name, (kind, sizes) in (HEADS if heads else MODELS).items():
        if not names or name in names:
            make(out, name, kind, sizes)
