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
    jw errors; /* a list without brackets: why it failed */
};

struct api_batches {
    api *a;
    pthread_mutex_t mu; /* of the list and of what is in it, and of the slots of who runs */
    pthread_cond_t news;
    pthread_mutex_t submit; /* held while a request is submitted */
    api_batch *latest, *running;
    int n;
    bool closing;
    pthread_t thread;
};

static inline bool batch_ended(const api_batch *b) { return b->state >= BATCH_COMPLETED; }
/* Under mu. */
void api_batch_enter(api_batches *s, api_batch *b, batch_state state);
/* Until it is closing; api_batch_run.c. */
void *api_batches_work(void *s);

#endif
