/* runtime/api/api_files_int.h - what api_files.c (the store), api_file_parts.c and api_file_routes.c share. */
#ifndef LLMQ_RUNTIME_API_API_FILES_INT_H
#define LLMQ_RUNTIME_API_API_FILES_INT_H

#include "runtime/api/api_files.h"

#include <pthread.h>

struct api_files {
    pthread_mutex_t mu;
    api_file *latest;
    size_t bytes, most;
    int64_t order; /* of the next file */
    const api_disk *disk;
};

void api_files_expire(api_files *s); /* under mu: drops what is over */
/* A new file like that one, not in the list yet; NULL: out of memory. */
api_file *api_files_make(api_files *s, const api_file *like);
void api_files_enlist(api_files *s, api_file *f);
/* In a folder: views a file's bytes, which are there, and keeps what is known of it. LQ_EIO, LQ_ENOMEM: the next server
 * will not have it; this one may where there is a map. */
lq_status api_files_settle(const api_files *s, api_file *f, lq_err *err);
void api_files_remove_names(const api_files *s, const api_file *f);

#endif
