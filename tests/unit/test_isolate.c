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

/* `run` in a child that has given up what it can; what the test says there counts here. */
static void in_child(void (*run)(const iso_report *r))
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
        lq_status s = iso_files(&r, ISO_AUTO, paths, 4, &err);
        if (!s) s = iso_calls(&r, ISO_AUTO, &err);
        CHECK(!s, "%s", err.msg);
        run(&r);
        fflush(NULL);
        _exit(check_bad ? 1 : 0);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "the child: %x", status);
}

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
    CHECK(!iso_files(&r, ISO_OFF, NULL, 0, &err) && !iso_calls(&r, ISO_OFF, &err), "off");
    CHECK(!r.on[0] && !r.missing[0], "on %s missing %s", r.on, r.missing);
    CHECK(opened("/etc/passwd", O_RDONLY) == 0, "all as before");
    int status = 0;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        lq_status s = iso_files(&r, ISO_REQUIRED, NULL, 0, &err);
        if (!s) s = iso_calls(&r, ISO_REQUIRED, &err);
        _exit(s == LQ_OK ? r.missing[0] != 0
                         : s != LQ_EUNSUPPORTED || !strstr(err.msg, "--isolation required: "));
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "%x", status);
}

int main(int argc, char **argv)
{
    RUN(files_that_were_not_named_cannot_be_opened);
    RUN(a_file_that_is_replaced_is_read_again);
    RUN(no_program_and_no_process_can_be_started);
    RUN(off_changes_nothing_and_required_says_what_is_missing);
    return check_end();
}
