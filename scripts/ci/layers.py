#!/usr/bin/env python3
"""Who may include whom: fails on any include that points against docs/first-change.md's arrows."""
import os
import re
import sys

MAY = {
    "base": {"base"},
    "formats": {"formats", "base"},
    "kernels": {"kernels", "formats", "base"},
    "runtime": {"runtime", "formats", "kernels", "base"},
    "calib": {"calib", "formats", "kernels", "runtime", "base"},
    "quantize": {"quantize", "formats", "kernels", "runtime", "calib", "base"},
    "convert": {"convert", "formats", "kernels", "quantize", "base"},
    "publish": {"publish", "formats", "convert", "base"},
}


def main():
    bad = []
    n = 0
    for module, allowed in MAY.items():
        for folder, _, files in os.walk(module):
            for name in sorted(files):
                if not name.endswith((".c", ".h", ".cu", ".cuh")):
                    continue
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as f:
                    text = f.read()
                n += 1
                for m in re.finditer(r'^\s*#\s*include\s+"([^"]+)"', text, re.M):
                    top = m.group(1).split("/")[0]
                    if top not in allowed:
                        bad.append(f"{path}: {module}/ may not include {m.group(1)}")
    for line in bad:
        print(line, file=sys.stderr)
    print(f"layers: {n} files, {len(bad)} forbidden includes")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
