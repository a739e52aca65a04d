/* tools/main.c - the llmq command: finds the subcommand, prints its error once, and turns its
 * status into an exit code. */
#include "base/version.h"
#include "tools/bench/blas_core.h"
#include "tools/cli/man.h"
#include "tools/cli/models.h"
#include "tools/cli/ranks.h"
#include "tools/cmds.h"
#include "tools/inflight/inflight.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const cmd_row *const commands[] = {
#define X(name) &cmd_##name,
    COMMANDS(X)
#undef X
        NULL
};
enum { N_COMMANDS = LQ_COUNT(commands) - 1 };

static void print_commands(FILE *f)
{
    fprintf(f, "llmq - quantize a language model, convert it, serve it\n\n"
               "usage: llmq COMMAND [arguments] [options]\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(f, "  %-12s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(f, "\n`llmq COMMAND --help` explains a command, with examples. `llmq --version` prints "
               "the version.\n"
               "Exit codes: 0 done; 1 failed at run time; 2 usage error; 3 bad, missing or "
               "unsupported\ninput; 4 verification failed; 130 or 143 interrupted.\n");
}

/* What a newcomer types first. */
static void print_start(FILE *f)
{
    fputs("llmq - quantize a language model, convert it, serve it\n\n"
          "  llmq doctor                        what this machine can run\n"
          "  llmq run demo 'Once upon a time'   an answer of the small model inside llmq\n"
          "  llmq chat ORG/NAME                 talk to it\n"
          "  llmq quantize ORG/NAME -o M.llmq   make it a quarter of its size\n"
          "  llmq serve M.llmq                  serve it as OpenAI's API, with a page to chat\n\n"
          "`llmq help` lists all commands.\n",
          f);
}

static lq_status find_command(const cmd_row **cmd, const char *name, lq_err *err)
{
    const char *names[N_COMMANDS];
    for (size_t i = 0; i < N_COMMANDS; i++) {
        names[i] = commands[i]->name;
        *cmd = commands[i];
        if (strcmp(name, names[i]) == 0) return LQ_OK;
    }
    const char *near = opt_nearest(name, names, N_COMMANDS);
    return lq_fail(err, LQ_EUSAGE, "unknown command '%.60s'%s%s%s", name,
                   near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static int exit_code(lq_status s)
{
    return s == LQ_EINTR && prog_signal() ? 128 + prog_signal() : lq_exit_code(s);
}

static bool wants_json(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0) return true;
    return false;
}

/* With --json stdout has a document also where there is no result. */
static void print_json_error(lq_status s, const char *message)
{
    cJSON *doc = cJSON_CreateObject(), *e = cJSON_AddObjectToObject(doc, "error");
    cJSON_AddStringToObject(e, "message", message);
    cJSON_AddStringToObject(e, "type", lq_status_text(s));
    cJSON_AddNumberToObject(e, "exit_code", exit_code(s));
    (void)cmd_print_json(doc, NULL);
    (void)fflush(stdout);
}

/* Text that could not be written is a failure. */
static lq_status end_stdout(lq_status s, lq_err *err)
{
    errno = 0; /* of what failed before, the reason is gone */
    if ((fflush(stdout) || ferror(stdout)) && !s)
        return lq_fail(err, LQ_EIO, "stdout: cannot write%s%s", errno ? ": " : "",
                       errno ? strerror(errno) : "");
    return s;
}

/* The last words of a call that finds no command to run, or only prints what there is. */
static int end_plain(lq_status s, int argc, char **argv, lq_err *err)
{
    s = end_stdout(s, err);
    if (s) fprintf(stderr, "llmq: %s\n", err->msg);
    if (s && wants_json(argc, argv)) print_json_error(s, err->msg);
    if (s == LQ_EUSAGE) fprintf(stderr, "llmq: `llmq --help` lists the commands\n");
    return exit_code(s);
}

static int run_command(const cmd_row *cmd, int argc, char **argv)
{
    lq_err err = { "" };
    cmd_ctx c;
    bool help;
    void *opts = calloc(1, cmd->opts_bytes ? cmd->opts_bytes : 1);
    if (!opts) {
        fprintf(stderr, "llmq: %s: out of memory\n", cmd->name);
        return lq_exit_code(LQ_ENOMEM);
    }
    lq_status s = opt_parse(&c, opts, cmd, argc, argv, &help, &err);
    bool parsed = !s;
    if (!s && help) {
        if (comm_said_rank() == 0) opt_print_help(stdout, cmd);
    } else if (!s) {
        c.job = prog_start(c.level);
        if (c.note[0]) prog_say(LOG_WARN, "note: %s", c.note);
        s = ranks_check(cmd, &err);
        if (!s && cmd->check) s = cmd->check(&c, opts, &err);
        if (!s) s = models_find(&c, opts, &err);
        if (!s) s = inflight_make(&c, opts, &err);
        if (!s) s = cmd->run(&c, opts, &err);
        if (s == LQ_ENOENT) models_explain(&c, opts, &err);
        prog_end();
    }
    s = end_stdout(s, &err);
    const char *message = err.msg[0] ? err.msg : lq_status_text(s);
    char who[128];
    if (s) ranks_failed(cmd, s);
    if (s && ranks_tell(who, s)) {
        fprintf(stderr, "llmq: %s: %s%s\n", cmd->name, who, message);
        if (s == LQ_EUSAGE && !parsed)
            fprintf(stderr, "llmq: `llmq %s --help` lists the options\n", cmd->name);
        if (wants_json(argc, argv) && !cmd_printed_json()) print_json_error(s, message);
    }
    models_drop(&c);
    opt_free(&c, opts);
    free(opts);
    return ranks_close(s, exit_code(s));
}

/* A stream that the caller closed must not be the number of the next file that is opened. What
 * takes its place fails when used, as the closed one would. */
static void hold_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

int main(int argc, char **argv)
{
    blas_core_no_threads();
    hold_streams();
    if (argc < 2) {
        print_start(stderr);
        return lq_exit_code(LQ_EUSAGE);
    }
    const char *name = argv[1];
    const cmd_row *cmd = NULL;
    lq_err err = { "" };
    lq_status s = LQ_OK;
    bool help = strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || !strcmp(name, "-h");
    const bool man = help && argc > 2 && strcmp(argv[2], "--man") == 0; /* for make install */
    if (help && argc == 2) {
        print_commands(stdout);
    } else if (man && argc == 3) {
        man_print_program(stdout, commands);
    } else if (man) {
        s = find_command(&cmd, argv[3], &err);
        if (!s) man_print_command(stdout, cmd);
    } else if (help) {
        s = find_command(&cmd, argv[2], &err);
        if (!s) opt_print_help(stdout, cmd);
    } else if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        puts("llmq " LLMQ_VERSION);
    } else {
        s = find_command(&cmd, name, &err);
        if (!s) return run_command(cmd, argc - 2, argv + 2);
    }
    return end_plain(s, argc, argv, &err);
}
