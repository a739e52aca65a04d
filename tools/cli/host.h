/* tools/cli/host.h - the processor and the devices of this machine, in words. */
#ifndef LLMQ_TOOLS_CLI_HOST_H
#define LLMQ_TOOLS_CLI_HOST_H

#include "base/base.h"

/* Its instruction sets, of those that kernels are written for: "sse4.2 avx2 fma". */
void host_isas(char *out, size_t n);
/* "cpu", and the GPUs by name or why there are none. */
void host_devices(char *out, size_t n);
/* Is a GPU of NVIDIA's on the PCI bus, whether or not it can be used? driver: its version; "": none. */
bool host_nvidia(char *driver, size_t n);

#endif
