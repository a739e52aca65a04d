"""Tiny encoders whose code is in the repository of their models, not in transformers: their formulas in a few lines of torch.

usage: make_own_code.py OUT [NAME...]

gte: gte-multilingual-base and snowflake-arctic-embed-m-v2.0 (NewModel), also with the scaled rotation that the former has;
jina-bert: jina-embeddings-v2; nomic-moe: nomic-embed-text-v2-moe. Laid out as the other folders here.
"""
import json
import math
import os
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

V, H, HEADS, FFN, L, T = 64, 32, 4, 24, 2, 16
D = H // HEADS
BASE = dict(vocab_size=V, hidden_size=H, num_hidden_layers=L, num_attention_heads=HEADS, intermediate_size=FFN, hidden_act="gelu",
            layer_norm_eps=1e-12, max_position_embeddings=128, pad_token_id=0, torch_dtype="float32")
GTE = dict(BASE, architectures=["NewModel"], model_type="new", layer_norm_type="layer_norm", logn_attention_clip1=False,
           logn_attention_scale=False, pack_qkv=True, position_embedding_type="rope", rope_scaling=None, rope_theta=20000,
           type_vocab_size=1, unpad_inputs=False, use_memory_efficient_attention=False)
JINA = dict(BASE, architectures=["JinaBertForMaskedLM"], model_type="bert", attn_implementation=None, feed_forward_type="geglu",
            position_embedding_type="alibi", emb_pooler="mean", type_vocab_size=2)
NOMIC_MOE = dict(architectures=["NomicBertModel"], model_type="nomic_bert", activation_function="gelu", causal=False, expert_choice_router=False,
                 ffn_div=1, fused_bias_fc=True, layer_norm_epsilon=1e-5, max_trained_positions=128, mlp_fc1_bias=True, mlp_fc2_bias=True,
                 moe_every_n_layers=2, moe_impl="megablocks", moe_normalize_expert_weights=False, moe_top_k=2, n_embd=H, n_head=HEADS, n_inner=FFN,
                 n_layer=L, n_positions=128, num_experts=4, num_shared_experts=0, parallel_block=False, prenorm=False, qkv_proj_bias=True,
                 rotary_emb_base=10000, rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_emb_scale_base=None,
                 rotary_scaling_factor=None, router_aux_loss_coef=0.1, scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True,
                 type_vocab_size=1, use_flash_attn=True, use_rms_norm=None, vocab_size=V, torch_dtype="float32")
MODELS = {"nomic-moe": NOMIC_MOE, "gte": GTE, "gte-ntk": dict(GTE, rope_scaling={"type": "ntk", "factor": 8.0}), "jina-bert": JINA}


class Weights(dict):
    def __init__(self):
        self.g = torch.Generator().manual_seed(5)

    def make(self, name, *shape):
        r = torch.randn(shape, generator=self.g)
        norm = "norm" in name.lower() or "_ln" in name
        if len(shape) < 2:
            r = r * 0.1 + (1 if norm and name.endswith("weight") else 0)
        elif "embeddings" not in name:
            r = r * (1.5 / shape[-1] ** 0.5)
        self[name] = r.bfloat16()
        return self[name].float()

    def linear(self, name, x, n, bias=True):
        return F.linear(x, self.make(name + ".weight", n, x.shape[-1]), self.make(name + ".bias", n) if bias else None)

    def norm(self, name, x):
        return F.layer_norm(x, (H,), self.make(name + ".weight", H), self.make(name + ".bias", H), 1e-12)


def attend(q, k, v, bias=0):
    q, k, v = (t.view(*t.shape[:2], HEADS, D).transpose(1, 2) for t in (q, k, v))
    p = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(D) + bias, -1)
    return (p @ v).transpose(1, 2).reshape(q.shape[0], -1, H)


def rotate(x, config):
    freq = 1 / config["rope_theta"] ** (torch.arange(0, D, 2) / D)
    if config["rope_scaling"]:
        f = config["rope_scaling"]["factor"]
        freq = 1 / (config["rope_theta"] * f) ** (torch.arange(0, D, 2) / D) / f ** (2 / D)
    a = torch.arange(T)[:, None] * freq
    cos, sin = (torch.cat((t, t), -1)[:, None] for t in (a.cos(), a.sin()))
    x = x.view(*x.shape[:2], HEADS, D)
    turned = torch.cat((-x[..., D // 2:], x[..., :D // 2]), -1)
    return (x * cos + turned * sin).reshape(x.shape[0], T, H)


def embed(w, ids, types):
    x = w.make("embeddings.word_embeddings.weight", V, H)[ids] + w.make("embeddings.token_type_embeddings.weight", types, H)[0]
    return w.norm("embeddings.LayerNorm", x)


def gte(w, ids, config):
    x = embed(w, ids, 1)
    for i in range(L):
        at = f"encoder.layer.{i}."
        q, k, v = w.linear(at + "attention.qkv_proj", x, 3 * H).split(H, -1)
        x = w.norm(at + "attn_ln", x + w.linear(at + "attention.o_proj", attend(rotate(q, config), rotate(k, config), v), H))
        up, gate = w.linear(at + "mlp.up_gate_proj", x, 2 * FFN, bias=False).split(FFN, -1)
        x = w.norm(at + "mlp_ln", x + w.linear(at + "mlp.down_proj", F.gelu(gate) * up, H))
    return x


def jina(w, ids, config):
    x = embed(w, ids, 2)
    far = (torch.arange(T)[:, None] - torch.arange(T)[None]).abs()
    bias = -far * torch.tensor([2 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)])[:, None, None]
    for i in range(L):
        at = f"encoder.layer.{i}."
        q, k, v = (w.linear(f"{at}attention.self.{n}", x, H) for n in ("query", "key", "value"))
        x = w.norm(at + "attention.output.LayerNorm", x + w.linear(at + "attention.output.dense", attend(q, k, v, bias), H))
        gate, other = w.linear(at + "mlp.gated_layers", x, 2 * FFN, bias=False).split(FFN, -1)
        x = w.norm(at + "mlp.layernorm", x + w.linear(at + "mlp.wo", F.gelu(gate) * other, H))
    return x


def experts(w, at, x):
    """Each position's two best, by their shares of all, and one bias."""
    n, flat = NOMIC_MOE["num_experts"], x.reshape(-1, H)
    shares, chosen = torch.topk(w.linear(at + "router.layer", flat, n, bias=False).softmax(-1), NOMIC_MOE["moe_top_k"])
    w1, w2 = (w.make(f"{at}experts.mlp.{k}", n * FFN, H).view(n, FFN, H) for k in ("w1", "w2"))
    out = [sum(p * (F.gelu(row @ w1[e].t()) @ w2[e]) for p, e in zip(ps, es)) for row, ps, es in zip(flat, shares, chosen)]
    return torch.stack(out).view_as(x) + w.make(at + "experts.bias", H)


def nomic_moe(w, ids, config):
    own = dict(rope_theta=config["rotary_emb_base"], rope_scaling=None)
    x = w.make("embeddings.word_embeddings.weight", V, H)[ids] + w.make("embeddings.token_type_embeddings.weight", 1, H)[0]
    x = F.layer_norm(x, (H,), w.make("emb_ln.weight", H), w.make("emb_ln.bias", H), 1e-5)
    for i in range(L):
        at = f"encoder.layers.{i}."
        q, k, v = w.linear(at + "attn.Wqkv", x, 3 * H).split(H, -1)
        x = x + w.linear(at + "attn.out_proj", attend(rotate(q, own), rotate(k, own), v), H)
        x = F.layer_norm(x, (H,), w.make(at + "norm1.weight", H), w.make(at + "norm1.bias", H), 1e-5)
        x = x + (experts(w, at + "mlp.", x) if i % 2 else w.linear(at + "mlp.fc2", F.gelu(w.linear(at + "mlp.fc1", x, FFN)), H))
        x = F.layer_norm(x, (H,), w.make(at + "norm2.weight", H), w.make(at + "norm2.bias", H), 1e-5)
    return x


for name in sys.argv[2:] or MODELS:
    config, w = MODELS[name], Weights()
    folder = os.path.join(sys.argv[1], name)
    os.makedirs(folder, exist_ok=True)
    ids = torch.randint(3, V, (2, T), generator=torch.Generator().manual_seed(1))
    hidden = (jina if "jina" in name else nomic_moe if "nomic" in name else gte)(w, ids, config)
    json.dump(config, open(os.path.join(folder, "config.json"), "w"), indent=2)
    save_file(dict(w), os.path.join(folder, "model.safetensors"))
    save_file({"input_ids": ids.int(), "hidden": hidden.contiguous()}, os.path.join(folder, "expected.safetensors"))
