"""Converts golden checkpoints with llama.cpp's own converter.

usage: gguf_arch.py LLAMA_CPP OUT NAME...    (LLAMA_CPP: its source tree, with conversion/ and gguf-py/)

Writes OUT/NAME.gguf (F32, no tokenizer: these checkpoints have none) of tests/golden/arch/NAME. Needs torch and
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
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class  # noqa: E402

# What its converter knows them by, as the makers' files say.
OTHERS = {"mistral4": "Mistral3ForConditionalGeneration", "phimoe": "PhiMoEForCausalLM"}


def no_vocab(cls):
    for k in cls.__mro__:
        if "set_vocab" in k.__dict__:
            k.set_vocab = lambda self: self.gguf_writer.add_tokenizer_model("none")


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
    cls = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    no_vocab(cls)
    model = cls(folder, gguf.LlamaFileType.ALL_F32, out / f"{name}.gguf", hparams=hparams)
    no_vocab(type(getattr(model, "impl", model)))
    model.write()
