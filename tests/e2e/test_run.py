"""`llmq run`: one prompt, one answer, the same bytes whatever the threads."""
import json
import os

import pytest

from conftest import ROOT

MODEL = str(ROOT / "models" / "novels-6m")
TINY = str(ROOT / "tests" / "golden" / "arch" / "llama-128")


def test_an_answer_has_its_keys_and_adds_up(llmq):
    d = llmq.json("run", MODEL, "-p", "It was a", "-n", "12")
    assert {"text", "ids", "finish_reason", "usage", "timings"} <= d.keys()
    assert len(d["ids"]) == 12 and d["finish_reason"] == "length"
    u = d["usage"]
    assert u["completion_tokens"] == 12 and u["total_tokens"] == 12 + u["prompt_tokens"]
    plain = llmq("run", MODEL, "-p", "It was a", "-n", "12")
    assert plain.stdout == d["text"] + "\n"
    assert llmq("run", MODEL, "It was a", "-n", "12").stdout == plain.stdout


def test_demo_names_the_model_inside_the_program(llmq, tmp_path):
    small = str(ROOT / "models" / "novels-1m")
    args = ["-p", "Once upon a time", "-n", "12"]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    known = llmq.json("run", small, *args)["ids"]
    assert llmq.json("run", "demo", *args, env=env)["ids"] == known
    ask = {"input": '{"text": "It was"}', "env": env}
    assert llmq("tokenize", "demo", **ask).stdout == llmq("tokenize", small, **ask).stdout
    (weights,) = tmp_path.glob("cache/llmq/demo/model.safetensors")
    whole = weights.read_bytes()
    weights.write_bytes(bytes(len(whole)))
    assert llmq.json("run", "demo", *args, env=env)["ids"] == known and weights.read_bytes() == whole
    env["XDG_CACHE_HOME"] = str(weights)
    assert "model.safetensors" in llmq("run", "demo", *args, code=2, env=env).stderr
    env = {k: v for k, v in env.items() if k not in ("HOME", "XDG_CACHE_HOME")}
    assert "demo: expected HOME or XDG_CACHE_HOME" in llmq("run", "demo", *args, code=2, env=env).stderr


def test_a_prompt_is_given_once(llmq):
    for two in (["It was a", "-p", "It was a"], ["It was a", "--ids", "1"], []):
        p = llmq("run", MODEL, *two, code=2)
        assert "expected one of PROMPT, --prompt, --prompt-file and --ids" in p.stderr


def test_a_chat_template_from_a_file(llmq, tmp_path):
    (tmp_path / "t.jinja").write_text("{{ messages[-1].content }}")
    args = ["run", MODEL, "It was a", "-n", "8"]
    assert llmq(*args, "--chat", "--chat-template", tmp_path / "t.jinja").stdout == llmq(*args, "--no-bos").stdout
    assert "--chat-template goes with --chat" in llmq(*args, "--chat-template", "chatml", code=2).stderr
    (tmp_path / "t.jinja").write_text("{% if %}")
    assert "t.jinja" in llmq(*args, "--chat", "--chat-template", tmp_path / "t.jinja", code=3).stderr


def test_threads_and_steps_change_no_byte(llmq):
    args = ["run", MODEL, "-p", "The old house stood at the end of the lane, and", "-n", "24",
            "--temperature", "0.9", "--top-p", "0.95", "--seed", "11", "--logprobs", "2"]
    one = llmq.json(*args, "--threads", "1")
    for more in (["--threads", "2"], ["--threads", "7"], ["--max-num-batched-tokens", "3"]):
        other = llmq.json(*args, *more)
        assert (other["ids"], other["text"], other["logprobs"]) == \
            (one["ids"], one["text"], one["logprobs"]), more
    assert llmq.json(*args[:-4], "--seed", "12")["ids"] != one["ids"]


def test_a_stop_string_ends_the_answer_and_stays_out(llmq):
    whole = llmq.json("run", MODEL, "-p", "It was a", "-n", "24")["text"]
    word = whole.split()[3]
    d = llmq.json("run", MODEL, "-p", "It was a", "-n", "24", "--stop", word, "--stop", "\x01")
    assert d["finish_reason"] == "stop" and d["stop_reason"] == word
    assert d["text"] == whole[:whole.index(word)]


def test_beams_answer_what_transformers_does(llmq):
    cases = json.loads((ROOT / "tests" / "golden" / "beam" / "novels-1m.json").read_text())
    known = [c for c in cases if c["why"] in ("one answer of three", "two beams")]
    for c in known:
        d = llmq.json("run", str(ROOT / "models" / "novels-1m"), "--ids", ",".join(map(str, c["prompt"])),
                      "--beams", str(c["num_beams"]), "-n", str(c["max_new_tokens"]), "--ignore-eos")
        assert d["ids"] == c["answers"][0], c["why"]
    assert len(known) == 2


def test_a_chat_goes_through_the_template_once(llmq):
    text = "<|begin_of_text|>It was a\n"  # what the model's template makes of the message
    chat = llmq.json("run", MODEL, "--chat", "-p", " It was a ", "-n", "8")
    plain = llmq.json("run", MODEL, "-p", text, "--no-bos", "-n", "8")
    assert chat["ids"] == plain["ids"] and chat["usage"] == plain["usage"]


def test_ids_need_no_tokenizer(llmq):
    d = llmq.json("run", TINY, "--ids", "1,2,3", "-n", "5")
    assert len(d["ids"]) == 5 and d["text"] == ""
    assert llmq("run", TINY, "--ids", "1,2,3", "-n", "5").stdout == \
        ",".join(map(str, d["ids"])) + "\n"


@pytest.mark.parametrize("why, args, code, says", [
    ("no prompt", [MODEL], 2, "one of PROMPT, --prompt"),
    ("two prompts", [MODEL, "-p", "a", "--ids", "1"], 2, "one of PROMPT, --prompt"),
    ("beams that draw", [MODEL, "-p", "a", "--beams", "2", "--seed", "1"], 2, "--beams draws nothing"),
    ("a penalty of no beams", [MODEL, "-p", "a", "--length-penalty", "2"], 2, "go with --beams"),
    ("beams under a grammar", [MODEL, "-p", "a", "--beams", "2", "--regex", "a+"], 3, "no grammar"),
    ("a chat of ids", [MODEL, "--ids", "1", "--chat"], 2, "--chat"),
    ("a system message without a chat", [MODEL, "-p", "a", "--system", "b"], 2, "--chat"),
    ("an id beyond the vocabulary", [TINY, "--ids", "320"], 3, "320"),
    ("longer than the context", [TINY, "--ids", ",".join(["5"] * 200)], 3, "200 tokens"),
    ("a context beyond the model's", [TINY, "--ids", "1", "--max-model-len", "129"], 2, "--max-model-len: expected 0..128"),
    ("no tokenizer", [TINY, "-p", "text"], 3, "tokenizer"),
    ("no model", ["/nowhere", "-p", "text"], 3, "/nowhere"),
    ("an empty stop string", [MODEL, "-p", "a", "--stop", ""], 3, "stop"),
])
def test_what_cannot_run_is_refused(llmq, why, args, code, says):
    p = llmq("run", *args, code=code)
    assert says in p.stderr, why
    assert p.stdout == ""


GUESSED = ROOT / "tests/golden/mtp/mimo"


@pytest.mark.parametrize("how", [["--speculative-mtp"], ["--speculative-model", ROOT / "tests/golden/eagle3"],
                                 ["--speculative-model", ROOT / "tests/golden/eagle31/qwen3"],
                                 ["--speculative-model", ROOT / "tests/golden/eagle31/states"],
                                 ["--speculative-model", GUESSED], ["--speculative-ngram"]],
                         ids=["mtp", "eagle", "eagle of Qwen3", "eagle 3.1", "model", "ngram"])
def test_guesses_change_no_byte(llmq, how):
    args = ["run", GUESSED, "--ids", "5,6,7,5,6,7,5,6", "-n", 40, "--ignore-eos", "--logprobs", 2]
    plain, guessed = llmq.json(*args), llmq.json(*args, *how, "--num-speculative-tokens", 3)
    assert guessed["ids"] == plain["ids"] and guessed["logprobs"] == plain["logprobs"] and "speculation" not in plain
    assert guessed["speculation"]["guesses"] >= guessed["speculation"]["right"] >= 0
    if GUESSED in how:  # itself: greedy guesses are right
        assert guessed["speculation"]["right"] > 20


@pytest.mark.parametrize("args,says", [
    (["--speculative-mtp", "--speculative-ngram"], "exclude each other"),
    (["--num-speculative-tokens", "3"], "--num-speculative-tokens goes with"),
    (["--speculative-model", ROOT / "tests/golden/arch/llama-128"], "vocabulary of 64 ids, found one of 320"),
], ids=["two ways", "no way", "another vocabulary"])
def test_guesses_that_do_not_fit_are_refused(llmq, args, says):
    assert says in llmq("run", GUESSED, "--ids", "5,6,7", "-n", 4, *args, code=None).stderr
