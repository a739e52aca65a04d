/* base/mapped.c - what can happen to mapped files while they are read; see base/mapped.h. */
#include "base/mapped.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

/* Advice: nothing depends on it. */
static void advise(const lq_map *m, const void *p, size_t n, int what)
{
    const size_t unit = (size_t)sysconf(_SC_PAGESIZE);
    const uint8_t *base = m->data; /* begins on a page */
    size_t from = (size_t)((const uint8_t *)p - base), to = from + n;
    from = from / unit * unit;
    to = to < m->size ? lq_round_up(to, unit) : lq_round_up(m->size, unit);
    union {
        const uint8_t *c;
        void *v;
    } at = { base + from };
    madvise(at.v, to - from, what);
}

void lq_map_drop(const lq_map *m, const void *p, size_t n) { advise(m, p, n, MADV_DONTNEED); }

void lq_map_scattered(const lq_map *m, const void *p, size_t n) { advise(m, p, n, MADV_RANDOM); }

static atomic_int lost;
static size_t page; /* bytes of one */
static struct sigaction before;

/* A page that the file no longer has becomes zeros, so that the reader goes on to where it asks
 * lq_map_lost. Everything here is a plain system call or an atomic. */
static void on_bus(int sig, siginfo_t *info, void *context)
{
    (void)context;
    void *at = (void *)((uintptr_t)info->si_addr / page * page);
    if (info->si_code == BUS_ADRERR &&
        mmap(at, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) {
        atomic_store(&lost, 1);
        return;
    }
    sigaction(sig, &before, NULL);
    raise(sig);
}

void lq_map_guard(bool on)
{
    struct sigaction a = { 0 };
    if (!on) {
        sigaction(SIGBUS, &before, NULL);
        return;
    }
    page = (size_t)sysconf(_SC_PAGESIZE);
    a.sa_sigaction = on_bus;
    a.sa_flags = SA_SIGINFO;
    sigemptyset(&a.sa_mask);
    atomic_store(&lost, 0);
    sigaction(SIGBUS, &a, &before);
}

bool lq_map_lost(void) { return atomic_load(&lost) != 0; }
