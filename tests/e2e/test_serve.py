"""`llmq serve` as clients see it: the official openai package, raw HTTP, signals. Ids in comments
(C24, ...) are those of the conformance checklist that the server is built against."""
import concurrent.futures
import json
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

httpx = pytest.importorskip("httpx")
openai = pytest.importorskip("openai")

PROMPT = "It was a bright cold day, and"
LONG = {"prompt": PROMPT, "max_tokens": 900, "ignore_eos": True, "temperature": 1, "seed": 1}


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as c:
        yield c


def metric(server, name, **labels):
    """Sum of the samples of that name whose labels hold these."""
    total = 0.0
    for line in server.get("/metrics").read().decode().splitlines():
        if line.startswith(name + "{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
            total += float(line.rsplit(" ", 1)[1])
    return total


def wait_metric(server, name, want, timeout=10):
    end = time.monotonic() + timeout
    while metric(server, name) != want:
        assert time.monotonic() < end, f"{name} is {metric(server, name)}, not {want}"
        time.sleep(0.02)


def sse(response):
    """The events of a stream, strictly: framing, UTF-8, exactly one [DONE], at the end."""
    events = []
    for part in b"".join(response.iter_bytes()).split(b"\n\n")[:-1]:
        if part.startswith(b":"):
            continue
        assert part.startswith(b"data: ") and b"\n" not in part, part
        events.append(part[6:].decode("utf-8"))
    assert events[-1] == "[DONE]" and events.count("[DONE]") == 1
    return [json.loads(e) for e in events[:-1]]


def stream(server, body, path="/v1/completions"):
    with httpx.stream("POST", server.url + path, json={**body, "stream": True}, timeout=60) as r:
        assert r.status_code == 200, r.read()
        assert r.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert r.headers["x-accel-buffering"] == "no"
        return sse(r)


def raw_post(body):
    data = json.dumps(body).encode()
    return (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(data) + data)


# ---- discovery ----

def test_models_are_listed(server, client):  # C01, C02
    card = client.models.list().data[0]
    assert card.id == "novels-6m" and card.object == "model" and card.max_model_len == 1024
    assert client.models.retrieve(card.id).id == card.id
    with pytest.raises(openai.NotFoundError) as e:
        client.models.retrieve("nope")
    assert e.value.code == "model_not_found"


def test_operations_answer(server, llmq):  # C04-C07
    assert server.get("/health").status == 200
    assert json.loads(server.get("/ready").read())["status"] == "ready"
    version = json.loads(server.get("/version").read())["version"]
    assert llmq("--version").stdout.split()[-1] == version
    assert json.loads(server.get("/load").read())["server_load"] == 0
    r = server.get("/metrics")
    assert r.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = r.read().decode()
    for name in ("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:prompt_tokens_total",
                 "vllm:time_to_first_token_seconds_bucket", "vllm:request_success_total"):
        assert f"\n{name}{{" in text, name
    for line in text.splitlines():
        assert line.startswith("#") or float(line.rsplit(" ", 1)[1]) >= 0, line


# ---- completions ----

def test_a_completion(server, client):  # C24-C26
    a = client.completions.create(model="novels-6m", prompt=PROMPT, max_tokens=5, temperature=0)
    ids = server.post_json("/tokenize", {"prompt": PROMPT})["tokens"]
    assert a.object == "text_completion" and a.id.startswith("cmpl-")
    assert a.choices[0].index == 0 and a.choices[0].finish_reason == "length"
    assert a.usage.prompt_tokens == len(ids) and a.usage.completion_tokens == 5
    assert a.usage.total_tokens == len(ids) + 5
    b = client.completions.create(model="novels-6m", prompt=ids, max_tokens=5, temperature=0)
    assert b.choices[0].text == a.choices[0].text and b.usage.total_tokens == a.usage.total_tokens
    c = client.completions.create(model="novels-6m", prompt=PROMPT, temperature=0,
                                  extra_body={"ignore_eos": True})
    assert c.usage.completion_tokens == 16 and c.choices[0].text.startswith(a.choices[0].text)


def test_several_prompts_and_samples(client):  # C27-C30, C42
    def ask(prompt, **more):
        more = {"max_tokens": 8, "temperature": 0, **more}
        return [x.text for x in client.completions.create(model="novels-6m", prompt=prompt,
                                                          **more).choices]
    assert ask(["One day", "The sea"]) == ask("One day") + ask("The sea")
    three = ask("One day", n=3, temperature=1, seed=7)
    assert three == ask("One day", n=3, temperature=1, seed=7) and len(set(three)) > 1
    assert three[0] == ask("One day", temperature=1, seed=7)[0]
    assert len(set(ask("One day", n=3))) == 1
    four = client.completions.create(model="novels-6m", prompt=["One day", "The sea"], n=2,
                                     max_tokens=4)
    assert [x.index for x in four.choices] == [0, 1, 2, 3]
    assert len({ask("One day", temperature=1, seed=s)[0] for s in range(8)}) > 1


def test_echo_and_logprobs(server):  # C31-C34
    ids = server.post_json("/tokenize", {"prompt": PROMPT})["tokens"]
    a = server.post_json("/v1/completions", {"prompt": PROMPT, "echo": True, "max_tokens": 0,
                                             "logprobs": 3})
    c = a["choices"][0]
    lp = c["logprobs"]
    assert c["text"] == PROMPT and c["finish_reason"] == "length"
    assert a["usage"]["completion_tokens"] == 0
    assert [len(lp[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == \
        [len(ids)] * 4
    assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None
    assert all(x <= 0 for x in lp["token_logprobs"][1:])
    assert lp["text_offset"] == sorted(lp["text_offset"])
    for k, want in ((0, {1}), (5, {5, 6})):
        b = server.post_json("/v1/completions", {"prompt": PROMPT, "max_tokens": 6, "logprobs": k,
                                                 "temperature": 1, "seed": 3})
        c = b["choices"][0]
        assert "".join(c["logprobs"]["tokens"]) == c["text"]
        for token, offset in zip(c["logprobs"]["tokens"], c["logprobs"]["text_offset"]):
            assert c["text"][offset:].startswith(token)
        for token, top in zip(c["logprobs"]["tokens"], c["logprobs"]["top_logprobs"]):
            assert len(top) in want and token in top
    # the echoed logprobs of a text equal those of its generation
    g = server.post_json("/v1/completions", {"prompt": ids, "max_tokens": 6, "temperature": 0,
                                             "logprobs": 0, "return_token_ids": True})["choices"][0]
    e = server.post_json("/v1/completions", {"prompt": ids + g["token_ids"], "max_tokens": 0,
                                             "echo": True, "logprobs": 0})["choices"][0]
    assert e["logprobs"]["token_logprobs"][len(ids):] == g["logprobs"]["token_logprobs"]


def test_stops(server):  # C35-C37
    base = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    full = server.post_json("/v1/completions", {**base, "return_token_ids": True})["choices"][0]
    text = full["text"]
    for stop in (text[3:4], text[5:11], text[2:14], text[:1]):
        want = text[:text.index(stop)]
        c = server.post_json("/v1/completions", {**base, "stop": stop})["choices"][0]
        assert c["text"] == want and c["finish_reason"] == "stop" and c["stop_reason"] == stop
        c = server.post_json("/v1/completions", {**base, "stop": ["zzzz", stop],
                                                 "include_stop_str_in_output": True})["choices"][0]
        assert c["text"] == want + stop
        events = stream(server, {**base, "stop": stop})
        assert "".join(e["choices"][0]["text"] for e in events) == want
    c = server.post_json("/v1/completions", {**base, "stop": "never there"})["choices"][0]
    assert c["text"] == text and c["finish_reason"] == "length"
    third = full["token_ids"][2]
    c = server.post_json("/v1/completions", {**base, "stop_token_ids": [third]})["choices"][0]
    assert c["finish_reason"] == "stop" and c["stop_reason"] == third
    assert text.startswith(c["text"]) and len(c["text"]) < len(text)


def test_sampling_parameters_act(server):  # C40, C43
    base = {"prompt": PROMPT, "max_tokens": 8, "ignore_eos": True, "return_token_ids": True}

    def ids(**more):
        return server.post_json("/v1/completions", {**base, **more})["choices"][0]["token_ids"]
    greedy = ids(temperature=0)
    for same in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1}):
        assert ids(temperature=1, seed=5, **same) == greedy
    assert ids(temperature=0, logit_bias={"65": 100}) == [65] * 8
    assert greedy[0] not in ids(temperature=0, logit_bias={str(greedy[0]): -100})
    assert set(ids(temperature=1, allowed_token_ids=[70, 71])) <= {70, 71}


def test_the_prefix_cache_is_reported(server):  # C48
    ids = server.post_json("/tokenize", {"prompt": "The old man " * 40})["tokens"]
    body = {"prompt": ids, "max_tokens": 4, "temperature": 0, "cache_salt": str(time.time())}
    one = server.post_json("/v1/completions", body)
    two = server.post_json("/v1/completions", body)
    assert one["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert two["usage"]["prompt_tokens_details"]["cached_tokens"] == (len(ids) - 1) // 16 * 16
    assert two["choices"] == one["choices"]


def test_the_context_length_is_a_limit(server):  # C49, C95, C105
    ids = [65] * 1023
    a = server.post_json("/v1/completions", {"prompt": ids, "max_tokens": 1, "ignore_eos": True})
    assert a["choices"][0]["finish_reason"] == "length"
    for body in ({"prompt": ids, "max_tokens": 2}, {"prompt": [65] * 1025, "max_tokens": 1},
                 {"prompt": "a b " * 3000000, "max_tokens": 1}):
        start = time.monotonic()
        e = server.post_json("/v1/completions", body, status=400)["error"]
        assert e["code"] == "context_length_exceeded" and "1024" in e["message"]
        assert time.monotonic() - start < 5


# ---- streams ----

def test_a_stream_equals_the_whole(server, client):  # C53-C57, C60-C62
    body = {"prompt": PROMPT, "max_tokens": 20, "temperature": 1, "seed": 11, "n": 3, "logprobs": 2,
            "echo": True}
    whole = server.post_json("/v1/completions", body)
    events = stream(server, {**body, "stream_options": {"include_usage": True}})
    assert all(e["usage"] is None for e in events[:-1])
    assert events[-1]["choices"] == [] and events[-1]["usage"] == {
        **whole["usage"], "prompt_tokens_details": events[-1]["usage"]["prompt_tokens_details"]}
    assert len({e["id"] for e in events}) == 1 and len({e["created"] for e in events}) == 1
    for i, choice in enumerate(whole["choices"]):
        mine = [e["choices"][0] for e in events[:-1] if e["choices"][0]["index"] == i]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == \
            [choice["finish_reason"]] and mine[-1]["finish_reason"]
        assert mine[0]["text"].startswith(PROMPT)
        for key, value in choice["logprobs"].items():
            assert [x for c in mine for x in c["logprobs"][key]] == value
    assert not any("usage" in e for e in stream(server, {"prompt": "a", "max_tokens": 3}))
    text = "".join(c.choices[0].text for c in client.completions.create(
        model="novels-6m", prompt=PROMPT, max_tokens=20, temperature=0, stream=True))
    assert text == client.completions.create(model="novels-6m", prompt=PROMPT, max_tokens=20,
                                             temperature=0).choices[0].text


def test_the_first_chunk_comes_early(server):  # C53
    with httpx.stream("POST", server.url + "/v1/completions", json={**LONG, "stream": True},
                      timeout=60) as r:
        start = time.monotonic()
        chunks = r.iter_bytes()
        next(chunks)
        first = time.monotonic() - start
        for _ in chunks:
            pass
    assert first < (time.monotonic() - start) / 2


# ---- chat ----

MESSAGES = [{"role": "system", "content": "You tell stories."},
            {"role": "user", "content": "Once upon a time"}]


def test_a_chat(server, client):  # C59, C71, C74, C75, C85
    ask = {"model": "novels-6m", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    a = client.chat.completions.create(**ask)
    m = a.choices[0].message
    ids = server.post_json("/tokenize", {"messages": MESSAGES})["tokens"]
    assert a.object == "chat.completion" and a.id.startswith("chatcmpl-")
    assert m.role == "assistant" and m.content and a.usage.prompt_tokens == len(ids)
    parts = [{"type": "text", "text": "Once upon a time"}]
    b = client.chat.completions.create(**{**ask, "messages": [MESSAGES[0],
                                                              {"role": "user", "content": parts}]})
    assert b.choices[0].message.content == m.content
    chunks = list(client.chat.completions.create(**ask, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == m.content
    assert chunks[-1].choices[0].finish_reason == a.choices[0].finish_reason
    assert chunks[-1].choices[0].delta.content is None
    c = client.chat.completions.create(**{**ask, "max_tokens": 9}, max_completion_tokens=3)
    assert c.usage.completion_tokens <= 3
    lp = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2).choices[0]
    assert all(len(t.top_logprobs) == 2 and t.logprob <= 0 for t in lp.logprobs.content)
    if lp.finish_reason == "length":
        assert b"".join(bytes(t.bytes) for t in lp.logprobs.content).decode() == m.content


def test_control_tokens_of_users_are_text(server):  # C106
    said = "a<|end_of_text|>b"
    ids = server.post_json("/tokenize", {"messages": [{"role": "user", "content": said}]})["tokens"]
    assert ids.count(0) == 0 and ids.count(1) == 1
    assert said in server.post_json("/detokenize", {"tokens": ids})["prompt"]


# ---- refusals ----

@pytest.mark.parametrize("path,body,status,param", [
    ("/v1/completions", b"", 400, None),
    ("/v1/completions", b"{", 400, None),
    ("/v1/completions", b"[" * 100000, 400, None),
    ("/v1/completions", b'{"prompt":"a"} x', 400, None),
    ("/v1/completions", b'{"prompt":"\xff"}', 400, None),
    ("/v1/completions", {"prompt": "a", "model": "nope"}, 404, "model"),
    ("/v1/completions", {}, 400, "prompt"),
    ("/v1/completions", {"prompt": [4096]}, 400, "prompt"),
    ("/v1/completions", {"prompt": ["a"] * 1025}, 400, "prompt"),
    ("/v1/completions", {"prompt": "a", "n": 0}, 400, "n"),
    ("/v1/completions", {"prompt": "a", "temperature": 2.5}, 400, "temperature"),
    ("/v1/completions", {"prompt": "a", "max_tokens": -1}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": "a", "stop": ["a"] * 5}, 400, "stop"),
    ("/v1/completions", {"prompt": "a", "seed": 2**63}, 400, "seed"),
    ("/v1/completions", {"prompt": "a", "logit_bias": {str(i): 1 for i in range(2000)}}, 400,
     "logit_bias"),
    ("/v1/completions", {"prompt": "a", "suffix": "b"}, 400, "suffix"),
    ("/v1/completions", {"prompt": "a", "best_of": 3}, 400, "best_of"),
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "json_object"}}, 400,
     "response_format"),
    ("/v1/chat/completions", {"messages": []}, 400, "messages"),
    ("/v1/chat/completions", {"messages": MESSAGES, "tools": []}, 400, "tools"),
    ("/v1/chat/completions", {"messages": [{"role": "x", "content": "y"}]}, 400, "messages"),
    ("/v1/chat/completions", {"messages": MESSAGES, "top_logprobs": 2}, 400, "top_logprobs"),
])
def test_bad_requests_are_refused(server, path, body, status, param):  # C89-C109
    e = server.post_json(path, body, status=status)
    assert set(e) == {"error"} and set(e["error"]) == {"message", "type", "param", "code"}
    assert e["error"]["param"] == param and e["error"]["type"] == "invalid_request_error"
    assert "/" not in e["error"]["message"].replace("application/json", "")
    assert not re.search("0x[0-9a-f]{5}", e["error"]["message"])
    server.post_json("/v1/completions", {"prompt": "hi", "max_tokens": 1})  # the canary


def test_http_limits(server):  # C08, C91, C92
    assert httpx.get(server.url + "/nope").status_code == 404
    r = httpx.put(server.url + "/v1/completions")
    assert r.status_code == 405 and r.headers["allow"] == "POST"
    assert httpx.post(server.url + "/v1/completions", content=b"{}").status_code == 415
    r = httpx.post(server.url + "/v1/completions", content=b"x" * (33 << 20),
                   headers={"Content-Type": "application/json"})
    assert r.status_code == 413
    with socket.create_connection(("127.0.0.1", server.port)) as s:  # C12
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  b"Expect: 100-continue\r\nContent-Length: 32\r\nConnection: close\r\n\r\n")
        assert s.recv(100).startswith(b"HTTP/1.1 100 ")
        s.sendall(b'{"prompt": "a", "max_tokens": 1}')
        assert b" 200 OK" in s.recv(10000)


# ---- many clients ----

def test_an_answer_does_not_depend_on_the_company(server):  # C121
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0.9, "seed": 42, "logprobs": 3}
    alone = server.post_json("/v1/completions", body)["choices"]
    noise = {"prompt": "Noise " * 30, "max_tokens": 40}
    with concurrent.futures.ThreadPoolExecutor(48) as pool:
        others = [pool.submit(server.post_json, "/v1/completions", {**noise, "seed": i})
                  for i in range(16)]
        same = [pool.submit(server.post_json, "/v1/completions", body) for _ in range(32)]
        for f in same:
            assert f.result()["choices"] == alone
        for f in others:
            f.result()


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_frees_its_sequences(server, streamed):  # C68, T-49
    wait_metric(server, "vllm:num_requests_running", 0)
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        s.sendall(raw_post({**LONG, "n": 4, "stream": streamed}))
        wait_metric(server, "vllm:num_requests_running", 4)
        if streamed:
            s.recv(100)
    start = time.monotonic()
    wait_metric(server, "vllm:num_requests_running", 0)
    assert time.monotonic() - start < 2
    assert metric(server, "vllm:kv_cache_usage_perc") == 0


def test_clients_that_come_and_go(server):  # T-50
    def once(i):
        with socket.create_connection(("127.0.0.1", server.port)) as s:
            s.sendall(raw_post({**LONG, "stream": i % 2 == 0, "n": 1 + i % 3}))
            time.sleep((i * 37 % 50) / 1000)
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        list(pool.map(once, range(256)))
    wait_metric(server, "vllm:num_requests_running", 0)
    wait_metric(server, "vllm:num_requests_waiting", 0)
    assert metric(server, "vllm:kv_cache_usage_perc") == 0
    server.post_json("/v1/completions", {"prompt": "hi", "max_tokens": 1})


def test_counters_add_up(server):  # C122
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total",
             "vllm:request_success_total")
    before = [metric(server, n) for n in names]
    sums = [0, 0, 0]
    for body in ({"prompt": "a b", "n": 2}, {"prompt": ["a", "b c d"]}, {"prompt": [65, 66]}):
        u = server.post_json("/v1/completions", {**body, "max_tokens": 5})
        sums[0] += u["usage"]["prompt_tokens"]
        sums[1] += u["usage"]["completion_tokens"]
        sums[2] += len(u["choices"])
    assert [metric(server, n) - b for n, b in zip(names, before)] == sums


def test_a_full_queue_says_so(serve, model):  # C114
    s = serve(model, "--max-num-seqs", 1, "--queue", 2)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: s.post("/v1/completions", {**LONG, "max_tokens": 300}),
                                range(8)))
    codes = sorted(a.status for a in answers)
    assert codes == [200] * 3 + [503] * 5, codes
    refused = next(a for a in answers if a.status == 503)
    assert refused.headers["Retry-After"]
    assert json.loads(refused.read())["error"]["code"] == "overloaded"
    assert metric(s, "vllm:admission_rejections_total", reason="queue_full") == 5


# ---- keys, names, life ----

def test_keys_are_asked_for(serve, model):  # C18-C20
    s = serve(model, "--api-key", "one", "--api-key", "two", "--served-model-name", "a/b",
              "--strict-params")
    for path in ("/v1/models", "/metrics", "/load", "/nope"):
        r = s.get(path)
        assert r.status == 401 and r.headers["WWW-Authenticate"] == "Bearer", path
        assert json.loads(r.read())["error"]["code"] == "invalid_api_key"
    assert s.get("/health").status == 200 and s.get("/ready").status == 200
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=s.url + "/v1", api_key="on", max_retries=0).models.list()
    c = openai.OpenAI(base_url=s.url + "/v1", api_key="two", max_retries=0)
    assert c.models.list().data[0].id == "a/b" and c.models.retrieve("a/b").id == "a/b"
    with pytest.raises(openai.BadRequestError) as e:
        c.completions.create(model="a/b", prompt="a", extra_body={"foo": 1})
    assert e.value.param == "foo"


def test_sigterm_lets_requests_finish(serve, model):  # C117, T-13, T-16
    s = serve(model)
    got = {}

    def ask():
        got["answer"] = s.post_json("/v1/completions", {**LONG, "max_tokens": 500})
    t = threading.Thread(target=ask)
    t.start()
    wait_metric(s, "vllm:num_requests_running", 1)
    s.process.send_signal(signal.SIGTERM)
    end = time.monotonic() + 5
    while s.get("/ready").status != 503:
        assert time.monotonic() < end
    r = s.post("/v1/completions", {"prompt": "a"})
    assert r.status == 503 and r.headers["Retry-After"] and r.headers["Connection"] == "close"
    assert json.loads(r.read())["error"]["code"] == "shutting_down"
    t.join()
    assert got["answer"]["usage"]["completion_tokens"] == 500
    assert s.process.wait(10) == 0
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", s.port))


def test_no_time_to_drain_ends_streams_with_an_error(serve, model):  # T-14
    s = serve(model, "--shutdown-timeout", 0)
    with httpx.stream("POST", s.url + "/v1/completions", json={**LONG, "n": 32, "stream": True},
                      timeout=30) as r:
        wait_metric(s, "vllm:num_requests_running", 32)
        start = time.monotonic()
        s.process.send_signal(signal.SIGTERM)
        events = sse(r)
    assert events[-1]["error"]["code"] == "shutting_down"
    assert s.process.wait(10) == 0 and time.monotonic() - start < 4


def test_a_second_signal_ends_at_once(serve, model):  # T-15
    s = serve(model, "--shutdown-timeout", 60)
    with socket.create_connection(("127.0.0.1", s.port)) as c:
        c.sendall(raw_post({**LONG, "n": 64}))
        wait_metric(s, "vllm:num_requests_running", 64)
        s.process.send_signal(signal.SIGTERM)
        while s.get("/ready").status != 503:
            pass
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(5) == -signal.SIGTERM


def test_what_cannot_start_says_why(llmq, model, server, tmp_path):
    p = llmq("serve", model, "--port", server.port, code=1)
    assert "in use" in p.stderr and len(p.stderr.strip().splitlines()) == 1
    p = llmq("serve", tmp_path / "nothing", "--port", 0, code=3)
    assert "nothing" in p.stderr
    llmq("serve", model, "--no-such-flag", code=2)
    llmq("serve", model, "--port", 70000, code=2)


def test_port_0_is_printed(llmq, model):
    p = llmq.start("serve", model, "--port", 0, stderr=subprocess.PIPE)
    try:
        line = p.stderr.readline()
        port = int(line.split("http://127.0.0.1:")[1].split(",")[0])
        assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
    finally:
        p.terminate()
        p.stderr.read()
        assert p.wait(10) == 0


@pytest.mark.parametrize("why, args, says", [
    ("no model", [], "expected one MODEL"),
    ("two models", ["MODEL", "--model", "MODEL"], "expected one MODEL"),
    ("a context beyond the model's", ["--model", "MODEL", "--max-model-len", "1025"], "--max-model-len: expected 0..1024"),
    ("blocks of another size", ["MODEL", "--block-size", "12"], "--block-size: expected 8, 16 or 32, found 12"),
])
def test_wrong_usage_of_the_server_is_refused(llmq, model, why, args, says):
    p = llmq("serve", "--port", "0", *[model if x == "MODEL" else x for x in args], code=2)
    assert says in p.stderr, why


def test_a_model_without_a_tokenizer_is_served_by_ids(serve):
    arch = pathlib.Path(__file__).resolve().parents[1] / "golden/arch/qwen2"
    s = serve(arch)
    ask = {"prompt": [1, 5, 9, 30], "max_tokens": 3, "temperature": 0, "return_token_ids": True, "logprobs": 2}
    choice = s.post_json("/v1/completions", ask)["choices"][0]
    names = [f"token_id:{i}" for i in choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == names and len(names) > 0
    assert all(len(top) >= 2 for top in choice["logprobs"]["top_logprobs"])
    assert "token ids" in s.post_json("/v1/completions", {**ask, "prompt": "text"}, 400)["error"]["message"]
