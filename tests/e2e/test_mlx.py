"""Folders of mlx-lm, quantized and not: the logits are mlx-lm's (tests/golden/mlx/make.py)."""
import json
import pathlib
import shutil

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
    ("llama-4bit", both(group_size=32), None, "expected shape [64,2], found [64,1]"),
    ("llama-4bit", both(bits=8), None, "expected rows of whole groups of 64 codes of 8 bits"),
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
    ("llama4-mxfp4", None, lambda h: h["language_model.model.layers.1.feed_forward.experts.gate_proj.weight"]
     .update(shape=[3, 16, 8]), "expected shape"),
])
def test_what_does_not_fit_is_refused(llmq, tmp_path, name, config, header, says):
    folder = changed(tmp_path, name, config, header)
    got = llmq("logits", folder, "--ids", "1", "-o", tmp_path / "out", code=3)
    assert says in got.stderr and str(folder) in got.stderr, got.stderr
    assert not (tmp_path / "out").exists()


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
