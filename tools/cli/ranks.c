/* tools/cli/ranks.c - see ranks.h. */
#include "tools/cli/ranks.h"

#include <stdio.h>
#include <time.h>

#include "kernels/core/pool.h"
#include "tools/cli/progress.h"

static comm *ranks; /* of this process; NULL: it is the only one */
static int said;    /* its number, also where the others could not be reached */

lq_status ranks_open(comm **out, int *threads, const cmd_ctx *c, lq_err *err)
{
    *out = NULL;
    *threads = c->threads;
    if (c->result) return LQ_OK;
    said = comm_said_rank();
    if (said > 0) prog_quiet();
    const lq_status s = comm_open(&ranks, err);
    if (s || !ranks) return s;
    comm_watch(ranks, c->job);
    *out = ranks;
    const int own = pool_default_threads() / comm_sharing(ranks);
    if (!c->threads) *threads = own > 1 ? own : 1;
    prog_say(LOG_INFO, "ranks: %d (%s), %d threads each here", comm_size(ranks), comm_text(ranks),
             *threads);
    return LQ_OK;
}

bool ranks_tell(char *who, lq_status s)
{
    enum { FIRST = 100, NEXT = 10, STEP_MS = 10 };
    *who = 0;
    if (s && comm_ended(ranks)) return false; /* that rank says why */
    if (!s || said <= 0) return true;
    if (s == LQ_EINTR) return false; /* the launcher, or another rank, has ended all */
    const int steps = FIRST + NEXT * (said < 20 ? said : 20);
    for (int i = 0; i < steps && !comm_tells(ranks) && !prog_signal() && !comm_ended(ranks); i++)
        nanosleep(&(struct timespec){ .tv_nsec = STEP_MS * 1000000L }, NULL);
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
