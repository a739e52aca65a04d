"""Folders of mlx-lm, quantized and not: the logits are mlx-lm's (tests/golden/mlx/make.py)."""
import json
import pathlib
import shutil
import struct

import pytest

from test_bad_input import read_st, st_file

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden/mlx"
NAMES = sorted(p.parent.name for p in GOLDEN.glob("*/config.json"))


def floats(file, name):
    header, data = read_st(file)
    start, end = header[name]["data_offsets"]
    return memoryview(data[start:end]).cast("f").tolist()


def ids(folder):
    header, data = read_st(folder / "model.safetensors")
    start, end = header["input_ids"]["data_offsets"]
    return ",".join(str(i) for i in memoryview(data[start:end]).cast("i"))


def logits(llmq, model, folder, out):
    llmq("logits", model, "--ids", ids(folder), "-o", out)
    return floats(out, "logits")


def worst(a, b):
    assert len(a) == len(b)
    return max(abs(x - y) for x, y in zip(a, b)) / max(abs(y) for y in b)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_mlx(llmq, tmp_path, name):
    got = logits(llmq, GOLDEN / name, GOLDEN / name, tmp_path / "out")
    assert worst(got, floats(GOLDEN / name / "model.safetensors", "logits")) < 2e-5
    for to in ("llmq", "safetensors"):
        llmq("convert", GOLDEN / name, "-o", tmp_path / to, "--to", to, *(["--dtype", "f32"] if to[0] == "s" else []))
        again = logits(llmq, tmp_path / to, GOLDEN / name, tmp_path / "out")
        assert again == got if to == "llmq" else worst(again, got) < 2e-5


def test_what_mlx_leaves_out_is_said(llmq, tmp_path):
    """Once: a folder that was converted has the zeros."""
    llmq("convert", GOLDEN / "ernie45-moe-4bit", "-o", tmp_path / "m", "--to", "safetensors")
    for folder, note in ((GOLDEN / "ernie45-moe-4bit", True), (tmp_path / "m", False)):
        got = llmq("logits", folder, "--ids", "1,5", "-o", tmp_path / "out")
        assert ("mlx-lm leaves out the correction of this model's router" in got.stderr) == note
    assert planes(tmp_path / "m")["model.layers.1.mlp.moe_statics.e_score_correction_bias"][1] == [1, 4]


def test_what_a_folder_holds_is_named(llmq):
    got = llmq("inspect", GOLDEN / "llama-mixed").stdout
    assert "safetensors (mlx, affine)" in got
    for scheme in ("u2-g64-bias", "u3-g32-bias", "u8-g64-bias", "u8-g32-bias", "u4-g64-bias", "bf16"):
        assert scheme in got, scheme
    assert "safetensors (mlx)" in llmq("inspect", GOLDEN / "gpt-oss").stdout


def changed(tmp_path, name, config=None, header=None):
    folder = shutil.copytree(GOLDEN / name, tmp_path / name)
    if config:
        c = json.loads((folder / "config.json").read_text())
        config(c)
        (folder / "config.json").write_text(json.dumps(c))
    if header:
        h, data = read_st(folder / "model.safetensors")
        header(h)
        (folder / "model.safetensors").write_bytes(st_file(h, data))
    return folder


Q = "model.layers.0.self_attn.q_proj"
SWITCH = "model.layers.0.mlp.switch_mlp."


def both(**said):
    def change(c):
        for key in ("quantization", "quantization_config"):
            c[key] = {**c[key], **said}
    return change


def gone(name):
    """Under another name: what follows it in the file stays where it is."""
    def change(h):
        h["other"] = h.pop(name)
    return change


@pytest.mark.parametrize("name, config, header, says", [
    ("llama-4bit", both(mode="nvfp5"), None, 'mode: expected affine, mxfp4, nvfp4 or mxfp8, found "nvfp5"'),
    ("llama-4bit", both(bits=7), None, "bits: expected 1 to 6 or 8, found 7"),
    ("llama-4bit", both(bits="4"), None, "bits: expected"),
    ("llama-4bit", both(group_size=0), None, "group_size: expected"),
    ("llama-4bit", both(**{Q: {"group_size": 32}}), None, "expected shape [64,2], found [64,1]"),
    ("llama-4bit", both(**{Q: {"bits": 8}}), None, "expected rows of whole groups of 64 codes of 8 bits"),
    ("llama-4bit", lambda c: [c.pop(k) for k in ("quantization", "quantization_config")], None,
     'expected "quantization" in config.json beside words of codes (mlx-lm writes it), found none'),
    ("llama-4bit", both(**{Q: {"bits": 9}}), None, "quantization: model.layers.0.self_attn.q_proj: bits: expected"),
    ("llama-nvfp4", both(group_size=32), None, "nvfp4: expected group_size 16 and bits 4, found 32 and 4"),
    ("llama-4bit", None, gone(Q + ".scales"), f"'{Q}.scales' is missing"),
    ("llama-4bit", None, gone(Q + ".biases"), f"'{Q}.biases' is missing"),
    ("llama-4bit", None, lambda h: h[Q + ".biases"].update(dtype="F16"), "expected bf16, as its scales, found f16"),
    ("llama-nvfp4", None, lambda h: h[Q + ".scales"].update(dtype="I8"), "expected u8, found i8"),
    ("gpt-oss-mxfp4-q8", None, gone("model.layers.0.mlp.experts.up_proj.weight"),
     "'model.layers.0.mlp.experts.up_proj.weight' is missing"),
    ("deepseek-v3-6bit", None, gone("model.layers.0.self_attn.unembed_out.weight"),
     "'model.layers.0.self_attn.unembed_out.weight' is missing"),
    ("qwen3-moe-nvfp4-scaled", None, gone(SWITCH + "up_proj.global_scale"), f"'{SWITCH}up_proj.global_scale' is missing"),
    ("qwen3-moe-nvfp4-scaled", None, lambda h: h[SWITCH + "up_proj.global_scale"].update(dtype="I32"),
     "expected f32, found i32"),
    ("llama4-mxfp4", None, lambda h: h["language_model.model.layers.1.feed_forward.experts.gate_proj.weight"]
     .update(shape=[3, 16, 8]), "expected shape"),
])
def test_what_does_not_fit_is_refused(llmq, tmp_path, name, config, header, says):
    folder = changed(tmp_path, name, config, header)
    got = llmq("logits", folder, "--ids", "1", "-o", tmp_path / "out", code=3)
    assert says in got.stderr and str(folder) in got.stderr, got.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", NAMES)
def test_what_the_config_does_not_name_its_shapes_tell(llmq, tmp_path, name):
    """As mlx_lm.utils.infer_quant_config: bits, groups and mode by module are left out, and those of all are others."""
    def bare(c):
        for key in ("quantization", "quantization_config"):
            if key in c:
                c[key] = {"group_size": 128, "bits": 3, "mode": "affine"}
    folder = changed(tmp_path, name, bare)
    assert logits(llmq, folder, folder, tmp_path / "a") == logits(llmq, GOLDEN / name, folder, tmp_path / "b")


def test_weights_with_their_multipliers_in_them_are_refused(llmq, tmp_path):
    """mlx-lm multiplies Falcon-H1's into its weights; the convolution's last two dims tell."""
    folder = shutil.copytree(GOLDEN.parent / "arch/falcon-h1", tmp_path / "m")
    h, data = read_st(folder / "model.safetensors")
    for t in h.values():
        if len(t.get("shape", [])) == 3:
            t["shape"] = [t["shape"][0], t["shape"][2], 1]
    (folder / "model.safetensors").write_bytes(st_file(h, data))
    got = llmq("logits", folder, "--ids", "1", "-o", tmp_path / "out", code=3)
    assert "expected weights without its multipliers, which mlx-lm has multiplied in" in got.stderr


@pytest.mark.parametrize("said", [
    {"quant_method": "auto-round", "packing_format": "mlx", "bits": 4, "group_size": 64, "sym": True, "data_type": "int"},
    {"quant_method": "auto-round", "packing_format": "auto_round:mlx", "bits": 4, "group_size": 64},
    None])
def test_what_autoround_says_of_it(llmq, tmp_path, said):
    """AutoRound 0.15 exports the layout: what differs by module is in `quantization`, whatever the other key says."""
    def change(c):
        c["quantization_config"] = said
    folder = changed(tmp_path, "llama-mixed", change)
    want = logits(llmq, GOLDEN / "llama-mixed", folder, tmp_path / "a")
    assert logits(llmq, folder, folder, tmp_path / "b") == want


def test_rotation_beside_the_other_keys(llmq, tmp_path):
    """AutoRound takes the keys of rope_parameters out of it."""
    said = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}
    flat = changed(tmp_path / "flat", "llama-4bit", lambda c: c.update(said))
    inside = changed(tmp_path / "inside", "llama-4bit", lambda c: c.update(rope_parameters=said))
    got = logits(llmq, flat, flat, tmp_path / "a")
    assert got == logits(llmq, inside, flat, tmp_path / "b") != floats(flat / "model.safetensors", "logits")


@pytest.mark.parametrize("to", ["gptq", "awq", "fp8", "bnb"])
def test_layouts_without_a_place_for_biases_refuse_them(llmq, tmp_path, to):
    got = llmq("convert", GOLDEN / "llama-4bit", "-o", tmp_path / "out", "--to", to, code=3)
    assert "u4-g64-bias" in got.stderr or "bias" in got.stderr, got.stderr
    assert not (tmp_path / "out").exists()


# ---- written ----
def planes(folder):
    header, data = read_st(folder / "model.safetensors")
    return {k: (v["dtype"], v["shape"], data[v["data_offsets"][0]:v["data_offsets"][1]])
            for k, v in header.items() if k not in ("__metadata__", "input_ids", "logits")}


@pytest.mark.parametrize("name", ["llama-4bit", "llama-mxfp8", "gpt-oss-mxfp4-q8", "llama4-mxfp4"])
def test_what_mlx_wrote_is_written_again(llmq, tmp_path, name):
    """Its own tensors, byte for byte, and its own words in config.json; by way of .llmq too."""
    llmq("convert", GOLDEN / name, "-o", tmp_path / "m.llmq", "--to", "llmq")
    for k, source in enumerate((GOLDEN / name, tmp_path / "m.llmq")):
        llmq("convert", source, "-o", tmp_path / str(k), "--to", "mlx")
        assert planes(tmp_path / str(k)) == planes(GOLDEN / name)
        config = json.loads((tmp_path / str(k) / "config.json").read_text())
        want = json.loads((GOLDEN / name / "config.json").read_text())["quantization"]
        for key in ("quantization", "quantization_config"):
            assert config[key] == {k: v for k, v in want.items() if k in ("group_size", "bits", "mode") or isinstance(v, dict)}


def test_other_layouts_keep_none_of_its_words(llmq, tmp_path):
    llmq("convert", GOLDEN / "llama-4bit", "-o", tmp_path / "out", "--to", "safetensors")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert "quantization" not in config and "quantization_config" not in config


@pytest.mark.parametrize("how, dtype, note", [
    (["--sym"], "F16", "--dtype f16"), ([], "F32", "--sym keeps 16 bits"),
    (["--sym", "--bits", "3", "--group-size", "32"], "F16", "--dtype f16")])
def test_what_is_quantized_here(llmq, tmp_path, how, dtype, note):
    base = ["--method", "rtn", "--bits", "4", "--group-size", "64"]
    llmq("quantize", GOLDEN.parents[2] / "models/novels-1m", "-o", tmp_path / "m.llmq", *base, *how)
    got = llmq("convert", tmp_path / "m.llmq", "-o", tmp_path / "mlx", "--to", "mlx")
    assert note in got.stderr
    all_ = planes(tmp_path / "mlx")
    assert {v[0] for k, v in all_.items() if k.endswith("_proj.scales")} == {dtype}
    assert all_["model.embed_tokens.weight"][0] == "U32"
    config = json.loads((tmp_path / "mlx/config.json").read_text())["quantization"]
    assert config["model.embed_tokens"] == {"group_size": 32, "bits": 8, "mode": "affine"}
    for name in ("m.llmq", "mlx"):
        llmq("logits", tmp_path / name, "--ids", "1,5,9", "-o", tmp_path / (name + ".st"))
    assert worst(floats(tmp_path / "mlx.st", "logits"), floats(tmp_path / "m.llmq.st", "logits")) < 2e-6
    half = llmq("convert", tmp_path / "m.llmq", "-o", tmp_path / "half", "--to", "mlx", "--dtype", "f16")
    if "--sym" in how:
        assert {v[0] for v in planes(tmp_path / "half").values()} == {"F16", "U32"} and "note" not in half.stderr


@pytest.mark.parametrize("how, says", [
    (["--method", "nf4"], "mlx holds codes with a scale and a bias for each group of inputs, mxfp4 and mxfp8, found nf4"),
    (["--method", "rtn", "--group-size", "16"], "groups of 32, 64 or 128, found u4-g16-asym"),
    (["--to", "compressed-tensors:nvfp4", "--method", "rtn"],
     "mlx's linears hold no scale of the whole tensor beside those of groups (mxfp4 has none), found nvfp4"),
    (["--to", "compressed-tensors:fp8-channel", "--method", "fp8"], "inputs are rounded"),
])
def test_what_mlx_has_no_place_for(llmq, tmp_path, how, says):
    model = tmp_path / ("m" if "--to" in how else "m.llmq")
    llmq("quantize", GOLDEN.parents[2] / "models/novels-1m", "-o", model, *how)
    got = llmq("convert", model, "-o", tmp_path / "out", "--to", "mlx", code=3)
    assert says in got.stderr, got.stderr
    assert not (tmp_path / "out").exists()


def test_scales_in_f32_have_no_place(llmq, tmp_path):
    """scale x code and scale x zero point would be rounded apart; as biases they are."""
    llmq("quantize", GOLDEN.parents[2] / "models/novels-1m", "-o", tmp_path / "m.llmq", "--method", "rtn", "--group-size", "64")
    llmq("convert", tmp_path / "m.llmq", "-o", tmp_path / "mlx", "--to", "mlx")
    llmq("convert", tmp_path / "mlx", "-o", tmp_path / "again", "--to", "mlx")  # biases of f32
    assert planes(tmp_path / "again") == planes(tmp_path / "mlx")
    llmq("quantize", GOLDEN.parents[2] / "models/novels-1m", "-o", tmp_path / "ct", "--to", "compressed-tensors", "--method", "rtn")
    header, data = read_st(tmp_path / "ct/model.safetensors")
    with_f32 = {}
    start = 0
    blob = b""
    for k, v in header.items():
        if k == "__metadata__":
            continue
        raw = data[v["data_offsets"][0]:v["data_offsets"][1]]
        if k.endswith("weight_scale"):
            raw = struct.pack(f"<{len(raw) // 2}f", *struct.unpack(f"<{len(raw) // 2}e", raw))
            v = {**v, "dtype": "F32"}
        with_f32[k] = {**v, "data_offsets": [start, start + len(raw)]}
        start += len(raw)
        blob += raw
    (tmp_path / "ct/model.safetensors").write_bytes(st_file(with_f32, blob))
    got = llmq("convert", tmp_path / "ct", "-o", tmp_path / "out", "--to", "mlx", code=3)
    assert "mlx holds scales in f16 or bf16, found f32" in got.stderr


EIGHT = ["--method", "rtn", "--sym", "--bits", "8", "--group-size", "32", "--no-check", "--skip", "embed"]


@pytest.fixture(scope="module")
def experts(llmq, tmp_path_factory):
    """A Qwen 3 MoE of 3 experts in floats, each expert's matrices apart."""
    out = tmp_path_factory.mktemp("experts") / "m"
    llmq("convert", GOLDEN / "qwen3-moe-nvfp4-scaled", "-o", out, "--to", "safetensors", "--dtype", "bf16")
    assert "model.layers.0.mlp.experts.2.up_proj.weight" in planes(out)
    return out


def test_experts_become_stacks(llmq, experts, tmp_path):
    """Codes and scales of one expert after the other; what is not quantized too. One file, several, or by shares."""
    llmq("quantize", experts, "-o", tmp_path / "m.llmq", *EIGHT, "--skip", "down_proj")
    llmq("convert", tmp_path / "m.llmq", "-o", tmp_path / "mlx", "--to", "mlx")
    got, floats_ = planes(tmp_path / "mlx"), planes(experts)
    for part, dtype, row in (("weight", "U32", 16), ("scales", "F16", 2), ("biases", "F16", 2)):
        for name in ("gate_proj", "up_proj"):
            assert got[f"{SWITCH}{name}.{part}"][:2] == (dtype, [3, 32, row])
    each = [f"model.layers.0.mlp.experts.{e}.down_proj.weight" for e in range(3)]
    assert got[SWITCH + "down_proj.weight"] == ("BF16", [3, 64, 32], b"".join(floats_[k][2] for k in each))
    assert not any(".experts." in k for k in got)
    llmq("logits", tmp_path / "m.llmq", "--ids", "1,5,9", "-o", tmp_path / "a")
    llmq("logits", tmp_path / "mlx", "--ids", "1,5,9", "-o", tmp_path / "b")
    assert worst(floats(tmp_path / "a", "logits"), floats(tmp_path / "b", "logits")) < 2e-6
    convert = ["convert", tmp_path / "m.llmq", "--to", "mlx"]
    llmq(*convert, "-o", tmp_path / "cut", "--shard-size", "20000")
    files = sorted((tmp_path / "cut").glob("model-*.safetensors"))
    assert len(files) > 2
    again = {}
    for f in files:
        header, data = read_st(f)
        again |= {k: (v["dtype"], v["shape"], data[v["data_offsets"][0]:v["data_offsets"][1]])
                  for k, v in header.items() if k not in ("__metadata__", "input_ids", "logits")}
    assert again == got
    for i in (1, 2):
        llmq(*convert, "-o", tmp_path / "shares", "--shard", f"{i}/2")
    llmq(*convert, "-o", tmp_path / "shares")
    assert (tmp_path / "shares/model.safetensors").read_bytes() == (tmp_path / "mlx/model.safetensors").read_bytes()


def test_gate_and_up_of_one_tensor_become_two_stacks(llmq, tmp_path):
    """Granite's rows follow each other; GPT-OSS's alternate (test_what_mlx_wrote_is_written_again)."""
    llmq("convert", GOLDEN / "granite-h-5bit", "-o", tmp_path / "f", "--to", "safetensors", "--dtype", "bf16")
    for k, more in enumerate(([], ["--skip", "input_linear"])):
        llmq("quantize", tmp_path / "f", "-o", tmp_path / f"{k}.llmq", *EIGHT, *more)
        llmq("convert", tmp_path / f"{k}.llmq", "-o", tmp_path / str(k), "--to", "mlx")
        stack = planes(tmp_path / str(k))["model.layers.0.block_sparse_moe.switch_mlp.up_proj.weight"]
        assert stack[:2] == (("BF16", [3, 32, 64]) if more else ("U32", [3, 32, 16]))
        llmq("logits", tmp_path / f"{k}.llmq", "--ids", "1,5,9", "-o", tmp_path / "a")
        llmq("logits", tmp_path / str(k), "--ids", "1,5,9", "-o", tmp_path / "b")
        assert worst(floats(tmp_path / "a", "logits"), floats(tmp_path / "b", "logits")) < 2e-6


def test_codes_have_the_names_that_mlx_looks_for(llmq, tmp_path):
    """LFM2's own w1, w2 and w3 are renamed by mlx-lm where they are floats."""
    llmq("quantize", GOLDEN.parent / "arch/lfm2-moe", "-o", tmp_path / "m", "--to", "mlx", *EIGHT, "--skip", "w2")
    got = planes(tmp_path / "m")
    assert got["model.layers.0.feed_forward.up_proj.weight"][0] == "U32" and "model.layers.0.feed_forward.w3.weight" not in got
    assert got["model.layers.0.feed_forward.w2.weight"][0] == "BF16"


def test_what_mlx_has_otherwise_beside_stacks(llmq, tmp_path):
    """Where experts are stacks it takes Qwen3-Next's other tensors for its own: taps first, norms that hold 1 + w, no MTP head."""
    llmq("convert", GOLDEN / "qwen3-next", "-o", tmp_path / "f", "--to", "safetensors", "--dtype", "f32")
    header, data = read_st(tmp_path / "f/model.safetensors")
    for name, t in header.items():
        if name == "input_ids":
            at = t["data_offsets"]
    header["mtp.norm.weight"] = {"dtype": "F32", "shape": [9], "data_offsets": at}
    header.pop("input_ids")
    (tmp_path / "f/model.safetensors").write_bytes(st_file(header, data))
    llmq("quantize", tmp_path / "f", "-o", tmp_path / "m.llmq", *EIGHT)
    got = llmq("convert", tmp_path / "m.llmq", "-o", tmp_path / "mlx", "--to", "mlx", "--dtype", "f32")
    assert "mlx has no MTP head of this model: it is left out" in got.stderr
    own, theirs, mlx = (planes(x) for x in (tmp_path / "f", tmp_path / "mlx", GOLDEN / "qwen3-next"))
    assert not any(k.startswith("mtp.") for k in theirs)
    norm, conv = "model.layers.0.input_layernorm.weight", "model.layers.0.linear_attn.conv1d.weight"
    w, sums = (memoryview(x[norm][2]).cast("f").tolist() for x in (own, theirs))
    assert all(abs(s - (1 + v)) < 1e-6 for v, s in zip(w, sums)) and abs(sum(sums) / len(sums) - 1) < 0.5
    assert theirs[conv][1] == mlx[conv][1] and theirs[conv][1][2] == 1
    llmq("logits", tmp_path / "m.llmq", "--ids", "1,5,9", "-o", tmp_path / "a")
    llmq("logits", tmp_path / "mlx", "--ids", "1,5,9", "-o", tmp_path / "b")
    assert worst(floats(tmp_path / "a", "logits"), floats(tmp_path / "b", "logits")) < 2e-6


def test_experts_of_several_kinds_are_no_stack(llmq, experts, tmp_path):
    llmq("quantize", experts, "-o", tmp_path / "m.llmq", *EIGHT, "--override", "experts.1.up_proj=u4-g32")
    got = llmq("convert", tmp_path / "m.llmq", "-o", tmp_path / "out", "--to", "mlx", code=3)
    assert "mlx holds the experts of a layer as one stack, expected u8-g32 as of" in got.stderr
    assert "experts.1.up_proj.weight'" in got.stderr and "found u4-g32" in got.stderr and not (tmp_path / "out").exists()


@pytest.mark.parametrize("arch, says", [
    ("ernie45-moe", "mlx holds experts as stacks, which are not written of Ernie4_5_MoeForCausalLM"),
    ("kimi-linear", "mlx holds experts as stacks, which are not written of KimiLinearForCausalLM"),
])
def test_experts_that_mlx_reads_otherwise_are_not_written(llmq, tmp_path, arch, says):
    got = llmq("quantize", GOLDEN.parent / "arch" / arch, "-o", tmp_path / "out", "--to", "mlx", "--method", "rtn", "--sym", code=3)
    assert says in got.stderr and not list(tmp_path.iterdir())


def test_a_latents_matrix_is_not_rounded_twice(llmq, tmp_path):
    """mlx-lm cuts kv_b_proj in two and rounds both, in groups of other inputs."""
    llmq("convert", GOLDEN / "deepseek-v3-6bit", "-o", tmp_path / "f", "--to", "safetensors", "--dtype", "bf16")
    how = ["quantize", tmp_path / "f", "-o", tmp_path / "out", "--to", "mlx", *EIGHT]
    got = llmq(*how, code=3)
    assert "kv_b_proj.weight" in got.stderr and "quantize --skip kv_b_proj keeps it in 16 bits" in got.stderr
    llmq(*how, "--skip", "kv_b_proj")
    assert planes(tmp_path / "out")["model.layers.0.self_attn.kv_b_proj.weight"][0] == "BF16"
