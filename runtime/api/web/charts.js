// A small line chart in SVG: up to two lines over the last N values, the present ones in words.

import { element, number, t } from "./words.js";

const W = 300, H = 90, SVG = "http://www.w3.org/2000/svg";

function shape(tag, attributes)
{
    const e = document.createElementNS(SVG, tag);
    for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
    return e;
}

// The least of 1, 2, 5 times a power of ten that is not below v.
function ceiling(v)
{
    if (!(v > 0)) return 1;
    const p = 10 ** Math.floor(Math.log10(v));
    return [1, 2, 5, 10].map(k => k * p).find(k => k >= v * 0.999);
}

// o: { title, unit or "", lines: [names or ""], digits, top (the scale's end unless a value exceeds
// it), beyond (what is said then) }; texts are keys of words.js.
export class Chart {
    constructor(o, length)
    {
        this.o = o;
        this.length = length;
        this.values = o.lines.map(() => []);
        this.svg = shape("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img" });
        this.lines = o.lines.map((_, i) => shape("polyline", { class: "ab"[i] }));
        for (const y of [1, H / 2, H - 1]) this.svg.append(shape("line", { x1: 0, x2: W, y1: y, y2: y }));
        this.svg.append(...this.lines);
        this.title = element("h2");
        this.now = element("p", "now");
        this.scale = element("div", "scale");
        this.note = element("p", "note quiet");
        this.node = element("section", "chart", "", this.title, this.now, this.svg, this.scale, this.note);
        this.draw();
    }

    // One value for each line; NaN leaves a gap.
    add(values)
    {
        values.forEach((v, i) => {
            this.values[i].push(v);
            if (this.values[i].length > this.length) this.values[i].shift();
        });
        this.draw();
    }

    draw()
    {
        const o = this.o, known = this.values.flat().filter(v => !Number.isNaN(v));
        const most = Math.max(...known, 0), top = most <= o.top ? o.top : ceiling(most);
        const say = v => v === undefined || Number.isNaN(v) ? t("noValue") : number(v, o.digits || 0);
        const words = o.lines.map((n, i) => [say(this.values[i].at(-1)), n ? t(n) : ""]);
        const unit = o.unit ? t(o.unit) : "";
        this.title.textContent = t(o.title) + (unit && ` (${unit})`);
        this.now.replaceChildren(...words.flatMap(([v, n], i) =>
            [element("span", "ab"[i], v), element("small", "", n)]));
        this.svg.setAttribute("aria-label", `${t(o.title)}: ` +
            words.map(([v, n]) => `${n} ${v} ${unit}`).join(", "));
        this.scale.replaceChildren(element("span", "", t("seconds", `−${this.length}`)),
                                   element("span", "", `0 – ${number(top, top < 1 ? 1 : 0)}`),
                                   element("span", "", t("now")));
        this.note.hidden = !o.beyond || most <= o.top;
        this.note.textContent = o.beyond ? t(o.beyond) : "";
        this.lines.forEach((line, i) => {
            const list = this.values[i], at = [];
            list.forEach((v, k) => {
                const x = W * (this.length - list.length + k) / (this.length - 1);
                if (!Number.isNaN(v)) at.push(`${x.toFixed(1)},${(H - 2 - (H - 4) * v / top).toFixed(1)}`);
            });
            line.setAttribute("points", at.join(" "));
        });
    }
}
