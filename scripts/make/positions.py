#!/usr/bin/env python3
"""Train tiny language models that differ only in how they know positions (docs/concepts/positions.md).

usage: positions.py TOKENIZER_DIR TRAINING_TEXT OUT_DIR [--steps N] [--ctx C]

Each OUT_DIR/NAME is a Hugging Face folder for `llmq eval --ctx 64,128,...`:
  rope, alibi (MPT), learned (GPT-2)        trained, same width, depth, data, order and steps
  rope-linear, rope-dynamic, rope-yarn      rope's weights with rope_scaling of factor 4 in config.json
Needs torch, transformers and tokenizers.
"""
import argparse
import json
import os
import shutil

import torch
import transformers as tf
from tokenizers import Tokenizer

WIDTH, LAYERS, HEADS = 128, 4, 4


def make(name, vocab, ctx):
    if name == "rope":
        return tf.LlamaForCausalLM(tf.LlamaConfig(
            vocab_size=vocab, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            intermediate_size=352, max_position_embeddings=ctx, tie_word_embeddings=True))
    if name == "alibi":
        return tf.MptForCausalLM(tf.MptConfig(
            vocab_size=vocab, d_model=WIDTH, n_layers=LAYERS, n_heads=HEADS, max_seq_len=2048, no_bias=True))
    return tf.GPT2LMHeadModel(tf.GPT2Config(
        vocab_size=vocab, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=ctx,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def train(model, ids, ctx, steps, batch=16):
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=steps, pct_start=0.1)
    g = torch.Generator().manual_seed(1)
    model.train()
    for step in range(steps):
        at = torch.randint(0, len(ids) - ctx, (batch,), generator=g)
        x = torch.stack([ids[i:i + ctx] for i in at])
        loss = model(x, labels=x, use_cache=False).loss
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 100 == 0 or step + 1 == steps:
            print(f"  step {step:5d}  loss {loss.item():.3f}", flush=True)
    return model.eval()


def save(model, folder, tokenizer_dir):
    model.save_pretrained(folder, safe_serialization=True)
    for f in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(tokenizer_dir, f), folder)


def scaled(src, dst, scaling):
    shutil.copytree(src, dst, dirs_exist_ok=True)
    path = os.path.join(dst, "config.json")
    config = json.load(open(path))
    config["rope_scaling"] = scaling
    json.dump(config, open(path, "w"), indent=2)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("tokenizer")
    ap.add_argument("text")
    ap.add_argument("out")
    ap.add_argument("--steps", type=int, default=1500)
    ap.add_argument("--ctx", type=int, default=128)
    a = ap.parse_args()
    tok = Tokenizer.from_file(os.path.join(a.tokenizer, "tokenizer.json"))
    ids = torch.tensor(tok.encode(open(a.text, encoding="utf-8").read(), add_special_tokens=False).ids)
    print(f"{len(ids)} tokens of training text")
    for name in ("rope", "alibi", "learned"):
        print(name, flush=True)
        torch.manual_seed(1)
        model = train(make(name, tok.get_vocab_size(), a.ctx), ids, a.ctx, a.steps)
        save(model, os.path.join(a.out, name), a.tokenizer)
    rope = os.path.join(a.out, "rope")
    scaled(rope, rope + "-linear", {"rope_type": "linear", "factor": 4.0})
    scaled(rope, rope + "-dynamic", {"rope_type": "dynamic", "factor": 4.0})
    scaled(rope, rope + "-yarn", {"rope_type": "yarn", "factor": 4.0,
                                  "original_max_position_embeddings": a.ctx})


main()
