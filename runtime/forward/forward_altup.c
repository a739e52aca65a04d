/* runtime/forward/forward_altup.c - several residual streams, of which each layer works on the first (AltUp,
 * arXiv:2301.13310), and the learned augmented residual beside attention (Laurel, arXiv:2411.07501).
 *
 *   m = tanh(router norm(x) / hidden)
 *   before a layer  s_j += sum_i s_i (predict m)_ji              x is s_0
 *   after it        s_j += (x - s_0) ((correct m)_j + 1)         m of the new x; x becomes s_0
 *
 * The streams begin as products of the embedding, and end as the mean of such products, each scaled to
 * the magnitude of x. (Gemma 3n.) */
#include "runtime/forward/forward_impl.h"

enum { MAX = 8 };

/* ---- begin and end ---- */

static float magnitude(const float *x, int64_t n, double least)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return (float)sqrt(fmax(sum / (double)n, least));
}

static void begin_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t H = r->c->hidden, W = fwd_streams_width(r->c);
    (void)arg;
    for (int64_t t = row; t < row + n; t++)
        for (float *s = r->streams + t * W; s < r->streams + (t + 1) * W; s += H)
            k_scale(s, magnitude(r->x + t * H, H, 0) / magnitude(s, H, 1e-5), H);
}

void fwd_streams_begin(const fwd_rows *r, const model *m)
{
    const arch_config *c = r->c;
    const int64_t W = fwd_streams_width(c);
    for (int64_t i = 0; i + 1 < c->streams; i++) {
        mm_out out = fwd_out(&m->stream_in[i], r->streams + i * c->hidden, W, false);
        mm_run(&out, 1, r->x, c->hidden, r->R, r->acts, r->scratch, r->p);
    }
    fwd_each(r, r->R, begin_rows, NULL);
}

/* first += y, scaled. */
static void add_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t H = r->c->hidden;
    (void)arg;
    for (int64_t t = row; t < row + n; t++) {
        float *y = r->y + t * H;
        k_scale(y, magnitude(r->x + t * H, H, 0) / magnitude(y, H, 1e-5), H);
        k_add(r->first + t * H, y, H);
    }
}

static void end_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t H = r->c->hidden;
    (void)arg;
    memcpy(r->x + row * H, r->first + row * H, (size_t)(n * H) * sizeof(float));
    k_scale(r->x + row * H, 1 / (float)r->c->streams, n * H);
}

void fwd_streams_end(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    memcpy(r->first, r->x, (size_t)(r->R * c->hidden) * sizeof(float));
    for (int64_t i = 0; i + 1 < c->streams; i++) {
        mm_out out = fwd_out(&l->stream_out[i], r->y, c->hidden, false);
        r->ops->products(r, &out, 1, r->streams + i * c->hidden, fwd_streams_width(c), r->R);
        fwd_each(r, r->R, add_rows, NULL);
    }
    fwd_each(r, r->R, end_rows, NULL);
}

/* ---- around a layer ---- */

/* m [streams] of a row; h is scratch [hidden]. */
static void modalities(float *m, const arch_config *c, const model_layer *l, const float *x,
                       float *h)
{
    const int64_t H = c->hidden;
    const model_vector *v = &l->vec[R_STREAM_NORM];
    k_rmsnorm(h, H, x, H, v->w, v->offset, 1, H, v->eps);
    k_scale(h, 1 / (float)H, H);
    for (int64_t i = 0; i < c->streams; i++) {
        const float *w = l->vec[R_STREAM_ROUTER].w + i * H;
        double sum = 0;
        for (int64_t k = 0; k < H; k++)
            sum += (double)w[k] * (double)h[k];
        m[i] = (float)sum;
    }
    k_softcap(m, 1, c->streams);
}

/* out [rows] = w [rows, n] m */
static void coefficients(float *out, const float *w, const float *m, int64_t rows, int64_t n)
{
    for (int64_t i = 0; i < rows; i++) {
        out[i] = 0;
        for (int64_t k = 0; k < n; k++)
            out[i] += w[i * n + k] * m[k];
    }
}

static void predict_rows(const fwd_rows *r, int64_t row, int64_t rows, const void *arg)
{
    const arch_config *c = r->c;
    const model_layer *l = arg;
    const int64_t H = c->hidden, n = c->streams, W = fwd_streams_width(c);
    for (int64_t t = row; t < row + rows; t++) {
        float m[MAX], w[MAX * MAX], *x = r->x + t * H, *s = r->streams + t * W;
        modalities(m, c, l, x, r->first + t * H);
        coefficients(w, l->vec[R_STREAM_PREDICT].w, m, n * n, n);
        for (int64_t h = 0; h < H; h++) {
            float was[MAX];
            for (int64_t i = 0; i < n; i++)
                was[i] = i ? s[(i - 1) * H + h] : x[h];
            for (int64_t j = 0; j < n; j++) {
                float sum = 0;
                for (int64_t i = 0; i < n; i++)
                    sum += was[i] * w[j * n + i];
                *(j ? &s[(j - 1) * H + h] : &x[h]) = sum + was[j];
            }
        }
        memcpy(r->first + t * H, x, (size_t)H * sizeof *x);
    }
}

void fwd_streams_predict(const fwd_rows *r, const model_layer *l)
{
    pool_stage(r->p, STAGE_NORM);
    fwd_each(r, r->R, predict_rows, l);
}

/* y is left as what R_PLE_GATE reads. */
static void correct_rows(const fwd_rows *r, int64_t row, int64_t rows, const void *arg)
{
    const arch_config *c = r->c;
    const model_layer *l = arg;
    const int64_t H = c->hidden, n = c->streams, W = fwd_streams_width(c);
    for (int64_t t = row; t < row + rows; t++) {
        float m[MAX], w[MAX], *x = r->x + t * H, *y = r->y + t * H, *first = r->first + t * H;
        modalities(m, c, l, x, y);
        coefficients(w, l->vec[R_STREAM_CORRECT].w, m, n, n);
        for (int64_t h = 0; h < H; h++) {
            const float news = x[h] - first[h];
            x[h] = news * (w[0] + 1) + first[h];
            for (int64_t j = 1; j < n; j++)
                r->streams[t * W + (j - 1) * H + h] += news * (w[j] + 1);
            y[h] = x[h] * l->vec[R_STREAM_SCALE].w[h];
        }
    }
}

void fwd_streams_correct(const fwd_rows *r, const model_layer *l)
{
    pool_stage(r->p, STAGE_NORM);
    fwd_each(r, r->R, correct_rows, l);
}

/* ---- Laurel ---- */
static void laurel_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const arch_config *c = r->c;
    const model_layer *l = arg;
    const int64_t H = c->hidden, at = row * H;
    float *x = r->x + at, *y = r->y + at;
    const model_vector *v = &l->vec[R_LAUREL_NORM];
    k_rmsnorm(y, H, y, H, v->w, v->offset, n, H, v->eps);
    k_add(y, r->h + at, n * H);
    k_add(x, y, n * H);
    k_scale(x, (float)sqrt(0.5), n * H);
}

void fwd_run_laurel(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    mm_out left = fwd_out(&l->lin[R_LAUREL_LEFT], r->laurel, c->laurel, false);
    mm_out right = fwd_out(&l->lin[R_LAUREL_RIGHT], r->y, c->hidden, false);
    pool_stage(r->p, STAGE_O);
    r->ops->products(r, &left, 1, r->h, c->hidden, r->R);
    r->ops->products(r, &right, 1, r->laurel, c->laurel, r->R);
    fwd_each(r, r->R, laurel_rows, l);
}
