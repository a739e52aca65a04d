"""Several models in one server: loaded when they are asked for, in processes of their own."""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import tempfile

import httpx
import openai
import pytest

from harness import LIMIT, ROOT, Server, until
from helpers import ADMIN, MODEL, TINY, USER, complete, metric, stream
from routed import PROMPT, kids, listed, states, text
from routed import start  # noqa: F401 (a fixture)

@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two models, one that is none, and what is no model at all."""
    d = tmp_path_factory.mktemp("models")
    shutil.copytree(TINY, d / "tiny")
    shutil.copytree(MODEL, d / "big")
    (d / "broken.gguf").write_bytes(b"GGUF\x03\0\0\0nothing")
    (d / "notes.txt").write_text("no model\n")
    (d / "mmproj-x.gguf").write_bytes(b"GGUF")
    return d


def sockets(server):
    return pathlib.Path(re.search(r"listening on (/\S+)/\d+, ", server.output())[1])


@pytest.fixture(scope="module")
def alone(llmq, tmp_path_factory):
    """What the models answer by themselves."""
    said = {}
    for name, path in [("tiny", TINY), ("big", MODEL)]:
        with Server(llmq, path, log=tmp_path_factory.mktemp("alone") / name) as s:
            said[name] = text(s, path.name)
    return said


def test_models_are_loaded_when_asked_for(start, folder, alone):
    s = start(folder, "--max-loaded", 1)
    assert states(s) == {"big": "unloaded", "broken.gguf": "unloaded", "tiny": "unloaded"}
    assert not kids(s)
    for name in ["tiny", "big", "tiny"]:
        assert text(s, name) == alone[name]
        assert states(s)[name] == "loaded"
        until(lambda: len(kids(s)) == 1)
    cards = listed(s)
    assert cards["tiny"]["max_model_len"] and "chat" in cards["big"]["capabilities"]
    assert metric(s, "llmq:model_loads_total", model_name="tiny") == 2
    assert metric(s, "llmq:model_unloads_total", model_name="big") == 1
    assert metric(s, "llmq:model_requests_total", model_name="tiny") == 2


def test_both_stay_where_there_is_room(start, folder, alone):
    s = start(folder)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        names = ["tiny", "big"] * 8
        assert list(pool.map(lambda n: text(s, n), names)) == [alone[n] for n in names]
    assert metric(s, "llmq:model_loads_total") == 2
    assert len(kids(s)) == 2


def test_turns_of_models_that_do_not_fit_together(start, folder, alone):
    """Requests for two models at once, of which one is loaded: each is answered, none starves."""
    s = start(folder, "--max-loaded", 1)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        names = ["tiny", "big"] * 12
        assert list(pool.map(lambda n: text(s, n), names)) == [alone[n] for n in names]
    assert metric(s, "llmq:model_requests_total") == 24


def test_memory_bounds_what_is_loaded(start, folder):
    s = start(folder, "--models-memory", "2M")
    answer = s.post_json("/v1/completions", {"model": "tiny", "prompt": PROMPT}, status=500)
    assert answer["error"]["code"] == "model_load_failed"
    assert re.search(r"it takes [\d.]+ MiB of memory, more than the 2.0 MiB of --models-memory", answer["error"]["message"])


def test_the_forecast_is_made_again_for_another_file(llmq, start, tmp_path):
    """A model whose file is replaced takes what the new one does; adapters count."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m/x").symlink_to(TINY)
    lora = ["--lora", f"p={ROOT / 'tests/golden/lora/plain'}"]
    (tmp_path / "models.json").write_text(json.dumps({"models": [
        {"model": "m/x", "name": "x"}, {"model": str(TINY), "name": "y", "adapters": {"p": lora[1][2:]}}]}))
    s = start(f"--models={tmp_path}/models.json", "--kv-cache-memory", "1M")

    def held(path, *args):
        return llmq.json("serve", path, "--kv-cache-memory", "1M", "--dry-run", *args)["held_bytes"]

    def bytes_of(name):
        complete(s, "a", model=name, max_tokens=1)
        return metric(s, "llmq:model_memory_bytes", model_name=name)
    assert bytes_of("x") == held(TINY) and bytes_of("y") == held(TINY, *lora) > held(TINY)
    s.post("/v1/models/unload", {"model": "x"})
    until(lambda: states(s)["x"] == "unloaded")
    (tmp_path / "new").symlink_to(MODEL)
    (tmp_path / "new").rename(tmp_path / "m/x")
    assert bytes_of("x") == held(MODEL)


def test_the_machine_is_measured_once(start, folder, tmp_path):
    """For all models' servers, but one whose threads are others."""
    (tmp_path / "models.json").write_text(json.dumps({"models": [
        {"model": str(folder / "tiny")}, {"model": str(folder / "big")},
        {"model": str(TINY), "name": "other", "options": ["--threads", "1"]},
        {"model": str(TINY), "name": "told", "options": ["--machine-limits", "1.5,20,20,20"]}]}))
    s = start(f"--models={tmp_path}/models.json")

    def limits(name):
        complete(s, "a", model=name, max_tokens=1)
        return re.findall(r"^llmq:limit_\w+\{.*\} (.*)$", s.get(f"/metrics?model={name}").read().decode(), re.M)
    assert limits("tiny") == limits("big") != limits("other") and len(limits("big")) == 2
    assert limits("told") == ["1500000000", "20000000000"]


@pytest.mark.parametrize("text", ["", "1", "1,2,3", "1,2,3,4,", "1,2,3,-4", "1,2,3,nan", "1,,2,3", "1e10,2,3,4"])
def test_wrong_limits_of_the_machine(llmq, text):
    assert "--machine-limits: expected READ,F32,BF16,INT8" in llmq("serve", TINY, "--machine-limits", text, code=2).stderr


def test_a_forecast_that_does_not_end_is_ended(slow, tmp_path):
    s = slow("--test-size", tmp_path / "gate", "--load-timeout", 2)
    answer = s.post_json("/v1/completions", {"model": "one", "prompt": PROMPT}, status=500)
    assert "what memory it takes is not known after 1 s: its --dry-run was killed" in answer["error"]["message"]
    assert answer["error"]["message"].endswith(listed(s)["one"]["status"]["error"]) and not kids(s)
    (tmp_path / "gate").touch()
    until(lambda: s.post("/v1/completions", {"model": "one", "prompt": PROMPT, "max_tokens": 1}).status == 200)


def test_a_broken_model_hinders_no_other(start, folder, alone):
    s = start(folder)
    answer = s.post_json("/v1/completions", {"model": "broken.gguf", "prompt": PROMPT}, status=500)
    assert answer["error"]["code"] == "model_load_failed" and "broken.gguf" in answer["error"]["message"]
    status = listed(s)["broken.gguf"]["status"]
    assert status["failed"] and status["error"] in answer["error"]["message"]
    assert text(s, "tiny") == alone["tiny"]


def test_a_name_that_nobody_serves(start, folder):
    s = start(folder)
    for body, status, code in [({"model": "nobody"}, 404, "model_not_found"), ({"model": 3}, 400, None)]:
        answer = s.post_json("/v1/completions", {**body, "prompt": PROMPT}, status=status)
        assert answer["error"]["param"] == "model" and answer["error"]["code"] == code
    assert s.post("/v1/completions", b"{").status == 400
    assert s.get("/v1/models/nobody").status == 404
    assert s.get("/props?model=tiny").status == 503  # a GET loads nothing
    assert not kids(s)


def test_names_of_files(start, tmp_path):
    names = ["a b", "comma,", 'quote"', "-dash", "50%20", "#?&", "\u00fc", "line\nend", "x" * 254 + "1", "x" * 254 + "2"]
    for name in [*map(os.fsencode, names), b"no UTF-8: \xff"]:
        os.symlink(os.fsencode(TINY), os.fsencode(tmp_path) + b"/" + name)
    s = start(tmp_path)
    assert set(listed(s)) == set(names)  # a request cannot name the other
    for name in names:
        assert complete(s, PROMPT, model=name, max_tokens=2)["model"] == name
        s.post("/v1/models/unload", {"model": name})
    assert s.get("/metrics").read().decode()


def test_a_folder_and_a_file_of_one_name(llmq, start, tmp_path):
    """What is quantized beside its source."""
    (tmp_path / "x").symlink_to(TINY)
    llmq("quantize", TINY, "-o", tmp_path / "x.llmq", "--method", "rtn")
    s = start(tmp_path)
    assert [complete(s, PROMPT, model=name, max_tokens=2)["model"] for name in listed(s)] == ["x", "x.llmq"]


@pytest.mark.parametrize("n", [83, 84])
def test_the_folder_of_the_sockets(llmq, start, n):
    """Where TMPDIR is long; beyond what a socket's path holds it is said."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        tmp = pathlib.Path(short) / ("d" * (n - 1 - len(short)))
        tmp.mkdir()
        (tmp / "models").mkdir()
        (tmp / "models/tiny").symlink_to(TINY)
        if n == 83:
            s = start(tmp / "models", env={"TMPDIR": str(tmp)})
            assert complete(s, PROMPT, model="tiny", max_tokens=2)["choices"] and sockets(s).parent == tmp
            assert s.stop() == 0
        else:
            r = llmq("serve", tmp / "models", "--port", 0, code=None, env={**os.environ, "TMPDIR": str(tmp)})
            assert r.returncode and "TMPDIR: expected at most 83 bytes, found 84" in r.stderr, r.stderr
        assert os.listdir(tmp) == ["models"]


def test_streams_pass_piece_by_piece(start, folder, alone):
    s = start(folder)
    events = stream(s, {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0})
    assert len(events) > 3
    assert "".join(e["choices"][0]["text"] for e in events if e["choices"]) == alone["tiny"]
    answer = s.post_json("/v1/messages", {"model": "tiny", "max_tokens": 0, "messages": []}, status=400)
    assert answer["type"] == "error"  # in the shape of its API, as the model's server said it


def test_clients_of_other_apis(start, folder):
    s = start(folder)
    with openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0) as c:
        assert {m.id for m in c.models.list()} == {"tiny", "big", "broken.gguf"}
        said = c.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=4)
        assert said.model == "tiny" and said.usage.completion_tokens
    tags = json.loads(s.get("/api/tags").read())["models"]
    assert {m["name"] for m in tags} == {"tiny", "big", "broken.gguf"} and all(len(m["digest"]) >= 12 for m in tags)
    assert set(json.loads(s.get("/api/version").read())) == {"version", "llmq"}
    assert s.post_json("/api/pull", {"name": "tiny", "stream": False}) == {"status": "success"}
    assert "nobody" in s.post_json("/api/pull", {"model": "nobody"}, status=404)["error"]
    body = {"model": "big:latest", "messages": [{"role": "user", "content": "Hi"}], "stream": False,
            "options": {"num_predict": 4}}
    assert s.post_json("/api/chat", body)["done"]
    assert {m["name"] for m in json.loads(s.get("/api/ps").read())["models"]} == {"tiny", "big"}
    assert "vllm:prompt_tokens_total" in s.get("/metrics?model=tiny").read().decode()
    both = s.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert both.headers["content-type"].startswith("application/openmetrics-text") and both.read().endswith(b"# EOF\n")
    assert s.post("/v1/files", b"", headers={"Content-Type": "multipart/form-data"}).status == 404


def begin(response):
    """The lines after the first event; the response is closed when they are dropped."""
    lines = response.iter_lines()
    assert next(lines).startswith("data: ")
    return lines


@pytest.fixture
def slow(start, scripted_llmq, script_file, tmp_path):
    """One model whose script "[slow]" goes on for long, and another."""
    for name in ["one", "two"]:
        shutil.copytree(TINY, tmp_path / "m" / name)
    return lambda *args: start(tmp_path / "m", "--test-script", script_file, *args, llmq=scripted_llmq)


LONG = {"model": "one", "prompt": "[slow]", "ignore_eos": True, "max_tokens": 900, "stream": True}


def test_a_client_that_leaves_ends_its_request(slow):
    s = slow()
    with httpx.stream("POST", s.url + "/v1/completions", json=LONG, timeout=LIMIT) as r:
        lines = begin(r)
        assert metric(s, "llmq:model_requests_running", model_name="one") == 1
        lines.close()
    until(lambda: metric(s, "llmq:model_requests_running", model_name="one") == 0)
    running = "vllm:num_requests_running{"
    until(lambda: [line for line in s.get("/metrics?model=one").read().decode().splitlines()
                   if line.startswith(running)][0].endswith(" 0"))


def test_an_administrator_ends_a_request(slow):
    s = slow()
    with httpx.stream("POST", s.url + "/v1/completions", json=LONG, timeout=LIMIT,
                      headers={"X-Request-Id": "the-long-one"}) as r:
        lines = begin(r)
        assert httpx.delete(s.url + "/v1/requests/the-long-one", timeout=LIMIT).status_code == 200
        assert "aborted" in "".join(lines)
    assert httpx.delete(s.url + "/v1/requests/the-long-one", timeout=LIMIT).status_code == 404


def test_a_server_that_dies_is_started_again(slow):
    s = slow()
    with pytest.raises(httpx.RemoteProtocolError):
        with httpx.stream("POST", s.url + "/v1/completions", json=LONG, timeout=LIMIT) as r:
            lines = begin(r)
            os.kill(kids(s)[0], signal.SIGKILL)
            list(lines)
    until(lambda: states(s)["one"] == "unloaded")
    assert "one is lost: its server was ended by signal 9" in s.output()
    assert complete(s, PROMPT, model="one", max_tokens=2)["choices"]
    assert metric(s, "llmq:model_loads_total", model_name="one") == 2


def test_a_server_that_is_killed_while_it_loads_says_so(slow, tmp_path):
    """As where memory runs out."""
    s = slow("--test-load", tmp_path / "gate")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked = pool.submit(s.post, "/v1/completions", {"model": "one", "prompt": "a"})
        until(lambda: "one: listening" in s.output())  # before it the process that says its size is a kid
        os.kill(kids(s)[0], signal.SIGKILL)
        e = json.load(asked.result())["error"]
    assert e["code"] == "model_load_failed" and "its server was ended by signal 9" in e["message"]


def test_a_model_in_use_stays_until_it_is_free(slow):
    s = slow("--max-loaded", 1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with httpx.stream("POST", s.url + "/v1/completions", json=LONG, timeout=LIMIT) as r:
            lines = begin(r)
            other = pool.submit(complete, s, PROMPT, model="two", max_tokens=2)
            until(lambda: states(s)["one"] == "unloading")
            assert not other.done() and metric(s, "llmq:model_requests_running", model_name="one") == 1
            lines.close()
        assert other.result(LIMIT)["choices"]  # the client of "one" has left


def test_a_request_waits_with_a_bound(slow, tmp_path):
    s = slow("--test-load", tmp_path / "gate", "--load-timeout", 0.5, "--queue", 1)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        def ask(_):
            r = s.post("/v1/completions", {"model": "one", "prompt": PROMPT})
            return r.status, json.loads(r.read())["error"]["code"]
        assert set(pool.map(ask, range(2))) == {(503, "model_loading"), (503, "queue_full")}
    assert states(s)["one"] == "loading"
    (tmp_path / "gate").touch()
    until(lambda: states(s)["one"] == "loaded")


def test_a_server_that_hangs_is_killed(slow):
    """When it has to go for another, and when the router ends."""
    s = slow("--max-loaded", 1, "--shutdown-timeout", 0.1)
    complete(s, PROMPT, model="one", max_tokens=2)
    os.kill(kids(s)[0], signal.SIGSTOP)
    assert complete(s, PROMPT, model="two", max_tokens=2)["choices"]
    assert states(s) == {"one": "unloaded", "two": "loaded"}
    hung = kids(s)
    os.kill(hung[0], signal.SIGSTOP)
    assert s.stop() == 0
    assert not any(pathlib.Path(f"/proc/{k}/exe").exists() for k in hung)


def test_a_load_that_does_not_end_is_ended(slow, tmp_path):
    s = slow("--test-load", tmp_path / "gate", "--load-timeout", 0.5)
    assert s.post("/v1/models/load", {"model": "one"}).status == 503
    assert states(s)["one"] == "loading"
    assert s.post("/v1/models/unload", {"model": "one"}).status == 200
    until(lambda: states(s)["one"] == "unloaded" and not kids(s))
    assert "failed" not in listed(s)["one"]["status"]
    (tmp_path / "gate").touch()
    assert complete(s, PROMPT, model="one", max_tokens=2)["choices"]


def test_idle_models_are_unloaded(start, folder):
    s = start(folder, "--idle-unload", 0.2)
    text(s, "tiny")
    until(lambda: s.get("/metrics?model=tiny").status == 503)  # to look at it is no use of it
    until(lambda: states(s)["tiny"] == "unloaded" and not kids(s))


def test_keys_and_an_administrators_routes(start, folder):
    s = start(folder, "--api-key", USER, "--admin-key", ADMIN, key=USER)
    assert httpx.get(s.url + "/v1/models", timeout=LIMIT).status_code == 401
    assert s.post("/v1/models/load", {"model": "tiny"}).status == 403
    admin = {"Authorization": f"Bearer {ADMIN}"}
    assert s.post_json("/models/load", {"model": "tiny"}, headers=admin) == {"success": True}
    assert states(s)["tiny"] == "loaded"
    assert s.post_json("/models/unload", {"model": "tiny"}, headers=admin) == {"success": True}
    until(lambda: states(s)["tiny"] == "unloaded")
    assert s.post("/models/load", {"model": "broken.gguf"}, headers=admin).status == 500
    assert s.post("/models/load", {}, headers=admin).status == 400
    assert text(s, "tiny")


def test_the_end(slow):
    """What runs is answered, models' servers end, their folder goes; also where the router is killed."""
    for sig, code in [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)]:
        s = slow()
        complete(s, PROMPT, model="one", max_tokens=2)
        running, place = kids(s), sockets(s)
        assert running and place.is_dir()
        assert s.stop(sig) == code
        until(lambda: not place.exists() and not any(pathlib.Path(f"/proc/{k}/exe").exists() for k in running))


def test_the_folder_of_a_router_that_was_killed(start, folder, tmp_path):
    """Its keeper too: the next router removes it, and not that of one that lives."""
    tmp = tmp_path / "tmp"
    (tmp / "llmq-others").mkdir(parents=True)
    lives, dead = (start(folder, "--response-store", 4, env={"TMPDIR": str(tmp)}) for _ in range(2))
    for s in (lives, dead):
        s.post_json("/v1/responses", {"model": "tiny", "input": "a", "max_output_tokens": 2})
    place, running = sockets(dead), kids(dead)
    keeper = int(pathlib.Path(f"/proc/{dead.process.pid}/task/{dead.process.pid}/children").read_text())
    os.kill(keeper, signal.SIGSTOP)  # that it does not end it in good order
    dead.stop(signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not any(pathlib.Path(f"/proc/{k}/exe").exists() for k in [keeper, *running]))
    assert place.is_dir() and len(os.listdir(tmp)) == 3
    s = start(folder, env={"TMPDIR": str(tmp)})
    assert not place.exists() and sockets(lives).is_dir() and text(lives, "tiny")
    for s in (s, lives):
        assert s.stop() == 0
    assert os.listdir(tmp) == ["llmq-others"]


def test_the_file_of_models(start, folder, tmp_path):
    (tmp_path / "models.json").write_text(json.dumps({"models": [
        {"model": "here/tiny", "name": "small", "aliases": ["gpt-4o-mini", "org/small"], "preload": True,
         "options": ["--max-model-len", "128"], "idle_unload": 0},
        {"model": str(folder / "big"), "idle_unload": 0.2}]}))
    (tmp_path / "here").symlink_to(folder)
    s = start(f"--models={tmp_path}/models.json")
    until(lambda: states(s)["small"] == "loaded")
    assert metric(s, "llmq:model_requests_running") == 0  # nobody holds it
    cards = listed(s)
    assert list(cards) == ["small", "gpt-4o-mini", "org/small", "big"]
    assert cards["org/small"]["max_model_len"] == 128 and cards["gpt-4o-mini"]["root"] == "small"
    answer = complete(s, PROMPT, model="gpt-4o-mini", max_tokens=2)
    assert answer["model"] == "gpt-4o-mini"
    assert complete(s, PROMPT, max_tokens=2)["choices"]  # without a name: the one that was used last
    complete(s, PROMPT, model="big", max_tokens=2)
    until(lambda: states(s)["big"] == "unloaded")
    assert states(s)["small"] == "loaded"


def test_what_is_loaded_at_the_start_is_no_request(start, scripted_llmq, tmp_path):
    """It takes no place of the queue, and the end does not wait for it."""
    (tmp_path / "models.json").write_text(json.dumps({"models": [
        {"model": str(TINY), "name": name, "preload": True} for name in ["one", "two", "three"]]}))
    gate = tmp_path / "gate"
    args = [f"--models={tmp_path}/models.json", "--queue", 1, "--test-load", gate, "--shutdown-timeout", 2 * LIMIT]
    s = start(*args, llmq=scripted_llmq)
    until(lambda: set(states(s).values()) == {"loading"} and len(kids(s)) == 3)
    assert metric(s, "llmq:models_waiting") == 0
    assert s.stop() == 0
    gate.touch()
    s = start(*args, llmq=scripted_llmq)
    until(lambda: set(states(s).values()) == {"loaded"})


@pytest.mark.parametrize("models, said", [
    ("{", "models.json: JSON: expected a string at byte 1"),
    ({}, "models.json: models: expected an array of 1 to 4096 objects, found nothing"),
    ({"models": [{}]}, "models[0]: model: expected"),
    ({"models": [{"model": "nothing-here.llmq"}]}, "models[0]: model: expected a file, a folder or ORG/NAME on the hub, found 'nothing-here.llmq'"),
    ({"models": [{"model": ""}]}, "models[0]: model: expected a file, a folder or ORG/NAME on the hub, found ''"),
    ({"models": [{"model": "hf:"}]}, "models[0]: model: expected a file, a folder or ORG/NAME on the hub, found 'hf:'"),
    ({"models": [{"model": str(TINY), "colour": 1}]}, "models[0]: colour: no member of this name is known"),
    ({"models": [{"model": str(TINY), "name": "a"}, {"model": str(MODEL), "aliases": ["a"]}]},
     "models[1]: the name 'a' is another model's too"),
    ({"models": [{"model": str(TINY), "options": ["--max-model-len", "many"]}]}, "options of novels-1m: --max-model-len: expected"),
    ({"models": [{"model": str(TINY), "options": ["--port", "80"]}]}, "options of novels-1m: --port is the whole server's, not one model's"),
    ({"models": [{"model": str(TINY), "options": "--pin"}]}, "models[0]: options: expected an array"),
])
def test_wrong_files(llmq, tmp_path, models, said):
    file = tmp_path / "models.json"
    file.write_text(models if isinstance(models, str) else json.dumps(models))
    r = llmq("serve", "--models", file, "--port", 0, code=None)
    assert r.returncode in (2, 3) and said in r.stderr, r.stderr
    assert r.stderr.startswith("llmq: serve: ")


@pytest.mark.parametrize("args, said", [
    (["--models", "x.json", "demo"], "--models: expected no MODEL beside it, found"),
    (["FOLDER", "--served-model-name", "x"], "--served-model-name: expected one model, found several"),
    (["FOLDER", "--lora", "a=b"], "--lora: expected one model, found several: \"adapters\" in the list"),
    (["FOLDER", "--response-store-dir", "d"], "--response-store-dir: expected --response-store N beside it"),
    ([str(TINY), "--max-loaded", "2"], "--max-loaded: expected several models: --models, or a folder of them"),
])
def test_options_that_do_not_go_together(llmq, folder, args, said):
    r = llmq("serve", *[folder if a == "FOLDER" else a for a in args], code=None)
    assert r.returncode == 2 and said in r.stderr, r.stderr
