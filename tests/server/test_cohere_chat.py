"""Cohere's chat: /v2/chat, against the scripted engine."""
import json

import pytest

from helpers import check_error, http

pytestmark = pytest.mark.case("C136")

PATH = "/v2/chat"
TOOLS = [{"type": "function", "function": {"name": name, "description": name, "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}}}} for name in ("weather", "now")]


def body(name, **more):
    return {"messages": [{"role": "user", "content": f"[{name}]"}], "temperature": 0, "max_tokens": 250, **more}


def streamed(server, ask):
    r = http("POST", server.url + PATH, json={**ask, "stream": True})
    assert r.status_code == 200, r.text
    events = []
    for part in r.text.split("\n\n")[:-1]:
        name, text = part.split("\n")
        events.append(json.loads(text.removeprefix("data: ")))
        assert name == "event: " + events[-1]["type"]
    return events


def put_together(events):
    """A message of a stream's events, as an answer in one piece has it."""
    first, *rest, last = events
    assert first["type"] == "message-start" and last["type"] == "message-end" and first["id"] == last["id"]
    message, lists = {"role": first["delta"]["message"]["role"], "content": []}, {"content": "content", "tool-call": "tool_calls"}
    open_one = None
    for e in rest:
        kind, what = e["type"].rsplit("-", 1)
        items = message.setdefault(lists[kind], [])
        if what == "start":
            assert open_one is None and e["index"] == len(items)
            items.append(e["delta"]["message"][lists[kind]])
        elif what == "delta":
            delta = e["delta"]["message"][lists[kind]]
            to, of = (items[-1]["function"], delta["function"]) if kind == "tool-call" else (items[-1], delta)
            for k, v in of.items():
                to[k] += v
        open_one = None if what == "end" else (kind, e["index"])
        assert e["index"] == len(items) - 1
    assert open_one is None
    return message, last["delta"]["finish_reason"], last["delta"]["usage"]


@pytest.mark.parametrize("name, more", [("abc", {}), ("think", {}), ("one call", {"tools": TOOLS}), ("two calls", {"tools": TOOLS}),
                                        ("abc", {"max_tokens": 2})])
def test_a_stream_is_the_answer_in_pieces(scripted, name, more):
    ask = body(name, **more)
    whole = scripted.post_json(PATH, ask)
    message, finish, usage = put_together(streamed(scripted, ask))
    for m in (message, whole["message"]):
        for call in m.get("tool_calls", []):
            assert call.pop("id").startswith("call_")
    whole["usage"].pop("cached_tokens"), usage.pop("cached_tokens")
    assert (message, finish, usage) == (whole["message"], whole["finish_reason"], whole["usage"])


def test_it_is_a_chats_answer(scripted):
    chat = scripted.post_json("/v1/chat/completions", {**body("two calls"), "tools": TOOLS})
    a = scripted.post_json(PATH, body("two calls", tools=TOOLS))
    theirs, ours = chat["choices"][0]["message"], a["message"]
    assert [c["function"] for c in ours["tool_calls"]] == [c["function"] for c in theirs["tool_calls"]]
    assert a["finish_reason"] == "TOOL_CALL" and a["usage"]["tokens"] == {
        "input_tokens": chat["usage"]["prompt_tokens"], "output_tokens": chat["usage"]["completion_tokens"]}
    thought = scripted.post_json(PATH, body("think"))
    assert [b["type"] for b in thought["message"]["content"]] == ["thinking", "text"] and thought["finish_reason"] == "COMPLETE"
    text = scripted.post_json(PATH, body("abc"))["message"]["content"][0]["text"]
    assert scripted.post_json(PATH, body("abc", stop_sequences=[text[1]]))["finish_reason"] == "STOP_SEQUENCE"


def test_messages_are_a_chats(scripted):
    """Thoughts, plans, calls and results: the prompt is that of the same conversation."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
    start = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Weather?"}]}]
    end = [{"role": "user", "content": "[abc]"}]
    theirs = start + [{"role": "assistant", "tool_plan": "I ask", "tool_calls": [call]},
                      {"role": "tool", "tool_call_id": "c1", "content": [{"type": "document", "document": {"data": {"t": 5}}}]},
                      {"role": "assistant", "content": [{"type": "thinking", "thinking": "Mild"}, {"type": "text", "text": "5 degrees"}]}] + end
    ours = start + [{"role": "assistant", "reasoning_content": "I ask", "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "c1", "content": '{"t":5}'},
                    {"role": "assistant", "reasoning_content": "Mild", "content": "5 degrees"}] + end
    a = scripted.post_json(PATH, {"messages": theirs, "tools": TOOLS, "max_tokens": 5})
    b = scripted.post_json("/v1/chat/completions", {"messages": ours, "tools": TOOLS, "max_tokens": 5})
    assert a["usage"]["tokens"]["input_tokens"] == b["usage"]["prompt_tokens"]


def test_what_the_answer_must_be(scripted):
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    a = scripted.post_json(PATH, body("abc", response_format={"type": "json_object", "json_schema": schema}))
    assert json.loads(a["message"]["content"][-1]["text"]) == {"a": 1}
    a = scripted.post_json(PATH, body("abc", tools=TOOLS[:1], tool_choice="REQUIRED", strict_tools=True))
    assert a["message"]["tool_calls"][0]["function"]["name"] == "weather"
    assert "tool_calls" not in scripted.post_json(PATH, body("abc", tools=TOOLS, tool_choice="NONE"))["message"]


def test_a_failure_ends_the_stream(scripted):
    end = streamed(scripted, body("nan"))[-1]
    assert end["type"] == "message-end" and end["delta"]["finish_reason"] == "ERROR" and "NaN" in end["delta"]["error"]


@pytest.mark.parametrize("more, param, part", [
    ({"messages": None}, "messages", "expected"), ({"messages": "a"}, "messages", "an array"), ({"messages": [5]}, "messages", "messages[0]"),
    ({"messages": [{"role": "robot", "content": "a"}]}, "messages", "messages[0]: expected role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages", "messages[0]: expected a string or an array"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", 'messages[0].content[0]: parts of type "image_url"'),
    ({"messages": [{"role": "user", "content": [{"type": "document", "document": {"data": "a"}}]}]}, "messages", '"document"'),
    ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages", "a part with a type"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages", "tool_call_id"),
    ({"messages": [{"role": "tool", "tool_call_id": "c", "content": [{"type": "document", "document": {}}]}]}, "messages", "a document with data"),
    ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages", "an array of tool_calls"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]}, "messages", "arguments"),
    ({"tools": 5}, "tools", "an array"), ({"tools": [{"type": "web"}]}, "tools", "of type function"), ({"strict_tools": 1}, "strict_tools", "true or false"),
    ({"tool_choice": "AUTO"}, "tool_choice", "REQUIRED or NONE"), ({"response_format": {"type": "xml"}}, "response_format", "json_object"),
    ({"thinking": {"type": "some"}}, "thinking", "enabled or disabled"), ({"safety_mode": "LAX"}, "safety_mode", "CONTEXTUAL"),
    ({"documents": ["a"]}, "documents", "nothing is cited"), ({"logprobs": True}, "logprobs", "not supported"), ({"n": 2}, "n", "not supported"),
    ({"k": -5}, "k", "k: expected"), ({"p": 5}, "p", "p: expected"), ({"stop_sequences": 5}, "stop_sequences", "stop_sequences: expected")])
def test_what_is_refused(scripted, more, param, part):
    assert part in check_error(scripted.post(PATH, {**body("abc"), **more}), 400, param)
