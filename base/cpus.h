/* base/cpus.h - the CPUs and memory nodes that this process may use, as the kernel reports
 * them (Linux, Documentation/ABI/stable/sysfs-devices-system-cpu and -node). A CPU of which it
 * reports nothing counts as a core of its own on node 0. */
#ifndef LLMQ_BASE_CPUS_H
#define LLMQ_BASE_CPUS_H

#include "base/os.h"

enum { PLACES_MAX = OS_CPUS }; /* CPUs, and as many nodes */

/* CPUs in the order in which threads take them: first one of each physical core, then the others of
 * those cores; of cores those of one node after those of another, or of all nodes in turn. */
typedef struct {
    int n, cores, nodes;
    struct place {
        int cpu, core, node; /* core: the least CPU of it, allowed or not */
        int turn, index;     /* the how manieth of its core; of its node among those */
    } at[PLACES_MAX];
} cpu_places;

/* Of the CPUs i < PLACES_MAX with allowed[i]; `sys`: /sys/devices/system. */
void places_of(cpu_places *p, const char *sys, const bool *allowed, bool nodes_in_turn);
/* Of those that this process may use (os_cpus_allowed); at least one. */
void places_here(cpu_places *p, bool nodes_in_turn);

/* From now on the pages that this thread and those it starts touch first are spread over all nodes
 * that it may use (MPOL_INTERLEAVE of Linux's set_mempolicy(2)). LQ_EUNSUPPORTED: the system
 * refuses. */
lq_status places_interleave(lq_err *err);

#endif
