/* quantize/job/probe.h - how fast this machine is just now: what the time of a run is foretold by. */
#ifndef LLMQ_QUANTIZE_JOB_PROBE_H
#define LLMQ_QUANTIZE_JOB_PROBE_H

#include "kernels/core/pool.h"

/* Multiply-adds a second of f32 products of middle size over the pool, in about a tenth of a second. 0: no
 * memory to measure with. */
double probe_speed(pool *p);

#endif
