/* tests/support/standin_cuda.c - a libcuda.so.1 that asks of the system what NVIDIA's does, and nothing
 * more (tests/e2e/test_gpu_isolation.py compiles it; emulated_driver.c calls it). Each function returns
 * 0, or 304, the driver's number for a call of the system that failed, and says which on stderr; the one
 * that LLMQ_STANDIN_FAILS names gives that without a word. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FAILED = 304 };

static int asked_to_fail(const char *name)
{
    const char *which = getenv("LLMQ_STANDIN_FAILS");
    return which && strcmp(which, name) == 0;
}

static int wrong(const char *what)
{
    fprintf(stderr, "libcuda.so.1: %s: %s\n", what, strerror(errno));
    return FAILED;
}

static int node(const char *path)
{
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return wrong(path);
    errno = 0;
    const int r =
        ioctl(fd, _IOWR('F', 42, int), &errno); /* which the node of the test does not know */
    const int kept = errno;
    close(fd);
    errno = kept;
    return r == 0 || kept == ENOTTY || kept == EINVAL ? 0 : wrong("ioctl");
}

/* Loads a module of the kernel's and makes nodes. */
static int modprobe(void)
{
    int status = 0;
    const pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/true", "nvidia-modprobe", (char *)NULL);
        _exit(1);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0 ? 0 : wrong("nvidia-modprobe");
}

static void *work(void *arg)
{
    while (!__atomic_load_n((int *)arg, __ATOMIC_ACQUIRE))
        usleep(1000);
    return NULL;
}

/* The C library writes another thread's name to /proc/self/task/N/comm. */
static int named_thread(void)
{
    int stop = 0;
    pthread_t t;
    if ((errno = pthread_create(&t, NULL, work, &stop))) return wrong("pthread_create");
    const int e = pthread_setname_np(t, "cuda-EvtHandlr");
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    pthread_join(t, NULL);
    errno = e;
    return e ? wrong("the name of a thread") : 0;
}

/* What was compiled is kept, and found at the next start. */
static int cache(void)
{
    const char *own = getenv("CUDA_CACHE_PATH"), *home = getenv("HOME");
    char dir[400], path[500], begun[500];
    snprintf(dir, sizeof dir, "%s/.nv", home ? home : "");
    if (own) {
        snprintf(dir, sizeof dir, "%s", own);
    } else {
        mkdir(dir, 0700);
        snprintf(dir, sizeof dir, "%s/.nv/ComputeCache", home ? home : "");
    }
    mkdir(dir, 0700);
    snprintf(path, sizeof path, "%s/7", dir);
    if (mkdir(path, 0700) && errno != EEXIST) return wrong(path);
    snprintf(begun, sizeof begun, "%s/7/begun", dir);
    snprintf(path, sizeof path, "%s/7/kernels", dir);
    const int fd = open(begun, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, "sass", 4) != 4 || ftruncate(fd, 4)) return wrong(begun);
    close(fd);
    if (rename(begun, path) || access(path, R_OK)) return wrong(path);
    return 0;
}

static int shared_memory(void)
{
    static const char path[] = "/dev/shm/llmq-standin";
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return wrong(path);
    const int bad = ftruncate(fd, 4096);
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (bad || p == MAP_FAILED || unlink(path)) return wrong(path);
    munmap(p, 4096);
    return 0;
}

static int neighbour(void)
{
    void *lib = dlopen("libnvidia-ptxjitcompiler.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!lib) fprintf(stderr, "libcuda.so.1: %s\n", dlerror());
    return lib ? 0 : FAILED;
}

/* Addresses for the memory of all devices, memory that stays where it is, and its own memory by
 * another way. */
static int memory(void)
{
    enum { SIZE = 65536 };
    const size_t wide = (size_t)1 << 38;
    void *range = mmap(NULL, wide, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) return wrong("mmap");
    munmap(range, wide);
    void *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return wrong("mmap");
    int bad = mlock(p, 4096) && errno == EPERM ? wrong("mlock") : 0;
    if (!bad && syscall(SYS_set_mempolicy, 0, NULL, 0) && errno != ENOSYS)
        bad = wrong("set_mempolicy");
    char byte = 1;
    const struct iovec to = { &byte, 1 }, from = { p, 1 };
    if (!bad && process_vm_readv(getpid(), &to, 1, &from, 1, 0) != 1)
        bad = wrong("process_vm_readv");
    munmap(p, SIZE);
    const int event = eventfd(0, EFD_CLOEXEC), fd = memfd_create("nvidia", MFD_CLOEXEC);
    if (!bad && (event < 0 || fd < 0)) bad = wrong("eventfd, memfd_create");
    close(event);
    close(fd);
    return bad;
}

int cuInit(void)
{
    return asked_to_fail(__func__) || modprobe() || node("/dev/nvidiactl") ? FAILED : 0;
}

int cuDevicePrimaryCtxRetain(void)
{
    return asked_to_fail(__func__) || node("/dev/nvidia0") || node("/dev/nvidia-uvm") ||
                   named_thread()
               ? FAILED
               : 0;
}

int cuModuleLoadData(void)
{
    return node("/dev/nvidia0") || node("/dev/nvidia-caps/nvidia-cap1") || neighbour() || cache() ||
                   shared_memory() || memory() || named_thread()
               ? FAILED
               : 0;
}

int cuStreamSynchronize(void) { return cuModuleLoadData(); }

/* As if this were libcublas.so.13. */
int cublasCreate_v2(void)
{
    fprintf(stderr, "libcublas.so.13: created\n");
    return 0;
}

/* Ranks find each other over TCP, also within a process. */
int ncclCommInitAll(void)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(1) };
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return wrong("socket");
    const int r = connect(fd, (const struct sockaddr *)&to, sizeof to);
    const int kept = errno;
    close(fd);
    errno = kept;
    return r == 0 || kept == ECONNREFUSED ? shared_memory() : wrong("connect");
}
