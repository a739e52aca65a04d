/* base/machine.h - the memory and CPUs that this process may use: control groups (cgroups(7),
 * version 1 or 2) may allow less than the machine has. */
#ifndef LLMQ_BASE_MACHINE_H
#define LLMQ_BASE_MACHINE_H

#include "base/base.h"

typedef struct {
    size_t memory; /* bytes left of the least limit; SIZE_MAX: none */
    double cpus;   /* quota over period, the least; 0: none */
} machine_limits;

/* Of the groups named in `self` (/proc/self/cgroup) and of those around them, below `root`
 * (/sys/fs/cgroup). A container sees its own group as the root, under a name that may not be there:
 * what cannot be read is no limit. */
machine_limits machine_limits_of(const char *self, const char *root);

/* Bytes that this process may still take: the machine's, or what its groups leave it if less; 0
 * where neither is told. */
size_t machine_memory(void);
/* Physical cores that it may use (places.h), or its groups' quota of CPUs, rounded up, if less; at
 * least 1. */
int machine_cpus(void);

/* After so many bytes were freed: where they are many, back to the system, with whatever else
 * malloc keeps below something that lives on. */
void machine_give_back(size_t freed);
/* From now on machine_give_back on this thread leaves that to whoever calls machine_settle: it looks
 * through all that malloc keeps (88 ms were seen), and others wait for this thread. */
void machine_hurry(void);
/* Gives back what threads in a hurry have left: how many bytes they had freed. */
size_t machine_settle(void);

#endif
