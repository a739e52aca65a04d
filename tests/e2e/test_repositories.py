"""Quantized repositories as libraries of today write them: every kind's weights are those of its words, read by own
arithmetic here; configs that differ in words alone give the same weights.

The kinds are those of public reports: auto-round 0.16, ModelOpt 0.33, Quark, compressed-tensors 0.20,
GPTQModel 5 to 7, transformers 4.57 and 5."""
import json
import math
import struct

import pytest

from conftest import ROOT
from harness import KEEP
from test_bad_input import read_st, refused
from test_published import E2M1, Q, assemble, bf16, drop, put, qc, tensor, two_folders, write_st

E4M3 = [(8 + (c & 7)) * 2.0**((c >> 3) - 10) if c >> 3 else (c & 7) * 2.0**-9 for c in range(0x7f)]
NK = (128, 128)  # q_proj of the golden llama-128


def nearest(grid, v):
    return min(range(len(grid)), key=lambda c: abs(grid[c] - abs(v)))


def f32(values):
    return struct.pack(f"<{len(values)}f", *values)


def words(codes, bits):
    """A bit stream, from the low end of 32-bit words."""
    n = sum(c << i * bits for i, c in enumerate(codes))
    return struct.pack(f"<{len(codes) * bits // 32}I", *[n >> 32 * i & 0xffffffff for i in range(len(codes) * bits // 32)])


def turned(rows):
    """Rows of 32-bit words as columns."""
    cells = [[r[i:i + 4] for i in range(0, len(r), 4)] for r in rows]
    return b"".join(b"".join(c) for c in zip(*cells))


# ---- E4M3 ----
def fp8(scale_name, scale_shape, scale_type="F32", rows=None, cols=None, more=()):
    """Codes of E4M3 with a scale of 2^-9 .. 2^-6 for each block of rows x cols (None: all)."""
    def pack(name, shape, w):
        N, K = shape
        r, c = rows or N, cols or K
        across, n = -(-K // c), -(-N // r) * -(-K // c)
        exps = [-9 + i % 4 for i in range(n)]
        codes, values = bytearray(), []
        for i, v in enumerate(w):
            s = 2.0**exps[i // K // r * across + i % K // c]
            code = nearest(E4M3, min(abs(v) / s, 448))
            codes.append(code | (0x80 if v < 0 else 0))
            values.append(math.copysign(E4M3[code] * s, v))
        raw = {"F32": lambda: f32([2.0**e for e in exps]), "BF16": lambda: bf16([2.0**e for e in exps])}.get(
            scale_type, lambda: bytes(e + 127 for e in exps))()
        module = name[:-len(".weight")]
        parts = {name: ("F8_E4M3", shape, bytes(codes)), module + scale_name: (scale_type, scale_shape, raw)}
        for suffix, value in more:
            parts[module + suffix] = ("F32", [], f32([value]))
        return parts, values
    return pack


# ---- E2M1 ----
def fp4(group, codes_name, scale_type, second=None, second_value=1.0, more=()):
    def pack(name, shape, w):
        N, K = shape
        scales, codes, values = bytearray(), bytearray(), [0.0] * len(w)
        factor = 1.0 if second is None else second_value if second.endswith("_2") else 1 / second_value
        for at in range(0, N * K, group):
            top = max(abs(v) for v in w[at:at + group]) / 6 / factor
            if scale_type == "F8_E4M3":
                code = nearest(E4M3, min(max(top, 2.0**-6), 448))
                s = E4M3[code]
            else:
                code = max(0, math.frexp(top)[1] + 127)
                s = 2.0**(code - 127)
            scales.append(code)
            low = 0
            for i in range(at, at + group):
                c = nearest(E2M1, abs(w[i]) / s / factor)
                values[i] = math.copysign(E2M1[c] * s * factor, w[i])
                c |= 8 if w[i] < 0 else 0
                if i % 2:
                    codes.append(low | c << 4)
                low = c
        module = name[:-len(".weight")]
        parts = {module + codes_name: ("U8", [N, K // 2], bytes(codes)),
                 module + ".weight_scale": (scale_type, [N, K // group], bytes(scales))}
        if second:
            parts[module + second] = ("F32", [1] if "global" in second else [], f32([second_value]))
        for suffix, value in more:
            parts[module + suffix] = ("F32", [1], f32([value]))
        return parts, values
    return pack


# ---- integers ----
def grid(w, N, K, bits, group, asym, order=None):
    """codes [N][K], scales [N][ng], zeros [N][ng], values; a last group may be shorter."""
    ng, half = -(-K // group), 1 << bits - 1
    of = order or [k // group for k in range(K)]
    codes, scales, zeros, values = [], [], [], []
    for n in range(N):
        row = w[n * K:(n + 1) * K]
        s = [2.0**-(6 + (n + g) % 3) for g in range(ng)]
        z = [half + ((n + g) % 3 - 1 if asym else 0) for g in range(ng)]
        c = [max(0, min(2 * half - 1, round(v / s[of[k]]) + z[of[k]])) for k, v in enumerate(row)]
        codes.append(c), scales.append(s), zeros.append(z)
        values += [(c[k] - z[of[k]]) * s[of[k]] for k in range(K)]
    return codes, scales, zeros, values


def f16(v):
    return struct.pack("<e", v)


def gptq(bits=4, group=128, asym=False, add=1, order=None):
    """add: what a stored zero point lacks. order(K): the group of each input."""
    def pack(name, shape, w):
        N, K = shape
        of = order(K, group) if order else None
        codes, scales, zeros, values = grid(w, N, K, bits, group, asym, of)
        ng, module = len(scales[0]), name[:-len(".weight")]
        parts = {
            module + ".qweight": ("I32", [K * bits // 32, N], turned([words(c, bits) for c in codes])),
            module + ".qzeros": ("I32", [ng, N * bits // 32],
                                 b"".join(words([zeros[n][g] - add for n in range(N)], bits) for g in range(ng))),
            module + ".scales": ("F16", [ng, N], b"".join(f16(scales[n][g]) for g in range(ng) for n in range(N)))}
        if of:
            parts[module + ".g_idx"] = ("I32", [K], struct.pack(f"<{K}i", *of))
        return parts, values
    return pack


def mixed_order(K, group):
    """Inputs 7 apart, as a sort by activations leaves them."""
    of = [0] * K
    for i in range(K):
        of[i * 7 % K if K % 7 else (i * 5 % K)] = i // group
    return of


def awq(group=128):
    def pack(name, shape, w):
        N, K = shape
        codes, scales, zeros, values = grid(w, N, K, 4, group, True)
        ng, module, place = len(scales[0]), name[:-len(".weight")], [0, 2, 4, 6, 1, 3, 5, 7]

        def row(at):
            return b"".join(words([at(n + place[i]) for i in range(8)], 4) for n in range(0, N, 8))
        return {module + ".qweight": ("I32", [K, N // 8], b"".join(row(lambda n: codes[n][k]) for k in range(K))),
                module + ".qzeros": ("I32", [ng, N // 8], b"".join(row(lambda n: zeros[n][g]) for g in range(ng))),
                module + ".scales": ("F16", [ng, N], b"".join(f16(scales[n][g]) for g in range(ng)
                                                             for n in range(N)))}, values
    return pack


def ct_packed(bits=4, group=96, asym=False):
    def pack(name, shape, w):
        N, K = shape
        codes, scales, zeros, values = grid(w, N, K, bits, group, asym)
        ng, module = len(scales[0]), name[:-len(".weight")]
        parts = {module + ".weight_packed": ("I32", [N, K * bits // 32], b"".join(words(c, bits) for c in codes)),
                 module + ".weight_shape": ("I64", [2], struct.pack("<qq", N, K)),
                 module + ".weight_scale": ("BF16", [N, ng], bf16([s for r in scales for s in r]))}
        if asym:
            parts[module + ".weight_zero_point"] = ("I32", [N * bits // 32, ng], turned(
                [words([zeros[n][g] for n in range(N)], bits) for g in range(ng)]))
        return parts, values
    return pack


def ct(format, weights, inputs=None, **more):
    return {"quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
            "ignore": ["lm_head"], **more,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}}


def round_(packing="auto_round:auto_gptq", **more):
    return {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True, "data_type": "int",
            "packing_format": packing, **more}


def modelopt(algo, **more):
    return {"quant_method": "modelopt", "quant_algo": algo, "producer": {"name": "modelopt", "version": "0.33.0"}, **more}


def quark(weight, inputs):
    return {"quant_method": "quark", "export": {"kv_cache_group": [], "pack_method": "reorder"},
            "global_quant_config": {"weight": weight, "input_tensors": inputs, "output_tensors": None}}


FP4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
MX = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32,
      "scale_dtype": "torch.uint8"}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 96}
BLOCK8 = {"num_bits": 8, "type": "float", "strategy": "block"}
STATIC = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
DYNAMIC = {"quant_method": "fp8", "activation_scheme": "dynamic"}
ONLY = "which the file wants rounded too, are not"

# what, quantization_config, how q_proj is packed, its scheme, words of a note
KINDS = [
    ("transformers 5: one weight_scale_inv, activation_scale", STATIC,
     fp8(".weight_scale_inv", [], more=[(".activation_scale", .125)]), "fp8-e4m3-tensor-af8-static", None),
    ("one weight_scale of one dim", STATIC, fp8(".weight_scale", [1], more=[(".input_scale", .125)]),
     "fp8-e4m3-tensor-af8-static", None),
    ("blocks named weight_scale", {**DYNAMIC, "weight_block_size": [64, 64]},
     fp8(".weight_scale", [2, 2], rows=64, cols=64), "fp8-e4m3-b64x64-af8-g64", None),
    ("blocks that the config does not mention", DYNAMIC, fp8(".weight_scale_inv", [2, 2], rows=64, cols=64),
     "fp8-e4m3-b64x64-af8-g64", None),
    ("a scale for each output, though the config says blocks", {**DYNAMIC, "weight_block_size": [64, 64]},
     fp8(".weight_scale", [128], rows=1), "fp8-e4m3-af8", None),
    ("scales of bf16", DYNAMIC, fp8(".weight_scale", [128, 1], "BF16", rows=1), "fp8-e4m3-af8", None),
    ("scales of E8M0", {**DYNAMIC, "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
     fp8(".weight_scale_inv", [1, 1], "F8_E8M0"), "fp8-e4m3-b128x128-af8-g128", "ue8m0"),
    ("fbgemm", {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
     fp8(".weight_scale", [128, 1], rows=1, more=[(".input_scale_ub", 1200.0)]), "fp8-e4m3-af8", "1200"),
    ("Quark, one scale", quark({"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, {"dtype": "fp8_e4m3", "is_dynamic": False}),
     fp8(".weight_scale", [], more=[(".input_scale", .125)]), "fp8-e4m3-tensor-af8-static", None),
    ("Quark, its own names", quark({"dtype": "fp8_e4m3"}, {"dtype": "fp8_e4m3", "is_dynamic": False}),
     fp8(".weight_quantizer.scale", [], more=[(".input_quantizer.scale", .125)]), "fp8-e4m3-tensor-af8-static", None),
    ("Quark, by output and token", quark({"dtype": "fp8_e4m3", "qscheme": "per_channel"},
                                         {"dtype": "fp8_e4m3", "is_dynamic": True}),
     fp8(".weight_scale", [128], rows=1), "fp8-e4m3-af8", None),
    ("Quark, MXFP4", quark({"dtype": "fp4", "group_size": 32}, {"dtype": "fp4", "is_dynamic": True}),
     fp4(32, ".weight", "U8"), "mxfp4", ONLY),
    ("ModelOpt FP8", modelopt("FP8", kv_cache_quant_algo="FP8"),
     fp8(".weight_scale", [], more=[(".input_scale", .125)]), "fp8-e4m3-tensor-af8-static", "kv_cache"),
    ("ModelOpt FP8 in blocks", modelopt("FP8_PB_WO"), fp8(".weight_scale", [2, 1, 2, 1], rows=64, cols=64),
     "fp8-e4m3-b64x64", None),
    ("ModelOpt by output and token", modelopt("FP8_PER_CHANNEL_PER_TOKEN"), fp8(".weight_scale", [128], rows=1),
     "fp8-e4m3-af8", None),
    ("ModelOpt NVFP4", modelopt("NVFP4"), fp4(16, ".weight", "F8_E4M3", ".weight_scale_2", 2.0**-7,
                                             more=[(".input_scale", .01)]), "nvfp4", ONLY),
    ("ModelOpt MXFP8", modelopt("MXFP8"), fp8(".weight_scale", [128, 4], "U8", rows=1, cols=32), "fp8-e4m3-b1x32", None),
    ("ModelOpt, several", modelopt("MIXED_PRECISION", quantized_layers={Q[:-1]: {"quant_algo": "FP8"}}),
     fp8(".weight_scale", [], more=[(".input_scale", .125)]), "fp8-e4m3-tensor-af8-static", None),
    ("NVFP4, inputs too", ct("nvfp4-pack-quantized", FP4, {**FP4, "dynamic": "local"}),
     fp4(16, ".weight_packed", "F8_E4M3", ".weight_global_scale", 128.0, more=[(".input_global_scale", 5.0)]),
     "nvfp4", ONLY),
    ("MXFP4, inputs too", ct("mxfp4-pack-quantized", {**FP4, "strategy": "group", "group_size": 32},
                             {**FP4, "strategy": "group", "group_size": 32, "dynamic": True}),
     fp4(32, ".weight_packed", "U8"), "mxfp4", ONLY),
    ("MXFP8", ct("mxfp8-quantized", MX, {**MX, "dynamic": True}),
     fp8(".weight_scale", [128, 4], "U8", rows=1, cols=32), "fp8-e4m3-b1x32", ONLY),
    ("blocks in words", ct("float-quantized", {**BLOCK8, "block_structure": "64x64"}),
     fp8(".weight_scale", [2, 2], rows=64, cols=64), "fp8-e4m3-b64x64", None),
    ("compressed-tensors, a short last group", ct("pack-quantized", INT4), ct_packed(), "u4-g32", None),
    ("the same, asymmetric", ct("pack-quantized", {**INT4, "symmetric": False}), ct_packed(asym=True), "u4-g32-asym", None),
    ("AutoRound, nothing said", {"quant_method": "intel/auto-round", "bits": 4, "group_size": 128, "sym": False},
     gptq(asym=True), "u4-g128-asym", None),
    ("AutoRound as gptq", round_(sym=False), gptq(asym=True), "u4-g128-asym", None),
    ("AutoRound's own zero points", round_("auto_round", sym=False), gptq(asym=True, add=0), "u4-g128-asym", None),
    ("AutoRound as gptqmodel", round_("auto_round:gptqmodel", sym=False), gptq(asym=True, add=0), "u4-g128-asym", None),
    ("AutoRound as awq", round_("auto_round:auto_awq", sym=False), awq(), "u4-g128-asym", None),
    ("AutoRound, one of other bits", round_(extra_config={Q[:-1]: {"bits": 8, "group_size": 32}}),
     gptq(8, 32), "u8-g32", None),
    ("AutoRound, a pattern of other bits", round_(extra_config={r".*self_attn\.q_proj.*": {"bits": 2}}), gptq(2),
     "u2-g128", None),
    ("AutoRound, blocks of fp8", round_("auto_round:fp8", bits=8, data_type="fp", group_size=[64, 64], act_bits=8,
                                        act_dynamic=True, activation_scheme="dynamic"),
     fp8(".weight_scale_inv", [2, 2], rows=64, cols=64), "fp8-e4m3-b64x64-af8-g64", None),
    ("AutoRound, static fp8", round_("auto_round:fp8_static", bits=8, data_type="fp", group_size=-1, act_bits=8,
                                     act_dynamic=False, activation_scheme="static"),
     fp8(".weight_scale", [128, 1], rows=1, more=[(".input_scale", .125)]), "fp8-e4m3-af8-static", None),
    ("AutoRound, NVFP4", round_("auto_round:nv_fp", data_type="nv_fp", group_size=16, act_bits=4),
     fp4(16, ".weight_packed", "F8_E4M3", ".weight_global_scale", 128.0, more=[(".input_global_scale", 5.0)]), "nvfp4", ONLY),
    ("AutoRound, MXFP8", round_("auto_round:mx_fp", bits=8, data_type="mx_fp", group_size=32, act_bits=8),
     fp8(".weight_scale", [128, 4], "U8", rows=1, cols=32), "fp8-e4m3-b1x32", ONLY),
    ("AutoRound, MXFP4 with llm_compressor's names", round_("auto_round:llm_compressor", data_type="mx_fp", group_size=32,
                                                           act_bits=4), fp4(32, ".weight_packed", "U8"), "mxfp4", ONLY),
    ("GPTQ, a short last group", {"quant_method": "gptq", "bits": 4, "group_size": 96}, gptq(group=96), "u4-g32", None),
    ("the same, asymmetric and in order of activations", {"quant_method": "gptq", "bits": 4, "group_size": 96, "sym": False,
                                                          "desc_act": True},
     gptq(group=96, asym=True, order=mixed_order), "u4-g32-asym", None),
    ("the same with 8 bits", {"quant_method": "gptq", "bits": 8, "group_size": 96}, gptq(8, 96), "u8-g32", None),
    ("AWQ, a short last group", {"quant_method": "awq", "bits": 4, "group_size": 96, "version": "gemm"}, awq(96),
     "u4-g32-asym", None),
    ("GPTQ with AutoRound's extra_config", {"quant_method": "gptq", "bits": 4, "group_size": 64,
                                            "extra_config": {Q[:-1]: {"bits": 8, "group_size": 128}}}, gptq(8), "u8-g128", None),
    ("GPTQ and fp8 in one file", {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:.*attn.*": {}}},
     fp8(".weight_scale_inv", [1, 1]), "fp8-e4m3-tensor", "fp8"),
    ("fp8 and GPTQ in one file", DYNAMIC, gptq(group=64, asym=True), "u4-g64-asym", "GPTQ"),
]


@pytest.mark.parametrize("what,quant,pack,scheme,note", KINDS, ids=[k[0] for k in KINDS])
def test_the_weights_are_those_that_the_words_say(llmq, tmp_path, what, quant, pack, scheme, note):
    a, b = two_folders(tmp_path, "llama-128", quant, pack, lambda name: name == Q + "weight")
    doc = llmq.json("inspect", a)
    mine = {t["name"]: t for t in doc["tensors"]}
    assert mine[Q + "weight"]["scheme"] == scheme and mine[Q + "weight"]["shape"] == list(NK)
    assert (note is None) == (doc["notes"] == []) and (note or "") in " ".join(doc["notes"]), doc["notes"]
    assert len(doc["notes"]) <= 1  # said once
    llmq("convert", a, "-o", tmp_path / "dense", "--to", "safetensors", "--dtype", "bf16")
    got, want = read_st(tmp_path / "dense/model.safetensors"), read_st(b / "model.safetensors")
    assert tensor(*got, Q + "weight") == tensor(*want, Q + "weight")
    llmq("logits", a, "--ids", "1,2,3", "-o", tmp_path / "l")


# ---- configs that differ in words alone ----
def groups(c):
    return c["quantization_config"]["config_groups"]


def attention_first(c):
    g = groups(c)
    rest = dict(g)
    g.clear()
    g["attention"] = {"targets": ["LlamaAttention"], "weights": None, "input_activations": {
        "num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}}
    g.update(rest)


def attention_last(c):
    attention_first(c)
    g = groups(c)
    g["attention"] = g.pop("attention")


def overlapped(weights, format):
    """A group in front whose pattern names each linear too, as the files of llm-compressor and Unsloth have it."""
    def change(c):
        q, g = c["quantization_config"], groups(c)
        own = g.pop("group_0")
        g["group_0"] = {"targets": ["re:.*layers.*"], "weights": weights, "format": format}
        g["group_1"] = {**own, "targets": [r"re:.*layers\.(0|1)\..*"], "format": q["format"]}
        q["format"] = "mixed-precision"
    return change


INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}


def older(within):
    """llm-compressor's config of 2024: another key, and perhaps another object in it."""
    def change(c):
        q = c.pop("quantization_config")
        del q["quant_method"]
        c["compression_config"] = {"quantization_config": q, "sparsity_config": {"format": "dense"}} if within else q
    return change


WORDS = [
    ("frozen", "ct-w8a8-int8", qc(quantization_status="frozen"), None),
    ("a group for attention in front", "ct-fp8-dynamic", attention_first, "attention has no weights"),
    ("a group for attention behind", "ct-fp8-dynamic", attention_last, "attention has no weights"),
    ("nvfp4 for all, fp8 stored", "ct-fp8-dynamic", overlapped(FP4, "nvfp4-pack-quantized"), None),
    ("int8 for all, fp8 stored", "ct-fp8-dynamic", overlapped(INT8, "int-quantized"), None),
    ("fp8 for all, int8 stored", "ct-w8a8-int8", overlapped(FP8, "float-quantized"), None),
    ("fp8 for all, nvfp4 stored", "ct-nvfp4a16", overlapped(FP8, "float-quantized"), None),
    ("nvfp4 for all, words stored", "ct-w8a16", overlapped(FP4, "nvfp4-pack-quantized"), None),
    ("4 bits for all, 8 stored", "ct-w8a16", overlapped({**INT4, "group_size": 128}, "pack-quantized"), None),
    ("groups of 32 for all, of 64 stored", "ct-rtn-w4a16-asym-g64", overlapped({**INT4, "group_size": 32}, "pack-quantized"), None),
    ("compression_config", "ct-w8a8-int8", older(False), None),
    ("compression_config with a quantization_config", "ct-w8a8-int8", older(True), None),
    ("compressed-tensors that does not say so", "ct-w8a8-int8", lambda c: c["quantization_config"].pop("quant_method"), None),
    ("ModelOpt that does not say so", "ct-fp8-dynamic", lambda c: c.update(
        quantization_config={"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN", "producer": {"name": "modelopt"}}), None),
    ("AutoRound's name for GPTQ", "gptq-4bit-g64-asym", lambda c: c.update(quantization_config={
        "quant_method": "auto-round", "bits": 4, "group_size": 64, "sym": False, "packing_format": "auto_round:auto_gptq"}),
     None),
    ("AutoRound's name for AWQ", "awq-gemm-g128", lambda c: c.update(quantization_config={
        "quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": False, "packing_format": "auto_round:auto_awq"}),
     None),
]


@pytest.mark.parametrize("what,name,change,note", WORDS, ids=[w[0] for w in WORDS])
def test_another_config_gives_the_same_weights(llmq, tmp_path, what, name, change, note):
    a, b = assemble(name, tmp_path / "a"), assemble(name, tmp_path / "b", config=change)
    one, other = llmq.json("inspect", a), llmq.json("inspect", b)
    assert one["tensors"] == other["tensors"]
    assert (note is None) == (other["notes"] == []) and (note or "") in " ".join(other["notes"])
    for folder in (a, b):
        llmq("logits", folder, "--ids", "1,2,3", "-o", tmp_path / (folder.name + ".l"))
    assert (tmp_path / "a.l").read_bytes() == (tmp_path / "b.l").read_bytes()
    llmq("convert", b, "-o", tmp_path / "out", "--to", "safetensors")
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert "quantization_config" not in written and "compression_config" not in written


def test_autorounds_own_file_serves_where_config_json_is_silent(llmq, tmp_path):
    kept = {}
    a = assemble("gptq-4bit-g64-asym", tmp_path / "a")
    b = assemble("gptq-4bit-g64-asym", tmp_path / "b", config=lambda c: kept.update(c.pop("quantization_config")))
    (b / "quantization_config.json").write_text(json.dumps({"quant_method": "auto-round", "sym": False, **{
        k: kept[k] for k in ("bits", "group_size")}}))
    assert logits(llmq, a, tmp_path) == logits(llmq, b, tmp_path)


@pytest.mark.parametrize("inputs", [{"dynamic": False, "strategy": "tensor"}, {"dynamic": True, "strategy": "token"}], ids=str)
def test_asymmetric_inputs_are_not_rounded(llmq, tmp_path, inputs):
    """As int8 weights without rounded inputs, with a note."""
    def parts(t):
        for module in [n[:-len(".weight_scale")] for n in t if n.endswith(".weight_scale")]:
            if not inputs["dynamic"]:
                t[module + ".input_scale"] = ("F32", [1], f32([.05]))
                t[module + ".input_zero_point"] = ("I8", [1], b"\x07")

    def config(acts):
        return lambda c: groups(c)["group_0"].update(input_activations=acts)
    a = assemble("ct-w8a8-int8", tmp_path / "a", parts, config({"num_bits": 8, "type": "int", "symmetric": False, **inputs}))
    b = assemble("ct-w8a8-int8", tmp_path / "b", config=config(None))
    assert logits(llmq, a, tmp_path) == logits(llmq, b, tmp_path)
    notes = llmq.json("inspect", a)["notes"]
    assert len(notes) == 1 and notes[0].startswith("asymmetric 8-bit inputs: weights are as stored"), notes


# ---- a last group that does not fill ----
def test_groups_of_several_sizes_become_those_of_awq(llmq, tmp_path):
    """AWQ holds one size: a group of 128 is two of 64 with the same scale."""
    width = ROOT / "tests/golden/arch/llama-128"
    llmq("quantize", width, "-o", tmp_path / "q.llmq", "--method", "rtn", "--group-size", "128", "--override",
         "down_proj=u4-g64-asym", "--asym")
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "a", "--to", "awq")  # its head of u8-g32 is no hindrance
    llmq("quantize", width, "-o", tmp_path / "q.llmq", "--method", "rtn", "--group-size", "128", "--override",
         "down_proj=u4-g64-asym", "--asym", *KEEP)
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "awq", "--to", "awq")
    c = json.loads((tmp_path / "awq/config.json").read_text())["quantization_config"]
    assert c["group_size"] == 64
    assert {t["scheme"] for t in llmq.json("inspect", tmp_path / "awq")["tensors"] if "proj" in t["name"]} == {"u4-g64-asym"}
    assert logits(llmq, tmp_path / "awq", tmp_path) == logits(llmq, tmp_path / "q.llmq", tmp_path)


# ---- heads ----
HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"


def plain(tmp_path, folder="m", arch="llama-128", tensors=lambda t: None, **config):
    """A golden model with its tensors and config changed."""
    h, d = read_st(ROOT / "tests/golden/arch" / arch / "model.safetensors")
    t = {k: (v["dtype"], v["shape"], tensor(h, d, k)) for k, v in h.items() if k != "__metadata__"}
    tensors(t)
    out = tmp_path / folder
    out.mkdir()
    write_st(out / "model.safetensors", t)
    c = json.loads((ROOT / "tests/golden/arch" / arch / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**c, **config}))
    return out


def logits(llmq, folder, tmp_path):
    llmq("logits", folder, "--ids", "1,2,3,4,5", "-o", tmp_path / "l")
    return (tmp_path / "l").read_bytes()


def test_a_stored_head_beats_the_word_tied(llmq, tmp_path):
    a = plain(tmp_path, "a")  # llama-128 has a head of its own
    b = plain(tmp_path, "b", tie_word_embeddings=True)
    assert logits(llmq, a, tmp_path) == logits(llmq, b, tmp_path)
    assert "the stored head is used" in llmq.json("inspect", b)["notes"][0]
    llmq("convert", b, "-o", tmp_path / "out", "--to", "safetensors")
    assert json.loads((tmp_path / "out/config.json").read_text())["tie_word_embeddings"] is False
    assert llmq.json("inspect", tmp_path / "out")["notes"] == []


def test_a_stored_copy_of_the_embedding_is_no_head_of_its_own(llmq, tmp_path):
    a = plain(tmp_path, "a", tensors=lambda t: t.update({HEAD: t[EMBED]}), tie_word_embeddings=True)
    b = plain(tmp_path, "b", tensors=lambda t: t.pop(HEAD), tie_word_embeddings=True)
    assert logits(llmq, a, tmp_path) == logits(llmq, b, tmp_path)
    assert llmq.json("inspect", a)["notes"] == []


def test_a_missing_head_is_the_embedding(llmq, tmp_path):
    a = plain(tmp_path, "a", tensors=lambda t: t.pop(HEAD))
    b = plain(tmp_path, "b", tensors=lambda t: t.pop(HEAD), tie_word_embeddings=True)
    assert logits(llmq, a, tmp_path) == logits(llmq, b, tmp_path)
    assert "the embedding is used as one" in llmq.json("inspect", a)["notes"][0]


def test_a_quantized_head_of_a_tied_config_is_used(llmq, tmp_path):
    a, b = two_folders(tmp_path, "llama-128", {"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}, gptq(),
                       lambda name: name == HEAD)
    c = json.loads((a / "config.json").read_text())
    (a / "config.json").write_text(json.dumps({**c, "tie_word_embeddings": True}))
    assert "the stored head is used" in llmq.json("inspect", a)["notes"][0]
    _, x = floats(llmq, a, tmp_path)
    _, y = floats(llmq, b, tmp_path)
    assert max(abs(p - q) for p, q in zip(x, y)) <= 1e-5 * max(map(abs, y))


def floats(llmq, folder, tmp_path):
    logits(llmq, folder, tmp_path)
    h, d = read_st(tmp_path / "l")
    b = tensor(h, d, "logits")
    return h["logits"]["shape"], struct.unpack(f"<{len(b) // 4}f", b)


# ---- files ----
def parts_of(tmp_path, names):
    """llama-128 in files of these names, without an index."""
    h, d = read_st(ROOT / "tests/golden/arch/llama-128/model.safetensors")
    t = {k: (v["dtype"], v["shape"], tensor(h, d, k)) for k, v in h.items() if k != "__metadata__"}
    (tmp_path / "m").mkdir()
    for i, name in enumerate(names):
        write_st(tmp_path / "m" / name, {k: v for j, (k, v) in enumerate(t.items()) if j % len(names) == i})
    (tmp_path / "m/config.json").write_text((ROOT / "tests/golden/arch/llama-128/config.json").read_text())
    return tmp_path / "m"


@pytest.mark.parametrize("names", [["model-00001-of-00001.safetensors"], ["weights.safetensors"],
                                   [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)],
                                   ["gptq_model-4bit-128g.safetensors"]], ids=str)
def test_files_without_an_index_are_found(llmq, tmp_path, names):
    got = logits(llmq, parts_of(tmp_path, names), tmp_path)
    assert got == logits(llmq, ROOT / "tests/golden/arch/llama-128", tmp_path)


@pytest.mark.parametrize("names", [["model-00001-of-00001.safetensors"], ["m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"]], ids=str)
def test_an_index_of_other_files_is_passed_by(llmq, tmp_path, names):
    """Left by who rounded or merged the parts that it names."""
    folder = parts_of(tmp_path, names)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {
        "model.embed_tokens.weight": "model-00001-of-00030.safetensors", "lm_head.weight": "model-00030-of-00030.safetensors"}}))
    assert logits(llmq, folder, tmp_path) == logits(llmq, ROOT / "tests/golden/arch/llama-128", tmp_path)
    assert llmq.json("inspect", folder)["notes"] == ["model.safetensors.index.json names none of the files that are here: it is not read"]
    (folder / names[-1]).unlink()
    assert "of 2" in refused(llmq, tmp_path, "logits", folder, "--ids", "1,2", "-o", tmp_path / "l") or len(names) == 1


@pytest.mark.parametrize("names,says", [
    (["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"], "expected part 2 of 3"),
    (["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"], "expected part 3 of 3"),
    (["model-00002-of-00002.safetensors"], "expected part 1 of 2"),
    (["a.safetensors", "b.safetensors"], "expected model.safetensors.index.json, or parts of one model")], ids=str)
def test_files_that_are_not_one_model_are_refused(llmq, tmp_path, names, says):
    line = refused(llmq, tmp_path, "logits", parts_of(tmp_path, names), "--ids", "1,2", "-o", tmp_path / "l")
    assert says in line, line


# ---- JSON as Python writes it ----
def rewrite(tmp_path, more):
    folder = plain(tmp_path)
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.rstrip()[:-1] + more + "}")
    return folder


def test_of_a_key_twice_the_last_counts(llmq, tmp_path):
    folder = rewrite(tmp_path, ', "num_hidden_layers": 77, "x": {"a": 1, "a": 2}, "num_hidden_layers": 2')
    assert logits(llmq, folder, tmp_path) == logits(llmq, ROOT / "tests/golden/arch/llama-128", tmp_path)
    assert llmq.json("inspect", folder)["notes"] == ["config.json: the key 'num_hidden_layers' is there twice: the last counts"]
    llmq("convert", folder, "-o", tmp_path / "out", "--to", "safetensors", "--dtype", "f32")
    assert json.loads((tmp_path / "out/config.json").read_text())["num_hidden_layers"] == 2


def test_infinity_where_it_does_not_matter_is_read(llmq, tmp_path):
    folder = rewrite(tmp_path, ', "time_limit": [0.0, Infinity, -Infinity], "x": NaN, "y": "Infinity, NaN"')
    assert logits(llmq, folder, tmp_path) == logits(llmq, ROOT / "tests/golden/arch/llama-128", tmp_path)


@pytest.mark.parametrize("more,says", [(', "rope_theta": Infinity', "rope_theta: expected a number"),
                                       (', "rms_norm_eps": NaN', "rms_norm_eps: expected a number"),
                                       (', "rope_theta": Infinit', "JSON: expected a value")])
def test_infinity_where_it_matters_is_refused_by_its_key(llmq, tmp_path, more, says):
    line = refused(llmq, tmp_path, "logits", rewrite(tmp_path, more), "--ids", "1,2", "-o", tmp_path / "l")
    assert says in line, line


# ---- experts in one tensor ----
def stack(arch, place):
    """transformers 5: experts of each layer in two tensors."""
    def change(t):
        names = sorted({n.split(".experts.")[0] for n in t if ".experts." in n})
        gate, up, down = {"mixtral-8x": ("w1", "w3", "w2")}.get(arch, ("gate_proj", "up_proj", "down_proj"))
        for base in names:
            n = len([k for k in t if k.startswith(base + ".experts.") and k.endswith(f".{down}.weight")])
            one = [[t.pop(f"{base}.experts.{e}.{w}.weight") for w in (gate, up, down)] for e in range(n)]
            d, (F, H) = one[0][0][0], one[0][0][1]
            at = base if not place else base.rsplit(".", 1)[0] + "." + place
            t[at + ".experts.gate_up_proj"] = (d, [n, 2 * F, H], b"".join(g[2] + u[2] for g, u, _ in one))
            t[at + ".experts.down_proj"] = (d, [n, H, F], b"".join(w[2] for _, _, w in one))
    return change


MOE = [p.parent.name for p in sorted((ROOT / "tests/golden/arch").glob("*/config.json"))
       if any(w in p.read_text() for w in ("Qwen3MoeForCausalLM", "Qwen2MoeForCausalLM", "MixtralForCausalLM",
                                           "DeepseekV3ForCausalLM"))]


@pytest.mark.parametrize("arch", MOE)
def test_stacked_experts_are_the_experts(llmq, tmp_path, arch):
    words_ = "mixtral-8x" if "mixtral" in arch else arch
    folder = plain(tmp_path, arch=arch, tensors=stack(words_, "mlp" if "mixtral" in arch else None))
    assert logits(llmq, folder, tmp_path) == logits(llmq, ROOT / "tests/golden/arch" / arch, tmp_path)


def test_stacked_experts_of_fp8_take_their_scales_along(llmq, tmp_path):
    """gate_up_proj_scale_inv beside gate_up_proj, as transformers 5 keeps them."""
    def pack(scaled):
        def change(t):
            stack("", None)(t)
            for name in [n for n in t if n.endswith("_up_proj") or n.endswith("experts.down_proj")]:
                _, (E, N, K), b = t[name]
                codes = bytes(0x20 + i % 64 for i in range(E * N * K))
                scales = [2.0**-(8 + i % 3) for i in range(2 * E)]
                t[name] = ("F8_E4M3", [E, N, K], codes)
                t[name + "_scale_inv"] = ("F32", [E, 2, 1], f32(scales))
                if not scaled:
                    del t[name + "_scale_inv"]
                    values = [E4M3[c] * scales[i // (N * K // 2)] for i, c in enumerate(codes)]
                    t[name] = ("BF16", [E, N, K], bf16(values))
        return change
    arch = next(a for a in MOE if a.startswith("qwen3"))
    a = plain(tmp_path, "a", arch, pack(True), quantization_config=DYNAMIC)
    b = plain(tmp_path, "b", arch, pack(False))
    llmq("convert", a, "-o", tmp_path / "out", "--to", "safetensors", "--dtype", "bf16")
    got, want = read_st(tmp_path / "out/model.safetensors"), None
    llmq("convert", b, "-o", tmp_path / "plain", "--to", "safetensors", "--dtype", "bf16")
    want = read_st(tmp_path / "plain/model.safetensors")
    names = [n for n in want[0] if ".experts." in n]
    assert names and all(tensor(*got, n) == tensor(*want, n) for n in names)


# ---- refusals name the cause ----
CAUSES = [
    ("fp8 without a config", "ct-fp8-dynamic", None, lambda c: c.pop("quantization_config"),
     "stored as f8_e4m3, which no quantization_config explains"),
    ("int8 without a config", "ct-w8a8-int8", None, lambda c: c.pop("quantization_config"),
     "stored as i8, which no quantization_config explains"),
    ("GPTQ without a config", "gptq-4bit-g64-asym", None, lambda c: c.pop("quantization_config"),
     "_proj.qweight, which no quantization_config explains"),
    ("packed without a config", "ct-w8a16", None, lambda c: c.pop("quantization_config"),
     "_proj.weight_packed, which no quantization_config explains"),
    ("2:4 sparse", "ct-fp8-dynamic", None, qc(sparsity_config={"format": "sparse-24-bitmask"}),
     'sparsity_config: format: expected dense, found "sparse-24-bitmask"'),
    ("ModelOpt's inputs that are scaled", "ct-fp8-dynamic",
     lambda t: t.update({Q + "pre_quant_scale": ("F32", [128], bytes(512))}),
     lambda c: c.update(quantization_config=modelopt("FP8")), "inputs that are scaled before a linear are not read"),
    ("ModelOpt's int4", "ct-fp8-dynamic", None, lambda c: c.update(quantization_config=modelopt("W4A16_AWQ")),
     'quant_algo: "W4A16_AWQ" is not read'),
    ("Quark's int8", "ct-fp8-dynamic", None, lambda c: c.update(quantization_config=quark({"dtype": "int8"}, None)),
     'weight: dtype: "int8" is not read'),
    ("rounded while running", "ct-w8a8-int8", lambda t: t.update({Q + "weight": ("BF16", [128, 128], bytes(32768))}),
     qc(quantization_status="frozen"), "rounded while running, not compressed"),
    ("a scale of no shape that is known", "ct-fp8-dynamic", put("weight_scale", shape=[3, 5], data=lambda b: b[:len(b) // 128 * 15]),
     lambda c: c.update(quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]}),
     "expected a scale of all, of each of 128 outputs, or of blocks of [128,128], found shape [3,5]"),
    ("no scale", "ct-fp8-dynamic", drop("weight_scale"), lambda c: c.update(quantization_config=DYNAMIC),
     "q_proj.weight_scale' is missing"),
    ("AutoRound's integers with rounded inputs", "gptq-4bit-g64-asym",
     lambda t: t.update({Q + "act_scales": ("F32", [1], bytes(4))}),
     lambda c: c.update(quantization_config=round_()), "act_scales"),
]


@pytest.mark.parametrize("what,name,change,config,says", CAUSES, ids=[c[0] for c in CAUSES])
def test_a_refusal_names_the_cause(llmq, tmp_path, what, name, change, config, says):
    folder = assemble(name, tmp_path / "m", change, config)
    line = refused(llmq, tmp_path, "logits", folder, "--ids", "1,2", "-o", tmp_path / "o")
    assert says in line, line
