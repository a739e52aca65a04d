/* tools/cli/models.c - see models.h. */
#include "tools/cli/models.h"

#include "base/path.h"
#include "publish/hub/hub.h"
#include "tools/cli/demo.h"
#include "tools/cli/progress.h"

#include <stdlib.h>

const char *models_name(const char *value)
{
    char org[HUB_REPO];
    if (strncmp(value, "hf:", 3) == 0) return value + 3;
    if (lq_exists(value) || !hub_name_is(value)) return NULL;
    snprintf(org, sizeof org, "%.*s", (int)strcspn(value, "/"), value);
    return lq_exists(org) ? NULL : value;
}

static void models_say(const char *text) { prog_say(LOG_WARN, "%s", text); }

static lq_status find_one(cmd_ctx *c, const char **value, opt_files files, lq_err *err)
{
    static const hub_need needs[] = {
        [FILES_MODEL] = HUB_MODEL, [FILES_TEXT] = HUB_TEXT, [FILES_HEADERS] = HUB_HEADERS
    };
    const bool demo = files && *value && demo_is(*value);
    const char *name = demo ? *value : files && *value ? models_name(*value) : NULL;
    const pub_opts o = { .say = models_say, .job = c->job };
    char size[16];
    int i = 0;
    while (i < CMD_FOUND && c->found[i])
        i++;
    if (!name) return LQ_OK;
    hub_found *f = i < CMD_FOUND ? c->found[i] = calloc(1, sizeof *f) : NULL;
    if (!f) return lq_fail(err, LQ_ENOMEM, "out of memory");
    lq_status s = demo ? demo_find(f->path, sizeof f->path, err)
                       : hub_find(f, name, needs[files], false, &o, err);
    prog_end();
    if (!s && f->fetched)
        prog_say(LOG_INFO, "%s: fetched %s, commit %s", *value,
                 opt_size_text(size, sizeof size, (double)f->fetched), f->commit);
    if (!s) *value = f->path;
    return s;
}

/* Each argument and option that names a file. */
static lq_status each_file(cmd_ctx *c, void *opts,
                           lq_status (*fn)(cmd_ctx *c, const char **value, opt_files files,
                                           lq_err *err),
                           lq_err *err)
{
    lq_status s = LQ_OK;
    int at = 0;
    for (const opt_arg *a = c->cmd->args; a->name && at < c->argc && !s; a++)
        for (int i = 0; i < (a->max ? a->max : 1) && at < c->argc && !s; i++)
            s = fn(c, &c->argv[at++], a->files, err);
    for (const opt_group *g = c->cmd->groups; g->rows; g++)
        for (size_t i = 0; i < g->n && !s; i++)
            if (g->rows[i].files)
                s = fn(c, (void *)((uint8_t *)opts + g->base + g->rows[i].off), g->rows[i].files,
                       err);
    return s;
}

lq_status models_find(cmd_ctx *c, void *opts, lq_err *err)
{
    return each_file(c, opts, find_one, err);
}

/* A word that names neither a file nor a model: who writes it has seen it elsewhere. */
static lq_status explain_one(cmd_ctx *c, const char **value, opt_files files, lq_err *err)
{
    (void)c;
    if (files != FILES_MODEL || !*value || !**value || strpbrk(*value, "/:") ||
        strcmp(*value, "-") == 0 || lq_exists(*value) || !strstr(err->msg, *value))
        return LQ_OK;
    return lq_append(err, LQ_ENOENT,
                     ": expected a file, a folder, ORG/NAME of a model on the hub, or demo");
}

void models_explain(cmd_ctx *c, void *opts, lq_err *err) { each_file(c, opts, explain_one, err); }

void models_drop(cmd_ctx *c)
{
    for (int i = 0; i < CMD_FOUND; i++) {
        if (c->found[i]) hub_found_free(c->found[i]);
        free(c->found[i]);
        c->found[i] = NULL;
    }
}
