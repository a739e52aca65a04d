"""Where results go: links, devices, places in the source, endings; what is said where there is no result."""
import json
import shutil

import pytest

from conftest import ROOT


def names(folder):
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("there", [True, False], ids=["a link", "a dangling link"])
def test_what_a_link_names_is_replaced_and_the_link_stays(llmq, draft, tmp_path, there):
    (tmp_path / "deep").mkdir()
    link, real = tmp_path / "link", tmp_path / "deep/real"
    link.symlink_to("deep/real")
    if there:
        real.write_text("old")
    for command in (["convert", draft, "-o", link, "--to", "gguf"], ["convert", draft, "-o", link, "--to", "llmq"],
                    ["quantize", draft, "-o", link, "--method", "rtn"],
                    ["logits", draft, "--ids", "1,2", "-o", link]):
        llmq(*command)
        assert link.is_symlink() and real.stat().st_size > 1000, command
        assert names(tmp_path) == ["deep", "link"] and names(tmp_path / "deep") == ["real"], command
    real.unlink()
    llmq("convert", draft, "-o", link, "--to", "safetensors")
    assert link.is_symlink() and (real / "config.json").exists()


def test_links_in_a_circle_and_standard_output_are_refused(llmq, draft, tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for command in (["convert", draft, "--to", "llmq"], ["convert", draft, "--to", "safetensors"],
                    ["quantize", draft, "--method", "rtn"], ["logits", draft, "--ids", "1"]):
        assert "links in a circle" in llmq(*command, "-o", tmp_path / "a", code=2).stderr
        assert "not written to standard output" in llmq(*command, "-o", "-", code=2).stderr
    assert names(tmp_path) == ["a", "b"] and not (ROOT / "-").exists()
    llmq("convert", draft, "-o", "/dev/null", "--to", "gguf")
    p = llmq("convert", draft, "-o", "/dev/null", "--to", "safetensors", code=2)
    assert "expected a folder's name, found a file" in p.stderr


@pytest.mark.parametrize("out, to, says", [
    ("x.gguf", "llmq", "a .llmq file, found 'x.gguf'"), ("x.llmq", "gguf", "a .gguf file, found 'x.llmq'"),
    ("x.safetensors", "gguf", "a .gguf file"), ("x.llmq", "safetensors", "safetensors is a folder"),
    ("x.gguf", "gptq", "gptq is a folder")])
def test_an_ending_of_another_format_is_refused(llmq, draft, tmp_path, monkeypatch, out, to, says):
    p = llmq("convert", draft, "-o", out, "--to", to, code=2)
    assert says in p.stderr and not (ROOT / out).exists()


def test_quantize_writes_no_other_ending(llmq, draft, tmp_path):
    p = llmq("quantize", draft, "-o", tmp_path / "q.gguf", "--method", "rtn", code=2)
    assert "expected the name of a .llmq file" in p.stderr and not names(tmp_path)


def test_no_result_inside_its_source(llmq, draft, tmp_path):
    src = tmp_path / "src"
    shutil.copytree(draft, src)
    before = names(src)
    (tmp_path / "link").symlink_to("src")
    for command in (["convert", src, "--to", "safetensors", "-o", src / "sub"],
                    ["convert", src, "--to", "gptq", "--allow-requantize", "-o", src / "a/b/c"],
                    ["convert", src, "--to", "safetensors", "-o", tmp_path / "link/sub"],
                    ["publish", src, f"dir:{src}/hub"],
                    ["logits", src, "--ids", "1", "-o", src / "x.safetensors"]):
        assert "outside the source's folder" in llmq(*command, code=2).stderr, command
    assert names(src) == before
    llmq("quantize", src, "--method", "rtn", "-o", src / "q.llmq")  # the folder still means its safetensors
    one = tmp_path / "one"
    one.mkdir()
    shutil.move(src / "q.llmq", one / "q.llmq")
    p = llmq("convert", one, "--to", "llmq", "-o", one / "again.llmq", code=2)
    assert "outside the source's folder" in p.stderr and names(one) == ["q.llmq"]
    llmq("convert", one / "q.llmq", "--to", "llmq", "-o", one / "again.llmq")  # a file has no inside


def test_of_an_option_with_two_values_the_last_counts(llmq, draft, tmp_path):
    for why, args, says in [
        ("a text", ["convert", draft, "--to", "gptq", "--to", "llmq"], "--to: the last of 'gptq' and 'llmq' counts"),
        ("a number", ["convert", draft, "--to", "llmq", "--threads", "1", "--threads=2"], "--threads: the last of '1' and '2'"),
        ("short and long", ["convert", draft, "--to", "llmq", "-o", "elsewhere"], "--out: the last of 'elsewhere' and"),
        ("yes and no", ["quantize", draft, "--method", "rtn", "--resume", "--no-resume"], "--resume and --no-resume: the last"),
        ("the same", ["convert", draft, "--to", "llmq", "--to", "llmq"], None),
    ]:
        p = llmq(*args, "--out", tmp_path / why)
        assert says in p.stderr if says else "counts" not in p.stderr, why
    assert names(tmp_path) == ["a number", "a text", "short and long", "the same", "yes and no"]


@pytest.mark.parametrize("command, code, kind", [
    (["inspect", "nowhere"], 3, "not found"), (["inspect", "CIRCLE"], 3, "malformed input"),
    (["verify", "README.md/x"], 3, None), (["convert", "--to"], 2, "wrong usage"),
    (["convert", "models/novels-1m", "-o", "README.md/x", "--to", "llmq"], 2, "wrong usage"),
    (["convert", "models/novels-1m", "-o", "README.md/x", "--to", "gptq"], 2, "wrong usage"),
    (["quantize", "models/novels-1m", "-o", "tests", "--method", "rtn"], 2, "wrong usage"),
    (["eval", "models/novels-1m", "--text", "CIRCLE"], 3, None), (["plan", "nowhere"], 3, None),
    (["publish", "nowhere", "dir:/x"], 3, None),
    (["publish", "models/novels-1m", "dir:OUT", "--license-file", "nowhere"], 3, "not found"),
    (["publish", "models/novels-1m", "dir:OUT", "--license-file", "tests"], 3, None), (["pull", "dir:nowhere", "-o", "OUT"], 3, None),
    (["handover", "vllm", "nowhere"], 3, None), (["run", "nowhere", "-p", "a"], 3, None),
    (["batch", "models/novels-1m", "nowhere", "OUT"], 3, None), (["bench", "model", "nowhere"], 3, None),
    (["logits", "nowhere", "--ids", "1", "-o", "OUT"], 3, None), (["serve", "nowhere", "--port", "0"], 3, None)],
    ids=lambda x: " ".join(x) if isinstance(x, list) else None)
def test_an_error_is_a_document_too(llmq, tmp_path, command, code, kind):
    (tmp_path / "circle").symlink_to("circle")
    place = {"CIRCLE": str(tmp_path / "circle"), "OUT": str(tmp_path / "out")}
    p = llmq(*[place.get(x, x).replace("dir:OUT", f"dir:{tmp_path}/out") for x in command], "--json", code=code)
    error = json.loads(p.stdout)["error"]
    assert error["exit_code"] == code and error["message"] in p.stderr
    assert kind is None or error["type"] == kind
    assert names(tmp_path) == ["circle"]


def test_serve_looks_at_the_tokenizer_before_it_listens(llmq, draft, tmp_path):
    for name in ("tokenizer.json", "generation_config.json"):
        src = tmp_path / name
        shutil.copytree(draft, src)
        (src / name).write_text("{ broken")
        p = llmq("serve", src, "--port", "0", code=3)
        assert name in p.stderr and "listening" not in p.stderr
