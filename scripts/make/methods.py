#!/usr/bin/env python3
"""The table of quantization methods in docs/methods/README.md, from `llmq quantize --list-methods`.

usage: scripts/make/methods.py [LLMQ]     writes it; tests/e2e/test_methods.py compares it with the program
The table is between <!-- methods --> and <!-- end of methods -->.
"""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/methods/README.md"
BEGIN, END = "<!-- methods: made by scripts/make/methods.py -->\n", "<!-- end of methods -->\n"


def rows(llmq):
    p = subprocess.run([llmq, "quantize", "--list-methods", "--json"], capture_output=True, text=True, check=True)
    return json.loads(p.stdout)["methods"]


def page_of(name):
    """The page whose title has `--method NAME`."""
    for page in sorted((ROOT / "docs/methods").glob("*.md")):
        if f"`--method {name}`" in page.read_text(encoding="utf-8").split("\n", 1)[0]:
            return page.name
    raise SystemExit(f"methods.py: no page of docs/methods/ has `--method {name}` in its title")


def table(methods):
    out = ["| `--method` | what it does | schemes | group | needs text |", "|---|---|---|---|---|"]
    for m in methods:
        out.append(f"| [`{m['name']}`]({page_of(m['name'])}) | {m['help']} | `{m['schemes']}` | "
                   f"{m.get('group_size', 'the row')} | {m['text']} |")
    return "\n".join(out) + "\n"


def page(methods):
    """(text as it is, text as it should be)"""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return text, before + BEGIN + "\n" + table(methods) + "\n" + END + after


if __name__ == "__main__":
    PAGE.write_text(page(rows(sys.argv[1] if len(sys.argv) > 1 else ROOT / "llmq"))[1], encoding="utf-8")
