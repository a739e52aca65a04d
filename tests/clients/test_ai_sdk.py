"""Vercel's AI SDK: its providers for OpenAI's Responses, for chats, and for compatible servers."""

PROGRAM = """
import { embed, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";
globalThis.AI_SDK_LOG_WARNINGS = false;
const baseURL = process.argv[2] + "/v1";
const openai = createOpenAI({ baseURL, apiKey: "x" });
const compatible = createOpenAICompatible({ name: "llmq", baseURL, includeUsage: true, supportsStructuredOutputs: true });
const providerOptions = { openai: { store: false, reasoningSummary: "auto", forceReasoning: true } };
const tools = {
    now: tool({ description: "the time", inputSchema: z.object({}), execute: async () => "12:30" }),
    weather: tool({ description: "the weather", inputSchema: z.object({ city: z.string(), days: z.array(z.number()).optional() }),
                    execute: async ({ city }) => city + ": rain" }),
};
const out = {};
for (const [name, model] of [["responses", openai("m")], ["chat", openai.chat("m")], ["compatible", compatible("m")]]) {
    const ask = (text, more) => ({ model, prompt: `[${text}]`, maxOutputTokens: 300, temperature: 0, maxRetries: 0,
                                   providerOptions: name === "responses" ? providerOptions : {}, ...more });
    const o = out[name] = {};
    o.text = (await generateText(ask("abc"))).text;
    o.stream = "";
    const s = streamText(ask("abc"));
    for await (const part of s.textStream) o.stream += part;
    o.tokens = (await s.usage).outputTokens > 5;
    const two = await generateText(ask("two calls", { tools, stopWhen: stepCountIs(2) }));
    o.calls = two.steps[0].toolCalls.map(c => [c.toolName, c.input]);
    o.results = two.steps[0].toolResults.map(r => r.output);
    o.steps = two.steps.length;
    const thought = await generateText(ask("think"));
    o.thought = [thought.reasoningText ?? null, thought.text];
    const schema = z.object({ a: z.boolean() });
    o.object = typeof (await generateText(ask("abc", { experimental_output: Output.object({ schema }) }))).experimental_output.a;
}
out.vector = (await embed({ model: openai.embedding("m"), value: "hi" })).embedding.length;
console.log(JSON.stringify(out));
"""


def test_the_ai_sdk(scripted, node_client):
    out = node_client(PROGRAM, scripted.url)
    assert out.pop("vector") == 128
    for name, o in out.items():
        assert o["text"] == o["stream"] == "The cat sat on x the mat." and o["tokens"], name
        assert o["calls"] == [["weather", {"city": 'Köln "x" \\'}], ["now", {}]], name
        assert o["results"] == ['Köln "x" \\: rain', "12:30"] and o["steps"] == 2, name
        # its provider for OpenAI's chats reads no thought
        assert o["thought"] == [None if name == "chat" else "Two and two.", "Four."], name
        assert o["object"] == "boolean", name
