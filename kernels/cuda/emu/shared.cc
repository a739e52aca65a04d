/* kernels/cuda/emu/shared.cc - the shared memory of the block that runs: its arrays, and who touched what
 * since which barrier; see emu.h. */
#include "kernels/cuda/emu/emu_int.h"

#include <stdlib.h>

namespace emu
{

enum { ARRAYS_MAX = 16 };

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

unsigned char *shared;
static byte_log *shared_log;
static array arrays[ARRAYS_MAX];
static int n_arrays;
static size_t shared_used, dynamic_bytes;
static const work *launched;

bool shared_room()
{
    if (!shared) shared = (unsigned char *)aligned_alloc(1024, SHARED_MAX + 1024);
    if (!shared_log) shared_log = (byte_log *)calloc(SHARED_MAX, sizeof *shared_log);
    return shared && shared_log;
}

void shared_start(const work *w)
{
    launched = w;
    n_arrays = 0;
    shared_used = dynamic_bytes = w->shared;
    memset(shared_log, 0, sizeof *shared_log * SHARED_MAX);
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

} // namespace emu
