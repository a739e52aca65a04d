/* runtime/engine/request.h - a request to the engine and its events; runtime/engine/engine.h
 * describes them. */
#ifndef LLMQ_RUNTIME_ENGINE_REQUEST_H
#define LLMQ_RUNTIME_ENGINE_REQUEST_H

#include "runtime/engine/sample.h"
#include "runtime/engine/thought.h"
#include "runtime/grammar/grammar.h"
#include "runtime/model/lora.h"

typedef enum {
    ENG_RUNNING,
    ENG_STOP,
    ENG_LENGTH,
    ENG_CANCELLED,
    ENG_ERROR,
    ENG_N_FINISH
} eng_finish;
/* What an embedding is made of: the last layer's output, after the final norm, over the prompt. The
 * last row, the first, the largest of each element, or a sum of all: over n, over sqrt(n), or of
 * each times its number (from 1) over the sum of those. */
typedef enum {
    ENG_NO_POOL,
    ENG_POOL_LAST,
    ENG_POOL_FIRST,
    ENG_POOL_MAX,
    ENG_POOL_MEAN,
    ENG_POOL_ROOT,
    ENG_POOL_WEIGHTED
} eng_pool;

/* When a beam search is over before max_tokens, its `width` answers once found: as soon as the best
 * line that goes on could not be among them if it ended here; at once; or when it could not
 * whatever length it reached. transformers' early_stopping False, True and "never". */
typedef enum { ENG_EARLY_NO_GAIN, ENG_EARLY_FULL, ENG_EARLY_NEVER } eng_early;

/* runtime/engine/beam.h */
typedef struct {
    int64_t width;         /* lines followed; 0: no beam search */
    int64_t n;             /* answers wanted, 1..width */
    double length_penalty; /* an answer's score: the sum of its log-probabilities / length^this */
    eng_early early;
} eng_beam;

/* The grammar sleeps until the output ends with one of the texts (special tokens as they are
 * spelled); its matcher has then read the text's `feed`, and it sleeps again where nothing can
 * follow. */
typedef struct {
    const char *text, *feed; /* of at most ENG_MAX_WAKE bytes */
    bool
        begins; /* text has no blanks, and is all of the output, blanks aside, since its beginning, a former call or
                  * wake_begin */
} eng_wake;
enum { ENG_MAX_WAKE = 320 };

typedef struct {
    const int32_t *prompt;   /* copied */
    int64_t n_prompt;        /* >= 1 */
    int64_t n_first;         /* of two texts: the ids that are of the first type; 0: all */
    int64_t max_tokens;      /* 0: only score the prompt */
    int64_t min_tokens;      /* EOS and stop ids are banned, stop strings ignored, until then */
    smp_params params;       /* arrays are copied; of infill the engine sets tok and ends */
    bool infill;             /* that stage is on; the model has a tokenizer */
    const char *const *stop; /* stop strings, copied */
    int n_stop;
    const int32_t *stop_ids;
    int n_stop_ids;
    /* Runs of ids that must not be output: of each the number of its ids (>= 1), then those. The
     * last id of a run is banned where the output ends with the others. Copied. */
    const int32_t *bad;
    int n_bad;         /* numbers in all */
    bool include_stop; /* keep the stop string in the text */
    bool ignore_eos;
    bool show_special;     /* text of special tokens is delivered */
    int prompt_logprobs;   /* -1: none */
    grammar *grammar;      /* the answer is a sentence of it; NULL: free. A reference is taken */
    const eng_wake *wakes; /* NULL: the grammar never sleeps. Copied */
    int n_wakes;
    const char
        *wake_begin; /* an output begins again behind it, as behind a thought; NULL: nowhere */
    const char *wake_after; /* NULL: anywhere; else only behind this text, or nothing but blanks */
    const int32_t
        *show_ids; /* special tokens whose text is delivered, whatever show_special says */
    int n_show_ids;
    const thought_limit *thought; /* NULL: a thought may be as long as the answer. Copied */
    eng_beam beam;    /* nothing is drawn then: temperature, top_k, ..., seed say nothing */
    eng_pool pool;    /* an embedding of the prompt is wanted; max_tokens is 0 then */
    const char *salt; /* prefix cache salt or NULL */
    lora_adapter
        *lora; /* the adapter, of eng_opts.lora_rank at most; NULL: none. A reference is taken */
    bool progress;    /* an event after each step that reads the prompt: eng_event.n_read */
    int32_t priority; /* lower is served first; a stream of them can starve higher ones */
} eng_request;

/* What a sequence has produced since the last event. Pointers are valid during the callback. */
typedef struct {
    uint64_t id;
    const char *text; /* new text, whole code points; may be empty while ids are held back */
    size_t n_text;
    const int32_t *ids;         /* new ids (all of them, also held back in text) */
    const smp_result *logprobs; /* [n_ids] or NULL */
    int n_ids;
    const smp_result
        *prompt_logprobs; /* [n_prompt], once, before the first token; entry 0 has no logprob */
    const double *pooled; /* [hidden] with the last event of an embedding */
    int64_t n_prompt, n_cached, n_output; /* usage so far */
    int64_t n_read; /* of an event of eng_request.progress, which tells nothing else: ids of the
                       prompt that are read, those from the cache included; 0 of all others */
    /* A beam search gives its answers when all is done, one after the other, the best first. */
    int answer;              /* which of them this event is of; 0 for all others */
    bool last;               /* of the request */
    eng_finish finish;       /* of the answer; set in the last event too */
    const char *stop_string; /* which stop string matched, or NULL */
    int32_t stop_id;         /* which stop id (not EOS), or -1 */
    const char *error;       /* ENG_ERROR */
    lq_status status; /* ENG_ERROR: LQ_ENOENT where what the request bans leaves no answer and
                         nothing else is wrong; LQ_EDEVICE: the device is lost */
} eng_event;

/* Called on the engine thread: must be quick and never call back into the engine except eng_cancel. On a
 * device an event may come while the next step is under way, whose id comes too after a cancel. */
typedef void (*eng_sink)(void *user, const eng_event *e);

#endif
