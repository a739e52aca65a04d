"""`llmq inspect --html`: the page's figures against the weights that `convert` writes, and hostile names."""
import json
import os
import re
import shutil
import struct

import pytest

from test_bad_input import read_st, st_file
from test_published import NAMES, assemble
from harness import LIMIT, ROOT

CHROMIUM = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)


def data(page):
    """The page's JSON, as a browser cuts it out: up to the first end of a script."""
    text = page.read_text()
    assert text.count("@DATA@") == 0
    assert not re.search(r"(src|href)\s*=|@import|url\(", text.split("<script", 1)[0]), "something from elsewhere"
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script', text, re.S | re.I).group(1))


def pages(llmq, folder, tmp_path):
    """The source's page, those of both layouts of .llmq, and the first row of each weight in f32."""
    llmq("convert", folder, "-o", tmp_path / "f", "--to", "safetensors", "--dtype", "f32")
    header, body = read_st(tmp_path / "f/model.safetensors")
    rows = {n: struct.unpack_from(f"<{t['shape'][-1]}f", body, t["data_offsets"][0])
            for n, t in header.items() if n != "__metadata__"}
    models = [folder]
    for layout in ("portable", "tile16"):
        models.append(tmp_path / f"{layout}.llmq")
        llmq("convert", folder, "-o", models[-1], "--to", "llmq", "--layout", layout)
    for i, m in enumerate(models):
        llmq("inspect", m, "--html", tmp_path / f"{i}.html")
        yield data(tmp_path / f"{i}.html"), rows


def f32(v):
    return struct.unpack("<f", struct.pack("<f", v))[0]


def check(tensor, row):
    s = tensor["sample"]
    of = dict(s["bytes"])
    head = bytes.fromhex(s["planes"][0]["head"])
    assert s["planes"][0]["name"] == "codes"
    assert all(v == head[at] for at, v in of.items() if at < len(head))
    for k, e in enumerate(s["elements"]):
        assert f32(e["value"]) == row[e["input"]], (tensor["name"], k)
        assert e["code"] == sum((of[at] >> bit & (1 << n) - 1) << shift for at, bit, n, shift in e["bits"])
        assert sum(b[2] for b in e["bits"]) == s["code_bits"]
        if "level" in e:
            assert e["scale"] * e["level"] + e.get("bias", 0) == pytest.approx(e["value"], rel=1e-6, abs=1e-12)
    owned = [(at, bit + i) for e in s["elements"] for at, bit, n, _ in e["bits"] for i in range(n)]
    assert len(owned) == len(set(owned)), "two elements own one bit"
    return "level" in s["elements"][0]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_what_the_weights_are(llmq, tmp_path, name):
    for doc, rows in pages(llmq, assemble(name, tmp_path / "m"), tmp_path):
        assert doc["tensors"] and {t["name"] for t in doc["tensors"]} == set(rows)
        assert sum([check(t, rows[t["name"]]) for t in doc["tensors"]]) >= 7


def test_the_page_of_gguf(llmq, tmp_path):
    doc, rows = next(pages(llmq, ROOT / "tests/golden/gguf/novels-6m-Q2_K.gguf", tmp_path))
    assert sum([check(t, rows[t["name"]]) for t in doc["tensors"]]) > 40
    assert "bias" in next(t for t in doc["tensors"] if t["scheme"] == "q2_k")["sample"]["elements"][0]


@pytest.mark.parametrize("how", [("--bits", "3", "--group-size", "4"), ("--bits", "8", "--group-size", "8", "--sym")])
def test_the_page_of_groups_that_tiles_pad(llmq, draft, tmp_path, how):
    llmq("quantize", draft, "-o", tmp_path / "q.llmq", "--method", "rtn", *how)
    for doc, rows in pages(llmq, tmp_path / "q.llmq", tmp_path):
        assert sum([check(t, rows[t["name"]]) for t in doc["tensors"]]) >= 7


HOSTILE = ["</script><img src=x onerror=\"document.title='taken'\">", "<!--<script>", "&lt;b&gt;", "a'\"b", "x\u202egnp", "\u2028",
           "\x1b[31m", "한국어"]


@pytest.fixture
def hostile(llmq, tmp_path):
    header = {n: {"dtype": "F32", "shape": [2, 4], "data_offsets": [32 * i, 32 * i + 32]} for i, n in enumerate(HOSTILE)}
    (tmp_path / "m.safetensors").write_bytes(st_file(header, bytes(32 * len(HOSTILE))))
    llmq("inspect", tmp_path / "m.safetensors", "--html", tmp_path / "p.html")
    return tmp_path / "p.html"


def test_names_are_no_markup(llmq, hostile):
    assert {t["name"] for t in data(hostile)["tensors"]} == set(HOSTILE)
    text = hostile.read_text()
    assert "<img" not in text and "<!--" not in text and "\x1b" not in text
    assert "\x1b" not in llmq("inspect", hostile.parent / "m.safetensors").stdout


def test_a_browser_shows_names_as_text_and_labels_beside_the_drawing(llmq, draft, hostile):
    api = pytest.importorskip("playwright.sync_api", reason="the page is shown with playwright")
    if not CHROMIUM:
        pytest.skip("the page is shown with chromium")
    with api.sync_playwright() as p, p.chromium.launch(executable_path=CHROMIUM, timeout=1000 * LIMIT,
                                                           args=["--no-sandbox"] if os.geteuid() == 0 else []) as browser:
        tab, asked = browser.new_page(), []
        tab.set_default_timeout(1000 * LIMIT)
        tab.on("request", lambda r: asked.append(r.url))
        tab.on("pageerror", lambda e: asked.append(str(e)))
        tab.goto(hostile.as_uri())
        buttons = tab.locator("button.pick")
        assert buttons.count() == len(HOSTILE)
        for i in range(len(HOSTILE)):
            buttons.nth(i).click()
            assert tab.locator("#one h2").inner_text() == buttons.nth(i).inner_text()
            assert tab.locator("#one svg").count() == 2
        names = set(buttons.all_inner_texts())
        assert "x\\u202egnp" in names and HOSTILE[0] in names and "한국어" in names
        assert tab.title() == "m.safetensors: llmq inspect" and tab.locator("img").count() == 0
        assert asked == [hostile.as_uri()]
        llmq("inspect", draft, "--html", hostile.parent / "d.html")
        tab.goto((hostile.parent / "d.html").as_uri())
        assert tab.locator("h1").inner_text() == draft.name and "Numbers of row 0: bf16, 16 bits each" in tab.locator("#one").inner_text()
        label, box = tab.locator("#one svg text.rows").bounding_box(), tab.locator("#one svg rect.box").first.bounding_box()
        assert tab.locator("#one svg text.rows").text_content() == "4096 rows" and label["x"] + label["width"] <= box["x"]


def test_no_page_over_the_model_and_none_left_by_failure(llmq, tmp_path, packed):
    shutil.copy(packed, tmp_path / "m.llmq")
    p = llmq("inspect", tmp_path / "m.llmq", "--html", tmp_path / "m.llmq", code=None)
    assert p.returncode == 2 and "another place than the source" in p.stderr
    assert (tmp_path / "m.llmq").read_bytes() == packed.read_bytes()
    p = llmq("inspect", tmp_path / "m.llmq", "--html", tmp_path / "m.llmq/p.html", code=None)
    assert p.returncode == 2 and "--html" in p.stderr and "expected a folder" in p.stderr
    assert llmq.json("inspect", tmp_path / "m.llmq", "--html", tmp_path / "p.html")["format"] == "llmq"
    assert data(tmp_path / "p.html")["path"].endswith("m.llmq")
