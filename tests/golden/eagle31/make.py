"""Tiny EAGLE-3 drafts for tests/golden/mtp/mimo as they are published since 3.1 (arXiv:2605.09992) and for Qwen3, of random
weights. Written after vLLM's llama_eagle3.py and qwen3_eagle3.py: transformers has no such class.

usage: make.py MODEL OUT

OUT/qwen3/: as the library "speculators" writes it: norms of q and k, one norm of the three states together (norm_before_fc),
norm_before_residual. OUT/states/: as SpecForge and NeMo: a norm of each of the states (fc_norm), the draft's own state is
normed before it is read again (norm_output), names with "model.".
Each: config.json, model.safetensors (bf16), expected.safetensors (input_ids int32 [1, 24]; draft float32 [1, 23, 24]: row p
reads the states at p and token p + 1; next float32 [1, 1, 24]: one more row, of the draft's own last state and token next_id).
"""
import json
import os
import sys

import torch
import transformers as tf
from safetensors.torch import save_file
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

V, H, T, D, HEADS, KV, FFN, WORDS = 64, 32, 24, 8, 4, 2, 8, 24
AT = [0, 1, 1]  # the layers whose inputs are read


class Draft(nn.Module):
    def __init__(self, qwen3):
        super().__init__()
        self.qwen3 = qwen3
        self.fc = nn.Linear(3 * H, H, bias=False)
        self.input_layernorm, self.hidden_norm = LlamaRMSNorm(H, 1e-5), LlamaRMSNorm(H, 1e-5)
        self.post_attention_layernorm, self.norm = LlamaRMSNorm(H, 1e-5), LlamaRMSNorm(H, 1e-5)
        self.q_proj, self.o_proj = nn.Linear(2 * H, HEADS * D, bias=False), nn.Linear(HEADS * D, H, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(2 * H, KV * D, bias=False) for _ in range(2))
        self.gate_proj, self.up_proj = nn.Linear(H, FFN, bias=False), nn.Linear(H, FFN, bias=False)
        self.down_proj, self.lm_head = nn.Linear(FFN, H, bias=False), nn.Linear(H, WORDS, bias=False)
        if qwen3:
            self.q_norm, self.k_norm = LlamaRMSNorm(D, 1e-5), LlamaRMSNorm(D, 1e-5)
            self.input_norm = LlamaRMSNorm(3 * H, 1e-5)
        else:
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(H, 1e-5) for _ in range(3))
        self.rope = LlamaRotaryEmbedding(tf.LlamaConfig(hidden_size=H, num_attention_heads=HEADS, head_dim=D,
                                                        max_position_embeddings=128))

    def fuse(self, states):
        if self.qwen3:
            return self.fc(self.input_norm(states))
        return self.fc(torch.cat([n(s) for n, s in zip(self.fc_norm, states.chunk(3, -1))], -1))

    def forward(self, x, embeds):
        """Of rows 0..: their own states to be read again, and the logits."""
        b, n, _ = x.shape
        both = torch.cat([self.input_layernorm(embeds), self.hidden_norm(x)], -1)
        q, k, v = (p(both).view(b, n, -1, D) for p in (self.q_proj, self.k_proj, self.v_proj))
        if self.qwen3:
            q, k, x = self.q_norm(q), self.k_norm(k), self.hidden_norm(x)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        q, k = apply_rotary_pos_emb(q, k, *self.rope(x, torch.arange(n)[None]))
        k, v = (t.repeat_interleave(HEADS // KV, 1) for t in (k, v))
        scores = q @ k.transpose(2, 3) / D**0.5 + torch.full((n, n), -torch.inf).triu(1)
        x = x + self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1))
        h = self.post_attention_layernorm(x)
        x = x + self.down_proj(nn.functional.silu(self.gate_proj(h)) * self.up_proj(h))
        normed = self.norm(x)
        return x if self.qwen3 else normed, self.lm_head(normed)


def names(draft):
    layer, top = ("layers.0.", "") if draft.qwen3 else ("model.midlayer.", "model.")
    for k, p in draft.named_parameters():
        part = "self_attn." if k[:2] in ("q_", "k_", "v_", "o_") else "mlp." if k[:2] in ("ga", "up", "do") else ""
        inside = part or k.split(".")[0] in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        yield k if k.startswith("lm_head") else (layer + part if inside else top) + k, p.data.bfloat16().contiguous()


def config(draft):
    layer = dict(model_type="qwen3" if draft.qwen3 else "llama", hidden_size=H, intermediate_size=FFN, num_hidden_layers=1,
                 num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=D, vocab_size=V, max_position_embeddings=128,
                 rms_norm_eps=1e-5, hidden_act="silu", rope_theta=10000.0, attention_bias=False, tie_word_embeddings=False,
                 sliding_window=None, use_sliding_window=False, max_window_layers=28)
    if draft.qwen3:
        return dict(architectures=["Eagle3DraftModel"], speculators_model_type="eagle3", speculators_version="0.7.0",
                    draft_vocab_size=WORDS, norm_before_residual=True, norm_before_fc=True, fc_norm=False, norm_output=False,
                    target_hidden_size=None, eagle_aux_hidden_state_layer_ids=AT, tie_word_embeddings=False,
                    transformer_layer_config=layer | dict(layer_types=["full_attention"]),
                    speculators_config=dict(algorithm="eagle3"))
    return layer | dict(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=WORDS, fc_norm=True, norm_output=True,
                        bos_token_id=1, eos_token_id=2, torch_dtype="bfloat16", eagle_aux_hidden_state_layer_ids=AT)


def make(model, out, qwen3, g):
    draft = Draft(qwen3)
    for p in draft.parameters():
        p.data = (torch.randn(p.shape, generator=g) / 4 + (p.dim() == 1)).bfloat16().float()
    ids = torch.randint(3, V, (1, T), generator=g)
    d2t = 2 * torch.arange(WORDS) + 5 - torch.arange(WORDS)  # the ids 5, 7, ...
    with torch.no_grad():
        states = model.model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
        embeds, fused = model.model.embed_tokens, draft.fuse(torch.cat([states[i] for i in AT], -1)[:, :-1])
        own, logits = draft(fused, embeds(ids[:, 1:]))
        best = logits[0, -1].argmax().item()
        next_id = best + d2t[best].item()
        _, more = draft(torch.cat([fused, own[:, -1:]], 1), embeds(torch.cat([ids[:, 1:], torch.tensor([[next_id]])], 1)))
    os.makedirs(out, exist_ok=True)
    save_file(dict(names(draft)) | {"d2t": d2t, "t2d": torch.zeros(V, dtype=torch.bool).index_fill(0, d2t + torch.arange(WORDS), True)},
              os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    json.dump(config(draft), open(os.path.join(out, "config.json"), "w"))
    save_file(dict(input_ids=ids.int(), draft=logits.contiguous(), next=more[:, -1:].contiguous(),
                   next_id=torch.tensor([next_id]).int()), os.path.join(out, "expected.safetensors"))


torch.set_num_threads(1)
c = json.load(open(os.path.join(sys.argv[1], "config.json"))) | dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2")
model = tf.Qwen2ForCausalLM.from_pretrained(sys.argv[1], config=tf.Qwen2Config(**c), dtype=torch.float32,
                                            attn_implementation="eager").eval()
g = torch.Generator().manual_seed(3)
make(model, os.path.join(sys.argv[2], "qwen3"), True, g)
make(model, os.path.join(sys.argv[2], "states"), False, g)
