"""prometheus_client's parsers read /metrics in both formats."""

PROGRAM = """
import json, sys, urllib.request
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strict
from prometheus_client.parser import text_string_to_metric_families as plain
def get(**headers):
    return urllib.request.urlopen(urllib.request.Request(sys.argv[1] + "/metrics", headers=headers)).read().decode()
families = [{f.name: (f.type, len(f.samples)) for f in parse(text)} for parse, text in (
    (plain, get()), (strict, get(Accept="application/openmetrics-text; version=1.0.0")))]
print(json.dumps({"same": families[0].keys() == families[1].keys(), "n": len(families[0]),
                  "ttft": families[1]["vllm:time_to_first_token_seconds"][0]}))
"""


def test_both_formats(scripted, python_client):
    out = python_client(PROGRAM, scripted.url)
    assert out["same"] and out["n"] > 30 and out["ttft"] == "histogram"
