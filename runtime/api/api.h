/* runtime/api/api.h - the OpenAI-compatible API: the routes of the server and what they need.
 *
 * An api exists before its model: while the model loads, /health answers 200, /ready 503 and
 * generation 503. api_set_model makes it ready, api_drain ends that. It reaches the engine through
 * a table of four functions (api_backend), so that tests can use a scripted one. */
#ifndef LLMQ_RUNTIME_API_API_H
#define LLMQ_RUNTIME_API_API_H

#include "runtime/api/api_params.h"
#include "runtime/chat/chat.h"
#include "runtime/chat/rerank.h"
#include "runtime/engine/adapters.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/sentence.h"
#include "runtime/http/http.h"

typedef struct api api;

typedef struct {
    void *self;
    lq_status (*submit)(void *self, const eng_request *r, eng_sink sink, void *user, uint64_t *id,
                        lq_err *err);
    void (*cancel)(void *self, uint64_t id);
    void (*stats)(void *self, eng_stats *s);
    /* As chat_encode; the contents of q's messages are strings or null. NULL: the model has no chat
     * template. */
    lq_status (*render)(void *self, const chat_request *q, int32_t **ids, size_t *n, lq_err *err);
    /* As rerank_encode. NULL: the model judges no documents. */
    lq_status (*judge)(void *self, const rerank_pair *p, rerank_prompt *out, lq_err *err);
    /* As model_score. NULL: the model has words. */
    void (*score)(void *self, const double *hidden, double *scores);
} api_backend;

/* What loading a model yields. Borrowed until api_close. */
typedef struct {
    api_backend backend;
    const tok_tokenizer *tok;       /* NULL: ids only */
    int64_t vocab, max_len, hidden; /* hidden: numbers of a row */
    int64_t width;                  /* of an embedding */
    const sentence
        *sentence; /* how one is made; NULL: of length 1, of the rows that are asked for */
    int64_t max_seqs, queue;    /* sequences that may run, and others that may wait */
    const chat_form *form;      /* of answers where there are no tools; NULL: no chat template */
    const chat_form *tool_form; /* where there are */
    const char *no_calls;       /* why that has no calls */
    unsigned reads;             /* chat_reads */
    const int32_t *labels;      /* [2] with backend.judge: the ids of yes and no; NULL: by score */
    const char *no_judge;       /* without: why not */
    adapters *adapters;         /* that requests may name as their model; NULL: none */
    bool no_words;              /* embeddings and scores alone */
    eng_pool score_pool;        /* with backend.score: of the row that it is made of */
    bool raw_scores;            /* that score is the judgement, not its sigmoid */
    const cJSON *label_names;   /* with backend.score: a list of texts; NULL: without */
    src_label_kind label_kind;
    bool both_ways;       /* a token sees those after it too */
    const int32_t *shown; /* special tokens that the forms' marks have; [n_shown] */
    int n_shown;
    const char *chat_text; /* its text, and the special tokens by name; may be NULL */
    const cJSON *chat_tokens;
    int32_t bos, eos;               /* ids of the model's own, or -1 */
    int64_t block_size, kv_blocks;  /* for cache_config_info */
    const char *device;             /* "cpu", or the GPU's name */
    const char *rope;               /* how positions are scaled: "yarn"; NULL: they are not */
    double rope_factor;             /* of a kind that has one */
    int64_t rope_original;          /* the context before it; 0: not said */
    const char *quantization;       /* "u4-g128", NULL: none */
    const char *fingerprint;        /* any text that changes with weights and arithmetic */
    gen_defaults defaults;          /* of the model's file */
    double step_bytes;              /* of weights that a step reads */
    double row_flops, logits_flops; /* of a token through the layers; of a row through the head */
} api_model;

typedef struct {
    const char *const *names; /* served model names, the first is the canonical one; copied */
    int n_names;
    const char *version;    /* "0.1.0" */
    bool no_generic_tools;  /* templates that know no tools refuse them */
    bool strict_params;     /* unknown parameter names are refused */
    bool strict_schema;     /* and unknown keywords of JSON schemas */
    bool priorities;        /* requests may have one; else all but 0 is refused */
    size_t file_bytes;      /* of files, for batches; 0: there are none */
    const char *file_dir;   /* the folder that they are kept in; NULL: memory */
    int64_t kept_responses; /* of /v1/responses, for later requests; 0: none */
    const char *kept_dir;   /* the folder that they are kept in; NULL: memory */
    double stall_seconds;   /* /ready says no when a step takes longer; 0: 60 */
    double request_seconds; /* a generation that takes longer ends with 504; 0: no limit */
    bool (*log)(void *user, const http_log_line *l); /* false: the line is lost */
    void (*note)(void *user, const char *text);      /* what is said once; may be NULL */
    void *user;
} api_opts;

lq_status api_open(api **a, const api_opts *o, lq_err *err);
void api_close(api *a); /* after http_close and the engine's end */
/* For http_opts: these routes, the api as their app, api_log as their log, api_tick as tick. page:
 * with the page of runtime/api/web.h at /, else / lists the routes. */
const http_route *api_routes(bool page, size_t *n);
/* Of them, those about files, batches and kept responses, which need no model. */
void api_post_file(void *a, http_req *r);
void api_get_files(void *a, http_req *r);
void api_get_file(void *a, http_req *r); /* and its content */
void api_delete_file(void *a, http_req *r);
void api_post_batch(void *a, http_req *r);
void api_get_batches(void *a, http_req *r);
void api_get_batch(void *a, http_req *r);
void api_post_batch_cancel(void *a, http_req *r);
void api_get_response(void *a, http_req *r);
void api_delete_response(void *a, http_req *r);
void api_post_response(void *a, http_req *r);
bool api_response_runs(api *a, const char *id); /* is it kept as one that is being made? */
/* Ollama's, of what would change the models: a model that is not served (by the server `app`) is not found, one that is
 * stays as it is. */
typedef bool api_serves_name(void *app, const char *name);
void api_ollama_change(void *app, http_req *r, api_serves_name *serves);
void api_get_ollama_blob(void *app, http_req *r); /* none is here; app is not looked at */
/* Anthropic's. */
void api_post_messages_batch(void *a, http_req *r);
void api_get_messages_batches(void *a, http_req *r);
void api_get_messages_batch(void *a, http_req *r);
void api_post_messages_batch_cancel(void *a, http_req *r);
void api_delete_messages_batch(void *a, http_req *r);
/* The text of /metrics (met_write), in the format that the client asks for; frees w. */
void api_reply_metrics(http_req *r, lq_buf *w);
void api_log(void *a, const http_log_line *l);
void api_tick(void *a);
void api_set_http(api *a, http_server *s); /* its counters appear in /metrics */

/* Is `name` (NULL: not given) one of opts.names? */
bool api_has_name(const api *a, const char *name);

/* There is no model here: what batches ask goes to these routes, at most `window` requests at a time. Once; it is
 * ready then. */
void api_set_routes(api *a, const http_route *routes, size_t n, void *app, int window);
/* How much of the model is loaded, 0..1: what /ready says until api_set_model. Any thread. */
void api_set_progress(api *a, double done);
void api_set_model(api *a, const api_model *m); /* once */
/* What this machine can do at most a second, for /metrics, which leaves out what is 0: not known. At any time. */
void api_set_limits(api *a, double read_bytes_s, double flops);
void api_drain(api *a); /* no new generation from now on */
/* Ends what still runs with an error that says the server is shutting down. The backend must live
 * until http_close has returned. */
void api_abort(api *a);

#endif
