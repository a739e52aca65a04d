/* base/base.c - status, arenas, element types. */
#include "base/base.h"

#include "base/os.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static const struct {
    int code;
    const char *text;
} statuses[] = {
#define X(name, code, text) { code, text },
    LQ_STATUSES(X)
#undef X
};

const char *lq_status_text(lq_status s)
{
    return (unsigned)s < LQ_N_STATUSES ? statuses[s].text : "unknown status";
}

int lq_exit_code(lq_status s) { return (unsigned)s < LQ_N_STATUSES ? statuses[s].code : 1; }

char *lq_printable(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++)
        if (*c < 0x20 || *c == 0x7f) *c = *c == '\n' || *c == '\t' || *c == '\r' ? ' ' : '?';
    return text;
}

lq_status lq_fail(lq_err *err, lq_status s, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(err->msg, sizeof err->msg, fmt, ap);
        va_end(ap);
        lq_printable(err->msg);
    }
    return s;
}

lq_status lq_append(lq_err *err, lq_status s, const char *fmt, ...)
{
    if (!err) return s;
    char more[sizeof err->msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(more, sizeof more, fmt, ap);
    va_end(ap);
    const size_t n = strnlen(more, sizeof more - 1), room = sizeof err->msg - 1 - n;
    const size_t len = strnlen(err->msg, room);
    memcpy(err->msg + len, lq_printable(more), n + 1);
    return s;
}

lq_status lq_wrap(lq_err *err, lq_status s, const char *fmt, ...)
{
    if (!err) return s;
    char old[sizeof err->msg];
    memcpy(old, err->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n + 3 > sizeof err->msg) return s;
    size_t room = sizeof err->msg - (size_t)n - 3, len = strnlen(old, sizeof old - 1);
    if (len > room) len = room;
    memcpy(err->msg + n, ": ", 2);
    memcpy(err->msg + n + 2, old, len);
    err->msg[(size_t)n + 2 + len] = 0;
    lq_printable(err->msg);
    return s;
}

bool lq_mul(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
bool lq_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }

/* ---- arena ---- */
enum { ALIGN = 64, GROW = 1 << 16, MAPPED = 1 << 20 };

struct lq_chunk {
    lq_chunk *next;
    uint8_t *base;
    size_t cap, used;
    size_t clean; /* from here on every byte is zero: fresh pages that nobody has touched */
};

static bool is_mapped(const lq_chunk *c) { return c->cap >= MAPPED; }

/* Large chunks are fresh pages: zero already, so that whoever writes them first (often several
 * threads) pays for them once, and few where the system has huge ones. */
static void *chunk_memory(lq_chunk *c)
{
    if (!is_mapped(c)) return aligned_alloc(ALIGN, c->cap ? c->cap : ALIGN);
    void *p = mmap(NULL, c->cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    os_huge_pages(p, c->cap);
    return p;
}

static lq_chunk *chunk_new(size_t cap)
{
    lq_chunk *c = malloc(sizeof *c);
    if (!c) return NULL;
    *c = (lq_chunk){ .cap = lq_round_up(cap, ALIGN) };
    c->clean = is_mapped(c) ? 0 : c->cap;
    c->base = chunk_memory(c);
    if (!c->base) {
        free(c);
        return NULL;
    }
    return c;
}

static void chunk_free(lq_chunk *c)
{
    if (is_mapped(c))
        munmap(c->base, c->cap);
    else
        free(c->base);
    free(c);
}

lq_status lq_arena_init(lq_arena *a, size_t fixed_bytes, lq_err *err)
{
    memset(a, 0, sizeof *a);
    if (!fixed_bytes) return LQ_OK;
    a->fixed = lq_round_up(fixed_bytes, ALIGN);
    a->head = chunk_new(a->fixed);
    if (!a->head) return lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes", fixed_bytes);
    return LQ_OK;
}

static void *push(lq_arena *a, size_t bytes, bool zeroed)
{
    if (bytes > SIZE_MAX / 2) return NULL;
    size_t n = lq_round_up(bytes ? bytes : 1, ALIGN);
    if (!a->head || a->head->cap - a->head->used < n) {
        if (a->fixed) return NULL;
        lq_chunk *c = chunk_new(n > GROW ? n : GROW);
        if (!c) return NULL;
        c->next = a->head;
        a->head = c;
    }
    lq_chunk *c = a->head;
    uint8_t *p = c->base + c->used;
    if (zeroed && c->clean > c->used) memset(p, 0, c->clean - c->used < n ? c->clean - c->used : n);
    c->used += n;
    a->used += n;
    if (c->clean < c->used) c->clean = c->used;
    return p;
}

void *lq_push(lq_arena *a, size_t bytes) { return push(a, bytes, true); }
void *lq_push_raw(lq_arena *a, size_t bytes) { return push(a, bytes, false); }

char *lq_push_str(lq_arena *a, const char *s, size_t len)
{
    char *p = lq_push(a, len + 1);
    if (p && len) memcpy(p, s, len);
    return p;
}

size_t lq_arena_mark(const lq_arena *a) { return a->used; }

void lq_arena_reset(lq_arena *a, size_t mark)
{
    if (a->fixed) {
        if (a->head) a->head->used = mark;
        a->used = mark;
    } else if (mark == 0) {
        lq_arena_free(a);
    }
}

void lq_arena_free(lq_arena *a)
{
    for (lq_chunk *c = a->head, *next; c; c = next) {
        next = c->next;
        chunk_free(c);
    }
    memset(a, 0, sizeof *a);
}

/* ---- element types ---- */
static const struct {
    const char *text, *st;
    int bits;
} dtypes[] = {
#define X(name, text, st, bits) { text, st, bits },
    LQ_DTYPES(X)
#undef X
};

const char *lq_dtype_text(lq_dtype d) { return (unsigned)d < LQ_N_DTYPES ? dtypes[d].text : "?"; }
const char *lq_dtype_st(lq_dtype d) { return (unsigned)d < LQ_N_DTYPES ? dtypes[d].st : "?"; }
int lq_dtype_bits(lq_dtype d) { return (unsigned)d < LQ_N_DTYPES ? dtypes[d].bits : 0; }

bool lq_dtype_from_st(lq_dtype *out, const char *name)
{
    for (int i = 0; i < LQ_N_DTYPES; i++)
        if (strcmp(dtypes[i].st, name) == 0) return *out = (lq_dtype)i, true;
    return false;
}

bool lq_dtype_from_text(lq_dtype *out, const char *name)
{
    for (int i = 0; i < LQ_N_DTYPES; i++)
        if (strcmp(dtypes[i].text, name) == 0) return *out = (lq_dtype)i, true;
    return false;
}

float lq_e8m0_to_f32(uint8_t e) { return e == 255 ? NAN : ldexpf(1.0f, e - 127); }

enum { BLOCK = 16 }; /* elements: loops of a fixed length, so that compilers use vectors */

static void block_to_f32(float *restrict dst, const uint8_t *restrict src, bool bf16)
{
    uint16_t h[BLOCK];
    memcpy(h, src, sizeof h);
    for (int k = 0; bf16 && k < BLOCK; k++)
        dst[k] = lq_bf16_to_f32(h[k]);
    for (int k = 0; !bf16 && k < BLOCK; k++)
        dst[k] = lq_f16_to_f32(h[k]);
}

static void block_from_f32(uint8_t *restrict dst, const float *restrict src, bool bf16)
{
    uint16_t h[BLOCK];
    for (int k = 0; bf16 && k < BLOCK; k++)
        h[k] = lq_f32_to_bf16(src[k]);
    for (int k = 0; !bf16 && k < BLOCK; k++)
        h[k] = lq_f32_to_f16(src[k]);
    memcpy(dst, h, sizeof h);
}

void lq_to_f32(float *dst, const void *src, lq_dtype d, size_t n)
{
    const uint8_t *s = src;
    const bool bf16 = d == LQ_BF16;
    size_t i = 0;
    if (d == LQ_F32) {
        memcpy(dst, src, n * 4);
        return;
    }
    for (; i + BLOCK <= n; i += BLOCK)
        block_to_f32(dst + i, s + 2 * i, bf16);
    for (; i < n; i++) {
        uint16_t h;
        memcpy(&h, s + 2 * i, 2);
        dst[i] = bf16 ? lq_bf16_to_f32(h) : lq_f16_to_f32(h);
    }
}

void lq_from_f32(void *dst, const float *src, lq_dtype d, size_t n)
{
    uint8_t *o = dst;
    const bool bf16 = d == LQ_BF16;
    size_t i = 0;
    if (d == LQ_F32) {
        memcpy(dst, src, n * 4);
        return;
    }
    for (; i + BLOCK <= n; i += BLOCK)
        block_from_f32(o + 2 * i, src + i, bf16);
    for (; i < n; i++) {
        const uint16_t h = bf16 ? lq_f32_to_bf16(src[i]) : lq_f32_to_f16(src[i]);
        memcpy(o + 2 * i, &h, 2);
    }
}
