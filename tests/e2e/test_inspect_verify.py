"""`llmq inspect` and `llmq verify`: folders, quantized files, damage of every kind."""
import json
import shutil
import struct

import pytest


@pytest.fixture(scope="module")
def packed(llmq, model, tmp_path_factory):
    """method -> a .llmq made from the demo model without data."""
    if "quantize" not in llmq.commands():
        pytest.skip("no command quantize in this build")
    folder = tmp_path_factory.mktemp("packed")
    made = {}
    for name, args in {"rtn": ["--method", "rtn", "--sym"], "nf4": ["--method", "nf4", "--double-quant"],
                       "absmax": ["--method", "absmax"]}.items():
        made[name] = folder / f"{name}.llmq"
        llmq("quantize", model, "-o", made[name], *args)
    return made


def copy_model(model, to):
    shutil.copytree(model, to)
    return to / "model.safetensors"


def test_a_folder_is_inspected(llmq, model):
    doc = llmq.json("inspect", model)
    assert doc["format"] == "safetensors" and doc["arch"] == "LlamaForCausalLM"
    assert doc["params"] == 5770496 and doc["bpw"] == 16
    assert doc["recipe"] is None and doc["provenance"] is None
    names = [t["name"] for t in doc["tensors"]]
    assert len(names) == len(set(names)) == 56
    norm = next(t for t in doc["tensors"] if t["name"] == "model.norm.weight")
    assert norm["shape"] == [256] and norm["scheme"] == "bf16" and norm["bytes"] == 512
    assert len(norm["xxh3"]) == 32
    assert sum(t["bytes"] for t in doc["tensors"]) == doc["bytes"]


def test_equal_layers_are_counted_unless_all_are_wanted(llmq, model):
    short, full = llmq("inspect", model).stdout, llmq("inspect", model, "--all").stdout
    assert "up to model.layers.5: 5 more like it" in short
    assert short.count("self_attn.q_proj.weight") == 1 and full.count("self_attn.q_proj.weight") == 6


def test_a_file_without_config_is_inspected(llmq, model, tmp_path):
    shutil.copy(model / "model.safetensors", tmp_path / "alone.safetensors")
    doc = llmq.json("inspect", tmp_path / "alone.safetensors")
    assert doc["arch"] is None and len(doc["tensors"]) == 56


def test_a_quantized_file_is_inspected(llmq, packed):
    doc = llmq.json("inspect", packed["rtn"])
    assert doc["format"] == "llmq" and doc["arch"] == "LlamaForCausalLM"
    assert doc["recipe"]["method"] == "rtn" and doc["provenance"]
    assert 4 < doc["bpw"] < 4.5 < doc["bpw_model"]
    assert {"u4-g128", "bf16"} == {s["scheme"] for s in doc["schemes"]}
    assert "tokenizer.json" in [f["name"] for f in doc["files"]]
    assert "recipe" in llmq("inspect", packed["rtn"]).stdout


def test_what_is_whole_verifies(llmq, model, packed):
    for source in (model, *packed.values()):
        doc = llmq.json("verify", source)
        assert doc["ok"] and doc["checked"] >= 56 and doc["bad"] == []
    for source in packed.values():
        assert llmq.json("verify", source, "--against", model)["ok"], source


def damaged(data, at, value):
    b = bytearray(data)
    b[at:at + len(value)] = value
    return bytes(b)


def test_damage_is_found(llmq, packed, tmp_path):
    whole = packed["rtn"].read_bytes()
    header = struct.unpack_from("<Q", whole, 16)[0]
    table = json.loads(whole[header:])
    plane = table["tensors"][3]["planes"]["codes"]
    padding = 100  # between the preamble and the first page
    assert whole[padding] == 0
    for why, data, code, name in [
        ("a code", damaged(whole, plane["off"] + 5, bytes([whole[plane["off"] + 5] ^ 4])), 4,
         table["tensors"][3]["name"]),
        ("padding", damaged(whole, padding, b"\x01"), 4, "tensors"),
        ("the header", damaged(whole, header + 9, b"!"), 4, "header"),
        ("the header's checksum", damaged(whole, 50, bytes([whole[50] ^ 1])), 4, "header"),
        ("cut short", whole[:-1], 4, "header"),
        ("cut in half", whole[:len(whole) // 2], 4, "header"),
        ("a newer version", damaged(whole, 8, b"\x02"), 3, None),
    ]:
        path = tmp_path / "damaged.llmq"
        path.write_bytes(data)
        p = llmq("verify", path, "--json", code=code)
        if code == 4:
            doc = json.loads(p.stdout)
            assert not doc["ok"] and len(doc["bad"]) == 1, why
            assert name is None or doc["bad"][0]["name"] == name, why
        else:
            assert p.stdout == "" and "major version: expected 1, found 2" in p.stderr, why


def test_weights_of_another_model_are_found(llmq, model, packed, tmp_path):
    weights = copy_model(model, tmp_path / "other")
    data = bytearray(weights.read_bytes())
    n = struct.unpack_from("<Q", data)[0]
    table = json.loads(data[8:8 + n])
    name = "model.layers.2.mlp.up_proj.weight"
    at = 8 + n + table[name]["data_offsets"][0]
    data[at:at + 2] = struct.pack("<H", 0x3f80)  # 1.0 in bf16
    weights.write_bytes(data)
    for path in packed.values():
        doc = json.loads(llmq("verify", path, "--against", weights.parent, "--json", code=4).stdout)
        assert [b["name"] for b in doc["bad"]] == [name], path


def test_a_folder_with_wrong_weights_is_refused(llmq, model, tmp_path):
    weights = copy_model(model, tmp_path / "nan")
    data = bytearray(weights.read_bytes())
    data[-2:] = struct.pack("<H", 0x7fc0)
    weights.write_bytes(data)
    p = llmq("verify", weights.parent, code=4)
    assert "expected finite weights, found NaN" in p.stderr
    config = tmp_path / "nan/config.json"
    config.write_text(config.read_text().replace('"hidden_size": 256', '"hidden_size": 512'))
    doc = json.loads(llmq("verify", weights.parent, "--json", code=4).stdout)
    assert any("expected shape [4096,512], found [4096,256]" in b["what"] for b in doc["bad"])


def test_a_damaged_plane_is_seen_before_use_where_asked(llmq, packed, tmp_path):
    raw = bytearray(packed["rtn"].read_bytes())
    raw[2200000] ^= 1
    (tmp_path / "bad.llmq").write_bytes(raw)
    p = llmq("run", tmp_path / "bad.llmq", "--ids", "1", "-n", "1", "--verify", code=4)
    assert "codes: checksum: expected" in p.stderr and p.stdout == ""
    llmq("run", packed["rtn"], "--ids", "1", "-n", "1", "--verify")


def test_another_model_is_no_source(llmq, packed, draft):
    p = llmq("verify", packed["rtn"], "--against", draft, code=4)
    assert "model.embed_tokens.weight: shape: expected [4096,128], found [4096,256]" in p.stderr
