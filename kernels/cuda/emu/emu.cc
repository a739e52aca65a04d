/* kernels/cuda/emu/emu.cc - the part of the runtime's interface that dev.cu uses: memory, streams, copies;
 * see emu.h. */
#include "kernels/cuda/emu/emu_int.h"

#include <stdio.h>
#include <stdlib.h>

namespace emu
{

enum { GUARD = 64 }; /* bytes around an allocation that belong to nobody */

pthread_mutex_t in_runtime = PTHREAD_MUTEX_INITIALIZER;
thread_local int times_in;

/* ---- failure ---- */
char failure[400];

/* ---- device memory ---- */
struct allocation {
    uintptr_t lo, hi;
    void *base; /* NULL: a part of another */
    int device;
    bool cut; /* has parts: it counts as memory that is taken, and nothing is reached through it */
};
static allocation *allocs;
static size_t n_allocs, cap_allocs;
static size_t found[1024]; /* by address: the allocation that was found last */
int running;

static bool holds(const allocation *a, uintptr_t at)
{
    return at >= a->lo && at < a->hi && a->device == running && !a->cut;
}

span find_global(const void *p)
{
    const uintptr_t at = (uintptr_t)p;
    if (!p) return { 0, 0 };
    size_t *last = &found[at / 256 % (sizeof found / sizeof *found)];
    if (*last < n_allocs && holds(&allocs[*last], at))
        return { allocs[*last].lo, allocs[*last].hi };
    for (size_t i = 0; i < n_allocs; i++)
        if (holds(&allocs[i], at)) {
            *last = i;
            return { allocs[i].lo, allocs[i].hi };
        }
    return { at, at };
}

/* ---- devices and streams ---- */
static stream *streams;
thread_local int set_device;

bool own_stream(const void *s, const char *what)
{
    if (stream_device(s) == set_device) return true;
    snprintf(failure, sizeof failure, "%s on a stream of device %d, device %d is set", what,
             stream_device(s), set_device);
    return false;
}

} // namespace emu

bool emu::stream_lost(const void *s) { return ((const stream *)s)->lost; }
void emu::stream_waits(void *s, bool waits) { ((stream *)s)->waits = waits; }
int emu::stream_device(const void *s) { return ((const stream *)s)->device; }

bool emu::on_device(const void *p, size_t n, int device)
{
    for (size_t i = 0; i < n_allocs; i++)
        if ((uintptr_t)p >= allocs[i].lo && (uintptr_t)p + n <= allocs[i].hi &&
            allocs[i].device == device && !allocs[i].cut)
            return true;
    return false;
}

/* ---- the runtime's interface ---- */
using namespace emu;

size_t emu_memory = (size_t)1 << 30, emu_launches = SIZE_MAX, emu_graphs = SIZE_MAX;
int emu_devices = 1;
bool emu_lost_late;
const char *emu_name = "emulated";
emu_counts emu_counted;

cudaError_t cudaDriverGetVersion(int *v)
{
    *v = 0;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *n)
{
    *n = emu_devices;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int)
{
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", emu_name);
    p->major = emu_cc / 10;
    p->minor = emu_cc % 10;
    p->multiProcessorCount = emu_sm;
    p->totalGlobalMem = emu_memory;
    p->sharedMemPerBlockOptin = shared_most();
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int i)
{
    if (i < 0 || i >= emu_devices) return cudaErrorInvalidDevice;
    set_device = i;
    return cudaSuccess;
}

/* Pinned memory. */
struct pinned {
    unsigned char *base;
    size_t n;
};
static pinned *pins;
static size_t n_pins;

bool emu::is_pinned(const void *p, size_t n)
{
    for (size_t i = 0; i < n_pins; i++)
        if ((uintptr_t)p >= (uintptr_t)pins[i].base &&
            (uintptr_t)p + n <= (uintptr_t)pins[i].base + pins[i].n)
            return true;
    return false;
}

/* The pinned end of a copy that was just made. */
static cudaError_t take_off(stream *s, const void *host, size_t n, bool arrives)
{
    if (s->n_flights == s->cap_flights) {
        const size_t cap = s->cap_flights ? 2 * s->cap_flights : 16;
        void *more = realloc(s->flights, cap * sizeof *s->flights);
        if (!more) return cudaErrorMemoryAllocation;
        s->flights = (flight *)more;
        s->cap_flights = cap;
    }
    unsigned char *bytes = (unsigned char *)malloc(n);
    if (!bytes) return cudaErrorMemoryAllocation;
    memcpy(bytes, host, n);
    s->flights[s->n_flights++] = { (unsigned char *)(uintptr_t)host, bytes, n, arrives };
    if (arrives) memset((void *)(uintptr_t)host, 0xff, n); /* NaN until then */
    return cudaSuccess;
}

static void land(stream *s)
{
    for (size_t i = 0; i < s->n_flights; i++) {
        const flight *f = &s->flights[i];
        if (f->arrives)
            memcpy(f->host, f->bytes, f->n);
        else if (memcmp(f->host, f->bytes, f->n) != 0)
            snprintf(failure, sizeof failure,
                     "pinned memory was changed before the stream had read it");
        free(f->bytes);
    }
    s->n_flights = 0;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned)
{
    const alone now;
    stream *s = (stream *)calloc(1, sizeof *s);
    if (!s) return cudaErrorMemoryAllocation;
    s->device = set_device;
    s->next = streams;
    *out = streams = s;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t gone)
{
    const alone now;
    stream **at = &streams;
    while (*at && *at != gone)
        at = &(*at)->next;
    if (!*at) return cudaSuccess;
    stream *s = *at;
    *at = s->next;
    land(s);
    drop_capture(s);
    free(s->flights);
    free(s);
    return cudaSuccess;
}

static cudaError_t is_lost()
{
    snprintf(failure, sizeof failure, "the device is lost");
    return cudaGetLastError();
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    const alone now;
    if (((stream *)s)->captures) return forbid();
    if (((stream *)s)->lost) return is_lost();
    const bool busy = ((stream *)s)->busy;
    ((stream *)s)->busy = false;
    if (!busy && !((stream *)s)->waits) return cudaSuccess;
    snprintf(failure, sizeof failure, "cudaErrorNotReady, not taken back");
    return cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    const alone now;
    if (((stream *)s)->captures) return forbid();
    emu_counted.waits++;
    if (((stream *)s)->waits) {
        fprintf(stderr, "emulation: a stream is waited for that waits for a lost device\n");
        abort();
    }
    if (((stream *)s)->lost) return is_lost();
    land((stream *)s);
    return cudaGetLastError();
}

cudaError_t cudaMallocHost(void **p, size_t n)
{
    const alone now;
    if (captures_here()) return forbid();
    void *more = realloc(pins, (n_pins + 1) * sizeof *pins);
    if (more) pins = (pinned *)more;
    unsigned char *base = more ? (unsigned char *)malloc(n) : nullptr;
    if (!base) return cudaErrorMemoryAllocation;
    memset(base, 0xff, n);
    pins[n_pins++] = { base, n };
    emu_counted.allocations++;
    *p = base;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    const alone now;
    if (captures_here()) return forbid();
    for (stream *s = streams; s; s = s->next) /* the driver waits */
        land(s);
    for (size_t i = 0; i < n_pins; i++)
        if (pins[i].base == p) {
            free(p);
            pins[i] = pins[--n_pins];
            break;
        }
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    const alone now;
    size_t used = 0;
    for (size_t i = 0; i < n_allocs; i++)
        if (allocs[i].device == set_device && allocs[i].base) used += allocs[i].hi - allocs[i].lo;
    *total = emu_memory;
    *free_bytes = used < emu_memory ? emu_memory - used : 0; /* a test may have lessened it since */
    return cudaSuccess;
}

static bool room_for_one()
{
    if (n_allocs < cap_allocs) return true;
    const size_t cap = cap_allocs ? 2 * cap_allocs : 64;
    void *more = realloc(allocs, cap * sizeof *allocs);
    if (!more) return false;
    allocs = (allocation *)more;
    cap_allocs = cap;
    return true;
}

cudaError_t cudaMalloc(void **p, size_t n)
{
    const alone now;
    if (captures_here()) return forbid();
    size_t left, all;
    cudaMemGetInfo(&left, &all);
    if (n > left) return cudaErrorMemoryAllocation;
    if (!room_for_one()) return cudaErrorMemoryAllocation;
    /* 256-byte aligned as on the device; 0xff, so that floats that nobody wrote are NaN */
    emu_counted.allocations++;
    const size_t room = (n + 2 * GUARD + 511) / 256 * 256;
    unsigned char *base = (unsigned char *)aligned_alloc(256, room + 256);
    if (!base) return cudaErrorMemoryAllocation;
    memset(base, 0xff, room + 256);
    *p = base + 256;
    allocs[n_allocs++] = { (uintptr_t)*p, (uintptr_t)*p + n, base, set_device, false };
    return cudaSuccess;
}

void cu_part(void *p, size_t n)
{
    const alone now;
    const uintptr_t lo = (uintptr_t)p;
    size_t i = 0;
    while (i < n_allocs && !(allocs[i].base && lo >= allocs[i].lo && lo + n <= allocs[i].hi))
        i++;
    if (i == n_allocs || !room_for_one()) {
        snprintf(failure, sizeof failure, "a part of %zu bytes of no allocation", n);
        return;
    }
    allocs[i].cut = true;
    allocs[n_allocs++] = { lo, lo + n, nullptr, allocs[i].device, false };
}

cudaError_t cudaFree(void *p)
{
    const alone now;
    if (captures_here()) return forbid();
    uintptr_t lo = 0, hi = 0;
    for (size_t i = 0; i < n_allocs; i++)
        if ((void *)allocs[i].lo == p && allocs[i].base) {
            lo = allocs[i].lo;
            hi = allocs[i].hi;
            free(allocs[i].base);
            allocs[i] = allocs[--n_allocs];
            break;
        }
    for (size_t i = n_allocs; i-- > 0;) /* and its parts */
        if (allocs[i].lo >= lo && allocs[i].hi <= hi) allocs[i] = allocs[--n_allocs];
    return cudaSuccess;
}

/* Whether [p, p + n) lies in one cudaMalloc of the stream's device; says so where it does not. */
static bool in_one(const void *p, size_t n, cudaStream_t s, const char *what)
{
    if (on_device(p, n, stream_device(s))) return true;
    snprintf(failure, sizeof failure,
             "%s of %zu bytes outside of what cudaMalloc gave on device %d", what, n,
             stream_device(s));
    return false;
}

cudaError_t emu::run_copy(stream *s, void *dst, const void *src, size_t n, int kind)
{
    if ((kind != cudaMemcpyDeviceToHost && !in_one(dst, n, s, "a copy to")) ||
        (kind != cudaMemcpyHostToDevice && !in_one(src, n, s, "a copy from")))
        return cudaGetLastError();
    emu_counted.copies++;
    order_copied(s);
    memcpy(dst, src, n);
    if (kind == cudaMemcpyDeviceToDevice) return cudaSuccess;
    const bool down = kind == cudaMemcpyDeviceToHost;
    const void *host = down ? dst : src;
    if (is_pinned(host, n)) return take_off(s, host, n, down);
    emu_counted.waits++;
    land(s);
    return cudaGetLastError();
}
cudaError_t emu::run_memset(stream *s, void *dst, int v, size_t n)
{
    if (!in_one(dst, n, s, "a memset")) return cudaGetLastError();
    order_copied(s);
    memset(dst, v, n);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, int kind, cudaStream_t queue)
{
    const alone now;
    stream *s = (stream *)queue;
    if (!s) return legacy("a copy");
    if (s->captures) return record_copy(s, dst, src, n, kind);
    return run_copy(s, dst, src, n, kind);
}
cudaError_t cudaMemcpy2DAsync(void *dst, size_t ldd, const void *src, size_t lds, size_t n,
                              size_t rows, int kind, cudaStream_t s)
{
    cudaError_t e = cudaSuccess;
    for (size_t i = 0; i < rows && e == cudaSuccess; i++)
        e = cudaMemcpyAsync((char *)dst + i * ldd, (const char *)src + i * lds, n, kind, s);
    return e;
}
cudaError_t cudaMemsetAsync(void *dst, int v, size_t n, cudaStream_t queue)
{
    const alone now;
    stream *s = (stream *)queue;
    if (!s) return legacy("a memset");
    return s->captures ? record_memset(s, dst, v, n) : run_memset(s, dst, v, n);
}
static char said[sizeof failure]; /* the failure that cudaGetLastError has taken */
cudaError_t cudaGetLastError(void)
{
    if (!failure[0]) return cudaSuccess;
    memcpy(said, failure, sizeof said);
    failure[0] = 0;
    return cudaErrorLaunchFailure;
}
const char *cudaGetErrorString(cudaError_t e)
{
    if (e == cudaSuccess) return "no error";
    if (e == cudaErrorInvalidDevice) return "no such device";
    if (const char *why = capture_error(e)) return why;
    return e == cudaErrorMemoryAllocation ? "out of memory" : said;
}
