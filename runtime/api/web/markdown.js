// Markdown to nodes of the document. markdown-it parses (with LaTeX and task lists by its plugins) and
// its tokens become nodes here: no HTML text is ever made, so that what a model says is only ever text.
// Links lead to http, https and mailto alone; images are links.

import { highlighted } from "./code.js";
import { copyButton } from "./copy.js";
import MarkdownIt from "./vendor/markdown-it.esm.min.mjs";
import { tasklist } from "./vendor/mdit-tasklist.js";
import { tex } from "./vendor/mdit-tex.js";
import { element, name, t } from "./words.js";

const LONGEST = 400000; // a longer text is shown as it is written

const md = new MarkdownIt({ html: false, linkify: true, breaks: true, maxNesting: 30 });
md.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
md.use(tex, { delimiters: "all", render: s => s });
md.use(tasklist, { label: false });

// ---- formulas ----

// Temml writes a style into attributes of a few nodes, which the page's policy refuses; as properties
// of the node they may stay.
function stylesToProperties(tree)
{
    const text = tree.attributes?.style;
    if (text) {
        delete tree.attributes.style;
        for (const one of text.split(";").filter(s => s.includes(":"))) {
            const [key, value] = one.split(":");
            tree.style[key.trim().replace(/-(\w)/g, (_, c) => c.toUpperCase())] = value.trim();
        }
    }
    for (const child of tree.children || []) stylesToProperties(child);
    return tree;
}

function formula(text, display)
{
    const box = element(display ? "div" : "span", display ? "formula" : "");
    try {
        box.append(stylesToProperties(window.temml.__renderToMathMLTree(
            text, { displayMode: display, throwOnError: true, maxExpand: 1000 })).toNode());
        scrollable(box, display && t("formula"));
    } catch { // half written, or not LaTeX that is known
        box.append(element("code", "", text));
    }
    return box;
}

// What may be wider than the page scrolls by itself, and by the keyboard too.
function scrollable(box, label)
{
    if (!label) return;
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    name(box, label);
}

// ---- tokens to nodes ----

function link(address)
{
    let url = null;
    try {
        url = new URL(address);
    } catch {} // relative, or none at all
    if (!url || !["http:", "https:", "mailto:"].includes(url.protocol)) {
        const span = element("span");
        span.dataset.after = ` (${address})`;
        return span;
    }
    const a = element("a");
    a.href = url.href;
    a.target = "_blank";
    a.rel = "noopener noreferrer nofollow";
    a.title = url.href;
    return a;
}

function code(token)
{
    const text = token.content.replace(/\n$/, ""), lang = token.info?.trim().split(/\s+/)[0] || "";
    const pre = element("pre", "", "", highlighted(text, lang));
    scrollable(pre, lang || t("code"));
    const box = element("div", "code", "", pre, copyButton(() => text));
    if (lang) box.prepend(element("span", "lang quiet", lang));
    return box;
}

function cell(tag)
{
    return token => {
        const e = element(tag), align = /text-align:(\w+)/.exec(token.attrGet("style") || "");
        if (align) e.style.textAlign = align[1];
        return e;
    };
}

function image(token)
{
    const a = link(token.attrGet("src"));
    a.append(token.content || token.attrGet("src"));
    return close(a);
}

function checkbox(token, of)
{
    const e = element("input");
    Object.assign(e, { type: "checkbox", disabled: true, checked: token.attrGet("checked") !== null });
    e.setAttribute("aria-label", of.content.slice(4));
    return e;
}

const plain = tag => () => element(tag);
// Token's type -> (token, the inline token that it is in) => node. One that is not here is its text.
const NODES = {
    paragraph_open: plain("p"), blockquote_open: plain("blockquote"), hr: plain("hr"),
    bullet_list_open: plain("ul"), list_item_open: plain("li"),
    heading_open: token => element("h" + Math.min(6, Number(token.tag[1]) + 2)),
    ordered_list_open: token => Object.assign(element("ol"), { start: token.attrGet("start") ?? 1 }),
    table_open: plain("table"), thead_open: plain("thead"), tbody_open: plain("tbody"),
    tr_open: plain("tr"), th_open: cell("th"), td_open: cell("td"),
    fence: code, code_block: code,
    code_inline: token => element("code", "", token.content),
    em_open: plain("em"), strong_open: plain("strong"), s_open: plain("del"),
    softbreak: plain("br"), hardbreak: plain("br"),
    link_open: token => link(token.attrGet("href")), image,
    math_inline: token => formula(token.content, false),
    math_block: token => formula(token.content, true),
    checkbox_input: checkbox,
};

// Of a node that is complete.
function close(e)
{
    if (e.dataset.after) e.append(e.dataset.after);
    if (e.tagName !== "TABLE") return e;
    const box = element("div", "table", "", e);
    scrollable(box, t("table"));
    return box;
}

function nodesOf(tokens, of)
{
    const root = document.createDocumentFragment(), open = [root];
    for (const token of tokens) {
        const top = open.at(-1);
        if (token.nesting < 0) {
            const done = open.pop();
            if (done !== open.at(-1)) open.at(-1).append(close(done));
        } else if (token.hidden) { // the paragraph of a tight list's item
            open.push(top);
        } else if (token.nesting > 0) {
            open.push((NODES[token.type] || plain("span"))(token, of));
        } else if (token.type === "inline") {
            top.append(nodesOf(token.children, token));
        } else {
            top.append(NODES[token.type]?.(token, of) ?? token.content);
        }
    }
    return root;
}

// ---- a text that grows ----

// [{ key, tokens }]: one for each block at the top. Equal keys give equal nodes.
function blocksOf(text)
{
    const env = {}, lines = text.split("\n"), out = [];
    let depth = 0;
    for (const token of md.parse(text, env)) {
        if (depth === 0) out.push({ key: token.type + "\n" + lines.slice(...token.map || [0, 0]).join("\n"), tokens: [] });
        out.at(-1).tokens.push(token);
        depth += token.nesting;
    }
    const references = JSON.stringify(env.references || {}); // what links of any block may name
    for (const b of out) b.key += references;
    return out;
}

// Makes `box` show the text. Nodes of unchanged blocks stay (with what is selected in them).
export function render(box, text)
{
    text = text.replace(/\r\n?/g, "\n");
    if (text.length > LONGEST) {
        box.shownBlocks = [];
        box.replaceChildren(element("pre", "plain", text));
        return;
    }
    const have = box.shownBlocks || [], want = blocksOf(text);
    let same = 0;
    while (same < have.length && same < want.length && have[same] === want[same].key) same++;
    while (box.childNodes.length > same) box.lastChild.remove();
    for (const b of want.slice(same)) {
        const made = nodesOf(b.tokens);
        box.append(made.childNodes.length === 1 ? made : element("div", "", "", made));
    }
    box.shownBlocks = want.map(b => b.key);
}
