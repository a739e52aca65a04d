"""--rope-scaling: positions scaled at run time, as the same in a model's config."""
import json
import shutil

import pytest

from harness import ROOT, Server

TINY = ROOT / "models/novels-1m"
IDS = ",".join(str(5 + i % 900) for i in range(300))


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    """The model with a scaling in its config.json."""
    made = {}
    for kind, factor in [("yarn", 4), ("yarn", 2.5), ("linear", 3)]:
        d = tmp_path_factory.mktemp("scaled") / "m"
        shutil.copytree(TINY, d)
        config = json.loads((d / "config.json").read_text())
        size = config["max_position_embeddings"]
        config["rope_scaling"] = {"rope_type": kind, "factor": factor, "original_max_position_embeddings": size}
        config["max_position_embeddings"] = int(size * factor)
        (d / "config.json").write_text(json.dumps(config))
        made[f"{kind},{factor}"] = d
    return made


def logits(llmq, out, model, *args):
    llmq("logits", model, "--ids", IDS, "-o", out, *args)
    return out.read_bytes()


def test_same_bytes_as_in_the_config(llmq, scaled, tmp_path):
    plain = logits(llmq, tmp_path / "plain", TINY)
    for text, folder in scaled.items():
        there = logits(llmq, tmp_path / "there", folder)
        assert there != plain
        assert logits(llmq, tmp_path / "here", TINY, "--rope-scaling", text) == there
    # of a model that is scaled so, another factor of the context that it began with
    assert logits(llmq, tmp_path / "again", scaled["yarn,2.5"], "--rope-scaling", "yarn,4") == \
        logits(llmq, tmp_path / "there", scaled["yarn,4"])


def test_the_context_grows(llmq, tmp_path):
    with Server(llmq, TINY, "--rope-scaling", "yarn,2", log=tmp_path / "log") as s:
        card = json.loads(s.get("/v1/models").read())["data"][0]
        size = json.loads((TINY / "config.json").read_text())["max_position_embeddings"]
        assert card["max_model_len"] == 2 * size
        assert card["rope_scaling"] == {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": size}
        long = s.post_json("/v1/completions", {"prompt": [7] * (size + 50), "max_tokens": 2})
        assert long["usage"]["prompt_tokens"] == size + 50
    plan = llmq.json("serve", TINY, "--rope-scaling", "yarn,2", "--dry-run", "--json")
    assert plan["model_max_len"] == 2 * size


@pytest.mark.parametrize("text, code, said", [
    ("yarn", 2, "--rope-scaling: expected yarn,F or linear,F with F 1..1024, found 'yarn'"),
    ("yarn,0.5", 2, "found 'yarn,0.5'"), ("yarn,4x", 2, "found 'yarn,4x'"), ("ntk,2", 2, "found 'ntk,2'"),
    ("yarn,nan", 2, "found 'yarn,nan'")])
def test_wrong_words(llmq, text, code, said):
    r = llmq("run", TINY, "x", "--rope-scaling", text, code=code)
    assert said in r.stderr


def test_what_cannot_be_scaled(llmq, scaled):
    r = llmq("run", scaled["linear,3"], "x", "--rope-scaling", "yarn,4", code=3)
    assert "expected a model that is not scaled, found rope linear" in r.stderr


def test_keys_are_chosen_beyond_those_that_are_kept(llmq, tmp_path):
    doge, few = ROOT / "tests/golden/arch/doge", tmp_path / "few"
    shutil.copytree(doge, few)
    config = json.loads((few / "config.json").read_text())
    (few / "config.json").write_text(json.dumps(config | {"keep_window_size": 8}))
    out = ["-o", tmp_path / "x.st"]
    r = llmq("logits", doge, "--ids", "3,4,5", *out, "--rope-scaling", "yarn,2", code=3)
    assert "--rope-scaling: the model computes otherwise beyond its keep_window_size" in r.stderr
    llmq("logits", few, "--ids", "3,4,5,6,7,8,9,10", *out)
    r = llmq("logits", few, "--ids", "3,4,5,6,7,8,9,10,11", *out, code=3)
    assert "9 positions: expected at most keep_window_size, 8" in r.stderr
    assert llmq.json("serve", few, "--dry-run", "--json")["model_max_len"] == 8


def test_qwen_1_ends_where_it_was_trained(llmq, tmp_path):
    qwen, few = ROOT / "tests/golden/arch/qwen", tmp_path / "few"
    shutil.copytree(qwen, few)
    config = json.loads((few / "config.json").read_text()) | {"seq_length": 8}
    out = ["-o", tmp_path / "x.st"]
    (few / "config.json").write_text(json.dumps(config))
    r = llmq("logits", few, "--ids", "3,4,5,6,7,8,9,10,11", *out, code=3)
    assert "9 positions: expected at most seq_length, 8" in r.stderr
    (few / "config.json").write_text(json.dumps(config | {"use_dynamic_ntk": False, "use_logn_attn": False}))
    llmq("logits", few, "--ids", "3,4,5,6,7,8,9,10,11", *out)
