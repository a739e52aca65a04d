"""/v1/rerank and /score: a model that says yes or no by its template, against transformers' figures."""
import json
import math
import shutil
import struct

import pytest

from harness import ROOT, Server
from helpers import check_error

case = pytest.mark.case
GOLDEN = ROOT / "tests/golden/rerank"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
EXACT = ("--activations", "f32", "--kv-cache-dtype", "f32", "--rerank-labels", "y,n")


def checkpoint(folder, **config):
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / name, folder)
    shutil.copy(ROOT / "tests/golden/tokenizers/qwen2-nfc/tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def judge(llmq, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rerank")
    with Server(llmq, checkpoint(folder / "m"), *EXACT, "--rerank-template", "qwen3-reranker", log=folder / "log") as s:
        yield s


def scores(server, a, b, **more):
    answer = server.post_json("/score", {"text_1": a, "text_2": b, **more})
    assert answer["object"] == "list" and [d["index"] for d in answer["data"]] == list(range(len(answer["data"])))
    assert all(d["object"] == "score" for d in answer["data"])
    return [d["score"] for d in answer["data"]]


@case("C129")
def test_scores_are_those_of_transformers(judge):
    for p in EXPECTED["pairs"]:
        more = {"instruction": p["instruction"]} if p["instruction"] else {}
        answer = judge.post_json("/v1/score", {"queries": p["query"], "documents": p["document"], **more})
        assert abs(answer["data"][0]["score"] - p["score"]) < 1e-5
        assert answer["usage"] == {"prompt_tokens": len(p["ids"]), "total_tokens": len(p["ids"])}
        raw, = scores(judge, p["query"], p["document"], use_activation=False, **more)
        assert abs(raw - p["raw"]) < 1e-4


@case("C129")
def test_one_with_each_and_pairs(judge):
    each = scores(judge, "What is it?", ["a tree", "a house", "a tree"])
    assert each[0] == each[2] != each[1]
    assert scores(judge, ["What is it?", "Where?"], ["a tree", "a house"])[0] == each[0]
    message = check_error(judge.post("/score", {"text_1": ["a", "b"], "text_2": ["c"]}), 400, "text_2", "invalid_value")
    assert "2 texts" in message and "found 1" in message


@case("C129")
def test_documents_come_back_in_order(judge):
    documents = ["Beijing is a city.", {"text": "Gravity is a force."}, "The capital of China is Beijing."]
    body = {"query": "What is the capital of China?", "documents": documents}
    texts = [d if isinstance(d, str) else d["text"] for d in documents]
    want = scores(judge, body["query"], texts)
    answer = judge.post_json("/v1/rerank", body)
    assert answer["id"].startswith("rerank-") and answer["usage"]["prompt_tokens"] > 300
    results = answer["results"]
    assert [r["relevance_score"] for r in results] == sorted(want, reverse=True)
    assert all(r["relevance_score"] == want[r["index"]] and r["document"]["text"] == texts[r["index"]] for r in results)
    assert judge.post_json("/rerank", {**body, "top_n": 2})["results"] == results[:2]
    assert judge.post_json("/rerank", {**body, "top_n": 9})["results"] == results
    bare = [{k: r[k] for k in ("index", "relevance_score")} for r in results]
    assert judge.post_json("/rerank", {**body, "return_documents": False})["results"] == bare
    assert judge.post_json("/v2/rerank", body)["results"] == bare


@case("C129")
def test_a_document_is_cut_on_demand_and_else_refused(judge):
    long = "one two " * 600
    check_error(judge.post("/rerank", {"query": "q", "documents": ["a", long]}), 400, "documents", "context_length_exceeded")
    some = judge.post_json("/rerank", {"query": "q", "documents": [long], "max_tokens_per_doc": 5})
    ids = judge.post_json("/tokenize", {"prompt": long[:200]})["tokens"][:5]
    same = judge.post_json("/rerank", {"query": "q", "documents": [judge.post_json("/detokenize", {"tokens": ids})["prompt"]]})
    assert some["results"][0]["relevance_score"] == same["results"][0]["relevance_score"]


@case("C129")
def test_a_control_token_of_a_document_is_text(judge):
    a = judge.post_json("/score", {"text_1": "q", "text_2": "<|im_end|>"})["usage"]["prompt_tokens"]
    assert a > judge.post_json("/score", {"text_1": "q", "text_2": ""})["usage"]["prompt_tokens"] + 1


@case("C129")
def test_what_is_wrong_is_named(judge):
    good = {"query": "q", "documents": ["a"]}
    for body, param in (({"documents": ["a"]}, "query"), ({"query": "q"}, "documents"), ({**good, "documents": []}, "documents"),
                        ({**good, "documents": [1]}, "documents"), ({**good, "query": ["a", "b"]}, "query"),
                        ({**good, "documents": ["a"] * 1025}, "documents"), ({**good, "top_n": -1}, "top_n"),
                        ({**good, "truncate_prompt_tokens": 10}, "truncate_prompt_tokens"),
                        ({**good, "raw_scores": True}, "raw_scores"), ({**good, "max_chunks_per_doc": 4}, "max_chunks_per_doc"), ({**good, "model": "x"}, "model")):
        check_error(judge.post("/v1/rerank", body), 404 if param == "model" else 400, param)
    check_error(judge.post("/score", {"text_1": "a", "queries": "b", "documents": "c"}), 400, "queries")


@case("C129")
def test_a_model_without_a_template_says_so(server):
    for path, body in (("/v1/rerank", {"query": "q", "documents": ["a"]}), ("/score", {"text_1": "a", "text_2": "b"})):
        assert "--rerank-template" in check_error(server.post(path, body), 400, None, "unsupported_value")
    assert "rerank" not in json.loads(server.get("/v1/models").read())["data"][0]["capabilities"]


ROLES = ("{% for m in messages if m.role == 'system' %}<|im_start|>system\n{{ m.content }}<|im_end|>\n{% endfor %}"
         "{% for m in messages if m.role == 'query' %}Q: {{ m.content }}\n{% endfor %}"
         "{% for m in messages if m.role == 'document' %}D: {{ m.content }}\n{% endfor %}A: ")
MARKS = "Q: {query}\nD: {document}\nA: "


@pytest.mark.parametrize("where", ["roles", "named", "marks", "gguf"])
@case("C129")
def test_the_prompt_is_the_models_own(llmq, tmp_path, where):
    """A chat template that knows the roles, one called rerank, a file with marks, a GGUF file's template of that name: the same
    prompt, the same score."""
    chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    config = {"roles": {"chat_template": ROLES}, "marks": {"chat_template": chatml},
              "named": {"chat_template": [{"name": "default", "template": chatml}, {"name": "rerank", "template": ROLES}]},
              "gguf": {"chat_template": [{"name": "default", "template": chatml}, {"name": "rerank", "template": MARKS}]}}
    (tmp_path / "marks.txt").write_text(MARKS)
    more = ("--rerank-template", tmp_path / "marks.txt") if where == "marks" else ()
    model = checkpoint(tmp_path / "m", **config[where])
    if where == "gguf":
        llmq("convert", model, "-o", tmp_path / "m.gguf", "--to", "gguf", "--dtype", "f32")
        assert b"tokenizer.chat_template.rerank" in (model := tmp_path / "m.gguf").read_bytes()
    with Server(llmq, model, *EXACT, *more, log=tmp_path / "log") as s:
        assert "rerank" in json.loads(s.get("/v1/models").read())["data"][0]["capabilities"]
        score, = scores(s, "What?", "That.")
        odds = []
        for id in EXPECTED["labels"]:
            a = s.post_json("/v1/completions", {"prompt": "Q: What?\nD: That.\nA: ", "max_tokens": 1, "logprobs": 0,
                                                "allowed_token_ids": [id]})
            odds.append(a["choices"][0]["logprobs"]["token_logprobs"][0])
        assert math.isclose(score, 1 / (1 + math.exp(odds[1] - odds[0])), rel_tol=1e-5)


def test_a_chat_template_that_shows_any_role_is_none(llmq, tmp_path):
    chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    with Server(llmq, checkpoint(tmp_path / "m", chat_template=chatml), log=tmp_path / "log") as s:
        check_error(s.post("/score", {"text_1": "a", "text_2": "b"}), 400, None, "unsupported_value")


def test_wrong_labels_are_said_at_the_start(llmq, tmp_path):
    model = checkpoint(tmp_path / "m")
    for labels, what in (("y", "two words"), ("y,nein danke", "one token")):
        p = llmq("serve", model, "--port", 0, "--rerank-template", "qwen3-reranker", "--rerank-labels", labels, code=None)
        assert p.returncode and f"--rerank-labels: " in p.stderr and what in p.stderr
    p = llmq("serve", model, "--port", 0, "--rerank-template", tmp_path / "none", code=None)
    assert p.returncode and "--rerank-template" in p.stderr


def classifier(folder, labels=1, **config):
    """The judge with a score in the place of its words: yes less no, as the published conversions of Qwen3-Reranker have it."""
    checkpoint(folder, **config)
    raw = (folder / "model.safetensors").read_bytes()
    size, = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8:8 + size]), raw[8 + size:]
    embed = header["model.embed_tokens.weight"]
    start, hidden = embed["data_offsets"][0], embed["shape"][1]
    assert embed["dtype"] == "BF16"
    yes, no = ([struct.unpack("<f", b"\0\0" + data[at:at + 2])[0] for at in range(start + 2 * i * hidden, start + 2 * (i + 1) * hidden, 2)]
               for i in EXPECTED["labels"])
    row = struct.pack(f"<{hidden}f", *(a - b for a, b in zip(yes, no)))
    header["score.weight"] = {"dtype": "F32", "shape": [labels, hidden], "data_offsets": [len(data), len(data) + labels * len(row)]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data + row * labels)
    model = json.loads((folder / "config.json").read_text())
    model |= {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {str(i): f"L{i}" for i in range(labels)}}
    (folder / "config.json").write_text(json.dumps(model))
    return folder


def test_a_models_own_score_is_the_judgement(llmq, tmp_path):
    chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    model = classifier(tmp_path / "m", chat_template=chatml)
    with Server(llmq, model, *EXACT[:4], "--rerank-template", "qwen3-reranker", log=tmp_path / "log") as s:
        for p in EXPECTED["pairs"]:
            more = {"instruction": p["instruction"]} if p["instruction"] else {}
            answer = s.post_json("/score", {"queries": p["query"], "documents": p["document"], **more})
            assert abs(answer["data"][0]["score"] - p["score"]) < 1e-5
            assert answer["usage"] == {"prompt_tokens": len(p["ids"]), "total_tokens": len(p["ids"])}
            raw, = scores(s, p["query"], p["document"], use_activation=False, **more)
            assert abs(raw - p["raw"]) < 1e-4
        answer = s.post_json("/rerank", {"query": "What is it?", "documents": ["a tree", "a house"]})
        assert len(answer["results"]) == 2
        vector = s.post_json("/v1/embeddings", {"input": "a tree"})["data"][0]["embedding"]
        assert math.isclose(sum(v * v for v in vector), 1, rel_tol=1e-5)
        for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
            assert "no output head" in check_error(s.post(path, {"max_tokens": 1, **body}), 400, None, "unsupported_value")
        assert json.loads(s.get("/v1/models").read())["data"][0]["capabilities"] == ["embeddings", "rerank"]


def test_texts_without_a_template_follow_each_other(llmq, tmp_path):
    with Server(llmq, classifier(tmp_path / "m"), *EXACT[:4], log=tmp_path / "log") as s:
        apart, = scores(s, "What is it?", " a tree")
        assert scores(s, "What is it?", " a house")[0] != apart
        check_error(s.post("/score", {"text_1": "a", "text_2": "b", "instruction": "c"}), 400, "text_2", "template_error")
        assert s.post_json("/score", {"text_1": "What is it?", "text_2": " a tree"})["usage"]["prompt_tokens"] > 3


def test_several_scores_are_no_judgement(llmq, tmp_path):
    with Server(llmq, classifier(tmp_path / "m", labels=2), log=tmp_path / "log") as s:
        message = check_error(s.post("/score", {"text_1": "a", "text_2": "b"}), 400, None, "unsupported_value")
        assert "2 scores" in message
    p = llmq("serve", tmp_path / "m", "--port", 0, "--rerank-labels", "y,n", code=None)
    assert p.returncode and "--rerank-labels: the model judges by a score" in p.stderr
