"""Keeps matrices of GGUF files of golden checkpoints in half the bytes: what is F32 with two dimensions or more and is BF16
exactly becomes that, as llama.cpp's converter writes it with MOSTLY_BF16. Needs gguf-py 0.19.

usage: gguf_bf16.py FILE...    (in place; each as gguf_arch.py made it)
"""
import pathlib
import sys

import gguf
import numpy as np

BF16 = gguf.GGMLQuantizationType.BF16
OWN = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture")

for path in map(pathlib.Path, sys.argv[1:]):
    r = gguf.GGUFReader(path)
    w = gguf.GGUFWriter(path.with_suffix(".new"), r.fields["general.architecture"].contents())
    for name, field in r.fields.items():
        if name in OWN:
            continue
        value = int(gguf.LlamaFileType.MOSTLY_BF16) if name == "general.file_type" else field.contents()
        kinds = field.types
        w.add_key_value(name, value, kinds[0], kinds[1] if len(kinds) > 1 else None)
    for t in r.tensors:
        words = t.data.view(np.uint32) if t.tensor_type.name == "F32" and len(t.shape) > 1 else None
        if words is not None and not (words & 0xffff).any():
            half = (words >> 16).astype(np.uint16)
            w.add_tensor(t.name, half.view(np.uint8), raw_shape=(*half.shape[:-1], half.shape[-1] * 2), raw_dtype=BF16)
        else:
            w.add_tensor(t.name, t.data, raw_dtype=None if t.tensor_type.name == "F32" else t.tensor_type)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    path.with_suffix(".new").replace(path)
