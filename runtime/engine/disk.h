/* runtime/engine/disk.h - the engine's part in the KV cache on disk (runtime/model/kv_disk.h): what leaves
 * the cache is handed over, a prompt that begins like one on disk waits until its blocks are in the
 * cache, and at the end all that is cached is handed over.
 *
 * Blocks that were read are cached blocks like any other: admission finds them as a prefix. So nothing
 * is held for a prompt that waits, and one that finds less computes the rest. Engine thread only.
 *
 * Of a cache on devices the places of both queues are pinned memory, which copies go to and come from
 * by themselves: what leaves is written once the step is over before which it was copied. */
#ifndef LLMQ_RUNTIME_ENGINE_DISK_H
#define LLMQ_RUNTIME_ENGINE_DISK_H

#include "runtime/engine/engine_opts.h"
#include "runtime/engine/seq.h"
#include "runtime/model/kv_disk.h"

typedef struct disk disk;

/* What K and V depend on besides tokens and adapter, the device too, and the hash for it: of the cache's
 * options, before it is opened. LQ_ENOMEM. */
lq_status disk_identity(uint64_t of[2], const eng_opts *o, const model *m, lq_err *err);
void disk_hash(uint64_t out[2], const void *data, size_t n);
/* wake: as kvd_opts'. Errors: kvd_open's; LQ_EUNSUPPORTED: the cache keeps no prefixes. */
lq_status disk_open(disk **d, const eng_opts *o, kv_cache *kv, void (*wake)(void *user), void *user,
                    lq_err *err);
/* All that is cached is written, as much as the folder holds and as the time lasts, what was used last first. NULL
 * allowed. */
void disk_close(disk *d);

/* Nothing is written after that (lq_now's seconds). Any thread; d may be NULL. */
void disk_until(disk *d, double until);

/* A prompt that could begin now: are its blocks looked for? Then s->reading until disk_step. */
bool disk_look(void *d, seq *s);
/* Blocks that were read enter the cache, some megabytes of them; looks that are over end. True: there is
 * more. */
bool disk_step(disk *d);
int64_t disk_looks(const disk *d); /* that are not over; d may be NULL */
void disk_forget(disk *d, seq *s); /* d may be NULL */
/* A step is over, and with it, where ok, what was queued on devices before. */
void disk_settled(disk *d, bool ok);
/* A step computed so many rows, most of prompts, in that time. */
void disk_computed(disk *d, int64_t rows, double seconds);

uint64_t disk_tokens(const disk *d); /* that were read into the cache */
double disk_pace(const disk *d);     /* seconds to compute a token of a prompt; 0: not known */
void disk_files(const disk *d, kvd_stats *s); /* any thread */

#endif
