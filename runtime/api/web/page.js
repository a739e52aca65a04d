// The frame around both tabs: language, theme, the key's dialog.

import * as chat from "./chat.js";
import * as live from "./live.js";
import { onKeyNeeded, setKey } from "./server.js";
import { set, setting } from "./store.js";
import { element, name, setLanguage, t, translate } from "./words.js";

const $ = id => document.getElementById(id);
const KEYS = [["Enter", "keySend"], ["Shift+Enter", "keyLine"], ["Esc", "keyStop"], ["↑", "keyEdit"],
              ["Ctrl+K", "keySearch"], ["Ctrl+Shift+O", "keyNew"]];
const THEMES = ["auto", "light", "dark"], TABS = ["chat", "live"];

// ---- language and theme ----

let theme = THEMES.includes(setting("theme")) ? setting("theme") : "auto";

function applyTheme()
{
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    name($("theme"), t("theme", t(theme)));
}

function applyLanguage(to)
{
    setLanguage(to);
    translate(document);
    $("language").value = document.documentElement.lang;
    $("key-list").replaceChildren(...KEYS.flatMap(([key, does]) => [element("dt", "", "", element("kbd", "", key)),
                                                                    element("dd", "", t(does))]));
    applyTheme();
}

// ---- tabs ----

function choose(tab, focus)
{
    for (const one of TABS) {
        const on = one === tab, button = $("tab-" + one);
        button.setAttribute("aria-selected", String(on));
        button.tabIndex = on ? 0 : -1;
        $("view-" + one).hidden = !on;
        if (on && focus) button.focus();
    }
    set("tab", tab);
    if (tab === "live" && !document.hidden) live.start($("charts"), $("live-state"), chat.model);
    else live.stop();
}

const chosen = () => TABS.find(x => $("tab-" + x).getAttribute("aria-selected") === "true");

// ---- the key ----

// Resolves to the key, or null when none is given.
function askForKey(wrong)
{
    const dialog = $("key-dialog"), field = $("key-value");
    $("key-wrong").hidden = !wrong;
    field.value = "";
    return new Promise(resolve => {
        const end = value => {
            $("key-form").onsubmit = $("key-cancel").onclick = dialog.oncancel = null;
            dialog.close();
            resolve(value);
        };
        $("key-form").onsubmit = e => { e.preventDefault(); end(field.value.trim()); };
        $("key-cancel").onclick = () => end(null);
        dialog.oncancel = e => { e.preventDefault(); end(null); };
        dialog.showModal();
        field.focus();
    });
}

// ---- start ----

applyLanguage(setting("language", navigator.language.startsWith("ko") ? "ko" : "en"));
onKeyNeeded(askForKey);
$("key").addEventListener("click", async () => {
    const key = await askForKey(false);
    if (key !== null) setKey(key);
});
$("language").addEventListener("change", e => {
    applyLanguage(e.target.value);
    set("language", e.target.value);
    chat.redraw();
    live.redraw();
});
$("theme").addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    set("theme", theme);
    applyTheme();
});
for (const tab of TABS) $("tab-" + tab).addEventListener("click", () => choose(tab));
document.querySelector("[role=tablist]").addEventListener("keydown", e => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -TABS.length, End: TABS.length }[e.key];
    if (!step) return;
    e.preventDefault();
    choose(TABS[Math.max(0, Math.min(TABS.length - 1, TABS.indexOf(chosen()) + step))], true);
});
document.addEventListener("visibilitychange", () => choose(chosen()));
choose(TABS.includes(setting("tab")) ? setting("tab") : "chat");
chat.start();
