/* kernels/cuda/emu/emu_int.h - what the emulation's files know of each other. */
#ifndef LLMQ_KERNELS_CUDA_EMU_EMU_INT_H
#define LLMQ_KERNELS_CUDA_EMU_EMU_INT_H

#include "kernels/cuda/emu/emu.h"

#include <pthread.h>

namespace emu
{

/* One thread at a time is in the runtime or on a device: all that is kept here is of both. A thread may
 * take it again. */
extern pthread_mutex_t in_runtime;
extern thread_local int times_in;
struct alone {
    alone()
    {
        if (times_in++ == 0) pthread_mutex_lock(&in_runtime);
    }
    ~alone()
    {
        if (--times_in == 0) pthread_mutex_unlock(&in_runtime);
    }
    alone(const alone &) = delete;
};

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

extern thread_local int set_device; /* cudaSetDevice */
extern int running;                 /* the device of the launch */

/* ---- emu.cc: what a stream or a graph does when its time comes ---- */
bool own_stream(const void *s, const char *what); /* says so where it is another device's */
bool is_pinned(const void *p, size_t n);
cudaError_t run_copy(stream *s, void *dst, const void *src, size_t n, int kind);
cudaError_t run_memset(stream *s, void *dst, int v, size_t n);

/* ---- block.cc: the block that runs ---- */
enum {
    WARP = 32,
    MAX_THREADS = 1024,
    SHARED_MAX = 227 << 10 /* bytes that a block may have on sm_90 */
};
cudaError_t run_launch(stream *on, const work *w); /* when its time comes */
extern int current;                                /* the thread */
/* Ends the launch with this error. Does not return. */
void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
unsigned warp_met(); /* its warp's operations in this block, the one that is over included */
/* Until bar_over(i, parity). */
void wait_for_bar(int i, unsigned parity, const char *file, int line);

/* ---- shared.cc: its shared memory ---- */
extern unsigned char *shared;     /* [SHARED_MAX], at a multiple of 1,024 bytes */
bool shared_room();               /* false: no memory */
void shared_start(const work *w); /* of a block */
void shared_forget();             /* block_time begins again */
/* The engine has written there; a product of a warpgroup reads there. */
void engine_wrote(size_t off, size_t n);
void product_reads(size_t off, size_t n);

/* ---- mma.cc ---- */
float from_f16(unsigned h);
float from_bf16(unsigned h);

/* ---- sm90.cc ---- */
bool engine_start(int threads); /* of a block; false: no memory */
extern int bars_made;           /* mbarriers of the block; 0: what follows need not be asked */
void engine_touch(size_t off, size_t n, bool write);
void engine_handed(size_t off); /* a product reads what threads wrote */
void engine_met();
void engine_left();
const char *engine_end(); /* NULL: nothing is left under way */
bool bar_over(int i, unsigned parity);
void bar_stuck(int i, char *why, size_t n);

extern int n_threads; /* of the block */
/* Barriers so far: of this block and those before it; of a warp its own, since the last of these. */
extern uint32_t block_time;
extern uint16_t warp_time[MAX_THREADS / WARP];

/* ---- order.cc: device memory within a launch ---- */
void order_start(const void *stream, bool follows);
void order_copied(const void *stream); /* not by a kernel: the next launch does not begin early */
void order_block(uint32_t number);
void order_write(const void *p, const void *value, size_t n);
void order_read(const void *p, size_t n);
void order_constant(const void *p, size_t n, bool early);

/* ---- limits.cc ---- */
size_t shared_most(); /* bytes that a block of the part may have */
/* Whether the device may launch this; else the failure says why not. */
bool launchable(int device, const work *w);
/* Of every other launch of a kernel: blocks run in falling order. */
bool falling(int device, const work *w);
/* A block of what runs has made so many bytes of shared arrays. */
void shared_made(int device, const work *w, size_t bytes);

/* ---- graph.cc ---- */
/* This thread has a capture under way: what might wait for a device is forbidden. */
bool captures_here();
/* The error of a call that is; the capture comes to nothing. */
cudaError_t forbid();
/* Of what is asked of the legacy default stream, which nothing here uses. */
cudaError_t legacy(const char *what);
cudaError_t record_launch(stream *s, const work *w);
cudaError_t record_copy(stream *s, void *dst, const void *src, size_t n, int kind);
cudaError_t record_memset(stream *s, void *dst, int v, size_t n);
void drop_capture(stream *s);
const char *capture_error(cudaError_t e); /* NULL: no such */

} // namespace emu

#endif
