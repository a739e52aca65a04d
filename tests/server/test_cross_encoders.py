"""Encoders that judge pairs of texts: /score and /v1/rerank against sentence-transformers' CrossEncoder."""
import json
import shutil

import pytest

from harness import ROOT, Server
from helpers import check_error

case = pytest.mark.case
GOLDEN = ROOT / "tests/golden/heads"
NAMES = sorted(p.name for p in GOLDEN.glob("cross-*"))
WITHOUT_GGUF = [f"cross-{a}" for a in ("albert", "deberta-v2", "distilbert", "electra", "mpnet", "xlm-roberta-xl")]
EXACT = ("--activations", "f32", "--kv-cache-dtype", "f32")


def check_scores(server, name):
    pairs = json.loads((GOLDEN / name / "expected.json").read_text())
    a, b = [p["a"] for p in pairs], [p["b"] for p in pairs]
    answer = server.post_json("/score", {"text_1": a, "text_2": b})
    for got, p in zip(answer["data"], pairs):
        assert abs(got["score"] - p["score"]) < 1e-5 * max(1, abs(p["score"])), (name, p)
    assert answer["usage"]["prompt_tokens"] == sum(len(p["ids"]) for p in pairs)
    raw = server.post_json("/score", {"text_1": a, "text_2": b, "use_activation": False})
    for got, p in zip(raw["data"], pairs):
        assert abs(got["score"] - p["raw"]) < 1e-4 * max(1, abs(p["raw"])), (name, p)
    one = [p for p in pairs if p["a"] == pairs[0]["a"]]
    ranks = server.post_json("/v1/rerank", {"query": one[0]["a"], "documents": [p["b"] for p in one]})
    assert [r["relevance_score"] for r in ranks["results"]] == sorted((d["score"] for d in answer["data"][:len(one)]), reverse=True)


@case("C129")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["folder", "llmq", "gguf", "back"])
def test_scores_are_those_of_a_cross_encoder(llmq, tmp_path, name, form):
    model = GOLDEN / name
    if form == "llmq":
        model = tmp_path / "m.llmq"
        llmq("convert", GOLDEN / name, "-o", model, "--to", "llmq")
    if form in ("gguf", "back"):
        model = tmp_path / "m.gguf"
        made = llmq("convert", GOLDEN / name, "-o", model, "--to", "gguf", code=None)
        if name in WITHOUT_GGUF:
            assert made.returncode and "GGUF has no name for" in made.stderr
            return
        assert made.returncode == 0, made.stderr
    if form == "back":
        llmq("convert", model, "-o", tmp_path / "back", "--to", "safetensors")
        model = tmp_path / "back"
    with Server(llmq, model, *EXACT, log=tmp_path / "log") as s:
        check_scores(s, name)


@case("C129")
def test_a_pair_that_is_too_long_is_refused(llmq, tmp_path):
    with Server(llmq, GOLDEN / "cross-bert", *EXACT, log=tmp_path / "log") as s:
        body = {"query": "a b", "documents": ["c", "d " * 130]}
        check_error(s.post("/v1/rerank", body), 400, "documents", "context_length_exceeded")
        assert len(s.post_json("/v1/rerank", {**body, "max_tokens_per_doc": 9})["results"]) == 2


@case("C129")
@pytest.mark.parametrize("name", ["cross-bert", "cross-roberta", "cross-deberta-v2"])
def test_a_pair_is_cut_on_demand_the_longer_text_first(llmq, tmp_path, name):
    want = json.loads((GOLDEN / "cut.json").read_text())[name]
    with Server(llmq, GOLDEN / name, *EXACT, log=tmp_path / "log") as s:
        for r in want["rows"]:
            got = s.post_json("/score", {"text_1": r["a"], "text_2": r["b"], "truncate_prompt_tokens": r["most"], "use_activation": False})
            assert got["usage"]["prompt_tokens"] == len(r["ids"]), r
            assert abs(got["data"][0]["score"] - r["raw"]) < 1e-4 * max(1, abs(r["raw"])), r
        long = {"query": "a b", "documents": ["c", "d " * 400], "truncate_prompt_tokens": -1}
        assert s.post_json("/v1/rerank", long)["usage"]["prompt_tokens"] == want["short"] + want["context"]
        assert "special tokens" in check_error(s.post("/v1/rerank", {**long, "truncate_prompt_tokens": 2}), 400, "truncate_prompt_tokens")
        check_error(s.post("/v1/rerank", {**long, "truncate_prompt_tokens": 500}), 400, "documents", "context_length_exceeded")
        check_error(s.post("/v1/rerank", {**long, "documents": ["d " * 4000]}), 400, "documents", "context_length_exceeded")


@case("C129")
def test_a_tokenizer_without_pairs_is_refused_where_texts_have_types(llmq, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(GOLDEN / "cross-bert", folder)
    tok = json.loads((folder / "tokenizer.json").read_text())
    tok["post_processor"] = {"type": "TemplateProcessing", "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}},
                             "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}
    (folder / "tokenizer.json").write_text(json.dumps(tok))
    with Server(llmq, folder, *EXACT, log=tmp_path / "log") as s:
        message = check_error(s.post("/score", {"text_1": "a", "text_2": "b"}), 400, "text_2")
        assert "pair" in message
