/* tests/support/scripted.c - see scripted.h. */
#include "tests/support/scripted.h"

#include "base/json.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    const char *prompt, *gate;
    const cJSON *ids;
    int64_t delay_ms, nan_at;
} script;

struct test_script {
    cJSON *doc;
    script *v;
    int n;
    const tok_tokenizer *tok;
    int64_t vocab;
    float **rows; /* [threads][vocab] */
    int threads;
};

static const script *find(const test_script *s, const int32_t *ids, int64_t n)
{
    char *text = NULL;
    size_t n_text;
    const script *found = NULL;
    if (tok_decode(s->tok, ids, (size_t)n, false, &text, &n_text, NULL)) return NULL;
    for (int i = 0; i < s->n && !found; i++)
        if (memmem(text, n_text, s->v[i].prompt, strlen(s->v[i].prompt))) found = &s->v[i];
    free(text);
    return found;
}

void test_script_wait(const char *gate, const lq_job *job)
{
    while (gate && access(gate, F_OK) != 0 && !lq_stopped(job))
        nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
}

static const float *logits(void *self, int thread, const int32_t *ids, int64_t n_prompt,
                           int64_t n_output, const float *row)
{
    test_script *s = self;
    const script *t = find(s, ids, n_prompt);
    if (!t) return row;
    if (t->delay_ms)
        nanosleep(&(struct timespec){ t->delay_ms / 1000, t->delay_ms % 1000 * 1000000 }, NULL);
    test_script_wait(t->gate, NULL);
    float *out = s->rows[thread];
    memcpy(out, row, (size_t)s->vocab * sizeof *out);
    const cJSON *id = t->ids ? t->ids->child : NULL;
    for (int64_t i = 0; i < n_output && id; i++)
        id = id->next;
    float most = out[0];
    for (int64_t i = 1; i < s->vocab; i++)
        most = out[i] > most ? out[i] : most;
    if (id) out[id->valueint] = most + 30;
    if (n_output == t->nan_at) out[0] = NAN;
    return out;
}

static lq_status read_script(test_script *s, const cJSON *c, lq_err *err)
{
    script *t = &s->v[s->n++];
    int64_t id;
    t->nan_at = -1;
    lq_status st = js_str(c, "prompt", true, &t->prompt, err);
    if (!st) st = js_str(c, "gate", false, &t->gate, err);
    if (!st) st = js_i64(c, "delay_ms", false, 0, 60000, &t->delay_ms, err);
    if (!st) st = js_i64(c, "nan_at", false, 0, JS_MAX_INT, &t->nan_at, err);
    t->ids = js_get(c, "ids");
    for (const cJSON *i = t->ids ? t->ids->child : NULL; !st && i; i = i->next)
        if (!js_whole(i, 0, s->vocab - 1, &id))
            st = lq_fail(err, LQ_EVALUE, "ids: expected token ids of the model");
    return st;
}

lq_status test_script_open(test_script **out, eng_script *hook, const char *path,
                           const tok_tokenizer *tok, int64_t vocab, int threads, lq_err *err)
{
    test_script *s = *out = calloc(1, sizeof *s);
    if (!s) return lq_fail(err, LQ_ENOMEM, "out of memory");
    s->tok = tok;
    s->vocab = vocab;
    lq_status st = js_parse_file(&s->doc, path, 64 << 20, JS_UNIQUE, err);
    const cJSON *list = st ? NULL : js_get(s->doc, "scripts");
    s->v = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof *s->v);
    s->rows = calloc((size_t)threads, sizeof *s->rows);
    if (!st && (!s->v || !s->rows)) st = lq_fail(err, LQ_ENOMEM, "out of memory");
    for (; !st && s->threads < threads; s->threads++)
        if (!(s->rows[s->threads] = malloc((size_t)vocab * sizeof **s->rows)))
            st = lq_fail(err, LQ_ENOMEM, "out of memory");
    for (const cJSON *c = list ? list->child : NULL; !st && c; c = c->next)
        st = read_script(s, c, err);
    *hook = (eng_script){ logits, s };
    if (!st) return st;
    test_script_close(s);
    *out = NULL;
    return lq_wrap(err, st, "%s", path);
}

void test_script_close(test_script *s)
{
    if (!s) return;
    for (int i = 0; i < s->threads; i++)
        free(s->rows[i]);
    free(s->rows);
    free(s->v);
    cJSON_Delete(s->doc);
    free(s);
}
