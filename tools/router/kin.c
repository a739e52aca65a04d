/* tools/router/kin.c - see kin.h. */
#include "tools/router/kin.h"

#include "base/buf.h"
#include "base/os.h"
#include "tools/cli/opt_common.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* What is the router's own: how it is reached, which models there are, and what it keeps for clients. */
static const char *const own[] = {
    "model",
    "host",
    "port",
    "served-model-name",
    "uds",
    "ssl-certfile",
    "ssl-keyfile",
    "api-key",
    "api-key-file",
    "admin-key",
    "admin-key-file",
    "cors-origin",
    "allowed-host",
    "web",
    "access-log",
    "models",
    "max-loaded",
    "models-memory",
    "idle-unload",
    "load-timeout",
    "dry-run",
    "print-limits",
    "file-store",
    "file-store-dir",
    "quantize-cache",
    "json",
    "help",
};

/* What all of them have alike. */
static const char *const shared[] = { "response-store", "response-store-dir" };

static bool is_in(const char *const *names, size_t n, const opt_row *r)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], r->name) == 0) return true;
    return false;
}

static bool is_own(const opt_row *r) { return is_in(own, LQ_COUNT(own), r); }

typedef struct {
    char **v;
    size_t n;
    bool oom;
} line;

static void push(line *l, const char *word)
{
    char **v = realloc(l->v, (l->n + 2) * sizeof *v);
    if (v) l->v = v;
    char *copy = v ? strdup(word) : NULL;
    if (!copy) {
        l->oom = true;
        return;
    }
    v[l->n++] = copy;
    v[l->n] = NULL;
}

static void push_value(line *l, const char *name, const char *value)
{
    lq_buf b = { 0 };
    lq_buf_printf(&b, "--%s=%s", name, value);
    lq_buf_add(&b, "", 1);
    if (b.oom)
        l->oom = true;
    else
        push(l, b.p);
    lq_buf_free(&b);
}

static void push_option(line *l, const opt_row *r, const char *given, const void *field)
{
    char word[64];
    opt_list all;
    switch (r->type) {
    case OPT_FLAG:
    case OPT_TRI:
        snprintf(word, sizeof word, "--%s%s", strcmp(given, "no") == 0 ? "no-" : "", r->name);
        push(l, word);
        break;
    case OPT_LIST:
        memcpy(&all, field, sizeof all);
        for (int i = 0; i < all.n; i++)
            push_value(l, r->name, all.v[i]);
        break;
    default:
        push_value(l, r->name, given);
    }
}

static void push_rows(line *l, const cmd_ctx *c, const opt_row *rows, size_t n, const void *base)
{
    for (size_t i = 0; i < n; i++) {
        const char *given = opt_value(c, rows[i].name);
        if (!given || is_own(&rows[i])) continue;
        push_option(l, &rows[i], given, (const char *)base + rows[i].off);
    }
}

static void free_line(char **v)
{
    for (size_t i = 0; v && v[i]; i++)
        free(v[i]);
    free(v);
}

/* A model's own options are parsed here: what is wrong is said now, not when it is asked for. */
static lq_status check_options(const cmd_row *cmd, const cat_model *m, lq_err *err)
{
    cmd_ctx c;
    bool help;
    line l = { 0 };
    void *opts = calloc(1, cmd->opts_bytes);
    for (char **v = m->options; v && *v; v++)
        push(&l, *v);
    push(&l, m->path);
    if (!opts || l.oom) {
        free(opts);
        free_line(l.v);
        return lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    lq_status s = opt_parse(&c, opts, cmd, (int)l.n, l.v, &help, err);
    if (!s && (help || c.argc != 1))
        s = lq_fail(err, LQ_EUSAGE, "expected options of `llmq serve` alone");
    for (const opt_group *g = cmd->groups; g->rows && !s; g++)
        for (size_t i = 0; i < g->n && !s; i++)
            if (strcmp(g->rows[i].name, "lora") == 0 && opt_given(&c, "lora"))
                s = lq_fail(err, LQ_EUSAGE,
                            "--lora: expected \"adapters\": {\"NAME\": \"PATH\"} beside "
                            "\"options\", which names them for the whole server");
            else if ((is_own(&g->rows[i]) || is_in(shared, LQ_COUNT(shared), &g->rows[i])) &&
                     opt_given(&c, g->rows[i].name))
                s = lq_fail(err, LQ_EUSAGE, "--%s is the whole server's, not one model's",
                            g->rows[i].name);
    if (!help) opt_free(&c, opts);
    free(opts);
    free_line(l.v);
    return s ? lq_wrap(err, s, "options of %.100s", m->names[0]) : LQ_OK;
}

static bool has_own_threads(const cat_model *m)
{
    for (char **v = m->options; v && *v; v++)
        if (strncmp(*v, "--threads", 9) == 0 || strncmp(*v, "-t", 2) == 0) return true;
    return false;
}

static char **make(const char *program, const cmd_ctx *c, const void *opts, const cat_model *m,
                   const char *socket, const kin_more *more)
{
    line l = { 0 };
    push(&l, program);
    push(&l, c->cmd->name);
    push_rows(&l, c, opt_common_rows, OPT_COMMON_N, NULL);
    for (const opt_group *g = c->cmd->groups; g->rows; g++)
        push_rows(&l, c, g->rows, g->n, (const char *)opts + g->base);
    if (more->kept) push_value(&l, "response-store-dir", more->kept);
    if (more->limits[0] && !has_own_threads(m)) push_value(&l, "machine-limits", more->limits);
    for (char **v = m->options; v && *v; v++)
        push(&l, *v);
    for (char **v = m->names; *v; v++)
        push_value(&l, "served-model-name", *v);
    for (char **v = m->adapters; v && *v; v++)
        push_value(&l, "lora", *v);
    if (socket) {
        push_value(&l, "uds", socket);
    } else {
        push(&l, "--dry-run");
        push(&l, "--json");
    }
    push(&l, "--");
    push(&l, m->path);
    if (!l.oom) return l.v;
    free_line(l.v);
    return NULL;
}

void kin_free(keeper_row *rows, int n)
{
    for (int i = 0; rows && i < n; i++) {
        free_line(rows[i].argv);
        free_line(rows[i].size_argv);
    }
    free(rows);
}

lq_status kin_make(keeper_row **out, const cmd_ctx *c, const void *opts, const catalog *cat,
                   const kin_more *more, lq_err *err)
{
    char program[4096], socket[128];
    keeper_row *rows = *out = NULL;
    lq_status s = LQ_OK;
    if (!os_program(program, sizeof program))
        return lq_fail(err, LQ_EIO, "cannot find this program's own file: %s", strerror(errno));
    for (int i = 0; i < cat->n && !s; i++)
        s = check_options(c->cmd, &cat->m[i], err);
    if (!s && (rows = calloc((size_t)cat->n, sizeof *rows)) == NULL)
        s = lq_fail(err, LQ_ENOMEM, "out of memory");
    for (int i = 0; i < cat->n && !s; i++) {
        snprintf(socket, sizeof socket, "%s/%d", more->folder, i);
        rows[i].name = cat->m[i].names[0];
        rows[i].argv = make(program, c, opts, &cat->m[i], socket, more);
        rows[i].size_argv = make(program, c, opts, &cat->m[i], NULL, more);
        if (!rows[i].argv || !rows[i].size_argv) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    *out = rows;
    if (!s) return LQ_OK;
    kin_free(rows, cat->n);
    *out = NULL;
    return s;
}
