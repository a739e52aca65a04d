/* base/base.h - what every module shares: status and error text, arenas, element types, progress.
 * Files: path.h, file.h (input), out_file.h (output); checksums: hash.h.
 *
 * Nothing here prints or exits; tools/ does both. */
#ifndef LLMQ_BASE_BASE_H
#define LLMQ_BASE_BASE_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* C++ reads this header and those that say LQ_C_BEGIN too: kernels/cuda/ does. LQ_INLINE functions
 * may be called from device code. */
#ifdef __cplusplus
#include <atomic>
using std::atomic_int;
#define LQ_C_BEGIN extern "C" {
#define LQ_C_END }
#else
#include <stdatomic.h>
#define LQ_C_BEGIN
#define LQ_C_END
#endif
#ifdef __CUDACC__
#define LQ_INLINE static __inline__ __host__ __device__
#else
#define LQ_INLINE static inline
#endif

LQ_C_BEGIN

/* ---- status: X(name, exit code, text) ---- */
#define LQ_STATUSES(X)                     \
    X(LQ_OK, 0, "ok")                      \
    X(LQ_EIO, 1, "input/output error")     \
    X(LQ_ENOMEM, 1, "out of memory")       \
    X(LQ_EBUSY, 1, "busy")                 \
    X(LQ_EDEVICE, 1, "device error")       \
    X(LQ_EUSAGE, 2, "wrong usage")         \
    X(LQ_EFORMAT, 3, "malformed input")    \
    X(LQ_ESHAPE, 3, "shape does not fit")  \
    X(LQ_EVALUE, 3, "value out of range")  \
    X(LQ_EUNSUPPORTED, 3, "not supported") \
    X(LQ_ENOENT, 3, "not found")           \
    X(LQ_ECHECK, 4, "check failed")        \
    X(LQ_EINTR, 130, "interrupted")

typedef enum {
#define X(name, code, text) name,
    LQ_STATUSES(X)
#undef X
        LQ_N_STATUSES
} lq_status;

const char *lq_status_text(lq_status s);
int lq_exit_code(lq_status s);

/* One message: "where: expected ..., found ...". Always NUL-terminated. */
typedef struct {
    char msg[512];
} lq_err;

/* Text that a file brought along may go to a terminal: white space becomes ' ', other control
 * characters '?', in place. Returns text. Every message of lq_fail, lq_wrap and lq_append is passed
 * through. */
char *lq_printable(char *text);

/* Write the message (err may be NULL) and return `s`, so that `return lq_fail(...)` reads well. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
lq_status
lq_fail(lq_err *err, lq_status s, const char *fmt, ...);

/* Put "prefix: " before the message already in err; returns s. For adding where it happened. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
lq_status
lq_wrap(lq_err *err, lq_status s, const char *fmt, ...);

/* Likewise after the message; where both are too long the message loses its end. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
lq_status
lq_append(lq_err *err, lq_status s, const char *fmt, ...);

/* ---- sizes ---- */
/* a*b and a+b into *out; false when the result does not fit. */
bool lq_mul(size_t a, size_t b, size_t *out);
bool lq_add(size_t a, size_t b, size_t *out);
LQ_INLINE size_t lq_round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
LQ_INLINE int64_t lq_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
#define LQ_COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- arena: one block cut into pieces, freed at once ----
 * Growing arenas (cap 0 at init) add chunks; fixed arenas fail with NULL when full. Pieces are
 * zeroed and aligned to 64 bytes. */
typedef struct lq_chunk lq_chunk;
typedef struct {
    lq_chunk *head; /* newest chunk */
    size_t fixed;   /* bytes of the one chunk of a fixed arena; 0 = grows */
    size_t used;    /* bytes handed out, alignment included */
} lq_arena;

lq_status lq_arena_init(lq_arena *a, size_t fixed_bytes, lq_err *err);
void *lq_push(lq_arena *a, size_t bytes);     /* NULL: out of memory or a fixed arena is full */
void *lq_push_raw(lq_arena *a, size_t bytes); /* the same, not zeroed */
char *lq_push_str(lq_arena *a, const char *s, size_t len); /* NUL-terminated copy */
size_t lq_arena_mark(const lq_arena *a);
void lq_arena_reset(lq_arena *a,
                    size_t mark); /* fixed arenas: back to a mark; growing: mark 0 only */
void lq_arena_free(lq_arena *a);

/* ---- element types: X(name, text, safetensors name, bits) ---- */
#define LQ_DTYPES(X)                                   \
    X(LQ_F32, "f32", "F32", 32)                        \
    X(LQ_F16, "f16", "F16", 16)                        \
    X(LQ_BF16, "bf16", "BF16", 16)                     \
    X(LQ_F64, "f64", "F64", 64)                        \
    X(LQ_I8, "i8", "I8", 8)                            \
    X(LQ_U8, "u8", "U8", 8)                            \
    X(LQ_I16, "i16", "I16", 16)                        \
    X(LQ_U16, "u16", "U16", 16)                        \
    X(LQ_I32, "i32", "I32", 32)                        \
    X(LQ_U32, "u32", "U32", 32)                        \
    X(LQ_I64, "i64", "I64", 64)                        \
    X(LQ_U64, "u64", "U64", 64)                        \
    X(LQ_BOOL, "bool", "BOOL", 8)                      \
    X(LQ_F8_E4M3, "f8_e4m3", "F8_E4M3", 8)             \
    X(LQ_F8_E5M2, "f8_e5m2", "F8_E5M2", 8)             \
    X(LQ_F8_E8M0, "f8_e8m0", "F8_E8M0", 8)             \
    X(LQ_F4, "f4", "F4", 4)                            \
    X(LQ_C64, "c64", "C64", 64)                        \
    X(LQ_F6_E2M3, "f6_e2m3", "F6_E2M3", 6)             \
    X(LQ_F6_E3M2, "f6_e3m2", "F6_E3M2", 6)             \
    X(LQ_F8_E4M3FNUZ, "f8_e4m3fnuz", "F8_E4M3FNUZ", 8) \
    X(LQ_F8_E5M2FNUZ, "f8_e5m2fnuz", "F8_E5M2FNUZ", 8)

typedef enum {
#define X(name, text, st, bits) name,
    LQ_DTYPES(X)
#undef X
        LQ_N_DTYPES
} lq_dtype;

const char *lq_dtype_text(lq_dtype d); /* "bf16" */
const char *lq_dtype_st(lq_dtype d);   /* "BF16", safetensors' name */
int lq_dtype_bits(lq_dtype d);
/* Of a type whose elements are whole bytes. */
static inline size_t lq_dtype_bytes(lq_dtype d) { return (size_t)lq_dtype_bits(d) / 8; }
bool lq_dtype_from_st(lq_dtype *out, const char *name);
bool lq_dtype_from_text(lq_dtype *out, const char *name);
static inline bool lq_dtype_is_float(lq_dtype d)
{
    return d == LQ_F32 || d == LQ_F16 || d == LQ_BF16;
}

enum { LQ_MAX_DIMS = 8 }; /* of a tensor in any file */

/* Round to nearest even, both ways; NaN stays NaN. Without branches: loops of them become vectors. */
LQ_INLINE uint32_t lq_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
LQ_INLINE float lq_bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
LQ_INLINE float lq_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, a = h & 0x7fffu;
    const uint32_t subnormal = lq_f32_bits((float)(int32_t)a * 0x1p-24f); /* exact */
    const uint32_t other = (a << 13) + (a >= 0x7c00u ? 0x70000000u : 0x38000000u);
    /* a mask, since compilers move no arithmetic of floats out of a branch */
    const uint32_t small = 0u - (a < 0x400u);
    return lq_bits_f32((subnormal & small) | (other & ~small) | sign);
}
LQ_INLINE uint16_t lq_f32_to_f16(float f)
{
    const uint32_t u = lq_f32_bits(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    /* 1/2 has its last place at 2^-24, as the subnormals have: the sum rounds as they do */
    const uint32_t subnormal = lq_f32_bits(lq_bits_f32(a) + 0.5f) - 0x3f000000u;
    /* may carry into the exponent: right */
    const uint32_t normal = (a + 0xfffu + (a >> 13 & 1u) - 0x38000000u) >> 13;
    const uint32_t small = 0u - (a < 0x38800000u); /* a mask, as above */
    uint32_t h = (subnormal & small) | (normal & ~small);
    h = a >= 0x47800000u ? 0x7c00u : h; /* 65536 and above: Inf */
    h = a > 0x7f800000u ? 0x7e00u : h;  /* NaN */
    return (uint16_t)(h | sign);
}
LQ_INLINE float lq_bf16_to_f32(uint16_t h) { return lq_bits_f32((uint32_t)h << 16); }
LQ_INLINE uint16_t lq_f32_to_bf16(float f)
{
    const uint32_t u = lq_f32_bits(f);
    const uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16, nan = u >> 16 | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}
/* OCP 8-bit floats. E4M3 (the "fn" form: no infinity, 0x7f and 0xff are NaN, largest 448): to
 * nearest even, beyond 448 to it. E8M0: 2^(e - 127), 0xff is NaN. */
LQ_INLINE float lq_e4m3_to_f32(uint8_t c)
{
    const uint32_t sign = (uint32_t)(c & 0x80u) << 24, a = c & 0x7fu;
    const uint32_t subnormal = lq_f32_bits((float)(int32_t)a * 0x1p-9f); /* exact */
    const uint32_t small = 0u - (a < 8u), normal = (a + (120u << 3)) << 20;
    const uint32_t v = (subnormal & small) | (normal & ~small);
    return lq_bits_f32(sign | (a == 0x7fu ? 0x7fc00000u : v));
}
LQ_INLINE uint8_t lq_f32_to_e4m3(float f)
{
    const uint32_t u = lq_f32_bits(f), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    /* 2^14 has its last place at 2^-9, as the subnormals have: the sum rounds as they do */
    const uint32_t subnormal = lq_f32_bits(lq_bits_f32(a) + 16384.0f) - 0x46800000u;
    const uint32_t normal = (a + 0x7ffffu + (a >> 20 & 1u) - (120u << 23)) >> 20;
    const uint32_t small = 0u - (a < 0x3c800000u); /* below 2^-6 */
    uint32_t c = (subnormal & small) | (normal & ~small);
    c = a >= 0x43e00000u ? 0x7eu : c; /* 448 and above */
    c = a > 0x7f800000u ? 0x7fu : c;  /* NaN */
    return (uint8_t)(c | sign);
}
float lq_e8m0_to_f32(uint8_t e);
/* n elements of dtype d (f32, f16 or bf16) at src to f32 and back; src may be unaligned. */
void lq_to_f32(float *dst, const void *src, lq_dtype d, size_t n);
void lq_from_f32(void *dst, const float *src, lq_dtype d, size_t n);

/* ---- long work: progress out, interruption in. All fields may be zero. ---- */
typedef struct {
    void (*report)(void *user, const char *what, double done,
                   double total); /* any thread, rarely */
    void *user;
    const atomic_int *stop; /* non-zero: finish the current step and return LQ_EINTR */
} lq_job;
static inline bool lq_stopped(const lq_job *j) { return j && j->stop && atomic_load(j->stop); }
static inline void lq_report(const lq_job *j, const char *what, double done, double total)
{
    if (j && j->report) j->report(j->user, what, done, total);
}

LQ_C_END

#endif
