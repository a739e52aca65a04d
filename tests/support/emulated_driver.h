/* tests/support/emulated_driver.h - an emulated device that goes through a driver's library.
 *
 * The library that LD_LIBRARY_PATH names as libcuda.so.1 (tests/support/standin_cuda.c) is called where
 * CUDA's runtime and NCCL would call NVIDIA's, and libcublas.so.13 where it is found: it opens, writes and loads what those do, and what it is
 * denied fails as there. */
#ifndef LLMQ_TESTS_SUPPORT_EMULATED_DRIVER_H
#define LLMQ_TESTS_SUPPORT_EMULATED_DRIVER_H

#include "kernels/device.h"

/* `ops` with the driver's part; one table for all. */
const dev_ops *emulated_driver(const dev_ops *ops);

#endif
