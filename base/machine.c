/* base/machine.c */
#include "base/machine.h"

#include "base/cpus.h"
#include "base/os.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4400, LINE_BYTES = 4200 };

/* The n whole numbers that a file of a group begins with. "max" and -1, no limit, are none. */
static bool numbers(long long *v, int n, const char *group, const char *name)
{
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/%s", group, name) >= (int)sizeof path) return false;
    FILE *f = fopen(path, "re");
    if (!f) return false;
    int got = 0;
    while (got < n && fscanf(f, "%lld", &v[got]) == 1 && v[got] >= 0)
        got++;
    fclose(f);
    return got == n;
}

static void take_memory(machine_limits *m, const char *group, const char *limit, const char *used)
{
    long long most, now = 0;
    if (!numbers(&most, 1, group, limit)) return;
    numbers(&now, 1, group, used);
    const size_t left = most > now ? (size_t)(most - now) : 0;
    if (left < m->memory) m->memory = left;
}

static void take_cpus(machine_limits *m, long long quota, long long period)
{
    const double n = period > 0 ? (double)quota / (double)period : 0;
    if (n > 0 && (m->cpus <= 0 || n < m->cpus)) m->cpus = n;
}

typedef enum { V2, V1_MEMORY, V1_CPU } kind;

static void take_group(machine_limits *m, const char *group, kind k)
{
    long long v[2], quota, period;
    if (k == V2) {
        take_memory(m, group, "memory.max", "memory.current");
        if (numbers(v, 2, group, "cpu.max")) take_cpus(m, v[0], v[1]);
    } else if (k == V1_MEMORY) {
        take_memory(m, group, "memory.limit_in_bytes", "memory.usage_in_bytes");
    } else if (numbers(&quota, 1, group, "cpu.cfs_quota_us") &&
               numbers(&period, 1, group, "cpu.cfs_period_us")) {
        take_cpus(m, quota, period);
    }
}

/* The group at root + path and all around it; path is used up. */
static void take_groups(machine_limits *m, const char *root, char *path, kind k)
{
    for (char *end = path; end; *end = 0) {
        char group[PATH_BYTES];
        if (snprintf(group, sizeof group, "%s%s", root, path) < (int)sizeof group)
            take_group(m, group, k);
        end = strrchr(path, '/');
        if (!end) break;
    }
}

static bool among(const char *names, const char *one)
{
    const size_t n = strlen(one);
    for (const char *at = names; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, one, n) == 0 && (at[n] == ',' || !at[n])) return true;
    }
    return false;
}

machine_limits machine_limits_of(const char *self, const char *root)
{
    machine_limits m = { .memory = SIZE_MAX };
    char line[LINE_BYTES], below[LINE_BYTES];
    FILE *f = fopen(self, "re");
    while (f && fgets(line, sizeof line, f)) { /* ID:CONTROLLERS:PATH; version 2 names none */
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        names++;
        if (!*names) {
            take_groups(&m, root, path, V2);
            continue;
        }
        const kind k = among(names, "memory") ? V1_MEMORY : V1_CPU;
        if (k == V1_CPU && !among(names, "cpu")) continue;
        snprintf(below, sizeof below, "%s/%s", root, k == V1_MEMORY ? "memory" : "cpu");
        take_groups(&m, below, path, k);
    }
    if (f) fclose(f);
    return m;
}

static machine_limits here(void)
{
    return machine_limits_of("/proc/self/cgroup", "/sys/fs/cgroup");
}

size_t machine_memory(void)
{
    const size_t all = os_memory_free(), left = here().memory;
    return left < all || (!all && left != SIZE_MAX) ? left : all;
}

int machine_cpus(void)
{
    cpu_places all;
    places_here(&all, false);
    int n = all.cores;
    const double quota = here().cpus;
    if (quota > 0 && quota < n) n = (int)quota + (quota > (int)quota);
    return n < 1 ? 1 : n;
}

static _Thread_local bool in_a_hurry;
static atomic_size_t owed; /* by those that are */

static void trim(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

void machine_give_back(size_t freed)
{
    enum { LARGE = 1 << 20 };
    if (freed <= LARGE) return;
    if (in_a_hurry)
        atomic_fetch_add(&owed, freed);
    else
        trim();
}

void machine_hurry(void) { in_a_hurry = true; }

size_t machine_settle(void)
{
    const size_t bytes = atomic_exchange(&owed, 0);
    if (bytes) trim();
    return bytes;
}
