/* tools/report/quantize_calib.c - see quantize_calib.h. */
#include "tools/report/quantize_calib.h"

#include "base/hash.h"
#include "calib/backward.h"
#include "quantize/job/check.h"
#include "quantize/methods/effort.h"
#include "quantize/tune/tune.h"
#include "tools/cli/progress.h"

/* Tokens for each input of the MLP: fewer are of little use. */
enum { PER_INPUT = 8 };

static void say_parts(const cal_samples *s)
{
    char hex[33];
    for (int i = 0; i < s->n_parts; i++) {
        const cal_part *p = &s->parts[i];
        lq_hash_hex(hex, &p->hash);
        prog_say(
            LOG_INFO,
            "calibration: %s (%s, weight %g): %lld of %lld windows of %lld tokens%s, xxh3 %.8s",
            p->name, p->kind, p->weight, (long long)p->windows, (long long)p->available,
            (long long)s->len, p->n_begin ? " from BOS on" : "", hex);
    }
}

static void warn(const cal_samples *s, const char *list, const dataset_opts *o, int64_t usual)
{
    const long long tokens = (long long)(s->n * s->len), many = usual * QUANTIZE_LEN;
    const int64_t inputs = src_config(o->src)->ffn;
    if (s->n < o->n)
        prog_say(LOG_WARN, "--calib %s: %lld windows of %lld tokens, fewer than the %lld asked for",
                 list, (long long)s->n, (long long)s->len, (long long)o->n);
    if (tokens < PER_INPUT * inputs)
        prog_say(LOG_WARN,
                 "calibration: %lld tokens are few for layers of %lld inputs (%lld would do); "
                 "expect worse results",
                 tokens, (long long)inputs, (long long)(PER_INPUT * inputs));
    else if (tokens < many)
        prog_say(LOG_WARN, "calibration: %lld tokens; %lld (%lld windows of %d) are usual", tokens,
                 many, (long long)usual, QUANTIZE_LEN);
}

int64_t quantize_len(const cmd_ctx *c, int64_t len, const src_source *src)
{
    const int64_t most = src_config(src)->max_pos;
    return most < len && !opt_given(c, "calib-len") ? most : len;
}

static lq_status check_length(const dataset_opts *o, lq_err *err)
{
    const int64_t most = src_config(o->src)->max_pos;
    if (o->len <= most) return LQ_OK;
    return lq_fail(err, LQ_EUSAGE, "--calib-len: expected at most the model's %lld, found %lld",
                   (long long)most, (long long)o->len);
}

lq_status quantize_samples(cal_samples *s, const char *list, const dataset_opts *o, int64_t usual,
                           lq_err *err)
{
    lq_status st = check_length(o, err);
    if (!st) st = dataset_read(s, list, o, err);
    dataset_opts less = *o;
    less.n = s->available - s->available / 16;
    if (!st && s->n > less.n) {
        cal_samples_free(s);
        st = dataset_read(s, list, &less, err);
    }
    if (st) return st;
    say_parts(s);
    warn(s, list, o, usual);
    return LQ_OK;
}

lq_status quantize_held_out(cal_samples *check, const cal_samples *used, const char *list,
                            const dataset_opts *o, lq_err *err)
{
    cal_samples all = { 0 };
    dataset_opts every = *o;
    every.n = INT32_MAX;
    lq_status st = check_length(o, err);
    if (!st) st = dataset_read(&all, list, &every, err);
    if (!st) st = qz_check_windows(check, &all, used, QZ_CHECK_WINDOWS, err);
    cal_samples_free(&all);
    if (!st && !check->n)
        prog_say(LOG_WARN, "no check: calibration used all %lld windows of its text",
                 (long long)used->available);
    return st;
}

int64_t quantize_effort(qz_opts *q, const qz_effort *e, const src_source *src)
{
    e = qz_effort_for(e, tune_small(src));
    const bool matters = (q->method->options & QZ_OPT_EFFORT) && grad_covers(src_config(src));
    q->effort = matters ? e : NULL;
    q->tune =
        matters && e->steps != QZ_STEPS_BY_SIZE ? e->steps : tune_default_steps(q->method, src);
    if (matters) return e->windows;
    return tune_small(src) ? QUANTIZE_WINDOWS : QUANTIZE_WINDOWS_LARGE;
}

int64_t quantize_self_windows(const qz_opts *q, const src_source *src, int64_t text)
{
    const bool learns =
        (q->method->on & QZ_OPT_TUNE) && qz_tune_steps(q) && grad_covers(src_config(src));
    const bool writes = src_config(src)->head == HEAD_WORDS;
    return learns && writes && tune_small(src) ? qz_effort_of(q)->own * text : 0;
}
