"""/v1/classify: labels and their probabilities against transformers' sequence classifiers."""
import json
import struct

import pytest

from harness import ROOT, Server
from helpers import check_error

case = pytest.mark.case
GOLDEN = ROOT / "tests/golden/heads"
NAMES = sorted(p.name for p in GOLDEN.glob("class-*"))
EXACT = ("--activations", "f32", "--kv-cache-dtype", "f32")


def close(a, b):
    return len(a) == len(b) and all(abs(x - y) < 1e-5 * max(1, abs(y)) for x, y in zip(a, b))


@case("C129")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["folder", "llmq", "gguf", "back"])
def test_labels_are_those_of_a_classifier(llmq, tmp_path, name, form):
    model, rows = GOLDEN / name, json.loads((GOLDEN / name / "expected.json").read_text())
    if form != "folder":
        kind = form.replace("back", "gguf")
        model = tmp_path / f"m.{kind}"
        made = llmq("convert", GOLDEN / name, "-o", model, "--to", kind, code=None)
        if kind == "gguf" and name in ("class-deberta-v2", "class-distilbert"):
            assert made.returncode and "GGUF has no name for" in made.stderr
            return
        assert made.returncode == 0, made.stderr
    if form == "back":
        llmq("convert", model, "-o", tmp_path / "back", "--to", "safetensors")
        model = tmp_path / "back"
    with Server(llmq, model, *EXACT, log=tmp_path / "log") as s:
        answer = s.post_json("/v1/classify", {"input": [r["text"] for r in rows]})
        assert answer["object"] == "list" and answer["id"].startswith("classify-")
        assert answer["usage"]["prompt_tokens"] == sum(len(r["ids"]) for r in rows)
        for i, (got, r) in enumerate(zip(answer["data"], rows)):
            assert (got["index"], got["num_classes"], got["label"]) == (i, len(r["probs"]), r["label"])
            assert close(got["probs"], r["probs"])
        raw = s.post_json("/classify", {"input": rows[0]["ids"], "use_activation": False})["data"]
        assert len(raw) == 1 and close(raw[0]["probs"], rows[0]["scores"]) and raw[0]["label"] == rows[0]["label"]
        cut = s.post_json("/v1/classify", {"input": rows[3]["text"] + " x" * 99, "truncate_prompt_tokens": 5})
        assert cut["usage"]["prompt_tokens"] == 5
        check_error(s.post("/v1/classify", {"input": "x " * 200}), 400, "input", "context_length_exceeded")
        check_error(s.post("/v1/classify", {"model": "x"}), 404, "model")
        check_error(s.post("/v1/classify", {}), 400, "input", "missing_required_parameter")
        check_error(s.post("/v1/rerank", {"query": "a", "documents": ["b"]}), 400, None)


def test_a_decoder_classifies_by_its_last_token(llmq, tmp_path):
    b = (GOLDEN / "qwen3-labels/expected.safetensors").read_bytes()
    data = b[8 + struct.unpack("<Q", b[:8])[0]:]
    scores, ids = struct.unpack("<6f", data[:24]), struct.unpack("<32i", data[24:152])
    with Server(llmq, GOLDEN / "qwen3-labels", *EXACT, log=tmp_path / "log") as s:
        answer = s.post_json("/v1/classify", {"input": [ids[:16], ids[16:]], "use_activation": False})
        for k, got in enumerate(answer["data"]):
            want = scores[3 * k:3 * k + 3]
            assert got["label"] == f"LABEL_{want.index(max(want))}" and got["num_classes"] == 3
            assert all(abs(x - y) < 1e-4 * max(1, abs(y)) for x, y in zip(got["probs"], want))


def test_a_model_with_words_has_no_labels(server):
    check_error(server.post("/v1/classify", {"input": "a"}), 400, None)
