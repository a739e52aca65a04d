"""`llmq chat` at a terminal: what is typed, what is sent, and what the screen shows."""
import json
import re
import subprocess
import time

import pytest

from clients import Mock, Terminal
from harness import ROOT, until

PASTE = b"\x1b[200~%s\x1b[201~"
UP, DOWN, LEFT, HOME, END, ALT_ENTER, CTRL_U = b"\x1b[A", b"\x1b[B", b"\x1b[D", b"\x1b[H", b"\x1b[F", b"\x1b\r", b"\x15"


def events(*deltas):
    return b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in (
        *({"choices": [{"delta": d}]} for d in deltas),
        {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}})) + b"data: [DONE]\n\n"


@pytest.fixture(scope="module")
def edits(llmq):
    if "libedit" not in subprocess.run(["ldd", llmq.path], capture_output=True, text=True).stdout:
        pytest.skip("this llmq is built without libedit")


def sent(llmq, *typed, quit=b"/quit\r", **env):
    """The last messages of the requests, one for each item of `typed`; and the terminal."""
    with Mock() as m, Terminal(llmq, "chat", m.url, **env) as t:
        for keys in typed:
            t.read_until("> ")
            t.type(keys)
            t.read_until("[7 + 5 tokens")
        t.read_until("> ")
        t.type(quit)
        assert until(t.ended) == [0]
    return [b["messages"][-1]["content"] for b in m.bodies], t


@pytest.mark.parametrize("why, keys, want", [
    ("pasted lines are one message", PASTE % b"one\rtwo\r\xed\x95\x9c\rfour" + b"\r", "one\ntwo\n한\nfour"),
    ("pasted keys do nothing", PASTE % b"a\x01\x1b[Ab\x04" + b"\r", "a[Ab"),
    ("a paste can be edited", PASTE % b"one\rtwo" + LEFT + b"\x7f!\r", "one\nt!o"),
    ("arrows move between lines", PASTE % b"abc\rd\refg" + UP + UP + b"X" + DOWN + b"Y" + DOWN + END + b"Z\r",
     "aXbc\ndY\nefgZ"),
    ("Alt-Enter begins a line", b"a" + ALT_ENTER + b"b\r", "a\nb"),
    ("a backslash does too", b"a\\\rb\r", "a\nb"),
    ("arrows move", b"bd" + LEFT + b"c" + HOME + b"a" + END + b"e\r", "abcde"),
    ("Ctrl-U takes all of it", "안녕하세요".encode() + CTRL_U + "네".encode() + b"\r", "네"),
    ("a backspace takes a character", "바다가".encode() + b"\x7f\r", "바다"),
])
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_keys(llmq, edits, why, keys, want, locale):
    assert sent(llmq, keys, LC_ALL=locale)[0] == [want], why


def test_the_history(llmq, edits):
    """Up brings the messages back, also one of several lines, and Ctrl-R finds one."""
    got, _ = sent(llmq, b"first\r", PASTE % b"two\rlines" + b"\r", UP + b"\r", UP + HOME + UP + UP + b"!\r", b"\x12irs\r\r")
    assert got[:4] == ["first", "two\nlines", "two\nlines", "first!"]
    assert got[4].startswith("first")


def test_the_screen(llmq, edits):
    """What is deleted leaves nothing behind, whatever its width; arrows print nothing."""
    pyte = pytest.importorskip("pyte")
    with Mock() as m, Terminal(llmq, "chat", m.url, LC_ALL="C") as t:
        screen = pyte.Screen(80, 24)
        stream = pyte.ByteStream(screen)

        def lines():
            t.poll()
            stream.feed(t.all)
            t.all = b""
            return [s.rstrip() for s in screen.display if s.strip()][1:]

        for keys, want in [("안녕하세요 hello 세계".encode(), ["> 안녕하세요 hello 세계"]), (CTRL_U, [">"]),
                           ("한글".encode() + LEFT + LEFT + LEFT + b"a", ["> a한글"]),
                           (CTRL_U + PASTE % "가\r나".encode(), ["> 가", "나"]), (CTRL_U, [">"])]:
            t.type(keys)
            until(lambda: lines() == want, lambda: (keys, lines()))


ANSWER = "# Title\n\nA **strong** `code` word, 2 * 3 ** 4\n```c\nint *p;\n```\nend \x1b[31mred\x9b"


def test_markdown_is_coloured_and_control_characters_are_not_obeyed(llmq):
    with Mock(answer=events({"reasoning_content": "hm\x1b[2J"}, {"content": ANSWER})) as m:
        def said(**env):
            with Terminal(llmq, "chat", m.url, **env) as t:
                t.read_until("> ")
                t.type(b"a\r")
                text = t.read_until("[7 + 5 tokens")
            return text[max(0, text.index("hm") - 6):]

        coloured = said()
        plain = ANSWER.replace("\x1b", "\ufffd").replace("\x9b", "\ufffd").replace("\n", "\r\n")
        assert coloured.startswith("\x1b[0;2mhm\ufffd[2J\x1b[0m")
        for part in ("\x1b[0;1m# Title", "\x1b[0;1m**strong**\x1b[0m ", "\x1b[0;36m`code`\x1b[0m word, 2 * 3 ** 4",
                     "\x1b[0;36m```c", "\x1b[0;36mint *p;"):
            assert part in coloured, part
        assert plain in re.sub("\x1b\\[0(;\\d+)?m", "", coloured)
        for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            assert plain in said(**env) and "\x1b[0" not in said(**env), env
        assert llmq("chat", m.url, input="a\n").stdout == ANSWER + "\n"  # bytes as they are


def test_save_and_load(llmq, tmp_path):
    """A conversation goes on from its file; /save makes no folders."""
    file, wrong = tmp_path / "talk.json", tmp_path / "wrong.json"
    wrong.write_text('[{"role": "user"}]')
    with Mock() as m:
        p = llmq("chat", m.url, input=f"one\n/save {file}\n/save {tmp_path}/nope/a/b\n/clear\n/load {wrong}\n"
                                      f"/load {tmp_path}/none\n/load {file}\ntwo\n")
    assert [x["content"] for x in m.bodies[-1]["messages"]] == ["one", "t0 t1 t2 t3 t4 ", "two"]
    assert not (tmp_path / "nope").exists() and f"there is no folder {tmp_path}/nope/a/" in p.stderr
    assert "message 0: content" in p.stderr and "none" in p.stderr


def test_typing_ahead_shows_after_the_answer(llmq, edits):
    with Mock(first=0.5) as m, Terminal(llmq, "chat", m.url) as t:
        t.read_until("> ")
        t.type(b"a\r")
        until(lambda: m.bodies)
        time.sleep(0.1)
        t.type(b"later" + LEFT)
        assert "later" not in t.read_until("[7 + 5 tokens").split("t0")[0].replace("\r", "")
        t.read_until("later")
        t.type(b"\r")
        until(lambda: len(m.bodies) == 2)
    assert m.bodies[1]["messages"][-1]["content"] == "later"


@pytest.mark.parametrize("why, keys, answers", [
    ("nothing but the end", b"\x04", 0),
    ("the end after a message", b"one\r\x04", 1),
    ("the end after two", b"one\rtwo\r\x04", 2),
])
def test_the_end_of_input_is_seen_before_the_first_prompt(llmq, edits, why, keys, answers):
    """`script` sends it at once where its own input has ended, while the terminal is not yet the editor's."""
    with Mock() as m, Terminal(llmq, "chat", m.url) as t:
        t.type(keys)
        assert until(t.ended) == [0], why
    assert len(m.bodies) == answers, why


def test_the_end_of_input_is_seen_during_an_answer(llmq, edits):
    with Mock(first=0.5) as m, Terminal(llmq, "chat", m.url) as t:
        t.read_until("> ")
        t.type(b"a\r")
        until(lambda: m.bodies)
        t.type(b"\x04")
        assert until(t.ended) == [0]


def test_a_draft_guesses_for_a_model_that_chat_loads(llmq):
    """It was taken and had no effect."""
    big, small = ROOT / "models/novels-6m", ROOT / "models/novels-1m"
    r = llmq("chat", big, "--speculative-model", ROOT / "nowhere", input="a\n", code=3)
    assert "nowhere: No such file or directory" in r.stderr
    greedy = ("chat", big, "--temperature", 0, "--max-tokens", 16)
    assert llmq(*greedy, "--speculative-model", small, input="a\n").stdout == llmq(*greedy, input="a\n").stdout
