/* runtime/api/api_ollama_load.c - what Ollama's clients ask before they talk: that a model be loaded (a chat without
 * messages, a generation without a prompt, vectors of no text) or be pulled. The served ones are there already, and stay. */
#include "runtime/api/api_ollama.h"

#include <stdlib.h>
#include <time.h>

/* 0 as a number, or as a text with a unit: "0s". */
static bool is_zero(const cJSON *v)
{
    const char *text = cJSON_GetStringValue(v);
    char *end;
    return cJSON_IsNumber(v) ? v->valuedouble == 0 : text && strtod(text, &end) == 0 && end != text;
}

static bool is_served(const api *a, const char *name)
{
    char *served = api_ollama_name(a, name);
    const bool here = api_serves(a, served ? served : name);
    free(served);
    return here;
}

lq_status api_ollama_find(const api *a, const cJSON *body, const char **name, api_error *e)
{
    const cJSON *v = js_get(body, "model") ? js_get(body, "model") : js_get(body, "name");
    *name = cJSON_GetStringValue(v);
    if (!*name) return api_wrong(e, "model", "a string", v);
    return is_served(a, *name) ? LQ_OK : api_no_model(e, *name);
}

static void reply_loaded(http_req *r, const char *name, bool chat)
{
    jw w = { 0 };
    jw_open(&w, '{');
    jw_put_cstr(&w, "model", name);
    jw_put_time(&w, "created_at", (int64_t)time(NULL));
    if (chat) {
        jw_key(&w, "message");
        jw_json(&w, "{\"role\":\"assistant\",\"content\":\"\"}", 33);
    } else {
        jw_put_cstr(&w, "response", "");
    }
    jw_key(&w, "done");
    jw_bool(&w, true);
    jw_put_cstr(&w, "done_reason", "load");
    jw_close(&w, '}');
    api_reply(r, 200, &w);
}

bool api_ollama_load(api *a, http_req *r, const cJSON *body, bool chat)
{
    api_error e = { 0 };
    const char *name;
    const cJSON *v = js_get(body, chat ? "messages" : "prompt");
    const bool empty = !v || (chat ? cJSON_IsArray(v) && !v->child : api_is(v, ""));
    if (!js_get(body, "model") || !empty) return false;
    if (!api_ready(a, r)) return true;
    lq_status s = api_ollama_find(a, body, &name, &e);
    if (!s && is_zero(js_get(body, "keep_alive")))
        s = api_fail(&e, "keep_alive", "unsupported_value",
                     "keep_alive: unloading the model is not supported");
    if (s)
        api_reply_error(a, r, &e);
    else
        reply_loaded(r, name, chat);
    return true;
}

bool api_ollama_load_vectors(api *a, http_req *r, const cJSON *body, bool old)
{
    api_error e = { 0 };
    jw w = { 0 };
    const char *name;
    const cJSON *v = js_get(body, old ? "prompt" : "input");
    const bool empty = !v || api_is(v, "") || (!old && cJSON_IsArray(v) && !v->child);
    if (!js_get(body, "model") || !empty) return false;
    if (!api_ready(a, r)) return true;
    if (api_ollama_find(a, body, &name, &e)) {
        api_reply_error(a, r, &e);
        return true;
    }
    jw_open(&w, '{');
    if (!old) jw_put_cstr(&w, "model", name);
    jw_key(&w, old ? "embedding" : "embeddings");
    jw_json(&w, "[]", 2);
    jw_close(&w, '}');
    api_reply(r, 200, &w);
    return true;
}

/* ---- POST /api/pull ---- */

static void send_line(http_req *r, const char *key, const char *text)
{
    jw w = { 0 };
    jw_open(&w, '{');
    jw_put_cstr(&w, key, text);
    jw_close(&w, '}');
    lq_buf_add(&w.b, "\n", 1);
    http_stream_write(r, w.b.oom ? NULL : w.b.p, w.b.n);
    jw_free(&w);
}

/* As Ollama does: the first line is out when it looks for the model, so an error is a line, too. */
static void stream_pull(http_req *r, const api_error *e)
{
    http_stream_begin(r);
    send_line(r, "status", "pulling manifest");
    send_line(r, e->status ? "error" : "status", e->status ? e->err.msg : "success");
    http_stream_end(r);
}

void api_post_ollama_pull(void *app, http_req *r)
{
    api *a = app;
    api_error e = { 0 };
    const char *name;
    cJSON *doc = api_parse(r);
    if (!doc) return;
    lq_status s = api_ollama_find(a, doc, &name, &e);
    if (s && e.status == 404) {
        e.err = (lq_err){ 0 };
        s = api_fail(
            &e, "model", "model_not_found",
            "the model '%.200s' is not served here, and llmq serve downloads none: start it "
            "with that model",
            name);
        e.status = 404;
    }
    if (!name || (cJSON_IsFalse(js_get(doc, "stream")) && s)) {
        api_reply_error(a, r, &e);
    } else if (cJSON_IsFalse(js_get(doc, "stream"))) {
        jw w = { 0 };
        jw_open(&w, '{');
        jw_put_cstr(&w, "status", "success");
        jw_close(&w, '}');
        api_reply(r, 200, &w);
    } else {
        stream_pull(r, &e);
    }
    cJSON_Delete(doc);
}

/* ---- what would change the models ---- */

/* By path: the member that names the model, NULL where there need be none, and why not. */
static const struct {
    const char *path, *key, *why;
} changes[] = {
    { "/api/copy", "source",
      "models are not copied here: llmq serve gives one several names by --served-model-name" },
    { "/api/create", NULL,
      "models are not made here: llmq quantize and llmq convert make them, and a request has its "
      "own system, template and options" },
    { "/api/push", "model", "models are not pushed from here: llmq publish uploads one" },
    { "/api/delete", "model",
      "models are not deleted here: llmq serve leaves its files as they are" },
    { "/api/blobs/", NULL,
      "files are not taken here: llmq quantize and llmq convert make models of them" },
};

void api_ollama_change(void *app, http_req *r, api_serves_name *serves)
{
    size_t i = 0;
    while (strncmp(changes[i].path, http_path(r), strlen(changes[i].path)) != 0)
        i++;
    cJSON *doc = changes[i].key ? api_parse(r) : NULL;
    if (changes[i].key && !doc) return;
    const cJSON *v = changes[i].key ? js_get(doc, changes[i].key) : NULL;
    if (!v && changes[i].key) v = js_get(doc, "name"); /* of older clients */
    const char *name = cJSON_GetStringValue(v);
    if (changes[i].key && !name)
        http_error(r, 400, changes[i].key, "missing_required_parameter", "%s: expected a string",
                   changes[i].key);
    else if (name && !serves(app, name))
        http_error(r, 404, changes[i].key, "model_not_found",
                   "the model '%.200s' is not served here", name);
    else
        http_error(r, 400, NULL, "unsupported_value", "%s", changes[i].why);
    cJSON_Delete(doc);
}

static bool serves(void *app, const char *name) { return is_served(app, name); }

void api_post_ollama_change(void *app, http_req *r) { api_ollama_change(app, r, serves); }

void api_get_ollama_blob(void *app, http_req *r)
{
    (void)app;
    http_error(r, 404, NULL, NULL, "no file of that digest is here");
}
