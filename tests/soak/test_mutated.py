"""Inputs that nobody wrote: files and requests in which bytes, numbers, words and whole parts are changed by
chance. No command and no server may end in another way than the documented ones, nor leave a part of an
output. make asan-inputs (in check-hard) runs them with AddressSanitizer and UndefinedBehaviorSanitizer, where
whatever these see ends the process with 99.
LLMQ_MINUTES: for how long each of the two (default 1); LLMQ_SEED: that of another run, which is printed."""
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import time

from harness import LIMIT, ROOT, Server, until

SECONDS = 60 * float(os.environ.get("LLMQ_MINUTES", "1"))
SEED = int(os.environ.get("LLMQ_SEED", time.time_ns() % 10**9))
TINY = ROOT / "models/novels-1m"
GOLDEN = ROOT / "tests/golden"
# A sanitizer's finding is none of llmq's own exit codes; memory that is not there is asked for as ever.
WATCHED = {**os.environ, "ASAN_OPTIONS": "exitcode=99:allocator_may_return_null=1:detect_stack_use_after_return=0",
           "UBSAN_OPTIONS": "exitcode=99:print_stacktrace=1"}
WORDS = [b"-1", b"0", b"1e999", b"18446744073709551615", b"9223372036854775808", b"2147483648", b"null", b"true", b'""',
         b"[]", b"{}", b"\x00", b"\xff\xfe", b"\\ud800", b"\\u0000", b"\xf0\x9f\x98\x80", b"[" * 40, b'{"a":' * 40, b"%s%n",
         b"../../etc/passwd", b"a" * 3000, b"{{ x }}", b"{% for i in range(99999999) %}", b"\r\n\r\n"]


def mutated(draw, raw):
    """`raw` with one to four changes; where it is a header and much behind it, mostly in the header."""
    b = bytearray(raw)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        reach = len(b) if draw.random() < 0.3 else min(len(b), draw.choice((16, 256, 4096, 65536)))
        at = draw.randrange(reach + 1)
        kind = draw.randrange(8)
        if kind == 0 and at < len(b):
            b[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            b[at:at + draw.randrange(1, 9)] = draw.randbytes(draw.randrange(9))
        elif kind == 2:
            b[at:at] = draw.choice(WORDS)
        elif kind == 3:
            del b[at:at + draw.choice((1, 4, 64, 4096))]
        elif kind == 4:
            b[at:at] = b[(other := draw.randrange(len(b) + 1)):other + draw.choice((4, 32, 512))]
        elif kind == 5:
            del b[at:]
        elif kind == 6:  # a number's digit
            digits = [i for i in range(at, min(at + 4096, len(b))) if 48 <= b[i] < 58]
            if digits:
                i = draw.choice(digits)
                b[i:i + 1] = draw.choice((b"0", b"9", b"-1", b"99999999", b"7.5", b"1e9"))
        else:
            b[at:at + 8] = draw.choice((0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1)).to_bytes(8, "little")
    return bytes(b)


# ---- commands ----

LINES = b'{"text": "the old house \\u00e9 \\ud83d\\ude00 1234  <s>"}\n'  # for tokenize

def sources(llmq, folder):
    """Models to change, small ones of every format."""
    made = []
    for fmt, *more in (("llmq",), ("gguf",), ("gptq", "--allow-requantize"), ("awq", "--allow-requantize")):
        made.append(folder / f"made-{fmt}")
        llmq("convert", GOLDEN / "arch/llama-128", "-o", made[-1], "--to", fmt, *more)
    packed = folder / "packed.llmq"
    llmq("quantize", GOLDEN / "arch/qwen3-moe", "-o", packed, "--method", "rtn")
    names = ("llama3-gqa", "gpt-oss-sinks", "gemma3", "deepseek-v3", "phi3-longrope", "qwen2-moe-shared")
    return [*made, packed, TINY, GOLDEN / "sharded/granite4-dense", *(GOLDEN / "arch" / n for n in names),
            *sorted(p for kind in ("published", "mlx") for p in (GOLDEN / kind).iterdir() if p.is_dir()),
            *sorted(p for p in (GOLDEN / "tokenizers").iterdir() if p.is_dir()),
            *sorted(p for p in (GOLDEN / "tok_files").iterdir() if p.suffix != ".jsonl")]


COMMANDS = [
    ("inspect", "M"), ("inspect", "M", "--json"), ("verify", "M"), ("convert", "M", "-o", "out", "--to", "llmq"),
    ("convert", "M", "-o", "out", "--to", "safetensors"), ("convert", "M", "-o", "out", "--to", "gguf"),
    ("quantize", "M", "-o", "out", "--method", "rtn"), ("run", "M", "-p", "the", "-n", "3"), ("plan", "M"),
    ("tokenize", "M"), ("handover", "vllm", "M"), ("publish", "M", "dir:out"), ("serve", "M", "--dry-run"),
]


def test_changed_files(llmq, tmp_path):
    draw = random.Random(SEED)
    models = sources(llmq, tmp_path)
    ends, n, until_then = collections.Counter(), 0, time.monotonic() + SECONDS
    while time.monotonic() < until_then:
        at = tmp_path / "at"
        shutil.rmtree(at, ignore_errors=True)
        at.mkdir()
        model, argv = draw.choice(models), draw.choice(COMMANDS)
        copy = at / ("M" + (model.suffix if model.is_file() else ""))
        (shutil.copytree if model.is_dir() else shutil.copyfile)(model, copy)
        files = [copy] if copy.is_file() else sorted(p for p in copy.rglob("*") if p.is_file())
        hit = draw.choice(files)
        hit.chmod(0o644)
        hit.write_bytes(mutated(draw, hit.read_bytes()))
        words = [copy.name if w == "M" else w for w in argv]
        p = subprocess.run([llmq.path, *words], cwd=at, env=WATCHED, capture_output=True, timeout=LIMIT,
                           input=LINES)
        n += 1
        ends[p.returncode] += 1
        said = p.stderr.decode(errors="replace")
        why = f"LLMQ_SEED={SEED}, command {n}: {' '.join(words)} with {model.name}/{hit.name}: exit {p.returncode}\n{said[-6000:]}"
        fine = p.returncode in (0, 3, 4) or p.returncode == 1 and "out of memory" in said
        left = [x.name for x in at.iterdir() if x != copy and not (p.returncode == 0 and x.name == "out")]
        if not fine or left:
            shutil.copytree(at, pathlib.Path(os.environ.get("LLMQ_KEEP", tmp_path)) / f"kept-{SEED}-{n}")
        assert fine and "Sanitizer" not in said and "runtime error" not in said, why
        assert not left, f"{left} is left: {why}"
    print(f"\n{n} commands, exit codes {dict(sorted(ends.items()))}, seed {SEED}")


# ---- requests ----

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
          "required": ["a"], "$defs": {"n": {"type": "number", "minimum": -3, "maximum": 1e4}}}
SHORT = {"max_tokens": 4, "temperature": 0.7, "seed": 3}
BODIES = [
    ("/v1/completions", {"prompt": "the old", **SHORT, "logprobs": 3, "echo": True, "stop": ["dog", "\n"]}),
    ("/v1/completions", {"prompt": ["a", "b"], **SHORT, "n": 2, "best_of": 3, "logit_bias": {"5": -100, "9": 4.5}}),
    ("/v1/completions", {"prompt": [[1, 2, 3], [4]], **SHORT, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"prompt": "x", **SHORT, "guided_regex": r"(ab|[^c-e]{2,5})*\d?\p{Lu}+"}),
    ("/v1/completions", {"prompt": "x", **SHORT, "guided_grammar": 'root ::= "a" rest*\nrest ::= [b-d]{1,3} | "(" root ")"'}),
    ("/v1/completions", {"prompt": "x", **SHORT, "guided_json": SCHEMA, "stream": True}),
    ("/v1/completions", {"prompt": "x", **SHORT, "guided_choice": ["yes", "no", "ja \u00e4"]}),
    ("/v1/completions", {"prompt": "x", **SHORT, "use_beam_search": True, "n": 2, "best_of": 2, "length_penalty": 0.5}),
    ("/v1/completions", {"prompt": "x", **SHORT, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "presence_penalty": 1, "bad_words": ["a"],
                         "frequency_penalty": -1, "repetition_penalty": 1.2, "min_tokens": 2, "stop_token_ids": [3], "ignore_eos": True}),
    ("/v1/completions", {"prompt": "x", **SHORT, "prompt_logprobs": 2, "truncate_prompt_tokens": 3, "priority": 1, "user": "u"}),
    ("/v1/chat/completions", {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}], **SHORT,
                              "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], **SHORT,
                              "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "c", "content": "1"}],
        **SHORT, "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}], "tool_choice": "auto", "stream": True}),
    ("/v1/embeddings", {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 8}),
    ("/tokenize", {"prompt": "a b", "add_special_tokens": True}), ("/detokenize", {"tokens": [1, 2, 3]}),
]


def changed(draw, v):
    """A JSON value in which one place is another."""
    if isinstance(v, dict) and v and draw.random() < 0.9:
        key = draw.choice(sorted(v))
        new = {k: changed(draw, x) if k == key else x for k, x in v.items()}
        return {**new, draw.choice(["a", key + "x", "\u0000", "n"]): new.pop(key)} if draw.random() < 0.05 else new
    if isinstance(v, list) and v and draw.random() < 0.8:
        i = draw.randrange(len(v))
        return [changed(draw, x) if j == i else x for j, x in enumerate(v)] * draw.choice((1, 1, 1, 2, 50))
    return draw.choice([None, True, -1, 0, 1, 2, 63, 1e308, -1e-320, 2**31, 2**53, 2**64, "", "a" * 5000, "\u0000", "\U0001f600\u0301", [], {},
                        [[]], {"a": {}}, [0] * 300, "(" * 200, "[^\\d]{0,9999}", {"$ref": "#"}, {"type": "string", "pattern": "(a*)*b"}])


def whole(draw, route, body):
    text = json.dumps(body).encode()
    if draw.random() < 0.2:
        text = mutated(draw, text)
    head = f"POST {route} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    if draw.random() < 0.2:
        cut = draw.randrange(len(text) + 1)
        parts = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (text[:cut], text[cut:]) if p)
        raw = head.encode() + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + parts + b"0\r\n\r\n"
    else:
        raw = f"{head}Content-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode() + text
    return (raw, False) if draw.random() < 0.85 else (mutated(draw, raw), True)


def send(port, raw, broken):
    """The status, or 0 where a broken request got no answer; what is no answer of HTTP fails."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as c:
        got = b""
        try:
            c.sendall(raw)
            if broken:
                c.shutdown(socket.SHUT_WR)
            while part := c.recv(65536):
                got += part
        except ConnectionError:
            assert broken or got, f"no answer: {raw[:3000]!r}"
    assert broken or got, f"no answer: {raw[:3000]!r}"
    while got.startswith(b"HTTP/1.1 100"):
        got = got.split(b"\r\n\r\n", 1)[1]
    assert not got or got[:9] in (b"HTTP/1.1 ", b"HTTP/1.0 "), (raw, got[:300])
    status = int(got[9:12]) if got else 0
    assert broken or status < 500 or status in (501, 503), (status, raw[:3000], got[-1000:])
    return status


def test_changed_requests(llmq, tmp_path):
    draw = random.Random(SEED)
    statuses, until_then = collections.Counter(), time.monotonic() + SECONDS
    ask = {"prompt": "the old man", "max_tokens": 12, "temperature": 0, "logprobs": 2}
    with Server(llmq, TINY, "--speculative-ngram", "--request-timeout", "60", env=WATCHED, log=tmp_path / "log") as s, \
            concurrent.futures.ThreadPoolExecutor(8) as pool:
        before = s.post_json("/v1/completions", ask)["choices"]
        while time.monotonic() < until_then:
            batch = []
            for _ in range(64):
                route, body = draw.choice(BODIES)
                for _ in range(draw.choice((0, 1, 1, 1, 2))):
                    body = changed(draw, body)
                batch.append(whole(draw, route, body))
            statuses.update(pool.map(lambda one: send(s.port, *one), batch))
            assert s.process.poll() is None, s.output()[-6000:]
        idle = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        lines = lambda: s.get("/metrics").read().decode().splitlines()  # noqa: E731
        until(lambda: not any(float(x.rsplit(" ", 1)[1]) for x in lines() if any(x.startswith(f"vllm:{n}{{") for n in idle)),
              lambda: "sequences or blocks are left")
        assert s.post_json("/v1/completions", ask)["choices"] == before
        code = s.stop()
        said = s.output()
        assert code == 0 and "Sanitizer" not in said and "runtime error" not in said, f"LLMQ_SEED={SEED}: {code}: {said[-6000:]}"
    print(f"\n{sum(statuses.values())} requests, answers {dict(sorted(statuses.items()))}, seed {SEED}")
