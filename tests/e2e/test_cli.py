"""The command line itself: help, version, exit codes, wrong options, files that are no models."""
import json
import os
import re
import stat
import subprocess

import pytest

from conftest import ROOT


def test_help_lists_every_command_with_one_line(llmq):
    p = llmq("--help")
    assert p.stderr == ""
    names = llmq.commands()
    assert "version" in names and len(names) == len(set(names))
    assert p.stdout == llmq("help").stdout


def test_no_command_is_wrong_usage_and_says_what_to_start_with(llmq):
    p = llmq(code=2)
    told = re.findall(r"^  llmq (\w+) ", p.stderr, re.M)
    assert p.stdout == "" and len(told) == 5 and set(told) <= set(llmq.commands())
    p = llmq("run", code=2)
    assert p.stderr.startswith("llmq: run: MODEL is missing: ") and "ORG/NAME" in p.stderr and "demo" in p.stderr
    for args in (["serve"], ["quantize", "-o", "x.llmq"]):
        assert "ORG/NAME" in llmq(*args, code=2).stderr
    p = llmq("run", "llama3", "Once", code=3)
    assert "llama3: No such file or directory: expected a file, a folder, ORG/NAME" in p.stderr


def test_the_doctor_says_what_the_machine_can_run(llmq, tmp_path):
    doc = llmq.json("doctor")
    assert doc["kernels"] in doc["kernels_available"].split() and doc["read_bytes_s"] > 1e8 and doc["operations_s"] > 1e8
    assert 0 < doc["memory_free_bytes"] <= doc["memory_bytes"]
    sizes = [m["largest_params"] for m in doc["models"]]
    assert [m["scheme"] for m in doc["models"]] == ["u4-g128", "u8-g32", "bf16"] and sizes == sorted(sizes, reverse=True)
    bits = {"u4-g128": 4.5, "u8-g32": 8.5, "bf16": 16}
    for m in doc["models"]:
        assert m["largest_params"] * bits[m["scheme"]] / 8 < doc["memory_free_bytes"]
        assert m["fluent_params"] == 0 or doc["read_bytes_s"] / (m["fluent_params"] * bits[m["scheme"]] / 8) >= 8
    assert doc["hub_cache_free_bytes"] > 0
    # What the environment says is said back, and what cannot be had is advice by name.
    env = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "not" / "yet"), "HF_TOKEN": "hf_x"}
    quick = llmq.json("doctor", "--quick", env=env)
    assert quick["hub_cache"] == str(tmp_path / "not" / "yet") and quick["hub_token"] and "read_bytes_s" not in quick
    assert not (tmp_path / "not").exists() and "offline" not in [a["name"] for a in quick["advice"]]
    env["HF_HUB_OFFLINE"] = "1"
    homeless = {k: v for k, v in os.environ.items() if k not in ("HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME")}
    found = llmq.json("doctor", "--quick", env=homeless)
    assert found["hub_cache"] == "" and "no-cache" in [a["name"] for a in found["advice"]]
    assert "expected HOME, HF_HOME or HF_HUB_CACHE" in llmq("doctor", "--quick", env=homeless).stdout
    text = llmq("doctor", "--quick", env=env).stdout
    assert "Largest models" in text and "HF_HUB_OFFLINE is set" in text and "tokens/s" not in text


def test_every_command_explains_itself_with_examples_that_parse(llmq):
    for name in llmq.commands():
        p = llmq(name, "--help")
        assert p.stderr == ""
        assert p.stdout == llmq("help", name).stdout
        assert p.stdout.startswith(f"llmq {name} - "), name
        assert f"usage: llmq {name}" in p.stdout
        examples = p.stdout.split("\nExamples:\n")[1].strip().splitlines()
        assert examples, name
        assert all("llmq" in x for x in examples), f"{name}: {examples}"
        # Every option of an example is one of the table.
        for line in examples:
            part = line.split(f"llmq {name}", 1)
            for option in re.findall(r"(?:^|\s)(--[a-z][a-z0-9-]*)", part[1]) if part[1:] else []:
                plain = option.replace("--no-", "--[no-]")
                assert re.search(rf"(--|\[no-\]){re.escape(option[2:])}\b", p.stdout.split("\nExamples:")[0]) \
                    or plain in p.stdout, f"{name}: {option} of '{line}' is not in its table"


def test_version_prints_one_line_and_one_document(llmq):
    line = llmq("--version").stdout
    assert re.fullmatch(r"llmq \d+\.\d+\.\d+\S*\n", line)
    doc = llmq.json("version")
    assert line.split()[1] == doc["version"]
    assert {"version", "cpu", "isa", "kernels", "cuda"} <= doc.keys()


def test_a_gpu_that_is_not_there_is_refused_in_one_line(llmq, tmp_path):
    model = ROOT / "tests/golden/arch/arcee"
    doc = llmq.json("version")
    run = ["logits", model, "--ids", "1,2", "-o", tmp_path / "out", "--device"]
    for word, code in [("cuda", {1, 3}), ("cuda:0", {1, 3}), ("cuda:x", {2}), ("cuda:-1", {2}), ("gpu", {2})]:
        p = llmq(*run, word, code=None)
        assert p.returncode in code, word
        assert re.fullmatch(r"llmq: (logits: )?--device: [^\n]+\n", p.stderr), p.stderr
    if "no GPU" in doc["devices"]:
        why = re.fullmatch(r"cpu \((no GPU: .+)\)", doc["devices"]).group(1)
        assert why in llmq(*run, "cuda", code=1).stderr
        assert f"device: cpu ({why})" in llmq(*run, "auto", code=None).stderr
    assert "device:" not in llmq(*run, "cpu", code=None).stderr


@pytest.mark.parametrize("why, args, says", [
    ("unknown command", ["qantize"], "unknown command 'qantize'"),
    ("unknown option", ["version", "--jsno"], "unknown option '--jsno'; did you mean '--json'?"),
    ("value out of range", ["version", "--threads", "-3"], "--threads: expected 0..1024, found '-3'"),
    ("no number", ["version", "--threads", "many"], "--threads: expected an integer 0..1024, found 'many'"),
    ("value missing", ["version", "--threads"], "--threads needs a value"),
    ("argument too many", ["version", "x"], "unexpected argument 'x'"),
    ("no such word", ["version", "--log-level", "loud"], "expected one of error warn info debug"),
    ("no such device", ["bench", "kernels", "--device", "tpu"], "expected cpu, auto, cuda or cuda:NUMBER, found 'tpu'"),
    ("none of attention either", ["bench", "attention", "--device", "tpu"], "found 'tpu'"),
    ("unknown command to help", ["help", "nothing"], "unknown command 'nothing'"),
])
def test_wrong_usage_is_exit_2_and_says_what(llmq, why, args, says):
    p = llmq(*args, code=2)
    assert p.stdout == "", why
    assert says in p.stderr, f"{why}: {p.stderr}"
    assert all(x.startswith("llmq: ") for x in p.stderr.splitlines()), why


def test_a_full_disk_behind_stdout_is_an_error(llmq):
    with open("/dev/full", "w") as full:
        p = subprocess.run([llmq.path, "version"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert p.returncode == 1
    assert p.stderr.startswith("llmq: version: stdout: cannot write")


@pytest.mark.parametrize("stdout", ["/dev/full", "closed"])
def test_words_that_cannot_be_written_have_their_own_reason_or_none(llmq, stdout):
    """An answer is written piece by piece: what failed with the first is not known at the end."""
    where = ">&-" if stdout == "closed" else f">{stdout}"
    p = subprocess.run(["sh", "-c", f'echo Hello | "$0" chat "$1" -n 2 {where}', llmq.path, ROOT / "models/novels-1m"],
                       stderr=subprocess.PIPE, text=True)
    assert p.returncode == 1
    assert re.fullmatch(r"llmq: chat: stdout: cannot write(: No space left on device|: Bad file descriptor)?", p.stderr.splitlines()[-1])


def bad_models(tmp_path):
    """(why, path): what is no model."""
    (tmp_path / "empty.llmq").write_bytes(b"")
    (tmp_path / "text.llmq").write_text("hello, I am no model\n" * 100)
    (tmp_path / "empty-folder").mkdir()
    bad = tmp_path / "bad-config"
    bad.mkdir()
    (bad / "config.json").write_text("{ not json")
    unknown = tmp_path / "unknown-arch"
    unknown.mkdir()
    (unknown / "config.json").write_text(json.dumps({"architectures": ["NoSuchForCausalLM"]}))
    no_weights = tmp_path / "no-weights"
    no_weights.mkdir()
    config = json.loads((ROOT / "models/novels-6m/config.json").read_text())
    (no_weights / "config.json").write_text(json.dumps(config))
    huge = tmp_path / "huge-header"
    huge.mkdir()
    (huge / "config.json").write_text(json.dumps(config))
    (huge / "model.safetensors").write_bytes((2**63).to_bytes(8, "little") + b"{}" * 50)
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "config.json").write_text(json.dumps(config))
    whole = (ROOT / "models/novels-6m/model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(whole[:len(whole) // 2])
    return [
        ("not there", tmp_path / "nowhere"),
        ("an empty file", tmp_path / "empty.llmq"),
        ("a text file", tmp_path / "text.llmq"),
        ("an empty folder", tmp_path / "empty-folder"),
        ("broken JSON", bad),
        ("unknown architecture", unknown),
        ("no weights", no_weights),
        ("a header of 2^63 bytes", huge),
        ("half a file", cut),
        ("a device", "/dev/null"),
    ]


# Each opens MODEL before anything else can go wrong.
READERS = {
    "inspect": ["inspect"],
    "quantize": ["quantize", "-o", "OUT", "--method", "rtn"],
    "convert": ["convert", "-o", "OUT", "--to", "llmq"],
    "eval": ["eval", "--text", ROOT / "tests/golden/text/novels-heldout-100w.txt"],
    "logits": ["logits", "--ids", "1,2,3", "-o", "OUT"],
    "run": ["run", "-p", "Hello"],
    "batch": ["batch", ROOT / "README.md", "OUT"],
    "serve": ["serve", "--port", "0"],
    "plan": ["plan"],
    "imatrix": ["imatrix", "-o", "OUT"],
}


@pytest.mark.parametrize("command", READERS)
def test_what_is_no_model_is_refused_in_one_line(llmq, tmp_path, command):
    if command not in llmq.commands():
        pytest.skip(f"no command {command} in this build")
    out = tmp_path / "out"
    for why, path in bad_models(tmp_path):
        if command == "plan" and why == "no weights":
            continue  # a config alone is enough for a plan
        name, *rest = [out if x == "OUT" else x for x in READERS[command]]
        p = llmq(name, path, *rest, code=None)
        assert p.returncode in (1, 3), f"{why}: exit {p.returncode}: {p.stderr}"
        if why != "not there":
            assert p.returncode == 3, f"{why}: exit {p.returncode}: {p.stderr}"
        assert p.stdout == "", why
        assert p.stderr.strip().splitlines()[-1].startswith(f"llmq: {command}: "), f"{why}: {p.stderr}"
        assert not out.exists(), f"{why}: left {out}"
        if why == "unknown architecture" and command != "inspect":  # that needs no config
            assert "NoSuchForCausalLM" in p.stderr and "docs/support.md" in p.stderr  # the list is there
    assert [x for x in os.listdir(tmp_path) if "tmp" in x or "out" in x] == []


def test_the_scripts_are_executable():
    for name in ["scripts/demo.sh", "scripts/test.sh", "scripts/install-deps.sh", "scripts/ci/run-tests.sh",
                 "scripts/bench/bench.sh", "scripts/ci/fuzz.sh", ".ci/run"]:
        assert stat.S_IXUSR & (ROOT / name).stat().st_mode, name


def test_an_unknown_command_has_the_json_of_an_error(llmq):
    for args in (("foo", "--json"), ("help", "foo", "--json")):
        p = llmq(*args, code=2)
        e = json.loads(p.stdout)["error"]
        assert e["exit_code"] == 2 and e["message"].startswith("unknown command 'foo'") and e["message"] in p.stderr
    assert llmq("foo", code=2).stdout == ""


@pytest.mark.parametrize("args", [("--help",), ("help",), ("--version",), ("help", "convert"), ("convert", "--help")])
def test_help_that_cannot_be_written_is_a_failure(llmq, args):
    with open("/dev/full", "w") as full:
        p = subprocess.run([llmq.path, *args], stdout=full, stderr=subprocess.PIPE, text=True)
    assert p.returncode == 1
    assert "stdout: cannot write: No space left on device" in p.stderr


def test_a_place_that_cannot_be_made_leaves_no_folders_behind(llmq, model, tmp_path):
    for place in ("a/" + "e" * 300 + "/out", "a/b/" + "e" * 300):
        p = llmq("convert", model, "-o", tmp_path / place, "--to", "safetensors", code=2)
        assert "expected names of at most 255 bytes, found 300: eee" in p.stderr
        assert list(tmp_path.iterdir()) == []
