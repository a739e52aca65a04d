"""Calls of published chat templates, streamed byte by byte: a template of each kind of form."""
import io
import json
import lzma
import tarfile

import jinja2
import jinja2.ext
import pytest
from jinja2.sandbox import SandboxedEnvironment

from helpers import with_template
from harness import ROOT, Server

case = pytest.mark.case
PATH = "/v1/chat/completions"
NAMES = ["Apertus-8B-Instruct", "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "GLM-4.6", "Kimi-K3", "MiniMax-M2",
         "MiniMax-M3", "Mistral-Small-3.2-24B-Instruct-2506", "Qwen3-Coder", "Qwen-Qwen3-0.6B", "deepseek-ai-DeepSeek-V3.1",
         "google-gemma-4-31B-it", "meta-llama-Llama-3.2-3B-Instruct", "mistralai-Mistral-Nemo-Instruct-2407",
         "moonshotai-Kimi-K2", "openai-gpt-oss-120b", "openbmb-MiniCPM5-1B", "upstage-Solar-Open-100B", "muse-glimmer"]
# what the prompt's end, or the turn's header, has already begun
BEFORE = {"MiniMax-M2": "</think>\n\n", "Kimi-K3": "<|close|>think<|sep|><|open|>response<|sep|>", "muse-glimmer": " to="}
ARGUMENTS = {"city": "New York", "days": 3, "metric": True, "tags": ["a", "b"], "where": {"x": "y"}}
TOOLS = [{"type": "function", "function": {"name": name, "description": name, "parameters": {
    "type": "object", "$defs": {"T": {"type": "object", "properties": {kind: {"type": "string"}}, "required": [kind],
                                      "additionalProperties": False}},
    "properties": {"city": {"type": "string", "errorMessage": "a city"}, "days": {"type": "integer"},
                   "metric": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string"}},
                   "where": {"$ref": "#/$defs/T"}},
    "required": ["city", "days"], "additionalProperties": False}}} for name, kind in (("weather", "x"), ("now", "z"))]


def call(name, arguments, i):
    return {"id": f"callid00{i}", "type": "function", "function": {"name": name, "arguments": arguments}}


def render(template, messages):
    def fail(why):
        raise jinja2.TemplateError(why)
    env = SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = lambda v, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        v, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    env.globals.update(raise_exception=fail, strftime_now=lambda f: "2026-01-01")
    return env.from_string(template).render(messages=messages, tools=TOOLS, bos_token="", eos_token="<|eos|>")


def spelled(template, calls):
    """What the model writes: the text of the calls, from where they differ from no answer."""
    user = [{"role": "user", "content": "Zuserz"}]
    text = render(template, [*user, {"role": "assistant", "content": "", "tool_calls": calls}])
    other = render(template, [*user, {"role": "assistant", "content": "Zcontentz"}])
    k = next(i for i, (a, b) in enumerate(zip(text, other)) if a != b)
    mark = max(text.rfind("<", 0, k), text.rfind("[", 0, k))
    return text[mark:] if mark >= 0 and text.rfind(">", mark, k) < 0 and text.rfind("]", mark, k) < 0 else text[k:]


@pytest.fixture(scope="session")
def published():
    data = lzma.decompress((ROOT / "tests/golden/templates/published.tar.xz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {m.name.removesuffix(".jinja"): tar.extractfile(m).read().decode() for m in tar.getmembers()}


def streamed(server, ask, **more):
    calls = []
    body = {"messages": [{"role": "user", "content": more.pop("text")}], "temperature": 0, "max_tokens": 1500,
            "tools": TOOLS, **more}
    finish = None
    for e in ask.stream(server, body, PATH):
        finish = e["choices"][0]["finish_reason"] or finish
        for part in e["choices"][0]["delta"].get("tool_calls", []):
            if part["index"] == len(calls):
                calls.append({"name": part["function"]["name"], "arguments": ""})
            calls[part["index"]]["arguments"] += part["function"]["arguments"]
    return [(c["name"], json.loads(c["arguments"])) for c in calls], finish


@case("C81")
@pytest.mark.parametrize("name", NAMES)
def test_calls_of_published_templates(scripted_llmq, vocabulary, ask, published, tmp_path, name):
    template, before = published[name], BEFORE.get(name, "")
    try:
        two = spelled(template, [call("weather", ARGUMENTS, 1), call("now", {"city": "Bonn", "days": 1}, 2)])
    except jinja2.TemplateError:
        two = None
    if two is not None and "now" not in two:
        two = None
    one = spelled(template, [call("weather", ARGUMENTS, 1)])
    scripts = [{"prompt": "[close]", "ids": vocabulary.ids([before.encode()])},
               {"prompt": "[one]", "ids": vocabulary.ids([(before + one).encode(), 0])}]
    if two:
        scripts.append({"prompt": "[two]", "ids": vocabulary.ids([(before + two).encode(), 0])})
    (tmp_path / "script").write_text(json.dumps({"scripts": scripts}))
    model = with_template(tmp_path / "model", template)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    with Server(scripted_llmq, model, "--test-script", tmp_path / "script",
                log=tmp_path / "log") as s:
        calls, finish = streamed(s, ask, text="[one]")
        assert (calls, finish) == ([("weather", ARGUMENTS)], "tool_calls")
        if two:
            calls, finish = streamed(s, ask, text="[two]")
            assert calls == [("weather", ARGUMENTS), ("now", {"city": "Bonn", "days": 1})]
            calls, _ = streamed(s, ask, text="[two]", parallel_tool_calls=False)
            assert calls == [("weather", ARGUMENTS)]
        small = [{"type": "function", "function": {"name": n, "description": n, "parameters": {
            "type": "object", "properties": {"color": {"enum": ["red", "blue"]}, "n": {"type": "boolean"}},
            "required": ["color", "n"], "additionalProperties": False}}} for n in ("paint", "mix")]
        for choice, names in (("required", {"paint", "mix"}),
                              ({"type": "function", "function": {"name": "mix"}}, {"mix"})):
            calls, finish = streamed(s, ask, text="[close]", tools=small, tool_choice=choice)
            (got, arguments), = calls
            assert got in names and arguments["color"] in ("red", "blue") and isinstance(arguments["n"], bool)
            assert finish == "tool_calls"
