"""The answers that the scripted engine forces: a prompt that holds "[name]" gets the script `name`.

`pieces` are tokens: bytes are spelled one token per byte, a string is one token of the vocabulary,
a number is that id. END is the end-of-text token; without it the model goes on by itself."""
import json

END = 0


def _byte_names():
    """Byte -> the character that stands for it in byte-level vocabularies (GPT-2's table)."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, extra = {}, 0
    for b in range(256):
        if b in keep:
            names[b] = chr(b)
        else:
            names[b] = chr(256 + extra)
            extra += 1
    return names


class Vocabulary:
    def __init__(self, path):
        self.vocab = json.loads(path.read_text())["model"]["vocab"]
        self.names = _byte_names()

    def id(self, text):
        """The one token that is this text."""
        return self.vocab["".join(self.names[b] for b in text.encode())]

    def ids(self, pieces):
        out = []
        for p in pieces:
            if isinstance(p, int):
                out.append(p)
            elif isinstance(p, str):
                out.append(self.id(p))
            else:
                out += [self.vocab[self.names[b]] for b in p]
        return out


def call(name, arguments):
    return b'<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>' % (
        name.encode(), json.dumps(arguments).encode())


FAMILY = "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}"

SCRIPTS = {
    "abc": {"pieces": [b"The cat sat on x the mat.", END]},
    "token": {"pieces": [" the", " house", b".", END]},
    "early": {"pieces": [b"a", END, b"bcdefgh", END]},
    "halves": {"pieces": [b"one ENx two ENDX", END]},
    "overlap": {"pieces": [b"zabcz", END]},
    "utf8": {"pieces": ["é 漢 ".encode(), FAMILY.encode(), b" end", END]},
    "broken": {"pieces": [b"ok \xe6\xbc", END]},
    "bytes": {"pieces": [b"a\xffb\xc3(c", END]},
    "quotes": {"pieces": [b'say "hi"\\\n\t\x01</script>', END]},
    "nan": {"pieces": [b"one two three"], "nan_at": 5},
    "nan at once": {"nan_at": 0},
    "slow": {"delay_ms": 40},
    "held": {"gate": True, "pieces": [b"a", END]},
    "think": {"pieces": [b"<think>\nTwo and two.\n</think>\n\nFour.", END]},
    "think on": {"pieces": [b"<think>\nit goes on"]},
    "no think": {"pieces": [b"<b>Four</b>.", END]},
    "one call": {"pieces": [b"Let me see.\n", call("weather", {"city": "Paris", "days": [1, 2]}), END]},
    "two calls": {"pieces": [call("weather", {"city": "Köln \"x\" \\"}), b"\n",
                             call("now", {}), END]},
    "space call": {"pieces": [call("mcp__sky__weather", {"city": "Paris"}), call("mcp__sky__now", {"input": "x"}), END]},
    "think call": {"pieces": [b"<think>\nhm\n</think>\n\n", call("now", {}), END]},
    "bad call": {"pieces": [b"<tool_call>\nnot json\n</tool_call>", END]},
    "wrong call": {"pieces": [call("nobody", {"a": 1}), END]},
    "cut call": {"pieces": [b'<tool_call>\n{"name": "weather", "arguments": {"city": "Par']},
    "markup": {"pieces": [b'<img src=x onerror="document.title=1"><script>document.title=2</script>'
                          b"\n\n**bold** and `<b>code</b>` [bad](javascript:alert(1)) "
                          b"[good](https://example.org/)\n\n```js\n<i>x</i>\n```\n\n- one\n- two\n", END]},
    "rich": {"pieces": [
        b"The roots of \\(a^2+b=0\\) and\n\n\\[\nx = \\frac{-b}{2a}\n\\]\n\nand $e^x$, for $5 or $6.\n\n"
        b"| left | right |\n|:--|--:|\n| a | 12 |\n\n- [x] done\n- [ ] open\n\n"
        b"```python\ndef f(n): return 'x'\n```\n", END]},
    "hostile": {"pieces": [
        b"<svg onload=alert(1)> [a](data:text/html,<script>alert(1)</script>) [b](JaVaScRiPt:alert(1)) "
        b"[c](vbscript:x) [d](//evil.example/x) ![e](javascript:alert(1)) <javascript:alert(1)>\n\n"
        b"$\\href{javascript:alert(1)}{x}$ $\\includegraphics{https://evil.example/x.png}$ "
        b"$\\text{<img src=x onerror=alert(1)>}$\n\n"
        b'| <img src=x onerror=alert(1)> |\n|---|\n| [f](javascript:alert(1)) |\n\n- [x] <b onclick=alert(1)>\n\n'
        b'```html"><img/src=x/onerror=alert(1)>\n<script>alert(1)</script>\n```\n\n'
        b"```html\n<script>alert(1)</script>\n```\n\n[g]: javascript:alert(1)\n[g]\n", END]},
    "think slowly": {"delay_ms": 60, "pieces": [b"<think>\nTwo and two make a number.\n</think>\n\nFour.", END]},
    "lines call": {"pieces": [b'<tool_call>\n{"name": "weather", "arguments": {\n  "city": "a\\nb",\n  "days": []\n}}\n</tool_call>', END]},
    "bare call": {"pieces": [b'```json\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>', END]},
    "bare lines": {"pieces": [b'\n{\n  "name": "weather",\n  "arguments": {"city": "Paris"}}', END]},
    "object": {"pieces": [b'{"a": 1}', END]},
    "custom call": {"pieces": [call("now", {"input": "one \"two\""}), END]},
    "almost call": {"pieces": [b"a <tool_cal l> b", END]},
}
