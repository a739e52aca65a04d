/* runtime/api/api_routes.c - the table of routes. */
#include "runtime/api/api_int.h"
#include "runtime/api/api_messages.h"
#include "runtime/api/api_ollama.h"
#include "runtime/api/web.h"

/* The page's come first. Their text is in --help, at / (without the page), in /openapi.json (as
 * "@METHOD PATH") and in docs/serving.md. */
enum { N_PAGE_ROUTES = 2 };
static const http_route routes[] = {
    { "GET", "/", web_get_page, HTTP_NOBODY, "a page to chat with and to watch", NULL },
    { "GET", "/page/*", web_get_file, HTTP_NOBODY, "a file of that page", NULL },
    { "GET", "/", api_get_root, HTTP_USER, "these routes, where there is no page", NULL },
    { "GET", "/health", api_get_health, HTTP_NOBODY, "the process lives", NULL },
    { "GET", "/ready", api_get_ready, HTTP_NOBODY, "requests can be served", NULL },
    { "GET", "/version", api_get_version, HTTP_USER, "the version of llmq", NULL },
    { "GET", "/metrics", api_get_metrics, HTTP_USER,
      "figures in Prometheus' format, under vLLM's names", NULL },
    { "GET", "/load", api_get_load, HTTP_USER, "what runs and waits", NULL },
    { "GET", "/openapi.json", api_get_openapi, HTTP_USER,
      "all of this as OpenAPI 3.1, every parameter with its range", NULL },
    { "GET", "/v1/models", api_get_models, HTTP_USER, "the served names", NULL },
    { "GET", "/v1/models/*", api_get_model, HTTP_USER,
      "one of them; its slashes may be escaped or not", NULL },
    { "POST", "/v1/completions", api_post_completions, HTTP_USER,
      "continue a text, or a list of ids", NULL },
    { "POST", "/v1/chat/completions", api_post_chat, HTTP_USER,
      "answer a conversation, by the model's chat template", NULL },
    { "POST", "/v1/chat/completions/render", api_post_render, HTTP_USER,
      "what the template makes of a conversation", NULL },
    { "POST", "/apply-template", api_post_render, HTTP_USER, "the same under llama.cpp's name",
      NULL },
    { "POST", "/v1/messages", api_post_messages, HTTP_USER,
      "answer a conversation, as Anthropic's clients ask", &api_messages_style },
    { "POST", "/v1/messages/count_tokens", api_post_count_tokens, HTTP_USER,
      "how many tokens that conversation has", &api_messages_style },
    { "POST", "/v1/responses", api_post_responses, HTTP_USER,
      "answer a conversation, as OpenAI's Responses API asks", NULL },
    { "POST", "/v1/responses/input_tokens", api_post_input_tokens, HTTP_USER,
      "how many tokens its prompt has", NULL },
    { "GET", "/v1/responses/*", api_get_response, HTTP_USER,
      "a response that is kept (--response-store)", NULL },
    { "DELETE", "/v1/responses/*", api_delete_response, HTTP_USER, "forget it", NULL },
    { "POST", "/v1/embeddings", api_post_embeddings, HTTP_USER,
      "texts or ids to vectors of length 1", NULL },
    { "POST", "/v1/rerank", api_post_rerank, HTTP_USER,
      "documents in the order in which they answer a query, as Jina's clients ask", NULL },
    { "POST", "/v2/rerank", api_post_rerank_v2, HTTP_USER, "likewise, as Cohere's ask", NULL },
    { "POST", "/v1/score", api_post_score, HTTP_USER,
      "how well each text answers another, as vLLM's clients ask", NULL },
    { "POST", "/api/chat", api_post_ollama_chat, HTTP_USER,
      "answer a conversation, as Ollama's clients ask", &api_ollama_style },
    { "POST", "/api/generate", api_post_ollama_generate, HTTP_USER, "answer one message, likewise",
      &api_ollama_style },
    { "POST", "/api/embed", api_post_ollama_embed, HTTP_USER, "texts to vectors, likewise",
      &api_ollama_style },
    { "POST", "/api/embeddings", api_post_ollama_embedding, HTTP_USER,
      "one text to a vector, likewise", &api_ollama_style },
    { "POST", "/api/show", api_post_ollama_show, HTTP_USER, "what Ollama tells of a model",
      &api_ollama_style },
    { "GET", "/api/tags", api_get_ollama_tags, HTTP_USER, "the served names, as Ollama lists them",
      &api_ollama_style },
    { "GET", "/api/ps", api_get_ollama_ps, HTTP_USER, "those that are loaded, likewise",
      &api_ollama_style },
    { "GET", "/api/version", api_get_version, HTTP_USER, "the version of llmq", &api_ollama_style },
    { "POST", "/infill", api_post_infill, HTTP_USER,
      "what goes between two texts, as llama.cpp's clients ask", NULL },
    { "GET", "/props", api_get_props, HTTP_USER, "context and defaults, likewise", NULL },
    { "GET", "/slots", api_get_slots, HTTP_USER, "sequences that may run, likewise", NULL },
    { "POST", "/tokenize", api_post_tokenize, HTTP_USER,
      "text or messages to ids, as vLLM or llama.cpp asks", NULL },
    { "GET", "/tokenizer_info", api_get_tokenizer, HTTP_USER,
      "the tokenizer's special tokens and the chat template", NULL },
    { "POST", "/detokenize", api_post_detokenize, HTTP_USER, "ids to text", NULL },
    { "DELETE", "/v1/requests/*", api_delete_request, HTTP_ADMIN,
      "end requests, by their answer's id or X-Request-Id", NULL },
};

const http_route *api_routes(bool page, size_t *n)
{
    const size_t left_out = page ? 0 : N_PAGE_ROUTES;
    *n = LQ_COUNT(routes) - left_out;
    return routes + left_out;
}
