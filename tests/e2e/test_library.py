"""The library: installed under a prefix, built against, and driven from C and from Python's ctypes."""
import ctypes as C
import json
import os
import shutil
import subprocess
import threading

import pytest

from conftest import ROOT

MODEL = ROOT / "models" / "novels-6m"
EXAMPLES = ("generate", "chat", "quantize")
PROMPT = "The old house stood"


def call(*args, **how):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=300, **how)


def as_built():
    """The options that ./llmq was built with: it must not be linked anew, as other tests run it at the same time."""
    flags = (ROOT / "build/cuda-flags").read_text()
    nvcc = [f"NVCC={os.environ['NVCC']}"] if "NVCC" in os.environ else ["NVCC="] if "left it out" in flags else []
    return nvcc + ["WERROR=-Werror"] * ("-Werror" in flags)


def make(*args):
    before = (ROOT / "llmq").stat().st_mtime_ns
    r = call("make", "-s", "-C", ROOT, *as_built(), *args)
    assert (ROOT / "llmq").stat().st_mtime_ns == before, "llmq was linked anew"
    assert r.returncode == 0, r.stderr[-2000:]
    return r


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    p = tmp_path_factory.mktemp("prefix")
    make("install", f"PREFIX={p}")
    return p


def test_debian_packages_hold_what_install_writes(prefix):
    """packaging/debian/*.install name files of `make install`, and between them all of them."""
    named = [line.split()[0] for f in (ROOT / "packaging/debian").glob("*.install") for line in f.read_text().splitlines()]
    found = set()
    for pattern in named:
        here = pattern.removeprefix("usr/").replace("lib/*/", "lib/")  # there the folder of the architecture
        paths = {p for f in prefix.glob(here) for p in ([f] if not f.is_dir() else f.rglob("*")) if not p.is_dir()}
        assert paths, f"{pattern} names nothing"
        assert not paths & found, f"{pattern} is in two packages"
        found |= paths
    assert found == {p for p in prefix.rglob("*") if not p.is_dir()}


@pytest.fixture(scope="module")
def flags(prefix):
    def ask(*args):
        env = {**os.environ, "PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig"}
        r = call("pkg-config", *args, "llmq", env=env)
        assert r.returncode == 0, r.stderr
        return r.stdout.split()
    return ask


def test_install_has_everything_and_uninstall_leaves_nothing(prefix, tmp_path):
    files = {str(f.relative_to(prefix)) for f in prefix.rglob("*") if not f.is_dir()}
    assert {"bin/llmq", "include/llmq.h", "lib/libllmq.a", "lib/libllmq.so", "lib/libllmq.so.0",
            "lib/pkgconfig/llmq.pc", "share/man/man1/llmq.1", "share/man/man1/llmq-quantize.1",
            "share/bash-completion/completions/llmq", "share/zsh/site-functions/_llmq",
            "share/fish/vendor_completions.d/llmq.fish"} <= files
    there = [f"DESTDIR={tmp_path}", "PREFIX=/opt/x", "LIBDIR=/opt/x/lib64"]
    make("install", *there)
    assert (tmp_path / "opt/x/lib64/libllmq.so.0").exists()
    make("uninstall", *there)
    assert not [f for f in tmp_path.rglob("*") if not f.is_dir()]
    make("lib")  # llmq.pc of the usual prefix again


@pytest.mark.parametrize("std", ["c99", "c11", "c++11", "c++17"])
def test_the_header_is_clean(std, tmp_path):
    f = tmp_path / "x.c"
    f.write_text('#include <llmq.h>\nint main(void) { return llmq_abi() != LLMQ_ABI; }\n')
    compiler = ["c++", "-x", "c++"] if "+" in std else ["cc"]
    r = call(*compiler, f"-std={std}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", ROOT / "include",
             "-c", "-o", tmp_path / "x.o", f)
    assert r.returncode == 0, r.stderr


def test_only_the_interface_can_be_seen(prefix):
    shared = call("nm", "-D", "--defined-only", prefix / "lib/libllmq.so.0").stdout.splitlines()
    names = {line.split()[-1].split("@")[0] for line in shared if " A " not in line}
    static = call("nm", "-g", "--defined-only", prefix / "lib/libllmq.a").stdout.splitlines()
    inside = {line.split()[-1] for line in static if len(line.split()) == 3}
    header = (ROOT / "include/llmq.h").read_text()
    assert names == inside and all(n.startswith("llmq_") and f"{n}(" in header for n in names)
    assert "libllmq.so.0" in call("readelf", "-d", prefix / "lib/libllmq.so.0").stdout


@pytest.mark.parametrize("how", ["shared", "static"])
def test_the_examples_build_and_run(how, prefix, flags, tmp_path):
    env = {**os.environ, "LD_LIBRARY_PATH": f"{prefix}/lib"}
    for name in EXAMPLES:
        libs = flags("--libs") if how == "shared" else \
            ["-Wl,-Bstatic", *flags("--libs"), "-Wl,-Bdynamic",
             *[x for x in flags("--static", "--libs") if x != "-lllmq"]]
        r = call("cc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", ROOT / "examples" / f"{name}.c",
                 "-o", tmp_path / name, *flags("--cflags"), *libs)
        assert r.returncode == 0, r.stderr
        linked = call("ldd", tmp_path / name, env=env).stdout
        assert ("libllmq.so.0" in linked) == (how == "shared")
    r = call(tmp_path / "generate", MODEL, PROMPT, env=env)
    want = call(ROOT / "llmq", "run", MODEL, "-p", PROMPT, "-n", "64", *PLAIN).stdout
    assert r.returncode == 0 and r.stdout == want
    r = call(tmp_path / "generate", tmp_path / "nothing", PROMPT, env=env)
    assert r.returncode == 1 and "nothing" in r.stderr and not r.stdout
    r = call(tmp_path / "chat", MODEL, env=env, input="Good morning\nAnd now?\n")
    assert r.returncode == 0 and r.stdout.count("\n") >= 2
    r = call(tmp_path / "quantize", MODEL, tmp_path / "q.llmq", '{"method": "rtn", "bits": 4}', env=env)
    assert r.returncode == 0 and json.loads(r.stdout)["method"] == "rtn"
    assert call(ROOT / "llmq", "verify", tmp_path / "q.llmq").returncode == 0


# ---- ctypes ----
class Error(C.Structure):
    _fields_ = [("code", C.c_int32), ("text", C.c_char * 508)]


class Options(C.Structure):
    _fields_ = [("size", C.c_size_t), ("options", C.c_char_p), ("progress", C.c_void_p), ("user", C.c_void_p)]


class Sampling(C.Structure):
    _fields_ = [("size", C.c_size_t), ("prompt", C.c_int32), ("ignore_eos", C.c_int32),
                ("max_tokens", C.c_int64), ("min_tokens", C.c_int64), ("temperature", C.c_double),
                ("top_p", C.c_double), ("min_p", C.c_double), ("top_k", C.c_int64), ("seed", C.c_uint64),
                ("repetition_penalty", C.c_double), ("presence_penalty", C.c_double),
                ("frequency_penalty", C.c_double), ("stop", C.POINTER(C.c_char_p)), ("n_stop", C.c_size_t)]


class Usage(C.Structure):
    _fields_ = [("size", C.c_size_t), ("finish", C.c_int32), ("reserved", C.c_int32),
                ("prompt_tokens", C.c_int64), ("cached_tokens", C.c_int64), ("output_tokens", C.c_int64)]


class Answer(C.Structure):
    _fields_ = [("size", C.c_size_t), ("id", C.c_uint64), ("status", C.c_int32), ("reserved", C.c_int32),
                ("json", C.c_void_p), ("n", C.c_size_t)]


ON_TEXT = C.CFUNCTYPE(C.c_int32, C.c_void_p, C.POINTER(C.c_char), C.c_size_t)
ON_PROGRESS = C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_char_p, C.c_double, C.c_double)
ON_MESSAGE = C.CFUNCTYPE(None, C.c_void_p, C.c_int32, C.c_char_p)
EUSAGE, EVALUE, ENOENT, EINTR = 5, 8, 10, 12


class Failed(Exception):
    def __init__(self, e):
        super().__init__(e.text.decode())
        self.code = e.code


class Llmq:
    """A thin binding, as a user would write it."""

    def __init__(self, path):
        self.lib = C.CDLL(str(path))
        self.lib.llmq_version.restype = C.c_char_p
        self.lib.llmq_free.argtypes = [C.c_void_p]
        self.lib.llmq_close.argtypes = [C.c_void_p]

    def call(self, name, *args):
        e = Error()
        code = getattr(self.lib, name)(*args, C.byref(e))
        assert code == e.code
        if code:
            raise Failed(e)

    def open(self, path, options=None, progress=None):
        m = C.c_void_p()
        f = ON_PROGRESS(progress) if progress else None
        o = Options(C.sizeof(Options), json.dumps(options).encode() if options else None,
                    C.cast(f, C.c_void_p) if f else None, None)
        self.call("llmq_open", C.byref(m), str(path).encode(), C.byref(o))
        return m

    def generate(self, m, prompt, on_text=None, **how):
        out, u = [], Usage(C.sizeof(Usage))

        def take(_user, text, n):
            out.append(text[:n])
            return on_text(text[:n]) if on_text else 0
        s = Sampling(size=C.sizeof(Sampling), **how)
        self.call("llmq_generate", m, prompt.encode(), C.byref(s), ON_TEXT(take), None, C.byref(u))
        return b"".join(out).decode(), u

    def submit(self, m, route, body):
        text, i = json.dumps(body).encode(), C.c_uint64()
        self.call("llmq_submit", m, route.encode(), text, C.c_size_t(len(text)), C.byref(i))
        return i.value

    def poll(self, m, which=0, timeout=60000):
        a = Answer(C.sizeof(Answer))
        self.call("llmq_poll", m, C.c_uint64(which), C.byref(a), C.c_int64(timeout))
        if not a.id:
            return None
        text = C.string_at(a.json, a.n)
        self.lib.llmq_free(a.json)
        return a.id, a.status, json.loads(text)

    def array(self, name, kind, m, *args):
        p, n = C.POINTER(kind)(), C.c_size_t()
        self.call(name, m, *args, C.byref(p), C.byref(n))
        out = C.string_at(p, n.value) if kind is C.c_char else p[:n.value]
        self.lib.llmq_free(p)
        return out

    def make(self, name, src, dst, options, progress=None):
        text = C.c_void_p()
        self.call(name, str(src).encode(), str(dst).encode() if dst else None, json.dumps(options).encode(),
                  ON_PROGRESS(progress) if progress else None, None, C.byref(text))
        doc = json.loads(C.string_at(text))
        self.lib.llmq_free(text)
        return doc


@pytest.fixture(scope="module")
def lib(prefix):
    return Llmq(prefix / "lib" / "libllmq.so.0")


@pytest.fixture(scope="module")
def model(lib):
    m = lib.open(MODEL, {"threads": 2, "max_num_seqs": 8})
    yield m
    lib.lib.llmq_close(m)


# Nothing of the model's generation_config.json, as llmq_generate.
PLAIN = ("--temperature", "0", "--top-p", "1", "--min-p", "0", "--top-k", "0", "--repetition-penalty", "1")


def run(prompt, n, *more):
    more = (*PLAIN, *more)
    return json.loads(call(ROOT / "llmq", "run", MODEL, "-p", prompt, "-n", n, "--json", *more).stdout)


def test_an_answer_is_that_of_the_command(lib, model, capfd):
    assert lib.lib.llmq_abi() == 0 and lib.lib.llmq_version()
    text, u = lib.generate(model, PROMPT, max_tokens=24)
    want = run(PROMPT, 24)
    assert text == want["text"] and u.output_tokens == len(want["ids"]) and u.finish == 2
    text, _ = lib.generate(model, PROMPT, max_tokens=24, temperature=0.9, top_p=0.95, seed=11)
    assert text == run(PROMPT, 24, "--temperature", "0.9", "--top-p", "0.95", "--seed", "11")["text"]
    stop = (C.c_char_p * 1)(text.split()[2].encode())
    cut, u = lib.generate(model, PROMPT, max_tokens=24, temperature=0.9, top_p=0.95, seed=11, stop=stop, n_stop=1)
    assert text.startswith(cut) and len(cut) < len(text) and u.finish == 1
    assert capfd.readouterr() == ("", "")


def test_a_callback_ends_an_answer(lib, model):
    seen = []
    with pytest.raises(Failed) as e:
        lib.generate(model, PROMPT, on_text=lambda t: seen.append(t) or len(seen) == 3, max_tokens=400)
    assert e.value.code == EINTR and len(seen) == 3


def test_requests_are_the_servers(lib, model):
    ids = [lib.submit(model, "/v1/completions", {"prompt": f"{PROMPT} {i}", "max_tokens": 8, "temperature": 0})
           for i in range(6)]
    last = lib.poll(model, ids[-1])
    assert last[:2] == (ids[-1], 200) and last[2]["choices"][0]["text"]
    assert {lib.poll(model)[0] for _ in ids[:-1]} == set(ids[:-1])
    assert lib.poll(model, timeout=0) is None and lib.poll(model, ids[0], timeout=30) is None
    bad = lib.submit(model, "/v1/completions", {"prompt": 7})
    assert lib.poll(model, bad)[1] == 400
    with pytest.raises(Failed, match="no such route") as e:
        lib.submit(model, "/nothing", {})
    assert e.value.code == EVALUE


def test_text_ids_and_embeddings(lib, model):
    text = "It was a dark night, naïve".encode()
    ids = lib.array("llmq_tokenize", C.c_int32, model, text, C.c_size_t(len(text)), 0)
    assert len(ids) > 4 and len(lib.array("llmq_tokenize", C.c_int32, model, text, C.c_size_t(len(text)), 1)) >= len(ids)
    back = lib.array("llmq_detokenize", C.c_char, model, (C.c_int32 * len(ids))(*ids), C.c_size_t(len(ids)), 0)
    assert back.strip() == text
    with pytest.raises(Failed) as e:
        lib.array("llmq_detokenize", C.c_char, model, (C.c_int32 * 1)(1 << 30), C.c_size_t(1), 0)
    assert e.value.code == EVALUE
    v = lib.array("llmq_embed", C.c_float, model, text, C.c_size_t(len(text)))
    i = lib.submit(model, "/v1/embeddings", {"input": text.decode()})
    assert v == pytest.approx(lib.poll(model, i)[2]["data"][0]["embedding"], rel=1e-7)
    assert sum(x * x for x in v) == pytest.approx(1, abs=1e-5)
    with pytest.raises(Failed) as e:
        lib.array("llmq_embed", C.c_float, model, b"\xff", C.c_size_t(1))
    assert e.value.code == EVALUE


def test_threads_and_two_models_answer_as_one(lib, model):
    other = lib.open(MODEL, {"threads": 1})
    want = {i: run(f"{PROMPT} {i}", 16)["text"] for i in range(3)}
    wrong = []

    def ask(m, i):
        for _ in range(3):
            if lib.generate(m, f"{PROMPT} {i}", max_tokens=16)[0] != want[i]:
                wrong.append(i)
    threads = [threading.Thread(target=ask, args=(m, i)) for i in want for m in (model, other)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    lib.lib.llmq_close(other)
    assert not wrong


def test_quantizing_is_the_commands(lib, tmp_path, capfd):
    args = ["--method", "gptq", "--bits", "3", "--calib-samples", "4", "--calib-len", "64", "--skip", "o_proj"]
    options = {"method": "gptq", "bits": 3, "calib-samples": 4, "calib_len": 64, "skip": ["o_proj"]}
    seen, said = [], []
    listen = ON_MESSAGE(lambda _u, level, text: said.append((level, text)))
    lib.lib.llmq_listen(listen, None)
    with pytest.raises(Failed) as e:  # stopped in the middle
        lib.make("llmq_quantize", MODEL, tmp_path / "b.llmq", options,
                 lambda _u, what, done, total: seen.append(done / total) or done / total > 0.3)
    assert e.value.code == EINTR and seen and not (tmp_path / "b.llmq").exists()
    doc = lib.make("llmq_quantize", MODEL, tmp_path / "b.llmq", options, lambda *_: 0)
    lib.lib.llmq_listen(ON_MESSAGE(), None)
    assert doc["method"] == "gptq" and any(level == 1 for level, _ in said)
    told = call(ROOT / "llmq", "inspect", tmp_path / "b.llmq", "--json")
    blas = json.loads(told.stdout)["provenance"]["blas"]  # the command may take a better core than this process has
    r = call(ROOT / "llmq", "quantize", MODEL, "-o", tmp_path / "a.llmq", *args, env=os.environ | {"OPENBLAS_CORETYPE": blas})
    assert r.returncode == 0, r.stderr
    assert (tmp_path / "a.llmq").read_bytes() == (tmp_path / "b.llmq").read_bytes()
    assert lib.make("llmq_quantize", MODEL, None, {"dry-run": True, "method": "rtn"})["tensors"]
    assert capfd.readouterr() == ("", "")


def test_converting_is_the_commands(lib, tmp_path):
    doc = lib.make("llmq_convert", MODEL, tmp_path / "x.llmq", {"to": "llmq"})
    assert doc["bit_exact"] and (tmp_path / "x.llmq").exists()


@pytest.mark.parametrize("options, word", [
    ({"bits": 5}, "--bits"), ({"bit": 4}, "bits"), ({"bits": [4]}, "one value"), ({"sym": "yes"}, "no value"),
    ({"bits": True}, "a value"), ({"out": "x"}, "argument of the call"), ({"json": True}, "command line"),
    ({"method": "rtn", "damp": 0.1}, "--damp"), ([], "an object")])
def test_wrong_options_are_refused(lib, options, word, tmp_path):
    with pytest.raises(Failed, match=word) as e:
        lib.make("llmq_quantize", MODEL, tmp_path / "x.llmq", options)
    assert e.value.code == EUSAGE and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name, args", [
    ("llmq_generate", (None, None, None, None, None)),
    ("llmq_submit", (None, b"{}", C.c_size_t(2), C.byref(C.c_uint64()))),
    ("llmq_submit", (b"/tokenize", None, C.c_size_t(2), C.byref(C.c_uint64()))),
    ("llmq_tokenize", (None, C.c_size_t(3), 0, C.byref(C.c_void_p()), C.byref(C.c_size_t()))),
    ("llmq_embed", (None, C.c_size_t(3), C.byref(C.c_void_p()), C.byref(C.c_size_t()))),
    ("llmq_logits", (None, C.c_size_t(3), 1, C.byref(C.c_void_p()), C.byref(C.c_size_t()))),
])
def test_null_is_refused(lib, model, name, args):
    with pytest.raises(Failed, match="found NULL") as e:
        lib.call(name, model, *args)
    assert e.value.code == EUSAGE


def test_no_path_is_refused(lib):
    with pytest.raises(Failed, match="found NULL"):
        lib.call("llmq_quantize", None, b"x.llmq", None, None, None, None)
    with pytest.raises(Failed, match="found NULL"):
        lib.call("llmq_open", C.byref(C.c_void_p()), None, None)


def test_errors_come_back_and_nothing_is_printed(lib, model, capfd, tmp_path):
    with pytest.raises(Failed) as e:
        lib.open(tmp_path / "nothing.llmq")
    assert e.value.code == ENOENT
    with pytest.raises(Failed, match="in use"):
        lib.open(MODEL, {"kernels": "ref"})
    with pytest.raises(Failed) as e:
        lib.open(MODEL, None, lambda *_: 1)
    assert e.value.code == EINTR
    with pytest.raises(Failed, match="temperature"):
        lib.generate(model, PROMPT, temperature=-1)
    with pytest.raises(Failed, match="size") as e:
        lib.call("llmq_generate", model, b"x", C.byref(Sampling(size=1)), None, None, None)
    assert e.value.code == EUSAGE
    assert capfd.readouterr() == ("", "")


# ---- what install makes of the option tables ----
@pytest.mark.skipif(not shutil.which("groff"), reason="groff is not installed")
def test_man_pages_render_without_a_warning(prefix):
    for page in sorted((prefix / "share/man/man1").iterdir()):
        r = call("groff", "-ww", "-man", "-Tutf8", "-P-cbou", page)
        assert r.returncode == 0 and not r.stderr and "NAME" in r.stdout, (page, r.stderr)


@pytest.mark.parametrize("line, want", [
    (["llmq", "quan"], "quantize"), (["llmq", "quantize", "--meth"], "--method"),
    (["llmq", "convert", "--dtype", "bf"], "bf16"), (["llmq", "quantize", "--no-cl"], "--no-clip")])
def test_bash_completes(prefix, line, want):
    words = " ".join(f"'{w}'" for w in line)
    script = f"source {prefix}/share/bash-completion/completions/llmq; COMP_WORDS=({words}); " \
             f"COMP_CWORD={len(line) - 1}; _llmq; echo \"${{COMPREPLY[@]}}\""
    r = call("bash", "-c", script)
    assert want in r.stdout.split() and not r.stderr


@pytest.mark.parametrize("shell, args", [("zsh", ["-n"]), ("fish", ["--no-execute"])])
def test_other_shells_can_read_theirs(prefix, shell, args):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    name = {"zsh": "zsh/site-functions/_llmq", "fish": "fish/vendor_completions.d/llmq.fish"}[shell]
    r = call(shell, *args, prefix / "share" / name)
    assert r.returncode == 0, r.stderr
