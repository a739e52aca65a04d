"""Fixtures of the tests that run the real binary: it, the embedded checkpoints, a running server.

Only pytest is needed; tests that want more (openai, httpx) call pytest.importorskip."""
import os

import pytest

from harness import KEEP, ROOT, Llmq, Server
from ranks import end_ranks

TEXT = ROOT / "tests/golden/text/novels-heldout-100w.txt"


@pytest.fixture(scope="session")
def llmq():
    tool = Llmq()
    if not os.access(tool.path, os.X_OK):
        pytest.exit(f"{tool.path} is not there: run make first", returncode=1)
    return tool


@pytest.fixture(autouse=True)
def no_rank_is_left():
    yield
    end_ranks()


@pytest.fixture(scope="session")
def model():
    return ROOT / "models/novels-6m"


@pytest.fixture(scope="session")
def draft():
    return ROOT / "models/novels-1m"


@pytest.fixture(scope="session")
def text():
    return TEXT


@pytest.fixture(scope="session")
def packed(llmq, model, tmp_path_factory):
    """The demo model as u4-g128 by rounding to nearest: quick to make, used by many tests."""
    out = tmp_path_factory.mktemp("packed") / "novels-6m-rtn.llmq"
    llmq("quantize", model, "-o", out, "--method", "rtn", *KEEP)
    return out


@pytest.fixture
def serve(llmq, tmp_path):
    """serve(MODEL, "--option", ...): a ready server, stopped when the test ends."""
    running = []

    def start(model, *args, **more):
        s = Server(llmq, model, *args, log=tmp_path / f"serve{len(running)}.log", **more)
        running.append(s)
        return s.wait_ready()

    yield start
    for s in running:
        s.stop()


@pytest.fixture(scope="module")
def server(llmq, model, tmp_path_factory):
    """One server of the unquantized demo model for a whole test file."""
    with Server(llmq, model, log=tmp_path_factory.mktemp("serve") / "serve.log") as s:
        yield s
