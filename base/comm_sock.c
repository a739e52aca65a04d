/* base/comm_sock.c - ranks of one machine over Unix sockets: for tests, and where there is no MPI.
 *
 * Every two ranks have one connection: the higher one calls, and says its number. A message is its tag and length,
 * then its bytes; what comes before somebody waits for it is kept. A rank that ends the job says so before it goes,
 * with an exit code, 0 where the job is done; one that goes without a word was killed. */
#include "base/comm_impl.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/os.h"

enum { TAG_END = 1 << 20, CONNECT_SECS = 30, SOCK_QUEUE = 64 };

typedef struct {
    uint64_t n;
    int64_t tag; /* TAG_END: n is an exit code */
} head;

/* A message that came before it was waited for. */
typedef struct kept {
    struct kept *next;
    head h;
    size_t got;
    uint8_t bytes[];
} kept;

typedef struct {
    int fd;                                      /* -1: ourselves */
    bool gone, left;                             /* left: it has said so */
    comm_move *out[SOCK_QUEUE], *in[SOCK_QUEUE]; /* in the order they began */
    size_t n_out, n_in;
    head put;       /* of out[0] */
    size_t put_at;  /* bytes of it that are sent */
    head got;       /* of what is coming */
    size_t got_at;  /* bytes of it that have come */
    comm_move *now; /* takes what is coming; NULL: `early` does, or nothing is */
    kept *early, *first, **last;
} sock_peer;

enum { SOCK_RANKS = 1024 }; /* at most */

typedef struct {
    sock_peer *peer; /* [size] */
    struct pollfd *poll;
} sock;

bool comm_sock_asked(void)
{
    const char *n = getenv("LLMQ_RANKS");
    return n && *n && strcmp(n, "1") != 0;
}

/* ---- bytes ---- */
/* As many as go now; -1: the other end is gone. */
static ssize_t put_some(int fd, const void *p, size_t n)
{
    const ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
    return k >= 0 ? k : errno == EAGAIN || errno == EINTR ? 0 : -1;
}

static ssize_t get_some(int fd, void *p, size_t n)
{
    const ssize_t k = recv(fd, p, n, 0);
    return k > 0 ? k : k < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

static void take_out(comm_move **list, size_t *n, size_t i)
{
    --*n;
    memmove(list + i, list + i + 1, (*n - i) * sizeof *list);
}

/* Messages out, until the socket is full. */
static void push_out(sock_peer *p)
{
    while (p->n_out && !p->gone) {
        comm_move *m = p->out[0];
        p->put = (head){ m->n, m->tag };
        const bool headed = p->put_at == sizeof p->put;
        const ssize_t k = headed ? put_some(p->fd, m->from + m->moved, m->n - m->moved)
                                 : put_some(p->fd, (const uint8_t *)&p->put + p->put_at,
                                            sizeof p->put - p->put_at);
        if (k < 0) p->gone = true;
        if (k <= 0) return;
        if (headed)
            m->moved += (size_t)k;
        else
            p->put_at += (size_t)k;
        if (p->put_at < sizeof p->put || m->moved < m->n) continue;
        m->done = true;
        p->put_at = 0;
        take_out(p->out, &p->n_out, 0);
    }
}

/* A header has come: who takes what follows? False: no memory. */
static bool find_taker(sock_peer *p)
{
    for (size_t i = 0; i < p->n_in && !p->now; i++)
        if (p->in[i]->tag == p->got.tag) {
            p->now = p->in[i];
            take_out(p->in, &p->n_in, i);
        }
    if (p->now) {
        assert(p->now->n == p->got.n);
        return true;
    }
    p->early = malloc(sizeof *p->early + p->got.n);
    if (p->early) *p->early = (kept){ .h = p->got };
    return p->early != NULL;
}

static void give_kept(comm_move *m, kept *k)
{
    memcpy(m->to, k->bytes, m->n);
    m->moved = m->n;
    m->done = true;
    free(k);
}

/* Somebody may wait by now for what was kept. */
static void end_message(sock_peer *p)
{
    if (p->now) p->now->done = true;
    for (size_t i = 0; i < p->n_in && p->early; i++)
        if (p->in[i]->tag == p->got.tag) {
            give_kept(p->in[i], p->early);
            take_out(p->in, &p->n_in, i);
            p->early = NULL;
        }
    if (p->early) {
        *p->last = p->early;
        p->last = &p->early->next;
    }
    p->now = NULL;
    p->early = NULL;
    p->got_at = 0;
}

/* Messages in, until there are no more bytes. */
static void pull_in(comm *c, sock_peer *p)
{
    while (!p->gone) {
        const bool headed = p->got_at == sizeof p->got;
        size_t *at = p->now ? &p->now->moved : p->early ? &p->early->got : NULL;
        uint8_t *to = p->now ? p->now->to : p->early ? p->early->bytes : NULL;
        if (headed && at && *at == p->got.n) {
            end_message(p);
            continue;
        }
        const ssize_t k = headed && at ? get_some(p->fd, to + *at, p->got.n - *at)
                                       : get_some(p->fd, (uint8_t *)&p->got + p->got_at,
                                                  sizeof p->got - p->got_at);
        if (k < 0) p->gone = true;
        if (k <= 0) return;
        if (headed && at) {
            *at += (size_t)k;
            continue;
        }
        p->got_at += (size_t)k;
        if (p->got_at < sizeof p->got) continue;
        if (p->got.tag == TAG_END) {
            if (p->got.n) c->ended = (int)p->got.n;
            p->gone = p->left = true;
        } else if (!find_taker(p)) {
            p->gone = true;
        }
    }
}

static void sock_work(comm *c)
{
    sock *s = c->own;
    for (int i = 0; i < c->size; i++) {
        if (s->peer[i].fd < 0 || s->peer[i].gone) continue;
        push_out(&s->peer[i]);
        pull_in(c, &s->peer[i]);
    }
}

/* ---- moves ---- */
/* A message that has come whole already. */
static bool take_kept(sock_peer *p, comm_move *m)
{
    for (kept **at = &p->first; *at; at = &(*at)->next) {
        kept *k = *at;
        if (k->h.tag != m->tag) continue;
        assert(k->h.n == m->n);
        *at = k->next;
        if (p->last == &k->next) p->last = at;
        give_kept(m, k);
        return true;
    }
    return false;
}

static lq_status sock_start(comm *c, comm_move *m, lq_err *err)
{
    sock_peer *p = &((sock *)c->own)->peer[m->peer];
    size_t *n = m->sends ? &p->n_out : &p->n_in;
    if (!m->sends && p->first && take_kept(p, m)) return LQ_OK;
    if (*n == SOCK_QUEUE)
        return lq_fail(err, LQ_EIO, "ranks: expected at most %d messages under way, found more",
                       SOCK_QUEUE);
    (m->sends ? p->out : p->in)[(*n)++] = m;
    sock_work(c);
    return LQ_OK;
}

static lq_status sock_test(comm *c, comm_move *m, lq_err *err)
{
    const sock *s = c->own;
    sock_work(c);
    if (m->done) return LQ_OK;
    if (c->ended) return lq_fail(err, LQ_EINTR, "another rank has ended the job");
    for (int i = 0; i < c->size; i++)
        if (s->peer[i].gone && (!s->peer[i].left || i == m->peer))
            return lq_fail(err, LQ_EIO, "rank %d of %d is gone", i, c->size);
    return LQ_OK;
}

static void sock_sleep(comm *c, int ms)
{
    sock *s = c->own;
    nfds_t n = 0;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < c->size; i++)
        if (s->peer[i].fd >= 0 && !s->peer[i].gone)
            s->poll[n++] =
                (struct pollfd){ .fd = s->peer[i].fd,
                                 .events = (short)(s->peer[i].n_out ? POLLIN | POLLOUT : POLLIN) };
    pthread_mutex_unlock(&c->lock);
    (void)poll(s->poll, n, ms);
}

static void sock_free(comm *c)
{
    sock *s = c->own;
    for (int i = 0; s && s->peer && i < c->size; i++) {
        sock_peer *p = &s->peer[i];
        if (p->fd >= 0) close(p->fd);
        free(p->early);
        for (kept *k = p->first, *next; k; k = next) {
            next = k->next;
            free(k);
        }
    }
    if (s) {
        free(s->peer);
        free(s->poll);
    }
    free(s);
    c->own = NULL;
}

static void sock_abort(comm *c, int code)
{
    sock *s = c->own;
    for (int i = 0; i < c->size; i++) {
        sock_peer *p = &s->peer[i];
        const head h = { (uint64_t)code, TAG_END };
        /* in the middle of a message it would be taken for its bytes: the end is all that can be said then */
        if (p->fd >= 0 && !p->gone && !p->n_out) (void)put_some(p->fd, &h, sizeof h);
    }
    sock_free(c);
}

static void sock_close(comm *c) { sock_abort(c, 0); }

/* ---- the beginning ---- */
static lq_status sock_address(struct sockaddr_un *a, int rank, lq_err *err)
{
    *a = (struct sockaddr_un){ .sun_family = AF_UNIX };
    const int n =
        snprintf(a->sun_path, sizeof a->sun_path, "%s.%d", getenv("LLMQ_RANK_SOCKETS"), rank);
    if (n > 0 && (size_t)n < sizeof a->sun_path) return LQ_OK;
    return lq_fail(err, LQ_EUSAGE,
                   "LLMQ_RANK_SOCKETS: expected a path below %zu characters, found %d",
                   sizeof a->sun_path, n);
}

static lq_status sock_failed(const char *what, const char *where, lq_err *err)
{
    return lq_fail(err, LQ_EIO, "ranks: %s: cannot %s: %s", where, what, strerror(errno));
}

/* A byte count of few bytes, while the socket waits. */
static bool whole(int fd, void *p, size_t n, bool put)
{
    uint8_t *at = p;
    for (size_t done = 0; done < n;) {
        const ssize_t k =
            put ? send(fd, at + done, n - done, MSG_NOSIGNAL) : recv(fd, at + done, n - done, 0);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        done += (size_t)k;
    }
    return true;
}

/* To a lower rank, which may not be there yet. */
static lq_status call(comm *c, int rank, lq_err *err)
{
    struct sockaddr_un a;
    const double until = lq_now() + CONNECT_SECS;
    int32_t own = c->rank;
    lq_status s = sock_address(&a, rank, err);
    while (!s) {
        const int fd = os_socket(AF_UNIX, SOCK_STREAM, 0, false);
        if (fd < 0) return sock_failed("make a socket", a.sun_path, err);
        if (connect(fd, (const struct sockaddr *)&a, sizeof a) == 0) {
            ((sock *)c->own)->peer[rank].fd = fd;
            return whole(fd, &own, sizeof own, true) ? LQ_OK
                                                     : sock_failed("greet", a.sun_path, err);
        }
        const int why = errno;
        close(fd);
        if (lq_now() > until) {
            errno = why;
            return sock_failed("reach that rank", a.sun_path, err);
        }
        nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
    }
    return s;
}

static lq_status answer(comm *c, int listener, const char *where, lq_err *err)
{
    struct pollfd p = { .fd = listener, .events = POLLIN };
    int32_t rank = -1;
    int k;
    while ((k = poll(&p, 1, CONNECT_SECS * 1000)) < 0 && errno == EINTR) {
    }
    if (k == 0)
        return lq_fail(err, LQ_EIO, "ranks: %s: expected %d ranks, found fewer in %d s", where,
                       c->size, CONNECT_SECS);
    const int fd = accept(listener, NULL, NULL);
    if (fd < 0) return sock_failed("take a connection", where, err);
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (!whole(fd, &rank, sizeof rank, false) || rank <= c->rank || rank >= c->size ||
        ((sock *)c->own)->peer[rank].fd >= 0) {
        close(fd);
        return lq_fail(err, LQ_EIO, "ranks: %s: expected a rank of %d, found %d", where, c->size,
                       (int)rank);
    }
    ((sock *)c->own)->peer[rank].fd = fd;
    return LQ_OK;
}

static lq_status connect_all(comm *c, lq_err *err)
{
    struct sockaddr_un a;
    sock *k = c->own;
    lq_status s = sock_address(&a, c->rank, err);
    if (s) return s;
    const int listener = os_socket(AF_UNIX, SOCK_STREAM, 0, false);
    if (listener < 0) return sock_failed("make a socket", a.sun_path, err);
    unlink(a.sun_path);
    if (bind(listener, (const struct sockaddr *)&a, sizeof a) || listen(listener, c->size))
        s = sock_failed("listen", a.sun_path, err);
    for (int i = 0; i < c->rank && !s; i++)
        s = call(c, i, err);
    for (int i = c->rank + 1; i < c->size && !s; i++)
        s = answer(c, listener, a.sun_path, err);
    close(listener);
    unlink(a.sun_path);
    for (int i = 0; i < c->size && !s; i++)
        if (k->peer[i].fd >= 0 && fcntl(k->peer[i].fd, F_SETFL, O_NONBLOCK))
            s = sock_failed("set up a connection", a.sun_path, err);
    return s;
}

lq_status comm_sock_open(comm *c, lq_err *err)
{
    static const comm_way way = { .start = sock_start,
                                  .test = sock_test,
                                  .sleep = sock_sleep,
                                  .look = sock_work,
                                  .abort = sock_abort,
                                  .close = sock_close };
    static const char *const needed[] = { "LLMQ_RANK", "LLMQ_RANK_SOCKETS" };
    for (size_t i = 0; i < LQ_COUNT(needed); i++)
        if (!getenv(needed[i]) || !*getenv(needed[i]))
            return lq_fail(err, LQ_EUSAGE, "%s: expected a value beside LLMQ_RANKS, found none",
                           needed[i]);
    const char *text = getenv("LLMQ_RANK"), *all = getenv("LLMQ_RANKS");
    char *end, *all_end;
    const long rank = strtol(text, &end, 10), ranks = strtol(all, &all_end, 10);
    if (*all_end || ranks < 1 || ranks > SOCK_RANKS)
        return lq_fail(err, LQ_EUSAGE, "LLMQ_RANKS: expected 1 to %d, found %.40s", SOCK_RANKS,
                       all);
    const int size = (int)ranks;
    if (*end || rank < 0 || rank >= size)
        return lq_fail(err, LQ_EUSAGE, "LLMQ_RANK: expected 0 to %d, found %.40s", size - 1, text);
    c->rank = (int)rank;
    sock *s = c->own = calloc(1, sizeof *s);
    if (s) s->peer = calloc((size_t)size, sizeof *s->peer);
    if (s) s->poll = calloc((size_t)size, sizeof *s->poll);
    c->size = s && s->peer ? size : 0;
    for (int i = 0; i < c->size; i++) {
        s->peer[i].fd = -1;
        s->peer[i].last = &s->peer[i].first;
    }
    lq_status st = s && s->peer && s->poll
                       ? connect_all(c, err)
                       : lq_fail(err, LQ_ENOMEM, "no memory for %d ranks", size);
    snprintf(c->text, sizeof c->text, "sockets");
    if (st)
        sock_free(c);
    else
        c->way = &way;
    return st;
}
