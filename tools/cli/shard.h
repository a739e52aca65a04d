/* tools/cli/shard.h - --shard i/N: which share of the work is this process's. */
#ifndef LLMQ_TOOLS_CLI_SHARD_H
#define LLMQ_TOOLS_CLI_SHARD_H

#include "base/base.h"

/* text: "i/N", i from 1; "auto": a Slurm array's SLURM_ARRAY_TASK_ID of _COUNT; "N": an Indexed Job's
 * JOB_COMPLETION_INDEX says which; NULL: 1/1. *shard: from 0, of *of. Errors: LQ_EUSAGE. */
lq_status shard_read(int *shard, int *of, const char *text, lq_err *err);

#endif
