/* tools/server/serve_ops.c - see serve_ops.h. */
#include "tools/server/serve_ops.h"

#include "base/file.h"
#include "base/os.h"
#include "tools/cli/progress.h"

#include <errno.h>
#include <fcntl.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* ---- keys ---- */

/* The option's keys and the file's, in one array. */
static lq_status gather(ops_keys *k, int which, const opt_list *own, const char *file,
                        const char *option, const char *const **keys, int *n, lq_err *err)
{
    int n_file = 0;
    lq_status s =
        file ? http_keys_read(&k->file[which], &n_file, &k->text[which], file, err) : LQ_OK;
    if (s) return s;
    const char **all = k->own[which] = calloc((size_t)(own->n + n_file) + 1, sizeof *all);
    if (!all) return lq_fail(err, LQ_ENOMEM, "out of memory");
    for (int i = 0; i < own->n; i++) {
        if (!own->v[i][0] || strlen(own->v[i]) > HTTP_KEY_MAX)
            return lq_fail(err, LQ_EUSAGE,
                           "%s: expected a key of 1..%d characters, found \"%.40s\"", option,
                           HTTP_KEY_MAX, own->v[i]);
        all[(*n)++] = own->v[i];
    }
    for (int i = 0; i < n_file; i++)
        all[(*n)++] = k->file[which][i];
    *keys = all;
    return LQ_OK;
}

lq_status ops_keys_read(ops_keys *k, const ops_key_opts *o, lq_err *err)
{
    *k = (ops_keys){ .list = { NULL, 0, NULL, 0 } };
    lq_status s =
        gather(k, 0, &o->keys, o->key_file, "--api-key", &k->list.keys, &k->list.n_keys, err);
    if (!s)
        s = gather(k, 1, &o->admin_keys, o->admin_key_file, "--admin-key", &k->list.admin_keys,
                   &k->list.n_admin_keys, err);
    if (s) ops_keys_free(k);
    return s;
}

void ops_keys_free(ops_keys *k)
{
    for (int i = 0; i < 2; i++) {
        free(k->own[i]);
        free(k->file[i]);
        free(k->text[i]);
    }
    *k = (ops_keys){ .list = { NULL, 0, NULL, 0 } };
}

/* ---- TLS ---- */

lq_status ops_tls_read(ops_tls *t, const char *cert_file, const char *key_file, lq_err *err)
{
    enum { MOST = 1 << 20 };
    size_t n;
    *t = (ops_tls){ NULL, NULL };
    if (!cert_file != !key_file)
        return lq_fail(err, LQ_EUSAGE, "--ssl-certfile and --ssl-keyfile go together");
    if (!cert_file) return LQ_OK;
    lq_status s = lq_read_file(&t->cert, &n, cert_file, MOST, err);
    if (!s) s = lq_read_file(&t->key, &n, key_file, MOST, err);
    if (s) ops_tls_free(t);
    return s;
}

void ops_tls_free(ops_tls *t)
{
    if (t->key) os_wipe(t->key, strlen(t->key));
    free(t->cert);
    free(t->key);
    *t = (ops_tls){ NULL, NULL };
}

/* ---- the access log ---- */

static int open_log(const char *path)
{
    if (strcmp(path, "-") == 0) return fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
}

lq_status ops_log_open(ops_log *l, const char *path, lq_err *err)
{
    l->fd = path ? open_log(path) : -1;
    if (path && l->fd < 0)
        return lq_fail(err, LQ_EIO, "%s: cannot open it: %s", path, strerror(errno));
    return LQ_OK;
}

lq_status ops_log_reopen(ops_log *l, const char *path, lq_err *err)
{
    if (l->fd < 0) return LQ_OK;
    int fd = open_log(path);
    bool ok = fd >= 0 && os_dup_over(fd, l->fd) >= 0; /* writers see the old or the new file */
    int why = errno;
    if (fd >= 0) close(fd);
    if (ok) atomic_store(&l->lost, false);
    return ok ? LQ_OK : lq_fail(err, LQ_EIO, "%s: cannot open it: %s", path, strerror(why));
}

bool ops_log_write(ops_log *l, const http_log_line *line)
{
    if (l->fd < 0) return true;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    jw w = { 0 };
    lq_buf_printf(&w.b, "{\"time\":%lld.%03ld", (long long)now.tv_sec, now.tv_nsec / 1000000);
    w.comma = true;
    jw_key(&w, "method");
    jw_cstr(&w, line->method);
    jw_key(&w, "path");
    jw_cstr(&w, line->path);
    jw_key(&w, "status");
    jw_i64(&w, line->status);
    jw_key(&w, "seconds");
    jw_f64(&w, line->seconds);
    jw_key(&w, "bytes");
    jw_i64(&w, (int64_t)line->bytes);
    jw_key(&w, "request_id");
    jw_cstr(&w, line->request_id);
    lq_buf_add(&w.b, "}\n", 2);
    errno = ENOMEM;
    ssize_t n =
        w.b.oom ? -1 : write(l->fd, w.b.p, w.b.n); /* one call: lines of threads do not mix */
    bool ok = n == (ssize_t)w.b.n;
    if (!ok && !atomic_exchange(&l->lost, true))
        prog_say(LOG_ERROR, "the access log cannot be written: %s; lines are lost",
                 n < 0 ? strerror(errno) : "it is cut short");
    jw_free(&w);
    return ok;
}

void ops_log_close(ops_log *l)
{
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
}

/* ---- memory and descriptors ---- */

void ops_one_heap(void)
{
#ifdef __GLIBC__
    mallopt(M_ARENA_MAX, 1);
#endif
}

void ops_all_files(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

/* ---- signals ---- */

static atomic_bool hangup, dump;

static void on_signal(int sig) { atomic_store(sig == SIGHUP ? &hangup : &dump, true); }

void ops_signals(void)
{
    struct sigaction a = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigemptyset(&a.sa_mask);
    sigaction(SIGHUP, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
    signal(SIGPIPE, SIG_IGN); /* a client or a reader of stdout that goes is an error of a write */
}

bool ops_hangup(void) { return atomic_exchange(&hangup, false); }
bool ops_dump(void) { return atomic_exchange(&dump, false); }

/* ---- systemd ---- */

void ops_notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    size_t n = path ? strlen(path) : 0;
    if (n < 2 || n >= sizeof at.sun_path) return;
    memcpy(at.sun_path, path, n);
    if (at.sun_path[0] == '@') at.sun_path[0] = 0; /* an abstract one */
    int fd = os_socket(AF_UNIX, SOCK_DGRAM, 0, false);
    if (fd < 0) return;
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    (void)!sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&at, len);
    close(fd);
}
