/* formats/base.c - status, arenas, element types. Files and checksums: formats/file.c. */
#include "formats/base.h"

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
    (void)madvise(p, c->cap, MADV_HUGEPAGE); /* a wish */
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

void *lq_push(lq_arena *a, size_t bytes)
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
    if (c->clean > c->used) memset(p, 0, c->clean - c->used < n ? c->clean - c->used : n);
    c->used += n;
    a->used += n;
    if (c->clean < c->used) c->clean = c->used;
    return p;
}

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

float lq_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3ffu, u;
    if (e == 31) {
        u = sign | 0x7f800000u | (m << 13);
    } else if (e) {
        u = sign | ((e + 112) << 23) | (m << 13);
    } else {
        float f = (float)m * 0x1p-24f; /* subnormal: exact */
        memcpy(&u, &f, sizeof u);
        u |= sign;
    }
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

uint16_t lq_f32_to_f16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint32_t sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);  /* NaN */
    if (u >= 0x47800000u) return (uint16_t)(sign | 0x7c00u); /* 65536 and above: Inf */
    if (u < 0x38800000u) {                                   /* below 2^-14: subnormal or zero */
        float a;
        memcpy(&a, &u, sizeof a);
        return (uint16_t)(sign | (uint32_t)lrintf(a * 0x1p24f)); /* rounds half to even */
    }
    u += 0xfffu + ((u >> 13) & 1u) - 0x38000000u; /* may carry into the exponent: right */
    return (uint16_t)(sign | (u >> 13));
}

/* Its exponent and mantissa in the place of f32's; exponents of f32 are biased by 120 more. */
float lq_e4m3_to_f32(uint8_t c)
{
    const uint32_t u = (uint32_t)(c & 0x7f) << 20;
    float f;
    memcpy(&f, &u, sizeof f);
    f = (c & 0x7f) == 0x7f ? NAN : f * 0x1p120f;
    return copysignf(f, c & 0x80 ? -1.0f : 1.0f);
}

uint8_t lq_f32_to_e4m3(float f)
{
    uint8_t sign = signbit(f) ? 0x80 : 0;
    float a = fabsf(f);
    if (isnan(f)) return sign | 0x7f;
    if (a >= 448.0f) return sign | 0x7e;
    if (a < 0x1p-10f) return sign;
    int e;
    frexpf(a, &e);                               /* a = x 2^e, x in [0.5, 1) */
    int step = e - 4 > -9 ? e - 4 : -9;          /* of the last place */
    int n = (int)rintf(ldexpf(a, -step));        /* 0..16, nearest even */
    return sign | (uint8_t)(n + (step + 9) * 8); /* 16 carries into the exponent */
}

float lq_e8m0_to_f32(uint8_t e) { return e == 255 ? NAN : ldexpf(1.0f, e - 127); }

uint16_t lq_f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

void lq_to_f32(float *dst, const void *src, lq_dtype d, size_t n)
{
    enum { BLOCK = 16 }; /* of a fixed length, so that compilers use vectors */
    const uint8_t *s = src;
    size_t i = 0;
    uint16_t h[BLOCK];
    uint32_t u[BLOCK];
    if (d == LQ_F32) {
        memcpy(dst, src, n * 4);
        return;
    }
    for (; d == LQ_BF16 && i + BLOCK <= n; i += BLOCK) {
        memcpy(h, s + 2 * i, sizeof h);
        for (int k = 0; k < BLOCK; k++)
            u[k] = (uint32_t)h[k] << 16;
        memcpy(dst + i, u, sizeof u);
    }
    for (; i < n; i++) {
        memcpy(h, s + 2 * i, 2);
        dst[i] = d == LQ_BF16 ? lq_bf16_to_f32(h[0]) : lq_f16_to_f32(h[0]);
    }
}

void lq_from_f32(void *dst, const float *src, lq_dtype d, size_t n)
{
    if (d == LQ_F32) {
        memcpy(dst, src, n * 4);
        return;
    }
    uint8_t *o = dst;
    for (size_t i = 0; i < n; i++) {
        uint16_t h = d == LQ_BF16 ? lq_f32_to_bf16(src[i]) : lq_f32_to_f16(src[i]);
        memcpy(o + 2 * i, &h, 2);
    }
}
