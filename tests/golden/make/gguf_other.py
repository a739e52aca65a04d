"""Tiny random GGUF files of architectures that are read alone, as which another computes, with llama.cpp's answers.

usage: gguf_other.py LLAMA_CPP SERVER OUT [NAME...]    (its source tree, for gguf-py; its llama-server)

Writes OUT/NAME.gguf (F32, a vocabulary of 32 words) and OUT/logprobs.json: of each the logarithms of the probabilities of
all words after IDS. NAME: general.architecture.
"""
import json
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np

sys.path.insert(0, f"{sys.argv[1]}/gguf-py")
import gguf  # noqa: E402

V, H, HEADS, KV, D, FF, LAYERS = 32, 16, 4, 2, 4, 24, 2
IDS = [5, 9, 30, 3, 21, 4, 17, 8, 8, 26, 11, 29]
PORT = 8093
QKV = {"attn_q": (H, H), "attn_k": (KV * D, H), "attn_v": (KV * D, H), "attn_output": (H, H)}
GATED = {"ffn_gate": (FF, H), "ffn_up": (FF, H), "ffn_down": (H, FF)}
NORMS = {"attn_norm": (H,), "ffn_norm": (H,)}
EXPERTS = {"ffn_gate_inp": (4, H), "ffn_gate_exps": (4, 8, H), "ffn_up_exps": (4, 8, H), "ffn_down_exps": (4, H, 8)}
SHARED = {"ffn_gate_shexp": (16, H), "ffn_up_shexp": (16, H), "ffn_down_shexp": (H, 16)}
ONE = {"ffn_gate_shexp": (8, H), "ffn_up_shexp": (8, H), "ffn_down_shexp": (H, 8)}
ROTATED = {"rope.freq_base": 10000.0, "rope.dimension_count": D}
MOE = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 8, "expert_shared_count": 2,
       "leading_dense_block_count": 1, "expert_weights_scale": 1.5}
# name: tensors of the first layer, of the others, which have biases, keys
ARCHS = {
    "xverse": (QKV | GATED | NORMS, None, (), ROTATED),
    "orion": (QKV | GATED | NORMS, None, ("attn_norm", "ffn_norm", "output_norm"), ROTATED),
    "codeshell": ({"attn_qkv": (H + 2 * KV * D, H), "attn_output": (H, H), "ffn_up": (FF, H), "ffn_down": (H, FF)} | NORMS, None,
                  ("attn_norm", "ffn_norm", "output_norm", "attn_qkv", "attn_output", "ffn_up", "ffn_down"),
                  ROTATED | {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}),
    "refact": (QKV | {"attn_k": (D, H), "attn_v": (D, H)} | GATED | NORMS, None, (), {"attention.head_count_kv": 1}),
    "pangu-embedded": (QKV | GATED | NORMS, None, ("attn_q", "attn_k", "attn_v", "attn_output"), ROTATED),
    "deepseek": (QKV | GATED | NORMS, QKV | EXPERTS | SHARED | NORMS, (), ROTATED | MOE),
    "bailingmoe2": ({"attn_qkv": (H + 2 * KV * D, H), "attn_output": (H, H), "attn_q_norm": (D,), "attn_k_norm": (D,)} | GATED | NORMS,
                    {"attn_qkv": (H + 2 * KV * D, H), "attn_output": (H, H), "attn_q_norm": (D,), "attn_k_norm": (D,),
                     "exp_probs_b": (4,)} | EXPERTS | ONE | NORMS, (),
                    ROTATED | MOE | {"rope.dimension_count": 2, "expert_gating_func": 2, "expert_weights_norm": True,
                                     "expert_group_count": 2, "expert_group_used_count": 1, "expert_shared_count": 1,
                                     "expert_shared_feed_forward_length": 8}),
    "maincoder": (QKV | {"attn_q_norm": (D,), "attn_k_norm": (D,)} | GATED | NORMS, None, (), ROTATED),
}
LAYER_NORM = ("orion", "codeshell")


def put(w, key, v):
    of = {bool: w.add_bool, int: w.add_uint32, float: w.add_float32, str: w.add_string}
    of[type(v)](key, v)


def write(path, name):
    first, others, biased, keys = ARCHS[name]
    g, w = np.random.default_rng(sum(name.encode())), gguf.GGUFWriter(path, name)
    eps = "epsilon" if name in LAYER_NORM else "rms_epsilon"
    numbers = {"block_count": LAYERS, "context_length": 128, "embedding_length": H, "feed_forward_length": FF, "vocab_size": V,
               "attention.head_count": HEADS, "attention.head_count_kv": KV, f"attention.layer_norm_{eps}": 1e-5} | keys
    for k, v in numbers.items():
        put(w, f"{name}.{k}", v)
    w.add_tokenizer_model("llama")
    w.add_token_list(["<unk>", "<s>", "</s>"] + [f"t{i}" for i in range(3, V)])
    w.add_token_scores([0.0] * V)
    w.add_token_types([2, 3, 3] + [1] * (V - 3))
    shapes = {"token_embd": (V, H), "output_norm": (H,), "output": (V, H)}
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.{n}": s for n, s in (others if i and others else first).items()}
    for n, s in shapes.items():
        norm, corr = n.endswith("_norm"), n.endswith("exp_probs_b")
        x = g.normal(size=s) * (0.2 if norm or corr else 1.2 / s[-1] ** 0.5) + norm
        w.add_tensor(n + (".bias" if corr else ".weight"), x.astype(np.float32))
        if n.split(".")[-1] in biased:
            w.add_tensor(n + ".bias", (0.2 * g.normal(size=s[0])).astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def ask(path):
    p = subprocess.Popen([sys.argv[2], "-m", path, "--port", str(PORT), "-t", "1", "-c", "128", "-ctk", "f32", "-ctv", "f32", "-fa", "off",
                          "--no-warmup"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    body = json.dumps({"prompt": IDS, "n_predict": 1, "n_probs": V, "temperature": 1.0, "samplers": []}).encode()
    try:
        for _ in range(100):
            try:
                r = urllib.request.Request(f"http://127.0.0.1:{PORT}/completion", body, {"Content-Type": "application/json"})
                top = json.load(urllib.request.urlopen(r))["completion_probabilities"][0]["top_logprobs"]
                return [round(t["logprob"], 6) for t in sorted(top, key=lambda t: t["id"])]
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        raise SystemExit(f"{path}: no answer")
    finally:
        p.terminate()
        p.wait()


out = pathlib.Path(sys.argv[3])
file = out / "logprobs.json"
answers = json.loads(file.read_text()) if file.exists() else {"ids": IDS}
for name in sys.argv[4:] or ARCHS:
    write(str(out / f"{name}.gguf"), name)
    answers[name] = ask(str(out / f"{name}.gguf"))
file.write_text(json.dumps(answers, indent=0) + "\n")
