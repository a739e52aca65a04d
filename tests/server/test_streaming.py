"""Streams: C53-C70."""
import json
import socket

import httpx
import openai
import pytest

from harness import LIMIT, until
from helpers import events_of, wait_metric

case = pytest.mark.case
PROMPT = "It was a bright cold day, and"
FAMILY = "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}"


def post(body, path="/v1/completions"):
    data = json.dumps(body).encode()
    return (b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)


@case("C53")
def test_the_first_chunk_comes_early(scripted):
    """A draw takes 40 ms: the first chunk is there long before the nine-hundredth is made."""
    body = {"prompt": "[slow]", "max_tokens": 900, "ignore_eos": True, "stream": True}
    wait_metric(scripted, "vllm:num_requests_running", 0)
    with httpx.stream("POST", scripted.url + "/v1/completions", json=body, timeout=LIMIT) as r:
        assert r.status_code == 200
        chunks = r.iter_bytes()  # kept: one that nobody holds closes the connection
        assert next(chunks)
        wait_metric(scripted, "vllm:num_requests_running", 1)  # of the end of a step, after its chunks


@case("C54", "C55", "C56", "C60", "C61", "C62")
def test_a_stream_equals_the_whole(server, ask):
    body = {"prompt": PROMPT, "max_tokens": 20, "temperature": 1, "seed": 11, "n": 3, "logprobs": 2,
            "echo": True}
    whole = server.post_json("/v1/completions", body)
    events = ask.stream(server, {**body, "stream_options": {"include_usage": True}})
    assert all(e["usage"] is None for e in events[:-1])
    usage = {k: v for k, v in events[-1]["usage"].items() if k != "prompt_tokens_details"}
    assert events[-1]["choices"] == []
    assert usage == {k: v for k, v in whole["usage"].items() if k != "prompt_tokens_details"}
    order = [e["choices"][0]["index"] for e in events[:-1]]
    assert order != sorted(order) and set(order) == {0, 1, 2}  # interleaved
    for i, choice in enumerate(whole["choices"]):
        mine = [e["choices"][0] for e in events[:-1] if e["choices"][0]["index"] == i]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == \
            [choice["finish_reason"]] and mine[-1]["finish_reason"]
        assert mine[0]["text"].startswith(PROMPT)
        assert sum(PROMPT in c["text"] for c in mine) == 1
        for key, value in choice["logprobs"].items():
            assert [x for c in mine for x in c["logprobs"][key]] == value
    for more in ({}, {"stream_options": None}, {"stream_options": {}}):
        assert not any("usage" in e for e in
                       ask.stream(server, {"prompt": "a", "max_tokens": 3, **more}))


@case("C54")
def test_the_client_of_openai_reads_streams(client):
    ask = {"model": "tiny", "prompt": PROMPT, "max_tokens": 20, "temperature": 0}
    text = "".join(c.choices[0].text for c in client.completions.create(**ask, stream=True))
    assert text == client.completions.create(**ask).choices[0].text


@case("C57")
def test_usage_on_every_chunk(server, ask):
    events = ask.stream(server, {"prompt": PROMPT, "max_tokens": 6, "ignore_eos": True,
                                 "stream_options": {"include_usage": True,
                                                    "continuous_usage_stats": True}})
    done = [e["usage"]["completion_tokens"] for e in events]
    assert done == sorted(done) and done[-2:] == [6, 6] and events[-1]["choices"] == []


@case("C58")
def test_stream_options_belong_to_streams(server, ask):
    for body in ({"stream_options": {}}, {"stream": False, "stream_options": {}},
                 {"stream": True, "stream_options": 5},
                 {"stream": True, "stream_options": {"include_usage": "yes"}}):
        ask.check_error(server.post("/v1/completions", {"prompt": "a", **body}), 400,
                        "stream_options")


@case("C59")
def test_a_chat_stream(scripted, ask):
    body = {"messages": [{"role": "user", "content": "[abc]"}], "max_tokens": 60, "temperature": 0}
    events = ask.stream(scripted, body, "/v1/chat/completions")
    deltas = [e["choices"][0]["delta"] for e in events]
    assert deltas[0] == {"role": "assistant", "content": ""} and deltas[-1] == {}
    assert all(set(d) == {"content"} and d["content"] for d in deltas[1:-1])
    assert "".join(d["content"] for d in deltas[1:-1]) == "The cat sat on x the mat."
    assert [e["choices"][0]["finish_reason"] for e in events] == \
        [None] * (len(events) - 1) + ["stop"]
    assert {e["object"] for e in events} == {"chat.completion.chunk"}
    assert len({(e["id"], e["created"], e["model"]) for e in events}) == 1


@case("C63")
def test_characters_stay_whole(scripted, ask, vocabulary):  # T-30
    events = ask.stream(scripted, {"prompt": "[utf8]", "max_tokens": 60, "temperature": 0,
                                   "return_token_ids": True})
    pieces = [e["choices"][0]["text"] for e in events]
    want = f"é 漢 {FAMILY} end"
    assert "".join(pieces) == want and "\ufffd" not in "".join(pieces)
    # every code point comes in the step that completes it: one chunk for each
    assert [p for p in pieces if p] == list(want)


@case("C64")
@pytest.mark.parametrize("name, want", [("broken", "ok \ufffd"), ("bytes", "a\ufffdb\ufffd(c")])
def test_broken_bytes_are_replaced_once(scripted, ask, name, want):
    body = {"prompt": f"[{name}]", "max_tokens": 60, "temperature": 0}
    assert scripted.post_json("/v1/completions", body)["choices"][0]["text"] == want
    events = ask.stream(scripted, body)
    assert "".join(e["choices"][0]["text"] for e in events) == want


@case("C65")
@pytest.mark.parametrize("limit, want", [(60, "one ENx two ENDX"), (6, "one EN"), (5, "one E"),
                                         (15, "one ENx two END"[:15])])
def test_a_withheld_beginning_is_given_back(scripted, ask, limit, want):
    body = {"prompt": "[halves]", "max_tokens": limit, "temperature": 0, "stop": "ENDXY"}
    events = ask.stream(scripted, body)
    text = ""
    for e in events[:-1]:
        text += e["choices"][0]["text"]
        assert not any(text.endswith("ENDXY"[:n]) for n in range(1, 5)) or e is events[-1]
    assert text + events[-1]["choices"][0]["text"] == want


@case("C66")
def test_an_error_inside_a_stream(scripted, scripted_client, ask):
    before = ask.metric(scripted, "vllm:corrupted_requests_total")
    events = ask.stream(scripted, {"prompt": "[nan]", "max_tokens": 60, "temperature": 0})
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == "one t"
    e = events[-1]["error"]
    assert set(events[-1]) == {"error"} and e["code"] == "generation_failed"
    assert e["type"] == "server_error"
    with pytest.raises(openai.APIError) as error:
        list(scripted_client.completions.create(model="chatml", prompt="[nan]", max_tokens=60,
                                                temperature=0, stream=True))
    assert "generation failed" in str(error.value)
    r = scripted.post("/v1/completions", {"prompt": "[nan at once]", "temperature": 0})
    assert r.headers["x-should-retry"] == "false"
    ask.check_error(r, 500, type="server_error", code="generation_failed")
    assert ask.metric(scripted, "vllm:corrupted_requests_total") == before + 3
    ask.canary(scripted)


@case("C67")
def test_a_silent_stream_gets_comments(scripted, gate):
    """The draw takes as long as no three comments have come; one is due after 0.3 s of silence."""
    body = {"prompt": "[held]", "max_tokens": 1, "temperature": 0, "stream": True}
    with gate, httpx.stream("POST", scripted.url + "/v1/completions", json=body, timeout=LIMIT) as r:
        data = b""
        for part in r.iter_bytes():
            data += part
            if data.count(b": ping\n\n") >= 3:
                gate.open()
    assert data.startswith(3 * b": ping\n\n")
    assert events_of(data)[0]["choices"][0]["text"] == "a"


@case("C68")
@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_frees_its_sequences(scripted, ask, streamed):  # T-49
    """Long before the answers would have ended, which takes 80 s."""
    def left():
        return sum(json.loads(line)["status"] == 499 for line in scripted.access_log.read_text().splitlines())
    ask.wait_metric(scripted, "vllm:num_requests_running", 0)
    before, tokens = left(), ask.metric(scripted, "vllm:generation_tokens_total")
    with socket.create_connection(("127.0.0.1", scripted.port)) as s:
        s.sendall(post({"prompt": "[slow]", "max_tokens": 500, "ignore_eos": True, "n": 4,
                        "stream": streamed}))
        ask.wait_metric(scripted, "vllm:num_requests_running", 4)
        for _ in range(3 if streamed else 0):
            s.recv(100)
    ask.wait_metric(scripted, "vllm:num_requests_running", 0)
    assert ask.metric(scripted, "vllm:generation_tokens_total") - tokens < 4 * 500
    assert ask.metric(scripted, "vllm:kv_cache_usage_perc") == 0
    until(lambda: left() == before + 1)


@case("C69")
def test_a_client_that_reads_nothing_is_cut(server, ask):  # T-51
    """Its backlog is bounded: the stream is cut when it is full, and others are served meanwhile."""
    ask.wait_metric(server, "vllm:num_requests_running", 0)
    cut = ask.metric(server, "llmq:http_slow_readers_total")
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", server.port))
        s.sendall(post({"prompt": "a", "max_tokens": 900, "ignore_eos": True, "n": 16, "stream": True,
                        "temperature": 1, "logprobs": 20}))
        until(lambda: ask.complete(server, "hi", max_tokens=1) and
              ask.metric(server, "llmq:http_slow_readers_total") != cut)
    ask.canary(server)


@case("C70")
def test_proxies_are_told_not_to_buffer(server):
    with httpx.stream("POST", server.url + "/v1/completions", timeout=LIMIT,
                      json={"prompt": "a", "max_tokens": 1, "stream": True}) as r:
        assert r.headers["x-accel-buffering"] == "no" and r.headers["cache-control"] == "no-cache"
        assert r.headers["transfer-encoding"] == "chunked"
        r.read()


@pytest.mark.parametrize("path, body", [
    ("/v1/completions", {"prompt": [7] * 300, "max_tokens": 3}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 250}], "max_tokens": 3}),
    ("/completion", {"prompt": [7] * 300, "n_predict": 3}),
])
def test_progress_of_a_prompt(scripted, path, body):
    """return_progress, as llama.cpp's server tells it: after each step of at most 64 tokens here."""
    def events(**more):
        r = httpx.post(scripted.url + path, json={**body, "temperature": 0, "stream": True, **more}, timeout=LIMIT)
        assert r.status_code == 200, r.text
        return [json.loads(line[6:]) for line in r.text.splitlines() if line.startswith("data: {")]
    plain = events(cache_salt="a" + path)
    told = events(cache_salt="b" + path, return_progress=True)
    steps = [e["prompt_progress"] for e in told if "prompt_progress" in e]
    assert len(steps) >= 4 and not any("prompt_progress" in e for e in plain)
    done = [s["processed"] for s in steps]
    assert done == sorted(set(done)) and done[-1] == steps[0]["total"] and done[0] <= 64
    assert all(s["total"] == steps[0]["total"] and s["cache"] == 0 and s["time_ms"] >= 0 for s in steps)

    def text(all_events):
        return [c.get("text") or c.get("delta", {}).get("content") for e in all_events for c in e.get("choices", [])
                if c.get("text") or c.get("delta", {}).get("content")] or \
            [e["content"] for e in all_events if e.get("content")]
    assert text(told) == text(plain)
    again = [e["prompt_progress"] for e in events(cache_salt="b" + path, return_progress=True) if "prompt_progress" in e]
    assert again[0]["cache"] >= 256 and again[-1]["processed"] == again[0]["total"]
