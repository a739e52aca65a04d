/* runtime/api/api_models.c - GET /v1/models and /v1/models/{id}. */
#include "runtime/api/api_int.h"

static void write_card(const api *a, jw *w, const char *name)
{
    bool loaded = atomic_load(&a->has_model);
    jw_open(w, '{');
    jw_key(w, "id");
    jw_cstr(w, name);
    jw_key(w, "object");
    jw_cstr(w, "model");
    jw_key(w, "created");
    jw_i64(w, a->created);
    jw_key(w, "owned_by");
    jw_cstr(w, "llmq");
    jw_key(w, "root");
    jw_cstr(w, a->names[0]);
    jw_key(w, "parent");
    jw_null(w);
    jw_key(w, "max_model_len");
    if (loaded)
        jw_i64(w, a->m.max_len);
    else
        jw_null(w);
    jw_key(w, "quantization");
    jw_cstr(w, loaded ? a->m.quantization : NULL);
    jw_close(w, '}');
}

void api_get_models(void *app, http_req *r)
{
    api *a = app;
    jw w = { 0 };
    jw_open(&w, '{');
    jw_key(&w, "object");
    jw_cstr(&w, "list");
    jw_key(&w, "data");
    jw_open(&w, '[');
    for (int i = 0; a->names[i]; i++)
        write_card(a, &w, a->names[i]);
    jw_close(&w, ']');
    jw_close(&w, '}');
    api_reply(r, 200, &w);
}

void api_get_model(void *app, http_req *r)
{
    api *a = app;
    jw w = { 0 };
    api_error e;
    if (!api_serves(a, http_rest(r))) {
        api_no_model(&e, http_rest(r));
        api_reply_error(a, r, &e);
        return;
    }
    write_card(a, &w, http_rest(r));
    api_reply(r, 200, &w);
}
