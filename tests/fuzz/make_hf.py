#!/usr/bin/env python3
"""Write the seeds of fuzz_hf: one small weight in every published layout that is read.

usage: make_hf.py OUT"""
import json
import pathlib
import random
import struct
import sys

out = pathlib.Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
random.seed(3)
SIZE = {"I32": 4, "F16": 2, "F32": 4, "BF16": 2, "U8": 1, "I8": 1, "I64": 8, "F8_E4M3": 1}


def count(shape):
    n = 1
    for x in shape:
        n *= x
    return n


def seed(name, config, tensors):
    header, data = {}, b""
    for key, (dtype, shape, *given) in sorted(tensors.items()):
        n = count(shape) * SIZE[dtype]
        b = given[0] if given else bytes(random.randrange(256) for _ in range(n))
        assert len(b) == n, (name, key, len(b), n)
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + n]}
        data += b
    text, quant = json.dumps(header).encode(), json.dumps(config).encode()
    (out / name).write_bytes(struct.pack("<H", len(quant)) + quant + struct.pack("<Q", len(text)) + text + data)


def gptq(b, ng, **more):
    return {"m.qweight": ("I32", [b, 32]), "m.qzeros": ("I32", [ng, b]), "m.scales": ("F16", [ng, 32]), **more}


order = struct.pack("<32i", *random.sample([0] * 16 + [1] * 16, 32))
for b in (2, 3, 4, 8):
    seed(f"gptq-{b}", {"quant_method": "gptq", "bits": b, "group_size": 16, "sym": b == 4}, gptq(b, 2))
seed("gptq-v2-order", {"quant_method": "gptq", "bits": 4, "group_size": 16, "checkpoint_format": "gptq_v2"},
     gptq(4, 2, **{"m.g_idx": ("I32", [32], order)}))
seed("gptq-planar", {"quant_method": "gptq", "bits": 5, "group_size": 32, "format": "gptq_p"}, gptq(5, 1))
seed("gptq-dynamic", {"quant_method": "gptq", "bits": 8, "group_size": 16, "dynamic": {"+:m.*": {"bits": 4}}}, gptq(4, 2))
seed("awq-gemm", {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm", "zero_point": True},
     {"m.qweight": ("I32", [32, 2]), "m.qzeros": ("I32", [2, 2]), "m.scales": ("F16", [2, 16])})
seed("awq-gemv", {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemv"},
     {"m.qweight": ("I32", [8, 4]), "m.qzeros": ("I32", [8, 1]), "m.scales": ("F16", [8, 8])})


def bnb(kind, double):
    state = {"quant_type": kind, "blocksize": 64, "dtype": "float32", "shape": [8, 16]}
    if double:
        state.update(nested_blocksize=256, nested_dtype="float32", nested_offset=0.5)
    text = json.dumps(state).encode()
    t = {"m.weight": ("U8", [64, 1]), "m.weight.absmax": ("U8" if double else "F32", [2]),
         "m.weight.quant_map": ("F32", [16]),
         f"m.weight.quant_state.bitsandbytes__{kind}": ("U8", [len(text)], text)}
    if double:
        t.update({"m.weight.nested_absmax": ("F32", [1]), "m.weight.nested_quant_map": ("F32", [256])})
    return t


for kind, double in (("nf4", False), ("fp4", False), ("nf4", True)):
    seed(f"bnb-{kind}{double:d}", {"quant_method": "bitsandbytes"}, bnb(kind, double))
seed("bnb-int8", {"quant_method": "bitsandbytes"},
     {"m.weight": ("I8", [4, 8]), "m.SCB": ("F32", [4]), "m.weight_format": ("U8", [], b"\0")})


def ct(fmt, weights, inputs=None):
    return {"quant_method": "compressed-tensors", "format": fmt, "config_groups": {"g": {
        "targets": ["Linear", "re:m.*"], "weights": weights, "input_activations": inputs}}}


shape = ("I64", [2], struct.pack("<qq", 8, 32))
for b, w in ((4, 4), (3, 3), (3, 4), (8, 8), (2, 2)):
    seed(f"ct-pack-{b}-{w}", ct("pack-quantized", {"num_bits": b, "group_size": 16, "strategy": "group"}),
         {"m.weight_packed": ("I32", [8, w]), "m.weight_scale": ("BF16", [8, 2]), "m.weight_shape": shape})
seed("ct-pack-asym", ct("pack-quantized", {"num_bits": 4, "group_size": 16, "strategy": "group", "symmetric": False}),
     {"m.weight_packed": ("I32", [8, 4]), "m.weight_scale": ("F16", [8, 2]), "m.weight_shape": shape,
      "m.weight_zero_point": ("I32", [1, 2]), "m.weight_g_idx": ("I32", [32], order)})
seed("ct-int8", ct("int-quantized", {"num_bits": 8, "strategy": "channel"},
                   {"num_bits": 8, "strategy": "token", "dynamic": True}),
     {"m.weight": ("I8", [4, 8]), "m.weight_scale": ("BF16", [4, 1])})
seed("ct-int8-group", ct("int-quantized", {"num_bits": 8, "strategy": "group", "group_size": 4, "symmetric": False}),
     {"m.weight": ("I8", [4, 8]), "m.weight_scale": ("F32", [4, 2]), "m.weight_zero_point": ("I8", [4, 2])})
seed("ct-fp8-static", ct("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"},
                         {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}),
     {"m.weight": ("F8_E4M3", [4, 8]), "m.weight_scale": ("BF16", [1]),
      "m.input_scale": ("F32", [1], struct.pack("<f", 0.5))})
seed("ct-fp8-block", ct("float-quantized", {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [2, 4]}),
     {"m.weight": ("F8_E4M3", [3, 9]), "m.weight_scale": ("F32", [2, 3])})
seed("ct-nvfp4", ct("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}),
     {"m.weight_packed": ("U8", [4, 16]), "m.weight_scale": ("F8_E4M3", [4, 2]), "m.weight_global_scale": ("F32", [1])})
seed("ct-mxfp4", ct("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}),
     {"m.weight_packed": ("U8", [4, 16]), "m.weight_scale": ("U8", [4, 1])})
seed("fp8-block", {"quant_method": "fp8", "weight_block_size": [2, 4], "activation_scheme": "dynamic"},
     {"m.weight": ("F8_E4M3", [3, 9]), "m.weight_scale_inv": ("F32", [2, 3])})
seed("fp8-static", {"quant_method": "fp8", "activation_scheme": "static"},
     {"m.weight": ("F8_E4M3", [3, 9]), "m.weight_scale": ("BF16", []), "m.input_scale": ("F32", [1], struct.pack("<f", 0.5))})
seed("mxfp4", {"quant_method": "mxfp4"}, {"m_blocks": ("U8", [2, 3, 1, 16]), "m_scales": ("U8", [2, 3, 1])})
