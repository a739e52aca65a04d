"""Converts golden checkpoints with llama.cpp's own converter.

usage: gguf_arch.py LLAMA_CPP OUT NAME...    (LLAMA_CPP: its source tree, with conversion/ and gguf-py/)

Writes OUT/NAME.gguf (F32 but for SMALL, no tokenizer: these checkpoints have none) of tests/golden/arch/NAME. Needs torch and
transformers 4.57 (of checkpoints of 5.23: that; Gemma 4's converter counts the words of a tokenizer.json: there is one
beside it then).
"""
import json
import pathlib
import shutil
import sys
import tempfile

llama, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
sys.path[:0] = [str(llama), str(llama / "gguf-py")]

import gguf  # noqa: E402
import torch  # noqa: E402
from conversion.base import LazyTorchTensor  # noqa: E402
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class  # noqa: E402

# What its converter knows them by, as the makers' files say.
OTHERS = {"mistral4": "Mistral3ForConditionalGeneration", "phimoe": "PhiMoEForCausalLM"}

# What its converter wants of config.json as the makers write it.
MORE = {
    "ling3": {"architectures": ["BailingMoeV3ForCausalLM"], "no_kda_lora": True, "head_dim": 12, "n_group": 2, "norm_topk_prob": True,
              "gated_attention_proj_granularity_type": "head_wise", "num_experts_per_tok": 2, "score_function": "sigmoid",
              "moe_shared_expert_intermediate_size": 8, "max_position_embeddings": 128},
    "minimax-m1": {"layernorm_linear_attention_alpha": 1.7, "layernorm_mlp_alpha": 1.7},  # one factor
    "mimo-v2-flash": {"swa_head_dim": 12, "swa_num_attention_heads": 4, "swa_v_head_dim": 8, "topk_method": "noaux_tc",
                      "swa_num_key_value_heads": 2, "hybrid_layer_pattern": [0, 1], "layernorm_epsilon": 1e-5,
                      "partial_rotary_factor": 0.334, "rope_theta": 5000000.0, "swa_rope_theta": 10000.0, "rope_parameters": None},
    "deepseek-v4": {"compress_ratios": [0, 4, 8], "num_hash_layers": 1, "rope_parameters": None, "partial_rotary_factor": None,
                    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1}},
}


SMALL = {"ling3", "minimax-m1", "muse-glimmer"}  # in BF16, as the checkpoint is
BF16 = gguf.GGMLQuantizationType.BF16


def bf16(model, layer, part, key):
    """DeepSeek V4's experts, which are MXFP4 for its converter: BF16 here."""
    names = [f"layers.{layer}.ffn.experts.{e}.{part}.weight" for e in range(model.hparams["n_routed_experts"])]
    all = torch.stack([LazyTorchTensor.to_eager(model.model_tensors[n]()).float() for n in names])
    model.gguf_writer.add_tensor(model.format_tensor_name(key, layer), gguf.quants.quantize(all.numpy(), BF16), raw_dtype=BF16)
    return names


def no_vocab(cls):
    for k in cls.__mro__:
        if "set_vocab" in k.__dict__:
            k.set_vocab = lambda self: self.gguf_writer.add_tokenizer_model("none")
    gguf.GGUFWriter.add_chat_template = lambda self, text: None


for name in sys.argv[3:]:
    folder = pathlib.Path(__file__).parents[1] / "arch" / name
    hparams = ModelBase.load_hparams(folder, False)
    if name.startswith("gemma4"):
        folder = pathlib.Path(shutil.copytree(folder, pathlib.Path(tempfile.mkdtemp()) / name))
        words = {str(i): i for i in range(hparams["vocab_size"])}
        (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [], "model": {"vocab": words}}))
    if name in OTHERS:
        folder = pathlib.Path(shutil.copytree(folder, pathlib.Path(tempfile.mkdtemp()) / name))
        hparams["architectures"] = [OTHERS[name]]
        (folder / "config.json").write_text(json.dumps(hparams))
    if name in MORE:
        folder = pathlib.Path(shutil.copytree(folder, pathlib.Path(tempfile.mkdtemp()) / name))
        hparams = {k: v for k, v in (hparams | MORE[name]).items() if v is not None}
        (folder / "config.json").write_text(json.dumps(hparams))
    cls = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    no_vocab(cls)
    cls.no_mtp = name == "mimo-v2-flash"
    cls._get_suppress_tokens = lambda self: None  # of a tokenizer that is not there
    if name == "deepseek-v4":
        cls._write_mxfp4_expert_tensor = bf16
    ftype = gguf.LlamaFileType.MOSTLY_BF16 if name in SMALL else gguf.LlamaFileType.ALL_F32
    model = cls(folder, ftype, out / f"{name}.gguf", hparams=hparams)
    no_vocab(type(getattr(model, "impl", model)))
    model.write()
