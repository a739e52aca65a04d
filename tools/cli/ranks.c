/* tools/cli/ranks.c - see ranks.h. */
#include "tools/cli/ranks.h"

#include <stdio.h>
#include <time.h>

#include "kernels/core/pool.h"
#include "tools/cli/progress.h"

static comm *ranks;  /* of this process; NULL: it is the only one */
static int said;     /* its number, also where the others could not be reached */
static bool opened;  /* tried to */
static bool refused; /* several of a command for one */
static int longer;   /* ms */

static void pause_ms(int ms)
{
    nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L }, NULL);
}

lq_status ranks_check(const cmd_row *cmd, lq_err *err)
{
    const char *who;
    const int n = comm_said_size(&who);
    said = comm_said_rank();
    if (cmd->processes != CMD_ONE || n < 2) return LQ_OK;
    refused = true;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "expected one process, found %d ranks (%s); LLMQ_MPI=none makes each process "
                   "one of its own",
                   n, who);
}

lq_status ranks_open(comm **out, int *threads, const cmd_ctx *c, lq_err *err)
{
    *out = NULL;
    *threads = c->threads;
    if (c->result) return LQ_OK;
    said = comm_said_rank();
    if (said > 0) prog_quiet();
    int who;
    opened = true;
    lq_status s = comm_open(&ranks, err);
    if (!s) s = comm_agree(ranks, LQ_OK, &who, err);
    if (s || !ranks) return s;
    comm_watch(ranks, c->job);
    *out = ranks;
    const int own = pool_default_threads() / comm_sharing(ranks);
    if (!c->threads) *threads = own > 1 ? own : 1;
    prog_say(LOG_INFO, "ranks: %d (%s), %d threads each here", comm_size(ranks), comm_text(ranks),
             *threads);
    return LQ_OK;
}

void ranks_failed(const cmd_row *cmd, lq_status s)
{
    const char *by;
    int who;
    if (opened || cmd->processes != CMD_SHARED || s == LQ_EINTR || comm_said_size(&by) < 2) return;
    opened = true;
    said = comm_said_rank();
    if (!comm_open(&ranks, NULL)) (void)comm_agree(ranks, s, &who, NULL);
}

void ranks_wait_longer(int ms) { longer = ms; }

bool ranks_tell(char *who, lq_status s)
{
    enum { FIRST = 100, NEXT = 10, STEP_MS = 10 };
    *who = 0;
    if (s && refused && said > 0) { /* once rank 0 has: launchers end all when one ends */
        pause_ms(FIRST * STEP_MS);
        return false;
    }
    if (s && comm_ended(ranks)) return false; /* that rank says why */
    if (!s || said <= 0) return true;
    if (s == LQ_EINTR) return false; /* the launcher, or another rank, has ended all */
    const int steps = FIRST + NEXT * (said < 20 ? said : 20) + longer / STEP_MS;
    for (int i = 0; i < steps && !comm_tells(ranks) && !comm_is_gone(ranks, 0) && !prog_signal() &&
                    !comm_ended(ranks);
         i++)
        pause_ms(STEP_MS);
    if (ranks)
        snprintf(who, 128, "rank %d of %d: ", said, comm_size(ranks));
    else
        snprintf(who, 128, "rank %d: ", said);
    return !prog_signal() && !comm_ended(ranks);
}

int ranks_close(lq_status s, int code)
{
    comm *c = ranks;
    ranks = NULL;
    if (!c) return code;
    if (comm_ended(c)) code = comm_ended(c);
    if (s)
        comm_abort(c, code);
    else
        comm_close(c);
    return code;
}
