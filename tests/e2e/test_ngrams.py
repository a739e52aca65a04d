"""Embeddings of n-grams (Qwen4-Exp): tables of one tensor, of several, and of others than the config makes."""
import json
import shutil
import struct

import pytest

from conftest import ROOT
from test_bad_input import read_st, refused, st_file

GOLDEN = ROOT / "tests/golden/arch/qwen4-exp-ngrams"
TABLE = "model.layers.{}.ple.ple_embedding.ngram_embedding{}.weight"
FACTORS = "model.layers.2.ple.ple_embedding.layer_multipliers"
LAYERS, SHARDS = (0, 2), 3


@pytest.fixture
def folder(tmp_path):
    out = tmp_path / "model"
    out.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(GOLDEN / name, out / name)
    return out


def change(folder, how):
    """how(tensors) of {name: [dtype, shape, bytes]}."""
    header, data = read_st(folder / "model.safetensors")
    header.pop("__metadata__", None)
    tensors = {k: [v["dtype"], v["shape"], data[slice(*v["data_offsets"])]] for k, v in header.items()}
    how(tensors)
    header, data = {}, b""
    for k, (dtype, shape, raw) in sorted(tensors.items(), key=lambda t: -len(t[1][2])):
        header[k] = dict(dtype=dtype, shape=shape, data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    (folder / "model.safetensors").write_bytes(st_file(header, data))


def cut(rows):
    """The table of each layer in parts of rows(how many there are), or with None in one tensor."""
    def how(tensors):
        for layer in LAYERS:
            parts = [tensors.pop(TABLE.format(layer, f".shard_{i}")) for i in range(SHARDS)]
            dtype, width, raw = parts[0][0], parts[0][1][1], b"".join(p[2] for p in parts)
            one, at = width * 2, 0
            all_rows = len(raw) // one
            for i, n in enumerate(rows(all_rows) if rows else [all_rows]):
                name = TABLE.format(layer, f".shard_{i}" if rows else "")
                tensors[name] = [dtype, [n, width], raw[at * one:(at + n) * one]]
                at += n
    return how


def logits(llmq, model, out, *more):
    llmq("logits", model, "--ids", "41,35,2,21,24,2,2,46,10,11", "-o", out, "--threads", "1", *more)
    header, data = read_st(out)
    return data[slice(*header["logits"]["data_offsets"])]


@pytest.mark.parametrize("rows", [None, lambda n: [n], lambda n: [7, n - 12, 1, 4]], ids=["one tensor", "one shard", "uneven shards"])
def test_a_table_may_be_in_one_tensor_or_several(llmq, tmp_path, folder, rows):
    want = logits(llmq, folder, tmp_path / "want")
    change(folder, cut(rows))
    assert logits(llmq, folder, tmp_path / "got") == want
    llmq("convert", folder, "-o", tmp_path / "m.llmq", "--to", "llmq")
    assert logits(llmq, tmp_path / "m.llmq", tmp_path / "packed") == want


def test_a_table_of_codes_is_read_by_rows_too(llmq, tmp_path, folder):
    """What rounding left of it is told by the weights, written out as floats."""
    q, f32 = tmp_path / "q.llmq", tmp_path / "f32"
    llmq("quantize", folder, "-o", q, "--method", "rtn", "--override", ".*ngram_embedding.*=i8-row")
    llmq("convert", q, "-o", f32, "--to", "safetensors", "--dtype", "f32")
    a, b, whole = (memoryview(logits(llmq, m, tmp_path / "out")).cast("f").tolist() for m in (q, f32, folder))
    worst, top = max(abs(x - y) for x, y in zip(a, b)), max(map(abs, b))
    assert worst <= 2e-6 * top and a != whole


def test_more_parts_than_the_model_has_experts_are_all_quantized(llmq, tmp_path, folder):
    change(folder, cut(lambda n: [7, n - 12, 1, 4]))
    llmq("quantize", folder, "-o", tmp_path / "q.llmq", "--method", "rtn", "--override", ".*ngram_embedding.*=i8-row")
    parts = [t for t in llmq.json("inspect", tmp_path / "q.llmq")["tensors"] if "ngram_embedding" in t["name"]]
    assert [t["scheme"] for t in parts] == 8 * ["i8-row"]


def drop(name):
    return lambda tensors: tensors.pop(name)


def put(name, value):
    def how(tensors):
        tensors[name][2] = struct.pack("<Q", value) + tensors[name][2][8:]
    return how


BROKEN = {
    "a shard too few": (drop(TABLE.format(2, ".shard_2")), "ngram_embedding.shard_2.weight' is missing"),
    "no table": (lambda t: [t.pop(TABLE.format(layer, f".shard_{i}")) for layer in LAYERS for i in range(SHARDS)],
                 "ngram_embedding.weight' is missing"),
    "rows too few": (cut(lambda n: [n - 4]), "layer 0: expected a table of n-grams of 60 rows, found 56"),
    "another factor": (put(FACTORS, 5), "layer_multipliers': expected"),
    "factors too few": (lambda t: t.update({FACTORS: ["I64", [1], bytes(8)]}), "layer_multipliers': expected 3 whole numbers"),
    "another size": (put(FACTORS.replace("layer_multipliers", "ngram_heads_vocab_sizes"), 12), "ngram_heads_vocab_sizes': expected"),
    "another place": (put(FACTORS.replace("layer_multipliers", "ngram_heads_offsets"), 1), "ngram_heads_offsets': expected 0 as number 0"),
}


@pytest.mark.parametrize("why", BROKEN)
def test_a_table_of_another_config_is_refused(llmq, tmp_path, folder, why):
    how, says = BROKEN[why]
    change(folder, how)
    assert says in refused(llmq, folder, "logits", folder, "--ids", "1,2", "-o", tmp_path / "out")


def test_the_files_numbers_may_be_left_out(llmq, tmp_path, folder):
    want = logits(llmq, folder, tmp_path / "want")
    change(folder, lambda t: [t.pop(k) for k in list(t) if ".ple_embedding." in k and "ngram_embedding" not in k])
    assert logits(llmq, folder, tmp_path / "got") == want


def test_the_first_of_several_ends_of_a_text_ends_ngrams(llmq, tmp_path, folder):
    config = json.loads((folder / "config.json").read_text())
    want = logits(llmq, folder, tmp_path / "want")
    for eos, same in (([2, 35], True), ([35, 2], False)):
        (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": eos}))
        assert (logits(llmq, folder, tmp_path / "got") == want) == same


def test_rows_of_tables_are_no_weights_that_have_to_fit(llmq, folder):
    plan = json.loads(llmq("plan", folder, "--json").stdout)
    assert plan["rows_bytes"] == (60 + 120) * 3 * 2
