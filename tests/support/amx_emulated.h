/* tests/support/amx_emulated.h - kernels/x86/amx.h in plain C, for machines without AMX: kernels/x86/k_amx.c is
 * compiled with it (-DLLMQ_AMX_EMULATED -include ...) for tests/unit/test_amx_mm.c. What the processor
 * refuses ends the program: registers without sizes, sizes beyond a register's or that do not fit
 * each other. A load or store touches the configured bytes alone, so AddressSanitizer and guard
 * pages see what it would reach. */
#ifndef LLMQ_TESTS_SUPPORT_AMX_EMULATED_H
#define LLMQ_TESTS_SUPPORT_AMX_EMULATED_H

#include "kernels/x86/amx.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define cpu_has_amx cpu_has_vnni

enum { EMU_TILES = 8, EMU_ROWS = 16, EMU_BYTES = 64 };

static _Thread_local struct {
    int rows[EMU_TILES], bytes[EMU_TILES]; /* 0: not configured */
    uint8_t data[EMU_TILES][EMU_ROWS][EMU_BYTES];
} emu;

static inline void emu_check(bool holds)
{
    if (!holds) abort();
}
static inline void amx_release(void) { memset(&emu, 0, sizeof emu); }
static inline void amx_configure(const amx_config *c)
{
    emu_check(sizeof *c == 64 && c->palette == 1 && c->start_row == 0);
    for (size_t i = 0; i < sizeof c->zeros; i++)
        emu_check(c->zeros[i] == 0);
    amx_release();
    for (int i = 0; i < 16; i++) {
        emu_check(i < EMU_TILES || (c->rows[i] == 0 && c->row_bytes[i] == 0));
        if (i >= EMU_TILES) continue;
        emu_check(c->rows[i] <= EMU_ROWS && c->row_bytes[i] <= EMU_BYTES);
        emu_check((c->rows[i] == 0) == (c->row_bytes[i] == 0));
        emu.rows[i] = c->rows[i];
        emu.bytes[i] = c->row_bytes[i];
    }
}

static inline void emu_zero(int r)
{
    emu_check(emu.rows[r] > 0);
    memset(emu.data[r], 0, sizeof emu.data[r]);
}
static inline void emu_load(int r, const void *p, long step)
{
    emu_zero(r);
    for (int m = 0; m < emu.rows[r]; m++)
        memcpy(emu.data[r][m], (const uint8_t *)p + m * step, (size_t)emu.bytes[r]);
}
static inline void emu_store(int r, void *p, long step)
{
    emu_check(emu.rows[r] > 0);
    for (int m = 0; m < emu.rows[r]; m++)
        memcpy((uint8_t *)p + m * step, emu.data[r][m], (size_t)emu.bytes[r]);
}
static inline void emu_fit(int c, int a, int b)
{
    emu_check(c != a && c != b && a != b && emu.rows[c] > 0);
    emu_check(emu.rows[c] == emu.rows[a] && emu.bytes[c] == emu.bytes[b]);
    emu_check(emu.bytes[a] == 4 * emu.rows[b] && emu.bytes[c] % 4 == 0);
}
/* Words of 32 bits wrap around. */
static inline void emu_dot_i8(int c, int a, int b)
{
    emu_fit(c, a, b);
    for (int m = 0; m < emu.rows[c]; m++)
        for (int n = 0; n < emu.bytes[c] / 4; n++) {
            uint32_t sum;
            memcpy(&sum, &emu.data[c][m][4 * n], 4);
            for (int k = 0; k < emu.bytes[a]; k++)
                sum += (uint32_t)((int8_t)emu.data[a][m][k] * emu.data[b][k / 4][4 * n + k % 4]);
            memcpy(&emu.data[c][m][4 * n], &sum, 4);
        }
}
/* What is too small to be normal is zero. */
static inline float emu_flush(float x) { return fabsf(x) < FLT_MIN ? copysignf(0, x) : x; }
static inline float emu_bf16(const uint8_t *p)
{
    uint16_t half;
    memcpy(&half, p, 2);
    const uint32_t bits = (uint32_t)half << 16;
    float f;
    memcpy(&f, &bits, 4);
    return emu_flush(f);
}
static inline void emu_dot_bf16(int c, int a, int b)
{
    emu_fit(c, a, b);
    for (int m = 0; m < emu.rows[c]; m++)
        for (int n = 0; n < emu.bytes[c] / 4; n++) {
            float part[2] = { 0, 0 }, sum;
            for (int k = 0; k < emu.bytes[a] / 2; k++) {
                float *to = &part[k % 2];
                *to = emu_flush(fmaf(emu_bf16(&emu.data[a][m][2 * k]),
                                     emu_bf16(&emu.data[b][k / 2][4 * n + 2 * (k % 2)]), *to));
            }
            memcpy(&sum, &emu.data[c][m][4 * n], 4);
            sum = emu_flush(emu_flush(sum) + emu_flush(part[0] + part[1]));
            memcpy(&emu.data[c][m][4 * n], &sum, 4);
        }
}

#define TILE_ZERO(r) emu_zero(r)
#define TILE_LOAD(r, p, step) emu_load(r, p, (long)(step))
#define TILE_STORE(r, p, step) emu_store(r, p, (long)(step))
#define TILE_DOT_I8(c, a, b) emu_dot_i8(c, a, b)
#define TILE_DOT_BF16(c, a, b) emu_dot_bf16(c, a, b)

#endif
