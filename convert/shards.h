/* convert/shards.h - the safetensors files of a folder, and how the parts of a weight get into them. For
 * convert/ only. */
#ifndef LLMQ_CONVERT_SHARDS_H
#define LLMQ_CONVERT_SHARDS_H

#include "convert/folder.h"
#include "convert/layouts/layout.h"
#include "formats/hf/safetensors.h"

/* w->parts and w->bytes by the layout; errors as of conv_layout.plan. */
lq_status conv_plan_parts(conv_weight *w, const conv_layout *l, const conv_plan *p, lq_err *err);
/* The shard of the next tensor of `bytes`; *at and *in_shard (bytes in it) begin as 0. limit 0: one. */
int conv_next_shard(int *at, size_t *in_shard, size_t bytes, size_t limit);
void conv_shard_name(char *name, size_t n, int i, int n_shards);

/* The parts of a weight, or of the stack whose first it is, as tensors of a file; names in `a`, NULL where there was
 * no memory. Returns how many. */
int conv_list_parts(st_tensor *out, const conv_weight *w, lq_arena *a);
/* The parts of q one after another in `bytes` [w->bytes], which are zero. As conv_layout.pack. */
lq_status conv_pack(uint8_t *bytes, const conv_layout *l, const conv_weight *w, const qt_tensor *q,
                    const conv_plan *p, lq_err *err);
/* ... into tensors first, first + 1, ... of the file; of a stack's weight into its part of them. */
lq_status conv_put_parts(st_writer *out, size_t first, const conv_weight *w, const uint8_t *bytes,
                         lq_err *err);

/* All of n_shards files by `write`, which adds its tensors to the index's map, and where there are
 * several model.safetensors.index.json; total: bytes of the tensors. */
lq_status conv_write_shards(const conv_folder *f, int n_shards, size_t total,
                            lq_status (*write)(void *user, int shard, cJSON *map, lq_err *err),
                            void *user, lq_err *err);
/* What tells of each of n_shards files that it is the one written here (formats/source/history.h). */
lq_status conv_list_files(cJSON *files, const conv_folder *f, int n_shards, lq_err *err);

#endif
