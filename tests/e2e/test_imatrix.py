"""Importance matrices of llama.cpp: read by `quantize --imatrix`, written by `llmq imatrix`.

tests/golden/imatrix/novels-1m.gguf, .dat: llama-imatrix (llama.cpp 0c1e570) on novels-1m, 40 chunks of 512 tokens of
tests/golden/text/novels-heldout-100w.txt, in both of its forms."""
import struct

import numpy as np
import pytest

from conftest import ROOT

GOLDEN = ROOT / "tests/golden/imatrix"
TEXT = ROOT / "tests/golden/text/novels-heldout-100w.txt"


def means(path):
    """{name: mean squares} of the GGUF form, whose header is walked through."""
    data = path.read_bytes()
    n, pairs = struct.unpack_from("<QQ", data, 8)
    at = 24

    def text():
        nonlocal at
        size = struct.unpack_from("<Q", data, at)[0]
        at += 8 + size
        return data[at - size:at].decode()

    for _ in range(pairs):
        text()
        kind = struct.unpack_from("<I", data, at)[0]
        at += 4
        if kind == 8:
            text()
        elif kind == 9:
            at += 12
            text()
        else:
            at += 4
    infos = []
    for _ in range(n):
        name = text()
        dims = struct.unpack_from("<I", data, at)[0]
        *shape, kind, offset = struct.unpack_from(f"<{dims}QIQ", data, at + 4)
        assert kind == 0
        at += 16 + 8 * dims
        infos.append((name, int(np.prod(shape)), offset))
    start = -(-at // 32) * 32
    all = {name: np.frombuffer(data, np.float32, size, start + offset) for name, size, offset in infos}
    return {name[:-8]: v / all[name[:-8] + ".counts"] for name, v in all.items() if name.endswith(".in_sum2")}


def quantize(llmq, model, out, *more):
    return llmq.json("quantize", model, "-o", out, "-m", "rtn", "--to", "gguf:Q4_0", *more)


def test_both_forms_give_the_same_bytes_and_lower_the_loss(llmq, draft, tmp_path):
    made = {}
    for form in ("gguf", "dat"):
        quantize(llmq, draft, tmp_path / f"{form}.llmq", "--imatrix", GOLDEN / f"novels-1m.{form}")
        made[form] = llmq.json("inspect", tmp_path / f"{form}.llmq")
    quantize(llmq, draft, tmp_path / "without.llmq")
    recipes = [m["recipe"] for m in made.values()]
    assert recipes[0].pop("imatrix") != recipes[1].pop("imatrix") and recipes[0] == recipes[1]
    kl = {n: llmq.json("eval", tmp_path / f"{n}.llmq", "-t", TEXT, "-c", "256", "--windows", "8", "--ref", draft)["kl_mean"]
          for n in ("gguf", "dat", "without")}
    assert abs(kl["gguf"] / kl["dat"] - 1) < 0.01 and kl["gguf"] < 0.97 * kl["without"], kl


def test_ours_says_what_llama_imatrix_says(llmq, draft, tmp_path):
    llmq("imatrix", draft, "-o", tmp_path / "i.gguf", "--calib", TEXT, "--calib-samples", "40")
    ours, theirs = means(tmp_path / "i.gguf"), means(GOLDEN / "novels-1m.gguf")
    assert sorted(ours) == sorted(theirs)
    for name in ours:  # windows begin elsewhere: theirs have BOS
        assert 0.8 < np.median(ours[name] / theirs[name]) < 1.25, name
    r = quantize(llmq, draft, tmp_path / "m.gguf", "--imatrix", tmp_path / "i.gguf")
    assert r["bytes_out"] == (tmp_path / "m.gguf").stat().st_size


@pytest.mark.parametrize("change, says", [
    (lambda d: d[:200], "the file ends"),
    (lambda d: b"", "expected an importance matrix"),
    (lambda d: d.replace(d[44:48], struct.pack("<f", -1.0)), "0 or more"),
    (lambda d: b"GGUF" + d, "version: expected 2 or 3"),
])
def test_a_broken_file_is_refused(llmq, draft, tmp_path, change, says):
    (tmp_path / "bad.dat").write_bytes(change((GOLDEN / "novels-1m.dat").read_bytes()))
    r = llmq("quantize", draft, "-o", tmp_path / "m.llmq", "-m", "rtn", "--imatrix", tmp_path / "bad.dat", code=None)
    assert r.returncode == 3 and says in r.stderr, r.stderr


def test_another_models_matrix_is_refused(llmq, model, tmp_path):
    r = llmq("quantize", model, "-o", tmp_path / "m.llmq", "-m", "rtn", "--imatrix", GOLDEN / "novels-1m.gguf", code=3)
    assert "expected 768 inputs, found 384" in r.stderr


@pytest.mark.parametrize("args, says", [(["-m", "gptq"], "rtn"), (["-m", "rtn", "--calib", "builtin"], "exclude")])
def test_only_rtn_without_text_takes_one(llmq, draft, tmp_path, args, says):
    r = llmq("quantize", draft, "-o", tmp_path / "m.llmq", "--imatrix", GOLDEN / "novels-1m.gguf", *args, code=2)
    assert "--imatrix" in r.stderr and says in r.stderr


def test_a_rotated_models_inputs_are_others(llmq, tmp_path):
    p = llmq("quantize", ROOT / "models/novels-1m", "-o", tmp_path / "q.llmq", "-m", "rtn", "--rotate", "--imatrix",
             GOLDEN / "novels-1m.gguf", code=2)
    assert "--imatrix: it is of inputs that are not rotated" in p.stderr
