"""Ollama's clients for Python and Node."""
import json

from test_openai import FUNCTION

PYTHON = """
import json, ollama, sys
c = ollama.Client(host=sys.argv[1])
tool = {"type": "function", "function": json.loads(sys.argv[2])}
def ask(text, **more):
    return dict(model="m:latest", messages=[{"role": "user", "content": text}], options={"temperature": 0, "num_predict": 200}, **more)
out = {"text": c.chat(**ask("[abc]")).message.content}
a = c.chat(**ask("[think]"))
out["think"] = [a.message.thinking, a.message.content]
out["stream"] = "".join(p.message.content for p in c.chat(**ask("[abc]", stream=True)))
call = c.chat(**ask("[one call]", tools=[tool])).message
out["call"] = [call.tool_calls[0].function.name, dict(call.tool_calls[0].function.arguments)]
after = [{"role": "user", "content": "[abc]"}, call, {"role": "tool", "tool_name": "weather", "content": "rain"}]
out["after"] = c.chat(model="m", messages=after, options={"num_predict": 2}).done_reason
out["generate"] = c.generate(model="m", prompt="[abc]", options={"temperature": 0}).response
g = c.generate(model="m", prompt="[abc]", options={"temperature": 0, "num_predict": 3}, logprobs=True, top_logprobs=2)
out["logprobs"] = [len(g.logprobs), len(g.logprobs[0].top_logprobs)]
out["context"] = [len(g.context), c.generate(model="m", prompt="[abc]", context=g.context).prompt_eval_count - g.prompt_eval_count]
out["embed"] = len(c.embed(model="m", input=["a", "b"]).embeddings)
out["list"] = [m.model for m in c.list().models]
out["ps"] = [m.model for m in c.ps().models]
out["show"] = c.show("m").capabilities
out["load"] = [c.generate(model="m").done_reason, c.chat(model="m").done_reason]
out["pull"] = [p.status for p in c.pull("m", stream=True)]
try:
    list(c.pull("none", stream=True))
except ollama.ResponseError as e:
    out["absent"] = e.error
try:
    c.chat(model="none", messages=[])
except ollama.ResponseError as e:
    out["error"] = e.status_code
print(json.dumps(out))
"""

NODE = """
import { Ollama } from "ollama";
const c = new Ollama({ host: process.argv[2] });
const tool = { type: "function", function: JSON.parse(process.argv[3]) };
const ask = (text, more) => ({ model: "m:latest", messages: [{ role: "user", content: text }], options: { temperature: 0, num_predict: 200 }, ...more });
const out = { text: (await c.chat(ask("[abc]"))).message.content };
const a = await c.chat(ask("[think]"));
out.think = [a.message.thinking, a.message.content];
out.stream = "";
for await (const p of await c.chat(ask("[abc]", { stream: true }))) out.stream += p.message.content;
const call = (await c.chat(ask("[one call]", { tools: [tool] }))).message;
out.call = [call.tool_calls[0].function.name, call.tool_calls[0].function.arguments];
const after = [{ role: "user", content: "[abc]" }, call, { role: "tool", tool_name: "weather", content: "rain" }];
out.after = (await c.chat({ model: "m", messages: after, options: { num_predict: 2 } })).done_reason;
out.generate = (await c.generate({ model: "m", prompt: "[abc]", options: { temperature: 0 } })).response;
const g = await c.generate({ model: "m", prompt: "[abc]", options: { temperature: 0, num_predict: 3 }, logprobs: true, top_logprobs: 2 });
out.logprobs = [g.logprobs.length, g.logprobs[0].top_logprobs.length];
const later = await c.generate({ model: "m", prompt: "[abc]", context: g.context });
out.context = [g.context.length, later.prompt_eval_count - g.prompt_eval_count];
out.embed = (await c.embed({ model: "m", input: ["a", "b"] })).embeddings.length;
out.list = (await c.list()).models.map(m => m.model);
out.ps = (await c.ps()).models.map(m => m.model);
out.show = (await c.show({ model: "m" })).capabilities;
out.load = [(await c.generate({ model: "m" })).done_reason, (await c.chat({ model: "m" })).done_reason];
out.pull = [];
for await (const p of await c.pull({ model: "m", stream: true })) out.pull.push(p.status);
try { for await (const p of await c.pull({ model: "none", stream: true })); } catch (e) { out.absent = e.message; }
try { await c.chat({ model: "none", messages: [] }); } catch (e) { out.error = e.status_code; }
console.log(JSON.stringify(out));
"""


def check(out):
    assert out["text"] == out["stream"] == out["generate"] == "The cat sat on x the mat."
    assert out["think"] == ["Two and two.", "Four."]
    assert out["call"] == ["weather", {"city": "Paris", "days": [1, 2]}]
    assert out["logprobs"] == [3, 2] and out["context"][0] - 1 <= out["context"][1] <= out["context"][0]
    assert out["after"] in ("length", "stop") and out["embed"] == 2
    assert out["list"] == out["ps"] == ["m"] and "tools" in out["show"] and out["error"] == 404
    assert out["load"] == ["load", "load"] and out["pull"] == ["pulling manifest", "success"] and "'none' is not served" in out["absent"]


def test_the_client_for_python(scripted, python_client):
    check(python_client(PYTHON, scripted.url, json.dumps(FUNCTION)))


def test_the_client_for_node(scripted, node_client):
    check(node_client(NODE, scripted.url, json.dumps(FUNCTION)))
