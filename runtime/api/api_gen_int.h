/* runtime/api/api_gen_int.h - a running generation request: shared by api_gen.c, which runs it, and
 * the files that write its answer for each kind of client. */
#ifndef LLMQ_RUNTIME_API_API_GEN_INT_H
#define LLMQ_RUNTIME_API_API_GEN_INT_H

#include "runtime/api/api_int.h"
#include "runtime/chat/chat_out.h"

typedef struct gen gen;
typedef struct gen_choice gen_choice;
typedef struct gen_item gen_item;

/* How one kind of client is answered: a row for each, in the file that writes it. */
struct gen_shape {
    api_kind kind;      /* the parameters that its requests have */
    const char *prefix; /* of its answers' ids */
    bool secret;        /* nobody can guess an id */
    const char *prompt; /* the parameter that the prompt is made of: errors name it */
    const struct api_dialect *dialect; /* of its bodies (api_body.h); NULL: OpenAI's */
    bool chat_logprobs;  /* log-probabilities have a chat's shape, whatever the kind ... */
    bool logprob_ids;    /* ... and each token its id */
    bool item_logprobs;  /* they are each text's own (api_items.h) */
    bool fills;          /* max_tokens beyond the context ends at the context, and is not refused */
    int64_t most_tokens; /* of an answer whose request does not say; 0: the rest of the context */
    /* Bytes of a part of the answer (api_parts.c); of an answer without parts all is CHAT_CONTENT. */
    void (*take)(gen_choice *c, chat_part part, const char *p, size_t n);
    /* A stream. False: the client is gone. */
    bool (*chunk)(gen_choice *c);    /* what of the choice was not sent yet */
    bool (*progress)(gen_choice *c); /* c->read of the prompt are read; NULL: it tells nobody */
    bool (*end)(gen *g);             /* behind the last chunk of all choices */
    bool (*error)(gen *g);           /* in its place: gen.state.error */
    void (*answer)(gen *g, jw *w);   /* the whole answer */
};

/* One sequence of the answer. After its submission only the engine's thread touches it, until
 * gen.state.pending is 0. The buffers hold what was not sent yet: in a stream since the last chunk,
 * else everything; those of JSON are lists without brackets. */
struct gen_choice {
    gen *g; /* choices of a beam search are one request, of sample 0 */
    int index, prompt;
    int sample, rank; /* among those of its prompt: when begun, and in the answer; -1: not there */
    uint64_t id;      /* the engine's, valid once `submitted` */
    atomic_bool submitted;

    /* not sent yet */
    lq_buf text, reasoning;
    jw ids;
    struct {
        jw prompt;                        /* prompt_logprobs, of sample 0 */
        jw tokens, values, tops, offsets; /* completions */
        jw content;                       /* chat */
        double sum;                       /* with best_of */
    } lp;
    struct {
        jw list;
        lq_buf args;   /* of the open call */
        lq_buf custom; /* the name of an open call of a custom tool; empty: none is open */
        int n;
        bool open;
    } calls;
    struct { /* api_items.c, for the shapes whose answers are lists */
        gen_item *v;
        int n, at; /* at: the first that the stream has not to its end */
        bool news;
    } items;
    chat_out *out; /* a chat's answer with parts (api_parts.c); NULL: all of it is text */
    struct {
        tok_stream *stream;
        int64_t at; /* in code points */
    } offset;       /* where in the text a token begins */
    double odds;    /* of a judgement: log(P(yes) / P(no)) */
    double *
        pooled; /* [api_model.hidden] what an embedding is made of, or scores of labels; malloc'd */
    struct {    /* api_llama.c: where an answer ends besides */
        atomic_bool cut; /* it has: what the sequence still writes does not count */
        bool read, indenting;
        int64_t n_indent, max_ms, indent;
    } limit;
    int64_t read; /* ids of the prompt, for `progress` */
    bool opened;  /* a chunk was sent */
    size_t held;  /* bytes of the buffers that are counted with the request's */

    /* how it ended, and what it took */
    struct {
        eng_finish finish;
        const char *stop_string;
        int32_t stop_id;
    } end;
    struct {
        int64_t n_output, n_cached;
        double t_first, t_last;
    } stats;
};

struct gen {
    gen *prev, *next; /* in api.gens */
    api *a;
    http_req *r;
    const gen_shape *shape;
    api_params p;
    cJSON *doc, *body, *past; /* api_request's */
    lora_adapter *lora;       /* that the request named; NULL: none */

    struct {
        api_prompt *v;
        size_t n;
        int64_t n_ids;
    } prompts;
    struct {
        grammar *grammar; /* NULL: free answers */
        int32_t *bad;     /* eng_request's, malloc'd */
        int n_bad;
        dry_breakers dry;
        eng_wake *wakes; /* of calls: the grammar sleeps until then; malloc'd, as wake_text */
        int n_wakes;
        void *wake_text;
        const char *wake_after, *wake_begin;
        thought_limit thought;
    } limits; /* on what may be drawn */
    struct {
        gen_choice *v;
        int n, runs; /* runs: choices of a prompt, those that are not shown included */
    } choices;
    struct {
        atomic_int pending; /* requests of the engine's that go on, and the submitting thread */
        atomic_bool gone, failed; /* the client went; error holds */
        api_error error;
    } state;
    struct {
        char id[64];
        const char *model;
        int64_t created;
        bool begun; /* the stream's head is out */
        int64_t n_events;
        jw chunk; /* scratch */
    } answer;
};

/* api_write.c: "prompt_progress", as llama.cpp's server has it. */
void gen_write_progress(jw *w, const gen_choice *c);

/* api_calls.c: the form of the request's answers; NULL: plain text. */
const chat_form *gen_form(const gen *g);
bool gen_ends_thinking(const gen *g, const api_prompt *p); /* p ends inside a thought */
/* api_calls.c: the structure of calls that must come and of one behind a thought; g->limits for calls
 * that may come. */
lq_status gen_plan_calls(gen *g, api_error *e);
/* api_parts.c: before the first text; text that may be of any part, `ends` with the last. */
lq_status gen_open_parts(gen_choice *c, lq_err *err);
void gen_take_text(gen_choice *c, const char *text, size_t n, bool ends);
/* Completes the open entry of `calls`: clients want one a chunk. */
void gen_end_call(gen_choice *c);
void gen_free_parts(gen_choice *c);

/* api_parts.c: a chat's part, as text, reasoning or an entry of `calls`. */
void gen_take_chat(gen_choice *c, chat_part part, const char *p, size_t n);

/* api_items.c. What the list takes: it is counted with the request's. */
size_t gen_items_bytes(const gen_choice *c);
void gen_free_items(gen_choice *c);

/* api_logprobs.c. prompt_logprobs as vLLM gives them, of n ids. */
void gen_write_prompt_logprobs(gen_choice *c, const smp_result *r, int64_t n);
/* Appends one token with its logprobs; `known` is false for the first token of a prompt. */
void gen_write_logprob(gen_choice *c, const smp_result *r, bool known);
/* "logprobs": ..., and "prompt_logprobs" of a prompt, taking what was gathered. */
void gen_write_logprobs(jw *w, gen_choice *c);
void gen_write_all_prompt_logprobs(jw *w, const gen *g, int prompt);
/* "KEY": [what the list holds], which is empty then. */
void gen_take_list(jw *w, const char *key, jw *list);
/* gen_shape.take of answers without text. */
void gen_take_nothing(gen_choice *c, chat_part part, const char *p, size_t n);
/* api_rerank.c: r has what api_model.labels asked for. */
void gen_take_judgement(gen_choice *c, const smp_result *r);
void gen_take_score(gen_choice *c, const double *pooled);  /* where the model gives one */
bool gen_take_labels(gen_choice *c, const double *pooled); /* of all its labels */
eng_pool gen_pool(const gen *g); /* which rows the answer is made of; ENG_NO_POOL: none */
/* api_embeddings.c: keeps what the engine pooled. */
/* The embedding as numbers, or as the request wants it. */
void gen_write_vector(gen_choice *c, jw *w);
/* The same as n numbers, the caller's to free; NULL: w says that memory is out. And as numbers or base64. */
float *gen_vector(gen_choice *c, jw *w, int64_t *n);
void gen_write_floats(jw *w, const float *v, int64_t n, bool base64);
bool gen_take_vector(gen_choice *c, const double *pooled);
/* What of the answer's id is its own. */
static inline const char *gen_key(const gen *g) { return g->answer.id + strlen(g->shape->prefix); }
/* api_usage.c: "usage": {...} */
void gen_write_usage(jw *w, const gen *g);

#endif
