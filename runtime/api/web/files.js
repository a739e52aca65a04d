// Text files that go with the next message: chosen, dropped or pasted.

import { button, element, name, number, t } from "./words.js";

const MOST_BYTES = 1 << 20; // of one file: more than that is beyond most contexts

let chosen = [], box = null, said = () => {};

function draw()
{
    box.replaceChildren(...chosen.map(f => {
        const away = button("small", "×", () => { chosen = chosen.filter(o => o !== f); draw(); });
        name(away, t("detach", f.name));
        return element("li", "file", "", label(f), away);
    }));
    box.hidden = !chosen.length;
}

export function label(f) { return element("span", "", `${f.name} · ${t("chars", number(f.text.length))}`); }

async function attach(list)
{
    for (const file of list) {
        if (file.size > MOST_BYTES) {
            said(t("fileLong", file.name));
            continue;
        }
        try {
            const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
            if (text.includes("\0")) throw new TypeError();
            chosen.push({ name: file.name, text });
        } catch {
            said(t("fileNoText", file.name));
        }
    }
    draw();
}

// The files for the message that is sent now.
export function taken()
{
    const files = chosen;
    chosen = [];
    draw();
    return files;
}

export function any() { return chosen.length > 0; }

// What the model reads of a message: its files first, each fenced longer than any fence inside.
export function withFiles(m)
{
    const parts = (m.files || []).map(f => {
        const longest = Math.max(2, ...(f.text.match(/`{3,}/g) || []).map(s => s.length));
        const fence = "`".repeat(longest + 1);
        return `${f.name}:\n${fence}\n${f.text.replace(/\n$/, "")}\n${fence}`;
    });
    return [...parts, m.content].filter(s => s).join("\n\n");
}

// list: where they are shown; area: where they may be dropped; input: <input type=file>.
export function start(list, area, input, field, say)
{
    box = list;
    said = say;
    input.addEventListener("change", () => { attach([...input.files]); input.value = ""; });
    area.addEventListener("dragover", e => { if (e.dataTransfer.types.includes("Files")) e.preventDefault(); });
    area.addEventListener("drop", e => {
        if (!e.dataTransfer.files.length) return;
        e.preventDefault();
        attach([...e.dataTransfer.files]);
    });
    field.addEventListener("paste", e => {
        if (!e.clipboardData.files.length) return;
        e.preventDefault();
        attach([...e.clipboardData.files]);
    });
}
