"""Random tokenizer.model files against SentencePiece itself, on hard random text.

usage: spm_differential.py LLMQ [ROUNDS [SEED]]     (needs the package sentencepiece; not part of `make test`)
"""
import json, os, random, subprocess, sys, tempfile
sys.path.insert(0, os.path.dirname(__file__))
import sentencepiece as spm
from text import CASES

SPACES = ["", " ", "  ", "\n", "\t", "\u00a0", "\u3000", "▁", "\r\n", "\u200b", "\u0085", "   "]
MORE = ["<sep>", "한국어", "ﬁ①㎏", "e\u0301", "\u1100\u1161\u11a8", "ｱｲｳ", "Ａｂ", "👍🏽", "\ufffd", "x" * 20, "12345", "\u0001"]


def text(r):
    return "".join(r.choice(CASES + MORE).replace("\0", "")[:60] + r.choice(SPACES) for _ in range(r.randint(1, 5)))


def train(r, folder):
    corpus = [text(r) for _ in range(300)]
    open(f"{folder}/text", "w").write("\n".join(" ".join(c.split()) for c in corpus))
    options = dict(model_type=r.choice(["bpe", "unigram"]), vocab_size=r.randint(400, 900), byte_fallback=r.random() < .5,
                   add_dummy_prefix=r.random() < .7, remove_extra_whitespaces=r.random() < .5,
                   normalization_rule_name=r.choice(["identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf"]),
                   split_digits=r.random() < .5, treat_whitespace_as_suffix=r.random() < .15, character_coverage=r.choice([1.0, 0.98]),
                   user_defined_symbols=r.choice([[], ["<sep>"], ["<sep>", "\u25812", "ab"]]))
    spm.SentencePieceTrainer.train(input=f"{folder}/text", model_prefix=f"{folder}/tokenizer", hard_vocab_limit=False,
                                   minloglevel=9, num_threads=1, **options)
    os.remove(f"{folder}/text"), os.remove(f"{folder}/tokenizer.vocab")
    return options


def main():
    llmq, rounds, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 30, int(sys.argv[3]) if len(sys.argv) > 3 else 0
    failed, done = [], 0
    for k in range(seed, seed + rounds):
        r = random.Random(k)
        with tempfile.TemporaryDirectory() as folder:
            try:
                options = train(r, folder)
            except Exception:
                continue
            model = spm.SentencePieceProcessor(model_file=f"{folder}/tokenizer.model")
            cases = [c for c in CASES if "<" not in c] + [c for c in (text(r) for _ in range(60)) if "<s>" not in c and "</s>" not in c and "<unk>" not in c]
            given = "".join(json.dumps({"text": c}) + "\n" for c in cases)
            p = subprocess.run([llmq, "tokenize", folder], input=given, capture_output=True, encoding="utf-8")
            got, done = [json.loads(x) for x in p.stdout.split("\n") if x], done + 1
            want = [model.encode(c) for c in cases]
            bad = [(c, w, g["ids_plain"]) for c, w, g in zip(cases, want, got) if w != g["ids_plain"]]
            if len(got) != len(cases) or bad:
                failed.append(k)
                print(f"seed {k} {options}: {len(bad)} of {len(cases)}; {p.stderr.strip()}")
                for c, w, g in bad[:2]:
                    print(f"  {c!r}\n  want {w}\n  have {g}\n  {model.id_to_piece(w)}\n  {model.id_to_piece(g)}")
    print(f"{done} models compared, {len(failed)} differ: {failed}")
    sys.exit(bool(failed))


main()
