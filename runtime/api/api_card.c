/* runtime/api/api_card.c - see api_card.h. */
#include "runtime/api/api_card.h"

#include "runtime/api/api_messages.h"

bool api_asks_anthropic(http_req *r)
{
    const bool asks = http_header(r, "anthropic-version") != NULL;
    if (asks) http_set_style(r, &api_messages_style);
    return asks;
}

static void put_tokens(jw *w, const char *key, int64_t n)
{
    jw_key(w, key);
    if (n)
        jw_i64(w, n);
    else
        jw_null(w);
}

void api_anthropic_card(jw *w, const char *name, int64_t created, int64_t max_len)
{
    jw_open(w, '{');
    jw_put_cstr(w, "type", "model");
    jw_put_cstr(w, "id", name);
    jw_put_cstr(w, "display_name", name);
    jw_put_time(w, "created_at", created);
    jw_put_cstr(w, "lifecycle", "active");
    put_tokens(w, "max_input_tokens", max_len);
    put_tokens(w, "max_tokens", max_len);
    jw_close(w, '}');
}

void api_anthropic_page(jw *w, const char *first, const char *last)
{
    jw_put_bool(w, "has_more", false);
    jw_put_cstr(w, "first_id", first);
    jw_put_cstr(w, "last_id", last);
}

void api_ollama_version(jw *w, const char *llmq)
{
    jw_open(w, '{');
    jw_put_cstr(w, "version", "0.33.0");
    jw_put_cstr(w, "llmq", llmq);
    jw_close(w, '}');
}
