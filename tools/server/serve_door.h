/* tools/server/serve_door.h - how a server is reached: its address, certificate, keys, names, access log
 * and limits of HTTP, whatever it serves.
 *
 *     door_check    options that do not go together
 *     door_paths    files that it needs after iso_files
 *     door_read     keys, certificate and log, before anybody can connect
 *     door_open     listens
 *     door_reload   reads keys, certificate and log again (SIGHUP)
 *     door_shut     cuts what is open; what the handlers need is still there
 *     door_close    the rest */
#ifndef LLMQ_TOOLS_SERVER_SERVE_DOOR_H
#define LLMQ_TOOLS_SERVER_SERVE_DOOR_H

#include "tools/server/isolate.h"
#include "tools/server/serve_ops.h"

typedef struct {
    const char *host, *unix_path, *access_log, *cert, *cert_key;
    int64_t port, connections;
    int web; /* index into door_webs */
    opt_list origins, hosts;
    ops_key_opts keys;
    size_t max_body, request_memory;
    double ping_seconds, head_seconds, body_seconds; /* 0: http_opts' */
} door_opts;
extern const char *const door_webs[]; /* "auto", "on", "off", NULL */

typedef struct {
    const door_opts *o;
    ops_keys keys;
    ops_log log;
    ops_tls tls;
    http_server *http;
    char url[320]; /* that clients use, or the Unix socket */
} door;
#define DOOR_NONE ((door){ .log = { .fd = -1 } })

enum { DOOR_PATHS = 6 };
void door_paths(const door_opts *o, iso_path out[DOOR_PATHS]);
http_opts door_limits(const door_opts *o); /* with http_opts' defaults */
bool door_shows_page(const door_opts *o);

lq_status door_check(const door_opts *o, lq_err *err);
/* model: a path that the log may not be, or NULL. `o` is borrowed until door_close. */
lq_status door_read(door *d, const door_opts *o, const char *model, lq_err *err);
/* h: routes, app, log and tick; the rest is of door_opts. */
lq_status door_open(door *d, const http_opts *h, lq_err *err);
/* It is ready to serve: says what was given up, and tells systemd. */
void door_ready(const iso_report *given_up, iso_mode asked);
void door_reload(door *d);
void door_shut(door *d);
void door_close(door *d); /* DOOR_NONE allowed */

#endif
