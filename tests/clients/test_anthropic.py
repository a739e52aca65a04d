"""Anthropic's SDKs and Claude Code."""
import json

TOOL = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"},
                                                                             "days": {"type": "array"}}}}

PYTHON = """
import anthropic, json, sys, time
c = anthropic.Anthropic(base_url=sys.argv[1], api_key="x", max_retries=0)
def ask(text, **more):
    return dict(model="m", max_tokens=200, messages=[{"role": "user", "content": text}], **more)
tool = json.loads(sys.argv[2])
out = {"text": c.messages.create(**ask("[abc]")).content[0].text}
call = c.messages.create(**ask("[one call]", tools=[tool]))
use = call.content[1]
out["call"] = [use.name, use.input, call.stop_reason]
after = [{"role": "user", "content": "[one call]"}, {"role": "assistant", "content": call.content},
         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "[abc] rain"}]}]
out["after"] = c.messages.create(model="m", max_tokens=1, messages=after, tools=[tool]).usage.output_tokens
with c.messages.stream(**ask("[think]")) as s:
    out["texts"] = "".join(s.text_stream)
    out["blocks"] = [b.type for b in s.get_final_message().content]
with c.messages.stream(**ask("[two calls]", tools=[tool, {**tool, "name": "now"}])) as s:
    out["calls"] = [b.input for b in s.get_final_message().content if b.type == "tool_use"]
out["count"] = c.messages.count_tokens(model="m", messages=[{"role": "user", "content": "hi"}]).input_tokens
b = c.messages.batches.create(requests=[{"custom_id": "a", "params": ask("[abc]")}, {"custom_id": "b", "params": ask("[abc]", temperature=9)}])
while c.messages.batches.retrieve(b.id).processing_status != "ended":
    time.sleep(0.1)
out["batch"] = [[r.custom_id, r.result.type] for r in c.messages.batches.results(b.id)]
out["batches"] = [x.id for x in c.messages.batches.list()] == [b.id]
out["deleted"] = c.messages.batches.delete(b.id).type
try:
    c.messages.create(**{**ask("hi"), "model": "none"})
except anthropic.NotFoundError as e:
    out["error"] = e.body["error"]["type"]
print(json.dumps(out))
"""

NODE = """
import Anthropic from "@anthropic-ai/sdk";
const c = new Anthropic({ baseURL: process.argv[2], apiKey: "x", maxRetries: 0 });
const tool = JSON.parse(process.argv[3]);
const ask = (text, more) => ({ model: "m", max_tokens: 200, messages: [{ role: "user", content: text }], ...more });
const out = { text: (await c.messages.create(ask("[abc]"))).content[0].text };
const call = await c.messages.create(ask("[one call]", { tools: [tool] }));
out.call = [call.content[1].name, call.content[1].input, call.stop_reason];
const s = c.messages.stream(ask("[think]"));
out.texts = ""; s.on("text", t => { out.texts += t; });
out.blocks = (await s.finalMessage()).content.map(b => b.type);
const two = c.messages.stream(ask("[two calls]", { tools: [tool, { ...tool, name: "now" }] }));
out.calls = (await two.finalMessage()).content.filter(b => b.type == "tool_use").map(b => b.input);
out.count = (await c.messages.countTokens({ model: "m", messages: [{ role: "user", content: "hi" }] })).input_tokens;
const b = await c.messages.batches.create({ requests: [{ custom_id: "a", params: ask("[abc]") }, { custom_id: "b", params: ask("[abc]", { temperature: 9 }) }] });
while ((await c.messages.batches.retrieve(b.id)).processing_status != "ended") await new Promise(r => setTimeout(r, 100));
out.batch = []; out.batches = [];
for await (const r of await c.messages.batches.results(b.id)) out.batch.push([r.custom_id, r.result.type]);
for await (const x of c.messages.batches.list()) out.batches.push(x.id);
out.batches = out.batches.length == 1 && out.batches[0] == b.id;
out.deleted = (await c.messages.batches.delete(b.id)).type;
try { await c.messages.create({ ...ask("hi"), model: "none" }); } catch (e) { out.error = e.error.error.type; }
console.log(JSON.stringify(out));
"""


def check(out):
    assert out["text"] == "The cat sat on x the mat."
    assert out["call"] == ["weather", {"city": "Paris", "days": [1, 2]}, "tool_use"]
    assert (out["texts"], out["blocks"]) == ("Four.", ["thinking", "text"])
    assert out["calls"] == [{"city": 'Köln "x" \\'}, {}]
    assert out["batch"] == [["a", "succeeded"], ["b", "errored"]]
    assert out["batches"] is True and out["deleted"] == "message_batch_deleted"
    assert out["count"] > 0 and out["error"] == "not_found_error"


def test_the_sdk_for_python(scripted, python_client):
    check(python_client(PYTHON, scripted.url, json.dumps(TOOL)))


def test_the_sdk_for_node(scripted, node_client):
    check(node_client(NODE, scripted.url, json.dumps(TOOL)))


def test_claude_code(scripted, program):
    done = program("claude", "-p", "[abc]", "--system-prompt", "Be brief.", "--tools", "", "--output-format", "json",
                   installer="@anthropic-ai/claude-code/install.cjs",
                   env={"ANTHROPIC_BASE_URL": scripted.url, "ANTHROPIC_AUTH_TOKEN": "x", "ANTHROPIC_MODEL": "m",
                        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "m", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert not said["is_error"] and said["result"] == "The cat sat on x the mat.", said
