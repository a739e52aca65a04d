// The first tab: conversations. A chat is answered even while another one is shown; what is shown
// follows the chat's messages, never the other way round.

import { copy, render } from "./markdown.js";
import * as params from "./params.js";
import { ServerError, request, stream } from "./server.js";
import * as store from "./store.js";
import { button, element, language, name, number, t } from "./words.js";

const $ = id => document.getElementById(id);
const SAVE_MS = 500, NEAR_END = 60; // pixels from the end in which the view follows an answer

let chat = null; // the shown one
let models = [], contexts = {};
const running = new Map(); // id of a chat -> { chat, abort }
let leaving = false; // the page is being closed or loaded anew: what runs breaks off
let nodes = new WeakMap(); // message -> its node, while shown

// ---- the list ----

function drawList()
{
    const box = $("chats");
    box.replaceChildren(...store.list().map(c => {
        const title = c.title || t("untitled");
        const open = button("name", title, () => { show(load(c.id)); closeSide(); });
        const away = button("small", "×", () => remove(c.id, title));
        name(away, t("remove", title));
        const li = element("li", c.id === chat.id ? "current" : "", "", open, away);
        if (c.id === chat.id) open.setAttribute("aria-current", "true");
        return li;
    }));
}

function load(id) { return running.get(id)?.chat || store.load(id) || fresh(); }

function fresh()
{
    return { id: store.newId(), title: "", messages: [], params: { ...chat?.params } };
}

function remove(id, title)
{
    if (!confirm(t("removeSure", title))) return;
    running.get(id)?.abort.abort();
    running.delete(id);
    store.remove(id);
    if (id !== chat.id) drawList();
    else show(load(store.list()[0]?.id));
}

function save(c)
{
    if (!store.save(c)) say(t("full"));
}

export function closeSide()
{
    $("side").classList.remove("open");
    $("menu").setAttribute("aria-expanded", "false");
}

// ---- the conversation ----

function say(text) { $("said").textContent = text; }

function usageText(m)
{
    const parts = [];
    if (m.end === "stopped") parts.push(t("stopped"));
    if (m.end === "length") parts.push(t("cut"));
    if (m.usage) {
        const u = m.usage, cached = u.prompt_tokens_details?.cached_tokens;
        parts.push(t("usage", number(u.prompt_tokens), number(u.completion_tokens)));
        if (cached) parts.push(t("cached", number(cached)));
        if (m.times?.first) {
            parts.push(t("first", number(m.times.first, 2)));
            const rest = m.times.whole - m.times.first;
            if (u.completion_tokens > 1 && rest > 0)
                parts.push(t("speed", number((u.completion_tokens - 1) / rest, 1)));
        }
    }
    return parts.join(" · ");
}

function drawMessage(m)
{
    let box = nodes.get(m);
    if (!box) {
        box = element("article", "message " + m.role);
        nodes.set(m, box);
    }
    name(box, t(m.role === "user" ? "you" : "model"));
    const text = box.querySelector(".text") || element("div", "text");
    const parts = [text];
    if (m.thoughts) {
        const open = box.querySelector("details") || element("details", "", "", element("summary"),
                                                             element("div", "thoughts"));
        open.firstChild.textContent = t("thoughts");
        open.lastChild.textContent = m.thoughts;
        parts.unshift(open);
    }
    if (m.role === "user") text.textContent = m.content;
    else render(text, m.content);
    text.classList.toggle("waiting", Boolean(m.pending));
    if (m.error) {
        const e = element("p", "error", m.error);
        e.setAttribute("role", "alert");
        parts.push(e);
    }
    if (!m.pending) {
        const foot = element("div", "foot");
        if (m.content) foot.append(button("small", t("copy"), e => copy(m.content, e.currentTarget)));
        if (m.role !== "user" && m === chat.messages.at(-1))
            foot.append(button("small again", t("regenerate"), regenerate));
        if (m.role !== "user") foot.append(element("span", "quiet usage", usageText(m)));
        parts.push(foot);
    }
    // Only what changed is moved: an unchanged node keeps focus and selection.
    if (parts.some((p, i) => box.children[i] !== p) || box.children.length !== parts.length)
        box.replaceChildren(...parts);
    return box;
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
    const busy = running.has(chat.id), last = chat.messages.findLast(m => m.usage);
    const most = contexts[chat.params.model || models[0]];
    $("send").hidden = busy;
    $("stop").hidden = !busy;
    $("context").hidden = !last || !most;
    if (last && most)
        $("context").textContent =
            t("context", number(last.usage.prompt_tokens + last.usage.completion_tokens), number(most));
}

function show(next)
{
    chat = next;
    store.set("current", chat.id);
    const box = $("messages");
    box.replaceChildren(...(chat.messages.length ? chat.messages.map(drawMessage)
                                                 : [element("p", "empty quiet", t("empty"))]));
    toEnd();
    drawList();
    drawParams();
    drawState();
}

function drawParams()
{
    params.show($("params"), chat.params, models, () => { if (chat.messages.length) save(chat); },
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

function bodyOf(c)
{
    const body = { ...params.ofRequest(c.params), model: c.params.model || models[0], stream: true,
                   stream_options: { include_usage: true } };
    // A question whose answer failed at once is not part of the conversation.
    const said = c.messages.slice(0, -1).filter((m, i) => {
        const next = c.messages[i + 1];
        return m.role === "user" ? !(next?.error && !next.content && i + 2 < c.messages.length)
                                 : m.content;
    });
    if (c.params.plain) return { ...body, prompt: said.map(m => m.content).join("") };
    body.messages = said.map(m => ({ role: m.role, content: m.content }));
    if (c.params.system) body.messages.unshift({ role: "system", content: c.params.system });
    return body;
}

function take(m, event, start)
{
    const choice = event.choices[0], delta = choice?.delta || {};
    const text = delta.content || choice?.text || "", thoughts = delta.reasoning_content || "";
    if ((text || thoughts) && !m.times) m.times = { first: (performance.now() - start) / 1000 };
    m.content += text;
    m.thoughts += thoughts;
    if (choice?.finish_reason) m.end = choice.finish_reason;
    if (event.usage) m.usage = event.usage;
}

async function answer(c)
{
    const m = { role: "assistant", content: "", thoughts: "", pending: true };
    const abort = new AbortController(), start = performance.now();
    let saved = start, drawn = 0;
    const draw = () => {
        drawn = 0;
        if (c === chat) follow(() => drawMessage(m));
    };
    c.messages.push(m);
    running.set(c.id, { chat: c, abort });
    if (c === chat) show(c);
    say(t("answering"));
    try {
        await stream(c.params.plain ? "/v1/completions" : "/v1/chat/completions", bodyOf(c),
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
        else if (e instanceof ServerError) m.error = e.message;
        else m.error = String(e);
        say(m.error || t("stopped"));
    }
    cancelAnimationFrame(drawn);
    delete m.pending;
    if (m.times) m.times.whole = (performance.now() - start) / 1000;
    if (running.get(c.id)?.chat !== c) return; // it was deleted meanwhile
    running.delete(c.id);
    save(c);
    if (c !== chat) return;
    draw();
    drawState();
}

function ask()
{
    const field = $("prompt"), text = field.value;
    if (!text.trim() || running.has(chat.id)) return;
    chat.messages.push({ role: "user", content: text });
    chat.title ||= text.trim().split("\n")[0].slice(0, 60);
    field.value = "";
    grow();
    save(chat);
    answer(chat);
}

function regenerate()
{
    if (running.has(chat.id)) return;
    chat.messages.pop();
    answer(chat);
    $("prompt").focus();
}

// ---- the form ----

function grow()
{
    const field = $("prompt");
    field.style.height = "auto";
    field.style.height = field.scrollHeight + 2 + "px";
}

// In the language of now.
export function redraw()
{
    nodes = new WeakMap();
    show(chat);
}

export async function start()
{
    show(store.load(store.setting("current")) || load(store.list()[0]?.id));
    followSize();
    $("ask").addEventListener("submit", e => { e.preventDefault(); ask(); });
    $("prompt").addEventListener("input", grow);
    $("prompt").addEventListener("keydown", e => {
        // While a syllable is composed, Enter ends the syllable.
        if (e.key !== "Enter" || e.shiftKey || e.isComposing || e.keyCode === 229) return;
        e.preventDefault();
        ask();
    });
    $("stop").addEventListener("click", () => running.get(chat.id)?.abort.abort());
    $("settings").addEventListener("click", () => toggleParams($("params").hidden));
    $("new").addEventListener("click", () => { show(fresh()); closeSide(); $("prompt").focus(); });
    $("menu").addEventListener("click", () => {
        const open = $("side").classList.toggle("open");
        $("menu").setAttribute("aria-expanded", String(open));
        if (open) $("new").focus();
    });
    $("talk").addEventListener("click", closeSide);
    addEventListener("keydown", e => {
        if (e.key !== "Escape" || $("key-dialog").open) return;
        if ($("side").classList.contains("open")) closeSide();
        else if (!$("params").hidden && $("params").contains(document.activeElement)) toggleParams(false);
        else running.get(chat.id)?.abort.abort();
    });
    store.onChange(drawList);
    addEventListener("pagehide", () => { leaving = true; });
    addEventListener("pageshow", () => { leaving = false; });
    try {
        const served = (await (await request("/v1/models")).json()).data;
        models = served.map(m => m.id);
        contexts = Object.fromEntries(served.map(m => [m.id, m.max_model_len]));
        $("served").textContent = models[0];
    } catch (e) {
        say(e.message);
        $("served").textContent = e.message;
    }
    drawParams();
    drawState();
    document.documentElement.dataset.ready = language();
    $("prompt").focus();
}
