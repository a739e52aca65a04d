/* runtime/api/api_embeddings.c - the answer of POST /v1/embeddings: vectors of length 1, their first
 * `dimensions` numbers if that is given (and then of length 1 again), as numbers or as base64 of
 * little-endian f32. Which rows of the prompt they are made of: eng_pool. What else a model's files
 * say of vectors: runtime/engine/sentence.h; without a Normalize there they are of any length. */
#include "runtime/api/api_gen_int.h"

#include <stdlib.h>

int64_t api_max_input(const api *a)
{
    const int64_t most = a->m.sentence ? sentence_max_tokens(a->m.sentence) : 0;
    return most && most < a->m.max_len ? most : a->m.max_len;
}

bool gen_take_vector(gen_choice *c, const double *pooled)
{
    size_t n = (size_t)c->g->a->m.hidden;
    c->pooled = malloc(n * sizeof *c->pooled);
    if (c->pooled) memcpy(c->pooled, pooled, n * sizeof *c->pooled);
    return c->pooled != NULL;
}

static void normalize(float *v, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)v[i] * (double)v[i];
    double factor = sum > 0 ? 1 / sqrt(sum) : 0;
    for (int64_t i = 0; i < n; i++)
        v[i] = (float)((double)v[i] * factor);
}

/* RFC 4648, section 4. */
static void write_base64(jw *w, const uint8_t *p, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    lq_buf t = { 0 };
    for (size_t i = 0; i < n; i += 3) {
        uint32_t left = (uint32_t)(n - i < 3 ? n - i : 3), x = (uint32_t)p[i] << 16;
        if (left > 1) x |= (uint32_t)p[i + 1] << 8;
        if (left > 2) x |= p[i + 2];
        char four[4] = { digits[x >> 18], digits[x >> 12 & 63], digits[x >> 6 & 63],
                         digits[x & 63] };
        for (uint32_t k = left + 1; k < 4; k++)
            four[k] = '=';
        lq_buf_add(&t, four, 4);
    }
    jw_str(w, t.p ? t.p : "", t.n);
    w->b.oom |= t.oom;
    lq_buf_free(&t);
}

void gen_write_floats(jw *w, const float *v, int64_t n, bool base64)
{
    if (!base64) {
        jw_open(w, '[');
        for (int64_t i = 0; i < n; i++)
            jw_f64(w, (double)v[i]);
        jw_close(w, ']');
        return;
    }
    uint8_t *bytes = malloc((size_t)n * 4);
    for (int64_t i = 0; bytes && i < n; i++) {
        uint32_t u;
        memcpy(&u, &v[i], sizeof u);
        for (int k = 0; k < 4; k++)
            bytes[4 * i + k] = (uint8_t)(u >> 8 * k);
    }
    if (bytes)
        write_base64(w, bytes, (size_t)n * 4);
    else
        w->b.oom = true;
    free(bytes);
}

float *gen_vector(gen_choice *c, jw *w, int64_t *n)
{
    const gen *g = c->g;
    const api_model *m = &g->a->m;
    float *v = malloc((size_t)m->width * sizeof *v);
    *n = g->p.dimensions ? g->p.dimensions : m->width;
    w->b.oom |= c->text.oom || !c->pooled || !v ||
                (m->sentence && sentence_run(m->sentence, v, c->pooled, NULL));
    if (w->b.oom) {
        free(v);
        return NULL;
    }
    for (int64_t i = 0; i < *n && !m->sentence; i++)
        v[i] = (float)c->pooled[i];
    if (!m->sentence || sentence_normalizes(m->sentence)) normalize(v, *n);
    return v;
}

void gen_write_vector(gen_choice *c, jw *w)
{
    int64_t n;
    float *v = gen_vector(c, w, &n);
    if (v) gen_write_floats(w, v, n, c->g->p.base64);
    free(v);
}

static void write_embeddings(gen *g, jw *w)
{
    jw_open(w, '{');
    jw_key(w, "object");
    jw_cstr(w, "list");
    jw_key(w, "data");
    jw_open(w, '[');
    for (int i = 0; i < g->choices.n && !w->b.oom; i++) {
        gen_choice *c = &g->choices.v[i];
        jw_open(w, '{');
        jw_key(w, "object");
        jw_cstr(w, "embedding");
        jw_key(w, "index");
        jw_i64(w, i);
        jw_key(w, "embedding");
        gen_write_vector(c, w);
        jw_close(w, '}');
    }
    jw_close(w, ']');
    jw_key(w, "model");
    jw_cstr(w, g->answer.model);
    gen_write_usage(w, g);
    jw_close(w, '}');
}

void gen_take_nothing(gen_choice *c, chat_part part, const char *p, size_t n)
{
    (void)c;
    (void)part;
    (void)p;
    (void)n;
}

/* Never a stream. */
const gen_shape gen_embeddings = { .kind = API_EMBEDDINGS,
                                   .prefix = "embd-",
                                   .prompt = "input",
                                   .take = gen_take_nothing,
                                   .answer = write_embeddings };
