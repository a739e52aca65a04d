/* base/os_linux.c */
#include "base/os.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#if __has_include(<linux/mempolicy.h>)
#include <linux/mempolicy.h>
#endif
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* ---- files ---- */

int os_open_nameless(const char *dir, int flags, mode_t mode)
{
    return open(dir, O_TMPFILE | O_CLOEXEC | flags, mode);
}

static void own_link(char out[40], int fd) { snprintf(out, 40, "/proc/self/fd/%d", fd); }

bool os_can_link(void) { return access("/proc/self/fd", X_OK) == 0; }

bool os_link_nameless(int fd, const char *path)
{
    char self[40];
    own_link(self, fd);
    return linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0;
}

void os_begin_sync(int fd, size_t from, size_t n)
{
    (void)sync_file_range(fd, (off_t)from, (off_t)n, SYNC_FILE_RANGE_WRITE);
}

bool os_exchange(const char *a, const char *b)
{
    return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0;
}

bool os_is_mount(const char *dir)
{
    struct statx st;
    return statx(AT_FDCWD, dir, 0, 0, &st) == 0 && (st.stx_attributes & STATX_ATTR_MOUNT_ROOT);
}

bool os_path_of(int fd, char *out, size_t n)
{
    char self[40];
    own_link(self, fd);
    const ssize_t k = readlink(self, out, n - 1);
    out[k > 0 ? k : 0] = 0;
    return k > 0;
}

struct timespec os_mtime(const struct stat *st) { return st->st_mtim; }

/* ---- memory ---- */

void os_huge_pages(void *p, size_t n) { (void)madvise(p, n, MADV_HUGEPAGE); }
void os_wipe(void *p, size_t n) { explicit_bzero(p, n); }

size_t os_memory_free(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    unsigned long long kib = 0;
    char line[128];
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) break;
    if (f) fclose(f);
    return (size_t)kib * 1024;
}

size_t os_memory_used(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return os_memory_peak();
    if (fscanf(f, "%*s %lu", &pages) != 1) pages = 0;
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

size_t os_memory_peak(void)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r"); /* getrusage also counts what came before exec */
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %llu", &kib) == 1) break;
    if (f) fclose(f);
    if (kib) return (size_t)kib * 1024;
    struct rusage r;
    return getrusage(RUSAGE_SELF, &r) ? 0 : (size_t)r.ru_maxrss * 1024;
}

/* ---- chance, order ---- */

bool os_random(void *p, size_t n) { return getrandom(p, n, 0) == (ssize_t)n; }

void os_sort(void *v, size_t n, size_t size, int (*compare)(const void *, const void *, void *),
             void *with)
{
    qsort_r(v, n, size, compare, with);
}

/* ---- sockets, pipes, processes ---- */

int os_socket(int family, int type, int protocol, bool nonblocking)
{
    return socket(family, type | SOCK_CLOEXEC | (nonblocking ? SOCK_NONBLOCK : 0), protocol);
}

int os_pipe(int fd[2]) { return pipe2(fd, O_CLOEXEC); }
int os_dup_over(int from, int to) { return dup3(from, to, O_CLOEXEC); }

bool os_program(char *out, size_t n)
{
    const ssize_t k = readlink("/proc/self/exe", out, n);
    if (k < 0) return false;
    errno = ENAMETOOLONG;
    if ((size_t)k >= n) return false;
    out[k] = 0;
    return true;
}

bool os_end_with(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    return getppid() == parent;
}

int os_watch_process(pid_t pid)
{
    const long fd = syscall(SYS_pidfd_open, pid, 0); /* Linux 5.3; closed by exec */
    return fd < 0 ? -1 : (int)fd;
}

/* ---- processors ---- */

static_assert(sizeof(os_cpus) == sizeof(cpu_set_t), "the bits of both are the same");

void os_cpus_allowed(os_cpus *c)
{
    cpu_set_t set;
    *c = (os_cpus){ .word = { 1 } };
    if (sched_getaffinity(0, sizeof set, &set) == 0) memcpy(c, &set, sizeof *c);
}

int os_bind(pthread_t thread, const os_cpus *to)
{
    cpu_set_t set;
    memcpy(&set, to, sizeof set);
    return pthread_setaffinity_np(thread, sizeof set, &set);
}

int os_interleave(void)
{
#if defined(SYS_set_mempolicy) && defined(MPOL_F_MEMS_ALLOWED)
    enum { NODES = 1024 };
    unsigned long nodes[NODES / (8 * sizeof(unsigned long))] = { 0 };
    const bool done = syscall(SYS_get_mempolicy, NULL, nodes, (unsigned long)NODES, NULL,
                              (unsigned long)MPOL_F_MEMS_ALLOWED) == 0 &&
                      syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, nodes, (unsigned long)NODES) == 0;
    return done ? 0 : errno;
#else
    return ENOSYS;
#endif
}

void os_cpu_name(char *out, size_t n)
{
    snprintf(out, n, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "model name", 10) != 0) continue;
        const char *v = strchr(line, ':');
        if (v) snprintf(out, n, "%.*s", (int)strcspn(v + 2, "\n"), v + 2);
        break;
    }
    if (f) fclose(f);
}

unsigned os_arm_features(void)
{
#if defined(__aarch64__)
    const unsigned long a = getauxval(AT_HWCAP), b = getauxval(AT_HWCAP2);
    return (a & HWCAP_ASIMDDP ? OS_ARM_DOT : 0u) | (b & HWCAP2_I8MM ? OS_ARM_I8MM : 0u) |
           (b & HWCAP2_BF16 ? OS_ARM_BF16 : 0u);
#else
    return 0;
#endif
}

/* Tiles enlarge what the system saves of a thread, so a process has to ask for them once. Source: the
 * kernel's Documentation/arch/x86/xstate.rst. */
bool os_allow_tiles(void)
{
#if defined(__x86_64__)
    enum { REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILEDATA) == 0;
#else
    return false;
#endif
}
