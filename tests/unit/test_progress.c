/* How a command ends that loses a file under its feet. */
#include "tools/cli/progress.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "tests/support/check.h"

enum { READERS = 8, ROUNDS = 40 };

typedef struct {
    pthread_barrier_t start;
    const volatile char *at; /* of a file that has become shorter */
} readers;

static void *read_it(void *user)
{
    readers *r = user;
    pthread_barrier_wait(&r->start);
    return r->at[0] ? r : NULL;
}

/* The child: does not return. */
static void lose_the_file(int file, int said)
{
    static readers r;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    pthread_t t;
    if (ftruncate(file, (off_t)page)) _exit(9);
    void *p = mmap(NULL, page, PROT_READ, MAP_SHARED, file, 0);
    if (p == MAP_FAILED || ftruncate(file, 0) || dup2(said, STDERR_FILENO) < 0) _exit(9);
    r.at = p;
    prog_start(LOG_ERROR);
    if (pthread_barrier_init(&r.start, NULL, READERS)) _exit(9);
    for (int i = 1; i < READERS; i++)
        if (pthread_create(&t, NULL, read_it, &r)) _exit(9);
    read_it(&r);
    _exit(0);
}

/* Its threads find out together. */
TEST(a_file_cut_short_under_many_threads_ends_with_one_sentence)
{
    char path[] = "/tmp/llmq-progress-XXXXXX", text[512];
    const int file = mkstemp(path);
    CHECK(file >= 0, "a temporary file");
    if (file < 0) return;
    unlink(path);
    for (int i = 0; i < ROUNDS; i++) {
        int said[2], status = 0;
        if (pipe(said)) break;
        const pid_t child = fork();
        if (child == 0) lose_the_file(file, said[1]);
        close(said[1]);
        const ssize_t n = read(said[0], text, sizeof text - 1);
        text[n > 0 ? n : 0] = 0;
        const ssize_t more = read(said[0], text + (n > 0 ? n : 0), 1);
        close(said[0]);
        waitpid(child, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1, "round %d: ended with %d", i, status);
        CHECK(more == 0 && n > 1 && strchr(text, '\n') == text + n - 1 &&
                  strstr(text, "was cut short"),
              "round %d: said '%s'", i, text);
        if (check_bad) break;
    }
    close(file);
}

int main(int argc, char **argv)
{
    RUN(a_file_cut_short_under_many_threads_ends_with_one_sentence);
    return check_end();
}
