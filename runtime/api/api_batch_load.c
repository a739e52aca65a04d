/* runtime/api/api_batch_load.c - the batches of the files' folder after a restart. */
#include "runtime/api/api_batches_int.h"
#include "runtime/api/api_files_int.h"

#include <stdio.h>
#include <stdlib.h>

static bool read_state(api_batch *b, const cJSON *j)
{
    const char *name = cJSON_GetStringValue(js_get(j, "status"));
    for (int i = 0; name && i < BATCH_N_STATES; i++)
        if (strcmp(api_batch_state_name(i), name) == 0) {
            b->state = (batch_state)i;
            return true;
        }
    return false;
}

static bool read_id(char to[48], const cJSON *j, const char *key)
{
    const char *id = cJSON_GetStringValue(js_get(j, key));
    if (id) snprintf(to, 48, "%s", id);
    return id != NULL;
}

static bool read_errors(api_batch *b, const cJSON *j)
{
    const cJSON *list = js_get(j, "errors");
    for (const cJSON *e = list ? list->child : NULL; e; e = e->next) {
        char *text = cJSON_PrintUnformatted(e);
        if (!text) return false;
        jw_json(&b->errors, text, strlen(text));
        cJSON_free(text);
    }
    return cJSON_IsArray(list) && !b->errors.b.oom;
}

static bool read_numbers(api_batch *b, const cJSON *j)
{
    const struct {
        const char *key;
        int64_t *to;
    } numbers[] = { { "order", &b->order },         { "created_at", &b->created },
                    { "expires_at", &b->expires },  { "total", &b->total },
                    { "completed", &b->completed }, { "failed", &b->failed } };
    bool ok = true;
    for (size_t i = 0; i < LQ_COUNT(numbers); i++)
        ok = ok && !js_i64(j, numbers[i].key, true, 0, (int64_t)1 << 52, numbers[i].to, NULL);
    for (int i = 0; i < BATCH_N_STATES; i++)
        if (api_batch_time_name(i))
            ok = ok &&
                 !js_i64(j, api_batch_time_name(i), true, 0, (int64_t)1 << 52, &b->at[i], NULL);
    return ok;
}

static bool read_batch(api_batch *b, const char *id, const cJSON *j)
{
    api_error ignored;
    snprintf(b->id, sizeof b->id, "%s", id);
    return strlen(id) < sizeof b->id && api_read_owner(&b->owner, j) && read_state(b, j) &&
           read_id(b->input_id, j, "input_file_id") && read_id(b->output_id, j, "output_file_id") &&
           read_id(b->error_id, j, "error_file_id") && read_numbers(b, j) && read_errors(b, j) &&
           !api_batch_read(b, j, &ignored);
}

/* What had not ended begins again: the answers that are there are found by who runs it. */
static void revive(api_batches *s, api_batch *b)
{
    b->input = api_files_get(s->a->files, b->input_id, &b->owner);
    b->completed = b->failed = 0;
    if (!b->input) {
        api_batch_fail(b, "file_not_found", "the input file is not there any more");
        api_batch_enter(s, b, BATCH_FAILED);
    } else if (b->state != BATCH_CANCELLING) {
        b->state = BATCH_VALIDATING;
    }
}

static lq_status load(void *user, const char *id, const cJSON *j)
{
    api_batches *s = user;
    api_batch *b = calloc(1, sizeof *b), **at = &s->latest;
    if (!b) return LQ_ENOMEM;
    if (s->n == API_MAX_BATCHES || !read_batch(b, id, j)) {
        api_batch_free(s, b);
        return LQ_OK;
    }
    if (!batch_ended(b)) revive(s, b);
    if (s->order <= b->order) s->order = b->order + 1;
    while (*at && (*at)->order > b->order)
        at = &(*at)->next;
    b->next = *at;
    *at = b;
    s->n++;
    return LQ_OK;
}

lq_status api_batches_load(api_batches *s, lq_err *err)
{
    const api_disk *disk = s->a->files->disk;
    return disk ? api_disk_each(disk, "batch_", load, s, err) : LQ_OK;
}
