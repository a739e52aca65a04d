"""quantize --method auto on layers of other kinds than the demo model's: what they have is trained, experts one at a time."""
import contextlib
import os
import pathlib
import pty
import random
import re
import signal
import struct
import subprocess

import pytest

from shim import READ, STOP_AFTER, Fault, Shim, stopped
from test_bad_input import copy, read_st, st_file
from test_quantize import digest, least_memory, leftovers
from test_quantize_bounded import kill_after
from test_quantize_input import TINY

# Experts apart, with a shared one and its gate; stacked, with gate and up in alternating rows, biases and sinks;
# sigmoid scores with a correction; scaled branches and logits. Norms after the branches and soft caps; q, k and v, gate
# and up as one matrix; layer norms, branches side by side, an MLP without a gate; a gated delta rule, Mamba-2.
KINDS = ["qwen2-moe-shared", "gpt-oss-sinks", "bamba",
         *(["gemma2", "gpt-neox", "dots1", "granite-moe", "phi3", "qwen3.5"] if "LLMQ_HARD" in os.environ else [])]


@pytest.fixture(scope="module")
def auto(tmp_path_factory):
    path = tmp_path_factory.mktemp("calib") / "c.ids"
    rng = random.Random(1)
    path.write_text(" ".join(str(rng.randrange(60)) for _ in range(40000)))
    return ["-m", "auto", "--bits", "3", "--group-size", "16", "--calib", path, "--calib-samples", "512",
            "--calib-len", "64"]


@pytest.mark.parametrize("folder", KINDS)
def test_training_helps_and_its_bytes_depend_on_nothing_else(llmq, auto, tmp_path, folder):
    """The KL of the rounded one on text that training did not see falls by 3 to 28 % in 60 steps from weights that are rounded as
    they are. Folding and matching bring most nearer than that before training, which then is left out where it does not help."""
    whole = ["quantize", TINY.parent / folder, *auto, "--tune", "60", "--self-samples", "0"]
    args = [*whole, "--no-match", "--no-fold"]
    r = llmq.json(*args, "-o", tmp_path / "q", "--threads", "1")
    assert r["tuned"] and r["kl_held_back_after"] < 0.975 * r["kl_held_back_before"] and not r["experts_not_tuned"], r
    rounded = llmq.json("quantize", TINY.parent / folder, *auto, "--tune", "0", "--no-match", "--no-fold", "-o", tmp_path / "r")
    near = llmq.json(*whole, "-o", tmp_path / "m")
    assert min(near["kl_held_back_before"], near["kl_held_back_after"]) < 0.97 * r["kl_held_back_before"]
    assert r["check"]["kl_mean"] < 0.99 * rounded["check"]["kl_mean"]
    least = least_memory(llmq, *args, "--threads", "3")
    llmq(*args, "--threads", "3", "--memory-limit", least, "-o", tmp_path / "q2")
    assert digest(tmp_path / "q") == digest(tmp_path / "q2")


def test_a_killed_run_goes_on_to_the_same_bytes(llmq, auto, tmp_path):
    model, more = TINY.parent / "mixtral-moe", [*auto, "--tune", "20", "--self-samples", "0"]
    llmq("quantize", model, "-o", tmp_path / "whole", *more)
    kill_after(llmq, model, tmp_path / "q", 1, *more)
    r = llmq.json("quantize", model, "-o", tmp_path / "q", *more, "--resume")
    assert r["resumed_parts"] >= 2 and r["tuned"]
    assert digest(tmp_path / "q") == digest(tmp_path / "whole")
    assert leftovers(tmp_path) == ["q", "whole"]


def test_experts_without_tokens_stay_as_they_were_rounded(llmq, auto, tmp_path):
    model = copy(TINY.parent / "dots1", tmp_path / "m")
    header, data = read_st(model / "model.safetensors")
    data, name = bytearray(data), "model.layers.1.mlp.gate.e_score_correction_bias"
    at, end = header[name]["data_offsets"]
    size = (end - at) // header[name]["shape"][0]
    # 3 is never chosen, nor is 2, the other of its group.
    data[at + 3 * size:at + 4 * size] = struct.pack("<f", -1000)[4 - size:]
    (model / "model.safetensors").write_bytes(st_file(header, bytes(data)))
    made = {}
    for steps in ("0", "20"):
        q, st = tmp_path / f"q{steps}", tmp_path / f"st{steps}"
        own = ["--self-samples", "0"] if steps != "0" else []
        r = llmq.json("quantize", model, "-o", q, *auto, "--tune", steps, *own)
        llmq("convert", q, "-o", st, "--to", "safetensors")
        h, d = read_st(next(st.glob("*.safetensors")))
        made[steps] = {k: d[slice(*v["data_offsets"])] for k, v in h.items() if "layers.1.mlp.experts." in k}
    assert r["tuned"] and r["experts_not_tuned"] == 2
    same = {k.split("experts.")[1].split(".")[0] for k, v in made["0"].items() if v == made["20"][k]}
    assert same == {"2", "3"}, same


def interrupted_while_tuning(llmq, *args):
    """Ctrl-C once most is done, which a terminal is told: the steps come last. What it is told then."""
    ours, theirs = pty.openpty()
    p = llmq.start(*args, stdout=subprocess.DEVNULL, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    seen = b""
    while not re.search(rb"[6-9]\d%\s+tuning", seen):
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is closed
            piece = b""
        assert piece, f"it ended before: {seen.decode()}"
        seen = seen[-200:] + piece
    p.send_signal(signal.SIGINT)
    said = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(ours, 4096):
            said += piece
    assert p.wait() == 130
    os.close(ours)
    return said.decode()


@pytest.mark.parametrize("folder,own", [("mixtral-moe", []), ("bamba", ["--memory-limit", "least"])])
def test_interrupted_training_goes_on_where_it_was(llmq, auto, tmp_path, folder, own):
    model, steps = TINY.parent / folder, ["--tune", "60", "--self-samples", "0", "--no-check"]
    args = ["quantize", model, *auto, *steps]
    llmq(*args, "-o", tmp_path / "whole")
    if own:
        own = ["--memory-limit", least_memory(llmq, *args)]
    interrupted_while_tuning(llmq, *args, *own, "-o", tmp_path / "q")
    r = llmq.json(*args, "-o", tmp_path / "q", "--threads", "3")
    assert 0 < r["resumed_steps"] < 60 and digest(tmp_path / "q") == digest(tmp_path / "whole")
    if own:
        return

    interrupted_while_tuning(llmq, *args, "-o", tmp_path / "q2")
    kept = tmp_path / "q2.resume" / "tuning.state"
    bad = bytearray(kept.read_bytes())
    bad[len(bad) // 2] ^= 1
    kept.write_bytes(bad)
    r = llmq.json(*args, "-o", tmp_path / "q2")
    assert r["resumed_parts"] and not r["resumed_steps"] and digest(tmp_path / "q2") == digest(tmp_path / "whole")
    (tmp_path / "q2").unlink()

    assert "not be kept" not in interrupted_while_tuning(llmq, *args, "-o", tmp_path / "q2")
    unreadable(kept)
    assert f"how far training is could not be kept: {kept}: " in interrupted_while_tuning(llmq, *args, "-o", tmp_path / "q2")
    kept.rmdir()
    assert not llmq.json(*args, "-o", tmp_path / "q2")["resumed_steps"] and digest(tmp_path / "q2") == digest(tmp_path / "whole")
    assert leftovers(tmp_path) == ["q", "q2", "whole"]


def test_training_whose_check_is_interrupted_is_kept(llmq, auto, tmp_path):
    """After its last step a run looks at 32 windows, and reads the original's answers to them from the disk. A file that
    cannot be read is none."""
    args = ["quantize", TINY.parent / "mixtral-moe", *auto, "--tune", "2", "--self-samples", "0", "--no-check", "--threads", "1"]
    args += ["--memory-limit", least_memory(llmq, *args)]
    shim = Shim(tmp_path)
    shim.set(Fault(READ))
    assert llmq.start(*args, "-o", tmp_path / "whole", env=shim.env()).wait() == 0
    shim.off()
    for damage, steps in ((lambda kept: None), 2), (unreadable, 0):
        out = tmp_path / f"q{steps}"
        with stopped(llmq, Fault(READ, STOP_AFTER, shim.count - 300), *args, "-o", out, stderr=-1) as p:
            p.send_signal(signal.SIGINT)
            p.send_signal(signal.SIGCONT)
            p.communicate()
            assert p.returncode == 130
        damage(pathlib.Path(f"{out}.resume/tuning.state"))
        r = llmq.json(*args, "-o", out)
        assert r["resumed_steps"] == steps and digest(out) == digest(tmp_path / "whole")
    shim.close()


def unreadable(path):
    path.unlink()
    path.mkdir()
