/* quantize/tune/states.h - the states of all weights that are trained (quantize/layer/trainable.h): in memory, or in a
 * file from which one at a time comes to memory.
 *
 * The file holds also what training makes of the weights, mapped, so that it takes memory where it is read alone. It has
 * no name: its space is freed with its last user, also when the process is killed. */
#ifndef LLMQ_QUANTIZE_TUNE_STATES_H
#define LLMQ_QUANTIZE_TUNE_STATES_H

#include "base/file.h"
#include "quantize/layer/trainable.h"

typedef struct {
    tune_weight w; /* usable from tune_states_get until that of another */
    tune_bytes bytes;
    size_t at; /* in the file */
} tune_state;

typedef struct {
    int fd;         /* -1: in memory */
    size_t end;     /* bytes of the file in use */
    size_t made_at; /* where in it what training made begins */
    size_t most;    /* bytes that training makes of all weights at most */
    void *room;     /* of one state */
    size_t room_bytes;
    lq_arena arena; /* of all states, where they are in memory */
} tune_states;

/* dir: of the file; NULL: in memory. Errors: LQ_EIO. */
lq_status tune_states_open(tune_states *s, const char *dir, lq_err *err);
void tune_states_close(tune_states *s);
/* One more, at its start; rest NULL: its codes are not trained. Errors: LQ_ENOMEM, LQ_EIO (the disk is full, ...). */
lq_status tune_states_add(tune_states *s, tune_state *t, const qt_tensor *base, const int8_t *rest,
                          lq_err *err);
/* Of a state that can be used: its bytes.all. */
static inline void *tune_state_memory(const tune_state *t) { return t->w.scale; }
/* To where it can be used, all of it or what its value is made of; and back, all of it. Errors: LQ_EIO. */
lq_status tune_states_get(tune_states *s, tune_state *t, bool all, lq_err *err);
lq_status tune_states_put(const tune_states *s, const tune_state *t, lq_err *err);
/* out, which begins with row 0: rows row0 .. of `whole`, t's tensor before training, become what training made of t
 * (tune_weight_store). Its planes are in `a`, or where states are in the file in *made, which is mapped at the first
 * call and longer there than s; those that training left alone are borrowed from `whole`. Errors: LQ_ENOMEM, LQ_EIO. */
lq_status tune_states_store(qt_tensor *out, const qt_tensor *whole, int64_t row0, tune_states *s,
                            tune_state *t, lq_map *made, lq_arena *a, lq_err *err);

#endif
