/* publish/hub/cache.h - the hub's cache on this machine, in the layout of huggingface_hub, which
 * reads what is put there and puts there what is read:
 *
 *     CACHE/models--ORG--NAME/blobs/ETAG              bytes: SHA-256 of large files, or git's SHA-1
 *                             blobs/ETAG.incomplete   their beginning
 *                             snapshots/COMMIT/PATH   a link to the blob
 *                             refs/main               the commit of a branch or tag
 *                             trees/COMMIT.json       all files of a commit
 *     CACHE/.locks/models--ORG--NAME/ETAG.lock        flock'ed while the blob is fetched
 *
 * Source: huggingface_hub's file_download.py, _tree_cache.py, docs "Understand caching". */
#ifndef LLMQ_PUBLISH_HUB_CACHE_H
#define LLMQ_PUBLISH_HUB_CACHE_H

#include "publish/hub/env.h"
#include "publish/hub/tree.h"

enum { HUB_PATH = 5200 };

typedef struct {
    char dir[4400];   /* CACHE/models--ORG--NAME */
    char locks[4400]; /* CACHE/.locks/models--ORG--NAME */
} hub_cache;

/* LQ_EUSAGE: too long. Nothing is made. */
lq_status hub_cache_init(hub_cache *c, const hub_env *env, const hub_name *name, lq_err *err);

/* The commit that the cache knows for a revision, or the revision where it is one; false: none. */
bool hub_cache_commit(char commit[SHA1_HEX], const hub_cache *c, const char *revision);
/* Remember it. LQ_EIO. */
lq_status hub_cache_set(const hub_cache *c, const char *revision, const char *commit, lq_err *err);

/* The list of a commit's files; false: it is not there, or of another form. */
bool hub_cache_tree(hub_tree *t, const hub_cache *c, const char *commit);
/* Keep it. Of a cache that may not be written nothing is said. */
void hub_cache_keep(const hub_tree *t, const hub_cache *c, const char *commit);
/* What a snapshot holds where there is no list, without digests; may be nothing. LQ_ENOMEM. */
lq_status hub_cache_look(hub_tree *t, const hub_cache *c, const char *commit, lq_err *err);

/* snapshots/COMMIT/PATH, and the folder itself where `path` is "". */
void hub_cache_path(char out[HUB_PATH], const hub_cache *c, const char *commit, const char *path);
/* Is the file there, whole? bytes: UINT64_MAX: of any size. */
bool hub_cache_has(const hub_cache *c, const char *commit, const char *path, uint64_t bytes);
/* blobs/ETAG. */
void hub_cache_blob(char out[HUB_PATH], const hub_cache *c, const char *etag);

/* Nobody else fetches the blob until the lock is closed (close(*fd)). Waits, as long as job is not
 * stopped; `waiting` (may be NULL) is called once if it has to. LQ_EINTR, LQ_EIO. */
lq_status hub_cache_lock(int *fd, const hub_cache *c, const char *etag, const lq_job *job,
                         void (*waiting)(void *user), void *user, lq_err *err);
/* snapshots/COMMIT/PATH names the blob from here on. LQ_EIO. */
lq_status hub_cache_link(const hub_cache *c, const char *commit, const char *path, const char *etag,
                         lq_err *err);

/* "org/name" of a path in such a cache's snapshots, in out[n]; false: it is in none. */
bool hub_cache_name(char *out, size_t n, const char *path);

#endif
