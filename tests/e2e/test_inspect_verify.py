"""`llmq inspect` and `llmq verify`: folders, quantized files, damage of every kind."""
import json
import os
import pathlib
import shutil
import struct
import subprocess

import pytest

from conftest import ROOT


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
    assert {"u4-g128", "u8-g32", "bf16"} == {s["scheme"] for s in doc["schemes"]}
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
            assert not doc["ok"] and len(doc["bad"]) == 1 and doc["checked"] > 0, why
            assert doc["runs"] == (name != "header"), why
            assert name is None or doc["bad"][0]["name"] == name, why
        else:
            error = json.loads(p.stdout)["error"]
            assert error["exit_code"] == 3 and error["message"] in p.stderr, why
            assert "major version: expected 1, found 2" in p.stderr, why


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


@pytest.mark.parametrize("options", [("rtn",), ("rtn", "--embed", "u8-g64"), ("awq", "--calib-samples", "2")])
def test_a_rotated_model_is_compared_with_its_source_turned_the_same_way(llmq, model, tmp_path, options):
    llmq("quantize", model, "-o", tmp_path / "r.llmq", "--rotate", "--seed", "7", "--no-check", "--method", *options)
    doc = llmq.json("verify", tmp_path / "r.llmq", "--against", model)
    assert doc["ok"] and doc["checked"] > 56
    weights = copy_model(model, tmp_path / "other")
    data = bytearray(weights.read_bytes())
    n = struct.unpack_from("<Q", data)[0]
    name = "model.layers.2.mlp.gate_proj.weight"
    at = 8 + n + json.loads(data[8:8 + n])[name]["data_offsets"][0]
    data[at:at + 512] = struct.pack("<H", 0x3f80) * 256  # a row of 1.0 in bf16
    weights.write_bytes(data)
    doc = json.loads(llmq("verify", tmp_path / "r.llmq", "--against", tmp_path / "other", "--json", code=4).stdout)
    assert [b["name"] for b in doc["bad"]] == [name]
    llmq("quantize", model, "-o", tmp_path / "q.llmq", "--method", "rtn")
    p = llmq("verify", tmp_path / "r.llmq", "--against", tmp_path / "q.llmq", code=3)
    assert "which only the floats that it was made of can be compared with (any model: llmq eval --ref --max-kl)" in p.stderr
    assert llmq.json("verify", tmp_path / "r.llmq", "--against", tmp_path / "r.llmq")["ok"]


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


def test_floats_that_differ_are_told_as_floats(llmq, draft, tmp_path):
    llmq("convert", draft, "-o", tmp_path / "f16", "--to", "safetensors", "--dtype", "f16")
    assert llmq.json("verify", tmp_path / "f16", "--against", draft)["ok"]
    weights = tmp_path / "f16/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2:] = struct.pack("<e", 100)
    weights.write_bytes(data)
    p = llmq("verify", tmp_path / "f16", "--against", draft, code=4)
    assert "expected the source's value as f16 holds it, found another" in p.stderr
    assert "step" not in p.stderr and "awq" not in p.stderr


# ---- GGUF: what lies between and behind the tensors ----
@pytest.fixture(scope="module")
def gguf(llmq, draft, tmp_path_factory):
    out = tmp_path_factory.mktemp("gguf") / "m.gguf"
    llmq("convert", draft, "-o", out, "--to", "gguf")
    return out.read_bytes()


def offset_at(data, name):
    """Where a tensor's offset stands in the header."""
    at = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
    return at + 4 + 8 * struct.unpack_from("<I", data, at)[0] + 4


def moved(data, name, by):
    at = offset_at(data, name)
    return damaged(data, at, struct.pack("<Q", struct.unpack_from("<Q", data, at)[0] + by))


def test_bytes_of_no_tensor_are_found_in_a_gguf(llmq, gguf, tmp_path):
    norms = [b"blk.0.attn_norm.weight", b"blk.0.ffn_norm.weight"]
    name = max(norms, key=lambda n: struct.unpack_from("<Q", gguf, offset_at(gguf, n))[0])
    for why, data, says in [
        ("whole", gguf, None),
        ("one byte behind", gguf + b"x", "found 1 more bytes"),
        ("many bytes behind", gguf + b"payload" * 1000, "more bytes"),
        ("an overlap", moved(gguf, name, -32), "an overlap"),
        ("a hole", moved(gguf + bytes(32), gguf_last(gguf), 32), "a hole"),
    ]:
        path = tmp_path / "m.gguf"
        path.write_bytes(data)
        p = llmq("verify", path, "--json", code=4 if says else 0)
        doc = json.loads(p.stdout)
        assert doc["ok"] == (says is None), why
        assert says is None or any(says in b["what"] for b in doc["bad"]), (why, doc)


def gguf_last(data):
    names = [f"blk.{i}.{n}.weight".encode() for i in range(8) for n in
             ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")]
    names = [n for n in names + [b"output_norm.weight", b"token_embd.weight"] if n in data]
    return max(names, key=lambda n: struct.unpack_from("<Q", data, offset_at(data, n))[0])


# ---- bits per weight ----
@pytest.mark.parametrize("method", ["awq", "gptq", "rtn", "nf4"])
def test_quantize_and_inspect_count_the_same_bits(llmq, draft, tmp_path, method):
    """Norms that awq and gptq fold factors into are stored as f32: every byte of the file counts."""
    calib = ["--calib-samples", "4", "--calib-len", "32"] if method in ("awq", "gptq") else []
    command = ["quantize", draft, "-o", tmp_path / "q.llmq", "--method", method, *calib]
    made, shown = llmq.json(*command), llmq.json("inspect", tmp_path / "q.llmq")
    assert (made["bpw"], made["bpw_model"]) == (shown["bpw"], shown["bpw_model"])
    if calib:
        assert any(t["scheme"] == "f32" for t in shown["tensors"])
    again = llmq.json(*command, "--resume")
    assert again["already_done"] and again["bpw_model"] == shown["bpw_model"]


# ---- SHA256SUMS ----
def test_a_published_folder_is_checked_against_its_sums(llmq, draft, tmp_path):
    hub = tmp_path / "hub"
    llmq("publish", draft, f"dir:{hub}")
    whole = llmq.json("verify", hub)
    assert whole["ok"] and whole["checked"] > llmq.json("verify", draft)["checked"]
    card = (hub / "README.md").read_text()
    (hub / "README.md").write_text(card + "!")
    (hub / "generation_config.json").unlink()
    (hub / "LICENSE").write_text("mine now\n")
    (hub / "notes.bin").write_text("no file of a model\n")
    doc = json.loads(llmq("verify", hub, "--json", code=4).stdout)
    found = {b["name"]: b["what"] for b in doc["bad"]}
    assert sorted(found) == ["LICENSE", "README.md", "generation_config.json"]
    assert "expected in SHA256SUMS, not found there" in found["LICENSE"]
    assert "expected SHA-256" in found["README.md"] and "not there" in found["generation_config.json"]
    assert "remove SHA256SUMS" in llmq("publish", hub, f"dir:{tmp_path}/again", code=4).stderr
    assert not (tmp_path / "again").exists()


def test_a_folder_whose_sums_do_not_fit_may_be_too_damaged_to_open(llmq, draft, tmp_path):
    hub = tmp_path / "hub"
    llmq("publish", draft, f"dir:{hub}")
    weights = hub / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    doc = json.loads(llmq("verify", hub, "--json", code=4).stdout)
    assert {b["name"] for b in doc["bad"]} == {"model.safetensors", "model"} and not doc["runs"]
    (hub / "SHA256SUMS").write_text("nonsense\n")
    doc = json.loads(llmq("verify", hub, "--json", code=4).stdout)
    assert doc["bad"][0]["name"] == "SHA256SUMS" and "64 hex digits" in doc["bad"][0]["what"]


# ---- names that are no UTF-8 ----
def test_json_is_utf8_whatever_the_names_are(llmq, gguf, tmp_path):
    name = b"blk.0.attn_norm.weight"
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf.replace(name, b"blk.0.attn_norm.weigh\xff"))
    odd = tmp_path / "m\udcfe.gguf"
    odd.write_bytes(path.read_bytes())
    for command in (["inspect", path], ["inspect", odd], ["verify", odd]):
        p = subprocess.run([llmq.path, *map(str, command), "--json"], capture_output=True)
        text = p.stdout.decode("utf-8")  # raises where it is none
        assert json.loads(text), command
    assert "weigh\ufffd" in subprocess.run([llmq.path, "inspect", path, "--json"],
                                           capture_output=True).stdout.decode()


# ---- what is there and no whole model ----
def cut_tail(path):
    path.write_bytes(path.read_bytes()[:-100])


def cut_head(path):
    path.write_bytes(path.read_bytes()[:60])


def grow(path):
    path.write_bytes(path.read_bytes() + b"more")


def empty(path):
    path.write_bytes(b"")


def scribble(path):
    path.write_text("this is no model at all\n")


@pytest.fixture(scope="module")
def kinds(llmq, draft, tmp_path_factory):
    """What is named, and the file of it that is damaged."""
    top = tmp_path_factory.mktemp("kinds")
    llmq("convert", draft, "-o", top / "m.llmq", "--to", "llmq")
    llmq("convert", draft, "-o", top / "m.gguf", "--to", "gguf")
    llmq("convert", draft, "-o", top / "one", "--to", "safetensors")
    llmq("convert", draft, "-o", top / "gptq", "--to", "gptq", "--allow-requantize")
    llmq("convert", draft, "-o", top / "shards", "--to", "safetensors", "--shard-size", "1M")
    return top, [("m.llmq", "m.llmq"), ("m.gguf", "m.gguf"), ("one/model.safetensors", "one/model.safetensors"),
                 ("one", "one/model.safetensors"), ("gptq", "gptq/model.safetensors"),
                 ("shards", "shards/model-00002-of-00002.safetensors")]


@pytest.mark.parametrize("damage", [cut_tail, cut_head, grow, empty, scribble, pathlib.Path.unlink])
def test_one_exit_code_for_what_is_no_whole_model(llmq, kinds, tmp_path, damage):
    """4, whatever the format; 3 is left for what is not there or not known."""
    made, all_kinds = kinds
    for named, file in all_kinds:
        top = tmp_path / named.replace("/", "-") / "top"
        shutil.copytree(made, top)
        damage(top / file)
        gone = not (top / named).exists()
        p = llmq("verify", top / named, "--json", code=3 if gone else 4)
        doc = json.loads(p.stdout)
        assert doc["error"]["type"] == "not found" if gone else not doc["ok"] and doc["bad"], (named, doc)
        assert len({line.split(": ", 1)[-1] for line in p.stderr.splitlines()}) == len(p.stderr.splitlines()), p.stderr
        p = llmq("publish", top / named, f"dir:{tmp_path}/hub", code=3 if gone else 4)
        assert not (tmp_path / "hub").exists()


def test_what_cannot_be_checked_is_no_finding(llmq, draft, tmp_path):
    (tmp_path / "empty").mkdir()
    for why, path, code in [("not there", tmp_path / "nowhere", 3), ("a device", "/dev/null", 3),
                            ("an empty folder", tmp_path / "empty", 4), ("a text", ROOT / "README.md", 4)]:
        llmq("verify", path, code=code), why


def test_two_models_in_one_folder(llmq, draft, tmp_path):
    for name in ("a.gguf", "b.GGUF"):
        llmq("convert", draft, "-o", tmp_path / "two" / name, "--to", "gguf")
    assert "expected one model, found 2: name one of" in llmq("verify", tmp_path / "two", code=2).stderr
    llmq("publish", tmp_path / "two/a.gguf", f"dir:{tmp_path}/hub")
    shutil.copy(tmp_path / "two/b.GGUF", tmp_path / "hub")
    doc = json.loads(llmq("verify", tmp_path / "hub", "--json", code=4).stdout)
    assert [b["name"] for b in doc["bad"]] == ["b.GGUF", "model"]


def test_what_lies_beside_a_model_is_told(llmq, draft, tmp_path):
    src = tmp_path / "src"
    shutil.copytree(draft, src)
    assert llmq.json("verify", src)["not_checked"] == []
    shutil.copytree(draft, src / "copy")
    (src / "additional_chat_templates").mkdir()
    (src / ".git").mkdir()
    llmq("convert", draft, "-o", src / "m.gguf", "--to", "gguf")
    p = llmq("verify", src, "--json")
    assert sorted(json.loads(p.stdout)["not_checked"]) == ["copy", "m.gguf"]
    assert "copy: a folder that is no part of the model: not checked" in p.stderr
    assert "m.gguf: a file of weights that is no part of the model: not checked" in p.stderr
    assert "copy" in llmq("publish", src, f"dir:{tmp_path}/hub").stderr


# ---- the small files ----
def tear(path):
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_torn_small_file_is_refused_wherever_it_would_be_carried_on(llmq, draft, tmp_path, name):
    src = tmp_path / "src"
    shutil.copytree(draft, src)
    tear(src / name)
    for more in ([], ["--runs"]):
        doc = json.loads(llmq("verify", src, "--json", *more, code=4).stdout)
        assert not doc["ok"] and doc["tokenizer"] == (name == "tokenizer_config.json") and len(doc["bad"]) == 1
    assert llmq("publish", src, f"dir:{tmp_path}/hub", code=4)
    if name == "tokenizer.json":
        for command in (["quantize", src, "--method", "rtn", "-o", tmp_path / "q"], ["handover", "vllm", src],
                        *(["convert", src, "--to", to, "-o", tmp_path / "q"] for to in ("llmq", "gguf", "safetensors"))):
            assert "tokenizer.json: JSON" in llmq(*command, code=3).stderr, command
    assert [p.name for p in tmp_path.iterdir()] == ["src"]


def test_tensors_without_a_config_are_no_model(llmq, draft, tmp_path):
    src = tmp_path / "src"
    shutil.copytree(draft, src)
    (src / "config.json").unlink()
    for what in (src, src / "model.safetensors"):
        doc = json.loads(llmq("verify", what, "--json", code=4).stdout)
        assert not doc["ok"] and [b["name"] for b in doc["bad"]] == ["config"] and "config.json, found none" in doc["bad"][0]["what"]
        llmq("publish", what, f"dir:{tmp_path}/hub", code=4)
    assert [p.name for p in tmp_path.iterdir()] == ["src"]


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "generation_config.json", "model.safetensors"])
def test_a_folder_in_the_place_of_a_file_is_refused(llmq, draft, tmp_path, name):
    src = tmp_path / "src"
    shutil.copytree(draft, src)
    (src / name).unlink()
    (src / name).mkdir()
    assert f"{name}: expected a regular file" in llmq("verify", src, code=4).stderr
    assert f"{name}: expected a regular file" in llmq("convert", src, "-o", tmp_path / "x", "--to", "llmq", code=3).stderr
    llmq("publish", src, f"dir:{tmp_path}/hub", code=4)
    assert [p.name for p in tmp_path.iterdir()] == ["src"]


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors", "SHA256SUMS"])
def test_a_file_that_may_not_be_read_is_no_finding(llmq, draft, tmp_path, name):
    """Nobody knows what is in it: 3, wherever it lies."""
    src = tmp_path / "src"
    llmq("publish", draft, f"dir:{src}")
    (src / name).chmod(0)
    unheeded = "-dac_override,-dac_read_search"  # what lets root read it all the same
    drop = ["setpriv", f"--bounding-set={unheeded}", f"--inh-caps={unheeded}"] if os.geteuid() == 0 else []
    for args in (["verify", src], ["publish", src, f"dir:{tmp_path}/hub", "--dry-run"]):
        p = subprocess.run([*drop, llmq.path, *map(str, args)], capture_output=True, text=True)
        assert p.returncode == 3 and f"{name}: Permission denied" in p.stderr, (args, p.stderr)


def test_a_folder_of_hugging_faces_cache_is_told_from_a_model(llmq, draft, tmp_path):
    cache = tmp_path / "models--me--novels"
    snapshot = cache / "snapshots/0123abcd"
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for n, f in enumerate(sorted(pathlib.Path(draft).iterdir())):
        shutil.copy(f, cache / f"blobs/{n}")
        (snapshot / f.name).symlink_to(f"../../blobs/{n}")
    for command in ("verify", "inspect"):
        assert "name a snapshot in it: snapshots/0123abcd" in llmq(command, cache, code=2).stderr
    assert llmq.json("verify", snapshot)["ok"]
    llmq("publish", snapshot, f"dir:{tmp_path}/hub")
    assert not any(p.is_symlink() for p in (tmp_path / "hub").iterdir()) and llmq.json("verify", tmp_path / "hub")["ok"]


def test_a_missing_tokenizer_is_told(llmq, draft, tmp_path):
    src = tmp_path / "src"
    shutil.copytree(draft, src)
    (src / "tokenizer.json").unlink()
    p = llmq("verify", src, "--json")
    doc = json.loads(p.stdout)
    assert doc["ok"] and not doc["runs"] and not doc["tokenizer"]
    assert doc["why_not"] == "expected a tokenizer beside tokenizer_config.json, found none"
    llmq("verify", src, "--runs", code=4)
    assert "found none" in llmq("publish", src, f"dir:{tmp_path}/hub").stderr
    assert "found none" in llmq("handover", "vllm", src).stderr
    (src / "tokenizer_config.json").unlink()  # nothing speaks of one: a model of ids
    for more in ([], ["--runs"]):
        p = llmq("verify", src, "--json", *more)
        assert json.loads(p.stdout)["runs"] and "no tokenizer: the model takes and gives token ids alone" in p.stderr


def test_a_tokenizer_that_is_not_known_is_no_damage(llmq, draft, tmp_path):
    src = tmp_path / "src"
    shutil.copytree(draft, src)
    text = json.loads((src / "tokenizer.json").read_text())
    text["model"]["type"] = "Novel"
    (src / "tokenizer.json").write_text(json.dumps(text))
    doc = llmq.json("verify", src)
    assert doc["ok"] and not doc["runs"] and "Novel" in doc["why_not"]
    llmq("verify", src, "--runs", code=4)
    llmq("quantize", src, "--method", "rtn", "-o", tmp_path / "q.llmq")
    llmq("convert", src, "--to", "safetensors", "-o", tmp_path / "q")


@pytest.mark.parametrize("name, text, code, says", [
    ("modules.json", "[{", 4, "modules.json: JSON"),
    ("modules.json", '[{"type": "a.Transformer", "path": ""}]', 4, "expected a Transformer and a Pooling"),
    ("modules.json", '[{"type": "a.Transformer", "path": ""}, {"type": "a.SpladePooling", "path": "x"}]', 0, "found SpladePooling"),
    ("1_Pooling/config.json", None, 4, "1_Pooling/config.json: not found"),
    ("sentence_bert_config.json", '{"max_seq_length": 0}', 4, "max_seq_length"),
])
def test_files_of_sentence_transformers_are_checked(llmq, tmp_path, name, text, code, says):
    """And whoever quantizes the model is told before the work that it will not be served."""
    model = tmp_path / "m"
    shutil.copytree(ROOT / "tests/golden/heads/embeddinggemma", model, ignore=shutil.ignore_patterns("expected.safetensors"))
    assert llmq("verify", model).returncode == 0
    (model / name).unlink() if text is None else (model / name).write_text(text)
    r = llmq("verify", model, code=code)
    assert says in r.stdout + r.stderr
    r = llmq("quantize", model, "-m", "rtn", "--dry-run", code=None)
    assert says in r.stderr and (r.returncode == 0 or "JSON" in says)
