/* examples/generate.c - one prompt, one answer, written as it comes.
 *
 *     cc generate.c -o generate $(pkg-config --cflags --libs llmq)
 *     ./generate model.llmq "The old house" */
#include <llmq.h>
#include <stdio.h>

/* New text. To return anything but 0 would end the answer here. */
static int32_t print(void *user, const char *text, size_t n)
{
    (void)user;
    fwrite(text, 1, n, stdout);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: generate MODEL PROMPT\n");
        return 2;
    }
    llmq *m = NULL;
    llmq_error e;
    llmq_usage used = { .size = sizeof used };

    /* All that is not set is the default: the likeliest token each time. */
    llmq_sampling how = { .size = sizeof how };
    how.max_tokens = 64;

    if (llmq_open(&m, argv[1], NULL, &e) ||
        llmq_generate(m, argv[2], &how, print, NULL, &used, &e)) {
        fprintf(stderr, "generate: %s\n", e.text);
        llmq_close(m); /* NULL is fine */
        return 1;
    }
    printf("\n");
    fprintf(stderr, "%lld tokens, %s\n", (long long)used.output_tokens,
            used.finish == LLMQ_STOP ? "ended by itself" : "cut at max_tokens");
    llmq_close(m);
    return 0;
}
