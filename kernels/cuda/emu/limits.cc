/* kernels/cuda/emu/limits.cc - what a launch may ask of the part (emu_cc).
 *
 * A block's shared memory is what the launch asks for (dynamic) and the arrays that the kernel
 * declares (static): together at most 48 KiB, and where cudaFuncSetAttribute has allowed the kernel
 * more, as many dynamic bytes as that and together what the part has for a block. The driver knows
 * the static bytes from the start; here they are known once a block has made its arrays, which is
 * early enough to refuse the launch. A graph's launch is held to what is allowed when it runs. */
#include "kernels/cuda/emu/emu_int.h"

#include <stdio.h>
#include <stdlib.h>

using namespace emu;

int emu_cc = 90, emu_sm = 4;

enum { UNASKED = 48 << 10 };

/* What is known of a kernel on a device. */
struct known {
    const void *kernel;
    int device;
    bool asked;     /* cudaFuncSetAttribute: */
    size_t allowed; /* dynamic bytes */
    size_t arrays;  /* static bytes that its blocks have made */
    bool turn;      /* falling */
};
static known *kernels;
static size_t n_kernels, cap_kernels;

static known *known_of(const void *kernel, int device)
{
    for (size_t i = 0; i < n_kernels; i++)
        if (kernels[i].kernel == kernel && kernels[i].device == device) return &kernels[i];
    if (n_kernels == cap_kernels) {
        cap_kernels = cap_kernels ? 2 * cap_kernels : 64;
        kernels = (known *)realloc(kernels, cap_kernels * sizeof *kernels);
        if (!kernels) abort();
    }
    kernels[n_kernels] = { kernel, device, false, 0, 0, true };
    return &kernels[n_kernels++];
}

size_t emu::shared_most()
{
    switch (emu_cc) {
    case 80:
    case 87:
        return 163 << 10;
    case 90:
    case 100:
    case 103:
        return SHARED_MAX;
    default:
        return 99 << 10;
    }
}

cudaError_t emu::allow_shared(const void *kernel, int bytes)
{
    known *k = known_of(kernel, set_device);
    if (bytes < 0 || (size_t)bytes + k->arrays > shared_most()) {
        snprintf(failure, sizeof failure,
                 "shared memory: %d dynamic and %zu static bytes are asked for, a block has %zu",
                 bytes, k->arrays, shared_most());
        return cudaGetLastError();
    }
    k->asked = true;
    k->allowed = (size_t)bytes;
    return cudaSuccess;
}

bool emu::launchable(int device, const work *w)
{
    const size_t threads = (size_t)w->block.x * w->block.y * w->block.z;
    const known *k = known_of(w->kernel, device);
    const size_t allowed = k->asked ? k->allowed : UNASKED - k->arrays;
    if (threads < 1 || threads > MAX_THREADS || !w->grid.x || !w->grid.y || !w->grid.z ||
        w->grid.y > 65535 || w->grid.z > 65535)
        snprintf(failure, sizeof failure, "a launch of %u x %u x %u blocks of %zu threads",
                 w->grid.x, w->grid.y, w->grid.z, threads);
    else if (w->shared > allowed)
        snprintf(failure, sizeof failure,
                 "shared memory: a launch has %zu dynamic bytes, the kernel is allowed %zu",
                 w->shared, allowed);
    return !failure[0];
}

void emu::bound(int threads)
{
    if (n_threads > threads)
        fail("registers: %d threads, the kernel is compiled for %d", n_threads, threads);
}

bool emu::falling(int device, const work *w)
{
    known *k = known_of(w->kernel, device);
    return k->turn = !k->turn;
}

void emu::shared_made(int device, const work *w, size_t bytes)
{
    known *k = known_of(w->kernel, device);
    if (bytes > k->arrays) k->arrays = bytes;
    const size_t dynamic = k->asked ? k->allowed : w->shared,
                 most = k->asked ? shared_most() : (size_t)UNASKED;
    if (dynamic + bytes > most)
        fail("shared memory: %zu dynamic and %zu static bytes%s, a block has %zu", dynamic, bytes,
             k->asked ? " were asked for" : "", most);
}
