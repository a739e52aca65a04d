/* tests/support/emulated.c - linked into a program, makes the CUDA kernels compiled for the host
 * (kernels/cuda/emu/) what `--device cuda` means there; LLMQ_TEST_DEVICE=cuda leaves the machine's
 * own GPU. LLMQ_EMULATED_DEVICES: how many (1); LLMQ_EMULATED_MEMORY: bytes of each;
 * LLMQ_EMULATED_LAUNCHES: after so many they are lost; LLMQ_EMULATED_LATE=1: only
 * the next one, which is seen at a wait alone. LLMQ_EMULATED_NCCL=none: no NCCL.
 * LLMQ_EMULATED_GRAPHS: so many can be made, then memory is out. LLMQ_EMULATED_NAME: as the driver
 * would call it; LLMQ_EMULATED_CC: 80, 86, 89 or 90, its compute capability (90); LLMQ_EMULATED_SM: its
 * multiprocessors (4).
 * LLMQ_EMULATED_DRIVER=1: through the library of a driver (emulated_driver.h). */
#include "tests/support/emulated_driver.h"

#include <stdlib.h>
#include <string.h>

extern const dev_ops emu_table;
extern size_t emu_memory, emu_launches, emu_graphs;
extern int emu_devices, emu_cc, emu_sm;
extern const char *emu_name;
extern bool emu_nccl_here, emu_lost_late;

__attribute__((constructor)) static void choose(void)
{
    const char *want = getenv("LLMQ_TEST_DEVICE"), *bytes = getenv("LLMQ_EMULATED_MEMORY");
    const char *launches = getenv("LLMQ_EMULATED_LAUNCHES");
    const char *devices = getenv("LLMQ_EMULATED_DEVICES");
    const char *graphs = getenv("LLMQ_EMULATED_GRAPHS");
    const char *nccl = getenv("LLMQ_EMULATED_NCCL"), *name = getenv("LLMQ_EMULATED_NAME"),
               *cc = getenv("LLMQ_EMULATED_CC"), *sm = getenv("LLMQ_EMULATED_SM");
    emu_lost_late = getenv("LLMQ_EMULATED_LATE") != NULL;
    emu_nccl_here = !nccl || strcmp(nccl, "none") != 0;
    if (cc) emu_cc = (int)strtol(cc, NULL, 10);
    if (sm) emu_sm = (int)strtol(sm, NULL, 10);
    if (devices) emu_devices = (int)strtol(devices, NULL, 10);
    if (name) emu_name = name;
    if (bytes) emu_memory = strtoull(bytes, NULL, 10);
    if (graphs) emu_graphs = strtoull(graphs, NULL, 10);
    if (launches) emu_launches = strtoull(launches, NULL, 10);
    if (!want || strcmp(want, "cuda") != 0)
        dev_use(getenv("LLMQ_EMULATED_DRIVER") ? emulated_driver(&emu_table) : &emu_table);
}
