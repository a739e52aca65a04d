"""Converts golden checkpoints with llama.cpp's own converter.

usage: gguf_arch.py LLAMA_CPP OUT NAME...    (LLAMA_CPP: its source tree, with conversion/ and gguf-py/)

Writes OUT/NAME.gguf (F32, no tokenizer: these checkpoints have none) of tests/golden/arch/NAME. Needs torch and
transformers 4.57 (Gemma 4: 5.23, whose converter counts the words of a tokenizer.json: there is one beside it then).
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

for name in sys.argv[3:]:
    folder = pathlib.Path(__file__).parents[1] / "arch" / name
    hparams = ModelBase.load_hparams(folder, False)
    if name.startswith("gemma4"):
        folder = pathlib.Path(shutil.copytree(folder, pathlib.Path(tempfile.mkdtemp()) / name))
        words = {str(i): i for i in range(hparams["vocab_size"])}
        (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [], "model": {"vocab": words}}))
    cls = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    for k in cls.__mro__:
        if "set_vocab" in k.__dict__:
            k.set_vocab = lambda self: self.gguf_writer.add_tokenizer_model("none")
    cls(folder, gguf.LlamaFileType.ALL_F32, out / f"{name}.gguf", hparams=hparams).write()
