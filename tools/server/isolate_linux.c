/* tools/server/isolate_linux.c - see isolate.h. */
#include "tools/server/isolate_int.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <link.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

const char *iso_keep_rights(void)
{
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 ? NULL : "refused by this kernel";
}

/* ---- files: Landlock. Numbers and layouts of its interface, of which older headers lack parts
 * ---- */
enum {
    FS_EXECUTE = 1 << 0,
    FS_WRITE = 1 << 1,
    FS_READ = 1 << 2,
    FS_READ_DIR = 1 << 3,
    FS_REMOVE_DIR = 1 << 4,
    FS_REMOVE_FILE = 1 << 5,
    FS_MAKE_DIR = 1 << 7,
    FS_MAKE_REG = 1 << 8,
    FS_MAKE_SOCK = 1 << 9,
    FS_V1 = (1 << 13) - 1,    /* all of its first version */
    FS_REFER = 1 << 13,       /* 2 */
    FS_TRUNCATE = 1 << 14,    /* 3 */
    FS_IOCTL_DEV = 1 << 15,   /* 5 */
    NET_CONNECT_TCP = 1 << 1, /* 4 */
    RULE_PATH = 1,            /* LANDLOCK_RULE_PATH_BENEATH */
    VERSION = 1,              /* LANDLOCK_CREATE_RULESET_VERSION */
    EVERY_THREAD = 1 << 3     /* 8: LANDLOCK_RESTRICT_SELF_TSYNC */
};
enum {
    OPENED = FS_READ | FS_READ_DIR,
    KEPT = OPENED | FS_WRITE | FS_TRUNCATE | FS_REFER | FS_MAKE_REG | FS_REMOVE_FILE
};
typedef struct {
    uint64_t fs, net;
} rules_attr;
typedef struct __attribute__((packed)) {
    uint64_t allowed;
    int32_t fd;
} path_attr;
static_assert(sizeof(path_attr) == 12, "as the kernel reads it");

typedef struct {
    int fd;
    uint64_t handled;
} rules;

/* Beneath `path`; of a plain file only what a file can be asked for. Nothing where nothing is. */
static void allow(const rules *r, const char *path, uint64_t access)
{
    struct stat st;
    const int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0) return;
    path_attr a = { access & r->handled, fd };
    if (fstat(fd, &st) == 0 && !S_ISDIR(st.st_mode))
        a.allowed &= FS_EXECUTE | FS_WRITE | FS_READ | FS_TRUNCATE | FS_IOCTL_DEV;
    if (a.allowed) (void)!syscall(SYS_landlock_add_rule, r->fd, RULE_PATH, &a, 0);
    close(fd);
}

/* The folder that `path` lies in; the root is not given away as a whole. */
static void allow_folder(const rules *r, const char *path, uint64_t access)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? strndup(path, (size_t)(slash - path)) : strdup(".");
    if (dir && *dir) allow(r, dir, access);
    free(dir);
}

/* A file; or a folder, of which files may be links to elsewhere, as in a cache of downloads. */
static void allow_linked(const rules *r, const char *path)
{
    allow(r, path, OPENED);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        char *file = NULL;
        if (e->d_type != DT_LNK && e->d_type != DT_UNKNOWN) continue;
        if (asprintf(&file, "%s/%s", path, e->d_name) < 0) break;
        if (strcmp(e->d_name, "..") != 0) allow(r, file, FS_READ);
        free(file);
    }
    if (d) closedir(d);
}

/* Shards of a file lie beside it. */
static void allow_model(const rules *r, const char *path)
{
    allow_linked(r, path);
    if (strstr(path, "-of-") || strstr(path, ".index.json")) allow_folder(r, path, OPENED);
}

static void allow_use(const rules *r, const iso_path *p)
{
    char *end = NULL;
    switch (p->use) {
    case ISO_MODEL:
        allow_model(r, p->path);
        break;
    case ISO_REPLACED:
        allow(r, p->path, FS_READ);
        allow_folder(r, p->path, FS_READ);
        end = realpath(p->path, NULL);
        if (end) allow_folder(r, end, FS_READ);
        break;
    case ISO_LOG:
        allow(r, p->path, FS_WRITE);
        allow_folder(r, p->path, FS_WRITE | FS_MAKE_REG);
        break;
    case ISO_SOCKET:
        allow_folder(r, p->path, FS_MAKE_SOCK | FS_REMOVE_FILE);
        break;
    case ISO_STORE:
        allow(r, p->path, KEPT);
        break;
    }
    free(end);
}

/* What libraries and the C library read while a server runs: names of hosts, the time zone,
 * certificates' rules, the machine's state. */
static void allow_system(const rules *r)
{
    static const char *const read[] = { "/proc",
                                        "/sys",
                                        "/usr",
                                        "/lib",
                                        "/lib64",
                                        "/etc/hosts",
                                        "/etc/host.conf",
                                        "/etc/resolv.conf",
                                        "/etc/nsswitch.conf",
                                        "/etc/gai.conf",
                                        "/etc/services",
                                        "/etc/ld.so.cache",
                                        "/etc/localtime",
                                        "/etc/ssl",
                                        "/etc/pki",
                                        "/etc/gnutls",
                                        "/etc/crypto-policies",
                                        "/dev/urandom",
                                        "/dev/random",
                                        "/dev/zero" };
    for (size_t i = 0; i < sizeof read / sizeof *read; i++)
        allow(r, read[i], OPENED);
    allow(r, "/dev/null", FS_READ | FS_WRITE);
}

/* ---- what a GPU's driver asks for once its device is open ---- */

/* /dev/nvidia0, nvidiactl, nvidia-uvm, nvidia-uvm-tools, nvidia-caps/, ...; WSL's. */
static void allow_nodes(const rules *r)
{
    glob_t g = { 0 };
    if (glob("/dev/nvidia*", 0, NULL, &g) == 0)
        for (size_t i = 0; i < g.gl_pathc; i++)
            allow(r, g.gl_pathv[i], OPENED | FS_WRITE | FS_IOCTL_DEV);
    globfree(&g);
    allow(r, "/dev/dxg", OPENED | FS_WRITE | FS_IOCTL_DEV);
}

/* Every folder on the way to `path` that is not there is made, as the driver would. */
static void make_folders(char *path)
{
    for (char *slash = path; (slash = strchr(slash + 1, '/'));) {
        *slash = 0;
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    (void)mkdir(path, 0700);
}

static char *in_home(const char *name) /* NULL: no home */
{
    const char *home = getenv("HOME");
    char *path = NULL;
    return home && *home && asprintf(&path, "%s/%s", home, name) > 0 ? path : NULL;
}

/* Of kernels that the driver compiled, where CUDA keeps it; not at the root. */
static void allow_cache(const rules *r)
{
    const char *own = getenv("CUDA_CACHE_PATH"), *off = getenv("CUDA_CACHE_DISABLE");
    if (off && strcmp(off, "1") == 0) return;
    char *path = own && *own ? strdup(own) : in_home(".nv/ComputeCache");
    if (!path) return;
    make_folders(path);
    char *real = realpath(path, NULL);
    if (real && strcmp(real, "/") != 0) allow(r, real, KEPT | FS_MAKE_DIR | FS_REMOVE_DIR);
    free(real);
    free(path);
}

/* What is in /usr may be read as it is. */
static void allow_libraries(const rules *r, const char *dir)
{
    char *real = realpath(dir, NULL);
    DIR *d = real && strncmp(real, "/usr/", 5) != 0 ? opendir(dir) : NULL;
    free(real);
    for (struct dirent *e; d && (e = readdir(d));) {
        char *file = NULL;
        if (!strstr(e->d_name, ".so")) continue;
        if (asprintf(&file, "%s/%s", dir, e->d_name) < 0) break;
        allow(r, file, FS_READ);
        free(file);
    }
    if (d) closedir(d);
}

static int allow_beside(struct dl_phdr_info *i, size_t n, void *user)
{
    const char *slash = strrchr(i->dlpi_name, '/');
    char *dir = slash ? strndup(i->dlpi_name, (size_t)(slash - i->dlpi_name)) : NULL;
    (void)n;
    if (dir) allow_libraries(user, dir);
    free(dir);
    return 0;
}

/* The driver loads its compiler, and cuBLAS its parts, from where they lie themselves or from where
 * the loader looks. */
static void allow_loading(rules *r)
{
    const char *named = getenv("LD_LIBRARY_PATH");
    char *all = named ? strdup(named) : NULL, *rest = NULL;
    for (char *dir = all ? strtok_r(all, ":;", &rest) : NULL; dir;
         dir = strtok_r(NULL, ":;", &rest))
        allow_libraries(r, dir);
    free(all);
    allow_libraries(r, "/run/opengl-driver/lib"); /* NixOS */
    allow(r, "/nix/store", OPENED);
    allow(r, "/opt", OPENED);
    dl_iterate_phdr(allow_beside, r);
}

/* The driver names its threads, and does not start where it may not. A rule is bound to the folder as
 * the kernel has it in memory: it stays open, so that this goes on to be the same. */
static void allow_names(const rules *r)
{
    static const char tasks[] = "/proc/self/task";
    allow(r, tasks, FS_WRITE);
    (void)!open(tasks, O_PATH | O_CLOEXEC);
}

/* NCCL's settings. */
static void allow_exchange(const rules *r)
{
    char *own = in_home(".nccl.conf");
    allow(r, "/etc/nccl.conf", FS_READ);
    if (own) allow(r, own, FS_READ);
    free(own);
}

static void allow_gpus(rules *r, int n)
{
    allow_nodes(r);
    allow_cache(r);
    allow_loading(r);
    allow_names(r);
    allow(r, "/dev/shm", KEPT);
    if (n > 1) allow_exchange(r);
}

/* What a library of MPI shares memory through, and removes at its end. */
static void allow_ranks(const rules *r)
{
    const char *session = getenv("PMIX_SERVER_TMPDIR");
    allow(r, "/dev/shm", KEPT);
    if (session && *session) allow(r, session, KEPT | FS_MAKE_DIR | FS_REMOVE_DIR);
}

static int threads(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

const char *iso_restrict_files(bool *all, const iso_want *w)
{
    const long version = syscall(SYS_landlock_create_ruleset, NULL, 0, VERSION);
    if (version < 1) return "this kernel has no Landlock";
    /* NCCL connects to itself, at an address and a port of its choice. */
    rules_attr a = { FS_V1, version >= 4 && w->gpus < 2 && !w->ranks ? NET_CONNECT_TCP : 0 };
    if (version >= 2) a.fs |= FS_REFER;
    if (version >= 3) a.fs |= FS_TRUNCATE;
    if (version >= 5) a.fs |= FS_IOCTL_DEV;
    const size_t size = version >= 4 ? sizeof a : sizeof a.fs;
    rules r = { (int)syscall(SYS_landlock_create_ruleset, &a, size, 0), a.fs };
    if (r.fd < 0) return "Landlock takes no rules";
    allow_system(&r);
    for (size_t i = 0; i < w->n; i++)
        if (w->paths[i].path) allow_use(&r, &w->paths[i]);
    if (w->gpus) allow_gpus(&r, w->gpus);
    if (w->ranks) allow_ranks(&r);
    const int flags = version >= 8 ? EVERY_THREAD : 0;
    const bool ok = syscall(SYS_landlock_restrict_self, r.fd, flags) == 0;
    *all = flags || threads() == 1;
    close(r.fd);
    return ok ? NULL : "Landlock was refused";
}

/* ---- system calls: seccomp ---- */
#if defined(__x86_64__)
static const uint32_t MACHINE = AUDIT_ARCH_X86_64,
                      OTHER_ABI = 0x40000000; /* x32's numbers begin there */
#elif defined(__aarch64__)
static const uint32_t MACHINE = AUDIT_ARCH_AARCH64, OTHER_ABI = INT32_MAX;
#else
#define NO_FILTER
#endif

#ifdef NO_FILTER
const char *iso_restrict_calls(const iso_want *w)
{
    (void)w;
    return "no filter for this processor";
}
#else
/* Denied with EPERM, whoever calls. */
static const int denied[] = {
    SYS_execve,
    SYS_execveat,
#ifdef SYS_fork
    SYS_fork,
    SYS_vfork,
#endif
    SYS_ptrace,
    SYS_kcmp,
    SYS_pidfd_open,
    SYS_pidfd_getfd,
    SYS_pidfd_send_signal,
    SYS_unshare,
    SYS_setns,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_open_tree,
    SYS_move_mount,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fspick,
    SYS_mount_setattr,
    SYS_open_by_handle_at,
    SYS_name_to_handle_at,
    SYS_fanotify_init,
    SYS_quotactl,
    SYS_swapon,
    SYS_swapoff,
    SYS_acct,
    SYS_reboot,
    SYS_syslog,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_clock_adjtime,
    SYS_adjtimex,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_kexec_file_load,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_setuid,
    SYS_setgid,
    SYS_setreuid,
    SYS_setregid,
    SYS_setresuid,
    SYS_setresgid,
    SYS_setgroups,
    SYS_setfsuid,
    SYS_setfsgid,
    SYS_capset,
    SYS_personality,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fchown,
    SYS_fchownat,
    SYS_setxattr,
    SYS_lsetxattr,
    SYS_fsetxattr,
    SYS_removexattr,
    SYS_lremovexattr,
    SYS_fremovexattr,
    SYS_utimensat,
    SYS_mknodat,
#ifdef SYS_chmod
    SYS_chmod,
    SYS_chown,
    SYS_lchown,
    SYS_mknod,
    SYS_utime,
    SYS_utimes,
    SYS_futimesat,
#endif
    SYS_tkill,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
#ifdef SYS_ioperm
    SYS_ioperm,
    SYS_iopl,
    SYS_modify_ldt,
#endif
};
/* Whose first argument is a process, which has to be this one; those of memory only where a GPU's
 * driver may copy so, else they are denied. */
static const int signals[] = { SYS_kill, SYS_tgkill };
static const int copies[] = { SYS_process_vm_readv, SYS_process_vm_writev };
/* What kernels have learned since is not there: who may call it asks first, as on an older kernel.
 */
enum { NEWEST_CALL = 450 }; /* set_mempolicy_home_node, of Linux 5.17 */
static const int families[] = { AF_UNIX, AF_INET, AF_INET6, AF_NETLINK }; /* of sockets */

enum { PROGRAM = 240 };
typedef struct {
    struct sock_filter v[PROGRAM];
    unsigned short n;
} program;
static_assert(2 * sizeof denied / sizeof *denied + 50 < PROGRAM, "the program has room");

static void add(program *p, uint16_t code, uint32_t k, uint8_t yes, uint8_t no)
{
    assert(p->n < sizeof p->v / sizeof *p->v);
    p->v[p->n++] = (struct sock_filter){ code, yes, no, k };
}
static void load_word(program *p, size_t at)
{
    add(p, BPF_LD | BPF_W | BPF_ABS, (uint32_t)at, 0, 0);
}
static void end_with(program *p, uint32_t action) { add(p, BPF_RET | BPF_K, action, 0, 0); }

enum {
    JEQ = BPF_JMP | BPF_JEQ | BPF_K,
    JGE = BPF_JMP | BPF_JGE | BPF_K,
    JSET = BPF_JMP | BPF_JSET | BPF_K
};
static const uint32_t EPERM_NOW = SECCOMP_RET_ERRNO | EPERM;

static size_t argument(int i) /* its lower 32 bits, on a little-endian machine */
{
    return offsetof(struct seccomp_data, args) + 8 * (size_t)i;
}

static void deny(program *p, const int *calls, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        add(p, JEQ, (uint32_t)calls[i], 0, 1);
        end_with(p, EPERM_NOW);
    }
}

static void allow_itself(program *p, const int *calls, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        add(p, JEQ, (uint32_t)calls[i], 0, 4);
        load_word(p, argument(0));
        add(p, JEQ, (uint32_t)getpid(), 0, 1);
        end_with(p, SECCOMP_RET_ALLOW);
        end_with(p, EPERM_NOW);
    }
}

static void write_filter(program *p, bool gpu)
{
    load_word(p, offsetof(struct seccomp_data, arch));
    add(p, JEQ, MACHINE, 1, 0);
    end_with(p, SECCOMP_RET_KILL_PROCESS);
    load_word(p, offsetof(struct seccomp_data, nr));
    add(p, JGE, OTHER_ABI, 0, 1);
    end_with(p, EPERM_NOW);
    add(p, JGE, NEWEST_CALL + 1, 0, 1);
    end_with(p, SECCOMP_RET_ERRNO | ENOSYS);
    deny(p, denied, sizeof denied / sizeof *denied);
    if (!gpu) deny(p, copies, sizeof copies / sizeof *copies);
    /* Threads, but no processes. A filter cannot read what clone3's pointer points to; without
     * clone3 the C library uses clone. */
    add(p, JEQ, SYS_clone3, 0, 1);
    end_with(p, SECCOMP_RET_ERRNO | ENOSYS);
    add(p, JEQ, SYS_clone, 0, 4);
    load_word(p, argument(0));
    add(p, JSET, CLONE_THREAD, 0, 1);
    end_with(p, SECCOMP_RET_ALLOW);
    end_with(p, EPERM_NOW);
    allow_itself(p, signals, sizeof signals / sizeof *signals);
    if (gpu) allow_itself(p, copies, sizeof copies / sizeof *copies);
    const unsigned n = sizeof families / sizeof *families;
    add(p, JEQ, SYS_socket, 0, (uint8_t)(n + 2));
    load_word(p, argument(0));
    for (unsigned i = 0; i < n; i++)
        add(p, JEQ, (uint32_t)families[i], (uint8_t)(n - i), 0);
    end_with(p, EPERM_NOW);
    end_with(p, SECCOMP_RET_ALLOW);
}

const char *iso_restrict_calls(const iso_want *w)
{
    program p = { .n = 0 };
    write_filter(&p, w->gpus > 0);
    const struct sock_fprog f = { p.n, p.v };
    /* All threads at once, those of libraries as well. */
    const long r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &f);
    return r == 0  ? NULL
           : r > 0 ? "a thread has a filter of its own"
                   : "this kernel takes no filter";
}
#endif
