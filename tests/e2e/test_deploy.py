"""deploy/: what needs neither Ray nor Kubernetes. The rest is tests/interop/test_ray.py and test_kubernetes.py."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from harness import ROOT, until

sys.path.insert(0, str(ROOT / "deploy/ray"))
import llmq_routing as routing  # noqa: E402

SYSTEM = {"role": "system", "content": "Be brief."}
LONG = "The old house stood at the end of a road that nobody had used since the mill was closed. "


def user(text):
    return {"role": "user", "content": text}


def named(path, **body):
    return routing.conversation(path, json.dumps(body).encode())


CHAT, TEXT, OTHER = "/v1/chat/completions", "/v1/completions", "/v1/responses"


@pytest.mark.parametrize("why, one, another, same", [
    ("a later turn", (CHAT, {"messages": [SYSTEM, user("a")]}),
     (CHAT, {"messages": [SYSTEM, user("a"), {"role": "assistant", "content": "b"}, user("c")], "max_tokens": 3}), True),
    ("another first message", (CHAT, {"messages": [SYSTEM, user("a")]}), (CHAT, {"messages": [SYSTEM, user("b")]}), False),
    ("another system message", (CHAT, {"messages": [SYSTEM, user("a")]}), (CHAT, {"messages": [user("a")]}), False),
    ("another model", (CHAT, {"model": "m", "messages": [user("a")]}), (CHAT, {"model": "n", "messages": [user("a")]}), False),
    ("Anthropic's system", ("/v1/messages", {"system": "s", "messages": [user("a")]}),
     ("/v1/messages", {"system": "t", "messages": [user("a")]}), False),
    ("a text that goes on", (TEXT, {"prompt": LONG}), (TEXT, {"prompt": LONG + "It was"}), True),
    ("a text in a list", (TEXT, {"prompt": LONG}), (TEXT, {"prompt": [LONG + "It", "b"]}), True),
    ("ids that go on", (TEXT, {"prompt": list(range(40))}), (TEXT, {"prompt": list(range(50))}), True),
    ("other ids", (TEXT, {"prompt": list(range(40))}), (TEXT, {"prompt": list(range(1, 40))}), False),
    ("a list of ids", (TEXT, {"prompt": list(range(40))}), (TEXT, {"prompt": [list(range(50))]}), True),
    ("a response's input", (OTHER, {"input": "a"}), (OTHER, {"input": "b"}), False),
    ("a response's later turn", (OTHER, {"input": [user("a")]}),
     (OTHER, {"input": [user("a"), {"type": "function_call"}, user("b")]}), True),
    ("the client's own name", (CHAT, {"messages": [user("a")], "prompt_cache_key": "k"}),
     (OTHER, {"input": "b", "prompt_cache_key": "k"}), True),
])
def test_a_conversation_keeps_its_name_and_others_have_another(why, one, another, same):
    a, b = named(one[0], **one[1]), named(another[0], **another[1])
    assert a and b and (a == b) == same


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b'{"input": ["a"]}', b'{"messages": []}', b'{"prompt": ""}', b"\xff"])
def test_what_is_no_conversation_has_no_name(body):
    assert routing.conversation("/v1/embeddings", body) == ""


@pytest.mark.parametrize("body", [{"messages": 3}, {"messages": [3, None]}, {"prompt": 3}, {"prompt": {"a": 1}}, {"prompt": [{}]},
                                  {"prompt": [None]}, {"messages": {"role": []}}])
def test_a_body_that_llmq_will_refuse_has_some_name(body):
    assert len(named(CHAT, **body)) == 64


def test_a_replica_that_comes_or_goes_moves_its_own_share_alone():
    names, three = [str(i) for i in range(3000)], ["a", "b", "c"]
    first = {n: routing.order(n, three, {}, 16)[0] for n in names}
    assert all(800 < list(first.values()).count(r) < 1200 for r in three)
    without = {n: routing.order(n, ["a", "c"], {}, 16)[0] for n in names}
    assert all(without[n] == first[n] for n in names if first[n] != "b")
    four = {n: routing.order(n, [*three, "d"], {}, 16)[0] for n in names}
    moved = [n for n in names if four[n] != first[n]]
    assert all(four[n] == "d" for n in moved) and 600 < len(moved) < 900


def test_one_that_is_full_waits_behind_the_others():
    home, second, third = routing.order("x", ["a", "b", "c"], {}, 16)
    assert routing.order("x", ["a", "b", "c"], {home: 15}, 16)[0] == home  # has room
    assert routing.order("x", ["a", "b", "c"], {home: 16}, 16) == [second, third, home]
    assert routing.order("x", ["a", "b", "c"], {home: 40, second: 40, third: 40}, 16)[0] == home  # so have all
    assert routing.order("", ["a", "b", "c"], {"a": 2, "b": 1, "c": 3}, 16) == ["b", "a", "c"]


# ---- files for Kubernetes, Slurm and Docker ----
KUBERNETES, SLURM = ROOT / "deploy/kubernetes", ROOT / "deploy/slurm"


def containers(node):
    """Every container of a document, wherever it is."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "containers":
                yield from value
            else:
                yield from containers(value)
    elif isinstance(node, list):
        for value in node:
            yield from containers(value)


def commands(path):
    """The lines of llmq in a file, as words."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    for doc in yaml.safe_load_all(path.read_text()):
        for c in containers(doc):
            words = [*c.get("command", []), *c.get("args", [])]
            if c.get("command", [""])[0] == "sh":
                words = re.findall(r"exec (llmq .*)", words[-1])[0].split()
            elif words and "command" not in c:
                words = ["llmq", *words]
            if "llmq" in words:
                yield words[words.index("llmq"):]


@pytest.mark.parametrize("name", sorted(p.name for p in KUBERNETES.glob("*.yaml")))
def test_llmq_knows_what_kubernetes_files_ask_of_it(llmq, name):
    for words in commands(KUBERNETES / name):
        known = llmq(words[1], "--help").stdout
        options = {w.split("=")[0] for w in words if re.match(r"--[a-z]", w)} | {w for w in words if re.fullmatch("-[a-z]", w)}
        missing = {o for o in options if not re.search(rf"(?<![\w-]){o}(?![\w-])", known)}
        if "--stats-only" in missing:
            pytest.skip("llmq quantize has no --stats-only yet")
        assert not missing, words


def test_images_are_named_as_examples(llmq):
    for path in KUBERNETES.glob("*.yaml"):
        for image in re.findall(r"image: (\S+)", path.read_text()):
            assert image.startswith("registry.example/"), f"{path.name}: {image}"


def test_the_deployment_serves(llmq, draft, tmp_path):
    """Its command line as it stands but for the port and the paths; what its probes ask says yes."""
    words, = commands(KUBERNETES / "deployment.yaml")
    words = [{"/models/model.llmq": str(draft), "--port=8000": "--port=0", "--host=0.0.0.0": "--host=127.0.0.1"}.get(w, w) for w in words]
    with open(tmp_path / "log", "w+") as log:
        p = subprocess.Popen([llmq.path, *words[1:]], stdout=log, stderr=log)
        try:
            until(lambda: "\nready: " in (tmp_path / "log").read_text(), (tmp_path / "log").read_text)
        finally:
            p.send_signal(signal.SIGTERM)
            assert p.wait(60) == 0


@pytest.fixture
def slurm(llmq, tmp_path):
    """slurm(FILE, args..., **variables): the script as Slurm runs a task of it; srun starts its command once."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "srun").write_text('#!/bin/sh\nwhile case $1 in -*) ;; *) false ;; esac; do shift; done\nexec "$@"\n')
    (folder / "srun").chmod(0o755)
    (folder / "llmq").symlink_to(llmq.path)

    def start(script, *args, **variables):
        return subprocess.Popen(["sh", SLURM / script, *map(str, args)], cwd=tmp_path, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT,
                                env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "1", **variables})

    return start


def test_slurm_shares_out_a_file_of_requests(llmq, draft, slurm, tmp_path):
    lines = [json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                         "body": {"prompt": f"The {i}", "max_tokens": 4, "temperature": 0}}) for i in range(7)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    for i in "123":
        p = slurm("batch-array.sbatch", draft, "in.jsonl", ".", SLURM_ARRAY_TASK_ID=i, SLURM_ARRAY_TASK_COUNT="3")
        assert p.wait(60) == 0, p.stdout.read()
    third = (tmp_path / "answers-3.jsonl").read_text()
    (tmp_path / "answers-3.jsonl").unlink()  # as that of a node that was lost
    p = slurm("batch-array.sbatch", draft, "in.jsonl", ".", SLURM_ARRAY_TASK_ID="3", SLURM_ARRAY_TASK_COUNT="1", LLMQ_SHARDS="3")
    assert p.wait(60) == 0, p.stdout.read()
    assert len((tmp_path / "answers-3.jsonl").read_text().splitlines()) == len(third.splitlines())
    llmq("batch", draft, tmp_path / "in.jsonl", tmp_path / "whole.jsonl")

    def texts(*names):
        answers = [json.loads(x) for n in names for x in (tmp_path / n).read_text().splitlines()]
        return {a["custom_id"]: a["response"]["body"]["choices"][0]["text"] for a in answers}
    assert texts("answers-1.jsonl", "answers-2.jsonl", "answers-3.jsonl") == texts("whole.jsonl") and len(texts("whole.jsonl")) == 7


def test_slurm_quantizes(llmq, draft, slurm, tmp_path):
    p = slurm("quantize-mpi.sbatch", draft, "q.llmq", "--method", "rtn")
    assert p.wait(60) == 0, p.stdout.read()
    llmq("quantize", draft, "-o", tmp_path / "want.llmq", "--method", "rtn")
    assert (tmp_path / "q.llmq").read_bytes() == (tmp_path / "want.llmq").read_bytes()


def test_slurm_converts(llmq, draft, slurm, tmp_path):
    for i in "12":
        p = slurm("convert-array.sbatch", draft, "m.gguf", "gguf", "--dtype", "f16", SLURM_ARRAY_TASK_ID=i, SLURM_ARRAY_TASK_COUNT="2")
        assert p.wait(60) == 0, p.stdout.read()
    command = ["convert", draft, "--to", "gguf", "--dtype", "f16", "-o"]
    assert "parts" not in llmq(*command, tmp_path / "m.gguf").stderr and not (tmp_path / "m.gguf.resume").exists()
    llmq(*command, tmp_path / "want.gguf")
    assert (tmp_path / "m.gguf").read_bytes() == (tmp_path / "want.gguf").read_bytes()


def test_slurm_serves_with_a_key(draft, slurm, tmp_path):
    (tmp_path / "keys").write_text("k\n")
    p = slurm("serve.sbatch", draft, tmp_path / "keys", "--host", "127.0.0.1")
    said = ""
    while "\nready: " not in said:
        line = p.stdout.readline()
        assert line, said
        said += "\n" + line
    assert "listening on http://127.0.0.1:" in said
    p.send_signal(signal.SIGTERM)
    assert p.wait(60) == 0


@pytest.mark.parametrize("script", sorted(p.name for p in SLURM.glob("*.sbatch")))
def test_a_script_without_its_arguments_says_what_it_takes(slurm, script):
    p = slurm(script)
    assert p.wait(60) == 2 and f"sbatch {script} MODEL" in p.stdout.read()


def test_the_image_has_the_libraries_that_the_program_links(llmq):
    """By Debian's packages, where the tests run on the release that the image is made of."""
    text = (ROOT / "Dockerfile").read_text()
    release = dict(x.split("=", 1) for x in open("/etc/os-release").read().splitlines() if "=" in x)
    if release.get("VERSION_ID", "").strip('"') != "12" or not shutil.which("dpkg"):
        pytest.skip("not on Debian 12, of which the image is made")
    linked = subprocess.run(["objdump", "-p", llmq.path], capture_output=True, text=True, check=True).stdout
    for name in re.findall(r"NEEDED +(\S+)", linked):
        found = subprocess.run(["dpkg", "-S", f"*/{name}"], capture_output=True, text=True).stdout
        packages = {x.split(":")[0] for x in found.splitlines()}
        assert packages & {"libc6"} or any(re.search(rf"\b{re.escape(p)}\b", text) for p in packages), f"{name}: {packages}"
