/* runtime/chat/chat_set.c - see chat_set.h. */
#include "runtime/chat/chat_set.h"

#include "base/file.h"
#include "base/json_text.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_TEMPLATES = 32, MAX_NAME = 64 };

typedef struct {
    char name[MAX_NAME];
    tmpl_template *t;
    chat_form form;
    lq_err why;       /* it has no calls */
    char *text;       /* as it was parsed */
    lq_status status; /* of parsing it */
    lq_err err;
} named;

struct chat_set {
    named v[MAX_TEMPLATES];
    size_t n;
    cJSON *tokens;
    const char *tool_format; /* chat_choice's, while it is opened */
};

static lq_status parse_blob(cJSON **out, const src_source *src, const char *name, lq_err *err)
{
    const src_blob *b = src_find_blob(src, name);
    *out = NULL;
    if (!b) return LQ_OK;
    lq_status s = jt_parse(out, (const char *)b->data, b->bytes, 0, err);
    return s ? lq_wrap(err, s, "%s", name) : LQ_OK;
}

/* The calls of a template: as it spells them, as it is told to, or for one that knows no tools in a
 * format that models of many kinds can follow. */
static lq_status find_form(const chat_set *c, named *e, lq_err *err)
{
    lq_status s = form_derive(&e->form, e->t, c->tokens, &e->why);
    e->form.generic = !s && e->form.args == FORM_NO_CALLS && !e->form.shows_tools &&
                      strcmp(e->why.msg, FORM_NO_TOOLS) == 0;
    const char *told = c->tool_format ? c->tool_format : e->form.generic ? "hermes" : NULL;
    return s || !told ? s : form_named(&e->form, told, err);
}

static lq_status add(chat_set *c, const char *name, size_t n_name, const char *text, size_t n,
                     const char *file, lq_err *err)
{
    if (c->n == MAX_TEMPLATES)
        return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected at most %d chat templates", file,
                       MAX_TEMPLATES);
    if (n_name >= MAX_NAME)
        return lq_fail(err, LQ_EFORMAT, "%s: expected a template's name below %d bytes", file,
                       MAX_NAME);
    named *e = &c->v[c->n++];
    memcpy(e->name, name, n_name);
    e->text = strndup(text, n);
    if (!e->text) return lq_fail(err, LQ_ENOMEM, "chat template: out of memory");
    e->status = tmpl_parse(&e->t, text, n, &e->err);
    if (e->status) e->status = lq_wrap(&e->err, e->status, "%s", file);
    bool talks = strcmp(e->name, "default") == 0 || strcmp(e->name, "tool_use") == 0;
    return talks && !e->status ? find_form(c, e, err) : LQ_OK;
}

/* A template of a JSON file; strings of jt_parse need jt_copy. */
static lq_status add_json(chat_set *c, const char *name, const cJSON *v, const char *file,
                          lq_err *err)
{
    const char *s = cJSON_GetStringValue(v);
    if (!s || !name)
        return lq_fail(err, LQ_EFORMAT, "%s: chat_template: expected a name and a text", file);
    char *copy = malloc(strlen(s) + 1);
    if (!copy) return lq_fail(err, LQ_ENOMEM, "chat template: out of memory");
    lq_status st = add(c, name, strlen(name), copy, jt_copy(copy, s), file, err);
    free(copy);
    return st;
}

static lq_status from_json(chat_set *c, const cJSON *config, const char *file, lq_err *err)
{
    const cJSON *t = cJSON_GetObjectItemCaseSensitive(config, "chat_template"), *e;
    lq_status s = LQ_OK;
    if (!t || cJSON_IsNull(t)) return LQ_OK;
    if (cJSON_IsString(t)) return add_json(c, "default", t, file, err);
    if (!cJSON_IsArray(t) && !cJSON_IsObject(t))
        return lq_fail(err, LQ_EFORMAT, "%s: chat_template: expected a text or a list", file);
    for (e = t->child; e && !s; e = e->next) {
        if (cJSON_IsObject(t))
            s = add_json(c, e->string, e, file, err);
        else
            s = add_json(c, cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(e, "name")),
                         cJSON_GetObjectItemCaseSensitive(e, "template"), file, err);
    }
    return s;
}

static lq_status from_files(chat_set *c, const src_source *src, lq_err *err)
{
    static const char prefix[] = "chat_template.", ext[] = ".jinja";
    const size_t n_prefix = sizeof prefix - 1, n_ext = sizeof ext - 1;
    lq_status s = LQ_OK;
    for (size_t i = 0; i < src_n_blobs(src) && !s; i++) {
        const src_blob *b = src_blob_at(src, i);
        const char *name = b->name;
        size_t n = strlen(name);
        if (strcmp(name, "chat_template.jinja") == 0)
            s = add(c, "default", 7, (const char *)b->data, b->bytes, name, err);
        else if (n > n_prefix + n_ext && memcmp(name, prefix, n_prefix) == 0 &&
                 strcmp(name + n - n_ext, ext) == 0)
            s = add(c, name + n_prefix, n - n_prefix - n_ext, (const char *)b->data, b->bytes, name,
                    err);
    }
    return s;
}

/* "<s>", or {"content": "<s>", ...} */
static const cJSON *token_text(const cJSON *const files[2], const char *key)
{
    for (int i = 0; i < 2; i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(files[i], key);
        if (cJSON_IsObject(v)) v = cJSON_GetObjectItemCaseSensitive(v, "content");
        if (cJSON_IsString(v)) return v;
    }
    return NULL;
}

static lq_status read_tokens(chat_set *c, const cJSON *const files[2], lq_err *err)
{
    static const char *const keys[] = { "bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token" };
    c->tokens = cJSON_CreateObject();
    bool ok = c->tokens != NULL;
    for (size_t i = 0; ok && i < LQ_COUNT(keys); i++) {
        const cJSON *t = token_text(files, keys[i]);
        cJSON *copy = t ? cJSON_AddStringToObject(c->tokens, keys[i], t->valuestring) : NULL;
        if (copy) copy->valueint = TMPL_OWN;
        ok = !t || copy;
    }
    return ok ? LQ_OK : lq_fail(err, LQ_ENOMEM, "chat template: out of memory");
}

static void drop_all(chat_set *c)
{
    for (size_t i = 0; i < c->n; i++) {
        tmpl_free(c->v[i].t);
        free(c->v[i].text);
    }
    memset(c->v, 0, sizeof c->v);
    c->n = 0;
}

/* The template of that name or file in place of all. */
static lq_status take_choice(chat_set *c, const char *choice, lq_err *err)
{
    static const char chatml[] =
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    char *text = NULL;
    size_t n = 0;
    lq_status s = LQ_OK;
    for (size_t i = 0; i < c->n && !text; i++)
        if (strcmp(c->v[i].name, choice) == 0) text = strdup(c->v[i].text);
    if (!text && strcmp(choice, "chatml") == 0) text = strdup(chatml);
    if (text)
        n = strlen(text);
    else
        s = lq_read_file(&text, &n, choice, CHAT_MAX_TEMPLATE, err);
    if (s) return s;
    drop_all(c);
    s = add(c, "default", strlen("default"), text, n, choice, err);
    if (!s && c->v[0].status) s = lq_fail(err, c->v[0].status, "%s", c->v[0].err.msg);
    free(text);
    return s;
}

lq_status chat_set_open(chat_set **out, const src_source *src, const chat_choice *choice,
                        lq_err *err)
{
    *out = NULL;
    chat_set *c = calloc(1, sizeof *c);
    if (!c) return lq_fail(err, LQ_ENOMEM, "chat template: out of memory");
    c->tool_format = choice ? choice->tool_format : NULL;
    cJSON *config = NULL, *map = NULL, *old = NULL;
    lq_status s = parse_blob(&config, src, "tokenizer_config.json", err);
    if (!s) s = parse_blob(&map, src, "special_tokens_map.json", err);
    if (!s) s = read_tokens(c, (const cJSON *const[2]){ config, map }, err);
    if (!s) s = from_files(c, src, err);
    if (!s && !c->n) s = from_json(c, config, "tokenizer_config.json", err);
    if (!s && !c->n) s = parse_blob(&old, src, "chat_template.json", err);
    if (!s && !c->n) s = from_json(c, old, "chat_template.json", err);
    if (!s && choice && choice->template) s = take_choice(c, choice->template, err);
    if (!s && !c->n) s = lq_fail(err, LQ_ENOENT, "the model has no chat template");
    cJSON_Delete(config);
    cJSON_Delete(map);
    cJSON_Delete(old);
    c->tool_format = NULL;
    if (s)
        chat_set_close(c);
    else
        *out = c;
    return s;
}

void chat_set_close(chat_set *c)
{
    if (!c) return;
    drop_all(c);
    cJSON_Delete(c->tokens);
    free(c);
}

static const named *find(const chat_set *c, const char *name)
{
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->v[i].name, name) == 0) return &c->v[i];
    return NULL;
}

lq_status chat_set_pick(const chat_set *c, const char *name, bool tools, const tmpl_template **t,
                        lq_err *err)
{
    const named *e = name ? find(c, name) : tools ? find(c, "tool_use") : NULL;
    *t = NULL;
    if (!e && !name) e = find(c, "default");
    if (e) {
        *t = e->t;
        if (e->status && err) *err = e->err;
        return e->status;
    }
    char names[256] = "";
    for (size_t i = 0, at = 0; i < c->n && at < sizeof names; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", c->v[i].name);
    return lq_fail(err, LQ_EVALUE, "chat template: expected one of %s, found %s", names,
                   name ? name : "no choice and no default");
}

const char *chat_set_text(const chat_set *c, const char *name)
{
    const named *e = find(c, name);
    return e ? e->text : NULL;
}

const cJSON *chat_set_tokens(const chat_set *c) { return c->tokens; }

const chat_form *chat_set_form(const chat_set *c, bool tools, const char **why)
{
    static const chat_form none = { .name = "none" };
    const tmpl_template *t;
    lq_err unused;
    *why = "it cannot be used";
    if (chat_set_pick(c, NULL, tools, &t, &unused)) return &none;
    size_t i = 0;
    while (c->v[i].t != t)
        i++;
    *why = c->v[i].why.msg;
    return &c->v[i].form;
}
