/* tools/cli/host.h - the processor and the devices of this machine, in words. */
#ifndef LLMQ_TOOLS_CLI_HOST_H
#define LLMQ_TOOLS_CLI_HOST_H

#include "base/base.h"

/* Its instruction sets, of those that kernels are written for: "sse4.2 avx2 fma". */
void host_isas(char *out, size_t n);
/* "cpu", and the GPUs by name, with their compute capability and what kernels run there, or why there
 * are none. */
void host_devices(char *out, size_t n);
/* Is a GPU of NVIDIA's here, whether or not it can be used: a driver has made its node; or it is at
 * least on the PCI bus, as seen from a container that was given none. */
bool host_gpu_node(void);
bool host_gpu(void);
/* The version of its driver; "": there is none. */
void host_driver(char *out, size_t n);

#endif
