"""llmq quantize: how much memory it says that it takes, and staying within a limit."""
import json
import os
import re

import pytest

from harness import SANITIZED
from ranks import by_sockets
from test_quantize import digest, least_memory, leftovers
from test_quantize_bounded import write_model

pytestmark = pytest.mark.skipif(SANITIZED, reason="a sanitizer has memory of its own")
# Two chunks of calibration text, so that hidden states can be on disk.
CALIB = ["--calib-samples", "40", "--calib-len", "64", "--threads", "2"]
RUNS = [("straight from tensor to tensor", "rtn", []),
        ("with a check, which wants parts", "nf4", ["--check"]),
        ("statistics without H", "int8", CALIB),
        ("H, folding, the factor", "gptq", CALIB),
        ("a layer in stages", "gptq", [*CALIB, "--no-fold"]),
        ("no factor", "awq", [*CALIB, "--no-check"]),
        ("curvature and tuning", "auto", [*CALIB, "--tune", "2"]),
        *[("bits shared out, of embedding and head too", "gptq",
           ["--calib-samples", "16", "--calib-len", "64", "--threads", "2", "--no-check", "--bpw", "4.5", "--embed", "auto",
            "--lm-head", "auto"])] * ("LLMQ_HARD" in os.environ)]


@pytest.mark.parametrize("why,method,more", RUNS, ids=[f"{r[1]}: {r[0]}" for r in RUNS])
def test_the_prediction_holds_on_a_small_model(llmq, model, tmp_path, why, method, more):
    r = llmq.json("quantize", model, "-o", tmp_path / "q", "-m", method, *more)
    assert 0.8 < r["predicted_rss"] / r["peak_rss_bytes"] < 1.25
    assert leftovers(tmp_path) == ["q"]


def test_tuning_takes_no_more_than_is_foretold(llmq, model, tmp_path):
    """What rounding freed, 15 MB here, is given back before; else it is beside what is trained."""
    r = llmq.json("quantize", model, "-o", tmp_path / "q", "-m", "gptq", "--tune", "2", "--no-check", "--calib-samples", "16",
                  "--calib-len", "512", "--threads", "2")
    assert 0.9 < r["peak_rss_bytes"] / r["predicted_rss"] < 1


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Two layers of 7 MB each, and token ids for it."""
    folder = tmp_path_factory.mktemp("wide")
    (folder / "text.ids").write_text(" ".join(str(i * 7919 % 1024) for i in range(40 * 64)))
    return write_model(folder / "m", layers=2, hidden=512, ffn=1536), folder / "text.ids"


@pytest.mark.parametrize("method", ["rtn", "gptq", "gptq --no-fold", "awq"])
def test_the_prediction_holds_on_a_wide_model(llmq, wide, tmp_path, method):
    src, ids = wide
    calib = ["--calib", ids, "--calib-samples", "4", "--calib-len", "64"] if method != "rtn" else []
    r = llmq.json("quantize", src, "-o", tmp_path / "q", "-m", *method.split(), "--threads", "2", "--no-check", *calib)
    assert 0.8 < r["predicted_rss"] / r["peak_rss_bytes"] < 1.25


def test_the_prediction_holds_where_the_vocabulary_is_most_of_the_model(llmq, tmp_path):
    """Embedding and head, 66 MB each, are made when what the layers needed (67 MB of states) is given back."""
    src = write_model(tmp_path / "m", layers=1, hidden=512, ffn=512, vocab=1 << 16)
    (tmp_path / "text.ids").write_text(" ".join(str(i * 7919 % 1024) for i in range(1 << 15)))
    r = llmq.json("quantize", src, "-o", tmp_path / "q", "-m", "gptq", "--threads", "2", "--no-check", "--calib", tmp_path / "text.ids",
                  "--calib-samples", "64", "--calib-len", "512")
    assert 0.8 < r["predicted_rss"] / r["peak_rss_bytes"] < 1.25


@pytest.mark.parametrize("method", ["gptq --fold", "gptq --no-fold", "awq"])
def test_the_prediction_holds_for_a_rank_of_several(llmq, tmp_path, method):
    """Of states (32 MB of one process) each has a third; rows of a slice of the text go between them."""
    src = write_model(tmp_path / "m", layers=1, hidden=256, ffn=768)
    (tmp_path / "text.ids").write_text(" ".join(str(i * 7919 % 1024) for i in range(1 << 16)))
    args = ["quantize", src, "-m", *method.split(), "--threads", "1", "--no-check", "--calib", tmp_path / "text.ids", "--calib-samples",
            "64", "--calib-len", "512", "--json", "-o", tmp_path / "q"]
    planned = json.loads(by_sockets(llmq, 3, *args, "--dry-run").out[0])
    r = json.loads(by_sockets(llmq, 3, *args).out[0])
    assert 0.8 < r["predicted_rss"] / r["peak_rss_bytes"] < 1.25
    for key in ("predicted_rss", "predicted_disk", "least_memory_limit"):
        assert planned[key] == r[key] > 0, key


def test_a_dry_run_says_what_a_run_would_need(llmq, draft, tmp_path):
    args = ["quantize", draft, "-o", tmp_path / "q", "-m", "gptq", *CALIB]
    plan, run = llmq.json(*args, "--dry-run"), llmq.json(*args)
    for key in ("predicted_rss", "predicted_disk", "least_memory_limit"):
        assert plan[key] == run[key] > 0, key
    assert "predicted" in llmq(*args, "--dry-run").stdout and "predicted" in llmq(*args).stdout


@pytest.mark.parametrize("more", [["-m", "gptq"], ["-m", "awq", "--no-fold", "--tune", "2"], ["-m", "gptq", "--no-fold"],
                                  ["-m", "auto", "--tune", "30", "--self-samples", "2"],
                                  ["-m", "gptq", "--tune", "30", "--to", "gguf:Q4_K_M"]],
                         ids=["gptq", "tuning", "in stages", "tuning of codes", "tuning of codes whose scales stay"])
def test_states_on_disk_give_the_same_bytes_in_less_memory(llmq, draft, tmp_path, more):
    args = ["quantize", draft, *more, "--no-check", "--calib-samples", "64", "--calib-len", "64"]
    free = llmq.json(*args, "-o", tmp_path / "free")
    least = least_memory(llmq, *args)
    tight = llmq.json(*args, "-o", tmp_path / "tight", "--memory-limit", least)
    assert digest(tmp_path / "free") == digest(tmp_path / "tight")
    assert tight["peak_rss_bytes"] < 1.1 * least
    assert least <= tight["predicted_rss"] < free["predicted_rss"]
    assert tight["predicted_disk"] > free["predicted_disk"]


def test_too_little_memory_names_the_least_and_any_more_will_do(llmq, draft, tmp_path):
    args = ["quantize", draft, "-o", tmp_path / "q", "-m", "gptq", *CALIB, "--no-check"]
    text = llmq(*args, "--memory-limit", "1M", code=2).stderr
    least = int(re.search(r"--memory-limit: expected at least (\d+)M \(which \w+ takes\), found 1M", text)[1])
    assert leftovers(tmp_path) == []
    assert llmq(*args, "--memory-limit", f"{least - 1}M", "--dry-run", code=2).stderr
    for more in (0, 1, 2, 3, 5, 8, 13, 100, 10000):
        llmq(*args, "--memory-limit", f"{least + more}M", "--dry-run")
    llmq(*args, "--memory-limit", f"{least}M")


def test_sizes_that_are_shown_can_be_given_back(llmq, draft):
    args = ["quantize", draft, "-o", "none.llmq", "-m", "gptq", *CALIB, "--no-check", "--dry-run"]
    shown = re.search(r"memory: (\d+M) predicted \(\w+ takes most\), (\d+M) at least; .*: \d+M$", llmq(*args).stdout, re.M)
    for limit in shown.groups():
        llmq(*args, "--memory-limit", limit)
    planned = re.search(r"^ +gptq +\d+M of memory \(--memory-limit down to (\d+M)\)", llmq("plan", draft).stdout, re.M)
    llmq("quantize", draft, "-m", "gptq", "--dry-run", "--memory-limit", planned[1])
    for limit, found in [("1000", "1000"), ("1.5M", "1536K"), ("0.001G", "1073741"), ("2MiB", "2M")]:
        text = llmq(*args, "--memory-limit", limit, code=2).stderr
        assert text.endswith(f"found {found}\n"), text
