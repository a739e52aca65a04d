/* tools/bench/roofline.h - how fast a step can be, by memory bandwidth and arithmetic alone.
 *
 * A step of B rows takes on a device as long as the longer of reading what it has of the model and
 * multiplying that by B rows:
 *
 *     seconds(B) = max((bytes + B ctx kv_bytes) / bandwidth, 2 weights B / flops)
 *
 * Of a model that several devices have one part each of, one after the other, the sum. */
#ifndef LLMQ_TOOLS_BENCH_ROOFLINE_H
#define LLMQ_TOOLS_BENCH_ROOFLINE_H

typedef struct {
    double bandwidth, flops; /* bytes and operations a second */
    double bytes;            /* of the weights that every step reads */
    double weights;          /* numbers in those: 2 operations each a row */
    double kv_bytes;         /* of the cache, for each token in it */
} roof_side;

typedef struct {
    double decode, decode_full; /* tokens a second of one sequence: cache empty, with ctx in it */
    double prefill;
} roof_limits;

roof_limits roof_of(const roof_side *sides, int n, double ctx);
/* Rows whose products take as long as reading the weights: at least 1. */
double roof_batch(const roof_side *s);

#endif
