/* tests/unit/test_eval.c - perplexity and KL divergence against transformers (golden/make_eval.py). */
#include "runtime/eval.h"
#include "tests/support/check.h"
#include "tests/support/rig.h"

#include <stdlib.h>
#include <unistd.h>

enum { C = 32, WINDOWS = 2, SCORED = C - 1 };

static const st_tensor *golden(const st_file *f, const char *name)
{
    const st_tensor *t = st_find(f, name);
    CHECK(t != NULL, "golden tensor %s", name);
    return t;
}

static double golden_f64(const st_tensor *t, int64_t i)
{
    double v;
    memcpy(&v, t->data + (size_t)i * sizeof v, sizeof v);
    return v;
}

/* Per-token figures: the reference's logits and ours differ by some 1e-5, so do their log
 * probabilities; a KL term is such a difference weighted by a probability. */
static void compare(const char *what, const double *got, const st_tensor *want, double bound)
{
    double worst = 0;
    for (int64_t i = 0; i < WINDOWS * SCORED; i++)
        worst = fmax(worst, fabs(got[i] - golden_f64(want, i)));
    CHECK(worst <= bound, "%s: off by %.2g", what, worst);
}

TEST(figures_agree_with_transformers)
{
    st_file f;
    lq_err err = { "" };
    CHECK(!st_open(&f, "tests/golden/eval/windows.safetensors", &err), "%s", err.msg);
    int32_t ids[WINDOWS * C];
    memcpy(ids, golden(&f, "ids")->data, sizeof ids);
    rig small, big;
    bool ok = rig_open(&small, "models/novels-1m", (rig_opts){ .threads = 2 });
    ok = rig_open(&big, "models/novels-6m", (rig_opts){ .threads = 2 }) && ok;
    eval_result r = { 0 };
    eval_opts o = { .ctx = C };
    if (ok) {
        lq_status s = eval_run(&r, &small.m, &big.m, ids, WINDOWS * C, &o, small.p, NULL, &err);
        CHECK(!s && r.windows == WINDOWS && r.tokens == WINDOWS * SCORED, "%s", err.msg);
        compare("nll", r.token_nll, golden(&f, "nll_1m"), 1e-4);
        compare("KL", r.token_kl, golden(&f, "kl"), 1e-4);
        const st_tensor *same = golden(&f, "same"), *ref = golden(&f, "nll_6m");
        double agree = 0, ref_nll = 0, nll = 0;
        for (int64_t i = 0; i < r.tokens; i++) {
            agree += same->data[i];
            ref_nll += golden_f64(ref, i);
            nll += r.token_nll[i];
        }
        double n = (double)r.tokens;
        CHECK(fabs(r.top1_agree - agree / n) < 1e-12, "top-1 agreement %g", r.top1_agree);
        CHECK(fabs(r.ref_perplexity / exp(ref_nll / n) - 1) < 1e-5, "reference's perplexity %g",
              r.ref_perplexity);
        CHECK(fabs(r.nll - nll / n) < 1e-12 && fabs(r.perplexity - exp(r.nll)) < 1e-9, "means");
        double above = 0;
        for (int64_t i = 0; i < r.tokens; i++)
            above += r.token_kl[i] > r.kl_p99;
        CHECK(above <= 0.01 * n && above + 1 > 0.01 * n, "%g of %g above the 99th percentile",
              above, n);
    }
    eval_free(&r);
    rig_close(&small);
    rig_close(&big);
    st_close(&f);
}

static void random_ids(int32_t *ids, int64_t n, int32_t vocab)
{
    uint32_t x = 12345;
    for (int64_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (int32_t)((x >> 8) % (uint32_t)vocab);
    }
}

/* Long windows are cut over several steps, short ones share a step: a token's figure depends on
 * what stands before it alone. */
TEST(windows_threads_and_steps_change_no_byte)
{
    enum { N = 700 }; /* more than one step of 512 rows */
    int32_t ids[N];
    eval_result whole = { 0 }, part = { 0 };
    lq_err err = { "" };
    rig r;
    if (rig_open(&r, "tests/golden/arch/llama-128", (rig_opts){ .threads = 1 })) {
        random_ids(ids, N, 320);
        eval_opts o = { .ctx = N, .acts = MM_I8, .kv = KV_F16 };
        CHECK(!eval_run(&whole, &r.m, NULL, ids, N, &o, r.p, NULL, &err), "%s", err.msg);
        pool *two = NULL;
        CHECK(!pool_open(&two, 2, &err), "%s", err.msg);
        static const int64_t lengths[] = { 2, 3, 100, 600 };
        for (size_t i = 0; i < LQ_COUNT(lengths); i++) {
            o.ctx = lengths[i];
            CHECK(!eval_run(&part, &r.m, NULL, ids, N, &o, two, NULL, &err), "%s", err.msg);
            CHECK(part.windows == N / o.ctx, "windows of %d", (int)o.ctx);
            CHECK(memcmp(part.token_nll, whole.token_nll, (size_t)(o.ctx - 1) * 8) == 0,
                  "first window of %d", (int)o.ctx);
            eval_free(&part);
        }
        pool_close(two);
    }
    eval_free(&whole);
    rig_close(&r);
}

TEST(bos_and_the_first_scored_position_move_what_is_scored)
{
    enum { N = 40 };
    int32_t ids[N], with_bos[N];
    eval_result want = { 0 }, got = { 0 };
    lq_err err = { "" };
    rig r;
    if (rig_open(&r, "tests/golden/arch/llama-128", (rig_opts){ .threads = 1 })) {
        random_ids(ids, N, 320);
        with_bos[0] = 1;
        memcpy(with_bos + 1, ids, (N - 1) * sizeof *ids);
        eval_opts plain = { .ctx = 20, .max_windows = 1 };
        CHECK(!eval_run(&want, &r.m, NULL, with_bos, N, &plain, r.p, NULL, &err), "%s", err.msg);
        eval_opts before = { .ctx = 20, .max_windows = 1, .begin = { 1 }, .n_begin = 1 };
        CHECK(!eval_run(&got, &r.m, NULL, ids, N, &before, r.p, NULL, &err), "%s", err.msg);
        CHECK(eval_windows(N, &before) == 1 && got.tokens == 19 && want.tokens == 19, "counts");
        CHECK(memcmp(got.token_nll, want.token_nll, 19 * 8) == 0, "BOS before 19 tokens of text");
        before.max_windows = 0;
        CHECK(eval_windows(N, &before) == 2 && eval_windows(38, &before) == 2 &&
                  eval_windows(37, &before) == 1,
              "each window takes 19 tokens of the text");
        eval_free(&got);

        with_bos[0] = 7; /* to be replaced */
        eval_opts late = {
            .ctx = 20, .first = 11, .begin = { 1 }, .n_begin = 1, .begin_replaces = true
        };
        CHECK(!eval_run(&got, &r.m, NULL, with_bos, N, &late, r.p, NULL, &err), "%s", err.msg);
        CHECK(got.windows == 2 && got.per_window == 9 && got.tokens == 18, "counts");
        CHECK(memcmp(got.token_nll, want.token_nll + 10, 9 * 8) == 0, "scored from position 11");
        eval_free(&got);
    }
    eval_free(&want);
    rig_close(&r);
}

TEST(a_model_is_at_no_distance_from_itself)
{
    int32_t ids[64];
    eval_result r = { 0 };
    lq_err err = { "" };
    rig a;
    if (rig_open(&a, "tests/golden/arch/qwen2", (rig_opts){ .threads = 1 })) {
        random_ids(ids, 64, 320);
        eval_opts o = { .ctx = 16 };
        CHECK(!eval_run(&r, &a.m, &a.m, ids, 64, &o, a.p, NULL, &err), "%s", err.msg);
        CHECK(!(r.kl_mean > 0) && !(r.kl_mean < 0) && !(r.kl_p99 > 0), "KL %g", r.kl_mean);
        CHECK(r.top1_agree >= 1 && !(r.ref_perplexity < r.perplexity), "top-1 %g", r.top1_agree);
    }
    eval_free(&r);
    rig_close(&a);
}

TEST(wrong_input_is_refused)
{
    static const struct {
        const char *why;
        eval_opts o;
        int64_t n;
        int32_t id5;
        bool other;
        lq_status want;
    } t[] = {
        { "windows of one token", { .ctx = 1 }, 32, 5, false, LQ_EVALUE },
        { "no token", { .ctx = 16 }, 0, 5, false, LQ_EVALUE },
        { "less than a window", { .ctx = 16 }, 15, 5, false, LQ_EVALUE },
        { "nothing left to score", { .ctx = 16, .first = 16 }, 32, 5, false, LQ_EVALUE },
        { "an id outside the vocabulary", { .ctx = 16 }, 32, 320, false, LQ_EVALUE },
        { "a negative id", { .ctx = 16 }, 32, -1, false, LQ_EVALUE },
        { "BOS outside", { .ctx = 16, .begin = { 320 }, .n_begin = 1 }, 32, 5, false, LQ_EVALUE },
        { "another vocabulary", { .ctx = 16 }, 32, 5, true, LQ_ESHAPE },
    };
    int32_t ids[32];
    rig a, b;
    bool ok = rig_open(&a, "tests/golden/arch/qwen2", (rig_opts){ .threads = 1 });
    ok = rig_open(&b, "models/novels-1m", (rig_opts){ .threads = 1 }) && ok;
    for (size_t i = 0; i < LQ_COUNT(t) && ok; i++) {
        eval_result r;
        lq_err err = { "" };
        random_ids(ids, 32, 320);
        ids[5] = t[i].id5;
        lq_status s =
            eval_run(&r, &a.m, t[i].other ? &b.m : NULL, ids, t[i].n, &t[i].o, a.p, NULL, &err);
        CHECK(s == t[i].want && err.msg[0], "%s: %s", t[i].why, lq_status_text(s));
        eval_free(&r);
    }
    if (ok) {
        atomic_int stop = 1;
        eval_result r;
        random_ids(ids, 32, 320);
        lq_status s = eval_run(&r, &a.m, NULL, ids, 32, &(eval_opts){ .ctx = 16 }, a.p,
                               &(lq_job){ .stop = &stop }, NULL);
        CHECK(s == LQ_EINTR, "interrupted: %s", lq_status_text(s));
        eval_free(&r);
    }
    rig_close(&a);
    rig_close(&b);
}

/* ---- files of a KL divergence's base ---- */

static char *path_of(char out[96], const char *name)
{
    snprintf(out, 96, "build/tests/eval-%s-%d.kld", name, (int)getpid());
    return out;
}

static eval_opts theirs(int64_t ctx)
{
    return (eval_opts){ .ctx = ctx, .first = kl_base_first(ctx), .between = true };
}

/* 16 bits a token are off by half a step of 16 / 65535 nats at most. */
TEST(a_base_file_stands_for_the_model_that_it_was_written_of)
{
    enum { N = 90, CTX = 17 };
    int32_t ids[N];
    char path[96];
    lq_err err = { "" };
    kl_base b = { 0 };
    eval_result want = { 0 }, got = { 0 }, wrote = { 0 };
    rig small, big;
    bool ok = rig_open(&small, "tests/golden/arch/qwen2", (rig_opts){ .threads = 2 });
    ok = rig_open(&big, "tests/golden/arch/llama-128", (rig_opts){ .threads = 2 }) && ok;
    if (ok) {
        eval_opts o = theirs(CTX);
        random_ids(ids, N, 320);
        CHECK(!eval_run(&want, &small.m, &big.m, ids, N, &o, small.p, NULL, &err), "%s", err.msg);
        o.save_base = path_of(path, "base");
        CHECK(!eval_run(&wrote, &big.m, NULL, ids, N, &o, big.p, NULL, &err), "%s", err.msg);
        CHECK(!kl_base_open(&b, path, &err), "%s", err.msg);
        CHECK(b.ctx == CTX && b.V == 320 && b.windows == 5 && wrote.tokens == 5 * 8, "sizes");
        CHECK(memcmp(b.ids, ids, 85 * sizeof *ids) == 0, "ids");
        o = theirs(CTX);
        o.base = &b;
        CHECK(!eval_run(&got, &small.m, NULL, b.ids, 85, &o, small.p, NULL, &err), "%s", err.msg);
        const double step = 16.0 / 65535;
        CHECK(fabs(got.kl_mean - want.kl_mean) < step && got.kl_mean > 0, "KL %g, not %g",
              got.kl_mean, want.kl_mean);
        CHECK(fabs(got.kl_max - want.kl_max) < 2 * step, "largest %g, not %g", got.kl_max,
              want.kl_max);
        CHECK(fabs(log(got.ref_perplexity / want.ref_perplexity)) < step, "perplexity %g, not %g",
              got.ref_perplexity, want.ref_perplexity);
        CHECK(fabs(got.dp_rms - want.dp_rms) < step && got.dp_rms > 0, "dp %g, not %g", got.dp_rms,
              want.dp_rms);
        CHECK(fabs(got.top1_agree - want.top1_agree) < 1e-12, "same top");
        CHECK(want.kl_mean > 100 * step, "KL of two models %g", want.kl_mean);
    }
    eval_free(&want), eval_free(&got), eval_free(&wrote);
    kl_base_close(&b);
    remove(path);
    rig_close(&small);
    rig_close(&big);
}

TEST(a_base_file_that_is_not_whole_or_of_another_model_is_refused)
{
    enum { CTX = 9, V = 320 };
    static const struct {
        const char *why;
        int at;    /* of the byte that is changed; -1: none */
        long less; /* bytes cut off */
        lq_status open, run;
    } t[] = {
        { "as it was written", -1, 0, LQ_OK, LQ_OK },
        { "another beginning", 0, 0, LQ_EFORMAT, 0 },
        { "one byte short", -1, 1, LQ_EFORMAT, 0 },
        { "a header alone", -1, 20 + 18 * 4 + 2 * 4 * 648 - 20, LQ_EFORMAT, 0 },
        { "other windows than bytes", 16, 0, LQ_EFORMAT, 0 },
        { "an id outside the vocabulary", 20 + 3, 0, LQ_OK, LQ_EVALUE },
    };
    int32_t ids[2 * CTX];
    char path[96];
    rig r;
    if (rig_open(&r, "tests/golden/arch/qwen2", (rig_opts){ .threads = 1 })) {
        for (size_t i = 0; i < LQ_COUNT(t); i++) {
            lq_err err = { "" };
            eval_result res = { 0 };
            kl_base b = { 0 };
            eval_opts o = theirs(CTX);
            random_ids(ids, 2 * CTX, V);
            o.save_base = path_of(path, "bad");
            CHECK(!eval_run(&res, &r.m, NULL, ids, 2 * CTX, &o, r.p, NULL, &err), "%s", err.msg);
            eval_free(&res);
            FILE *f = fopen(path, "r+b");
            fseek(f, 0, SEEK_END);
            const long n = ftell(f);
            CHECK(n == 20 + 2 * CTX * 4 + 2 * 4 * (long)kl_base_row_bytes(V), "%ld bytes", n);
            if (t[i].at >= 0) {
                fseek(f, t[i].at, SEEK_SET);
                fputc(0x7f, f);
            }
            fclose(f);
            CHECK(!truncate(path, n - t[i].less), "truncate");
            lq_status s = kl_base_open(&b, path, &err);
            CHECK(s == t[i].open && !s == !err.msg[0], "%s: %s", t[i].why, err.msg);
            o = theirs(CTX);
            o.base = &b;
            if (!s) s = eval_run(&res, &r.m, NULL, b.ids, 2 * CTX, &o, r.p, NULL, &err);
            CHECK(t[i].open || s == t[i].run, "%s: %s", t[i].why, err.msg);
            eval_free(&res);
            kl_base_close(&b);
            remove(path);
        }
        lq_err err = { "" };
        eval_result res = { 0 };
        eval_opts o = { .ctx = CTX, .save_base = path_of(path, "first") };
        lq_status s = eval_run(&res, &r.m, NULL, ids, 2 * CTX, &o, r.p, NULL, &err);
        CHECK(s == LQ_EVALUE && access(path, F_OK) != 0, "scored from the second token");
    }
    rig_close(&r);
}

TEST(percentiles_and_errors_are_those_of_their_definitions)
{
    double x[] = { 5, 1, 4, 2, 3 };
    const double y[] = { 2, 1, 4, 3, 5 };
    const eval_mean m = eval_mean_of(x, 5);
    CHECK(fabs(m.mean - 3) < 1e-15 && fabs(m.error - sqrt(2.0 / 4)) < 1e-15, "%g %g", m.mean,
          m.error);
    CHECK(fabs(eval_mean_cov(x, y, 5) - 0.15) < 1e-15, "%g", eval_mean_cov(x, y, 5));
    eval_sort(x, 5);
    CHECK(fabs(eval_percentile(x, 5, 0.9, false) - 5) < 1e-15, "the 5th of 5");
    CHECK(fabs(eval_percentile(x, 5, 0.5, false) - 3) < 1e-15, "the 3rd of 5");
    CHECK(fabs(eval_percentile(x, 5, 0.9, true) - 4.6) < 1e-12, "between the 4th and the 5th");
    CHECK(fabs(eval_percentile(x, 5, 1, true) - 5) < 1e-15, "the last");
}

int main(int argc, char **argv)
{
    RUN(figures_agree_with_transformers);
    RUN(windows_threads_and_steps_change_no_byte);
    RUN(bos_and_the_first_scored_position_move_what_is_scored);
    RUN(a_model_is_at_no_distance_from_itself);
    RUN(wrong_input_is_refused);
    RUN(a_base_file_stands_for_the_model_that_it_was_written_of);
    RUN(a_base_file_that_is_not_whole_or_of_another_model_is_refused);
    RUN(percentiles_and_errors_are_those_of_their_definitions);
    return check_end();
}
