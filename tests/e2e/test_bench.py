"""llmq bench: the keys of its JSON, the table, wrong usage. No figure is judged: machines differ."""
import hashlib
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = ["--prompt", 8, "--context", 4, "--steps", 2]


def check_rows(doc, batches):
    assert doc["prefill_tok_s"] > 0 and doc["limits"]["read_gbytes_s"] > 0
    assert [r["name"] for r in doc["rows"]] == ["prefill"] + ["decode"] * len(batches)
    assert [r["batch"] for r in doc["rows"]] == [1] + batches
    for r in doc["rows"]:
        for key in ("seconds", "gflops", "gbytes_s", "percent_of_limit"):
            assert r[key] > 0, key
    assert doc["rows"][0]["prefill_tok_s"] == doc["prefill_tok_s"]
    if 1 in batches:
        assert doc["rows"][1 + batches.index(1)]["decode_tok_s"] == doc["decode_tok_s"]


def test_a_models_rows(llmq):
    check_rows(llmq.json("bench", "model", "models/novels-1m", "--batch", "1,3", *SMALL), [1, 3])
    text = llmq("bench", "model", "models/novels-1m", "--batch", 2, *SMALL).stdout
    assert "prefill" in text and "% of limit" in text and "GB/s read" in text


@pytest.mark.parametrize("scheme", ["u4-g128", "i8-row", "u3-g64-asym", "nf4"])
def test_the_built_in_model(llmq, scheme):
    doc = llmq.json("bench", "model", "--scheme", scheme, "--batch", "1", *SMALL)
    check_rows(doc, [1])
    assert doc["scheme"] == scheme
    params = 22 * (2048 * (2 * 2048 + 2 * 256) + 3 * 2048 * 5632) + 32000 * 2048
    bits = {"u4-g128": 4.125, "i8-row": 8, "u3-g64-asym": 3.375, "nf4": 4.5}[scheme]
    assert doc["weight_bytes"] * 8 / params == pytest.approx(bits, rel=0.01)


@pytest.mark.parametrize("args", [["nothing"], ["model", "--scheme", "u5-g7"],
                                  ["model", "--batch", "0"], ["model", "--scheme", "u4-g100"]])
def test_wrong_usage(llmq, args):
    assert llmq("bench", *args, code=2).stdout == ""


def test_kernels_rows(llmq):
    doc = llmq.json("bench", "kernels", "--threads", 1)
    assert doc["limits"]["threads"] == 1 and doc["limits"]["f32_gflops"] > 0
    assert any(r["name"].startswith("u4-g128") for r in doc["rows"])
    assert all(r["seconds"] > 0 and r["percent_of_limit"] > 0 and r["shape"] for r in doc["rows"])
    llmq("bench", "kernels", "models/novels-1m", code=2)


def test_the_outlier_variant_is_the_one_that_other_projects_had(tmp_path):
    subprocess.run([sys.executable, "tools/make-outliers.py", "models/novels-6m", "tools/novels-6m-outliers.json",
                    tmp_path / "made"], cwd=ROOT, check=True)
    made = hashlib.sha256((tmp_path / "made/model.safetensors").read_bytes()).hexdigest()
    assert made == "f83d2d42bf7f394d22bcc24bbb6108d54e2ef9a64d1eca8eee9d7699524ca736"


def test_bench_quality_prints_and_keeps_a_row_for_each_text(llmq, draft, text, tmp_path):
    few = tmp_path / "few.txt"
    few.write_bytes(text.read_bytes()[:1200])
    kept = ROOT / "build/bench-quality.json"
    p = subprocess.run([sys.executable, "tools/bench-quality.py"], cwd=ROOT, capture_output=True, text=True, check=True,
                       env={**os.environ, "MODELS": str(draft), "METHODS": "rtn nosuch", "WIDTHS": "4:128 3:64",
                            "TEXTS": str(few), "CTX": "64"})
    rows = json.loads(kept.read_text())
    assert [(r["method"], r["bits"], r["group"], r["text"]) for r in rows] == \
        [("rtn", 4, 128, "few"), ("rtn", 3, 64, "few")]
    assert 0 < rows[0]["kl"] < rows[1]["kl"] and len(p.stdout.splitlines()) == 4
    assert len(kept.with_suffix(".tsv").read_text().splitlines()) == 3
