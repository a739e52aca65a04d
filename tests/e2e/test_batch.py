"""llmq batch: files of requests in, files of answers out, in OpenAI's batch format."""
import errno
import fcntl
import json
import os
import resource
import shutil
import signal

import pytest

from harness import Server
from shim import STOP_AFTER, WRITE, Fault, stopped


def line(custom_id, url="/v1/completions", method="POST", **body):
    return json.dumps({"custom_id": custom_id, "method": method, "url": url, "body": body})


def completions(n, **more):
    return [line(f"r{i}", prompt=f"Tale {i}:", max_tokens=3 + i % 9, seed=i, temperature=i % 2, **more)
            for i in range(n)]


def write(path, lines):
    path.write_text("".join(x + "\n" for x in lines))
    return path


def read(path):
    return [json.loads(x) for x in path.read_text().splitlines()]


def choices(answer):
    assert answer["error"] is None and answer["response"]["status_code"] == 200, answer
    return answer["response"]["body"]["choices"]


def test_answers_are_the_servers(llmq, draft, tmp_path):
    """Completions, chats and embeddings, in the order of the requests and with the server's bytes."""
    bodies = [("/v1/completions", {"prompt": "Once", "max_tokens": 9, "logprobs": 2, "n": 2, "seed": 5}),
              ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Who?"}],
                                        "max_tokens": 7, "seed": 2**60 + 1}),
              ("/v1/embeddings", {"input": ["a", "bc"]}),
              ("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 40, "temperature": 0})]
    write(tmp_path / "in", [line(f"q{i}", url, **b) for i, (url, b) in enumerate(bodies)])
    doc = llmq.json("batch", draft, tmp_path / "in", tmp_path / "out")
    assert doc["requests"] == doc["answered"] == 4 and doc["refused"] == doc["invalid"] == 0
    answers = read(tmp_path / "out")
    assert [a["custom_id"] for a in answers] == ["q0", "q1", "q2", "q3"]
    assert [a["id"] for a in answers] == [f"batch_req_{i + 1}" for i in range(4)]
    with Server(llmq, draft, log=tmp_path / "log") as s:
        s.wait_ready()
        for (url, body), a in zip(bodies, answers):
            want, got = s.post_json(url, body), a["response"]["body"]
            for w in (want, got):
                w.pop("id", None), w.pop("created", None)
            assert got == want, url
    assert sorted(os.listdir(tmp_path)) == ["in", "log", "out"]


def test_every_line_has_an_answer_and_errors_stay_on_theirs(llmq, draft, tmp_path):
    cases = [
        ("no JSON", "{nope", None, "invalid_line"),
        ("no object", "[1]", None, "expected an object"),
        ("no custom_id", json.dumps({"method": "POST", "url": "/v1/completions", "body": {}}), None,
         "custom_id"),
        ("another method", line("get", method="GET"), None, "method: expected \"POST\""),
        ("no such route", line("where", "/v1/nowhere", prompt="a"), None, "no such route"),
        ("no body", json.dumps({"custom_id": "b", "method": "POST", "url": "/v1/completions"}), None,
         "body: expected an object"),
        ("a wrong parameter", line("hot", prompt="a", temperature=9), 400, "temperature"),
        ("a stream", line("stream", prompt="a", stream=True), 400, "stream"),
        ("another model", line("other", prompt="a", model="gpt-9"), 404, "gpt-9"),
        ("an empty body", line("empty"), 400, "prompt"),
        ("a good one", line("good", prompt="a", max_tokens=2, model="teacher"), 200, "choices"),
    ]
    text = "\n\n".join(c[1] for c in cases)  # empty lines do not count; no line feed at the end
    (tmp_path / "in").write_text(text)
    doc = llmq.json("batch", draft, tmp_path / "in", tmp_path / "out", "--served-model-name", "teacher",
                    "--logprobs", 1)
    assert (doc["answered"], doc["refused"], doc["invalid"]) == (1, 4, 6)
    answers = read(tmp_path / "out")
    assert len(answers) == len(cases)
    for (why, _, status, says), a in zip(cases, answers):
        assert says in json.dumps(a).replace('\\"', '"'), why
        assert a["response"] is None if status is None else a["response"]["status_code"] == status, why
        assert (a["error"] is None) == (status is not None), why


def test_a_custom_id_stands_for_one_line(llmq, draft, tmp_path):
    """OpenAI refuses a batch whose ids are not unique; here the first line of an id keeps it."""
    lines = [line(i, prompt="It was", max_tokens=k + 1, temperature=0, ignore_eos=True)
             for k, i in enumerate(["a", "b", "a", "c", "b", "a", ""])]
    lines[0] = line("a", method="GET")  # an answer of its own, if only an error
    write(tmp_path / "in", lines)
    doc = llmq.json("batch", draft, tmp_path / "in", tmp_path / "whole")
    assert (doc["answered"], doc["invalid"]) == (3, 4)
    whole = read(tmp_path / "whole")
    assert [a["error"] and a["error"]["code"] for a in whole] == [
        "invalid_line", None, "duplicate_custom_id", None, "duplicate_custom_id", "duplicate_custom_id", None]
    assert [a["custom_id"] for a in whole] == ["a", "b", "a", "c", "b", "a", ""]
    assert 'found "b" of line 2' in whole[4]["error"]["message"] and whole[4]["response"] is None
    for i in (1, 2):  # the same by shards, though another has the first
        llmq("batch", draft, tmp_path / "in", tmp_path / f"part{i}", "--shard", f"{i}/2")
    parts = [a for pair in zip(read(tmp_path / "part1"), read(tmp_path / "part2")) for a in pair]
    assert [a["error"] and a["error"]["code"] for a in parts] == [a["error"] and a["error"]["code"] for a in whole[:6]]


def test_a_teachers_outputs(llmq, draft, tmp_path):
    """--logprobs: ids and alternatives of every token, unless the request says otherwise."""
    chat = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 5, "temperature": 0}
    write(tmp_path / "in", [line("text", prompt="It was", max_tokens=6, temperature=0),
                            line("chat", "/v1/chat/completions", **chat),
                            line("own", prompt="It was", max_tokens=6, temperature=0, logprobs=2,
                                 return_token_ids=False)])
    llmq("batch", draft, tmp_path / "in", tmp_path / "out", "--logprobs", 20)
    text, talk, own = (choices(a)[0] for a in read(tmp_path / "out"))
    assert len(text["token_ids"]) == len(text["logprobs"]["tokens"]) == 6
    assert all(len(t) >= 20 for t in text["logprobs"]["top_logprobs"])
    assert all(len(t["top_logprobs"]) == 20 for t in talk["logprobs"]["content"])
    assert len(talk["token_ids"]) == len(talk["logprobs"]["content"])
    assert "token_ids" not in own and all(len(t) <= 3 for t in own["logprobs"]["top_logprobs"])
    for values in text["logprobs"]["token_logprobs"], own["logprobs"]["token_logprobs"]:
        assert all(v <= 0 for v in values)
    assert text["logprobs"]["token_logprobs"] == own["logprobs"]["token_logprobs"]


def test_shards_make_up_the_whole(llmq, draft, tmp_path):
    write(tmp_path / "in", completions(11))
    llmq("batch", draft, tmp_path / "in", tmp_path / "all")
    whole = {a["custom_id"]: choices(a) for a in read(tmp_path / "all")}
    assert list(whole) == [f"r{i}" for i in range(11)]
    parts = {}
    for i in 1, 2, 3:
        doc = llmq.json("batch", draft, tmp_path / "in", tmp_path / f"part{i}", "--shard", f"{i}/3",
                        "--batching", "static", "--max-num-seqs", 2, "--threads", 1)
        assert doc["requests"] == len(range(i - 1, 11, 3))
        parts |= {a["custom_id"]: choices(a) for a in read(tmp_path / f"part{i}")}
    assert parts == whole


def test_an_interrupted_run_goes_on(llmq, draft, tmp_path):
    lines = completions(60, ignore_eos=True)
    write(tmp_path / "in", lines)
    llmq("batch", draft, tmp_path / "in", tmp_path / "whole")
    args = ["batch", draft, tmp_path / "in", tmp_path / "out", "--max-num-seqs", 1, "--threads", 1]
    work = tmp_path / "out.resume"
    done = 0
    for at in range(9, 60, 3):  # what is said on the way is written too, and counts
        with stopped(llmq, Fault(WRITE, STOP_AFTER, at), *args) as p:
            done = work.read_bytes().count(b"\n") if work.exists() else 0
            if done < 3:
                continue
            p.send_signal(signal.SIGTERM)
            p.send_signal(signal.SIGCONT)
            assert p.wait() == 143
        break
    done = work.read_bytes().count(b"\n")
    assert 3 <= done < 60 and not (tmp_path / "out").exists()
    with open(work, "a") as f:
        f.write('{"id":"batch_req_torn')  # a kill in the middle of a write
    doc = llmq.json(*args)
    assert doc["resumed"] == done and doc["answered"] == 60 - done
    assert [(a["custom_id"], choices(a)) for a in read(tmp_path / "out")] == \
        [(a["custom_id"], choices(a)) for a in read(tmp_path / "whole")]
    assert sorted(os.listdir(tmp_path)) == ["in", "out", "whole"]


def test_work_of_another_run_is_not_gone_on_with(llmq, draft, tmp_path):
    write(tmp_path / "in", completions(4))
    llmq("batch", draft, tmp_path / "in", tmp_path / "out")
    first = (tmp_path / "out").read_text().splitlines(keepends=True)[0].replace("r0", "old")
    (tmp_path / "out.resume").write_text(first)
    (tmp_path / "out.resume.json").write_text('{"requests":"%s"}\n' % ("0" * 32))
    p = llmq("batch", draft, tmp_path / "in", tmp_path / "out")
    assert "unfinished work of another run; it is started over" in p.stderr
    assert [a["custom_id"] for a in read(tmp_path / "out")] == ["r0", "r1", "r2", "r3"]


def test_options_that_change_answers_make_another_run(llmq, draft, tmp_path):
    """What was answered under one context length or name is not mixed with answers of another."""
    write(tmp_path / "in", completions(4))
    args = ["batch", draft, tmp_path / "in", tmp_path / "out"]

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, 1 << 10))

    for more in (["--max-model-len", 64], ["--served-model-name", "x"], ["--kv-cache-dtype", "int8"],
                 ["--activations", "f32"]):
        p = llmq(*args, code=1, preexec_fn=small_files)
        assert f"out.resume: {os.strerror(errno.EFBIG)}" in p.stderr
        assert (tmp_path / "out.resume").read_bytes().count(b"\n") > 0
        p = llmq(*args, *more)
        assert "unfinished work of another run; it is started over" in p.stderr, more
    llmq(*args, code=1, preexec_fn=small_files)
    assert llmq.json(*args)["resumed"] > 0


def test_one_run_at_a_time_on_one_output(llmq, draft, tmp_path):
    write(tmp_path / "in", completions(4))
    with open(tmp_path / "out.resume", "w") as f:  # as another run holds it
        fcntl.flock(f, fcntl.LOCK_EX)
        p = llmq("batch", draft, tmp_path / "in", tmp_path / "out", code=1)
        assert "another llmq batch is writing it" in p.stderr and not (tmp_path / "out").exists()
    assert llmq.json("batch", draft, tmp_path / "in", tmp_path / "out")["answered"] == 4


def test_what_is_read_is_never_written_and_only_files_are(llmq, draft, tmp_path):
    requests = completions(2)
    for name in ("in", "out.resume", "o.resume.json"):
        write(tmp_path / name, requests)
    (tmp_path / "link").symlink_to("in")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    shutil.copy(draft / "config.json", tmp_path / "m.llmq")
    before = sorted(os.listdir(tmp_path))
    for model, source, out, says in (
            (draft, "in", "in", "is read and would be written"), (draft, "in", "link", "is read and would be"),
            (draft, "out.resume", "out", "out.resume is read"), (draft, "o.resume.json", "o", "o.resume.json is read"),
            (tmp_path / "m.llmq", "in", "m.llmq", "m.llmq is read"), (draft, "in", "folder", "expected a regular file"),
            (draft, "in", "folder/", "expected a file's name"), (draft, "in", "pipe", "expected a regular file"),
            (draft, "pipe", "new", "which is read twice"), (draft, "folder", "new", "which is read twice")):
        assert says in llmq("batch", model, tmp_path / source, f"{tmp_path}/{out}", code=2).stderr, (source, out)
        assert sorted(os.listdir(tmp_path)) == before, (source, out)
    assert "expected a name" in llmq("batch", draft, tmp_path / "in", "", code=2).stderr
    for name in ("in", "out.resume", "o.resume.json"):
        assert (tmp_path / name).read_text().splitlines() == requests, name


def test_somebodys_file_is_not_replaced_by_answers(llmq, draft, tmp_path):
    out = tmp_path / "out"
    out.write_text("years of work")
    write(tmp_path / "in", [])
    p = llmq("batch", draft, tmp_path / "in", out, code=2)
    assert "that of a batch's answers, found" in p.stderr and out.read_text() == "years of work"


def test_somebodys_files_are_no_unfinished_work(llmq, draft, tmp_path):
    """OUT.resume and OUT.resume.json are deleted at the end where they are batch's, and else stay."""
    write(tmp_path / "in", completions(2))
    answer = '{"id":"batch_req_1","custom_id":"r0"}\n'
    state = '{"requests":"%s"}\n' % ("0" * 32)
    for why, files, says in (
            ("settings of a name", {".json": '{"epoch": 7}\n'}, "OUT.resume.json: expected a new name or that of a batch's"),
            ("both", {"": "notes\n", ".json": "{}\n"}, "OUT.resume.json: expected"),
            ("notes", {"": "years of work\n"}, "which has no OUT.resume.json beside it"),
            ("short notes", {"": "x"}, "which has no OUT.resume.json beside it"),
            ("a copy of answers", {"": answer}, "which has no OUT.resume.json beside it"),
            ("notes beside a state", {"": "years of work\n", ".json": state}, "which holds no answers")):
        for end, t in files.items():
            (tmp_path / f"out.resume{end}").write_text(t)
        for more in ([], ["--no-resume"]):
            p = llmq("batch", draft, tmp_path / "in", tmp_path / "out", *more, code=2)
            assert says in p.stderr, (why, p.stderr)
        assert sorted(os.listdir(tmp_path)) == ["in", *(f"out.resume{e}" for e in sorted(files))], why
        for end, t in files.items():
            assert (tmp_path / f"out.resume{end}").read_text() == t, why
            (tmp_path / f"out.resume{end}").unlink()
    for name, t in (("out.resume", ""), ("out.resume.json", ""), ("out.resume.json", state)):  # as a kill leaves them
        (tmp_path / name).write_text(t)
        assert llmq.json("batch", draft, tmp_path / "in", tmp_path / "out")["answered"] == 2, (name, t)
        assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_an_empty_file_has_no_answers(llmq, draft, tmp_path):
    write(tmp_path / "in", [])
    assert llmq.json("batch", draft, tmp_path / "in", tmp_path / "out")["requests"] == 0
    assert (tmp_path / "out").read_text() == ""


@pytest.mark.parametrize("why, args, code, says", [
    ("shard zero", ["--shard", "0/4"], 2, "--shard: expected 1 to 4 of 4, found 0"),
    ("shard beyond", ["--shard", "5/4"], 2, "--shard: expected 1 to 4 of 4, found 5"),
    ("no shard", ["--shard", "2"], 2, "--shard: expected i/N"),
    ("something behind it", ["--shard", "1/2x"], 2, "--shard: expected i/N"),
    ("too many logprobs", ["--logprobs", 21], 2, "--logprobs: expected"),
    ("a wait without batches", ["--batch-wait-ms", 5], 2, "--batch-wait-ms goes with"),
])
def test_wrong_usage(llmq, draft, tmp_path, why, args, code, says):
    write(tmp_path / "in", completions(1))
    assert says in llmq("batch", draft, tmp_path / "in", tmp_path / "out", *args, code=code).stderr, why
    assert os.listdir(tmp_path) == ["in"], why


def test_files_that_are_not_there(llmq, draft, tmp_path):
    p = llmq("batch", draft, tmp_path / "nowhere", tmp_path / "out", code=3)
    assert "nowhere" in p.stderr and os.listdir(tmp_path) == []
    write(tmp_path / "in", completions(1))
    p = llmq("batch", draft, tmp_path / "in", tmp_path / "no" / "out", code=1)
    assert "no/out.resume" in p.stderr
