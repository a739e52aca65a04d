"""Hostile and unlucky input to every command: one sentence, the right exit code, nothing left behind.

What tests of one command refuse already (test_cli, test_quantize, test_inspect_verify) is not repeated."""
import errno
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import time

import pytest

from conftest import ROOT, TEXT
from harness import LIMIT, SANITIZED
from shim import stopped

TINY = ROOT / "tests/golden/arch/llama-128"
SHARDED = ROOT / "tests/golden/sharded/granite4-dense"
DRAFT = ROOT / "models/novels-1m"
INDEX = "model.safetensors.index.json"
Q_PROJ, UP_PROJ = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.up_proj.weight"


def copy(source, to):
    shutil.copytree(source, to)
    for p in to.iterdir():
        p.chmod(0o644)
    return to


def read_st(path):
    raw = path.read_bytes()
    n = struct.unpack_from("<Q", raw)[0]
    return json.loads(raw[8:8 + n]), raw[8 + n:]


def st_file(header, data, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def refused(llmq, folder, *args, code=3, **more):
    """Run it; the last line of stderr is the error, stdout is empty and `folder` is as it was."""
    before = sorted(p.relative_to(folder) for p in folder.rglob("*"))
    p = llmq(*args, code=code, **more)
    lines = p.stderr.strip().splitlines()
    assert lines and lines[-1].startswith(f"llmq: {args[0]}: ") and p.stdout == "", p.stderr
    assert sum(x.startswith("llmq: ") for x in lines) == 1, p.stderr
    assert sorted(p.relative_to(folder) for p in folder.rglob("*")) == before
    return lines[-1]


def every_reader(model, out):
    """Commands that open MODEL, each in its own way."""
    return [["logits", model, "--ids", "1,2", "-o", out], ["quantize", model, "-o", out, "-m", "rtn"],
            ["convert", model, "-o", out, "--to", "safetensors"]]


# ---- safetensors ----

def swap(name, **fields):
    return lambda h, d: st_file({**h, name: {**h[name], **fields}}, d)


def same_bytes_twice(h, d):
    return swap(Q_PROJ, data_offsets=h[UP_PROJ]["data_offsets"], shape=h[UP_PROJ]["shape"])(h, d)


def key_twice(h, d):
    return st_file(json.dumps(h).encode()[:-1] + b"," + json.dumps({Q_PROJ: h[Q_PROJ]}).encode()[1:], d)


HEADERS = [
    ("seven bytes", lambda h, d: b"\x01\0\0\0\0\0\0", "8 bytes of header length"),
    ("a header of 0 bytes", lambda h, d: st_file(h, d, 0), "header"),
    ("a header longer than the file", lambda h, d: st_file(h, b"", 1 << 20), "header"),
    ("a header of 2^64-1 bytes", lambda h, d: st_file(h, d, 2**64 - 1), "header"),
    ("a header cut short", lambda h, d: st_file(json.dumps(h).encode()[:-20], d), "JSON"),
    ("no JSON", lambda h, d: st_file(b"{'a': 1}" + b" " * 8, d), "JSON"),
    ("no UTF-8", lambda h, d: st_file(b'{"\xff":1}' + b" " * 7, d), "UTF-8"),
    ("brackets without end", lambda h, d: st_file(b'{"a":' + b"[" * 100000, d), "levels"),
    ("an array", lambda h, d: st_file(b"[1,2,3] ", d), "expected"),
    ("a name twice", key_twice, "twice"),
    ("data cut short", lambda h, d: st_file(h, d[:-1]), "data_offsets"),
    ("data too long", lambda h, d: st_file(h, d + b"\0"), "bytes"),
    ("tensors that overlap", same_bytes_twice, "data_offsets"),
    ("a hole", lambda h, d: st_file({k: v for k, v in h.items() if k != UP_PROJ}, d), "data_offsets"),
    ("offsets backwards", swap(Q_PROJ, data_offsets=[64, 0]), Q_PROJ),
    ("an offset of 2^63", swap(Q_PROJ, data_offsets=[0, 2**63]), Q_PROJ),
    ("a shape that overflows", swap(Q_PROJ, shape=[2**40, 2**40]), Q_PROJ),
    ("a negative shape", swap(Q_PROJ, shape=[-128, -128]), Q_PROJ),
    ("another shape", swap(Q_PROJ, shape=[64, 256]), "expected shape [128,128], found [64,256]"),
    ("an unknown dtype", swap(Q_PROJ, dtype="Q4"), "Q4"),
    ("integers for weights", swap(Q_PROJ, dtype="I16"), "expected a float type, found i16"),
    ("a dtype of another size", swap(Q_PROJ, dtype="F32"), Q_PROJ),
]


@pytest.mark.parametrize("why,make,says", HEADERS, ids=[x[0] for x in HEADERS])
def test_a_broken_safetensors_file_is_refused(llmq, tmp_path, why, make, says):
    model = copy(TINY, tmp_path / "model")
    model.joinpath("model.safetensors").write_bytes(make(*read_st(TINY / "model.safetensors")))
    for command in every_reader(model, tmp_path / "out"):
        line = refused(llmq, tmp_path, *command)
        assert says in line and str(model) in line, line


def test_a_missing_tensor_is_named(llmq, tmp_path):
    model = copy(TINY, tmp_path / "model")
    h, d = read_st(TINY / "model.safetensors")
    h["other"] = h.pop(Q_PROJ)
    model.joinpath("model.safetensors").write_bytes(st_file(h, d))
    for command in every_reader(model, tmp_path / "out")[:2]:
        assert Q_PROJ in refused(llmq, tmp_path, *command)


def test_broken_shards_are_refused(llmq, tmp_path):
    names = json.loads((SHARDED / INDEX).read_text())["weight_map"]
    first, shard = next(iter(names.items()))
    other = next(x for x in names.values() if x != shard)
    for why, weights, says in [
        ("a shard missing", None, shard),
        ("a shard elsewhere", {**names, first: "../x.safetensors"}, "../x.safetensors"),
        ("no file at all", {**names, first: "none.safetensors"}, "none.safetensors"),
        ("another shard", {**names, first: other}, first),
        ("a stranger", {**names, "stranger": shard}, "stranger"),
        ("one forgotten", {k: v for k, v in names.items() if k != first}, first),
        ("no names", {}, "weight_map"),
        ("an array", [first], "weight_map"),
        ("a number", {**names, first: 7}, first),
    ]:
        model = copy(SHARDED, tmp_path / "model")
        if weights is None:
            (model / shard).unlink()
        else:
            (model / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weights}))
        for command in every_reader(model, tmp_path / "out")[:2]:
            line = refused(llmq, tmp_path, *command)
            assert says in line, f"{why}: {line}"
        shutil.rmtree(model)


# ---- config.json and what lies beside it ----

def test_every_number_of_a_config_is_checked(llmq, tmp_path):
    """Each field replaced by each of these: run or refused in a sentence, never a crash."""
    model = copy(TINY, tmp_path / "model")
    config = json.loads((TINY / "config.json").read_text())
    needed = {"hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers",
              "vocab_size"}
    for key in config:
        for value in (-1, 0, 1e30, "x", None, [], True):
            (model / "config.json").write_text(json.dumps({**config, key: value}))
            p = llmq("logits", model, "--ids", "1,2", "-o", tmp_path / "out", code=None)
            assert p.returncode in (0, 3), f"{key}: {value}: exit {p.returncode}: {p.stderr}"
            assert p.returncode == 3 or key not in needed, f"{key}: {value} was taken"
            if p.returncode:
                assert p.stderr.startswith("llmq: logits: ") and str(model) in p.stderr
                assert not (tmp_path / "out").exists()
            else:
                (tmp_path / "out").unlink()


@pytest.mark.parametrize("kinds", [[], ["mamba"] * 70000], ids=["none", "too many"])
def test_a_list_of_layers_has_some(llmq, tmp_path, kinds):
    shutil.copytree(ROOT / "tests/golden/arch/nemotron-h", tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text()) | {"layers_block_type": kinds}
    config.pop("hybrid_override_pattern", None)
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    p = llmq("plan", tmp_path / "m", code=None)
    assert p.returncode in (2, 3) and f"layers_block_type: expected 1 to 65536 kinds of layers, found {len(kinds)}" in p.stderr


@pytest.mark.parametrize("n", [0, None])
def test_shared_experts_that_the_config_denies_are_named(llmq, tmp_path, n):
    shutil.copytree(ROOT / "tests/golden/arch/deepseek-v3", tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text()) | {"n_shared_experts": n}
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    p = llmq("logits", tmp_path / "m", "--ids", "1,2,3", "-o", tmp_path / "l", code=3)
    assert "tensor 'model.layers.1.mlp.shared_experts.down_proj.weight': expected none, by config.json, found one" in p.stderr


DENIED = [  # a checkpoint, what its config says, what tensor it is said of; None: taken
    ("mamba2", {"use_conv_bias": False}, "layers.0.mixer.conv1d.bias': expected none"),
    ("mamba2", {"use_bias": True}, "layers.0.mixer.in_proj.bias' is missing"),
    ("mamba", {"use_bias": True}, "layers.0.mixer.in_proj.bias' is missing"),
    ("falcon-mamba", {"use_conv_bias": False}, "layers.0.mixer.conv1d.bias': expected none"),
    ("jamba", {"mamba_conv_bias": False}, ".mamba.conv1d.bias': expected none"),
    ("bamba", {"mamba_proj_bias": True}, ".mamba.in_proj.bias' is missing"),
    ("granite-h", {"mamba_conv_bias": False}, ".mamba.conv1d.bias': expected none"),
    ("falcon-h1", {"mamba_conv_bias": False}, ".mamba.conv1d.bias': expected none"),
    ("nemotron-h", {"use_conv_bias": False}, ".mixer.conv1d.bias': expected none"),
    ("nemotron-h", {"use_conv_bias": 1}, "use_conv_bias: expected true or false"),
    ("lfm2", {"conv_bias": False}, ".conv.conv.bias': expected none"),
    ("lfm2-moe", {"use_expert_bias": False}, ".feed_forward.expert_bias': expected none"),
    ("phimoe", {"lm_head_bias": False}, "lm_head.bias': expected none"),
    ("seed-oss", {"attention_out_bias": True}, ".self_attn.o_proj.bias' is missing"),
    ("seed-oss", {"attention_bias": False}, ".self_attn.k_proj.bias': expected none"),
    ("mpt-qk-norm", {"attn_config": {"qk_ln": False}}, ".attn.k_ln.weight': expected none"),
    ("mpt-alibi", {"attn_config": 3}, "attn_config: expected an object, found 3"),
    ("mpt-alibi", {"no_bias": 1}, "no_bias: expected true or false"),
    ("glm4-moe", {"use_qk_norm": False}, ".self_attn.k_norm.weight': expected none"),
    ("stablelm-qk-norms", {"qk_layernorm": False}, ".self_attn.k_layernorm.norms.0.weight': expected none"),
    ("qwen2-moe-shared", {"decoder_sparse_step": 9}, ".mlp.experts.0.down_proj.weight': expected none"),
    ("nemotron-h", {"hybrid_override_pattern": "M*-M"}, "hybrid_override_pattern: expected what layers_block_type says"),
    ("lfm2", {"full_attn_idxs": [0]}, "full_attn_idxs: expected what layer_types says, found another kind for layer 0"),
    ("bamba", {"layer_types": ["mamba", "mamba"]}, "attn_layer_indices: expected what layer_types says, found another kind for layer 1"),
]


@pytest.mark.parametrize("folder,says,error", DENIED, ids=[f"{d[0]} {next(iter(d[1]))}" for d in DENIED])
def test_a_config_that_denies_its_tensors_is_refused(llmq, tmp_path, folder, says, error):
    shutil.copytree(ROOT / "tests/golden/arch" / folder, tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    for key, value in says.items():
        config[key] = config.get(key, {}) | value if isinstance(value, dict) else value
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    for command in every_reader(tmp_path / "m", tmp_path / "out")[:2]:
        assert error in refused(llmq, tmp_path, *command, code=None), command


def test_a_bias_of_zeros_is_no_bias(llmq, tmp_path):
    """Packers of GPTQ write one for every linear."""
    header, data = read_st(TINY / "model.safetensors")
    config = json.loads((TINY / "config.json").read_text())
    n = header["model.layers.0.self_attn.q_proj.weight"]["shape"][0]
    for value, code in ((0, 0), (1, 3)):
        folder = copy(TINY, tmp_path / f"m{value}")
        header["model.layers.0.self_attn.q_proj.bias"] = {"dtype": "BF16", "shape": [n],
                                                          "data_offsets": [len(data), len(data) + 2 * n]}
        (folder / "model.safetensors").write_bytes(st_file(header, data + bytes([value, 0x3f * value]) * n))
        (folder / "config.json").write_text(json.dumps(config | {"attention_bias": False}))
        p = llmq("logits", folder, "--ids", "1,2,3", "-o", tmp_path / "l", code=code)
        assert not code or "tensor 'model.layers.0.self_attn.q_proj.bias': expected none, by config.json" in p.stderr


def packed(tensors, data):
    """Each with bytes of its own."""
    header, out = {}, b""
    for n, t in tensors.items():
        if n == "__metadata__":
            continue
        a, e = t["data_offsets"]
        header[n] = {**t, "data_offsets": [len(out), len(out) + e - a]}
        out += data[a:e]
    return header, out


def logits(llmq, folder, out):
    llmq("logits", folder, "--ids", "1,2,3,40,50", "-o", out, "--threads", "1")
    return out.read_bytes()


@pytest.mark.parametrize("folder,renamed", [
    ("kimi-linear", [(r"layers\.0\.mlp\.", "layers.0.block_sparse_moe.")]),
    ("olmo-hybrid", [(r"layers\.1\.post_attention_layernorm\.", "layers.1.feedforward_layer_norm.")]),
    ("deepseek-v4", [(r"^(layers|norm)\.", r"model.\1."), (r"^embed\.", "model.embed_tokens."),
                     (r"^hc_head_", "model.hc_head.hc_"), (r"\.attn\.kv_norm\.", ".attn.norm.")]),
    ("hy-v4", [(r"\.mlp\.(shared_experts\.)?gate_proj\.", r".mlp.\1linear_gate."),
               (r"(model|\d)\.hc_(head|attn|mlp)", r"\1.hc_pre.hc_\2")])])
def test_names_that_transformers_saves_are_the_models(llmq, tmp_path, folder, renamed):
    m = copy(ROOT / "tests/golden/arch" / folder, tmp_path / "m")
    header, data = read_st(m / "model.safetensors")
    names = header
    for own, saved in renamed:
        before = names.keys()
        names = {re.sub(own, saved, n): t for n, t in names.items()}
        assert names.keys() != before, own
    (m / "model.safetensors").write_bytes(st_file(names, data))
    assert logits(llmq, m, tmp_path / "a") == logits(llmq, ROOT / "tests/golden/arch" / folder, tmp_path / "b")


def test_each_transformer_beside_the_residual_may_have_its_own_tensors(llmq, tmp_path):
    """transformers 5 ties them only where it ties the head. Here layer 4 stores those of layer 1 again, and of two blocks the
    config tells one; an own matrix of layer 4 is then read."""
    source = ROOT / "tests/golden/arch/zamba2-blocks"
    header, data = read_st(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    again = {n.replace("layers.1.", "layers.4."): t for n, t in header.items() if "layers.1.shared_transformer." in n}
    m = copy(source, tmp_path / "m")
    (m / "config.json").write_text(json.dumps(config | {"num_mem_blocks": 1}))
    tensors, data = packed(header | again, data)
    (m / "model.safetensors").write_bytes(st_file(tensors, data))
    want = logits(llmq, source, tmp_path / "a")
    assert logits(llmq, m, tmp_path / "b") == want
    llmq("convert", m, "-o", tmp_path / "m.llmq", "--to", "llmq")
    assert logits(llmq, tmp_path / "m.llmq", tmp_path / "c") == want
    q = [tensors[f"model.layers.{i}.shared_transformer.self_attn.{x}_proj.weight"]["data_offsets"] for i, x in ((4, "q"), (2, "q"))]
    data = data[:q[0][0]] + data[slice(*q[1])] + data[q[0][1]:]
    (m / "model.safetensors").write_bytes(st_file(tensors, data))
    assert logits(llmq, m, tmp_path / "d") != want


@pytest.mark.parametrize("folder", ["phi2", "gptj", "phimoe", "ettin"])
@pytest.mark.parametrize("stored", [False, True], ids=["none", "stored"])
def test_a_tied_head_keeps_its_bias(llmq, tmp_path, folder, stored):
    """The embedding's matrix, stored once or twice, and a bias beside it."""
    source = ROOT / "tests/golden/arch" / folder
    header, data = read_st(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    name = "decoder.weight" if folder == "ettin" else "lm_head.weight"
    head = {n: t for n, t in header.items() if n != name}
    both = head | {name: next(t for n, t in header.items() if re.search(r"(wte|embed_tokens|tok_embeddings)\.weight$", n))}
    got = []
    for name, tied, tensors in (("m", True, both if stored else head), ("n", False, both)):
        m = copy(source, tmp_path / name)
        (m / "model.safetensors").write_bytes(st_file(*packed(tensors, data)))
        (m / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": tied}))
        got.append(logits(llmq, m, tmp_path / f"{name}.st"))
    assert got[0] == got[1]


def test_stacks_of_square_matrices_lie_as_those_beside_them(llmq, tmp_path):
    """transformers 5 saves [experts, outputs, inputs], published files have them turned: gate and up are 32 x 32 here."""
    source, E, H, F, got = ROOT / "tests/golden/arch/qwen3-vl-moe", 4, 32, 16, []
    header, data = read_st(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    config["text_config"]["moe_intermediate_size"] = F
    for turned in (False, True):
        m, rng = copy(source, tmp_path / f"m{turned}"), random.Random(1)
        kept, out = packed({n: t for n, t in header.items() if ".mlp.experts." not in n}, data)
        for layer in range(2):
            for part, rows, cols in (("gate_up", 2 * F, H), ("down", H, F)):
                x = [[[rng.gauss(0, 0.2) for _ in range(cols)] for _ in range(rows)] for _ in range(E)]
                x = [list(zip(*e)) for e in x] if turned else x
                b = struct.pack(f"<{E * rows * cols}f", *(v for e in x for r in e for v in r))
                kept[f"model.language_model.layers.{layer}.mlp.experts.{part}_proj"] = {
                    "dtype": "F32", "shape": [E, len(x[0]), len(x[0][0])], "data_offsets": [len(out), len(out) + len(b)]}
                out += b
        (m / "model.safetensors").write_bytes(st_file(kept, out))
        (m / "config.json").write_text(json.dumps(config))
        got.append(logits(llmq, m, tmp_path / "l"))
    assert got[0] == got[1]


@pytest.mark.parametrize("folder", ["qwen3-next", "qwen3.5", "qwen3.5-moe", "olmo-hybrid", "granite-h", "granite-h-moe", "kimi-linear", "ling3"])
def test_the_activation_of_a_mixer_is_silu(llmq, tmp_path, folder):
    m = copy(ROOT / "tests/golden/arch" / folder, tmp_path / "m")
    config = json.loads((m / "config.json").read_text()) | {"hidden_act": "gelu"}
    (m / "config.json").write_text(json.dumps(config))
    for command in every_reader(m, tmp_path / "out")[:2]:
        assert 'hidden_act: expected silu, found "gelu"' in refused(llmq, tmp_path, *command, code=None), command


@pytest.mark.parametrize("folder,layers", [("bitnet", 1), ("gpt2", 1), ("olmo-hybrid", 1), ("qwen3-vl", 1)])
def test_layers_that_the_config_has_not_are_named(llmq, tmp_path, folder, layers):
    shutil.copytree(ROOT / "tests/golden/arch" / folder, tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    text = config.get("text_config", config)
    text["n_layer" if "n_layer" in text else "num_hidden_layers"] = layers
    text.pop("layer_types", None)
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    for command in every_reader(tmp_path / "m", tmp_path / "out")[:2]:
        assert f"layers or more that are stored, found {layers} (tensor '" in refused(llmq, tmp_path, *command)


@pytest.mark.parametrize("folder,n", [("deepseek-v3", 0), ("glm4-moe", 2), ("mimo", 0), ("mimo", 3)])
def test_mtp_layers_that_the_config_denies_are_named(llmq, tmp_path, folder, n):
    shutil.copytree(ROOT / "tests/golden/mtp" / folder, tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text()) | {"num_nextn_predict_layers": n}
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    p = llmq("logits", tmp_path / "m", "--ids", "1,2,3", "-o", tmp_path / "l", code=3)
    assert f"num_nextn_predict_layers: expected the 1 that are stored, found {n}" in p.stderr


def test_an_mtp_layer_that_is_missing_is_said(llmq, tmp_path):
    """Many quantized copies have left it out."""
    shutil.copytree(ROOT / "tests/golden/arch/deepseek-v3", tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    p = llmq("logits", tmp_path / "m", "--ids", "1,2,3", "-o", tmp_path / "l")
    assert "num_nextn_predict_layers is 1, and no such layer is stored" in p.stderr


def test_a_draft_with_nan_is_refused(llmq, tmp_path):
    draft = copy(ROOT / "tests/golden/eagle3", tmp_path / "draft")
    header, data = read_st(draft / "model.safetensors")
    name = next(k for k in header if "up_proj" in k)
    at, _ = header[name]["data_offsets"]
    data = bytearray(data)
    data[at + 2:at + 4] = struct.pack("<H", 0x7F80)  # a bf16 infinity
    (draft / "model.safetensors").write_bytes(st_file(header, bytes(data)))
    p = llmq("serve", ROOT / "tests/golden/mtp/mimo", "--speculative-model", draft, "--port", "0", code=3)
    assert f"tensor '{name}': expected finite weights, found infinity at element 1" in p.stderr and str(draft) in p.stderr


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json"])
def test_broken_side_files_are_refused_by_name(llmq, tmp_path, name):
    for i, data in enumerate([b"", b"{", b"\xff\xfe", b"[" * 10000, b'{"eos_token_id":{},"model":1}']):
        model = copy(DRAFT, tmp_path / f"m{i}")
        (model / name).write_bytes(data)
        assert name in refused(llmq, tmp_path, "run", model, "-p", "Hello", "-n", "2")


def test_ids_beyond_the_vocabulary_in_a_config_do_no_harm(llmq, tmp_path):
    model = copy(DRAFT, tmp_path / "model")
    config = json.loads((DRAFT / "config.json").read_text())
    config.update(bos_token_id=2**31 - 1, eos_token_id=[99999, 2**31 - 1])
    (model / "config.json").write_text(json.dumps(config))
    llmq("run", model, "-p", "Hello", "-n", "3", "--ignore-eos")
    score = ["eval", model, "--text", TEXT, "--windows", "1", "--ctx", "8"]
    assert llmq.json(*score)["bos"], "the tokenizer has one of its own"
    path = model / "tokenizer.json"
    tok = json.loads(path.read_text())
    path.chmod(0o644)
    path.write_text(json.dumps({**tok, "post_processor": None}))
    assert not llmq.json(*score)["bos"]
    assert "BOS: expected an id below" in refused(llmq, tmp_path, *score, "--bos")


# ---- .llmq ----

def test_a_changed_byte_anywhere_is_found(llmq, packed, tmp_path):
    whole = packed.read_bytes()
    header = struct.unpack_from("<Q", whole, 16)[0]
    pick = random.Random(3)
    places = [pick.randrange(a, b) for a, b, n in
              [(0, 64, 8), (64, 4096, 4), (4096, header, 16), (header, len(whole), 8)] for _ in range(n)]
    path = tmp_path / "x.llmq"
    for at in places:
        data = bytearray(whole)
        data[at] ^= 1 << pick.randrange(8)
        path.write_bytes(data)
        p = llmq("verify", path, code=None)
        assert p.returncode in (3, 4) and "llmq: verify: " in p.stderr, f"byte {at}: {p.stderr}"
        if at < 64 or at >= header:  # what every command checks at its start
            refused(llmq, tmp_path, "run", path, "-p", "Hello", "-n", "1")
    for size in (0, 63, 4095, header, len(whole) - 1):
        path.write_bytes(whole[:size])
        refused(llmq, tmp_path, "run", path, "-p", "Hello", "-n", "1")


# ---- disks, folders, pipes, streams ----

def small_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))


@pytest.mark.parametrize("target", [["--to", "llmq"], ["--to", "safetensors"],
                                    ["--to", "safetensors", "--shard-size", "100K"]])
def test_a_full_disk_ends_convert_with_nothing_left(llmq, tmp_path, target):
    line = refused(llmq, tmp_path, "convert", DRAFT, "-o", tmp_path / "out", *target, code=1,
                   preexec_fn=small_files)
    assert os.strerror(errno.EFBIG) in line


@pytest.mark.skipif(SANITIZED, reason="a sanitizer takes more addresses than that")
def test_few_addresses_end_in_an_error(llmq, tmp_path):
    """OpenBLAS's threads ask for their memory until they have it, and an end of the process waits for them."""
    def few_addresses(mib):
        return lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20))

    none = ("convert", tmp_path / "none", "-o", tmp_path / "out", "--to", "llmq")
    llmq(*none, code=3, preexec_fn=few_addresses(200))
    for mib in range(70, 130):  # from what its libraries do not fit into: each ends
        llmq(*none, code=None, preexec_fn=few_addresses(mib))


def test_a_full_disk_keeps_the_old_logits(llmq, tmp_path):
    out = tmp_path / "out"
    llmq("logits", DRAFT, "--ids", "1", "-o", out)
    old = out.read_bytes()
    refused(llmq, tmp_path, "logits", DRAFT, "--ids", ",".join(["1"] * 64), "-o", out, code=1,
            preexec_fn=small_files)
    assert out.read_bytes() == old


def test_a_place_that_cannot_be_written_is_refused_before_the_work(llmq, tmp_path):
    for out, code in [("", 2), (tmp_path, 2), (f"{tmp_path}/new/", 2), (f"{DRAFT}/config.json/out", 2),
                      (tmp_path / ("x" * 300), 2)]:
        words = "at most 255 bytes, found 300: xxx" if "xxx" in str(out) else str(out)
        for method in ("rtn", "gptq"):
            line = refused(llmq, tmp_path, "quantize", DRAFT, "-o", out, "--method", method, code=code)
            assert words in line


def test_a_pipe_is_refused_not_waited_for(llmq, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for args in (["inspect", pipe], ["run", pipe, "-p", "a"], ["eval", DRAFT, "--text", pipe],
                 ["quantize", DRAFT, "-o", tmp_path / "q", "--method", "gptq", "--calib", pipe]):
        assert "expected a regular file" in refused(llmq, tmp_path, *args)


def test_a_closed_stdout_is_not_mistaken_for_a_file(llmq, tmp_path):
    out, want = tmp_path / "q.llmq", tmp_path / "want.llmq"
    llmq("quantize", DRAFT, "-o", want, "--method", "rtn")
    command = f"'{llmq.path}' quantize '{DRAFT}' -o '{out}' --method rtn <&- >&-"
    p = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True)
    assert p.returncode == 1 and p.stderr.startswith("llmq: quantize: stdout: cannot write")
    assert out.read_bytes() == want.read_bytes()


def test_odd_names_are_only_names(llmq, tmp_path):
    model = copy(DRAFT, tmp_path / 'a \n"ü☃%s')
    for out, to in ((" o %n.llmq", "llmq"), ("ö/", "safetensors")):
        llmq("convert", model, "-o", tmp_path / out, "--to", to)
    assert llmq.json("inspect", model)["format"] == "safetensors"
    assert llmq.json("verify", tmp_path / " o %n.llmq")["ok"]


def test_a_model_cut_short_while_it_is_read_is_an_error(llmq, tmp_path):
    source = copy(DRAFT, tmp_path / "model")
    with stopped(llmq, "part-00000.llmq", "quantize", source, "-o", tmp_path / "q.llmq", "--method", "gptq",
                 stderr=-1) as p:
        os.truncate(source / "model.safetensors", 4096)
        p.send_signal(signal.SIGCONT)
        text = p.communicate()[1]
    assert p.returncode == 1 and ("cut short" in text or "changed while it was read" in text)
    assert not (tmp_path / "q.llmq").exists() and not list(tmp_path.rglob("*tmp-*"))


# ---- calibration, groups, ports, interruptions ----

def test_text_that_is_no_utf8_is_calibrated_and_scored_all_the_same(llmq, tmp_path):
    """Bytes are bytes: real corpora hold broken ones. Text that holds nothing is refused."""
    text, empty = tmp_path / "broken.txt", tmp_path / "empty.txt"
    text.write_bytes(bytes(random.Random(1).randrange(256) for _ in range(3000)))
    empty.write_bytes(b"")
    llmq("eval", DRAFT, "--text", text, "--ctx", "32", "--windows", "2")
    quick = ["--calib-samples", "2", "--calib-len", "16"]
    llmq("quantize", DRAFT, "-o", tmp_path / "q", "--method", "gptq", "--calib", text, *quick)
    for name in (empty, tmp_path / "none", tmp_path):
        line = refused(llmq, tmp_path, "quantize", DRAFT, "-o", tmp_path / "r", "--method", "gptq",
                       "--calib", name, *quick)
        assert str(name) in line


@pytest.mark.parametrize("args", [["-g", "100"], ["--override", "q_proj=u4-g100"],
                                  ["--lm-head", "u8-g100-asym"], ["--embed", "u8-g100"]])
def test_a_group_that_does_not_divide_is_fitted_aloud(llmq, tmp_path, args):
    for method, quick in (("rtn", []), ("gptq", ["--calib-samples", "2", "--calib-len", "16"])):
        p = llmq("quantize", DRAFT, "-o", tmp_path / "q", "--method", method, *args, *quick)
        assert "groups of 100 do not divide 128 inputs (these do: 32, 64, 128); taking 64" in p.stderr, p.stderr


def test_a_group_that_nobody_asked_for_is_fitted_aloud(llmq, tmp_path):
    model = copy(TINY, tmp_path / "model")
    h, _ = read_st(TINY / "model.safetensors")
    config = json.loads((TINY / "config.json").read_text())
    config.update(hidden_size=160, head_dim=40)  # 128 does not divide it
    (model / "config.json").write_text(json.dumps(config))
    at = 0
    for t in (t for k, t in h.items() if k != "__metadata__"):
        t["shape"] = [{128: 160, 64: 80}.get(n, n) for n in t["shape"]]
        t["data_offsets"] = [at, at + 2 * math.prod(t["shape"])]
        at = t["data_offsets"][1]
    (model / "model.safetensors").write_bytes(st_file(h, b"\0\x3c" * (at // 2)))
    p = llmq("quantize", model, "-o", tmp_path / "q", "--method", "rtn")
    assert "groups of 128 do not divide 160 inputs (these do: 40, 80, 160); taking 32, the largest power of two that does" in p.stderr


def test_a_port_in_use_is_an_error(llmq, tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = str(s.getsockname()[1])
        line = refused(llmq, tmp_path, "serve", DRAFT, "--port", port, code=1)
        assert port in line


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_ended_at_any_moment_the_old_output_is_whole(llmq, tmp_path, sig):
    out, old = tmp_path / "out", b"GGUF, an old one"
    for i in range(6):
        out.write_bytes(old)
        p = llmq.start("convert", ROOT / "models/novels-6m", "-o", out, "--to", "llmq", "--layout",
                       "tile16", stderr=-1, stdout=-1)
        time.sleep(0.012 * i)
        p.send_signal(sig)
        text = p.communicate()[1]
        assert p.returncode in (0, 129, 130, 143, -sig), text
        if p.returncode > 0:
            assert text.startswith("llmq: convert: ") and "interrupted" in text
        spare = [x.name for x in tmp_path.iterdir() if x != out]  # a kill may come before a rename
        assert not spare or (p.returncode == -9 and all(x.startswith("out.tmp-") for x in spare))
        assert out.read_bytes() == old or llmq.json("verify", out)["ok"]
    llmq("convert", ROOT / "models/novels-6m", "-o", out, "--to", "llmq")
    assert [x.name for x in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("ignored", [False, True], ids=["closed", "nohup"])
def test_a_closed_terminal_leaves_no_folder_behind(llmq, tmp_path, ignored):
    """SIGHUP ended the process at once, and NAME.tmp stayed. nohup still keeps it running."""
    way, ended = signal.SIG_IGN if ignored else signal.SIG_DFL, 0
    for _ in range(12):
        p = llmq.start("convert", ROOT / "models/novels-6m", "-o", tmp_path / "out", "--to", "safetensors", "--dtype", "f32",
                       stderr=-1, stdout=-1, preexec_fn=lambda: signal.signal(signal.SIGHUP, way))
        until = time.monotonic() + 20
        while p.poll() is None and not any(tmp_path.iterdir()) and time.monotonic() < until:
            time.sleep(0.001)
        p.send_signal(signal.SIGHUP)
        text = p.communicate()[1]
        assert p.returncode in ((0,) if ignored else (0, 129)), text
        ended += p.returncode == 129
        assert [x.name for x in tmp_path.iterdir()] == ([] if p.returncode else ["out"])
    assert ignored or ended


def test_resume_notices_another_tokenizer_or_config(llmq, tmp_path):
    """The weights are the same, so the recipe and the hash of the weights are."""
    source, out = copy(DRAFT, tmp_path / "model"), tmp_path / "q.llmq"
    args = ["quantize", source, "-o", out, "--method", "rtn"]
    llmq(*args)
    assert llmq.json(*args, "--resume")["already_done"]
    (source / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert not llmq.json(*args, "--resume")["already_done"]
    (source / "generation_config.json").unlink()
    assert not llmq.json(*args, "--resume")["already_done"]


def test_any_number_of_threads_will_do(llmq):
    answers = {llmq("run", DRAFT, "-p", "Hello", "-n", "5", "--threads", n).stdout for n in (0, 1, 7, 100)}
    assert len(answers) == 1
    assert "--threads" in llmq("run", DRAFT, "-p", "a", "--threads", "100000", code=2).stderr


# ---- the server: what no client library sends ----

def talk(server, data, wait=1):
    """Send raw bytes, return what comes back until the server closes or still waits for more."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as c:
        got = b""
        try:
            c.sendall(data)
            while part := c.recv(65536):
                got += part
        except (ConnectionError, TimeoutError):
            pass  # it may hang up on nonsense before it is all said, or think that it is half a line
        return got


def test_garbage_on_the_socket_does_no_harm(server):
    post = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for why, data in [
        ("noise", random.Random(1).randbytes(3000)),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("a long line", b"GET /" + b"a" * 200000 + b" HTTP/1.1\r\n\r\n"),
        ("many headers", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 9000 + b"\r\n"),
        ("a negative length", post + b"Content-Length: -5\r\n\r\n"),
        ("a length beyond all", post + b"Content-Length: 99999999999999999999\r\n\r\n"),
        ("two lengths", post + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde"),
        ("a broken chunk", post + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
        ("a huge chunk", post + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nabc"),
        ("half a body", post + b"Content-Length: 50\r\n\r\n{"),
    ]:
        got = talk(server, data)
        assert not got or got.startswith(b"HTTP/1.1 4") or got.startswith(b"HTTP/1.1 5"), f"{why}: {got[:99]}"
        assert server.get("/health").status == 200, why


def test_two_hundred_connections_half_of_them_cut(server):
    body = json.dumps({"prompt": "a", "max_tokens": 8, "ignore_eos": True, "stream": True}).encode()
    request = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
               b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    whole, cut = [], []
    for i in range(100):
        for kept, data in ((whole, request), (cut, request[:i + 90])):
            c = socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT)
            c.sendall(data)
            kept.append(c)
    for c in cut:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not closed
        c.close()
    for c in whole:
        got = b""
        while part := c.recv(65536):
            got += part
        c.close()
        assert got.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in got, got[-300:]
    assert server.get("/health").status == 200


def test_nan_weights_give_no_logits(llmq, tmp_path):
    model = copy(TINY, tmp_path / "nan")
    header, data = read_st(model / "model.safetensors")
    at, _ = header[UP_PROJ]["data_offsets"]
    data = bytearray(data)
    data[at:at + 2] = struct.pack("<H", 0x7FC0)  # a bf16 NaN
    (model / "model.safetensors").write_bytes(st_file(header, bytes(data)))
    assert "not finite" in refused(llmq, tmp_path, "logits", model, "--ids", "1,2", "-o", tmp_path / "o")


STAND_INS = {"a pointer of git-lfs: `git lfs pull`": b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 11\n",
             "a page of HTML": b"<!DOCTYPE html>\n<html><title>Sign in</title></html>\n"}


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "m.gguf", "m.llmq"])
@pytest.mark.parametrize("found", STAND_INS)
def test_what_a_download_left_in_a_files_place_is_called_so(llmq, tmp_path, draft, found, name):
    shutil.copytree(draft, tmp_path / "m")
    (tmp_path / "m" / name).write_bytes(STAND_INS[found])
    model = tmp_path / "m" / name if name.startswith("m.") else tmp_path / "m"
    p = llmq("run", model, "-p", "x", "-n", 1, code=3)
    assert f"expected the file itself, found {found}" in p.stderr and name in p.stderr
