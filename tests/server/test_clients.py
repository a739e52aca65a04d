"""llmq as a client: `llmq chat` and `llmq bench serve`, against llmq's servers and against one of a few lines
that keeps what it was asked and when it answered."""
import json
import os
import re
import signal
import statistics
import subprocess
import time

import pytest

from clients import Mock, Terminal
from harness import LIMIT, until
from helpers import TINY, USER, metric, wait_metric

case = pytest.mark.case
ABC = "The cat sat on x the mat.\n"


# ---- chat ----

def test_a_chat_in_a_pipe(llmq, scripted, tmp_path):
    file = tmp_path / "saved.json"
    p = llmq("chat", scripted.url, input=f"Say [abc]\n/regenerate\n/save {file}\n/nope\n\n/quit\n[abc]\n")
    assert p.stdout == 2 * ABC and "no command /nope" in p.stderr
    assert json.loads(file.read_text()) == [{"role": "user", "content": "Say [abc]"},
                                            {"role": "assistant", "content": ABC.strip()}]
    p = llmq("chat", scripted.url, "--thoughts", input="[think]")
    assert p.stdout == "Four.\n" and "Two and two." in p.stderr
    p = llmq("chat", scripted.url, input="It [nan]s\nSay [abc]\n", code=1)
    assert p.stdout.startswith("one") and p.stdout.endswith(ABC)
    first, last = p.stderr.splitlines()
    assert first.startswith("llmq: chat: line 1: the server says") and "1 of 2 messages" in last
    for option, value, says in (("-t", 2.5, "--temperature: expected 0..2"), ("--top-p", 0, "above 0"),
                                ("--system", "\udcff", "no UTF-8")):
        assert says in llmq("chat", scripted.url, option, value, input="a", code=2).stderr


def test_bytes_that_no_message_has(llmq):
    """A NUL does not cut a line, nor does what is no UTF-8 reach the server; the others are asked."""
    with Mock() as m:
        p = subprocess.run([llmq.path, "chat", m.url], capture_output=True, timeout=LIMIT,
                           input=b"one\na\0b\n\xec\x9d\xb4\r\nc\xffd\n" + b"x" * 200000 + b"\ntwo\\\nlines")
    assert p.returncode == 1
    asked = [b["messages"][-1]["content"] for b in m.bodies]
    assert asked == ["one", "\uc774", "x" * 200000, "two\nlines"]
    assert [x.decode() for x in p.stderr.splitlines()] == [
        "llmq: chat: line 2: not sent: a NUL in the line",
        "llmq: chat: line 4: not sent: broken characters (no UTF-8) in the line",
        "llmq: chat: 2 of 6 messages without a whole answer"]


@pytest.mark.parametrize("sig, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_chat_in_a_pipe(llmq, sig, code):
    with Mock() as m:
        p = llmq.start("chat", m.url, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            p.stdin.write("one\n")
            p.stdin.flush()
            assert p.stdout.readline() == "t0 t1 t2 t3 t4 \n"
            p.send_signal(sig)
            assert p.wait(LIMIT) == code
        finally:
            p.kill()
            p.communicate()


def test_what_a_chat_sends(llmq):
    with Mock() as m:
        llmq("chat", m.url + "/v1/", "--system", "Be brief.", "-n", 9, "--seed", 3,
             input="one\ntwo \\\nlines\n/clear\n//three\n/system\nfour\n")
    said = [[(x["role"], x["content"]) for x in b["messages"]] for b in m.bodies]
    system, answer = ("system", "Be brief."), ("assistant", "t0 t1 t2 t3 t4 ")
    assert said == [[system, ("user", "one")],
                    [system, ("user", "one"), answer, ("user", "two \nlines")],
                    [system, ("user", "/three")], [("user", "four")]]
    for b in m.bodies:
        assert (b["model"], b["max_tokens"], b["seed"], b["stream"]) == ("mock", 9, 3, True)
        assert "temperature" not in b


def test_a_chat_with_a_model(llmq, server):
    """As with a server of it."""
    want = server.post_json("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "The sea"}], "max_tokens": 8, "temperature": 0})
    p = llmq("chat", TINY, "-n", 8, "-t", 0, input="The sea\n")
    assert p.stdout == want["choices"][0]["message"]["content"] + "\n"


def test_a_chat_with_a_key_and_with_nobody(llmq, keyed):
    assert "API key" in llmq("chat", keyed.url, input="a", code=1).stderr
    assert llmq("chat", keyed.url, "--key", USER, "-n", 1, input="a").stdout
    assert llmq("chat", keyed.url, "-n", 1, input="a", env={**os.environ, "LLMQ_API_KEY": USER}).stdout
    assert "connect" in llmq("chat", "http://127.0.0.1:9", input="a", code=1).stderr
    for wrong in ("http://", "https:///"):
        assert "expected http://HOST:PORT" in llmq("chat", wrong, input="a", code=2).stderr
    assert "--json" in llmq("chat", keyed.url, "--json", input="a", code=2).stderr


def test_an_interrupt_stops_the_answer_alone(llmq, scripted):
    with Terminal(llmq, "chat", scripted.url) as t:
        t.read_until("> ")
        t.type(b"Tell [slow]\n")
        wait_metric(scripted, "vllm:num_requests_running", 1)
        t.type(b"\x03")
        t.read_until("[stopped]")
        wait_metric(scripted, "vllm:num_requests_running", 0)
        t.type(b"/clear\nSay [abc]\n")
        said = t.read_until("per second]")
        assert re.search(r"\d+ \+ \d+ tokens", said)
        t.read_until("> ")  # until there an interrupt is the answer's
        t.type(b"\x03")
        assert until(t.ended) == [0]


def test_a_thought_shows_dimmed_while_it_grows(llmq, scripted):
    for more, shows in (((), True), (("--no-thoughts",), False)):
        with Terminal(llmq, "chat", scripted.url, *more) as t:
            t.read_until("> ")
            t.type(b"[think slowly]\n")
            if shows:
                t.read_until("\x1b[0;2m")
                assert "Four" not in t.read_until("Two and")
            said = t.read_until("per second]")
            assert "Four." in said and ("make a number" in said) == shows
            t.type(b"/quit\n")
            assert until(t.ended) == [0]


def test_keys_that_a_line_does_not_know(llmq):
    """Where the terminal edits the line. A backspace takes a whole character; what arrow keys and broken characters leave is not sent."""
    with Mock() as m, Terminal(llmq, "chat", m.url, TERM="dumb") as t:
        t.read_until("> ")
        t.type("바다가".encode() + b"\x7f\n")
        t.read_until("[7 + 5 tokens")
        t.type(b"\x1b[A\n")
        t.read_until("not sent: control characters")
        t.type(b"a\xeb\xb0\n")
        t.read_until("not sent: broken characters")
        t.type(b"/quit\n")
        assert until(t.ended) == [0]
    assert [b["messages"][-1]["content"] for b in m.bodies] == ["바다"]


# ---- bench serve ----

FIELDS = """date backend endpoint_type model_id num_prompts request_rate max_concurrency duration completed
failed total_input_tokens total_output_tokens request_throughput request_goodput output_throughput
total_token_throughput""".split() + [f"{kind}_{what}_ms" for kind in ("mean", "median", "std", "p99")
                                     for what in ("ttft", "tpot", "itl", "e2el")]


@case("C124")
def test_the_times_are_those_of_the_server(llmq):
    """Of a server that notes them; the names are those of `vllm bench serve`. On a busy machine client
    and server are held up at different places: then they measure again."""
    def agree():
        with Mock(first=0.15, between=0.05) as m:
            d = llmq.json("bench", "serve", m.url, "--concurrency", 2, "--num-prompts", 6, "--warmups", 0,
                          "--output-len", 5)
        assert set(FIELDS) <= set(d) and (d["completed"], d["failed"], d["num_prompts"]) == (6, 0, 6)
        assert (d["total_input_tokens"], d["total_output_tokens"]) == (42, 30)
        assert d["mean_e2el_ms"] == pytest.approx(d["mean_ttft_ms"] + 4 * d["mean_tpot_ms"])
        assert d["output_throughput"] * d["duration"] == pytest.approx(30)
        assert d["p99_ttft_ms"] >= d["median_ttft_ms"] == d["p50_ttft_ms"] == 1e3 * d["ttft_p50"]
        measured.append([d["mean_tpot_ms"], d["mean_itl_ms"]])
        close = d["mean_tpot_ms"] == pytest.approx(d["mean_itl_ms"], rel=0.2)
        for name, have in (("ttft", m.ttft), ("itl", m.itl)):
            want, got = 1e3 * statistics.median(have), d[f"median_{name}_ms"]
            measured[-1] += [name, got, want]
            close = close and abs(got - want) < 0.05 * want + 5
        return close
    measured = []
    until(agree, lambda: measured[-1])


@case("C124")
def test_the_counts_are_those_of_the_server(llmq, server):
    names = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")
    before = [metric(server, n) for n in names]
    doc = llmq.json("bench", "serve", server.url, "--concurrency", "1,3", "--num-prompts", 5,
                    "--input-len", 20, "--output-len", 7, "--warmups", 0)
    for d, level in zip(doc["runs"], (1, 3), strict=True):
        assert (d["max_concurrency"], d["completed"]) == (level, 5)
        assert (d["total_input_tokens"], d["total_output_tokens"]) == (100, 35)
    assert [metric(server, n) - b for n, b in zip(names, before)] == [70, 200]


def test_loads(llmq, server):
    hits = metric(server, "vllm:prefix_cache_hits_total")
    d = llmq.json("bench", "serve", server.url, "--concurrency", 1, "--num-prompts", 3, "--load",
                  "shared-prefix", "--prefix-len", 64, "--input-len", 8, "--output-len", 2, "--warmups", 0)
    assert d["total_input_tokens"] == 3 * 72
    assert metric(server, "vllm:prefix_cache_hits_total") - hits >= 2 * 48
    d = llmq.json("bench", "serve", server.url, "--concurrency", 2, "--num-prompts", 2, "--load",
                  "multi-turn", "--turns", 3, "--input-len", 16, "--output-len", 4)
    assert d["completed"] == d["num_prompts"] == 6
    d = llmq.json("bench", "serve", server.url, "--concurrency", 2, "--num-prompts", 2, "--load",
                  "multi-turn", "--turns", 8, "--input-len", 120, "--output-len", 90)  # 1,024 hold four turns
    assert (d["completed"], d["failed"]) == (16, 0)
    d = llmq.json("bench", "serve", server.url, "--request-rate", 100, "--num-prompts", 20, "--load",
                  "abort", "--output-len", 400)
    assert (d["aborted"], d["completed"], d["failed"]) == (20, 0, 0)
    wait_metric(server, "vllm:num_requests_running", 0)
    assert metric(server, "vllm:kv_cache_usage_perc") == 0


def choices(text, reason=None):
    return b"data: " + json.dumps({"choices": [{"text": text, "finish_reason": reason}]}).encode() + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("why,answer,says", [
    ("the model ends at once", choices("", "stop") + USAGE + DONE, None),
    ("tokens without text", 3 * choices("") + choices("", "length") + USAGE + DONE, None),
    ("cut off before the end", choices("") + choices("a"), "ended early"),
    ("a stream of nothing", DONE, "expected a stream of events with choices"),
    ("usage alone", USAGE + DONE, "expected a stream of events with choices"),
])
def test_an_answer_without_text_is_one(llmq, why, answer, says):
    """The stream's end decides, not its text; there are no times to a text that never came."""
    with Mock(answer=answer) as m:
        p = llmq("bench", "serve", m.url, "--num-prompts", 2, "--warmups", 0, "--concurrency", 1, "--json",
                 code=1 if says else 0)
    d = json.loads(p.stdout)
    assert (d["completed"], d["failed"]) == ((0, 2) if says else (2, 0)), why
    assert says is None or says in d["error"]
    if not says:
        assert d["total_output_tokens"] == 6 and d["mean_e2el_ms"] > 0
        assert d["mean_ttft_ms"] == d["mean_tpot_ms"] == d["mean_itl_ms"] == 0


def test_an_answer_that_is_no_stream(llmq):
    with Mock(answer=b'{"choices":[{"text":"a"}]}', kind="application/json") as m:
        p = llmq("bench", "serve", m.url, "--num-prompts", 1, "--warmups", 0, code=1)
    assert "expected a stream of events" in p.stderr


def test_requests_beside_a_long_prompt(llmq, server):
    runs = llmq.json("bench", "serve", server.url, "--load", "long-and-short", "--long-len", 200, "--num-prompts", 12,
                     "--concurrency", 2, "--input-len", 16, "--output-len", 40, "--warmups", 0)["runs"]
    alone, beside = runs
    assert alone["completed"] == beside["completed"] == 12 and "long_prompts_read" not in alone
    assert beside["long_prompts_read"] >= 1 and beside["itl_p99_over_without"] > 0
    assert beside["total_input_tokens"] == alone["total_input_tokens"] == 12 * 16  # the long ones do not count


def test_a_seed_gives_the_same_requests(llmq):
    def run(*args):
        with Mock() as m:
            d = llmq.json("bench", "serve", m.url, "--warmups", 0, *args)
        return [b["prompt"] for b in m.bodies], m.arrived, d
    turns = run("--load", "multi-turn", "--turns", 2, "--num-prompts", 2, "--concurrency", 1)[0]
    assert turns[1].startswith(turns[0] + "t0 t1 t2 t3 t4 ")
    some = ("--request-rate", 40, "--num-prompts", 12)
    one, arrived, d = run(*some, "--goodput", "ttft:900000,e2el:900000")
    assert sorted(one) == sorted(run(*some)[0]) != sorted(run(*some, "--seed", 1)[0])
    assert len(set(one)) == 12 and d["request_rate"] == 40 and d["max_concurrency"] is None
    assert d["request_goodput"] == pytest.approx(12 / d["duration"])
    gaps = [b - a for a, b in zip(arrived, arrived[1:])]
    assert statistics.pstdev(gaps) > 0.2 * statistics.mean(gaps)  # no steady beat


def test_a_bench_that_cannot_be(llmq, server):
    for args, code, says in [
            (["serve"], 2, "address of a server"),
            (["serve", "ftp://x"], 2, "expected http"),
            (["serve", server.url, "--concurrency", "0"], 2, "--concurrency"),
            (["serve", server.url, "--concurrency", "1", "--request-rate", 1], 2, "closed loop"),
            (["serve", server.url, "--goodput", "ttft:x"], 2, "--goodput"),
            (["serve", server.url, "--goodput", "ttft:1,ttft:2"], 2, "--goodput"),
            (["serve", server.url, "--turns", 2], 2, "multi-turn"),
            (["serve", server.url, "--prefix-len", 2], 2, "shared-prefix"),
            (["serve", "http://127.0.0.1:9"], 1, "connect"),
            (["serve", server.url, "--input-len", 5000, "--num-prompts", 1, "--warmups", 0], 1,
             "context length")]:
        assert says in llmq("bench", *args, code=code).stderr, args
