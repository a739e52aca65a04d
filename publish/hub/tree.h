/* publish/hub/tree.h - the files of a repository at a commit, as the hub lists them and as the
 * cache keeps the list (trees/COMMIT.json, huggingface_hub's format 1). */
#ifndef LLMQ_PUBLISH_HUB_TREE_H
#define LLMQ_PUBLISH_HUB_TREE_H

#include "base/json.h"
#include "publish/hub/name.h"
#include "publish/sha256.h"

typedef struct {
    char *path;
    uint64_t bytes;
    char git_sha1[SHA1_HEX]; /* of the file, or of the pointer to it where it is large; "" */
    char sha256[SHA_HEX];    /* of a large file (git-lfs); else "" */
    char xet[SHA_HEX];       /* the hub's other storage's name of it; "" */
    bool wanted;             /* hub_choose */
} hub_entry;

typedef struct {
    hub_entry *e;
    size_t n;
} hub_tree;

void hub_tree_free(hub_tree *t);
/* One more, at the end; NULL: out of memory. */
hub_entry *hub_tree_add(hub_tree *t, const char *path);
const hub_entry *hub_tree_find(const hub_tree *t, const char *path); /* NULL */
/* The name that the cache gives the file's bytes: as the hub's ETag, SHA-256 of large files,
 * else git's. */
const char *hub_etag(const hub_entry *e);

/* One page of the hub's answer: its files are added, whatever their names, its folders are not.
 * LQ_EFORMAT. */
lq_status hub_tree_add_page(hub_tree *t, const char *text, size_t n, lq_err *err);
/* The cache's list. LQ_EFORMAT, LQ_EVALUE: it is none. */
lq_status hub_tree_read(hub_tree *t, const char *path, lq_err *err);
lq_status hub_tree_write(const hub_tree *t, const char *path, lq_err *err);

#endif
