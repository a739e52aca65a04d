/* runtime/engine/adapters.h - the adapters that requests may name, read and given up while others run.
 * Who was given one keeps it to its end, whatever happens to the name. Any thread. */
#ifndef LLMQ_RUNTIME_ENGINE_ADAPTERS_H
#define LLMQ_RUNTIME_ENGINE_ADAPTERS_H

#include "runtime/model/lora.h"

enum { ADAPTERS_MOST = 256, ADAPTERS_NAME = 200 /* bytes */ };

typedef struct {
    /* A folder whose files may be read after the start; NULL: none is. Borrowed, as is `named`. */
    const char *dir;
    const char *const *named; /* [n] "NAME=PATH": those that are there from the start */
    int n;
    int64_t max_rank; /* of one; 0: there are no adapters */
} adapters_opts;

typedef struct {
    char name[ADAPTERS_NAME + 1];
    uint64_t id;       /* lora_adapter's */
    int64_t created;   /* Unix seconds */
    uint64_t requests; /* that were given it */
    size_t bytes;
} adapters_card;

/* LQ_EUSAGE: not NAME=PATH, or a name twice. */
lq_status adapters_check(const adapters_opts *o, lq_err *err);

/* What is read of an adapter, or of all that are named: about what they take in memory. What cannot be read
 * counts nothing. */
size_t adapters_path_bytes(const char *path);
size_t adapters_file_bytes(const adapters_opts *o);

typedef struct adapters adapters;
/* m stays until adapters_close. p: of the start alone. Errors: those of lora_open. */
lq_status adapters_open(adapters **a, const model *m, const adapters_opts *o, pool *p, lq_err *err);
void adapters_close(adapters *a); /* NULL allowed */
bool adapters_have(adapters *a, const char *name);
/* For one request, to be lora_unref'd; NULL: there is none of this name. */
lora_adapter *adapters_take(adapters *a, const char *name);
/* In the order in which they were read; returns how many, at most ADAPTERS_MOST. */
int adapters_list(adapters *a, adapters_card *cards);

/* Reads one more, on a thread of its own: done(user, LQ_OK or what is wrong, err), once. `path` is that
 * in opts.dir, or begins with it. inplace: one of this name is replaced, for requests that come later.
 * Errors, without done: LQ_EUNSUPPORTED: there is no such folder; LQ_EVALUE: not a name, or a path that
 * leads elsewhere; LQ_EUSAGE: the name is taken; LQ_EBUSY: another is being read, or there are too many. */
typedef void adapters_done(void *user, lq_status s, const lq_err *err);
lq_status adapters_load(adapters *a, const char *name, const char *path, bool inplace,
                        adapters_done *done, void *user, lq_err *err);
/* LQ_ENOENT: there is none of this name. */
lq_status adapters_unload(adapters *a, const char *name, lq_err *err);

#endif
