"""Where results go: links, devices, places in the source, endings; what is said where there is no result."""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

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
        real.write_bytes(b"GGUF, an old one")
    for command in (["convert", draft, "-o", link, "--to", "gguf"], ["convert", draft, "-o", link, "--to", "llmq"],
                    ["quantize", draft, "-o", link, "--method", "rtn"],
                    ["logits", draft, "--ids", "1,2", "-o", link], ["logits", draft, "--ids", "1,2", "-o", link]):
        if command[0] == "logits" and real.read_bytes()[:4] == b"LLMQ":
            real.unlink()  # a model is not replaced by logits
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
    (tmp_path / "file").write_text("")
    p = llmq("convert", draft, "-o", tmp_path / "file", "--to", "safetensors", code=2)
    assert "expected a folder's name, found a file" in p.stderr


@pytest.mark.parametrize("place", ["a pipe", "a link to a pipe", "/dev/null", "/dev/stdout"])
def test_what_is_neither_file_nor_folder_is_refused_at_the_start(llmq, draft, tmp_path, place):
    """A pipe without a reader would be waited for, and what is patched at the end cannot be."""
    os.mkfifo(tmp_path / "a pipe")
    (tmp_path / "a link to a pipe").symlink_to("a pipe")
    before = names(tmp_path)
    out = tmp_path / place  # an absolute place stays
    for command in (*(["convert", draft, "--to", to, "-o", out] for to in ("llmq", "gguf", "safetensors", "gptq")),
                    ["quantize", draft, "--method", "rtn", "-o", out], ["logits", draft, "--ids", "1", "-o", out],
                    ["quantize", draft, "--method", "rtn", "-o", tmp_path / "q", "--report", out],
                    ["inspect", draft, "--html", out], ["pull", f"dir:{draft}", "-o", out],
                    ["publish", draft, f"dir:{out}"], ["batch", draft, draft / "config.json", out]):
        p = llmq(*command, code=2)
        assert "expected a regular file or nothing there, found a pipe" in p.stderr, command
        assert p.stderr.count("\n") == 1 and names(tmp_path) == before, command


def contents(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def made(llmq, draft, tmp_path_factory):
    """A checkpoint, one in shards, a published file of each kind."""
    top = tmp_path_factory.mktemp("made")
    shutil.copytree(draft, top / "src")
    (top / "src/LICENSE").write_text("mine\n")
    (top / "src/additional_chat_templates").mkdir()
    (top / "src/additional_chat_templates/rag.jinja").write_text("x")
    llmq("convert", draft, "-o", top / "shards", "--to", "safetensors", "--shard-size", "1M")
    llmq("convert", draft, "-o", top / "q.llmq", "--to", "llmq")
    llmq("convert", draft, "-o", top / "q.gguf", "--to", "gguf")
    for ending in ("llmq", "gguf"):
        llmq("publish", top / f"q.{ending}", f"dir:{top / ending}", "--license-file", ROOT / "LICENSE")
    llmq("publish", top / "src", f"dir:{top / 'hub'}")
    return top


@pytest.mark.parametrize("given", ["llmq", "llmq/q.llmq", "gguf", "gguf/q.gguf", "hub", "hub/model.safetensors", "src",
                                   "src/model.safetensors", "shards", "shards/model-00001-of-00002.safetensors"])
def test_no_output_takes_the_place_of_a_part_of_its_source(llmq, made, tmp_path, given):
    """Whatever the option and the part; nor does a folder in which the source lies."""
    top = tmp_path / "top"
    shutil.copytree(made, top)
    src = top / given
    folder = src if src.is_dir() else src.parent
    before = contents(top)
    parts = [p for p in folder.rglob("*") if p.is_file() and p.name != ".llmq-files"]
    assert len(parts) >= 4
    for part in parts:
        commands = [["inspect", src, "--html", part]]
        if "model-0" not in given:  # a shard alone is no model
            commands += [["quantize", src, "--method", "rtn", "-o", top / "new", "--report", part],
                         ["convert", src, "--to", "llmq", "-o", part], ["logits", src, "--ids", "1", "-o", part],
                         ["batch", src, ROOT / "README.md", part]]
        for command in commands:
            p = llmq(*command, code=2)
            assert "source" in p.stderr or "model" in p.stderr or "is read" in p.stderr, command
    for to in ("safetensors", "gptq") if "model-0" not in given else ():
        llmq("convert", src, "--to", to, "--allow-requantize" if to == "gptq" else "--dtype=f32", "-o", folder, code=2)
    if not src.is_dir():
        llmq("publish", src, f"dir:{folder}", code=4 if "model-0" in given else 2)
    assert contents(top) == before


@pytest.mark.parametrize("given,name,refused", [
    ("src", "page.html", False), ("src", "notes.txt", False), ("src", "LICENSE.txt", True), ("src", "report.json", True),
    ("src", "more.md", True), ("src", "x.safetensors", True), ("src", "x.SAFETENSORS", True), ("src", "x.llmq", False),
    ("src/model.safetensors", "report.json", True), ("gguf", "page.html", False), ("gguf", "x.gguf", True),
    ("gguf/q.gguf", "x.GGUF", True), ("gguf/q.gguf", "report.json", True), ("q.gguf", "x.gguf", False),
    ("q.gguf", "report.json", False), ("hub", "x.llmq", True)])
def test_new_names_beside_the_source(llmq, made, tmp_path, given, name, refused):
    top = tmp_path / "top"
    shutil.copytree(made, top)
    src = top / given
    out = (src if src.is_dir() else src.parent) / name
    p = llmq("inspect", src, "--html", out, code=2 if refused else 0)
    assert out.exists() != refused
    assert not refused or "outside the source's folder" in p.stderr


def test_what_a_server_or_a_chat_writes_takes_no_part_of_its_model_either(llmq, made, tmp_path):
    src = tmp_path / "src"
    shutil.copytree(made / "src", src)
    before = contents(src)
    assert "outside the source's folder" in llmq("serve", src, "--port", "0", "--access-log", src / "config.json", code=2).stderr
    p = llmq("chat", src, input=f"/save {src}/config.json\n/save {tmp_path}/talk.json\n/quit\n")
    assert "outside the source's folder" in p.stderr and (tmp_path / "talk.json").exists()
    assert contents(src) == before


def test_somebodys_file_is_not_replaced_by_a_model(llmq, draft, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    for command in (["convert", draft, "--to", "llmq"], ["convert", draft, "--to", "gguf"],
                    ["quantize", draft, "--method", "rtn"]):
        assert "which is there and is none" in llmq(*command, "-o", notes, code=2).stderr
        assert notes.read_text() == "mine"
        fake = tmp_path / ("fake.gguf" if "gguf" in command else "fake.llmq")
        fake.write_text("years of work")
        assert "which is there and is none" in llmq(*command, "-o", fake, code=2).stderr
        assert fake.read_text() == "years of work"
        for name in ("model.v2", "empty.txt", "plain"):  # new, empty, without an ending: as ever
            (tmp_path / "empty.txt").write_text("")
            llmq(*command, "-o", tmp_path / name)
            llmq(*command, "-o", tmp_path / name)
            (tmp_path / name).unlink()


@pytest.mark.parametrize("out, to, says", [
    ("x.gguf", "llmq", "a .llmq file, found 'x.gguf'"), ("x.llmq", "gguf", "a .gguf file, found 'x.llmq'"),
    ("x.safetensors", "gguf", "a .gguf file"), ("x.GGUF", "llmq", "a .llmq file, found 'x.GGUF'"),
    ("x.llmq", "safetensors", "safetensors is a folder"),
    ("x.gguf", "gptq", "gptq is a folder")])
def test_an_ending_of_another_format_is_refused(llmq, draft, tmp_path, monkeypatch, out, to, says):
    p = llmq("convert", draft, "-o", out, "--to", to, code=2)
    assert says in p.stderr and not (ROOT / out).exists()


def test_quantize_writes_no_other_ending(llmq, draft, tmp_path):
    p = llmq("quantize", draft, "-o", tmp_path / "q.safetensors", "--method", "rtn", code=2)
    assert "expected the name of a .llmq file" in p.stderr and not names(tmp_path)
    p = llmq("quantize", draft, "-o", tmp_path / "q.gguf", "--method", "rtn", code=2)
    assert "made by --to gguf:MIX" in p.stderr and not names(tmp_path)


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


@pytest.mark.parametrize("command", [
    ["inspect", "MODEL", "--html", "FILE"], ["logits", "MODEL", "--ids", "1,2", "-o", "FILE"],
    ["quantize", "MODEL", "-o", "NEW", "-m", "rtn", "--report", "FILE"], ["convert", "MODEL", "-o", "FILE", "--to", "llmq"],
], ids=lambda c: c[0])
@pytest.mark.parametrize("name", ["NOTES", ".bashrc", "thesis.html"])
def test_somebodys_file_of_another_kind_stays(llmq, draft, tmp_path, command, name):
    file = tmp_path / name
    file.write_text("years of work, more than eight bytes")
    places = {"MODEL": draft, "FILE": file, "NEW": tmp_path / "new.llmq"}
    p = llmq(*[places.get(x, x) for x in command], code=2)
    assert "which is there and is none" in p.stderr
    assert file.read_text() == "years of work, more than eight bytes" and names(tmp_path) == [name]


def test_an_earlier_result_is_replaced(llmq, draft, tmp_path):
    for args in (["inspect", draft, "--html", tmp_path / "a.html"], ["logits", draft, "--ids", "1,2", "-o", tmp_path / "b"],
                 ["convert", draft, "-o", tmp_path / "c", "--to", "llmq"]):
        llmq(*args)
        llmq(*args)


def test_what_a_model_published_in_its_own_place_leaves_out_stays(llmq, draft, tmp_path):
    hub = tmp_path / "hub"
    llmq("publish", draft, f"dir:{hub}")
    (hub / "mine.llmq").write_text("years of work")
    assert "holds mine.llmq" in llmq("publish", hub, f"dir:{hub}", code=2).stderr
    for name in (".llmq-files", "SHA256SUMS"):  # also where lists name it
        with (hub / name).open("a") as f:
            f.write((hashlib.sha256(b"years of work").hexdigest() + "  ") * (name == "SHA256SUMS") + "mine.llmq\n")
    p = llmq("publish", hub, f"dir:{hub}", code=2)
    assert "found mine.llmq" in p.stderr and (hub / "mine.llmq").read_text() == "years of work"


def test_the_ways_out_that_refusals_name_lead_on(llmq, draft, tmp_path):
    hub = tmp_path / "hub"
    llmq("publish", draft, f"dir:{hub}")
    (hub / "generation_config.json").write_text('{"temperature": 0.5}')  # changed on purpose
    assert "remove SHA256SUMS" in llmq("publish", hub, f"dir:{hub}", code=4).stderr
    (hub / "SHA256SUMS").unlink()
    llmq("publish", hub, f"dir:{hub}")
    assert json.loads((hub / "generation_config.json").read_text()) == {"temperature": 0.5}
    assert llmq.json("verify", hub)["ok"]
    (hub / ".llmq-files").unlink()  # as of an llmq before there was a list
    p = llmq("publish", draft, f"dir:{hub}", code=2)
    assert "llmq did not make it (no .llmq-files in it): expected another name, or remove it first" in p.stderr
    shutil.rmtree(hub)
    llmq("publish", draft, f"dir:{hub}")


def test_names_that_no_folder_was_meant_to_have_are_refused(llmq, draft, tmp_path):
    for where, says in (("~/hub", "a ~ that the shell has left"), ("~", "a ~ that the shell has left"),
                        ("x.gguf", "that of a .gguf file"), ("x.llmq", "that of a .llmq file")):
        for command in (["publish", draft, f"dir:{where}"], ["pull", f"dir:{draft}", "-o", where],
                        ["convert", draft, "--to", "safetensors", f"--out={where}"]):
            p = subprocess.run([llmq.path, *map(str, command)], cwd=tmp_path, capture_output=True, text=True)
            assert p.returncode == 2 and says in p.stderr, (command, p.stderr)
    assert not names(tmp_path)


def test_a_name_in_handovers_comments_stays_in_its_line(llmq, draft, tmp_path):
    name = tmp_path / "x\ntouch pwned\n#.llmq"
    llmq("convert", draft, "-o", name, "--to", "llmq")
    for engine in ("vllm", "sglang", "llama.cpp"):
        after = llmq("handover", engine, name).stdout.split("# what differs")
        files = after[0].split("# files that it reads")
        assert all(line.startswith("#") for part in files[1:] + after[1:] for line in part.splitlines()[1:] if line)


@pytest.fixture
def nobody(llmq):
    """Runs llmq as a user who may not do everything, in a folder of theirs."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("to become another user takes root and setpriv")
    with tempfile.TemporaryDirectory() as d:
        here = pathlib.Path(d)
        here.chmod(0o755)
        shutil.copy(llmq.path, here / "llmq")
        shutil.copytree(ROOT / "models/novels-1m", here / "m")
        (here / "theirs").mkdir()
        os.chown(here / "theirs", 65534, 65534)

        def run(*args, code=0):
            p = subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", here / "llmq",
                                *map(str, args)], cwd=here / "theirs", capture_output=True, text=True,
                               env={**os.environ, "HOME": str(here / "theirs")})
            assert p.returncode == code, p.stderr
            return p
        run.here = here
        yield run


def test_a_write_protected_folder_is_refused_before_anything_is_made(nobody):
    theirs = nobody.here / "theirs"
    again = ["convert", "../m", "-o", "u", "--to", "safetensors"]
    nobody(*again)
    before = sorted(theirs.rglob("*"))
    (theirs / "u").chmod(0o555)
    p = nobody(*again, code=1)
    assert "u: Permission denied: expected a folder that may be replaced" in p.stderr
    assert sorted(theirs.rglob("*")) == before
    (theirs / "u").chmod(0o755)
    nobody(*again)
    assert sorted(theirs.rglob("*")) == before


def test_a_model_in_a_folder_that_may_not_be_written_goes_to_git(nobody):
    if not shutil.which("git-lfs"):
        pytest.skip("no git-lfs")
    theirs = nobody.here / "theirs"
    subprocess.run(["git", "init", "-q", "--bare", theirs / "g.git"], check=True)
    subprocess.run(["chown", "-R", "65534:65534", theirs / "g.git"], check=True)
    p = nobody("publish", "../m", "git:g.git")
    assert "Permission denied: an interrupted upload will start over" in p.stderr
    nobody("pull", "git:g.git", "-o", "back")
    assert (theirs / "back/model.safetensors").read_bytes() == (nobody.here / "m/model.safetensors").read_bytes()
    assert sorted(p.name for p in nobody.here.iterdir()) == ["llmq", "m", "theirs"]


def test_a_name_that_grows_too_long_leaves_no_folder(llmq, draft, tmp_path):
    name = "a" * 253
    llmq("publish", draft, f"dir:{tmp_path / 'hub'}")
    for command in (["convert", draft, "--to", "safetensors", "-o", tmp_path / "x/y" / name],
                    ["publish", draft, f"dir:{tmp_path / 'x/y' / name}"],
                    ["pull", f"dir:{tmp_path / 'hub'}", "-o", tmp_path / "x/y" / name]):
        assert "expected a folder's name of at most 24" in llmq(*command, code=2).stderr
        assert os.listdir(tmp_path) == ["hub"]
