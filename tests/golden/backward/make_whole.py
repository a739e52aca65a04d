"""Gradients of whole models as torch makes them of transformers' modelling code (5.23.0, float64, eager).

usage: make_whole.py OUT.safetensors     (in the repository's folder)

Of tests/golden/arch/NAME on ids (37 i + 11) % vocab, i < 26, in two windows, with loss = sum(r * what the last norm reads):
NAME.LAYER.PART [2], of each matrix that is trained and of each norm with weights: sum(grad * dir) and sum(|grad * dir|).
r and each dir are noise() from the seeds 3 and 99.
"""
import sys

import torch
import transformers as tf
from make_backward import LEN, WINDOWS, noise
from safetensors.torch import save_file

NAMES = ["gemma4-ple", "gemma4-moe", "gemma3n"]
PARTS = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "attn_post_norm": "post_attention_layernorm", "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm", "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
    "ple_post_norm": "post_per_layer_input_norm", "expert_norm": "pre_feedforward_layernorm_2",
    "dense_post_norm": "post_feedforward_layernorm_1", "expert_post_norm": "post_feedforward_layernorm_2",
}


def gradients(name):
    model = tf.AutoModelForCausalLM.from_pretrained(f"tests/golden/arch/{name}", dtype=torch.float64,
                                                    attn_implementation="eager", experts_implementation="eager")
    n = WINDOWS * LEN
    ids = torch.tensor([(37 * i + 11) % model.config.vocab_size for i in range(n)]).view(WINDOWS, LEN)
    r = noise(n * model.config.hidden_size, 3).double().view(WINDOWS, LEN, -1)
    kept = []
    model.model.norm.register_forward_pre_hook(lambda _, args: kept.append(args[0]))
    model(input_ids=ids, use_cache=False)
    (kept[0] * r).sum().backward()
    for i, layer in enumerate(model.model.layers):
        grads = {part: m.weight.grad for part, path in PARTS.items() if (m := submodule(layer, path)) is not None}
        if getattr(layer, "router", None) is not None:
            grads["router_norm"] = layer.router.scale.grad
        for part, g in grads.items():
            if g is None:
                continue
            term = g.flatten() * noise(g.numel(), 99).double()
            yield f"{name}.{i}.{part}", torch.stack([term.sum(), term.abs().sum()]).float()


def submodule(layer, path):
    for step in path.split("."):
        layer = getattr(layer, step, None)
    return layer


if __name__ == "__main__":
    save_file(dict(pair for name in NAMES for pair in gradients(name)), sys.argv[1])
