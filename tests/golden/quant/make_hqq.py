#!/usr/bin/env python3
"""Make hqq.safetensors: what the hqq package gives for tests/unit/test_quant_hqq.c.

usage: make_hqq.py HQQ_DIR OUT      (torch; HQQ_DIR is the package's folder, version 0.2.8)

w f32 [24,128] with rows of outliers, of one sign, of equal values and of zeros. For each case
bB.gG (bits, weights of a row in a group) the package's optimize_weights_proximal_legacy, from the
range's scale and zero point as its Quantizer.quantize sets them, with groups along the rows:
  bB.gG.codes u8 [24,128], bB.gG.scale f32 [24,128/G] (of a step), bB.gG.zero f32 [24,128/G]
Only its outputs are kept.
"""
import importlib.util
import os
import sys

import torch
from safetensors.torch import save_file

spec = importlib.util.spec_from_file_location("hqq_optimize", os.path.join(sys.argv[1], "core", "optimize.py"))
hqq = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hqq)

g = torch.Generator().manual_seed(5)
N, K = 24, 128
w = torch.randn(N, K, generator=g) * torch.exp(0.5 * torch.randn(N, 1, generator=g)) * 0.05
w[1, ::17] *= 12
w[2] = w[2].abs() + 0.02
w[3] = 0
w[4] = -0.125
w[5:9] *= 20
out = {"w": w.clone()}
for bits in (2, 3, 4, 8):
    for group in (32, 64):
        x, top = w.reshape(-1, group), 2**bits - 1
        lo, hi = x.min(1, keepdim=True)[0], x.max(1, keepdim=True)[0]
        scale = top / (hi - lo)
        scale = torch.where((hi - lo).abs() <= 1e-4, torch.ones_like(scale), scale).clamp(max=2e4)
        codes, scale, zero = hqq.optimize_weights_proximal_legacy(
            x, scale, -lo * scale, [0, top], axis=1, device="cpu")
        key = f"b{bits}.g{group}."
        out[key + "codes"] = codes.reshape(N, K).to(torch.uint8)
        out[key + "scale"] = (1 / scale).reshape(N, -1).float().contiguous()
        out[key + "zero"] = zero.reshape(N, -1).float().contiguous()
save_file(out, sys.argv[2])
