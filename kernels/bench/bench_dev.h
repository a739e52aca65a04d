/* kernels/bench/bench_dev.h - what a device can do at most, and how near its kernels come: products of
 * every scheme at 1 to 4,096 rows, attention of long prompts and of decode, scans of states. The limit is its own
 * copy; the matrix units' is left to what is measured next to it (scripts/bench/gpu_peers.py).
 *
 * A row's launches are captured once and replayed as a graph, as in use: the host's launches are in no
 * figure. Weights and caches take turns, so that none is in the device's L2 cache when its turn comes. A device with less than
 * BENCH_DEV_MEMORY gets small shapes: those are to see that all of it runs. */
#ifndef LLMQ_KERNELS_BENCH_BENCH_DEV_H
#define LLMQ_KERNELS_BENCH_BENCH_DEV_H

#include "kernels/device.h"

#define BENCH_DEV_MEMORY ((size_t)8 << 30)

typedef struct {
    char name
        [32]; /* "u4-g128 bf16", "prefill bf16", "decode int8"; "u4-g128 expanded", "u4-g128 units":
                       for cuBLAS (dev_mm_wide), and not, whichever the first is */
    char shape[64]; /* "1x14336x4096" = M x N x K; "32 x 4096, 32/8x128" = sequences x keys, H/Hkv x
                       D; of a scan sequences x rows, H/G x K */
    double seconds; /* of one call */
    double gflops, gbytes_s;
    double percent_of_copy; /* of the copy's bytes a second */
    double of_one;          /* times the time of one row of the same weight; 0: not such a row */
} bench_dev_row;

enum { BENCH_DEV_ROWS = 96 };

/* Bytes a second of a copy beyond any cache: each is read and written. Errors: LQ_EDEVICE. */
lq_status bench_dev_copy(dev *d, double *bytes_s, lq_err *err);
/* `only`: rows whose name and shape begin so, parted by semicolons ("u4-g128 bf16 1x;decode"); NULL: all.
 * Products take their inputs as `acts` says (MM_I8: where codes are integers, else bf16). Errors:
 * LQ_ENOMEM, LQ_EDEVICE, LQ_EINTR; the rows before are there. */
lq_status bench_dev_run(bench_dev_row rows[BENCH_DEV_ROWS], int *n_rows, dev *d, mm_acts acts,
                        double copy_bytes_s, const char *only, const lq_job *job, lq_err *err);

#endif
