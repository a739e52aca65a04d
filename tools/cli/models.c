/* tools/cli/models.c - see models.h. */
#include "tools/cli/models.h"

#include "base/path.h"
#include "publish/hub/hub.h"
#include "tools/cli/progress.h"

#include <stdlib.h>

/* What follows "hf:", or the whole of a name without it; NULL: a path. */
static const char *name_of(const char *value)
{
    char org[HUB_REPO];
    if (strncmp(value, "hf:", 3) == 0) return value + 3;
    if (lq_exists(value) || !hub_name_is(value)) return NULL;
    snprintf(org, sizeof org, "%.*s", (int)strcspn(value, "/"), value);
    return lq_exists(org) ? NULL : value;
}

static void models_say(const char *text) { prog_say(LOG_WARN, "%s", text); }

static lq_status keep(cmd_ctx *c, const char **value, const char *path, lq_err *err)
{
    char **more = realloc(c->found, (size_t)(c->n_found + 1) * sizeof *more);
    if (more) c->found = more;
    char *copy = more ? strdup(path) : NULL;
    if (!copy) return lq_fail(err, LQ_ENOMEM, "out of memory");
    *value = c->found[c->n_found++] = copy;
    return LQ_OK;
}

static lq_status find_one(cmd_ctx *c, const char **value, opt_files files, lq_err *err)
{
    const char *name = files && *value ? name_of(*value) : NULL;
    const pub_opts o = { .say = models_say, .job = c->job };
    char size[16];
    hub_found f;
    if (!name) return LQ_OK;
    lq_status s = hub_find(&f, name, files == FILES_TEXT ? HUB_TEXT : HUB_MODEL, false, &o, err);
    prog_end();
    if (!s && f.fetched)
        prog_say(LOG_INFO, "%s: fetched %s, commit %s", *value,
                 opt_size_text(size, sizeof size, (double)f.fetched), f.commit);
    if (!s) s = keep(c, value, f.path, err);
    hub_found_free(&f);
    return s;
}

lq_status models_find(cmd_ctx *c, void *opts, lq_err *err)
{
    lq_status s = LQ_OK;
    int at = 0;
    for (const opt_arg *a = c->cmd->args; a->name && at < c->argc && !s; a++)
        for (int i = 0; i < (a->max ? a->max : 1) && at < c->argc && !s; i++)
            s = find_one(c, &c->argv[at++], a->files, err);
    for (const opt_group *g = c->cmd->groups; g->rows; g++)
        for (size_t i = 0; i < g->n && !s; i++)
            if (g->rows[i].files)
                s = find_one(c, (void *)((uint8_t *)opts + g->base + g->rows[i].off),
                             g->rows[i].files, err);
    return s;
}
