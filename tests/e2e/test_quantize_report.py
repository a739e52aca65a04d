"""What `llmq quantize` shows: the check against the source, the report, progress."""
import fcntl
import json
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import termios

import pytest

from test_quantize import least_memory

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECK = ["kl_mean", "top1_agree", "perplexity", "ref_perplexity", "windows", "tokens"]
QUICK = ["--calib-len", "64", "--calib-samples", "8"]


@pytest.fixture(scope="session")
def few_windows(tmp_path_factory, text):
    """Text of about 5 windows of 64 tokens: the check takes all of them."""
    path = tmp_path_factory.mktemp("text") / "few.txt"
    path.write_bytes(text.read_bytes()[:1200])
    return path


@pytest.mark.parametrize("more", [[], ["--embed", "u4-g64"], ["--lm-head", "u4-g64", "--embed", "u8-g64"]])
def test_the_check_says_what_eval_says(llmq, draft, few_windows, tmp_path, more):
    out = tmp_path / "q.llmq"
    r = llmq.json("quantize", draft, "-o", out, "--method", "nf4", "--check", "--calib", few_windows,
                  "--calib-len", "64", *more)["check"]
    e = llmq.json("eval", out, "--ref", draft, "--text", few_windows, "--ctx", "64")
    assert 1 <= r["windows"] <= 8 and r["kl_mean"] > 0
    for key in CHECK:
        assert r[key] == pytest.approx(e[key], rel=1e-9), key


def test_the_check_scores_text_alone_where_two_ids_come_before_it(llmq, draft, few_windows, tmp_path):
    model, out = tmp_path / "model", tmp_path / "q.llmq"
    shutil.copytree(draft, model)
    path = model / "tokenizer.json"
    path.chmod(0o644)
    tok = json.loads(path.read_text())
    tok["post_processor"]["special_tokens"] = {str(i): {"id": str(i), "ids": [i], "tokens": [str(i)]} for i in (1, 5)}
    tok["post_processor"]["single"] = [*({"SpecialToken": {"id": str(i), "type_id": 0}} for i in (1, 5)), {"Sequence": {"id": "A", "type_id": 0}}]
    path.write_text(json.dumps(tok))
    r = llmq.json("quantize", model, "-o", out, "--method", "nf4", "--check", "--calib", few_windows, "--calib-len", "64")["check"]
    e = llmq.json("eval", out, "--ref", model, "--text", few_windows, "--ctx", "64")
    assert r["tokens"] == 62 * r["windows"]
    for key in CHECK:
        assert r[key] == pytest.approx(e[key], rel=1e-9), key


def test_nothing_quantized_costs_nothing(llmq, draft, few_windows, tmp_path):
    r = llmq.json("quantize", draft, "-o", tmp_path / "q.llmq", "--method", "nf4", "--skip", ".", "--check", "--calib",
                  few_windows, "--calib-len", "64")["check"]
    assert r["kl_mean"] == 0 and r["top1_agree"] == 1 and r["perplexity"] == r["ref_perplexity"]


def test_the_check_is_kept_and_changes_no_weight(llmq, draft, tmp_path):
    made = {}
    args = ["quantize", draft, "--method", "awq", *QUICK]
    tight = ["--threads", "1", "--memory-limit", least_memory(llmq, *args, "--threads", "1")]
    for name, more in (("with", []), ("one", tight), ("without", ["--no-check"])):
        r = llmq.json(*args, "-o", tmp_path / name, *more)
        made[name] = (tmp_path / name).read_bytes()
        kept = llmq.json("inspect", tmp_path / name)
        assert kept["provenance"].get("check") == r.get("check")
        assert ("check" in r) == (name != "without")
        made[name + " tensors"] = [t["xxh3"] for t in kept["tensors"]]
    assert made["with"] == made["one"]
    assert made["with tensors"] == made["without tensors"]


def test_the_check_sees_other_windows_than_calibration(llmq, draft, few_windows, tmp_path):
    args = ["--method", "awq", "--calib", few_windows, "--calib-len", "64"]
    all_used = llmq("quantize", draft, "-o", tmp_path / "a", *args, "--calib-samples", "100")
    assert "no check: calibration used all" in all_used.stderr
    r = llmq.json("quantize", draft, "-o", tmp_path / "b", *args, "--calib-samples", "3")
    assert r["check"]["windows"] == 2


def test_a_finished_file_repeats_its_check(llmq, draft, tmp_path):
    args = ["quantize", draft, "-o", tmp_path / "q", "--method", "awq", *QUICK, "--resume"]
    first, again = llmq.json(*args), llmq.json(*args)
    assert again["already_done"] and again["check"] == first["check"]


# ---- --report FILE.html ----
MARKUP = "</script><script>alert(1)</script>&amp;'\"ü모델"


def page_data(path):
    page = path.read_text("utf-8")
    assert page.count("</script>") == 2 and page.endswith("</html>\n")
    return page, json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1))


def test_the_report_is_one_page_with_all_of_the_run(llmq, draft, tmp_path):
    out, page = tmp_path / "q.llmq", tmp_path / "q.html"
    r = llmq.json("quantize", draft, "-o", out, "--method", "awq", *QUICK, "--report", page)
    text, data = page_data(page)
    assert not re.search(r"(src|href)\s*=|url\(|@import|fetch\(|XMLHttpRequest|innerHTML", text)
    assert set(re.findall(r"https?://[^\"' ]*", text)) == {"http://www.w3.org/2000/svg"}
    assert data["tensors"] == r["tensors"] and data["check"] == r["check"]
    kept = llmq.json("inspect", out)
    assert data["recipe"] == kept["recipe"] and data["provenance"] == kept["provenance"] and len(data["xxh3"]) == 32
    assert sorted(p.name for p in tmp_path.iterdir()) == ["q.html", "q.llmq"]


@pytest.mark.parametrize("name, more", [("q.gguf", ["--to", "gguf:Q4_0"]), ("q", ["--to", "compressed-tensors"])])
def test_a_report_of_another_format_has_the_recipe_too(llmq, draft, tmp_path, name, more):
    out, page = tmp_path / name, tmp_path / "q.html"
    r = llmq.json("quantize", draft, "-o", out, "--method", "rtn", *more, "--report", page)
    _, data = page_data(page)
    assert data["tensors"] == r["tensors"] and data["recipe"]["method"] == "rtn" and "xxh3" not in data
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([name, "q.html"])


def test_the_report_knows_inputs_and_folding(llmq, draft, tmp_path):
    tensors = llmq.json("quantize", draft, "-o", tmp_path / "q", "--method", "awq", *QUICK)["tensors"]
    for t in [t for t in tensors if t["layer"] >= 0]:
        most = [c["max"] for c in t["top"]]
        assert most == sorted(most, reverse=True) and most[0] == t["in_max"] > t["in_mean"] > 0
        assert len({c["channel"] for c in t["top"]}) == 4
        lo, hi = t["fold"]
        assert 0 < lo <= 1 <= hi and 0 <= t["alpha"] <= 1
        assert t["layer"] in (0, 1) and t["role"] in ("q", "k", "v", "o", "gate", "up", "down")
    data_free = llmq.json("quantize", draft, "-o", tmp_path / "r", "--method", "rtn")["tensors"]
    assert not any("in_max" in t or "fold" in t for t in data_free)


def test_names_in_the_report_are_never_markup(llmq, draft, tmp_path):
    folder = tmp_path / MARKUP.replace("/", "∕")
    folder.mkdir()
    page = folder / "page.html"
    r = llmq.json("quantize", draft, "-o", folder / "q", "--method", "rtn", "--skip", MARKUP, "--report", page)
    _, data = page_data(page)
    assert data["out"] == r["out"] == str(folder / "q")
    assert data["recipe"]["skip"] == [MARKUP]


@pytest.mark.parametrize("args, says", [(["--report", "/dev/null/page.html"], "--report"),
                                        (["--report", ""], "--report"),
                                        (["--report", "{out}"], "--report"),
                                        (["--report", "x.html", "--dry-run"], "--dry-run")])
def test_a_report_that_cannot_be_is_refused_before_the_work(llmq, draft, tmp_path, args, says):
    out = tmp_path / "q"
    p = llmq("quantize", draft, "-o", out, "--method", "rtn", *[a.format(out=out) for a in args], code=None)
    assert p.returncode and says in p.stderr and len(p.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


# ---- progress ----
def on_a_terminal(llmq, *args, columns=150):
    """What the program writes to stderr when that is a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    p = subprocess.Popen([llmq.path, *map(str, args)], stdout=subprocess.DEVNULL, stderr=theirs, cwd=ROOT,
                         env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    seen = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # closed on the other side
            break
        if not more:
            break
        seen += more
    os.close(ours)
    assert p.wait() == 0
    return seen.decode()


def test_a_terminal_shows_all_of_the_job_and_the_phase(llmq, draft, tmp_path):
    seen = on_a_terminal(llmq, "quantize", draft, "-o", tmp_path / "q", "--method", "gptq", *QUICK, "--threads", 1)
    lines = [x.replace("\x1b[K", "") for x in seen.split("\r") if "%" in x]
    assert len(lines) > 1 and all(re.match(r"\[#*\.*\] +\d+%  (left \d+:\d\d)? +[\d.]+ \w+  \[#*\.*\] +\d+%  \w", x)
                                  for x in lines)
    percents = [int(re.search(r"(\d+)%", x).group(1)) for x in lines]
    assert percents == sorted(percents)
    assert all(len(x) < 150 for x in lines)
    assert seen.rstrip().endswith("\x1b[K")  # nothing stays behind


def test_a_phase_that_loads_the_model_first_is_not_done_by_that(llmq, draft, tmp_path):
    seen = on_a_terminal(llmq, "quantize", draft, "-o", tmp_path / "q", "--tune", "1", "--self-samples", 64, *QUICK,
                         "--threads", 1)
    own = [int(x) for x in re.findall(r"(\d+)%  own text", seen)]
    assert any(0 < x < 100 for x in own) and own == sorted(own)


@pytest.mark.parametrize("columns", [1, 2, 20])
def test_bars_are_cut_to_a_narrow_terminal(llmq, draft, tmp_path, columns):
    seen = on_a_terminal(llmq, "quantize", draft, "-o", tmp_path / "q", "--method", "rtn", *QUICK, columns=columns)
    bars = re.findall(r"\r([^\r\n\x1b]*)\x1b\[K", seen)
    assert bars and max(map(len, bars)) < columns


def test_only_a_terminal_gets_bars_and_errors_alone_get_silence(llmq, draft, tmp_path):
    args = ["quantize", draft, "-o", tmp_path / "q", "--method", "gptq", *QUICK]
    assert not re.search(r"[\r\x1b]", llmq(*args).stderr)
    assert llmq(*args, "--log-level", "error").stderr == ""
    assert on_a_terminal(llmq, *args, "--log-level", "error") == ""


def test_json_says_where_the_time_went(llmq, draft, tmp_path):
    args = ["quantize", draft, "-o", tmp_path / "q"]
    r = llmq.json(*args, "--method", "awq", *QUICK)
    assert set(r["phase_seconds"]) == {"statistics", "rounding", "forward", "check", "writing"}
    assert 0 < sum(r["phase_seconds"].values()) <= r["seconds"]
    assert set(llmq.json(*args, "--method", "rtn")["phase_seconds"]) == {"rounding", "writing"}
