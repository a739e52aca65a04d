/* base/os_bsd.c - macOS and FreeBSD; compiled, not run. */
#define __STDC_WANT_LIB_EXT1__ 1 /* memset_s */
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/param.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/sysctl.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <mach-o/dyld.h>
#include <mach/mach.h>
#else
#include <pthread_np.h>
#include <sys/auxv.h>
#include <sys/cpuset.h>
#include <sys/procctl.h>
#endif

/* ---- files ---- */

int os_open_nameless(const char *dir, int flags, mode_t mode)
{
    (void)dir, (void)flags, (void)mode;
    errno = ENOTSUP;
    return -1;
}

bool os_can_link(void) { return false; }

bool os_link_nameless(int fd, const char *path)
{
    (void)fd, (void)path;
    errno = ENOTSUP;
    return false;
}

void os_begin_sync(int fd, size_t from, size_t n) { (void)fd, (void)from, (void)n; }

bool os_exchange(const char *a, const char *b)
{
#if defined(__APPLE__)
    return renamex_np(a, b, RENAME_SWAP) == 0;
#else
    (void)a, (void)b;
    errno = ENOTSUP;
    return false;
#endif
}

bool os_is_mount(const char *dir)
{
    struct statfs at;
    char real[PATH_MAX];
    return statfs(dir, &at) == 0 && realpath(dir, real) && strcmp(at.f_mntonname, real) == 0;
}

bool os_path_of(int fd, char *out, size_t n)
{
    out[0] = 0;
#if defined(__APPLE__)
    char path[MAXPATHLEN];
    if (fcntl(fd, F_GETPATH, path) == 0) snprintf(out, n, "%s", path);
#else
    (void)fd, (void)n;
#endif
    return out[0] != 0;
}

struct timespec os_mtime(const struct stat *st)
{
#if defined(__APPLE__)
    return st->st_mtimespec;
#else
    return st->st_mtim;
#endif
}

/* ---- memory ---- */

void os_huge_pages(void *p, size_t n) { (void)p, (void)n; }

void os_wipe(void *p, size_t n)
{
#if defined(__APPLE__)
    memset_s(p, n, 0, n);
#else
    explicit_bzero(p, n);
#endif
}

size_t os_memory_free(void)
{
#if defined(__APPLE__)
    vm_statistics64_data_t v;
    mach_msg_type_number_t n = HOST_VM_INFO64_COUNT;
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&v, &n)) return 0;
    const size_t pages = (size_t)v.free_count + v.inactive_count;
#else
    unsigned unused = 0, inactive = 0;
    size_t size = sizeof unused;
    if (sysctlbyname("vm.stats.vm.v_free_count", &unused, &size, NULL, 0)) return 0;
    if (sysctlbyname("vm.stats.vm.v_inactive_count", &inactive, &size, NULL, 0)) inactive = 0;
    const size_t pages = (size_t)unused + inactive;
#endif
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

size_t os_memory_used(void)
{
#if defined(__APPLE__)
    mach_task_basic_info_data_t v;
    mach_msg_type_number_t n = MACH_TASK_BASIC_INFO_COUNT;
    if (!task_info(mach_task_self(), MACH_TASK_BASIC_INFO, (task_info_t)&v, &n))
        return v.resident_size;
#endif
    return os_memory_peak();
}

size_t os_memory_peak(void)
{
    struct rusage r;
    if (getrusage(RUSAGE_SELF, &r)) return 0;
#if defined(__APPLE__)
    return (size_t)r.ru_maxrss; /* bytes; KiB elsewhere */
#else
    return (size_t)r.ru_maxrss * 1024;
#endif
}

/* ---- chance, order ---- */

bool os_random(void *p, size_t n)
{
    arc4random_buf(p, n);
    return true;
}

/* BSD's qsort_r takes its arguments in another order, and not on every release. */
static _Thread_local struct {
    int (*compare)(const void *, const void *, void *);
    void *with;
} sorting;

static int compare_with(const void *a, const void *b)
{
    return sorting.compare(a, b, sorting.with);
}

void os_sort(void *v, size_t n, size_t size, int (*compare)(const void *, const void *, void *),
             void *with)
{
    sorting.compare = compare;
    sorting.with = with;
    qsort(v, n, size, compare_with);
}

/* ---- sockets, pipes, processes ---- */

/* Between the two calls another thread may fork: what it starts inherits the descriptor. */
static int not_inherited(int fd)
{
    if (fd >= 0) (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
}

int os_socket(int family, int type, int protocol, bool nonblocking)
{
    const int fd = not_inherited(socket(family, type, protocol));
    if (fd >= 0 && nonblocking) (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

int os_pipe(int fd[2])
{
    if (pipe(fd)) return -1;
    not_inherited(fd[0]);
    not_inherited(fd[1]);
    return 0;
}

int os_dup_over(int from, int to) { return not_inherited(dup2(from, to)); }

bool os_program(char *out, size_t n)
{
#if defined(__APPLE__)
    uint32_t room = (uint32_t)n;
    errno = ENAMETOOLONG;
    return _NSGetExecutablePath(out, &room) == 0;
#else
    int name[] = { CTL_KERN, KERN_PROC, KERN_PROC_PATHNAME, -1 };
    return sysctl(name, 4, out, &n, NULL, 0) == 0;
#endif
}

bool os_end_with(pid_t parent)
{
#if !defined(__APPLE__)
    int sig = SIGTERM;
    (void)procctl(P_PID, 0, PROC_PDEATHSIG_CTL, &sig);
#endif
    return getppid() == parent;
}

int os_watch_process(pid_t pid)
{
    (void)pid;
    return -1;
}

/* ---- processors ---- */

/* macOS binds no thread to a CPU; of Apple's, those of performance count, which come first. */
void os_cpus_allowed(os_cpus *c)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
#if defined(__APPLE__)
    int fast = 0;
    size_t size = sizeof fast;
    if (!sysctlbyname("hw.perflevel0.logicalcpu", &fast, &size, NULL, 0) && fast > 0) n = fast;
#endif
    *c = (os_cpus){ .word = { 1 } };
    for (long i = 1; i < n && i < OS_CPUS; i++)
        c->word[i / 64] |= (uint64_t)1 << i % 64;
}

int os_bind(pthread_t thread, const os_cpus *to)
{
#if defined(__APPLE__)
    (void)thread, (void)to;
    return ENOTSUP;
#else
    cpuset_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < OS_CPUS && i < CPU_SETSIZE; i++)
        if (to->word[i / 64] >> i % 64 & 1) CPU_SET(i, &set);
    return pthread_setaffinity_np(thread, sizeof set, &set);
#endif
}

int os_interleave(void) { return ENOSYS; }

void os_cpu_name(char *out, size_t n)
{
#if defined(__APPLE__)
    static const char name[] = "machdep.cpu.brand_string";
#else
    static const char name[] = "hw.model";
#endif
    size_t size = n;
    if (sysctlbyname(name, out, &size, NULL, 0)) snprintf(out, n, "unknown");
}

#if defined(__APPLE__)
static bool has(const char *name)
{
    int v = 0;
    size_t size = sizeof v;
    return sysctlbyname(name, &v, &size, NULL, 0) == 0 && v;
}

unsigned os_arm_features(void)
{
    return (has("hw.optional.arm.FEAT_DotProd") ? OS_ARM_DOT : 0u) |
           (has("hw.optional.arm.FEAT_I8MM") ? OS_ARM_I8MM : 0u) |
           (has("hw.optional.arm.FEAT_BF16") ? OS_ARM_BF16 : 0u);
}
#elif defined(__aarch64__)
unsigned os_arm_features(void)
{
    unsigned long a = 0, b = 0;
    (void)elf_aux_info(AT_HWCAP, &a, sizeof a);
    (void)elf_aux_info(AT_HWCAP2, &b, sizeof b);
    return (a & HWCAP_ASIMDDP ? OS_ARM_DOT : 0u) | (b & HWCAP2_I8MM ? OS_ARM_I8MM : 0u) |
           (b & HWCAP2_BF16 ? OS_ARM_BF16 : 0u);
}
#else
unsigned os_arm_features(void) { return 0; }
#endif

bool os_allow_tiles(void) { return false; }
