"""A tiny EAGLE-3 draft for tests/golden/mtp/mimo, trained for some seconds on the language of that model (each token
is followed by one other, and one time in twelve by any). Written after arXiv:2503.01840 and the published code
(SafeAILab/EAGLE, eagle/model/cnets.py; vLLM, llama_eagle3.py): transformers has no such class.

usage: make.py MODEL OUT

OUT/: config.json and model.safetensors as SpecForge writes them (one "midlayer", fc over the states before three layers
of the model, lm_head over 48 of the 64 ids, d2t: id - row),
expected.safetensors (input_ids int32 [1, 24], draft float32 [1, 23, 48]: row p reads the states at p and token p + 1;
next float32 [1, 1, 48]: one more row, of the draft's own last state and token next_id; first: as draft, with
norm_before_residual). Weights are rounded to bfloat16
before the reference runs.
"""
import json
import os
import sys

import torch
import transformers as tf
from safetensors.torch import save_file
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

V, H, T, D, HEADS, KV, FFN = 64, 32, 24, 8, 4, 2, 32
AT = [0, 1, 1]  # the layers whose inputs are read; SpecForge says it by the layers before them


class Draft(nn.Module):
    def __init__(self, ids):
        super().__init__()
        self.register_buffer("ids", ids)
        self.fc = nn.Linear(3 * H, H, bias=False)
        self.input_layernorm, self.hidden_norm = LlamaRMSNorm(H, 1e-5), LlamaRMSNorm(H, 1e-5)
        self.post_attention_layernorm, self.norm = LlamaRMSNorm(H, 1e-5), LlamaRMSNorm(H, 1e-5)
        self.q_proj, self.o_proj = nn.Linear(2 * H, HEADS * D, bias=False), nn.Linear(HEADS * D, H, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(2 * H, KV * D, bias=False) for _ in range(2))
        self.gate_proj, self.up_proj = nn.Linear(H, FFN, bias=False), nn.Linear(H, FFN, bias=False)
        self.down_proj = nn.Linear(FFN, H, bias=False)
        self.lm_head = nn.Linear(H, len(ids), bias=False)
        self.rope = LlamaRotaryEmbedding(tf.LlamaConfig(hidden_size=H, num_attention_heads=HEADS, head_dim=D,
                                                        max_position_embeddings=128))

    def forward(self, x, embeds, norm_first=False):
        """The states [B, n, H] of rows 0.., of what is given (through fc or its own) and the next tokens' embeddings."""
        b, n, _ = x.shape
        both = torch.cat([self.input_layernorm(embeds), self.hidden_norm(x)], -1)
        q, k, v = (p(both).view(b, n, -1, D).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = apply_rotary_pos_emb(q, k, *self.rope(x, torch.arange(n)[None]))
        k, v = (t.repeat_interleave(HEADS // KV, 1) for t in (k, v))
        scores = q @ k.transpose(2, 3) / D**0.5 + torch.full((n, n), -torch.inf).triu(1)
        x = (self.hidden_norm(x) if norm_first else x) + self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1))
        h = self.post_attention_layernorm(x)
        return x + self.down_proj(nn.functional.silu(self.gate_proj(h)) * self.up_proj(h))

    def logits(self, x):
        return self.lm_head(self.norm(x))


def features(model, ids):
    with torch.no_grad():
        out = model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
    return torch.cat([out.hidden_states[i] for i in AT], -1), model.lm_head(out.last_hidden_state)


def speak(follows, n, length, g):
    ids = [torch.randint(3, V, (n,), generator=g)]
    for _ in range(length - 1):
        any_one = torch.randint(3, V, (n,), generator=g)
        ids.append(torch.where(torch.rand(n, generator=g) < 1 / 12, any_one, follows[ids[-1]]))
    return torch.stack(ids, 1)


def loss_of(draft, x, ids):
    """Of logits for the tokens ids, where the draft has them."""
    row = torch.full((V,), -100)
    row[draft.ids] = torch.arange(len(draft.ids))
    return nn.functional.cross_entropy(draft.logits(x).flatten(0, 1), row[ids].flatten(), ignore_index=-100)


def train(draft, model, follows, g):
    embed = model.model.embed_tokens
    optimizer = torch.optim.AdamW(draft.parameters(), lr=4e-3, weight_decay=0.01)
    for _ in range(800):
        ids = speak(follows, 32, T, g)
        given, _ = features(model, ids)
        x = draft(draft.fc(given[:, :-2]), embed(ids[:, 1:-1]).detach())
        loss = loss_of(draft, x, ids[:, 2:])
        own = draft(x[:, :-1], embed(ids[:, 2:-1]).detach())  # of its own states, one further
        loss = loss + loss_of(draft, own, ids[:, 3:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def save(draft, folder, last_id, ids, out, more, first):
    names = {k: ("midlayer." + {"q": "self_attn.", "k": "self_attn.", "v": "self_attn.", "o": "self_attn.",
                                "g": "mlp.", "u": "mlp.", "d": "mlp."}[k[0]] + k if "_proj" in k
                 else "midlayer." + k if "layernorm" in k or k.startswith("hidden") else k)
             for k, _ in draft.named_parameters()}
    tensors = {names[k]: p.data.bfloat16().contiguous() for k, p in draft.named_parameters()}
    tensors["d2t"] = draft.ids - torch.arange(len(draft.ids))
    tensors["t2d"] = torch.zeros(V, dtype=torch.bool).index_fill(0, draft.ids, True)
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    config = dict(architectures=["LlamaForCausalLMEagle3"], model_type="llama", hidden_size=H, intermediate_size=FFN,
                  num_hidden_layers=1, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=D, vocab_size=V,
                  draft_vocab_size=len(draft.ids), max_position_embeddings=128, rms_norm_eps=1e-5, hidden_act="silu",
                  rope_theta=10000.0, attention_bias=False, mlp_bias=False, tie_word_embeddings=False, pad_token_id=0,
                  bos_token_id=1, eos_token_id=2, use_cache=True, initializer_range=0.02, torch_dtype="bfloat16",
                  eagle_aux_hidden_state_layer_ids=AT)
    json.dump(config, open(os.path.join(folder, "config.json"), "w"))
    save_file(dict(input_ids=ids.int(), draft=out.contiguous(), next=more.contiguous(), first=first.contiguous(),
                   next_id=torch.tensor([last_id]).int()), os.path.join(folder, "expected.safetensors"))


torch.set_num_threads(1)
torch.manual_seed(1)
config = json.load(open(os.path.join(sys.argv[1], "config.json"))) | dict(architectures=["Qwen2ForCausalLM"],
                                                                          model_type="qwen2")
model = tf.Qwen2ForCausalLM.from_pretrained(sys.argv[1], config=tf.Qwen2Config(**config), dtype=torch.float32,
                                            attn_implementation="eager").eval()
g = torch.Generator().manual_seed(2)
follows = torch.cat([torch.zeros(3, dtype=torch.long), torch.randperm(V - 3, generator=g) + 3])  # as make.py of mtp
draft = Draft(torch.tensor([i for i in range(V) if i % 4 != 3]))
loss = train(draft, model, follows, g)
for p in draft.parameters():
    p.data = p.data.bfloat16().float()
ids = speak(follows, 1, T, g)
with torch.no_grad():
    given, logits = features(model, ids)
    embeds = model.model.embed_tokens
    fused = draft.fc(given[:, :-1])
    x = draft(fused, embeds(ids[:, 1:]))
    out = draft.logits(x)
    next_id = draft.ids[out[0, -1].argmax()].item()
    first = draft.logits(draft(fused, embeds(ids[:, 1:]), True))
    again = draft(torch.cat([fused, x[:, -1:]], 1), embeds(torch.cat([ids[:, 1:], torch.tensor([[next_id]])], 1)))
right = (draft.ids[out[:, :-1].argmax(-1)] == logits[:, 1:-1].argmax(-1)).float().mean()
os.makedirs(sys.argv[2], exist_ok=True)
save(draft, sys.argv[2], next_id, ids, out, draft.logits(again[:, -1:]), first)
size = sum(os.path.getsize(os.path.join(sys.argv[2], f)) for f in os.listdir(sys.argv[2]))
print(f"loss {loss:.2f}, the draft guesses {right:.0%} of the model's tokens, {size} bytes")
