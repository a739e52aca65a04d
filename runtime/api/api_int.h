/* runtime/api/api_int.h - what the api_*.c files share; no one else includes it. */
#ifndef LLMQ_RUNTIME_API_API_INT_H
#define LLMQ_RUNTIME_API_API_INT_H

#include "runtime/api/api.h"
#include "runtime/api/api_batches.h"
#include "runtime/api/api_files.h"
#include "runtime/api/api_store.h"
#include "runtime/api/metrics.h"

#include <pthread.h>

typedef enum { API_LOADING, API_READY, API_DRAINING } api_state;

struct api {
    api_opts o;
    char **names;
    metrics *met;
    lq_buf labels;   /* on every line of /metrics; NUL-terminated */
    double started;  /* monotonic seconds */
    int64_t created; /* Unix seconds */
    _Atomic double progress;
    _Atomic double ready_seconds, first_seconds; /* to api_set_model; to the first request's first
                                                    token; 0: not yet */
    atomic_int state;
    atomic_ullong counter; /* of response ids */
    atomic_ullong noted;   /* of api_params.noted, what has been said */
    uint64_t salt;         /* makes them unique across restarts */
    char fingerprint[24];
    api_model m; /* written once, before has_model */
    atomic_bool has_model;
    http_server *_Atomic http;
    _Atomic double limit_read, limit_flops; /* 0: not known */
    pthread_mutex_t mu; /* of gens; the engine's own lock may be taken inside it, never outside */
    struct gen *gens;   /* generations under way */
    api_store *store;   /* NULL: responses are not kept */
    pthread_mutex_t follow_mu; /* of followers, which is api_follow.c's */
    struct follower *followers;
    api_disk *disk;   /* NULL: files are in memory */
    api_files *files; /* NULL: files are not kept, and there are no batches */
    api_batches *batches;
    const http_route *
        routes; /* all, for requests of batches; with routes_app and n_routes written before the state */
    size_t n_routes;
    void *routes_app;
    int window;          /* requests of a batch at the same time */
    gr_cache *grammars;  /* under mu; NULL until one is asked for */
    lq_hash schemas[64]; /* under mu: what api_note_schema said last */
    size_t n_schemas;
};

/* Of every request whose parameters were read: unknown names are counted, and those without
 * influence said when they come for the first time. */
void api_note_params(api *a, const api_params *p);
/* Of parameters that no grammar can be made of: says so, unless it was said lately. */
void api_note_schema(api *a, const api_error *e);
void api_first_token(api *a, double seconds); /* of every request: the first one's is kept */

/* ---- answers (api_answer.c) ---- */
void api_reply(http_req *r, int status, jw *w); /* frees w; out of memory becomes 503 */
void api_reply_error(api *a, http_req *r, const api_error *e);
/* The model is there and generation is allowed; else the answer is given. */
bool api_ready(api *a, http_req *r);
/* The body as a JSON object, its numbers spelled (JS_SPELLED: templates show them, a seed has 64
 * bits); NULL: the answer is given. cJSON_Delete it. */
cJSON *api_parse(http_req *r);
/* With as much memory counted again, for what is made of it. */
cJSON *api_parse_to_translate(http_req *r);
/* Is `name` (NULL: not given) a served one? The model's own, or one of its adapters'. */
bool api_serves(const api *a, const char *name);
/* Its adapters now, malloc'd; NULL: there are none, or no memory. */
adapters_card *api_adapters(const api *a, int *n);
lq_status api_no_model(api_error *e, const char *name);

/* ---- prompts (api_prompt.c) ---- */
typedef struct {
    int32_t *ids;      /* malloc'd */
    size_t n, n_first; /* n_first: rerank_prompt's */
    const char *text;  /* as the request spelled it; NULL for ids */
    size_t n_ends; /* of an input to be embedded: the last ids, which the tokenizer puts there */
} api_prompt;
/* Bytes that a text of max_len tokens may have at most. */
size_t api_most_bytes(const api *a);
/* Text to ids. Texts that cannot fit the model are refused before they are tokenized, or (`keep`) only
 * that side of them becomes ids, more than the model holds: the caller keeps what fits. */
typedef enum { API_KEEP_ALL, API_KEEP_END, API_KEEP_BEGINNING } api_keep;
lq_status api_encode(const api *a, api_prompt *p, const char *text, bool special, api_keep keep,
                     const char *param, api_error *e);
/* Tokens of a text that is embedded: the model's, or fewer by its own files. */
int64_t api_max_input(const api *a);
/* The tokenizer has tokens for a text in the middle. */
bool api_can_fill(const api *a);
/* A text and params->suffix to ids, for what goes between them (api_fim.c). */
lq_status api_fim(const api *a, api_prompt *p, const char *text, const api_params *params,
                  api_error *e);
/* The chat template, or a generic form, has calls. */
bool api_takes_tools(const api *a);
/* `messages` of a request to ids; with `tail` also some more than fit the model. */
lq_status api_chat_prompt(const api *a, api_prompt *p, const cJSON *doc, const chat_request *q,
                          bool tail, api_error *e);

/* Adds to p->template_kwargs what the request asks of thoughts, where the template reads it; what it
 * does not is noted (api_thinking.c). */
lq_status api_thinking_variables(const api *a, api_params *p, api_error *e);

/* The template can show tools, and answers to it are read for calls. */
lq_status api_can_call(const api *a, api_error *e);

/* ---- structured output (api_grammar.c) ---- */
/* The grammar that the request asks for, to be gr_unref'd; NULL for none. */
lq_status api_grammar(api *a, grammar **g, const api_structured *s, api_error *e);

/* There is a file store; else the answer is given (api_files.c). */
bool api_keeps_files(const api *a, http_req *r);
/* A copy of n bytes as a file of that owner, name, purpose and expiry, to be unref'd. */
lq_status api_keep_file(api *a, const api_file *like, const char *text, size_t n, api_file **f,
                        api_error *e);

/* ---- generation (api_gen.c) ---- */
typedef struct gen_shape gen_shape;
extern const gen_shape gen_completions, gen_chat, gen_embeddings;
/* A checked request and what it borrows from. Zeroed is empty. */
typedef struct {
    cJSON *doc;         /* a body of OpenAI's */
    cJSON *body, *past; /* of another API: its body, and api_body.past; NULL: there is none */
    api_params p;
    api_prompt *prompts; /* malloc'd */
    size_t n;
    char id[64]; /* of the answer; empty: it gets one */
} api_request;
/* An id of that shape. */
void api_name_answer(api *a, const gen_shape *shape, char id[64]);
void api_request_free(api_request *q);
/* The body of a chat, checked and rendered, by the shape's API; false: the answer is given. */
bool api_read_chat(api *a, http_req *r, const gen_shape *shape, api_request *q);
/* The chat q->doc to its prompt, which takes the place of one that is there. */
lq_status api_render(const api *a, api_request *q, api_error *e);
/* Prompts (api_completions.c), by the shape's API, to their answer. */
void api_answer_prompts(api *a, http_req *r, const gen_shape *shape);
/* Takes q over, whatever happens; answers r now or later. */
void api_generate(api *a, http_req *r, const gen_shape *shape, api_request *q);

/* Ends the generations of that response id or X-Request-Id with an error; returns how many. */
int api_gen_abort(api *a, const char *id);

/* ---- the routes ---- */
void api_get_models(void *a, http_req *r);
void api_get_model(void *a, http_req *r);
void api_post_load_adapter(void *a, http_req *r); /* vLLM's, as the next one (api_adapters.c) */
void api_post_unload_adapter(void *a, http_req *r);
void api_write_adapters(const api *a, lq_buf *w); /* lines of /metrics */
void api_post_completions(void *a, http_req *r);
void api_post_chat(void *a, http_req *r);
void api_post_messages(void *a, http_req *r); /* Anthropic's */
void api_post_count_tokens(void *a, http_req *r);
void api_post_responses(void *a, http_req *r); /* OpenAI's Responses */
void api_post_compact(void *a, http_req *r);
void api_post_input_tokens(void *a, http_req *r);
void api_post_ollama_chat(void *a, http_req *r); /* Ollama's */
void api_post_ollama_generate(void *a, http_req *r);
void api_post_ollama_embed(void *a, http_req *r);
void api_post_ollama_embedding(void *a, http_req *r);
void api_post_ollama_show(void *a, http_req *r);
void api_get_ollama_tags(void *a, http_req *r);
void api_get_ollama_ps(void *a, http_req *r);
void api_get_ollama_version(void *a, http_req *r);
void api_post_ollama_pull(void *a, http_req *r);
void api_post_ollama_change(void *a, http_req *r);
void api_post_infill(void *a, http_req *r); /* llama.cpp's, as the next three */
void api_post_completion(void *a, http_req *r);
void api_get_props(void *a, http_req *r);
void api_get_slots(void *a, http_req *r);
void api_post_render(void *a, http_req *r); /* what the template makes of a chat */
void api_post_embeddings(void *a, http_req *r);
void api_post_rerank(void *a, http_req *r);   /* Jina's */
void api_post_embed_v1(void *a, http_req *r); /* Cohere's, as the next */
void api_post_embed_v2(void *a, http_req *r);
void api_post_chat_v2(void *a, http_req *r);
void api_post_rerank_v2(void *a, http_req *r); /* Cohere's */
void api_post_score(void *a, http_req *r);     /* vLLM's, as the next: */
void api_post_classify(void *a, http_req *r);
void api_post_tokenize(void *a, http_req *r);
void api_get_tokenizer(void *a, http_req *r);
void api_post_detokenize(void *a, http_req *r);
void api_get_root(void *a, http_req *r);
void api_get_health(void *a, http_req *r);
void api_get_ready(void *a, http_req *r);
void api_get_version(void *a, http_req *r);
void api_get_metrics(void *a, http_req *r);
void api_get_load(void *a, http_req *r);
void api_get_openapi(void *a, http_req *r);
void api_delete_request(void *a, http_req *r);

#endif
