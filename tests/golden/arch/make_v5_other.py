"""Tiny checkpoints of DBRX, Jamba, Bamba, Mamba, Falcon-Mamba, Mllama's text, Ettin's decoders, DiffLlama, and of MPT with norms and Baichuan,
whose code is not in transformers, with logits of transformers 5.23.0 (float32, eager attention), laid out as the other folders here.

usage: make_v5_other.py OUT [NAME...]

MPT's norms are put where llm-foundry has them: on all queries and all keys, after the clip. Baichuan (7 B) is a Llama
whose q, k and v are one tensor; the 13 B has ALiBi in the place of rotations: the mask says it here. Baichuan 2's
output head is used with rows of length 1: the model here has them, the file rows of other lengths.
Weights are random and have the values that BF16 holds.
"""
import json
import math
import os
import sys

import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from transformers.models.llama import modeling_llama
from transformers.models.mpt import modeling_mpt

V, H, T = 64, 32, 24
WORDS = dict(vocab_size=V, bos_token_id=1, eos_token_id=2, pad_token_id=0)
LLAMA = dict(WORDS, hidden_size=H, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32,
             max_position_embeddings=128)
MAMBA = dict(WORDS, hidden_size=H, num_hidden_layers=1, state_size=6, time_step_rank=4)
MODELS = {
    "dbrx": ("Dbrx", dict(WORDS, d_model=H, n_heads=4, n_layers=2, max_seq_len=128,
                          attn_config=dict(kv_n_heads=2, clip_qkv=1.5, rope_theta=500.0),
                          rope_parameters=dict(rope_type="default", rope_theta=500.0),
                          ffn_config=dict(ffn_hidden_size=8, moe_num_experts=4, moe_top_k=2))),
    "mpt-qk-norm": ("Mpt", dict(WORDS, d_model=H, n_heads=4, n_layers=1, max_seq_len=128,
                                attn_config=dict(qk_ln=True, clip_qkv=2.0))),
    "baichuan": ("Llama", LLAMA),
    "baichuan-alibi": ("Llama", LLAMA),
    "baichuan2": ("Llama", LLAMA),
    "baichuan2-alibi": ("Llama", dict(LLAMA, hidden_size=24)),
    "ettin": ("ModernBertDecoder", dict(LLAMA, num_hidden_layers=3, intermediate_size=20, local_attention=10,
                                        norm_bias=False, tie_word_embeddings=False)),
    "diffllama": ("DiffLlama", dict(LLAMA, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=4,
                                    intermediate_size=16)),
    "gpt-neox-japanese": ("GPTNeoXJapanese", dict(
        {k: v for k, v in LLAMA.items() if k != "intermediate_size"}, num_hidden_layers=3, intermediate_multiple_size=1,
        rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5))),
    "mamba": ("Mamba", MAMBA),
    "falcon-mamba": ("FalconMamba", dict(MAMBA, tie_word_embeddings=False)),
    "bamba": ("Bamba", dict(WORDS, hidden_size=H, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                            intermediate_size=16, attn_layer_indices=[1], mamba_n_heads=4, mamba_n_groups=2,
                            mamba_d_state=8, mamba_expand=1)),
    "jamba": ("Jamba", dict(WORDS, hidden_size=H, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                            intermediate_size=8, num_experts=3, num_experts_per_tok=2, attn_layer_period=2,
                            attn_layer_offset=0, expert_layer_period=2, expert_layer_offset=1, mamba_d_state=6,
                            mamba_expand=1, mamba_dt_rank=4)),
    "mllama": ("Mllama", dict(WORDS, hidden_size=H, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                              intermediate_size=24, max_position_embeddings=128, cross_attention_layers=[1],
                              rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                                                   high_freq_factor=4.0, original_max_position_embeddings=32))),
}


def fill(model, g):
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=g)
        if name.endswith("A_log"):
            p.data = torch.log(torch.rand(p.shape, generator=g) * 4 + 0.1)
        elif "lambda_" in name:
            p.data = r * 0.5
        elif name.endswith("conv1d.weight"):
            p.data = r * (1.3 / math.sqrt(p.shape[-1]))
        elif name.endswith(("dt_proj.bias", "dt_bias")):
            p.data = r - 1
        elif p.dim() >= 2:
            p.data = r * (0.15 if "embed" in name or "wte" in name else 1.3 / math.sqrt(p.shape[-1]))
        elif "bias" in name:
            p.data = r * 0.1
        else:
            p.data = 1.0 + r * 0.1
        p.data = p.data.bfloat16().float()  # also what no text reaches: gates of 0 would hide a layer too many


class NormedSplit(torch.nn.Module):
    """Wqkv, whose queries and keys are clipped and normed before MPT's attention sees them."""

    def __init__(self, attn, clip):
        super().__init__()
        self.Wqkv, self.clip = attn.Wqkv, clip
        self.q_ln, self.k_ln = torch.nn.LayerNorm(H, bias=False), torch.nn.LayerNorm(H, bias=False)

    def forward(self, x):
        q, k, v = self.Wqkv(x).clamp(-self.clip, self.clip).chunk(3, -1)
        return torch.cat([self.q_ln(q), self.k_ln(k), v], -1)


def with_norms(model):
    for block in model.transformer.blocks:
        block.attn.Wqkv, block.attn.clip_qkv = NormedSplit(block.attn, block.attn.clip_qkv), None
    return model


def alibi(ids):
    n = ids.shape[1]
    slopes = torch.tensor([2.0 ** (-2 * (i + 1)) for i in range(4)])
    at = torch.arange(n).float()
    mask = torch.full((n, n), torch.finfo(torch.float32).min).triu(1)
    return (slopes[:, None, None] * (at[None, :] - at[:, None])[None] + mask)[None].repeat(len(ids), 1, 1, 1)


def published(name, tensors):
    out = {}
    for k, v in tensors.items():
        if name.startswith("baichuan") and ".k_proj" in k or ".v_proj" in k and name.startswith("baichuan"):
            continue
        if name.startswith("baichuan") and ".q_proj" in k:
            parts = [tensors[k.replace("q_proj", p)] for p in ("q_proj", "k_proj", "v_proj")]
            k, v = k.replace("q_proj", "W_pack"), torch.cat(parts)
        if name == "mpt-qk-norm":
            k = k.replace("Wqkv.Wqkv", "Wqkv").replace("Wqkv.q_ln", "q_ln").replace("Wqkv.k_ln", "k_ln")
        out[k] = v.bfloat16().contiguous()
    return out


def config_of(name, config):
    if name == "dbrx":
        del config["rope_parameters"]  # Databricks' has the base in attn_config alone
    if name.startswith("baichuan"):
        keys = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                "max_position_embeddings", "rms_norm_eps", "hidden_act", "tie_word_embeddings", "bos_token_id",
                "eos_token_id", "pad_token_id"]
        config = dict(architectures=["BaichuanForCausalLM"], model_type="baichuan", torch_dtype="bfloat16",
                      model_max_length=128, **{k: config[k] for k in keys})
        if name.endswith("alibi"):
            del config["max_position_embeddings"]
        if name.startswith("baichuan2"):
            config["z_loss_weight"] = 0
    return config


def make(out, name, kind, sizes):
    config = getattr(tf, kind + ("TextConfig" if kind == "Mllama" else "Config"))(**sizes)
    config._attn_implementation = "eager"
    model = getattr(tf, kind + "ForCausalLM")(config).float().eval()
    turn = modeling_llama.apply_rotary_pos_emb
    if name == "mpt-qk-norm":
        model = with_norms(model)
    if name.endswith("-alibi"):
        modeling_llama.apply_rotary_pos_emb = lambda q, k, cos, sin, **_: (q, k)
    g = torch.Generator().manual_seed(len(name) * 1000 + sum(map(ord, name)))
    fill(model, g)
    model.tie_weights()
    head = model.get_output_embeddings().weight.data
    if name.startswith("baichuan2"):
        model.lm_head.weight.data = torch.nn.functional.normalize(head)
    more = (lambda ids: dict(attention_mask=alibi(ids))) if name.endswith("-alibi") else lambda ids: {}
    ids = torch.randint(3, V, (2, T), generator=g)
    with torch.no_grad():
        logits = model(ids, use_cache=False, **more(ids)).logits.float()
        greedy, margin = ids, []
        for _ in range(16):
            best = model(greedy, use_cache=False, **more(greedy)).logits[:, -1].float().topk(2, -1)
            margin.append(best.values[:, 0] - best.values[:, 1])
            greedy = torch.cat([greedy, best.indices[:, :1]], 1)
    modeling_llama.apply_rotary_pos_emb = turn
    folder = os.path.join(out, name)
    if name.startswith("baichuan2"):
        model.lm_head.weight.data = head
    model.config.dtype = torch.bfloat16
    model.save_pretrained(folder)
    path = os.path.join(folder, "model.safetensors")
    save_file(published(name, load_file(path)), path, metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    config = dict(json.load(open(path)), dtype="bfloat16")
    json.dump(config_of(name, config), open(path, "w"))
    extra = os.path.join(folder, "generation_config.json")
    if os.path.exists(extra):
        os.remove(extra)
    save_file(dict(input_ids=ids.int(), logits=logits.contiguous(), greedy=greedy.int().contiguous(),
                   margin=torch.stack(margin, 1).contiguous()),
              os.path.join(folder, "expected.safetensors"))
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    print(f"{name:22s} spread {logits.std():.2f}, {size} bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, spec in MODELS.items():
        if len(sys.argv) <= 2 or name in sys.argv[2:]:
            make(sys.argv[1], name, *spec)
