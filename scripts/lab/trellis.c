/* scripts/lab/trellis.c - the trellis codes of docs/lab/trellis.md: search, and what decoding costs.
 *
 * A sequence of states of L bits; from one to the next k V new bits come in at the bottom, and V weights take the values
 * book[state]. So a state's predecessors differ in their top k V bits alone, and a step of Viterbi's algorithm is 2^L
 * minima and 2^L errors. Source: arXiv:2406.11235 (QTIP). Compiled by trellis.py. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* y [n]: the nearest sequence to x by sum weight (x - y)^2; n a multiple of V. Returns 0, or 1: out of memory. */
int viterbi(float *y, const float *x, const float *weight, int n, const float *book, int L, int k,
            int V)
{
    const int bits = k * V, S = 1 << L, J = S >> bits, H = 1 << bits, T = n / V;
    float *cost = malloc((size_t)S * 4), *best = malloc((size_t)J * 4),
          *plane = malloc((size_t)S * V * 4);
    uint16_t *from = malloc((size_t)T * (size_t)J * 2);
    if (!cost || !best || !plane || !from) return 1;
    for (int s = 0; s < S; s++)
        for (int v = 0; v < V; v++)
            plane[v * S + s] = book[s * V + v];
    memset(cost, 0, (size_t)S * 4);
    for (int t = 0; t < T; t++) {
        uint16_t *f = from + (size_t)t * (size_t)J;
        memcpy(best, cost, (size_t)J * 4);
        memset(f, 0, (size_t)J * 2);
        for (int h = 1; h < H; h++) {
            const float *c = cost + h * J;
            for (int j = 0; j < J; j++) {
                const int less = c[j] < best[j];
                best[j] = less ? c[j] : best[j];
                f[j] = (uint16_t)(less ? h : f[j]);
            }
        }
        for (int j = 0; j < J; j++)
            for (int i = 0; i < H; i++)
                cost[j * H + i] = best[j];
        for (int v = 0; v < V; v++) {
            const float *p = plane + v * S, a = x[t * V + v], w = weight[t * V + v];
            for (int s = 0; s < S; s++)
                cost[s] += w * (a - p[s]) * (a - p[s]);
        }
    }
    int s = 0;
    for (int i = 1; i < S; i++)
        if (cost[i] < cost[s]) s = i;
    for (int t = T; t-- > 0;) {
        for (int v = 0; v < V; v++)
            y[t * V + v] = book[s * V + v];
        s = from[(size_t)t * (size_t)J + (size_t)(s >> bits)] * J + (s >> bits);
    }
    free(cost), free(best), free(plane), free(from);
    return 0;
}

/* ---- what decoding costs ---- */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { ROWS = 16, N = 1 << 14 }; /* 16 streams side by side, of 2-bit codes; N weights of each */

/* 1MAD: the state times a + b, its four bytes added. */
static float dot_1mad(const uint16_t *words, const float *x)
{
    float sum[ROWS] = { 0 };
    uint32_t state[ROWS] = { 0 };
    for (int i = 0; i < N; i++)
        for (int r = 0; r < ROWS; r++) {
            state[r] = i % 8 ? state[r] << 2 : state[r] | words[i / 8 * ROWS + r];
            uint32_t m = (state[r] >> 2 & 0xffff) * 34038481u + 76625530u;
            m = (m & 0x00ff00ff) + (m >> 8 & 0x00ff00ff);
            sum[r] += (float)(int32_t)((m & 0xffff) + (m >> 16)) * x[i];
        }
    float all = 0;
    for (int r = 0; r < ROWS; r++)
        all += sum[r];
    return all;
}

/* A table of 2^L f32. */
static float dot_table(const uint16_t *words, const float *x, const float *book, int L)
{
    float sum[ROWS] = { 0 };
    uint32_t state[ROWS] = { 0 };
    const uint32_t mask = (1u << L) - 1;
    for (int i = 0; i < N; i++)
        for (int r = 0; r < ROWS; r++) {
            state[r] = i % 8 ? state[r] << 2 : state[r] | words[i / 8 * ROWS + r];
            sum[r] += book[state[r] >> 2 & mask] * x[i];
        }
    float all = 0;
    for (int r = 0; r < ROWS; r++)
        all += sum[r];
    return all;
}

/* The grid: 2 bits, one scale beside. */
static float dot_grid(const uint16_t *words, const float *x)
{
    float sum[ROWS] = { 0 };
    for (int i = 0; i < N; i++)
        for (int r = 0; r < ROWS; r++)
            sum[r] += (float)((words[i / 8 * ROWS + r] >> (2 * (i % 8)) & 3) - 2) * x[i];
    float all = 0;
    for (int r = 0; r < ROWS; r++)
        all += sum[r];
    return all;
}

/* Nanoseconds a weight, of one core: 2-bit grid, 1MAD, tables of 2^12 and 2^16. */
void decoding(double ns[4])
{
    uint16_t *words = malloc(sizeof *words * N / 8 * ROWS);
    float *x = malloc(sizeof *x * N), *book = malloc(sizeof *book << 16);
    volatile float sink = 0;
    for (int i = 0; i < N / 8 * ROWS; i++)
        words[i] = (uint16_t)(i * 40503u >> 3);
    for (int i = 0; i < N; i++)
        x[i] = (float)(i % 7) - 3;
    for (int i = 0; i < 1 << 16; i++)
        book[i] = (float)(i % 101) - 50;
    for (int k = 0; k < 4; k++) {
        ns[k] = 1e9;
        for (int rep = 0; rep < 40; rep++) {
            const double t = now();
            sink += k == 0   ? dot_grid(words, x)
                    : k == 1 ? dot_1mad(words, x)
                             : dot_table(words, x, book, k == 2 ? 12 : 16);
            const double each = (now() - t) * 1e9 / N / ROWS;
            ns[k] = each < ns[k] ? each : ns[k];
        }
    }
    free(words), free(x), free(book);
}
