/* runtime/api/api_ollama_models.c - what Ollama's API tells of models: /api/tags, /api/ps, /api/show, /api/version. */
#include "runtime/api/api_card.h"
#include "runtime/api/api_ollama.h"

#include <stdlib.h>

/* Ollama's clients take "embedding" for a model that cannot talk. */
static bool for_vectors(const api *a) { return a->m.no_words || a->m.sentence; }

static void write_abilities(jw *w, const api *a)
{
    const struct {
        const char *name;
        bool is;
    } all[] = {
        { "completion", !for_vectors(a) },
        { "embedding", for_vectors(a) },
        { "insert", !for_vectors(a) && api_can_fill(a) },
        { "tools", !for_vectors(a) && api_takes_tools(a) },
        { "thinking", !for_vectors(a) && a->m.form && a->m.form->think_open[0] },
    };
    jw_key(w, "capabilities");
    jw_open(w, '[');
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        if (all[i].is) jw_cstr(w, all[i].name);
    jw_close(w, ']');
}

static void write_details(jw *w, const api *a)
{
    const bool loaded = atomic_load(&a->has_model);
    jw_key(w, "details");
    jw_open(w, '{');
    jw_put_cstr(w, "parent_model", "");
    jw_put_cstr(w, "format", "llmq");
    jw_put_cstr(w, "family", "llmq");
    jw_key(w, "families");
    jw_json(w, "[\"llmq\"]", 8);
    jw_put_cstr(w, "parameter_size", "");
    jw_put_cstr(w, "quantization_level", loaded && a->m.quantization ? a->m.quantization : "");
    if (loaded) {
        jw_put_i64(w, "context_length", a->m.max_len);
        jw_put_i64(w, "embedding_length", a->m.width);
    }
    jw_close(w, '}');
}

static void write_model(jw *w, const api *a, const char *name, bool running)
{
    const bool loaded = atomic_load(&a->has_model);
    const int64_t bytes = loaded ? (int64_t)a->m.step_bytes : 0;
    jw_open(w, '{');
    jw_put_cstr(w, "name", name);
    jw_put_cstr(w, "model", name);
    jw_key(w, "size");
    jw_i64(w, bytes);
    jw_put_cstr(w, "digest", loaded ? a->fingerprint : API_NO_DIGEST);
    write_details(w, a);
    if (running) {
        jw_put_time(w, "expires_at", 253402300799); /* 9999: never */
        jw_key(w, "size_vram");
        jw_i64(w, loaded && strcmp(a->m.device, "cpu") != 0 ? bytes : 0);
        jw_key(w, "context_length");
        jw_i64(w, loaded ? a->m.max_len : 0);
    } else {
        jw_put_time(w, "modified_at", a->created);
        if (loaded) write_abilities(w, a);
    }
    jw_close(w, '}');
}

static void reply_models(const api *a, http_req *r, bool running)
{
    jw w = { 0 };
    jw_open(&w, '{');
    jw_key(&w, "models");
    jw_open(&w, '[');
    for (int i = 0; a->names[i] && (!running || atomic_load(&a->has_model)); i++)
        write_model(&w, a, a->names[i], running);
    int n;
    adapters_card *cards = api_adapters(a, &n);
    for (int i = 0; i < n; i++)
        write_model(&w, a, cards[i].name, running);
    free(cards);
    jw_close(&w, ']');
    jw_close(&w, '}');
    api_reply(r, 200, &w);
}

void api_get_ollama_tags(void *app, http_req *r) { reply_models(app, r, false); }
void api_get_ollama_ps(void *app, http_req *r) { reply_models(app, r, true); }

static void reply_show(const api *a, http_req *r)
{
    jw w = { 0 };
    jw_open(&w, '{');
    jw_put_cstr(&w, "modelfile", "");
    jw_put_cstr(&w, "parameters", "");
    jw_put_cstr(&w, "template", "");
    write_details(&w, a);
    jw_key(&w, "model_info");
    jw_open(&w, '{');
    jw_put_cstr(&w, "general.architecture", "llmq");
    jw_key(&w, "llmq.context_length");
    jw_i64(&w, a->m.max_len);
    jw_key(&w, "llmq.embedding_length");
    jw_i64(&w, a->m.hidden);
    jw_close(&w, '}');
    write_abilities(&w, a);
    jw_put_time(&w, "modified_at", a->created);
    jw_close(&w, '}');
    api_reply(r, 200, &w);
}

void api_post_ollama_show(void *app, http_req *r)
{
    api *a = app;
    api_error e = { 0 };
    const char *name;
    if (!api_ready(a, r)) return;
    cJSON *doc = api_parse(r);
    if (!doc) return;
    if (api_ollama_find(a, doc, &name, &e))
        api_reply_error(a, r, &e);
    else
        reply_show(a, r);
    cJSON_Delete(doc);
}

void api_get_ollama_version(void *app, http_req *r)
{
    const api *a = app;
    jw w = { 0 };
    api_ollama_version(&w, a->o.version);
    api_reply(r, 200, &w);
}
