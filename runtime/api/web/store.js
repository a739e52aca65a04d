// Conversations in localStorage: the list of them under one name, each under its own.
//
// A chat is { id, title, messages, leaf, from, params } (tree.js; from: the first message that is sent);
// a message { id, parent, role, content, files, thoughts, calls, call_id, usage, times, end, error, code,
// pending }. Another tab may write as well: the last one to save a chat wins, the list is read again
// before it is changed.

import { mend } from "./tree.js";

const LIST = "llmq.chats", ONE = "llmq.chat.";

function read(name, otherwise)
{
    try {
        return JSON.parse(localStorage.getItem(name)) ?? otherwise;
    } catch {
        return otherwise; // somebody else wrote it
    }
}

export function setting(name, otherwise) { return read("llmq." + name, otherwise); }
export function set(name, value) { localStorage.setItem("llmq." + name, JSON.stringify(value)); }

// [{ id, title }], the newest first.
export function list()
{
    const found = read(LIST, []);
    return Array.isArray(found) ? found.filter(c => typeof c?.id === "string") : [];
}

// ---- the shape ----

const is = type => v => typeof v === type;
const listOf = ok => v => Array.isArray(v) && v.every(ok);
const shape = fields => v => v !== null && typeof v === "object" && Object.entries(fields).every(([k, ok]) => ok(v[k]));
const MESSAGE = {
    id: is("number"), parent: is("number"), content: is("string"), thoughts: is("string"),
    role: v => ["user", "assistant", "tool"].includes(v), call_id: is("string"), name: is("string"),
    files: listOf(shape({ name: is("string"), text: is("string") })),
    calls: listOf(shape({ id: is("string"), name: is("string"), arguments: is("string") })),
    usage: shape({ prompt_tokens: is("number"), completion_tokens: is("number") }),
    times: shape({}), end: is("string"), error: is("string"), code: is("string"),
};

function messageOf(o)
{
    const m = Object.fromEntries(Object.entries(o || {}).filter(([k, v]) => Object.hasOwn(MESSAGE, k) && MESSAGE[k](v)));
    m.content ??= "";
    if (o?.pending) m.end = "stopped"; // the page was closed while it was answered
    return m;
}

// A chat of an object from a file or from the storage: what has not the right shape is left out. null:
// it is none.
export function chatOf(o, id)
{
    if (!Array.isArray(o?.messages)) return null;
    return mend({ id, title: typeof o.title === "string" ? o.title : "", leaf: o.leaf, from: o.from,
                  messages: o.messages.map(messageOf).filter(m => m.role),
                  params: o.params && typeof o.params === "object" ? o.params : {} });
}

export function load(id) { return chatOf(read(ONE + id, null), id); }

// False: the browser's room is used up.
export function save(chat)
{
    try {
        const others = list(), entry = { id: chat.id, title: chat.title };
        const at = others.findIndex(c => c.id === chat.id);
        if (at < 0) others.unshift(entry);
        else others[at] = entry;
        localStorage.setItem(ONE + chat.id, JSON.stringify(chat));
        localStorage.setItem(LIST, JSON.stringify(others));
        return true;
    } catch {
        return false;
    }
}

export function remove(id)
{
    localStorage.removeItem(ONE + id);
    localStorage.setItem(LIST, JSON.stringify(list().filter(c => c.id !== id)));
}

export function onChange(call)
{
    addEventListener("storage", e => { if (e.key === null || e.key === LIST) call(); });
}

export function newId()
{
    return Array.from(crypto.getRandomValues(new Uint8Array(9)), b => b.toString(36)).join("");
}
