// The list of conversations: search, rename, delete, export.

import * as files from "./export.js";
import * as store from "./store.js";
import { button, element, name, t } from "./words.js";

const $ = id => document.getElementById(id);

let on = null; // what chat.js does: { open(id), shown(), load(id), remove(id), renamed(id, title), notice(text) }
let renaming = null; // id of the one whose title is a field now

// In its title or in what was said, wherever capitals are.
function matches(entry, wanted)
{
    if (!wanted) return true;
    const text = entry.title + "\n" + (store.load(entry.id)?.messages || []).map(m => m.content).join("\n");
    return text.normalize("NFC").toLowerCase().includes(wanted);
}

function titleField(c)
{
    const field = element("input");
    field.value = c.title;
    name(field, t("newTitle"));
    const end = keep => {
        if (renaming !== c.id) return;
        renaming = null;
        if (keep && field.value.trim()) on.renamed(c.id, field.value.trim());
        draw();
        $("chats").querySelector(`[data-id="${c.id}"] .name`)?.focus();
    };
    field.addEventListener("keydown", e => {
        if (e.key !== "Enter" && e.key !== "Escape" || e.isComposing) return;
        e.preventDefault();
        e.stopPropagation();
        end(e.key === "Enter");
    });
    field.addEventListener("blur", () => end(true));
    return field;
}

function row(c)
{
    const title = c.title || t("untitled"), current = c.id === on.shown().id;
    const li = element("li", current ? "current" : "");
    li.dataset.id = c.id;
    if (renaming === c.id) {
        li.append(titleField(c));
        return li;
    }
    const open = button("name", "", () => on.open(c.id));
    open.title = title;
    open.append(element("span", "", title));
    if (current) open.setAttribute("aria-current", "true");
    const rename = button("small", "✎", () => {
        renaming = c.id;
        draw();
        const field = $("chats").querySelector("input");
        field.focus();
        field.select();
    });
    name(rename, t("rename", title));
    const away = button("small", "×", () => { if (confirm(t("removeSure", title))) on.remove(c.id); });
    name(away, t("remove", title));
    li.append(open, rename, away);
    return li;
}

export function draw()
{
    const wanted = $("search").value.trim().normalize("NFC").toLowerCase();
    const found = store.list().filter(c => matches(c, wanted));
    $("chats").replaceChildren(...found.map(row));
    $("no-match").hidden = !wanted || found.length > 0;
}

async function importFile(input)
{
    try {
        for (const file of input.files) {
            const chats = await files.read(file);
            for (const c of chats.reverse()) if (!store.save(c)) throw new Error(t("full"));
            on.open(chats.at(-1).id);
        }
    } catch (e) {
        on.notice(e.message);
    }
    input.value = "";
    draw();
}

export function start(actions)
{
    on = actions;
    $("search").addEventListener("input", draw);
    $("search").addEventListener("keydown", e => {
        if (e.key !== "Escape" || !$("search").value) return;
        e.stopPropagation();
        $("search").value = "";
        draw();
    });
    $("export-md").addEventListener("click", () => files.asMarkdown(on.shown()));
    $("export-json").addEventListener("click", () => files.asJson([on.shown()], on.shown().title));
    $("export-all").addEventListener("click", () =>
        files.asJson(store.list().map(c => on.load(c.id)), "llmq"));
    $("import").addEventListener("click", () => $("import-file").click());
    $("import-file").addEventListener("change", e => importFile(e.target));
    store.onChange(draw);
}
