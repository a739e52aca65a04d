/* base/cpus.c */
#include "base/cpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A list of numbers as sysfs writes it, "0-3,8": set[i] for those below PLACES_MAX; the first of
 * them, or -1 where there is none. */
static int read_list(bool *set, const char *sys, const char *name)
{
    char path[512];
    if (snprintf(path, sizeof path, "%s/%s", sys, name) >= (int)sizeof path) return -1;
    FILE *f = fopen(path, "re");
    int first = -1, from, to;
    while (f && fscanf(f, "%d", &from) == 1) {
        to = from;
        if (fscanf(f, "-%d", &to) == EOF) to = from;
        for (int i = from < 0 ? 0 : from; i <= to && i < PLACES_MAX; i++) {
            if (first < 0) first = i;
            set[i] = true;
        }
        if (fgetc(f) != ',') break;
    }
    if (f) fclose(f);
    return first;
}

static int by_core_then_node(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->turn != y->turn) return x->turn < y->turn ? -1 : 1;
    if (x->node != y->node) return x->node < y->node ? -1 : 1;
    return (x->cpu > y->cpu) - (x->cpu < y->cpu);
}

static int by_core_then_turn(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->turn != y->turn) return x->turn < y->turn ? -1 : 1;
    if (x->index != y->index) return x->index < y->index ? -1 : 1;
    return by_core_then_node(a, b);
}

static void find_nodes(int *node_of, const char *sys)
{
    char name[64];
    bool nodes[PLACES_MAX] = { false };
    read_list(nodes, sys, "node/online");
    for (int n = 0; n < PLACES_MAX; n++) {
        if (!nodes[n]) continue;
        bool cpus[PLACES_MAX] = { false };
        snprintf(name, sizeof name, "node/node%d/cpulist", n);
        read_list(cpus, sys, name);
        for (int i = 0; i < PLACES_MAX; i++)
            if (cpus[i]) node_of[i] = n;
    }
}

void places_of(cpu_places *p, const char *sys, const bool *allowed, bool nodes_in_turn)
{
    char name[64];
    int node_of[PLACES_MAX] = { 0 }, of_core[PLACES_MAX] = { 0 }, of_node[PLACES_MAX] = { 0 };
    memset(p, 0, sizeof *p);
    find_nodes(node_of, sys);
    for (int i = 0; i < PLACES_MAX; i++) {
        if (!allowed[i]) continue;
        bool siblings[PLACES_MAX] = { false };
        snprintf(name, sizeof name, "cpu/cpu%d/topology/thread_siblings_list", i);
        const int least = read_list(siblings, sys, name), core = least < 0 ? i : least;
        p->at[p->n++] =
            (struct place){ .cpu = i, .core = core, .node = node_of[i], .turn = of_core[core]++ };
    }
    qsort(p->at, (size_t)p->n, sizeof *p->at, by_core_then_node);
    for (int i = 0; i < p->n; i++) {
        struct place *at = &p->at[i];
        p->cores += at->turn == 0;
        p->nodes += of_node[at->node] == 0;
        at->index = of_node[at->node]++;
    }
    if (nodes_in_turn) qsort(p->at, (size_t)p->n, sizeof *p->at, by_core_then_turn);
}

void places_here(cpu_places *p, bool nodes_in_turn)
{
    bool allowed[PLACES_MAX];
    os_cpus set;
    os_cpus_allowed(&set);
    for (int i = 0; i < PLACES_MAX; i++)
        allowed[i] = set.word[i / 64] >> i % 64 & 1;
    places_of(p, "/sys/devices/system", allowed, nodes_in_turn);
}

lq_status places_interleave(lq_err *err)
{
    const int why = os_interleave();
    if (!why) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "memory policy: expected to be allowed to set one, found: %s", strerror(why));
}
