"""The page at /, in a real Chromium: what a person does with it, and that it holds nothing but text.
Skipped without Playwright or Chromium."""
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from harness import LIMIT, ROOT, Server, until
from helpers import TINY, USER, http, wait_metric, with_template

WEB = ROOT / "runtime/api/web"
OWN = [f for f in WEB.iterdir() if f.is_file()]
AXE = "axe-core@4.14.1"
CHROMIUM = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
PHONES = [{"width": 360, "height": 700}, {"width": 320, "height": 640}]


def test_every_file_is_served(server):  # T-65
    """By its own name, with its type and the policy; the page itself at / alone."""
    types = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml",
             ".html": "text/html", ".woff2": "font/woff2", ".txt": "text/plain"}
    for file in filter(pathlib.Path.is_file, WEB.rglob("*")):
        r = server.get("/" if file.name == "index.html" else f"/page/{file.relative_to(WEB)}")
        assert r.status == 200 and r.read() == file.read_bytes(), file.name
        assert r.headers["content-type"].split(";")[0] == types[file.suffix]
        assert r.headers["x-content-type-options"] == "nosniff"
        known = http("GET", str(r.url), headers={"If-None-Match": r.headers["etag"]})
        assert (known.status_code, known.content, known.headers["etag"]) == (304, b"", r.headers["etag"])
        policy = dict(p.strip().split(" ", 1) for p in r.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
        assert {v for k, v in policy.items() if k.endswith("-src")} == {"'none'", "'self'"}
    for path in ("/page/index.html", "/page/", "/page/none.js", "/page/..%2fweb.c"):
        assert server.get(path).status == 404, path


def test_the_libraries_are_those_of_the_table():
    out = subprocess.run(["sh", "scripts/vendor-page.sh", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr
    named = set(re.findall(r"(\S+) [0-9a-f]{64}$", (ROOT / "scripts/vendor-page.sh").read_text(), re.M))
    assert named == {f.name for f in (WEB / "vendor").iterdir()} - {"LICENSES.txt"}
    assert sum(f.stat().st_size for f in (WEB / "vendor").iterdir()) < 900_000


def test_nothing_comes_from_elsewhere_nor_becomes_markup():
    for file in OWN:
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


def tell_slowly(page):
    """Until an answer goes on: what is drawn there is the model's own, and one in sixty ends within a few words."""
    for _ in range(10):
        ask(page, "Tell [slow]", new=True)
        page.wait_for_selector(".assistant .text p:text-matches('.{21}'), .assistant .usage")
        if not last(page).locator(".usage").is_visible():
            return
    pytest.fail("ten answers in a row were over at once")


def test_stop_and_reload_in_an_answer(scripted, open_page):
    """The text so far stays, the server is rid of the request."""
    page = open_page(scripted)
    for leave in (lambda: page.click("#stop"), page.reload):
        tell_slowly(page)
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


@pytest.mark.parametrize("phone", PHONES, ids=lambda p: p["width"])
@pytest.mark.parametrize("locale", ["en-US", "ko-KR"])
def test_it_fits_a_phone(server, open_page, locale, phone):
    page = open_page(server, locale=locale, viewport=phone)
    fits = "document.documentElement.scrollWidth <= innerWidth"
    assert page.evaluate(fits) and not page.is_visible("#side")
    for tab in ("#tab-live", "#tab-chat"):
        page.click(tab)
        assert page.evaluate(fits), tab
        if tab == "#tab-live":
            page.wait_for_selector("#charts[data-readings]")
            assert page.evaluate("(e => e.scrollWidth <= e.clientWidth)(document.getElementById('view-live'))")
        for e in page.locator("header button, header select, #ask button").all():
            box = e.bounding_box()
            assert not box or box["x"] + box["width"] <= phone["width"], e
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
                           ("--a", "--panel"), ("--b", "--panel"), ("--text", "--code"),
                           *((f"--{c}", "--code") for c in ("word", "string", "number", "title", "note", "error")),
                           *(("--text", f"--p{i}") for i in (1, 2, 3, 4))):
            assert page.evaluate(contrast, [fore, back]) >= 4.5, (fore, back, seen)
    assert len(seen) == 2


# ---- what an answer looks like ----

def test_formulas_tables_tasks_and_code(scripted, open_page):
    page = open_page(scripted, permissions=["clipboard-read", "clipboard-write"])
    ask(page, "[rich]")
    last(page).locator(".usage").wait_for()
    text = last(page).locator(".text")
    assert text.locator("math").count() == 3  # with backslashes or dollars; prices are none
    assert text.locator(".formula math mfrac").count() == 1
    assert "for $5 or $6" in text.inner_text() and "\\(" not in text.inner_text()
    assert [c.evaluate("e => getComputedStyle(e).textAlign") for c in text.locator("td").all()] == ["left", "right"]
    boxes = text.get_by_role("checkbox")
    assert [(b.is_checked(), b.get_attribute("aria-label")) for b in boxes.all()] == [(True, "done"), (False, "open")]
    assert text.locator("pre").inner_text() == "def f(n): return 'x'"
    assert text.locator("pre .h-keyword").all_inner_texts() == ["def", "return"]
    text.locator(".code").get_by_text("Copy").click()
    text.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "def f(n): return 'x'"


def test_hostile_markup_stays_text(scripted, open_page):
    page = open_page(scripted)
    page.on("dialog", lambda d: pytest.fail(d.message))
    ask(page, "[hostile]")
    last(page).locator(".usage").wait_for()
    text = last(page).locator(".text")
    assert text.locator("img, script, svg, b, iframe, object, [onload], [onerror], [onclick]").count() == 0
    assert text.locator("a").count() == 0
    assert text.locator("[href], [src]").count() == 0
    assert text.locator("pre").last.inner_text() == "<script>alert(1)</script>"


def test_a_thought_shows_while_it_grows(scripted, open_page):
    page = open_page(scripted)
    ask(page, "[think slowly]")
    page.wait_for_selector(".thought[open] .thoughts:text-matches('Two and')")
    assert last(page).locator(".text").inner_text() == ""
    last(page).locator(".usage").wait_for()
    assert last(page).locator(".thought").get_attribute("open") is None
    assert last(page).locator(".text").inner_text() == "Four."


TOOLS = json.dumps([{"type": "function", "function": {"name": n, "parameters": {"type": "object"}}}
                    for n in ("weather", "now")])


def test_tool_calls_are_shown_and_answered(scripted, open_page):
    page = open_page(scripted)
    page.click("#settings")
    page.fill("#p-tools", "no json")
    ask(page, "[one call]")
    assert "JSON" in page.inner_text(".error[role=alert]")
    page.fill("#p-tools", TOOLS)
    ask(page, "[one call]", new=True)
    last(page).locator(".results").wait_for()
    assert last(page).locator(".call p").inner_text() == "calls weather"
    assert json.loads(last(page).locator(".call code").inner_text()) == {"city": "Paris", "days": [1, 2]}
    page.get_by_label("Result of weather").fill("sunny [abc]")
    with page.expect_request("**/v1/chat/completions") as sent:
        page.get_by_text("Send the results").click()
    said = sent.value.post_data_json["messages"]
    assert [m["role"] for m in said] == ["user", "assistant", "tool"]
    assert said[2] == {"role": "tool", "tool_call_id": said[1]["tool_calls"][0]["id"], "content": "sunny [abc]"}
    page.locator(".message.tool").wait_for()


def test_probabilities_of_tokens(scripted, open_page):
    page = open_page(scripted)
    page.click("#settings")
    page.check("#p-probabilities")
    ask(page, "[token]")
    last(page).get_by_text("Probabilities").click()
    tokens = last(page).locator(".tokens")
    assert tokens.locator("span").all_text_contents()[:2] == [" the", " house"]
    tokens.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert re.match(r"␣house [\d.]+ %(  ·  \S+ [\d.]+ %){4}", last(page).locator(".told").text_content())
    last(page).get_by_text("Probabilities").click()
    assert last(page).locator(".text p").inner_text().strip() == "the house."


# ---- conversations ----

def shown(page):
    return page.locator(".message .text").all_inner_texts()


def idle(page):
    page.wait_for_selector("#stop", state="hidden")


def test_editing_and_asking_again_make_branches(scripted, open_page):
    page = open_page(scripted)
    page.on("dialog", lambda d: d.accept())
    ask(page, "first [abc]")
    last(page).locator(".usage").wait_for()
    ask(page, "second")
    page.locator(".usage").nth(1).wait_for()
    page.locator(".edit").first.click()
    page.get_by_label("Edit the message").fill("changed [token]")
    page.keyboard.press("Enter")
    page.wait_for_selector(".user:has-text('changed')")
    idle(page)
    assert shown(page) == ["changed [token]", "the house."]
    assert page.locator(".version").all_inner_texts() == ["2 of 2"]
    page.get_by_label("Version before").click()
    assert shown(page) == ["first [abc]", "The cat sat on x the mat.", "second", "The cat sat on x the mat."]
    page.locator(".again").first.click()  # the answer in the middle, again
    page.wait_for_selector(".assistant .version")
    idle(page)
    assert len(shown(page)) == 2
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.locator(".version").all_inner_texts() == ["1 of 2", "2 of 2"]
    page.locator(".assistant .away").click()  # its sibling is shown again
    assert shown(page) == ["first [abc]", "The cat sat on x the mat.", "second", "The cat sat on x the mat."]
    page.locator(".user .away").last.click()
    assert len(shown(page)) == 2
    page.focus("#prompt")
    page.keyboard.press("ArrowUp")  # edits the last question
    assert page.get_by_label("Edit the message").input_value() == "first [abc]"
    page.keyboard.press("Escape")
    assert len(shown(page)) == 2


def test_rename_search_export_import(scripted, open_page, tmp_path):
    page = open_page(scripted, accept_downloads=True)
    ask(page, "한글 [abc] " + "long " * 30)
    last(page).locator(".usage").wait_for()
    title = page.inner_text("#chats .name")
    assert len(title) == 80 and title.endswith("…")
    ask(page, "Other [token]", new=True)
    last(page).locator(".usage").wait_for()
    page.get_by_label('Rename "Other [token]"').click()
    page.get_by_label("Title").fill("이름")
    page.keyboard.press("Enter")
    assert page.locator("#chats .name").first.inner_text() == "이름"
    page.keyboard.press("Control+k")
    for wanted, found in (("THE CAT", 1), ("이름", 1), ("nowhere", 0), ("", 2)):
        page.fill("#search", wanted)
        assert page.locator("#chats li").count() == found, wanted
        assert page.is_visible("#no-match") == (found == 0)
    page.click("#exports summary")
    files = {}
    for b in ("md", "all"):
        with page.expect_download() as d:
            page.click(f"#export-{b}")
        files[d.value.suggested_filename] = tmp_path / b
        d.value.save_as(tmp_path / b)
    assert set(files) == {"이름.md", "llmq.json"}
    text = files["이름.md"].read_text()
    assert text.startswith("# 이름\n\n## You\n\nOther [token]\n\n## Model\n\n the house.")
    page.evaluate("localStorage.clear()")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.locator("#chats li").count() == 0
    page.set_input_files("#import-file", files["llmq.json"])
    until(lambda: page.locator("#chats .name").all_inner_texts() == ["이름", title])
    (tmp_path / "wrong.json").write_text('{"conversations": [1, {"messages": [{"role": "root"}]}]}')
    page.set_input_files("#import-file", tmp_path / "wrong.json")
    page.wait_for_selector("#notice:text('wrong.json has no conversations')")


def test_files_go_with_a_message(scripted, open_page, tmp_path):
    (tmp_path / "a.md").write_text("한글\n```\ncode\n```\n")
    (tmp_path / "b.bin").write_bytes(b"\xff\0")
    page = open_page(scripted)
    page.set_input_files("#file", [tmp_path / "a.md", tmp_path / "b.bin"])
    page.wait_for_selector("#notice:text('b.bin is no text')")
    assert page.locator("#files .file").count() == 1
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "See [abc]")
    assert sent.value.post_data_json["messages"][0]["content"] == \
        "a.md:\n````\n한글\n```\ncode\n```\n````\n\nSee [abc]"
    assert page.locator(".user .file").inner_text().startswith("a.md")
    assert not page.is_visible("#files") and not page.is_visible("#notice")


def test_system_messages_are_kept(scripted, open_page):
    page = open_page(scripted)
    page.click("#settings")
    page.fill("#p-system", "Be brief.")
    page.click("#params >> text=Keep")
    page.fill("#p-system", "")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    page.click("#settings")
    page.get_by_label("Kept system messages").select_option(label="Be brief.")
    assert page.input_value("#p-system") == "Be brief."
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "[abc]")
    assert sent.value.post_data_json["messages"][0] == {"role": "system", "content": "Be brief."}
    page.click("#params >> text=Forget")
    assert not page.is_visible("[aria-label='Kept system messages']")


def test_stop_strings(scripted, open_page):
    """As many lines as the server takes; beyond that it says so."""
    page = open_page(scripted)
    page.click("#settings")
    page.fill("#p-stopTexts", "".join(f"none{i}\n" for i in range(5)) + " mat")
    ask(page, "[abc]")
    last(page).locator(".usage").wait_for()
    assert shown(page)[-1] == "The cat sat on x the"
    page.fill("#p-stopTexts", "".join(f"none{i}\n" for i in range(200)))
    ask(page, "[abc]", new=True)
    assert "stop" in page.inner_text(".message .error[role=alert]")


def test_the_model_can_be_chosen(server, open_page):
    page = open_page(server)
    assert page.locator("#model option").all_inner_texts() == ["tiny", "org/tiny"]
    page.select_option("#model", "org/tiny")
    page.click("#settings")
    page.check("#p-plain")
    page.fill("#p-max_tokens", "2")
    with page.expect_request("**/v1/completions") as sent:
        ask(page, "The")
    assert sent.value.post_data_json["model"] == "org/tiny"


def test_a_full_context_does_not_end_the_conversation(scripted_llmq, script_file, open_page, tmp_path):
    template = (ROOT / "tests/golden/templates/think-namespace.jinja").read_text()
    with Server(scripted_llmq, with_template(tmp_path / "chatml", template), "--test-script", script_file,
                "--max-model-len", 512, log=tmp_path / "log") as s:
        page = open_page(s)
        page.click("#settings")
        page.fill("#p-max_tokens", "64")
        for i in range(12):
            ask(page, f"[abc] {i} " + "old house " * 12)
            idle(page)
            if page.get_by_text("Leave out the oldest turns").count():
                break
        assert "512" in page.inner_text(".error[role=alert]")
        page.get_by_text("Leave out the oldest turns").click()
        page.wait_for_selector(".divider")
        idle(page)
        assert not page.locator(".message .error").count() and shown(page)[-1] == "The cat sat on x the mat."
        ask(page, "once more")
        idle(page)
        assert shown(page)[-2:] == ["once more", "The cat sat on x the mat."]
        ask(page, "[abc] " + "old house " * 300)
        page.get_by_text("Leave out the oldest turns").click()
        page.wait_for_selector(".error:text('This message alone')")
        ask(page, "[abc] " + "old house " * 300)
        page.get_by_text("Ask in a new conversation").click()
        until(lambda: page.locator("#chats li").count() == 2)
        assert len(shown(page)) == 1


# ---- accessibility ----

@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """The source of axe-core, from npm."""
    folder = tmp_path_factory.mktemp("axe")
    try:
        subprocess.run(["npm", "pack", "--silent", AXE], cwd=folder, check=True, timeout=120, capture_output=True)
    except (OSError, subprocess.SubprocessError):
        pytest.skip(f"{AXE} cannot be had from npm")
    subprocess.run("tar xzf *.tgz", cwd=folder, shell=True, check=True)
    return (folder / "package/axe.min.js").read_text()


@pytest.mark.parametrize("options", [{"color_scheme": "light"}, {"color_scheme": "dark"},
                                     {"viewport": PHONES[1], "locale": "ko-KR"}], ids=["light", "dark", "phone"])
def test_axe_finds_nothing(scripted, open_page, axe, options):
    page = open_page(scripted, bypass_csp=True, **options)
    page.evaluate(axe)

    def violations():
        found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
        return [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in found]

    assert violations() == []
    ask(page, "[rich]")
    last(page).locator(".usage").wait_for()
    ask(page, "[think]")
    page.locator(".thought").wait_for()
    idle(page)
    page.click(".thought summary")
    assert violations() == []
    page.click("#settings")
    assert violations() == []
    page.locator("#params button").first.click()
    if page.is_visible("#menu"):
        page.click("#menu")
    page.click("#exports summary")
    page.click("#keys summary")
    assert violations() == []
    page.keyboard.press("Escape")
    page.click("#tab-live")
    page.wait_for_selector("#charts[data-readings]")
    assert violations() == []
