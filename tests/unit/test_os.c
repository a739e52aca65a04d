/* tests/unit/test_os.c - base/os.h and base/hangup.h as this system has them. */
#include "base/clock.h"
#include "base/hangup.h"
#include "base/os.h"
#include "tests/support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

TEST(a_file_without_a_name_can_get_one)
{
    char dir[] = "/tmp/llmq-os-XXXXXX", path[64], at[256];
    CHECK(mkdtemp(dir) != NULL, "mkdtemp");
    snprintf(path, sizeof path, "%s/f", dir);
    const int fd = os_can_link() ? os_open_nameless(dir, O_WRONLY, 0600) : -1;
    if (fd >= 0) {
        CHECK(os_path_of(fd, at, sizeof at) && !strncmp(at, dir, strlen(dir)), "it is in '%s'", at);
        CHECK(os_link_nameless(fd, path) && !access(path, R_OK), "%s", strerror(errno));
        CHECK(!os_link_nameless(fd, path) && errno == EEXIST, "a name that is taken");
        unlink(path);
        close(fd);
    }
    CHECK(rmdir(dir) == 0, "the folder is empty");
}

TEST(two_names_change_places)
{
    char dir[] = "/tmp/llmq-os-XXXXXX", a[64], b[64];
    CHECK(mkdtemp(dir) != NULL, "mkdtemp");
    snprintf(a, sizeof a, "%s/a", dir);
    snprintf(b, sizeof b, "%s/b", dir);
    const int fd = open(a, O_CREAT | O_WRONLY, 0600);
    CHECK(fd >= 0 && write(fd, "x", 1) == 1 && mkdir(b, 0700) == 0, "a file and a folder");
    close(fd);
    struct stat st;
    if (os_exchange(a, b)) {
        CHECK(!stat(a, &st) && S_ISDIR(st.st_mode) && !stat(b, &st) && st.st_size == 1, "changed");
        CHECK(rmdir(a) == 0 && unlink(b) == 0, "removed");
    } else {
        CHECK(rmdir(b) == 0 && unlink(a) == 0, "unchanged");
    }
    CHECK(!os_is_mount(dir), "a folder is no mount point");
    CHECK(rmdir(dir) == 0, "nothing else was made");
}

TEST(a_wait_ends_at_its_time)
{
    pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t c;
    os_cond_init(&c);
    pthread_mutex_lock(&m);
    const double now = lq_now();
    CHECK(os_cond_until(&c, &m, now - 1) == ETIMEDOUT, "what is past");
    int rc = 0;
    while (!rc)
        rc = os_cond_until(&c, &m, now + 0.03);
    CHECK(rc == ETIMEDOUT && lq_now() - now >= 0.03, "after %g s: %d", lq_now() - now, rc);
    pthread_mutex_unlock(&m);
    pthread_cond_destroy(&c);
}

static int by_value_from(const void *a, const void *b, void *with)
{
    const int *x = a, *y = b, *values = with;
    return values[*x] - values[*y];
}

TEST(a_comparison_is_given_what_it_needs)
{
    int values[] = { 30, 10, 20 }, order[] = { 0, 1, 2 };
    os_sort(order, 3, sizeof *order, by_value_from, values);
    CHECK(order[0] == 1 && order[1] == 2 && order[2] == 0, "%d %d %d", order[0], order[1],
          order[2]);
}

TEST(a_socket_whose_other_side_has_gone_is_told)
{
    hangup h;
    int one[2], two[2];
    uint64_t ids[8];
    CHECK(hup_open(&h), "open");
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, one) && !socketpair(AF_UNIX, SOCK_STREAM, 0, two),
          "sockets");
    hup_add(&h, one[0], 7);
    hup_add(&h, two[0], 8);
    CHECK(hup_wait(&h, ids, 8, 0) == 0, "both are open");
    CHECK(write(one[1], "abc", 3) == 3 && hup_wait(&h, ids, 8, 20) == 0, "bytes are no end");
    shutdown(one[1], SHUT_WR);
    CHECK(hup_wait(&h, ids, 8, 1000) == 1 && ids[0] == 7, "the first, with bytes unread");
    hup_again(&h, one[0], 7);
    CHECK(hup_wait(&h, ids, 8, 1000) == 1 && ids[0] == 7, "the first again");
    close(two[1]);
    CHECK(hup_wait(&h, ids, 8, 1000) == 1 && ids[0] == 8, "the second");
    CHECK(hup_stop(&h) && hup_wait(&h, ids, 8, 1000) == -1, "stopped");
    hup_close(&h);
    close(one[0]);
    close(one[1]);
    close(two[0]);
}

TEST(descriptors_are_not_inherited)
{
    int fd[2];
    const int s = os_socket(AF_UNIX, SOCK_STREAM, 0, true);
    CHECK(s >= 0 && os_pipe(fd) == 0, "made");
    const int over = os_dup_over(fd[1], fd[0]), all[] = { s, fd[0], fd[1] };
    CHECK(over == fd[0], "over");
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        CHECK(fcntl(all[i], F_GETFD) & FD_CLOEXEC, "%zu", i);
    CHECK(fcntl(s, F_GETFL) & O_NONBLOCK, "does not block");
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        close(all[i]);
}

TEST(the_system_tells_of_itself)
{
    unsigned char a[32] = { 0 }, b[32] = { 0 };
    CHECK(os_random(a, sizeof a) && os_random(b, sizeof b) && memcmp(a, b, sizeof a), "chance");
    os_wipe(a, sizeof a);
    CHECK(a[0] == 0 && !memcmp(a, a + 1, sizeof a - 1), "wiped");
    CHECK(os_memory_free() > 0 && os_memory_used() > 0, "memory");
    CHECK(os_memory_peak() >= os_memory_used() / 2, "the most that was taken");
    char name[64] = "";
    os_cpu_name(name, sizeof name);
    CHECK(name[0] != 0, "the processor");
    CHECK(os_arm_features() <= (OS_ARM_DOT | OS_ARM_I8MM | OS_ARM_BF16), "its instructions");
    os_cpus here;
    os_cpus_allowed(&here);
    CHECK(memcmp(&here, &(os_cpus){ { 0 } }, sizeof here), "a CPU");
    const int why = os_bind(pthread_self(), &here);
    CHECK(why == 0 || why == ENOTSUP, "%s", strerror(why));
}

int main(int argc, char **argv)
{
    RUN(a_file_without_a_name_can_get_one);
    RUN(two_names_change_places);
    RUN(a_wait_ends_at_its_time);
    RUN(a_comparison_is_given_what_it_needs);
    RUN(a_socket_whose_other_side_has_gone_is_told);
    RUN(descriptors_are_not_inherited);
    RUN(the_system_tells_of_itself);
    return check_end();
}
