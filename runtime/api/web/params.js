// The panel of parameters: those of the conversation that is shown. A field that is empty is not
// sent, so that the server's and the model's own defaults hold.

import { chooser } from "./prompts.js";
import { button, element, t } from "./words.js";

// name, least, most, step (of the arrows); what a server refuses it says itself
const NUMBERS = [
    ["temperature", 0, 2, 0.1], ["top_p", 0.05, 1, 0.05], ["top_k", 0, 1000, 1],
    ["min_p", 0, 1, 0.01], ["typical_p", 0.05, 1, 0.05], ["top_n_sigma", 0, 10, 0.1], ["xtc_probability", 0, 1, 0.05],
    ["xtc_threshold", 0, 1, 0.05], ["dry_multiplier", 0, 5, 0.1], ["dynatemp_range", 0, 2, 0.1], ["mirostat", 0, 2, 2],
    ["max_tokens", 1, 1000000, 1], ["repetition_penalty", 0.5, 2, 0.05],
    ["frequency_penalty", -2, 2, 0.1], ["presence_penalty", -2, 2, 0.1], ["seed", 0, 4294967295, 1],
];
const CHECKS = ["probabilities", "plain"];
const TOP = 5; // alternatives of a token

function labelled(label, input, text = t(label))
{
    input.id = "p-" + label;
    const l = element("label", "", text);
    l.htmlFor = input.id;
    return [l, input];
}

// Fills `box` for `params`, which changes with the fields; changed() after each change.
export function show(box, params, changed, close)
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
    const numeric = ([name, min, max, step]) => {
        const e = Object.assign(element("input"), { type: "number", min, max, step, placeholder: t("byDefault"),
                                                    value: params[name] ?? "" });
        e.addEventListener("input", () => put(name, e.value === "" ? "" : Number(e.value)));
        return labelled(name, e);
    };
    const check = name => {
        const tick = Object.assign(element("input"), { type: "checkbox", id: "p-" + name,
                                                       checked: Boolean(params[name]) });
        tick.addEventListener("change", () => put(name, tick.checked));
        return element("label", "check", "", tick, t(name));
    };
    const thinking = element("select");
    for (const value of ["", "on", "off"])
        thinking.append(new Option(t(value || "byDefault"), value, false, value === (params.thinking || "")));
    thinking.addEventListener("change", () => put("thinking", thinking.value));

    const system = text("system", 3);
    box.replaceChildren(
        element("div", "row", "", element("h2", "", t("parameters")), element("span", "grow"),
                button("small", t("close"), close)),
        ...labelled("system", system), chooser(system), ...NUMBERS.flatMap(numeric),
        ...labelled("stopTexts", text("stopTexts", 2)), ...labelled("thinking", thinking, t("thinkingParam")),
        ...labelled("tools", text("tools", 3)), ...CHECKS.map(check),
        button("wide", t("reset"), () => {
            for (const name of Object.keys(params)) delete params[name];
            changed();
            show(box, params, changed, close);
        }));
}

// What of them a request carries, but for what ask.js sends.
export function ofRequest(params)
{
    const body = {}, stop = (params.stopTexts || "").split("\n").filter(s => s);
    for (const [name] of NUMBERS) if (params[name] !== undefined) body[name] = params[name];
    if (stop.length) body.stop = stop;
    if (params.probabilities) Object.assign(body, params.plain ? { logprobs: TOP } : { logprobs: true, top_logprobs: TOP });
    if (params.thinking && !params.plain) body.chat_template_kwargs = { enable_thinking: params.thinking === "on" };
    return body;
}
