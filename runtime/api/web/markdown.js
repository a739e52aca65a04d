// The part of Markdown that models write, as nodes of the document: what a model says is only ever
// text in them. Links lead to http, https and mailto alone; images are links.
//
// A text is a list of blocks; a streamed text changes in its last ones, so render() keeps the nodes
// of blocks that are as they were.

import { button, element, t } from "./words.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/, HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/, RULE = /^ {0,3}([-*_])\s*(\1\s*){2,}$/;
const TABLE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

// [{ kind, lines }]
function blocks(text)
{
    const out = [], lines = text.replace(/\r\n?/g, "\n").split("\n");
    let i = 0;
    const take = (kind, while_) => {
        const block = { kind, lines: [] };
        while (i < lines.length && while_(lines[i])) block.lines.push(lines[i++]);
        out.push(block);
    };
    const plain = line => line.trim() && !FENCE.test(line) && !HEADING.test(line) &&
        !ITEM.test(line) && !RULE.test(line) && !line.startsWith(">");
    while (i < lines.length) {
        const line = lines[i], fence = FENCE.exec(line);
        if (!line.trim()) {
            i++;
        } else if (fence) {
            const block = { kind: "code", lines: [fence[2]] };
            const end = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}\\s*$`);
            for (i++; i < lines.length && !end.test(lines[i]); i++) block.lines.push(lines[i]);
            i++;
            out.push(block);
        } else if (HEADING.test(line)) {
            out.push({ kind: "heading", lines: [lines[i++]] });
        } else if (RULE.test(line)) {
            out.push({ kind: "rule", lines: [lines[i++]] });
        } else if (line.startsWith(">")) {
            take("quote", l => l.startsWith(">"));
        } else if (ITEM.test(line)) {
            take("list", l => ITEM.test(l) || /^\s{2,}\S/.test(l));
        } else if (line.includes("|") && TABLE.test(lines[i + 1] || "")) {
            take("table", l => l.includes("|"));
        } else {
            take("text", plain);
        }
    }
    return out;
}

// ---- inside a line ----

const INLINE = new RegExp([
    "(`+)(.+?)\\1(?!`)", // 1, 2: code
    "!?\\[([^\\]\\n]*)\\]\\(([^()\\s]+)(?:\\s+\"[^\"]*\")?\\)", // 3, 4: link
    "(\\*\\*|__)(?=\\S)(.+?)(?<=\\S)\\5", // 5, 6: strong
    "(?<![*\\w])\\*(?=[^\\s*])(.+?)(?<=[^\\s*])\\*(?![*\\w])", // 7: emphasis
    "~~(?=\\S)(.+?)~~", // 8: struck
    "(https?://[^\\s<>()\\[\\]]+[^\\s<>()\\[\\].,;:!?'\"])", // 9: bare link
    "\\\\([!-/:-@\\[-`{-~])", // 10: escaped
].join("|"), "gs");
const NESTING = 8, LONGEST = 20000; // beyond them a text is shown as it is written

function link(address, children)
{
    let url = null;
    try {
        url = new URL(address);
    } catch {} // relative, or none at all
    if (!url || !["http:", "https:", "mailto:"].includes(url.protocol))
        return element("span", "", "", ...children, ` (${address})`);
    const a = element("a", "", "", ...children);
    a.href = url.href;
    a.target = "_blank";
    a.rel = "noopener noreferrer nofollow";
    a.title = url.href;
    return a;
}

function inline(text, depth = 0)
{
    if (depth > NESTING || text.length > LONGEST) return [text];
    const out = [];
    let end = 0;
    for (const m of text.matchAll(INLINE)) {
        out.push(text.slice(end, m.index));
        end = m.index + m[0].length;
        const inner = s => inline(s, depth + 1);
        if (m[2] !== undefined) out.push(element("code", "", m[2].replace(/^ (.*) $/, "$1")));
        else if (m[4] !== undefined) out.push(link(m[4], inner(m[3])));
        else if (m[6] !== undefined) out.push(element("strong", "", "", ...inner(m[6])));
        else if (m[7] !== undefined) out.push(element("em", "", "", ...inner(m[7])));
        else if (m[8] !== undefined) out.push(element("del", "", "", ...inner(m[8])));
        else if (m[9] !== undefined) out.push(link(m[9], [m[9]]));
        else out.push(m[10]);
    }
    out.push(text.slice(end));
    return out.filter(x => x !== "");
}

// ---- blocks to nodes ----

function code(lines)
{
    const text = lines.slice(1).join("\n"), box = element("div", "code");
    const pre = element("pre", "", "", element("code", "", text));
    if (lines[0]) pre.dataset.language = lines[0];
    pre.tabIndex = 0; // it may scroll
    box.append(pre, button("small", t("copy"), e => copy(text, e.currentTarget)));
    return box;
}

export async function copy(text, b)
{
    let said = "copied";
    try {
        await navigator.clipboard.writeText(text);
    } catch { // pages without TLS have no clipboard
        const field = element("textarea", "hidden");
        field.value = text;
        b.after(field);
        field.select();
        if (!document.execCommand("copy")) said = "copyFailed";
        field.remove();
        b.focus();
    }
    b.textContent = t(said);
    setTimeout(() => { b.textContent = t("copy"); }, 1500);
}

function listNode(lines, depth = 0)
{
    const first = ITEM.exec(lines[0]), margin = first[1].length;
    const list = element(/\d/.test(first[2]) ? "ol" : "ul");
    if (list.tagName === "OL") list.start = parseInt(first[2], 10);
    for (let i = 0; i < lines.length;) {
        const item = element("li"), m = ITEM.exec(lines[i++]);
        const own = [m ? m[3] : lines[i - 1].trim()], inner = [];
        while (i < lines.length) {
            const next = ITEM.exec(lines[i]);
            if (next && next[1].length <= margin + 1) break;
            (next || inner.length ? inner : own).push(lines[i++]);
        }
        item.append(...inline(own.map(s => s.trim()).join("\n")));
        if (inner.length && depth < NESTING) item.append(listNode(inner, depth + 1));
        else item.append(inner.join("\n"));
        list.append(item);
    }
    return list;
}

function table(lines)
{
    const cells = line => line.trim().replace(/^\||\|$/g, "").split("|").map(c => inline(c.trim()));
    const row = (tag, line) => element("tr", "", "", ...cells(line).map(c => element(tag, "", "", ...c)));
    return element("table", "", "", element("thead", "", "", row("th", lines[0])),
                   element("tbody", "", "", ...lines.slice(2).map(l => row("td", l))));
}

function paragraph(lines)
{
    const p = element("p");
    lines.forEach((line, i) => {
        if (i) p.append(element("br"));
        p.append(...inline(line));
    });
    return p;
}

function node(block, depth)
{
    const lines = block.lines;
    switch (block.kind) {
    case "code": return code(lines);
    case "heading": {
        const m = HEADING.exec(lines[0]);
        return element("h" + Math.min(6, m[1].length + 2), "", "", ...inline(m[2]));
    }
    case "rule": return element("hr");
    case "quote": {
        const box = element("blockquote"), text = lines.map(l => l.replace(/^> ?/, "")).join("\n");
        if (depth < NESTING) box.append(...blocks(text).map(b => node(b, depth + 1)));
        else box.textContent = text;
        return box;
    }
    case "list": return listNode(lines);
    case "table": return table(lines);
    default: return paragraph(lines);
    }
}

// Makes `box` show the text. Nodes of unchanged blocks stay (with what is selected in them).
export function render(box, text)
{
    const have = box.shownBlocks || [];
    const want = blocks(text).map(b => ({ ...b, key: b.kind + "\n" + b.lines.join("\n") }));
    let same = 0;
    while (same < have.length && same < want.length && have[same] === want[same].key) same++;
    while (box.children.length > same) box.lastChild.remove();
    for (const b of want.slice(same)) box.append(node(b, 0));
    box.shownBlocks = want.map(b => b.key);
}
