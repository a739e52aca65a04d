"""The words that llmq writes against those that the projects' own packers make of the same values, on 1,001 random
matrices for each scheme: a Llama of 143 layers, whose scales span three decades (f16 holds them all), with groups of zeros, of one value
and with outliers. Each test needs that project's package and says so where it is not there.

    python3 -m venv v && v/bin/pip install pytest numpy torch compressed-tensors bitsandbytes gguf gptqmodel autoawq \
        && v/bin/python -m pytest tests/interop/test_packers.py
"""
import json

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
LAYERS, HIDDEN, FFN, GROUP = 143, 64, 96, 32
SHAPES = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (32, HIDDEN), "self_attn.v_proj": (32, HIDDEN),
          "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN),
          "mlp.down_proj": (HIDDEN, FFN)}
MODULES = [f"model.layers.{i}.{m}" for i in range(LAYERS) for m in SHAPES]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The checkpoint and its matrices."""
    folder, draw = tmp_path_factory.mktemp("plain"), torch.Generator().manual_seed(1)
    tensors = {"model.embed_tokens.weight": torch.randn(64, HIDDEN, generator=draw), "model.norm.weight": torch.ones(HIDDEN)}
    for i in range(LAYERS):
        for n in ("input", "post_attention"):
            tensors[f"model.layers.{i}.{n}_layernorm.weight"] = torch.ones(HIDDEN)
    for j, m in enumerate(MODULES):
        w = torch.randn(SHAPES[m.split(".", 3)[3]], generator=draw) * 10 ** (3 * torch.rand(1, generator=draw) - 2)
        w[j % 32, :GROUP] = 0
        w[(j + 1) % 32, :GROUP] = w[0, 0]
        w[(j + 2) % 32, j % HIDDEN] *= 30
        tensors[m + ".weight"] = w
    safetensors.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 64,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 128, "tie_word_embeddings": True, "torch_dtype": "float32"}))
    return folder, tensors


def load(llmq, source, out, to, *more):
    llmq("convert", source, "-o", out, "--to", to, *more)
    return safetensors.load_file(out / "model.safetensors")


def fields(words, bits):
    """Codes along the last dimension, which is one stream of bits."""
    b = np.ascontiguousarray(words.numpy()).view(np.uint8)
    b = np.unpackbits(b, axis=-1, bitorder="little").reshape(*b.shape[:-1], -1, bits)
    return torch.from_numpy((b * (1 << np.arange(bits))).sum(-1).astype(np.int32))


class Grid:
    """A model rounded by llmq: its weights in f32, and by module scales and zero points [N, groups]."""

    def __init__(self, llmq, plain, folder, bits, *how):
        self.bits, self.path = bits, folder / "q.llmq"
        llmq("quantize", plain[0], "-o", self.path, "--method", "rtn", "--bits", bits, "--group-size", GROUP, *how)
        self.floats = load(llmq, self.path, folder / "f", "safetensors", "--dtype", "f32")
        self.v2 = load(llmq, self.path, folder / "v2", "gptq_v2")

    def __iter__(self):
        for m in MODULES:
            zeros = fields(self.v2[m + ".qzeros"], self.bits)
            yield m, self.floats[m + ".weight"], self.v2[m + ".scales"].float().T.contiguous(), zeros.T.contiguous()


GRIDS = [(4,), (4, "--sym"), (2,), (3,), (8,), (8, "--sym")]


def linear(w):
    layer = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    layer.weight.data = w.clone()
    return layer


@pytest.mark.parametrize("how", GRIDS, ids=str)
def test_gptqmodel_packs_the_same_words(llmq, plain, tmp_path, how):
    pytest.importorskip("gptqmodel", reason="gptqmodel is not installed")
    from gptqmodel.nn_modules.qlinear import torch as layers
    Layer = getattr(layers, "TorchLinear", None) or layers.TorchQuantLinear  # from 7 on; until 5
    grid, n = Grid(llmq, plain, tmp_path, *how), 0
    for m, w, scales, zeros in grid:
        out, k = w.shape
        g_idx = torch.arange(k, dtype=torch.int32) // GROUP
        theirs = Layer(bits=how[0], group_size=GROUP, sym=len(how) > 1, desc_act=False, in_features=k, out_features=out)
        theirs.pack_original(linear(w), scales, zeros.float(), g_idx)
        for part in ("qweight", "scales", "qzeros"):
            if part == "qzeros" and how[0] == 3:
                continue  # GPTQModel up to 5 writes the words of 3-bit zero points in the wrong order
            assert torch.equal(getattr(theirs, part).int() if part != "scales" else theirs.scales.half(),
                               grid.v2[f"{m}.{part}"].int() if part != "scales" else grid.v2[f"{m}.{part}"].half()), (m, part)
        n += 1
    assert n == 1001


@pytest.mark.parametrize("how", [(4,), (4, "--sym")], ids=str)
def test_autoawq_packs_the_same_words(llmq, plain, tmp_path, how):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    activations = transformers.activations  # AutoAWQ 0.2.9 asks for a name that transformers 4.57 no longer has
    if not hasattr(activations, "PytorchGELUTanh"):
        activations.PytorchGELUTanh = activations.GELUTanh
    pytest.importorskip("awq", reason="autoawq is not installed")
    from awq.modules.linear.gemm import WQLinear_GEMM
    grid, n = Grid(llmq, plain, tmp_path, *how), 0
    ours = load(llmq, grid.path, tmp_path / "awq", "awq", "--dtype", "f16")
    for m, w, scales, zeros in grid:
        theirs = WQLinear_GEMM.from_linear(linear(w), 4, GROUP, False, scales.T.contiguous(),
                                           zeros.float().T.contiguous())
        for part in ("qweight", "scales", "qzeros"):
            assert torch.equal(getattr(theirs, part), ours[f"{m}.{part}"]), (m, part)
        n += 1
    assert n == 1001


@pytest.mark.parametrize("how", GRIDS, ids=str)
def test_compressed_tensors_packs_the_same_words(llmq, plain, tmp_path, how):
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers",
                                  reason="compressed-tensors 0.20 is not installed")
    grid, n, half = Grid(llmq, plain, tmp_path, *how), 0, 1 << how[0] - 1
    ours = load(llmq, grid.path, tmp_path / "ct", "compressed-tensors")
    for m, w, scales, zeros in grid:
        codes = torch.round(w / scales.repeat_interleave(GROUP, 1)).int()  # code - zero
        codes += zeros.repeat_interleave(GROUP, 1) - half
        assert torch.equal(helpers.pack_to_int32(codes.to(torch.int8), how[0]), ours[m + ".weight_packed"]), m
        if len(how) == 1:
            want = helpers.pack_to_int32((zeros - half).to(torch.int8), how[0], packed_dim=0)
            assert torch.equal(want, ours[m + ".weight_zero_point"]), m
        n += 1
    assert n == 1001


@pytest.mark.parametrize("kind,more", [("nf4", ()), ("fp4", ()), ("nf4", ("--double-quant",)), ("nf4", ("--group-size", "128"))],
                         ids=str)
def test_bitsandbytes_quantizes_to_the_same_bytes(llmq, plain, tmp_path, kind, more):
    bnb = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    llmq("quantize", plain[0], "-o", tmp_path / "q.llmq", "--method", kind, *more)
    ours, differ, codes = load(llmq, tmp_path / "q.llmq", tmp_path / "b", "bnb"), 0, 0
    for m in MODULES:
        w = plain[1][m + ".weight"]
        block = json.loads(bytes(ours[f"{m}.weight.quant_state.bitsandbytes__{kind}"].tolist()))["blocksize"]
        packed, state = bnb.quantize_4bit(w, blocksize=block, quant_type=kind, compress_statistics="--double-quant" in more)
        assert torch.equal(state.code, ours[f"{m}.weight.quant_map"])
        assert torch.equal(state.absmax, ours[f"{m}.weight.absmax"]), m
        if state.nested:
            assert torch.equal(state.state2.absmax, ours[f"{m}.weight.nested_absmax"]), m
        differ += int((fields(packed.reshape(1, -1), 4) != fields(ours[m + ".weight"].reshape(1, -1), 4)).sum())
        codes += w.numel()
    print(f"{differ} of {codes} codes differ")
    assert differ == 0


GGUF_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def gguf_name(module):
    _, _, i, name = module.split(".", 3)
    return f"blk.{i}.{GGUF_NAMES[name]}.weight"


def write_gguf(gguf, plain, path, kind):
    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(LAYERS)
    w.add_context_length(128)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(FFN)
    w.add_head_count(2)
    w.add_head_count_kv(1)
    w.add_key_length(32)
    w.add_value_length(32)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(64)
    names = {m + ".weight": gguf_name(m) for m in MODULES}
    names |= {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    for i in range(LAYERS):
        names |= {f"model.layers.{i}.input_layernorm.weight": f"blk.{i}.attn_norm.weight",
                  f"model.layers.{i}.post_attention_layernorm.weight": f"blk.{i}.ffn_norm.weight"}
    for name, data in plain[1].items():
        if data.ndim == 2:
            w.add_tensor(names[name], gguf.quants.quantize(data.numpy(), kind), raw_dtype=kind)
        else:
            w.add_tensor(names[name], data.numpy())
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_blocks_of_gguf_py_go_there_and_back(llmq, plain, tmp_path, kind):
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    write_gguf(gguf, plain, tmp_path / "a.gguf", gguf.GGMLQuantizationType[kind])
    llmq("convert", tmp_path / "a.gguf", "-o", tmp_path / "m.llmq", "--to", "llmq")
    llmq("convert", tmp_path / "m.llmq", "-o", tmp_path / "b.gguf", "--to", "gguf")
    floats = load(llmq, tmp_path / "m.llmq", tmp_path / "f", "safetensors", "--dtype", "f32")
    theirs, back = ({t.name: t for t in gguf.GGUFReader(tmp_path / f).tensors} for f in ("a.gguf", "b.gguf"))
    differ = [n for n, t in theirs.items() if t.tensor_type != back[n].tensor_type or not np.array_equal(t.data, back[n].data)]
    assert not differ and len(theirs) == len(back) == 1001 + 2 * LAYERS + 2
    for m in MODULES:
        if "q_proj" not in m and "k_proj" not in m:  # whose rows lie in another order there
            t = theirs[gguf_name(m)]
            assert np.array_equal(gguf.dequantize(t.data, t.tensor_type), floats[m + ".weight"].numpy()), m


def test_q8_0_is_no_further_from_the_weights_than_gguf_pys(llmq, plain, tmp_path):
    """Its scale is absmax / 127; llmq uses -128 too (absmax / 127.5), so bytes differ."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    llmq("quantize", plain[0], "-o", tmp_path / "q.llmq", "--method", "rtn", "--bits", 8, "--sym", "--group-size", 32)
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "m.gguf", "--to", "gguf")
    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    mine = theirs = 0.0
    for m in MODULES:
        if "q_proj" not in m and "k_proj" not in m:
            t, w = tensors[gguf_name(m)], plain[1][m + ".weight"].numpy()
            assert t.tensor_type.name == "Q8_0"
            scale = (w ** 2).mean()
            mine += ((gguf.dequantize(t.data, t.tensor_type) - w) ** 2).mean() / scale
            theirs += ((gguf.dequantize(gguf.quants.quantize(w, t.tensor_type), t.tensor_type) - w) ** 2).mean() / scale
    print(f"squared error {mine / theirs:.4f} of gguf-py's")
    assert mine <= theirs
