/* tests/unit/test_dev_streams.c - several residual streams, sums with a norm of what joins, and gates that are cut, of a
 * device table against their twins on the CPU. */
#include "runtime/forward/forward_impl.h"
#include "tests/support/devtwins.h"

/* Sums of K numbers of size 1, in two orders. */
static double bound_of(int64_t K, float want)
{
    return ((double)K + 64) * 0x1p-22 * (1 + fabs((double)want));
}

static void check_near(rig *r, const float *on, const float *want, int64_t n, int64_t K,
                       const char *what)
{
    float *got = floats(r, n, 99);
    double worst = 0;
    if (!get(r, got, on, (size_t)n * 4, what)) return;
    for (int64_t i = 0; i < n; i++) {
        const double off = fabs((double)got[i] - (double)want[i]) / bound_of(K, want[i]);
        if (!(off <= worst)) worst = off; /* NaN too */
    }
    CHECK(worst <= 1, "%s, K %lld: %g of the bound", what, (long long)K, worst);
}

TEST(what_joins_is_normed_and_added_to_each_row_beside_it)
{
    static const struct {
        const char *why;
        int64_t K, n;
        float by, factor;
        bool layer, more;
    } cases[] = {
        { "one row", 64, 1, 0, 0, false, false },
        { "a layer norm, by a factor", 257, 1, 0.3f, 0, true, false },
        { "three, with an addend and a factor on all", 1030, 3, 0, 0.7f, false, true },
        { "rows of one number", 1, 2, 2, 3, false, true },
    };
    enum { T = 3 };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const int64_t K = cases[i].K, n = cases[i].n, ld = n * K + 2;
        const float by = cases[i].by != 0 ? cases[i].by : 1,
                    factor = cases[i].factor != 0 ? cases[i].factor : 1;
        rig r;
        rig_open(&r);
        float *to = floats(&r, T * ld, 1), *y = floats(&r, T * K, 2), *w = floats(&r, K, 3),
              *b = floats(&r, K, 4), *more = floats(&r, T * K, 5), *v = floats(&r, T * K, 6);
        dev_post_args a = { .to = put(&r, to, (size_t)(T * ld) * 4),
                            .y = put(&r, y, (size_t)(T * K) * 4),
                            .w = put(&r, w, (size_t)K * 4),
                            .b = cases[i].layer ? put(&r, b, (size_t)K * 4) : NULL,
                            .more = cases[i].more ? put(&r, more, (size_t)(T * K) * 4) : NULL,
                            .offset = 1,
                            .eps = 1e-3f,
                            .by = cases[i].by,
                            .factor = cases[i].factor,
                            .layer = cases[i].layer,
                            .T = T,
                            .K = K,
                            .n = n,
                            .ldt = ld };
        ops->post(&r.d, &a);
        if (cases[i].layer)
            k_layernorm(v, K, y, K, w, b, 1, T, K, 1e-3f);
        else
            k_rmsnorm(v, K, y, K, w, 1, T, K, 1e-3f);
        k_scale(v, by, T * K);
        if (cases[i].more) k_add(v, more, T * K);
        for (int64_t t = 0; t < T; t++)
            for (int64_t j = 0; j < n * K; j++)
                to[t * ld + j] = (to[t * ld + j] + v[t * K + j % K]) * factor;
        check_near(&r, a.to, to, T * ld, 32 * K, cases[i].why);
        rig_close(&r);
    }
}

/* max(g - (mean + z deviation), 0), as forward_cpu.c has it. */
static void cut(float *g, int64_t n, double z)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)g[i];
    for (int64_t i = 0; i < n; i++)
        squares += pow((double)g[i] - sum / (double)n, 2);
    const float least = (float)(sum / (double)n + sqrt(squares / (double)n) * z);
    for (int64_t i = 0; i < n; i++)
        g[i] = g[i] > least ? g[i] - least : 0;
}

TEST(gates_are_cut_by_what_their_row_is_like)
{
    static const struct {
        int64_t n;
        float z;
    } cases[] = { { 32, 0 }, { 257, 1.6f }, { 1031, -0.5f } };
    enum { T = 3 };
    for (size_t i = 0; i < 2 * LQ_COUNT(cases); i++) {
        const int64_t n = cases[i / 2].n, ld = 2 * n;
        const bool alone = i % 2;
        rig r;
        rig_open(&r);
        float *x = floats(&r, T * ld, 1);
        float *on = put(&r, x, (size_t)(T * ld) * 4);
        ops->act(&r.d, &(dev_act_args){ .dst = on,
                                        .gate = on,
                                        .up = alone ? NULL : on + n,
                                        .T = T,
                                        .n = n,
                                        .ldd = ld,
                                        .ld = ld,
                                        .f = ACT_GELU_TANH,
                                        .cut = true,
                                        .z = cases[i / 2].z });
        for (int64_t t = 0; t < T; t++) {
            float *g = x + t * ld;
            cut(g, n, (double)cases[i / 2].z);
            if (alone)
                k_act(g, n, ACT_GELU_TANH);
            else
                k_act_mul(g, g, g + n, n, ACT_GELU_TANH, 0);
        }
        check_near(&r, on, x, T * ld, n, alone ? "gates alone" : "gates and ups");
        rig_close(&r);
    }
}

typedef struct {
    arch_config c;
    model_layer l;
    fwd_rows rows;
} streams;

/* Rows and a layer's weights, of which the device has copies. */
static void streams_open(streams *s, rig *r, int64_t n, int64_t H, int64_t T)
{
    memset(s, 0, sizeof *s);
    s->c.hidden = H;
    s->c.streams = n;
    s->rows = (fwd_rows){ .c = &s->c, .whole = &s->c, .R = T };
    s->rows.x = floats(r, T * H, 1);
    s->rows.y = floats(r, T * H, 2);
    s->rows.first = floats(r, T * H, 3);
    s->rows.streams = floats(r, T * H * (n - 1), 4);
    s->l.vec[R_STREAM_NORM] = (model_vector){ .w = floats(r, H, 5), .offset = 1, .eps = 1e-3f };
    s->l.vec[R_STREAM_ROUTER].w = floats(r, n * H, 6);
    s->l.vec[R_STREAM_PREDICT].w = floats(r, n * n * n, 7);
    s->l.vec[R_STREAM_CORRECT].w = floats(r, n * n, 8);
    s->l.vec[R_STREAM_SCALE].w = floats(r, H, 9);
}

TEST(streams_are_predicted_and_corrected_as_on_the_cpu)
{
    static const struct {
        int64_t n, H;
    } cases[] = { { 2, 31 }, { 4, 257 }, { 4, 1024 }, { 5, 64 }, { 8, 300 } };
    enum { T = 3 };
    for (size_t i = 0; i < 2 * LQ_COUNT(cases); i++) {
        const int64_t n = cases[i / 2].n, H = cases[i / 2].H, W = (n - 1) * H;
        const bool after = i % 2;
        const arch_role coef = after ? R_STREAM_CORRECT : R_STREAM_PREDICT;
        streams s;
        rig r;
        rig_open(&r);
        streams_open(&s, &r, n, H, T);
        const fwd_rows *at = &s.rows;
        const model_vector *v = s.l.vec;
        dev_altup_args a = { .x = put(&r, at->x, (size_t)(T * H) * 4),
                             .streams = put(&r, at->streams, (size_t)(T * W) * 4),
                             .first = put(&r, at->first, (size_t)(T * H) * 4),
                             .y = put(&r, at->y, (size_t)(T * H) * 4),
                             .norm = put(&r, v[R_STREAM_NORM].w, (size_t)H * 4),
                             .router = put(&r, v[R_STREAM_ROUTER].w, (size_t)(n * H) * 4),
                             .coef = put(&r, v[coef].w, (size_t)(n * n * (after ? 1 : n)) * 4),
                             .scale = after ? put(&r, v[R_STREAM_SCALE].w, (size_t)H * 4) : NULL,
                             .offset = 1,
                             .eps = 1e-3f,
                             .T = T,
                             .K = H,
                             .n = n };
        ops->altup(&r.d, &a);
        if (after)
            fwd_streams_correct(at, &s.l);
        else
            fwd_streams_predict(at, &s.l);
        check_near(&r, a.x, at->x, T * H, H, after ? "x after a layer" : "x before a layer");
        check_near(&r, a.streams, at->streams, T * W, H,
                   after ? "streams after a layer" : "streams before a layer");
        if (after)
            check_near(&r, a.y, at->y, T * H, H, "what per-layer embeddings read");
        else
            check_near(&r, a.first, at->first, T * H, H, "what a layer began with");
        rig_close(&r);
    }
}

static double magnitude(const float *x, int64_t K, double least)
{
    double sum = 0;
    for (int64_t k = 0; k < K; k++)
        sum += (double)x[k] * (double)x[k];
    return sqrt(fmax(sum / (double)K, least));
}

TEST(rows_are_scaled_to_the_magnitude_of_another)
{
    enum { T = 3, K = 301, N = 3 };
    for (int based = 0; based < 2; based++) {
        const int64_t n = based ? 1 : N, ld = n * K + 1;
        rig r;
        rig_open(&r);
        float *x = floats(&r, T * K, 1), *y = floats(&r, T * ld, 2), *base = floats(&r, T * K, 3);
        memset(y, 0, K * sizeof *y); /* of no magnitude */
        float *on = put(&r, y, (size_t)(T * ld) * 4);
        ops->gauge(&r.d,
                   &(dev_gauge_args){ .out = on,
                                      .y = on,
                                      .x = put(&r, x, (size_t)(T * K) * 4),
                                      .base = based ? put(&r, base, (size_t)(T * K) * 4) : NULL,
                                      .T = T,
                                      .K = K,
                                      .n = n,
                                      .ld = ld,
                                      .factor = 0.25f });
        for (int64_t i = 0; i < T * n; i++) {
            float *row = y + i / n * ld + i % n * K;
            const double by = magnitude(x + i / n * K, K, 0) / magnitude(row, K, 1e-5);
            for (int64_t k = 0; k < K; k++)
                row[k] = (float)((by * (double)row[k] + (based ? (double)base[i / n * K + k] : 0)) *
                                 0.25);
        }
        check_near(&r, on, y, T * ld, K, based ? "a sum so far" : "rows beside each other");
        rig_close(&r);
    }
}

/* m [n, n]: softmax of rows plus 0.25, then columns, and rows and columns in turns. */
static void mix_row(float *m, int64_t n, int64_t steps)
{
    double v[DEV_STREAMS][DEV_STREAMS];
    for (int64_t j = 0; j < n; j++) {
        double sum = 0;
        for (int64_t k = 0; k < n; k++)
            sum += v[j][k] = exp((double)m[j * n + k]);
        for (int64_t k = 0; k < n; k++)
            v[j][k] = v[j][k] / sum + 0.25;
    }
    for (int64_t step = 0; step < 2 * steps - 1; step++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.25;
            for (int64_t k = 0; k < n; k++)
                sum += step % 2 ? v[j][k] : v[k][j];
            for (int64_t k = 0; k < n; k++)
                *(step % 2 ? &v[j][k] : &v[k][j]) /= sum;
        }
    for (int64_t i = 0; i < n * n; i++)
        m[i] = (float)v[i / n][i % n];
}

/* The formulas of forward_hyper.c. */
static void collapse_row(float *x, float *mix, const float *s, const float *base,
                         const float *scale, int64_t n, int64_t K, bool after, int64_t steps)
{
    double squares = 0, pre[DEV_STREAMS];
    for (int64_t i = 0; i < n * K; i++)
        squares += (double)s[i] * (double)s[i];
    const double by = 1 / sqrt(squares / (double)(n * K) + 1e-3);
    for (int64_t j = 0; j < (after ? 2 : 1) * n; j++) {
        const double v = (double)mix[j] * by * (double)scale[j / n] + (double)base[j],
                     share = 1 / (1 + exp(-v));
        if (j < n)
            pre[j] = share + 0.25;
        else
            mix[j] = (float)(1.7 * share + (steps ? 0 : 0.25));
    }
    for (int64_t j = 2 * n; j < 2 * n + n * n && steps; j++)
        mix[j] = (float)((double)mix[j] * by * (double)scale[2] + (double)base[j]);
    if (steps) mix_row(mix + 2 * n, n, steps);
    for (int64_t k = 0; k < K; k++) {
        double sum = 0;
        for (int64_t j = 0; j < n; j++)
            sum += pre[j] * (double)s[j * K + k];
        x[k] = (float)sum;
    }
}

TEST(streams_become_what_a_branch_reads_and_take_what_it_gives)
{
    static const struct {
        int64_t n, K;
        bool after;
        int64_t steps;
    } cases[] = { { 1, 31, true, 0 },    { 3, 257, true, 0 }, { 4, 1024, false, 0 },
                  { 8, 300, true, 0 },   { 1, 31, true, 2 },  { 3, 257, true, 5 },
                  { 4, 1024, true, 20 }, { 8, 300, true, 1 } };
    enum { T = 3, ALL = (2 + DEV_STREAMS) * DEV_STREAMS, LD = ALL + 1 };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const int64_t n = cases[i].n, K = cases[i].K, S = n * K;
        rig r;
        rig_open(&r);
        float *x = floats(&r, T * K, 1), *mix = floats(&r, T * LD, 2), *s = floats(&r, T * S, 3),
              *base = floats(&r, ALL, 4), *scale = floats(&r, 3, 5), *y = floats(&r, T * K, 6);
        dev_collapse_args a = { .x = put(&r, x, (size_t)(T * K) * 4),
                                .mix = put(&r, mix, (size_t)T * LD * 4),
                                .streams = put(&r, s, (size_t)(T * S) * 4),
                                .base = put(&r, base, ALL * sizeof *base),
                                .scale = put(&r, scale, 3 * sizeof *scale),
                                .norm_eps = 1e-3f,
                                .eps = 0.25f,
                                .post = 1.7f,
                                .after = cases[i].after,
                                .steps = cases[i].steps,
                                .T = T,
                                .K = K,
                                .n = n,
                                .ldm = LD };
        float *on = put(&r, s, (size_t)(T * S) * 4);
        ops->collapse(&r.d, &a);
        ops->spread(&r.d, &(dev_spread_args){ .streams = on,
                                              .y = put(&r, y, (size_t)(T * K) * 4),
                                              .by = a.mix + n,
                                              .mixed = cases[i].steps > 0,
                                              .T = T,
                                              .K = K,
                                              .n = n,
                                              .ldb = LD });
        for (int64_t t = 0; t < T; t++) {
            const float *by = mix + t * LD + n, *m = by + n;
            float *was = lq_push(&r.a, (size_t)S * 4);
            collapse_row(x + t * K, mix + t * LD, s + t * S, base, scale, n, K, cases[i].after,
                         cases[i].steps);
            memcpy(was, s + t * S, (size_t)S * 4);
            for (int64_t k = 0; k < S; k++) {
                double sum = (double)by[k / K] * (double)y[t * K + k % K];
                for (int64_t j = 0; j < n && cases[i].steps; j++)
                    sum += (double)m[j * n + k / K] * (double)was[j * K + k % K];
                s[t * S + k] = (float)(sum + (cases[i].steps ? 0 : (double)was[k]));
            }
        }
        check_near(&r, a.x, x, T * K, S, "what a branch reads");
        check_near(&r, a.mix, mix, T * LD, S, "factors on what it gives");
        check_near(&r, on, s, T * S, S, "streams after it");
        rig_close(&r);
    }
}

TEST(streams_end_as_their_mean)
{
    enum { T = 3, K = 257, N = 3 };
    rig r;
    rig_open(&r);
    float *x = floats(&r, T * K, 1), *s = floats(&r, T * N * K, 2);
    const dev_collapse_args a = {
        .x = put(&r, x, T * K * 4), .streams = put(&r, s, T * N * K * 4), .T = T, .K = K, .n = N
    };
    ops->collapse(&r.d, &a);
    for (int64_t i = 0; i < T * K; i++) {
        const float *of = s + i / K * N * K + i % K;
        x[i] = (float)(((double)of[0] + (double)of[K] + (double)of[2 * K]) / N);
    }
    check_near(&r, a.x, x, T * K, N, "their mean");
    rig_close(&r);
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    if (!rig_table()) return 0;
    CHECK(!k_init("ref", &err), "%s", err.msg);
    RUN(what_joins_is_normed_and_added_to_each_row_beside_it);
    RUN(gates_are_cut_by_what_their_row_is_like);
    RUN(streams_are_predicted_and_corrected_as_on_the_cpu);
    RUN(rows_are_scaled_to_the_magnitude_of_another);
    RUN(streams_become_what_a_branch_reads_and_take_what_it_gives);
    RUN(streams_end_as_their_mean);
    return check_end();
}
