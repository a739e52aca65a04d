// Conversations as files: JSON that this page reads again (branches and all), or the shown branch as
// Markdown to read.

import { withFiles } from "./files.js";
import * as store from "./store.js";
import { path } from "./tree.js";
import { t } from "./words.js";

function download(name, type, text)
{
    const a = document.createElement("a");
    a.href = URL.createObjectURL(new Blob([text], { type }));
    a.download = name;
    a.click();
    setTimeout(() => URL.revokeObjectURL(a.href), 10000);
}

// A title as a file's name.
const fileName = title => (title || "llmq").replace(/[\p{C}/\\:*?"<>|]+/gu, " ").trim().slice(0, 60) || "llmq";

function markdownOf(chat)
{
    const parts = ["# " + (chat.title || t("untitled"))];
    if (chat.params.system) parts.push(`## ${t("system")}\n\n${chat.params.system}`);
    for (const m of path(chat)) {
        const who = { user: t("you"), assistant: t("model"), tool: t("toolResult", m.name || "") }[m.role];
        const calls = (m.calls || []).map(c => `\`${c.name}(${c.arguments})\``);
        const thoughts = m.thoughts ? [m.thoughts.trim().replace(/^/gm, "> ")] : [];
        parts.push([`## ${who}`, ...thoughts, withFiles(m), ...calls].filter(s => s).join("\n\n"));
    }
    return parts.join("\n\n") + "\n";
}

export function asMarkdown(chat) { download(fileName(chat.title) + ".md", "text/markdown", markdownOf(chat)); }

export function asJson(chats, title)
{
    const text = JSON.stringify({ conversations: chats.map(c => ({ ...c, id: undefined })) }, null, 1);
    download(fileName(title) + ".json", "application/json", text + "\n");
}

// The chats of such a file; an Error where it has none.
export async function read(file)
{
    let found = null;
    try {
        found = JSON.parse(await file.text());
    } catch {} // said below
    const chats = (Array.isArray(found?.conversations) ? found.conversations : [])
        .map(o => store.chatOf(o, store.newId())).filter(c => c?.messages.length);
    if (!chats.length) throw new Error(t("importNone", file.name));
    return chats;
}
