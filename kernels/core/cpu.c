/* kernels/core/cpu.c - which instruction sets this processor has and the system saves registers for
 * (x86: the compiler's builtin asks both cpuid and xgetbv; ARM: the system says). Compiled without
 * any ISA flag. */
#include "kernels/core/cpu.h"

#include "base/os.h"

#if defined(__x86_64__)
#include <cpuid.h>

static bool has_f16c(void) /* no name for the builtin of older clangs */
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

bool cpu_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
bool cpu_has_avxvnni(void) /* no name for the builtin of older compilers */
{
    enum { AVX_VNNI = 1 << 4 };
    unsigned a, b, c, d;
    return cpu_has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX_VNNI);
}
bool cpu_has_avx512(void)
{
    return cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
}
bool cpu_has_vnni(void) { return cpu_has_avx512() && __builtin_cpu_supports("avx512vnni"); }

bool cpu_has_amx(void)
{
    enum {
        AMX_TILE = 1 << 24,
        AMX_INT8 = 1 << 25,
        AMX_BF16 = 1 << 22,
        ALL = AMX_TILE | AMX_INT8 | AMX_BF16
    };
    unsigned a, b, c, d;
    if (!cpu_has_vnni() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if ((d & ALL) != ALL) return false;
    return os_allow_tiles();
}
bool cpu_bf16_pays(void) { return __builtin_cpu_is("amd"); }
bool cpu_has_bf16(void) { return cpu_has_avx512() && __builtin_cpu_supports("avx512bf16"); }

#elif defined(__aarch64__)
bool cpu_has_neon(void) { return true; }
bool cpu_has_neon_dot(void) { return os_arm_features() & OS_ARM_DOT; }
bool cpu_has_neon_i8mm(void) { return os_arm_features() & OS_ARM_I8MM; }
bool cpu_has_neon_bf16(void) { return os_arm_features() & OS_ARM_BF16; }
#endif
