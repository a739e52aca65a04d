"""/v1/files and /v1/batches, through OpenAI's client: C130."""
import json
import resource
import signal

import httpx
import openai
import pytest

from harness import Server, until
from helpers import SECOND, TINY, USER, check_error, http

case = pytest.mark.case
ENDPOINT = "/v1/completions"


def line(id, prompt="One day", url=ENDPOINT, **body):
    return json.dumps({"custom_id": id, "method": "POST", "url": url,
                       "body": {"prompt": prompt, "max_tokens": 4, "temperature": 0, **body}})


@pytest.fixture(scope="module")
def keeper(llmq, tmp_path_factory):
    with Server(llmq, TINY, "--file-store", "1M", "--max-num-seqs", 4, "--api-key", USER, "--api-key", SECOND,
                key=USER, log=tmp_path_factory.mktemp("keeper") / "log") as s:
        yield s


def client_of(server, key=USER):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)


@pytest.fixture
def api(keeper):
    """With an empty store."""
    with client_of(keeper) as c:
        for f in c.files.list():
            c.files.delete(f.id)
        yield c


def upload(api, lines, **more):
    return api.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch", **more)


def begin(api, lines, **more):
    return api.batches.create(input_file_id=upload(api, lines).id, endpoint=ENDPOINT, completion_window="24h", **more)


def ended(api, batch):
    return until(lambda: (b := api.batches.retrieve(batch.id)).status in
                 ("completed", "failed", "expired", "cancelled") and b)


def texts(api, id):
    return [json.loads(x) for x in api.files.content(id).text.splitlines()]


@case("C130")
def test_a_file_comes_back(api):
    f = upload(api, ["a", "b\r\n--x"])
    assert (f.filename, f.purpose, f.status, f.bytes, f.object) == ("in.jsonl", "batch", "processed", 8, "file")
    assert api.files.retrieve(f.id) == f and api.files.content(f.id).content == b"a\nb\r\n--x"
    g = upload(api, [], expires_after={"anchor": "created_at", "seconds": 3600})
    assert g.bytes == 0 and g.expires_at == g.created_at + 3600
    assert [x.id for x in api.files.list()] == [g.id, f.id]
    assert [x.id for x in api.files.list(after=g.id)] == [f.id]
    page = api.files.list(limit=1)
    assert [x.id for x in page.data] == [g.id] and page.has_more
    assert [x.id for x in api.files.list(purpose="batch_output")] == []
    assert api.files.delete(f.id).deleted
    with pytest.raises(openai.NotFoundError):
        api.files.content(f.id)


@case("C130")
def test_a_batch_is_answered_in_order(api, keeper):
    lines = [line(f"r{i}", f"Day {i}") for i in range(9)]
    lines[3], lines[5] = line("bad", temperature=9), line("none", model="nobody")
    batch = begin(api, lines, metadata={"a": "b"})
    assert batch.status == "validating" and batch.metadata == {"a": "b"} and batch.object == "batch"
    b = ended(api, batch)
    assert b.status == "completed" and b.errors is None
    assert (b.request_counts.total, b.request_counts.completed, b.request_counts.failed) == (9, 7, 2)
    assert b.created_at <= b.in_progress_at <= b.finalizing_at <= b.completed_at < b.expires_at
    out, err = texts(api, b.output_file_id), texts(api, b.error_file_id)
    assert [a["custom_id"] for a in out] == [f"r{i}" for i in range(9) if i not in (3, 5)]
    assert [(a["custom_id"], a["response"]["status_code"]) for a in err] == [("bad", 400), ("none", 404)]
    assert len({a["id"] for a in out + err}) == 9 and all(a["error"] is None for a in out + err)
    assert err[0]["response"]["body"]["error"]["param"] == "temperature"
    alone = keeper.post_json(ENDPOINT, json.loads(lines[1])["body"])
    assert out[1]["response"]["body"]["choices"] == alone["choices"]
    f = api.files.retrieve(b.output_file_id)
    assert f.purpose == "batch_output" and f.filename == f"{b.id}_output.jsonl"
    assert api.batches.list(limit=1).data[0].id == b.id


@case("C130")
def test_what_is_wrong_with_a_line_fails_the_batch(api):
    b = ended(api, begin(api, [line("a"), "{", line("a"), line("c", url="/v1/embeddings"), "", '{"custom_id": "d"}']))
    assert b.status == "failed" and b.output_file_id is None and b.request_counts.completed == 0
    errors = [(e.code, e.line) for e in b.errors.data]
    assert errors == [("invalid_line", 2), ("invalid_line", 4), ("invalid_line", 5), ("duplicate_custom_id", 3)]
    b = ended(api, begin(api, [" ", ""]))
    assert b.status == "failed" and b.errors.data[0].code == "empty_file"


@case("C130")
def test_a_cancelled_batch_keeps_its_answers(api):
    slow = [line(f"r{i}", max_tokens=300, ignore_eos=True) for i in range(500)]
    first, second = begin(api, slow), begin(api, [line("x")])
    until(lambda: api.batches.retrieve(first.id).request_counts.completed > 1)
    assert api.batches.cancel(second.id).status == "cancelled"
    assert api.batches.cancel(first.id).status == "cancelling"
    b = ended(api, first)
    n = b.request_counts.completed
    assert b.status == "cancelled" and 1 < n < 500 and len(texts(api, b.output_file_id)) == n
    assert b.cancelling_at <= b.cancelled_at
    with pytest.raises(openai.ConflictError):
        api.batches.cancel(ended(api, begin(api, [line("x")])).id)


@case("C130")
def test_a_full_store_takes_no_more(api):
    with pytest.raises(openai.APIStatusError) as e:
        upload(api, ["x" * (1 << 20)])
    assert e.value.status_code == 413 and e.value.code == "file_store_full"
    f = upload(api, ["x" * 950_000])
    b = ended(api, begin(api, [line(f"r{i}", logprobs=20, max_tokens=60) for i in range(40)]))
    assert b.status == "failed" and b.errors.data[0].code == "file_store_full"
    api.files.delete(f.id)
    assert ended(api, begin(api, [line("a")])).status == "completed"


@case("C130")
def test_another_key_sees_nothing_of_it(api, keeper):
    f = upload(api, [line("a")])
    b = ended(api, begin(api, [line("a")]))
    with client_of(keeper, SECOND) as other:
        assert not list(other.files.list()) and not list(other.batches.list())
        for ask in (lambda: other.files.content(f.id), lambda: other.batches.retrieve(b.id), lambda: other.files.delete(f.id),
                    lambda: other.batches.create(input_file_id=f.id, endpoint=ENDPOINT, completion_window="24h")):
            with pytest.raises(openai.NotFoundError):
                ask()


@case("C130")
def test_bad_requests(api, keeper, server):
    f = upload(api, ["x"])
    good = {"input_file_id": f.id, "endpoint": ENDPOINT, "completion_window": "24h"}
    for change, param, status in (({"input_file_id": "x"}, "input_file_id", 404), ({"endpoint": "/v1/models"}, "endpoint", 400),
                                  ({"completion_window": "1h"}, "completion_window", 400), ({"metadata": {"a": 1}}, "metadata", 400),
                                  ({"output_expires_after": {"seconds": 1}}, "output_expires_after", 400)):
        check_error(keeper.post("/v1/batches", {**good, **change}), status, param)
    for name in good:
        if name != "completion_window":
            check_error(keeper.post("/v1/batches", {k: v for k, v in good.items() if k != name}), 400, name,
                        "missing_required_parameter")
    for path in ("/v1/files?limit=0", "/v1/batches?limit=x"):
        check_error(keeper.get(path), 400, "limit")
    check_error(keeper.post("/v1/batches/x/cancel", {}), 404, "batch_id")
    assert keeper.post("/v1/batches/x", {}).status == 404
    assert httpx.post(keeper.url + "/v1/batches/x/cancel", headers=keeper.key).status_code == 404  # without a type
    url = keeper.url + "/v1/files"
    for more, param in (({"files": {"file": ("a", b"x")}}, "purpose"), ({"data": {"purpose": "batch"}, "files": {"other": b"x"}}, "other"),
                        ({"data": {"purpose": "assistants"}, "files": {"file": b"x"}}, "purpose"),
                        ({"data": {"purpose": "batch", "expires_after[seconds]": "9"}, "files": {"file": b"x"}}, "expires_after")):
        r = httpx.post(url, headers=keeper.key, **more)
        assert r.status_code == 400 and r.json()["error"]["param"] == param
    cut = {**keeper.key, "Content-Type": "multipart/form-data; boundary=x"}
    assert httpx.post(url, headers=cut, content=b"--x\r\n").json()["error"]["code"] == "invalid_form"
    assert httpx.post(url, headers=keeper.key, json={}).status_code == 415
    page = {**keeper.key, "Origin": "https://bad.example"}
    assert httpx.post(url, headers=page, data={"purpose": "batch"}, files={"file": b"x"}).status_code == 403
    for r in (server.get("/v1/files"), server.post("/v1/batches", good), http("POST", server.url + "/v1/files", files={"file": b"x"})):
        assert getattr(r, "status", None) == 404 or r.status_code == 404


def test_a_batch_that_runs_does_not_hold_the_server_up(llmq, tmp_path):
    with Server(llmq, TINY, "--file-store", "1M", "--shutdown-timeout", 0, log=tmp_path / "log") as s:
        with client_of(s) as c:
            b = begin(c, [line(f"r{i}", max_tokens=900, ignore_eos=True) for i in range(200)])
            until(lambda: c.batches.retrieve(b.id).status == "in_progress")
        assert s.stop() == 0


def stored(llmq, folder, log, *more):
    return Server(llmq, TINY, "--file-store", "1M", "--file-store-dir", folder, "--max-num-seqs", 4, "--api-key", USER,
                  "--api-key", SECOND, "--shutdown-timeout", 0, *more, key=USER, log=log)


@case("C130")
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_folder_survives_a_restart(llmq, tmp_path, end):
    """Files come back, for their key alone; a batch goes on after the last answer that was written."""
    folder = tmp_path / "store"
    lines = [line(f"r{i}", f"Day {i}", max_tokens=60, ignore_eos=True) for i in range(60)]
    lines[2] = line("bad", temperature=9)
    with stored(llmq, folder, tmp_path / "a.log") as s, client_of(s) as api:
        done = ended(api, begin(api, [line("a")], metadata={"a": "b"}))
        f, g = upload(api, ["x"], expires_after={"anchor": "created_at", "seconds": 3600}), upload(api, [])
        api.files.delete(upload(api, ["gone"]).id)
        batch, waits = begin(api, lines), begin(api, [line("later")])
        before = until(lambda: (b := api.batches.retrieve(batch.id)).request_counts.completed > 4 and b)
        listed = [x.id for x in api.files.list()]
        assert s.stop(end) == (0 if end == signal.SIGTERM else -signal.SIGKILL)
    parts = [folder / f"{batch.id}.{what}.part" for what in ("output", "error")]
    kept = parts[0].read_text().splitlines()
    assert len(kept) >= before.request_counts.completed and len(kept) < 59 and "bad" in parts[1].read_text()
    with parts[0].open("a") as half:  # as a power cut leaves it
        half.write(kept[0][:40])
    assert {p.stat().st_mode & 0o77 for p in folder.iterdir()} == {0}  # what clients send is for nobody else
    (folder / "file-notes").write_text("mine")
    with stored(llmq, folder, tmp_path / "b.log") as s, client_of(s) as api:
        assert llmq("serve", TINY, "--file-store", "1M", "--file-store-dir", folder, "--port", 0, code=None).returncode
        assert [x.id for x in api.files.list()][-len(listed):] == listed
        assert api.files.retrieve(f.id) == f and api.files.content(f.id).content == b"x" and api.files.content(g.id).content == b""
        assert api.batches.retrieve(done.id) == done and len(texts(api, done.output_file_id)) == 1
        b = ended(api, batch)
        assert (b.status, b.request_counts.total, b.request_counts.completed, b.request_counts.failed) == ("completed", 60, 59, 1)
        out = texts(api, b.output_file_id)
        assert [a["custom_id"] for a in out] == [f"r{i}" for i in range(60) if i != 2]
        assert [json.dumps(a) for a in out[:len(kept)]] == [json.dumps(json.loads(x)) for x in kept]
        assert [a["custom_id"] for a in texts(api, b.error_file_id)] == ["bad"]
        alone = s.post_json(ENDPOINT, json.loads(lines[50])["body"])
        assert out[49]["response"]["body"]["choices"] == alone["choices"]
        assert ended(api, waits).status == "completed"
        with client_of(s, SECOND) as other:
            assert not list(other.files.list()) and not list(other.batches.list())
        for x in api.files.list():
            api.files.delete(x.id)
    left = sorted(p.name for p in folder.iterdir())
    assert left == sorted([f"{b.id}.json" for b in (done, batch, waits)] + ["file-notes"])


@case("C130")
def test_a_folder_that_cannot_be_one(llmq, tmp_path):
    (tmp_path / "file").write_text("")
    for dir, what in ((tmp_path / "file", "expected a folder"), (tmp_path / "no/where", "No such file")):
        r = llmq("serve", TINY, "--file-store", "1M", "--file-store-dir", dir, "--port", 0, code=None)
        assert r.returncode and f"--file-store-dir: {dir}: {what}" in r.stderr
    assert "--file-store SIZE" in llmq("serve", TINY, "--file-store-dir", tmp_path, code=2).stderr


def test_a_full_disk_is_not_called_a_full_store(llmq, tmp_path):
    with stored(llmq, tmp_path / "s", tmp_path / "a.log") as s, client_of(s) as api:
        f = upload(api, [line(f"r{i}") for i in range(60)])
        resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, (8192, 8192))
        b = ended(api, api.batches.create(input_file_id=f.id, endpoint=ENDPOINT, completion_window="24h"))
        assert b.status == "failed" and "disk" in b.errors.data[0].message
        assert api.files.retrieve(f.id) == f


def test_a_disk_that_fills_up_takes_no_answer_that_was_given(llmq, tmp_path):
    with stored(llmq, tmp_path / "s", tmp_path / "a.log") as s, client_of(s) as api:
        batch = begin(api, [line(f"r{i}", max_tokens=60, ignore_eos=True) for i in range(60)])
        before = until(lambda: (b := api.batches.retrieve(batch.id)).request_counts.completed > 4 and b)
        resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, (64, 64))  # not even what is known of a file
        b = ended(api, batch)
        assert b.status == "failed" and "disk" in b.errors.data[0].message
        assert len(texts(api, b.output_file_id)) >= before.request_counts.completed


@case("C130")
def test_a_folder_is_bounded_and_an_input_may_go(llmq, tmp_path):
    with stored(llmq, tmp_path / "s", tmp_path / "a.log") as s, client_of(s) as api:
        with pytest.raises(openai.APIStatusError) as e:
            upload(api, ["x" * (1 << 20)])
        assert e.value.status_code == 413
        f = upload(api, ["x" * 950_000])
        b = ended(api, begin(api, [line(f"r{i}", logprobs=20, max_tokens=60) for i in range(40)]))
        assert b.status == "failed" and b.errors.data[0].code == "file_store_full"
        api.files.delete(f.id)
        batch = begin(api, [line(f"r{i}", max_tokens=300, ignore_eos=True) for i in range(500)])
        until(lambda: api.batches.retrieve(batch.id).status == "in_progress")
        api.files.delete(batch.input_file_id)
    with stored(llmq, tmp_path / "s", tmp_path / "b.log") as s, client_of(s) as api:
        b = ended(api, batch)
        assert b.status == "failed" and b.errors.data[0].code == "file_not_found"
        assert api.batches.retrieve(batch.id).id == batch.id
