/* kernels/cuda/emu/shared.cc - the shared memory of the block that runs: its arrays, and who touched what
 * since which barrier; see emu.h. */
#include "kernels/cuda/emu/emu_int.h"

#include <stdlib.h>

namespace emu
{

enum { ARRAYS_MAX = 16, WORD = 4 };

/* What is known of a byte of shared memory, or of the four of a word while each access was to all of
 * them. Times are counts of barriers: of the block's, which go on from block to block, and of the warp's
 * __syncwarp since. */
struct touched {
    uint32_t w_block, r_block; /* of the last write, and read */
    uint16_t w_warp, r_warp;
    int16_t writer;  /* a thread, or one of these */
    uint16_t reader; /* a thread, and flags */
};
enum {
    ENGINE = -1,
    SPLIT =
        -2, /* of a word: this block has touched a part of it; its bytes have records of their own */
    MANY = 1 << 14, /* more than one reader at r_warp */
    FAR = 1 << 13,  /* readers of more than one warp */
    READER = FAR - 1
};
static_assert(sizeof(touched) == 16 && (int)MAX_THREADS <= (int)FAR, "four words in a cache line");

struct array {
    const void *key;
    span s;
};

unsigned char *shared;
static touched *of_word, *of_byte;
static uint32_t began; /* the block: block_time then */
static array arrays[ARRAYS_MAX];
static int n_arrays;
static size_t shared_used, dynamic_bytes;
static const work *launched;

bool shared_room()
{
    if (!shared) shared = (unsigned char *)aligned_alloc(1024, SHARED_MAX + 1024);
    if (!of_word) of_word = (touched *)calloc(SHARED_MAX / WORD, sizeof *of_word);
    if (!of_byte) of_byte = (touched *)calloc(SHARED_MAX, sizeof *of_byte);
    return shared && of_word && of_byte;
}

void shared_forget()
{
    memset(of_word, 0, SHARED_MAX / WORD * sizeof *of_word);
    memset(of_byte, 0, SHARED_MAX * sizeof *of_byte);
}

void shared_start(const work *w)
{
    launched = w;
    n_arrays = 0;
    shared_used = dynamic_bytes = w->shared;
    began = block_time;
}

static void race(const char *how, size_t off, int other)
{
    fail("race: %s byte %zu of shared memory, which thread %d touched without a barrier between",
         how, off, other);
}

static bool written(const touched *b) { return b->w_block >= began; }
static bool is_split(const touched *word) { return word->writer == SPLIT && written(word); }

static inline void __attribute__((always_inline)) touch(touched *b, size_t off, bool write)
{
    const int warp = current / WARP;
    const uint16_t now = warp_time[warp];
    if (b->w_block == block_time && b->writer != current && b->writer >= 0 &&
        (b->writer / WARP != warp || b->w_warp == now))
        race(write ? "writes" : "reads", off, b->writer);
    const int reader = b->reader & READER;
    const bool near = reader / WARP == warp;
    if (write) {
        if (b->r_block == block_time &&
            (b->reader & FAR || !near ||
             (b->r_warp == now && (b->reader & MANY || reader != current))))
            race("writes", off, reader);
        b->writer = (int16_t)current;
        b->w_block = block_time;
        b->w_warp = now;
        return;
    }
    if (!written(b)) fail("unwritten: reads byte %zu of shared memory", off);
    int flags = 0;
    if (b->r_block == block_time)
        flags = (near ? b->reader & FAR : FAR) | (b->r_warp != now    ? 0
                                                  : reader != current ? MANY
                                                                      : b->reader & MANY);
    b->reader = (uint16_t)(current | flags);
    b->r_block = block_time;
    b->r_warp = now;
}

/* [off, end) of one word. */
static inline void touch_part(size_t off, size_t end, bool write)
{
    touched *word = &of_word[off / WORD];
    if (!is_split(word)) {
        if (end - off == WORD) {
            touch(word, off, write);
            return;
        }
        for (size_t i = 0; i < WORD; i++)
            of_byte[off / WORD * WORD + i] = *word;
        word->writer = SPLIT;
        word->w_block = began;
    }
    for (; off < end; off++)
        touch(&of_byte[off], off, write);
}

void touch_shared(const void *p, size_t n, size_t align, span s, bool write)
{
    const uintptr_t at = (uintptr_t)p;
    if (at < s.lo || at + n > s.hi)
        fail("bounds: %zu bytes at offset %lld of an array of %zu in shared memory", n,
             (long long)(at - s.lo), (size_t)(s.hi - s.lo));
    if (at & (align - 1)) fail("bounds: shared address %% %zu is %zu", align, (size_t)(at % align));
    size_t off = (size_t)(at - (uintptr_t)shared);
    const size_t end = off + n;
    if (bars_made) engine_touch(off, n, write);
    while (off < end) {
        const size_t next = off / WORD * WORD + WORD, to = next < end ? next : end;
        touch_part(off, to, write);
        off = to;
    }
}

/* Whole words. */
void engine_wrote(size_t off, size_t n)
{
    for (size_t w = off / WORD; w < (off + n) / WORD; w++)
        of_word[w] = { began, 0, 0, 0, ENGINE, 0 };
}

/* Whole words of one grain. */
void product_reads(size_t off, size_t n)
{
    if (off + n > dynamic_bytes)
        fail("bounds: a product reads byte %zu of %zu in shared memory", off, dynamic_bytes);
    engine_touch(off, n, false);
    for (size_t at = off; at < off + n; at += WORD) {
        const touched *word = &of_word[at / WORD];
        bool all = written(word);
        for (size_t i = at; i < at + WORD && is_split(word); i++)
            all = all && written(&of_byte[i]);
        if (!all) fail("unwritten: a product reads bytes %zu.. of shared memory", at);
    }
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
