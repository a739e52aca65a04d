"""Real clients against llmq: packages at fixed versions, installed once into build/clients. One that cannot be had
is skipped by name. The servers are those of tests/server, and SmolLM2 where tests/e2e/test_real_models.py has it."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "server")]

from harness import ROOT, Llmq, Server, with_template  # noqa: E402
from scripts import END, SCRIPTS, Vocabulary, call  # noqa: E402

WHERE = ROOT / "build/clients"
TINY = ROOT / "models/novels-1m"


def run(*command, **more):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=600, check=False, **more)


def install(what, folder, stamp, *commands):
    """Runs the commands unless the stamp file says that the same was installed."""
    mark = folder / ".installed"
    if mark.exists() and mark.read_text() == stamp:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for c in commands:
        done = run(*c, cwd=folder)
        if done.returncode:
            pytest.skip(f"{what} cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
    mark.write_text(stamp)


@pytest.fixture(scope="session")
def python_client():
    """Runs a program with the Python packages; its output as JSON."""
    needs, folder = HERE / "requirements.txt", WHERE / "python"
    install("the Python packages", folder, needs.read_text(), (sys.executable, "-m", "venv", folder),
            (folder / "bin/pip", "install", "-q", "--disable-pip-version-check", "-r", needs))

    def client(program, *args, env=None):
        done = run(folder / "bin/python", "-c", program, *args,
                   env={"PATH": os.environ["PATH"], "HOME": str(folder), **(env or {})})
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    return client


@pytest.fixture(scope="session")
def package_client():
    """Runs a program with one of the packages of packages.txt, each of which has a folder of its own."""
    pins = dict(x.split(" ", 1) for x in (HERE / "packages.txt").read_text().splitlines() if x[:1] not in ("", "#"))

    def client(name, program, *args):
        folder, needs = WHERE / name, pins[name].split()
        install(name, folder, pins[name], (sys.executable, "-m", "venv", folder),
                (folder / "bin/pip", "install", "-q", "--disable-pip-version-check", *needs))
        done = run(folder / "bin/python", "-c", program, *args,
                   env={"PATH": os.environ["PATH"], "HOME": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True"})
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])
    return client


@pytest.fixture(scope="session")
def node_folder():
    needs, folder = HERE / "package.json", WHERE / "node"
    if not shutil.which("npm") or not shutil.which("node"):
        pytest.skip("the Node packages cannot be installed: there is no npm")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(needs, folder / "package.json")
    install("the Node packages", folder, needs.read_text(), ("npm", "install", "--no-audit", "--no-fund"))
    return folder


@pytest.fixture(scope="session")
def node_client(node_folder):
    def client(program, *args):
        path = node_folder / "program.mjs"
        path.write_text(program)
        done = run("node", path, *args, cwd=node_folder)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    return client


@pytest.fixture(scope="session")
def program(node_folder, tmp_path_factory):
    """A command of a Node package, with a home of its own."""
    def start(name, *args, env=None, installer=None):
        if installer and not (node_folder / f".{name}").exists():
            run("node", node_folder / "node_modules" / installer, cwd=node_folder)
            (node_folder / f".{name}").touch()
        path = node_folder / "node_modules/.bin" / name
        if run(path, "--version").returncode:
            pytest.skip(f"{name} does not start here")
        home = tmp_path_factory.mktemp(name)
        return subprocess.run([path, *args], capture_output=True, text=True, timeout=300, check=False, cwd=home,
                              stdin=subprocess.DEVNULL,
                              env={"PATH": os.environ["PATH"], "HOME": str(home), **(env or {})})
    return start


@pytest.fixture(scope="session")
def scripted(tmp_path_factory):
    """Scripted draws behind a ChatML template with tools and <think>; the context is the model's."""
    folder = tmp_path_factory.mktemp("scripted")
    path = ROOT / os.environ.get("BUILD", "build") / "tests/llmq-scripted"
    if not os.access(path, os.X_OK):
        pytest.fail(f"{path} is not there: run make tests first")
    vocabulary = Vocabulary(TINY / "tokenizer.json")
    (folder / "script.json").write_text(json.dumps({"scripts": [
        {"prompt": f"[{name}]", "ids": vocabulary.ids(s["pieces"])} for name, s in SCRIPTS.items() if "pieces" in s]
        + [{"prompt": "[call once]", "ids": vocabulary.ids([call("now", {}), END])},
           {"prompt": "[sky once]", "ids": vocabulary.ids([call("mcp__sky__weather", {"city": "Paris"}), END])}]}))  # until there is another script
    template = (ROOT / "tests/golden/templates/think-namespace.jinja").read_text()
    model = with_template(folder / "chatml", template)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 32768}))  # Codex' tools alone have 10,000
    with Server(Llmq(path), model, "--test-script", folder / "script.json",
                "--served-model-name", "m", "--file-store", "1M", log=folder / "log") as s:
        yield s.wait_ready()


@pytest.fixture(scope="session")
def smol(llmq, tmp_path_factory):
    path = pathlib.Path(os.environ.get("LLMQ_REAL", "")) / "smollm2-135m-q4_1.gguf"
    if not path.exists():
        pytest.skip("no SmolLM2: LLMQ_REAL is to name the folder of smollm2-135m-q4_1.gguf")
    with Server(llmq, path, "--served-model-name", "m", log=tmp_path_factory.mktemp("smol") / "log") as s:
        yield s.wait_ready()
