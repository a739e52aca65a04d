/* publish/target.h - where an artifact can be: "dir:PATH", "oci://REGISTRY/NAME:TAG", "git:URL",
 * "hf:ORG/NAME".
 *
 * A target is a row of the table in targets.c and its own file. Writing: pub_push. Reading: the
 * target names its files (pub_remote), pull.c fetches, checks and resumes them, the same for all.
 */
#ifndef LLMQ_PUBLISH_TARGET_H
#define LLMQ_PUBLISH_TARGET_H

#include "publish/files.h"

typedef struct {
    const char *branch;        /* git: NULL: main */
    const char *username;      /* oci: NULL: as docker's config.json says */
    const char *password_file; /* oci: its first line; "-" is stdin */
    const char *ca;            /* oci: certificates to trust, PEM */
    bool plain_http;           /* oci: not only on the loopback */
    int patience;         /* oci, git: seconds in which a remote side must do something; 0: 60 */
    uint64_t chunk_bytes; /* oci: of an upload's pieces; 0: 64 MiB */
    const char *state;    /* where an interrupted upload is remembered; NULL: nowhere */
    void (*say)(const char *text); /* notes to print, in short lines; may be NULL */
    const lq_job *job;
} pub_opts;

typedef struct {
    char digest[80]; /* "sha256:..." of what names all files; git: the commit */
    uint64_t sent;   /* bytes that were not there yet */
    bool same;       /* all of it was there */
} pub_result;

typedef struct pub_remote pub_remote;
typedef struct pub_part pub_part;

typedef struct {
    const char *prefix; /* of the argument */
    /* Before any work: what speaks against publishing there, as far as this machine can tell. NULL:
     * nothing is asked. */
    lq_status (*check)(const char *where, lq_err *err);
    lq_status (*push)(pub_result *r, const char *where, const pub_files *fs, const pub_opts *o,
                      lq_err *err);
    /* The remote side's files with sizes, and digests where it has them, into r->files; each name
     * through pub_add. `scratch`: a folder for what a target must keep between runs; not made yet.
     */
    lq_status (*open)(pub_remote *r, const char *where, const char *scratch, const pub_opts *o,
                      lq_err *err);
    /* Bytes of a file from pub_part_at on, by pub_part_write; pub_part_restart where the remote
     * side has no such beginning. */
    lq_status (*get)(pub_remote *r, const pub_file *f, pub_part *part, lq_err *err);
    /* Also after a failed open. done: nothing needs to be kept for another run. */
    void (*close)(pub_remote *r, bool done);
} pub_target;

struct pub_remote {
    const pub_target *target;
    const pub_opts *opts;
    pub_files files;
    char digest[80];
    void *own; /* of the target's file */
};

extern const pub_target pub_dir, pub_oci, pub_git, pub_hub;

/* The target of an argument, and what follows its prefix. LQ_EUSAGE names all there are. */
lq_status pub_target_find(const pub_target **t, const char **where, const char *arg, lq_err *err);

/* ---- a file that is fetched (part.c) ---- */
uint64_t pub_part_at(const pub_part *p); /* bytes that are there */
/* LQ_EFORMAT: more than the file's bytes. */
lq_status pub_part_write(pub_part *p, const void *data, size_t n, lq_err *err);
lq_status pub_part_restart(pub_part *p, lq_err *err);

/* ---- pulling ---- */
/* Fetch the artifact at `arg` into the folder `dir`, which appears whole or not at all and replaces
 * an artifact that was pulled there. An interrupted run leaves DIR.resume, and the next goes on.
 * `check` (may be NULL) sees the complete folder before it gets its name; an error of its keeps it
 * from getting one. Errors: LQ_ECHECK - a digest does not fit; LQ_EFORMAT - what the remote side
 * says is no artifact, or a name that no file may have; LQ_EIO - no room, or the remote side cannot
 * be reached; LQ_ENOENT; LQ_EUSAGE - dir holds something else. */
typedef lq_status pub_check(void *user, const char *dir, lq_err *err);
lq_status pub_pull(pub_result *r, pub_files *files, const char *arg, const char *dir,
                   const pub_opts *o, pub_check *check, void *user, lq_err *err);

void pub_say(const pub_opts *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
