"""The table of quantization methods: what is made from it, and that nothing else names a method."""
import json
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/make"))
import methods as tables  # noqa: E402


@pytest.fixture(scope="module")
def rows(llmq):
    return json.loads(llmq("quantize", "--list-methods", "--json").stdout)["methods"]


def test_the_table_of_the_docs_is_that_of_the_program(rows):
    text, want = tables.page(rows)
    assert text == want, "docs/methods/README.md: run scripts/make/methods.py"


def test_help_names_every_method_and_the_methods_of_an_option(llmq, rows):
    help_text = " ".join(llmq("quantize", "--help").stdout.split())
    assert f"({', '.join(r['name'] for r in rows)}; default auto)" in help_text
    for option in sorted({o for r in rows for o in r["options"]}):
        takes = ", ".join(r["name"] for r in rows if option in r["options"])
        at = re.search(rf"--(?:\[no-\])?{option}\b(?! and)(?:(?!--).)*?", help_text)
        assert at and f"({takes}" in help_text[at.start():], option


def test_an_option_is_refused_by_every_method_that_has_it_not(llmq, rows):
    values = {"bits": "4", "group-size": "64", "tune": "1", "bpw": "4", "self-samples": "1", "damp": "0.01",
              "outlier-threshold": "6", "outlier-share": "0.1", "device": "cpu", "imatrix": "x.gguf",
              "effort": "fast"}
    for option in sorted({o for r in rows for o in r["options"]}):
        takes = [r["name"] for r in rows if option in r["options"]]
        for r in rows:
            if r["name"] in takes:
                continue
            given = [f"--{option}", values[option]] if option in values else [f"--{option}"]
            p = llmq("quantize", "nowhere", "-o", "x.llmq", "-m", r["name"], *given, code=2)
            assert f"--{option}: expected a method that has it ({', '.join(takes)}), found {r['name']}" in p.stderr


def test_a_method_is_named_in_its_own_file_only(rows):
    """Its row is `const qz_method qz_method_NAME`; the registry names it without quotes. Layouts (convert/, formats/,
    publish/) and options of other commands have words of their own that are spelled alike."""
    names = {r["name"] for r in rows}
    sources = [p for folder in ("quantize", "calib", "tools/report", "tools/verify")
               for p in (ROOT / folder).rglob("*.[ch]")] + [ROOT / "tools/cmd_quantize.c", ROOT / "tools/cmd_plan.c"]
    homes = {n: next((p for p in sources if f"const qz_method qz_method_{n} = {{" in p.read_text()), None)
             for n in names}
    assert all(homes.values()), homes
    for path in sources:
        text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S)
        for word in set(re.findall(r'"(\w+)"', text)) & (names - {"auto"}):  # also a device, a scheme
            assert path in (homes[word],), f"{path.relative_to(ROOT)}: names the method '{word}'"
    registry = (ROOT / "quantize/methods/methods.c").read_text()
    assert all(f"X({n})" in registry for n in names)


def test_each_method_makes_a_file_that_its_bound_holds_for(llmq, rows, tmp_path):
    """`verify --against` asks the row for the bound; free ones are quick."""
    for r in rows:
        if r["text"] == "yes":
            continue
        out = tmp_path / f"{r['name']}.llmq"
        llmq("quantize", ROOT / "models/novels-6m", "-o", out, "-m", r["name"], "--no-check")
        llmq("verify", out, "--against", ROOT / "models/novels-6m")
