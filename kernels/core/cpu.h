/* kernels/core/cpu.h - instruction sets usable here, each with what its kernels need besides it. */
#ifndef LLMQ_KERNELS_CORE_CPU_H
#define LLMQ_KERNELS_CORE_CPU_H

#include <stdbool.h>

#if defined(__x86_64__)
bool cpu_has_avx2(void);    /* AVX2, FMA, F16C */
bool cpu_has_avx512(void);  /* and AVX-512 F, BW, VL, DQ */
bool cpu_has_vnni(void);    /* and AVX-512 VNNI */
bool cpu_has_avxvnni(void); /* AVX2 and AVX-VNNI: VPDPBUSD without AVX-512 */
bool cpu_has_amx(
    void); /* VNNI, AMX-INT8 and -BF16; asks the system for tile registers, for all threads */
bool cpu_has_bf16(void); /* and AVX-512 BF16, besides AVX-512 */
/* VDPBF16PS outruns two f32 multiply-adds: on AMD (Zen 5: 488 against 262 GFLOP/s a core), not on
 * Intel (Sapphire Rapids: 109 against 217), where bf16 belongs to AMX. */
bool cpu_bf16_pays(void);
#elif defined(__aarch64__)
bool cpu_has_neon(void);      /* always: a part of ARMv8-A */
bool cpu_has_neon_dot(void);  /* and SDOT, UDOT */
bool cpu_has_neon_i8mm(void); /* and USMMLA, USDOT */
bool cpu_has_neon_bf16(void); /* and BFMMLA, BFDOT, BFCVTN */
#endif

#endif
