/* runtime/api/api_params.h - the parameters of a generation request: one table of names, types, ranges
 * and defaults, read against a JSON object into one struct.
 *
 * What other servers know and llmq does not have is in api_params_other.c: refused unless its value
 * changes nothing, or taken with a note where it has no influence on an answer. Names that no row
 * has are ignored and counted, or refused with strict. Bounds hold before anything is allocated for
 * a value. */
#ifndef LLMQ_RUNTIME_API_API_PARAMS_H
#define LLMQ_RUNTIME_API_API_PARAMS_H

#include "base/json.h"
#include "base/json_write.h"
#include "formats/arch/generation_config.h"
#include "runtime/api/api_error.h"
#include "runtime/api/api_samplers.h"
#include "runtime/engine/engine.h"
#include "runtime/limits.h"

typedef enum {
    API_COMPLETIONS = 1,
    API_CHAT = 2,
    API_EMBEDDINGS = 4,
    API_RERANK = 8,
    API_SCORE = 16,
    API_CLASSIFY = 32,
    API_READS = API_EMBEDDINGS | API_CLASSIFY, /* nothing is written */
    API_JUDGES = API_RERANK | API_SCORE
} api_kind;

/* Whether the model is to think. */
typedef enum { API_THINK_ANY, API_THINK, API_THINK_NOT } api_think;

/* What the answer must be a sentence of. */
typedef struct {
    const char *param; /* that asked for it; NULL: none did */
    gr_spec spec;
    char *text; /* spec.text, malloc'd */
} api_structured;

typedef struct {
    /* strings point into the request's JSON document */
    const char *model;
    bool stream, include_usage, continuous_usage;
    bool beams; /* beam search, best_of lines wide */
    double length_penalty;
    eng_early early;
    int64_t n, best_of; /* best_of: sequences of which n are shown; at least n */
    int64_t max_tokens; /* -1: not given, or */
    bool to_the_end;    /* -1 was: as many as the context has room for */
    int64_t max_completion_tokens;
    int64_t min_tokens;
    int64_t thinking_budget; /* tokens; -1: not given */
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int64_t top_k;
    api_samplers samplers;
    bool has_seed;
    int64_t seed;
    int64_t logprobs;        /* alternatives per token; -1: none */
    int64_t prompt_logprobs; /* likewise of the prompt */
    bool echo, ignore_eos, include_stop, skip_special, return_ids, ids_as_tokens;
    bool progress; /* of reading the prompt, in a stream */
    bool add_special;
    int64_t truncate;   /* 0: not given; -1: to what fits */
    const char *suffix; /* the answer goes before it; NULL: nothing follows */
    const cJSON *extra; /* files to be shown before it; NULL: none */
    const char *cache_salt;
    int64_t priority;
    const char *stop[API_MAX_STOPS];
    int n_stop;
    int32_t *stop_ids; /* malloc'd, as the next ones */
    int n_stop_ids;
    int32_t *allowed;
    int n_allowed;
    smp_bias *bias;
    int n_bias;
    const cJSON *bad_words; /* strings; NULL: none */
    api_structured structured;
    /* chat */
    bool chat_logprobs, has_generation_prompt, add_generation_prompt, continue_final;
    int64_t top_logprobs; /* -1: not given */
    const cJSON *template_kwargs;
    cJSON *made_kwargs; /* that those are, with what api_thinking.c adds; NULL: the request's */
    const char *effort; /* reasoning_effort; NULL: not given */
    api_think thinking;
    const cJSON *tools;       /* that the model may call; NULL: none */
    const cJSON *asked_tools; /* as the request has them, of any kind */
    cJSON *made_tools;    /* functions out of those that are none, which tools then is; or NULL */
    cJSON *allowed_tools; /* references to some of the request's, which tools then is; or NULL */
    bool functions;       /* the request has `functions`, and so has the answer */
    bool parallel_calls, include_reasoning;
    bool must_call;        /* the answer is calls, ... */
    const char *only_tool; /* ... of this one; NULL: of any */

    /* embeddings */
    bool embeds, base64;     /* embeds: the request is of that kind */
    eng_pool pool;           /* ENG_NO_POOL: as the model's files say, or of the last token */
    const char *prompt_name; /* NULL: the default one's text goes before an input, if any */
    int64_t dimensions;      /* 0: not given */

    /* rerank, score */
    int64_t top_n;      /* results shown; 0: all */
    int64_t doc_tokens; /* a document is cut to so many; 0: it is not */
    bool has_shows, shows_documents, raw_scores;
    const char *instruction;

    int n_ignored;  /* members whose names no row has */
    uint64_t noted; /* taken without influence: bit i is api_noted_name(i) */
    /* while reading */
    int64_t vocab;
} api_params;

/* Read `doc` (an object of js_parse with JS_SPELLED). Free with api_params_free, also after an
 * error. Strings borrow from doc. */
lq_status api_params_read(api_params *p, const cJSON *doc, api_kind kind, const gen_defaults *d,
                          int64_t vocab, bool strict, api_error *e);
void api_params_free(api_params *p);
const char *api_noted_name(int i); /* api_params_other.c */
/* The table as an object of JSON schemas by name, for /openapi.json. What is more than one number
 * or string refers to "#/components/schemas/NAME", which runtime/api/openapi.json holds. */
void api_params_schema(jw *w, api_kind kind);

/* One of the parameters of structured output (api_grammar.c); LQ_EVALUE after api_fail. */
lq_status api_read_structured(api_structured *s, const char *param, const cJSON *v, api_error *e);

/* api_thinking.c: `reasoning_effort`, `reasoning`, `enable_thinking`, `thinking`. */
lq_status api_read_thinking(api_params *p, const char *name, const cJSON *v, api_error *e);

/* runtime/api/api_tools.c: `tools` of a chat, or `functions`; p->tools is set. Then `tool_choice` or `function_call`. */
lq_status api_read_tools(api_params *p, const cJSON *v, api_error *e);
lq_status api_read_functions(api_params *p, const cJSON *v, api_error *e);
lq_status api_check_tool_choice(api_params *p, const cJSON *doc, api_error *e);
/* The tool of that name in a list, or NULL. */
const cJSON *api_find_tool(const cJSON *tools, const char *name, size_t n);
/* The request's tool of that name is a custom one: a call of it is a text, which its arguments hold. */
bool api_is_custom(const api_params *p, const char *name, size_t n);
/* That text, or as much of it as cut arguments have. */
void api_custom_input(lq_buf *out, const lq_buf *arguments);

/* Ids of a JSON array, each within 0..vocab-1; *ids is malloc'd. */
lq_status api_read_ids(int32_t **ids, int *n, const cJSON *v, const char *param, int64_t vocab,
                       int max, api_error *e);

#endif
