"""llmq publish and pull: folders, registries, git; interruptions, faults and hostile remote sides."""
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
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from harness import LIMIT, ROOT, begun, until  # noqa: E402
from registry import Registry, digest  # noqa: E402
from shim import CHANGE, Fault, Shim  # noqa: E402


@pytest.fixture(scope="module")
def packed(llmq, draft, tmp_path_factory):
    out = tmp_path_factory.mktemp("publish") / "q.llmq"
    llmq("quantize", draft, "-o", out, "--method", "gptq", "--calib-samples", "4", "--calib-len", "32")
    return out


@pytest.fixture
def registry():
    r = Registry()
    yield r
    r.close()


@pytest.fixture(autouse=True)
def no_docker(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


LIST = ".llmq-files"  # what llmq wrote in a folder


def files(folder):
    """Of the artifact: not the list of them."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in pathlib.Path(folder).rglob("*")
            if p.is_file() and p.name != LIST}


def names(folder):
    return sorted(p.name for p in pathlib.Path(folder).iterdir())


# ---- folders ----
def test_a_folder_is_ready_for_the_hub(llmq, packed, draft, tmp_path):
    shutil.copytree(draft, tmp_path / "src")
    (tmp_path / "src/LICENSE").write_text("Do as you like.\n")
    llmq("quantize", tmp_path / "src", "-o", tmp_path / "q.llmq", "--method", "rtn")
    text = ROOT / "tests/golden/text/novels-heldout-100w.txt"
    r = llmq("eval", tmp_path / "q.llmq", "--text", text, "--ctx", "64", "--windows", "2", "--ref", draft, "--json")
    (tmp_path / "novels.json").write_text(r.stdout)
    r = llmq.json("publish", tmp_path / "q.llmq", f"dir:{tmp_path}/hub", "--eval", tmp_path / "novels.json",
                  "--base-model", "me/novels-1m")
    got = files(tmp_path / "hub")
    assert sorted(got) == [f["name"] for f in r["files"]] == [
        ".gitattributes", "LICENSE", "README.base.md", "README.md", "SHA256SUMS", "config.json",
        "generation_config.json", "provenance.json", "q.llmq"]
    assert got["LICENSE"] == b"Do as you like.\n"
    sums = dict(reversed(line.split("  ")) for line in got["SHA256SUMS"].decode().splitlines())
    assert sums == {n: hashlib.sha256(d).hexdigest() for n, d in got.items() if n != "SHA256SUMS"}
    assert r["digest"] == digest(got["SHA256SUMS"])
    card, about = got["README.md"].decode(), json.loads(got["provenance.json"])
    measured = json.loads((tmp_path / "novels.json").read_text())
    assert about["evaluations"][0]["perplexity"] == measured["perplexity"]
    assert f"| novels | {measured['tokens']} | 64 | {measured['perplexity']:.4f} | " in card
    assert "license: cc0-1.0\nbase_model: me/novels-1m\n" in card and card.startswith("---\nlanguage: en\n")
    for line in ("llmq serve q/q.llmq", "vllm serve q-vllm", "llama-server -m q.gguf", "| method | `\"rtn\"` |"):
        assert line in card


def test_what_was_pulled_can_be_published_again_with_the_same_bytes(llmq, packed, tmp_path):
    llmq("publish", packed, f"dir:{tmp_path}/a", "--license", "mit", "--name", "novels")
    llmq("pull", f"dir:{tmp_path}/a", "-o", tmp_path / "b")
    llmq("publish", tmp_path / "b", f"dir:{tmp_path}/c")
    assert files(tmp_path / "a") == files(tmp_path / "b") == files(tmp_path / "c")
    assert "Calibration" in (tmp_path / "a/README.md").read_text()
    assert names(tmp_path) == ["a", "b", "c"]


def test_a_converted_folder_takes_its_history_from_the_file_it_was_made_of(llmq, packed, draft, tmp_path):
    llmq("convert", packed, "-o", tmp_path / "gptq", "--to", "gptq_v2", "--shard-size", "300K")
    llmq("publish", tmp_path / "gptq", f"dir:{tmp_path}/hub", "--made-from", packed)
    about = json.loads((tmp_path / "hub/provenance.json").read_text())
    assert about["recipe"]["method"] == "gptq" and about["provenance"]["calibration"]["samples"] == 4
    assert len(list((tmp_path / "hub").glob("*.safetensors"))) > 1
    llmq("verify", tmp_path / "hub")
    p = llmq("publish", tmp_path / "gptq", f"dir:{tmp_path}/x", "--made-from", draft, code=2)
    assert "expected a file of llmq quantize" in p.stderr


def test_nothing_is_pulled_into_what_it_is_pulled_from(llmq, packed, bare, tmp_path):
    hub = tmp_path / "hub"
    llmq("publish", packed, f"dir:{hub}")
    llmq("publish", packed, f"git:{bare}")
    (tmp_path / "link").symlink_to("hub")
    for top, targets in ((hub, (f"dir:{hub}", f"dir:{tmp_path}/link")), (bare, (f"git:{bare}", f"git:file://{bare}"))):
        before = sorted(top.rglob("*"))
        for target in targets:
            for out in (top, top / "x", top / "x/y", top / "additional_chat_templates", top / ".." / top.name / "x"):
                assert "which is read" in llmq("pull", target, "-o", out, code=2).stderr, (target, out)
        assert sorted(top.rglob("*")) == before
    assert sorted(p.name for p in tmp_path.iterdir() if "resume" in p.name) == []
    llmq("pull", f"dir:{hub}", "-o", tmp_path / "hub2")  # a name that begins alike is another folder


def test_a_folder_of_links_to_files_is_pulled_as_files(llmq, packed, tmp_path):
    """As the hub's own cache has them: what verify and publish read, pull reads too."""
    hub, store = tmp_path / "hub", tmp_path / "store"
    llmq("publish", packed, f"dir:{hub}")
    store.mkdir()
    for i, path in enumerate(sorted(hub.iterdir())):
        path.rename(store / str(i))
        path.symlink_to(f"../store/{i}")
    assert llmq.json("verify", hub)["ok"]
    llmq("pull", f"dir:{hub}", "-o", tmp_path / "out")
    assert files(tmp_path / "out") == files(hub) and not any(p.is_symlink() for p in (tmp_path / "out").iterdir())
    (hub / packed.name).unlink()
    for to in ("/dev/null", tmp_path):
        (hub / packed.name).symlink_to(to)
        assert "expected a plain file, found none" in llmq("pull", f"dir:{hub}", "-o", tmp_path / "two", code=3).stderr
        (hub / packed.name).unlink()


def test_nothing_that_verify_refuses_is_published_or_pulled(llmq, packed, tmp_path):
    bad = bytearray(packed.read_bytes())
    bad[-100] ^= 1
    (tmp_path / "bad.llmq").write_bytes(bad)
    p = llmq("publish", tmp_path / "bad.llmq", f"dir:{tmp_path}/hub", code=4)
    assert "llmq verify says no" in p.stderr and names(tmp_path) == ["bad.llmq"]
    llmq("publish", packed, f"dir:{tmp_path}/hub")
    (tmp_path / "hub/q.llmq").write_bytes(bad)  # the sums say otherwise
    p = llmq("pull", f"dir:{tmp_path}/hub", "-o", tmp_path / "out", code=4)
    assert "q.llmq: expected SHA-256" in p.stderr and not (tmp_path / "out").exists()
    old = hashlib.sha256(packed.read_bytes()).hexdigest()
    sums = (tmp_path / "hub/SHA256SUMS").read_text().replace(old, hashlib.sha256(bad).hexdigest())
    (tmp_path / "hub/SHA256SUMS").write_text(sums)
    p = llmq("pull", f"dir:{tmp_path}/hub", "-o", tmp_path / "out", code=4)
    assert "llmq verify says no" in p.stderr and names(tmp_path) == ["bad.llmq", "hub"]


def test_names_in_other_scripts_are_folders_and_no_files(llmq, draft, tmp_path):
    src = tmp_path / "소설 😀"
    shutil.copytree(draft, src)
    (src / "메모.txt").write_text("안녕")
    p = llmq("publish", src, f"dir:{tmp_path}/허브-😀")
    assert "메모.txt: is no file of a model, and stays here" in p.stderr
    assert "\n# model\n" in (tmp_path / "허브-😀/README.md").read_text()
    llmq("pull", f"dir:{tmp_path}/허브-😀", "-o", tmp_path / "받은-😀")
    assert files(tmp_path / "받은-😀") == files(tmp_path / "허브-😀") and llmq.json("verify", tmp_path / "받은-😀")["ok"]
    llmq("publish", src, f"dir:{tmp_path}/x", "--name", "소설", code=2)
    for name in ("LICENSE-한글", "메모.json", "additional_chat_templates/한글.jinja"):
        (src / name).parent.mkdir(exist_ok=True)
        (src / name).write_text("{}")
        assert f"found '{name}'" in llmq("publish", src, f"dir:{tmp_path}/x", code=3).stderr
        (src / name).unlink()
    assert not (tmp_path / "x").exists()


def test_sums_of_two_models_are_refused_before_anything_is_fetched(llmq, packed, tmp_path):
    hub = tmp_path / "hub"
    llmq("publish", packed, f"dir:{hub}")
    shutil.copy(hub / "q.llmq", hub / "r.llmq")
    with open(hub / "SHA256SUMS", "a") as f:
        f.write(f"{hashlib.sha256(packed.read_bytes()).hexdigest()}  r.llmq\n")
    p = llmq("pull", f"dir:{hub}", "-o", tmp_path / "out", code=3)
    assert "expected one model, found q.llmq and r.llmq" in p.stderr and names(tmp_path) == ["hub"]


def test_what_was_laid_beside_a_published_model_stays(llmq, packed, tmp_path):
    hub = tmp_path / "hub"
    llmq("publish", packed, f"dir:{hub}")
    for name in ("mine.llmq", "mine.gguf", "results.json"):
        (hub / name).write_text("years of work")
        for args in (("publish", packed, f"dir:{hub}"), ("pull", f"dir:{hub}", "-o", hub)):
            llmq(*args, code=2)
        p = llmq("publish", packed, f"dir:{hub}", code=2)
        assert f"holds {name}, which llmq did not write there: move that elsewhere" in p.stderr
        assert (hub / name).read_text() == "years of work"
        (hub / name).unlink()
    llmq("publish", packed, f"dir:{hub}")


def test_a_folder_of_somebody_stays(llmq, packed, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    for args in (("publish", packed, f"dir:{tmp_path}/mine"), ("pull", f"dir:{tmp_path}/none", "-o", tmp_path / "mine")):
        p = llmq(*args, code=2)
        assert "holds thesis.txt" in p.stderr
    llmq("pull", f"dir:{tmp_path}/none", "-o", tmp_path / "out", code=3)
    assert names(tmp_path) == ["mine"] and names(tmp_path / "mine") == ["thesis.txt"]


@pytest.mark.parametrize("args,says", [
    (["ftp://x"], "target: expected dir:PATH, oci://"), (["dir:"], "target: expected"),
    (["oci://Host/UPPER:x"], "oci://: expected REGISTRY"), (["oci://h/a/../b:x"], "oci://: expected REGISTRY"),
    (["oci://localhost:99999/a:x"], "oci://: expected a port of 1..65535, found 'localhost:99999'"),
    (["oci://h:5x/a:x"], "oci://: expected a port"), (["oci://[::1]/a:" + "t" * 129], "oci://: expected a tag of 1 to 128"),
    (["oci://h/a@sha256:12"], "oci://: expected REGISTRY"), (["oci://u:p@h/a:x"], "oci://: expected REGISTRY"),
    (["git:--upload-pack=x"], "git: expected an address"), (["git:ext::sh -c x"], "git: expected an address"),
    (["git:x.git", "--branch", "-f"], "--branch: expected a branch"),
    (["dir:x", "--branch", "b"], "--branch: expected a target that begins with git:"),
    (["git:x", "--username", "u"], "--username: expected a target that begins with oci:"),
    (["oci://h/a", "--username", "u"], "--username and --password-file"),
    (["oci://h/a", "--plain-http", "--ca", "f"], "--plain-http does not go with --ca"),
])
def test_wrong_usage_is_told(llmq, packed, tmp_path, args, says):
    p = llmq("pull", *args, "-o", tmp_path / "out", code=2)
    assert says in p.stderr and not names(tmp_path)


# ---- registries ----
@pytest.fixture(scope="module")
def docker_registry(tmp_path_factory):
    program = shutil.which("docker-registry")
    if not program:
        pytest.skip("docker-registry is not installed (Debian's package of that name)")
    folder = tmp_path_factory.mktemp("registry")
    (folder / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n"
        "http: {addr: '127.0.0.1:0'}\n")
    with open(folder / "log", "w") as log:
        p = subprocess.Popen([program, "serve", folder / "config.yml"], stdout=log, stderr=log)
    said = until(lambda: re.search(r"listening on 127\.0\.0\.1:(\d+)", (folder / "log").read_text()),
                 lambda: (folder / "log").read_text())
    yield f"localhost:{said[1]}"
    p.terminate()
    p.wait()


def test_a_real_registry_takes_it_in_pieces_and_gives_it_back(llmq, packed, docker_registry, tmp_path):
    target = f"oci://{docker_registry}/me/novels:v1"
    r = llmq.json("publish", packed, target, "--chunk-size", "150K")
    assert r["sent"] == r["bytes"] + 2  # and the empty config
    assert llmq.json("publish", packed, target)["sent"] == 0
    back = llmq.json("pull", target, "-o", tmp_path / "out")
    assert back["digest"] == r["digest"] and (tmp_path / "out/q.llmq").read_bytes() == packed.read_bytes()
    by_digest = f"oci://{docker_registry}/me/novels@{r['digest']}"
    assert llmq.json("pull", by_digest, "-o", tmp_path / "out")["files"] == back["files"]
    assert not packed.with_name("q.llmq.resume-publish").exists()


def run_killed(llmq, registry, *args):
    """Start it, let the registry kill it; how it ended."""
    p = llmq.start(*args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    registry.pid = p.pid
    registry.ready.set()
    return p.wait(LIMIT)


def test_an_upload_killed_at_any_request_is_completed_by_the_next_run(llmq, packed, tmp_path):
    model = tmp_path / "q.llmq"
    shutil.copy(packed, model)
    want, n = None, 1
    while True:
        r = Registry()
        r.kill_at_request(n, half=n % 2 == 0)
        args = ("publish", model, f"oci://{r.host}/me/m:x", "--chunk-size", "600K")
        killed = run_killed(llmq, r, *args) == -signal.SIGKILL
        if killed:
            assert "x" not in r.manifests or n > 30, "a half artifact has a name"
            had = sum(map(len, r.blobs.values())) + sum(map(len, r.uploads.values()))
            r.fault = lambda h: False
            out = llmq.json(*args)
            assert out["sent"] <= out["bytes"] + 2 - had, "what was there is not sent again"
        want = want or set(r.blobs)
        assert set(r.blobs) == want and "x" in r.manifests and not model.with_name("q.llmq.resume-publish").exists()
        r.close()
        if not killed:
            break
        n += 4 if n > 4 else 1
    assert n > 20


def test_somebodys_file_with_the_name_of_the_state_stays(llmq, packed, registry, tmp_path):
    model, mine = tmp_path / "q.llmq", tmp_path / "q.llmq.resume-publish"
    shutil.copy(packed, model)
    for text in ("years of work", '{"repository": "mine"}'):
        mine.write_text(text)
        p = llmq("publish", model, f"oci://{registry.host}/me/m:x", code=2)
        assert "is in the way" in p.stderr and mine.read_text() == text
    mine.write_text('{"repository": "http://elsewhere/me/m", "sha256": "", "location": "/x"}')  # of another publish
    llmq("publish", model, f"oci://{registry.host}/me/m:x")
    assert not mine.exists()


def test_a_file_put_into_what_is_pulled_stays(llmq, packed, tmp_path):
    llmq("publish", packed, f"dir:{tmp_path}/hub")
    (tmp_path / "out.resume/sub").mkdir(parents=True)
    (tmp_path / "out.resume/sub/x").write_text("years of work")
    args = ("pull", f"dir:{tmp_path}/hub", "-o", tmp_path / "out")
    assert "out.resume: holds sub" in llmq(*args, code=2).stderr
    (tmp_path / "out.resume/sub").rename(tmp_path / "sub")
    llmq(*args)
    llmq(*args)  # over itself
    assert files(tmp_path / "out") == files(tmp_path / "hub") and names(tmp_path) == ["hub", "out", "sub"]


def test_a_pull_killed_at_any_request_goes_on(llmq, packed, registry, tmp_path):
    target = f"oci://{registry.host}/me/m:x"
    llmq("publish", packed, target)
    n = 1
    while True:
        out = tmp_path / f"out{n}"
        registry.kill_at_request(n, half=True)
        killed = run_killed(llmq, registry, "pull", target, "-o", out) == -signal.SIGKILL
        assert killed != out.exists()
        if not killed:
            break
        registry.fault = lambda h: False
        registry.log.clear()
        llmq("pull", target, "-o", out)
        assert (out / "q.llmq").read_bytes() == packed.read_bytes() and not out.with_name(out.name + ".resume").exists()
        n += 1
    assert n == 10  # manifest and 8 files
    ranges = [h["Range"] for _, _, h in registry.log if "Range" in h]
    assert len(ranges) == 1 and ranges[0] != "bytes=0-", "half of the last file was there"


def test_a_connection_that_drops_within_a_piece_is_taken_up_where_it_ended(llmq, packed, registry, tmp_path):
    dropped = []

    def drop(h):
        if h.command != "PATCH" or len(dropped) == 2 or int(h.headers["Content-Length"]) < 100000:
            return False
        session = h.path.split("?")[0].rsplit("/", 1)[1]
        if int(h.headers["Content-Range"].split("-")[0]) != len(registry.uploads[session]):
            return False  # libcurl itself tries a fresh connection once: 416
        data = h.body(70000)
        registry.uploads[session] += data
        dropped.append(len(data))
        h.cut()
        return True

    registry.fault = drop
    target = f"oci://{registry.host}/me/m:x"
    llmq("publish", packed, target, "--chunk-size", "500K")
    starts = [int(h["Content-Range"].split("-")[0]) for m, _, h in registry.log if m == "PATCH"]
    assert dropped == [70000, 70000] and 70000 in starts and 140000 in starts
    cuts = []

    def short(h):
        if h.command != "GET" or "/blobs/" not in h.path or cuts:
            return False
        data = registry.blobs[h.path.rsplit("/", 1)[1]]
        if len(data) < 100000:
            return False
        cuts.append(1)
        h.reply(200, data[:90000], Content_Length=str(len(data)))
        h.cut()
        return True

    registry.fault = short
    llmq("pull", target, "-o", tmp_path / "out")
    assert cuts and "bytes=90000-" in [h.get("Range") for _, _, h in registry.log]
    assert (tmp_path / "out/q.llmq").read_bytes() == packed.read_bytes()


def big_blob(registry, h):
    """The bytes of a large blob that is asked for, else None."""
    data = registry.blobs.get(h.path.rsplit("/", 1)[1]) if h.command == "GET" and "/blobs/sha256" in h.path else None
    return data if data and len(data) > 100000 else None


@pytest.mark.parametrize("what,code,says", [
    ("other bytes", 4, "expected SHA-256"), ("more bytes", 3, "found more"),
    ("always short", 1, "bytes, found 0"), ("refusal", 1, "answered 403 (DENIED: no)"),
    ("loop", 3, "at most 5 redirects"), ("redirect to a file", 3, "expected an https address"),
    ("manifest of another digest", 4, "manifest: expected digest"),
])
def test_a_registry_that_lies_is_caught(llmq, packed, registry, tmp_path, what, code, says):
    target = f"oci://{registry.host}/me/m:x"
    llmq("publish", packed, target)

    def fault(h):
        if what.startswith("manifest"):
            if "/manifests/" in h.path:
                h.reply(200, registry.manifests["x"], Docker_Content_Digest="sha256:" + 64 * "0")
            return "/manifests/" in h.path
        data = big_blob(registry, h)
        if data is None:
            return False
        if what == "other bytes":
            h.reply(200, b"x" + data[1:])
        elif what == "more bytes":
            h.reply(200, data + b"x")
        elif what == "always short":
            h.reply(200, b"")
        elif what == "refusal":
            h.reply(403, b'{"errors":[{"code":"DENIED","message":"no"}]}')
        elif what == "loop":
            h.reply(307, Location=h.path)
        else:
            h.reply(307, Location="file:///etc/passwd")
        return True

    registry.fault = fault
    p = llmq("pull", target, "-o", tmp_path / "out", code=code)
    assert says in p.stderr and not (tmp_path / "out").exists()
    registry.fault = lambda h: False
    llmq("pull", target, "-o", tmp_path / "out")
    assert (tmp_path / "out/q.llmq").read_bytes() == packed.read_bytes() and names(tmp_path) == ["out"]


def short(h, status, data, announced, **more):
    """Of what was announced only `data`; then the connection ends."""
    h.reply(status, data, Content_Length=str(announced), Retry_After="0", **more)
    h.cut()


@pytest.mark.parametrize("what,says", [
    ("a byte more each time", "transfer closed"), ("206 unasked", "Content-Range: expected"),
    ("from the beginning each time", "started over 5 times"), ("416 in between", "started over 5 times"),
    ("a byte now and then", "less than 1024 bytes a second for 1 s"), ("silence", "less than 1024 bytes"),
    ("headers without end", "less than 1024 bytes"), ("no token", "asked for a token, answered 503"),
])
def test_a_registry_that_never_comes_to_an_end_is_given_up(llmq, packed, registry, tmp_path, what, says):
    """Each would go on for ever: what counts as progress, and how often all begins anew, is bounded."""
    target = f"oci://{registry.host}/me/m:x"
    registry.put("x", [("q.llmq", bytes(12 << 20))])
    over, turn = threading.Event(), [0]

    def fault(h):
        if what == "no token":
            h.reply(503 if h.path.startswith("/token") else 401, Retry_After="0",
                    WWW_Authenticate=f'Bearer realm="http://{registry.host}/token"')
            return True
        data = big_blob(registry, h)
        if data is None:
            return False
        turn[0] += 1
        asked = re.fullmatch(r"bytes=(\d+)-", h.headers.get("Range", ""))
        at, n = int(asked[1]) if asked else 0, len(data)
        of = f"bytes {at}-{n - 1}/{n}"
        if what == "a byte more each time":
            short(h, 206 if asked else 200, data[at:at + 1], n - at, Content_Range=of)
        elif what == "206 unasked":
            short(h, 206, data[at:at + 1000], n - at, Content_Range=of)
        elif what == "from the beginning each time":
            short(h, 200, data[:turn[0] * 5 << 18], n)
        elif what == "416 in between":
            h.reply(416) if asked else short(h, 200, data[:turn[0] * 5 << 18], n)
        else:
            h.wfile.write(b"HTTP/1.1 200 OK\r\nRetry-After: 0\r\n")
            if what == "a byte now and then":
                h.wfile.write(b"Content-Length: %d\r\n\r\n" % n)
            word = {"silence": b"", "headers without end": b"A: b\r\n"}.get(what, b"x")
            while not over.wait(0.05):
                h.wfile.write(word)
            h.cut()
        return True

    registry.fault = fault
    p = llmq("pull", target, "-o", tmp_path / "out", "--timeout", "1", code=3 if what == "206 unasked" else 1)
    over.set()
    assert says in p.stderr and not (tmp_path / "out").exists()
    assert len(registry.log) <= 16
    registry.fault = lambda h: False
    llmq("publish", packed, target)
    llmq("pull", target, "-o", tmp_path / "out")
    assert (tmp_path / "out/q.llmq").read_bytes() == packed.read_bytes()


@pytest.mark.parametrize("what", ["forgets it", "says less"])
def test_a_registry_that_loses_what_it_took_is_given_up(llmq, packed, registry, tmp_path, what):
    """The first piece is taken and the second not, again and again."""
    patches = []

    def fault(h):
        session = h.path.split("?")[0].rsplit("/", 1)[1]
        if h.command != "PATCH" or not registry.uploads.get(session):
            return False
        patches.append(1)
        if what == "forgets it":
            del registry.uploads[session]
        else:
            registry.uploads[session] = b""
        h.reply(404 if what == "forgets it" else 503, Retry_After="0")
        return True

    registry.fault = fault
    p = llmq("publish", packed, f"oci://{registry.host}/me/m:x", "--chunk-size", "1M", code=3 if what == "forgets it" else 1)
    assert "asked for a piece of a blob, answered" in p.stderr and len(patches) <= 6


def test_a_measurement_of_other_weights_is_refused(llmq, packed, draft, tmp_path):
    """eval says which weights it measured; what they were converted to has the same values."""
    text = ROOT / "tests/golden/text/novels-heldout-100w.txt"
    own, other = (llmq.json("eval", m, "--text", text, "--ctx", "64", "--windows", "2") for m in (packed, draft))
    assert own["weights_xxh3"] != other["weights_xxh3"] and len(own["weights_xxh3"]) == 32
    for name, doc in (("own", own), ("other", other)):
        (tmp_path / f"{name}.json").write_text(json.dumps(doc))
    llmq("publish", packed, f"dir:{tmp_path}/a", "--eval", tmp_path / "own.json")
    assert json.loads((tmp_path / "a/provenance.json").read_text())["weights_xxh3"] == own["weights_xxh3"]
    p = llmq("publish", packed, f"dir:{tmp_path}/b", "--eval", tmp_path / "other.json", code=3)
    assert "other.json: expected a measurement of the weights that are published" in p.stderr
    assert other["weights_xxh3"] in p.stderr and not (tmp_path / "b").exists()
    llmq("convert", packed, "-o", tmp_path / "hf", "--to", "compressed-tensors")
    llmq("publish", tmp_path / "hf", f"dir:{tmp_path}/c", "--eval", tmp_path / "own.json")
    assert json.loads((tmp_path / "c/provenance.json").read_text())["evaluations"][0]["perplexity"] == own["perplexity"]


def test_measurements_stay_with_the_weights_that_they_are_of(llmq, packed, tmp_path):
    """As docs/publishing.md has it: weights in a pulled folder exchanged, its sums removed, published again."""
    (tmp_path / "held-out.json").write_text(json.dumps({"perplexity": 12.5, "tokens": 100, "ctx": 512}))
    other, one, two = tmp_path / "other.llmq", tmp_path / "one", tmp_path / "two"
    llmq("quantize", ROOT / "models/novels-1m", "-o", other, "--method", "rtn", "--bits", "2")
    llmq("publish", packed, f"dir:{one}", "--eval", tmp_path / "held-out.json")
    of_one = json.loads((one / "provenance.json").read_text())
    p = llmq("publish", one, f"dir:{two}")
    assert "other weights" not in p.stderr
    assert json.loads((two / "provenance.json").read_text()) == of_one
    shutil.copytree(one, tmp_path / "changed")
    shutil.copy(other, tmp_path / "changed" / packed.name)
    (tmp_path / "changed/SHA256SUMS").unlink()
    p = llmq("publish", tmp_path / "changed", f"dir:{tmp_path / 'three'}")
    assert "provenance.json: is of other weights" in p.stderr
    got = json.loads((tmp_path / "three/provenance.json").read_text())
    assert "held-out" in [e["name"] for e in of_one["evaluations"]]
    assert "held-out" not in [e["name"] for e in got["evaluations"]] and got["recipe"] != of_one["recipe"]
    assert "12.5" not in (tmp_path / "three/README.md").read_text()


def test_an_upload_whose_address_is_gone_begins_anew(llmq, packed, registry, tmp_path):
    """The first run is told of a host that answers nobody, and fails; the next does not ask there for ever."""
    model = tmp_path / "m.llmq"
    shutil.copy(packed, model)
    target = f"oci://{registry.host}/me/m:gone"

    def fault(h):
        if h.command != "POST":
            return False
        h.reply(202, b"", Location="http://127.0.0.1:1/dead")
        return True

    registry.fault = fault
    llmq("publish", model, target, "--timeout", 5, code=1)
    assert "127.0.0.1:1/dead" in (tmp_path / "m.llmq.resume-publish").read_text()
    registry.fault = lambda h: False
    llmq("publish", model, target, "--timeout", 5)
    assert os.listdir(tmp_path) == ["m.llmq"]


def test_a_lying_range_leads_to_the_whole(llmq, packed, registry, tmp_path):
    target = f"oci://{registry.host}/me/m:x"
    llmq("publish", packed, target)
    (tmp_path / "out.resume").mkdir()
    begun(tmp_path / "out.resume", "out", "q.llmq")
    (tmp_path / "out.resume/q.llmq").write_bytes(packed.read_bytes()[:1000])

    def fault(h):
        data = big_blob(registry, h)
        if data is None or "Range" not in h.headers:
            return False
        h.reply(206, data[5000:], Content_Range=f"bytes 5000-{len(data) - 1}/{len(data)}")
        return True

    registry.fault = fault
    p = llmq("pull", target, "-o", tmp_path / "out")
    assert "Content-Range: expected bytes 1000-" in p.stderr
    assert (tmp_path / "out/q.llmq").read_bytes() == packed.read_bytes()
    # and what an earlier run left of something else does not stay
    (tmp_path / "two.resume").mkdir()
    begun(tmp_path / "two.resume", "two", "q.llmq", "old.safetensors")
    (tmp_path / "two.resume/q.llmq").write_bytes(b"something else")
    (tmp_path / "two.resume/old.safetensors").write_bytes(b"of another artifact")
    registry.fault = lambda h: False
    llmq("pull", target, "-o", tmp_path / "two")
    assert files(tmp_path / "two") == files(tmp_path / "out")


def test_what_is_gone_on_with_is_nobody_elses(llmq, packed, tmp_path):
    """A model that is called as what an interrupted pull leaves; a file of it that has a second name."""
    made, out = tmp_path / "out.resume", tmp_path / "out"
    for path in (made, tmp_path / "other"):
        llmq("publish", packed, f"dir:{path}")
    before = files(made)
    for source in (tmp_path / "other", made):
        assert "out.resume: " in llmq("pull", f"dir:{source}", "-o", out, code=2).stderr
        assert files(made) == before and not out.exists()
    shutil.rmtree(made)
    made.mkdir()
    begun(made, "out", "q.llmq")
    mine = tmp_path / "mine"
    mine.write_bytes(b"years of work")
    os.link(mine, made / "q.llmq")
    llmq("pull", f"dir:{tmp_path / 'other'}", "-o", out)
    assert mine.read_bytes() == b"years of work" and files(out) == files(tmp_path / "other")


def test_a_redirect_does_not_carry_the_password_along(llmq, packed, tmp_path):
    r, other = Registry(auth="basic"), Registry()
    (tmp_path / "password").write_text("s3cret\n")
    me = ("--username", "me", "--password-file", tmp_path / "password")
    target = f"oci://{r.host}/me/m:x"
    llmq("publish", packed, target, *me)
    p = llmq("pull", target, "-o", tmp_path / "out", code=1)
    assert "answered 401: it wants --username" in p.stderr
    other.blobs = r.blobs

    def away(h):
        if h.command != "GET" or "/blobs/" not in h.path or "Authorization" not in h.headers:
            return False
        h.reply(307, Location=f"http://{other.host}{h.path}")
        return True

    r.fault = away
    llmq("pull", target, "-o", tmp_path / "out", *me)
    assert len(other.log) == 8 and not any("Authorization" in h for _, _, h in other.log)
    r.close()
    other.close()


def test_tokens_are_fetched_and_fetched_again(llmq, packed, tmp_path, monkeypatch):
    r = Registry(auth="token")
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/config.json").write_text(json.dumps({"auths": {r.host: {"auth": "bWU6czNjcmV0"}}}))
    patches = []

    def expire(h):
        if h.command == "PATCH" and not patches and "Bearer" in h.headers.get("Authorization", ""):
            patches.append(1)
            r.tokens = {"none", "of", "these"}
        return False

    r.fault = expire
    llmq("publish", packed, f"oci://{r.host}/me/m:x", "--chunk-size", "1M")
    asked = [p for _, p, _ in r.log if p.startswith("/token")]
    assert patches and len(asked) == 2
    assert asked[0] == "/token?service=test%20service&scope=repository%3Ame%2Fm%3Apull%2Cpush"
    llmq("pull", f"oci://{r.host}/me/m:x", "-o", tmp_path / "out")
    r.close()


def layer(name, data=b"x", **more):
    return {"mediaType": "x/y", "digest": digest(data), "size": len(data),
            "annotations": {"org.opencontainers.image.title": name}, **more}


@pytest.mark.parametrize("why,layers", [
    ("up", [layer("../config.json")]), ("up inside", [layer("a/../../config.json")]),
    ("absolute", [layer("/tmp/config.json")]), ("another folder", [layer("sub/config.json")]),
    ("a dot", [layer("./config.json")]), ("backslash", [layer("..\\config.json")]),
    ("hidden", [layer(".config.json")]), ("the list", [layer(".llmq-files")]),
    ("no file of a model", [layer("run.sh")]), ("nothing", [layer("")]), ("newline", [layer("a\n.json")]),
    ("long", [layer(300 * "a" + ".json")]), ("an option", [layer("-rf.json")]),
    ("twice", [layer("config.json"), layer("config.json")]), ("twice but for case", [layer("a.json"), layer("A.json")]),
    ("no name", [layer("a.json", annotations={})]), ("negative", [layer("a.json", size=-1)]),
    ("half a byte", [layer("a.json", size=0.5)]), ("text", [layer("a.json", size="1")]),
    ("beyond counting", [layer("a.json", size=1e300)]), ("sum beyond", [layer(f"a{i}.json", size=2**53 - 1) for i in range(2000)]),
    ("digest of another kind", [layer("a.json", digest="md5:00")]), ("digest with a path", [layer("a.json", digest="sha256:../" + 61 * "0")]),
    ("no files", []), ("too many", [layer(f"{i}.json") for i in range(5000)]),
])
def test_hostile_manifests_are_refused(llmq, registry, tmp_path, why, layers):
    registry.blobs[digest(b"x")] = b"x"
    registry.put("x", layers)
    (tmp_path / "d").mkdir()
    llmq("pull", f"oci://{registry.host}/me/m:x", "-o", tmp_path / "d/out", code=3)
    assert not names(tmp_path / "d") and names(tmp_path) == ["d"], why


def test_more_than_the_disk_has_is_refused_before_it_is_fetched(llmq, registry, tmp_path):
    registry.put("x", [layer("a.llmq", size=2**50)])
    p = llmq("pull", f"oci://{registry.host}/me/m:x", "-o", tmp_path / "out", code=1)
    assert "expected room for" in p.stderr and len(registry.log) == 1 and not names(tmp_path)


# ---- TLS ----
def test_https_is_checked(llmq, packed, tmp_path):
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    import ssl
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-keyout", tmp_path / "key", "-out", tmp_path / "cert", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    r = Registry()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    r.server.socket = context.wrap_socket(r.server.socket, server_side=True)
    target = f"oci://{r.host}/me/m:x"
    llmq("publish", packed, target, "--ca", tmp_path / "cert")
    llmq("pull", target, "-o", tmp_path / "out", "--ca", tmp_path / "cert")
    p = llmq("pull", target.replace("localhost", "127.0.0.1"), "-o", tmp_path / "no", "--ca", tmp_path / "cert", code=1)
    assert "certificate" in p.stderr or "subject" in p.stderr
    # whom the environment trusts is trusted everywhere
    hub = {**os.environ, "HF_ENDPOINT": f"https://{r.host}", "HF_HUB_CACHE": str(tmp_path / "cache")}
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        hub.pop(name, None)
    p = llmq("pull", "hf:org/name", "-o", tmp_path / "no", env=hub, code=1)
    assert "certificate" in p.stderr
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        p = llmq("pull", "hf:org/name", "-o", tmp_path / "no", env={**hub, name: str(tmp_path / "cert")}, code=None)
        assert p.returncode and "certificate" not in p.stderr, p.stderr
        p = llmq("chat", f"https://{r.host}", input="hi\n", env={**hub, name: str(tmp_path / "cert")}, code=None)
        assert p.returncode and "certificate" not in p.stderr, p.stderr
    p = llmq("chat", f"https://{r.host}", input="hi\n", env=hub, code=None)
    assert p.returncode and "certificate" in p.stderr, p.stderr
    p = llmq("pull", "hf:org/name", "-o", tmp_path / "no", env={**hub, "SSL_CERT_FILE": "/nowhere"}, code=1)
    assert "SSL_CERT_FILE: /nowhere: expected a file of certificates" in p.stderr
    # a token asked for over http would show the password to all
    r.fault = lambda h: h.reply(401, WWW_Authenticate='Bearer realm="http://localhost:1/token"') or True
    p = llmq("pull", target, "-o", tmp_path / "no", "--ca", tmp_path / "cert", code=3)
    assert "expected an https address" in p.stderr
    r.close()


# ---- git ----
@pytest.fixture
def bare(tmp_path, monkeypatch):
    if not shutil.which("git") or not shutil.which("git-lfs"):
        pytest.skip("git and git-lfs are not both installed")
    monkeypatch.setenv("HOME", str(tmp_path))  # nobody's name, nobody's settings
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    subprocess.run(["git", "init", "-q", "--bare", tmp_path / "remote.git"], check=True)
    return tmp_path / "remote.git"


def git(repo, *args, **more):
    return subprocess.run(["git", "-C", repo, *args], check=True, capture_output=True, text=True, **more).stdout


def test_git_holds_the_weights_in_lfs_and_gives_them_back(llmq, packed, bare, tmp_path):
    r = llmq.json("publish", packed, f"git:{bare}", "--branch", "release/1")
    assert git(bare, "rev-parse", "release/1").strip() == r["digest"]
    assert git(bare, "show", "release/1:q.llmq").startswith("version https://git-lfs.github.com/spec/v1\n")
    assert llmq.json("publish", packed, f"git:{bare}", "--branch", "release/1")["sent"] == 0
    p = llmq("pull", f"git:{bare}", "-o", tmp_path / "out", code=3)
    assert "expected a branch main" in p.stderr
    back = llmq.json("pull", f"git:{bare}", "--branch", "release/1", "-o", tmp_path / "out")
    assert back["digest"] == r["digest"] and (tmp_path / "out/q.llmq").read_bytes() == packed.read_bytes()
    # a second version on top of the first, and a plain clone gets it through git-lfs
    llmq("publish", packed, f"git:{bare}", "--branch", "release/1", "--name", "other")
    assert git(bare, "rev-list", "--count", "release/1") == "2\n"
    subprocess.run(["git", "-c", "filter.lfs.smudge=git-lfs smudge -- %f", "-c", "filter.lfs.process=git-lfs filter-process",
                    "clone", "-q", "-b", "release/1", f"file://{bare}", tmp_path / "clone"], check=True)
    assert (tmp_path / "clone/q.llmq").read_bytes() == packed.read_bytes()
    assert sorted(names(tmp_path)) == ["clone", "out", "remote.git"]


def until_free(llmq, *args):
    """Run it; a git whose llmq was killed may still be ending, and holds the folder meanwhile."""
    def done():
        p = llmq(*args, code=None)
        assert p.returncode == 0 or "another process is at work" in p.stderr, p.stderr
        return p.returncode == 0
    until(done)


def test_git_push_and_pull_killed_at_any_time_are_completed(llmq, packed, bare, tmp_path):
    model = tmp_path / "q.llmq"
    shutil.copy(packed, model)
    for ms in (60, 120, 180, 260, 400):
        p = llmq.start("publish", model, f"git:{bare}", "--name", f"v{ms}", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(ms / 1000)
        p.kill()
        p.wait()
        head = subprocess.run(["git", "-C", bare, "rev-parse", "-q", "--verify", "main"], capture_output=True, text=True).stdout
        if head:
            llmq("pull", f"git:{bare}", "-o", tmp_path / "seen")
    until_free(llmq, "publish", model, f"git:{bare}")
    for ms in (40, 90, 150, 220):
        p = llmq.start("pull", f"git:{bare}", "-o", tmp_path / "out", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(ms / 1000)
        p.kill()
        p.wait()
    until_free(llmq, "pull", f"git:{bare}", "-o", tmp_path / "out")
    assert (tmp_path / "out/q.llmq").read_bytes() == packed.read_bytes()
    assert not [n for n in names(tmp_path) if "resume" in n]


def test_a_git_that_outlives_its_llmq_keeps_the_folder(llmq, packed, bare, tmp_path, monkeypatch):
    """A git of a killed llmq that is still at work would bring back what the next one removes."""
    model, tools = tmp_path / "q.llmq", tmp_path / "bin"
    shutil.copy(packed, model)
    tools.mkdir()
    (tools / "git").write_text(f"""#!/bin/sh
trap '' TERM
case " $* " in *" push -q "*) touch {tmp_path}/pushing; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; mkdir -p "{model}.resume-publish-git/lfs/tmp" ;; esac
exec {shutil.which("git")} "$@"
""")
    (tools / "git").chmod(0o755)
    with monkeypatch.context() as m:
        m.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        p = llmq.start("publish", model, f"git:{bare}", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until((tmp_path / "pushing").exists)
        p.kill()
        p.wait()
    try:
        assert "another process is at work" in llmq("publish", model, f"git:{bare}", code=1).stderr
    finally:
        (tmp_path / "go").touch()
    until_free(llmq, "publish", model, f"git:{bare}")
    assert sorted(names(tmp_path)) == ["bin", "go", "pushing", "q.llmq", "remote.git"]


@pytest.mark.parametrize("at,says", [("ls-remote", "expected an end within 10 s"),
                                     ("fetch", "less than 1024 bytes a second for 10 s")])
def test_a_git_that_gets_nowhere_is_given_up(llmq, packed, bare, tmp_path, monkeypatch, at, says):
    """Also one that does not listen to a SIGTERM."""
    llmq("publish", packed, f"git:{bare}")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "git").write_text(f"""#!/bin/sh
case " $* " in *" {at} "*) trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.1; done ;; esac
exec {shutil.which("git")} "$@"
""")
    (tools / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    assert says in llmq("pull", f"git:{bare}", "-o", tmp_path / "out", "--timeout", "1", code=1).stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_locks_of_a_killed_git_are_no_obstacle(llmq, packed, bare, tmp_path):
    """Whatever lies in the folder, but large files: HEAD.lock had blocked every further run."""
    llmq("publish", packed, f"git:{bare}")
    left = tmp_path / "out.resume-git"
    (left / "refs/heads").mkdir(parents=True)
    for name in ("llmq-scratch", "HEAD", "HEAD.lock", "packed-refs.lock", "refs/heads/main.lock", "anything"):
        (left / name).touch()
    llmq("pull", f"git:{bare}", "-o", tmp_path / "out")
    assert (tmp_path / "out/q.llmq").read_bytes() == packed.read_bytes() and not left.exists()


def test_the_mark_of_gits_folder_goes_last(llmq, packed, bare, tmp_path):
    """A folder without it is not llmq's: a kill before all the rest had gone would block every further run."""
    (tmp_path / "shim").mkdir()
    shim = Shim(tmp_path / "shim")
    shim.set(Fault(CHANGE), traced=True)
    llmq("publish", packed, f"git:{bare}", env=shim.env())
    gone = [c.path for c in shim.log() if c.name in ("unlink", "rmdir") and c.result == 0 and "resume-publish-git" in c.path]
    mark, folder = gone[-2:]
    assert mark == f"{folder}/llmq-scratch" and len(gone) > 10 and gone.count(mark) == 1
    shim.close()


def test_a_model_of_others_in_git_is_pulled_without_what_is_no_model(llmq, draft, bare, tmp_path):
    work = tmp_path / "work"
    subprocess.run(["git", "init", "-q", "-b", "main", work], check=True)
    for p in draft.iterdir():
        shutil.copy(p, work)
    (work / "run.sh").write_text("#!/bin/sh\n")
    (work / "sub").mkdir()
    (work / "sub/config.json").write_text("{}")

    def commit():
        git(work, "add", "-A")
        git(work, "-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "x")
        git(work, "push", "-q", bare, "HEAD:main")

    commit()
    p = llmq("pull", f"git:{bare}", "-o", tmp_path / "out")
    assert "run.sh: is no file of a model" in p.stderr and files(tmp_path / "out") == files(draft)
    (work / "extra.json").symlink_to("/etc/passwd")
    commit()
    p = llmq("pull", f"git:{bare}", "-o", tmp_path / "two", code=3)
    assert "extra.json: expected a plain file, found a link" in p.stderr
    (work / "extra.json").unlink()
    (work / "extra.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:../../x\nsize 1\n")
    commit()
    p = llmq("pull", f"git:{bare}", "-o", tmp_path / "two", code=3)
    assert "expected a pointer of git-lfs, found a broken one" in p.stderr
    assert names(tmp_path) == ["out", "remote.git", "work"]


def test_modules_of_an_embedding_model_travel_along(llmq, bare, tmp_path):
    """Pooling and dense layers, in folders of their own: into a folder and through git, and whole again."""
    model = tmp_path / "m"
    shutil.copytree(ROOT / "tests/golden/heads/embeddinggemma", model, ignore=shutil.ignore_patterns("expected.safetensors"))
    want = {str(p.relative_to(model)): p.read_bytes() for p in model.rglob("*") if p.is_file()}
    for target in (f"dir:{tmp_path}/hub", f"git:{bare}"):
        out = tmp_path / target[:3]
        llmq("publish", model, target, "--license", "mit")
        llmq("pull", target, "-o", out)
        assert {n: (out / n).read_bytes() for n in want if n != "README.md"} == {n: b for n, b in want.items() if n != "README.md"}
        assert "not checked" not in llmq("verify", out).stderr
    (out / "2_Dense/config.json").write_text("{}")
    assert "2_Dense/config.json" in llmq("verify", out, code=4).stderr
