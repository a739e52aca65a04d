#!/usr/bin/env python3
"""Make bnb-4bit-blocks.safetensors: bitsandbytes' NF4 and FP4 at every block size it has.

usage: make_blocks.py OUT      (torch, bitsandbytes 0.50 on the CPU)

w f32 [97,127] of normal values, one in 64 of them eight times as large; neither its rows nor its end
fall on a block. For T in nf4, fp4 and B in 32..4096: T.bB.packed, T.bB.absmax, and of the
double-quantized form T.bB.absmax_u8, T.bB.absmax2, T.bB.offset.
"""
import sys

import bitsandbytes.functional as F
import torch
from safetensors.torch import save_file

g = torch.Generator().manual_seed(3)
w = torch.randn(97, 127, generator=g) * 0.04
w.view(-1)[::64] *= 8
out = {"w": w.clone()}
for kind in ("nf4", "fp4"):
    for block in (32, 64, 128, 256, 512, 1024, 2048, 4096):
        key = f"{kind}.b{block}."
        packed, state = F.quantize_4bit(w, blocksize=block, quant_type=kind, compress_statistics=False)
        out[key + "packed"] = packed.reshape(-1).clone()
        out[key + "absmax"] = state.absmax.clone()
        again, state = F.quantize_4bit(w, blocksize=block, quant_type=kind, compress_statistics=True)
        assert torch.equal(packed, again)
        out[key + "absmax_u8"] = state.absmax.clone()
        out[key + "absmax2"] = state.state2.absmax.clone()
        out[key + "offset"] = state.offset.reshape(1).clone()
save_file(out, sys.argv[1])
