// System messages that are kept for other conversations, in this browser.

import * as store from "./store.js";
import { button, element, name, t } from "./words.js";

function kept()
{
    const found = store.setting("prompts", []);
    return Array.isArray(found) ? found.filter(s => typeof s === "string" && s) : [];
}

// Below the field of the system message: choose one, keep what the field has, forget it.
export function chooser(field)
{
    const select = element("select"), keep = button("small", t("keep"), () => {
        if (field.value.trim()) put([field.value, ...kept().filter(s => s !== field.value)]);
    });
    const forget = button("small", t("forget"), () => put(kept().filter(s => s !== field.value)));
    name(select, t("keptPrompts"));
    const draw = () => {
        const all = kept(), at = all.indexOf(field.value);
        select.replaceChildren(new Option(t("keptPrompts"), ""),
                               ...all.map((s, i) => new Option(s.trim().split("\n")[0].slice(0, 60), i)));
        select.value = at < 0 ? "" : String(at);
        select.hidden = !all.length;
        keep.hidden = at >= 0;
        forget.hidden = at < 0;
    };
    const put = list => { store.set("prompts", list); draw(); };
    select.addEventListener("change", () => {
        if (select.value === "") return;
        field.value = kept()[select.value];
        field.dispatchEvent(new Event("input"));
    });
    field.addEventListener("input", draw);
    draw();
    return element("div", "row", "", select, keep, forget);
}
