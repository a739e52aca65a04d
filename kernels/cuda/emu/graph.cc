/* kernels/cuda/emu/graph.cc - captures and graphs. A capture runs nothing: it keeps each launch
 * with the values that its parameters had, and of each copy the addresses. A graph runs that, and
 * so does with memory what lies there then: a parameter that should have changed since is found by
 * what comes out.
 *
 * Captures are those of cudaStreamCaptureModeThreadLocal. Forbidden, each with the runtime's own
 * error, after which cudaStreamEndCapture gives cudaErrorStreamCaptureInvalidated and no graph:
 * waiting for the stream that captures, or asking it; cudaMalloc, cudaFree and their likes for the
 * host, by the thread that captures; the legacy default stream; copies from or to host memory that
 * is not pinned, as they wait (the runtime lets some of them pass). */
#include "kernels/cuda/emu/emu_int.h"

#include <stdio.h>
#include <stdlib.h>

using namespace emu;

enum node_kind { LAUNCH, COPY, SET };
struct node {
    node_kind what;
    work launch; /* its ctx is owned */
    void *dst;
    const void *src;
    size_t n; /* bytes that are copied or set */
    int how;  /* the kind of a copy, the value of a set */
};
struct emu_graph {
    node *nodes;
    size_t n, cap;
    int device;
};
struct emu_graph_exec {
    emu_graph g;
};

static thread_local stream *here; /* what this thread captures */

static void clear(emu_graph *g)
{
    for (size_t i = 0; i < g->n; i++)
        free(g->nodes[i].launch.ctx);
    free(g->nodes);
}

static cudaError_t add(emu_graph *g, const node *of)
{
    if (g->n == g->cap) {
        const size_t cap = g->cap ? 2 * g->cap : 64;
        void *more = realloc(g->nodes, cap * sizeof *g->nodes);
        if (!more) return cudaErrorMemoryAllocation;
        g->nodes = (node *)more;
        g->cap = cap;
    }
    node *at = &g->nodes[g->n];
    *at = *of;
    const work *w = &of->launch;
    if (w->ctx) {
        if (!(at->launch.ctx = malloc(w->bytes))) return cudaErrorMemoryAllocation;
        memcpy(at->launch.ctx, w->ctx, w->bytes);
    }
    g->n++;
    return cudaSuccess;
}

bool emu::captures_here() { return here; }

cudaError_t emu::forbid()
{
    if (here) here->spoilt = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t emu::legacy(const char *what)
{
    if (here) {
        here->spoilt = true;
        return cudaErrorStreamCaptureImplicit;
    }
    snprintf(failure, sizeof failure, "%s on the legacy default stream", what);
    return cudaGetLastError();
}

cudaError_t emu::record_launch(stream *s, const work *w)
{
    const node n = { LAUNCH, *w, nullptr, nullptr, 0, 0 };
    return s->spoilt ? cudaErrorStreamCaptureInvalidated : add(s->captures, &n);
}

cudaError_t emu::record_copy(stream *s, void *dst, const void *src, size_t n, int kind)
{
    const void *host = kind == cudaMemcpyHostToDevice   ? src
                       : kind == cudaMemcpyDeviceToHost ? dst
                                                        : nullptr;
    if (host && !is_pinned(host, n)) return forbid();
    const node of = { COPY, {}, dst, src, n, kind };
    return s->spoilt ? cudaErrorStreamCaptureInvalidated : add(s->captures, &of);
}

cudaError_t emu::record_memset(stream *s, void *dst, int v, size_t n)
{
    const node of = { SET, {}, dst, nullptr, n, v };
    return s->spoilt ? cudaErrorStreamCaptureInvalidated : add(s->captures, &of);
}

void emu::drop_capture(stream *s)
{
    if (here == s) here = nullptr;
    if (s->captures) cudaGraphDestroy(s->captures);
    s->captures = nullptr;
    s->spoilt = false;
}

const char *emu::capture_error(cudaError_t e)
{
    switch (e) {
    case cudaErrorIllegalState:
        return "the operation cannot be performed in the present state";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
        return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureImplicit:
        return "operation would make the legacy stream depend on a capturing blocking stream";
    case cudaErrorStreamCaptureWrongThread:
        return "attempt to terminate a thread-local capture sequence from another thread";
    default:
        return nullptr;
    }
}

cudaError_t cudaStreamBeginCapture(cudaStream_t queue, int mode)
{
    stream *s = (stream *)queue;
    if (!s || mode != cudaStreamCaptureModeThreadLocal) return cudaErrorStreamCaptureUnsupported;
    if (s->captures || here) return cudaErrorIllegalState;
    if (!own_stream(s, "a capture")) return cudaGetLastError();
    if (!(s->captures = (emu_graph *)calloc(1, sizeof *s->captures)))
        return cudaErrorMemoryAllocation;
    s->captures->device = s->device;
    here = s;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t queue, cudaGraph_t *out)
{
    stream *s = (stream *)queue;
    *out = nullptr;
    if (!s || !s->captures) return cudaErrorIllegalState;
    if (here != s) {
        s->spoilt = true;
        return cudaErrorStreamCaptureWrongThread;
    }
    if (s->spoilt) {
        drop_capture(s);
        return cudaErrorStreamCaptureInvalidated;
    }
    *out = s->captures;
    s->captures = nullptr;
    here = nullptr;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long)
{
    const alone now;
    *out = nullptr;
    if (emu_graphs == 0) return cudaErrorMemoryAllocation;
    emu_graph_exec *e = (emu_graph_exec *)calloc(1, sizeof *e);
    cudaError_t s = e ? cudaSuccess : cudaErrorMemoryAllocation;
    for (size_t i = 0; i < g->n && s == cudaSuccess; i++)
        s = add(&e->g, &g->nodes[i]);
    if (s != cudaSuccess) {
        cudaGraphExecDestroy(e);
        return s;
    }
    e->g.device = g->device;
    emu_graphs--;
    emu_counted.kept++;
    *out = e;
    return cudaSuccess;
}

/* Of a copy node: its host memory is pinned still. */
static bool lies_there(const node *n)
{
    const void *host = n->how == cudaMemcpyHostToDevice   ? n->src
                       : n->how == cudaMemcpyDeviceToHost ? n->dst
                                                          : nullptr;
    if (!host || is_pinned(host, n->n)) return true;
    snprintf(failure, sizeof failure, "a graph's copy of host memory that is not pinned any more");
    return false;
}

static cudaError_t run(stream *s, const node *n)
{
    switch (n->what) {
    case LAUNCH:
        emu_counted.nodes++;
        return run_launch(s, &n->launch);
    case COPY:
        return lies_there(n) ? run_copy(s, n->dst, n->src, n->n, n->how) : cudaGetLastError();
    default:
        return run_memset(s, n->dst, n->how, n->n);
    }
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t queue)
{
    const alone now;
    stream *s = (stream *)queue;
    if (!s) return legacy("a graph");
    if (s->captures) return forbid(); /* it would be a part of the other graph: nobody needs that */
    if (!own_stream(s, "a graph")) return cudaGetLastError();
    if (s->device != e->g.device) {
        snprintf(failure, sizeof failure, "a graph of device %d on a stream of device %d",
                 e->g.device, s->device);
        return cudaGetLastError();
    }
    emu_counted.graphs++;
    cudaError_t r = cudaSuccess;
    for (size_t i = 0; i < e->g.n && r == cudaSuccess; i++)
        r = run(s, &e->g.nodes[i]);
    return r;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    if (g) clear(g);
    free(g);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e)
{
    if (e) clear(&e->g);
    free(e);
    return cudaSuccess;
}
