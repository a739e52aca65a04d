"""llmq convert: there and back, whole or not at all."""
import json
import os
import shutil
import pathlib

import pytest


def files(folder):
    return {p.name: p.read_bytes() for p in pathlib.Path(folder).iterdir()}


@pytest.mark.parametrize("layout", ["portable", "tile16"])
def test_a_model_comes_back_byte_for_byte(llmq, model, tmp_path, layout):
    r = llmq.json("convert", model, "-o", tmp_path / "m.llmq", "--to", "llmq", "--layout", layout)
    assert r["bit_exact"] and r["to"] == "llmq" and r["tensors"] == 56
    r = llmq.json("convert", tmp_path / "m.llmq", "-o", tmp_path / "back", "--to", "safetensors")
    assert r["bit_exact"]
    assert files(tmp_path / "back") == files(model)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["back", "m.llmq"]


@pytest.mark.parametrize("method", ["rtn", "absmax", "nf4"])
def test_a_layout_is_turned_back_bit_for_bit(llmq, model, tmp_path, method):
    llmq("quantize", model, "-o", tmp_path / "q.llmq", "--method", method)
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "t.llmq", "--to", "llmq", "--layout", "tile16")
    llmq("convert", tmp_path / "t.llmq", "-o", tmp_path / "p.llmq", "--to", "llmq")
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "q2.llmq", "--to", "llmq")
    assert (tmp_path / "p.llmq").read_bytes() == (tmp_path / "q2.llmq").read_bytes()


def test_a_quantized_model_becomes_a_folder_with_the_same_logits(llmq, model, tmp_path):
    llmq("quantize", model, "-o", tmp_path / "q.llmq", "--method", "rtn", "--lm-head", "u8-g128")
    r = llmq.json("convert", tmp_path / "q.llmq", "-o", tmp_path / "hf", "--to", "safetensors",
                  "--dtype", "f32", "--shard-size", "4M")
    assert r["bit_exact"] and r["bytes"] > 20e6
    index = json.loads((tmp_path / "hf/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == r["bytes"]
    assert set(index["weight_map"].values()) == {p.name for p in (tmp_path / "hf").glob("*.safetensors")}
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert config["torch_dtype"] == "float32" and config["tie_word_embeddings"] is False
    logits = []
    for src in ("q.llmq", "hf"):
        llmq("logits", tmp_path / src, "--ids", "1,5,9,300,77", "-o", tmp_path / "l.safetensors")
        raw = (tmp_path / "l.safetensors").read_bytes()
        logits.append(memoryview(raw[-5 * 4096 * 4:]).cast("f"))
    top = max(abs(x) for x in logits[0])
    assert max(abs(a - b) for a, b in zip(*logits)) <= 5e-5 * top
    r = llmq.json("convert", tmp_path / "q.llmq", "-o", tmp_path / "hf", "--to", "safetensors")
    assert not r["bit_exact"], "bf16 cannot hold what was quantized"
    assert not (tmp_path / "hf/model.safetensors.index.json").exists(), "the old folder was replaced"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf", "l.safetensors", "q.llmq"]


@pytest.mark.parametrize("to", ["llmq", "gptq", "gguf"])
def test_damage_gets_no_fresh_checksums(llmq, model, tmp_path, to):
    llmq("quantize", model, "-o", tmp_path / "q.llmq", "--method", "rtn")
    with open(tmp_path / "q.llmq", "r+b") as f:
        f.seek(900000)
        f.write(b"ZZZZ")
    p = llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "out", "--to", to, code=3)
    assert "q.llmq" in p.stderr and "checksum: expected" in p.stderr
    assert [f.name for f in tmp_path.iterdir()] == ["q.llmq"]


def test_refusals_leave_everything_as_it_was(llmq, model, tmp_path):
    p = llmq("convert", model, "-o", tmp_path / "x", "--to", "onnx", code=2)
    assert "--to: expected one of llmq, safetensors, gguf, gptq, gptq_v2, awq, compressed-tensors, bnb" in p.stderr
    for to, option, value in (("llmq", "--dtype", "f16"), ("llmq", "--shard-size", "1M"), ("gptq", "--layout", "tile16"),
                              ("safetensors", "--layout", "tile16")):
        p = llmq("convert", model, "-o", tmp_path / "x", "--to", to, option, value, code=2)
        assert f"{option} does not go with --to {to}" in p.stderr
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    llmq("convert", model, "-o", tmp_path / "mine", "--to", "safetensors", code=2)
    (tmp_path / "mine/config.json").write_text("{}")
    p = llmq("convert", model, "-o", tmp_path / "mine", "--to", "safetensors", code=2)
    assert "holds thesis.txt, which a model folder does not" in p.stderr
    (tmp_path / "mine/thesis.txt").rename(tmp_path / "mine/adapter.safetensors")
    p = llmq("convert", model, "-o", tmp_path / "mine", "--to", "safetensors", code=2)
    assert "holds adapter.safetensors, which a model folder does not" in p.stderr
    (tmp_path / "mine/adapter.safetensors").rename(tmp_path / "mine/thesis.txt")
    (tmp_path / "mine/folder").mkdir()
    llmq("convert", model, "-o", tmp_path / "mine", "--to", "safetensors", code=2)
    assert sorted(p.name for p in (tmp_path / "mine").iterdir()) == ["config.json", "folder", "thesis.txt"]
    llmq("convert", tmp_path / "none", "-o", tmp_path / "x", "--to", "llmq", code=3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine"]


def test_a_source_is_never_its_own_result(llmq, model, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    (tmp_path / "link").symlink_to(copy)
    for out in (copy, tmp_path / "link", f"{copy}/"):
        p = llmq("convert", copy, "-o", out, "--to", "safetensors", "--dtype", "f32", code=2)
        assert "another place than the source" in p.stderr
    for to, name in (("llmq", "model.safetensors"), ("gguf", "tokenizer.json")):
        p = llmq("convert", copy, "-o", copy / name, "--to", to, code=2)
        assert "another place than the source" in p.stderr
    for out in ("", f"{copy}/config.json/x"):
        llmq("convert", model, "-o", out, "--to", "safetensors", code=2)
    assert files(copy) == files(model)


def test_a_link_stays_and_the_folder_behind_it_is_replaced(llmq, draft, tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to("real")
    for dtype in ("f32", "bf16"):  # into an empty folder, and over an earlier result
        llmq("convert", draft, "-o", link, "--to", "safetensors", "--dtype", dtype)
        assert json.loads((real / "config.json").read_text())["torch_dtype"] == {"f32": "float32"}.get(dtype, "bfloat16")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"] and link.is_symlink()
        assert not (real / ".llmq-partial").exists()


def test_a_mount_point_is_refused_before_the_work(llmq, draft):
    mounts = [m.split()[1] for m in open("/proc/self/mounts")]
    empty = [m for m in mounts if m.startswith("/dev/") and os.path.isdir(m) and not os.listdir(m)]
    if not empty:
        pytest.skip("no empty file system is mounted below /dev")
    p = llmq("convert", draft, "-o", empty[0], "--to", "safetensors", code=2)
    assert "is a mount point" in p.stderr and os.listdir(empty[0]) == []
