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
