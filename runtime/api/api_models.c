/* runtime/api/api_models.c - GET /v1/models and /v1/models/{id}. */
#include "runtime/api/api_card.h"
#include "runtime/api/api_int.h"

#include <stdlib.h>

/* A number that is known once the model is loaded, under the names that clients look for. */
static void write_known(jw *w, bool loaded, const char *key, int64_t v)
{
    jw_key(w, key);
    if (loaded)
        jw_i64(w, v);
    else
        jw_null(w);
}

/* What requests may ask of it. */
static void write_abilities(const api *a, jw *w)
{
    const bool words = !a->m.no_words, chat = words && a->m.backend.render;
    const struct {
        const char *name;
        bool is;
    } all[] = {
        { "completion", words },
        { "chat", chat },
        { "tools", chat && api_takes_tools(a) },
        { "reasoning", words && a->m.form && a->m.form->think_open[0] },
        { "structured_output", words && a->m.tok },
        { "embeddings", true },
        { "rerank", a->m.backend.judge != NULL },
    };
    jw_key(w, "capabilities");
    jw_open(w, '[');
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        if (all[i].is) jw_cstr(w, all[i].name);
    jw_close(w, ']');
    const chat_form *f = chat && api_takes_tools(a) ? a->m.tool_form : NULL;
    jw_key(w, "tool_format");
    jw_cstr(w, !f ? NULL : f->generic ? "generic" : f->name);
}

static void write_rope(const api *a, jw *w)
{
    jw_key(w, "rope_scaling");
    jw_open(w, '{');
    jw_put_cstr(w, "rope_type", a->m.rope);
    jw_put_f64(w, "factor", a->m.rope_factor);
    if (a->m.rope_original) jw_put_i64(w, "original_max_position_embeddings", a->m.rope_original);
    jw_close(w, '}');
}

/* created: of an adapter; 0: it is the model itself. */
static void write_card(const api *a, jw *w, const char *name, int64_t created, bool anthropic)
{
    bool loaded = atomic_load(&a->has_model);
    if (anthropic) {
        api_anthropic_card(w, name, created ? created : a->created, loaded ? a->m.max_len : 0);
        return;
    }
    jw_open(w, '{');
    jw_key(w, "id");
    jw_cstr(w, name);
    jw_key(w, "object");
    jw_cstr(w, "model");
    jw_key(w, "created");
    jw_i64(w, created ? created : a->created);
    jw_key(w, "owned_by");
    jw_cstr(w, "llmq");
    jw_key(w, "root");
    jw_cstr(w, a->names[0]);
    jw_key(w, "parent");
    jw_cstr(w, created ? a->names[0] : NULL);
    write_known(w, loaded, "max_model_len", a->m.max_len);
    write_known(w, loaded, "context_length", a->m.max_len);
    write_known(w, loaded, "context_window", a->m.max_len);
    if (loaded && a->m.rope) write_rope(a, w);
    jw_key(w, "quantization");
    jw_cstr(w, loaded ? a->m.quantization : NULL);
    if (loaded) write_abilities(a, w);
    jw_close(w, '}');
}

/* When the adapter of this name was read; 0: there is none. */
static int64_t adapter_created(const api *a, const char *name)
{
    int n;
    int64_t created = 0;
    adapters_card *cards = api_adapters(a, &n);
    for (int i = 0; i < n; i++)
        if (strcmp(cards[i].name, name) == 0) created = cards[i].created;
    free(cards);
    return created;
}

void api_get_models(void *app, http_req *r)
{
    api *a = app;
    const bool anthropic = api_asks_anthropic(r);
    const char *last = NULL;
    jw w = { 0 };
    int n;
    jw_open(&w, '{');
    if (!anthropic) jw_put_cstr(&w, "object", "list");
    jw_key(&w, "data");
    jw_open(&w, '[');
    for (int i = 0; a->names[i]; i++)
        write_card(a, &w, last = a->names[i], 0, anthropic);
    adapters_card *cards = api_adapters(a, &n);
    for (int i = 0; i < n; i++)
        write_card(a, &w, last = cards[i].name, cards[i].created, anthropic);
    jw_close(&w, ']');
    if (anthropic) api_anthropic_page(&w, a->names[0], last);
    free(cards);
    jw_close(&w, '}');
    api_reply(r, 200, &w);
}

void api_get_model(void *app, http_req *r)
{
    api *a = app;
    const bool anthropic = api_asks_anthropic(r);
    jw w = { 0 };
    api_error e;
    if (!api_serves(a, http_rest(r))) {
        api_no_model(&e, http_rest(r));
        api_reply_error(a, r, &e);
        return;
    }
    const bool plain = api_has_name(a, http_rest(r));
    write_card(a, &w, http_rest(r), plain ? 0 : adapter_created(a, http_rest(r)), anthropic);
    api_reply(r, 200, &w);
}
