/* tests/support/guard.h - a copy of some bytes that ends exactly where an unreadable page begins, so that a
 * parser that reads one byte too many dies. */
#ifndef LLMQ_TESTS_SUPPORT_GUARD_H
#define LLMQ_TESTS_SUPPORT_GUARD_H

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

typedef struct {
    uint8_t *base, *data;
    size_t mapped;
} guard_buf;

static inline guard_buf guard_copy(const void *src, size_t n)
{
    const size_t page = 4096, body = (n + page - 1) / page * page;
    guard_buf g = { .mapped = body + page };
    void *p = mmap(NULL, g.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return (guard_buf){ 0 };
    g.base = p;
    g.data = g.base + body - n;
    if (n) memcpy(g.data, src, n);
    mprotect(g.base + body, page, PROT_NONE);
    return g;
}

static inline void guard_free(guard_buf *g)
{
    if (g->base) munmap(g->base, g->mapped);
}

#endif
