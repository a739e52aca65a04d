/* examples/quantize.c - a checkpoint to a small file, with progress; Ctrl-C stops it, and the same call
 * goes on from there.
 *
 *     cc quantize.c -o quantize $(pkg-config --cflags --libs llmq)
 *     ./quantize models/novels-6m novels.llmq '{"method":"awq","bits":4}' */
#include <llmq.h>
#include <signal.h>
#include <stdio.h>

static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
    (void)sig;
    stop = 1;
}

/* Called a few times a second, from whatever thread works. */
static int32_t show(void *user, const char *what, double done, double total)
{
    (void)user;
    fprintf(stderr, "\r%3.0f%% %-30.30s", total > 0 ? 100 * done / total : 0, what);
    return stop;
}

static void warn(void *user, int32_t level, const char *text)
{
    (void)user;
    if (level <= 1) fprintf(stderr, "\r%s\n", text);
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: quantize SRC DST.llmq [OPTIONS]\n");
        return 2;
    }
    llmq_error e;
    char *report = NULL;
    signal(SIGINT, on_signal); /* the library sets no handler for it */
    llmq_listen(warn, NULL);
    const int32_t code =
        llmq_quantize(argv[1], argv[2], argc == 4 ? argv[3] : NULL, show, NULL, &report, &e);
    fprintf(stderr, "\n");
    if (code) {
        fprintf(stderr, "quantize: %s\n", e.text);
        return code == LLMQ_EINTR ? 130 : 1;
    }
    printf("%s\n", report); /* what `llmq quantize --json` prints */
    llmq_free(report);
    return 0;
}
