"""docs/conformance.md says of every case what its tests say."""
import re

from harness import ROOT

ROW = re.compile(r"^\| (C\d+) \| [^|]+ \| (met|partly|not met) \| ([^|]*) \|$")


def test_the_table_is_true(cases):
    rows = [ROW.match(line) for line in (ROOT / "docs/conformance.md").read_text().splitlines()
            if line.startswith("| C")]
    assert all(rows) and [r[1] for r in rows] == [f"C{i:02}" for i in range(1, 128)]
    assert {r[1]: r[2] for r in rows} == cases
    for r in rows:
        assert r[2] == "met" or len(r[3]) > 10, f"{r[1]}: why not?"
