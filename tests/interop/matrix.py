"""What `convert` makes of each published checkpoint in tests/golden, by target, as a table.

    PYTHONPATH=tests:tests/e2e:tests/support python3 tests/interop/matrix.py           prints it
    ... tests/interop/matrix.py docs/converting.md                       puts it there, between its marks

exact: every weight has the value it has in the source (safetensors: in f32). requantized: `--allow-requantize` was needed and rounded
that many weights anew. refused: even so. The reasons stand below the table, in the words of `convert`."""
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- tests/interop/matrix.py -->\n", "<!-- end -->\n"
TARGETS = ["llmq", "safetensors", "gguf", "gptq", "gptq_v2", "awq", "compressed-tensors", "fp8", "bnb", "mlx"]


def sources(folder):
    from test_published import NAMES, SCHEMES, assemble
    for name in NAMES:
        yield name, SCHEMES[name], assemble(name, folder / name)
    yield "novels-6m-Q2_K.gguf", "u2-g16-bias ...", ROOT / "tests/golden/gguf/novels-6m-Q2_K.gguf"


def convert(source, out, to, *more):
    """Its report, or the reason why there is none, without what is special to this source."""
    floats = ["--dtype", "f32"] if to == "safetensors" else []
    p = subprocess.run([os.environ.get("LLMQ", ROOT / "llmq"), "convert", source, "-o", out, "--to", to, *floats, "--json", "--log-level", "error", *more],
                       capture_output=True, text=True, cwd=ROOT)
    if p.returncode == 0:
        return json.loads(p.stdout), None
    reason = p.stderr.strip().splitlines()[-1]
    reason = re.sub(r"^.*no place in this layout: |^llmq: convert: |, as \S+ says| \((--allow|nor would).*|model\.\S+: ", "", reason)
    reason = re.sub(r"^\S+ has no type", "no type", reason)
    reason = re.sub(r"^(gptq_v2|gptq|awq|compressed-tensors|fp8|bnb|mlx|gguf) ", "the target ", reason)
    return None, re.sub(r"in '.*' |, found (?!64).*| since its version.*", "", reason)


def cell(source, out, to, reasons):
    doc, why = convert(source, out, to)
    if doc:
        assert doc["requantized"] == 0
        assert doc["bit_exact"]
        return "exact"
    doc, still = convert(source, out, to, "--allow-requantize")
    said = f"requantized {doc['requantized']}" if doc else "refused"
    return f"{said} ({reasons.setdefault(still or why, len(reasons) + 1)})"


def table():
    reasons = {}
    lines = ["| source | scheme | " + " | ".join(TARGETS) + " |", "|---" * (len(TARGETS) + 2) + "|"]
    with tempfile.TemporaryDirectory() as t:
        (Path(t) / "out").mkdir()
        for name, scheme, source in sources(Path(t)):
            cells = [cell(source, Path(t) / "out" / f"{name}-{to}", to, reasons) for to in TARGETS]
            lines.append(f"| {name} | `{scheme}` | " + " | ".join(cells) + " |")
    return "\n".join(lines + [""] + [f"{n}. {why}" for why, n in reasons.items()]) + "\n"


def replace(path, text):
    old = path.read_text()
    path.write_text(old.replace(BEGIN + shown(old), BEGIN + text))


def shown(page):
    return page[page.index(BEGIN) + len(BEGIN):page.index(END)]


if __name__ == "__main__":
    made = table()
    if len(sys.argv) > 1:
        replace(Path(sys.argv[1]), made)
    else:
        print(made, end="")
