"""The server under programs that others wrote for OpenAI's API. Each test needs one of them and says so where it
is not there.

    python3 -m venv v && v/bin/pip install pytest openai litellm langchain-openai schemathesis "lm-eval[api]" \
        transformers && v/bin/python -m pytest tests/interop/test_openai_clients.py
"""
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from harness import ROOT, Server

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices
os.environ["LANGSMITH_TRACING"] = "false"
CHAT = [{"role": "user", "content": "Say where the old house stood."}]
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"],
        "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather of a city.",
                                         "parameters": CITY}}


@pytest.fixture(scope="module")
def tiny(draft, tmp_path_factory):
    """The tiny model with a template that takes tools."""
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    shutil.copytree(draft, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = (ROOT / "tests/golden/templates/think-namespace.jinja").read_text()
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def server(llmq, tiny, tmp_path_factory):
    with Server(llmq, tiny, "--served-model-name", "tiny", log=tmp_path_factory.mktemp("serve") / "log") as s:
        yield s


@pytest.fixture(scope="module")
def want(server):
    """The answer that every client must get."""
    return server.post_json("/v1/chat/completions", {"messages": CHAT, "max_tokens": 12, "temperature": 0})[
        "choices"][0]["message"]["content"]


def is_unit(vector):
    return math.isclose(sum(x * x for x in vector), 1, rel_tol=1e-3)


def test_openai(server, want):
    openai = pytest.importorskip("openai", reason="openai is not installed")
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as c:
        assert [m.id for m in c.models.list()] == ["tiny"]
        how = {"model": "tiny", "messages": CHAT, "temperature": 0}
        got = c.chat.completions.create(max_tokens=12, **how)
        assert got.choices[0].message.content == want and got.usage.completion_tokens == 12
        chunks = list(c.chat.completions.create(max_tokens=12, stream=True,
                                                stream_options={"include_usage": True}, **how))
        assert "".join(x.choices[0].delta.content or "" for x in chunks if x.choices) == want
        assert chunks[-1].usage.completion_tokens == 12
        call = c.chat.completions.create(tools=[TOOL], tool_choice="required", max_tokens=80, **how)
        made = call.choices[0].message.tool_calls[0].function
        assert made.name == "weather" and set(json.loads(made.arguments)) == {"city"}
        with c.chat.completions.stream(tools=[TOOL], tool_choice="required", max_tokens=80, **how) as events:
            for _ in events:
                pass
            again = events.get_final_completion().choices[0].message.tool_calls[0].function
        assert (again.name, again.arguments) == (made.name, made.arguments)
        vectors = c.embeddings.create(model="tiny", input=["one", "two"]).data  # base64 unasked
        assert len(vectors) == 2 and all(is_unit(v.embedding) for v in vectors)
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            c.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "sea " * 5000}])


def test_litellm(server, want):
    litellm = pytest.importorskip("litellm", reason="litellm is not installed")
    how = {"model": "openai/tiny", "api_base": server.url + "/v1", "api_key": "none", "num_retries": 0}
    got = litellm.completion(messages=CHAT, max_tokens=12, temperature=0, **how)
    assert got.choices[0].message.content == want and got.usage.completion_tokens == 12
    chunks = list(litellm.completion(messages=CHAT, max_tokens=12, temperature=0, stream=True, **how))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == want
    for stream in (False, True):
        call = litellm.completion(messages=CHAT, max_tokens=80, temperature=0, tools=[TOOL],
                                  tool_choice="required", stream=stream, **how)
        call = litellm.stream_chunk_builder(list(call)) if stream else call
        made = call.choices[0].message.tool_calls[0].function
        assert made.name == "weather" and set(json.loads(made.arguments)) == {"city"}
    text = litellm.text_completion(prompt="The old house", max_tokens=5, temperature=0,
                                   **{**how, "model": "text-completion-openai/tiny"})
    assert text.choices[0].text
    vector = litellm.embedding(input=["one", "two"], encoding_format="float", **how)
    assert len(vector.data) == 2 and is_unit(vector.data[0]["embedding"])
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(messages=CHAT, temperature=3, **how)
    with pytest.raises(litellm.ContextWindowExceededError):  # told by the words of the message
        litellm.completion(messages=[{"role": "user", "content": "sea " * 5000}], **how)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=CHAT, **{**how, "model": "openai/none"})


def test_langchain(server, want):
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    how = {"model": "tiny", "base_url": server.url + "/v1", "api_key": "none", "max_retries": 0}
    question = CHAT[0]["content"]
    chat = langchain.ChatOpenAI(max_tokens=12, temperature=0, **how)
    answer = chat.invoke(question)
    assert answer.content == want and answer.usage_metadata["output_tokens"] == 12
    assert "".join(c.content for c in chat.stream(question)) == want
    assert [a.content for a in chat.batch([question] * 3)] == [want] * 3
    long = langchain.ChatOpenAI(max_tokens=80, temperature=0, **how)
    calls = long.bind_tools([TOOL], tool_choice="required").invoke(question).tool_calls
    assert calls[0]["name"] == "weather" and set(calls[0]["args"]) == {"city"}
    place = {"title": "place", "description": "a place", **CITY}
    for method in ("json_schema", "function_calling"):
        assert set(long.with_structured_output(place, method=method).invoke("Where?")) == {"city"}
    assert langchain.OpenAI(max_tokens=5, temperature=0, **how).invoke("The old house")
    vectors = langchain.OpenAIEmbeddings(check_embedding_ctx_length=False, **how).embed_documents(["one", "two"])
    assert len(vectors) == 2 and is_unit(vectors[0])


def test_schemathesis(server, tmp_path):
    """What it makes of /openapi.json, right and wrong: no answer but those that stand there, nothing wrong taken.
    That everything right is taken is not asked (positive_data_acceptance): what fields demand of each other, a
    chat template of its messages, and a grammar of its text, no schema says."""
    pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    p = subprocess.run(
        [pathlib.Path(sys.executable).with_name("schemathesis"), "run", server.url + "/openapi.json",
         "--max-examples", os.environ.get("LLMQ_EXAMPLES", "20"), "--seed", "1", "--request-timeout", "60",
         "--exclude-checks", "positive_data_acceptance", "--generation-database", "none", "--no-color"],
        capture_output=True, text=True, cwd=tmp_path)
    print(p.stdout[-2500:])
    assert p.returncode == 0, p.stdout[-20000:] + p.stderr[-2000:]
    assert server.get("/ready").status == 200


def test_lm_eval(server, llmq, tiny, text, tmp_path):  # T-35
    """The log-likelihoods of a task by local-completions are those of `llmq logits` of the same ids to 1e-3."""
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    words = " ".join(text.read_text().split())
    pieces = [words[i:i + 400] for i in range(0, 3200, 400)]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"text": p}) + "\n" for p in pieces))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/novels.yaml").write_text(
        f"task: novels\ndataset_path: json\ndataset_kwargs:\n  data_files: {{test: {tmp_path}/docs.jsonl}}\n"
        "test_split: test\noutput_type: loglikelihood\ndoc_to_text: \"{{text[:200]}}\"\n"
        "doc_to_target: \"{{text[200:]}}\"\ntarget_delimiter: \"\"\nmetric_list:\n  - metric: perplexity\n")
    p = subprocess.run(
        [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--tasks", "novels",
         "--include_path", tmp_path / "tasks", "--model_args", f"model=tiny,base_url={server.url}/v1/completions,"
         f"tokenizer={tiny},tokenizer_backend=huggingface,num_concurrent=4,max_retries=1",
         "--output_path", tmp_path / "out", "--log_samples"],
        capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache")})
    assert p.returncode == 0, p.stdout[-3000:] + p.stderr[-6000:]
    samples = [json.loads(x) for f in (tmp_path / "out").rglob("samples_*.jsonl") for x in f.read_text().splitlines()]
    assert len(samples) == len(pieces)
    worst = 0.0
    for s in samples:
        prompt, target = s["arguments"]["gen_args_0"]["arg_0"], s["arguments"]["gen_args_0"]["arg_1"]
        resp = s["resps"][0][0]
        said = float(resp[0] if isinstance(resp, list) else resp)
        blanks = len(prompt) - len(prompt.rstrip())  # lm-eval moves them into the continuation
        head, ids = (tokenizer(t, add_special_tokens=False).input_ids
                     for t in (prompt[:len(prompt) - blanks], prompt + target))
        ids = head + ids[len(head):]  # as it cuts them
        worst = max(worst, abs(said - offline(np, llmq, tiny, len(head), ids, tmp_path / "l")))
    print(f"largest difference {worst:.1e} nats")
    assert worst < 1e-3


def offline(np, llmq, model, n, ids, out):
    """The sum of log-probabilities of ids from the n-th on, from `llmq logits` with the server's arithmetic."""
    llmq("logits", model, "--ids", ",".join(map(str, ids)), "-o", out, "--activations", "auto",
         "--kv-cache-dtype", "auto")
    b = out.read_bytes()
    x = np.frombuffer(b, "<f4", offset=8 + int.from_bytes(b[:8], "little")).reshape(len(ids), -1).astype(np.float64)
    x -= x.max(1, keepdims=True)
    x -= np.log(np.exp(x).sum(1, keepdims=True))
    return sum(x[i - 1, ids[i]] for i in range(n, len(ids)))
