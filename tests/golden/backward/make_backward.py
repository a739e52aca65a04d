"""Gradients of one layer with experts as torch makes them of transformers' modelling code (5.23.0, float32, eager).

usage: make_backward.py OUT.safetensors     (in the repository's folder)

Of tests/golden/arch/NAME the first layer with experts, on hidden states x [2, 13, D] and with loss = sum(r * y):
NAME [26 + n, 2], for each row of x, then for each of its matrices and norms, in the order of `parts`,
sum(grad * dir) and sum(|grad * dir|). x, r and each dir are noise() from the seeds 7, 3 and 99.
"""
import sys

import torch
import transformers as tf
from safetensors.torch import save_file

NAMES = ["mixtral-moe", "qwen3-moe", "qwen2-moe-shared", "dots1", "glm4-moe", "gpt-oss-sinks"]
WINDOWS, LEN = 2, 13


def noise(n, seed):
    out = []
    for _ in range(n):
        seed = (seed * 1664525 + 1013904223) & 0xFFFFFFFF
        out.append((seed - (1 << 32) if seed >> 31 else seed) / 2147483648.0)
    return torch.tensor(out, dtype=torch.float64).float()


def parts(layer):
    """The gradients in this order: q, k, v, o, the norms, the router, experts one after the other, the shared MLP."""
    a, m = layer.self_attn, layer.mlp
    for p in (a.q_proj, a.k_proj, a.v_proj, a.o_proj, layer.input_layernorm, layer.post_attention_layernorm,
              m.router if hasattr(m, "router") else m.gate):
        yield p.weight.grad
    e = m.experts
    for i in range(e.gate_up_proj.shape[0]):
        both, down = e.gate_up_proj.grad[i], e.down_proj.grad[i]
        if getattr(e, "is_transposed", False):  # gate and up alternate and stay together
            yield both.T
            yield down.T
        else:
            yield from both.chunk(2)
            yield down
    shared = getattr(m, "shared_expert", getattr(m, "shared_experts", None))
    if shared is not None:
        for p in (shared.gate_proj, shared.up_proj, shared.down_proj):
            yield p.weight.grad


def gradients(name):
    model = tf.AutoModelForCausalLM.from_pretrained(f"tests/golden/arch/{name}", dtype=torch.float32,
                                                    attn_implementation="eager", experts_implementation="eager")
    layer = next(x for x in model.model.layers if hasattr(x.mlp, "experts"))
    D = model.config.hidden_size
    x, r = (noise(WINDOWS * LEN * D, seed).view(WINDOWS, LEN, D) for seed in (7, 3))
    x.requires_grad_()
    kept = []
    layer.register_forward_pre_hook(lambda _, args, kw: ((x, *args[1:]), kw), with_kwargs=True)
    layer.register_forward_hook(lambda _, args, y: kept.append(y[0] if isinstance(y, tuple) else y))
    model(input_ids=torch.zeros(WINDOWS, LEN, dtype=torch.long), use_cache=False)
    (kept[0] * r).sum().backward()
    sums = []
    for g in [*x.grad.view(-1, D), *parts(layer)]:
        g = g.contiguous().flatten().double()
        term = g * noise(len(g), 99).double()
        sums.append([term.sum(), term.abs().sum()])
    return torch.tensor(sums, dtype=torch.float32)


if __name__ == "__main__":
    save_file({name: gradients(name) for name in NAMES}, sys.argv[1])
