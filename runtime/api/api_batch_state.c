/* runtime/api/api_batch_state.c - a batch comes to its next state, and why it fails. */
#include "runtime/api/api_batches_int.h"

#include <stdlib.h>
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

void api_batch_add_error(api_batch *b, int *n, const char *code, int64_t line, const char *message)
{
    if ((*n)++ >= API_BATCH_ERRORS) return;
    jw_open(&b->errors, '{');
    jw_key(&b->errors, "code");
    jw_cstr(&b->errors, code);
    jw_key(&b->errors, "message");
    jw_cstr(&b->errors, message);
    jw_key(&b->errors, "param");
    jw_null(&b->errors);
    jw_key(&b->errors, "line");
    if (line)
        jw_i64(&b->errors, line);
    else
        jw_null(&b->errors);
    jw_close(&b->errors, '}');
}

void api_batch_fail(api_batch *b, const char *code, const char *message)
{
    int n = 0;
    api_batch_add_error(b, &n, code, 0, message);
}

void api_batch_free(api_batches *s, api_batch *b)
{
    api_file_unref(s->a->files, b->input);
    cJSON_free(b->metadata);
    jw_free(&b->errors);
    free(b);
}
