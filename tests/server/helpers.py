"""What the tests of the server ask with, and how they look at answers."""
import json
import pathlib
import re

import httpx
import pytest

from harness import LIMIT, ROOT, SANITIZED, until, with_template  # noqa: F401

TINY = ROOT / "models/novels-1m"
MODEL = ROOT / "models/novels-6m"  # which the other is a draft for
NOT_SANITIZED = pytest.mark.skipif(SANITIZED, reason="a sanitizer's own memory and threads count as well")
USER, SECOND, ADMIN = "sk-user-one", "sk-user-two", "sk-admin"


def metric(server, name, **labels):
    """Sum of the samples of that name whose labels hold these."""
    total = 0.0
    for line in server.get("/metrics").read().decode().splitlines():
        if line.startswith(name + "{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
            total += float(line.rsplit(" ", 1)[1])
    return total


def wait_metric(server, name, want):
    until(lambda: metric(server, name) == want, lambda: f"{name} is {metric(server, name)}, not {want}")


def http(method, url, **more):
    return httpx.request(method, url, timeout=LIMIT, **more)


def events_of(data):
    """The events of a whole stream, strictly: framing, UTF-8, exactly one [DONE], at the end."""
    events = []
    parts = data.split(b"\n\n")
    assert parts.pop() == b""
    for part in parts:
        if part.startswith(b":"):
            continue
        assert part.startswith(b"data: ") and b"\n" not in part, part
        events.append(part[6:].decode("utf-8"))
    assert events[-1] == "[DONE]" and events.count("[DONE]") == 1
    return [json.loads(e) for e in events[:-1]]


def stream(server, body, path="/v1/completions"):
    with httpx.stream("POST", server.url + path, json={**body, "stream": True}, timeout=LIMIT,
                      headers=server.key) as r:
        data = b"".join(r.iter_bytes())
        assert r.status_code == 200, data
        assert r.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert r.headers["x-accel-buffering"] == "no"
        assert r.headers["cache-control"] == "no-cache"
    return events_of(data)


def complete(server, prompt, **more):
    return server.post_json("/v1/completions", {"prompt": prompt, **more})


def check_error(response, status, param=None, code=None, type="invalid_request_error"):  # T-63
    """The one shape of an error; returns its message."""
    data = response.read()
    assert response.status == status, f"{response.status}, not {status}: {data[:500]!r}"
    assert response.headers["Content-Type"] == "application/json"
    body = json.loads(data)
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    e = body["error"]
    assert e["message"] and e["param"] == param and e["type"] == type, e
    assert code is None or e["code"] == code, e
    assert not re.search("0x[0-9a-f]{5}|/(tmp|home|usr|work)", e["message"])
    return e["message"]


def canary(server):
    """The server still answers, and no sequence is left in it."""
    complete(server, "hi", max_tokens=1)
    wait_metric(server, "vllm:num_requests_running", 0)
    assert metric(server, "vllm:num_requests_waiting") == 0
    assert metric(server, "vllm:kv_cache_usage_perc") == 0
