#!/usr/bin/env python3
"""What the kernels should reach on five parts, by arithmetic: nothing here was measured. gpu_page.py prints it as a table.

A kernel needs memory for m seconds, the issue slots for i, the matrix units for t, L2 or shared memory for l. The longest
of them is its limit. It takes that, a quarter (at best) to 45 % (at worst) of the others, as what should run at the same
time does so in part alone, and LAUNCH for each launch beyond the first. Instructions were counted with nvdisasm
(docs/lab/cuda.md); what a part has is its maker's, but for the share of memory that a copy gives."""

# multiprocessors, clock under load, bytes a second of a copy, bf16 products a clock and multiprocessor with f32 sums
PARTS = {
    "H100 SXM": (132, 1.755e9, 3.0e12, 2048),
    "H200": (132, 1.83e9, 4.3e12, 2048),
    "A100 80 GB": (108, 1.41e9, 1.79e12, 1024),
    "RTX 4090": (128, 2.52e9, 0.93e12, 256),
    "RTX 5090": (170, 2.41e9, 1.60e12, 256),
}
CUBLAS = {2048: 0.80, 1024: 0.85, 256: 0.92}  # of their peak, for large products: the first of 790 TFLOP/s on an H200
OVERLAP = (0.25, 0.45)
LAUNCH = 1.3e-6
ISSUE = 4          # instructions of a warp that a multiprocessor begins in a clock
L2 = 30            # bytes a clock and multiprocessor, of Hopper: assumed
SHARED = 128       # bytes a clock and multiprocessor
N, K = 14336, 4096  # of the product that is timed
WEIGHT = N * K * 4.125 / 8  # its bytes, u4-g128
# Of 8B: bytes of a decode step with a bf16 head, how many fewer with u8-g32's, and its kernels; seconds of the host's gap, 70
# to 100 us, and the draw: of the likeliest id at best, of all ids at worst, 91 instructions an id by one block
STEP, HEAD_LESS, KERNELS, BETWEEN = 4.70e9, 128256 * 4096 * (16 - 8.5) / 8, 163, (75e-6, 170e-6)


def wgmma(part):
    return part[3] == 2048


def took(uses, launches=0, overlap=OVERLAP):
    """(limit, at best, at worst) in seconds."""
    most = max(uses)
    return (most, *(most + o * (sum(uses) - most) + launches * LAUNCH for o in overlap))


def slots(part, instructions):
    return instructions / (ISSUE * part[0] * part[1])


def few(part, M):
    """A product of 1 to 64 rows: instructions for each of a lane's weights, partial sums out and back. Beside it x is
    arranged, but for one row, and wgmma's parts are joined by a kernel; mma's of up to 32 by the last of their blocks, whose
    fence, counter and reading are taken for 0.6 of a launch."""
    sms, clock, copy, units = part
    each = {1: 354 / 128, 16: 5.0, 32: 5.4, 64: 29 * 4 * 32 / (64 * 16) if wgmma(part) else 6.2}[M]
    rate = units * (1 if M == 64 or not wgmma(part) else 0.62)  # mma.sync on a part made for wgmma
    parts = 2 * 2 * M * N * 4 if M == 64 and wgmma(part) else 0
    products = max(M, 8) * N * K / (rate * sms * clock)
    return took(((WEIGHT + M * (N + K) * 4 + parts) / copy, slots(part, N * K / 32 * each), products),
                0 if M == 1 else 2 if parts else 1 if M == 64 else 1.6)


def share_of_copy(times):
    limit, best, worst = times
    return f"{100 * limit / worst:.0f} to {100 * limit / best:.0f} %; {limit * 1e6:.1f} us"


def one(part):
    return share_of_copy(few(part, 1))


def times_one(M):
    def cell(part):
        a, b = few(part, 1), few(part, M)
        least, most = sorted(b[i] / a[i] for i in (1, 2))
        return f"{least:.2f} to {most:.2f}; {b[0] / a[0]:.2f}"
    return cell


def many(part):
    """4,096 rows by the kernels here. wgmma: in 128 x 128 x 128 products 8 x 8 x 42 instructions, 40 KB from L2. Else 64 rows
    after each other."""
    sms, clock, _, units = part
    peak = 2 * units * sms * clock * 1e-12
    if wgmma(part):
        alone = 128 ** 3 / units
        limit, best, worst = took((alone, 2 * 8 * 42 * 4 / ISSUE, 40960 / L2))
    else:
        alone = 64 * N * K / (units * sms * clock)
        limit, best, worst = few(part, 64)
        best, worst = best - LAUNCH, worst - LAUNCH
    return f"{peak * alone / worst:.0f} to {peak * alone / best:.0f} TFLOP/s; {peak * alone / limit:.0f}"


def expanded(M):
    """By cuBLAS: 9.4 instructions a weight, and what is written stays in L2 or does not."""
    def cell(part):
        sms, clock, copy, units = part
        product = M * N * K / (CUBLAS[units] * units * sms * clock)
        best, worst = (product + max(slots(part, N * K / 32 * 9.4), nbytes / copy) for nbytes in (WEIGHT, WEIGHT + 2 * N * K))
        return f"{2e-12 * M * N * K / worst:.0f} to {2e-12 * M * N * K / best:.0f} TFLOP/s; {2e-12 * M * N * K / product:.0f}"
    return cell


def prefill(part):
    """Of a score: 256 products, an exponential of 16 a clock, some 8 instructions of 128 lanes; below wgmma K and V come
    from shared memory, 256 bytes for 2,048 products. Without ping-pong wgmma's exponentials and products take turns."""
    sms, clock, _, units = part
    uses = (256 / units, 1 / 16 + 8 / 128, 0 if wgmma(part) else 256 / 2048 * 256 / SHARED)
    limit, best, worst = took(uses, 0, (0.9, 1.3) if wgmma(part) else OVERLAP)
    top = 512 * sms * clock * 1e-12
    return f"{top / worst:.0f} to {top / best:.0f} TFLOP/s; {top / limit:.0f}"


def decode(row, instructions):
    """32 x 4,096 keys of 8 heads of 128: bytes of a row of the cache, instructions of a warp a tile of 16 keys and values."""
    def cell(part):
        tiles = 32 * 4096 * 8 / 16
        return share_of_copy(took((tiles * 32 * row / part[2], slots(part, tiles * instructions))))
    return cell


def whole(nbytes):
    def cell(part):
        limit, best, worst = few(part, 1)
        step = nbytes / part[2]
        times = [step * a / limit + KERNELS * 1e-6 + b for a, b in zip((best, worst), BETWEEN)]
        return f"{1 / times[1]:.0f} to {1 / times[0]:.0f} tokens/s; {1 / step:.0f}"
    return cell


ROWS = [
    ("u4-g128, one row", one),
    ("16 rows, times the time of one", times_one(16)),
    ("32 rows, times the time of one", times_one(32)),
    ("64 rows, times the time of one", times_one(64)),
    ("4,096 rows by the kernels here", many),
    ("512 rows, expanded for cuBLAS", expanded(512)),
    ("4,096 rows, expanded for cuBLAS", expanded(4096)),
    ("attention, causal, 8,192 tokens, head 128, bf16", prefill),
    ("paged decode, 32 x 4,096", decode(256, 527)),
    ("the same, int8 cache", decode(132, 848)),
    ("the same, fp8 cache", decode(132, 910)),
    ("the same, int4 cache", decode(68, 1103)),
    ("Llama-3.1-8B's shape, u4-g128, bf16 head: one sequence", whole(STEP)),
    ("the same, head of u8-g32, as `quantize` makes it", whole(STEP - HEAD_LESS)),
]


def table():
    lines = ["| what (predicted; its limit) | " + " | ".join(PARTS) + " |", "|---" * (len(PARTS) + 1) + "|"]
    lines += [f"| {what} | " + " | ".join(cell(p) for p in PARTS.values()) + " |" for what, cell in ROWS]
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
