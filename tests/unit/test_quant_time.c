/* tests/unit/test_quant_time.c - what is foretold of a quantization's time: phases, words, efforts. */
#include "calib/backward.h"
#include "quantize/job/job.h"
#include "quantize/job/probe.h"
#include "quantize/methods/effort.h"
#include "quantize/methods/methods.h"
#include "quantize/tune/tune.h"
#include "tests/support/rig.h"

#include <math.h>
#include <stdlib.h>

#define BASE "tests/golden/arch/llama3-gqa"

/* Seconds of a run of `method` with an effort, at a speed. */
static double foretold(double secs[PROGRESS_N], src_source *src, const char *method,
                       const char *effort, int steps, double speed)
{
    qz_opts o = { 0 };
    qz_plan plan;
    qz_memory memory;
    lq_err err = { "" };
    double sum = 0;
    lq_status s = qz_method_find(&o.method, method, &err);
    if (!s && effort) s = qz_effort_find(&o.effort, effort, &err);
    o.tune = steps;
    const cal_samples text = { .n = effort ? o.effort->windows : 8, .len = 64 };
    const qz_job j = { .o = &o, .samples = qz_calibrated(&o) ? &text : NULL, .speed = speed };
    if (!s) s = qz_plan_make(&plan, src, &o, &(plan_voice){ 0 }, &err);
    if (!s) s = qz_job_memory(&memory, &j, &plan, 2, &err);
    if (!s) s = qz_job_seconds(secs, &j, &plan, &memory, &err);
    CHECK(!s, "%s", err.msg);
    for (int k = 0; k < PROGRESS_N && !s; k++)
        sum += secs[k];
    qz_plan_free(&plan);
    return sum;
}

TEST(time_follows_the_work_and_the_machine)
{
    src_source *src;
    double secs[PROGRESS_N];
    lq_err err = { "" };
    CHECK(!src_open(&src, BASE, &(src_opts){ .need_config = true }, &err), "%s", err.msg);
    const double rtn = foretold(secs, src, "rtn", NULL, 0, 1e9);
    CHECK(secs[PROGRESS_CURVATURE] == 0 && secs[PROGRESS_TUNING] == 0, "rtn does not train");
    const double gptq = foretold(secs, src, "gptq", NULL, 0, 1e9);
    CHECK(secs[PROGRESS_STATISTICS] > 0 && secs[PROGRESS_CURVATURE] == 0, "gptq needs text");
    const double fast = foretold(secs, src, "auto", "fast", 0, 1e9);
    CHECK(secs[PROGRESS_CURVATURE] > 0 && secs[PROGRESS_TUNING] == 0, "fast does not tune");
    const double some = foretold(secs, src, "auto", "standard", 50, 1e9);
    const double one = secs[PROGRESS_TUNING];
    const double more = foretold(secs, src, "auto", "standard", 100, 1e9);
    CHECK(0 < rtn && rtn < gptq && fast < some && some < more, "%g %g %g %g %g", rtn, gptq, fast,
          some, more);
    CHECK(secs[PROGRESS_TUNING] > 1.3 * one && secs[PROGRESS_TUNING] < 2 * one, "%g, %g", one,
          secs[PROGRESS_TUNING]);
    const double half = foretold(secs, src, "auto", "standard", 100, 5e8);
    CHECK(half > 1.99 * more && half < 2.01 * more, "%g, %g", more, half);
    src_close(src);
}

TEST(the_line_says_the_sum_and_what_takes_most)
{
    char line[PROGRESS_LINE];
    double secs[PROGRESS_N] = { 0 };
    secs[PROGRESS_CURVATURE] = 30.2;
    secs[PROGRESS_TUNING] = 210;
    secs[PROGRESS_WRITING] = 1;
    CHECK(!strcmp(progress_line(line, secs), "time: about 4 min on this machine as busy as it is "
                                             "(curvature 31 s, tuning 4 min)"),
          "%s", line);
    for (int k = 0; k < PROGRESS_N; k++)
        secs[k] = 3e6; /* every phase is named: it fits */
    CHECK(strlen(progress_line(line, secs)) + 1 < sizeof line && line[strlen(line) - 1] == ')',
          "%s", line);
}

static void keep_part(void *user, const progress_state *s) { *(double *)user = s->part; }

/* Else what is left grows through them, and the first steps are taken for as slow as both together. */
TEST(the_answers_before_the_steps_of_tuning_count)
{
    src_source *src;
    qz_opts o = { 0 };
    qz_plan plan;
    qz_progress m;
    lq_err err = { "" };
    double part = -1, first;
    lq_status s = src_open(&src, BASE, &(src_opts){ .need_config = true }, &err);
    if (!s) s = qz_method_find(&o.method, "auto", &err);
    if (!s) s = qz_plan_make(&plan, src, &o, &(plan_voice){ 0 }, &err);
    const progress_work w = { .plan = &plan,
                              .calibrated = true,
                              .len = 64,
                              .tokens = 512,
                              .self_tokens = 512,
                              .tuned_tokens = 512 };
    if (!s) s = progress_open(&m, &w, &(progress_view){ keep_part, &part }, NULL, &err);
    CHECK(!s, "%s", err.msg);
    progress_phase(&m, PROGRESS_TUNING, -1);
    m.job.report(m.job.user, "the original's answers", 1, 2);
    CHECK(part > 0.05 && part < 0.5, "half of the answers: %g", part);
    first = 2 * part;
    m.job.report(m.job.user, "tuning", 0, 4);
    CHECK(fabs(part - first) < 1e-9, "all of them: %g of %g", part, first);
    m.job.report(m.job.user, "tuning", 2, 4);
    CHECK(fabs(part - (1 + first) / 2) < 1e-9, "and half of the steps: %g", part);
    progress_close(&m);
    qz_plan_free(&plan);
    src_close(src);
}

TEST(words_that_are_no_effort_are_refused)
{
    const qz_effort *e = NULL;
    lq_err err = { "" };
    CHECK(!qz_effort_find(&e, QZ_EFFORT_DEFAULT, &err) && e != qz_effort_best(), "%s", err.msg);
    CHECK(qz_effort_find(&e, "hasty", &err) == LQ_EUSAGE && strstr(err.msg, "found 'hasty'"), "%s",
          err.msg);
}

/* Time grows with the model: where it is large the default looks at less text and trains no code. */
TEST(standard_is_less_of_a_large_model)
{
    const qz_effort *e = NULL;
    lq_err err = { "" };
    CHECK(!qz_effort_find(&e, QZ_EFFORT_DEFAULT, &err), "%s", err.msg);
    const qz_effort *large = qz_effort_for(e, false);
    CHECK(qz_effort_for(e, true) == e && !strcmp(large->name, e->name), "%s", large->name);
    CHECK(large->curvature < e->curvature && large->steps <= large->steps_still &&
              e->steps > e->steps_still,
          "%lld and %lld windows, %d and %d steps", (long long)large->curvature,
          (long long)e->curvature, large->steps, e->steps);
    CHECK(qz_effort_for(qz_effort_best(), false) == qz_effort_best(), "best is the same of all");
}

/* Else four windows' room is kept for one, and of a larger model for none. */
TEST(windows_go_by_the_step_where_that_can_be_kept)
{
    enum { LEN = 64, WINDOWS = 8 };
    src_source *src;
    lq_err err = { "" };
    CHECK(!src_open(&src, BASE, &(src_opts){ .need_config = true }, &err), "%s", err.msg);
    const arch_config *c = src_config(src);
    int64_t long_one = LEN;
    while (grad_can_keep(c, 1, long_one))
        long_one *= 2;
    CHECK(tune_chunk(c, 1, LEN, WINDOWS) == 1 && tune_can_keep(c, 1, LEN, WINDOWS), "of one");
    CHECK(tune_chunk(c, 2, LEN, WINDOWS) == 2 && tune_chunk(c, 16, LEN, WINDOWS) == WINDOWS,
          "of two, and of more than there are");
    CHECK(tune_can_keep(c, 1, long_one / 2, WINDOWS) && !tune_can_keep(c, 1, long_one, WINDOWS),
          "what is too large is kept");
    src_close(src);
}

TEST(the_probe_finds_a_speed)
{
    pool *p;
    lq_err err = { "" };
    CHECK(!pool_open(&p, 2, &err), "%s", err.msg);
    const double speed = probe_speed(p);
    CHECK(speed > 1e6 && speed < 1e14, "%g multiply-adds a second", speed);
    pool_close(p);
}

int main(int argc, char **argv)
{
    RUN(time_follows_the_work_and_the_machine);
    RUN(the_line_says_the_sum_and_what_takes_most);
    RUN(the_answers_before_the_steps_of_tuning_count);
    RUN(words_that_are_no_effort_are_refused);
    RUN(standard_is_less_of_a_large_model);
    RUN(windows_go_by_the_step_where_that_can_be_kept);
    RUN(the_probe_finds_a_speed);
    return check_end();
}
