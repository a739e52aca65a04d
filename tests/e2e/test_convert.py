"""llmq convert: there and back, whole or not at all."""
import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

from harness import begun


def files(folder):
    """Of the model: not the list of them."""
    return {p.name: p.read_bytes() for p in pathlib.Path(folder).iterdir() if p.name != ".llmq-files"}


@pytest.mark.parametrize("layout", ["portable", "tile16"])
def test_a_model_comes_back_byte_for_byte(llmq, model, tmp_path, layout):
    r = llmq.json("convert", model, "-o", tmp_path / "m.llmq", "--to", "llmq", "--layout", layout)
    assert r["bit_exact"] and r["to"] == "llmq" and r["tensors"] == 56
    r = llmq.json("convert", tmp_path / "m.llmq", "-o", tmp_path / "back", "--to", "safetensors")
    assert r["bit_exact"]
    assert files(tmp_path / "back") == files(model)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["back", "m.llmq"]


@pytest.mark.parametrize("method", ["rtn", "absmax", "nf4"])
def test_a_layout_is_turned_back_bit_for_bit(llmq, model, tmp_path, method):
    llmq("quantize", model, "-o", tmp_path / "q.llmq", "--method", method)
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "t.llmq", "--to", "llmq", "--layout", "tile16")
    llmq("convert", tmp_path / "t.llmq", "-o", tmp_path / "p.llmq", "--to", "llmq")
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "q2.llmq", "--to", "llmq")
    assert (tmp_path / "p.llmq").read_bytes() == (tmp_path / "q2.llmq").read_bytes()


def test_a_quantized_model_becomes_a_folder_with_the_same_logits(llmq, model, tmp_path):
    llmq("quantize", model, "-o", tmp_path / "q.llmq", "--method", "rtn", "--lm-head", "u8-g128")
    r = llmq.json("convert", tmp_path / "q.llmq", "-o", tmp_path / "hf", "--to", "safetensors",
                  "--dtype", "f32", "--shard-size", "4M")
    assert r["bit_exact"] and r["bytes"] > 20e6
    index = json.loads((tmp_path / "hf/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == r["bytes"]
    assert set(index["weight_map"].values()) == {p.name for p in (tmp_path / "hf").glob("*.safetensors")}
    text = (tmp_path / "hf/config.json").read_text()
    config = json.loads(text)
    assert config["torch_dtype"] == "float32" and config["tie_word_embeddings"] is False
    assert "10000.0," in text and "1e-05," in text, "numbers keep their spelling: 1.0 is no integer to a reader"
    logits = []
    for src in ("q.llmq", "hf"):
        llmq("logits", tmp_path / src, "--ids", "1,5,9,300,77", "-o", tmp_path / "l.safetensors")
        raw = (tmp_path / "l.safetensors").read_bytes()
        logits.append(memoryview(raw[-5 * 4096 * 4:]).cast("f"))
    top = max(abs(x) for x in logits[0])
    assert max(abs(a - b) for a, b in zip(*logits)) <= 5e-5 * top
    r = llmq.json("convert", tmp_path / "q.llmq", "-o", tmp_path / "hf", "--to", "safetensors")
    assert not r["bit_exact"], "bf16 cannot hold what was quantized"
    assert not (tmp_path / "hf/model.safetensors.index.json").exists(), "the old folder was replaced"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf", "l.safetensors", "q.llmq"]


@pytest.mark.parametrize("to", ["llmq", "gptq", "gguf"])
def test_damage_gets_no_fresh_checksums(llmq, model, tmp_path, to):
    llmq("quantize", model, "-o", tmp_path / "q.llmq", "--method", "rtn")
    with open(tmp_path / "q.llmq", "r+b") as f:
        f.seek(900000)
        f.write(b"ZZZZ")
    p = llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "out", "--to", to, code=3)
    assert "q.llmq" in p.stderr and "checksum: expected" in p.stderr
    assert [f.name for f in tmp_path.iterdir()] == ["q.llmq"]


def test_refusals_leave_everything_as_it_was(llmq, model, tmp_path):
    p = llmq("convert", model, "-o", tmp_path / "x", "--to", "onnx", code=2)
    assert "--to: expected one of llmq, safetensors, gguf, gptq, gptq_v2, awq, compressed-tensors, fp8, bnb" in p.stderr
    for to, option, value in (("llmq", "--dtype", "f16"), ("llmq", "--shard-size", "1M"), ("gptq", "--layout", "tile16"),
                              ("safetensors", "--layout", "tile16")):
        p = llmq("convert", model, "-o", tmp_path / "x", "--to", to, option, value, code=2)
        assert f"{option} does not go with --to {to}" in p.stderr
    for name in ("thesis.txt", "config.json", "model.safetensors"):  # a checkpoint of somebody's too
        (tmp_path / "mine").mkdir(exist_ok=True)
        (tmp_path / "mine" / name).write_text("years of work")
        p = llmq("convert", model, "-o", tmp_path / "mine", "--to", "safetensors", code=2)
        assert "llmq did not make it" in p.stderr and (tmp_path / "mine" / name).read_text() == "years of work"
    llmq("convert", tmp_path / "none", "-o", tmp_path / "x", "--to", "llmq", code=3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine"]


HEAD = "# Written by llmq, which replaces this folder while nothing else is in it:\n"


@pytest.mark.parametrize("what", ["notes.json", "model.gguf", "README.md", "folder/x", "additional_chat_templates/x.jinja", "link"])
def test_what_was_laid_into_a_converted_folder_stays(llmq, draft, tmp_path, what):
    """Of an earlier result, and of what a killed run left: the files that llmq wrote go, no other."""
    out, mine = tmp_path / "out", tmp_path / "out" / what
    again = ["convert", draft, "-o", out, "--to", "safetensors"]
    for _ in range(2):
        llmq(*again)
    mine.parent.mkdir(exist_ok=True)
    if what == "link":
        mine.symlink_to("config.json")
    else:
        mine.write_text("years of work")
    if what == "README.md":  # a name that another model would have
        (out / "README.md").unlink()
        (out / ".llmq-files").write_text((out / ".llmq-files").read_text().replace("README.md\n", ""))
        mine.write_text("years of work")
    before = sorted(out.rglob("*"))
    p = llmq(*again, code=2)
    assert f"out: holds {what.replace('/x', '') if what == 'folder/x' else what}, which llmq did not write there" in p.stderr
    assert sorted(out.rglob("*")) == before and sorted(p.name for p in tmp_path.iterdir()) == ["out"]
    names = (out / ".llmq-files").read_text().splitlines()
    (out / ".llmq-files").unlink()
    out.rename(tmp_path / "out.tmp")
    begun(tmp_path / "out.tmp", "out", *names)
    p = llmq(*again, code=2)
    assert "out.tmp: holds" in p.stderr and "which llmq did not write there" in p.stderr and not out.exists()
    mine = tmp_path / "out.tmp" / what
    mine.rename(tmp_path / "mine")  # as the message says
    if what == "folder/x":
        mine.parent.rmdir()
    llmq(*again)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "out"]


def test_what_comes_into_the_old_folder_during_a_run_stays(llmq, draft, tmp_path):
    """Stopped once it has begun its own folder; where that is too late, what came has its place too."""
    out = tmp_path / "out"
    again = ["convert", draft, "-o", out, "--to", "safetensors"]
    llmq(*again)
    old = out.stat().st_ino
    p = llmq.start(*again, stderr=subprocess.PIPE)
    while not (tmp_path / "out.tmp").exists() and p.poll() is None:
        pass
    p.send_signal(signal.SIGSTOP)
    late = out.stat().st_ino != old
    (out / "notes.txt").write_text("years of work")
    p.send_signal(signal.SIGCONT)
    said = p.communicate()[1]
    assert late or (tmp_path / "out.tmp/notes.txt").exists() or p.returncode == 2 and "holds notes.txt" in said
    assert (out / "notes.txt").exists() or (tmp_path / "out.tmp/notes.txt").exists()


def test_a_folder_that_somebody_is_in_stays(llmq, draft, tmp_path):
    here = tmp_path / "here/below"
    here.mkdir(parents=True)
    for out, where in ((".", here), ("../below", here), ("..", here), (tmp_path / "here", here)):
        for command in (["convert", draft, "--to", "safetensors", "-o", out], ["publish", draft, f"dir:{out}"]):
            p = subprocess.run([llmq.path, *map(str, command)], cwd=where, capture_output=True, text=True)
            assert p.returncode == 2 and "is the working folder or above it" in p.stderr, (out, p.stderr)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["below", "here"]


@pytest.mark.parametrize("text, says", [
    ("thesis.tex\n", "its .llmq-files is not llmq's"), (HEAD + "thesis.tex\n", "holds thesis.tex, which llmq did not write")])
def test_a_list_that_anybody_wrote_loses_nothing(llmq, draft, tmp_path, text, says):
    """Not llmq's, or of a name that no file of a model has."""
    for i, out in enumerate((tmp_path / "out", tmp_path / "two.tmp")):
        out.mkdir()
        (out / "thesis.tex").write_text("years of work")
        (out / ".llmq-files").write_text(text)
        if i:
            begun(out, "two", "thesis.tex")
        target = tmp_path / ("two" if i else "out")
        p = llmq("convert", draft, "-o", target, "--to", "safetensors", code=2)
        assert (says if not i else "holds thesis.tex, which llmq did not write there") in p.stderr
        assert (out / "thesis.tex").read_text() == "years of work"


def test_a_model_whose_name_ends_as_a_begun_ones_stays(llmq, draft, tmp_path):
    """It may be the source, or only lie there; whether llmq made it as that or it was renamed."""
    made, out = tmp_path / "out.tmp", tmp_path / "out"
    for make in (["publish", draft, f"dir:{made}"], ["convert", draft, "-o", made, "--to", "safetensors"]):
        for renamed in (False, True):
            llmq(*make)
            if renamed:
                made.rename(out)
                llmq(*make)
                llmq("convert", draft, "-o", out, "--to", "safetensors", code=2)
                shutil.rmtree(made)
                out.rename(made)
            before = files(made)
            for command in (["publish", made, f"dir:{out}"], ["convert", made, "-o", out, "--to", "safetensors"],
                            ["convert", made / "model.safetensors", "-o", out, "--to", "safetensors"],
                            ["publish", draft, f"dir:{out}"], ["convert", draft, "-o", out, "--to", "safetensors"],
                            ["convert", draft, "-o", out, "--to", "gptq"]):
                llmq(*command, code=2)
                assert files(made) == before and not out.exists(), command
            shutil.rmtree(made)


def test_a_list_cannot_name_what_lies_elsewhere(llmq, draft, tmp_path):
    out, other = tmp_path / "out", tmp_path / "thesis.txt"
    other.write_text("years of work")
    out.mkdir()
    (out / ".llmq-files").write_text(HEAD + "../thesis.txt\nadditional_chat_templates/../../thesis.txt\n" + str(other) + "\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/thesis.jinja").write_text("years of work")
    llmq("convert", draft, "-o", out, "--to", "safetensors")
    (out / "additional_chat_templates").symlink_to("../deep")
    with (out / ".llmq-files").open("a") as f:
        f.write("additional_chat_templates/thesis.jinja\nadditional_chat_templates\n")
    assert "holds additional_chat_templates" in llmq("convert", draft, "-o", out, "--to", "safetensors", code=2).stderr
    assert other.exists() and (tmp_path / "deep/thesis.jinja").exists()


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_a_list_that_is_no_file_is_not_llmqs(llmq, draft, tmp_path, kind):
    out = tmp_path / "out"
    out.mkdir()
    if kind == "folder":
        (out / ".llmq-files").mkdir()
    elif kind == "link":
        (out / ".llmq-files").symlink_to(draft / "config.json")
    else:
        os.mkfifo(out / ".llmq-files")
    for command in (["convert", draft, "--to", "safetensors", "-o", out], ["publish", draft, f"dir:{out}"]):
        assert "holds a .llmq-files that is no plain file" in llmq(*command, code=2).stderr
    assert [p.name for p in out.iterdir()] == [".llmq-files"]


def test_a_source_is_never_its_own_result(llmq, model, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    (tmp_path / "link").symlink_to(copy)
    for out in (copy, tmp_path / "link", f"{copy}/"):
        p = llmq("convert", copy, "-o", out, "--to", "safetensors", "--dtype", "f32", code=2)
        assert "another place than the source" in p.stderr
    for to, name in (("llmq", "model.safetensors"), ("gguf", "tokenizer.json")):
        p = llmq("convert", copy, "-o", copy / name, "--to", to, code=2)
        assert "another place than the source" in p.stderr
    for out in ("", f"{copy}/config.json/x"):
        llmq("convert", model, "-o", out, "--to", "safetensors", code=2)
    assert files(copy) == files(model)


def test_a_link_stays_and_the_folder_behind_it_is_replaced(llmq, draft, tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to("real")
    for dtype in ("f32", "bf16"):  # into an empty folder, and over an earlier result
        llmq("convert", draft, "-o", link, "--to", "safetensors", "--dtype", dtype)
        assert json.loads((real / "config.json").read_text())["torch_dtype"] == {"f32": "float32"}.get(dtype, "bfloat16")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"] and link.is_symlink()


def test_a_mount_point_is_refused_before_the_work(llmq, draft):
    mounts = [m.split()[1] for m in open("/proc/self/mounts")]
    empty = [m for m in mounts if m.startswith("/dev/") and os.path.isdir(m) and not os.listdir(m)]
    if not empty:
        pytest.skip("no empty file system is mounted below /dev")
    p = llmq("convert", draft, "-o", empty[0], "--to", "safetensors", code=2)
    assert "is a mount point" in p.stderr and os.listdir(empty[0]) == []
