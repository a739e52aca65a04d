"""llmq quantize --bpw: a budget of bits shared out by measured effects."""
import hashlib
import json
import pathlib
import random
import time

import pytest

from shim import stopped
from test_quantize_to import wide_model

ARCH = pathlib.Path(__file__).resolve().parents[1] / "golden/arch"
QUICK = ["--method", "gptq", "--no-check", "--calib-len", "64", "--calib-samples", "4"]
SHORT = ["32" if x == "64" else x for x in QUICK]  # of models with few positions


@pytest.fixture(scope="session")
def ids(tmp_path_factory):
    """Calibration for the tiny models without a tokenizer, all of which know 96 ids."""
    path = tmp_path_factory.mktemp("ids") / "ids.jsonl"
    draw = random.Random(1)
    path.write_text(json.dumps({"ids": [draw.randrange(96) for _ in range(8 * 64)]}) + "\n")
    return path


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def role(t):
    return t["name"].removesuffix(".weight").split(".")[-1]


def layer(t):
    return t["name"].split("layers.")[1].split(".")[0]


def test_the_budget_is_kept_and_more_bits_promise_less_loss(llmq, draft, tmp_path):
    last = 1e9
    for x in (2.5, 4.3):
        r = llmq.json("quantize", draft, "-o", tmp_path / "q.llmq", *QUICK, "--bpw", x)
        assert x - 0.1 < r["bpw"] <= x
        assert r["kl_predicted"] == pytest.approx(sum(t["effect"] for t in r["tensors"] if t["layer"] >= 0))
        assert r["kl_predicted"] < last
        last = r["kl_predicted"]
    doc = llmq.json("inspect", tmp_path / "q.llmq")
    assert doc["recipe"]["bpw"] == 4.3 and doc["recipe"]["bpw_fused"] is True and "bits" not in doc["recipe"]


def test_at_the_bits_of_a_uniform_width_it_is_no_worse(llmq, draft, tmp_path):
    more = ["--method", "gptq", "--check", "--calib-len", "128", "--calib-samples", "32"]
    alike = llmq.json("quantize", draft, "-o", tmp_path / "q.llmq", *more, "--bits", "3")
    mixed = llmq.json("quantize", draft, "-o", tmp_path / "q.llmq", *more, "--bpw", alike["bpw"] + 1e-6)
    assert mixed["bpw"] <= alike["bpw"] + 1e-6
    assert mixed["check"]["kl_mean"] <= alike["check"]["kl_mean"]


def test_the_bytes_depend_on_neither_threads_nor_interruptions(llmq, draft, tmp_path):
    args = [*QUICK, "--bpw", "3.4", "--embed", "auto", "--log-level", "error"]
    for n in (1, 2, 3):
        llmq("quantize", draft, "-o", tmp_path / f"{n}.llmq", *args, "--threads", n)
    out, choice = tmp_path / "q.llmq", tmp_path / "q.llmq.resume/choice.json"
    with stopped(llmq, choice.name, "quantize", draft, "-o", out, *args):
        pass
    made = choice.stat().st_mtime_ns
    p = llmq.start("quantize", draft, "-o", out, *args, "--resume")
    while p.poll() is None:
        assert not choice.exists() or choice.stat().st_mtime_ns == made
        time.sleep(0.002)
    assert {digest(tmp_path / f) for f in ("1.llmq", "2.llmq", "3.llmq", "q.llmq")} == {digest(out)}
    assert not choice.exists()


def test_overrides_and_skips_come_first(llmq, draft, tmp_path):
    r = llmq.json("quantize", draft, "-o", tmp_path / "q.llmq", *QUICK, "--bpw", "6",
                  "--override", "down_proj=u8-g64", "--skip", "q_proj")
    by = {}
    for t in r["tensors"]:
        by.setdefault(role(t), set()).add(t["scheme"])
        assert ("effect" in t) == (role(t) not in ("down_proj", "embed_tokens"))
    assert by["down_proj"] == {"u8-g64"} and "q_proj" not in by
    assert r["bpw"] <= 6


@pytest.mark.parametrize("fused", [True, False])
def test_parts_of_fused_layers_take_one_scheme(llmq, draft, tmp_path, fused):
    more = [] if fused else ["--no-bpw-fused"]
    r = llmq.json("quantize", draft, "-o", tmp_path / "q.llmq", *QUICK, "--bpw", "3.4", *more)
    differ = 0
    for parts in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
        for i in "01":
            differ += len({t["scheme"] for t in r["tensors"] if role(t) in parts and layer(t) == i}) - 1
    assert (differ == 0) == fused


def test_tied_embeddings_take_part_as_one_matrix(llmq, draft, tmp_path):
    for option in ("--embed", "--lm-head"):
        r = llmq.json("quantize", draft, "-o", tmp_path / option, *QUICK, "--bpw", "4", option, "auto")
        names = [t["name"] for t in r["tensors"]]
        assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names
        shown = llmq.json("inspect", tmp_path / option)
        assert 3.9 < r["bpw_model"] <= 4 and r["bpw_model"] == shown["bpw_model"] and r["bpw"] == shown["bpw"]
    assert llmq("quantize", draft, "-o", tmp_path / "q", *QUICK, "--bpw", "4", "--embed", "auto").stderr.count("tied") == 1


def test_head_and_embedding_of_their_own(llmq, ids, tmp_path):
    r = llmq.json("quantize", ARCH / "mistral-swa", "-o", tmp_path / "q.llmq", *SHORT, "--calib", ids, "--bpw", "5",
                  "--embed", "auto", "--lm-head", "auto")
    outer = [t for t in r["tensors"] if t["name"] in ("model.embed_tokens.weight", "lm_head.weight")]
    assert len(outer) == 2 and all("effect" in t for t in outer) and r["bpw_model"] <= 5


@pytest.mark.parametrize("name", ["opt-350m-postnorm", "mixtral-moe", "gpt-oss-sinks", "deepseek-v2-mla"])
def test_models_without_a_backward_pass_are_measured_forwards(llmq, ids, tmp_path, name):
    r = llmq.json("quantize", ARCH / name, "-o", tmp_path / "q.llmq", *SHORT, "--calib", ids, "--bpw", "5")
    assert r["bpw"] <= 5 and r["kl_predicted"] > 0
    schemes = {}
    for t in r["tensors"]:
        if t.get("expert", -1) >= 0:
            schemes.setdefault((layer(t), role(t)), set()).add(t["scheme"])
    assert all(len(s) == 1 for s in schemes.values())
    assert len(schemes) > 0 or "moe" not in name
    assert len({t["scheme"] for t in r["tensors"]}) > 1


def test_a_tensor_that_no_type_of_blocks_divides_stays(llmq, ids, tmp_path):
    """DBRX's experts here have rows of 8 weights in their last matrix."""
    calib = ["--calib", tmp_path / "64.ids"]
    calib[1].write_text(" ".join(str(i % 61 + 3) for i in range(4 * 32)))
    r = llmq.json("quantize", ARCH / "dbrx", "-o", tmp_path / "q.gguf", *SHORT, *calib, "--bpw", "9")
    assert r["bpw_model"] <= 9 and r["kl_predicted"] > 0
    assert {t["scheme"] for t in r["tensors"] if role(t) == "w2"} == {"bf16"}


def test_a_dry_run_says_what_can_be_asked_for(llmq, draft):
    r = llmq.json("quantize", draft, "--method", "auto", "--bpw", "3.5", "--dry-run")
    assert 2 < r["bpw_least"] < 2.25 and r["bpw_most"] == 16
    auto = [t["name"] for t in r["tensors"] if t["scheme"] == "auto"]
    assert len(auto) == 14 and r["bytes_out"] < r["bytes_in"]


REFUSED = [
    ("too few", ["--bpw", "1.5"], "expected 2.17"),
    ("more than the source has", ["--bpw", "17"], "to 16.000"),
    ("a width beside it", ["--bpw", "3", "--bits", "3"], "expected no --bits"),
    ("a group size beside it", ["--bpw", "3", "-g", "64"], "expected no --group-size"),
    ("nothing to choose for", ["--bpw", "3", "--skip", "."], "--skip and --override"),
    ("the head without a budget", ["--lm-head", "auto"], "--lm-head auto needs --bpw"),
    ("ties without a budget", ["--no-bpw-fused"], "--bpw-fused needs --bpw"),
    ("a method without calibration", ["--method", "rtn", "--bpw", "3"], "--bpw: expected a method"),
]


@pytest.mark.parametrize("why,args,text", REFUSED, ids=[x[0] for x in REFUSED])
@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["run", "dry-run"])
def test_what_makes_no_sense_is_refused(llmq, draft, tmp_path, why, args, text, dry):
    quick = QUICK[2:] if "--method" in args else QUICK
    p = llmq("quantize", draft, "-o", tmp_path / "q.llmq", *quick, *args, *dry, code=2)
    assert text in p.stderr and not list(tmp_path.iterdir())


@pytest.fixture(scope="session")
def blocks(llmq, tmp_path_factory):
    """A Llama of rows that blocks of 256 divide, of random weights, some layers' larger than others'; and ids."""
    np = pytest.importorskip("numpy")
    folder = tmp_path_factory.mktemp("blocks")
    draw = np.random.default_rng(1)
    model = wide_model(folder / "m", 2, False, lambda n: (draw.standard_normal(n // 2) * 0.05).astype(np.float16).tobytes(), 2)
    (folder / "ids.jsonl").write_text(json.dumps({"ids": [int(x) for x in draw.integers(0, 64, 8 * 64)]}) + "\n")
    return model, folder / "ids.jsonl"


def test_the_types_of_gguf_share_the_bits_of_the_whole_file(llmq, blocks, tmp_path):
    model, ids = blocks
    last = 1e9
    for x in (2.6, 5.0):
        out = tmp_path / "q.gguf"
        r = llmq.json("quantize", model, "-o", out, "--to", "gguf", *QUICK, "--calib", ids, "--bpw", x)
        shown = llmq.json("inspect", out)
        assert x - 0.1 < r["bpw_model"] <= x and shown["bpw_model"] == r["bpw_model"]
        assert all("effect" in t for t in r["tensors"]) and r["kl_predicted"] < last
        assert {"model.embed_tokens.weight", "lm_head.weight"} <= {t["name"] for t in r["tensors"]}
        last = r["kl_predicted"]
    assert list(tmp_path.iterdir()) == [out]


def test_an_ending_says_gguf_too_and_runs_go_on_to_the_same_bytes(llmq, draft, tmp_path):
    args = [*QUICK, "--bpw", "5.2", "--log-level", "error"]
    llmq("quantize", draft, "-o", tmp_path / "1.gguf", "--to", "gguf", *args, "--threads", 1)
    out = tmp_path / "q.gguf"
    with stopped(llmq, "choice.json", "quantize", draft, "-o", out, *args, "--threads", 2):
        pass
    llmq("quantize", draft, "-o", out, *args, "--resume", "--threads", 2)
    assert digest(out) == digest(tmp_path / "1.gguf")


def test_candidates_are_what_the_format_holds(llmq, draft, tmp_path):
    """awq has 4 bits alone; all that is written is read again."""
    args = [*QUICK, "--bpw", "4.4", "--to", "awq"]
    r = llmq.json("quantize", draft, "-o", tmp_path / "q", *args, "--dry-run")
    assert r["bpw_least"] > 4 and r["bpw_most"] < 5


HOLDS = [
    ("awq has no 3 bits", ["--to", "awq", "--bpw", "3"], "bits per weight of the linear layers, found 3"),
    ("fp8 has no grids", ["--to", "fp8", "-m", "gptq", "--bpw", "5"], "--to fp8: "),
    ("awq the method makes no blocks", ["--to", "gguf", "-m", "awq", "--bpw", "5"], "expected a method that makes blocks"),
    ("blocks say their zeros", ["--to", "gguf", "--sym", "--bpw", "5"], "--to gguf says every scheme: expected no --sym"),
    ("a mix says all", ["--to", "gguf:Q4_K_M", "--bpw", "5"], "--to gguf:Q4_K_M says every scheme: expected no --bpw"),
    ("fewer than the file can have", ["--to", "gguf", "--bpw", "1.5"], "bits per weight of the whole model"),
]


@pytest.mark.parametrize("why,args,text", HOLDS, ids=[x[0] for x in HOLDS])
def test_what_the_format_cannot_hold_is_refused_before_the_work(llmq, draft, tmp_path, why, args, text):
    quick = QUICK[2:] if "-m" in args else QUICK
    out = tmp_path / ("q.gguf" if "gguf" in args[1] else "q")
    text_first = [] if "bits per weight" in text else ["--calib", tmp_path / "none.txt"]  # of the range after the text
    p = llmq("quantize", draft, "-o", out, *quick, *text_first, *args, code=None)
    assert p.returncode and text in p.stderr and not list(tmp_path.iterdir()), p.stderr
