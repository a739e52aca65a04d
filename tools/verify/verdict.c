/* tools/verify/verdict.c - findings: see verdict.h. */
#include "tools/verify/verdict.h"

#include "tools/cli/progress.h"

void verdict_add(void *user, const char *name, const char *what)
{
    verdict *v = user;
    cJSON *o = cJSON_CreateObject();
    v->n_bad++;
    prog_say(LOG_WARN, "%s: %s", name, what);
    bool ok =
        o && cJSON_AddStringToObject(o, "name", name) && cJSON_AddStringToObject(o, "what", what);
    if (!cJSON_AddItemToArray(v->bad, o) || !ok) v->no_memory = true;
}
