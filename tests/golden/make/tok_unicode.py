"""The tables of runtime/tokenizer/tok_unicode.c: where the `tokenizers` library knows an older or a newer Unicode than utf8proc.

usage: tok_unicode.py > tables.inc     (needs the package tokenizers and the shared library utf8proc)

The library's classes of punctuation, nonspacing marks and controls are Unicode 8.0's, its marks and normal forms
Unicode 9.0's, its numbers and lower case its compiler's (17.0). A character's age follows from which of them know it.
"""
import ctypes, ctypes.util
from tokenizers import normalizers as nm, pre_tokenizers as pt

lib = ctypes.CDLL(ctypes.util.find_library("utf8proc"))
lib.utf8proc_category_string.restype = ctypes.c_char_p
lib.utf8proc_NFKD.restype = ctypes.c_char_p
category = lambda c: lib.utf8proc_category_string(c).decode()
CPS = [c for c in [*range(0x80, 0x32000), *range(0xE0000, 0xE0200)] if not 0xD800 <= c < 0xE000]
CHANGED = {0x166D, 0x111C9, 0x1734, 0x1CF2, 0x1CF3}  # of another class since: named in tok_text.c


def alone(normalizer, c):
    return normalizer.normalize_str("a" + chr(c) + "b") == "ab"


def ranges(cps, between=lambda c: False):
    out = []
    for c in cps:
        if out and all(between(x) for x in range(out[-1][1] + 1, c)):
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


mark, control, nonspacing = nm.StripAccents(), nm.BertNormalizer(True, False, False, False), nm.BertNormalizer(False, False, True, False)
punct, digits, lower, nfkd = pt.Punctuation(), pt.Digits(True), nm.Lowercase(), nm.NFKD()
age, numeric, lowers = {}, [], []
asked = {c for c in CPS if category(c)[0] in "MP" or category(c) in ("Cf", "Co", "Cc") or lib.utf8proc_NFKD(chr(c).encode()).decode() != chr(c)}
for c in sorted(asked - CHANGED):
    k = category(c)
    known = {"M": lambda: alone(mark, c), "P": lambda: len(punct.pre_tokenize_str("a" + chr(c) + "b")) > 1,
             "C": lambda: alone(control, c)}.get(k[0], lambda: nfkd.normalize_str(chr(c)) != chr(c))()
    if not known:
        age[c] = 10
    elif k == "Mn" and not alone(nonspacing, c) and nm.NFD().normalize_str(chr(c)) == chr(c):
        age[c] = 9
for c in CPS:
    if len(digits.pre_tokenize_str("a" + chr(c) + "b")) > 1 and category(c)[0] != "N":
        numeric.append(c)
    to = lower.normalize_str(chr(c))
    if c != 0x130 and ord(to) != lib.utf8proc_tolower(c):
        lowers.append((c, ord(to)))
rows = [(a, b, v) for v in (9, 10) for a, b in ranges(sorted(c for c in age if age[c] == v), lambda x: x not in asked or x in CHANGED)]
print("ages:\n" + ", ".join("{ 0x%X, 0x%X, %d }" % r for r in sorted(rows)))
print("numbers:\n" + ", ".join("{ 0x%X, 0x%X }" % tuple(r) for r in ranges(numeric)))
steps = []
for c, to in lowers:
    if steps and steps[-1][1] == c - 1 and to - c == steps[-1][2] - steps[-1][0] and to - c > 1:
        steps[-1][1] = c
    else:
        steps.append([c, c, to])
print("lower:\n" + ", ".join("{ 0x%X, 0x%X, 0x%X }" % tuple(s) for s in steps))
