/* tools/quantize_calib.h - `quantize --calib`: the windows, said aloud, with warnings. */
#ifndef LLMQ_TOOLS_QUANTIZE_CALIB_H
#define LLMQ_TOOLS_QUANTIZE_CALIB_H

#include "calib/mix.h"
#include "kernels/pool.h"
#include "quantize/method.h"

/* A sixteenth of all windows at least is left over for the check. Prints what came from which file,
 * and warns where it is little. Errors: those of mix_read, and LQ_EUSAGE for windows longer than
 * the model's positions. */
lq_status quantize_samples(cal_samples *s, const char *list, const mix_opts *o, lq_err *err);
/* The windows of the check (quantize/check.h): of those that `used` left over. Errors: likewise. */
lq_status quantize_held_out(cal_samples *check, const cal_samples *used, const char *list,
                            const mix_opts *o, lq_err *err);
/* Is it auto on a model so small that codes are trained? Then the steps of tuning that are worth
 * their time (100 to 800, the more the smaller the model), else 0; and for each window of text
 * three that the model writes, unless something else is asked for. */
enum { QUANTIZE_SELF_SHARE = 3 };
int quantize_small_steps(const qz_opts *q, const src_source *src);
/* n more windows, that the model writes itself (calib/self.h); the terminal sees it. Unless asked
 * for, a model that cannot (its answers are no numbers) does without. */
lq_status quantize_self(cal_samples *s, int64_t n, bool asked, src_source *src, uint64_t seed,
                        pool *p, const lq_job *job, lq_err *err);

#endif
