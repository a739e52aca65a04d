/* tests/unit/test_quant_tune.c - what tuning changes: weights there and back, and that steps descend. */
#include "quantize/layer/residual.h"
#include "quantize/layer/trainable.h"
#include "quantize/methods/fp4.h"
#include "quantize/methods/row_grid.h"
#include "quantize/methods/rtn.h"
#include "quantize/tune/states.h"
#include "quantize/tune/tune.h"
#include "tests/support/check.h"
#include "tests/support/noise.h"

#include <math.h>
#include <stdlib.h>

enum { N = 37, K = 96, G = 32 };

static pool *p;

static void rounded(qz_out *out, float *W, int bits, bool asym, lq_arena *a)
{
    qt_scheme s = { .kind = QT_UINT,
                    .bits = bits,
                    .group = G,
                    .zero = asym ? QT_ZERO_INT : QT_ZERO_NONE,
                    .zbits = asym ? bits : 0,
                    .scale_dtype = LQ_F16 };
    grid_spec spec = rtn_spec(&s, GRID_FREE, false);
    uint32_t seed = 5;
    lq_err err = { "" };
    for (int i = 0; i < N * K; i++)
        W[i] = noise(&seed);
    lq_status st = qz_out_alloc(out, &s, N, K, a, &err);
    if (!st) st = rtn_run(out, W, LQ_F32, NULL, &spec, p, &err);
    CHECK(!st, "%s", err.msg);
}

TEST(a_weight_that_is_not_stepped_comes_back_as_it_was)
{
    static const int bits[] = { 2, 3, 4, 8 };
    for (size_t i = 0; i < 2 * LQ_COUNT(bits); i++) {
        lq_arena a = { 0 };
        qz_out q;
        tune_weight w;
        qt_tensor back;
        lq_err err = { "" };
        static float W[N * K], want[N * K], got[N * K];
        rounded(&q, W, bits[i / 2], i % 2, &a);
        lq_status st = tune_weight_init(&w, &q.t, NULL, &a, &err);
        if (!st) st = tune_weight_store(&back, &w, &a, &err);
        CHECK(!st, "%s", err.msg);
        tune_weight_expand(got, &w, p);
        qt_dequant(want, &q.t, 0, N);
        CHECK(!memcmp(want, got, sizeof want), "%d bits: other weights", bits[i / 2]);
        for (int pl = 0; pl < QT_N_PLANES && !st; pl++)
            CHECK(q.t.plane[pl].bytes == back.plane[pl].bytes &&
                      (!q.t.plane[pl].bytes ||
                       !memcmp(q.t.plane[pl].data, back.plane[pl].data, q.t.plane[pl].bytes)),
                  "%d bits: %s", bits[i / 2], qt_plane_text((qt_plane)pl));
        lq_arena_free(&a);
    }
}

/* Loss: squared distance to weights that are larger by a fifth; its gradient is exact. */
TEST(steps_descend_and_do_not_depend_on_threads)
{
    static float W[N * K], now[N * K], dW[N * K], first[N * K];
    for (int threads = 1; threads <= 3; threads++) {
        lq_arena a = { 0 };
        qz_out q;
        tune_weight w;
        pool *some = NULL;
        lq_err err = { "" };
        double before = 0, after = 0;
        rounded(&q, W, 3, true, &a);
        lq_status st = tune_weight_init(&w, &q.t, NULL, &a, &err);
        if (!st) st = pool_open(&some, threads, &err);
        CHECK(!st, "%s", err.msg);
        for (int step = 1; step <= 40; step++) {
            tune_weight_expand(now, &w, some);
            for (int k = 0; k < N * K; k++) {
                dW[k] = 2 * (now[k] - 1.2f * W[k]);
                before += step == 1 ? (double)(dW[k] * dW[k]) : 0;
            }
            tune_step s = { .scale = 0.01f, .step = step };
            tune_weight_step(&w, dW, 0, w.base.N, &s, some);
        }
        tune_weight_expand(now, &w, some);
        for (int k = 0; k < N * K; k++)
            after += 4 * (double)((now[k] - 1.2f * W[k]) * (now[k] - 1.2f * W[k]));
        CHECK(after < 0.8 * before, "%g, before %g", after, before);
        if (threads == 1) memcpy(first, now, sizeof now);
        CHECK(!memcmp(first, now, sizeof now), "%d threads", threads);
        pool_close(some);
        lq_arena_free(&a);
    }
}

TEST(scales_move_alike_whether_codes_lie_packed_or_not)
{
    static float W[N * K], now[2][N * K], dW[N * K];
    static const int8_t rest[N * K];
    lq_arena a = { 0 };
    qz_out q;
    tune_weight w[2]; /* packed, not */
    lq_err err = { "" };
    rounded(&q, W, 3, true, &a);
    for (int i = 0; i < N * K; i++)
        dW[i] = W[(i * 7) % (N * K)];
    for (int i = 0; i < 2; i++) {
        CHECK(!tune_weight_init(&w[i], &q.t, i ? rest : NULL, &a, &err), "%s", err.msg);
        CHECK((w[i].code != NULL) == (i == 1), "codes are %s memory", i ? "not in" : "in");
        for (int step = 1; step <= 3; step++)
            tune_weight_step(&w[i], dW, 0, w[i].base.N, &(tune_step){ .scale = 0.1f, .step = step },
                             p);
        tune_weight_expand(now[i], &w[i], p);
    }
    CHECK(!memcmp(now[0], now[1], sizeof now[0]), "other weights");
    qt_tensor out[2];
    for (int i = 0; i < 2; i++)
        CHECK(!tune_weight_store(&out[i], &w[i], &a, &err), "%s", err.msg);
    for (int pl = 0; pl < QT_N_PLANES; pl++)
        CHECK(out[0].plane[pl].bytes == out[1].plane[pl].bytes &&
                  (!out[0].plane[pl].bytes ||
                   !memcmp(out[0].plane[pl].data, out[1].plane[pl].data, out[0].plane[pl].bytes)),
              "%s", qt_plane_text((qt_plane)pl));
    CHECK(memcmp(out[0].plane[QT_SCALES].data, q.t.plane[QT_SCALES].data,
                 q.t.plane[QT_SCALES].bytes) != 0,
          "the scales have not moved");
    lq_arena_free(&a);
}

TEST(what_rounding_left_leads_back_to_the_weight)
{
    lq_arena a = { 0 };
    qz_out q;
    lq_err err = { "" };
    static float W[N * K], got[N * K];
    static int8_t rest[N * K];
    rounded(&q, W, 4, true, &a);
    W[5] = 1e30f; /* far off its grid */
    CHECK(!qz_residual_of(rest, &q.t, W, LQ_F32, p, &err), "%s", err.msg);
    qt_dequant(got, &q.t, 0, N);
    float worst = 0;
    for (int i = 0; i < N * K; i++) {
        if (i == 5) continue;
        float scale;
        lq_to_f32(&scale, (const uint8_t *)q.t.plane[QT_SCALES].data + 2 * (i / G), LQ_F16, 1);
        float off = fabsf((W[i] - got[i]) / scale - (float)rest[i] / ROW_REST_UNIT);
        worst = off > worst ? off : worst;
    }
    CHECK(worst <= 0.501f / ROW_REST_UNIT && rest[5] == 127, "%g steps, %d", (double)worst,
          rest[5]);
    lq_arena_free(&a);
}

/* Loss: squared distance to weights 0.8 steps above the rounded ones. Those that
 * rounding took down come to the next code long before those that it took up. */
TEST(codes_are_trained_from_where_the_weights_were)
{
    static float W[N * K], now[N * K], start[N * K], dW[N * K], first[N * K];
    static int8_t rest[N * K];
    for (int threads = 1; threads <= 3; threads++) {
        lq_arena a = { 0 };
        qz_out q;
        tune_weight w;
        pool *some = NULL;
        lq_err err = { "" };
        static uint8_t code0[N * K];
        rounded(&q, W, 3, true, &a);
        for (int i = 0; i < N * K; i++)
            rest[i] = i % 2 ? 24 : -24;
        lq_status st = tune_weight_init(&w, &q.t, rest, &a, &err);
        if (!st) st = pool_open(&some, threads, &err);
        CHECK(!st, "%s", err.msg);
        memcpy(code0, w.code, sizeof code0);
        tune_weight_expand(start, &w, some);
        for (int step = 1; step <= 20; step++) {
            tune_weight_expand(now, &w, some);
            for (int i = 0; i < N * K; i++)
                dW[i] = now[i] - (start[i] + 0.8f * w.scale[i / G]);
            tune_weight_step(&w, dW, 0, w.base.N, &(tune_step){ .code = 0.02f, .step = step },
                             some);
        }
        int64_t up = 0, down = 0, early = 0, room = 0;
        for (int i = 0; i < N * K; i++) {
            up += w.code[i] > code0[i];
            down += w.code[i] < code0[i];
            early += i % 2 == 0 && w.code[i] != code0[i];
            room += i % 2 && code0[i] < 7;
        }
        tune_weight_expand(now, &w, some);
        CHECK(up == room && !down && !early, "%lld up of %lld, %lld down, %lld early",
              (long long)up, (long long)room, (long long)down, (long long)early);
        if (threads == 1) memcpy(first, now, sizeof now);
        CHECK(!memcmp(first, now, sizeof now), "%d threads", threads);
        pool_close(some);
        lq_arena_free(&a);
    }
}

/* Gradients that grow take Adam furthest. */
TEST(no_code_moves_in_steps_that_are_too_few)
{
    static float W[N * K], dW[N * K];
    static int8_t rest[N * K];
    for (int steps = 1; steps <= 64; steps *= 4) {
        lq_arena a = { 0 };
        lq_err err = { "" };
        qz_out q;
        tune_weight w;
        static uint8_t code0[N * K];
        double rate = 1e-4;
        while (!tune_moves_codes(steps, 1.01 * rate))
            rate *= 1.01;
        rounded(&q, W, 3, true, &a);
        memset(rest, 127, sizeof rest);
        CHECK(!tune_weight_init(&w, &q.t, rest, &a, &err), "%s", err.msg);
        memcpy(code0, w.code, sizeof code0);
        for (int step = 1; step <= steps; step++) {
            for (int i = 0; i < N * K; i++)
                dW[i] = -powf(1.2f, (float)step);
            const float now = (float)(rate * tune_rate_at(step - 1, steps));
            tune_weight_step(&w, dW, 0, w.base.N, &(tune_step){ .code = now, .step = step }, p);
        }
        CHECK(!memcmp(w.code, code0, sizeof code0), "%d steps", steps);
        CHECK(!tune_moves_codes(steps, rate) && tune_moves_codes(steps, 1.01 * rate), "%g", rate);
        lq_arena_free(&a);
    }
}

/* Schemes whose scales stay. */
static const char *const staying[] = { "Q4_1", "Q5_0",   "Q2_K",   "Q3_K",  "Q4_K",
                                       "Q6_K", "IQ4_NL", "IQ4_XS", "nvfp4", "mxfp4" };
enum { ROWS = 9, WIDE = 512 };

static lq_status scheme_of(qt_scheme *s, const char *text, lq_err *err)
{
    const blk_type *t = blk_named(text);
    if (!t) return qt_scheme_parse(s, text, err);
    *s = (qt_scheme){ .kind = QT_BLOCKS, .blocks = t->id };
    return LQ_OK;
}

static lq_status made_as(qz_out *q, float *W, const char *scheme, lq_arena *a, lq_err *err)
{
    qt_scheme s;
    uint32_t seed = 8;
    for (int i = 0; i < ROWS * WIDE; i++)
        W[i] = noise(&seed) * (1 + noise(&seed));
    lq_status st = scheme_of(&s, scheme, err);
    s.recip = s.kind == QT_E2M1 && s.scale_dtype == LQ_F8_E4M3;
    if (!st) st = qz_out_alloc(q, &s, ROWS, WIDE, a, err);
    const float second = fp4_tensor_scale(2);
    if (!st && q->w[QT_SCALES2]) memcpy(q->w[QT_SCALES2], &second, sizeof second);
    const grid_spec spec = st ? (grid_spec){ 0 } : rtn_spec_of(q, GRID_FREE, true);
    return st ? st : rtn_run(q, W, LQ_F32, NULL, &spec, p, err);
}

/* Of the code after the one that weight k has, its own where that is the last. */
static float next_value(const tune_weight *w, int64_t k)
{
    const int64_t g = k / row_group(&w->base.scheme);
    const int bits = w->bits;
    const int code = w->code[k] + 1 < 1 << bits ? w->code[k] + 1 : w->code[k];
    return w->scale[g] * (w->table ? (float)w->table[code] : (float)code - w->zero[g]);
}

/* Towards weights of which a third lies 0.9 of the way to the next value above: their codes move, the others and
 * all scales stay. */
TEST(codes_are_trained_where_scales_stay)
{
    static float W[ROWS * WIDE], now[ROWS * WIDE], want[ROWS * WIDE], dW[ROWS * WIDE];
    static int8_t rest[ROWS * WIDE];
    for (size_t i = 0; i < LQ_COUNT(staying); i++) {
        lq_arena a = { 0 };
        lq_err err = { "" };
        qz_out q;
        tune_weight w;
        qt_tensor same, moved;
        lq_status st = made_as(&q, W, staying[i], &a, &err);
        if (!st) st = qz_residual_of(rest, &q.t, W, LQ_F32, p, &err);
        if (!st) st = tune_weight_init(&w, &q.t, rest, &a, &err);
        if (!st) st = tune_weight_store(&same, &w, &a, &err);
        CHECK(!st && qz_residual_fits(&q.t.scheme), "%s: %s", staying[i], err.msg);
        if (st) continue;
        for (int pl = 0; pl < QT_N_PLANES; pl++)
            CHECK(!q.t.plane[pl].bytes ||
                      !memcmp(q.t.plane[pl].data, same.plane[pl].data, q.t.plane[pl].bytes),
                  "%s: other bytes without a step", staying[i]);
        qt_dequant(want, &q.t, 0, ROWS);
        tune_weight_expand(now, &w, p);
        double before = 0, after = 0;
        for (int k = 0; k < ROWS * WIDE; k++) {
            CHECK(fabsf(now[k] - want[k]) <= 4e-6f, "%s: %g, %g", staying[i], (double)now[k],
                  (double)want[k]);
            CHECK(abs(rest[k]) <= 127, "%s: rest %d", staying[i], rest[k]);
            if (k % 3 == 0) want[k] += 0.9f * (next_value(&w, k) - want[k]);
            before += (double)((now[k] - want[k]) * (now[k] - want[k]));
        }
        for (int step = 1; step <= 40; step++) {
            for (int k = 0; k < ROWS * WIDE; k++)
                dW[k] = now[k] - want[k];
            tune_weight_step(&w, dW, 0, w.base.N,
                             &(tune_step){ .scale = 1, .code = 0.03f, .step = step }, p);
            tune_weight_expand(now, &w, p);
        }
        for (int k = 0; k < ROWS * WIDE; k++)
            after += (double)((now[k] - want[k]) * (now[k] - want[k]));
        CHECK(after < 0.8 * before, "%s: %g, before %g", staying[i], after, before);
        CHECK(!tune_weight_store(&moved, &w, &a, &err), "%s", err.msg);
        qt_dequant(want, &moved, 0, ROWS);
        for (int k = 0; k < ROWS * WIDE; k++)
            CHECK(fabsf(now[k] - want[k]) <= 4e-6f, "%s: stored %g, trained %g", staying[i],
                  (double)want[k], (double)now[k]);
        lq_arena_free(&a);
    }
}

TEST(points_of_a_lattice_are_not_trained)
{
    qt_scheme s;
    lq_err err = { "" };
    CHECK(!scheme_of(&s, "IQ3_S", &err), "%s", err.msg);
    CHECK(!qz_residual_fits(&s), "one by one they are none");
}

/* Experts in one tensor are trained one by one: the second is stepped here, the others come back as they were. */
TEST(parts_of_a_tensor_are_trained_alone_and_stored_as_one)
{
    static const int64_t from[] = { 0, 12, 24, N };
    static float W[N * K], dW[N * K], was[N * K], now[2][N * K];
    static const int8_t rest[N * K];
    for (int i = 0; i < N * K; i++)
        dW[i] = i % 3 ? 1 : -1;
    for (int disk = 0; disk < 2; disk++) {
        lq_arena a = { 0 };
        lq_err err = { "" };
        lq_map made = { 0 };
        tune_states s;
        tune_state part[3];
        qz_out q;
        qt_tensor out = { .N = 0 }, rows;
        rounded(&q, W, 3, true, &a);
        qt_dequant(was, &q.t, 0, N);
        CHECK(!tune_states_open(&s, disk ? "." : NULL, &err), "%s", err.msg);
        for (int i = 0; i < 3; i++) {
            CHECK(qt_rows(&rows, &q.t, from[i], from[i + 1]), "rows");
            CHECK(!tune_states_add(&s, &part[i], &rows, rest + from[i] * K, &err), "%s", err.msg);
        }
        for (int step = 1; step <= 9; step++) {
            CHECK(!tune_states_get(&s, &part[1], true, &err), "%s", err.msg);
            tune_weight_step(&part[1].w, dW, 0, part[1].w.base.N,
                             &(tune_step){ 0.01f, 0, 0.1f, step }, p);
            CHECK(!tune_states_put(&s, &part[1], &err), "%s", err.msg);
        }
        for (int i = 0; i < 3; i++)
            CHECK(!tune_states_store(&out, &q.t, from[i], &s, &part[i], &made, &a, &err), "%s",
                  err.msg);
        qt_dequant(now[disk], &out, 0, N);
        int64_t moved = 0;
        for (int i = 0; i < N * K; i++) {
            const bool stepped = i >= from[1] * K && i < from[2] * K;
            moved += now[disk][i] != was[i];
            CHECK(stepped || now[disk][i] == was[i], "row %d moved", i / K);
        }
        CHECK(moved > 0 && out.N == N && (made.data != NULL) == (disk == 1), "%lld moved",
              (long long)moved);
        lq_map_close(&made);
        tune_states_close(&s);
        lq_arena_free(&a);
    }
    CHECK(!memcmp(now[0], now[1], sizeof now[0]), "other weights from a file");
}

TEST(a_vector_moves_against_its_gradient_which_is_then_zero)
{
    lq_arena a = { 0 };
    tune_vector v;
    lq_err err = { "" };
    const float w[3] = { 1, -2, 3 };
    CHECK(!tune_vector_init(&v, w, 3, &a, &err), "%s", err.msg);
    v.grad[0] = 5, v.grad[1] = -0.01f;
    tune_step s = { .vector = 0.5f, .step = 1 };
    tune_vector_step(&v, &s);
    /* Adam's first step is the rate, whatever the gradient's size. */
    CHECK(fabsf(v.w[0] - 0.5f) < 1e-5f && fabsf(v.w[1] + 1.5f) < 1e-5f && v.w[2] == 3, "%g %g %g",
          (double)v.w[0], (double)v.w[1], (double)v.w[2]);
    CHECK(v.grad[0] == 0 && v.grad[1] == 0, "gradient stays");
    lq_arena_free(&a);
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    if (pool_open(&p, 2, &err)) return 1;
    RUN(a_weight_that_is_not_stepped_comes_back_as_it_was);
    RUN(steps_descend_and_do_not_depend_on_threads);
    RUN(scales_move_alike_whether_codes_lie_packed_or_not);
    RUN(what_rounding_left_leads_back_to_the_weight);
    RUN(codes_are_trained_from_where_the_weights_were);
    RUN(no_code_moves_in_steps_that_are_too_few);
    RUN(codes_are_trained_where_scales_stay);
    RUN(points_of_a_lattice_are_not_trained);
    RUN(parts_of_a_tensor_are_trained_alone_and_stored_as_one);
    RUN(a_vector_moves_against_its_gradient_which_is_then_zero);
    pool_close(p);
    return check_end();
}
