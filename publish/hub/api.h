/* publish/hub/api.h - the hub's HTTP interface: which commit, which files, their bytes.
 *
 *     GET ENDPOINT/api/models/REPO/revision/REV               {"sha": ...}
 *     GET ENDPOINT/api/models/REPO/tree/COMMIT?recursive=true [{"type", "path", "size", "oid"}, ...],
 *                                                             next page: Link
 *     GET ENDPOINT/REPO/resolve/COMMIT/PATH                   the file, or a redirect to it
 *
 * The token goes to the endpoint's own host alone.
 * Source: huggingface.co/docs/hub/api, huggingface_hub's hf_api.py and file_download.py. */
#ifndef LLMQ_PUBLISH_HUB_API_H
#define LLMQ_PUBLISH_HUB_API_H

#include "publish/hub/env.h"
#include "publish/hub/tree.h"
#include "publish/retry.h"

typedef struct {
    const hub_env *env;
    const hub_name *name;
    const char *authorization; /* NULL: none */
    hc_client *http;
    retry_state retry;
    char bearer[sizeof((hub_env *)0)->token + 8];
} hub_conn;

/* env, name, o: borrowed. hub_close also after an error. */
lq_status hub_open(hub_conn *c, const hub_env *env, const hub_name *name, const pub_opts *o,
                   lq_err *err);
void hub_close(hub_conn *c);

/* The commit of name->revision. Errors: LQ_ENOENT - no such repository or revision, or a private
 * one; LQ_EIO - gated, refused, busy, or not reached; each says the way out. */
lq_status hub_commit(char commit[SHA1_HEX], hub_conn *c, lq_err *err);
/* All files at a commit, into an empty tree. */
lq_status hub_list(hub_tree *t, hub_conn *c, const char *commit, lq_err *err);
/* Bytes of a file from pub_part_at on. */
lq_status hub_get(hub_conn *c, const char *commit, const hub_entry *e, pub_part *part, lq_err *err);
/* Its bytes [from, to), malloc'd; fewer at its end. */
lq_status hub_get_range(uint8_t **data, size_t *n, hub_conn *c, const char *commit,
                        const hub_entry *e, uint64_t from, uint64_t to, lq_err *err);

#endif
