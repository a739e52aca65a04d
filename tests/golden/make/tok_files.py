"""Small tokenizer.model and rank files, with what SentencePiece and tiktoken do to the hard strings.

usage: tok_files.py OUT     (needs sentencepiece, tiktoken, tokenizers; OUT: tests/golden/tok_files)
"""
import base64, json, os, sys, tempfile
sys.path.insert(0, os.path.dirname(__file__))
import sentencepiece as spm
import tiktoken
from text import CASES

out = sys.argv[1]
os.makedirs(out, exist_ok=True)
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
plain = [c for c in CASES if not any(x in c for x in ("<s>", "</s>", "<unk>", "<|"))] + ["a<sep>b  <sep> c", "\u3000 x ", "▁▁a"]
cases = []
models = {"bpe": dict(model_type="bpe", normalization_rule_name="identity", remove_extra_whitespaces=False),
          "unigram": dict(model_type="unigram", normalization_rule_tsv="rules.tsv", user_defined_symbols=["<sep>"])}
for name, options in models.items():
    with tempfile.TemporaryDirectory() as d:
        if "normalization_rule_tsv" in options:
            options["normalization_rule_tsv"] = f"{d}/rules.tsv"
            open(f"{d}/rules.tsv", "w").write("3000\t20\nFB01\t66 69\n65 301\tE9\nA\t20\nD\t20\n9\t20\n2460\t31\n")
        open(f"{d}/text", "w").write("\n".join(" ".join(c.replace("\0", "").split()) for c in CASES * 3))
        spm.SentencePieceTrainer.train(input=f"{d}/text", model_prefix=f"{d}/m", vocab_size=560, hard_vocab_limit=False, byte_fallback=True,
                                       minloglevel=9, num_threads=1, **options)
        data = open(f"{d}/m.model", "rb").read().replace(d.encode(), b"/" * len(d))
    open(f"{out}/{name}.model", "wb").write(data)
    m = spm.SentencePieceProcessor(model_proto=data)
    cases += [dict(file=f"{name}.model", text=c, ids=m.encode(c), decoded=None if c[:1] == "▁" else m.decode(m.encode(c))) for c in plain]
    # a text's own metaspaces in front: SentencePiece drops all of them, the converted tokenizers one
ranks = {bytes([b]): b for b in range(256)}
words = sorted({w for c in CASES for w in c.encode().split(b" ")} | {b" the", b"he", b"th", b" t", b"\n\n"})
for w in words:  # any set of byte strings will do that holds a part of each
    for n in range(2, min(len(w), 9) + 1, 2):
        ranks.setdefault(w[:n], len(ranks))
open(f"{out}/cl100k_base.tiktoken", "wb").write(b"".join(base64.b64encode(k) + b" %d\n" % v for k, v in ranks.items()))
enc = tiktoken.Encoding("small", pat_str=CL100K, mergeable_ranks=ranks, special_tokens={})
cases += [dict(file="cl100k_base.tiktoken", text=c, ids=enc.encode(c, disallowed_special=()), decoded=c) for c in plain]
with open(f"{out}/cases.jsonl", "w") as f:
    f.writelines(json.dumps(c) + "\n" for c in cases)
