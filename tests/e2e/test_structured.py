"""Structured output end to end: whatever the model would rather say, the answer has the form that was
asked for, in every dialect of the API and in `llmq run`."""
import json
import re

import pytest

MESSAGES = [{"role": "user", "content": "Tell me about a person."}]
PERSON = {"type": "object",
          "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 12},
                         "age": {"type": "integer", "minimum": 0, "maximum": 120},
                         "mood": {"enum": ["happy", "sad", "한글"]},
                         "tags": {"type": "array", "items": {"type": "string", "maxLength": 6},
                                  "maxItems": 2},
                         "born": {"type": "string", "format": "date"}},
          "required": ["name", "age", "mood", "born"], "additionalProperties": False}


def check_person(text):
    p = json.loads(text)
    assert list(p) == [k for k in PERSON["properties"] if k in p], p
    assert set(PERSON["required"]) <= set(p)
    assert isinstance(p["name"], str) and 1 <= len(p["name"]) <= 12
    assert type(p["age"]) is int and 0 <= p["age"] <= 120
    assert p["mood"] in ("happy", "sad", "한글")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", p["born"])
    assert all(isinstance(t, str) and len(t) <= 6 for t in p.get("tags", [])) and len(p.get("tags", [])) <= 2


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


def ask(server, **more):
    body = {"prompt": "He said:", "max_tokens": 300, "temperature": 1, "seed": 1, **more}
    return server.post_json("/v1/completions", body)["choices"]


@pytest.mark.parametrize("temperature", [0, 1, 2])
def test_a_chat_answers_json_of_the_schema(server, temperature):  # C47
    r = server.post_json("/v1/chat/completions", {
        "messages": MESSAGES, "max_tokens": 500, "temperature": temperature, "seed": 3, "n": 3,
        "response_format": schema_format(PERSON)})
    for c in r["choices"]:
        assert c["finish_reason"] == "stop", c
        check_person(c["message"]["content"])


def test_a_stream_is_the_same_text(server):
    body = {"prompt": "x", "max_tokens": 500, "temperature": 1, "seed": 5, "logprobs": 1,
            "response_format": schema_format(PERSON)}
    whole = server.post_json("/v1/completions", body)["choices"][0]
    check_person(whole["text"])
    assert "".join(whole["logprobs"]["tokens"]) == whole["text"]
    parts = server.post("/v1/completions", {**body, "stream": True}).read().decode().split("\n\n")
    events = [json.loads(p[6:]) for p in parts if p.startswith("data: {")]
    assert "".join(e["choices"][0]["text"] for e in events) == whole["text"]
    assert [e["choices"][0]["finish_reason"] for e in events][-1] == "stop"


@pytest.mark.parametrize("params, form", [
    ({"guided_regex": "[a-c]{3}-[0-9]{2}"}, "[a-c]{3}-[0-9]{2}"),
    ({"regex": "(yes|no)!"}, "(yes|no)!"),
    ({"guided_choice": ["left", "right", "right here"]}, "left|right|right here"),
    ({"structured_outputs": {"choice": ["가", "나"]}}, "가|나"),
    ({"structured_outputs": {"regex": "x{2,4}y"}}, "x{2,4}y"),
    ({"guided_grammar": 'root ::= "(" root ")" | [a-c]'}, r"\(*[a-c]\)*"),
    ({"grammar": 'root ::= w (" " w){2}\nw ::= [a-z]{2,5}'}, "[a-z]{2,5}( [a-z]{2,5}){2}"),
    ({"structured_outputs": {"grammar": '?start: N ("+" N)~1..2\nN: "0".."9"~1..3\n'}},  # Lark's notation, as vLLM takes it
     r"[0-9]{1,3}(\+[0-9]{1,3}){1,2}"),
    ({"structured_outputs": {"grammar": '?start: sum\n?sum: atom | sum "+" atom\n?atom: "1".."3" | "(" sum ")"\n'}},
     r"\(*[1-3]\)*(\+\(*[1-3]\)*)*"),
    ({"structured_outputs": {"json": {"type": "array", "items": {"type": "boolean"}, "minItems": 3,
                                      "maxItems": 3}, "disable_any_whitespace": True}},
     r"\[(true|false)(,(true|false)){2}\]"),
    ({"guided_json": '{"type": "integer", "minimum": 7, "maximum": 12}'}, "[789]|1[012]"),
    ({"json_schema": {"const": "x"}}, '"x"'),
])
def test_every_dialect_is_honoured(server, params, form):
    for seed in range(3):
        c, = ask(server, seed=seed, **params)
        assert c["finish_reason"] == "stop" and re.fullmatch(form, c["text"]), c["text"]


def test_json_mode_gives_an_object_or_its_beginning(server):
    for seed in range(6):
        c, = ask(server, seed=seed, response_format={"type": "json_object"})
        assert c["text"].startswith("{")
        if c["finish_reason"] == "stop":
            assert isinstance(json.loads(c["text"]), dict)
        else:
            assert c["finish_reason"] == "length"
    cut, = ask(server, max_tokens=2, response_format=schema_format(PERSON))
    assert cut["finish_reason"] == "length" and '{"name":'.startswith("".join(cut["text"].split()))


def test_stop_strings_and_min_tokens_still_work(server):
    c, = ask(server, guided_regex="[a-b]{20}c", stop=["b"])
    assert c["finish_reason"] == "stop" and re.fullmatch("a*", c["text"])
    c, = ask(server, guided_regex="a{1,30}", min_tokens=5, logit_bias={})
    assert re.fullmatch("a{5,30}", c["text"]) or c["finish_reason"] == "stop"


def test_free_answers_are_as_they_were(server):
    body = {"prompt": "It was", "max_tokens": 20, "temperature": 1, "seed": 11}
    before = server.post_json("/v1/completions", body)["choices"][0]["text"]
    ask(server, response_format=schema_format(PERSON))
    assert server.post_json("/v1/completions", body)["choices"][0]["text"] == before


@pytest.mark.parametrize("params, param, message", [
    ({"response_format": schema_format({"type": "object", "properties": {"a": {"not": {"const": 1}}}})},
     "response_format", "#/properties/a/not"),
    ({"response_format": schema_format(False)}, "response_format", "no text"),
    ({"response_format": schema_format({"type": "string", "pattern": "^+[a-z]$"})},
     "response_format", "#/pattern"),
    ({"response_format": schema_format({"type": "string", "minLength": 10**9})},
     "response_format", "#/minLength"),
    ({"guided_regex": "foo**"}, "guided_regex", "nothing to repeat"),
    ({"guided_regex": "(" * 60000}, "guided_regex", "too deeply"),
    ({"guided_regex": "(a+)+" * 20000}, "guided_regex", "too large"),
    ({"guided_grammar": 'root ::= "c"? root "a" | "b"'}, "guided_grammar", "recurses on the left"),
    ({"guided_grammar": "start: a"}, "guided_grammar", "lark: line 1: a name that is not defined"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "guided_regex"),
])
def test_what_cannot_be_honoured_is_refused(server, params, param, message):  # C103, C104
    e = server.post_json("/v1/completions", {"prompt": "a", **params}, status=400)["error"]
    assert e["param"] == param and message in e["message"], e


def test_run_takes_files_and_patterns(llmq, draft, tmp_path):
    schema, gbnf = tmp_path / "s.json", tmp_path / "g.gbnf"
    schema.write_text(json.dumps(PERSON))
    gbnf.write_text('root ::= "<" [a-z]{3} ">"\n')
    run = ["run", draft, "-p", "Once", "-n", 400, "--temperature", 1]
    for seed in (1, 2):
        check_person(llmq(*run, "--seed", seed, "--json-schema", schema).stdout)
    assert re.fullmatch("<[a-z]{3}>", llmq(*run, "--grammar", gbnf).stdout.strip())
    gbnf.write_text('start: "<" A~3 ">"\nA: "a".."z"\n')  # Lark's
    assert re.fullmatch("<[a-z]{3}>", llmq(*run, "--grammar", gbnf).stdout.strip())
    assert re.fullmatch("[0-9]{4}", llmq(*run, "--regex", "[0-9]{4}").stdout.strip())
    assert llmq(*run, "--choice", "red,green").stdout.strip() in ("red", "green")
    p = llmq(*run, "--choice", "a", "--regex", "b", code=2)
    assert "expected one of --grammar" in p.stderr
    schema.write_text('{"not": {"const": 1}}')
    assert "#/not" in llmq(*run, "--json-schema", schema, code=3).stderr
