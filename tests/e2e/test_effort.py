"""llmq quantize --effort: what it costs is said before, the result is its word's, and it is refused where it changes nothing."""
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EFFORTS = ["fast", "standard", "best"]
QUICK = ["--calib-samples", "4", "--calib-len", "64", "--no-check"]


def tensors(llmq, path):
    return {t["name"]: t["xxh3"] for t in llmq.json("inspect", path)["tensors"]}


@pytest.mark.parametrize("effort", EFFORTS[:2])
def test_the_bytes_are_those_of_the_word_at_any_number_of_threads(llmq, draft, tmp_path, effort):
    args = ["quantize", draft, "--effort", effort, *QUICK]
    r = llmq.json(*args, "-o", tmp_path / "1", "--threads", "1")
    assert r["predicted_seconds"] > 0 and ("tuning" in r["phase_seconds"]) == (effort != "fast")
    for threads in ("2", "3"):
        llmq(*args, "-o", tmp_path / threads, "--threads", threads)
        assert (tmp_path / "1").read_bytes() == (tmp_path / threads).read_bytes()
    assert llmq.json("inspect", tmp_path / "1")["recipe"]["effort"] == effort


def test_standard_is_the_default_and_single_settings_are_those_of_best(llmq, draft, tmp_path):
    for name, more in [("plain", []), ("standard", ["--effort", "standard"]), ("fast", ["--effort", "fast"]),
                       ("single", ["--tune", "2"]), ("best", ["--effort", "best", "--tune", "2"])]:
        llmq("quantize", draft, "-o", tmp_path / name, "--calib-samples", "24", "--calib-len", "32", "--no-check", *more)
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "standard").read_bytes()
    assert tensors(llmq, tmp_path / "plain") != tensors(llmq, tmp_path / "fast")
    assert tensors(llmq, tmp_path / "single") == tensors(llmq, tmp_path / "best")
    recipes = {n: llmq.json("inspect", tmp_path / n)["recipe"] for n in ("single", "best")}
    assert recipes["best"].pop("effort") == "best" and recipes["single"] == recipes["best"]  # as before there was one


def test_many_steps_are_of_another_kind(llmq, tmp_path):
    """From 400 steps on they are on two windows, seven of eight of which the model writes."""
    ids, own = tmp_path / "c.ids", {}
    ids.write_text(" ".join(str(3 + i * i % 60) for i in range(2000)))
    for steps in (399, 400):
        llmq("quantize", ROOT / "tests/golden/arch/llama3-gqa", "-o", tmp_path / "q", "--tune", steps, "--group-size", "16", "--calib",
             ids, "--calib-samples", "16", "--calib-len", "16", "--no-check")
        own[steps] = [f["windows"] for f in llmq.json("inspect", tmp_path / "q")["provenance"]["calibration"]["files"]]
    assert own == {399: [16, 48], 400: [16, 112]}


def test_an_interrupted_run_goes_on_with_its_own_effort_alone(llmq, draft, tmp_path):
    args = ["quantize", draft, "-o", tmp_path / "q", *QUICK]
    llmq(*args, "--effort", "fast")
    assert llmq.json(*args, "--effort", "fast", "--resume")["already_done"]
    assert not llmq.json(*args, "--effort", "standard", "--resume")["already_done"]


def test_the_time_is_foretold_before_the_work_and_beside_it(llmq, draft, tmp_path):
    plans = [llmq.json("quantize", draft, "--dry-run", "--effort", e) for e in EFFORTS]
    phases = [p["predicted_phase_seconds"] for p in plans]
    assert all(sum(p.values()) == pytest.approx(q["predicted_seconds"]) for p, q in zip(phases, plans))
    # Each is measured against its own check, whose work is the same: the machine may be busier during one of them.
    shares = [q["predicted_seconds"] / p["check"] for p, q in zip(phases, plans)]
    assert 4 * shares[0] < shares[2] > 2 * shares[1]
    assert "tuning" not in phases[0] and phases[1]["tuning"] > 0 and phases[2]["own text"] > 0
    line = r"time: about [\d.]+ (s|min|h) on this machine as busy as it is \(.*\d"
    assert re.search(line, llmq("quantize", draft, "--dry-run").stdout)
    run = llmq("quantize", draft, "-o", tmp_path / "q", "-m", "gptq", *QUICK)
    assert re.search(line, run.stderr) and re.search(r"[\d.]+ s, \d+ s predicted, peak memory", run.stdout)
    assert "predicted_seconds" not in llmq.json("quantize", draft, "--dry-run", "-m", "rtn")  # nothing to wait for


@pytest.mark.parametrize("method", ["gptq", "auto"])
def test_what_is_left_as_it_is_takes_no_time(llmq, draft, method):
    plans = [llmq.json("quantize", draft, "--dry-run", "-m", method, *more)["predicted_phase_seconds"] for more in ([], ["--skip", "mlp"])]
    whole, part = (p["rounding"] / p["check"] for p in plans)  # the check's work is the same, the machine may be busier
    assert 0 < part < 0.8 * whole


def test_it_is_refused_where_it_changes_nothing(llmq, tmp_path):
    griffin = ROOT / "tests/golden/arch/recurrent-gemma"
    text = llmq("quantize", griffin, "-o", tmp_path / "x", "--effort", "best", code=2).stderr
    assert "--effort: layers of this kind have no backward pass to be tuned by" in text
    text = llmq("quantize", griffin, "-o", tmp_path / "x", "-m", "gptq", "--effort", "best", code=2).stderr
    assert "--effort: expected a method that has it (auto), found gptq" in text
    text = llmq("quantize", griffin, "-o", tmp_path / "x", "--effort", "hasty", code=2).stderr
    assert "--effort: expected one of fast standard best, found 'hasty'" in text
