"""Anthropic's message batches: /v1/messages/batches, as its clients ask."""
import json

import pytest

from harness import Server, until
from helpers import SECOND, TINY, USER, http

pytestmark = pytest.mark.case("C130")

PATH = "/v1/messages/batches"
KEYS = ("processing", "succeeded", "errored", "canceled", "expired")


def ask(id, text="One day", **more):
    return {"custom_id": id, "params": {"model": "tiny", "max_tokens": 4, "temperature": 0,
                                        "messages": [{"role": "user", "content": text}], **more}}


@pytest.fixture(scope="module")
def keeper(llmq, tmp_path_factory):
    with Server(llmq, TINY, "--served-model-name", "tiny", "--file-store", "1M", "--max-num-seqs", 4, "--api-key", USER,
                "--api-key", SECOND, key=USER, log=tmp_path_factory.mktemp("keeper") / "log") as s:
        yield s


def begin(server, *requests):
    return server.post_json(PATH, {"requests": list(requests)})


def get(server, id, key=USER):
    return http("GET", f"{server.url}{PATH}/{id}", headers={"X-Api-Key": key})


def ended(server, batch):
    return until(lambda: (b := get(server, batch["id"]).json())["processing_status"] == "ended" and b)


def results(server, batch):
    r = http("GET", server.url + batch["results_url"], headers={"X-Api-Key": USER})
    assert r.status_code == 200 and r.headers["content-type"] == "application/x-jsonl"
    return [json.loads(x) for x in r.text.splitlines()]


def check_error(r, status, part=""):
    """In Anthropic's shape."""
    e = r.json()
    assert r.status_code == status and set(e) == {"type", "error"} and e["type"] == "error", e
    assert e["error"]["type"] == {404: "not_found_error"}.get(status, "invalid_request_error") and part in e["error"]["message"]


def counts(batch):
    return tuple(batch["request_counts"][k] for k in KEYS)


def test_a_batch_of_messages_is_answered_in_order(keeper):
    batch = begin(keeper, *(ask(f"r-{i}", f"Day {i}\n") for i in range(4)), ask("bad", temperature=9), ask("last"))
    assert batch["id"].startswith("msgbatch_") and batch["type"] == "message_batch" and batch["results_url"] is None
    assert batch["processing_status"] == "in_progress" and counts(batch) == (6, 0, 0, 0, 0)
    b = ended(keeper, batch)
    assert counts(b) == (0, 5, 1, 0, 0) and b["created_at"] <= b["ended_at"] < b["expires_at"]
    said = results(keeper, b)
    assert [x["custom_id"] for x in said] == ["r-0", "r-1", "r-2", "r-3", "bad", "last"]
    assert [x["result"]["type"] for x in said] == 4 * ["succeeded"] + ["errored", "succeeded"]
    alone = keeper.post_json("/v1/messages", ask("", "Day 1\n")["params"])
    message = said[1]["result"]["message"]
    assert message["content"] == alone["content"] and message["type"] == "message"
    error = said[4]["result"]["error"]
    assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
    check_error(http("POST", f"{keeper.url}{PATH}/{b['id']}/cancel", headers={"X-Api-Key": USER}), 400)


def test_a_cancelled_batch_says_what_was_not_asked(keeper):
    slow = [ask(f"r{i}", max_tokens=300, ignore_eos=True) for i in range(300)]
    first, second = begin(keeper, *slow), begin(keeper, ask("x"))
    # no type, no body: as Anthropic's client for Node sends it
    r = http("POST", f"{keeper.url}{PATH}/{second['id']}/cancel", headers={"X-Api-Key": USER})
    assert r.status_code == 200 and r.json()["processing_status"] == "ended"
    assert [x["result"] for x in results(keeper, r.json())] == [{"type": "canceled"}]
    http("POST", f"{keeper.url}{PATH}/{first['id']}/cancel", headers={"X-Api-Key": USER})
    b = ended(keeper, first)
    said = [x["result"]["type"] for x in results(keeper, b)]
    n = said.count("succeeded")
    assert counts(b) == (0, n, 0, 300 - n, 0) and said == n * ["succeeded"] + (300 - n) * ["canceled"] and n < 300
    assert b["cancel_initiated_at"] <= b["ended_at"]


def test_lists_and_what_is_forgotten(keeper):
    a, b = (ended(keeper, begin(keeper, ask("x"))) for _ in range(2))

    def listed(query, key=USER):
        return http("GET", f"{keeper.url}{PATH}{query}", headers={"X-Api-Key": key}).json()
    page = listed("?limit=1")
    assert [x["id"] for x in page["data"]] == [b["id"]] and page["has_more"] and page["last_id"] == b["id"]
    assert listed(f"?after_id={b['id']}&limit=1")["data"] == [a]
    assert listed("", SECOND)["data"] == [] and get(keeper, a["id"], SECOND).status_code == 404
    check_error(http("GET", f"{keeper.url}{PATH}?before_id={a['id']}", headers={"X-Api-Key": USER}), 400, "before_id")
    gone = http("DELETE", f"{keeper.url}{PATH}/{a['id']}", headers={"X-Api-Key": USER}).json()
    assert gone == {"id": a["id"], "type": "message_batch_deleted"} and get(keeper, a["id"]).status_code == 404
    files = http("GET", keeper.url + "/v1/files", headers={"X-Api-Key": USER}).json()["data"]
    inner = [f["filename"] for f in files if a["id"].removeprefix("msg") in f["filename"]]
    assert inner == [] and len(results(keeper, b)) == 1


@pytest.mark.parametrize("body, part", [
    ({}, "requests"), ({"requests": []}, "one or more"), ({"requests": [1]}, "requests[0]"),
    ({"requests": [ask("a b")]}, "custom_id"), ({"requests": [ask("x" * 65)]}, "custom_id"),
    ({"requests": [{"custom_id": "a", "params": "x"}]}, "requests[0]: expected an object params"),
    ({"requests": [ask("a"), ask("b"), ask("a")]}, "'a' comes more than once"),
    ({"requests": [{**ask("a"), "url": "/v1/files"}]}, "url: unknown"),
    ({"requests": [ask("a")], "x": 1}, "x: unknown"),
])
def test_what_is_refused(keeper, body, part):
    check_error(http("POST", keeper.url + PATH, json=body, headers={"X-Api-Key": USER}), 400, part)


def test_what_is_not_there(keeper, server):
    for path in ("nothing", "msgbatch_1", "batch_1", "msg", "msgbatch_1/results", "msgbatch_1/other"):
        check_error(get(keeper, path), 404)
    b = begin(keeper, *(ask(f"r{i}", max_tokens=100, ignore_eos=True) for i in range(50)))
    check_error(get(keeper, b["id"] + "/results"), 404)
    check_error(http("DELETE", f"{keeper.url}{PATH}/{b['id']}", headers={"X-Api-Key": USER}), 400)
    http("POST", f"{keeper.url}{PATH}/{b['id']}/cancel", headers={"X-Api-Key": USER})
    ended(keeper, b)
    check_error(http("POST", server.url + PATH, json={"requests": [ask("a")]}), 404, "--file-store")


def test_a_batch_goes_on_after_a_restart(llmq, tmp_path):
    options = (TINY, "--served-model-name", "tiny", "--file-store", "8M", "--file-store-dir", tmp_path / "files")
    with Server(llmq, *options, key=USER, log=tmp_path / "log1") as s:
        s.wait_ready()
        batch = begin(s, *(ask(f"r{i}", f"Day {i}", max_tokens=200, ignore_eos=True) for i in range(60)))
    with Server(llmq, *options, key=USER, log=tmp_path / "log2") as s:
        s.wait_ready()
        b = ended(s, batch)
        assert counts(b) == (0, 60, 0, 0, 0) and b["id"] == batch["id"]
        assert [x["custom_id"] for x in results(s, b)] == [f"r{i}" for i in range(60)]
