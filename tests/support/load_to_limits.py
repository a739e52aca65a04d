"""A server with small limits and a load that meets all of them at once: every connection has a body as large as may
be, of values that take most memory; more requests than the queue holds, with answers that are kept whole; sequences
as long as the KV cache; streams that nobody reads. run_texts: chat templates that render to as many values as may be,
and grammars of the largest kind, each another. Its memory must stay below what it said it would take."""
import concurrent.futures
import http.client
import json
import pathlib
import random
import socket

from harness import Server, until

BODY, CONNECTIONS, CONTEXT = 2 << 20, 32, 1024
ARGS = ("--max-connections", CONNECTIONS + 4, "--max-body-size", BODY, "--request-memory", 16 << 20, "--queue", 8,
        "--max-num-seqs", 4, "--kv-cache-memory", "1M", "--threads", 1)
TAKEN = {200, 400, 413, 503}


def padded(doc, filler):
    """The document with a field of many values, as long as may be."""
    text = json.dumps(doc)[:-1] + ', "filler": ['
    n = (BODY - len(text) - 2) // (len(filler) + 1)
    return (text + ",".join([filler] * n) + "]}").encode()


def bodies():
    long = {"prompt": [7] * (CONTEXT - 200), "max_tokens": 200, "ignore_eos": True}
    return [padded({"prompt": "a", "max_tokens": 1}, "0"), padded({"prompt": "a", "max_tokens": 1}, '"' + "x" * 30 + '"'),
            padded({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}, '"x"' + " " * 40),
            json.dumps({**long, "logprobs": 5, "n": 4, "temperature": 1}).encode(),
            json.dumps({**long, "logprobs": 5, "echo": True}).encode(), json.dumps({**long, "stream": True}).encode(),
            json.dumps({**long, "use_beam_search": True, "n": 4}).encode(),
            json.dumps({**long, "guided_regex": "([a-z]{1,9} ){1,99}"}).encode()]


def ask(port, body, reads):
    """The status; 0 where the server cut the connection."""
    path = "/v1/chat/completions" if b'"messages"' in body[:40] else "/v1/completions"
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=400)
    try:
        c.request("POST", path, body, {"Content-Type": "application/json"})
        r = c.getresponse()
        if reads:
            r.read()
        return r.status
    except (ConnectionError, http.client.HTTPException, socket.timeout):
        return 0
    finally:
        c.close()


# Each round leaves a text behind, in the memory of its rendering.
GROWS = "{% for i in range(rounds|default(0)) %}{% set x = messages[0].content ~ i %}{% endfor %}{{ messages[0].content }}"
LARGEST_TEXTS = 536870912  # TP_MAX_BYTES


def texts(draw):
    """Of a model whose template is GROWS. A template that goes beyond its limit, grammars near theirs."""
    def words(n):
        return "|".join("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=9)) for _ in range(n))
    def filled(content, rounds, **more):
        return {"messages": [{"role": "user", "content": content}], "max_tokens": 1, **more,
                "chat_template_kwargs": {"rounds": rounds}}
    answer = {"prompt": "a", "max_tokens": 60, "ignore_eos": True}
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": words(10)} for i in range(100)}}
    return [json.dumps(x).encode() for x in (
        filled("a" * 12000, 100000), {**answer, "guided_regex": f"({words(9000)})*"}, filled("b" * 900, 100000),
        {**answer, "guided_json": schema}, filled("c" * 200000, 100000), {**answer, "guided_regex": f"({words(12000)})*"})]


def run(llmq, model, rounds, log, make=bodies):
    """Peak and limit in bytes, how often each status came, and what stays."""
    said = llmq.json("serve", model, *ARGS, "--print-limits")["memory"]
    seen = {}
    with Server(llmq, model, *ARGS, log=log) as s:
        with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
            for _ in range(rounds):
                all_bodies = make()
                work = [pool.submit(ask, s.port, all_bodies[i % len(all_bodies)], i % 8 != 5)
                        for i in range(CONNECTIONS)]
                for w in work:
                    seen[w.result()] = seen.get(w.result(), 0) + 1
        def memory(key):
            status = pathlib.Path(f"/proc/{s.process.pid}/status").read_text()
            return next(int(x.split()[1]) for x in status.splitlines() if x.startswith(key)) << 10
        peak = memory("VmHWM")
        metrics = "vllm:num_requests_running", "vllm:num_requests_waiting"
        until(lambda: all(f"\n{m}" in (t := s.get("/metrics").read().decode()) and
                          float(t.split(f"\n{m}{{")[1].split("\n")[0].rsplit(" ", 1)[1]) == 0 for m in metrics))
        assert s.post_json("/v1/completions", {"prompt": "a", "max_tokens": 1})["usage"]
        stays = memory("VmRSS")
    assert set(seen) - {0} <= TAKEN, seen
    return peak, said, seen, stays


def run_texts(llmq, model, rounds, log):
    """The same; model: one with the template GROWS."""
    draw = random.Random(1)
    return run(llmq, model, rounds, log, lambda: texts(draw))
