/* kernels/cuda/emu/order.cc - who has written device memory in this launch, and whether who touches
 * it is ordered after that. Blocks run one after the other, of a kernel's launches in rising and in
 * falling order in turns; on a device they run as it likes.
 *
 * Threads of one block are ordered by barriers, as in shared memory. A block is ordered after what
 * another has written where that has been handed over:
 *
 *   the writer     writes; that thread's cu_fence, or a barrier and another's; cu_add, by the thread
 *                  of the fence or after a barrier
 *   the reader     cu_add on the same int, later; cu_fence by that thread, or a barrier and
 *                  another's; reads, by the thread of the fence or after a barrier
 *
 * Who writes the byte that is there already need not be ordered, and may read it then.
 * An int that cu_add was used on may be written by others too (it is set to 0 by the last one).
 * Memory that is read as unchanging (cu_ldg) must not have been written in the launch at all, nor,
 * by a launch that follows and before its cu_after, in the launch before; nor in those before that,
 * back to the first that does not follow, as each lets the next begin early. A write to what another
 * block has read is found where the writer comes first, so in every other launch. */
#include "kernels/cuda/emu/emu_int.h"

#include <stdlib.h>

namespace emu
{

enum { PAGE = 256, STAMPS = 1 << 16 };

/* The last write to a byte. */
struct mark {
    uint32_t block; /* 1 + its number; 0: none */
    uint32_t time, warp;
    uint16_t thread, fences; /* fences: of the thread, until then */
};
struct page {
    mark of[PAGE];
};
struct slot {
    uint32_t launch, page;
    uintptr_t at;
};
/* Of a launch. Whatever has another launch's number is not there. */
struct writes {
    uint32_t launch;
    const void *stream;
    bool follows;
    uint32_t stamps[STAMPS]; /* by address: launch: there may be something */
    slot *slots;
    size_t n_slots, n_pages, cap_pages;
    page **pages;
};
/* What a cu_add has handed over. */
struct handed {
    uint32_t block, covered; /* covered: writes before this time, of all its threads */
    uint16_t *fences;        /* ... and of each thread those before its fence of this number */
};
struct flag {
    uintptr_t at;
    handed *list;
    size_t n, cap;
};
/* What the running block may have been handed. */
struct taken {
    size_t flag, n; /* the first n of its list */
    int thread;
    uint32_t time;
    uint16_t fences;
};

static writes both[2], *now = &both[0], *before = &both[1];
static uint32_t n_launches, block;
static flag *flags;
static size_t n_flags, cap_flags;
static taken *takes;
static size_t n_takes, cap_takes;
/* Of each thread of the block: its fences, the time of the last one, and how many came before that
 * time. */
static uint16_t fences[MAX_THREADS], settled[MAX_THREADS];
static uint32_t fence_time[MAX_THREADS];

template <class T> static T *more(T *list, size_t n, size_t *cap)
{
    if (n < *cap) return list;
    *cap = *cap ? 2 * *cap : 64;
    T *p = (T *)realloc((void *)list, *cap * sizeof(T));
    if (!p) abort();
    return p;
}

static uint32_t *stamp(writes *w, uintptr_t at) { return &w->stamps[at / PAGE % STAMPS]; }

/* The slot of this page, or where it would be. */
static slot *slot_of(writes *w, uintptr_t at)
{
    const size_t mask = w->n_slots - 1; /* a power of two */
    size_t i = (size_t)((at / PAGE) * 0x9e3779b97f4a7c15u >> 20) & mask;
    while (w->slots[i].launch == w->launch && w->slots[i].at != at)
        i = (i + 1) & mask;
    return &w->slots[i];
}

static mark *find(writes *w, uintptr_t at)
{
    if (*stamp(w, at) != w->launch || !w->n_slots) return nullptr;
    const slot *s = slot_of(w, at / PAGE * PAGE);
    return s->launch == w->launch ? &w->pages[s->page]->of[at % PAGE] : nullptr;
}

static void grow(writes *w)
{
    slot *old = w->slots;
    const size_t n = w->n_slots;
    w->n_slots = n ? 2 * n : 1024;
    w->slots = (slot *)calloc(w->n_slots, sizeof *w->slots);
    if (!w->slots) abort();
    for (size_t i = 0; i < n; i++)
        if (old[i].launch == w->launch) *slot_of(w, old[i].at) = old[i];
    free(old);
}

static mark *make(writes *w, uintptr_t at)
{
    if (mark *m = find(w, at)) return m;
    if (2 * (w->n_pages + 1) > w->n_slots) grow(w);
    const size_t had = w->cap_pages;
    w->pages = more(w->pages, w->n_pages, &w->cap_pages);
    for (size_t i = had; i < w->cap_pages; i++)
        w->pages[i] = nullptr;
    page **p = &w->pages[w->n_pages];
    if (!*p && !(*p = (page *)malloc(sizeof **p))) abort();
    memset(*p, 0, sizeof **p);
    *slot_of(w, at / PAGE * PAGE) = { w->launch, (uint32_t)w->n_pages++, at / PAGE * PAGE };
    *stamp(w, at) = w->launch;
    return &(*p)->of[at % PAGE];
}

static void join(writes *to, const writes *from)
{
    for (size_t i = 0; i < from->n_slots; i++) {
        const slot *s = &from->slots[i];
        for (int b = 0; s->launch == from->launch && b < PAGE; b++)
            if (from->pages[s->page]->of[b].block)
                *make(to, s->at + (uintptr_t)b) = from->pages[s->page]->of[b];
    }
}

void order_start(const void *stream, bool follows)
{
    if (now->follows && now->stream == stream && before->stream == stream) {
        join(before, now);
    } else {
        writes *last = now;
        now = before;
        before = last;
    }
    now->launch = ++n_launches;
    now->stream = stream;
    now->follows = follows;
    now->n_pages = 0;
    for (size_t i = 0; i < n_flags; i++) {
        for (size_t j = 0; j < flags[i].n; j++)
            free(flags[i].list[j].fences);
        free(flags[i].list);
    }
    n_flags = 0;
}

void order_copied(const void *stream)
{
    if (now->stream == stream) now->stream = nullptr;
}

void order_block(uint32_t number)
{
    block = number;
    n_takes = 0;
    memset(fences, 0, sizeof fences);
    memset(settled, 0, sizeof settled);
    memset(fence_time, 0, sizeof fence_time);
}

void order_fence()
{
    const int t = current;
    if (fence_time[t] < block_time) settled[t] = fences[t];
    fences[t]++;
    fence_time[t] = block_time;
}

static flag *flag_of(uintptr_t at)
{
    for (size_t i = 0; i < n_flags; i++)
        if (flags[i].at == at) return &flags[i];
    return nullptr;
}

static bool is_flag(uintptr_t at) { return flag_of(at / sizeof(int) * sizeof(int)); }

/* cu_add by the running thread. */
void order_add(const void *p)
{
    const int t = current;
    const uintptr_t at = (uintptr_t)p;
    flag *f = flag_of(at);
    if (!f) {
        flags = more(flags, n_flags, &cap_flags);
        flags[n_flags] = { at, nullptr, 0, 0 };
        f = &flags[n_flags++];
    }
    takes = more(takes, n_takes, &cap_takes);
    takes[n_takes++] = { (size_t)(f - flags), f->n, t, block_time, fences[t] };
    handed h = { block, 0, (uint16_t *)malloc((size_t)n_threads * sizeof(uint16_t)) };
    if (!h.fences) abort();
    for (int i = 0; i < n_threads; i++) {
        const bool known = i == t || fence_time[i] < block_time;
        h.fences[i] = known ? fences[i] : settled[i];
        if (known && fence_time[i] > h.covered) h.covered = fence_time[i];
    }
    f->list = more(f->list, f->n, &f->cap);
    f->list[f->n++] = h;
}

/* Whether the running thread knows of a fence after this. */
static bool fenced(const taken *a)
{
    for (int i = 0; i < n_threads; i++)
        if ((i == current || fence_time[i] < block_time) &&
            (i == a->thread ? fences[i] > a->fences : fence_time[i] > a->time))
            return true;
    return false;
}

static bool was_handed(const mark *m)
{
    for (size_t i = 0; i < n_takes; i++) {
        if (!fenced(&takes[i])) continue;
        for (size_t j = 0; j < takes[i].n; j++) {
            const handed *h = &flags[takes[i].flag].list[j];
            if (h->block + 1 == m->block &&
                (h->covered > m->time || h->fences[m->thread] > m->fences))
                return true;
        }
    }
    return false;
}

static void look(const mark *m, uintptr_t at, const char *how)
{
    if (!m->block) return;
    if (m->block != block + 1) {
        if (!is_flag(at) && !was_handed(m))
            fail("blocks: %s device memory that block %u of this launch has written", how,
                 m->block - 1);
        return;
    }
    if (m->thread != current && m->time == block_time &&
        (m->thread / WARP != current / WARP || m->warp == warp_time[current / WARP]))
        fail("race: %s device memory, which thread %d wrote without a barrier between", how,
             m->thread);
}

void order_write(const void *p, const void *value, size_t n)
{
    const mark own = { block + 1, block_time, warp_time[current / WARP], (uint16_t)current,
                       fences[current] };
    mark *m = nullptr;
    for (uintptr_t at = (uintptr_t)p; at < (uintptr_t)p + n; at++) {
        m = m && at % PAGE ? m + 1 : make(now, at);
        const bool same =
            *(const unsigned char *)at == ((const unsigned char *)value)[at - (uintptr_t)p];
        if (!same) look(m, at, "writes");
        *m = own;
    }
}

/* The marks of [at, *to), the part of [at, end) that is in one page; NULL: there are none. */
static const mark *marks_until(writes *w, uintptr_t at, uintptr_t end, uintptr_t *to)
{
    const uintptr_t next = at / PAGE * PAGE + PAGE;
    *to = next < end ? next : end;
    return find(w, at);
}

void order_read(const void *p, size_t n)
{
    const uintptr_t end = (uintptr_t)p + n;
    for (uintptr_t at = (uintptr_t)p, to; at < end; at = to) {
        const mark *m = marks_until(now, at, end, &to), *last = nullptr;
        for (; m && at < to; at++, m++) {
            if (!last || memcmp(m, last, sizeof *m) != 0) look(m, at, "reads");
            last = m;
        }
    }
}

static const mark *written(writes *w, uintptr_t at, size_t n)
{
    const uintptr_t end = at + n;
    for (uintptr_t to; at < end; at = to) {
        const mark *m = marks_until(w, at, end, &to);
        for (; m && at < to; at++, m++)
            if (m->block) return m;
    }
    return nullptr;
}

void order_constant(const void *p, size_t n, bool early)
{
    if (const mark *m = written(now, (uintptr_t)p, n))
        fail("constant: reads as unchanging what block %u of this launch has written",
             m->block - 1);
    if (early && before->stream == now->stream && written(before, (uintptr_t)p, n))
        fail("follow: what a launch before has written is read before cu_after");
}

} // namespace emu
