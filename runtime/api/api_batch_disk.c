/* runtime/api/api_batch_disk.c - a batch as it is kept in the files' folder (api_disk.h). */
#include "runtime/api/api_batches_int.h"
#include "runtime/api/api_files_int.h"

#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *name, *at;
} states[] = {
#define X(state, name, at) { name, at },
    BATCH_STATES(X)
#undef X
};

const char *api_batch_state_name(batch_state state) { return states[state].name; }
const char *api_batch_time_name(batch_state state) { return states[state].at; }

static void put_json(jw *w, const char *key, const char *v, size_t n)
{
    jw_key(w, key);
    if (n)
        jw_json(w, v, n);
    else
        jw_null(w);
}

/* "output_expires_after", as in a request. */
static void put_expiry(jw *w, const api_batch *b)
{
    jw_key(w, "output_expires_after");
    if (!b->output_seconds) {
        jw_null(w);
        return;
    }
    jw_open(w, '{');
    jw_put_cstr(w, "anchor", "created_at");
    jw_put_i64(w, "seconds", b->output_seconds);
    jw_close(w, '}');
}

lq_status api_batch_save(const api_batches *s, const api_batch *b)
{
    const api_disk *disk = s->a->files->disk;
    char owner[33];
    lq_err err = { "" };
    jw w = { 0 };
    if (!disk) return LQ_OK;
    lq_hash_hex(owner, &b->owner);
    jw_open(&w, '{');
    jw_put_cstr(&w, "owner", owner);
    jw_put_cstr(&w, "endpoint", b->endpoint);
    jw_put_cstr(&w, "input_file_id", b->input_id);
    jw_put_cstr(&w, "output_file_id", b->output_id);
    jw_put_cstr(&w, "error_file_id", b->error_id);
    jw_put_cstr(&w, "status", api_batch_state_name(b->state));
    jw_put_i64(&w, "order", b->order);
    jw_put_i64(&w, "created_at", b->created);
    jw_put_i64(&w, "expires_at", b->expires);
    for (int i = 0; i < BATCH_N_STATES; i++)
        if (api_batch_time_name(i)) jw_put_i64(&w, api_batch_time_name(i), b->at[i]);
    jw_put_i64(&w, "total", b->total);
    jw_put_i64(&w, "completed", b->completed);
    jw_put_i64(&w, "failed", b->failed);
    put_expiry(&w, b);
    put_json(&w, "metadata", b->metadata, b->metadata ? strlen(b->metadata) : 0);
    jw_key(&w, "errors");
    jw_open(&w, '[');
    jw_json(&w, b->errors.b.p, b->errors.b.n);
    jw_close(&w, ']');
    jw_close(&w, '}');
    const lq_status st = api_disk_put_json(disk, b->id, &w, &err);
    if (st && s->a->o.note) s->a->o.note(s->a->o.user, err.msg);
    return st;
}

void api_batch_forget(const api_batches *s, const api_batch *b)
{
    if (s->a->files->disk) api_disk_remove(s->a->files->disk, b->id, ".json");
}
