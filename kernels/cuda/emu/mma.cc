/* kernels/cuda/emu/mma.cc - products of a warp; see emu.h. */
#include "kernels/cuda/emu/emu_int.h"

float emu::from_f16(unsigned h)
{
    const unsigned e = h >> 10 & 31, m = h & 1023;
    const float f = e == 0    ? (float)m * 0x1p-24f
                    : e == 31 ? (m ? NAN : INFINITY)
                              : ldexpf((float)(m | 1024), (int)e - 25);
    return h & 0x8000 ? -f : f;
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
    const int g = emu::lane() / 4, c = emu::lane() % 4;
    for (int i = 0; i < 4; i++) {
        const int row = i / 2, col = 2 * c + i % 2;
        for (int k = 0; k < 16; k++) {
            const frag *fa = (const frag *)emu::peer(4 * g + k % 8 / 2);
            const frag *fb = (const frag *)emu::peer(4 * col + k % 8 / 2);
            d[i] = fmaf(fa->a[2 * (2 * (k / 8) + row) + k % 2], fb->b[2 * (k / 8) + k % 2], d[i]);
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
    const int g = emu::lane() / 4, c = emu::lane() % 4;
    for (int i = 0; i < 4; i++) {
        const int row = i / 2, col = 2 * c + i % 2;
        for (int k = 0; k < 32; k++) {
            const int from = k % 16 / 4, half = k / 16, bits = k % 4 * 8;
            const frag *fa = (const frag *)emu::peer(4 * g + from);
            const frag *fb = (const frag *)emu::peer(4 * col + from);
            d[i] += (int)(fa->a[2 * half + row] >> bits & 255u) *
                    (int8_t)(uint8_t)(fb->b[half] >> bits & 255u);
        }
    }
}
