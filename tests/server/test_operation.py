"""Load, limits and life: C114-C126, and the tests T-xx of the same list that need a server."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import string
import subprocess
import time

import httpx
import openai
import pytest

from harness import LIMIT, ROOT, Server, until
from helpers import MODEL, TINY, complete, events_of, http, metric, wait_metric
from test_streaming import post

case = pytest.mark.case
SLOW = {"prompt": "[slow]", "ignore_eos": True}


@pytest.fixture
def serve_scripted(scripted_llmq, script_file, tmp_path):
    running = []

    def start(*args, **more):
        s = Server(scripted_llmq, TINY, "--test-script", script_file, *args,
                   log=tmp_path / f"log{len(running)}", **more)
        running.append(s)
        return s.wait_ready()
    yield start
    for s in running:
        s.stop()


@contextlib.contextmanager
def busy(server):
    """A request runs within it, and ends with it: its client leaves."""
    with socket.create_connection(("127.0.0.1", server.port)) as c:
        c.sendall(post({**SLOW, "max_tokens": 900}))
        wait_metric(server, "vllm:num_requests_running", 1)
        yield


@case("C114", "C115", "C120")
def test_a_full_queue_says_so(serve_scripted, ask):  # T-09
    """One runs, two wait, five are refused; the client of openai comes through by itself."""
    s = serve_scripted("--max-num-seqs", 1, "--queue", 2)
    with concurrent.futures.ThreadPoolExecutor(3) as pool, busy(s):
        waiting = [pool.submit(s.post, "/v1/completions", {"prompt": "a", "max_tokens": 12}) for _ in range(2)]
        wait_metric(s, "vllm:num_requests_waiting", 2)
        for _ in range(5):
            refused = s.post("/v1/completions", {"prompt": "a"})
            assert refused.headers["Retry-After"]
            ask.check_error(refused, 503, code="overloaded", type="service_unavailable_error")
        assert metric(s, "vllm:admission_rejections_total", reason="queue_full") == 5

        def stubborn():
            with openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=50) as c:
                return c.completions.create(model="novels-1m", prompt="a", max_tokens=1).choices
        last = pool.submit(stubborn)
        until(lambda: metric(s, "vllm:admission_rejections_total", reason="queue_full") > 5)
    assert [r.result().status for r in waiting] == [200] * 2 and last.result()


@case("C120")
def test_priorities(serve_scripted):
    """At saturation the lower number goes first, equal ones in the order of arrival. (Again where
    clients on a busy machine saw their answers in another order than they were given.)"""
    s = serve_scripted("--max-num-seqs", 1, "--scheduling-policy", "priority")
    done = []

    def one(name, priority):
        s.post_json("/v1/completions", {**SLOW, "max_tokens": 3, "priority": priority})
        done.append(name)

    def in_order():
        done.clear()
        wait_metric(s, "vllm:num_requests_running", 0)
        with concurrent.futures.ThreadPoolExecutor(8) as pool, busy(s):
            for i, (name, priority) in enumerate((("late", 10), ("later", 10), ("soon", 1), ("now", 0),
                                                  ("at once", -1))):
                pool.submit(one, name, priority)
                until(lambda: metric(s, "vllm:num_requests_waiting") == i + 1 or "at once" in done)
        return done == ["at once", "now", "soon", "late", "later"]
    until(in_order, lambda: done)


@pytest.mark.parametrize("why, args, says", [
    ("no such batching", ["--batching", "often"], "--batching: expected one of"),
    ("a wait without batches", ["--batch-wait-ms", 5], "--batch-wait-ms goes with --batching dynamic"),
    ("a wait below zero", ["--batching", "dynamic", "--batch-wait-ms", -1], "--batch-wait-ms: expected"),
    ("a ratio with batches", ["--batching", "static", "--waiting-served-ratio", 1],
     "--waiting-served-ratio goes with --batching continuous"),
    ("no guesses", ["--num-speculative-tokens", 4],
     "--num-speculative-tokens goes with --speculative-ngram, --speculative-mtp or --speculative-model"),
    ("two that guess", ["--speculative-ngram", "--speculative-model", TINY], "exclude each other"),
    ("too many guesses", ["--speculative-ngram", "--num-speculative-tokens", 16],
     "--num-speculative-tokens: expected"),
    ("no ratio", ["--max-waiting-tokens", 4], "--max-waiting-tokens goes with --waiting-served-ratio"),
])
def test_engine_options_that_make_no_sense(llmq, why, args, says):
    p = llmq("serve", TINY, "--port", 0, *args, code=2)
    assert says in p.stderr and "listening" not in p.stderr, why


@case("C121")
@pytest.mark.parametrize("args", [
    ["--batching", "static", "--max-num-seqs", 3],
    ["--batching", "dynamic", "--batch-wait-ms", 300, "--max-num-seqs", 5],
    ["--waiting-served-ratio", 2, "--max-waiting-tokens", 6]], ids=lambda a: a[1])
def test_batching_changes_when_and_not_what(server, serve, args):
    s = serve(TINY, *args, "--served-model-name", "tiny")
    bodies = [{"prompt": f"Tale {i}:", "max_tokens": 3 + 7 * i, "ignore_eos": True, "logprobs": 2,
               "temperature": i % 2, "seed": i} for i in range(7)]
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(7) as pool:
        answers = list(pool.map(lambda b: s.post_json("/v1/completions", b)["choices"], bodies))
    assert answers == [server.post_json("/v1/completions", b)["choices"] for b in bodies]
    if "dynamic" in args:  # a batch of five, then two that wait for more
        assert time.monotonic() - start > 0.3


@case("C121")
@pytest.mark.parametrize("model, args", [
    (TINY, ["--speculative-ngram"]),
    (MODEL, ["--speculative-model", TINY, "--num-speculative-tokens", 4])], ids=["n-grams", "draft"])
def test_speculation_changes_nothing(serve, ask, model, args):
    """Guesses are made, some right and some wrong, and answers, logprobs and streams are the same."""
    server = serve(model, "--served-model-name", "tiny")
    s = serve(model, *args, "--served-model-name", "tiny")
    text = "the old man and the old dog and the old man and the old dog and the old man "
    bodies = [{"prompt": text, "max_tokens": 60, "temperature": 0, "logprobs": 3, "ignore_eos": True},
              {"prompt": text, "max_tokens": 60, "temperature": 0.7, "seed": 3, "n": 2},
              {"prompt": text, "max_tokens": 60, "stop": ["dog"], "temperature": 0},
              {"prompt": text, "max_tokens": 60, "temperature": 0, "frequency_penalty": 0.5},
              {"prompt": text, "max_tokens": 40, "temperature": 0,
               "guided_regex": "(the (old|young) (man|dog) and ){4}"}]
    for b in bodies:
        want = server.post_json("/v1/completions", b)["choices"]
        assert s.post_json("/v1/completions", b)["choices"] == want, b
        texts = [""] * len(want)
        for e in ask.stream(s, b):
            texts[e["choices"][0]["index"]] += e["choices"][0]["text"]
        assert texts == [c["text"] for c in want]
    guessed = metric(s, "vllm:spec_decode_num_draft_tokens_total")
    right = metric(s, "vllm:spec_decode_num_accepted_tokens_total")
    assert 0 < right < guessed and metric(s, "vllm:spec_decode_num_drafts_total") > 0
    by_place = [float(x.rsplit(" ", 1)[1]) for x in s.get("/metrics").read().decode().splitlines()
                if x.startswith("vllm:spec_decode_num_accepted_tokens_per_pos_total{")]
    assert sum(by_place) == right and by_place == sorted(by_place, reverse=True)
    assert metric(server, "vllm:spec_decode_num_draft_tokens_total") == 0


def letters(name, folder):
    """A golden model of 64 ids with a letter for each."""
    shutil.copytree(ROOT / "tests/golden/arch" / name, folder)
    vocab = {c: i for i, c in enumerate(string.ascii_letters + "\u0120.,!?012345")}
    assert len(vocab) == 63
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": bytes_of, "post_processor": None,
        "decoder": bytes_of, "model": {"type": "BPE", "vocab": vocab | {"6": 63}, "merges": []}}))
    return folder


@pytest.mark.parametrize("draft", [None, "qwen3-next", "mamba2"])
def test_speculation_changes_nothing_where_layers_carry_a_state(serve, ask, tmp_path, draft):
    """A draft with a state as well; guesses that are right, and others that are taken back."""
    model = letters("qwen3-next", tmp_path / "model")
    args = ["--speculative-model", letters(draft, tmp_path / "draft")] if draft else ["--speculative-ngram"]
    server, s = serve(model, "--served-model-name", "m"), serve(model, *args, "--served-model-name", "m")
    for b in [{"temperature": 0, "logprobs": 3}, {"temperature": 0.7, "seed": 3, "n": 2}, {"temperature": 0, "stop": ["do"]},
              {"temperature": 0, "guided_regex": "(the (old|young) (man|dog) and ){4}"}]:
        body = {"prompt": "the old dog and the old dog and ", "max_tokens": 60, "ignore_eos": True, **b}
        for _ in range(2):  # from the cache as well
            want = server.post_json("/v1/completions", body)["choices"]
            assert s.post_json("/v1/completions", body)["choices"] == want, body
    right = metric(s, "vllm:spec_decode_num_accepted_tokens_total")
    assert 0 < right < metric(s, "vllm:spec_decode_num_draft_tokens_total")


@case("C121")
@pytest.mark.parametrize("name", ["glm4-moe", "deepseek-v3", "qwen3.5", "mimo"])
def test_the_models_own_head_changes_nothing(llmq, serve, tmp_path, name):
    """Kept by `quantize`, used as it is stored, unasked where there is room, and mostly right."""
    source, q = ROOT / "tests/golden/mtp" / name, tmp_path / "q.llmq"
    llmq("quantize", source, "-o", q, "--method", "rtn", "--bits", 8, "--log-level", "error")
    llmq("convert", q, "-o", tmp_path / "folder", "--to", "safetensors", "--dtype", "f32")
    want, *others = [serve(m, *more, "--served-model-name", "tiny") for m, more in (
        (q, ["--no-speculative-mtp"]), (q, []), (tmp_path / "folder", ["--speculative-mtp", "--num-speculative-tokens", 2]))]
    bodies = [{"prompt": [3 + (7 * i + k) % 60 for i in range(4 + 9 * k)], "max_tokens": 40, "ignore_eos": True,
               "temperature": k % 2, "seed": k, "logprobs": 2} for k in range(5)]
    for s in others[:1]:
        for b in bodies + bodies:  # the second time from the prefix cache
            assert s.post_json("/v1/completions", b)["choices"] == want.post_json("/v1/completions", b)["choices"], b
    for s in others:
        s.post_json("/v1/completions", bodies[0])
        guessed, right = (metric(s, f"vllm:spec_decode_num_{what}_tokens_total") for what in ("draft", "accepted"))
        assert 0.4 * guessed < right and guessed > 5, (guessed, right)
    assert metric(want, "vllm:spec_decode_num_draft_tokens_total") == 0
    assert "draft_weights_bytes" not in llmq.json("serve", q, "--speculative-ngram", "--dry-run")
    p = llmq.json("serve", q, "--dry-run")
    assert p == llmq.json("serve", q, "--speculative-mtp", "--dry-run") | {"memory_bytes": p["memory_bytes"]}
    assert p["draft_weights_bytes"] > 0 and llmq.json("plan", q, "--speculative-mtp", "--bandwidth", 10, "--gflops", 100)[
        "draft_weights_bytes"] == p["draft_weights_bytes"]


@pytest.mark.parametrize("name", ["glm4-moe", "qwen3.5"])
def test_a_head_that_is_a_block_of_gguf_guesses(llmq, serve, tmp_path, name):
    """Kept by convert and by quantize, read from there, and mostly right."""
    source = ROOT / "tests/golden/mtp" / name
    llmq("convert", source, "-o", tmp_path / "m.gguf", "--to", "gguf")
    llmq("quantize", source, "-o", tmp_path / "q.gguf", "--to", "gguf:Q8_0", "--method", "rtn", "--log-level", "error")
    body = {"prompt": [3 + 7 * i % 60 for i in range(9)], "max_tokens": 40, "ignore_eos": True, "logprobs": 2, "temperature": 0}
    for file in ("m.gguf", "q.gguf"):
        want, s = (serve(tmp_path / file, more, "--served-model-name", "tiny") for more in ("--no-speculative-mtp", "--speculative-mtp"))
        assert s.post_json("/v1/completions", body)["choices"] == want.post_json("/v1/completions", body)["choices"]
        guessed, right = (metric(s, f"vllm:spec_decode_num_{what}_tokens_total") for what in ("draft", "accepted"))
        assert 0.4 * guessed < right and guessed > 5, (guessed, right)


def test_an_eagle_draft_changes_nothing(llmq, serve, tmp_path):
    """SpecForge's folder beside the model that it was trained for; beside others, and alone, it is refused."""
    source, draft, q = ROOT / "tests/golden/mtp/mimo", ROOT / "tests/golden/eagle3", tmp_path / "q.llmq"
    llmq("quantize", source, "-o", q, "--method", "rtn", "--bits", 8, "--log-level", "error")
    want, s = (serve(q, *more, "--served-model-name", "tiny") for more in (
        ["--no-speculative-mtp"], ["--speculative-model", draft]))
    bodies = [{"prompt": [3 + (7 * i + k) % 60 for i in range(4 + 9 * k)], "max_tokens": 40, "ignore_eos": True,
               "temperature": k % 2, "seed": k, "logprobs": 2} for k in range(5)]
    for b in bodies + bodies:  # the second time from the prefix cache
        assert s.post_json("/v1/completions", b)["choices"] == want.post_json("/v1/completions", b)["choices"], b
    guessed, right = (metric(s, f"vllm:spec_decode_num_{what}_tokens_total") for what in ("draft", "accepted"))
    assert 0.3 * guessed < right and guessed > 5, (guessed, right)
    dry = llmq.json("serve", q, "--speculative-model", draft, "--dry-run")
    assert dry["draft_weights_bytes"] == llmq.json("plan", q, "--speculative-model", draft, "--bandwidth", 10,
                                                   "--gflops", 100)["draft_weights_bytes"] > 0
    rotated = tmp_path / "rotated.llmq"
    llmq("quantize", source, "-o", rotated, "--method", "rtn", "--bits", 8, "--rotate", "--log-level", "error")
    for model, says in ((rotated, "quantized with --rotate"), (TINY, "vocabulary")):
        p = llmq("serve", model, "--port", 0, "--speculative-model", draft, code=3)
        assert "--speculative-model" in p.stderr and says in p.stderr
    for args in (("quantize", draft, "-o", tmp_path / "no.llmq", "--method", "rtn"), ("run", draft, "x"), ("plan", draft),
                 ("plan", draft / "config.json")):
        assert "found an EAGLE-3 draft, which runs beside one" in llmq(*args, code=3).stderr


def test_a_head_that_cannot_guess_is_refused(llmq, tmp_path):
    source, q = ROOT / "tests/golden/mtp/glm4-moe", tmp_path / "q.llmq"
    llmq("quantize", source, "-o", q, "--method", "rtn", "--bits", 8, "--rotate", "--log-level", "error")
    for model, says in ((q, "quantized with --rotate"), (ROOT / "tests/golden/arch/glm4-moe", "found no tensor"),
                        (TINY, "found a LlamaForCausalLM, of which none is known")):
        p = llmq("serve", model, "--port", 0, "--speculative-mtp", code=3)
        assert "--speculative-mtp" in p.stderr and says in p.stderr


def test_a_draft_of_another_vocabulary_is_refused(llmq):
    other = ROOT / "tests/golden/arch/llama-128"
    p = llmq("serve", TINY, "--port", 0, "--speculative-model", other, code=3)
    assert "--speculative-model" in p.stderr and "vocabulary" in p.stderr
    assert "no such" in llmq("serve", TINY, "--port", 0, "--speculative-model", "nowhere",
                             code=3).stderr.lower()


@pytest.mark.parametrize("command", ["serve", "batch"])
def test_a_draft_whose_tokens_mean_something_else_is_refused(llmq, tmp_path, command):
    """As many ids and the same shape, but two of them are spelled the other way round."""
    draft = tmp_path / "draft"
    shutil.copytree(TINY, draft)
    tokenizer = json.loads((draft / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    a, b = (next(t for t, i in vocab.items() if i == k) for k in (500, 501))
    vocab[a], vocab[b] = vocab[b], vocab[a]
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "in").write_text("")
    args = ["serve", TINY, "--port", 0] if command == "serve" else ["batch", TINY, tmp_path / "in", tmp_path / "out"]
    p = llmq(*args, "--speculative-model", draft, code=3)
    assert f"{draft}: token 500: expected the model's '{a}', found '{b}'" in p.stderr
    assert not (tmp_path / "out").exists()


@case("C116")
def test_preemption_changes_nothing(server, serve, ask):
    """A pool for one sequence and a half: all come through, with the answers of the roomy server."""
    s = serve(TINY, "--max-model-len", 256, "--kv-cache-memory", 768 * 400, "--max-num-seqs", 8,
              "--served-model-name", "tiny")
    bodies = [{"prompt": f"Story {i}: ", "max_tokens": 200, "ignore_eos": True, "temperature": 1,
               "seed": i, "logprobs": 1} for i in range(6)]
    want = [server.post_json("/v1/completions", b)["choices"] for b in bodies]

    def preempted():  # not if they came one by one
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            tight = list(pool.map(lambda b: s.post_json("/v1/completions", b)["choices"], bodies))
        assert tight == want
        return metric(s, "vllm:num_preemptions_total") > 0
    until(preempted)
    events = ask.stream(s, bodies[0])
    assert "".join(e["choices"][0]["text"] for e in events) == want[0][0]["text"]


@case("C117")
def test_sigterm_lets_requests_finish(serve_scripted, gate, ask):  # T-13, T-16
    s = serve_scripted("--shutdown-timeout", LIMIT)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with gate:
            running = pool.submit(s.post_json, "/v1/completions", {**SLOW, "prompt": "[held]", "max_tokens": 50})
            wait_metric(s, "vllm:num_requests_running", 1)
            s.process.send_signal(signal.SIGTERM)
            r = until(lambda: (r := s.get("/ready")).status == 503 and r)
            assert json.loads(r.read())["status"] == "draining"
            r = s.post("/v1/completions", {"prompt": "a"})
            assert r.headers["Retry-After"] and r.headers["Connection"] == "close"
            ask.check_error(r, 503, code="shutting_down", type="service_unavailable_error")
        assert running.result()["usage"]["completion_tokens"] == 50
    assert s.process.wait(LIMIT) == 0
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", s.port))


@case("C117")
def test_no_time_to_drain_ends_streams_with_an_error(serve_scripted):  # T-14
    s = serve_scripted("--shutdown-timeout", 0)
    with httpx.stream("POST", s.url + "/v1/completions", timeout=LIMIT,
                      json={**SLOW, "max_tokens": 900, "n": 8, "stream": True}) as r:
        wait_metric(s, "vllm:num_requests_running", 8)
        s.process.send_signal(signal.SIGTERM)
        events = events_of(b"".join(r.iter_bytes()))
    assert events[-1]["error"]["code"] == "shutting_down"
    assert s.process.wait(LIMIT) == 0


@case("C117")
def test_a_second_signal_ends_at_once(serve_scripted):  # T-15
    s = serve_scripted("--shutdown-timeout", 60)
    with socket.create_connection(("127.0.0.1", s.port)) as c:
        c.sendall(post({**SLOW, "max_tokens": 900}))
        wait_metric(s, "vllm:num_requests_running", 1)
        s.process.send_signal(signal.SIGTERM)
        until(lambda: s.get("/ready").status == 503)
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(LIMIT) == -signal.SIGTERM


@case("C117")
def test_other_signals(scripted, ask):
    scripted.process.send_signal(signal.SIGPIPE)
    scripted.process.send_signal(signal.SIGUSR1)
    scripted.process.send_signal(signal.SIGHUP)
    until(lambda: "state: 0 running" in scripted.output() and "read again" in scripted.output(),
          lambda: scripted.output()[-2000:])
    ask.canary(scripted)


@case("C118")
def test_requests_that_take_too_long(serve_scripted, ask):
    """The answer would take 36 s."""
    s = serve_scripted("--request-timeout", 2)
    body = {**SLOW, "max_tokens": 900}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        whole = pool.submit(s.post, "/v1/completions", body)
        streamed = pool.submit(s.post, "/v1/completions", {**body, "stream": True})
        r = whole.result()
        assert r.headers["x-should-retry"] == "false"
        message = ask.check_error(r, 504, code="request_timeout", type="server_error")
        assert "2 seconds" in message
        r = streamed.result()  # 504 too, where the time was over before the first token
        assert r.status in (200, 504)
        error = json.loads(r.read())["error"] if r.status == 504 else events_of(r.read())[-1]["error"]
        assert error["code"] == "request_timeout"
    assert metric(s, "llmq:request_timeouts_total") == 2
    wait_metric(s, "vllm:num_requests_running", 0)


@case("C119")
def test_an_administrator_ends_a_request(scripted, ask):
    for streamed in (False, True):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            if streamed:
                running = pool.submit(lambda: http(
                    "POST", scripted.url + "/v1/completions", headers={"X-Request-Id": "end-me"},
                    json={**SLOW, "max_tokens": 900, "stream": True}))
            else:
                running = pool.submit(scripted.post, "/v1/completions", {**SLOW, "max_tokens": 900},
                                      headers={"X-Request-Id": "end-me"})
            wait_metric(scripted, "vllm:num_requests_running", 1)
            r = http("DELETE", scripted.url + "/v1/requests/end-me")
            assert r.status_code == 200 and r.json() == {"id": "end-me", "aborted": 1}
            if streamed:
                assert events_of(running.result().content)[-1]["error"]["code"] == "aborted"
            else:
                ask.check_error(running.result(), 409, code="aborted")
        ask.canary(scripted)
    assert http("DELETE", scripted.url + "/v1/requests/end-me").status_code == 404
    with httpx.stream("POST", scripted.url + "/v1/completions", timeout=LIMIT,
                      json={**SLOW, "max_tokens": 900, "stream": True}) as r:
        parts = r.iter_bytes()
        name = json.loads(next(parts).split(b"\n\n")[0][6:])["id"]
        assert http("DELETE", scripted.url + f"/v1/requests/{name}").json()["aborted"] == 1


@case("C121")
def test_an_answer_does_not_depend_on_the_company(server):  # T-38, T-39
    body = {"prompt": "It was a bright cold day", "max_tokens": 12, "temperature": 0.9, "seed": 42,
            "logprobs": 3}
    alone = server.post_json("/v1/completions", body)["choices"]
    noise = {"prompt": "Noise " * 30, "max_tokens": 40}
    for width in (1, 8, 64, 256):
        with concurrent.futures.ThreadPoolExecutor(min(width, 96)) as pool:
            others = [pool.submit(server.post_json, "/v1/completions", {**noise, "seed": i})
                      for i in range(width // 4)]
            same = [pool.submit(server.post_json, "/v1/completions", body) for _ in range(width)]
            assert all(f.result()["choices"] == alone for f in same), width
            for f in others:
                f.result()


@case("C122")
def test_counters_add_up(server, ask):
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total",
             "vllm:request_success_total", "vllm:e2e_request_latency_seconds_count",
             "vllm:time_to_first_token_seconds_count", "vllm:request_generation_tokens_sum")
    before = [metric(server, n) for n in names]
    stops = metric(server, "vllm:request_success_total", finished_reason="length")
    prompt = output = choices = lengths = 0
    for body in ({"prompt": "a b", "n": 2}, {"prompt": ["a", "b c d"]}, {"prompt": [65, 66]},
                 {"prompt": "a", "stream": True, "stream_options": {"include_usage": True}}):
        body = {**body, "max_tokens": 5, "temperature": 0}
        u = ask.stream(server, body)[-1]["usage"] if body.get("stream") else \
            (a := server.post_json("/v1/completions", body))["usage"]
        prompt += u["prompt_tokens"]
        output += u["completion_tokens"]
        n = body.get("n", 1) * (2 if isinstance(body["prompt"][0], str)
                                and isinstance(body["prompt"], list) else 1)
        choices += n
        if not body.get("stream"):
            lengths += sum(c["finish_reason"] == "length" for c in a["choices"])
    after = [metric(server, n) for n in names]
    assert [y - x for x, y in zip(before, after)] == \
        [prompt, output, choices, choices, choices, output]
    lengths_seen = metric(server, "vllm:request_success_total", finished_reason="length") - stops
    assert lengths <= lengths_seen <= lengths + 1
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                 "vllm:kv_cache_usage_perc"):
        assert metric(server, name) == 0


@case("C123")
def test_logs_hold_no_texts(scripted, ask):  # T-74
    secret = "correct horse battery staple"
    scripted.get("/nope%0d%0aInjected:%201", headers={"X-Request-Id": "in\"jected"})
    scripted.get("/log?prompt=" + secret.replace(" ", "+"))
    ask.complete(scripted, secret, max_tokens=4)
    ask.complete(scripted, "[abc] " + secret, max_tokens=60, temperature=0)
    until(lambda: len([x for x in scripted.access_log.read_text().splitlines() if "completions" in x]) >= 2)
    log, access = scripted.output(), scripted.access_log.read_text()
    for text in (log, access):
        assert secret not in text and "cat sat" not in text and "correct+horse" not in text
        assert "\nInjected" not in text
    for line in access.splitlines():
        entry = json.loads(line)
        assert set(entry) == {"time", "method", "path", "status", "seconds", "bytes", "request_id"}


@case("C123")
def test_a_log_that_cannot_be_written_is_told_once(llmq, tmp_path, ask):
    with Server(llmq, TINY, "--access-log", "/dev/full", log=tmp_path / "log") as s:
        for _ in range(3):
            assert s.get("/health").status == 200
        until(lambda: metric(s, "llmq:access_log_lines_lost_total") >= 3)
        said = "the access log cannot be written: No space left on device; lines are lost"
        assert s.output().count(said) == 1
        s.process.send_signal(signal.SIGHUP)
        until(lambda: "SIGHUP" in s.output())
        s.get("/health")
        until(lambda: s.output().count(said) == 2)


@case("C125")
@pytest.mark.xfail(strict=True, reason="vLLM is not part of the test environment")
def test_an_export_loads_in_vllm():
    import vllm  # noqa: F401


@case("C126")
def test_batches(llmq, server, tmp_path):
    """A batch answers as the server does, line by line; tests/e2e/test_batch.py has the rest."""
    bodies = [{"model": "novels-1m", "prompt": f"Tale {i}:", "max_tokens": 5 + i, "seed": i}
              for i in range(6)]
    (tmp_path / "in").write_text("".join(
        json.dumps({"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": b}) + "\n"
        for i, b in enumerate(bodies)))
    llmq("batch", TINY, tmp_path / "in", tmp_path / "out")
    for i, text in enumerate((tmp_path / "out").read_text().splitlines()):
        answer = json.loads(text)
        assert answer["custom_id"] == f"r{i}" and answer["error"] is None
        body = answer["response"]["body"]
        want = server.post_json("/v1/completions", {**bodies[i], "model": "tiny"})
        assert body["choices"] == want["choices"] and body["usage"]["completion_tokens"] == \
            want["usage"]["completion_tokens"]
    assert i == 5


# ---- the rest of operation ----

def test_readiness_tells_of_a_stall(serve_scripted, gate):  # T-05
    """A draw that lasts longer than --stall-timeout: /ready says no meanwhile and yes after it."""
    s = serve_scripted("--stall-timeout", 0.5)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with gate:
            running = pool.submit(s.post_json, "/v1/completions", {"prompt": "[held]", "max_tokens": 2, "temperature": 0})
            r = until(lambda: (r := s.get("/ready")).status == 503 and r)
            assert json.loads(r.read())["status"] == "stalled" and s.get("/health").status == 200
        assert running.result()["choices"][0]["text"] == "a"
    until(lambda: s.get("/ready").status == 200)


def test_a_unix_socket(llmq, tmp_path):
    """It answers there, takes the place of a left-over socket, and removes it at the end."""
    path = tmp_path / "llmq.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    p = llmq.start("serve", TINY, "--uds", path, stderr=subprocess.PIPE)
    try:
        while "ready:" not in p.stderr.readline():
            assert p.poll() is None
        with httpx.Client(timeout=LIMIT, transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x") as c:
            assert c.get("/ready").status_code == 200
            r = c.post("/v1/completions", json={"prompt": "a", "max_tokens": 2, "ignore_eos": True})
            assert r.json()["usage"]["completion_tokens"] == 2
    finally:
        p.terminate()
        p.stderr.read()
        assert p.wait(LIMIT) == 0
    assert not path.exists()
    llmq("serve", TINY, "--uds", "x" * 200, code=2)
    path.write_text("not a socket")
    assert "exists already" in llmq("serve", TINY, "--uds", path, code=1).stderr


def test_systemd_is_told(llmq, tmp_path):
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(path))
        s.settimeout(LIMIT)
        p = llmq.start("serve", TINY, "--port", 0, stderr=subprocess.DEVNULL,
                       env={**os.environ, "NOTIFY_SOCKET": str(path)})
        try:
            assert s.recv(100) == b"READY=1"
        finally:
            p.terminate()
            assert s.recv(100) == b"STOPPING=1"
            assert p.wait(LIMIT) == 0


def test_clients_that_come_and_go(server, ask):  # T-50
    def fds():
        return len(list(pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir()))
    before = fds()

    def once(i):
        with socket.create_connection(("127.0.0.1", server.port)) as s:
            s.sendall(post({"prompt": "a", "max_tokens": 900, "ignore_eos": True,
                            "stream": i % 2 == 0, "n": 1 + i % 3}))
            time.sleep((i * 37 % 50) / 1000)
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        list(pool.map(once, range(256)))
    wait_metric(server, "vllm:num_requests_running", 0)
    wait_metric(server, "vllm:num_requests_waiting", 0)
    ask.canary(server)
    until(lambda: fds() <= before + 8, lambda: (before, fds()))


def test_what_cannot_start_says_why(llmq, server, tmp_path):  # T-12
    p = llmq("serve", TINY, "--port", server.port, code=1)
    assert "in use" in p.stderr and len(p.stderr.strip().splitlines()) == 1
    p = llmq("serve", tmp_path / "nothing", "--port", 0, code=3)
    assert "nothing" in p.stderr
    llmq("serve", TINY, "--no-such-flag", code=2)
    llmq("serve", TINY, "--port", 70000, code=2)
    p = llmq("serve", TINY, "--api-key-file", tmp_path / "none", "--port", 0, code=3)
    assert "none" in p.stderr
    (tmp_path / "keys").write_text("a key with blanks\n")
    assert "line 1" in llmq("serve", TINY, "--api-key-file", tmp_path / "keys", code=3).stderr
    llmq("serve", TINY, "--api-key", "", "--port", 0, code=2)
    assert "--test-script" not in llmq("serve", "--help").stdout


def test_a_context_fits_where_a_longer_one_does(llmq):  # T-18, T-19
    """100 KiB of blocks: which lengths start and which are refused, with both numbers."""
    starts = []
    for length in (16, 100, 192, 193, 400, 1024):
        p = llmq.start("serve", TINY, "--port", 0, "--kv-cache-memory", "100K", "--max-model-len", length,
                       stderr=subprocess.PIPE)
        lines = [p.stderr.readline() for _ in range(2)]
        starts.append(lines[1].startswith("ready: "))
        p.terminate()
        p.stderr.read()
        assert p.wait(LIMIT) == (0 if starts[-1] else 3)
        assert starts[-1] or f"a sequence of {length} tokens needs" in lines[1] and "limit of 102400" in lines[1]
    assert starts == [True] * 3 + [False] * 3


def test_a_dry_run_says_what_it_takes(llmq):  # T-17
    """Nothing is listened on; the parts add up; what it says is what the server then has."""
    args = ("serve", TINY, "--kv-cache-memory", "1M", "--max-num-seqs", 4)
    got = llmq.json(*args, "--dry-run")
    sums = {"total_bytes", "held_bytes", "memory_bytes"}
    parts = {k: v for k, v in got.items() if k.endswith("_bytes") and k not in sums}
    assert parts.pop("responses_bytes") == parts.pop("files_bytes") == 0  # off without --response-store, --file-store
    assert len(parts) == 12 and all(parts.values()) and got["total_bytes"] == sum(parts.values())
    assert got["held_bytes"] == sum(parts[f"{p}_bytes"] for p in ("weights", "kv", "step")) < got["memory_bytes"]
    assert got["weights_bytes"] == llmq.json("plan", TINY)["weights_bytes"]
    assert (1 << 20) * 0.9 < got["kv_blocks"] * 16 * got["kv_bytes_per_token"] <= 1 << 20
    assert got["max_len"] == got["longest_len"] == got["model_max_len"] == 1024
    text = llmq(*args, "--dry-run").stdout
    assert re.search(r"^KV cache +\S+ MiB +\d+ blocks of 16 tokens", text, re.M) and "at most in all" in text
    with Server(llmq, *args[1:]) as s:
        assert f"{got['kv_blocks']} KV blocks of 16 tokens" in s.output()
    both = llmq.json(*args, "--dry-run", "--speculative-model", TINY)
    assert both["draft_weights_bytes"] == both["weights_bytes"] and both["kv_blocks"] * 2 == got["kv_blocks"]
    p = llmq("serve", TINY, "--dry-run", "--kv-cache-memory", "100K", "--max-model-len", 400, code=3)
    assert "needs 204800 bytes" in p.stderr and "--max-model-len 192 would fit" in p.stderr and not p.stdout


@pytest.mark.parametrize("args", [(TINY / "config.json",), (TINY, "--speculative-model", TINY / "config.json")])
def test_a_config_alone_has_a_sum_and_serves_nothing(llmq, args):
    text = llmq("serve", *args, "--dry-run").stdout
    assert "config alone" in text and "at most in all" in text
    assert "none of their first bytes" in llmq("serve", *args, "--port", 0, code=3).stderr


def test_the_longest_context_is_sought(llmq):  # T-20
    for memory, length in (("100K", 192), ("1G", 1024)):
        args = ("serve", TINY, "--kv-cache-memory", memory, "--max-model-len", "auto")
        assert llmq.json(*args, "--dry-run")["max_len"] == length
        with Server(llmq, *args[1:]) as s:
            assert f"--max-model-len auto: {length} tokens" in s.output()
            assert f"context {length}," in s.output()
            assert s.post_json("/v1/completions", {"prompt": [5] * (length - 1), "max_tokens": 1})["usage"]
    assert "an integer 0..16777216 or auto" in llmq("serve", TINY, "--max-model-len", "long", code=2).stderr


def test_the_time_until_it_answers_is_told(llmq):  # T-79
    with Server(llmq, TINY) as s:
        said = float(re.search(r"ready: .*, after (\d+\.\d\d) s$", s.output(), re.M)[1])
        assert 0 < metric(s, "llmq:ready_seconds") <= said + 0.01
        assert metric(s, "llmq:first_request_seconds") == 0
        for _ in range(2):
            complete(s, "The sea", max_tokens=2)
        first, both = metric(s, "llmq:first_request_seconds"), metric(s, "vllm:time_to_first_token_seconds_sum")
        assert 0 < first < both


def test_port_0_is_printed(llmq):  # T-76
    p = llmq.start("serve", TINY, "--port", 0, stderr=subprocess.PIPE)
    try:
        line = p.stderr.readline()
        port = int(line.split("http://127.0.0.1:")[1].split(",")[0])
        assert http("GET", f"http://127.0.0.1:{port}/health").status_code == 200
        line = p.stderr.readline()  # a signal while it loads ends it otherwise
        assert line.startswith("ready: ") and re.search(r", kernels \S+, threads [1-9]", line)
    finally:
        p.terminate()
        p.stderr.read()
        assert p.wait(LIMIT) == 0


def test_threads_and_memory_have_their_places(llmq, tmp_path):  # T-78
    """A CPU for each thread but the engine's between steps; pages on all nodes; the same answer."""
    allowed = sorted(os.sched_getaffinity(0))
    answers = []
    spread = ["--numa", "interleave"]
    p = llmq("run", TINY, "-p", "Once", "--max-tokens", 1, *spread, code=None)
    if p.returncode:  # a kernel, or a container, that lets nobody choose
        assert p.returncode == 3 and "--numa: memory policy: expected to be allowed" in p.stderr
        spread = []
    for args in ([], ["--pin", *spread]):
        with Server(llmq, TINY, "--threads", len(allowed) + 1, *args, log=tmp_path / "log") as s:
            s.wait_ready()
            answers.append(complete(s, prompt="Once", max_tokens=8, temperature=0)["choices"])
            proc = pathlib.Path(f"/proc/{s.process.pid}")
            alone = [sorted(os.sched_getaffinity(int(t.name))) for t in (proc / "task").iterdir()]
            bound = [c[0] for c in alone if len(c) == 1]
            interleaved = "interleave" in (proc / "numa_maps").read_text() if (proc / "numa_maps").exists() else None
            if not args:
                assert bound == [] or len(allowed) == 1
                assert not interleaved
            else:
                # the caller of a step has the first CPU, the others begin behind it, and begin anew
                assert len(bound) >= len(allowed) and set(bound) == set(allowed), alone
                assert interleaved is not False or not spread
                assert f"--pin: threads {len(allowed) + 1}, of CPUs {len(allowed)}, " in s.output()
    assert answers[0] == answers[1]


@pytest.mark.parametrize("why, args, says", [
    ("no model", [], "expected one MODEL"),
    ("two models", ["MODEL", "--model", "MODEL"], "expected one MODEL"),
    ("a context beyond the model's", ["--model", "MODEL", "--max-model-len", "1025"],
     "--max-model-len: expected 0..1024"),
    ("less memory than one body", ["MODEL", "--request-memory", "2M", "--max-body-size", "3M"],
     "--request-memory: expected --max-body-size (3145728) or more, found 2097152"),
    ("blocks of another size", ["MODEL", "--block-size", "12"],
     "--block-size: expected 8, 16 or 32, found 12"),
])
def test_wrong_usage_of_the_server_is_refused(llmq, why, args, says):
    p = llmq("serve", "--port", "0", *[TINY if x == "MODEL" else x for x in args], code=2)
    assert says in p.stderr, why


def test_a_model_without_a_tokenizer_is_served_by_ids(serve):
    s = serve(ROOT / "tests/golden/arch/qwen2")
    ask = {"prompt": [1, 5, 9, 30], "max_tokens": 3, "temperature": 0, "return_token_ids": True,
           "logprobs": 2}
    choice = s.post_json("/v1/completions", ask)["choices"][0]
    names = [f"token_id:{i}" for i in choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == names and len(names) > 0
    assert all(len(top) >= 2 for top in choice["logprobs"]["top_logprobs"])
    error = s.post_json("/v1/completions", {**ask, "prompt": "text"}, 400)["error"]
    assert "token ids" in error["message"]
