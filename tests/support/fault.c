/* tests/support/fault.c - a library put before libc (LD_PRELOAD) that counts llmq's calls of it and, at the
 * n-th, lets the call fail, do half, or kills the process before or after it, or stops it.
 *
 * What it does stands in a file that it shares with the tests (struct control; its path is in
 * LLMQ_FAULT), so a test may change it while a server runs. Only calls from llmq itself and from
 * the libraries in `watched` count: what others do with a failure is not llmq's to mend.
 * tests/support/shim.py is the other side of it. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what counts: X(function, class) ---- */
#define CALLS(X)             \
    X(malloc, ALLOC)         \
    X(calloc, ALLOC)         \
    X(realloc, ALLOC)        \
    X(aligned_alloc, ALLOC)  \
    X(posix_memalign, ALLOC) \
    X(strdup, ALLOC)         \
    X(strndup, ALLOC)        \
    X(asprintf, ALLOC)       \
    X(mmap, ALLOC)           \
    X(open, OPEN)            \
    X(openat, OPEN)          \
    X(fopen, OPEN)           \
    X(fdopen, OPEN)          \
    X(opendir, OPEN)         \
    X(mkostemp, OPEN)        \
    X(socket, OPEN)          \
    X(eventfd, OPEN)         \
    X(epoll_create1, OPEN)   \
    X(read, READ)            \
    X(pread, READ)           \
    X(getdelim, READ)        \
    X(fread, READ)           \
    X(fstat, READ)           \
    X(readdir, READ)         \
    X(write, WRITE)          \
    X(pwrite, WRITE)         \
    X(fwrite, WRITE)         \
    X(fflush, WRITE)         \
    X(fclose, WRITE)         \
    X(fsync, CHANGE)         \
    X(ftruncate, CHANGE)     \
    X(rename, CHANGE)        \
    X(renameat2, CHANGE)     \
    X(link, CHANGE)          \
    X(linkat, CHANGE)        \
    X(unlink, CHANGE)        \
    X(unlinkat, CHANGE)      \
    X(mkdir, CHANGE)         \
    X(rmdir, CHANGE)         \
    X(create, CHANGE)        \
    X(accept4, NET)          \
    X(recv, NET)             \
    X(recvmsg, NET)          \
    X(send, NET)             \
    X(sendmsg, NET)          \
    X(sendto, NET)           \
    X(epoll_wait, NET)       \
    X(poll, NET)             \
    X(pthread_create, THREAD)

enum { ALLOC = 1, OPEN = 2, READ = 4, WRITE = 8, CHANGE = 16, NET = 32, THREAD = 64 };
typedef enum {
#define X(name, class) F_##name,
    CALLS(X)
#undef X
        N_CALLS
} fn_id;

static const struct {
    const char *name;
    uint32_t class;
} fns[] = {
#define X(name, class) { #name, class },
    CALLS(X)
#undef X
};

static const char *const watched[] = { "/libcjson.",  "/libpcre2-8.",    "/libutf8proc.",
                                       "/libxxhash.", "/libmicrohttpd.", "/liblapacke." };

/* ---- what to do; the layout is shim.py's too ---- */
enum {
    SHORT = -1,
    KILL_BEFORE = -2,
    KILL_AFTER = -3,
    TORN = -4,
    STOP_AFTER = -5
}; /* > 0: fail with that errno */
struct control {
    uint32_t classes; /* that count */
    int32_t action;   /* at the n-th */
    uint64_t at;      /* n, from 1; 0: only count */
    uint32_t stays;   /* from the n-th on instead */
    uint32_t traced;  /* each counted call goes to the log, PATH.log */
    _Atomic uint64_t count;
    _Atomic uint32_t hit; /* how often the action was taken */
    char name[28];        /* of the call that was hit */
    char named[64];       /* not empty: only calls that give a file this name count */
};

static struct control *ctl;
static bool running; /* main is: what libraries do before and after is theirs */
static int log_fd = -1;
static __thread bool inside __attribute__((tls_model("initial-exec")));

enum { MAX_RANGES = 32 };
static struct {
    uintptr_t from, to;
} ranges[MAX_RANGES];
static int n_ranges;
static uintptr_t program; /* where it was loaded */

static int add_ranges(struct dl_phdr_info *info, size_t size, void *user)
{
    (void)size;
    bool want = *(int *)user == 0; /* the program comes first */
    if (want) program = info->dlpi_addr;
    *(int *)user += 1;
    for (size_t i = 0; !want && i < sizeof watched / sizeof *watched; i++)
        want = strstr(info->dlpi_name, watched[i]) != NULL;
    for (int i = 0; want && i < info->dlpi_phnum && n_ranges < MAX_RANGES; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X)) continue;
        ranges[n_ranges].from = info->dlpi_addr + p->p_vaddr;
        ranges[n_ranges++].to = info->dlpi_addr + p->p_vaddr + p->p_memsz;
    }
    return 0;
}

static bool is_watched(const void *caller)
{
    const uintptr_t a = (uintptr_t)caller;
    for (int i = 0; i < n_ranges; i++)
        if (a >= ranges[i].from && a < ranges[i].to) return true;
    return false;
}

static void *real(fn_id id)
{
    static void *table[N_CALLS];
    if (!table[id]) table[id] = dlsym(RTLD_NEXT, fns[id].name);
    return table[id];
}
#define REAL(name) ((__typeof__(&name))real(F_##name))

__attribute__((constructor)) static void start(void)
{
    char path[PATH_MAX], self[PATH_MAX];
    const char *file = getenv("LLMQ_FAULT");
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (!file || n <= 0) return;
    self[n] = 0;
    const char *base = strrchr(self, '/');
    if (!base || strncmp(base, "/llmq", 5) != 0) return; /* a child: git */
    for (int i = 0; i < N_CALLS; i++)
        if (i != F_create) real((fn_id)i);
    int fd = open(file, O_RDWR | O_CLOEXEC), images = 0;
    void *p = mmap(NULL, sizeof *ctl, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || p == MAP_FAILED) abort();
    close(fd);
    snprintf(path, sizeof path, "%s.log", file);
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    log_fd = fcntl(fd, F_DUPFD_CLOEXEC, 400); /* out of the way of llmq's own numbers */
    close(fd);
    void *frames[4];
    backtrace(frames, 4); /* loads the unwinder now */
    dl_iterate_phdr(add_ranges, &images);
    ctl = p;
}

static int (*their_main)(int, char **, char **);

static int counted_main(int argc, char **argv, char **envp)
{
    running = true;
    const int r = their_main(argc, argv, envp);
    running = false;
    return r;
}

int __libc_start_main(int (*f)(int, char **, char **), int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end);
int __libc_start_main(int (*f)(int, char **, char **), int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end)
{
    __typeof__(&__libc_start_main) go =
        (__typeof__(&__libc_start_main))dlsym(RTLD_NEXT, "__libc_start_main");
    their_main = f;
    return go(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}

/* ---- one call ---- */
typedef struct {
    fn_id id;
    uint64_t n;   /* its number; 0: it does not count */
    int action;   /* to take now; 0: none */
    uint64_t ino; /* of the file, and of the folder whose entry changes */
    uint64_t stack;
} call;

/* The same for calls by the same way: where the frames lie within the program. */
static uint64_t stack_hash(void)
{
    enum { DEPTH = 24 };
    void *frames[DEPTH];
    uint64_t h = 14695981039346656037u;
    const int n = backtrace(frames, DEPTH);
    for (int i = 2; i < n; i++)
        if (is_watched(frames[i])) h = (h ^ (uintptr_t)frames[i]) * 1099511628211u;
    return h;
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* How llmq came to the n-th call goes to the log: offsets in the program. A debugger may stop here.
 */
__attribute__((noinline)) static void fault_taken(void)
{
    enum { DEPTH = 16 };
    void *frames[DEPTH];
    char line[DEPTH * 20] = "#";
    size_t at = 1;
    const int n = backtrace(frames, DEPTH);
    for (int i = 1; i < n; i++)
        if ((uintptr_t)frames[i] >= ranges[0].from && (uintptr_t)frames[i] < ranges[0].to)
            at += (size_t)snprintf(line + at, sizeof line - at, "\t%lx",
                                   (uintptr_t)frames[i] - program - 1);
    line[at++] = '\n';
    if (REAL(write)(log_fd, line, at) < 0) abort();
}

static __thread const char *naming
    __attribute__((tls_model("initial-exec"))); /* what the call names */

static bool is_named(const char *path)
{
    const char *base = path ? strrchr(path, '/') : NULL;
    return !ctl->named[0] || (path && strcmp(base ? base + 1 : path, ctl->named) == 0);
}

static call begin_as(fn_id id, uint32_t class, const void *caller)
{
    call c = { .id = id };
    const char *to = naming;
    naming = NULL;
    if (!running || !ctl || inside || !(ctl->classes & class) || !is_watched(caller)) return c;
    if (!is_named(to)) return c;
    inside = true;
    c.n = atomic_fetch_add(&ctl->count, 1) + 1;
    const bool hit = ctl->at && (c.n == ctl->at || (ctl->stays && c.n > ctl->at));
    if (hit) {
        c.action = ctl->action;
        fault_taken();
        if (!atomic_fetch_add(&ctl->hit, 1)) strncpy(ctl->name, fns[id].name, sizeof ctl->name - 1);
        if (c.action == KILL_BEFORE) die();
        if (c.action > 0) errno = c.action;
    }
    if (ctl->traced) c.stack = stack_hash();
    inside = false;
    return c;
}

/* Whose call it is: of whom the checked form was called (the end of this file), or this. */
static __thread const void *checked_for __attribute__((tls_model("initial-exec")));
static const void *whose(const void *caller)
{
    const void *c = checked_for ? checked_for : caller;
    checked_for = NULL;
    return c;
}
#define CALLER whose(__builtin_return_address(0))
#define BEGIN(name) begin_as(F_##name, fns[F_##name].class, CALLER)

/* what: "/old path\t/new path", or "" */
static void end_path(const call *c, long result, const char *a, const char *b)
{
    const int keep = errno;
    if (c->n && ctl->traced) {
        char line[2 * PATH_MAX + 200];
        const int n =
            snprintf(line, sizeof line, "%llu\t%s\t%016llx\t%ld\t%llu\t%s\t%s\n",
                     (unsigned long long)c->n, fns[c->id].name, (unsigned long long)c->stack,
                     result, (unsigned long long)c->ino, a, b);
        inside = true;
        if (n > 0 && REAL(write)(log_fd, line, (size_t)n) < 0) abort();
        inside = false;
    }
    if (c->action == KILL_AFTER || c->action == TORN) die();
    if (c->action == STOP_AFTER) kill(getpid(), SIGSTOP);
    errno = keep;
}

static void end(const call *c, long result) { end_path(c, result, "", ""); }

static uint64_t fd_ino(const call *c, int fd)
{
    struct stat st;
    const bool known = c->n && ctl->traced && fstatat(fd, "", &st, AT_EMPTY_PATH) == 0;
    return known && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) ? st.st_ino : 0;
}
static uint64_t path_ino(const call *c, int dir, const char *path)
{
    struct stat st;
    const bool known = c->n && ctl->traced && fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
    return known ? st.st_ino : 0;
}

/* dir/path in full, where it is logged. */
static const char *full(char out[PATH_MAX], const call *c, int dir, const char *path)
{
    char link[64], base[PATH_MAX];
    if (!c->n || !ctl->traced || *path == '/') return path;
    if (dir == AT_FDCWD)
        strcpy(link, "/proc/self/cwd");
    else
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    const ssize_t n = readlink(link, base, sizeof base - 1);
    base[n > 0 ? n : 0] = 0;
    const int w = snprintf(out, PATH_MAX, "%s/%s", base, path);
    return w < PATH_MAX ? out : path;
}

/* The path of an open file, where it is logged. */
static const char *fd_path(char out[PATH_MAX], const call *c, int fd)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = c->n && ctl->traced ? readlink(link, out, PATH_MAX - 1) : 0;
    out[n > 0 ? n : 0] = 0;
    return out;
}

/* ---- memory ---- */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);

#define MEMORY(name, params, value)            \
    void *name params                          \
    {                                          \
        const call c = BEGIN(name);            \
        void *p = c.action > 0 ? NULL : value; \
        end(&c, p != NULL);                    \
        return p;                              \
    }
MEMORY(malloc, (size_t n), __libc_malloc(n))
MEMORY(calloc, (size_t n, size_t m), __libc_calloc(n, m))
MEMORY(realloc, (void *p0, size_t n), __libc_realloc(p0, n))
MEMORY(aligned_alloc, (size_t align, size_t n), __libc_memalign(align, n))

int posix_memalign(void **p, size_t align, size_t n)
{
    const call c = BEGIN(posix_memalign);
    void *q = c.action > 0 ? NULL : __libc_memalign(align, n);
    if (q) *p = q;
    end(&c, q != NULL);
    return q ? 0 : ENOMEM;
}

static char *copy(const char *s, size_t n)
{
    char *p = __libc_malloc(n + 1);
    if (p) memcpy(p, s, n), p[n] = 0;
    return p;
}
#undef strdup
#undef strndup
char *strdup(const char *s)
{
    const call c = BEGIN(strdup);
    char *p = c.action > 0 ? NULL : copy(s, strlen(s));
    end(&c, p != NULL);
    return p;
}
char *strndup(const char *s, size_t n)
{
    const call c = BEGIN(strndup);
    char *p = c.action > 0 ? NULL : copy(s, strnlen(s, n));
    end(&c, p != NULL);
    return p;
}
int asprintf(char **p, const char *fmt, ...)
{
    const call c = BEGIN(asprintf);
    va_list ap;
    va_start(ap, fmt);
    const int r = c.action > 0 ? -1 : vasprintf(p, fmt, ap);
    va_end(ap);
    end(&c, r);
    return r;
}
static void *map(const void *caller, void *at, size_t n, int prot, int flags, int fd, off_t off)
{
    const call c = begin_as(F_mmap, ALLOC, caller);
    void *p = c.action > 0 ? MAP_FAILED : REAL(mmap)(at, n, prot, flags, fd, off);
    end(&c, p != MAP_FAILED);
    return p;
}
void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t off)
{
    return map(__builtin_return_address(0), at, n, prot, flags, fd, off);
}
void *mmap64(void *at, size_t n, int prot, int flags, int fd, off64_t off)
{
    return map(__builtin_return_address(0), at, n, prot, flags, fd, off);
}

/* ---- opening: with O_CREAT or O_TRUNC it changes files, and counts as both ---- */
static int open_at(const void *caller, int dir, const char *path, int flags, mode_t mode)
{
    char name[PATH_MAX];
    const bool makes = flags & (O_CREAT | O_TRUNC);
    call c = begin_as(makes ? F_create : F_open, makes ? CHANGE | OPEN : OPEN, caller);
    const int fd = c.action > 0 ? -1 : REAL(openat)(dir, path, flags, mode);
    if (fd >= 0) c.ino = fd_ino(&c, fd);
    end_path(&c, fd, full(name, &c, dir, path), "");
    return fd;
}
#define OPEN_LIKE(name, params, dir)                                              \
    int name params                                                               \
    {                                                                             \
        va_list ap;                                                               \
        va_start(ap, flags);                                                      \
        const bool makes = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE; \
        const mode_t mode = makes ? va_arg(ap, mode_t) : 0;                       \
        va_end(ap);                                                               \
        return open_at(__builtin_return_address(0), dir, path, flags, mode);      \
    }
OPEN_LIKE(open, (const char *path, int flags, ...), AT_FDCWD)
OPEN_LIKE(open64, (const char *path, int flags, ...), AT_FDCWD)
OPEN_LIKE(openat, (int dir, const char *path, int flags, ...), dir)
OPEN_LIKE(openat64, (int dir, const char *path, int flags, ...), dir)

static FILE *stream(const void *caller, const char *path, const char *mode)
{
    char name[PATH_MAX];
    const bool makes = mode[0] != 'r';
    call c = begin_as(makes ? F_create : F_fopen, makes ? CHANGE | OPEN : OPEN, caller);
    FILE *f = c.action > 0 ? NULL : REAL(fopen)(path, mode);
    if (f) c.ino = fd_ino(&c, fileno(f));
    end_path(&c, f != NULL, full(name, &c, AT_FDCWD, path), "");
    return f;
}
FILE *fopen(const char *path, const char *mode)
{
    return stream(__builtin_return_address(0), path, mode);
}
FILE *fopen64(const char *path, const char *mode)
{
    return stream(__builtin_return_address(0), path, mode);
}
FILE *fdopen(int fd, const char *mode)
{
    const call c = BEGIN(fdopen);
    FILE *f = c.action > 0 ? NULL : REAL(fdopen)(fd, mode);
    end(&c, f != NULL);
    return f;
}
DIR *opendir(const char *path)
{
    const call c = BEGIN(opendir);
    DIR *d = c.action > 0 ? NULL : REAL(opendir)(path);
    end(&c, d != NULL);
    return d;
}
struct dirent *readdir(DIR *d)
{
    const call c = BEGIN(readdir);
    struct dirent *e = c.action > 0 && c.action != EINTR ? NULL : REAL(readdir)(d);
    end(&c, e != NULL);
    return e;
}
struct dirent64 *readdir64(DIR *d)
{
    const call c = BEGIN(readdir); /* on 64 bits the two are one */
    struct dirent *e = c.action > 0 && c.action != EINTR ? NULL : REAL(readdir)(d);
    end(&c, e != NULL);
    return (struct dirent64 *)e;
}
static int temporary(const void *caller, char *template, int flags)
{
    char name[PATH_MAX];
    call c = begin_as(F_create, CHANGE | OPEN, caller);
    const int fd = c.action > 0 ? -1 : REAL(mkostemp)(template, flags);
    if (fd >= 0) c.ino = fd_ino(&c, fd);
    end_path(&c, fd, full(name, &c, AT_FDCWD, template), "");
    return fd;
}
int mkostemp(char *template, int flags)
{
    return temporary(__builtin_return_address(0), template, flags);
}
int mkostemp64(char *template, int flags)
{
    return temporary(__builtin_return_address(0), template, flags);
}

/* ---- calls that return -1 and set errno ---- */
#define PLAIN(type, name, params, args)                     \
    type name params                                        \
    {                                                       \
        const call c = BEGIN(name);                         \
        const type r = c.action > 0 ? -1 : REAL(name) args; \
        end(&c, (long)r);                                   \
        return r;                                           \
    }
PLAIN(int, socket, (int domain, int type, int protocol), (domain, type, protocol))
extern int eventfd(unsigned value, int flags);
PLAIN(int, eventfd, (unsigned value, int flags), (value, flags))
PLAIN(int, epoll_create1, (int flags), (flags))
PLAIN(int, accept4, (int fd, struct sockaddr *a, socklen_t *n, int flags), (fd, a, n, flags))
PLAIN(int, epoll_wait, (int fd, struct epoll_event *e, int n, int ms), (fd, e, n, ms))
PLAIN(int, poll, (struct pollfd * p, nfds_t n, int ms), (p, n, ms))
PLAIN(ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags))
PLAIN(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
PLAIN(ssize_t, getdelim, (char **line, size_t *cap, int end_at, FILE *f), (line, cap, end_at, f))
ssize_t __getdelim(char **line, size_t *cap, int end_at, FILE *f)
{
    const call c = BEGIN(getdelim);
    const ssize_t r = c.action > 0 ? -1 : REAL(getdelim)(line, cap, end_at, f);
    end(&c, (long)r);
    return r;
}

/* Those of an eventfd do not count: they do not fail, and what waits for one would wait for ever.
 */
static call begin_move(fn_id id, int fd, const void *caller)
{
    struct stat st;
    const bool event =
        running && fstatat(fd, "", &st, AT_EMPTY_PATH) == 0 && !(st.st_mode & S_IFMT);
    return event ? (call){ .id = id } : begin_as(id, fns[id].class, caller);
}
#define BEGIN_MOVE(name) begin_move(F_##name, fd, CALLER)

/* Reading and writing may do less than was asked. */
static size_t part(const call *c, size_t n)
{
    return (c->action == SHORT || c->action == TORN) && n > 1 ? n / 2 : n;
}
#define MOVES(name, params, args)                              \
    ssize_t name params                                        \
    {                                                          \
        call c = BEGIN_MOVE(name);                             \
        const size_t n = part(&c, n_all);                      \
        const ssize_t r = c.action > 0 ? -1 : REAL(name) args; \
        c.ino = fd_ino(&c, fd);                                \
        end(&c, (long)r);                                      \
        return r;                                              \
    }
MOVES(read, (int fd, void *p, size_t n_all), (fd, p, n))
MOVES(write, (int fd, const void *p, size_t n_all), (fd, p, n))
MOVES(recv, (int fd, void *p, size_t n_all, int flags), (fd, p, n, flags))
MOVES(send, (int fd, const void *p, size_t n_all, int flags), (fd, p, n, flags))
MOVES(sendto,
      (int fd, const void *p, size_t n_all, int flags, const struct sockaddr *a, socklen_t an),
      (fd, p, n, flags, a, an))
MOVES(pread, (int fd, void *p, size_t n_all, off_t off), (fd, p, n, off))
MOVES(pwrite, (int fd, const void *p, size_t n_all, off_t off), (fd, p, n, off))
ssize_t pread64(int fd, void *p, size_t n_all, off64_t off)
{
    call c = BEGIN_MOVE(pread);
    const ssize_t r = c.action > 0 ? -1 : REAL(pread)(fd, p, part(&c, n_all), off);
    end(&c, (long)r);
    return r;
}
ssize_t pwrite64(int fd, const void *p, size_t n_all, off64_t off)
{
    call c = BEGIN_MOVE(pwrite);
    const ssize_t r = c.action > 0 ? -1 : REAL(pwrite)(fd, p, part(&c, n_all), off);
    c.ino = fd_ino(&c, fd);
    end(&c, (long)r);
    return r;
}

/* ---- streams: what reaches the file is cut in the middle where a write is torn ---- */
static off_t size_of(const call *c, FILE *f)
{
    struct stat st;
    return c->action == TORN && fstat(fileno(f), &st) == 0 && S_ISREG(st.st_mode) ? st.st_size : -1;
}
static void tear(const call *c, int fd, off_t before)
{
    struct stat st;
    if (before >= 0 && fstat(fd, &st) == 0 && st.st_size > before &&
        REAL(ftruncate)(fd, before + (st.st_size - before) / 2) != 0)
        abort();
    (void)c;
}
size_t fwrite(const void *p, size_t size, size_t n, FILE *f)
{
    call c = BEGIN(fwrite);
    const off_t before = size_of(&c, f);
    const size_t r = c.action > 0 ? 0 : REAL(fwrite)(p, size, n, f);
    tear(&c, fileno(f), before);
    c.ino = fd_ino(&c, fileno(f));
    end(&c, (long)r);
    return r;
}
size_t fread(void *p, size_t size, size_t n, FILE *f)
{
    const call c = BEGIN(fread);
    const size_t r = c.action > 0 ? 0 : REAL(fread)(p, size, n, f);
    end(&c, (long)r);
    return r;
}
int fflush(FILE *f)
{
    call c = BEGIN(fflush);
    const off_t before = f ? size_of(&c, f) : -1;
    const int r = c.action > 0 ? EOF : REAL(fflush)(f);
    if (f) tear(&c, fileno(f), before), c.ino = fd_ino(&c, fileno(f));
    end(&c, r);
    return r;
}
int fclose(FILE *f)
{
    call c = BEGIN(fclose);
    c.ino = fd_ino(&c, fileno(f));
    int r = REAL(fclose)(f); /* it is closed even so */
    if (c.action > 0) {
        errno = c.action;
        r = EOF;
    }
    end(&c, r);
    return r;
}

/* ---- changes of files and names ---- */
#define ON_FD(name, real_name, params, args)                    \
    int name params                                             \
    {                                                           \
        char name_[PATH_MAX];                                   \
        call c = BEGIN(real_name);                              \
        c.ino = fd_ino(&c, fd);                                 \
        const int r = c.action > 0 ? -1 : REAL(real_name) args; \
        end_path(&c, r, fd_path(name_, &c, fd), "");            \
        return r;                                               \
    }
ON_FD(fsync, fsync, (int fd), (fd))
ON_FD(ftruncate, ftruncate, (int fd, off_t n), (fd, n))
ON_FD(ftruncate64, ftruncate, (int fd, off64_t n), (fd, n))
ON_FD(fstat64, fstat, (int fd, struct stat64 *st), (fd, (struct stat *)st))

#define ON_PATH(name, params, dir, args)                   \
    int name params                                        \
    {                                                      \
        char p[PATH_MAX];                                  \
        call c = BEGIN(name);                              \
        c.ino = path_ino(&c, dir, path);                   \
        const int r = c.action > 0 ? -1 : REAL(name) args; \
        end_path(&c, r, full(p, &c, dir, path), "");       \
        return r;                                          \
    }
ON_PATH(unlink, (const char *path), AT_FDCWD, (path))
ON_PATH(unlinkat, (int dir, const char *path, int flags), dir, (dir, path, flags))
ON_PATH(mkdir, (const char *path, mode_t mode), AT_FDCWD, (path, mode))
ON_PATH(rmdir, (const char *path), AT_FDCWD, (path))

#define FROM_TO(name, params, from_dir, to_dir, args)                          \
    int name params                                                            \
    {                                                                          \
        char a[PATH_MAX], b[PATH_MAX];                                         \
        naming = to;                                                           \
        call c = BEGIN(name);                                                  \
        c.ino = path_ino(&c, from_dir, from);                                  \
        const int r = c.action > 0 ? -1 : REAL(name) args;                     \
        end_path(&c, r, full(a, &c, from_dir, from), full(b, &c, to_dir, to)); \
        return r;                                                              \
    }
FROM_TO(rename, (const char *from, const char *to), AT_FDCWD, AT_FDCWD, (from, to))
FROM_TO(renameat2, (int fd, const char *from, int td, const char *to, unsigned flags), fd, td,
        (fd, from, td, to, flags))
FROM_TO(link, (const char *from, const char *to), AT_FDCWD, AT_FDCWD, (from, to))
FROM_TO(linkat, (int fd, const char *from, int td, const char *to, int flags), fd, td,
        (fd, from, td, to, flags))

int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg)
{
    const call c = BEGIN(pthread_create);
    const int r = c.action > 0 ? c.action : REAL(pthread_create)(t, a, fn, arg);
    end(&c, r);
    return r;
}

/* ---- the forms that _FORTIFY_SOURCE makes of calls: `room` is what the compiler knows ---- */
#define CHECKED(type, name, checked, params, args, fits) \
    type checked params;                                 \
    type checked params                                  \
    {                                                    \
        if (!(fits)) abort();                            \
        checked_for = __builtin_return_address(0);       \
        return name args;                                \
    }
CHECKED(ssize_t, read, __read_chk, (int fd, void *p, size_t n, size_t room), (fd, p, n), n <= room)
CHECKED(ssize_t, pread64, __pread64_chk, (int fd, void *p, size_t n, off64_t off, size_t room),
        (fd, p, n, off), n <= room)
CHECKED(ssize_t, recv, __recv_chk, (int fd, void *p, size_t n, size_t room, int flags),
        (fd, p, n, flags), n <= room)
CHECKED(size_t, fread, __fread_chk, (void *p, size_t room, size_t size, size_t n, FILE *f),
        (p, size, n, f), !size || n <= room / size)
CHECKED(int, poll, __poll_chk, (struct pollfd * p, nfds_t n, int ms, size_t room), (p, n, ms),
        n <= room / sizeof *p)

#define OPEN_CHECKED(checked, params, dir) \
    int checked params;                    \
    int checked params { return open_at(__builtin_return_address(0), dir, path, flags, 0); }
OPEN_CHECKED(__open_2, (const char *path, int flags), AT_FDCWD)
OPEN_CHECKED(__open64_2, (const char *path, int flags), AT_FDCWD)
OPEN_CHECKED(__openat_2, (int dir, const char *path, int flags), dir)
OPEN_CHECKED(__openat64_2, (int dir, const char *path, int flags), dir)

int __asprintf_chk(char **p, int level, const char *fmt, ...);
int __asprintf_chk(char **p, int level, const char *fmt, ...)
{
    const call c = BEGIN(asprintf);
    va_list ap;
    (void)level;
    va_start(ap, fmt);
    const int r = c.action > 0 ? -1 : vasprintf(p, fmt, ap);
    va_end(ap);
    end(&c, r);
    return r;
}
