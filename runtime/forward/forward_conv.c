/* runtime/forward/forward_conv.c - short convolutions of each channel along the sequences, on the CPU; and the copies of a
 * state that are wanted after some of its positions.
 *
 * Work is split by channels, and each piece goes from position to position by itself, so that neither threads nor chunks
 * show in the result. */
#include "runtime/forward/forward_impl.h"

#include "kernels/scan.h"

enum { CHANNELS = 64 }; /* of a piece */

int64_t fwd_next_mark(const fwd_seq_state *s, int *mark, int64_t at, int64_t end)
{
    while (*mark < s->run.n_marks && s->run.marks[*mark].after <= at)
        ++*mark;
    const int64_t after = *mark < s->run.n_marks ? s->run.marks[*mark].after : end;
    return after < end ? after : end;
}

void fwd_copy_marked(const fwd_seq_state *s, int mark, int64_t at, const float *from, int64_t n,
                     int64_t width, int64_t ld)
{
    for (; mark < s->run.n_marks && s->run.marks[mark].after == at; mark++) {
        float *to = s->run.marks[mark].copy + (from - s->run.state);
        for (int64_t i = 0; i < n; i++)
            memcpy(to + i * ld, from + i * ld, (size_t)width * sizeof *to);
    }
}

typedef struct {
    const fwd_conv *conv;
    const fwd_seq_state *states;
    int64_t pieces, taps;
} along;

static void conv_piece(void *ctx, int64_t item, int thread)
{
    const along *a = ctx;
    const fwd_conv *c = a->conv;
    const fwd_seq_state *s = &a->states[item / a->pieces];
    const int64_t c0 = item % a->pieces * CHANNELS, left = c->channels - c0;
    k_conv_args k = { .ldx = c->ld,
                      .n = left < CHANNELS ? left : CHANNELS,
                      .w = c->w + c0,
                      .ldw = c->channels,
                      .bias = c->bias ? c->bias + c0 : NULL,
                      .history = s->run.state + c->state + c0,
                      .ldh = c->channels,
                      .taps = (int)a->taps,
                      .silu = c->silu };
    (void)thread;
    int mark = 0;
    for (int64_t at = 0, to; at < s->n_rows; at = to) {
        to = fwd_next_mark(s, &mark, at, s->n_rows);
        k.x = c->x + (s->row0 + at) * c->ld + c0;
        k.T = to - at;
        k_conv(&k);
        fwd_copy_marked(s, mark, to, k.history, a->taps - 1, k.n, k.ldh);
    }
}

void fwd_conv_along(const fwd_rows *r, const fwd_conv *c, const fwd_seq_state *states, int n)
{
    along a = { c, states, lq_ceil_div(c->channels, CHANNELS), r->c->conv_taps };
    pool_run(r->p, n * a.pieces, conv_piece, &a);
}
