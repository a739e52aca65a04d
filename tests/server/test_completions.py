"""/v1/completions: C24-C52."""
import collections
from concurrent import futures
import json
import math
import re

import pytest

case = pytest.mark.case
PROMPT = "It was a bright cold day, and"


@case("C24", "C25", "C26")
def test_a_completion(server, client, ask):
    ids = server.post_json("/tokenize", {"prompt": PROMPT})["tokens"]
    a = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=5, temperature=0)
    assert a.object == "text_completion" and a.choices[0].index == 0
    assert a.choices[0].finish_reason == "length" and a.choices[0].logprobs is None
    assert a.usage.prompt_tokens == len(ids) and a.usage.completion_tokens == 5
    assert a.usage.total_tokens == len(ids) + 5
    b = client.completions.create(model="tiny", prompt=ids, max_tokens=5, temperature=0)
    assert b.choices[0].text == a.choices[0].text and b.usage.total_tokens == a.usage.total_tokens
    for more in ({}, {"max_tokens": None}):
        c = ask.complete(server, PROMPT, temperature=0, ignore_eos=True, **more)
        assert c["usage"]["completion_tokens"] == 16
        assert c["choices"][0]["text"].startswith(a.choices[0].text)


@case("C27", "C28", "C29", "C30", "C42")
def test_several_prompts_and_samples(server, client, ask):
    def texts(prompt, **more):
        return [x.text for x in client.completions.create(
            model="tiny", prompt=prompt, **{"max_tokens": 8, "temperature": 0, **more}).choices]
    one, two = texts("One day"), texts("The sea")
    assert texts(["One day", "The sea"]) == one + two
    ids = [server.post_json("/tokenize", {"prompt": p})["tokens"] for p in ("One day", "The sea")]
    answer = ask.complete(server, ids, max_tokens=8, temperature=0)
    assert [c["text"] for c in answer["choices"]] == one + two
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
    three = texts("One day", n=3, temperature=1, seed=7)
    assert three == texts("One day", n=3, temperature=1, seed=7) and len(set(three)) > 1
    assert three[0] == texts("One day", temperature=1, seed=7)[0]
    assert texts("One day", n=3) == one * 3
    four = client.completions.create(model="tiny", prompt=["One day", "The sea"], n=2, max_tokens=8,
                                     temperature=0)
    assert [(x.index, x.text) for x in four.choices] == \
        [(0, one[0]), (1, one[0]), (2, two[0]), (3, two[0])]
    assert len({texts("One day", temperature=1, seed=s)[0] for s in range(8)}) > 1


@case("C31", "C32", "C33", "C34")
def test_echo_and_logprobs(server, ask):  # T-60
    ids = server.post_json("/tokenize", {"prompt": PROMPT})["tokens"]
    a = ask.complete(server, PROMPT, echo=True, max_tokens=0, logprobs=3)
    c = a["choices"][0]
    lp = c["logprobs"]
    assert c["text"] == PROMPT and c["finish_reason"] == "length"
    assert a["usage"]["completion_tokens"] == 0
    assert [len(lp[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == \
        [len(ids)] * 4
    assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None
    assert all(x <= 0 for x in lp["token_logprobs"][1:])
    assert lp["text_offset"] == sorted(lp["text_offset"])
    b = ask.complete(server, PROMPT, echo=True, max_tokens=3, temperature=0, ignore_eos=True)
    assert b["choices"][0]["text"].startswith(PROMPT) and b["choices"][0]["logprobs"] is None
    assert b["usage"]["completion_tokens"] == 3
    for k, want in ((0, {1}), (5, {5, 6})):
        c = ask.complete(server, PROMPT, max_tokens=6, logprobs=k, temperature=1,
                         seed=3)["choices"][0]
        assert "".join(c["logprobs"]["tokens"]) == c["text"]
        assert all(x <= 0 for x in c["logprobs"]["token_logprobs"])
        for token, offset in zip(c["logprobs"]["tokens"], c["logprobs"]["text_offset"]):
            assert c["text"][offset:].startswith(token)
        for token, top in zip(c["logprobs"]["tokens"], c["logprobs"]["top_logprobs"]):
            assert len(top) in want and token in top
    # the echoed logprobs of a text equal those of its generation
    g = ask.complete(server, ids, max_tokens=6, temperature=0, logprobs=0,
                     return_token_ids=True)["choices"][0]
    e = ask.complete(server, ids + g["token_ids"], max_tokens=0, echo=True,
                     logprobs=0)["choices"][0]
    assert e["logprobs"]["token_logprobs"][len(ids):] == g["logprobs"]["token_logprobs"]


def scripted_text(scripted, ask, name, **more):
    c = ask.complete(scripted, f"[{name}]", temperature=0, max_tokens=60, **more)["choices"][0]
    return c["text"], c["finish_reason"], c["stop_reason"]


@case("C35", "C36")
@pytest.mark.parametrize("why, name, stop, text, reason", [
    ("one string", "abc", "x", "The cat sat on ", "x"),
    ("one of two", "abc", ["y", "x"], "The cat sat on ", "x"),
    ("the first of two that match", "abc", ["x the", "cat"], "The ", "cat"),
    ("over three tokens", "abc", "cat", "The ", "cat"),
    ("inside a token", "token", "ous", " the h", "ous"),
    ("at the first token", "abc", "T", "", "T"),
    ("longer than the answer", "abc", "The cat sat on x the mat. And", "The cat sat on x the mat.",
     None),
    ("a beginning that goes on otherwise", "halves", "END", "one ENx two ", "END"),
    ("the earliest start of those that overlap", "overlap", ["bc", "abc", "ab"], "z", "ab"),
    ("a character of several bytes", "utf8", "漢", "é ", "漢"),
])
def test_stop_strings(scripted, ask, why, name, stop, text, reason):
    assert scripted_text(scripted, ask, name, stop=stop) == (text, "stop", reason), why
    events = ask.stream(scripted, {"prompt": f"[{name}]", "temperature": 0, "max_tokens": 60,
                                   "stop": stop})
    assert "".join(e["choices"][0]["text"] for e in events) == text, why
    assert events[-1]["choices"][0]["stop_reason"] == reason
    if reason:
        kept = scripted_text(scripted, ask, name, stop=stop, include_stop_str_in_output=True)
        assert kept == (text + reason, "stop", reason)


@case("C36")
def test_a_stop_string_wins_over_the_length(scripted, ask):  # T-29
    c = ask.complete(scripted, "[abc]", temperature=0, max_tokens=7, stop="cat")["choices"][0]
    assert (c["text"], c["finish_reason"]) == ("The ", "stop")
    c = ask.complete(scripted, "[abc]", temperature=0, max_tokens=6, stop="cat")["choices"][0]
    assert (c["text"], c["finish_reason"]) == ("The ca", "length")


def test_stop_strings_are_not_looked_for_in_the_prompt(scripted, ask):  # T-27
    """Nor over the border between an echoed prompt and the answer."""
    for stop in ("[abc]", "]The", "abc"):
        c = ask.complete(scripted, "[abc]", temperature=0, max_tokens=60, echo=True, stop=stop)["choices"][0]
        assert c["text"] == "[abc]The cat sat on x the mat." and c["stop_reason"] is None, stop


@case("C37", "C38")
def test_stop_ids_and_ends(scripted, ask, vocabulary):
    x = vocabulary.ids([b"x"])[0]
    assert scripted_text(scripted, ask, "abc", stop_token_ids=[x]) == ("The cat sat on ", "stop", x)
    whole = "The cat sat on x the mat."
    assert scripted_text(scripted, ask, "abc") == (whole, "stop", None)
    assert scripted_text(scripted, ask, "abc", skip_special_tokens=False) == \
        (whole + "<|end_of_text|>", "stop", None)
    c = ask.complete(scripted, "[abc]", temperature=0, max_tokens=60, ignore_eos=True)
    assert c["usage"]["completion_tokens"] == 60
    assert c["choices"][0]["finish_reason"] == "length"
    assert c["choices"][0]["text"].startswith(whole)


@case("C39")
def test_min_tokens(scripted, ask):
    assert scripted_text(scripted, ask, "early") == ("a", "stop", None)
    c = ask.complete(scripted, "[early]", temperature=0, max_tokens=60, min_tokens=4,
                     return_token_ids=True)["choices"][0]
    assert 0 not in c["token_ids"][:4] and c["token_ids"][2:4] != []
    assert c["text"].endswith("bcdefgh") and c["finish_reason"] == "stop"


@case("C40", "C43", "C45")
def test_sampling_parameters_act(server, ask):
    def ids(**more):
        return ask.complete(server, PROMPT, max_tokens=8, ignore_eos=True, return_token_ids=True,
                            **more)["choices"][0]["token_ids"]
    greedy = ids(temperature=0)
    for same in ({"top_k": 1}, {"top_p": 1e-9}, {"top_p": 0}, {"min_p": 1}):
        assert ids(temperature=1, seed=5, **same) == greedy
    assert ids(temperature=0, logit_bias={"65": 100}) == [65] * 8
    assert greedy[0] not in ids(temperature=0, logit_bias={str(greedy[0]): -100})
    assert set(ids(temperature=1, allowed_token_ids=[70, 71])) <= {70, 71}


@case("C45")
def test_bad_words_never_come(server, ask):
    """Each greedy word is banned in turn, and the answer goes another way; a word of several tokens
    is banned as a whole and not its parts."""
    def answer(**more):
        return ask.complete(server, PROMPT, max_tokens=24, temperature=0, ignore_eos=True,
                            return_token_ids=True, **more)["choices"][0]

    def ids_of(word):
        return server.post_json("/tokenize", {"prompt": word, "add_special_tokens": False})["tokens"]
    free = answer()
    words = [w for w in free["text"].split() if w.isalpha() and len(w) > 1]
    assert words
    several = 0
    for word in words[:6]:
        c = answer(bad_words=[word])
        runs = [ids_of(word), ids_of(" " + word)]
        for run in runs[:1] + [r for r in runs[1:] if len(r) == len(runs[0])]:
            several += len(run) > 1
            assert not any(c["token_ids"][i:i + len(run)] == run for i in range(24)), word
    assert several
    first = ids_of(words[0])
    assert answer(bad_words=[words[0]])["token_ids"] != free["token_ids"] or \
        not any(free["token_ids"][i:i + len(first)] == first for i in range(24))
    assert answer(bad_words=["zzzzqq"])["token_ids"] == free["token_ids"]
    assert answer(bad_words=[])["token_ids"] == free["token_ids"]
    for bad in ("house", [""], [3], ["x"] * 129, ["x" * 1025], {}):
        ask.check_error(server.post("/v1/completions", {"prompt": PROMPT, "bad_words": bad}), 400,
                        "bad_words")


@case("C41")
def test_penalties(server, ask):
    """Presence and frequency against the definition, on the top 20 of the raw distribution (which
    holds the winner where the 20th is further down than a penalty can move). The repetition
    penalty acts on logits, which no answer shows: tests/unit/test_sample.c has its oracle."""
    ids = server.post_json("/tokenize", {"prompt": PROMPT})["tokens"]
    decided = 0
    for presence, frequency in ((2, 0), (0, 2), (0.7, 0.3), (-2, -1)):
        c = ask.complete(server, ids, temperature=0, max_tokens=12, ignore_eos=True, logprobs=20,
                         presence_penalty=presence, frequency_penalty=frequency,
                         return_token_ids=True, return_tokens_as_token_ids=True)["choices"][0]
        out = []
        for got, top in zip(c["token_ids"], c["logprobs"]["top_logprobs"]):
            count = collections.Counter(out)
            score = {t: lp - (presence if count[i] else 0) - frequency * count[i]
                     for t, lp in top.items() for i in [int(t.split(":")[1])]}
            best = max(score, key=score.get)
            if score[best] > min(top.values()) + (6 if presence < 0 else 0):
                assert best == f"token_id:{got}"
                decided += 1
            out.append(got)
    assert decided > 20
    plain, much = (ask.complete(server, ids, temperature=0, max_tokens=40, ignore_eos=True,
                                repetition_penalty=p, return_token_ids=True)["choices"][0]
                   for p in (1, 1.3))
    assert len(set(much["token_ids"])) > len(set(plain["token_ids"]))


@case("C44")
def test_frequencies_of_samples(server, ask):
    """1024 draws against the exact filtered softmax: temperature before top_k, top_p and min_p.
    Chi-square below its 1 - 1e-4 quantile; the seeds are fixed, so it is no matter of luck."""
    top = ask.complete(server, PROMPT, max_tokens=1, logprobs=20, temperature=0,
                       return_tokens_as_token_ids=True)["choices"][0]["logprobs"]["top_logprobs"][0]
    ranked = sorted(((lp, int(t.split(":")[1])) for t, lp in top.items()), reverse=True)

    def expected(temperature, top_k=20, top_p=1.0, min_p=0.0):
        kept, total = [], 0.0
        w = [(math.exp((lp - ranked[0][0]) / temperature), i) for lp, i in ranked[:top_k]]
        whole = sum(x for x, _ in w)
        for x, i in w:
            if total < top_p * whole and x >= min_p:
                kept.append((x, i))
            total += x
        return {i: x / sum(x for x, _ in kept) for x, i in kept}
    limit = {1: 15.1, 2: 18.4, 3: 21.1, 4: 23.5, 5: 25.7, 6: 27.9, 7: 29.9, 8: 31.8, 9: 33.7}
    for more in ({"top_k": 5}, {"top_k": 10, "top_p": 0.7}, {"top_k": 8, "min_p": 0.2}):
        p = expected(0.8, **more)
        seen = collections.Counter()
        for seed in range(8):
            a = ask.complete(server, PROMPT, max_tokens=1, n=128, temperature=0.8, seed=seed,
                             return_token_ids=True, **{"top_p": 1, "min_p": 0, **more})
            seen.update(c["token_ids"][0] for c in a["choices"])
        assert set(seen) <= set(p), more
        if len(p) == 1:
            continue
        chi = sum((seen[i] - 1024 * q) ** 2 / (1024 * q) for i, q in p.items())
        assert chi < limit[len(p) - 1], (more, chi)


@case("C46")
def test_unknown_fields(server, keyed, ask):
    before = ask.metric(server, "llmq:ignored_params_total")
    ask.complete(server, "a", max_tokens=1, user="u", metadata={"a": "b"}, foo=1)
    assert ask.metric(server, "llmq:ignored_params_total") == before + 1
    ask.check_error(keyed.post("/v1/completions", {"prompt": "a", "foo": 1}), 400, "foo",
                    "unknown_parameter")


@case("C47")
def test_answers_follow_a_schema(server, ask):
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 100}},
              "required": ["a"], "additionalProperties": False}
    body = {"prompt": "a", "max_tokens": 60, "temperature": 1, "seed": 1, "n": 2, "response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    choices = server.post_json("/v1/completions", body)["choices"]
    for c in choices:
        value = json.loads(c["text"])
        assert c["finish_reason"] == "stop" and list(value) == ["a"] and value["a"] >= 100
    events = server.post("/v1/completions", {**body, "stream": True}).read().decode().split("\n\n")
    texts = ["", ""]
    for e in events:
        if e.startswith("data: {"):
            for c in json.loads(e[6:])["choices"]:
                texts[c["index"]] += c["text"]
    assert texts == [c["text"] for c in choices]
    cut = server.post_json("/v1/completions", {**body, "n": 1, "max_tokens": 1})["choices"][0]
    assert cut["finish_reason"] == "length" and choices[0]["text"].startswith(cut["text"])


@case("C48")
def test_the_prefix_cache_is_reported(server, ask):  # T-40, T-43, T-44, T-75
    ids = server.post_json("/tokenize", {"prompt": "The old man " * 40})["tokens"]
    for n in (len(ids), 33, 32, 31):
        body = {"prompt": ids[:n], "max_tokens": 4, "temperature": 0, "cache_salt": f"c48 {n}"}
        one, two = (server.post_json("/v1/completions", body) for _ in range(2))
        assert one["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert two["usage"]["prompt_tokens_details"]["cached_tokens"] == (n - 1) // 16 * 16
        assert two["choices"] == one["choices"]
    other = server.post_json("/v1/completions", {**body, "cache_salt": "c48 of another"})  # T-43, T-75
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@case("C49")
def test_the_context_length_is_a_limit(server, ask):
    a = ask.complete(server, [65] * 1023, max_tokens=1, ignore_eos=True)
    assert a["choices"][0]["finish_reason"] == "length"
    for prompt, param in (([65] * 1023, "max_tokens"), ([65] * 1025, "prompt")):
        message = ask.check_error(server.post("/v1/completions", {"prompt": prompt, "max_tokens": 2}),
                                  400, param, "context_length_exceeded")
        assert re.search(r"\b1024\b", message) and str(len(prompt)) in message


@case("C50")
def test_chunks_of_a_prompt_change_nothing(server, scripted, ask):
    """512 tokens a step against 64: the same logits to the bit."""
    ids = server.post_json("/tokenize", {"prompt": "In the evening of that long day, " * 60})
    body = {"prompt": ids["tokens"][:900], "max_tokens": 8, "temperature": 0, "logprobs": 20,
            "echo": True, "ignore_eos": True}
    one, two = (s.post_json("/v1/completions", body)["choices"] for s in (server, scripted))
    assert one == two


@case("C51")
def test_best_of(server, ask):
    ask.complete(server, "a", max_tokens=1, best_of=1)
    assert len(ask.complete(server, "a", max_tokens=1, best_of=2, n=2)["choices"]) == 2
    ask.check_error(server.post("/v1/completions", {"prompt": "a", "best_of": 1, "n": 2}), 400,
                    "best_of")
    ask.check_error(server.post("/v1/completions", {"prompt": "a", "best_of": 2, "stream": True}), 400,
                    "best_of")


@case("C51")
def test_the_best_are_those_of_the_highest_logprob_per_token(server):
    body = {"prompt": ["The old house", "In the"], "max_tokens": 12, "temperature": 1.0, "seed": 11}
    every = server.post_json("/v1/completions", {**body, "n": 6, "logprobs": 0})
    best = server.post_json("/v1/completions", {**body, "n": 2, "best_of": 6})

    def mean(c):
        return sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"])
    want = [c["text"] for i in (0, 6) for c in sorted(every["choices"][i:i + 6], key=mean, reverse=True)[:2]]
    assert [c["text"] for c in best["choices"]] == want
    assert [c["index"] for c in best["choices"]] == [0, 1, 2, 3]
    assert all(c["logprobs"] is None for c in best["choices"])
    assert best["usage"] == every["usage"]  # what was generated, shown or not


def beams(server, **more):
    body = {"prompt": "The old house", "max_tokens": 12, "use_beam_search": True, "n": 4, **more}
    return server.post_json("/v1/completions", body)


@case("C127")
def test_beam_search_finds_likelier_answers(server, ask):
    answer = beams(server, temperature=0, logprobs=0, ignore_eos=True)
    sums = [sum(c["logprobs"]["token_logprobs"]) for c in answer["choices"]]
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert len({c["text"] for c in answer["choices"]}) == 4 and sums == sorted(sums, reverse=True)
    assert all(len(c["logprobs"]["tokens"]) == 12 and c["finish_reason"] == "length" for c in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 48
    greedy = ask.complete(server, "The old house", max_tokens=12, temperature=0, logprobs=0, ignore_eos=True)
    assert sums[0] > sum(greedy["choices"][0]["logprobs"]["token_logprobs"])
    one = beams(server, n=1, best_of=4, ignore_eos=True)
    assert [c["text"] for c in one["choices"]] == [answer["choices"][0]["text"]]


@case("C127")
def test_beam_search_ends_at_stop_strings_and_favours_lengths(server):
    whole = beams(server, n=2)["choices"][0]["text"]
    word = whole.split()[1]
    for c in beams(server, stop=word, early_stopping=True)["choices"]:
        assert word not in c["text"] and c["finish_reason"] in ("stop", "length")
        assert (c["stop_reason"] == word) == (c["finish_reason"] == "stop")
    short, long = (beams(server, n=1, best_of=4, stop=["e", "o"], length_penalty=p, early_stopping="never",
                         max_tokens=24)["usage"]["completion_tokens"] for p in (-2, 4))
    assert short < long


@case("C127", "C121")
def test_beam_search_is_the_same_at_any_load(server):
    want = beams(server, logprobs=2, length_penalty=0.6)["choices"]
    with futures.ThreadPoolExecutor(12) as pool:
        noise = [pool.submit(server.post_json, "/v1/completions",
                             {"prompt": f"Number {i}", "max_tokens": 30, "temperature": 1}) for i in range(16)]
        same = [pool.submit(beams, server, logprobs=2, length_penalty=0.6) for _ in range(6)]
        assert all(s.result()["choices"] == want for s in same)
        assert all(n.result()["usage"]["completion_tokens"] for n in noise)


@case("C127")
def test_beam_search_in_a_chat_and_for_several_prompts(server):
    chat = server.post_json("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Hello"}], "use_beam_search": True, "best_of": 3, "n": 2,
        "max_tokens": 6, "logprobs": True})
    assert len(chat["choices"]) == 2 and all(c["logprobs"]["content"] for c in chat["choices"])
    both = beams(server, prompt=["The old house", "In the"], n=2)["choices"]
    alone = [c for p in ("The old house", "In the") for c in beams(server, prompt=p, n=2)["choices"]]
    assert [c["text"] for c in both] == [c["text"] for c in alone]


@case("C127")
@pytest.mark.parametrize("more, param", [
    ({"stream": True}, "stream"), ({"temperature": 0.7}, "temperature"), ({"guided_regex": "a+"}, "guided_regex"),
    ({"n": 65}, "n"), ({"best_of": 65}, "best_of"), ({"early_stopping": "soon"}, "early_stopping"),
    ({"use_beam_search": False, "length_penalty": 2}, "length_penalty"),
])
def test_what_beam_search_cannot_do_is_refused(server, ask, more, param):
    body = {"prompt": "a", "use_beam_search": True, "n": 2, **more}
    ask.check_error(server.post("/v1/completions", body), 400, param)


@case("C127")
def test_bans_that_leave_too_few_answers_are_the_requests_own_affair(server, ask):
    corrupted = ask.metric(server, "vllm:corrupted_requests_total")
    body = {"prompt": "a", "use_beam_search": True, "n": 3, "max_tokens": 4, "allowed_token_ids": [300]}
    said = ask.check_error(server.post("/v1/completions", body), 400, "n", "no_answer")
    assert "3" in said and "only 1" in said
    assert len(server.post_json("/v1/completions", {**body, "n": 1})["choices"]) == 1
    body = {"prompt": "a", "max_tokens": 4, "allowed_token_ids": [300], "logit_bias": {"300": -100}}
    assert server.post_json("/v1/completions", body)["usage"]["completion_tokens"] == 4  # unlikely, not banned
    assert ask.metric(server, "vllm:corrupted_requests_total") == corrupted
    ask.canary(server)


@case("C100")
def test_prompt_logprobs_are_those_of_echo(server):
    body = {"prompt": "The old house", "max_tokens": 2, "temperature": 0, "seed": 1}
    echo = server.post_json("/v1/completions", {**body, "echo": True, "logprobs": 3})["choices"][0]["logprobs"]
    got = server.post_json("/v1/completions", {**body, "prompt_logprobs": 3, "n": 2, "return_token_ids": True})
    for c in got["choices"]:
        lp, ids = c["prompt_logprobs"], c["prompt_token_ids"]
        assert lp[0] is None and len(lp) == len(ids) and c["logprobs"] is None
        for i in range(1, len(ids)):
            own = lp[i][str(ids[i])]
            assert own["logprob"] == echo["token_logprobs"][i] and own["decoded_token"] == echo["tokens"][i]
            tops = sorted(lp[i].values(), key=lambda t: t["rank"])
            assert [t["rank"] for t in tops[:3]] == [1, 2, 3] and len(tops) == (3 if own["rank"] <= 3 else 4)
            assert [t["logprob"] for t in tops] == sorted((t["logprob"] for t in tops), reverse=True)
    few = server.post_json("/v1/completions", {**body, "echo": True, "logprobs": 1, "prompt_logprobs": 3})["choices"][0]
    assert all(len(t) <= 2 for t in few["logprobs"]["top_logprobs"][1:])
    assert few["prompt_logprobs"] == got["choices"][0]["prompt_logprobs"]


@case("C52", "C107")
@pytest.mark.parametrize("path, more, param", [
    ("completions", {"suffix": 5}, "suffix"),
    ("completions", {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ("completions", {"prompt_embeds": "AAAA"}, "prompt_embeds"),
    ("completions", {"functions": [{"name": "f"}]}, "functions"),
    ("chat/completions", {"audio": {"voice": "alloy"}}, "audio"),
    ("chat/completions", {"modalities": ["text", "audio"]}, "modalities"),
    ("chat/completions", {"web_search_options": {}}, "web_search_options"),
    *(("completions", {name: value}, name) for name, value in {
        "thinking_budget_tokens": 5, "lora": [{"id": 0, "scale": 1}], "no_repeat_ngram_size": 3, "top_a": 0.1, "tfs": 0.9,
        "guidance_scale": 2, "negative_prompt": "x", "banned_strings": ["a"], "do_sample": False, "stop_regex": "a+",
        "n_probs": 3, "t_max_predict_ms": 500, "return_hidden_states": True, "input_ids": [1]}.items()),
])
def test_what_is_not_done_is_refused(server, ask, path, more, param):  # T-80
    body = {"prompt": "a"} if path == "completions" else \
        {"messages": [{"role": "user", "content": "a"}]}
    ask.check_error(server.post("/v1/" + path, {**body, **more}), 400, param)


@case("C52", "C107")
def test_what_other_servers_know_may_be_off(server, ask):
    """Clients send all that they have; and what changes no answer is said once in the log."""
    off = {"no_repeat_ngram_size": 0, "lora": [], "tfs": 1, "top_a": 0, "guidance_scale": 1, "negative_prompt": "",
           "banned_strings": [], "do_sample": True, "repetition_penalty_range": 0, "penalty_alpha": 0,
           "custom_token_bans": "", "thinking_budget_tokens": -1, "vllm_xargs": {}}
    asked = {"max_tokens": 4, "temperature": 1, "seed": 5}
    ignored = ask.metric(server, "llmq:ignored_params_total")
    plain = ask.complete(server, "The sea", **asked)["choices"][0]["text"]
    assert ask.complete(server, "The sea", **asked, **off)["choices"][0]["text"] == plain
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    taken = {"verbosity": "low", "prediction": {"type": "content", "content": "x"}, "service_tier": "auto", "store": True,
             "safety_identifier": "u", "prompt_cache_key": "k", "prompt_cache_retention": "24h", "metadata": {"a": "b"},
             "modalities": ["text"], "user": "u", "cache_prompt": True}
    for _ in range(2):
        server.post_json("/v1/chat/completions", {**chat, **taken})
    assert ask.metric(server, "llmq:ignored_params_total") == ignored
    log = server.output()
    for name in set(taken) - {"modalities"}:
        assert log.count(f"the parameter {name} is taken and has no influence on an answer") == 1, name


@case("C52")
def test_names_of_other_servers(server, ask):
    """They mean the same; two values for one thing are refused."""
    asked = {"temperature": 1, "seed": 3}
    def both(name, value, theirs):
        a, b = (ask.complete(server, "The sea", **{"max_tokens": 6, **asked, n: value}) for n in (name, theirs))
        assert a["choices"] == b["choices"], theirs
        other = value + 1
        body = {"prompt": "a", name: value, theirs: other}
        ask.check_error(server.post("/v1/completions", body), 400, theirs)
        ask.complete(server, "a", **{name: value, theirs: value})
    both("repetition_penalty", 1.3, "repeat_penalty")
    both("min_tokens", 5, "min_new_tokens")
    for name in ("max_completion_tokens", "max_new_tokens", "n_predict"):
        got = ask.complete(server, "The sea", ignore_eos=True, **{name: 3})
        assert got["usage"]["completion_tokens"] == 3, name
    ask.check_error(server.post("/v1/completions", {"prompt": "a", "max_tokens": 2, "n_predict": 3}), 400, "n_predict")


@case("C35")
def test_many_and_long_stop_strings(scripted, ask):
    """32 of them, as coding clients send, each up to 1 KiB; of those that share beginnings, too."""
    long = "x" * 1023 + "y"
    stops = [long, *(f"The cat sat on {i}" for i in range(30)), "mat"]
    assert scripted_text(scripted, ask, "abc", stop=stops) == ("The cat sat on x the ", "stop", "mat")
    events = ask.stream(scripted, {"prompt": "[abc]", "temperature": 0, "max_tokens": 60, "stop": stops})
    assert "".join(e["choices"][0]["text"] for e in events) == "The cat sat on x the "


@case("C52")
def test_a_bias_of_special_tokens(server, scripted, ask):
    """They end the answer at once, or never."""
    asked = {"max_tokens": 30, "temperature": 1, "seed": 2}
    end = ask.complete(server, "The sea", **asked, logit_bias={"0": 100})
    assert end["choices"][0]["finish_reason"] == "stop" and end["usage"]["completion_tokens"] == 1
    for seed in range(4):
        more = {**asked, "seed": seed, "max_tokens": 200, "logit_bias": {"0": -100}}
        assert ask.complete(server, "The sea", **more)["choices"][0]["finish_reason"] == "length"
