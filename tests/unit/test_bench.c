/* tests/unit/test_bench.c - the benchmark fills every row with a plausible figure; no speed is asserted.
 */
#include "kernels/bench/bench.h"
#include "tests/support/check.h"
#include "tests/support/families.h"
#include "tools/bench/bench_serve.h"

#include <math.h>
#include <stdlib.h>

TEST(percentiles_are_linear_between_neighbours)
{
    double v[] = { 4, 1, 3, 2 };
    bs_times t = { v, 4, 4 }, one = { v, 1, 4 }, none = { 0 };
    static const struct {
        double p, want;
    } cases[] = { { 0, 1 }, { 50, 2.5 }, { 90, 3.7 }, { 100, 4 } };
    for (size_t i = 0; i < LQ_COUNT(cases); i++)
        CHECK(fabs(bs_percentile(&t, cases[i].p) - cases[i].want) < 1e-12, "%g: %g", cases[i].p,
              bs_percentile(&t, cases[i].p));
    CHECK(bs_percentile(&one, 99) == v[0] && bs_percentile(&none, 50) == 0, "of one, of none");
}

TEST(goodput_limits_are_read)
{
    static const struct {
        const char *text;
        bool ok;
        bs_slo want;
    } cases[] = { { "ttft:200", true, { 0.2, 0, 0 } },
                  { "e2el:1500,tpot:0.5", true, { 0, 0.0005, 1.5 } },
                  { NULL, true, { 0, 0, 0 } },
                  { "ttft", false, { 0, 0, 0 } },
                  { "ttft:", false, { 0, 0, 0 } },
                  { "ttft:0", false, { 0, 0, 0 } },
                  { "ttft:nan", false, { 0, 0, 0 } },
                  { "ttft:1x", false, { 0, 0, 0 } },
                  { "ttft:1;tpot:2", false, { 0, 0, 0 } },
                  { ",", false, { 0, 0, 0 } },
                  { "tpot:1,tpot:2", false, { 0, 0, 0 } } };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        bs_slo s;
        lq_err err;
        const bool ok = !bs_slo_parse(&s, cases[i].text, &err);
        CHECK(ok == cases[i].ok, "%s", cases[i].text);
        if (ok)
            CHECK(s.ttft == cases[i].want.ttft && s.tpot == cases[i].want.tpot &&
                      s.e2el == cases[i].want.e2el,
                  "%s", cases[i].text);
    }
}

TEST(every_row_has_figures)
{
    pool *p;
    bench_limits one, all;
    bench_row rows[BENCH_MAX_ROWS];
    bench_opts o = { .seconds = 1e-6, .bytes = 1 << 20 };
    int n = 0;
    lq_err err = { "" };
    CHECK(!k_init(NULL, &err) && !pool_open(&p, 2, &err), "%s", err.msg);
    CHECK(!bench_limits_run(&one, &all, &o, p, &err), "%s", err.msg);
    CHECK(one.threads == 1 && all.threads == 2, "threads");
    CHECK(one.read_gbytes_s > 0 && one.gflops[MM_F32] > 0 && one.gflops[MM_I8] > 0, "limits");
    if (strcmp(k_name(), "ref") != 0) {
        CHECK(!bench_kernels_run(rows, &n, &all, &o, p, NULL, &err), "%s", err.msg);
        CHECK(n > 0 && n <= BENCH_MAX_ROWS, "%d rows", n);
    }
    for (int i = 0; i < n; i++)
        CHECK(rows[i].name[0] && rows[i].shape[0] && rows[i].seconds > 0 && rows[i].gflops > 0 &&
                  rows[i].percent_of_limit > 0,
              "row %d: %s %s", i, rows[i].name, rows[i].shape);
    atomic_int stop = 1;
    lq_job job = { .stop = &stop };
    CHECK(bench_kernels_run(rows, &n, &all, &o, p, &job, &err) == LQ_EINTR && n == 0,
          "interrupted");
    if (getenv("BENCH_PRINT")) {
        o = (bench_opts){ 0 };
        int threads = atoi(getenv("BENCH_PRINT"));
        pool_close(p);
        CHECK(!pool_open(&p, threads, &err), "%s", err.msg);
        bench_limits_run(&one, &all, &o, p, &err);
        bench_kernels_run(rows, &n, &all, &o, p, NULL, &err);
        printf("%d threads: read %.1f GB/s, f32 %.0f, bf16 %.0f, int8 %.0f\n", all.threads,
               all.read_gbytes_s, all.gflops[0], all.gflops[1], all.gflops[2]);
        for (int i = 0; i < n; i++)
            printf("%-20s %-24s %9.1f us %8.1f Gop/s %6.1f GB/s %5.1f %%\n", rows[i].name,
                   rows[i].shape, rows[i].seconds * 1e6, rows[i].gflops, rows[i].gbytes_s,
                   rows[i].percent_of_limit);
    }
    pool_close(p);
}

TEST(sharing_is_measured)
{
    static const int threads[] = { 1, 2 };
    bench_opts o = { .seconds = 0.01 };
    for (size_t i = 0; i < LQ_COUNT(threads); i++) {
        pool *p;
        bench_sharing s;
        lq_err err = { "" };
        CHECK(!k_init(NULL, &err) && !pool_open(&p, threads[i], &err), "%s", err.msg);
        CHECK(!bench_sharing_run(&s, &o, p, &err), "%s", err.msg);
        CHECK(s.threads == threads[i] && s.cpus >= 1, "%d threads, %d cpus", s.threads, s.cpus);
        CHECK(threads[i] == 1 ? s.meet_median == 0
                              : s.meet_best > 0 && s.meet_best <= s.meet_median,
              "%g, %g", s.meet_best, s.meet_median);
        CHECK(s.load > 0.05 && s.load < 0.95 && s.slowdown > 0, "load %g, slowdown %g", s.load,
              s.slowdown);
        CHECK(s.fair >= 1 && (s.fair > 1 || s.threads <= s.cpus - s.load), "fair %g", s.fair);
        pool_close(p);
    }
}

TEST(a_layer_joined_moves_less_than_its_steps_alone)
{
    static const int64_t rows[] = { 1, 9 };
    bench_opts o = { .seconds = 1e-6 };
    pool *p;
    lq_err err = { "" };
    CHECK(!k_init(NULL, &err) && !pool_open(&p, 2, &err), "%s", err.msg);
    for (size_t i = 0; i < LQ_COUNT(rows); i++) {
        bench_chain b[2];
        for (int fuse = 0; fuse < 2; fuse++) {
            CHECK(!bench_chain_run(&b[fuse], fuse, rows[i], "u4-g128", MM_I8, &o, p, &err), "%s",
                  err.msg);
            const bench_step *all = &b[fuse].step[b[fuse].n_steps - 1];
            double seconds = 0, bytes = 0;
            for (const bench_step *s = b[fuse].step; s < all; s++) {
                CHECK(s->name[0] && s->seconds > 0 && s->bytes > 0, "%s", s->name);
                seconds += s->seconds, bytes += s->bytes;
            }
            CHECK(strcmp(all->name, "all") == 0 && fabs(all->bytes - bytes) < 1, "sum of bytes");
            CHECK(all->seconds >= seconds * 0.999, "the best of all is not below that of each");
        }
        CHECK(b[1].n_steps < b[0].n_steps, "%d steps, joined %d", b[0].n_steps, b[1].n_steps);
        /* Joined: h is read and prepared twice instead of five times, k is read by one step fewer,
         * two sums are not written and read again, and of gate and up their product alone is written,
         * where it was 7 rows of 5632. */
        const double fewer = b[0].step[b[0].n_steps - 1].bytes - b[1].step[b[1].n_steps - 1].bytes;
        const double want = (double)rows[i] * (3 * 6 * 2048 + 4 * 256 + 4 * 4 * 2048 + 24 * 5632);
        CHECK(fabs(fewer - want) < 1, "%g bytes fewer, expected %g", fewer, want);
    }
    bench_chain b;
    CHECK(bench_chain_run(&b, true, 1, "u4-g100", MM_I8, &o, p, &err) == LQ_EVALUE ||
              bench_chain_run(&b, true, 1, "u4-g100", MM_I8, &o, p, &err) == LQ_ESHAPE,
          "groups that do not divide");
    pool_close(p);
}

int main(int argc, char **argv)
{
    RUN(percentiles_are_linear_between_neighbours);
    RUN(goodput_limits_are_read);
    RUN(every_row_has_figures);
    RUN(sharing_is_measured);
    RUN(a_layer_joined_moves_less_than_its_steps_alone);
    return check_end();
}
