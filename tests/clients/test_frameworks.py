"""Frameworks that speak to many servers: each by a chat, a call and its answer, and an answer of a schema."""
import json
import shutil

import pytest

from harness import ROOT, Server

WEATHER = ["weather", {"city": 'Köln "x" \\'}]
ABC = "The cat sat on x the mat."

LANGCHAIN = """
import json, sys
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel
url = sys.argv[1] + "/v1"
class Answer(BaseModel):
    a: bool
@tool
def weather(city: str, days: list[int] = []) -> str:
    "The weather."
    return "rain"
@tool
def now() -> str:
    "The time."
    return "12:30"
out = {}
for name, more in (("chat", {}), ("responses", {"use_responses_api": True})):
    m = ChatOpenAI(model="m", base_url=url, api_key="x", max_tokens=300, temperature=0, max_retries=0, **more)
    text = m.invoke("[abc]").text
    calls = m.bind_tools([weather, now]).invoke("[two calls]")
    talk = [HumanMessage("[two calls]"), calls, *(ToolMessage("rain", tool_call_id=c["id"]) for c in calls.tool_calls),
            HumanMessage("[abc]")]
    out[name] = {"text": text() if callable(text) else text, "stream": "".join(x.text if isinstance(x.text, str) else x.text() for x in m.stream("[abc]")),
                 "calls": [[c["name"], c["args"]] for c in calls.tool_calls], "after": len(m.bind_tools([weather, now]).invoke(talk).content) > 0,
                 "schema": isinstance(m.with_structured_output(Answer).invoke("[abc]").a, bool)}
out["vectors"] = len(OpenAIEmbeddings(model="m", base_url=url, api_key="x", check_embedding_ctx_length=False).embed_documents(["a", "b"]))
print(json.dumps(out))
"""

PYDANTIC = """
import json, sys
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
class Answer(BaseModel):
    a: bool
out = {}
for name, kind in (("chat", OpenAIChatModel), ("responses", OpenAIResponsesModel)):
    model = kind("m", provider=OpenAIProvider(base_url=sys.argv[1] + "/v1", api_key="x"))
    how = {"max_tokens": 400, "temperature": 0}
    agent = Agent(model, model_settings=how)
    @agent.tool_plain
    def now() -> str:
        "The time."
        return "[abc]"
    done = agent.run_sync("[call once]")
    out[name] = {"final": done.output, "parts": [type(p).__name__ for m in done.all_messages() for p in m.parts],
                 "native": isinstance(Agent(model, output_type=NativeOutput(Answer), model_settings=how).run_sync("[abc]").output.a, bool)}
print(json.dumps(out))
"""

INSTRUCTOR = """
import instructor, json, openai, sys
from pydantic import BaseModel
class Answer(BaseModel):
    a: bool
out = {}
for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT):
    c = instructor.from_openai(openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="x"), mode=mode)
    a = c.chat.completions.create(model="m", response_model=Answer, max_tokens=200, temperature=0, max_retries=0,
                                  messages=[{"role": "user", "content": "hi"}])
    out[mode.name] = isinstance(a.a, bool)
print(json.dumps(out))
"""

LLM = """
import json, llm, os, pathlib, sys
pathlib.Path(os.environ["HOME"], "extra-openai-models.yaml").write_text(json.dumps(
    [{"model_id": "q", "model_name": "m", "api_base": sys.argv[1] + "/v1", "supports_schema": True, "supports_tools": True}]))
os.environ["LLM_USER_PATH"] = os.environ["HOME"]
m = llm.get_model("q")
def now() -> str:
    "The time."
    return "[abc]"
schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
chain = m.chain("[call once]", tools=[now], key="x", options={"temperature": 0, "max_tokens": 200})
print(json.dumps({"text": m.prompt("[abc]", key="x", temperature=0, max_tokens=200).text(), "chain": chain.text(),
                  "schema": json.loads(m.prompt("hi", schema=schema, key="x", temperature=0, max_tokens=200).text())}))
"""

LITELLM = """
import json, litellm, sys
url = sys.argv[1]
tools = [{"type": "function", "function": {"name": n, "parameters": {"type": "object", "properties": p}}} for n, p in
         (("weather", {"city": {"type": "string"}}), ("now", {}))]
def ask(text, provider="openai", base=url + "/v1", **more):
    return litellm.completion(model=provider + "/m", api_base=base, api_key="x", max_tokens=300, temperature=0,
                              messages=[{"role": "user", "content": text}], **more)
out = {p: ask("[abc]", p, b).choices[0].message.content for p, b in (
    ("openai", url + "/v1"), ("hosted_vllm", url + "/v1"), ("anthropic", url), ("ollama_chat", url))}
out["stream"] = "".join(c.choices[0].delta.content or "" for c in ask("[abc]", stream=True))
out["calls"] = [[c.function.name, json.loads(c.function.arguments)] for c in ask("[two calls]", tools=tools).choices[0].message.tool_calls]
out["thought"] = ask("[think]", "hosted_vllm").choices[0].message.reasoning_content
out["responses"] = litellm.responses(model="openai/m", api_base=url + "/v1", api_key="x", input="[abc]",
                                     max_output_tokens=200).output[0].content[0].text
print(json.dumps(out))
"""

LLAMA_INDEX = """
import json, sys
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
def now() -> str:
    "The time."
    return "12:30"
m = OpenAILike(model="m", api_base=sys.argv[1] + "/v1", api_key="x", is_chat_model=True, is_function_calling_model=True,
               max_tokens=300, temperature=0, context_window=1024)
print(json.dumps({"text": m.chat([ChatMessage(role="user", content="[abc]")]).message.content,
                  "stream": "".join(x.delta for x in m.stream_chat([ChatMessage(role="user", content="[abc]")])),
                  "called": str(m.predict_and_call([FunctionTool.from_defaults(now)], user_msg="[call once]"))}))
"""

COHERE = """
import cohere, json, sys
ask = {"model": "m", "query": "a", "documents": ["b", "c"]}
new = cohere.ClientV2(api_key="x", base_url=sys.argv[1]).rerank(**ask, top_n=1).results
old = cohere.Client(api_key="x", base_url=sys.argv[1]).rerank(**ask, return_documents=True).results
print(json.dumps({"n": [len(new), len(old)], "same": new[0].relevance_score == old[0].relevance_score,
                  "text": old[0].document.text == ask["documents"][old[0].index]}))
"""

COHERE_EMBED = """
import cohere, json, sys
ask = {"model": "m", "texts": ["One day", "b"], "input_type": "search_query"}
new = cohere.ClientV2(api_key="x", base_url=sys.argv[1]).embed(**ask, embedding_types=["float", "ubinary"]).embeddings
old = cohere.Client(api_key="x", base_url=sys.argv[1]).embed(**ask).embeddings
print(json.dumps({"n": [len(new.float_), len(old)], "same": new.float_ == old,
                  "bits": [v > 0 for v in old[0][:8]] == [bool(new.ubinary[0][0] >> (7 - i) & 1) for i in range(8)]}))
"""


def test_langchain(scripted, package_client):
    out = package_client("langchain", LANGCHAIN, scripted.url)
    assert out.pop("vectors") == 2
    for o in out.values():
        assert o == {"text": ABC, "stream": ABC, "calls": [WEATHER, ["now", {}]], "after": True, "schema": True}


def test_pydantic_ai(scripted, package_client):
    for o in package_client("pydantic-ai", PYDANTIC, scripted.url).values():
        assert o == {"final": ABC, "parts": ["UserPromptPart", "ToolCallPart", "ToolReturnPart", "TextPart"], "native": True}


def test_instructor(scripted, package_client):
    assert set(package_client("instructor", INSTRUCTOR, scripted.url).values()) == {True}


def test_llm(scripted, package_client):
    out = package_client("llm", LLM, scripted.url)
    assert out["text"] == out["chain"] == ABC and set(out["schema"]) == {"a"}


def test_litellm(scripted, package_client):
    out = package_client("litellm", LITELLM, scripted.url)
    assert (out.pop("calls"), out.pop("thought")) == ([WEATHER, ["now", {}]], "Two and two.")
    assert set(out.values()) == {ABC}


def test_llama_index(scripted, package_client):
    assert package_client("llama-index", LLAMA_INDEX, scripted.url) == {"text": ABC, "stream": ABC, "called": "12:30"}


@pytest.fixture
def reranker(llmq, tmp_path):
    shutil.copytree(ROOT / "tests/golden/rerank", tmp_path / "m")
    shutil.copy(ROOT / "tests/golden/tokenizers/qwen2-nfc/tokenizer.json", tmp_path / "m")
    (tmp_path / "m/tokenizer_config.json").write_text(json.dumps({}))
    with Server(llmq, tmp_path / "m", "--served-model-name", "m", "--rerank-template", "qwen3-reranker", "--rerank-labels", "y,n",
                log=tmp_path / "log") as s:
        yield s


COHERE_CHAT = """
import cohere, json, sys
c = cohere.ClientV2(api_key="x", base_url=sys.argv[1])
tool = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}}}}
ask = lambda text, **more: {"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 0, **more}
text = c.chat(**ask("[abc]"))
calls = c.chat(**ask("[one call]", tools=[tool]))
pieces = list(c.chat_stream(**ask("[abc]")))
deltas = "".join(e.delta.message.content.text for e in pieces if e.type == "content-delta")
made = [e.delta.message.tool_calls.function.name for e in c.chat_stream(**ask("[one call]", tools=[tool])) if e.type == "tool-call-start"]
print(json.dumps({"same": deltas == text.message.content[0].text, "finish": [text.finish_reason, calls.finish_reason, pieces[-1].delta.finish_reason],
                  "calls": [t.function.name for t in calls.message.tool_calls], "made": made}))
"""


def test_cohere_chats(scripted, package_client):
    assert package_client("cohere", COHERE_CHAT, scripted.url) == {
        "same": True, "finish": ["COMPLETE", "TOOL_CALL", "COMPLETE"], "calls": ["weather"], "made": ["weather"]}


def test_cohere_embeds(scripted, package_client):
    assert package_client("cohere", COHERE_EMBED, scripted.url) == {"n": [2, 2], "same": True, "bits": True}


def test_cohere(reranker, package_client):
    assert package_client("cohere", COHERE, reranker.url) == {"n": [1, 2], "same": True, "text": True}
