"""llmq quantize: every method, the same bytes whatever happens on the way, refusals."""
import hashlib
import json
import os
import pathlib
import resource
import shutil
import signal
import struct

import pytest

from shim import stopped

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUICK = ["--calib-samples", "4", "--calib-len", "64"]
METHODS = {"rtn": 4.156, "hqq": 4.5, "absmax": 8.104, "int8": 8.104, "nf4": 4.505, "fp4": 4.505, "gptq": 4.156, "awq": 4.156,
           "auto": 4.156}


def quick(method):
    """Few tokens, and few steps of tuning where there is any."""
    return QUICK + (["--tune", "3"] if method == "auto" else [])


def digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def least_memory(llmq, *args):
    """The smallest --memory-limit for this run."""
    return llmq.json(*args, "--dry-run")["least_memory_limit"]


def leftovers(folder):
    return sorted(p.name for p in pathlib.Path(folder).iterdir())


def edited(model, folder, change):
    """A copy of the model; change(header, data) edits tensors of model.safetensors in place."""
    shutil.copytree(model, folder)
    path = folder / "model.safetensors"
    os.chmod(path, 0o644)
    raw = bytearray(path.read_bytes())
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    change(header, memoryview(raw)[8 + n:])
    path.write_bytes(raw)
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_each_method_has_its_size_and_report(llmq, model, tmp_path, method):
    r = llmq.json("quantize", model, "-o", tmp_path / "q.llmq", "--method", method, *quick(method))
    assert r["method"] == method and r["out"].endswith("q.llmq")
    assert abs(r["bpw"] - METHODS[method]) < 0.001 or method == "int8" and r["bpw"] < 16
    assert r["bytes_in"] > r["bytes_out"] == os.path.getsize(tmp_path / "q.llmq")
    layers = [t for t in r["tensors"] if t["layer"] >= 0]
    assert len(layers) == 42 and all(t["rmse"] > 0 for t in r["tensors"])
    assert [(t["role"], t["scheme"]) for t in r["tensors"] if t["layer"] < 0] == [("embed", "u8-g32")]
    if method in ("gptq", "awq", "auto"):
        assert sum(t["loss"] for t in layers) < 0.9 * sum(t["loss_rtn"] for t in layers)
    assert leftovers(tmp_path) == ["q.llmq"]


@pytest.mark.parametrize("method", ["rtn", "int8", "nf4", "gptq", "gptq --no-fold", "awq", "auto"])
def test_the_bytes_depend_on_neither_threads_nor_path_nor_memory_limit(llmq, draft, tmp_path, method):
    seen = set()
    args = ["quantize", draft, "--method", *method.split(), *quick(method)]
    tight = ["--memory-limit", least_memory(llmq, *args, "--threads", "7")]
    for i, more in enumerate(([], ["--threads", "1"], ["--threads", "7", *tight])):
        out = tmp_path / f"{i}.llmq"
        llmq(*args, "-o", out, *more)
        seen.add(digest(out))
    assert len(seen) == 1


def test_another_seed_changes_calibrated_results_only(llmq, draft, tmp_path):
    for method, n in (("gptq", 2), ("rtn", 1)):
        for seed in "01":
            llmq("quantize", draft, "-o", tmp_path / seed, "--method", method, "--seed", seed, *QUICK)
        assert len({digest(tmp_path / s) for s in "01"}) == n


@pytest.mark.parametrize("method", ["gptq --no-fold", "rtn", "auto"])
def test_killed_at_any_moment_resume_gives_the_same_file(llmq, model, draft, tmp_path, method):
    model, last = (draft, 1) if method == "auto" else (model, 4)
    args = ["--method", *method.split(), *quick(method)]
    llmq("quantize", model, "-o", tmp_path / "whole.llmq", *args)
    out = tmp_path / "q.llmq"
    out.write_bytes(b"LLMQ, what was there before")
    for name in ["q.llmq"] if method == "rtn" else [f"part-{n:05}.llmq" for n in sorted({0, last // 2, last})]:
        with stopped(llmq, name, "quantize", model, "-o", out, *args, "--resume", "--log-level", "error"):
            assert out.read_bytes() == b"LLMQ, what was there before" or digest(out) == digest(tmp_path / "whole.llmq")
    r = llmq.json("quantize", model, "-o", out, *args, "--resume")
    assert digest(out) == digest(tmp_path / "whole.llmq")
    assert r["already_done"] or r["resumed_parts"] > last or method == "rtn"
    assert llmq.json("quantize", model, "-o", out, *args, "--resume")["already_done"]
    assert leftovers(tmp_path) == ["q.llmq", "whole.llmq"]


def test_a_broken_part_is_made_again(llmq, draft, tmp_path):
    model, out, args = draft, tmp_path / "q.llmq", ["--method", "gptq", *QUICK]
    part = tmp_path / "q.llmq.resume/part-00001.llmq"
    with stopped(llmq, part.name, "quantize", model, "-o", out, *args, "--log-level", "error"):
        pass
    raw = bytearray(part.read_bytes())
    raw[5000] ^= 1
    part.write_bytes(raw)
    llmq("quantize", model, "-o", out, *args, "--resume")
    llmq("quantize", model, "-o", tmp_path / "whole.llmq", *args)
    assert digest(out) == digest(tmp_path / "whole.llmq")


def test_interrupted_by_the_user_it_says_how_to_go_on(llmq, model, tmp_path):
    out = tmp_path / "q.llmq"
    with stopped(llmq, "part-00000.llmq", "quantize", model, "-o", out, "--method", "gptq", "--calib-len", "64",
                 stderr=-1) as p:
        p.send_signal(signal.SIGINT)
        p.send_signal(signal.SIGCONT)
        text = p.communicate()[1]
    assert p.returncode == 130 and "--resume" in text and not out.exists()


def test_a_full_disk_is_one_clear_error(llmq, model, tmp_path):
    out = tmp_path / "q.llmq"
    out.write_bytes(b"LLMQ, an old one")

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    p = llmq("quantize", model, "-o", out, "--method", "rtn", code=1, preexec_fn=small_files)
    assert "q.llmq" in p.stderr and "Traceback" not in p.stderr
    assert out.read_bytes() == b"LLMQ, an old one"
    assert not [x for x in tmp_path.rglob("*") if "tmp-" in x.name]
    llmq("quantize", model, "-o", out, "--method", "rtn", "--resume")
    assert leftovers(tmp_path) == ["q.llmq"]


BAD_USAGE = [
    ("a method of a later version", ["--method", "aqlm"], "rtn, hqq, absmax, int8, fp8, nf4, fp4, gptq, awq"),
    ("five bits", ["--method", "rtn", "--bits", "5"], "2, 3, 4 or 8"),
    ("nf4 blocks", ["--method", "nf4", "-g", "48"], "power of two"),
    ("both ranges", ["--method", "rtn", "--sym", "--asym"], "exclude"),
    ("a broken regex", ["--method", "rtn", "--skip", "(up"], "--skip"),
    ("an override without scheme", ["--method", "rtn", "--override", "up_proj"], "REGEX=scheme"),
    ("an unknown scheme", ["--method", "rtn", "--override", "up_proj=q4_0"], "q4_0"),
    ("an unknown head scheme", ["--method", "rtn", "--lm-head", "u5-g3"], "--lm-head"),
    ("samples longer than the model", ["--method", "gptq", "--calib-len", "4096"], "--calib-len"),
    ("bits of a method that has one width", ["--method", "nf4", "--bits", "3"], "--bits: expected a method"),
    ("an order without GPTQ", ["--method", "awq", "--no-act-order"], "--act-order: expected a method"),
    ("narrow with zero points", ["--method", "gptq", "--narrow"], "--narrow needs --sym"),
    ("fractional zero points without hqq", ["--method", "rtn", "--override", "up_proj=u4-g64-fzero"], "fractional"),
    ("a share without int8", ["--method", "absmax", "--outlier-share", "0.1"], "--outlier-share: expected a method"),
    ("hqq without zero points", ["--method", "hqq", "--sym"], "--sym: expected a method"),
    ("no output", ["--method", "rtn"], "--out"),
]


@pytest.mark.parametrize("why,args,text", BAD_USAGE, ids=[x[0] for x in BAD_USAGE])
def test_wrong_usage_is_refused(llmq, model, tmp_path, why, args, text):
    out = [] if why == "no output" else ["-o", tmp_path / "q.llmq"]
    p = llmq("quantize", model, *out, *args, code=2)
    assert text in p.stderr and leftovers(tmp_path) == []


def test_nan_weights_are_refused_by_name(llmq, model, tmp_path):
    name = "model.layers.3.mlp.up_proj.weight"

    def poison(header, data):
        at = header[name]["data_offsets"][0] + 2 * 1234
        data[at:at + 2] = b"\xc0\x7f"

    bad = edited(model, tmp_path / "bad", poison)
    p = llmq("quantize", bad, "-o", tmp_path / "q.llmq", "--method", "rtn", code=3)
    assert name in p.stderr and leftovers(tmp_path) == ["bad"]


def test_bad_calibration_text_is_refused(llmq, model, tmp_path):
    out = tmp_path / "q.llmq"
    p = llmq("quantize", model, "-o", out, "--method", "gptq", "--calib", tmp_path / "none", code=3)
    assert "none" in p.stderr
    (tmp_path / "short").write_text("Too short.")
    p = llmq("quantize", model, "-o", out, "--method", "gptq", "--calib", tmp_path / "short", code=3)
    assert "expected at least 511 tokens" in p.stderr
    llmq("quantize", model, "-o", out, "--method", "gptq", "--calib", tmp_path, code=3)
    assert leftovers(tmp_path) == ["short"]


def test_a_quantized_model_is_not_quantized_again(llmq, model, tmp_path):
    llmq("quantize", model, "-o", tmp_path / "a.llmq", "--method", "rtn")
    p = llmq("quantize", tmp_path / "a.llmq", "-o", tmp_path / "b.llmq", "--method", "nf4", code=3)
    assert "u4-g128-asym" in p.stderr and leftovers(tmp_path) == ["a.llmq"]


def test_auto_is_the_default(llmq, model):
    plans = [llmq.json("quantize", model, "--dry-run", *more) for more in ([], ["-m", "auto"])]
    for p in plans:  # time is what the machine says just then
        assert p.pop("predicted_seconds") > 0 and p.pop("predicted_phase_seconds")
    assert plans[0] == plans[1] and plans[0]["method"] == "auto"


def test_overrides_skips_and_groups_that_do_not_divide(llmq, model, tmp_path):
    p = llmq("quantize", model, "--method", "rtn", "--dry-run", "--json", "--skip", "layers\\.0\\.",
             "--override", "down_proj=u8-g96", "--override", "proj=i8-row", "--override", "o_proj=nf4")
    got = {t["name"]: t["scheme"] for t in json.loads(p.stdout)["tensors"]}
    assert got["model.layers.0.mlp.down_proj.weight"] == "bf16"
    assert got["model.layers.1.mlp.down_proj.weight"] == "u8-g96"
    assert got["model.layers.1.self_attn.o_proj.weight"] == "i8-row", "the first match counts"
    assert got["model.embed_tokens.weight"] == "u8-g32", "what embeddings get unasked"
    assert p.stderr == "--override 'o_proj=nf4': takes no weight\n", "an earlier one took all"
    p = llmq("quantize", model, "--method", "rtn", "--dry-run", "--json", "-g", "100")
    got = {t["name"]: t["scheme"] for t in json.loads(p.stdout)["tensors"]}
    assert got["model.layers.0.mlp.down_proj.weight"] == "u4-g96-asym"
    assert "down (6 tensors): groups of 100 do not divide 768 inputs (these do: 64, 96, 128, 192); taking 96\n" in p.stderr
    assert p.stderr.count("\n") == 7, "one line for each kind of tensor"
    p = llmq("quantize", model, "--method", "rtn", "--dry-run", "--override", "down_proj=u4-g100")
    assert p.stderr == "down (6 tensors): groups of 100 do not divide 768 inputs (these do: 64, 96, 128, 192); taking 96\n"
    p = llmq("quantize", model, "--method", "rtn", "--dry-run", "--skip", "Layers", "--override", "x_proj=nf4")
    assert "--skip 'Layers': takes no weight" in p.stderr and "--override 'x_proj=nf4'" in p.stderr


def test_the_head_of_a_tied_model_is_split_aloud(llmq, model, tmp_path):
    p = llmq("quantize", model, "-o", tmp_path / "q.llmq", "--method", "rtn", "--lm-head", "u8-g128")
    assert "splits the head" in p.stderr
    if "inspect" in llmq.commands():
        names = {t["name"]: t["scheme"] for t in llmq.json("inspect", tmp_path / "q.llmq")["tensors"]}
        assert names["lm_head.weight"] == "u8-g128" and names["model.embed_tokens.weight"] == "u8-g32"


def test_data_makes_four_bits_better(llmq, draft, tmp_path):
    """On 8 windows of held-out text, with the calibration text inside the program: rtn 0.0515, awq 0.0311, gptq 0.0157;
    perplexity 73.31 becomes 74.14."""
    text = tmp_path / "text"
    text.write_bytes((ROOT / "tests/golden/text/novels-heldout-100w.txt").read_bytes()[:15200])
    r = {}
    for method in ("rtn", "awq", "gptq"):
        out = tmp_path / f"{method}.llmq"
        llmq("quantize", draft, "-o", out, "--method", method, "--calib-samples", "32", "--no-check")
        r[method] = llmq.json("eval", out, "--ref", draft, "--text", text, "--ctx", "512")
    assert r["gptq"]["kl_mean"] < 0.55 * r["awq"]["kl_mean"] and r["awq"]["kl_mean"] < 0.65 * r["rtn"]["kl_mean"]
    assert r["gptq"]["perplexity"] < 1.015 * r["gptq"]["by_ctx"][0]["ref_perplexity"]
