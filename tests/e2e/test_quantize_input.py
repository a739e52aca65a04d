"""quantize on unlucky weights, calibration data and options: a good file, or one line that says what is wrong."""
import json
import math
import random
import struct

import pytest

from test_bad_input import TINY, copy, read_st, refused, st_file

METHODS = ["rtn", "absmax", "int8", "nf4", "fp4", "gptq", "awq", "auto"]
CALIBRATED = ["int8", "gptq", "awq", "auto"]
UP, DOWN = "model.layers.1.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def ids(tmp_path_factory):
    """Token ids: the tiny model has no tokenizer."""
    path = tmp_path_factory.mktemp("calib") / "c.ids"
    rng = random.Random(1)
    path.write_text(" ".join(str(rng.randrange(90)) for _ in range(1500)))
    return path


def options(method, ids):
    if method not in CALIBRATED:
        return ["-m", method]
    return ["-m", method, "--calib", ids, "--calib-samples", "32", "--calib-len", "32",
            *(["--tune", "2"] if method == "auto" else [])]


def floats(data):
    return [struct.unpack("<f", b"\0\0" + bytes(data[i:i + 2]))[0] for i in range(0, len(data), 2)]


def model_with(folder, change, config=None, wide=()):
    """The tiny model in f32, change(tensors) applied to {name: [shape, values]}."""
    copy(TINY, folder)
    header, data = read_st(TINY / "model.safetensors")
    tensors = {k: [v["shape"], floats(data[slice(*v["data_offsets"])])] for k, v in header.items()
               if k != "__metadata__"}
    change(tensors)
    out, blob = {}, b""
    for name, (shape, values) in tensors.items():
        out[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(blob), len(blob) + 4 * len(values)]}
        blob += struct.pack(f"<{len(values)}f", *values)
    (folder / "model.safetensors").write_bytes(st_file(out, blob))
    (folder / "config.json").write_text(json.dumps({**json.loads((TINY / "config.json").read_text()), **(config or {})}))
    return folder


def each(name, fn):
    def change(t):
        t[name][1] = [fn(x) for x in t[name][1]]
    return change


def mlp_of(width):
    """Another width of the MLP."""
    def change(t):
        rng = random.Random(2)
        for name, v in t.items():
            if ".mlp." in name:
                v[0] = [width if n == 256 else n for n in v[0]]
                v[1] = [rng.gauss(0, 0.1) for _ in range(math.prod(v[0]))]
    return change


# Weights that are odd and no mistake: every method makes a file that runs.
ODD = [
    ("all zero", each(UP, lambda x: 0.0), {}),
    ("all the same", each(UP, lambda x: 0.37), {}),
    ("denormal steps", each(UP, lambda x: x * 1e-37), {}),
    ("too large for f16 scales", each(UP, lambda x: x * 1e30), {}),
    ("H beyond f32", lambda t: (each(UP, lambda x: x * 1e16)(t), each("model.layers.1.mlp.gate_proj.weight",
                                                                     lambda x: x * 1e8)(t)), {}),
    ("a prime width", mlp_of(131), {"intermediate_size": 131}),
    ("a width of 3 * 7 * 11", mlp_of(231), {"intermediate_size": 231}),
]


@pytest.mark.parametrize("method", ["nf4", "fp4"])
def test_magnitudes_without_a_mean_have_no_double_quantization(llmq, tmp_path, method):
    """Each is finite; their sum in f32 is not."""
    model = model_with(tmp_path / "model", each(UP, lambda x: math.copysign(3.4e38, x)), {})
    last = refused(llmq, tmp_path, "quantize", model, "-o", tmp_path / "q.llmq", "-m", method, "--double-quant", "--no-check")
    assert "expected blocks whose mean largest magnitude is finite" in last


@pytest.mark.parametrize("why,change,config", ODD, ids=[x[0] for x in ODD])
def test_odd_weights_are_quantized(llmq, ids, tmp_path, why, change, config):
    model, out = model_with(tmp_path / "model", change, config), tmp_path / "q.llmq"
    for method in METHODS:
        p = llmq("quantize", model, "-o", out, *options(method, ids), "--json")
        assert all(math.isfinite(t["rmse"]) for t in json.loads(p.stdout)["tensors"]), method
        llmq("verify", out, "--against", model)
        llmq("logits", out, "--ids", "1,2,3", "-o", tmp_path / "logits")  # refuses what is not finite
        if config and method in ("rtn", "gptq", "awq"):
            assert f"do not divide {config['intermediate_size']} inputs (these do: " in p.stderr
            assert p.stderr.count("do not divide") == 1, "one line for all"


def test_values_that_overflow_name_their_layer(llmq, ids, tmp_path):
    """Layer 0 adds more than f32 holds to the hidden states; layer 1 reads them."""
    model = model_with(tmp_path / "model", each(DOWN, lambda x: math.copysign(1e37, x)))
    for method in CALIBRATED:
        line = refused(llmq, tmp_path, "quantize", model, "-o", tmp_path / "q", *options(method, ids))
        assert "layer 1: q: expected finite inputs on the calibration text, found NaN or Inf in input 0" in line
    llmq("quantize", model, "-o", tmp_path / "q", "-m", "rtn")


def test_neither_result_nor_report_replaces_a_file_of_the_source(llmq, tmp_path):
    src, packed = tmp_path / "src", tmp_path / "src.llmq"
    copy(TINY, src)
    llmq("convert", src, "-o", packed, "--to", "llmq")
    (tmp_path / "link").symlink_to(src / "model.safetensors")
    before = {p: p.read_bytes() for p in [packed, *src.iterdir()]}
    args = ["-m", "rtn", "-o"]
    for line in [(src, *args, src / "model.safetensors"), (src, *args, src / "config.json"),
                 (src / "model.safetensors", *args, tmp_path / "link"), (packed, *args, packed),
                 (src, "--rotate", *args, src / "model.safetensors"),
                 (src, *args, tmp_path / "q", "--report", src / "config.json")]:
        last = refused(llmq, tmp_path, "quantize", *line, code=2)
        assert "expected another place than the source" in last, line
    assert all(p.read_bytes() == data for p, data in before.items())
    llmq("quantize", src, *args, src / "q.llmq")  # beside them it may lie


@pytest.mark.parametrize("method", CALIBRATED)
def test_one_window_is_enough_to_go_on(llmq, ids, tmp_path, method):
    """8 tokens for 256 inputs: H has rank 8."""
    args = options(method, ids) + ["--calib-samples", "1", "--calib-len", "8"]
    p = llmq("quantize", TINY, "-o", tmp_path / "q", *args, "--json")
    assert "8 tokens are few for layers of 256 inputs" in p.stderr
    assert all(math.isfinite(t["rmse"]) for t in json.loads(p.stdout)["tensors"])
    llmq("logits", tmp_path / "q", "--ids", "1,2,3", "-o", tmp_path / "logits")


LONG = " ".join(["7"] * 40)
DATA = [
    ("no tokenizer", "c.txt", b"Hello", "c.txt: a text needs tokenizer.json"),
    ("no tokenizer for lines", "c.jsonl", b'{"text": "Hello"}\n', "line 1: a text needs tokenizer.json"),
    ("no tokenizer for talk", "c.jsonl", b'[1]\n{"messages": []}\n', "line 2: a conversation needs tokenizer.json"),
    ("empty", "c.ids", b"", "expected at least 32 tokens for one window, found 0"),
    ("too short", "c.ids", b"1 2 3", "expected at least 32 tokens for one window, found 3"),
    ("a negative id", "c.ids", b"1 -2", "line 1: expected token ids separated by spaces, commas or lines, found byte 0x2d"),
    ("no whole number", "c.ids", b"1\n2.5", "line 2: expected token ids"),
    ("binary", "c.ids", b"\xff\xfe\0", "found byte 0xff"),
    ("beyond 31 bits", "c.ids", b"1 99999999999999999999", "an id above 2^31"),
    ("outside the vocabulary", "c.ids", LONG.encode() + b" 320", "token 40 has id 320, expected below the vocabulary's 320"),
    ("outside it in lines", "c.jsonl", b"[" + LONG.replace(" ", ",").encode() + b",4000]", "token 40 has id 4000"),
    ("a negative id in lines", "c.jsonl", b'{"ids": [1, -2]}', "line 1: expected a token id, found -2"),
    ("a fraction in lines", "c.jsonl", b'{"ids": [1, 2.5]}', "line 1: expected a token id, found 2.5"),
    ("no JSON", "c.jsonl", b"[1]\nhello", "line 2: JSON"),
    ("no known key", "c.jsonl", b'{"prompt": "a"}', 'expected {"text": ...}'),
    ("messages that are none", "c.jsonl", b'{"messages": "a"}', "messages: expected a list"),
]


@pytest.mark.parametrize("why,name,data,text", DATA, ids=[x[0] for x in DATA])
def test_calibration_data_that_cannot_be_used_is_refused(llmq, tmp_path, why, name, data, text):
    file = tmp_path / name
    file.write_bytes(data)
    line = refused(llmq, tmp_path, "quantize", TINY, "-o", tmp_path / "q", "-m", "gptq", "--calib", file,
                   "--calib-len", "32")
    assert text in line and line.count(name) == 1


def test_text_that_is_no_text_is_refused(llmq, draft, tmp_path):
    for data, text in ((b"ab\xff\xfecd", "expected UTF-8 text, found byte 0xff at 2"),
                       (b"abc\0de", "expected UTF-8 text, found byte 0x00 at 3"),
                       (b"Too short.", "expected at least 511 tokens for one window, found ")):
        (tmp_path / "t.txt").write_bytes(data)
        line = refused(llmq, tmp_path, "quantize", draft, "-o", tmp_path / "q", "-m", "gptq", "--calib",
                       tmp_path / "t.txt")
        assert text in line and line.count("t.txt") == 1


OPTIONS = [
    (["--bits", "5"], "--bits: expected 2, 3, 4 or 8, found 5"),
    (["--bits", "1"], "--bits"),
    (["--bits", "4.5"], "--bits"),
    (["--group-size", "0"], "--group-size: expected -1 (the whole row) or 1 or more, found 0"),
    (["--group-size", "-2"], "--group-size"),
    (["--damp", "-1"], "--damp"),
    (["--damp", "0"], "--damp"),
    (["--damp", "nan"], "--damp"),
    (["--damp", "1e300"], "--damp"),
    (["--seed", "-1"], "--seed"),
    (["--seed", "1e30"], "--seed"),
    (["--calib-samples", "0"], "--calib-samples"),
    (["--calib-samples", "99999999999"], "--calib-samples"),
    (["--calib-len", "0"], "--calib-len"),
    (["--calib-len", "1"], "--calib-len"),
    (["--calib-len", "1025"], "--calib-len: expected at most the model's 1024, found 1025"),
    (["--memory-limit", "0"], "--memory-limit: expected 1..1e+15, found '0'"),
    (["--memory-limit", "0.5"], "--memory-limit: expected a size such as 4096, 512M or 1.5G"),
    (["--memory-limit", "1Q"], "--memory-limit: expected a size such as 4096, 512M or 1.5G"),
    (["--calib", ""], "--calib '': an empty name"),
    (["--calib", "a,,b"], "an empty name"),
    (["--calib", "a,"], "an empty name"),
    (["--calib", "builtin:0"], "a weight that is not within 1e-6..1e6"),
    (["--calib", "builtin:nan"], "a weight that is not within 1e-6..1e6"),
    (["--calib", "builtin:x"], "a ':' without a number after it"),
    (["--calib", ",".join(["builtin"] * 65)], "expected at most 64 files"),
    (["--lm-head", "u5-g32"], "--lm-head: scheme 'u5-g32': expected"),
    (["--embed", "u4-g0"], "--embed: scheme 'u4-g0': expected"),
]


@pytest.mark.parametrize("args,text", OPTIONS, ids=[" ".join(x[0])[:40] for x in OPTIONS])
def test_options_out_of_range_are_refused(llmq, draft, tmp_path, args, text):
    p = llmq("quantize", draft, "-o", tmp_path / "q", "-m", "gptq", *args, code=2)
    assert [x for x in p.stderr.splitlines() if x.startswith("llmq: quantize: ") and text in x], p.stderr
    assert list(tmp_path.iterdir()) == []


def logits(llmq, model, out):
    llmq("logits", model, "--ids", "1,5,9,30,77,2,60,41", "-o", out)
    raw = out.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    start, end = json.loads(raw[8:8 + n])["logits"]["data_offsets"]
    return memoryview(raw[8 + n + start:8 + n + end]).cast("f").tolist()


@pytest.mark.parametrize("folder", ["llama-128", "qwen2", "gemma", "gpt2", "opt-350m-postnorm"])
def test_embedding_and_head_take_their_own_schemes(llmq, tmp_path, folder):
    """Tied or not: what is served is what is stored, and a head that leaves the embedding says so."""
    model, q = TINY.parent / folder, tmp_path / "q.llmq"
    tied = llmq.json("inspect", model)["config"]["tied"]
    dims = {t["name"]: t["shape"] for t in llmq.json("inspect", model)["tensors"]}
    for args in (["--embed", "u4-g32"], ["--lm-head", "u8-g32"], ["--embed", "u4-g32-asym", "--lm-head", "u4-g32-asym"],
                 ["--embed", "i8-row", "--lm-head", "nf4"], ["--embed", "f32"]):
        p = llmq("quantize", model, "-o", q, "-m", "rtn", "--skip", "layers|\\.h\\.", *args)
        done = llmq.json("inspect", q)
        got = {t["name"]: t["scheme"] for t in done["tensors"]}
        want = {**({} if tied else {"--embed": "u8-g32", "--lm-head": "u8-g32"}), **dict(zip(args[::2], args[1::2]))}
        if tied and "--embed" not in want:
            want["--embed"] = "u8-g32"
        both = tied and want.get("--embed") == want.get("--lm-head", want.get("--embed"))
        split = tied and "--lm-head" in want and not both
        assert done["config"]["tied"] == (tied and not split), args
        assert ("splits the head" in p.stderr) == split
        assert ("the output head takes the embedding's scheme" in p.stderr) == (tied and "--lm-head" not in want)
        asked = sorted(s for s in got.values() if s in want.values() and s != "f32" or s == "nf4")
        assert len(asked) == (len(want) if not both else 1) - (want.get("--embed") == "f32"), (args, got)
        assert not [n for n in got if n not in dims] or split
        llmq("convert", q, "-o", tmp_path / "f32", "--to", "safetensors", "--dtype", "f32")
        a, b = logits(llmq, q, tmp_path / "a"), logits(llmq, tmp_path / "f32", tmp_path / "b")
        assert max(abs(x - y) for x, y in zip(a, b)) <= 2e-6 * max(map(abs, b)), args
