/* calib/self_text.h - calibration text that the model writes itself.
 *
 * Tuning towards the model's own answers learns from any text that the model finds likely, and
 * there is no end of what it can write: tokens drawn one by one from its next-token distribution
 * (temperature 1, nothing cut off), from BOS on, or EOS, or any token where it has neither. An EOS
 * within a window is kept and another document begins.
 * Source: arXiv:2305.17888 (LLM-QAT: data-free distillation by samples of the model).
 *
 * Memory: the whole model, as `serve` loads it, and keys and values of up to 64 windows. */
#ifndef LLMQ_CALIB_SELF_TEXT_H
#define LLMQ_CALIB_SELF_TEXT_H

#include "formats/source/source.h"
#include "kernels/core/pool.h"

enum { CAL_SELF_AT_ONCE = 64 };

/* What cal_self_write reports as it goes, in tokens; before that, under other words, the loading.
 */
extern const char cal_self_progress[];

/* Draws windows first .. first + n of len tokens into ids [n][len]. Window i depends on the model, the
 * seed and i alone, not on n or threads. Errors: those of model_load, LQ_EVALUE (logits that are not
 * finite, a model that has no room for windows of this length), LQ_EINTR, LQ_ENOMEM. */
lq_status cal_self_write(int32_t *ids, int64_t first, int64_t n, int64_t len, src_source *src,
                         uint64_t seed, pool *p, const lq_job *job, lq_err *err);

#endif
