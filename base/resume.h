/* base/resume.h - the folder OUT.resume: what is finished of an output, kept next to it until all is.
 *
 *     OUT.resume/state.json    everything that changes the result
 *     OUT.resume/state.lock    held while a run is at work, or shares of one
 *     OUT.resume/part-...      what is finished, each file whole or absent; and what else a kind of run keeps
 *
 * The lock is the kernel's (flock): it ends with the process, however that ends. A run that was killed goes on from here
 * when it is repeated. Parts of a run with other options are neither used nor removed: the new run is refused with what
 * differs. */
#ifndef LLMQ_BASE_RESUME_H
#define LLMQ_BASE_RESUME_H

#include "base/base.h"

#include <cjson/cJSON.h>

#define RESUME_STATE "state.json"

typedef struct {
    const char *command;   /* "llmq quantize", for who holds the lock */
    const char *parts;     /* "layers" */
    const char *afresh;    /* how to begin without what is there: "start afresh with --no-resume" */
    const char *others[4]; /* how names of its further files begin */
    const char
        *aside; /* a member of `what` that is told where others differ, but may itself; or NULL */
} resume_kind;

typedef struct {
    char dir[4096];
    int lock; /* -1: the file system knows none */
    const resume_kind *kind;
} resume;

/* Makes the folder if need be, locks it and says in it whose it is (`what`, borrowed). *same: it held this very run
 * already, whose parts may be used; with `restart`, or where nothing was finished, it is empty now. shared: shares of the
 * run may be at work beside this one, whose parts stay; then a folder of another run is refused without parts too. After an
 * error there is nothing to close. Errors: LQ_EUSAGE (parts of another run; names what differs), LQ_EBUSY (another run
 * is at work), LQ_EIO, LQ_ENOMEM. */
lq_status resume_open(resume *r, bool *same, const char *out_path, const resume_kind *kind,
                      const cJSON *what, bool restart, bool shared, lq_err *err);
/* A folder for a while, of no run that could go on: $TMPDIR/llmq-rank-XXXXXX, which resume_close removes. Those that killed
 * processes of this user left go now. Errors: LQ_EIO, LQ_EVALUE. */
lq_status resume_open_apart(resume *r, const resume_kind *kind, lq_err *err);
/* OUT.resume; of a folder OUT/ too. LQ_EUSAGE: too long. */
lq_status resume_path(char *dir, size_t n, const char *out_path, lq_err *err);
/* With `remove` deletes its files; others stay, and with them the folder. Of one that was never opened (dir ""): nothing. */
void resume_close(resume *r, bool remove);

#endif
