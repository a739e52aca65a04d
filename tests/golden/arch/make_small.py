"""Cuts the vocabulary of checkpoints of this folder to 96 words (and what LAYERS and BF16 say), and makes their logits again
with transformers 5.23.0 (float32, eager attention): of the whole ones it gives those of 4.57.6, which made them.

usage: make_small.py NAME...; files as make_more.py writes them. Some that tests know by their 320 words stay, as llama-128, of
which tests/golden/published has parts.
"""
import json
import pathlib
import re
import sys

import torch
import transformers as tf
from safetensors import safe_open
from safetensors.torch import save_file

V, T, GREEDY = 96, 32, 16
LAYERS = {"gemma3": 3}  # of its six: two that slide and one that does not
BF16 = {"gpt-neo-local", "llama-linear-rope"}  # gpt2 stays in F32


def cut(folder, name):
    config = json.loads((folder / "config.json").read_text())
    words, layers = config["vocab_size"], LAYERS.get(name)
    config["vocab_size"] = V
    if layers:
        config["num_hidden_layers"], config["layer_types"] = layers, config["layer_types"][:layers]
    with safe_open(folder / "model.safetensors", "pt") as f:
        about, tensors = f.metadata(), {}
        for n in f.keys():
            if layers and n.startswith("model.layers.") and int(n.split(".")[2]) >= layers:
                continue
            t = f.get_tensor(n)
            if t.shape[0] == words and not re.search(r"\.?(layers|h|blocks)\.\d", n):
                t = t[:V].contiguous()
            tensors[n] = t.bfloat16() if name in BF16 else t
    if name in BF16:
        config["dtype"] = "bfloat16"
    save_file(tensors, folder / "model.safetensors", about)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def expect(folder, name):
    model = tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    g = torch.Generator().manual_seed(sum(map(ord, name)))
    ids = torch.randint(3, V, (2, T), generator=g)
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits.float()
        greedy, margin = ids, []
        for _ in range(GREEDY):
            best = model(greedy, use_cache=False).logits[:, -1].float().topk(2, -1)
            margin.append(best.values[:, 0] - best.values[:, 1])
            greedy = torch.cat([greedy, best.indices[:, :1]], 1)
    save_file(dict(input_ids=ids.int(), logits=logits.contiguous(), greedy=greedy.int().contiguous(),
                   margin=torch.stack(margin, 1).contiguous()), folder / "expected.safetensors")


for name in sys.argv[1:]:
    folder = pathlib.Path(__file__).parent / name
    cut(folder, name)
    expect(folder, name)
