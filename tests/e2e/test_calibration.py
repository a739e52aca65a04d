"""quantize --calib: several files with weights, conversations, ids; what is recorded and said of them."""
import hashlib
import json
import pathlib
import shutil

import pytest

from shim import stopped

CHAT = ("{% if tools %}[{{ tools | length }} tools]{% endif %}{% for m in messages %}<{{ m.role }}>"
        "{{ m.content }}{{ eos_token if m.role == 'assistant' }}{% endfor %}")
TALK = [[("user", "Who is there?"), ("assistant", "It is I, the captain of the ship.")],
        [("user", "What is the time?"), ("assistant", "Half past nine."), ("user", "Thank you.")]]
BOS = [1]  # what the small model's tokenizer puts before a text


@pytest.fixture(scope="module")
def chatty(draft, tmp_path_factory):
    """The small model with a chat template that shows what it is given."""
    folder = tmp_path_factory.mktemp("model") / "chatty"
    shutil.copytree(draft, folder)
    path = folder / "tokenizer_config.json"
    path.chmod(0o644)
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": CHAT}))
    return folder


def quantize(llmq, model, out, calib, *more, samples=64, length=32):
    """The record of the calibration, and what was said."""
    p = llmq("quantize", model, "-o", out, "-m", "gptq", "--bits", "2", "--no-fold", "--calib", calib,
             "--calib-samples", samples, "--calib-len", length, *more)
    return llmq.json("inspect", out)["provenance"]["calibration"], p.stderr


def tokens(llmq, model, texts):
    p = llmq("tokenize", model, input="".join(json.dumps({"text": t}) + "\n" for t in texts))
    return [json.loads(line)["ids_plain"] for line in p.stdout.splitlines()]


def rendered(llmq, model, talks, tools=None):
    lines = [{"messages": [{"role": r, "content": c} for r, c in t], "tools": tools} for t in talks]
    p = llmq("template", model, input="".join(json.dumps(x) + "\n" for x in lines))
    return [json.loads(line)["rendered"] for line in p.stdout.splitlines()]


def write_ids(path, ids):
    path.write_text(" ".join(map(str, ids)) + "\n")
    return path


def begun(ids, first, length=32):
    """Ids of whole windows that begin with these."""
    n = length - len(first)
    return [i for at in range(0, len(ids) - n + 1, n) for i in first + ids[at:at + n]]


def english(text, n):
    return text.read_text()[:n]


def test_files_share_the_windows_by_weight(llmq, draft, text, tmp_path):
    a, b = tmp_path / "a.txt", tmp_path / "b.jsonl"
    a.write_text(english(text, 60000))
    b.write_text("".join(json.dumps({"text": english(text, 90000)[i:i + 300]}) + "\n" for i in range(60000, 90000, 300)))
    got, said = quantize(llmq, draft, tmp_path / "q", f"{a}:2,{b}", samples=96)
    assert [(f["name"], f["kind"], f["weight"], f["windows"], f["tokens"]) for f in got["files"]] == [
        ("a.txt", "text", 2, 64, 2048), ("b.jsonl", "jsonl", 1, 32, 1024)]
    assert got["samples"] == 96 and len({f["xxh3"] for f in got["files"]} | {got["xxh3"]}) == 3
    assert "calibration: a.txt (text, weight 2): 64 of" in said and str(tmp_path) not in json.dumps(got)
    assert "3072 tokens" in said, "little data is said aloud"
    # A file that has less than its share gives all; the other takes what is left.
    a.write_text(english(text, 600))
    got, _ = quantize(llmq, draft, tmp_path / "q", f"{a}:2,{b}:0.5", samples=48)
    few = got["files"][0]["windows"]
    assert 0 < few < 16 and [f["windows"] for f in got["files"]] == [few, 48 - few]
    # Shares beyond all numbers: a file that has given everything is asked for no more.
    got, said = quantize(llmq, draft, tmp_path / "q", f"{a}:1000000,{b}:0.000001", samples=48)
    assert [f["windows"] for f in got["files"]] == [few, 48 - few] and "of its text" not in said


def test_names_with_commas_and_colons_are_escaped(llmq, draft, text, tmp_path):
    odd = tmp_path / "a:1,b\\.txt"
    odd.write_text(english(text, 20000))
    plain = tmp_path / "plain.txt"
    plain.write_text(english(text, 20000))
    escaped = str(odd).replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
    one, _ = quantize(llmq, draft, tmp_path / "q", escaped)
    two, _ = quantize(llmq, draft, tmp_path / "q", plain)
    assert one["xxh3"] == two["xxh3"] and one["files"][0]["name"] == "a:1,b\\.txt"


def test_the_bytes_depend_on_the_files_name_and_contents_not_on_its_folder(llmq, draft, text, tmp_path):
    seen = []
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "t.txt").write_text(english(text, 30000))
        for threads in ("1", "3"):
            quantize(llmq, draft, tmp_path / "q", f"{tmp_path / folder / 't.txt'},builtin:3", "--threads", threads)
            seen.append(hashlib.sha256((tmp_path / "q").read_bytes()).digest())
    assert len(set(seen)) == 1


def test_documents_have_eos_between_them(llmq, draft, text, tmp_path):
    """What a file gives is what its ids give, spelled out."""
    texts = [english(text, 9000)[i:i + 900] for i in range(0, 9000, 900)]
    lines = tmp_path / "d.jsonl"
    lines.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts) + json.dumps({"ids": [5, 6, 7]}) + "\n"
                     + json.dumps([8, 9]) + "\n")
    eos = json.loads((draft / "generation_config.json").read_text())["eos_token_id"]
    ids = [i for t in tokens(llmq, draft, texts) for i in t + [eos]] + [5, 6, 7, 8, 9]
    a, _ = quantize(llmq, draft, tmp_path / "q", lines, samples=1000)
    b, _ = quantize(llmq, draft, tmp_path / "q", write_ids(tmp_path / "d.ids", ids), samples=1000)
    assert a["xxh3"] == b["xxh3"] and b["files"][0]["kind"] == "ids"


def test_conversations_go_through_the_models_template(llmq, chatty, tmp_path):
    tools = [{"type": "function", "function": {"name": "f", "description": "g", "parameters": {}}}]
    lines = [{"messages": [{"role": r, "content": c} for r, c in t]} for t in TALK * 12]
    lines[3]["tools"] = tools
    file = tmp_path / "c.jsonl"
    file.write_text("".join(json.dumps(x) + "\n" for x in lines))
    texts = rendered(llmq, chatty, TALK * 12)
    texts[3] = rendered(llmq, chatty, [TALK[1]], tools)[0]
    assert texts[3].startswith("[1 tools]<user>What")
    eos_text = json.loads((chatty / "tokenizer_config.json").read_text())["eos_token"]
    eos = json.loads((chatty / "generation_config.json").read_text())["eos_token_id"]
    ids = []
    for t, talk in zip(texts, TALK * 12):
        parts = tokens(llmq, chatty, t.split(eos_text))
        one = [i for p in parts for i in p + [eos]][:-1]
        ids += one + ([] if talk[-1][0] == "assistant" else [eos])  # its own is enough
    ids.pop()  # nothing follows the last
    a, _ = quantize(llmq, chatty, tmp_path / "q", file, samples=1000)
    b, _ = quantize(llmq, chatty, tmp_path / "q", write_ids(tmp_path / "c.ids", begun(ids, BOS)), samples=1000)
    assert a["xxh3"] == b["xxh3"]


@pytest.mark.parametrize("first", [BOS, [], [1, 5], [5, 6, 7, 8, 9]], ids=["BOS", "none", "two", "too many"])
def test_windows_begin_as_the_tokenizer_begins_a_text(llmq, draft, text, tmp_path, first):
    """So calibration sees what is served; ids are as their author has them."""
    model = tmp_path / "model"
    shutil.copytree(draft, model)
    path = model / "tokenizer.json"
    path.chmod(0o644)
    tok = json.loads(path.read_text())
    special = {str(i): {"id": str(i), "ids": [i], "tokens": [str(i)]} for i in first}
    tok["post_processor"]["special_tokens"] = special
    tok["post_processor"]["single"] = [{"SpecialToken": {"id": str(i), "type_id": 0}} for i in first] + [{"Sequence": {"id": "A", "type_id": 0}}]
    path.write_text(json.dumps(tok))
    file = tmp_path / "a.txt"
    file.write_text(english(text, 9000))
    ids = tokens(llmq, model, [english(text, 9000)])[0]
    begin = first if len(first) < 5 else []
    got, said = quantize(llmq, model, tmp_path / "q", file, samples=1000)
    plain, plainly = quantize(llmq, model, tmp_path / "q", write_ids(tmp_path / "a.ids", ids), samples=1000)
    same, _ = quantize(llmq, model, tmp_path / "q", write_ids(tmp_path / "b.ids", begun(ids, begin)), samples=1000)
    assert got["files"][0]["begin"] == begin and same["files"][0]["begin"] == plain["files"][0]["begin"] == []
    assert got["xxh3"] == same["xxh3"] and (got["xxh3"] == plain["xxh3"]) == (not begin)
    assert (" tokens from BOS on, " in said) == bool(begin) and "from BOS on" not in plainly


def test_the_built_in_data_has_conversations_where_the_model_knows_them(llmq, draft, chatty, tmp_path):
    got, _ = quantize(llmq, chatty, tmp_path / "q", "builtin")
    assert [(f["kind"], f["windows"]) for f in got["files"]] == [("builtin", 56), ("builtin-chat", 8)]
    for why, template in (("none", None), ("one that refuses", "{{ raise_exception('no') }}")):
        bare = tmp_path / why
        shutil.copytree(draft, bare)
        config = json.loads((draft / "tokenizer_config.json").read_text())
        config.pop("chat_template", None)
        (bare / "tokenizer_config.json").chmod(0o644)
        (bare / "tokenizer_config.json").write_text(json.dumps({**config, **({"chat_template": template} if template else {})}))
        got, _ = quantize(llmq, bare, tmp_path / "q", "builtin")
        assert sum(f["windows"] for f in got["files"]) == got["files"][0]["windows"] == 64, why


def test_windows_that_the_model_writes_itself_are_said_and_recorded(llmq, draft, text, tmp_path):
    a = tmp_path / "a.txt"
    a.write_text(english(text, 20000))
    args = ["-m", "auto", "--tune", "2", "--no-fold", "--calib", a, "--calib-samples", "8", "--calib-len", "32"]

    def files(name, *more):
        p = llmq("quantize", draft, "-o", tmp_path / name, *args, *more)
        return llmq.json("inspect", tmp_path / name)["provenance"]["calibration"]["files"], p.stderr

    got, said = files("q")
    assert [(f["kind"], f["windows"]) for f in got] == [("text", 8), ("self", 24)]
    assert "24 windows that the model wrote" in said
    again, _ = files("again", "--threads", "3")
    assert (tmp_path / "q").read_bytes() == (tmp_path / "again").read_bytes()
    got, said = files("none", "--self-samples", "0")
    assert [f["kind"] for f in got] == ["text"] and "the model wrote" not in said
    got, _ = files("five", "--self-samples", "5", "--seed", "1")
    assert got[1]["windows"] == 5 and got[1]["xxh3"] != again[1]["xxh3"]
    # A config that names tokens outside its vocabulary: they begin with another.
    other = shutil.copytree(draft, tmp_path / "other")
    config = json.loads((other / "config.json").read_text()) | {"bos_token_id": 50256, "eos_token_id": 50256}
    (other / "config.json").unlink()
    (other / "config.json").write_text(json.dumps(config))
    llmq("quantize", other, "-o", tmp_path / "o", *args)
    assert [f["kind"] for f in llmq.json("inspect", tmp_path / "o")["provenance"]["calibration"]["files"]] == ["text", "self"]
    # gptq without tuning learns nothing from them: none unless asked for.
    p = llmq("quantize", draft, "-o", tmp_path / "g", "-m", "gptq", *args[4:])
    assert "the model wrote" not in p.stderr
    p = llmq("quantize", draft, "-o", tmp_path / "x", "-m", "gptq", "--self-samples", "4", *args[4:], code=2)
    assert "--self-samples: only tuning learns from them" in p.stderr
    # No backward pass: none would be written, though recorded.
    griffin = pathlib.Path(__file__).parents[1] / "golden/arch/recurrent-gemma"
    p = llmq("quantize", griffin, "-o", tmp_path / "x", "--self-samples", "4", code=2)
    assert "no backward pass to be tuned by" in p.stderr
    ids = tmp_path / "n.ids"
    ids.write_text(" ".join(str(i % 64) for i in range(256)))
    p = llmq("quantize", griffin, "-o", tmp_path / "x", "-m", "gptq", "--tune", "2", "--calib", ids, "--calib-samples", "4",
             "--calib-len", "16")
    assert "--tune: no backward pass for layers of this kind: not tuned" in p.stderr


def test_the_models_own_text_is_written_once_and_only_where_it_is_needed(llmq, draft, text, tmp_path):
    a, out = tmp_path / "a.txt", tmp_path / "q"
    a.write_text(english(text, 20000))
    args = ["quantize", draft, "-m", "auto", "--tune", "20", "--no-fold", "--no-check", "--calib", a,
            "--calib-samples", "8", "--calib-len", "32"]
    llmq(*args, "-o", tmp_path / "whole")
    own = tmp_path / "q.resume" / "own.ids"
    with stopped(llmq, own.name, *args, "-o", out, "--log-level", "error"):
        pass
    left = own.read_bytes()
    assert len(left) == 16 + 24 * 32 * 4
    own.write_bytes(left[:-1] + bytes([left[-1] ^ 1]))  # what is not what was written is written again
    llmq(*args, "-o", out)
    assert out.read_bytes() == (tmp_path / "whole").read_bytes()
    # Neither a refusal nor a file that is there already waits for it.
    assert "own text" not in llmq.json(*args, "-o", out, "--resume")["phase_seconds"]
    refused = llmq(*args, "-o", tmp_path / "x", "--memory-limit", "1M", code=2).stderr
    assert "--memory-limit: expected at least" in refused and "the model wrote" not in refused


def test_windows_are_no_longer_than_the_model_unless_asked_for(llmq, draft, tmp_path):
    folder = tmp_path / "short"
    shutil.copytree(draft, folder)
    path = folder / "config.json"
    path.chmod(0o644)
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_position_embeddings": 64}))
    llmq("quantize", folder, "-o", tmp_path / "q.llmq", "-m", "gptq", "--calib-samples", "4", "--no-check")
    assert "windows of 64 tokens" in llmq("quantize", folder, "-o", tmp_path / "r.llmq", "-m", "gptq", "--calib-samples", "4").stderr
    llmq("imatrix", folder, "-o", tmp_path / "m.gguf", "--calib-samples", "4")
    r = llmq("quantize", folder, "-o", tmp_path / "s.llmq", "-m", "gptq", "--calib-len", "512", code=2)
    assert "--calib-len: expected at most the model's 64, found 512" in r.stderr
