/* tools/router/keeper.c - see keeper.h. */
#include "tools/router/keeper.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/os.h"
#include "tools/router/place.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOT_FOUND = 127, MAX_LINE = 4096, MAX_JSON = 1 << 16 };

typedef struct {
    int32_t order, row;
} command;

struct keeper {
    int fd;
    int wake[2]; /* a pipe */
    pid_t pid;
};

/* ---- the keeper's own process ---- */

typedef struct {
    const keeper_row *row;
    keeper_what what;
    pid_t pid;    /* 0: does not run */
    double until; /* that it has to end; 0: it was not told to */
    bool late;    /* it was killed for that, and not told to end before */
    int out, err;
    lq_buf line, json;
    char last[sizeof((keeper_event *)0)->text];
} kid;

typedef struct {
    int fd;
    const char *folder;
    double grace;
    kid *kids; /* [2 n]: of each row its server, and what says its size */
    int n;
    struct pollfd *polled; /* [4 n + 1] */
} house;

static bool send_all(int fd, const void *p, size_t n)
{
    for (const char *at = p; n;) {
        const ssize_t k = send(fd, at, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        at += k;
        n -= (size_t)k;
    }
    return true;
}

/* What reaches all of a terminal's or service's processes is the router's to decide on, but a server's own. */
static void set_signals(void (*to)(int))
{
    static const int all[] = { SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1 };
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        signal(all[i], to);
}

/* With signals at their defaults from its first instruction on: one that it gets before it is another program ends it. */
static pid_t fork_kid(void)
{
    sigset_t all, was;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &was);
    set_signals(SIG_DFL);
    const pid_t pid = fork();
    if (pid != 0) set_signals(SIG_IGN); /* what came meanwhile is gone */
    sigprocmask(SIG_SETMASK, &was, NULL);
    return pid;
}

static void run_kid(char **argv, pid_t parent, int out, int err)
{
    if (!os_end_with(parent)) _exit(NOT_FOUND);
    const int nothing = open("/dev/null", O_RDWR);
    if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 ||
        dup2(out < 0 ? nothing : out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0)
        _exit(NOT_FOUND);
    unsetenv("NOTIFY_SOCKET"); /* the router tells systemd */
    execv(argv[0], argv);
    _exit(NOT_FOUND);
}

static bool start_kid(kid *k)
{
    int out[2] = { -1, -1 }, err[2] = { -1, -1 };
    const bool sizes = k->what == KEEP_SIZED;
    const pid_t parent = getpid();
    lq_buf_clear(&k->line);
    lq_buf_clear(&k->json);
    k->last[0] = 0;
    k->late = false;
    k->until = sizes && k->row->size_seconds > 0 ? lq_now() + k->row->size_seconds : 0;
    if (os_pipe(err) != 0 || (sizes && os_pipe(out) != 0)) {
        snprintf(k->last, sizeof k->last, "%s", strerror(errno));
    } else {
        k->pid = fork_kid();
        if (k->pid == 0) run_kid(sizes ? k->row->size_argv : k->row->argv, parent, out[1], err[1]);
        if (k->pid < 0) snprintf(k->last, sizeof k->last, "fork: %s", strerror(errno));
    }
    if (err[1] >= 0) close(err[1]);
    if (out[1] >= 0) close(out[1]);
    if (k->pid > 0) {
        k->err = err[0];
        k->out = out[0];
        return true;
    }
    k->pid = 0;
    if (err[0] >= 0) close(err[0]);
    if (out[0] >= 0) close(out[0]);
    return false;
}

static void tell(house *h, const kid *k, int code)
{
    keeper_event e = { .what = k->what, .row = (int32_t)((k - h->kids) / 2), .code = code };
    snprintf(e.text, sizeof e.text, "%s", k->last);
    if (code < 0) /* its last line does not say why: it is of what went well */
        snprintf(e.text, sizeof e.text, "its server was ended by signal %d", -code);
    if (k->late)
        snprintf(e.text, sizeof e.text,
                 "what memory it takes is not known after %g s: its --dry-run was killed",
                 k->row->size_seconds);
    if (k->what == KEEP_SIZED && code == 0) {
        cJSON *doc = NULL;
        int64_t held = 0;
        if (js_parse(&doc, k->json.p, k->json.n, MAX_JSON, 0, NULL) ||
            js_i64(doc, "held_bytes", true, 0, JS_MAX_INT, &held, NULL)) {
            e.code = 1;
            snprintf(e.text, sizeof e.text, "it does not say what memory it takes");
        }
        e.bytes = (uint64_t)held;
        cJSON_Delete(doc);
    }
    send_all(h->fd, &e, sizeof e);
}

/* A line of a server: passed on, and kept in case that it is the last. */
static void pass_line(kid *k, char *line)
{
    static const char own[] = "llmq: ";
    fprintf(stderr, "%s: %s\n", k->row->name, line);
    const char *said = strncmp(line, own, sizeof own - 1) == 0 ? line + sizeof own - 1 : line;
    if (strncmp(said, "serve: ", 7) == 0) said += 7;
    if (*said) snprintf(k->last, sizeof k->last, "%s", said);
}

static void take_lines(kid *k, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] != '\n' && p[i] != '\r' && k->line.n < MAX_LINE) {
            lq_buf_add(&k->line, p + i, 1);
            continue;
        }
        lq_buf_add(&k->line, "", 1);
        if (!k->line.oom && k->line.n > 1) pass_line(k, k->line.p);
        lq_buf_clear(&k->line);
    }
}

static void read_kid(kid *k, int *fd)
{
    char buf[4096];
    const ssize_t n = read(*fd, buf, sizeof buf);
    if (n < 0 && errno == EINTR) return;
    if (n <= 0) {
        close(*fd);
        *fd = -1;
    } else if (fd == &k->err) {
        take_lines(k, buf, (size_t)n);
    } else if (k->json.n + (size_t)n <= MAX_JSON) {
        lq_buf_add(&k->json, buf, (size_t)n);
    }
}

static void stop_kid(const house *h, kid *k)
{
    if (!k->pid || (k->until && k->what != KEEP_SIZED))
        return; /* a second signal would end it at once */
    kill(k->pid, SIGTERM);
    k->until = lq_now() + h->grace;
}

/* One that hangs takes its memory from the others. */
static void kill_late(const house *h)
{
    const double now = lq_now();
    for (int i = 0; i < 2 * h->n; i++) {
        kid *k = &h->kids[i];
        if (!k->pid || !k->until || now < k->until) continue;
        k->late = k->what == KEEP_SIZED;
        kill(k->pid, SIGKILL);
    }
}

static void obey(house *h, const command *c)
{
    if (c->row < 0 || c->row >= h->n) return;
    kid *k = &h->kids[2 * c->row + (c->order == KEEP_SIZE)];
    if (c->order == KEEP_STOP) {
        stop_kid(h, k);
    } else if (!k->pid && !start_kid(k)) {
        tell(h, k, 1);
    }
}

/* False: the router is gone. */
static bool read_command(house *h)
{
    command c;
    size_t got = 0;
    while (got < sizeof c) {
        const ssize_t n = recv(h->fd, (char *)&c + got, sizeof c - got, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        got += (size_t)n;
    }
    obey(h, &c);
    return true;
}

/* Returns how many run. */
static int reap(house *h)
{
    int left = 0, status;
    for (int i = 0; i < 2 * h->n; i++) {
        kid *k = &h->kids[i];
        if (!k->pid) continue;
        const bool quiet = k->err < 0 && k->out < 0; /* all that it wrote is read */
        if (!quiet || waitpid(k->pid, &status, WNOHANG) != k->pid) {
            left++;
            continue;
        }
        k->pid = 0;
        tell(h, k, WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    }
    return left;
}

/* What there is to read, for at most ms; false: the router is gone. */
static bool serve_once(house *h, int ms)
{
    nfds_t n = 0;
    h->polled[n++] = (struct pollfd){ .fd = h->fd, .events = POLLIN };
    for (int i = 0; i < 2 * h->n; i++) {
        h->polled[n++] = (struct pollfd){ .fd = h->kids[i].err, .events = POLLIN };
        h->polled[n++] = (struct pollfd){ .fd = h->kids[i].out, .events = POLLIN };
    }
    if (poll(h->polled, n, ms) < 0) return true;
    for (int i = 0; i < 2 * h->n; i++) {
        if (h->polled[2 * i + 1].revents) read_kid(&h->kids[i], &h->kids[i].err);
        if (h->polled[2 * i + 2].revents) read_kid(&h->kids[i], &h->kids[i].out);
    }
    return !h->polled[0].revents || read_command(h);
}

/* Milliseconds to wait for something to read: few while one ends, or has to. */
static int patience(const house *h)
{
    int ms = 60000;
    for (int i = 0; i < 2 * h->n; i++) {
        const kid *k = &h->kids[i];
        if (k->pid && k->err < 0) return 2;
        if (k->pid && k->until) ms = 200;
    }
    return ms;
}

static void end_all(house *h)
{
    for (int i = 0; i < 2 * h->n; i++)
        stop_kid(h, &h->kids[i]);
    h->fd = -1;
    while (reap(h)) {
        serve_once(h, 5);
        kill_late(h);
    }
    place_remove(h->folder);
}

static void keep(house *h)
{
    set_signals(SIG_IGN);
    (void)setpgid(0, 0);
    while (serve_once(h, patience(h))) {
        reap(h);
        kill_late(h);
    }
    end_all(h);
    _exit(0);
}

/* ---- the router's side ---- */

static bool furnish(house *h, const keeper_row *rows, int n)
{
    h->n = n;
    h->kids = calloc(2 * (size_t)n, sizeof *h->kids);
    h->polled = calloc(4 * (size_t)n + 1, sizeof *h->polled);
    for (int i = 0; h->kids && i < 2 * n; i++)
        h->kids[i] = (kid){
            .row = &rows[i / 2], .what = i % 2 ? KEEP_SIZED : KEEP_ENDED, .out = -1, .err = -1
        };
    return h->kids && h->polled;
}

static void close_wake(keeper *k)
{
    close(k->wake[0]);
    close(k->wake[1]);
}

lq_status keeper_start(keeper **out, const keeper_row *rows, int n, const char *folder,
                       double grace, lq_err *err)
{
    int fd[2];
    house h = { .folder = folder, .grace = grace };
    keeper *k = *out = calloc(1, sizeof *k);
    lq_status s = LQ_OK;
    if (!k || !furnish(&h, rows, n)) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    if (!s && os_pipe(k->wake) != 0) s = lq_fail(err, LQ_EIO, "pipe: %s", strerror(errno));
    if (!s && socketpair(AF_UNIX, SOCK_STREAM, 0, fd) != 0) {
        s = lq_fail(err, LQ_EIO, "socketpair: %s", strerror(errno));
        close_wake(k);
    }
    if (!s) {
        (void)fcntl(k->wake[1], F_SETFL, O_NONBLOCK); /* one byte in it is enough */
        (void)fcntl(fd[0], F_SETFD, FD_CLOEXEC);
        (void)fcntl(fd[1], F_SETFD, FD_CLOEXEC);
        fflush(NULL);
        k->pid = fork();
        if (k->pid == 0) {
            close(fd[0]);
            h.fd = fd[1];
            keep(&h);
        }
        k->fd = fd[0];
        close(fd[1]);
        if (k->pid < 0) {
            close(fd[0]);
            close_wake(k);
            s = lq_fail(err, LQ_EIO, "fork: %s", strerror(errno));
        }
    }
    free(h.kids);
    free(h.polled);
    if (s) {
        free(k);
        *out = NULL;
    }
    return s;
}

lq_status keeper_ask(keeper *k, keeper_order o, int row, lq_err *err)
{
    const command c = { o, row };
    if (send_all(k->fd, &c, sizeof c)) return LQ_OK;
    return lq_fail(err, LQ_EIO, "the process that starts the models' servers is gone");
}

bool keeper_next(keeper *k, double seconds, keeper_event *e, bool *lost)
{
    struct pollfd p[2] = { { .fd = k->fd, .events = POLLIN },
                           { .fd = k->wake[0], .events = POLLIN } };
    char woken[64];
    *lost = false;
    if (poll(p, 2, (int)(seconds * 1e3)) <= 0) return false;
    if (p[1].revents) (void)!read(k->wake[0], woken, sizeof woken);
    if (!p[0].revents) return false;
    for (size_t got = 0; got < sizeof *e;) {
        const ssize_t n = recv(k->fd, (char *)e + got, sizeof *e - got, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            *lost = true;
            return false;
        }
        got += (size_t)n;
    }
    return true;
}

void keeper_wake(keeper *k) { (void)!write(k->wake[1], "", 1); }

void keeper_close(keeper *k)
{
    if (!k) return;
    close(k->fd);
    close_wake(k);
    while (waitpid(k->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    free(k);
}
