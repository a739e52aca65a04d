"""Tools, tool calls and thoughts: C80, C81."""
import json
import re

import pytest

from helpers import TINY, with_template
from harness import ROOT, Server
from scripts import SCRIPTS  # noqa: F401 (what the names in brackets answer)

case = pytest.mark.case
PATH = "/v1/chat/completions"


def tool(name, **parameters):
    return {"type": "function", "function": {"name": name, "description": f"{name}, please",
                                             "parameters": {"type": "object",
                                                            "properties": parameters}}}


def allowed(mode, *names):
    return {"type": "allowed_tools", "allowed_tools": {
        "mode": mode, "tools": [{"type": "function", "function": {"name": n}} for n in names]}}


TOOLS = [tool("weather", city={"type": "string"}, days={"type": "array"}), tool("now")]


def body(name, **more):
    return {"messages": [{"role": "user", "content": f"[{name}]"}], "temperature": 0,
            "max_tokens": 250, "tools": TOOLS, **more}


def whole(server, name, **more):
    return server.post_json(PATH, body(name, **more))["choices"][0]


def streamed(server, ask, name, **more):
    """The message that the deltas make, as a client puts it together."""
    events = ask.stream(server, body(name, **more), PATH)
    message, finish = {"role": None, "content": None}, []
    for e in events:
        c = e["choices"][0]
        finish.append(c["finish_reason"])
        for key, value in c["delta"].items():
            if key == "tool_calls":
                calls = message.setdefault("tool_calls", [])
                assert len({part["index"] for part in value}) == len(value)  # the openai client takes one
                for part in value:
                    if part["index"] == len(calls):
                        assert part["id"]
                        calls.append({k: v for k, v in part.items() if k != "index"})
                    else:
                        assert part["index"] == len(calls) - 1 and "id" not in part
                        calls[-1]["function"]["arguments"] += part["function"]["arguments"]
            else:
                message[key] = (message.get(key) or "") + value
    assert finish[:-1] == [None] * (len(finish) - 1)
    return message, finish[-1], events


WANT = {
    "one call": ("Let me see.", None, [("weather", {"city": "Paris", "days": [1, 2]})], "tool_calls"),
    "two calls": (None, None, [("weather", {"city": "Köln \"x\" \\"}), ("now", {})], "tool_calls"),
    "bare call": (None, None, [("weather", {"city": "Paris"})], "tool_calls"),
    "think call": (None, "hm", [("now", {})], "tool_calls"),
    "think": ("Four.", "Two and two.", [], "stop"),
    "no think": ("<b>Four</b>.", None, [], "stop"),
    "bad call": ("<tool_call>\nnot json\n</tool_call>", None, [], "stop"),
    "wrong call": ('<tool_call>\n{"name": "nobody", "arguments": {"a": 1}}\n</tool_call>', None, [],
                   "stop"),
    "almost call": ("a <tool_cal l> b", None, [], "stop"),
}


@case("C81")
@pytest.mark.parametrize("name", WANT)
def test_calls_and_thoughts(scripted, ask, name):
    content, reasoning, calls, reason = WANT[name]
    c = whole(scripted, name)
    message = c["message"]
    assert (message["content"] or None, message.get("reasoning_content"), c["finish_reason"]) == \
        (content, reasoning, reason)
    got = message.get("tool_calls", [])
    assert [(x["function"]["name"], json.loads(x["function"]["arguments"])) for x in got] == calls
    assert all(x["type"] == "function" and x["id"].startswith("call_") for x in got)
    assert len({x["id"] for x in got}) == len(got)
    parts, finish, events = streamed(scripted, ask, name)
    assert finish == reason and (parts["content"] or None) == content
    assert parts.get("reasoning_content") == reasoning
    assert [x["function"] for x in parts.get("tool_calls", [])] == [x["function"] for x in got]
    if calls and calls[0][1]:  # the arguments come piece by piece
        assert sum("tool_calls" in e["choices"][0]["delta"] for e in events) > 5


@case("C81")
def test_a_template_and_a_format_that_the_user_names(llmq, serve, tmp_path):
    (tmp_path / "t.jinja").write_text("{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
    server = serve(TINY, "--chat-template", tmp_path / "t.jinja", "--tool-format", "mistral")
    card = json.loads(server.get("/v1/models").read())["data"][0]
    assert "tools" in card["capabilities"] and card["tool_format"] == "mistral"
    said = server.post_json("/v1/chat/completions/render", {"messages": [{"role": "user", "content": "hi"}]})
    assert said["prompt"].endswith("[user]hi")
    chatml = serve(TINY, "--chat-template", "chatml")
    said = chatml.post_json("/v1/chat/completions/render", {"messages": [{"role": "user", "content": "hi"}]})
    assert said["prompt"] == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    for option, value in (("--tool-format", "nobody"), ("--chat-template", tmp_path / "none.jinja")):
        p = llmq("serve", TINY, "--port", 0, option, value, code=None)
        assert p.returncode in (2, 3) and str(value) in p.stderr, p.stderr
    assert "hermes" in llmq("serve", TINY, "--port", 0, "--tool-format", "nobody", code=None).stderr


@case("C81")
@pytest.mark.parametrize("budget", [0, 1, 4, 1000, -1])
def test_a_budget_closes_the_thought(scripted, ask, budget):
    """As soon as it is spent; what the script goes on with is the answer. A token of the script is a byte."""
    before = whole(scripted, "think")["message"]
    c = whole(scripted, "think", thinking_token_budget=budget, tools=None)
    message = c["message"]
    spent = 0 <= budget < 20
    if not spent:
        assert message == before
        return
    said = "\nTwo and two."[:budget].strip()
    assert (message.get("reasoning_content") or "") == said
    assert message["content"].endswith("</think>\n\nFour.") and "<think>" not in message["content"]
    parts, finish, _ = streamed(scripted, ask, "think", thinking_token_budget=budget, tools=None)
    assert (parts.get("reasoning_content") or "", parts["content"]) == (said, message["content"])
    assert whole(scripted, "think", thinking_budget_tokens=budget, tools=None)["message"] == message


@case("C81")
def test_a_budget_leaves_an_answer_without_a_thought_alone(scripted):
    assert whole(scripted, "no think", thinking_token_budget=0)["message"]["content"] == "<b>Four</b>."


@case("C81")
def test_a_call_that_is_cut(scripted, ask):
    c = whole(scripted, "cut call", max_tokens=62, ignore_eos=True)
    assert c["finish_reason"] == "length"
    assert c["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"city": "Par')
    parts, finish, _ = streamed(scripted, ask, "cut call", max_tokens=62, ignore_eos=True)
    assert finish == "length"
    assert parts["tool_calls"][0]["function"] == c["message"]["tool_calls"][0]["function"]


@case("C81")
def test_choices_of_tools(scripted, ask):
    c = whole(scripted, "one call", tool_choice="none")
    assert "tool_calls" not in c["message"] and "<tool_call>" in c["message"]["content"]
    assert whole(scripted, "one call", tool_choice="auto")["finish_reason"] == "tool_calls"
    one = whole(scripted, "two calls", parallel_tool_calls=False)["message"]["tool_calls"]
    assert [x["function"]["name"] for x in one] == ["weather"]
    two = scripted.post_json(PATH, body("two calls", n=2))["choices"]
    assert len({x["id"] for c in two for x in c["message"]["tool_calls"]}) == 4
    hidden = whole(scripted, "think", include_reasoning=False)["message"]
    assert "reasoning_content" not in hidden and hidden["content"] == "Four."


@case("C81")
@pytest.mark.parametrize("choice, names", [
    ("required", {"paint", "mix"}),
    ({"type": "function", "function": {"name": "mix"}}, {"mix"})])
def test_calls_that_must_come(scripted, ask, choice, names):
    """Whatever the model would say: the answer is one call that its parameters allow."""
    tools = []
    for name in ("paint", "mix"):
        tools.append(tool(name, color={"enum": ["red", "blue"]}))
        tools[-1]["function"]["parameters"].update(required=["color"], additionalProperties=False)
    for script in ("no think", "think"):
        c = whole(scripted, script, tool_choice=choice, tools=tools)
        call, = c["message"]["tool_calls"]
        assert c["message"]["content"] is None and c["finish_reason"] == "tool_calls"
        assert call["function"]["name"] in names
        assert json.loads(call["function"]["arguments"])["color"] in ("red", "blue")
        parts, finish, _ = streamed(scripted, ask, script, tool_choice=choice, tools=tools)
        assert parts["tool_calls"][0]["function"] == call["function"] and finish == "tool_calls"


@case("C81")
@pytest.mark.parametrize("kind", [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "n", "schema": {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}}}])
def test_a_format_is_that_of_answers_without_calls(scripted, ask, kind):
    """The model may call; where it does not, the format holds; a call that must come is none of its business."""
    more = {"response_format": kind}
    for tools in (TOOLS, [*TOOLS, tool("loose", x={"type": "string", "not": {"const": "x"}})]):
        c = whole(scripted, "two calls", tools=tools, **more)
        assert [x["function"]["name"] for x in c["message"]["tool_calls"]] == ["weather", "now"]
        assert c["message"]["content"] is None and c["finish_reason"] == "tool_calls"
        parts, finish, _ = streamed(scripted, ask, "two calls", tools=tools, **more)
        assert [x["function"] for x in parts["tool_calls"]] == [x["function"] for x in c["message"]["tool_calls"]]
        c = whole(scripted, "object", tools=tools, **more)
        assert json.loads(c["message"]["content"]) == {"a": 1} and c["finish_reason"] == "stop" and "tool_calls" not in c["message"]
    c = whole(scripted, "abc", **more)
    assert "tool_calls" in c["message"] or json.loads(c["message"]["content"]) is not None
    for choice in ("required", {"type": "function", "function": {"name": "now"}}):
        assert whole(scripted, "object", tool_choice=choice, **more)["message"]["tool_calls"]
    assert json.loads(whole(scripted, "two calls", tool_choice="none", **more)["message"]["content"]) is not None


@case("C81")
@pytest.mark.parametrize("name", ["one call", "bare call", "bare lines"])
def test_a_call_follows_its_parameters(scripted, ask, name):
    """With its marks, and without them at the beginning of an answer: from its name on."""
    tools = [tool("weather", country={"enum": ["France", "Italy"]})]
    tools[0]["function"]["parameters"].update(required=["country"], additionalProperties=False)
    c = whole(scripted, name, tools=tools)
    call, = c["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["country"] in ("France", "Italy")
    parts, _, _ = streamed(scripted, ask, name, tools=tools)
    assert parts["tool_calls"][0]["function"] == call["function"]


@case("C81")
@pytest.mark.parametrize("choice", [
    "any", {"type": "any"}, {"type": "required"}, {"type": "function", "name": "mix"}, {"type": "custom", "name": "patch"}])
def test_tools_and_choices_in_other_apis_words(scripted, choice):
    """Cursor's lists mix the shapes of chats and of responses; Mistral and Anthropic say "any"."""
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    tools = [{"function": {"name": "mix", "parameters": schema}},
             {"type": "function", "name": "paint", "description": "paint, please", "parameters": schema},
             {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "regex", "definition": "ab"}}]
    chats = [{"type": "function", **tools[0]},
             {"type": "function", "function": {"name": "paint", "description": "paint, please", "parameters": schema}},
             {"type": "custom", "custom": {"name": "patch", "format": tools[2]["format"]}}]
    said = [{"role": "user", "content": "[abc]"}]
    theirs, ours = (scripted.post_json(PATH + "/render", {"messages": said, "tools": t})["prompt"] for t in (tools, chats))
    assert theirs == ours
    call, = whole(scripted, "no think", tools=tools, tool_choice=choice)["message"]["tool_calls"]
    name = call[call["type"]]["name"]
    assert name == choice["name"] if "name" in choice else name in ("mix", "paint", "patch")
    if name == "patch":
        assert call["custom"]["input"] == "ab"
    for auto in ({"type": "auto"}, {"type": "none"}):
        assert whole(scripted, "no think", tools=tools, tool_choice=auto)["finish_reason"] == "stop"


@case("C81")
def test_no_tools_are_none(scripted):
    """As OpenAI's own clients send them."""
    for more in ({"tools": []}, {"tools": [], "tool_choice": "none"}, {"tools": None, "tool_choice": "none"},
                 {"tools": None, "tool_choice": "auto"}, {"tools": [], "parallel_tool_calls": True}):
        c = whole(scripted, "one call", **more)
        assert "<tool_call>" in c["message"]["content"] and c["finish_reason"] == "stop", more


@case("C81")
def test_allowed_tools(scripted):
    """Calls of others are none, and the model does not see them."""
    one = scripted.post_json(PATH, body("two calls", tool_choice=allowed("auto", "now")))
    call, = one["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "now" and "weather" in one["choices"][0]["message"]["content"]
    alone = scripted.post_json(PATH, body("two calls", tools=[TOOLS[1]]))
    assert one["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    c = whole(scripted, "no think", tool_choice=allowed("required", "now"))
    assert [x["function"]["name"] for x in c["message"]["tool_calls"]] == ["now"]


def custom(name, **more):
    return {"type": "custom", "custom": {"name": name, "description": "d", **more}}


def matching(syntax, definition):
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


@case("C81")
def test_custom_tools(scripted, ask, scripted_client):
    """A call is a text, in a stream in one piece, beside calls of functions; and the talk goes on with it."""
    more = {"tools": [TOOLS[0], custom("now")]}
    c = whole(scripted, "custom call", **more)
    call, = c["message"]["tool_calls"]
    assert (call["type"], call["custom"]) == ("custom", {"name": "now", "input": 'one "two"'}) and "function" not in call
    assert c["finish_reason"] == "tool_calls" and c["message"]["content"] is None
    parts, finish, _ = streamed(scripted, ask, "custom call", **more)
    assert finish == "tool_calls" and parts["tool_calls"][0]["custom"] == call["custom"]
    two = whole(scripted, "two calls", **more)["message"]["tool_calls"]
    assert [(x["type"], x[x["type"]]["name"]) for x in two] == [("function", "weather"), ("custom", "now")]
    parts, _, _ = streamed(scripted, ask, "two calls", **more)
    assert [x[x["type"]] for x in parts["tool_calls"]] == [x[x["type"]] for x in two]
    cut = [whole(scripted, "custom call", max_tokens=n, **more)["message"]["tool_calls"][0]["custom"]["input"]
           for n in (56, 57, 58, 59)]
    assert cut == ["one ", "one ", 'one "', 'one "t']
    asked = {"model": "chatml", "messages": body("custom call")["messages"], "temperature": 0, "max_tokens": 250}
    said = scripted_client.chat.completions.create(**asked, **more).choices[0].message
    after = [*asked["messages"], said.model_dump(exclude_none=True),
             {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "noon"}]
    shown = scripted.post_json(PATH + "/render", {"messages": after, **more})["prompt"]
    assert '{"name": "now", "arguments": {"input": "one \\"two\\""}}' in shown and "noon" in shown


@case("C81")
@pytest.mark.parametrize("choice", ["required", {"type": "custom", "custom": {"name": "code"}}, {
    "type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "custom", "custom": {"name": "code"}}]}}])
@pytest.mark.parametrize("pattern", ["[a-c]{3}\\n\"x\"", "^(yes|no)$", "a|^b|c$", r"^a[]|$]\$|(\||[\]|])\\\\$"])
def test_the_pattern_of_a_custom_tool_holds(scripted, choice, pattern):
    more = {"tools": [custom("code", format=matching("regex", pattern))], "tool_choice": choice}
    call, = whole(scripted, "no think", **more)["message"]["tool_calls"]
    assert call["custom"]["name"] == "code" and re.fullmatch(pattern, call["custom"]["input"])


@case("C81")
def test_the_lark_grammar_of_a_custom_tool_holds(scripted):
    lark = 'start: sum\nsum: "1".."3" (" + " "7")~1..2 LF "\\"x\\""\n%import common.LF\n'
    more = {"tools": [custom("code", format=matching("lark", lark))], "tool_choice": "required"}
    call, = whole(scripted, "no think", **more)["message"]["tool_calls"]
    assert re.fullmatch(r'[1-3]( \+ 7){1,2}\n"x"', call["custom"]["input"])
    lark = 'start: "\\"" list "\\n"\nlist: list "," one | one\none: "7" | "(" list ")"\n'  # rules that use themselves
    more = {"tools": [custom("code", format=matching("lark", lark))], "tool_choice": "required"}
    call, = whole(scripted, "no think", **more)["message"]["tool_calls"]
    assert re.fullmatch(r'"[(]+7(,7)+,?', call["custom"]["input"])  # cut by max_tokens


@case("C81")
def test_functions_as_before_tools(scripted, ask):
    functions = {"tools": None, "functions": [t["function"] for t in TOOLS]}
    tools = whole(scripted, "two calls", parallel_tool_calls=False)["message"]
    old = whole(scripted, "two calls", **functions)
    call = tools.pop("tool_calls")[0]["function"]
    assert old["message"] == {**tools, "function_call": call} and old["finish_reason"] == "function_call"
    events = ask.stream(scripted, body("two calls", **functions), PATH)
    deltas = [e["choices"][0]["delta"].get("function_call", {}) for e in events]
    assert [d["name"] for d in deltas if "name" in d] == ["weather"]
    assert "".join(d.get("arguments", "") for d in deltas) == call["arguments"]
    assert events[-1]["choices"][0]["finish_reason"] == "function_call"
    must = whole(scripted, "no think", **functions, function_call={"name": "now"})["message"]
    assert must["function_call"]["name"] == "now" and must["content"] is None
    assert "<tool_call>" in whole(scripted, "one call", **functions, function_call="none")["message"]["content"]
    asked = [scripted.post_json(PATH + "/render", body("abc", **more)) for more in (functions, {})]
    assert asked[0] == asked[1]


@case("C81")
def test_the_client_of_openai_gets_calls(scripted, scripted_client):
    ask = {"model": "chatml", "messages": body("one call")["messages"], "tools": TOOLS,
           "temperature": 0, "max_tokens": 250}
    a = scripted_client.chat.completions.create(**ask).choices[0]
    call = a.message.tool_calls[0]
    assert json.loads(call.function.arguments)["days"] == [1, 2]
    # and the talk goes on with what the tool said
    after = [*ask["messages"], a.message.model_dump(exclude_none=True),
             {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    b = scripted_client.chat.completions.create(**{**ask, "messages": after, "max_tokens": 1})
    assert b.usage.prompt_tokens > 0
    with scripted_client.chat.completions.stream(**ask) as s:
        final = s.get_final_completion().choices[0]
    assert final.message.tool_calls[0].function.arguments == call.function.arguments


@case("C80")
@pytest.mark.parametrize("more, param", [
    ({"tools": {}}, "tools"),
    ({"tools": [5]}, "tools"),
    ({"tools": [{"type": "retrieval"}]}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "x" * 131}}]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f", "description": 5}}]}, "tools"),
    ({"tools": [tool("f"), tool("f")]}, "tools"),
    ({"tools": [tool(f"f{i}") for i in range(129)]}, "tools"),
    ({"tools": None, "tool_choice": "required"}, "tool_choice"),
    ({"tools": [], "tool_choice": {"type": "function", "function": {"name": "weather"}}}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ({"tool_choice": allowed("perhaps", "weather")}, "tool_choice"),
    ({"tool_choice": allowed("auto")}, "tool_choice"),
    ({"tool_choice": allowed("auto", "nobody")}, "tool_choice"),
    ({"tool_choice": "perhaps"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
    ({"tool_choice": 5}, "tool_choice"),
    ({"tool_choice": "required", "regex": "a"}, "tool_choice"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "color"}}}}, "response_format"),
    ({"response_format": {"type": "json_object"}, "tools": [{"type": "function", "function": {
        "name": "f", "strict": True, "parameters": {"type": "object", "properties": {"x": {"enum": []}}}}}]}, "tools[0].function.parameters"),
    ({"tool_choice": "required", "tools": [tool("f", x={"type": "color"})]}, "tools[0].function.parameters"),
    ({"tool_choice": "required", "tools": [tool("f"), tool("g", x={"enum": []})]},
     "tools[1].function.parameters"),
    ({"tool_choice": {"type": "function", "function": {"name": "g"}},
      "tools": [tool("f", y={"enum": []}), tool("g", x={"enum": []})]}, "tools[1].function.parameters"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]}, "tools"),
    ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    ({"tools": [{"type": "custom"}]}, "tools"),
    ({"tools": [{"type": "custom", "custom": {"name": ""}}]}, "tools"),
    ({"tools": [custom("f"), tool("f")]}, "tools"),
    ({"tools": [custom("f", format={"type": "json"})]}, "tools"),
    ({"tools": [custom("f", format={"type": "grammar"})]}, "tools"),
    ({"tools": [custom("f", format=matching("lark", "start: A\nA: /a/ A?"))]}, "tools"),
    ({"tools": [custom("f", format=matching("lark", "start: /(?=a)/"))]}, "tools"),
    ({"tools": [custom("f", format=matching("ebnf", "start: /a/"))]}, "tools"),
    ({"tools": [custom("f", format=matching("regex", "(a"))]}, "tools"),
    ({"tools": [custom("f", format=matching("regex", "(?=a)"))]}, "tools"),
    ({"tool_choice": {"type": "custom", "custom": {"name": "nobody"}}}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"tools": None, "functions": {}}, "functions"),
    ({"tools": None, "functions": [{"name": ""}]}, "functions"),
    ({"tools": None, "functions": [{"name": "f"}, {"name": "f"}]}, "functions"),
    ({"tools": None, "functions": [{"name": "f"}], "tool_choice": "auto"}, "functions"),
    ({"tools": None, "function_call": {"name": "f"}}, "function_call"),
    ({"tools": None, "functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call"),
    ({"tools": None, "functions": [{"name": "f"}], "function_call": "perhaps"}, "function_call"),
])
def test_tools_that_are_wrong(scripted, ask, more, param):
    ask.check_error(scripted.post(PATH, body("abc", **more)), 400, param)


@case("C81")
@pytest.mark.parametrize("turn, says", [
    ({"tool_calls": 3}, "tool_calls: an array, found 3"),
    ({"tool_calls": {}}, "tool_calls: an array, found an object"),
    ({"tool_calls": [None]}, 'tool_calls with function: a string "name", found null'),
    ({"tool_calls": [{"type": "function", "function": {"name": 3}}]}, 'tool_calls with function: a string "name", found an object'),
    ({"tool_calls": [{"type": "search"}]}, 'tool_calls of type "function" or "custom", found "search"'),
    ({"tool_calls": [{"type": "custom", "custom": {"name": "f", "input": 3}}]}, 'tool_calls with custom: strings "name" and "input"'),
    ({"function_call": "f"}, 'function_call: an object with a string "name", found "f"'),
    ({"function_call": {"arguments": "{}"}}, 'function_call: an object with a string "name", found an object'),
])
def test_earlier_calls_that_are_wrong(scripted, ask, turn, says):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", **turn}, {"role": "user", "content": "c"}]
    assert f"messages[1]: expected {says}" in ask.check_error(scripted.post(PATH, {"messages": messages}), 400, "messages")


@case("C80")
def test_a_template_without_tools(server, llmq, ask, tmp_path):
    """The system message shows the tools, and a call follows its parameters; unless that is off."""
    more = {"tool_choice": "required", "tools": [tool("paint", color={"enum": ["red", "blue"]})]}
    more["tools"][0]["function"]["parameters"]["required"] = ["color"]
    c = whole(server, "abc", **more)
    call, = c["message"]["tool_calls"]
    assert call["function"]["name"] == "paint" and json.loads(call["function"]["arguments"])["color"] in ("red", "blue")
    shown = server.post_json(PATH + "/render", body("abc", **more))["prompt"]
    assert '"name":"paint"' in shown and "<tool_call>" in shown
    answered = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": "done"}]
    shown = server.post_json(PATH + "/render", {"messages": answered, "tools": more["tools"]})["prompt"]
    assert "<tool_response>\ndone" in shown and '{"name": "paint", "arguments": ' in shown
    with Server(llmq, TINY, "--no-generic-tools", log=tmp_path / "log") as s:
        ask.check_error(s.post(PATH, body("abc")), 400, "tools", "unsupported_value")


@case("C81")
def test_what_the_template_gets(scripted):
    """The tools as they were sent: members in their order, numbers in their own spelling."""
    odd = {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"x": {"minimum": 1.0, "maximum": 1e3}}}}}
    raw = json.dumps({**body("abc"), "tools": [odd], "max_tokens": 1, "return_token_ids": True})
    a = scripted.post_json(PATH, raw.replace("1000.0", "1e3").encode())
    ids = a["choices"][0]["prompt_token_ids"]
    text = scripted.post_json("/detokenize", {"tokens": ids})["prompt"]
    assert '"x": {"minimum": 1.0, "maximum": 1000.0}' in text


@case("C81")
def test_calls_of_llama_3(scripted_llmq, vocabulary, ask, tmp_path):
    script = {"scripts": [{"prompt": "[llama]", "ids": vocabulary.ids([
        b'{"name": "weather", "parameters": {"city": "Paris"}}', 0])}, {"prompt": "[plain]", "ids": vocabulary.ids([b'{"a": 1}', 0])}]}
    (tmp_path / "script").write_text(json.dumps(script))
    template = (ROOT / "tests/golden/templates/header-date-tools.jinja").read_text()
    with Server(scripted_llmq, with_template(tmp_path / "llama", template), "--test-script",
                tmp_path / "script", log=tmp_path / "log") as s:
        c = whole(s, "llama")
        same = whole(s, "llama", response_format={"type": "json_object"})
        plain = whole(s, "plain", response_format={"type": "json_object"})
        parts, finish, _ = streamed(s, ask, "llama")
    call = c["message"]["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Paris"})
    assert c["message"]["content"] is None and c["finish_reason"] == finish == "tool_calls"
    assert parts["tool_calls"][0]["function"] == same["message"]["tool_calls"][0]["function"] == call
    assert plain["message"]["content"] == '{"a": 1}' and "tool_calls" not in plain["message"]
