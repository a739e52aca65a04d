/* tests/unit/test_opt.c - option tables: values, ranges, refusals, help; progress lines. */
#include "tests/support/check.h"
#include "tools/cmds.h"

#include <stdlib.h>

typedef struct {
    bool loud;
    opt_tri cache;
    int64_t bits;
    size_t memory;
    double damp;
    const char *out;
    opt_list skip;
    int method;
    opt_model model;
} demo_opts;

static const char *const methods[] = { "rtn", "gptq", "awq", NULL };
#define F(field) offsetof(demo_opts, field)
static const opt_row rows[] = {
    { "loud", 'l', OPT_FLAG, F(loud), .help = "in capitals" },
    { "cache", 0, OPT_TRI, F(cache), .help = "keep it" },
    { "bits", 'b', OPT_INT, F(bits), .def = "4", .lo = 2, .hi = 8, .help = "bits per code" },
    { "memory", 0, OPT_SIZE, F(memory), .def = "1K", .help = "limit" },
    { "damp", 0, OPT_FLOAT, F(damp), .def = "0.01", .lo = 0, .hi = 1, .help = "damping" },
    { "out", 'o', OPT_STR, F(out), .arg = "FILE", .required = true, .help = "where to write" },
    { "skip", 0, OPT_LIST, F(skip), .arg = "REGEX", .help = "leave these" },
    { "method", 'm', OPT_ENUM, F(method), .def = "rtn", .words = methods, .help = "how" },
};

static lq_status run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    (void)c, (void)opts;
    return lq_fail(err, LQ_EUSAGE, "not run here");
}

static const cmd_row demo = {
    .name = "demo",
    .summary = "show",
    .args = { { "SRC", 1, 1, "what to read" }, { "MORE", 0, 2, "more of it" } },
    .groups = { OPT_GROUP("Options", rows, 0),
                OPT_GROUP("Running the model", opt_model_rows, F(model)) },
    .examples = "llmq demo a -o b\0"
                "llmq demo a --bits 3 -o b\0",
    .opts_bytes = sizeof(demo_opts),
    .run = run,
};

/* Split `line` at blanks and parse it. */
static lq_status parse(cmd_ctx *c, demo_opts *o, const char *line, bool *help, lq_err *err)
{
    static char buf[512];
    static char *argv[32];
    int argc = 0;
    snprintf(buf, sizeof buf, "%s", line);
    for (char *p = strtok(buf, " "); p && argc < 32; p = strtok(NULL, " "))
        argv[argc++] = p;
    memset(o, 0, sizeof *o);
    return opt_parse(c, o, &demo, argc, argv, help, err);
}

TEST(every_type_of_option_reaches_its_field)
{
    cmd_ctx c;
    demo_opts o;
    bool help;
    lq_err err;
    lq_status s =
        parse(&c, &o,
              "in -l --no-cache --bits=3 --memory 1.5M --damp 0.5 -oout --skip a --skip=b "
              "-m awq --threads 3 --json --log-level debug --activations int8 x -- --y",
              &help, &err);
    CHECK(!s, "%s", err.msg);
    CHECK(o.loud && o.cache == OPT_NO && o.bits == 3 && o.memory == 1572864, "scalars");
    CHECK(o.damp == 0.5 && strcmp(o.out, "out") == 0 && o.method == 2, "damp, out, method");
    CHECK(o.skip.n == 2 && strcmp(o.skip.v[1], "b") == 0, "list of %d", o.skip.n);
    CHECK(c.argc == 3 && strcmp(c.argv[0], "in") == 0 && strcmp(c.argv[2], "--y") == 0, "%d",
          c.argc);
    CHECK(c.threads == 3 && c.json && c.level == LOG_DEBUG, "common");
    CHECK(opt_acts(&o.model) == MM_I8 && strcmp(opt_device(&o.model), "cpu") == 0, "model");
    CHECK(opt_given(&c, "bits") && !opt_given(&c, "kernels"), "given");
    opt_free(&c, &o);
}

TEST(defaults_are_those_of_the_table)
{
    cmd_ctx c;
    demo_opts o;
    bool help;
    lq_err err;
    lq_status s = parse(&c, &o, "in -o x", &help, &err);
    CHECK(!s, "%s", err.msg);
    CHECK(!o.loud && o.cache == OPT_UNSET && o.bits == 4 && o.memory == 1024 && o.damp == 0.01,
          "scalars");
    CHECK(o.skip.n == 0 && o.method == 0 && c.threads == 0 && !c.json && c.level == LOG_INFO,
          "rest");
    CHECK(opt_tri_or(o.cache, true) && !opt_tri_or(o.cache, false), "tri");
    opt_free(&c, &o);
}

TEST(a_wrong_command_line_is_refused_with_what_was_expected)
{
    static const struct {
        const char *why, *line, *says;
    } t[] = {
        { "above the range", "in -o x --bits 9", "--bits: expected 2..8, found '9'" },
        { "not a number", "in -o x --bits four", "--bits: expected an integer 2..8, found 'four'" },
        { "a fraction", "in -o x --bits 3.5", "--bits: expected an integer" },
        { "overflow", "in -o x --bits 99999999999999999999", "expected an integer 2..8" },
        { "empty value", "in -o x --bits=", "--bits: expected an integer 2..8, found ''" },
        { "bad size", "in -o x --memory 3Q", "--memory: expected a size" },
        { "negative size", "in -o x --memory -1", "--memory: expected a size" },
        { "no number", "in -o x --damp nan", "--damp: expected a number, found 'nan'" },
        { "float range", "in -o x --damp 1.5", "--damp: expected 0..1, found '1.5'" },
        { "no such word", "in -o x -m gpqt",
          "one of rtn gptq awq, found 'gpqt'; did you mean 'gptq'?" },
        { "value to a flag", "in -o x --loud=1", "--loud takes no value" },
        { "value missing", "in -o x --bits", "--bits needs a value" },
        { "required", "in", "--out is required" },
        { "no argument", "-o x", "SRC is missing" },
        { "too many", "a b c d -o x", "unexpected argument 'd'" },
        { "near", "in -o x --bist 3", "unknown option '--bist'; did you mean '--bits'?" },
        { "abbreviated", "in -o x --meth rtn", "did you mean '--method'?" },
        { "near, negated", "in -o x --no-cahce", "did you mean '--no-cache'?" },
        { "no- of a flag", "in -o x --no-loud", "unknown option '--no-loud'" },
        { "far", "in -o x --zzzzzzz", "unknown option '--zzzzzzz'" },
        { "short", "in -o x -z", "unknown option '-z'" },
        { "common range", "in -o x --threads -1", "--threads: expected 0..1024" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        cmd_ctx c;
        demo_opts o;
        bool help;
        lq_err err = { "" };
        lq_status s = parse(&c, &o, t[i].line, &help, &err);
        CHECK(s == LQ_EUSAGE, "%s: status %s", t[i].why, lq_status_text(s));
        CHECK(strstr(err.msg, t[i].says) != NULL, "%s: says '%s'", t[i].why, err.msg);
        opt_free(&c, &o);
    }
}

TEST(sizes_are_powers_of_1024)
{
    static const struct {
        const char *text;
        size_t want;
    } t[] = { { "0", 0 },           { "4096", 4096 },      { "1k", 1024 },
              { "1.5G", 3u << 29 }, { "64MiB", 64 << 20 }, { "2T", (size_t)2 << 40 },
              { "7B", 7 } };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        size_t v = 1;
        CHECK(opt_parse_size(t[i].text, &v) && v == t[i].want, "%s: %zu", t[i].text, v);
    }
    static const char *const bad[] = { "",   "-1",  "K",        "1KK", "1e400", "0x10",
                                       " 1", "1 K", "9999999T", "0.5", "1e-300" };
    for (size_t i = 0; i < LQ_COUNT(bad); i++) {
        size_t v;
        CHECK(!opt_parse_size(bad[i], &v), "'%s' was taken", bad[i]);
    }
    char buf[16];
    CHECK(strcmp(opt_size_text(buf, sizeof buf, 1536), "1.5 KiB") == 0, "%s", buf);
    CHECK(strcmp(opt_size_text(buf, sizeof buf, 1023), "1023 B") == 0, "%s", buf);
    CHECK(strcmp(opt_limit_text(buf, sizeof buf, 3 << 20), "3M") == 0, "%s", buf);
    CHECK(strcmp(opt_limit_text(buf, sizeof buf, (3 << 20) + 1), "4M") == 0, "%s", buf);
}

TEST(lists_of_integers_are_checked_one_by_one)
{
    int64_t *v, n;
    lq_err err;
    CHECK(!opt_parse_ints("1,2,30", "--ids", 0, 100, &v, &n, &err), "%s", err.msg);
    CHECK(n == 3 && v[2] == 30, "n %lld", (long long)n);
    free(v);
    static const char *const bad[] = { "", "1,", ",1", "1;2", "101", "-1", "1,x", " 4", "1, 2" };
    for (size_t i = 0; i < LQ_COUNT(bad); i++)
        CHECK(opt_parse_ints(bad[i], "--ids", 0, 100, &v, &n, &err) == LQ_EUSAGE && !v, "'%s'",
              bad[i]);
}

static char *help_of(const cmd_row *cmd)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f) return NULL;
    opt_print_help(f, cmd);
    fclose(f);
    return text;
}

TEST(help_shows_defaults_ranges_words_and_examples)
{
    char *text = help_of(&demo);
    CHECK(text != NULL, "memory");
    static const char *const want[] = {
        "usage: llmq demo SRC [MORE ...] -o FILE [options]",
        "--bits N",
        "2..8; default 4",
        "--[no-]cache",
        "rtn | gptq | awq; default rtn",
        "may be repeated",
        "--out FILE",
        "(required)",
        "Running the model:",
        "llmq demo a --bits 3 -o b",
        "--threads",
    };
    for (size_t i = 0; text && i < LQ_COUNT(want); i++)
        CHECK(strstr(text, want[i]) != NULL, "no '%s' in\n%s", want[i], text);
    free(text);
    cmd_ctx c;
    demo_opts o;
    bool help;
    CHECK(!parse(&c, &o, "--bogus --help", &help, NULL) && help, "--help anywhere");
    opt_free(&c, &o);
}

/* What a row writes lies within the command's struct, and no other row writes there. */
static void check_fields(const cmd_row *cmd)
{
    static const size_t sizes[] = {
        [OPT_FLAG] = sizeof(bool),     [OPT_TRI] = sizeof(opt_tri),  [OPT_INT] = sizeof(int64_t),
        [OPT_SIZE] = sizeof(size_t),   [OPT_FLOAT] = sizeof(double), [OPT_STR] = sizeof(char *),
        [OPT_LIST] = sizeof(opt_list), [OPT_ENUM] = sizeof(int)
    };
    char *written = calloc(1, cmd->opts_bytes + 1);
    for (const opt_group *g = cmd->groups; g->rows; g++)
        for (size_t k = 0; k < g->n; k++)
            for (size_t b = 0, at = g->base + g->rows[k].off; b < sizes[g->rows[k].type];
                 b++, at++) {
                const bool free_there = at < cmd->opts_bytes && !written[at];
                CHECK(free_there, "%s: --%s: byte %zu of its field", cmd->name, g->rows[k].name, b);
                if (free_there) written[at] = 1;
            }
    free(written);
}

/* Two rows of a command must not share a name; lines must fit; every row explains itself. */
TEST(every_command_has_sound_tables)
{
    static const cmd_row *const all[] = {
#define X(name) &cmd_##name,
        COMMANDS(X)
#undef X
    };
    for (size_t i = 0; i < LQ_COUNT(all); i++) {
        const cmd_row *cmd = all[i];
        CHECK(cmd->summary && cmd->examples && cmd->run, "%s: incomplete", cmd->name);
        check_fields(cmd);
        char *text = help_of(cmd);
        for (const char *p = text; p && *p; p += strcspn(p, "\n") + 1)
            CHECK(strcspn(p, "\n") <= 110, "%s: line too long: %.60s", cmd->name, p);
        free(text);
        void *opts = calloc(1, cmd->opts_bytes ? cmd->opts_bytes : 1);
        char *none[] = { NULL };
        cmd_ctx c;
        bool help;
        lq_err err = { "" };
        lq_status s = opt_parse(&c, opts, cmd, 0, none, &help, &err);
        CHECK(!s || strstr(err.msg, "is required") || strstr(err.msg, "is missing"),
              "%s: defaults: %s", cmd->name, err.msg);
        opt_free(&c, opts);
        free(opts);
        bool taken[128] = { ['h'] = true }; /* -h is --help */
        for (const opt_group *g = cmd->groups; g->rows; g++)
            for (size_t k = 0; k < g->n; k++) {
                unsigned char letter = (unsigned char)g->rows[k].short_name;
                CHECK(letter < 128 && (!letter || !taken[letter]), "%s: -%c twice", cmd->name,
                      letter);
                taken[letter & 127] = true;
                CHECK(g->rows[k].help && *g->rows[k].help, "%s: --%s has no help", cmd->name,
                      g->rows[k].name);
                for (const opt_group *h = g; h->rows; h++)
                    for (size_t m = h == g ? k + 1 : 0; m < h->n; m++)
                        CHECK(strcmp(g->rows[k].name, h->rows[m].name) != 0, "%s: --%s twice",
                              cmd->name, g->rows[k].name);
            }
    }
}

TEST(a_progress_line_has_rate_rest_and_memory)
{
    char line[200];
    prog_line(line, sizeof line, "layers", 5, 20, 10.0, 64u << 20, 8);
    static const char *const want[] = { "layers", "[##......]", " 25%",    "5/20",
                                        "0.5/s",  "left 0:30",  "64.0 MiB" };
    for (size_t i = 0; i < LQ_COUNT(want); i++)
        CHECK(strstr(line, want[i]) != NULL, "no '%s' in '%s'", want[i], line);
    prog_line(line, sizeof line, "x", 0, 0, 0, 0, 0); /* nothing known: no division by zero */
    CHECK(strstr(line, "nan") == NULL && strstr(line, "inf") == NULL, "%s", line);
}

TEST(a_job_of_phases_has_a_bar_for_all_and_one_for_the_phase)
{
    char line[200];
    prog_phase p = { "layer 3/12  rounding", "down  loss 0.41 x rtn", 0.25, 0.5, 90 };
    prog_phase_line(line, sizeof line, &p, 64u << 20, 8);
    CHECK(strcmp(line, "[##......]  25%  left 1:30   64.0 MiB  [##..]  50%  layer 3/12  rounding  "
                       "down  loss 0.41 x rtn") == 0,
          "'%s'", line);
    p = (prog_phase){ "check", "", (double)NAN, 7, -1 }; /* what cannot be known is not shown */
    prog_phase_line(line, sizeof line, &p, 64u << 20, 0);
    CHECK(strcmp(line, "  0%              64.0 MiB  100%  check") == 0, "'%s'", line);
}

int main(int argc, char **argv)
{
    RUN(every_type_of_option_reaches_its_field);
    RUN(defaults_are_those_of_the_table);
    RUN(a_wrong_command_line_is_refused_with_what_was_expected);
    RUN(sizes_are_powers_of_1024);
    RUN(lists_of_integers_are_checked_one_by_one);
    RUN(help_shows_defaults_ranges_words_and_examples);
    RUN(every_command_has_sound_tables);
    RUN(a_progress_line_has_rate_rest_and_memory);
    RUN(a_job_of_phases_has_a_bar_for_all_and_one_for_the_phase);
    return check_end();
}
