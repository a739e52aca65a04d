"""What transformers computes of a real GGUF file, dequantized to f32.

usage: real.py FILE.gguf OUT.json       (torch, transformers 4.57, gguf)

Of one text: its ids by the file's tokenizer, and at every fourth position the largest logits with their tokens.
"""
import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXT = ("The river had risen in the night, and by morning the lower fields were under water. Nobody in the village could "
        "remember such a flood in October.\n\ndef area(r):\n    return 3.14159 * r ** 2  # 1234567\n")
file, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
how = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
tokenizer = AutoTokenizer.from_pretrained(**how)
ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]  # the file has add_bos_token false
with torch.no_grad():
    logits = AutoModelForCausalLM.from_pretrained(**how, dtype=torch.float32)(torch.tensor([ids])).logits[0]
rows = []
for i in range(3, len(ids), 4):
    v, k = logits[i].topk(8)
    rows.append({"position": i, "tokens": k.tolist(), "logits": [round(x, 5) for x in v.tolist()]})
out.write_text(json.dumps({"text": TEXT, "ids": ids, "largest": round(logits.abs().max().item(), 5), "rows": rows}))
