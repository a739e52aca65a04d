/* base/mapped.h - mapped files that are larger than memory, or that change while they are read.
 *
 * Pages of a mapped file that were read count as this process's memory until they are dropped; the
 * file's copy in the system's cache does not. */
#ifndef LLMQ_BASE_MAPPED_H
#define LLMQ_BASE_MAPPED_H

#include "base/base.h"
#include "base/file.h"

/* Give the pages of p .. p + n, inside the mapping, back. What is read again comes from the file.
 */
void lq_map_drop(const lq_map *m, const void *p, size_t n);
/* They are read here and there, a little each time: what comes after them is not read ahead. */
void lq_map_scattered(const lq_map *m, const void *p, size_t n);

/* While the guard is on, a mapped page that its file no longer has (the file was cut, its disk
 * fails) reads as zeros instead of ending the process; lq_map_lost says that it happened. Call
 * lq_map_lost before using what was made. One user at a time; the signal is SIGBUS. */
void lq_map_guard(bool on);
bool lq_map_lost(void);

#endif
