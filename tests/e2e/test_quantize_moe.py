"""quantize on mixtures of experts: the norm that all experts and the router read takes scales."""
import hashlib
import json
import random
import re
import struct

import pytest

from test_bad_input import copy, read_st, st_file
from test_quantize import least_memory
from test_quantize_input import TINY, floats, logits

READS = re.compile(r"mlp\.gate\.|experts\.\d+\.(gate|up)_proj|router|input_linear|shared_expert\.(gate|up)_proj|"
                   r"shared_expert_gate|block_sparse_moe\.gate|\.w[13]\.")
CHANNELS, FACTOR = (3, 17, 25), 32


@pytest.fixture(scope="module")
def calib(tmp_path_factory):
    path = tmp_path_factory.mktemp("calib") / "c.ids"
    rng = random.Random(1)
    path.write_text(" ".join(str(rng.randrange(90)) for _ in range(6000)))
    return ["--calib", path, "--calib-samples", "64", "--calib-len", "64"]


def with_outliers(source, folder):
    """The same function: a few channels of the MLP's norm times a power of two, its readers divided by it."""
    copy(source, folder)
    header, data = read_st(source / "model.safetensors")
    data = bytearray(data)
    for name, v in header.items():
        factor = FACTOR if "post_attention_layernorm" in name else 1 / FACTOR if READS.search(name) else None
        if factor is None or name == "__metadata__":
            continue
        start, end = v["data_offsets"]
        values, K = floats(data[start:end]), v["shape"][-1]
        for i, x in enumerate(values):
            if i % K in CHANNELS:
                data[start + 2 * i:start + 2 * i + 2] = struct.pack("<f", x * factor)[2:]
    (folder / "model.safetensors").write_bytes(st_file(header, bytes(data)))
    return folder



@pytest.mark.parametrize("folder", ["qwen3-moe", "granite-moe", "qwen2-moe-shared"])
def test_outliers_before_the_experts_cost_little(llmq, calib, tmp_path, folder):
    """The logits of qwen3-moe move by 0.407 of their size (awq), with outliers 0.412, unfolded 0.515."""
    plain, q = TINY.parent / folder, tmp_path / "q.llmq"
    odd = with_outliers(plain, tmp_path / "odd")
    exact = logits(llmq, plain, tmp_path / "a")
    assert logits(llmq, odd, tmp_path / "a") == exact
    far = {}
    for why, model, more in (("plain", plain, []), ("odd", odd, []), ("unfolded", odd, ["--no-fold"])):
        p = llmq("quantize", model, "-o", q, "-m", "awq", *calib, *more, "--json")
        losses = [t["loss"] for t in json.loads(p.stdout)["tensors"] if re.search("expert|input_linear|w[13]", t["name"])]
        far[why] = sum(losses)
    assert far["odd"] < 1.3 * far["plain"] and far["odd"] < 0.6 * far["unfolded"], far


@pytest.mark.parametrize("folder", ["qwen3-moe", "granite-moe", "deepseek-v2-mla"])
def test_the_bytes_depend_on_neither_memory_nor_threads(llmq, calib, tmp_path, folder):
    """However few experts' statistics fit at once."""
    for extra in ([], ["--all-experts"]):
        seen = set()
        args = ["quantize", TINY.parent / folder, "-m", "gptq", *calib, *extra]
        three = ["--threads", "3", "--memory-limit"]
        least = least_memory(llmq, *args, "--threads", "3")
        for more in (["--threads", "1"], [*three, least], [*three, least + 20_000]):
            llmq(*args, *more, "-o", tmp_path / "q")
            seen.add(hashlib.sha256((tmp_path / "q").read_bytes()).digest())
        assert len(seen) == 1
