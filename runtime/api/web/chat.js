// The first tab: the conversation that is shown and its answers. A chat is answered even while another
// one is shown; what is shown follows the chat's messages, never the other way round.

import { body } from "./ask.js";
import * as files from "./files.js";
import { firstThatFits } from "./fit.js";
import * as list from "./list.js";
import * as message from "./message.js";
import * as params from "./params.js";
import { ofChoice } from "./probs.js";
import { ServerError, request, stream } from "./server.js";
import * as store from "./store.js";
import * as tree from "./tree.js";
import { element, language, number, t } from "./words.js";

const $ = id => document.getElementById(id);
const SAVE_MS = 500, NEAR_END = 60; // pixels from the end in which the view follows an answer
const TITLE_CHARS = 80;

let chat = null; // the shown one
let models = [], contexts = {};
const running = new Map(); // id of a chat -> { chat, abort }
let leaving = false; // the page is being closed or loaded anew: what runs breaks off

// ---- conversations ----

function load(id) { return running.get(id)?.chat || store.load(id) || fresh(); }

function fresh()
{
    return { id: store.newId(), title: "", messages: [], leaf: 0, params: { ...chat?.params } };
}

function removeChat(id)
{
    running.get(id)?.abort.abort();
    running.delete(id);
    store.remove(id);
    if (id !== chat.id) list.draw();
    else show(load(store.list()[0]?.id));
}

function renameChat(id, title)
{
    const c = id === chat.id ? chat : load(id);
    c.title = title;
    save(c);
}

function save(c)
{
    if (!store.save(c)) notice(t("full"));
}

function titleOf(text)
{
    const line = [...text.trim().split("\n")[0]];
    return line.length > TITLE_CHARS ? line.slice(0, TITLE_CHARS - 1).join("") + "…" : line.join("");
}

export function closeSide()
{
    $("side").classList.remove("open");
    $("menu").setAttribute("aria-expanded", "false");
}

// ---- the conversation ----

function say(text) { $("said").textContent = text; } // for readers of the screen

// What went wrong, until the next message.
function notice(text)
{
    $("notice").textContent = text;
    $("notice").hidden = !text;
}

const busy = () => running.has(chat.id);
const modelOf = c => (models.includes(c.params.model) ? c.params.model : models[0]);

// Of the conversation in sight, where there are several.
export function model() { return models.length > 1 ? modelOf(chat) : ""; }

function drawMessage(m)
{
    return message.draw(m, { chat, last: m.id === chat.leaf, busy: busy(), on });
}

function atEnd()
{
    const box = $("messages");
    return box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END;
}

function toEnd() { $("messages").scrollTop = $("messages").scrollHeight; }

function follow(change)
{
    const end = atEnd();
    change();
    if (end) toEnd();
}

// The last line stays in sight when the room changes: parameters beside it, a phone's keyboard.
function followSize()
{
    const box = $("messages"), size = () => `${box.clientWidth} ${box.clientHeight}`;
    let end = true, seen = size();
    // The browser scrolls too when it lays out anew: that says nothing of what the reader wants.
    box.addEventListener("scroll", () => { if (size() === seen) end = atEnd(); });
    new ResizeObserver(() => {
        seen = size();
        if (end) toEnd();
    }).observe(box);
}

function drawState()
{
    const last = tree.path(chat).findLast(m => m.usage), most = contexts[modelOf(chat)];
    $("send").hidden = busy();
    $("stop").hidden = !busy();
    $("model").replaceChildren(...models.map(m => new Option(m, m, false, m === modelOf(chat))));
    $("model").hidden = models.length < 2;
    $("served").textContent = modelOf(chat) || "";
    $("context").hidden = !last || !most;
    if (last && most)
        $("context").textContent =
            t("context", number(last.usage.prompt_tokens + last.usage.completion_tokens), number(most));
}

function drawMessages()
{
    const said = tree.path(chat), parts = [];
    for (const m of said) {
        if (m.id === chat.from) parts.push(element("p", "divider quiet", t("notSent")));
        parts.push(drawMessage(m));
    }
    $("messages").replaceChildren(...(said.length ? parts : [element("p", "empty quiet", t("empty"))]));
}

// After a change of the shown chat, which keeps where the reader is.
function redrawMessages()
{
    const box = $("messages"), top = box.scrollTop;
    drawMessages();
    box.scrollTop = top;
    drawState();
}

function show(next)
{
    chat = next;
    store.set("current", chat.id);
    drawMessages();
    toEnd();
    list.draw();
    drawParams();
    drawState();
}

function drawParams()
{
    params.show($("params"), chat.params, () => { if (chat.messages.length) save(chat); },
                () => toggleParams(false));
}

function toggleParams(on)
{
    $("params").hidden = !on;
    $("settings").setAttribute("aria-expanded", String(on));
    if (on) $("params").querySelector("input, textarea, select").focus();
    else $("settings").focus();
}

// ---- an answer ----

function takeCall(m, d)
{
    m.calls ||= [];
    const c = m.calls[d.index] ||= { id: "", name: "", arguments: "" };
    c.id ||= d.id || "";
    c.name += d.function?.name || "";
    c.arguments += d.function?.arguments || "";
}

function take(m, event, start)
{
    const choice = event.choices[0], delta = choice?.delta || {};
    const text = delta.content || choice?.text || "", thoughts = delta.reasoning_content || "";
    if ((text || thoughts || delta.tool_calls) && !m.times)
        m.times = { first: (performance.now() - start) / 1000 };
    m.content += text;
    m.thoughts += thoughts;
    for (const d of delta.tool_calls || []) takeCall(m, d);
    const likely = ofChoice(choice);
    if (likely.length) message.keepTokens(m, likely);
    if (choice?.finish_reason) m.end = choice.finish_reason;
    if (event.usage) m.usage = event.usage;
}

// Answers what c ends with.
async function answer(c)
{
    const m = tree.add(c, c.leaf, { role: "assistant", content: "", thoughts: "", pending: true });
    const abort = new AbortController(), start = performance.now();
    let saved = start, drawn = 0;
    const draw = () => {
        drawn = 0;
        if (c === chat) follow(() => drawMessage(m));
    };
    running.set(c.id, { chat: c, abort });
    if (c === chat) show(c);
    say(t("answering"));
    try {
        await stream(c.params.plain ? "/v1/completions" : "/v1/chat/completions",
                     { ...body(c, modelOf(c)), ...params.ofRequest(c.params), stream: true,
                       stream_options: { include_usage: true } },
                     abort.signal, event => {
            take(m, event, start);
            drawn ||= requestAnimationFrame(draw);
            if (performance.now() - saved < SAVE_MS) return;
            saved = performance.now();
            save(c);
        });
        say(t("done"));
    } catch (e) {
        if (e.name === "AbortError" || leaving) m.end = "stopped";
        else Object.assign(m, { error: e instanceof ServerError ? e.message : String(e), code: e.code });
        say(m.error || t("stopped"));
    }
    cancelAnimationFrame(drawn);
    delete m.pending;
    if (m.times) m.times.whole = (performance.now() - start) / 1000;
    if (running.get(c.id)?.chat !== c) return; // it was deleted meanwhile
    running.delete(c.id);
    save(c);
    if (c === chat) follow(redrawMessages);
}

function ask()
{
    const field = $("prompt"), text = field.value;
    if (!text.trim() && !files.any() || busy()) return;
    const attached = files.taken();
    notice("");
    tree.add(chat, chat.leaf, { role: "user", content: text, ...(attached.length ? { files: attached } : {}) });
    chat.title ||= titleOf(text.trim() || attached[0].name);
    field.value = "";
    grow();
    save(chat);
    answer(chat);
}

// ---- what can be done with a message ----

// The path of c, of which the message with the id `from` is the first one that is sent.
const bodyFrom = from => body({ ...chat, from }, modelOf(chat));

const on = {
    redraw(m) { drawMessage(m); },
    focus() { $("prompt").focus(); },
    regenerate(m)
    {
        chat.leaf = m.parent;
        answer(chat);
        $("prompt").focus();
    },
    edit(m, text)
    {
        tree.add(chat, m.parent, { role: "user", content: text, ...(m.files ? { files: m.files } : {}) });
        answer(chat);
    },
    remove(m)
    {
        if (!confirm(t("removeMessageSure"))) return;
        tree.remove(chat, m);
        save(chat);
        redrawMessages();
        $("prompt").focus();
    },
    choose(m)
    {
        tree.choose(chat, m);
        save(chat);
        redrawMessages();
    },
    results(m, texts)
    {
        m.calls.forEach((c, i) => tree.add(chat, chat.leaf, { role: "tool", content: texts[i], name: c.name,
                                                              call_id: c.id }));
        answer(chat);
        $("prompt").focus();
    },
    // The question of the failed answer m again, without the oldest turns.
    async dropOldest(m)
    {
        const c = chat;
        tree.remove(c, m);
        try {
            const from = await firstThatFits(c, contexts[modelOf(c)], bodyFrom);
            if (from === null) throw new ServerError(t("tooLong"));
            c.from = from;
        } catch (e) {
            tree.add(c, c.leaf, { role: "assistant", content: "", error: e.message });
            if (c === chat) show(c);
            return;
        }
        answer(c);
    },
    // The same question in a conversation of its own.
    carryOver(m)
    {
        const question = chat.messages.find(o => o.id === m.parent);
        show(fresh());
        tree.add(chat, 0, { role: "user", content: question.content, ...(question.files ? { files: question.files } : {}) });
        chat.title = titleOf(question.content || question.files?.[0].name || "");
        save(chat);
        answer(chat);
    },
};

// ---- the form ----

function grow()
{
    const field = $("prompt");
    field.style.height = "auto";
    field.style.height = field.scrollHeight + 2 + "px";
}

function startNew()
{
    show(fresh());
    closeSide();
    $("prompt").focus();
}

function openSide()
{
    const open = $("side").classList.toggle("open");
    $("menu").setAttribute("aria-expanded", String(open));
    if (open) $("new").focus();
}

// Keys of the message field: Enter sends, up in an empty one edits the last question.
function promptKey(e)
{
    // While a syllable is composed, Enter ends the syllable.
    if (e.shiftKey || e.isComposing || e.keyCode === 229) return;
    const last = e.key === "ArrowUp" && !e.target.value && !busy() &&
        tree.path(chat).findLast(m => m.role === "user");
    if (e.key !== "Enter" && !last) return;
    e.preventDefault();
    if (last) message.edit(last, on);
    else ask();
}

function pageKey(e)
{
    if (document.querySelector("dialog[open]")) return;
    const key = e.key.toLowerCase(), ctrl = e.ctrlKey || e.metaKey;
    if (ctrl && key === "k") {
        if (!$("side").classList.contains("open") && getComputedStyle($("side")).display === "none") openSide();
        $("search").focus();
    } else if (ctrl && e.shiftKey && key === "o") {
        startNew();
    } else if (key === "escape") {
        if ($("side").classList.contains("open")) closeSide();
        else if (!$("params").hidden && $("params").contains(document.activeElement)) toggleParams(false);
        else running.get(chat.id)?.abort.abort();
        return;
    } else {
        return;
    }
    e.preventDefault();
}

// In the language of now.
export function redraw()
{
    message.forget();
    show(chat);
}

async function findModels()
{
    try {
        const served = (await (await request("/v1/models")).json()).data;
        models = served.map(m => m.id);
        contexts = Object.fromEntries(served.map(m => [m.id, m.max_model_len]));
    } catch (e) {
        notice(e.message);
    }
}

export async function start()
{
    list.start({ open(id) { show(load(id)); closeSide(); }, shown: () => chat, load, remove: removeChat,
                 renamed: renameChat, notice });
    files.start($("files"), $("talk"), $("file"), $("prompt"), notice);
    show((store.setting("current") && store.load(store.setting("current"))) || load(store.list()[0]?.id));
    followSize();
    $("ask").addEventListener("submit", e => { e.preventDefault(); ask(); });
    $("prompt").addEventListener("input", grow);
    $("prompt").addEventListener("keydown", promptKey);
    $("attach").addEventListener("click", () => $("file").click());
    $("model").addEventListener("change", () => {
        chat.params.model = $("model").value;
        if (chat.messages.length) save(chat);
        drawState();
    });
    $("stop").addEventListener("click", () => running.get(chat.id)?.abort.abort());
    $("settings").addEventListener("click", () => toggleParams($("params").hidden));
    $("new").addEventListener("click", startNew);
    $("menu").addEventListener("click", openSide);
    $("talk").addEventListener("click", closeSide);
    addEventListener("keydown", pageKey);
    addEventListener("pagehide", () => { leaving = true; });
    addEventListener("pageshow", () => { leaving = false; });
    await findModels();
    drawState();
    document.documentElement.dataset.ready = language();
    $("prompt").focus();
}
