/* tools/cli/man.c - see man.h. */
#include "tools/cli/man.h"

#include "base/version.h"
#include "tools/cli/opt_common.h"

/* Text for roff: '-' and '\' as they are, and no line that begins with a request. */
static void put_text(FILE *f, const char *s)
{
    bool start = true;
    for (; *s; s++) {
        if (start && (*s == '.' || *s == '\'')) fputs("\\&", f);
        if (*s == '-')
            fputs("\\-", f);
        else if (*s == '\\')
            fputs("\\(rs", f);
        else
            fputc(*s, f);
        start = *s == '\n';
    }
}

static void put_title(FILE *f, const char *command)
{
    fprintf(f, ".TH LLMQ%s", command ? "\\-" : "");
    for (const char *p = command; p && *p; p++)
        fputc(*p >= 'a' && *p <= 'z' ? *p - 'a' + 'A' : *p, f);
    fprintf(f, " 1 \"\" \"llmq %s\" \"llmq\"\n.SH NAME\nllmq%s%s \\- ", LLMQ_VERSION,
            command ? "\\-" : "", command ? command : "");
}

static void put_range(FILE *f, const opt_row *r)
{
    char range[80] = "";
    const bool has = r->lo != 0.0 || r->hi != 0.0;
    if (has) snprintf(range, sizeof range, "%.15g..%.15g", r->lo, r->hi);
    if (has || r->words) fputs(" One of ", f);
    put_text(f, range);
    for (size_t i = 0; r->words && r->words[i]; i++) {
        if (i || has) fputs(", ", f);
        put_text(f, r->words[i]);
    }
    if (has || r->words) fputc('.', f);
    if (r->type == OPT_LIST) fputs(" May be repeated.", f);
    if (r->required) fputs(" Required.", f);
    if (!r->required && r->def) {
        fputs(" Default: ", f);
        put_text(f, r->def);
        fputc('.', f);
    }
}

static void put_option(FILE *f, const opt_row *r)
{
    const char *arg = opt_arg_text(r);
    fputs(".TP\n\\fB", f);
    if (r->short_name) fprintf(f, "\\-%c\\fR, \\fB", r->short_name);
    fputs(r->type == OPT_TRI ? "\\-\\-\\fR[\\fBno\\-\\fR]\\fB" : "\\-\\-", f);
    put_text(f, r->name);
    fputs("\\fR", f);
    if (arg) {
        fputs(" \\fI", f);
        put_text(f, arg);
        fputs("\\fR", f);
    }
    fputc('\n', f);
    put_text(f, r->help);
    fputc('.', f);
    put_range(f, r);
    fputc('\n', f);
}

static void put_synopsis(FILE *f, const cmd_row *cmd)
{
    fprintf(f, ".SH SYNOPSIS\n\\fBllmq %s\\fR", cmd->name);
    for (const opt_arg *a = cmd->args; a->name; a++)
        fprintf(f, " %s\\fI%s\\fR%s%s", a->min ? "" : "[", a->name, a->max > 1 ? " ..." : "",
                a->min ? "" : "]");
    fputs(" [\\fIoptions\\fR]\n", f);
}

void man_print_command(FILE *f, const cmd_row *cmd)
{
    put_title(f, cmd->name);
    put_text(f, cmd->summary);
    fputc('\n', f);
    put_synopsis(f, cmd);
    fputs(".SH DESCRIPTION\n", f);
    put_text(f, cmd->details ? cmd->details : cmd->summary);
    fputc('\n', f);
    for (const opt_arg *a = cmd->args; a->name; a++) {
        fprintf(f, ".TP\n\\fI%s\\fR\n", a->name);
        put_text(f, a->help);
        fputs(".\n", f);
    }
    fputs(".SH OPTIONS\n", f);
    for (const opt_group *g = cmd->groups; g->rows; g++) {
        fputs(".SS \"", f);
        put_text(f, g->title);
        fputs("\"\n", f);
        for (size_t i = 0; i < g->n; i++)
            put_option(f, &g->rows[i]);
    }
    fputs(".SS \"Options of every command\"\n", f);
    for (size_t i = 0; i < OPT_COMMON_N; i++)
        put_option(f, &opt_common_rows[i]);
    if (cmd->examples) {
        fputs(".SH EXAMPLES\n.nf\n", f);
        for (const char *e = cmd->examples; *e; e += strlen(e) + 1) {
            put_text(f, e);
            fputc('\n', f);
        }
        fputs(".fi\n", f);
    }
    fputs(".SH SEE ALSO\n.BR llmq (1)\n", f);
}

void man_print_program(FILE *f, const cmd_row *const *cmds)
{
    put_title(f, NULL);
    fputs("quantize a language model, convert it, serve it\n"
          ".SH SYNOPSIS\n\\fBllmq\\fR \\fICOMMAND\\fR [\\fIarguments\\fR] [\\fIoptions\\fR]\n"
          ".SH COMMANDS\n",
          f);
    for (size_t i = 0; cmds[i]; i++) {
        fprintf(f, ".TP\n.BR llmq\\-%s (1)\n", cmds[i]->name);
        put_text(f, cmds[i]->summary);
        fputc('\n', f);
    }
    fputs(".SH EXIT STATUS\n0 done; 1 failed at run time; 2 wrong usage; 3 bad, missing or "
          "unsupported input; 4 a check said no; 130 or 143 interrupted.\n",
          f);
}
