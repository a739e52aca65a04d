"""llmq: quantize, convert and run language models.

    import llmq
    llmq.quantize("path/to/model", "model.llmq", method="awq")
    with llmq.load("model.llmq") as m:
        for piece in m.generate("The old house", max_tokens=64):
            print(piece, end="", flush=True)
        print(m.chat("Hello!").result())
        logits = m.logits(m.tokenize("The old house"))     # numpy, [tokens, vocabulary]
"""
from ._files import convert, quantize
from ._library import (Busy, CheckFailed, DeviceFailed, Error, FormatError, Interrupted, InvalidValue, IOFailed, NotFound,
                       OutOfMemory, ShapeError, Unsupported, UsageError, lib, program)
from ._model import Generation, Model
from ._serve import Server, serve

__version__ = lib.llmq_version().decode()
__all__ = ["Busy", "CheckFailed", "DeviceFailed", "Error", "FormatError", "Generation", "Interrupted", "InvalidValue",
           "IOFailed", "Model", "NotFound", "OutOfMemory", "Server", "ShapeError", "Unsupported", "UsageError", "convert",
           "load", "program", "quantize", "serve"]


def load(path, progress=None, **options):
    """Loads a model: a .llmq or .gguf file, or a Hugging Face folder. options: those of `llmq batch` that
    concern model and engine, threads=2, max_model_len=4096, ... See Model."""
    return Model(path, progress, **options)
