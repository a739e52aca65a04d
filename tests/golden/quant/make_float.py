#!/usr/bin/env python3
"""Make float.safetensors: small floats as torch reads and rounds them.

usage: make_float.py OUT      (torch, safetensors)

  e4m3, e8m0               f32 [256]: the number of each code
  round.in, round.out      f32 [n] and the e4m3 code of each after clamp(-448, 448)
  fp8.codes [37,200] with fp8.SCALE and fp8.SCALE.w for SCALE in row, tensor, b128 (128x128 blocks)
  mxfp4.codes u8 [9,48] (even input in the low nibble), mxfp4.scales u8 [9,3], mxfp4.w
  nvfp4.codes u8 [9,24], nvfp4.scales e4m3 [9,3], nvfp4.global f32 [1], nvfp4.w (divided by the global
  scale first), nvfp4.times.w (multiplied)
"""
import sys

import torch
from safetensors.torch import save_file

torch.manual_seed(5)
F8 = torch.float8_e4m3fn
every = torch.arange(256, dtype=torch.uint8)
out = {"e4m3": every.view(F8).float(), "e8m0": every.view(torch.float8_e8m0fnu).float()}

values = out["e4m3"][:127]
x = torch.cat([values, (values[1:] + values[:-1]) / 2, torch.rand(400) * 2, torch.randn(400) * 200,
               torch.rand(200) * 2**-8, torch.tensor([0.0, 448.0, 449.0, 463.9, 464.0, 1e9, 2**-10, 2**-11, 1e-20])])
x = torch.cat([x, -x])
out["round.in"], out["round.out"] = x, x.clamp(-448, 448).to(F8).view(torch.uint8)

codes = torch.randint(0, 256, (37, 200), dtype=torch.uint8)
codes[(codes & 0x7F) == 0x7F] -= 1
out["fp8.codes"] = codes.view(F8)
for name, scale in {"row": torch.rand(37, 1), "tensor": torch.rand(1, 1), "b128": torch.rand(1, 2)}.items():
    out[f"fp8.{name}"] = scale
    wide = scale.repeat_interleave(128, 1)[:, :200] if name == "b128" else scale
    out[f"fp8.{name}.w"] = codes.view(F8).float() * wide

e2m1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def unpack(c):
    return torch.stack([c & 15, c >> 4], -1).flatten(-2).long()


c = torch.randint(0, 256, (9, 48), dtype=torch.uint8)
s = torch.randint(100, 140, (9, 3), dtype=torch.uint8)
s[0, 0], s[1, 1] = 0, 254
out["mxfp4.codes"], out["mxfp4.scales"] = c, s
out["mxfp4.w"] = e2m1[unpack(c)] * s.view(torch.float8_e8m0fnu).float().repeat_interleave(32, 1)

c = torch.randint(0, 256, (9, 24), dtype=torch.uint8)
s = (torch.rand(9, 3) * 448).to(F8)
g = torch.tensor([5504.0])
out["nvfp4.codes"], out["nvfp4.scales"], out["nvfp4.global"] = c, s, g
out["nvfp4.w"] = e2m1[unpack(c)] * (s.float() / g).repeat_interleave(16, 1)
out["nvfp4.times.w"] = e2m1[unpack(c)] * (s.float() * g).repeat_interleave(16, 1)
save_file({k: v.contiguous() for k, v in out.items()}, sys.argv[1], {"format": "pt"})
