"""Writes tests/golden/samplers.json: what each sampler leaves of a row of logits, in doubles, from the papers' formulas
and llama.cpp's description of its parameters. Needs nothing but Python: python samplers.py > ../samplers.json"""
import json
import math
import random

V = 24


def softmax(x):
    m = max(x.values())
    w = {i: math.exp(v - m) for i, v in x.items()}
    total = sum(w.values())
    return {i: v / total for i, v in w.items()}


def entropy(p):
    return -sum(v * math.log(v) for v in p.values())


def falling(x):
    return sorted(x, key=lambda i: (-x[i], i))


def top_n_sigma(x, top_n_sigma):
    mean = sum(x.values()) / len(x)
    sigma = math.sqrt(sum((v - mean) ** 2 for v in x.values()) / len(x))
    return {i: v for i, v in x.items() if v >= max(x.values()) - top_n_sigma * sigma}


def temperature(x, temperature, dynatemp_range=0, dynatemp_exponent=1):
    t = temperature
    if dynatemp_range and len(x) > 1:
        low, high = max(0, t - dynatemp_range), t + dynatemp_range
        t = low + (high - low) * (entropy(softmax(x)) / math.log(len(x))) ** dynatemp_exponent
    return {i: v / t for i, v in x.items()}


def top_k(x, top_k):
    return {i: x[i] for i in falling(x)[:top_k]}


def typ_p(x, typical_p):
    p = softmax(x)
    h = entropy(p)
    kept, total = {}, 0
    for i in sorted(p, key=lambda i: (abs(-math.log(p[i]) - h), i)):
        kept[i] = x[i]
        total += p[i]
        if total > typical_p:
            break
    return kept


def top_p(x, top_p):
    p = softmax(x)
    kept, total = {}, 0
    for i in falling(x):
        kept[i] = x[i]
        total += p[i]
        if total >= top_p:
            break
    return kept


def min_p(x, min_p):
    p = softmax(x)
    return {i: v for i, v in x.items() if p[i] >= min_p * max(p.values())}


def xtc(x, xtc_probability, xtc_threshold):
    assert xtc_probability == 1
    p = softmax(x)
    likely = [i for i in falling(x) if p[i] >= xtc_threshold]
    return {i: v for i, v in x.items() if i not in likely[:-1]}


def mirostat(x, mu, mirostat=2):
    p = softmax(x)
    best = falling(x)[0]
    return {i: v for i, v in x.items() if -math.log2(p[i]) <= mu or i == best}


def dry(ids, breakers, multiplier, base, allowed, last_n=-1):
    """By definition: of each id the longest run before it that also ends the text."""
    if last_n >= 0:
        ids = ids[len(ids) - min(last_n, len(ids)):]
    free = 0
    while free < len(ids) and not any(ids[:len(ids) - free][-len(b):] == b for b in breakers if len(b) <= len(ids) - free):
        free += 1
    longest = {}
    for at in range(1, len(ids)):  # ids[at] followed ids[:at]
        n = 0
        while n < min(at, free) and ids[at - 1 - n] == ids[len(ids) - 1 - n]:
            n += 1
        if n >= allowed:
            longest[ids[at]] = max(longest.get(ids[at], 0), n)
    return {i: multiplier * base ** (n - allowed) for i, n in longest.items()}


def rows():
    rng = random.Random(7)
    flat = [round(rng.gauss(0, 1), 3) for _ in range(V)]
    sharp = [round(rng.gauss(0, 3), 3) for _ in range(V)]
    some = [None if i % 3 == 1 else v for i, v in enumerate(sharp)]  # None: banned
    return {"flat": flat, "sharp": sharp, "some banned": some}


def cases():
    stages = [(top_n_sigma, {"top_n_sigma": n}) for n in (0.5, 1, 2.5)]
    stages += [(temperature, {"temperature": 0.7})]
    stages += [(temperature, {"temperature": t, "dynatemp_range": r, "dynatemp_exponent": e})
               for t, r, e in ((1, 0.5, 1), (0.8, 0.8, 2), (1, 0.3, 0.5))]
    stages += [(top_k, {"top_k": k}) for k in (3, 23)] + [(top_p, {"top_p": p}) for p in (0.3, 0.9)]
    stages += [(min_p, {"min_p": p}) for p in (0.05, 0.5)] + [(typ_p, {"typical_p": p}) for p in (0.2, 0.7, 0.95)]
    stages += [(xtc, {"xtc_probability": 1, "xtc_threshold": t}) for t in (0.02, 0.1, 0.3, 0.5)]
    stages += [(mirostat, {"mu": mu, "mirostat": 2}) for mu in (0.1, 3, 5)]
    for stage, params in stages:
        for name, row in rows().items():
            x = {i: v for i, v in enumerate(row) if v is not None}
            p = softmax(stage(x, **params))
            yield {"stage": stage.__name__, "params": params, "row": name,
                   "p": [round(p.get(i, -1), 6) for i in range(V)]}


def texts():
    rng = random.Random(11)
    return [[1, 2, 3, 4, 1, 2, 3], [5, 5, 5, 5, 5], [1, 2, 3, 9, 1, 2, 3, 9, 1, 2], [7], [],
            [rng.randrange(4) for _ in range(60)], [rng.randrange(3) for _ in range(200)]]


def dry_cases():
    for k, ids in enumerate(texts()):
        for breakers in ([], [[9]], [[3]], [[1, 2], [0, 0]]):
            for multiplier, base, allowed, last_n in ((0.8, 1.75, 2, -1), (1, 1.2, 1, -1), (0.5, 2, 3, 20), (0.8, 1.75, 2, 0)):
                less = dry(ids, breakers, multiplier, base, allowed, last_n)
                yield {"text": k, "breakers": breakers, "multiplier": multiplier, "base": base, "allowed": allowed,
                       "last_n": last_n, "less": [[i, round(v, 6)] for i, v in sorted(less.items())]}


if __name__ == "__main__":
    print('{"rows":', json.dumps(rows()) + ',\n"stages": [')
    print(",\n".join(json.dumps(c) for c in cases()) + '],\n"texts":', json.dumps(texts()) + ',\n"dry": [')
    print(",\n".join(json.dumps(c) for c in dry_cases()) + "]}")
