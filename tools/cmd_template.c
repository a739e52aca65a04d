/* tools/cmd_template.c - `llmq template`: conversations to text by a chat template. */
#include "base/file.h"
#include "tools/cmds.h"

#include "formats/source/source.h"
#include "runtime/chat/chat_set.h"
#include "tools/cli/lines.h"

#include <stdlib.h>

typedef struct {
    const char *file;
} template_opts;

#define F(field) offsetof(template_opts, field)
static const opt_row rows[] = {
    { "file", 0, OPT_STR, F(file), .arg = "F.jinja",
      .help = "the template, instead of a model's own" },
};

enum { MAX_TEMPLATE = 4 << 20 };

typedef struct {
    src_source *src;
    chat_set *set;       /* of the model */
    char *text;          /* of --file */
    tmpl_template *tmpl; /* " */
} state;

static lq_status open_model(state *x, const char *path, lq_err *err)
{
    lq_status s = src_open(&x->src, path, &(src_opts){ .no_tensors = true }, err);
    return s ? s : lq_wrap(err, chat_set_open(&x->set, x->src, NULL, err), "%s", path);
}

static lq_status open_file(state *x, const char *path, lq_err *err)
{
    size_t n = 0;
    lq_status s = lq_read_file(&x->text, &n, path, MAX_TEMPLATE, err);
    return s ? s : lq_wrap(err, tmpl_parse(&x->tmpl, x->text, n, err), "%s", path);
}

/* What transformers gives to a template: what the line says, then the model's special tokens. */
static cJSON *variables(const state *x, const cJSON *line)
{
    static const char *const given[] = { "messages",  "tools",
                                         "documents", "add_generation_prompt",
                                         "bos_token", "eos_token" };
    cJSON *vars = cJSON_CreateObject(), *e;
    for (size_t i = 0; i < LQ_COUNT(given); i++)
        if ((e = cJSON_GetObjectItemCaseSensitive(line, given[i])))
            cJSON_AddItemReferenceToObject(vars, given[i], e);
    const cJSON *kwargs = cJSON_GetObjectItemCaseSensitive(line, "kwargs");
    for (e = kwargs ? kwargs->child : NULL; e; e = e->next) {
        cJSON_DeleteItemFromObjectCaseSensitive(vars, e->string);
        cJSON_AddItemReferenceToObject(vars, e->string, e);
    }
    for (e = x->set ? chat_set_tokens(x->set)->child : NULL; e; e = e->next)
        if (!cJSON_GetObjectItemCaseSensitive(vars, e->string))
            cJSON_AddStringToObject(vars, e->string, e->valuestring);
    if (!cJSON_GetObjectItemCaseSensitive(vars, "tools")) cJSON_AddNullToObject(vars, "tools");
    if (!cJSON_GetObjectItemCaseSensitive(vars, "documents"))
        cJSON_AddNullToObject(vars, "documents");
    if (!cJSON_GetObjectItemCaseSensitive(vars, "add_generation_prompt"))
        cJSON_AddFalseToObject(vars, "add_generation_prompt");
    return vars;
}

/* The template for a line: that of the name in "chat_template", else by whether there are tools. */
static lq_status pick(const state *x, const cJSON *line, const cJSON *vars, const tmpl_template **t,
                      lq_err *err)
{
    const char *name =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(line, "chat_template"));
    *t = x->tmpl;
    if (*t) return LQ_OK;
    bool tools = cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(vars, "tools"));
    return chat_set_pick(x->set, name, tools, t, err);
}

static lq_status template_line(void *user, const cJSON *line, jw *out, lq_err *err)
{
    const state *x = user;
    char *text = NULL;
    size_t n = 0;
    cJSON *vars = variables(x, line);
    const tmpl_template *t;
    lq_status s = pick(x, line, vars, &t, err);
    if (!s) s = tmpl_render(t, vars, &text, &n, err);
    cJSON_Delete(vars);
    if (s == LQ_ENOMEM) return s;
    jw_open(out, '{');
    jw_key(out, s ? "error" : "rendered");
    jw_str(out, s ? err->msg : text, s ? strlen(err->msg) : n);
    jw_close(out, '}');
    free(text);
    return LQ_OK;
}

static lq_status template_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const template_opts *o = opts;
    state x = { 0 };
    lq_status s;
    if ((o->file != NULL) == (c->argc > 0))
        return lq_fail(err, LQ_EUSAGE, "expected a MODEL or --file F.jinja, and not both");
    s = o->file ? open_file(&x, o->file, err) : open_model(&x, c->argv[0], err);
    if (!s) s = lines_run(template_line, &x, err);
    tmpl_free(x.tmpl);
    chat_set_close(x.set);
    free(x.text);
    src_close(x.src);
    return s;
}

const cmd_row cmd_template = {
    .name = "template",
    .summary = "conversations to text by a chat template",
    .details =
        "Reads JSON lines {\"messages\", \"tools\", \"add_generation_prompt\", \"kwargs\", "
        "\"bos_token\", \"eos_token\"} and writes for each {\"rendered\"}, or {\"error\"} where "
        "the template refuses it. A model's own special tokens stand in for missing ones. Of "
        "several templates, \"chat_template\" in a line names one; else \"tool_use\" is taken "
        "where "
        "tools are given, and \"default\".",
    .args = { { "MODEL", 0, 1, "a model with a chat template", FILES_TEXT } },
    .groups = { OPT_GROUP("Options", rows, 0) },
    .examples = "llmq template model.llmq < conversations.jsonl\0"
                "llmq template --file chat.jinja < conversations.jsonl\0",
    .opts_bytes = sizeof(template_opts),
    .run = template_run,
};
