#!/usr/bin/env python3
"""Makes calib/builtin_text.txt, the sample behind `--calib builtin`.

usage: make-builtin-text.py ENGLISH.txt KOREAN.txt CODE... > calib/builtin_text.txt

The kinds alternate in short passages (English, English, code, English, English, Korean ...), so
that any leading part of the file is mixed as well. Passages end at a line's end."""
import sys

ENGLISH, CODE, KOREAN = 1500, 1300, 500  # bytes of a passage, about
TOTAL = 175_000


def passages(text, size):
    out, cur = [], ""
    for line in text.splitlines(keepends=True):
        cur += line
        if len(cur.encode()) >= size:
            out.append(cur.strip("\n") + "\n")
            cur = ""
    return out + ([cur.strip("\n") + "\n"] if cur.strip() else [])


def main():
    english_path, korean_path, *code_paths = sys.argv[1:]
    with open(english_path, encoding="utf-8") as f:
        english = passages(f.read(), ENGLISH)
    with open(korean_path, encoding="utf-8") as f:
        korean = passages(f.read(), KOREAN)
    code = []
    for path in code_paths:
        with open(path, encoding="utf-8") as f:
            code += passages(f.read(), CODE)
    # Spread each kind over its whole source: take every n-th passage.
    rounds = TOTAL // (4 * ENGLISH + CODE + KOREAN)
    out = []
    for i in range(rounds):
        for j in range(4):
            out.append(english[(4 * i + j) * len(english) // (4 * rounds)])
            if j == 1 and code:
                out.append(code[i * len(code) // rounds])
        if i < len(korean):
            out.append(korean[i])
    sys.stdout.write("\n".join(out))


if __name__ == "__main__":
    main()
