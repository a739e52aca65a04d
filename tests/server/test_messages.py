"""Anthropic's Messages API: /v1/messages and /v1/messages/count_tokens, against the scripted engine."""
import json

import httpx
import pytest

from helpers import USER, http, metric, wait_metric

pytestmark = pytest.mark.case("C132")

PATH = "/v1/messages"
TOOLS = [{"name": "weather", "description": "weather, please",
          "input_schema": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}}},
         {"name": "now", "input_schema": {"type": "object", "properties": {}}},
         {"type": "web_search_20250305", "name": "web_search"}]


def body(name, **more):
    return {"max_tokens": 250, "temperature": 0, "messages": [{"role": "user", "content": f"[{name}]"}], **more}


def events_of(data):
    """Strictly: each event has a name, which its data repeats."""
    out = []
    parts = data.decode().split("\n\n")
    assert parts.pop() == ""
    for part in parts:
        name, text = part.split("\n")
        event = json.loads(text.removeprefix("data: "))
        assert name == "event: " + event["type"]
        out.append(event)
    return out


def streamed(server, ask):
    r = http("POST", server.url + PATH, json={**ask, "stream": True})
    assert r.status_code == 200 and r.headers["content-type"] == "text/event-stream; charset=utf-8", r.text
    return [e for e in events_of(r.content) if e["type"] != "ping"]


def assembled(events):
    """The message that the events make, as the SDK puts it together; the order of the events is checked."""
    assert events[0]["type"] == "message_start"
    message = events[0]["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    open_block, partial = None, ""
    for e in events[1:]:
        if e["type"] == "content_block_start":
            assert open_block is None and e["index"] == len(message["content"])
            open_block, partial = e["index"], ""
            message["content"].append(e["content_block"])
        elif e["type"] == "content_block_delta":
            assert e["index"] == open_block
            block, delta = message["content"][-1], e["delta"]
            if delta["type"] == "input_json_delta":
                partial += delta["partial_json"]
            else:
                key = delta["type"].removesuffix("_delta")
                block[key] += delta[key]
        elif e["type"] == "content_block_stop":
            assert e["index"] == open_block
            if message["content"][-1]["type"] == "tool_use":
                message["content"][-1]["input"] = json.loads(partial or "{}")
            open_block = None
        elif e["type"] == "message_delta":
            assert open_block is None
            message.update(e["delta"])
            message["usage"] = e["usage"]
    assert events[-1]["type"] == "message_stop" and events[-2]["type"] == "message_delta"
    return message


def plain(message):
    """What does not change from one answer to the next."""
    blocks = [{k: v for k, v in b.items() if k != "id"} for b in message["content"]]
    return blocks, message["stop_reason"], message["stop_sequence"], message["usage"]["output_tokens"]


def text(s):
    return {"type": "text", "text": s}


def use(name, **arguments):
    return {"type": "tool_use", "name": name, "input": arguments}


def thought(s):
    return {"type": "thinking", "thinking": s, "signature": ""}


WANT = {
    "abc": ([text("The cat sat on x the mat.")], "end_turn"),
    "one call": ([text("Let me see."), use("weather", city="Paris", days=[1, 2])], "tool_use"),
    "two calls": ([use("weather", city="Köln \"x\" \\"), use("now")], "tool_use"),
    "think call": ([thought("hm"), use("now")], "tool_use"),
    "think": ([thought("Two and two."), text("Four.")], "end_turn"),
}


@pytest.mark.parametrize("name", WANT)
def test_blocks_whole_and_streamed(scripted, name):
    blocks, reason = WANT[name]
    whole = scripted.post_json(PATH, body(name, tools=TOOLS))
    assert whole["type"] == "message" and whole["role"] == "assistant" and whole["id"].startswith("msg")
    assert plain(whole)[:2] == (blocks, reason)
    ids = [b["id"] for b in whole["content"] if "id" in b]
    assert len(set(ids)) == len(ids) and all(i.startswith("toolu_") for i in ids)
    events = streamed(scripted, body(name, tools=TOOLS))
    assert plain(assembled(events)) == plain(whole)


def test_ends_and_usage(scripted):
    a = scripted.post_json(PATH, body("abc", stop_sequences=[" x ", "mat"]))
    assert a["content"] == [text("The cat sat on")]
    assert (a["stop_reason"], a["stop_sequence"]) == ("stop_sequence", " x ")
    a = scripted.post_json(PATH, body("abc", max_tokens=3))
    assert (a["stop_reason"], a["stop_sequence"], a["usage"]["output_tokens"]) == ("max_tokens", None, 3)
    long = body("abc", system="Be brief. " * 20)
    counted = scripted.post_json(PATH + "/count_tokens", {k: v for k, v in long.items() if k != "max_tokens"})
    for cached in (False, True):
        u = scripted.post_json(PATH, long)["usage"]
        assert u["input_tokens"] + u["cache_read_input_tokens"] == counted["input_tokens"]
        assert (u["cache_read_input_tokens"] > 0) >= cached


def test_more_tokens_than_the_context_holds(scripted):
    """As Anthropic's newer models: the answer ends where the context does."""
    a = scripted.post_json(PATH, body("forever and ever", max_tokens=10**6))
    assert a["stop_reason"] in ("model_context_window_exceeded", "end_turn")


def chat_tokens(server, messages, **more):
    a = server.post_json("/v1/chat/completions/render", {"messages": messages, **more})
    return len(a["prompt_token_ids"])


CALL = {"id": "t1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
OURS = [{"type": "function", "function": {"name": t["name"], **({"description": t["description"]} if "description" in t
         else {}), "parameters": t["input_schema"]}} for t in TOOLS[:2]]


@pytest.mark.parametrize("theirs, ours, more", [
    ({"system": "S", "messages": [{"role": "user", "content": "a"}]},
     [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}], {}),
    ({"system": [text("x-anthropic-billing-header: cc_version=1; cch=ab;"),
                 {**text("S"), "cache_control": {"type": "ephemeral"}}, text("T")],
      "messages": [{"role": "user", "content": [text("a"), text("b")]}]},
     [{"role": "system", "content": "S\nT"}, {"role": "user", "content": "a\nb"}], {}),
    ({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
     [{"role": "user", "content": "a\nb"}], {}),
    ({"system": "S", "messages": [{"role": "user", "content": [text("a")]}, {"role": "system", "content": "b"}]},
     [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}, {"role": "system", "content": "b"}], {}),
    ({"system": "S", "messages": [{"role": "user", "content": "a"}, {"role": "system", "content": [text("b")]},
                                  {"role": "user", "content": "c"}]},
     [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}, {"role": "system", "content": "b"},
      {"role": "user", "content": "c"}], {}),
    ({"tools": TOOLS, "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [thought("hm"), {"type": "redacted_thinking", "data": "x"}, text("T"),
                                          {**use("now"), "id": "t1"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [text("noon")]},
                                     text("and?")]}]},
     [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "T", "reasoning_content": "hm", "tool_calls": [CALL]},
      {"role": "tool", "tool_call_id": "t1", "content": "noon"}, {"role": "user", "content": "and?"}],
     {"tools": OURS}),
    ({"tools": TOOLS, "tool_choice": {"type": "none"}, "messages": [
        {"role": "user", "content": [
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "D"}}]},
        {"role": "assistant", "content": [{**use("now"), "id": "t1"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "is_error": True,
                                      "content": "no clock"}]}]},
     [{"role": "user", "content": "D"}, {"role": "assistant", "content": None, "tool_calls": [CALL]},
      {"role": "tool", "tool_call_id": "t1", "content": "Error:\nno clock"}], {}),
    ({"messages": [{"role": "user", "content": [
        {"type": "document", "title": "T", "context": "C", "citations": {"enabled": False},
         "source": {"type": "content", "content": [text("D"), text("E")]}},
        {"type": "document", "source": {"type": "content", "content": "F"}},
        {"type": "search_result", "source": "S", "title": "U", "content": [text("G"), text("H")]}]}]},
     [{"role": "user", "content": "T\nC\nD\nE\nF\nU\nS\nG\nH"}], {}),
    ({"messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": [{**use("now"), "id": "t1"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [
            {"type": "search_result", "source": "S", "title": "U", "content": [text("G")]}, text("x"),
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "D"}},
            {"type": "tool_reference", "tool_name": "n"}]}]}]},
     [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [CALL]},
      {"role": "tool", "tool_call_id": "t1", "content": "U\nS\nG\nx\nD\nn"}], {}),
    ({"messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": [
            text("T"), {"type": "server_tool_use", "id": "t1", "name": "now", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "t1", "content": [
                {"type": "web_search_result", "url": "U", "title": "V", "encrypted_content": "X" * 99},
                {"type": "web_search_result", "url": "W"}]}, text("b")]},
        {"role": "user", "content": "c"}]},
     [{"role": "user", "content": "a"}, {"role": "assistant", "content": "T", "tool_calls": [CALL]},
      {"role": "tool", "tool_call_id": "t1", "content": "V\nU\nW"}, {"role": "assistant", "content": "b"},
      {"role": "user", "content": "c"}], {}),
    ({"messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": [
            {"type": "mcp_tool_use", "id": "t1", "name": "now", "server_name": "s", "input": {}},
            {"type": "mcp_tool_result", "tool_use_id": "t1", "is_error": False, "content": [text("x"), {"type": "y", "z": 1}]}]},
        {"role": "user", "content": "c"}]},
     [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [CALL]},
      {"role": "tool", "tool_call_id": "t1", "content": 'x\n{"type":"y","z":1}'}, {"role": "user", "content": "c"}], {}),
    ({"messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "t1", "name": "now", "input": {}},
            {"type": "code_execution_tool_result", "tool_use_id": "t1", "content": {"stdout": "s"}}]},
        {"role": "user", "content": "c"}]},
     [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [CALL]},
      {"role": "tool", "tool_call_id": "t1", "content": '{"stdout":"s"}'}, {"role": "user", "content": "c"}], {}),
    ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "I say"}]},
     [{"role": "user", "content": "a"}, {"role": "assistant", "content": "I say"}],
     {"continue_final_message": True, "add_generation_prompt": False}),
    ({"thinking": {"type": "disabled"}, "messages": [{"role": "user", "content": "a"}]},
     [{"role": "user", "content": "a"}], {"chat_template_kwargs": {"enable_thinking": False}}),
])
def test_bodies_mean_the_same_as_those_of_a_chat(scripted, theirs, ours, more):
    n = scripted.post_json(PATH + "/count_tokens?beta=true", theirs)["input_tokens"]
    assert n == chat_tokens(scripted, ours, **more)
    u = scripted.post_json(PATH + "?beta=true", {"max_tokens": 1, **theirs})["usage"]
    assert u["input_tokens"] + u["cache_read_input_tokens"] == n


def long_talk(n=5, times=9):
    """A question, and n calls with their results; every one has its thought."""
    said = [{"role": "user", "content": "[abc]"}]
    for i in range(n):
        name = "weather" if i % 2 else "now"
        said += [{"role": "assistant", "content": [thought(f"hm {i}"), {"type": "tool_use", "id": f"t{i}", "name": name, "input": {"x": i}}]},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{i}", "content": f"{i} " * times}]}]
    return said


def ours_of(said, cleared=(), inputs=(), thoughts=None):
    """The same as a chat, as it is when those are cleared."""
    out = [{"role": "user", "content": "[abc]"}]
    for i, (a, r) in enumerate(zip(said[1::2], said[2::2])):
        call = a["content"][1]
        out += [{"role": "assistant", "content": None, "tool_calls": [{"id": call["id"], "type": "function", "function": {
                    "name": call["name"], "arguments": json.dumps({} if i in inputs else call["input"])}}],
                 **({"reasoning_content": f"hm {i}"} if thoughts is None or i in thoughts else {})},
                {"role": "tool", "tool_call_id": call["id"], "content": "[cleared]" if i in cleared else r["content"][0]["content"]}]
    return out


def bound(kind, value):
    return {"type": kind, "value": value}


USES = "clear_tool_uses_20250919"


@pytest.mark.parametrize("more, cleared, inputs", [
    ({"trigger": bound("tool_uses", 4), "keep": bound("tool_uses", 2)}, [0, 1, 2], []),
    ({"trigger": bound("tool_uses", 5)}, [], []),
    ({"trigger": bound("input_tokens", 10)}, [0, 1], []),
    ({"trigger": bound("input_tokens", 10000)}, [], []),
    ({}, [], []),
    ({"trigger": bound("tool_uses", 1), "keep": bound("tool_uses", 0), "exclude_tools": ["now"]}, [1, 3], []),
    ({"trigger": bound("tool_uses", 1), "clear_tool_inputs": True}, [0, 1], [0, 1]),
    ({"trigger": bound("tool_uses", 1), "clear_tool_inputs": ["weather"], "keep": None}, [0, 1], [1]),
    ({"trigger": bound("tool_uses", 1), "clear_at_least": bound("input_tokens", 20)}, [0, 1], []),
    ({"trigger": bound("tool_uses", 1), "clear_at_least": bound("input_tokens", 500)}, [], []),
])
def test_tool_uses_are_cleared(scripted, more, cleared, inputs):
    said = long_talk()
    ask = {"messages": said, "tools": TOOLS, "context_management": {"edits": [{"type": USES, **more}], "applied_edits": 5}}
    before = chat_tokens(scripted, ours_of(said), tools=OURS)
    after = chat_tokens(scripted, ours_of(said, cleared, inputs), tools=OURS)
    counted = scripted.post_json(PATH + "/count_tokens", ask)
    assert counted == {"input_tokens": after, "context_management": {"original_input_tokens": before}}
    made = {"applied_edits": [{"type": USES, "cleared_tool_uses": len(cleared), "cleared_input_tokens": before - after}] if cleared else []}
    ask.update(max_tokens=250, temperature=0)
    a = scripted.post_json(PATH, ask)
    assert a["context_management"] == made and a["usage"]["input_tokens"] + a["usage"]["cache_read_input_tokens"] == after
    events = streamed(scripted, ask)
    assert [e["context_management"] for e in events if "context_management" in e] == [made]
    assert plain(assembled(events)) == plain(a)


def test_a_talk_that_is_too_long_is_cleared(scripted):
    said = long_talk(6, 200)
    check_error(http("POST", scripted.url + PATH, json={"max_tokens": 1, "messages": said}), 400, "invalid_request_error", "1024")
    edits = [{"type": "clear_thinking_20251015"}, {"type": USES, "keep": bound("tool_uses", 1), "clear_tool_inputs": True}]
    a = scripted.post_json(PATH, {"max_tokens": 1, "messages": said, "context_management": {"edits": edits}})
    assert [e.get("cleared_tool_uses") for e in a["context_management"]["applied_edits"]] == [None, 5]
    edits[1]["exclude_tools"] = ["weather", "now"]
    check_error(http("POST", scripted.url + PATH, json={"max_tokens": 1, "messages": said, "context_management": {"edits": edits}}),
                400, "invalid_request_error", "1024")


@pytest.mark.parametrize("keep, left", [(None, [4]), (bound("thinking_turns", 2), [3, 4]), ("all", None), ({"type": "all"}, None),
                                        (bound("thinking_turns", 9), None)])
def test_thoughts_are_cleared(scripted, keep, left):
    said = long_talk()
    ask = {"messages": said, "max_tokens": 1, "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": keep}]}}
    before, after = chat_tokens(scripted, ours_of(said)), chat_tokens(scripted, ours_of(said, thoughts=left))
    a = scripted.post_json(PATH, ask)
    assert before >= after and (before > after) == (left is not None)
    assert a["usage"]["input_tokens"] + a["usage"]["cache_read_input_tokens"] == after
    assert a["context_management"]["applied_edits"] == ([] if left is None else [{
        "type": "clear_thinking_20251015", "cleared_thinking_turns": 5 - len(left), "cleared_input_tokens": before - after}])


def test_no_tokens_read_the_prompt_into_the_cache(scripted):
    ask = body("abc", system="Be brief, and warm. " * 20, max_tokens=0)
    a = scripted.post_json(PATH, ask)
    assert (a["content"], a["stop_reason"], a["usage"]["output_tokens"]) == ([], "max_tokens", 0)
    assert assembled(streamed(scripted, ask))["content"] == []
    assert scripted.post_json(PATH, {**ask, "max_tokens": 3})["usage"]["cache_read_input_tokens"] > 0


@pytest.mark.parametrize("choice, names", [({"type": "any"}, {"weather", "now"}), ({"type": "tool", "name": "now"}, {"now"})])
def test_calls_that_must_come(scripted, choice, names):
    tools = [{"name": n, "input_schema": {"type": "object", "properties": {"x": {"enum": ["a", "b"]}},
                                          "required": ["x"], "additionalProperties": False}} for n in ("weather", "now")]
    a = scripted.post_json(PATH, body("no think", tools=tools, tool_choice=choice))
    block, = a["content"]
    assert block["type"] == "tool_use" and block["name"] in names and a["stop_reason"] == "tool_use"
    assert plain(assembled(streamed(scripted, body("no think", tools=tools, tool_choice=choice)))) == plain(a)


def test_choices(scripted):
    a = scripted.post_json(PATH, body("two calls", tools=TOOLS,
                                      tool_choice={"type": "auto", "disable_parallel_tool_use": True}))
    assert [b["name"] for b in a["content"] if b["type"] == "tool_use"] == ["weather"]
    a = scripted.post_json(PATH, body("think", thinking={"type": "enabled", "budget_tokens": 1024, "display": "omitted"}))
    assert a["content"] == [text("Four.")]
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    a = scripted.post_json(PATH, body("abc", output_config={"format": {"type": "json_schema", "schema": schema}}))
    assert json.loads(a["content"][0]["text"]) == {"a": 1}
    # tools of Anthropic's own are left out where they are only offered
    a = scripted.post_json(PATH, body("abc", tools=TOOLS[2:], tool_choice={"type": "auto"}))
    assert a["stop_reason"] == "end_turn"


def check_error(r, status, kind, part):
    assert r.status_code == status, r.text
    e = r.json()
    assert set(e) == {"type", "error"} and e["type"] == "error" and set(e["error"]) == {"type", "message"}
    assert e["error"]["type"] == kind and part in e["error"]["message"], e


@pytest.mark.parametrize("more, part", [
    ({"max_tokens": None}, "max_tokens: it is required"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "0"}, "max_tokens"),
    ({"messages": None}, "messages: it is required"),
    ({"messages": 5}, "messages: expected an array"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]: expected role user, assistant or system"),
    ({"messages": [{"role": "system", "content": [{"type": "image", "source": {}}]}]},
     'messages[0].content[0]: blocks of type "image"'),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0]: expected content"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
     'messages[0].content[0]: blocks of type "image"'),
    ({"messages": [{"role": "user", "content": [text("a"), {"type": "document", "source": {"type": "base64"}}]}]},
     'messages[0].content[1]: blocks of type "document"'),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "a"}]}]}, "tool_use_id"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "assistant", "content": [use("now")]}]}, "tool_use block"),
    ({"messages": [{"role": "assistant", "content": [{"type": "server_tool_use", "name": "now"}]}]}, "tool_use block"),
    ({"messages": [{"role": "assistant", "content": [{"type": "web_search_tool_result", "content": []}]}]}, "tool_use_id"),
    ({"system": 5}, "system: expected"),
    ({"system": [{"type": "image"}]}, "system: expected text blocks"),
    ({"stop_sequences": 5}, "stop_sequences: expected"),
    ({"temperature": 3}, "temperature"),
    ({"tools": {}}, "tools: expected"),
    ({"tools": [{"name": "f"}]}, "tools[0]"),
    ({"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}, "tools[0]"),
    ({"tools": TOOLS, "tool_choice": {"type": "some"}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "web_search"}}, "web_search"),
    ({"tools": TOOLS[2:], "tool_choice": {"type": "any"}}, "tool_choice"),
    ({"thinking": {"type": "maybe"}}, "thinking"),
    ({"thinking": {"type": "enabled", "budget_tokens": "many"}}, "budget"),
    ({"mcp_servers": [{}]}, "mcp_servers"),
    ({"container": "c"}, "container"),
    ({"context_management": 5}, "context_management"),
    ({"context_management": {"edits": 5}}, "context_management"),
    ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management.edits[0]: expected type"),
    *(({"context_management": {"edits": [{"type": USES, name: value}]}}, f"context_management.edits[0].{name}")
      for name, value in {"trigger": 5, "keep": bound("input_tokens", 3), "clear_at_least": bound("tool_uses", 3),
                          "exclude_tools": "now", "clear_tool_inputs": [5]}.items()),
    ({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "some"}]}}, "edits[0].keep"),
    ({"messages": [{"role": "user", "content": [{"type": "document", "citations": {"enabled": True}, "source": {
        "type": "text", "media_type": "text/plain", "data": "D"}}]}]}, "messages[0].content[0]: citations"),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "content", "content": [
        {"type": "image", "source": {}}]}}]}]}, 'blocks of type "image"'),
    ({"messages": [{"role": "user", "content": [{"type": "search_result", "title": "t"}]}]}, "search_result block"),
    ({"output_format": {"type": "text"}}, "output_format"),
])
def test_what_is_refused(scripted, more, part):
    check_error(http("POST", scripted.url + PATH, json={**body("abc"), **more}), 400, "invalid_request_error", part)


def test_errors_have_one_shape(scripted, keyed):
    url = scripted.url + PATH
    check_error(http("POST", url, json=body("abc", model="nobody")), 404, "not_found_error", "nobody")
    check_error(http("POST", url + "/nothing", json={}), 404, "not_found_error", "no such path")
    check_error(http("POST", url + "/batches", json={"requests": []}), 404, "not_found_error", "--file-store")
    check_error(http("GET", url + "/batches/b/results"), 404, "not_found_error", "--file-store")
    assert http("GET", scripted.url + "/api/nothing").json() == {"error": "no such path"}  # Ollama's
    assert http("GET", scripted.url + "/v1/nothing").json()["error"]["type"] == "invalid_request_error"  # OpenAI's
    check_error(http("POST", url, content=b"{", headers={"Content-Type": "application/json"}), 400,
                "invalid_request_error", "JSON")
    check_error(http("POST", url, content=b"{}"), 415, "invalid_request_error", "Content-Type")
    check_error(http("GET", url), 405, "invalid_request_error", "method")
    check_error(http("POST", url, json=body("nan")), 500, "api_error", "NaN")
    check_error(http("POST", keyed.url + PATH, json=body("abc")), 401, "authentication_error", "key")
    for ask in (body("abc"), body("abc", stream=True), body("nan"), {}):
        r = http("POST", url, json=ask, headers={"X-Request-Id": "mine-1"})
        assert r.headers["request-id"] == r.headers["x-request-id"] == "mine-1"
    r = http("POST", url, json=body("nan", stream=True))
    last = events_of(r.content)[-1]
    assert last["type"] == "error" and last["error"]["type"] == "api_error"


def test_keys_of_either_kind(keyed):
    for headers in ({"x-api-key": USER}, {"Authorization": f"Bearer {USER}"}):
        r = http("POST", keyed.url + PATH + "/count_tokens",
                 headers={**headers, "anthropic-version": "2023-06-01"}, json={"messages": []})
        assert r.status_code == 400  # and not 401


def test_silence_and_leaving(scripted, gate):
    with gate, httpx.stream("POST", scripted.url + PATH, json=body("held", stream=True), timeout=60) as r:
        seen = b""
        for part in r.iter_bytes():
            seen += part
            if b"event: ping\ndata: {\"type\":\"ping\"}\n\n" in seen:
                break
    wait_metric(scripted, "vllm:num_requests_running", 0)
    assert metric(scripted, "vllm:num_requests_waiting") == 0
