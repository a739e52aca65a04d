"""The Python module over the library (packaging/python), and the wheel that holds it."""
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
import zipfile

import pytest

from conftest import ROOT

np = pytest.importorskip("numpy")
LIBRARY = ROOT / os.environ.get("BUILD", "build") / "libllmq.so.0"


@pytest.fixture(scope="module")
def llmq_module(llmq):
    if "ASAN_OPTIONS" in os.environ:
        pytest.skip("a library with AddressSanitizer cannot be loaded into a Python without")
    os.environ["LLMQ_LIBRARY"], os.environ["LLMQ_PROGRAM"] = str(LIBRARY), llmq.path
    sys.path.insert(0, str(ROOT / "packaging/python"))
    import llmq as module
    yield module
    sys.path.remove(str(ROOT / "packaging/python"))
    del os.environ["LLMQ_LIBRARY"], os.environ["LLMQ_PROGRAM"]


@pytest.fixture(scope="module")
def loaded(llmq_module, packed):
    with llmq_module.load(packed, threads=2, max_model_len=256) as m:
        yield m


def test_answers_come_in_pieces_and_are_the_programs(llmq, loaded, packed):
    g = loaded.generate("The old house", max_tokens=200)  # long: who is slow gets several tokens at once
    pieces = list(g)
    told = llmq("run", packed, "The old house", "--max-tokens", "200", "--temperature", "0", "--threads", "2").stdout
    assert len(pieces) > 1 and "".join(pieces) == g.text and told.rstrip("\n") == g.text
    short = loaded.generate("The old house", max_tokens=24)
    assert g.text.startswith(short.result())
    assert (short.finish_reason, short.output_tokens, short.prompt_tokens) == ("length", 24, 4)
    warm = dict(max_tokens=12, temperature=0.9, top_p=0.9, seed=5)
    assert loaded.generate("Once", **warm).result() == loaded.generate("Once", **warm).result()
    assert loaded.generate("The old house", max_tokens=64, stop=["little"]).result() == g.text[:g.text.index("little")]


def test_numbers_are_arrays(llmq, loaded, packed, tmp_path):
    ids = loaded.tokenize("The old house")
    assert ids.dtype == np.int32 and loaded.detokenize(ids) == "The old house"
    logits = loaded.logits(ids)
    assert logits.dtype == np.float32 and logits.shape[0] == len(ids) and not logits.flags.owndata
    llmq("logits", packed, "--ids", ",".join(map(str, ids)), "-o", tmp_path / "l.safetensors")
    raw = (tmp_path / "l.safetensors").read_bytes()
    assert raw.endswith(logits.tobytes())
    assert loaded.generate("The old house", max_tokens=1).result() == loaded.detokenize([int(logits[-1].argmax())])
    v = loaded.embed("house")
    assert v.dtype == np.float32 and abs(np.linalg.norm(v) - 1) < 1e-5
    status, doc = loaded.request("/v1/completions", {"prompt": "a", "max_tokens": 2, "logprobs": 1})
    assert status == 200 and doc["usage"]["completion_tokens"] == 2
    assert loaded.request("/v1/completions", {"prompt": 5.5})[0] == 400
    kept = loaded.logits([1])  # what is still referred to stays
    del logits
    assert np.isfinite(kept).all() and loaded.tokenize("").shape == (0,)


def test_a_conversation_goes_through_the_template(llmq, loaded, packed):
    said = loaded.chat([{"role": "user", "content": "Hello"}], max_tokens=6)
    assert said.result() == loaded.chat("Hello", max_tokens=6).result()
    doc = loaded.request("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6,
                                                  "temperature": 0})[1]
    assert doc["choices"][0]["message"]["content"] == said.text


def test_threads_share_a_model(loaded):
    prompts = [f"The {w}" for w in ("sea", "house", "king", "old dog", "girl", "moon")]
    alone = [loaded.generate(p, max_tokens=12).result() for p in prompts]
    got = [None] * len(prompts)

    def one(i):
        got[i] = loaded.generate(prompts[i], max_tokens=12).result()

    workers = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert got == alone


def test_what_is_wrong_is_an_exception_of_its_kind(llmq_module, loaded, tmp_path):
    with pytest.raises(FileNotFoundError) as e:
        llmq_module.load(tmp_path / "none")
    assert isinstance(e.value, llmq_module.NotFound) and str(tmp_path) in str(e.value)
    with pytest.raises(llmq_module.UsageError, match="thread"):
        llmq_module.load(ROOT / "models/novels-1m", thread=2)
    with pytest.raises(llmq_module.InvalidValue, match=r"ids\[1\]"):
        loaded.logits([1, -1])
    with pytest.raises(llmq_module.InvalidValue):
        loaded.logits([])
    with pytest.raises(ValueError, match="one dimension"):
        loaded.logits([[1]])
    with pytest.raises(TypeError, match="temprature"):
        loaded.generate("a", temprature=1)
    with llmq_module.load(ROOT / "tests/golden/arch/qwen3") as bare, pytest.raises(llmq_module.Unsupported, match="tokenizer"):
        bare.tokenize("x")
    m = llmq_module.load(ROOT / "models/novels-1m", threads=1)
    g = m.generate("The", max_tokens=100000, ignore_eos=True)
    assert next(g)
    g.close()
    m.close()
    m.close()
    with pytest.raises(ValueError, match="closed"):
        m.tokenize("x")


def test_nothing_is_cut_or_wrapped_on_the_way_to_c(llmq_module, loaded):
    with pytest.raises(ValueError, match="prompt: .*NUL"):
        loaded.generate("The old\0 house")
    with pytest.raises(ValueError, match="stop: .*NUL"):
        loaded.generate("The", stop="a\0b")
    with pytest.raises(ValueError, match="path: .*NUL"):
        llmq_module.load(f"{ROOT}/models/novels-1m\0.bak")
    with pytest.raises(ValueError, match="4294967301"):
        loaded.detokenize(np.array([5, 2**32 + 5]))
    with pytest.raises(TypeError, match="integers"):
        loaded.logits([1.5])
    with pytest.raises(ValueError, match="max_tokens"):
        loaded.generate("The", max_tokens=0)


def test_an_answer_that_nobody_has_ends(loaded):
    g = loaded.generate("The", max_tokens=200, ignore_eos=True)
    seen, job = weakref.ref(g), g._job
    next(g)
    del g
    assert seen() is None and job.stopped  # its thread does not hold it
    job._thread.join(60)
    assert not job._thread.is_alive()


def test_a_fork_has_no_engine(loaded):
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        try:
            loaded.generate("The", max_tokens=2).result()
        except ValueError as e:
            os._exit(0 if "process" in str(e) else 1)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        loaded.__del__()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0 and loaded.generate("The", max_tokens=2).result()


def test_files_are_made_with_progress(llmq, llmq_module, tmp_path):
    seen = []
    report = llmq_module.quantize(ROOT / "models/novels-1m", tmp_path / "m.llmq", method="rtn", bits=4, threads=1,
                                  progress=lambda what, done, total: seen.append((what, done / total)))
    llmq("quantize", ROOT / "models/novels-1m", "-o", tmp_path / "same.llmq", "--method", "rtn", "--bits", "4")
    assert (tmp_path / "m.llmq").read_bytes() == (tmp_path / "same.llmq").read_bytes()
    told = llmq_module.quantize.__doc__.split("override=")[1].split("]")[0] + "]"
    llmq_module.quantize(ROOT / "models/novels-1m", tmp_path / "o.llmq", method="rtn", bits=4, override=json.loads(told))
    assert report["method"] == "rtn" and all(0 <= f <= 1 for _, f in seen)
    llmq_module.convert(ROOT / "models/novels-1m", tmp_path / "m.gguf", to="gguf")
    assert (tmp_path / "m.gguf").read_bytes()[:4] == b"GGUF"
    with pytest.raises(llmq_module.Unsupported, match="allow-requantize"):
        llmq_module.convert(tmp_path / "m.llmq", tmp_path / "no.gguf", to="gguf")
    with pytest.raises(llmq_module.Interrupted):
        llmq_module.quantize(ROOT / "models/novels-6m", tmp_path / "no.llmq", method="gptq", progress=lambda *a: False)
    with pytest.raises(ZeroDivisionError):  # what a callback raises comes out
        llmq_module.quantize(ROOT / "models/novels-6m", tmp_path / "no.llmq", method="gptq", progress=lambda *a: 1 / 0)
    assert not (tmp_path / "no.llmq").exists()


def test_a_server_is_a_context(llmq_module, packed):
    import urllib.request
    with llmq_module.serve(packed, threads=1, api_key="k", port=None) as s:
        ask = urllib.request.Request(s.url + "/v1/models", headers={"Authorization": "Bearer k"})
        with urllib.request.urlopen(ask) as r:
            assert json.load(r)["data"]
        os.lseek(s._log.fileno(), 0, os.SEEK_END)
        n = len(s.log())
        os.lseek(s._log.fileno(), 3, os.SEEK_SET)
        s.log()
        at = next(x for x in open(f"/proc/{s.process.pid}/fdinfo/1") if x.startswith("pos:"))
        assert n > 3 and at.split()[1] == "3"  # reading the log does not move where the server writes
    assert s.process.returncode == 0
    with pytest.raises(llmq_module.Error, match="--nope"):
        llmq_module.serve(packed, nope=True)


SLEEPER = """
    import llmq, sys
    m = llmq.load(sys.argv[1], threads=1, max_model_len=1024)
    try:
        print("loaded", flush=True)
        m.generate("The", max_tokens=1000, ignore_eos=True).result()
        while True:
            m.generate("The", max_tokens=1000, ignore_eos=True).result()
    except KeyboardInterrupt:
        m.close()
        print("interrupted", flush=True)
"""


def test_ctrl_c_ends_an_answer(llmq_module, packed, tmp_path):
    (tmp_path / "s.py").write_text(textwrap.dedent(SLEEPER))
    p = subprocess.Popen([sys.executable, tmp_path / "s.py", packed], stdout=subprocess.PIPE, text=True,
                         env={**os.environ, "PYTHONPATH": str(ROOT / "packaging/python")})
    assert p.stdout.readline() == "loaded\n"
    p.send_signal(signal.SIGINT)
    assert p.communicate(timeout=60)[0] == "interrupted\n" and p.returncode == 0


def test_the_wheel_installs_program_and_module(llmq, packed, tmp_path):
    make = [sys.executable, ROOT / "packaging/wheel.py", llmq.path, LIBRARY]
    for folder in ("a", "b"):
        made = subprocess.run([*make, tmp_path / folder], capture_output=True, text=True, check=True).stdout.strip()
    a, b = (next((tmp_path / f).iterdir()) for f in "ab")
    assert a.read_bytes() == b.read_bytes() and made == str(b)
    names = zipfile.ZipFile(a).namelist()
    assert "llmq/__init__.py" in names and any(n.endswith("scripts/llmq") for n in names)
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", venv], check=True)
    p = subprocess.run([venv / "bin/python", "-m", "pip", "install", "-q", "--no-index", "--no-deps", a],
                       capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    clean = {k: v for k, v in os.environ.items() if k not in ("LLMQ_LIBRARY", "LLMQ_PROGRAM", "PYTHONPATH", "LLMQ")}
    code = "import llmq, sys; print(llmq.program(), llmq.load(sys.argv[1]).generate('The old house', max_tokens=4).result())"
    said = subprocess.run([venv / "bin/python", "-c", code, packed], capture_output=True, text=True, env=clean, cwd=tmp_path)
    assert said.returncode == 0 and said.stdout.startswith(f"{venv}/bin/llmq "), said.stderr
    assert subprocess.run([venv / "bin/llmq", "--version"], capture_output=True, text=True, env=clean).stdout == \
        llmq("--version").stdout
    shutil.rmtree(venv)
