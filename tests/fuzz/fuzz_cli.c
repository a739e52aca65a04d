/* tests/fuzz/fuzz_cli.c - any lines as the arguments of a command with an option of every type:
 * refused as wrong usage in one line, or taken within the ranges of the table. */
#include "tools/cli/opt.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

typedef struct {
    bool flag;
    opt_tri tri;
    int64_t count;
    size_t size;
    double share;
    const char *out;
    opt_list names;
    int how;
} all_opts;

#define F(field) offsetof(all_opts, field)
static const char *const hows[] = { "plain", "fancy", NULL };
static const opt_row rows[] = {
    { "flag", 'f', OPT_FLAG, F(flag), .help = "x" },
    { "tri", 0, OPT_TRI, F(tri), .help = "x" },
    { "count", 'c', OPT_INT, F(count), .def = "4", .lo = -2, .hi = 1 << 20, .help = "x" },
    { "size", 0, OPT_SIZE, F(size), .def = "1K", .lo = 16, .hi = 1e12, .help = "x" },
    { "share", 0, OPT_FLOAT, F(share), .lo = 0.5, .hi = 2, .def = "1", .help = "x" },
    { "out", 'o', OPT_STR, F(out), .help = "x" },
    { "name", 0, OPT_LIST, F(names), .help = "x" },
    { "how", 0, OPT_ENUM, F(how), .def = "plain", .words = hows, .help = "x" },
};
static const cmd_row command = { .name = "all",
                                 .summary = "x",
                                 .args = { { "ONE", 0, 1, "x", FILES_NONE },
                                           { "MORE", 0, 9, "x", FILES_NONE } },
                                 .groups = { OPT_GROUP("Options", rows, 0) },
                                 .examples = "llmq all\0",
                                 .opts_bytes = sizeof(all_opts) };

static void check(bool ok)
{
    if (!ok) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    enum { MOST = 64 };
    char *argv[MOST + 1], *text = malloc(n + 1);
    int argc = 0;
    if (!text) return 0;
    memcpy(text, data, n);
    text[n] = 0;
    for (char *s = text; argc < MOST;) {
        char *line = strchr(s, '\n');
        argv[argc++] = s;
        if (!line) break;
        *line = 0;
        s = line + 1;
    }
    argv[argc] = NULL;
    all_opts o = { .count = 0 }; /* zeroed, as main gives it */
    cmd_ctx ctx;
    bool help = false;
    lq_err err = { "" };
    if (opt_parse(&ctx, &o, &command, argc, argv, &help, &err)) {
        check(err.msg[0] && !strchr(err.msg, '\n'));
    } else if (!help) {
        check(o.count >= -2 && o.count <= 1 << 20 && o.size >= 16 && o.share >= 0.5 &&
              o.share <= 2);
        check((o.how == 0 || o.how == 1) && ctx.argc <= 10 && ctx.threads >= 0);
        for (int i = 0; i < o.names.n; i++)
            check(o.names.v[i] >= text && o.names.v[i] <= text + n);
        for (int i = 0; i < ctx.argc; i++)
            check(ctx.argv[i] >= text && ctx.argv[i] <= text + n);
    }
    opt_free(&ctx, &o);
    free(text);
    return 0;
}
