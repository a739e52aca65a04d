"""--quantize: a model quantized before it runs is the file that `llmq quantize` makes, and nothing of it stays."""
import json
import os
import pathlib
import shutil
import signal

import pytest

from harness import until

# What --quantize says, and the options of `llmq quantize` that mean the same.
WORDS = {
    "nf4": ["--method", "nf4"],
    "fp4-g32-double": ["--method", "fp4", "-g", "32", "--double-quant"],
    "int8": ["--method", "absmax"],
    "i8-row-asym": ["--method", "absmax", "--asym"],
    "u4-g128": ["--method", "rtn", "-g", "128", "--sym"],
    "u4-g64-asym": ["--method", "rtn", "-g", "64"],
    "u8-gK": ["--method", "rtn", "--bits", "8", "-g", "-1", "--sym"],
    "u3-g64-fzero": ["--method", "hqq", "--bits", "3"],
    "rtn": ["--method", "rtn"],
    "hqq": ["--method", "hqq"],
}
ASK = ["-p", "It was a", "-n", "12", "--logprobs", "2"]


def answer(llmq, *args, **more):
    r = llmq.json("run", *args, *ASK, **more)
    return r["ids"], r["logprobs"]


@pytest.fixture
def temp(tmp_path):
    """An empty TMPDIR; it is to be empty at the end too."""
    folder = tmp_path / "temp"
    folder.mkdir()
    yield {"env": {**os.environ, "TMPDIR": str(folder)}}
    assert not list(folder.iterdir())


@pytest.mark.parametrize("word", WORDS)
def test_answers_and_bytes_are_those_of_the_file(llmq, model, tmp_path, temp, word):
    made, cache = tmp_path / "made.llmq", tmp_path / "cache.llmq"
    llmq("quantize", model, "-o", made, *WORDS[word])
    wanted = answer(llmq, made)
    assert answer(llmq, model, "--quantize", word, **temp) == wanted
    assert answer(llmq, model, "--quantize", word, "--threads", "1", "--quantize-cache", cache, **temp) == wanted
    assert cache.read_bytes() == made.read_bytes()


def test_a_cache_is_used_again_and_only_for_its_model_and_scheme(llmq, model, draft, tmp_path, temp):
    cache = tmp_path / "cache.llmq"
    args = ["--quantize", "nf4", "--quantize-cache", cache]
    first = answer(llmq, model, *args, **temp)
    before = cache.stat()
    p = llmq("run", model, *args, *ASK[:4], **temp)
    assert "as nf4 already" in p.stderr
    assert answer(llmq, model, *args, **temp) == first
    bytes_before = cache.read_bytes()
    p = llmq("run", draft, *args, *ASK, code=2, **temp)
    assert "cache.llmq: holds another model" in p.stderr
    p = llmq("run", model, "--quantize", "u4-g128", "--quantize-cache", cache, *ASK, code=2, **temp)
    assert "holds this model by another recipe" in p.stderr
    assert (cache.stat().st_ino, cache.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert cache.read_bytes() == bytes_before
    assert sorted(x.name for x in tmp_path.iterdir()) == ["cache.llmq", "temp"]


def test_a_cache_whose_tokenizer_changed_is_made_again(llmq, model, tmp_path, temp):
    folder, cache = tmp_path / "folder", tmp_path / "cache.llmq"
    shutil.copytree(model, folder)
    args = ["run", folder, "--quantize", "nf4", "--quantize-cache", cache, *ASK[:4]]
    llmq(*args, **temp)
    config = folder / "generation_config.json"
    if config.exists():
        config.chmod(0o644)
    config.write_text(json.dumps({"max_new_tokens": 3}))
    assert "quantized to nf4" in llmq(*args, **temp).stderr
    assert "as nf4 already" in llmq(*args, **temp).stderr


def test_a_file_that_is_no_cache_is_not_replaced(llmq, model, packed, tmp_path, temp):
    shutil.copy(packed, tmp_path / "own.llmq")
    (tmp_path / "notes.llmq").write_text("mine")
    for name in ("own.llmq", "notes.llmq"):
        before = (tmp_path / name).read_bytes()
        llmq("run", model, "--quantize", "nf4", "--quantize-cache", tmp_path / name, *ASK, code=2, **temp)
        assert (tmp_path / name).read_bytes() == before
    copied = tmp_path / "copied"
    shutil.copytree(model, copied)
    llmq("run", copied, "--quantize", "nf4", "--quantize-cache", copied / "model.safetensors", *ASK, code=2, **temp)


@pytest.mark.parametrize("word, says", [
    ("fp6", "expected int8, nf4|fp4"), ("", "found ''"), ("u5-g64", "found 'u5-g64'"), ("bf16", "found 'bf16'"),
    ("u4-g64-bias", "found 'u4-g64-bias'"), ("nf4-a8", "found 'nf4-a8'"), ("fp8-e4m3", "(rtn, hqq, absmax, fp8, nf4, fp4)"),
    ("gptq", "gptq needs calibration text"), ("awq", "--method awq"), ("auto", "auto needs calibration text"),
    ("i8-outlier", "int8 needs calibration text")])
def test_other_words_are_refused(llmq, model, temp, word, says):
    assert says in llmq("run", model, "--quantize", word, *ASK, code=2, **temp).stderr


def test_what_cannot_be_quantized_is_refused(llmq, model, packed, tmp_path, temp):
    p = llmq("run", packed, "--quantize", "nf4", *ASK, code=3, **temp)
    assert "expected unquantized weights, found u4-g128-asym" in p.stderr
    p = llmq("run", model, "--quantize-cache", tmp_path / "x.llmq", *ASK, code=2, **temp)
    assert "--quantize-cache needs --quantize" in p.stderr
    p = llmq("run", tmp_path / "nothing", "--quantize", "nf4", *ASK, code=3, **temp)
    assert "nothing" in p.stderr
    nowhere = {"env": {**os.environ, "TMPDIR": str(tmp_path / "nowhere")}}
    assert "nowhere/llmq-" in llmq("run", model, "--quantize", "nf4", *ASK, code=1, **nowhere).stderr


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(llmq, model, tmp_path, temp, sig):
    folder = pathlib.Path(temp["env"]["TMPDIR"])
    p = llmq.start("run", model, "--quantize", "hqq", "--threads", "1", *ASK, **temp)
    until(lambda: list(folder.glob("llmq-*/*")), lambda: "")
    p.send_signal(sig)
    assert p.wait(60) == 128 + sig
    cache = tmp_path / "cache.llmq"
    p = llmq.start("run", model, "--quantize", "hqq", "--threads", "1", "--quantize-cache", cache, *ASK, **temp)
    until(lambda: list(tmp_path.glob("cache*")), lambda: "")
    p.send_signal(sig)
    assert p.wait(60) == 128 + sig
    assert not list(tmp_path.glob("cache*"))


@pytest.mark.parametrize("isolation", ["auto", "off"])
def test_a_server_answers_as_from_the_file(llmq, model, serve, tmp_path, temp, isolation):
    made = tmp_path / "made.llmq"
    llmq("quantize", model, "-o", made, "--method", "nf4")
    s = serve(model, "--quantize", "nf4", "--isolation", isolation, **temp)
    assert json.load(s.get("/v1/models"))["data"][0]["id"] == "novels-6m"
    body = {"model": "novels-6m", "prompt": "It was a", "max_tokens": 12, "temperature": 0}
    text = s.post_json("/v1/completions", body)["choices"][0]["text"]
    assert not list(pathlib.Path(temp["env"]["TMPDIR"]).iterdir())
    assert text == llmq.json("run", made, *ASK[:4], "--temperature", "0")["text"]


def test_eval_and_batch_and_logits_take_it_too(llmq, model, text, tmp_path, temp):
    made, few = tmp_path / "made.llmq", tmp_path / "few.txt"
    few.write_text(pathlib.Path(text).read_text()[:4000])
    llmq("quantize", model, "-o", made, "--method", "nf4")
    how = ["--text", few, "--ctx", "64", "--ref", model]
    a, b = llmq.json("eval", model, "--quantize", "nf4", *how, **temp), llmq.json("eval", made, *how)
    assert a["perplexity"] == b["perplexity"] and 0 < a["kl_mean"] == b["kl_mean"]
    for m, out in ((made, "a"), (model, "b")):
        more = ["--quantize", "nf4"] if m == model else []
        llmq("logits", m, *more, "--ids", "1,5,9", "-o", tmp_path / f"{out}.safetensors", **temp)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions",
            "body": {"model": "novels-6m", "prompt": "It was a", "max_tokens": 4}}
    (tmp_path / "in.jsonl").write_text(json.dumps(line) + "\n")
    llmq("batch", model, tmp_path / "in.jsonl", tmp_path / "out.jsonl", "--quantize", "nf4", **temp)
    assert json.loads((tmp_path / "out.jsonl").read_text())["response"]["status_code"] == 200


@pytest.mark.parametrize("args, says", [
    (("serve", "--request-memory", "1M"), "--request-memory"), (("serve", "--file-store-dir", "x"), "--file-store SIZE"),
    (("serve", "--model", "x"), "one MODEL"),
    (("run", "a", "--ids", "1"), "expected one of"), (("run", "a", "--beams", "2", "--seed", "1"), "--beams draws nothing"),
    (("chat", "--top-p", "0"), "--top-p"), (("eval", "--text", "x", "--max-kl", "1"), "--max-kl"),
    (("batch", "in", "out", "--shard", "3/2"), "--shard"),
])
def test_options_that_do_not_go_together_are_refused_before_the_work(llmq, tmp_path, args, says):
    """A model that is not there is not even looked for."""
    r = llmq(args[0], tmp_path / "none", *args[1:], "--quantize", "nf4", code=2)
    assert says in r.stderr and "none" not in r.stderr
