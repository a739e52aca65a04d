/* tools/cmd_template.c - `llmq template`: conversations to text by a chat template. */
#include "tools/cmds.h"

#include "formats/source.h"
#include "runtime/tmpl.h"
#include "tools/lines.h"

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
    cJSON *config; /* tokenizer_config.json, or NULL */
    char *text;    /* of --file */
    char *copy;    /* of a template within the config */
    tmpl_template *tmpl;
} state;

/* "chat_template": a text, or a list of named ones, of which "default" or the first is taken. */
static const char *config_template(const cJSON *config)
{
    const cJSON *t = cJSON_GetObjectItemCaseSensitive(config, "chat_template"), *e, *best = NULL;
    if (cJSON_IsString(t)) return t->valuestring;
    cJSON_ArrayForEach(e, t)
    {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(e, "name"));
        if (!best || (name && strcmp(name, "default") == 0)) best = e;
    }
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(best, "template"));
}

static lq_status open_model(state *x, const char *path, lq_err *err)
{
    lq_status s = src_open(&x->src, path, &(src_opts){ 0 }, err);
    if (s) return s;
    const src_blob *b = src_find_blob(x->src, "tokenizer_config.json");
    if (b) s = jt_parse(&x->config, (const char *)b->data, b->bytes, 0, err);
    if (s) return lq_wrap(err, s, "%s: tokenizer_config.json", path);
    b = src_find_blob(x->src, "chat_template.jinja");
    if (b)
        return lq_wrap(err, tmpl_parse(&x->tmpl, (const char *)b->data, b->bytes, err), "%s", path);
    const char *t = config_template(x->config);
    if (!t) return lq_fail(err, LQ_ENOENT, "%s: expected a chat template, found none", path);
    x->copy = malloc(strlen(t) + 1);
    if (!x->copy) return lq_fail(err, LQ_ENOMEM, "out of memory");
    return lq_wrap(err, tmpl_parse(&x->tmpl, x->copy, jt_copy(x->copy, t), err), "%s", path);
}

static lq_status open_file(state *x, const char *path, lq_err *err)
{
    size_t n = 0;
    lq_status s = lq_read_file(&x->text, &n, path, MAX_TEMPLATE, err);
    return s ? s : lq_wrap(err, tmpl_parse(&x->tmpl, x->text, n, err), "%s", path);
}

/* A special token of the config: a text or {"content": text}. */
static const char *config_token(const cJSON *config, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(config, name);
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(v, "content");
    return cJSON_GetStringValue(content ? content : v);
}

/* What transformers gives to a template: what the line says, then the model's special tokens. */
static cJSON *variables(const state *x, const cJSON *line)
{
    static const char *const given[] = { "messages",  "tools",
                                         "documents", "add_generation_prompt",
                                         "bos_token", "eos_token" };
    static const char *const tokens[] = { "bos_token", "eos_token", "unk_token", "pad_token" };
    cJSON *vars = cJSON_CreateObject(), *e;
    for (size_t i = 0; i < LQ_COUNT(given); i++)
        if ((e = cJSON_GetObjectItemCaseSensitive(line, given[i])))
            cJSON_AddItemReferenceToObject(vars, given[i], e);
    const cJSON *kwargs = cJSON_GetObjectItemCaseSensitive(line, "kwargs");
    for (e = kwargs ? kwargs->child : NULL; e; e = e->next) {
        cJSON_DeleteItemFromObjectCaseSensitive(vars, e->string);
        cJSON_AddItemReferenceToObject(vars, e->string, e);
    }
    for (size_t i = 0; i < LQ_COUNT(tokens); i++) {
        const char *text = config_token(x->config, tokens[i]);
        if (text && !cJSON_GetObjectItemCaseSensitive(vars, tokens[i]))
            cJSON_AddStringToObject(vars, tokens[i], text);
    }
    if (!cJSON_GetObjectItemCaseSensitive(vars, "tools")) cJSON_AddNullToObject(vars, "tools");
    if (!cJSON_GetObjectItemCaseSensitive(vars, "documents"))
        cJSON_AddNullToObject(vars, "documents");
    if (!cJSON_GetObjectItemCaseSensitive(vars, "add_generation_prompt"))
        cJSON_AddFalseToObject(vars, "add_generation_prompt");
    return vars;
}

static lq_status template_line(void *user, const cJSON *line, jw *out, lq_err *err)
{
    const state *x = user;
    char *text = NULL;
    size_t n = 0;
    cJSON *vars = variables(x, line);
    lq_status s = tmpl_render(x->tmpl, vars, &text, &n, err);
    cJSON_Delete(vars);
    if (s == LQ_ENOMEM) return s;
    jw_open(out, '{');
    jw_key(out, s ? "error" : "rendered");
    jw_str(out, s ? err->msg : text, s ? strlen(err->msg) : n);
    jw_close(out, '}');
    free(text);
    return LQ_OK;
}

static lq_status run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const template_opts *o = opts;
    state x = { 0 };
    lq_status s;
    if ((o->file != NULL) == (c->argc > 0))
        return lq_fail(err, LQ_EUSAGE, "expected a MODEL or --file F.jinja, and not both");
    s = o->file ? open_file(&x, o->file, err) : open_model(&x, c->argv[0], err);
    if (!s) s = lines_run(template_line, &x, err);
    tmpl_free(x.tmpl);
    free(x.copy);
    free(x.text);
    cJSON_Delete(x.config);
    src_close(x.src);
    return s;
}

const cmd_row cmd_template = {
    .name = "template",
    .summary = "conversations to text by a chat template",
    .details =
        "Reads JSON lines {\"messages\", \"tools\", \"add_generation_prompt\", \"kwargs\", "
        "\"bos_token\", \"eos_token\"} and writes for each {\"rendered\"}, or {\"error\"} where "
        "the template refuses it. A model's own special tokens stand in for missing ones.",
    .args = { { "MODEL", 0, 1, "a model with a chat template" } },
    .groups = { OPT_GROUP("Options", rows, 0) },
    .examples = "llmq template model.llmq < conversations.jsonl\0"
                "llmq template --file chat.jinja < conversations.jsonl\0",
    .opts_bytes = sizeof(template_opts),
    .run = run,
};
