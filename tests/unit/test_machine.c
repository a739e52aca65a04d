/* tests/unit/test_machine.c - the limits of control groups, in trees of files like theirs. */
#include "base/machine.h"

#include "base/cpus.h"
#include "tests/support/check.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/llmq-machine-XXXXXX";

/* A file below root, its folders too. */
static void put(const char *path, const char *text)
{
    char full[512];
    const int n = snprintf(full, sizeof full, "%s/%s", root, path);
    for (int i = 1; i < n; i++)
        if (full[i] == '/') {
            full[i] = 0;
            mkdir(full, 0777);
            full[i] = '/';
        }
    FILE *f = fopen(full, "w");
    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s", full);
}

static machine_limits limits(const char *tree, const char *self)
{
    char path[128], groups[128];
    put("self", self);
    snprintf(path, sizeof path, "%s/self", root);
    snprintf(groups, sizeof groups, "%s/%s", root, tree);
    return machine_limits_of(path, groups);
}

TEST(the_least_limit_of_a_group_and_those_around_it_counts) /* T-78 */
{
    put("two/memory.max", "max\n");
    put("two/cpu.max", "max 100000\n");
    put("two/a/memory.max", "1000000\n");
    put("two/a/memory.current", "300000\n");
    put("two/a/cpu.max", "400000 100000\n");
    put("two/a/b/memory.max", "900000\n");
    put("two/a/b/memory.current", "100\n");
    put("two/a/b/cpu.max", "max 100000\n");
    put("two/a/c/memory.max", "5\n");
    put("two/a/c/memory.current", "100\n");
    put("two/a/c/cpu.max", "50000 100000\n");
    static const struct {
        const char *self;
        size_t memory;
        double cpus;
    } t[] = {
        { "0::/\n", SIZE_MAX, 0 },
        { "0::/a\n", 700000, 4 },
        { "0::/a/b\n", 700000, 4 },
        { "0::/a/c\n", 0, 0.5 },
        { "0::/not/there\n", SIZE_MAX, 0 },
        { "0::/a/not/there\n", 700000, 4 },
        { "", SIZE_MAX, 0 },
        { "no colon\n0::/a\n", 700000, 4 },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        const machine_limits m = limits("two", t[i].self);
        CHECK(m.memory == t[i].memory && m.cpus >= t[i].cpus && m.cpus <= t[i].cpus, "%s: %zu, %g",
              t[i].self, m.memory, m.cpus);
    }
}

TEST(groups_of_version_1_are_apart)
{
    put("one/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("one/memory/x/memory.limit_in_bytes", "5000\n");
    put("one/memory/x/memory.usage_in_bytes", "1000\n");
    put("one/cpu/cpu.cfs_quota_us", "-1\n");
    put("one/cpu/cpu.cfs_period_us", "100000\n");
    put("one/cpu/y/cpu.cfs_quota_us", "150000\n");
    put("one/cpu/y/cpu.cfs_period_us", "100000\n");
    machine_limits m = limits("one", "9:memory:/x\n4:cpu,cpuacct:/y\n1:name=systemd:/z\n0::/\n");
    CHECK(m.memory == 4000 && m.cpus > 1.49 && m.cpus < 1.51, "%zu, %g", m.memory, m.cpus);
    m = limits("one", "9:memory:/\n4:cpuset:/y\n3:cpuacct,cpu:/\n");
    CHECK(m.memory > (size_t)1 << 60 && m.cpus <= 0, "%zu, %g", m.memory, m.cpus);
}

/* Two nodes of four cores of two CPUs each; core c of node n is CPUs 4n + c and 8 + 4n + c. */
static void put_two_nodes(void)
{
    char name[64], text[16];
    put("sys/node/online", "0-1\n");
    put("sys/node/node0/cpulist", "0-3,8-11\n");
    put("sys/node/node1/cpulist", "4-7,12-15\n");
    for (int i = 0; i < 16; i++) {
        snprintf(name, sizeof name, "sys/cpu/cpu%d/topology/thread_siblings_list", i);
        snprintf(text, sizeof text, "%d,%d\n", i % 8, i % 8 + 8);
        put(name, text);
    }
}

TEST(threads_take_each_core_before_its_second_cpu)
{
    static const struct {
        const char *allowed, *sys;
        bool in_turn;
        const char *order;
        int cores, nodes;
    } t[] = {
        { "1111111111111111", "sys", false, "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15", 8, 2 },
        { "1111111111111111", "sys", true, "0 4 1 5 2 6 3 7 8 12 9 13 10 14 11 15", 8, 2 },
        { "0000000011111111", "sys", false, "8 9 10 11 12 13 14 15", 8, 2 },
        { "1100000011000000", "sys", true, "0 1 8 9", 2, 1 },
        { "1000110010000000", "sys", false, "0 4 5 8", 3, 2 },
        { "1000110010000000", "sys", true, "0 4 5 8", 3, 2 },
        { "0000000000000010", "sys", true, "14", 1, 1 },
        { "1111000000000000", "nowhere", true, "0 1 2 3", 4, 1 },
    };
    put_two_nodes();
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        bool allowed[PLACES_MAX] = { false };
        char sys[128], order[128] = "";
        for (size_t k = 0; t[i].allowed[k]; k++)
            allowed[k] = t[i].allowed[k] == '1';
        snprintf(sys, sizeof sys, "%s/%s", root, t[i].sys);
        cpu_places p;
        places_of(&p, sys, allowed, t[i].in_turn);
        size_t used = 0;
        for (int k = 0; k < p.n; k++)
            used += (size_t)snprintf(order + used, sizeof order - used, "%s%d", k ? " " : "",
                                     p.at[k].cpu);
        CHECK(!strcmp(order, t[i].order), "%zu: %s", i, order);
        CHECK(p.cores == t[i].cores && p.nodes == t[i].nodes, "%zu: %d, %d", i, p.cores, p.nodes);
    }
}

TEST(lists_that_are_none_leave_a_core_alone)
{
    static const char *const texts[] = {
        "", "x", "-3", "5-", "99999999999999999999", "0-4294967296,,", "7-2\n"
    };
    for (size_t i = 0; i < LQ_COUNT(texts); i++) {
        bool allowed[PLACES_MAX] = { [3] = true };
        char sys[128];
        put("bad/node/online", texts[i]);
        put("bad/node/node0/cpulist", texts[i]);
        put("bad/cpu/cpu3/topology/thread_siblings_list", texts[i]);
        snprintf(sys, sizeof sys, "%s/bad", root);
        cpu_places p;
        places_of(&p, sys, allowed, false);
        CHECK(p.n == 1 && p.cores == 1 && p.nodes == 1 && p.at[0].cpu == 3, "%zu: %d, %d", i, p.n,
              p.cores);
    }
}

TEST(this_machine_has_memory_and_cpus)
{
    CHECK(machine_memory() > 0, "memory");
    CHECK(machine_cpus() >= 1, "CPUs");
}

static void *in_a_hurry(void *bytes)
{
    machine_hurry();
    machine_give_back(*(size_t *)bytes);
    machine_give_back(1000); /* not worth it */
    return NULL;
}

TEST(what_a_thread_in_a_hurry_gives_back_waits_for_another)
{
    size_t bytes = 3 << 20;
    pthread_t t;
    machine_give_back(bytes);
    size_t found = machine_settle();
    CHECK(found == 0, "at once: %zu are left", found);
    CHECK(!pthread_create(&t, NULL, in_a_hurry, &bytes) && !pthread_join(t, NULL), "a thread");
    found = machine_settle();
    CHECK(found == bytes, "in a hurry: %zu are left", found);
    found = machine_settle();
    CHECK(found == 0, "settled: %zu are left", found);
}

int main(int argc, char **argv)
{
    CHECK(mkdtemp(root) != NULL, "%s", root);
    RUN(the_least_limit_of_a_group_and_those_around_it_counts);
    RUN(groups_of_version_1_are_apart);
    RUN(threads_take_each_core_before_its_second_cpu);
    RUN(lists_that_are_none_leave_a_core_alone);
    RUN(this_machine_has_memory_and_cpus);
    RUN(what_a_thread_in_a_hurry_gives_back_waits_for_another);
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", root);
    CHECK(system(command) == 0, "%s", command);
    return check_end();
}
