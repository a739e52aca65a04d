"""Discovery, HTTP and keys: C01-C23."""
import concurrent.futures
import datetime
import gzip
import json
import signal
import socket
import time

import openai
import pytest

from harness import LIMIT, Server, until
from helpers import ADMIN, SECOND, TINY, USER, http, metric

case = pytest.mark.case


def raw(server, data):
    """Send bytes, read until the server closes; the connection is asked to close by the caller."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT) as s:
        s.sendall(data)
        out = b""
        while part := s.recv(65536):
            out += part
        return out


@case("C01", "C02", "C03")
def test_models_are_listed(server, client, ask):
    models = client.models.list().data
    assert [m.id for m in models] == ["tiny", "org/tiny"]
    for m in models:
        assert m.object == "model" and m.max_model_len == 1024 and isinstance(m.created, int)
        assert m.owned_by and client.models.retrieve(m.id).id == m.id
        assert client.completions.create(model=m.id, prompt="a", max_tokens=1).model == m.id
    for path in ("/v1/models/org/tiny", "/v1/models/org%2Ftiny"):
        assert json.loads(server.get(path).read())["id"] == "org/tiny"
    with pytest.raises(openai.NotFoundError) as e:
        client.models.retrieve("nope")
    assert e.value.code == "model_not_found" and e.value.param == "model"


@case("C01")
def test_cards_say_what_clients_look_for(server, scripted):
    for s, has, calls in ((server, ["tools"], "generic"), (scripted, ["tools", "reasoning"], "derived")):
        card = json.loads(s.get("/v1/models").read())["data"][0]
        assert card["max_model_len"] == card["context_length"] == card["context_window"] == 1024
        assert card["capabilities"] == ["completion", "chat", *has, "structured_output", "embeddings"]
        assert card["tool_format"] == calls


def anthropic(s, path, **more):
    return http("GET", s.url + path, headers={"anthropic-version": "2023-06-01", **more})


@case("C01", "C02")
def test_models_as_anthropics_clients_read_them(server):
    page = anthropic(server, "/v1/models?limit=1000").json()
    assert set(page) == {"data", "has_more", "first_id", "last_id"}
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "tiny", "org/tiny")
    for m, name in zip(page["data"], ["tiny", "org/tiny"], strict=True):
        assert (m["type"], m["id"], m["display_name"], m["lifecycle"]) == ("model", name, name, "active")
        assert datetime.datetime.fromisoformat(m["created_at"]).tzinfo and m["max_input_tokens"] == m["max_tokens"] == 1024
        assert anthropic(server, f"/v1/models/{name}").json() == m
    missing = anthropic(server, "/v1/models/nope")
    assert missing.status_code == 404 and missing.json()["error"]["type"] == "not_found_error"
    assert "data" in server.get("/v1/models").read().decode() and "has_more" not in server.get("/v1/models").read().decode()


@case("C08")
def test_the_version_may_be_left_out(server, keyed, ask):
    """As clients call whose base URL has none."""
    assert json.loads(server.get("/models").read()) == json.loads(server.get("/v1/models").read())
    assert json.loads(server.get("/models/org/tiny").read())["id"] == "org/tiny"
    for path, body in (("completions", {"prompt": "a"}), ("embeddings", {"input": "a"}),
                       ("chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
        more = {"max_tokens": 3, "temperature": 0} if path != "embeddings" else {}
        a, b = (server.post_json(p + path, {**body, **more}) for p in ("/", "/v1/"))
        key = "data" if path == "embeddings" else "choices"
        assert a[key] == b[key], path
    assert http("GET", server.url + "/completions").status_code == 405
    for path in ("/models", "/completions", "/requests/x"):  # no way around the keys
        assert http("DELETE", keyed.url + path).status_code == 401, path
    assert http("DELETE", keyed.url + "/requests/x", headers=keyed.key).status_code == 403


@case("C06")
def test_openmetrics(server, ask):
    """As prometheus_client's own parser takes it, and the same figures."""
    text = http("GET", server.url + "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3"})
    assert text.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    lines = text.text.splitlines()
    assert lines[-1] == "# EOF" and "# TYPE vllm:generation_tokens counter" in lines
    assert not any(line.startswith("#") and "_total " in line for line in lines)
    les = {line.split('le="')[1].split('"')[0] for line in lines if 'le="' in line}
    assert {"1.0", "0.0025", "200000.0", "+Inf"} <= les and "1" not in les
    plain = server.get("/metrics").read().decode().splitlines()
    names = [[line.split("{")[0] for line in all if not line.startswith("#")] for all in (plain, lines)]
    assert names[0] == names[1]
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    families = {f.name: f for f in parser.text_string_to_metric_families(text.text)}
    assert families["vllm:generation_tokens"].type == "counter"
    assert families["vllm:time_to_first_token_seconds"].type == "histogram"


@case("C04", "C06", "C07")
def test_operations_answer(server, llmq):
    assert server.get("/health").status == 200
    assert http("HEAD", server.url + "/health").status_code == 200
    assert json.loads(server.get("/ready").read())["status"] == "ready"
    version = json.loads(server.get("/version").read())["version"]
    assert llmq("--version").stdout.split()[-1] == version
    assert json.loads(server.get("/load").read())["server_load"] == 0
    first, second = (server.get("/metrics") for _ in range(2))
    assert first.headers["content-type"].startswith("text/plain; version=0.0.4")
    first, second = ({line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
                      for line in r.read().decode().splitlines() if not line.startswith("#")}
                     for r in (first, second))
    names = {key.split("{")[0] for key in first}
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
                 "prompt_tokens_total", "generation_tokens_total", "request_success_total",
                 "num_preemptions_total", "prefix_cache_queries_total", "prefix_cache_hits_total",
                 "cache_config_info", "corrupted_requests_total", "admission_rejections_total",
                 "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_sum",
                 "e2e_request_latency_seconds_count", "request_params_n_count"):
        assert "vllm:" + name in names, name
    assert first.keys() == second.keys() and all(v >= 0 for v in first.values())
    for key in first:
        if key.split("{")[0].endswith(("_total", "_count", "_sum", "_bucket")):
            assert second[key] >= first[key], key


@case("C05")
def test_ready_tells_what_it_waits_for(scripted_llmq, tmp_path, ask):  # T-10
    """Before the model is there, and when it is; what comes after it is in the tests of C117."""
    gate, engine = tmp_path / "gate", tmp_path / "engine"
    s = Server(scripted_llmq, TINY, "--test-load", gate, "--test-engine", engine, log=tmp_path / "log")
    try:
        r = s.get("/ready")
        body = json.loads(r.read())
        assert r.status == 503 and body["status"] == "loading" and body["reason"]
        assert body["progress"] == 0
        assert s.get("/health").status == 200
        r = s.post("/v1/completions", {"prompt": "a"})
        assert r.headers["Retry-After"]
        ask.check_error(r, 503, code="loading", type="service_unavailable_error")
        gate.touch()
        until(lambda: json.loads(s.get("/ready").read())["progress"] == 1)  # the weights are there
        engine.touch()
        assert json.loads(s.wait_ready().get("/ready").read()) == {"status": "ready"}
    finally:
        gate.touch()
        engine.touch()
        s.stop()


@case("C08")
def test_paths_and_methods(server, ask):
    ask.check_error(server.get("/nope"), 404)
    for method, path, allow in (("PUT", "/v1/completions", "POST"),
                                ("POST", "/v1/models", "GET, HEAD"),
                                ("GET", "/v1/completions", "POST"),
                                ("DELETE", "/health", "GET, HEAD")):
        r = http(method, server.url + path)
        assert r.status_code == 405 and r.headers["allow"] == allow, (method, path)
        assert r.json()["error"]["type"] == "invalid_request_error"


@case("C09")
def test_cors_is_off_unless_asked_for(server, keyed):
    ask = {"Origin": "https://good.example", "Access-Control-Request-Method": "POST"}
    r = http("OPTIONS", server.url + "/v1/completions", headers=ask)
    assert r.status_code == 405 and "access-control-allow-origin" not in r.headers
    r = http("OPTIONS", keyed.url + "/v1/completions", headers=ask)
    assert r.status_code == 204 and r.headers["vary"] == "Origin"
    assert r.headers["access-control-allow-origin"] == "https://good.example"
    assert "POST" in r.headers["access-control-allow-methods"]
    assert "authorization" in r.headers["access-control-allow-headers"].lower()
    assert "access-control-allow-credentials" not in r.headers
    r = http("GET", keyed.url + "/v1/models", headers={"Origin": "https://good.example", **keyed.key})
    assert r.status_code == 200
    assert r.headers["access-control-allow-origin"] == "https://good.example"
    asked = {**ask, "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os,x-stainless-retry-count"}
    r = http("OPTIONS", keyed.url + "/v1/chat/completions", headers=asked)
    assert r.headers["access-control-allow-headers"] == asked["Access-Control-Request-Headers"]
    for odd in ("a" * 2049, "a: b", "a;b", '"'):
        r = http("OPTIONS", keyed.url + "/v1/models", headers={**ask, "Access-Control-Request-Headers": odd})
        assert r.status_code == 204 and r.headers["access-control-allow-headers"].startswith("Authorization, "), odd
    for headers in ({**asked, "Origin": "https://evil.example"}, {"Origin": "null"}, {}):
        r = http("OPTIONS", keyed.url + "/v1/completions", headers=headers)
        assert r.status_code == 401 and "access-control-allow-origin" not in r.headers


@case("C10")
def test_a_connection_is_used_again(server):  # T-73
    get = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    out = raw(server, get + get + last)  # pipelined
    assert out.count(b"HTTP/1.1 200 OK") == 3 and out.index(b'"version"') < out.index(b'"status"')


@case("C11")
def test_http_1_0_and_hosts(server):
    out = raw(server, b"GET http://localhost:1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert out.startswith(b"HTTP/1.1 200 ")  # the absolute form
    out = raw(server, b"GET /health HTTP/1.0\r\n\r\n")
    assert b" 200 OK" in out.split(b"\r\n")[0] and b"chunked" not in out.lower()
    out = raw(server, b"GET /health HTTP/1.1\r\n\r\n")
    assert out.startswith(b"HTTP/1.1 400 ") and out.count(b"HTTP/1.1 ") == 1


@case("C11")
def test_names_of_others_are_not_answered(server, keyed, llmq, tmp_path, ask):
    """Against DNS rebinding, where there is no key: a page's own name is in its requests."""
    def status(s, host):
        return raw(s, b"GET /v1/models HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % host).split(b" ")[1]
    evil = (b"evil.example", b"evil.example:80", b"localhost.evil.example", b"127.0.0.1.evil.example",
            b"xlocalhost", b"", b"[::1", b"a:b", b"127.0.0.1:80x")
    for host in evil:
        assert status(server, host) == b"403", host
    for host in (b"localhost", b"LOCALHOST:%d" % server.port, b"a.localhost", b"127.0.0.1", b"[::1]:1",
                 b"localhost.", b"192.168.1.7:8000"):
        assert status(server, host) == b"200", host
    ask.check_error(server.get("/health", headers={"Host": "evil.example"}), 403, code="host_not_allowed",
                    type="permission_error")
    assert status(keyed, b"evil.example") == b"401"  # the key says who may
    with Server(llmq, TINY, "--allowed-host", "good.example", "--allowed-host", "Better.example",
                log=tmp_path / "log") as s:
        for host in (b"good.example:8000", b"better.example", b"localhost"):
            assert status(s, host) == b"200", host
        assert status(s, b"evil.example") == b"403"
    with Server(llmq, TINY, "--allowed-host", "*", log=tmp_path / "any") as s:
        assert status(s, b"evil.example") == b"200"


@case("C12")
def test_expect_continue(server):
    body = b'{"prompt": "a", "max_tokens": 1, "user": "%s"}' % (b"u" * (1 << 20))
    with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  b"Expect: 100-continue\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
                  % len(body))
        assert s.recv(100).startswith(b"HTTP/1.1 100 ")
        s.sendall(body)
        assert b" 200 OK" in s.recv(10000)
    # what is refused by its head is refused at once: no body is asked for
    for head, status in ((b"POST /nope HTTP/1.1\r\nContent-Type: application/json", b"404"),
                         (b"POST /v1/completions HTTP/1.1", b"415")):
        out = raw(server, head + b"\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert out.split(b" ")[1] == status and out.count(b"HTTP/1.1 ") == 1


@case("C13")
def test_chunked_bodies(server):  # T-70, T-72
    head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Connection: close\r\nTransfer-Encoding: chunked\r\n")
    chunks = b'9\r\n{"prompt"\r\n17\r\n: "a", "max_tokens": 1}\r\n0\r\n\r\n'
    assert b" 200 OK" in raw(server, head + b"\r\n" + chunks).split(b"\r\n")[0]
    out = raw(server, head + b"Content-Length: 32\r\n\r\n" + chunks)
    assert b" 400 " in out.split(b"\r\n")[0] and out.count(b"HTTP/1.1 ") == 1
    sent, most = 0, 128  # of 32 MiB that are taken, as many that are dropped, and what lies in buffers
    with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT) as s, \
            pytest.raises((ConnectionResetError, BrokenPipeError)):
        s.sendall(head + b"\r\n")
        for sent in range(most):
            s.sendall(b"100000\r\n" + b" " * 0x100000 + b"\r\n")
    assert 60 < sent < most - 1


@case("C14")
def test_compressed_bodies_are_refused(server, ask):
    ask.check_error(server.post("/v1/completions", gzip.compress(b'{"prompt": "a"}'),
                                headers={"Content-Encoding": "gzip"}), 415)


@case("C15")
def test_request_ids_come_back(scripted):
    r = scripted.get("/health", headers={"X-Request-Id": "abc-1.2"})
    assert r.headers["X-Request-Id"] == "abc-1.2"
    for bad in ("a b", "a\"b", "x" * 129, ""):
        got = scripted.get("/health", headers={"X-Request-Id": bad}).headers["X-Request-Id"]
        assert got.startswith("req-") and got != bad
    until(lambda: "abc-1.2" in scripted.access_log.read_text())


@case("C16", "C17")
def test_answers_are_named(server, ask):
    began = int(time.time())
    one, two = (ask.complete(server, "a", max_tokens=1) for _ in range(2))
    assert one["id"] != two["id"] and one["id"].startswith("cmpl-")
    assert began <= one["created"] <= time.time()
    events = ask.stream(server, {"prompt": "a", "max_tokens": 4, "ignore_eos": True})
    assert len({(e["id"], e["created"]) for e in events}) == 1
    prints = {x["system_fingerprint"] for x in (one, two, *events)}
    assert len(prints) == 1 and prints.pop().startswith("fp_")


@case("C17")
def test_the_fingerprint_tells_arithmetic(server, scripted, llmq, serve, ask, tmp_path):
    """Another kind of weights is another fingerprint."""
    packed = tmp_path / "tiny.llmq"
    llmq("quantize", TINY, "-o", packed, "--method", "rtn")
    mine = ask.complete(server, "a", max_tokens=1)["system_fingerprint"]
    assert ask.complete(serve(packed), "a", max_tokens=1)["system_fingerprint"] != mine


# ---- keys ----

@case("C18")
def test_wrong_keys(keyed, ask):
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer nope"},
                    {"Authorization": f"Basic {USER}"}, {"Authorization": "Bearer "},
                    {"Authorization": f"Bearer {USER}x"}, {"Authorization": f"Bearer {USER[:-1]}"}):
        r = keyed.get("/v1/models", headers=headers)
        assert r.headers["WWW-Authenticate"] == "Bearer"
        ask.check_error(r, 401, code="invalid_api_key")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=keyed.url + "/v1", api_key="on", max_retries=0).models.list()


@case("C19")
def test_right_keys(keyed):
    for headers in ({"Authorization": f"Bearer {USER}"}, {"Authorization": f"bearer {SECOND}"},
                    {"X-Api-Key": SECOND}, {"X-Api-Key": ADMIN}):
        assert http("GET", keyed.url + "/v1/models", headers=headers).status_code == 200, headers


@case("C20")
def test_paths_want_a_key_unless_they_are_open(keyed, ask):  # T-66
    for path in ("/health", "/ready", "/", "/page/page.js"):
        assert http("GET", keyed.url + path).status_code == 200
    for path in ("/v1/models", "/v1/models/org/tiny", "/metrics", "/load", "/version", "/nope"):
        assert http("GET", keyed.url + path).status_code == 401, path
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        assert http("POST", keyed.url + path, json={}).status_code == 401, path
    assert http("DELETE", keyed.url + "/v1/requests/x").status_code == 401


@case("C21")
def test_users_are_no_administrators(keyed, ask):
    r = http("DELETE", keyed.url + "/v1/requests/x", headers=keyed.key)
    assert r.status_code == 403 and r.json()["error"]["type"] == "permission_error"
    r = http("DELETE", keyed.url + "/v1/requests/x", headers={"Authorization": f"Bearer {ADMIN}"})
    assert r.status_code == 404 and r.json()["error"]["code"] == "request_not_found"


@case("C22")
def test_no_spelling_of_a_path_goes_around_the_keys(keyed):
    for path in ("//v1/models", "/v1/../v1/models", "/%761/models", "/v1/models/", "/./v1/models",
                 "/health/../v1/models", "/health/", "/HEALTH", "/v1/models%00", "/health%2f"):
        out = raw(keyed, b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path.encode())
        assert out.split(b" ")[1] in (b"401", b"400"), path
    out = raw(keyed, b"GET /%%76%%31/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
              b"Connection: close\r\n\r\n" % USER.encode())
    assert out.split(b" ")[1] == b"200"  # decoded once, it is the same path


@case("C23")
def test_keys_are_read_again(keyed):
    def status(key):
        return http("GET", keyed.url + "/v1/models", headers={"X-Api-Key": key}).status_code

    def wait(key, want):
        until(lambda: status(key) == want, lambda: (key, want))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(keyed.post_json, "/v1/completions",
                              {"prompt": "a", "max_tokens": 900, "ignore_eos": True},
                              headers={"Authorization": f"Bearer {SECOND}"})
        until(lambda: metric(keyed, "vllm:num_requests_running") or running.done())  # its key was looked at
        keyed.key_file.write_text("sk-new\n")
        keyed.process.send_signal(signal.SIGHUP)
        wait("sk-new", 200)
        assert status(SECOND) == 401 and status(USER) == 200 and status(ADMIN) == 200
        assert running.result()["usage"]["completion_tokens"] == 900
    keyed.key_file.write_text("# none\n")  # what is wrong changes nothing
    keyed.process.send_signal(signal.SIGHUP)
    until(lambda: "what was stays" in keyed.output())
    assert status("sk-new") == 200
    keyed.key_file.write_text(SECOND)
    keyed.process.send_signal(signal.SIGHUP)
    wait(SECOND, 200)
    assert status("sk-new") == 401
