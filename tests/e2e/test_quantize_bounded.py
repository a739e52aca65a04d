"""llmq quantize under bad luck: killed, repeated, run twice at once, its source changed meanwhile;
and in less memory than the model takes."""
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import struct
import subprocess

import pytest

from harness import SANITIZED
from shim import stopped
from test_quantize import QUICK, digest, least_memory, leftovers

GPTQ = ["--method", "gptq", "--no-check", *QUICK]


def part(out, n):
    return pathlib.Path(f"{out}.resume/part-{n:05}.llmq")


def kill_after(llmq, model, out, n, *args):
    """Start a run and kill it once part n is there."""
    with stopped(llmq, part(out, n).name, "quantize", model, "-o", out, *args, "--log-level", "error"):
        pass


@pytest.fixture(scope="module")
def whole(llmq, model, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "whole.llmq"
    llmq("quantize", model, "-o", out, *GPTQ)
    return digest(out)


def test_a_plain_repeat_goes_on(llmq, model, tmp_path, whole):
    out = tmp_path / "q.llmq"
    kill_after(llmq, model, out, 1, *GPTQ)
    r = llmq.json("quantize", model, "-o", out, *GPTQ)
    assert r["resumed_parts"] >= 2 and digest(out) == whole
    assert leftovers(tmp_path) == ["q.llmq"]


CHANGED = [("an option", ["--bits", "3"], "recipe.bits: 4, now 3"),
           ("calibration", ["--seed", "5"], "provenance.calibration."),
           ("the method", ["--method", "awq"], 'recipe.method: "gptq", now "awq"')]


@pytest.mark.parametrize("why,more,text", CHANGED, ids=[x[0] for x in CHANGED])
def test_state_of_another_run_is_refused_by_name(llmq, draft, tmp_path, why, more, text):
    out, kept = tmp_path / "q.llmq", part(tmp_path / "q.llmq", 0)
    kill_after(llmq, draft, out, 0, *GPTQ)
    now = [*(GPTQ[2:] if "--method" in more else GPTQ), *more]
    for how in ([], ["--resume"]):
        p = llmq("quantize", draft, "-o", out, *now, *how, code=2)
        assert text in p.stderr and "--no-resume" in p.stderr and kept.exists()
        assert "an array" not in p.stderr  # what differs in it is named
    llmq("quantize", draft, "-o", out, *now, "--no-resume")
    llmq("quantize", draft, "-o", tmp_path / "new.llmq", *now)
    assert digest(out) == digest(tmp_path / "new.llmq")


def test_state_of_an_edited_source_is_refused(llmq, model, tmp_path):
    src, out = tmp_path / "src", tmp_path / "q.llmq"
    shutil.copytree(model, src)
    kill_after(llmq, src, out, 0, *GPTQ)
    config = src / "config.json"
    c = json.loads(config.read_text())
    config.chmod(0o644)
    config.write_text(json.dumps({**c, "rms_norm_eps": 2e-6}))
    p = llmq("quantize", src, "-o", out, *GPTQ, code=2)
    assert "config." in p.stderr and "now" in p.stderr


def test_two_runs_on_one_output(llmq, model, tmp_path, whole):
    out = tmp_path / "q.llmq"
    with stopped(llmq, part(out, 0).name, "quantize", model, "-o", out, *GPTQ, "--log-level", "error") as p:
        second = llmq("quantize", model, "-o", out, *GPTQ, code=1)
        assert "another llmq quantize" in second.stderr and part(out, 0).exists()
        p.send_signal(signal.SIGCONT)
        assert p.wait() == 0
    assert digest(out) == whole and leftovers(tmp_path) == ["q.llmq"]


def shorter(path):
    os.truncate(path, path.stat().st_size // 4)


def other_bytes(path):
    with open(path, "r+b") as f:
        f.seek(-100, os.SEEK_END)
        f.write(b"\1")


@pytest.mark.parametrize("change", [shorter, other_bytes])
def test_a_source_that_changes_meanwhile_is_noticed(llmq, model, tmp_path, change):
    src, out = tmp_path / "src", tmp_path / "q.llmq"
    shutil.copytree(model, src)
    weights = src / "model.safetensors"
    weights.chmod(0o644)
    with stopped(llmq, part(out, 0).name, "quantize", src, "-o", out, *GPTQ, "--log-level", "error", stderr=-1) as p:
        change(weights)
        p.send_signal(signal.SIGCONT)
        text = p.communicate()[1]
    assert p.returncode == 1 and "changed while it was read" in text and not out.exists()


def test_a_full_disk_under_hidden_states_ends_the_run_and_the_next_goes_on(llmq, draft, tmp_path):
    """2 MB of states for calibration, and with as many windows of its own 4 MB for tuning."""
    out = tmp_path / "q.llmq"
    args = ["quantize", draft, "-m", "awq", "--no-check", "--calib-samples", "64", "--calib-len", "64", "--tune",
            "1", "--self-samples", "64", "--log-level", "error"]
    limit = ["--memory-limit", least_memory(llmq, *args)]
    for most, left in [(1 << 20, []), (3 << 20, ["q.llmq.resume"])]:
        p = llmq(*args, *limit, "-o", out, code=1,
                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))
        assert f"quantize: {out}.resume: states on disk: File too large" in p.stderr and leftovers(tmp_path) == left
    assert llmq.json(*args, *limit, "-o", out)["resumed_parts"] > 0
    llmq(*args, "-o", tmp_path / "whole")
    assert digest(out) == digest(tmp_path / "whole") and leftovers(tmp_path) == ["q.llmq", "whole"]


def test_killed_again_and_again(llmq, model, tmp_path, whole):
    """LLMQ_KILLS=n: as many kills (scripts/ci/check-hard.sh); where they fall is drawn from a seed."""
    out, rng = tmp_path / "q.llmq", random.Random(7)
    for _ in range(int(os.environ.get("LLMQ_KILLS", "4"))):
        p = llmq.start("quantize", model, "-o", out, *GPTQ, "--log-level", "error")
        try:
            p.wait(timeout=rng.uniform(0.02, 1.5))
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
        if out.exists():
            assert digest(out) == whole
            out.unlink()
    llmq("quantize", model, "-o", out, *GPTQ)
    assert digest(out) == whole and leftovers(tmp_path) == ["q.llmq"]


def write_model(folder, layers, hidden, ffn, vocab=1024):
    """A Llama checkpoint in which every row is the same noise: only its size matters."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": vocab,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "tie_word_embeddings": False}))
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (1, hidden),
              "lm_head.weight": (vocab, hidden)}
    for i in range(layers):
        p = f"model.layers.{i}."
        for name in "qkvo":
            shapes[f"{p}self_attn.{name}_proj.weight"] = (hidden, hidden)
        for name, shape in (("gate", (ffn, hidden)), ("up", (ffn, hidden)), ("down", (hidden, ffn))):
            shapes[f"{p}mlp.{name}_proj.weight"] = shape
        for name in ("input", "post_attention"):
            shapes[f"{p}{name}_layernorm.weight"] = (1, hidden)
    header, at = {}, 0
    for name, (n, k) in shapes.items():
        shape = [k] if n == 1 else [n, k]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * n * k]}
        at += 2 * n * k
    text = json.dumps(header).encode()
    rng = random.Random(1)
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for n, k in shapes.values():
            row = b"".join(struct.pack(
                "<f", rng.gauss(0, k ** -0.5))[2:] for _ in range(k))
            f.write(row * n)
    return folder


@pytest.mark.skipif(SANITIZED, reason="a sanitizer has memory of its own")
def test_memory_stays_at_a_tensor_where_no_calibration_is(llmq, tmp_path):
    src = write_model(tmp_path / "m", layers=16, hidden=1024, ffn=2048)
    size = (src / "model.safetensors").stat().st_size
    r = llmq.json("quantize", src, "-o", tmp_path / "q.llmq", "--method", "rtn", "--threads", "2")
    assert size > 300e6 and r["peak_rss_bytes"] < 0.25 * size
