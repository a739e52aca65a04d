/* runtime/api/api_batch_read.c - what a body, and a folder's JSON, say of a batch. */
#include "runtime/api/api_batches_int.h"

static lq_status read_endpoint(api_batch *b, const cJSON *doc, api_error *e)
{
    static const char *const endpoints[] = {
        "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses",
        "/v1/messages",         "/v1/rerank",      "/v1/score",      "/v1/classify"
    };
    const cJSON *v = js_get(doc, "endpoint");
    for (size_t i = 0; cJSON_IsString(v) && i < LQ_COUNT(endpoints); i++)
        if (strcmp(v->valuestring, endpoints[i]) == 0) b->endpoint = endpoints[i];
    if (!v)
        return api_fail(e, "endpoint", "missing_required_parameter", "endpoint: it is required");
    return b->endpoint ? LQ_OK
                       : api_wrong(e, "endpoint",
                                   "/v1/chat/completions, /v1/completions, "
                                   "/v1/embeddings or another route that answers",
                                   v);
}

static lq_status read_metadata(api_batch *b, const cJSON *doc, api_error *e)
{
    static const char expected[] = "an object of at most 16 texts of at most 512 bytes";
    enum { MOST = 16, BYTES = 512 };
    const cJSON *v = js_get(doc, "metadata");
    int n = 0;
    if (!v || cJSON_IsNull(v)) return LQ_OK;
    if (!cJSON_IsObject(v)) return api_wrong(e, "metadata", expected, v);
    for (const cJSON *c = v->child; c; c = c->next)
        if (!cJSON_IsString(c) || strlen(c->valuestring) > BYTES || strlen(c->string) > BYTES ||
            ++n > MOST)
            return api_wrong(e, "metadata", expected, c);
    b->metadata = cJSON_PrintUnformatted(v);
    return b->metadata ? LQ_OK : api_no_memory(e);
}

static lq_status read_expiry(api_batch *b, const cJSON *doc, api_error *e)
{
    const cJSON *v = js_get(doc, "output_expires_after");
    const char *anchor = cJSON_GetStringValue(js_get(v, "anchor"));
    if (!v || cJSON_IsNull(v)) return LQ_OK;
    const bool ok = cJSON_IsObject(v) && (!anchor || strcmp(anchor, "created_at") == 0) &&
                    js_whole(js_get(v, "seconds"), 3600, 2592000, &b->output_seconds);
    return ok ? LQ_OK
              : api_wrong(e, "output_expires_after",
                          "{\"anchor\": \"created_at\", \"seconds\": 3600..2592000}", v);
}

lq_status api_batch_read(api_batch *b, const cJSON *doc, api_error *e)
{
    lq_status s = read_endpoint(b, doc, e);
    if (!s) s = read_metadata(b, doc, e);
    return s ? s : read_expiry(b, doc, e);
}
