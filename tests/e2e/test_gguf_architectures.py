"""Every architecture that GGUF and config.json both name: read from llama.cpp's files, and written as it writes them."""
import math

import pytest

from conftest import ROOT
from test_architectures import vocabulary
from test_gguf_tokenizer import gguf_pairs
from test_published import read_floats
from test_writers import gguf_tensors

ARCH = ROOT / "tests/golden/arch"
CONVERTED = sorted((ROOT / "tests/golden/gguf/arch").glob("*.gguf"))


@pytest.mark.parametrize("file", CONVERTED, ids=lambda p: p.stem)
def test_llama_cpps_converter_of_every_architecture(llmq, tmp_path, file):
    """Its file of a golden checkpoint gives the checkpoint's logits: same weights, same sums."""
    ids = (13, 32, 51, 70, 89, 18, 37, 56, 75, 4, 23, 42, 61, 80, 9, 28, 47, 66, 85, 14)
    ids = ",".join(str(i % vocabulary(file.stem)) for i in ids)
    for m, o in ((file, "a"), (ARCH / file.stem, "b")):
        llmq("logits", m, "--ids", ids, "-o", tmp_path / o)
    _, a = read_floats(tmp_path / "a", "logits")
    _, b = read_floats(tmp_path / "b", "logits")
    assert max(abs(x - y) for x, y in zip(a, b)) <= 1e-6 * max(map(abs, b))


# Of MLA llama.cpp splits kv_b into two; both forms are read, by it too. Its fixed keys and defaults are not repeated.
MLA = {"attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.key_length_mla",
       "attention.value_length_mla"}
DEFAULTS = {"rope.freq_base", "expert_shared_count",  # of what rotates nothing; where the width of all is said
            "rope.scaling.type", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "tensor_data_layout"}


@pytest.mark.parametrize("file", [f for f in CONVERTED if f.stem != "falcon-h1"], ids=lambda p: p.stem)
def test_what_is_written_is_what_llama_cpps_converter_writes(llmq, tmp_path, file):
    out = tmp_path / "m.gguf"
    theirs = gguf_tensors(file)
    BF16 = 30
    dtype = "bf16" if BF16 in {kind for _, kind, _ in theirs.values()} else "f32"
    llmq("convert", ARCH / file.stem, "-o", out, "--to", "gguf", "--dtype", dtype)
    ours = gguf_tensors(out)
    mla = {n for n in theirs if ".attn_k_b." in n or ".attn_v_b." in n}
    assert theirs.keys() - mla == {n for n in ours if ".attn_kv_b." not in n}
    for n in theirs.keys() - mla:
        dims, kind, data = theirs[n]
        size = math.prod(dims) * (2 if kind == BF16 else 4)
        assert ours[n][:2] == (dims, kind) and ours[n][2][:size] == data[:size], n
    theirs, ours = gguf_pairs(file), gguf_pairs(out)
    arch = theirs["general.architecture"]
    for key in (k for k in theirs if k.startswith(arch + ".")):
        k = key[len(arch) + 1:]
        if k == "context_length" or mla and k in MLA or k.endswith("epsilon") or k.endswith("_pattern"):
            continue  # the first is a default where config.json is silent; the others' spelling is free
        if key in ours:
            assert ours[key] == theirs[key], key
        else:
            assert k in DEFAULTS, key

@pytest.mark.parametrize("name", ["gpt-oss-sinks", "granite-moe", "gpt2", "deepseek-v3", "falcon-40b-gqa", "mpt-alibi", "glm4-moe",
                                  "gpt-neox", "phi2", "cohere2", "bloom-alibi", "stablelm", "gemma4-moe", "gemma4-ple", "granite-h-moe",
                                  "nemotron-h-moe", "lfm2-moe"])
def test_a_quantized_model_of_every_order_keeps_its_values(llmq, tmp_path, name):
    """Halves of experts, experts in one tensor, transposed and grouped rows: in blocks as in floats."""
    llmq("quantize", ARCH / name, "-o", tmp_path / "q.llmq", "--method", "rtn", "-b", 8, "-g", 32, "--sym")
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "q.gguf", "--to", "gguf", "--allow-requantize")
    llmq("convert", tmp_path / "q.gguf", "-o", tmp_path / "f.gguf", "--to", "gguf")
    for m, o in ((tmp_path / "q.llmq", "a"), (tmp_path / "q.gguf", "b"), (tmp_path / "f.gguf", "c")):
        llmq("logits", m, "--ids", "13,32,51,70,89,18,37,56" if vocabulary(name) == 90 else "13,32,51,7,9,18,37,56", "-o", tmp_path / o)
    _, a = read_floats(tmp_path / "a", "logits")
    _, b = read_floats(tmp_path / "b", "logits")
    assert read_floats(tmp_path / "c", "logits")[1] == b
    assert max(abs(x - y) for x, y in zip(a, b)) <= 2e-2 * max(map(abs, a))  # what has no block of 32 is f16, the rest Q8_0 again


@pytest.mark.parametrize("name", ["glm4-moe-lite", "solar-open", "minimax-m2", "exaone-moe", "ernie45-moe", "hunyuan-moe",
                                  "granite-moe-shared", "gemma4-ple", "gemma4-dense", "gemma4-unified", "granite-h", "nemotron-h"])
def test_what_is_written_is_read_back(llmq, tmp_path, name):
    """Mixtures of which no file of llama.cpp's converter is here: to GGUF, and the same logits from there."""
    llmq("convert", ARCH / name, "-o", tmp_path / "m.gguf", "--to", "gguf")
    for m, o in ((ARCH / name, "a"), (tmp_path / "m.gguf", "b")):
        llmq("logits", m, "--ids", "13,32,51,7,9,18,37,56,5,4,23,42,61", "-o", tmp_path / o)
    assert read_floats(tmp_path / "a", "logits")[1] == read_floats(tmp_path / "b", "logits")[1]


@pytest.mark.parametrize("name,why", [("gpt-bigcode-mha", "multi_query: llama.cpp's 'starcoder' runs one head of keys, found 4"),
                                      ("starcoder2", "window: GGUF's 'starcoder2' has no place for 16"),
                                      ("falcon-h1", "attn_scale: GGUF's 'falcon-h1' has no place for 0.225"),
                                      ("phi-qk-layernorm", "wiring_qk_norm: GGUF's 'phi2' has no place")])
def test_what_llama_cpp_would_run_otherwise_is_refused(llmq, tmp_path, name, why):
    assert why in llmq("convert", ARCH / name, "-o", tmp_path / "m.gguf", "--to", "gguf", code=3).stderr
