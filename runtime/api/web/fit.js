// A conversation that has grown beyond the model's context: which of its oldest turns have to go.

import { request } from "./server.js";
import { path } from "./tree.js";

// Ids of the messages with which a turn begins, from the second turn on.
function turns(chat) { return path(chat).filter(m => m.role === "user").slice(1).map(m => m.id); }

async function tokensOf(body)
{
    const { model, messages, prompt, tools } = body;
    const answer = await request("/tokenize", { body: messages ? { model, messages, tools } : { model, prompt } });
    return (await answer.json()).count;
}

// The first message to send so that the prompt and room for an answer fit into `context` tokens;
// bodyOf(from) is the request that begins with a message. null: the last turn alone is too long.
export async function firstThatFits(chat, context, bodyOf)
{
    const starts = turns(chat), now = starts.indexOf(chat.from);
    const room = Math.min(chat.params.max_tokens ?? context / 4, context / 2);
    let lo = now + 1, hi = starts.length; // what is searched is the first one that fits
    while (lo < hi) {
        const middle = (lo + hi) >> 1;
        if (await tokensOf(bodyOf(starts[middle])) + room <= context) hi = middle;
        else lo = middle + 1;
    }
    return starts[lo] ?? null;
}
