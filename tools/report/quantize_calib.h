/* tools/report/quantize_calib.h - `quantize --calib`: the windows, printed, with warnings. */
#ifndef LLMQ_TOOLS_REPORT_QUANTIZE_CALIB_H
#define LLMQ_TOOLS_REPORT_QUANTIZE_CALIB_H

#include "calib/dataset.h"
#include "kernels/core/pool.h"
#include "quantize/methods/method.h"
#include "tools/cli/opt.h"

/* --calib-samples and --calib-len as they are without. */
/* Windows of text where nothing asks for another number; LARGE: of models that are not tune_small, whose time they are. */
enum { QUANTIZE_WINDOWS = 128, QUANTIZE_WINDOWS_LARGE = 48, QUANTIZE_LEN = 512 };

/* --calib-len: unasked at most the model's positions. */
int64_t quantize_len(const cmd_ctx *c, int64_t len, const src_source *src);
/* A sixteenth of all windows at least is left over for the check. Prints what came from which file,
 * and warns where it is little, `usual` windows being what is not. Errors: those of dataset_read, and LQ_EUSAGE for windows longer than
 * the model's positions. */
lq_status quantize_samples(cal_samples *s, const char *list, const dataset_opts *o, int64_t usual,
                           lq_err *err);
/* The windows of the check (quantize/job/check.h): of those that `used` left over. Errors: likewise. */
lq_status quantize_held_out(cal_samples *check, const cal_samples *used, const char *list,
                            const dataset_opts *o, lq_err *err);
/* q->effort := that of `name`, where it changes something: the method has it and the model a backward pass.
 * With tuning settled; the windows of text that it asks for, where there is none QUANTIZE_WINDOWS or _LARGE. */
int64_t quantize_effort(qz_opts *q, const qz_effort *e, const src_source *src);
/* Windows that src writes itself for tuning, besides `text` of text, unless something else is
 * asked for: as many as the effort says, where auto trains codes. */
int64_t quantize_self_windows(const qz_opts *q, const src_source *src, int64_t text);

#endif
