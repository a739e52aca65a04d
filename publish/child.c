/* publish/child.c */
#include "publish/child.h"

#include "base/clock.h"
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 400, NOT_FOUND = 127, MIN_BYTES = 1024 /* a second */, GRACE_MS = 5000 };

typedef struct {
    const child *c;
    pid_t pid;
    int out, err;
    char words[WORDS + 1]; /* the end of what it wrote to stderr */
    size_t n_words;
    bool cut; /* there was more before */
    time_t since;
    uint64_t carried; /* by then */
} running;

static void start_child(const child *c, const char **argv, pid_t parent, const int out[2],
                        const int err[2])
{
    if (!os_end_with(parent)) _exit(NOT_FOUND); /* nothing goes on when we are killed */
    const int in = open("/dev/null", O_RDONLY);
    if (in < 0 || dup2(in, STDIN_FILENO) < 0 || dup2(out[1], STDOUT_FILENO) < 0 ||
        dup2(err[1], STDERR_FILENO) < 0)
        _exit(NOT_FOUND);
    for (size_t i = 0; c->env && c->env[i]; i++) {
        char *copy = strdup(c->env[i]);
        if (copy) putenv(copy);
    }
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    _exit(NOT_FOUND);
}

static const char **arguments(const child *c)
{
    size_t n = 0, k = 0;
    while (c->argv[n])
        n++;
    while (c->more && c->more[k])
        k++;
    const char **all = calloc(n + k + 1, sizeof *all);
    if (!all) return NULL;
    memcpy(all, c->argv, n * sizeof *all);
    if (k) memcpy(all + n, c->more, k * sizeof *all);
    return all;
}

static lq_status start(running *r, const child *c, lq_err *err)
{
    int out[2], errs[2];
    const pid_t parent = getpid();
    const char **argv = arguments(c);
    *r = (running){ .c = c, .pid = -1, .out = -1, .err = -1, .since = (time_t)lq_now() };
    if (c->carried) r->carried = c->carried(c->where);
    if (!argv) return lq_fail(err, LQ_ENOMEM, "out of memory");
    if (os_pipe(out) != 0) {
        free(argv);
        return lq_fail(err, LQ_EIO, "%s: %s", c->argv[0], strerror(errno));
    }
    if (os_pipe(errs) == 0) {
        r->pid = fork();
        if (r->pid == 0) start_child(c, argv, parent, out, errs);
        close(errs[1]);
        r->err = errs[0];
    }
    close(out[1]);
    r->out = out[0];
    free(argv);
    return r->pid > 0 ? LQ_OK : lq_fail(err, LQ_EIO, "%s: %s", c->argv[0], strerror(errno));
}

static void keep_words(running *r, const char *data, size_t n)
{
    r->cut = r->cut || r->n_words + n > WORDS;
    if (n > WORDS) {
        data += n - WORDS;
        n = WORDS;
    }
    if (r->n_words + n > WORDS) {
        const size_t drop = r->n_words + n - WORDS;
        memmove(r->words, r->words + drop, r->n_words - drop);
        r->n_words -= drop;
    }
    memcpy(r->words + r->n_words, data, n);
    r->n_words += n;
}

/* One read of a pipe that has something; *fd -1 at its end. */
static lq_status child_take(running *r, int *fd, char *buf, size_t cap, lq_err *err)
{
    const ssize_t n = read(*fd, buf, cap);
    if (n < 0 && errno == EINTR) return LQ_OK;
    if (n <= 0) {
        close(*fd);
        *fd = -1;
        return LQ_OK;
    }
    if (fd == &r->err) {
        keep_words(r, buf, (size_t)n);
        return LQ_OK;
    }
    return r->c->out ? r->c->out(r->c->user, buf, (size_t)n, err) : LQ_OK;
}

static lq_status check_time(running *r, lq_err *err)
{
    const child *c = r->c;
    if (!c->seconds || (time_t)lq_now() - r->since <= c->seconds) return LQ_OK;
    if (!c->carried)
        return lq_fail(err, LQ_EIO, "%s: expected an end within %d s", c->argv[0], c->seconds);
    const uint64_t at = c->carried(c->where);
    if (at < r->carried + (uint64_t)MIN_BYTES * (uint64_t)c->seconds)
        return lq_fail(err, LQ_EIO, "%s: less than %d bytes a second for %d s", c->argv[0],
                       MIN_BYTES, c->seconds);
    r->carried = at;
    r->since = (time_t)lq_now();
    return LQ_OK;
}

static lq_status listen_to(running *r, lq_err *err)
{
    enum { CAP = 1 << 16 };
    char *buf = malloc(CAP);
    lq_status s = buf ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
    while (!s && (r->out >= 0 || r->err >= 0)) {
        struct pollfd p[2] = { { .fd = r->out, .events = POLLIN },
                               { .fd = r->err, .events = POLLIN } };
        if (poll(p, 2, 200) < 0 && errno != EINTR) s = lq_fail(err, LQ_EIO, "poll failed");
        if (!s) s = check_time(r, err);
        if (lq_stopped(r->c->job)) s = lq_fail(err, LQ_EINTR, "interrupted");
        if (!s && p[0].revents) s = child_take(r, &r->out, buf, CAP, err);
        if (!s && p[1].revents) s = child_take(r, &r->err, buf, CAP, err);
    }
    free(buf);
    return s;
}

/* On one line, what was on several with "; " between them, without what a terminal would obey. */
static void tidy_words(running *r)
{
    char line[WORDS + 1];
    size_t n = 0;
    bool gap = false, end = false; /* blanks, or an end of a line, since the last word */
    size_t first = 0;              /* of text whose beginning is gone, the first whole word */
    while (r->cut && first < r->n_words && (unsigned char)r->words[first] > ' ')
        first++;
    if (first == r->n_words) first = 0; /* one word */
    for (size_t i = first; i < r->n_words && n + 3 < sizeof line; i++) {
        const char c = r->words[i];
        end = end || c == '\n';
        gap = gap || (unsigned char)c <= ' ' || c == 127;
        if ((unsigned char)c <= ' ' || c == 127) continue;
        if (n && end) line[n++] = ';';
        if (n && gap) line[n++] = ' ';
        line[n++] = c;
        gap = end = false;
    }
    line[n] = 0;
    memcpy(r->words, line, n + 1);
    r->n_words = n;
}

/* Asked first, so that it may remove what it has begun. */
static void end_child(pid_t pid)
{
    kill(pid, SIGTERM);
    for (int ms = 0; ms < GRACE_MS; ms += 20) {
        if (waitpid(pid, NULL, WNOHANG) != 0) return;
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    }
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

lq_status child_run(const child *c, int *code, lq_err *err)
{
    running r;
    int status = 0;
    if (code) *code = -1;
    lq_status s = start(&r, c, err);
    if (!s) s = listen_to(&r, err);
    if (r.out >= 0) close(r.out);
    if (r.err >= 0) close(r.err);
    if (r.pid <= 0) return s;
    if (s) {
        end_child(r.pid);
        return s;
    }
    while (waitpid(r.pid, &status, 0) < 0 && errno == EINTR)
        ;
    const int ended = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code) *code = ended;
    if (ended == NOT_FOUND && !r.n_words)
        return lq_fail(err, LQ_ENOENT, "%s: expected this program to be installed", c->argv[0]);
    tidy_words(&r);
    return ended == 0 ? LQ_OK
                      : lq_fail(err, LQ_EIO, "%s: %s", c->argv[0],
                                r.n_words ? r.words : "ended without a word");
}
