/* kernels/cuda/nccl.h - what kernels/cuda/link.cu takes of NCCL (nccl.h, 2.7 and later): loaded at
 * run time, or emulated (kernels/cuda/emu/nccl.cc). Results: 0, or what `text` puts into words. */
#ifndef LLMQ_KERNELS_CUDA_NCCL_H
#define LLMQ_KERNELS_CUDA_NCCL_H

#include <stddef.h>

enum { NCCL_FLOAT32 = 7 };
/* X(field, name in the library, arguments) */
#define NCCL_CALLS(X)                                                                      \
    X(init_all, "ncclCommInitAll", (void **comms, int n, const int *devices))              \
    X(destroy, "ncclCommDestroy", (void *comm))                                            \
    X(abort, "ncclCommAbort", (void *comm)) /* what waits in an exchange ends; destroys */ \
    X(group_start, "ncclGroupStart", (void))                                               \
    X(group_end, "ncclGroupEnd", (void))                                                   \
    X(send, "ncclSend",                                                                    \
      (const void *from, size_t n, int type, int peer, void *comm, void *stream))          \
    X(recv, "ncclRecv", (void *to, size_t n, int type, int peer, void *comm, void *stream))

typedef struct {
#define X(field, name, args) int(*field) args;
    NCCL_CALLS(X)
#undef X
    const char *(*text)(int result); /* "ncclGetErrorString" */
} nccl_api;

#endif
