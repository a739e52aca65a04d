/* examples/chat.c - a conversation: a line in, an answer out, until the input ends.
 *
 *     cc chat.c -o chat $(pkg-config --cflags --libs llmq)
 *     ./chat model.llmq
 *
 * The conversation is JSON, as the chat APIs have it; llmq puts it into the model's own template. A
 * model that was not trained to chat has none: its lines are gone on with as plain text. */
#include <llmq.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Text that grows. */
typedef struct {
    char *p;
    size_t n;
} text;

static void add(text *t, const char *s, size_t n)
{
    char *p = realloc(t->p, t->n + n + 1);
    if (!p) exit(1);
    t->p = p;
    memcpy(t->p + t->n, s, n);
    t->n += n;
    t->p[t->n] = 0;
}

/* As a JSON string. */
static void add_quoted(text *t, const char *s)
{
    char code[8];
    add(t, "\"", 1);
    for (; *s; s++) {
        if ((unsigned char)*s >= 0x20 && *s != '"' && *s != '\\') {
            add(t, s, 1);
            continue;
        }
        snprintf(code, sizeof code, "\\u%04x", (unsigned)(unsigned char)*s);
        add(t, code, 6);
    }
    add(t, "\"", 1);
}

static void add_message(text *t, const char *role, const char *content)
{
    add(t, t->n > 1 ? ",{\"role\":" : "{\"role\":", t->n > 1 ? 9 : 8);
    add_quoted(t, role);
    add(t, ",\"content\":", 11);
    add_quoted(t, content);
    add(t, "}", 1);
}

/* The answer is printed, and kept for the conversation. */
static int32_t take(void *user, const char *piece, size_t n)
{
    add(user, piece, n);
    fwrite(piece, 1, n, stdout);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: chat MODEL\n");
        return 2;
    }
    llmq *m = NULL;
    llmq_error e;
    if (llmq_open(&m, argv[1], NULL, &e)) {
        fprintf(stderr, "chat: %s\n", e.text);
        return 1;
    }
    llmq_sampling how = { .size = sizeof how };
    how.prompt = LLMQ_MESSAGES;
    how.max_tokens = 256;
    how.temperature = 0.7;
    how.top_p = 0.95;

    text talk = { NULL, 0 };
    char line[4096];
    add(&talk, "[", 1);
    while (fgets(line, sizeof line, stdin)) {
        text answer = { NULL, 0 };
        add(&answer, "", 0);
        line[strcspn(line, "\n")] = 0;
        add_message(&talk, "user", line);
        add(&talk, "]", 1);
        int32_t code = llmq_generate(m, how.prompt == LLMQ_TEXT ? line : talk.p, &how, take,
                                     &answer, NULL, &e);
        talk.p[--talk.n] = 0; /* the conversation goes on */
        if (code == LLMQ_EUNSUPPORTED && how.prompt != LLMQ_TEXT) {
            how.prompt = LLMQ_TEXT;
            code = llmq_generate(m, line, &how, take, &answer, NULL, &e);
        }
        printf("\n");
        if (code) fprintf(stderr, "chat: %s\n", e.text);
        add_message(&talk, "assistant", answer.p);
        free(answer.p);
    }
    free(talk.p);
    llmq_close(m);
    return 0;
}
