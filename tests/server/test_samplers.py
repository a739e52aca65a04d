"""The samplers of llama.cpp and text-generation-webui: C128. What each does: tests/unit/test_stage.c."""
from concurrent import futures

import pytest

from helpers import TINY

case = pytest.mark.case
ASK = {"prompt": "One day the girl", "max_tokens": 40, "temperature": 1, "seed": 11, "ignore_eos": True}
ON = [{"typical_p": 0.4}, {"top_n_sigma": 1}, {"dynatemp_range": 0.9}, {"xtc_probability": 1, "xtc_threshold": 0.05},
      {"mirostat": 2, "mirostat_tau": 2}, {"dry_multiplier": 5, "dry_allowed_length": 1},
      {"samplers": ["top_k", "temperature"], "top_k": 3},
      {"dynamic_temperature": True, "dynatemp_low": 0.1, "dynatemp_high": 1.5}]


def text(server, **more):
    return server.post_json("/v1/completions", {**ASK, **more})["choices"][0]["text"]


@case("C128")
def test_each_changes_the_answer_and_a_seed_gives_it_again(server):
    plain = text(server)
    got = [text(server, **more) for more in ON]
    assert plain not in got and len(set(got)) == len(got)
    assert [text(server, **more) for more in ON] == got
    with futures.ThreadPoolExecutor(16) as pool:  # in one batch, in any order
        assert list(pool.map(lambda more: text(server, **more), 4 * ON)) == 4 * got


@case("C128")
def test_speculation_and_preemption_change_nothing(server, serve):
    """Mirostat's state goes with what is drawn, not with what is guessed or computed again."""
    got = [text(server, **more) for more in ON]
    for args in (("--speculative-ngram",), ("--kv-cache-memory", "96K", "--block-size", 16, "--max-model-len", 96)):
        s = serve(TINY, *args)
        with futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda more: text(s, **more), ON)) == got, args


@case("C128")
def test_values_that_are_off(server):
    plain = text(server)
    for off in ({"typical_p": 1}, {"top_n_sigma": -1}, {"xtc_probability": 0}, {"mirostat": 0}, {"dry_multiplier": 0},
                {"dynatemp_range": 0}, {"samplers": []}, {"repeat_last_n": 64}, {"dry_base": 2, "mirostat_tau": 3},
                {"dry_multiplier": 1, "dry_penalty_last_n": 0}, {"mirostat_mode": 0, "typical": 1, "nsigma": 0}):
        assert text(server, **off) == plain, off


@case("C128")
def test_other_names_and_windows(server):
    for a, b in (({"typical_p": 0.4}, {"typical": 0.4}), ({"top_n_sigma": 1}, {"nsigma": 1}),
                 ({"mirostat": 2}, {"mirostat_mode": 2}),
                 ({"temperature": 0.8, "dynatemp_range": 0.7}, {"dynamic_temperature": True, "dynatemp_low": 0.1, "dynatemp_high": 1.5}),
                 ({"temperature_last": True, "min_p": 0.2, "temperature": 2},
                  {"samplers": ["top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"], "min_p": 0.2, "temperature": 2}),
                 ({"repeat_penalty": 1.5, "repeat_last_n": 0}, {}), ({"repeat_penalty": 1.5, "repetition_penalty_range": 0},
                                                                     {"repetition_penalty": 1.5}),
                 ({"repetition_penalty": 1.5, "samplers": ["temperature"]}, {"samplers": ["temp"]}),
                 ({"dry_multiplier": 1, "dry_sequence_breakers": ["a", "\n"]}, {"dry_multiplier": 1, "dry_sequence_breakers": '"a", "\\n"'})):
        assert text(server, **a) == text(server, **b), (a, b)
    assert text(server, repetition_penalty=1.5, repeat_last_n=3) != text(server, repetition_penalty=1.5)


@case("C128")
def test_dry_stops_a_loop(server):
    """The model repeats itself; with DRY no run of six words comes twice."""
    greedy = {"temperature": 0, "max_tokens": 120}
    def repeats(**more):
        words = text(server, **greedy, **more).split()
        runs = [tuple(words[i:i + 6]) for i in range(len(words) - 5)]
        return len(runs) - len(set(runs))
    assert repeats() > 10 and repeats(dry_multiplier=3, dry_sequence_breakers=[]) == 0


@case("C128")
@pytest.mark.parametrize("more, param", [
    ({"mirostat": 1}, "mirostat"), ({"mirostat": 2, "samplers": ["xtc"]}, "samplers"), ({"samplers": ["xtc", "dry"]}, "samplers"),
    ({"samplers": ["xtc", "xtc"]}, "samplers"), ({"samplers": ["nobody"]}, "samplers"), ({"samplers": "kfypmt"}, "samplers"),
    ({"samplers": ["dry"]}, "samplers"), ({"samplers": ["mirostat"]}, "samplers"), ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers"),
    ({"dry_sequence_breakers": [f"{i}" for i in range(33)]}, "dry_sequence_breakers"), ({"dry_sequence_breakers": '"a'}, "dry_sequence_breakers"),
    ({"typical_p": 0.5, "typical": 0.6}, "typical"), ({"temperature_last": True, "samplers": ["top_k"]}, "temperature_last"),
    ({"dynamic_temperature": True, "dynatemp_low": 1.5}, "dynatemp_low"),
    ({"use_beam_search": True, "n": 2, "temperature": 0, "xtc_probability": 0.5}, "xtc_probability"),
])
def test_what_is_refused(server, ask, more, param):
    ask.check_error(server.post("/v1/completions", {**ASK, **more}), 400, param)
