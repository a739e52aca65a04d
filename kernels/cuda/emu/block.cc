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
    STACK = (64 << 10) + 2112, /* threads' frames do not meet in one set of the cache */
    COPIES_MAX = 128           /* waiting copies of one thread */
};

/* From a fibre to another. The compiler's own words for it, where it has them, are a few moves. */
#ifdef __x86_64__
typedef void *jump[5];
#define HERE(j) __builtin_setjmp(j)
#define GO(j) __builtin_longjmp(j, 1)
#else
typedef jmp_buf jump;
#define HERE(j) _setjmp(j)
#define GO(j) _longjmp(j, 1)
#endif

enum state { RUNS, AT_BLOCK, AT_WARP, AT_BAR, AT_MEET, ENDED, STATES };

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
    int line;
    const char *file, *what; /* where it waits */
    jump at;
    point idx;
    unsigned met; /* warp operations so far */
    int bar;      /* the mbarrier, or the id of the barrier, that it waits for */
    unsigned parity, n_meet;
    bool started;        /* it has a stack, and is in entry() */
    bool early;          /* of a launch that follows, before cu_after */
    int n_copies, group; /* group: the one that copies now join */
    copy *copies;
    void *stack;
};

/* Of a warp. What a lane brings to an operation is one of two in turn: slower lanes still read the one before. */
struct warp {
    uint32_t runs;   /* its lanes that go on in this round, as bits */
    int lanes, wait; /* wait: of them, AT_WARP */
    alignas(16) brought in[2][WARP];
};

static fibre *fibres;
static warp *warps;
static int in_state[STATES]; /* threads of the block */
int n_threads, current;
static jump scheduler;
static const work *launched; /* the launch that runs */
uint32_t block_time;
uint16_t warp_time[MAX_THREADS / WARP];
static const char syncwarp[] = "__syncwarp";

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
    GO(scheduler);
}

/* ---- the records ---- */
void inside(const void *p, size_t n, size_t align, span s)
{
    const uintptr_t at = (uintptr_t)p;
    if (at < s.lo || at + n > s.hi)
        fail("bounds: %zu bytes at offset %lld of an allocation of %zu in device memory", n,
             (long long)(at - s.lo), (size_t)(s.hi - s.lo));
    if (at & (align - 1)) fail("bounds: address %% %zu is %zu", align, (size_t)(at % align));
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
    thread_idx = fibres[t].idx;
}

static void entry();

/* The current thread stops here: on with the next lane of its warp, or back to the round. */
[[noreturn]] static void __attribute__((noinline)) next_lane()
{
    warp *w = &warps[current / WARP];
    if (!w->runs) GO(scheduler);
    const int t = current / WARP * WARP + __builtin_ctz(w->runs);
    fibre *f = &fibres[t];
    w->runs &= w->runs - 1;
    run_as(t);
    f->st = RUNS;
    if (f->started) GO(f->at);
    f->started = true;
    ucontext_t first;
    getcontext(&first);
    first.uc_stack.ss_sp = f->stack;
    first.uc_stack.ss_size = STACK;
    first.uc_link = nullptr;
    makecontext(&first, entry, 0);
    setcontext(&first);
    abort();
}

static void wait_as(state st, const char *file, int line, const char *what)
{
    fibre *f = &fibres[current];
    f->st = st;
    f->file = file;
    f->line = line;
    f->what = what;
    in_state[st]++;
    if (st == AT_WARP) warps[current / WARP].wait++;
    if (!HERE(f->at)) next_lane();
}

/* A fibre's whole life: block after block, of launch after launch. */
static void entry()
{
    for (;;) {
        launched->body(launched->ctx);
        if (fibres[current].n_copies) fail("cp.async: a copy that nobody waits for");
        engine_left();
        wait_as(ENDED, "", 0, "");
    }
}

int lane() { return current % WARP; }

void warp_meet(const char *file, int line, const char *what, const void *in, size_t n)
{
    if (n > PEER_BYTES) abort();
    memcpy(warps[current / WARP].in[++fibres[current].met % 2][lane()], in, n);
    wait_as(AT_WARP, file, line, what);
}

const brought *peers() { return warps[current / WARP].in[fibres[current].met % 2]; }
unsigned warp_met() { return fibres[current].met; }

void block_meet(const char *file, int line) { wait_as(AT_BLOCK, file, line, "__syncthreads"); }
void warp_order(const char *file, int line) { wait_as(AT_WARP, file, line, syncwarp); }

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

/* ---- the rounds ---- */
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

static void next_time()
{
    block_time++;
    memset(warp_time, 0, sizeof warp_time);
}

static void let_go(int t)
{
    in_state[fibres[t].st]--;
    fibres[t].st = RUNS;
    warps[t / WARP].runs |= 1u << t % WARP;
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
        if (fibres[t].st == AT_MEET && fibres[t].bar == id) let_go(t);
    return true;
}

/* Whether all from..end wait at one place. */
static bool together(int from, int end)
{
    for (int t = from + 1; t < end; t++)
        if (!same_place(&fibres[t], &fibres[from])) return false;
    return true;
}

static bool release_warp(int w)
{
    const int from = w * WARP, end = from + warps[w].lanes;
    if (warps[w].wait < warps[w].lanes || !together(from, end)) return false;
    if (fibres[from].what == syncwarp && ++warp_time[w] == 0) abort();
    for (int t = from; t < end; t++)
        let_go(t);
    warps[w].wait = 0;
    return true;
}

/* Lets those go on who have all met; false where nobody can. */
static bool release()
{
    bool any = false;
    for (int t = 0; t < n_threads && in_state[AT_BAR]; t++)
        if (fibres[t].st == AT_BAR && bar_over(fibres[t].bar, fibres[t].parity)) {
            let_go(t);
            any = true;
        }
    for (int id = 1; id < 16 && in_state[AT_MEET]; id++)
        any |= release_meeting(id);
    for (int w = 0; w * WARP < n_threads && in_state[AT_WARP]; w++)
        any |= release_warp(w);
    if (any) return true;
    if (in_state[AT_BLOCK] < n_threads || !together(0, n_threads)) return false;
    next_time();
    engine_met();
    for (int t = 0; t < n_threads; t++)
        let_go(t);
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

/* Each of the warp's lanes that goes on, until it waits. */
static void __attribute__((noinline)) run_warp(int w)
{
    current = w * WARP; /* next_lane() is asked in its name */
    if (!HERE(scheduler)) next_lane();
}

static void run_rounds()
{
    for (;;) {
        for (int w = 0; w * WARP < n_threads; w++) {
            if (warps[w].runs) run_warp(w);
            if (failure[0]) return;
        }
        if (in_state[ENDED] == n_threads) {
            if (const char *left = engine_end()) snprintf(failure, sizeof failure, "%s", left);
            return;
        }
        if (!release()) {
            report_divergence();
            return;
        }
    }
}

static void run_block()
{
    next_time();
    shared_start(launched);
    engine_start(n_threads);
    memset(in_state, 0, sizeof in_state);
    for (int w = 0; w * WARP < n_threads; w++) {
        warps[w].lanes = n_threads - w * WARP < WARP ? n_threads - w * WARP : WARP;
        warps[w].runs = ~0u >> (WARP - warps[w].lanes);
        warps[w].wait = 0;
    }
    for (int t = 0; t < n_threads; t++) {
        fibre *f = &fibres[t];
        f->early = false;
        f->met = 0;
        f->n_copies = f->group = 0;
    }
    run_rounds();
    for (int t = 0; t < n_threads && failure[0]; t++) /* they are left where they were */
        fibres[t].started = false;
}

static bool make_room(const work *w)
{
    if (!fibres) fibres = (fibre *)calloc(MAX_THREADS, sizeof *fibres);
    if (!warps) warps = (warp *)calloc(MAX_THREADS / WARP, sizeof *warps);
    for (int t = 0; fibres && t < n_threads; t++) {
        fibre *f = &fibres[t];
        const unsigned x = w->block.x, y = w->block.y, i = (unsigned)t;
        f->idx = { i % x, i / x % y, i / x / y };
        if (!f->stack && !(f->stack = malloc(STACK))) return false;
        if (!f->copies && !(f->copies = (copy *)malloc(COPIES_MAX * sizeof *f->copies)))
            return false;
    }
    return fibres && warps && shared_room() && engine_start(n_threads);
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
    if (!make_room(w)) return cudaErrorMemoryAllocation;
    const uint32_t blocks = w->grid.x * w->grid.y * w->grid.z;
    const bool falls = falling(on->device, w);
    if (block_time > UINT32_MAX / 2) {
        block_time = 0;
        shared_forget();
    }
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
