/* runtime/api/api_openapi.c - GET /openapi.json: runtime/api/openapi.json, with what the code knows in the
 * place of its markers ("@version", ...): the parameters and their ranges are those of the table
 * that requests are read by. The compiler runs at the root of the repository, where .incbin finds
 * the file. */
#include "runtime/api/api_int.h"

#include <assert.h>

__asm__(".section .rodata\n"
        "api_openapi_text:\n"
        ".incbin \"runtime/api/openapi.json\"\n"
        ".byte 0\n"
        ".text\n");
extern const char api_openapi_text[];

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
/* While the model loads its bounds are not known. */
static void put_last_id(jw *w, const api *a)
{
    jw_i64(w, atomic_load(&a->has_model) ? a->m.vocab - 1 : INT32_MAX);
}
static void put_hidden(jw *w, const api *a)
{
    jw_i64(w, atomic_load(&a->has_model) ? a->m.hidden : INT32_MAX);
}
static void put_max_len(jw *w, const api *a)
{
    jw_i64(w, atomic_load(&a->has_model) ? a->m.max_len : INT32_MAX);
}

static const struct {
    const char *marker;
    void (*put)(jw *w, const api *a);
} markers[] = {
    { "\"@version\"", put_version }, { "\"@completions\"", put_completions },
    { "\"@chat\"", put_chat },       { "\"@embeddings\"", put_embeddings },
    { "\"@last_id\"", put_last_id }, { "\"@max_len\"", put_max_len },
    { "\"@hidden\"", put_hidden },
};

void api_get_openapi(void *app, http_req *r)
{
    jw w = { 0 };
    const char *from = api_openapi_text, *at = from;
    while ((at = strstr(at, "\"@"))) {
        size_t i = 0, n = 0;
        for (; i < LQ_COUNT(markers); i++)
            if (strncmp(at, markers[i].marker, n = strlen(markers[i].marker)) == 0) break;
        assert(i < LQ_COUNT(markers));
        jw_bytes(&w, from, (size_t)(at - from));
        w.comma = false;
        markers[i].put(&w, app);
        from = at += n;
    }
    jw_text(&w, from);
    api_reply(r, 200, &w);
}
