// Requests to the server that this page came from: the key, errors, streams of events.

import { t } from "./words.js";

export class ServerError extends Error {
    constructor(message, code)
    {
        super(message);
        this.code = code || undefined;
    }
}

let key = sessionStorage.getItem("llmq.key") || "";
let askForKey = async () => null; // page.js puts the dialog here: (wrong) => key or null
let asking = null;

export function onKeyNeeded(ask) { askForKey = ask; }

export function setKey(text)
{
    key = text;
    sessionStorage.setItem("llmq.key", key);
}

// Several requests may find at once that a key is missing: one dialog for all of them.
async function newKey(wrong)
{
    asking ||= askForKey(wrong).finally(() => { asking = null; });
    const given = await asking;
    if (given === null) throw new ServerError(t("keyNone"));
    setKey(given);
}

async function send(path, body, signal)
{
    const headers = {};
    if (key) headers.Authorization = "Bearer " + key;
    if (body) headers["Content-Type"] = "application/json";
    try {
        return await fetch(path, { method: body ? "POST" : "GET", headers, signal,
                                   body: body && JSON.stringify(body), credentials: "omit",
                                   cache: "no-store" });
    } catch (e) {
        if (e.name === "AbortError") throw e;
        throw new ServerError(t("offline"));
    }
}

async function errorOf(response)
{
    const text = await response.text();
    try {
        const { message, code } = JSON.parse(text).error;
        return new ServerError(message, code);
    } catch {
        return new ServerError(`HTTP ${response.status}: ${text.slice(0, 300)}`);
    }
}

// The response, or a ServerError with the server's own words. Asks for a key until one is right.
// quiet: a missing key is an error like others.
export async function request(path, { body, signal, quiet } = {})
{
    let response = await send(path, body, signal);
    while (response.status === 401 && !quiet) {
        await newKey(key !== "");
        response = await send(path, body, signal);
    }
    if (!response.ok) throw await errorOf(response);
    return response;
}

// Calls take(object) for each event of the stream; returns when it said [DONE].
export async function stream(path, body, signal, take)
{
    const response = await request(path, { body, signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
        let part;
        try {
            part = await reader.read();
        } catch (e) {
            if (e.name === "AbortError") throw e;
            throw new ServerError(t("broken"));
        }
        if (part.done) throw new ServerError(t("broken"));
        const events = (rest + part.value).split("\n\n");
        rest = events.pop();
        for (const event of events) {
            if (!event.startsWith("data: ")) continue; // a comment that keeps the line alive
            const data = event.slice(6);
            if (data === "[DONE]") return;
            const object = JSON.parse(data);
            if (object.error) throw new ServerError(object.error.message, object.error.code);
            take(object);
        }
    }
}

// Prometheus' text to { name: [{ labels, value }] }. model: of a server of several; "": the whole server's.
export async function metrics(model)
{
    const found = {}, path = model ? `/metrics?model=${encodeURIComponent(model)}` : "/metrics";
    for (const line of (await (await request(path, { quiet: true })).text()).split("\n")) {
        const parts = /^([\w:]+)\{(.*)\} (\S+)$/.exec(line);
        if (parts) (found[parts[1]] ||= []).push({ labels: parts[2], value: Number(parts[3]) });
    }
    return found;
}
