/* tests/support/emucounts.h - what the emulation counts, and is told (kernels/cuda/emu/emu.h). */
#ifndef LLMQ_TESTS_SUPPORT_EMUCOUNTS_H
#define LLMQ_TESTS_SUPPORT_EMUCOUNTS_H

#include <stddef.h>

typedef struct {
    size_t launches, waits, copies, allocations, graphs, nodes, kept, adds;
} emu_counts;
extern emu_counts emu_counted;
extern size_t emu_graphs;
extern int emu_cc, emu_sm;
extern size_t emu_memory;

static inline emu_counts counted_since(const emu_counts *before)
{
    const emu_counts *now = &emu_counted;
    return (emu_counts){ now->launches - before->launches, now->waits - before->waits,
                         now->copies - before->copies,     now->allocations - before->allocations,
                         now->graphs - before->graphs,     now->nodes - before->nodes,
                         now->kept - before->kept,         now->adds - before->adds };
}

#endif
