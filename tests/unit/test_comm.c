/* tests/unit/test_comm.c - base/comm.h: ranks as processes that this test forks. */
#include "base/clock.h"
#include "base/comm.h"
#include "tests/support/check.h"
#include "tests/support/ranks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 5 };

static uint8_t byte_of(int rank, size_t i)
{
    return (uint8_t)(i * 7 + i / 251 + (size_t)rank * 31);
}

static void fill(uint8_t *p, size_t n, int rank)
{
    for (size_t i = 0; i < n; i++)
        p[i] = byte_of(rank, i);
}

static bool is_of(const uint8_t *p, size_t n, int rank)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != byte_of(rank, i)) return false;
    return true;
}

/* Everybody to everybody at once, more than a socket holds; then everything that ranks do together. */
static int exchange(comm *c)
{
    enum { MANY = 3000000 };
    const int rank = comm_rank(c), size = comm_size(c);
    uint8_t *mine = malloc(MANY), *all = malloc((size_t)size * MANY);
    comm_move m[2 * MOST];
    size_t n = 0;
    lq_err err;
    fill(mine, MANY, rank);
    for (int i = 0; i < size; i++) {
        if (i == rank) continue;
        if (comm_start_recv(c, &m[n++], i, 3, all + (size_t)i * MANY, MANY, &err)) return 1;
        if (comm_start_send(c, &m[n++], i, 3, mine, MANY, &err)) return 2;
    }
    if (comm_wait(c, m, n, &err)) return 3;
    for (int i = 0; i < size; i++)
        if (i != rank && !is_of(all + (size_t)i * MANY, MANY, i)) return 4;
    for (int root = 0; root < size; root++) {
        fill(all, MANY, rank);
        if (comm_broadcast(c, root, all, MANY, &err) || !is_of(all, MANY, root)) return 5;
        if (comm_gather(c, root, mine, 1000, all, &err)) return 6;
        for (int i = 0; i < size && rank == root; i++)
            if (!is_of(all + (size_t)i * 1000, 1000, i)) return 7;
    }
    size_t at[MOST + 1] = { 0 };
    for (int i = 0; i < size; i++) /* one has nothing, one more than a socket holds */
        at[i + 1] = at[i] + (i == 0 ? 0 : i == 1 ? MANY : 1000 * (size_t)i);
    memset(all, 0, at[size]);
    fill(all + at[rank], at[rank + 1] - at[rank], rank);
    if (comm_allgather(c, all, at, &err)) return 10;
    for (int i = 0; i < size; i++)
        if (!is_of(all + at[i], at[i + 1] - at[i], i)) return 11;
    if (comm_barrier(c, &err)) return 8;
    int who;
    const lq_status s = comm_agree(c, rank == size - 1 ? LQ_EVALUE : LQ_OK, &who, &err);
    if (s != LQ_EVALUE || who != size - 1) return 9;
    free(mine);
    free(all);
    return 0;
}

TEST(bytes_go_between_all_ranks)
{
    for (int n = 2; n <= MOST; n++) {
        int codes[MOST];
        as_ranks(n, exchange, codes);
        for (int i = 0; i < n; i++)
            CHECK(codes[i] == 0, "rank %d of %d: step %d", i, n, codes[i]);
    }
}

/* Rank 0 sends tags in one order, rank 1 takes them in another; of one tag they stay in order. */
static int tags(comm *c)
{
    enum { N = 6, BYTES = 70000 };
    uint8_t *p = malloc(BYTES);
    lq_err err;
    static const int order[N] = { 4, 5, 0, 1, 2, 3 }; /* tags 2, 2, 0, 0, 1, 1 */
    for (int i = 0; i < N; i++) {
        const int k = comm_rank(c) ? order[i] : i;
        fill(p, BYTES, k);
        if (comm_rank(c) ? comm_recv(c, 0, k / 2, p, BYTES, &err)
                         : comm_send(c, 1, k / 2, p, BYTES, &err))
            return 1;
        if (!is_of(p, BYTES, k)) return 2 + i;
    }
    free(p);
    return 0;
}

TEST(messages_are_told_apart_by_tag_and_keep_their_order)
{
    int codes[2];
    as_ranks(2, tags, codes);
    CHECK(codes[0] == 0 && codes[1] == 0, "codes %d and %d", codes[0], codes[1]);
}

static int killed(comm *c)
{
    char x;
    lq_err err = { "" };
    if (comm_rank(c) == 1) {
        kill(getpid(), SIGKILL);
        pause();
    }
    if (comm_recv(c, 2 - comm_rank(c), 0, &x, 1, &err) != LQ_EIO) return 50;
    if (comm_recv(c, 1, 0, &x, 1, &err) != LQ_EIO) return 51; /* still, and at once */
    for (int i = 0; i < 200 && !comm_is_gone(c, 1); i++)      /* its socket ends before it does */
        nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
    if (!comm_is_gone(c, 1) || comm_is_gone(c, comm_rank(c))) return 53;
    return strstr(err.msg, "rank 1 of 3 is gone") || strstr(err.msg, "is gone") ? 7 : 52;
}

TEST(a_rank_that_is_killed_ends_the_waiting_of_the_others)
{
    int codes[3];
    as_ranks(3, killed, codes);
    CHECK(codes[0] == 7 && codes[1] == 128 + SIGKILL && codes[2] == 7, "codes %d %d %d", codes[0],
          codes[1], codes[2]);
}

static int gives_up(comm *c)
{
    char x;
    lq_err err;
    if (comm_rank(c) == 2) { /* once the others have begun */
        if (comm_recv(c, 0, 1, &x, 1, &err) || comm_recv(c, 1, 1, &x, 1, &err)) return 61;
        comm_abort(c, 33);
        return 33;
    }
    lq_status s = comm_send(c, 2, 1, "x", 1, &err);
    if (!s) s = comm_recv(c, 1 - comm_rank(c), 0, &x, 1, &err);
    nanosleep(&(struct timespec){ .tv_sec = 1 },
              NULL); /* the other is told too before it sees this one's end */
    return s == LQ_EINTR ? comm_ended(c) : 60;
}

TEST(a_rank_that_ends_the_job_tells_its_exit_code)
{
    int codes[3];
    as_ranks(3, gives_up, codes);
    for (int i = 0; i < 3; i++)
        CHECK(codes[i] == 33, "rank %d: %d", i, codes[i]);
}

static atomic_int stop;
static void on_alarm(int sig)
{
    (void)sig;
    atomic_store(&stop, 1);
}

static int stopped(comm *c)
{
    const lq_job job = { .stop = &stop };
    char x;
    lq_err err;
    comm_watch(c, &job);
    signal(SIGALRM, on_alarm);
    ualarm(50000, 0);
    const lq_status s = comm_recv(c, 1 - comm_rank(c), 0, &x, 1, &err);
    return s == LQ_EINTR ? 5 : 1;
}

TEST(waiting_ends_with_the_job)
{
    int codes[2];
    as_ranks(2, stopped, codes);
    CHECK(codes[0] == 5 || codes[1] == 5, "codes %d and %d", codes[0], codes[1]);
}

/* Three times as long as a rank may be silent. */
static int computes(comm *c)
{
    uint8_t x = 5;
    lq_err err = { "" };
    if (comm_rank(c) == 1) nanosleep(&(struct timespec){ .tv_sec = 3 }, NULL);
    if (comm_broadcast(c, 1, &x, 1, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    return 0;
}

TEST(a_rank_that_computes_for_long_is_not_lost)
{
    int codes[3];
    setenv("LLMQ_RANK_TIMEOUT", "1", 1);
    as_ranks(3, computes, codes);
    unsetenv("LLMQ_RANK_TIMEOUT");
    for (int i = 0; i < 3; i++)
        CHECK(codes[i] == 0, "rank %d: %d", i, codes[i]);
}

static int stands_still(comm *c)
{
    pid_t other = getpid();
    lq_err err = { "" };
    if (comm_rank(c) == 1) {
        if (comm_send(c, 0, 0, &other, sizeof other, &err)) return 1;
        kill(other, SIGSTOP);
        return comm_recv(c, 0, 0, &other, sizeof other, &err) == LQ_EIO ? 7 : 2;
    }
    pid_t none;
    if (comm_recv(c, 1, 0, &other, sizeof other, &err)) return 3;
    const lq_status s = comm_recv(c, 1, 0, &none, sizeof none, &err);
    kill(other, SIGCONT);
    return s == LQ_EIO && strstr(err.msg, "rank 1 of 2 is lost: expected a sign of it within 1 s")
               ? 7
               : 4;
}

TEST(a_rank_that_stands_still_is_lost)
{
    int codes[2];
    setenv("LLMQ_RANK_TIMEOUT", "1", 1);
    as_ranks(2, stands_still, codes);
    unsetenv("LLMQ_RANK_TIMEOUT");
    CHECK(codes[0] == 7 && codes[1] == 7, "codes %d and %d", codes[0], codes[1]);
}

TEST(a_process_without_a_launcher_is_the_only_rank)
{
    static const char *const said[] = { "LLMQ_RANKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                        "SLURM_STEP_NUM_TASKS" };
    comm *c;
    lq_err err;
    char x = 3, y = 0;
    int who;
    for (size_t i = 0; i < LQ_COUNT(said); i++)
        unsetenv(said[i]);
    CHECK(comm_open(&c, &err) == LQ_OK && !c, "one rank");
    CHECK(comm_rank(c) == 0 && comm_size(c) == 1 && comm_sharing(c) == 1, "and it says so");
    CHECK(!comm_broadcast(c, 0, &x, 1, &err) && !comm_gather(c, 0, &x, 1, &y, &err) && y == 3,
          "calls are over at once");
    CHECK(!comm_barrier(c, &err) && comm_agree(c, LQ_EIO, &who, &err) == LQ_EIO, "likewise");
    comm_close(c);
}

TEST(sockets_of_no_rank_are_an_error)
{
    static const struct {
        const char *why, *rank, *ranks, *says, *sockets;
    } wrong[] = {
        { "too many", "0", "1025", "LLMQ_RANKS: expected 1 to 1024, found 1025", "none/r" },
        { "no number of ranks", "0", "x", "LLMQ_RANKS: expected 1 to 1024, found x", "none/r" },
        { "beyond the last", "2", "2", "LLMQ_RANK: expected 0 to 1, found 2", "none/r" },
        { "below the first", "-1", "2", "LLMQ_RANK: expected 0 to 1, found -1", "none/r" },
        { "no number", "x", "2", "LLMQ_RANK: expected 0 to 1, found x", "none/r" },
        { "a number and more", "1,", "2", "LLMQ_RANK: expected 0 to 1, found 1,", "none/r" },
        { "nothing", "", "2", "LLMQ_RANK: expected a value beside LLMQ_RANKS, found none",
          "none/r" },
        { "no sockets", "0", "2", "LLMQ_RANK_SOCKETS: expected a value", "" },
    };
    for (size_t i = 0; i < LQ_COUNT(wrong); i++) {
        comm *c;
        lq_err err = { "" };
        setenv("LLMQ_RANK_SOCKETS", wrong[i].sockets, 1);
        setenv("LLMQ_RANK", wrong[i].rank, 1);
        setenv("LLMQ_RANKS", wrong[i].ranks, 1);
        CHECK(comm_open(&c, &err) == LQ_EUSAGE && strstr(err.msg, wrong[i].says), "%s: %s",
              wrong[i].why, err.msg);
    }
    unsetenv("LLMQ_RANK_SOCKETS");
    unsetenv("LLMQ_RANK");
    unsetenv("LLMQ_RANKS");
}

TEST(a_launcher_whose_library_is_missing_is_an_error)
{
    comm *c;
    lq_err err = { "" };
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    setenv("LLMQ_MPI", "libllmq-has-no-such.so", 1);
    CHECK(comm_open(&c, &err) == LQ_EUNSUPPORTED && strstr(err.msg, "OMPI_COMM_WORLD_SIZE says 2"),
          "%s", err.msg);
    setenv("LLMQ_MPI", "libm.so.6", 1);
    CHECK(comm_open(&c, &err) == LQ_EUNSUPPORTED && strstr(err.msg, "found none of MPI_"), "%s",
          err.msg);
    setenv("LLMQ_MPI", "none", 1);
    CHECK(comm_open(&c, &err) == LQ_OK && comm_size(c) == 1, "each on its own");
    unsetenv("LLMQ_MPI");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("OMPI_COMM_WORLD_RANK");
}

/* ---- by MPI ---- */
static char program[4096];

TEST(mpi_moves_the_same_bytes_by_each_launcher_that_is_here)
{
    static const char *const launchers[] = { "mpirun.openmpi", "mpirun.mpich", "mpirun" };
    char command[5000];
    int found = 0;
    setenv("LSAN_OPTIONS", "detect_leaks=0", 1);     /* what libraries of MPI keep to the end */
    setenv("TSAN_OPTIONS", "detect_deadlocks=0", 1); /* the order in which they take their locks */
    /* UCX, which MPICH uses, hooks madvise and takes a lock there, also at the end of a thread,
     * where ThreadSanitizer knows no thread any more: SIGSEGV, of any program. */
    setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1); /* and of Open MPI 5: */
    setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 1);
    for (size_t i = 0; i < LQ_COUNT(launchers); i++) {
        snprintf(command, sizeof command, "command -v %s >/dev/null", launchers[i]);
        if (system(command) || (i == 2 && found)) continue;
        found++;
        snprintf(command, sizeof command, "%s -n 3 '%s' --as-rank", launchers[i], program);
        const int status = system(command);
        CHECK(status == 0, "%s: status %d", launchers[i], status);
    }
    if (!found) CHECK_SKIP("no mpirun here");
}

/* Started by that test. */
static int as_rank_of_mpi(void)
{
    comm *c;
    lq_err err = { "" };
    if (comm_open(&c, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 99;
    }
    if (comm_size(c) != 3) return 98;
    const int code = exchange(c);
    if (code)
        comm_abort(c, code);
    else
        comm_close(c);
    return code;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--as-rank") == 0) return as_rank_of_mpi();
    snprintf(program, sizeof program, "%s", argv[0]);
    RUN(bytes_go_between_all_ranks);
    RUN(messages_are_told_apart_by_tag_and_keep_their_order);
    RUN(a_rank_that_is_killed_ends_the_waiting_of_the_others);
    RUN(a_rank_that_ends_the_job_tells_its_exit_code);
    RUN(waiting_ends_with_the_job);
    RUN(a_rank_that_computes_for_long_is_not_lost);
    RUN(a_rank_that_stands_still_is_lost);
    RUN(a_process_without_a_launcher_is_the_only_rank);
    RUN(sockets_of_no_rank_are_an_error);
    RUN(a_launcher_whose_library_is_missing_is_an_error);
    RUN(mpi_moves_the_same_bytes_by_each_launcher_that_is_here);
    return check_end();
}
