"""Checkpoints of torchao: parts of a weight beside metadata that says their class. Values are whole numbers times powers
of two, so that bf16 holds what the parts stand for."""
import json
import struct

import pytest

from test_bad_input import refused
from test_published import bf16, same_logits, two_folders

QUANT = {"quant_method": "torchao", "quant_type": {"default": {}}}
Q = "model.layers.0.self_attn.q_proj"


def data(kind, numbers):
    return struct.pack(f"<{len(numbers)}{kind}", *numbers)


def by_groups(shape, w, group, most, zero):
    """Codes from -most to most, scales of [N][K / group], zeros likewise, and what code - zero makes."""
    N, K = shape
    ng = K // group
    scales = [2.0 ** (i % 3 - 8) for i in range(N * ng)]
    zeros = [(i % 5 - 2) * zero for i in range(N * ng)]
    codes, values = [], []
    for i, v in enumerate(w):
        g = i // group
        codes.append(max(-most, min(most, round(v / scales[g]) + zeros[g])))
        values.append((codes[-1] - zeros[g]) * scales[g])
    return codes, scales, zeros, values


class Torchao:
    """pack(name, shape, floats) of two_folders, for one class; `said` is filled."""

    def __init__(self, kind, attributes, group=32, zero=0):
        self.kind, self.attributes, self.group, self.zero, self.said = kind, attributes, group, zero, {}

    def __call__(self, name, shape, w):
        N, K = shape
        module = name.removesuffix(".weight")
        group = min(self.group, K)
        block = [N, K] if self.attributes.get("all") else [1, group]
        self.said[name] = json.dumps({"_type": self.kind, "_data": {
            "block_size": block, "shape": shape, **{k: v for k, v in self.attributes.items() if k != "all"}}})
        parts, values = getattr(self, self.kind)(shape, w, group)
        return {f"{module}._weight_{k}": v for k, v in parts.items()}, values

    def IntxUnpackedToInt8Tensor(self, shape, w, group):
        N, K = shape
        codes, scales, zeros, values = by_groups(shape, w, group, 7 if self.kind.startswith("Intx") else 120, self.zero)
        return {"qdata": ("I8", shape, data("b", codes)), "scale": ("BF16", [N, K // group], bf16(scales)),
                "zero_point": ("I8", [N, K // group], data("b", zeros))}, values

    Int8Tensor = IntxUnpackedToInt8Tensor

    def Float8Tensor(self, shape, w, group):
        """Codes of E4M3 that are -1, 0 or 1, with one scale for all."""
        codes = [max(-1, min(1, round(v * 16))) for v in w]
        return {"qdata": ("F8_E4M3", shape, bytes({-1: 0xb8, 0: 0, 1: 0x38}[c] for c in codes)),
                "scale": ("F32", [1, 1], data("f", [1 / 16]))}, [c / 16 for c in codes]

    def Int4Tensor(self, shape, w, group):
        """code * scale + zero; scales and zeros by group first."""
        N, K = shape
        codes, scales, zeros, _ = by_groups(shape, w, group, 7, 1)
        zeros = [z * s / 2 for z, s in zip(zeros, scales)]
        turned = [n * (K // group) + g for g in range(K // group) for n in range(N)]
        packed = bytes(codes[i] & 15 | (codes[i + 1] & 15) << 4 for i in range(0, N * K, 2))
        return {"qdata": ("I8", [N, K // 2], packed),
                "scale": ("BF16", [K // group, N], bf16([scales[i] for i in turned])),
                "zero_point": ("BF16", [K // group, N], bf16([zeros[i] for i in turned]))}, [
                    c * scales[i // group] + zeros[i // group] for i, c in enumerate(codes)]

    def Int4TilePackedTo4dTensor(self, shape, w, group):
        """The registers of an m16n8k16 product: lane t has output t / 4 of 8, and of each 16 inputs 2 (t % 4), the next
        one, and both 8 further; two such sixteens a word."""
        N, K = shape
        codes, scales, zeros, _ = by_groups(shape, w, group, 7, 1)
        zeros = [z * s / 2 for z, s in zip(zeros, scales)]
        rows, wide, words = -(-N // 8) * 8, -(-K // 1024) * 1024, []
        for tile in range(rows // 8):
            for outer in range(wide // 128):
                for t in range(32):
                    for inner in range(0, 8, 2):
                        n, k = tile * 8 + t // 4, (outer * 8 + inner) * 16 + t % 4 * 2
                        v = [codes[n * K + i] + 8 if n < N and i < K else 0
                             for i in (k, k + 1, k + 8, k + 9, k + 16, k + 17, k + 24, k + 25)]
                        words.append(sum(v[j] << 4 * at for at, j in enumerate((0, 2, 4, 6, 1, 3, 5, 7))))
        both = [x for g in range(wide // group) for n in range(rows) for x in (
            (scales[n * (K // group) + g], zeros[n * (K // group) + g]) if n < N and g < K // group else (1, 0))]
        return {"qdata": ("I32", [rows // 8, wide // 128, 32, 4], data("I", words)),
                "scale_and_zero": ("BF16", [wide // group, rows, 2], bf16(both))}, [
                    c * scales[i // group] + zeros[i // group] for i, c in enumerate(codes)]


INT4 = {"target_dtype": {"_type": "torch.dtype", "_data": "int4"}}
CLASSES = [
    ("i8-row", Torchao("Int8Tensor", {"act_quant_kwargs": None}, 1 << 20)),
    ("i8-row-asym", Torchao("Int8Tensor", {"act_quant_kwargs": None}, 1 << 20, 1)),
    ("u8-g16", Torchao("Int8Tensor", {}, 16)),
    ("u4-g32", Torchao("IntxUnpackedToInt8Tensor", {**INT4, "activation_quantization": "int8_asym_per_token"})),
    ("u4-g16-asym", Torchao("IntxUnpackedToInt8Tensor", INT4, 16, 1)),
    ("fp8-e4m3-tensor", Torchao("Float8Tensor", {"all": True})),
    ("u4-g32-bias", Torchao("Int4Tensor", {})),
    ("u4-g32-bias", Torchao("Int4TilePackedTo4dTensor", {})),
]


@pytest.mark.parametrize("scheme,pack", CLASSES, ids=[f"{p.kind} {s}" for s, p in CLASSES])
def test_weights_are_those_of_their_class(llmq, tmp_path, scheme, pack):
    arch = "llama-128" if "Tile" in pack.kind else "bitnet"  # so wide that a tile is full
    a, b = two_folders(tmp_path, arch, QUANT, pack, lambda name: "_proj" in name, pack.said)
    doc = llmq.json("inspect", a)
    t = next(t for t in doc["tensors"] if t["name"] == Q + ".weight")
    assert t["scheme"] == scheme and t["shape"][0] == t["shape"][1]
    assert any("inputs" in n for n in doc["notes"]) == ("activation_quantization" in pack.attributes)
    same_logits(llmq, tmp_path, a, b)
    llmq("convert", a, "-o", tmp_path / "c.llmq", "--to", "llmq")
    llmq("verify", tmp_path / "c.llmq", "--against", a)
    same_logits(llmq, tmp_path, tmp_path / "c.llmq", b)


ROWS = {"_type": "PerRow", "_data": {"dim": -1}}
INPUTS = [("i8-row-a8", "Int8Tensor", {"granularity": ROWS, "mapping_type": {"_type": "MappingType", "_data": "SYMMETRIC"}}),
          ("i8-row", "Int8Tensor", {"granularity": ROWS, "mapping_type": {"_type": "MappingType", "_data": "ASYMMETRIC"}}),
          ("i8-row", "Int8Tensor", {"granularity": ROWS, "reduce_range": True}),
          ("fp8-e4m3-tensor-af8", "Float8Tensor", {"granularity": {"_type": "PerTensor", "_data": {}}}),
          ("fp8-e4m3-tensor", "Float8Tensor", {"granularity": ROWS, "hp_value_lb": None, "hp_value_ub": 2.5}),
          ("fp8-e4m3-tensor", "Float8Tensor", {"granularity": ROWS, "float8_dtype": {"_type": "torch.dtype", "_data": "float8_e5m2"}})]


@pytest.mark.parametrize("scheme,kind,how", INPUTS)
def test_inputs_are_rounded_as_it_says(llmq, tmp_path, scheme, kind, how):
    pack = Torchao(kind, {"all": kind == "Float8Tensor", "act_quant_kwargs": {"_type": "Kwargs", "_data": how}}, 1 << 20)
    a, _ = two_folders(tmp_path, "bitnet", QUANT, pack, lambda name: "_proj" in name, pack.said)
    doc = llmq.json("inspect", a)
    assert next(t for t in doc["tensors"] if t["name"] == Q + ".weight")["scheme"] == scheme
    assert bool(doc["notes"]) == (scheme != "i8-row-a8")


def change(**more):
    return lambda d: {**d, "_data": {**d["_data"], **more}}


BAD = [(lambda d: {**d, "_type": "Int4PreshuffledTensor"}, 'a weight of class "Int4PreshuffledTensor" is not read'),
       (lambda d: {}, "_type: expected a string"),
       (change(block_size=[2, 32]), "block_size: [2,32] of [32,32]"),
       (change(block_size=[0, 32]), "block_size: expected two sizes from 1"),
       (change(block_size=[1, 32.7]), "block_size: expected two sizes from 1"),
       (change(block_size=[1, 24]), "block_size: [1,24] of [32,32]"),
       (change(block_size=[1, 16]), "expected 64 numbers, found 32"),
       (change(target_dtype={"_type": "torch.dtype", "_data": "uint4"}), 'target_dtype: expected int1 to int8, found "uint4"'),
       (lambda d: {**d, "_tensor_data_names": ["qdata", "scale", "act_pre_scale"]}, "_weight_act_pre_scale' is missing"),
       (lambda d: {**d, "_tensor_data_names": ["qdata", 1]}, "_tensor_data_names: expected names of its tensors"),
       (None, "expected what torchao says of it in the file's metadata, found nothing")]


@pytest.mark.parametrize("damage,says", BAD, ids=[f"{i} {b[1]}" for i, b in enumerate(BAD)])
def test_what_is_not_known_is_refused(llmq, tmp_path, damage, says):
    pack = Torchao("IntxUnpackedToInt8Tensor", INT4)

    def damaged(name, shape, w):
        made = pack(name, shape, w)
        if name == Q + ".weight" and damage:
            pack.said[name] = json.dumps(damage(json.loads(pack.said[name])))
        elif name == Q + ".weight":
            del pack.said[name]
        return made

    a, _ = two_folders(tmp_path, "bitnet", QUANT, damaged, lambda name: "_proj" in name, pack.said)
    line = refused(llmq, tmp_path, "logits", a, "--ids", "1,2", "-o", tmp_path / "o")
    assert says in line and Q in line, line


@pytest.mark.parametrize("pack", [p for _, p in CLASSES[:1] + CLASSES[-4:]], ids=lambda p: p.kind)
def test_inputs_that_are_scaled_first_are_refused(llmq, tmp_path, pack):
    """By SmoothQuant or AWQ: whichever class has the scale beside it."""
    def scaled(name, shape, w):
        parts, values = pack(name, shape, w)
        return {**parts, name.replace(".weight", "._weight_act_pre_scale"): ("BF16", shape[1:], bf16([2] * shape[1]))}, values

    a, _ = two_folders(tmp_path, "bitnet", QUANT, scaled, lambda name: "_proj" in name, pack.said)
    assert "act_pre_scale: inputs that are scaled first" in refused(llmq, tmp_path, "logits", a, "--ids", "1,2", "-o", tmp_path / "o")
