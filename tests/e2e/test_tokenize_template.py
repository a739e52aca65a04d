"""`llmq tokenize` and `llmq template` against the recorded output of tokenizers and transformers."""
import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENIZERS = sorted((ROOT / "tests/golden/tokenizers").iterdir())
TEMPLATES = ROOT / "tests/golden/templates"


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def answers(llmq, *args, cases, **more):
    given = "".join(json.dumps(c) + "\n" for c in cases)
    return [json.loads(line) for line in llmq(*args, input=given, **more).stdout.split("\n") if line]


@pytest.mark.parametrize("folder", TOKENIZERS, ids=lambda p: p.name)
def test_every_kind_of_tokenizer_by_folder(llmq, folder):
    cases = lines(folder / "cases.jsonl")
    got = answers(llmq, "tokenize", folder, cases=[{"text": c["text"]} for c in cases])
    assert len(got) == len(cases)
    for want, have in zip(cases, got):
        for key in ("ids", "ids_plain", "decoded", "decoded_skip"):
            assert have[key] == want[key], (key, want["text"])
        assert len(have["deltas"]) == len(want["ids"])
        assert "".join(have["deltas"]) == want["decoded"]
    back = answers(llmq, "tokenize", folder, "--detokenize", cases=[{"ids": c["ids"]} for c in cases])
    assert [b["decoded"] for b in back] == [c["decoded"] for c in cases]


def test_only_the_fields_that_are_asked_for(llmq):
    folder = next(f for f in TOKENIZERS if f.name == "llama2-spm-bpe")
    c = lines(folder / "cases.jsonl")[-1]
    for fields in (["ids"], ["ids_plain"], ["decoded_skip"], ["ids", "decoded"], ["decoded_skip", "deltas"]):
        got, = answers(llmq, "tokenize", folder, "--fields", ",".join(fields), cases=[{"text": c["text"]}])
        assert sorted(got) == sorted(fields)
        for key in set(fields) & set(c):
            assert got[key] == c[key]
    assert "'id'" in llmq("tokenize", folder, "--fields", "ids,id", input="", code=2).stderr


def test_templates_render_and_refuse(llmq):
    by_template = {}
    for c in lines(TEMPLATES / "cases.jsonl"):
        by_template.setdefault(c["template"], []).append(c)
    keys = ("messages", "tools", "add_generation_prompt", "kwargs", "bos_token", "eos_token")
    for name, cases in by_template.items():
        got = answers(llmq, "template", "--file", TEMPLATES / f"{name}.jinja",
                      cases=[{k: c[k] for k in keys} for c in cases])
        for want, have in zip(cases, got):
            if "rendered" in want:
                assert have == {"rendered": want["rendered"]}
            else:
                assert have == {"error": want["error_message"]}


@pytest.mark.parametrize("line, word", [("{", "line 1"), ("[]", "object"), ('{"text": 1}', "text")])
def test_a_broken_line_ends_the_run_with_its_number(llmq, line, word):
    p = llmq("tokenize", TOKENIZERS[0], input=line + "\n", code=3)
    assert word in p.stderr and "line 1" in p.stderr


def test_wrong_ids_and_files_are_refused(llmq, tmp_path):
    p = llmq("tokenize", TOKENIZERS[0], "--detokenize", input='{"ids": [2147483647]}\n', code=3)
    assert "2147483647" in p.stderr
    llmq("tokenize", tmp_path, input="", code=3)
    llmq("template", input="", code=2)
    bad = tmp_path / "bad.jinja"
    bad.write_text("{% if %}")
    assert "bad.jinja" in llmq("template", "--file", bad, input="", code=3).stderr


def test_mistrals_tekken_json(llmq, tmp_path):
    folder = ROOT / "tests/golden/tekken"
    cases = lines(folder / "cases.jsonl")
    got = answers(llmq, "tokenize", folder, cases=[{"text": c["text"]} for c in cases])
    assert [g["ids"] for g in got] == [c["ids"] for c in cases] and len(cases) == 13
    assert [g["decoded_skip"] for g in got] == [c["text"] for c in cases]
    special, = answers(llmq, "tokenize", folder, "--fields", "ids_plain", cases=[{"text": "[INST]"}])
    assert special["ids_plain"] == [3]
    good = (folder / "tekken.json").read_text()
    for change, says in [(lambda j: j["config"].pop("pattern"), "config: pattern: expected"),
                         (lambda j: j.update(vocab=7), "vocab: expected an array"),
                         (lambda j: j.update(vocab=[{"rank": 0, "token_bytes": "?"}]), "token_bytes in base64"),
                         (lambda j: j.update(special_tokens=[{"rank": 5000, "token_str": "x"}]), "special_tokens: rank: expected"),
                         (lambda j: j["config"].update(default_vocab_size=10), "more ids than special tokens")]:
        j = json.loads(good)
        change(j)
        (tmp_path / "tekken.json").write_text(json.dumps(j))
        assert says in llmq("tokenize", tmp_path, input="", code=3).stderr
