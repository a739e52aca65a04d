/* tools/cli/follow.c - see follow.h. */
#include "tools/cli/follow.h"

#include "base/machine.h"
#include "runtime/model/part.h"
#include "tools/cli/ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static struct {
    comm *c; /* NULL: this process is the only one */
    int threads;
    size_t memory;
    atomic_int stop;
} ranks;

comm *follow_ranks(void) { return ranks.c; }
int follow_threads(const cmd_ctx *c) { return ranks.c ? ranks.threads : c->threads; }
size_t follow_memory(void) { return ranks.c ? ranks.memory : machine_memory(); }

/* Of other devices, of one machine's disk, or what rank 0 alone would know of. */
static lq_status check_options(const cmd_ctx *c, lq_err *err)
{
    static const char *const alone[] = {
        "gpu-layers", "tensor-parallel-size", "speculative-model", "speculative-mtp", "models",
        "ref",        "quantize-cache",       "quantize"
    };
    for (size_t i = 0; i < LQ_COUNT(alone); i++)
        if (opt_given(c, alone[i]))
            return lq_fail(err, LQ_EUNSUPPORTED, "--%s: not over several ranks, found %d of them",
                           alone[i], comm_size(ranks.c));
    return LQ_OK;
}

static lq_status check_device(const opt_model *o, lq_err *err)
{
    const char *device = opt_device(o);
    if (!device || strcmp(device, "cpu") == 0) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "--device: expected cpu over several ranks, found %.40s",
                   device);
}

/* The least that any rank may take: several of one machine share its memory. */
static lq_status find_memory(lq_err *err)
{
    size_t own = machine_memory() / (size_t)comm_sharing(ranks.c), all[PART_RANKS];
    if (comm_size(ranks.c) > PART_RANKS)
        return lq_fail(err, LQ_EUNSUPPORTED, "expected at most %d ranks, found %d", PART_RANKS,
                       comm_size(ranks.c));
    lq_status s = comm_gather(ranks.c, 0, &own, sizeof own, all, err);
    for (int i = 1; i < comm_size(ranks.c) && !s && comm_rank(ranks.c) == 0; i++)
        if (all[i] < own) own = all[i];
    if (!s) s = comm_broadcast(ranks.c, 0, &own, sizeof own, err);
    ranks.memory = own;
    return s;
}

/* Libraries of MPI copy between processes of one machine by a call that `serve` gives up (process_vm_readv). What the
 * user has set stays. */
static void copy_by_shared_memory(void)
{
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0); /* Open MPI 4 */
    setenv("OMPI_MCA_smsc", "^cma,knem,xpmem", 0);                 /* Open MPI 5 */
    setenv("MPIR_CVAR_CH4_CMA_ENABLE", "0", 0);                    /* MPICH */
    setenv("UCX_TLS", "^cma", 0);                                  /* either, over UCX */
}

/* Every two ranks exchange a few bytes and many: what a library of MPI opens when it is needed is open then, before
 * `serve` gives up the right to. */
static lq_status meet(lq_err *err)
{
    enum { FEW = 64, MANY = 1 << 20, TAG = 3 };
    const int n = comm_size(ranks.c), me = comm_rank(ranks.c);
    uint8_t *in = malloc((size_t)n * MANY), *out = calloc(1, MANY);
    lq_status s = in && out ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for %d ranks", n);
    for (int round = 0; round < 2 && !s; round++) {
        const size_t bytes = round ? MANY : FEW;
        comm_move moves[2 * PART_RANKS];
        size_t k = 0;
        for (int i = 0; i < n && !s; i++)
            if (i != me)
                s = comm_start_recv(ranks.c, &moves[k++], i, TAG, in + (size_t)i * MANY, bytes,
                                    err);
        for (int i = 0; i < n && !s; i++)
            if (i != me) s = comm_start_send(ranks.c, &moves[k++], i, TAG, out, bytes, err);
        if (!s) s = comm_wait(ranks.c, moves, k, err);
    }
    free(in);
    free(out);
    return s;
}

static void *give_up_later(void *seconds)
{
    nanosleep(&(struct timespec){ .tv_sec = (time_t)(intptr_t)seconds }, NULL);
    atomic_store(&ranks.stop, 1);
    return NULL;
}

void follow_give_up(int seconds)
{
    pthread_t t;
    if (ranks.c && pthread_create(&t, NULL, give_up_later, (void *)(intptr_t)seconds) == 0)
        pthread_detach(t);
}

lq_status follow_start(bool *over, const cmd_ctx *c, const opt_model *o, lq_err *err)
{
    *over = false;
    copy_by_shared_memory();
    lq_status s = ranks_open(&ranks.c, &ranks.threads, c, err);
    if (s || !ranks.c) return s;
    /* A signal ends rank 0's work in order, and with it the others'. */
    comm_watch(ranks.c, &(lq_job){ .stop = &ranks.stop });
    s = check_options(c, err);
    if (!s) s = check_device(o, err);
    if (!s) s = find_memory(err);
    if (!s) s = meet(err);
    *over = !s && comm_rank(ranks.c) > 0;
    return s;
}
