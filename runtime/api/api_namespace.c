/* runtime/api/api_namespace.c - tools that a Responses request groups: {"type": "namespace", "name", "tools"}. Chat
 * templates know no groups, so the model sees NAMESPACE__NAME, and an item has the two apart. */
#include "runtime/api/api_responses.h"

static const char joint[] = "__";
enum { N_JOINT = sizeof joint - 1 };

bool api_is_namespace(const cJSON *tool) { return api_is(js_get(tool, "type"), "namespace"); }

cJSON *api_joined_name(const char *space, const char *name)
{
    lq_buf b = { 0 };
    lq_buf_puts(&b, space);
    lq_buf_puts(&b, joint);
    lq_buf_puts(&b, name);
    lq_buf_add(&b, "", 1);
    cJSON *v = b.oom ? NULL : cJSON_CreateString(b.p);
    lq_buf_free(&b);
    return v;
}

static bool joins(const char *space, const char *name, const char *whole, size_t n)
{
    const size_t m = strlen(space), k = strlen(name);
    return n == m + N_JOINT + k && memcmp(whole, space, m) == 0 &&
           memcmp(whole + m, joint, N_JOINT) == 0 && memcmp(whole + m + N_JOINT, name, k) == 0;
}

const char *api_split_name(const cJSON *tools, const lq_buf *whole, const char **space)
{
    for (const cJSON *t = tools ? tools->child : NULL; t; t = t->next) {
        const cJSON *list = api_is_namespace(t) ? js_get(t, "tools") : NULL;
        const char *s = cJSON_GetStringValue(js_get(t, "name"));
        for (const cJSON *m = list ? list->child : NULL; m; m = m->next) {
            const char *name = cJSON_GetStringValue(js_get(m, "name"));
            if (!s || !name || !whole->n || !joins(s, name, whole->p, whole->n)) continue;
            *space = s;
            return name;
        }
    }
    return NULL;
}
