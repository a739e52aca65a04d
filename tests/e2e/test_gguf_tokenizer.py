"""The tokenizers in GGUF files: llama.cpp's own vocabularies (cut down by tests/golden/make/gguf_vocab.py) with the
ids that llama.cpp gives their test strings, and what converters of other years wrote."""
import json
import shutil
import struct

import pytest

from conftest import ROOT
from test_gguf import ARRAY, BOOL, F32, I32, STRING, U32, convert, pair, text, write_gguf
from test_tokenize_template import answers, lines

VOCABS = sorted((ROOT / "tests/golden/gguf/vocab").glob("*.gguf"))
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def array(key, kind, values):
    form = {I32: "<i", F32: "<f", BOOL: "<?", U32: "<I"}
    body = b"".join(text(v) if kind == STRING else struct.pack(form[kind], v) for v in values)
    return text(key) + struct.pack("<IIQ", ARRAY, kind, len(values)) + body


def tokenizer(model, tokens, types=None, merges=None, scores=None, **meta):
    """The pairs of a tokenizer. meta: eot_token_id=3, pre="smollm", chat_template="..." """
    pairs = [pair("tokenizer.ggml.model", STRING, model), array("tokenizer.ggml.tokens", STRING, tokens)]
    pairs += [array("tokenizer.ggml.token_type", I32, types)] if types else []
    pairs += [array("tokenizer.ggml.merges", STRING, merges)] if merges is not None else []
    pairs += [array("tokenizer.ggml.scores", F32, scores)] if scores else []
    kinds = {str: STRING, bool: BOOL, int: U32}
    return pairs + [pair("tokenizer.chat_template" if k == "chat_template" else f"tokenizer.ggml.{k}", kinds[type(v)], v)
                    for k, v in meta.items()]


def vocab(path, *args, **more):
    """A GGUF file with nothing but a tokenizer."""
    return write_gguf(path, [pair("general.architecture", STRING, "llama")] + tokenizer(*args, **more), [])


def with_tokenizer(model, *args, **more):
    """The file of a model with a tokenizer put in."""
    pairs = tokenizer(*args, **more)
    filler = len(b"".join(pairs)) + len(pair("general.name", STRING, ""))
    pairs.append(pair("general.name", STRING, "x" * (-filler % 32)))  # the tensors keep their alignment
    b = model.read_bytes()
    n, = struct.unpack_from("<Q", b, 16)
    model.write_bytes(b[:16] + struct.pack("<Q", n + len(pairs)) + b"".join(pairs) + b[24:])
    return model


def ids(llmq, path, *texts):
    return [a["ids_plain"] for a in answers(llmq, "tokenize", path, "--fields", "ids_plain",
                                            cases=[{"text": t} for t in texts])]


@pytest.mark.parametrize("path", VOCABS, ids=lambda p: p.stem)
def test_llama_cpps_vocabularies_give_its_ids(llmq, path):
    cases = lines(path.with_suffix(".jsonl"))
    got = ids(llmq, path, *[c["text"] for c in cases])
    assert len(cases) >= 46 and [c["text"] for c, g in zip(cases, got) if g != c["ids"]] == []


def test_wordpiece_there_and_back(llmq, tmp_path):
    """BERT's pieces: the file has the sign of a space before a word's first and no "##" before the others."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "sea", "##side", "the", "b", "##b", "\u00e9", "!"]
    ends = [{"SpecialToken": {"id": t, "type_id": 0}} for t in ("[CLS]", "[SEP]")]
    middle = {"Sequence": {"id": "A", "type_id": 0}}
    model = tmp_path / "m"
    shutil.copytree(ROOT / "tests/golden/heads/bert", model)
    (model / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [{"id": i, "content": words[i], "single_word": False, "lstrip": False, "rstrip": False,
                                            "normalized": False, "special": True} for i in range(4)],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": False,
                       "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "post_processor": {"type": "TemplateProcessing", "single": [ends[0], middle, ends[1]], "pair": [middle],
                           "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for i, t in ((2, "[CLS]"), (3, "[SEP]"))}},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                  "vocab": {w: i for i, w in enumerate(words)}}}))
    llmq("convert", model, "-o", tmp_path / "m.gguf", "--to", "gguf")
    cases = [{"text": t} for t in ("The seaside!", "B\u00c9 bb \u00e9", "[SEP] zebra", "")]
    want = answers(llmq, "tokenize", model, cases=cases)
    assert [a["ids"] for a in want][:2] == [[2, 6, 4, 5, 10, 3], [2, 1, 7, 8, 9, 3]]
    assert answers(llmq, "tokenize", tmp_path / "m.gguf", cases=cases) == want


# Names of tokenizer.ggml.pre, and how each cuts the sample. One token is one sign here.
LETTERS = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ", "ķ", "é"]
SAMPLE = "It's 12345 x.y\n\n  Z"
CUTS = {
    "gpt-2": "It|'s|Ġ12345|Ġx|.|y|ĊĊĠ|ĠZ", "exaone4": "It|'s|Ġ12345|Ġx|.|y|ĊĊĠ|ĠZ",
    "llama-bpe": "It|'s|Ġ|123|45|Ġx|.y|ĊĊ|Ġ|ĠZ", "dbrx": "It|'s|Ġ|123|45|Ġx|.y|ĊĊ|Ġ|ĠZ", "glm4": "It|'s|Ġ|123|45|Ġx|.y|ĊĊ|Ġ|ĠZ",
    "qwen2": "It|'s|Ġ|1|2|3|4|5|Ġx|.y|ĊĊ|Ġ|ĠZ", "deepseek-r1-qwen": "It|'s|Ġ|1|2|3|4|5|Ġx|.y|ĊĊ|Ġ|ĠZ",
    "smollm": "It|'s|Ġ|1|2|3|4|5|Ġx|.|y|ĊĊĠ|ĠZ", "gpt-4o": "It's|Ġ|123|45|Ġx|.y|ĊĊ|Ġ|ĠZ", "tekken": "It|'s|Ġ|1|2|3|4|5|Ġx|.y|ĊĊ|Ġ|ĠZ",
    "deepseek-v3": "It|'s|Ġ|123|45|Ġx|.y|ĊĊ|Ġ|ĠZ", "afmoe": "It|'s|Ġ|12|345|Ġx|.y|ĊĊ|Ġ|ĠZ", "tiny_aya": "It's|Ġ|12|345|Ġx|.y|ĊĊ|Ġ|ĠZ",
    "falcon": "It|'|s|Ġ|123|45|Ġx|.|y|ĊĊĠ|ĠZ", "ufakzeka": "It|'s|Ġ|1|2|3|4|5|Ġx|.y|ĊĊ|Ġ|ĠZ",
    "superbpe": "It'sĠ|12|345|Ġx.yĊĊĠĠZ", "kimi-k2": "It's|Ġ|123|45|Ġx|.y|ĊĊ|Ġ|ĠZ", "bloom": "It's|Ġ12345|Ġx|.|y|ĊĊĠ|ĠZ",
    "viking": "It's|Ġ|1|2|3|4|5|Ġx|.|y|ĊĊĠ|ĠZ", "chameleon": "It|'|s|Ġ|1|2|3|4|5|Ġx|.|y|Ċ|Ċ|ĠĠ|Z",
}


@pytest.mark.parametrize("pre", sorted(CUTS))
def test_every_kind_of_cut(llmq, tmp_path, pre):
    """Each part of the sample is a token, and one sign more is merged before anything else: a piece becomes one token."""
    whole, parts = CUTS[pre].replace("|", ""), {}
    for i in range(len(whole)):
        for j in range(i + 2, len(whole) + 1):
            parts.setdefault(whole[i:j], (i - j, i))
    merged = sorted(parts, key=parts.get)
    tokens = LETTERS + merged
    f = vocab(tmp_path / "v.gguf", "gpt2", tokens, merges=[f"{s[:-1]} {s[-1]}" for s in merged], pre=pre)
    got, = ids(llmq, f, SAMPLE)
    assert "|".join(tokens[i] for i in got) == CUTS[pre]


def test_a_name_that_is_not_known_is_said_everywhere(llmq, tmp_path):
    model = convert(ROOT / "tests/golden/arch/qwen2", tmp_path / "m.gguf", "qwen2")
    f = with_tokenizer(model, "gpt2", LETTERS, [NORMAL] * len(LETTERS), [], pre="nobody-2")
    why = 'tokenizer.ggml.pre: "nobody-2" is not known'
    assert why in llmq("tokenize", f, input="", code=None).stderr
    assert why in llmq("run", f, "-p", "hello", "-n", "2", code=None).stderr
    assert why in llmq("quantize", f, "-o", tmp_path / "q.llmq", "--method", "rtn").stderr
    assert why in llmq("convert", f, "-o", tmp_path / "m.llmq", "--to", "llmq").stderr


@pytest.mark.parametrize("meta", [{}, {"pre": "default"}], ids=["missing", "default"])
def test_a_missing_name_is_said(llmq, tmp_path, meta):
    f = vocab(tmp_path / "v.gguf", "gpt2", LETTERS, merges=[], **meta)
    said = llmq("tokenize", f, input='{"text": "a"}\n').stderr
    assert "tokenizer.ggml.pre is" in said and "cut as for GPT-2" in said


BYTES = [f"<0x{b:02X}>" for b in range(256)]
SIGNS = list("▁abcdefghijklmnopqrstuvwxyz")


def pieces(first, types, more=(), more_types=()):
    """Arguments of tokenizer() for SentencePiece, and the tokens."""
    tokens = [*first, *BYTES, *SIGNS, *more]
    kinds = [*types, *[BYTE] * 256, *[NORMAL] * len(SIGNS), *more_types]
    return ("llama", tokens, kinds, None, [-float(i) for i in range(len(tokens))]), tokens


@pytest.mark.parametrize("why,first,types,meta", [
    ("as converters of today write it", ["<unk>", "<s>", "</s>"], [CONTROL] * 3, {"unknown_token_id": 0}),
    ("without its id", ["<unk>", "<s>", "</s>"], [CONTROL] * 3, {}),
    ("padding is unknown, too", ["<unk>", "[PAD1]", "[PAD2]"], [UNKNOWN] * 3, {}),
    ("the id decides", ["[PAD1]", "[PAD2]", "<unk>"], [UNKNOWN] * 3, {"unknown_token_id": 2}),
    ("none", ["<pad>", "<s>", "</s>"], [CONTROL] * 3, {}),
], ids=lambda v: v.replace(" ", "-") if isinstance(v, str) else "")
def test_sentencepieces_unknown_piece(llmq, tmp_path, why, first, types, meta):
    args, tokens = pieces(first, types, ["▁a", "ab"], [NORMAL] * 2)
    got, = ids(llmq, vocab(tmp_path / "v.gguf", *args, **meta), "a ab\u00e9")
    assert [tokens[i] for i in got] == ["▁a", "▁a", "b", "<0xC3>", "<0xA9>"]


@pytest.mark.parametrize("kind", [I32, U32])
@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_types_of_tokens_may_be_numbers_of_any_kind(llmq, tmp_path, model, kind):
    """mlx-lm writes them without a sign: control tokens were text."""
    args, tokens = pieces(["<unk>", "<s>", "</s>", "<|im_start|>"], [CONTROL] * 4)
    if model == "gpt2":
        args, tokens = ("gpt2", [*LETTERS, "<|im_start|>"], [NORMAL] * len(LETTERS) + [CONTROL], []), [*LETTERS, "<|im_start|>"]
    _, toks, types, merges, *scores = args
    pairs = tokenizer(model, toks, None, merges, *scores, bos_token_id=2**32 - 1)
    f = write_gguf(tmp_path / "v.gguf", [pair("general.architecture", STRING, "llama"), *pairs,
                                         array("tokenizer.ggml.token_type", kind, types)], [])
    got, = ids(llmq, f, "a<|im_start|>")
    assert [tokens[i] for i in got][-2:] == ["a", "<|im_start|>"]


@pytest.mark.parametrize("model", ["gpt2", "llama", "bert"])
@pytest.mark.parametrize("kind,types,says", [(I32, [1, 3], "tokens, found 2 entries"), (F32, [1.0] * 300, "tokens, found 300 "),
                                             (None, None, "a list, found one value")])
def test_types_of_other_tokens_leave_the_tokenizer_unused(llmq, tmp_path, model, kind, types, says):
    """They were left out of account: control tokens were text."""
    toks = [*LETTERS, "<|im_start|>"]
    pairs = tokenizer(model, toks, None, [] if model == "gpt2" else None, [0.0] * len(toks) if model == "llama" else None)
    key = "tokenizer.ggml.token_type"
    f = write_gguf(tmp_path / "v.gguf", [pair("general.architecture", STRING, "llama"), *pairs,
                                         array(key, kind, types) if types else pair(key, U32, 1)], [])
    notes = llmq.json("inspect", f)["notes"]
    assert any(key in n and says in n for n in notes)


def test_no_bos_may_be_a_number_without_a_sign(llmq, tmp_path):
    g = convert(ROOT / "tests/golden/arch/llama2-mha", tmp_path / "m.gguf", "llama")
    args, _ = pieces(["<unk>", "<s>", "</s>"], [CONTROL] * 3)
    f = with_tokenizer(g, *args, bos_token_id=2**32 - 1)
    llmq("logits", f, "--ids", "1,2", "-o", tmp_path / "l")


def test_a_user_defined_piece_has_real_spaces(llmq, tmp_path):
    args, tokens = pieces(["<pad>", "<eos>", "<unk>"], [CONTROL] * 3, ["  ", "   ", "\n\n"], [USER] * 3)
    f = vocab(tmp_path / "v.gguf", *args, unknown_token_id=2, add_space_prefix=False)
    got = ids(llmq, f, "a  b   c\n\nd", "a b")
    assert [[tokens[i] for i in g] for g in got] == [["a", "  ", "b", "   ", "c", "\n\n", "d"], ["a", "▁", "b"]]
    back, = answers(llmq, "tokenize", f, "--detokenize", cases=[{"ids": got[0]}])
    assert back["decoded"] == "a  b   c\n\nd"


@pytest.mark.parametrize("why,special,types,meta,want", [
    ("eos alone", ["<e>"], [CONTROL], {"eos_token_id": 0}, [0]),
    ("its turn ends otherwise", ["<e>", "<t>"], [CONTROL] * 2, {"eos_token_id": 0, "eot_token_id": 1}, [0, 1]),
    ("by name", ["<e>", "<|im_end|>", "<|eom_id|>"], [CONTROL, CONTROL, NORMAL], {"eos_token_id": 0}, [0, 1, 2]),
    ("text that looks like an end", ["<e>", "</s>"], [CONTROL, NORMAL], {"eos_token_id": 0}, [0]),
    ("gpt-oss: a message ends, not the answer", ["<|endoftext|>", "<|return|>", "<|end|>", "<|call|>"], [CONTROL] * 4,
     {"eos_token_id": 1}, [1, 0, 3]),
    ("phi-3", ["<|endoftext|>", "<|end|>"], [CONTROL] * 2, {"eos_token_id": 0}, [0, 1]),
    ("parts of a file", ["<e>", "<p>", "<r>"], [CONTROL] * 3, {"eos_token_id": 0, "fim_pad_token_id": 1, "fim_rep_token_id": 2}, [0, 1, 2]),
], ids=lambda v: v.replace(" ", "-") if isinstance(v, str) else "")
def test_what_ends_an_answer(llmq, tmp_path, why, special, types, meta, want):
    model = convert(ROOT / "tests/golden/arch/qwen2", tmp_path / "m.gguf", "qwen2")
    f = with_tokenizer(model, "gpt2", special + LETTERS, types + [NORMAL] * len(LETTERS), [], pre="qwen2", **meta)
    llmq("convert", f, "-o", tmp_path / "hf", "--to", "safetensors")
    eos = json.loads((tmp_path / "hf/config.json").read_text())["eos_token_id"]
    assert eos == (want[0] if len(want) == 1 else want)


def gguf_pairs(path):
    """Keys and values of a small file, enough of the format for these tests: {key: bytes or string}."""
    b = path.read_bytes()
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    n, at, out = struct.unpack_from("<Q", b, 16)[0], 24, {}

    def string(at):
        k, = struct.unpack_from("<Q", b, at)
        return b[at + 8:at + 8 + k].decode(), at + 8 + k

    for _ in range(n):
        key, at = string(at)
        kind, = struct.unpack_from("<I", b, at)
        at += 4
        count, is_array = 1, kind == ARRAY
        if is_array:
            kind, count = struct.unpack_from("<IQ", b, at)
            at += 12
        begin, values = at, []
        for _ in range(count):
            if kind == STRING:
                v, at = string(at)
                values.append(v)
            else:
                at += sizes[kind]
        out[key] = (values if is_array else values[0]) if kind == STRING else b[begin:at]
    return out


@pytest.mark.parametrize("pre", sorted(CUTS))
def test_a_cut_is_written_by_a_name_of_the_same_cut(llmq, tmp_path, pre):
    model = convert(ROOT / "tests/golden/arch/qwen2", tmp_path / "m.gguf", "qwen2")
    f = with_tokenizer(model, "gpt2", LETTERS, [NORMAL] * len(LETTERS), [], pre=pre)
    llmq("convert", f, "-o", tmp_path / "a", "--to", "safetensors")
    llmq("convert", tmp_path / "a", "-o", tmp_path / "b.gguf", "--to", "gguf")
    llmq("convert", tmp_path / "b.gguf", "-o", tmp_path / "c", "--to", "safetensors")
    a, c = (json.loads((tmp_path / x / "tokenizer.json").read_text()) for x in "ac")
    assert all(a[k] == c[k] for k in ("normalizer", "pre_tokenizer", "decoder"))
    assert a["model"]["ignore_merges"] == c["model"]["ignore_merges"]


def test_a_copy_keeps_the_tokenizer_and_what_the_file_says_of_itself(llmq, tmp_path):
    model = convert(ROOT / "tests/golden/arch/qwen2", tmp_path / "m.gguf", "qwen2")
    f = with_tokenizer(model, "gpt2", LETTERS, [NORMAL] * len(LETTERS), [], pre="nobody-2", chat_template="{{ messages }}", eot_token_id=3)
    llmq("convert", f, "-o", tmp_path / "c.gguf", "--to", "gguf")
    a, b = gguf_pairs(f), gguf_pairs(tmp_path / "c.gguf")
    kept = [k for k in a if k.startswith("tokenizer.")] + ["general.name"]
    assert len(kept) == 8 and all(a[k] == b[k] for k in kept)


@pytest.mark.parametrize("name, two", [("bert", False), ("roberta", True), ("xlm-roberta", True), ("modernbert", False)])
def test_an_encoder_says_what_ends_and_parts_its_texts(llmq, tmp_path, name, two):
    """llama.cpp asks for the end's id where add_eos_token says so, and joins pairs by add_sep_token. It adds the vector
    of the first type of part, which it does in f32 alone."""
    f = tmp_path / "m.gguf"
    llmq("convert", ROOT / "tests/golden/heads" / f"cross-{name}", "-o", f, "--to", "gguf", "--dtype", "f16")
    p = gguf_pairs(f)
    assert p["tokenizer.ggml.eos_token_id"] == p["tokenizer.ggml.seperator_token_id"]
    assert p["tokenizer.ggml.add_eos_token"] == b"\x01" and p["tokenizer.ggml.add_sep_token"] == bytes([two])
    assert all(t["scheme"] == "f32" for t in llmq.json("inspect", f)["tensors"] if "type_embed" in t["name"])
    for said in (two, not two) if name == "roberta" else ():  # read as it is said, too
        key = b"tokenizer.ggml.add_sep_token" + struct.pack("<I", 7)
        f.write_bytes(f.read_bytes().replace(key + bytes([two]), key + bytes([said])))
        llmq("convert", f, "-o", tmp_path / str(said), "--to", "safetensors")
        pair = json.loads((tmp_path / str(said) / "tokenizer.json").read_text())["post_processor"]["pair"]
        assert ["SpecialToken" in x for x in pair] == [True, False] + [True] * (1 + said) + [False, True]


def test_sentencepiece_comes_back_as_converters_write_it(llmq, tmp_path):
    """By way of a tokenizer.model: user-defined pieces have real spaces, and the unknown piece its id."""
    args, _ = pieces(["<pad>", "<eos>", "<unk>"], [CONTROL, CONTROL, UNKNOWN], ["  ", "▁▁▁", "\n\n"], [USER] * 3)
    model = convert(ROOT / "tests/golden/arch/llama-128", tmp_path / "m.gguf", "llama")
    f = with_tokenizer(model, *args, unknown_token_id=2, eos_token_id=1, add_space_prefix=False, add_bos_token=False)
    llmq("convert", f, "-o", tmp_path / "hf", "--to", "safetensors")
    llmq("convert", tmp_path / "hf", "-o", tmp_path / "b.gguf", "--to", "gguf")
    a, b = gguf_pairs(f), gguf_pairs(tmp_path / "b.gguf")
    n = len(args[1])
    assert b["tokenizer.ggml.tokens"][:n] == args[1]
    types = struct.unpack_from(f"<{n}i", b["tokenizer.ggml.token_type"])
    assert types[:3] == (CONTROL, CONTROL, UNKNOWN) and types[-3:] == (USER, NORMAL, USER)
    assert all(a[f"tokenizer.ggml.{k}"] == b[f"tokenizer.ggml.{k}"] for k in ("unknown_token_id", "eos_token_id", "add_space_prefix"))
    texts = ["a  b", "a   b", " x\n\ny", "a" + " " * 17]
    assert ids(llmq, f, *texts) == ids(llmq, tmp_path / "b.gguf", *texts) == ids(llmq, tmp_path / "hf", *texts)


def test_another_tokenizer_takes_its_place(llmq, tmp_path, model, serve):
    golden = ROOT / "tests/golden/gguf/novels-6m-Q2_K.gguf"
    pre = gguf_pairs(golden)["tokenizer.ggml.pre"].encode()
    f = tmp_path / "m.gguf"
    f.write_bytes(golden.read_bytes().replace(b"tokenizer.ggml.pre" + struct.pack("<IQ", STRING, len(pre)) + pre,
                                              b"tokenizer.ggml.pre" + struct.pack("<IQ", STRING, len(pre)) + b"x" * len(pre)))
    args = ["-p", "The old house", "-n", 8, "-t", 0]
    assert "is not known" in llmq("run", f, *args, code=None).stderr
    want = llmq("run", golden, *args).stdout
    assert llmq("run", f, *args, "--tokenizer", model).stdout == want
    with serve(f, "--tokenizer", model) as s:
        got = s.post_json("/v1/completions", {"prompt": "The old house", "max_tokens": 8, "temperature": 0})
        assert got["choices"][0]["text"].strip() == want.strip()
    llmq("convert", f, "-o", tmp_path / "b.gguf", "--to", "gguf", "--tokenizer", model)
    assert llmq("run", tmp_path / "b.gguf", *args).stdout == want
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/config.json").write_text("{}")
    assert "expected a tokenizer's files, found none" in llmq("run", f, *args, "--tokenizer", tmp_path / "empty", code=None).stderr


@pytest.mark.parametrize("arch,want", [
    ("llama", [[4, 2, 7], [4, 2, 3, 7], [4, 8, 3, 7], [4, 1, 3, 7]]),
    ("phi3", [[4, 2, 7], [4, 2, 7], [4, 8, 7], [4, 1, 3, 7]])], ids=("llama", "phi3"))
def test_a_user_defined_piece_parts_a_text(llmq, tmp_path, arch, want):
    """What follows it has a space before it, as llama.cpp has it; Phi-3's special tokens take the spaces after them, but for <s>."""
    pairs = tokenizer("llama", ["<unk>", "<s>", "</s>", "▁", "▁a", "a", "b", "▁b", "<|end|>"],
                      [UNKNOWN, CONTROL, USER, *[NORMAL] * 5, CONTROL], scores=[0.0, 0.0, 0.0, -4.0, -1.0, -2.0, -2.0, -1.0, 0.0], bos_token_id=1, add_bos_token=False)
    path = write_gguf(tmp_path / "m.gguf", [pair("general.architecture", STRING, arch)] + pairs, [])
    got = [a["ids"] for a in answers(llmq, "tokenize", path, "--fields", "ids", cases=[{"text": t} for t in ("a</s>b", "a</s> b", "a<|end|> b", "a<s> b")])]
    assert got == want
