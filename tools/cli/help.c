/* tools/cli/help.c - `llmq CMD --help` from the rows of tools/cli/opt.h. */
#include "tools/cli/opt_common.h"

enum { WIDTH = 96, INDENT = 30 };

/* Words of `text` from column `col` on, continued at column `indent`. */
static void print_wrapped(FILE *f, const char *text, int col, int indent)
{
    bool first = true;
    while (*text) {
        int len = (int)strcspn(text, " ");
        if (!first && col + 1 + len > WIDTH) {
            fprintf(f, "\n%*s", indent, "");
            col = indent;
        } else if (!first) {
            fputc(' ', f);
            col++;
        }
        fprintf(f, "%.*s", len, text);
        col += len;
        text += len;
        text += strspn(text, " ");
        first = false;
    }
    fputc('\n', f);
}

const char *opt_arg_text(const opt_row *r)
{
    static const char *const by_type[] = {
        [OPT_INT] = "N",     [OPT_SIZE] = "SIZE", [OPT_FLOAT] = "X", [OPT_STR] = "TEXT",
        [OPT_LIST] = "TEXT", [OPT_ENUM] = "WORD", [OPT_FLAG] = NULL, [OPT_TRI] = NULL,
    };
    return r->arg ? r->arg : by_type[r->type];
}

static void print_row(FILE *f, const opt_row *r, const char *note)
{
    char left[128], text[1024];
    const char *arg = opt_arg_text(r);
    int n = snprintf(left, sizeof left, "  %c%c%c --%s%s", r->short_name ? '-' : ' ',
                     r->short_name ? r->short_name : ' ', r->short_name ? ',' : ' ',
                     r->type == OPT_TRI ? "[no-]" : "", r->name);
    if (arg) snprintf(left + n, sizeof left - (size_t)n, " %s", arg);

    size_t used = (size_t)snprintf(text, sizeof text, "%s", r->help);
    char sep = '(';
#define ADD(...)                                                                                 \
    do {                                                                                         \
        if (used < sizeof text)                                                                  \
            used += (size_t)snprintf(text + used, sizeof text - used, sep == '(' ? " (" : "; "); \
        if (used < sizeof text)                                                                  \
            used += (size_t)snprintf(text + used, sizeof text - used, __VA_ARGS__);              \
        sep = ';';                                                                               \
    } while (0)
    if (*note) ADD("%s", note);
    if (r->words) {
        ADD("%s", r->words[0]);
        for (size_t i = 1; r->words[i] && used < sizeof text; i++)
            used += (size_t)snprintf(text + used, sizeof text - used, " | %s", r->words[i]);
    }
    if (r->lo != 0.0 || r->hi != 0.0)
        ADD(r->type == OPT_FLOAT ? "%.15g..%.15g" : "%.0f..%.0f", r->lo, r->hi);
    if (r->type == OPT_LIST) ADD("may be repeated");
    if (r->required)
        ADD("required");
    else if (r->def)
        ADD("default %s", r->def);
#undef ADD
    if (sep == ';' && used < sizeof text) snprintf(text + used, sizeof text - used, ")");

    n = (int)strlen(left);
    if (n + 2 > INDENT)
        fprintf(f, "%s\n%*s", left, INDENT, "");
    else
        fprintf(f, "%-*s", INDENT, left);
    print_wrapped(f, text, INDENT, INDENT);
}

static void print_usage(FILE *f, const cmd_row *cmd)
{
    fprintf(f, "usage: llmq %s", cmd->name);
    for (const opt_arg *a = cmd->args; a->name; a++)
        fprintf(f, " %s%s%s%s", a->min ? "" : "[", a->name, a->max > 1 ? " ..." : "",
                a->min ? "" : "]");
    for (const opt_group *g = cmd->groups; g->rows; g++)
        for (size_t i = 0; i < g->n; i++) {
            const opt_row *r = &g->rows[i];
            if (!r->required) continue;
            if (r->short_name)
                fprintf(f, " -%c %s", r->short_name, opt_arg_text(r));
            else
                fprintf(f, " --%s %s", r->name, opt_arg_text(r));
        }
    fprintf(f, " [options]\n");
}

static void print_paragraphs(FILE *f, const char *text)
{
    while (*text) {
        char line[2048];
        size_t len = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)(len < sizeof line ? len : sizeof line - 1), text);
        print_wrapped(f, line, 0, 0);
        text += len + (text[len] == '\n');
    }
}

static const char *note_of(char *text, size_t n, const cmd_row *cmd, const opt_row *row)
{
    *text = 0;
    if (cmd->note) cmd->note(text, n, row);
    return text;
}

void opt_print_help(FILE *f, const cmd_row *cmd)
{
    char note[512];
    fprintf(f, "llmq %s - %s\n\n", cmd->name, cmd->summary);
    print_usage(f, cmd);
    if (cmd->details) {
        fputc('\n', f);
        print_paragraphs(f, cmd->details);
    }
    if (cmd->more) cmd->more(f);
    if (cmd->args[0].name) fputc('\n', f);
    for (const opt_arg *a = cmd->args; a->name; a++) {
        fprintf(f, "  %-*s", INDENT - 2, a->name);
        print_wrapped(f, a->help, INDENT, INDENT);
    }
    for (const opt_group *g = cmd->groups; g->rows; g++) {
        fprintf(f, "\n%s:\n", g->title);
        for (size_t i = 0; i < g->n; i++)
            print_row(f, &g->rows[i], note_of(note, sizeof note, cmd, &g->rows[i]));
    }
    fprintf(f, "\nOptions of every command:\n");
    for (size_t i = 0; i < OPT_COMMON_N; i++)
        print_row(f, &opt_common_rows[i], "");
    if (!cmd->examples) return;
    fprintf(f, "\nExamples:\n");
    for (const char *e = cmd->examples; *e; e += strlen(e) + 1)
        fprintf(f, "  %s\n", e);
}
