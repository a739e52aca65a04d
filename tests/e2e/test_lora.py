"""Adapters: what peft makes of the same ones (tests/golden/make/lora.py), and what is refused."""
import json
import shutil
import struct

import pytest

from harness import ROOT

GOLDEN = ROOT / "tests/golden/lora"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
IDS = ",".join(map(str, EXPECTED["ids"]))
SPELLED = [("plain", "plain"), ("plain.gguf", "plain"), ("dora", "dora")]  # the adapter, and its logits


def logits(llmq, model, tmp_path, *args):
    """Every STEPth of each row, as expected.json has them."""
    out = tmp_path / "logits.safetensors"
    llmq("logits", model, "--ids", IDS, "-o", out, *args)
    raw = out.read_bytes()
    rows = memoryview(raw[8 + struct.unpack("<Q", raw[:8])[0]:]).cast("f")
    width = len(rows) // len(EXPECTED["ids"])
    return [list(rows[i * width:(i + 1) * width:EXPECTED["step"]]) for i in range(len(EXPECTED["ids"]))]


def apart(a, b):
    """The largest difference, as a share of the largest logit."""
    top = max(abs(x) for row in b for x in row)
    return max(abs(x - y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True)) / top


@pytest.fixture(scope="module")
def tiny():
    return ROOT / "models/novels-1m"


@pytest.mark.parametrize("name,as_", SPELLED)
def test_a_merged_adapter_gives_the_logits_of_peft(llmq, tiny, tmp_path, name, as_):
    r = llmq.json("convert", tiny, "-o", tmp_path / "m", "--to", "safetensors", "--dtype", "f32",
                  "--merge-lora", GOLDEN / name)
    assert r["merged"] == (14 if as_ == "plain" else 6) and not r["bit_exact"]
    got = logits(llmq, tmp_path / "m", tmp_path)
    assert apart(got, EXPECTED[as_]) < 5e-5 < 1e-2 < apart(got, EXPECTED["base"])


@pytest.mark.parametrize("name", ["plain", "plain.gguf"])
def test_an_adapter_is_merged_into_a_model_of_gguf(llmq, tiny, tmp_path, name):
    llmq("convert", tiny, "-o", tmp_path / "m.gguf", "--to", "gguf")
    llmq("convert", tmp_path / "m.gguf", "-o", tmp_path / "merged.gguf", "--to", "gguf", "--dtype", "f32",
         "--merge-lora", GOLDEN / name)
    assert apart(logits(llmq, tmp_path / "merged.gguf", tmp_path), EXPECTED["plain"]) < 5e-5


def test_a_merged_model_keeps_its_types_and_is_rounded_once(llmq, tiny, tmp_path):
    llmq("convert", tiny, "-o", tmp_path / "m", "--to", "safetensors", "--merge-lora", GOLDEN / "plain")
    assert (tmp_path / "m/config.json").read_bytes() == (tiny / "config.json").read_bytes()
    assert apart(logits(llmq, tmp_path / "m", tmp_path), EXPECTED["plain"]) < 2e-2
    llmq("convert", tiny, "-o", tmp_path / "f", "--to", "safetensors", "--dtype", "f32", "--merge-lora", GOLDEN / "plain")
    llmq("convert", tmp_path / "f", "-o", tmp_path / "b", "--to", "safetensors", "--dtype", "bf16")
    assert (tmp_path / "b/model.safetensors").read_bytes() == (tmp_path / "m/model.safetensors").read_bytes()


def test_codes_take_no_adapter(llmq, tiny, tmp_path):
    llmq("quantize", tiny, "-o", tmp_path / "q.llmq", "--method", "rtn")
    p = llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "m", "--to", "safetensors",
             "--merge-lora", GOLDEN / "plain", code=3)
    assert "merging: expected floats, found u4-g128" in p.stderr
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("name,as_", SPELLED)
def test_an_adapter_beside_the_weights_gives_the_logits_of_peft(llmq, tiny, tmp_path, name, as_):
    got = logits(llmq, tiny, tmp_path, "--lora", GOLDEN / name)
    assert apart(got, EXPECTED[as_]) < 5e-5 < 1e-2 < apart(got, EXPECTED["base"])


@pytest.mark.parametrize("method", ["rtn", "nf4", "int8"])
@pytest.mark.parametrize("name", ["plain", "dora"])
def test_beside_codes_it_does_what_it_does_to_their_values(llmq, tiny, tmp_path, method, name):
    llmq("quantize", tiny, "-o", tmp_path / "q.llmq", "--method", method)
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "f", "--to", "safetensors", "--dtype", "f32")
    llmq("convert", tmp_path / "f", "-o", tmp_path / "m", "--to", "safetensors", "--merge-lora", GOLDEN / name)
    want = logits(llmq, tmp_path / "m", tmp_path)
    assert apart(logits(llmq, tmp_path / "f", tmp_path, "--lora", GOLDEN / name), want) < 5e-5
    if method == "int8":
        return  # rounds its inputs, which floats do not
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "t.llmq", "--to", "llmq", "--layout", "tile16")
    for model in ("q.llmq", "t.llmq"):
        assert apart(logits(llmq, tmp_path / model, tmp_path, "--lora", GOLDEN / name), want) < 5e-5


def test_run_answers_as_the_merged_model(llmq, tiny, tmp_path):
    llmq("convert", tiny, "-o", tmp_path / "m", "--to", "safetensors", "--dtype", "f32", "--merge-lora", GOLDEN / "plain")
    asked = ["-p", "It was a dark night", "-n", "24", "--activations", "f32", "--kv-cache-dtype", "f32"]
    for more in ([], ["--speculative-ngram"], ["--beams", "3"], ["--threads", "1"], ["--max-num-batched-tokens", "2"]):
        merged, beside, base = (llmq("run", *args, *asked, *more).stdout
                                for args in ([tmp_path / "m"], [tiny, "--lora", GOLDEN / "plain"], [tiny]))
        assert merged == beside != base
    p = llmq("run", tiny, "--lora", tmp_path / "none", *asked, code=3)
    assert f"adapter {tmp_path / 'none'}" in p.stderr


def test_eval_measures_the_adapter(llmq, tiny, tmp_path, text):
    llmq("convert", tiny, "-o", tmp_path / "m", "--to", "safetensors", "--dtype", "f32", "--merge-lora", GOLDEN / "plain")
    asked = ["--text", text, "--ctx", "64", "--windows", "2"]
    merged = llmq.json("eval", tmp_path / "m", *asked)
    r = llmq.json("eval", tiny, *asked, "--lora", GOLDEN / "plain", "--ref", tiny)
    assert r["perplexity"] == pytest.approx(merged["perplexity"], rel=1e-4)
    assert r["ref_perplexity"] == pytest.approx(llmq.json("eval", tiny, *asked)["perplexity"], rel=1e-6)


# ---- what is refused ----

def tensors(folder):
    raw = (folder / "adapter_model.safetensors").read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + n])
    head.pop("__metadata__", None)
    return {k: [v["dtype"], v["shape"], raw[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]]
            for k, v in head.items()}


def write(folder, all_):
    head, data = {}, b""
    for k, (dtype, shape, raw) in all_.items():
        head[k] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


FIRST = "base_model.model.model.layers.0.self_attn.q_proj."
A, B = FIRST + "lora_A.weight", FIRST + "lora_B.weight"


def half(t):
    del t[B]


def turned(t):
    t[A][1].reverse()


def short(t):
    t[B] = ["F16", [64, 2], t[B][2][:256]]


def nan(t):
    t[B][2] = b"\x00\x7e" + t[B][2][2:]


def infinite(t):
    t[A][2] = t[A][2][:-2] + b"\x00\x7c"


def whole_numbers(t):
    t[A][0] = "I16"


def embedding(t):
    t["base_model.model.model.embed_tokens.lora_embedding_A"] = t.pop(A)


def unknown(t):
    t[A.replace("q_proj", "z_proj")] = t.pop(A)


def beyond(t):
    t[A.replace("layers.0", "layers.2")] = t.pop(A)


def saved_whole(t):
    t["base_model.model.lm_head.weight"] = t.pop(A)


def tied_head(t):
    t["base_model.model.lm_head.lora_A.weight"] = t.pop(A)


def norm(t):
    t["base_model.model.model.norm.lora_A.weight"] = t.pop(A)


def nothing(t):
    t.clear()


@pytest.mark.parametrize("change,says", [
    (half, f"tensor '{A}': expected both A and B, found no B"),
    (turned, f"tensor '{A}': expected a rank of 2 as adapter_config.json says"),
    (short, f"tensor '{B}': expected [128,2], found [64,2]"),
    (nan, f"tensor '{B}': element 0: expected a number, found NaN"),
    (infinite, f"tensor '{A}': element 255: expected a number, found infinity"),
    (whole_numbers, f"tensor '{A}': expected f32, f16 or bf16, found i16"),
    (embedding, "embed_tokens.lora_embedding_A': expected lora_A, lora_B or lora_magnitude_vector of a linear"),
    (unknown, "self_attn.z_proj.lora_A.weight': expected a linear of LlamaForCausalLM, found another"),
    (beyond, "layers.2.self_attn.q_proj.lora_A.weight': expected a linear of LlamaForCausalLM"),
    (saved_whole, "base_model.model.lm_head.weight': expected lora_A, lora_B"),
    (tied_head, "lm_head.lora_A.weight': expected a weight that is there, found lm_head, which is the embedding"),
    (norm, "model.norm.lora_A.weight': expected a linear of LlamaForCausalLM"),
    (nothing, "expected tensors of an adapter, found none"),
], ids=lambda x: getattr(x, "__name__", ""))
def test_wrong_tensors_are_one_error(llmq, tiny, tmp_path, change, says):
    folder = shutil.copytree(GOLDEN / "plain", tmp_path / "a")
    all_ = tensors(folder)
    change(all_)
    write(folder, all_)
    p = llmq("convert", tiny, "-o", tmp_path / "m", "--to", "safetensors", "--merge-lora", folder, code=3)
    assert says in p.stderr and p.stderr.count("\n") == 1 and f"adapter {folder}: " in p.stderr
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("key,value,says", [
    ("peft_type", "IA3", 'peft_type: expected "LORA", found "IA3"'),
    ("peft_type", None, "peft_type"),
    ("bias", "all", "bias: expected none, found \"all\""),
    ("lora_bias", True, "lora_bias: expected none, found true"),
    ("modules_to_save", ["lm_head"], "modules_to_save: expected none, found an array"),
    ("trainable_token_indices", [3], "trainable_token_indices: expected none"),
    ("target_parameters", ["mlp.experts.down_proj"], "target_parameters: expected none"),
    ("use_qalora", True, "use_qalora: expected none"),
    ("layer_replication", [[0, 2]], "layer_replication: expected none"),
    ("alora_invocation_tokens", [1], "alora_invocation_tokens: expected none"),
    ("init_lora_weights", "pissa_niter_4", "init_lora_weights: expected an adapter to the model as it is"),
    ("rank_pattern", {".*q_proj": 2}, "rank_pattern: expected numbers of modules by name, found '.*q_proj'"),
    ("alpha_pattern", {"q_proj": "x"}, "alpha_pattern: expected numbers of modules by name"),
    ("alpha_pattern", [4], "alpha_pattern: expected numbers of modules by name, found an array"),
    ("rank_pattern", "q_proj", 'rank_pattern: expected numbers of modules by name, found "q_proj"'),
    ("alpha_pattern", {"q_proj": -1}, "alpha_pattern: q_proj: expected a number 0..1e+06, found -1"),
    ("alpha_pattern", {"q_proj": 1e300}, "alpha_pattern: q_proj: expected a number 0..1e+06, found 1e+300"),
    ("rank_pattern", {"q_proj": 3}, "q_proj.lora_A.weight': expected a rank of 3 as adapter_config.json says, found 2"),
    ("r", 4, "expected a rank of 4 as adapter_config.json says, found 2"),
    ("r", 0, "r: expected an integer 1..4096, found 0"),
    ("lora_alpha", "x", "lora_alpha"),
])
def test_what_is_not_supported_is_refused_by_name(llmq, tiny, tmp_path, key, value, says):
    folder = shutil.copytree(GOLDEN / "plain", tmp_path / "a")
    config = json.loads((folder / "adapter_config.json").read_text())
    config[key] = value
    (folder / "adapter_config.json").write_text(json.dumps(config))
    p = llmq("convert", tiny, "-o", tmp_path / "m", "--to", "safetensors", "--merge-lora", folder, code=3)
    assert says in p.stderr and p.stderr.count("\n") == 1


def test_what_is_no_adapter_is_said(llmq, tiny, model, tmp_path):
    llmq("convert", tiny, "-o", tmp_path / "m.gguf", "--to", "gguf")
    (tmp_path / "empty").mkdir()
    shutil.copy(GOLDEN / "plain/adapter_config.json", tmp_path / "empty")
    for path, says in ((tmp_path / "m.gguf", 'general.type: expected "adapter"'),
                       (tmp_path / "none", "none"), (tiny, "adapter_config.json"),
                       (tmp_path / "empty", "adapter_model.safetensors"), (ROOT / "README.md", "README.md")):
        p = llmq("convert", tiny, "-o", tmp_path / "m", "--to", "safetensors", "--merge-lora", path, code=3)
        assert says in p.stderr and p.stderr.count("\n") == 1
    p = llmq("convert", model, "-o", tmp_path / "m", "--to", "safetensors", "--merge-lora", GOLDEN / "plain", code=3)
    assert "expected [2,768], found [2,384]" in p.stderr, "an adapter to a smaller model"
