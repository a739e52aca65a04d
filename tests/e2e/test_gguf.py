"""GGUF files: one by llama.cpp, and ones made here from the golden checkpoints of transformers."""
import json
import math
import random
import shutil
import struct

import pytest

from conftest import ROOT
from test_bad_input import read_st, refused
from test_published import read_floats, tensor

GOLDEN = ROOT / "tests/golden/gguf/novels-6m-Q2_K.gguf"
EXPECTED = ROOT / "tests/golden/gguf/novels-6m-Q2_K.expected.safetensors"
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9


def text(x):
    x = x.encode()
    return struct.pack("<Q", len(x)) + x


def pair(key, kind, v):
    form = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}
    return text(key) + struct.pack("<I", kind) + (text(v) if kind == STRING else struct.pack(form[kind], v))


def write_gguf(path, pairs, tensors):
    """tensors: (name, shape outermost first, ggml type, bytes)."""
    infos, data = b"", b""
    for name, shape, kind, b in tensors:
        data += b"\0" * (-len(data) % 32)
        infos += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", d) for d in shape[::-1])
        infos += struct.pack("<IQ", kind, len(data))
        data += b
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs) + infos
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return path


NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "self_attn.qkv_proj": "attn_qkv",
         "mlp.gate_up_proj": "ffn_up", "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp"}
EXPERT = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
          "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}


def gguf_name(name):
    """And which expert's part of it that is, or None."""
    module, kind = name.rsplit(".", 1)
    if module in NAMES:
        return f"{NAMES[module]}.{kind}", None
    _, _, layer, rest = module.split(".", 3)
    if ".experts." in rest:
        _, _, expert, which = rest.split(".")
        return f"blk.{layer}.{EXPERT[which]}.{kind}", int(expert)
    return f"blk.{layer}.{LAYER[rest]}.{kind}", None


def convert(folder, out, arch):
    """What llama.cpp's converter does with a bf16 or f32 checkpoint."""
    pairs, tensors = metadata_and_tensors(folder, arch)
    return write_gguf(out, pairs, tensors)


def metadata_and_tensors(folder, arch):
    c = json.loads((folder / "config.json").read_text())
    h, d = read_st(folder / "model.safetensors")
    D = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    heads = {"q_proj": c["num_attention_heads"], "k_proj": c["num_key_value_heads"]}
    pairs = [pair("general.architecture", STRING, arch)]
    pairs += [pair(f"{arch}.{k}", U32, v) for k, v in {
        "block_count": c["num_hidden_layers"], "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"], "feed_forward_length": c["intermediate_size"],
        "attention.head_count": heads["q_proj"], "attention.head_count_kv": heads["k_proj"],
        "attention.key_length": D, "attention.value_length": D}.items()]
    pairs += [pair(f"{arch}.attention.layer_norm_rms_epsilon", F32, c["rms_norm_eps"]),
              pair(f"{arch}.rope.freq_base", F32, c["rope_theta"])]
    experts = c.get("num_experts") or c.get("num_local_experts")
    if experts:
        pairs += [pair(f"{arch}.expert_count", U32, experts),
                  pair(f"{arch}.expert_used_count", U32, c["num_experts_per_tok"])]
        if "moe_intermediate_size" in c:
            pairs += [pair(f"{arch}.expert_feed_forward_length", U32, c["moe_intermediate_size"])]
    if arch == "phi3":
        pairs += [pair("phi3.rope.dimension_count", U32, int(D * c.get("partial_rotary_factor", 1.0)))]
    tensors, stacks = [], {}
    for name, t in h.items():
        if name == "__metadata__" or (name == "lm_head.weight" and c.get("tie_word_embeddings")):
            continue
        b, shape = tensor(h, d, name), t["shape"]
        part = name.split(".")[-2]
        if arch == "llama" and part in heads:  # rows of a head: its halves alternate
            row = len(b) // shape[0]
            order = [i // D * D + (i % D % 2) * (D // 2) + i % D // 2 for i in range(shape[0])]
            b = b"".join(b[i * row:(i + 1) * row] for i in order)
        new, expert = gguf_name(name)
        kind = {"F32": 0, "F16": 1, "BF16": 30}[t["dtype"]]
        if expert is None:
            tensors.append((new, shape, kind, b))
        else:
            stacks.setdefault(new, (shape, kind, {}))[2][expert] = b
    tensors += [(n, [len(s[2]), *s[0]], s[1], b"".join(s[2][e] for e in sorted(s[2]))) for n, s in stacks.items()]
    scaling = c.get("rope_scaling")
    if scaling:  # Llama 3: a factor for each frequency
        low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
        original, out_f = scaling["original_max_position_embeddings"], []
        for i in range(D // 2):
            wave = 2 * math.pi * c["rope_theta"] ** (2 * i / D)
            smooth = (original / wave - low) / (high - low)
            out_f.append(1.0 if wave < original / high else factor if wave > original / low else
                         1 / ((1 - smooth) / factor + smooth))
        tensors.append(("rope_freqs.weight", [D // 2], 0, struct.pack(f"<{D // 2}f", *out_f)))
    return pairs, tensors


def test_the_logits_of_a_file_by_llama_cpp(llmq, tmp_path):
    _, ids = read_floats(EXPECTED, "input_ids")
    (_, _, V), want = read_floats(EXPECTED, "logits")
    _, positions = read_floats(EXPECTED, "positions")
    llmq("logits", GOLDEN, "--ids", ",".join(map(str, ids)), "-o", tmp_path / "l.safetensors")
    shape, got = read_floats(tmp_path / "l.safetensors", "logits")
    assert shape == [32, V]
    top, got = max(map(abs, want)), [x for p in positions for x in got[p * V:(p + 1) * V]]
    assert len(got) == len(want) == 5 * V
    assert max(abs(a - b) for a, b in zip(got, want)) < 1e-5 * top  # issue 9 asks for 1e-3


def test_a_file_that_says_no_base_of_the_rotation_has_llama_cpps(llmq, tmp_path):
    """10,000 in every architecture; of Mixtral transformers has 1,000,000."""
    pairs, tensors = metadata_and_tensors(ROOT / "tests/golden/arch/mixtral-moe", "llama")
    silent = [p for p in pairs if b"rope.freq_base" not in p]
    assert len(silent) == len(pairs) - 1
    for name, base in (("silent", []), ("said", [pair("llama.rope.freq_base", F32, 1e4)]), ("own", [pair("llama.rope.freq_base", F32, 1e6)])):
        file = write_gguf(tmp_path / f"{name}.gguf", silent + base, tensors)
        llmq("logits", file, "--ids", "1,2,3,4,5,6,7,8", "-o", tmp_path / name)
    silent, said, own = (read_floats(tmp_path / name, "logits")[1] for name in ("silent", "said", "own"))
    assert silent == said != own


def test_it_is_inspected_converted_and_verified(llmq, tmp_path):
    doc = llmq.json("inspect", GOLDEN)
    assert doc["format"] == "gguf" and doc["arch"] == "LlamaForCausalLM" and doc["params"] == 5770496
    assert {s["scheme"] for s in doc["schemes"]} == {"f32", "q2_k", "q3_k", "q6_k"}
    out = tmp_path / "m.llmq"
    llmq("convert", GOLDEN, "-o", out, "--to", "llmq", "--layout", "tile16")
    llmq("verify", out, "--against", GOLDEN)
    for m, o in ((GOLDEN, "a"), (out, "b")):
        llmq("logits", m, "--ids", "1,2,3,4", "-o", tmp_path / o)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_its_tokenizer_is_that_of_the_folder(llmq, model):
    lines = "\n".join(json.dumps({"text": t}) for t in [
        "Hello, world!", " two  spaces\n\nand\tlines ", "I'LL they've 1234567", "<|im_start|>user\nhi<|im_end|>",
        "한국어 テスト 🙂 naïve", ""]) + "\n"
    a = llmq("tokenize", GOLDEN, input=lines).stdout
    assert a == llmq("tokenize", model, input=lines).stdout and len(a.splitlines()) == 6


@pytest.mark.parametrize("name,arch", [("llama3-gqa", "llama"), ("llama2-mha", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3"),
                                       ("phi3", "phi3"), ("qwen3-moe", "qwen3moe"), ("mixtral-moe", "llama")])
def test_a_model_gives_the_same_logits_from_gguf(llmq, tmp_path, name, arch):
    folder = ROOT / "tests/golden/arch" / name
    if name == "llama3-gqa":  # GGUF keeps the factors alone: they are recognised for the 8192 of Llama 3
        folder = shutil.copytree(folder, tmp_path / name)
        folder.joinpath("config.json").chmod(0o644)
        c = json.loads((folder / "config.json").read_text())
        c["rope_theta"] = 500000.0
        c["rope_scaling"].update(original_max_position_embeddings=8192, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
        c["max_position_embeddings"] = 131072
        (folder / "config.json").write_text(json.dumps(c))
    file = convert(folder, tmp_path / "m.gguf", arch)
    for m, o in ((folder, "a"), (file, "b")):
        llmq("logits", m, "--ids", "1,2,3,4,5,6,7", "-o", tmp_path / o)
    _, a = read_floats(tmp_path / "a", "logits")
    _, b = read_floats(tmp_path / "b", "logits")
    # Equal weights; only Llama 3's frequencies pass through f32.
    assert max(abs(x - y) for x, y in zip(a, b)) <= 1e-6 * max(map(abs, a))


def same_logits(llmq, tmp_path, a, b):
    for m, o in ((a, "a"), (b, "b")):
        llmq("logits", m, "--ids", "1,2,3,4,5,6,7", "-o", tmp_path / o)
    return (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


E2M1 = [0, .5, 1, 1.5, 2, 3, 4, 6]


def nvfp4(n, seed):
    """n elements of random blocks, and their values."""
    r = random.Random(seed)
    blocks, values = b"", []
    for _ in range(n // 64):
        scales, codes = [r.randrange(0x28, 0x38) for _ in range(4)], [r.randrange(16) for _ in range(64)]
        blocks += bytes(scales)
        for g in range(4):
            blocks += bytes(codes[16 * g + i] | codes[16 * g + 8 + i] << 4 for i in range(8))
        values += [(-1) ** (c >> 3) * E2M1[c & 7] * (1 + scales[i // 16] % 8 / 8) * 2.0 ** (scales[i // 16] // 8 - 7)
                   for i, c in enumerate(codes)]
    return blocks, values


@pytest.mark.parametrize("name,arch", [("llama-128", "llama"), ("qwen3-moe", "qwen3moe")])
def test_nvfp4_has_a_scale_beside_each_weight(llmq, tmp_path, name, arch):
    pairs, tensors = metadata_and_tensors(ROOT / "tests/golden/arch" / name, arch)
    packed, plain, some = [], [], 0
    for i, t in enumerate(tensors):
        shape = t[1]
        if not t[0].startswith("blk.") or len(shape) < 2 or shape[-1] % 64 or "gate_inp" in t[0]:
            packed.append(t)
            plain.append(t)
            continue
        some += 1
        blocks, values = nvfp4(math.prod(shape), i)
        second = [2.0 ** -(3 + e % 3) for e in range(shape[0] if len(shape) == 3 else 1)]
        each = len(values) // len(second)
        packed += [(t[0], shape, 40, blocks),
                   (t[0].replace("weight", "scale"), [len(second)], 0, struct.pack(f"<{len(second)}f", *second)),
                   (t[0].replace("weight", "input_scale"), [len(second)], 0, struct.pack(f"<{len(second)}f", *second))]
        plain.append((t[0], shape, 0, struct.pack(f"<{len(values)}f", *(v * second[k // each] for k, v in enumerate(values)))))
    assert some
    a, b = write_gguf(tmp_path / "a.gguf", pairs, packed), write_gguf(tmp_path / "b.gguf", pairs, plain)
    doc = llmq.json("inspect", a)
    assert "nvfp4" in {s["scheme"] for s in doc["schemes"]} and "NVFP4" in " ".join(doc["notes"])
    assert same_logits(llmq, tmp_path, a, b)
    llmq("convert", a, "-o", tmp_path / "c.gguf", "--to", "gguf")
    assert same_logits(llmq, tmp_path, tmp_path / "c.gguf", b)
    for share in (["--shard", "1/2"], ["--shard", "2/2"], []):  # a scale is made with its weight
        said = llmq("convert", a, "-o", tmp_path / "d.gguf", "--to", "gguf", *share).stderr
    assert "parts" not in said and (tmp_path / "d.gguf").read_bytes() == (tmp_path / "c.gguf").read_bytes()
    assert "nvfp4" in {s["scheme"] for s in llmq.json("inspect", tmp_path / "c.gguf")["schemes"]}
    r = llmq.json("convert", a, "-o", tmp_path / "f.gguf", "--to", "gguf", "--dtype", "f32")
    assert r["bit_exact"] and {s["scheme"] for s in llmq.json("inspect", tmp_path / "f.gguf")["schemes"]} == {"f32"}
    assert same_logits(llmq, tmp_path, tmp_path / "f.gguf", b)


def test_a_scale_beside_other_weights_is_refused(llmq, tmp_path):
    pairs, tensors = metadata_and_tensors(ROOT / "tests/golden/arch/llama-128", "llama")
    tensors.append(("blk.0.attn_q.scale", [1], 0, struct.pack("<f", 2)))
    file = write_gguf(tmp_path / "a.gguf", pairs, tensors)
    assert "'blk.0.attn_q.scale': a scale of weights of " in refused(llmq, tmp_path, "logits", file, "--ids", "1", "-o", tmp_path / "l")


def split(tmp_path, folder, arch, parts):
    pairs, tensors = metadata_and_tensors(folder, arch)
    for i in range(parts):
        own = (pairs if i == 0 else []) + [pair("split.no", U32, i), pair("split.count", U32, parts),
                                           pair("split.tensors.count", I32, len(tensors))]
        write_gguf(tmp_path / f"m-{i + 1:05}-of-{parts:05}.gguf", own, tensors[i::parts])
    return tmp_path / f"m-00001-of-{parts:05}.gguf"


def test_a_split_model_is_one_model(llmq, tmp_path):
    folder = ROOT / "tests/golden/arch/qwen3-moe"
    first = split(tmp_path, folder, "qwen3moe", 3)
    assert same_logits(llmq, tmp_path, folder, first)
    llmq("convert", first, "-o", tmp_path / "m.llmq", "--to", "llmq")
    llmq("verify", tmp_path / "m.llmq", "--against", first)
    r = llmq.json("publish", first, f"dir:{tmp_path}/hub", "--dry-run")
    assert sum(f["name"].endswith("-of-00003.gguf") for f in r["files"]) == 3
    second, third = tmp_path / "m-00002-of-00003.gguf", tmp_path / "m-00003-of-00003.gguf"
    assert "split.no: expected the first" in refused(llmq, tmp_path, "inspect", second)
    keep = third.read_bytes()
    third.write_bytes(second.read_bytes())
    assert "expected part 2 of 3, found 1 of 3" in refused(llmq, tmp_path, "inspect", first)
    third.write_bytes(keep[:-500])
    assert "m-00003-of-00003.gguf" in refused(llmq, tmp_path, "inspect", first)
    third.unlink()
    assert "m-00003-of-00003.gguf" in refused(llmq, tmp_path, "inspect", first)
    first.rename(tmp_path / "renamed.gguf")
    assert "named ...-00001-of-00003.gguf" in refused(llmq, tmp_path, "inspect", tmp_path / "renamed.gguf")


def varint(b, at):
    v = shift = 0
    while True:
        v |= (b[at] & 0x7f) << shift
        shift, at = shift + 7, at + 1
        if b[at - 1] < 0x80:
            return v, at


def pieces_of(model):
    """(text, score, type) of a SentencePiece model."""
    b, at, out = model, 0, []
    while at < len(b):
        key, at = varint(b, at)
        n, at = varint(b, at)
        m, at = b[at:at + n], at + n
        if key != 1 << 3 | 2:
            continue
        text_, score, kind, k = "", 0.0, 1, 0
        while k < len(m):
            f, k = varint(m, k)
            if f == 1 << 3 | 2:
                n, k = varint(m, k)
                text_, k = m[k:k + n].decode(), k + n
            elif f == 2 << 3 | 5:
                score, k = struct.unpack_from("<f", m, k)[0], k + 4
            else:
                kind, k = varint(m, k)
        out.append((text_, score, kind))
    return out


def test_sentencepiece_in_a_file_cuts_text_as_its_model_does(llmq, tmp_path):
    data = (ROOT / "tests/golden/tok_files/bpe.model").read_bytes()
    pieces = pieces_of(data)
    bos, eos = (next(i for i, p in enumerate(pieces) if p[0] == t) for t in ("<s>", "</s>"))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(data)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}))

    def array(key, kind, form, values):
        body = b"".join(text(v) if kind == STRING else struct.pack(form, v) for v in values)
        return text(key) + struct.pack("<IIQ", ARRAY, kind, len(values)) + body

    pairs, tensors = metadata_and_tensors(ROOT / "tests/golden/arch/llama2-mha", "llama")
    pairs += [pair("tokenizer.ggml.model", STRING, "llama"), array("tokenizer.ggml.tokens", STRING, "", [p[0] for p in pieces]),
              array("tokenizer.ggml.scores", F32, "<f", [p[1] for p in pieces]),
              array("tokenizer.ggml.token_type", I32, "<i", [p[2] for p in pieces]),
              pair("tokenizer.ggml.bos_token_id", U32, bos), pair("tokenizer.ggml.eos_token_id", U32, eos)]
    file = write_gguf(tmp_path / "m.gguf", pairs, tensors)
    lines = "\n".join(json.dumps({"text": t}) for t in [
        "Hello, world!", " two  spaces\n\nand\tlines ", "naïve café 1234", "한국어 🙂", "<s>x</s>", "", "a"]) + "\n"
    a, b = llmq("tokenize", file, input=lines).stdout, llmq("tokenize", folder, input=lines).stdout
    assert a == b and len(a.splitlines()) == 7 and f'"ids":[{bos},' in a.replace(" ", "")
    broken = write_gguf(tmp_path / "n.gguf", [p for p in pairs if b"ggml.scores" not in p], tensors)
    notes = llmq.json("inspect", broken)["notes"]
    assert any("no score for each token" in n for n in notes)


@pytest.mark.parametrize("why,change,says", [
    ("another architecture", lambda b: b.replace(text("llama"), text("rwkv7"), 1), '"rwkv7"'),
    ("cut short", lambda b: b[:-1000], "in a file of"),
    ("a width that is not there", lambda b: b.replace(b"llama.embedding_length", b"llama.embedding_lengtX", 1), "hidden_size"),
    ("a type we do not read", lambda b: b.replace(struct.pack("<QQI", 256, 4096, 14), struct.pack("<QQI", 256, 4096, 24), 1),
     "type I8 is not read"),
    ("a type that llama.cpp has not either", lambda b: b.replace(struct.pack("<QQI", 256, 4096, 14),
                                                                 struct.pack("<QQI", 256, 4096, 77), 1), "type 77"),
    ("heads that do not divide the rows", lambda b: b.replace(
        text("llama.attention.head_count") + struct.pack("<II", 4, 4),
        text("llama.attention.head_count") + struct.pack("<II", 4, 6), 1), "head"),
], ids=lambda x: x if isinstance(x, str) and " " in x else None)
def test_damage_is_refused_in_a_sentence(llmq, tmp_path, why, change, says):
    bad = tmp_path / "bad.gguf"
    before = GOLDEN.read_bytes()
    bad.write_bytes(change(before))
    assert bad.read_bytes() != before
    line = refused(llmq, tmp_path, "logits", bad, "--ids", "1,2", "-o", tmp_path / "o")
    assert says in line, line


@pytest.mark.parametrize("layout", ["gptq", "gptq_v2", "awq", "compressed-tensors"])
def test_a_quantized_embedding_is_floats_in_layouts_of_linear_layers(llmq, tmp_path, model, layout):
    """Every file by llama-quantize has a quantized token_embd."""
    llmq("quantize", model, "-o", tmp_path / "q.llmq", "--method", "rtn", "-b", 4, "-g", 32, "--sym", "--embed", "u8-g32")
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "q.gguf", "--to", "gguf")
    r = llmq.json("convert", tmp_path / "q.gguf", "-o", tmp_path / "out", "--to", layout)
    assert r["requantized"] == 0 and any("embed_tokens.weight' (u8-g32) is written as f16" in n for n in r["notes"])
    h, _ = read_st(tmp_path / "out/model.safetensors")
    assert h["model.embed_tokens.weight"]["dtype"] == "F16"
    for m, o in ((tmp_path / "q.gguf", "a"), (tmp_path / "out", "b")):
        llmq("logits", m, "--ids", "1,2,3,4,5,6,7", "-o", tmp_path / o)
    _, a = read_floats(tmp_path / "a", "logits")
    _, b = read_floats(tmp_path / "b", "logits")
    assert max(abs(x - y) for x, y in zip(a, b)) <= 2e-3 * max(map(abs, a))  # f16 keeps 11 bits


def of_each_layer(key, values):
    return text(key) + struct.pack("<IIQ", ARRAY, U32, len(values)) + struct.pack(f"<{len(values)}I", *values)


@pytest.mark.parametrize("key", ["attention.head_count_kv", "feed_forward_length", "expert_used_count"])
def test_a_number_for_each_layer_is_one_where_they_are_equal(llmq, tmp_path, key):
    folder = ROOT / "tests/golden/arch/mixtral-moe"
    pairs, tensors = metadata_and_tensors(folder, "llama")
    name = text(f"llama.{key}")
    n, = struct.unpack("<I", next(p for p in pairs if p.startswith(name))[-4:])
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    others = [p for p in pairs if not p.startswith(name)]
    same = write_gguf(tmp_path / "same.gguf", [*others, of_each_layer(f"llama.{key}", [n] * layers)], tensors)
    assert same_logits(llmq, tmp_path, folder, same)
    differ = write_gguf(tmp_path / "differ.gguf", [*others, of_each_layer(f"llama.{key}", [n] * (layers - 1) + [n + 1])], tensors)
    assert f"llama.{key}: expected one number for all layers" in llmq("run", differ, "--ids", "1", "-n", 1, code=3).stderr


@pytest.mark.parametrize("key,value,why", [
    ("attention.layer_norm_rms_epsilon", None, "expected a number, found none"),
    ("context_length", None, "expected a number, found none"),
    ("expert_used_count", None, "expected a number, found none"),
    ("expert_used_count", (F32, 1.5), "expected a whole number, found another"),
    ("expert_used_count", (U32, 0), "expected 1 or more, found fewer"),
    ("context_length", (F32, math.nan), "expected a whole number, found another"),
    ("rope.freq_base", (STRING, "10000"), "expected a number, found none"),
], ids=str)
def test_numbers_that_are_needed_and_their_types(llmq, tmp_path, key, value, why):
    """Without them config.json's defaults counted, without a word."""
    pairs, tensors = metadata_and_tensors(ROOT / "tests/golden/arch/mixtral-moe", "llama")
    others = [p for p in pairs if not p.startswith(text(f"llama.{key}"))]
    new = [] if value is None else [pair(f"llama.{key}", *value)]
    assert len(others) < len(pairs)
    g = write_gguf(tmp_path / "m.gguf", [*others, *new], tensors)
    assert f"llama.{key}: {why}" in llmq("run", g, "--ids", "1", "-n", 1, code=3).stderr


@pytest.mark.parametrize("name,arch", [("phi2", "phi2"), ("stablelm", "stablelm"), ("gpt-neox", "gptneox")])
def test_without_a_count_of_rotated_dims_the_whole_head_is(llmq, tmp_path, name, arch):
    """As in llama.cpp; config.json's readers would take a share of it."""
    folder = ROOT / "tests/golden/arch" / name
    llmq("convert", folder, "-o", tmp_path / "m.gguf", "--to", "gguf")
    c, b = json.loads((folder / "config.json").read_text()), (tmp_path / "m.gguf").read_bytes()
    key = f"{arch}.rope.dimension_count".encode()
    at = b.index(key) + len(key) + 4
    whole = struct.pack("<I", c["hidden_size"] // c["num_attention_heads"])
    (tmp_path / "whole.gguf").write_bytes(b[:at] + whole + b[at + 4:])
    (tmp_path / "none.gguf").write_bytes(b.replace(key, key[:-5] + b"other"))
    assert same_logits(llmq, tmp_path, tmp_path / "whole.gguf", tmp_path / "none.gguf")
    assert not same_logits(llmq, tmp_path, tmp_path / "m.gguf", tmp_path / "none.gguf")


def test_biases_of_experts_are_floats(llmq, tmp_path):
    """Blocks there would be read beyond their end."""
    pairs = [pair("general.architecture", STRING, "granitemoe")]
    pairs += [pair(f"granitemoe.{k}", U32, v) for k, v in {
        "block_count": 1, "context_length": 64, "embedding_length": 32, "feed_forward_length": 32, "attention.head_count": 4,
        "attention.head_count_kv": 4, "expert_count": 64, "expert_used_count": 2}.items()]
    pairs += [pair("granitemoe.attention.layer_norm_rms_epsilon", F32, 1e-5)]
    block = bytes(34)
    tensors = [("token_embd.weight", [64, 32], 0, bytes(64 * 32 * 4)),
               ("blk.0.ffn_gate_exps.bias", [64, 32], 8, block * 64), ("blk.0.ffn_up_exps.bias", [64, 32], 8, block * 64)]
    f = write_gguf(tmp_path / "m.gguf", pairs, tensors)
    assert "'blk.0.ffn_gate_exps.bias': expected floats" in llmq("inspect", f, code=3).stderr


def test_fewer_blocks_than_are_stored_are_refused(llmq, tmp_path):
    raw = (ROOT / "tests/golden/gguf/novels-6m-Q2_K.gguf").read_bytes()
    at = raw.index(b"llama.block_count") + len("llama.block_count") + 4  # after the type
    n = struct.unpack_from("<I", raw, at)[0]
    (tmp_path / "m.gguf").write_bytes(raw[:at] + struct.pack("<I", n - 1) + raw[at + 4:])
    p = llmq("logits", tmp_path / "m.gguf", "--ids", "1,2", "-o", tmp_path / "l", code=3)
    assert f"llama.block_count: expected the {n} blocks or more that are stored, found {n - 1} (tensor 'blk.{n - 1}." in p.stderr
