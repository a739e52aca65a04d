/* tests/support/check.h - the whole test framework. A test program is a list of TEST functions:
 *
 *     TEST(a_broken_header_is_refused) { CHECK(s == LQ_EFORMAT, "got %s", lq_status_text(s)); }
 *     int main(int argc, char **argv) { RUN(a_broken_header_is_refused); return check_end(); }
 *
 * A failed CHECK prints and the test goes on; check_end prints "N passed, N failed". A test that
 * runs no CHECK fails, unless it says with CHECK_SKIP why it cannot. With arguments only the tests
 * named there run; with --list alone their names are printed. What takes long and is of a kind that another row of its table has runs where
 * LLMQ_HARD is set (make check-hard). */
#ifndef LLMQ_TESTS_SUPPORT_CHECK_H
#define LLMQ_TESTS_SUPPORT_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_passed, check_failed, check_bad;
static int check_listed; /* names alone were asked for */
static int check_ran;    /* did this test run a CHECK? */

#define TEST(name) static void name(void)
#define CHECK(cond, ...)                                                      \
    do {                                                                      \
        __atomic_store_n(&check_ran, 1, __ATOMIC_RELAXED); /* any thread */   \
        if (!(cond)) {                                                        \
            check_bad++;                                                      \
            fprintf(stderr, "%s:%d: CHECK(%s): ", __FILE__, __LINE__, #cond); \
            fprintf(stderr, __VA_ARGS__);                                     \
            fputc('\n', stderr);                                              \
        }                                                                     \
    } while (0)
/* Says why the test is not run here. */
#define CHECK_SKIP(...) (check_ran = 1, fprintf(stderr, __VA_ARGS__), fputc('\n', stderr))
/* Is this a real GPU, where what the test looks at is not to be seen? Then it is skipped. */
static inline int check_real_gpu(const char *why)
{
    if (!getenv("LLMQ_TEST_DEVICE")) return 0;
    CHECK_SKIP("skipped on a real GPU: %s", why);
    return 1;
}

#define RUN(name)                                                                      \
    do {                                                                               \
        if (check_wanted(#name, argc, argv)) {                                         \
            check_bad = check_ran = 0;                                                 \
            name();                                                                    \
            if (!check_ran) check_bad++, fprintf(stderr, "%s runs no CHECK\n", #name); \
            if (check_bad)                                                             \
                check_failed++, fprintf(stderr, "FAILED %s\n", #name);                 \
            else                                                                       \
                check_passed++;                                                        \
        }                                                                              \
    } while (0)

static inline int check_hard(void) { return getenv("LLMQ_HARD") != NULL; }

static inline int check_wanted(const char *name, int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        check_listed = 1;
        puts(name);
        return 0;
    }
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0) return 1;
    return argc < 2;
}

static inline int check_end(void)
{
    if (check_listed) return 0;
    printf("%d passed, %d failed\n", check_passed, check_failed);
    return check_failed != 0;
}

#endif
