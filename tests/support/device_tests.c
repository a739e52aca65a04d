/* tests/support/device_tests.c - llmq and every suite of a device as one program, for machines that it is
 * carried to (scripts/bench/gpu-bundle.sh). Each has its own main, renamed by the Makefile, which lists
 * the suites in SUITES(X). LLMQ_TEST_DEVICE as in tests/support/emulated.c, for llmq too.
 *
 *     device-tests                  the names of the suites
 *     device-tests SUITE --list     of its tests
 *     device-tests SUITE [TEST...]  runs them
 *     llmq COMMAND ...              under this name it is that */
#include <stdio.h>
#include <string.h>

#define DECLARE(name) int name##_main(int argc, char **argv);
DECLARE(llmq)
SUITES(DECLARE)

#define ROW(name) { #name, name##_main },
static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} suites[] = { SUITES(ROW) };

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/');
    if (strcmp(slash ? slash + 1 : argv[0], "llmq") == 0) return llmq_main(argc, argv);
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++)
        if (argc < 2)
            puts(suites[i].name);
        else if (strcmp(argv[1], suites[i].name) == 0)
            return suites[i].run(argc - 1, argv + 1);
    if (argc > 1)
        fprintf(stderr, "device-tests: expected the name of a suite, found '%s'\n", argv[1]);
    return argc > 1 ? 2 : 0;
}
