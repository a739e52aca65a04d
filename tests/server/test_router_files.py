"""Files and batches of clients of a server of several models: its own, whatever models are loaded."""
import json
import os
import re
import signal

import openai
import pytest

from harness import ROOT, until
from helpers import MODEL, SECOND, TINY, USER, complete, metric
from routed import kids, listed, start, states  # noqa: F401 (start is a fixture)
from test_batches import begin, ended, line, texts, upload

URL = "/v1/completions"


@pytest.fixture
def models(tmp_path):
    rows = [{"model": str(TINY), "name": "tiny", "adapters": {"plain": str(ROOT / "tests/golden/lora/plain")}},
            {"model": str(MODEL), "name": "big"}]
    (tmp_path / "models.json").write_text(json.dumps({"models": rows}))
    return f"--models={tmp_path}/models.json"


def client(s, key="none"):
    return openai.OpenAI(base_url=s.url + "/v1", api_key=key, max_retries=0)


def test_a_batch_names_models(start, models):
    """Its lines go each to their model, in turns where one alone may be loaded; files are there with none."""
    s = start(models, "--file-store", "1M", "--max-loaded", 1, "--max-num-seqs", 8)
    with client(s) as api:
        f = upload(api, ["a"])
        assert api.files.content(f.id).text == "a" and not kids(s)
        names = ["tiny", "big", "plain", "tiny", "big"]
        lines = [line(f"r{i}", f"Day {i}", model=name) for i, name in enumerate(names)]
        lines += [line("none", model="nobody"), line("streams", model="tiny", stream=True), line("bad", temperature=9, model="big")]
        b = ended(api, begin(api, lines))
        assert (b.status, b.request_counts.completed, b.request_counts.failed) == ("completed", 5, 3)
        out, err = texts(api, b.output_file_id), texts(api, b.error_file_id)
        assert [(a["custom_id"], a["response"]["body"]["model"]) for a in out] == [(f"r{i}", n) for i, n in enumerate(names)]
        assert [(a["custom_id"], a["response"]["status_code"]) for a in err] == [("none", 404), ("streams", 400), ("bad", 400)]
        assert "a batch has whole answers only" in err[1]["response"]["body"]["error"]["message"]
        for i, name in enumerate(names):
            alone = complete(s, f"Day {i}", model=name, max_tokens=4, temperature=0)
            assert out[i]["response"]["body"]["choices"] == alone["choices"]
        assert api.batches.list().data[0].id == b.id
        until(lambda: metric(s, "llmq:model_requests_running") == 0)


def test_a_batch_of_messages_names_models(start, models):
    s = start(models, "--file-store", "1M", "--max-loaded", 1)
    path = "/v1/messages/batches"
    params = {"max_tokens": 4, "messages": [{"role": "user", "content": "a"}]}
    b = s.post_json(path, {"requests": [{"custom_id": n, "params": {**params, "model": n}} for n in ("tiny", "nobody", "plain")]})
    done = until(lambda: (x := json.loads(s.get(f"{path}/{b['id']}").read()))["processing_status"] == "ended" and x)
    said = [json.loads(x)["result"] for x in s.get(done["results_url"]).read().splitlines()]
    assert [r["type"] for r in said] == ["succeeded", "errored", "succeeded"]
    assert [said[i]["message"]["model"] for i in (0, 2)] == ["tiny", "plain"]
    assert said[1]["error"]["error"]["type"] == "not_found_error"


def test_a_store_in_a_folder(start, models, tmp_path):
    """It is there after a restart, for the key that made it, and a batch goes on."""
    args = [models, "--file-store", "1M", "--file-store-dir", tmp_path / "store", "--api-key", USER, "--api-key", SECOND,
            "--max-num-seqs", 4, "--shutdown-timeout", 0]
    lines = [line(f"r{i}", f"Day {i}", model=["tiny", "big"][i // 30], max_tokens=60, ignore_eos=True) for i in range(60)]
    s = start(*args, key=USER)
    with client(s, USER) as api:
        batch = begin(api, lines)
        until(lambda: api.batches.retrieve(batch.id).request_counts.completed > 4)
    assert s.stop() == 0
    s = start(*args, key=USER)
    with client(s, USER) as api, client(s, SECOND) as other:
        b = ended(api, batch)
        assert (b.status, b.request_counts.completed) == ("completed", 60)
        assert [a["custom_id"] for a in texts(api, b.output_file_id)] == [f"r{i}" for i in range(60)]
        assert not list(other.files.list()) and not list(other.batches.list())


def test_a_batch_does_not_hold_the_end_up(start, models):
    """Not where a model that never comes is waited for either."""
    s = start(models, "--file-store", "1M", "--shutdown-timeout", 0)
    with client(s) as api:
        b = begin(api, [line(f"r{i}", model="tiny", max_tokens=900, ignore_eos=True) for i in range(200)])
        until(lambda: api.batches.retrieve(b.id).request_counts.completed)
        assert api.batches.cancel(b.id).status == "cancelling"
        assert ended(api, b).status == "cancelled"
        begin(api, [line(f"r{i}", model="tiny", max_tokens=900, ignore_eos=True) for i in range(200)])
        until(lambda: metric(s, "llmq:model_requests_running"))
    assert s.stop() == 0


def test_the_end_while_a_batch_waits_for_its_model(start, models, scripted_llmq, tmp_path):
    s = start(models, "--file-store", "1M", "--shutdown-timeout", 0, "--test-load", tmp_path / "gate", llmq=scripted_llmq)
    with client(s) as api:
        begin(api, [line("a", model="tiny")])
        until(lambda: states(s)["tiny"] == "loading" and metric(s, "llmq:models_waiting"))
    assert s.stop() == 0


def test_a_batch_whose_model_cannot_be_loaded(start, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m/broken.gguf").write_bytes(b"GGUF\x03\0\0\0nothing")
    s = start(tmp_path / "m", "--file-store", "1M")
    with client(s) as api:
        b = ended(api, begin(api, [line("a", model="broken.gguf"), line("b")]))
        assert (b.status, b.request_counts.failed) == ("completed", 2)
        for a in texts(api, b.error_file_id):
            assert a["response"]["body"]["error"]["code"] == "model_load_failed"


def test_a_line_whose_server_dies(start, models, scripted_llmq, script_file):
    """It is an error, not sent again until the batch's time is over; the next one is answered."""
    s = start(models, "--file-store", "1M", "--max-num-seqs", 2, "--test-script", script_file, llmq=scripted_llmq)
    with client(s) as api:
        b = begin(api, [line("dies", "[slow]", model="tiny", max_tokens=900, ignore_eos=True), line("goes on", model="tiny")])
        until(lambda: re.search(r"^vllm:num_requests_running\{.*\} 1$", s.get("/metrics?model=tiny").read().decode(), re.M))
        os.kill(kids(s)[0], signal.SIGKILL)
        b = ended(api, b)
        assert (b.status, b.request_counts.completed, b.request_counts.failed) == ("completed", 1, 1)
        assert texts(api, b.error_file_id)[0]["response"]["body"]["error"]["code"] == "model_lost"


@pytest.mark.parametrize("in_folder", [False, True], ids=["temporary", "folder"])
def test_kept_responses(start, models, tmp_path, in_folder):
    """Of whatever model: there when it is unloaded, and a talk may go on with another."""
    where = ["--response-store-dir", tmp_path / "kept"] if in_folder else []
    args = [models, "--response-store", 8, "--max-loaded", 1, *where]
    s = start(*args)
    with client(s) as api:
        first = api.responses.create(model="tiny", input="It was", max_output_tokens=4)
        second = api.responses.create(model="big", input="a dark night", previous_response_id=first.id, max_output_tokens=4)
        assert states(s)["tiny"] == "unloaded"
        assert api.responses.retrieve(first.id) == first and second.previous_response_id == first.id
        assert [x.content[0].text for x in api.responses.input_items.list(first.id)] == ["It was"]
        third = api.responses.create(model="plain", input=[{"type": "item_reference", "id": second.output[0].id}],
                                     previous_response_id=first.id, max_output_tokens=4)
        assert third.model == "plain" and third.store
        whole = s.post_json("/v1/responses/input_tokens", {"model": "tiny", "input": [
            {"role": "user", "content": "It was"}, *(x.model_dump() for x in first.output + second.output)]})
        assert third.usage.input_tokens == whole["input_tokens"]
        api.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            api.responses.retrieve(first.id)
    assert s.stop() == 0
    s = start(*args)
    with client(s) as api:
        if in_folder:
            assert api.responses.retrieve(second.id) == second
        else:
            with pytest.raises(openai.NotFoundError):
                api.responses.retrieve(second.id)


def test_a_response_in_the_background(start, models, scripted_llmq, script_file):
    """Whatever model makes it: it is kept by all, and who cancels or forgets it ends it there."""
    s = start(models, "--response-store", 8, "--test-script", script_file, llmq=scripted_llmq)

    def running(n):
        until(lambda: re.search(rf"^vllm:num_requests_running\{{.*\}} {n}$", s.get("/metrics?model=tiny").read().decode(), re.M))
    with client(s) as api:
        ask = {"model": "tiny", "input": "[slow]", "background": True}
        first = api.responses.create(**{**ask, "input": "a"}, max_output_tokens=4)
        assert first.status == "queued"
        until(lambda: api.responses.retrieve(first.id).status in ("completed", "incomplete"))
        for end in (api.responses.cancel, api.responses.delete):
            one = api.responses.create(**ask, max_output_tokens=900)
            running(1)
            end(one.id)
            running(0)
        assert api.responses.cancel(first.id).status == api.responses.retrieve(first.id).status
        with api.responses.create(**ask, stream=True, temperature=0, max_output_tokens=60) as left:
            seen = [next(left) for _ in range(4)]
        with api.responses.retrieve(seen[0].response.id, stream=True, starting_after=3) as rest:
            seen += list(rest)
        assert [e.sequence_number for e in seen] == list(range(len(seen))) and seen[-1].type == "response.incomplete"
        assert "".join(e.delta for e in seen if e.type == "response.output_text.delta") == seen[-1].response.output_text


def test_without_a_store(start, models):
    s = start(models)
    assert json.load(s.get("/v1/files"))["error"]["code"] == "no_file_store"
    assert "--response-store" in json.load(s.get("/v1/responses/resp_1"))["error"]["message"]
    assert s.post("/v1/batches", {}).status == 404 and s.stop(signal.SIGINT) == 0
