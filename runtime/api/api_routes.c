/* runtime/api/api_routes.c - the table of routes. */
#include "runtime/api/api_int.h"
#include "runtime/api/web.h"

/* method, path, handler, needs no key, needs an administrator's key; the page's come first */
enum { N_PAGE_ROUTES = 2 };
static const http_route routes[] = {
    { "GET", "/", web_get_page, true, false },
    { "GET", "/page/*", web_get_file, true, false },
    { "GET", "/", api_get_root, false, false },
    { "GET", "/health", api_get_health, true, false },
    { "GET", "/ready", api_get_ready, true, false },
    { "GET", "/version", api_get_version, false, false },
    { "GET", "/metrics", api_get_metrics, false, false },
    { "GET", "/load", api_get_load, false, false },
    { "GET", "/openapi.json", api_get_openapi, false, false },
    { "GET", "/v1/models", api_get_models, false, false },
    { "GET", "/v1/models/*", api_get_model, false, false },
    { "POST", "/v1/completions", api_post_completions, false, false },
    { "POST", "/v1/chat/completions", api_post_chat, false, false },
    { "POST", "/v1/chat/completions/render", api_post_render, false, false },
    { "POST", "/apply-template", api_post_render, false, false }, /* llama.cpp's name */
    { "POST", "/v1/embeddings", api_post_embeddings, false, false },
    { "POST", "/tokenize", api_post_tokenize, false, false },
    { "POST", "/detokenize", api_post_detokenize, false, false },
    { "DELETE", "/v1/requests/*", api_delete_request, false, true },
};

const http_route *api_routes(bool page, size_t *n)
{
    const size_t left_out = page ? 0 : N_PAGE_ROUTES;
    *n = LQ_COUNT(routes) - left_out;
    return routes + left_out;
}

void api_get_root(void *app, http_req *r)
{
    (void)app;
    size_t n;
    const http_route *t = api_routes(false, &n);
    jw w = { 0 };
    jw_text(&w, "llmq: an OpenAI-compatible server. Routes:\n");
    for (size_t i = 0; i < n; i++)
        jw_printf(&w, "%-6s %s\n", t[i].method, t[i].path);
    http_reply(r, 200, w.p, w.n, &(http_extra){ .type = "text/plain; charset=utf-8" });
    jw_free(&w);
}
