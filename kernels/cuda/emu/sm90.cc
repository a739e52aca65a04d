/* kernels/cuda/emu/sm90.cc - barriers of the copy engine, its copies, products of warpgroups; see
 * emu_sm90.h. */
#include "kernels/cuda/emu/emu_sm90.h"

#include "kernels/cuda/emu/emu_int.h"

#include <stdio.h>
#include <stdlib.h>

namespace emu
{

enum {
    BARS = 32,
    BULKS = 64,    /* copies under way to one barrier */
    PRODUCTS = 64, /* of one thread, not waited for */
    GRAIN = 16,    /* bytes: what the engine writes at least */
    GRAINS = SHARED_MAX / GRAIN,
    WARPS = MAX_THREADS / WARP
};

struct bulk_copy {
    size_t dst, n;
    const void *src;
};
struct bar {
    size_t at;
    unsigned count, pending, phase; /* phase: how many are over */
    int64_t bytes;                  /* that are expected */
    bulk_copy copies[BULKS];
    int n_copies;
    uint32_t told[WARPS],
        told_now[WARPS]; /* what arrivals have told, of phases that are over; of this */
};
/* Of GRAIN bytes. Epochs of a warp begin at 1 and end with its arrivals. */
struct grain {
    uint32_t read[WARPS]; /* the epoch of its last read */
    int bar;              /* that what is there came by; -1: not by the engine */
    unsigned phase;
    bool flying;
    int writer; /* else the thread; its warp's epoch, and its fences, then */
    uint32_t written, fences;
    uint32_t block; /* whose all this is; of another one it is nothing */
};
enum {
    N_MOST = 256,
    D_MOST = N_MOST / 2,
    UNDER_WAY = 0x7fc0dead
}; /* floats of a lane; a NaN: what d holds meanwhile */
struct product {
    float *d;
    const unsigned *from; /* where its a was */
    unsigned a[16];       /* rows g, g + 8 of 16 k: four words of each lane of the quad */
    uint64_t b;
    int N, group;
    bool mn, add, f16;
    bool first;        /* of those under way, of its d, which then is in */
    float was[D_MOST]; /* this */
};
struct pending {
    product *list;
    int n, group;
    bool begun; /* cu_wgmma_begin, since the last group or wait */
};

static bar *bars;
int bars_made;
static grain *grains;
static uint32_t blocks; /* so far */
static uint32_t epoch[WARPS],
    known[WARPS][WARPS],             /* known: of another warp's epochs, that they ended */
    handed[WARPS][WARPS];            /* ... when this one called cu_fence_async */
static unsigned waited[WARPS][BARS]; /* phases of a barrier that a warp has seen end */
static uint32_t fences[MAX_THREADS]; /* of a thread: cu_fence_async */
static pending *products;
enum { GROUP = 128, REGISTERS = 64 << 10 };
static int regs[MAX_THREADS / GROUP]; /* that a thread of each warpgroup has asked for; 0: not */

bool engine_start(int threads)
{
    if (!products) products = (pending *)calloc(MAX_THREADS, sizeof *products);
    for (int t = 0; products && t < threads; t++)
        products[t] = { products[t].list, 0, 0, false };
    bars_made = 0;
    blocks++;
    memset(regs, 0, sizeof regs);
    return products;
}

unsigned shared_at(const void *p) { return (unsigned)((uintptr_t)p - (uintptr_t)shared); }

static int warp_now() { return current / WARP; }

static grain *grain_of(size_t i)
{
    grain *r = &grains[i];
    if (r->block == blocks) return r;
    memset(r, 0, sizeof *r);
    r->bar = -1;
    r->block = blocks;
    return r;
}

static bar *bar_of(const void *p)
{
    for (int i = 0; i < bars_made; i++)
        if (bars[i].at == shared_at(p)) return &bars[i];
    fail("mbarrier: none was made at byte %u of shared memory", shared_at(p));
    return nullptr;
}

void bar_init(const void *p, unsigned n)
{
    if (!bars) bars = (bar *)calloc(BARS, sizeof *bars);
    if (!grains) grains = (grain *)calloc(GRAINS, sizeof *grains);
    if (!bars || !grains || bars_made == BARS) fail("mbarrier: more than %d", BARS);
    if (bars_made == 0) {
        for (int w = 0; w < WARPS; w++)
            epoch[w] = 1;
        memset(known, 0, sizeof known);
        memset(handed, 0, sizeof handed);
        memset(waited, 0, sizeof waited);
        memset(fences, 0, sizeof fences);
    }
    memset(&bars[bars_made], 0, sizeof *bars);
    bars[bars_made].at = shared_at(p);
    bars[bars_made].count = bars[bars_made].pending = n;
    bars_made++;
}

/* The phase ends once all have arrived and all bytes are there: only then are they copied. */
static void try_end(bar *b)
{
    int64_t coming = 0;
    for (int i = 0; i < b->n_copies; i++)
        coming += (int64_t)b->copies[i].n;
    if (b->pending || coming != b->bytes) return;
    for (int i = 0; i < b->n_copies; i++) {
        const bulk_copy *c = &b->copies[i];
        memcpy(shared + c->dst, c->src, c->n);
        engine_wrote(c->dst, c->n);
        for (size_t g = c->dst / GRAIN; g < (c->dst + c->n) / GRAIN; g++) {
            grain *r = grain_of(g);
            memset(r->read, 0, sizeof r->read);
            r->flying = false;
            r->bar = (int)(b - bars);
            r->phase = b->phase;
        }
    }
    b->n_copies = 0;
    b->bytes = 0;
    memcpy(b->told, b->told_now, sizeof b->told);
    b->pending = b->count;
    b->phase++;
}

void bar_arrive(const void *p, unsigned bytes)
{
    bar *b = bar_of(p);
    if (!b->pending) fail("mbarrier: more arrivals than the %u it counts", b->count);
    b->pending--;
    b->bytes += bytes;
    const int w = warp_now();
    b->told_now[w] = epoch[w]++;
    for (int o = 0; o < WARPS; o++)
        if (o != w && known[w][o] > b->told_now[o]) b->told_now[o] = known[w][o];
    try_end(b);
}

/* Whether a wait for the phase of this parity is over. */
bool bar_over(int i, unsigned parity) { return (bars[i].phase & 1) != parity; }

void bar_wait(const void *p, unsigned parity, const char *file, int line)
{
    bar *b = bar_of(p);
    const int i = (int)(b - bars), w = warp_now();
    if (!bar_over(i, parity)) wait_for_bar(i, parity, file, line);
    for (int o = 0; o < WARPS; o++)
        if (b->told[o] > known[w][o]) known[w][o] = b->told[o];
    if (b->phase > waited[w][i]) waited[w][i] = b->phase;
}

void bar_stuck(int i, char *why, size_t n)
{
    int64_t bytes = bars[i].bytes;
    for (int k = 0; k < bars[i].n_copies; k++)
        bytes -= (int64_t)bars[i].copies[k].n;
    snprintf(why, n, "waits for an mbarrier, of which %u arrivals and %lld bytes are missing",
             bars[i].pending, (long long)bytes);
}

/* All threads have met: each warp knows what any does. */
void engine_met()
{
    if (!bars_made) return;
    for (int w = 0; w < WARPS; w++)
        for (int o = 0; o < WARPS; o++) {
            known[w][o] = epoch[o];
            for (int i = 0; i < bars_made; i++)
                if (waited[o][i] > waited[w][i]) waited[w][i] = waited[o][i];
        }
    for (int w = 0; w < WARPS; w++)
        epoch[w]++;
}

/* Warp w is about to write what others may still read. */
static void overwrites(size_t off, const grain *r, int w)
{
    for (int o = 0; o * WARP < n_threads; o++)
        if (o != w && r->read[o] > known[w][o])
            fail("overrun: byte %zu of shared memory is written, which warp %d may still read", off,
                 o);
}

void engine_fence()
{
    fences[current]++;
    memcpy(handed[warp_now()], known[warp_now()], sizeof known[0]);
}

void engine_handed(size_t off)
{
    if (!bars_made) return;
    const grain *r = grain_of(off / GRAIN);
    const int w = warp_now(), from = r->writer / WARP;
    if (r->bar >= 0) return;
    if (fences[r->writer] == r->fences && (from == w || r->written > handed[w][from]))
        fail("proxy: a product reads byte %zu of shared memory, which thread %d wrote", off,
             r->writer);
    if (from != w && r->written > known[w][from])
        fail("unwaited: a product reads byte %zu of shared memory, which thread %d wrote", off,
             r->writer);
}

void engine_touch(size_t off, size_t n, bool write)
{
    if (!bars_made) return;
    const int w = warp_now();
    for (size_t g = off / GRAIN; g <= (off + n - 1) / GRAIN; g++) {
        grain *r = grain_of(g);
        if (r->flying)
            fail("flying: %s byte %zu of shared memory while a bulk copy writes there",
                 write ? "writes" : "reads", off);
        if (write) {
            overwrites(off, r, w);
            r->bar = -1;
            r->writer = current;
            r->written = epoch[w];
            r->fences = fences[current];
            continue;
        }
        if (r->bar >= 0 && waited[w][r->bar] <= r->phase)
            fail("unwaited: reads byte %zu of shared memory, which came by an mbarrier that this "
                 "warp has not waited for",
                 off);
        r->read[w] = epoch[w];
    }
}

void bulk(void *dst, span d, const void *src, span s, size_t n, const void *on, bool constant)
{
    bar *b = bar_of(on);
    const size_t at = shared_at(dst);
    const int w = warp_now();
    if (n % GRAIN || !n) fail("bulk: %zu bytes", n);
    if (constant)
        touch_constant(src, n, GRAIN, s);
    else
        read_global(src, n, GRAIN, s);
    if ((uintptr_t)dst < d.lo || (uintptr_t)dst + n > d.hi || (uintptr_t)dst % GRAIN)
        fail("bounds: a bulk copy of %zu bytes to offset %lld of %zu in shared memory", n,
             (long long)((uintptr_t)dst - d.lo), (size_t)(d.hi - d.lo));
    if (b->n_copies == BULKS) fail("bulk: more than %d under way", BULKS);
    for (size_t g = at / GRAIN; g < (at + n) / GRAIN; g++) {
        grain *r = grain_of(g);
        if (r->flying) fail("flying: two bulk copies to byte %zu of shared memory", at);
        overwrites(at, r, w);
        r->flying = true;
    }
    b->copies[b->n_copies++] = { at, n, src };
    try_end(b);
}

/* ---- products ---- */
/* Where eight elements of b lie from this one on: along mn where it is by k, else along k. */
static size_t grain_at(uint64_t desc, int mn, int k, bool by_k)
{
    const size_t start = (size_t)(desc & 0x3fff) << 4, lead = (size_t)(desc >> 16 & 0x3fff) << 4,
                 stride = (size_t)(desc >> 32 & 0x3fff) << 4;
    if (desc >> 62 != 1 || stride != 1024 || (desc >> 46 & 0xffff))
        fail("wgmma: a descriptor of another kind, %llx", (unsigned long long)desc);
    const size_t plain =
        start + (by_k ? (size_t)(k / 8) * stride + (size_t)(k % 8) * 128 +
                            (size_t)(mn / 64) * lead + (size_t)(mn % 64) * 2
                      : (size_t)(mn / 8) * stride + (size_t)(mn % 8) * 128 + (size_t)k * 2);
    return plain ^ (plain >> 3 & 0x70);
}

/* b of the i-th product of those that the warp has waited for, as numbers: read by its first lane, for all
 * of them, as no other warp runs meanwhile. */
static const float (*matrix(const product *p, int i))[16]
{
    static struct {
        uint32_t block;
        int warp, i;
        unsigned met;
        float of[N_MOST][16];
    } last;
    if (last.block == blocks && last.warp == warp_now() && last.i == i && last.met == warp_met())
        return last.of;
    last.block = 0;
    for (int mn = 0; mn < p->N; mn += p->mn ? 8 : 1)
        for (int k = 0; k < 16; k += p->mn ? 1 : 8) {
            const size_t at = grain_at(p->b, mn, k, p->mn);
            uint16_t v[8];
            product_reads(at, sizeof v);
            memcpy(v, shared + at, sizeof v);
            for (int e = 0; e < 8; e++)
                last.of[p->mn ? mn + e : mn][p->mn ? k : k + e] =
                    p->f16 ? from_f16(v[e]) : from_bf16(v[e]);
        }
    last.block = blocks;
    last.warp = warp_now();
    last.i = i;
    last.met = warp_met();
    return last.of;
}

/* d is NaN until the wait: who reads it has that, who writes it is found there. */
static void hide(product *p)
{
    const unsigned mark = UNDER_WAY;
    p->first = true;
    memcpy(p->was, p->d, (size_t)p->N / 2 * sizeof(float));
    for (int i = 0; i < p->N / 2; i++)
        memcpy(&p->d[i], &mark, sizeof mark);
}

static void show(const product *p)
{
    for (int i = 0; i < p->N / 2; i++) {
        unsigned bits;
        memcpy(&bits, &p->d[i], sizeof bits);
        if (bits != UNDER_WAY) fail("wgmma: d[%d] is written while a product is under way", i);
    }
    memcpy(p->d, p->was, (size_t)p->N / 2 * sizeof(float));
}

static void finish(const product *p, int i)
{
    const int c = lane() % 4;
    if (memcmp(p->from, &p->a[4 * c], 4 * sizeof(unsigned)) != 0)
        fail("wgmma: a is written while its product is under way");
    if (p->first) show(p);
    const float(*b)[16] = matrix(p, i);
    float a[2][16];
    for (int r = 0; r < 2; r++)
        for (int k = 0; k < 16; k++) {
            const unsigned word = p->a[4 * (k % 8 / 2) + 2 * (k / 8) + r] >> 16 * (k % 2) & 0xffff;
            a[r][k] = p->f16 ? from_f16(word) : from_bf16(word);
        }
    for (int n = 0; n < p->N / 8; n++) { /* of each eight columns two are this lane's */
        const float *at[2] = { b[8 * n + 2 * c], b[8 * n + 2 * c + 1] };
        float *d = &p->d[4 * n], sum[4];
        for (int j = 0; j < 4; j++)
            sum[j] = p->add ? d[j] : 0;
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 4; j++)
                sum[j] = fmaf(a[j / 2][k], at[j % 2][k], sum[j]);
        memcpy(d, sum, sizeof sum);
    }
}

void wgmma(float *d, int N, const unsigned a[4], uint64_t b, bool mn, bool add, bool f16,
           const char *file, int line)
{
    struct operands {
        unsigned a[4];
        uint64_t b;
        bool add;
    } in;
    pending *mine = &products[current];
    memset(&in, 0, sizeof in);
    memcpy(in.a, a, sizeof in.a);
    in.b = b;
    in.add = add;
    warp_meet(file, line, "wgmma", &in, sizeof in);
    if (!mine->list && !(mine->list = (product *)malloc(PRODUCTS * sizeof(product)))) abort();
    if (mine->n == PRODUCTS) fail("wgmma: more than %d products are not waited for", PRODUCTS);
    if (!mine->begun) fail("wgmma: a product without cu_wgmma_begin before its group");
    product *p = &mine->list[mine->n++];
    bool first = true;
    for (int i = 0; i < mine->n - 1; i++)
        first = first && mine->list[i].d != d;
    p->d = d;
    p->from = a;
    p->b = b;
    p->N = N;
    p->group = mine->group;
    p->mn = mn;
    p->add = add;
    p->f16 = f16;
    p->first = false;
    if (first) hide(p);
    const brought *lanes = peers();
    for (int l = 0; l < 32; l++) {
        const operands *other = (const operands *)lanes[l];
        if (other->b != b || other->add != add) fail("wgmma: lane %d has another matrix", l);
        if (l / 4 == lane() / 4) memcpy(&p->a[4 * (l % 4)], other->a, sizeof other->a);
    }
}

void wgmma_begin(const char *file, int line)
{
    products[current].begun = true;
    warp_meet(file, line, "a warpgroup's word", "", 1);
}

/* setmaxnreg: who asks for more waits until others have asked for less. */
void regs_meet(int each, const char *file, int line)
{
    warp_meet(file, line, "setmaxnreg", "", 1);
    if (each % 8 || each < 24 || each > 256) fail("registers: setmaxnreg of %d", each);
    regs[current / GROUP] = each;
}

/* Of all warpgroups together; who has not asked has what the block was launched with. */
static bool too_many_regs()
{
    int all = 0, asked = 0;
    for (int g = 0; g * GROUP < n_threads; g++) {
        all += (regs[g] ? regs[g] : REGISTERS / n_threads / 8 * 8) * GROUP;
        asked += regs[g];
    }
    return asked && all > REGISTERS;
}

void wgmma_commit()
{
    products[current].group++;
    products[current].begun = false;
}

void wgmma_wait(int groups, const char *file, int line)
{
    pending *mine = &products[current];
    warp_meet(file, line, "wgmma.wait_group", "", 1);
    int over = 0;
    for (; over < mine->n && mine->list[over].group < mine->group - groups; over++)
        finish(&mine->list[over], over);
    for (int i = over; i < mine->n; i++) { /* of the same d: what was the first is over */
        product *p = &mine->list[i];
        bool first = !p->first;
        for (int j = over; j < i; j++)
            first = first && mine->list[j].d != p->d;
        if (first) hide(p);
    }
    memmove(mine->list, mine->list + over, (size_t)(mine->n - over) * sizeof *mine->list);
    mine->n -= over;
    mine->begun = false;
}

/* A thread has ended. */
void engine_left()
{
    if (products[current].n) fail("wgmma: a product that nobody waits for");
}

/* All have. */
const char *engine_end()
{
    for (int i = 0; i < bars_made; i++)
        if (bars[i].n_copies) return "bulk: a copy that nobody waits for";
    if (too_many_regs())
        return "registers: warpgroups ask for more than there are: some wait for ever";
    return nullptr;
}

} // namespace emu
