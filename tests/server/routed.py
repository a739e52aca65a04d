"""A server of several models, as its tests look at it."""
import json
import pathlib

import pytest

from harness import Server
from helpers import complete

PROMPT = "The old house"


@pytest.fixture
def start(llmq, tmp_path):
    running = []

    def run(*args, llmq=llmq, **more):
        s = Server(llmq, *args, log=tmp_path / f"log{len(running)}", **more)
        running.append(s)
        return s.wait_ready()
    yield run
    for s in running:
        s.stop()


def listed(server):
    return {m["id"]: m for m in json.loads(server.get("/v1/models").read())["data"]}


def states(server):
    return {name: m["status"]["value"] for name, m in listed(server).items()}


def text(server, model, **more):
    return complete(server, PROMPT, model=model, max_tokens=12, temperature=0, **more)["choices"][0]["text"]


def kids(server):
    """Processes of the models' servers: those of the keeper, the router's only child."""
    def of(pid):
        return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [k for keeper in of(server.process.pid) for k in of(keeper)]
