"""OpenAI's Responses API: /v1/responses, against the scripted engine."""
import contextlib
import json
import os
import pathlib
import re
import socket
import time

import openai
import pytest

from harness import Server, with_template
from helpers import ROOT, TINY, check_error, http

pytestmark = pytest.mark.case("C133")

PATH = "/v1/responses"
WEATHER = {"type": "function", "name": "weather", "description": "weather, please",
           "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}}}
NOW = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
TOOLS = [WEATHER, NOW, {"type": "web_search"}]


def body(name, **more):
    return {"input": f"[{name}]", "temperature": 0, "max_output_tokens": 250, **more}


def events_of(data, first=0):
    """Strictly: names and sequence numbers, from the first on; no [DONE]."""
    out = []
    parts = data.decode().split("\n\n")
    assert parts.pop() == ""
    for part in parts:
        if part.startswith(":"):
            continue
        name, text = part.split("\n")
        event = json.loads(text.removeprefix("data: "))
        assert name == "event: " + event["type"] and event["sequence_number"] == first + len(out)
        out.append(event)
    return out


def streamed(server, ask):
    r = http("POST", server.url + PATH, json={**ask, "stream": True})
    assert r.status_code == 200, r.text
    return events_of(r.content)


DELTAS = {"response.output_text.delta": ("output_text", "text"), "response.reasoning_text.delta": ("reasoning_text", "text"),
          "response.reasoning_summary_text.delta": ("summary_text", "text"),
          "response.function_call_arguments.delta": (None, "arguments"),
          "response.custom_tool_call_input.delta": (None, "input")}


def check_order(events):
    """created, in_progress, then each item from its beginning to its end, then the whole; deltas make the texts."""
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"]
    response = events[-1]["response"]
    i = 2
    for index, item in enumerate(response["output"]):
        added = events[i]
        assert added["type"] == "response.output_item.added" and added["output_index"] == index
        assert added["item"]["id"] == item["id"] and added["item"]["status"] == "in_progress"
        text, part, i = "", None, i + 1
        while events[i]["type"] != "response.output_item.done":
            e = events[i]
            assert e["item_id"] == item["id"] and e["output_index"] == index
            if e["type"].endswith("part.added"):
                part = e["part"]
                assert part["text"] == ""
            elif e["type"] in DELTAS:
                kind, member = DELTAS[e["type"]]
                assert kind == (part and part["type"])
                text += e["delta"]
            elif e["type"].endswith("part.done"):
                assert e["part"]["text"] == text
            else:
                assert e["type"].endswith(".done") and e[member] == text, e
            i += 1
        assert events[i]["item"] == item
        i += 1
    assert i == len(events) - 1
    return response


def plain(response):
    """What is the same in every answer."""
    out = []
    for item in response["output"]:
        item = {k: v for k, v in item.items() if k not in ("id", "call_id")}
        out.append(item)
    return out, response["status"], response["usage"]["output_tokens"]


def said(text):
    return {"type": "message", "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]}


def thought(text):
    return {"type": "reasoning", "status": "completed", "summary": [],
            "content": [{"type": "reasoning_text", "text": text}]}


def called(name, arguments):
    return {"type": "function_call", "status": "completed", "name": name, "arguments": json.dumps(arguments)}


WANT = {
    "abc": [said("The cat sat on x the mat.")],
    "one call": [said("Let me see."), called("weather", {"city": "Paris", "days": [1, 2]})],
    "two calls": [called("weather", {"city": "Köln \"x\" \\"}), called("now", {})],
    "think call": [thought("hm"), called("now", {})],
    "think": [thought("Two and two."), said("Four.")],
}


@pytest.mark.parametrize("name", WANT)
def test_items_whole_and_streamed(scripted, name):
    whole = scripted.post_json(PATH, body(name, tools=TOOLS))
    assert whole["object"] == "response" and whole["id"].startswith("resp_") and whole["status"] == "completed"
    assert [{**i, "arguments": json.dumps(json.loads(i["arguments"]))} if "arguments" in i else i
            for i in plain(whole)[0]] == WANT[name]
    assert len({i["id"] for i in whole["output"]}) == len(whole["output"])
    assert plain(check_order(streamed(scripted, body(name, tools=TOOLS)))) == plain(whole)
    assert (whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0) == name.startswith("think")


def test_what_was_asked_is_in_the_answer(scripted):
    ask = body("abc", instructions="I", metadata={"a": "b"}, tools=TOOLS, tool_choice="none", text={"verbosity": "low"},
               parallel_tool_calls=False, store=True)
    a = scripted.post_json(PATH, ask)
    for key in ("instructions", "metadata", "tools", "tool_choice", "text", "temperature", "parallel_tool_calls",
                "max_output_tokens"):
        assert a[key] == ask[key], key
    assert a["store"] is False and a["error"] is None and a["previous_response_id"] is None


def test_ends_and_usage(scripted):
    a = check_order(streamed(scripted, body("abc", max_output_tokens=3)))
    assert (a["status"], a["incomplete_details"], a["output"][0]["status"]) == \
        ("incomplete", {"reason": "max_output_tokens"}, "incomplete")
    long = body("abc", instructions="Be brief. " * 20)
    counted = scripted.post_json(PATH + "/input_tokens", long)["input_tokens"]
    for cached in (False, True):
        u = scripted.post_json(PATH, long)["usage"]
        assert u["input_tokens"] == counted and u["total_tokens"] == counted + u["output_tokens"]
        assert (u["input_tokens_details"]["cached_tokens"] > 0) >= cached


CALL = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
OURS = [{"type": "function", "function": {k: v for k, v in t.items() if k != "type"}} for t in TOOLS[:2]]
CUSTOM = {"type": "custom", "name": "now", "description": "d"}
OURS_CUSTOM = [{"type": "function", "function": {"name": "now", "description": "d", "parameters": {
    "type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
    "additionalProperties": False}}}]


def message(role, *texts):
    return {"type": "message", "role": role,
            "content": [{"type": "output_text" if role == "assistant" else "input_text", "text": t} for t in texts]}


@pytest.mark.parametrize("theirs, ours, more", [
    ({"input": "a", "instructions": "S"}, [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}], {}),
    ({"input": [message("developer", "D"), message("user", "a", "b")], "instructions": "S"},
     [{"role": "system", "content": "S\nD"}, {"role": "user", "content": "a\nb"}], {}),
    ({"input": [{"role": "user", "content": "a"}, message("assistant", "b"), {"role": "user", "content": "c"}]},
     [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}], {}),
    ({"tools": TOOLS, "input": [
        message("user", "a"), {"type": "reasoning", "id": "r", "summary": [], "content": [
            {"type": "reasoning_text", "text": "hm"}]},
        message("assistant", "T"), {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "noon"}, message("user", "and?")]},
     [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "T", "reasoning_content": "hm", "tool_calls": [CALL]},
      {"role": "tool", "tool_call_id": "c1", "content": "noon"}, {"role": "user", "content": "and?"}], {"tools": OURS}),
    ({"tools": [CUSTOM], "input": [
        message("user", "a"), {"type": "reasoning", "summary": [], "encrypted_content": "llmq:hm"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "now", "input": "I"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "noon"}]}]},
     [{"role": "user", "content": "a"},
      {"role": "assistant", "content": None, "reasoning_content": "hm",
       "tool_calls": [{**CALL, "function": {"name": "now", "arguments": '{"input": "I"}'}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "noon"}], {"tools": OURS_CUSTOM}),
    ({"reasoning": {"effort": "none"}, "input": "a"}, [{"role": "user", "content": "a"}],
     {"chat_template_kwargs": {"enable_thinking": False}}),
])
def test_bodies_mean_the_same_as_those_of_a_chat(scripted, theirs, ours, more):
    n = len(scripted.post_json("/v1/chat/completions/render", {"messages": ours, **more})["prompt_token_ids"])
    assert scripted.post_json(PATH, {"max_output_tokens": 1, **theirs})["usage"]["input_tokens"] == n


STRICT = [{"type": "function", "name": n, "parameters": {
    "type": "object", "properties": {"x": {"enum": ["a", "b"]}}, "required": ["x"], "additionalProperties": False}}
          for n in ("weather", "now")]


@pytest.mark.parametrize("choice, names", [
    ("required", {"weather", "now"}), ({"type": "function", "name": "now"}, {"now"}),
    ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}, {"now"})])
def test_calls_that_must_come(scripted, choice, names):
    ask = body("no think", tools=STRICT, tool_choice=choice)
    a = scripted.post_json(PATH, ask)
    item, = a["output"]
    assert item["type"] == "function_call" and item["name"] in names and json.loads(item["arguments"])["x"] in "ab"
    assert plain(check_order(streamed(scripted, ask))) == plain(a)


def test_custom_tools(scripted):
    ask = body("custom call", tools=[CUSTOM, {"type": "custom", "name": "g", "format": {"type": "text"}}])
    a = scripted.post_json(PATH, ask)
    assert plain(a)[0] == [{"type": "custom_tool_call", "status": "completed", "name": "now", "input": "one \"two\""}]
    assert plain(check_order(streamed(scripted, ask))) == plain(a)


# as Codex sends the tools of an MCP server
SKY = {"type": "namespace", "name": "mcp__sky", "description": "Tells the weather.", "tools": [
    {"type": "function", "name": "weather", "description": "of a city", "strict": False, "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
    {"type": "custom", "name": "now"}, {"type": "web_search"}]}


def test_tools_in_a_namespace(scripted):
    """The model sees one name, an item has the two, and both ways of writing a call down are the same prompt."""
    ask = body("space call", tools=[NOW, SKY])
    a = scripted.post_json(PATH, ask)
    assert [(i["type"], i["namespace"], i["name"]) for i in a["output"]] == [
        ("function_call", "mcp__sky", "weather"), ("custom_tool_call", "mcp__sky", "now")]
    assert plain(check_order(streamed(scripted, ask))) == plain(a)
    again = [message("user", "[space call]"), *a["output"],
             *({"type": t + "_output", "call_id": i["call_id"], "output": "rain"}
               for t, i in zip(("function_call", "custom_tool_call"), a["output"]))]
    calls = [{"id": i["call_id"], "type": "function", "function": {"name": n, "arguments": v}}
             for i, n, v in zip(a["output"], ("mcp__sky__weather", "mcp__sky__now"), ('{"city": "Paris"}', '{"input": "x"}'))]
    ours = [{"role": "user", "content": "[space call]"}, {"role": "assistant", "content": None, "tool_calls": calls},
            *({"role": "tool", "tool_call_id": c["id"], "content": "rain"} for c in calls)]
    weather, now = ({k: v for k, v in t.items() if k != "type"} for t in SKY["tools"][:2])
    tools = [{"type": "function", "function": {k: v for k, v in NOW.items() if k != "type"}},
             {"type": "function", "function": {**weather, "name": "mcp__sky__weather",
                                               "description": "Tells the weather.\nof a city"}},
             {"type": "custom", "custom": {**now, "name": "mcp__sky__now"}}]
    n = len(scripted.post_json("/v1/chat/completions/render", {"messages": ours, "tools": tools})["prompt_token_ids"])
    assert scripted.post_json(PATH + "/input_tokens", {"input": again, "tools": ask["tools"]})["input_tokens"] == n


@pytest.mark.parametrize("choice", [
    {"type": "function", "namespace": "mcp__sky", "name": "weather"},
    *({"type": "allowed_tools", "mode": "required", "tools": [t]} for t in (
        {"type": "function", "namespace": "mcp__sky", "name": "weather"}, {"type": "namespace", "name": "mcp__sky"}))])
def test_a_tool_of_a_namespace_that_must_come(scripted, choice):
    sky = {**SKY, "tools": [{**STRICT[0], "description": "d"}]}
    item, = scripted.post_json(PATH, body("no think", tools=[NOW, sky], tool_choice=choice))["output"]
    assert (item["namespace"], item["name"]) == ("mcp__sky", "weather") and json.loads(item["arguments"])["x"] in "ab"


@pytest.mark.parametrize("choice", ["required", {"type": "custom", "name": "code"}, {
    "type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "code"}]}])
def test_the_pattern_of_a_custom_tool_holds(scripted, choice):
    tools = [{"type": "custom", "name": "code", "format": {"type": "grammar", "syntax": "regex", "definition": "[a-c]{3}\n"}}]
    ask = body("no think", tools=tools, tool_choice=choice)
    a = scripted.post_json(PATH, ask)
    item, = a["output"]
    assert item["type"] == "custom_tool_call" and re.fullmatch("[a-c]{3}\n", item["input"])
    assert plain(check_order(streamed(scripted, ask))) == plain(a)


def test_thoughts_as_they_are_asked_for(scripted):
    ask = body("think", reasoning={"summary": "auto"}, include=["reasoning.encrypted_content"])
    a = scripted.post_json(PATH, ask)
    item = a["output"][0]
    assert item["summary"] == [{"type": "summary_text", "text": "Two and two."}] and "content" not in item
    assert item["encrypted_content"] == "llmq:Two and two."
    assert plain(check_order(streamed(scripted, ask))) == plain(a)


@pytest.mark.parametrize("name", ["abc", "think", "one call"])
@pytest.mark.parametrize("more", [{"include": ["message.output_text.logprobs"]}, {"top_logprobs": 2}])
def test_logprobs_are_those_of_the_text(scripted, name, more):
    """Of its tokens, and of the marks next to it; thoughts and calls have none."""
    ask = body(name, tools=TOOLS, **more)
    a = scripted.post_json(PATH, ask)
    part = next(i for i in a["output"] if i["type"] == "message")["content"][0]
    said = "".join(t["token"] for t in part["logprobs"])
    assert said.removesuffix("<|endoftext|>").strip().removeprefix("</think>").strip() == part["text"]
    assert all(t["logprob"] <= 0 and bytes(t["bytes"]).decode() == t["token"] for t in part["logprobs"])
    assert {len(t["top_logprobs"]) for t in part["logprobs"]} == {more.get("top_logprobs", 0)}
    events = streamed(scripted, ask)
    deltas = [e["logprobs"] for e in events if e["type"] == "response.output_text.delta"]
    assert sum(deltas, []) == part["logprobs"] and len(deltas) > 3
    assert next(e for e in events if e["type"] == "response.output_text.done")["logprobs"] == part["logprobs"]
    assert plain(check_order(events)) == plain(a)
    without = scripted.post_json(PATH, body(name, tools=TOOLS, top_logprobs=0))
    assert next(i for i in without["output"] if i["type"] == "message")["content"][0]["logprobs"] == []


@pytest.mark.parametrize("items, name, arguments, result", [
    ([{"type": "local_shell_call", "id": "i", "call_id": "c1", "action": {"type": "exec", "command": ["ls"]}},
      {"type": "local_shell_call_output", "id": "c1", "output": "a.txt"}],
     "local_shell", {"type": "exec", "command": ["ls"]}, "a.txt"),
    ([{"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}},
      {"type": "shell_call_output", "call_id": "c1", "output": [{"stdout": "x"}]}], "shell", {"commands": ["ls"]}, '[{"stdout":"x"}]'),
    ([{"type": "apply_patch_call", "call_id": "c1", "operation": {"path": "a"}},
      {"type": "apply_patch_call_output", "call_id": "c1", "status": "completed"}], "apply_patch", {"path": "a"}, "completed"),
    ([{"type": "web_search_call", "id": "c1", "status": "completed", "action": {"type": "search", "query": "q"}}],
     "web_search", {"type": "search", "query": "q"}, "completed"),
    ([{"type": "file_search_call", "id": "c1", "queries": ["q"], "results": [{"text": "t"}]}],
     "file_search", {"queries": ["q"]}, '[{"text":"t"}]'),
    ([{"type": "code_interpreter_call", "id": "c1", "code": "1", "outputs": [{"logs": "1"}]}],
     "code_interpreter", {"code": "1"}, '[{"logs":"1"}]'),
    ([{"type": "mcp_call", "id": "c1", "name": "m", "arguments": '{"a": 1}', "output": "o"}], "m", {"a": 1}, "o"),
    ([{"type": "tool_search_call", "call_id": "c1", "arguments": {"query": "q"}},
      {"type": "tool_search_output", "call_id": "c1", "tools": [{"name": "t"}]}], "tool_search", {"query": "q"}, '[{"name":"t"}]'),
    ([{"type": "mcp_call", "id": "c1", "name": "m", "arguments": "{}", "output": None, "error": "e"}], "m", {}, "e"),
])
def test_what_other_tools_did_is_a_call(scripted, items, name, arguments, result):
    more = [message("user", "a")]
    a = scripted.post_json(PATH + "/input_tokens", {"input": more + items})["input_tokens"]
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    ours = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": result}]
    assert a == len(scripted.post_json("/tokenize", {"messages": ours})["tokens"])


def ended(server, id):
    for _ in range(400):
        a = json.load(server.get(f"{PATH}/{id}"))
        if a["status"] != "in_progress":
            return a
        time.sleep(0.02)
    raise AssertionError("it does not end")


def alike(a):
    """But for what is each response's own."""
    return {k: v for k, v in a.items() if k not in ("id", "created_at", "background", "output")}, [
        {k: v for k, v in item.items() if not k.endswith("id")} for item in a["output"]]


def test_in_the_background(keeping):
    """The same response, without a client that waits; its conversation goes on when it has ended."""
    at_once = keeping.post_json(PATH, body("think"))
    a = keeping.post_json(PATH, body("think", background=True))
    assert (a["status"], a["background"], a["output"], a["usage"]) == ("queued", True, [], None) and not at_once["background"]
    done = ended(keeping, a["id"])
    assert alike(done) == alike(at_once) and done["id"] == a["id"]
    items = json.load(keeping.get(f"{PATH}/{a['id']}/input_items"))["data"]
    assert [x["content"][0]["text"] for x in items] == ["[think]"]
    assert keeping.post_json(PATH, {**body("abc"), "previous_response_id": a["id"]})["usage"]["input_tokens"] > at_once["usage"]["input_tokens"]
    assert keeping.post_json(f"{PATH}/{a['id']}/cancel", {}) == done


def test_one_in_the_background_is_ended(keeping):
    """By its cancellation, which stays, or because it is forgotten."""
    slow = {"input": "[slow]", "max_output_tokens": 200, "background": True}
    a = keeping.post_json(PATH, slow)
    check_error(keeping.post(PATH, {**body("abc"), "previous_response_id": a["id"]}), 400, "previous_response_id")
    was = keeping.post_json(f"{PATH}/{a['id']}/cancel", {})
    assert (was["status"], was["output"]) == ("cancelled", []) and keeping.post_json(f"{PATH}/{a['id']}/cancel", {}) == was
    b = keeping.post_json(PATH, slow)
    assert http("DELETE", f"{keeping.url}{PATH}/{b['id']}").json()["deleted"]
    for _ in range(400):
        if json.load(keeping.get("/load"))["running"] == 0:
            break
        time.sleep(0.02)
    assert json.load(keeping.get(f"{PATH}/{a['id']}")) == was
    check_error(keeping.get(f"{PATH}/{b['id']}"), 404)
    failed = keeping.post_json(PATH, body("nan", background=True))
    failed = ended(keeping, failed["id"])
    assert failed["status"] == "failed" and "NaN" in failed["error"]["message"]


def left_after(server, ask, n):
    """Begins a stream in the background and leaves it after n events, which are returned."""
    r = server.post(PATH, {**ask, "background": True, "stream": True})
    data = b""
    while data.count(b"\n\n") < n:
        data += r.read1()
    r.close()
    return events_of(data[:data.rindex(b"\n\n") + 2])


def follow(server, id, query=""):
    r = server.get(f"{PATH}/{id}?stream=true{query}")
    assert r.status == 200 and r.headers["Content-Type"].startswith("text/event-stream"), r.read()
    return r


def followed(server, id, after=-1):
    query = "" if after < 0 else f"&starting_after={after}"
    return events_of(follow(server, id, query).read(), after + 1)


def test_a_stream_in_the_background(keeping):
    """What is written is what a client gets that waits, and can be had again from any event on."""
    plain_events = streamed(keeping, body("think"))
    events = streamed(keeping, body("think", background=True))
    assert [e["type"] for e in events] == [e["type"] for e in plain_events]
    assert alike(check_order(events)) == alike(check_order(plain_events))
    last = events[-1]["response"]
    assert last["background"] and json.load(keeping.get(f"{PATH}/{last['id']}")) == last
    assert followed(keeping, last["id"]) == events
    for after in (0, 1, len(events) // 2, len(events) - 2):
        assert followed(keeping, last["id"], after) == events[after + 1:]
    for after in (len(events) - 1, 10 ** 9):
        assert followed(keeping, last["id"], after) == []


def test_a_stream_is_taken_up_again(keeping):
    """It goes on without its client, and others may follow it from where they left off."""
    seen = left_after(keeping, body("slow") | {"max_output_tokens": 60}, 5)
    id, at = seen[0]["response"]["id"], len(seen)
    assert json.load(keeping.get(f"{PATH}/{id}"))["status"] == "in_progress"
    rest = followed(keeping, id, at - 1)
    assert len(rest) > 20 and rest[-1]["type"] == "response.incomplete"
    assert followed(keeping, id) == seen + rest
    assert check_order(seen + rest) == json.load(keeping.get(f"{PATH}/{id}"))
    assert keeping.post_json(PATH, {**body("abc"), "previous_response_id": id})["status"] == "completed"


def test_a_stream_is_taken_up_by_the_sdk(keeping):
    with openai.OpenAI(base_url=keeping.url + "/v1", api_key="none", max_retries=0) as c:
        with c.responses.create(model=c.models.list().data[0].id, input="[slow]", temperature=0, max_output_tokens=40,
                                background=True, stream=True) as s:
            seen = [next(s) for _ in range(4)]
        id = seen[0].response.id
        with c.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number) as s:
            rest = list(s)
        assert [e.sequence_number for e in seen + rest] == list(range(len(seen + rest)))
        assert rest[-1].type == "response.incomplete" and rest[-1].response == c.responses.retrieve(id)
        assert "".join(e.delta for e in seen + rest if e.type == "response.output_text.delta") == rest[-1].response.output_text


@pytest.mark.parametrize("end", ["cancelled", "deleted", "failed"])
def test_a_stream_says_how_it_was_ended(keeping, end):
    slow = body("slow") | {"max_output_tokens": 900}
    seen = left_after(keeping, body("nan") if end == "failed" else slow, 2)
    id = seen[0]["response"]["id"]
    follower = follow(keeping, id)
    if end == "cancelled":
        assert keeping.post_json(f"{PATH}/{id}/cancel", {})["status"] == end
    elif end == "deleted":
        http("DELETE", f"{keeping.url}{PATH}/{id}")
    last = events_of(follower.read())[-1]
    if end == "deleted":
        assert (last["type"], last["code"]) == ("error", "response_not_found")
        check_error(keeping.get(f"{PATH}/{id}?stream=true"), 404)
    else:
        assert last["type"] == "response." + end and last["response"] == json.load(keeping.get(f"{PATH}/{id}"))
        assert followed(keeping, id)[-1] == last


def test_what_cannot_be_followed(keeping):
    a = keeping.post_json(PATH, body("abc"))["id"]
    b = keeping.post_json(PATH, body("abc", background=True))["id"]
    c = streamed(keeping, body("abc", background=True))[0]["response"]["id"]
    for id, query, param in ((a, "stream=true", "stream"), (b, "stream=true", "stream"), (c, "stream=1", "stream"),
                             (c, "starting_after=1", "starting_after"), (c, "stream=false&starting_after=1", "starting_after"),
                             (c, "stream=true&starting_after=-1", "starting_after"), (c, "stream=true&starting_after=1x", "starting_after")):
        check_error(keeping.get(f"{PATH}/{id}?{query}"), 400, param)
    check_error(keeping.get(f"{PATH}/resp_1?stream=true"), 404)
    check_error(keeping.post(PATH, {**body("abc", background=True, stream=True), "max_output_tokens": 0}), 400, "max_output_tokens")


def test_what_cannot_be_in_the_background_or_cancelled(scripted, keeping):
    check_error(scripted.post(PATH + "/resp_1/cancel", {}), 404)
    assert "'resp_1'" in check_error(keeping.post(PATH + "/resp_1/cancel", {}), 404)
    a = keeping.post_json(PATH, body("abc"))
    assert "in the background" in check_error(keeping.post(f"{PATH}/{a['id']}/cancel", {}), 400)
    for more, param in (({"store": False}, "background"), ({"max_output_tokens": 0}, "max_output_tokens")):
        check_error(keeping.post(PATH, {**body("abc", background=True), **more}), 400, param)
    check_error(keeping.post(PATH, body("abc", background=1)), 400, "background")


def test_structured_text(scripted):
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    a = scripted.post_json(PATH, body("abc", text={"format": {"type": "json_schema", "name": "n", "strict": True,
                                                              "schema": schema}}))
    assert json.loads(a["output"][-1]["content"][0]["text"]) == {"a": 1}


@pytest.mark.parametrize("more, param, part", [
    ({"input": None}, "input", "required"),
    ({"input": 5}, "input", "expected"),
    ({"input": []}, "input", "input: expected an array of at least one"),
    ({"input": [5]}, "input", "input[0]"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input", "input[0]: expected role"),
    ({"input": [{"role": "user", "content": 5}]}, "input", "input[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input", '"input_image"'),
    ({"input": [{"type": "web_search_call"}]}, "input", '"action"'),
    ({"input": [{"type": "local_shell_call_output", "output": "x"}]}, "input", "call_id"),
    ({"input": [{"type": "image_generation_call", "id": "x"}]}, "input", '"image_generation_call"'),
    ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input", "input[0]: only who wrote"),
    ({"tools": [{"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "lark", "definition": "start: a"}}]},
     "tools", "tools[0]: its format: lark: line 1: a name that is not defined"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input", "call_id"),
    ({"input": [{"type": "function_call_output", "output": "f"}]}, "input", "call_id"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "--response-store"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "--response-store"),
    ({"instructions": 5}, "instructions", "expected"),
    ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens: expected"),
    ({"temperature": 3}, "temperature", "temperature"),
    ({"tools": {}}, "tools", "expected"),
    ({"tools": [{}]}, "tools", "tools[0]"),
    ({"tools": [{"type": "namespace", "tools": []}]}, "tools", "a namespace with a name"),
    ({"tools": [{"type": "namespace", "name": "n"}]}, "tools", "an array of tools"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [1]}]}, "tools", "tools[0].tools[0]"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]}, "tools", "a name"),
    ({"tools": [SKY, SKY]}, "tools", "a name that comes once"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "beside the type"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools", "tools[0]"),
    ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice", '"web_search"'),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice", "nobody"),
    ({"tools": TOOLS[2:], "tool_choice": "required"}, "tool_choice", "tools"),
    ({"text": {"format": {"type": "xml"}}}, "text", "text: expected type"),
    ({"reasoning": {"effort": 5}}, "reasoning", "effort"),
    ({"truncation": "some"}, "truncation", "auto"),
    ({"top_logprobs": 99}, "top_logprobs", "99"),
    ({"background": True}, "background", "--response-store"),
    ({"conversation": "c"}, "conversation", "not supported: send"),
    ({"prompt": {"id": "p"}}, "prompt", "not supported: no prompts"),
])
def test_what_is_refused(scripted, more, param, part):
    assert part in check_error(scripted.post(PATH, {**body("abc"), **more}), 400, param)


def test_failures(scripted):
    check_error(scripted.post(PATH, body("nan")), 500, type="server_error")
    events = streamed(scripted, body("nan"))
    assert events[-1]["type"] == "response.failed" and "NaN" in events[-1]["response"]["error"]["message"]
    check_error(scripted.get(PATH + "/resp_1"), 404, code="response_not_found")


def test_truncation(scripted):
    long = {"input": "word " * 5000 + "[abc]", "max_output_tokens": 5}
    assert scripted.post(PATH, long).status == 400
    a = scripted.post_json(PATH, {**long, "truncation": "auto"})
    assert a["usage"]["output_tokens"] == 5


@pytest.fixture(scope="module", params=["memory", "folder"])
def keeping(request, scripted_llmq, script_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("keeping")
    where = ["--response-store-dir", folder / "kept"] if request.param == "folder" else []
    template = (ROOT / "tests/golden/templates/think-namespace.jinja").read_text()
    with Server(scripted_llmq, with_template(folder / "chatml", template), "--test-script", script_file,
                "--response-store", 3, *where, log=folder / "log") as s:
        yield s.wait_ready()


def test_a_talk_that_goes_on(keeping):
    first = keeping.post_json(PATH, body("one call", tools=TOOLS, instructions="Only once."))
    assert first["store"] is True
    call = first["output"][1]
    result = [{"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}]
    whole = [{"role": "user", "content": "[one call]"}, *first["output"], *result]
    for stream in (False, True):
        ask = {"input": result, "previous_response_id": first["id"], "max_output_tokens": 2, "tools": TOOLS}
        second = check_order(streamed(keeping, ask)) if stream else keeping.post_json(PATH, ask)
        assert second["previous_response_id"] == first["id"]
        n = keeping.post_json(PATH + "/input_tokens", {"input": whole, "tools": TOOLS})["input_tokens"]
        assert second["usage"]["input_tokens"] == n
    third = keeping.post_json(PATH, {"input": "[abc]", "previous_response_id": second["id"], "tools": TOOLS})
    assert third["usage"]["input_tokens"] > n


def test_items_of_the_input_and_references(keeping):
    first = keeping.post_json(PATH, body("one call", tools=TOOLS, instructions="Only once."))
    call = first["output"][1]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    kept = json.loads(keeping.get(f"{PATH}/{first['id']}/input_items").read())
    assert kept["object"] == "list" and not kept["has_more"] and kept["first_id"] == kept["last_id"] == kept["data"][0]["id"]
    item, = kept["data"]
    assert (item["type"], item["role"], item["content"]) == ("message", "user", [{"type": "input_text", "text": "[one call]"}])
    whole = [{"role": "user", "content": "[one call]"}, *first["output"], result]
    refs = [whole[0], *({"type": "item_reference", "id": x["id"]} for x in first["output"]), result]
    ask = {"max_output_tokens": 2, "tools": TOOLS}
    same = [keeping.post_json(PATH, {**ask, "input": x}) for x in (whole, refs)]
    assert same[0]["usage"]["input_tokens"] == same[1]["usage"]["input_tokens"]
    rising = json.loads(keeping.get(f"{PATH}/{same[1]['id']}/input_items?order=asc&limit=2").read())
    assert [x["type"] for x in rising["data"]] == ["message", "message"] and rising["has_more"]
    rest = json.loads(keeping.get(f"{PATH}/{same[1]['id']}/input_items?order=asc&after={rising['last_id']}").read())
    assert [x["type"] for x in rest["data"]] == ["function_call", "function_call_output"] and not rest["has_more"]
    check_error(keeping.post(PATH, {"input": [{"type": "item_reference", "id": "x"}]}), 400, "input", "item_not_found")
    check_error(keeping.get(f"{PATH}/resp_x/input_items"), 404, code="response_not_found")
    check_error(keeping.get(f"{PATH}/{first['id']}/input_items?limit=0"), 400, "limit")


def test_kept_responses(keeping):
    made = [keeping.post_json(PATH, body("abc")) for _ in range(4)]
    assert len({a["id"] for a in made}) == 4
    for a in made[1:]:
        assert json.loads(keeping.get(f"{PATH}/{a['id']}").read()) == a
    check_error(keeping.get(f"{PATH}/{made[0]['id']}"), 404, code="response_not_found")  # three are kept
    for query in ("stream=true", "stream=true&starting_after=3"):
        assert "begun with background and stream" in check_error(keeping.get(f"{PATH}/{made[1]['id']}?{query}"), 400, "stream")
    assert json.loads(keeping.get(f"{PATH}/{made[1]['id']}?stream=false").read()) == made[1]
    ask = body("abc", previous_response_id=made[0]["id"])
    check_error(keeping.post(PATH, ask), 400, "previous_response_id", "previous_response_not_found")
    for status in (200, 404):
        r = http("DELETE", f"{keeping.url}{PATH}/{made[3]['id']}")
        assert r.status_code == status
        assert status == 404 or r.json() == {"id": made[3]["id"], "object": "response", "deleted": True}
    lost = keeping.post_json(PATH, body("abc", store=False))
    assert lost["store"] is False
    check_error(keeping.get(f"{PATH}/{lost['id']}"), 404, code="response_not_found")


def test_the_log_of_a_server_that_was_killed_ends(llmq, tmp_path):
    """In half an event: another server tells what comes before it, and how the response was ended."""
    kept = tmp_path / "kept"
    response, events = b'{"status":"in_progress","background":true}', b'data: {"n":0}\n\ndata: {"n"'
    with Server(llmq, TINY, "--response-store", 3, "--response-store-dir", kept, log=tmp_path / "log") as s:
        s.wait_ready()
        (kept / "resp_a").write_bytes(b"%d 2 +\n%s[]%s" % (len(response), response, events))
        assert s.post_json(f"{PATH}/resp_a/cancel", {})["status"] == "cancelled"
        told = s.get(f"{PATH}/resp_a?stream=true").read().split(b"\n\n")
    assert told[0] == b'data: {"n":0}' and told[1].startswith(b"event: response.cancelled\n") and told[2:] == [b""]


def test_a_folder_of_responses(llmq, tmp_path):
    """It is there after a restart, and what in it is damaged or none of ours counts as missing."""
    kept = tmp_path / "kept"

    def run(*args):
        return Server(llmq, TINY, "--response-store", 3, "--response-store-dir", kept, *args, log=tmp_path / "log").wait_ready()
    with run() as s:
        made = [s.post_json(PATH, {"input": f"Day {i}", "max_output_tokens": 4}) for i in range(4)]
    assert kept.stat().st_mode & 0o777 == 0o700 and {p.stat().st_mode & 0o777 for p in kept.iterdir()} == {0o600}
    assert {p.name for p in kept.iterdir()} == {a["id"] for a in made[1:]}
    (kept / "notes").write_text("mine")
    (kept / "resp_link").symlink_to(kept / made[1]["id"])
    (kept / made[2]["id"]).write_bytes((kept / made[2]["id"]).read_bytes()[:-1])
    (kept / "resp_a").write_text("99999999999999999999 -1\n{}")
    with run() as s, run() as other:
        for server in (s, other):
            assert json.loads(server.get(f"{PATH}/{made[3]['id']}").read()) == made[3]
            for name in ("notes", "resp_link", "resp_a", "resp_..%2Fnotes", made[0]["id"], made[2]["id"]):
                check_error(server.get(f"{PATH}/{name}"), 404, code="response_not_found")
        goes_on = other.post_json(PATH, {"input": "b", "previous_response_id": made[3]["id"], "max_output_tokens": 4})
        ref = {"type": "item_reference", "id": goes_on["output"][0]["id"]}
        assert s.post_json(PATH, {"input": [ref, {"role": "user", "content": "c"}], "max_output_tokens": 4})["status"]
        assert http("DELETE", f"{s.url}{PATH}/{goes_on['id']}").status_code == 200
        check_error(other.get(f"{PATH}/{goes_on['id']}"), 404, code="response_not_found")
    assert (kept / "notes").exists()
    kept.chmod(0o777)
    r = llmq("serve", TINY, "--response-store", 3, "--response-store-dir", kept, "--port", 0, code=None)
    assert r.returncode and f"--response-store-dir: {kept}: expected a folder of this user" in r.stderr


@contextlib.contextmanager
def unread(server, ask):
    """The socket of a client with little room that has not begun to read when all of its stream is made."""
    with socket.socket() as c:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = server.url.removeprefix("http://").split(":")
        c.connect((host, int(port)))
        data = json.dumps({**ask, "stream": True}).encode()
        c.sendall(b"POST %s HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                  % (PATH.encode(), len(data)) + data)
        time.sleep(2)
        yield c


def late(client):
    answer = b"".join(iter(lambda: client.recv(65536), b""))
    return events_of(answer.split(b"\r\n\r\n", 1)[1])


def cpu_seconds(pid):
    spent = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("routed", [False, True])
def test_an_end_that_says_all_again_reaches_who_reads_late(llmq, tmp_path, routed):
    """With logprobs the last four events have 3 MB, and 1 MiB may wait."""
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "tiny").symlink_to(TINY)
    ask = {"model": "tiny" if routed else TINY.name, "input": "Lily", "temperature": 0, "max_output_tokens": 400,
           "top_logprobs": 20, "include": ["message.output_text.logprobs"]}
    with Server(llmq, folder if routed else TINY, log=tmp_path / "log") as s:
        with unread(s, ask) as client:
            before = cpu_seconds(s.process.pid)
            time.sleep(2)
            assert cpu_seconds(s.process.pid) - before < 0.5  # who waits for a client sleeps
            events = late(client)
        assert events[-1]["type"] in ("response.completed", "response.incomplete")
        sizes = [len(json.dumps(e)) for e in events]
        assert sum(sizes[:-4]) < 1 << 20 < sum(sizes[-4:]), (sum(sizes[:-4]), sum(sizes[-4:]))
        check_order(events)
