#!/usr/bin/env python3
"""What torch does with the shapes of `llmq bench kernels --device cuda`, on the same GPU: bf16 products (cuBLAS) and
scaled_dot_product_attention; with Triton, whether it is there. One JSON document. Exit 1 and one line without torch."""
import json
import statistics
import sys

try:
    import torch
except ImportError as e:
    sys.exit(f"skipped: {e}")
if not torch.cuda.is_available():
    sys.exit("skipped: torch sees no GPU")

TURNS = 6  # as kernels/bench/bench_dev.c: copies of what is read, so that L2 holds none


def seconds(call):
    """The median of ten measurements of as many calls as take 10 ms."""
    call(0)
    torch.cuda.synchronize()
    n, times = 1, []
    while len(times) < 10:
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for i in range(n):
            call(i % TURNS)
        b.record()
        torch.cuda.synchronize()
        t = a.elapsed_time(b) * 1e-3
        if t < 0.01 and n < 4096:
            n *= 4
        else:
            times.append(t / n)
    return statistics.median(times)


def main():
    torch.manual_seed(0)
    rows = []
    N, K = 14336, 4096
    weights = [torch.randn(N, K, device="cuda", dtype=torch.bfloat16) for _ in range(TURNS)]
    for M in (1, 2, 4, 8, 16, 32, 64, 128, 512, 2048, 4096):
        x = torch.randn(M, K, device="cuda", dtype=torch.bfloat16)
        t = seconds(lambda i: torch.nn.functional.linear(x, weights[i]))
        rows.append({"name": "torch bf16", "shape": f"{M}x{N}x{K}", "seconds": t, "gflops": 2 * M * N * K / t * 1e-9})
    del weights
    for seqs, T, keys, H, Hkv in [(1, 8192, 8192, 32, 8), (32, 1, 4096, 32, 8), (32, 1, 4096, 64, 8), (1, 1, 32768, 32, 8)]:
        q = torch.randn(seqs, H, T, 128, device="cuda", dtype=torch.bfloat16)
        kv = [torch.randn(2, seqs, Hkv, keys, 128, device="cuda", dtype=torch.bfloat16) for _ in range(TURNS if T == 1 else 1)]
        t = seconds(lambda i: torch.nn.functional.scaled_dot_product_attention(
            q, kv[i % len(kv)][0], kv[i % len(kv)][1], is_causal=T > 1, enable_gqa=True))
        flops = 4 * 128 * seqs * H * (T * keys / 2 if T > 1 else keys)
        rows.append({"name": "torch prefill" if T > 1 else "torch decode", "shape": f"{seqs} x {keys}, {H}/{Hkv}x128",
                     "seconds": t, "gflops": flops / t * 1e-9, "gbytes_s": kv[0].numel() * 2 / t * 1e-9})
    try:
        import triton
        there = triton.__version__
    except ImportError:
        there = None
    json.dump({"torch": torch.__version__, "triton": there, "rows": rows}, sys.stdout)


if __name__ == "__main__":
    main()
