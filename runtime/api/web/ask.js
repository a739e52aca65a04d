// What a conversation is to the server: the model, the messages or the text that it goes on with, and
// the tools.

import { withFiles } from "./files.js";
import { ServerError } from "./server.js";
import { path } from "./tree.js";
import { t } from "./words.js";

function messageOf(m)
{
    if (m.role === "tool") return { role: "tool", tool_call_id: m.call_id, content: m.content };
    if (m.role === "user") return { role: "user", content: withFiles(m) };
    if (!m.calls?.length) return { role: "assistant", content: m.content };
    return { role: "assistant", content: m.content || null,
             tool_calls: m.calls.map(c => ({ id: c.id, type: "function",
                                             function: { name: c.name, arguments: c.arguments } })) };
}

// The messages that count: from chat.from on, without answers that say nothing and the questions before
// them, but for the last one.
function said(chat)
{
    const all = path(chat), first = Math.max(0, all.findIndex(m => m.id === chat.from));
    return all.slice(first).filter((m, i, list) => {
        const next = list[i + 1];
        if (m.role === "assistant") return m.content || m.calls?.length;
        return !(m.role === "user" && next?.error && !next.content && i + 2 < list.length);
    });
}

function toolsOf(params)
{
    try {
        return { tools: JSON.parse(params.tools) };
    } catch (e) {
        throw new ServerError(t("toolsWrong", e.message));
    }
}

export function body(chat, model)
{
    const { params } = chat, list = said(chat);
    if (params.plain) return { model, prompt: list.map(withFiles).join("") };
    const messages = list.map(messageOf);
    if (params.system) messages.unshift({ role: "system", content: params.system });
    return { model, messages, ...(params.tools ? toolsOf(params) : {}) };
}
