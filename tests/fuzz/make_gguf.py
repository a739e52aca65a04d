#!/usr/bin/env python3
"""Write the seeds of fuzz_gguf: a tiny llama whose tensors have every type that is read.

usage: make_gguf.py OUT"""
import pathlib
import random
import struct
import sys

random.seed(4)
U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5


def s(x):
    x = x if isinstance(x, bytes) else x.encode()
    return struct.pack("<Q", len(x)) + x


def kv(key, kind, v):
    form = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}
    if isinstance(v, list):
        body = struct.pack("<IQ", kind, len(v)) + b"".join(s(x) if kind == STRING else struct.pack(form[kind], x) for x in v)
        return s(key) + struct.pack("<I", ARRAY) + body
    return s(key) + struct.pack("<I", kind) + (s(v) if kind == STRING else struct.pack(form[kind], v))


TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "BF16": (30, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20),
         "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84),
         "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210)}


def gguf(pairs, tensors):
    infos, data = b"", b""
    for name, kind, shape in tensors:
        number, per, size = TYPES[kind]
        n = size // per if per == 1 else size
        count = 1
        for d in shape:
            count *= d
        data += b"\0" * (-len(data) % 32)
        infos += s(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", d) for d in shape)
        infos += struct.pack("<IQ", number, len(data))
        one = struct.pack("<f", 1)
        data += one * count if name == "rope_freqs.weight" else bytes(random.randrange(128) for _ in range(count // per * n))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs) + infos
    return head + b"\0" * (-len(head) % 32) + data


def model(arch, K, kinds, extra=(), bias=False, experts=0):
    tokens = ["<s>", "</s>", "a", "b", "ab", "\u0120"]
    pairs = [kv("general.architecture", STRING, arch), kv("tokenizer.ggml.model", STRING, "gpt2"),
             kv("tokenizer.ggml.pre", STRING, "llama-bpe"), kv("tokenizer.ggml.tokens", STRING, tokens),
             kv("tokenizer.ggml.token_type", I32, [3, 3, 1, 1, 1, 1]), kv("tokenizer.ggml.merges", STRING, ["a b"]),
             kv("tokenizer.ggml.bos_token_id", U32, 0), kv("tokenizer.ggml.eos_token_id", U32, 1),
             kv("tokenizer.ggml.add_eos_token", BOOL, True), kv("tokenizer.chat_template", STRING, "{{ bos_token }}"),
             *[kv(f"{arch}.{k}", U32, v) for k, v in {
                 "block_count": 1, "context_length": 64, "embedding_length": K, "feed_forward_length": K,
                 "attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": 8}.items()],
             kv(f"{arch}.attention.layer_norm_rms_epsilon", F32, 1e-5), kv(f"{arch}.rope.freq_base", F32, 1e4), *extra]
    kind = iter(kinds * 8)
    tensors = [("token_embd.weight", next(kind), [K, 6]), ("output_norm.weight", "F32", [K]),
               ("blk.0.attn_norm.weight", "F32", [K]), ("blk.0.ffn_norm.weight", "F32", [K]),
               ("blk.0.attn_q.weight", next(kind), [K, 16]), ("blk.0.attn_k.weight", next(kind), [K, 8]),
               ("blk.0.attn_v.weight", next(kind), [K, 8]), ("blk.0.attn_output.weight", "F16", [16, K])]
    if experts:
        tensors += [("blk.0.ffn_gate_inp.weight", "F32", [K, experts])]
        tensors += [(f"blk.0.ffn_{x}_exps.weight", next(kind), [K, K, experts]) for x in ("gate", "up", "down")]
    if bias:
        tensors += [("blk.0.attn_q.bias", "F32", [16]), ("rope_freqs.weight", "F32", [4])]
    return gguf(pairs, tensors)


out = pathlib.Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
for name, data in {
    "blocks": model("llama", 32, ["Q4_0", "Q4_1", "Q5_0", "Q5_1"], bias=True),
    "plain": model("qwen2", 32, ["F32", "F16", "BF16", "Q8_0"]),
    "k": model("llama", 256, ["Q2_K", "Q3_K", "Q4_K", "Q6_K"]),
    "yarn": model("qwen3", 32, ["Q8_0"], [kv("qwen3.rope.scaling.type", STRING, "yarn"), kv("qwen3.rope.scaling.factor", F32, 4.0),
                                          kv("qwen3.rope.scaling.original_context_length", U32, 16)]),
    "experts": model("qwen3moe", 32, ["Q8_0", "Q4_0"], [
        kv("qwen3moe.expert_count", U32, 3), kv("qwen3moe.expert_used_count", U32, 2),
        kv("qwen3moe.expert_feed_forward_length", U32, 32)], experts=3),
    "pieces": model("llama", 32, ["Q4_0"], [
        kv("tokenizer.ggml.scores", F32, [0.0, 0.0, -1.0, -2.0, -3.0, -4.0]),
        kv("tokenizer.ggml.add_space_prefix", BOOL, False)]).replace(s("gpt2"), s("llama"), 1),
}.items():
    (out / name).write_bytes(data)
