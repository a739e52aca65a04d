"""llmq convert to published layouts: bit for bit where the layout can hold it, refused where it cannot.

Truth: the stored bytes of checkpoints that other projects wrote (tests/golden/published), and their logits."""
import json
import os
import shutil
import signal
import struct
import time

import pytest

from harness import KEEP, begun
from test_published import GOLDEN, NAMES, assemble, errors, parts, read_floats, read_st, tensor

# Which layouts hold each golden checkpoint; the rest are refused. The first is the one it came in.
HOLDS = {
    "awq-gemm-g128": ["awq", "gptq", "gptq_v2", "compressed-tensors"],
    "bnb-fp4": ["bnb"], "bnb-nf4": ["bnb"], "bnb-nf4-double": ["bnb"],
    "bnb-int8": ["bnb", "compressed-tensors"],
    "ct-fp8-dynamic": ["compressed-tensors"], "ct-nvfp4a16": ["compressed-tensors"],
    "ct-rtn-w4a16-asym-g64": ["compressed-tensors"], "ct-rtn-w4a16-g32": ["compressed-tensors"],
    "ct-w8a16": ["compressed-tensors"], "ct-w8a8-int8": ["compressed-tensors"],
    "gptq-2bit-g32": ["gptq", "gptq_v2", "compressed-tensors"],
    "gptq-3bit-g128": ["gptq", "gptq_v2", "compressed-tensors"],
    "gptq-4bit-g32-desc-act": ["gptq", "gptq_v2"],
    "gptq-4bit-g64-asym": ["gptq", "gptq_v2", "compressed-tensors", "awq"],
    "gptq-8bit-g128": ["gptq", "gptq_v2", "compressed-tensors"],
    "gptq-v2-4bit-g128": ["gptq_v2", "gptq", "compressed-tensors", "awq"],
}
LAYOUTS = ["gptq", "gptq_v2", "awq", "compressed-tensors", "bnb"]


def convert(llmq, src, out, to, *more, **kw):
    return llmq.json("convert", src, "-o", out, "--to", to, *more, **kw)


def tensors(folder):
    """name -> (dtype, shape, bytes) of every file of the folder."""
    out = {}
    for f in sorted(folder.glob("*.safetensors")):
        h, d = read_st(f)
        assert h.pop("__metadata__") == {"format": "pt"}
        out.update({k: (t["dtype"], t["shape"], tensor(h, d, k)) for k, t in h.items()})
    return out


def test_every_golden_checkpoint_has_its_row_here():
    assert NAMES == sorted(HOLDS)


def stored(name):
    """What the project itself stored; of the 3-bit one without the zero points that its writer got wrong."""
    return {k: v for k, v in parts(name)[0].items() if name != "gptq-3bit-g128" or not k.endswith("qzeros")}


@pytest.mark.parametrize("name,layout", [(n, "portable") for n in NAMES] + [
    (n, "tile16") for n in ("gptq-4bit-g32-desc-act", "awq-gemm-g128", "ct-w8a8-int8", "bnb-nf4", "bnb-nf4-double")])
def test_a_checkpoint_comes_back_byte_for_byte_by_way_of_llmq(llmq, tmp_path, name, layout):
    folder, own = assemble(name, tmp_path / name), HOLDS[name][0]
    llmq("convert", folder, "-o", tmp_path / "m.llmq", "--to", "llmq", "--layout", layout)
    r = convert(llmq, tmp_path / "m.llmq", tmp_path / "back", own)
    back, want = tensors(tmp_path / "back"), stored(name)
    assert r["bit_exact"] and r["requantized"] == 0 and r["tensors"] == len(back)
    assert {k: back[k] for k in want} == want
    assert bool(r["notes"]) == (name in ("gptq-3bit-g128", "gptq-4bit-g64-asym"))  # v2 instead; v1 with zero points
    if name == "gptq-4bit-g64-asym":
        assert "vLLM 0.32 refuses GPTQ with zero points" in r["notes"][0]


@pytest.mark.parametrize("name,to", [(n, to) for n in NAMES for to in HOLDS[n][1:]])
def test_every_layout_that_holds_it_is_the_same_model(llmq, tmp_path, name, to):
    """Its logits are those of the library's own weights, and the way back gives the first bytes again."""
    folder = assemble(name, tmp_path / name)
    assert convert(llmq, folder, tmp_path / to, to)["bit_exact"]
    assert errors(llmq, tmp_path / to, name, tmp_path / "l")[-1] < 1e-5
    if name == "bnb-int8":  # absmax / 127 is kept, of which 127 times need not be the absmax
        return
    assert convert(llmq, tmp_path / to, tmp_path / "back", HOLDS[name][0])["bit_exact"]
    back, want = tensors(tmp_path / "back"), stored(name)
    assert {k: back.get(k) for k in want} == want


@pytest.mark.parametrize("name", NAMES)
def test_what_a_layout_cannot_hold_is_refused_or_quantized_anew(llmq, tmp_path, name):
    folder = assemble(name, tmp_path / name)
    for to in sorted(set(LAYOUTS) - set(HOLDS[name])):
        p = llmq("convert", folder, "-o", tmp_path / to, "--to", to, code=3)
        assert "has no place in this layout: " in p.stderr and p.stderr.endswith("(--allow-requantize rounds it again)\n")
        assert os.listdir(tmp_path) == [name]
    to = next(x for x in LAYOUTS if x not in HOLDS[name])
    r = convert(llmq, folder, tmp_path / to, to, "--allow-requantize")
    assert r["bit_exact"] is False and r["requantized"] == 14
    e = errors(llmq, tmp_path / to, name, tmp_path / "l")
    assert 1e-6 < e[-1] < 0.6, e  # rounded twice, and 2-bit codes become 4-bit ones


def test_zero_points_that_a_version_cannot_hold_are_named(llmq, tmp_path):
    """AWQ's zero point of 0 is -1 in version 1 of gptq."""
    def first_zero(t):
        k = next(k for k in t if k.endswith("q_proj.qzeros"))
        t[k] = (t[k][0], t[k][1], bytes(len(t[k][2])))
    folder = assemble("awq-gemm-g128", tmp_path / "m", change=first_zero)
    p = llmq("convert", folder, "-o", tmp_path / "x", "--to", "gptq", code=3)
    assert "q_proj.weight: version 1 holds zero points 1..16, found 0" in p.stderr
    assert not (tmp_path / "x").exists()
    assert convert(llmq, folder, tmp_path / "x", "gptq_v2")["bit_exact"]
    r = convert(llmq, folder, tmp_path / "x", "gptq", "--allow-requantize")
    assert r["requantized"] == 1 and not r["bit_exact"]


def test_a_plain_model_is_quantized_only_where_that_is_allowed(llmq, model, tmp_path):
    p = llmq("convert", model, "-o", tmp_path / "x", "--to", "awq", code=3)
    assert "this model is not quantized" in p.stderr
    for to in LAYOUTS:
        r = convert(llmq, model, tmp_path / to, to, "--allow-requantize")
        assert not r["bit_exact"] and r["requantized"] == 42
        llmq("verify", tmp_path / to)
    assert '"llm_int8_threshold":\t6.0,' in (tmp_path / "bnb/config.json").read_text()  # Python: no int


def test_a_quantized_model_keeps_its_files_and_is_cut_into_shards(llmq, packed, model, tmp_path):
    r = convert(llmq, packed, tmp_path / "g", "gptq", "--shard-size", "1M")
    names = sorted(p.name for p in (tmp_path / "g").iterdir())
    shards = [n for n in names if n.endswith(".safetensors")]
    assert len(shards) > 2 and "quantize_config.json" in names
    for f in model.iterdir():
        if f.name not in ("config.json", "model.safetensors"):
            assert (tmp_path / "g" / f.name).read_bytes() == f.read_bytes()
    index = json.loads((tmp_path / "g/model.safetensors.index.json").read_text())
    mine = tensors(tmp_path / "g")
    assert set(index["weight_map"]) == set(mine) and r["tensors"] == len(mine)
    assert index["metadata"]["total_size"] == r["bytes"] == sum(len(b) for _, _, b in mine.values())
    for n, (_, _, _) in mine.items():  # the parts of a weight lie together
        module = n.rsplit(".", 1)[0]
        assert len({index["weight_map"][m] for m in mine if m.rsplit(".", 1)[0] == module}) == 1
    config = json.loads((tmp_path / "g/config.json").read_text())
    q = config.pop("quantization_config")
    assert q == json.loads((tmp_path / "g/quantize_config.json").read_text())
    assert config == json.loads((model / "config.json").read_text())
    assert (q["bits"], q["group_size"], q["sym"], q["desc_act"], q["quant_method"]) == (4, 128, False, False, "gptq")
    back = convert(llmq, tmp_path / "g", tmp_path / "b.llmq", "llmq")
    assert back["bit_exact"]
    for f in ("packed", "b"):
        src = packed if f == "packed" else tmp_path / "b.llmq"
        llmq("logits", src, "--ids", "1,5,9,300,77", "-o", tmp_path / f)
    assert (tmp_path / "packed").read_bytes() == (tmp_path / "b").read_bytes()


def test_mixed_schemes_are_said_module_by_module(llmq, model, tmp_path):
    llmq("quantize", model, "-o", tmp_path / "m.llmq", "--method", "rtn", "--override",
         r".*layers\.0\.mlp\.down_proj.*=u8-g64", "--skip", r".*layers\.1\.self_attn\.k_proj.*",
         "--embed", "keep", "--lm-head", "u8-g128")
    want = tmp_path / "want"
    llmq("logits", tmp_path / "m.llmq", "--ids", "1,5,9,300,77", "-o", want)
    for to in ("gptq", "gptq_v2", "compressed-tensors"):
        assert convert(llmq, tmp_path / "m.llmq", tmp_path / to, to)["bit_exact"]
        llmq("logits", tmp_path / to, "--ids", "1,5,9,300,77", "-o", tmp_path / "got")
        assert want.read_bytes() == (tmp_path / "got").read_bytes(), to
    q = json.loads((tmp_path / "gptq/config.json").read_text())["quantization_config"]
    assert q["lm_head"] is True
    assert q["dynamic"][r"+:^model\.layers\.0\.mlp\.down_proj$"] == {"bits": 8, "group_size": 64, "sym": True}
    assert q["dynamic"][r"-:^model\.layers\.1\.self_attn\.k_proj$"] == {}
    q = json.loads((tmp_path / "compressed-tensors/config.json").read_text())["quantization_config"]
    assert q["ignore"] == ["model.layers.1.self_attn.k_proj"] and len(q["config_groups"]) == 3
    p = llmq("convert", tmp_path / "m.llmq", "-o", tmp_path / "a", "--to", "awq", code=3)
    assert "awq holds 4 bits, found 8" in p.stderr


def test_an_embedding_has_no_place_in_a_layout_of_linears(llmq, model, tmp_path):
    llmq("quantize", model, "-o", tmp_path / "m.llmq", "--method", "rtn", "--embed", "u8-g128")
    r = convert(llmq, tmp_path / "m.llmq", tmp_path / "f", "gptq")
    assert r["requantized"] == 0 and "embed_tokens.weight' (u8-g128) is written as bf16" in r["notes"][0]
    r = convert(llmq, tmp_path / "m.llmq", tmp_path / "x", "gptq", "--allow-requantize")
    assert r["requantized"] == 1 and not r["bit_exact"]


def test_what_a_killed_run_leaves_goes_with_the_next(llmq, packed, tmp_path):
    out, partial = tmp_path / "out", tmp_path / "out.tmp"
    partial.mkdir()  # as a kill in the middle leaves it
    begun(partial, "out", "model-00001-of-00002.safetensors")
    (partial / "model-00001-of-00002.safetensors").write_text("half")
    convert(llmq, packed, out, "gptq")
    assert not partial.exists()
    before = tensors(out)
    shutil.copytree(out, partial)  # the old folder, where a kill came between the exchange and its end
    old = partial.stat()
    begun(out, "out", f"# In place of {old.st_dev}:{old.st_ino}")
    convert(llmq, packed, out, "gptq")
    assert not partial.exists()
    for i in range(8):  # really killed, at whatever moment
        p = llmq.start("convert", packed, "-o", out, "--to", "gptq_v2", "--shard-size", "300K")
        time.sleep(0.02 + 0.01 * i)
        p.send_signal(signal.SIGKILL)
        p.wait()
        now = tensors(out)
        assert now == before or len(now) == len(before)  # the old or the new, whole
    convert(llmq, packed, out, "awq")
    assert sorted(os.listdir(tmp_path)) == ["out"]
    partial.mkdir()
    (partial / "thesis.txt").write_text("years of work")
    p = llmq("convert", packed, "-o", out, "--to", "gptq", code=2)
    assert "thesis.txt" in p.stderr and (partial / "thesis.txt").exists()


@pytest.mark.parametrize("arch,to", [("gpt2", "gptq"), ("gpt2", "gptq_v2"), ("gpt2", "bnb"),
                                     ("gpt-oss-sinks", "gptq"), ("gpt-oss-sinks", "bnb")])
def test_matrices_that_stand_turned_or_stacked_are_rounded_or_kept(llmq, tmp_path, arch, to):
    """GPT-2's [inputs, outputs] become codes of [outputs, inputs]; experts in one tensor stay floats."""
    r = convert(llmq, ARCH / arch, tmp_path / "m", to, "--allow-requantize")
    assert r["requantized"] == 8
    llmq("verify", tmp_path / "m", "--against", ARCH / arch)
    if to == "bnb":  # as quantize does it
        llmq("quantize", ARCH / arch, "-o", tmp_path / "q", "--method", "nf4", "--skip", "experts", *KEEP)
        for s, o in (("q", "want"), ("m", "got")):
            llmq("logits", tmp_path / s, "--ids", "1,5,9,30,77", "-o", tmp_path / o)
        assert read_floats(tmp_path / "want", "logits") == read_floats(tmp_path / "got", "logits")


def test_a_scale_for_each_row_is_no_group_of_the_same_length(llmq, tmp_path):
    """q_b_proj has 24 inputs and one scale for them; experts' down_proj has 48 and two."""
    llmq("quantize", ARCH / "deepseek-v2-mla", "-o", tmp_path / "q", "--method", "rtn", "--group-size", "32", *KEEP)
    assert convert(llmq, tmp_path / "q", tmp_path / "ct", "compressed-tensors")["bit_exact"]
    groups = json.loads((tmp_path / "ct/config.json").read_text())["quantization_config"]["config_groups"]
    targets = [t for g in groups.values() for t in g["targets"]]
    assert len(targets) == len(set(targets))
    assert {g["weights"]["strategy"] for g in groups.values()} == {"group", "channel"}
    for s, o in (("q", "want"), ("ct", "got")):
        llmq("logits", tmp_path / s, "--ids", "1,5,9,30,77", "-o", tmp_path / o)
    assert read_floats(tmp_path / "want", "logits") == read_floats(tmp_path / "got", "logits")


def test_floats_cannot_say_that_inputs_are_rounded(llmq, tmp_path):
    for name, count in (("ct-w8a8-int8", 14), ("ct-w8a16", 0)):
        r = convert(llmq, assemble(name, tmp_path / name), tmp_path / "f", "safetensors")
        assert r["bit_exact"] and [f"inputs of {count} layers" in n for n in r["notes"]] == [True] * bool(count)


def test_extra_templates_travel_and_are_replaced(llmq, packed, model, tmp_path):
    src = tmp_path / "src"
    shutil.copytree(model, src)
    (src / "additional_chat_templates").mkdir()
    (src / "additional_chat_templates/tools.jinja").write_text("{{ messages }}")
    for _ in range(2):  # the second time over the first
        convert(llmq, src, tmp_path / "out", "safetensors")
        assert (tmp_path / "out/additional_chat_templates/tools.jinja").read_text() == "{{ messages }}"
    assert sorted(os.listdir(tmp_path)) == ["out", "src"]


def test_bitsandbytes_gets_the_width_that_most_weights_have(llmq, model, tmp_path):
    """Every file by llama-quantize mixes widths; bitsandbytes holds 4 bits or 8."""
    src = tmp_path / "q.llmq"
    llmq("quantize", model, "-o", src, "--method", "rtn", "-b", 4, "-g", 32, "--override", "down_proj=u8-g32",
         *KEEP)
    p = llmq("convert", src, "-o", tmp_path / "b", "--to", "bnb", code=3)
    assert "(--allow-requantize rounds it again)" in p.stderr
    r = convert(llmq, src, tmp_path / "b", "bnb", "--allow-requantize")
    kinds = {t["scheme"] for t in llmq.json("inspect", tmp_path / "b")["tensors"] if "_proj" in t["name"]}
    assert kinds == {"nf4"} and r["requantized"] == 42


# ---- GGUF ----
GGUF = GOLDEN.parent / "gguf/novels-6m-Q2_K.gguf"
ARCH = GOLDEN.parent / "arch"


def gguf_tensors(path):
    """name -> (dims, type, the bytes from its offset to the next tensor's)."""
    b, at = path.read_bytes(), 24
    wide = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def take(form):
        nonlocal at
        v = struct.unpack_from("<" + form, b, at)[0]
        at += struct.calcsize("<" + form)
        return v

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return b[at - n:at].decode()

    def skip(kind):
        nonlocal at
        if kind == 8:
            text()
        elif kind == 9:
            of, n = take("I"), take("Q")
            for _ in range(n):
                skip(of)
        else:
            at += wide[kind]

    n, pairs = struct.unpack_from("<QQ", b, 8)
    for _ in range(pairs):
        text()
        skip(take("I"))
    infos = [(text(), [take("Q") for _ in range(take("I"))], take("I"), take("Q")) for _ in range(n)]
    start = at + -at % 32
    ends = sorted(off for *_, off in infos)[1:] + [len(b) - start]
    end = dict(zip(sorted(off for *_, off in infos), ends))
    return {name: (dims, kind, b[start + off:start + end[off]]) for name, dims, kind, off in infos}


def test_k_quants_come_back_byte_for_byte_by_way_of_llmq(llmq, tmp_path):
    """Written, read and written again: the second file is the first; and both are the library's tensors."""
    llmq("convert", GGUF, "-o", tmp_path / "a.llmq", "--to", "llmq")
    assert convert(llmq, tmp_path / "a.llmq", tmp_path / "a.gguf", "gguf")["bit_exact"]
    r = convert(llmq, tmp_path / "a.gguf", tmp_path / "b.gguf", "gguf")
    assert r["bit_exact"] and r["tensors"] == 56
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert gguf_tensors(tmp_path / "a.gguf") == gguf_tensors(GGUF)


def test_a_gguf_file_is_the_model_it_was_made_of(llmq, model, tmp_path):
    """Plain, and with codes: same logits bit for bit, same tokens, same text of conversations."""
    llmq("quantize", model, "-o", tmp_path / "q.llmq", "--method", "rtn", "--sym", "--group-size", "32",
         "--embed", "u8-g32")
    for src in (model, tmp_path / "q.llmq"):
        assert convert(llmq, src, tmp_path / "m.gguf", "gguf")["bit_exact"]
        for s, o in ((src, "want"), (tmp_path / "m.gguf", "got")):
            llmq("logits", s, "--ids", "1,5,9,300,77", "-o", tmp_path / o)
        assert (tmp_path / "want").read_bytes() == (tmp_path / "got").read_bytes()
        for command, line in (("tokenize", {"text": "It was 1812; Pierre's  friend\n\nsaid: \u00e9t\u00e9!"}),
                              ("template", {"messages": [{"role": "user", "content": "Hi"}]})):
            a, b = (llmq(command, x, input=json.dumps(line) + "\n").stdout for x in (src, tmp_path / "m.gguf"))
            assert a == b and a


@pytest.mark.parametrize("arch", [
    "llama3-gqa", "llama-linear-rope", "llama-yarn", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "phi3-longrope",
    "mixtral-moe", "qwen2-moe-shared", "qwen3-moe", "olmo2", "granite"])
def test_architectures_of_llama_cpp_survive_their_names_and_turned_rows(llmq, tmp_path, arch):
    """Also: Gemma's norms (GGUF's are 1 more), windows, softcaps, experts in one tensor, longrope's factors. 20 ids are
    more than the windows and than longrope's first length."""
    r = convert(llmq, ARCH / arch, tmp_path / "m.gguf", "gguf")
    assert r["bit_exact"] and "no tokenizer" in r["notes"][0]
    for s, o in ((ARCH / arch, "want"), (tmp_path / "m.gguf", "got")):
        llmq("logits", s, "--ids", ",".join(str(i * 7 % 90 + 3) for i in range(20)), "-o", tmp_path / o)
    _, want = read_floats(tmp_path / "want", "logits")
    _, got = read_floats(tmp_path / "got", "logits")
    # factors of frequencies are f32 in the file
    assert max(abs(a - b) for a, b in zip(want, got)) <= 1e-5 * max(map(abs, want))


def test_experts_with_codes_share_one_tensor_and_its_type(llmq, tmp_path):
    """There and back by way of .llmq the same bytes; what one expert cannot be held in, none of its stack is."""
    llmq("quantize", ARCH / "mixtral-moe", "-o", tmp_path / "q.llmq", "--method", "rtn", "--sym", "--group-size", "32")
    assert convert(llmq, tmp_path / "q.llmq", tmp_path / "a.gguf", "gguf")["bit_exact"]
    t = gguf_tensors(tmp_path / "a.gguf")
    dims, kind, data = t["blk.1.ffn_down_exps.weight"]
    assert (dims, kind, len(data)) == ([160, 64, 4], 2, 4 * 64 * 160 // 32 * 18)
    assert t["blk.0.ffn_gate_inp.weight"][:2] == ([64, 4], 0)
    llmq("convert", tmp_path / "a.gguf", "-o", tmp_path / "b.llmq", "--to", "llmq")
    convert(llmq, tmp_path / "b.llmq", tmp_path / "b.gguf", "gguf")
    assert gguf_tensors(tmp_path / "b.gguf") == t
    for m, o in (("q.llmq", "a"), ("a.gguf", "b")):
        llmq("logits", tmp_path / m, "--ids", "1,2,3,4,5", "-o", tmp_path / o)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    llmq("quantize", ARCH / "mixtral-moe", "-o", tmp_path / "z.llmq", "--method", "rtn", "--group-size", "32")
    p = llmq("convert", tmp_path / "z.llmq", "-o", tmp_path / "z.gguf", "--to", "gguf", code=3)
    assert "u4-g32-asym has no type of blocks in GGUF" in p.stderr and not (tmp_path / "z.gguf").exists()
    r = convert(llmq, tmp_path / "z.llmq", tmp_path / "z.gguf", "gguf", "--allow-requantize")
    assert r["requantized"] == 2 * (4 + 3 * 4) and gguf_tensors(tmp_path / "z.gguf")["blk.1.ffn_up_exps.weight"][1] == 8


def edited(name, tmp_path, **keys):
    folder = shutil.copytree(ARCH / name, tmp_path / name)
    folder.chmod(0o755)
    c = json.loads((folder / "config.json").read_text())
    c.update(keys)
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(c))
    return folder


def test_what_gguf_has_no_place_for_is_refused(llmq, model, packed, tmp_path):
    full, sliding = "full_attention", "sliding_attention"
    odd = edited("gemma3", tmp_path, layer_types=[sliding, full, full], sliding_window_pattern=None)
    scaled = edited("gemma2", tmp_path, query_pre_attn_scalar=64)
    for arch, why in ((ARCH / "opt", "GGUF has no name for OPTForCausalLM"), (ARCH / "mistral-swa", "window: GGUF's 'llama' has no"),
                      (ARCH / "llama-dynamic-ntk", 'has no place for "dynamic"'), (odd, "window_layers: GGUF's 'gemma3'"),
                      (scaled, "attn_scale: GGUF's 'gemma2'"), (ARCH / "smollm3-nope", "no_rope_layers")):
        p = llmq("convert", arch, "-o", tmp_path / "x.gguf", "--to", "gguf", code=3)
        assert why in p.stderr
    for folder in (odd, scaled):
        shutil.rmtree(folder)
    p = llmq("convert", packed, "-o", tmp_path / "x.gguf", "--to", "gguf", code=3)
    assert "u4-g128-asym has no type of blocks in GGUF" in p.stderr
    assert os.listdir(tmp_path) == []
    r = convert(llmq, packed, tmp_path / "x.gguf", "gguf", "--allow-requantize")
    assert r["requantized"] == 42 and not r["bit_exact"]
    p = llmq("convert", packed, "-o", tmp_path / "y.gguf", "--to", "gguf", "--shard-size", "1M", code=2)
    assert "--shard-size does not go with --to gguf" in p.stderr


TOKENIZERS = GOLDEN.parent / "tokenizers"


@pytest.mark.parametrize("name", ["llama2-spm-bpe", "gemma-no-prefix", "mistral-metaspace-first"])
def test_pieces_of_sentencepiece_cut_text_in_a_gguf_file_as_in_the_folder(llmq, tmp_path, name):
    """tokenizer.json has merges, GGUF scores; what is read of that comes back as scores once more."""
    folder = edited("llama2-mha", tmp_path, vocab_size=1500)
    h, d = read_st(folder / "model.safetensors")
    data, rows = b"", {k: tensor(h, d, k) for k in h if k != "__metadata__"}
    for key, b in rows.items():
        if h[key]["shape"][0] == 96:  # the embedding and the head: more rows of the same
            h[key]["shape"][0], b = 1500, (b * 16)[:len(b) * 1500 // 96]
        h[key]["data_offsets"] = [len(data), len(data) + len(b)]
        data += b
    head = json.dumps(h).encode()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    # no real model has a token of a NUL, and JSON's reader refuses one
    (folder / "tokenizer.json").write_text((TOKENIZERS / name / "tokenizer.json").read_text().replace('"\\u0000":', '"<nul>":'))
    r = convert(llmq, folder, tmp_path / "m.gguf", "gguf")
    metaspace = name == "mistral-metaspace-first"  # puts no space before a text that begins with one or follows a special token
    assert [("begins with a space" in n) for n in r["notes"]] == [True] * metaspace
    llmq("convert", tmp_path / "m.gguf", "-o", tmp_path / "m.llmq", "--to", "llmq")
    assert not convert(llmq, tmp_path / "m.llmq", tmp_path / "n.gguf", "gguf")["notes"]
    cases = [json.loads(x) for x in (TOKENIZERS / name / "cases.jsonl").read_text().splitlines()]
    lines = "".join(json.dumps({"text": c["text"]}) + "\n" for c in cases)
    want, got, again = (llmq("tokenize", m, input=lines).stdout.strip().split("\n") for m in (folder, tmp_path / "m.gguf", tmp_path / "n.gguf"))
    assert got == again and len(got) == len(cases)
    differ = [c["text"] for c, a, b in zip(cases, want, got) if json.loads(a)["ids"] != json.loads(b)["ids"]]
    if metaspace:
        differ = [t for t in differ if not t.startswith((" ", "▁")) and "<s>" not in t and "</s>" not in t]
    assert not differ, differ[:5]
