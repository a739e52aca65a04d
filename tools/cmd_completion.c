/* tools/cmd_completion.c - `llmq completion SHELL`: what a shell needs to complete llmq's commands and
 * options, out of the tables that parse them. */
#include "tools/cli/opt_common.h"
#include "tools/cmds.h"

static const cmd_row *const commands[] = {
#define X(name) &cmd_##name,
    COMMANDS(X)
#undef X
        NULL
};

/* Calls f for every option of the command, those of every command too. */
static void each_option(const cmd_row *cmd, void (*f)(const cmd_row *cmd, const opt_row *r))
{
    for (const opt_group *g = cmd->groups; g->rows; g++)
        for (size_t i = 0; i < g->n; i++)
            f(cmd, &g->rows[i]);
    for (size_t i = 0; i < OPT_COMMON_N; i++)
        f(cmd, &opt_common_rows[i]);
}

static bool takes_value(const opt_row *r) { return r->type != OPT_FLAG && r->type != OPT_TRI; }

static void put_words(const opt_row *r)
{
    for (size_t i = 0; r->words[i]; i++)
        printf("%s%s", i ? " " : "", r->words[i]);
}

/* ---- bash ---- */
static void bash_name(const cmd_row *cmd, const opt_row *r)
{
    (void)cmd;
    printf(" --%s", r->name);
    if (r->type == OPT_TRI) printf(" --no-%s", r->name);
    if (r->short_name) printf(" -%c", r->short_name);
}

/* The words of an option; of other values, and of arguments, files. */
static void bash_value(const cmd_row *cmd, const opt_row *r)
{
    if (!r->words) return;
    printf("        \"%s --%s\"", cmd->name, r->name);
    if (r->short_name) printf("|\"%s -%c\"", cmd->name, r->short_name);
    printf(") words=\"");
    put_words(r);
    printf("\" ;;\n");
}

static void print_bash(void)
{
    printf(
        "# bash completion of llmq: made by `llmq completion bash`\n"
        "_llmq()\n{\n"
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
        "    local cmd=${COMP_WORDS[1]} words=\n"
        "    COMPREPLY=()\n"
        "    if [ \"$COMP_CWORD\" -eq 1 ] || { [ \"$COMP_CWORD\" -eq 2 ] && [ \"$cmd\" = help ]; "
        "}; then\n"
        "        words=\"help");
    for (size_t i = 0; commands[i]; i++)
        printf(" %s", commands[i]->name);
    printf("\"\n        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n        return\n    fi\n"
           "    case \"$cmd $prev\" in\n");
    for (size_t i = 0; commands[i]; i++)
        each_option(commands[i], bash_value);
    printf("    esac\n    if [ -z \"$words\" ] && [[ $cur == -* ]]; then\n"
           "        case $cmd in\n");
    for (size_t i = 0; commands[i]; i++) {
        printf("        %s) words=\"", commands[i]->name);
        each_option(commands[i], bash_name);
        printf("\" ;;\n");
    }
    printf("        esac\n    fi\n"
           "    [ -n \"$words\" ] && COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
           "}\ncomplete -o bashdefault -o default -F _llmq llmq\n");
}

/* ---- zsh ---- */
/* Text inside '[...]' inside single quotes. */
static void zsh_text(const char *s)
{
    for (; *s; s++)
        if (*s == '\'')
            printf("'\\''");
        else if (*s == '[' || *s == ']' || *s == ':' || *s == '\\')
            printf("\\%c", *s);
        else
            putchar(*s);
}

static void zsh_one(const opt_row *r, const char *no)
{
    printf(" \\\n            '%s--%s%s%s[", r->type == OPT_LIST ? "*" : "", no, r->name,
           takes_value(r) ? "=" : "");
    zsh_text(r->help);
    printf("]");
    if (r->words) {
        printf(":value:(");
        put_words(r);
        printf(")");
    } else if (takes_value(r)) {
        printf(":value:_files");
    }
    printf("'");
}

static void zsh_option(const cmd_row *cmd, const opt_row *r)
{
    (void)cmd;
    zsh_one(r, "");
    if (r->type == OPT_TRI) zsh_one(r, "no-");
}

static void print_zsh(void)
{
    printf("#compdef llmq\n# zsh completion of llmq: made by `llmq completion zsh`\n"
           "_llmq()\n{\n    local -a cmds\n    cmds=(\n");
    for (size_t i = 0; commands[i]; i++) {
        printf("        '%s:", commands[i]->name);
        zsh_text(commands[i]->summary);
        printf("'\n");
    }
    printf("    )\n    if (( CURRENT == 2 )); then\n        _describe command cmds\n"
           "        return\n    fi\n    local cmd=$words[2]\n    shift words\n    (( CURRENT-- ))\n"
           "    case $cmd in\n");
    for (size_t i = 0; commands[i]; i++) {
        printf("        %s)\n            _arguments -s", commands[i]->name);
        each_option(commands[i], zsh_option);
        printf(" \\\n            '*:file:_files' ;;\n");
    }
    printf("    esac\n}\n_llmq \"$@\"\n");
}

/* ---- fish ---- */
static void fish_text(const char *s)
{
    putchar('\'');
    for (; *s; s++) {
        if (*s == '\'' || *s == '\\') putchar('\\');
        putchar(*s);
    }
    putchar('\'');
}

static void fish_one(const cmd_row *cmd, const opt_row *r, const char *no)
{
    printf("complete -c llmq -n '__fish_seen_subcommand_from %s' -l %s%s", cmd->name, no, r->name);
    if (r->short_name && !*no) printf(" -s %c", r->short_name);
    if (r->words) {
        printf(" -x -a '");
        put_words(r);
        printf("'");
    } else if (takes_value(r)) {
        printf(" -r");
    }
    printf(" -d ");
    fish_text(r->help);
    printf("\n");
}

static void fish_option(const cmd_row *cmd, const opt_row *r)
{
    fish_one(cmd, r, "");
    if (r->type == OPT_TRI) fish_one(cmd, r, "no-");
}

static void print_fish(void)
{
    printf("# fish completion of llmq: made by `llmq completion fish`\n");
    for (size_t i = 0; commands[i]; i++) {
        printf("complete -c llmq -f -n __fish_use_subcommand -a %s -d ", commands[i]->name);
        fish_text(commands[i]->summary);
        printf("\n");
    }
    for (size_t i = 0; commands[i]; i++)
        each_option(commands[i], fish_option);
}

static lq_status completion_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    static const struct {
        const char *name;
        void (*print)(void);
    } shells[] = { { "bash", print_bash }, { "zsh", print_zsh }, { "fish", print_fish } };
    (void)opts;
    for (size_t i = 0; i < LQ_COUNT(shells); i++)
        if (strcmp(c->argv[0], shells[i].name) == 0) {
            shells[i].print();
            return LQ_OK;
        }
    return lq_fail(err, LQ_EUSAGE, "SHELL: expected bash, zsh or fish, found '%s'", c->argv[0]);
}

const cmd_row cmd_completion = {
    .name = "completion",
    .summary = "print a shell's completion of commands and options",
    .details = "`make install` puts all three where shells look for them.",
    .args = { { "SHELL", 1, 1, "bash, zsh or fish" } },
    .examples = "source <(llmq completion bash)\0"
                "llmq completion fish > ~/.config/fish/completions/llmq.fish\0",
    .run = completion_run,
    .processes = CMD_EACH,
};
