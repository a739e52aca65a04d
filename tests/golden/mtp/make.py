"""Tiny checkpoints with a head for multi-token prediction, trained for some seconds on a language in which most
tokens decide the next, so that the head's guesses are often right. transformers 5.23.0 runs the model but no
such head: the head is written here, after arXiv:2412.19437, section 2.2 and equation 21 to 23, over the decoder
layer of transformers, on the model's last hidden state after its norm (as vLLM and SGLang give it).

usage: make.py OUT [NAME...]

OUT/NAME/: config.json, model.safetensors as published files name it (the head is the layer behind the last,
or under "mtp." as Qwen has it),
expected.safetensors (input_ids int32 [1, 24]; logits float32 [1, 24, V]; mtp float32 [1, 23, V]: row p of the
head reads hidden state p and token p + 1). Weights are rounded to bfloat16 before the reference runs.
"""
import json
import os
import sys

import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from torch import nn

V, H, T = 64, 32, 24
SIZES = dict(vocab_size=V, hidden_size=H, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=32, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0,
             tie_word_embeddings=False, first_k_dense_replace=1, n_routed_experts=2, num_experts_per_tok=1,
             n_shared_experts=1, moe_intermediate_size=8, n_group=1, topk_group=1)
EXPERTS = ("first_k_dense_replace", "n_routed_experts", "num_experts_per_tok", "n_shared_experts",
           "moe_intermediate_size", "n_group", "topk_group")
MODELS = {
    "glm4-moe": ("Glm4Moe", dict(SIZES, head_dim=8, use_qk_norm=True)),
    "deepseek-v3": ("DeepseekV3", dict(SIZES, num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=16,
                                       qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=8)),
    "qwen3.5": ("Qwen3_5", dict(
        {k: v for k, v in SIZES.items() if k not in EXPERTS}, head_dim=8, linear_conv_kernel_dim=4,
        linear_key_head_dim=4, linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4,
        layer_types=["linear_attention", "full_attention", "full_attention"])),
    "mimo": ("Qwen2", {k: v for k, v in SIZES.items() if k not in EXPERTS}),  # which MiMo is, but for the head
}


class Head(nn.Module):
    def __init__(self, model, hidden_first):
        super().__init__()
        self.hidden_first = hidden_first
        norm, eps = type(model.model.norm), model.config.rms_norm_eps
        self.enorm, self.hnorm, self.norm = norm(H, eps), norm(H, eps), norm(H, eps)
        self.eh_proj = nn.Linear(2 * H, H, bias=False)


HEAD_NAMES = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
OWN_NAMES = {  # where the layer is, and its embedding's norm, the state's norm, the projection, the last norm
    "qwen3.5": ("mtp.layers.0.", ["mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm"]),
    "mimo": ("model.mtp_layers.0.", ["model.mtp_layers.0." + k for k in (
        "token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")]),
}


def mtp_logits(model, head, ids, hidden):
    n = ids.shape[1] - 1
    parts = [head.enorm(model.model.embed_tokens(ids[:, 1:])), head.hnorm(hidden[:, :-1])]
    x = head.eh_proj(torch.cat(parts[::-1] if head.hidden_first else parts, -1))
    positions = torch.arange(n).unsqueeze(0)
    mask = torch.full((n, n), torch.finfo(x.dtype).min).triu(1)[None, None]
    out = model.model.layers[-1](x, attention_mask=mask, position_ids=positions, use_cache=False,
                                 position_embeddings=model.model.rotary_emb(x, positions))
    return model.lm_head(head.norm(out[0] if isinstance(out, tuple) else out))


def speak(follows, n, length, g):
    """Tokens that are followed by one each, and one time in twelve by any."""
    ids = [torch.randint(3, V, (n,), generator=g)]
    for _ in range(length - 1):
        any_one = torch.randint(3, V, (n,), generator=g)
        ids.append(torch.where(torch.rand(n, generator=g) < 1 / 12, any_one, follows[ids[-1]]))
    return torch.stack(ids, 1)


def train(model, head, follows, g):
    params = list(model.parameters()) + list(head.parameters())
    optimizer = torch.optim.AdamW(params, lr=4e-3, weight_decay=0.01)
    loss_of = nn.CrossEntropyLoss()
    for step in range(500):
        ids = speak(follows, 32, T, g)
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        logits, after = model.lm_head(hidden), mtp_logits(model, head, ids, hidden)
        loss = loss_of(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss = loss + loss_of(after[:, :-1].flatten(0, 1), ids[:, 2:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def save(model, head, folder, layers):
    model.config.dtype = torch.bfloat16
    for key in ("mlp_layer_types", "layer_types"):
        if getattr(model.config, key, None):
            setattr(model.config, key, getattr(model.config, key)[:layers])
    model.save_pretrained(folder)
    path = os.path.join(folder, "model.safetensors")
    at = f"model.layers.{layers}."
    to, names = OWN_NAMES.get(os.path.basename(folder), (at, [at + k for k in HEAD_NAMES]))
    tensors = {(to + k[len(at):] if k.startswith(at) else k): v for k, v in load_file(path).items()}
    names = dict(zip(("enorm", "hnorm", "eh_proj", "norm"), names))
    tensors |= {name + ".weight": getattr(head, k).weight for k, name in names.items()}
    save_file({k: v.data.bfloat16().contiguous() for k, v in tensors.items()}, path, metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    config = json.load(open(path)) | dict(num_hidden_layers=layers, num_nextn_predict_layers=1)
    if folder.endswith("mimo"):
        config |= dict(architectures=["MiMoForCausalLM"], model_type="mimo", attention_bias=True)
    json.dump(config, open(path, "w"))
    for extra in ("generation_config.json",):
        if os.path.exists(os.path.join(folder, extra)):
            os.remove(os.path.join(folder, extra))


def make(out, name, kind, sizes):
    torch.manual_seed(1)
    config = getattr(tf, kind + ("TextConfig" if kind == "Qwen3_5" else "Config"))(**sizes)
    config._attn_implementation = "eager"
    model = getattr(tf, kind + "ForCausalLM")(config).float()
    head = Head(model, name == "mimo")
    layers = config.num_hidden_layers = sizes["num_hidden_layers"] - 1  # the last is the head's
    g = torch.Generator().manual_seed(2)
    follows = torch.cat([torch.zeros(3, dtype=torch.long), torch.randperm(V - 3, generator=g) + 3])
    loss = train(model, head, follows, g)
    model.eval()
    for p in list(model.parameters()) + list(head.parameters()):
        p.data = p.data.bfloat16().float()
    for b_name, b in model.named_buffers():
        if "correction" in b_name:
            b.copy_(b.bfloat16().float())
    ids = speak(follows, 1, T, g)
    with torch.no_grad():
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        logits, after = model.lm_head(hidden), mtp_logits(model, head, ids, hidden)
    right = (after[:, :-1].argmax(-1) == logits[:, 1:-1].argmax(-1)).float().mean()
    folder = os.path.join(out, name)
    save(model, head, folder, layers)
    save_file(dict(input_ids=ids.int(), logits=logits.contiguous(), mtp=after.contiguous()),
              os.path.join(folder, "expected.safetensors"))
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    print(f"{name}: loss {loss:.2f}, the head guesses {right:.0%} of the model's tokens, {size} bytes")


torch.set_num_threads(1)
for name, spec in MODELS.items():
    if len(sys.argv) <= 2 or name in sys.argv[2:]:
        make(sys.argv[1], name, *spec)
