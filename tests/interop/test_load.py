"""What llmq writes, loaded by the projects whose layouts they are. Each test needs that project's package and
says so where it is not there; the bytes themselves are held by tests/e2e/test_writers.py without any.

    python3 -m venv v && v/bin/pip install pytest numpy torch transformers accelerate compressed-tensors \
        bitsandbytes gguf && v/bin/python -m pytest tests/interop
"""
import json

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
IDS = [1, 5, 9, 300, 77, 1200, 42, 8]


def ours(llmq, model, out):
    """Logits of llmq in f32."""
    llmq("logits", model, "--ids", ",".join(map(str, IDS)), "-o", out)
    b = out.read_bytes()
    n = int.from_bytes(b[:8], "little")
    shape = json.loads(b[8:8 + n])["logits"]["shape"]
    return torch.frombuffer(bytearray(b[8 + n:]), dtype=torch.float32).reshape(shape)


def theirs(folder, **more):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **more)
    with torch.no_grad():
        return model.eval()(torch.tensor([IDS])).logits[0].float()


def agree(a, b, bound):
    worst = (a - b).abs().max() / b.abs().max()
    assert worst <= bound, f"logits differ by {worst:.2e} of the largest"
    print(f"largest difference: {worst:.2e}")


def make(llmq, model, folder, to, *options):
    llmq("quantize", model, "-o", folder / "m.llmq", *options)
    llmq("convert", folder / "m.llmq", "-o", folder / "x", "--to", to)
    return folder / "m.llmq", folder / "x"


@pytest.mark.parametrize("scheme", [
    ("--method", "rtn", "--sym", "--group-size", "64"), ("--method", "rtn", "--sym", "--bits", "8"), ("--method", "absmax"),
    ("--method", "rtn", "--sym", "--override", r".*down_proj.*=u8-g64", "--skip", r".*layers\.1.*")])
def test_transformers_loads_compressed_tensors(llmq, model, tmp_path, scheme):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    mine, folder = make(llmq, model, tmp_path, "compressed-tensors", *scheme)
    agree(theirs(folder), ours(llmq, mine, tmp_path / "l"), 1e-3)


@pytest.mark.parametrize("scheme", [("--method", "rtn"), ("--method", "rtn", "--bits", "3"),
                                    ("--method", "rtn", "--bits", "8", "--group-size", "32")])
def test_compressed_tensors_unpacks_zero_points(llmq, model, tmp_path, scheme):
    """By the library alone: transformers 4.57 with compressed-tensors 0.20 loads no zero points of groups, those
    of llm-compressor's own files neither."""
    ct = pytest.importorskip("compressed_tensors.compressors.pack_quantized.base",
                             reason="compressed-tensors 0.20 is not installed")
    from compressed_tensors.quantization import QuantizationScheme
    from safetensors.torch import load_file
    mine, folder = make(llmq, model, tmp_path, "compressed-tensors", *scheme)
    llmq("convert", mine, "-o", tmp_path / "f", "--to", "safetensors", "--dtype", "f32")
    got, want = load_file(folder / "model.safetensors"), load_file(tmp_path / "f/model.safetensors")
    config = json.loads((folder / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]
    rule = QuantizationScheme(**config)
    modules = sorted(k[:-len(".weight_packed")] for k in got if k.endswith(".weight_packed"))
    assert len(modules) == 42
    for m in modules:
        parts = {k[len(m) + 1:]: v for k, v in got.items() if k.startswith(m + ".")}
        assert "weight_zero_point" in parts
        parts["weight_scale"] = parts["weight_scale"].float()  # it multiplies in the scale's type
        w = ct.PackedQuantizationCompressor.decompress(parts, rule)["weight"]
        assert torch.equal(w.float(), want[m + ".weight"]), m


@pytest.mark.parametrize("scheme", [("--method", "nf4"), ("--method", "fp4"),
                                    ("--method", "nf4", "--double-quant")])
def test_transformers_loads_bitsandbytes(llmq, model, tmp_path, scheme):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    bnb = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    mine, folder = make(llmq, model, tmp_path, "bnb", *scheme)
    llmq("convert", mine, "-o", tmp_path / "f", "--to", "safetensors", "--dtype", "f32")
    want = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "f", dtype=torch.float32)
    got = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    n = 0
    for (name, a), (_, b) in zip(want.named_modules(), got.named_modules()):
        if type(b).__name__ == "Linear4bit":
            w = bnb.dequantize_4bit(b.weight.data, b.weight.quant_state)
            # their own dtype is the checkpoint's bf16: one rounding of what llmq has in f32
            assert torch.allclose(w.float(), a.weight, rtol=2 ** -8, atol=0), name
            n += 1
    assert n == 42


def test_gguf_py_reads_the_weights(llmq, model, tmp_path):
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    llmq("quantize", model, "-o", tmp_path / "m.llmq", "--method", "rtn", "--sym", "--group-size", "32",
         "--embed", "u8-g32")
    llmq("convert", tmp_path / "m.llmq", "-o", tmp_path / "m.gguf", "--to", "gguf")
    llmq("convert", tmp_path / "m.llmq", "-o", tmp_path / "f", "--to", "safetensors", "--dtype", "f32")
    want = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "f", dtype=torch.float32).state_dict()
    names = {"token_embd": "embed_tokens", "ffn_down": "mlp.down_proj", "attn_v": "self_attn.v_proj"}
    types = set()
    for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors:
        types.add(t.tensor_type.name)
        *block, name, _ = t.name.split(".")
        if name in names:
            key = ".".join(["model"] + (["layers", block[1]] if block else []) + [names[name], "weight"])
            assert (torch.tensor(gguf.dequantize(t.data, t.tensor_type)) == want[key]).all(), key
    assert types == {"F32", "Q4_0", "Q8_0"}


def test_transformers_loads_gguf(llmq, model, tmp_path):
    pytest.importorskip("gguf", reason="gguf is not installed")
    llmq("convert", model, "-o", tmp_path / "m.gguf", "--to", "gguf")
    agree(theirs(tmp_path, gguf_file="m.gguf"), ours(llmq, model, tmp_path / "l"), 1e-3)
    a = transformers.AutoTokenizer.from_pretrained(model)
    b = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    text = "It was 1812; Pierre's friend said so."
    assert a(text).input_ids == b(text).input_ids


@pytest.mark.parametrize("to,scheme", [
    ("gptq", ("--sym",)), ("gptq", ("--sym", "--bits", "8")), ("gptq_v2", ()), ("gptq_v2", ("--bits", "8")),
    ("gptq_v2", ("--bits", "2", "--sym"))])
def test_gptqmodel_loads_gptq(llmq, model, tmp_path, to, scheme):
    """By its Torch backend, which computes in bf16."""
    gptqmodel = pytest.importorskip("gptqmodel", reason="gptqmodel is not installed")
    mine, folder = make(llmq, model, tmp_path, to, "--method", "rtn", *scheme)
    m = gptqmodel.GPTQModel.load(str(folder), backend=gptqmodel.BACKEND.TORCH, device="cpu")
    assert type(m.model.model.layers[0].mlp.up_proj).__name__ in ("TorchQuantLinear", "TorchLinear")  # 5, 7
    with torch.no_grad():
        agree(m.model(torch.tensor([IDS])).logits[0].float(), ours(llmq, mine, tmp_path / "l"), 2e-2)


def test_autoawq_unpacks_awq(llmq, model, tmp_path):
    """By its own function: its loader of whole models wants a GPU, or intel_extension_for_pytorch."""
    if not hasattr(transformers.activations, "PytorchGELUTanh"):  # AutoAWQ 0.2.9 and transformers 4.57
        transformers.activations.PytorchGELUTanh = transformers.activations.GELUTanh
    pytest.importorskip("awq", reason="autoawq is not installed")
    from awq.utils.packing_utils import dequantize_gemm
    from safetensors.torch import load_file
    mine, folder = make(llmq, model, tmp_path, "awq", "--method", "rtn")
    llmq("convert", mine, "-o", tmp_path / "f", "--to", "safetensors", "--dtype", "f32")
    got, want = load_file(folder / "model.safetensors"), load_file(tmp_path / "f/model.safetensors")
    modules = [k[:-len(".qweight")] for k in got if k.endswith(".qweight")]
    assert len(modules) == 42
    for m in modules:
        w = dequantize_gemm(*(got[f"{m}.{p}"] for p in ("qweight", "qzeros", "scales")), 4, 128)
        assert torch.equal(w.T, want[m + ".weight"].half()), m


@pytest.mark.parametrize("scheme", [("--method", "rtn", "--sym", "--group-size", "64"), ("--method", "rtn", "--bits", "3", "--group-size", "64"),
                                    ("--method", "gptq", "--calib-samples", "8", "--group-size", "32", "--embed", "keep")])
def test_mlx_lm_loads_it(llmq, model, tmp_path, scheme):
    """mlx and mlx-lm, which run on Linux too: pip install 'mlx[cpu]' mlx-lm."""
    mx = pytest.importorskip("mlx.core", reason="mlx is not installed")
    load_model = pytest.importorskip("mlx_lm.utils", reason="mlx-lm is not installed").load_model
    tree_map = __import__("mlx.utils", fromlist=["tree_map"]).tree_map
    mine, folder = make(llmq, model, tmp_path, "mlx", *scheme)
    net, _ = load_model(folder)
    net.update(tree_map(lambda x: x.astype(mx.float32) if x.dtype in (mx.bfloat16, mx.float16) else x, net.parameters()))
    got = net(mx.array([IDS]))[0].astype(mx.float32)
    agree(torch.tensor(got.tolist()), ours(llmq, mine, tmp_path / "l"), 1e-4)


SMALL = dict(vocab_size=2048, hidden_size=128, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             head_dim=32, max_position_embeddings=128, num_experts_per_tok=2, tie_word_embeddings=False)
# architecture, its sizes; what mlx-lm asks for and transformers 5 does not write
EXPERTS = {
    "MixtralForCausalLM": (dict(num_local_experts=4), {}),
    "Qwen3MoeForCausalLM": (dict(num_experts=4, moe_intermediate_size=32, norm_topk_prob=True), dict(num_experts=4)),
    "GraniteMoeForCausalLM": (dict(num_local_experts=4), {}),
    "GptOssForCausalLM": (dict(num_local_experts=4, layer_types=["sliding_attention", "full_attention"],
                               rope_parameters={"rope_type": "default", "rope_theta": 10000.0}), {}),
    "Glm4MoeForCausalLM": (dict(n_routed_experts=4, moe_intermediate_size=32, first_k_dense_replace=1), dict(partial_rotary_factor=0.5)),
    "OlmoeForCausalLM": (dict(num_experts=4), {}),
    "Lfm2MoeForCausalLM": (dict(num_experts=4, moe_intermediate_size=32, num_dense_layers=1, tie_word_embeddings=True,
                                layer_types=["full_attention", "conv"]), {}),
}


@pytest.mark.parametrize("scheme", [("--bits", "8"), ("--bits", "4", "--override", "down=u8-g32"), ("--bits", "4", "--skip", "expert")])
@pytest.mark.parametrize("arch", EXPERTS)
def test_mlx_lm_loads_experts(llmq, tmp_path, arch, scheme):
    """Stacks of each projection, whether the architecture has matrices or stacks of gate and up as one."""
    mx = pytest.importorskip("mlx.core", reason="mlx is not installed")
    load_model = pytest.importorskip("mlx_lm.utils", reason="mlx-lm is not installed").load_model
    tree_map = __import__("mlx.utils", fromlist=["tree_map"]).tree_map
    sizes, more = EXPERTS[arch]
    kind = getattr(transformers, arch)
    torch.manual_seed(1)
    model = kind(kind.config_class(**(SMALL | sizes))).to(torch.bfloat16)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape) * 0.2 + ("norm" in name))
    model.save_pretrained(tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    config |= {"rope_theta": config.get("rope_parameters", {}).get("rope_theta", 10000.0), "rope_scaling": None, **more}
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    mine, folder = make(llmq, tmp_path / "m", tmp_path, "mlx", "--method", "rtn", "--sym", "--group-size", "32", "--no-check",
                        "--skip", "embed", *scheme)
    net, _ = load_model(folder)
    net.update(tree_map(lambda x: x.astype(mx.float32) if x.dtype in (mx.bfloat16, mx.float16) else x, net.parameters()))
    got = net(mx.array([IDS]))[0].astype(mx.float32)
    agree(torch.tensor(got.tolist()), ours(llmq, mine, tmp_path / "l"), 1e-4)
