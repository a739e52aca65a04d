"""Makes tests/golden/beam/novels-1m.json: what transformers' generate(num_beams=...) answers.

    python tests/golden/make/beam.py models/novels-1m tests/golden/beam/novels-1m.json

A case is kept only where noise of 1e-3 on the logits, twelve times over, changes none of its answers:
so none hangs on rounding. Made with transformers 4.57.6 and torch 2.13.0.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList

NOISE, TRIALS = 1e-3, 12
PROMPTS = ["It was a dark night, and the", "\"I do not know,\" said", "He looked at her and",
           "The captain of the ship"]
# why, prompt, and what generate() is asked for; "end" is the text of the ids that end an answer
CASES = [
    ("nothing ends before the limit", 0, dict(num_beams=4, max_new_tokens=12)),
    ("two beams", 1, dict(num_beams=2, max_new_tokens=10)),
    ("one answer of three", 2, dict(num_beams=3, num_return_sequences=1, max_new_tokens=10)),
    ("ends, stops when nothing can be gained", 0, dict(num_beams=4, max_new_tokens=24, end=["."])),
    ("ends, stops when full", 0, dict(num_beams=4, max_new_tokens=24, end=["."], early_stopping=True)),
    ("ends, never stops early", 0,
     dict(num_beams=4, max_new_tokens=24, end=["."], early_stopping="never")),
    ("long answers are favoured", 1,
     dict(num_beams=4, max_new_tokens=20, end=[","], length_penalty=2.0, early_stopping="never")),
    ("long answers are favoured, full", 1,
     dict(num_beams=4, max_new_tokens=20, end=[","], length_penalty=2.0, early_stopping=True)),
    ("length does not count", 2, dict(num_beams=5, max_new_tokens=16, end=["."], length_penalty=0.0)),
    ("short answers are favoured", 3,
     dict(num_beams=3, max_new_tokens=16, end=[","], length_penalty=-1.0)),
    ("short, never early", 3,
     dict(num_beams=3, max_new_tokens=16, end=[","], length_penalty=-1.0, early_stopping="never")),
    ("two ids end it", 2, dict(num_beams=4, max_new_tokens=16, end=[",", "."])),
    ("no end before ten", 3, dict(num_beams=4, max_new_tokens=20, min_new_tokens=6, end=[","])),
    ("repetition is penalized", 1, dict(num_beams=4, max_new_tokens=16, repetition_penalty=1.3)),
    ("a stop string", 3, dict(num_beams=4, max_new_tokens=16, stop_strings=[" of the", "ing"])),
    ("a stop string, full", 1,
     dict(num_beams=4, max_new_tokens=16, stop_strings=["know", "to"], early_stopping=True)),
    ("eight beams", 3, dict(num_beams=8, max_new_tokens=14, end=[","], length_penalty=0.7)),
]


class Noise(LogitsProcessor):
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def __call__(self, ids, scores):
        return scores + NOISE * (2 * torch.rand(scores.shape, generator=self.g) - 1)


def answers(model, tok, ids, end, kw, noise=None):
    extra = dict(logits_processor=LogitsProcessorList([Noise(noise)])) if noise is not None else {}
    kw = {"num_return_sequences": kw["num_beams"], "early_stopping": False, **kw}
    out = model.generate(torch.tensor([ids]), do_sample=False, output_scores=True, tokenizer=tok,
                         return_dict_in_generate=True, eos_token_id=end or None, pad_token_id=0,
                         **kw, **extra)
    # an answer is as long as it has indices of beams
    lengths = [int((b >= 0).sum()) for b in out.beam_indices]
    seqs = [s[len(ids):len(ids) + n].tolist() for s, n in zip(out.sequences, lengths)]
    return seqs, [round(float(x), 6) for x in out.sequences_scores]


def main():
    folder, path = sys.argv[1:]
    torch.set_num_threads(1)
    tok = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    kept = []
    for why, p, kw in CASES:
        kw = dict(kw)
        ids = tok(PROMPTS[p]).input_ids
        end = [tok.encode(e, add_special_tokens=False)[-1] for e in kw.pop("end", [])]
        seqs, scores = answers(model, tok, ids, end, kw)
        if any(answers(model, tok, ids, end, kw, n)[0] != seqs for n in range(TRIALS)):
            print(f"left out, hangs on rounding: {why}")
            continue
        kept.append({"why": why, "prompt": ids, "end": end, **kw, "answers": seqs, "scores": scores})
        print(f"{why}: {[len(s) for s in seqs]} {tok.decode(seqs[0])!r}")
    with open(path, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(k) for k in kept) + "\n]\n")


main()
