"""`llmq quantize --to`: mixes of GGUF's block types by name, and the layouts of `convert`.

tests/golden/gguf/mixes.json: the types that llama-quantize (llama.cpp 0c1e570, with an importance matrix) gives the
matrices of a Llama of 17 layers with 8 heads and so many heads of keys, and of a Phi 3 ("fused"): one word for all layers, or one
each."""
import json
import struct

import numpy as np
import pytest

from conftest import ROOT
from harness import KEEP
from test_bad_input import copy, read_st, st_file

GOLDEN = json.loads((ROOT / "tests/golden/gguf/mixes.json").read_text())
MIXES = sorted(GOLDEN["2"])
LAYERS, H, V = 17, 256, 64
NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
FUSED = {"attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj", "ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"}
SCHEMES = {"Q4_0": "u4-g32", "Q8_0": "u8-g32"}


def wide_model(path, kv, fused, values=None, layers=LAYERS):
    """A Llama or Phi 3, of zeros where only names and shapes count."""
    path.mkdir()
    rows = {"self_attn.k_proj": H * kv // 8, "self_attn.v_proj": H * kv // 8, "self_attn.qkv_proj": H + H * kv // 4, "mlp.gate_up_proj": 2 * H}
    shapes = {"model.embed_tokens.weight": [V, H], "model.norm.weight": [H], "lm_head.weight": [V, H]}
    for i in range(layers):
        at = f"model.layers.{i}."
        shapes |= {at + f"{n}.weight": [rows.get(n, H), H] for n in (FUSED if fused else NAMES).values()}
        shapes |= {at + n: [H] for n in ("input_layernorm.weight", "post_attention_layernorm.weight")}
    header, at = {}, 0
    for n, s in shapes.items():
        size = 2 * s[0] * (s[1] if len(s) == 2 else 1)
        header[n] = {"dtype": "F16", "shape": s, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + (values(at) if values else bytes(at)))
    (path / "config.json").write_text(json.dumps({
        "architectures": ["Phi3ForCausalLM" if fused else "LlamaForCausalLM"], "model_type": "phi3" if fused else "llama", "vocab_size": V, "hidden_size": H, "intermediate_size": H,
        "num_hidden_layers": layers, "num_attention_heads": 8, "num_key_value_heads": kv, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "float16"}))
    return path


@pytest.fixture(scope="module", params=sorted(GOLDEN))
def wide(request, tmp_path_factory):
    return request.param, wide_model(tmp_path_factory.mktemp("wide") / "m", int(request.param[0]), "fused" in request.param)


def scheme(word):
    return SCHEMES.get(word, word.lower())


@pytest.mark.parametrize("mix", MIXES)
def test_a_mix_has_the_types_that_its_name_means(llmq, wide, mix):
    kv, model = wide
    got = {t["name"]: t["scheme"] for t in llmq.json("quantize", model, "--dry-run", "--to", f"gguf:{mix}", "-m", "rtn")["tensors"]}
    want = GOLDEN[kv][mix]
    assert got["lm_head.weight"] == scheme(want["output"])
    assert got["model.embed_tokens.weight"] == scheme(want["token_embd"])
    for short, name in (FUSED if "fused" in kv else NAMES).items():
        types = want[short] if isinstance(want[short], list) else [want[short]] * LAYERS
        assert [got[f"model.layers.{i}.{name}.weight"] for i in range(LAYERS)] == [scheme(t) for t in types], short


@pytest.mark.parametrize("mix", ["Q4_K_M", "IQ4_XS", "Q2_K", "Q8_0"])
def test_a_gguf_file_computes_as_the_llmq_file_of_the_same_mix(llmq, model, tmp_path, mix):
    llmq("quantize", model, "-o", tmp_path / "m.llmq", "--to", f"gguf:{mix}", "-m", "rtn")
    r = llmq.json("quantize", model, "-o", tmp_path / "m.gguf", "--to", f"gguf:{mix}", "-m", "rtn")
    assert r["bytes_out"] == (tmp_path / "m.gguf").stat().st_size and r["out"].endswith("m.gguf")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf", "m.llmq"], "nothing is left beside the result"
    logits = []
    for name in ("m.llmq", "m.gguf"):
        llmq("logits", tmp_path / name, "--ids", "1,5,9,300,77", "-o", tmp_path / "l.safetensors")
        logits.append((tmp_path / "l.safetensors").read_bytes()[-5 * 4096 * 4:])
    assert logits[0] == logits[1]


@pytest.mark.parametrize("mix", ["IQ3_XXS", "IQ2_M", "IQ2_XXS"])
def test_points_in_a_gguf_file_are_those_of_the_llmq_file(llmq, tmp_path, mix):
    """Every made type of a book, in rows that blocks of 256 divide."""
    random = np.random.default_rng(1)
    model = wide_model(tmp_path / "w", 2, False, lambda n: (random.standard_normal(n // 2) * 0.05).astype(np.float16).tobytes())
    logits = []
    for name in ("m.llmq", "m.gguf"):
        llmq("quantize", model, "-o", tmp_path / name, "--to", f"gguf:{mix}", "-m", "rtn")
        llmq("logits", tmp_path / name, "--ids", "1,5,9,30,7", "-o", tmp_path / "l.safetensors")
        logits.append((tmp_path / "l.safetensors").read_bytes()[-5 * V * 4:])
    assert logits[0] == logits[1]
    assert f'"{"iq2_s" if mix == "IQ2_M" else mix.lower()}"' in llmq("inspect", tmp_path / "m.gguf", "--json").stdout


def test_calibration_lowers_the_loss_of_blocks(llmq, model, tmp_path):
    loss = {}
    for method in ("rtn", "gptq"):
        out = tmp_path / f"{method}.llmq"
        llmq("quantize", model, "-o", out, "--to", "gguf:Q3_K_M", "-m", method, *(["--calib-samples", "8", "--no-check"] if method == "gptq" else []))
        r = llmq.json("eval", out, "-t", ROOT / "README.md", "-c", "128", "--windows", "4", "--ref", model)
        loss[method] = r["kl_mean"]
    assert loss["gptq"] < 0.7 * loss["rtn"], loss


@pytest.mark.parametrize("layout, method, asked", [("gptq", ["-m", "rtn", "--sym"], True), ("fp8", ["-m", "fp8", "-g", "128"], False),
                                                   ("bnb", ["-m", "nf4"], False)])
def test_a_layout_is_that_of_convert(llmq, model, tmp_path, layout, method, asked):
    """Without --method fp8 and bnb take the one that they hold."""
    llmq("quantize", model, "-o", tmp_path / "q.llmq", *method, *KEEP)
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "two", "--to", layout)
    (tmp_path / "one.llmq").write_bytes((tmp_path / "q.llmq").read_bytes())  # another's
    llmq("quantize", model, "-o", tmp_path / "one", "--to", layout, *(method if asked else []))
    assert (tmp_path / "one/model.safetensors").read_bytes() == (tmp_path / "two/model.safetensors").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "one.llmq", "q.llmq", "two"]


@pytest.mark.parametrize("name, strategy, group", [("nvfp4", "tensor_group", 16), ("mxfp4", "group", 32), ("fp8-block", "block", None),
                                                   ("fp8-channel", "channel", None), ("fp8-tensor", "tensor", None)])
def test_a_scheme_of_compressed_tensors(llmq, draft, tmp_path, name, strategy, group):
    method = ["-m", "rtn"] if "fp4" in name else []
    llmq("quantize", draft, "-o", tmp_path / "two", "--to", f"compressed-tensors:{name}", *method)
    config = json.loads((tmp_path / "two/config.json").read_text())["quantization_config"]
    weights = config["config_groups"]["group_0"]["weights"]
    assert weights["type"] == "float" and weights["strategy"] == strategy and weights.get("group_size") == group
    llmq("convert", tmp_path / "two", "-o", tmp_path / "q.llmq", "--to", "llmq")
    logits = []
    for place in ("q.llmq", "two"):
        llmq("logits", tmp_path / place, "--ids", "1,5,9,300,77", "-o", tmp_path / "l.safetensors")
        logits.append((tmp_path / "l.safetensors").read_bytes()[-5 * 4096 * 4:])
    assert logits[0] == logits[1]


@pytest.mark.parametrize("kind, name", [("nvfp4", "weight_global_scale"), ("fp8-tensor", "weight_scale")])
@pytest.mark.parametrize("more", [["-m", "rtn"], ["-m", "gptq", "--calib-samples", "8", "--no-check"]])
def test_linears_that_engines_fuse_have_one_tensor_scale(llmq, draft, tmp_path, kind, name, more):
    """vLLM takes the largest for all of q, k, v, and rounds those of another again."""
    llmq("quantize", draft, "-o", tmp_path / "m", "--to", f"compressed-tensors:{kind}", *more)
    data = (tmp_path / "m/model.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    scale = {}
    for key, t in json.loads(data[8:8 + n]).items():
        if key.endswith("." + name):
            begin, end = t["data_offsets"]
            scale[key.split(".")[2], key.split(".")[4]] = data[8 + n + begin:8 + n + end]
    for layer in {k[0] for k in scale}:
        assert scale[layer, "q_proj"] == scale[layer, "k_proj"] == scale[layer, "v_proj"]
        assert scale[layer, "gate_proj"] == scale[layer, "up_proj"] != scale[layer, "down_proj"]


@pytest.mark.parametrize("name, most", [("mxfp4", 0.6), ("fp8-block", 0.8), ("fp8-channel", 0.8)])
def test_feedback_lowers_the_loss_of_floats(llmq, draft, tmp_path, name, most):
    """Of 8 bits it leaves what rounding of the inputs loses."""
    loss = {}
    for method in ("rtn", "gptq"):
        llmq("quantize", draft, "-o", tmp_path / method, "--to", f"compressed-tensors:{name}", "-m", method,
             *(["--calib-samples", "8", "--no-check"] if method == "gptq" else []))
        loss[method] = llmq.json("eval", tmp_path / method, "-t", ROOT / "README.md", "-c", "128", "--windows", "4", "--ref", draft)["kl_mean"]
    assert loss["gptq"] < most * loss["rtn"], loss


@pytest.mark.parametrize("to", ["compressed-tensors:fp8-block", "fp8"])
def test_inputs_that_engines_cannot_round_in_groups_are_refused_before_the_work(llmq, tmp_path, to):
    arch = ROOT / "tests/golden/arch/llama3-gqa"
    r = llmq("quantize", arch, "-o", tmp_path / "x", "--to", to, "-m", "fp8", code=3)
    assert "in groups of 128: expected a multiple, found 160" in r.stderr and not list(tmp_path.iterdir())
    llmq("quantize", arch, "-o", tmp_path / "m.llmq", "-m", "fp8", "-g", "128", "--no-check")  # llmq runs it


@pytest.mark.parametrize("args, says", [
    (["--to", "compressed-tensors:int4"], "expected one of nvfp4, mxfp4"),
    (["--to", "compressed-tensors:nvfp4", "--bits", "3"], "expected no --bits"),
    (["--to", "compressed-tensors:nvfp4", "-m", "awq"], "rtn, gptq and auto"),
    (["--to", "compressed-tensors:fp8-block", "-m", "awq"], "fp8, rtn, gptq and auto"),
    (["--to", "gguf:Q4_K_X"], "expected one of Q2_K,"),
    (["--to", "gguf"], "--to gguf:MIX"),
    (["--to", "gguf:Q4_K_M", "--bits", "3"], "expected no --bits"),
    (["--to", "gguf:Q4_K_M", "-m", "awq"], "a method that makes blocks"),
    (["--to", "ggml"], "expected one of gguf, gguf:MIX, gptq"),
    ([], "--to gguf:MIX"),
])
def test_what_cannot_be_is_refused_before_the_work(llmq, model, tmp_path, args, says):
    out = tmp_path / ("x" if "compressed" in str(args) else "x.gguf")
    r = llmq("quantize", model, "-o", out, *args, code=2)
    assert says in r.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize("args, says", [
    (["--to", "awq", "-m", "gptq", "--bits", "3"], "awq holds 4 bits, found 3"),
    (["--to", "gptq", "-m", "nf4"], "'model.layers.0.mlp.down_proj.weight' has no place in this layout"),
    (["--to", "awq", "-m", "awq", "--override", "o_proj=u8-g32"], "o_proj.weight' has no place"),
    (["--to", "gguf", "-m", "int8"], None),
    (["--to", "mlx", "-m", "int8"], "mlx holds codes with a scale and a bias for each group of inputs"),
    (["--to", "gptq", "-m", "int8"], "gptq holds codes with a scale for each group of inputs"),
])
def test_what_the_format_cannot_hold_is_refused_before_the_work(llmq, model, tmp_path, args, says):
    """By the schemes that the options give: neither text nor a layer is looked at."""
    r = llmq("quantize", model, "-o", tmp_path / ("q.gguf" if "gguf" in args else "q"), "--calib", tmp_path / "none.txt", *args,
             code=None)
    assert r.returncode and not list(tmp_path.iterdir())
    assert says is None or f"--to {args[1]}: " in r.stderr and says in r.stderr
    if says:
        assert says in llmq("quantize", model, "--dry-run", *args, code=None).stderr


@pytest.mark.parametrize("pattern", [["--override", "embed=u4-g32"], ["--skip", "embed"]])
def test_a_pattern_beats_embed_and_says_so(llmq, model, pattern):
    r = llmq("quantize", model, "-m", "rtn", "--dry-run", "--embed", "u8-g32", *pattern)
    assert f"'model.embed_tokens.weight': {pattern[0]} counts, not --embed" in r.stderr
    assert "counts, not" not in llmq("quantize", model, "-m", "rtn", "--dry-run", *pattern).stderr


def test_bits_are_those_of_what_is_written(llmq, model, tmp_path):
    """The embedding of 8 bits that was asked for is of 16 in a layout of linear layers."""
    r = llmq.json("quantize", model, "-o", tmp_path / "q", "--to", "compressed-tensors", "-m", "rtn", "--embed", "u8-g32")
    assert r["bpw_model"] == llmq.json("inspect", tmp_path / "q")["bpw_model"] > 6


@pytest.mark.parametrize("to, meant", [("q4_k_m", "gguf:Q4_K_M"), ("Q8_0", "gguf:Q8_0"), ("nvfp4", "compressed-tensors:nvfp4")])
def test_a_name_without_its_format_is_met_with_the_whole(llmq, draft, tmp_path, to, meant):
    p = llmq("quantize", draft, "-o", tmp_path / "m", "--to", to, code=2)
    assert f"found '{to}'; did you mean {meant}?" in p.stderr and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", ["rtn", "gptq", "auto"])
def test_gptq_gets_zero_points_that_its_files_hold(llmq, draft, tmp_path, method):
    """A group without a weight below zero, which Gemma 3 and Qwen2.5 have, would have the zero point 0; version 1 stores one less."""
    model = copy(draft, tmp_path / "m")
    header, data = read_st(model / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    at, end = header[name]["data_offsets"]
    assert header[name]["dtype"] == "BF16"
    above = np.frombuffer(data[at:end], "<u2") & 0x7FFF
    (model / "model.safetensors").write_bytes(st_file(header, data[:at] + above.tobytes() + data[end:]))
    calib = [] if method == "rtn" else ["--calib", ROOT / "tests/golden/text/calib-novels.txt", "--calib-samples", 2, "--no-fold"]
    more = ["--effort", "fast"] if method == "auto" else []
    llmq("quantize", model, "-o", tmp_path / "q", "--to", "gptq", "-m", method, "--bits", 4, "--group-size", 32, "--no-check", *calib, *more)
    llmq("convert", tmp_path / "q", "-o", tmp_path / "st", "--to", "safetensors")
    h, d = read_st(next((tmp_path / "st").glob("*.safetensors")))
    raw = d[slice(*h[name]["data_offsets"])]
    want = (above.astype("<u4") << 16).view("<f4")
    got = {"F16": lambda: np.frombuffer(raw, "<f2").astype("f4"), "F32": lambda: np.frombuffer(raw, "<f4"),
           "BF16": lambda: (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")}[h[name]["dtype"]]()
    assert np.mean((got - want)**2) < 0.01 * np.mean(want**2)
