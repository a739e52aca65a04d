"""Every architecture through every method: quantized, verified, and with the logits of its own
dequantized weights; and back from .llmq byte for byte."""
import json
import pathlib
import random
import struct

import pytest

ARCH = pathlib.Path(__file__).resolve().parents[1] / "golden/arch"
FOLDERS = sorted(p.parent.name for p in ARCH.glob("*/model.safetensors"))
METHODS = ["rtn", "absmax", "int8", "nf4", "fp4", "gptq", "awq"]
CALIBRATED = {"int8", "gptq", "awq"}


@pytest.fixture(scope="module")
def calib(tmp_path_factory):
    """Token ids: these checkpoints have no tokenizer."""
    path = tmp_path_factory.mktemp("calib") / "ids.jsonl"
    rng = random.Random(1)
    lines = [[rng.randrange(90) for _ in range(16)] for _ in range(16)]
    path.write_text("".join(json.dumps({"ids": x} if i % 2 else x) + "\n" for i, x in enumerate(lines)))
    return ["--calib", path, "--calib-samples", "16", "--calib-len", "16"]


def logits(llmq, model, out):
    llmq("logits", model, "--ids", "1,5,9,30,77,2,60,41", "-o", out, "--threads", "1")
    raw = out.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    start, end = json.loads(raw[8:8 + n])["logits"]["data_offsets"]
    return memoryview(raw[8 + n + start:8 + n + end]).cast("f").tolist()


def can_run(llmq, folder, tmp_path):
    p = llmq("logits", ARCH / folder, "--ids", "1", "-o", tmp_path / "l", code=None)
    assert p.returncode == 0 or "the forward pass has no" in p.stderr, p.stderr
    return p.returncode == 0


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_method_gives_the_logits_of_its_dequantized_weights(llmq, calib, tmp_path, folder):
    runs = can_run(llmq, folder, tmp_path)
    for method in METHODS:
        if not runs and method in CALIBRATED:
            continue
        q, f32 = tmp_path / "q.llmq", tmp_path / "f32"
        llmq("quantize", ARCH / folder, "-o", q, "--method", method,
             *(calib if method in CALIBRATED else []), "--threads", "1", "--log-level", "error")
        llmq("verify", q, "--against", ARCH / folder)
        llmq("convert", q, "-o", f32, "--to", "safetensors", "--dtype", "f32")
        if not runs:
            continue
        a, b = logits(llmq, q, tmp_path / "a"), logits(llmq, f32, tmp_path / "b")
        worst, top = max(abs(x - y) for x, y in zip(a, b)), max(map(abs, b))
        assert len(a) == len(b) > 0 and worst <= 2e-6 * top, f"{method}: {worst / top}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_model_comes_back_byte_for_byte(llmq, tmp_path, folder):
    for layout in ("portable", "tile16"):
        llmq("convert", ARCH / folder, "-o", tmp_path / "m.llmq", "--to", "llmq", "--layout", layout)
        llmq("convert", tmp_path / "m.llmq", "-o", tmp_path / "back", "--to", "safetensors")
        for name in ("model.safetensors", "config.json"):
            assert (tmp_path / "back" / name).read_bytes() == (ARCH / folder / name).read_bytes()
    llmq("verify", tmp_path / "m.llmq", "--against", ARCH / folder)
    sizes = [llmq.json("plan", x, "--scheme", "u4-g128", "--bandwidth", "10", "--gflops", "100")["weights_bytes"]
             for x in (ARCH / folder, tmp_path / "m.llmq")]
    assert sizes[0] == sizes[1] > 0
