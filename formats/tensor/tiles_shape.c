/* formats/tensor/tiles_shape.c - the shape, sizes and scheme of a tiled tensor. */
#include "formats/tensor/blocks.h"
#include "formats/tensor/tiles.h"

int tiles_bits(const qt_scheme *s)
{
    switch (s->kind) {
    case QT_DENSE:
        return lq_dtype_bits(s->dtype);
    case QT_UINT:
        return s->bits;
    case QT_LUT4:
    case QT_E2M1:
        return 4;
    case QT_BLOCKS:
        return blk_find(s->blocks)->bits;
    default:
        return 8;
    }
}

size_t tiles_scale_bytes(const qt_scheme *s)
{
    if (s->kind == QT_DENSE) return 0;
    return s->kind == QT_UINT || s->kind == QT_E2M1 ? lq_dtype_bytes(s->scale_dtype) : 4;
}

size_t tiles_zero_bytes(const qt_scheme *s)
{
    switch (s->zero) {
    case QT_ZERO_INT:
        return 1;
    case QT_ZERO_F16:
        return 2;
    case QT_ZERO_BIAS:
        return tiles_scale_bytes(s);
    default:
        return 0;
    }
}

tile_shape tiles_shape(const qt_scheme *s, int64_t N, int64_t K)
{
    tile_shape t = { .tiles = lq_ceil_div(N, TILE_N), .G = K, .subs = 1 };
    if (s->kind == QT_UINT || s->kind == QT_LUT4) t.G = s->group;
    if (s->kind == QT_E4M3 && s->group && s->group < K) t.G = s->group;
    if (s->kind == QT_E2M1) {
        t.G = TILE_K;
        t.subs = TILE_K / s->group;
    }
    t.ng = lq_ceil_div(K, t.G);
    t.Gp = lq_ceil_div(t.G, TILE_K) * TILE_K;
    t.Kp = t.ng * t.Gp;
    t.step_bytes = (size_t)(TILE_N * TILE_K / 8 * tiles_bits(s));
    t.tile_bytes = t.step_bytes * (size_t)(t.Kp / TILE_K);
    return t;
}

qt_scheme tiles_scheme(const qt_scheme *s, int64_t N, int64_t K)
{
    (void)N;
    qt_scheme t = *s;
    if (s->kind != QT_LUT4) return t;
    if (K % s->group) return (qt_scheme){ .kind = QT_DENSE, .dtype = LQ_F32 };
    t.dbl = false;
    t.offset = 0;
    return t;
}

bool tiles_keep(const qt_scheme *s, int64_t N, int64_t K)
{
    const qt_scheme t = tiles_scheme(s, N, K);
    return t.kind == s->kind && t.dbl == s->dbl && s->kind != QT_BLOCKS;
}
