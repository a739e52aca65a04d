"""One result of a peer for quality_targets.py, in the Python that has it: KIND WHAT MODEL TEXT SAMPLES OUT.

KIND llmcompressor: GPTQ of WHAT = BITS:GROUP (with zero points, static groups), nvfp4 or mxfp4 (weights alone); fp8-block needs no text.
KIND auto-round: its best recipe of BITS:GROUP, or of nvfp4 or mxfp4 (weights alone). The result is a folder that llmq reads."""
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

kind, what, path, text, samples, out = sys.argv[1:7]
CTX = 512
tok = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
ids = tok(open(text, encoding="utf-8").read())["input_ids"]
rows = [ids[i:i + CTX] for i in range(0, len(ids) - CTX, CTX)]
rows = rows[::max(1, len(rows) // int(samples))][:int(samples)]
# BOS where the tokenizer has one: so these programs take texts, and so llmq does
word, around = tok("a", add_special_tokens=False)["input_ids"], tok("a")["input_ids"]
begin = around[:next(i for i in range(len(around)) if around[i:i + len(word)] == word)]
rows = [begin + r[len(begin):] for r in rows]

if kind == "auto-round":
    from auto_round import AutoRound
    data = [torch.tensor([r]) for r in rows]
    if ":" in what:
        bits, group = map(int, what.split(":"))
        grid, form = dict(bits=bits, group_size=group, sym=False), "auto_gptq"
    else:
        grid, form = dict(scheme=what.upper(), act_bits=16), "llm_compressor"
    AutoRound(model, tok, iters=1000, dataset=data, seqlen=CTX, nsamples=len(rows), **grid).quantize_and_save(out, format=form)
    for file in Path(out).glob("*/*"):  # it makes a folder of its own in the one it is given
        file.rename(Path(out) / file.name)
else:
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    more = dict(targets="Linear", ignore=["lm_head"])
    if ":" in what:
        bits, group = map(int, what.split(":"))
        weights = dict(num_bits=bits, type="int", symmetric=False, strategy="group", group_size=group)
        recipe = GPTQModifier(config_groups={"group_0": {"targets": ["Linear"], "weights": weights}}, ignore=["lm_head"], actorder="static")
    elif what == "fp8-block":
        recipe = QuantizationModifier(scheme="FP8_BLOCK", **more)
    else:
        recipe = GPTQModifier(scheme={"nvfp4": "NVFP4A16", "mxfp4": "MXFP4A16"}[what], **more)
    data = Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * CTX] * len(rows)})
    oneshot(model=model, recipe=recipe, dataset=data, max_seq_length=CTX, num_calibration_samples=len(rows))
    model.save_pretrained(out, save_compressed=True)
    tok.save_pretrained(out)
