/* runtime/eval_shard.h - scores of a share of an evaluation's windows as a file, and all shares put together.
 *
 * A token's scores depend on its window alone, and figures are made of all scores in the order of windows: so those of all
 * shares are, to the bit, those of one run.
 *
 * A file is safetensors; I: the number of a length of windows (--ctx), T: the tokens scored of the share's windows
 *
 *     about      u8: JSON {"format", "record": what was evaluated, "between", "rows": [{"ctx", "per_window", "all_windows",
 *                "from", "windows", "compares"}]}
 *     I.nll      f64 [T]; where it was compared also I.ref_nll, I.kl: f64 [T], I.agree: u8 [T]
 *     I.xxh3     u8 [16]: hash of the bytes of about, then theirs, in this order */
#ifndef LLMQ_RUNTIME_EVAL_SHARD_H
#define LLMQ_RUNTIME_EVAL_SHARD_H

#include "runtime/eval.h"

typedef struct cJSON cJSON;

#define EVAL_SHARD_BEGIN "\"0.nll\"" /* in the first 256 bytes of a file */

/* One length of windows of a share. */
typedef struct {
    int64_t ctx;
    eval_result r;
} eval_row;

/* record: borrowed; all shares have the same. between: eval_opts'. Errors: those of st_create, LQ_ENOMEM. */
lq_status eval_shard_write(const char *path, const cJSON *record, bool between,
                           const eval_row *rows, int64_t n_rows, lq_err *err);
/* All shares of one evaluation, in any order. *rows [*n_rows]: free each with eval_free, then the
 * list; *record: cJSON_Delete. Errors: those of reading; LQ_EFORMAT (other bytes than were written), LQ_EVALUE (a
 * share is missing, twice there, or of another evaluation), eval_summarize's. */
lq_status eval_shards_read(eval_row **rows, int64_t *n_rows, cJSON **record,
                           const char *const *paths, int n, lq_err *err);

#endif
