/* tools/library/handle.h - what the files of the library share: the public structs read by their size,
 * errors and progress of include/llmq.h out of ours. */
#ifndef LLMQ_TOOLS_LIBRARY_HANDLE_H
#define LLMQ_TOOLS_LIBRARY_HANDLE_H

#include "include/llmq.h"
#include "runtime/service.h"
#include "tools/cli/opt_json.h"

#include <pthread.h>

struct llmq {
    opt_json options; /* their strings live as long as the model */
    bool holds;       /* the kernels */
    lm *l;
    pool *p;
    atomic_ullong next; /* id of llmq_submit */
};

/* Every function of the header begins with lib_enter and ends with lib_leave, which fills *e (NULL
 * allowed) and returns the code. */
void *lib_enter(void);
int32_t lib_leave(void *locale, lq_status s, const lq_err *err, llmq_error *e);

/* The caller's struct, of `size` bytes by its first member, into ours of n bytes, which a struct of
 * zeros goes before; from NULL: zeros. LQ_EUSAGE: less than that member, or something is set that
 * this library does not know. */
lq_status lib_read(void *to, size_t n, const void *from, const char *name, lq_err *err);
/* Ours into the caller's, but for `size`: what it has room for. */
lq_status lib_write(void *to, const void *from, size_t n, const char *name, lq_err *err);

/* LQ_EUSAGE: the argument `name` is NULL. */
lq_status lib_given(const void *p, const char *name, lq_err *err);

/* A caller's progress as a job. */
typedef struct {
    lq_job job;
    llmq_on_progress f; /* NULL: nobody watches */
    void *user;
    pthread_mutex_t lock;
    atomic_int stop;
    double last; /* when it was called */
    char what[64];
} lib_watch;
void lib_watch_init(lib_watch *w, llmq_on_progress f, void *user);
void lib_watch_free(lib_watch *w);

#endif
