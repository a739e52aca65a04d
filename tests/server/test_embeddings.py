"""/v1/embeddings: C88."""
import base64
import json
import math
import shutil
import struct

import pytest

from harness import ROOT, Server
from helpers import TINY, check_error

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
    ({"pooling": "max"}, "pooling"), ({"dimensions": "5"}, "dimensions"), ({"normalize": False}, "normalize"),
    ({"embd_normalize": -1}, "embd_normalize"), ({"input_type": "query"}, "input_type"), ({"prompt": "x: "}, "prompt"),
])
def test_wrong_requests(server, ask, more, param):
    ask.check_error(server.post(PATH, {"input": "a", **more}), 400, param)
    ask.check_error(server.post(PATH, {"input": "a", "model": "nope"}), 404, "model")
    ask.canary(server)


GEMMA = ROOT / "tests/golden/heads/embeddinggemma"
WORDS = ["<unk>", "<s>", "</s>", "task", ":", "search", "result", "|", "query", "title", "none", "text", "sea", "house"]
EXACT = ("--activations", "f32", "--kv-cache-dtype", "f32")


def tokenizer(folder):
    """A word is an id; between <s> and </s>."""
    def ends(name, i):
        return {"id": name, "ids": [i], "tokens": [name]}
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
              {"SpecialToken": {"id": "</s>", "type_id": 0}}]
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [{"id": i, "content": WORDS[i], "single_word": False, "lstrip": False, "rstrip": False,
                                            "normalized": False, "special": True} for i in (0, 1, 2)],
        "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "decoder": None,
        "post_processor": {"type": "TemplateProcessing", "single": single, "pair": single,
                           "special_tokens": {"<s>": ends("<s>", 1), "</s>": ends("</s>", 2)}},
        "model": {"type": "WordLevel", "unk_token": "<unk>", "vocab": {w: i for i, w in enumerate(WORDS)}}}))


@pytest.fixture(scope="module", params=["folder", "llmq", "back"])
def gemma(llmq, tmp_path_factory, request):
    """The folder, a .llmq of it, and the folder that is made of that: modules travel along."""
    at = tmp_path_factory.mktemp("gemma")
    shutil.copytree(GEMMA, at / "m")
    (at / "m/expected.safetensors").unlink()
    tokenizer(at / "m")
    model = at / "m"
    if request.param != "folder":
        llmq("convert", model, "-o", at / "m.llmq", "--to", "llmq")
        model = at / "m.llmq"
    if request.param == "back":
        llmq("convert", model, "-o", at / "back", "--to", "safetensors")
        model = at / "back"
        for file in (at / "m").rglob("*"):
            if file.is_file() and file.name != "tokenizer.json":
                assert (model / file.relative_to(at / "m")).read_bytes() == file.read_bytes(), file
    with Server(llmq, model, *EXACT, log=at / "log") as s:
        yield s


def expected(name, folder=GEMMA):
    data = (folder / "expected.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    t = json.loads(data[8:8 + n])[name]
    at, end = (8 + n + o for o in t["data_offsets"])
    flat = struct.unpack(f"<{(end - at) // 4}{'i' if t['dtype'] == 'I32' else 'f'}", data[at:end])
    return [list(flat[i:i + t["shape"][1]]) for i in range(0, len(flat), t["shape"][1])]


@case("C88")
def test_a_vector_is_that_of_sentence_transformers(gemma):
    """Both ways, the mean of the rows, two dense layers, length 1: by the model's own files."""
    got = vectors(gemma, expected("input_ids"))
    for a, b in zip(got, expected("vector")):
        assert len(a) == len(b) == 24 and max(abs(x - y) for x, y in zip(a, b)) < 1e-5
    short, = vectors(gemma, expected("input_ids")[0], dimensions=8)
    assert len(short) == 8 and abs(dot(short, short) - 1) < 1e-5
    assert vectors(gemma, expected("input_ids")[0], pooling="last") != got[:1]


@case("C88")
@pytest.mark.parametrize("form", ["folder", "first names", "gguf", "u8"])
def test_an_encoder_without_modules_gives_the_mean(llmq, tmp_path, form):
    """BERT's hidden states are transformers'; with no file that says how rows are pooled, sentence-transformers takes the mean."""
    source = model = ROOT / "tests/golden/heads/bert"
    if form == "gguf":
        model = tmp_path / "m.gguf"
        llmq("convert", source, "-o", model, "--to", "gguf")
    if form == "first names":  # as bert-base-uncased has its norms, and a buffer
        model = tmp_path / "m"
        shutil.copytree(source, model)
        data = (source / "model.safetensors").read_bytes()
        n, = struct.unpack("<Q", data[:8])
        header = data[8:8 + n].decode().replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode() + data[8 + n:])
        assert header.count("gamma") == header.count("beta") == 3
    if form == "u8":
        model = tmp_path / "m.llmq"
        llmq("quantize", source, "-o", model, "--method", "rtn", "--bits", "8", "--group-size", "8")
    ids, flat = expected("input_ids", source), sum(expected("hidden", source), [])
    hidden = [flat[i:i + 32] for i in range(0, len(flat), 32)]
    near = 2e-2 if form == "u8" else 1e-5
    with Server(llmq, model, *EXACT, log=tmp_path / "log") as s:
        for pooling in ({}, {"pooling": "last"}):
            for i, got in enumerate(vectors(s, ids, **pooling)):
                of = hidden[16 * i:16 * (i + 1)]
                want = of[-1] if pooling else [sum(column) / 16 for column in zip(*of)]
                size = dot(want, want) ** 0.5
                assert max(abs(a - b / size) for a, b in zip(got, want)) < near
        check_error(s.post("/v1/completions", {"prompt": [5]}), 400)


@case("C88")
def test_prompts_of_the_model_go_before_a_text(gemma):
    words = "task : search result | query :".split()
    ids = [1] + [WORDS.index(w) for w in words] + [12, 2]
    assert vectors(gemma, "sea", prompt_name="query") == vectors(gemma, [ids])
    assert vectors(gemma, "sea") == vectors(gemma, [[1, 12, 2]])
    message = check_error(gemma.post(PATH, {"input": "sea", "prompt_name": "poem"}), 400, "prompt_name", "unsupported_value")
    assert "query, document" in message and "poem" in message
    check_error(gemma.post(PATH, {"input": [1, 2], "prompt_name": "query"}), 400, "prompt_name", "unsupported_value")


@case("C88")
def test_whole_prompts_in_any_company(gemma):
    """A prompt is one step: neither others nor what came before change it, and none is longer than a step."""
    some = [[3 + i % 11 for i in range(n)] for n in (1, 40, 128, 7, 128, 100, 3)]
    one = [vectors(gemma, s)[0] for s in some]
    assert vectors(gemma, some) == one and vectors(gemma, some[::-1]) == one[::-1]
    a = gemma.post_json(PATH, {"input": some[2]})
    assert a["usage"]["prompt_tokens"] == 128 and a["data"][0]["embedding"] == one[2]
    check_error(gemma.post(PATH, {"input": [3] * 129}), 400, "input", "context_length_exceeded")


def dense(folder, path, N, K):
    """A Dense module that GGUF has a place for: a matrix alone."""
    (folder / path / "config.json").write_text(json.dumps({
        "in_features": K, "out_features": N, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"}))
    head = json.dumps({"linear.weight": {"dtype": "F32", "shape": [N, K], "data_offsets": [0, 4 * N * K]}}).encode()
    data = struct.pack(f"<{N * K}f", *((i * 37 % 64 - 32) / 128 for i in range(N * K)))
    (folder / path / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)


@case("C88")
def test_gguf_keeps_how_a_vector_is_made(llmq, tmp_path):
    """Both ways, the mean, two matrices: by GGUF's keys and tensors. Others have no place, and a note says so."""
    shutil.copytree(GEMMA, tmp_path / "m", ignore=shutil.ignore_patterns("expected.safetensors"))
    tokenizer(tmp_path / "m")
    p = llmq("convert", tmp_path / "m", "-o", tmp_path / "dense.gguf", "--to", "gguf")
    assert "2_Dense is left out" in p.stderr and "3_Dense is left out" in p.stderr  # a bias, and Tanh
    dense(tmp_path / "m", "2_Dense", 48, 32)
    dense(tmp_path / "m", "3_Dense", 32, 48)
    p = llmq("convert", tmp_path / "m", "-o", tmp_path / "m.gguf", "--to", "gguf", "--dtype", "f32")
    assert "left out" not in p.stderr
    llmq("convert", tmp_path / "m.gguf", "-o", tmp_path / "n.gguf", "--to", "gguf", "--dtype", "f32")
    assert (tmp_path / "n.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()
    got = []
    for model in ("m", "m.gguf"):
        with Server(llmq, tmp_path / model, *EXACT, log=tmp_path / "log") as s:
            got.append(vectors(s, expected("input_ids")))
            check_error(s.post("/v1/completions", {"prompt": [3, 4]}), 400)
    for a, b in zip(*got):
        assert len(a) == len(b) == 32 and max(abs(x - y) for x, y in zip(a, b)) < 1e-5


@pytest.fixture(scope="module", params=["folder", "llmq"])
def renamed(llmq, tmp_path_factory, request):
    """Modules in folders of other names, and texts of at most 16 tokens."""
    at = tmp_path_factory.mktemp("renamed")
    shutil.copytree(GEMMA, at / "m")
    tokenizer(at / "m")
    modules = json.loads((at / "m/modules.json").read_text())
    for m, name in zip(modules[1:], ("pooling", "dense-up/", "Dense_down", "norm")):
        if (at / "m" / m["path"]).is_dir():
            (at / "m" / m["path"]).rename(at / "m" / name.rstrip("/"))
        m["path"] = name
    (at / "m/modules.json").write_text(json.dumps(modules))
    (at / "m/sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 16, "do_lower_case": False}))
    model = at / "m"
    if request.param == "llmq":
        llmq("convert", model, "-o", at / "m.llmq", "--to", "llmq")
        model = at / "m.llmq"
    with Server(llmq, model, *EXACT, log=at / "log") as s:
        yield s


@case("C88")
def test_modules_of_any_name_and_the_models_own_length(renamed, gemma):
    for ids in ([1, 12, 2], [3 + i % 11 for i in range(16)]):
        assert vectors(renamed, [ids]) == vectors(gemma, [ids])
    check_error(renamed.post(PATH, {"input": [3] * 17}), 400, "input", "context_length_exceeded")
    check_error(renamed.post(PATH, {"input": "sea " * 15}), 400, "input", "context_length_exceeded")


@case("C88")
@pytest.mark.parametrize("lower", [False, True])
def test_texts_are_written_in_small_letters_where_the_models_files_say_so(llmq, tmp_path, lower):
    shutil.copytree(GEMMA, tmp_path / "m")
    tokenizer(tmp_path / "m")
    (tmp_path / "m/sentence_bert_config.json").write_text(json.dumps({"do_lower_case": lower}))
    with Server(llmq, tmp_path / "m", *EXACT, log=tmp_path / "log") as s:
        assert (vectors(s, "SEA House") == vectors(s, "sea house")) == lower


@case("C88")
@pytest.mark.parametrize("words", [40, 4000])
def test_a_text_that_is_cut_keeps_its_prompt_and_its_end(renamed, words):
    """The last words go, as in sentence-transformers; </s> stays, and the prompt's words do."""
    prompt = [1] + [WORDS.index(w) for w in "task : search result | query :".split()]
    text = "sea house " * (words // 2)
    for most in (-1, 16, 12):
        room = (16 if most < 0 else most) - len(prompt) - 1
        ids = prompt + [12, 13] * (room // 2) + [12] * (room % 2) + [2]
        got = renamed.post_json(PATH, {"input": text, "prompt_name": "query", "truncate_prompt_tokens": most})
        assert got["usage"]["prompt_tokens"] == len(ids) and [got["data"][0]["embedding"]] == vectors(renamed, [ids])
    plain = vectors(renamed, text, truncate_prompt_tokens=-1)
    assert plain == vectors(renamed, [[1] + [12, 13] * 7 + [2]]) == renamed.post_json("/api/embed", {"input": text})["embeddings"]
    bare = vectors(renamed, text, truncate_prompt_tokens=-1, add_special_tokens=False)
    assert bare == vectors(renamed, [[12, 13] * 8])


@case("C88")
def test_a_name_of_no_prompt(server):
    check_error(server.post(PATH, {"input": "sea", "prompt_name": "query"}), 400, "prompt_name", "unsupported_value")


def test_a_step_that_holds_no_prompt_is_refused(llmq):
    r = llmq("serve", GEMMA, "--max-model-len", 100, "--max-num-batched-tokens", 64, "--port", 0, code=2)
    assert "--max-num-batched-tokens: expected --max-model-len 100 or more" in r.stderr


@case("C88")
def test_coheres_clients_get_the_same_vectors(server, renamed):
    texts = ["The sea", "One day"]
    want = vectors(server, texts)
    tokens = server.post_json(PATH, {"input": texts})["usage"]["prompt_tokens"]
    a = server.post_json("/v2/embed", {"model": "tiny", "texts": texts, "input_type": "search_document", "output_dimension": 100,
                                       "embedding_types": ["ubinary", "float", "binary", "base64"]})
    cut = vectors(server, texts, dimensions=100)
    bits = [[sum((x > 0) << (7 - k) for k, x in enumerate(v[i:i + 8])) for i in range(0, 100, 8)] for v in cut]
    packed = [list(struct.unpack("<100f", base64.b64decode(b, validate=True))) for b in a["embeddings"].pop("base64")]
    assert packed == [[struct.unpack("<f", struct.pack("<f", x))[0] for x in v] for v in cut]
    assert a["embeddings"] == {"float": cut, "ubinary": bits, "binary": [[b - 128 for b in row] for row in bits]}
    assert a["texts"] == texts and a["response_type"] == "embeddings_by_type"
    assert a["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": tokens}}
    parts = [{"content": [{"type": "text", "text": t[:3]}, {"type": "text", "text": t[3:]}]} for t in texts]
    assert server.post_json("/v2/embed", {"inputs": parts})["embeddings"] == {"float": want}
    old = server.post_json("/v1/embed", {"texts": texts, "input_type": "clustering", "images": []})
    assert old["embeddings"] == want and old["response_type"] == "embeddings_floats" and old["meta"]["api_version"] == {"version": "1"}
    # a type of input is a prompt of the model's files; a long text loses its end
    long = "sea house " * 20
    query = vectors(renamed, long, prompt_name="query", truncate_prompt_tokens=-1)
    assert renamed.post_json("/v1/embed", {"texts": [long], "input_type": "search_query"})["embeddings"] == query
    assert renamed.post_json("/v1/embed", {"texts": [long], "input_type": "classification"})["embeddings"] != query
    assert renamed.post_json("/v1/embed", {"texts": [long], "max_tokens": 12})["embeddings"] == vectors(renamed, long, truncate_prompt_tokens=12)
    check_error(renamed.post("/v2/embed", {"texts": [long], "truncate": "NONE"}), 400, "texts", "context_length_exceeded")


@case("C88")
@pytest.mark.parametrize("body,param,says", [
    ({}, "texts", "found neither"), ({"texts": ["a"], "inputs": [{"content": [{"type": "text", "text": "a"}]}]}, "texts", "found both"),
    ({"texts": []}, "texts", "an array of strings"), ({"texts": [[1, 2]]}, "texts", "an array of strings"), ({"texts": "a"}, "texts", "an array"),
    ({"texts": ["a"], "input_type": "image"}, "input_type", "search_query"), ({"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types", "ubinary"),
    ({"texts": ["a"], "embedding_types": []}, "embedding_types", "ubinary"), ({"texts": ["a"], "truncate": "START"}, "truncate", "keeps the beginning"),
    ({"texts": ["a"], "truncate": "LEFT"}, "truncate", "NONE or END"), ({"images": ["data:"]}, "images", "not supported"),
    ({"texts": ["a"], "output_dimension": 0}, "output_dimension", "output_dimension: "), ({"texts": ["a"], "max_tokens": 0}, "max_tokens", "max_tokens: "),
    ({"inputs": [{"content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}, "inputs", "only texts"),
    ({"inputs": [{"content": []}]}, "inputs", "content"), ({"texts": ["a"], "input": "a"}, "texts", "in place of input"), ({"texts": ["a"], "encoding_format": "base64"}, "encoding_format", "not supported")])
def test_what_coheres_embed_does_not_take_is_refused_by_name(server, body, param, says):
    for path in ("/v1/embed", "/v2/embed"):
        assert says in check_error(server.post(path, body), 400, param)
