"""deploy/: what needs neither Ray nor Kubernetes. The rest is tests/interop/test_ray.py and test_kubernetes.py."""
import json
import sys

import pytest

from harness import ROOT

sys.path.insert(0, str(ROOT / "deploy/ray"))
import llmq_routing as routing  # noqa: E402

SYSTEM = {"role": "system", "content": "Be brief."}
LONG = "The old house stood at the end of a road that nobody had used since the mill was closed. "


def user(text):
    return {"role": "user", "content": text}


def named(path, **body):
    return routing.conversation(path, json.dumps(body).encode())


CHAT, TEXT, OTHER = "/v1/chat/completions", "/v1/completions", "/v1/responses"


@pytest.mark.parametrize("why, one, another, same", [
    ("a later turn", (CHAT, {"messages": [SYSTEM, user("a")]}),
     (CHAT, {"messages": [SYSTEM, user("a"), {"role": "assistant", "content": "b"}, user("c")], "max_tokens": 3}), True),
    ("another first message", (CHAT, {"messages": [SYSTEM, user("a")]}), (CHAT, {"messages": [SYSTEM, user("b")]}), False),
    ("another system message", (CHAT, {"messages": [SYSTEM, user("a")]}), (CHAT, {"messages": [user("a")]}), False),
    ("another model", (CHAT, {"model": "m", "messages": [user("a")]}), (CHAT, {"model": "n", "messages": [user("a")]}), False),
    ("Anthropic's system", ("/v1/messages", {"system": "s", "messages": [user("a")]}),
     ("/v1/messages", {"system": "t", "messages": [user("a")]}), False),
    ("a text that goes on", (TEXT, {"prompt": LONG}), (TEXT, {"prompt": LONG + "It was"}), True),
    ("a text in a list", (TEXT, {"prompt": LONG}), (TEXT, {"prompt": [LONG + "It", "b"]}), True),
    ("ids that go on", (TEXT, {"prompt": list(range(40))}), (TEXT, {"prompt": list(range(50))}), True),
    ("other ids", (TEXT, {"prompt": list(range(40))}), (TEXT, {"prompt": list(range(1, 40))}), False),
    ("a list of ids", (TEXT, {"prompt": list(range(40))}), (TEXT, {"prompt": [list(range(50))]}), True),
    ("a response's input", (OTHER, {"input": "a"}), (OTHER, {"input": "b"}), False),
    ("a response's later turn", (OTHER, {"input": [user("a")]}),
     (OTHER, {"input": [user("a"), {"type": "function_call"}, user("b")]}), True),
    ("the client's own name", (CHAT, {"messages": [user("a")], "prompt_cache_key": "k"}),
     (OTHER, {"input": "b", "prompt_cache_key": "k"}), True),
])
def test_a_conversation_keeps_its_name_and_others_have_another(why, one, another, same):
    a, b = named(one[0], **one[1]), named(another[0], **another[1])
    assert a and b and (a == b) == same


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b'{"input": ["a"]}', b'{"messages": []}', b'{"prompt": ""}', b"\xff"])
def test_what_is_no_conversation_has_no_name(body):
    assert routing.conversation("/v1/embeddings", body) == ""


@pytest.mark.parametrize("body", [{"messages": 3}, {"messages": [3, None]}, {"prompt": 3}, {"prompt": {"a": 1}}, {"prompt": [{}]},
                                  {"prompt": [None]}, {"messages": {"role": []}}])
def test_a_body_that_llmq_will_refuse_has_some_name(body):
    assert len(named(CHAT, **body)) == 64


def test_a_replica_that_comes_or_goes_moves_its_own_share_alone():
    names, three = [str(i) for i in range(3000)], ["a", "b", "c"]
    first = {n: routing.order(n, three, {}, 16)[0] for n in names}
    assert all(800 < list(first.values()).count(r) < 1200 for r in three)
    without = {n: routing.order(n, ["a", "c"], {}, 16)[0] for n in names}
    assert all(without[n] == first[n] for n in names if first[n] != "b")
    four = {n: routing.order(n, [*three, "d"], {}, 16)[0] for n in names}
    moved = [n for n in names if four[n] != first[n]]
    assert all(four[n] == "d" for n in moved) and 600 < len(moved) < 900


def test_one_that_is_full_waits_behind_the_others():
    home, second, third = routing.order("x", ["a", "b", "c"], {}, 16)
    assert routing.order("x", ["a", "b", "c"], {home: 15}, 16)[0] == home  # has room
    assert routing.order("x", ["a", "b", "c"], {home: 16}, 16) == [second, third, home]
    assert routing.order("x", ["a", "b", "c"], {home: 40, second: 40, third: 40}, 16)[0] == home  # so have all
    assert routing.order("", ["a", "b", "c"], {"a": 2, "b": 1, "c": 3}, 16) == ["b", "a", "c"]
