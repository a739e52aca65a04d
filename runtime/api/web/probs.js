// The probabilities of an answer's tokens: each token is shaded by its own, and the one that is pointed
// at, or reached with the arrow keys, tells what else could have been drawn. They are kept while the page
// is open.

import { element, name, number, t } from "./words.js";

const STEPS = [0.9, 0.6, 0.3, 0.1]; // p0 is what is above the first

// What an event's choice has of them, in either API's shape: [{ token, logprob, top: [[token, logprob]] }]
export function ofChoice(choice)
{
    const l = choice?.logprobs;
    if (l?.content) return l.content.map(c => ({ token: c.token, logprob: c.logprob,
                                                 top: c.top_logprobs.map(o => [o.token, o.logprob]) }));
    if (!l?.tokens) return [];
    return l.tokens.map((token, i) => ({ token, logprob: l.token_logprobs[i],
                                         top: Object.entries(l.top_logprobs?.[i] || {}) }));
}

const percent = logprob => t("percentOf", number(100 * Math.exp(logprob), 1));

// Blanks and line ends as they can be seen.
const seen = token => token.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥");

function told(p)
{
    const others = p.top.filter(([token]) => token !== p.token);
    return [[p.token, p.logprob], ...others].map(([token, l]) => `${seen(token)} ${percent(l)}`).join("  ·  ");
}

export function show(tokens)
{
    const line = element("p", "told quiet", t("probsHint"));
    line.setAttribute("role", "status");
    const spans = tokens.map(p => {
        const step = STEPS.findIndex(s => Math.exp(p.logprob) > s);
        return element("span", "p" + (step < 0 ? STEPS.length : step), p.token);
    });
    const box = element("div", "tokens", "", ...spans);
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    name(box, t("probs"));
    let at = -1;
    const choose = i => {
        if (i < 0 || i >= spans.length) return;
        spans[at]?.classList.remove("here");
        at = i;
        spans[at].classList.add("here");
        line.textContent = told(tokens[at]);
    };
    for (const event of ["pointerover", "click"])
        box.addEventListener(event, e => choose(spans.indexOf(e.target)));
    box.addEventListener("keydown", e => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
        if (!step) return;
        e.preventDefault();
        choose(at + step);
    });
    return element("div", "probs", "", line, box);
}
