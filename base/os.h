/* base/os.h - what systems do differently, a function each: os_linux.c, and os_bsd.c for macOS and
 * FreeBSD, which is compiled (make foreign) and not run. Where a system lacks something, the function
 * says so, and its callers do without. Failures leave errno. */
#ifndef LLMQ_BASE_OS_H
#define LLMQ_BASE_OS_H

#include "base/base.h"

#include <pthread.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

/* ---- files ---- */
/* A file without a name in the folder, gone once closed; -1: the system or the file system has none. */
int os_open_nameless(const char *dir, int flags, mode_t mode);
/* Whether os_link_nameless can give such a file a name, and that. */
bool os_can_link(void);
bool os_link_nameless(int fd, const char *path);
/* The disk begins to write these bytes; nothing waits for it. */
void os_begin_sync(int fd, size_t from, size_t n);
/* Two names change places, at no moment is either missing. */
bool os_exchange(const char *a, const char *b);
bool os_is_mount(const char *dir);
/* Where an open file is, or was before it was removed. */
bool os_path_of(int fd, char *out, size_t n);
struct timespec os_mtime(const struct stat *st);

/* ---- memory ---- */
void os_huge_pages(void *p, size_t n); /* a wish for those of anonymous memory */
void os_wipe(void *p, size_t n);       /* zeros that no compiler leaves out */
/* Bytes; 0: the system does not say. */
size_t os_memory_free(void); /* of the machine, that may still be taken */
size_t os_memory_used(void); /* of this process, in memory */
size_t os_memory_peak(void); /* the most of them so far */

/* ---- chance, order ---- */
bool os_random(void *p, size_t n); /* of cryptographic strength; false: there is none */
/* qsort whose comparison is given `with`. */
void os_sort(void *v, size_t n, size_t size, int (*compare)(const void *, const void *, void *),
             void *with);

/* ---- waiting (os_wait.c) ---- */
void os_cond_init(pthread_cond_t *c);
/* Until a signal or the time `until` of lq_now; 0 or ETIMEDOUT. The condition is os_cond_init's. */
int os_cond_until(pthread_cond_t *c, pthread_mutex_t *m, double until);

/* ---- sockets, pipes, processes: descriptors that a started program does not inherit ---- */
int os_socket(int family, int type, int protocol, bool nonblocking);
int os_pipe(int fd[2]);
int os_dup_over(int from, int to);    /* dup2 */
bool os_program(char *out, size_t n); /* the file of this process's program */
/* In a child: SIGTERM when the thread that forked ends. false: it has ended already, or (where the
 * system cannot) is no longer the parent. */
bool os_end_with(pid_t parent);
/* A descriptor that can be read from (poll) once the process has ended, whoever waits for it; -1: there is no such
 * process, or the system has no such thing. */
int os_watch_process(pid_t pid);

/* ---- processors ---- */
enum { OS_CPUS = 1024 };
typedef struct {
    uint64_t word[OS_CPUS / 64]; /* CPU i: bit i % 64 of word i / 64 */
} os_cpus;
void os_cpus_allowed(os_cpus *c);                 /* those that this process may use */
int os_bind(pthread_t thread, const os_cpus *to); /* 0 or an errno */
/* Memory that this thread and those it starts touch first is spread over all nodes; 0 or an errno. */
int os_interleave(void);
void os_cpu_name(char *out, size_t n); /* "unknown" where the system does not say */
enum { OS_ARM_DOT = 1, OS_ARM_I8MM = 2, OS_ARM_BF16 = 4 };
unsigned os_arm_features(void); /* of ARM; 0 elsewhere */
bool os_allow_tiles(void);      /* AMX's; they are asked for once */

#endif
