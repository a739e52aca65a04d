/* tools/cli/opt.h - option tables: one row per option parses it, checks its range and prints its help;
 * one row per subcommand carries its options, arguments, examples and function.
 *
 * To add a subcommand `greet`, write tools/cmd_greet.c ...
 *
 *     #include "tools/cmds.h"
 *
 *     typedef struct {
 *         const char *out;    // strings point into argv: valid until the end
 *         int64_t bits;       // OPT_INT
 *         bool loud;          // OPT_FLAG
 *         int how;            // OPT_ENUM: index into the list
 *         opt_model model;    // the options of every command that runs a model
 *     } greet_opts;
 *
 *     static const char *const hows[] = { "plain", "fancy", NULL };
 *     #define F(field) offsetof(greet_opts, field)
 *     static const opt_row rows[] = {
 *         { "out", 'o', OPT_STR, F(out), .arg = "FILE", .required = true, .help = "result" },
 *         { "bits", 0, OPT_INT, F(bits), .def = "4", .lo = 2, .hi = 8, .help = "per code" },
 *         { "loud", 0, OPT_FLAG, F(loud), .help = "in capitals" },
 *         { "how", 0, OPT_ENUM, F(how), .def = "plain", .words = hows, .help = "style" },
 *     };
 *
 *     static lq_status run(const cmd_ctx *c, const void *opts, lq_err *err)
 *     {
 *         const greet_opts *o = opts;
 *         for (int i = 0; i < c->argc; i++) ... c->argv[i] ...
 *         if (c->json) return cmd_print_json(doc, err); // frees doc
 *         printf(...);
 *         return LQ_OK;
 *     }
 *
 *     const cmd_row cmd_greet = {
 *         .name = "greet", .summary = "say hello to somebody",
 *         .args = { { "NAME", 1, 9, "who to greet" } },
 *         .groups = { OPT_GROUP("Options", rows, 0),
 *                     OPT_GROUP("Running the model", opt_model_rows, F(model)) },
 *         .examples = "llmq greet Ada -o hello.txt\0"
 *                     "llmq greet Ada Alan --how fancy -o hello.txt\0",
 *         .opts_bytes = sizeof(greet_opts), .run = run,
 *     };
 *
 * ... and one line `X(greet)` in tools/cmds.h. --threads, --json, --log-level and --help belong to
 * every command and arrive in cmd_ctx.
 *
 * stdout carries results only (with --json one document); messages go through prog_say
 * (tools/cli/progress.h) to stderr. A run function returns a status and fills err; tools/main.c prints
 * `llmq: NAME: message` and turns the status into the exit code. */
#ifndef LLMQ_TOOLS_CLI_OPT_H
#define LLMQ_TOOLS_CLI_OPT_H

#include "base/base.h"

#include <stdio.h>

typedef struct cJSON cJSON;

/* What the field at `off` is:                 written as */
typedef enum {
    OPT_FLAG,  /* bool                         --x                        */
    OPT_TRI,   /* opt_tri                      --x / --no-x               */
    OPT_INT,   /* int64_t                      --x 4, --x=4; words stand for -1, -2, ... */
    OPT_SIZE,  /* size_t, bytes                --x 512M (K M G T: 1024's) */
    OPT_FLOAT, /* double                       --x 0.1                    */
    OPT_STR,   /* const char *                 --x text                   */
    OPT_LIST,  /* opt_list                     --x a --x b                */
    OPT_ENUM,  /* int, index into words        --x word                   */
} opt_type;

typedef enum { OPT_UNSET, OPT_YES, OPT_NO } opt_tri;
static inline bool opt_tri_or(opt_tri t, bool otherwise)
{
    return t == OPT_UNSET ? otherwise : t == OPT_YES;
}

typedef struct {
    const char **v;
    int n;
} opt_list;

/* Does a value name a model, and what of its files does the command read? One on a hub is fetched before
 * the command runs, and the value is then where it is (tools/cli/models.h). */
typedef enum { FILES_NONE, FILES_MODEL, FILES_TEXT, FILES_HEADERS } opt_files;
/* What --help says of a model that a command runs. */
#define OPT_MODEL_HELP                                                                             \
    "a .llmq or .gguf file, a Hugging Face folder, ORG/NAME on the hub, or demo: the small model " \
    "inside llmq"

typedef struct {
    const char *name; /* without the dashes */
    char short_name;  /* 0: none */
    opt_type type;
    size_t off;               /* offsetof(struct, field), relative to the group's base */
    const char *def;          /* default as the user would write it; NULL: zero */
    double lo, hi;            /* range of numbers, both ends in; both 0: any (sizes: >= 0) */
    const char *const *words; /* of OPT_ENUM, and next to the range of OPT_INT; ends with NULL */
    const char *arg;          /* what --help shows for the value; NULL: N, SIZE, X, TEXT */
    const char *help;         /* one sentence, no full stop; default and range are added */
    bool required;
    opt_files files; /* of OPT_STR */
} opt_row;

/* Rows with a common base offset in the command's options struct. A list ends with rows == NULL. */
typedef struct {
    const char *title;
    const opt_row *rows;
    size_t n, base;
} opt_group;
#define OPT_GROUP(title, rows, base)            \
    {                                           \
        (title), (rows), LQ_COUNT(rows), (base) \
    }

/* Positional arguments, in order; max 0 means 1. Only the last may take more than its min. */
typedef struct {
    const char *name;
    int min, max;
    const char *help;
    opt_files files;
} opt_arg;

enum { CMD_ARGS = 4, CMD_GROUPS = 12, CMD_FOUND = 4 };

/* Values of --log-level; each shows what is above it too. */
typedef enum { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level;

typedef struct cmd_row cmd_row;
typedef struct {
    const cmd_row *cmd;
    int argc;          /* positional arguments */
    const char **argv; /* of the process: valid until the end */
    int threads;       /* --threads; 0: every CPU this process may use */
    bool json;
    log_level level;
    const lq_job *job;        /* pass it to long work: draws progress, carries the stop flag */
    const char *const *given; /* per option its value on the command line, or NULL */
    char note[200];           /* of an option with two values, or "" */
    /* A call of the library (tools/library/): the result goes here and nothing is printed; the
     * process is another program's, and is not started again. NULL: the command's own process. */
    cJSON **result;
    struct hub_found *found[CMD_FOUND]; /* models that were named; for models.c */
    /* --quantize (tools/inflight/): MODEL as it was named, and the file that is there instead; NULL:
     * no other file is. load_named tells. */
    const char *named, *packed;
    char unnamed[40]; /* room for the path of one without a name */
} cmd_ctx;

/* What a launcher's processes (mpirun -n 4 llmq ...; base/comm.h) do with a command. */
typedef enum {
    CMD_ONE,    /* they are refused: each would write the same output */
    CMD_SHARED, /* share it (ranks.h) */
    CMD_EACH    /* each says what it is asked */
} cmd_processes;

struct cmd_row {
    const char *name, *summary;
    const char *details;   /* paragraphs under the usage line, or NULL */
    void (*more)(FILE *f); /* prints what another table has to say after them, or NULL */
    opt_arg args[CMD_ARGS + 1];
    opt_group groups[CMD_GROUPS + 1];
    /* What another table says of an option, for --help; "": nothing. NULL: no option has that. */
    void (*note)(char *text, size_t n, const opt_row *row);
    const char *examples; /* command lines, each ended by \0 */
    size_t opts_bytes;    /* of the options struct; it starts zeroed, then the defaults */
    /* Options that do not go together, before models are fetched or quantized for it. NULL: run says
     * all. */
    lq_status (*check)(const cmd_ctx *c, const void *opts, lq_err *err);
    lq_status (*run)(const cmd_ctx *c, const void *opts, lq_err *err);
    cmd_processes processes;
};

/* Was the option on the command line (rather than its default)? `name` is one of the command's. */
bool opt_given(const cmd_ctx *c, const char *name);
/* What it was given as; NULL: it was not, or the command has no such option. */
const char *opt_value(const cmd_ctx *c, const char *name);

/* argv[0..argc) after the subcommand's name. An option that takes one value may stand there twice
 * with the same value, not with two. `opts` has cmd->opts_bytes. Fills ctx, opts.
 * *help: --help was there (LQ_OK, nothing else holds). LQ_EUSAGE names option, value and range.
 * Free with opt_free, also after an error. */
lq_status opt_parse(cmd_ctx *ctx, void *opts, const cmd_row *cmd, int argc, char **argv, bool *help,
                    lq_err *err);
void opt_free(cmd_ctx *ctx, void *opts);
void opt_print_help(FILE *f, const cmd_row *cmd);

/* The nearest of n names within a few edits; NULL when none is near. */
const char *opt_nearest(const char *name, const char *const *names, size_t n);

/* Numbers as users write them; false when `s` is anything else or does not fit. */
bool opt_parse_size(const char *s, size_t *v);
bool opt_parse_float(const char *s, double *v);
/* "512,1024" -> 2 integers within lo..hi; free(*v). what: for the message. */
lq_status opt_parse_ints(const char *s, const char *what, int64_t lo, int64_t hi, int64_t **v,
                         int64_t *n, lq_err *err);
/* 1536 -> "1.5 KiB" in a buffer of at least 16. Returns buf. */
char *opt_size_text(char *buf, size_t n, double bytes);
/* As an option takes it, in whole M, no less than it is: 1536 -> "1M". */
char *opt_limit_text(char *buf, size_t n, double bytes);

/* Print a document to stdout and free it; NULL document: LQ_ENOMEM. */
lq_status cmd_print_json(cJSON *doc, lq_err *err);
/* The command's result: into c->result, or printed. Takes the document over. */
lq_status cmd_give_json(const cmd_ctx *c, cJSON *doc, lq_err *err);
/* Was one printed in this process? Where none was, main prints the error with --json. */
bool cmd_printed_json(void);

#endif
