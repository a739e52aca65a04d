/* quantize/methods/row_grid.h - the grids of a row of weights, whatever it is stored in.
 *
 * QT_UINT: a grid for each group, on its own (grid.h). QT_BLOCKS: the grids that GGUF's blocks can say, where the
 * scales and the least values of the groups in a block are small whole numbers times one number each:
 *
 *     scale_g = d * sc_g,  least_g = -dmin * m_g        (blocks.h; d, dmin in f16)
 *
 * Fitted in three steps: each group's scale (and least value) by a search over drawn-in ends with least squares;
 * d and dmin from the largest; then in turns the best sc_g, m_g beside the chosen ones for each group, and d and
 * dmin by least squares with all codes fixed, while the error falls. What falls is
 * sum_k imp[k] (w - q)^2, as in grid.h.
 *
 * Blocks whose codes are points of a lattice (lattice.h) are fitted likewise; their codes are chosen eight at a time.
 *
 * QT_E4M3: the scales are chosen before (fp8.h), of many rows together; codes are those of the float, -0 left out.
 *
 * w ~ scale * (code - zero), zero not whole; with a table of values w ~ scale * table[code].
 * Source: the form of the blocks: ggml-quants.c; the fit: own. */
#ifndef LLMQ_QUANTIZE_METHODS_ROW_GRID_H
#define LLMQ_QUANTIZE_METHODS_ROW_GRID_H

#include "quantize/methods/grid.h"
#include "quantize/methods/lattice.h"
#include "quantize/methods/out.h"

/* What a block has besides codes. */
typedef struct {
    uint16_t d, dmin;
    int8_t sc[BLK_GROUPS];
    uint8_t m[BLK_GROUPS];
} row_head;

/* Inputs of a group, and of what is fitted together; 0: all. */
static inline int64_t row_group(const qt_scheme *s)
{
    return s->kind == QT_BLOCKS ? blk_find(s->blocks)->group : s->group;
}
/* Inputs whose codes are chosen together. */
static inline int row_unit(const grid_spec *s) { return s->points ? LAT_UNIT : 1; }
/* Heads of a row of K; 0: it has none. */
static inline int64_t row_heads(const grid_spec *s, int64_t K)
{
    return s->blocks ? K / s->blocks->elements : 0;
}

/* Row n of its tensor: params [K / G], heads [row_heads]; imp [K] may be NULL (all inputs count alike). */
void row_fit(grid_param *params, row_head *heads, const grid_spec *s, const float *w,
             const float *imp, int64_t n, int64_t K, int64_t G);
/* Nearest codes of n weights of one group; of lattices, whose codes are chosen together, by importance (NULL: alike). */
void row_codes(uint8_t *codes, const grid_spec *s, const float *w, const float *imp, int64_t n,
               grid_param p);
/* Row n of out: codes [K] one byte each; zeros [K / G] is scratch. */
void row_store(qz_out *out, int64_t n, const grid_param *params, const row_head *heads,
               const uint8_t *codes, uint8_t *zeros);
/* The inverse, of QT_BLOCKS that are no points of a lattice and of QT_E2M1; heads [row_heads], of QT_BLOCKS. */
void row_load(grid_param *params, row_head *heads, uint8_t *codes, const qt_tensor *t, int64_t n);

/* The nearest of the 1 << bits values of a table that rises: how many of the middles between two are below x. */
static inline float row_table_code(const int8_t *table, int bits, float x)
{
    int c = 0;
    for (int step = 1 << (bits - 1); step; step /= 2) {
        const int8_t *t = table + c + step;
        c += x > 0.5f * (float)(t[-1] + t[0]) ? step : 0;
    }
    return (float)c;
}
static inline float row_code(const grid_spec *s, float w, grid_param p)
{
    const float M = grid_max_code(s->bits);
    if (s->table) return row_table_code(s->table, s->bits, w / p.scale);
    if (s->floats) {
        const uint8_t code = lq_f32_to_e4m3(w / p.scale);
        return code == 0x80 ? 0 : (float)code;
    }
    if (!s->blocks) return grid_code(w, p, M);
    const float x = w / p.scale + p.zero;
    return grid_round(x < 0 ? 0 : x > M ? M : x);
}
/* From a code's value to that of its neighbour, on the side of off, in scales; table NULL: codes are whole numbers. */
static inline float row_gap(const int8_t *table, int bits, uint8_t code, float off)
{
    const int top = (1 << bits) - 1, to = off < 0 ? code - 1 : code + 1;
    const int a = to < 0 || to > top ? code - (to - code) : to;
    return table ? fabsf((float)(table[a] - table[code])) : 1;
}
/* `off` scales from a code's value, as it is kept for tuning (quantize/layer/residual.h): in parts of the way to the
 * neighbour's. What is not a number is kept as 0. */
enum { ROW_REST_UNIT = 64 };
static inline int8_t row_rest(const int8_t *table, int bits, uint8_t code, float off)
{
    const float x = off / row_gap(table, bits, code, off) * ROW_REST_UNIT;
    return (int8_t)(x > 127 ? 127 : x < -127 ? -127 : x == x ? lrintf(x) : 0);
}
static inline float row_value(const grid_spec *s, float code, grid_param p)
{
    if (s->table) return p.scale * (float)s->table[(int)code];
    if (s->floats) return p.scale * lq_e4m3_to_f32((uint8_t)code);
    return grid_value(code, p);
}

#endif
