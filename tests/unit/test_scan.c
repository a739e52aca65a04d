/* tests/unit/test_scan.c - convolution and recurrence along a sequence: every family against the reference, to
 * the bit; a run in parts against a whole one; and the reference against double. */
#include "kernels/scan.h"
#include "tests/support/check.h"
#include "tests/support/families.h"
#include "tests/support/fill.h"

enum { T = 23, MAX_K = 37, CHANNELS = 41, TAPS = 5 };

typedef struct {
    float x[T][CHANNELS], w[TAPS][CHANNELS], bias[CHANNELS], history[TAPS - 1][CHANNELS];
} conv_case;

static void run_conv(conv_case *c, int taps, bool bias, bool silu, int64_t step)
{
    for (int64_t t = 0; t < T; t += step) {
        k_conv_args a = { .x = c->x[t],
                          .ldx = CHANNELS,
                          .T = T - t < step ? T - t : step,
                          .n = CHANNELS,
                          .w = c->w[0],
                          .ldw = CHANNELS,
                          .bias = bias ? c->bias : NULL,
                          .history = c->history[0],
                          .ldh = CHANNELS,
                          .taps = taps,
                          .silu = silu };
        k_conv(&a);
    }
}

static void fill_conv(conv_case *c)
{
    uint64_t seed = 7;
    fill_row((float *)c, sizeof *c / sizeof(float), &seed);
}

/* The largest difference to the sums in double. */
static double conv_error(const conv_case *in, const conv_case *out, int taps)
{
    double worst = 0;
    for (int64_t t = 0; t < T; t++)
        for (int64_t c = 0; c < CHANNELS; c++) {
            double y = (double)in->bias[c];
            for (int64_t j = 0; j < taps; j++) {
                const int64_t at = t - taps + 1 + j;
                const float x = at < 0 ? in->history[at + taps - 1][c] : in->x[at][c];
                y += (double)in->w[j][c] * (double)x;
            }
            worst = fmax(worst, fabs(y - (double)out->x[t][c]));
        }
    return worst;
}

TEST(a_convolution_is_the_same_in_every_family_and_in_parts)
{
    for (int taps = 1; taps <= TAPS; taps++) {
        conv_case in, want, got;
        char family[16];
        fill_conv(&in);
        CHECK(!k_init("ref", NULL), "ref");
        want = in;
        run_conv(&want, taps, true, false, T);
        CHECK(conv_error(&in, &want, taps) < 1e-6, "%d taps: off by %g", taps,
              conv_error(&in, &want, taps));
        for (int silu = 0; silu < 2; silu++) {
            CHECK(!k_init("ref", NULL), "ref");
            want = in;
            run_conv(&want, taps, silu, silu, T);
            for (int i = 0; family_use(i, family); i++)
                for (int64_t step = 1; step <= T; step += 7) {
                    got = in;
                    run_conv(&got, taps, silu, silu, step);
                    CHECK(memcmp(&got, &want, sizeof got) == 0, "%s: %d taps in steps of %d",
                          family, taps, (int)step);
                }
        }
    }
}

typedef struct {
    float S[MAX_K][SCAN_LANES], q[T][MAX_K], k[T][MAX_K], v[T][SCAN_LANES], beta[T],
        decay[T][MAX_K], out[T][SCAN_LANES];
} scan_case;

static void run_scan(scan_case *c, int64_t K, int lanes, bool correct, bool each, int64_t step)
{
    for (int64_t t = 0; t < T; t += step) {
        const k_scan_args a = { .S = c->S[0],
                                .T = T - t < step ? T - t : step,
                                .K = K,
                                .lanes = lanes,
                                .correct = correct,
                                .q = c->q[t],
                                .k = c->k[t],
                                .v = c->v[t],
                                .ldq = MAX_K,
                                .ldk = MAX_K,
                                .ldv = SCAN_LANES,
                                .beta = c->beta + t,
                                .decay = c->decay[t],
                                .ldb = 1,
                                .ldd = MAX_K,
                                .decay_step = each,
                                .out = c->out[t],
                                .ldo = SCAN_LANES };
        k_scan(&a);
    }
}

static void fill_scan(scan_case *c, int lanes)
{
    uint64_t seed = 3;
    fill_row((float *)c, sizeof *c / sizeof(float), &seed);
    for (int t = 0; t < T; t++) {
        c->beta[t] = fabsf(c->beta[t]);
        for (int i = 0; i < MAX_K; i++) {
            c->decay[t][i] = fabsf(c->decay[t][i]);
            c->k[t][i] *= 0.3f; /* of about length 1: the correction does not overshoot */
        }
    }
    for (int i = 0; i < MAX_K; i++)
        for (int j = lanes; j < SCAN_LANES; j++)
            c->S[i][j] = 0;
}

static double scan_error(const scan_case *in, const scan_case *out, int64_t K, int lanes,
                         bool correct, bool each)
{
    double worst = 0;
    for (int lane = 0; lane < lanes; lane++) {
        double S[MAX_K];
        for (int64_t i = 0; i < K; i++)
            S[i] = (double)in->S[i][lane];
        for (int64_t t = 0; t < T; t++) {
            double held = 0, y = 0;
            for (int64_t i = 0; i < K; i++) {
                S[i] *= (double)in->decay[t][each ? i : 0];
                held += S[i] * (double)in->k[t][i];
            }
            const double d = (double)in->beta[t] * ((double)in->v[t][lane] - (correct ? held : 0));
            for (int64_t i = 0; i < K; i++) {
                S[i] += (double)in->k[t][i] * d;
                y += S[i] * (double)in->q[t][i];
            }
            worst = fmax(worst, fabs(y - (double)out->out[t][lane]));
        }
    }
    return worst;
}

TEST(a_recurrence_is_the_same_in_every_family_and_in_parts)
{
    static const struct {
        int64_t K;
        int lanes;
    } sizes[] = { { 1, 16 }, { 8, 12 }, { 32, 16 }, { MAX_K, 16 }, { MAX_K, 1 } };
    for (size_t s = 0; s < LQ_COUNT(sizes); s++)
        for (int how = 0; how < 4; how++) {
            const int64_t K = sizes[s].K;
            const int lanes = sizes[s].lanes;
            const bool correct = how & 1, each = how & 2;
            scan_case in, want, got;
            char family[16];
            fill_scan(&in, lanes);
            CHECK(!k_init("ref", NULL), "ref");
            want = in;
            run_scan(&want, K, lanes, correct, each, T);
            const double error = scan_error(&in, &want, K, lanes, correct, each);
            CHECK(error < 1e-5, "K %d, kind %d: off by %g", (int)K, how, error);
            for (int i = 0; family_use(i, family); i++)
                for (int64_t step = 1; step <= T; step += 11) {
                    got = in;
                    run_scan(&got, K, lanes, correct, each, step);
                    CHECK(memcmp(&got, &want, sizeof got) == 0, "%s: K %d, kind %d in steps of %d",
                          family, (int)K, how, (int)step);
                }
        }
}

/* Mamba's. */
typedef struct {
    float S[MAX_K][SCAN_LANES], rate[MAX_K][SCAN_LANES], q[T][MAX_K], k[T][MAX_K], v[T][SCAN_LANES],
        step[T][SCAN_LANES], out[T][SCAN_LANES];
} select_case;

static void run_select(select_case *c, int64_t K, int lanes, int64_t step)
{
    for (int64_t t = 0; t < T; t += step) {
        const k_select_args a = { .S = c->S[0],
                                  .T = T - t < step ? T - t : step,
                                  .K = K,
                                  .lanes = lanes,
                                  .rate = c->rate[0],
                                  .ldr = SCAN_LANES,
                                  .q = c->q[t],
                                  .k = c->k[t],
                                  .v = c->v[t],
                                  .step = c->step[t],
                                  .ldq = MAX_K,
                                  .ldk = MAX_K,
                                  .ldv = SCAN_LANES,
                                  .lds = SCAN_LANES,
                                  .out = c->out[t],
                                  .ldo = SCAN_LANES };
        k_select(&a);
    }
}

static void fill_select(select_case *c, int lanes)
{
    uint64_t seed = 5;
    fill_row((float *)c, sizeof *c / sizeof(float), &seed);
    for (int j = 0; j < SCAN_LANES; j++) {
        for (int i = 0; i < MAX_K; i++) {
            c->rate[i][j] = -fabsf(c->rate[i][j]);
            if (j >= lanes) c->S[i][j] = 0;
        }
        for (int t = 0; t < T; t++)
            c->step[t][j] = fabsf(c->step[t][j]);
    }
}

static double select_error(const select_case *in, const select_case *out, int64_t K, int lanes)
{
    double worst = 0;
    for (int lane = 0; lane < lanes; lane++) {
        double S[MAX_K];
        for (int64_t i = 0; i < K; i++)
            S[i] = (double)in->S[i][lane];
        for (int64_t t = 0; t < T; t++) {
            const double step = (double)in->step[t][lane], d = step * (double)in->v[t][lane];
            double y = 0;
            for (int64_t i = 0; i < K; i++) {
                S[i] = exp(step * (double)in->rate[i][lane]) * S[i] + (double)in->k[t][i] * d;
                y += S[i] * (double)in->q[t][i];
            }
            worst = fmax(worst, fabs(y - (double)out->out[t][lane]));
        }
    }
    return worst;
}

TEST(a_selective_recurrence_is_the_same_in_every_family_and_in_parts)
{
    static const struct {
        int64_t K;
        int lanes;
    } sizes[] = { { 1, 16 }, { 6, 12 }, { 16, 16 }, { MAX_K, 1 } };
    for (size_t s = 0; s < LQ_COUNT(sizes); s++) {
        const int64_t K = sizes[s].K;
        const int lanes = sizes[s].lanes;
        select_case in, want, got;
        char family[16];
        fill_select(&in, lanes);
        CHECK(!k_init("ref", NULL), "ref");
        want = in;
        run_select(&want, K, lanes, T);
        const double error = select_error(&in, &want, K, lanes);
        CHECK(error < 1e-5, "K %d: off by %g", (int)K, error);
        for (int i = 0; family_use(i, family); i++)
            for (int64_t step = 1; step <= T; step += 11) {
                got = in;
                run_select(&got, K, lanes, step);
                CHECK(memcmp(&got, &want, sizeof got) == 0, "%s: K %d in steps of %d", family,
                      (int)K, (int)step);
            }
    }
}

TEST(softplus_is_good_to_the_last_digit)
{
    enum { N = 3001 };
    static float x[N], zero[N], want[N], got[N];
    char family[16];
    for (int i = 0; i < N; i++)
        x[i] = -80 + (float)i * 0.0371f;
    CHECK(!k_init("ref", NULL), "ref");
    memcpy(want, x, sizeof want);
    k_softplus(want, zero, N);
    for (int i = 0; i < N; i++) {
        const double true_value = x[i] > 20 ? (double)x[i] : log1p(exp((double)x[i]));
        CHECK(fabs((double)want[i] - true_value) <= 2e-7 * true_value,
              "softplus(%g): %.9g, expected %.9g", (double)x[i], (double)want[i], true_value);
    }
    for (int f = 0; family_use(f, family); f++) {
        memcpy(got, x, sizeof got);
        k_softplus(got, zero, N);
        CHECK(memcmp(got, want, sizeof got) == 0, "%s", family);
    }
}

int main(int argc, char **argv)
{
    RUN(a_convolution_is_the_same_in_every_family_and_in_parts);
    RUN(a_recurrence_is_the_same_in_every_family_and_in_parts);
    RUN(a_selective_recurrence_is_the_same_in_every_family_and_in_parts);
    RUN(softplus_is_good_to_the_last_digit);
    return check_end();
}
