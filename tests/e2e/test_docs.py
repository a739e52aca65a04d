"""The pages: links lead somewhere, the tour names files that exist, the README stays short."""
import re

from conftest import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_every_relative_link_leads_to_a_file():
    bad = [f"{page.relative_to(ROOT)}: {link}" for page in PAGES
           for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", page.read_text())
           if not (page.parent / link).exists()]
    assert bad == []


def test_the_source_tour_names_files_that_exist():
    tour = (ROOT / "docs/source-tour.md").read_text()
    names = re.findall(r"`([a-z_]+/[a-z_/]+\.[ch])`", tour)
    assert len(names) > 20
    assert [n for n in names if not (ROOT / n).exists()] == []


def test_the_readme_begins_with_its_two_commands_and_is_short():
    text = (ROOT / "README.md").read_text()
    commands = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    assert commands[0].startswith("sh scripts/demo.sh") and commands[1].startswith("sh scripts/test.sh")
    assert len(text.split()) <= 900


def test_the_routes_of_the_page_are_those_of_the_server(llmq):
    keys = {"+": "none", " ": "a user's", "!": "an administrator's"}
    rows = re.findall(r"^([+! ]) (GET|POST|DELETE) +(\S+) +(.*)$", llmq("serve", "--help").stdout, re.M)
    table = [f"| `{method} {path}` | {text} | {keys[key]} |" for key, method, path, text in rows]
    page = (ROOT / "docs/serving.md").read_text()
    assert len(rows) > 15 and re.search(r"<!-- routes -->\n.*\n.*\n((?:\|.*\n)*)<!-- /routes -->", page)[1].splitlines() == table


def test_a_new_route_touches_files_that_exist():
    text = (ROOT / "docs/first-change.md").read_text().split("## A new server route")[1].split("\n## ")[0]
    names = [n for n in re.findall(r"`([a-z_]+/[\w/.]+)`", text) if "NAME" not in n]
    assert len(names) >= 6 and [n for n in names if not (ROOT / n).exists()] == []


def test_the_count_of_fuzzers_is_that_of_their_files():
    told = re.search(r"(\d+) fuzzers, of (\d+) parsers", (ROOT / "docs/reliability.md").read_text())
    n = len(list((ROOT / "tests/fuzz").glob("fuzz_*.c")))
    assert told and [int(g) for g in told.groups()] == [n, n - 1]
