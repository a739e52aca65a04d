"""Fixtures of the conformance suite: few servers, one for each way of starting it, shared by all
files. Ids (C01 ... C135) are those of docs/conformance.md; a test says by `case` which it is."""
import json
import os
import pathlib

import pytest

from harness import ROOT, Llmq, Server
from scripts import SCRIPTS, Vocabulary

httpx = pytest.importorskip("httpx")
openai = pytest.importorskip("openai")

import helpers  # noqa: E402 (it needs httpx)
from helpers import ADMIN, SECOND, TINY, USER, with_template  # noqa: E402


@pytest.fixture(scope="session")
def ask():
    return helpers


@pytest.fixture(scope="session")
def scripted_llmq(llmq):
    """The build of llmq that takes --test-script."""
    tool = Llmq(ROOT / os.environ.get("BUILD", "build") / "tests/llmq-scripted")
    if not os.access(tool.path, os.X_OK):
        pytest.fail(f"{tool.path} is not there: run make tests first")
    return tool


@pytest.fixture(scope="session")
def vocabulary():
    return Vocabulary(TINY / "tokenizer.json")


class Gate:
    """Draws of the script "held" wait within `with gate:` until it is opened."""

    def __init__(self, path):
        self.path = path
        self.open()

    def open(self):
        self.path.touch()

    def __enter__(self):
        self.path.unlink()

    def __exit__(self, *_):
        self.open()


@pytest.fixture(scope="session")
def gate(tmp_path_factory):
    return Gate(tmp_path_factory.mktemp("gate") / "gate")


@pytest.fixture(scope="session")
def script_file(vocabulary, gate, tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "script.json"
    path.write_text(json.dumps({"scripts": [
        {"prompt": f"[{name}]", **{k: str(gate.path) if k == "gate" else v for k, v in s.items() if k != "pieces"},
         **({"ids": vocabulary.ids(s["pieces"])} if "pieces" in s else {})}
        for name, s in SCRIPTS.items()]}))
    return path


@pytest.fixture(scope="session")
def server(llmq, tmp_path_factory):
    """The tiny real model, as the command starts it."""
    with Server(llmq, TINY, "--served-model-name", "tiny", "--served-model-name", "org/tiny",
                     log=tmp_path_factory.mktemp("real") / "log") as s:
        yield s


@pytest.fixture(scope="session")
def scripted(scripted_llmq, script_file, tmp_path_factory):
    """Scripted draws, a ChatML template with tools and <think>."""
    folder = tmp_path_factory.mktemp("scripted")
    template = (ROOT / "tests/golden/templates/think-namespace.jinja").read_text()
    template = ("{%- if messages|length > 1 and messages[0].role == 'assistant' %}"
                "{{- raise_exception('the user speaks first') }}{%- endif %}" + template)
    with Server(scripted_llmq, with_template(folder / "chatml", template), "--test-script",
                     script_file, "--test-ping", 0.3, "--max-num-batched-tokens", 64,
                     "--log-level", "debug", "--access-log", folder / "access.jsonl",
                     "--scheduling-policy", "priority", "--max-num-seqs", 8,
                     log=folder / "log") as s:
        s.access_log = folder / "access.jsonl"
        yield s


@pytest.fixture(scope="session")
def hasty(scripted_llmq, tmp_path_factory):
    """A head and a body have 1 s: only for tests of that, since a client on a busy machine takes longer."""
    with Server(scripted_llmq, TINY, "--test-head", 1, "--test-body", 1,
                     log=tmp_path_factory.mktemp("hasty") / "log") as s:
        yield s


@pytest.fixture(scope="session")
def keyed(llmq, tmp_path_factory):
    """Keys of users and an administrator, CORS, strict parameters, few connections."""
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "keys").write_text(f"# users\n\n {SECOND} \n")
    with Server(llmq, TINY, "--api-key", USER, "--api-key-file", folder / "keys",
                     "--admin-key", ADMIN, "--served-model-name", "org/tiny", "--strict-params",
                     "--cors-origin", "https://good.example", "--max-connections", 40,
                     key=USER, log=folder / "log") as s:
        s.key_file = folder / "keys"
        yield s


@pytest.fixture(scope="session")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as c:
        yield c


@pytest.fixture(scope="session")
def scripted_client(scripted):
    with openai.OpenAI(base_url=scripted.url + "/v1", api_key="none", max_retries=0) as c:
        yield c


# ---- the table of docs/conformance.md ----

CASES = {}  # id -> the marks of its tests: "met" or "not met"
FILES = set()


def pytest_itemcollected(item):
    status = "not met" if item.get_closest_marker("xfail") else "met"
    FILES.add(item.path.name)
    for mark in item.iter_markers("case"):
        for name in mark.args:
            CASES.setdefault(name, set()).add(status)


@pytest.fixture(scope="session")
def cases():
    if FILES != {p.name for p in pathlib.Path(__file__).parent.glob("test_*.py")}:
        pytest.skip("only with all files of the suite")
    return {name: marks.pop() if len(marks) == 1 else "partly"
            for name, marks in ((n, set(m)) for n, m in CASES.items())}
