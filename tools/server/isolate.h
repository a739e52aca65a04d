/* tools/server/isolate.h - a server gives up the rights that it does not need.
 *
 * A fault in it, or a model file made to find one, then reaches neither other files nor programs.
 *
 * Three means, all of the kernel; they need no privileges:
 *
 *     no new privileges   (prctl) a program that it starts gets no more rights than it has
 *     files               (Landlock) it opens the files it was given and the system's, no others,
 *                         and connects to no TCP port
 *     system calls        (seccomp) it starts no program and no process, traces no process, mounts
 *                         nothing, loads nothing into the kernel
 *
 * The first two hold from iso_files on, which must come before the first thread: below Linux 7.0
 * Landlock is inherited by threads, not imposed on them. iso_calls forbids the calls, once all is
 * loaded.
 *
 * A GPU's driver needs more: device nodes, their ioctls, a cache of compiled kernels, shared memory,
 * libraries from elsewhere. It gets that only where a device is in use, which is opened before
 * iso_files: a driver that is used for the first time starts a program which loads its modules and
 * makes its nodes. Threads that the driver has by then keep their files below Linux 7.0, which
 * the report says; of calls they give up the same as all others.
 *
 * Not applied: under AddressSanitizer and ThreadSanitizer, whose own work needs the calls; on systems
 * other than Linux and processors other than x86-64 and 64-bit ARM.
 * Source: the kernel's Documentation/userspace-api/{landlock,no_new_privs,seccomp_filter}.rst. */
#ifndef LLMQ_TOOLS_SERVER_ISOLATE_H
#define LLMQ_TOOLS_SERVER_ISOLATE_H

#include "base/base.h"

typedef enum { ISO_AUTO, ISO_OFF, ISO_REQUIRED } iso_mode;
extern const char *const iso_words[]; /* "auto", "off", "required", NULL */

typedef enum {
    ISO_MODEL,    /* a file or a folder that is read, with where its links lead */
    ISO_REPLACED, /* a file that is read now and again later, also when another takes its name */
    ISO_LOG,      /* a file that is written, and made again after a rotation */
    ISO_SOCKET,   /* a Unix socket that is made and removed */
    ISO_STORE     /* a folder in which files are made and removed */
} iso_use;

typedef struct {
    const char *path; /* NULL: none */
    iso_use use;
} iso_path;

typedef struct {
    iso_mode mode;
    const iso_path *paths;
    size_t n;
    int gpus; /* that are open; several connect to each other */
    bool
        ranks; /* of several processes (base/comm.h), which are connected, and may connect once more */
} iso_want;

/* What holds and what does not, in words, as iso_files and iso_calls found it. */
typedef struct {
    char on[128], missing[256];
} iso_report;

/* LQ_EUNSUPPORTED under ISO_REQUIRED, where the kernel has not all of it. A path that is not there
 * is left to whom it is for. */
lq_status iso_files(iso_report *r, const iso_want *w, lq_err *err);
lq_status iso_calls(iso_report *r, const iso_want *w, lq_err *err);

#endif
