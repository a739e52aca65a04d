"""docs/ops: the dashboard and the alert rules ask for what /metrics has."""
import json
import re

import pytest

from harness import ROOT


@pytest.mark.parametrize("name", ["dashboard.json", "alerts.yml"])
def test_what_they_ask_for_is_there(server, name):
    text = (ROOT / "docs/ops" / name).read_text()
    if name.endswith(".json"):
        panels = json.loads(text)["panels"]
        assert len({p["id"] for p in panels}) == len(panels)
        text = "\n".join(t["expr"] for p in panels for t in p["targets"])
    have = set(re.findall(r"^((?:vllm|llmq):\w+)\{", server.get("/metrics").read().decode(), re.M))
    asked = set(re.findall(r"\b(?:vllm|llmq):\w+", text))
    assert len(asked) > 6 and asked <= have, asked - have
