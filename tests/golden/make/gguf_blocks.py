"""blocks.bin: 256 elements of each type of GGUF's blocks and what gguf-py 0.19 reads in them; of Q1_0 and
Q2_0, which it does not read, what ggml 0.25's dequantize_row functions do.

Of each type: its name in 16 bytes, u32 bytes of the blocks, the blocks, f32[256]. Bytes are random,
f16 scales a sign and 2^-8 .. 2^8. Run with numpy and gguf: python gguf_blocks.py blocks.bin libggml-base.so"""
import ctypes, struct, sys
import numpy as np
from gguf import GGMLQuantizationType as T, GGML_QUANT_SIZES, quants

F16 = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q5_1": (0, 2), "Q4_1": (0, 2),
       "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,), "IQ1_M": (), "MXFP4": ()}
NAMES = ("Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S "
         "IQ1_S IQ1_M IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4").split()
rng = np.random.default_rng(7)
out = b""
for name in NAMES:
    t = T[name]
    n, size = GGML_QUANT_SIZES[t]
    b = rng.integers(0, 256, (256 // n, size), dtype=np.uint8)
    for at in F16.get(name, (0,)):
        b[:, at + 1] = (b[:, at + 1] & 0x83) | (7 + b[:, at + 1] // 16) << 2
    if name == "IQ1_M":  # d in the upper bits of four halves
        b[:, 55] = (b[:, 55] & 0x0f) | 0x30
    if name == "MXFP4":
        b[:, 0] = 100 + b[:, 0] % 32
    y = quants.dequantize(b, t).astype(np.float32).reshape(-1)
    assert y.size == 256 and np.isfinite(y).all()
    out += name.encode().ljust(16, b"\0") + struct.pack("<I", b.size) + b.tobytes() + y.tobytes()
b = rng.integers(0, 256, (4, 36), dtype=np.uint8)
b[:, :4] %= 127
y = quants.dequantize(b, T.NVFP4).astype(np.float32).reshape(-1)
out += b"NVFP4".ljust(16, b"\0") + struct.pack("<I", b.size) + b.tobytes() + y.tobytes()
ggml = ctypes.CDLL(sys.argv[2])
for name, n, size in ("Q1_0", 128, 18), ("Q2_0", 64, 18):
    b = rng.integers(0, 256, (256 // n, size), dtype=np.uint8)
    b[:, 1] = (b[:, 1] & 0x83) | (7 + b[:, 1] // 16) << 2
    y = np.empty(256, np.float32)
    pointer = lambda a: a.ctypes.data_as(ctypes.c_void_p)
    ggml["dequantize_row_" + name.lower()](pointer(b), pointer(y), ctypes.c_int64(256))
    out += name.encode().ljust(16, b"\0") + struct.pack("<I", b.size) + b.tobytes() + y.tobytes()
open(sys.argv[1], "wb").write(out)
