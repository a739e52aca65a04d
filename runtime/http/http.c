/* runtime/http/http.c - the server: its socket and its life. */
#include "runtime/http/http_int.h"

#include "base/clock.h"
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { SPARE_FILES = 64 }; /* descriptors that are no connections */

/* ---- its socket ---- */

static lq_status listen_on(http_server *s, lq_err *err)
{
    const char *host = s->o.host ? s->o.host : "127.0.0.1";
    char port[16];
    snprintf(port, sizeof port, "%d", s->o.port);
    struct addrinfo hints = { .ai_family = AF_UNSPEC,
                              .ai_socktype = SOCK_STREAM,
                              .ai_flags = AI_PASSIVE | AI_NUMERICSERV };
    struct addrinfo *found;
    int e = getaddrinfo(host, port, &hints, &found);
    if (e) return lq_fail(err, LQ_EIO, "cannot listen on %s: %s", host, gai_strerror(e));
    int fd = -1, why = 0, one = 1;
    for (struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = os_socket(a->ai_family, a->ai_socktype, a->ai_protocol, true);
        if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (fd >= 0 && bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0)
            break;
        why = errno;
        if (fd >= 0) close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    if (fd < 0)
        return lq_fail(err, LQ_EIO, "cannot listen on %s:%s: %s", host, port,
                       why == EADDRINUSE ? "the port is in use" : strerror(why));
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    s->port = s->o.port;
    if (getsockname(fd, (struct sockaddr *)&at, &len) == 0)
        s->port = ntohs(at.ss_family == AF_INET6
                            ? ((const struct sockaddr_in6 *)(const void *)&at)->sin6_port
                            : ((const struct sockaddr_in *)(const void *)&at)->sin_port);
    s->listen_fd = fd;
    return LQ_OK;
}

/* A socket file that nobody listens on any more is left over from a server that was killed. */
static void remove_stale(const struct sockaddr_un *at)
{
    struct stat st;
    int fd = os_socket(AF_UNIX, SOCK_STREAM, 0, false);
    if (fd < 0) return;
    bool dead = connect(fd, (const struct sockaddr *)at, sizeof *at) < 0 && errno == ECONNREFUSED;
    if (dead && stat(at->sun_path, &st) == 0 && S_ISSOCK(st.st_mode)) unlink(at->sun_path);
    close(fd);
}

static lq_status listen_unix(http_server *s, lq_err *err)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    const char *path = s->o.unix_path;
    if (!path[0] || strlen(path) >= sizeof at.sun_path)
        return lq_fail(err, LQ_EUSAGE, "cannot listen on '%s': expected a path of 1..%zu bytes",
                       path, sizeof at.sun_path - 1);
    memcpy(at.sun_path, path, strlen(path) + 1);
    remove_stale(&at);
    int fd = os_socket(AF_UNIX, SOCK_STREAM, 0, true);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&at, sizeof at) || listen(fd, SOMAXCONN)) {
        int why = errno;
        if (fd >= 0) close(fd);
        return lq_fail(err, LQ_EIO, "cannot listen on %s: %s", path,
                       why == EADDRINUSE ? "it exists already" : strerror(why));
    }
    s->listen_fd = fd;
    s->bound_unix = true;
    return LQ_OK;
}

/* ---- its life ---- */

void http_defaults(http_opts *o)
{
    if (!o->max_body) o->max_body = (size_t)32 << 20;
    if (!o->max_bodies) o->max_bodies = (size_t)256 << 20;
    if (!o->max_claim) o->max_claim = 3 * o->max_body;
    if (!o->max_backlog) o->max_backlog = (size_t)1 << 20;
    if (o->max_connections <= 0) o->max_connections = 4096;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY) {
        int64_t most = (int64_t)files.rlim_cur - SPARE_FILES;
        if (o->max_connections > most) o->max_connections = most > 16 ? (int)most : 16;
    }
    if (o->threads <= 0) o->threads = 4;
    if (!(o->header_seconds > 0)) o->header_seconds = 10;
    if (!(o->body_seconds > 0)) o->body_seconds = 60;
    if (!(o->idle_seconds > 0)) o->idle_seconds = 30;
    if (!(o->ping_seconds > 0)) o->ping_seconds = 15;
}

void http_need_of(http_need *n, const http_opts *want, int64_t exchanges)
{
    http_opts o = *want;
    http_defaults(&o);
    const size_t most = (size_t)o.max_connections;
    n->connections = most * (HTTP_CONN_MEMORY_MAX + sizeof(conn) + sizeof(http_req));
    n->bodies = o.max_bodies;
    n->streams = (exchanges < (int64_t)most ? (size_t)exchanges : most) * 2 * o.max_backlog;
}

lq_status http_open(http_server **out, const http_opts *o, lq_err *err)
{
    http_server *s = *out = calloc(1, sizeof *s);
    if (!s) return lq_fail(err, LQ_ENOMEM, "out of memory");
    s->o = *o;
    atomic_init(&s->refs, 1);
    s->listen_fd = -1;
    s->ends = (hangup){ -1, -1 };
    http_defaults(&s->o);
    pthread_mutex_init(&s->mu, NULL);
    os_cond_init(&s->idle);
    lq_status st = http_keys_open(&s->keys, &s->o.keys, err);
    if (!st) st = s->o.unix_path ? listen_unix(s, err) : listen_on(s, err);
    if (!st) st = http_watch_start(s, err);
    if (!st) st = http_exchange_start(s, err);
    if (st) {
        http_close(s);
        *out = NULL;
    }
    return st;
}

int http_port(const http_server *s) { return s->port; }

lq_status http_set_keys(http_server *s, const http_key_list *l, lq_err *err)
{
    return http_keys_set(s->keys, l, err);
}

void http_drain(http_server *s) { atomic_store(&s->draining, true); }

bool http_wait_idle(http_server *s, double seconds)
{
    double until = lq_now() + seconds;
    pthread_mutex_lock(&s->mu);
    while (s->n_open && lq_now() < until)
        os_cond_until(&s->idle, &s->mu, until);
    bool idle = s->n_open == 0;
    pthread_mutex_unlock(&s->mu);
    return idle;
}

/* Connections that sleep cannot be closed by libmicrohttpd: wake them all first. Those that wait
 * for their socket see its end. */
static void cut_all(http_server *s)
{
    for (;;) {
        http_req *r = NULL;
        pthread_mutex_lock(&s->mu);
        for (conn *c = s->conns; c && !r; c = c->next)
            if (c->req && !c->cut) {
                c->cut = true;
                shutdown(c->fd, SHUT_RDWR);
                r = c->req;
                http_req_ref(r);
            }
        pthread_mutex_unlock(&s->mu);
        if (!r) return;
        http_req_cut(r);
        http_req_unref(r);
    }
}

void http_close(http_server *s)
{
    if (!s) return;
    if (s->daemon) {
        /* MHD_quiesce_daemon would do: but it takes the socket out of a thread's epoll set while
         * that thread may be about to, and the library aborts the process when one of both comes
         * late. */
        pthread_mutex_lock(&s->mu);
        s->closing = true;
        pthread_mutex_unlock(&s->mu);
        do
            cut_all(s);
        while (!http_wait_idle(s, 0.05));
        http_watch_stop(s);
        MHD_stop_daemon(s->daemon);
    }
    http_watch_stop(s);
    if (s->listen_fd >= 0) close(s->listen_fd);
    if (s->bound_unix) unlink(s->o.unix_path);
    http_server_unref(s);
}

void http_stats_get(http_server *s, http_stats *out)
{
    out->requests = atomic_load(&s->n_requests);
    out->unauthorized = atomic_load(&s->n_unauthorized);
    out->timeouts = atomic_load(&s->n_timeouts);
    out->gone = atomic_load(&s->n_gone);
    out->overflows = atomic_load(&s->n_overflows);
    pthread_mutex_lock(&s->mu);
    out->connections = s->n_conns;
    out->open = s->n_open;
    pthread_mutex_unlock(&s->mu);
}
