"""Tokenizers of the rarer kinds, small, with what the `tokenizers` library does to the hard strings.

usage: tokenizers_more.py OUT     (needs tokenizers, sentencepiece, protobuf; OUT: tests/golden/tokenizers)

The same files as tokenizers_.py writes. The precompiled map is SentencePiece's compilation of a few rules.
"""
import json, os, sys, tempfile
sys.path.insert(0, os.path.dirname(__file__))
import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as pb
from text import CASES
from tokenizers import Regex, Tokenizer, decoders as dc, models, normalizers as nm, pre_tokenizers as pt, processors as pr, trainers as tr

out, corpus = sys.argv[1], CASES * 3
RULES = [("0041", "0061"), ("FB01", "0066 0069"), ("3000", "0020"), ("00A0", "0020"), ("200B", ""), ("0301", ""),
         ("1100 1161 11A8", "AC01"), ("2460", "0031"), ("0065 0301", "00E9")]


def charsmap():
    with tempfile.TemporaryDirectory() as d:
        open(f"{d}/rules.tsv", "w").write("".join(f"{a}\t{b}\n" for a, b in RULES))
        open(f"{d}/text", "w").write("\n".join(CASES[i].replace("\0", "") for i in range(len(CASES))))
        spm.SentencePieceTrainer.train(input=f"{d}/text", model_prefix=f"{d}/m", vocab_size=300, hard_vocab_limit=False,
                                       normalization_rule_tsv=f"{d}/rules.tsv", minloglevel=9)
        m = pb.ModelProto()
        m.ParseFromString(open(f"{d}/m.model", "rb").read())
        return m.normalizer_spec.precompiled_charsmap


T, sp = {}, ["<unk>", "<s>", "</s>"]
t = Tokenizer(models.WordPiece(unk_token="<unk>", max_input_chars_per_word=40))
t.normalizer, t.pre_tokenizer, t.decoder = nm.BertNormalizer(), pt.BertPreTokenizer(), dc.WordPiece()
t.train_from_iterator(corpus, tr.WordPieceTrainer(vocab_size=600, special_tokens=sp, show_progress=False))
t.post_processor = pr.BertProcessing(("</s>", 2), ("<s>", 1))
T["bert-wordpiece"] = t
t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
t.normalizer, t.pre_tokenizer = nm.Sequence([nm.Nmt(), nm.NFC(), nm.Lowercase(), nm.Strip()]), pt.Whitespace()
t.decoder = dc.BPEDecoder()
t.train_from_iterator(corpus, tr.BpeTrainer(vocab_size=700, special_tokens=sp, end_of_word_suffix="</w>", show_progress=False))
T["suffix-bpe"] = t
t = Tokenizer(models.Unigram())
t.normalizer = nm.Sequence([nm.Precompiled(charsmap()), nm.Replace(Regex(" {2,}"), " ")])
t.pre_tokenizer = pt.Sequence([pt.WhitespaceSplit(), pt.Metaspace(prepend_scheme="always")])
t.decoder = dc.Metaspace(prepend_scheme="always")
t.train_from_iterator(corpus, tr.UnigramTrainer(vocab_size=600, special_tokens=sp, unk_token="<unk>", show_progress=False))
T["precompiled-unigram"] = t
t = Tokenizer(models.WordLevel(unk_token="<unk>"))
t.normalizer = nm.Sequence([nm.NFKD(), nm.StripAccents()])
t.pre_tokenizer = pt.Sequence([pt.CharDelimiterSplit("|"), pt.Split("e", "merged_with_next"), pt.FixedLength(length=2)])
t.decoder = dc.CTC("<unk>", "|", True)
t.train_from_iterator(corpus, tr.WordLevelTrainer(vocab_size=300, special_tokens=sp, show_progress=False))
T["ctc-wordlevel"] = t
for name, t in T.items():
    d = f"{out}/{name}"
    os.makedirs(d, exist_ok=True)
    t.save(f"{d}/tokenizer.json")
    with open(f"{d}/cases.jsonl", "w", encoding="utf-8") as f:
        for s in CASES:
            ids, plain = t.encode(s).ids, t.encode(s, add_special_tokens=False).ids
            pieces = [t.decode([i], skip_special_tokens=False) for i in plain[:40]]
            decoded = [t.decode(ids, skip_special_tokens=k) if ids else "" for k in (False, True)]
            f.write(json.dumps(dict(text=s, ids=ids, ids_plain=plain, decoded=decoded[0], decoded_skip=decoded[1], pieces=pieces)) + "\n")
