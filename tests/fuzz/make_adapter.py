#!/usr/bin/env python3
"""Write the seeds of fuzz_adapter: small adapters of its three models, in both containers.

usage: make_adapter.py OUT"""
import json
import pathlib
import random
import struct
import sys

out = pathlib.Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
random.seed(5)
QWEN2, PHI3, QWEN3_MOE = range(3)
H = 64  # of all three


def numbers(n, dtype):
    return b"".join(struct.pack({"F32": "<f", "F16": "<e"}[dtype], random.uniform(-1, 1)) for _ in range(n))


def count(shape):
    n = 1
    for x in shape:
        n *= x
    return n


def peft(name, model, tensors, **config):
    """tensors: module and what of it -> shape, dtype."""
    config = json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 2, **config}).encode()
    header, data = {}, b""
    for key, (shape, dtype) in tensors.items():
        b = numbers(count(shape), dtype)
        header["base_model.model.model.layers." + key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(b)]}
        data += b
    text = json.dumps(header).encode()
    (out / name).write_bytes(struct.pack("<BH", model, len(config)) + config + struct.pack("<Q", len(text)) + text + data)


def pair(module, n, k, rank=1, dtype="F16", **more):
    return {f"{module}.lora_A.weight": ([rank, k], dtype), f"{module}.lora_B.weight": ([n, rank], dtype), **more}


peft("lora", QWEN2, {**pair("0.self_attn.q_proj", 64, H), **pair("1.mlp.down_proj", H, 160)})
peft("dora", QWEN2, {**pair("0.self_attn.v_proj", 32, H, dtype="F32"), "0.self_attn.v_proj.lora_magnitude_vector": ([32], "F32")}, use_dora=True)
peft("patterns", QWEN2, {**pair("0.mlp.up_proj", 160, H, rank=2), **pair("1.mlp.up_proj", 160, H)}, use_rslora=True,
     rank_pattern={"0.mlp.up_proj": 2}, alpha_pattern={"^model.layers.1.mlp.up_proj": 4})
peft("fused", PHI3, {**pair("0.self_attn.qkv_proj", 128, H), **pair("0.mlp.gate_up_proj", 320, H)})
peft("expert", QWEN3_MOE, pair("0.mlp.experts.1.down_proj", H, 48))
peft("refused", QWEN2, pair("0.self_attn.q_proj", 64, H), modules_to_save=["lm_head"])


def s(x):
    return struct.pack("<Q", len(x)) + x.encode()


def gguf(name, model, arch, tensors, alpha=2.0):
    pairs = [s(k) + struct.pack("<I", 8) + s(v) for k, v in
             {"general.architecture": arch, "general.type": "adapter", "adapter.type": "lora"}.items()]
    pairs.append(s("adapter.lora.alpha") + struct.pack("<If", 6, alpha))
    infos, data = b"", b""
    for key, shape in tensors.items():
        data += b"\0" * (-len(data) % 32)
        infos += s(key) + struct.pack("<I", 2) + struct.pack("<QQ", *reversed(shape)) + struct.pack("<IQ", 1, len(data))
        data += numbers(count(shape), "F16")
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs) + infos
    (out / name).write_bytes(struct.pack("<BH", model, 65535) + head + b"\0" * (-len(head) % 32) + data)


def blk(name, n, k):
    return {f"blk.0.{name}.weight.lora_a": [1, k], f"blk.0.{name}.weight.lora_b": [n, 1]}


gguf("gguf", QWEN2, "qwen2", {**blk("attn_q", 64, H), **blk("ffn_down", H, 160)})
gguf("gguf-fused", PHI3, "phi3", blk("attn_qkv", 128, H), alpha=0.0)
