"""docs/ops: the dashboard and the alert rules ask for what /metrics of one model, of several, or of one with
adapters has."""
import json
import re

import pytest

from harness import ROOT, Server

@pytest.fixture(scope="module")
def router(llmq, tmp_path_factory):
    with Server(llmq, ROOT / "models", log=tmp_path_factory.mktemp("router") / "log") as s:
        yield s


@pytest.fixture(scope="module")
def adapted(llmq, tmp_path_factory):
    with Server(llmq, ROOT / "models/novels-1m", "--lora", f"plain={ROOT / 'tests/golden/lora/plain'}",
                log=tmp_path_factory.mktemp("adapted") / "log") as s:
        yield s.wait_ready()


@pytest.mark.parametrize("name", ["dashboard.json", "alerts.yml"])
def test_what_they_ask_for_is_there(server, router, adapted, name):
    text = (ROOT / "docs/ops" / name).read_text()
    if name.endswith(".json"):
        panels = json.loads(text)["panels"]
        assert len({p["id"] for p in panels}) == len(panels)
        text = "\n".join(t["expr"] for p in panels for t in p["targets"])
    have = set()
    for s in [server, router, adapted]:
        have |= set(re.findall(r"^((?:vllm|llmq):\w+)[{ ]", s.get("/metrics").read().decode(), re.M))
    asked = set(re.findall(r"\b(?:vllm|llmq):\w+", text))
    assert len(asked) > 6 and asked <= have, asked - have
