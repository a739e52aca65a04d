"""llmq bench: the keys of its JSON, the table, wrong usage. No figure is judged: machines differ."""
import hashlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

import pytest

from harness import until

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = ["--prompt", 8, "--context", 4, "--steps", 2]


def check_rows(doc, batches):
    assert doc["prefill_tok_s"] > 0 and doc["limits"]["read_gbytes_s"] > 0
    assert [r["name"] for r in doc["rows"]] == ["prefill"] + ["decode"] * len(batches)
    assert [r["batch"] for r in doc["rows"]] == [1] + batches
    for r in doc["rows"]:
        for key in ("seconds", "gflops", "gbytes_s", "percent_of_limit", "limit_tok_s", "read_gbytes_s"):
            assert r[key] > 0, key
        if r["bound_by"] == "memory":
            assert r["percent_of_limit"] == pytest.approx(100 * r["gbytes_s"] / r["read_gbytes_s"])
        assert r["bound_by"] in ("arithmetic", "memory")
    assert doc["rows"][0]["prefill_tok_s"] == doc["prefill_tok_s"]
    if 1 in batches:
        assert doc["rows"][1 + batches.index(1)]["decode_tok_s"] == doc["decode_tok_s"]
        for r in doc["rows"][1:]:
            assert r["times_one"] == pytest.approx(r["decode_tok_s"] / doc["decode_tok_s"])
    check_cache(doc["kv_cache"])


def check_cache(cache):
    """The formula and what the system counts, which is off by a huge page at most."""
    for t in cache["types"]:
        assert t["measured_token_bytes"] == pytest.approx(t["formula_token_bytes"], rel=0.1), t["dtype"]
    by_type = {t["dtype"]: t["formula_token_bytes"] for t in cache["types"]}
    assert by_type["f32"] == 2 * by_type["f16"] == 2 * by_type["bf16"]
    assert by_type["f16"] > by_type["int8"] == by_type["fp8"] > by_type["int4"]
    many, own, one = cache["heads"]
    assert many["kv_heads"] >= own["kv_heads"] >= one["kv_heads"] == 1
    for h in cache["heads"]:
        assert h["token_bytes"] == one["token_bytes"] * h["kv_heads"]


def test_the_cache_is_of_what_attention_multiplies(llmq):
    def cache(*args):
        return llmq.json("bench", "model", "models/novels-1m", "--batch", 1, *SMALL, *args)["kv_cache_dtype"]

    found = llmq.json("version")
    for family in found["kernels_available"].split():
        assert cache("--kernels", family) == ("bf16" if "bf16" in family else "f16"), family
    assert cache("--activations", "f32") == "f16"
    assert cache("--kv-cache-dtype", "f16") == "f16"
    assert cache() == found["kv_cache_dtype"]


def test_where_the_time_of_a_step_goes(llmq):
    doc = llmq.json("bench", "model", "--scheme", "u4-g128", "--batch", 2, "--profile", "--threads", 2, *SMALL)
    for r in doc["rows"]:
        stages = {s["stage"]: s for s in r["profile"]}
        assert {"embedding", "norm", "activations prepared", "q k v", "attention", "o", "gate up", "down", "head"} <= set(stages)
        assert sum(s["percent"] for s in stages.values()) == pytest.approx(100)
        assert all(0 <= s["percent_waiting"] <= 100 for s in stages.values())
        assert {n for n, s in stages.items() if "gflops" in s} == {"q k v", "o", "gate up", "down", "head"}
    assert "profile" not in llmq.json("bench", "model", "models/novels-1m", "--batch", 1, *SMALL)["rows"][0]
    assert "% waiting" in llmq("bench", "model", "models/novels-1m", "--batch", 1, "--profile", *SMALL).stdout
    assert "--profile" in llmq("bench", "kernels", "--profile", code=2).stderr


def test_the_stages_are_the_whole_of_a_step(llmq):
    """The mean of all steps beside the median one; measured again where a busy machine held up one of them."""
    def agree():
        doc = llmq.json("bench", "model", "models/novels-1m", "--batch", 2, "--profile", "--threads", 1, *SMALL)
        ratios[:] = [sum(s["seconds"] for s in r["profile"]) / r["seconds"] for r in doc["rows"]]
        return all(0.2 < x < 5 for x in ratios)
    ratios = []
    until(agree, lambda: ratios)


def test_each_batching_serves_the_same_requests(llmq):
    doc = llmq.json("bench", "model", "models/novels-1m", "--batch", 1, "--mixed", 20, "--places", 4, *SMALL)["batching"]
    assert (doc["requests"], doc["places"], doc["tokens"]) == (20, 4, 20 * 8 + doc["long_answers"] * 120)
    assert doc["long_answers"] in (2, 3)  # one of each eight
    static, dynamic, continuous = doc["rows"]
    assert [r["batching"] for r in doc["rows"]] == ["static", "dynamic", "continuous"]
    assert static["speedup"] == 1 and all(r["tok_s"] > 0 and 0 <= r["overhead_percent"] <= 100 for r in doc["rows"])
    # what no machine changes: how full the steps are
    assert continuous["steps"] < static["steps"] and continuous["rows_per_step"] > static["rows_per_step"]
    assert "x static" in llmq("bench", "model", "models/novels-1m", "--batch", 1, "--mixed", 2, *SMALL).stdout
    assert "--places" in llmq("bench", "model", "--mixed", 2, "--places", 0, code=2).stderr


def test_a_models_rows(llmq):
    check_rows(llmq.json("bench", "model", "models/novels-1m", "--batch", "1,3", *SMALL), [1, 3])
    text = llmq("bench", "model", "models/novels-1m", "--batch", 2, *SMALL).stdout
    assert "prefill" in text and "% of limit" in text and "GB/s read" in text


def test_lengths_stay_within_the_model(llmq):
    """novels-1m has 1024 positions: what nobody asked for fits, what was asked for is refused."""
    rows = llmq.json("bench", "model", "models/novels-1m", "--batch", 1, "--prompt", 8, "--steps", 1000)["rows"]
    assert rows[1]["name"] == "decode"
    for args, says in [(("--prompt", 1025), "--prompt: expected at most 1024"),
                       (("--context", 1020, "--steps", 5), "expected at most 1024 together"),
                       (("--steps", 1025), "expected at most 1024 together")]:
        assert says in llmq("bench", "model", "models/novels-1m", "--batch", 1, *args, code=2).stderr
    line = llmq("bench", "model", "--batch", 4096, "--context", 1 << 20, code=2).stderr
    assert "--batch 4096 and --context 1048576: expected a KV cache of at most" in line
    assert "--batch" in llmq("bench", "model", "--batch", " 4", code=2).stderr


def test_speculation_with_a_given_acceptance(llmq):
    ran = [llmq.json("bench", "model", "models/novels-6m", "--batch", 1, "--spec-accept", a, *SMALL)["speculation"]
           for a in ("0.8", "0.8", "1")]
    assert ran[0]["draft_layers"] == 2 and [r["guesses"] for r in ran[0]["rows"]] == [1, 2, 3, 4, 6, 8]
    right = [[r["accepted_per_step"] for r in x["rows"]] for x in ran]
    assert right[0] == right[1] and right[2] == [1, 2, 3, 4, 6, 8]
    for x in ran:
        assert x["best_speedup"] == max(r["speedup"] for r in x["rows"])
        assert all(r["speedup"] == pytest.approx(r["tok_s"] / r["plain_tok_s"]) for r in x["rows"])
        for r in x["rows"]:  # the steps are the same, so it grows with the acceptance
            at = [r["speedup_at"][a] for a in ("0.5", "0.6", "0.7", "0.8", "0.9")]
            assert at == sorted(at) and at[0] > 0
    for r in ran[0]["rows"]:  # the mean of a run of successes, cut off at the guesses
        want = sum(0.8 ** i for i in range(1, r["guesses"] + 1))
        assert abs(r["accepted_per_step"] - want) < r["guesses"] / 8
    assert "speed-up" in llmq("bench", "model", "models/novels-1m", "--batch", 1, "--spec-accept", 0.5, *SMALL).stdout
    assert "--spec-accept" in llmq("bench", "model", "--spec-accept", 2, code=2).stderr


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
    s = doc["sharing"]
    assert s["threads"] == 1 and s["meet_median_seconds"] == 0 and s["slowdown"] > 0 and s["fair_slowdown"] >= 1
    llmq("bench", "kernels", "models/novels-1m", code=2)


def test_a_layers_steps_joined_and_alone(llmq):
    ran = {f: llmq.json("bench", "kernels", "--fusion", f, "--scheme", "nf4", "--threads", 1) for f in ("on", "off")}
    assert ran["on"]["fused"] and not ran["off"]["fused"] and ran["on"]["scheme"] == "nf4"
    for on, off in zip(ran["on"]["chains"], ran["off"]["chains"]):
        assert on["rows"] == off["rows"] and on["steps"][-1]["name"] == off["steps"][-1]["name"] == "all"
        assert on["steps"][-1]["bytes"] < off["steps"][-1]["bytes"]
        assert all(s["seconds"] > 0 for s in on["steps"] + off["steps"])
    assert "MB moved" in llmq("bench", "kernels", "--fusion", "on", "--threads", 1).stdout
    for args in (["kernels", "--fusion", "yes"], ["model", "--fusion", "on"], ["kernels", "--fusion", "on", "--scheme", "u4-g100"]):
        assert llmq("bench", *args, code=2).stdout == ""


def test_attention_naive_and_by_tiles(llmq):
    rows = llmq.json("bench", "attention", "--longest", 256)["rows"]
    assert [(r["attention"], r["tokens"]) for r in rows] == [(w, n) for n in (128, 256) for w in ("naive", "flash")]
    assert all(r["seconds"] > 0 for r in rows)
    naive, flash = ([r["scratch_bytes"] for r in rows if r["attention"] == w] for w in ("naive", "flash"))
    for n, scratch in zip((128, 256), naive):  # a score of 4 bytes for each head, row and key, and a little more
        assert 4 * 32 * n * n < scratch < 2 * 4 * 32 * n * n
    assert flash[0] == flash[1]
    text = llmq("bench", "attention", "--attention", "flash", "--longest", 128).stdout
    assert "flash" in text and "naive" not in text
    assert "--attention" in llmq("bench", "attention", "--attention", "slow", code=2).stderr


def test_the_outlier_variant_is_the_one_that_other_projects_had(tmp_path):
    subprocess.run([sys.executable, "scripts/make/make-outliers.py", "models/novels-6m", "scripts/make/novels-6m-outliers.json",
                    tmp_path / "made"], cwd=ROOT, check=True)
    made = hashlib.sha256((tmp_path / "made/model.safetensors").read_bytes()).hexdigest()
    assert made == "f83d2d42bf7f394d22bcc24bbb6108d54e2ef9a64d1eca8eee9d7699524ca736"


def test_bench_quality_prints_and_keeps_a_row_for_each_text(llmq, draft, text, tmp_path):
    few = tmp_path / "few.txt"
    few.write_bytes(text.read_bytes()[:1200])
    kept = ROOT / "build/bench-quality.json"
    p = subprocess.run([sys.executable, "scripts/bench/bench-quality.py"], cwd=ROOT, capture_output=True, text=True, check=True,
                       env={**os.environ, "MODELS": str(draft), "METHODS": "rtn nosuch", "WIDTHS": "4:128 3:64",
                            "TEXTS": str(few), "CTX": "64"})
    rows = json.loads(kept.read_text())
    assert [(r["method"], r["bits"], r["group"], r["text"]) for r in rows] == \
        [("rtn", 4, 128, "few"), ("rtn", 3, 64, "few")]
    assert 0 < rows[0]["kl"] < rows[1]["kl"] and len(p.stdout.splitlines()) == 4
    assert len(kept.with_suffix(".tsv").read_text().splitlines()) == 3


def test_bench_quality_knows_every_method_of_this_build(monkeypatch):
    spec = importlib.util.spec_from_file_location("bench_quality", ROOT / "scripts/bench/bench-quality.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("METHODS", raising=False)
    assert [m["name"] for m in script.methods_here()] == ["rtn", "gptq", "awq", "hqq", "nf4", "auto"]


GGUF = ROOT / "tests/golden/gguf/arch/gpt2.gguf"
FAKE_BENCH = """#!/bin/sh
echo '[{"build_commit": "abc", "model_type": "fake", "n_prompt": 8, "n_gen": 0, "avg_ts": 0.5},
       {"build_commit": "abc", "model_type": "fake", "n_prompt": 0, "n_gen": 2, "avg_ts": 0.25}]'
"""
FAKE_BATCHED = """#!/bin/sh
echo 'a line of its log'
echo '{"pl": 2, "speed_tg": 0.125}'
"""


FAKE_SERVER = f"""#!/bin/sh
while [ "$1" != --port ]; do shift; done
exec "$LLMQ" serve {ROOT}/models/novels-1m --threads 1 --port "$2" --log-level error
"""


def peers(llmq_path, env, *args):
    clean = {k: v for k, v in os.environ.items() if k not in ("LLAMA_BIN", "LLAMA_MODEL", "OPENVINO_MODEL")}
    return subprocess.run([ROOT / "scripts/bench/peers.sh", *args], env={**clean, "LLMQ": str(llmq_path), **env},
                          capture_output=True, text=True)


def test_peers_prints_ratios_of_interleaved_turns(llmq, tmp_path):
    for name, text in (("llama-bench", FAKE_BENCH), ("llama-batched-bench", FAKE_BATCHED)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "some.gguf").touch()
    small = {"LLAMA_BIN": str(tmp_path), "LLAMA_MODEL": str(tmp_path / "some.gguf"), "THREADS": "1", "REPEATS": "2", "PROMPT": "8",
             "CONTEXT": "4", "STEPS": "2", "BATCH": "1,2,3"}
    r = peers(llmq.path, small, ROOT / "models/novels-1m")
    assert r.returncode == 0, r.stderr
    lines = [x.split() for x in r.stdout.splitlines()]
    rows = [("prefill", "1"), ("decode", "1"), ("decode", "2"), ("decode", "3")]
    assert "abc" in r.stdout and [tuple(x[:3]) for x in lines[2:]] == [(*a, b) for a in rows for b in ("best", "median")]
    known = {rows[0]: 0.5, rows[1]: 0.25, rows[2]: 0.125}
    for row in lines[2:]:
        if tuple(row[:2]) == rows[3]:  # the peer was not asked, or did not say
            assert float(row[3]) > 0 and row[4:] == ["-", "-"]
            continue
        ours, theirs, ratio = map(float, row[3:])
        assert theirs == pytest.approx(known[tuple(row[:2])], abs=0.006)
        assert ratio == pytest.approx(ours / known[tuple(row[:2])], rel=0.01)


def test_peers_gives_the_same_file_to_both(llmq, tmp_path):
    (tmp_path / "llama-bench").write_text(FAKE_BENCH)
    (tmp_path / "llama-bench").chmod(0o755)
    small = {"LLAMA_BIN": str(tmp_path), "THREADS": "1", "REPEATS": "1", "PROMPT": "8", "CONTEXT": "4", "STEPS": "2",
             "KERNELS": "ref"}
    r = peers(llmq.path, small, GGUF, GGUF)
    assert r.returncode == 0, r.stderr
    assert r.stdout.count(GGUF.name + "\n") == 2 and r.stdout.count("kernels ref") == 2
    assert len([x for x in r.stdout.splitlines() if x.startswith(("prefill", "decode"))]) == 8
    for args, env, say in (([GGUF], {"LLAMA_BIN": ""}, "LLAMA_BIN: expected the folder of llama-bench, found none"),
                           ([tmp_path / "not.gguf"], {}, "not.gguf: expected a .gguf, found none")):
        r = peers(llmq.path, {**small, **env}, *args)
        assert r.returncode == 2 and say in r.stderr


FAKE_PYTHON = """#!/bin/sh
# A Python that runs peer_openvino.py: what it is asked for is kept, a serve row of 0.5 is said.
shift
echo "$@" >> asked
echo a line of the library
echo '{"version": "v9", "rows": [["'$3'", 3, 0.5]]}'
"""


def test_peers_serves_beside_a_library(llmq, tmp_path):
    (tmp_path / "python").write_text(FAKE_PYTHON.replace("asked", str(tmp_path / "asked")))
    (tmp_path / "python").chmod(0o755)
    small = {"OPENVINO_MODEL": str(tmp_path), "OPENVINO_PYTHON": str(tmp_path / "python"), "THREADS": "1", "REPEATS": "1",
             "SERVE": "3", "INPUT": "8", "OUTPUT": "4"}
    r = peers(llmq.path, small, ROOT / "models/novels-1m")
    assert r.returncode == 0, r.stderr
    lines = [x.split() for x in r.stdout.splitlines()]
    ours, theirs, ratio = map(float, lines[2][3:])
    assert "v9" in r.stdout and theirs == 0.5 and ratio == pytest.approx(ours / theirs, rel=0.01)
    assert (tmp_path / "asked").read_text() == f"{tmp_path} 1 serve 3 8 4\n"


def test_peers_serves_beside_another_server(llmq, tmp_path):
    for name, text in (("llama-bench", FAKE_BENCH), ("llama-server", FAKE_SERVER)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "some.gguf").touch()
    small = {"LLAMA_BIN": str(tmp_path), "LLAMA_MODEL": str(tmp_path / "some.gguf"), "THREADS": "1", "REPEATS": "1", "SERVE": "3",
             "INPUT": "8", "OUTPUT": "4"}
    r = peers(llmq.path, small, ROOT / "models/novels-1m")
    assert r.returncode == 0, r.stderr
    rows = [x.split() for x in r.stdout.splitlines()][2:]
    assert [x[:3] for x in rows] == [["serve", "3", "best"], ["serve", "3", "median"]]
    ours, theirs, ratio = map(float, rows[0][3:])
    assert ours > 0 and theirs > 0 and ratio == pytest.approx(ours / theirs, rel=0.01, abs=0.006)
    (tmp_path / "llama-server").write_text("#!/bin/sh\nexit 3\n")
    r = peers(llmq.path, small, ROOT / "models/novels-1m")
    assert r.returncode == 2 and "exit 3 before it served" in r.stderr


@pytest.mark.parametrize("env,names", [({}, "LLAMA_BIN"), ({"LLAMA_BIN": "/nonexistent"}, "llama-bench"),
                                       ({"OPENVINO_MODEL": str(ROOT / "models"), "OPENVINO_PYTHON": "/nonexistent"}, "/nonexistent"),
                                       ({"LLAMA_BIN": "/bin", "BATCH": "1,abc"}, "BATCH: expected an integer from 1 on, found 'abc'"),
                                       ({"LLAMA_BIN": "/bin", "STEPS": "x"}, "STEPS: expected"),
                                       ({"LLAMA_BIN": "/bin", "REPEATS": "0"}, "REPEATS: expected"),
                                       ({"LLAMA_BIN": "/bin", "THREADS": "0"}, "THREADS: expected"),
                                       ({"OPENVINO_MODEL": "/nonexistent"}, "OPENVINO_MODEL: expected a folder")])
def test_peers_that_are_not_there(llmq, env, names):
    r = peers(llmq.path, env, ROOT / "models/novels-1m")
    assert r.returncode == 2 and names in r.stderr and "Traceback" not in r.stderr and r.stdout == ""


def test_peers_want_a_model_that_is_there(llmq, tmp_path):
    (tmp_path / "llama-bench").write_text(FAKE_BENCH)
    (tmp_path / "llama-bench").chmod(0o755)
    for env, found in (({}, "none"), ({"LLAMA_MODEL": "no.gguf"}, "'no.gguf'")):
        r = peers(llmq.path, {"LLAMA_BIN": str(tmp_path), **env})
        assert (r.returncode, r.stdout) == (2, "")
        assert r.stderr == f"peers.sh: LLAMA_MODEL: expected a .gguf for LLAMA_BIN to run, found {found}\n"


def test_the_roofline_has_a_point_for_each_row(llmq):
    doc = llmq.json("bench", "kernels", "--threads", 1)
    draw = subprocess.run([sys.executable, ROOT / "scripts/bench/roofline.py"], input=json.dumps(doc), text=True,
                          capture_output=True, check=True)
    root = xml.etree.ElementTree.fromstring(draw.stdout)
    points = root.findall("{http://www.w3.org/2000/svg}circle")
    assert len(points) == len(doc["rows"])
    titles = {p.find("{http://www.w3.org/2000/svg}title").text for p in points}
    assert all(any(r["name"] in t and r["shape"] in t for t in titles) for r in doc["rows"])
    top, bottom = (float(p.get("cy")) for p in (max(points, key=gops), min(points, key=gops)))
    assert top < bottom


def gops(point):
    return float(point[0].text.rsplit(", ", 1)[0].split()[-2])
