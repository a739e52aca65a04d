"""`quantize --model-free`: matrices of an architecture that llmq has no row for, rounded by names and shapes."""
import filecmp
import json
import signal
import subprocess
import time

import numpy as np
import pytest

from conftest import ROOT
from harness import KEEP
from test_bad_input import read_st
from test_published import write_st

RNG = np.random.default_rng(3)
E, H, I, EXPERTS = "model.layers.0.mlp.experts.", 64, 128, 3


def bf16(*shape):
    return (RNG.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def values(u16):
    return (u16.astype(np.uint32) << 16).view(np.float32)


ONES = {  # name: shape of what is rounded, and what is left
    "backbone.layers.0.mixer.in_proj.weight": (256, H), "backbone.layers.0.mixer.out_proj.weight": (H, 128),
    "model.layers.0.self_attn.q_proj.weight": (128, H), "model.layers.0.self_attn.k_proj.weight": (64, H),
}
LEFT = {
    "model.embed_tokens.weight": ((96, H), "an embedding"), "lm_head.weight": ((96, H), "the output head"),
    "model.layers.0.mlp.gate.weight": ((16, H), "a router or gate"),
    "model.layers.0.mlp.shared_expert_gate.weight": ((16, H), "a router or gate"),
    "backbone.layers.0.mixer.x_proj.weight": ((32, H), "a part of a state-space layer"),
    "backbone.layers.0.mixer.conv1d.weight": ((64, 1, 4), None), "backbone.layers.0.mixer.A_log": ((8,), None),
    "visual.blocks.0.attn.qkv.weight": ((192, H), "a tower or projector"),
    "visual.patch_embed.proj.weight": ((64, 3, 2, 4, 4), None),
    "multi_modal_projector.linear_1.weight": ((H, H), "a tower or projector"),
    "model.layers.0.self_attn.q_norm.weight": ((H, 16), "a norm"),
    "model.layers.0.mlp.odd.weight": ((33, H), "outputs or inputs are no multiple of 16"),
}
CODE = b"print('a model of its own')\n"


@pytest.fixture(scope="module")
def strange(tmp_path_factory):
    """A checkpoint of no architecture: state-space parts, stacked experts, a tower, code, a picture, a folder."""
    d = tmp_path_factory.mktemp("strange") / "m"
    (d / "assets").mkdir(parents=True)
    t = {n: bf16(*s) for n, s in ONES.items()} | {n: bf16(*s) for n, (s, _) in LEFT.items()}
    t[E + "gate_up_proj"], t[E + "down_proj"] = bf16(EXPERTS, 2 * I, H), bf16(EXPERTS, H, I)
    write_st(d / "model.safetensors", {n: ("BF16", list(v.shape), v.tobytes()) for n, v in t.items()})
    (d / "config.json").write_text('{"architectures": ["Strange"], "model_type": "strange", "quantization_config": null, "limits": [0.0, Infinity],\n'
                                   ' "auto_map": {"AutoModel": "modeling_strange.Strange"}}\n')
    (d / "modeling_strange.py").write_bytes(CODE)
    (d / "assets/logo.png").write_bytes(b"\x89PNG")
    (d / "README.md").write_text("card\n")
    return d, t


def unpacked(t, module):
    """Codes times scales of a u4 weight, by numpy."""
    dtype, shape, raw = t[module + ".weight_packed"]
    N, K = np.frombuffer(t[module + ".weight_shape"][2], np.int64)
    codes = np.frombuffer(raw, np.uint8).reshape(N, -1)
    q = np.stack([codes & 15, codes >> 4], -1).reshape(N, -1)[:, :K].astype(np.float32) - 8
    s = np.frombuffer(t[module + ".weight_scale"][2], np.float16).astype(np.float32).reshape(N, -1)
    return q * np.repeat(s, K // s.shape[1], 1), np.repeat(s, K // s.shape[1], 1)


def tensors(path):
    h, d = read_st(path)
    return {n: (v["dtype"], v["shape"], d[slice(*v["data_offsets"])]) for n, v in h.items() if n != "__metadata__"}


def test_what_is_rounded_and_what_is_left(llmq, strange, tmp_path):
    d, source = strange
    out = tmp_path / "o"
    said = json.loads(llmq("quantize", d, "-o", out, "--model-free", "--sym", "--json").stdout)
    left = {t["name"]: t.get("left") for t in said["tensors"] if t["scheme"] == "bf16"}
    assert left == {n: why for n, (_, why) in LEFT.items()}
    got = tensors(out / "model.safetensors")
    for n in LEFT:
        assert got[n][2] == source[n].tobytes(), n
    modules = {n[:-7]: values(source[n]) for n in ONES}
    for e in range(EXPERTS):
        both = values(source[E + "gate_up_proj"][e])
        modules |= {f"{E}{e}.gate_proj": both[:I], f"{E}{e}.up_proj": both[I:],
                    f"{E}{e}.down_proj": values(source[E + "down_proj"][e])}
    assert {n[:-14] for n in got if n.endswith(".weight_packed")} == set(modules)
    for m, want in modules.items():
        q, step = unpacked(got, m)
        ends = np.stack([-8 * step, 7 * step])
        assert (abs(q - want.clip(ends.min(0), ends.max(0))) <= abs(step) * 0.51).all(), m
    text = (out / "config.json").read_text()
    config = json.loads(text)
    quant = config.pop("quantization_config")
    assert config == {k: v for k, v in json.loads((d / "config.json").read_text()).items() if k != "quantization_config"}
    assert text.count("quantization_config") == 1 and "0.0" in text
    assert set(quant["ignore"]) >= {n.removesuffix(".weight") for n, (_, why) in LEFT.items() if why}
    for name in ("modeling_strange.py", "assets/logo.png", "README.md"):
        assert (out / name).read_bytes() == (d / name).read_bytes()
    # the result is llmq's: it may be replaced, folder, code and all
    llmq("quantize", d, "-o", out, "--model-free", "--sym", "--bits", "8")
    assert (out / "assets/logo.png").exists()


def test_experts_that_are_turned_have_the_same_codes(llmq, strange, tmp_path):
    d, source = strange
    t = {E + "gate_up_proj": source[E + "gate_up_proj"].transpose(0, 2, 1).copy(),
         E + "down_proj": source[E + "down_proj"].transpose(0, 2, 1).copy()}
    (tmp_path / "t").mkdir()
    write_st(tmp_path / "t/model.safetensors", {n: ("BF16", list(v.shape), v.tobytes()) for n, v in t.items()})
    (tmp_path / "t/config.json").write_text("{}")
    llmq("quantize", d, "-o", tmp_path / "a", "--model-free", "--sym")
    llmq("quantize", tmp_path / "t", "-o", tmp_path / "b", "--model-free", "--sym")
    a, b = tensors(tmp_path / "a/model.safetensors"), tensors(tmp_path / "b/model.safetensors")
    assert len(b) == 9 * EXPERTS
    assert all(a[n] == v for n, v in b.items())


def test_experts_in_an_order_of_their_own_stay(llmq, tmp_path):
    """gpt-oss: gate and up by turns, with a bias."""
    llmq("quantize", ROOT / "tests/golden/arch/gpt-oss-sinks", "-o", tmp_path / "o", "--model-free", "--sym")
    a = tensors(ROOT / "tests/golden/arch/gpt-oss-sinks/model.safetensors")
    b = tensors(tmp_path / "o/model.safetensors")
    stacks = [n for n in a if "experts." in n]
    assert stacks and all(a[n] == b[n] for n in stacks)


@pytest.mark.parametrize("options", [("-m", "rtn"), ("-m", "rtn", "--sym", "--bits", "8", "-g", "64"), ("-m", "absmax"),
                                     ("-m", "fp8"), ("-m", "fp8", "-g", "128"),
                                     ("-m", "rtn", "--override", "down_proj=u8-g64", "--skip", r"layers\.1\.")], ids=" ".join)
def test_a_known_model_has_the_bytes_of_quantize_and_convert(llmq, model, tmp_path, options):
    llmq("quantize", model, "-o", tmp_path / "free", "--model-free", *options)
    llmq("quantize", model, "-o", tmp_path / "m.llmq", "--no-check", *options, *KEEP)
    llmq("convert", tmp_path / "m.llmq", "-o", tmp_path / "two", "--to", "compressed-tensors")
    assert filecmp.cmp(tmp_path / "free/model.safetensors", tmp_path / "two/model.safetensors", shallow=False)
    a, b = (json.loads((tmp_path / d / "config.json").read_text())["quantization_config"] for d in ("free", "two"))
    assert set(a.pop("ignore")) == set(b.pop("ignore")) | {"model.embed_tokens"}
    assert a == b


def test_plain_fp8_is_read_back(llmq, model, tmp_path):
    """quant_method "fp8": what `convert --to fp8` writes, and llmq's own reader sees the same values."""
    llmq("quantize", model, "-o", tmp_path / "free", "--model-free", "--to", "fp8")
    llmq("quantize", model, "-o", tmp_path / "m.llmq", "--no-check", "-m", "fp8", "-g", "128", *KEEP)
    llmq("convert", tmp_path / "m.llmq", "-o", tmp_path / "two", "--to", "fp8")
    assert filecmp.cmp(tmp_path / "free/model.safetensors", tmp_path / "two/model.safetensors", shallow=False)
    config = json.loads((tmp_path / "free/config.json").read_text())["quantization_config"]
    assert config["weight_block_size"] == [128, 128] and config["quant_method"] == "fp8"
    for name in ("free", "m.llmq"):
        llmq("logits", tmp_path / name, "--ids", "1,5,9,300", "-o", tmp_path / f"{name}.l")
    assert filecmp.cmp(tmp_path / "free.l", tmp_path / "m.llmq.l", shallow=False)


def test_parts_that_loaders_fuse_are_left_together(llmq, tmp_path):
    """k has 64 outputs, no whole block: q and v stay too."""
    (tmp_path / "m").mkdir()
    t = {f"l.0.{n}_proj.weight": bf16(r, 128) for n, r in (("q", 128), ("k", 64), ("v", 128), ("o", 128))}
    write_st(tmp_path / "m/model.safetensors", {n: ("BF16", list(v.shape), v.tobytes()) for n, v in t.items()})
    (tmp_path / "m/config.json").write_text("{}")
    doc = json.loads(llmq("quantize", tmp_path / "m", "--model-free", "--to", "fp8", "--dry-run", "--json").stdout)
    why = {t["name"][4]: t.get("left") for t in doc["tensors"]}
    assert why == {"o": None, "k": "no multiple of the block", "q": "fused with one that is left",
                   "v": "fused with one that is left"}


def test_include_skip_and_head(llmq, strange, tmp_path):
    d, _ = strange
    doc = json.loads(llmq("quantize", d, "--model-free", "--dry-run", "--json", "--include", "visual", "--lm-head", "u8-g32",
                          "--skip", r"mixer\.out", "--override", "in_proj=i8-row").stdout)
    by = {t["name"]: (t["scheme"], t.get("left")) for t in doc["tensors"]}
    assert by["visual.blocks.0.attn.qkv.weight"] == ("u4-g64-asym", None)
    assert by["lm_head.weight"] == ("u8-g32", None)
    assert by["backbone.layers.0.mixer.out_proj.weight"] == ("bf16", "--skip")
    assert by["backbone.layers.0.mixer.in_proj.weight"] == ("i8-row", None)


def test_shards_threads_and_resume_give_the_same_bytes(llmq, strange, tmp_path):
    d, _ = strange
    args = ("--model-free", "--sym", "--shard-size", "30K")
    for n in (1, 3):
        llmq("quantize", d, "-o", tmp_path / f"t{n}", *args, "--threads", n)
    names = sorted(p.name for p in (tmp_path / "t1").iterdir() if p.is_file())
    assert sum(n.endswith(".safetensors") for n in names) > 2
    same, differ, missing = filecmp.cmpfiles(tmp_path / "t1", tmp_path / "t3", names, shallow=False)
    assert not differ and not missing
    index = json.loads((tmp_path / "t1/model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {n for n in names if n.endswith(".safetensors")}
    again = llmq("quantize", d, "-o", tmp_path / "t1", *args, "--resume")
    assert "is what this run would make" in again.stdout


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["INT", "KILL"])
def test_an_interrupted_run_goes_on(llmq, tmp_path, how):
    src, out, rest = tmp_path / "m", tmp_path / "o", tmp_path / "o.resume"
    src.mkdir()
    t = {f"l.{i}.w.weight": bf16(512, 2048) for i in range(8)}
    write_st(src / "model.safetensors", {n: ("BF16", list(v.shape), v.tobytes()) for n, v in t.items()})
    (src / "config.json").write_text("{}")
    args = ("--model-free", "-m", "hqq", "--shard-size", "1", "--threads", "1")
    p = subprocess.Popen([llmq.path, "quantize", src, "-o", out, *args], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while not any(rest.glob("*.safetensors")) and p.poll() is None:
        time.sleep(0.01)
    p.send_signal(how)
    p.communicate()
    assert p.returncode and not out.exists()
    refused = llmq("quantize", src, "-o", out, *args, "--bits", "8", code=2)
    assert "holds files of another run" in refused.stderr
    done = json.loads(llmq("quantize", src, "-o", out, *args, "--json").stdout)
    assert done["resumed"] >= 1 and not rest.exists()
    llmq("quantize", src, "-o", tmp_path / "whole", *args)
    names = [p.name for p in (tmp_path / "whole").iterdir()]
    same, differ, missing = filecmp.cmpfiles(out, tmp_path / "whole", names, shallow=False)
    assert len(same) == len(names) > 8


@pytest.mark.parametrize("options,why", [
    (("-m", "gptq"), "expected a method that needs no text, found gptq"),
    (("--calib", "x.txt"), "--calib"),
    (("--to", "gguf"), "expected compressed-tensors or fp8, found 'gguf'"),
    (("-m", "nf4"), "has no place in compressed-tensors"),
    (("--to", "fp8", "-m", "rtn"), "has no place in fp8"),
    (("--skip", "("), "--skip '('"),
    (("--override", "mixer=u5"), "--override"),
])
def test_what_is_refused(llmq, strange, tmp_path, options, why):
    p = llmq("quantize", strange[0], "-o", tmp_path / "o", "--model-free", *options, code=None)
    assert p.returncode and why in p.stderr
    assert not (tmp_path / "o").exists() and not (tmp_path / "o.resume").exists()


def test_quantized_weights_and_nan_are_refused(llmq, model, strange, tmp_path):
    llmq("quantize", model, "-o", tmp_path / "a", "--model-free")
    p = llmq("quantize", tmp_path / "a", "-o", tmp_path / "b", "--model-free", code=None)
    assert p.returncode and "expected unquantized weights" in p.stderr
    bad = bf16(64, 64)
    bad[3, 5] = 0x7fc0
    (tmp_path / "n").mkdir()
    write_st(tmp_path / "n/model.safetensors", {"l.w.weight": ("BF16", [64, 64], bad.tobytes())})
    (tmp_path / "n/config.json").write_text("{}")
    p = llmq("quantize", tmp_path / "n", "-o", tmp_path / "b", "--model-free", code=None)
    assert p.returncode and "l.w.weight" in p.stderr


def folder(path, tensors):
    path.mkdir()
    write_st(path / "model.safetensors", {n: ("BF16", list(v.shape), v.tobytes()) for n, v in tensors.items()})
    (path / "config.json").write_text("{}")
    return path


@pytest.mark.parametrize("other", ["l.w.weight_packed", "l.w.weight_scale", "x.experts.1.up_proj.weight"])
def test_names_that_the_result_takes_twice_are_refused(llmq, tmp_path, other):
    """Each was a file with two tensors of one name."""
    t = {"l.w.weight": bf16(64, 64), "x.experts.gate_up_proj": bf16(2, 64, 32), "x.experts.down_proj": bf16(2, 32, 32)}
    d = folder(tmp_path / "m", t | {other: bf16(32, 32)})
    p = llmq("quantize", d, "-o", tmp_path / "o", "--model-free", code=None)
    assert p.returncode and f"'{other}': expected no tensor of this name" in p.stderr
    assert not (tmp_path / "o").exists() and not (tmp_path / "o.resume").exists()


def test_names_of_any_length_are_kept(llmq, tmp_path):
    """Names were cut at 600 bytes."""
    t = {"l.w.weight": bf16(64, 64)}
    for n in (460, 485, 493, 494, 580, 595, 650, 3000):
        t |= {"x" * n + ".weight": bf16(64, 64), "x" * n + ".experts.gate_up_proj": bf16(2, 64, 32),
              "x" * n + ".experts.down_proj": bf16(2, 32, 32)}
    llmq("quantize", folder(tmp_path / "m", t), "-o", tmp_path / "o", "--model-free", "--sym")
    got = tensors(tmp_path / "o/model.safetensors")
    want = {n[:-7] for n in t if n.endswith(".weight") and len(n) <= 500}
    for n in t:
        stem = n.rpartition(".")[0]
        if "experts" in n and len(n) <= 500:
            kinds = ["down_proj"] if n.endswith("down_proj") else ["gate_proj", "up_proj"]
            want |= {f"{stem}.{e}.{k}" for e in range(2) for k in kinds}
        elif len(n) > 500:
            assert got[n][2] == t[n].tobytes()
    assert {n[:-14] for n in got if n.endswith(".weight_packed")} == want


def test_links_to_folders_are_not_followed(llmq, tmp_path):
    """They lead out of the model, or in a circle; links to files are those of Hugging Face's cache."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private/notes.txt").write_text("mine")
    (tmp_path / "blob").write_text("code")
    d = folder(tmp_path / "m", {"l.w.weight": bf16(64, 64)})
    for name, to in (("circle", "."), ("out", "../private"), ("lost.json", "nothing"), ("code.py", "../blob")):
        (d / name).symlink_to(to)
    deep = d / "/".join(["n" * 200] * 4)
    deep.mkdir(parents=True)
    (deep / "deep.py").write_text("code")
    (deep / "more").mkdir()
    p = llmq("quantize", d, "-o", tmp_path / "o", "--model-free")
    for said in ("circle: not copied: a link to a folder", "out: not copied: a link to a folder",
                 "lost.json: not copied: it cannot be opened", "not copied: a folder too deep"):
        assert said in p.stderr
    made = {str(f.relative_to(tmp_path / "o")) for f in (tmp_path / "o").rglob("*") if f.is_file()}
    assert made >= {"code.py", str((deep / "deep.py").relative_to(d))}
    assert not any(n.startswith(("circle", "out")) for n in made)


def test_a_tensor_in_two_files_is_refused(llmq, tmp_path):
    """Without an index nothing says which counts."""
    d = folder(tmp_path / "m", {})
    (d / "model.safetensors").unlink()
    for i, dtype in ((1, "BF16"), (2, "F16")):
        write_st(d / f"model-{i:05}-of-00002.safetensors", {"l.w.weight": (dtype, [64, 64], bf16(64, 64).tobytes())})
    for command in (("inspect", d), ("quantize", d, "-o", tmp_path / "o", "--model-free")):
        p = llmq(*command, code=None)
        assert p.returncode and "tensor 'l.w.weight': expected in one file, found in two" in p.stderr
