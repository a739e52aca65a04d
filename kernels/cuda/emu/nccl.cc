/* kernels/cuda/emu/nccl.cc - what kernels/cuda/link.cu takes of NCCL, between emulated devices.
 * What a group asks for is matched and done at its end; a call whose partner does not come, which
 * would wait for ever, is an error. */
#include "kernels/cuda/emu/emu_int.h"

#include <stdio.h>
#include <stdlib.h>

namespace
{

enum { CALLS_MAX = 1024 };

struct comm {
    int rank, device;
    const void *clique;
    void *waits; /* the stream that waits in an exchange for ever; NULL: none does */
};

struct call {
    comm *at;
    int peer;
    const void *from; /* of a send */
    void *to;         /* of a receive */
    size_t n;
    bool done;
    void *stream;
};

call calls[CALLS_MAX];
int n_calls, depth;
char said[200];

int fail(const char *what, const call *c)
{
    snprintf(said, sizeof said, "%s of %zu floats, rank %d and %d", what, c->n, c->at->rank,
             c->peer);
    return 1;
}

int init_all(void **comms, int n, const int *devices)
{
    for (int r = 0; r < n; r++) {
        comm *c = (comm *)calloc(1, sizeof *c);
        if (!c) return 1;
        *c = { r, devices[r], comms, nullptr };
        comms[r] = c;
    }
    return 0;
}

int destroy(void *c)
{
    free(c);
    return 0;
}

int abort_comm(void *c)
{
    if (((comm *)c)->waits) emu::stream_waits(((comm *)c)->waits, false);
    return destroy(c);
}

int add(const call *c)
{
    const void *p = c->from ? c->from : c->to;
    if (n_calls == CALLS_MAX || depth == 0) return fail("outside of a group: a call", c);
    if (emu::captures_here()) return fail("in a capture: a call", c);
    if (emu::stream_device(c->stream) != c->at->device) return fail("another device's stream", c);
    if (!emu::on_device(p, c->n * sizeof(float), c->at->device))
        return fail("outside of what cudaMalloc gave there: a call", c);
    calls[n_calls++] = *c;
    return 0;
}

int send(const void *from, size_t n, int, int peer, void *at, void *stream)
{
    const call c = { (comm *)at, peer, from, nullptr, n, false, stream };
    return add(&c);
}
int recv(void *to, size_t n, int, int peer, void *at, void *stream)
{
    const call c = { (comm *)at, peer, nullptr, to, n, false, stream };
    return add(&c);
}

int group_start()
{
    depth++;
    return 0;
}

/* The first send that receive `to` waits for. */
call *partner(const call *to)
{
    for (int i = 0; i < n_calls; i++) {
        call *c = &calls[i];
        if (!c->done && c->from && c->at->clique == to->at->clique && c->at->rank == to->peer &&
            c->peer == to->at->rank)
            return c;
    }
    return nullptr;
}

/* The partner is lost. */
void hang(const call *c)
{
    if (emu::stream_lost(c->stream)) return;
    c->at->waits = c->stream;
    emu::stream_waits(c->stream, true);
}

int group_end()
{
    int result = 0;
    if (--depth) return 0;
    for (int i = 0; i < n_calls && !result; i++) {
        call *to = &calls[i];
        if (to->from) continue;
        call *from = partner(to);
        if (from && (emu::stream_lost(from->stream) || emu::stream_lost(to->stream))) {
            hang(from);
            hang(to);
        } else if (!from)
            result = fail("nobody sends to a receive", to);
        else if (from->n != to->n)
            result = fail("another number is received: a send", from);
        else
            memcpy(to->to, from->from, to->n * sizeof(float));
        to->done = true;
        if (from) from->done = true;
    }
    for (int i = 0; i < n_calls && !result; i++)
        if (!calls[i].done) result = fail("nobody receives a send", &calls[i]);
    n_calls = 0;
    return result;
}

const char *text(int) { return said; }

} // namespace

extern "C" bool emu_nccl_here;
bool emu_nccl_here = true;
extern "C" const nccl_api emu_nccl = { init_all,  destroy, abort_comm, group_start,
                                       group_end, send,    recv,       text };
