/* kernels/x86/amx.h - Intel's tile registers (AMX): eight, each of up to 16 rows of 64 bytes, whose
 * sizes belong to a thread (amx_configure) and whose products are of whole matrices:
 *
 *     TILE_DOT_I8(c, a, b)     c [m][n] += sum over k of a [m][k] * b [k/4][n][k%4]
 *                              a: signed bytes, b: unsigned bytes, c: i32
 *     TILE_DOT_BF16(c, a, b)   c [m][n] += (sum over even k of a [m][k] * b [k/2][n][k%2]) +
 *                              (the same over odd k); a, b: bf16, c: f32
 *
 * A register is named by a digit. tests/support/amx_emulated.h has the same in C. Source: Intel 64 and
 * IA-32 Architectures Software Developer's Manual, volume 2, LDTILECFG, TDPBSUD and TDPBF16PS. */
#ifndef LLMQ_KERNELS_X86_AMX_H
#define LLMQ_KERNELS_X86_AMX_H

#include <stdint.h>

/* As LDTILECFG reads it; of the 16 places of each list 8 are in use. */
typedef struct {
    uint8_t palette, start_row, zeros[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_config;

#if !defined(LLMQ_AMX_EMULATED)

static inline void amx_configure(const amx_config *c)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(*c) : "memory");
}
/* A thread that rests without tiles is switched and put to sleep faster. */
static inline void amx_release(void) { __asm__ volatile("tilerelease"); }

/* `step`: bytes from row to row. */
#define TILE_LOAD(r, p, step)                                    \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #r             \
                     :                                           \
                     : "r"((const void *)(p)), "r"((long)(step)) \
                     : "memory")
#define TILE_STORE(r, p, step)                             \
    __asm__ volatile("tilestored %%tmm" #r ", (%0,%1,1)"   \
                     :                                     \
                     : "r"((void *)(p)), "r"((long)(step)) \
                     : "memory")
#define TILE_ZERO(r) __asm__ volatile("tilezero %tmm" #r)
#define TILE_DOT_I8(c, a, b) __asm__ volatile("tdpbsud %tmm" #b ", %tmm" #a ", %tmm" #c)
#define TILE_DOT_BF16(c, a, b) __asm__ volatile("tdpbf16ps %tmm" #b ", %tmm" #a ", %tmm" #c)

#endif

#endif
