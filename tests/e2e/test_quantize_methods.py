"""llmq quantize: what --rotate, hqq, rtn --calib and int8's outlier share do to a real model."""
import hashlib
import json
import pathlib
import struct

import pytest

from harness import KEEP

ROOT = pathlib.Path(__file__).resolve().parents[2]
ARCH = ROOT / "tests/golden/arch"
QUICK = ["--calib-samples", "4", "--calib-len", "64", "--no-check"]
DENSE = ["--method", "rtn", "--skip", "proj"]


def digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def logits(llmq, model, out):
    llmq("logits", model, "--ids", ",".join(str(7 * i + 3) for i in range(40)), "-o", out)
    raw = out.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    t = json.loads(raw[8:8 + n])["logits"]
    start, end = (8 + n + at for at in t["data_offsets"])
    return struct.unpack(f"<{(end - start) // 4}f", raw[start:end])


def test_a_rotated_file_answers_as_the_source_does(llmq, model, tmp_path):
    want = logits(llmq, model, tmp_path / "want")
    top = max(map(abs, want))
    bound = {"f32": 1e-5, "default": 2e-3}
    for kind in bound:
        out = tmp_path / f"{kind}.llmq"
        more = ["--embed", "f32", "--lm-head", "f32"] if kind == "f32" else KEEP
        p = llmq("quantize", model, "-o", out, *DENSE, "--rotate", *more)
        assert "residual stream of 256 by Hadamard 256" in p.stderr and "head becomes a matrix" in p.stderr
        got = logits(llmq, out, tmp_path / "got")
        assert max(abs(a - b) for a, b in zip(want, got)) <= bound[kind] * top
    tensors = {t["name"]: t["scheme"] for t in llmq.json("inspect", tmp_path / "default.llmq")["tensors"]}
    assert tensors["model.embed_tokens.weight"] == tensors["lm_head.weight"] == "f16"


def test_a_rotation_is_of_its_seed_alone(llmq, model, tmp_path):
    seen = {}
    for seed, threads in (0, 1), (0, 3), (1, 2):
        out = tmp_path / "q.llmq"
        llmq("quantize", model, "-o", out, "--method", "rtn", "--rotate", "--seed", seed, "--threads", threads)
        seen.setdefault(seed, set()).add(digest(out))
        assert llmq.json("inspect", out)["recipe"]["rotate_seed"] == seed
    assert len(seen[0]) == 1 and seen[0] != seen[1]


def test_every_kind_of_method_works_behind_a_rotation(llmq, tmp_path):
    for arch, method in ("llama3-gqa", "gptq"), ("gpt-oss-sinks", "awq"), ("gpt2", "nf4"), ("qwen2", "auto"):
        ids = tmp_path / "ids.jsonl"
        ids.write_text(json.dumps({"ids": [(i * i) % 90 for i in range(600)]}) + "\n")
        more = ["--calib", ids, *QUICK] if method in ("gptq", "awq", "auto") else ["--no-check"]
        if method == "auto":
            more += ["--tune", "2"]
        out = tmp_path / f"{arch}.llmq"
        r = llmq.json("quantize", ARCH / arch, "-o", out, "--method", method, "--rotate", *more)
        assert r["bytes_in"] < 1 << 22 and llmq.json("verify", out)["ok"]


@pytest.mark.parametrize("arch", ["llama3-gqa", "openelm", "qwen3-vl-moe", "gpt2"])
def test_what_gguf_stores_in_another_order_is_rotated_as_well(llmq, tmp_path, arch):
    """Rows of q and k in pairs, matrices that are joined, experts apart, columns for rows, biases."""
    llmq("convert", ARCH / arch, "-o", tmp_path / "m.gguf", "--to", "gguf")
    seen = set()
    for src in ARCH / arch, tmp_path / "m.gguf":
        llmq("quantize", src, "-o", tmp_path / "q.llmq", *DENSE, "--rotate", "--no-resume")
        llmq("logits", tmp_path / "q.llmq", "--ids", "3,10,17,24", "-o", tmp_path / "out")
        seen.add(digest(tmp_path / "out"))
    assert len(seen) == 1


@pytest.mark.parametrize("arch,why", [("olmo2", "norms with weights"), ("bloom-alibi", "follows the embedding"),
                                      ("xglm-sinusoidal", "positions"), ("opt-350m-postnorm", "sum")])
def test_what_cannot_be_rotated_is_refused_by_name(llmq, tmp_path, arch, why):
    p = llmq("quantize", ARCH / arch, "-o", tmp_path / "q", "--method", "rtn", "--rotate", code=3)
    assert "cannot be rotated" in p.stderr and why in p.stderr and not list(tmp_path.iterdir())


def test_hqq_in_both_kinds_of_zero_points(llmq, model, tmp_path):
    r = llmq.json("quantize", model, "-o", tmp_path / "f.llmq", "--method", "hqq", "--bits", "3")
    assert {t["scheme"] for t in r["tensors"] if t["layer"] >= 0} == {"u3-g64-fzero"} and abs(r["bpw"] - 3.5) < 1e-6
    r = llmq.json("quantize", model, "-o", tmp_path / "i.llmq", "--method", "hqq", "--override", "proj=u3-g64-asym")
    assert {t["scheme"] for t in r["tensors"] if t["layer"] >= 0} == {"u3-g64-asym"}
    for name in "f", "i":
        assert llmq.json("verify", tmp_path / f"{name}.llmq", "--against", model)["ok"]


def test_rtn_with_calibration_weighs_inputs(llmq, model, tmp_path):
    made = {}
    for name, more in {"plain": [], "clip": ["--clip"], "calib": ["--calib", "builtin", *QUICK]}.items():
        out = tmp_path / name
        r = llmq.json("quantize", model, "-o", out, "--method", "rtn", "--bits", "3", *more)
        made[name] = digest(out), sum(t["rmse"] for t in r["tensors"])
        assert llmq.json("inspect", out)["recipe"].get("importance", False) == (name == "calib")
    assert len({d for d, _ in made.values()}) == 3
    assert made["clip"][1] < made["plain"][1], "by the weights alone, their own error falls"
    assert made["calib"][1] > made["clip"][1], "by their inputs, another error is what falls"


def test_int8_keeps_what_is_often_an_outlier(llmq, tmp_path):
    model = ROOT / "models/novels-6m"
    bpw = {}
    for share in ("0", "0.06", "0.5"):
        out = tmp_path / share
        bpw[share] = llmq.json("quantize", model, "-o", out, "--method", "int8", "--outlier-share", share,
                               "--outlier-threshold", "3", *QUICK)["bpw"]
    assert bpw["0"] > bpw["0.06"] >= bpw["0.5"] > 8
