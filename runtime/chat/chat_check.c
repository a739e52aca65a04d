/* runtime/chat/chat_check.c - is a form right? Calls that the template renders must be read as what they
 * are: names, and arguments of every type. */
#include "runtime/chat/chat_out.h"
#include "runtime/chat/chat_probe.h"

#include <stdlib.h>

typedef struct {
    int n;
    lq_buf args[PROBE_CALLS];
    bool wrong;
    cJSON *parameters;
} heard;

static bool known(void *user, const char *name, size_t n)
{
    (void)user;
    for (int i = 0; i < PROBE_CALLS; i++)
        if (strlen(probe_names[i]) == n && memcmp(probe_names[i], name, n) == 0) return true;
    return false;
}

static const cJSON *parameters(void *user, const char *name, size_t n)
{
    (void)name;
    (void)n;
    return ((heard *)user)->parameters;
}

static void hear(void *user, chat_part part, const char *p, size_t n)
{
    heard *h = user;
    if (part == CHAT_CALL) {
        h->wrong |= h->n == PROBE_CALLS || memcmp(p, probe_names[h->n], n) != 0;
        if (!h->wrong) h->n++;
    } else if (part == CHAT_ARGUMENTS && h->n && !h->wrong) {
        lq_buf_add(&h->args[h->n - 1], p, n);
    }
}

/* Where the first call begins in the turn. */
static const char *first_call(const chat_form *f, span turn)
{
    form_mark mark;
    form_begin(mark, f, true);
    const char *name = span_find(turn, probe_names[0]);
    if (!name) return NULL;
    size_t before = strcspn(f->head, "\x01");
    if (!mark[0]) return (size_t)(name - turn.p) >= before ? name - before : NULL;
    const char *at = span_find(turn, mark), *last = NULL;
    for (; at && at <= name; at = span_find(span_of(at + 1, turn.p + turn.n), mark))
        last = at;
    return last;
}

static bool heard_right(const heard *h, probe_args kind, int n)
{
    cJSON *want = probe_arguments(kind);
    bool ok = !h->wrong && h->n == n;
    for (int i = 0; i < n && ok; i++) {
        cJSON *got = NULL;
        const lq_buf *a = &h->args[i];
        ok = a->p && !js_parse(&got, a->p, a->n, SIZE_MAX, 0, NULL) &&
             cJSON_Compare(got, want, true);
        cJSON_Delete(got);
    }
    cJSON_Delete(want);
    return ok;
}

bool probe_reads_back(const chat_form *f, const tmpl_template *t, const cJSON *tokens,
                      const probe *how)
{
    bool ok = true;
    for (int kind = PROBE_STRINGS; kind <= PROBE_TYPES && ok; kind++) {
        lq_err err;
        probe p = *how;
        p.args = (probe_args)kind;
        char *text = probe_render(t, tokens, &p, &err);
        const char *at = text ? first_call(f, probe_turn(text)) : NULL;
        heard h = { .parameters = probe_parameters() };
        chat_out *c = NULL;
        chat_out_opts o = { .form = f,
                            .calls = true,
                            .known = known,
                            .parameters = parameters,
                            .sink = hear,
                            .user = &h };
        ok = at && !chat_out_open(&c, &o, &err) && !chat_out_push(c, at, strlen(at), &err) &&
             !chat_out_end(c, &err) && heard_right(&h, p.args, p.calls);
        chat_out_close(c);
        cJSON_Delete(h.parameters);
        for (int i = 0; i < PROBE_CALLS; i++)
            lq_buf_free(&h.args[i]);
        free(text);
    }
    return ok;
}
