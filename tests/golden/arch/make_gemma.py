"""Tiny checkpoints of Gemma 4 and 3n, with logits of transformers 5.23.0 (float32, eager attention),
laid out as make_more.py's, but for their smaller sizes (T 24) and bf16 weights.

usage: make_gemma.py OUT [NAME...]
"""
import json
import math
import os
import sys

import torch
import transformers as tf
from safetensors.torch import save_file

V, H, T, GREEDY = 96, 32, 24, 16
SLIDING, FULL = "sliding_attention", "full_attention"
SIZES = dict(vocab_size=V, hidden_size=H, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=32, max_position_embeddings=128, bos_token_id=1, eos_token_id=2,
             pad_token_id=0, sliding_window=8, head_dim=8)
GEMMA4 = dict(SIZES, global_head_dim=16, vocab_size_per_layer_input=V)
MOE = dict(GEMMA4, num_hidden_layers=2, layer_types=[SLIDING, FULL], hidden_size_per_layer_input=0,
           enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=16)

MODELS = {
    # Per-layer embeddings, K and V of earlier layers, a wider MLP in the layers that read them
    "gemma4-ple": ("Gemma4ForCausalLM", "Gemma4TextConfig", dict(
        GEMMA4, num_hidden_layers=5, num_attention_heads=2, num_key_value_heads=1,
        hidden_size_per_layer_input=4, num_kv_shared_layers=2, use_double_wide_mlp=True,
        final_logit_softcapping=30.0, layer_types=[SLIDING, SLIDING, FULL, SLIDING, FULL])),
    # V is K, with KV heads of their own number, in the layers that see everything
    "gemma4-dense": ("Gemma4ForCausalLM", "Gemma4TextConfig", dict(
        GEMMA4, num_hidden_layers=3, hidden_size_per_layer_input=0, attention_k_eq_v=True,
        num_global_key_value_heads=1, layer_types=[SLIDING, FULL, FULL])),
    "gemma4-moe": ("Gemma4ForCausalLM", "Gemma4TextConfig", dict(
        MOE, attention_k_eq_v=True, num_global_key_value_heads=1)),
    "gemma3n": ("Gemma3nForCausalLM", "Gemma3nTextConfig", dict(
        SIZES, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=4,
        intermediate_size=[32, 48, 32, 32], layer_types=[SLIDING, FULL, SLIDING, FULL],
        hidden_size_per_layer_input=4, vocab_size_per_layer_input=V - 8, num_kv_shared_layers=2,
        laurel_rank=4, activation_sparsity_pattern=[0.5, 0.8, 0.0, 0.0],
        head_dim=16)),
    "gemma4-unified": ("Gemma4UnifiedForCausalLM", "Gemma4UnifiedTextConfig", dict(
        SIZES, global_head_dim=16, num_hidden_layers=3, attention_k_eq_v=True,
        num_global_key_value_heads=1, layer_types=[SLIDING, SLIDING, FULL])),
}
# config.json as published files have it: keys of older releases, and some that nothing reads
PUBLISHED = {
    "gemma4-ple": dict(global_head_dim=16), "gemma4-moe": dict(global_head_dim=16),
    "gemma3n": dict(query_pre_attn_scalar=256, altup_lr_multiplier=1.0),
}


def fill(model, g):
    for name, p in list(model.named_parameters()) + [
            b for b in model.named_buffers() if "layer_scalar" in b[0]]:
        r = torch.randn(p.shape, generator=g)
        if "embed" in name:
            p.data = r * 0.3
        elif p.dim() >= 2:
            p.data = r * 1.3 / math.sqrt(p.shape[-1])
        else:
            p.data = 1.0 + r * 0.2
        p.data = p.data.bfloat16().float()  # as the file holds them


def make(out, name, model_class, config_class, sizes):
    config = getattr(tf, config_class)(**sizes)
    config._attn_implementation = "eager"
    model = getattr(tf, model_class)(config).float().eval()
    g = torch.Generator().manual_seed(sum(map(ord, name)))
    fill(model, g)
    model.tie_weights()
    ids = torch.randint(3, V, (1, T), generator=g)
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits.float()
        greedy, margin = ids, []
        for _ in range(GREEDY):
            best = model(greedy, use_cache=False).logits[:, -1].float().topk(2, -1)
            margin.append(best.values[:, 0] - best.values[:, 1])
            greedy = torch.cat([greedy, best.indices[:, :1]], 1)
    folder = os.path.join(out, name)
    model.to(torch.bfloat16).save_pretrained(folder)
    if name in PUBLISHED:
        path = os.path.join(folder, "config.json")
        text = json.loads(open(path).read())
        text.update(PUBLISHED[name])
        if text.pop("per_layer_config", None):
            text["num_global_key_value_heads"] = sizes.get("num_global_key_value_heads")
        with open(path, "w") as f:
            f.write(json.dumps(text, indent=2, sort_keys=True) + "\n")
    extra = os.path.join(folder, "generation_config.json")
    if os.path.exists(extra):
        os.remove(extra)
    save_file(dict(input_ids=ids.int(), logits=logits.contiguous(), greedy=greedy.int().contiguous(),
                   margin=torch.stack(margin, 1).contiguous()),
              os.path.join(folder, "expected.safetensors"))
    print(f"{name:16s} spread {logits.std():.2f}")


torch.set_num_threads(1)
for which in sys.argv[2:] or MODELS:
    make(sys.argv[1], which, *MODELS[which])
