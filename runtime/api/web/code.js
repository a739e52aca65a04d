// Program text as nodes, coloured by highlight.js. It hands its tokens to an "emitter", whose usual one
// writes HTML; this one makes nodes of the document, so that text stays text.

import hljs from "./vendor/highlight.min.js";
import { element } from "./words.js";

const LONGEST = 50000; // longer text is shown plain: colouring it would be felt at each token

class NodeEmitter {
    constructor()
    {
        this.root = document.createDocumentFragment();
        this.open = [this.root];
    }
    addText(text) { this.open.at(-1).append(text); }
    startScope(name)
    {
        const span = element("span", "h-" + String(name).split(".")[0].replace(/_$/, ""));
        this.open.at(-1).append(span);
        this.open.push(span);
    }
    endScope() { this.open.pop(); }
    openNode(name) { this.startScope(name); }
    closeNode() { this.endScope(); }
    __addSublanguage(other) { this.open.at(-1).append(other.root); }
    finalize() {}
    toHTML() { return ""; }
}
hljs.configure({ __emitter: NodeEmitter });

// A <code> with the text; without colours where the language is not one of those known.
export function highlighted(text, lang)
{
    const code = element("code");
    const known = text.length <= LONGEST && hljs.getLanguage(lang);
    const result = known && hljs.highlight(text, { language: lang, ignoreIllegals: true });
    code.append(result && !result.errorRaised ? result._emitter.root : text);
    return code;
}
