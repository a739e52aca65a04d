/* tools/cli/ranks.h - a command whose work several processes share (base/comm.h): rank 0 speaks, the others are
 * silent, and what ends one ends all.
 *
 * The command opens them once nothing of it is left that may start the process again; main closes. */
#ifndef LLMQ_TOOLS_CLI_RANKS_H
#define LLMQ_TOOLS_CLI_RANKS_H

#include "base/comm.h"
#include "tools/cli/opt.h"

/* Whether a launcher may start several of this command. Errors: LQ_EUNSUPPORTED, which rank 0 says alone. */
lq_status ranks_check(const cmd_row *cmd, lq_err *err);
/* *out: all ranks, NULL for the only one; *threads: --threads, or this rank's share of the processors. From here on
 * other ranks than 0 print nothing. A call of the library is always the only rank. Errors: comm_open's. */
lq_status ranks_open(comm **out, int *threads, const cmd_ctx *c, lq_err *err);
/* The command of all ranks has failed with s, maybe before ranks_open: the others, who wait there, hear of it. */
void ranks_failed(const cmd_row *cmd, lq_status s);
/* On another rank than 0: rank 0 may take this much longer until it says why and ends all. */
void ranks_wait_longer(int ms);
/* The command has ended with s: does this process say so? Rank 0 does, where it was not another that ended the job;
 * another waits whether one before it does, which mostly failed alike, and is ended by that. `who` (128 bytes) is put before the message: "" or "rank 2 of 4: ". */
bool ranks_tell(char *who, lq_status s);
/* code: the exit code; returns what it becomes, where another rank's counts. After a failure MPI ends this process. */
int ranks_close(lq_status s, int code);

#endif
