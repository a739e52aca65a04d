"""What a converted model says of where it came from, and what verify, inspect and publish make of it; models that llmq cannot
run; paths that stand for a model."""
import json
import pathlib
import shutil
import struct
import subprocess

import pytest

from harness import KEEP, ROOT

GOLDEN = ROOT / "tests/golden"


@pytest.fixture(scope="module")
def folded(llmq, draft, tmp_path_factory):
    """A method that looks at activations and folds factors into other tensors."""
    out = tmp_path_factory.mktemp("history") / "q.llmq"
    llmq("quantize", draft, "-o", out, "--method", "awq", "--sym", "--calib-samples", "2", "--calib-len", "32",
         *KEEP)
    return out


@pytest.fixture(scope="module")
def other(llmq, draft, folded):
    out = folded.parent / "other.llmq"
    llmq("quantize", draft, "-o", out, "--method", "rtn", "--sym")
    return out


def edit(folder, to, **keys):
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text()) | keys
    (to / "config.json").write_text(json.dumps(config))
    return to


def kept(pairs, key):
    """The value of a text in a GGUF file."""
    at = pairs.index(struct.pack("<Q", len(key)) + key.encode()) + 8 + len(key)
    assert pairs[at:at + 4] == struct.pack("<I", 8), key
    n = struct.unpack_from("<Q", pairs, at + 4)[0]
    return pairs[at + 12:at + 12 + n].decode()


@pytest.mark.parametrize("to", ["gptq", "awq", "compressed-tensors", "gguf"])
def test_the_recipe_travels_with_what_is_converted(llmq, draft, folded, tmp_path, to):
    out = tmp_path / "deep/er" / to  # folders that are missing are made
    extra = ["--allow-requantize"] if to == "gguf" else []
    assert llmq.json("convert", folded, "-o", out, "--to", to, *extra)["bit_exact"]
    recipe = llmq.json("inspect", folded)["recipe"]
    assert recipe["method"] == "awq" and llmq.json("inspect", out)["recipe"] == recipe
    for source in (draft, folded):  # factors that were folded in are fitted; without the recipe this says no
        assert llmq.json("verify", out, "--against", source)["ok"], source
    llmq("convert", out, "-o", tmp_path / "back.llmq", "--to", "llmq")
    assert llmq.json("inspect", tmp_path / "back.llmq")["recipe"] == recipe


@pytest.mark.parametrize("to", ["gptq", "awq", "compressed-tensors", "bnb"])
def test_an_embedding_of_8_bits_is_written_in_16(llmq, draft, tmp_path, to):
    """What quantize makes unasked, in layouts that hold linear layers alone."""
    q, out = tmp_path / "q.llmq", tmp_path / to
    llmq("quantize", draft, "-o", q, "--method", "nf4" if to == "bnb" else "rtn")
    doc = llmq.json("convert", q, "-o", out, "--to", to)
    assert doc["requantized"] == 0 and not doc["bit_exact"]
    assert ["embed_tokens" in n and "is written as" in n for n in doc["notes"]].count(True) == 1
    for source in (draft, q):
        assert llmq.json("verify", out, "--against", source)["ok"], source
    assert llmq.json("inspect", out)["recipe"] == llmq.json("inspect", q)["recipe"]


@pytest.mark.parametrize("scheme, wrong", [("u4-g32", None), ("u3-g64-asym", None), ("u4-g32", "u8-g32")])
def test_an_embedding_by_an_override_is_known_again(llmq, draft, tmp_path, scheme, wrong):
    q, out = tmp_path / "q.llmq", tmp_path / "out"
    llmq("quantize", draft, "-o", q, "--method", "rtn", "--override", "down_proj=u8-g32", "--override", f"embed={scheme}")
    llmq("convert", q, "-o", out, "--to", "compressed-tensors")
    if wrong:  # a step that is finer than what was done
        text = (out / "llmq.json").read_text()
        (out / "llmq.json").write_text(text.replace(scheme, wrong))
    r = llmq("verify", out, "--against", draft, code=4 if wrong else 0)
    assert not wrong or "embed_tokens" in r.stderr + r.stdout


def test_a_recipe_is_not_taken_for_that_of_other_weights(llmq, folded, tmp_path):
    llmq("convert", folded, "-o", tmp_path / "a", "--to", "gptq")
    llmq("convert", folded, "-o", tmp_path / "b", "--to", "gptq", "--dtype", "f32")
    shutil.copy(tmp_path / "a/llmq.json", tmp_path / "b/llmq.json")
    doc = llmq.json("inspect", tmp_path / "b")
    assert doc["recipe"] is None and "llmq.json is of other files" in doc["notes"][0]
    (tmp_path / "b/llmq.json").write_text("{")
    assert "the recipe in it is not used" in llmq.json("inspect", tmp_path / "b")["notes"][0]


def test_what_was_rounded_anew_is_compared_with_what_it_was_rounded_from(llmq, draft, tmp_path):
    llmq("quantize", draft, "-o", tmp_path / "nf4.llmq", "--method", "nf4", *KEEP)
    p = llmq("convert", tmp_path / "nf4.llmq", "-o", tmp_path / "awq", "--to", "awq", code=3)
    assert "found nf4 (--allow-requantize rounds it again)" in p.stderr
    doc = llmq.json("convert", tmp_path / "nf4.llmq", "-o", tmp_path / "awq", "--to", "awq", "--allow-requantize")
    assert doc["requantized"] == 14 and doc["weights"] == 20 and doc["tensors"] == 48
    assert "group_size" in (tmp_path / "awq/quant_config.json").read_text()
    assert llmq.json("verify", tmp_path / "awq", "--against", tmp_path / "nf4.llmq")["ok"]
    doc = json.loads(llmq("verify", tmp_path / "awq", "--against", draft, "--json", code=4).stdout)
    assert len(doc["bad"]) == 1 and "compare them with the model that it was given, of XXH3-128" in doc["bad"][0]["what"]
    # by way of a .llmq it is still known
    llmq("convert", tmp_path / "awq", "-o", tmp_path / "b.llmq", "--to", "llmq")
    assert len(json.loads(llmq("verify", tmp_path / "b.llmq", "--against", draft, "--json", code=4).stdout)["bad"]) == 1


@pytest.mark.parametrize("recipe", [True, False], ids=["of a recipe", "of floats alone"])
@pytest.mark.parametrize("to", ["bnb", "gptq"])
def test_what_was_rounded_anew_is_known_once_whatever_the_way(llmq, draft, folded, tmp_path, recipe, to):
    """There and back by way of .llmq: said once, in the same words, and the files are the same."""
    llmq("convert", folded if recipe else draft, "-o", tmp_path / "a", "--to", to, "--allow-requantize")
    if to == "gptq" and recipe:  # held as it is: nothing to tell
        llmq("quantize", draft, "-o", tmp_path / "nf4.llmq", "--method", "nf4", *KEEP)
        llmq("convert", tmp_path / "nf4.llmq", "-o", tmp_path / "a", "--to", to, "--allow-requantize")
    told = llmq.json("inspect", tmp_path / "a")["converted"]
    assert told["requantized"] == 14 and told["bit_exact"] is False
    for i, (out, way) in enumerate([("1.llmq", "llmq"), ("2", to), ("3.llmq", "llmq"), ("4.gguf", "gguf"), ("5.llmq", "llmq")]):
        llmq("convert", tmp_path / ("a", "1.llmq", "2", "3.llmq", "4.gguf")[i], "-o", tmp_path / out, "--to", way,
             *(["--allow-requantize"] if way == "gguf" else []))
        doc = llmq.json("inspect", tmp_path / out)
        assert (doc["recipe"] is not None) == recipe and "converted" not in doc["provenance"], out
        assert doc["converted"]["requantized"] == 14 and (i > 2 or doc["converted"] == told), out
        assert llmq("inspect", tmp_path / out).stdout.count("requantized") == 1, out
    assert (tmp_path / "1.llmq").read_bytes() == (tmp_path / "3.llmq").read_bytes()
    p = llmq("publish", tmp_path / "3.llmq", f"dir:{tmp_path}/hub")
    text = (tmp_path / "hub/provenance.json").read_text()
    assert text.count('"converted"') == 1 and "`llmq convert` has rounded 14 of its weights" in (tmp_path / "hub/README.md").read_text()


def test_a_history_with_the_same_twice_is_told_once(llmq, folded, tmp_path):
    """As an older llmq wrote it."""
    llmq("convert", folded, "-o", tmp_path / "a", "--to", "bnb", "--allow-requantize")
    doc = json.loads((tmp_path / "a/llmq.json").read_text())
    doc["provenance"]["converted"] = doc["converted"]
    (tmp_path / "a/llmq.json").write_text(json.dumps(doc))
    found = llmq.json("inspect", tmp_path / "a")
    assert found["converted"] == doc["converted"] and "converted" not in found["provenance"]
    del doc["converted"]
    (tmp_path / "a/llmq.json").write_text(json.dumps(doc))
    assert llmq.json("inspect", tmp_path / "a")["converted"] == found["converted"]


def test_a_refusal_names_no_way_out_that_is_none(llmq, tmp_path):
    llmq("quantize", GOLDEN / "arch/bloom-5-heads", "-o", tmp_path / "m.llmq", "--method", "nf4")
    p = llmq("convert", tmp_path / "m.llmq", "-o", tmp_path / "x", "--to", "awq", code=3)
    assert "(nor would it with --allow-requantize: awq holds one group size, found 40" in p.stderr
    llmq("convert", tmp_path / "m.llmq", "-o", tmp_path / "x", "--to", "awq", "--allow-requantize", code=3)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("arch", ["falcon-rw-alibi", "opt", "llama-dynamic-ntk"])
def test_a_refusal_of_a_whole_model_for_gguf_says_that_rounding_would_not_help(llmq, tmp_path, arch):
    p = llmq("convert", GOLDEN / "arch" / arch, "-o", tmp_path / "x.gguf", "--to", "gguf", code=3)
    assert p.stderr.endswith("(--allow-requantize would not help)\n")
    p = llmq("convert", GOLDEN / "arch" / arch, "-o", tmp_path / "x.gguf", "--to", "gguf", "--allow-requantize", code=3)
    assert "--allow-requantize" not in p.stderr and not (tmp_path / "x.gguf").exists()


def test_made_from_another_file_is_refused(llmq, folded, other, tmp_path):
    llmq("convert", folded, "-o", tmp_path / "gptq", "--to", "gptq")
    llmq("publish", tmp_path / "gptq", f"dir:{tmp_path}/a/b", "--made-from", folded)
    assert "gptq" in (tmp_path / "a/b/README.md").read_text() and (tmp_path / "a/b/llmq.json").exists()
    p = llmq("publish", tmp_path / "gptq", f"dir:{tmp_path}/x", "--made-from", other, code=2)
    assert "its recipe is another" in p.stderr and not (tmp_path / "x").exists()
    (tmp_path / "gptq/llmq.json").unlink()  # as folders were that an older llmq made
    p = llmq("publish", tmp_path / "gptq", f"dir:{tmp_path}/x", "--made-from", other, code=2)
    assert "it has other weights in model." in p.stderr
    llmq("publish", tmp_path / "gptq", f"dir:{tmp_path}/x", "--made-from", folded)


@pytest.mark.parametrize("why,change,says", [
    ("an architecture", {"architectures": ["FooForCausalLM"]}, "FooForCausalLM"),
    ("a setting", {"weird_scale": 3}, "weird_scale"),
    ("a layout", {"quantization_config": {"quant_method": "eetq"}}, '"eetq", a layout that is not read'),
])
def test_what_llmq_cannot_run_is_said_to_be_so(llmq, draft, tmp_path, why, change, says):
    odd = edit(draft, tmp_path / "odd", **change)
    llmq("run", odd, "--ids", "1", "-n", "1", code=3)
    doc = llmq.json("verify", odd)
    assert doc["ok"] and not doc["runs"] and says in doc["why_not"], why
    assert "the bytes are right; llmq cannot run it:" in llmq("verify", odd).stdout
    assert json.loads(llmq("verify", odd, "--runs", "--json", code=4).stdout)["ok"] is False
    assert says in llmq.json("inspect", odd)["cannot_run"] and says in llmq("inspect", odd).stdout
    p = llmq("publish", odd, f"dir:{tmp_path}/hub")
    card = (tmp_path / "hub/README.md").read_text()
    assert says in p.stderr and "cannot run this model" in card and "llmq serve" not in card and str(tmp_path) not in card
    assert llmq.json("verify", draft)["runs"]


def test_a_config_that_says_nonsense_is_a_finding(llmq, draft, tmp_path):
    doc = json.loads(llmq("verify", edit(draft, tmp_path / "m", hidden_size="many"), "--json", code=4).stdout)
    assert doc["bad"][0]["name"] == "config" and "hidden_size" in doc["bad"][0]["what"]


def test_a_folder_with_one_file_in_it_stands_for_the_file(llmq, folded, other, tmp_path):
    llmq("publish", folded, f"dir:{tmp_path}/hub")
    hub = tmp_path / "hub"
    assert llmq.json("inspect", hub)["format"] == "llmq" and llmq.json("verify", hub, "--against", folded)["ok"]
    assert llmq("run", hub, "--ids", "5,6", "-t", "0", "-n", "3").stdout == llmq("run", folded, "--ids", "5,6", "-t", "0", "-n", "3").stdout
    assert llmq.json("plan", hub)["weights_bytes"] == llmq.json("plan", folded)["weights_bytes"]
    assert llmq.json("convert", hub, "-o", tmp_path / "c", "--to", "gptq")["bit_exact"]
    assert "hub/q.llmq" in llmq.json("handover", "llama.cpp", hub)["prepare"][0]
    shutil.copy(other, hub / "other.llmq")
    for code, *args in ((2, "inspect", hub), (2, "run", hub, "--ids", "1"), (4, "verify", hub)):  # SHA256SUMS names one
        p = llmq(*args, code=code)
        assert "expected one model, found 2: name one of" in p.stderr and "q.llmq" in p.stderr


def test_missing_folders_are_made_and_a_file_in_the_way_is_told_before_the_work(llmq, folded, tmp_path):
    (tmp_path / "file").write_text("x")
    for dry in ([], ["--dry-run"]):
        p = llmq("publish", folded, f"dir:{tmp_path}/file/a/b", *dry, code=2)
        assert f"file/a/b: expected a folder {tmp_path}/file, found a file" in p.stderr
    llmq("publish", folded, f"dir:{tmp_path}/a/b/c", "--dry-run")
    assert not (tmp_path / "a").exists()
    llmq("publish", folded, f"dir:{tmp_path}/a/b/c")
    llmq("pull", f"dir:{tmp_path}/a/b/c", "-o", tmp_path / "d/e")
    llmq("convert", tmp_path / "d/e", "-o", tmp_path / "f/g/h.llmq", "--to", "llmq")
    assert (tmp_path / "f/g/h.llmq").exists()
    p = llmq("convert", folded, "-o", tmp_path / "file/x.gguf", "--to", "gguf", code=2)
    assert "expected a folder" in p.stderr


def test_published_layouts_are_named(llmq, folded, tmp_path):
    for to, says in [("gptq", "gptq"), ("gptq_v2", "gptq, gptq_v2"), ("awq", "awq, gemm"),
                     ("compressed-tensors", "compressed-tensors, pack-quantized")]:
        llmq("convert", folded, "-o", tmp_path / to, "--to", to)
        assert llmq.json("inspect", tmp_path / to)["layout"] == says
        assert f": safetensors ({says}), " in llmq("inspect", tmp_path / to).stdout.splitlines()[0]
    assert llmq.json("inspect", folded)["layout"] is None
    size = (tmp_path / "awq/model.safetensors").stat().st_size
    assert llmq.json("inspect", tmp_path / "awq")["file_bytes"] == size
    files = llmq.json("handover", "vllm", tmp_path / "awq")["files"]
    assert str(tmp_path / "awq/model.safetensors") in files


def test_gguf_carries_sampling_and_the_licences_name(llmq, draft, tmp_path):
    src = edit(draft, tmp_path / "m")
    (src / "generation_config.json").write_text('{"do_sample":true,"temperature":0.35,"top_k":17,"min_p":0.02,"max_new_tokens":9}')
    (src / "README.md").write_text("---\nlicense: apache-2.0\n---\n# m\n")
    (src / "LICENSE").write_text("terms")
    doc = llmq.json("convert", src, "-o", tmp_path / "m.gguf", "--to", "gguf")
    assert doc["notes"] == ["GGUF has no place for: LICENSE, README.md, max_new_tokens of generation_config.json"]
    raw = (tmp_path / "m.gguf").read_bytes()
    assert kept(raw, "general.license") == "apache-2.0" and b"llmq.recipe" not in raw
    for key, kind, value in [("temp", 6, struct.pack("<f", 0.35)), ("top_k", 5, struct.pack("<i", 17)), ("min_p", 6, struct.pack("<f", 0.02))]:
        name = b"general.sampling." + key.encode()
        assert name + struct.pack("<I", kind) + value in raw, key
    g = llmq.json("inspect", tmp_path / "m.gguf")["generation"]
    assert (g["temperature"], g["top_k"], g["min_p"]) == (0.35, 17, 0.02)
    llmq("publish", tmp_path / "m.gguf", f"dir:{tmp_path}/hub")
    assert "license: apache-2.0" in (tmp_path / "hub/README.md").read_text()


def test_quants_of_others_are_held_to_no_bound_of_ours(llmq, model):
    assert llmq.json("verify", GOLDEN / "gguf/novels-6m-Q2_K.gguf", "--against", model)["ok"]


def test_git_says_in_a_sentence_what_is_wrong_and_whether_a_clone_is_empty(llmq, folded, tmp_path, monkeypatch):
    if not shutil.which("git") or not shutil.which("git-lfs"):
        pytest.skip("git and git-lfs are not both installed")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    p = llmq("publish", folded, f"git:{tmp_path}/none.git", code=1)
    assert ";;" not in p.stderr and "; fatal: Could not read" in p.stderr
    for head, empty in (("elsewhere", True), ("main", False)):
        subprocess.run(["git", "init", "-q", "--bare", "-b", head, tmp_path / f"{head}.git"], check=True)
        p = llmq("publish", folded, f"git:{tmp_path}/{head}.git")
        assert ("a clone needs `-b main`" in p.stderr) == empty, head


def test_weights_beside_the_model_stay_where_they_are(llmq, folded, other, tmp_path):
    llmq("convert", folded, "-o", tmp_path / "mix", "--to", "gptq")
    shutil.copy(other, tmp_path / "mix/other.llmq")
    (tmp_path / "mix/adapter.safetensors").write_bytes(b"damaged")
    p = llmq("publish", tmp_path / "mix", f"dir:{tmp_path}/hub")
    there = {f.name for f in (tmp_path / "hub").iterdir()}
    assert "model.safetensors" in there and not there & {"other.llmq", "adapter.safetensors"}
    for name in ("other.llmq", "adapter.safetensors"):
        assert f"{name}: weights that are no part of the checked model, and stay here" in p.stderr


def test_the_card_tells_of_weights_that_were_rounded_anew(llmq, folded, tmp_path):
    llmq("convert", folded, "-o", tmp_path / "bnb", "--to", "bnb", "--allow-requantize")
    llmq("publish", tmp_path / "bnb", f"dir:{tmp_path}/hub")
    card = (tmp_path / "hub/README.md").read_text()
    assert "has rounded 14 of its weights again" in card
    assert "own check |" not in card, "what was measured before counts no more as this model's"
    assert json.loads((tmp_path / "hub/provenance.json").read_text())["converted"]["requantized"] == 14
    assert "M parameters in " in card and " (safetensors: bnb" in card.replace("bitsandbytes", "bnb")
    assert "quantized with llmq by `awq`, then rounded again by `llmq convert`" in card
    llmq("convert", tmp_path / "bnb", "-o", tmp_path / "again", "--to", "gptq", "--allow-requantize")
    llmq("publish", tmp_path / "again", f"dir:{tmp_path}/twice")
    card = (tmp_path / "twice/README.md").read_text()
    assert "changed values 2 times, and rounded up to 14 of its weights again" in card


def test_the_card_of_floats_that_convert_rounded_says_so(llmq, draft, tmp_path):
    llmq("convert", draft, "-o", tmp_path / "awq", "--to", "awq", "--allow-requantize")
    llmq("publish", tmp_path / "awq", f"dir:{tmp_path}/hub")
    card = (tmp_path / "hub/README.md").read_text()
    assert "(safetensors: awq, gemm), rounded to the nearest by `llmq convert`" in card
    assert "has rounded 14 of its weights to the nearest" in card and "as they were found" not in card


def test_a_name_that_no_card_may_have_is_refused(llmq, folded, tmp_path):
    for name in ("two words", "a/b", "n" * 121, ""):
        p = llmq("publish", folded, f"dir:{tmp_path}/hub", "--name", name, code=2)
        assert "--name: expected 1 to 120 letters, digits" in p.stderr, name
    assert not (tmp_path / "hub").exists()
    llmq("publish", folded, f"dir:{tmp_path}/hub", "--name", "novels-1m.awq_4")
    assert "# novels-1m.awq_4\n" in (tmp_path / "hub/README.md").read_text()
