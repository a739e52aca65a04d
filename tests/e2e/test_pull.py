"""Models by name: llmq pull hf:, and ORG/NAME where a command takes a model; huggingface_hub is the other
client of the same cache, where it is installed."""
import errno
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from harness import LIMIT, ROOT, until  # noqa: E402
from hub import Hub, git_sha1  # noqa: E402
from shim import CHANGE, KILL_AFTER, WRITE, Fault, Shim  # noqa: E402

MODEL = {p.name: p.read_bytes() for p in (ROOT / "models/novels-1m").iterdir() if p.is_file()}
WEIGHTS = MODEL["model.safetensors"]
SHA = hashlib.sha256(WEIGHTS).hexdigest()


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub with org/novels, to which the environment leads; an empty cache; the current folder is empty too."""
    h = Hub()
    h.add("org/novels", MODEL)
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_", "XDG_CACHE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_ENDPOINT", h.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    h.cache = tmp_path / "hf/hub"
    yield h
    h.close()


def repo_of(hub, name="org/novels"):
    return hub.cache / f"models--{name.replace('/', '--')}"


def snapshot(hub, name="org/novels", commit=None):
    """Names and bytes of a snapshot in the cache."""
    top = repo_of(hub, name) / "snapshots" / (commit or hub.repos[name].main)
    return {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}


def leftovers(hub, name="org/novels"):
    """What has no final name yet."""
    return [p for p in (repo_of(hub, name) / "blobs").glob("*") if not re.fullmatch("[0-9a-f]{40}([0-9a-f]{24})?", p.name)]


# ---- what is fetched ----
def test_the_cache_has_the_layout_of_huggingface_hub(llmq, hub):
    r = llmq.json("pull", "hf:org/novels")
    commit, top = hub.repos["org/novels"].main, repo_of(hub)
    assert r["digest"] == commit and r["path"] == str(top / "snapshots" / commit) and r["sent"] == r["bytes"]
    assert snapshot(hub) == MODEL
    assert (top / "refs/main").read_text() == commit
    for name, data in MODEL.items():
        etag = SHA if name == "model.safetensors" else git_sha1(data)
        assert os.readlink(top / "snapshots" / commit / name) == f"../../blobs/{etag}"
        assert (hub.cache / f".locks/models--org--novels/{etag}.lock").exists()
    listed = json.loads((top / f"trees/{commit}.json").read_text())
    assert listed["format_version"] == 1 and sorted(listed["files"]) == sorted(MODEL)
    assert listed["files"]["model.safetensors"]["lfs_sha256"] == SHA
    n = len(hub.log)
    assert llmq.json("pull", "hf:org/novels")["sent"] == 0
    assert [p for _, _, p, _ in hub.log[n:]] == ["/api/models/org/novels/revision/main"]


SMALL = {"config.json": b"{}", "tokenizer.json": b"{}", "README.md": b"# x", "LICENSE": b"x"}
CHOSEN = [  # why, the repository's files, what follows its name, what is fetched (None: see the message)
    ("no second copy of the weights",
     [*SMALL, "model.safetensors", "model.fp16.safetensors", "consolidated.safetensors", "pytorch_model.bin",
      "onnx/model.onnx", "original/params.json", "sub/model.safetensors", "run.py", ".gitattributes", "tf_model.h5"], "",
     {*SMALL, "model.safetensors"}),
    ("all parts, index and templates",
     [*SMALL, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
      "additional_chat_templates/tool.jinja", "chat_template.jinja"], "",
     {*SMALL, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
      "additional_chat_templates/tool.jinja", "chat_template.jinja"}),
    ("weights under a name of their own", [*SMALL, "gptq_model-4bit-128g.safetensors", "consolidated.safetensors"], "",
     {*SMALL, "gptq_model-4bit-128g.safetensors"}),
    ("Q4_K_M unasked", [*SMALL, "m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-F16.gguf"], "", {"m-Q4_K_M.gguf"}),
    ("the nearest to it", ["m.IQ4_XS.gguf", "m.Q5_K_M.gguf", "m.Q3_K_S.gguf", "m.F16.gguf"], "", {"m.IQ4_XS.gguf"}),
    ("one of a name that says nothing, where there is no other", ["m.gguf", "readme.gguf.txt"], "", {"m.gguf"}),
    ("the one that is asked for", ["m-Q4_K_M.gguf", "m-Q8_0.gguf"], ":q8_0", {"m-Q8_0.gguf"}),
    ("all parts of a split one, in a folder",
     ["Q4_K_M/m-Q4_K_M-00001-of-00002.gguf", "Q4_K_M/m-Q4_K_M-00002-of-00002.gguf", "Q8_0/m-Q8_0.gguf"], "",
     {"Q4_K_M/m-Q4_K_M-00001-of-00002.gguf", "Q4_K_M/m-Q4_K_M-00002-of-00002.gguf"}),
    ("F16 is not BF16", ["m-BF16.gguf", "m-F16.gguf"], ":F16", {"m-F16.gguf"}),
    ("a file by its name", ["m-Q4_K_M.gguf", "sub/other.gguf"], ":sub/other.gguf", {"sub/other.gguf"}),
    ("safetensors before GGUF", [*SMALL, "model.safetensors", "m-Q8_0.gguf"], "", {*SMALL, "model.safetensors"}),
    ("unless it is asked for", [*SMALL, "model.safetensors", "m-Q8_0.gguf"], ":Q8_0", {"m-Q8_0.gguf"}),
    ("a .llmq", [*SMALL, "m.llmq", "m-Q8_0.gguf"], "", {"m.llmq"}),
    ("two .llmq", ["a.llmq", "b.llmq"], "", (2, "name one as :FILE of a.llmq, b.llmq")),
    ("a quantization that is not there", ["m-Q4_K_M.gguf", "m-Q8_0.gguf"], ":Q6_K",
     (3, "expected a file or quantization 'Q6_K', found m-Q4_K_M.gguf, m-Q8_0.gguf")),
    ("nothing that llmq reads", [*SMALL, "pytorch_model.bin"], "",
     (3, "expected weights as safetensors, GGUF or .llmq, found pytorch_model.bin")),
    ("nothing at all", [], "", (3, "expected weights as safetensors, GGUF or .llmq, found none")),
]


@pytest.mark.parametrize("why, files, pick, want", CHOSEN, ids=[c[0] for c in CHOSEN])
def test_files_are_chosen(llmq, hub, why, files, pick, want):
    hub.page = 3  # the list comes in pages
    hub.add("org/m", {n: SMALL.get(n, n.encode()) for n in files})
    if isinstance(want, tuple):
        p = llmq("pull", f"hf:org/m{pick}", code=want[0])
        assert want[1] in p.stderr and not hub.gets()
        return
    r = llmq.json("pull", f"hf:org/m{pick}")
    assert set(snapshot(hub, "org/m")) == want
    one = [n for n in want if n.endswith((".gguf", ".llmq"))]
    assert r["path"].endswith(sorted(one)[0] if one else hub.repos["org/m"].main)


def test_a_revision_is_a_branch_a_tag_or_a_commit(llmq, hub):
    repo = hub.repos["org/novels"]
    old = repo.main
    new = repo.commit({**MODEL, "LICENSE": b"another"}, "dev/two")
    llmq("pull", "hf:org/novels@dev/two")
    assert (repo_of(hub) / "refs/dev/two").read_text() == new and "LICENSE" in snapshot(hub, commit=new)
    llmq("pull", f"hf:org/novels@{old}")
    assert snapshot(hub, commit=old) == MODEL and not (repo_of(hub) / "refs/main").exists()
    assert len(hub.gets("model.safetensors")) == 1  # a blob of two commits


def test_what_changed_on_the_hub_is_what_pull_fetches(llmq, hub):
    llmq("pull", "hf:org/novels")
    new = hub.repos["org/novels"].commit({**MODEL, "README.md": b"# new"})
    n = len(hub.log)
    llmq("tokenize", "org/novels", input='{"text": "a"}')  # a command takes what is there
    assert len(hub.log) == n
    r = llmq.json("pull", "hf:org/novels")
    assert r["digest"] == new and r["sent"] == 5 and len(hub.gets("model.safetensors")) == 1


def test_into_a_folder(llmq, hub, tmp_path):
    llmq("pull", "hf:org/novels", "-o", tmp_path / "out")
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir() if p.name != ".llmq-files"} == MODEL
    assert not hub.cache.exists()
    p = llmq("publish", tmp_path / "out", "hf:org/novels", code=2)
    assert "it is read alone: publish to git:" in p.stderr


# ---- names in commands ----
def test_every_command_takes_a_name(llmq, hub, tmp_path, draft):
    want = llmq("run", draft, "-p", "It was", "-n", "8").stdout
    p = llmq("run", "org/novels", "-p", "It was", "-n", "8")
    assert p.stdout == want and "org/novels: fetched 2.0 MiB, commit" in p.stderr
    n = len(hub.log)
    for args in (("inspect", "org/novels"), ("plan", "hf:org/novels", "--bandwidth", "10", "--gflops", "10"),
                 ("quantize", "hf:org/novels@main", "-o", tmp_path / "q.llmq", "--method", "rtn"),
                 ("convert", "org/novels", "-o", tmp_path / "c", "--to", "safetensors"),
                 ("verify", "org/novels", "--against", "hf:org/novels"),
                 ("serve", "--model", "org/novels", "--speculative-model", "hf:org/novels", "--dry-run")):
        llmq(*args)
    assert len(hub.log) == n  # the cache is enough
    for name in ("q.llmq", "c"):
        assert (tmp_path / name).exists()


def test_a_server_calls_the_model_by_its_name(serve, hub):
    s = serve("org/novels", "--max-model-len", "64")
    assert [m["id"] for m in json.load(s.get("/v1/models"))["data"]] == ["org/novels"]


def test_what_needs_no_weights_fetches_none(llmq, hub):
    llmq("tokenize", "org/novels", input='{"text": "a"}')
    assert set(snapshot(hub)) == set(MODEL) - {"model.safetensors"}
    llmq("run", ROOT / "models/novels-1m", "--tokenizer", "org/novels", "-p", "It", "-n", "1")
    assert set(snapshot(hub)) == set(MODEL) - {"model.safetensors"}
    llmq("inspect", "org/novels")  # the others follow
    assert snapshot(hub) == MODEL


def test_a_ggufs_tokenizer_comes_with_its_header_alone(llmq, hub, tmp_path, model):
    llmq("convert", model, "-o", tmp_path / "m.gguf", "--to", "gguf")
    hub.add("org/m", {"m.gguf": (tmp_path / "m.gguf").read_bytes()})
    text = '{"text": "It was a dark night"}'
    assert llmq("tokenize", "org/m", input=text).stdout == llmq("tokenize", tmp_path / "m.gguf", input=text).stdout
    assert hub.sent < (tmp_path / "m.gguf").stat().st_size / 2 and not hub.cache.exists()


def test_pull_takes_the_bare_name_too(llmq, hub, tmp_path):
    llmq("pull", "org/novels")
    llmq("pull", "org/novels@main", "-o", tmp_path / "out")
    assert snapshot(hub) == MODEL and (tmp_path / "out/model.safetensors").read_bytes() == WEIGHTS
    hub.log.clear()
    for path in ("models/novels-1m", "models/novels-2m"):  # in a folder that is here
        assert "target: expected dir:PATH" in llmq("pull", path, "-o", tmp_path / "x", code=2).stderr and not hub.log


def test_a_local_path_wins(llmq, hub, tmp_path, draft):
    (tmp_path / "org").mkdir()
    (tmp_path / "org/novels").symlink_to(draft)
    run = lambda name: subprocess.run([llmq.path, "inspect", name], cwd=tmp_path, capture_output=True, text=True,
                                      timeout=LIMIT)  # noqa: E731
    assert run("org/novels").returncode == 0 and not hub.log
    p = run("org/novel")  # a slip in a path, not a name for the world
    assert p.returncode == 3 and "org/novel: No such file" in p.stderr and not hub.log
    for name in ("org/novels.gguf", "other/x.llmq", "./org/x", "a/b/c", "/org/novels2"):
        assert run(name).returncode == 3 and not hub.log
    assert run("hf:org/novels").returncode == 0 and hub.log


NAMES = ["hf:", "hf:org/", "hf:/x", "hf:../x", "hf:org/..", "hf:org/a b", "hf:org/a/b", "hf:org/n@", "hf:org/n@../x", "hf:org/n:",
         "hf:org/n:../../etc/passwd", "hf:org/n:/etc", "hf:org/n@a:b:c/../d"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_none_is_refused(llmq, hub, name):
    assert "expected " in llmq("pull", name, code=2).stderr and not hub.log


@pytest.mark.parametrize("form", ["safetensors", "gguf", "llmq", "gptq", "awq", "bnb", "compressed-tensors"])
def test_a_plan_reads_headers_alone(llmq, hub, tmp_path, monkeypatch, model, form):
    if form == "safetensors":
        local, files = model, {p.name: p.read_bytes() for p in model.iterdir() if p.is_file()}
    elif form != "gguf":
        method = ("--method", "nf4" if form == "bnb" else "rtn")
        llmq("quantize", model, "-o", tmp_path / "m.llmq", *method, "--no-check")
        local = tmp_path / "m.llmq"
        if form != "llmq":
            llmq("convert", local, "-o", tmp_path / form, "--to", form, "--shard-size", "2M")
            local = tmp_path / form
        files = {p.name: p.read_bytes() for p in ([local] if local.is_file() else local.iterdir())}
    else:
        local = tmp_path / f"sub/m-{form}.gguf"
        local.parent.mkdir()
        llmq("convert", model, "-o", local, "--to", "gguf")
        files = {f"sub/m-{form}.gguf": local.read_bytes()}
    hub.add("org/m", files)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    args = ("--memory", "8G", "--bandwidth", "10", "--gflops", "10", "--threads", "1")
    assert llmq.json("plan", "org/m", *args) == llmq.json("plan", local, *args)
    assert hub.sent < sum(map(len, files.values())) / 2 and not list((tmp_path / "tmp").iterdir()) and not hub.cache.exists()
    assert all(h.get("Range") for _, _, p, h in hub.log if "/api/" not in p)
    hub.log.clear()
    llmq("pull", "hf:org/m")
    hub.log.clear()
    llmq("plan", "org/m", *args)  # from the cache
    assert not hub.log


BROKEN = [  # why, the weights' bytes, message
    ("a length beyond the file", b"\xff" * 7 + b"\x00" + b"{}", "header"),
    ("no JSON", (8).to_bytes(8, "little") + b"no json!" + bytes(100), ""),
    ("nothing", b"", ""),
]


@pytest.mark.parametrize("why, data, message", BROKEN, ids=[b[0] for b in BROKEN])
def test_a_broken_header_is_told(llmq, hub, tmp_path, monkeypatch, why, data, message):
    hub.add("org/m", {**MODEL, "model.safetensors": data})
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = sorted(tmp_path.iterdir())
    assert message in llmq("plan", "org/m", code=3).stderr
    assert sorted(tmp_path.iterdir()) == before


# ---- huggingface_hub ----
def test_what_huggingface_hub_fetched_is_not_fetched_again(llmq, hub):
    hf = pytest.importorskip("huggingface_hub")
    hub.repos["org/novels"].commit({**MODEL, "pytorch_model.bin": b"x", ".gitattributes": b"y"})
    for whole in (False, True):
        where = hub.cache if whole else hub.cache.parent / "single"
        hub.log.clear()
        if whole:
            hf.snapshot_download("org/novels", endpoint=hub.url, cache_dir=where, token=False)
        else:
            for name in ("config.json", "model.safetensors"):
                hf.hf_hub_download("org/novels", name, endpoint=hub.url, cache_dir=where, token=False)
        hub.log.clear()
        llmq("run", "org/novels", "-p", "It", "-n", "1", env={**os.environ, "HF_HUB_CACHE": str(where)})
        got = {p.rsplit("/", 1)[1] for p in hub.gets()}
        assert got == (set() if whole else set(MODEL) - {"config.json", "model.safetensors"})
    if hasattr(hf, "get_cached_repo_tree"):
        assert not hub.log  # its list of files is ours


def test_huggingface_hub_finds_what_llmq_fetched(llmq, hub):
    hf = pytest.importorskip("huggingface_hub")
    hub.repos["org/novels"].commit({**MODEL, "pytorch_model.bin": b"x", ".gitattributes": b"y"})
    llmq("pull", "hf:org/novels")
    for name, data in MODEL.items():
        path = hf.hf_hub_download("org/novels", name, cache_dir=hub.cache, local_files_only=True)
        assert pathlib.Path(path).read_bytes() == data
    found = hf.scan_cache_dir(hub.cache)
    assert [r.repo_id for r in found.repos] == ["org/novels"] and not found.warnings
    assert {f.file_name for r in found.repos for v in r.revisions for f in v.files} == set(MODEL)
    hub.log.clear()
    hf.snapshot_download("org/novels", endpoint=hub.url, cache_dir=hub.cache, token=False)
    got = {p.split("?")[0].rsplit("/", 1)[1] for _, method, p, _ in hub.log if method == "GET" and "/api/" not in p}
    assert got == {"pytorch_model.bin", ".gitattributes"}  # and no other


# ---- the network ----
@pytest.mark.parametrize("cut", [0, 1, 65536, len(WEIGHTS) - 1])
def test_a_connection_that_breaks_is_taken_up_where_it_ended(llmq, hub, cut):
    cuts = []

    def fault(h):
        if h.host != "store" or cuts:
            return False
        cuts.append(h.path)
        return h.cut(WEIGHTS[:cut], len(WEIGHTS))

    hub.fault = fault
    p = llmq("pull", "hf:org/novels")
    assert cuts and snapshot(hub) == MODEL and not leftovers(hub) and (cut == 0 or "; trying again" in p.stderr)
    ranges = [h.get("Range") for host, _, _, h in hub.log if host == "store"]
    assert ranges == [None, f"bytes={cut}-" if cut else None]


def test_broken_off_at_any_byte_of_a_small_file(llmq, hub):
    data = MODEL["tokenizer_config.json"]
    left = list(range(len(data)))

    def fault(h):
        m = re.fullmatch(r"bytes=(\d+)-", h.headers.get("Range", ""))
        at = int(m[1]) if m else 0
        if not h.path.endswith("/tokenizer_config.json") or at in seen:
            return False
        seen.add(at)
        return h.cut(data[:step], len(data)) if not m else False

    for step in left[:: max(1, len(left) // 8)]:
        seen = set()
        hub.fault = fault
        llmq("pull", "hf:org/novels")
        assert snapshot(hub)["tokenizer_config.json"] == data
        for p in (repo_of(hub) / "blobs" / git_sha1(data), repo_of(hub) / f"snapshots/{hub.repos['org/novels'].main}/tokenizer_config.json"):
            p.unlink()


def test_an_interrupted_pull_goes_on(llmq, hub):
    half = len(WEIGHTS) // 2
    sent, go = threading.Event(), threading.Event()

    def fault(h):
        if h.host != "store" or h.headers.get("Range"):
            return False
        h.send_response(200)
        h.send_header("Content-Length", str(len(WEIGHTS)))
        h.end_headers()
        h.wfile.write(WEIGHTS[:half])
        h.wfile.flush()
        sent.set()
        assert go.wait(LIMIT)
        return h.cut()

    hub.fault = fault
    p = llmq.start("pull", "hf:org/novels", stderr=subprocess.PIPE)
    assert sent.wait(LIMIT)
    part = repo_of(hub) / f"blobs/{SHA}.incomplete"
    until(lambda: part.exists() and part.stat().st_size == half)
    p.send_signal(signal.SIGINT)
    assert p.wait(LIMIT) == 130
    go.set()
    assert part.stat().st_size == half and "model.safetensors" not in snapshot(hub) and not (repo_of(hub) / "refs").exists()
    assert "interrupted" in p.stderr.read()
    llmq("pull", "hf:org/novels")
    assert [h.get("Range") for host, _, _, h in hub.log if host == "store"] == [None, f"bytes={half}-"]
    assert snapshot(hub) == MODEL and not leftovers(hub)


def test_wrong_bytes_get_no_name(llmq, hub):
    for name in ("model.safetensors", "tokenizer_config.json"):
        hub.lie = lambda path, data, bad=name: data[:-1] + b"!" if path == bad else data
        p = llmq("pull", "hf:org/novels", code=4)
        kind = "SHA-256" if name == "model.safetensors" else "git's SHA-1"
        assert f"hf:org/novels: {name}: expected {kind} " in p.stderr
        assert name not in snapshot(hub) and not leftovers(hub) and not (repo_of(hub) / "refs").exists()
    hub.lie = lambda path, data: data
    llmq("pull", "hf:org/novels")
    assert snapshot(hub) == MODEL


def test_a_beginning_of_something_else_is_thrown_away(llmq, hub):
    blobs = repo_of(hub) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{SHA}.incomplete").write_bytes(b"something else" * 1000)
    (blobs / git_sha1(MODEL["config.json"])).write_bytes(b"cut sho")  # not as long as the hub says
    llmq("pull", "hf:org/novels")
    assert snapshot(hub) == MODEL


def test_the_token_goes_to_its_own_host_alone(llmq, hub, monkeypatch, tmp_path):
    hub.repos["org/novels"].private = True
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    llmq("pull", "hf:org/novels")
    by_host = {host: {h.get("Authorization") for x, _, _, h in hub.log if x == host} for host in ("hub", "store")}
    assert by_host == {"hub": {"Bearer hf_right"}, "store": {None}}
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "hf/token").write_text("hf_right\n")  # as `hf auth login` leaves it
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "two"))
    llmq("pull", "hf:org/novels")
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    assert "no repository of that name" in llmq("pull", "hf:org/novels", code=3).stderr


def reply(status, **headers):
    return lambda h: h.reply(status, **headers) or True


ANSWERS = [  # why, how the repository is, token, every request's answer or None, exit code, message
    ("no such repository", {}, None, None, 3, r"has no repository of that name: check it \(of a private one set HF_TOKEN\)"),
    ("gated", {"gated": True}, None, None, 1, r"it is gated: accept its conditions at \S+/org/x with an account, then set HF_TOKEN"),
    ("gated, not granted", {"gated": True}, "hf_right", None, 1, "the account of HF_TOKEN has no access yet: accept its"),
    ("gated, granted", {"gated": "granted"}, "hf_right", None, 0, ""),
    ("private", {"private": True}, None, None, 3, "no repository of that name"),
    ("private, with its token", {"private": True}, "hf_right", None, 0, ""),
    ("a wrong token", {"private": True}, "hf_wrong", None, 1, "does not accept HF_TOKEN: make a new one at"),
    ("a token of two lines", {}, "hf_a\nX-Y: z", None, 2, "HF_TOKEN: expected one word"),
    ("403", {"files": 1}, None, reply(403, X_Error_Message="Forbidden region"), 1, "answered 403: Forbidden region"),
    ("429", {"files": 1}, None, reply(429, Retry_After="0"), 1, "too many requests: try again later, or set HF_TOKEN"),
    ("503", {"files": 1}, None, reply(503, Retry_After="0"), 1, "answered 503"),
    ("a page of a hotel", {"files": 1}, None, lambda h: h.reply(200, b"<html>Welcome") or True, 3, "answered as no hub does"),
    ("away to a file", {"files": 1}, None, reply(302, Location="file:///etc/passwd"), 3, "expected an https address"),
    ("in circles", {"files": 1}, None, lambda h: h.reply(302, Location=h.path) or True, 3, "at most 5 redirects"),
]


@pytest.mark.parametrize("why, how, token, answer, code, message", ANSWERS, ids=[a[0] for a in ANSWERS])
def test_answers_are_explained(llmq, hub, monkeypatch, why, how, token, answer, code, message):
    if how:
        how = {k: v for k, v in how.items() if k != "files"}
        hub.add("org/x", MODEL, **how)
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    hub.fault = answer or hub.fault
    p = llmq("pull", "hf:org/x", code=code)
    assert re.search(message, p.stderr) and len(hub.log) < 15
    assert code == 0 or not (hub.cache / "models--org--x/refs").exists()


def test_a_busy_hub_is_asked_again(llmq, hub):
    left = {"429": 2, "500": 2}

    def fault(h):
        status = "429" if "/api/" in h.path else "500"
        left[status] -= 1
        return left[status] >= 0 and (h.reply(int(status), Retry_After="0") or True)

    hub.fault = fault
    llmq("pull", "hf:org/novels")
    assert snapshot(hub) == MODEL


LISTS = [  # why, entries
    ("no digest", [{"type": "file", "path": "config.json", "size": 2}]),
    ("a digest that is a path", [{"type": "file", "path": "config.json", "size": 2, "oid": "../../../x"}]),
    ("a size below nothing", [{"type": "file", "path": "config.json", "size": -2, "oid": "0" * 40}]),
    ("no list", {"error": "x"}),
    ("no room on any disk", [{"type": "file", "path": "model.safetensors", "size": 2**52, "oid": "0" * 40}]),
]


@pytest.mark.parametrize("why, entries", LISTS, ids=[x[0] for x in LISTS])
def test_a_list_that_is_none_is_refused(llmq, hub, why, entries):
    hub.fault = lambda h: "/tree/" in h.path and (h.reply(200, json.dumps(entries).encode()) or True)
    p = llmq("pull", "hf:org/novels", code=1 if "disk" in why else 3)
    assert "expected" in p.stderr and not hub.gets()


def test_names_that_lead_out_of_the_cache_are_left_alone(llmq, hub, tmp_path):
    bad = ["../evil.json", "/evil.json", "a/../../evil.json", "evil\n.json", ".evil.json", "..\\evil.json"]
    entries = [{"type": "file", "path": n, "size": len(MODEL[n]) if n in MODEL else 4, "oid": git_sha1(MODEL.get(n, b"evil"))}
               for n in [*bad, *MODEL]]
    hub.fault = lambda h: "/tree/" in h.path and (h.reply(200, json.dumps(entries).encode()) or True)
    llmq("pull", "hf:org/novels")
    assert snapshot(hub) == MODEL and not hub.gets("evil")


# ---- this side ----
def test_a_full_disk_leaves_what_the_next_run_goes_on_with(llmq, hub, tmp_path):
    (tmp_path / "shim").mkdir()
    shim = Shim(tmp_path / "shim")
    shim.set(Fault(WRITE, errno.ENOSPC, 40, stays=True))
    p = llmq("pull", "hf:org/novels", env=shim.env(), code=1)
    assert "No space left on device" in p.stderr and leftovers(hub)
    shim.close()
    hub.log.clear()
    llmq("pull", "hf:org/novels")
    assert snapshot(hub) == MODEL and any(h.get("Range") for _, _, _, h in hub.log)


def test_killed_after_any_change_of_a_file_the_next_run_completes(llmq, hub, tmp_path):
    small = {n: d for n, d in MODEL.items() if n in ("config.json", "model.safetensors")}
    hub.add("org/m", small)
    (tmp_path / "shim").mkdir()
    shim = Shim(tmp_path / "shim")
    shim.set(Fault(CHANGE))
    llmq("pull", "hf:org/m", env=shim.env())
    changes = shim.count
    assert changes > 15
    for at in range(1, changes + 1):
        shutil.rmtree(hub.cache.parent)
        shim.set(Fault(CHANGE, KILL_AFTER, at))
        assert llmq("pull", "hf:org/m", env=shim.env(), code=None).returncode == -signal.SIGKILL, at
        whole = {n for n in small if n in snapshot(hub, "org/m")}
        assert all(snapshot(hub, "org/m")[n] == small[n] for n in whole)
        if (repo_of(hub, "org/m") / "refs/main").exists():
            assert whole == set(small)
        llmq("pull", "hf:org/m")
        assert snapshot(hub, "org/m") == small and not leftovers(hub, "org/m"), at
    shim.close()


def test_offline_the_cache_is_all_there_is(llmq, hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    p = llmq("run", "org/novels", "-p", "x", code=3)
    assert "HF_HUB_OFFLINE is set, and " in p.stderr and "has not all of it" in p.stderr and not hub.log
    monkeypatch.delenv("HF_HUB_OFFLINE")
    llmq("pull", "hf:org/novels")
    hub.log.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "yes")
    llmq("run", "org/novels", "-p", "It", "-n", "1")
    llmq("pull", "hf:org/novels")
    (repo_of(hub) / "trees" / f"{hub.repos['org/novels'].main}.json").unlink()  # an older huggingface_hub keeps no list
    llmq("run", "org/novels", "-p", "It", "-n", "1")
    assert not hub.log
    (repo_of(hub) / "blobs" / SHA).unlink()
    assert "has not all of it" in llmq("run", "org/novels", "-p", "It", code=3).stderr


def test_nobody_there_says_who_is_missing(llmq, hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert "http://127.0.0.1:1/" in llmq("pull", "hf:org/novels", code=1).stderr
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    llmq("pull", "hf:org/novels")
    (repo_of(hub) / "trees" / f"{hub.repos['org/novels'].main}.json").unlink()  # as an older huggingface_hub leaves it
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert "; what the cache has is taken, commit" in llmq("run", "org/novels", "-p", "It", "-n", "1").stderr
    monkeypatch.setenv("HF_ENDPOINT", "ftp://x")
    assert "HF_ENDPOINT: expected http" in llmq("pull", "hf:org/novels", code=2).stderr


def test_two_at_once_fetch_once(llmq, hub):
    begun, go = threading.Event(), threading.Event()

    def fault(h):
        if h.host == "store":
            begun.set()
            assert go.wait(LIMIT)
        return False

    hub.fault = fault
    a = llmq.start("pull", "hf:org/novels", stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert begun.wait(LIMIT)
    b = llmq.start("pull", "hf:org/novels", stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert "another process fetches it; waiting" in b.stderr.readline()
    go.set()
    assert (a.wait(LIMIT), b.wait(LIMIT)) == (0, 0)
    assert len([1 for host, *_ in hub.log if host == "store"]) == 1 and snapshot(hub) == MODEL
