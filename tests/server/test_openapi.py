"""/openapi.json says what the server does: its routes, and of each parameter what is refused."""
import json
import re

import pytest

from harness import ROOT
from helpers import check_error

BODIES = {"/v1/completions": {"prompt": "a", "max_tokens": 1},
          "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
          "/v1/embeddings": {"input": "a"},
          "/v1/rerank": {"query": "a", "documents": ["b"]},
          "/v1/score": {"text_1": "a", "text_2": "b"},
          "/v1/classify": {"input": "a"}}


@pytest.fixture(scope="module")
def document(server):
    r = server.get("/openapi.json")
    assert r.status == 200 and r.headers["Content-Type"] == "application/json"
    return json.loads(r.read())


def properties(document, path):
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]["properties"]


def test_every_route_is_in_it(document, llmq):
    """Both ways, and what it says of each is what --help says."""
    have = {(method.upper(), re.sub(r"\{.*", "*", path)): operation["summary"]
            for path, item in document["paths"].items() for method, operation in item.items()}
    help_rows = re.findall(r"^[+! ] (GET|POST|DELETE) +(\S+) +(.*)$", llmq("serve", "--help").stdout, re.M)
    rows = {(method, path): text for method, path, text in reversed(help_rows)}
    assert have == rows and len(rows) > 15  # of two rows of / the page's comes first


def test_every_reference_leads_somewhere_and_every_schema_is_used(document):
    refs = set(re.findall(r'"#/components/([\w/.]+)"', json.dumps(document)))
    have = {f"{kind}/{name}" for kind in ("schemas", "responses") for name in document["components"][kind]}
    assert refs == have
    assert '"@' not in json.dumps(document)


def test_its_facts_are_those_of_the_model(document, server):
    card = json.loads(server.get("/v1/models").read())["data"][0]
    detokenize = document["paths"]["/detokenize"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert detokenize["properties"]["tokens"]["maxItems"] == card["max_model_len"]
    last = document["components"]["schemas"]["TokenId"]["maximum"]
    assert server.post_json("/detokenize", {"tokens": [last]})["prompt"] is not None
    assert server.post("/detokenize", {"tokens": [last + 1]}).status == 400
    most = document["components"]["schemas"]["dimensions"]["maximum"]
    assert len(server.post_json("/v1/embeddings", {"input": "a", "dimensions": most})["data"][0]["embedding"]) == most
    assert server.post("/v1/embeddings", {"input": "a", "dimensions": most + 1}).status == 400
    assert document["info"]["version"] == json.loads(server.get("/version").read())["version"]


@pytest.mark.parametrize("path", BODIES)
def test_its_ranges_are_those_of_the_server(document, server, path):  # T-61
    """A value at either end is not refused for its own sake, one beyond it is, and so is another type."""
    n = 0
    for name, s in properties(document, path).items():
        text = "string" in s.get("type", [])
        wrong = [] if "$ref" in s else [{"no": "such value"}]
        right = list(s.get("enum", [None]))
        if "enum" not in s and "$ref" not in s:
            assert s["type"][-1] == "null"
        for bound, beyond in (("minimum", -1), ("maximum", 1), ("minLength", -1), ("maxLength", 1)):
            if bound not in s:
                continue
            whole = s["type"][0] != "number"
            for value, where in ((s[bound], right), (s[bound] + beyond * (1 if whole else 1e-9), wrong)):
                if not text:
                    where.append(value)
                elif value >= 0:
                    where.append("a" * int(value))
        if "exclusiveMinimum" in s:
            wrong.append(s["exclusiveMinimum"])
        for value in wrong:
            check_error(server.post(path, {**BODIES[path], name: value}), 400, name)
            n += 1
        for value in right:
            if "$ref" in s:
                continue
            r = server.post(path, {**BODIES[path], name: value})
            e = {} if r.status == 200 else json.loads(r.read())["error"]
            assert r.status == 200 or e["code"] != "invalid_value" or e["param"] != name or \
                "at most" not in e["message"] and "expected" not in e["message"], (name, value, e)
    assert n > 5
