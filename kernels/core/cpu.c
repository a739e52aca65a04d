/* kernels/core/cpu.c - which instruction sets this processor has and the system saves registers for
 * (x86: the compiler's builtin asks both cpuid and xgetbv; ARM: the system says). Compiled without
 * any ISA flag. */
#include "kernels/core/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

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

/* Tiles enlarge what the system saves of a thread, so a process has to ask for them once. Source:
 * the kernel's Documentation/arch/x86/xstate.rst. */
bool cpu_has_amx(void)
{
    enum {
        AMX_TILE = 1 << 24,
        AMX_INT8 = 1 << 25,
        AMX_BF16 = 1 << 22,
        ALL = AMX_TILE | AMX_INT8 | AMX_BF16,
        REQ_XCOMP_PERM = 0x1023,
        XTILEDATA = 18
    };
    unsigned a, b, c, d;
    if (!cpu_has_vnni() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if ((d & ALL) != ALL) return false;
    return syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILEDATA) == 0;
}
bool cpu_bf16_pays(void) { return __builtin_cpu_is("amd"); }
bool cpu_has_bf16(void) { return cpu_has_avx512() && __builtin_cpu_supports("avx512bf16"); }

#elif defined(__aarch64__)
#include <sys/auxv.h>

bool cpu_has_neon(void) { return true; }
bool cpu_has_neon_dot(void) { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
bool cpu_has_neon_i8mm(void) { return getauxval(AT_HWCAP2) & HWCAP2_I8MM; }
bool cpu_has_neon_bf16(void) { return getauxval(AT_HWCAP2) & HWCAP2_BF16; }
#endif
