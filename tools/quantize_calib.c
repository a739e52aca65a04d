/* tools/quantize_calib.c - see quantize_calib.h. */
#include "tools/quantize_calib.h"

#include "calib/grad.h"
#include "calib/self.h"
#include "quantize/check.h"
#include "tools/progress.h"

/* What most published results use; fewer tokens are enough for small models only. */
enum { USUAL_TOKENS = 128 * 512, PER_INPUT = 8 };

static void say_parts(const cal_samples *s)
{
    char hex[33];
    for (int i = 0; i < s->n_parts; i++) {
        const cal_part *p = &s->parts[i];
        lq_hash_hex(hex, &p->hash);
        prog_say(LOG_INFO,
                 "calibration: %s (%s, weight %g): %lld of %lld windows of %lld tokens, xxh3 %.8s",
                 p->name, p->kind, p->weight, (long long)p->windows, (long long)p->available,
                 (long long)s->len, hex);
    }
}

static void warn(const cal_samples *s, const char *list, const mix_opts *o)
{
    const long long tokens = (long long)(s->n * s->len);
    const int64_t inputs = src_config(o->src)->ffn;
    if (s->n < o->n)
        prog_say(LOG_WARN, "--calib %s: %lld windows of %lld tokens, fewer than the %lld asked for",
                 list, (long long)s->n, (long long)s->len, (long long)o->n);
    if (tokens < PER_INPUT * inputs)
        prog_say(LOG_WARN,
                 "calibration: %lld tokens are few for layers of %lld inputs (%lld would do); "
                 "expect worse results",
                 tokens, (long long)inputs, (long long)(PER_INPUT * inputs));
    else if (tokens < USUAL_TOKENS)
        prog_say(LOG_WARN, "calibration: %lld tokens; %d (128 windows of 512) are usual", tokens,
                 USUAL_TOKENS);
}

static lq_status check_length(const mix_opts *o, lq_err *err)
{
    const int64_t most = src_config(o->src)->max_pos;
    if (o->len <= most) return LQ_OK;
    return lq_fail(err, LQ_EUSAGE, "--calib-len: expected at most the model's %lld, found %lld",
                   (long long)most, (long long)o->len);
}

lq_status quantize_samples(cal_samples *s, const char *list, const mix_opts *o, lq_err *err)
{
    lq_status st = check_length(o, err);
    if (!st) st = mix_read(s, list, o, err);
    mix_opts less = *o;
    less.n = s->available - s->available / 16;
    if (!st && s->n > less.n) {
        cal_samples_free(s);
        st = mix_read(s, list, &less, err);
    }
    if (st) return st;
    say_parts(s);
    warn(s, list, o);
    return LQ_OK;
}

lq_status quantize_held_out(cal_samples *check, const cal_samples *used, const char *list,
                            const mix_opts *o, lq_err *err)
{
    cal_samples all = { 0 };
    mix_opts every = *o;
    every.n = INT32_MAX;
    lq_status st = check_length(o, err);
    if (!st) st = mix_read(&all, list, &every, err);
    if (!st) st = qz_check_windows(check, &all, used, QZ_CHECK_WINDOWS, err);
    cal_samples_free(&all);
    if (!st && !check->n)
        prog_say(LOG_WARN, "no check: calibration used all %lld windows of its text",
                 (long long)used->available);
    return st;
}

int quantize_small_steps(const qz_opts *q, const src_source *src)
{
    const int64_t max_weights = (int64_t)1 << 28, budget = (int64_t)1 << 33, least = 100,
                  most = 800;
    int64_t n = 0;
    for (int64_t i = 0; i < src_n_tensors(src); i++)
        n += src_elements(src_tensor_at(src, i));
    if (q->method != QZ_AUTO || q->tune < 0 || !grad_covers(src_config(src)) || n > max_weights)
        return 0;
    const int64_t steps = n > 0 ? budget / n : 0;
    return (int)(steps < least ? least : steps > most ? most : steps);
}

lq_status quantize_self(cal_samples *s, int64_t n, bool asked, src_source *src, uint64_t seed,
                        pool *p, const lq_job *job, lq_err *err)
{
    if (!n) return LQ_OK;
    const double start = prog_now();
    lq_status st = cal_self_add(s, n, src, seed, p, job, err);
    prog_end();
    if (st == LQ_EVALUE && !asked) {
        prog_say(LOG_WARN, "%s; tuning goes by the other text alone", err->msg);
        return LQ_OK;
    }
    if (st) return lq_wrap(err, st, "--self-samples");
    char hex[33];
    lq_hash_hex(hex, &s->parts[s->n_parts - 1].hash);
    prog_say(LOG_INFO, "calibration: %lld windows that the model wrote, xxh3 %.8s, in %.0f s",
             (long long)n, hex, prog_now() - start);
    return LQ_OK;
}
