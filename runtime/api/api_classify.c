/* runtime/api/api_classify.c - POST /v1/classify: which of its labels a model gives a text, as vLLM's clients ask.
 *
 * The probabilities are the scores' softmax where one label is true, or the sigmoid of each where each may be
 * (src_label_kind); with use_activation false, and of a regression, the scores themselves. */
#include "runtime/api/api_gen_int.h"

/* Scores become probabilities; the largest one's place. */
static int activate(const gen *g, double *v, int n)
{
    const src_label_kind kind = g->a->m.label_kind;
    int best = 0;
    double sum = 0;
    for (int i = 1; i < n; i++)
        if (v[i] > v[best]) best = i;
    if (g->p.raw_scores || kind == SRC_LABELS_NUMBER) return best;
    const double most = v[best];
    for (int i = 0; i < n; i++) {
        v[i] = kind == SRC_LABELS_EACH ? 1 / (1 + exp(-v[i])) : exp(v[i] - most);
        sum += v[i];
    }
    for (int i = 0; i < n && kind == SRC_LABELS_ONE_OF; i++)
        v[i] /= sum;
    return best;
}

static void write_one(jw *w, const gen_choice *c, int index)
{
    const cJSON *names = c->g->a->m.label_names;
    const int n = cJSON_GetArraySize(names), best = activate(c->g, c->pooled, n);
    jw_open(w, '{');
    jw_key(w, "index");
    jw_i64(w, index);
    jw_key(w, "label");
    jw_cstr(w, cJSON_GetArrayItem(names, best)->valuestring);
    jw_key(w, "probs");
    jw_open(w, '[');
    for (int i = 0; i < n; i++)
        jw_f64(w, c->pooled[i]);
    jw_close(w, ']');
    jw_key(w, "num_classes");
    jw_i64(w, n);
    jw_close(w, '}');
}

static void write_classes(gen *g, jw *w)
{
    jw_open(w, '{');
    jw_key(w, "id");
    jw_cstr(w, g->answer.id);
    jw_key(w, "object");
    jw_cstr(w, "list");
    jw_key(w, "created");
    jw_i64(w, g->answer.created);
    jw_key(w, "model");
    jw_cstr(w, g->answer.model);
    jw_key(w, "data");
    jw_open(w, '[');
    for (int i = 0; i < g->choices.n && !w->b.oom; i++) {
        w->b.oom |= !g->choices.v[i].pooled;
        if (!w->b.oom) write_one(w, &g->choices.v[i], i);
    }
    jw_close(w, ']');
    gen_write_usage(w, g);
    jw_close(w, '}');
}

/* Never streams. */
static const gen_shape classify = { .kind = API_CLASSIFY,
                                    .prefix = "classify-",
                                    .prompt = "input",
                                    .take = gen_take_nothing,
                                    .answer = write_classes };

void api_post_classify(void *app, http_req *r) { api_answer_prompts(app, r, &classify); }
