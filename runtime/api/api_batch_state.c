/* runtime/api/api_batch_state.c - a batch comes to its next state. */
#include "runtime/api/api_batches_int.h"

#include <time.h>

void api_batch_enter(api_batches *s, api_batch *b, batch_state state)
{
    b->state = state;
    b->at[state] = (int64_t)time(NULL);
    if (batch_ended(b)) {
        api_file_unref(s->a->files, b->input);
        b->input = NULL;
    }
    (void)api_batch_save(s, b); /* else it is run again after a restart */
}
