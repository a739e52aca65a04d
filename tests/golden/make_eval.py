#!/usr/bin/env python3
"""Perplexity and KL divergence of the demo models by transformers, for tests of `llmq eval`.

usage: make_eval.py      (pip install torch==2.13.0 transformers==4.57.6; takes some minutes)

Writes, beside this script, in eval/:
  expected.json         command-line cases: arguments of `llmq eval`, perplexity, tokens, KL
  windows.safetensors   per token, for two windows of 32 tokens: ids, nll of novels-6m and of
                        novels-1m, KL(novels-6m || novels-1m), equal first choices
Windows, all float32 with eager attention, sums in float64:
  own        whole windows of C tokens, BOS and C - 1 tokens of text, each scored from its second
             token; --no-bos: without BOS
  gptq       as GPTQ's evaluation: the text tokenized with special tokens, windows as above; --join-rows:
             its lines as the data set library has WikiText-2's rows, joined by blank lines
  llama.cpp  as llama-perplexity: windows of C tokens, the first replaced by BOS where the
             tokenizer adds one, scored from the token after the middle
"""
import json
import math
import os

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "..", "..", "models")
TEXT = os.path.join(HERE, "text", "novels-heldout-100w.txt")
ROWS = "tests/golden/text/wikitext2-test-excerpt.txt"
BOS = 1


def load(name):
    return AutoModelForCausalLM.from_pretrained(
        os.path.join(MODELS, name), dtype=torch.float32, attn_implementation="eager").eval()


def log_probs(model, window):
    with torch.no_grad():
        return model(torch.tensor([window])).logits[0, :-1].double().log_softmax(-1)


def scores(model, ref, windows, first):
    """nll, KL(ref || model) and equal argmax of every scored token, window after window."""
    nll, kl, same = [], [], []
    for w in windows:
        lp = log_probs(model, w)[first - 1:]
        nll.append(-lp.gather(-1, torch.tensor(w)[first:, None])[:, 0])
        if ref:
            lr = log_probs(ref, w)[first - 1:]
            kl.append((lr.exp() * (lr - lp)).sum(-1))
            same.append(lr.argmax(-1) == lp.argmax(-1))
    return [torch.cat(x) if x else None for x in (nll, kl, same)]


def cut(ids, size):
    return [ids[i:i + size] for i in range(0, len(ids) - size + 1, size)]


def percentile(x, p):
    return x.sort().values[math.ceil(p * len(x)) - 1].item()


def main():
    torch.set_num_threads(2)
    tok = Tokenizer.from_file(os.path.join(MODELS, "novels-6m", "tokenizer.json"))
    text = open(TEXT, encoding="utf-8").read()
    plain = tok.encode(text, add_special_tokens=False).ids
    special = tok.encode(text, add_special_tokens=True).ids
    adds_bos = special[0] == BOS
    big, small = load("novels-6m"), load("novels-1m")

    def case(args, model, ref, windows, first):
        nll, kl, same = scores(model, ref, windows, first)
        c = {"args": args, "perplexity": math.exp(nll.mean().item()), "tokens": len(nll),
             "windows": len(windows)}
        if ref:
            c |= {"kl_mean": kl.mean().item(), "kl_p99": percentile(kl, 0.99),
                  "top1_agree": same.double().mean().item()}
        print(c)
        return c

    with open(os.path.join(HERE, "..", "..", ROWS), encoding="utf-8") as f:
        rows = [row if row.strip() else "" for row in f]
    joined = tok.encode("\n\n".join(rows), add_special_tokens=True).ids
    w128, w512 = cut(plain, 128)[:12], cut(plain, 512)
    llama = [[BOS] + w[1:] if adds_bos else w for w in cut(special, 256)[:6]]
    cases = [
        case("novels-6m --ctx 512 --no-bos", big, None, w512, 1),
        case("novels-6m --ctx 128 --windows 12 --no-bos", big, None, w128, 1),
        case("novels-6m --ctx 1024 --windows 2 --no-bos", big, None, cut(plain, 1024)[:2], 1),
        case("novels-6m --ctx 128 --windows 12", big, None,
             [[BOS] + w for w in cut(plain, 127)[:12]], 1),
        case("novels-6m --ctx 128 --windows 12 --ruler gptq", big, None, cut(special, 128)[:12], 1),
        case("novels-6m --ctx 256 --windows 6 --ruler llama.cpp", big, None, llama, 129),
        case(f"novels-6m --ctx 512 --windows 10 --ruler gptq --join-rows --text {ROWS}", big, None,
             cut(joined, 512)[:10], 1),
        case("novels-1m --ref novels-6m --ctx 128 --windows 12 --no-bos", small, big, w128, 1),
    ]
    os.makedirs(os.path.join(HERE, "eval"), exist_ok=True)
    with open(os.path.join(HERE, "eval", "expected.json"), "w", encoding="utf-8") as f:
        json.dump(cases, f, indent=1)
        f.write("\n")
    w32 = cut(plain, 32)[:2]
    nll, _, _ = scores(big, None, w32, 1)
    nll_small, kl, same = scores(small, big, w32, 1)
    save_file({"ids": torch.tensor(w32, dtype=torch.int32), "nll_6m": nll.reshape(2, 31),
               "nll_1m": nll_small.reshape(2, 31), "kl": kl.reshape(2, 31),
               "same": same.to(torch.uint8).reshape(2, 31)},
              os.path.join(HERE, "eval", "windows.safetensors"))


main()
