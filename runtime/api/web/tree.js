// A conversation is a tree. Each message has an id and names its parent (0: none); chat.leaf is the last
// one that is shown, and the path from the first message to it is the conversation. Asking again or
// changing a question adds a sibling, so that nothing that was said is lost.

export function path(chat)
{
    const found = [], byId = new Map(chat.messages.map(m => [m.id, m]));
    for (let m = byId.get(chat.leaf); m; m = byId.get(m.parent)) found.unshift(m);
    return found;
}

// Adds the message below `parent` (an id) and shows it.
export function add(chat, parent, message)
{
    const m = { id: Math.max(0, ...chat.messages.map(o => o.id)) + 1, parent, ...message };
    chat.messages.push(m);
    chat.leaf = m.id;
    return chat.messages.at(-1);
}

export function siblings(chat, m) { return chat.messages.filter(o => o.parent === m.parent); }

// Shows the branch of m: down to the newest message below it.
export function choose(chat, m)
{
    const newestChild = o => chat.messages.findLast(c => c.parent === o.id);
    let last = m;
    for (let next; (next = newestChild(last)); last = next);
    chat.leaf = last.id;
}

// Takes m and all that follows it away, and shows a sibling, else what came before.
export function remove(chat, m)
{
    const gone = new Set([m.id]);
    for (const o of chat.messages) if (gone.has(o.parent)) gone.add(o.id);
    const others = siblings(chat, m).filter(o => o !== m);
    chat.messages = chat.messages.filter(o => !gone.has(o.id));
    if (others.length) choose(chat, others.at(-1));
    else chat.leaf = m.parent;
}

// What came from a file or an older version, made into such a tree: ids that are numbers, each
// parent before its children.
export function mend(chat)
{
    const ids = new Set([0]);
    const whole = chat.messages.every(m => {
        const ok = Number.isSafeInteger(m.id) && m.id > 0 && !ids.has(m.id) && ids.has(m.parent);
        ids.add(m.id);
        return ok;
    });
    if (!whole) chat.messages.forEach((m, i) => { m.id = i + 1; m.parent = i; });
    if (!ids.has(chat.leaf) || !whole || !chat.leaf) chat.leaf = chat.messages.at(-1)?.id || 0;
    return chat;
}
