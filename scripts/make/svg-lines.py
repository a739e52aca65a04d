#!/usr/bin/env python3
"""Draw lines over a logarithmic x axis as a self-contained SVG.

usage: svg-lines.py TITLE X_LABEL Y_LABEL < rows > out.svg
Rows: series <tab> x <tab> y, in order; a blank line is skipped.
"""
import html
import math
import sys

W, H, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 60, 150, 36, 44
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555"]


def nice_step(span):
    base = 10 ** math.floor(math.log10(span / 4))
    return next(base * k for k in (1, 2, 5, 10) if span / (base * k) <= 6)


def main():
    title, x_label, y_label = sys.argv[1:4]
    series = {}
    for line in sys.stdin:
        if line.strip():
            name, x, y = line.rstrip("\n").split("\t")
            series.setdefault(name, []).append((float(x), float(y)))
    xs = sorted({x for pts in series.values() for x, _ in pts})
    ys = [y for pts in series.values() for _, y in pts]
    step = nice_step(max(ys) - min(ys))
    lo, hi = math.floor(min(ys) / step) * step, math.ceil(max(ys) / step) * step

    def px(x):
        return LEFT + (math.log(x) - math.log(xs[0])) / (math.log(xs[-1]) - math.log(xs[0])) * (W - LEFT - RIGHT)

    def py(y):
        return H - BOTTOM - (y - lo) / (hi - lo) * (H - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" font-family="sans-serif" font-size="12">',
           f'<rect width="{W}" height="{H}" fill="#fff"/>',
           f'<text x="{LEFT}" y="22" font-size="14">{html.escape(title)}</text>']
    for x in xs:
        out.append(f'<line x1="{px(x):.1f}" y1="{TOP}" x2="{px(x):.1f}" y2="{H - BOTTOM}" stroke="#eee"/>'
                   f'<text x="{px(x):.1f}" y="{H - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    for i in range(round((hi - lo) / step) + 1):
        y = lo + i * step
        out.append(f'<line x1="{LEFT}" y1="{py(y):.1f}" x2="{W - RIGHT}" y2="{py(y):.1f}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 6}" y="{py(y) + 4:.1f}" text-anchor="end">{y:g}</text>')
    out.append(f'<text x="{(LEFT + W - RIGHT) / 2}" y="{H - 8}" text-anchor="middle">{html.escape(x_label)}</text>'
               f'<text x="14" y="{H / 2}" text-anchor="middle" transform="rotate(-90 14 {H / 2})">{html.escape(y_label)}</text>')
    taken = []
    for i, (name, pts) in enumerate(series.items()):
        c = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in pts)
        out.append(f'<polyline points="{path}" fill="none" stroke="{c}" stroke-width="2"/>')
        out += [f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="3" fill="{c}"/>' for x, y in pts]
        at = py(pts[-1][1])
        while any(abs(at - t) < 14 for t in taken):  # labels do not overlap
            at += 2
        taken.append(at)
        out.append(f'<text x="{px(pts[-1][0]) + 8:.1f}" y="{at + 4:.1f}" fill="{c}">{html.escape(name)}</text>')
    print("\n".join(out) + "\n</svg>")


main()
