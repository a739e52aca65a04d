/* tools/server/serve_ops.h - what an operator does to a running server: keys from files, an access log
 * that can be rotated, SIGHUP and SIGUSR1, word to systemd. */
#ifndef LLMQ_TOOLS_SERVER_SERVE_OPS_H
#define LLMQ_TOOLS_SERVER_SERVE_OPS_H

#include "runtime/http/http.h"
#include "tools/cli/opt.h"

#include <stdatomic.h>

/* Where keys come from: the command line, files (http_keys_read), or both. */
typedef struct {
    opt_list keys, admin_keys;             /* options */
    const char *key_file, *admin_key_file; /* or NULL */
} ops_key_opts;

/* Everything of the options in one list, the files read again. Owned by *k. */
typedef struct {
    http_key_list list;
    const char **own[2];
    const char **file[2];
    char *text[2];
} ops_keys;
lq_status ops_keys_read(ops_keys *k, const ops_key_opts *o, lq_err *err);
void ops_keys_free(ops_keys *k); /* zeroed allowed */

/* The texts of a certificate's and a key's file, for http_opts. Both or none: else LQ_EUSAGE. */
typedef struct {
    char *cert, *key; /* NULL: no TLS */
} ops_tls;
lq_status ops_tls_read(ops_tls *t, const char *cert_file, const char *key_file, lq_err *err);
void ops_tls_free(ops_tls *t);

/* One JSON object a line for each request: time (Unix seconds), method, path, status, seconds,
 * bytes (of the body), request_id. Never a prompt, an answer or a key. */
typedef struct {
    int fd;           /* -1: none */
    atomic_bool lost; /* lines, since it was opened: said */
} ops_log;
lq_status ops_log_open(ops_log *l, const char *path, lq_err *err);   /* appends; "-": stdout */
lq_status ops_log_reopen(ops_log *l, const char *path, lq_err *err); /* after a rotation */
/* Any thread. False: the line is lost; of the first one stderr says why. */
bool ops_log_write(ops_log *l, const http_log_line *line);
void ops_log_close(ops_log *l);

/* All threads take memory from one heap from now on, so that what a large request leaves free
 * serves the next one whatever thread reads it, and goes back to the system (http_req.c). */
void ops_one_heap(void);
void ops_all_files(void); /* as many may be open as the system lets this process have */

/* SIGHUP and SIGUSR1 are remembered from now on; true once for each batch of them. SIGPIPE is
 * ignored. */
void ops_signals(void);
bool ops_hangup(void);
bool ops_dump(void);

/* sd_notify(3) without its library: sends `state` to $NOTIFY_SOCKET, if there is one. */
void ops_notify(const char *state);

#endif
