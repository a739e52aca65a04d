/* tests/support/archs.h - the tiny checkpoints of tests/golden/arch, by their folders' names in order:
 * one of every architecture and of each way its config changes it. */
#ifndef LLMQ_TESTS_SUPPORT_ARCHS_H
#define LLMQ_TESTS_SUPPORT_ARCHS_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/check.h"

enum { MAX_ARCHS = 240 };
typedef struct {
    char name[MAX_ARCHS][64];
    int n;
} arch_list;

static inline int archs_by_name(const void *a, const void *b) { return strcmp(a, b); }

/* Are those of the device's tests alone there, in what make gpu-bundle packs? */
static inline bool archs_are_some(void)
{
    return getenv("LLMQ_TEST_DEVICE") && access("tests/golden/arch/make_v5.py", R_OK) != 0;
}

/* Every folder there that has `file`. */
static inline void archs_find(arch_list *l, const char *file)
{
    DIR *d = opendir("tests/golden/arch");
    l->n = 0;
    for (const struct dirent *e; d && (e = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "tests/golden/arch/%s/%s", e->d_name, file);
        FILE *f = fopen(path, "rb");
        if (!f) continue;
        fclose(f);
        const bool room = l->n < MAX_ARCHS && strlen(e->d_name) < sizeof l->name[0];
        CHECK(room, "no room for %s", e->d_name);
        if (room) strcpy(l->name[l->n++], e->d_name);
    }
    if (d) closedir(d);
    qsort(l->name, (size_t)l->n, sizeof l->name[0], archs_by_name);
    CHECK(l->n >= 74 || archs_are_some(), "%d checkpoints in tests/golden/arch", l->n);
}

#endif
