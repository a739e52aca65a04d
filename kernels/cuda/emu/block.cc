/* kernels/cuda/emu/block.cc - the block that runs: its threads, each a fibre, what they wait for, and the
 * rounds in which they go on; see emu.h. */
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
    COPIES_MAX = 64, /* waiting copies of one thread */
    PEER_BYTES = 64
};

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

static fibre *fibres;
int n_threads, current;
static jmp_buf scheduler;
static const work *launched; /* the launch that runs */
uint32_t block_time, warp_time[MAX_THREADS / WARP];

static void leave_block(void) { _longjmp(scheduler, 2); }

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
    shared_start(launched);
    block_time = 1;
    engine_start(n_threads);
    memset(warp_time, 0, sizeof warp_time);
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
    if (!fibres) fibres = (fibre *)calloc(MAX_THREADS, sizeof *fibres);
    for (int t = 0; fibres && t < threads; t++)
        if (!fibres[t].stack && !(fibres[t].stack = malloc(STACK))) return false;
    return fibres && shared_room() && engine_start(threads);
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
