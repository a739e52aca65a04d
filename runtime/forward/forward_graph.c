/* runtime/forward/forward_graph.c - steps of a device that are captured and queued again as one launch.
 *
 * A table of shapes, the one that was used last longest ago going first. A step whose shape is not
 * there is queued as it is, and its shape noted: so all kernels have been loaded before a capture,
 * and what comes once costs none. The next of that shape is captured, piece by piece, and every
 * later one is its graphs. Where a capture fails there are no more of them, and one note says so;
 * graphs that are there stay. */
#include "runtime/forward/forward_impl.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static_assert(sizeof(fwd_shape) % sizeof(int64_t) == 0, "compared as bytes");

static int find(const fwd_graphs *g, const fwd_shape *s)
{
    for (int i = 0; i < g->n_kept; i++)
        if (g->kept[i].used && memcmp(&g->kept[i].shape, s, sizeof *s) == 0) return i;
    return -1;
}

static int oldest(const fwd_graphs *g)
{
    int at = 0;
    for (int i = 1; i < g->n_kept; i++)
        if (g->kept[i].used < g->kept[at].used) at = i;
    return at;
}

static void forward_graph_say(fwd_graphs *g, const model_on *on, const lq_err *why)
{
    char text[sizeof why->msg + 64];
    g->off = true;
    snprintf(text, sizeof text, "off, each operation is launched by itself (%s)", why->msg);
    if (on->note) on->note("CUDA graphs", text);
}

bool fwd_graphs_open(fwd_graphs *g, int n_kept, int64_t n_pieces)
{
    assert(n_kept <= FWD_GRAPHS);
    g->pieces = calloc((size_t)n_kept * (size_t)n_pieces, sizeof *g->pieces);
    if (!g->pieces) return false;
    g->n_kept = n_kept;
    g->n_pieces = n_pieces;
    for (int i = 0; i < n_kept; i++)
        g->kept[i].piece = g->pieces + i * n_pieces;
    return true;
}

static void drop(fwd_graphs *g, dev *d, int at)
{
    for (int64_t p = 0; p < g->n_pieces; p++) {
        d->ops->drop(d, g->kept[at].piece[p]);
        g->kept[at].piece[p] = NULL;
    }
}

void fwd_graphs_begin(fwd_graphs *g, dev *d, const fwd_shape *s)
{
    const int at = s ? find(g, s) : -1;
    g->known = at >= 0;
    if (!s || d->bad) return;
    g->at = g->known ? at : oldest(g);
    g->kept[g->at].used = ++g->now;
    if (g->known) return;
    drop(g, d, g->at);
    g->kept[g->at].shape = *s;
}

fwd_how fwd_graphs_piece(fwd_graphs *g, dev *d, int64_t piece, const model_on *on)
{
    lq_err why = { "" };
    if (!g->known || d->bad) return FWD_PLAIN; /* bad: nothing is done any more, end says why */
    dev_graph *graph = g->kept[g->at].piece[piece];
    if (graph) {
        d->ops->replay(d, graph);
        return FWD_QUEUED;
    }
    if (g->off) return FWD_PLAIN;
    if (!d->ops->capture(d, &why)) return FWD_CAPTURE;
    forward_graph_say(g, on, &why);
    return FWD_PLAIN;
}

bool fwd_graphs_end(fwd_graphs *g, dev *d, int64_t piece, const model_on *on)
{
    lq_err why = { "" };
    dev_graph *graph = d->ops->captured(d, &why);
    if (!graph) {
        forward_graph_say(g, on, &why);
        return false;
    }
    g->kept[g->at].piece[piece] = graph;
    d->ops->replay(d, graph);
    return true;
}

void fwd_graphs_close(fwd_graphs *g, dev *d)
{
    for (int i = 0; i < g->n_kept; i++)
        drop(g, d, i);
    free(g->pieces);
}
