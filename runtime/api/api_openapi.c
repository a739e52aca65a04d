/* runtime/api/api_openapi.c - GET /openapi.json: runtime/api/openapi.json, with what the code knows in the
 * place of its markers ("@version", ...; "@GET /health": the route's text): the parameters and their ranges are those of the table
 * that requests are read by. */
#include "runtime/api/api_int.h"

#include "base/embed.h"

LQ_EMBED(api_openapi_text, "runtime/api/openapi.json");

static void put_version(jw *w, const api *a) { jw_cstr(w, a->o.version); }
static void put_completions(jw *w, const api *a)
{
    (void)a;
    api_params_schema(w, API_COMPLETIONS);
}
static void put_chat(jw *w, const api *a)
{
    (void)a;
    api_params_schema(w, API_CHAT);
}
static void put_embeddings(jw *w, const api *a)
{
    (void)a;
    api_params_schema(w, API_EMBEDDINGS);
}
static void put_rerank(jw *w, const api *a)
{
    (void)a;
    api_params_schema(w, API_RERANK);
}
static void put_score(jw *w, const api *a)
{
    (void)a;
    api_params_schema(w, API_SCORE);
}
static void put_classify(jw *w, const api *a)
{
    (void)a;
    api_params_schema(w, API_CLASSIFY);
}
/* While the model loads its bounds are not known. */
static void put_last_id(jw *w, const api *a)
{
    jw_i64(w, atomic_load(&a->has_model) ? a->m.vocab - 1 : INT32_MAX);
}
static void put_width(jw *w, const api *a)
{
    jw_i64(w, atomic_load(&a->has_model) ? a->m.width : INT32_MAX);
}
static void put_max_len(jw *w, const api *a)
{
    jw_i64(w, atomic_load(&a->has_model) ? a->m.max_len : INT32_MAX);
}

static const struct {
    const char *marker;
    void (*put)(jw *w, const api *a);
} markers[] = {
    { "\"@version\"", put_version },   { "\"@completions\"", put_completions },
    { "\"@chat\"", put_chat },         { "\"@embeddings\"", put_embeddings },
    { "\"@classify\"", put_classify }, { "\"@rerank\"", put_rerank },
    { "\"@score\"", put_score },       { "\"@last_id\"", put_last_id },
    { "\"@max_len\"", put_max_len },   { "\"@width\"", put_width },
};

/* "METHOD PATH" of a marker: the text of that route of this server. */
static void put_route(jw *w, const http_req *r, const char *name, size_t len)
{
    size_t n;
    const http_route *t = http_routes(r, &n);
    for (size_t i = 0; i < n; i++) {
        const size_t verb = strlen(t[i].method);
        if (len == verb + 1 + strlen(t[i].path) && memcmp(name, t[i].method, verb) == 0 &&
            memcmp(name + verb + 1, t[i].path, len - verb - 1) == 0) {
            jw_cstr(w, t[i].text);
            return;
        }
    }
    jw_cstr(w, "not on this server");
}

void api_get_openapi(void *app, http_req *r)
{
    jw w = { 0 };
    const char *from = api_openapi_text, *at = from;
    while ((at = strstr(at, "\"@"))) {
        const size_t n = strcspn(at + 1, "\"") + 2; /* with its quotes */
        size_t i = 0;
        while (i < LQ_COUNT(markers) &&
               (strlen(markers[i].marker) != n || memcmp(at, markers[i].marker, n) != 0))
            i++;
        lq_buf_add(&w.b, from, (size_t)(at - from));
        w.comma = false;
        if (i < LQ_COUNT(markers))
            markers[i].put(&w, app);
        else
            put_route(&w, r, at + 2, n - 3);
        from = at += n;
    }
    lq_buf_puts(&w.b, from);
    api_reply(r, 200, &w);
}
