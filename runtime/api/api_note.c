/* runtime/api/api_note.c - what requests tell of themselves once: parameters without influence, schemas that bind
 * nothing, the first token. */
#include "runtime/api/api_int.h"

#include "base/hash.h"

#include <stdio.h>

void api_note_params(api *a, const api_params *p)
{
    char text[128];
    met_add(a->met, MET_IGNORED_PARAMS, (uint64_t)p->n_ignored);
    uint64_t fresh = p->noted & ~atomic_fetch_or(&a->noted, p->noted);
    for (int i = 0; fresh && a->o.note; i++, fresh >>= 1) {
        if (!(fresh & 1)) continue;
        snprintf(text, sizeof text, "the parameter %s is taken and has no influence on an answer",
                 api_noted_name(i));
        a->o.note(a->o.user, text);
    }
}

void api_note_schema(api *a, const api_error *e)
{
    char text[sizeof e->err.msg + 64];
    const lq_hash what = lq_hash_bytes(e->err.msg, strlen(e->err.msg));
    bool said = false;
    pthread_mutex_lock(&a->mu);
    for (size_t i = 0; i < LQ_COUNT(a->schemas); i++)
        said |= memcmp(&a->schemas[i], &what, sizeof what) == 0;
    if (!said) a->schemas[a->n_schemas++ % LQ_COUNT(a->schemas)] = what;
    pthread_mutex_unlock(&a->mu);
    if (said || !a->o.note) return;
    snprintf(text, sizeof text, "a tool's calls may have any arguments: %s", e->err.msg);
    a->o.note(a->o.user, text);
}

void api_first_token(api *a, double seconds)
{
    double none = 0;
    atomic_compare_exchange_strong(&a->first_seconds, &none, seconds);
}
