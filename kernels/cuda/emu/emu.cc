/* kernels/cuda/emu/emu.cc - fibres, barriers and the records of what threads touch; see emu.h. */
#include "kernels/cuda/emu/emu_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

namespace emu
{

point thread_idx, block_idx, block_dim, grid_dim;

enum {
    STACK = 64 << 10,
    ARRAYS_MAX = 16,
    COPIES_MAX = 64, /* waiting copies of one thread */
    PEER_BYTES = 64,
    GUARD = 64 /* bytes around an allocation that belong to nobody */
};

pthread_mutex_t in_runtime = PTHREAD_MUTEX_INITIALIZER;
thread_local int times_in;

/* ---- failure ---- */
char failure[400];

static void leave_block(void);

/* ---- device memory ---- */
struct allocation {
    uintptr_t lo, hi;
    void *base; /* NULL: a part of another */
    int device;
    bool cut; /* has parts: it counts as memory that is taken, and nothing is reached through it */
};
static allocation *allocs;
static size_t n_allocs, cap_allocs, last_found;
static int running; /* the device of the launch */

static bool holds(const allocation *a, uintptr_t at)
{
    return at >= a->lo && at < a->hi && a->device == running && !a->cut;
}

span find_global(const void *p)
{
    const uintptr_t at = (uintptr_t)p;
    if (last_found < n_allocs && holds(&allocs[last_found], at))
        return { allocs[last_found].lo, allocs[last_found].hi };
    for (size_t i = 0; i < n_allocs; i++)
        if (holds(&allocs[i], at)) {
            last_found = i;
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

/* ---- threads ---- */
enum state { RUNS, AT_BLOCK, AT_WARP, AT_BAR, AT_MEET, ENDED };

struct copy {
    void *dst;
    const void *src;
    span d, s;
    size_t n;
    bool zero, constant;
    int group;
};

struct fibre {
    state st;
    const char *file, *what; /* where it waits */
    int line;
    unsigned met; /* warp operations so far */
    int bar;      /* the mbarrier, or the id of the barrier, that it waits for */
    unsigned parity, n_meet;
    unsigned char in[2][PEER_BYTES];
    jmp_buf at;
    bool started;
    bool early; /* of a launch that follows, before cu_after */
    ucontext_t first;
    void *stack;
    copy copies[COPIES_MAX];
    int n_copies, group; /* group: the one that copies now join */
};

/* What is known of one byte of shared memory. Times are counts of barriers: of the block's, and of
 * the warp's __syncwarp. */
struct byte_log {
    bool written;
    int16_t writer, reader; /* -1: none since the block's last barrier */
    uint32_t w_block, w_warp, r_block, r_warp;
    bool many, far; /* more than one reader at r_warp; readers of more than one warp */
};

struct array {
    const void *key;
    span s;
};

static fibre *fibres;
int n_threads;
int current;
static jmp_buf scheduler;
static const work *launched; /* the launch that runs */
uint32_t block_time, warp_time[MAX_THREADS / WARP];
unsigned char *shared;
static byte_log *shared_log;
static array arrays[ARRAYS_MAX];
static int n_arrays;
static size_t shared_used, dynamic_bytes;

void fail(const char *fmt, ...)
{
    char what[240];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (!failure[0])
        snprintf(failure, sizeof failure, "block (%u,%u,%u), thread %d: %s", block_idx.x,
                 block_idx.y, block_idx.z, current, what);
    leave_block();
}

/* ---- the records ---- */
void inside(const void *p, size_t n, size_t align, span s)
{
    const uintptr_t at = (uintptr_t)p;
    if (at < s.lo || at + n > s.hi)
        fail("bounds: %zu bytes at offset %lld of an allocation of %zu in device memory", n,
             (long long)(at - s.lo), (size_t)(s.hi - s.lo));
    if (at % align) fail("bounds: address %% %zu is %zu", align, (size_t)(at % align));
}

void touch_constant(const void *p, size_t n, size_t align, span s)
{
    inside(p, n, align, s);
    order_constant(p, n, fibres[current].early);
}

static void touch_any(const void *p, size_t n, size_t align, span s)
{
    if (fibres[current].early) fail("follow: device memory is touched before cu_after");
    inside(p, n, align, s);
}

void read_global(const void *p, size_t n, size_t align, span s)
{
    touch_any(p, n, align, s);
    order_read(p, n);
}

void write_global(const void *p, const void *value, size_t n, size_t align, span s)
{
    touch_any(p, n, align, s);
    order_write(p, value, n);
}

int add(int *p, int v, span s)
{
    touch_any(p, sizeof *p, alignof(int), s);
    order_add(p);
    emu_counted.adds++;
    const int old = *p;
    *p = old + v;
    return old;
}

void follow_begin() { fibres[current].early = true; }
void follow_after() { fibres[current].early = false; }
void follow_end()
{
    if (fibres[current].early) fail("follow: a thread ends without cu_after");
}

static void race(const char *how, size_t off, int other)
{
    fail("race: %s byte %zu of shared memory, which thread %d touched without a barrier between",
         how, off, other);
}

static void touch_byte(size_t off, bool write)
{
    byte_log *b = &shared_log[off];
    const int warp = current / WARP;
    const uint32_t now = warp_time[warp];
    if (!write && !b->written) fail("unwritten: reads byte %zu of shared memory", off);
    if (b->written && b->w_block == block_time && b->writer != current &&
        (b->writer / WARP != warp || b->w_warp == now))
        race(write ? "writes" : "reads", off, b->writer);
    const bool read_now = b->reader >= 0 && b->r_block == block_time;
    if (!write) {
        if (!read_now) {
            b->many = b->far = false;
        } else {
            b->far = b->far || b->reader / WARP != warp;
            b->many = b->r_warp == now && (b->many || b->reader != current);
        }
        b->reader = (int16_t)current;
        b->r_block = block_time;
        b->r_warp = now;
        return;
    }
    if (read_now && (b->far || b->reader / WARP != warp ||
                     (b->r_warp == now && (b->many || b->reader != current))))
        race("writes", off, b->reader);
    b->written = true;
    b->writer = (int16_t)current;
    b->w_block = block_time;
    b->w_warp = now;
}

void touch_shared(const void *p, size_t n, size_t align, span s, bool write)
{
    const uintptr_t at = (uintptr_t)p;
    if (at < s.lo || at + n > s.hi)
        fail("bounds: %zu bytes at offset %lld of an array of %zu in shared memory", n,
             (long long)(at - s.lo), (size_t)(s.hi - s.lo));
    if (at % align) fail("bounds: shared address %% %zu is %zu", align, (size_t)(at % align));
    engine_touch((size_t)(at - (uintptr_t)shared), n, write);
    for (size_t i = 0; i < n; i++)
        touch_byte((size_t)(at - (uintptr_t)shared) + i, write);
}

void engine_wrote(size_t off, size_t n)
{
    const byte_log engine = { true, -1, -1, 0, 0, 0, 0, false, false };
    for (size_t i = off; i < off + n; i++)
        shared_log[i] = engine;
}

void product_reads(size_t off, size_t n)
{
    if (off + n > dynamic_bytes)
        fail("bounds: a product reads byte %zu of %zu in shared memory", off, dynamic_bytes);
    engine_touch(off, n, false);
    for (size_t i = off; i < off + n; i++)
        if (!shared_log[i].written) fail("unwritten: a product reads byte %zu of shared memory", i);
    engine_handed(off);
}

void *shared_static(const void *key, size_t bytes, size_t align, span *s)
{
    for (int i = 0; i < n_arrays; i++)
        if (arrays[i].key == key) {
            *s = arrays[i].s;
            return (void *)s->lo;
        }
    const size_t at = (shared_used + align - 1) / align * align;
    if (n_arrays == ARRAYS_MAX || at + bytes > SHARED_MAX) fail("shared memory: no room");
    shared_used = at + bytes;
    shared_made(running, launched, shared_used - dynamic_bytes);
    *s = { (uintptr_t)shared + at, (uintptr_t)shared + at + bytes };
    arrays[n_arrays++] = { key, *s };
    return (void *)s->lo;
}

void *shared_dynamic(span *s)
{
    *s = { (uintptr_t)shared, (uintptr_t)shared + dynamic_bytes };
    return shared;
}

/* ---- waiting ---- */
static void run_as(int t)
{
    current = t;
    thread_idx.x = (unsigned)t % block_dim.x;
    thread_idx.y = (unsigned)t / block_dim.x % block_dim.y;
    thread_idx.z = (unsigned)t / block_dim.x / block_dim.y;
}

static void wait_as(state st, const char *file, int line, const char *what)
{
    fibre *f = &fibres[current];
    f->st = st;
    f->file = file;
    f->line = line;
    f->what = what;
    if (!_setjmp(f->at)) _longjmp(scheduler, 1);
}

static void leave_block(void) { _longjmp(scheduler, 2); }

int lane() { return current % WARP; }

void warp_meet(const char *file, int line, const char *what, const void *in, size_t n)
{
    fibre *f = &fibres[current];
    if (n > PEER_BYTES) abort();
    f->met++;
    memcpy(f->in[f->met % 2], in, n); /* two in turn: slower lanes still read the one before */
    wait_as(AT_WARP, file, line, what);
}

const void *peer(int l)
{
    const fibre *me = &fibres[current];
    return fibres[current / WARP * WARP + l].in[me->met % 2];
}

void block_meet(const char *file, int line) { wait_as(AT_BLOCK, file, line, "__syncthreads"); }
void warp_order(const char *file, int line) { wait_as(AT_WARP, file, line, "__syncwarp"); }

void wait_for_bar(int i, unsigned parity, const char *file, int line)
{
    fibres[current].bar = i;
    fibres[current].parity = parity;
    wait_as(AT_BAR, file, line, "cu_bar_wait");
}
void meet(int id, int n, const char *file, int line)
{
    if (id < 1 || id > 15 || n % WARP) fail("cu_meet: barrier %d of %d threads", id, n);
    fibres[current].bar = id;
    fibres[current].n_meet = (unsigned)n;
    wait_as(AT_MEET, file, line, "cu_meet");
}

void copy_later(void *dst, span d, const void *src, span s, size_t n, bool zero, bool constant)
{
    fibre *f = &fibres[current];
    if (f->early && !constant && !zero) fail("follow: device memory is copied before cu_after");
    if (f->n_copies == COPIES_MAX) fail("cp.async: more than %d wait", COPIES_MAX);
    f->copies[f->n_copies++] = { dst, src, d, s, n, zero, constant, f->group };
}

void copy_commit() { fibres[current].group++; }

void copy_wait(int groups)
{
    fibre *f = &fibres[current];
    int kept = 0;
    for (int i = 0; i < f->n_copies; i++) {
        const copy c = f->copies[i];
        if (c.group >= f->group - groups) {
            f->copies[kept++] = c;
            continue;
        }
        if (c.constant && !c.zero) touch_constant(c.src, c.n, c.n, c.s);
        if (!c.constant && !c.zero) read_global(c.src, c.n, c.n, c.s);
        touch_shared(c.dst, c.n, c.n, c.d, true);
        if (c.zero)
            memset(c.dst, 0, c.n);
        else
            memcpy(c.dst, c.src, c.n);
    }
    f->n_copies = kept;
}

/* ---- the scheduler ---- */
static void entry()
{
    launched->body(launched->ctx);
    fibre *f = &fibres[current];
    if (f->n_copies) fail("cp.async: a copy that nobody waits for");
    engine_left();
    f->st = ENDED;
    _longjmp(scheduler, 1);
}

static void resume(int t)
{
    fibre *f = &fibres[t];
    run_as(t);
    f->st = RUNS;
    if (_setjmp(scheduler)) return;
    if (f->started) _longjmp(f->at, 1);
    f->started = true;
    getcontext(&f->first);
    f->first.uc_stack.ss_sp = f->stack;
    f->first.uc_stack.ss_size = STACK;
    f->first.uc_link = nullptr;
    makecontext(&f->first, entry, 0);
    setcontext(&f->first);
}

static bool same_place(const fibre *a, const fibre *b)
{
    return a->st == b->st && a->line == b->line && a->file == b->file;
}

static void diverged(int t, int other)
{
    const fibre *a = &fibres[t], *b = &fibres[other];
    if (failure[0]) return;
    run_as(t);
    snprintf(failure, sizeof failure,
             "block (%u,%u,%u), thread %d: divergence: waits in %s at %s:%d, thread %d %s %s",
             block_idx.x, block_idx.y, block_idx.z, t, a->what, a->file, a->line, other,
             b->st == ENDED ? "has ended" : "waits in", b->st == ENDED ? "" : b->what);
}

/* Of a barrier with a number, once as many wait as it is for. */
static bool release_meeting(int id)
{
    unsigned n = 0, want = 0;
    for (int t = 0; t < n_threads; t++)
        if (fibres[t].st == AT_MEET && fibres[t].bar == id) {
            n++;
            want = fibres[t].n_meet;
        }
    if (!n || n != want) return false;
    for (int t = 0; t < n_threads; t++)
        if (fibres[t].st == AT_MEET && fibres[t].bar == id) fibres[t].st = RUNS;
    return true;
}

/* Lets those go on who have all met; false where nobody can. */
static bool release()
{
    bool any = false;
    for (int t = 0; t < n_threads; t++)
        if (fibres[t].st == AT_BAR && bar_over(fibres[t].bar, fibres[t].parity)) {
            fibres[t].st = RUNS;
            any = true;
        }
    for (int id = 1; id < 16; id++)
        any |= release_meeting(id);
    for (int w = 0; w < n_threads; w += WARP) {
        const int end = w + WARP < n_threads ? w + WARP : n_threads;
        int t = w;
        while (t < end && fibres[t].st == AT_WARP && same_place(&fibres[t], &fibres[w]))
            t++;
        if (t < end) continue;
        if (strcmp(fibres[w].what, "__syncwarp") == 0) warp_time[w / WARP]++;
        for (t = w; t < end; t++)
            fibres[t].st = RUNS;
        any = true;
    }
    if (any) return true;
    for (int t = 0; t < n_threads; t++)
        if (fibres[t].st != AT_BLOCK || !same_place(&fibres[t], &fibres[0])) return false;
    block_time++;
    engine_met();
    for (int t = 0; t < n_threads; t++)
        fibres[t].st = RUNS;
    return true;
}

static bool all_ended()
{
    for (int t = 0; t < n_threads; t++)
        if (fibres[t].st != ENDED) return false;
    return true;
}

static void report_divergence()
{
    for (int t = 0; t < n_threads; t++) {
        if (fibres[t].st == ENDED) continue;
        if (fibres[t].st == AT_BAR) {
            char why[120];
            bar_stuck(fibres[t].bar, why, sizeof why);
            snprintf(failure, sizeof failure, "block (%u,%u,%u), thread %d: mbarrier: %s, at %s:%d",
                     block_idx.x, block_idx.y, block_idx.z, t, why, fibres[t].file, fibres[t].line);
            return;
        }
        const int w = t / WARP * WARP, end = w + WARP < n_threads ? w + WARP : n_threads;
        const bool warp = fibres[t].st == AT_WARP;
        for (int o = warp ? w : 0; o < (warp ? end : n_threads); o++)
            if (!same_place(&fibres[t], &fibres[o])) {
                diverged(t, o);
                return;
            }
    }
}

static void run_block()
{
    n_arrays = 0;
    shared_used = dynamic_bytes;
    block_time = 1;
    engine_start(n_threads);
    memset(warp_time, 0, sizeof warp_time);
    memset(shared_log, 0, sizeof *shared_log * SHARED_MAX);
    for (int t = 0; t < n_threads; t++) {
        fibre *f = &fibres[t];
        f->st = RUNS;
        f->started = f->early = false;
        f->met = 0;
        f->n_copies = f->group = 0;
    }
    for (;;) {
        for (int t = 0; t < n_threads && !failure[0]; t++)
            if (fibres[t].st == RUNS) resume(t);
        if (failure[0]) return;
        if (all_ended()) {
            if (const char *left = engine_end()) snprintf(failure, sizeof failure, "%s", left);
            return;
        }
        if (!release()) {
            report_divergence();
            return;
        }
    }
}

static bool make_room(int threads)
{
    if (!fibres) {
        fibres = (fibre *)calloc(MAX_THREADS, sizeof *fibres);
        shared = (unsigned char *)aligned_alloc(1024, SHARED_MAX + 1024);
        shared_log = (byte_log *)calloc(SHARED_MAX, sizeof *shared_log);
    }
    for (int t = 0; fibres && t < threads; t++)
        if (!fibres[t].stack && !(fibres[t].stack = malloc(STACK))) return false;
    return fibres && shared && shared_log && engine_start(threads);
}

cudaError_t run_launch(stream *on, const work *w)
{
    on->busy = true;
    if (emu_launches == 0 && emu_lost_late) {
        on->lost = true;
        emu_launches = SIZE_MAX;
    }
    if (on->lost || on->waits) return cudaSuccess; /* nothing comes of it */
    if (emu_launches == 0) {
        snprintf(failure, sizeof failure, "the device is lost");
        return cudaGetLastError();
    }
    emu_launches--;
    running = on->device;
    launched = w;
    n_threads = (int)(w->block.x * w->block.y * w->block.z);
    dynamic_bytes = w->shared;
    block_dim = { w->block.x, w->block.y, w->block.z };
    grid_dim = { w->grid.x, w->grid.y, w->grid.z };
    if (!launchable(on->device, w)) return cudaGetLastError(); /* also a graph's, later */
    if (!make_room(n_threads)) return cudaErrorMemoryAllocation;
    const uint32_t blocks = w->grid.x * w->grid.y * w->grid.z;
    const bool falls = falling(on->device, w);
    order_start(on, w->follows);
    for (uint32_t i = 0; i < blocks && !failure[0]; i++) {
        const uint32_t at = falls ? blocks - 1 - i : i;
        block_idx = { at % w->grid.x, at / w->grid.x % w->grid.y, at / w->grid.x / w->grid.y };
        order_block(at);
        run_block();
    }
    return cudaGetLastError();
}

cudaError_t launch(void *queue, const work *w)
{
    const alone now;
    if (!queue) return legacy("a launch");
    stream *on = (stream *)queue;
    if (!own_stream(queue, "a launch") || !launchable(on->device, w)) return cudaGetLastError();
    if (on->captures) return record_launch(on, w);
    emu_counted.launches++;
    return run_launch(on, w);
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

/* ---- the matrix unit ---- */
float emu::from_f16(unsigned h)
{
    const unsigned e = h >> 10 & 31, m = h & 1023;
    const float f = e == 0    ? (float)m * 0x1p-24f
                    : e == 31 ? (m ? NAN : INFINITY)
                              : ldexpf((float)(m | 1024), (int)e - 25);
    return h & 0x8000 ? -f : f;
}
float emu::from_bf16(unsigned h)
{
    const unsigned u = h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

template <float READ(unsigned)>
static void mma(float d[4], const unsigned a[4], const unsigned b[2], const char *file, int line,
                const char *what)
{
    struct frag {
        float a[8], b[4];
    } in;
    for (int i = 0; i < 8; i++)
        in.a[i] = READ(a[i / 2] >> 16 * (i % 2) & 0xffff);
    for (int i = 0; i < 4; i++)
        in.b[i] = READ(b[i / 2] >> 16 * (i % 2) & 0xffff);
    emu::warp_meet(file, line, what, &in, sizeof in);
    const int g = emu::lane() / 4, c = emu::lane() % 4;
    for (int i = 0; i < 4; i++) {
        const int row = i / 2, col = 2 * c + i % 2;
        for (int k = 0; k < 16; k++) {
            const frag *fa = (const frag *)emu::peer(4 * g + k % 8 / 2);
            const frag *fb = (const frag *)emu::peer(4 * col + k % 8 / 2);
            d[i] = fmaf(fa->a[2 * (2 * (k / 8) + row) + k % 2], fb->b[2 * (k / 8) + k % 2], d[i]);
        }
    }
}
void cu_mma_bf16(float d[4], const unsigned a[4], const unsigned b[2], const char *file, int line)
{
    mma<emu::from_bf16>(d, a, b, file, line, "cu_mma_bf16");
}
void cu_mma_f16(float d[4], const unsigned a[4], const unsigned b[2], const char *file, int line)
{
    mma<emu::from_f16>(d, a, b, file, line, "cu_mma_f16");
}
void cu_mma_u8s8(int d[4], const unsigned a[4], const unsigned b[2], const char *file, int line)
{
    struct frag {
        unsigned a[4], b[2];
    } in;
    memcpy(in.a, a, sizeof in.a);
    memcpy(in.b, b, sizeof in.b);
    emu::warp_meet(file, line, "cu_mma_u8s8", &in, sizeof in);
    const int g = emu::lane() / 4, c = emu::lane() % 4;
    for (int i = 0; i < 4; i++) {
        const int row = i / 2, col = 2 * c + i % 2;
        for (int k = 0; k < 32; k++) {
            const int from = k % 16 / 4, half = k / 16, bits = k % 4 * 8;
            const frag *fa = (const frag *)emu::peer(4 * g + from);
            const frag *fb = (const frag *)emu::peer(4 * col + from);
            d[i] += (int)(fa->a[2 * half + row] >> bits & 255u) *
                    (int8_t)(uint8_t)(fb->b[half] >> bits & 255u);
        }
    }
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
