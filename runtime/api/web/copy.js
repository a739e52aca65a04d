// Copying text, and the button for it.

import { button, element, t } from "./words.js";

async function copy(text, b)
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

export function copyButton(textOf)
{
    return button("small", t("copy"), e => copy(textOf(), e.currentTarget));
}
