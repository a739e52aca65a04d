/* What a server that has given up things can and cannot do, tried in a child process. */
#include "tests/support/check.h"
#include "tools/server/isolate.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* D/model/weights, D/model/linked -> D/blob, D/keys/list, D/logs/, D/secret */
static char dir[64];

static const char *at(const char *name)
{
    static char buf[4][128];
    static int i;
    char *p = buf[i++ % 4];
    snprintf(p, sizeof buf[0], "%s/%s", dir, name);
    return p;
}

static int opened(const char *name, int flags) /* 0 or the errno */
{
    const int fd = open(name, flags | O_CLOEXEC, 0600);
    const int e = fd < 0 ? errno : 0;
    if (fd >= 0) close(fd);
    return e;
}

static void make_files(void)
{
    static const char *const folders[] = { "model", "keys", "logs" };
    static const char *const files[] = { "model/weights", "blob", "keys/list", "secret" };
    strcpy(dir, "/tmp/llmq-isolate-XXXXXX");
    CHECK(mkdtemp(dir), "%s", dir);
    for (int i = 0; i < 3; i++)
        CHECK(mkdir(at(folders[i]), 0700) == 0, "%s", folders[i]);
    for (int i = 0; i < 4; i++)
        CHECK(opened(at(files[i]), O_WRONLY | O_CREAT) == 0, "%s", files[i]);
    CHECK(symlink("../blob", at("model/linked")) == 0, "%s", strerror(errno));
}

static void remove_files(void)
{
    static const char *const all[] = { "model/weights", "model/linked", "blob",    "keys/list",
                                       "keys/fresh",    "secret",       "logs/log" };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        unlink(at(all[i]));
    rmdir(at("model"));
    rmdir(at("keys"));
    rmdir(at("logs"));
    CHECK(rmdir(dir) == 0, "%s is left: %s", dir, strerror(errno));
}

/* `run` in a child that has given up what it can, with so many GPUs; what the test says there counts
 * here. */
static void in_child_of(int gpus, void (*run)(const iso_report *r))
{
    int status = 0;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        iso_report r;
        lq_err err = { "" };
        char model[128], keys[128], log[128];
        strcpy(model, at("model"));
        strcpy(keys, at("keys/list"));
        strcpy(log, at("logs/log"));
        const iso_path paths[] = {
            { model, ISO_MODEL }, { keys, ISO_REPLACED }, { log, ISO_LOG }, { NULL, ISO_SOCKET }
        };
        const iso_want w = { .paths = paths, .n = 4, .gpus = gpus };
        lq_status s = iso_files(&r, &w, &err);
        if (!s) s = iso_calls(&r, &w, &err);
        CHECK(!s, "%s", err.msg);
        run(&r);
        fflush(NULL);
        _exit(check_bad ? 1 : 0);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "the child: %x", status);
}

static void in_child(void (*run)(const iso_report *r)) { in_child_of(0, run); }

/* A kernel without it, or a sanitized build, says so, and the rest of the test cannot be. */
static bool holds(const iso_report *r, const char *part)
{
    if (strstr(r->on, part)) return true;
    CHECK(strstr(r->missing, part), "neither on (%s) nor missing (%s)", r->on, r->missing);
    return false;
}

static void try_files(const iso_report *r)
{
    if (!holds(r, "files")) return;
    CHECK(opened(at("model/weights"), O_RDONLY) == 0, "the model is read");
    CHECK(opened(at("model/linked"), O_RDONLY) == 0, "so is what it links to");
    CHECK(opened(at("keys/list"), O_RDONLY) == 0, "the keys are read");
    CHECK(opened("/proc/self/status", O_RDONLY) == 0, "so is the state of the process");
    CHECK(opened("/dev/null", O_RDWR) == 0, "and /dev/null");
    CHECK(opened(at("logs/log"), O_WRONLY | O_CREAT | O_APPEND) == 0, "the log is made");
    CHECK(unlink(at("logs/log")) != 0 && errno == EACCES, "but not removed");
    CHECK(opened(at("secret"), O_RDONLY) == EACCES, "another file is not read");
    CHECK(opened(at("model/weights"), O_WRONLY) == EACCES, "the model is not written");
    CHECK(opened(at("model/new"), O_WRONLY | O_CREAT) == EACCES, "nothing is put beside it");
    CHECK(opened("/etc/passwd", O_RDONLY) == EACCES, "nor is the list of users read");
    CHECK(symlink("../secret", at("model/leak")) != 0, "no link is made");
}

static void try_replaced(const iso_report *r)
{
    if (!holds(r, "files")) return;
    for (int ms = 0; ms < 400000 && opened(at("keys/fresh"), O_RDONLY) != ENOENT; ms += 10)
        usleep(10000); /* until the parent has renamed it */
    CHECK(opened(at("keys/list"), O_RDONLY) == 0, "what took the file's name is read");
}

static void *nothing(void *arg) { return arg; }

static void try_calls(const iso_report *r)
{
    static char name[] = "/bin/true";
    static char *const args[] = { name, NULL };
    static char *const env[] = { NULL };
    if (!holds(r, "system calls")) return;
    CHECK(execve(args[0], args, env) != 0 && (errno == EPERM || errno == EACCES), "exec");
    const pid_t pid = fork();
    if (pid == 0) _exit(0);
    CHECK(pid < 0 && errno == EPERM, "fork gave %d", (int)pid);
    CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0 && errno == EPERM, "ptrace");
    CHECK(socket(AF_PACKET, SOCK_RAW, 0) < 0 && errno == EPERM, "a socket of raw packets");
    CHECK(setuid(getuid()) != 0 && errno == EPERM, "setuid");
    CHECK(kill(getppid(), 0) != 0 && errno == EPERM, "a signal to another process");
    CHECK(kill(0, 0) != 0 && errno == EPERM, "a signal to the group");
    CHECK(kill(getpid(), 0) == 0 && raise(SIGCONT) == 0, "signals to itself go on");
    const int own = memfd_create("own", MFD_CLOEXEC);
    CHECK(own >= 0 && fchmod(own, 0600) != 0 && errno == EPERM, "rights of a file of its own");
    close(own);
    enum { FCHMODAT2 = 452 };
    CHECK(syscall(FCHMODAT2, AT_FDCWD, "/dev/null", 0600, 0) != 0 && errno == ENOSYS,
          "a call of a newer kernel");
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(1) };
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(fd >= 0, "a socket to listen on");
    CHECK(connect(fd, (const struct sockaddr *)&to, sizeof to) != 0, "nothing listens there");
    pthread_t t;
    CHECK(pthread_create(&t, NULL, nothing, NULL) == 0 && pthread_join(t, NULL) == 0,
          "threads still start");
    char line[128];
    int found = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        found += !strcmp(line, "NoNewPrivs:\t1\n") + !strcmp(line, "Seccomp:\t2\n");
    if (f) fclose(f);
    CHECK(found == 2, "found %d of 2 lines", found);
}

static int connected(void) /* 0 or the errno */
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(1) };
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int e = connect(fd, (const struct sockaddr *)&to, sizeof to) ? errno : 0;
    close(fd);
    return e;
}

static int copied(pid_t from) /* a byte of that process, which has the same memory here; likewise */
{
    char byte;
    const struct iovec to = { &byte, 1 }, at = { dir, 1 };
    return process_vm_readv(from, &to, 1, &at, 1, 0) == 1 ? 0 : errno;
}

static int named(void) /* the thread, by its file */
{
    const int fd = open("/proc/thread-self/comm", O_WRONLY | O_CLOEXEC);
    const int e = fd >= 0 && write(fd, "named", 5) == 5 ? 0 : errno;
    close(fd);
    return e;
}

/* What a connection gives where none may be made: Linux has that since 6.7. */
static int forbidden(void)
{
    return syscall(SYS_landlock_create_ruleset, NULL, 0, 1) >= 4 ? EACCES : ECONNREFUSED;
}

static void try_cpu(const iso_report *r)
{
    if (holds(r, "files")) {
        CHECK(connected() == forbidden(), "found %d", connected());
        CHECK(named() == EACCES, "threads are not named through files");
        CHECK(opened("/dev/shm/llmq-isolate", O_RDWR | O_CREAT) == EACCES, "shared memory");
        CHECK(opened(at("home/.nv/ComputeCache/x"), O_RDWR | O_CREAT) != 0, "a cache");
    }
    if (holds(r, "system calls")) CHECK(copied(getpid()) == EPERM, "nor is memory copied");
}

static void try_gpu(const iso_report *r)
{
    if (holds(r, "files")) {
        CHECK(connected() == forbidden(), "found %d", connected());
        CHECK(named() == 0, "threads are named");
        CHECK(opened("/dev/shm/llmq-isolate", O_RDWR | O_CREAT) == 0 &&
                  unlink("/dev/shm/llmq-isolate") == 0,
              "shared memory");
        CHECK(opened(at("home/.nv/ComputeCache/x"), O_RDWR | O_CREAT) == 0 &&
                  unlink(at("home/.nv/ComputeCache/x")) == 0,
              "a cache");
        CHECK(opened(at("home/.nv/other"), O_RDWR | O_CREAT) == EACCES, "nothing beside it");
        CHECK(opened(at("libs/libx.so.1"), O_RDONLY) == 0, "a library");
        CHECK(opened(at("libs/secret"), O_RDONLY) == EACCES, "nothing else of its folder");
        CHECK(opened(at("libs/libx.so.1"), O_WRONLY) == EACCES, "nor is it written");
        CHECK(opened(at("secret"), O_RDONLY) == EACCES, "another file is not read");
        CHECK(opened("/dev/kmsg", O_WRONLY) != 0 && opened("/dev/tty", O_RDWR) != 0,
              "nor another device");
    }
    if (!holds(r, "system calls")) return;
    CHECK(copied(getpid()) == 0, "a process copies its own memory: %d", copied(getpid()));
    CHECK(copied(getppid()) == EPERM, "no other's");
    CHECK(fork() < 0 && errno == EPERM, "no process is started");
}

static void try_gpus(const iso_report *r)
{
    if (holds(r, "files")) CHECK(connected() == ECONNREFUSED, "found %d", connected());
}

static void *wait_here(void *arg)
{
    (void)arg;
    for (;;)
        pause();
    return NULL;
}

/* As OpenBLAS has threads when it is loaded, and a driver when its device is open. */
static void try_threads(const iso_report *r)
{
    if (!holds(r, "files")) return;
    const bool all = syscall(SYS_landlock_create_ruleset, NULL, 0, 1) >= 8;
    CHECK(!strstr(r->on, "libraries' threads") == all, "found %s", r->on);
}

TEST(threads_that_keep_their_files_are_said)
{
    fflush(NULL);
    int status = 0;
    const pid_t pid = fork();
    if (pid == 0) {
        pthread_t t;
        iso_report r;
        lq_err err = { "" };
        CHECK(pthread_create(&t, NULL, wait_here, NULL) == 0, "a thread");
        CHECK(!iso_files(&r, &(iso_want){ .gpus = 1 }, &err), "%s", err.msg);
        try_threads(&r);
        fflush(NULL);
        _exit(check_bad ? 1 : 0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child: %x", status);
}

TEST(a_gpus_driver_gets_what_it_needs_and_no_more)
{
    static const char *const made[] = { "libs/libx.so.1", "libs/secret", "secret" };
    strcpy(dir, "/tmp/llmq-isolate-XXXXXX");
    CHECK(mkdtemp(dir) && mkdir(at("libs"), 0700) == 0, "%s", dir);
    for (int i = 0; i < 3; i++)
        CHECK(opened(at(made[i]), O_WRONLY | O_CREAT) == 0, "%s", made[i]);
    const char *kept = getenv("HOME");
    char *home = kept ? strdup(kept) : NULL;
    setenv("HOME", at("home"), 1);
    setenv("LD_LIBRARY_PATH", at("libs"), 1);
    in_child(try_cpu);
    CHECK(rmdir(at("home")) != 0 && errno == ENOENT, "no folder is made for a CPU");
    in_child_of(1, try_gpu);
    in_child_of(2, try_gpus);
    if (home) setenv("HOME", home, 1);
    free(home);
    unsetenv("LD_LIBRARY_PATH");
    static const char *const folders[] = { "home/.nv/ComputeCache", "home/.nv", "home", "libs" };
    for (int i = 0; i < 3; i++)
        unlink(at(made[i]));
    for (int i = 0; i < 4; i++)
        rmdir(at(folders[i]));
    CHECK(rmdir(dir) == 0, "%s is left: %s", dir, strerror(errno));
}

static void try_root(const iso_report *r)
{
    if (!holds(r, "files")) return;
    CHECK(opened(at("secret"), O_RDONLY) == EACCES, "another file is not read");
    CHECK(opened(at("made"), O_RDWR | O_CREAT) == EACCES, "nor is one made");
}

TEST(a_drivers_cache_at_the_root_gives_nothing_away)
{
    static const char *const roots[] = { "/", "//", "/tmp/..", "/./" };
    const bool was = access("/.nv", F_OK) == 0;
    strcpy(dir, "/tmp/llmq-isolate-XXXXXX");
    CHECK(mkdtemp(dir) && opened(at("secret"), O_WRONLY | O_CREAT) == 0, "%s", dir);
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        setenv("CUDA_CACHE_PATH", roots[i], 1);
        in_child_of(1, try_root);
    }
    unsetenv("CUDA_CACHE_PATH");
    const char *kept = getenv("HOME");
    char *home = kept ? strdup(kept) : NULL;
    setenv("HOME", "", 1);
    in_child_of(1, try_root);
    CHECK((access("/.nv", F_OK) == 0) == was, "without a home a folder was made at the root");
    if (home) setenv("HOME", home, 1);
    free(home);
    unlink(at("secret"));
    unlink(at("made"));
    CHECK(rmdir(dir) == 0, "%s is left: %s", dir, strerror(errno));
}

TEST(files_that_were_not_named_cannot_be_opened)
{
    make_files();
    in_child(try_files);
    remove_files();
}

TEST(a_file_that_is_replaced_is_read_again)
{
    make_files();
    CHECK(opened(at("keys/fresh"), O_WRONLY | O_CREAT) == 0, "the next keys");
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        usleep(50000);
        _exit(rename(at("keys/fresh"), at("keys/list")) != 0);
    }
    in_child(try_replaced);
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "renamed");
    remove_files();
}

TEST(no_program_and_no_process_can_be_started) { in_child(try_calls); }

TEST(off_changes_nothing_and_required_says_what_is_missing)
{
    iso_report r;
    lq_err err = { "" };
    const iso_want off = { .mode = ISO_OFF }, required = { .mode = ISO_REQUIRED };
    CHECK(!iso_files(&r, &off, &err) && !iso_calls(&r, &off, &err), "off");
    CHECK(!r.on[0] && !r.missing[0], "on %s missing %s", r.on, r.missing);
    CHECK(opened("/etc/passwd", O_RDONLY) == 0, "all as before");
    int status = 0;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        lq_status s = iso_files(&r, &required, &err);
        if (!s) s = iso_calls(&r, &required, &err);
        _exit(s == LQ_OK ? r.missing[0] != 0
                         : s != LQ_EUNSUPPORTED || !strstr(err.msg, "--isolation required: "));
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "%x", status);
}

int main(int argc, char **argv)
{
    RUN(files_that_were_not_named_cannot_be_opened);
    RUN(a_file_that_is_replaced_is_read_again);
    RUN(a_gpus_driver_gets_what_it_needs_and_no_more);
    RUN(a_drivers_cache_at_the_root_gives_nothing_away);
    RUN(threads_that_keep_their_files_are_said);
    RUN(no_program_and_no_process_can_be_started);
    RUN(off_changes_nothing_and_required_says_what_is_missing);
    return check_end();
}
