/* tests/support/temp_dir.h - a folder for a test: made, and removed with the files in it. */
#ifndef LLMQ_TESTS_SUPPORT_TEMP_DIR_H
#define LLMQ_TESTS_SUPPORT_TEMP_DIR_H

#include "tests/support/check.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEMP_DIR = 64 };

static inline void temp_dir_make(char dir[TEMP_DIR])
{
    strcpy(dir, "/tmp/llmq-test-XXXXXX");
    CHECK(mkdtemp(dir), "no folder");
}

static inline void temp_dir_remove(const char *dir)
{
    char path[400];
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (d) closedir(d);
    rmdir(dir);
}

#endif
