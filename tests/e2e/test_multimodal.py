"""Checkpoints with a vision tower beside a language model that llmq knows: text layers are quantized, tower and projector
carried along byte for byte and named where loaders look for what is not quantized."""
import json
import re

import pytest

from conftest import ROOT
from test_bad_input import read_st
from test_published import write_st

BASE = ROOT / "tests/golden/arch/llama3-gqa"
TOWER = {"vision_tower.encoder.layers.0.mlp.fc1.weight": ("F32", [64, 32]), "vision_tower.encoder.layers.0.mlp.fc1.bias": ("F32", [64]),
         "vision_tower.embeddings.patch_embedding.weight": ("F32", [8, 3, 2, 4, 4]), "multi_modal_projector.linear_1.weight": ("F32", [64, 64])}


def tensors(path):
    h, d = read_st(path)
    return {n: (v["dtype"], v["shape"], d[slice(*v["data_offsets"])]) for n, v in h.items() if n != "__metadata__"}


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    d = tmp_path_factory.mktemp("llava") / "m"
    d.mkdir()
    t = {f"language_model.{n}": v for n, v in tensors(BASE / "model.safetensors").items()}
    for i, (n, (dtype, shape)) in enumerate(TOWER.items()):
        size = 4
        for s in shape:
            size *= s
        t[n] = (dtype, shape, bytes((i + k) % 61 for k in range(size)))
    write_st(d / "model.safetensors", t)
    text = json.loads((BASE / "config.json").read_text())
    text = {k: v for k, v in text.items() if k != "architectures"}
    (d / "config.json").write_text(json.dumps({"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "text_config": text,
                                               "vision_config": {"model_type": "clip_vision_model", "initializer_factor": 1.0}}))
    (d / "preprocessor_config.json").write_text('{"do_resize": true}\n')
    return d, t


@pytest.mark.parametrize("options,to", [(("-m", "rtn", "--sym"), "compressed-tensors"), (("-m", "rtn", "--sym"), "gptq"),
                                        (("-m", "rtn"), "awq"), (("-m", "fp8",), "compressed-tensors")], ids=str)
def test_text_is_quantized_and_the_tower_is_carried(llmq, llava, tmp_path, options, to):
    d, source = llava
    llmq("quantize", d, "-o", tmp_path / "m.llmq", *options)
    llmq("convert", tmp_path / "m.llmq", "-o", tmp_path / "x", "--to", to)
    got = tensors(tmp_path / "x/model.safetensors")
    for n in TOWER:
        assert got[n] == source[n], n
    text = (tmp_path / "x/config.json").read_text()
    q = json.loads(text)["quantization_config"]
    kept = q.get("ignore") or q.get("modules_to_not_convert") or list(q["dynamic"])
    for module in ("vision_tower.encoder.layers.0.mlp.fc1", "multi_modal_projector.linear_1"):
        assert any(module in k.replace("\\", "") for k in kept), kept
    if to == "compressed-tensors":
        assert {r"re:.*vision_tower\..*", r"re:.*multi_modal_projector\..*"} <= set(kept)
        assert not any("language_model.model.layers" in k for k in kept)
    assert (tmp_path / "x/preprocessor_config.json").read_text() == '{"do_resize": true}\n'


def test_model_free_says_the_same(llmq, llava, tmp_path):
    d, source = llava
    llmq("quantize", d, "-o", tmp_path / "x", "--model-free", "--sym")
    got = tensors(tmp_path / "x/model.safetensors")
    assert all(got[n] == source[n] for n in TOWER)
    text = (tmp_path / "x/config.json").read_text()
    assert re.search(r'"initializer_factor":\s*1\.0', text)  # transformers 5 refuses 1 there
    q = json.loads(text)["quantization_config"]
    assert r"re:.*vision_tower\..*" in q["ignore"]


@pytest.mark.parametrize("to", ["compressed-tensors", "safetensors"])
def test_layers_of_cross_attention_are_passed_by_and_carried(llmq, tmp_path, to):
    """Llama 3.2 Vision: its text is what transformers gives without an image."""
    base, d = ROOT / "tests/golden/arch/mllama", tmp_path / "m"
    d.mkdir()
    source = {"language_model." + n: v for n, v in tensors(base / "model.safetensors").items()}
    source["vision_model.class_embedding"] = ("F32", [4], bytes(range(16)))
    write_st(d / "model.safetensors", source)
    text = {k: v for k, v in json.loads((base / "config.json").read_text()).items() if k != "architectures"}
    (d / "config.json").write_text(json.dumps({"architectures": ["MllamaForConditionalGeneration"], "model_type": "mllama",
                                               "image_token_index": 64, "text_config": text, "vision_config": {"hidden_size": 4}}))
    logits = []
    for model in (base, d):
        llmq("logits", model, "--ids", "5,6,7,8", "-o", tmp_path / "l")
        logits.append((tmp_path / "l").read_bytes())
    assert logits[0] == logits[1]
    llmq("quantize", d, "-o", tmp_path / "m.llmq", "-m", "rtn", "--sym")
    llmq("convert", tmp_path / "m.llmq", "-o", tmp_path / "x", "--to", to, *(["--dtype", "bf16"] if to == "safetensors" else []))
    got = tensors(tmp_path / "x/model.safetensors")
    passed = [n for n in source if ".layers.1." in n]
    assert len(passed) == 13 and all(got[n] == source[n] for n in passed)
    assert got["language_model.model.embed_tokens.weight"][1] == [72, 32]
    if to == "compressed-tensors":
        ignore = json.loads((tmp_path / "x/config.json").read_text())["quantization_config"]["ignore"]
        assert "language_model.model.layers.1.cross_attn.q_proj" in ignore and not any("layers.0" in k for k in ignore)
        assert not any(re.match(k[3:], "language_model.model.layers.0.mlp.up_proj") for k in ignore if k.startswith("re:"))
    p = llmq("run", tmp_path / "m.llmq", "--ids", "5,64", "-n", 1, code=3)
    assert "64" in p.stderr
    config = json.loads((base / "config.json").read_text())
    for value, says in (([3], "cross_attention_layers: expected layers 0..2, found 3"), (7, "cross_attention_layers: expected an array")):
        (d / "config.json").write_text(json.dumps(config | {"cross_attention_layers": value}))
        assert says in llmq("plan", d / "config.json", code=None).stderr


TEXT_IN = "language_model."  # all of the text below it; else its body alone: model.language_model.
WRAPPERS = [
    ("AudioFlamingo3ForConditionalGeneration", "qwen2", TEXT_IN), ("MusicFlamingoForConditionalGeneration", "qwen2", TEXT_IN),
    ("VibeVoiceAsrForConditionalGeneration", "qwen2", TEXT_IN), ("GotOcr2ForConditionalGeneration", "qwen2", None),
    ("FastVlmForConditionalGeneration", "qwen2", None), ("VideoLlama3ForConditionalGeneration", "qwen2", None),
    ("QianfanOCRForConditionalGeneration", "qwen3", TEXT_IN), ("Qwen3ASRForConditionalGeneration", "qwen3", None),
    ("MossTranscribeDiarizeForConditionalGeneration", "qwen3", None), ("FunAsrNanoForConditionalGeneration", "qwen3", None),
    ("GlmAsrForConditionalGeneration", "llama3-gqa", TEXT_IN), ("VideoLlavaForConditionalGeneration", "llama3-gqa", TEXT_IN),
    ("DeepseekVLForConditionalGeneration", "llama3-gqa", None), ("DeepseekVLHybridForConditionalGeneration", "llama3-gqa", None),
    ("JanusForConditionalGeneration", "llama3-gqa", None), ("GraniteSpeechForConditionalGeneration", "granite", TEXT_IN),
    ("GraniteSpeechPlusForConditionalGeneration", "granite", TEXT_IN), ("Granite4VisionForConditionalGeneration", "granite", None),
    ("HyperCLOVAXVisionV2ForConditionalGeneration", "hyperclovax", None), ("Lfm2VlForConditionalGeneration", "lfm2", None),
    ("Kimi_K25ForConditionalGeneration", "deepseek-v3", TEXT_IN), ("NemotronH_Omni_Reasoning_V3", "nemotron-h", TEXT_IN),
    ("MiniCPMV4_6ForConditionalGeneration", "qwen3.5", ""), ("MiniCPMV4_7ForConditionalGeneration", "qwen3.5", ""),
    ("MiniCPMOcrForConditionalGeneration", "qwen3.5", ""),
]


def wrapped(d, name, base, below):
    """The text model of a golden folder as a part of another."""
    golden = ROOT / "tests/golden/arch" / base
    config = json.loads((golden / "config.json").read_text())
    if "text_config" not in config:
        config = {"model_type": "x", "text_config": {k: v for k, v in config.items() if k != "architectures"}}
    t = tensors(golden / "model.safetensors")
    if below is None:
        t = {re.sub("^model[.]", "model.language_model.", n): v for n, v in t.items()}
    t = {(below or "") + n: v for n, v in t.items()} | {"eye.patches.weight": ("F32", [4], bytes(range(16)))}
    d.mkdir()
    write_st(d / "model.safetensors", t)
    (d / "config.json").write_text(json.dumps(config | {"architectures": [name]}))
    return golden


@pytest.mark.parametrize("name,base,below", WRAPPERS)
def test_the_text_of_models_that_see_or_hear_is_that_of_its_architecture(llmq, tmp_path, name, base, below):
    golden = wrapped(tmp_path / "m", name, base, below)
    for m, o in ((golden, "a"), (tmp_path / "m", "b")):
        llmq("logits", m, "--ids", "5,6,7,8", "-o", tmp_path / o)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_head_that_is_elsewhere_is_not_taken_for_none(llmq, tmp_path):
    """It was passed by with a note, and the embedding used in its place."""
    wrapped(tmp_path / "m", "LlavaForConditionalGeneration", "llama-128", None)
    t = tensors(tmp_path / "m/model.safetensors")
    t["tower.lm_head.weight"] = t.pop("lm_head.weight")
    write_st(tmp_path / "m/model.safetensors", t)
    p = llmq("logits", tmp_path / "m", "--ids", "5", "-o", tmp_path / "o", code=3)
    assert "output head: expected 'lm_head.weight', found 'tower.lm_head.weight'" in p.stderr
