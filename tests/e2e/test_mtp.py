"""A head for multi-token prediction: kept by `quantize` of every method and by `convert` to every layout."""
import json
import re
import shutil
import struct

import pytest

from harness import ROOT
from test_bad_input import read_st, st_file

GOLDEN = ROOT / "tests/golden/mtp"
OWN = {"glm4-moe": "model.layers.2.", "deepseek-v3": "model.layers.2.", "qwen3.5": "mtp.", "mimo": "model.mtp_layers."}
LAYOUTS = ["gptq", "gptq_v2", "awq", "compressed-tensors", "bnb", "fp8", "safetensors"]
METHODS = ["rtn", "hqq", "absmax", "int8", "fp8", "nf4", "gptq", "awq", "auto"]


@pytest.fixture(scope="module")
def ids(tmp_path_factory):
    path = tmp_path_factory.mktemp("calib") / "c.ids"
    path.write_text(" ".join(str(3 + (k * k + 7 * k) % 61) for k in range(1200)))
    return path


def options(method, ids):
    calibrated = method in ("int8", "gptq", "awq", "auto")
    return ["-m", method, "--no-check", *(["--calib", ids, "--calib-samples", 8, "--calib-len", 32] if calibrated else []),
            *(["--tune", 1] if method == "auto" else [])]


def tensors(folder):
    """{name: (type, shape, bytes)}"""
    header, data = read_st(folder / "model.safetensors")
    return {k: (v["dtype"], v["shape"], data[slice(*v["data_offsets"])]) for k, v in header.items() if k != "__metadata__"}


def head(folder, name):
    return {k: v for k, v in tensors(folder).items() if k.startswith(OWN[name])}


def schemes(llmq, model, name):
    return {t["name"]: t["scheme"] for t in llmq.json("inspect", model)["tensors"] if t["name"].startswith(OWN[name])}


def guesses(llmq, model):
    """Of some prompts, and how many were right; what is generated is as without them."""
    n = right = 0
    for k in range(3):
        prompt = ",".join(str(3 + (7 * i + 11 * k) % 60) for i in range(6))
        args = ["run", model, "--ids", prompt, "-n", 40, "--ignore-eos", "--temperature", 1, "--seed", k]
        with_head = llmq.json(*args, "--speculative-mtp", "--num-speculative-tokens", 2)
        assert with_head["ids"] == llmq.json(*args)["ids"]
        n, right = n + with_head["speculation"]["guesses"], right + with_head["speculation"]["right"]
    return n, right


@pytest.mark.parametrize("name", list(OWN))
@pytest.mark.parametrize("method", METHODS)
def test_every_method_keeps_the_head(llmq, ids, tmp_path, method, name):
    p = llmq("quantize", GOLDEN / name, "-o", tmp_path / "q.llmq", *options(method, ids))
    assert "MTP head: kept as it is in the source (--mtp)" in p.stderr
    assert set(schemes(llmq, tmp_path / "q.llmq", name).values()) == {"bf16"}
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "back", "--to", "safetensors", "--dtype", "bf16")
    assert head(tmp_path / "back", name) == head(GOLDEN / name, name)
    if method in ("rtn", "auto"):
        n, right = guesses(llmq, tmp_path / "q.llmq")
        assert n > 20 and right > 0.5 * n, (n, right)


@pytest.mark.parametrize("scheme", ["u8-g32", "i8-row", "u4-g16", "nf4"])
@pytest.mark.parametrize("name", list(OWN))
def test_a_head_that_is_rounded_still_guesses(llmq, ids, tmp_path, name, scheme):
    q = tmp_path / "q.llmq"
    method = {"i8-row": "absmax", "nf4": "nf4", "u4-g16": "rtn"}.get(scheme, "auto")
    llmq("quantize", GOLDEN / name, "-o", q, *options(method, ids), "--mtp", scheme)
    got = schemes(llmq, q, name)
    linears = {k for k in got if re.search(r"_proj\.weight$|_a_proj_with_mqa\.weight$", k) and "eh_proj" not in k
               and "input_proj" not in k}
    assert {k for k, v in got.items() if v.split("-")[0] == scheme.split("-")[0]} == linears, got
    assert llmq.json("inspect", q)["recipe"]["mtp"] == scheme
    if method != "auto":
        llmq("verify", q, "--against", GOLDEN / name)
    n, right = guesses(llmq, q)
    assert n > 20 and right > 0.5 * n, (n, right)
    if "moe" in name:
        assert "MTP head: 2 x expert_up" in llmq("quantize", GOLDEN / name, "-o", q, *options(method, ids), "--mtp", scheme).stdout
    assert sum("MTP" in x for x in llmq("quantize", GOLDEN / name, "--dry-run", "-m", method, "--mtp", scheme).stderr.splitlines())


@pytest.mark.parametrize("to,name", [(to, name) for to in LAYOUTS for name in OWN if (to, name) != ("awq", "deepseek-v3")])
def test_every_layout_keeps_the_head(llmq, tmp_path, to, name):
    """And says that it is not quantized, without saying so of the layers."""
    method = {"bnb": "nf4", "fp8": "fp8"}.get(to, "rtn")
    llmq("quantize", GOLDEN / name, "-o", tmp_path / "q.llmq", "-m", method, "--lm-head", "keep", "--embed", "keep",
         *(["-g", 16] if method == "rtn" else []))
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "f", "--to", to, "--dtype", "bf16",
         *(["--allow-requantize"] if to != "safetensors" else []))
    assert head(tmp_path / "f", name) == head(GOLDEN / name, name)
    n, right = guesses(llmq, tmp_path / "f")
    assert n > 20 and right > 0.5 * n, (n, right)
    quant = json.loads((tmp_path / "f/config.json").read_text()).get("quantization_config", {})
    ignored = quant.get("ignore", quant.get("modules_to_not_convert")) or []
    codes = {k.rsplit(".", 1)[0] for k in tensors(tmp_path / "f") if re.search(r"\.(qweight|weight_packed|weight_scale.*)$", k)}
    for module in codes:
        for pattern in ignored:
            assert not (re.match(pattern[3:], module) if pattern.startswith("re:") else pattern == module), (pattern, module)
    if to == "compressed-tensors":
        kept = {k[:-7] for k, v in head(tmp_path / "f", name).items() if len(v[1]) == 2}
        assert all(any(re.match(p[3:], k) if p.startswith("re:") else p == k for p in ignored) for k in kept), ignored


@pytest.mark.parametrize("to", ["compressed-tensors", "awq", "safetensors"])
def test_a_rounded_head_is_converted_too(llmq, tmp_path, to):
    """In the layout's words where it has some, else as floats of the same values."""
    name, q = "glm4-moe", tmp_path / "q.llmq"
    llmq("quantize", GOLDEN / name, "-o", q, "-m", "rtn", "-g", 16, "--mtp", "u8-g16")
    llmq("convert", q, "-o", tmp_path / "f", "--to", to)
    there = head(tmp_path / "f", name)
    up = OWN[name] + "mlp.experts.1.up_proj"
    assert (up + ".weight_packed" in there) == (to == "compressed-tensors") != (up + ".weight" in there)
    n, right = guesses(llmq, tmp_path / "f")
    assert n > 20 and right > 0.5 * n, (n, right)


def fp8(values):
    """bf16 numbers as E4M3 codes with a scale of 2^-6: the nearest."""
    out = bytearray()
    for i in range(0, len(values), 2):
        x = struct.unpack("<f", b"\0\0" + values[i:i + 2])[0] * 64
        codes = sorted(range(127), key=lambda c: abs(e4m3(c) - abs(x)))
        out.append(codes[0] | (128 if x < 0 else 0))
    return bytes(out)


def e4m3(code):
    e, m = code >> 3, code & 7
    return (8 + m) * 2.0 ** (e - 10) if e else m * 2.0**-9


@pytest.mark.parametrize("name", ["glm4-moe", "deepseek-v3"])
def test_a_head_in_blocks_of_fp8_is_read_and_kept(llmq, tmp_path, name):
    """As DeepSeek V3 and GLM publish it: its linears like the layers', eh_proj in bf16."""
    shutil.copytree(GOLDEN / name, tmp_path / "m")
    out, blob = {}, b""
    for k, (kind, shape, data) in tensors(GOLDEN / name).items():
        parts = {k: (kind, shape, data)}
        if ".layers." in k and len(shape) == 2 and not re.search(r"eh_proj|mlp\.gate\.weight", k):
            parts = {k: ("F8_E4M3", shape, fp8(data)), k + "_scale_inv": ("F32", [1, 1], struct.pack("<f", 1 / 64))}
        for n, (t, s, b) in parts.items():
            out[n] = {"dtype": t, "shape": s, "data_offsets": [len(blob), len(blob) + len(b)]}
            blob += b
    (tmp_path / "m/model.safetensors").write_bytes(st_file(out, blob))
    config = json.loads((tmp_path / "m/config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                     "weight_block_size": [128, 128]}
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    llmq("convert", tmp_path / "m", "-o", tmp_path / "q.llmq", "--to", "llmq")
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "f", "--to", "fp8")
    assert head(tmp_path / "f", name) == head(tmp_path / "m", name)
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "floats", "--to", "safetensors", "--dtype", "bf16")
    llmq("quantize", tmp_path / "floats", "-o", tmp_path / "u4.llmq", "-m", "rtn", "-g", 16)
    for model in ("m", "q.llmq", "f", "floats", "u4.llmq"):
        n, right = guesses(llmq, tmp_path / model)
        assert n > 20 and right > 0.5 * n, (model, n, right)


def stacked(folder, to, more=()):
    """The experts of each layer in one tensor, as transformers 5 and Qwen3.5's published files have them."""
    shutil.copytree(folder, to)
    all_of, out, blob = tensors(folder) | dict(more), {}, b""
    for at in sorted({k.split(".experts.")[0] for k in all_of if ".experts." in k}):
        parts = {p: [] for p in ("gate_proj", "up_proj", "down_proj")}
        while at + f".experts.{len(parts['up_proj'])}.up_proj.weight" in all_of:
            n = len(parts["up_proj"])
            for p in parts:
                parts[p].append(all_of.pop(at + f".experts.{n}.{p}.weight"))
        kind, (F, H), _ = parts["up_proj"][0]
        both = b"".join(g[2] + u[2] for g, u in zip(parts["gate_proj"], parts["up_proj"]))
        all_of[at + ".experts.gate_up_proj"] = (kind, [len(parts["up_proj"]), 2 * F, H], both)
        all_of[at + ".experts.down_proj"] = (kind, [len(parts["up_proj"]), H, F], b"".join(d[2] for d in parts["down_proj"]))
    for k, (kind, shape, data) in all_of.items():
        out[k] = {"dtype": kind, "shape": shape, "data_offsets": [len(blob), len(blob) + len(data)]}
        blob += data
    (to / "model.safetensors").write_bytes(st_file(out, blob))
    return to


def test_experts_of_a_head_may_be_stacked(llmq, tmp_path):
    model = stacked(GOLDEN / "glm4-moe", tmp_path / "m")
    assert any(k.startswith("model.layers.2.mlp.experts.gate_up_proj") for k in tensors(model))
    n, right = guesses(llmq, model)
    assert n > 20 and right > 0.5 * n, (n, right)
    llmq("convert", model, "-o", tmp_path / "f", "--to", "safetensors", "--dtype", "bf16")
    assert tensors(tmp_path / "f") == tensors(GOLDEN / "glm4-moe")


def test_a_head_beside_the_model_has_its_own_experts(llmq, tmp_path):
    """Qwen3.5: "mtp.layers.0" is not the model's layer 0. The head here is that layer again: its guesses are as they may be."""
    base = ROOT / "tests/golden/arch/qwen3.5-moe"
    t = tensors(base)
    more = {k.replace("model.layers.0.", "mtp.layers.0."): v for k, v in t.items() if k.startswith("model.layers.0.")}
    more |= {f"mtp.{k}.weight": t["model.norm.weight"] for k in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    more["mtp.fc.weight"] = ("BF16", [32, 64], t["model.embed_tokens.weight"][2])
    model = stacked(base, tmp_path / "m", more)
    guesses(llmq, model)
    llmq("convert", model, "-o", tmp_path / "f", "--to", "safetensors", "--dtype", "bf16")
    assert tensors(tmp_path / "f") == t | more
    llmq("quantize", model, "-o", tmp_path / "q.llmq", "-m", "rtn", "--mtp", "u8-g32")
    guesses(llmq, tmp_path / "q.llmq")


def test_what_cannot_be_is_said(llmq, tmp_path):
    q = tmp_path / "q.llmq"
    p = llmq("quantize", ROOT / "tests/golden/arch/llama-128", "-o", q, "-m", "rtn", "--mtp", "u8-g32", code=3)
    assert "--mtp: multi-token prediction: expected a model with a head for it, found a LlamaForCausalLM" in p.stderr
    assert "--mtp: " in llmq("quantize", GOLDEN / "mimo", "-o", q, "-m", "rtn", "--mtp", "u9", code=2).stderr
    p = llmq("quantize", GOLDEN / "mimo", "-o", q, "-m", "rtn", "--rotate")
    assert "MTP head: kept, but of no use beside rotated hidden states" in p.stderr
