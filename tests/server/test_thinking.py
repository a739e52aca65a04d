"""Whether a model thinks: what requests ask for reaches the templates that read it; a structure comes behind a thought."""
import json
import re

import pytest

from harness import Server, with_template
from helpers import check_error
from test_forms import published  # noqa: F401 (a fixture)

case = pytest.mark.case
PATH = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
NOTE = "the parameter {} is taken and has no influence on an answer"


def prompt(server, **more):
    return server.post_json(PATH + "/render", {"messages": USER, **more})["prompt"]


def serve(llmq, folder, template, *more):
    return Server(llmq, with_template(folder / "m", template), *more, log=folder / "log")


@case("C72", "C131")
def test_parts_in_the_words_of_other_apis(llmq, tmp_path):
    """Texts of responses, as Cursor sends them in chats; thoughts as Mistral's API and others give them back."""
    with serve(llmq, tmp_path, "{% for m in messages %}[{{ m.reasoning_content }}|{{ m.content }}]{% endfor %}") as s:
        def said(content, **more):
            return prompt(s, messages=[{"role": "assistant", "content": content, **more},
                                       {"role": "user", "content": [{"type": "input_text", "text": "Go"}]}])
        for thought in ({"type": "thinking", "thinking": "hm so"}, {"type": "reasoning", "text": "hm so"},
                        {"type": "thinking", "thinking": [{"type": "text", "text": "hm "}, {"type": "text", "text": "so"}]}):
            assert "[hm so|Yes][|Go]" in said([thought, {"type": "output_text", "text": "Yes"}])
        assert "[own|Yes]" in said([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Yes"}], reasoning_content="own")
        assert "[|]" in said([{"type": "thinking", "thinking": ""}])
        check_error(s.post(PATH, {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "a"}]}]}), 400, "messages")


@case("C131")
def test_an_effort_reaches_the_template_that_reads_it(llmq, published, tmp_path):  # noqa: F811
    with serve(llmq, tmp_path, published["openai-gpt-oss-120b"]) as s:
        for ask in ({"reasoning_effort": "high"}, {"reasoning": {"effort": "high", "summary": "auto"}},
                    {"chat_template_kwargs": {"reasoning_effort": "high"}, "reasoning_effort": "low"}):
            assert "Reasoning: high" in prompt(s, **ask)
        assert "Reasoning: medium" in prompt(s) == prompt(s, enable_thinking=False)
        assert NOTE.format("enable_thinking") in s.output() and NOTE.format("reasoning_effort") not in s.output()


@case("C131")
def test_a_switch_reaches_the_template_that_reads_it(llmq, published, tmp_path):  # noqa: F811
    with serve(llmq, tmp_path, published["Qwen-Qwen3-0.6B"]) as s:
        off = prompt(s, chat_template_kwargs={"enable_thinking": False})
        assert off.endswith("<think>\n\n</think>\n\n") and off != prompt(s)
        for ask in ({"enable_thinking": False}, {"thinking": {"type": "disabled"}}, {"thinking": False},
                    {"reasoning_effort": "none"}, {"reasoning": {"enabled": False}}):
            assert prompt(s, **ask) == off
        for ask in ({"enable_thinking": True}, {"thinking": {"type": "enabled"}}, {"reasoning_effort": "high"},
                    {"enable_thinking": None, "reasoning": None}):
            assert prompt(s, **ask) == prompt(s)
        assert NOTE.format("reasoning_effort") in s.output() and NOTE.format("enable_thinking") not in s.output()
        kept = [*USER, {"role": "assistant", "content": "", "reasoning": "Hm so.", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "x"}]
        assert "Hm so." in prompt(s, messages=kept)
    with serve(llmq, tmp_path / "v3", published["deepseek-ai-DeepSeek-V3.1"]) as s:
        assert prompt(s, enable_thinking=True).endswith("<think>") and prompt(s).endswith("</think>")


@case("C131")
def test_wrong_ones_are_named(server):
    for body, param in (({"reasoning_effort": "much"}, "reasoning_effort"), ({"reasoning_effort": 3}, "reasoning_effort"),
                        ({"reasoning": {"effort": "x"}}, "reasoning"), ({"reasoning": {"depth": 1}}, "reasoning"),
                        ({"reasoning": "high"}, "reasoning"), ({"thinking": {"type": "x"}}, "thinking"),
                        ({"enable_thinking": "no"}, "enable_thinking")):
        check_error(server.post(PATH, {"messages": USER, **body}), 400, param)


@pytest.fixture(scope="module")
def thinker(scripted_llmq, vocabulary, published, tmp_path_factory):  # noqa: F811
    """Its prompts end inside the thought."""
    folder = tmp_path_factory.mktemp("thinker")
    script = [{"prompt": "[thought]", "ids": vocabulary.ids([b"Two and two.\n</think>\n\n"])}]
    (folder / "script").write_text(json.dumps({"scripts": script}))
    with serve(scripted_llmq, folder, published["Qwen-QwQ-32B"], "--test-script", folder / "script") as s:
        yield s


@case("C131")
@pytest.mark.parametrize("structure, matches", [
    ({"regex": "yes|no"}, "yes|no"), ({"guided_choice": ["red", "blue"]}, "red|blue"),
    ({"grammar": 'root ::= answer "!"\nanswer ::= "a" | "b"'}, "[ab]!"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1, 2]}}}}, "[12]")])
def test_any_structure_comes_behind_the_thought(thinker, structure, matches):
    a = thinker.post_json(PATH, {"messages": [{"role": "user", "content": "[thought]"}], "max_tokens": 60,
                                 "temperature": 0, "enable_thinking": True, **structure})
    message = a["choices"][0]["message"]
    assert message["reasoning_content"].strip() == "Two and two."
    assert re.fullmatch(matches, message["content"].strip())


def tool(name, strict=None, **parameters):
    f = {"name": name, "parameters": {"type": "object", "properties": parameters}}
    return {"type": "function", "function": {**f, **({} if strict is None else {"strict": strict})}}


@case("C131")
def test_a_format_or_a_call_comes_behind_the_thought(thinker):
    f = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1, 2]}}}
    message = thinker.post_json(PATH, {"messages": [{"role": "user", "content": "[thought]"}], "max_tokens": 60, "temperature": 0, "enable_thinking": True,
                                       "tools": [tool("f", x={"enum": ["a"]})], "response_format": f})["choices"][0]["message"]
    assert message["reasoning_content"].strip() == "Two and two."
    assert "tool_calls" in message or message["content"].strip() in ("1", "2")


NEVER = {"a": {"type": "string", "not": {"const": "x"}}}


@case("C131")
def test_a_tool_that_cannot_be_constrained(scripted):
    """Said in the log, once; refused where it must hold."""
    ask = {"messages": [{"role": "user", "content": "[abc]"}], "max_tokens": 3}
    before = scripted.output().count("may have any arguments")
    for _ in range(2):
        scripted.post_json(PATH, {**ask, "tools": [tool("good", b={"type": "integer"}), tool("bad", **NEVER)]})
    said = scripted.output().splitlines()
    line, = [x for x in said if "may have any arguments" in x and "tools[1].function.parameters" in x]
    assert "#/properties/a/not" in line and scripted.output().count("may have any arguments") == before + 1
    for strict, extra in ((True, {}), (False, {"tool_choice": "required"})):
        body = {**ask, "tools": [tool("bad", strict, **NEVER)], **extra}
        check_error(scripted.post(PATH, body), 400, "tools[0].function.parameters", "invalid_value")


@case("C131")
def test_strict_schema(scripted_llmq, published, tmp_path):  # noqa: F811
    body = {"messages": USER, "max_tokens": 4}
    odd = {"type": "object", "properties": {"a": {"type": "string", "errorMessage": "x"}}}
    known = {"type": "object", "properties": {"a": {"type": "string", "title": "x", "$comment": "y"}}}
    with serve(scripted_llmq, tmp_path, published["Qwen-Qwen3-0.6B"], "--strict-schema") as s:
        assert "#/properties/a/errorMessage" in check_error(s.post(PATH, {**body, "json_schema": odd}), 400, "json_schema")
        assert s.post(PATH, {**body, "json_schema": known}).status == 200
        bad = {**body, "tools": [tool("f", a={"type": "string", "errorMessage": "x"})]}
        assert "errorMessage" in check_error(s.post(PATH, bad), 400, "tools[0].function.parameters")
        check_error(s.post(PATH, {**body, "tools": [tool("f", **NEVER)]}), 400, "tools[0].function.parameters")
        assert s.post(PATH, {**body, "tools": [tool("f", a={"type": "string"})]}).status == 200


def test_strict_schema_of_run(llmq, tmp_path):
    (tmp_path / "s").write_text(json.dumps({"type": "integer", "enumNames": ["x"]}))
    args = ("run", "models/novels-1m", "a", "--json-schema", tmp_path / "s", "-n", 4)
    assert llmq(*args).stdout
    assert "#/enumNames" in llmq(*args, "--strict-schema", code=None).stderr
