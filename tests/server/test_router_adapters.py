"""Adapters of several models behind one address: by name, loaded and unloaded while it runs, after a swap too."""
import json
import re
import shutil

import openai
import pytest

from harness import ROOT, Server, until
from helpers import ADMIN, MODEL, TINY, USER, complete, http
from routed import kids, listed, states, text  # noqa: F401
from routed import start  # noqa: F401 (a fixture)

GOLDEN = ROOT / "tests/golden/lora"


@pytest.fixture(scope="module")
def alone(llmq, tmp_path_factory):
    """What the adapters' model answers by itself under each name."""
    with Server(llmq, TINY, "--served-model-name", "tiny", "--lora", f"plain={GOLDEN / 'plain'}", "--lora",
                f"dora={GOLDEN / 'dora'}", log=tmp_path_factory.mktemp("alone") / "log") as s:
        s.wait_ready()
        said = {name: text(s, name) for name in ["tiny", "plain", "dora"]}
    assert len(set(said.values())) == 3
    return said


@pytest.fixture
def several(start, tmp_path):
    """Two models, the first with adapters of the list's; and the folder that more are loaded from."""
    shutil.copytree(GOLDEN, tmp_path / "adapters")
    models = [{"model": str(TINY), "name": "tiny", "aliases": ["small"],
               "adapters": {"plain": "adapters/plain", "dora": str(GOLDEN / "dora")}},
              {"model": str(MODEL), "name": "big"}]
    (tmp_path / "models.json").write_text(json.dumps({"models": models}))
    return lambda *args, **more: start(f"--models={tmp_path}/models.json", "--max-loaded", 1, "--lora-dir",
                                       tmp_path / "adapters", *args, **more)


def load(s, name, path, **more):
    r = s.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path, **more})
    return r.status, r.read().decode()


def unload(s, name, **more):
    r = s.post("/v1/unload_lora_adapter", {"lora_name": name, **more})
    return r.status, r.read().decode()


def swap(s):
    """The other model in, the adapters' model out."""
    complete(s, "a", model="big", max_tokens=1)
    until(lambda: states(s)["tiny"] == "unloaded")


def test_an_adapter_of_the_list_is_a_model(several, alone):
    s = several()
    cards = listed(s)
    parents = {name: c["parent"] for name, c in cards.items()}
    assert parents == {"tiny": None, "small": None, "plain": "tiny", "dora": "tiny", "big": None}
    assert {c["status"]["value"] for c in cards.values()} == {"unloaded"}
    for name in ["plain", "tiny", "dora", "big", "dora", "plain"]:  # each loads its model where it is not
        said = complete(s, "The old house", model=name, max_tokens=12, temperature=0)
        assert said["model"] == name and said["choices"][0]["text"] == alone.get(name, said["choices"][0]["text"])
    cards = listed(s)
    assert cards["plain"]["max_model_len"] == cards["tiny"]["max_model_len"] and cards["plain"]["root"] == "tiny"
    one = json.load(s.get("/v1/models/plain"))
    assert one == cards["plain"] and one["status"]["value"] == "loaded"
    tags = {m["name"]: m["details"]["parent_model"] for m in json.load(s.get("/api/tags"))["models"]}
    assert tags == {name: p or "" for name, p in parents.items()}
    assert {m["name"] for m in json.load(s.get("/api/ps"))["models"]} == {"tiny", "small", "plain", "dora"}
    assert s.get("/props?model=plain").status == 200
    head = {"anthropic-version": "2023-06-01"}
    page = http("GET", s.url + "/v1/models", headers=head).json()
    assert [m["id"] for m in page["data"]] == list(cards) and {m["type"] for m in page["data"]} == {"model"}
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "tiny", list(cards)[-1])
    plain = http("GET", s.url + "/v1/models/plain", headers=head).json()
    assert plain in page["data"] and plain["max_input_tokens"] == one["max_model_len"]
    assert http("GET", s.url + "/v1/models/nope", headers=head).json()["type"] == "error"
    with openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0) as c:
        assert c.models.retrieve("dora").parent == "tiny"
        chat = c.chat.completions.create(model="dora", messages=[{"role": "user", "content": "a"}], max_tokens=2)
        assert chat.model == "dora"


def test_what_is_loaded_later_is_there_after_a_swap(several, alone):
    s = several()
    assert load(s, "p", "plain", model="tiny") == (200, "Success: LoRA adapter 'p' added successfully.")
    assert listed(s)["p"]["parent"] == "tiny"
    assert text(s, "p") == alone["plain"]
    assert load(s, "g", "plain.gguf")[0] == 200  # of the only model that is loaded
    swap(s)
    assert text(s, "p") == text(s, "g") == alone["plain"]
    assert load(s, "p", "dora", load_inplace=True)[0] == 200
    assert load(s, "dora", "plain", load_inplace=True)[0] == 200  # one of the list's
    assert unload(s, "g") == (200, "Success: LoRA adapter 'g' removed successfully.")
    assert unload(s, "plain")[0] == 200
    for _ in range(2):
        assert text(s, "p") == alone["dora"] and text(s, "dora") == alone["plain"]
        assert s.post("/v1/completions", {"model": "g", "prompt": "a"}).status == 404
        assert s.post("/v1/completions", {"model": "plain", "prompt": "a"}).status == 404
        assert set(listed(s)) == {"tiny", "small", "big", "p", "dora"}
        swap(s)
    assert unload(s, "p")[0] == 200 and not [k for k in states(s).values() if k == "loading"]  # loads nothing
    assert text(s, "tiny") == alone["tiny"] and s.post("/v1/completions", {"model": "p", "prompt": "a"}).status == 404
    assert load(s, "plain", "plain")[0] == 200 and text(s, "plain") == alone["plain"]


def test_bench_serve_asks_for_adapters(several, llmq):
    """By chance, the same for a seed; the model of --model alone is loaded."""
    s = several()
    args = ["bench", "serve", s.url, "--concurrency", 4, "--num-prompts", 24, "--warmups", 0, "--input-len", 8, "--output-len", 4]
    doc = llmq.json(*args, "--lora-modules", "plain,dora,small")
    assert doc["completed"] == 24 and doc["failed"] == 0 and doc["lora_modules"] == "plain,dora,small"
    figures = s.get("/metrics?model=tiny").read().decode()
    asked = {name: float(n) for name, n in re.findall(r'llmq:lora_requests_total{.*lora_name="(.*)"} (.*)', figures)}
    assert 0 < asked["plain"] < 24 and 0 < asked["dora"] < 24 and asked["plain"] + asked["dora"] < 24
    assert llmq.json(*args, "--model", "big")["model_id"] == "big" and states(s)["tiny"] == "unloaded"
    for text in ("", "a,", ",a", "a,,b"):
        assert "--lora-modules: expected NAME[,NAME...]" in llmq(*args, "--lora-modules", text, code=2).stderr


def test_one_whose_files_are_gone_after_a_swap(several, alone, tmp_path):
    s = several()
    assert load(s, "p", "plain", model="small")[0] == 200
    swap(s)
    (tmp_path / "adapters/plain").rename(tmp_path / "elsewhere")
    (tmp_path / "adapters/plain").symlink_to(tmp_path / "elsewhere")  # the list's is read, a later one must be in the folder
    assert text(s, "tiny") == alone["tiny"]
    assert "tiny: the adapter p is not there any more: " in s.output()
    assert s.post("/v1/completions", {"model": "p", "prompt": "a"}).status == 404
    assert "p" not in listed(s)


def test_what_is_refused(several):
    s = several("--api-key", USER, "--admin-key", ADMIN, key=USER)
    assert load(s, "p", "plain", model="tiny")[0] == 403
    s.key = {"Authorization": f"Bearer {ADMIN}"}
    status, said = load(s, "p", "plain")
    assert status == 400 and "model: expected the name of the model that the adapter is for, found nothing, and 0 models" in said
    assert not kids(s)
    for name, path, more, code, says in [
            ("p", "plain", {"model": "nobody"}, 404, "'nobody' is not served here"),
            ("big", "plain", {"model": "tiny"}, 400, "'big' is a model's own name"),
            ("plain", "plain", {"model": "big"}, 400, "the adapter 'plain' is another model's"),
            ("plain", "plain", {}, 400, "the adapter 'plain' has already been loaded"),
            ("", "plain", {"model": "tiny"}, 400, "expected a name of 1..200 bytes"),
            ("p", "../models.json", {"model": "tiny"}, 400, "expected a path in the folder of --lora-dir"),
            ("p", "none", {"model": "tiny"}, 404, "none"),
            ("p", "plain", {"model": "big"}, 400, "")]:
        status, said = load(s, name, path, **more)
        assert status == code and says in said, said
    for body in [{"lora_name": "p"}, {"lora_name": 5, "lora_path": "plain"}, {"lora_path": "plain"}]:
        assert s.post("/v1/load_lora_adapter", body).status == 400
    assert s.post("/v1/load_lora_adapter", b"{").status == s.post("/v1/unload_lora_adapter", b"").status == 400
    assert unload(s, "p")[0] == unload(s, "tiny")[0] == unload(s, "plain", model="big")[0] == 404
    assert set(listed(s)) == {"tiny", "small", "plain", "dora", "big"}
    assert load(s, "p", "plain", model="tiny")[0] == 200  # the name is free


def test_without_a_folder_of_adapters(start, tmp_path):
    (tmp_path / "tiny").symlink_to(TINY)
    s = start(tmp_path)
    status, said = load(s, "p", "plain")
    assert status == 400 and "--lora-dir" in said


@pytest.mark.parametrize("row, said", [
    ({"adapters": ["x"]}, "models[0]: adapters: expected an object of up to 256 paths, found an array"),
    ({"adapters": {"x": 1}}, "models[0]: x: expected a path, found 1"),
    ({"adapters": {"": "/"}}, "models[0]: adapters: expected a name of 1..200 bytes without '=', found ''"),
    ({"adapters": {"a=b": "/"}}, "models[0]: adapters: expected a name of 1..200 bytes without '=', found 'a=b'"),
    ({"adapters": {"x": "none"}}, "models[0]: adapters: x: "),
    ({"adapters": {"tiny": "/"}}, "models[0]: the name 'tiny' comes twice"),
    ({"adapters": {"big": "/"}}, "models[1]: the name 'big' is another model's too"),
    ({"options": ["--lora", "x=y"]}, 'options of tiny: --lora: expected "adapters"'),
])
def test_wrong_lists(llmq, tmp_path, row, said):
    rows = [{"model": str(TINY), "name": "tiny", **row}, {"model": str(MODEL), "name": "big"}]
    (tmp_path / "models.json").write_text(json.dumps({"models": rows}))
    r = llmq("serve", "--models", tmp_path / "models.json", "--port", 0, code=None)
    assert r.returncode in (1, 2, 3) and said in r.stderr, r.stderr
