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
