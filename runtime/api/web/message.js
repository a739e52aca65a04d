// How one message is shown: its thought, files, text, tool calls, what went wrong, and what can be done
// with it. What is done is chat.js' affair (`on`).

import { highlighted } from "./code.js";
import { copyButton } from "./copy.js";
import { label } from "./files.js";
import { render } from "./markdown.js";
import * as probs from "./probs.js";
import { siblings } from "./tree.js";
import { button, element, name, number, t } from "./words.js";

let nodes = new WeakMap(); // message -> its node, while shown
const tokens = new WeakMap(); // message -> its tokens with their probabilities
const withProbs = new WeakSet(); // messages that are shown with them
let edited = null; // the message whose text is a field now

export function forget() { nodes = new WeakMap(); }
export function keepTokens(m, more) { tokens.set(m, [...tokens.get(m) || [], ...more]); }

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

// ---- parts ----

// Open while it grows and nothing is answered yet, unless the reader has said otherwise.
function thought(box, m)
{
    let d = box.querySelector("details");
    if (!d) {
        d = element("details", "thought", "", element("summary"), element("div", "thoughts"));
        d.firstChild.addEventListener("click", () => { d.dataset.touched = "yes"; });
    }
    const growing = Boolean(m.pending && !m.content && !m.calls?.length);
    if (!d.dataset.touched) d.open = growing;
    d.firstChild.textContent = t(growing ? "thinking" : "thoughts");
    d.lastChild.textContent = m.thoughts.trim();
    return d;
}

function pretty(json)
{
    try {
        return JSON.stringify(JSON.parse(json), null, 2);
    } catch { // not complete yet
        return json;
    }
}

function call(c)
{
    const pre = element("pre", "", "", highlighted(pretty(c.arguments), "json"));
    pre.tabIndex = 0;
    pre.setAttribute("role", "group");
    name(pre, t("arguments", c.name));
    return element("section", "call", "", element("p", "", t("calls", c.name)),
                   element("div", "code", "", pre, copyButton(() => pretty(c.arguments))));
}

// What the tools answered: the person types it, the model goes on with it.
function resultForm(m, on)
{
    const fields = m.calls.map((c, i) => {
        const field = element("textarea");
        field.rows = 2;
        field.id = `result-${m.id}-${i}`;
        const l = element("label", "", t("toolResult", c.name));
        l.htmlFor = field.id;
        return [l, field];
    });
    const form = element("form", "results", "", ...fields.flat(), element("button", "small main", t("sendResults")));
    form.addEventListener("submit", e => {
        e.preventDefault();
        on.results(m, fields.map(([, field]) => field.value));
    });
    return form;
}

function editor(m, on)
{
    const field = element("textarea");
    field.value = m.content;
    field.rows = Math.min(12, m.content.split("\n").length + 1);
    name(field, t("editMessage"));
    const end = send => {
        edited = null;
        if (send && field.value.trim() && field.value !== m.content) on.edit(m, field.value);
        else on.redraw(m);
        on.focus();
    };
    field.addEventListener("keydown", e => {
        if (e.isComposing || e.keyCode === 229) return;
        if (e.key === "Escape") e.stopPropagation();
        else if (e.key !== "Enter" || e.shiftKey) return;
        e.preventDefault();
        end(e.key === "Enter");
    });
    return element("div", "editor", "", field,
                   element("div", "row", "", button("small main", t("send"), () => end(true)),
                           button("small", t("cancel"), () => end(false))));
}

export function edit(m, on)
{
    edited = m;
    on.redraw(m);
    const field = nodes.get(m).querySelector(".editor textarea");
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
}

function failure(m, view)
{
    const e = element("p", "error", m.error);
    e.setAttribute("role", "alert");
    if (m.code !== "context_length_exceeded" || !view.last) return [e];
    return [e, element("div", "row", "", button("small main", t("dropOldest"), () => view.on.dropOldest(m)),
                       button("small", t("newWithQuestion"), () => view.on.carryOver(m)))];
}

// Which of several versions is shown.
function versions(m, view)
{
    const all = siblings(view.chat, m), at = all.indexOf(m);
    if (all.length < 2) return [];
    const to = (sign, text, i) => {
        const b = button("small", sign, () => view.on.choose(all[i]));
        b.disabled = i < 0 || i >= all.length;
        name(b, text);
        return b;
    };
    return [to("‹", t("versionBefore"), at - 1),
            element("span", "quiet version", t("version", at + 1, all.length)),
            to("›", t("versionAfter"), at + 1)];
}

function foot(m, view)
{
    const { on, busy } = view, box = element("div", "foot", "", ...versions(m, view));
    if (m.content) box.append(copyButton(() => m.content));
    const add = (className, text, does) => {
        const b = button("small " + className, text, does);
        b.disabled = busy;
        box.append(b);
    };
    if (m.role === "user") add("edit", t("edit"), () => edit(m, on));
    if (m.role === "assistant") add("again", t("regenerate"), () => on.regenerate(m));
    if (tokens.has(m))
        add("with-probs", t("probs"), () => {
            if (!withProbs.delete(m)) withProbs.add(m);
            on.redraw(m);
        });
    add("away", t("removeMessage"), () => on.remove(m));
    if (m.role === "assistant") box.append(element("span", "quiet usage", usageText(m)));
    return box;
}

// ---- the whole ----

function textOf(box, m)
{
    const text = box.querySelector(".text") || element("div", "text");
    if (withProbs.has(m) && !m.pending) {
        text.shownBlocks = null;
        text.replaceChildren(probs.show(tokens.get(m)));
    } else if (m.role === "assistant") {
        if (!text.shownBlocks) text.replaceChildren();
        render(text, m.content);
    } else {
        text.textContent = m.content;
    }
    text.classList.toggle("waiting", Boolean(m.pending && !(m.thoughts && !m.content)));
    return text;
}

// view: { chat, last: m ends the conversation, busy: an answer comes in, on: what can be done }
export function draw(m, view)
{
    let box = nodes.get(m);
    if (!box) {
        box = element("article", "message " + m.role);
        nodes.set(m, box);
    }
    name(box, { user: t("you"), assistant: t("model"), tool: t("toolResult", m.name || "") }[m.role]);
    const parts = [];
    if (m.thoughts) parts.push(thought(box, m));
    if (m.role === "tool") parts.push(element("p", "quiet", t("toolResult", m.name || "")));
    if (m.files?.length)
        parts.push(element("ul", "files", "", ...m.files.map(f => element("li", "file", "", label(f)))));
    if (edited === m) parts.push(editor(m, view.on));
    else if (m.content || m.pending) parts.push(textOf(box, m));
    parts.push(...(m.calls || []).map(call));
    if (m.error) parts.push(...failure(m, view));
    if (!m.pending && edited !== m) {
        if (m.calls?.length && view.last) parts.push(resultForm(m, view.on));
        parts.push(foot(m, view));
    }
    // Only what changed is moved: an unchanged node keeps focus and selection.
    if (parts.some((p, i) => box.children[i] !== p) || box.children.length !== parts.length)
        box.replaceChildren(...parts);
    return box;
}
