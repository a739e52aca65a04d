"""/v1/embeddings: C88."""
import base64
import json
import math
import struct

import pytest

from helpers import TINY

case = pytest.mark.case
PATH = "/v1/embeddings"


def vectors(server, texts, **more):
    a = server.post_json(PATH, {"input": texts, **more})
    assert a["object"] == "list" and [d["index"] for d in a["data"]] == list(range(len(a["data"])))
    assert all(d["object"] == "embedding" for d in a["data"])
    return [d["embedding"] for d in a["data"]]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


@case("C88")
def test_shapes(server, client):
    ids = server.post_json("/tokenize", {"prompt": "One day"})["tokens"]
    one, = vectors(server, "One day")
    assert len(one) == 128 and abs(dot(one, one) - 1) < 1e-5
    assert vectors(server, ids) == [one] and vectors(server, [ids, ids]) == [one, one]
    two = vectors(server, ["The sea", "One day"])
    assert two[1] == one and abs(dot(two[0], one)) < 1
    short, = vectors(server, "One day", dimensions=40)
    assert len(short) == 40 and abs(dot(short, short) - 1) < 1e-5
    assert all(abs(x * math.sqrt(dot(one[:40], one[:40])) - y) < 1e-6 for x, y in zip(short, one))
    a = server.post_json(PATH, {"input": "One day", "encoding_format": "base64", "model": "tiny"})
    packed = base64.b64decode(a["data"][0]["embedding"], validate=True)
    assert [struct.unpack("<f", struct.pack("<f", x))[0] for x in one] == \
        list(struct.unpack("<128f", packed))
    assert a["model"] == "tiny" and a["usage"]["prompt_tokens"] == len(ids) == \
        a["usage"]["total_tokens"]
    b = client.embeddings.create(model="tiny", input=["One day"])  # asks for base64 by itself
    assert all(abs(x - y) < 1e-6 for x, y in zip(b.data[0].embedding, one))


def embedding_rows(ids):
    """Rows of the tiny model's embedding, which is its head too."""
    data = (TINY / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    t = json.loads(data[8:8 + n])["model.embed_tokens.weight"]
    assert t["dtype"] == "BF16"
    width, at = t["shape"][1], 8 + n + t["data_offsets"][0]
    return {i: [struct.unpack("<f", b"\0\0" + data[at + 2 * (i * width + k):][:2])[0]
                for k in range(width)] for i in ids}


@case("C88")
def test_the_last_row_is_what_the_head_reads(server, ask):
    """Logits are the head times that row, so differences of logprobs are differences of products,
    all by the one factor that was divided out."""
    prompt = "It was a bright cold day, and"
    v, = vectors(server, prompt)
    top = ask.complete(server, prompt, max_tokens=1, temperature=0, logprobs=20,
                       return_tokens_as_token_ids=True)["choices"][0]["logprobs"]["top_logprobs"][0]
    lp = {int(t.split(":")[1]): x for t, x in top.items()}
    rows = embedding_rows(lp)
    first = max(lp, key=lp.get)
    factors = [(lp[first] - lp[i]) / (dot(rows[first], v) - dot(rows[i], v))
               for i in sorted(lp, key=lp.get)[:10]]
    assert max(factors) / min(factors) - 1 < 0.01 and min(factors) > 0


@case("C88")
def test_the_mean_is_of_all_rows(server):
    """Of one token mean and last are the same; of two the mean lies between the rows."""
    a, b = 300, 400
    one, = vectors(server, [a])
    assert vectors(server, [a], pooling="mean") == [one] and vectors(server, [a], pooling="last") == [one]
    two, = vectors(server, [a, b])
    mean, = vectors(server, [a, b], pooling="mean")
    c = dot(one, two)
    x, y = dot(mean, one), dot(mean, two)
    alpha, beta = (x - c * y) / (1 - c * c), (y - c * x) / (1 - c * c)
    assert alpha > 0.05 and beta > 0.05
    assert all(abs(m - alpha * p - beta * q) < 1e-5 for m, p, q in zip(mean, one, two))


@case("C88")
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_chunks_change_nothing(server, scripted, pooling):
    """512 tokens a step against 64, alone and in company."""
    texts = ["In the evening of that long day, " * n for n in (1, 40, 7)]
    one = vectors(server, texts, pooling=pooling)
    assert vectors(scripted, texts, pooling=pooling) == one
    assert [vectors(server, t, pooling=pooling)[0] for t in texts] == one


@case("C88")
@pytest.mark.parametrize("more, param", [
    ({"input": None}, "input"), ({"input": []}, "input"), ({"input": [[]]}, "input"),
    ({"input": 5}, "input"), ({"input": [4096]}, "input"), ({"input": ["a"] * 1025}, "input"),
    ({"input": [65] * 1025}, "input"), ({"dimensions": 0}, "dimensions"),
    ({"dimensions": 129}, "dimensions"), ({"encoding_format": "hex"}, "encoding_format"),
    ({"pooling": "max"}, "pooling"), ({"dimensions": "5"}, "dimensions"),
])
def test_wrong_requests(server, ask, more, param):
    ask.check_error(server.post(PATH, {"input": "a", **more}), 400, param)
    ask.check_error(server.post(PATH, {"input": "a", "model": "nope"}), 404, "model")
    ask.canary(server)
