/* convert/folder.h - a folder that appears whole or not at all.
 *
 * It is filled as DIR.tmp, locked (flock) by the process that fills it. While it grows a list is
 * in it (.llmq-begun) of the name that it gets and of the files that llmq writes there, each named
 * before it is made; a folder that is whole has another (.llmq-files). One rule says what may be
 * deleted, of a folder that is replaced and of what a killed run left: the files that the lists
 * name, of kinds that a model has. A folder that holds anything else is refused, as is one at
 * DIR.tmp that was not begun for DIR, be it whole or for another; what comes into one meanwhile
 * stays. */
#ifndef LLMQ_CONVERT_FOLDER_H
#define LLMQ_CONVERT_FOLDER_H

#include "base/json.h"

typedef struct {
    char dir[4096];    /* where files go until folder_publish */
    char target[4096]; /* the name it gets */
    int lock;
    bool
        resume; /* it grows as DIR.resume, and what a killed run left stays for the next to go on */
} conv_folder;

/* Would folder_create take this target? As far as can be told without writing: its LQ_EUSAGE. */
lq_status folder_check(const char *target, lq_err *err);
/* Folders above it that are missing are made. Errors: LQ_EUSAGE - target or DIR.tmp holds what llmq
 * did not write, is a mount point, or is worked in; LQ_EBUSY - another process fills it; LQ_EIO.
 * After an error there is nothing to drop. */
lq_status folder_create(conv_folder *f, const char *target, bool resume, lq_err *err);
/* The folder takes its name; an old one changes places with it and goes. Then, or on an error, f is
 * done with. LQ_EUSAGE: meanwhile something came into the old one. */
lq_status folder_publish(conv_folder *f, lq_err *err);
void folder_drop(conv_folder *f);
/* Done with f; the folder stays for the next run that resumes. */
void folder_leave(conv_folder *f);

/* Of the files that llmq wrote into it, those that are not wanted go. */
void folder_keep(const conv_folder *f, bool (*wanted)(void *user, const char *name), void *user);

/* The path of a file in it that is to be made, and is in the list from here on; `name` may be in
 * folders of its own, which are made. */
lq_status folder_path(char *out, size_t n, const conv_folder *f, const char *name, lq_err *err);
lq_status folder_write(const conv_folder *f, const char *name, const void *data, size_t n,
                       lq_err *err);
lq_status folder_write_json(const conv_folder *f, const char *name, const cJSON *j, lq_err *err);

#endif
