/* runtime/http/http_watch.c - the thread that sees what libmicrohttpd does not: clients that hang up
 * while their connection sleeps, requests that trickle in byte by byte, streams that fall silent.
 */
#include "runtime/http/http_int.h"

#include "base/clock.h"

#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TICK_MS = 200, EVENTS = 64 };
static const double LEFT_SECONDS = 1; /* for what a client that has gone had sent before */

void http_watch_add(http_server *s, const conn *c) { hup_add(&s->ends, c->fd, c->id); }
void http_watch_again(http_server *s, const conn *c) { hup_again(&s->ends, c->fd, c->id); }

/* Notes that the client of the connection of that id has hung up: libmicrohttpd reads once per
 * event, and does not see an end that came together with bytes. Returns the exchange that waits for
 * its answer, referenced; NULL when there is none. */
static http_req *note_left(http_server *s, uint64_t id)
{
    http_req *r = NULL;
    pthread_mutex_lock(&s->mu);
    for (conn *c = s->conns; c; c = c->next) {
        if (c->id != id) continue;
        c->left = lq_now();
        if (c->state == CONN_BUSY && c->req) {
            r = c->req;
            http_req_ref(r);
        }
        break;
    }
    pthread_mutex_unlock(&s->mu);
    return r;
}

bool http_answer_raw(http_server *s, conn *c, const char *status, const char *message)
{
    char answer[512];
    int n = snprintf(answer, sizeof answer,
                     "HTTP/1.1 %s\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
                     "{\"error\":{\"message\":\"%s\",\"type\":\"invalid_request_error\","
                     "\"param\":null,\"code\":null}}",
                     status, message);
    c->cut = true;
    bool sent = !s->o.tls_cert && send(c->fd, answer, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) == n;
    shutdown(c->fd, SHUT_RDWR);
    return sent;
}

/* Under server.mu. libmicrohttpd cannot begin to answer: on_request looks at `cut` under the same
 * lock. */
static void cut_slow(http_server *s, conn *c)
{
    if (c->state == CONN_IDLE || c->left > 0) {
        c->cut = true;
        shutdown(c->fd, SHUT_RDWR);
        return;
    }
    atomic_fetch_add(&s->n_timeouts, 1);
    if (!http_answer_raw(s, c, "408 Request Timeout", "the request took too long to arrive"))
        c->state = CONN_IDLE;
}

static void cut_slow_conns(http_server *s, double now)
{
    const double limit[] = { [CONN_IDLE] = 2 * s->o.idle_seconds,
                             [CONN_HEAD] = s->o.header_seconds,
                             [CONN_BODY] = s->o.body_seconds };
    pthread_mutex_lock(&s->mu);
    for (conn *c = s->conns; c; c = c->next) {
        if (c->cut || c->state == CONN_BUSY) continue;
        if ((c->left > 0 && now - c->left > LEFT_SECONDS) || now - c->since > limit[c->state])
            cut_slow(s, c);
    }
    pthread_mutex_unlock(&s->mu);
}

/* A process that did not run (stopped, or the machine was too busy) has not read what came
 * meanwhile: that time counts against nobody. */
static void forgive(http_server *s, double seconds)
{
    pthread_mutex_lock(&s->mu);
    for (conn *c = s->conns; c; c = c->next) {
        c->since += seconds;
        if (c->left > 0) c->left += seconds;
    }
    pthread_mutex_unlock(&s->mu);
}

static void ping(http_req *r, double now)
{
    const char *text = http_req_style(r)->ping;
    pthread_mutex_lock(&r->mu);
    if (text && r->answer == ANS_STREAM && !r->ended && !r->dead && r->out_off == r->out.n &&
        now - r->written > r->s->o.ping_seconds) {
        lq_buf_puts(&r->out, text);
        r->written = now;
        if (r->asleep && r->mhd) {
            r->asleep = false;
            MHD_resume_connection(r->mhd);
        }
    }
    pthread_mutex_unlock(&r->mu);
}

/* The lock order forbids to hold server.mu while an exchange is touched: take references to some,
 * let go, ping them, go on below the last. The list is sorted by falling id. */
static void ping_streams(http_server *s, double now)
{
    http_req *some[EVENTS];
    int n;
    uint64_t below = UINT64_MAX;
    do {
        n = 0;
        pthread_mutex_lock(&s->mu);
        for (conn *c = s->conns; c && n < EVENTS; c = c->next)
            if (c->id < below && c->state == CONN_BUSY && c->req) {
                below = c->id;
                http_req_ref(some[n++] = c->req);
            }
        pthread_mutex_unlock(&s->mu);
        for (int i = 0; i < n; i++) {
            ping(some[i], now);
            http_req_unref(some[i]);
        }
    } while (n == EVENTS);
}

static void *watch(void *arg)
{
    http_server *s = arg;
    uint64_t ids[EVENTS];
    double ticked = lq_now();
    for (;;) {
        int n = hup_wait(&s->ends, ids, EVENTS, TICK_MS);
        if (n < 0) return NULL;
        for (int i = 0; i < n; i++) {
            http_req *r = note_left(s, ids[i]);
            if (!r) continue;
            http_req_cut(r);
            http_req_unref(r);
        }
        double now = lq_now();
        if (now - ticked < TICK_MS / 1000.0) continue;
        if (now - ticked > 5 * TICK_MS / 1000.0) forgive(s, now - ticked);
        ticked = now;
        cut_slow_conns(s, now);
        ping_streams(s, now);
        if (s->o.tick) s->o.tick(s->o.app);
    }
}

lq_status http_watch_start(http_server *s, lq_err *err)
{
    if (!hup_open(&s->ends) || pthread_create(&s->watcher, NULL, watch, s))
        return lq_fail(err, LQ_EIO, "the HTTP server's watcher did not start");
    s->watching = true;
    return LQ_OK;
}

void http_watch_stop(http_server *s)
{
    if (s->watching && hup_stop(&s->ends)) pthread_join(s->watcher, NULL);
    s->watching = false;
    hup_close(&s->ends);
}
