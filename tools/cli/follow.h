/* tools/cli/follow.h - a command that runs a model, started as several ranks (base/comm.h): rank 0 does what the
 * command is for, the others their part of the model's work alone (load_ranks in tools/cli/load.h). */
#ifndef LLMQ_TOOLS_CLI_FOLLOW_H
#define LLMQ_TOOLS_CLI_FOLLOW_H

#include "base/comm.h"
#include "tools/cli/model_opts.h"
#include "tools/cli/opt.h"

/* Opens the ranks; *over: this is another than rank 0. Errors: those of comm_open; LQ_EUNSUPPORTED: an option that does
 * not go with ranks, by name. */
lq_status follow_start(bool *over, const cmd_ctx *c, const opt_model *o, lq_err *err);
/* Of this process, after that; NULL: it is the only one. */
comm *follow_ranks(void);
/* On rank 0, before a model is closed: who waits for a rank that does not answer is to give up after so many seconds. */
void follow_give_up(int seconds);
/* Threads of each process: --threads, or its share of the processors; 0: all of them. */
int follow_threads(const cmd_ctx *c);
/* Of the memory that is free the part of each rank, where it is least; 0: nobody knows. All ranks' follow_open asks. */
size_t follow_memory(void);

#endif
