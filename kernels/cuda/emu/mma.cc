/* kernels/cuda/emu/mma.cc - products of a warp; see emu.h. */
#include "kernels/cuda/emu/emu_int.h"

float emu::from_f16(unsigned h)
{
    const unsigned e = h >> 10 & 31,
                   u = (h & 0x8000) << 16 | (e == 31 ? 0x7f800000 : 0) | (h & 0x7fff) << 13;
    float f;
    memcpy(&f, &u, 4);
    return f * 0x1p112f; /* its exponents begin 112 further down; infinities and NaN stay */
}
float emu::from_bf16(unsigned h)
{
    const unsigned u = h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

template <float READ(unsigned)>
static void mma(float d[4], const unsigned a[4], const unsigned b[2], const char *file, int line,
                const char *what)
{
    struct frag {
        float a[8], b[4];
    } in;
    for (int i = 0; i < 8; i++)
        in.a[i] = READ(a[i / 2] >> 16 * (i % 2) & 0xffff);
    for (int i = 0; i < 4; i++)
        in.b[i] = READ(b[i / 2] >> 16 * (i % 2) & 0xffff);
    emu::warp_meet(file, line, what, &in, sizeof in);
    const emu::brought *lanes = emu::peers();
    const int g = emu::lane() / 4, c = emu::lane() % 4;
    for (int q = 0; q < 8; q++) { /* k = 2q, 2q + 1: of lane q % 4 of a quad */
        const float *fa = ((const frag *)lanes[4 * g + q % 4])->a + q / 4 * 4;
        for (int i = 0; i < 4; i++) {
            const float *fb = ((const frag *)lanes[4 * (2 * c + i % 2) + q % 4])->b + q / 4 * 2;
            d[i] = fmaf(fa[i / 2 * 2], fb[0], d[i]);
            d[i] = fmaf(fa[i / 2 * 2 + 1], fb[1], d[i]);
        }
    }
}
void cu_mma_bf16(float d[4], const unsigned a[4], const unsigned b[2], const char *file, int line)
{
    mma<emu::from_bf16>(d, a, b, file, line, "cu_mma_bf16");
}
void cu_mma_f16(float d[4], const unsigned a[4], const unsigned b[2], const char *file, int line)
{
    mma<emu::from_f16>(d, a, b, file, line, "cu_mma_f16");
}
void cu_mma_u8s8(int d[4], const unsigned a[4], const unsigned b[2], const char *file, int line)
{
    struct frag {
        unsigned a[4], b[2];
    } in;
    memcpy(in.a, a, sizeof in.a);
    memcpy(in.b, b, sizeof in.b);
    emu::warp_meet(file, line, "cu_mma_u8s8", &in, sizeof in);
    const emu::brought *lanes = emu::peers();
    const int g = emu::lane() / 4, c = emu::lane() % 4;
    for (int i = 0; i < 4; i++) {
        const int row = i / 2, col = 2 * c + i % 2;
        for (int k = 0; k < 32; k++) {
            const int from = k % 16 / 4, half = k / 16, bits = k % 4 * 8;
            const frag *fa = (const frag *)lanes[4 * g + from];
            const frag *fb = (const frag *)lanes[4 * col + from];
            d[i] += (int)(fa->a[2 * half + row] >> bits & 255u) *
                    (int8_t)(uint8_t)(fb->b[half] >> bits & 255u);
        }
    }
}
