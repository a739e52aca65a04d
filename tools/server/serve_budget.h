/* tools/server/serve_budget.h - the memory of `llmq serve`, from the model's config and the options,
 * before a weight is read. What --dry-run prints is what the server is then opened with. */
#ifndef LLMQ_TOOLS_SERVER_SERVE_BUDGET_H
#define LLMQ_TOOLS_SERVER_SERVE_BUDGET_H

#include "runtime/engine/sizing.h"
#include "runtime/http/http.h"
#include "tools/cli/model_opts.h"

typedef struct {
    const char *name; /* "KV cache" */
    const char *key;  /* "kv_bytes" */
    size_t bytes;
    char note[120]; /* what they are for; may be empty */
} budget_row;

/* The part on GPUs, in bytes of each of them. */
typedef struct {
    char name[64];
    int64_t layers; /* the last ones of the model; 0: all is on the CPU */
    int ranks;      /* GPUs */
    size_t room;    /* free before */
    size_t weights, draft, adapters, kv, step; /* draft: its weights, which are on the first */
    int64_t draft_layers; /* of a draft or head, the last ones; 0: it is on the CPU */
} budget_gpu;

enum { BUDGET_ROWS = 20 };
typedef struct {
    budget_gpu gpu;
    eng_opts engine;   /* what was asked for, with what was left open decided; .draft is unset */
    int64_t model_len; /* the model's own context; 0: without end */
    int64_t longest;   /* the longest context that the memory holds */
    int64_t kv_blocks, states; /* states: of sequences, 0 where the model has none */
    /* Slots of layers with a window, and bytes of one; 0: all K and V are in blocks */
    int64_t windows;
    size_t window_bytes;
    size_t kv_token_bytes; /* the draft's too */
    int ranks;             /* processes; the rows are of each */
    size_t memory, held;   /* free here (0: nobody knows); held at once, before any request comes */
    budget_row rows[BUDGET_ROWS];
    int n, n_held; /* rows; the first are what is held, the others what requests take */
    size_t total;  /* of the rows: what no number of requests exceeds */
} budget;

typedef struct {
    const arch_config *cfg, *draft; /* draft: of the model that guesses, or NULL */
    size_t weights, draft_weights;
    const char *format, *draft_format; /* a word for the notes */
    size_t memory;                     /* to fit into; 0: nobody knows */
    budget_gpu gpu;                    /* without kv and step; `weights` are those of the host */
    const model_part
        *part; /* `cfg` and `weights` are of one of several processes; NULL: all is here */
} budget_model;
/* Errors are those of eng_size; LQ_EVALUE: weights and the buffers of a step are more than the
 * memory. */
lq_status budget_sum(budget *b, const budget_model *m, const eng_opts *asked, const http_opts *http,
                     int threads, lq_err *err);
/* Of models that are opened for it, draft or NULL (mtp: the model's MTP head), in the memory that is
 * free here. on: where its layers go, NULL: to the CPU; of several processes the sum is that of the one that has most. rope: --rope-scaling or NULL. Further errors: those of
 * model_choose_layers, and what a device cannot do. */
lq_status budget_make(budget *b, const char *path, const char *draft, bool mtp,
                      const eng_opts *asked, const http_opts *http, const load_opts *on,
                      bool verify, const char *rope, int threads, lq_err *err);
/* What is kept: of so many responses (--response-store), of files (--file-store). */
void budget_add_stores(budget *b, int64_t responses, size_t files);
void budget_print(const budget *b);
cJSON *budget_json(const budget *b); /* NULL: out of memory */

#endif
