"""Every architecture that GGUF and config.json both name: read from llama.cpp's files, and written as it writes them."""
import json
import math
import shutil
import struct

import pytest

from conftest import ROOT
from test_architectures import vocabulary
from test_bad_input import read_st
from test_gguf import BOOL, F32, STRING, U32, convert, pair, write_gguf
from test_gguf_tokenizer import gguf_pairs
from test_ngrams import change
from test_published import read_floats, tensor
from test_writers import gguf_tensors

ARCH = ROOT / "tests/golden/arch"
CONVERTED = sorted((ROOT / "tests/golden/gguf/arch").glob("*.gguf"))


# llama.cpp has one factor for what is three in the golden checkpoint.
CHANGED = {"muse-glimmer": {"text_config": {"post_norm_eps": 1e-8}},  # which is in llama.cpp's code
           "minimax-m1": {"layernorm_linear_attention_alpha": 1.7, "layernorm_mlp_alpha": 1.7},
           "qwen4-exp-ngrams": {"ple_layer_ids": [1]}}  # GGUF has a place for one such layer


def checkpoint(name, tmp_path):
    """The golden checkpoint, with numbers that GGUF can say."""
    if name not in CHANGED:
        return ARCH / name
    if not (tmp_path / name).exists():
        shutil.copytree(ARCH / name, tmp_path / name)
        config = json.loads((ARCH / name / "config.json").read_text())
        for k, v in CHANGED[name].items():
            config[k] = config[k] | v if isinstance(v, dict) else v
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        if name == "qwen4-exp-ngrams":
            change(tmp_path / name, lambda t: [t.pop(k) for k in list(t) if ".2.ple." in k])
    return tmp_path / name


@pytest.mark.parametrize("file", CONVERTED, ids=lambda p: p.stem)
def test_llama_cpps_converter_of_every_architecture(llmq, tmp_path, file):
    """Its file of a golden checkpoint gives the checkpoint's logits: same weights, same sums."""
    ids = (13, 32, 51, 70, 89, 18, 37, 56, 75, 4, 23, 42, 61, 80, 9, 28, 47, 66, 85, 14)
    if file.stem == "mistral4":
        ids = ids[:8]  # its converter does not say how q grows from there on
    ids = ",".join(str(i % vocabulary(file.stem)) for i in ids)
    for m, o in ((file, "a"), (checkpoint(file.stem, tmp_path), "b")):
        llmq("logits", m, "--ids", ids, "-o", tmp_path / o)
    _, a = read_floats(tmp_path / "a", "logits")
    _, b = read_floats(tmp_path / "b", "logits")
    assert max(abs(x - y) for x, y in zip(a, b)) <= 1e-6 * max(map(abs, b))


# Of MLA llama.cpp splits kv_b into two; both forms are read, by it too. Its fixed keys and defaults are not repeated.
MLA = {"attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.key_length_mla",
       "attention.value_length_mla"}
DEFAULTS = {"rope.freq_base", "expert_shared_count",  # of what rotates nothing; where the width of all is said
            "full_attention_interval",  # of layers that follow none
            "moe_every_n_layers",  # which llama.cpp does not read
            "rope.scaling.type", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "tensor_data_layout"}


F32_TENSOR = 0
# Falcon-H1's factors on attention's input: there in all four, here in two, as their product.
ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")


def is_near(name, ours, theirs, size):
    """-exp(A_log) by torch, whose last place is not always the nearest; or two factors one after the other (Falcon-H1)."""
    if not name.endswith((".ssm_a", ".ssm_in.weight")):
        return False
    a, b = (memoryview(x[:size]).cast("f").tolist() for x in (ours, theirs))
    return all(abs(x - y) <= 2.4e-7 * abs(x) for x, y in zip(a, b))


def is_each(one, all):
    """A number, and the same one for each layer (Step 3.5's KV heads)."""
    return len(one) == 4 and len(all) > 4 and all == one * (len(all) // 4)


@pytest.mark.parametrize("file", [f for f in CONVERTED if f.stem not in ("kimi-linear", "internlm2", "baichuan")], ids=lambda p: p.stem)
def test_what_is_written_is_what_llama_cpps_converter_writes(llmq, tmp_path, file):
    out = tmp_path / "m.gguf"
    theirs = gguf_tensors(file)
    BF16 = 30
    dtype = "bf16" if BF16 in {kind for _, kind, _ in theirs.values()} else "f32"
    llmq("convert", checkpoint(file.stem, tmp_path), "-o", out, "--to", "gguf", "--dtype", dtype)
    ours = gguf_tensors(out)
    mla = {n for n in theirs if ".attn_k_b." in n or ".attn_v_b." in n} - ours.keys()
    free = ATTENTION if file.stem == "falcon-h1" else ()
    assert theirs.keys() - mla == {n for n in ours if ".attn_kv_b." not in n or n in theirs}
    for n in theirs.keys() - mla:
        dims, kind, data = theirs[n]
        dims = dims[:3] if dims[3:] == [1] else dims  # Ling 3's convolutions
        size = math.prod(dims) * (2 if kind == BF16 else 4)
        assert ours[n][:2] in ((dims, kind), (dims, F32_TENSOR)), n
        if ours[n][1] != kind:  # what is small and decides much
            assert floats("F32", ours[n][2][:2 * size]) == floats("BF16", data[:size]), n
        elif n.split(".")[-2] not in free:
            assert ours[n][2][:size] == data[:size] or is_near(n, ours[n][2], data, size), n
    theirs, ours = gguf_pairs(file), gguf_pairs(out)
    arch = theirs["general.architecture"]
    for key in (k for k in theirs if k.startswith(arch + ".")):
        k = key[len(arch) + 1:]
        if k == "context_length" or mla and k in MLA or k.endswith("epsilon") or k.endswith("_pattern"):
            continue  # the first is a default where config.json is silent; the others' spelling is free
        if key in ours:
            assert ours[key] == theirs[key] or is_each(ours[key], theirs[key]), key
        else:
            assert k in DEFAULTS, key

@pytest.mark.parametrize("name", ["gpt-oss-sinks", "granite-moe", "gpt2", "deepseek-v3", "falcon-40b-gqa", "mpt-alibi", "glm4-moe",
                                  "gpt-neox", "phi2", "cohere2", "bloom-alibi", "stablelm", "gemma4-moe", "gemma4-ple", "granite-h-moe",
                                  "nemotron-h-moe", "lfm2-moe", "kimi-linear", "granite-moe-swa", "apertus", "jamba", "laguna", "step3.5", "deepseek-v4", "mimo-v2-flash", "minimax-m1", "muse-glimmer"])
def test_a_quantized_model_of_every_order_keeps_its_values(llmq, tmp_path, name):
    """Halves of experts, experts in one tensor, transposed and grouped rows: in blocks as in floats."""
    llmq("quantize", checkpoint(name, tmp_path), "-o", tmp_path / "q.llmq", "--method", "rtn", "-b", 8, "-g", 32, "--sym")
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "q.gguf", "--to", "gguf", "--allow-requantize")
    llmq("convert", tmp_path / "q.gguf", "-o", tmp_path / "f.gguf", "--to", "gguf")
    for m, o in ((tmp_path / "q.llmq", "a"), (tmp_path / "q.gguf", "b"), (tmp_path / "f.gguf", "c")):
        llmq("logits", m, "--ids", "13,32,51,70,89,18,37,56" if vocabulary(name) == 90 else "13,32,51,7,9,18,37,56", "-o", tmp_path / o)
    _, a = read_floats(tmp_path / "a", "logits")
    _, b = read_floats(tmp_path / "b", "logits")
    assert read_floats(tmp_path / "c", "logits")[1] == b
    assert max(abs(x - y) for x, y in zip(a, b)) <= 2e-2 * max(map(abs, a))  # what has no block of 32 is f16, the rest Q8_0 again


@pytest.mark.parametrize("name", ["glm4-moe-lite", "solar-open", "minimax-m2", "exaone-moe", "ernie45-moe", "hunyuan-moe",
                                  "granite-moe-shared", "gemma4-ple", "gemma4-dense", "gemma4-unified", "granite-h", "nemotron-h", "kimi-linear", "mellum", "youtu", "granite4-dense", "dbrx", "mpt-qk-norm",
                                  "apertus", "granite-moe-swa", "qwen3-vl-moe", "laguna", "laguna-elements", "baichuan", "internlm2", "cohere2-moe", "ling2"])
def test_what_is_written_is_read_back(llmq, tmp_path, name):
    """Mixtures of which no file of llama.cpp's converter is here: to GGUF, and the same logits from there."""
    llmq("convert", ARCH / name, "-o", tmp_path / "m.gguf", "--to", "gguf")
    for m, o in ((ARCH / name, "a"), (tmp_path / "m.gguf", "b")):
        llmq("logits", m, "--ids", "13,32,51,7,9,18,37,56,5,4,23,42,61", "-o", tmp_path / o)
    assert read_floats(tmp_path / "a", "logits")[1] == read_floats(tmp_path / "b", "logits")[1]


@pytest.mark.parametrize("name", ["minicpm", "gemma3n", "mamba", "qwen3.5", "jamba", "bamba"])
def test_what_is_written_is_read_back_but_for_numbers_in_f32(llmq, tmp_path, name):
    """Scales and rates that GGUF keeps in f32; the last rows of Gemma 3n's per-layer table, which no text uses, are zeros there."""
    llmq("convert", ARCH / name, "-o", tmp_path / "m.gguf", "--to", "gguf")
    for m, o in ((ARCH / name, "a"), (tmp_path / "m.gguf", "b")):
        llmq("logits", m, "--ids", "13,32,51,7,9,18,37,56,5,4,23,42,61", "-o", tmp_path / o)
    a, b = (read_floats(tmp_path / o, "logits")[1] for o in "ab")
    assert max(abs(x - y) for x, y in zip(a, b)) <= 1e-6 * max(map(abs, a))
    if name == "gemma3n":
        dims, _, data = gguf_tensors(tmp_path / "m.gguf")["per_layer_token_embd.weight"]
        table = dims[0] * 88 * 2  # of BF16 words
        assert dims[1] == 96 and not any(data[table:dims[0] * 96 * 2]) and any(data[table - dims[0]:table])


@pytest.mark.parametrize("name,why", [("llama4", "window: GGUF's 'llama4' has no place for 6"), ("afmoe", "window_layers: GGUF's 'afmoe' has no place"), ("gpt-bigcode-mha", "multi_query: llama.cpp's 'starcoder' runs one head of keys, found 4"),
                                      ("muse-glimmer", "post_eps: GGUF's 'muse-glimmer' has no place for 0.001"),
                                      ("minimax", "join_x_state: GGUF's 'minimax-01' has no place for 1.4"),
                                      ("starcoder2", "window: GGUF's 'starcoder2' has no place for 16"),
                                      ("qwen3-next", "moe_layers: GGUF's 'qwen3next' has no place for [0,2]"),
                                      ("minicpm3", "logit_scale: GGUF's 'minicpm3' has no place for 0.5"),
                                      ("deci", "block_configs: llama.cpp's 'deci' runs no attention in a layer without an MLP, which layer 0 is"),
                                      ("granite-swa", "rope_local_theta: GGUF's 'granite_swa' has no place for 500"),
                                      ("phimoe", "architectures: llama.cpp's 'phimoe' runs norms without their mean"),
                                      ("minimax-m3", "shared_ffn: GGUF's 'minimax-m3' has no place for 4"),
                                      ("bitnet", "tie_word_embeddings: llama.cpp's 'bitnet' has no output head of its own, found one"),
                                      ("deepseek-ocr2", "llama.cpp's 'deepseek2-ocr' runs 4 heads of keys, turned by 10000, found 2"),
                                      ("phi-qk-layernorm", "wiring_qk_norm: GGUF's 'phi2' has no place")])
def test_what_llama_cpp_would_run_otherwise_is_refused(llmq, tmp_path, name, why):
    assert why in llmq("convert", ARCH / name, "-o", tmp_path / "m.gguf", "--to", "gguf", code=3).stderr


@pytest.mark.parametrize("name,change", [("minicpm3", {"dim_model_base": 256}), ("granite-swa", {"layer_rope_theta": [0, 10000.0, 10000.0]}),
                                         ("bamba", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0}}),
                                         ("bitnet", {"hidden_act": "silu", "tie_word_embeddings": True}),
                                         ("falcon-h1", {}), ("falcon-h1-norm", {}), ("falcon-h1", {"tie_word_embeddings": True})])
def test_with_numbers_that_it_has_a_place_for(llmq, tmp_path, name, change):
    """Constants of llama.cpp's code; one base of angles; heads that rotate whole; an activation; embedding and head with a factor each."""
    shutil.copytree(ARCH / name, tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    (tmp_path / "m/config.json").write_text(json.dumps(config | change))
    if "tie_word_embeddings" in change:
        file = tmp_path / "m/model.safetensors"
        h, d = read_st(file)
        write_st(file, {n: (t, tensor(h, d, n)) for n, t in h.items() if n not in ("lm_head.weight", "__metadata__")})
    llmq("convert", tmp_path / "m", "-o", tmp_path / "m.gguf", "--to", "gguf", "--dtype", "f32")
    for m, o in ((tmp_path / "m", "a"), (tmp_path / "m.gguf", "b")):
        llmq("logits", m, "--ids", "13,32,51,7,9,18,37,56,5,4,23,42,61", "-o", tmp_path / o)
    a, b = (read_floats(tmp_path / o, "logits")[1] for o in "ab")
    assert max(abs(x - y) for x, y in zip(a, b)) <= 1e-6 * max(map(abs, a))


def test_bitnet_cpps_own_has_another_activation(llmq, tmp_path):
    """The same tensors; the name says which."""
    was = json.loads((ARCH / "bitnet/config.json").read_text())
    h, d = read_st(ARCH / "bitnet/model.safetensors")
    for act in ("silu", "relu2"):
        (tmp_path / act).mkdir()
        (tmp_path / act / "config.json").write_text(json.dumps(was | {"hidden_act": act, "tie_word_embeddings": True}))
        write_st(tmp_path / act / "model.safetensors", {n: (t, tensor(h, d, n)) for n, t in h.items() if n not in ("lm_head.weight", "__metadata__")})
    assert "act: GGUF's 'bitnet' has no place for" in llmq("convert", tmp_path / "relu2", "-o", tmp_path / "m.gguf", "--to", "gguf", code=3).stderr
    llmq("convert", tmp_path / "silu", "-o", tmp_path / "m.gguf", "--to", "gguf", "--dtype", "f32")
    tensors = [(n, dims[::-1], kind, b) for n, (dims, kind, b) in gguf_tensors(tmp_path / "m.gguf").items()]
    numbers = [pair(k.replace("bitnet.", "bitnet-b1.58."), *((U32, struct.unpack("<I", v)[0]) if k.split(".")[-1] not in real
                                                            else (F32, struct.unpack("<f", v)[0])))
               for real in [("freq_base", "layer_norm_rms_epsilon")] for k, v in gguf_pairs(tmp_path / "m.gguf").items() if k.startswith("bitnet.")]
    file = write_gguf(tmp_path / "r.gguf", [pair("general.architecture", STRING, "bitnet-b1.58"), *numbers], tensors)
    for m, o in ((tmp_path / "relu2", "a"), (file, "b")):
        llmq("logits", m, "--ids", "13,32,51,7,9,18", "-o", tmp_path / o)
    a, b = (read_floats(tmp_path / o, "logits")[1] for o in "ab")
    assert max(abs(x - y) for x, y in zip(a, b)) <= 1e-6 * max(map(abs, a))


OTHER = ROOT / "tests/golden/gguf/other"


@pytest.mark.parametrize("file", sorted(OTHER.glob("*.gguf")), ids=lambda p: p.stem)
def test_what_is_read_as_another_computes_as_llama_cpp_does(llmq, tmp_path, file):
    """Logarithms of the probabilities after some ids (tests/golden/make/gguf_other.py)."""
    of = json.loads((OTHER / "logprobs.json").read_text())
    llmq("logits", file, "--ids", ",".join(map(str, of["ids"])), "-o", tmp_path / "l")
    (_, V), x = read_floats(tmp_path / "l", "logits")
    last = x[-V:]
    rest = math.log(sum(math.exp(v) for v in last))
    # sums of f32; llama.cpp has GELU in a table of f16, 2^-11 of each
    far = 2e-3 if file.stem == "codeshell" else 1e-4
    assert max(abs(v - rest - want) for v, want in zip(last, of[file.stem])) < far
    assert llmq("convert", file, "-o", tmp_path / "m.llmq", "--to", "llmq").returncode == 0


def fuse(file, out, parts, into):
    """A copy of a GGUF file in f32 with tensors of each block put into one, rows of each matrix after the other."""
    b, tensors = file.read_bytes(), {}
    sized = {n: (dims, kind, x[:4 * math.prod(dims)]) for n, (dims, kind, x) in gguf_tensors(file).items()}
    for n, (dims, kind, x) in sized.items():
        short = n.split(".", 2)[2].rsplit(".", 1) if n.startswith("blk.") else ("", "")
        if short[0] not in parts:
            tensors[n] = (n, dims[::-1], kind, x)
        elif short[0] == parts[0]:
            all_of = [sized[n.replace(parts[0], p)] for p in parts]
            stack = dims[2] if len(dims) == 3 else 1
            rows = [[y[i * len(y) // stack:(i + 1) * len(y) // stack] for _, _, y in all_of] for i in range(stack)]
            at = 1 if len(dims) == 3 else 0
            shape = list(dims[::-1])
            shape[at] = sum(d[::-1][at] for d, _, _ in all_of)
            tensors[n] = (n.replace(parts[0], into), shape, kind, b"".join(b"".join(r) for r in rows))
    n_pairs, at = struct.unpack_from("<Q", b, 16)[0], b.index(b"token_embd.weight") - 8
    first = min(b.index(n.encode()) - 8 for n in sized)
    write_gguf(out, [b[24:first]], list(tensors.values()))
    fixed = bytearray(out.read_bytes())
    fixed[16:24] = struct.pack("<Q", n_pairs)
    out.write_bytes(fixed)
    assert at >= first
    return out


QKV, GATE_UP = (["attn_q", "attn_k", "attn_v"], "attn_qkv"), (["ffn_gate_exps", "ffn_up_exps"], "ffn_gate_up_exps")


@pytest.mark.parametrize("name,how", [("qwen2", QKV), ("granite", QKV), ("stablelm", QKV), ("qwen3-moe", QKV), ("qwen3-moe", GATE_UP),
                                      ("deepseek-v3", GATE_UP), ("granite-moe", GATE_UP), ("qwen3-vl-moe", GATE_UP)])
def test_what_llama_cpps_converter_fuses(llmq, tmp_path, name, how):
    llmq("convert", ARCH / name, "-o", tmp_path / "m.gguf", "--to", "gguf", "--dtype", "f32")
    file = fuse(tmp_path / "m.gguf", tmp_path / "f.gguf", *how)
    assert any(how[1] in n for n in gguf_tensors(file)) and not any(f".{how[0][0]}." in n for n in gguf_tensors(file))
    for m, o in ((tmp_path / "m.gguf", "a"), (file, "b")):
        llmq("logits", m, "--ids", "13,32,51,7,9,18,37,56", "-o", tmp_path / o)
    assert read_floats(tmp_path / "a", "logits")[1] == read_floats(tmp_path / "b", "logits")[1]


def test_fused_rows_that_do_not_fit_are_named(llmq, tmp_path):
    llmq("convert", ARCH / "qwen2", "-o", tmp_path / "m.gguf", "--to", "gguf", "--dtype", "f32")
    file = fuse(tmp_path / "m.gguf", tmp_path / "f.gguf", ["attn_q", "attn_k"], "attn_qkv")
    p = llmq("logits", file, "--ids", "1,2", "-o", tmp_path / "o", code=3)
    assert "tensor 'blk.0.attn_qkv." in p.stderr and "expected the rows of attn_q." in p.stderr


def test_mistral_large_3_is_a_deepseek2_of_its_own(llmq, tmp_path):
    """By attention.temperature_scale: shares that sum to 1, gate and up apart, q that grows with the position."""
    llmq("convert", ARCH / "mistral4", "-o", tmp_path / "m.gguf", "--to", "gguf", "--dtype", "f32")
    tensors, pairs, real = [], [], ("freq_base", "layer_norm_rms_epsilon", "factor", "yarn_log_multiplier", "temperature_scale", "expert_weights_scale")
    for n, (dims, kind, b) in gguf_tensors(tmp_path / "m.gguf").items():
        K, N, E = dims if "_exps" in n else (*dims, 1, 1)[:3]
        b = b[:4 * K * N * E]
        if "gate_up" in n:
            rows = [b[4 * K * i:4 * K * (i + 1)] for i in range(N * E)]
            for part, at in (("gate", 0), ("up", N // 2)):
                tensors.append((n.replace("gate_up", part), [E, N // 2, K], kind, b"".join(b"".join(rows[e * N + at:e * N + at + N // 2]) for e in range(E))))
        else:
            tensors.append((n, dims[::-1], kind, b))
    for k, v in gguf_pairs(tmp_path / "m.gguf").items():
        k = k.replace("mistral4.", "deepseek2.")
        kind = F32 if k.endswith(real) else BOOL if k.endswith("weights_norm") else STRING if isinstance(v, str) else U32
        if k.startswith("deepseek2."):
            pairs.append(pair(k, kind, v if kind == STRING else struct.unpack({F32: "<f", U32: "<I", BOOL: "<?"}[kind], v)[0]))
    file = write_gguf(tmp_path / "d.gguf", [pair("general.architecture", STRING, "deepseek2"), *pairs], tensors)
    for m, o in ((ARCH / "mistral4", "a"), (file, "b")):
        llmq("logits", m, "--ids", "13,32,51,7,9,18,37,56,5,4,23,42,61,2,3", "-o", tmp_path / o)
    a, b = (read_floats(tmp_path / o, "logits")[1] for o in "ab")
    assert max(abs(x - y) for x, y in zip(a, b)) <= 1e-6 * max(map(abs, a))


def test_phimoe_is_read_as_its_makers_run_it(llmq, tmp_path):
    """llama.cpp norms without the mean and shares by another softmax: the weights are those of the checkpoint."""
    shutil.copytree(ARCH / "phimoe", tmp_path / "m")
    c = json.loads((tmp_path / "m/config.json").read_text()) | {"rope_theta": 10000.0, "router_jitter_noise": 0.01}
    del c["rope_parameters"]
    (tmp_path / "m/config.json").write_text(json.dumps(c))
    file = convert(tmp_path / "m", tmp_path / "m.gguf", "phimoe")
    for m, o in ((tmp_path / "m", "a"), (file, "b")):
        llmq("logits", m, "--ids", "13,32,51,7,9,18,37,56", "-o", tmp_path / o)
    assert read_floats(tmp_path / "a", "logits")[1] == read_floats(tmp_path / "b", "logits")[1]


def test_deepseek_ocr_with_a_head_of_keys_for_each(llmq, tmp_path):
    shutil.copytree(ARCH / "deepseek-ocr2", tmp_path / "m")
    c = json.loads((tmp_path / "m/config.json").read_text())
    c["text_config"]["num_key_value_heads"] = 4
    (tmp_path / "m/config.json").write_text(json.dumps(c))
    h, d = read_st(tmp_path / "m/model.safetensors")
    twice = {n: 1 + n.endswith(("k_proj.weight", "v_proj.weight")) for n in h}
    write_st(tmp_path / "m/model.safetensors", {
        n: ({**t, "shape": [twice[n] * t["shape"][0], *t["shape"][1:]]}, twice[n] * tensor(h, d, n)) for n, t in h.items() if n != "__metadata__"})
    llmq("convert", tmp_path / "m", "-o", tmp_path / "m.gguf", "--to", "gguf")
    for m, o in ((tmp_path / "m", "a"), (tmp_path / "m.gguf", "b")):
        llmq("logits", m, "--ids", "13,32,51,7,9,18,37,56", "-o", tmp_path / o)
    assert read_floats(tmp_path / "a", "logits")[1] == read_floats(tmp_path / "b", "logits")[1]


def test_minimax_m3_with_the_limit_that_llama_cpp_has(llmq, tmp_path):
    """Its blocks of positions are counted in blocks; a shared expert is as wide as the others; norms are 1 more, what corrects experts is not."""
    shutil.copytree(ARCH / "minimax-m3", tmp_path / "m")
    c = json.loads((tmp_path / "m/config.json").read_text())
    c["text_config"] |= {"swiglu_limit": 7.0, "shared_intermediate_size": 8}
    (tmp_path / "m/config.json").write_text(json.dumps(c))
    h, d = read_st(tmp_path / "m/model.safetensors")
    wide = {}
    for n, t in h.items():
        if n != "__metadata__":
            (rows, *row), b = t["shape"], tensor(h, d, n)
            if "shared_experts.down" in n:
                of = len(b) // rows
                b, row = b"".join(2 * b[i * of:(i + 1) * of] for i in range(rows)), [2 * row[0]]
            elif "shared_experts" in n:
                b, rows = 2 * b, 2 * rows
            wide[n] = ({**t, "shape": [rows, *row]}, b)
    write_st(tmp_path / "m/model.safetensors", wide)
    llmq("convert", tmp_path / "m", "-o", tmp_path / "m.gguf", "--to", "gguf", "--dtype", "f32")
    llmq("convert", tmp_path / "m.gguf", "-o", tmp_path / "back", "--to", "safetensors")
    for m, o in ((tmp_path / "m", "a"), (tmp_path / "m.gguf", "b"), (tmp_path / "back", "c")):
        llmq("logits", m, "--ids", "13,32,51,7,9,18,37,56,5,4,23,42,61", "-o", tmp_path / o)
    a, b, back = (read_floats(tmp_path / o, "logits")[1] for o in "abc")
    assert a == b == back
    pairs, tensors = gguf_pairs(tmp_path / "m.gguf"), gguf_tensors(tmp_path / "m.gguf")
    for key, want in (("indexer.head_count", 2), ("indexer.key_length", 6), ("indexer.top_k", 2), ("indexer.block_size", 3), ("indexer.local_blocks", 1)):
        assert pairs["minimax-m3.attention." + key] == struct.pack("<I", want), key
    for key, want in (("feed_forward_length", 12), ("expert_feed_forward_length", 8), ("expert_shared_count", 1), ("leading_dense_block_count", 1)):
        assert pairs["minimax-m3." + key] == struct.pack("<I", want), key
    names = {n.split(".", 2)[2] for n in tensors if n.startswith("blk.1.")}
    assert {f"indexer.{x}.weight" for x in ("q_proj", "k_proj", "q_norm", "k_norm")} < names and not any("indexer" in n for n in tensors if n.startswith("blk.0."))
    for name, theirs, more in (("self_attn.index_q_norm.weight", "indexer.q_norm.weight", 1), ("block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias", 0)):
        n = "language_model.model.layers.1." + name
        want = [x + more for x in floats(h[n]["dtype"], tensor(h, d, n))]
        assert list(floats("F32", tensors["blk.1." + theirs][2][:4 * len(want)])) == want
    c["text_config"]["sparse_attention_config"]["sparse_attention_freq"] = [0, 0, 1]
    (tmp_path / "m/config.json").write_text(json.dumps(c))
    assert "runs an indexer in each layer with experts and in no other, which layer 1 is not" in llmq(
        "convert", tmp_path / "m", "-o", tmp_path / "n.gguf", "--to", "gguf", code=3).stderr


@pytest.mark.parametrize("name", ["glm-moe-dsa", "deepseek-v32"])
def test_codes_of_keys_that_change_places(llmq, tmp_path, name):
    """Of latent attention attn_k_b has inputs where attn_kv_b has outputs: codes are refused, or rounded again; those of values stay."""
    llmq("quantize", ARCH / name, "-o", tmp_path / "q.llmq", "--method", "rtn", "-b", 8, "-g", 4, "--sym", "--skip", "mlp|kv_a|q_[ab]|o_proj")
    p = llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "m.gguf", "--to", "gguf", code=3)
    assert "attn_k_b has the inputs of keys where these codes have their outputs" in p.stderr
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "m.gguf", "--to", "gguf", "--allow-requantize")
    for m, o in ((tmp_path / "q.llmq", "a"), (tmp_path / "m.gguf", "b")):
        llmq("logits", m, "--ids", "13,32,51,7,9,18,37,56", "-o", tmp_path / o)
    a, b = (read_floats(tmp_path / o, "logits")[1] for o in "ab")
    assert max(abs(x - y) for x, y in zip(a, b)) <= 2e-2 * max(map(abs, a))  # f16 and Q8_0


def test_llama_that_sees_both_ways(llmq, tmp_path):
    """llama.cpp's llama-embed, which asks for the key that says so."""
    source = ROOT / "tests/golden/heads/llama-both-ways"
    llmq("convert", source, "-o", tmp_path / "m.gguf", "--to", "gguf")
    pairs = gguf_pairs(tmp_path / "m.gguf")
    assert pairs["llama-embed.attention.causal"][-1] == 0
    llmq("convert", tmp_path / "m.gguf", "-o", tmp_path / "back", "--to", "safetensors")
    assert json.loads((tmp_path / "back/config.json").read_text())["architectures"] == ["LlamaBidirectionalModel"]
    (h, d), (g, e) = read_st(source / "model.safetensors"), read_st(tmp_path / "back/model.safetensors")
    names = [n for n in h if n != "__metadata__"]
    assert {"model." + n for n in names} == g.keys() - {"__metadata__"}
    for n in names:
        assert floats(h[n]["dtype"], tensor(h, d, n)) == floats(g["model." + n]["dtype"], tensor(g, e, "model." + n)), n


@pytest.mark.parametrize("name, gguf, architecture", [("bert", "bert", "BertModel"), ("nomic-bert", "nomic-bert", "NomicBertModel"),
                                                      ("jina-bert", "jina-bert-v2", "JinaBertModel"),
                                                      ("xlm-roberta", "bert", "BertModel"), ("roberta-masked", "bert", "BertModel"),
                                                      ("modernbert", "modern-bert", "ModernBertModel"),
                                                      ("eurobert", "eurobert", "EuroBertModel")])
def test_encoders(llmq, tmp_path, name, gguf, architecture):
    """There and back with every value; what BERT pools for its training is left out, and said so."""
    source = ROOT / "tests/golden/heads" / name
    said = llmq("convert", source, "-o", tmp_path / "m.gguf", "--to", "gguf").stderr
    pairs = gguf_pairs(tmp_path / "m.gguf")
    assert pairs["general.architecture"] == gguf and pairs[f"{gguf}.attention.causal"][-1] == 0
    llmq("convert", tmp_path / "m.gguf", "-o", tmp_path / "back", "--to", "safetensors")
    was, now = (json.loads((at / "config.json").read_text()) for at in (source, tmp_path / "back"))
    assert now["architectures"] == [architecture] and now.get("local_attention") == was.get("local_attention")
    (h, d), (g, e) = read_st(source / "model.safetensors"), read_st(tmp_path / "back/model.safetensors")
    bodies = ("bert", "model", "roberta")
    bare, first = ({n.split(".", 1)[1] if n.split(".")[0] in bodies else n: n for n in x if n != "__metadata__"} for x in (g, h))
    first = {n: at for n, at in first.items() if not n.startswith(("pooler.", "lm_head."))}
    assert first.keys() == bare.keys() and ("heads that vectors do not need" in said) == ("bert" in source.name and name[0] in "bxr")
    for n, at in first.items():
        want, got = floats(h[at]["dtype"], tensor(h, d, at)), floats(g[bare[n]]["dtype"], tensor(g, e, bare[n]))
        assert got == (want[2 * 32:] if "position" in n and gguf != name else want), n  # two rows that no position has
    if name == "modernbert":
        assert (now["rope_theta"], now["local_rope_theta"]) == (160000, 10000)


def test_a_bias_of_experts_that_llama_cpp_leaves_out(llmq, tmp_path):
    p = llmq("convert", ROOT / "tests/golden/heads/nomic-moe", "-o", tmp_path / "m.gguf", "--to", "gguf", code=3)
    assert "mlp.experts.bias: llama.cpp's 'nomic-bert-moe' and its converter leave it out" in p.stderr


@pytest.mark.parametrize("was,now,why", [
    (b"kda.gate_lower_bound" + struct.pack("<If", F32, -5), b"kda.gate_lower_bound" + struct.pack("<If", F32, 5), "kda.gate_lower_bound: expected a number below 0, found another"),
    (b"kda.safe_gate" + struct.pack("<IB", BOOL, 1), b"kda.safe_gate" + struct.pack("<IB", BOOL, 0), "kda.safe_gate: expected true, found false")])
def test_ling_3_without_a_least_decay(llmq, tmp_path, was, now, why):
    b = (ROOT / "tests/golden/gguf/arch/ling3.gguf").read_bytes()
    assert b.count(was) == 1
    (tmp_path / "m.gguf").write_bytes(b.replace(was, now))
    assert why in llmq("logits", tmp_path / "m.gguf", "--ids", "1,2,3", "-o", tmp_path / "l", code=3).stderr


def test_norms_that_jina_bert_has_not(llmq, tmp_path):
    llmq("convert", ROOT / "tests/golden/heads/jina-bert", "-o", tmp_path / "m.gguf", "--to", "gguf")
    tensors = [(n, d[::-1], k, x) for n, (d, k, x) in gguf_tensors(tmp_path / "m.gguf").items()]
    keys = {"block_count": 2, "context_length": 128, "embedding_length": 32, "feed_forward_length": 24, "attention.head_count": 4}
    pairs = [pair("general.architecture", STRING, "jina-bert-v2"), pair("jina-bert-v2.attention.layer_norm_epsilon", F32, 1e-12),
             *(pair(f"jina-bert-v2.{k}", U32, v) for k, v in keys.items())]
    for extra, code in ([], 0), ([("blk.1.attn_q_norm.weight", [32], 0, bytes(128))], 3):
        file = write_gguf(tmp_path / f"{code}.gguf", pairs, tensors + extra)
        p = llmq("convert", file, "-o", tmp_path / f"{code}.llmq", "--to", "llmq", code=code)
        assert ("attn_q_norm.weight: expected none in a jina-bert-v2, found some" in p.stderr) == (code == 3)


def test_layers_without_attention_or_mlp(llmq, tmp_path):
    """Deci's with both, with keys of another number, with an MLP alone, and with nothing: lists of heads and widths."""
    c = json.loads((ARCH / "deci/config.json").read_text())
    h, d = read_st(ARCH / "deci/model.safetensors")
    of = [(0, 1), (2, 1), (1, 1), (1, 0)]  # whose attention, whose MLP
    was, kept = c["block_configs"], {n: (t, tensor(h, d, n)) for n, t in h.items() if "layers." not in n and n != "__metadata__"}
    for i, layer in enumerate(of):
        for n in (n for n in h if n.startswith("model.layers.")):
            attends = "self_attn" in n or "input_layernorm" in n
            if n.startswith(f"model.layers.{layer[not attends]}."):
                kept[f"model.layers.{i}." + n.split(".", 3)[3]] = (h[n], tensor(h, d, n))
    c |= {"num_hidden_layers": len(of), "block_configs": [{"attention": was[a]["attention"], "ffn": was[m]["ffn"]} for a, m in of]}
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text(json.dumps(c))
    write_st(tmp_path / "m/model.safetensors", kept)
    llmq("convert", tmp_path / "m", "-o", tmp_path / "m.gguf", "--to", "gguf")
    for m, o in ((tmp_path / "m", "a"), (tmp_path / "m.gguf", "b")):
        llmq("logits", m, "--ids", "13,32,51,7,9,18", "-o", tmp_path / o)
    assert read_floats(tmp_path / "a", "logits")[1] == read_floats(tmp_path / "b", "logits")[1]
    pairs = gguf_pairs(tmp_path / "m.gguf")
    for key, want in (("attention.head_count", (4, 4, 0, 0)), ("attention.head_count_kv", (2, 1, 0, 0)), ("feed_forward_length", (256, 256, 256, 0))):
        assert pairs["deci." + key].endswith(struct.pack("<4i", *want)), key


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3.5-moe", "falcon-h1"])
def test_weights_that_gguf_has_otherwise_are_quantized_so(llmq, tmp_path, name):
    """Heads by turns and factors in the weights, before they are rounded; codes of the checkpoint's order are refused."""
    llmq("convert", ARCH / name, "-o", tmp_path / "f.gguf", "--to", "gguf", "--dtype", "f32")
    for m, o in ((ARCH / name, "a.gguf"), (tmp_path / "f.gguf", "b.gguf")):
        llmq("quantize", m, "-o", tmp_path / o, "--to", "gguf:Q8_0", "--method", "rtn")
    a, b = (gguf_tensors(tmp_path / o) for o in ("a.gguf", "b.gguf"))
    assert a.keys() == b.keys() and all(a[n] == b[n] or a[n][1] != b[n][1] for n in a)
    assert sum(a[n] == b[n] for n in a) > 10 and {kind for _, kind, _ in a.values()} > {8}
    llmq("quantize", ARCH / name, "-o", tmp_path / "q.llmq", "--method", "rtn", "-b", 8, "-g", 4)
    p = llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "c.gguf", "--to", "gguf", "--allow-requantize", code=3)
    assert "expected floats, found codes (quantize the checkpoint with --to gguf)" in p.stderr


def test_the_head_of_baichuan_2_is_refused(llmq, tmp_path):
    """llama.cpp uses the stored rows; nothing here changes them. Rotating would change their lengths."""
    p = llmq("convert", ARCH / "baichuan2", "-o", tmp_path / "n.gguf", "--to", "gguf", code=3)
    assert "lm_head: Baichuan 2 uses its rows with length 1" in p.stderr
    p = llmq("quantize", ARCH / "baichuan2", "-o", tmp_path / "r.llmq", "-m", "rtn", "--rotate", code=3)
    assert "its output head is used with rows of length 1" in p.stderr


def test_the_13_b_of_baichuan(llmq, tmp_path):
    """llama.cpp tells it by its 40 layers, which have ALiBi."""
    h, d = read_st(ARCH / "baichuan-alibi/model.safetensors")
    config = json.loads((ARCH / "baichuan-alibi/config.json").read_text()) | {"num_hidden_layers": 40}
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    write_st(tmp_path / "m/model.safetensors", {
        n.replace(".layers.0.", f".layers.{i}."): (t, tensor(h, d, n)) for n, t in h.items() if n != "__metadata__"
        for i in range(40 if ".layers.0." in n else 1)})
    llmq("convert", tmp_path / "m", "-o", tmp_path / "m.gguf", "--to", "gguf")
    for m, o in ((tmp_path / "m", "a"), (tmp_path / "m.gguf", "b")):
        llmq("logits", m, "--ids", "13,32,51,7,9,18", "-o", tmp_path / o)
    assert read_floats(tmp_path / "a", "logits")[1] == read_floats(tmp_path / "b", "logits")[1]
    p = llmq("convert", ARCH / "baichuan-alibi", "-o", tmp_path / "n.gguf", "--to", "gguf", code=3)
    assert "llama.cpp tells a 'baichuan' with ALiBi by its 40 layers, found 1" in p.stderr


def test_ggufs_order_of_heads_goes_to_no_folder(llmq, tmp_path):
    """Qwen3.5's value heads are by turns there: .llmq and GGUF keep them, a folder would say another order."""
    file = ROOT / "tests/golden/gguf/arch/qwen3.5-moe.gguf"
    llmq("convert", file, "-o", tmp_path / "m.llmq", "--to", "llmq")
    for m, o in ((file, "a"), (tmp_path / "m.llmq", "b")):
        llmq("logits", m, "--ids", "13,32,51,7,9", "-o", tmp_path / o)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    for m in (file, tmp_path / "m.llmq"):
        p = llmq("convert", m, "-o", tmp_path / "folder", "--to", "safetensors", code=3)
        assert "found a Qwen3_5MoeForCausalLM in GGUF's" in p.stderr and not (tmp_path / "folder").exists()


@pytest.mark.parametrize("name,norm", [("glm4-moe", "model.layers.2.shared_head.norm.weight"), ("qwen3.5", "mtp.norm.weight")])
def test_a_head_for_further_tokens_is_a_block_after_the_last(llmq, tmp_path, name, norm):
    """By llama.cpp's names and count; through a .llmq too the same values come back."""
    source = ROOT / "tests/golden/mtp" / name
    llmq("convert", source, "-o", tmp_path / "m.gguf", "--to", "gguf", "--dtype", "f32")
    llmq("convert", tmp_path / "m.gguf", "-o", tmp_path / "m.llmq", "--to", "llmq")
    llmq("convert", tmp_path / "m.llmq", "-o", tmp_path / "again.gguf", "--to", "gguf", "--dtype", "f32")
    pairs, tensors = gguf_pairs(tmp_path / "m.gguf"), gguf_tensors(tmp_path / "m.gguf")
    arch = pairs["general.architecture"]
    assert [int.from_bytes(pairs[f"{arch}.{k}"], "little") for k in ("block_count", "nextn_predict_layers")] == [3, 1]
    head = {n for n in tensors if n.startswith("blk.2.")}
    assert {f"blk.2.nextn.{n}.weight" for n in ("eh_proj", "enorm", "hnorm", "shared_head_norm")} | {"blk.2.attn_q.weight"} < head
    again = gguf_tensors(tmp_path / "again.gguf")
    assert again.keys() == tensors.keys() and all(again[n] == tensors[n] for n in head)
    h, d = read_st(source / "model.safetensors")
    own = floats(h[norm]["dtype"], tensor(h, d, norm))
    theirs = floats("F32", tensors["blk.2.nextn.shared_head_norm.weight"][2][:4 * len(own)])
    assert theirs == pytest.approx([x + (name == "qwen3.5") for x in own], rel=1e-6)


@pytest.mark.parametrize("name,arch", [("glm4-moe", "glm4moe"), ("qwen3.5", "qwen35")])
@pytest.mark.parametrize("says,block,what,key", [
    (0, 2, "a layer of the model", "nextn_predict_layers"), (2, 1, "an MTP head", "nextn_predict_layers"),
    (4, 2, "a layer of the model", "block_count")])
def test_a_head_for_further_tokens_is_where_the_metadata_says(llmq, tmp_path, name, arch, says, block, what, key):
    llmq("convert", ROOT / "tests/golden/mtp" / name, "-o", tmp_path / "m.gguf", "--to", "gguf")
    set_u32(tmp_path / "m.gguf", f"{arch}.{key}", says)
    p = llmq("logits", tmp_path / "m.gguf", "--ids", "1,2,3", "-o", tmp_path / "l", code=3)
    assert f"m.gguf: {arch}.nextn_predict_layers: expected block {block} to be {what}, found tensor 'blk.{block}." in p.stderr


def test_a_factor_that_config_json_has_no_word_for_is_refused(llmq, tmp_path):
    llmq("convert", ARCH / "ling", "-o", tmp_path / "m.gguf", "--to", "gguf")
    b, at = (tmp_path / "m.gguf").read_bytes(), b"bailingmoe.expert_weights_scale" + struct.pack("<If", F32, 1)
    assert b.count(at) == 1
    (tmp_path / "m.gguf").write_bytes(b.replace(at, at[:-4] + struct.pack("<f", 2.5)))
    p = llmq("run", tmp_path / "m.gguf", "--ids", "1", "-n", 1, code=3)
    assert "bailingmoe.expert_weights_scale: expected 1, found another factor" in p.stderr


def set_u32(file, key, value):
    b, at = file.read_bytes(), key.encode() + struct.pack("<I", U32)
    assert b.count(at) == 1
    i = b.index(at) + len(at)
    file.write_bytes(b[:i] + struct.pack("<I", value) + b[i + 4:])


def test_experts_that_the_metadata_denies_are_named(llmq, tmp_path):
    llmq("convert", ROOT / "tests/golden/mtp/glm4-moe", "-o", tmp_path / "m.gguf", "--to", "gguf")
    set_u32(tmp_path / "m.gguf", "glm4moe.expert_shared_count", 0)
    p = llmq("logits", tmp_path / "m.gguf", "--ids", "1,2,3", "-o", tmp_path / "l", code=3)
    assert "m.gguf: tensor 'model.layers.1.mlp.shared_experts.down_proj.weight': expected none, by the metadata, found one" in p.stderr


def test_a_model_without_width_is_refused(llmq, tmp_path):
    llmq("convert", ARCH / "jamba", "-o", tmp_path / "m.gguf", "--to", "gguf")
    set_u32(tmp_path / "m.gguf", "jamba.embedding_length", 0)
    p = llmq("logits", tmp_path / "m.gguf", "--ids", "1,2,3", "-o", tmp_path / "l", code=3)
    assert "m.gguf: hidden_size: expected an integer 1..4194304, found 0" in p.stderr


@pytest.mark.parametrize("name,arch,key,found", [("llama3-gqa", "llama", "value_length", 4), ("gemma4-moe", "gemma4", "value_length_swa", 0),
                                                 ("granite-h", "granitehybrid", "value_length", 1 << 31)])
def test_values_as_wide_as_keys_or_refused(llmq, tmp_path, name, arch, key, found):
    llmq("convert", ARCH / name, "-o", tmp_path / "m.gguf", "--to", "gguf")
    set_u32(tmp_path / "m.gguf", f"{arch}.attention.{key}", found)
    p = llmq("logits", tmp_path / "m.gguf", "--ids", "1,2,3", "-o", tmp_path / "l", code=3)
    assert f"m.gguf: {arch}.attention.{key}: expected " in p.stderr and f" as of keys, found {found}" in p.stderr


@pytest.mark.parametrize("was,now,why", [
    (struct.pack("<IQ3I", 5, 3, 0, 4, 8), struct.pack("<IQ3I", 5, 3, 0, 4, 1 << 31), "expected 0, 4 or one other ratio, found -2147483648 in layer 2"),
    (struct.pack("<IQ3I", 5, 3, 0, 4, 8), struct.pack("<IQ3I", 5, 3, 0, 0, 8), "found 0 in layer 1, and tensor 'blk.1.attn_compressor_kv.weight'"),
    (struct.pack("<IQ3f", F32, 3, 1.5, 1.5, 1.5), struct.pack("<IQ3f", F32, 3, 1.5, 1.5, 2), "swiglu_clamp_exp: expected 1.5 in all layers, found 2 in layer 2"),
    (b"hyper_connection.sinkhorn_iterations", b"hyper_connection.sinkhorn_iterationz", "sinkhorn_iterations: expected a number above 0, found 0")])
def test_deepseek_v4_as_its_lists_say(llmq, tmp_path, was, now, why):
    b = (ROOT / "tests/golden/gguf/arch/deepseek-v4.gguf").read_bytes()
    assert was in b
    (tmp_path / "m.gguf").write_bytes(b.replace(was, now, 1))
    assert why in llmq("logits", tmp_path / "m.gguf", "--ids", "1,2,3", "-o", tmp_path / "l", code=3).stderr


@pytest.mark.parametrize("other", ["f16", "u4-g32"])
def test_experts_of_several_schemes_are_rounded_again_or_refused(llmq, tmp_path, other):
    """A stack of the file has one type of blocks; the first expert's would be others' too."""
    override = [r".*experts\.0\.gate_proj.*=u8-g32", rf".*experts\.[1-9]\.gate_proj.*={other}", ".*=f32"]
    llmq("quantize", ARCH / "qwen3-moe", "-o", tmp_path / "q.llmq", "--method", "rtn",
         *(x for o in override for x in ("--override", o)))
    p = llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "m.gguf", "--to", "gguf", code=3)
    assert f"expected all of its parts as the first, u8-g32, found {other}" in p.stderr
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "m.gguf", "--to", "gguf", "--allow-requantize")
    llmq("verify", tmp_path / "m.gguf")


U64_ARRAY = struct.pack("<IIQ", 9, 10, 4)


@pytest.mark.parametrize("was,now,why", [
    (struct.pack("<IQ3I", 5, 3, 0, 4, 0), struct.pack("<IQ3I", 5, 3, 0, 0, 0), "compress_ratios: expected one number in layers with an indexer, 0 in others, found 0 in layer 1"),
    (struct.pack("<IQ3I", 5, 3, 0, 4, 0), struct.pack("<IQ3I", 5, 3, 4, 4, 0), "compress_ratios: expected one number in layers with an indexer, 0 in others, found 4 in layer 0"),
    (b"ple.layer_multipliers", b"ple.layer_multipliera", "ple.layer_multipliers: expected a list of 3 numbers, found none"),
    (U64_ARRAY + struct.pack("<4Q", 0, 11, 24, 41), U64_ARRAY + struct.pack("<4Q", 0, 11, 25, 41), "ple.head_vocab_sizes: expected successive primes, each head's rows after the one's before it, found others in head 2"),
    (U64_ARRAY + struct.pack("<4Q", 11, 13, 17, 19), U64_ARRAY + struct.pack("<4Q", 11, 13, 17, 23), "found others in head 3"),
    (b"ple.layers" + struct.pack("<IIQI", 9, 5, 1, 0), b"ple.layers" + struct.pack("<IIQI", 9, 5, 1, 1), "ple_layer_ids: expected numbers 1..3 of layers of linear_attention"),
    (b"blk.1.indexer.k_proj.weight", b"blk.1.indexer.x_proj.weight", "'blk.1.indexer.q_proj.weight': expected indexer.k_proj of the same type and inputs beside it"),
    (b"ple.ngram_size" + struct.pack("<II", 4, 3), b"ple.ngram_size" + struct.pack("<II", 4, 9), "qwen4exp.ple: expected n-grams of 2..8 tokens, up to 64 heads, and per_layer_token_embd, found 9 and 2"),
    (b"hyper_connection.low_rank", b"hyper_connection.low_rang", "input_mix_weight_down.weight': expected shape [320,32], found [6,32]")])
def test_qwen4_exp_as_its_lists_say(llmq, tmp_path, was, now, why):
    b = (ROOT / "tests/golden/gguf/arch/qwen4-exp-ngrams.gguf").read_bytes()
    assert was in b
    (tmp_path / "m.gguf").write_bytes(b.replace(was, now, 1))
    p = llmq("logits", tmp_path / "m.gguf", "--ids", "1,2,3", "-o", tmp_path / "l", code=None)
    assert p.returncode and why in p.stderr, p.stderr


def test_factors_of_n_grams_are_those_of_a_seed(llmq, tmp_path):
    b = (ROOT / "tests/golden/gguf/arch/qwen4-exp-ngrams.gguf").read_bytes()
    at = b.index(b"ple.layer_multipliers") + len(b"ple.layer_multipliers") + struct.calcsize("<IIQ")
    (tmp_path / "m.gguf").write_bytes(b[:at] + struct.pack("<Q", 12345) + b[at + 8:])
    p = llmq("logits", tmp_path / "m.gguf", "--ids", "1,2,3", "-o", tmp_path / "l", code=None)
    assert p.returncode and "ple.layer_multipliers: expected factors of a seed below 1048576 for 64 words, found others (12345)" in p.stderr


@pytest.mark.parametrize("why,says", [("two layers with n-grams", "ple_layer_ids: GGUF's 'qwen4exp' has a place for one layer with n-grams, found 2"),
                                      ("a gate of another kind", "wiring_mix_sigmoid: GGUF's 'qwen4exp' has no place for")])
def test_what_qwen4exp_has_no_place_for(llmq, tmp_path, why, says):
    name = "qwen4-exp-ngrams"
    folder = ARCH / name if why.startswith("two") else checkpoint(name, tmp_path)
    if why.startswith("a gate"):
        config = json.loads((folder / "config.json").read_text()) | {"output_gate_type": "silu"}
        (folder / "config.json").write_text(json.dumps(config))
    p = llmq("convert", folder, "-o", tmp_path / "m.gguf", "--to", "gguf", code=3)
    assert says in p.stderr


def test_factors_of_muse_glimmer_are_one_number(llmq, tmp_path):
    b = (ROOT / "tests/golden/gguf/arch/muse-glimmer.gguf").read_bytes()
    q, k = struct.pack("<8f", *[3.87] * 8), struct.pack("<8f", *[1] * 8)
    for was, now, why in ((q, q[:-4] + struct.pack("<f", 3.88), "attn_q_norm.weight: expected one factor in all layers, found others"),
                          (k, struct.pack("<f", 0) + k[4:], "attn_k_norm.weight: expected ones, found others")):
        at = b.rindex(was)
        (tmp_path / "m.gguf").write_bytes(b[:at] + now + b[at + 32:])
        assert why in llmq("logits", tmp_path / "m.gguf", "--ids", "1,2,3", "-o", tmp_path / "l", code=3).stderr


@pytest.mark.parametrize("was,now,why", [
    (b"attention.value_length", b"attention.value_lengtg", "mimo2.attention.value_length: expected a number, found none"),
    (b"attention.value_scale" + struct.pack("<I", F32), b"attention.value_scale" + struct.pack("<I", U32), None),
    (b"attention.value_scale" + struct.pack("<If", F32, 0.707), b"attention.value_scale" + struct.pack("<If", F32, 0),
     "mimo2.attention.value_scale: expected a number above 0, found another"),
    (struct.pack("<IQ2I", 5, 2, 1, 2), struct.pack("<IQ2I", 5, 2, 0, 2), "mimo2.attention.head_count_kv: expected one number of heads in the layers without a window, found 0 in layer 0"),
    (struct.pack("<IQ2I", 5, 2, 0, 1), struct.pack("<IQI", 5, 1, 0) + struct.pack("<I", 1), None)])
def test_mimo_v2_as_its_numbers_say(llmq, tmp_path, was, now, why):
    b = (ROOT / "tests/golden/gguf/arch/mimo-v2-flash.gguf").read_bytes()
    assert was in b
    (tmp_path / "m.gguf").write_bytes(b.replace(was, now, 1))
    p = llmq("logits", tmp_path / "m.gguf", "--ids", "1,2,3", "-o", tmp_path / "l", code=3)
    assert p.stderr.count("\n") <= 2 and (why or "m.gguf: ") in p.stderr


def test_what_llama_cpp_does_not_run_is_noted(llmq, tmp_path):
    p = llmq("convert", ARCH / "deepseek-v4", "-o", tmp_path / "m.gguf", "--to", "gguf")
    assert "llama.cpp runs 4 streams, and compression by 4 and 128: not this file" in p.stderr


def test_qwen2_moe_without_biases(llmq, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(ARCH / "qwen2-moe-shared", folder)
    config = json.loads((folder / "config.json").read_text()) | {"qkv_bias": False}
    (folder / "config.json").write_text(json.dumps(config))
    h, d = read_st(folder / "model.safetensors")
    write_st(folder / "model.safetensors", {n: (t, tensor(h, d, n)) for n, t in h.items() if n != "__metadata__" and not n.endswith("bias")})
    llmq("convert", folder, "-o", tmp_path / "m.gguf", "--to", "gguf")
    for m, o in ((folder, "a"), (tmp_path / "m.gguf", "b")):
        llmq("logits", m, "--ids", "1,5,9,30", "-o", tmp_path / o, "--threads", "1")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_text_of_qwen35_as_it_is_published(llmq, tmp_path):
    """Beside what sees images, its own head under a name of neither part: convert and quantize make the same tensors of it."""
    source = ROOT / "tests/golden/mtp/qwen3.5"
    h, d = read_st(source / "model.safetensors")
    kept = {n.replace("model.", "model.language_model.", 1) if n.startswith("model.") else n: (t, tensor(h, d, n))
            for n, t in h.items() if n != "__metadata__"}
    kept["model.visual.patch_embed.weight"] = ({"dtype": "F32", "shape": [4]}, bytes(16))
    text = json.loads((source / "config.json").read_text())
    (tmp_path / "m").mkdir()
    write_st(tmp_path / "m/model.safetensors", kept)
    (tmp_path / "m/config.json").write_text(json.dumps({
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": text,
        "vision_config": {"hidden_size": 4}, "tie_word_embeddings": text["tie_word_embeddings"]}))
    for m, o in ((source, "a"), (tmp_path / "m", "b")):
        p = llmq("convert", m, "-o", tmp_path / f"{o}.gguf", "--to", "gguf")
        llmq("quantize", m, "-o", tmp_path / f"{o}q.gguf", "--to", "gguf:Q8_0", "--method", "rtn")
    assert "1 tensors beside the language model are left out" in p.stderr and "MTP" not in p.stderr
    assert gguf_tensors(tmp_path / "a.gguf") == gguf_tensors(tmp_path / "b.gguf")
    assert gguf_tensors(tmp_path / "aq.gguf") == gguf_tensors(tmp_path / "bq.gguf")


def test_a_head_that_llama_cpp_leaves_out(llmq, tmp_path):
    p = llmq("convert", ROOT / "tests/golden/mtp/deepseek-v3", "-o", tmp_path / "m.gguf", "--to", "gguf")
    assert "24 tensors of a head that guesses further tokens (MTP) are left out" in p.stderr
    assert "deepseek2.nextn_predict_layers" not in gguf_pairs(tmp_path / "m.gguf")


@pytest.mark.parametrize("extra", ["mtp.layers.0.norm.weight", "backbone.layers.4.norm.weight"])
def test_heads_for_further_tokens_are_left_out(llmq, tmp_path, extra):
    folder = tmp_path / "folder"
    shutil.copytree(ARCH / "nemotron-h-moe", folder)
    if "layers.4" in extra:
        config = json.loads((folder / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
        (folder / "config.json").write_text(json.dumps(config))
    file = folder / "model.safetensors"
    h, d = read_st(file)
    at, end = h["backbone.norm_f.weight"]["data_offsets"]
    h[extra] = {**h["backbone.norm_f.weight"], "data_offsets": [len(d), len(d) + end - at]}
    head = json.dumps(h).encode()
    file.write_bytes(struct.pack("<Q", len(head)) + head + d + d[at:end])
    p = llmq("convert", folder, "-o", tmp_path / "m.gguf", "--to", "gguf", "--dtype", "bf16")
    assert "1 tensors of a head that guesses further tokens (MTP) are left out" in p.stdout + p.stderr
    assert gguf_tensors(tmp_path / "m.gguf").keys() == gguf_tensors(ROOT / "tests/golden/gguf/arch/nemotron-h-moe.gguf").keys()


def write_st(file, tensors):
    at, head = 0, {}
    for n, (t, b) in tensors.items():
        head[n] = {**t, "data_offsets": [at, at + len(b)]}
        at += len(b)
    head = json.dumps(head).encode()
    file.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(b for _, b in tensors.values()))


def floats(dtype, b):
    """Of bf16 or f32."""
    if dtype == "F32":
        return struct.unpack(f"<{len(b) // 4}f", b)
    return struct.unpack(f"<{len(b) // 2}f", b"".join(b"\0\0" + b[i:i + 2] for i in range(0, len(b), 2)))


def test_qwen3_next_is_read_as_llama_cpp_has_it(llmq, tmp_path):
    """Its first layer: q, k and v of all heads, then gates, in two matrices; norms are 1 more, A is -exp."""
    source, folder = ARCH / "qwen3-next", tmp_path / "folder"
    c = json.loads((source / "config.json").read_text())
    c.update(num_hidden_layers=1, layer_types=c["layer_types"][:1], mlp_only_layers=[])
    h, d = read_st(source / "model.safetensors")
    kept = {n: (t, tensor(h, d, n)) for n, t in h.items() if n != "__metadata__" and ".layers.1." not in n and ".layers.2." not in n}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(c))
    write_st(folder / "model.safetensors", kept)
    K, V, G = c["linear_key_head_dim"], c["linear_value_head_dim"], c["linear_num_key_heads"]
    of = c["linear_num_value_heads"] // G * V
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
             "input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "post_attention_norm.weight",
             "linear_attn.in_proj_ba.weight": "ssm_ba.weight", "linear_attn.conv1d.weight": "ssm_conv1d.weight",
             "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.A_log": "ssm_a", "linear_attn.norm.weight": "ssm_norm.weight",
             "linear_attn.out_proj.weight": "ssm_out.weight", "mlp.gate.weight": "ffn_gate_inp.weight",
             "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight"}
    names |= {f"mlp.shared_expert.{p}_proj.weight": f"ffn_{p}_shexp.weight" for p in ("gate", "up", "down")}
    tensors, stacks = [], {}
    for n, (t, b) in kept.items():
        x, shape, short = floats(t["dtype"], b), t["shape"], n.removeprefix("model.layers.0.")
        if ".experts." in n:
            stacks.setdefault(short.split(".")[-2].removesuffix("_proj"), []).append((int(short.split(".")[2]), shape, x))
            continue
        if short.endswith("in_proj_qkvz.weight"):
            H, rows = shape[1], [x[i * shape[1]:(i + 1) * shape[1]] for i in range(shape[0])]
            groups = [rows[g * (2 * K + 2 * of):(g + 1) * (2 * K + 2 * of)] for g in range(G)]
            cut = [(0, K), (K, 2 * K), (2 * K, 2 * K + of), (2 * K + of, 2 * K + 2 * of)]
            q, k, v, z = [[r for g in groups for r in g[a:e]] for a, e in cut]
            for name, part in (("attn_qkv", q + k + v), ("attn_gate", z)):
                tensors.append((f"blk.0.{name}.weight", [len(part), H], [f for r in part for f in r]))
            continue
        if short.endswith("A_log"):
            x = [-math.exp(f) for f in x]
        elif short.endswith("norm.weight") and "linear_attn" not in short:
            x = [f + 1 for f in x]
        shape = [shape[0], shape[2]] if "conv1d" in short else shape
        tensors.append((("blk.0." if short != n else "") + names[short], shape, x))
    for part, e in stacks.items():
        e.sort()
        tensors.append((f"blk.0.ffn_{part}_exps.weight", [len(e), *e[0][1]], [f for _, _, x in e for f in x]))
    numbers = {"block_count": 1, "context_length": 128, "embedding_length": c["hidden_size"], "feed_forward_length": c["intermediate_size"],
               "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": c["num_key_value_heads"],
               "attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"], "expert_count": c["num_experts"],
               "expert_used_count": c["num_experts_per_tok"], "expert_feed_forward_length": c["moe_intermediate_size"],
               "expert_shared_feed_forward_length": c["shared_expert_intermediate_size"], "ssm.conv_kernel": 4,
               "ssm.state_size": K, "ssm.group_count": G, "ssm.time_step_rank": c["linear_num_value_heads"],
               "ssm.inner_size": of * G, "rope.dimension_count": c["head_dim"] // 4}
    pairs = [pair("general.architecture", STRING, "qwen3next"), pair("qwen3next.attention.layer_norm_rms_epsilon", F32, 1e-6),
             pair("qwen3next.rope.freq_base", F32, 10000.0)] + [pair(f"qwen3next.{k}", U32, v) for k, v in numbers.items()]
    file = write_gguf(tmp_path / "m.gguf", pairs, [(n, s, 0, struct.pack(f"<{len(x)}f", *x)) for n, s, x in tensors])
    for m, o in ((folder, "a"), (file, "b")):
        llmq("logits", m, "--ids", "13,32,51,7,9,18,37,56", "-o", tmp_path / o)
    a, b = (read_floats(tmp_path / o, "logits")[1] for o in "ab")
    assert max(abs(x - y) for x, y in zip(a, b)) <= 1e-6 * max(map(abs, a))
