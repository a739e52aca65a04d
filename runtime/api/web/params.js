// The panel of parameters: those of the conversation that is shown. A field that is empty is not
// sent, so that the server's and the model's own defaults hold.

import { button, element, t } from "./words.js";

// name, least, most, step (of the arrows); what a server refuses it says itself
const NUMBERS = [
    ["temperature", 0, 2, 0.1], ["top_p", 0.05, 1, 0.05], ["top_k", 0, 1000, 1],
    ["min_p", 0, 1, 0.01], ["max_tokens", 1, 1000000, 1], ["repetition_penalty", 0.5, 2, 0.05],
    ["seed", 0, 4294967295, 1],
];

function field(label, input)
{
    input.id = "p-" + label;
    const l = element("label", "", t(label));
    l.htmlFor = input.id;
    return [l, input];
}

// Fills `box` for `params`, which changes with the fields; changed() after each change.
export function show(box, params, models, changed, close)
{
    const put = (name, value) => {
        if (value === "" || value === false || Number.isNaN(value)) delete params[name];
        else params[name] = value;
        changed();
    };
    const text = (name, rows) => {
        const e = element("textarea");
        e.rows = rows;
        e.value = params[name] || "";
        e.addEventListener("input", () => put(name, e.value));
        return e;
    };
    const model = element("select");
    for (const m of models) model.append(new Option(m, m, false, m === params.model));
    model.addEventListener("change", () => put("model", model.value));

    const top = element("div", "row", "", element("h2", "", t("parameters")), element("span", "grow"),
                        button("small", t("close"), close));
    const plain = element("label", "check"), tick = element("input");
    tick.type = "checkbox";
    tick.id = "p-plain";
    tick.checked = Boolean(params.plain);
    tick.addEventListener("change", () => put("plain", tick.checked));
    plain.append(tick, t("plain"));

    box.replaceChildren(top, ...(models.length > 1 ? field("modelName", model) : []),
                        ...field("system", text("system", 3)));
    for (const [name, lo, hi, step] of NUMBERS) {
        const e = element("input");
        Object.assign(e, { type: "number", min: lo, max: hi, step, placeholder: t("byDefault") });
        e.value = params[name] ?? "";
        e.addEventListener("input", () => put(name, e.value === "" ? "" : Number(e.value)));
        box.append(...field(name, e));
    }
    box.append(...field("stopTexts", text("stopTexts", 2)), plain,
               button("wide", t("reset"), () => {
                   for (const name of Object.keys(params)) delete params[name];
                   changed();
                   show(box, params, models, changed, close);
               }));
}

// What of them a request carries.
export function ofRequest(params)
{
    const body = {}, stop = (params.stopTexts || "").split("\n").filter(s => s);
    for (const [name] of NUMBERS) if (params[name] !== undefined) body[name] = params[name];
    if (stop.length) body.stop = stop;
    return body;
}
