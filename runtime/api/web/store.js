// Conversations in localStorage: the list of them under one name, each under its own.
//
// A chat is { id, title, messages, params }; a message { role, content, thoughts, usage, times,
// end, error, pending }. Another tab may write as well: the last one to save a chat wins, the list
// is read again before it is changed.

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

export function load(id)
{
    const chat = read(ONE + id, null);
    if (!chat || !Array.isArray(chat.messages)) return null;
    for (const m of chat.messages)
        if (m.pending) { // the page was closed while it was answered
            delete m.pending;
            m.end = "stopped";
        }
    return { params: {}, title: "", ...chat, id };
}

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
