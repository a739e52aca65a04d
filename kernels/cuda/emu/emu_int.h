/* kernels/cuda/emu/emu_int.h - what emu.cc and graph.cc know of each other. */
#ifndef LLMQ_KERNELS_CUDA_EMU_INT_H
#define LLMQ_KERNELS_CUDA_EMU_INT_H

#include "kernels/cuda/emu/emu.h"

namespace emu
{

extern char failure[400]; /* cudaGetLastError takes it */

/* A copy of pinned memory that the stream has not been waited for. */
struct flight {
    unsigned char *host, *bytes; /* bytes: what arrives there, or was read there */
    size_t n;
    bool arrives;
};
struct stream {
    int device;
    flight *flights;
    size_t n_flights, cap_flights;
    bool busy;           /* since a launch, until it was asked once */
    bool lost, waits;    /* emu_lost_late; in an exchange with one that is lost */
    emu_graph *captures; /* what is recorded; NULL: work is run */
    bool spoilt;         /* of that: a forbidden call was made */
    stream *next;
};

/* ---- emu.cc: what a stream or a graph does when its time comes ---- */
bool own_stream(const void *s, const char *what); /* says so where it is another device's */
bool is_pinned(const void *p, size_t n);
cudaError_t run_launch(stream *on, dim3 grid, dim3 block, size_t dynamic, body_fn *fn, void *ctx);
cudaError_t run_copy(stream *s, void *dst, const void *src, size_t n, int kind);
cudaError_t run_memset(stream *s, void *dst, int v, size_t n);

/* ---- graph.cc ---- */
/* This thread has a capture under way: what might wait for a device is forbidden. */
bool captures_here();
/* The error of a call that is; the capture comes to nothing. */
cudaError_t forbid();
/* Of what is asked of the legacy default stream, which nothing here uses. */
cudaError_t legacy(const char *what);
cudaError_t record_launch(stream *s, dim3 grid, dim3 block, size_t dynamic, body_fn *fn,
                          const void *ctx, size_t bytes);
cudaError_t record_copy(stream *s, void *dst, const void *src, size_t n, int kind);
cudaError_t record_memset(stream *s, void *dst, int v, size_t n);
void drop_capture(stream *s);
const char *capture_error(cudaError_t e); /* NULL: no such */

} // namespace emu

#endif
