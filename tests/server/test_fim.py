"""Filling in the middle: `suffix` of completions, /infill; and what llama.cpp's clients ask: /props, /slots."""
import json
import shutil

import pytest

from harness import ROOT, Server
from helpers import check_error, http

pytestmark = pytest.mark.case("C135")

MARKS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]


def with_marks(folder):
    """The tiny model, whose three latest merges make way for the marks."""
    shutil.copytree(ROOT / "models/novels-1m", folder)
    path = folder / "tokenizer.json"
    t = json.loads(path.read_text())
    model = t["model"]
    for mark in MARKS:
        merge = model["merges"].pop()
        gone = "".join(merge if isinstance(merge, list) else merge.split(" "))
        id = model["vocab"].pop(gone)
        t["added_tokens"].append({**t["added_tokens"][0], "id": id, "content": mark})
        model["vocab"][mark] = id
    path.write_text(json.dumps(t))
    return folder


@pytest.fixture(scope="module")
def marked(llmq, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fim")
    with Server(llmq, with_marks(folder / "m"), "--served-model-name", "m", log=folder / "log") as s:
        yield s.wait_ready()


def ids(server, text):
    return server.post_json("/tokenize", {"prompt": text})["tokens"]


def test_the_marks_are_between_the_texts(marked):
    ask = {"prompt": "The old ", "suffix": " of the sea <|fim_middle|>", "max_tokens": 8, "temperature": 0}
    a = marked.post_json("/v1/completions", {**ask, "return_token_ids": True})["choices"][0]
    begin = ids(marked, "")
    pre, suf, mid = ([*begin, *(ids(marked, m)[len(begin):])][-1:] for m in MARKS)
    plain = [ids(marked, t)[len(begin):] for t in ("The old ", " of the sea ")]
    got = a["prompt_token_ids"]
    assert got[:len(begin)] == begin and got[-1:] == mid
    assert got[len(begin):len(begin) + 2 + len(plain[0])] == pre + plain[0] + suf
    assert mid[0] not in got[:-1]  # a text spells no mark
    same = marked.post_json("/v1/completions", {**ask, "suffix": None, "prompt": got})["choices"][0]
    assert a["text"] == same["text"]
    two = marked.post_json("/v1/completions", {**ask, "prompt": ["The old ", "A"]})["choices"]
    assert two[0]["text"] == a["text"]


def test_infill(marked):
    ask = {"input_prefix": "The ", "prompt": "old ", "input_suffix": " of the sea", "n_predict": 8, "temperature": 0}
    want = marked.post_json("/v1/completions", {"prompt": "The old ", "suffix": " of the sea", "max_tokens": 8,
                                                "temperature": 0})
    a = marked.post_json("/infill", ask)
    assert a["content"] == want["choices"][0]["text"] and a["stop"] is True and a["stop_type"] in ("limit", "eos")
    assert a["tokens_evaluated"] == want["usage"]["prompt_tokens"]
    assert a["tokens_predicted"] == want["usage"]["completion_tokens"]
    r = http("POST", marked.url + "/infill", json={**ask, "stream": True})
    events = [json.loads(e.removeprefix("data: ")) for e in r.text.split("\n\n") if e]
    assert "".join(e["content"] for e in events) == a["content"]
    assert [e["stop"] for e in events] == [False] * (len(events) - 1) + [True]
    word = marked.post_json("/infill", {**ask, "n_predict": 50, "stop": [a["content"][2:4]]})
    assert (word["stop_type"], word["stopping_word"]) == ("word", a["content"][2:4])


def test_completion_of_llama_cpp(server):
    """POST /completion: SillyTavern's and Continue's requests for llama.cpp."""
    ask = {"prompt": "The old house", "n_predict": 8, "temperature": 0, "stream": False, "cache_prompt": True, "grammar": "",
           "samplers": ["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"], "dry_multiplier": 0, "n_probs": 0,
           "logit_bias": [], "json_schema": None, "mirostat": 0, "id_slot": -1, "timings_per_token": True}
    want = server.post_json("/v1/completions", {"prompt": ask["prompt"], "max_tokens": 8, "temperature": 0, "return_token_ids": True})
    a = server.post_json("/completion", {**ask, "return_tokens": True})
    assert (a["content"], a["tokens"]) == (want["choices"][0]["text"], want["choices"][0]["token_ids"])
    assert (a["stop"], a["stop_type"], a["tokens_predicted"], a["index"]) == (True, "limit", 8, 0)
    assert a["tokens_evaluated"] == want["usage"]["prompt_tokens"] and a["timings"]["predicted_per_second"] > 0
    ids = server.post_json("/tokenize", {"prompt": ask["prompt"]})["tokens"]
    assert server.post_json("/completion", {**ask, "prompt": ids})["content"] == a["content"]
    events = [json.loads(e.removeprefix("data: ")) for e in
              http("POST", server.url + "/completion", json={**ask, "stream": True}).text.split("\n\n") if e]
    assert "".join(e["content"] for e in events) == a["content"] and [e["stop"] for e in events[-2:]] == [False, True]
    probable = server.post_json("/completion", {**ask, "n_probs": 3, "return_tokens": True})
    lists = probable["completion_probabilities"]
    assert [e["id"] for e in lists] == probable["tokens"] == a["tokens"]
    assert all(len(e["top_logprobs"]) == 3 and e["top_logprobs"][0]["id"] == e["id"] and e["logprob"] <= 0 for e in lists)
    parts = [json.loads(e.removeprefix("data: ")) for e in
             http("POST", server.url + "/completion", json={**ask, "n_probs": 3, "stream": True}).text.split("\n\n") if e]
    assert [e for p in parts for e in p["completion_probabilities"]] == lists
    first = a["tokens"][0]
    for bias in ([[first, False]], [[first, -100]], {str(first): -100}):
        assert server.post_json("/completion", {**ask, "logit_bias": bias, "return_tokens": True})["tokens"][0] != first
    for more, param in (({"prompt": ["a", "b"]}, "prompt"), ({"prompt": None}, "prompt"), ({"logit_bias": [[1]]}, "logit_bias"),
                        ({"n_probs": 21}, "n_probs"), ({"response_fields": "content"}, "response_fields"), ({"n": 2}, "n"),
                        ({"response_fields": ["content"] * 65}, "response_fields"),
                        ({"n_indent": "x"}, "n_indent"), ({"t_max_predict_ms": -2}, "t_max_predict_ms"),
                        ({"suffix": "x"}, "suffix"), ({"logit_bias": [[1 << 20, 1]]}, "logit_bias")):
        check_error(server.post("/completion", {**ask, **more}), 400, param)


def test_the_request_of_llama_vim(marked):
    """And of llama.vscode: all of its fields, and the answer has those that it asks for."""
    fields = ["content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms", "timings/prompt_per_second",
              "timings/predicted_n", "timings/predicted_ms", "timings/predicted_per_token_ms", "timings/predicted_per_second",
              "truncated", "tokens_cached", "generation_settings/n_ctx", "content"]
    ask = {"id_slot": 0, "input_prefix": "The old house\n", "input_suffix": "\nThe end", "input_extra": [{"text": "a", "filename": "b"}],
           "prompt": "It was", "n_predict": 16, "stop": [], "n_indent": 0, "top_k": 40, "top_p": 0.9, "stream": False, "seed": 3,
           "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000,
           "response_fields": fields}
    a = marked.post_json("/infill", ask)
    assert set(a) == set(fields[:11]) and a["timings/predicted_n"] <= 16 and a["truncated"] is False
    bare = marked.post_json("/infill", {**ask, "response_fields": []})
    assert bare["content"] == a["content"] and bare["timings"]["prompt_n"] <= a["timings/prompt_n"]
    events = [json.loads(e.removeprefix("data: ")) for e in
              http("POST", marked.url + "/infill", json={**ask, "stream": True}).text.split("\n\n") if e]
    assert set(events[-1]) == set(fields[:11]) and "".join(e["content"] for e in events) == a["content"]
    warm = marked.post_json("/infill", {**ask, "n_predict": 0, "response_fields": ["content", "tokens_predicted"]})
    assert warm == {"content": "", "tokens_predicted": 0}
    sure = {marked.post_json("/infill", {**ask, "seed": s, "response_fields": ["content"]})["content"][:8] for s in range(8)}
    free = {marked.post_json("/infill", {**ask, "seed": s, "samplers": ["top_k"], "response_fields": ["content"]})["content"][:8]
            for s in range(8)}
    assert len(sure) < len(free)  # what is not sure ends the text


LINES = "if x:\n    a\n    b\nc\n    d"


@pytest.mark.parametrize("indent, want", [(0, LINES), (4, "if x:\n    a\n    b\n"), (5, "if x:\n    ")])
@pytest.mark.parametrize("stream", [False, True])
def test_a_line_of_fewer_blanks_ends_the_text(server, indent, want, stream):
    ask = {"prompt": "a", "n_indent": indent, "grammar": f"root ::= {json.dumps(LINES)}", "stream": stream, "temperature": 0}
    r = http("POST", server.url + "/completion", json=ask)
    events = [json.loads(e.removeprefix("data: ")) for e in r.text.split("\n\n") if e] if stream else [r.json()]
    assert "".join(e["content"] for e in events) == want
    assert events[-1]["stop"] is True and events[-1]["stop_type"] == ("limit" if indent else "eos")
    # However far the sequence was when it was cancelled, its tokens end where the text does.
    again = {http("POST", server.url + "/completion", json={**ask, "stream": False}).text.split('"timings"')[0] for _ in range(8)}
    assert len(again) == 1


def test_a_line_that_is_late_is_the_last(server):
    lines = "".join(f"{i}\n" for i in range(200))
    ask = {"prompt": "a", "grammar": f"root ::= {json.dumps(lines)}", "temperature": 0}
    assert server.post_json("/completion", {**ask, "t_max_predict_ms": 60000})["content"] == lines
    a = server.post_json("/completion", {**ask, "t_max_predict_ms": 10})
    assert lines.startswith(a["content"]) and a["content"].endswith("\n") and 0 < len(a["content"]) < len(lines)
    assert a["stop_type"] == "limit"


@pytest.mark.parametrize("path, more", [("/v1/completions", {"prompt": "a"}), ("/completion", {"prompt": "a"}),
                                        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})])
def test_minus_one_is_the_rest_of_the_context(server, path, more):
    """LM Studio's and llama.cpp's clients say so."""
    room = {"ignore_eos": True, "temperature": 0, "cache_prompt": True}
    names = ("n_predict",) if path == "/completion" else ("max_tokens", "n_predict")
    for name in names:
        a = server.post_json(path, {**more, **room, name: -1})
        used = a["usage"]["total_tokens"] if "usage" in a else a["tokens_evaluated"] + a["tokens_predicted"]
        assert used == 1024
        check_error(server.post(path, {**more, name: -2}), 400, name)


def test_other_files_come_first(marked):
    """This tokenizer has no tokens for files."""
    ask = {"input_prefix": "The old ", "input_suffix": " of the sea", "n_predict": 4, "temperature": 0}
    extra = [{"text": "<|fim_middle|>One.", "filename": "a.txt"}, {"text": "Two."}]
    want = sum(len(marked.post_json("/tokenize", {"content": x, "parse_special": False})["tokens"]) for x in
               ("\n\n--- snippet ---\n\n", "<|fim_middle|>One.", "\n\n--- snippet ---\n\n", "Two."))
    bare = marked.post_json("/infill", ask)["tokens_evaluated"]
    assert marked.post_json("/infill", {**ask, "input_extra": extra})["tokens_evaluated"] == bare + want
    assert marked.post_json("/infill", {**ask, "input_extra": []})["tokens_evaluated"] == bare


@pytest.mark.parametrize("path, more, param", [
    ("/infill", {"input_prefix": 5}, "input_prefix"),
    ("/infill", {"input_suffix": []}, "input_suffix"),
    ("/infill", {"input_extra": [{"filename": "a"}]}, "input_extra"),
    ("/infill", {"input_extra": [{"text": "a " * 100000}]}, "prompt"),
    ("/v1/completions", {"prompt": "a", "input_extra": [{"text": "b"}]}, "input_extra"),
    ("/infill", {"n": 2}, "n"),
    ("/infill", {"temperature": 5}, "temperature"),
    ("/v1/completions", {"prompt": "a", "suffix": "b", "echo": True}, "echo"),
    ("/v1/completions", {"prompt": [5], "suffix": "b"}, "suffix"),
    ("/v1/completions", {"prompt": "a", "suffix": "b " * 100000}, "prompt"),
])
def test_what_is_refused(marked, path, more, param):
    check_error(marked.post(path, more), 400, param)


def test_a_model_without_marks(server):
    for path, ask in (("/v1/completions", {"prompt": "a", "suffix": "b"}), ("/infill", {"input_prefix": "a"})):
        check_error(server.post(path, ask), 400, "suffix", "unsupported_value")
    assert server.post_json("/v1/completions", {"prompt": "a", "suffix": "", "max_tokens": 1})["choices"]


def test_props_and_slots(marked):
    card = json.loads(marked.get("/v1/models").read())["data"][0]
    p = json.loads(marked.get("/props").read())
    assert p["chat_template"] and p["bos_token"] == "<|begin_of_text|>" and p["eos_token"]
    assert p["default_generation_settings"]["n_ctx"] == card["max_model_len"] and p["model_alias"] == "m"
    slots = json.loads(marked.get("/slots").read())
    assert [s["id"] for s in slots] == list(range(p["total_slots"]))
    assert not any(s["is_processing"] for s in slots)
