"""Random tokenizers of every kind against the Hugging Face `tokenizers` library, on hard random text.

usage: tok_differential.py LLMQ [ROUNDS [SEED]]     (needs the package tokenizers; not part of `make test`)

Each round draws a normalizer, a pre-tokenizer, a trained model, a post-processor, a decoder and added
tokens, writes tokenizer.json and compares ids, decoded texts and streamed deltas of random strings, and
the decoding of random ids. A difference is printed with the folder that shows it; the exit code is 1.
Compared with tokenizers 0.22 (0.23 decodes an added token of normalized text as the normalizer spells it).
"""
import base64, json, os, random, subprocess, sys, tempfile, unicodedata
sys.path.insert(0, os.path.dirname(__file__))
from text import CASES
from tokenizers import (AddedToken, Regex, Tokenizer, decoders as dc, models, normalizers as nm,
                        pre_tokenizers as pt, processors as pr, trainers as tr)

BEHAVIOURS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
PATTERNS = [" ", "e", "ab", Regex(r"\s+"), Regex(r"\w+|[^\w\s]+"), Regex(r"\p{N}{1,3}"), Regex(r"[^\W\d_]+|\d"),
            Regex(r"(?i:'s|'t|'re)|\p{L}+| ?[^\s\p{L}]+"), Regex(r"\s+(?!\S)|\s+"), Regex(r"[A-Z][a-z]*"),
            Regex(r"(?<=\p{L})\p{P}"), Regex(r".{1,4}"), Regex(r"\b"), Regex(r"^\s|\s$"), Regex(r"[[:punct:]]|\p{Han}")]
ADDED = ["<s>", "</s>", "<unk>", "<mask>", "<|im_start|>", "[CLS]", "word", " sp", "  ", "é", "한국", "Ab", "<s", "s>", "a b", "\n"]
POOL = [c for c in map(chr, list(range(0x20000)) + list(range(0xE0000, 0xE0200)))
        if unicodedata.category(c) not in ("Cn", "Cs")]
BLOCKS = [range(0x20, 0x7F), range(0xA0, 0x250), range(0x300, 0x370), range(0x370, 0x530), range(0x590, 0x700),
          range(0x900, 0xE80), range(0x1100, 0x1200), range(0x1E00, 0x2070), range(0x2070, 0x2800), range(0x3000, 0x3400),
          range(0x4E00, 0x9FFF, 37), range(0xAC00, 0xD7A4, 29), range(0xF900, 0xFFFE), range(0x1F300, 0x1FA00)]
BLOCKS = [[chr(c) for c in b if unicodedata.category(chr(c)) not in ("Cn", "Cs")] for b in BLOCKS]
SPACES = ["", " ", "  ", "\n", "\t", "\u00a0", "\u3000", "▁", "\r\n", "\u200b", "\u200d", "\u0085", "\x00", "\x1f", "\ufffd", "\ufeff"]


def words(r):
    return r.choice(CASES) if r.random() < 0.5 else "".join(r.choices(r.choice(BLOCKS), k=r.randint(1, 8)))


def text(r):
    parts = []
    for _ in range(r.randint(1, 6)):
        kind = r.random()
        if kind < 0.55:
            parts.append(words(r))
        elif kind < 0.7:
            parts.append(r.choice(ADDED))
        elif kind < 0.85:
            parts.append("".join(r.choices(POOL, k=r.randint(1, 5))))
        else:
            parts.append("".join(r.choices("ab A1.!'_s", k=r.randint(1, 9))))
        parts.append(r.choice(SPACES))
    return "".join(parts)


def charsmap():
    """A small precompiled map in SentencePiece's layout, taken from any sentencepiece model given as CHARSMAP."""
    path = os.environ.get("CHARSMAP")
    return open(path, "rb").read() if path else None


def normalizer(r, depth=0):
    kinds = [nm.NFC, nm.NFD, nm.NFKC, nm.NFKD, nm.Lowercase, nm.StripAccents, nm.Nmt, nm.ByteLevel,
             lambda: nm.Prepend(r.choice(["▁", "ab", " "])), lambda: nm.Strip(r.random() < .5, r.random() < .5),
             lambda: nm.Replace(r.choice(PATTERNS), r.choice(["", " ", "▁", "xy", "\\1$0"])),
             lambda: nm.BertNormalizer(clean_text=r.random() < .5, handle_chinese_chars=r.random() < .5,
                                       strip_accents=r.choice([None, True, False]), lowercase=r.random() < .5)]
    if charsmap():
        kinds += [lambda: nm.Precompiled(charsmap())] * 2
    if depth == 0 and r.random() < 0.3:
        return None
    if depth == 0 and r.random() < 0.4:
        return nm.Sequence([normalizer(r, 1) for _ in range(r.randint(0, 3))])
    return r.choice(kinds)()


def pre_tokenizer(r, depth=0):
    kinds = [lambda: pt.ByteLevel(add_prefix_space=r.random() < .5, use_regex=r.random() < .6),
             lambda: pt.Split(r.choice(PATTERNS), r.choice(BEHAVIOURS), r.random() < .3),
             lambda: pt.Split(r.choice(PATTERNS), r.choice(BEHAVIOURS), r.random() < .3),
             lambda: pt.Metaspace(r.choice("▁_"), r.choice(["always", "never", "first"]), r.random() < .5),
             lambda: pt.Digits(r.random() < .5), lambda: pt.Punctuation(r.choice(BEHAVIOURS)),
             pt.Whitespace, pt.WhitespaceSplit, pt.BertPreTokenizer, lambda: pt.CharDelimiterSplit(r.choice(" ea")),
             pt.UnicodeScripts]
    if hasattr(pt, "FixedLength"):
        kinds.append(lambda: pt.FixedLength(length=r.randint(1, 6)))
    if depth == 0 and r.random() < 0.12:
        return None
    if depth == 0 and r.random() < 0.5:
        return pt.Sequence([pre_tokenizer(r, 1) for _ in range(r.randint(1, 3))])
    return r.choice(kinds)()


def decoder(r, depth=0):
    kinds = [dc.ByteFallback, dc.Fuse, lambda: dc.Strip(r.choice(" ▁a"), r.randint(0, 2), r.randint(0, 2)),
             lambda: dc.Replace(r.choice(["▁", " ", "ab", Regex("[aeiou]")]), r.choice([" ", "", "xx"])),
             lambda: dc.Metaspace(r.choice("▁_"), r.choice(["always", "never", "first"]))]
    whole = [dc.ByteLevel, lambda: dc.WordPiece(r.choice(["##", "a"]), r.random() < .5), lambda: dc.BPEDecoder(r.choice(["</w>", "e"])),
             lambda: dc.CTC("<s>", r.choice("|e"), r.random() < .5)]  # they expect tokens as the vocabulary spells them
    if depth == 0 and r.random() < 0.1:
        return None
    if depth == 0 and r.random() < 0.5:
        return dc.Sequence([decoder(r, depth) for depth in range(1, r.randint(2, 5))])
    return r.choice(kinds + whole * (depth < 2))()


def model(r, corpus, t):
    specials, size = ["<unk>", "<s>", "</s>"], r.randint(120, 500)
    kind = r.choice(["bpe", "bpe", "bpe", "unigram", "wordlevel", "wordpiece"])
    alphabet = pt.ByteLevel.alphabet() if r.random() < .5 else []
    bytes_ = [f"<0x{i:02X}>" for i in range(256)] if r.random() < .4 else []
    if kind == "bpe":
        more = r.choice([{}, {}, {"continuing_subword_prefix": "##"}, {"end_of_word_suffix": "</w>"}])
        t.model = models.BPE(unk_token=r.choice([None, "<unk>"]), fuse_unk=r.random() < .5, **more)
        trainer = tr.BpeTrainer(vocab_size=size + len(bytes_), special_tokens=specials + bytes_, initial_alphabet=alphabet,
                                limit_alphabet=r.choice([60, 1000]), show_progress=False, **more)
    elif kind == "unigram":
        t.model = models.Unigram()
        trainer = tr.UnigramTrainer(vocab_size=size + len(bytes_), special_tokens=specials + bytes_, unk_token="<unk>",
                                    initial_alphabet=alphabet, show_progress=False)
    elif kind == "wordlevel":
        t.model = models.WordLevel(unk_token="<unk>")
        trainer = tr.WordLevelTrainer(vocab_size=size, special_tokens=specials, show_progress=False)
    else:
        t.model = models.WordPiece(unk_token="<unk>", max_input_chars_per_word=r.choice([100, 5]))
        trainer = tr.WordPieceTrainer(vocab_size=size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    t.train_from_iterator(r.sample(corpus, min(len(corpus), 60)), trainer)
    j = json.loads(t.to_str())
    if kind in ("bpe", "unigram"):
        j["model"]["byte_fallback"] = bool(bytes_) and r.random() < .8
    if kind == "bpe":
        j["model"]["ignore_merges"] = r.random() < .4
        if r.random() < .5 and not any(" " in x for m in j["model"]["merges"] for x in m):
            j["model"]["merges"] = [" ".join(m) for m in j["model"]["merges"]]
    if kind == "unigram" and len(dict(j["model"]["vocab"])) < len(j["model"]["vocab"]):
        raise ValueError("the trainer gave one text two ids")
    j["added_tokens"] = [a for a in j["added_tokens"] if a["content"] in specials]
    return Tokenizer.from_str(json.dumps(j))


def build(r, corpus):
    t = Tokenizer(models.BPE())
    n, p = normalizer(r), pre_tokenizer(r)
    if n: t.normalizer = n
    if p: t.pre_tokenizer = p
    t = model(r, corpus, t)
    strips = "Strip" in t.to_str()  # what a normalizer leaves nothing of is no token
    for a in r.sample(ADDED, r.randint(0, 5)):
        if strips and a.isspace():
            continue
        flags = {k: r.random() < .3 for k in ("lstrip", "rstrip", "single_word", "normalized")}
        special = r.random() < .4 or t.token_to_id(a) in (0, 1, 2)  # those are special already
        (t.add_special_tokens if special else t.add_tokens)([AddedToken(a, **flags)])
    d = decoder(r)
    if d: t.decoder = d
    bos, eos = ("<s>", t.token_to_id("<s>")), ("</s>", t.token_to_id("</s>"))
    template = pr.TemplateProcessing(single=r.choice(["<s> $A", "$A </s>", "<s> $A </s>", "$A"]), special_tokens=[bos, eos])
    post = r.choice([None, template, pr.ByteLevel(trim_offsets=False), pr.BertProcessing(eos, bos), pr.RobertaProcessing(eos, bos),
                     pr.Sequence([pr.ByteLevel(), template])])
    if post: t.post_processor = post
    return Tokenizer.from_str(t.to_str())


def has_script(c, split=pt.UnicodeScripts().pre_tokenize_str):
    """Whether the library knows the script of a character: it knows none of those of Unicode 11 and later."""
    return c == " " or unicodedata.category(c) == "Cn" or len(split("a" + c)) > 1 or len(split("ж" + c)) > 1


def expected(t, s):
    try:
        ids, plain = t.encode(s).ids, t.encode(s, add_special_tokens=False).ids
        return dict(ids=ids, ids_plain=plain, decoded=t.decode(ids, skip_special_tokens=False), decoded_skip=t.decode(ids))
    except BaseException as e:  # the library panics, or refuses the text
        if isinstance(e, KeyboardInterrupt): raise
        return None


def decoded(t, ids, skip):
    try:
        return t.decode(ids, skip_special_tokens=skip)
    except BaseException as e:
        if isinstance(e, KeyboardInterrupt): raise
        return None


def run(llmq, folder, lines, *more):
    given = "".join(json.dumps(x) + "\n" for x in lines)
    p = subprocess.run([llmq, "tokenize", folder, *more], input=given, capture_output=True, encoding="utf-8")
    return [json.loads(x) for x in p.stdout.split("\n") if x], p.stderr.strip()


def compare(llmq, folder, t, r, report):
    texts = CASES + [text(r) for _ in range(40)]
    if "UnicodeScripts" in t.to_str():
        texts = [s for s in texts if all(map(has_script, s))]
    cases = [(s, e) for s in texts if (e := expected(t, s))]
    got, err = run(llmq, folder, [{"text": s} for s, _ in cases])
    if len(got) != len(cases):
        return report(f"{len(got)} answers of {len(cases)}: {err}")
    for (s, want), have in zip(cases, got):
        for key, w in want.items():
            if have[key] != w:
                return report(f"{key} of {s!r}:\n  want {w!r}\n  have {have[key]!r}")
        if "".join(have["deltas"]) != have["decoded"]:
            return report(f"deltas of {s!r}: {have['deltas']}")
    ids = [[r.randrange(t.get_vocab_size()) for _ in range(r.randint(0, 12))] for _ in range(30)]
    got, err = run(llmq, folder, [{"ids": i} for i in ids], "--detokenize")
    if len(got) != len(ids):
        return report(f"detokenize: {len(got)} answers of {len(ids)}: {err}")
    for i, have in zip(ids, got):
        for key, skip in (("decoded", False), ("decoded_skip", True)):
            w = decoded(t, i, skip)
            if w is not None and have[key] != w and not ("\ufffd" in w and "ByteFallback" in t.to_str()):
                return report(f"{key} of ids {i}:\n  want {w!r}\n  have {have[key]!r}")
        if "".join(have["deltas"]) != have["decoded"]:
            return report(f"deltas of ids {i}: {have['deltas']}, {have['decoded']!r}")


def kinds(j):
    """The types of a stage, for the report."""
    if not j: return "-"
    members = j.get("normalizers") or j.get("pretokenizers") or j.get("processors") or j.get("decoders")
    more = {k: v for k, v in j.items() if k in ("behavior", "pattern", "invert", "content", "use_regex", "prepend_scheme", "suffix")}
    return "+".join(map(kinds, members)) if members else j["type"] + (str(more) if more else "")


def describe(t):
    j = json.loads(t.to_str())
    return " | ".join([kinds(j["normalizer"]), kinds(j["pre_tokenizer"]), j["model"]["type"], kinds(j["decoder"])])


def main():
    llmq, rounds, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100, int(sys.argv[3]) if len(sys.argv) > 3 else 0
    corpus, failed, done = CASES * 2, [], 0
    for k in range(seed, seed + rounds):
        r = random.Random(k)
        try:
            t = build(r, corpus + [text(r) for _ in range(60)])
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt): raise
            continue  # the library does not take the combination
        folder = tempfile.mkdtemp(prefix=f"tok{k}-")
        t.save(f"{folder}/tokenizer.json")
        done += 1
        before = len(failed)
        compare(llmq, folder, t, r, lambda what: (failed.append(k), print(f"seed {k} {describe(t)}: {what}")))
        if len(failed) == before:
            os.remove(f"{folder}/tokenizer.json"), os.rmdir(folder)
    print(f"{done} tokenizers compared, {len(failed)} differ: {failed}")
    sys.exit(bool(failed))


main()
