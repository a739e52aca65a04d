/* convert/folder.h - a folder that appears whole or not at all.
 *
 * It is filled as DIR.tmp, locked (flock) by the process that fills it and marked by a file in it,
 * so that a run which was killed leaves something that the next one recognises and removes.
 * FOLDER_RESUME: it is DIR.resume, and what a killed run left stays for the next one to go on. */
#ifndef LLMQ_CONVERT_FOLDER_H
#define LLMQ_CONVERT_FOLDER_H

#include "formats/json.h"

typedef enum {
    FOLDER_ARTIFACT = 1, /* holds what publish writes too: .llmq, .gguf, SHA256SUMS */
    FOLDER_RESUME = 2,
} folder_flags;

typedef struct {
    char dir[4096];    /* where files go until folder_publish */
    char target[4096]; /* the name it gets */
    int lock;
    unsigned flags;
} conv_folder;

/* Would folder_create take this target? As far as can be told without writing: its LQ_EUSAGE. */
lq_status folder_check(const char *target, unsigned flags, lq_err *err);
/* Folders above it that are missing are made. Errors: LQ_EUSAGE - target holds what is no model, or
 * DIR.tmp is somebody's; LQ_EBUSY - another process fills it; LQ_EIO. After an error there is
 * nothing to drop. */
lq_status folder_create(conv_folder *f, const char *target, unsigned flags, lq_err *err);
/* The folder takes its name; an old one changes places with it and goes. Then, or on an error, f is
 * done with. */
lq_status folder_publish(conv_folder *f, lq_err *err);
void folder_drop(conv_folder *f);
/* Done with f; the folder stays for the next run with FOLDER_RESUME. */
void folder_leave(conv_folder *f);

/* The path of a file in it; `name` may be in one folder more, which is made. */
lq_status folder_path(char *out, size_t n, const conv_folder *f, const char *name, lq_err *err);
/* A file in it; `name` may be in one folder more, which is made. */
lq_status folder_write(const conv_folder *f, const char *name, const void *data, size_t n,
                       lq_err *err);
lq_status folder_write_json(const conv_folder *f, const char *name, const cJSON *j, lq_err *err);

#endif
