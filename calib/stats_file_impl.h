/* calib/stats_file_impl.h - what reading, merging (stats_file.c) and making (stats_make.c) share. */
#ifndef LLMQ_CALIB_STATS_FILE_IMPL_H
#define LLMQ_CALIB_STATS_FILE_IMPL_H

#include "calib/stats_file.h"
#include "formats/hf/safetensors.h"

enum { PART_H, PART_SUMS, PART_MAX, PART_COUNT, PART_HASH, STATS_PARTS };

/* One cal_stats of a layer. */
typedef struct {
    int64_t layer, expert, K;
    int site;
} slot;

typedef struct {
    slot *v; /* free() it */
    size_t n;
} slots;

lq_status stats_find_slots(slots *o, const arch_config *c, lq_err *err);
cal_stats *stats_of_slot(cal_layer_stats *st, const slot *at);

typedef struct {
    st_writer *w;
    st_tensor *t;
    char (*name)[64];
    size_t n;
} stats_writer;

/* The tensors of these parts: `about` first, then slot after slot of part after part. */
lq_status stats_begin_file(stats_writer *w, const char *path, const slots *o, int64_t first,
                           int64_t end, bool want_h, const cJSON *about, lq_err *err);
/* A slot's sums, whose tensors begin at `at`. */
lq_status stats_put_slot(stats_writer *w, size_t at, const cal_stats *st, bool want_h, lq_err *err);
void stats_writer_free(stats_writer *w);
/* The JSON of a file that has parts first..end of `leaves`. NULL: out of memory. */
cJSON *stats_about(int64_t leaves, int64_t first, int64_t end, const cJSON *record);

#endif
