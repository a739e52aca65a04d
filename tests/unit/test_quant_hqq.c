/* tests/unit/test_quant_hqq.c - half-quadratic quantization against the hqq package, and against rtn. */
#include "base/hash.h"
#include "formats/hf/safetensors.h"
#include "quantize/methods/hqq.h"
#include "quantize/methods/rtn.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>

static const int bits[] = { 2, 3, 4, 8 }, groups[] = { 32, 64 };

static st_file golden;
static const float *W;
static int64_t N, K;

static const void *find(int b, int g, const char *tail)
{
    char key[64];
    snprintf(key, sizeof key, "b%d.g%d.%s", b, g, tail);
    const st_tensor *t = st_find(&golden, key);
    CHECK(t != NULL, "%s is not in the golden file", key);
    return t ? t->data : NULL;
}

static qt_scheme scheme(int b, int g, qt_zero z)
{
    return (qt_scheme){ .kind = QT_UINT,
                        .bits = b,
                        .group = g,
                        .zero = z,
                        .zbits = z == QT_ZERO_INT ? b : 0,
                        .scale_dtype = LQ_F16 };
}

typedef struct {
    double loss, mean_abs; /* sum |w - q|^0.7; mean |w - q| */
} error;

/* Of group j of row n as the tensor reads. */
static error error_of(const float *q, const float *w, int64_t n)
{
    error e = { 0, 0 };
    for (int64_t i = 0; i < n; i++) {
        const double r = fabs((double)w[i] - (double)q[i]);
        e.loss += pow(r, 0.7);
        e.mean_abs += r / (double)n;
    }
    return e;
}

static float *read_back(const qz_out *out)
{
    float *q = malloc((size_t)(N * K) * sizeof *q);
    if (q) qt_dequant(q, &out->t, 0, N);
    return q;
}

/* hqq's and rtn's reading of W by one scheme; malloc'd. */
static float *by_hqq(const qt_scheme *s, pool *p, lq_hash *hash)
{
    lq_arena a = { 0 };
    qz_out out;
    lq_err err = { "" };
    CHECK(!qz_out_alloc(&out, s, N, K, &a, &err), "%s", err.msg);
    CHECK(!hqq_run(&out, W, LQ_F32, p, &err), "%s", err.msg);
    lq_hash h[3];
    for (int i = 0; i < 3; i++)
        h[i] = lq_hash_bytes(out.t.plane[i].data, out.t.plane[i].bytes);
    if (hash) *hash = lq_hash_bytes(h, sizeof h);
    float *q = read_back(&out);
    lq_arena_free(&a);
    return q;
}

static float *by_rtn(const qt_scheme *like)
{
    const qt_scheme s = scheme(like->bits, (int)like->group, QT_ZERO_INT);
    const grid_spec spec = rtn_spec(&s, GRID_FREE, false);
    lq_arena a = { 0 };
    qz_out out;
    lq_err err = { "" };
    CHECK(!qz_out_alloc(&out, &s, N, K, &a, &err), "%s", err.msg);
    CHECK(!rtn_run(&out, W, LQ_F32, NULL, &spec, NULL, &err), "%s", err.msg);
    float *q = read_back(&out);
    lq_arena_free(&a);
    return q;
}

/* Its groups all stop at once, and its scale and zero are f32 where ours are f16: with 8 bits a
 * zero point of 128 to 255 is rounded by up to a sixteenth of a step, and the scale's 2^-12 moves
 * the last code by as much. A quarter of a step is the mean error. */
TEST(as_good_as_the_package)
{
    for (size_t b = 0; b < LQ_COUNT(bits); b++)
        for (size_t g = 0; g < LQ_COUNT(groups); g++) {
            const int B = bits[b], G = groups[g];
            const uint8_t *codes = find(B, G, "codes");
            const float *scale = find(B, G, "scale"), *zero = find(B, G, "zero");
            const qt_scheme s = scheme(B, G, QT_ZERO_F16);
            float *q = by_hqq(&s, NULL, NULL), *theirs = malloc((size_t)(N * K) * sizeof *theirs);
            if (!codes || !scale || !zero || !q || !theirs) continue;
            error ours = { 0, 0 }, package = { 0, 0 };
            for (int64_t i = 0; i < N * K; i++)
                theirs[i] = scale[i / G] * ((float)codes[i] - zero[i / G]);
            for (int64_t i = 0; i < N * K; i += G) {
                const error x = error_of(q + i, W + i, G), y = error_of(theirs + i, W + i, G);
                ours.loss += x.loss, ours.mean_abs += x.mean_abs;
                package.loss += y.loss, package.mean_abs += y.mean_abs;
            }
            if (getenv("SHOW"))
                printf("%d bits, groups of %d: loss %.5g, package %.5g; mean %.4g, %.4g\n", B, G,
                       ours.loss, package.loss, ours.mean_abs, package.mean_abs);
            const double slack = B == 8 ? 1.0625 : 1.0;
            CHECK(ours.loss <= slack * 1.002 * package.loss,
                  "%d bits, %d: loss %g, the package's %g", B, G, ours.loss, package.loss);
            CHECK(ours.mean_abs <= slack * 1.01 * package.mean_abs, "%d bits, %d: mean %g, %g", B,
                  G, ours.mean_abs, package.mean_abs);
            free(q);
            free(theirs);
        }
}

TEST(no_group_is_worse_than_rounding_to_nearest)
{
    static const qt_zero zeros[] = { QT_ZERO_F16, QT_ZERO_INT };
    for (size_t b = 0; b < LQ_COUNT(bits); b++)
        for (size_t z = 0; z < LQ_COUNT(zeros); z++) {
            const int G = 32;
            const qt_scheme s = scheme(bits[b], G, zeros[z]);
            float *q = by_hqq(&s, NULL, NULL), *rtn = by_rtn(&s);
            int64_t better = 0;
            for (int64_t i = 0; q && rtn && i < N * K; i += G) {
                const double x = error_of(q + i, W + i, G).loss,
                             y = error_of(rtn + i, W + i, G).loss;
                CHECK(x <= y * (1 + 1e-6), "%d bits, zeros %d, group %lld: %g, rtn %g", bits[b],
                      (int)zeros[z], (long long)(i / G), x, y);
                better += x < 0.999 * y;
            }
            CHECK(better > N * K / G / 4, "%d bits, zeros %d: better in %lld groups alone", bits[b],
                  (int)zeros[z], (long long)better);
            free(q);
            free(rtn);
        }
}

TEST(threads_change_no_byte)
{
    static const int threads[] = { 1, 2, 3, 8 };
    const qt_scheme s = scheme(3, 64, QT_ZERO_F16);
    lq_hash first = { { 0 } }, h;
    for (size_t i = 0; i < LQ_COUNT(threads); i++) {
        pool *p = NULL;
        CHECK(!pool_open(&p, threads[i], NULL), "pool");
        free(by_hqq(&s, p, &h));
        if (i == 0) first = h;
        CHECK(memcmp(h.b, first.b, sizeof h.b) == 0, "%d threads", threads[i]);
        pool_close(p);
    }
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    CHECK(!st_open(&golden, "tests/golden/quant/hqq.safetensors", &err), "%s", err.msg);
    const st_tensor *w = st_find(&golden, "w");
    if (!w) return 1;
    N = w->shape[0];
    K = w->shape[1];
    float *copy = malloc(w->bytes);
    if (!copy) return 1;
    memcpy(copy, w->data, w->bytes);
    W = copy;
    RUN(as_good_as_the_package);
    RUN(no_group_is_worse_than_rounding_to_nearest);
    RUN(threads_change_no_byte);
    free(copy);
    st_close(&golden);
    return check_end();
}
