/* tests/unit/test_dev_scan.c - layers with a state on a device against their twins on the CPU: along the
 * sequences the same bits, with copies where they are wanted; rows before and after within rounding. */
#include "kernels/scan.h"
#include "tests/support/devrig.h"

enum { SLOTS = 5, RUNS = 2, ROWS = 21, ROWS0 = 19 }; /* ROWS0: of the first sequence */

/* Rows 0..18 in slot 3, copied after rows 1 and 16 and twice after the last; rows 19, 20 in slot 1. */
static dev_states states_of(rig *r, const float *host, int64_t stride, int64_t offset)
{
    const dev_run runs[RUNS] = {
        { 0, ROWS0, 3, 4, { { 1, 0 }, { 16, 2 }, { ROWS0, 4 }, { ROWS0, 0 } } },
        { ROWS0, ROWS - ROWS0, 1, 0, { { 0, 0 } } }
    };
    float *all = put(r, host, (size_t)(SLOTS * stride) * 4);
    return (dev_states){ all + offset, stride, put(r, runs, sizeof runs), RUNS };
}

/* What the slots hold afterwards, run by run: step(from, n) goes over n rows of the run in `state`. */
typedef void step_fn(void *user, int64_t from, int64_t n, float *state);
static void on_cpu(float *slots, int64_t stride, step_fn *step, void *user)
{
    static const int64_t cut[] = { 0, 1, 16, ROWS0 };
    static const int to[][2] = { { 0, 0 }, { 2, 2 }, { 4, 0 } };
    float *state = slots + 3 * stride;
    for (int i = 0; i < 3; i++) {
        step(user, cut[i], cut[i + 1] - cut[i], state);
        for (int k = 0; k < 2; k++)
            memcpy(slots + to[i][k] * stride, state, (size_t)stride * 4);
    }
    step(user, ROWS0, ROWS - ROWS0, slots + stride);
}

static void check_bits(rig *r, const void *on, const float *want, int64_t n, const char *what)
{
    float *got = floats(r, n, 9);
    if (!get(r, got, on, (size_t)n * 4, what)) return;
    int64_t other = 0;
    while (other < n && memcmp(&got[other], &want[other], sizeof *got) == 0)
        other++;
    CHECK(other == n, "%s: number %lld of %lld is %g, expected %g", what, (long long)other,
          (long long)n, (double)got[other], (double)want[other]);
}

typedef struct {
    k_conv_args a;
    float *x;
    int64_t ldx;
} conv_run;

static void conv_step(void *user, int64_t from, int64_t n, float *state)
{
    conv_run *c = user;
    k_conv_args a = c->a;
    a.x = c->x + from * c->ldx;
    a.T = n;
    a.history = state;
    k_conv(&a);
}

TEST(convolutions_have_the_cpus_bits)
{
    static const struct {
        int64_t channels;
        int taps;
        bool bias, silu;
    } cases[] = { { 3, 4, true, true },
                  { 130, 4, false, true },
                  { 129, 3, false, false },
                  { 40, 8, true, true },
                  { 40, 2, false, true } };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const int64_t C = cases[i].channels, ld = C + 5, n = (cases[i].taps - 1) * C,
                      stride = n + 7;
        rig r;
        rig_open(&r);
        float *x = floats(&r, ROWS * ld, 1), *w = floats(&r, cases[i].taps * C, 2),
              *b = floats(&r, C, 3), *slots = floats(&r, SLOTS * stride, 4);
        const dev_states s = states_of(&r, slots, stride, 0);
        float *on = put(&r, x, (size_t)(ROWS * ld) * 4);
        ops->conv(&r.d, &(dev_conv_args){ .states = s,
                                          .x = on,
                                          .out = on,
                                          .w = put(&r, w, (size_t)(cases[i].taps * C) * 4),
                                          .bias = cases[i].bias ? put(&r, b, (size_t)C * 4) : NULL,
                                          .ldx = ld,
                                          .ldo = ld,
                                          .channels = C,
                                          .taps = cases[i].taps,
                                          .silu = cases[i].silu });
        conv_run c = { { .ldx = ld,
                         .n = C,
                         .w = w,
                         .ldw = C,
                         .bias = cases[i].bias ? b : NULL,
                         .ldh = C,
                         .taps = cases[i].taps,
                         .silu = cases[i].silu },
                       x,
                       ld };
        float *host = floats(&r, SLOTS * stride, 4);
        on_cpu(host, stride, conv_step, &c);
        check_bits(&r, on, x, ROWS * ld, "outputs");
        for (int k = 0; k < SLOTS; k++) /* what is between slots is nobody's */
            memcpy(host + k * stride + n, slots + k * stride + n, (size_t)(stride - n) * 4);
        check_bits(&r, s.of, host, SLOTS * stride, "histories");
        rig_close(&r);
    }
}

TEST(a_convolution_between_gates_multiplies_before_and_after)
{
    enum { C = 37, LD = 3 * C, N = ROWS * LD };
    rig r;
    rig_open(&r);
    float *x = floats(&r, N, 1), *w = floats(&r, 3 * C, 2), *slots = floats(&r, SLOTS * 2 * C, 4),
          *want = floats(&r, ROWS * C, 5), *in = floats(&r, ROWS * C, 6);
    const dev_states s = states_of(&r, slots, 2 * C, 0);
    float *on = put(&r, x, N * 4), *out = put(&r, NULL, (size_t)(ROWS * C) * 4);
    ops->conv(&r.d, &(dev_conv_args){ .states = s,
                                      .x = on,
                                      .out = out,
                                      .before = on + 2 * C,
                                      .after = on + C,
                                      .w = put(&r, w, 3 * C * 4),
                                      .ldx = LD,
                                      .ldo = C,
                                      .channels = C,
                                      .taps = 3 });
    for (int64_t i = 0; i < ROWS * C; i++)
        in[i] = x[i / C * LD + i % C] * x[i / C * LD + 2 * C + i % C];
    conv_run c = { { .ldx = C, .n = C, .w = w, .ldw = C, .ldh = C, .taps = 3 }, in, C };
    on_cpu(slots, 2 * C, conv_step, &c);
    for (int64_t i = 0; i < ROWS * C; i++)
        want[i] = x[i / C * LD + C + i % C] * in[i];
    check_bits(&r, out, want, ROWS * C, "outputs");
    check_bits(&r, on, x, N, "inputs");
    check_bits(&r, s.of, slots, SLOTS * 2 * C, "histories");
    rig_close(&r);
}

typedef struct {
    dev_scan_args a; /* of the host's memory */
    int64_t offset;
} scan_run;

/* One head, SCAN_LANES values. */
static void scan_lanes(const scan_run *s, int64_t from, int64_t n, float *state, int64_t h,
                       int64_t v)
{
    const dev_scan_args *a = &s->a;
    const int64_t g = a->tiled ? h % a->G : h / (a->H / a->G), K = a->K, V = a->V, H = a->H,
                  left = V - v, blocks = lq_ceil_div(V, SCAN_LANES);
    const bool keys = a->kind == DEV_SCAN_KEYS_DELTA;
    float *S = state + s->offset + (h * blocks + v / SCAN_LANES) * K * SCAN_LANES;
    const int lanes = left < SCAN_LANES ? (int)left : SCAN_LANES;
    const int64_t at = from * a->ld, row = a->fixed ? 0 : from;
    if (a->kind == DEV_SCAN_SELECT) {
        k_select(&(k_select_args){ .S = S,
                                   .T = n,
                                   .K = K,
                                   .lanes = lanes,
                                   .rate = a->rate + v,
                                   .ldr = V,
                                   .q = a->q + at,
                                   .k = a->k + at,
                                   .v = a->v + at + v,
                                   .step = a->decay + from * V + v,
                                   .ldq = a->ld,
                                   .ldk = a->ld,
                                   .ldv = a->ld,
                                   .lds = V,
                                   .out = a->out + from * V + v,
                                   .ldo = V });
        return;
    }
    k_scan(&(k_scan_args){ .S = S,
                           .T = n,
                           .K = K,
                           .lanes = lanes,
                           .correct = a->kind != DEV_SCAN_MAMBA,
                           .q = a->q + at + g * K,
                           .k = a->k + at + g * K,
                           .v = a->v + at + h * V + v,
                           .ldq = a->ld,
                           .ldk = a->ld,
                           .ldv = a->ld,
                           .beta = a->beta + row * H + h,
                           .decay = a->decay + (keys ? (row * H + h) * K : row * H + h),
                           .decay_step = keys,
                           .ldb = a->fixed ? 0 : H,
                           .ldd = a->fixed ? 0
                                  : keys   ? H * K
                                           : H,
                           .out = a->out + from * H * V + h * V + v,
                           .ldo = H * V });
}

static void scan_step(void *user, int64_t from, int64_t n, float *state)
{
    const scan_run *s = user;
    for (int64_t h = 0; h < s->a.H; h++)
        for (int64_t v = 0; v < s->a.V; v += SCAN_LANES)
            scan_lanes(s, from, n, state, h, v);
}

/* Numbers that a state neither grows nor vanishes by. */
static float *between(rig *r, int64_t n, uint64_t seed, float low, float high)
{
    float *x = floats(r, n, seed);
    for (int64_t i = 0; i < n; i++)
        x[i] = low + (high - low) / (1 + expf(-x[i]));
    return x;
}

TEST(scans_have_the_cpus_bits)
{
    static const struct {
        dev_scan_kind kind;
        int64_t H, G, K, V;
        bool tiled, fixed;
    } cases[] = { { DEV_SCAN_DELTA, 4, 2, 8, 12, false, false },
                  { DEV_SCAN_DELTA, 2, 1, 128, 40, false, false },
                  { DEV_SCAN_DELTA, 4, 2, 50, 16, true, false },
                  { DEV_SCAN_DELTA, 1, 1, 256, 8, false, false },
                  { DEV_SCAN_KEYS_DELTA, 2, 2, 24, 33, false, false },
                  { DEV_SCAN_KEYS_DELTA, 1, 1, 128, 16, false, false },
                  { DEV_SCAN_MAMBA, 6, 2, 16, 9, false, false },
                  { DEV_SCAN_MAMBA, 1, 1, 130, 64, false, false },
                  { DEV_SCAN_SELECT, 1, 1, 16, 70, false, false },
                  { DEV_SCAN_SELECT, 1, 1, 60, 16, false, false },
                  { DEV_SCAN_MAMBA, 6, 6, 16, 40, false, true } };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const int64_t H = cases[i].H, G = cases[i].G, K = cases[i].K, V = cases[i].V,
                      padded = lq_ceil_div(V, SCAN_LANES) * SCAN_LANES, keys = G * K,
                      ld = 2 * keys + H * V + 3, offset = 16, stride = offset + H * padded * K + 5;
        const int64_t D = cases[i].kind == DEV_SCAN_KEYS_DELTA ? H * K
                          : cases[i].kind == DEV_SCAN_SELECT   ? V
                                                               : H;
        rig r;
        rig_open(&r);
        float *x = between(&r, ROWS * ld, 1, -0.5f, 0.5f), *beta = between(&r, ROWS * H, 2, 0, 1),
              *decay = between(&r, ROWS * D, 3, 0.5f, 1), *rate = between(&r, K * V, 4, -1, -0.1f),
              *slots = floats(&r, SLOTS * stride, 5), *out = floats(&r, ROWS * H * V, 6);
        /* Lanes behind the last value are zeros. */
        for (int64_t k = 0; k < SLOTS; k++)
            for (int64_t at = 0; at < H * padded * K; at++) {
                const int64_t value = at / (K * SCAN_LANES) * SCAN_LANES % padded + at % SCAN_LANES;
                if (value >= V) slots[k * stride + offset + at] = 0;
            }
        const dev_states s = states_of(&r, slots, stride, offset);
        float *on = put(&r, x, (size_t)(ROWS * ld) * 4),
              *to = put(&r, NULL, (size_t)(ROWS * H * V) * 4);
        dev_scan_args a = { .kind = cases[i].kind,
                            .states = s,
                            .q = on,
                            .k = on + keys,
                            .v = on + 2 * keys,
                            .beta = put(&r, beta, (size_t)(ROWS * H) * 4),
                            .decay = put(&r, decay, (size_t)(ROWS * D) * 4),
                            .rate = put(&r, rate, (size_t)(K * V) * 4),
                            .out = to,
                            .ld = ld,
                            .H = H,
                            .G = G,
                            .K = K,
                            .V = V,
                            .tiled = cases[i].tiled,
                            .fixed = cases[i].fixed };
        ops->scan(&r.d, &a);
        scan_run run = { a, offset };
        run.a.q = x;
        run.a.k = x + keys;
        run.a.v = x + 2 * keys;
        run.a.beta = beta;
        run.a.decay = decay;
        run.a.rate = rate;
        run.a.out = out;
        float *host = lq_push(&r.a, (size_t)(SLOTS * stride) * 4);
        memcpy(host, slots, (size_t)(SLOTS * stride) * 4);
        on_cpu(host, stride, scan_step, &run);
        for (int k = 0; k < SLOTS; k++) { /* what is beside the heads' states is nobody's */
            memcpy(host + k * stride, slots + k * stride, (size_t)offset * 4);
            memcpy(host + (k + 1) * stride - 5, slots + (k + 1) * stride - 5, 5 * 4);
        }
        char what[64];
        snprintf(what, sizeof what, "case %zu: outputs", i);
        check_bits(&r, to, out, ROWS * H * V, what);
        snprintf(what, sizeof what, "case %zu: states", i);
        check_bits(&r, s.of - offset, host, SLOTS * stride, what);
        rig_close(&r);
    }
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double softplus(double x) { return x > 20 ? x : log1p(exp(x)); }

TEST(rates_are_those_of_their_formulas)
{
    enum { T = 3, H = 6, G = 3, K = 20, LD = 2 * G * K + 2 * H * K, V = 31 };
    for (dev_scan_kind kind = 0; kind < DEV_SCAN_N; kind++)
        for (int mixed = 0; mixed < 2; mixed++) {
            const bool keys = kind == DEV_SCAN_KEYS_DELTA, select = kind == DEV_SCAN_SELECT,
                       unit = kind == DEV_SCAN_DELTA || keys;
            const int64_t D = keys ? H * K : select ? V : H;
            rig r;
            rig_open(&r);
            float *x = floats(&r, T * LD, 1), *dt = floats(&r, D, 2), *rate = floats(&r, H, 3),
                  *start = floats(&r, T * D, 4), *decay = floats(&r, T * D, 5),
                  *beta = floats(&r, T * H, 6), *got = floats(&r, T * LD, 7);
            float *on = put(&r, x, T * LD * 4), *b = on + 2 * G * K;
            const bool pairs = mixed && !keys; /* b and a of a group in turn */
            dev_rates_args a = { .kind = kind,
                                 .q = unit ? on : NULL,
                                 .k = on + G * K,
                                 .b = unit ? b : NULL,
                                 .a = pairs ? b + H / G : b + H,
                                 .dt = put(&r, dt, (size_t)D * 4),
                                 .rate = put(&r, rate, H * 4),
                                 .beta = put(&r, NULL, T * H * 4),
                                 .decay = put(&r, start, (size_t)(T * D) * 4),
                                 .T = T,
                                 .ld = LD,
                                 .ldq = LD,
                                 .H = H,
                                 .G = G,
                                 .K = K,
                                 .decays = D,
                                 .each = pairs ? H / G : H,
                                 .step = 2 * H / G,
                                 .scale = mixed ? 2 : 1,
                                 .span = keys && mixed ? 5 : 0,
                                 .min = mixed ? 0.5f : 0,
                                 .max = mixed ? 1 : 0,
                                 .eps = 1e-6f };
            ops->rates(&r.d, &a);
            double worst = 0;
            bool ok = get(&r, got, on, T * LD * 4, "rates") &&
                      get(&r, decay, a.decay, (size_t)(T * D) * 4, "rates") &&
                      get(&r, beta, a.beta, T * H * 4, "rates");
            for (int64_t t = 0; t < T && ok; t++) {
                for (int64_t g = 0; g < 2 * G && unit; g++) {
                    const float *from = x + t * LD + g * K;
                    double sum = 0;
                    for (int i = 0; i < K; i++)
                        sum += (double)from[i] * (double)from[i];
                    for (int i = 0; i < K; i++) {
                        const double want =
                            (double)from[i] / sqrt(sum + 1e-6) / (g < G ? sqrt(K) : 1);
                        worst = fmax(worst, fabs((double)got[t * LD + g * K + i] - want));
                    }
                }
                for (int64_t h = 0; h < H && !select; h++) {
                    const int64_t at = pairs ? h / (H / G) * 2 * (H / G) + h % (H / G) : h;
                    const float *bt = x + t * LD + 2 * G * K + at;
                    double want = (mixed ? 2 : 1) * sigmoid((double)*bt);
                    if (kind == DEV_SCAN_MAMBA) {
                        want = softplus((double)(bt[pairs ? H / G : H] + dt[h]));
                        if (mixed) want = fmin(fmax(want, 0.5), 1);
                    }
                    worst = fmax(worst, fabs((double)beta[t * H + h] - want));
                }
                for (int64_t i = 0; i < D; i++) {
                    const int64_t h = keys ? i / K : i,
                                  at = pairs ? i / (H / G) * 2 * (H / G) + i % (H / G) + H / G
                                             : H + i;
                    const float *in = x + t * LD + 2 * G * K + at;
                    double want;
                    if (select)
                        want = softplus((double)(start[t * V + i] + dt[i]));
                    else if (kind == DEV_SCAN_MAMBA)
                        want = exp((double)rate[h] * (double)beta[t * H + i]);
                    else if (a.span > 0)
                        want = exp(-5 * sigmoid((double)-rate[h] * (double)(*in + dt[i])));
                    else
                        want = exp((double)rate[h] * softplus((double)(*in + dt[i])));
                    worst = fmax(worst, fabs((double)decay[t * D + i] - want) / fmax(1, want));
                }
            }
            CHECK(worst < 4e-6, "kind %d, mixed %d: %g", (int)kind, mixed, worst);
            rig_close(&r);
        }
}

TEST(gates_and_norms_are_those_of_their_formulas)
{
    static const struct {
        dev_gate_fn f;
        int64_t S, n, width;
        bool skip, norm, first, rows, bf16, bias;
        float factor;
    } cases[] = {
        { DEV_GATE_SILU, 3, 40, 40, false, true, true, false, false, true, 0 },
        { DEV_GATE_SIGMOID, 3, 20, 20, false, true, true, false, false, false, 1 },
        { DEV_GATE_SILU, 2, 150, 150, true, true, false, true, false, false, 0.5f },
        { DEV_GATE_SILU, 1, 300, 300, true, false, false, true, false, false, 1 },
        { DEV_GATE_SOFTPLUS, 4, 24, 1, false, false, false, false, true, false, 0 },
        { DEV_GATE_SIGMOID, 4, 24, 24, false, false, false, false, true, true, 0 },
    };
    enum { T = 3, EACH = 2 };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const int64_t S = cases[i].S, n = cases[i].n, W = cases[i].width, all = S * n,
                      step = EACH * W + 3, ldg = (S + 1) * step + all, ldx = all + 2;
        rig r;
        rig_open(&r);
        float *x = floats(&r, T * ldx, 1), *g = floats(&r, T * ldg, 2), *w = floats(&r, all, 3),
              *skip = floats(&r, all, 4), *got = floats(&r, T * ldx, 5);
        float *on = put(&r, x, (size_t)(T * ldx) * 4), *gate = put(&r, g, (size_t)(T * ldg) * 4);
        ops->gate(&r.d,
                  &(dev_gate_args){ .x = on,
                                    .y = gate,
                                    .skip = cases[i].skip ? put(&r, skip, (size_t)all * 4) : NULL,
                                    .gate = gate + 1,
                                    .bias = cases[i].bias ? put(&r, w, (size_t)S * 4) : NULL,
                                    .w = cases[i].norm ? put(&r, w, (size_t)all * 4) : NULL,
                                    .T = T,
                                    .S = S,
                                    .n = n,
                                    .ldx = ldx,
                                    .ldg = ldg,
                                    .each = EACH,
                                    .step = step,
                                    .width = W,
                                    .skip_each = 10,
                                    .f = cases[i].f,
                                    .eps = 1e-5f,
                                    .factor = cases[i].factor,
                                    .first = cases[i].first,
                                    .w_rows = cases[i].rows,
                                    .bf16 = cases[i].bf16 });
        double worst = 0;
        if (!get(&r, got, on, (size_t)(T * ldx) * 4, "gate")) continue;
        for (int64_t t = 0; t < T; t++)
            for (int64_t s = 0; s < S; s++) {
                double v[512], squares = 0;
                for (int64_t k = 0; k < n; k++) {
                    const int64_t at = s * n + k;
                    const double z =
                        (double)g[t * ldg + 1 + s / EACH * step + s % EACH * W + k / (n / W)] +
                        (cases[i].bias ? (double)w[s] : 0);
                    const double by = cases[i].f == DEV_GATE_SILU      ? z * sigmoid(z)
                                      : cases[i].f == DEV_GATE_SIGMOID ? sigmoid(z)
                                                                       : softplus(z);
                    v[k] = (double)x[t * ldx + at];
                    if (cases[i].skip) v[k] += (double)skip[at / 10] * (double)g[t * ldg + at];
                    if (!cases[i].first) v[k] *= by;
                    squares += v[k] * v[k];
                    if (cases[i].first) v[k] *= by; /* the norm's factor is one of all */
                }
                for (int64_t k = 0; k < n; k++) {
                    const int64_t at = s * n + k;
                    double want = v[k] * (cases[i].factor != 0 ? (double)cases[i].factor : 1);
                    if (cases[i].norm)
                        want *=
                            (double)w[cases[i].rows ? at : k] / sqrt(squares / (double)n + 1e-5);
                    const double off = fabs((double)got[t * ldx + at] - want);
                    worst = fmax(worst, off / (cases[i].bf16 ? 0x1p-8 * fabs(want) + 1e-9 : 1e-5));
                }
            }
        for (int64_t t = 0; t < T; t++)
            CHECK(memcmp(got + t * ldx + all, x + t * ldx + all, 2 * sizeof *got) == 0,
                  "case %zu: what is behind a row", i);
        CHECK(worst <= 1, "case %zu: %g of the bound", i, worst);
        rig_close(&r);
    }
}

TEST(rows_are_multiplied_and_taken_apart)
{
    enum { T = 3, G = 2, K = 5, V = 9, N = G * 2 * (K + V), OUT = G * (2 * K + V), LD = N + 4 };
    rig r;
    rig_open(&r);
    float *x = floats(&r, T * LD, 1), *want = floats(&r, T * LD, 1),
          *apart = floats(&r, T * OUT, 2);
    float *on = put(&r, x, T * LD * 4), *to = put(&r, NULL, T * OUT * 4);
    for (int bare = 0; bare < 2; bare++) {
        const int step = bare ? 2 * K + V : 2 * (K + V);
        ops->unmix(&r.d, &(dev_unmix_args){ to, on, T, G, K, V, OUT, LD, bare });
        for (int t = 0; t < T; t++)
            for (int g = 0; g < G; g++) {
                const float *from = x + t * LD + g * step;
                float *row = apart + t * OUT;
                memcpy(row + g * K, from, K * sizeof *row);
                memcpy(row + (G + g) * K, from + K, K * sizeof *row);
                memcpy(row + 2 * G * K + g * V, from + 2 * K, V * sizeof *row);
            }
        check_bits(&r, to, apart, T * OUT, bare ? "rows without gates" : "rows taken apart");
    }
    ops->times(&r.d, &(dev_times_args){ .x = on + 3, .T = T, .n = 7, .ld = LD, .factor = 0.3f });
    for (int i = 0; i < T * 7; i++)
        want[i / 7 * LD + 3 + i % 7] *= 0.3f;
    check_bits(&r, on, want, T * LD, "a part of rows times a factor");
    const float slope[] = { 0.5f, -1.25f, 0.7f }, base[] = { 1.5f, 0.3f, -0.1f },
                turns[T] = { 0, 0.69f, 1.1f };
    ops->times(&r.d, &(dev_times_args){ .x = on,
                                        .T = T,
                                        .n = 6,
                                        .ld = LD,
                                        .slope = put(&r, slope, sizeof slope),
                                        .base = put(&r, base, sizeof base),
                                        .turns = put(&r, turns, sizeof turns),
                                        .D = 2 });
    for (int i = 0; i < T * 6; i++)
        want[i / 6 * LD + i % 6] *= slope[i % 6 / 2] * turns[i / 6] + base[i % 6 / 2];
    check_bits(&r, on, want, T * LD, "heads by what grows with their row");
    rig_close(&r);
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    if (!rig_table()) return 0;
    CHECK(!k_init("ref", &err), "%s", err.msg);
    RUN(convolutions_have_the_cpus_bits);
    RUN(a_convolution_between_gates_multiplies_before_and_after);
    RUN(scans_have_the_cpus_bits);
    RUN(rates_are_those_of_their_formulas);
    RUN(gates_and_norms_are_those_of_their_formulas);
    RUN(rows_are_multiplied_and_taken_apart);
    return check_end();
}
