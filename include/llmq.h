/* llmq.h - language models from C: open one and let it answer, quantize one, convert one.
 *
 *     llmq *m = NULL;
 *     llmq_error e;
 *     if (llmq_open(&m, "novels.llmq", NULL, &e)) { fprintf(stderr, "%s\n", e.text); return 1; }
 *     llmq_generate(m, "The old house", NULL, print, NULL, NULL, &e);
 *     llmq_close(m);
 *
 * Build:   cc generate.c $(pkg-config --cflags --libs llmq)
 * Results: every function that can fail returns LLMQ_OK (0) or a code of llmq_code and, where `e` is
 *          not NULL, writes the code and one line of text there. After an error no result is
 *          written: pointers are NULL, counts 0.
 * Text:    UTF-8. Text that goes in ends with a NUL unless a size stands beside it; text that
 *          comes out has its size and ends with a NUL too.
 * Memory:  what a function allocates for the caller is freed by llmq_free; nothing else is. What
 *          goes in is copied or used during the call alone.
 * Structs: `size` is the first member of each that the caller fills: sizeof of it, so that a later
 *          library knows what an earlier program does not have. All else zero is the default.
 * Options: one JSON object, {"method":"awq","bits":4}, by the names of the program's options without
 *          their dashes ('_' counts as '-'): `llmq quantize --help` lists them. Numbers and text as
 *          there, true and false of switches, an array of what may be repeated. The table, the
 *          ranges and the checks are the program's. NULL: none.
 * Threads: calls for different models, and all that take no model, may run at once. Of one model
 *          any number of threads may call llmq_generate, llmq_submit, llmq_poll, llmq_tokenize,
 *          llmq_detokenize, llmq_embed and llmq_logits at once; llmq_close is the last call, alone.
 *          llmq_quantize runs once at a time in a process (LLMQ_EBUSY).
 * Process: the library prints nothing, calls no exit, sets no locale (its calls use the C locale
 *          for numbers on the thread that makes them, and put yours back), and starts threads that
 *          end with llmq_close or with the call that started them. What all of the process shares:
 *          the kernels (the CPU instructions) are chosen by the first call and stay while a model is
 *          open or a file is made (LLMQ_EBUSY: others were asked for); while llmq_quantize runs, a
 *          handler for SIGBUS is set, which passes on what is not its own, and OpenBLAS is set to
 *          one thread and afterwards back; cJSON's hooks are set to malloc and free. Model files are
 *          mapped: one that is cut short while it is open ends the process with SIGBUS.
 *          A child after fork may use no model that was open before it.
 *
 * This header is the contract of ABI 0: see docs/library.md for what may change. */
#ifndef LLMQ_H
#define LLMQ_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LLMQ_API __attribute__((visibility("default")))
#else
#define LLMQ_API
#endif

/* ---- version ---- */

/* Of this header. A program works with every library of the same number: check once that
 * llmq_abi() == LLMQ_ABI where the library is loaded by name. */
#define LLMQ_ABI 0

LLMQ_API int32_t llmq_abi(void);         /* of the library */
LLMQ_API const char *llmq_version(void); /* "0.1.0"; static */

/* ---- errors ---- */

/* New codes may be added: treat one that you do not know as a failure. */
enum llmq_code {
    LLMQ_OK = 0,
    LLMQ_EIO = 1,          /* a file or a device of the system fails */
    LLMQ_ENOMEM = 2,       /* out of memory */
    LLMQ_EBUSY = 3,        /* another call has what this one needs, or the queue is full */
    LLMQ_EDEVICE = 4,      /* a GPU fails or is not there */
    LLMQ_EUSAGE = 5,       /* an option or an argument is wrong */
    LLMQ_EFORMAT = 6,      /* a file is malformed */
    LLMQ_ESHAPE = 7,       /* a tensor has another shape than its model's */
    LLMQ_EVALUE = 8,       /* a value is out of range; a request asks for what cannot be */
    LLMQ_EUNSUPPORTED = 9, /* a model, a format or a processor that is not supported */
    LLMQ_ENOENT = 10,      /* a file, or what a file should have, is not there */
    LLMQ_ECHECK = 11,      /* a checksum says no */
    LLMQ_EINTR = 12        /* a callback said stop */
};

typedef struct {
    int32_t code;   /* of llmq_code */
    char text[508]; /* one line: what, where, expected, found; "" after success */
} llmq_error;

/* ---- callbacks ---- */

/* Return 0 to go on; anything else ends the call that reports, with LLMQ_EINTR. Called by any
 * thread, one at a time, at most some twenty times a second; must not call back into the library.
 * what: "rounding", in English, for a person; done of total, in units of no meaning. */
typedef int32_t (*llmq_on_progress)(void *user, const char *what, double done, double total);

/* Return 0 to go on; anything else ends the answer. n bytes of new text, whole characters, also
 * NUL-terminated; valid during the call. On the thread that called llmq_generate. */
typedef int32_t (*llmq_on_text)(void *user, const char *text, size_t n);

/* level: 0 error, 1 warning, 2 information, 3 detail. Any thread, one at a time; must not call back
 * into the library. */
typedef void (*llmq_on_message)(void *user, int32_t level, const char *text);

/* What would be printed as a message (a warning about a model, where it runs) goes to f; NULL, as at
 * the beginning: nowhere. For the whole process, from any thread. */
LLMQ_API void llmq_listen(llmq_on_message f, void *user);

/* Frees what a function of this header has allocated. NULL allowed. */
LLMQ_API void llmq_free(void *p);

/* ---- a model ---- */

typedef struct llmq llmq;

typedef struct {
    size_t size;               /* sizeof(llmq_options) */
    const char *options;       /* those of `llmq batch` that concern engine and model: "threads",
                            "device", "max-model-len", "max-num-seqs", "kv-cache-memory",
                            "kv-cache-dtype", "activations", "verify", "served-model-name", ... */
    llmq_on_progress progress; /* while it is loaded; NULL: nobody watches */
    void *user;                /* of progress */
} llmq_options;

/* Loads a model and starts its engine. path: a .llmq file, a GGUF file or a Hugging Face folder.
 * o: NULL is the default: all cores, the CPU, the model's context.
 * Errors: LLMQ_ENOENT, LLMQ_EIO, LLMQ_EFORMAT, LLMQ_ESHAPE, LLMQ_EVALUE, LLMQ_EUNSUPPORTED (the file),
 * LLMQ_ECHECK ("verify"), LLMQ_EUSAGE (options), LLMQ_EBUSY (kernels), LLMQ_EDEVICE, LLMQ_ENOMEM,
 * LLMQ_EINTR. */
LLMQ_API int32_t llmq_open(llmq **m, const char *path, const llmq_options *o, llmq_error *e);

/* Ends what still runs and frees the model. No other call for it may be under way. NULL allowed. */
LLMQ_API void llmq_close(llmq *m);

/* ---- one answer, as it comes ---- */

enum llmq_prompt {
    LLMQ_TEXT = 0,    /* the prompt is text to go on with */
    LLMQ_MESSAGE = 1, /* it is a user's message, for the model's chat template */
    LLMQ_MESSAGES = 2 /* it is a conversation, JSON: [{"role":"user","content":"..."},...] */
};

typedef struct {
    size_t size;        /* sizeof(llmq_sampling) */
    int32_t prompt;     /* of llmq_prompt */
    int32_t ignore_eos; /* not 0: go on after the end-of-text token */
    int64_t max_tokens; /* of the answer; 0: 128 */
    int64_t min_tokens; /* no end before so many */
    double temperature; /* 0: the likeliest token each time */
    double top_p;       /* draw among the likeliest that make up this much; 0: off */
    double min_p;       /* draw among those at least this likely beside the likeliest; 0: off */
    int64_t top_k;      /* draw among the K likeliest; 0: off */
    uint64_t seed;      /* same seed, same answer */
    double repetition_penalty; /* divides the logits of tokens that were there; 0: off */
    double presence_penalty;   /* taken off tokens that were answered */
    double frequency_penalty;  /* taken off for each time */
    const char *const *stop;   /* [n_stop] texts: the answer ends before one of them */
    size_t n_stop;
} llmq_sampling;

enum llmq_finish {
    LLMQ_STOP = 1,  /* an end token or a stop text */
    LLMQ_LENGTH = 2 /* max_tokens, or the context is full */
};

typedef struct {
    size_t size;           /* sizeof(llmq_usage), set by the caller */
    int32_t finish;        /* of llmq_finish */
    int32_t reserved;      /* 0 */
    int64_t prompt_tokens; /* of which the cache had cached_tokens */
    int64_t cached_tokens;
    int64_t output_tokens;
} llmq_usage;

/* Answers one prompt and returns when the answer has ended. s: NULL is the default (LLMQ_TEXT, the
 * likeliest tokens, at most 128). f: NULL reads nothing. u: NULL is not wanted. Unlike the server's
 * requests this takes nothing from the model's generation_config.json. Several calls at once share
 * the engine's steps, and the answer of each is the same as alone.
 * Errors: LLMQ_EVALUE (too long a prompt, a value out of range, malformed messages), LLMQ_EUNSUPPORTED
 * (no tokenizer or no chat template), LLMQ_EBUSY (the queue is full), LLMQ_EDEVICE, LLMQ_ENOMEM,
 * LLMQ_EINTR (f said stop: *u has what came before). */
LLMQ_API int32_t llmq_generate(llmq *m, const char *prompt, const llmq_sampling *s, llmq_on_text f,
                               void *user, llmq_usage *u, llmq_error *e);

/* ---- requests in the server's JSON ---- */

/* Submits a request as `llmq serve` would get it and returns at once. route: a POST route of the
 * server, "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize", ...; json:
 * the body, n bytes. *id: for llmq_poll, never 0. What is wrong with the body is an answer with its
 * status; "stream": true is.
 * Errors: LLMQ_EVALUE (no such route), LLMQ_ENOMEM. */
LLMQ_API int32_t llmq_submit(llmq *m, const char *route, const char *json, size_t n, uint64_t *id,
                             llmq_error *e);

typedef struct {
    size_t size;    /* sizeof(llmq_answer), set by the caller */
    uint64_t id;    /* of llmq_submit; 0: there is no answer yet */
    int32_t status; /* as HTTP's: 200 is success */
    int32_t reserved;
    char *json; /* the body, NUL-terminated; free it by llmq_free */
    size_t n;   /* bytes of it without the NUL */
} llmq_answer;

/* Takes one answer: that of `id`, or for id 0 the one that was finished first. Each answer is taken
 * once. Waits at most timeout_ms milliseconds: 0 does not wait, a negative number waits until there
 * is one. LLMQ_OK with a->id 0: the time has passed without it.
 * Errors: LLMQ_ENOMEM (the answer is lost), LLMQ_EUSAGE (a->size). */
LLMQ_API int32_t llmq_poll(llmq *m, uint64_t id, llmq_answer *a, int64_t timeout_ms, llmq_error *e);

/* ---- text and numbers ---- */

/* n bytes of text to token ids: *ids [*n_ids], free it by llmq_free. special: not 0 adds the tokens
 * that the tokenizer puts around a text (a begin token).
 * Errors: LLMQ_EUNSUPPORTED (the model has no tokenizer), LLMQ_EVALUE (above 1 GiB), LLMQ_ENOMEM. */
LLMQ_API int32_t llmq_tokenize(llmq *m, const char *text, size_t n, int32_t special, int32_t **ids,
                               size_t *n_ids, llmq_error *e);

/* ids [n_ids] to text: *text, *n bytes and a NUL, free it by llmq_free. special: not 0 writes the
 * text of special tokens too.
 * Errors: LLMQ_EUNSUPPORTED (no tokenizer), LLMQ_EVALUE (no such id), LLMQ_ENOMEM. */
LLMQ_API int32_t llmq_detokenize(llmq *m, const int32_t *ids, size_t n_ids, int32_t special,
                                 char **text, size_t *n, llmq_error *e);

/* The embedding of n bytes of text as the server's /v1/embeddings makes it, a vector of length 1:
 * *v [*dims], free it by llmq_free.
 * Errors: LLMQ_EVALUE (too long, not UTF-8), LLMQ_EUNSUPPORTED (no tokenizer), LLMQ_EBUSY,
 * LLMQ_EDEVICE, LLMQ_ENOMEM. */
LLMQ_API int32_t llmq_embed(llmq *m, const char *text, size_t n, float **v, size_t *dims,
                            llmq_error *e);

/* The logits of every position of ids [n]: *logits, f32 [n, *vocab], free it by llmq_free. exact: not
 * 0 computes in f32, as `llmq logits` does unless told otherwise; 0 as the engine does. Runs beside
 * the engine, with threads and a cache of its own.
 * Errors: LLMQ_EVALUE (no such id, no id, more than the model's context, logits that are not finite),
 * LLMQ_EUNSUPPORTED (a model on a GPU), LLMQ_ENOMEM. */
LLMQ_API int32_t llmq_logits(llmq *m, const int32_t *ids, size_t n, int32_t exact, float **logits,
                             size_t *vocab, llmq_error *e);

/* ---- files ---- */

/* `llmq quantize src -o dst`: src is a Hugging Face folder or an unquantized .llmq file, dst the
 * .llmq file, which appears whole or not at all. options: the command's; with "dry-run" nothing is
 * written and dst may be NULL. *report: NULL is not wanted, else the document of `llmq quantize
 * --json`, free it by llmq_free. After LLMQ_EINTR finished layers are kept beside dst, and the same
 * call goes on from there and gives the same bytes.
 * Errors: as the command's: LLMQ_EUSAGE (options, or dst cannot be written to without harm to src),
 * LLMQ_EBUSY (another llmq_quantize runs, or writes dst), LLMQ_ENOENT, LLMQ_EIO, LLMQ_EFORMAT,
 * LLMQ_ESHAPE, LLMQ_EVALUE (NaN or Inf in a weight), LLMQ_EUNSUPPORTED, LLMQ_EDEVICE, LLMQ_ENOMEM,
 * LLMQ_EINTR. */
LLMQ_API int32_t llmq_quantize(const char *src, const char *dst, const char *options,
                               llmq_on_progress f, void *user, char **report, llmq_error *e);

/* `llmq convert src -o dst`: options names at least the format, {"to":"gguf"}. *report: the document
 * of `llmq convert --json`. Errors: likewise; LLMQ_EUNSUPPORTED - the format cannot hold a weight. */
LLMQ_API int32_t llmq_convert(const char *src, const char *dst, const char *options,
                              llmq_on_progress f, void *user, char **report, llmq_error *e);

#ifdef __cplusplus
}
#endif

#endif
