/* runtime/http/http_keys.h - API keys: who may call what. The set is replaced as a whole while
 * requests run: each request is checked once, when its head has arrived, against the set of that
 * moment.
 *
 * The time of a comparison depends on the given key's length and on how many keys there are, not
 * on how much of a key was right. */
#ifndef LLMQ_RUNTIME_HTTP_HTTP_KEYS_H
#define LLMQ_RUNTIME_HTTP_HTTP_KEYS_H

#include "base/base.h"
#include "runtime/limits.h"

typedef enum { HTTP_NOBODY, HTTP_USER, HTTP_ADMIN } http_role;

typedef struct {
    const char *const *keys; /* of users */
    int n_keys;
    const char *const *admin_keys; /* may call the routes of administrators, and all others */
    int n_admin_keys;
} http_key_list;

typedef struct http_keys http_keys;
/* LQ_ENOMEM. The strings are copied; an empty list lets everybody do everything. */
lq_status http_keys_open(http_keys **k, const http_key_list *l, lq_err *err);
void http_keys_close(http_keys *k); /* NULL allowed */
/* The new set takes the place of the old one; after an error the old one stays. */
lq_status http_keys_set(http_keys *k, const http_key_list *l, lq_err *err);
/* `given`: what the client sent, or NULL. */
http_role http_keys_role(http_keys *k, const char *given);

/* Keys of a file: one a line, blank lines and those that begin with '#' left out, white space
 * around a key too. *keys is malloc'd, its strings point into *text; free both. LQ_EFORMAT: there
 * is no key, or one is longer than HTTP_KEY_MAX or holds what no header can; err names the line. */
lq_status http_keys_read(const char ***keys, int *n, char **text, const char *path, lq_err *err);

#endif
