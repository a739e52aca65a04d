/* tools/cli/opt_json.c - see opt_json.h: the object becomes the arguments that say the same. */
#include "tools/cli/opt_json.h"

#include "base/json.h"

#include <stdlib.h>

enum { MAX_JSON = 1 << 20 };

/* Takes over `text`, which may be NULL: out of memory. */
static lq_status add(opt_json *j, char *text, lq_err *err)
{
    if (text && j->argc == j->cap) {
        const int cap = 2 * j->cap + 16;
        char **more = realloc(j->argv, (size_t)cap * sizeof *more);
        if (more) j->argv = more, j->cap = cap;
    }
    if (!text || j->argc == j->cap) {
        free(text);
        return lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    j->argv[j->argc++] = text;
    return LQ_OK;
}

/* "--name=value"; value NULL: "--name". */
static char *argument(const char *no, const char *name, const char *value)
{
    const size_t n = strlen(name) + (value ? strlen(value) : 0) + 8;
    char *text = malloc(n);
    if (text) snprintf(text, n, "--%s%s%s%s", no, name, value ? "=" : "", value ? value : "");
    for (char *p = text ? text + 2 : NULL; p && *p && *p != '='; p++)
        if (*p == '_') *p = '-';
    return text;
}

static const opt_row *row_of(const cmd_row *cmd, const char *name)
{
    for (const opt_group *g = cmd->groups; g->rows; g++)
        for (size_t i = 0; i < g->n; i++) {
            const char *a = g->rows[i].name, *b = name;
            while (*a && (*a == *b || (*a == '-' && *b == '_')))
                a++, b++;
            if (!*a && !*b) return &g->rows[i];
        }
    return NULL;
}

static lq_status add_switch(opt_json *j, const opt_row *r, const char *name, bool yes, lq_err *err)
{
    if (r && r->type != OPT_FLAG && r->type != OPT_TRI)
        return lq_fail(err, LQ_EUSAGE, "--%s: expected a value, found %s", r->name,
                       yes ? "true" : "false");
    if (!yes && r && r->type == OPT_FLAG) return LQ_OK; /* as without */
    return add(j, argument(yes ? "" : "no-", name, NULL), err);
}

static lq_status add_value(opt_json *j, const opt_row *r, const cJSON *v, const char *name,
                           lq_err *err)
{
    char number[40], found[64];
    if (cJSON_IsBool(v)) return add_switch(j, r, name, cJSON_IsTrue(v), err);
    if (cJSON_IsString(v)) return add(j, argument("", name, v->valuestring), err);
    if (!cJSON_IsNumber(v))
        return lq_fail(err, LQ_EUSAGE, "%s: expected a text, a number, true or false, found %s",
                       name, js_describe(found, v));
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(number, sizeof number, "%.*g", digits, v->valuedouble);
        const double back = strtod(number, NULL);
        if (memcmp(&back, &v->valuedouble, sizeof back) == 0) break;
    }
    /* integers as such: 1e+06 is none to an option */
    if (v->valuedouble == floor(v->valuedouble) && fabs(v->valuedouble) < 0x1p63)
        snprintf(number, sizeof number, "%.0f", v->valuedouble);
    return add(j, argument("", name, number), err);
}

/* Of every command, but what they say is the call's to say. */
static bool is_of_the_command_line(const char *name)
{
    static const char *const names[] = { "json", "log-level", "log_level", "help" };
    for (size_t i = 0; i < LQ_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static lq_status add_member(opt_json *j, const cmd_row *cmd, const cJSON *v, bool has_out,
                            lq_err *err)
{
    const opt_row *r = row_of(cmd, v->string);
    if (has_out && r && strcmp(r->name, "out") == 0)
        return lq_fail(err, LQ_EUSAGE, "%s: it is an argument of the call, not an option",
                       v->string);
    if (is_of_the_command_line(v->string))
        return lq_fail(err, LQ_EUSAGE, "%s: it is an option of the command line alone", v->string);
    if (!cJSON_IsArray(v)) return cJSON_IsNull(v) ? LQ_OK : add_value(j, r, v, v->string, err);
    if (!r || r->type != OPT_LIST)
        return lq_fail(err, LQ_EUSAGE, "%s: expected one value, found an array", v->string);
    lq_status s = LQ_OK;
    for (const cJSON *e = v->child; e && !s; e = e->next)
        s = add_value(j, r, e, v->string, err);
    return s;
}

lq_status opt_json_parse(opt_json *j, const cmd_row *cmd, const char *arg, const char *out,
                         const char *json, lq_err *err)
{
    cJSON *doc = NULL;
    lq_err why = { "" };
    bool help;
    *j = (opt_json){ .opts = calloc(1, cmd->opts_bytes ? cmd->opts_bytes : 1) };
    lq_status s = j->opts ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
    if (!s && json && (s = js_parse(&doc, json, strlen(json), MAX_JSON, JS_UNIQUE, &why)))
        s = lq_fail(err, s == LQ_ENOMEM ? s : LQ_EUSAGE, "options: %s", why.msg);
    if (!s && doc && !cJSON_IsObject(doc))
        s = lq_fail(err, LQ_EUSAGE, "options: expected an object");
    if (!s && !arg) s = lq_fail(err, LQ_EUSAGE, "%s: expected a path, found NULL", cmd->name);
    if (!s && out) s = add(j, argument("", "out", out), err);
    for (const cJSON *v = s || !doc ? NULL : doc->child; v && !s; v = v->next)
        s = add_member(j, cmd, v, out != NULL, err);
    if (!s) s = add(j, strdup("--"), err);
    if (!s) s = add(j, strdup(arg), err);
    if (!s) s = opt_parse(&j->c, j->opts, cmd, j->argc, j->argv, &help, err);
    j->c.json = true;
    cJSON_Delete(doc);
    return s;
}

void opt_json_free(opt_json *j)
{
    if (j->c.cmd) opt_free(&j->c, j->opts);
    for (int i = 0; i < j->argc; i++)
        free(j->argv[i]);
    free(j->argv);
    free(j->opts);
    *j = (opt_json){ 0 };
}
