/* tests/support/cuda_broken.cu - see cuda_broken.h. Blocks of 64 threads unless said otherwise; buf holds
 * BROKEN_FLOATS floats. Compiled for the host alone. */
#include "tests/support/cuda_broken.h"

#include "kernels/cuda/cu_sm90.cuh"

namespace
{

enum { N = BROKEN_FLOATS };

/* Reverses buf by way of shared memory; with a barrier between, or without. */
template <bool BARRIER> __global__ void reverse(G<float> buf)
{
    CU_SHARED(float, s, N);
    const int t = threadIdx.x;
    s[t] = 0;
    __syncthreads();
    s[t] = buf[t];
    if (BARRIER) __syncthreads();
    buf[t] = s[N - 1 - t];
}

/* A loop that reads everybody's value and writes its own, again and again. */
template <bool BOTH> __global__ void rounds(G<float> buf)
{
    CU_SHARED(float, s, N);
    const int t = threadIdx.x;
    s[t] = buf[t];
    for (int i = 0; i < 3; i++) {
        __syncthreads();
        const float v = s[(t + 33) % N];
        if (BOTH) __syncthreads();
        s[t] = v + 1;
    }
    buf[t] = s[t];
}

/* Neighbours within a warp: ordered by __syncwarp, not by a shuffle. */
template <bool ORDERED> __global__ void neighbours(G<float> buf)
{
    CU_SHARED(float, s, N);
    const int t = threadIdx.x;
    s[t] = buf[t];
    if (ORDERED)
        __syncwarp();
    else
        cu_shfl_xor(0.0f, 1);
    buf[t] = s[t ^ 1];
}

template <int BEHIND> __global__ void shared_bounds(G<float> buf)
{
    CU_SHARED(float, s, N);
    CU_SHARED(float, other, N); /* what lies behind s is no part of it */
    other[(int)threadIdx.x] = 0;
    s[(int)threadIdx.x + BEHIND] = 1;
    buf[(int)threadIdx.x] = s[(int)threadIdx.x + BEHIND];
}

template <int BEHIND> __global__ void global_bounds(G<float> buf)
{
    buf[(int)threadIdx.x + BEHIND] = 1;
}

template <int OFF> __global__ void aligned(G<float> buf)
{
    const float4 v = cu_ldg<float4>(buf + OFF);
    if (threadIdx.x == 0) buf[0] = v.x;
}

template <bool WRITTEN> __global__ void unwritten(G<float> buf)
{
    CU_SHARED(float, s, N);
    if (WRITTEN || threadIdx.x < 40) s[(int)threadIdx.x] = 0;
    __syncthreads();
    buf[(int)threadIdx.x] = s[N - 1 - (int)threadIdx.x];
}

/* A word as a whole by one thread, in parts by others; of the second block, what the first has written. */
enum part_fault { PARTS, HALVES, PART_READ, PART_WRITTEN, PART_MISSING, OLD_PART, OLD_WORD };
template <int HOW> __global__ void parts(G<float> buf)
{
    CU_SHARED(uint8_t, s, 4 * N);
    const int t = threadIdx.x, other = N - 1 - t;
    const S<uint32_t> word = cu_as<uint32_t>(s);
    if (HOW == OLD_WORD && blockIdx.x == 0) word[t] = 1;
    if (HOW == OLD_PART && blockIdx.x == 0) s[4 * t + 3] = 1;
    if (HOW == PARTS || (HOW == PART_MISSING && t != 41))
        for (int i = 0; i < 4; i++)
            s[N * i + t] = (uint8_t)t;
    if (HOW == HALVES)
        for (int i = 0; i < 2; i++)
            cu_as<uint16_t>(s)[N * i + t] = (uint16_t)t;
    if (HOW == PART_READ || HOW == PART_WRITTEN) word[t] = 1;
    __syncthreads();
    if (HOW == PART_READ) word[t] = s[4 * other + 3];
    if (HOW == PART_WRITTEN) {
        s[4 * t + 3] = 2;
        buf[t] = (float)word[other];
    }
    if (HOW == OLD_PART && blockIdx.x)
        s[4 * t] = 1; /* its word has bytes now, of this block the first alone */
    if (HOW == OLD_PART && blockIdx.x) buf[t] = s[4 * t + 3];
    if (HOW == PARTS || HOW == HALVES || HOW == PART_MISSING || (HOW == OLD_WORD && blockIdx.x))
        buf[t] = (float)word[other];
}

template <int WHO> __global__ void barrier(G<float> buf)
{
    if ((int)threadIdx.x < WHO) __syncthreads();
    if (threadIdx.x == 0) buf[0] = 1;
}

__global__ void two_barriers(G<float> buf)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    if (threadIdx.x == 0) buf[0] = 1;
}

template <int WHO> __global__ void shuffle(G<float> buf)
{
    float v = 1;
    if ((int)threadIdx.x % CU_WARP < WHO) v = cu_shfl_xor(v, 1);
    buf[(int)threadIdx.x] = v;
}

template <bool WAITS> __global__ void copies(G<float> buf)
{
    CU_SHARED(float, s, N);
    if (threadIdx.x < N / 4) cu_copy16(s + 4 * (int)threadIdx.x, buf + 4 * (int)threadIdx.x, true);
    cu_copy_commit();
    if (WAITS) cu_copy_wait<0>();
    __syncthreads();
    const float v = s[N - 1 - (int)threadIdx.x];
    cu_copy_wait<0>();
    buf[(int)threadIdx.x] = v;
}

/* The wait is each thread's own; others' copies are there after a barrier. */
__global__ void copies_unshared(G<float> buf)
{
    CU_SHARED(float, s, N);
    if (threadIdx.x < N / 4) cu_copy16(s + 4 * (int)threadIdx.x, buf + 4 * (int)threadIdx.x, true);
    cu_copy_commit();
    cu_copy_wait<0>();
    buf[(int)threadIdx.x] = s[N - 1 - (int)threadIdx.x];
}

/* Each fragment element by element, as the PTX ISA counts them ("Matrix Fragments for
 * mma.m16n8k32"): of a element i is row g + 8 where i / 4 is odd, column 4c + i % 4, + 16 from i =
 * 8 on; of b element i is row 4c + i % 4, + 16 from i = 4 on, column g. */
__global__ void one_mma(G<int32_t> sums, G<const uint8_t> a, G<const int8_t> b)
{
    const int g = threadIdx.x / 4, c = threadIdx.x % 4;
    unsigned wa[4] = { 0, 0, 0, 0 }, wb[2] = { 0, 0 };
    int d[4];
    for (int i = 0; i < 16; i++) {
        const int row = i / 4 % 2 ? g + 8 : g, col = 4 * c + i % 4 + (i < 8 ? 0 : 16);
        wa[i / 4] |= (unsigned)a[32 * row + col] << i % 4 * 8;
    }
    for (int i = 0; i < 8; i++)
        wb[i / 4] |= (unsigned)(uint8_t)b[32 * g + 4 * c + i % 4 + (i < 4 ? 0 : 16)] << i % 4 * 8;
    for (int i = 0; i < 4; i++)
        d[i] = sums[8 * (i < 2 ? g : g + 8) + 2 * c + i % 2];
    cu_mma_u8s8(d, wa, wb);
    for (int i = 0; i < 4; i++)
        sums[8 * (i < 2 ? g : g + 8) + 2 * c + i % 2] = d[i];
}

/* ---- the copy engine and products of a warpgroup ---- */
enum engine_fault {
    SOUND,
    EARLY,     /* reads before the wait */
    FLYING,    /* the same while bytes are missing */
    STRANGER,  /* another warp reads, which has not waited */
    OVERRUN,   /* the next copy comes before the readers have said that they are done */
    HALF,      /* half of the bytes that are expected */
    TWICE,     /* one arrival too many */
    OWN,       /* the second operand is written by threads */
    NO_WAIT,   /* nobody waits for the product */
    NO_COMMIT, /* it is waited for, in a group that was not closed */
    BOUNDS,    /* a copy to behind the array */
    NO_BEGIN,  /* a group without its fence */
    A_WRITTEN, /* before the wait */
    D_WRITTEN,
    D_READ /* ... it is NaN */
};
/* A warpgroup multiplies zeros by 64 rows of zeros that the engine brings twice; buf = 0. */
template <engine_fault F> __global__ void engine(G<float> buf)
{
    enum { BYTES = 64 * 128, ROUNDS = 2 };
    CU_DYNAMIC_1K(uint8_t, at);
    const S<uint64_t> full = cu_as<uint64_t>(at + BYTES), empty = full + 1;
    const int t = threadIdx.x;
    unsigned a[4] = { 0, 0, 0, 0 };
    float d[32], seen = 0;
    if (t == 0) {
        cu_bar_init(full, 1);
        cu_bar_init(empty, 4);
        cu_bars_ready();
    }
    __syncthreads();
    for (int i = 0; i < ROUNDS; i++) {
        if (t == 0) {
            if (i && F != OVERRUN) cu_bar_wait(empty, (unsigned)(i - 1));
            cu_bar_expect(full, F == HALF || F == FLYING ? 2 * BYTES : BYTES);
            if (F == TWICE) cu_bar_arrive(full);
            for (int j = 0; j < BYTES / 256; j++)
                cu_bulk(at + (F == BOUNDS ? BYTES : 256 * j), cu_as<const uint8_t>(buf), 256u,
                        full);
        }
        if (F != EARLY && F != FLYING && (F != STRANGER || t / CU_WARP != 2))
            cu_bar_wait(full, (unsigned)i);
        if (F == STRANGER) __syncwarp();
        if (F == STRANGER || F == EARLY || F == FLYING) {
            for (int k = 0; k < 3; k++) /* time passes */
                cu_shfl(0.0f, 0);
            buf[0] = cu_ld<float>(at + 16 * (t % 2));
        }
        if (F == OWN) {
            at[t] = 0;
            __syncwarp();
        }
        if (F != NO_BEGIN || i == 0) cu_wgmma_begin();
        cu_wgmma<false, 64>(d, a, cu_desc_k(at), false);
        if (F != NO_COMMIT) cu_wgmma_commit();
        if (F == A_WRITTEN) a[t % 4] = 1;
        if (F == D_WRITTEN) d[t % 32] = 1;
        if (F == D_READ) seen = d[t % 32];
        if (F != NO_WAIT) cu_wgmma_wait<0>();
        __syncwarp();
        if (t % CU_WARP == 0) cu_bar_arrive(empty);
    }
    buf[t % N] = F == NO_WAIT ? 0 : F == D_READ ? seen : d[0];
}
#define RUN_ENGINE(fault)                                                                    \
    [](dev *d, float *buf) {                                                                 \
        CU_LAUNCH(d, "it", (engine<fault>), dim3(1), CU_GROUP, 64 * 128 + 16, (float *)buf); \
    }

enum arrival_fault { ARRIVED, UNFENCED, UNWAITED, FORESTALLED, MISSED };
/* A warpgroup multiplies zeros by zeros that another warp copies, whose copies arrive at a barrier; buf = 0. */
template <arrival_fault F> __global__ void arrivals(G<float> buf)
{
    enum { BYTES = 64 * 128 };
    CU_DYNAMIC_1K(uint8_t, at);
    const S<uint64_t> full = cu_as<uint64_t>(at + BYTES);
    const int t = threadIdx.x, lane = t % CU_WARP;
    unsigned a[4] = { 0, 0, 0, 0 };
    float d[32];
    if (t == 0) {
        cu_bar_init(full, CU_WARP);
        cu_bars_ready();
    }
    __syncthreads();
    if (t >= CU_GROUP) {
        if (F == FORESTALLED) cu_copy_arrive(full);
        for (int i = lane; i < BYTES / 16; i += CU_WARP)
            cu_copy16(at + 16 * i, cu_as<const uint8_t>(buf) + i % 16 * 16, true);
        if (F != FORESTALLED && (F != MISSED || lane)) cu_copy_arrive(full);
        cu_copy_commit();
        cu_copy_wait<0>();
        return;
    }
    if (F != UNWAITED) cu_bar_wait(full, 0);
    if (F != UNFENCED) cu_fence_async();
    cu_wgmma_begin();
    cu_wgmma<false, 64>(d, a, cu_desc_k(at), false);
    cu_wgmma_commit();
    cu_wgmma_wait<0>();
    buf[t % N] = d[0];
}
#define RUN_ARRIVALS(fault)                                                               \
    [](dev *d, float *buf) {                                                              \
        CU_LAUNCH(d, "it", (arrivals<fault>), dim3(1), CU_GROUP + CU_WARP, 64 * 128 + 16, \
                  (float *)buf);                                                          \
    }

/* A launch that may begin early, which waits at once, too late, or never. */
enum { AT_ONCE, LATE, NEVER, COPIED, COPIED_FIXED };
template <int WHEN> __global__ void follower(G<float> buf)
{
    CU_SHARED(float, s, 4 * N);
    cu_next();
    if (WHEN == COPIED) cu_copy16(s + 4 * (int)threadIdx.x, buf, true);
    if (WHEN == COPIED_FIXED) cu_copy16_ldg(s + 4 * (int)threadIdx.x, buf, true);
    cu_copy_commit();
    cu_copy_wait<0>();
    if (WHEN >= COPIED) cu_after();
    cu_prefetch(buf + (int)threadIdx.x);
    if (WHEN == AT_ONCE) cu_after();
    if (WHEN < NEVER) buf[(int)threadIdx.x] = 1;
    if (WHEN == LATE) cu_after();
}
#define RUN_FOLLOW(kernel) \
    [](dev *d, float *buf) { CU_FOLLOW(d, "it", (kernel), dim3(1), N, 0, buf); }

/* The engine brings something before the launch before has ended: what may change, or what nobody writes. */
template <bool FIXED> __global__ void carried(G<float> buf)
{
    enum { BYTES = 256 };
    CU_DYNAMIC_1K(uint8_t, at);
    const S<uint64_t> full = cu_as<uint64_t>(at + BYTES);
    const G<const uint8_t> from = cu_as<const uint8_t>(buf);
    cu_next();
    if (threadIdx.x == 0) {
        cu_bar_init(full, 1);
        cu_bars_ready();
        cu_bar_expect(full, BYTES);
        if (FIXED)
            cu_bulk_ldg(at, from, (unsigned)BYTES, full);
        else
            cu_bulk(at, from, (unsigned)BYTES, full);
    }
    cu_after();
    __syncthreads();
    cu_bar_wait(full, 0);
}
#define RUN_CARRIED(fixed)                                                              \
    [](dev *d, float *buf) {                                                            \
        CU_FOLLOW(d, "it", (carried<fixed>), dim3(1), CU_WARP, 256 + 16, (float *)buf); \
    }

/* ---- device memory among the blocks of a launch ---- */
enum {
    PER = 16,
    BLOCKS = 3
}; /* threads; floats of buf for each block, the last one is a counter */

enum relay_fault {
    HANDED,
    HANDED_BY_ONE, /* by the fence of the thread that adds */
    NO_FENCE,      /* before the addition */
    NO_BARRIER,    /* ... of all to it */
    NO_FENCE_AFTER /* the addition */
};
/* The block that is last adds up what all have written. */
template <relay_fault F> __global__ void relay(G<float> buf)
{
    CU_SHARED(int, last, 1);
    const G<int> done = cu_as<int>(buf + (N - 1));
    const int t = threadIdx.x, own = (int)blockIdx.x * PER + t;
    buf[own] = (float)own;
    if (F != NO_FENCE && F != HANDED_BY_ONE) cu_fence();
    if (F != NO_BARRIER) __syncthreads();
    if (F == HANDED_BY_ONE && t == 0) cu_fence();
    if (t == 0) last[0] = cu_add(done, 1) == BLOCKS - 1;
    __syncthreads();
    if (!last[0]) return;
    if (F != NO_FENCE_AFTER) cu_fence();
    float sum = 0;
    for (int b = 0; b < BLOCKS; b++)
        sum += buf[b * PER + t];
    buf[t] = sum;
    if (t == 0) *done = 0;
}

enum across_kind {
    APART,
    READS,       /* what the next block writes, first or later */
    ALL_ALIKE,   /* all blocks write the same, and read it */
    ALL_WRITE,   /* ... what differs */
    UNCHANGING,  /* reads so what it has written */
    NEIGHBOURS,  /* one thread what another has written, after a barrier */
    NEIGHBOURS_0 /* without */
};
template <across_kind F> __global__ void across(G<float> buf)
{
    const int t = threadIdx.x, b = (int)blockIdx.x, own = b * PER + t;
    if (F == APART) buf[own] = buf[own] + 1;
    if (F == READS) buf[own] = buf[(b + 1) % BLOCKS * PER + t];
    if (F == ALL_ALIKE) buf[t] = 1;
    if (F == ALL_ALIKE) buf[PER * (b + 1) + t] = buf[t];
    if (F == ALL_WRITE) buf[t] = (float)b;
    if (F == UNCHANGING) buf[own] = 1;
    if (F == UNCHANGING) buf[own] = 1 + cu_ldg<float>(buf + own);
    if (F < NEIGHBOURS) return;
    buf[own] = 1;
    if (F == NEIGHBOURS) __syncthreads();
    const float other = buf[own ^ 1];
    __syncthreads();
    buf[own] = other;
}
/* Blocks in rising order, then in falling. */
void run_blocks(dev *d, float *buf, void (*kernel)(G<float>))
{
    for (int i = 0; i < 2; i++)
        CU_LAUNCH(d, "it", kernel, dim3(BLOCKS), PER, 0, buf);
}
#define RUN_BLOCKS(kernel) [](dev *d, float *buf) { run_blocks(d, buf, kernel); }

/* A launch that follows reads what it takes for unchanging before it waits, or after. */
template <bool BEFORE> __global__ void reader(G<float> buf)
{
    float v = 0;
    cu_next();
    if (BEFORE) v = cu_ldg<float>(buf + (int)threadIdx.x);
    cu_after();
    if (!BEFORE) v = cu_ldg<float>(buf + (int)threadIdx.x);
    buf[(int)threadIdx.x + N / 2] = v;
}
/* After a launch that writes it, or another one. */
#define RUN_READER(before, writer)                                \
    [](dev *d, float *buf) {                                      \
        CU_LAUNCH(d, "it", (writer), dim3(1), PER, 0, buf);       \
        CU_FOLLOW(d, "it", reader<before>, dim3(1), PER, 0, buf); \
    }
template <int AT> __global__ void writer(G<float> buf) { buf[(int)threadIdx.x + AT] = 1; }
/* ... two launches before. */
#define RUN_READER_LATER(launch)                                            \
    [](dev *d, float *buf) {                                                \
        CU_LAUNCH(d, "it", (writer<0>), dim3(1), PER, 0, buf);              \
        launch(d, "it", (follower<AT_ONCE>), dim3(1), 1, 0, buf + (N - 1)); \
        CU_FOLLOW(d, "it", reader<true>, dim3(1), PER, 0, buf);             \
    }

/* Compiled for so many threads; a warpgroup of three that multiply, or bring for two that do. */
template <int MOST> __global__ void bounded(G<float> buf)
{
    CU_BOUND(MOST);
    buf[(int)threadIdx.x] = 1;
}
template <bool BRINGS> __global__ void three_groups(G<float> buf)
{
    if (BRINGS && threadIdx.x < CU_GROUP)
        cu_regs_less<40>();
    else
        cu_regs_more<232>();
    if (threadIdx.x < N) buf[(int)threadIdx.x] = 1;
}
#define RUN_GROUPS(brings)                                                       \
    [](dev *d, float *buf) {                                                     \
        CU_LAUNCH(d, "it", three_groups<brings>, dim3(1), 3 * CU_GROUP, 0, buf); \
    }

/* Has a shared array of its own beside the launch's; each WHICH is allowed for itself. */
enum { KIB = 1024, ARRAY = N * sizeof(float), MOST = 227 * KIB };
template <int WHICH> __global__ void roomy(G<float> buf)
{
    CU_SHARED(float, s, N);
    CU_DYNAMIC(float, room);
    const int t = threadIdx.x;
    room[t] = s[t] = buf[t];
    buf[t] = s[t] + room[t];
}
/* On a part of this compute capability; 0 bytes: nothing is allowed. */
template <int WHICH> void run_roomy(dev *d, float *buf, int cc, int allowed, size_t dynamic)
{
    const int usual = emu_cc;
    emu_cc = cc;
    if (allowed)
        CU_TRY(d, cudaFuncSetAttribute(roomy<WHICH>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       allowed));
    CU_LAUNCH(d, "it", roomy<WHICH>, dim3(1), N, dynamic, buf);
    emu_cc = usual;
}
#define RUN_ROOMY(cc, allowed, dynamic) \
    [](dev *d, float *buf) { run_roomy<__LINE__>(d, buf, cc, allowed, dynamic); }

#define RUN(kernel) [](dev *d, float *buf) { CU_LAUNCH(d, "it", (kernel), dim3(1), N, 0, buf); }

} // namespace

extern "C" void broken_mma_u8s8(dev *d, int32_t *sums, const uint8_t *a, const int8_t *b)
{
    CU_LAUNCH(d, "mma", one_mma, dim3(1), CU_WARP, 0, sums, a, b);
}

extern "C" void broken_read_early(dev *d, float *buf)
{
    CU_LAUNCH(d, "it", (engine<D_READ>), dim3(1), CU_GROUP, 64 * 128 + 16, buf);
}

extern "C" void broken_allow(dev *d, int bytes)
{
    CU_TRY(d, cudaFuncSetAttribute(roomy<0>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}
extern "C" void broken_roomy(dev *d, float *buf, size_t dynamic)
{
    CU_LAUNCH(d, "it", roomy<0>, dim3(1), N, dynamic, buf);
}

extern "C" const broken_case broken_cases[] = {
    { "a barrier between", NULL, RUN(reverse<true>) },
    { "no barrier between", "race: ", RUN(reverse<false>) },
    { "barriers before and after reading", NULL, RUN(rounds<true>) },
    { "a barrier before reading alone", "race: ", RUN(rounds<false>) },
    { "a warp's barrier", NULL, RUN(neighbours<true>) },
    { "a shuffle in its place", "race: reads", RUN(neighbours<false>) },
    { "inside the array", NULL, RUN(shared_bounds<0>) },
    { "one behind it", "array of 256 in shared memory", RUN(shared_bounds<1>) },
    { "inside the buffer", NULL, RUN(global_bounds<0>) },
    { "one behind it", "allocation of 256 in device memory", RUN(global_bounds<1>) },
    { "16 bytes at an odd place", "bounds: address", RUN(aligned<1>) },
    { "all written", NULL, RUN(unwritten<true>) },
    { "some not written", "unwritten: reads", RUN(unwritten<false>) },
    { "words of bytes from four threads", NULL, RUN(parts<PARTS>) },
    { "of two halves", NULL, RUN(parts<HALVES>) },
    { "a word of which another reads a byte", "race: ", RUN(parts<PART_READ>) },
    { "a word of which another writes a byte", "race: ", RUN(parts<PART_WRITTEN>) },
    { "a byte of a word is not written", "unwritten: reads byte 233 ", RUN(parts<PART_MISSING>) },
    { "a byte that the block before has written", "unwritten: reads", RUN_BLOCKS(parts<OLD_PART>) },
    { "a word that it has", "unwritten: reads", RUN_BLOCKS(parts<OLD_WORD>) },
    { "a barrier that half of them reach", "divergence: waits in __syncthreads", RUN(barrier<32>) },
    { "two barriers, each reached by half", "divergence: waits in __syncthreads",
      RUN(two_barriers) },
    { "a shuffle without the last lane", "divergence: waits in cu_shfl", RUN(shuffle<31>) },
    { "copies waited for", NULL, RUN(copies<true>) },
    { "copies not waited for", "unwritten: reads", RUN(copies<false>) },
    { "copies waited for, without a barrier", "unwritten: reads", RUN(copies_unshared) },
    { "the engine's copies, waited for", NULL, RUN_ENGINE(SOUND) },
    { "not waited for", "unwaited: reads", RUN_ENGINE(EARLY) },
    { "read while they are under way", "flying: reads", RUN_ENGINE(FLYING) },
    { "waited for by others", "unwaited: reads", RUN_ENGINE(STRANGER) },
    { "copied over before all have read", "overrun: ", RUN_ENGINE(OVERRUN) },
    { "half of the bytes", "8192 bytes are missing", RUN_ENGINE(HALF) },
    { "an arrival too many", "mbarrier: more arrivals", RUN_ENGINE(TWICE) },
    { "a product of what threads wrote", "proxy: ", RUN_ENGINE(OWN) },
    { "a product that nobody waits for", "wgmma: a product", RUN_ENGINE(NO_WAIT) },
    { "a product without its group's end", "wgmma: a product", RUN_ENGINE(NO_COMMIT) },
    { "a product without its fence", "wgmma: a product without", RUN_ENGINE(NO_BEGIN) },
    { "a is written before the wait", "wgmma: a is written", RUN_ENGINE(A_WRITTEN) },
    { "d is", "is written while a product", RUN_ENGINE(D_WRITTEN) },
    { "a copy to behind the array", "bounds: a bulk copy", RUN_ENGINE(BOUNDS) },
    { "copies that arrive at a barrier", NULL, RUN_ARRIVALS(ARRIVED) },
    { "their reader hands them to the units without a fence", "proxy: ", RUN_ARRIVALS(UNFENCED) },
    { "it does not wait for them", "proxy: ", RUN_ARRIVALS(UNWAITED) },
    { "they have arrived before they are asked for", "proxy: ", RUN_ARRIVALS(FORESTALLED) },
    { "one of them never arrives", "mbarrier: waits", RUN_ARRIVALS(MISSED) },
    { "a launch that follows", NULL, RUN_FOLLOW(follower<AT_ONCE>) },
    { "it writes before it has waited", "follow: device memory", RUN_FOLLOW(follower<LATE>) },
    { "it never waits", "follow: a thread ends", RUN_FOLLOW(follower<NEVER>) },
    { "it copies what may change", "follow: device memory is copied",
      RUN_FOLLOW(follower<COPIED>) },
    { "it copies what does not", NULL, RUN_FOLLOW(follower<COPIED_FIXED>) },
    { "its engine copies what may change", "follow: device memory", RUN_CARRIED(false) },
    { "what does not", NULL, RUN_CARRIED(true) },
    { "it reads what the launch before has written, after it", NULL, RUN_READER(false, writer<0>) },
    { "before it has ended", "follow: what a launch before", RUN_READER(true, writer<0>) },
    { "what that has not written", NULL, RUN_READER(true, writer<PER>) },
    { "the one before that, where each lets the next begin", "follow: what a launch before",
      RUN_READER_LATER(CU_FOLLOW) },
    { "where the one between does not", NULL, RUN_READER_LATER(CU_LAUNCH) },
    { "as many threads as it is compiled for", NULL, RUN(bounded<N>) },
    { "more", "registers: 64 threads, the kernel is compiled for 32", RUN(bounded<N / 2>) },
    { "registers for all warpgroups", NULL, RUN_GROUPS(true) },
    { "for two of three", "registers: warpgroups ask for more", RUN_GROUPS(false) },
    { "blocks with memory of their own", NULL, RUN_BLOCKS(across<APART>) },
    { "memory of the next block", "blocks: reads", RUN_BLOCKS(across<READS>) },
    { "all write the same bytes and read them", NULL, RUN_BLOCKS(across<ALL_ALIKE>) },
    { "all write bytes that differ", "blocks: writes", RUN_BLOCKS(across<ALL_WRITE>) },
    { "unchanging memory that changes", "constant: reads", RUN_BLOCKS(across<UNCHANGING>) },
    { "a neighbour's float after a barrier", NULL, RUN_BLOCKS(across<NEIGHBOURS>) },
    { "without", "race: reads device memory", RUN_BLOCKS(across<NEIGHBOURS_0>) },
    { "the last block adds up", NULL, RUN_BLOCKS(relay<HANDED>) },
    { "one thread's fence for all", NULL, RUN_BLOCKS(relay<HANDED_BY_ONE>) },
    { "no fence before the counter", "blocks: reads", RUN_BLOCKS(relay<NO_FENCE>) },
    { "fences that the counting thread has not met", "blocks: reads",
      RUN_BLOCKS(relay<NO_BARRIER>) },
    { "no fence after the counter", "blocks: reads", RUN_BLOCKS(relay<NO_FENCE_AFTER>) },
    { "48 KiB of shared memory with the array", NULL, RUN_ROOMY(90, 0, 48 * KIB - ARRAY) },
    { "48 KiB without it", "49152 dynamic and 256 static", RUN_ROOMY(90, 0, 48 * KIB) },
    { "more than 48 KiB, not allowed", "is allowed 49152", RUN_ROOMY(90, 0, 48 * KIB + 16) },
    { "all that a part of sm_90 has", NULL, RUN_ROOMY(90, MOST - ARRAY, MOST - ARRAY) },
    { "the array beyond it", "asked for, a block has 232448", RUN_ROOMY(90, MOST, 50 * KIB) },
    { "as much on one of sm_80", "asked for, a block has 166912", RUN_ROOMY(80, MOST, 50 * KIB) },
    { "all of that", NULL, RUN_ROOMY(80, 163 * KIB - ARRAY, 163 * KIB - ARRAY) },
    { "all of one of sm_89", NULL, RUN_ROOMY(89, 99 * KIB - ARRAY, 99 * KIB - ARRAY) },
    { "the array beyond it", "asked for, a block has 101376", RUN_ROOMY(89, 99 * KIB, 99 * KIB) },
    { "more than was allowed", "is allowed 51200", RUN_ROOMY(90, 50 * KIB, 51 * KIB) },
};
extern "C" const size_t broken_n = LQ_COUNT(broken_cases);
