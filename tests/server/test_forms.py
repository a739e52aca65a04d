"""Calls of every published chat template, streamed byte by byte, and what constrains them."""
import io
import json
import lzma
import os
import tarfile

import jinja2
import jinja2.ext
import pytest
from jinja2.sandbox import SandboxedEnvironment

from helpers import check_error, with_template
from harness import ROOT, Server

case = pytest.mark.case
PATH = "/v1/chat/completions"
TEMPLATES = ROOT / "tests/golden/templates"
FORMS = {}  # name -> what forms.txt says of it
for line in (TEMPLATES / "forms.txt").read_text().splitlines():
    if line[0] != " ":
        FORMS[name := line.partition(":")[0]] = line
    else:
        FORMS[name] += line
REFUSED = {"fireworks-ai-llama-3-firefunction-v2": "'functions' is undefined"}
# what the prompt's end, or the turn's header, has already begun; of thoughts see opened()
BEFORE = {"Kimi-K3": "<|close|>think<|sep|><|open|>response<|sep|>", "muse-glimmer": " to="}


def hermes(calls):
    return "\n".join("<tool_call>\n" + json.dumps(c) + "\n</tool_call>" for c in calls)


def granite(calls):
    return "<|tool_call|>" + json.dumps(calls)


def lfm2(calls):
    return "<|tool_call_start|>[" + ", ".join(
        f"{c['name']}(" + ", ".join(f"{k}={v!r}" for k, v in c["arguments"].items()) + ")" for c in calls) + "]<|tool_call_end|>"


# templates that show tools and no calls, or that know no tools and get the generic form
SPELLED = {"LFM2-8B-A1B": lfm2, "LFM2.5-Instruct": lfm2, "ibm-granite-granite-3.3-2B-Instruct": granite,
           **{n: hermes for n in ("HuggingFaceTB-SmolLM3-3B", "google-gemma-2-2b-it", "llama-cpp-rwkv-world",
                                  "microsoft-Phi-3.5-mini-instruct")}}
ARGUMENTS = {"city": "New York", "days": 3, "metric": True, "tags": ["a", "b"], "where": {"x": "y"}}
TOOLS = [{"type": "function", "function": {"name": name, "description": name, "parameters": {
    "type": "object", "$defs": {"T": {"type": "object", "properties": {kind: {"type": "string"}}, "required": [kind],
                                      "additionalProperties": False}},
    "properties": {"city": {"type": "string", "errorMessage": "a city", "description": "a city"},
                   "days": {"type": "integer", "description": "how many"}, "metric": {"type": "boolean", "description": "or not"},
                   "tags": {"type": "array", "items": {"type": "string"}, "description": "words"},
                   "where": {"$ref": "#/$defs/T", "description": "a place"}},
    "required": ["city", "days"], "additionalProperties": False}}} for name, kind in (("weather", "x"), ("now", "z"))]


def call(name, arguments, i):
    return {"id": f"callid00{i}", "type": "function", "function": {"name": name, "arguments": arguments}}


class Generation(jinja2.ext.Extension):
    """transformers' {% generation %}, which marks an answer and writes nothing."""
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def render(template, messages, answers=False):
    def fail(why):
        raise jinja2.TemplateError(why)
    env = SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation])
    env.filters["tojson"] = lambda v, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        list(v) if hasattr(v, "__next__") else v, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
        sort_keys=sort_keys)
    env.globals.update(raise_exception=fail, strftime_now=lambda f: "2026-01-01")
    return env.from_string(template).render(messages=messages, tools=TOOLS, bos_token="", eos_token="<|eos|>",
                                            add_generation_prompt=answers)


ASKS = [{"role": "user", "content": "Zuserz"}]


def opened(name, template):
    """What ends the thought that the prompt begins."""
    begin, found, end = FORMS[name].partition(" | thought ends ")
    begin = begin.partition(" thought ")[2].strip()
    begun = found and render(template, ASKS, True).rstrip().endswith(begin)
    return end.split(" | ")[0] + "\n\n" if begun else ""


def spelled(template, calls):
    """What the model writes: the text of the calls, from where they differ from no answer."""
    text, other = None, render(template, [*ASKS, {"role": "assistant", "content": "Zcontentz"}])
    for content, told in (("", False), (None, False), ("", True), (None, True)):  # as one of them wants it
        sent = [{**c, "function": {**c["function"], "arguments": json.dumps(c["function"]["arguments"])}} if told else c
                for c in calls]
        try:
            text = render(template, [*ASKS, {"role": "assistant", "content": content, "tool_calls": sent}])
        except (jinja2.TemplateError, TypeError):
            continue
        if text.count(calls[0]["function"]["name"]) > other.count(calls[0]["function"]["name"]):
            break
    if text is None:
        raise jinja2.TemplateError("no such calls")
    k = next(i for i, (a, b) in enumerate(zip(text, other)) if a != b)
    mark = max(text.rfind("<", 0, k), text.rfind("[", 0, k))
    return text[mark:] if mark >= 0 and text.rfind(">", mark, k) < 0 and text.rfind("]", mark, k) < 0 else text[k:]


def spell(name, template, *calls):
    """Calls (name, arguments) as the template's model writes them; None: not so many."""
    if name in SPELLED:
        return SPELLED[name]([{"name": n, "arguments": a} for n, a in calls])
    try:
        text = spelled(template, [call(n, a, i) for i, (n, a) in enumerate(calls)])
    except jinja2.TemplateError:
        return None
    return text if all(n in text for n, _ in calls) else None


@pytest.fixture(scope="session")
def published():
    data = lzma.decompress((TEMPLATES / "published.tar.xz").read_bytes())
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


PAINT = {"color": "green", "n": "maybe"}  # neither is allowed
SMALL = [{"type": "function", "function": {"name": n, "description": n, "parameters": {
    "type": "object", "properties": {"color": {"enum": ["red", "blue"], "description": "c"},
                                     "n": {"type": "boolean", "description": "n"}},
    "required": ["color", "n"], "additionalProperties": False}}} for n in ("paint", "mix")]


def scripts_of(name, template, vocabulary):
    before = BEFORE.get(name, "") or opened(name, template)
    two = spell(name, template, ("weather", ARGUMENTS), ("now", {"city": "Bonn", "days": 1}))
    texts = {"close": before, "one": before + spell(name, template, ("weather", ARGUMENTS)),
             "bad": before + spell(name, template, ("paint", PAINT))}
    if two:
        texts["two"] = before + two
    return two, [{"prompt": f"[{k}]", "ids": vocabulary.ids([t.encode()] + ([] if k in ("close", "bad") else [0]))}
                 for k, t in texts.items()]


def table_rows(published):
    """Of docs/tool-calls.md."""
    for name, form in FORMS.items():
        kind = form.partition(": ")[2].split("    ")[0]
        calls = ("refused: " + REFUSED[name] if name in REFUSED else
                 "generic" if SPELLED.get(name) is hermes else
                 "a known format" if not kind.startswith("derived") else "its own")
        if name in REFUSED:
            yield f"| {name} | {calls} | | | |"
            continue
        arguments = "one by one" if "| argument " in form or "| value " in form else "JSON"
        two = spell(name, published[name], ("weather", ARGUMENTS), ("now", {"city": "Bonn", "days": 1}))
        thought = "yes" if "thought ends" in form else ""
        yield f"| {name} | {calls} | {arguments} | {'yes' if two else ''} | {thought} |"


def test_the_table_says_what_is_tested(published):
    text = (ROOT / "docs/tool-calls.md").read_text()
    assert [x for x in text.splitlines() if x.startswith("| ")][1:] == list(table_rows(published))


def check_small(call, names):
    name, arguments = call
    assert name in names and arguments["color"] in ("red", "blue") and isinstance(arguments["n"], bool)


@case("C81")
@pytest.mark.parametrize("name", FORMS if "LLMQ_HARD" in os.environ else list(FORMS)[::2])
def test_calls_of_published_templates(scripted_llmq, vocabulary, ask, published, tmp_path, name):
    """Read as they stream; one or several; constrained as soon as they begin, and where they must come."""
    template, scripts, two = published[name], [], None
    if name not in REFUSED:
        two, scripts = scripts_of(name, template, vocabulary)
    (tmp_path / "script").write_text(json.dumps({"scripts": scripts}))
    model = with_template(tmp_path / "model", template)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    with Server(scripted_llmq, model, "--test-script", tmp_path / "script", log=tmp_path / "log") as s:
        if name in REFUSED:
            body = {"messages": [{"role": "user", "content": "a"}], "tools": TOOLS}
            assert REFUSED[name] in check_error(s.post(PATH, body), 400, "tools", "unsupported_value")
            return
        calls, finish = streamed(s, ask, text="[one]")
        assert (calls, finish) == ([("weather", ARGUMENTS)], "tool_calls")
        if two:
            calls, finish = streamed(s, ask, text="[two]")
            assert calls == [("weather", ARGUMENTS), ("now", {"city": "Bonn", "days": 1})]
            calls, _ = streamed(s, ask, text="[two]", parallel_tool_calls=False)
            assert calls == [("weather", ARGUMENTS)]
        (only,), finish = streamed(s, ask, text="[bad]", tools=SMALL, parallel_tool_calls=False)
        check_small(only, {"paint"})
        for choice, names in (("required", {"paint", "mix"}),
                              ({"type": "function", "function": {"name": "mix"}}, {"mix"})):
            (only,), finish = streamed(s, ask, text="[close]", tools=SMALL, tool_choice=choice)
            check_small(only, names)
            assert finish == "tool_calls"
