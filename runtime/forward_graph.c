/* runtime/forward_graph.c - steps of a device that are captured and queued again as one launch.
 *
 * A table of shapes, the one that was used last longest ago going first. A step whose shape is not
 * there is queued as it is, and its shape noted: so all kernels have been loaded before a capture,
 * and what comes once costs none. The next of that shape is captured, and every later one is its
 * graph. Where a capture fails there are no more of them, and one note says so; graphs that are
 * there stay. */
#include "runtime/forward_impl.h"

#include <assert.h>
#include <stdio.h>

static_assert(sizeof(fwd_shape) % sizeof(int64_t) == 0, "compared as bytes");

static int find(const fwd_graphs *g, const fwd_shape *s)
{
    for (int i = 0; i < FWD_GRAPHS; i++)
        if (g->kept[i].used && memcmp(&g->kept[i].shape, s, sizeof *s) == 0) return i;
    return -1;
}

static int oldest(const fwd_graphs *g)
{
    int at = 0;
    for (int i = 1; i < FWD_GRAPHS; i++)
        if (g->kept[i].used < g->kept[at].used) at = i;
    return at;
}

static void say(fwd_graphs *g, const model_on *on, const lq_err *why)
{
    char text[sizeof why->msg + 64];
    g->off = true;
    snprintf(text, sizeof text, "off, each operation is launched by itself (%s)", why->msg);
    if (on->note) on->note("CUDA graphs", text);
}

fwd_how fwd_graphs_begin(fwd_graphs *g, dev *d, const fwd_shape *s, const model_on *on)
{
    lq_err why = { "" };
    const int at = find(g, s);
    if (d->bad) return FWD_PLAIN; /* nothing is done any more: end says why */
    g->at = at < 0 ? oldest(g) : at;
    g->kept[g->at].used = ++g->now;
    if (at < 0) {
        d->ops->drop(d, g->kept[g->at].graph);
        g->kept[g->at].graph = NULL;
        g->kept[g->at].shape = *s;
        return FWD_PLAIN;
    }
    if (g->kept[at].graph) {
        d->ops->replay(d, g->kept[at].graph);
        return FWD_QUEUED;
    }
    if (g->off) return FWD_PLAIN;
    if (!d->ops->capture(d, &why)) return FWD_CAPTURE;
    say(g, on, &why);
    return FWD_PLAIN;
}

bool fwd_graphs_end(fwd_graphs *g, dev *d, const model_on *on)
{
    lq_err why = { "" };
    dev_graph *graph = d->ops->captured(d, &why);
    if (!graph) {
        say(g, on, &why);
        return false;
    }
    g->kept[g->at].graph = graph;
    d->ops->replay(d, graph);
    return true;
}

void fwd_graphs_close(fwd_graphs *g, dev *d)
{
    for (int i = 0; i < FWD_GRAPHS; i++)
        d->ops->drop(d, g->kept[i].graph);
}
