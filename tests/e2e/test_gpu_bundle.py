"""What `make gpu-bundle` packs, on a machine that has nothing: a root with a shell and its tools alone, no network, no
compiler, no Python. The GPU is the emulated one that the bundle's program has inside. LLMQ_HARD: every step and suite."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from harness import ROOT, until

TESTS = ROOT / "build/tests/device-tests"
TOOLS = "sh basename cat date dirname env grep head ls mkdir mv rm sed sleep tail tee timeout tr uname wc".split()
HARD = "LLMQ_HARD" in os.environ
# Its arguments: the root, a command there. The loopback is up and nothing else.
ENTER = """
import fcntl, os, socket, struct, subprocess, sys
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8914, struct.pack("16sh", b"lo", 1))
for name in ("dev", "proc"):
    subprocess.run(["mount", "--rbind", "/" + name, os.path.join(sys.argv[1], name)], check=True)
os.chroot(sys.argv[1])
os.chdir("/")
os.execve(sys.argv[2], sys.argv[2:], {"PATH": "/bin", **{k: v for k, v in os.environ.items() if k.startswith("TRY_")},
                                     **dict(x.split("=", 1) for x in os.environ["GIVEN"].split("\\n") if x)})
"""
EMULATED = {"LLMQ_TEST_DEVICE": "emulated", "SHAPE": "tiny", "PROMPT": "16", "BATCH": "1", "STEPS": "2",
            "PATIENCE": "100", "BUDGET": "36000"}
SMALL = {"HARD": ""} if HARD else {"SUITES": "test_dev test_dev_link", "HARD": "", "WINDOWS": "1", "CTX": "16"}


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """The root of a bare machine, with the bundle in it."""
    if not os.access(TESTS, os.X_OK):
        pytest.skip("build/tests/device-tests is not there: no C++ compiler")
    root = tmp_path_factory.mktemp("machine")
    for name in ("bin", "dev", "proc", "tmp"):
        (root / name).mkdir()
    for tool in TOOLS:
        path = shutil.which(tool)
        shutil.copy(path, root / "bin" / tool)
        for word in subprocess.run(["ldd", path], capture_output=True, text=True).stdout.split():
            if word.startswith("/") and not (root / word[1:]).exists():
                (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, root / word[1:])
    enter = subprocess.run(["unshare", "-r", "-m", "-n", "true"], capture_output=True, text=True)
    if enter.returncode:
        pytest.skip(f"no namespaces here: {enter.stderr.strip()}")
    subprocess.run([ROOT / "scripts/bench/gpu-bundle.sh", TESTS, root / "b.tar", "emulated"], check=True)
    subprocess.run(["tar", "-xf", root / "b.tar", "-C", root], check=True)
    return root


def there(machine, *steps, code=0, **env):
    p = subprocess.run(["unshare", "-r", "-m", "-n", sys.executable, "-c", ENTER, machine, "/bin/sh", "/llmq-gpu/run.sh", *steps],
                       capture_output=True, text=True, env={"PATH": os.environ["PATH"], "GIVEN": "\n".join(f"{k}={v}" for k, v in env.items())})
    assert p.returncode == code, p.stdout + p.stderr
    return p.stdout


def result(machine):
    return json.loads((machine / "llmq-gpu/gpu-results/result.json").read_text())


def test_a_bare_machine_runs_every_step_and_keeps_what_they_said(machine):
    steps = [] if HARD else ["smoke", "numerics", "logits", "memcheck"]
    said = there(machine, *steps, **EMULATED, **SMALL)
    found = result(machine)
    rows = {r["step"]: r for r in found["steps"]}
    assert "cuda:0 emulated" in found["devices"] and len(rows) == len(found["steps"])
    assert {r["result"] for r in rows.values()} == {"ok", "skipped"}, said
    assert rows["memcheck"] == {"step": "memcheck", "result": "skipped", "seconds": 0, "says": "compute-sanitizer is not here"}
    assert "device emulated; given up: " in rows["serve, isolated as it is by default"]["says"]
    assert {"run on the GPU", "one completion over HTTP", "the server ends"} <= set(rows)
    assert {"test_dev", "test_dev_link"} <= {name.split()[0] for name in rows}
    assert float(rows["logits of u4.llmq on the GPU in bf16"]["says"].split()[-1]) < 1e-3
    if HARD:
        assert len(rows) > 90 and {"kernels", "model", "kernels_int8", "model_invariant"} <= set(found)
        page = machine / "page.md"
        subprocess.run([sys.executable, "scripts/bench/gpu_page.py", machine / "llmq-gpu/gpu-results/result.json", page], cwd=ROOT, check=True)
        assert "emulated" in page.read_text()


def test_without_a_gpu_it_says_what_is_missing(machine):
    said = there(machine, code=3)
    assert "no GPU that llmq can use: cpu (no GPU: " in said and "/dev/nvidia0" in said


def test_a_step_that_fails_or_has_no_time_left_stops_no_other(machine):
    tests = machine / "llmq-gpu/tests"
    tests.rename(machine / "gone")
    try:
        there(machine, "numerics", code=1, **EMULATED, HARD="", SUITES="test_graph_dev test_dev nosuch test_dev_link")
    finally:
        (machine / "gone").rename(tests)
    rows = result(machine)["steps"]
    assert {r["step"].split()[0] for r in rows if r["result"] == "FAILED"} == {"test_graph_dev", "nosuch"}
    assert any(r["step"].startswith("test_graph_dev ") and "CHECK(" in r["says"] for r in rows)
    assert "found 'nosuch'" in next(r["says"] for r in rows if r["step"] == "nosuch")
    assert {r["step"].split()[0] for r in rows if r["result"] == "ok"} >= {"test_dev", "test_dev_link"}
    there(machine, "logits", **{**EMULATED, "BUDGET": "0"})
    assert {r["result"] for r in result(machine)["steps"]} == {"not run"}


def test_an_older_c_library_gives_way_to_the_bundles(machine):
    """A program that the system's loader refuses, as one that wants a newer C library is: here it names no loader."""
    program = machine / "llmq-gpu/build/tests/device-tests"
    whole = program.read_bytes()
    at = whole.index(b"/lib64/ld-linux-x86-64.so.2\0") if b"/lib64/ld-linux-x86-64.so.2\0" in whole else -1
    if at < 0:
        pytest.skip("another processor's loader")
    program.write_bytes(whole[:at] + b"/no" + whole[at + 3:])
    try:
        there(machine, "smoke", **EMULATED)
        assert {r["result"] for r in result(machine)["steps"]} == {"ok"}
        libc = machine / "llmq-gpu/libc"
        libc.rename(machine / "libc")
        said = there(machine, "smoke", code=2, **EMULATED)
        assert said.startswith("llmq does not run here, on Linux ") and "this bundle: llmq " in said
        (machine / "libc").rename(libc)
    finally:
        program.write_bytes(whole)


def test_its_words_are_checked(machine):
    p = subprocess.run(["scripts/bench/gpu.sh", "speed"], cwd=ROOT, capture_output=True, text=True)
    assert p.returncode == 2 and "expected smoke, numerics, logits, memcheck or bench, found 'speed'" in p.stderr
    p = subprocess.run(["scripts/bench/gpu-bundle.sh"], cwd=ROOT, capture_output=True, text=True)
    assert p.returncode == 2 and p.stderr.startswith("usage: ")


# A program and tests that answer at once, as on a machine with a GPU; `serve` leaves its number.
STANDIN = """#!/bin/sh
case $1 in
version) echo 'devices            cpu, cuda:0 one (9.0, code for 9.0)' ;;
serve) echo $$ >"$PID"; echo 'ready: x, device one,'; exec sleep 1000 ;;
chat) : >"$PID.chat"; while [ ! -e "$PID.go" ]; do sleep 0.1; done ;;
esac
"""


@pytest.fixture
def standin(tmp_path):
    (tmp_path / "llmq").write_text(STANDIN)
    (tmp_path / "llmq").chmod(0o755)
    env = {**os.environ, "LLMQ": str(tmp_path / "llmq"), "OUT": str(tmp_path / "out"), "PID": str(tmp_path / "pid")}
    return lambda *steps, **more: subprocess.Popen(["scripts/bench/gpu.sh", *steps], cwd=ROOT, env={**env, **more}, text=True,
                                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_tests_that_do_not_run_are_a_failure(standin, tmp_path):
    p = standin("numerics", TESTS="/nowhere/tests", SUITES="")
    assert "FAILED      0 s  the tests: they do not run: " in p.communicate()[0] and p.returncode == 1
    [row] = json.loads((tmp_path / "out/result.json").read_text())["steps"]
    assert row["result"] == "FAILED" and "/nowhere/tests" in row["says"]


@pytest.mark.parametrize("name, words", [("BUDGET", "soon"), ("BUDGET", "1.5"), ("BUDGET", "-1"), ("PATIENCE", "x"), ("GPTQ_LAYERS", "all")])
def test_its_numbers_are_checked(standin, name, words):
    p = standin("memcheck", **{name: words})
    assert f"found '{words}'" in p.communicate()[0] and p.returncode == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_one_that_is_stopped_leaves_no_server(standin, tmp_path, number):
    p = standin("smoke")
    until((tmp_path / "pid.chat").exists, lambda: "no chat began")
    p.send_signal(number)
    (tmp_path / "pid.go").touch()
    p.communicate()
    assert p.returncode == 1
    until(lambda: not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text().strip()}"), lambda: "the server runs on")
    assert json.loads((tmp_path / "out/result.json").read_text())["steps"][-1]["step"] == "interrupted"


# `timeout`, with a second for whatever limit: -k 5 LIMIT COMMAND...
IN_A_SECOND = """#!/bin/sh
shift 3
exec {timeout} -k 1 1 "$@"
"""


@pytest.mark.parametrize("hangs", ["nvidia-smi", "llmq"])
def test_a_driver_that_hangs_is_not_waited_for(standin, tmp_path, hangs):
    (tmp_path / "bin").mkdir()
    for name, text in [("timeout", IN_A_SECOND.format(timeout=shutil.which("timeout"))), ("nvidia-smi", "#!/bin/sh\nexec sleep 1000\n")]:
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    if hangs == "llmq":
        (tmp_path / "llmq").write_text("#!/bin/sh\nexec sleep 1000\n")
    p = standin("bench", PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}", GPTQ_LAYERS="0", PYTHON="/nowhere/python3")
    said = p.communicate()[0]
    if hangs == "llmq":
        assert p.returncode == 2 and "no answer within 60 s: the GPU's driver hangs" in said
    else:
        assert p.returncode == 0, said
        assert {json.loads((tmp_path / "out/result.json").read_text())[when] for when in ("before", "after")} == {"unknown"}


@pytest.mark.parametrize("kept", [0, 8])
def test_results_that_cannot_be_written_are_a_failure(standin, tmp_path, kept):
    """A disk that has so many KiB left when the steps begin, or none at the start."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here")
    full = tmp_path / "full"
    full.mkdir()
    fill = f"mount -t tmpfs -o size=64k none {full} && head -c {64 - kept}K /dev/zero >{full}/rest; exec scripts/bench/gpu.sh memcheck"
    env = {**os.environ, "LLMQ": str(tmp_path / "llmq"), "OUT": str(full / "out"), "TESTS": "true", "PID": str(tmp_path / "pid")}
    p = subprocess.run(["unshare", "-rm", "sh", "-c", fill], cwd=ROOT, env=env, capture_output=True, text=True)
    if kept:
        assert p.returncode == 1 and "NOT all of it" in p.stdout, p
        assert p.stderr.count("not all results can be written") == 1
    else:
        assert p.returncode == 2 and "cannot be written to: OUT= names another place" in p.stderr, p


@pytest.mark.parametrize("text", ["", "[1]", "null", '{"kernels": {"rows": []}}', '{"kernels": 1}', "\0"])
def test_a_page_stays_where_the_result_is_none(tmp_path, text):
    page, found = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text("as it was")
    found.write_text(text)
    p = subprocess.run([sys.executable, "scripts/bench/gpu_page.py", found, page], cwd=ROOT, capture_output=True, text=True)
    assert p.returncode == 1 and p.stderr.startswith(f"gpu_page.py: {found}: ") and len(p.stderr.splitlines()) == 1
    assert page.read_text() == "as it was"
