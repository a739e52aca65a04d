"""OpenAI's SDKs and openai-agents: chats and responses."""
import json

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {}}}}
FUNCTION = {"name": "weather", "parameters": PARAMETERS}

PYTHON = """
import json, openai, sys
from pydantic import BaseModel
c = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="x", max_retries=0)
f = json.loads(sys.argv[2])
chat_tool, tool = {"type": "function", "function": f}, {"type": "function", **f}
def chat(text, **more):
    return dict(model="m", messages=[{"role": "user", "content": text}], temperature=0, max_tokens=200, **more)
def ask(text, **more):
    return dict(model="m", input=text, temperature=0, max_output_tokens=200, **more)
class Answer(BaseModel):
    a: bool
out = {"chat": c.chat.completions.create(**chat("[abc]")).choices[0].message.content}
call = c.chat.completions.create(**chat("[one call]", tools=[chat_tool])).choices[0].message.tool_calls[0].function
out["chat_call"] = [call.name, json.loads(call.arguments)]
with c.chat.completions.stream(**chat("[abc]")) as s:
    out["chat_stream"] = s.get_final_completion().choices[0].message.content
out["chat_parse"] = c.chat.completions.parse(**chat("[abc]", response_format=Answer)).choices[0].message.parsed is not None
out["text"] = c.responses.create(**ask("[abc]")).output_text
first = c.responses.create(**ask("[one call]", tools=[tool]))
call = first.output[1]
out["call"] = [call.name, json.loads(call.arguments)]
result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
after = c.responses.create(**{**ask(""), "input": [{"role": "user", "content": "[abc]"}, *first.output, result]})
out["after"] = after.status
with c.responses.stream(**ask("[think]")) as s:
    out["stream"] = "".join(e.delta for e in s if e.type == "response.output_text.delta")
    out["items"] = [i.type for i in s.get_final_response().output]
with c.responses.stream(**ask("[two calls]", tools=[tool, {**tool, "name": "now"}])) as s:
    out["calls"] = [json.loads(i.arguments) for i in s.get_final_response().output]
out["parse"] = c.responses.parse(**ask("[abc]", text_format=Answer)).output_parsed is not None
try:
    c.responses.create(**ask("hi", previous_response_id="resp_1"))
except openai.BadRequestError as e:
    out["error"] = e.param
print(json.dumps(out))
"""

NODE = """
import OpenAI from "openai";
const c = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "x", maxRetries: 0 });
const f = JSON.parse(process.argv[3]);
const chat = (text, more) => ({ model: "m", messages: [{ role: "user", content: text }], temperature: 0, max_tokens: 200, ...more });
const ask = (text, more) => ({ model: "m", input: text, temperature: 0, max_output_tokens: 200, ...more });
const format = { type: "json_schema", name: "n", schema: { type: "object", properties: { a: { type: "boolean" } },
                 required: ["a"], additionalProperties: false } };
const out = { chat: (await c.chat.completions.create(chat("[abc]"))).choices[0].message.content };
let call = (await c.chat.completions.create(chat("[one call]", { tools: [{ type: "function", function: f }] }))).choices[0];
call = call.message.tool_calls[0].function;
out.chat_call = [call.name, JSON.parse(call.arguments)];
out.chat_stream = await c.chat.completions.stream(chat("[abc]")).finalContent();
out.chat_parse = (await c.chat.completions.parse(chat("[abc]", { response_format: { type: "json_schema", json_schema: format } })))
    .choices[0].message.parsed != null;
const tool = { type: "function", ...f };
out.text = (await c.responses.create(ask("[abc]"))).output_text;
const first = await c.responses.create(ask("[one call]", { tools: [tool] }));
out.call = [first.output[1].name, JSON.parse(first.output[1].arguments)];
const result = { type: "function_call_output", call_id: first.output[1].call_id, output: "rain" };
out.after = (await c.responses.create({ ...ask(""), input: [{ role: "user", content: "[abc]" }, ...first.output, result] })).status;
const s = c.responses.stream(ask("[think]"));
out.stream = "";
s.on("response.output_text.delta", e => { out.stream += e.delta; });
out.items = (await s.finalResponse()).output.map(i => i.type);
const two = await c.responses.stream(ask("[two calls]", { tools: [tool, { ...tool, name: "now" }] })).finalResponse();
out.calls = two.output.map(i => JSON.parse(i.arguments));
out.parse = (await c.responses.parse(ask("[abc]", { text: { format } }))).output_parsed != null;
try { await c.responses.create(ask("hi", { previous_response_id: "resp_1" })); } catch (e) { out.error = e.param; }
console.log(JSON.stringify(out));
"""

AGENTS = """
import json, openai, sys
from agents import Agent, ModelSettings, Runner, function_tool, set_default_openai_client, set_tracing_disabled
set_tracing_disabled(True)
set_default_openai_client(openai.AsyncOpenAI(base_url=sys.argv[1] + "/v1", api_key="x", max_retries=0))
seen = []
@function_tool
def now() -> str:
    "What time it is."
    seen.append(1)
    return "[abc]"
agent = Agent(name="a", model="m", tools=[now], model_settings=ModelSettings(temperature=0, max_tokens=100))
done = Runner.run_sync(agent, "[call once]", max_turns=3)
print(json.dumps({"calls": len(seen), "final": done.final_output}))
"""


def check(out):
    weather = ["weather", {"city": "Paris", "days": [1, 2]}]
    assert out["chat"] == out["chat_stream"] == out["text"] == "The cat sat on x the mat."
    assert out["chat_call"] == out["call"] == weather
    assert out["chat_parse"] is out["parse"] is True
    assert out["after"] == "completed" and (out["stream"], out["items"]) == ("Four.", ["reasoning", "message"])
    assert out["calls"] == [{"city": 'Köln "x" \\'}, {}] and out["error"] == "previous_response_id"


def test_the_sdk_for_python(scripted, python_client):
    check(python_client(PYTHON, scripted.url, json.dumps(FUNCTION)))


def test_the_sdk_for_node(scripted, node_client):
    check(node_client(NODE, scripted.url, json.dumps(FUNCTION)))


def test_openai_agents(scripted, python_client):
    """The agent calls its function and answers by what that says."""
    out = python_client(AGENTS, scripted.url)
    assert out == {"calls": 1, "final": "The cat sat on x the mat."}
