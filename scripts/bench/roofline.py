#!/usr/bin/env python3
"""Draw the rows of `llmq bench kernels --json` under the machine's roof as a self-contained SVG.

usage: llmq bench kernels --json | scripts/bench/roofline.py > out.svg
Both axes are logarithmic: operations per byte moved, and 10^9 operations per second. The slope is
the measured reading bandwidth, the level lines are the measured peaks of each arithmetic.
"""
import html
import json
import math
import sys

W, H, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 64, 150, 36, 48
COLOURS = {"int8": "#d55e00", "bf16": "#009e73", "f32": "#0072b2", "attention": "#cc79a7"}


def kind(name):
    return "attention" if name.startswith("attention") else name.split()[-1]


def main():
    doc = json.load(sys.stdin)
    rows, limits = doc["rows"], doc["limits"]
    peaks = {k.removesuffix("_gflops"): v for k, v in limits.items() if k.endswith("_gflops")}
    points = [(r["gflops"] / r["gbytes_s"], r["gflops"], r) for r in rows]
    x0, x1 = min(p[0] for p in points) / 2, max(p[0] for p in points) * 2
    y0, y1 = min(p[1] for p in points) / 2, max([p[1] for p in points] + list(peaks.values())) * 1.6

    def px(x):
        return LEFT + (W - LEFT - RIGHT) * math.log(x / x0) / math.log(x1 / x0)

    def py(y):
        return H - BOTTOM - (H - TOP - BOTTOM) * math.log(y / y0) / math.log(y1 / y0)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" font-family="sans-serif" font-size="12">',
           f'<rect width="{W}" height="{H}" fill="white"/>',
           f'<text x="{LEFT}" y="20" font-size="14">kernels {html.escape(doc["kernels"])}, {limits["threads"]} threads, '
           f'{limits["read_gbytes_s"]:.1f} GB/s read</text>']
    for axis in range(math.floor(math.log10(x0)), math.ceil(math.log10(x1)) + 1):
        if x0 <= 10**axis <= x1:
            out.append(f'<text x="{px(10**axis):.1f}" y="{H - BOTTOM + 18}" text-anchor="middle">{10.0**axis:g}</text>'
                       f'<path d="M{px(10**axis):.1f} {TOP}V{H - BOTTOM}" stroke="#ddd"/>')
    for axis in range(math.floor(math.log10(y0)), math.ceil(math.log10(y1)) + 1):
        if y0 <= 10**axis <= y1:
            out.append(f'<text x="{LEFT - 8}" y="{py(10**axis) + 4:.1f}" text-anchor="end">{10.0**axis:g}</text>'
                       f'<path d="M{LEFT} {py(10**axis):.1f}H{W - RIGHT}" stroke="#ddd"/>')
    out.append(f'<text x="{(LEFT + W - RIGHT) / 2}" y="{H - 10}" text-anchor="middle">operations per byte</text>'
               f'<text x="14" y="{H / 2}" text-anchor="middle" transform="rotate(-90 14 {H / 2})">GOP/s</text>')
    band = limits["read_gbytes_s"]
    for name, peak in peaks.items():
        start, knee = max(x0, y0 / band), peak / band
        out.append(f'<path d="M{px(start):.1f} {py(start * band):.1f}L{px(knee):.1f} {py(peak):.1f}H{W - RIGHT}" '
                   f'fill="none" stroke="{COLOURS[name]}"/>'
                   f'<text x="{W - RIGHT + 6}" y="{py(peak) + 4:.1f}" fill="{COLOURS[name]}">{name} {peak:.0f}</text>')
    for x, y, r in points:
        label = f'{r["name"]}, {r["shape"]}: {y:.1f} GOP/s, {r["percent_of_limit"]:.0f} % of the limit'
        out.append(f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="4" fill="{COLOURS[kind(r["name"])]}" '
                   f'fill-opacity="0.7"><title>{html.escape(label)}</title></circle>')
    out.append("</svg>")
    print("\n".join(out))


if __name__ == "__main__":
    main()
