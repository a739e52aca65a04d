/* kernels/cuda/emu/emu_sm90.h - host meanings of the words in cu_sm90.cuh.
 *
 * A bulk copy happens when its barrier's phase ends, not before; a product at the wait for it. What
 * a launch finds besides what emu.h says:
 *
 *   flying      shared memory that is read or written while a bulk copy to it is under way
 *   unwaited    a read of what a bulk copy brought, by a warp that has not waited for its
 *               barrier; a product that reads what another warp wrote, without such a wait
 *   overrun     a write to what another warp has read, which has not told so by an arrival that
 *               the writer's warp has waited for
 *   proxy       a product that reads what a thread wrote without a cu_fence_async after it, or one of
 *               the reading warp after its wait
 *   mbarrier    one that is not there; more arrivals than it counts; a wait that nothing ends
 *   wgmma       lanes that give different matrices; products that nobody waits for, or whose group
 *               has no cu_wgmma_begin; strides other than those of cu_sm90.cuh; a or d written
 *               before the wait (d is NaN until then, so that who reads it sees)
 *
 *   registers   more than a multiprocessor has, of all warpgroups together
 *
 * Two warps that are ordered by an mbarrier alone have no order for what they write themselves:
 * that is a race here. */
#ifndef LLMQ_KERNELS_CUDA_EMU_EMU_SM90_H
#define LLMQ_KERNELS_CUDA_EMU_EMU_SM90_H

#include "kernels/cuda/emu/emu.h"

#define CU_DYNAMIC_1K(T, name) const S<T> name = emu::make_dynamic<T>()

namespace emu
{
unsigned shared_at(const void *p);
void bar_init(const void *bar, unsigned n);
void bar_arrive(const void *bar, unsigned bytes);
void bar_wait(const void *bar, unsigned parity, const char *file, int line);
void bulk(void *dst, span d, const void *src, span s, size_t n, const void *bar, bool constant);
void wgmma(float *d, int N, const unsigned a[4], uint64_t b, bool mn, bool add, bool f16,
           const char *file, int line);
void wgmma_commit();
void wgmma_wait(int groups, const char *file, int line);
void wgmma_begin(const char *file, int line);
void regs_meet(int each, const char *file, int line);
void engine_fence();
void meet(int id, int n, const char *file, int line);
} // namespace emu

template <class T> unsigned cu_at(S<T> p) { return emu::shared_at((const void *)p.p); }
static inline void cu_bar_init(S<uint64_t> bar, unsigned n) { emu::bar_init(bar.p, n); }
static inline void cu_bars_ready() {}
static inline void cu_bar_arrive(S<uint64_t> bar) { emu::bar_arrive(bar.p, 0); }
static inline void cu_copy_arrive(S<uint64_t> bar)
{
    emu::copy_commit();
    emu::copy_wait(0);
    emu::bar_arrive(bar.p, 0);
}
static inline void cu_bar_expect(S<uint64_t> bar, unsigned n) { emu::bar_arrive(bar.p, n); }
static inline void cu_bar_wait(S<uint64_t> bar, unsigned parity, EMU_HERE)
{
    emu::bar_wait(bar.p, parity, file, line);
}
template <class T, class U> void cu_bulk(S<T> dst, G<U> src, unsigned n, S<uint64_t> bar)
{
    emu::bulk((void *)dst.p, dst.s, (const void *)src.p, src.s, n, bar.p, false);
}
template <class T, class U> void cu_bulk_ldg(S<T> dst, G<U> src, unsigned n, S<uint64_t> bar)
{
    emu::bulk((void *)dst.p, dst.s, (const void *)src.p, src.s, n, bar.p, true);
}
template <int N> void cu_regs_less(EMU_HERE) { emu::regs_meet(N, file, line); }
template <int N> void cu_regs_more(EMU_HERE) { emu::regs_meet(N, file, line); }
static inline void cu_meet(int id, int n, EMU_HERE) { emu::meet(id, n, file, line); }
static inline void cu_fence_async() { emu::engine_fence(); }
static inline void cu_wgmma_begin(EMU_HERE) { emu::wgmma_begin(file, line); }
static inline void cu_wgmma_commit() { emu::wgmma_commit(); }
template <int GROUPS> void cu_wgmma_wait(EMU_HERE) { emu::wgmma_wait(GROUPS, file, line); }
template <int N> void cu_keep(float (&)[N]) {}
template <bool F16, int N, int MN = 0>
void cu_wgmma(float (&d)[N / 2], const unsigned a[4], uint64_t b, bool add, EMU_HERE)
{
    emu::wgmma(d, N, a, b, MN, add, F16, file, line);
}

#endif
