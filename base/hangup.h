/* base/hangup.h - which of many sockets their other side has closed; it may have sent something before, and
 * may still read. One thread waits, any may add: hangup_linux.c (epoll), hangup_bsd.c (kqueue). */
#ifndef LLMQ_BASE_HANGUP_H
#define LLMQ_BASE_HANGUP_H

#include "base/base.h"

typedef struct {
    int fd, stop_fd; /* -1: none */
} hangup;

/* false: the system has no descriptors left; hup_close does for that too. */
bool hup_open(hangup *h);
void hup_close(hangup *h);

/* From now on, once: the socket is known by `id`, less than UINT64_MAX. Closing it takes it out. */
void hup_add(hangup *h, int fd, uint64_t id);
void hup_again(hangup *h, int fd, uint64_t id); /* once more */

/* Waits for up to `ms` milliseconds: how many of the ids were found closed (0: none), of at most `n`; -1:
 * hup_stop was called. An id may come again without hup_again. */
int hup_wait(hangup *h, uint64_t *ids, int n, int ms);
bool hup_stop(hangup *h);

#endif
