"""The page at /, in a real Chromium: what a person does with it, and that it holds nothing but text.
Skipped without Playwright or Chromium."""
import os
import re
import shutil

import pytest

from harness import LIMIT, ROOT, Server, until
from helpers import TINY, USER, http, wait_metric

WEB = ROOT / "runtime/api/web"
CHROMIUM = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
PHONE = {"width": 360, "height": 700}


def test_every_file_is_served(server):  # T-65
    """By its own name, with its type and the policy; the page itself at / alone."""
    types = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
    for file in WEB.iterdir():
        r = server.get("/" if file.name == "index.html" else f"/page/{file.name}")
        assert r.status == 200 and r.read() == file.read_bytes(), file.name
        assert r.headers["content-type"].split(";")[0] == types[file.suffix]
        assert r.headers["x-content-type-options"] == "nosniff"
        policy = dict(p.strip().split(" ", 1) for p in r.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
        assert {v for k, v in policy.items() if k.endswith("-src")} == {"'none'", "'self'"}
    for path in ("/page/index.html", "/page/", "/page/none.js", "/page/..%2fweb.c"):
        assert server.get(path).status == 404, path


def test_nothing_comes_from_elsewhere_nor_becomes_markup():
    for file in WEB.iterdir():
        text = file.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|\son\w+=\"", text), file
        assert set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`]*", text)) <= {
            "http://www.w3.org/2000/svg"}, file


@pytest.mark.parametrize("args, page", [
    (["--web", "off"], False), (["--host", "0.0.0.0"], False), (["--host", "0.0.0.0", "--web", "on"], True)])
def test_where_the_page_is_on(llmq, tmp_path, args, page):
    with Server(llmq, TINY, "--api-key", USER, *args, key=USER, log=tmp_path / "log") as s:
        assert http("GET", s.url + "/page/page.js").status_code == (200 if page else 401)
        r = http("GET", s.url + "/")
        assert r.status_code == (200 if page else 401)
        r = http("GET", s.url + "/", headers=s.key)
        assert ("<!doctype html>" if page else "/v1/chat/completions") in r.text


# ---- in the browser ----

@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright")
    if not CHROMIUM:
        pytest.skip("the page's tests need chromium")
    with api.sync_playwright() as p:
        with p.chromium.launch(executable_path=CHROMIUM,
                               args=["--no-sandbox"] if os.geteuid() == 0 else []) as b:
            yield b


@pytest.fixture
def open_page(browser):
    """open_page(server, option=...): the page, ready, with an empty storage. No test may leave an
    error in its console, nor a request to somewhere else."""
    contexts, wrong = [], []

    def open_(server, ready=True, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * LIMIT)
        page.on("pageerror", lambda e: wrong.append(str(e)))
        page.on("console", lambda m: wrong.append(m.text) if m.type == "error" and
                not re.search("status of 4|'TrustedHTML'", m.text) else None)
        page.on("request", lambda r: None if r.url.startswith(server.url) else wrong.append(r.url))
        page.goto(server.url)
        if ready:
            page.wait_for_selector("html[data-ready]")
        return page

    yield open_
    for c in contexts:
        c.close()
    assert not wrong


def ask(page, text, new=False):
    if new:
        page.click("#new")
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


SAVED = """Object.keys(localStorage).some(k => k.startsWith("llmq.chat.") &&
    JSON.parse(localStorage[k]).messages.some(m => m.pending && m.content.length > 20))"""


def last(page):
    return page.locator(".message.assistant").last


def test_a_conversation(scripted, open_page):
    page = open_page(scripted, permissions=["clipboard-read", "clipboard-write"])
    ask(page, "Say [abc]")
    last(page).locator(".usage").wait_for()
    assert last(page).locator(".text").inner_text() == "The cat sat on x the mat."
    assert re.match(r"\d+ \+ \d+ tokens", last(page).locator(".usage").inner_text())
    assert re.match(r"\d+ of [\d,]+ tokens of context", page.inner_text("#context"))
    last(page).get_by_text("Copy").click()
    last(page).get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "The cat sat on x the mat."
    page.click(".again")
    page.wait_for_selector(".assistant:has(.waiting)", state="detached")
    assert page.locator(".usage").count() == 1
    assert page.locator(".message").count() == 2

    ask(page, "Now [think]", new=True)
    last(page).locator("details").wait_for()
    last(page).locator(".usage").wait_for()
    assert last(page).locator(".text").inner_text() == "Four."
    assert last(page).locator(".thoughts").text_content().strip() == "Two and two."
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert last(page).locator(".text").inner_text() == "Four."
    assert page.locator("#chats .name").all_inner_texts() == ["Now [think]", "Say [abc]"]
    page.click("#chats .name >> text=Say [abc]")
    assert last(page).locator(".text").inner_text() == "The cat sat on x the mat."
    page.on("dialog", lambda d: d.accept())
    page.get_by_label("Delete \"Say [abc]\"").click()
    page.wait_for_selector("#chats li >> nth=1", state="detached")
    assert page.locator("#chats li").count() == 1
    assert last(page).locator(".text").inner_text() == "Four."


def test_stop_and_reload_in_an_answer(scripted, open_page):
    """The text so far stays, the server is rid of the request."""
    page = open_page(scripted)
    for leave in (lambda: page.click("#stop"), page.reload):
        ask(page, "Tell [slow]", new=True)
        page.wait_for_selector(".assistant .text p:text-matches('.{21}')")
        until(lambda: page.evaluate(SAVED))  # it is, twice a second
        leave()
        last(page).locator(".usage").wait_for()
        assert last(page).locator(".usage").inner_text() == "stopped"
        assert len(last(page).locator(".text").inner_text()) > 20
        wait_metric(scripted, "vllm:num_requests_running", 0)


def test_errors_are_shown(scripted, open_page):
    page = open_page(scripted)
    ask(page, "It [nan]s")
    page.wait_for_selector(".error[role=alert]")
    assert "one" in last(page).locator(".text").inner_text()  # what came before it stays
    page.click("#settings")
    page.fill("#p-temperature", "99")
    ask(page, "[abc]", new=True)
    page.wait_for_selector(".error[role=alert]")
    assert "temperature" in page.inner_text(".error[role=alert]")
    page.fill("#p-temperature", "")
    ask(page, "[token]")  # the failed question is not part of what is asked now
    last(page).locator(".usage").wait_for()
    assert last(page).locator(".text").inner_text().strip() == "the house."


def test_a_model_writes_no_markup(scripted, open_page):
    page = open_page(scripted)
    ask(page, "[markup]")
    last(page).locator(".usage").wait_for()
    text = last(page).locator(".text")
    assert page.title() == "llmq" and text.locator("img, script, i, b").count() == 0
    assert "<img src=x onerror=" in text.inner_text() and "<script>" in text.inner_text()
    assert text.locator("strong").inner_text() == "bold"
    assert text.locator("code").all_inner_texts() == ["<b>code</b>", "<i>x</i>"]
    assert text.locator("a").evaluate_all("all => all.map(a => a.href)") == ["https://example.org/"]
    assert text.locator("li").all_inner_texts() == ["one", "two"]
    assert page.evaluate("(() => { try { document.body.innerHTML = 'x'; return 'set'; } "
                         "catch (e) { return e.name; } })()") == "TypeError"


def test_a_key_is_asked_for(keyed, open_page):
    page = open_page(keyed, ready=False)
    for key, wrong in (("sk-no", True), (USER, False)):
        page.wait_for_selector("#key-dialog[open]")
        page.fill("#key-value", key)
        page.press("#key-value", "Enter")
        if wrong:
            page.wait_for_selector("#key-wrong:not([hidden])")
    page.wait_for_selector("html[data-ready]")
    assert page.inner_text("#served") == "org/tiny"
    assert not page.is_visible("#key-dialog")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert not page.is_visible("#key-dialog")


def test_live_figures_and_keys_of_the_keyboard(server, open_page):
    page = open_page(server, locale="ko-KR", color_scheme="dark")
    assert page.get_attribute("html", "lang") == "ko" and page.inner_text("#send") == "보내기"
    page.focus("#tab-chat")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-live"
    page.wait_for_selector("#charts[data-readings]")
    server.post_json("/v1/completions", {"prompt": "a", "max_tokens": 64, "ignore_eos": True})
    first = page.locator(".chart").first
    assert first.locator("h2").inner_text() == "처리량 (토큰/초)"
    for title in ("처리량", "기계 한계"):  # the line rises from the chart's floor, whichever reading saw it
        line = page.locator(".chart", has_text=title).locator("polyline.a")
        until(lambda: any(float(p.split(",")[1]) < 87.9 for p in line.get_attribute("points").split()), lambda: title)
    assert re.search(r"생성 [\d.,]+ 토큰/초", first.locator("svg").get_attribute("aria-label"))
    page.select_option("#language", "en")
    assert first.locator("h2").inner_text() == "Throughput (tokens/s)"
    page.reload()
    page.wait_for_selector("#charts[data-readings]")
    assert page.inner_text("#tab-chat") == "Chat"  # language and tab are kept


def test_a_value_above_the_scale_is_drawn_and_said(server, open_page):
    got = open_page(server).evaluate("""async () => {
        const { Chart } = await import("/page/charts.js");
        const c = new Chart({ title: "limit", unit: "percent", lines: ["memory", "arithmetic"], digits: 1, top: 100,
                              beyond: "fromCache" }, 3), seen = [];
        for (const values of [[90, NaN], [130, 20]]) {
            c.add(values);
            seen.push([c.scale.children[1].textContent, c.note.hidden, c.lines[0].getAttribute("points")]);
        }
        return seen;
    }""")
    assert [g[:2] for g in got] == [["0 – 100", True], ["0 – 200", False]]
    assert float(got[1][2].split(",")[-1]) == pytest.approx(90 - 2 - 86 * 130 / 200, abs=0.1)


def test_the_last_line_stays_in_sight_beside_the_parameters(scripted, open_page):
    page = open_page(scripted, viewport={"width": 900, "height": 400})
    for i in range(3):
        ask(page, f"[abc] {i}: " + "a line that is long enough to be broken when it gets narrower " * 4)
        page.locator(".message.assistant .foot").nth(i).wait_for()
        page.wait_for_selector("#stop", state="hidden")
    height = "document.getElementById('messages').scrollHeight"
    before = page.evaluate(height)
    page.click("#settings")
    at_end = """() => { const m = document.getElementById("messages");
                        return m.scrollHeight - m.scrollTop - m.clientHeight < 2; }"""
    until(lambda: page.evaluate(height) > before and page.evaluate(at_end))


@pytest.mark.parametrize("locale", ["en-US", "ko-KR"])
def test_it_fits_a_phone(server, open_page, locale):
    page = open_page(server, locale=locale, viewport=PHONE)
    fits = "document.documentElement.scrollWidth <= innerWidth"
    assert page.evaluate(fits) and not page.is_visible("#side")
    for tab in ("#tab-live", "#tab-chat"):
        page.click(tab)
        assert page.evaluate(fits), tab
        for e in page.locator("header button, header select, #ask button").all():
            box = e.bounding_box()
            assert not box or box["x"] + box["width"] <= PHONE["width"], e
    page.click("#menu")
    assert page.is_visible("#side") and page.get_attribute("#menu", "aria-expanded") == "true"
    page.keyboard.press("Escape")
    assert not page.is_visible("#side")


def test_both_themes_are_legible(server, open_page):
    """WCAG's contrast, at least 4.5, of the texts on what is behind them."""
    page = open_page(server, color_scheme="light")
    contrast = """([fore, back]) => {
        const lum = name => {
            const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
            const c = [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16) / 255)
                .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
        };
        const [a, b] = [lum(fore), lum(back)].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05);
    }"""
    seen = set()
    for _ in range(3):
        page.click("#theme")
        seen.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        for fore, back in (("--text", "--bg"), ("--text", "--own"), ("--quiet", "--bg"),
                           ("--quiet", "--panel"), ("--error", "--bg"), ("--on-main", "--main"),
                           ("--a", "--panel"), ("--b", "--panel"), ("--text", "--code")):
            assert page.evaluate(contrast, [fore, back]) >= 4.5, (fore, back, seen)
    assert len(seen) == 2
