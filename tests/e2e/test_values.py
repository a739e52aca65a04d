"""Numbers beside the codes that no quantizer writes: every command that reads weights names them.

What each scheme may have: tests/unit/test_finite.c. Here: that each layout's reader comes to it."""
import json
import struct

import pytest

from conftest import ROOT
from test_bad_input import refused
from test_published import Q, assemble, drop, put, qc

WEIGHT = Q + "weight"
F32_NAN, F32_INF = struct.pack("<f", float("nan")), struct.pack("<f", float("inf"))
F16_NAN, F16_INF = b"\x00\x7e", b"\x00\x7c"


def last(number):
    """The last one of a tensor is this."""
    return lambda b: b[:-len(number)] + number


WRONG = [
    ("gptq: NaN", "gptq-4bit-g64-asym", put("scales", data=last(F16_NAN)), "scales: expected finite numbers, found NaN"),
    ("gptq: infinity", "gptq-4bit-g64-asym", put("scales", data=last(F16_INF)), "scales: expected finite numbers, found infinity"),
    ("gptq, reordered", "gptq-4bit-g32-desc-act", put("scales", data=last(F16_NAN)), "scales: "),
    ("awq", "awq-gemm-g128", put("scales", data=last(F16_NAN)), "scales: "),
    ("bitsandbytes: absmax", "bnb-nf4", put("weight.absmax", data=last(F32_NAN)), "scales: "),
    ("bitsandbytes: a negative absmax", "bnb-nf4", put("weight.absmax", data=last(struct.pack("<f", -1))),
     "scales: expected finite numbers from 0 on, found -1"),
    ("bitsandbytes: its table", "bnb-fp4", put("weight.quant_map", data=last(F32_NAN)), "map: "),
    ("bitsandbytes: nested absmax", "bnb-nf4-double", put("weight.nested_absmax", data=last(F32_INF)), "scales2: "),
    ("bitsandbytes: nested table", "bnb-nf4-double", put("weight.nested_quant_map", data=last(F32_NAN)), "map2: "),
    ("LLM.int8", "bnb-int8", put("SCB", data=last(F32_NAN)), "scales: "),
    ("LLM.int8: a negative absmax", "bnb-int8", put("SCB", data=last(struct.pack("<f", -3))),
     "scales: expected finite numbers from 0 on, found -3"),
    ("compressed-tensors, packed", "ct-w8a16", put("weight_scale", data=last(b"\xc0\x7f")), "scales: "),
    ("compressed-tensors, int8", "ct-w8a8-int8", put("weight_scale", data=last(b"\xc0\x7f")), "scales: "),
    ("compressed-tensors, fp8", "ct-fp8-dynamic", put("weight_scale", data=last(b"\x80\x7f")), "scales: "),
    ("a code of fp8", "ct-fp8-dynamic", put("weight", data=last(b"\xff")), "codes: expected finite numbers, found NaN"),
    ("nvfp4", "ct-nvfp4a16", put("weight_scale", data=last(b"\x7f")), "scales: "),
    ("nvfp4: the tensor's scale", "ct-nvfp4a16", put("weight_global_scale", data=last(F32_NAN)), "scales2: "),
    ("nvfp4: the tensor's scale is 0", "ct-nvfp4a16", put("weight_global_scale", data=last(bytes(4))),
     "scales2: expected finite numbers above 0, found 0"),
]


def named_by_all(llmq, tmp_path, model, name, says):
    """convert and what loads the model refuse it, verify lists it; nothing is left behind."""
    for args in (["convert", model, "-o", tmp_path / "o.llmq", "--to", "llmq"],
                 ["convert", model, "-o", tmp_path / "o", "--to", "safetensors"],
                 ["logits", model, "--ids", "1,2", "-o", tmp_path / "o"]):
        line = refused(llmq, tmp_path, *args)
        assert name in line and says in line, line
    doc = json.loads(llmq("verify", model, "--json", code=4).stdout)
    bad = [b for b in doc["bad"] if says in b["what"]]
    assert [b["name"] for b in bad] == [name], doc


@pytest.mark.parametrize("why,layout,change,says", WRONG, ids=[w[0] for w in WRONG])
def test_no_command_takes_what_no_quantizer_writes(llmq, tmp_path, why, layout, change, says):
    model = assemble(layout, tmp_path / "m", change)
    named_by_all(llmq, tmp_path, model, WEIGHT, says)


LEGAL = [
    ("a group of zeros", "gptq-4bit-g64-asym", put("scales", data=last(bytes(2))), None),
    ("a negative scale", "gptq-4bit-g64-asym", put("scales", data=last(b"\x00\xb4")), None),
    ("a block of zeros", "bnb-nf4", put("weight.absmax", data=last(bytes(4))), None),
    ("a row of zeros", "bnb-int8", put("SCB", data=last(bytes(4))), None),
    ("a block of zeros in nvfp4", "ct-nvfp4a16", put("weight_scale", data=last(bytes(1))), None),
    ("settings that are not said", "awq-gemm-g128", None, qc(group_size=None, version=None)),
]


@pytest.mark.parametrize("why,layout,change,config", LEGAL, ids=[c[0] for c in LEGAL])
def test_what_a_quantizer_may_write_is_taken(llmq, tmp_path, why, layout, change, config):
    model = assemble(layout, tmp_path / "m", change, config)
    out = tmp_path / "o.llmq"
    llmq("convert", model, "-o", out, "--to", "llmq")
    llmq("verify", out, "--against", model)


def test_a_missing_order_is_said_aloud(llmq, tmp_path):
    """GPTQModel and vLLM take groups in the order of the inputs then, which is right of static groups."""
    model = assemble("gptq-4bit-g32-desc-act", tmp_path / "m", drop("g_idx"))
    assert any("no g_idx" in n for n in llmq.json("inspect", model)["notes"])


def test_awqs_zero_points_are_read_where_they_are_stored(llmq, tmp_path):
    """Kernels of awq go by what is stored, whatever `zero_point` says."""
    a = assemble("awq-gemm-g128", tmp_path / "a")
    b = assemble("awq-gemm-g128", tmp_path / "b", config=qc(zero_point=False))
    for m in (a, b):
        llmq("logits", m, "--ids", "1,2,3", "-o", tmp_path / f"{m.name}.l")
    assert (tmp_path / "a.l").read_bytes() == (tmp_path / "b.l").read_bytes()


@pytest.mark.parametrize("layout", ["portable", "tile16"])
def test_a_scale_of_a_packed_file(llmq, tmp_path, layout):
    """Whose checksums are not asked for when it is loaded; convert looks at them first."""
    whole = tmp_path / "whole.llmq"
    llmq("convert", assemble("gptq-4bit-g64-asym", tmp_path / "m"), "-o", whole, "--to", "llmq", "--layout", layout)
    data = bytearray(whole.read_bytes())
    table = json.loads(data[struct.unpack_from("<Q", data, 16)[0]:])
    at = next(t for t in table["tensors"] if t["name"] == WEIGHT)["planes"]["scales"]["off"]
    data[at:at + 2] = F16_NAN
    model = tmp_path / "bad.llmq"
    model.write_bytes(data)
    says = "scales: expected finite numbers, found NaN at number 0"
    line = refused(llmq, tmp_path, "logits", model, "--ids", "1,2", "-o", tmp_path / "o")
    assert WEIGHT in line and says in line, line
    doc = json.loads(llmq("verify", model, "--json", code=4).stdout)
    assert [b["name"] for b in doc["bad"]] == [WEIGHT, WEIGHT], doc  # its checksum too
    assert says in doc["bad"][1]["what"], doc


@pytest.mark.parametrize("kind,d", [(10, 80), (10, 82), (11, 108), (14, 208)], ids=["Q2_K d", "Q2_K dmin", "Q3_K d", "Q6_K d"])
def test_a_block_of_gguf(llmq, tmp_path, kind, d):
    """The first tensor of the type; llama.cpp's --check-tensors has the same rule."""
    data = bytearray((ROOT / "tests/golden/gguf/novels-6m-Q2_K.gguf").read_bytes())
    name, at = first_of(data, kind)
    data[at + d:at + d + 2] = F16_NAN
    model = tmp_path / "bad.gguf"
    model.write_bytes(data)
    line = refused(llmq, tmp_path, "logits", model, "--ids", "1,2", "-o", tmp_path / "o")
    assert "expected finite numbers, found NaN" in line, line
    line = refused(llmq, tmp_path, "convert", model, "-o", tmp_path / "o.llmq", "--to", "llmq")
    assert "expected finite numbers, found NaN" in line, line
    assert len(json.loads(llmq("verify", model, "--json", code=4).stdout)["bad"]) == 1, name


def first_of(data, kind):
    """Name and place in the file of a GGUF's first tensor of a type."""
    n_tensors, n_keys = struct.unpack_from("<QQ", data, 8)
    at = 24

    def string():
        nonlocal at
        n = struct.unpack_from("<Q", data, at)[0]
        at += 8 + n
        return data[at - n:at].decode()

    def value(t):
        nonlocal at
        if t == 8:
            return string()
        if t == 9:
            t, n = struct.unpack_from("<IQ", data, at)
            at += 12
            for _ in range(n):
                value(t)
            return None
        at += {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}[t]
        return None

    for _ in range(n_keys):
        string()
        at += 4
        value(struct.unpack_from("<I", data, at - 4)[0])
    found = []
    for _ in range(n_tensors):
        name = string()
        dims = struct.unpack_from("<I", data, at)[0]
        at += 4 + 8 * dims
        t, off = struct.unpack_from("<IQ", data, at)
        at += 12
        if t == kind:
            found.append((off, name))
    off, name = min(found)
    return name, (at + 31) // 32 * 32 + off
