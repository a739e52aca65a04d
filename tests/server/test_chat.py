"""/v1/chat/completions, /tokenize, /detokenize: C71-C87, C106."""
import json

import pytest

from helpers import TINY, with_template

case = pytest.mark.case
MESSAGES = [{"role": "system", "content": "You tell stories."},
            {"role": "user", "content": "Once upon a time"}]


def said(text):
    return [{"role": "user", "content": text}]


def chat(server, messages, **more):
    return server.post_json("/v1/chat/completions", {"messages": messages, **more})


@case("C71", "C72", "C75", "C85")
def test_a_chat(server, client):
    ask = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    a = client.chat.completions.create(**ask)
    m = a.choices[0].message
    ids = server.post_json("/tokenize", {"messages": MESSAGES})["tokens"]
    assert a.object == "chat.completion" and a.id.startswith("chatcmpl-")
    assert m.role == "assistant" and m.content and m.refusal is None
    assert a.usage.prompt_tokens == len(ids)
    # the model's template: BOS, then each text and a newline, as transformers renders it
    text = "<|begin_of_text|>You tell stories.\nOnce upon a time\n"
    assert ids == server.post_json("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    parts = [{"type": "text", "text": "Once upon"}, {"type": "text", "text": "a time"}]
    b = client.chat.completions.create(**{**ask, "messages": [
        MESSAGES[0], {"role": "user", "content": parts}], "max_tokens": 1})
    joined = [MESSAGES[0], {"role": "user", "content": "Once upon\na time"}]
    assert b.usage.prompt_tokens == len(server.post_json("/tokenize", {"messages": joined})["tokens"])
    lp = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2).choices[0]
    assert all(len(t.top_logprobs) == 2 and t.logprob <= 0 for t in lp.logprobs.content)
    assert b"".join(bytes(t.bytes) for t in lp.logprobs.content).decode() == lp.message.content


@case("C75")
def test_logprobs_carry_raw_bytes(scripted):
    c = chat(scripted, said("[broken]"), temperature=0, max_tokens=60, logprobs=True)["choices"][0]
    assert b"".join(bytes(t["bytes"]) for t in c["logprobs"]["content"])[:5] == b"ok \xe6\xbc"


@case("C72")
def test_parts_that_are_no_text(server, ask):
    for part, says in (({"type": "image_url", "image_url": {"url": "data:,"}}, 'content of type "image_url" is not supported'),
                       ({"type": "refusal", "refusal": "no"}, 'content of type "refusal" is not supported'),
                       ({"type": "text"}, "expected content parts"), ("text", "expected content parts"), (5, "found 5")):
        message = ask.check_error(server.post("/v1/chat/completions", {"messages": said([part])}), 400, "messages")
        assert says in message, message


@case("C73")
def test_a_beginning_of_the_answer_is_continued(scripted, ask):
    messages = [*said("Hi"), {"role": "assistant", "content": "It is"}]
    plain = scripted.post_json("/tokenize", {"messages": messages, "add_generation_prompt": False})
    cont = scripted.post_json("/tokenize", {"messages": messages, "add_generation_prompt": False,
                                            "continue_final_message": True})
    text = scripted.post_json("/detokenize", {"tokens": cont["tokens"]})["prompt"]
    assert text.endswith("It is") and plain["count"] > cont["count"]
    body = {"messages": messages, "continue_final_message": True, "max_tokens": 2}
    got = chat(scripted, messages, continue_final_message=True, max_tokens=2)
    assert got["usage"]["prompt_tokens"] == cont["count"]
    ask.check_error(scripted.post("/v1/chat/completions", {**body, "add_generation_prompt": True}),
                    400, "continue_final_message")


@case("C73")
@pytest.mark.parametrize("word", ["prefix", "partial"])
def test_a_message_may_say_that_it_is_a_beginning(scripted, word):
    """As Mistral, DeepSeek and Moonshot have it, and LiteLLM sends it."""
    messages = [*said("Hi"), {"role": "assistant", "content": "It is"}]
    marked = [messages[0], {**messages[1], word: True}]

    def tokens(said, **more):
        return chat(scripted, said, max_tokens=1, **more)["usage"]["prompt_tokens"]
    assert tokens(marked) == tokens(messages, continue_final_message=True) < tokens(messages)
    assert tokens(marked, continue_final_message=False) == tokens(messages)
    for other in ({**messages[1], word: False}, {**messages[1], word: None}, {"role": "assistant", "content": "", word: True}):
        assert tokens([messages[0], other]) == tokens([messages[0], {k: v for k, v in other.items() if k != word}])


@case("C74")
def test_the_length_of_a_chat(server):
    def tokens(**more):
        return chat(server, MESSAGES, ignore_eos=True, **more)["usage"]["completion_tokens"]
    assert tokens(max_tokens=9, max_completion_tokens=3) == 3
    assert tokens(max_tokens=4) == 4 and tokens(max_completion_tokens=5) == 5
    n = chat(server, MESSAGES, max_tokens=1)["usage"]["prompt_tokens"]
    assert tokens() == tokens(max_completion_tokens=-1) == 1024 - n


@case("C76", "C77")
@pytest.mark.parametrize("more, param", [
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
    ({"logprobs": 5}, "logprobs"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [5]}, "messages"),
    ({"messages": [{"role": "foo", "content": "a"}]}, "messages"),
    ({"messages": [{"content": "a"}]}, "messages"),
    ({"messages": [{"role": "user", "content": None}]}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages"),
    ({"messages": [{"role": "user", "content": []}]}, "messages"),
    ({"chat_template": "x"}, "chat_template"),  # C79
])
def test_bad_chats(server, ask, more, param):
    ask.check_error(server.post("/v1/chat/completions", {"messages": MESSAGES, **more}), 400, param)


@case("C76")
def test_no_top_logprobs_are_none(server):
    """As clients send that send every field."""
    assert chat(server, MESSAGES, max_tokens=1, logprobs=False, top_logprobs=0)["choices"][0]["logprobs"] is None


@case("C77")
def test_an_assistant_may_have_said_nothing_but_calls(scripted):
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}
    messages = [*said("[abc]"), {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "2"}]
    ids = scripted.post_json("/tokenize", {"messages": messages})["tokens"]
    text = scripted.post_json("/detokenize", {"tokens": ids})["prompt"]
    no_parts = [messages[0], {**messages[1], "content": []}, messages[2]]  # as LangChain keeps what a response was
    assert scripted.post_json("/tokenize", {"messages": no_parts})["tokens"] == ids
    nothing = [*said("[abc]"), {"role": "assistant", "content": []}, *said("b")]
    assert prompt_of(scripted, nothing) == prompt_of(scripted, [nothing[0], {"role": "assistant", "content": ""}, nothing[2]])
    assert '{"name": "f", "arguments": {"a": 1}}' in text and "<tool_response>\n2" in text
    assert chat(scripted, messages, temperature=0, max_tokens=60)["choices"][0]["message"]["content"]


def test_a_tool_may_say_nothing_and_calls_may_be_of_old(scripted):
    """A result that is null or missing, and function_call with its role, as clients kept them before tools."""
    call = {"name": "f", "arguments": "{\"a\": 1}"}
    asked = [*said("[abc]"), {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": call}]}]
    empty = prompt_of(scripted, [*asked, {"role": "tool", "tool_call_id": "c", "content": ""}])
    for result in ({"content": None}, {}, {"content": []}):
        assert prompt_of(scripted, [*asked, {"role": "tool", "tool_call_id": "c", **result}]) == empty
    of_tools = prompt_of(scripted, [*asked, {"role": "tool", "tool_call_id": "c", "content": "2"}, *said("b")])
    old = [*said("[abc]"), {"role": "assistant", "content": None, "function_call": call}]
    assert prompt_of(scripted, [*old, {"role": "function", "name": "f", "content": "2"}, *said("b")]) == of_tools
    assert prompt_of(scripted, [*old, {"role": "function", "name": "f", "content": None}]) == empty
    old[1]["tool_calls"] = None  # as clients write all members
    assert prompt_of(scripted, [*old, {"role": "function", "name": "f", "content": "2"}, *said("b")]) == of_tools
    assert "[abc]" in prompt_of(scripted, [*said("[abc]"), {"role": "function", "name": "f", "content": "2"}])  # of no call


def prompt_of(server, messages):
    return server.post_json("/v1/chat/completions/render", {"messages": messages})["prompt"]


@case("C77")
def test_an_assistant_may_have_said_nothing(scripted):
    """Content null or missing, as clients keep a turn that was cut, a thought or a refusal."""
    empty = prompt_of(scripted, [*said("a"), {"role": "assistant", "content": ""}, *said("b")])
    for turn in ({"content": None}, {}, {"content": None, "refusal": None}):
        assert prompt_of(scripted, [*said("a"), {"role": "assistant", **turn}, *said("b")]) == empty
    no = prompt_of(scripted, [*said("a"), {"role": "assistant", "content": "No."}, *said("b")])
    for turn in ({"content": None, "refusal": "No."}, {"content": [{"type": "refusal", "refusal": "No."}]}):
        assert prompt_of(scripted, [*said("a"), {"role": "assistant", **turn}, *said("b")]) == no


ECHO = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
KNOWS = ECHO.replace("{{ m.role }}", "{{ 'dev' if m.role == 'developer' else m.role }}")
DROPS = "{% for m in messages %}{% if m.role in ('system', 'user') %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
FIRST = ("{% for m in messages %}{% if m.role == 'user' or loop.first %}<{{ m.role }}>{{ m.content }}"
         "{% endif %}{% endfor %}")
TURNS = ("{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}"
         "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}")
SHORT = ECHO.replace("{{ m.content }}", "{% if messages|length < 6 or m.role != 'system' %}{{ m.content }}{% endif %}")


@case("C71")
@pytest.mark.parametrize("why, template, messages, want", [
    ("a role like any other", ECHO, "developer user", "<system>0<user>1"),
    ("a role that it knows", KNOWS, "developer user", "<dev>0<user>1"),
    ("a role that it drops", DROPS, "developer user", "<system>0<user>1"),
    ("behind a system message", DROPS, "system developer user", "<system>0\n\n1<user>2"),
    ("a turn in the middle", DROPS, "user developer user", "<user>0<system>1<user>2"),
    ("one that would vanish", FIRST, "user developer user", "<user>0\n\n1\n\n2"),
    ("after the user's first, as Claude Code has it", FIRST, "system user system", "<system>0<user>1\n\n2"),
    ("two turns where one is wanted", TURNS, "system user user", "<user>0\n\n1\n\n2"),
    ("one that vanishes all the same", SHORT, "user assistant user assistant developer user", None),
])
def test_developers_reach_the_model(serve, ask, tmp_path, why, template, messages, want):
    s = serve(with_template(tmp_path / "m", template))
    messages = [{"role": r, "content": str(i)} for i, r in enumerate(messages.split())]
    if want:
        assert prompt_of(s, messages) == want, why
    else:
        says = ask.check_error(s.post("/v1/chat/completions", {"messages": messages}), 400, "messages",
                               "template_error")
        assert says.startswith("messages[4]: the chat template does not show a developer's"), why


@case("C79")
def test_a_template_in_a_request_is_refused(server, ask):
    ask.check_error(server.post("/v1/chat/completions", {"messages": MESSAGES, "chat_template": "x"}),
                    400, "chat_template")


@case("C78")
def test_what_a_template_raises_is_the_message(scripted, ask):
    turns = [{"role": "assistant", "content": "a"}, *said("b")]
    message = ask.check_error(scripted.post("/v1/chat/completions", {"messages": turns}), 400,
                              "messages", "template_error")
    assert "the user speaks first" in message


@case("C82")
def test_no_template_no_chat(serve, ask, tmp_path):
    s = serve(with_template(tmp_path / "bare", None))
    ask.complete(s, "a", max_tokens=1)
    message = ask.check_error(s.post("/v1/chat/completions", {"messages": MESSAGES}), 400, None,
                              "no_chat_template")
    assert "no chat template" in message


@case("C83")
def test_a_long_chat_finds_its_beginning_again(scripted):
    messages, cached = [], []
    for turn in range(12):
        messages += said(f"Turn {turn}: tell me one more thing about it, please.")
        a = chat(scripted, messages, max_tokens=8, temperature=0)
        usage = a["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        if turn:
            assert usage["prompt_tokens"] - cached[-1] < 100
        messages.append({"role": "assistant", "content": a["choices"][0]["message"]["content"]})
    assert cached == sorted(cached) and cached[-1] > 300


@case("C84", "C86", "C87")
def test_tokenize_and_back(server, ask):
    a = server.post_json("/tokenize", {"prompt": "Hi, Köln", "add_special_tokens": True,
                                       "return_token_strs": True})
    assert set(a) == {"count", "max_model_len", "tokens", "token_strs"}
    assert a["count"] == len(a["tokens"]) == len(a["token_strs"]) and a["max_model_len"] == 1024
    assert a["tokens"][0] == 1 and a["token_strs"][0] == "<|begin_of_text|>"
    bare = server.post_json("/tokenize", {"prompt": "Hi, Köln", "add_special_tokens": False})["tokens"]
    assert a["tokens"] == [1, *bare]
    assert server.post_json("/tokenize", {"content": "Hi, Köln"}) == {"tokens": bare}
    with_bos = server.post_json("/tokenize", {"content": "Hi, Köln", "add_special": True})
    assert with_bos == {"tokens": a["tokens"]}
    back = server.post_json("/detokenize", {"tokens": bare})
    assert back["prompt"] == back["content"] == "Hi, Köln"
    for key, value in (("add_special_tokens", 1), ("return_token_strs", "yes"), ("prompt", 5),
                       ("chat_template_kwargs", [])):
        ask.check_error(server.post("/tokenize", {"prompt": "a", key: value}), 400, key)
    for key in ("add_special", "parse_special", "with_pieces", "content", "tools"):
        ask.check_error(server.post("/tokenize", {"prompt": "a", key: 5}), 400, key)
    assert server.post_json("/tokenize", {"prompt": "Hi", "with_pieces": True})["tokens"][1]["piece"] == "H"
    tools = [{"type": "function", "function": {"name": "f"}}]
    said_a = {"messages": [{"role": "user", "content": "a"}]}
    for body, key in (({"prompt": "a", "tools": tools}, "tools"), ({**said_a, "add_special_tokens": True}, "add_special_tokens"),
                      ({**said_a, "parse_special": False}, "parse_special"), ({**said_a, "add_special": True}, "add_special")):
        ask.check_error(server.post("/tokenize", body), 400, key)
    assert server.post_json("/tokenize", {**said_a, "add_special_tokens": False}) == server.post_json("/tokenize", said_a)
    ask.check_error(server.post("/v1/chat/completions", {**said_a, "add_special_tokens": True}), 400, "add_special_tokens")
    for tokens in ([4096], [-1], [1.5], ["a"], None, 5):
        ask.check_error(server.post("/detokenize", {"tokens": tokens}), 400, "tokens")


@case("C84")
def test_ids_are_those_of_the_library(server):
    tokenizers = pytest.importorskip("tokenizers")
    t = tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
    for text in ("Hi", "  two  spaces\n", "漢字 and é", "x\u200dy", "123 4567"):
        assert server.post_json("/tokenize", {"prompt": text})["tokens"] == t.encode(text).ids


@case("C106")
def test_control_tokens_of_users_are_text(server, ask):
    text = "a<|end_of_text|>b"
    ids = server.post_json("/tokenize", {"messages": said(text)})["tokens"]
    assert ids.count(0) == 0 and ids.count(1) == 1
    assert text in server.post_json("/detokenize", {"tokens": ids})["prompt"]
    # the prompt of a completion is the caller's own: there it is a control token
    assert server.post_json("/tokenize", {"prompt": text})["tokens"].count(0) == 1
    for text in ("\ufeffa", "\u202eabc", "é\u0301"):
        ids = server.post_json("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
        assert server.post_json("/detokenize", {"tokens": ids})["prompt"] == text
    ask.check_error(server.post("/v1/completions", {"prompt": "a\0b"}), 400, None, "invalid_json")


def test_what_the_template_makes_of_a_chat(server, scripted, ask):
    """The prompt that the same request would be answered to, with its tools and options."""
    d = server.post_json("/v1/chat/completions/render", {"messages": MESSAGES, "max_tokens": 3})
    assert d == {"prompt": "<|begin_of_text|>You tell stories.\nOnce upon a time\n",
                 "prompt_token_ids": server.post_json("/tokenize", {"messages": MESSAGES})["tokens"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    body = {"messages": said("[abc]"), "tools": tools, "max_tokens": 1}
    d = scripted.post_json("/apply-template", body)
    assert '"name": "weather"' in d["prompt"] and "[abc]" in d["prompt"]
    usage = scripted.post_json("/v1/chat/completions", body)["usage"]
    assert usage["prompt_tokens"] == len(d["prompt_token_ids"])
    plain = scripted.post_json("/apply-template", {**body, "tool_choice": "none"})
    assert "weather" not in plain["prompt"]
    for wrong, param in (({"messages": []}, "messages"), ({**body, "temperature": 9}, "temperature"),
                         ({**body, "n": 0}, "n")):
        ask.check_error(server.post("/apply-template", wrong), 400, param=param, code=None)


@case("C86")
def test_tokenize_as_llama_cpp_asks(server, ask):
    text = "The sea <|end_of_text|> \N{EARTH GLOBE ASIA-AUSTRALIA}"
    ids = server.post_json("/tokenize", {"content": text})["tokens"]
    got = server.post_json("/tokenize", {"content": text, "with_pieces": True})["tokens"]
    assert [t["id"] for t in got] == ids
    raw = b"".join(t["piece"].encode() if isinstance(t["piece"], str) else bytes(t["piece"]) for t in got)
    assert raw.decode() == text and any(isinstance(t["piece"], list) for t in got)
    plain = server.post_json("/tokenize", {"content": text, "parse_special": False})["tokens"]
    assert 0 in ids and 0 not in plain
    assert server.post_json("/detokenize", {"tokens": plain})["content"] == text
    more = server.post_json("/tokenize", {"content": text, "parse_special": False, "add_special": True})["tokens"]
    assert more == server.post_json("/tokenize", {"prompt": ""})["tokens"] + plain
    for bad in ({"with_pieces": 1}, {"parse_special": "no"}):
        ask.check_error(server.post("/tokenize", {"content": "a", **bad}), 400, *bad)


@case("C86")
def test_tokenize_counts_tools(server, scripted, ask):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    body = {"messages": said("hi"), "tools": tools}
    ids = scripted.post_json("/tokenize", body)["tokens"]
    assert ids == scripted.post_json("/v1/chat/completions/render", body)["prompt_token_ids"]
    assert len(ids) > 20 + len(scripted.post_json("/tokenize", {"messages": said("hi"), "tools": []})["tokens"])
    ask.check_error(scripted.post("/tokenize", {**body, "tools": 5}), 400, "tools")
    assert len(server.post_json("/tokenize", body)["tokens"]) > 20 + len(
        server.post_json("/tokenize", {"messages": said("hi")})["tokens"])  # a template that knows none


@case("C86")
def test_a_remote_tokenizer(server, scripted):
    """What lm-eval asks for where it has no tokenizer of its own."""
    info = [json.loads(s.get("/tokenizer_info").read()) for s in (server, scripted)]
    assert info[0]["bos_token"] == "<|begin_of_text|>" and info[0]["eos_token"] == "<|end_of_text|>"
    assert info[0]["pad_token"] is None and info[0]["model_max_length"] == 1024
    assert "bos_token" in info[0]["chat_template"] and "the user speaks first" in info[1]["chat_template"]
    eos = server.post_json("/tokenize", {"prompt": info[0]["eos_token"], "add_special_tokens": False})["tokens"]
    assert eos == [0]
