"""Everything that bounds the server is listed, holds, and adds up to the memory that it takes."""
import re
import subprocess

import pytest

import load_to_limits
from harness import LIMIT, ROOT, Server
from helpers import NOT_SANITIZED, TINY, canary, check_error, complete, with_template

# What has a name like a limit's and bounds no request: a model's own files, tables, sizes of pieces.
OTHERS = {
    "MAX_BLOCKS": "blocks of a cache, by --kv-cache-memory", "MAX_BLOCK": "--block-size", "KV_MAX_BLOCK": "likewise", "MAX_MEM": "a device's",
    "MAX_OPEN": "windows of eval", "MAX_FILE": "a model's files", "MAX_TEMPLATES": "a model's file",
    "MAX_BUCKETS": "a table", "MAX_NEWLINES": "what a mark swallows", "NAME_MAX_BYTES": "a name of DNS", "SCAN_MAX": "a way",
    "CLOSE_SECONDS": "a wait", "JIT_STACK_MAX": "a tokenizer's",
    "MAX_KEY": "of what a model writes: more is no call", "MAX_HEADER": "likewise, no header",
    "MAX_NAME": "a file of --file-store-dir", "MAX_JSON": "likewise",
    "ENG_MAX_WAKE": "a mark of a template and a function's name", "MAX_MARK": "a template's mark",
    "MAX_MARKS": "marks that may come at one place",
    "HTTP_REPEAT_MAX": "of an answer, which max_backlog does not count",
}
MODELS = re.compile(r"tok_|tok\.|chat_set|model_|eval|load|kv\.|forward|metrics|sentence")  # files that read models, not requests


def in_sources():
    """Names of enum constants in runtime/ that look like limits, with their files."""
    for path in sorted((ROOT / "runtime").rglob("*.[ch]")):
        for block in re.findall(r"enum\s*\w*\s*\{([^}]*)\}", path.read_text()):
            for name in re.findall(r"\b([A-Z0-9_]*MAX[A-Z0-9_]*|MOST_[A-Z_]+)\s*=", block):
                yield name, path.name


def test_every_limit_is_listed(llmq):
    listed = {x["name"].split(":")[0] for x in llmq.json("serve", TINY, "--print-limits")["limits"]}
    found = [(n, f) for n, f in in_sources() if not MODELS.match(f)]
    missing = [x for x in found if x[0] not in listed and x[0] not in OTHERS]
    assert not missing, f"put them into runtime/limits.h, or say in OTHERS what they are: {missing}"
    header = set(re.findall(r"X\(([A-Z_]+),", (ROOT / "runtime/limits.h").read_text()))
    assert len(header) > 50 and header <= listed


def test_the_list_says_what_holds(llmq):
    args = ("serve", TINY, "--queue", 7, "--max-num-seqs", 3, "--max-body-size", "5K", "--kv-cache-memory", "1M")
    got = llmq.json(*args, "--print-limits")
    limits, memory = {x["name"]: x for x in got["limits"]}, got["memory"]
    for name, now, default in (("queue", 7, 1024), ("max-num-seqs", 3, 64), ("max-body-size", 5120, 32 << 20),
                               ("request-memory", 256 << 20, 256 << 20), ("max-model-len", 1024, 0)):
        assert (limits[name]["value"], limits[name]["default"], limits[name]["option"]) == (now, default, name)
    fixed = limits["API_MAX_STOPS: stop strings"]
    assert fixed["option"] is None and fixed["value"] == 32 and fixed["memory"] == "waiting_bytes"
    assert {x["memory"] for x in got["limits"]} - {None} <= set(memory)
    assert memory["total_bytes"] == llmq.json(*args, "--dry-run")["total_bytes"]
    text = llmq(*args, "--print-limits").stdout
    assert re.search(r"^--queue +7 +1024 ", text, re.M) and "at most in all" in text
    # every option with a number is there, but those of the model and of the way that batches begin
    for option in ("max-connections", "request-timeout", "stall-timeout", "shutdown-timeout", "block-size",
                   "max-num-batched-tokens", "kv-cache-memory", "num-speculative-tokens"):
        assert limits[option]["option"] == option


@pytest.fixture(scope="module")
def small(llmq, tmp_path_factory):
    with Server(llmq, TINY, "--max-body-size", "64K", "--request-memory", "1M",
                log=tmp_path_factory.mktemp("small") / "log") as s:
        yield s


def test_bodies_and_answers_have_their_bounds(small):
    check_error(small.post("/v1/completions", {"prompt": "a", "x": "b" * 65536}), 413)
    # whole answers of 16 times 500 tokens with 5 alternatives each are more than 1 MiB
    body = {"prompt": "The sea", "n": 16, "temperature": 1, "max_tokens": 500, "ignore_eos": True, "logprobs": 5}
    check_error(small.post("/v1/completions", body), 503, code="overloaded", type="service_unavailable_error")
    canary(small)
    assert complete(small, "The sea", max_tokens=200, logprobs=5)["usage"]["completion_tokens"] <= 200


def test_a_category_is_looked_for_once(small):
    """Each \\p{..} looks through all of Unicode: 11,000 of them had taken minutes."""
    one = {"type": "string", "pattern": "\\pL" * 31}
    schema = {"type": "object", "properties": {f"p{i}": one for i in range(370)}}
    check_error(small.post("/v1/completions", {"prompt": "a", "guided_json": schema}), 400, "guided_json")
    text = complete(small, "a", guided_regex="[^\\p{Lu}\\P{L}]{3}", max_tokens=8)["choices"][0]["text"]
    assert len(text) == 3 and text == text.lower() and text.isalpha()


def test_a_server_without_descriptors_says_so(llmq):
    p = subprocess.run(["sh", "-c", 'ulimit -n 10; exec "$0" serve "$1" --port 0', llmq.path, TINY], capture_output=True, text=True,
                       timeout=LIMIT)
    assert (p.returncode, p.stderr.splitlines()[-1]) == (1, "llmq: serve: the HTTP server did not start: Too many open files")


@NOT_SANITIZED
def test_memory_stays_below_what_was_printed(llmq, tmp_path):
    peak, said, seen, _ = load_to_limits.run(llmq, TINY, 1, tmp_path / "log")
    # nothing here renders a large template
    assert peak < said["total_bytes"] - said["templates_bytes"] - said["grammars_bytes"], (peak, said, seen)


@NOT_SANITIZED
def test_templates_and_grammars_stay_below_what_was_printed(llmq, tmp_path):
    """And what they took goes back: malloc had kept it below what lives on."""
    model = with_template(tmp_path / "m", load_to_limits.GROWS)
    peak, said, seen, stays = load_to_limits.run_texts(llmq, model, 1, tmp_path / "log")
    assert load_to_limits.LARGEST_TEXTS < peak < said["total_bytes"] and seen[200] and seen[400], (peak, said, seen)
    assert stays < load_to_limits.LARGEST_TEXTS / 2, (stays, seen)
