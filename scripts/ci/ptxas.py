#!/usr/bin/env python3
"""Reads what `ptxas -v` said of each kernel (build/kernels/cuda/*.ptxas, written by make) and holds it
against the budget below: no spills, no more registers, shared memory or stack than stated, no
products of a warpgroup that ptxas made wait for each other, and no setmaxnreg that it ignored.

usage: scripts/ci/ptxas.py [--table] [FOLDER]   exit 1: over budget, or a kernel that has none
--table: the figures as a table in Markdown."""
import os
import re
import sys

# kernel: threads a block, registers a thread, static shared memory of a block (dynamic: the file's
# top), bytes. Registers x threads x the blocks that are to share a multiprocessor <= 65,536.
BUDGET = {
    "norm_kernel": (256, 64, 64),
    "clip_kernel": (256, 40, 0),
    "squares_kernel": (256, 40, 32),
    "scale_kernel": (256, 40, 0),
    "rope_kernel": (128, 64, 0),
    "turn_kernel": (128, 40, 0),
    "act_kernel": (256, 40, 0),
    "act_mixed_kernel": (256, 40, 0),
    "act_cut_kernel": (256, 40, 64),
    "post_kernel": (256, 40, 64),
    "altup_kernel": (256, 64, 544),
    "gauge_kernel": (256, 40, 64),
    "collapse_kernel": (256, 40, 320),
    "spread_kernel": (256, 40, 0),
    "embed_kernel": (256, 40, 0),
    "swap_kernel": (256, 40, 0),
    "widen_kernel": (256, 64, 0),
    "conv_kernel": (128, 80, 0),
    "scan_kernel": (128, 255, 26688),  # two blocks
    "rates_kernel": (256, 40, 0),
    "gate_kernel": (128, 64, 16),
    "times_kernel": (256, 40, 0),
    "xielu_kernel": (256, 40, 0),
    "unmix_kernel": (256, 40, 0),
    "route_kernel": (32, 80, 0),
    "place_kernel": (256, 40, 0),
    "join_kernel": (256, 40, 0),
    "round_kernel": (256, 40, 0),
    "arrange_kernel": (256, 40, 0),
    "gather_kernel": (256, 40, 0),
    "gemv_kernel": (256, 128, 4160),   # two blocks
    "thin_kernel": (256, 128, 9216),   # two blocks; on sm_90 of 2 and 4 bits three, 80 registers
    "mma_kernel": (512, 255, 176),     # one block: of 512 threads and 128 registers, or 256
    "mma_join_kernel": (256, 40, 0),
    "sm90_kernel": (384, 168, 0),      # one block; the warps that multiply take 232 (setmaxnreg)
    "sm90_join_kernel": (256, 40, 0),
    "quant_kernel": (256, 40, 0),
    "few_kernel": (256, 80, 40 << 10),  # three blocks
    "many_kernel": (128, 255, 12 << 10),  # two blocks
    "fold_kernel": (128, 128, 0),      # four blocks by registers
    "units_kernel": (128, 255, 2560),  # two blocks (of WIDTH = 256 one, by shared memory)
    "latent_kernel": (256, 255, 1792),  # one block
    "decode_kernel": (128, 255, 4112),  # two blocks, of WIDTH = 256 one
    "sm90_attn_kernel": (384, 168, 0),  # one block, as sm90_kernel
    "merge_kernel": (128, 80, 0),      # six blocks
    "block_score_kernel": (128, 128, 34304),  # three blocks on parts of 99 KiB
    "block_pick_kernel": (512, 64, 1280),     # two blocks
    "score_kernel": (128, 128, 17408),  # four blocks
    "pick_kernel": (512, 128, 256),     # one block
    "keys_kernel": (128, 40, 0),
    "list_kernel": (128, 40, 0),
    "draw_kernel": (512, 128, 0),      # one block
    "sum_kernel": (256, 40, 0),
    "gemm_kernel": (256, 128, 8448),   # two blocks
    "minus_kernel": (256, 128, 8448),  # two blocks
    "bias_kernel": (256, 40, 0),
    "expand_kernel": (256, 64, 64),    # four blocks
    "lt_round_kernel": (256, 40, 32),
    "lt_codes_kernel": (256, 40, 0),
    "lt_join_kernel": (256, 40, 0),
    "shrink_kernel": (256, 128, 1024),      # two blocks
    "expand_lora_kernel": (128, 80, 1024),  # six blocks
    "probe_kernel": (1024, 40, 0),
    "gptq_round_kernel": (256, 64, 0),
    "gptq_errors_kernel": (256, 40, 0),
    "gptq_sweep_kernel": (256, 64, 96),
}


def read(folder):
    """[(kernel, arguments of its template, arch, registers, shared, stack, spilled)], and the files
    where ptxas did other than what was written."""
    found, waits = [], []
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".ptxas"):
            continue
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            text = f.read()
        for line in text.splitlines():
            if re.search(r"\(C75(0[6-9]|10|14|15|17|18)\)", line):
                print(f"{name}: {line}", file=sys.stderr)
                waits.append(name)
        for part in text.split("Compiling entry function ")[1:]:
            symbol, arch = re.match(r"'([^']+)' for '([^']+)'", part).groups()
            kernel = next((k for k in BUDGET if re.search(rf"\d+{k}", symbol)), None)
            template = re.search(r"_kernelI(.*?)EEv", symbol)
            numbers = re.findall(r"L[^0-9]*(?:\d+[a-z_]+E?)?(\d+)E", template.group(1) + "E") if template else []
            stack, store, load = map(int, re.search(
                r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part).groups())
            registers = int(re.search(r"Used (\d+) registers", part).group(1))
            smem = re.search(r"(\d+) bytes smem", part)
            found.append((kernel or symbol, ",".join(numbers), arch, registers,
                          int(smem.group(1)) if smem else 0, stack, store + load, kernel is not None))
    return found, waits


def main():
    args = [a for a in sys.argv[1:] if a != "--table"]
    folder = args[0] if args else "build/kernels/cuda"
    rows, waits = read(folder) if os.path.isdir(folder) else ([], [])
    if not rows:
        print("skipped: nothing compiled by nvcc in", folder)
        return 0
    bad = len(waits)
    seen = {}
    for kernel, template, arch, registers, smem, stack, spilled, known in rows:
        where = f"{kernel}<{template}> {arch}"
        if not known:
            print(f"{where}: has no budget (scripts/ci/ptxas.py)", file=sys.stderr)
            bad += 1
            continue
        threads, max_registers, max_smem = BUDGET[kernel]
        for what, is_, limit in [("registers", registers, max_registers), ("bytes of shared memory", smem, max_smem),
                                 ("bytes of stack", stack, 0), ("bytes spilled", spilled, 0)]:
            if is_ > limit:
                print(f"{where}: expected at most {limit} {what}, found {is_}", file=sys.stderr)
                bad += 1
        key = (kernel, arch)
        n, r, s = seen.get(key, (0, 0, 0))
        seen[key] = (n + 1, max(r, registers), max(s, smem))
    for kernel in BUDGET:
        if kernel not in {k for k, _ in seen}:
            print(f"{kernel}: has a budget and was not compiled", file=sys.stderr)
            bad += 1
    if "--table" in sys.argv:
        print("| kernel | arch | variants | registers (budget) | static shared (budget) |\n|---|---|---|---|---|")
        for (kernel, arch), (n, r, s) in sorted(seen.items()):
            print(f"| {kernel} | {arch} | {n} | {r} ({BUDGET[kernel][1]}) | {s} ({BUDGET[kernel][2]}) |")
    print(f"ptxas: {len(rows)} kernels, {bad} over budget")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
