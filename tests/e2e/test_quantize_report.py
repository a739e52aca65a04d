"""What `llmq quantize` shows: the check against the source."""
import pytest

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
    r = llmq.json("quantize", draft, "-o", out, "--method", "rtn", "--bits", "3", "--check", "--calib", few_windows,
                  "--calib-len", "64", *more)["check"]
    e = llmq.json("eval", out, "--ref", draft, "--text", few_windows, "--ctx", "64")
    assert 1 <= r["windows"] <= 8 and r["kl_mean"] > 0
    for key in CHECK:
        assert r[key] == pytest.approx(e[key], rel=1e-9), key


def test_nothing_quantized_costs_nothing(llmq, draft, few_windows, tmp_path):
    r = llmq.json("quantize", draft, "-o", tmp_path / "q.llmq", "--method", "rtn", "--skip", ".", "--check", "--calib",
                  few_windows, "--calib-len", "64")["check"]
    assert r["kl_mean"] == 0 and r["top1_agree"] == 1 and r["perplexity"] == r["ref_perplexity"]


def test_the_check_is_kept_and_changes_no_weight(llmq, draft, tmp_path):
    made = {}
    for name, more in (("with", []), ("one", ["--threads", "1", "--memory-limit", "64K"]), ("without", ["--no-check"])):
        r = llmq.json("quantize", draft, "-o", tmp_path / name, "--method", "awq", *QUICK, *more)
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
