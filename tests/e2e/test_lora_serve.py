"""Adapters by the name that a request has for its model: beside each other in one batch, in the prefix cache,
loaded and unloaded while the server runs."""
import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import ROOT, until

GOLDEN = ROOT / "tests/golden/lora"
PLAIN, DORA = f"plain={GOLDEN / 'plain'}", f"dora={GOLDEN / 'dora'}"
NAMES = ["base", "plain", "dora"]
LONG = "It was a dark night, and the captain of the ship looked at the sea. " * 3


@pytest.fixture(scope="module")
def tiny():
    return ROOT / "models/novels-1m"


@pytest.fixture(scope="module")
def quantized(llmq, tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("q") / "q.llmq"
    llmq("quantize", tiny, "-o", out, "--method", "rtn")
    return out


def ask(server, model, prompt, n=16, **more):
    r = server.post("/v1/completions", {"model": model, "prompt": prompt, "max_tokens": n, "temperature": 0,
                                        "logprobs": 3, "ignore_eos": True, **more})
    body = json.load(r)
    assert r.status == 200, body
    return body


def answer(server, *args, **more):
    """All that the model said, to the last digit."""
    return ask(server, *args, **more)["choices"]


def text(server, path):
    return server.get(path).read().decode()


def jobs():
    prompts = ["It was", "The captain of the ship", "He looked at her and said that", LONG, "a"]
    return [(NAMES[(i + k) % 3], p, 6 + 5 * i) for i, p in enumerate(prompts) for k in range(3)]


@pytest.mark.parametrize("args", [[], ["--activations", "bf16"], ["--speculative-ngram", "--no-enable-prefix-caching"],
                                  ["--max-num-batched-tokens", "24", "--threads", "1"]], ids=" ".join)
def test_adapters_beside_each_other_answer_as_each_alone(serve, quantized, args):
    s = serve(quantized, "--served-model-name", "base", "--lora", PLAIN, "--lora", DORA, *args)
    alone = [answer(s, *job) for job in jobs()]
    with ThreadPoolExecutor(len(alone)) as pool:
        for _ in range(2):
            assert list(pool.map(lambda job: answer(s, *job), jobs())) == alone
    only = serve(quantized, "--served-model-name", "base", *args)  # a server without adapters
    assert [answer(only, *job) for job in jobs() if job[0] == "base"] == [
        a for a, job in zip(alone, jobs()) if job[0] == "base"]
    by = {name: [a for a, job in zip(alone, jobs()) if job[0] == name] for name in NAMES}
    assert by["base"] != by["plain"] != by["dora"] != by["base"]


def test_the_prefix_cache_is_of_one_adapter(serve, tiny):  # T-43
    s = serve(tiny, "--served-model-name", "base", "--lora", PLAIN, "--lora", DORA, "--lora", f"same={GOLDEN / 'plain'}")
    fresh = serve(tiny, "--served-model-name", "base", "--lora", PLAIN, "--lora", DORA, "--no-enable-prefix-caching")

    def cached(model):
        r = ask(s, model, LONG)
        assert r["choices"] == answer(fresh, model if model != "same" else "plain", LONG)
        return r["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [cached(m) for m in NAMES] == [0, 0, 0], "none takes another's blocks"
    assert all(cached(m) > 32 for m in NAMES)
    assert cached("same") > 32, "the same contents under another name"


def test_the_cache_on_disk_is_of_one_adapter(serve, tiny, tmp_path):
    args = [tiny, "--served-model-name", "base", "--lora", PLAIN, "--lora", DORA, "--kv-cache-dir", tmp_path / "kv",
            "--kv-cache-disk", "64M"]
    first = serve(*args)
    want = {m: answer(first, m, LONG) for m in ("base", "plain")}
    first.stop()
    again = serve(*args)
    for m in ("dora", "base", "plain"):
        r = ask(again, m, LONG)
        found = r["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert r["choices"] == want.get(m, r["choices"]) and (found > 0) == (m in want), (m, found)


def test_models_are_listed_with_their_parent(serve, tiny):
    s = serve(tiny, "--served-model-name", "base", "--served-model-name", "more", "--lora", PLAIN, "--lora", DORA)
    cards = {m["id"]: m for m in json.load(s.get("/v1/models"))["data"]}
    assert {k: m["parent"] for k, m in cards.items()} == {"base": None, "more": None, "plain": "base", "dora": "base"}
    assert json.load(s.get("/v1/models/plain")) == cards["plain"]
    assert s.get("/v1/models/other").status == 404
    assert {m["name"] for m in json.load(s.get("/api/tags"))["models"]} == set(cards)
    r = s.post("/v1/completions", {"model": "other", "prompt": "a"})
    assert r.status == 404 and json.load(r)["error"]["code"] == "model_not_found"
    ask(s, "plain", "It was", n=1)
    assert ask(s, "dora", "It was", n=1)["model"] == "dora"
    chat = s.post("/v1/chat/completions", {"model": "dora", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2})
    assert chat.status == 200 and json.load(chat)["model"] == "dora"
    vectors = [json.load(s.post("/v1/embeddings", {"model": m, "input": "a b c"}))["data"][0]["embedding"] for m in NAMES]
    assert vectors[0] != vectors[1] != vectors[2]
    m = text(s, "/metrics")
    assert 'llmq:lora_loaded{model_name="base",engine="0"} 2\n' in m
    assert 'llmq:lora_requests_total{model_name="base",engine="0",lora_name="plain"} 2\n' in m
    assert 'llmq:lora_requests_total{model_name="base",engine="0",lora_name="dora"} 3\n' in m
    assert 'llmq:lora_loaded{model_name="novels-1m",engine="0"} 0\n' in text(serve(tiny), "/metrics")


def test_adapters_come_and_go_while_the_server_runs(serve, tiny, tmp_path):
    folder = shutil.copytree(GOLDEN, tmp_path / "adapters")
    (tmp_path / "outside").mkdir()
    (folder / "link").symlink_to(tmp_path / "outside")
    s = serve(tiny, "--served-model-name", "base", "--lora", DORA, "--lora-dir", folder, "--api-key", "user",
              "--admin-key", "admin")
    s.key = {"Authorization": "Bearer admin"}

    def load(name, path, **more):
        r = s.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path), **more})
        return r.status, r.read().decode()

    def unload(name):
        r = s.post("/v1/unload_lora_adapter", {"lora_name": name})
        return r.status, r.read().decode()

    def names():
        return [m["id"] for m in json.load(s.get("/v1/models"))["data"]]

    want = answer(s, "dora", LONG)
    assert load("p", "plain") == (200, "Success: LoRA adapter 'p' added successfully.")
    assert load("g", folder / "plain.gguf")[0] == 200
    assert names() == ["base", "dora", "p", "g"]
    first = answer(s, "p", LONG)
    assert first == answer(s, "g", LONG) != answer(s, "base", LONG)
    status, body = load("p", "dora")
    assert status == 400 and "the adapter 'p' has already been loaded" in body
    assert load("p", "dora", load_inplace=True)[0] == 200
    assert answer(s, "p", LONG) == want and answer(s, "g", LONG) == first
    assert unload("p") == (200, "Success: LoRA adapter 'p' removed successfully.")
    assert unload("p")[0] == 404 and names() == ["base", "dora", "g"]
    assert s.post("/v1/completions", {"model": "p", "prompt": "a"}).status == 404
    for name, path, code, says in (("x", "../outside", 400, "expected a path in the folder of --lora-dir"),
                                   ("x", "link", 400, "expected a path in the folder of --lora-dir"),
                                   ("x", "/etc", 400, "expected a path in the folder of --lora-dir"),
                                   ("x", "none", 404, "none"),
                                   ("x", "expected.json", 400, "expected.json"),
                                   ("base", "plain", 400, "'base' is the model's own name"),
                                   ("", "plain", 400, "expected a name of 1..200 bytes"),
                                   ("x" * 201, "plain", 400, "expected a name of 1..200 bytes")):
        status, body = load(name, path)
        assert status == code and says in body, body
    for body in ({}, {"lora_name": "x"}, {"lora_name": 5, "lora_path": "plain"}):
        assert s.post("/v1/load_lora_adapter", body).status == 400
    assert names() == ["base", "dora", "g"]
    s.key = {"Authorization": "Bearer user"}
    assert load("y", "plain")[0] == unload("g")[0] == 403
    assert answer(s, "g", LONG) == first


def test_a_dry_run_counts_adapters(llmq, tiny):
    """By their files, beside what the cache and a step take."""
    args = ["--kv-cache-memory", "1M", "--lora", PLAIN, "--lora", f"g={GOLDEN / 'plain.gguf'}"]
    dry, without = (llmq.json("serve", tiny, *a, "--max-lora-rank", "8", "--dry-run") for a in (args, args[:2]))
    least = sum((GOLDEN / p).stat().st_size for p in ("plain/adapter_model.safetensors", "plain.gguf"))
    assert least <= dry["adapters_bytes"] < 1.1 * least and "adapters_bytes" not in without
    assert dry["held_bytes"] >= without["held_bytes"] + dry["adapters_bytes"]


def test_without_a_folder_nothing_is_loaded_later(serve, tiny):
    s = serve(tiny, "--lora", PLAIN)
    r = s.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "plain"})
    assert r.status == 400 and "--lora-dir" in r.read().decode()
    assert s.post("/v1/unload_lora_adapter", {"lora_name": "plain"}).status == 200
    r = serve(tiny).post("/v1/unload_lora_adapter", {"lora_name": "plain"})
    assert r.status == 400 and "started without --lora and --lora-dir" in r.read().decode()


def test_a_request_keeps_its_adapter_to_its_end(serve, tiny):
    s = serve(tiny, "--served-model-name", "base", "--lora", PLAIN)
    want = answer(s, "plain", "It was", n=400)
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(answer, s, "plain", "It was", n=400)
        until(lambda: 'lora_name="plain"} 2\n' in text(s, "/metrics"))
        assert s.post("/v1/unload_lora_adapter", {"lora_name": "plain"}).status == 200
        assert going.result() == want


@pytest.mark.parametrize("args,code,says", [
    (["--lora", "plain"], 2, "--lora: expected NAME=PATH, found 'plain'"),
    (["--lora", "=x"], 2, "--lora: expected NAME=PATH"),
    (["--lora", "x="], 2, "--lora: expected NAME=PATH"),
    (["--lora", PLAIN, "--lora", PLAIN.replace("plain", "dora", 1), "--lora", DORA], 2, "--lora: the name 'dora' is there twice"),
    (["--lora", PLAIN, "--served-model-name", "plain"], 2, "--lora: 'plain' is the model's own name"),
    (["--lora", PLAIN, "--max-lora-rank", "1"], 3, "expected a rank of at most 1 (--max-lora-rank), found 2"),
    (["--lora", "x=/none"], 3, "adapter /none: "),
    (["--lora", PLAIN, "--models", ROOT / "README.md"], 2, "--lora: expected one model, found several"),
])
def test_a_server_does_not_start_with_wrong_adapters(llmq, tiny, args, code, says):
    p = llmq("serve", *([] if "--models" in args else [tiny]), "--port", "0", *args, code=code)
    assert says in p.stderr


def test_a_batch_names_adapters(llmq, tiny, tmp_path):
    lines = [{"custom_id": f"{i}", "method": "POST", "url": "/v1/completions",
              "body": {"model": m, "prompt": "It was a dark night", "max_tokens": 12, "temperature": 0}}
             for i, m in enumerate(NAMES + ["other"])]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    llmq("batch", tiny, tmp_path / "in.jsonl", tmp_path / "out.jsonl", "--served-model-name", "base",
         "--lora", PLAIN, "--lora", DORA, code=None)
    answers = {r["custom_id"]: r["response"] for r in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())}
    texts = [answers[str(i)]["body"]["choices"][0]["text"] for i in range(3)]
    assert len(set(texts)) == 3 and answers["3"]["status_code"] == 404


def test_chat_speaks_to_the_adapter(llmq, tiny):
    asked = ["--max-tokens", "16", "--temperature", "0"]
    said = [llmq("chat", tiny, *args, *asked, input="It was a dark night\n").stdout for args in ([], ["--lora", PLAIN])]
    assert said[0] != said[1]
    p = llmq("chat", "http://127.0.0.1:1", "--lora", PLAIN, code=2)
    assert "--lora: expected a model, found a server" in p.stderr
