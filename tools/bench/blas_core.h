/* tools/bench/blas_core.h - which of OpenBLAS's kernels this process runs on.
 *
 * OpenBLAS chooses them once, when it is loaded, by the processor, or as OPENBLAS_CORETYPE says.
 * Kernels of different families sum in different orders. So a process that wants others starts
 * itself again, with the same arguments, before it has done anything. */
#ifndef LLMQ_TOOLS_BENCH_BLAS_CORE_H
#define LLMQ_TOOLS_BENCH_BLAS_CORE_H

#include "base/base.h"

/* What `quantize --reproducible` runs on: every x86 processor with AVX2 and FMA has it. */
#define BLAS_CORE_COMMON "Haswell"

/* reproducible: BLAS_CORE_COMMON, whatever the environment says. Else what OPENBLAS_CORETYPE says,
 * and without it SkylakeX or Haswell where the processor has AVX-512 or AVX2 and OpenBLAS did not see it
 * (0.3.21: recent AMD, Haswell; recent Intel, Prescott). Returns in a process that has the wanted kernels: maybe a new one, to which nothing
 * of the old one but arguments, environment and open files has come. Errors: LQ_EUNSUPPORTED (a
 * processor or library without BLAS_CORE_COMMON), LQ_EIO. */
lq_status blas_core_use(bool reproducible, lq_err *err);

/* For a process that is not ours to start again: LQ_EUNSUPPORTED where it does not run on
 * BLAS_CORE_COMMON already. */
lq_status blas_core_is_common(lq_err *err);

/* OpenBLAS starts a thread for each processor when it is loaded, of which llmq uses none: the work
 * is split by its own pool. Each asks for 128 MiB of addresses until it has them, also when the
 * process is to end. Where a limit (RLIMIT_AS, RLIMIT_DATA) may keep them out, this starts the process
 * again without these threads; call it first. */
void blas_core_no_threads(void);

#endif
