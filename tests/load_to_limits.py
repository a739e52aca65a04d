"""A server with small limits and a load that meets all of them at once: every connection has a body as large as may
be, of values that take most memory; more requests than the queue holds, with answers that are kept whole; sequences
as long as the KV cache; streams that nobody reads. Its memory must stay below what it said it would take."""
import concurrent.futures
import http.client
import json
import pathlib
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


def run(llmq, model, rounds, log):
    """Peak and limit in bytes, and how often each status came."""
    said = llmq.json("serve", model, *ARGS, "--print-limits")["memory"]
    seen = {}
    with Server(llmq, model, *ARGS, log=log) as s:
        all_bodies = bodies()
        with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
            for _ in range(rounds):
                work = [pool.submit(ask, s.port, all_bodies[i % len(all_bodies)], i % 8 != 5)
                        for i in range(CONNECTIONS)]
                for w in work:
                    seen[w.result()] = seen.get(w.result(), 0) + 1
        status = pathlib.Path(f"/proc/{s.process.pid}/status").read_text()
        peak = next(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmHWM")) << 10
        metrics = "vllm:num_requests_running", "vllm:num_requests_waiting"
        until(lambda: all(f"\n{m}" in (t := s.get("/metrics").read().decode()) and
                          float(t.split(f"\n{m}{{")[1].split("\n")[0].rsplit(" ", 1)[1]) == 0 for m in metrics))
        assert s.post_json("/v1/completions", {"prompt": "a", "max_tokens": 1})["usage"]
    assert set(seen) - {0} <= TAKEN, seen
    return peak, said, seen
