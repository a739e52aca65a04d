/* tests/support/ranks.h - processes that are the ranks of one job (base/comm.h), over sockets. */
#ifndef LLMQ_TESTS_SUPPORT_RANKS_H
#define LLMQ_TESTS_SUPPORT_RANKS_H

#include "base/comm.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MOST = 8 };

/* Runs body(c) as each of n ranks, over sockets; codes [n]: their exit codes, 128 + a signal. */
static inline void as_ranks(int n, int (*body)(comm *c), int *codes)
{
    char dir[] = "/tmp/llmq-comm-XXXXXX", text[64];
    pid_t pid[RANKS_MOST];
    CHECK(mkdtemp(dir) != NULL, "mkdtemp");
    for (int i = 0; i < n; i++) {
        pid[i] = fork();
        if (pid[i]) continue;
        comm *c;
        lq_err err = { "" };
        snprintf(text, sizeof text, "%d", i);
        setenv("LLMQ_RANK", text, 1);
        snprintf(text, sizeof text, "%d", n);
        setenv("LLMQ_RANKS", text, 1);
        snprintf(text, sizeof text, "%s/r", dir);
        setenv("LLMQ_RANK_SOCKETS", text, 1);
        if (comm_open(&c, &err)) {
            fprintf(stderr, "rank %d: %s\n", i, err.msg);
            _exit(99);
        }
        if (comm_rank(c) != i || comm_size(c) != n || comm_sharing(c) != n) _exit(98);
        const int code = body(c);
        if (!code) comm_close(c);
        _exit(code);
    }
    for (int i = 0; i < n; i++) {
        int status;
        waitpid(pid[i], &status, 0);
        codes[i] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    CHECK(rmdir(dir) == 0, "%s: a socket is left", dir);
}

#endif
