"""Ollama's API: /api/chat, /api/generate, /api/embed and what it tells of models."""
import json
import re

import pytest

from helpers import http
from test_messages import OURS as TOOLS

pytestmark = pytest.mark.case("C134")

CHAT, GENERATE = "/api/chat", "/api/generate"


def chat(name, options=None, **more):
    return {"messages": [{"role": "user", "content": f"[{name}]"}],
            "options": {"temperature": 0, "num_predict": 250, **(options or {})}, **more}


def generate(name, options=None, **more):
    ask = chat(name, options, **more)
    return {"prompt": ask.pop("messages")[0]["content"], **ask}


def streamed(server, path, ask):
    r = http("POST", server.url + path, json=ask)
    assert r.status_code == 200 and r.headers["content-type"] == "application/x-ndjson", r.text
    lines = [json.loads(line) for line in r.text.splitlines()]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line["created_at"]) for line in lines)
    return lines


def whole(server, path, ask):
    return server.post_json(path, {**ask, "stream": False})


WANT = {
    "abc": ("The cat sat on x the mat.", None, []),
    "one call": ("Let me see.", None, [("weather", {"city": "Paris", "days": [1, 2]})]),
    "two calls": ("", None, [("weather", {"city": "Köln \"x\" \\"}), ("now", {})]),
    "lines call": ("", None, [("weather", {"city": "a\nb", "days": []})]),
    "think": ("Four.", "Two and two.", []),
    "think call": ("", "hm", [("now", {})]),
}


@pytest.mark.parametrize("name", WANT)
def test_chats_whole_and_streamed(scripted, name):
    a = whole(scripted, CHAT, chat(name, tools=TOOLS))
    message = a["message"]
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])]
    assert (message["content"], message.get("thinking"), calls) == WANT[name]
    assert a["done"] is True and a["done_reason"] == "stop" and message["role"] == "assistant"
    assert min(a["prompt_eval_count"], a["eval_count"], a["total_duration"], a["eval_duration"]) > 0
    lines = streamed(scripted, CHAT, chat(name, tools=TOOLS))
    assert "".join(e["message"]["content"] for e in lines) == message["content"]
    assert "".join(e["message"].get("thinking", "") for e in lines) == message.get("thinking", "")
    assert [c["function"] for e in lines for c in e["message"].get("tool_calls", [])] == \
        [c["function"] for c in message.get("tool_calls", [])]
    assert lines[-1]["eval_count"] == a["eval_count"] and lines[-1]["done_reason"] == "stop"


def test_generate(scripted):
    a = whole(scripted, GENERATE, generate("think"))
    assert (a["response"], a["thinking"], a["done_reason"]) == ("Four.", "Two and two.", "stop")
    lines = streamed(scripted, GENERATE, generate("think"))
    assert "".join(e["response"] for e in lines) == "Four."
    a = whole(scripted, GENERATE, generate("abc", {"num_predict": 3}))
    assert (a["done_reason"], a["eval_count"]) == ("length", 3)
    with_system = whole(scripted, GENERATE, generate("abc", system="S"))
    assert with_system["prompt_eval_count"] == whole(scripted, CHAT, {
        **chat("abc"), "messages": [{"role": "system", "content": "S"}, *chat("abc")["messages"]]})["prompt_eval_count"]


def test_a_context_goes_on_with_what_was_said(server):
    def say(prompt, **more):
        return whole(server, GENERATE, {"prompt": prompt, "options": {"num_predict": 8, "temperature": 0}, **more})

    first = say("The old house")
    n = first["prompt_eval_count"]
    assert len(first["context"]) == n + first["eval_count"]
    again = server.post_json("/tokenize", {"messages": [{"role": "user", "content": "The old house"}]})["tokens"]
    assert first["context"][:n] == again
    second = say("And the sea?", context=first["context"])
    turn = server.post_json("/tokenize", {"messages": [{"role": "user", "content": "And the sea?"}]})["tokens"]
    asked = first["context"] + turn[1:]  # one BOS
    assert second["context"][:second["prompt_eval_count"]] == asked
    same = server.post_json("/v1/completions", {"prompt": asked, "max_tokens": 8, "temperature": 0})
    assert second["response"] == same["choices"][0]["text"] and second["context"] != first["context"]
    assert say("And the sea?", context=[])["response"] == say("And the sea?")["response"]
    lines = streamed(server, GENERATE, {"prompt": "And the sea?", "context": first["context"],
                                        "options": {"num_predict": 8, "temperature": 0}})
    assert lines[-1]["context"] == second["context"] and all("context" not in e for e in lines[:-1])
    assert "context" not in say("a", raw=True)
    check_error(http("POST", server.url + GENERATE, json={"prompt": "a", "context": [5] * 1025}), 400, "context")


CHATML = ("{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}<|im_start|>user\n{{ .Prompt }}<|im_end|>\n"
          "<|im_start|>assistant\n{{ .Response }}<|im_end|>\n")


def test_a_template_of_the_request(server):
    """Go's, as Ollama takes it: its own text may spell special tokens, what it is filled with may not."""
    def ids(text):
        return server.post_json("/tokenize", {"prompt": text})["tokens"]

    ask = {"prompt": "Who?", "template": CHATML, "options": {"num_predict": 6, "temperature": 0}}
    a = whole(server, GENERATE, ask)
    want = ids("<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n")
    assert a["context"][:a["prompt_eval_count"]] == want
    same = server.post_json("/v1/completions", {"prompt": want, "max_tokens": 6, "temperature": 0})
    assert a["response"] == same["choices"][0]["text"]
    b = whole(server, GENERATE, {**ask, "system": "Be brief.", "context": a["context"]})
    turn = ids("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n")
    assert b["context"][:b["prompt_eval_count"]] == a["context"] + turn[1:]
    spells = whole(server, GENERATE, {**ask, "prompt": "<|begin_of_text|>", "template": "{{ .Prompt }}"})
    assert spells["context"][:spells["prompt_eval_count"]].count(1) == 1  # the one that begins a text
    assert whole(server, GENERATE, {**ask, "template": ""})["response"] == whole(server, GENERATE, {
        "prompt": "Who?", "options": ask["options"]})["response"]
    lines = streamed(server, GENERATE, {**ask, "logprobs": True})
    assert "".join(e["response"] for e in lines) == a["response"] and lines[-1]["context"] == a["context"]
    check_error(http("POST", server.url + GENERATE, json={**ask, "prompt": "x " * 200000}), 400, "prompt")


@pytest.mark.parametrize("how", ["chat", "generate", "raw"])
def test_logprobs(server, how):
    options = {"num_predict": 6, "temperature": 0}
    path = CHAT if how == "chat" else GENERATE
    ask = {"messages": [{"role": "user", "content": "The sea"}]} if how == "chat" else {"prompt": "The sea", "raw": how == "raw"}
    ask = {**ask, "options": options, "logprobs": True, "top_logprobs": 3}
    a = whole(server, path, ask)
    entries = a["logprobs"]
    assert len(entries) == a["eval_count"] == 6
    for e in entries:
        assert set(e) == {"token", "logprob", "bytes", "top_logprobs"} and len(e["top_logprobs"]) == 3
        assert e["logprob"] == max(t["logprob"] for t in e["top_logprobs"])  # greedy
    text = a["message"]["content"] if how == "chat" else a["response"]
    assert b"".join(bytes(e["bytes"]) for e in entries).decode(errors="replace").startswith(text)
    lines = streamed(server, path, ask)
    assert [e for line in lines for e in line.get("logprobs", [])] == entries
    assert [e["top_logprobs"] for e in whole(server, path, {**ask, "top_logprobs": 0})["logprobs"]] == [[]] * 6
    assert "logprobs" not in whole(server, path, {**ask, "logprobs": False, "top_logprobs": None})


def test_raw_is_without_the_template(server):
    ask = {"prompt": "The old house", "options": {"num_predict": 6, "temperature": 0}, "stream": False, "raw": True}
    a = server.post_json(GENERATE, ask)
    b = server.post_json("/v1/completions", {"prompt": ask["prompt"], "max_tokens": 6, "temperature": 0})
    assert a["response"] == b["choices"][0]["text"] and a["prompt_eval_count"] == b["usage"]["prompt_tokens"]
    lines = http("POST", server.url + GENERATE, json={**ask, "stream": True}).text.splitlines()
    assert "".join(json.loads(x)["response"] for x in lines) == a["response"] and json.loads(lines[-1])["done"]


def test_bodies_mean_the_same_as_those_of_a_chat(scripted):
    theirs = [{"role": "user", "content": "a"},
              {"role": "assistant", "content": "T", "thinking": "hm",
               "tool_calls": [{"function": {"name": "now", "arguments": {"x": 1}}}]},
              {"role": "tool", "tool_name": "now", "content": "noon"}]
    ours = [{"role": "user", "content": "a"},
            {"role": "assistant", "content": "T", "reasoning_content": "hm",
             "tool_calls": [{"type": "function", "function": {"name": "now", "arguments": '{"x": 1}'}}]},
            {"role": "tool", "name": "now", "content": "noon"}]
    for think in (True, False):
        n = len(scripted.post_json("/v1/chat/completions/render", {
            "messages": ours, "tools": TOOLS, "chat_template_kwargs": {"enable_thinking": think}})["prompt_token_ids"])
        a = whole(scripted, CHAT, {"messages": theirs, "tools": TOOLS, "think": think, "options": {"num_predict": 1}})
        assert a["prompt_eval_count"] == n


def test_options_and_formats(scripted):
    a = whole(scripted, CHAT, chat("abc", {"stop": [" x "], "num_ctx": 512, "repeat_last_n": 64, "num_gpu": 1}))
    assert a["message"]["content"] == "The cat sat on"
    for n in (0, -1, -2):  # as many as there are
        assert whole(scripted, CHAT, chat("abc", {"stop": [" x "], "num_predict": n}))["message"] == a["message"]
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    assert json.loads(whole(scripted, CHAT, chat("abc", format=schema))["message"]["content"]) == {"a": 1}
    seeded = [whole(scripted, GENERATE, {"prompt": "once", "options": {"seed": s, "num_predict": 8, "temperature": 1}})
              ["response"] for s in (1, 1, 2)]
    assert seeded[0] == seeded[1] != seeded[2]


def check_error(r, status, part):
    assert r.status_code == status, r.text
    assert set(r.json()) == {"error"} and part in r.json()["error"], r.text


@pytest.mark.parametrize("path, ask, part", [
    (CHAT, {"messages": 5}, "messages: expected"),
    (CHAT, {}, "messages"),
    (CHAT, {"messages": [{"content": "a"}]}, "messages[0]: expected a role"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0]"),
    (CHAT, {"messages": [{"role": "user", "content": "a", "images": ["x"]}]}, "images"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]}, "arguments"),
    (CHAT, chat("abc", {"num_predict": 1.5}), "num_predict: expected"),
    (CHAT, chat("abc", {"repeat_penalty": -1}), "repeat_penalty: expected"),
    (CHAT, chat("abc", {"repeat_last_n": "x"}), "repeat_last_n"),
    (CHAT, chat("abc", {"mirostat": 1, "mirostat_tau": 99}), "mirostat"),
    (CHAT, chat("abc", format="xml"), "format"),
    (CHAT, chat("abc", think=5), "think"),
    (CHAT, chat("abc", logprobs=5), "logprobs"),
    (CHAT, chat("abc", top_logprobs=2), "top_logprobs"),
    (CHAT, chat("abc", logprobs=True, top_logprobs=21), "top_logprobs"),
    (GENERATE, generate("abc", raw=True, logprobs="yes"), "logprobs"),
    (GENERATE, generate("abc", raw=True, top_logprobs=2), "top_logprobs"),
    (CHAT, {**chat("abc"), "options": 5}, "options"),
    (GENERATE, {}, "prompt: expected"),
    (GENERATE, generate("abc", images=["x"]), "images"),
    (GENERATE, generate("abc", raw=True, context=[1]), "context: only allowed without raw"),
    (GENERATE, generate("abc", template=5), "template: expected a string"),
    (GENERATE, generate("abc", raw="yes"), "raw: expected true or false"),
    (GENERATE, generate("abc", suffix=5), "suffix: expected a string"),
    (GENERATE, {"raw": True}, "prompt: expected"),
    (GENERATE, generate("abc", suffix="x"), "suffix"),
    (GENERATE, generate("abc", context=5), "context"),
    (GENERATE, generate("abc", context=[1, "x"]), "context"),
    (GENERATE, generate("abc", context=[1 << 30]), "context"),
    (GENERATE, generate("abc", template="{{ printf .Prompt }}"), "template: not supported: 'printf"),
    (GENERATE, generate("abc", template="{{ if .Prompt }}"), "template: a block without its end"),
    (GENERATE, generate("abc", template="{{ .Prompt }}", raw=True), "template"),
    (GENERATE, generate("abc", template="{{ .Prompt }}", suffix="x"), "template"),
    (GENERATE, generate("abc", template="{{ .Prompt }}", system=5), "system"),
    (GENERATE, {"template": "{{ .Prompt }}"}, "prompt: expected"),
    (GENERATE, generate("abc", template="{{ .Prompt }}", context=[1 << 30]), "context"),
    ("/api/embed", {"input": 5}, "input"),
    ("/api/embeddings", {}, "prompt"),
    ("/api/show", {}, "model"),
    ("/api/pull", {}, "model"),
])
def test_what_is_refused(scripted, path, ask, part):
    check_error(http("POST", scripted.url + path, json=ask), 400, part)


def test_a_client_may_leave_the_type_out(server):
    """As LiteLLM does, or call it a form, as `curl -d` in Ollama's documents does; a page of another origin may not."""
    ask = json.dumps({"prompt": "a", "raw": True, "stream": False, "options": {"num_predict": 1}}).encode()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for headers in ({}, form):
        assert http("POST", server.url + GENERATE, content=ask, headers=headers).status_code == 200
        assert http("POST", server.url + GENERATE, content=ask,
                    headers={**headers, "Origin": "https://bad.example"}).status_code == 403
        assert http("POST", server.url + "/v1/completions", content=ask, headers=headers).status_code == 415
    assert http("POST", server.url + GENERATE, content=ask, headers={"Content-Type": "text/plain"}).status_code == 415


def test_failures(scripted):
    check_error(http("POST", scripted.url + CHAT, json={**chat("nan"), "stream": False}), 500, "NaN")
    check_error(http("POST", scripted.url + CHAT, json=chat("abc", model="nobody:latest")), 404, "nobody")
    last = http("POST", scripted.url + CHAT, json=chat("nan")).text.splitlines()[-1]
    assert "NaN" in json.loads(last)["error"]
    check_error(http("GET", scripted.url + CHAT), 405, "method")


def test_embeddings(server):
    a = server.post_json("/api/embed", {"model": "tiny:latest", "input": ["a", "b"], "keep_alive": "5m"})
    assert a["model"] == "tiny:latest" and a["prompt_eval_count"] > 1
    ours = [d["embedding"] for d in server.post_json("/v1/embeddings", {"input": ["a", "b"]})["data"]]
    assert a["embeddings"] == ours
    assert server.post_json("/api/embeddings", {"prompt": "a"})["embedding"] == ours[0]
    assert len(server.post_json("/api/embed", {"input": "a", "dimensions": 4})["embeddings"][0]) == 4
    for nothing in ({}, {"input": ""}, {"input": []}):  # the model is loaded
        assert server.post_json("/api/embed", {"model": "tiny", **nothing}) == {"model": "tiny", "embeddings": []}
    assert server.post_json("/api/embeddings", {"model": "tiny", "prompt": ""}) == {"embedding": []}
    assert server.post("/api/embed", {"model": "x", "input": ""}).status == 404
    assert server.post("/api/embed", {"input": "a " * 5000, "truncate": False}).status == 400
    assert server.post("/api/embed", {"input": "a " * 5000}).status == 200


def test_what_it_tells_of_models(server, scripted):
    for path in ("/api/tags", "/api/ps"):
        models = json.loads(server.get(path).read())["models"]
        assert [m["name"] for m in models] == ["tiny", "org/tiny"] == [m["model"] for m in models]
        assert all(m["size"] > 0 and m["digest"] and "details" in m for m in models)
    a = server.post_json("/api/show", {"model": "tiny:latest"})
    card = json.loads(server.get("/v1/models").read())["data"][0]
    assert a["model_info"]["llmq.context_length"] == card["max_model_len"]
    assert set(a["capabilities"]) == {"completion", "tools"}  # with "embedding" `ollama run` writes vectors
    assert set(scripted.post_json("/api/show", {"name": json.loads(scripted.get("/api/tags").read())["models"][0]["name"]})
               ["capabilities"]) == {"completion", "tools", "thinking"}
    check_error(http("POST", server.url + "/api/show", json={"model": "x"}), 404, "x")
    tag = json.loads(server.get("/api/tags").read())["models"][0]
    assert tag["capabilities"] == a["capabilities"] and tag["details"]["context_length"] == card["max_model_len"]
    assert len(tag["digest"]) >= 12  # of which `ollama list` shows as many
    version = json.loads(server.get("/api/version").read())
    assert version["llmq"] == json.loads(server.get("/version").read())["version"]
    assert [int(n) for n in version["version"].split(".")] >= [0, 6, 4]  # Copilot Chat refuses older ones


@pytest.mark.parametrize("path, ask, key", [
    (GENERATE, {}, "response"), (GENERATE, {"prompt": "", "keep_alive": "5m", "stream": True}, "response"),
    (CHAT, {"messages": []}, "message"), (CHAT, {"keep_alive": -1}, "message")])
def test_a_model_is_loaded_by_a_request_without_a_text(server, path, ask, key):
    """`ollama run` sends one first; the answer is one object, streamed or not."""
    a = server.post_json(path, {"model": "tiny:latest", **ask})
    assert a["done"] is True and a["done_reason"] == "load" and a["model"] == "tiny:latest"
    assert a[key] == ("" if key == "response" else {"role": "assistant", "content": ""})
    check_error(http("POST", server.url + path, json={"model": "x", **ask}), 404, "'x' is not served")
    for zero in (0, "0", "0s"):
        check_error(http("POST", server.url + path, json={"model": "tiny", **ask, "keep_alive": zero}), 400, "keep_alive: unloading")


def test_a_served_model_is_pulled_and_another_is_not(server):
    def lines(ask):
        r = http("POST", server.url + "/api/pull", json=ask)
        assert r.status_code == 200 and r.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in r.text.splitlines()]

    assert lines({"model": "tiny:latest"}) == [{"status": "pulling manifest"}, {"status": "success"}]
    assert server.post_json("/api/pull", {"name": "org/tiny", "stream": False}) == {"status": "success"}
    first, last = lines({"model": "x"})
    assert first == {"status": "pulling manifest"} and set(last) == {"error"} and "'x' is not served" in last["error"]
    check_error(http("POST", server.url + "/api/pull", json={"model": "x", "stream": False}), 404, "downloads none")
    check_error(http("POST", server.url + "/api/pull", json={"model": 5}), 400, "model: expected a string")


@pytest.mark.parametrize("method, path, body, part", [
    ("POST", "/api/copy", {"source": "tiny", "destination": "other"}, "--served-model-name"),
    ("POST", "/api/create", {"model": "mario", "from": "tiny", "system": "You are Mario."}, "quantize"),
    ("POST", "/api/push", {"model": "tiny"}, "publish"), ("DELETE", "/api/delete", {"model": "tiny"}, "not deleted"),
])
def test_models_are_not_changed(server, method, path, body, part):
    check_error(http(method, server.url + path, json=body), 400, part)
    assert server.post_json("/api/show", {"model": "tiny"})["details"]["format"] == "llmq"


@pytest.mark.parametrize("method, path, key", [("POST", "/api/copy", "source"), ("POST", "/api/push", "model"), ("POST", "/api/push", "name"),
                                               ("DELETE", "/api/delete", "model"), ("DELETE", "/api/delete", "name")])
def test_a_model_that_is_not_here_is_not_found(server, method, path, key):
    """As Ollama says it, before it says what cannot be done; under the older name of the member, too."""
    check_error(http(method, server.url + path, json={key: "nope"}), 404, "'nope'")
    check_error(http(method, server.url + path, json={key: 5}), 400, "expected a string")
    check_error(http(method, server.url + path, json={key: "tiny:latest"}), 400, "not ")


def test_files_of_models_are_not_taken(server):
    """What `ollama create` asks with a file: whether it is there, then to take it."""
    path = server.url + "/api/blobs/sha256:" + "0" * 64
    assert http("HEAD", path).status_code == 404
    check_error(http("GET", path), 404, "no file")
    check_error(http("POST", path, data=b"GGUF"), 400, "files are not taken here")
