"""docs/conformance.md says of every case what its tests say, and names tests that are there."""
import re

from harness import ROOT

ROW = re.compile(r"^\| (C\d+) \| [^|]+ \| (met|partly|not met) \| ([^|]*) \|$")

HELD = re.compile(r"^\| (T-\d\d) \| [^|]+ \| (met|partly|not met) \| ([^|]*) \| ([^|]*) \|$")


def test_the_table_is_true(cases):
    rows = [ROW.match(line) for line in (ROOT / "docs/conformance.md").read_text().splitlines()
            if line.startswith("| C")]
    assert all(rows) and [r[1] for r in rows] == [f"C{i:02}" for i in range(1, 137)]
    assert {r[1]: r[2] for r in rows} == cases
    for r in rows:
        assert r[2] == "met" or len(r[3]) > 10, f"{r[1]}: why not?"


def test_what_holds_a_complaint_is_there_and_says_so():
    text = (ROOT / "docs/conformance.md").read_text()
    rows = [HELD.match(line) for line in text.splitlines() if line.startswith("| T-")]
    assert all(rows) and [r[1] for r in rows] == [f"T-{i:02}" for i in range(1, 81)]
    for r in rows:
        named = re.findall(r"`([^`]+)` (\w+)", r[3])
        assert bool(named) == (r[2] != "not met") and (r[2] == "met" or len(r[4].strip()) > 10), r[1]
        for file, name in named:
            line = next((x for x in (ROOT / "tests" / file).read_text().splitlines()
                         if re.match(rf"(TEST\(|def |int ){name}\b", x)), "")
            assert r[1] in re.findall(r"T-\d\d", line), f"{r[1]}: {file} {name}: {line}"
    count = {s: sum(r[2] == s for r in rows) for s in ("met", "partly", "not met")}
    assert ", ".join(f"{n} {s}" for s, n in count.items()) + "." in text
