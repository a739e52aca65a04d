/* runtime/api/api_batches_int.h - what api_batches.c (the routes) and api_batch_run.c (the thread) share. */
#ifndef LLMQ_RUNTIME_API_API_BATCHES_INT_H
#define LLMQ_RUNTIME_API_API_BATCHES_INT_H

#include "runtime/api/api_batches.h"
#include "runtime/api/api_int.h"

/* X(state, its name, when it came to it) */
#define BATCH_STATES(X)                             \
    X(VALIDATING, "validating", NULL)               \
    X(IN_PROGRESS, "in_progress", "in_progress_at") \
    X(CANCELLING, "cancelling", "cancelling_at")    \
    X(FINALIZING, "finalizing", "finalizing_at")    \
    /* the end */                                   \
    X(COMPLETED, "completed", "completed_at")       \
    X(FAILED, "failed", "failed_at")                \
    X(EXPIRED, "expired", "expired_at")             \
    X(CANCELLED, "cancelled", "cancelled_at")

typedef enum {
#define X(state, name, at) BATCH_##state,
    BATCH_STATES(X)
#undef X
        BATCH_N_STATES
} batch_state;

typedef struct api_batch api_batch;
struct api_batch {
    api_batch *next; /* older */
    char id[48], input_id[48], output_id[48], error_id[48];
    lq_hash owner;
    const char *endpoint;
    api_file *input;        /* until the end */
    char *metadata;         /* JSON; malloc'd, NULL: none */
    int64_t output_seconds; /* that its files are kept; 0: for ever */
    batch_state state;
    int64_t created, expires, at[BATCH_N_STATES]; /* Unix seconds; 0: not yet */
    int64_t total, completed, failed;
    int64_t order; /* later ones have larger ones */
    jw errors;     /* a list without brackets: why it failed */
};

struct api_batches {
    api *a;
    pthread_mutex_t mu; /* of the list and of what is in it, and of the slots of who runs */
    pthread_cond_t news;
    pthread_mutex_t submit; /* held while a request is submitted */
    api_batch *latest, *running;
    int n;
    int64_t order; /* of the next batch */
    bool closing;
    pthread_t thread;
};

static inline bool batch_ended(const api_batch *b) { return b->state >= BATCH_COMPLETED; }
typedef void api_batch_write(jw *w, const api_batches *s, const api_batch *b); /* under mu */
/* Takes b over and writes what it is now; after an error it is still the caller's. */
lq_status api_batch_add(api_batches *s, api_batch *b, api_batch_write *write, jw *w, api_error *e);
/* Under mu: the owner's of this id of n bytes; NULL: there is none. */
api_batch *api_batch_find(api_batches *s, const char *id, size_t n, const lq_hash *owner);
/* Under mu. What waits has ended at once, what runs ends with the requests under way. */
void api_batch_cancel(api_batches *s, api_batch *b);
/* Under mu. One that has ended goes; its files stay. */
void api_batch_remove(api_batches *s, api_batch *b);
/* Under mu. */
void api_batch_enter(api_batches *s, api_batch *b, batch_state state);
/* Endpoint, metadata and how long files are kept, of a body or of a folder's JSON (api_batch_read.c). */
lq_status api_batch_read(api_batch *b, const cJSON *doc, api_error *e);
void api_batch_free(api_batches *s, api_batch *b);
const char *api_batch_state_name(batch_state state);
const char *api_batch_time_name(batch_state state); /* NULL: none */
/* Under mu. A folder's: keeps what b is now, and those that are there (api_batch_load.c). A failure is said
 * by the server's note: LQ_EIO, LQ_ENOMEM. */
lq_status api_batch_save(const api_batches *s, const api_batch *b);
void api_batch_forget(const api_batches *s, const api_batch *b);
lq_status api_batches_load(api_batches *s, lq_err *err);
/* Why it failed: one reason more, of a line (0: of none); *n counts them, and beyond API_BATCH_ERRORS they
 * are only counted. */
void api_batch_add_error(api_batch *b, int *n, const char *code, int64_t line, const char *message);
void api_batch_fail(api_batch *b, const char *code, const char *message);
/* Until it is closing; api_batch_run.c. */
void *api_batches_work(void *s);

#endif
